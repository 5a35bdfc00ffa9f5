"""The Task interface: a second task from end to end, free text, and answers that it cannot judge."""

from __future__ import annotations

import json

import checkpoint_demo
from checkpoint_demo import (
    DEMO,
    MISSING,
    Finding,
    Task,
    build_checkpoint,
    holds_free_text,
    list_answer_rows,
    load_task,
    match_rows,
    parse_json,
    render_handoff,
    render_json,
    verify_checkpoint,
)
from tests import support
from tests.tickets import ANSWER, OWN_ANSWER, OWN_SOURCE, TICKETS, TaskTestCase, method


def put(*path, to):
    """Return the right answer with one value put at a path."""
    return support.change_copy(ANSWER, support.put(*path, to=to))


def drop(*path):
    """Return the right answer without what is at a path."""
    return support.change_copy(ANSWER, support.drop(*path))


ACCEPTED = {
    "the rows in their order": ANSWER,
    "the rows in reverse": {**ANSWER, "rows": ANSWER["rows"][::-1]},
    "another summary": put("rows", 0, "summary", to="x"),
    "the words that stand for free text": put("rows", 0, "summary", to="some text"),
    "a summary of other scripts": put("rows", 0, "summary", to="\u6a0b\U0001f600"),
    "its fields in another order": {key: ANSWER[key] for key in reversed(ANSWER)},
}
ROW = '{"id":"T-2","summary":"some text","route":"normal"}'
WHOLE = "$: observed {}, expected an object with the keys rows and routes"
# What is answered, and everything that is found.
REJECTED = {
    "null": (None, [WHOLE.format("null")]),
    "an array": ([], [WHOLE.format("the array []")]),
    "a text": ("done", [WHOLE.format('the string "done"')]),
    "an empty summary": (
        put("rows", 0, "summary", to=""),
        ['rows[0].summary: observed the string "", expected some text'],
    ),
    "a blank summary": (
        put("rows", 1, "summary", to=" \n\u00a0"),
        [r'rows[1].summary: observed the string " \n\u00a0", expected some text'],
    ),
    "no summary": (
        drop("rows", 0, "summary"),
        ["rows[0].summary: observed nothing, expected some text"],
    ),
    "a summary of null": (
        put("rows", 0, "summary", to=None),
        ["rows[0].summary: observed null, expected some text"],
    ),
    "a number for a summary": (
        put("rows", 2, "summary", to=7),
        ["rows[2].summary: observed the integer 7, expected some text"],
    ),
    "a list for a summary": (
        put("rows", 2, "summary", to=["a"]),
        ['rows[2].summary: observed the array ["a"], expected some text'],
    ),
    "a wrong route": (
        put("rows", 0, "route", to="normal"),
        ['rows[0].route: observed the string "normal", expected the string "urgent"'],
    ),
    "a wrong count": (
        put("routes", "urgent", to=2),
        ["routes.urgent: observed the integer 2, expected the integer 1"],
    ),
    "a count of true": (
        put("routes", "urgent", to=True),
        ["routes.urgent: observed true, expected the integer 1"],
    ),
    "a route that nothing goes to": (
        put("routes", "spam", to=0),
        ["routes.spam: observed the integer 0, expected nothing"],
    ),
    "no counts": (
        drop("routes"),
        ['routes: observed nothing, expected the object {"normal":2,"urgent":1}'],
    ),
    "no rows": (drop("rows"), ["rows: observed nothing, expected an array of rows"]),
    "rows as an object": (
        put("rows", to={}),
        ["rows: observed the object {}, expected an array of rows"],
    ),
    "a row missing": (
        drop("rows", 1),
        [f'rows: observed no row for the string "T-2", expected the object {ROW}'],
    ),
    "a row twice": (
        {**ANSWER, "rows": [*ANSWER["rows"], ANSWER["rows"][0]]},
        ['rows[3].id: observed the string "T-1", expected it only once'],
    ),
    "a row of no ticket": (
        {**ANSWER, "rows": [*ANSWER["rows"], {"id": "T-4", "summary": "", "route": 1}]},
        [
            'rows[3].id: observed the string "T-4", expected the id of a row of the source',
            "rows[3].route: observed the integer 1, expected a string",
        ],
    ),
    "a row without its id": (
        drop("rows", 1, "id"),
        [
            "rows[1].id: observed nothing, expected the id of a row of the source",
            f'rows: observed no row for the string "T-2", expected the object {ROW}',
        ],
    ),
    "a row that is not an object": (
        {**ANSWER, "rows": [*ANSWER["rows"], "T-1"]},
        ['rows[3]: observed the string "T-1", expected an object with id and summary and route'],
    ),
    "a field more in a row": (
        put("rows", 0, "reply", to="Hello"),
        ['rows[0].reply: observed the string "Hello", expected nothing'],
    ),
    "a field beside the rows": (put("done", to=True), ["done: observed true, expected nothing"]),
    "faults in document order": (
        {"a": 0, "routes": {"normal": 2, "urgent": 9}, "rows": ANSWER["rows"][:2]},
        [
            "a: observed the integer 0, expected nothing",
            "routes.urgent: observed the integer 9, expected the integer 1",
            'rows: observed no row for the string "T-3", expected the object'
            ' {"id":"T-3","summary":"some text","route":"normal"}',
        ],
    ),
}


class TicketsTest(TaskTestCase):
    def test_load_task_gives_the_task_and_the_digest_of_the_file(self):
        task, digest = load_task(self.file)
        self.assertIsInstance(task, Task)
        self.assertEqual((task.name, task.operation_id), ("tickets", "read-tickets-1"))
        self.assertEqual(digest, checkpoint_demo.digest_bytes(TICKETS.encode()))

    def test_prepare_and_verify_take_the_task(self):
        ended = support.checkpoint("prepare", "--task", self.file, "--out", "work")
        self.assert_ended(ended, 0, "wrote work/checkpoint.json\nwrote work/handoff.txt\n")
        checkpoint = parse_json((self.folder / "work" / "checkpoint.json").read_bytes())
        task = self.load()
        digest = checkpoint_demo.digest_json(task.source)
        self.assertEqual(checkpoint["task_id"], f"tickets-{digest[:12]}")
        self.assertEqual(checkpoint["objective"], "Summarise and route every ticket.")
        self.assertEqual(checkpoint["pending"], ["Route 3 tickets"])
        self.assertEqual(checkpoint["completed"][0]["operation"], "read_tickets")
        self.assertEqual(checkpoint["completed"][0]["result"], task.source)
        self.assertEqual(verify_checkpoint(checkpoint, task, task.source), [])
        handoff = (self.folder / "work" / "handoff.txt").read_text()
        self.assertEqual(handoff, render_handoff(task, checkpoint))
        self.assertTrue(handoff.startswith(f"{task.instructions}\nCheckpoint: {{"), handoff)
        verified = support.checkpoint("verify", "work/checkpoint.json", "--task", self.file)
        self.assert_ended(verified, 0, f"verified: 3 rows, source {digest[:12]}\n")

    def test_verify_without_the_task_or_of_another_task_is_rejected(self):
        support.checkpoint("prepare", "--task", self.file, "--out", "work")
        self.assertEqual(support.checkpoint("verify", "work/checkpoint.json").code, 1)
        support.checkpoint("prepare", "--out", "demo")
        ended = support.checkpoint("verify", "demo/checkpoint.json", "--task", self.file)
        self.assertEqual(ended.code, 1)
        self.assertIn("(this is another task)", ended.err)

    def test_validate_accepts_the_right_answers(self):
        for phrase, answer in ACCEPTED.items():
            with self.subTest(phrase):
                self.assert_ended(self.validate(answer), 0, "accepted: 3 rows\n")

    def test_validate_rejects_wrong_answers_with_every_finding(self):
        for phrase, (answer, findings) in REJECTED.items():
            with self.subTest(phrase):
                self.assert_rejected(self.validate(answer), "validate", findings, "-")

    def test_validate_judges_an_answer_on_a_source_of_ones_own(self):
        source = self.put("own.json", OWN_SOURCE)
        self.assert_ended(self.validate(OWN_ANSWER, "--source", source), 0, "accepted: 1 row\n")
        self.assertEqual(self.validate(OWN_ANSWER).code, 1)
        self.assertEqual(self.validate(ANSWER, "--source", source).code, 1)

    def test_validate_as_json_gives_the_verdict_of_the_program(self):
        for word in ("rejected: never", "fine", "a: b: c"):
            with self.subTest(word):
                self.put(
                    "tickets.py",
                    TICKETS.replace("TASK =", f"Tickets.render_acceptance = lambda *_: {word!r}\nTASK ="),
                )
                for answer, code, verdict in ((ANSWER, 0, "accepted"), (None, 1, "rejected")):
                    ended = self.validate(answer, "--json")
                    self.assertEqual((ended.code, json.loads(ended.out)["verdict"]), (code, verdict))

    def test_self_test_checks_the_task_too(self):
        ended = support.checkpoint("self-test", "--task", self.file)
        self.assertEqual((ended.code, ended.err), (0, ""))
        for check in ("a wrong route", "a blank summary", "a wrong count", "a side effect", "a cut answer"):
            self.assertIn(f"  ok      refuses {check}\n", ended.out)
        self.assertNotIn("SKU", ended.out)
        self.put(
            "tickets.py",
            TICKETS.replace("\nresult |", "\n\n   result |").replace('"""\n\n    def', '   """\n\n    def'),
        )
        self.assertEqual(support.checkpoint("self-test", "--task", self.file).out, ended.out)
        source = self.put("own.json", OWN_SOURCE)
        ended = support.checkpoint("self-test", "--task", self.file, "--source", source)
        self.assertEqual((ended.code, "a wrong route" in ended.out), (0, False))

    def test_self_test_of_a_task_that_accepts_too_much_fails(self):
        faults = "    def find_faults(self, answer, rows):\n        return iter(())\n\n\nTASK ="
        self.put("tickets.py", TICKETS.replace("\nTASK =", faults))
        ended = support.checkpoint("self-test", "--task", self.file)
        self.assertEqual(ended.code, 1)
        self.assertIn("  FAILED  refuses a wrong route\n", ended.out)

    def test_self_test_passes_for_rows_that_hold_words_of_the_checkpoint(self):
        rows = [
            {"id": "a", "priority": 1, "pending": "verified", "status": "verified", "result": [1]},
            {"id": "b", "priority": 2, "pending": ["x"], "side_effects": ["y"], "operation": "z"},
        ]
        source = self.put("own.json", json.dumps(rows))
        named = TICKETS.replace('row_key = "id"', 'row_key = "id"\n    rows_field = "my rows"')
        for phrase, text in {
            "rows": TICKETS,
            "rows of another name": named.replace('"rows":', '"my rows":'),
        }.items():
            with self.subTest(phrase):
                self.put("tickets.py", text)
                ended = support.checkpoint("self-test", "--task", self.file, "--source", source)
                self.assertEqual(
                    (ended.code, [line for line in ended.out.splitlines() if "FAILED" in line]), (0, [])
                )

    def test_the_task_comes_from_standard_input_too(self):
        answer = self.put("answer.json", json.dumps(ANSWER))
        ended = support.checkpoint("validate", answer, "--task", "-", stdin=TICKETS.encode())
        self.assert_ended(ended, 0, "accepted: 3 rows\n")

    def test_the_script_takes_a_task_as_a_process(self):
        self.put("answer.json", json.dumps(ANSWER))
        ended = support.run_script(
            self.script, "validate", "answer.json", "--task", "tickets.py", cwd=self.folder
        )
        self.assert_ended(ended, 0, "accepted: 3 rows\n")
        self.assertEqual(self.names(), ["answer.json", "tickets.py"])


class FreeTextTest(TaskTestCase):
    def test_the_right_answer_as_json_is_an_answer(self):
        """A rehearsal may send it: the words for free text are a text."""
        task = self.load()
        right = task.build_answer(task.source)
        self.assertTrue(holds_free_text(right))
        self.assertFalse(holds_free_text(DEMO.build_answer(DEMO.source)))
        self.assertEqual(list(task.find_faults(parse_json(render_json(right)), task.source)), [])

    def test_list_answer_rows_says_the_state_of_each_row_and_field(self):
        task, rows = self.load(), ANSWER["rows"]
        wrong = {**rows[0], "route": "normal"}
        answer = {"routes": {}, "rows": [rows[1], wrong, rows[1], 7, {"id": "T-8"}], "note": 1}
        listed = [(row.state, row.name) for row in list_answer_rows(task, task.source, answer)]
        self.assertEqual(
            listed,
            [
                *(("agrees", "T-2"), ("differs", "T-1"), ("repeated", "T-2"), ("differs", "no id")),
                *(("differs", "T-8"), ("not delivered", "T-3"), ("differs", "routes"), ("differs", "note")),
            ],
        )
        row = list_answer_rows(task, task.source, answer)[1]
        self.assertEqual((row.delivered, row.source), (wrong, task.source[0]))
        self.assertEqual(row.expected, {**rows[0], "route": "urgent"})

    def test_list_answer_rows_of_an_answer_of_any_kind_is_a_list(self):
        for answer in (
            None,
            7,
            "x",
            [],
            {},
            {"rows": None},
            {"rows": [None, [], {}]},
            {"rows": [{"id": []}]},
        ):
            with self.subTest(answer=answer):
                task = self.load()
                listed = list_answer_rows(task, task.source, answer)
                missing = [row.name for row in listed if row.delivered is MISSING]
                self.assertEqual(missing, ["T-1", "T-2", "T-3", "routes"])

    def test_match_rows_where_no_row_is_right_has_words_for_each(self):
        nearest = [right for _, right in match_rows([{"id": "a"}, 7], [], "id")]
        self.assertEqual(nearest, [{"id": "the id of a row of the source"}, "an object with id"])


class HostileAnswerTest(TaskTestCase):
    """A task's own find_faults is trusted with good answers only."""

    JUDGES = {
        "raises": ('raise ValueError("\\x1bno")', "$: the task cannot judge this: ValueError: \\x1bno"),
        "ends the process": ("raise SystemExit(0)", "$: the task cannot judge this: SystemExit: 0"),
        "calls itself": ("yield from self.find_faults(*_)", "$: the task cannot judge this: RecursionError"),
        "yields a text": ('yield "it is odd"', "$: it is odd"),
        "yields None": ("yield None", "$: None"),
        "yields a Finding": ('yield Finding("rows", "odd")', "rows: odd"),
    }

    def test_an_answer_that_cannot_be_judged_is_rejected_with_a_finding(self):
        for phrase, (body, finding) in self.JUDGES.items():
            text = TICKETS.replace(
                *method("find_faults", f"if _[0] == 'hostile':\n            {body}\n        yield from ()")
            )
            self.put("tickets.py", text.replace("import FREE_TEXT", "import FREE_TEXT, Finding"))
            for options in ([], ["--json"]):
                with self.subTest(phrase, options=options):
                    self.assertEqual(self.validate(ANSWER, *options).code, 0)
                    ended = self.validate("hostile", *options)
                    self.assertEqual(ended.code, 1, ended)
                    if options:
                        shown = json.loads(ended.out)["findings"]
                        shown = [str(Finding(one["path"], one["message"])) for one in shown]
                    else:
                        shown = ended.err.splitlines()
                    self.assertEqual(len(shown), 1, ended)
                    expected = finding.replace("\\x1b", "\x1b") if options else finding
                    self.assertTrue(shown[0].startswith(expected), shown)

    def test_faults_that_were_found_before_a_crash_do_not_make_it_accepted(self):
        lines = (
            'if _[0] == "hostile":',
            '    yield Finding("a", "b")',
            "    raise ValueError",
            "yield from ()",
        )
        body = "\n        ".join(lines)
        text = TICKETS.replace(*method("find_faults", body))
        self.put("tickets.py", text.replace("import FREE_TEXT", "import FREE_TEXT, Finding"))
        self.assertEqual(self.validate("hostile").code, 1)

    def test_answers_of_any_kind_are_rejected_without_a_crash(self):
        odd = (None, True, 0, "", [], {}, {"rows": 1}, {"rows": [[]]}, {"rows": [{"id": {}}]}, {"routes": []})
        for answer in odd:
            with self.subTest(answer=answer):
                ended = self.validate(answer)
                self.assertEqual((ended.code, "bug in this program" in ended.err), (1, False))
                self.assertTrue(ended.err)

    def test_a_checkpoint_of_the_task_is_the_same_under_its_own_name(self):
        task = self.load()
        checkpoint = build_checkpoint(task, task.source)
        self.assertEqual(verify_checkpoint(checkpoint, task, task.source), [])
        self.assertTrue(verify_checkpoint(checkpoint, DEMO, DEMO.source))
