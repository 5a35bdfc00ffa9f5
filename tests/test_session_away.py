"""A session goes to another vendor: nothing is lost unsaid, and no credential goes along."""

from __future__ import annotations

import json
import unittest

from checkpoint_demo import SessionError, convert, find_refusals, judge_reply, read_session
from tests.session_support import PAIRS, SESSIONS, TARGETS, api_of, build_record, read_body, read_case, same
from tests.support import count_rounds
from tests.test_session_reply import call, chat

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
