"""Each rule of refusal: a body that breaks it, and the nearest that does not."""

from __future__ import annotations

import unittest

from checkpoint_demo import RULES, find_refusals

USER = {"role": "user", "content": "go"}


def messages(*added, **fields):
    """Return a body of Messages."""
    return {"model": "claude-opus-5-5", "max_tokens": 9, "messages": [USER, *added], **fields}


def use(call_id="a", name="n", arguments=None):
    """Return a tool_use block."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": {} if arguments is None else arguments}


def result(call_id="a"):
    """Return a tool_result block."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": "r"}


def assistant(*blocks):
    """Return an assistant's message of Messages."""
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks):
    """Return a user's message of Messages."""
    return {"role": "user", "content": list(blocks)}


def text(words):
    """Return a text block."""
    return {"type": "text", "text": words}


def chat(*added, model="gpt-5.5", **fields):
    """Return a body of Chat Completions."""
    return {"model": model, "messages": [USER, *added], **fields}


def asks(call_id="a", **fields):
    """Return an assistant's message of Chat Completions with one call."""
    call = {
        "id": call_id,
        "type": "function",
        "function": {"name": fields.pop("name", "n"), "arguments": "{}"},
    }
    return {"role": "assistant", "content": "", "tool_calls": [call], **fields}


def tells(call_id="a"):
    """Return a tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": "r"}


def gemini(*added, **fields):
    """Return a body of Gemini."""
    return {"contents": [{"role": "user", "parts": [{"text": "go"}]}, *added], **fields}


def model(*parts):
    """Return a content of Gemini's model."""
    return {"role": "model", "parts": list(parts)}


def responds(*parts):
    """Return a content of Gemini's user."""
    return {"role": "user", "parts": list(parts)}


CALL = {"functionCall": {"name": "n", "args": {}}, "thoughtSignature": "s"}
RESPONSE = {"functionResponse": {"name": "n", "response": {"output": "r"}}}
THINKING = {"type": "thinking", "thinking": "t", "signature": "s"}


def schema(part):
    """Return a tool of Chat Completions whose parameters have one property."""
    parameters = {"type": "object", "properties": {"x": part}}
    return [{"type": "function", "function": {"name": "n", "parameters": parameters}}]


# The API, the rule in words, and: (a body that breaks it, one that does not).
RULE_CASES = {
    ("messages", "Input should be 'user'"): (messages({"role": "bot", "content": "x"}), messages(USER)),
    ("messages", "at least one message"): ({"messages": []}, messages()),
    ("messages", "non-empty content"): (messages(user()), messages(user(text("a")))),
    ("messages", "blocks must be non-empty"): (messages(user(text(""))), messages(user(text("a")))),
    ("messages", "non-whitespace"): (messages(user(text(" \n"))), messages(user(text(" a")))),
    ("messages", "without `tool_result`"): (
        messages(assistant(use()), USER),
        messages(assistant(use()), user(result())),
    ),
    ("messages", "text before"): (
        messages(assistant(use()), user(text("x"), result())),
        messages(assistant(use()), user(result(), text("x"))),
    ),
    ("messages", "unexpected `tool_use_id`"): (
        messages(assistant(use()), user(result(), result("b"))),
        messages(assistant(use(), use("b")), user(result("b"), result())),
    ),
    ("messages", "single result"): (
        messages(assistant(use()), user(result(), result())),
        messages(assistant(use()), user(result())),
    ),
    ("messages", "must be unique: a"): (
        messages(assistant(use()), user(result()), assistant(use()), user(result())),
        messages(assistant(use()), user(result()), assistant(use("b")), user(result("b"))),
    ),
    ("messages", "[a-zA-Z0-9_-]+$"): (
        messages(assistant(use("a.b")), user(result("a.b"))),
        messages(assistant(use("a-b")), user(result("a-b"))),
    ),
    ("messages", "tool name n.m"): (
        messages(assistant(use(name="n.m")), user(result())),
        messages(assistant(use(name="n-m")), user(result())),
    ),
    ("messages", "valid dictionary"): (
        messages(assistant(use(arguments="x")), user(result())),
        messages(assistant(use(arguments={"x": 1})), user(result())),
    ),
    ("messages", "names must be unique"): (
        messages(tools=[{"name": "n", "input_schema": {"type": "object"}}] * 2),
        messages(tools=[{"name": "n", "input_schema": {"type": "object"}}]),
    ),
    ("messages", "Input should be an object"): (
        messages(tools=[{"name": "n", "input_schema": "x"}]),
        messages(tools=[{"name": "n", "input_schema": {"type": "object"}}]),
    ),
    ("messages", "signature: Field required"): (
        messages(assistant({"type": "thinking", "thinking": "t"}), USER),
        messages(assistant(THINKING), USER),
    ),
    ("messages", "Invalid `signature`"): (
        messages(assistant({**THINKING, "signature": "foreign"}), USER),
        messages(assistant(THINKING), USER),
    ),
    ("messages", "assistant message prefill"): (
        messages(assistant(text("a"))),
        {**messages(assistant(text("a"))), "model": "claude-sonnet-4-5-20250929"},
    ),
    ("messages", "trailing whitespace"): (
        {**messages(assistant(text("a "))), "model": "claude-3-5-haiku-20241022"},
        {**messages(assistant(text("a"))), "model": "claude-3-5-haiku-20241022"},
    ),
    ("messages", "the fields name, input, id of a tool_use"): (
        messages(assistant({**use(), "id": 5}), USER),
        messages(assistant({"type": "hologram", "id": 5}), USER),
    ),
    ("chat", "unknown role"): (chat({"role": "bot", "content": "x"}), chat(USER)),
    ("chat", "must not be empty"): ({"messages": [], "model": "m"}, chat()),
    ("chat", "text content is empty"): (
        chat({"role": "user", "content": [text("")]}, model="kimi-k3"),
        chat({"role": "user", "content": [text("")]}),
    ),
    ("chat", "must be followed by tool messages"): (chat(asks(), USER), chat(asks(), tells())),
    ("chat", "must be a response to a preceeding"): (chat(tells()), chat(asks(), tells())),
    ("chat", "1 to 40 characters"): (
        chat(asks("x" * 41), tells("x" * 41)),
        chat(asks("x" * 40), tells("x" * 40)),
    ),
    ("chat", "tool name n.m"): (chat(asks(name="n.m"), tells()), chat(asks(name="n_m"), tells())),
    ("chat", "tool names must be unique"): (chat(tools=schema({}) * 2), chat(tools=schema({}))),
    ("chat", "parameters: expected an object"): (
        chat(tools=[{"type": "function", "function": {"name": "n", "parameters": []}}]),
        chat(tools=[{"type": "function", "function": {"name": "n"}}]),
    ),
    ("chat", "properties.x'"): (chat(tools=schema({}), model="kimi-k3"), chat(tools=schema({}))),
    ("chat", "reasoning_content is missing"): (
        chat(asks(), tells(), model="kimi-k2.5"),
        chat(asks(), tells(), model="kimi-k2.5", thinking={"type": "disabled"}),
    ),
    ("chat", "must be passed back"): (
        chat(asks(), tells(), asks(reasoning_content="x"), tells(), model="deepseek-v4"),
        chat(asks(), tells(), model="deepseek-v4"),
    ),
    ("gemini", "valid role"): (gemini({"role": "bot", "parts": [{"text": "x"}]}), gemini()),
    ("gemini", "contents must not be empty"): ({"contents": []}, gemini()),
    ("gemini", "parts must not be empty"): (
        gemini(model(), responds({"text": "x"})),
        gemini(responds({"text": "x"})),
    ),
    ("gemini", "number of function response parts"): (
        gemini(model(CALL, CALL), responds(RESPONSE)),
        gemini(model(CALL, CALL), responds(RESPONSE, RESPONSE)),
    ),
    ("gemini", "response turn comes immediately"): (
        gemini(responds(RESPONSE)),
        gemini(model(CALL), responds(RESPONSE)),
    ),
    ("gemini", "call turn comes immediately"): (
        gemini(model({"text": "x"}), model(CALL), responds(RESPONSE)),
        gemini(model({"text": "x"}, CALL), responds(RESPONSE)),
    ),
    ("gemini", "tool name n m"): (
        gemini(tools=[{"functionDeclarations": [{"name": "n m"}]}]),
        gemini(tools=[{"functionDeclarations": [{"name": "n.m"}]}]),
    ),
    ("gemini", "args"): (
        gemini(
            model({"functionCall": {"name": "n", "args": []}, "thoughtSignature": "s"}), responds(RESPONSE)
        ),
        gemini(model({"functionCall": {"name": "n"}, "thoughtSignature": "s"}), responds(RESPONSE)),
    ),
    ("gemini", "Duplicate function"): (
        gemini(tools=[{"functionDeclarations": [{"name": "n"}, {"name": "n"}]}]),
        gemini(tools=[{"functionDeclarations": [{"name": "n"}, {"name": "m"}]}]),
    ),
    ("gemini", "parameters: expected an object"): (
        gemini(tools=[{"functionDeclarations": [{"name": "n", "parameters": "x"}]}]),
        gemini(tools=[{"functionDeclarations": [{"name": "n", "parameters": {"type": "OBJECT"}}]}]),
    ),
    ("gemini", "missing a thought_signature"): (
        gemini(model({"functionCall": {"name": "n"}}), responds(RESPONSE)),
        gemini(model({"functionCall": {"name": "n"}}), responds(RESPONSE), responds({"text": "next"})),
    ),
}


class RefusalsTest(unittest.TestCase):
    def test_rule_that_is_broken_is_found_and_the_nearest_body_is_taken(self):
        for (api, words), (broken, good) in RULE_CASES.items():
            with self.subTest(api, rule=words):
                self.assertIn(words, "\n".join(map(str, find_refusals(api, broken, {"foreign"}))))
                self.assertEqual(find_refusals(api, good, {"foreign"}), [])

    def test_every_rule_has_a_case(self):
        self.assertGreaterEqual(
            len(RULE_CASES), len(RULES) - 2
        )  # a double result has the words of a stray one


if __name__ == "__main__":
    unittest.main()
