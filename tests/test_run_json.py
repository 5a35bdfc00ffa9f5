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

import run_handoff
from tests.conditions import (
    SENDER_REPLIES,
    ConditionsTestCase,
    copy_scripts,
    failing,
    find_closed_port,
    names_file,
    start_with,
)
from tests.support import GOOD_RUN, KEY, FullStream, handoff, make_error, message, respond, text

WORDS = ("verdict", "exit_code", "what", "why", "next")
IS_WINDOWS = os.name == "nt"


class RunJsonTest(ConditionsTestCase):
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


class LostOutputTest(ConditionsTestCase):
    def run_full(self, *arguments):
        """Run the runner with a full standard output; return (exit code, standard error)."""
        err = io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(FullStream()))
            stack.enter_context(contextlib.redirect_stderr(err))
            stack.enter_context(mock.patch.dict(os.environ, {"OFOX_API_KEY": KEY}))
            code = run_handoff.main(list(arguments))
        self.assertIn(
            f"run_handoff.py: standard output is lost: {os.strerror(errno.ENOSPC)}\n", err.getvalue()
        )
        return code

    def test_checks_whose_standard_output_is_full_exit_2_and_say_it(self):
        self.assertEqual(self.run_full(), 2)

    def test_run_whose_standard_output_is_full_keeps_its_end_and_says_it(self):
        for options in ((), ("--json",)):
            with self.subTest(options):
                live = ("--live", "--endpoint", self.serve(*GOOD_RUN).url, *options)
                self.assertEqual(self.run_full(*live, "--out", self.path(f"run{len(options)}")), 0)


def list_advice(ended):
    """Return what a person is told to do next."""
    return [line[8:] for line in ended.err.split("\n") if line.startswith("  next: ")]


class HintTest(ConditionsTestCase):
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
