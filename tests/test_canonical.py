"""canonical_json and the digests: the bytes, and known answers of other tools."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import unittest

from checkpoint_demo import InputError, canonical_json, digest_bytes, digest_json, parse_json
from tests.support import ROOT, STOCK

# printf '%s' '[{"available":7,"sku":"DEMO-001","target":10},{"available":15,"sku":"DEMO-002",
#   "target":12},{"available":0,"sku":"DEMO-003","target":4}]' | sha256sum     (written as one line)
STOCK_SHA256 = "b3d576f612f4d004f9316b157d848c6dcd22f7f3b37244ac8e60dab263a4db44"

# printf '{"a":"\303\244\342\202\254\360\237\230\200\177\\u001f\\n","b":[true,null,-1]}' | sha256sum
TEXT = {"b": [True, None, -1], "a": "\u00e4\u20ac\U0001f600\x7f\x1f\n"}
TEXT_SHA256 = "e69b091be5b833aa17654696ca3a2c9d324cb20aebc8f2008c8ddcb9b0e9e50c"

# From FIPS 180-4's published examples; each also by printf '...' | sha256sum.
DIGESTS = {
    "nothing": (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    "one block": (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    "two blocks": (
        b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
    ),
}

CANONICAL = {
    "null": (None, b"null"),
    "booleans": ([True, False], b"[true,false]"),
    "integers": ([0, -7, 9007199254740993], b"[0,-7,9007199254740993]"),
    "empty containers": ([[], {}, ""], b'[[],{},""]'),
    "keys in another order": ({"b": 1, "a": 2, "B": 3, "": 4}, b'{"":4,"B":3,"a":2,"b":1}'),
    "keys of an inner object": ([{"z": {"b": 1, "a": 2}}], b'[{"z":{"a":2,"b":1}}]'),
    "an array in its order": ([3, 1, 2], b"[3,1,2]"),
    "white space in a string": ("a b\u00a0", b'"a b\xc2\xa0"'),
    "short escapes": ('"\\/\b\f\n\r\t', rb'"\"\\/\b\f\n\r\t"'),
    "other controls": ("\x00\x0b\x1b\x1f", rb'"\u0000\u000b\u001b\u001f"'),
    "characters as themselves": ("\x7f\u2028\u00e4\ufeff", b'"\x7f\xe2\x80\xa8\xc3\xa4\xef\xbb\xbf"'),
    "an emoji": ("\U0001f600", b'"\xf0\x9f\x98\x80"'),
    "NFC and NFD": (["\u00e4", "a\u0308"], b'["\xc3\xa4","a\xcc\x88"]'),
}


class CanonicalTest(unittest.TestCase):
    def test_canonical_json_value_has_one_form(self):
        for phrase, (value, data) in CANONICAL.items():
            with self.subTest(phrase):
                self.assertEqual(canonical_json(value), data)

    def test_canonical_json_form_reads_back_as_the_value(self):
        for phrase, (value, data) in CANONICAL.items():
            with self.subTest(phrase):
                self.assertEqual(parse_json(data), value)

    def test_canonical_json_lone_surrogate_is_refused(self):
        table = {
            "a high one": ("\ud83d", "character 1"),
            "a low one": (["a", "b\udce6"], "character 7"),
            "in a key": ({"\ud83d": 1}, "character 2"),
        }
        for phrase, (value, place) in table.items():
            for function in (canonical_json, digest_json):
                with self.subTest(phrase, function=function.__name__):
                    with self.assertRaises(InputError) as caught:
                        function(value)
                    self.assertEqual(str(caught.exception), f"{place}: a lone surrogate has no UTF-8 form")

    def test_canonical_json_number_that_is_none_is_never_written(self):
        for number in (float("nan"), float("inf"), float("-inf")):
            with self.subTest(number=number), self.assertRaises(ValueError):
                canonical_json([number])

    def test_canonical_json_paired_surrogates_from_escapes_are_a_character(self):
        self.assertEqual(canonical_json(parse_json(rb'"\ud83d\ude00"')), b'"\xf0\x9f\x98\x80"')

    def test_digest_bytes_known_messages_give_known_answers(self):
        for phrase, (data, digest) in DIGESTS.items():
            with self.subTest(phrase):
                self.assertEqual(digest_bytes(data), digest)

    def test_digest_bytes_is_that_of_hashlib_at_every_length(self):
        for size in range(300):
            self.assertEqual(digest_bytes(b"x" * size), hashlib.sha256(b"x" * size).hexdigest())

    def test_digest_json_known_values_give_known_answers(self):
        self.assertEqual(digest_json(STOCK), STOCK_SHA256)
        self.assertEqual(digest_json(TEXT), TEXT_SHA256)

    def test_digest_json_spelling_of_the_text_does_not_count(self):
        spelled = rb' { "a" :"\u00E4\u20ac\ud83d\uDE00\u007F\u001f\u000a", "b": [ true ,null,-1 ] } '
        self.assertEqual(digest_json(parse_json(spelled)), TEXT_SHA256)

    def test_digest_json_other_values_have_other_digests(self):
        values = ([1], [1.0], [True], ["1"], [None], [], {}, [[1]], [1, 1], {"1": 1}, "1", "[1]")
        self.assertEqual(len(set(map(digest_json, values))), len(values))

    def test_digest_json_two_hash_seeds_give_the_same_digest(self):
        program = (
            "import checkpoint_demo as demo; words = {f'key {n}' for n in range(50)};"
            "print(list(words)[:5]); print(demo.digest_json({word: {word: 1} for word in words}));"
            "print(demo.digest_json(demo.build_checkpoint(demo.DEMO, demo.DEMO.source)))"
        )
        lines = []
        for seed in ("1", "2"):
            environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"}
            command = [sys.executable, "-c", program]
            ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
            lines.append(ended.stdout.decode().splitlines())
        self.assertNotEqual(lines[0][0], lines[1][0], "the seeds had no effect")
        self.assertEqual(lines[0][1:], lines[1][1:])
        self.assertRegex("\n".join(lines[0][1:]), r"\A[0-9a-f]{64}\n[0-9a-f]{64}\Z")


if __name__ == "__main__":
    unittest.main()
