"""What the session tests share: the command, the cases, and an independent reader of bodies."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

from tests.support import checkpoint

CASES = Path(__file__).resolve().parent / "cases" / "session"
EXPECTED = [json.loads(line) for line in (CASES / "expected.jsonl").read_text("utf-8").splitlines()]
SESSIONS = [case for case in EXPECTED if case["kind"] == "session"]
REPLIES = [case for case in EXPECTED if case["kind"] == "reply"]
TARGETS = {
    "anthropic": ("messages", "claude-opus-5-5"),
    "kimi": ("chat", "kimi-k3"),
    "openai": ("chat", "gpt-5.5"),
    "gemini": ("gemini", "gemini-3.5-flash"),
}
PAIRS = [(one, other) for one in ("anthropic", "kimi", "gemini") for other in ("anthropic", "kimi", "gemini")]
PAIRS = [pair for pair in PAIRS if pair[0] != pair[1]]


def api_of(vendor):
    """Return the API of a vendor in the cases."""
    return TARGETS.get(vendor, ("chat", ""))[0]


def read_case(name):
    """Return the parsed file of a case."""
    return json.loads((CASES / name).read_text("utf-8"))


def run_session(*arguments, record=None):
    """Run the session command in process, on a record if one is given; return (exit code, output, errors)."""
    with tempfile.TemporaryDirectory() as folder:
        if record is not None:
            path = Path(folder, "record.json")
            path.write_bytes(record if isinstance(record, bytes) else json.dumps(record).encode())
            arguments = (str(path), *arguments)
        ended = checkpoint("session", *map(str, arguments))
    return ended.code, ended.out, ended.err


def same(value):
    """Return a text that is equal for the same JSON value alone: 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


# --- An independent reader of bodies -----------------------------------------


def read_body(api, body):
    """Return what a body holds: user texts, and calls as [name, arguments, result text, failed]."""
    return {"messages": _read_messages, "chat": _read_chat, "gemini": _read_gemini}[api](body)


def _join(content):
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "?") for part in content or [])


def _read_messages(body):
    users, calls, waiting = [], [], {}
    for message in body["messages"]:
        blocks = message["content"]
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
        fresh = {}
        for block in blocks:
            if block["type"] == "text" and message["role"] == "user":
                users.append(block["text"])
            elif block["type"] == "tool_use":
                calls.append([block["name"], block["input"], None, False])
                fresh.setdefault(block["id"], []).append(calls[-1])
            elif block["type"] == "tool_result":
                call = waiting[block["tool_use_id"]].pop(0)
                call[2:] = [_join(block.get("content", "")), block.get("is_error", False)]
        waiting = fresh if fresh or message["role"] == "assistant" else waiting
    return users, calls


def _read_chat(body):
    users, calls, waiting = [], [], {}
    for message in body["messages"]:
        role, content = message["role"], message.get("content")
        if role == "user":
            users += (
                [content] if isinstance(content, str) else [p["text"] for p in content if p["type"] == "text"]
            )
        elif role == "assistant":
            waiting = {}
            listed = [(call["id"], call["function"]) for call in message.get("tool_calls") or []]
            if message.get("function_call"):
                listed.append((message["function_call"]["name"], message["function_call"]))
            for name, function in listed:
                calls.append([function["name"], json.loads(function["arguments"] or "{}"), None, False])
                waiting.setdefault(name, []).append(calls[-1])
        elif role in ("tool", "function"):
            waiting[message.get("tool_call_id", message.get("name"))].pop(0)[2] = _join(content)
    return users, calls


def _read_gemini(body):
    users, calls, waiting = [], [], []
    for content in body["contents"]:
        fresh = []
        for part in content["parts"]:
            if "functionCall" in part:
                call = part["functionCall"]
                calls.append([call["name"], call.get("args", {}), None, False])
                fresh.append((call.get("id"), calls[-1]))
            elif "functionResponse" in part:
                response = part["functionResponse"]
                at = next(
                    place
                    for place, (name, call) in enumerate(waiting)
                    if call[2] is None and call[0] == response["name"] and name in (None, response.get("id"))
                )
                value = response["response"]
                key = next(iter(value)) if list(value) in (["output"], ["error"]) else None
                value = value[key] if key else value
                text = (
                    value
                    if isinstance(value, str)
                    else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
                )
                waiting[at][1][2:] = [text, key == "error"]
            elif "text" in part and content["role"] == "user":
                users.append(part["text"])
        waiting = fresh if content["role"] == "model" else waiting
    return users, calls


# --- Invented records ---------------------------------------------------------

_TEXTS = ["Go on.", "And PK-89?", "  two  ", "åäö 📦", "line\nline", "[x] {y}", "2"]
_VALUES = [1, 1.5, True, None, "text", [1, "a"], {"k": {}}, 9007199254740993, 1e22, -0.5, "", [], {}, "日光"]
_RESULTS = [
    '{"price": 1.10}',
    "plain",
    '{"serial":9007199254740993}',
    "1E400",
    "-0.0",
    "a\n\nb",
    "[]",
    " ",
    "null",
]
_IDS = ["a", "a b", "a_b", "functions.weigh:0", "x" * 60, "call_1", "å", "a/b"]


def build_record(vendor, seed):
    """Return an invented record of a vendor that ends on a user's text or a result, and its credentials."""
    dice = random.Random(seed)
    entries, secrets = [], []
    for turn in range(dice.randint(1, 4)):
        entries.append(("user", [dice.choice(_TEXTS) for _ in range(dice.randint(1, 2))]))
        for step in range(dice.randint(0 if turn < 3 else 1, 3)):
            calls = []
            ids = dice.sample(_IDS, 3)
            for place in range(dice.randint(1, 3)):
                arguments = {dice.choice("abc"): dice.choice(_VALUES) for _ in range(dice.randint(0, 3))}
                result = (dice.choice(_RESULTS), vendor != "kimi" and dice.random() < 0.2)
                calls.append((ids[place], dice.choice(["weigh", "route"]), arguments, result))
            secret = f"secret-{seed}-{turn}-{step}=="
            secrets.append(secret)
            thought = dice.choice(["", "Let me see.", "Two\nlines."])
            order = dice.sample(range(len(calls)), len(calls))
            words = dice.choice(["", "", "One moment."])
            entries.append(("step", (thought, secret, words, calls, order, dice.random() < 0.5)))
        if turn < 3 and dice.random() < 0.5:
            entries.append(("answer", dice.choice(_TEXTS)))
    while entries[-1][0] == "answer":
        entries.pop()
    write = {"anthropic": _write_messages, "kimi": _write_chat, "gemini": _write_gemini}[vendor]
    return write(entries, dice), secrets


def _tools(dice):
    return [
        {
            "name": name,
            "description": "d",
            "schema": {"type": "object", "properties": {"a": {"type": "string"}}},
        }
        for name in ("weigh", "route")
    ]


def _write_messages(entries, dice):
    messages = []
    for kind, entry in entries:
        if kind == "user":
            texts = [{"type": "text", "text": text} for text in entry]
            messages.append(
                {"role": "user", "content": entry[0] if len(entry) == 1 and dice.random() < 0.5 else texts}
            )
        elif kind == "answer":
            messages.append({"role": "assistant", "content": [{"type": "text", "text": entry}]})
        else:
            thought, secret, words, calls, order, flag = entry
            ids = [f"toolu_{len(messages)}_{place}" for place in range(len(calls))]
            blocks = [{"type": "thinking", "thinking": thought, "signature": secret}]
            if flag:
                blocks.append({"type": "redacted_thinking", "data": secret})
            blocks += [{"type": "text", "text": words}] if words else []
            blocks += [
                {"type": "tool_use", "id": name, "name": call[1], "input": call[2]}
                for name, call in zip(ids, calls)
            ]
            results = []
            for at in order:
                text, failed = calls[at][3]
                content = text if dice.random() < 0.5 else [{"type": "text", "text": text}]
                result = {"type": "tool_result", "tool_use_id": ids[at], "content": content}
                results.append({**result, "is_error": True} if failed else result)
            messages.append({"role": "assistant", "content": blocks})
            messages.append({"role": "user", "content": results})
    tools = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["schema"]}
        for tool in _tools(dice)
    ]
    return {
        "model": "claude-sonnet-5-5",
        "max_tokens": 9,
        "system": "S",
        "tools": tools,
        "messages": messages,
    }


def _write_chat(entries, dice):
    messages = [{"role": "system", "content": "S"}]
    for kind, entry in entries:
        if kind == "user":
            texts = [{"type": "text", "text": text} for text in entry]
            messages.append({"role": "user", "content": entry[0] if len(entry) == 1 else texts})
        elif kind == "answer":
            messages.append({"role": "assistant", "content": entry})
        else:
            thought, _, words, calls, order, flag = entry
            message = {
                "role": "assistant",
                "content": words or (None if flag else ""),
                "reasoning_content": thought,
            }
            message["tool_calls"] = [
                {
                    "id": call[0],
                    "type": "function",
                    "function": {"name": call[1], "arguments": json.dumps(call[2])},
                }
                for call in calls
            ]
            messages.append(message)
            messages += [
                {"role": "tool", "tool_call_id": calls[at][0], "content": calls[at][3][0]} for at in order
            ]
    tools = [
        {
            "type": "function",
            "function": {"name": t["name"], "description": t["description"], "parameters": t["schema"]},
        }
        for t in _tools(dice)
    ]
    return {"model": "kimi-k3", "messages": messages, "tools": tools}


def _write_gemini(entries, dice):
    contents = []
    for kind, entry in entries:
        if kind == "user":
            contents.append({"role": "user", "parts": [{"text": text} for text in entry]})
        elif kind == "answer":
            contents.append({"role": "model", "parts": [{"text": entry}]})
        else:
            thought, secret, words, calls, order, flag = entry
            parts = [{"text": thought, "thought": True}] if thought else []
            parts += [{"text": words, "thoughtSignature": secret}] if words else []
            for call in calls:
                own = {"name": call[1], "args": call[2], **({"id": call[0]} if flag else {})}
                parts.append({"functionCall": own})
            next(part for part in parts if "functionCall" in part)["thoughtSignature"] = secret
            responses = []
            for at in order if flag else range(len(calls)):
                text, failed = calls[at][3]
                own = {"name": calls[at][1], "response": {"error" if failed else "output": text}}
                responses.append({"functionResponse": {**own, **({"id": calls[at][0]} if flag else {})}})
            contents.append({"role": "model", "parts": parts})
            if len(responses) > 1 and dice.random() < 0.2:
                contents += [{"role": "user", "parts": [each]} for each in responses]
            else:
                contents.append({"role": "user", "parts": responses})
    declared = [
        {"name": tool["name"], "description": tool["description"], "parametersJsonSchema": tool["schema"]}
        for tool in _tools(dice)
    ]
    return {
        "systemInstruction": {"parts": [{"text": "S"}]},
        "tools": [{"functionDeclarations": declared}],
        "contents": contents,
    }
