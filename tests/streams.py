"""Streams of the tests: whole ones of each API, and how their bytes are made."""

from __future__ import annotations

import json

SIGNATURE = "aW52ZW50ZWQgc2lnbmF0dXJl"


def render_events(events, end="\n", named=True):
    """Return events as server-sent events; those with a type are named for it, as Anthropic's are."""
    data = b""
    for event in events:
        text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        if named and isinstance(event, dict) and isinstance(event.get("type"), str):
            data += f"event: {event['type']}{end}".encode()
        data += f"data: {text}{end}{end}".encode()
    return data


def start(**fields):
    message = {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-4-5",
        "content": [],
    }
    usage = {"input_tokens": 812, "output_tokens": 1}
    message = {**message, "stop_reason": None, "stop_sequence": None, "usage": usage, **fields}
    return {"type": "message_start", "message": message}


def begin(index, block):
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index, kind, **fields):
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def stop(index):
    return {"type": "content_block_stop", "index": index}


def end(reason="end_turn", **usage):
    stops = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": stops, "usage": {"output_tokens": 90, **usage}}


STOP = {"type": "message_stop"}
PING = {"type": "ping"}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
TEXT = {"type": "text", "text": ""}
THINKING = {"type": "thinking", "thinking": "", "signature": ""}


def tool_use(call_id="toolu_01", name="weigh_parcel"):
    return {"type": "tool_use", "id": call_id, "name": name, "input": {}}


MESSAGES = [
    start(),
    PING,
    begin(0, THINKING),
    delta(0, "thinking_delta", thinking="Wägen, "),
    delta(0, "thinking_delta", thinking="dann 🚀."),
    delta(0, "signature_delta", signature=SIGNATURE),
    stop(0),
    begin(1, TEXT),
    delta(1, "text_delta", text="Größe "),
    delta(1, "text_delta", text="“zwei” 🚀"),
    delta(1, "citations_delta", citation={"type": "char_location", "cited_text": "zwei"}),
    stop(1),
    begin(2, tool_use()),
    delta(2, "input_json_delta", partial_json=""),
    delta(2, "input_json_delta", partial_json='{"parcel": "PK'),
    delta(2, "input_json_delta", partial_json='-88"}'),
    stop(2),
    begin(3, tool_use("toolu_02", "list_all")),
    stop(3),
    end("tool_use", input_tokens=None),
    STOP,
]
MESSAGES_REPLY = {
    "id": "msg_01",
    "type": "message",
    "role": "assistant",
    "model": "claude-haiku-4-5",
    "content": [
        {"type": "thinking", "thinking": "Wägen, dann 🚀.", "signature": SIGNATURE},
        {
            "type": "text",
            "text": "Größe “zwei” 🚀",
            "citations": [{"type": "char_location", "cited_text": "zwei"}],
        },
        {"type": "tool_use", "id": "toolu_01", "name": "weigh_parcel", "input": {"parcel": "PK-88"}},
        {"type": "tool_use", "id": "toolu_02", "name": "list_all", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 812, "output_tokens": 90},
}


def chunk(delta=None, finish=None, index=0, **fields):
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1796000000, "model": "kimi-k3"}
    return {**head, "choices": [choice], **fields}


def call(index, arguments="", call_id=None, name=None):
    """Return a piece of a call; with an id and a name, its first one."""
    if call_id is None:
        return {"index": index, "function": {"arguments": arguments}}
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": call_id, "type": "function", "function": function}


CHAT = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "Wägen, "}),
    chunk({"reasoning_content": "dann 🚀."}),
    chunk({"content": "Größe "}),
    chunk({"content": "“zwei” 🚀"}),
    chunk({"tool_calls": [call(0, "", "weigh_parcel_0", "weigh_parcel")]}),
    chunk({"tool_calls": [call(0, '{"parcel":"PK')]}),
    chunk({"tool_calls": [call(1, "", "list_all_1", "list_all"), call(0, '-88"}')]}),
    chunk({}, "tool_calls"),
    {**chunk(), "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 34}},
    "[DONE]",
]
CHAT_REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1796000000,
    "model": "kimi-k3",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Größe “zwei” 🚀",
                "reasoning_content": "Wägen, dann 🚀.",
                "tool_calls": [
                    {
                        "id": "weigh_parcel_0",
                        "type": "function",
                        "function": {"name": "weigh_parcel", "arguments": '{"parcel":"PK-88"}'},
                    },
                    {
                        "id": "list_all_1",
                        "type": "function",
                        "function": {"name": "list_all", "arguments": ""},
                    },
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": {"prompt_tokens": 12, "completion_tokens": 34},
}


def response(*parts, finish=None, **fields):
    candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    usage = {"promptTokenCount": 300, "totalTokenCount": 340}
    head = {"usageMetadata": usage, "modelVersion": "gemini-3.5-flash", "responseId": "r1"}
    return {"candidates": [candidate], **head, **fields}


GEMINI = [
    response({"text": "Wägen, ", "thought": True}),
    response({"text": "dann 🚀.", "thought": True}),
    response({"text": "Größe "}),
    response({"text": "“zwei” 🚀"}),
    response(
        {
            "functionCall": {"name": "weigh_parcel", "args": {"parcel": "PK-88"}, "id": "call_1"},
            "thoughtSignature": SIGNATURE,
        },
        {"functionCall": {"name": "list_all", "id": "call_2"}},
    ),
    response({"text": ""}, finish="STOP"),
]
GEMINI_REPLY = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "Wägen, dann 🚀.", "thought": True},
                    {"text": "Größe “zwei” 🚀"},
                    {
                        "functionCall": {"name": "weigh_parcel", "args": {"parcel": "PK-88"}, "id": "call_1"},
                        "thoughtSignature": SIGNATURE,
                    },
                    {"functionCall": {"name": "list_all", "id": "call_2"}},
                ],
            },
            "finishReason": "STOP",
            "index": 0,
        }
    ],
    "usageMetadata": {"promptTokenCount": 300, "totalTokenCount": 340},
    "modelVersion": "gemini-3.5-flash",
    "responseId": "r1",
}
WHOLE = {
    "messages": (MESSAGES, MESSAGES_REPLY),
    "chat": (CHAT, CHAT_REPLY),
    "gemini": (GEMINI, GEMINI_REPLY),
}
