"""The reply of a complete stream is the reply that comes without streaming."""

from __future__ import annotations

import json
import unittest

from checkpoint_demo import find_answer, judge_reply, read_session, read_stream
from tests.streams import (
    CHAT,
    CHAT_REPLY,
    GEMINI,
    MESSAGES,
    SIGNATURE,
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


def read(*events):
    return read_stream(render_events(events))


def answer(*deltas, block=TEXT):
    """Return a whole stream of the Messages API with one block."""
    return read(start(), begin(0, block), *deltas, stop(0), end(), STOP)


def build_answers():
    """Return whole streams whose text is a JSON value, each with its reply as it is without streaming."""
    message = start()["message"]
    message.update(content=[{**TEXT, "text": '{"rows":[]}'}], stop_reason="end_turn")
    choice = {"index": 0, "message": {"role": "assistant", "content": '{"rows":[]}'}, "finish_reason": "stop"}
    chat = {**chunk(), "object": "chat.completion", "choices": [choice]}
    pieces = ('{"ro', 'ws":[]}')
    texts = [delta(0, "text_delta", text=piece) for piece in pieces]
    return {
        "an answer of messages": ([start(), begin(0, TEXT), *texts, stop(0), end(), STOP], message),
        "an answer of chat": ([*(chunk({"content": piece}) for piece in pieces), chunk({}, "stop")], chat),
        "an answer of gemini": (
            [response({"text": pieces[0]}), response({"text": pieces[1]}, finish="STOP")],
            response({"text": '{"rows":[]}'}, finish="STOP"),
        ),
    }


ANSWERS = build_answers()


class Message(unittest.TestCase):
    def test_a_whole_stream_gives_the_reply_without_streaming(self):
        for api, (events, reply) in WHOLE.items():
            with self.subTest(api):
                stream = read(*events)
                self.assertEqual((stream.api, stream.complete, stream.findings), (api, True, []))
                self.assertEqual(stream.message, reply)
                self.assertEqual(stream.open_parts, [])

    def test_the_parts_of_a_whole_stream_are_those_of_the_reply(self):
        kinds = {
            "messages": ["reasoning", "text", "call", "call"],
            "chat": ["reasoning", "text", "call", "call"],
            "gemini": ["reasoning", "text", "call", "call"],
        }
        for api, (events, _) in WHOLE.items():
            with self.subTest(api):
                parts = read(*events).parts
                self.assertEqual([part["kind"] for part in parts], kinds[api])
                self.assertEqual([part["arguments"] for part in parts[2:]], [{"parcel": "PK-88"}, {}])
                self.assertEqual(parts[0]["text"], "Wägen, dann 🚀.")
                self.assertEqual(parts[1]["text"], "Größe “zwei” 🚀")

    def test_a_reply_is_judged_as_the_one_without_streaming(self):
        user = {"messages": [{"role": "user", "content": "How heavy is PK-88?"}], "model": "kimi-k3"}
        tool = {"type": "function", "function": {"name": "weigh_parcel", "parameters": {"type": "object"}}}
        session = read_session({**user, "tools": [tool]}, "chat")
        for api, (events, reply) in {**WHOLE, **ANSWERS}.items():
            with self.subTest(api):
                streamed = read(*events).message
                self.assertTrue(streamed)
                observed, expected = find_answer(streamed), find_answer(reply)
                self.assertEqual(observed[1], expected[1])
                self.assertEqual(list(map(str, observed[0])), list(map(str, expected[0])))
                self.assertEqual(bool(expected[0]), api in WHOLE)
                (turn, findings), (right, known) = judge_reply(session, streamed), judge_reply(session, reply)
                self.assertEqual(turn, right)
                self.assertEqual(list(map(str, findings)), list(map(str, known)))

    def test_a_stream_may_end_without_its_last_mark(self):
        endings = {
            "messages without message_stop": MESSAGES[:-1],
            "messages without message_delta": [*MESSAGES[:-2], STOP],
            "chat without [DONE]": CHAT[:-1],
            "chat without [DONE] and usage": CHAT[:-2],
            "chat with an empty finish_reason on every chunk": [
                *(chunk(event["choices"][0]["delta"], "") for event in CHAT[:8]),
                CHAT[8],
            ],
            "gemini with an unspecified finishReason on every chunk": [
                *(
                    response(*event["candidates"][0]["content"]["parts"], finish="FINISH_REASON_UNSPECIFIED")
                    for event in GEMINI[:-1]
                ),
                GEMINI[-1],
            ],
        }
        for words, events in endings.items():
            with self.subTest(words):
                stream = read(*events)
                self.assertEqual((stream.complete, stream.findings), (True, []))
                self.assertTrue(stream.message)
                self.assertEqual(len(stream.parts), 4)

    def test_an_empty_reason_to_stop_is_not_one(self):
        cut = {
            "messages": [start(), begin(0, TEXT), delta(0, "text_delta", text="a"), stop(0), end(None)],
            "messages, empty": [start(), begin(0, TEXT), stop(0), end("")],
            "chat": [chunk({"content": "a"}, ""), chunk({"content": "b"}, ""), "[DONE]"],
            "gemini": [response({"text": "a"}, finish="FINISH_REASON_UNSPECIFIED")],
        }
        for words, events in cut.items():
            with self.subTest(words):
                stream = read(*events)
                self.assertEqual((stream.complete, stream.stop, stream.message), (False, "", {}))

    def test_usage_is_cumulative_and_null_replaces_nothing(self):
        stream = read(
            start(usage={"input_tokens": 8, "cache_read_input_tokens": 5, "output_tokens": 1}),
            end("end_turn", cache_read_input_tokens=None, output_tokens=7),
            end("end_turn", output_tokens=9),
            STOP,
        )
        expected = {"input_tokens": 8, "cache_read_input_tokens": 5, "output_tokens": 9}
        self.assertEqual(stream.usage, expected)
        self.assertEqual(stream.message["usage"], expected)

    def test_usage_is_found_where_moonshot_has_it(self):
        last = chunk({}, "stop")
        last["choices"][0]["usage"] = {"prompt_tokens": 3, "completion_tokens": 4}
        stream = read(chunk({"content": "a"}), last)
        self.assertEqual(stream.usage, {"prompt_tokens": 3, "completion_tokens": 4})
        self.assertEqual(stream.message["choices"][0].keys(), {"index", "message", "finish_reason"})

    def test_content_that_never_comes_is_null_and_empty_content_is_empty(self):
        first = {"tool_calls": [call(0, "{}", "a", "b")]}
        for words, deltas, content in (
            ("none", [first], None),
            ("null", [{"content": None, **first}], None),
            ("empty", [{"content": "", **first}], ""),
        ):
            with self.subTest(words):
                stream = read(*map(chunk, deltas), chunk({}, "tool_calls"))
                self.assertEqual(stream.message["choices"][0]["message"]["content"], content)

    def test_arguments_that_are_not_json(self):
        """Chat keeps the string, as the API does; Messages has no place for it, so the call is not whole."""
        half = '{"parcel": "PK'
        chat = read(chunk({"tool_calls": [call(0, half, "a", "b")]}), chunk({}, "tool_calls"))
        self.assertEqual(chat.parts[0]["arguments"], half)
        self.assertEqual(
            chat.message["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], half
        )
        for text in (half, "[]", "3", '{"a":1,"a":2}', '"text"'):
            with self.subTest(text):
                stream = answer(delta(0, "input_json_delta", partial_json=text), block=tool_use())
                self.assertTrue(stream.complete)
                self.assertEqual([finding.path for finding in stream.findings], ["content[0]"])
                self.assertEqual(
                    (stream.parts, stream.open_parts[0]["arguments"], stream.message), ([], text, {})
                )

    def test_an_input_that_comes_with_its_block_is_kept(self):
        stream = answer(block={**tool_use(), "input": {"parcel": "PK-1"}})
        self.assertEqual(stream.parts[0]["arguments"], {"parcel": "PK-1"})

    def test_blocks_of_unknown_kinds_are_kept(self):
        search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
        blocks = [
            ({"type": "fallback", "model": "x"}, [], {"type": "fallback", "model": "x"}),
            ({"type": "redacted_thinking", "data": "abc"}, [], {"type": "redacted_thinking", "data": "abc"}),
            (search, [delta(2, "input_json_delta", partial_json='{"q":1}')], {**search, "input": {"q": 1}}),
            (
                {"type": "compaction", "content": None},
                [delta(3, "compaction_delta", content="a"), delta(3, "compaction_delta", content="b")],
                {"type": "compaction", "content": "ab"},
            ),
        ]
        events = [start()]
        for index, (block, deltas, _) in enumerate(blocks):
            events += [begin(index, block), *deltas, stop(index)]
        stream = read(*events, end(), STOP)
        self.assertEqual(stream.findings, [])
        self.assertEqual(stream.message["content"], [expected for _, _, expected in blocks])
        kinds = ["other", "reasoning", "other", "other"]
        self.assertEqual([part["kind"] for part in stream.parts], kinds)
        self.assertEqual(stream.parts[1]["credential"], "abc")

    def test_a_signature_of_gemini_stays_on_its_own_part(self):
        signed = {"text": "", "thoughtSignature": SIGNATURE}
        stream = read(response({"text": "a"}), response({"text": "b"}), response(signed, finish="STOP"))
        self.assertEqual(stream.message["candidates"][0]["content"]["parts"], [{"text": "ab"}, signed])
        self.assertEqual((stream.join("text"), stream.parts[1]["credential"]), ("ab", SIGNATURE))
        apart = read(response({"text": "a", "thoughtSignature": "x"}), response({"text": "b"}, finish="STOP"))
        self.assertEqual(len(apart.message["candidates"][0]["content"]["parts"]), 2)

    def test_words_of_the_wire_inside_a_value_are_kept(self):
        arguments = {
            "index": 3,
            "finishReason": "FINISH_REASON_UNSPECIFIED",
            "text": "",
            "parts": [{"text": ""}],
        }
        stream = read(response({"functionCall": {"name": "f", "args": arguments}}, finish="STOP"))
        self.assertEqual(stream.parts[0]["arguments"], arguments)
        stream = answer(block={**tool_use(), "input": arguments})
        self.assertEqual(stream.parts[0]["arguments"], arguments)
        for events in (
            [chunk({"content": "FINISH_REASON_UNSPECIFIED"}), chunk({}, "stop")],
            [response({"text": "FINISH_REASON_UNSPECIFIED"}, finish="STOP")],
        ):
            self.assertEqual(read(*events).join("text"), "FINISH_REASON_UNSPECIFIED")

    def test_a_thinking_block_with_a_signature_alone_is_whole(self):
        stream = answer(delta(0, "signature_delta", signature=SIGNATURE), block=THINKING)
        self.assertEqual(stream.parts, [{"kind": "reasoning", "text": "", "credential": SIGNATURE}])

    def test_a_character_that_comes_as_two_surrogates_is_one(self):
        data = render_events(CHAT[:1]) + b"".join(
            b"data: " + json.dumps(chunk({"content": half})).encode() + b"\n\n"
            for half in ("\ud83d", "\ude80")
        )
        self.assertEqual(read_stream(data).join("text"), "🚀")

    def test_old_function_calls_and_refusals_are_kept(self):
        stream = read(
            chunk({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}),
            chunk({"function_call": {"arguments": '{"a"'}}),
            chunk({"function_call": {"arguments": ":1}"}}),
            chunk({}, "function_call"),
        )
        message = stream.message["choices"][0]["message"]
        self.assertEqual(message["function_call"], {"name": "f", "arguments": '{"a":1}'})
        self.assertEqual(stream.parts[0]["arguments"], {"a": 1})
        refused = read(chunk({"refusal": "I can"}), chunk({"refusal": "not."}), chunk({}, "stop"))
        self.assertEqual(refused.join("text"), "I cannot.")
        self.assertEqual(CHAT_REPLY["choices"][0]["finish_reason"], "tool_calls")
