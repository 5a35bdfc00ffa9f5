"""The shared session cases: what is in a record, where it can go, and what must be said."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from checkpoint_demo import convert, find_facts, pair_results, read_session
from tests.session_support import CASES, REPLIES, SESSIONS, TARGETS, api_of, read_case, run_session

# The words of a note in the cases, and what the program must say for them.
NOTES = {
    "credential": "credential left out",
    "reasoning": "reasoning goes as text",
    "placeholder": "placeholder signature",
    "failed result": "failed result",
    "late system": "late system",
    "no thinking": "no thinking",
    "cache_control": "cache_control",
    "open call": "open call",
    "media": "media (",
    "server_tool_use": "server_tool_use",
}
# What a refusal in the cases names, and what the program must say for it.
NAMES = ["fileData", "image", "has no result", "server_tool_use", "counter.weigh_parcel", "weigh_parcel_0"]
NAMES.append("append the user's next message")


def value_of(text):
    """Return a text's JSON value, or the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class SessionCasesTest(unittest.TestCase):
    def test_facts_of_a_case_are_counted(self):
        self.assertGreater(len(SESSIONS), 30)
        for case in SESSIONS:
            with self.subTest(case["file"]):
                facts = find_facts(read_session(read_case(case["file"]), api_of(case["vendor"])))
                self.assertEqual({**facts, **case["counts"]}, facts)

    def test_parts_of_a_case_are_read(self):
        for case in SESSIONS:
            with self.subTest(case["file"]):
                turns = read_session(read_case(case["file"]), api_of(case["vendor"]))["turns"]
                parts = [(turn["role"], part) for turn in turns for part in turn["parts"]]
                calls = [pair.call for pair in pair_results(turns)[0]]
                expected = [call["raw"] if call.get("raw") else call["arguments"] for call in case["calls"]]
                self.assertEqual([call["arguments"] for call in calls], expected)
                self.assertEqual([call["tool"] for call in calls], [call["name"] for call in case["calls"]])
                self.assertEqual(
                    [call.get("call_id") for call in calls], [call["id"] for call in case["calls"]]
                )
                results = [part for _, part in parts if part["kind"] == "result"]
                self.assertEqual([r["tool"] for r in results], [r["name"] for r in case["results"]])
                self.assertEqual([r["failed"] for r in results], [r["error"] for r in case["results"]])
                for result, expected in zip(results, case["results"]):
                    if isinstance(result["content"], str):
                        self.assertEqual(value_of(result["content"]), value_of(expected["text"]))
                texts = [
                    {"role": "user" if role == "tool" else role, "text": part["text"]}
                    for role, part in parts
                    if part["kind"] == "text" and role != "system"
                ]
                expected = [{"role": text["role"], "text": text["text"]} for text in case["texts"]]
                self.assertEqual(texts, expected)

    def test_own_api_says_what_the_case_says(self):
        for case in SESSIONS:
            with self.subTest(case["file"]):
                code, _, err = run_session(str(CASES / case["file"]))
                self.assertEqual(code, 0 if case["own"]["status"] == 200 else 1)
                self.assertIn(case["own"]["message"], err)

    def test_outcome_elsewhere_is_that_of_the_case(self):
        for case in SESSIONS:
            outcomes = [((), case["convert"]), (("--unclear",), case.get("with_unclear", {}))]
            outcomes.append((("--leave-out",), case.get("with_leave_out", {})))
            for options, convert_to in outcomes:
                for target, outcome in convert_to.items():
                    with self.subTest(case["file"], target=target, options=options):
                        api, model = TARGETS[target]
                        arguments = ("--to", api, "--model", model, *options)
                        self.judge(outcome, *run_session(str(CASES / case["file"]), *arguments))

    def judge(self, outcome, code, out, err):
        """Compare how a conversion ended with its outcome in words."""
        begin, _, rest = outcome.partition(": ")
        if begin == "refuse":
            self.assertEqual((code, out), (1, ""))
            self.assertTrue(any(name in rest and name in err for name in NAMES), err)
        elif begin.startswith("ok"):
            self.assertEqual(code, 0, err)
            notes = rest.split("; ") if rest else []
            for note in notes:
                self.assertIn(NOTES[note], err)
            if "media" not in notes and "server_tool_use" not in notes:
                self.assertEqual(err.count("note: "), len(notes), err)

    def test_fresh_takes_every_case_but_forbidden_names(self):
        for case in SESSIONS:
            for target in case["convert"]:
                api, model = TARGETS[target]
                with self.subTest(case["file"], target=target):
                    code, _, _ = run_session(
                        str(CASES / case["file"]), "--to", api, "--model", model, "--fresh"
                    )
                    self.assertEqual(code, 1 if "dotted" in case["file"] else 0)

    def test_reply_of_a_case_is_judged(self):
        for case in REPLIES:
            with self.subTest(case["file"]):
                code, _, err = run_session(str(CASES / case["session"]), "--reply", str(CASES / case["file"]))
                self.assertEqual(code, 0 if case["accept"] else 1)
                for words in case["findings"]:
                    self.assertIn(words, err)

    def test_vendor_tool_that_is_left_out_is_not_in_the_body(self):
        record = read_case("055-server-tool-anthropic.session.json")
        for api, model in (("chat", "gpt-5.5"), ("gemini", "gemini-3.5-flash")):
            with self.subTest(api):
                options = ("--to", api, "--model", model, "--leave-out")
                code, out, err = run_session(*options, record=record)
                self.assertEqual((code, "web_search" in json.dumps(json.loads(out)["tools"])), (0, False))
                self.assertIn("web_search", err)

    def test_options_that_do_not_belong_together_are_refused(self):
        record = str(CASES / "001-plain-anthropic.session.json")
        reply = str(CASES / "109-answer.reply.json")
        away = ("--to", "chat", "--model", "kimi-k3")
        for arguments in (
            ("--reply", reply),
            ("--to", "neutral"),
            (record, "--to", "chat"),
            (record, "--model", "kimi-k3"),
            (record, "-o", "nowhere.json"),
            (record, "--fresh"),
            (record, "--to", "neutral", "--unclear"),
            (record, "--reply", reply, *away),
        ):
            with self.subTest(arguments):
                code, out, err = run_session(*arguments)
                self.assertEqual((code, out), (2, ""))
                self.assertIn("usage: ", err)

    def test_grown_session_can_be_written_to_a_new_file(self):
        record = str(CASES / "001-plain-anthropic.session.json")
        reply = str(CASES / "109-answer.reply.json")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "grown.json")
            code, _, err = run_session(record, "--reply", reply, "--to", "neutral", "-o", str(path))
            self.assertEqual((code, err), (0, ""))
            self.assertEqual(json.loads(path.read_bytes())["turns"][-1]["role"], "assistant")

    def test_reply_becomes_the_next_turn(self):
        for case in REPLIES:
            with self.subTest(case["file"]):
                arguments = (
                    str(CASES / case["session"]),
                    "--reply",
                    str(CASES / case["file"]),
                    "--to",
                    "neutral",
                )
                code, out, _ = run_session(*arguments)
                self.assertEqual(code, 0 if case["accept"] else 1)
                grown = json.loads(out)
                self.assertEqual(grown["turns"][-1]["role"], "assistant")
                self.assertEqual(read_session(grown, "neutral"), grown)

    def test_unsupported_pair_is_never_silent(self):
        record = read_case("055-server-tool-anthropic.session.json")
        body, losses = convert(read_session(record, "messages"), *TARGETS["kimi"], ["leave_out"])
        self.assertNotIn("encrypted", json.dumps(body))
        self.assertEqual(len(losses), 3)


if __name__ == "__main__":
    unittest.main()
