"""The three courses of a run: a task, the receiver's part alone, a session record; and the first format."""

from __future__ import annotations

import copy
import json
import shutil
from unittest import mock

import checkpoint_demo
import run_handoff
from tests.conditions import ConditionsTestCase, rewrite_ledger
from tests.support import ANSWER, ANSWERED, CASES, GOOD_RUN, KEY, handoff, message, respond, text, tool_call

RECORD = json.loads(checkpoint_demo.SESSION_TEXT)
REPLY = respond(message([text("It is 47.50 EUR.")]))
SOURCE = "sku,available,target\nA-1,7,10\nA-2,15,12\n"


def change(**changes):
    """Return the record with other fields."""
    return {**copy.deepcopy(RECORD), **changes}


class ReceiverOnlyTest(ConditionsTestCase):
    def test_receiver_alone_is_asked_once_and_holds(self):
        server = self.serve(respond(ANSWERED))
        ended = self.live(server, "--receiver-only")
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(len(server.requests), 1)
        self.assertEqual(
            self.states(),
            {
                "run": ["planned", "confirmed"],
                "read-stock-1": ["planned", "confirmed"],
                "receiver-handoff": ["planned", "in_flight", "confirmed"],
            },
        )
        self.assertNotIn("tool_call_id", self.last("read-stock-1"))
        first = self.ledger()[0]
        self.assertEqual(
            [first[name] for name in ("course", "sender", "sender_api")], ["receiver-only", "", ""]
        )
        sent = json.loads(server.requests[0].body)
        prompt = sent["messages"][0]["content"]
        self.assertEqual(sent, checkpoint_demo.build_receiver_request(prompt))
        self.assertEqual(self.inspect().code, 0)
        self.assertIn("The application reads the source", self.report())

    def test_source_of_ones_own_is_found_in_the_checkpoint(self):
        answer = '{"rows":[{"sku":"A-1","shortage":3},{"sku":"A-2","shortage":0}]}'
        source = self.put("source.csv", SOURCE)
        ended = self.live(self.serve(respond(message([text(answer)]))), "--receiver-only", "--source", source)
        self.assertEqual(ended.code, 0, ended)
        self.assertIn(f"--source {source}", ended.err)  # in the command that inspects it
        inspected = self.inspect("run", "--json")
        self.assertEqual((inspected.code, json.loads(inspected.out)["source"]), (0, "recorded"), inspected)
        self.assertEqual(self.inspect("run", "--source", source).code, 0)

    def test_findings_of_a_rejected_answer_are_in_json(self):
        wrong = ANSWER.replace('"shortage":3', '"shortage":9')
        ended = self.live(self.serve(respond(message([text(wrong)]))), "--receiver-only", "--json")
        shown = self.read_object(ended, 1)
        self.assertEqual([finding["path"] for finding in shown["findings"]], ["rows[0].shortage"])
        self.assertEqual(list(shown["requests"]), ["receiver-handoff"])


class SessionTest(ConditionsTestCase):
    def go_on(self, *script, record=RECORD, options=(), out="run", code=0):
        """Do a live run of a session record; return how it Ended, and keep the server."""
        self.server = self.serve(*script)
        path = self.put(f"{out}.json", record if isinstance(record, (bytes, str)) else json.dumps(record))
        ended = self.live(self.server, "--session", path, *options, out=out)
        self.assertEqual(ended.code, code, ended)
        return ended

    def test_record_goes_on_and_holds(self):
        ended = self.go_on(REPLY)
        self.assertTrue(ended.out.endswith("accepted: a whole reply that repeats no operation\n"))
        for words in (
            "carried   1 operation: read_invoice-1",
            "unclear   0 operations",
            "credential left out",
        ):
            self.assertIn(words, ended.err)
        self.assertIn("cost      at most", ended.err)
        files = self.files()
        self.assertEqual(json.loads(files["session.json"]), RECORD)
        self.assertEqual(files["1-request.json"], self.server.requests[0].body)
        session = checkpoint_demo.read_session(RECORD, "messages")
        body, _ = checkpoint_demo.convert(session, "messages", checkpoint_demo.RECEIVER_MODEL)
        self.assertEqual(json.loads(files["1-request.json"]), body)
        grown = checkpoint_demo.read_session(json.loads(files["reply.json"]), "neutral")
        self.assertEqual(grown["turns"][-1]["parts"][0]["text"], "It is 47.50 EUR.")
        self.assertEqual(list(self.states()), ["run", "receiver-handoff"])
        self.assertEqual(self.inspect().code, 0)
        page = self.report()
        for words in ("read_invoice-1", "The record: noted", "It is 47.50 EUR."):
            self.assertIn(words, page)

    def test_fresh_session_has_a_checkpoint_and_its_prompt(self):
        self.go_on(REPLY, options=["--fresh"])
        files = self.files()
        facts = json.loads(files["checkpoint.json"])
        self.assertEqual([each["operation_id"] for each in facts["completed"]], ["read_invoice-1"])
        sent = json.loads(self.server.requests[0].body)["messages"]
        self.assertEqual(sent, [{"role": "user", "content": files["handoff.txt"].decode()}])
        self.assertEqual(self.inspect().code, 0)

    def test_reply_that_must_not_be_acted_on_is_rejected(self):
        cases = {
            "a repeated operation": (
                message([tool_call("toolu_2", "read_invoice", {"invoice": "DEMO-17"})], "tool_use"),
                "repeats read_invoice-1",
            ),
            "a tool that the session does not have": (
                message([tool_call("toolu_2", "pay", {})], "tool_use"),
                "is not a tool of the session",
            ),
            "a reply that was cut": (message([text("It is")], "max_tokens"), "cut off by the token limit"),
        }
        for number, (phrase, (reply, words)) in enumerate(cases.items()):
            with self.subTest(phrase):
                out = f"run-{number}"
                ended = self.go_on(respond(reply), out=out, code=1)
                self.assertIn(words, ended.err)
                self.assertIn("next: read it in the run's report.html", ended.err)
                self.assertIn("reply.json", self.files(out))
                self.assertEqual(self.inspect(out).code, 1)

    def test_arguments_that_are_nested_too_deep_are_rejected(self):
        deep = '{"a":' + "[" * 150 + "]" * 150 + "}"
        call = {"id": "c", "type": "function", "function": {"name": "read_invoice", "arguments": deep}}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
        server = self.serve(respond({"choices": [{"message": said, "finish_reason": "tool_calls"}]}))
        path = self.put("session.json", json.dumps(RECORD))
        side = ("--receiver-api", "chat", "--receiver", "m", "--receiver-endpoint", server.url)
        ended = handoff("--live", "--session", path, *side, "--out", self.path("run"))
        self.assertEqual(ended.code, 1, ended)
        self.assertIn("nested deeper than 100 levels", ended.err)
        self.assertEqual(self.inspect().code, 1)

    def test_call_that_held_the_key_is_rejected(self):
        call = tool_call("toolu_2", "read_invoice", {"invoice": KEY})
        ended = self.go_on(respond(message([call], "tool_use")), code=1)
        self.assertIn("content[0]: the key was in this call", ended.err)
        self.assertEqual(self.inspect().code, 1)
        self.go_on(respond(message([text(f"It is {KEY}.")])), out="told")

    def test_new_call_of_its_tool_is_accepted(self):
        call = tool_call("toolu_2", "read_invoice", {"invoice": "DEMO-18"})
        self.go_on(respond(message([call], "tool_use")))
        self.assertIn("DEMO-18", self.report())

    def test_json_says_what_is_carried_and_lost(self):
        shown = self.read_object(self.go_on(REPLY, options=["--json"]), 0)
        inspected = self.read_object(self.inspect("run", "--json"), 0)
        for known in (shown, inspected):
            self.assertEqual((known["carried"], known["unclear"]), (["read_invoice-1"], []))
            self.assertTrue(known["noted"][0].startswith("messages[1].content[0]: credential left out"))
        self.assertEqual((inspected["source"], list(shown["requests"])), ("recorded", ["receiver-handoff"]))

    def test_reply_is_read_in_the_form_of_its_api(self):
        """A gateway may put a field of its own beside what its API has."""
        choice = {"message": {"role": "assistant", "content": "47.50"}, "finish_reason": "stop"}
        replies = {"chat": {"type": "chat.completion", "choices": [choice]}}
        content = {"role": "model", "parts": [{"text": "47.50"}]}
        replies["gemini"] = {"type": "x", "candidates": [{"content": content, "finishReason": "STOP"}]}
        for api, reply in replies.items():
            with self.subTest(api):
                server = self.serve(respond(reply))
                path = self.put("session.json", json.dumps(RECORD))
                side = ("--receiver-api", api, "--receiver", "messages", "--receiver-endpoint", server.url)
                ended = handoff("--live", "--session", path, *side, "--out", self.path(api))
                self.assertEqual(ended.code, 0, ended)
                self.assertIn("47.50", self.report(api))
                self.assertEqual(self.inspect(api).code, 0)

    def test_record_that_cannot_go_leaves_and_makes_nothing(self):
        open_call = change(messages=RECORD["messages"][:2])
        ended = self.go_on(record=open_call, code=1)
        self.assertIn("open call", ended.err)
        self.assertEqual(ended.out, "rejected: 1 finding\n")
        self.assertEqual((self.server.connections, (self.folder / "run").exists()), (0, False))
        shown = self.read_object(self.go_on(record=open_call, options=["--json"], out="other", code=1), 1)
        self.assertEqual([finding["path"] for finding in shown["findings"]], ["messages[1].content[1]"])
        self.go_on(REPLY, record=open_call, options=["--unclear"], out="unclear")
        self.assertEqual(self.inspect("unclear").code, 0)

    def test_what_is_not_a_record_is_unreadable(self):
        for number, data in enumerate(("{", "7", '{"input": []}', b"\xff")):
            with self.subTest(data):
                self.go_on(record=data, out=f"run-{number}", code=2)

    def test_setting_that_asks_for_a_stream_does_not_go(self):
        home = change(model=checkpoint_demo.RECEIVER_MODEL, max_tokens=50, stream=True)
        ended = self.go_on(REPLY, record=home)
        self.assertIn("noted     stream: the setting does not go", ended.err)
        self.assertNotIn("stream", json.loads(self.server.requests[0].body))
        self.assertEqual(self.ledger()[0]["max_tokens"], 50)

    def test_setting_that_asks_for_several_answers_does_not_go(self):
        reply = {"choices": [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}
        candidate = {"content": {"role": "model", "parts": [{"text": "x"}]}, "finishReason": "STOP"}
        asked = [{"role": "user", "content": "Go."}]
        contents = [{"role": "user", "parts": [{"text": "Go."}]}]
        config = {"candidateCount": 2, "maxOutputTokens": 9}
        cases = {
            "chat": ({"model": "m", "n": 2, "messages": asked}, reply, {"model": "m", "messages": asked}),
            "gemini": (
                {"contents": contents, "generationConfig": config},
                {"candidates": [candidate]},
                {"contents": contents, "generationConfig": {"maxOutputTokens": 9}},
            ),
        }
        for api, (record, answer, sent) in cases.items():
            with self.subTest(api):
                server = self.serve(respond(answer))
                path = self.put("session.json", json.dumps(record))
                url = server.url.replace("messages", "{model}")
                side = ("--receiver-api", api, "--receiver", "m", "--receiver-endpoint", url)
                ended = handoff("--live", "--session", path, "--from", api, *side, "--out", self.path(api))
                self.assertEqual(ended.code, 0, ended)
                self.assertIn("one whole reply of text is asked for", ended.err)
                self.assertEqual(json.loads(server.requests[0].body), sent)
                self.assertEqual(self.inspect(api).code, 0)

    def test_bare_list_at_home_becomes_a_body(self):
        options = ["--from", "messages", "--issuer", "m", "--receiver", "m"]
        self.go_on(REPLY, record=RECORD["messages"], options=options)
        sent = json.loads(self.server.requests[0].body)
        self.assertEqual((sent["model"], sent["messages"]), ("m", RECORD["messages"]))
        self.assertEqual(
            [self.ledger()[0][name] for name in ("session_api", "session_issuer")], ["messages", "m"]
        )
        self.assertEqual(self.inspect().code, 0)

    def test_cost_without_a_price_or_a_limit_is_unknown(self):
        ended = self.go_on(REPLY, options=["--receiver", "own-model"])
        self.assertIn("cost      unknown", ended.err)

    def test_source_is_nothing_for_a_record(self):
        self.go_on(REPLY)
        ended = self.inspect("run", "--source", self.put("source.csv", SOURCE))
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("leave --source out", ended.err)

    def test_rehearsal_refuses_what_the_api_would(self):
        home = change(model="m", max_tokens=50, messages=RECORD["messages"][:2])  # with an open call
        path = self.put("session.json", json.dumps(home))
        options = ("--session", path, "--receiver", "m", "--unclear")
        self.assertEqual(handoff("--rehearse", *options, "--out", self.path("unclear")).code, 0)
        system = change(model="m", max_tokens=50, messages=[{"role": "nobody", "content": "x"}])
        path = self.put("session.json", json.dumps(system))
        ended = handoff("--rehearse", "--session", path, "--receiver", "m", "--out", self.path("run"))
        self.assertEqual(ended.code, 4, ended)
        self.assertIn("HTTP 400", ended.err)


class ChangedByteTest(ConditionsTestCase):
    """A folder of each kind does not hold once any one byte of it is another one."""

    def make(self):
        """Write a folder of each kind."""
        session = self.put("session.json", json.dumps(RECORD))
        self.live(self.serve(respond(ANSWERED)), "--receiver-only", out="receiver-only")
        self.live(self.serve(REPLY), "--session", session, out="session")
        self.live(self.serve(REPLY), "--session", session, "--fresh", out="fresh")
        pair = ("--sender-api", "gemini", "--receiver-api", "chat")
        self.assertEqual(handoff("--rehearse", *pair, "--out", self.path("pair")).code, 0)

    def test_any_changed_byte_is_found(self):
        self.make()
        for kind in ("receiver-only", "session", "fresh", "pair"):
            self.assertEqual(self.inspect(kind).code, 0)
            for name, data in self.files(kind).items():
                for at in range(0, len(data), max(1, len(data) // 7)):
                    with self.subTest(kind, file=name, at=at):
                        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                        (self.folder / kind / name).write_bytes(changed)
                        self.assertNotEqual(self.inspect(kind).code, 0)
                (self.folder / kind / name).write_bytes(data)

    def test_record_that_is_gone_or_another_is_found(self):
        self.make()
        record = self.folder / "session" / "session.json"
        for data in (None, b"{}", json.dumps(change(system="Other.")).encode()):
            with self.subTest(data):
                record.unlink()
                if data is not None:
                    record.write_bytes(data)
                ended = self.inspect("session")
                self.assertEqual(ended.code, 1, ended)
                self.assertIn("session.json", ended.err)
                record.write_bytes(b"")


class FormatTest(ConditionsTestCase):
    def test_first_record_of_format_1_has_the_defaults(self):
        for name in ("accepted", "rehearsed", "source"):
            with self.subTest(name):
                copied = self.path(name)
                shutil.copytree(CASES / "runs" / f"1.0-{name}", copied)
                self.assertEqual(self.inspect(name).code, 0)

    def test_fact_that_its_format_does_not_have_is_found(self):
        shutil.copytree(CASES / "runs" / "1.0-accepted", self.path("old"))
        rewrite_ledger(self.path("old"), lambda records: records[0].update(course="task"))
        self.assertEqual(self.inspect("old").code, 1)

    @staticmethod
    def put_fact(name, value):
        """Return a change of a ledger: its first record has this fact."""
        return lambda records: records[0].update({name: value})

    def test_fact_that_is_missing_or_odd_is_found(self):
        self.live(self.serve(*GOOD_RUN))
        odd = {
            "course": ("other", None),
            "options": (["all"], {}),
            "receiver_api": ("", "responses"),
            "sender_api": ("", None),
            "receiver_endpoint": ("ftp://x/", 7),
            "session_api": ("x", None),
        }
        for name, values in odd.items():
            for value in values:
                with self.subTest(name, value=value):
                    shutil.copytree(self.path("run"), self.path("copy"))
                    rewrite_ledger(self.path("copy"), self.put_fact(name, value))
                    ended = self.inspect("copy")
                    shutil.rmtree(self.path("copy"))
                    self.assertEqual(ended.code, 1, ended)
                    self.assertIn("ledger.jsonl line 1", ended.err)

    def test_fact_that_its_course_does_not_have_is_found(self):
        session = self.put("session.json", json.dumps(RECORD))
        self.live(self.serve(REPLY), "--session", session, "--fresh", out="session")
        self.live(self.serve(respond(ANSWERED)), "--receiver-only", out="receiver-only")
        self.live(self.serve(*GOOD_RUN), out="task")
        shutil.copytree(CASES / "runs" / "1.1-chat-to-gemini", self.path("pair"))
        cases = {
            "session": {"sender": "x", "max_tokens": 7, "options": ["fresh", "fresh"], "sender_api": "chat"},
            "receiver-only": {"sender": "x", "options": ["fresh"], "session_issuer": "x", "max_tokens": 0},
            "task": {"session_api": "chat", "sender": "", "options": ["unclear"]},
            "pair": {"receiver_endpoint": "", "endpoint": "https://x.invalid/{foo}"},
        }
        cases["session"]["receiver_endpoint"] = cases["receiver-only"]["receiver_endpoint"] = "https://x.y/"
        for run, facts in cases.items():
            for name, value in facts.items():
                with self.subTest(run, name=name):
                    shutil.copytree(self.path(run), self.path("copy"))
                    rewrite_ledger(self.path("copy"), self.put_fact(name, value))
                    ended = self.inspect("copy")
                    shutil.rmtree(self.path("copy"))
                    self.assertEqual(ended.code, 1, ended)
                    self.assertRegex(ended.err, rf"(?m)^ledger\.jsonl line 1\b.*({name}|endpoint)")

    def test_plan_without_the_facts_of_format_2_is_one_of_messages(self):
        facts = {"sender": "s", "receiver": "r", "endpoint": "https://x.invalid/"}
        plan = run_handoff.Plan(checkpoint_demo.DEMO, [], facts)
        self.assertEqual({side.api for side in plan.sides.values()}, {"messages"})
        self.assertEqual((plan.recorded, plan.steps), (facts, run_handoff.STEPS))


class PairsTest(ConditionsTestCase):
    def test_every_pair_is_shown_without_a_mode(self):
        ended = handoff(key="")
        lines = [line for line in ended.out.splitlines() if " to " in line]
        self.assertEqual((ended.code, len(lines)), (0, 8), ended)
        self.assertTrue(all(line.endswith(": accepted") for line in lines))
        self.assertEqual(ended.err.count("rehearsal on"), 1)

    def test_pair_that_fails_is_shown_and_decides_the_exit_code(self):
        real = run_handoff.RehearsalModels.answer

        def answer(models, headers, data, path):
            if path.endswith("chat/completions"):
                return 500, {"error": {"message": "no"}}
            return real(models, headers, data, path)

        with mock.patch.object(run_handoff.RehearsalModels, "answer", answer):
            ended = handoff(key="")
        self.assertEqual(ended.code, 5, ended)
        self.assertIn("messages to chat: unclear", ended.out)
        self.assertIn("gemini to gemini: accepted", ended.out)
