"""The lines of a stream, and events that do not have their form."""

from __future__ import annotations

import copy
import json
import random
import unittest

from checkpoint_demo import (
    INPUT_LIMIT_BYTES,
    InputError,
    build_recovery,
    find_recovery_refusal,
    list_events,
    read_stream,
    render_stream,
)
from tests.streams import (
    CHAT,
    GEMINI,
    MESSAGES,
    OVERLOADED,
    PING,
    STOP,
    TEXT,
    THINKING,
    WHOLE,
    begin,
    call,
    chunk,
    delta,
    end,
    render_events,
    response,
    start,
    stop,
    tool_use,
)
from tests.support import count_steps

# What the bytes are: (bytes, the events in them).
LINES = {
    "nothing": (b"", []),
    "a line feed": (b"data: 1\n\n", [("", b"1")]),
    "a carriage return": (b"data: 1\r\rdata: 2\r\r", [("", b"1"), ("", b"2")]),
    "both": (b"data: 1\r\n\r\n", [("", b"1")]),
    "both, cut between the last two": (b"data: 1\r\n\r", [("", b"1")]),
    "mixed ends": (b"event: a\rdata: 1\n\r\ndata: 2\r\n\n", [("a", b"1"), ("", b"2")]),
    "no blank line": (b"data: 1\n", []),
    "no line end": (b"data: 1", []),
    "no space behind the colon": (b"data:1\n\n", [("", b"1")]),
    "two spaces": (b"data:  1\n\n", [("", b" 1")]),
    "a comment": (b": keep-alive\n\n:\n\ndata: 1\n: more\n\n", [("", b"1")]),
    "an id, a retry, an unknown field": (b"id: 7\nretry: 3\nx: y\ndata: 1\n\n", [("", b"1")]),
    "a field without a colon": (b"data\nnonsense\ndata: 1\n\n", [("", b"\n1")]),
    "several data lines": (b"data: {\ndata: }\n\n", [("", b"{\n}")]),
    "a name": (b"event: ping\ndata: 1\n\ndata: 2\n\n", [("ping", b"1"), ("", b"2")]),
    "a name behind the data": (b"data: 1\nevent: ping\n\n", [("ping", b"1")]),
    "a name without data": (b"event: ping\n\ndata: 2\n\n", [("", b"2")]),
    "empty data": (b"data:\n\ndata: 2\n\n", [("", b"2")]),
    "blank lines": (b"\n\n\r\r\r\n\r\ndata: 1\n\n\n\n", [("", b"1")]),
    "a byte-order mark": (b"\xef\xbb\xbfdata: 1\n\n", [("", b"1")]),
    "half a byte-order mark": (b"\xef\xbb", []),
    "other line separators": (
        "data: a\u2028\x0b\x0c\x85b\n\n".encode(),
        [("", "a\u2028\x0b\x0c\x85b".encode())],
    ),
    "an array": (b' [{"a": 1},\n{"b": [2]}]', [("", b'{"a": 1}'), ("", b'{"b": [2]}')]),
    "an array behind a byte-order mark": (b'\xef\xbb\xbf[{"a": 1}]', [("", b'{"a": 1}')]),
    "an array that is cut": (b'[{"a": "]}"}, {"b": "', [("", b'{"a": "]}"}')]),
    "an array that is cut in a character": (b'[{"a": 1}, {"b": "\xc3', [("", b'{"a": 1}')]),
    "an empty array": (b"[]", []),
    "one object": (b'{"error": {"code": 503}}', [("", b'{"error": {"code": 503}}')]),
    "an array of a large integer": (b'[{"a":' + b"1" * 5000 + b"}]", [("", b'{"a":' + b"1" * 5000 + b"}")]),
}

OPEN = [start(), begin(0, TEXT), delta(0, "text_delta", text="a")]
CLOSED = [*OPEN, stop(0)]
DONE = [*CLOSED, end(), STOP]
# What is out of order: (events, the path of the finding, a word of its message).
DISORDER = {
    "no message_start": (OPEN[1:], "content", "nothing"),
    "two message_starts": ([start(), *OPEN], "events[1], $", "message_start"),
    "content that is not empty": ([start(content=[TEXT])], "content[0]", "nothing"),
    "a block twice": ([*OPEN, begin(0, TEXT)], "events[3], $", "content_block_start"),
    "a block too far": ([start(), begin(1, TEXT)], "events[1], $", "content_block_start"),
    "a delta without a block": (
        [start(), delta(0, "text_delta", text="a")],
        "events[1], $",
        "content_block_delta",
    ),
    "a delta behind its block": (
        [*CLOSED, delta(0, "text_delta", text="a")],
        "events[4], $",
        "content_block_delta",
    ),
    "a block closed twice": ([*CLOSED, stop(0)], "events[4], $", "content_block_stop"),
    "a block that is never closed": ([*OPEN, end(), STOP], "content[0]", "content_block_stop"),
    "a delta of another block": (
        [*OPEN, delta(0, "thinking_delta", thinking="a")],
        "events[3], delta",
        "text",
    ),
    "a block behind the end": ([*DONE, begin(1, TEXT)], "events[6], $", "content_block_start"),
    "a block behind the stop reason": ([*DONE[:-1], begin(1, TEXT)], "events[5], $", "content_block_start"),
    "two message_stops": ([*DONE, STOP], "events[6], $", "message_stop"),
    "a message_delta behind message_stop": ([*DONE, end()], "events[6], $", "message_delta"),
    "a name that is not the type": (
        b'event: message_stop\ndata: {"type": "message_delta"}\n\n',
        "events[0], type",
        "message_stop",
    ),
    "a name without a type": (b"event: message_stop\ndata: {}\n\n", "events[0], type", "nothing"),
    "text that is not JSON": (b"data: nonsense\n\n", "events[0], line 1 column 1", "JSON"),
    "text that is not UTF-8": (b'data: {"a": "\xff"}\n\n', "events[0], line 1 column 8", "UTF-8"),
    "an array that is not UTF-8": (b'[{"a": "\xff"}, {}]', "events[0], line 1 column 8", "UTF-8"),
    "an array": (b"data: []\n\n", "events[0], $", "an object"),
    "a key twice": (b'data: {"a": 1, "a": 2}\n\n', "events[0], $", "twice"),
    "another API": ([*OPEN, chunk({"content": "a"})], "events[3], $", "chat"),
    "two choices": (
        [chunk({"content": "a"}), chunk({"content": "b"}, index=1)],
        "choices[1]",
        "nothing",
    ),
    "content behind finish_reason": (
        [chunk({"content": "a"}, "stop"), chunk({"content": "b"})],
        "events[1], choices[0]",
        "not finished",
    ),
    "a call too far": (
        [chunk({"tool_calls": [call(1, "", "a", "b")]})],
        "events[0], choices[0].delta.tool_calls[0]",
        "the next",
    ),
    "a call without an id": (
        [chunk({"tool_calls": [{"index": 0, "function": {"name": "b"}}]})],
        "message.tool_calls[0]",
        "id",
    ),
    "a second call under the index of the first": (
        [chunk({"tool_calls": [call(0, "{}", "a", "b")]}), chunk({"tool_calls": [call(0, "{}", "c", "b")]})],
        "events[1], choices[0].delta.tool_calls[0].id",
        'the string "a"',
    ),
    "an index below zero": (
        [chunk({"tool_calls": [call(-1, "{}", "a", "b")]})],
        "events[0], choices[0].delta.tool_calls[0]",
        "the next",
    ),
    "a part that is empty": (
        [response({"thought": True})],
        "events[0], candidates[0].content.parts[0]",
        "the next",
    ),
    "a call in pieces": (
        [response({"functionCall": {"name": "f", "willContinue": True}})],
        "events[0], candidates[0].content.parts[0].functionCall.willContinue",
        "nothing",
    ),
    "two candidates": (
        [{"candidates": [{"index": 1, "content": {"parts": [{"text": "a"}]}}]}],
        "events[0], candidates[0]",
        "the next",
    ),
    "parts behind finishReason": (
        [response({"text": "a"}, finish="STOP"), response({"text": "b"}, finish="STOP")],
        "events[1], candidates[0]",
        "not finished",
    ),
}

# What is passed over without a finding.
PASSED_OVER = {
    "pings": [PING, start(), PING, *CLOSED[1:], PING, end(), STOP, PING],
    "an unknown event": [*OPEN, {"type": "hologram", "index": 9}, stop(0), end(), STOP],
    "an unknown delta": [*OPEN, delta(0, "hologram_delta", text=5, id=[]), stop(0), end(), STOP],
    "a chunk of no choice": [chunk({"content": "a"}), {**chunk(), "choices": []}, chunk({}, "stop")],
    "an unknown object": [chunk({"content": "a"}), {"x_gateway": 1}, chunk({}, "stop")],
    "a finish_reason twice": [
        chunk({"content": "a"}, "stop"),
        chunk({"role": "assistant", "content": ""}, "stop"),
    ],
    "null for what is not there": [
        chunk({"content": "a", "tool_calls": None, "reasoning_content": None, "function_call": None}),
        chunk({"content": None}, "stop", usage=None),
    ],
    "ids and names said again": [
        chunk({"content": "a", "tool_calls": [call(0, "{", "a", "b")]}),
        chunk({"tool_calls": [call(0, "", "", "")]}),
        chunk({"tool_calls": [call(0, "}", "a", "b")]}),
        chunk({}, "tool_calls"),
    ],
    "a last chunk without content": [response({"text": "a"}), {"candidates": [{"finishReason": "STOP"}]}],
    "usage alone": [response({"text": "a"}, finish="STOP"), {"usageMetadata": {"totalTokenCount": 4}}],
}

# What a field of another type is, wherever a field has a form.
FIELDS = {
    "messages": [
        (0, ("message",)),
        (0, ("message", "type")),
        (0, ("message", "role")),
        (0, ("message", "content")),
        (2, ("index",)),
        (2, ("content_block",)),
        (2, ("content_block", "type")),
        (2, ("content_block", "thinking")),
        (3, ("index",)),
        (3, ("delta",)),
        (3, ("delta", "type")),
        (3, ("delta", "thinking")),
        (5, ("delta", "signature")),
        (6, ("index",)),
        (7, ("content_block", "text")),
        (8, ("delta", "text")),
        (10, ("delta", "citation")),
        (12, ("content_block", "id")),
        (12, ("content_block", "name")),
        (12, ("content_block", "input")),
        (14, ("delta", "partial_json")),
        (19, ("delta",)),
        (19, ("delta", "stop_reason")),
    ],
    "chat": [
        (0, ("choices",)),
        (0, ("choices", 0, "index")),
        (0, ("choices", 0, "delta")),
        (5, ("choices", 0, "delta", "tool_calls", 0, "index")),
        (5, ("choices", 0, "delta", "tool_calls", 0, "id")),
        (5, ("choices", 0, "delta", "tool_calls", 0, "function")),
        (5, ("choices", 0, "delta", "tool_calls", 0, "function", "name")),
    ],
    "gemini": [
        (4, ("candidates", 0, "content", "parts", 0, "functionCall", "name")),
        (4, ("candidates", 0, "content", "parts", 1, "functionCall")),
    ],
}
# May be missing, but has a type.
OPTIONAL = {
    "messages": [(0, ("message", "model")), (0, ("message", "usage")), (19, ("usage",))],
    "chat": [
        (0, ("model",)),
        (0, ("choices", 0, "delta", "role")),
        (0, ("choices", 0, "delta", "content")),
        (1, ("choices", 0, "delta", "reasoning_content")),
        (5, ("choices", 0, "delta", "tool_calls")),
        (6, ("choices", 0, "delta", "tool_calls", 0, "function", "arguments")),
        (8, ("choices", 0, "finish_reason")),
        (9, ("usage",)),
    ],
    "gemini": [
        (0, ("candidates",)),
        (0, ("candidates", 0, "index")),
        (0, ("candidates", 0, "content")),
        (0, ("candidates", 0, "content", "parts")),
        (0, ("candidates", 0, "content", "role")),
        (0, ("candidates", 0, "content", "parts", 0, "text")),
        (0, ("candidates", 0, "content", "parts", 0, "thought")),
        (4, ("candidates", 0, "content", "parts", 0, "thoughtSignature")),
        (4, ("candidates", 0, "content", "parts", 0, "functionCall", "args")),
        (4, ("candidates", 0, "content", "parts", 0, "functionCall", "id")),
        (5, ("candidates", 0, "finishReason")),
        (0, ("modelVersion",)),
        (0, ("usageMetadata",)),
    ],
}
GONE = object()
OTHERS = (GONE, None, 3.5, "x", [], {})


def read(events):
    return read_stream(events if isinstance(events, bytes) else render_events(events))


def change(events, number, path, value):
    """Return a copy of events with one value replaced, or taken out."""
    changed = copy.deepcopy(events)
    node = changed[number]
    for part in path[:-1]:
        node = node[part]
    if value is GONE:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return changed


def list_places(value, *at):
    """Yield the path of each value in an event."""
    if at:
        yield at
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        yield from list_places(child, *at, key)


def use_all(stream):
    """Do with a stream whatever can be done with it; return it."""
    json.dumps(stream.message, allow_nan=False)
    list(render_stream(stream))
    for api in ("messages", "chat", "gemini"):
        find_recovery_refusal("prefill", api, stream.model, False, stream)
    find_recovery_refusal("instruction", stream.api, "", False, stream)
    return stream


class Lines(unittest.TestCase):
    def test_the_lines_of_a_stream_make_its_events(self):
        for words, (data, expected) in LINES.items():
            with self.subTest(words):
                self.assertEqual(list(list_events(data)), expected)

    def test_events_of_other_forms_are_the_same_reply(self):
        for api, (events, reply) in WHOLE.items():
            plain = render_events(events, named=False)
            ids = b"".join(b"id: 1\n" + event + b"\n\n" for event in plain.split(b"\n\n")[:-1])
            for words, data in {
                "without names": plain,
                "with ids": ids,
                "with comments": plain.replace(b"data:", b": hello\ndata:"),
                "in several data lines": plain.replace(b'{"', b'{\ndata: "'),
            }.items():
                with self.subTest(f"{api} {words}"):
                    stream = read_stream(data)
                    self.assertEqual((stream.message, stream.findings), (reply, []))

    def test_gemini_may_send_an_array(self):
        for words, data in {
            "one line": json.dumps(GEMINI),
            "indented": json.dumps(GEMINI, indent=2, ensure_ascii=False) + "\r\n",
            "one object": json.dumps(response({"text": "a"}, finish="STOP")),
        }.items():
            with self.subTest(words):
                stream = read_stream(data.encode())
                self.assertEqual((stream.api, stream.complete, stream.findings), ("gemini", True, []))

    def test_what_is_not_readable_is_refused(self):
        for words, data in {
            "more than 64 MiB": b":" * (INPUT_LIMIT_BYTES + 1),
        }.items():
            with self.subTest(words), self.assertRaises(InputError):
                read_stream(data)

    def test_what_is_not_a_stream_is_cut_with_nothing_in_hand(self):
        for data in (b"", b"<html>\n\n</html>\n\n", b"[", b"[[[[[", b"\x00" * 100, b"data: [DONE]\n\n"):
            with self.subTest(data):
                stream = use_all(read_stream(data))
                self.assertEqual((stream.complete, stream.parts, stream.open_parts), (False, [], []))


class Errors(unittest.TestCase):
    def test_an_error_event_makes_a_reply_cut(self):
        unavailable = {"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}
        server = {"error": {"message": "Overloaded", "type": "server_error", "code": None}}
        for words, (events, kind) in {
            "messages": ([*CLOSED, OVERLOADED], "overloaded_error"),
            "messages, first of all": ([OVERLOADED], "overloaded_error"),
            "messages, behind the stop reason": ([*CLOSED, end(), OVERLOADED], "overloaded_error"),
            "chat": ([chunk({"content": "a"}), server], "server_error"),
            "chat, within a chunk": ([{**chunk({"content": ""}, "error"), **server}], "server_error"),
            "chat, a number": (
                [chunk({"content": "a"}), {"error": {"code": 502, "message": "Overloaded"}}],
                "502",
            ),
            "chat, in words": ([chunk({"content": "a"}), {"error": "Overloaded"}], "error"),
            "gemini": ([response({"text": "a"}), unavailable], "UNAVAILABLE"),
            "gemini, as an array": (
                json.dumps([response({"text": "a"}), unavailable]).encode(),
                "UNAVAILABLE",
            ),
        }.items():
            with self.subTest(words):
                stream = read(events)
                self.assertEqual(stream.error, {"type": kind, "message": "Overloaded"})
                self.assertEqual((stream.complete, stream.message, stream.findings), (False, {}, []))

    def test_a_named_error_without_json_is_an_error(self):
        stream = read_stream(b"event: error\ndata: overloaded\n\n")
        self.assertEqual((stream.complete, stream.error["type"]), (False, "error"))

    def test_a_blocked_prompt_is_an_error(self):
        stream = read([{"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": "gemini-3.5-flash"}])
        self.assertEqual((stream.complete, stream.error["type"]), (False, "SAFETY"))


class Forms(unittest.TestCase):
    def test_events_out_of_order_are_findings(self):
        for words, (events, path, word) in DISORDER.items():
            with self.subTest(words):
                stream = use_all(read(events))
                self.assertEqual(stream.findings[0].path, path)
                self.assertIn(word, stream.findings[0].message)
                self.assertEqual(stream.message, {})

    def test_what_is_unknown_is_passed_over(self):
        for words, events in PASSED_OVER.items():
            with self.subTest(words):
                stream = read(events)
                self.assertEqual((stream.findings, stream.complete), ([], True))
                self.assertEqual(stream.join("text"), "a")

    def test_each_choice_must_be_finished(self):
        one, other = chunk({"content": "a"}, "stop"), chunk({"content": "b"}, index=1)
        for events, complete in (
            ([one], True),
            ([one, other], False),
            ([one, other, chunk({}, "stop", 1)], True),
        ):
            with self.subTest(len(events)):
                stream = read(events)
                self.assertEqual(stream.complete, complete)
                self.assertEqual(bool(stream.findings), len(events) > 1)

    def test_a_field_that_must_be_there_is_a_finding_where_it_is_missing(self):
        for api, places in FIELDS.items():
            for number, path in places:
                for value in (GONE, None, 3.5, [3.5], {"x": 1}):
                    if value is not None or path[-1] not in (
                        "stop_reason",
                        "functionCall",
                        "id",
                        "function",
                        "name",
                        "choices",
                    ):
                        with self.subTest(api=api, number=number, path=path, value=value):
                            self.check_found(change(WHOLE[api][0], number, path, value), path, value)

    def test_a_field_that_may_be_missing_is_a_finding_where_it_has_another_type(self):
        for api, places in OPTIONAL.items():
            for number, path in places:
                for value in (3.5, [3.5], {"x": 1}):
                    is_right = isinstance(value, dict) and path[-1] in (
                        "usage",
                        "usageMetadata",
                        "args",
                        "content",
                    )
                    if not is_right or path[-2:] == ("delta", "content"):
                        with self.subTest(api=api, number=number, path=path, value=value):
                            self.check_found(change(WHOLE[api][0], number, path, value), path, value)

    def check_found(self, events, path, value):
        if value == {"x": 1} and path in [
            ("content_block", "input"),
            ("delta", "citation"),
            ("choices", 0, "delta"),
        ]:
            return  # an object is right there
        stream = use_all(read(events))
        self.assertTrue(stream.findings)
        self.assertEqual(stream.message, {})

    def test_a_key_twice_is_a_finding(self):
        for api, (events, _) in WHOLE.items():
            data = render_events(events)
            for key in (
                b'"index": 0',
                b'"type": "text_delta"',
                b'"delta": {',
                b'"parts": [',
                b'"choices": [',
            ):
                if key in data:
                    with self.subTest(api=api, key=key):
                        name = key.partition(b":")[0]
                        stream = read_stream(data.replace(key, name + b": 7, " + key, 1))
                        self.assertIn("twice", stream.findings[0].message)

    def test_an_event_twice_or_missing_is_found_or_its_text_is_there_twice(self):
        for number, event in enumerate(MESSAGES):
            kind = event["type"]
            with self.subTest(number=number, kind=kind):
                twice = use_all(read([*MESSAGES[: number + 1], *MESSAGES[number:]]))
                missing = use_all(read([*MESSAGES[:number], *MESSAGES[number + 1 :]]))
                changes_text = kind == "content_block_delta"
                self.assertTrue(twice.findings or changes_text or kind in ("ping", "message_delta"))
                self.assertTrue(
                    missing.findings or changes_text or kind in ("ping", "message_delta", "message_stop")
                )

    def test_no_change_of_an_event_ends_in_a_crash(self):
        for api, (events, _) in WHOLE.items():
            for number, event in enumerate(events):
                for path in list_places(event):
                    for value in OTHERS:
                        with self.subTest(api=api, number=number, path=path, value=value):
                            use_all(read(change(events, number, path, value)))

    def test_no_mixture_of_events_ends_in_a_crash(self):
        draw = random.Random(7)
        events = [
            *MESSAGES,
            *CHAT,
            *GEMINI,
            OVERLOADED,
            begin(0, {"type": "hologram", "text": 5, "citations": "x"}),
        ]
        events += [begin(0, {**THINKING, "text": 5}), begin(0, {**tool_use(), "partial_json": 5})]
        events += [begin(0, {"type": "redacted_thinking", "data": "", "redacted_thinking": 5})]
        events += [
            {**chunk(), "content": "x", "candidates": 3},
            {**response(), "content": "x", "stop_reason": 5},
        ]
        events += [{**end(), "delta": {"stop_reason": "x", "content": "x", "usage": 5, "model": 7}}]
        for _ in range(1_000):
            use_all(read(draw.choices(events, k=draw.randrange(1, 12))))


class Recoveries(unittest.TestCase):
    def test_a_prefill_goes_where_the_model_is_known_to_take_it(self):
        kimi, gemini = [chunk({"content": "a "})], [response({"text": "a "})]
        thinking = [start(), begin(0, THINKING), stop(0), begin(1, TEXT), delta(1, "text_delta", text="a")]
        for words, (api, model, is_thinking, events, word) in {
            "Claude 4.5": ("messages", "claude-haiku-4-5-20251001", False, OPEN, ""),
            "Claude 4": ("messages", "claude-sonnet-4-20250514", False, OPEN, ""),
            "Claude 4.1 of Bedrock": (
                "messages",
                "us.anthropic.claude-opus-4-1-20250805-v1:0",
                False,
                OPEN,
                "",
            ),
            "Claude 4.5 of Vertex": ("messages", "claude-sonnet-4-5@20250929", False, OPEN, ""),
            "Claude 3.5": ("messages", "claude-3-5-sonnet-20241022", False, OPEN, ""),
            "Claude 3": ("messages", "claude-3-haiku-20240307", False, OPEN, ""),
            "Claude 2.1": ("messages", "claude-2.1", False, OPEN, ""),
            "Claude 4.5 that thinks": ("messages", "claude-haiku-4-5", True, OPEN, "thinks"),
            "Claude 4.5 that thought": ("messages", "claude-haiku-4-5", False, thinking, "thinks"),
            "Claude 4.6": ("messages", "claude-opus-4-6", False, OPEN, "4.6"),
            "Claude 5.2": ("messages", "anthropic/claude-fable-5.2", False, OPEN, "4.6"),
            "Claude 5": ("messages", "claude-mythos-5", False, OPEN, "4.6"),
            "Claude 10": ("messages", "claude-opus-10-1", False, OPEN, "4.6"),
            "a Claude of no version": ("messages", "claude-latest", False, OPEN, "known"),
            "another model": ("messages", "kimi-k3", False, OPEN, "known"),
            "kimi": ("chat", "moonshotai/Kimi-K3", False, kimi, ""),
            "moonshot": ("chat", "moonshot-v1-8k", False, kimi, ""),
            "another chat model": ("chat", "gpt-6", False, kimi, "known"),
            "gemini": ("gemini", "", False, gemini, ""),
            "no text": ("chat", "kimi-k3", False, [chunk({"reasoning_content": "a"})], "no text in hand"),
            "white space": ("chat", "kimi-k3", False, [chunk({"content": " \n"})], "no text in hand"),
            "a call": ("gemini", "", False, [*gemini, response({"functionCall": {"name": "f"}})], "a call"),
            "a search": (
                "messages",
                "claude-2.1",
                False,
                [*CLOSED, begin(1, {"type": "server_tool_use"})],
                "more",
            ),
            "a complete reply": ("messages", "claude-2.1", False, DONE, "complete"),
        }.items():
            with self.subTest(words):
                refusal = find_recovery_refusal("prefill", api, model, is_thinking, read(events))
                self.assertEqual(bool(refusal), bool(word), refusal)
                self.assertIn(word, refusal)

    def test_the_bodies_of_a_recovery(self):
        user = {"role": "user", "content": "Hi"}
        contents = [{"role": "user", "parts": [{"text": "Hi"}]}]
        for words, (api, record, last) in {
            "messages": (
                "messages",
                {"model": "m", "messages": [user]},
                {"role": "assistant", "content": [{"type": "text", "text": "a b"}]},
            ),
            "a bare list": (
                "messages",
                [user],
                {"role": "assistant", "content": [{"type": "text", "text": "a b"}]},
            ),
            "chat": ("chat", {"messages": [user]}, {"role": "assistant", "content": "a b", "partial": True}),
            "gemini": ("gemini", {"contents": contents}, {"role": "model", "parts": [{"text": "a b"}]}),
            "a bare list of contents": ("gemini", contents, {"role": "model", "parts": [{"text": "a b"}]}),
        }.items():
            with self.subTest(words):
                before, field = copy.deepcopy(record), "contents" if api == "gemini" else "messages"
                body = record if isinstance(record, dict) else {field: record}
                expected = {**body, field: [*body[field], last]}
                self.assertEqual(build_recovery("prefill", api, record, "a b \n"), expected)
                asked = build_recovery("instruction", api, record, "a b \n")[field][-1]
                self.assertEqual(asked["role"], "user")
                self.assertIn("a b \n", asked["content"] if api != "gemini" else asked["parts"][0]["text"])
                self.assertEqual(record, before)


class Cost(unittest.TestCase):
    def test_steps_grow_with_the_stream_alone(self):
        for words, build in {
            "texts": lambda n: render_events(
                [start(), begin(0, TEXT), *[delta(0, "text_delta", text="ab")] * n]
            ),
            "calls": lambda n: render_events([chunk({"tool_calls": [call(0, "1", "a", "b")]})] * n),
            "parts": lambda n: render_events([response({"text": "a"}, {"functionCall": {"name": "f"}})] * n),
            "blocks": lambda n: render_events([start(), *(begin(index, TEXT) for index in range(n))]),
            "choices": lambda n: render_events([chunk({"content": "a"}, index=index) for index in range(n)]),
            "one long line": lambda n: b"data: " + b"a" * 200 * n,
            "short lines": lambda n: b"data:\n" * 60 * n,
            "blank lines": lambda n: b"\n" * 100 * n,
            "an array that is cut": lambda n: b'[{"a":"' + b"x" * 300 * n,
            "an array": lambda n: json.dumps([response({"text": "a"})] * n).encode(),
            "brackets": lambda n: b"[" * 300 * n,
        }.items():
            with self.subTest(words):
                small, large = (count_steps(read_stream, build(n)) for n in (200, 2_000))
                self.assertLess(large, 11 * small)
