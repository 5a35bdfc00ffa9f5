"""Session records for the tests of compare_sessions, and how they are built and changed. Not a test."""

from __future__ import annotations

import copy

from tests.support import change_copy, find

SYSTEM, TOOLS, PREFIX = (f"changed prefix: {part}" for part in ("system", "tools", "messages"))
TURN, UNMATCHED, RESULT, LATER = (
    "changed assistant turn",
    "unmatched tool result",
    "changed tool result",
    "changed later messages",
)
MARK = {"type": "ephemeral"}

# Messages 0 to 4 are the prefix, 5 is the turn in hand, 6 holds its results, 7 and 8 are later.
RECORD = {
    "model": "anthropic/claude-fable-5.2",
    "max_tokens": 4096,
    "system": [{"type": "text", "text": "You check invoices."}, {"type": "text", "text": "Never pay."}],
    "tools": [
        {
            "name": "find_invoice",
            "description": "Find an invoice.",
            "input_schema": {
                "type": "object",
                "properties": {"id": {"type": "string"}, "limit": {"type": "integer", "default": 5}},
                "required": ["id", "limit"],
            },
        },
        {"name": "list_sites", "input_schema": {"type": "object", "properties": {}}},
    ],
    "messages": [
        {"role": "user", "content": "Which sites are there?\r\nThen look for DEMO-17."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": "c2lnLTE="},
                {"type": "tool_use", "id": "toolu_1", "name": "list_sites", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "is_error": True,
                    "content": [{"type": "text", "text": "down"}],
                }
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "text", "text": ""}, {"type": "text", "text": "It is down."}],
        },
        {"role": "user", "content": "Go on."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Two calls.\n", "signature": "c2lnLTI="},
                {"type": "text", "text": "Looking."},
                {
                    "type": "tool_use",
                    "id": "toolu_2",
                    "name": "find_invoice",
                    "input": {"id": "DEMO-17", "limit": 5},
                },
                {
                    "type": "tool_use",
                    "id": "toolu_3",
                    "name": "find_invoice",
                    "input": {"id": "DEMO-18", "limit": 0},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "47.50 EUR"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_3",
                    "content": [{"type": "text", "text": "none"}],
                },
                {"type": "text", "text": "Be short."},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "47.50 EUR."}]},
        {"role": "user", "content": "Thank you."},
    ],
    "receipt": {"operation_id": "read-invoice-1", "cache_control": None},
}
MESSAGES = RECORD["messages"]
THE_TURN = ("messages", 5, "content")
THE_RESULTS = ("messages", 6, "content")
CUT_RESULTS = MESSAGES[6]["content"]
# The fields that the API leaves out of its comparison.
OUTSIDE = (
    *("model", "max_tokens", "output_config", "effort", "tool_choice", "thinking"),
    *("metadata", "stream", "service_tier", "cache_control"),
)


def insert(*path, new):
    """Return a change of a record: items are put into an array in front of an index."""

    def change(record):
        find(record, path[:-1])[path[-1] : path[-1]] = copy.deepcopy(list(new))

    return change


def all_of(*changes):
    """Return a change of a record: several ones, in their order."""

    def change(record):
        for one in changes:
            one(record)

    return change


def user(*content):
    """Return a message of the user's; text or blocks."""
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(*content):
    """Return a message of the assistant's; text or blocks."""
    return {**user(*content), "role": "assistant"}


def text(words):
    """Return a text block."""
    return {"type": "text", "text": words}


def call(call_id):
    """Return a tool_use block."""
    return {"type": "tool_use", "id": call_id, "name": "find_invoice", "input": {}}


def result(call_id, content="1"):
    """Return a tool_result block."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def changed(change, record=RECORD):
    """Return a changed copy of a record."""
    return change_copy(record, change)


def summarise(findings):
    """Return [(label, path of the first finding)] of compare_sessions' changes."""
    return [(label, found[0].path) for label, found in findings.items()]
