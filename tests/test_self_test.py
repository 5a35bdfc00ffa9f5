"""Self-test: it passes, each of its checks can fail, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import unittest
from unittest import mock

import checkpoint_demo
from checkpoint_demo import DEMO, Finding, InputError, run_self_test
from tests import support


def accept_all(*_):
    """Stand in for a judge that finds nothing."""
    return []


def refuse_all(*_):
    """Stand in for a judge that finds fault with everything."""
    return [Finding("nowhere", "refused")]


def read_leniently(data, *_):
    """Stand in for a reader that lets everything pass."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def read_nothing(*_):
    """Stand in for a reader that refuses everything."""
    raise InputError("nowhere", "refused")


def find_type_blind_differences(*sides, find_differences=checkpoint_demo.find_differences):
    """Stand in for a comparison for which 1, 1.0 and true are the same."""
    return [(path, one, other) for path, one, other in find_differences(*sides) if one != other]


# What is broken: (the function, what stands in for it, a group, the checks of it that must fail: a list of
# them, or the word that they begin with).
BROKEN = {
    "a reader that takes everything": ("parse_json", read_leniently, "strict JSON", "refuses"),
    "a verifier that accepts everything": ("verify_checkpoint", accept_all, "checkpoint", "refuses"),
    "a validator that accepts everything": (
        "validate_result",
        accept_all,
        "result",
        [
            "refuses a wrong quantity",
            'refuses the string "0"',
            "refuses false for 0",
            "refuses 3.0 for 3",
            "refuses null for 0",
            "refuses a missing SKU",
            "refuses an unknown SKU",
            "refuses a repeated SKU",
            "refuses a missing field",
            "refuses an unexpected field",
            "refuses a key beside rows",
            "refuses rows as an object",
        ],
    ),
    "a reader that takes Markdown and prose": (
        "parse_json",
        read_leniently,
        "reply",
        [
            "refuses Markdown around the answer",
            "refuses prose in front of the answer",
            "refuses prose behind the answer",
        ],
    ),
    "a reply whose answer is not judged": (
        "validate_result",
        accept_all,
        "reply",
        ["refuses an answer with a row that is not an object"],
    ),
    "a reply's step that is not judged": (
        "find_step_findings",
        accept_all,
        "reply",
        ["refuses a cut answer", "refuses a refusal", "refuses a tool call"],
    ),
    "a reply's form that is not judged": (
        "find_reply_findings",
        accept_all,
        "reply",
        ["refuses a user's message"],
    ),
    "an answer that is made up": (
        "find_answer",
        lambda _: ([], checkpoint_demo.DEMO.build_answer(checkpoint_demo.DEMO.source)),
        "reply",
        ["refuses an empty answer"],
    ),
    "a replay check that finds no change": (
        "compare_sessions",
        lambda *_: ({}, []),
        "session replay",
        [
            "finds the system instruction",
            "finds a tool's description",
            "finds an earlier message",
            "finds the order of the assistant's content blocks",
            "finds the result's call id",
        ],
    ),
    "a replay check that finds changes everywhere": (
        "compare_sessions",
        lambda *_: ({"changed prefix: system": []}, []),
        "session replay",
        ["finds nothing (no visible text, all the same)"],
    ),
    "a verifier that refuses everything": ("verify_checkpoint", refuse_all, "checkpoint", "accepts"),
    "a validator that refuses everything": ("validate_result", refuse_all, "result", "accepts"),
    "a step that fits no reply": ("find_step_findings", refuse_all, "reply", "accepts"),
    "canonical JSON with white space": (
        "canonical_json",
        lambda value: json.dumps(value, ensure_ascii=False, sort_keys=True).encode(),
        "canonical JSON and digests",
        ["sorts keys, adds no white space"],
    ),
    "canonical JSON in any order": (
        "canonical_json",
        lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(),
        "canonical JSON and digests",
        ["sorts keys, adds no white space"],
    ),
    "a digest that is none": (
        "digest_bytes",
        lambda _: "0" * 64,
        "canonical JSON and digests",
        ["gives FIPS 180-4's digest of abc"],
    ),
    "a comparison that is blind to types": (
        "find_differences",
        find_type_blind_differences,
        "canonical JSON and digests",
        ["tells 1, 1.0 and true apart"],
    ),
    "a handoff that loses the checkpoint": (
        "render_handoff",
        lambda task, _: f"{checkpoint_demo.render_instructions(task)}{{}}\n",
        "handoff",
        ["carries the whole checkpoint"],
    ),
    "a request that says more": (
        "build_receiver_request",
        lambda handoff: {"messages": [{"role": "user", "content": f"{handoff} "}]},
        "handoff",
        ["is the request's only message"],
    ),
}


class SelfTestTest(unittest.TestCase):
    def setUp(self):
        self.checks = [(group, check) for group, check, _ in run_self_test(DEMO, DEMO.source)]

    def find_failed(self, out):
        """Return the (group, check) pairs that the command said to have failed."""
        failed, group = [], ""
        for line in out.splitlines():
            if not line.startswith("  "):
                group = line
            elif line.startswith("  FAILED  "):
                failed.append((group, line[len("  FAILED  ") :]))
        return failed

    def run_broken(self, name, stand_in):
        with mock.patch.object(checkpoint_demo, name, stand_in):
            return support.checkpoint("self-test")

    def test_self_test_passes_every_check(self):
        failed = [
            (group, check) for group, check, passed in run_self_test(DEMO, DEMO.source) if passed is not True
        ]
        self.assertEqual(failed, [])
        self.assertGreater(len(self.checks), 40)

    def test_self_test_checks_are_named_once_each(self):
        self.assertEqual(len(set(self.checks)), len(self.checks))

    def test_self_test_refuses_more_than_it_accepts(self):
        for group in ("strict JSON", "checkpoint", "result", "reply"):
            words = [check.split()[0] for of, check in self.checks if of == group]
            with self.subTest(group):
                self.assertGreater(words.count("accepts"), 0)
                self.assertGreater(words.count("refuses"), words.count("accepts"))

    def test_self_test_command_prints_each_check_and_their_count(self):
        expected, shown = [], ""
        for group, check in self.checks:
            if group != shown:
                expected.append(group)
                shown = group
            expected.append(f"  ok      {check}")
        expected.append(f"{len(self.checks)} checks: {len(self.checks)} passed, 0 failed")
        ended = support.checkpoint("self-test")
        self.assertEqual((ended.code, ended.out.splitlines(), ended.err), (0, expected, ""))

    def test_self_test_of_a_broken_program_says_what_failed_and_exits_1(self):
        for phrase, (name, stand_in, group, expected) in BROKEN.items():
            with self.subTest(phrase):
                if isinstance(expected, str):
                    expected = [
                        check for of, check in self.checks if of == group and check.startswith(expected)
                    ]
                    self.assertTrue(expected)
                ended = self.run_broken(name, stand_in)
                failed = self.find_failed(ended.out)
                self.assertEqual({(group, check) for check in expected} - set(failed), set())
                total = len(self.checks)
                verdict = f"{total} checks: {total - len(failed)} passed, {len(failed)} failed"
                self.assertEqual((ended.code, ended.out.splitlines()[-1], ended.err), (1, verdict, ""))

    def test_self_test_has_no_check_that_cannot_fail(self):
        never = set(self.checks)
        for name, stand_in, _, _ in BROKEN.values():
            never -= set(self.find_failed(self.run_broken(name, stand_in).out))
        with mock.patch.object(checkpoint_demo, "parse_json", read_nothing):  # it ends the later groups
            for group, check, passed in run_self_test(DEMO, DEMO.source):
                if group != "strict JSON":
                    break
                never -= set() if passed else {(group, check)}
        self.assertEqual(never, set())

    def test_self_test_of_a_program_that_crashes_never_passes(self):
        def crash(*_):
            raise RuntimeError("broken")

        crashing = (
            "parse_json",
            "verify_checkpoint",
            "validate_result",
            "find_step_findings",
            "digest_bytes",
        )
        for name in crashing:
            with self.subTest(name):
                ended = self.run_broken(name, crash)
                self.assertIn(ended.code, (1, 70))
                self.assertNotIn("0 failed", ended.out)

    def test_self_test_of_a_program_that_reads_with_json_loads_never_passes(self):
        ended = self.run_broken("parse_json", json.loads)
        self.assertIn(ended.code, (1, 70))
        self.assertIn(("strict JSON", "refuses a repeated key"), self.find_failed(ended.out))

    def test_self_test_opens_no_connection(self):
        with mock.patch("socket.socket", side_effect=AssertionError("a socket was opened")):
            self.assertEqual(support.checkpoint("self-test").code, 0)

    def test_self_test_takes_no_arguments(self):
        for argument in ("--json", "result.json", "-"):
            with self.subTest(argument):
                ended = support.checkpoint("self-test", argument)
                self.assertEqual((ended.code, "checks" in ended.out), (2, False))
                self.assertIn(
                    '"verdict": "usage"' if argument == "--json" else ": usage: ", ended.out + ended.err
                )


class SelfTestProcessTest(support.FolderTestCase):
    def test_self_test_as_a_process_leaves_nothing_behind(self):
        shutil.copy(support.ROOT / "checkpoint_demo.py", self.path("tool.py"))
        for name in ("home", "work"):
            (self.folder / name).mkdir()
        os.chmod(self.path("home"), 0o500)
        self.addCleanup(os.chmod, self.path("home"), 0o700)
        homes = {"none": {}, "one that is read-only": {"HOME": self.path("home")}}
        for phrase, home in homes.items():
            environment = {"PYTHONDONTWRITEBYTECODE": "", "TMPDIR": self.path("work"), **home}
            with self.subTest(f"home: {phrase}"):
                ended = support.run_script(
                    self.path("tool.py"), "self-test", environment=environment, cwd=self.path("work")
                )
                self.assertEqual((ended.code, ended.err), (0, ""))
                self.assertRegex(ended.out, r"\n(\d+) checks: \1 passed, 0 failed\n$")
                self.assertEqual(self.names(), ["home", "tool.py", "work"])
                self.assertEqual(os.listdir(self.path("home")) + os.listdir(self.path("work")), [])
