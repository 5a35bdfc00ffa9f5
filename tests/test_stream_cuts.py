"""A stream that is cut at any byte: no crash, what is in hand only grows, complete only at its end."""

from __future__ import annotations

import json
import unittest

from checkpoint_demo import list_events, read_stream
from tests.streams import WHOLE, render_events
from tests.support import CASES

SAVED = sorted((CASES / "session").glob("*.stream.txt"))


ARGUMENTS = [{"parcel": "PK-88"}, {}]


def list_forms():
    """Yield each whole stream in each form that bytes may have: (in words, bytes)."""
    line_ends = {"messages": "\r\n", "chat": "\n", "gemini": "\r"}
    for api, (events, _) in WHOLE.items():
        yield (
            f"{api} behind a byte-order mark",
            b"\xef\xbb\xbf: comment\n\n" + render_events(events, line_ends[api]),
        )
    yield "gemini as an array", json.dumps(WHOLE["gemini"][0], ensure_ascii=False, indent=1).encode()


def list_closed(stream):
    return [json.dumps(part, sort_keys=True) for part in stream.parts]


class StreamCuts(unittest.TestCase):
    def test_a_saved_stream_cut_anywhere_is_read(self):
        self.assertGreaterEqual(len(SAVED), 13)
        for path in SAVED:
            data = path.read_bytes()
            for end in range(0, len(data), 13):
                self.assertEqual(read_stream(data[:end]).findings, [], (path.name, end))

    def test_what_is_in_hand_only_grows_with_each_byte(self):
        for words, data in list_forms():
            with self.subTest(words):
                earlier = read_stream(b"")
                for end in range(1, len(data) + 1):
                    stream = read_stream(data[:end])
                    self.assertEqual(stream.findings, [], end)
                    for kind in ("text", "reasoning"):
                        self.assertTrue(stream.join(kind).startswith(earlier.join(kind)), end)
                    closed = list_closed(stream)
                    calls = [part["arguments"] for part in stream.parts if part["kind"] == "call"]
                    self.assertEqual(calls, ARGUMENTS[: len(calls)], end)
                    self.assertEqual(closed[: len(earlier.parts)], list_closed(earlier), end)
                    self.assertGreaterEqual(stream.complete, earlier.complete, end)
                    self.assertEqual(bool(stream.message), stream.complete, end)
                    earlier = stream

    def test_a_stream_is_complete_only_from_its_last_events_on(self):
        """Messages: from the stop reason on; chat: from finish_reason; gemini: from finishReason."""
        marks = {
            "messages": b'"stop_reason": "tool_use"',
            "chat": b'"tool_calls"}',
            "gemini": b'"finishReason"',
        }
        for words, data in list_forms():
            with self.subTest(words):
                mark = data.index(marks[words.split()[0]])
                self.assertFalse(read_stream(data[:mark]).complete)
                self.assertTrue(read_stream(data).complete)

    def test_an_event_counts_with_its_blank_line(self):
        for line_end in (b"\n", b"\r\n", b"\r"):
            with self.subTest(line_end):
                data = b"data: {}" + line_end
                self.assertEqual(list(list_events(data)), [])
                self.assertEqual(list(list_events(data + line_end)), [("", b"{}")])
