"""What may be shown: escaping, shortening, words for values, paths."""

from __future__ import annotations

import unicodedata
import unittest

from checkpoint_demo import MISSING, describe, describe_pair, render_json, render_path, shorten, show

# What is shown: (the text, what stands there instead).
SHOWN = {
    "plain text": ("rows[1]: 3", "rows[1]: 3"),
    "no text": ("", ""),
    "letters beyond ASCII": ("Hallstr\u00f6m \u6771 \U0001f4e6", "Hallstr\u00f6m \u6771 \U0001f4e6"),
    "a quote and a backslash": ("'\"\\", "'\"\\"),
    "a tab and a line break": ("a\tb\r\nc", r"a\tb\r\nc"),
    "a NUL": ("a\x00b", r"a\x00b"),
    "an escape sequence": ("\x1b[2Jgone", r"\x1b[2Jgone"),
    "a DEL": ("\x7f", r"\x7f"),
    "a C1 control": ("\x9b31m", r"\x9b31m"),
    "a next line": ("a\x85b", r"a\x85b"),
    "a line separator": ("a\u2028b", r"a\u2028b"),
    "a paragraph separator": ("a\u2029b", r"a\u2029b"),
    "an override": ("user\u202etxt.exe\u202c", r"user\u202etxt.exe\u202c"),
    "an isolate": ("\u2067a\u2069", r"\u2067a\u2069"),
    "bidirectional marks": ("\u200e\u200f\u061c", r"\u200e\u200f\u061c"),
    "a lone surrogate": ("half \ud83d", r"half \ud83d"),
    "a no-break space": ("a\u00a0b", "a\u00a0b"),
}

DESCRIBED = {
    "a string": ("3", 'the string "3"'),
    "an empty string": ("", 'the string ""'),
    "a string that looks like null": ("null", 'the string "null"'),
    "an integer": (-3, "the integer -3"),
    "a float that is whole": (3.0, "the number 3.0"),
    "a large float": (1e22, "the number 1e+22"),
    "true": (True, "true"),
    "false": (False, "false"),
    "null": (None, "null"),
    "nothing": (MISSING, "nothing"),
    "an array": ([1, "a", None], 'the array [1,"a",null]'),
    "an empty array": ([], "the array []"),
    "an object": ({"b": 1, "a": [True]}, 'the object {"b":1,"a":[true]}'),
    "an empty object": ({}, "the object {}"),
    "a string with a quote": ('a"b\\', r'the string "a\"b\\"'),
    "a string with controls": ("\x1b\x00\n\x7f", r'the string "\u001b\u0000\n\u007f"'),
    "a string beyond ASCII": ("\u00f6\u202e", r'the string "\u00f6\u202e"'),
    "an emoji": ("\U0001f4e6", r'the string "\ud83d\udce6"'),
    "a lone surrogate": ("\ud83d", r'the string "\ud83d"'),
    "a key with a control": ({"\x1b": "\x9b"}, r'the object {"\u001b":"\u009b"}'),
    "a string of 70 characters": ("a" * 70, f'the string "{"a" * 70}"'),
    "a string of 71 characters": ("a" * 71, f'the string "{"a" * 71}... (73 characters)'),
    "an integer of many digits": (10**99, f"the integer 1{'0' * 71}... (100 characters)"),
    "a large array": ([0] * 5_000, f"the array [{'0,' * 35}0... (10,001 characters)"),
}

A36 = "a" * 36
PAIRED = {
    "two types": ("0", 0, 'observed the string "0", expected the integer 0'),
    "nothing observed": (MISSING, [], "observed nothing, expected the array []"),
    "nothing expected": (None, MISSING, "observed null, expected nothing"),
    "an integer and a float": (3.0, 3, "observed the number 3.0, expected the integer 3"),
    "short strings": ("ab", "ac", 'observed the string "ab", expected the string "ac"'),
    "strings that part early": (
        "x" + "a" * 99,
        "a" * 100,
        f'observed the string "x{"a" * 70}... (102 characters),'
        f' expected the string "{"a" * 71}... (102 characters)',
    ),
    "strings that part at the 36th character": (
        f"{A36[:35]}x",
        f"{A36[:35]}y",
        f'observed the string "{A36[:35]}x", expected the string "{A36[:35]}y"',
    ),
    "strings that part at the 37th character": (
        f"{A36}x",
        f"{A36}y",
        f'observed the string "...{"a" * 12}x", expected the string "...{"a" * 12}y", from character 24 on',
    ),
    "a string that goes on": (
        f"{A36}\n",
        A36,
        f'observed the string "...{"a" * 12}\\n", expected the string "...{"a" * 12}", from character 24 on',
    ),
    "a long string that goes on": (
        "b" * 1_000,
        "b" * 2_000,
        f'observed the string "...{"b" * 12}",'
        f' expected the string "...{"b" * 68}... (1,017 characters), from character 988 on',
    ),
    "strings that part at a hidden character": (
        f"{A36}\u202e",
        f"{A36}\ud83d",
        f'observed the string "...{"a" * 12}\\u202e", expected the string "...{"a" * 12}\\ud83d",'
        " from character 24 on",
    ),
}

PATHS = {
    "the whole document": ((), "$"),
    "a key": (("rows",), "rows"),
    "a key in capitals": (("X", "SKU"), "X.SKU"),
    "an index": ((0,), "[0]"),
    "keys and indexes": (("rows", 1, "shortage"), "rows[1].shortage"),
    "indexes in a row": ((1, 2, "a"), "[1][2].a"),
    "an underscore and digits": (("a", "_9", "B2"), "a._9.B2"),
    "a key that begins with a digit": (("a", "1b"), 'a["1b"]'),
    "a key that looks like an index": (("a", "0", 0), 'a["0"][0]'),
    "an empty key": (("", "a"), '[""].a'),
    "a key with a point": (("a.b", "c"), '["a.b"].c'),
    "a key that is a point": ((".", ".."), '["."][".."]'),
    "a key with a space": (("a b",), '["a b"]'),
    "a key with a bracket": (("a[0]",), '["a[0]"]'),
    "a key with a quote": (('a"b',), r'["a\"b"]'),
    "a key with a line break at its end": (("rows\n",), r'["rows\n"]'),
    "a key with an escape character": (("a", "\x1b[2J"), r'a["\u001b[2J"]'),
    "a key beyond ASCII": (("gr\u00f6\u00dfe",), r'["gr\u00f6\u00dfe"]'),
    "a key with digits beyond ASCII": (("a\u0661",), r'["a\u0661"]'),
    "a key with a lone surrogate": (("\ud83d",), r'["\ud83d"]'),
    "the key $": (("$",), '["$"]'),
    "a long key": (("- " * 50, 0), f'["{"- " * 36}... (100 characters)"][0]'),
    "many long names": (
        ("a" * 72,) * 20,
        f"{'.'.join(['a' * 72] * 20)[:480]}...{'a' * 42}{('.' + 'a' * 72) * 6}",
    ),
    "a long name": (("a" * 80, 0), f'["{"a" * 72}... (80 characters)"][0]'),
}


def every_risky_character():
    """Return all code points below U+3000, all surrogates, and some beyond."""
    return map(chr, (*range(0x3000), *range(0xD800, 0xE000), 0xFEFF, 0xFFFF, 0x1F4E6, 0x10FFFF))


def acts_on_a_terminal(character):
    """Return whether a character is a control, breaks a line, turns the direction or is no character."""
    return (
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(character)
        in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        or character in "\u061c\u200e\u200f"
    )


class TextTest(unittest.TestCase):
    def check(self, function, table):
        for phrase, (*arguments, expected) in table.items():
            with self.subTest(phrase):
                self.assertEqual(function(*arguments), expected)

    def test_show_text_is_one_harmless_line(self):
        self.check(show, SHOWN)

    def test_show_each_character_is_escaped_exactly_if_it_could_act(self):
        escaped = 0
        for character in every_risky_character():
            shown = show(f"<{character}>")
            if acts_on_a_terminal(character):
                escaped += 1
                self.assertRegex(shown, r"\A<\\(x[0-9a-f]{2}|u[0-9a-f]{4}|[tnr])>\Z")
            else:
                self.assertEqual(shown, f"<{character}>")
        self.assertEqual(escaped, 65 + 3 + 2 + 5 + 4 + 2_048)

    def test_show_shown_text_stays_as_it_is(self):
        once = show("".join(every_risky_character()))
        self.assertEqual(show(once), once)
        self.assertEqual(len(once.splitlines()), 1)

    def test_words_for_values_each_character_comes_out_as_printable_ascii(self):
        for character in every_risky_character():
            key = f"a{character}"
            texts = (
                render_json([key, {key: key}]),
                describe(key),
                describe({key: 1}),
                describe_pair(A36 + key, A36),
                describe_pair([key], MISSING),
                render_path(["rows", key, 0]),
            )
            for text in texts:
                self.assertRegex(text, r"\A[ -~]+\Z", ascii(character))

    def test_shorten_text_is_cut_only_beyond_the_limit(self):
        table = {
            "shorter": ("abc", 4, "abc"),
            "as long": ("abcd", 4, "abcd"),
            "longer": ("abcde", 4, "abcd... (5 characters)"),
            "much longer": ("a" * 1_234_567, 2, "aa... (1,234,567 characters)"),
            "empty": ("", 0, ""),
        }
        self.check(shorten, table)
        self.assertEqual(shorten("a" * 72), "a" * 72)
        self.assertEqual(shorten("a" * 73), "a" * 72 + "... (73 characters)")

    def test_render_json_value_is_compact_or_indented(self):
        value = {"b": [1, 2.5, None], "a": {"\u00e4\x7f": "\ud83d\n"}}
        self.assertEqual(render_json(value), r'{"b":[1,2.5,null],"a":{"\u00e4\u007f":"\ud83d\n"}}')
        indented = '{\n  "b": [\n    1\n  ],\n  "a": {},\n  "c": "\\u007f"\n}'
        self.assertEqual(render_json({"b": [1], "a": {}, "c": "\x7f"}, 2), indented)

    def test_render_json_number_that_is_none_is_never_written(self):
        for number in (float("nan"), float("inf"), float("-inf")):
            with self.subTest(number=number), self.assertRaises(ValueError):
                render_json([number])

    def test_describe_value_is_named_with_its_type(self):
        self.check(describe, DESCRIBED)

    def test_describe_pair_values_are_observed_then_expected(self):
        self.check(describe_pair, PAIRED)

    def test_render_path_parts_are_joined(self):
        self.check(render_path, PATHS)


if __name__ == "__main__":
    unittest.main()
