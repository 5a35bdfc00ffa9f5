"""Each saved stream gives what its line in expected.jsonl says."""

from __future__ import annotations

import json
import unittest

from checkpoint_demo import find_recovery_refusal, read_stream
from tests.support import CASES

FOLDER = CASES / "session"
EXPECTED = [json.loads(line) for line in (FOLDER / "expected.jsonl").read_text("utf-8").splitlines()]
STREAMS = [case for case in EXPECTED if case["kind"] == "stream"]
APIS = {"anthropic": "messages", "gemini": "gemini"}


def list_calls(stream, closed):
    parts = stream.parts if closed else stream.open_parts
    return [part for part in parts if part["kind"] == "call"]


def render(stream):
    """Return a stream's facts as expected.jsonl shows them."""
    credentials = [part["credential"] for part in stream.parts + stream.open_parts if part.get("credential")]
    return {
        "state": "complete" if stream.complete else "cut",
        "stop": stream.stop or None,
        "error": stream.error.get("type"),
        "in_hand": {
            "thinking": stream.join("reasoning"),
            "thinking_signed": bool(credentials),
            "text": stream.join("text"),
            "calls": [
                {"id": part.get("call_id"), "name": part["tool"], "arguments": part["arguments"]}
                for part in list_calls(stream, True)
            ],
            "partial_calls": [
                {"id": part.get("call_id"), "name": part["tool"], "arguments_text": part["arguments"]}
                for part in list_calls(stream, False)
            ],
        },
    }


class StreamCases(unittest.TestCase):
    def test_there_are_cases_and_each_file_has_a_line(self):
        names = sorted(path.name for path in FOLDER.glob("*.stream.txt"))
        self.assertTrue(names)
        self.assertEqual(names, sorted(case["file"] for case in STREAMS))

    def test_a_saved_stream_holds_what_its_line_says(self):
        for case in STREAMS:
            with self.subTest(case["file"], why=case["why"]):
                stream = read_stream((FOLDER / case["file"]).read_bytes())
                observed = render(stream)
                self.assertEqual(observed, {key: case[key] for key in observed})
                self.assertEqual(stream.findings, [])
                self.assertIn(stream.api, ("", APIS.get(case["vendor"], "chat")))
                self.assertEqual(bool(stream.message), case["state"] == "complete")

    def test_each_recovery_is_allowed_or_refused_as_the_line_says(self):
        for case in STREAMS:
            with self.subTest(case["file"], why=case["why"]):
                stream, expected = read_stream((FOLDER / case["file"]).read_bytes()), case["recover"]
                api = APIS.get(case["vendor"], "chat")
                refusal = find_recovery_refusal("prefill", api, case["model"], False, stream)
                self.assertEqual(not stream.complete, expected["resend"])
                self.assertEqual(not refusal, expected["prefill"], refusal)
                refused = find_recovery_refusal("instruction", api, "", False, stream)
                self.assertEqual(not refused, expected["instruction"])
                if "prefill_why" in expected:
                    self.assertEqual(refusal, expected["prefill_why"])
                if "prefix" in expected:
                    self.assertEqual(stream.join("text").rstrip(), expected["prefix"])
