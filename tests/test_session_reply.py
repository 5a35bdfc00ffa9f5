"""Replies of three APIs: whole, finished, their answer, and what they would repeat."""

from __future__ import annotations

import unittest

from checkpoint_demo import find_answer, find_reply_findings, find_step_findings, judge_reply, read_session
from tests.session_support import read_case


def claude(*content, stop="end_turn"):
    """Return a reply of Messages."""
    return {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": list(content),
        "stop_reason": stop,
    }


def chat(content="", stop="stop", **fields):
    """Return a reply of Chat Completions."""
    message = {"role": "assistant", "content": content, **fields}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": stop}]}


def gemini(*parts, stop="STOP"):
    """Return a reply of Gemini."""
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": stop}]}


def call(name="read", arguments="{}", call_id="c"):
    """Return a call of Chat Completions."""
    return [{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]


# A reply, and the words of a finding ("" where its answer is [1]).
ANSWERS = {
    "claude": (claude({"type": "text", "text": "[1]"}), ""),
    "claude with thinking": (
        claude({"type": "thinking", "thinking": "2"}, {"type": "text", "text": "[1]"}),
        "",
    ),
    "claude cut": (claude({"type": "text", "text": "[1]"}, stop="max_tokens"), "cut off by the token limit"),
    "chat": (chat("[1]"), ""),
    "chat with reasoning": (chat("[1]", reasoning_content="2"), ""),
    "chat in parts": (chat([{"type": "text", "text": "["}, {"type": "text", "text": "1]"}]), ""),
    "chat cut": (chat("[1]", stop="length"), "choices[0].finish_reason"),
    "chat filtered": (chat("[1]", stop="content_filter"), "the model refused"),
    "chat that refuses": (chat("[1]", refusal=" "), "the model refused"),
    "chat with a call": (chat("[1]", tool_calls=call()), "expected no tool call"),
    "chat with an old call": (
        chat("[1]", function_call={"name": "n", "arguments": ""}),
        "expected no tool call",
    ),
    "chat with content that is a number": (chat(5), "choices[0].message.content"),
    "chat without a message": ({"choices": [{}]}, "choices[0].message: observed nothing"),
    "chat with two choices": ({"choices": chat("[1]")["choices"] * 2}, "expected a list of one object"),
    "chat with no choice": ({"choices": []}, "choices:"),
    "gemini": (gemini({"text": "2", "thought": True}, {"text": "[1]", "thoughtSignature": "s"}), ""),
    "gemini in parts": (gemini({"text": "["}, {"text": "1]"}), ""),
    "gemini cut": (gemini({"text": "[1]"}, stop="MAX_TOKENS"), "candidates[0].finishReason"),
    "gemini without a reason": (
        {"candidates": [{"content": {"role": "model", "parts": []}}]},
        "observed nothing",
    ),
    "gemini with a call": (gemini({"text": "[1]"}, {"functionCall": {"name": "n"}}), "expected no tool call"),
    "gemini with parts that are a string": (
        {"candidates": [{"content": {"role": "model", "parts": "x"}, "finishReason": "STOP"}]},
        "candidates[0].content.parts",
    ),
    "gemini blocked": ({"promptFeedback": {"blockReason": "SAFETY"}}, "SAFETY"),
    "prose": (chat("The answer is 1."), "the answer, line 1"),
    "an error of chat": ({"error": {"type": "invalid_request_error", "message": "no"}}, "observed an error"),
    "an error of one word": ({"error": "overloaded"}, 'an error (error: the string "overloaded")'),
    "an error of gemini": (
        {"error": {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}},
        "INVALID_ARGUMENT",
    ),
    "null": (None, "expected a message"),
}
# A reply, and the words of a finding ("" where it is the one call of read).
CALLS = {
    "chat": (chat(stop="tool_calls", tool_calls=call()), ""),
    "chat with empty arguments": (chat(stop="tool_calls", tool_calls=call(arguments="")), ""),
    "chat with arguments": (
        chat(stop="tool_calls", tool_calls=call(arguments='{"a":1}')),
        "function.arguments",
    ),
    "chat with another tool": (
        chat(stop="tool_calls", tool_calls=call("write")),
        'expected the string "read"',
    ),
    "chat with two calls": (chat(stop="tool_calls", tool_calls=call() * 2), "exactly one call"),
    "chat without an id": (chat(stop="tool_calls", tool_calls=call(call_id="")), "expected a tool call id"),
    "chat without a call": (chat("[1]", stop="tool_calls"), "observed no tool call"),
    "gemini": (gemini({"functionCall": {"name": "read", "args": {}}}), ""),
    "gemini with an id": (gemini({"functionCall": {"name": "read", "args": {}, "id": "x"}}), ""),
    "gemini with arguments": (gemini({"functionCall": {"name": "read", "args": {"a": 1}}}), "args.a"),
    "gemini without a call": (gemini({"text": "x"}), "observed no tool call"),
}
# A reply in view of the session of case 001, and the words of a finding ("" where it is accepted).
VERDICTS = {
    "an answer": (chat("21.40 EUR"), ""),
    "a new call": (
        chat(stop="tool_calls", tool_calls=call("quote_fee", '{"route":"N-14","grams":1850}')),
        "",
    ),
    "a repeated call": (
        chat(stop="tool_calls", tool_calls=call("find_route", '{"destination":"Porto","origin":"Lund"}')),
        "repeats find_route-1",
    ),
    "a stop without a call": (chat(stop="tool_calls"), "or a tool call"),
    "a reason that is empty": (chat("x", stop=""), "expected the end of a turn"),
    "a reason that is a list": (chat("x", stop=["stop"]), "expected the end of a turn"),
    "a refusal": (claude(stop="refusal"), "the model refused"),
    "a refusal of chat": (chat(None, refusal="no"), "message.refusal"),
    "a refusal that is empty": (chat("x", refusal=None), ""),
    "a pause": (claude(stop="pause_turn"), "paused"),
    "a call without an id": (
        claude({"type": "tool_use", "name": "weigh_parcel", "input": {}}, stop="tool_use"),
        "id",
    ),
}


class ReplyTest(unittest.TestCase):
    def test_answer_is_taken_out_or_refused(self):
        for phrase, (reply, words) in ANSWERS.items():
            with self.subTest(phrase):
                findings, answer = find_answer(reply)
                self.assertIn(words, "\n".join(map(str, findings)))
                self.assertEqual((bool(findings), answer), (bool(words), None if words else [1]))

    def test_call_fits_its_step_or_not(self):
        for phrase, (reply, words) in CALLS.items():
            with self.subTest(phrase):
                findings = find_reply_findings(reply) or find_step_findings(reply, "read")
                self.assertIn(words, "\n".join(map(str, findings)))
                self.assertEqual(bool(findings), bool(words))

    def test_reply_is_judged_in_view_of_a_session(self):
        session = read_session(read_case("001-plain-anthropic.session.json"), "messages")
        for phrase, (reply, words) in VERDICTS.items():
            with self.subTest(phrase):
                turn, findings = judge_reply(session, reply)
                self.assertIn(words, "\n".join(map(str, findings)))
                self.assertEqual((bool(findings), turn["role"]), (bool(words), "assistant"))

    def test_numbers_are_compared_by_value(self):
        session = read_session(read_case("031-open-call-anthropic.session.json"), "messages")
        for grams, found in {
            "1850": 1,
            "1850.0": 1,
            "1.85e3": 1,
            "1850.5": 0,
            "true": 0,
            '"1850"': 0,
        }.items():
            arguments = f'{{"route":"N-14","grams":{grams}}}'
            with self.subTest(grams):
                _, findings = judge_reply(
                    session, chat(stop="tool_calls", tool_calls=call("quote_fee", arguments))
                )
                self.assertEqual(len(findings), found)

    def test_bare_list_does_not_say_which_tools_there_are(self):
        record = [{"role": "user", "content": "go"}]
        reply = chat(stop="tool_calls", tool_calls=call())
        self.assertEqual(judge_reply(read_session(record, "chat"), reply)[1], [])
        self.assertTrue(judge_reply(read_session({"messages": record}, "chat"), reply)[1])

    def test_reply_without_a_message_has_no_turn(self):
        session = read_session(read_case("001-plain-anthropic.session.json"), "messages")
        for reply in (None, [], {}, {"choices": []}, {"error": {"message": "x"}}, 5):
            with self.subTest(reply=reply):
                turn, findings = judge_reply(session, reply)
                self.assertIsNone(turn)
                self.assertTrue(findings)


if __name__ == "__main__":
    unittest.main()
