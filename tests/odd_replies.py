"""What a vendor's server may reply, in tables: with the state of the request and the exit code of the run.

Most of it is the same for each API; ODD holds what only one of them can say.
"""

from __future__ import annotations

import copy
import gzip
import json
import socket
import struct
import zlib

from tests.conditions import send_then_reset
from tests.support import ANSWER, chunked, drop, message, put, respond, text, tool_call
from tests.vendors import CHAT, GEMINI, MESSAGES

FAILED, UNCLEAR, MISFIT = ("failed", 4), ("unclear", 5), ("confirmed", 4)
ACCEPTED, REJECTED = ("confirmed", 0), ("confirmed", 1)


def then_reset(answer):
    """Return an entry that sends an answer and resets the connection."""

    def entry(connection, request):
        connection.sendall(answer)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    return entry


def list_replies(vendor):
    """Return {phrase: (what a server sends, (state of the request, exit code of the run))}."""
    called, misfit, refuse = vendor.called, vendor.answer("7"), vendor.error
    whole, small = json.dumps(called).encode(), json.dumps(misfit).encode()
    packed = gzip.compress(whole)
    return {
        "a misfit, the control": (respond(misfit), MISFIT),
        "a whole message, then a reset": (send_then_reset(respond(misfit)), MISFIT),
        "a reset at once": (then_reset(b""), UNCLEAR),
        "a reset in the body": (then_reset(respond(called)[:-9]), UNCLEAR),
        "nothing": (b"", UNCLEAR),
        "headers only": (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n", UNCLEAR),
        "an empty body, announced": (respond(b""), UNCLEAR),
        "JSON of another shape": (respond({"ok": True}), UNCLEAR),
        "an error with 200": (respond(refuse()), UNCLEAR),
        "a page with 200": (respond(b"<html>Welcome</html>", content_type="text/html"), UNCLEAR),
        "a list": (respond([]), UNCLEAR),
        "a string": (respond("message"), UNCLEAR),
        "null": (respond(b"null"), UNCLEAR),
        "a message in a list": (respond([called]), UNCLEAR),
        "two messages": (respond(whole + b"\n" + whole), UNCLEAR),
        "UTF-16": (respond(whole.decode().encode("utf-16")), UNCLEAR),
        "bad UTF-8": (respond(whole.replace(b"read_", b"read\xff")), UNCLEAR),
        "a repeated key": (respond(b'{"usage":1,"usage":1,' + whole[1:]), UNCLEAR),
        "NaN": (respond(whole.replace(b"467", b"NaN")), UNCLEAR),
        "deep nesting": (respond(b"[" * 5_000 + b"]" * 5_000), UNCLEAR),
        "a very long number": (respond(whole.replace(b"467", b"9" * 5_000)), UNCLEAR),
        "an event stream": (respond(b'event: message_start\ndata: {"type":"message_start"}\n\n'), UNCLEAR),
        "data of an event stream": (respond(b"data: " + whole + b"\n\ndata: [DONE]\n\n"), UNCLEAR),
        "103 and nothing more": (b"HTTP/1.1 103 Early Hints\r\n\r\n", UNCLEAR),
        "201": (respond(called, 201), UNCLEAR),
        "204": (respond(b"", 204), UNCLEAR),
        "206": (respond(called, 206), UNCLEAR),
        "300": (respond(b"", 300), UNCLEAR),
        "304": (respond(b"", 304), UNCLEAR),
        "400": (respond(refuse(kind="invalid_request_error", status=400), 400), FAILED),
        "400 of another kind": (respond(refuse(kind="api_error", status=400), 400), FAILED),
        "401": (respond(refuse(kind="authentication_error", status=401), 401), FAILED),
        "402": (respond(refuse(kind="billing_error", status=402), 402), FAILED),
        "403 with a page": (respond(b"<html>Access denied</html>", 403), FAILED),
        "404": (respond(refuse(kind="not_found_error", status=404), 404), FAILED),
        "408": (respond(refuse(kind="timeout_error", status=408), 408), UNCLEAR),
        "409": (respond(refuse(kind="conflict_error", status=409), 409), UNCLEAR),
        "413 of a proxy": (respond(b"<html>413</html>", 413), FAILED),
        "429": (respond(refuse(kind="rate_limit_error", status=429), 429, retry_after="1"), FAILED),
        "429 without a body": (b"HTTP/1.1 429 Too Many\r\n\r\n", FAILED),
        "429 cut short": (respond(refuse(), 429)[:-9], FAILED),
        "451": (respond(b"", 451), UNCLEAR),
        "500": (respond(refuse(kind="api_error", status=500), 500), UNCLEAR),
        "500, asking for a retry": (respond(refuse(status=500), 500, x_should_retry="true"), UNCLEAR),
        "501": (respond(b"", 501), UNCLEAR),
        "502 with a page": (respond(b"<html>Bad gateway</html>", 502), UNCLEAR),
        "503": (respond(b"", 503, retry_after="0"), UNCLEAR),
        "503 in the vendor's words": (respond(refuse(status=503), 503), UNCLEAR),
        "504": (respond(refuse(kind="timeout_error", status=504), 504), UNCLEAR),
        "520 of a proxy": (respond(b"error code: 520", 520), UNCLEAR),
        "529": (respond(refuse(), 529), FAILED),
        "529 with a page": (respond(b"<html>busy</html>", 529), UNCLEAR),
        "999": (respond(called, 999), UNCLEAR),
        "status 99": (b"HTTP/1.1 99 Odd\r\n\r\n", UNCLEAR),
        "a status in words": (b"HTTP/1.1 OK\r\n\r\n", UNCLEAR),
        "garbage before the status line": (b"\x00\xff\x1b[2J\r\n" + respond(called), UNCLEAR),
        "another protocol": (b"SSH-2.0-OpenSSH_9.2\r\n", UNCLEAR),
        "HTTP/0.9": (whole, UNCLEAR),
        "a TLS alert": (b"\x15\x03\x01\x00\x02\x02\x46", UNCLEAR),
        "100 first": (b"HTTP/1.1 100 Continue\r\n\r\n" + respond(misfit), MISFIT),
        "two lengths that agree": (respond(small, content_length=f"{len(small)}, {len(small)}"), MISFIT),
        "two lengths that differ": (respond(called, content_length="3, 9"), UNCLEAR),
        "a length line twice": (
            respond(called).replace(b"content-length", b"content-length: 1\r\ncontent-length"),
            UNCLEAR,
        ),
        "a length beyond all bounds": (respond(called, content_length="9" * 400), UNCLEAR),
        "a length that promises more": (respond(called, content_length=len(whole) + 1), UNCLEAR),
        "no last chunk": (chunked(whole, end=b""), UNCLEAR),
        "too many headers": (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 5_000 + b"\r\n", UNCLEAR),
        "a header without end": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000, UNCLEAR),
        "gzip": (respond(gzip.compress(small), content_encoding="gzip"), MISFIT),
        "gzip, not said": (respond(packed), UNCLEAR),
        "plain, gzip said": (respond(whole, content_encoding="gzip"), UNCLEAR),
        "gzip cut short": (respond(packed[:-3], content_encoding="gzip"), UNCLEAR),
        "gzip inside gzip": (respond(gzip.compress(packed), content_encoding="gzip"), UNCLEAR),
        "deflate": (respond(zlib.compress(whole), content_encoding="deflate"), UNCLEAR),
        "brotli said, plain sent": (respond(misfit, content_encoding="br"), MISFIT),
        "brotli": (respond(b"\x8b\x00\x80", content_encoding="br"), UNCLEAR),
        "terminal escapes": (respond(vendor.answer("\x1b]0;owned\x07\x1b[31m\x9b2J")), MISFIT),
        "right-to-left marks": (respond(vendor.stop(vendor.answer("\u202e\u2066abc"), "\u202e")), MISFIT),
        "lone surrogates": (respond(vendor.stop(vendor.call("\ud83d", {}, "\udc00"), "\ud83d")), MISFIT),
        "NUL": (respond(vendor.call("\x00")), MISFIT),
        "escapes in the model's name": (respond({**misfit, vendor.model_field: "\x1b[2J\u202e"}), MISFIT),
        "escapes in an error": (respond(refuse("\x07", "\x1b[2J", 400), 400), FAILED),
        "escapes in the request id": (respond(misfit, request_id="\x1b[2J"), MISFIT),
        "a tool with arguments": (respond(vendor.call(arguments={"all": True})), MISFIT),
        "another tool": (respond(vendor.call("drop_stock")), MISFIT),
        "usage null": (respond({**misfit, vendor.usage_field: None}), MISFIT),
        "usage a list": (respond({**misfit, vendor.usage_field: [457, 67]}), MISFIT),
        "an end in place of a call": (respond(vendor.stop(called, vendor.stops["cut"])), MISFIT),
    }


def change(reply, *path, to=None, without=False):
    """Return a copy of a reply with another value at a path, or without what is there."""
    copied = copy.deepcopy(reply)
    (drop(*path) if without else put(*path, to=to))(copied)
    return copied


def list_odd_messages():
    """Return {phrase: (reply to the first request, end)} of what only Messages has."""
    return {
        "a refusal": (message([], "refusal", stop_details={"type": "refusal"}), MISFIT),
        "no content": (message([]), MISFIT),
        "no stop reason": (message([tool_call()], None), MISFIT),
        "a new stop reason": (message([tool_call()], "paused"), MISFIT),
        "input a string": (message([{**tool_call(), "input": "{}"}], "tool_use"), MISFIT),
        "two calls": (message([tool_call(), tool_call("toolu_2")], "tool_use"), MISFIT),
        "no id": (message([{"type": "tool_use", "name": "read_stock", "input": {}}], "tool_use"), MISFIT),
        "a server's tool": (message([{**tool_call(), "type": "server_tool_use"}], "tool_use"), MISFIT),
        "content a string": (message("7"), UNCLEAR),
        "content null": (message(None), UNCLEAR),
        "content of strings": (message(["7"]), UNCLEAR),
        "another role": (message([], role="user"), UNCLEAR),
        "another type": (message([], type="completion"), UNCLEAR),
        "a reply of chat": (CHAT.called, UNCLEAR),
        "a reply of gemini": (GEMINI.called, UNCLEAR),
    }


def list_odd_chat():
    """Return {phrase: (reply to the first request, end)} of what only chat has."""
    called, content = CHAT.called, CHAT.answer("7")
    at, calls = ("choices", 0, "message"), ("choices", 0, "message", "tool_calls")
    function, stop = (*calls, 0, "function"), ("choices", 0, "finish_reason")
    (call,) = called["choices"][0]["message"]["tool_calls"]
    return {
        "choices empty": (change(called, "choices", to=[]), UNCLEAR),
        "choices missing": (change(called, "choices", without=True), UNCLEAR),
        "choices null": (change(called, "choices", to=None), UNCLEAR),
        "choices a string": (change(called, "choices", to="stop"), UNCLEAR),
        "choices of a string": (change(called, "choices", to=["stop"]), UNCLEAR),
        "choices an object": (change(called, "choices", to=called["choices"][0]), UNCLEAR),
        "two choices": (change(called, "choices", to=called["choices"] * 2), UNCLEAR),
        "no message": (change(called, *at, without=True), UNCLEAR),
        "message null": (change(called, *at, to=None), UNCLEAR),
        "message a string": (change(called, *at, to="7"), UNCLEAR),
        "a delta": (change(called, "choices", 0, to={"index": 0, "delta": {"content": "7"}}), UNCLEAR),
        "another role": (change(called, *at, "role", to="user"), UNCLEAR),
        "content a number": (change(content, *at, "content", to=7), UNCLEAR),
        "content an object": (change(content, *at, "content", to={"text": "7"}), UNCLEAR),
        "content null, no call": (change(content, *at, "content", to=None), MISFIT),
        "a refusal": (change(content, *at, "refusal", to="I cannot."), MISFIT),
        "calls of a string": (change(called, *calls, to="read_stock"), MISFIT),
        "calls of strings": (change(called, *calls, to=["read_stock"]), MISFIT),
        "calls null": (change(called, *calls, to=None), MISFIT),
        "calls empty": (change(called, *calls, to=[]), MISFIT),
        "two calls": (change(called, *calls, to=[call, {**call, "id": "call_2"}]), MISFIT),
        "one call twice": (change(called, *calls, to=[call, call]), MISFIT),
        "no function": (change(called, *function, without=True), MISFIT),
        "a function of the old kind": (
            change(called, *at, to={"role": "assistant", "content": None, "function_call": call["function"]}),
            MISFIT,
        ),
        "a custom tool": (change(called, *calls, 0, "type", to="custom"), MISFIT),
        "no name": (change(called, *function, "name", without=True), MISFIT),
        "no id": (change(called, *calls, 0, "id", without=True), MISFIT),
        "an empty id": (change(called, *calls, 0, "id", to=""), MISFIT),
        "an id that is a number": (change(called, *calls, 0, "id", to=1), MISFIT),
        "arguments that are no JSON": (change(called, *function, "arguments", to='{"a":'), MISFIT),
        "arguments that are no object": (change(called, *function, "arguments", to="[]"), MISFIT),
        "arguments not as text": (change(called, *function, "arguments", to={}), MISFIT),
        "arguments null": (change(called, *function, "arguments", to=None), MISFIT),
        "arguments with a value": (change(called, *function, "arguments", to='{"all":true}'), MISFIT),
        "arguments of two values": (change(called, *function, "arguments", to="{}{}"), MISFIT),
        **{
            f"finish_reason {json.dumps(word)}": (change(called, *stop, to=word), MISFIT)
            for word in ("length", "content_filter", "stop", "", None, 7, "function_call", "paused")
        },
        "no finish_reason": (change(called, *stop, without=True), MISFIT),
        "a reply of messages": (MESSAGES.called, UNCLEAR),
        "a reply of gemini": (GEMINI.called, UNCLEAR),
    }


def list_odd_gemini():
    """Return {phrase: (reply to the first request, end)} of what only gemini has."""
    called, answer = GEMINI.called, GEMINI.answer("7")
    at, parts = ("candidates", 0, "content"), ("candidates", 0, "content", "parts")
    call, stop = (*parts, 0, "functionCall"), ("candidates", 0, "finishReason")
    blocked = {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": 9},
    }
    (part,) = called["candidates"][0]["content"]["parts"]
    return {
        "no candidates": (change(called, "candidates", without=True), UNCLEAR),
        "candidates empty": (change(called, "candidates", to=[]), UNCLEAR),
        "candidates null": (change(called, "candidates", to=None), UNCLEAR),
        "candidates a string": (change(called, "candidates", to="STOP"), UNCLEAR),
        "candidates of a string": (change(called, "candidates", to=["STOP"]), UNCLEAR),
        "two candidates": (change(called, "candidates", to=called["candidates"] * 2), UNCLEAR),
        "a blocked prompt": (blocked, UNCLEAR),
        "a blocked prompt, candidates empty": ({**blocked, "candidates": []}, UNCLEAR),
        "a list, as a stream without alt=sse": ([called], UNCLEAR),
        "content missing": (change(called, *at, without=True), MISFIT),
        "content null": (change(called, *at, to=None), UNCLEAR),
        "content a string": (change(called, *at, to="7"), UNCLEAR),
        "another role": (change(called, *at, "role", to="user"), UNCLEAR),
        "parts a string": (change(called, *parts, to="7"), UNCLEAR),
        "parts of strings": (change(called, *parts, to=["7"]), UNCLEAR),
        "parts null": (change(called, *parts, to=None), UNCLEAR),
        "parts missing": (change(called, *parts, without=True), MISFIT),
        "parts empty": (change(called, *parts, to=[]), MISFIT),
        "an empty part": (change(called, *parts, to=[{}]), MISFIT),
        "a thought alone": (change(called, *parts, to=[{"text": "Hm.", "thought": True}]), MISFIT),
        "two calls": (change(called, *parts, to=[part, part]), MISFIT),
        "a call as text": (change(called, *parts, to=[{"text": "I called read_stock({})"}]), MISFIT),
        "a call that is a string": (change(called, *call, to="read_stock"), MISFIT),
        "no name": (change(called, *call, "name", without=True), MISFIT),
        "a name that is a number": (change(called, *call, "name", to=7), MISFIT),
        "args a string": (change(called, *call, "args", to="{}"), MISFIT),
        "args a list": (change(called, *call, "args", to=[]), MISFIT),
        "args with a value": (change(called, *call, "args", to={"all": True}), MISFIT),
        "an id that is a number": (change(called, *call, "id", to=7), MISFIT),
        "an empty id": (change(called, *call, "id", to=""), MISFIT),
        "a call of snake_case": (
            change(called, *parts, to=[{"function_call": {"name": "read_stock", "args": {}}}]),
            MISFIT,
        ),
        **{
            f"finishReason {json.dumps(word)}": (change(called, *stop, to=word), MISFIT)
            for word in ("SAFETY", "MAX_TOKENS", "MALFORMED_FUNCTION_CALL", "stop", "", None, 7, "NEW")
        },
        "no finishReason": (change(called, *stop, without=True), MISFIT),
        "content missing, and no finishReason": (
            change(change(called, *at, without=True), *stop, without=True),
            UNCLEAR,
        ),
        "no text within the limit": (
            change(change(answer, *parts, without=True), *stop, to="MAX_TOKENS"),
            MISFIT,
        ),
        "blocked for safety, without content": (
            change(change(answer, *at, without=True), *stop, to="SAFETY"),
            MISFIT,
        ),
        "a malformed call, content empty": (
            change(change(answer, *at, to={}), *stop, to="MALFORMED_FUNCTION_CALL"),
            MISFIT,
        ),
        "a reply of messages": (MESSAGES.called, UNCLEAR),
        "a reply of chat": (CHAT.called, UNCLEAR),
    }


ODD = {"messages": list_odd_messages(), "chat": list_odd_chat(), "gemini": list_odd_gemini()}

# Replies to the third request: {API: {phrase: (reply, end)}}.
HALF, REST = ANSWER[:40], ANSWER[40:]
ANSWERS = {
    "messages": {
        "one text": (MESSAGES.answer(ANSWER), ACCEPTED),
        "two texts": (message([text(HALF), text(REST)]), ACCEPTED),
        "thinking before": (
            message([{"type": "thinking", "thinking": "", "signature": "c2ln"}, text(ANSWER)]),
            ACCEPTED,
        ),
        "a fence": (MESSAGES.answer(f"```json\n{ANSWER}\n```"), REJECTED),
        "no text": (message([]), REJECTED),
        "cut": (message([text(ANSWER)], "max_tokens"), MISFIT),
        "a call beside it": (message([text(ANSWER), tool_call()]), MISFIT),
    },
    "chat": {
        "one text": (CHAT.answer(ANSWER), ACCEPTED),
        "a list of texts": (CHAT.reply({"content": [text(HALF), text(REST)]}), ACCEPTED),
        "reasoning before": (CHAT.reply({"content": ANSWER, "reasoning_content": "Hm. {}"}), ACCEPTED),
        "fields of OpenAI's": (
            CHAT.reply(
                {"content": ANSWER, "refusal": None, "annotations": [], "audio": None, "tool_calls": None}
            ),
            ACCEPTED,
        ),
        "no calls, as a list": (CHAT.reply({"content": ANSWER, "tool_calls": []}), ACCEPTED),
        "a fence": (CHAT.answer(f"```json\n{ANSWER}\n```"), REJECTED),
        "no text": (CHAT.reply({"content": None}), REJECTED),
        "an empty text": (CHAT.answer(""), REJECTED),
        "an answer in the reasoning": (CHAT.reply({"content": "", "reasoning_content": ANSWER}), REJECTED),
        "a refusal": (CHAT.reply({"content": None, "refusal": "I cannot."}), MISFIT),
        "cut": (CHAT.reply({"content": ANSWER}, "length"), MISFIT),
        "filtered": (CHAT.reply({"content": ANSWER}, "content_filter"), MISFIT),
        "without an end": (CHAT.reply({"content": ANSWER}, None), MISFIT),
        "a call": (CHAT.called, MISFIT),
        "a call beside it": (
            CHAT.reply({"content": ANSWER, "tool_calls": CHAT.called["choices"][0]["message"]["tool_calls"]}),
            MISFIT,
        ),
    },
    "gemini": {
        "one text": (GEMINI.answer(ANSWER), ACCEPTED),
        "two texts": (GEMINI.reply([{"text": HALF}, {"text": REST}]), ACCEPTED),
        "a thought before": (GEMINI.reply([{"text": "Hm. {}", "thought": True}, {"text": ANSWER}]), ACCEPTED),
        "a signed text": (GEMINI.reply([{"text": ANSWER, "thoughtSignature": "c2ln"}]), ACCEPTED),
        "a signature behind it": (
            GEMINI.reply([{"text": ANSWER}, {"text": "", "thoughtSignature": "c2ln"}]),
            ACCEPTED,
        ),
        "a fence": (GEMINI.answer(f"```json\n{ANSWER}\n```"), REJECTED),
        "no parts": (GEMINI.reply([]), REJECTED),
        "an answer in a thought": (GEMINI.reply([{"text": ANSWER, "thought": True}]), REJECTED),
        "cut": (GEMINI.reply([{"text": ANSWER}], "MAX_TOKENS"), MISFIT),
        "blocked": (GEMINI.reply([{"text": ANSWER}], "SAFETY"), MISFIT),
        "recited": (GEMINI.reply([{"text": ANSWER}], "RECITATION"), MISFIT),
        "without an end": (GEMINI.reply([{"text": ANSWER}], None), MISFIT),
        "a call": (GEMINI.called, MISFIT),
        "a call beside it": (
            GEMINI.reply([{"text": ANSWER}, *GEMINI.called["candidates"][0]["content"]["parts"]]),
            MISFIT,
        ),
    },
}
