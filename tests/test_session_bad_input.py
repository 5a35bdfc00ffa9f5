"""Records that are broken or hostile: a finding with its path or a refusal, never a traceback."""

from __future__ import annotations

import copy
import json
import random
import unittest
from functools import partial

from checkpoint_demo import find_refusals, read_session
from tests.session_support import SESSIONS, TARGETS, build_record, read_case, run_session
from tests.support import count_rounds, count_steps
from tests.test_session_home import mutate

TO = ("--to", "chat", "--model", "kimi-k3")
# A text, and what standard error must say.
NO_RECORDS = {
    "empty": (b"", "not JSON"),
    "cut": (b'{"messages": [', "not JSON"),
    "a repeated key": (b'{"messages": [], "messages": []}', "twice"),
    "a number": (b"5", "expected a list"),
    "an object without messages": (b'{"model": "m"}', "expected a list"),
    "a string for messages": (b'{"messages": "hello"}', "expected a list"),
    "an object for contents": (b'{"contents": {}}', "expected a list"),
    "two shapes": (b'{"messages": [{"role": "tool"}], "contents": []}', "one of them alone"),
    "blocks of two shapes": (
        b'{"system": "s", "messages": [{"role": "assistant", "tool_calls": []}]}',
        "two shapes",
    ),
    "plain texts": (b'{"messages": [{"role": "user", "content": "a"}]}', "--from"),
    "the Responses API": (b'{"input": [{"role": "user"}]}', "Responses API"),
    "items of the Responses API": (b'[{"type": "message", "role": "user", "content": "a"}]', "Responses API"),
    "a field in snake_case": (b'{"contents": [], "system_instruction": {}}', "snake_case"),
    "a part in snake_case": (b'{"contents": [{"parts": [{"function_call": {"name": "n"}}]}]}', "snake_case"),
    "201 levels": (b"[" * 201 + b"]" * 201, "nested deeper"),
}
# A neutral session's changed field, and the path of a finding.
NEUTRAL_FAULTS = {
    "turns that are no list": ({"turns": "x"}, "$:"),
    "no turns": ({"turns": None}, "$:"),
    "a turn that is a string": ({"turns": ["x"]}, "turns[0]:"),
    "a turn without parts": ({"turns": [{"role": "user"}]}, "turns[0]:"),
    "parts that are a string": ({"turns": [{"role": "user", "parts": "x"}]}, "turns[0]:"),
    "a part of no kind": ({"turns": [{"role": "user", "parts": [{"text": "x"}]}]}, "turns[0].parts[0]:"),
    "a text that is a number": (
        {"turns": [{"role": "user", "parts": [{"kind": "text", "text": 5}]}]},
        "turns[0].parts[0]:",
    ),
    "an id that is an object": (
        {
            "turns": [
                {"role": "user", "parts": [{"kind": "call", "tool": "t", "arguments": {}, "call_id": {}}]}
            ]
        },
        "turns[0].parts[0]:",
    ),
    "a field of a newer version": ({"colour": "red"}, "$:"),
    "another version": ({"schema_version": 2}, "$:"),
    "an API that nobody has": ({"issuer": {"api": "x"}}, "$:"),
    "tools that are an object": ({"tools": {}}, "$:"),
    "a tool without a name": ({"tools": [{}]}, "tools[0]"),
    "settings that are a list": ({"settings": []}, "$:"),
    "native that is a string": (
        {"turns": [{"role": "user", "parts": [], "native": "x"}]},
        "turns[0]:",
    ),
}


class BadInputTest(unittest.TestCase):
    def test_session_of_no_record_is_unusable(self):
        for phrase, (text, said) in NO_RECORDS.items():
            with self.subTest(phrase):
                code, out, err = run_session(record=text)
                self.assertEqual((code, out), (2, ""))
                self.assertIn(said, err)

    def test_neutral_session_that_does_not_hold_is_rejected_with_paths(self):
        good = {"format": "neutral-session", "schema_version": 1, "turns": []}
        for phrase, (changes, path) in NEUTRAL_FAULTS.items():
            with self.subTest(phrase):
                code, out, err = run_session("--to", "neutral", record={**good, **changes})
                self.assertEqual((code, out), (1, ""))
                self.assertIn(path, err)

    def test_mutated_record_never_ends_in_a_bug(self):
        for seed in range(count_rounds(200)):
            dice = random.Random(seed)
            vendor = dice.choice(["anthropic", "kimi", "gemini"])
            if seed % 2:
                record = build_record(vendor, seed)[0]
            else:
                case = dice.choice(SESSIONS)
                record, vendor = read_case(case["file"]), case["vendor"]
            record = mutate(copy.deepcopy(record), dice)
            if seed % 5 == 0:
                code, record, _ = run_session("--to", "neutral", record=record)
                record = mutate(json.loads(record), dice) if code == 0 else {}
            target = TARGETS[dice.choice(list(TARGETS))]
            for options in (
                (),
                ("--to", target[0], "--model", target[1]),
                ("--fresh", "--unclear", "--leave-out"),
            ):
                if options[:1] == ("--fresh",):
                    options = ("--to", target[0], "--model", target[1], *options)
                with self.subTest(seed=seed, options=options):
                    code, _, err = run_session(*options, record=record)
                    self.assertIn(code, (0, 1, 2), err)
                    self.assertTrue(code == 0 or err)

    def test_a_string_at_every_place_never_ends_in_a_bug(self):
        for name in (
            "029-image-in-result-anthropic",
            "051-refusal-openai",
            "009-parallel-gemini-one-signature",
        ):
            record = read_case(f"{name}.session.json")
            api = "gemini" if "contents" in record else "chat" if "openai" in name else "messages"
            places = list(self.list_paths(record))
            for path in places:
                for strange in ("x", 5, {}, None):
                    changed = copy.deepcopy(record)
                    self.put(changed, path, strange)
                    with self.subTest(name, path=path, strange=strange):
                        code, _, err = run_session("--from", api, *TO, record=changed)
                        self.assertIn(code, (0, 1, 2), err)
                        if strange is None or strange == "x":
                            code, _, err = run_session("--from", api, record=changed)
                            self.assertIn(code, (0, 1, 2), err)

    def list_paths(self, value, at=()):
        """Yield the path of every value in a value."""
        if at:
            yield at
        if isinstance(value, (dict, list)):
            for key in value if isinstance(value, dict) else range(len(value)):
                yield from self.list_paths(value[key], (*at, key))

    def put(self, value, path, new):
        """Put a value at a path."""
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = new

    def test_steps_grow_with_the_record(self):
        def count(calls):
            turns = [{"role": "user", "content": [{"type": "text", "text": "go"}]}]
            ids = [f"t{number}" for number in range(calls)]
            calls = [{"type": "tool_use", "id": name, "name": "n", "input": {}} for name in ids]
            results = [{"type": "tool_result", "tool_use_id": name, "content": "r"} for name in reversed(ids)]
            turns += [
                {"role": "assistant", "content": calls},
                *({"role": "user", "content": [r]} for r in results),
            ]
            record = {"model": "m", "max_tokens": 1, "messages": turns}
            steps = 0
            for options in ((), TO, (*TO, "--fresh")):
                self.assertEqual(run_session(*options, record=record)[0], 0)
                steps += count_steps(partial(run_session, *options, record=record))
            return steps

        self.assertLess(count(1_000), 11 * count(100))

    def test_many_broken_parts_are_cut(self):
        body = {"messages": [{"role": "user", "content": [1] * 100_000}]}
        self.assertEqual(len(find_refusals("messages", body)), 10_001)

    def test_lone_surrogate_is_carried_and_stops_a_checkpoint(self):
        record = {"model": "m", "system": "s", "messages": [{"role": "user", "content": "a\ud83d"}]}
        self.assertEqual(read_session(record, "messages")["turns"][0]["parts"][0]["text"], "a\ud83d")
        self.assertEqual(run_session(*TO, record=record)[0], 0)
        code, _, err = run_session(*TO, "--fresh", record=record)
        self.assertEqual(code, 1)
        self.assertIn("messages[0].content: a lone surrogate", err)


if __name__ == "__main__":
    unittest.main()
