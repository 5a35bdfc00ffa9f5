"""compare_sessions: every value of a session record counts, whatever JSON it is."""

from __future__ import annotations

import copy
import json
import unittest

from checkpoint_demo import MOST_FINDINGS, compare_sessions, parse_json, render_path
from tests.session_records import (
    LATER,
    OUTSIDE,
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
from tests.support import drop, find, put, walk

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


class ValueTest(unittest.TestCase):
    def compare(self, restored, original=RECORD):
        """Return (changes in short, paths of the notes)."""
        changes, notes = compare_sessions(restored, original)
        return summarise(changes), [note.path for note in notes]

    def test_compare_sessions_every_leaf_changed_is_found(self):
        """A sweep: whatever single value is changed, it is found under the label of its place."""

        labels = {"system": SYSTEM, "tools": TOOLS, "receipt": "changed field: receipt"}
        paths = [
            path
            for path, value in walk(RECORD)
            if path and path[0] not in OUTSIDE and not (isinstance(value, (dict, list)) and value)
        ]
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
        paths = [
            path for path, _ in walk(RECORD) if path and path[0] not in OUTSIDE and path != ("messages",)
        ]
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


if __name__ == "__main__":
    unittest.main()
