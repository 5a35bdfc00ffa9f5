"""Every command block of the README and of the scripts' docstrings is run, and shows what it says."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import checkpoint_demo
from tests.support import ANSWER, ANSWERED, GOOD_RUN, KEY, ROOT, FolderTestCase, RunTestCase, respond
from tests.vendors import CHAT, GEMINI, VendorTestCase

README = (ROOT / "README.md").read_text(encoding="utf-8")
(TICKETS,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
# The stream that the README shows: it was cut in its fourth event.
STREAM = """\
event: message_start
data: {"type":"message_start","message":{"type":"message","role":"assistant","model":"claude-opus-5-5",\
"content":[],"usage":{"input_tokens":812,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"The amount is "}}

event: content_bl"""

# Stands in for curl: checks what it was told to send, and saves the recorded reply.
CURL = """#!/bin/sh
for argument; do last="$argument"; done
grep -q '"model":"anthropic/claude-opus-5.5"' handoff-request.json || exit 1
case "$*" in
    *"x-api-key: {key}"*"anthropic-version: 2023-06-01"*"@handoff-request.json"*) ;;
    *) exit 1 ;;
esac
cp saved-response.json "$last"
"""
# Stands in for python3: this interpreter, but a live run goes to the test's own servers, and of the
# tests, this one among them, one file is run.
PYTHON = """#!/bin/sh
case "$*" in
    *moonshot*) exec {python} "$@" --receiver-endpoint {chat} ;;
    *googleapis*) exec {python} "$@" --receiver-endpoint {gemini} ;;
    *--live*) exec {python} "$@" --endpoint {endpoint} ;;
    "-m unittest") exec {python} -m unittest tests.test_money ;;
    *) exec {python} "$@" ;;
esac
"""


def list_blocks(language):
    """Return the README's fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def split_commands(block):
    """Return [(command, expected output)] of a console block; `> ` goes on with a command."""
    commands = []
    for line in block.splitlines():
        if line.startswith("$ "):
            commands.append([line[2:], ""])
        elif line.startswith("> "):
            commands[-1][0] += f"\n{line[2:]}"
        else:
            commands[-1][1] += f"{line}\n"
    return commands


class ConsoleTest(VendorTestCase):
    def setUp(self):
        super().setUp()
        for name in ("checkpoint_demo.py", "run_handoff.py"):
            shutil.copy(ROOT / name, self.folder)
        os.symlink(ROOT / "tests", self.folder / "tests")
        os.mkdir(self.folder / "bin")
        self.chat = self.serve(respond(CHAT.answer("The amount is 47.50 EUR.")))
        self.gemini = self.serve(respond(GEMINI.answer(ANSWER)))
        urls = {"endpoint": self.serve(*GOOD_RUN).url, "chat": self.url(CHAT, self.chat)}
        urls["gemini"] = self.url(GEMINI, self.gemini)
        self.put_program("python3", PYTHON.format(python=sys.executable, **urls))
        self.put_program("curl", CURL.format(key=KEY))
        self.put("saved-response.json", json.dumps(ANSWERED))
        self.put("tickets.py", TICKETS)
        self.put("reply.sse", STREAM)
        self.environment = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "OFOX_API_KEY": KEY,
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def put_program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def run_block(self, block):
        for command, expected in split_commands(block):
            if command.startswith("export OFOX_API_KEY="):
                continue  # the test has a key of its own
            told = subprocess.run(
                ["sh", "-c", command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
            self.compare(command, expected, told.stdout.decode(), told.stderr.decode())

    def compare(self, command, expected, out, err):
        """Compare shown with real output; `...` stands for any lines, seconds and times may differ."""
        pattern = re.escape(re.sub(r"\b\d+\.\d\b", "0.0", expected)).replace(
            re.escape("...\n"), r"(?:.*\n)*?"
        )
        observed = re.sub(r"\b\d+\.\d\b", "0.0", out)
        if re.fullmatch(pattern, observed) or re.fullmatch(
            pattern, re.sub(r"\b\d+\.\d\b", "0.0", err) + observed
        ):
            return
        self.assertRegex(err, rf"\A(?:.*\n)*{pattern}\Z", f"{command}\n--- stdout\n{out}--- stderr\n{err}")

    def test_every_console_block_shows_what_it_says(self):
        blocks = list_blocks("console")
        self.assertGreater(len(blocks), 4)
        for block in blocks:
            with self.subTest(block.splitlines()[0]):
                self.run_block(block)

    def test_every_shell_block_works(self):
        (block,) = list_blocks("sh")
        self.put("session.json", checkpoint_demo.SESSION_TEXT)
        environment = {**self.environment, "MOONSHOT_API_KEY": KEY, "GEMINI_API_KEY": KEY}
        told = subprocess.run(
            ["sh", "-ec", block], cwd=self.folder, env=environment, capture_output=True, check=False
        )
        self.assertEqual(told.returncode, 0, told.stderr.decode())
        self.assertEqual((self.chat.connections, self.gemini.connections), (1, 1))

    def test_other_output_would_be_noticed(self):
        with self.assertRaises(AssertionError):
            self.run_block("$ python3 checkpoint_demo.py validate saved-response.json\naccepted: 3 rows\n")

    def test_first_block_is_on_the_first_screen(self):
        first = README.splitlines()[:30]
        self.assertIn("$ python3 run_handoff.py", first)
        self.assertIn("$ python3 -m unittest", first)


class PythonBlockTest(FolderTestCase):
    def test_every_python_block_does_what_its_comments_say(self):
        blocks = list_blocks("python")
        self.assertTrue(blocks)
        for block in blocks:
            with self.subTest(block.splitlines()[0]):
                told = subprocess.run(
                    [sys.executable, "-c", block], cwd=ROOT, capture_output=True, text=True, check=False
                )
                self.assertEqual(told.returncode, 0, told.stderr)
                expected = re.findall(r"print\(.*\)  # (.*)", block)
                self.assertEqual(told.stdout.splitlines(), expected)

    def test_tickets_task_finds_every_kind_of_fault(self):
        names = {}
        exec(TICKETS, names)
        task = names["TASK"]
        self.assertLessEqual(len(TICKETS.splitlines()), 40)
        one = {"id": "T-1", "summary": "Down.", "route": "on-call"}
        two = {"id": "T-2", "summary": "Slow.", "route": "queue"}
        counts = {"on-call": 1, "queue": 1}
        right = {"tickets": [one, two], "counts": counts}
        cases = {
            "right": (right, []),
            "right, in another order": ({"counts": counts, "tickets": [two, one]}, []),
            "not an object": ([], ["$"]),
            "a key more": ({**right, "more": 1}, ["more"]),
            "no counts": ({"tickets": [one, two]}, ["counts"]),
            "a wrong count": ({**right, "counts": {**counts, "queue": 2}}, ["counts.queue"]),
            "no ticket": ({**right, "tickets": []}, ["tickets", "tickets"]),
            "a ticket that is not an object": ({**right, "tickets": [one, two, "T-1"]}, ["tickets[2]"]),
            "a ticket twice": ({**right, "tickets": [one, two, one]}, ["tickets[2].id"]),
            "no summary": (
                {**right, "tickets": [one, {"id": "T-2", "route": "queue"}]},
                ["tickets[1].summary"],
            ),
            "blanks": ({**right, "tickets": [one, {**two, "summary": " "}]}, ["tickets[1].summary"]),
            "another route": ({**right, "tickets": [one, {**two, "route": "bin"}]}, ["tickets[1].route"]),
        }
        for phrase, (answer, expected) in cases.items():
            with self.subTest(phrase):
                findings = task.find_faults(answer, task.source)
                self.assertEqual([finding.path for finding in findings], expected)


class DocstringTest(RunTestCase):
    """The transcripts at the top of the scripts."""

    def read_transcript(self, script):
        docstring = ast.get_docstring(ast.parse((ROOT / script).read_text(encoding="utf-8")))
        return "\n".join(re.findall(r"^    (.*)$", docstring, re.MULTILINE)) + "\n"

    def run_transcript(self, script, *options, **environment):
        for command, expected in split_commands(self.read_transcript(script)):
            arguments = command.split()
            self.assertEqual(arguments[:2], ["python3", script])
            told = subprocess.run(
                [sys.executable, str(ROOT / script), *arguments[2:], *options],
                cwd=self.folder,
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=False,
            )
            for shown in expected.split("...\n"):
                self.assertIn(shown.rstrip("\n"), told.stderr + told.stdout)

    def test_checkpoint_demo_does_what_its_docstring_shows(self):
        self.put("result.json", ANSWER)
        self.put("wrong.json", "{}")
        self.run_transcript("checkpoint_demo.py")

    def test_run_handoff_does_what_its_docstring_shows(self):
        server = self.serve(*GOOD_RUN)
        self.run_transcript("run_handoff.py", "--endpoint", server.url, OFOX_API_KEY=KEY)
        self.assertEqual(server.connections, 3)


class LinkTest(unittest.TestCase):
    def test_every_file_that_is_named_exists(self):
        named = re.findall(r"`((?:tests/|\.ci/)?[a-z_]+(?:\.py|/run)|LICENSE)`", README)
        self.assertTrue(named)
        for name in set(named) - {"tickets.py"}:  # which the reader saves
            with self.subTest(name):
                self.assertTrue(
                    (ROOT / name).exists() or (ROOT / "tests" / name).exists() or Path(name).name == "run"
                )
