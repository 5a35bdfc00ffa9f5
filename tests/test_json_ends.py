"""In a pipeline: with --json every end of a command is one object, and a lost output is said."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import subprocess
import sys
import unittest
from unittest import mock

import checkpoint_demo
from tests.support import (
    ANSWER,
    ANSWERED,
    ROOT,
    FolderTestCase,
    checkpoint,
    make_error,
)

WORDS = ("what", "why", "next")
LOST = "checkpoint_demo.py: standard output is lost: No space left on device"


class ObjectTest(FolderTestCase):
    def read_object(self, ended, code):
        """Return the one object that a command has printed; it says how the command ended."""
        self.assertEqual(ended.code, code, ended)
        shown = json.loads(ended.out)  # one value and nothing beside it
        self.assertIsInstance(shown, dict)
        self.assertEqual(shown["exit_code"], code)
        self.assertIsInstance(shown["verdict"], str)
        self.assertNotIn("\n", shown["verdict"])
        return shown

    def check_refusal(self, ended, code):
        shown = self.read_object(ended, code)
        for word in WORDS:
            self.assertTrue(shown[word] and isinstance(shown[word], str), word)
        return shown

    def test_judged_ends_are_one_object(self):
        checkpoint("prepare", "--out", self.path("work"))
        kept = self.path("work/checkpoint.json")
        with open(kept, encoding="utf-8") as file:
            changed = self.put("changed.json", file.read().replace("verified", "verifed"))
        fixture = self.put("fixture.json", checkpoint("replay", "--emit-fixture").out)
        damaged = self.put("damaged.json", checkpoint("replay", "--emit-fixture").out.replace("DEMO-17", "X"))
        lines = {
            "verify, good": (["verify", kept], 0),
            "verify, changed": (["verify", changed], 1),
            "verify, no JSON": (["verify", self.put("a.txt", "no")], 1),
            "validate, good": (["validate", self.put("good.json", ANSWER)], 0),
            "validate, wrong": (["validate", self.put("wrong.json", ANSWER.replace("4", '"4"'))], 1),
            "validate, empty": (["validate", self.put("empty.json", "")], 1),
            "replay": (["replay"], 0),
            "replay, intact": (["replay", "--check-restored", fixture], 0),
            "replay, damaged": (["replay", "--check-restored", damaged], 1),
        }
        for name, (arguments, code) in lines.items():
            for place in (1, len(arguments)):
                with self.subTest(name, place=place):
                    given = [*arguments[:place], "--json", *arguments[place:]]
                    self.read_object(checkpoint(*given), code)

    def test_refusals_and_usage_errors_are_one_object(self):
        lines = {
            "a file that is not there": (["validate", self.path("no.json")], 2),
            "a folder": (["verify", str(self.folder)], 2),
            "no file named": (["validate"], 2),
            "one file too many": (["verify", "a", "b"], 2),
            "an option that is not there": (["validate", "a", "--frob"], 2),
            "an option without its value": (["validate", "a", "--source"], 2),
            "a source that is not there": (["validate", "a", "--source", self.path("no.csv")], 2),
            "a source that is not one": (["verify", "--source", self.put("s.csv", "a,b\n1,2\n")], 2),
            "standard input twice": (["validate", "-", "--source", "-"], 2),
            "options that exclude each other": (["replay", "--emit-fixture", "--check-restored", "a"], 2),
            "an original alone": (["replay", "--original", "a"], 2),
            "a restored record that is none": (["replay", "--check-restored", self.put("r.json", "{}")], 2),
            "a command that is not there": (["frobnicate"], 2),
            "no command": ([], 2),
            "a command that prints no object": (["prepare", "--out", self.path("work")], 2),
        }
        for name, (arguments, code) in lines.items():
            with self.subTest(name):
                self.check_refusal(checkpoint(*arguments, "--json"), code)
        self.assertNotIn("work", self.names())

    def test_values_of_a_finding_are_told_apart(self):
        wrong = '{"rows":[{"sku":"DEMO-001","shortage":"3"},{"sku":"DEMO-002","shortage":0}],"note":null}'
        shown = self.read_object(checkpoint("validate", self.put("wrong.json", wrong), "--json"), 1)
        findings = {finding["path"]: finding for finding in shown["findings"]}
        self.assertTrue(all(finding["message"] for finding in shown["findings"]))
        shortage = findings["rows[0].shortage"]
        self.assertEqual((shortage["observed"], shortage["expected"]), ("3", 3))
        self.assertIs(type(shortage["expected"]), int)
        self.assertIsNone(findings["note"]["observed"])
        self.assertNotIn("expected", findings["note"])  # nothing is expected there, which is no value
        shown = self.read_object(checkpoint("validate", self.put("text.json", "no"), "--json"), 1)
        self.assertNotIn("expected", shown["findings"][0])

    def test_bug_is_one_object_beside_its_traceback(self):
        with mock.patch("builtins.open", side_effect=ZeroDivisionError):
            ended = checkpoint("validate", self.path("a.json"), "--json")
        self.check_refusal(ended, 70)
        self.assertIn("ZeroDivisionError", ended.err)

    def test_interrupt_is_one_object(self):
        with mock.patch("builtins.open", side_effect=KeyboardInterrupt):
            self.check_refusal(checkpoint("validate", self.path("a.json"), "--json"), 130)


class FullStream(io.StringIO):
    """A stream of a disk that is full."""

    def write(self, _):
        raise make_error(errno.ENOSPC)


class LostOutputTest(FolderTestCase):
    def run_full(self, *arguments):
        """Run a command with a full standard output; return (exit code, standard error)."""
        err = io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(FullStream()))
            stack.enter_context(contextlib.redirect_stderr(err))
            code = checkpoint_demo.main(list(arguments))
        return code, err.getvalue()

    def test_full_standard_output_is_said_on_standard_error(self):
        result = self.put("good.json", ANSWER)
        commands = {
            "validate": ("validate", result),
            "validate in JSON": ("validate", result, "--json"),
            "self-test": ("self-test",),
            "replay": ("replay", "--emit-fixture"),
        }
        for name, command in commands.items():
            with self.subTest(name):
                code, err = self.run_full(*command)
                self.assertEqual(code, 2, err)
                self.assertIn(LOST, err)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no full device here")
    def test_full_device_is_said_on_standard_error(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            ended = subprocess.run(
                [sys.executable, "-B", str(ROOT / "checkpoint_demo.py"), "replay"],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        self.assertEqual(ended.returncode, 2, ended.stderr)
        self.assertIn(LOST, ended.stderr)


class RequestFileTest(FolderTestCase):
    def setUp(self):
        super().setUp()
        checkpoint("prepare", "--out", self.path("work"))
        self.handoff = self.path("work/handoff.txt")

    def test_request_is_written_into_a_new_file(self):
        shown = checkpoint("request", self.handoff)
        written = checkpoint("request", self.handoff, "-o", self.path("request.json"))
        self.assertEqual(written.code, 0, written)
        self.assertEqual((self.folder / "request.json").read_bytes(), shown.out.encode())
        self.assertNotIn("messages", written.out)

    def test_request_overwrites_nothing(self):
        path = self.put("request.json", "precious")
        ended = checkpoint("request", self.handoff, "-o", path)
        self.assertEqual(ended.code, 3, ended)
        self.assertEqual((self.folder / "request.json").read_bytes(), b"precious")

    def test_request_into_a_folder_that_is_not_there_is_refused(self):
        ended = checkpoint("request", self.handoff, "-o", self.path("no/request.json"))
        self.assertEqual(ended.code, 2, ended)

    def test_request_to_standard_output_by_its_name(self):
        ended = checkpoint("request", self.handoff, "-o", "-")
        self.assertEqual((ended.code, json.loads(ended.out)["model"]), (0, checkpoint_demo.RECEIVER_MODEL))


class HintTest(FolderTestCase):
    def test_bug_says_where_it_is_reported(self):
        with mock.patch("builtins.open", side_effect=ZeroDivisionError):
            ended = checkpoint("validate", self.path("a.json"))
        self.assertEqual(ended.code, 70)
        self.assertRegex(ended.err, r"report it.*(README|https://)")
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        self.assertRegex(readme, r"(?i)bug")

    def test_answered_message_is_not_a_result_and_the_hint_is_the_command(self):
        ended = checkpoint("validate", self.put("response.json", json.dumps(ANSWERED)))
        self.assertEqual(ended.code, 1)
        self.assertIn("extract", ended.err)
