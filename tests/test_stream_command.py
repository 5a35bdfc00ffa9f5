"""The command that says what a saved stream holds."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from checkpoint_demo import INPUT_LIMIT_BYTES
from tests.streams import CHAT, CHAT_REPLY, MESSAGES, chunk, render_events
from tests.support import CASES, checkpoint

FOLDER = CASES / "session"


class Command(unittest.TestCase):
    def run_stream(self, path, message=False, as_json=False, by=None, session=None):
        switches = [name for name, is_on in (("--message", message), ("--json", as_json)) if is_on]
        values = [f"--{name}={value}" for name, value in (("by", by), ("session", session)) if value]
        return checkpoint("stream", str(path), *switches, *values)

    def save(self, events):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name, "reply.txt")
        path.write_bytes(events if isinstance(events, bytes) else render_events(events))
        return path

    def test_a_cut_stream_is_told_with_what_is_in_hand(self):
        ended = self.run_stream(FOLDER / "065-anthropic-arguments-look-complete.stream.txt")
        self.assertEqual((ended.code, ended.err), (1, ""))
        for words in (
            "API messages, model claude-opus-5-5, stop none",
            'whole text: {"text":"Now the route."}',
            'open call: {"arguments":',
            'usage so far: {"input_tokens":812,"output_tokens":1}; cost unknown',
            "--by prefill: a call is in hand",
            "--by instruction: in every recorded cell",
            "next: send the record again, which is always possible",
        ):
            self.assertIn(words, ended.out)
        self.assertEqual(ended.out.splitlines()[-1], "cut")

    def test_an_error_is_said(self):
        ended = self.run_stream(FOLDER / "069-anthropic-error-event.stream.txt")
        self.assertIn('error: {"type":"overloaded_error","message":"Overloaded"}', ended.out)
        self.assertEqual(ended.code, 1)

    def test_a_complete_stream_exits_0(self):
        ended = self.run_stream(self.save(MESSAGES))
        self.assertEqual((ended.code, ended.out.splitlines()[-1]), (0, "complete"))
        self.assertNotIn("next:", ended.out)

    def test_the_reply_alone_is_printed(self):
        ended = self.run_stream(self.save(CHAT), message=True)
        self.assertEqual((ended.code, ended.err, json.loads(ended.out)), (0, "", CHAT_REPLY))

    def test_no_reply_is_printed_of_a_cut_stream_or_one_with_findings(self):
        for words, events in {"cut": CHAT[:-3], "findings": [*CHAT, chunk({"content": "a"})]}.items():
            with self.subTest(words):
                ended = self.run_stream(self.save(events), message=True)
                self.assertEqual((ended.code, ended.out), (1, ""))
                self.assertIn(words[:3], ended.err)

    def test_findings_go_to_standard_error_and_into_the_verdict(self):
        ended = self.run_stream(self.save([*CHAT, chunk({"content": "a"})]))
        self.assertEqual((ended.code, ended.out.splitlines()[-1]), (1, "complete, 1 finding"))
        self.assertIn("events[11], choices[0]: ", ended.err)

    def test_json_is_one_object(self):
        for name, code in (
            ("067-anthropic-complete.stream.txt", 0),
            ("095-kimi-two-open-calls.stream.txt", 1),
        ):
            with self.subTest(name):
                ended = self.run_stream(FOLDER / name, as_json=True)
                report = json.loads(ended.out)
                self.assertEqual((ended.code, report["complete"]), (code, code == 0))
                self.assertEqual(len(report["open_parts"]), 0 if code == 0 else 3)

    def test_what_cannot_be_read_is_refused(self):
        for path in ("/nonexistent/reply.txt", self.save(b":" * (INPUT_LIMIT_BYTES + 1))):
            with self.subTest(path):
                ended = self.run_stream(path)
                self.assertEqual((ended.code, ended.out), (2, ""))
                self.assertIn("unreadable", ended.err)

    def go_on(self, by, record, name="063-anthropic-text-ends-with-space.stream.txt"):
        record = self.save(json.dumps(record).encode())
        return self.run_stream(FOLDER / name, by=by, session=str(record))

    def test_the_next_request_is_printed_with_its_notes(self):
        record = {"model": "claude-haiku-4-5-20251001", "max_tokens": 9, "system": "Weigh."}
        record["messages"] = [{"role": "user", "content": "How heavy?"}]
        for by, role, text in (
            ("prefill", "assistant", "The parcel weighs"),
            ("instruction", "user", "Go on from exactly there"),
        ):
            with self.subTest(by):
                ended = self.go_on(by, record)
                body = json.loads(ended.out)
                self.assertEqual((ended.code, body["messages"][0]), (0, record["messages"][0]))
                self.assertEqual((body["messages"][1]["role"], body["system"]), (role, "Weigh."))
                self.assertIn(text, str(body["messages"][1]["content"]))
                self.assertEqual("1.6 to 4.4" in ended.err, by == "instruction")

    def test_a_recovery_is_refused_with_its_reason(self):
        record = {"model": "claude-haiku-4-5", "max_tokens": 9, "system": "Weigh."}
        record["messages"] = [{"role": "user", "content": "How heavy?"}]
        thinking = {**record, "thinking": {"type": "enabled", "budget_tokens": 1024}}
        for words, (by, body, reason) in {
            "thinking": ("prefill", thinking, "while it thinks"),
            "thinking that is off": ("prefill", {**record, "thinking": {"type": "disabled"}}, ""),
            "another model": ("prefill", {**record, "model": "claude-opus-5-5"}, "Claude since 4.6"),
            "another API": (
                "instruction",
                {"contents": [{"role": "user", "parts": [{"text": "a"}]}]},
                "the record is of gemini",
            ),
        }.items():
            with self.subTest(words):
                if not reason:
                    self.assertEqual(self.go_on(by, body).code, 0)
                    continue
                ended = self.go_on(by, body)
                self.assertEqual((ended.code, ended.out), (1, ""))
                self.assertIn(reason, ended.err)
                self.assertIn("send the record again", ended.err)

    def test_session_and_by_go_together(self):
        both = {"by": "prefill", "session": "b"}
        for options in (
            {"by": "prefill"},
            {"session": "a"},
            {**both, "message": True},
            {**both, "by": "guess"},
        ):
            with self.subTest(options):
                ended = self.run_stream(FOLDER / "067-anthropic-complete.stream.txt", **options)
                self.assertEqual((ended.code, ended.out), (2, ""))
