"""In a pipeline: with --json every end is one object; hints can be typed as they are shown."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shlex
import subprocess
import sys
import unittest
from unittest import mock

import checkpoint_demo
import run_handoff
from tests.conditions import (
    RECEIVER,
    SENDER_REPLIES,
    HoldsTestCase,
    copy_scripts,
    failing,
    find_closed_port,
    make_error,
    names_file,
    start_with,
)
from tests.support import ANSWER, ANSWERED, GOOD_RUN, KEY, ROOT, checkpoint, handoff, message, respond, text

WORDS = ("verdict", "exit_code", "what", "why", "next")
IS_WINDOWS = os.name == "nt"


class JsonTestCase(HoldsTestCase):
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
        for word in WORDS[2:]:
            self.assertTrue(shown[word] and isinstance(shown[word], str), word)
        return shown


class CheckpointJsonTest(JsonTestCase):
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


class RunJsonTest(JsonTestCase):
    ENDS = {
        "accepted": (0, GOOD_RUN),
        "rejected": (1, (*SENDER_REPLIES, respond(message([text('{"rows":[]}')])))),
        "failed": (4, (respond({"error": {"message": "demo words"}}, 400),)),
        "unclear": (5, (respond(b"<html>", 502),)),
    }

    def test_live_run_and_its_inspection_are_one_object_each(self):
        for verdict, (code, script) in self.ENDS.items():
            with self.subTest(verdict):
                ended = self.live(self.serve(*script), "--json", out=verdict)
                self.assertEqual(self.read_object(ended, code)["verdict"], verdict)
                inspected = self.inspect(verdict, "--json")
                self.assertEqual(self.read_object(inspected, code)["verdict"], verdict)
                if code:
                    for shown in (json.loads(ended.out), json.loads(inspected.out)):
                        self.assertTrue(all(shown[word] for word in WORDS[2:]), shown)

    def test_live_run_says_which_files_and_requests_it_has(self):
        shown = self.read_object(self.live(self.serve(*GOOD_RUN), "--json"), 0)
        states = dict.fromkeys(("sender-tool-request", "sender-tool-result", "receiver-handoff"), "confirmed")
        self.assertEqual(shown["requests"], states)

    def test_rehearsal_is_one_object_which_says_that_it_is_one(self):
        ended = handoff("--rehearse", "--out", self.path("run"), "--json")
        self.assertIn("rehearsal", json.dumps(self.read_object(ended, 0)))

    def test_broken_evidence_is_one_object(self):
        self.live(self.serve(*GOOD_RUN))
        (self.folder / "run" / "result.json").write_bytes(b"{}\n")
        shown = self.read_object(self.inspect("run", "--json"), 1)
        self.assertEqual(shown["verdict"], "broken")
        self.assertTrue(all({"path", "message"} <= finding.keys() for finding in shown["findings"]))

    def test_refusals_and_usage_errors_are_one_object(self):
        (self.folder / "there").mkdir()
        self.put("there/letter.txt", "not a run's")
        out = ["--out", self.path("run")]
        url = f"http://127.0.0.1:{find_closed_port()}/"
        lines = {
            "a folder that is there": (["--live", "--endpoint", url, "--out", self.path("there")], 3),
            "a folder whose parent is not": (["--rehearse", "--out", self.path("no/run")], 3),
            "an endpoint that is none": (["--live", "--endpoint", "ftp://a", "--key-env", "A_KEY", *out], 3),
            "a key without its endpoint": (["--live", "--key-env", "OFOX_API_KEY", *out], 3),
            "a variable that is not set": (["--live", "--endpoint", url, "--key-env", "NO_SUCH", *out], 3),
            "a folder that is not a run's": (["--inspect", self.path("there")], 2),
            "a folder that is not there": (["--inspect", self.path("no")], 2),
            "no folder named": (["--inspect"], 2),
            "two modes": (["--live", "--rehearse"], 2),
            "no mode, which shows no object": ([], 2),
            "a limit that is none": (["--live", "--max-tokens", "many", *out], 2),
            "an option of another mode": (["--rehearse", "--endpoint", url, *out], 2),
            "a stray word": (["frob", "--rehearse", *out], 2),
            "a source that is not there": (["--rehearse", "--source", self.path("no.csv"), *out], 2),
        }
        for name, (arguments, code) in lines.items():
            with self.subTest(name):
                self.check_refusal(handoff(*arguments, "--json"), code)
        self.assertEqual(self.names(), ["there"])

    def test_key_and_password_are_in_no_object(self):
        with mock.patch.dict(os.environ, {"http_proxy": "http://demo-user:PROXYPASS-51@proxy.example:1"}):
            for word in (KEY, "PROXYPASS-51"):
                ended = handoff("--inspect", self.path(word), "--json")
                self.assertNotIn(word, ended.out + ended.err)

    def test_accepted_run_without_its_last_files_says_so_in_the_object(self):
        with failing("open", errno.ENOSPC, names_file("SHA256SUMS")):
            ended = self.live(self.serve(*GOOD_RUN), "--json")
        shown = self.read_object(ended, 0)
        self.assertEqual(shown["verdict"], "accepted")
        self.assertIn("SHA256SUMS", json.dumps(shown))


class FullStream(io.StringIO):
    """A stream of a disk that is full."""

    def write(self, _):
        raise make_error(errno.ENOSPC)


class LostOutputTest(HoldsTestCase):
    def run_full(self, main, *arguments):
        """Run a script's main with a full standard output; return (exit code, standard error)."""
        err = io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(FullStream()))
            stack.enter_context(contextlib.redirect_stderr(err))
            stack.enter_context(mock.patch.dict(os.environ, {"OFOX_API_KEY": KEY}))
            code = main(list(arguments))
        return code, err.getvalue()

    def test_full_standard_output_is_said_on_standard_error(self):
        result = self.put("good.json", ANSWER)
        commands = {
            "validate": (checkpoint_demo.main, "validate", result),
            "validate in JSON": (checkpoint_demo.main, "validate", result, "--json"),
            "self-test": (checkpoint_demo.main, "self-test"),
            "replay": (checkpoint_demo.main, "replay", "--emit-fixture"),
            "no mode": (run_handoff.main,),
        }
        for name, command in commands.items():
            with self.subTest(name):
                code, err = self.run_full(*command)
                self.assertEqual(code, 2, err)
                self.assertIn("standard output", err)
                self.assertIn(os.strerror(errno.ENOSPC), err)

    def test_run_whose_standard_output_is_full_keeps_its_end_and_says_it(self):
        server = self.serve(*GOOD_RUN)
        options = ("--live", "--endpoint", server.url, "--out", self.path("run"))
        code, err = self.run_full(run_handoff.main, *options)
        self.assertEqual(code, 0, err)
        self.assertIn("standard output", err)

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
        self.assertIn("standard output", ended.stderr)


class RequestFileTest(HoldsTestCase):
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
        self.assertEqual((ended.code, json.loads(ended.out)["model"]), (0, RECEIVER))


def list_advice(ended):
    """Return what a person is told to do next."""
    return [line[8:] for line in ended.err.split("\n") if line.startswith("  next: ")]


class HintTest(HoldsTestCase):
    @unittest.skipIf(IS_WINDOWS, "cmd.exe quotes in another way")
    def test_hint_can_be_typed_as_it_is_shown(self):
        scripts = self.path("the scripts' own")
        copy_scripts(scripts)
        names = ("plain", "with space", "quote'd", "dollar$HOME", "back`tick", "semi;colon", "-dash")
        for name in names:
            with self.subTest(name):
                options = ["--rehearse", f"--out={name}"]
                ended = start_with(["-B"], "run_handoff.py", *options, folder=scripts, cwd=self.folder)
                self.assertEqual(ended.code, 0, ended)
                (hint,) = re.findall(r"python3 .*--inspect .*$", ended.err, re.MULTILINE)
                words = shlex.split(hint)
                self.assertEqual(os.path.join(scripts, "run_handoff.py"), os.path.join(self.folder, words[1]))
                typed = f"{shlex.quote(sys.executable)} -B {hint.removeprefix('python3 ')}"
                again = subprocess.run(typed, shell=True, cwd=self.folder, capture_output=True, check=False)
                self.assertEqual(again.returncode, 0, again.stderr)

    def test_refusal_names_the_script_as_it_was_called(self):
        scripts = self.path("scripts")
        copy_scripts(scripts)
        for script, arguments in (("checkpoint_demo.py", ["frob"]), ("run_handoff.py", ["frob"])):
            with self.subTest(script):
                ended = start_with(["-B"], script, *arguments, folder=scripts, cwd=self.folder)
                self.assertEqual(ended.code, 2, ended)
                (advice,) = list_advice(ended)
                self.assertIn(os.path.join("scripts", script), advice)

    def test_bug_says_where_it_is_reported(self):
        with mock.patch("builtins.open", side_effect=ZeroDivisionError):
            ended = checkpoint("validate", self.path("a.json"))
        self.assertEqual(ended.code, 70)
        self.assertRegex(ended.err, r"report it.*(README|https://)")
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        self.assertRegex(readme, r"(?i)bug")

    def test_advice_does_not_repeat_what_just_failed(self):
        faults = {
            "nothing can listen": ("bind", errno.EADDRNOTAVAIL),
            "listening is not allowed": ("bind", errno.EACCES),
            "nothing can connect": ("connect", errno.ENETUNREACH),
            "connecting is not allowed": ("connect", errno.EPERM),
        }
        for name, (call, code) in faults.items():
            for arguments in ([], ["--rehearse", "--out", self.path(name)]):
                with self.subTest(name, arguments=arguments):
                    with mock.patch(f"socket.socket.{call}", side_effect=make_error(code)):
                        ended = handoff(*arguments)
                    self.assertIn(ended.code, (3, 4), ended)
                    (advice,) = list_advice(ended)
                    self.assertNotIn("--rehearse", advice)
                    self.assertNotIn("look it up", advice)
                    self.assertRegex(advice, "127\\.0\\.0\\.1|loopback")

    def test_advice_to_a_failed_run_does_not_name_the_mode_that_failed_alone(self):
        ended = self.live(f"http://127.0.0.1:{find_closed_port()}/")
        (advice,) = list_advice(ended)
        self.assertNotIn("--rehearse", advice)

    def test_answered_message_is_not_a_result_and_the_hint_is_the_command(self):
        ended = checkpoint("validate", self.put("response.json", json.dumps(ANSWERED)))
        self.assertEqual(ended.code, 1)
        self.assertIn("extract", ended.err)
