"""Thousands of random changes of a good result, a good checkpoint and a good ledger, from a fixed seed.

None may crash, and what is accepted must mean what the good one means, by a reader of its own.
"""

from __future__ import annotations

import json
import random
import re
import unittest
from unittest import mock

import checkpoint_demo
import run_handoff
from tests.support import ANSWER, GOOD_RUN, RunTestCase, count_rounds

ROUNDS = count_rounds(10_000)
LEDGER_ROUNDS = count_rounds(3_000)  # each is a whole inspection
TOKENS = [
    b"null",
    b"true",
    b"false",
    b"0",
    b"-0",
    b"3",
    b"3.0",
    b"3e0",
    b"03",
    b"1e400",
    b"NaN",
    b'"3"',
    b'""',
    b"{}",
]
TOKENS += [
    b"[]",
    b",",
    b":",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b"\\",
    b"\\u0033",
    b"\\ud83d",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\x00",
]
TOKENS += [
    b" ",
    b"\n",
    b"\t",
    b"\xc2\xa0",
    b"//",
    b"/**/",
    b"'",
    b'"sku":',
    b'"shortage":',
    b'"rows":',
    b"9" * 4_301,
]
PIECE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9.eE+]+|[a-z]+|.', re.DOTALL)


def mutate(chance, data):
    """Return data with one to three random changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        pieces = PIECE.findall(data) or [b""]
        at, other = chance.randrange(len(pieces)), chance.randrange(len(pieces))
        kind = chance.randrange(8)
        if kind == 0:
            pieces[at] = chance.choice(TOKENS)
        elif kind == 1:
            pieces.insert(at, chance.choice(TOKENS))
        elif kind == 2:
            del pieces[at]
        elif kind == 3:
            pieces[at], pieces[other] = pieces[other], pieces[at]
        elif kind == 4:
            pieces[at:at] = pieces[other : other + chance.randrange(1, 12)]
        elif kind == 5:
            pieces = pieces[:at]
        elif kind == 6 and pieces[at]:
            letters = bytearray(pieces[at])
            letters[chance.randrange(len(letters))] ^= 1 << chance.randrange(8)
            pieces[at] = bytes(letters)
        elif kind == 7 and pieces[at].startswith(b'"'):
            pieces[at] = b'"' + b"".join(b"\\u%04x" % letter for letter in pieces[at][1:-1]) + b'"'
        data = b"".join(pieces)
    return data


def read_meaning(data):
    """Return a text's value with every type written out, by the standard reader; None if it has none."""

    def build(pairs):
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a repeated key")
        return ("object", *sorted(pairs, key=repr))

    def refuse(name):
        raise ValueError(name)

    def spell(value):
        if isinstance(value, list):
            return ["array", *map(spell, value)]
        if isinstance(value, tuple):
            return ["object", *([key, spell(inner)] for key, inner in value[1:])]
        return [type(value).__name__, repr(value)]

    try:
        return spell(json.loads(data.decode("utf-8-sig"), object_pairs_hook=build, parse_constant=refuse))
    except (ValueError, RecursionError):
        return None


class MutationTest(unittest.TestCase):
    def run_rounds(self, seed, good, accept, meaning=read_meaning):
        """Return how many of the changed texts were accepted; each must mean what the good one does."""
        chance = random.Random(seed)
        wanted, accepted = meaning(good), 0
        self.assertTrue(accept(good))
        for number in range(ROUNDS):
            data = mutate(chance, good)
            if accept(data):
                accepted += 1
                self.assertEqual(meaning(data), wanted, (number, data))
        return accepted

    def test_result_is_accepted_only_if_it_means_the_good_one(self):
        def accept(data):
            try:
                return not checkpoint_demo.validate_result(
                    checkpoint_demo.parse_json(data), checkpoint_demo.DEMO, checkpoint_demo.DEMO.source
                )
            except checkpoint_demo.InputError:
                return False

        def meaning(data):
            value = read_meaning(data)
            rows = value[1][1][1:]  # of the object its only field, of the array its items
            return sorted(rows, key=repr)

        accepted = self.run_rounds(1, ANSWER.encode(), accept, meaning)
        self.assertGreater(accepted, ROUNDS // 100)
        self.assertLess(accepted, ROUNDS // 2)

    def test_checkpoint_is_verified_only_if_it_means_the_good_one(self):
        good = checkpoint_demo.canonical_json(
            checkpoint_demo.build_checkpoint(checkpoint_demo.DEMO, checkpoint_demo.DEMO.source)
        )

        def accept(data):
            try:
                value = checkpoint_demo.parse_json(data)
                return not checkpoint_demo.verify_checkpoint(
                    value, checkpoint_demo.DEMO, checkpoint_demo.DEMO.source
                )
            except checkpoint_demo.InputError:
                return False

        accepted = self.run_rounds(2, good, accept)
        self.assertGreater(accepted, ROUNDS // 100)
        self.assertLess(accepted, ROUNDS // 2)


class LedgerMutationTest(RunTestCase):
    def test_ledger_holds_only_if_it_means_the_good_one(self):
        self.assertEqual(self.live(self.serve(*GOOD_RUN)).code, 0)
        files = self.files()
        good = files["ledger.jsonl"]
        chance = random.Random(3)
        held = 0
        with mock.patch.object(run_handoff, "read_evidence", lambda _, name: files.get(name)):
            for number in range(LEDGER_ROUNDS):
                files["ledger.jsonl"] = mutate(chance, good)
                known = {name: files.get(name) for name in run_handoff.FILES}
                files["SHA256SUMS"] = run_handoff.render_sums(known)
                try:
                    work = run_handoff.Work(checkpoint_demo.DEMO)
                    inspector = run_handoff.inspect_run(self.path("run"), work)
                except checkpoint_demo.UnreadableError as error:  # it names another task's file
                    self.assertIn("the run's task is", error.what)
                    continue
                if inspector.exit_code == 0:
                    held += 1
                    self.assertEqual(
                        self.read_records(files["ledger.jsonl"]), self.read_records(good), number
                    )
                else:
                    self.assertEqual(inspector.exit_code == 1, bool(inspector.findings), number)
        self.assertLess(held, LEDGER_ROUNDS // 10)

    def read_records(self, data):
        """Return a ledger's records."""
        return [json.loads(line) for line in data.split(b"\n") if line]
