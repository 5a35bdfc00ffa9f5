"""parse_json: what is read, what is refused, and where."""

from __future__ import annotations

import json
import sys
import tracemalloc
import unittest
from unittest import mock

import checkpoint_demo
from checkpoint_demo import InputError, parse_json

# From 3.13 on the standard scanner points at the comma, before at what follows it.
COMMA = 0 if sys.version_info >= (3, 13) else 1
BOM = b"\xef\xbb\xbf"
NINES = b"9" * 4_300
NINES_VALUE = 10**4_300 - 1

# What is read: (the text, its value as Python writes it, which tells 3, 3.0 and True apart).
ACCEPTED = {
    "zero": (b"0", "0"),
    "minus zero, an integer": (b"-0", "0"),
    "minus zero, a float": (b"-0.0", "-0.0"),
    "an integer": (b"-120", "-120"),
    "an integer beyond 2**53": (b"9007199254740993", "9007199254740993"),
    "a float that is whole": (b"3.0", "3.0"),
    "an exponent": (b"3e0", "3.0"),
    "a capital exponent with a sign": (b"3E+2", "300.0"),
    "an exponent with leading zeros": (b"1e-007", "1e-07"),
    "a float that underflows": (b"1e-400", "0.0"),
    "the largest double": (b"1.7976931348623157e308", "1.7976931348623157e+308"),
    "the literals": (b"[true,false,null]", "[True, False, None]"),
    "an empty string": (b'""', "''"),
    "each short escape": (rb'"\"\\\/\b\f\n\r\t"', repr('"\\/\b\f\n\r\t')),
    "an escaped NUL": (rb'"\u0000"', r"'\x00'"),
    "an escape with capital digits": (rb'"\u00E4"', repr("\u00e4")),
    "a DEL as itself": (b'"\x7f"', r"'\x7f'"),
    "a line separator as itself": ('"\u2028"'.encode(), r"'\u2028'"),
    "a lone high surrogate, escaped": (rb'"\ud83d"', r"'\ud83d'"),
    "a lone low surrogate, escaped": (rb'"a\udce6"', r"'a\udce6'"),
    "surrogates in the wrong order": (rb'"\udce6\ud83d"', r"'\udce6\ud83d'"),
    "paired surrogate escapes, joined": (rb'"\ud83d\udce6"', repr("\U0001f4e6")),
    "an emoji as itself": ('"\U0001f4e6"'.encode(), repr("\U0001f4e6")),
    "a non-character": (b'"\xef\xbf\xbf"', r"'\uffff'"),
    "a byte-order mark in a string": (b'"' + BOM + b'"', r"'\ufeff'"),
    "one byte-order mark in front": (BOM + b"[1]", "[1]"),
    "white space of each kind": (b" \t\r\n[ 1 ,\n2\t]\r\n ", "[1, 2]"),
    "empty containers": (b'[[],{},{"":[]}]', "[[], {}, {'': []}]"),
    "keys in their order": (b'{"b":1,"a":2}', "{'b': 1, 'a': 2}"),
    "keys that differ in their normal form": (
        rb'{"\u00e4":1,"a\u0308":2}',
        repr({"\u00e4": 1, "a\u0308": 2}),
    ),
    "one key in two objects": (b'[{"a":1},{"a":1}]', "[{'a': 1}, {'a': 1}]"),
}

NUMBERS = {
    "a leading zero": (b"01", "line 1 column 2"),
    "a leading zero behind a minus": (b"-01", "line 1 column 3"),
    "two zeros": (b"[00]", "line 1 column 3"),
    "a plus sign": (b"+1", "line 1 column 1"),
    "two minus signs": (b"--1", "line 1 column 1"),
    "a minus alone": (b"-", "line 1 column 1"),
    "a minus and a space": (b"- 1", "line 1 column 1"),
    "no digit in front of the point": (b".5", "line 1 column 1"),
    "no digit in front of the point, negative": (b"-.5", "line 1 column 1"),
    "no digit behind the point": (b"1.", "line 1 column 2"),
    "no digit between point and exponent": (b"1.e5", "line 1 column 2"),
    "no digit in the exponent": (b"1e", "line 1 column 2"),
    "a sign alone in the exponent": (b"1e+", "line 1 column 2"),
    "a point in the exponent": (b"1e1.5", "line 1 column 4"),
    "two points": (b"1.2.3", "line 1 column 4"),
    "hexadecimal": (b"0x10", "line 1 column 2"),
    "octal": (b"0o7", "line 1 column 2"),
    "an underscore": (b"1_000", "line 1 column 2"),
    "a thousands mark": (b"[1,000]", "line 1 column 5"),
    "a type suffix": (b"1L", "line 1 column 2"),
    "Arabic digits": ("\u0661".encode(), "line 1 column 1"),
    "an Arabic digit behind another": ("1\u0662".encode(), "line 1 column 2"),
    "full-width digits": ("\uff13".encode(), "line 1 column 1"),
    "a superscript": ("1\u00b2".encode(), "line 1 column 2"),
}

LITERALS = {
    "a capital True": (b"True", "line 1 column 1"),
    "a capital NULL": (b"NULL", "line 1 column 1"),
    "None": (b"[None]", "line 1 column 2"),
    "undefined": (b"undefined", "line 1 column 1"),
    "nan": (b"nan", "line 1 column 1"),
    "inf": (b"inf", "line 1 column 1"),
    "-NaN": (b"-NaN", "line 1 column 1"),
    "+Infinity": (b"+Infinity", "line 1 column 1"),
    "-inf": (b"-inf", "line 1 column 1"),
    "a literal and a letter": (b"nulls", "line 1 column 5"),
    "a bare word": (b"{a:1}", "line 1 column 2"),
}

STRINGS = {
    "single quotes": (b"'a'", "line 1 column 1"),
    "single quotes around a key": (b"{'a':1}", "line 1 column 2"),
    "backticks": (b"`a`", "line 1 column 1"),
    "typographic quotes": ("\u201ca\u201d".encode(), "line 1 column 1"),
    "a hexadecimal escape": (rb'"\x41"', "line 1 column 2"),
    "a long escape": (rb'"\U00000041"', "line 1 column 2"),
    "an escaped single quote": (rb'"\'"', "line 1 column 2"),
    "an octal escape": (rb'"\0"', "line 1 column 2"),
    "an escaped line break": (b'"\\\n"', "line 1 column 2"),
    "an escape of three digits": (rb'"\u041"', "line 1 column 3"),
    "an escape with a letter beyond F": (rb'"\u00G1"', "line 1 column 3"),
    "an escape with a sign": (rb'"\u+041"', "line 1 column 3"),
    "an escape with a space": (rb'"\u 041"', "line 1 column 3"),
    "an escape with an underscore": (rb'"\u0_41"', "line 1 column 3"),
    "a bad escape behind a high surrogate": (rb'"\ud83d\u12"', "line 1 column 9"),
    "a line break": (b'["a",\n"b\nc"]', "line 2 column 3"),
    "a tab": (b'"a\tb"', "line 1 column 3"),
    "a NUL": (b'"a\x00"', "line 1 column 3"),
    "a control character in a key": (b'{"a\x1f":1}', "line 1 column 4"),
}

STRUCTURE = {
    "nothing": (b"", "line 1 column 1"),
    "only white space": (b"\n \n\t", "line 3 column 2"),
    "only a byte-order mark": (BOM, "line 1 column 1"),
    "a NUL alone": (b"\x00", "line 1 column 1"),
    "a NUL in an array": (b"[\x00]", "line 1 column 2"),
    "a NUL behind the value": (b"{}\x00", "line 1 column 3"),
    "two values": (b"1 2", "line 1 column 3"),
    "two objects": (b"{}{}", "line 1 column 3"),
    "two lines": (b"{}\n{}\n", "line 2 column 1"),
    "a comma behind the value": (b"1,", "line 1 column 2"),
    "one bracket too many": (b"[1]]", "line 1 column 4"),
    "the wrong bracket": (b"[1}", "line 1 column 3"),
    "the wrong brace": (b'{"a":1]', "line 1 column 7"),
    "a closing bracket alone": (b"]", "line 1 column 1"),
    "a colon alone": (b":", "line 1 column 1"),
    "a comma alone": (b",", "line 1 column 1"),
    "a trailing comma in an array": (b"[1,]", f"line 1 column {3 + COMMA}"),
    "a trailing comma in an object": (b'{"a":1,}', f"line 1 column {7 + COMMA}"),
    "a leading comma in an array": (b"[,1]", "line 1 column 2"),
    "a leading comma in an object": (b'{,"a":1}', "line 1 column 2"),
    "two commas": (b"[1,,2]", "line 1 column 4"),
    "no comma in an array": (b"[1 2]", "line 1 column 4"),
    "no comma in an object": (b'{"a":1 "b":2}', "line 1 column 8"),
    "a semicolon": (b"[1;2]", "line 1 column 3"),
    "a key in an array": (b'["a":1]', "line 1 column 5"),
    "no colon": (b'{"a" 1}', "line 1 column 6"),
    "an equals sign": (b'{"a"=1}', "line 1 column 5"),
    "a key without a value": (b'{"a"}', "line 1 column 5"),
    "a colon without a value": (b'{"a":}', "line 1 column 6"),
    "a number as key": (b"{1:2}", "line 1 column 2"),
    "null as key": (b"{null:1}", "line 1 column 2"),
    "an array as key": (b"{[]:1}", "line 1 column 2"),
    "an object in parentheses": (b"({})", "line 1 column 1"),
    "a fault in a later line": (b'[1,\n 2,\r\n\t"\xc3\xa4", x]', "line 3 column 7"),
}

COMMENTS = {
    "a line comment in front": (b"// x\n1", "line 1 column 1"),
    "a line comment behind": (b"{} // x", "line 1 column 4"),
    "a line comment inside": (b"[1, // x\n2]", "line 1 column 5"),
    "a block comment in front": (b"/* x */1", "line 1 column 1"),
    "a block comment behind": (b"1/**/", "line 1 column 2"),
    "a block comment behind a key": (b'{"a"/**/:1}', "line 1 column 5"),
    "a hash in front": (b"# x\n1", "line 1 column 1"),
    "a hash behind": (b"1 # x", "line 1 column 3"),
    "a semicolon comment": (b"1 ; x", "line 1 column 3"),
    "an SQL comment": (b"1 -- x", "line 1 column 3"),
    "an XML comment": (b"<!-- x -->1", "line 1 column 1"),
}

TRUNCATED = {
    "behind a brace": (b"{", "line 1 column 2"),
    "in a key": (b'{"a', "line 1 column 2"),
    "behind a key": (b'{"a"', "line 1 column 5"),
    "behind a colon": (b'{"a":', "line 1 column 6"),
    "behind a value": (b'{"a":1', "line 1 column 7"),
    "behind a comma in an object": (b'{"a":1,', "line 1 column 8"),
    "behind a bracket": (b"[", "line 1 column 2"),
    "behind an item": (b"[1", "line 1 column 3"),
    "behind a comma in an array": (b"[1,", "line 1 column 4"),
    "behind a closed child": (b'[{"a":[]}', "line 1 column 10"),
    "in true": (b"tru", "line 1 column 1"),
    "in false": (b"[fals", "line 1 column 2"),
    "in null": (b"nul", "line 1 column 1"),
    "in NaN": (b"Na", "line 1 column 1"),
    "in -Infinity": (b"-Infinit", "line 1 column 1"),
    "behind a minus": (b"[-", "line 1 column 2"),
    "in a string": (b'"abc', "line 1 column 1"),
    "behind a backslash": (b'"abc\\', "line 1 column 1"),
    "in an escape": (b'"\\u00', "line 1 column 3"),
    "between paired escapes": (b'"\\ud83d\\u', "line 1 column 9"),
}

ENCODINGS = {
    "two byte-order marks": (BOM + BOM + b"1", "line 1 column 1"),
    "a byte-order mark behind a space": (b" " + BOM + b"1", "line 1 column 2"),
    "a byte-order mark behind the value": (b"1" + BOM, "line 1 column 2"),
    "UTF-16 with a mark, little end first": (b"\xff\xfe1\x00", "line 1 column 1"),
    "UTF-16 with a mark, big end first": (b"\xfe\xff\x001", "line 1 column 1"),
    "UTF-16 without a mark, little end first": (b"[\x001\x00]\x00", "line 1 column 2"),
    "UTF-16 without a mark, big end first": (b"\x00[\x001\x00]", "line 1 column 1"),
    "UTF-32 with a mark, little end first": (b"\xff\xfe\x00\x001\x00\x00\x00", "line 1 column 1"),
    "UTF-32 with a mark, big end first": (b"\x00\x00\xfe\xff\x00\x00\x001", "line 1 column 3"),
    "UTF-32 without a mark": (b"\x00\x00\x001", "line 1 column 1"),
    "UTF-7": (b"+AFs-1]", "line 1 column 1"),
    "Latin-1": (b'"\xe4"', "line 1 column 2"),
    "an overlong slash": (b'"\xc0\xaf"', "line 1 column 2"),
    "an overlong NUL": (b'["a","\xc0\x80"]', "line 1 column 7"),
    "an overlong quote of three bytes": (b"\xe0\x80\xa2", "line 1 column 1"),
    "a surrogate's bytes": (b'"\xed\xa0\xbd"', "line 1 column 2"),
    "a pair of surrogates' bytes": (b'"\xed\xa0\xbd\xed\xb3\xa6"', "line 1 column 2"),
    "a code point beyond U+10FFFF": (b'"\xf4\x90\x80\x80"', "line 1 column 2"),
    "a sequence of five bytes": (b'"\xf8\x88\x80\x80\x80"', "line 1 column 2"),
    "a continuation byte alone": (b'"\x80"', "line 1 column 2"),
    "a sequence cut by a quote": (b'"\xe2\x82"', "line 1 column 2"),
    "a sequence cut by the end": (b'"\xf0\x9f\x93', "line 1 column 2"),
    "a bad byte behind the value": (b"1\xff", "line 1 column 2"),
    "a bad byte behind a byte-order mark": (BOM + b'"\xff"', "line 1 column 2"),
}

# What is refused in a value that the standard scanner would let pass: (text, place, reason).
FAULTS = {
    "NaN": (b"NaN", "$", "NaN is not a JSON number"),
    "Infinity in an array": (b"[1,[2,Infinity]]", "[1][1]", "Infinity is not a JSON number"),
    "-Infinity in an object": (b'{"a":{"b":-Infinity}}', "a.b", "-Infinity is not a JSON number"),
    "a number that overflows": (b'{"a":1e400}', "a", "a number too large for a double"),
    "a negative number that overflows": (b"-1e400", "$", "a number too large for a double"),
    "a number that overflows with a point": (b"[1.8e308]", "[0]", "a number too large for a double"),
    "an exponent of nine digits": (b"1E+999999999", "$", "a number too large for a double"),
    "a long number that overflows": (
        b"[9%s.0]" % NINES,
        "[0]",
        "a number too large for a double",
    ),
    "4,301 digits": (b"[9%s]" % NINES, "[0]", "an integer of more than 4,300 digits"),
    "4,301 digits behind a minus": (b'{"a":-9%s}' % NINES, "a", "an integer of more than 4,300 digits"),
    "a key twice": (b'{"a":1,"a":1}', "$", 'the object has the key the string "a" twice'),
    "a key three times": (b'{"a":1,"a":2,"a":3}', "$", 'the object has the key the string "a" twice'),
    "the empty key twice": (b'{"":1,"":2}', "$", 'the object has the key the string "" twice'),
    "a key twice, once escaped": (
        rb'{"b":1,"\u0062":2}',
        "$",
        'the object has the key the string "b" twice',
    ),
    "a key twice, once as a pair of escapes": (
        b'{"\xf0\x9f\x93\xa6":1,"\\ud83d\\udce6":2}',
        "$",
        r'the object has the key the string "\ud83d\udce6" twice',
    ),
    "a key with a lone surrogate twice": (
        rb'{"\ud83d":1,"\ud83d":2}',
        "$",
        r'the object has the key the string "\ud83d" twice',
    ),
    "a key with an escape character twice": (
        rb'{"\u001b[2J":1,"\u001b[2J":2}',
        "$",
        r'the object has the key the string "\u001b[2J" twice',
    ),
    "the first of two keys that stand there twice": (
        b'{"x":1,"b":1,"a":1,"a":2,"b":2}',
        "$",
        'the object has the key the string "a" twice',
    ),
    "a key twice deep inside": (
        b'{"a":[0,{"b c":{"d":1,"d":1}}]}',
        'a[1]["b c"]',
        'the object has the key the string "d" twice',
    ),
    "the outer of two objects": (
        b'{"a":{"b":1,"b":1},"a":2}',
        "$",
        'the object has the key the string "a" twice',
    ),
    "the first of two faults": (b'{"a":[1,NaN],"b":1e400}', "a[1]", "NaN is not a JSON number"),
    "the first of two faults, a long integer behind": (
        b"[1e999,9%s]" % NINES,
        "[0]",
        "a number too large for a double",
    ),
}


class StrictJsonTest(unittest.TestCase):
    def refuse(self, data, *arguments):
        """Return the InputError for a text."""
        with self.assertRaises(InputError) as caught:
            parse_json(data, *arguments)
        return caught.exception

    def check_places(self, table):
        for phrase, (data, place) in table.items():
            with self.subTest(phrase):
                error = self.refuse(data)
                self.assertEqual(error.path, place)
                self.assertEqual(str(error), f"{place}: {error.message}")

    def test_parse_json_right_text_is_accepted(self):
        for phrase, (data, value) in ACCEPTED.items():
            with self.subTest(phrase):
                self.assertEqual(repr(parse_json(data)), value)

    def test_parse_json_bad_number_is_refused(self):
        self.check_places(NUMBERS)

    def test_parse_json_bad_literal_is_refused(self):
        self.check_places(LITERALS)

    def test_parse_json_bad_string_is_refused(self):
        self.check_places(STRINGS)

    def test_parse_json_bad_structure_is_refused(self):
        self.check_places(STRUCTURE)

    def test_parse_json_comment_is_refused(self):
        self.check_places(COMMENTS)

    def test_parse_json_truncated_token_is_refused(self):
        self.check_places(TRUNCATED)

    def test_parse_json_other_encoding_is_refused(self):
        self.check_places(ENCODINGS)

    def test_parse_json_fault_in_value_is_refused_with_path_and_reason(self):
        for phrase, (data, place, reason) in FAULTS.items():
            with self.subTest(phrase):
                error = self.refuse(data)
                self.assertEqual((error.path, error.message), (place, reason))

    def test_parse_json_refusal_names_its_kind(self):
        self.assertEqual(str(self.refuse(b"{} x")), 'line 1 column 4: not JSON: extra data at "x"')
        self.assertEqual(str(self.refuse(b"[\xff]")), "line 1 column 2: not UTF-8")

    def test_parse_json_every_proper_beginning_is_refused(self):
        text = '{"a\\u00e4\u00e4":[1,-2.5e+3,true,false,null,"\\n\\ud83d\\udce6"],"b":{"c":{}}}'.encode()
        self.assertEqual(len(parse_json(text)), 2)
        for length in range(len(text)):
            with self.subTest(length=length):
                self.refuse(text[:length])

    def test_parse_json_each_control_character_in_string_is_refused(self):
        for code in range(0x20):
            with self.subTest(code=code):
                self.assertEqual(self.refuse(b'["a%c"]' % code).path, "line 1 column 4")

    def test_parse_json_only_the_eight_short_escapes_are_accepted(self):
        accepted = set()
        for code in set(range(0x80)) - {ord("u")}:
            try:
                accepted.add((chr(code), parse_json(b'"\\%c"' % code)))
            except InputError as error:
                self.assertEqual(error.path, "line 1 column 2", chr(code))
        self.assertEqual(accepted, set(zip('"\\/bfnrt', '"\\/\b\f\n\r\t')))

    def test_parse_json_only_four_characters_are_white_space(self):
        accepted = set()
        for character in ("", *map(chr, (*range(0x21), *range(0x7F, 0x3001), 0xFEFF, 0xE0020))):
            try:
                self.assertEqual(parse_json(f"[{character}1]".encode()), [1])
            except InputError as error:
                self.assertEqual(error.path, "line 1 column 2", ascii(character))
            else:
                accepted.add(character)
        self.assertEqual(accepted, {"", *" \t\r\n"})

    def test_parse_json_only_ascii_digits_are_digits(self):
        for code in range(0x80, 0x20000):
            character = chr(code)
            if character.isdecimal() or character.isdigit():
                with self.subTest(character=ascii(character)):
                    self.assertEqual(self.refuse(f"[1{character}]".encode()).path, "line 1 column 3")


class DigitsTest(unittest.TestCase):
    """The limit on digits is ours, whatever the interpreter's own one is set to."""

    def each_limit(self):
        """Yield None for the interpreter as it is, then its limits after setting them."""
        yield None
        if hasattr(sys, "set_int_max_str_digits"):
            self.addCleanup(sys.set_int_max_str_digits, sys.get_int_max_str_digits())
            for limit in (0, 640, 4_299, 4_300, 4_301, 100_000):
                sys.set_int_max_str_digits(limit)
                yield limit

    def test_parse_json_4301_digits_are_refused_with_place(self):
        for limit in self.each_limit():
            for sign in (b"", b"-"):
                with self.subTest(limit=limit, sign=sign):
                    with self.assertRaises(InputError) as caught:
                        parse_json(b'{"a":[1,%s9%s]}' % (sign, NINES))
                    error = caught.exception
                    self.assertEqual(error.path, "a[1]")
                    self.assertEqual(error.message, "an integer of more than 4,300 digits")
                    with self.assertRaises(InputError, msg="among many objects"):
                        parse_json(b"[%s%s9%s]" % (b"{}," * 100, sign, NINES))

    def test_parse_json_4300_digits_are_accepted(self):
        for limit in self.each_limit():
            if limit in (640, 4_299):
                continue
            with self.subTest(limit=limit):
                # Not assertEqual: its message would hit the interpreter's limit.
                self.assertTrue(parse_json(b"[%s]" % NINES)[0] == NINES_VALUE)
                self.assertTrue(parse_json(b"-%s" % NINES) == -NINES_VALUE)

    def test_parse_json_interpreter_with_lower_limit_raises_nothing_but_json_error(self):
        """No ValueError of any Python reaches a user, also with PYTHONINTMAXSTRDIGITS=640."""
        for limit in self.each_limit():
            with self.subTest(limit=limit):
                try:
                    value = parse_json(b'{"a":%s}' % NINES)
                except InputError as error:
                    self.assertEqual(error.path, "a")
                    self.assertIn(limit, (640, 4_299))
                else:
                    self.assertTrue(value["a"] == NINES_VALUE)

    def test_parse_json_long_fraction_is_no_long_integer(self):
        self.assertEqual(repr(parse_json(b"0.9%s" % NINES)), "1.0")


class DepthTest(unittest.TestCase):
    def check(self, data, place, depth, *arguments):
        with self.assertRaises(InputError) as caught:
            parse_json(data, *arguments)
        self.assertEqual(caught.exception.path, place)
        self.assertEqual(caught.exception.message, f"nested deeper than {depth} levels")

    def test_parse_json_200_levels_are_accepted(self):
        texts = {
            "arrays": (b"[" * 200 + b"]" * 200),
            "arrays around a number": (b"[" * 200 + b"1" + b"]" * 200),
            "objects": (b'{"a":' * 199 + b"{}" + b"}" * 199),
            "objects around a string": (b'{"a":' * 200 + b'"["' + b"}" * 200),
            "both": (b'[{"a":' * 100 + b"1" + b"}]" * 100),
            "two branches": (b"[" + (b"[" * 199 + b"]" * 199) + b"," + (b"[" * 199 + b"]" * 199) + b"]"),
            "brackets in a string": (b'"' + b"[" * 300 + b'"'),
        }
        for phrase, data in texts.items():
            with self.subTest(phrase):
                self.assertEqual(parse_json(data), json.loads(data))

    def test_parse_json_201_levels_are_refused(self):
        texts = {
            "arrays": (b"[" * 201 + b"]" * 201, 201),
            "arrays around a number": (b"[" * 201 + b"1" + b"]" * 201, 201),
            "objects": (b'{"a":' * 200 + b"{}" + b"}" * 200, 1_001),
            "an object in arrays": (b"[" * 200 + b"{}" + b"]" * 200, 201),
            "the second branch": (b'{"b":["["],"a":' + b"[" * 200 + b"]" * 200 + b"}", 215),
            "behind escaped quotes and brackets": (rb'["\"[\\",' + b"[" * 200 + b"]" * 201, 209),
        }
        for phrase, (data, column) in texts.items():
            with self.subTest(phrase):
                self.check(data, f"line 1 column {column}", 200)
        self.check(b"[\n" * 201 + b"]" * 201, "line 201 column 1", 200)

    def test_parse_json_fault_in_front_of_deep_text_is_named(self):
        data = b'{"rows": oops' + b"[" * 201
        with self.assertRaisesRegex(InputError, '^line 1 column 10: not JSON: expecting value at "oops'):
            parse_json(data)

    def test_parse_json_own_depth_limit_is_kept(self):
        self.assertEqual(parse_json(b"[" * 100 + b"]" * 100, 100), json.loads("[" * 100 + "]" * 100))
        self.check(b"[" * 101 + b"]" * 101, "line 1 column 101", 100, 100)
        self.assertEqual(parse_json(b"[1]", 1), [1])
        self.check(b'[1,{"a":2}]', "line 1 column 4", 1, 1)

    def test_parse_json_depth_is_reported_before_a_fault(self):
        """A fault is looked for in what is not too deep, so that the search needs no stack of its own."""
        self.check(b'{"a":NaN,"b":' + b"[" * 200 + b"]" * 200 + b"}", "line 1 column 213", 200)

    def test_parse_json_100000_levels_are_refused_without_a_crash(self):
        texts = {
            "arrays that are closed": (b"[" * 100_000 + b"]" * 100_000, 201),
            "arrays that are cut": (b"[" * 100_000, 201),
            "objects that are closed": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 1_001),
            "objects that are cut": (b'{"a":' * 100_000, 1_001),
            "both, cut": (b'[{"a":' * 50_000, 601),
            "behind a byte-order mark": (BOM + b"[" * 100_000, 201),
        }
        for phrase, (data, column) in texts.items():
            with self.subTest(phrase):
                self.check(data, f"line 1 column {column}", 200)


class SizeTest(unittest.TestCase):
    # What a reply of 4 MiB may take of 200 MiB, with the interpreter and the reply itself subtracted.
    BYTES_OF_MEMORY_PER_BYTE = 43

    def test_input_limit_is_64_mib(self):
        self.assertEqual(checkpoint_demo.INPUT_LIMIT_BYTES, 67_108_864)

    def test_parse_json_text_at_the_size_limit_is_accepted_and_longer_refused(self):
        with mock.patch.object(checkpoint_demo, "INPUT_LIMIT_BYTES", 1_000):
            self.assertEqual(parse_json(b"[1]" + b" " * 997), [1])
            for data in (b"[1]" + b" " * 998, b"\xff" * 1_001, BOM + b" " * 998):
                with self.subTest(data=data[:4]), self.assertRaises(InputError) as caught:
                    parse_json(data)
                self.assertEqual(str(caught.exception), "byte 1000: longer than 1,000 bytes")

    def test_parse_json_huge_object_with_one_key_twice_is_refused(self):
        pairs = ",".join(f'"key-{number}":{number}' for number in range(100_000))
        texts = {
            "at the end": (f'{{{pairs},"key-99999":0}}', "$", "key-99999"),
            "first and last": (f'{{{pairs},"key-0":0}}', "$", "key-0"),
            "inside": (f'{{"a":[{{{pairs},"key-7":0}}]}}', "a[0]", "key-7"),
            "each": (f"{{{','.join(2 * [pairs])}}}", "$", "key-0"),
        }
        for phrase, (text, place, key) in texts.items():
            with self.subTest(phrase):
                with self.assertRaises(InputError) as caught:
                    parse_json(text.encode())
                error = caught.exception
                self.assertEqual(error.path, place)
                self.assertEqual(error.message, f'the object has the key the string "{key}" twice')

    def test_parse_json_cut_text_is_refused_in_time_that_grows_with_it_alone(self):
        """Where it grew with the square of the text, these would take hours."""
        texts = {
            "a string of escaped quotes": b'["' + rb"\"" * 500_000,
            "a reply that holds JSON text": b'{"content":"' + rb"{\"sku\":\"A\\n\"}," * 50_000,
            "many strings": b'["a",' * 150 + b'"b",' * 200_000,
        }
        for phrase, data in texts.items():
            with self.subTest(phrase), self.assertRaisesRegex(InputError, "^line 1 column "):
                parse_json(data)

    def test_parse_json_hostile_text_stays_within_memory(self):
        """Whatever a server sends, 200 MiB are enough for the 4 MiB of a reply that are read."""
        texts = {  # begins, is repeated, ends
            "empty objects": (b"[", b"{},", b"0]"),
            "empty arrays": (b"[", b"[],", b"0]"),
            "small objects": (b"[", b'{"":0},', b"0]"),
            "NaN": (b"[", b"NaN,", b"0]"),
            "numbers that overflow": (b"[", b"1e999,", b"0]"),
            "keys that stand there twice": (b"[", b'{"":0,"":0},', b"0]"),
            "a fault deep inside, before many numbers": (b"[" * 99 + b"NaN,", b"0,", b"0" + b"]" * 99),
            "too deep, before many numbers": (b"[" * 100 + b"[],", b"0,", b"0" + b"]" * 100),
            "a string of escaped quotes that is cut": (b'["', rb"\"", b""),
            "a long string before the fault": (b'[["', b"x", b'"] x'),
        }
        for phrase, (head, unit, tail) in texts.items():
            with self.subTest(phrase):
                data = head + unit * (2**16 // len(unit)) + tail
                tracemalloc.start()
                try:
                    parse_json(data, 100)
                except InputError as error:
                    self.assertRegex(error.path, r"^(\[0\]|line 1 column \d+$)")
                finally:
                    peak = tracemalloc.get_traced_memory()[1]
                    tracemalloc.stop()
                self.assertLess(peak / len(data), self.BYTES_OF_MEMORY_PER_BYTE)


if __name__ == "__main__":
    unittest.main()
