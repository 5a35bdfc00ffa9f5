"""A session goes to another vendor: nothing is lost unsaid, and no credential goes along."""

from __future__ import annotations

import json
import unittest

from checkpoint_demo import SessionError, convert, find_refusals, judge_reply, read_session
from tests import test_session_refusals as made
from tests.session_support import (
    PAIRS,
    SESSIONS,
    TARGETS,
    api_of,
    build_record,
    read_body,
    read_case,
    run_session,
    same,
)
from tests.support import count_rounds
from tests.test_session_reply import call, chat

IMAGE = {"inlineData": {"mimeType": "image/png", "data": "aa"}}
SEARCH = {"type": "search_result", "source": "s", "title": "t", "content": [made.text("found")]}
CODE = {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "s"}
DECLARED = {"googleSearch": {}, "functionDeclarations": [{"name": "n"}]}
RESPONSE = {"functionResponse": {"name": "n", "response": {"output": "r"}, "parts": [IMAGE]}}
CALL = {"functionCall": {"name": "n"}, "thoughtSignature": "s"}
EMPTY = {"role": "assistant", "content": ""}
NEXT = made.responds({"text": "x"})
PAIR = [made.assistant(made.use()), made.user(made.result())]
# A record, its target and options, words of standard error (of a refusal if they begin with "no: "), words of
# the body, and words that neither holds.
WAYS = {
    "a turn of a signature alone": (
        (made.messages(made.assistant({**made.THINKING, "thinking": ""}), made.USER), "gemini", ""),
        ("nothing can go", '"[empty message]"', "must not be empty"),
    ),
    "a turn whose reasoning stays behind": (
        (
            made.gemini(made.model({"text": "hm", "thought": True}), NEXT),
            "anthropic",
            "--no-reasoning",
        ),
        ("nothing can go", '"[empty message]"', "non-empty"),
    ),
    "an empty answer between a result and a text": (
        (
            made.chat(made.asks(), made.tells(), EMPTY, made.USER, made.asks("b"), made.tells("b")),
            "gemini",
            "",
        ),
        (
            "placeholder signature on a call: documented for moved history, in no recorded run\n",
            "",
            "missing",
        ),
    ),
    "a call without reasoning, at a model that asks for it": (
        (made.chat(made.asks(), made.tells(), model="moonshot-v1"), "k2", ""),
        ("", '"reasoning_content":""', "missing"),
    ),
    "an open call in front of a text, at Gemini": (
        (made.messages(PAIR[0], made.user(made.text("why?"))), "gemini", "--unclear"),
        ("placeholder", "not recorded", "default_api"),
    ),
    "an open call at the end, at Claude": (
        (made.messages(*PAIR, made.assistant(made.use("b"))), "older", "--unclear"),
        ("no thinking", "not recorded", "thinking_"),
    ),
    "an open call among answered ones, at home": (
        (made.gemini(made.model(CALL, CALL), made.responds(made.RESPONSE)), "gemini", "--unclear"),
        ("open call (n)", '"output":"r"}}},{"functionResponse"', "would refuse"),
    ),
    "an open call beside a marked result, at home": (
        (
            made.messages(
                made.assistant(made.use(), made.use("b")), made.user({**made.result(), "cache_control": {}})
            ),
            "anthropic",
            "--unclear",
        ),
        ("the field cache_control does not go", "not recorded", "would refuse"),
    ),
    "a call with a field of its own and no reasoning, at a model that asks for it": (
        (made.chat({**made.asks(), "note": 1}, made.tells(), model="moonshot-v1"), "k2", ""),
        ("the field note does not go", '"reasoning_content":""', "missing"),
    ),
    "a text behind the last result": (
        (made.gemini(made.model(CALL), made.responds(RESPONSE, {"text": "x"})), "anthropic", ""),
        ("credential", '"image"', "no thinking"),
    ),
    "an image beside a response": (
        (made.gemini(made.model(CALL), made.responds(RESPONSE)), "kimi", ""),
        ("no: functionResponse.parts[0]: media (image/png) in a tool result", "", "rejected: 2"),
    ),
    "a vendor's part that is signed": (
        (made.gemini(made.model(CODE, {"text": "1"}), NEXT), "kimi", "--leave-out"),
        ("credential left out", "other (executableCode) left out", '"s"'),
    ),
    "a signed file": (
        (
            made.gemini(made.model({"fileData": {}, "thoughtSignature": "s"}), NEXT),
            "kimi",
            "",
        ),
        ("no: media (fileData) has no place", "", "rejected: 2"),
    ),
    "functions beside a vendor's own tool": (
        (made.gemini(tools=[DECLARED]), "kimi", "--leave-out"),
        ("googleSearch", '"name":"n"', "functionDeclarations"),
    ),
    "a found text inside a result, at another Claude": (
        (made.messages(PAIR[0], made.user({**made.result(), "content": [SEARCH]})), "older", ""),
        ("no thinking", "search_result", "left out"),
    ),
    "a list that is empty": (
        (
            made.chat({"role": "assistant", "content": "a", "annotations": [], "refusal": None}, made.USER),
            "anthropic",
            "",
        ),
        ("", '"a"', "annotations"),
    ),
    "a call without an id": (
        (made.gemini(made.model(CALL)), "kimi", ""),
        ("no: call (n) has no result", "", "call  "),
    ),
}

ROUNDS = count_rounds(300)


class AwayTest(unittest.TestCase):
    def judge(self, source, target, record, secrets):
        """Compare a converted body with its record, both as an independent reader sees them."""
        api, model = TARGETS[target]
        body, _ = convert(read_session(record, api_of(source)), api, model)
        users, calls = read_body(api_of(source), record)
        if target == "kimi":  # which has no mark for a failed result
            calls = [[*call[:3], False] for call in calls]
        self.assertEqual(same(read_body(api, body)), same((users, calls)))
        for secret in secrets:
            self.assertNotIn(secret, same(body))
        self.assertEqual(find_refusals(api, body), [])

    def test_convert_case_keeps_calls_results_and_texts(self):
        judged = 0
        for case in SESSIONS:
            record = read_case(case["file"])
            for target, expected in case["convert"].items():
                if (
                    expected.startswith("ok")
                    and "late system" not in expected
                    and "refusal" not in case["file"]
                ):
                    judged += 1
                    with self.subTest(case["file"], target=target):
                        self.judge(case["vendor"], target, record, [])
        self.assertGreater(judged, 40)

    def test_convert_invented_record_keeps_calls_results_and_texts(self):
        for seed in range(ROUNDS):
            source, target = PAIRS[seed % 6]
            record, secrets = build_record(source, seed)
            with self.subTest(source=source, target=target, seed=seed):
                self.judge(source, target, record, secrets)

    def test_convert_grown_session_keeps_what_each_vendor_made(self):
        reply = chat(
            "", "tool_calls", reasoning_content="kimi thinks", tool_calls=call("weigh", '{"z":1}', "call_1")
        )
        reply["model"] = "kimi-k3"
        for seed in range(ROUNDS // 10):
            record, secrets = build_record("anthropic", seed)
            session = read_session(record, "messages")
            turn, findings = judge_reply(session, reply)
            self.assertEqual(findings, [])
            grown = json.loads(json.dumps({**session, "turns": [*session["turns"], turn]}))
            result = {"kind": "result", "call_id": "call_1", "content": "R"}
            grown["turns"].append({"role": "tool", "parts": [result]})
            users, calls = read_body("messages", record)
            calls = [*calls, ["weigh", {"z": 1}, "R", False]]
            targets = [*TARGETS.values(), ("messages", "claude-sonnet-5-5")]
            for api, model in targets:
                with self.subTest(seed=seed, model=model):
                    body, _ = convert(read_session(grown, "neutral"), api, model)
                    kept = [[*each[:3], each[3] and api != "chat"] for each in calls]
                    self.assertEqual(same(read_body(api, body)), same((users, kept)))
                    held = [secret for secret in secrets if secret in same(body)]
                    self.assertEqual(held, secrets if model == "claude-sonnet-5-5" else [])

    def test_convert_record_loses_nothing_unsaid(self):
        targets = {**TARGETS, "older": ("messages", "claude-opus-5"), "k2": ("chat", "kimi-k2.5")}
        for phrase, ((record, target, options), (said, held, absent)) in WAYS.items():
            with self.subTest(phrase):
                api, model = targets[target]
                code, body, notes = run_session(
                    "--to", api, "--model", model, *options.split(), record=record
                )
                self.assertEqual((code, body == ""), (int(said[:4] == "no: "),) * 2)
                self.assertIn(said.removeprefix("no: "), notes)
                self.assertIn(held, body)
                self.assertNotIn(absent, body + notes)

    def test_convert_reply_of_unclear_call_goes_only_with_option(self):
        record = read_case("031-open-call-anthropic.session.json")
        session = read_session(record, "messages")
        with self.assertRaises(SessionError):
            convert(session, *TARGETS["kimi"])
        body, losses = convert(session, *TARGETS["kimi"], ["unclear"])
        self.assertIn("not recorded", read_body("chat", body)[1][2][2])
        self.assertIn("open call", str(losses))


if __name__ == "__main__":
    unittest.main()
