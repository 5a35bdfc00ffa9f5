"""Runs of a task of one's own: tickets are summarised and routed, free text is checked in form only."""

from __future__ import annotations

import json
import re

import checkpoint_demo
from tests.support import CALLED, ENDED, RunTestCase, checkpoint, handoff, message, respond, text, tool_call

TICKETS = '''
import json

from checkpoint_demo import FREE_TEXT, InputError, Task, check_rows, parse_json


class Tickets(Task):
    """Summarise tickets, and route each by its priority."""

    name = "tickets"
    source = [
        {"id": "T-1", "customer": "Ada", "priority": 1},
        {"id": "T-2", "customer": "Bo", "priority": 3},
        {"id": "T-3", "customer": "Cy", "priority": 1},
    ]
    operation = "list_tickets"
    tool_description = "Return every open ticket. It changes nothing."
    sender_prompt = "You sort tickets. Read them with the tool. Answer nobody."
    objective = "Summarise every ticket, and route it: priority 1 to urgent, others to normal."
    instructions = """Resume this read-only task from verified application state.
Return only a JSON object with the keys tickets (id, summary, route)
and routes (count by route). No Markdown."""
    rows_field = "tickets"
    row_key = "id"

    def parse_source(self, data):
        rows = check_rows(parse_json(data), self.row_key)
        for at, row in enumerate(rows):
            if type(row.get("priority")) is not int or not 1 <= row["priority"] <= 5:
                raise InputError(f"[{at}].priority", "expected an integer from 1 to 5")
        return rows

    def build_answer(self, rows):
        routes = {row["id"]: "urgent" if row["priority"] == 1 else "normal" for row in rows}
        tickets = [{"id": name, "summary": FREE_TEXT, "route": route} for name, route in routes.items()]
        counts = {route: list(routes.values()).count(route) for route in sorted(set(routes.values()))}
        return {"tickets": tickets, "routes": counts}

    def list_pending(self, rows):
        return [f"Route {len(rows)} tickets"]

    def render_acceptance(self, rows):
        return f"accepted: {len(rows)} tickets routed"


TASK = Tickets()
'''
ASKED = message([tool_call(name="list_tickets")], "tool_use")


class TaskRunTestCase(RunTestCase):
    def setUp(self):
        super().setUp()
        self.task = self.put("tickets.py", TICKETS)
        self.set_answer()

    def set_answer(self):
        """Let the receiver give a right answer."""
        self.answer = {
            "tickets": [
                {"id": "T-2", "summary": "Asks for a refund.", "route": "normal"},
                {"id": "T-1", "summary": "Cannot log in.", "route": "urgent"},
                {"id": "T-3", "summary": "Has no network.", "route": "urgent"},
            ],
            "routes": {"normal": 1, "urgent": 2},
        }

    def answered(self):
        return respond(message([text(json.dumps(self.answer))], model="anthropic/claude-opus-5.5"))

    def live_tickets(self, *options, out="run"):
        server = self.serve(respond(ASKED), respond(ENDED), self.answered())
        return self.live(server, "--task", self.task, *options, out=out)


class RehearsedTaskTest(TaskRunTestCase):
    def test_task_is_rehearsed_and_inspected(self):
        ended = handoff("--rehearse", "--task", self.task, "--out", self.path("run"))
        self.assertEqual(ended.code, 0, ended)
        self.assertTrue(
            ended.out.endswith("accepted: 3 tickets routed (rehearsal: no model answered)\n"), ended
        )
        self.assertEqual(self.states()["list-tickets-1"], ["planned", "confirmed"])
        first = self.ledger()[0]
        digest = checkpoint_demo.digest_bytes(TICKETS.encode())
        self.assertEqual((first["task"], first["task_sha256"]), ("tickets", digest))
        inspected = self.inspect("run", "--task", self.task)
        self.assertEqual(inspected.code, 0, inspected)
        self.assertNotIn("judged on the source recorded", inspected.err)
        for words in ("SKU", "sku", "shortage", "stock"):
            for name, data in self.files().items():
                self.assertNotIn(words.encode(), data, name)

    def test_task_is_checked_without_a_mode(self):
        ended = handoff("--task", self.task)
        self.assertEqual(ended.code, 0, ended)
        self.assertTrue(ended.out.endswith("inspected: every file and record holds\n"))

    def test_builtin_task_is_named_without_a_digest(self):
        self.assertEqual(handoff("--rehearse", "--out", self.path("run")).code, 0)
        self.assertEqual([self.ledger()[0][name] for name in ("task", "task_sha256")], ["stock", ""])

    def test_free_text_is_said_where_the_answer_is_estimated(self):
        ended = handoff(*("--rehearse", "--task", self.task, "--max-tokens", "9", "--out", self.path("run")))
        self.assertRegex(
            ended.err, "--live would refuse this: 3 rows: the answer, with two words for each free"
        )
        refused = self.live_tickets("--max-tokens", "9", out="live")
        self.assertEqual(refused.code, 3, refused)
        self.assertIn("for each free text, takes about", refused.err)


class LiveTaskTest(TaskRunTestCase):
    def test_right_answer_is_accepted_in_any_order_and_holds(self):
        ended = self.live_tickets()
        self.assertEqual(ended.code, 0, ended)
        inspected = self.inspect("run", "--task", self.task)
        self.assertEqual((inspected.code, inspected.out.splitlines()[-1]), (0, "accepted: 3 tickets routed"))
        page = self.files()["report.html"].decode()
        self.assertIn("3 of 3 rows agree", page)
        self.assertIn("Cannot log in.", page)
        request = json.loads(self.files()["1-request.json"])
        self.assertEqual(request["tools"][0]["name"], "list_tickets")
        self.assertIn("list_tickets", request["messages"][0]["content"])
        self.assertTrue(request["system"].startswith("You sort tickets."))

    def test_wrong_answer_is_rejected_at_its_place_and_the_same_when_inspected(self):
        def change(path, value):
            *parents, last = path
            target = self.answer
            for part in parents:
                target = target[part]
            target[last] = value

        cases = {
            "a wrong route": (("tickets", 0, "route"), "urgent", "tickets[0].route: observed"),
            "a blank summary": (("tickets", 1, "summary"), " ", "tickets[1].summary: observed"),
            "a summary that is a number": (("tickets", 1, "summary"), 7, "tickets[1].summary: observed"),
            "a wrong count": (("routes", "urgent"), 3, "routes.urgent: observed the integer 3"),
            "a count for a route that is not used": (("routes", "later"), 0, "routes.later: observed"),
            "a ticket twice": (("tickets", 0, "id"), "T-1", "tickets[1].id: observed"),
        }
        for number, (phrase, (path, value, words)) in enumerate(cases.items()):
            with self.subTest(phrase):
                self.set_answer()
                change(path, value)
                out = f"run-{number}"
                ended = self.live_tickets(out=out)
                self.assertEqual(ended.code, 1, ended)
                self.assertIn(words, ended.err)
                inspected = self.inspect(out, "--task", self.task)
                self.assertEqual(inspected.code, 1, inspected)
                self.assertIn(words, inspected.err)
                self.assertIn("rejected: the run in", inspected.err)

    def test_call_of_another_tasks_tool_does_not_fit(self):
        ended = self.live(self.serve(respond(CALLED)), "--task", self.task)
        self.assertEqual(ended.code, 4, ended)
        self.assertIn("read_stock", ended.err)
        self.assertEqual(self.inspect("run", "--task", self.task).code, 4)

    def test_source_of_ones_own_is_judged_on_what_is_recorded_or_named(self):
        rows = [{"priority": 2, "id": "T-9", "customer": {"name": "Di"}}]
        source = self.put("tickets.json", json.dumps(rows))
        self.answer = {"tickets": [{"id": "T-9", "summary": "?", "route": "normal"}], "routes": {"normal": 1}}
        ended = self.live_tickets("--source", source)
        self.assertEqual(ended.code, 0, ended)
        recorded = self.inspect("run", "--task", self.task)
        self.assertEqual(recorded.code, 0, recorded)
        self.assertIn("it is judged on the rows recorded in it", recorded.out)
        named = self.inspect("run", "--task", self.task, "--source", source)
        self.assertEqual(named.code, 0, named)
        self.assertNotIn("recorded in it", named.out + named.err)
        other = self.put("other.json", json.dumps([{**rows[0], "priority": 1}]))
        self.assertEqual(self.inspect("run", "--task", self.task, "--source", other).code, 1)

    def test_key_in_the_task_or_its_source_is_stored_nowhere(self):
        key = "sk-invented-in-a-task-0123"
        tasks = {
            "objective": TICKETS.replace("Summarise every ticket", f"Use {key}"),
            "tool": TICKETS.replace("Return every open ticket", f"Use {key}"),
            "row": TICKETS.replace('"Ada"', f'"{key}"'),
        }
        for out, task in tasks.items():
            with self.subTest(out):
                server = self.serve()
                path = self.put("task.py", task)
                ended = self.live(server, "--task", path, out=out, key=key)
                self.assertEqual((ended.code, server.connections), (3, 0), ended)
                self.assertIn("this key cannot be used", ended.err)
                self.assertNotIn(out, self.names())


class AnotherTaskTest(TaskRunTestCase):
    def test_inspection_asks_for_the_very_file(self):
        self.assertEqual(self.live_tickets().code, 0)
        digest = checkpoint_demo.digest_bytes(TICKETS.encode())
        other = self.put("other.py", TICKETS + "\n")
        for options in ([], ["--task", other]):
            with self.subTest(options):
                ended = self.inspect("run", *options)
                self.assertEqual((ended.code, ended.out), (2, ""), ended)
                self.assertRegex(
                    ended.err, r"^run_handoff\.py: unreadable: .+\n  why: .+\n  next: .*--task FILE\n$"
                )
                self.assertIn(digest, ended.err)
        self.assertEqual(json.loads(self.inspect("run", "--json").out)["exit_code"], 2)

    def test_task_that_is_named_for_a_run_of_the_builtin_one_is_refused(self):
        self.assertEqual(handoff("--rehearse", "--out", self.path("run")).code, 0)
        ended = self.inspect("run", "--task", self.task)
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("leave --task out", ended.err)

    def test_forged_name_of_the_task_is_found(self):
        self.assertEqual(self.live_tickets().code, 0)
        ledger = self.folder / "run" / "ledger.jsonl"
        ledger.write_bytes(ledger.read_bytes().replace(b'"task":"tickets"', b'"task":"others"'))
        ended = self.inspect("run", "--task", self.task)
        self.assertEqual(ended.code, 1, ended)
        self.assertIn("ledger.jsonl line 1 task: observed", ended.err)


class BadTaskTest(TaskRunTestCase):
    """What is wrong with a task is said with its place, before anything is sent or made."""

    MEMBERS = {
        "name": "name = 7",
        "source": "source = {}",
        "operation": 'operation = "two words"',
        "tool_description": 'tool_description = ""',
        "sender_prompt": "sender_prompt = None",
        "objective": "objective = []",
        "instructions": 'instructions = " "',
        "rows_field": "rows_field = 1",
        "row_key": 'row_key = ""',
    }
    METHODS = ("parse_source", "build_answer", "list_pending", "render_acceptance", "find_faults")
    SHAPES = {"build_answer": "[]", "list_pending": "[7]", "render_acceptance": "7"}

    def check(self, task, *words, source=()):
        path = self.put("task.py", task)
        for mode in ([], ["--rehearse"], ["--live", "--endpoint", self.server.url]):
            out = ["--out", self.path("run")] if mode else []
            ended = handoff(*mode, "--task", path, *out, *source)
            self.assertEqual((ended.code, ended.out), (2, ""), ended)
            self.assertRegex(ended.err, r"^run_handoff\.py: [a-z ]+: .+\n  why: .+\n  next: .+\n$")
            for word in words:
                self.assertIn(word, ended.err.splitlines()[0])
            self.assertNotIn("Traceback", ended.err)
        self.assertEqual((self.server.connections, "run" in self.names()), (0, False))

    def setUp(self):
        super().setUp()
        self.server = self.serve()

    def test_member_of_the_wrong_shape_is_named(self):
        for member, line in self.MEMBERS.items():
            with self.subTest(member):
                self.check(TICKETS.replace("\nTASK =", f"\nTickets.{line}\nTASK ="), member)
        for method, value in self.SHAPES.items():
            with self.subTest(method):
                wrong = f"\nTickets.{method} = lambda self, rows: {value}\nTASK ="
                self.check(TICKETS.replace("\nTASK =", wrong), method)

    def test_member_that_is_missing_is_named(self):
        for member in (*self.MEMBERS, "build_answer", "list_pending"):
            if member == "rows_field":  # which has a default, that this answer does not fit
                continue
            with self.subTest(member):
                self.check(TICKETS.replace("\nTASK =", f"\ndel Tickets.{member}\nTASK ="), member)

    def test_member_that_raises_is_named_with_its_line(self):
        source = ("--source", self.put("tickets.json", json.dumps([{"id": "T-1", "priority": 1}])))
        for method in self.METHODS:
            with self.subTest(method):
                fails = "\ndef fail(self, *_):\n    raise ZeroDivisionError('odd')"
                task = TICKETS.replace("\nTASK =", f"{fails}\nTickets.{method} = fail\nTASK =")
                number = task[: task.index("raise Zero")].count("\n") + 1
                self.check(task, method, f"ZeroDivisionError: odd (line {number})", source=source)

    def test_file_without_a_task_is_refused(self):
        cases = {
            "nothing": ("", "TASK"),
            "another object": ("TASK = 7", "TASK"),
            "a class": (TICKETS.replace("Tickets()", "Tickets"), "TASK"),
            "bad syntax": ("def", "line 1"),
            "an exception": ("\n1 / 0", "line 2"),
            "an exit": ("raise SystemExit(0)", "SystemExit"),
        }
        for phrase, (task, word) in cases.items():
            with self.subTest(phrase):
                self.check(task, word)

    def test_task_that_cannot_be_read_is_refused(self):
        ended = handoff("--rehearse", "--task", self.path("nowhere.py"), "--out", self.path("run"))
        self.assertEqual(ended.code, 2, ended)
        self.assertNotIn("run", self.names())

    def test_source_that_the_task_refuses_is_refused_with_the_place(self):
        source = self.put("tickets.json", json.dumps([{"id": "T-1", "priority": 9}]))
        self.check(TICKETS, "[0].priority", source=("--source", source))


class TaskCommandTest(TaskRunTestCase):
    def test_both_scripts_agree_on_the_task(self):
        self.assertEqual(self.live_tickets().code, 0)
        for command, name in {"verify": "checkpoint.json", "validate": "result.json"}.items():
            with self.subTest(command):
                ended = checkpoint(command, self.path(f"run/{name}"), "--task", self.task)
                self.assertEqual(ended.code, 0, ended)
        prepared = checkpoint("prepare", "--task", self.task, "--out", self.path("work"))
        self.assertEqual(prepared.code, 0, prepared)
        same = (self.folder / "work" / "handoff.txt").read_bytes()
        self.assertEqual(same, self.files()["handoff.txt"])

    def test_no_word_of_the_demo_is_in_the_runner(self):
        with open(
            checkpoint_demo.__file__.replace("checkpoint_demo", "run_handoff"), encoding="utf-8"
        ) as file:
            lines = file.read().splitlines()
        found = [line for line in lines if re.search(r"(?i)\bsku|shortage|stock|\bavailable|target\b", line)]
        allowed = [line for line in found if "accepted: 3 rows" in line or "target=" in line]
        self.assertEqual([line for line in found if line not in allowed], [])
