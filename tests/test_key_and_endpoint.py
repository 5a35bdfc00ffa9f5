"""Where a key may go, what a key is, and how it is kept out of what is stored and shown."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from unittest import mock

import run_handoff
from checkpoint_demo import RefusedError
from run_handoff import KEY_MARK, Key, check_endpoint, read_key
from tests.support import KEY, handoff


class EndpointTest(unittest.TestCase):
    ALLOWED = {
        "the default": run_handoff.ENDPOINT,
        "https with a port and a query": "https://gateway.example:8443/v1/messages?beta=true",
        "https to an address": "https://192.0.2.1/v1/messages",
        "http to 127.0.0.1": "http://127.0.0.1:8080/v1/messages",
        "http to another loopback address": "http://127.1.2.3/",
        "http to IPv6 loopback": "http://[::1]:8080/v1/messages",
        "http to localhost": "http://localhost:11434/v1/messages",
        "http to LOCALHOST": "http://LOCALHOST/",
        "a scheme in capitals": "HTTPS://gateway.example/",
        "https to an IPv6 address": "https://[2001:db8::1]:8443/v1/messages",
        "https to a name without a dot": "https://gateway",
        "https to a name with an underscore": "https://my_gateway.example/v1/messages?",
    }
    REFUSED = {
        "nothing": "",
        "no scheme": "api.example/v1/messages",
        "no host": "https:///v1/messages",
        "another scheme": "ftp://api.example/",
        "a file": "file:///etc/hosts",
        "http to a name": "http://api.example/v1/messages",
        "a name that begins like loopback": "http://127.0.0.1.example.com/",
        "a user name that looks like loopback": "http://127.0.0.1@example.com/",
        "a user name": "https://user@api.example/",
        "an empty user name": "https://@api.example/",
        "a user name and a password": "https://user:secret@api.example/",
        "localhost as a prefix": "http://localhost.example.com/",
        "localhost with a dot": "http://localhost./",
        "a short form of loopback": "http://127.1/",
        "loopback as one number": "http://2130706433/",
        "loopback in hex": "http://0x7f000001/",
        "loopback in octal": "http://0177.0.0.1/",
        "an address that means any": "http://0.0.0.0/",
        "an IPv4 address inside IPv6": "http://[::ffff:127.0.0.1]/",
        "another IPv6 address": "http://[::2]/",
        "a name behind brackets": "http://[::1].evil.example/",
        "a name in front of brackets": "http://evil.example[::1]/",
        "something between brackets and port": "http://[::1]x:80/",
        "loopback in brackets": "http://[127.0.0.1].evil.example/",
        "a port with leading zeros": "https://api.example:0443/",
        "a bracket left open": "http://[::1/",
        "a port that is no number": "https://api.example:x/",
        "a port out of range": "https://api.example:65536/",
        "port 0": "https://api.example:0/",
        "a host that no name can be": "https://a..b/",
        "a label that is too long": f"https://{'a' * 64}.example/",
        "a fragment": "https://api.example/#v1",
        "more than a ledger holds": f"https://api.example/{'a' * 2_000}",
        "a space": "https://api.example/v1 messages",
        "a newline": "https://api.example/\nx-evil: 1",
        "a tab": "https://api.example/\t",
        "a letter beyond ASCII": "https://\u0430pi.example/",
        "a letter that is ASCII in lower case": "https://\u212aey.example/",
        "a backslash": "https://api.example\\@evil.example/",
        "a NUL": "https://api.example/\x00",
    }

    def test_endpoint_is_allowed(self):
        for name, url in self.ALLOWED.items():
            with self.subTest(name):
                check_endpoint(url)

    def test_endpoint_is_refused(self):
        for name, url in self.REFUSED.items():
            with self.subTest(name), self.assertRaises(RefusedError) as caught:
                check_endpoint(url)
            self.assertTrue(str(caught.exception).startswith("refused: the endpoint"))
            self.assertEqual(str(caught.exception).count("\n"), 2)


class ReadKeyTest(unittest.TestCase):
    def read(self, value):
        with mock.patch.dict(os.environ, {"SOME_KEY": value}):
            return read_key("SOME_KEY")

    def test_key_of_printable_ascii_is_taken(self):
        for value in (KEY, "!" * 16, "~" * 400, "a.*[(`/+k=$^{1}~"):
            with self.subTest(value):
                self.assertEqual(self.read(value).value, value)

    def test_key_that_no_header_can_carry_is_refused_and_not_shown(self):
        values = {
            "blank": " " * 20,
            "too short": "fifteen-letters",
            "with a newline": KEY + "\n",
            "with a carriage return": KEY + "\r",
            "with a space": f"{KEY} {KEY}",
            "with a tab": f"{KEY}\t",
            "with DEL": KEY + "\x7f",
            "with a letter beyond ASCII": KEY + "\u00e4",
            "with a quote": f'{KEY}"',
            "with a single quote": f"{KEY}'",
            "with a backslash": KEY + "\\",
        }
        for name, value in values.items():
            with self.subTest(name), self.assertRaises(RefusedError) as caught:
                self.read(value)
            self.assertNotIn(value.strip()[:8] or "never", str(caught.exception))
            self.assertIn("SOME_KEY", str(caught.exception))

    def test_key_that_is_missing_or_empty_is_refused(self):
        with mock.patch.dict(os.environ), self.assertRaisesRegex(RefusedError, "no key in SOME_KEY"):
            os.environ.pop("SOME_KEY", None)
            read_key("SOME_KEY")
        with self.assertRaisesRegex(RefusedError, "no key in SOME_KEY"):
            self.read("")


class RefusalTest(unittest.TestCase):
    def test_key_in_a_wrong_place_is_not_shown(self):
        named, plain = ["--live", "--key-env", "OTHER_KEY"], ["--live"]
        lines = {
            "a word": [*named, KEY],
            "an option": [*named, f"--{KEY}"],
            "a stock": [*named, "--source", KEY],
            "a folder": ["--key-env=OTHER_KEY", "--inspect", KEY],
            "a refused endpoint": [*named, "--endpoint", f"http://api.example/{KEY}"],
            "a word that is in no variable": [*plain, KEY],
            "a joined value of no option": [*plain, f"--api-key={KEY}"],
            "a short option": [*plain, f"-k{KEY}"],
            "an endpoint": [*plain, "--endpoint", KEY],
            "the name of a variable": [*plain, "--key-env", "invented0123456789abcdef"],
        }
        for phrase, arguments in lines.items():
            others = {"OTHER_KEY": KEY} if "OTHER_KEY" in str(arguments) else {}
            with self.subTest(phrase), mock.patch.dict(os.environ, others):
                ended = handoff(*arguments, key="sk-another-0123456789")
                self.assertIn(ended.code, (2, 3), ended)
                self.assertNotIn(KEY[-12:], ended.out + ended.err)
                self.assertNotIn("0123456789abcdef", ended.out + ended.err)

    def test_key_in_an_option_of_a_rehearsal_is_refused_and_stored_nowhere(self):
        for option in ("--sender", "--out", "--source"):
            with self.subTest(option), tempfile.TemporaryDirectory() as folder:
                out = [] if option == "--out" else ["--out", os.path.join(folder, "run")]
                ended = handoff("--rehearse", *out, option, os.path.join(folder, KEY), key=KEY)
                self.assertEqual((ended.code, os.listdir(folder)), (3, []), ended)
                self.assertNotIn(KEY, ended.out + ended.err)
                self.assertIn("this key cannot be used", ended.err)

    def test_longer_one_of_two_keys_is_removed_first(self):
        with mock.patch.dict(os.environ, {"OTHER_KEY": KEY + "TAIL" * 4}):
            for _ in range(10):
                ended = handoff("--live", "--key-env", "OTHER_KEY", "--source", KEY + "TAIL" * 4, key=KEY)
                self.assertNotIn("TAIL", ended.out + ended.err)


BACKSLASH = "\\"


class RemoveKeyTest(unittest.TestCase):
    AWKWARD = "u0/odd.*key+(1)[2]"

    def spell(self, key, escape):
        return "".join(escape(letter) if place % 2 else letter for place, letter in enumerate(key))

    def test_key_is_removed_however_it_is_written(self):
        for key in (KEY, self.AWKWARD):
            quoted = json.dumps(key)[1:-1]
            spellings = {
                "plain": key,
                "in JSON": quoted,
                "in JSON inside JSON": json.dumps(quoted)[1:-1],
                "three times inside": json.dumps(json.dumps(quoted)[1:-1])[1:-1],
                "with escaped slashes": quoted.replace("/", "\\/"),
                "every letter escaped": "".join(f"\\u{ord(letter):04x}" for letter in key),
                "escaped in capitals": "".join(f"\\u{ord(letter):04X}" for letter in key),
                "every second letter escaped": self.spell(key, lambda letter: f"\\u{ord(letter):04x}"),
                "escapes escaped": "".join(f"\\\\u{ord(letter):04x}" for letter in key),
                "escapes escaped three times": "".join(
                    f"{BACKSLASH * 8}u{ord(letter):04x}" for letter in key
                ),
            }
            for name, spelling in spellings.items():
                with self.subTest(name, key=key):
                    body = f'{{"echo":"{spelling}","again":"x{spelling}y"}}'.encode()
                    kept = Key(key).remove_from(body)
                    self.assertEqual(kept.count(KEY_MARK.encode()), 2, kept)
                    self.assertNotIn(key.encode(), kept)

    def test_what_is_not_the_key_stays(self):
        for body in (
            b"",
            KEY[:-1].encode(),
            KEY.upper().encode(),
            b'{"a":"\\\\\\u0041/"}',
            bytes(range(256)),
        ):
            with self.subTest(body):
                self.assertEqual(Key(KEY).remove_from(body), body)

    def test_json_with_the_key_taken_out_is_still_json(self):
        for key in (KEY, self.AWKWARD):
            kept = json.loads(Key(key).remove_from(json.dumps({"a": f"<{key}>", "b": [key]}).encode()))
            self.assertEqual(kept, {"a": f"<{KEY_MARK}>", "b": [KEY_MARK]})

    def test_text_keeps_what_utf8_cannot_hold(self):
        self.assertEqual(Key(KEY).remove_from_text(f"\ud83d {KEY}"), f"\ud83d {KEY_MARK}")

    def test_backslash_in_front_of_the_key_stays(self):
        for text, kept in {r"\n": r"\n", r"\\": r"\\", r"\"": r"\""}.items():
            with self.subTest(text):
                body = f'"{text}{KEY}"'.encode()
                self.assertEqual(Key(KEY).remove_from(body), f'"{kept}{KEY_MARK}"'.encode())

    def test_runs_of_backslashes_end(self):
        """Where each could be divided in several ways, these few bytes would take longer than a life."""
        key = Key("abcdefghijklmnop")
        for count in (9, 17):
            body = b"".join(b"\\" * count + b"u00%x" % letter for letter in b"abcdefghi") + b"!"
            self.assertEqual(key.remove_from(body * 50), body * 50)

    def test_long_runs_end(self):
        # A pattern that tries every run again from each of its places would not end within the suite.
        for key in (KEY, "/" * 16, "u0" * 9, "a" * 15 + "b"):
            for filler in ("\\", "s", "a", key[:-1], "\\\\u0073", '\\"'):
                with self.subTest(filler, key=key):
                    body = (filler * (2**18 // len(filler))).encode()
                    self.assertLessEqual(len(Key(key).remove_from(body)), len(body))
