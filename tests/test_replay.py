"""compare_sessions and find_unmatched_results: was a conversation restored exactly?"""

from __future__ import annotations

import copy
import json
import unittest

from checkpoint_demo import MOST_FINDINGS, compare_sessions, find_unmatched_results, parse_json, render_path
from tests.support import CASES

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


def find(document, path):
    """Return the value at a path."""
    for part in path:
        document = document[part]
    return document


def put(*path, to):
    """Return a change of a record: a value is put at a path."""

    def change(record):
        find(record, path[:-1])[path[-1]] = copy.deepcopy(to)

    return change


def drop(*path):
    """Return a change of a record: what stands at a path, or in a slice of an array, is taken away."""

    def change(record):
        del find(record, path[:-1])[path[-1]]

    return change


def insert(*path, new):
    """Return a change of a record: items are put into an array in front of an index."""

    def change(record):
        find(record, path[:-1])[path[-1] : path[-1]] = copy.deepcopy(list(new))

    return change


def exchange(*path):
    """Return a change of a record: an array's item changes its place with the next one."""

    def change(record):
        items, index = find(record, path[:-1]), path[-1]
        items[index], items[index + 1] = items[index + 1], items[index]

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
    record = copy.deepcopy(record)
    change(record)
    return record


def sort_keys(value):
    """Return a value with the keys of all its objects in reverse order."""
    if isinstance(value, dict):
        return {key: sort_keys(value[key]) for key in sorted(value, reverse=True)}
    return [sort_keys(item) for item in value] if isinstance(value, list) else value


CUT_RESULTS = MESSAGES[6]["content"]

# What is done to the record, and what is found: [(label, path of its first finding)].
CHANGES = {
    "nothing": (lambda record: None, []),
    # The prefix.
    "a system block changed": (put("system", 0, "text", to="You pay."), [(SYSTEM, "system[0].text")]),
    "system blocks exchanged": (exchange("system", 0), [(SYSTEM, "system[0].text")]),
    "a system block dropped": (drop("system", 1), [(SYSTEM, "system[1]")]),
    "the system as one string": (
        put("system", to="You check invoices.Never pay."),
        [(SYSTEM, "system")],
    ),
    "the system gone": (drop("system"), [(SYSTEM, "system")]),
    "the system null": (put("system", to=None), [(SYSTEM, "system")]),
    "the system empty": (put("system", to=[]), [(SYSTEM, "system[0]")]),
    "a description changed": (
        put("tools", 0, "description", to="Find invoices."),
        [(TOOLS, "tools[0].description")],
    ),
    "a description added": (put("tools", 1, "description", to=""), [(TOOLS, "tools[1].description")]),
    "tools exchanged": (exchange("tools", 0), [(TOOLS, "tools[0].name")]),
    "a tool dropped": (drop("tools", 1), [(TOOLS, "tools[1]")]),
    "the tools gone": (drop("tools"), [(TOOLS, "tools")]),
    "required fields exchanged": (
        exchange("tools", 0, "input_schema", "required", 0),
        [(TOOLS, "tools[0].input_schema.required[0]")],
    ),
    "a default that became a float": (
        put("tools", 0, "input_schema", "properties", "limit", "default", to=5.0),
        [(TOOLS, "tools[0].input_schema.properties.limit.default")],
    ),
    "an early message changed": (put("messages", 0, "content", to="Hi."), [(PREFIX, "messages[0].content")]),
    "CRLF that became LF": (
        put("messages", 0, "content", to=MESSAGES[0]["content"].replace("\r", "")),
        [(PREFIX, "messages[0].content")],
    ),
    "a string that became a block": (
        put("messages", 4, "content", to=[text("Go on.")]),
        [(PREFIX, "messages[4].content")],
    ),
    "a role changed": (put("messages", 4, "role", to="system"), [(PREFIX, "messages[4].role")]),
    "an early signature dropped": (
        drop("messages", 1, "content", 0, "signature"),
        [(PREFIX, "messages[1].content[0].signature")],
    ),
    "an early call renamed": (
        put("messages", 1, "content", 1, "name", to="list"),
        [(PREFIX, "messages[1].content[1].name")],
    ),
    "an early call's id changed, in its result too": (
        all_of(
            put("messages", 1, "content", 1, "id", to="toolu_9"),
            put("messages", 2, "content", 0, "tool_use_id", to="toolu_9"),
        ),
        [(PREFIX, "messages[1].content[1].id")],
    ),
    "an early call that became another id than its result": (
        put("messages", 1, "content", 1, "id", to="toolu_9"),
        [(PREFIX, "messages[1].content[1].id")],
    ),
    "an early error that became a success": (
        drop("messages", 2, "content", 0, "is_error"),
        [(PREFIX, "messages[2].content[0].is_error")],
    ),
    "an early result emptied": (
        put("messages", 2, "content", 0, "content", to=[]),
        [(PREFIX, "messages[2].content[0].content[0]")],
    ),
    "an early empty text dropped": (
        drop("messages", 3, "content", 0),
        [(PREFIX, "messages[3].content[0].text")],
    ),
    "an early tool turn dropped": (drop("messages", slice(1, 3)), [(PREFIX, "messages[1].content[0].type")]),
    "the first message dropped": (drop("messages", 0), [(PREFIX, "messages[0].role")]),
    "the last message of the prefix dropped": (drop("messages", 4), [(PREFIX, "messages[4]")]),
    "a message put in front": (
        insert("messages", 0, new=[user("Hello.")]),
        [(PREFIX, "messages[0].content")],
    ),
    "an exchange put in front": (
        insert("messages", 0, new=[user("Today is Monday."), assistant("I see.")]),
        [(PREFIX, "messages[0].content")],
    ),
    "an exchange put in front of the turn": (
        insert("messages", 5, new=[assistant("Yes?"), user("Go.")]),
        [(PREFIX, "messages[5]")],
    ),
    "a tool turn put in front of the turn": (
        insert("messages", 5, new=[assistant(call("toolu_8")), user(result("toolu_8"))]),
        [(PREFIX, "messages[5]")],
    ),
    "the first two messages exchanged": (exchange("messages", 0), [(PREFIX, "messages[0].role")]),
    # The turn.
    "a word of the turn changed": (
        put(*THE_TURN, 1, "text", to="Looking"),
        [(TURN, "messages[5].content[1].text")],
    ),
    "thinking trimmed": (
        put(*THE_TURN, 0, "thinking", to="Two calls."),
        [(TURN, "messages[5].content[0].thinking")],
    ),
    "a signature changed": (
        put(*THE_TURN, 0, "signature", to="c2lnLTM="),
        [(TURN, "messages[5].content[0].signature")],
    ),
    "a signature dropped": (drop(*THE_TURN, 0, "signature"), [(TURN, "messages[5].content[0].signature")]),
    "thinking dropped": (drop(*THE_TURN, 0), [(TURN, "messages[5].content[0].type")]),
    "text in front of thinking": (exchange(*THE_TURN, 0), [(TURN, "messages[5].content[0].type")]),
    "calls exchanged": (exchange(*THE_TURN, 2), [(TURN, "messages[5].content[2].id")]),
    "an empty text added": (insert(*THE_TURN, 1, new=[text("")]), [(TURN, "messages[5].content[1].text")]),
    "a field added to a block": (
        put(*THE_TURN, 1, "citations", to=None),
        [(TURN, "messages[5].content[1].citations")],
    ),
    "a field added to the message": (put("messages", 5, "id", to="msg_1"), [(TURN, "messages[5].id")]),
    "a tool renamed in its call": (
        put(*THE_TURN, 2, "name", to="find"),
        [(TURN, "messages[5].content[2].name")],
    ),
    "an argument changed": (
        put(*THE_TURN, 2, "input", "limit", to=5.0),
        [(TURN, "messages[5].content[2].input.limit")],
    ),
    "an argument that became false": (
        put(*THE_TURN, 3, "input", "limit", to=False),
        [(TURN, "messages[5].content[3].input.limit")],
    ),
    "arguments as a string": (
        put(*THE_TURN, 3, "input", to='{"id":"DEMO-18","limit":0}'),
        [(TURN, "messages[5].content[3].input")],
    ),
    "a call and its result dropped": (
        all_of(drop(*THE_TURN, 3), drop(*THE_RESULTS, 1)),
        [(TURN, "messages[5].content[3]"), (RESULT, "messages[6].content[1].type")],
    ),
    "an id changed in call and result": (
        all_of(put(*THE_TURN, 2, "id", to="toolu_9"), put(*THE_RESULTS, 0, "tool_use_id", to="toolu_9")),
        [(TURN, "messages[5].content[2].id"), (RESULT, "messages[6].content[0].tool_use_id")],
    ),
    "an id changed in the call alone": (
        put(*THE_TURN, 2, "id", to="toolu_9"),
        [(TURN, "messages[5].content[2].id"), (UNMATCHED, "messages[5].content[2].id")],
    ),
    "all calls dropped, their results left": (
        drop(*THE_TURN, slice(2, 4)),
        [(TURN, "messages[5].content[2]"), (UNMATCHED, "messages[6].content[0].tool_use_id")],
    ),
    "the turn as text": (
        put("messages", 5, "content", to="Looking."),
        [(TURN, "messages[5].content"), (UNMATCHED, "messages[6].content[0].tool_use_id")],
    ),
    "the turn gone": (
        drop("messages", 5),
        [(TURN, "messages[5]"), (UNMATCHED, "messages[5].content[0].tool_use_id")],
    ),
    "the turn and all behind it gone": (
        drop("messages", slice(5, 9)),
        [(TURN, "messages[5]"), (RESULT, "messages[6]"), (LATER, "messages[7]")],
    ),
    "the turn over two messages": (
        all_of(
            insert("messages", 6, new=[assistant(*MESSAGES[5]["content"][2:])]),
            drop(*THE_TURN, slice(2, 4)),
        ),
        [(TURN, "messages[5].content[2]")],
    ),
    "the turn doubled": (insert("messages", 5, new=[MESSAGES[5]]), [(PREFIX, "messages[5]")]),
    # The results.
    "a result's id changed": (
        put(*THE_RESULTS, 0, "tool_use_id", to="toolu_9"),
        [(UNMATCHED, "messages[5].content[2].id")],
    ),
    "the id of an earlier call": (
        put(*THE_RESULTS, 1, "tool_use_id", to="toolu_1"),
        [(UNMATCHED, "messages[5].content[3].id")],
    ),
    "one id for both results": (
        put(*THE_RESULTS, 1, "tool_use_id", to="toolu_2"),
        [(UNMATCHED, "messages[5].content[3].id")],
    ),
    "a result's id null": (
        put(*THE_RESULTS, 0, "tool_use_id", to=None),
        [(UNMATCHED, "messages[5].content[2].id")],
    ),
    "a result's id dropped": (
        drop(*THE_RESULTS, 0, "tool_use_id"),
        [(UNMATCHED, "messages[5].content[2].id")],
    ),
    "a result dropped": (drop(*THE_RESULTS, 1), [(UNMATCHED, "messages[5].content[3].id")]),
    "a result doubled": (
        insert(*THE_RESULTS, 1, new=[CUT_RESULTS[0]]),
        [(UNMATCHED, "messages[6].content[1].tool_use_id")],
    ),
    "a result of no call": (
        insert(*THE_RESULTS, 2, new=[result("toolu_9")]),
        [(UNMATCHED, "messages[6].content[2].tool_use_id")],
    ),
    "a result that became text": (
        put(*THE_RESULTS, 0, to=text("47.50 EUR")),
        [(UNMATCHED, "messages[5].content[2].id"), (RESULT, "messages[6].content[0].text")],
    ),
    "text in front of the results": (
        insert(*THE_RESULTS, 0, new=[text("Here.")]),
        [(UNMATCHED, "messages[6].content[1].tool_use_id"), (RESULT, "messages[6].content[0].text")],
    ),
    "text between the results": (
        insert(*THE_RESULTS, 1, new=[text("And.")]),
        [(UNMATCHED, "messages[6].content[2].tool_use_id"), (RESULT, "messages[6].content[1].text")],
    ),
    "the results as text": (
        put("messages", 6, "content", to="47.50 EUR"),
        [(UNMATCHED, "messages[5].content[2].id"), (RESULT, "messages[6].content")],
    ),
    "the results over two messages": (
        all_of(
            insert("messages", 7, new=[{"role": "user", "content": MESSAGES[6]["content"][1:]}]),
            drop(*THE_RESULTS, slice(1, 3)),
        ),
        [
            (UNMATCHED, "messages[7].content[0].tool_use_id"),
            (RESULT, "messages[6].content[2]"),
            (LATER, "messages[7].role"),
        ],
    ),
    "the results' message gone": (
        drop("messages", 6),
        [
            (UNMATCHED, "messages[5].content[2].id"),
            (RESULT, "messages[6].role"),
            (LATER, "messages[7].role"),
        ],
    ),
    "the record cut behind the turn": (
        drop("messages", slice(6, 9)),
        [(UNMATCHED, "messages[5].content[2].id"), (LATER, "messages[7]")],
    ),
    "an exchange between call and results": (
        insert("messages", 6, new=[user("Wait."), assistant("Yes.")]),
        [
            (UNMATCHED, "messages[8].content[0].tool_use_id"),
            (RESULT, "messages[6].content"),
            (LATER, "messages[7].content"),
        ],
    ),
    "the results behind the answer": (
        exchange("messages", 6),
        [
            (UNMATCHED, "messages[7].content[0].tool_use_id"),
            (RESULT, "messages[6].role"),
            (LATER, "messages[7].role"),
        ],
    ),
    "a result's content changed": (
        put(*THE_RESULTS, 0, "content", to="47.5 EUR"),
        [(RESULT, "messages[6].content[0].content")],
    ),
    "a result's content that became a block": (
        put(*THE_RESULTS, 0, "content", to=[text("47.50 EUR")]),
        [(RESULT, "messages[6].content[0].content")],
    ),
    "a result that became an error": (
        put(*THE_RESULTS, 0, "is_error", to=True),
        [(RESULT, "messages[6].content[0].is_error")],
    ),
    "a success that is said": (
        put(*THE_RESULTS, 0, "is_error", to=False),
        [(RESULT, "messages[6].content[0].is_error")],
    ),
    "results in another order": (exchange(*THE_RESULTS, 0), [(RESULT, "messages[6].content[0].tool_use_id")]),
    "the contents of two results exchanged": (
        all_of(
            put(*THE_RESULTS, 0, "content", to=CUT_RESULTS[1]["content"]),
            put(*THE_RESULTS, 1, "content", to=CUT_RESULTS[0]["content"]),
        ),
        [(RESULT, "messages[6].content[0].content")],
    ),
    "text behind the results changed": (
        put(*THE_RESULTS, 2, "text", to="Be brief."),
        [(RESULT, "messages[6].content[2].text")],
    ),
    "text behind the results dropped": (drop(*THE_RESULTS, 2), [(RESULT, "messages[6].content[2]")]),
    "text added behind the results": (
        insert(*THE_RESULTS, 3, new=[text("Please.")]),
        [(RESULT, "messages[6].content[3]")],
    ),
    "the results' role changed": (put("messages", 6, "role", to="tool"), [(RESULT, "messages[6].role")]),
    # What follows.
    "the answer changed": (
        put("messages", 7, "content", 0, "text", to="47.50"),
        [(LATER, "messages[7].content[0].text")],
    ),
    "the last message dropped": (drop("messages", 8), [(LATER, "messages[8]")]),
    "a message added": (insert("messages", 9, new=[assistant("Bye.")]), [(LATER, "messages[9]")]),
    "later messages exchanged": (exchange("messages", 7), [(LATER, "messages[7].role")]),
    # Other fields.
    "a receipt changed": (
        put("receipt", "operation_id", to="read-invoice-2"),
        [("changed field: receipt", "receipt.operation_id")],
    ),
    "a receipt dropped": (drop("receipt"), [("changed field: receipt", "receipt")]),
    "a receipt of null": (put("receipt", to=None), [("changed field: receipt", "receipt")]),
    "a field added": (put("task_state", to=None), [("changed field: task_state", "task_state")]),
    "a temperature added": (put("temperature", to=1), [("changed field: temperature", "temperature")]),
    "a field with an escape character": (
        put("\x1b[2J", to=1),
        [(r"changed field: \x1b[2J", r'["\u001b[2J"]')],
    ),
    # Several at once.
    "all that can be changed, with right pairs": (
        all_of(
            put("receipt", to=0),
            put("messages", 8, "content", to="Thanks."),
            put(*THE_RESULTS, 1, "content", to="one"),
            put(*THE_TURN, 1, "text", to="Look."),
            put("messages", 0, "content", to="?"),
            drop("tools", 1),
            put("system", to=""),
            put("aside", to=1),
        ),
        [
            (SYSTEM, "system"),
            (TOOLS, "tools[1]"),
            (PREFIX, "messages[0].content"),
            (TURN, "messages[5].content[1].text"),
            (RESULT, "messages[6].content[1].content"),
            (LATER, "messages[8].content"),
            ("changed field: receipt", "receipt"),
            ("changed field: aside", "aside"),
        ],
    ),
    "all that can be changed, with a wrong pair": (
        all_of(
            put("receipt", to=0),
            put("messages", 8, "content", to="Thanks."),
            put(*THE_RESULTS, 1, "tool_use_id", to="toolu_9"),
            put(*THE_TURN, 1, "text", to="Look."),
            insert("messages", 0, new=[user("?"), assistant("!")]),
            drop("tools"),
            drop("system"),
        ),
        [
            (SYSTEM, "system"),
            (TOOLS, "tools"),
            (PREFIX, "messages[0].content"),
            (TURN, "messages[7].content[1].text"),
            (UNMATCHED, "messages[7].content[3].id"),
            (LATER, "messages[10].content"),
            ("changed field: receipt", "receipt"),
        ],
    ),
}

# Where a cache_control mark may be changed without changing the prefix.
MARK_PLACES = (
    ("system", 0),
    ("tools", 1),
    ("messages", 1, "content", 1),
    ("messages", 2, "content", 0),
    ("messages", 2, "content", 0, "content", 0),
    ("messages", 3, "content", 0),
    (*THE_TURN, 1),
    (*THE_TURN, 2),
    (*THE_RESULTS, 0),
    (*THE_RESULTS, 1, "content", 0),
    (*THE_RESULTS, 2),
    ("messages", 7, "content", 0),
)
# Where the same word is data like any other.
DATA_PLACES = {
    ("tools", 0, "input_schema"): TOOLS,
    ("tools", 0, "input_schema", "properties"): TOOLS,
    ("messages", 1, "content", 1, "input"): PREFIX,
    (*THE_TURN, 2, "input"): TURN,
    ("messages", 0): PREFIX,
    ("messages", 5): TURN,
    ("messages", 6): RESULT,
    ("messages", 7): LATER,
    ("receipt",): "changed field: receipt",
}
OUTSIDE = (
    *("model", "max_tokens", "output_config", "effort", "tool_choice", "thinking"),
    *("metadata", "stream", "service_tier", "cache_control"),
)

# Two JSON texts for one value, and whether they are the same value.
TEXTS = {
    "an exponent and a point": (b"1e3", b"1000.0", True),
    "an exponent and an integer": (b"1e3", b"1000", False),
    "a float and an integer": (b"1000.0", b"1000", False),
    "digits that a double does not hold": (b"0.1", b"0.10000000000000000001", True),
    "a float that was shortened": (b"0.30000000000000004", b"0.3", False),
    "minus zero and zero": (b"-0", b"0", True),
    "big integers": (b"9007199254740993", b"9007199254740992", False),
    "the same big integer": (b"[123456789012345678901234567890]", b"[123456789012345678901234567890]", True),
    "a big integer and its double": (b"1e22", b"10000000000000000000000", False),
    "one and true": (b"1", b"true", False),
    "zero and false": (b"0", b"false", False),
    "a number and its text": (b"1", b'"1"', False),
    "null and nothing": (b'{"a":null}', b"{}", False),
    "null and an empty string": (b"null", b'""', False),
    "null and an empty array": (b"null", b"[]", False),
    "an empty string and an empty array": (b'""', b"[]", False),
    "an empty array and an empty object": (b"[]", b"{}", False),
    "an escape and the letter": (rb'"Hallstr\u00f6m"', '"Hallstr\u00f6m"'.encode(), True),
    "an escaped slash": (rb'"a\/b"', b'"a/b"', True),
    "an emoji and its pair of escapes": (rb'"\ud83d\udce6"', '"\U0001f4e6"'.encode(), True),
    "NFC and NFD": ('"\u00f6"'.encode(), '"o\u0308"'.encode(), False),
    "CRLF and LF": (rb'"a\r\nb"', rb'"a\nb"', False),
    "a line break at the end": (rb'"a\n"', b'"a"', False),
    "a NUL and none": (rb'"a\u0000"', b'"a"', False),
    "a no-break space and a space": (rb'"\u00a0"', b'" "', False),
    "one lone surrogate, twice": (rb'"\ud83d"', rb'"\uD83D"', True),
    "a lone surrogate and its replacement": (rb'"\ud83d"', rb'"\ufffd"', False),
    "a lone surrogate and a question mark": (rb'"\ud83d"', b'"?"', False),
    "white space between tokens": (b' { "a" : [ 1 ,\r\n\t2 ] } ', b'{"a":[1,2]}', True),
    "keys in another order": (b'{"a":1,"b":{"c":2,"d":3}}', b'{"b":{"d":3,"c":2},"a":1}', True),
    "items in another order": (b"[1,2]", b"[2,1]", False),
}

# What pairs and what does not: (blocks of the turn, messages behind it, findings). The first message
# behind the turn is number 3.
NO_RESULT = "messages[2].content[{}].id: observed no result for {}, expected one"
PAIRS = {
    "no call": ([text("a")], [user("b")], []),
    "no call and nothing behind": ([], [], []),
    "a call and its result": ([call("a")], [user(result("a"))], []),
    "a call behind thinking": ([{"type": "thinking"}, call("a")], [user(result("a"), text("b"))], []),
    "parallel calls": ([call("a"), call("b")], [user(result("a"), result("b"))], []),
    "parallel calls in another order": ([call("a"), call("b")], [user(result("b"), result("a"))], []),
    "a server's call, which needs none": ([{"type": "server_tool_use", "id": "a"}], [user("b")], []),
    "later messages without results": ([call("a")], [user(result("a")), assistant("b"), user("c")], []),
    "nothing behind": ([call("a")], [], [NO_RESULT.format(0, '"a"')]),
    "text behind": ([call("a")], [user("a")], [NO_RESULT.format(0, '"a"')]),
    "one of two without a result": (
        [text("x"), call("a"), call("b")],
        [user(result("a"))],
        [NO_RESULT.format(2, '"b"')],
    ),
    "a result of no call": (
        [text("x")],
        [user(result("a"))],
        [
            'messages[3].content[0].tool_use_id: observed a result for "a",'
            " expected one for a call of the turn"
        ],
    ),
    "a result of another call": (
        [call("a")],
        [user(result("b"))],
        [
            NO_RESULT.format(0, '"a"'),
            'messages[3].content[0].tool_use_id: observed a result for "b",'
            " expected one for a call of the turn",
        ],
    ),
    "a call answered twice": (
        [call("a")],
        [user(result("a"), result("a"))],
        ['messages[3].content[1].tool_use_id: observed a result for "a", expected one'],
    ),
    "a call answered twice in two messages": (
        [call("a")],
        [user(result("a")), assistant("b"), user(result("a"))],
        ['messages[5].content[0].tool_use_id: observed a result for "a", expected one'],
    ),
    "a result behind text": (
        [call("a")],
        [user(text("b"), result("a"))],
        [
            'messages[3].content[1].tool_use_id: observed a result for "a",'
            " expected it at the beginning of the next message"
        ],
    ),
    "a result behind a block that is none": (
        [call("a")],
        [user(None, result("a"))],
        [
            'messages[3].content[1].tool_use_id: observed a result for "a",'
            " expected it at the beginning of the next message"
        ],
    ),
    "results over two messages": (
        [call("a"), call("b")],
        [user(result("a")), user(result("b"))],
        [
            'messages[4].content[0].tool_use_id: observed a result for "b",'
            " expected it at the beginning of the next message"
        ],
    ),
    "a result only in a later message": (
        [call("a")],
        [user("b"), assistant("c"), user(result("a"))],
        [
            'messages[5].content[0].tool_use_id: observed a result for "a",'
            " expected it at the beginning of the next message"
        ],
    ),
    "one id for two calls, two results": ([call("a"), call("a")], [user(result("a"), result("a"))], []),
    "an integer and its text": (
        [call(1)],
        [user(result("1"))],
        [
            NO_RESULT.format(0, 1),
            'messages[3].content[0].tool_use_id: observed a result for "1",'
            " expected one for a call of the turn",
        ],
    ),
    "an integer and true": (
        [call(1)],
        [user(result(True))],
        [
            NO_RESULT.format(0, 1),
            "messages[3].content[0].tool_use_id: observed a result for true,"
            " expected one for a call of the turn",
        ],
    ),
    "an id that is no string": (
        [call(["a"])],
        [user(result(["a"]))],
        [
            NO_RESULT.format(0, '["a"]'),
            'messages[3].content[0].tool_use_id: observed a result for ["a"], expected one',
        ],
    ),
    "an id that cannot be a key, of no call": (
        [call([])],
        [user(result({}))],
        [
            NO_RESULT.format(0, "[]"),
            "messages[3].content[0].tool_use_id: observed a result for {},"
            " expected one for a call of the turn",
        ],
    ),
    "a long id with an escape character": (
        [call("\x1b" * 20)],
        [],
        [NO_RESULT.format(0, '"' + r"\u001b" * 11 + r"\u001... (122 characters)")],
    ),
}


def summarise(findings):
    """Return [(label, path of the first finding)] of compare_sessions' changes."""
    return [(label, found[0].path) for label, found in findings.items()]


class ReplayTest(unittest.TestCase):
    def compare(self, restored, original=RECORD):
        """Return (changes in short, paths of the notes)."""
        changes, notes = compare_sessions(restored, original)
        return summarise(changes), [note.path for note in notes]

    def test_compare_sessions_each_change_is_named_in_order(self):
        for phrase, (change, expected) in CHANGES.items():
            with self.subTest(phrase):
                self.assertEqual(self.compare(changed(change)), (expected, []))

    def test_compare_sessions_each_change_the_other_way_is_found_too(self):
        for phrase, (change, expected) in CHANGES.items():
            with self.subTest(phrase):
                labels = [label for label, _ in self.compare(RECORD, changed(change))[0]]
                if set(dict(expected)) - {UNMATCHED, RESULT, LATER, TURN}:
                    self.assertEqual(labels[:1], [expected[0][0]])
                else:
                    self.assertEqual(bool(labels), bool(expected))

    def test_compare_sessions_finding_says_both_values(self):
        restored = changed(all_of(put(*THE_TURN, 2, "input", "limit", to="5"), drop("messages", 8)))
        changes, notes = compare_sessions(restored, RECORD)
        expected = {
            TURN: ['messages[5].content[2].input.limit: observed the string "5", expected the integer 5'],
            LATER: [
                'messages[8]: observed nothing, expected the object {"role":"user","content":"Thank you."}'
            ],
        }
        self.assertEqual({label: [str(one) for one in found] for label, found in changes.items()}, expected)
        self.assertEqual(notes, [])

    def test_compare_sessions_key_order_does_not_count(self):
        self.assertEqual(self.compare(sort_keys(RECORD)), ([], []))
        self.assertEqual(self.compare(parse_json(json.dumps(RECORD, indent=3).encode())), ([], []))

    def test_compare_sessions_records_are_left_as_they_are(self):
        restored = changed(put(*THE_TURN, 1, "cache_control", to=MARK))
        before, original = copy.deepcopy(restored), copy.deepcopy(RECORD)
        compare_sessions(restored, original)
        self.assertEqual((restored, original), (before, RECORD))

    def test_compare_sessions_every_leaf_changed_is_found(self):
        """A sweep: whatever single value is changed, it is found under the label of its place."""

        def walk(value, path=()):
            if isinstance(value, (dict, list)) and value:
                for part, child in value.items() if isinstance(value, dict) else enumerate(value):
                    yield from walk(child, (*path, part))
            else:
                yield path

        labels = {"system": SYSTEM, "tools": TOOLS, "receipt": "changed field: receipt"}
        paths = [path for path in walk(RECORD) if path[0] not in OUTSIDE]
        self.assertGreater(len(paths), 50)
        for path in paths:
            for other in (None, True, 7, "other", [], {}):
                if type(find(RECORD, path)) is type(other) and find(RECORD, path) == other:
                    continue
                with self.subTest(path=render_path(path), other=other):
                    restored = changed(put(*path, to=other))
                    changes, notes = compare_sessions(restored, RECORD)
                    self.assertEqual(notes, [])
                    label = labels.get(path[0])
                    if path[0] == "messages":
                        label = PREFIX if path[1] < 5 else TURN if path[1] == 5 else RESULT
                        label = LATER if path[1] > 6 else label
                    if path[1:2] == (6,) and path[-1] in ("tool_use_id", "type") and UNMATCHED in changes:
                        label = UNMATCHED
                    self.assertIn(label, changes)
                    # Without its role or type a turn or a result is gone, which is said elsewhere.
                    gone = path == ("messages", 5, "role") or (
                        path[:2] == ("messages", 6) and path[-1] == "type"
                    )
                    if not gone:
                        self.assertIn(render_path(path), [finding.path for finding in changes[label]])
                    self.assertTrue(compare_sessions(RECORD, restored)[0])

    def test_compare_sessions_every_item_dropped_or_doubled_is_found(self):
        def walk(value, path=()):
            children = value.items() if isinstance(value, dict) else ()
            for part, child in enumerate(value) if isinstance(value, list) else children:
                yield (*path, part)
                yield from walk(child, (*path, part))

        paths = [path for path in walk(RECORD) if path[0] not in OUTSIDE and path != ("messages",)]
        self.assertGreater(len(paths), 100)
        for path in paths:
            with self.subTest(path=render_path(path)):
                self.assertTrue(compare_sessions(changed(drop(*path)), RECORD)[0])
                if isinstance(path[-1], int):
                    doubled = changed(insert(*path, new=[find(RECORD, path)]))
                    self.assertTrue(compare_sessions(doubled, RECORD)[0])

    def test_compare_sessions_texts_are_compared_as_values_wherever_they_stand(self):
        places = {
            ("system",): SYSTEM,
            ("tools", 0, "input_schema", "properties", "limit", "default"): TOOLS,
            ("messages", 0, "content"): PREFIX,
            (*THE_TURN, 2, "input", "limit"): TURN,
            (*THE_RESULTS, 0, "content"): RESULT,
            ("messages", 8, "content"): LATER,
            ("receipt",): "changed field: receipt",
        }
        for phrase, (one, other, same) in TEXTS.items():
            for place, label in places.items():
                with self.subTest(phrase, place=render_path(place)):
                    values = parse_json(one), parse_json(other)
                    for observed, expected in (values, values[::-1]):
                        changes, notes = compare_sessions(
                            changed(put(*place, to=observed)), changed(put(*place, to=expected))
                        )
                        self.assertEqual(list(changes), [] if same else [label])
                        self.assertEqual(notes, [])

    def test_compare_sessions_absent_null_and_empty_differ_in_every_pair(self):
        for field, label in (("system", SYSTEM), ("tools", TOOLS), ("receipt", "changed field: receipt")):
            records = {"absent": changed(drop(field))}
            records.update(
                {repr(value): changed(put(field, to=value)) for value in (None, "", [], {}, 0, False)}
            )
            for one, restored in records.items():
                for other, original in records.items():
                    with self.subTest(field=field, restored=one, original=other):
                        expected = [] if one == other else [(label, field)]
                        self.assertEqual(self.compare(restored, original), (expected, []))


class MarkTest(unittest.TestCase):
    """cache_control on tools and blocks is outside the prefix, elsewhere the word is data."""

    def test_compare_sessions_mark_where_it_is_allowed_is_a_note(self):
        for place in MARK_PLACES:
            path = (*place, "cache_control")
            for value in (MARK, None, {**MARK, "ttl": "1h"}):
                with self.subTest(place=render_path(place), value=value):
                    marked = changed(put(*path, to=value))
                    for pair in ((marked, RECORD), (RECORD, marked)):
                        changes, notes = compare_sessions(*pair)
                        self.assertEqual(changes, {})
                        self.assertEqual([note.path for note in notes], [render_path(path)])
                    self.assertEqual(compare_sessions(marked, marked), ({}, []))

    def test_compare_sessions_mark_whose_life_was_changed_is_a_note(self):
        path = ("system", 1, "cache_control")
        restored = changed(put(*path, to=MARK))
        changes, notes = compare_sessions(restored, changed(put(*path, to={**MARK, "ttl": "1h"})))
        self.assertEqual(changes, {})
        expected = 'system[1].cache_control.ttl: observed nothing, expected the string "1h"'
        self.assertEqual([str(note) for note in notes], [expected])

    def test_compare_sessions_mark_that_moved_is_two_notes(self):
        restored = changed(put("tools", 0, "cache_control", to=MARK))
        changes, notes = compare_sessions(restored, changed(put("tools", 1, "cache_control", to=MARK)))
        self.assertEqual(changes, {})
        paths = [note.path for note in notes]
        self.assertEqual(paths, ["tools[0].cache_control", "tools[1].cache_control"])

    def test_compare_sessions_mark_inside_data_is_a_change(self):
        for place, label in DATA_PLACES.items():
            path = (*place, "cache_control")
            with self.subTest(place=render_path(place)):
                marked = changed(put(*path, to=MARK))
                for pair in ((marked, RECORD), (RECORD, marked)):
                    changes, notes = compare_sessions(*pair)
                    self.assertEqual(summarise(changes), [(label, render_path(path))])
                    self.assertEqual(notes, [])

    def test_compare_sessions_mark_in_a_list_that_only_resembles_blocks_is_a_change(self):
        table = {
            "a list in another field": (("receipt",), "changed field: receipt"),
            "content of a tool": (("tools", 0, "content"), TOOLS),
            "content of a system block": (("system", 0, "content"), SYSTEM),
            "source of a block": ((*THE_TURN, 1, "source"), TURN),
        }
        for phrase, (place, label) in table.items():
            with self.subTest(phrase):
                restored = changed(put(*place, to=[{"type": "text", "cache_control": MARK}]))
                original = changed(put(*place, to=[{"type": "text"}]))
                changes, notes = compare_sessions(restored, original)
                path = render_path((*place, 0, "cache_control"))
                self.assertEqual((summarise(changes), notes), ([(label, path)], []))

    def test_compare_sessions_mark_beside_a_change_hides_nothing(self):
        change = all_of(
            put(*THE_TURN, 1, to={**text("Look."), "cache_control": MARK}), put("max_tokens", to=1)
        )
        changes, notes = compare_sessions(changed(change), RECORD)
        self.assertEqual(summarise(changes), [(TURN, "messages[5].content[1].text")])
        paths = [note.path for note in notes]
        self.assertEqual(paths, ["messages[5].content[1].cache_control", "max_tokens"])

    def test_compare_sessions_field_outside_the_prefix_is_a_note(self):
        for field in OUTSIDE:
            for value in (None, "other", {"a": 1}, 7):
                with self.subTest(field=field, value=value):
                    other = changed(put(field, to=value))
                    for pair in ((other, RECORD), (RECORD, other)):
                        changes, notes = compare_sessions(*pair)
                        self.assertEqual(changes, {})
                        self.assertEqual([note.path for note in notes], [field])

    def test_compare_sessions_field_outside_the_prefix_that_is_gone_is_a_note(self):
        changes, notes = compare_sessions(changed(all_of(drop("model"), drop("max_tokens"))), RECORD)
        self.assertEqual(changes, {})
        expected = [
            'model: observed nothing, expected the string "anthropic/claude-fable-5.2"',
            "max_tokens: observed nothing, expected the integer 4096",
        ]
        self.assertEqual([str(note) for note in notes], expected)

    def test_compare_sessions_field_that_only_resembles_one_is_a_change(self):
        for field in ("Model", "max_token", "system_prompt", "tool_choices", "stop_sequences", "temperature"):
            with self.subTest(field):
                changes, notes = compare_sessions(changed(put(field, to=1)), RECORD)
                self.assertEqual((summarise(changes), notes), ([(f"changed field: {field}", field)], []))


class TurnTest(unittest.TestCase):
    """Which message is the turn in hand, also where there is none."""

    def labels(self, restored, original):
        return list(compare_sessions({"messages": restored}, {"messages": original})[0])

    def check(self, table):
        for phrase, (restored, original, labels) in table.items():
            with self.subTest(phrase):
                self.assertEqual(self.labels(restored, original), labels)

    def test_compare_sessions_turn_is_the_last_with_a_call_else_the_last(self):
        ask, answer = user("a"), assistant("b")
        turns = [ask, assistant(text("c")), user("d"), answer, user("e")]
        calls = [ask, assistant(call("x")), user(result("x")), answer]
        self.check(
            {
                "the last answer changed": ([*turns[:3], assistant("?"), user("e")], turns, [TURN]),
                "an answer before it changed": ([ask, assistant(text("?")), *turns[2:]], turns, [PREFIX]),
                "a message behind it changed": ([*turns[:4], user("?")], turns, [LATER]),
                "a message behind it dropped": (turns[:4], turns, [LATER]),
                "the answer behind a call changed": ([*calls[:3], assistant("?")], calls, [LATER]),
                "the answer behind a call dropped": (calls[:3], calls, [LATER]),
                "a call added to the last answer": (
                    [*turns[:3], assistant(call("x")), user(result("x"))],
                    turns,
                    [TURN, LATER],
                ),
                "a server's call is none": (
                    [ask, assistant({"type": "server_tool_use", "id": "s"}), user("?")],
                    [ask, assistant({"type": "server_tool_use", "id": "s"}), user("d")],
                    [LATER],
                ),
            }
        )

    def test_compare_sessions_record_without_a_turn_is_compared_all_the_same(self):
        ask = [user("a"), user("b")]
        self.check(
            {
                "nothing in both": ([], [], []),
                "no assistant in both": (ask, ask, []),
                "a message changed": ([user("a"), user("?")], ask, [PREFIX]),
                "a message dropped": (ask[:1], ask, [PREFIX]),
                "a message added": ([*ask, user("c")], ask, [PREFIX]),
                "a turn added": ([*ask, assistant("c")], ask, [TURN]),
                "the only turn gone": (ask, [*ask, assistant("c")], [TURN]),
                "all gone": ([], ask, [PREFIX]),
                "all gone, the turn too": ([], [user("a"), assistant("b")], [PREFIX, TURN]),
            }
        )

    def test_compare_sessions_restored_turn_that_was_cut_or_repeated_is_found(self):
        whole = [user("a"), assistant(call("x")), user(result("x")), assistant(call("y")), user(result("y"))]
        self.check(
            {
                "the same": (whole, whole, []),
                "cut behind the call": (whole[:4], whole, [UNMATCHED]),
                "the results doubled": ([*whole, whole[4]], whole, [UNMATCHED, LATER]),
                "the turn and its results doubled": ([*whole, *whole[3:]], whole, [PREFIX]),
                "the turn gone": ([*whole[:3], whole[4]], whole, [TURN, UNMATCHED]),
            }
        )

    def test_compare_sessions_record_cut_before_the_turn_is_not_intact(self):
        whole = [user("a"), assistant(call("x")), user(result("x")), assistant(call("y")), user(result("y"))]
        for length in range(5):
            with self.subTest(length=length):
                self.assertTrue(self.labels(whole[:length], whole))

    def test_compare_sessions_turn_under_another_role_is_changed(self):
        for role in ("user", "Assistant", None, 1):
            with self.subTest(role=role):
                labels = list(compare_sessions(changed(put("messages", 5, "role", to=role)), RECORD)[0])
                self.assertEqual(labels[:2], [TURN, UNMATCHED])

    def test_compare_sessions_next_tool_turn_added_is_not_intact(self):
        whole = [user("a"), assistant(call("x")), user(result("x"))]
        labels = self.labels([*whole, assistant(call("y")), user(result("y"))], whole)
        self.assertIn(LATER, labels)

    def test_compare_sessions_next_tool_turn_that_is_not_answered_is_unmatched(self):
        whole = [user("a"), assistant(call("x")), user(result("x"))]
        endings = {
            "nothing": [],
            "words": [user(text("go on"))],
            "a result of another call": [user(result("z"))],
            "a result of the turn's call": [user(result("x"))],
        }
        for phrase, ending in endings.items():
            for begin in (whole, [user("a"), assistant(text("b"))]):
                with self.subTest(phrase, begin=len(begin)):
                    labels = self.labels([*begin, assistant(call("y")), *ending], begin)
                    self.assertIn(UNMATCHED, labels)
        answered = [*whole, assistant(call("y")), user(result("y"))]
        self.assertEqual(self.labels(answered, whole), [LATER])

    def test_compare_sessions_each_of_several_later_turns_is_judged(self):
        whole = [user("a"), assistant(call("x")), user(result("x"))]
        answered = [assistant(call("z")), user(result("z"))]
        unanswered = [assistant(call("y")), user(text("go on"))]
        for phrase, later in {"first": [*unanswered, *answered], "last": [*answered, *unanswered]}.items():
            with self.subTest(phrase):
                self.assertEqual(self.labels([*whole, *later], whole), [UNMATCHED, LATER])
        self.assertEqual(self.labels([*whole, *answered, *answered], whole), [LATER])

    def test_compare_sessions_result_whose_turn_is_gone_is_unmatched(self):
        whole = [user("a"), assistant(call("x")), user(result("x"))]
        for more in ([], [user("b")], [user("b"), user("c")]):
            with self.subTest(more=len(more)):
                self.assertIn(UNMATCHED, self.labels([whole[0], whole[2], *more], whole))

    def test_compare_sessions_other_turn_in_a_changed_place_is_judged(self):
        original = [user("a"), assistant(call("x")), user(result("x"))]
        restored = [user("a"), user("b"), assistant(call("y")), user(result("x"))]
        self.assertIn(UNMATCHED, self.labels(restored, original))

    def test_compare_sessions_fault_of_the_original_is_named_all_the_same(self):
        faults = {
            "no result": drop(*THE_RESULTS, 0),
            "a result of no call": insert(*THE_RESULTS, 0, new=[result("toolu_9")]),
            "an answer twice": insert(*THE_RESULTS, 2, new=[CUT_RESULTS[0]]),
            "text in front": insert(*THE_RESULTS, 0, new=[text("a")]),
            "results over two messages": insert("messages", 6, new=[user(CUT_RESULTS[0])]),
            "nothing behind the call": drop("messages", slice(6, 9)),
        }
        for phrase, change in faults.items():
            with self.subTest(phrase):
                record = changed(change)
                changes, notes = compare_sessions(record, copy.deepcopy(record))
                self.assertEqual((list(changes), notes), ([UNMATCHED], []))
                self.assertIn(UNMATCHED, compare_sessions(record, RECORD)[0])
                self.assertNotIn(UNMATCHED, compare_sessions(RECORD, record)[0])

    def test_compare_sessions_pairing_of_an_earlier_turn_is_not_judged(self):
        record = changed(drop("messages", 2))
        self.assertEqual(compare_sessions(record, copy.deepcopy(record)), ({}, []))


class OddRecordTest(unittest.TestCase):
    """Whatever JSON stands in a record, it is compared without a crash."""

    ODD = (None, True, 0, 1.5, "", "a", [], {}, [None], [{}], {"role": "assistant"}, {"content": [[]]})

    def test_compare_sessions_messages_that_are_none_are_compared(self):
        for odd in self.ODD:
            for index in range(9):
                with self.subTest(odd=odd, index=index):
                    record = changed(put("messages", index, to=odd))
                    self.assertTrue(compare_sessions(record, RECORD)[0])
                    self.assertTrue(compare_sessions(RECORD, record)[0])
                    same = set(compare_sessions(record, copy.deepcopy(record))[0])
                    self.assertLessEqual(same, {UNMATCHED})

    def test_compare_sessions_blocks_and_contents_that_are_none_are_compared(self):
        places = [(*path, 0) for path in (("system",), ("tools",), THE_TURN, THE_RESULTS)]
        places += [("system",), ("tools",), THE_TURN, THE_RESULTS, (*THE_RESULTS, 1, "content")]
        for odd in self.ODD:
            for path in places:
                with self.subTest(odd=odd, path=render_path(path)):
                    record = changed(put(*path, to=odd))
                    self.assertTrue(compare_sessions(record, RECORD)[0])
                    self.assertTrue(compare_sessions(RECORD, record)[0])

    def test_compare_sessions_ids_that_cannot_be_keys_are_compared(self):
        for odd in ([], {}, [1], {"a": []}, None, True, 1.0, "\ud83d"):
            with self.subTest(id=odd):
                record = changed(
                    all_of(put(*THE_TURN, 2, "id", to=odd), put(*THE_RESULTS, 0, "tool_use_id", to=odd))
                )
                pairs = isinstance(odd, str)  # what is no string is no id, on either side
                label = [] if pairs else [UNMATCHED]
                self.assertEqual(list(compare_sessions(record, copy.deepcopy(record))[0]), label)
                expected = [TURN, RESULT] if pairs else [TURN, UNMATCHED]
                self.assertEqual(list(compare_sessions(record, RECORD)[0]), expected)

    def test_compare_sessions_deepest_record_that_is_read_is_compared(self):
        block = text("a")
        for _ in range(97):  # an object and an array each, inside a message: 200 levels
            block = {"type": "tool_result", "content": [block]}
        record = parse_json(json.dumps({"messages": [user(block)]}).encode())
        other = parse_json(json.dumps({"messages": [user(block)]}).replace('"a"', '"b"').encode())
        self.assertEqual(compare_sessions(record, copy.deepcopy(record)), ({}, []))
        path = render_path(["messages", 0, *["content", 0] * 98, "text"])
        self.assertLess(len(path), 1_000)
        self.assertEqual(summarise(compare_sessions(record, other)[0]), [(PREFIX, path)])

    def test_compare_sessions_many_later_turns_take_no_longer_each_and_are_cut(self):
        whole = [assistant(call("x")), user(result("x"))]
        later = [assistant(call("y")), user("a")] * 150_000
        changes, _ = compare_sessions({"messages": [*whole, *later]}, {"messages": whole})
        findings = changes[UNMATCHED]
        self.assertEqual(len(findings), MOST_FINDINGS + 1)
        self.assertIn("not looked at", findings[-1].message)

    def test_compare_sessions_many_changes_are_all_found(self):
        turn, many = assistant("a"), [1] * 9_000
        for messages in ([turn, *many], [*many, turn]):
            changes = compare_sessions({"messages": messages}, {"messages": [turn]})[0]
            self.assertEqual([len(found) for found in changes.values()], [9_000])


class PairTest(unittest.TestCase):
    def test_find_unmatched_results_each_pair_is_judged(self):
        for phrase, (content, behind, expected) in PAIRS.items():
            with self.subTest(phrase):
                findings = find_unmatched_results([{"role": "assistant", "content": content}], behind, 3)
                self.assertEqual([str(finding) for finding in findings], expected)

    def test_find_unmatched_results_turn_that_is_none_has_no_calls(self):
        for turn in (
            None,
            "a",
            [],
            {},
            {"content": None},
            {"content": "a"},
            {"content": [None, []]},
            object(),
        ):
            with self.subTest(turn=turn):
                self.assertEqual(find_unmatched_results([turn], [user("a"), None, 3, {}], 1), [])
                findings = find_unmatched_results([turn], [user(result("a"))], 1)
                self.assertEqual([one.path for one in findings], ["messages[1].content[0].tool_use_id"])

    def test_find_unmatched_results_many_calls_are_paired(self):
        calls = [call(f"toolu_{number}") for number in range(5_000)]
        results = [result(f"toolu_{number}") for number in reversed(range(5_000))]
        self.assertEqual(find_unmatched_results([assistant(*calls)], [user(*results)], 1), [])
        self.assertEqual(len(find_unmatched_results([assistant(*calls)], [user(*results[:1])], 1)), 4_999)


class UnmatchedBesideChangedTest(unittest.TestCase):
    """A result that does not pair hides no other result that was changed."""

    def label(self, *results):
        original = {"messages": [user("a"), assistant(call("1"), call("2")), user(result("1"), result("2"))]}
        restored = copy.deepcopy(original)
        restored["messages"][2] = user(*results)
        changes, _ = compare_sessions(restored, original)
        return {label: [finding.path for finding in findings] for label, findings in changes.items()}

    def test_compare_sessions_results_that_pair_are_compared_beside_one_that_does_not(self):
        missing = {"unmatched tool result": ["messages[1].content[1].id"]}
        changed = {**missing, "changed tool result": ["messages[2].content[0].content"]}
        renamed = ["messages[1].content[1].id", "messages[2].content[1].tool_use_id"]
        table = {
            "one is gone": ([result("1")], missing),
            "one is gone, the other was changed": ([result("1", "9")], changed),
            "one has another id, the other was changed": (
                [result("1", "9"), result("3")],
                {"unmatched tool result": renamed, "changed tool result": ["messages[2].content[0].content"]},
            ),
            "one is there twice": (
                [result("1"), result("2"), result("2", "9")],
                {"unmatched tool result": ["messages[2].content[2].tool_use_id"]},
            ),
        }
        for phrase, (results, expected) in table.items():
            with self.subTest(phrase):
                self.assertEqual(self.label(*results), expected)


class HiddenChangeTest(unittest.TestCase):
    """Nothing stands in front of a change so that it is not seen."""

    def test_compare_sessions_marks_without_end_hide_no_change(self):
        def record(mark, words):
            blocks = [{**text("a"), "cache_control": [mark] * 100}] * 110
            return {"messages": [user(*blocks, text(words)), assistant("ok")]}

        changes, notes = compare_sessions(record(1, "pay nothing"), record(0, "pay all"))
        self.assertEqual(summarise(changes), [(PREFIX, "messages[0].content[110].text")])
        self.assertEqual(len(notes), 10_000)

    def test_compare_sessions_fields_that_are_shown_alike_are_two(self):
        original = {"messages": [], "\x1b": "paid: no", "\\x1b": 0}
        restored = {"messages": [], "\\x1b": 0, "\x1b": "paid: no"}
        self.assertEqual(compare_sessions(restored, original), ({}, []))
        restored["\x1b"] = "paid: yes"
        self.assertEqual(list(compare_sessions(restored, original)[0]), ["changed field: \\x1b"])

    def test_compare_sessions_words_beside_an_unmatched_result_are_compared(self):
        results = [result("1"), result("9"), text("do not pay")]
        original = {"messages": [user("a"), assistant(call("1")), user(*results)]}
        restored = changed(put("messages", 2, "content", 2, "text", to="pay"), original)
        unmatched = ("unmatched tool result", "messages[2].content[1].tool_use_id")
        self.assertEqual(
            summarise(compare_sessions(restored, original)[0]),
            [unmatched, (RESULT, "messages[2].content[2].text")],
        )
        self.assertEqual(summarise(compare_sessions(original, original)[0]), [unmatched])

    def test_compare_sessions_every_word_that_is_gone_beside_an_unmatched_result_is_found(self):
        calls = [call("1"), call("2")]
        for contents in (
            ([text("stop"), result("1"), result("2")], [result("1")]),
            ([result("1"), text("stop"), text("go"), result("2")], [result("1"), text("go")]),
            ([result("1"), text("stop"), text("go")], [result("9"), result("1")]),
            ([result("1"), text("go"), text("stop")], [result("9"), result("1")]),
            ([text("stop"), result("1"), result("2")], [result("1"), result("9"), result("2")]),
            ([result("2"), text("stop"), result("1")], [result("8"), result("1"), result("9"), result("2")]),
        ):
            before, after = (
                {"messages": [user("a"), assistant(*calls), user(*content)]} for content in contents
            )
            for restored, original in ((after, before), (before, after)):
                with self.subTest(restored=restored):
                    changes, _ = compare_sessions(restored, original)
                    self.assertIn("stop", " ".join(map(str, changes.get(RESULT, []))))

    def test_compare_sessions_message_in_the_place_of_results_is_compared(self):
        original = {"messages": [user("a"), assistant(call("1")), user("x")]}
        restored = changed(put("messages", 2, "content", to="y"), original)
        self.assertEqual(list(compare_sessions(restored, original)[0]), [UNMATCHED, RESULT])


class ReplayCasesTest(unittest.TestCase):
    """Each pair in tests/cases/replay is named for what its restored record suffered."""

    folder = CASES / "replay"

    def setUp(self):
        lines = (self.folder / "expected.jsonl").read_text(encoding="utf-8").split("\n")
        self.cases = {case["name"]: case["label"] for case in map(json.loads, filter(None, lines))}

    def read(self, name):
        return parse_json((self.folder / name).read_bytes())

    def test_cases_every_pair_is_listed_and_there_are_both_kinds(self):
        names = {path.name for path in self.folder.glob("*.json")}
        listed = {f"{name}.{kind}.json" for name in self.cases for kind in ("original", "restored")}
        self.assertEqual(names, listed)
        self.assertGreaterEqual(len(self.cases), 36)
        labels = {SYSTEM, TOOLS, PREFIX, TURN, UNMATCHED, "intact"}
        self.assertEqual(set(self.cases.values()), labels)

    def test_cases_each_has_the_expected_label_first(self):
        self.assertTrue(self.cases)
        for name, label in self.cases.items():
            with self.subTest(name):
                restored, original = self.read(f"{name}.restored.json"), self.read(f"{name}.original.json")
                self.assertEqual([*compare_sessions(restored, original)[0], "intact"][0], label)
                self.assertEqual(compare_sessions(original, original), ({}, []))

    def test_cases_mark_that_is_gone_is_named_in_a_note(self):
        name = "059-system-cache-control-gone"
        changes, notes = compare_sessions(
            self.read(f"{name}.restored.json"), self.read(f"{name}.original.json")
        )
        self.assertEqual((changes, [note.path for note in notes]), ({}, ["system[1].cache_control"]))


if __name__ == "__main__":
    unittest.main()
