"""compare_sessions: whatever is changed in a session record has its label and its place."""

from __future__ import annotations

import copy
import json
import unittest

from checkpoint_demo import compare_sessions, parse_json
from tests.session_records import (
    CUT_RESULTS,
    LATER,
    MARK,
    MESSAGES,
    PREFIX,
    RECORD,
    RESULT,
    SYSTEM,
    THE_RESULTS,
    THE_TURN,
    TOOLS,
    TURN,
    UNMATCHED,
    all_of,
    assistant,
    call,
    changed,
    insert,
    result,
    summarise,
    text,
    user,
)
from tests.support import CASES, drop, exchange, put

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
        [(UNMATCHED, "messages[5].content[2].id")],
    ),
    "text in front of the results": (
        insert(*THE_RESULTS, 0, new=[text("Here.")]),
        [(UNMATCHED, "messages[6].content[1].tool_use_id")],
    ),
    "text between the results": (
        insert(*THE_RESULTS, 1, new=[text("And.")]),
        [(UNMATCHED, "messages[6].content[2].tool_use_id")],
    ),
    "the results as text": (
        put("messages", 6, "content", to="47.50 EUR"),
        [(UNMATCHED, "messages[5].content[2].id")],
    ),
    "the results over two messages": (
        all_of(
            insert("messages", 7, new=[{"role": "user", "content": MESSAGES[6]["content"][1:]}]),
            drop(*THE_RESULTS, slice(1, 3)),
        ),
        [
            (UNMATCHED, "messages[7].content[0].tool_use_id"),
            (LATER, "messages[7].role"),
        ],
    ),
    "the results' message gone": (
        drop("messages", 6),
        [
            (UNMATCHED, "messages[5].content[2].id"),
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
            (LATER, "messages[7].content"),
        ],
    ),
    "the results behind the answer": (
        exchange("messages", 6),
        [
            (UNMATCHED, "messages[7].content[0].tool_use_id"),
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


def sort_keys(value):
    """Return a value with the keys of all its objects in reverse order."""
    if isinstance(value, dict):
        return {key: sort_keys(value[key]) for key in sorted(value, reverse=True)}
    return [sort_keys(item) for item in value] if isinstance(value, list) else value


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
            TURN: [
                f'{TURN}, messages[5].content[2].input.limit: observed the string "5", expected the integer 5'
            ],
            LATER: [
                f"{LATER}, messages[8]: observed nothing,"
                ' expected the object {"role":"user","content":"Thank you."}'
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
