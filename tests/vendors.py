"""Three vendors as the tests' own servers play them: what they reply, and what they must have been asked.

It is written from the vendors' documents. Nothing here reads or writes with checkpoint_demo.
"""

from __future__ import annotations

import copy
import json

from tests import support
from tests.conditions import ConditionsTestCase
from tests.support import ANSWER, STOCK, handoff, respond

ROWS_TEXT = json.dumps(STOCK, sort_keys=True, separators=(",", ":"))  # the result of the demo's tool
KEY_HEADERS = ("x-api-key", "authorization", "x-goog-api-key")


class Messages:
    """Anthropic's Messages."""

    name, model, other_model = "messages", "anthropic/claude-fable-5.2", "anthropic/claude-opus-5.5"
    path, listed = "/v1/messages", "messages"
    key_header, key_prefix = "x-api-key", ""
    headers = {"anthropic-version": "2023-06-01"}
    fields = {"model", "max_tokens", "output_config", "system", "tools", "tool_choice", "messages"}
    usage_field, model_field = "usage", "model"
    called, ended = support.CALLED, support.ENDED
    stops = {"end": "end_turn", "call": "tool_use", "cut": "max_tokens"}

    def answer(self, words, usage=(457, 67), **fields):
        """Return a finished answer of one text."""
        return support.message([support.text(words)], usage=usage, model=self.other_model, **fields)

    def call(self, name="read_stock", arguments=None, call_id="toolu_invented"):
        """Return a reply that is one call of a tool."""
        return support.message([support.tool_call(call_id, name, arguments)], "tool_use")

    def error(self, words="Not now.", kind="overloaded_error", status=529):
        """Return the body of an error."""
        return {"type": "error", "error": {"type": kind, "message": words}, "request_id": "req_invented"}

    def stop(self, reply, reason):
        """Return a reply that stops with another reason."""
        return {**reply, "stop_reason": reason}

    def continue_list(self, reply, result):
        """Return what must follow the first request's messages in the second one."""
        (call,) = [block for block in reply["content"] if block["type"] == "tool_use"]
        block = {"type": "tool_result", "tool_use_id": call["id"], "content": result}
        return [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": [block]}]

    def read_first(self, body):
        """Return (system text, the user's text, {tool: (description, schema)}, token limit)."""
        (turn,) = body["messages"]
        tools = {tool["name"]: (tool["description"], tool["input_schema"]) for tool in body["tools"]}
        return body["system"], turn["content"], tools, body["max_tokens"]

    def read_texts(self, body):
        """Return every text of a request that holds nothing but texts, with its role."""
        turns = [(turn["role"], turn["content"]) for turn in body["messages"]]
        return [("system", body["system"]), *turns] if "system" in body else turns


class Chat:
    """Chat Completions."""

    name, model, other_model = "chat", "gpt-5.5", "kimi-k3"
    path, listed = "/v1/chat/completions", "messages"
    key_header, key_prefix = "authorization", "Bearer "
    headers = {}
    fields = {"model", "max_completion_tokens", "tools", "messages"}
    usage_field, model_field = "usage", "model"
    stops = {"end": "stop", "call": "tool_calls", "cut": "length"}

    def reply(self, message, stop="stop", usage=(467, 27), model="gpt-5.5", **fields):
        """Return a whole reply; usage is (tokens in, tokens out)."""
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": stop}
        counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
        return {
            "id": "chatcmpl-invented",
            "object": "chat.completion",
            "created": 1_796_083_200,
            "model": model,
            "choices": [choice],
            "usage": counts,
            **fields,
        }

    def answer(self, words, usage=(457, 67), **fields):
        return self.reply({"content": words}, usage=usage, model=self.other_model, **fields)

    def call(self, name="read_stock", arguments=None, call_id="call_invented"):
        function = {"name": name, "arguments": json.dumps(arguments or {}, separators=(",", ":"))}
        tool_call = {"id": call_id, "type": "function", "function": function}
        return self.reply({"content": None, "tool_calls": [tool_call]}, "tool_calls")

    def error(self, words="Not now.", kind="overloaded_error", status=529):
        return {"error": {"message": words, "type": kind, "param": None, "code": None}}

    def stop(self, reply, reason):
        return {**reply, "choices": [{**reply["choices"][0], "finish_reason": reason}]}

    def continue_list(self, reply, result):
        message = reply["choices"][0]["message"]
        (call,) = message["tool_calls"]
        own = {
            name: message[name]
            for name in ("role", "content", "reasoning_content", "tool_calls")
            if name in message
        }
        return [own, {"role": "tool", "tool_call_id": call["id"], "content": result}]

    def read_first(self, body):
        system, turn = body["messages"]
        functions = [tool["function"] for tool in body["tools"] if tool["type"] == "function"]
        tools = {tool["name"]: (tool["description"], tool["parameters"]) for tool in functions}
        assert (system["role"], turn["role"]) == ("system", "user"), body
        return system["content"], turn["content"], tools, body["max_completion_tokens"]

    def read_texts(self, body):
        return [(turn["role"], turn["content"]) for turn in body["messages"]]


class Gemini:
    """Gemini's generateContent."""

    name, model, other_model = "gemini", "gemini-3.5-flash", "gemini-3.5-pro"
    path, listed = "/v1beta/models/{model}:generateContent", "contents"
    key_header, key_prefix = "x-goog-api-key", ""
    headers = {}
    fields = {"systemInstruction", "generationConfig", "tools", "contents"}  # its model is in the URL
    usage_field, model_field = "usageMetadata", "modelVersion"
    stops = {"end": "STOP", "call": "STOP", "cut": "MAX_TOKENS"}

    def reply(self, parts, stop="STOP", usage=(467, 27), model="gemini-3.5-flash", **fields):
        """Return a whole reply; usage is (tokens in, tokens out)."""
        candidate = {"content": {"parts": parts, "role": "model"}, "finishReason": stop, "index": 0}
        counts = {"promptTokenCount": usage[0], "candidatesTokenCount": usage[1]}
        return {
            "candidates": [candidate],
            "usageMetadata": counts,
            "modelVersion": model,
            "responseId": "invented",
            **fields,
        }

    def answer(self, words, usage=(457, 67), **fields):
        return self.reply([{"text": words}], usage=usage, model=self.other_model, **fields)

    def call(self, name="read_stock", arguments=None, call_id="call_7100001"):
        function = {"name": name, "args": arguments or {}, "id": call_id}
        return self.reply([{"functionCall": function, "thoughtSignature": "c2lnbmVk"}])

    def error(self, words="Not now.", kind="UNAVAILABLE", status=529):
        return {"error": {"code": status, "message": words, "status": kind}}

    def stop(self, reply, reason):
        return {**reply, "candidates": [{**reply["candidates"][0], "finishReason": reason}]}

    def continue_list(self, reply, result):
        content = reply["candidates"][0]["content"]
        (call,) = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        answer = {"name": call["name"], "response": {"output": result}}
        answer.update({"id": call["id"]} if "id" in call else {})
        return [content, {"role": "user", "parts": [{"functionResponse": answer}]}]

    def read_first(self, body):
        (turn,) = body["contents"]
        (declared,) = body["tools"]
        (system,), (asked,) = body["systemInstruction"]["parts"], turn["parts"]
        tools = {
            tool["name"]: (tool["description"], tool["parametersJsonSchema"])
            for tool in declared["functionDeclarations"]
        }
        assert turn["role"] == "user", body
        return system["text"], asked["text"], tools, body["generationConfig"]["maxOutputTokens"]

    def read_texts(self, body):
        system = [{"role": "system", **body["systemInstruction"]}] if "systemInstruction" in body else []
        turns = [*system, *body["contents"]]
        return [(turn["role"], "".join(part["text"] for part in turn["parts"])) for turn in turns]


MESSAGES, CHAT, GEMINI = Messages(), Chat(), Gemini()
Chat.called, Chat.ended = CHAT.call(), CHAT.answer("The stock was read.", (578, 235))
Gemini.called, Gemini.ended = GEMINI.call(), GEMINI.answer("The stock was read.", (578, 235))
VENDORS = {vendor.name: vendor for vendor in (MESSAGES, CHAT, GEMINI)}
for each in (Messages, Chat, Gemini):  # of a run whose sender and receiver are one vendor's
    named = ("--sender-api", each.name, "--sender", each.model)
    each.options = (*named, "--receiver-api", each.name, "--receiver", each.other_model)
PAIRS = [(one, other) for one in VENDORS.values() for other in VENDORS.values()]

# The first replies that a vendor's models are known to give, each of which must go back as it came.
KIMI_CALL = {"index": 0, "id": "read_stock_0", "type": "function"}
KIMI_CALL["function"] = {"name": "read_stock", "arguments": "{}"}
CALLS = {
    "messages": {
        "thinking and a call": MESSAGES.called,
        "a text and a call": support.message([support.text("I look."), support.tool_call()], "tool_use"),
        "a block of no known kind": support.message(
            [{"type": "fallback", "more": [1.50, None]}, support.tool_call()], "tool_use"
        ),
        "a call with its caller": support.message(
            [{**support.tool_call(), "caller": {"type": "direct"}}], "tool_use"
        ),
    },
    "chat": {
        "a call alone": CHAT.called,
        "empty text, reasoning, an index": CHAT.reply(
            {"content": "", "reasoning_content": "\u6211 look.\n", "tool_calls": [KIMI_CALL]}, "tool_calls"
        ),
        "reasoning that is empty": CHAT.reply(
            {"content": "", "reasoning_content": "", "tool_calls": [KIMI_CALL]}, "tool_calls"
        ),
        "no content at all": CHAT.reply({"tool_calls": [KIMI_CALL]}, "tool_calls"),
        "text beside the call": CHAT.reply({"content": " I look. ", "tool_calls": [KIMI_CALL]}, "tool_calls"),
        "arguments with a blank": CHAT.reply(
            {
                "content": None,
                "tool_calls": [{**KIMI_CALL, "function": {"name": "read_stock", "arguments": "{ }"}}],
            },
            "tool_calls",
        ),
        "arguments that are empty": CHAT.reply(
            {
                "content": None,
                "tool_calls": [{**KIMI_CALL, "function": {"name": "read_stock", "arguments": ""}}],
            },
            "tool_calls",
        ),
        "an id of odd characters": CHAT.call(call_id="functions.read_stock:0"),
    },
    "gemini": {
        "a signed call": GEMINI.called,
        "a thought, then a call": GEMINI.reply(
            [{"text": "I look.\n\n\n", "thought": True}, *GEMINI.called["candidates"][0]["content"]["parts"]]
        ),
        "a call without an id": GEMINI.reply([{"functionCall": {"name": "read_stock", "args": {}}}]),
        "a call without args": GEMINI.reply(
            [{"functionCall": {"name": "read_stock"}, "thoughtSignature": "c2ln"}]
        ),
        "a signed text, then a call": GEMINI.reply(
            [{"text": "I look.", "thoughtSignature": "c2lnLTE="}, {"functionCall": {"name": "read_stock"}}]
        ),
    },
}


def find_request_faults(vendor, received, model):
    """Return what a vendor would refuse in the head of a request, apart from its key."""
    faults, headers = [], received.headers
    line = f"POST {vendor.path.replace('{model}', model)} HTTP/1.1"
    if received.line != line:
        faults.append(f"observed the line {received.line!r}, expected {line!r}")
    if not headers.get(vendor.key_header, "").startswith(vendor.key_prefix):
        faults.append(f"observed no key in {vendor.key_header}")
    strange = [name for name in KEY_HEADERS if name in headers and name != vendor.key_header]
    faults += [f"observed the header {name} of another vendor" for name in strange]
    if headers.get("content-type") != "application/json":
        faults.append("observed another content type")
    faults += [
        f"observed another {name}" for name, value in vendor.headers.items() if headers.get(name) != value
    ]
    body = json.loads(received.body)
    faults += [f"observed the field {name}" for name in sorted(set(body) - vendor.fields)]
    if "model" in vendor.fields and body.get("model") != model:
        faults.append(f"observed the model {body.get('model')!r}, expected {model!r}")
    return faults


def read_key(vendor, received):
    """Return the key that a request came with."""
    return received.headers.get(vendor.key_header, "")[len(vendor.key_prefix) :]


def continue_body(vendor, first, reply, result=ROWS_TEXT):
    """Return the body that goes on after a first request and its reply."""
    body = copy.deepcopy(first)
    body[vendor.listed] += vendor.continue_list(reply, result)
    return body


def same(value):
    """Return a text that is equal for the same JSON value alone: 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


class VendorTestCase(ConditionsTestCase):
    """A test of runs at vendors of each API."""

    def url(self, vendor, server):
        """Return the endpoint of a server that plays a vendor, as a command line names it."""
        return f"http://127.0.0.1:{server.port}{vendor.path}"

    def live_at(self, vendor, server, *options, out="run", **settings):
        """Do a live run whose sender and receiver are both at one server."""
        return self.live(self.url(vendor, server), *vendor.options, *options, out=out, **settings)

    def live_between(self, sender, receiver, first, second, *options, out="run", **settings):
        """Do a live run from a sender at one server to a receiver at another."""
        named = ["--sender-api", sender.name, "--sender", sender.model]
        named += ["--receiver-api", receiver.name, "--receiver", receiver.other_model]
        named += ["--receiver-endpoint", self.url(receiver, second)]
        return self.live(self.url(sender, first), *named, *options, out=out, **settings)

    def receive(self, vendor, server, *options, out="run", **settings):
        """Do a live run of one request at a receiver's server: --receiver-only, or --session FILE."""
        named = ["--receiver-api", vendor.name, "--receiver", vendor.other_model]
        named += ["--receiver-endpoint", self.url(vendor, server)]
        return handoff("--live", *named, "--out", self.path(out), *options, **settings)

    def serve_sender(self, vendor, called=None):
        """Start a server that plays a sender."""
        return self.serve(respond(called or vendor.called), respond(vendor.ended))

    def serve_receiver(self, vendor, words=ANSWER):
        """Start a server that plays a receiver."""
        return self.serve(respond(vendor.answer(words)))
