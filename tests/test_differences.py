"""find_differences and list_differences: every place where two values differ."""

from __future__ import annotations

import unittest

from checkpoint_demo import MISSING, list_differences
from checkpoint_demo import find_differences as yield_differences


def find_differences(*arguments):
    """Return what the function under test yields."""
    return list(yield_differences(*arguments))


# The two values are the same: (observed, expected).
EQUAL = {
    "numbers": (3, 3),
    "floats": (0.1, 0.10),
    "big integers": (10**400, 10**400),
    "null": (None, None),
    "nothing on both sides": (MISSING, MISSING),
    "empty containers": ([[], {}], [[], {}]),
    "other order of keys": ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
    "lone surrogates": ({"\ud83d": "\ud83d"}, {"\ud83d": "\ud83d"}),
}

# The two values differ: (observed, expected, [(path parts, observed there, expected there)]).
DIFFERENT = {
    "minus zero and zero": ([-0.0], [0.0], [((0,), -0.0, 0.0)]),
    "an integer and a float": (1, 1.0, [((), 1, 1.0)]),
    "an integer and true": ([1], [True], [((0,), 1, True)]),
    "a float and true": ({"a": 1.0}, {"a": True}, [(("a",), 1.0, True)]),
    "zero and false": (0, False, [((), 0, False)]),
    "a number and its text": (["3"], [3], [((0,), "3", 3)]),
    "null and false": ([None], [False], [((0,), None, False)]),
    "null and zero": ([None], [0], [((0,), None, 0)]),
    "null and an empty string": ({"a": None}, {"a": ""}, [(("a",), None, "")]),
    "null and an empty array": ({"a": None}, {"a": []}, [(("a",), None, [])]),
    "an empty array and an empty object": ([], {}, [((), [], {})]),
    "an empty string and an empty array": (["", 1], [[], 1], [((0,), "", [])]),
    "absent and null": ({}, {"a": None}, [(("a",), MISSING, None)]),
    "null and absent": ({"a": None}, {}, [(("a",), None, MISSING)]),
    "absent and empty": ({}, {"a": ""}, [(("a",), MISSING, "")]),
    "nothing and a value": (MISSING, {"a": 1}, [((), MISSING, {"a": 1})]),
    "a value and nothing": (0, MISSING, [((), 0, MISSING)]),
    "integers beyond 2**53": ([9007199254740993], [9007199254740992], [((0,), 9007199254740993, 2**53)]),
    "a big integer and its float": (2**53, 2.0**53, [((), 2**53, 2.0**53)]),
    "floats in the last digit": (
        0.30000000000000004,
        0.3,
        [((), 0.30000000000000004, 0.3)],
    ),
    "NFC and NFD": ("\u00e4", "a\u0308", [((), "\u00e4", "a\u0308")]),
    "keys in NFC and NFD": (
        {"\u00e4": 1},
        {"a\u0308": 1},
        [(("\u00e4",), 1, MISSING), (("a\u0308",), MISSING, 1)],
    ),
    "CRLF and LF": (["a\r\nb"], ["a\nb"], [((0,), "a\r\nb", "a\nb")]),
    "upper and lower case": ("A", "a", [((), "A", "a")]),
    "a space at the end": ("a ", "a", [((), "a ", "a")]),
    "a lone surrogate and its replacement": ("\ud83d", "\ufffd", [((), "\ud83d", "\ufffd")]),
    "a NUL that was dropped": ("a", "a\x00", [((), "a", "a\x00")]),
    "two items in another order": ([1, 2, 3], [2, 1, 3], [((0,), 1, 2), ((1,), 2, 1)]),
    "an item more": ([1, 2, [3]], [1], [((1,), 2, MISSING), ((2,), [3], MISSING)]),
    "an item less": ([1], [1, None, 3], [((1,), MISSING, None), ((2,), MISSING, 3)]),
    "an item put in front": ([0, 1], [1], [((0,), 0, 1), ((1,), 1, MISSING)]),
    "an array around a value": ([[1]], [1], [((0,), [1], 1)]),
    "an object and an array": ({"a": {"0": 1}}, {"a": [1]}, [(("a",), {"0": 1}, [1])]),
    "a nested value": (
        {"a": [{"b": [0, {"c": 1}]}]},
        {"a": [{"b": [0, {"c": 2}]}]},
        [(("a", 0, "b", 1, "c"), 1, 2)],
    ),
    "keys of both sides, the observed first": (
        {"b": 1, "x": 1, "a": 1},
        {"y": 1, "a": 2, "z": 1, "b": 2},
        [
            (("b",), 1, 2),
            (("x",), 1, MISSING),
            (("a",), 1, 2),
            (("y",), MISSING, 1),
            (("z",), MISSING, 1),
        ],
    ),
    "all places, not the first": (
        {"a": [1, {"b": None}], "c": {"d": "e"}},
        {"a": [2, {"b": 0}], "c": {}},
        [(("a", 0), 1, 2), (("a", 1, "b"), None, 0), (("c", "d"), "e", MISSING)],
    ),
}


def nest(value, levels):
    """Return a value inside that many arrays and objects, and the path to it."""
    path = []
    for level in range(levels):
        value, part = ([value], 0) if level % 2 else ({"a": value}, "a")
        path.insert(0, part)
    return value, tuple(path)


class DifferencesTest(unittest.TestCase):
    def test_find_differences_equal_values_have_none(self):
        for phrase, (observed, expected) in EQUAL.items():
            with self.subTest(phrase):
                self.assertEqual(find_differences(observed, expected), [])

    def test_find_differences_each_difference_is_found_in_order(self):
        for phrase, (observed, expected, differences) in DIFFERENT.items():
            with self.subTest(phrase):
                # As text: Python takes 1, 1.0 and True for equal.
                self.assertEqual(repr(find_differences(observed, expected)), repr(differences))

    def test_find_differences_exchanged_sides_have_the_same_places(self):
        for phrase, (observed, expected, differences) in DIFFERENT.items():
            with self.subTest(phrase):
                exchanged = [(path, repr(one), repr(other)) for path, other, one in differences]
                found = find_differences(expected, observed)
                self.assertCountEqual(
                    [(path, repr(one), repr(other)) for path, one, other in found], exchanged
                )

    def test_find_differences_place_in_a_larger_document_stands_in_front(self):
        differences = find_differences([{"a": 1}], [{"a": 2}], "messages", 3, "content")
        self.assertEqual(differences, [(("messages", 3, "content", 0, "a"), 1, 2)])
        self.assertEqual(find_differences(1, 2, "tools"), [(("tools",), 1, 2)])
        self.assertEqual(find_differences(1, 1, "tools"), [])

    def test_find_differences_value_and_itself_have_none_fast(self):
        value = [{"a": "b" * 1_000_000, "c": list(range(100_000))}] * 100
        self.assertEqual(find_differences(value, value), [])

    def test_find_differences_big_values_are_compared_to_the_end(self):
        observed, expected = list(range(100_000)), list(range(100_000))
        self.assertEqual(find_differences(observed, expected), [])
        expected[-1] = -1
        self.assertEqual(find_differences(observed, expected), [((99_999,), 99_999, -1)])
        long = "a" * 1_000_000
        self.assertEqual(find_differences(f"{long}b", f"{long}b"), [])
        self.assertEqual(len(find_differences(f"{long}b", f"{long}c")), 1)

    def test_find_differences_deepest_value_that_is_read_is_reached(self):
        (observed, path), (expected, _) = nest(1, 300), nest(2, 300)
        self.assertEqual(find_differences(observed, expected), [(path, 1, 2)])
        self.assertEqual(find_differences(observed, nest(1, 300)[0]), [])

    def test_find_differences_values_are_left_as_they_are(self):
        observed, expected = {"a": [1, {"b": 2}]}, {"a": [1], "c": {}}
        find_differences(observed, expected)
        self.assertEqual((observed, expected), ({"a": [1, {"b": 2}]}, {"a": [1], "c": {}}))

    def test_list_differences_each_one_says_path_and_both_values(self):
        table = {
            "the whole value": (
                ([], {}),
                ["$: observed the array [], expected the object {}"],
            ),
            "places in a larger document": (
                ({"input": {"a b": 1.0}}, {"input": {"a b": 1}, "id": "x"}, "content", 2),
                [
                    'content[2].input["a b"]: observed the number 1.0, expected the integer 1',
                    'content[2].id: observed nothing, expected the string "x"',
                ],
            ),
            "nothing": (([1], [1], "tools"), []),
        }
        for phrase, (arguments, expected) in table.items():
            with self.subTest(phrase):
                self.assertEqual([str(finding) for finding in list_differences(*arguments)], expected)

    def test_list_differences_says_where_it_ended(self):
        observed, expected = [[number] for number in range(12_000)], [[-1]] * 12_000
        findings = list_differences(observed, expected, "rows")
        self.assertEqual(len(findings), 10_001)
        self.assertEqual(
            str(findings[-1]),
            "rows[10000][0]: not looked at, nor anything behind it: 10,000 findings come before it",
        )
        self.assertEqual(len(list_differences(observed[:10_000], expected[:10_000])), 10_000)


if __name__ == "__main__":
    unittest.main()
