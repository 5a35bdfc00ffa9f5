"""The bodies of the requests, and the check that the second goes on with the first."""

from __future__ import annotations

import copy
import json
import unittest

import checkpoint_demo
import run_handoff
from tests.support import THINKING, build_plan, message, text, tool_call

ROWS = checkpoint_demo.DEMO.source


def give_result(reply):
    """Return the message that gives the stock to the call in a reply."""
    content = checkpoint_demo.canonical_json(ROWS).decode()
    result = {"type": "tool_result", "tool_use_id": reply["content"][-1]["id"], "content": content}
    return {"role": "user", "content": [result]}


def reload(request):
    """Return a request as it reads from the bytes that are sent."""
    return checkpoint_demo.parse_json(run_handoff.encode_json(request))


class ToolRequestTest(unittest.TestCase):
    def test_request_1_is_what_the_specification_says(self):
        request = run_handoff.build_tool_request(build_plan())
        self.assertEqual(request["model"], "anthropic/claude-fable-5.2")
        self.assertEqual(request["max_tokens"], 4_096)
        self.assertEqual(request["output_config"], {"effort": "low"})
        self.assertEqual(request["tool_choice"], {"type": "auto"})
        self.assertEqual([tool["name"] for tool in request["tools"]], ["read_stock"])
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        self.assertEqual(request["tools"][0]["input_schema"], schema)
        self.assertEqual([turn["role"] for turn in request["messages"]], ["user"])

    def test_request_1_follows_the_plan(self):
        request = run_handoff.build_tool_request(build_plan(sender="local-model", max_tokens=7))
        self.assertEqual((request["model"], request["max_tokens"]), ("local-model", 7))


class ResultRequestTest(unittest.TestCase):
    CONTENTS = {
        "a bare call": [tool_call()],
        "thinking with an empty text": [THINKING, tool_call()],
        "text before the call": [THINKING, text("I will read it."), tool_call("toolu_other")],
        "an empty text block": [text(""), tool_call()],
        "redacted thinking": [{"type": "redacted_thinking", "data": "ZGVtbw=="}, tool_call()],
        "an unknown block and extra fields": [
            {"type": "new", "x": [None]},
            {**tool_call(), "caller": {"type": "direct"}},
        ],
        "text of every kind": [text("Stra\u00dfe \U0001f4e6 \ud83d \x00\x7f\u202e 'x'"), tool_call()],
        "numbers of every kind": [
            {"type": "new", "n": [0.1, 1e3, 10**30, -0.0, 0.30000000000000004]},
            tool_call(),
        ],
    }

    def test_request_2_goes_on_with_the_session(self):
        first = run_handoff.build_tool_request(build_plan())
        for name, content in self.CONTENTS.items():
            with self.subTest(name):
                reply = message(content, "tool_use")
                sent = json.loads(
                    run_handoff.encode_json(run_handoff.build_tool_result_request(first, reply, ROWS))
                )
                *earlier, turn, results = sent.pop("messages")
                kept = {**first}
                self.assertEqual(earlier, kept.pop("messages"))
                self.assertEqual(sent, kept)
                self.assertEqual(turn, {"role": "assistant", "content": content})
                self.assertEqual(results["role"], "user")
                self.assertEqual(results["content"][0]["type"], "tool_result")
                self.assertEqual(results["content"][0]["tool_use_id"], content[-1]["id"])
                self.assertEqual(json.loads(results["content"][0]["content"]), ROWS)

    def test_request_2_that_goes_on_has_no_changes(self):
        first = run_handoff.build_tool_request(build_plan())
        for name, content in self.CONTENTS.items():
            with self.subTest(name):
                reply = message(content, "tool_use")
                request = reload(run_handoff.build_tool_result_request(first, reply, ROWS))
                turn = {"role": "assistant", "content": content}
                later = [turn, give_result(reply)]
                self.assertEqual(run_handoff.find_session_changes(request, first, later, "messages"), [])

    def test_request_2_that_was_changed_is_found_out(self):
        def drop_thinking(request):
            request["messages"][1]["content"].pop(0)

        def swap_blocks(request):
            request["messages"][1]["content"].reverse()

        def change_system(request):
            request["system"] += " Now."

        def change_tool(request):
            request["tools"][0]["description"] = "Read it."

        def change_question(request):
            request["messages"][0]["content"] = "Go."

        def change_result(request):
            request["messages"][2]["content"][0]["content"] = "[]"

        def change_id(request):
            request["messages"][2]["content"][0]["tool_use_id"] = "toolu_other"

        def put_text_first(request):
            request["messages"][2]["content"].insert(0, text("Here it is."))

        def append(request):
            request["messages"].append({"role": "user", "content": "And?"})

        cases = {
            drop_thinking: "messages[1].content[0]",
            swap_blocks: "messages[1].content[0]",
            change_system: "system",
            change_tool: "tools[0].description",
            change_question: "messages[0].content",
            change_result: "messages[2].content[0].content",
            change_id: "messages[2].content[0].tool_use_id",
            put_text_first: "messages[2].content[0]",
            append: "messages[3]",
        }
        first = run_handoff.build_tool_request(build_plan())
        reply = message([THINKING, tool_call()], "tool_use")
        for change, place in cases.items():
            with self.subTest(change.__name__):
                request = copy.deepcopy(run_handoff.build_tool_result_request(first, reply, ROWS))
                change(request)
                turn = {"role": "assistant", "content": reply["content"]}
                later = [turn, give_result(reply)]
                changes = run_handoff.find_session_changes(reload(request), first, later, "messages")
                self.assertTrue(changes[0].path.startswith(place), changes)
