"""The command line of checkpoint_demo.py: its help, and what it makes of words that do not fit."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import unittest

import checkpoint_demo
from tests import support

SCRIPT = "checkpoint_demo.py"
COMMANDS = (
    *("self-test", "session", "stream", "prepare", "verify", "request", "extract", "validate"),
    "replay",
)
REPLY = json.dumps(support.ANSWERED)
RESULT = json.dumps(json.loads(support.ANSWER), indent=2) + "\n"
ACCEPTED = "accepted: 3 rows, total shortage 7\n"
WRONG_ANSWER = support.ANSWER.replace(":0", ':"0"')
WRONG_FINDING = 'rows[1].shortage: observed the string "0", expected the integer 0'

# What each command's help names, beside what every help does.
HELP_NAMES = {
    "self-test": ("--task FILE", "--source FILE"),
    "session": (
        *("FILE", "--to API", "--model MODEL", "--from API", "--issuer MODEL", "--fresh", "--no-reasoning"),
        *("--unclear", "--leave-out", "--reply RESPONSE", "--json", "-o FILE", "default: show the built-in"),
    ),
    "stream": (
        *("STREAM", "--message", "--session FILE", "--by WAY", "--from API", "--issuer MODEL", "--json"),
        "print the request that goes on after a cut",
    ),
    "prepare": (
        *("--out DIR", "--task FILE", "--source FILE", "--session FILE", "--objective TEXT", "--from API"),
        "--issuer MODEL",
    ),
    "verify": (
        *("CHECKPOINT", "default: checkpoint.json", "--task FILE", "--source FILE", "--session FILE"),
        *("--objective TEXT", "--from API", "--issuer MODEL", "--json"),
    ),
    "request": (
        *("HANDOFF", "default: handoff.txt", "--receiver MODEL", "--max-tokens N", "-o FILE"),
        *("default: 4096", "default: anthropic/claude-opus-5.5"),
    ),
    "extract": ("RESPONSE", "-o FILE"),
    "validate": ("RESULT", "--task FILE", "--source FILE", "--json"),
    "replay": ("--emit-fixture", "--check-restored FILE", "--original FILE", "--json"),
}
EXIT_CODES = (
    *("0  done or accepted", "1  judged and rejected", "2  usage, or a file that cannot"),
    *("3    refused, nothing changed", "70   a bug in this program", "130  interrupted"),
)


class HelpTest(support.CommandTestCase):
    def show(self, *arguments):
        """Return the help that a command line asks for, in at most 80 columns."""
        ended = support.checkpoint(*arguments)
        self.assertEqual((ended.code, ended.err), (0, ""))
        self.assertLessEqual(max(map(len, ended.out.splitlines())), 80)
        self.assertEqual(self.names(), [])
        return ended.out

    def test_help_lists_each_command_with_what_it_does(self):
        shown = self.show("--help")
        self.assertEqual(self.show("-h"), shown)
        self.assertTrue(shown.startswith(f"usage: {SCRIPT} [-h] [--version] COMMAND ..."), shown)
        listed = [line.split()[0] for line in shown.splitlines() if line[:5].strip() and line[:4] == "    "]
        self.assertEqual(listed, list(COMMANDS))
        self.assertEqual(set(COMMANDS), set(HELP_NAMES))
        for words in (*EXIT_CODES, "An input - is standard input", "COMMAND --help", "--version"):
            self.assertIn(words, shown)

    def test_help_of_a_command_shows_its_own_usage_its_exit_codes_and_an_example(self):
        for command, names in HELP_NAMES.items():
            with self.subTest(command):
                shown = self.show(command, "--help")
                self.assertEqual(self.show(command, "-h"), shown)
                self.assertTrue(shown.startswith(f"usage: {SCRIPT} {command} [-h]"), shown)
                self.assertIn(f"\nexample:\n  python3 {SCRIPT} {command}", shown)
                for words in (*names, *EXIT_CODES):
                    self.assertIn(words, shown)
                others = {name for name in HELP_NAMES if name != command}
                self.assertEqual([name for name in others if f"{SCRIPT} {name}" in shown], [])

    def test_help_examples_are_lines_that_fit(self):
        for command in COMMANDS:
            with self.subTest(command):
                example = self.show(command, "-h").partition("example:\n  ")[2].splitlines()[0]
                python, script, *arguments = example.split()
                self.assertEqual((python, script, arguments[0]), ("python3", SCRIPT, command))
                checkpoint_demo.build_parser(SCRIPT, list(checkpoint_demo._COMMANDS)).parse(arguments, [])

    def test_help_is_the_same_in_a_wide_and_a_narrow_window(self):
        for command in ([], ["validate"]):
            with self.subTest(command):
                shown = [
                    support.run_in_process(
                        checkpoint_demo.main, *command, "--help", environment={"COLUMNS": columns}
                    ).out
                    for columns in ("30", "80", "300")
                ]
                self.assertEqual(shown[0], shown[1])
                self.assertEqual(shown[2], shown[1])

    def test_help_has_no_colour_even_where_it_is_forced(self):
        ended = support.run_script(SCRIPT, "-h", environment={"FORCE_COLOR": "1", "PYTHON_COLORS": "1"})
        self.assertEqual((ended.code, ended.err), (0, ""))
        self.assertNotIn("\x1b", ended.out)

    def test_version_is_the_programs_name_and_its_number(self):
        for arguments in (["--version"], ["--version", "prepare"]):
            with self.subTest(arguments):
                self.assert_ended(support.checkpoint(*arguments), 0, f"{SCRIPT} 1.1\n")
        self.assertEqual(checkpoint_demo.VERSION, "1.1")
        self.assertEqual(self.names(), [])


class UsageTest(support.CommandTestCase):
    def test_a_dash_that_is_no_input_is_a_name(self):
        stock = b"sku,available,target\nA,1,2\n"
        self.assertEqual(support.checkpoint("prepare", "--out", "-", "--source", "-", stdin=stock).code, 0)
        self.assertIn("-", self.names())
        self.assertEqual(support.checkpoint("request", "-", "--receiver", "-", stdin=b"x").code, 0)

    def test_extract_reads_standard_input_and_writes_standard_output(self):
        self.assert_ended(support.checkpoint("extract", "-", "-o", "-", stdin=REPLY.encode()), 0, RESULT)

    def test_help_is_shown_before_anything_is_read(self):
        for arguments in (["validate", "missing.json", "--help"], ["prepare", "--out", "no", "-h"]):
            with self.subTest(arguments):
                self.assertEqual(support.checkpoint(*arguments).code, 0)

    def test_a_line_that_does_not_fit_is_refused_and_does_nothing(self):
        self.put("result.json", support.ANSWER)
        before = self.names()
        lines = {
            "no command": ([], "COMMAND"),
            "an empty command": ([""], "COMMAND"),
            "an unknown command": (["judge"], "; there is no judge"),
            "a command in capitals": (["Prepare"], "there is no Prepare; the nearest is prepare"),
            "an abbreviated command": (["prep"], "there is no prep; the nearest is prepare"),
            "a misspelt command": (["validte", "x"], "there is no validte; the nearest is validate"),
            "a command without its hyphen": (["selftest"], "there is no selftest; the nearest is self-test"),
            "a dash in place of a command": (["-"], "COMMAND"),
            "an abbreviated --version": (["--vers"], "there is no --vers; the nearest is --version"),
            "the version of a command": (["prepare", "--version"], "--version has no place here"),
            "an option in front of the command": (["--task", "x", "validate", "result.json"], "COMMAND"),
            "an unknown option": (["prepare", "--force"], "there is no --force"),
            "a misspelt option": (
                ["prepare", "--sorce", "x"],
                "there is no --sorce; the nearest is --source",
            ),
            "a misspelt option with a value": (
                ["prepare", "--tsk=x"],
                "there is no --tsk; the nearest is --task",
            ),
            "a misspelt switch": (["validate", "x", "--jsn"], "there is no --jsn; the nearest is --json"),
            "the source's old name": (["validate", "x", "--stock", "y"], "there is no --stock"),
            "an abbreviated --source": (["validate", "x", "--sour", "y"], "--sour"),
            "an abbreviated --task": (["validate", "x", "--tas", "y"], "--tas"),
            "an abbreviated --check-restored": (["replay", "--check", "x"], "--check"),
            "an abbreviated --json": (["validate", "--js", "result.json"], "--js"),
            "an abbreviated --json of verify": (["verify", "--j"], "--j"),
            "an abbreviated --out": (["prepare", "--ou", "."], "--ou"),
            "an abbreviated --max-tokens": (["request", "--max=5"], "--max"),
            "an abbreviated --receiver": (["request", "--rec", "x"], "--rec"),
            "an abbreviated --help": (["validate", "result.json", "--he"], "--he"),
            "prepare with another's -o": (["prepare", "-o", "x"], "-o"),
            "prepare with a folder as an argument": (["prepare", "out"], "out is one word too many"),
            "verify with another's --out": (["verify", "--out", "x"], "--out has no place here"),
            "extract with another's --out": (["extract", "x", "--out", "y"], "--out"),
            "validate with another's --receiver": (
                ["validate", "x", "--receiver", "y"],
                "--receiver",
            ),
            "validate without a file": (["validate"], "RESULT"),
            "extract without a file": (["extract"], "RESPONSE"),
            "two files": (["validate", "result.json", "other.json"], "other.json is one word too many"),
            "an option without its value": (["prepare", "--out"], "--out"),
            "a value that is empty": (["prepare", "--out="], "--out"),
            "a value that is empty, apart": (["prepare", "--out", ""], "--out"),
            "an empty file name": (["validate", ""], "RESULT"),
            "an empty task": (["self-test", "--task", ""], "--task"),
            "an empty source": (["verify", "--source="], "--source"),
            "an empty output": (["extract", "x", "-o", ""], "-o"),
            "an empty receiver": (["request", "--receiver="], "--receiver"),
            "an empty record": (["replay", "--check-restored", ""], "--check-restored"),
            "an empty original": (["replay", "--check-restored", "x", "--original="], "--original"),
            "an option in place of a value": (["prepare", "--out", "--source", "x"], "--out"),
            "a double dash in place of a value": (["prepare", "--out", "--"], "--out"),
            "a second double dash": (["validate", "result.json", "--", "--"], "there is no --"),
            "a switch with a value": (["validate", "--json=1", "result.json"], "--json"),
            "standard input as result and source": (["validate", "-", "--source", "-"], "twice"),
            "standard input as result and source, written otherwise": (
                ["validate", "--source=-", "-"],
                "twice",
            ),
            "standard input as source and task": (["prepare", "--source=-", "--task=-"], "twice"),
            "standard input as checkpoint and task": (["verify", "--task", "-", "-"], "twice"),
            "standard input as both records": (
                ["replay", "--check-restored", "-", "--original", "-"],
                "twice",
            ),
        }
        for phrase, (arguments, named) in lines.items():
            with self.subTest(phrase):
                self.assert_usage(support.checkpoint(*arguments, stdin=support.ANSWER.encode()), named)
                self.assertEqual(self.names(), before)

    def test_a_line_that_does_not_fit_is_one_object_with_json(self):
        lines = {
            "an option in front of the command": (
                ["--json", "validate", "x"],
                "--json has no place here",
                " validate",
            ),
            "prepare with another's --json": (["prepare", "--json"], "--json has no place here", " prepare"),
            "request with another's --json": (["request", "--json"], "--json has no place here", " request"),
            "extract with another's --json": (
                ["extract", "x", "--json"],
                "--json has no place here",
                " extract",
            ),
            "no file": (["validate", "--json"], "RESULT", " validate"),
            "a misspelt option": (["verify", "--json", "--sorce=x"], "the nearest is --source", " verify"),
        }
        for phrase, (arguments, words, command) in lines.items():
            with self.subTest(phrase):
                ended = support.checkpoint(*arguments)
                self.assertEqual((ended.code, ended.err), (2, ""))
                said = json.loads(ended.out)
                self.assertEqual(sorted(said), ["exit_code", "next", "verdict", "what", "why"])
                self.assertEqual((said["verdict"], said["exit_code"]), ("usage", 2))
                self.assertIn(words, said["what"])
                self.assertEqual(said["next"], f"see {SCRIPT}{command} --help")

    def test_a_refused_line_names_the_help_that_lists_what_fits(self):
        lines = {
            "no such command": (["judge"], ""),
            "no such option": (["verify", "--jsn"], " verify"),
            "another's option": (["verify", "--out", "x"], " verify"),
            "a word too many": (["prepare", "out"], " prepare"),
            "a value that does not fit": (["request", "--max-tokens", "0"], " request"),
            "a value that is missing": (["replay", "--original"], " replay"),
            "an argument that is missing": (["validate"], " validate"),
        }
        for phrase, (arguments, command) in lines.items():
            with self.subTest(phrase):
                ended = support.checkpoint(*arguments)
                self.assertEqual(ended.err.splitlines()[-1], f"  next: see {SCRIPT}{command} --help")
                shown = support.checkpoint(*command.split(), "--help")
                self.assertEqual((shown.code, shown.err), (0, ""))

    def test_a_stray_word_is_cut_to_16_characters(self):
        word = "sk-0123456789abcdefghijklmnop"
        lines = {
            "in place of a command": [word],
            "in place of a command, behind an option": ["--task", word],
            "one too many": ["validate", "x", word],
            "one too many for a command that takes none": ["prepare", word],
            "as an option": ["prepare", f"--{word}"],
            "as a short option": ["prepare", f"-k{word}"],
            "as the value of a switch": ["validate", "x", f"--json={word}"],
            "with a quote": ["validate", "x", f"--json={word[:5]}'{word[5:]}"],
            "as a number": ["request", f"--max-tokens={word}"],
        }
        for phrase, arguments in lines.items():
            with self.subTest(phrase):
                ended = support.checkpoint(*arguments)
                self.assert_usage(ended, "")
                self.assertNotIn(word[16:], ended.err)
                self.assertNotIn(word[:17], ended.err)
        self.assert_usage(support.checkpoint(word), f"there is no {word[:16]}... (29 characters)")
        self.assert_usage(support.checkpoint("x" * 16), f"there is no {'x' * 16}")

    def test_the_last_of_several_values_counts_and_a_value_may_be_joined(self):
        for phrase, arguments in {
            "apart": ["--out", "one", "--out", "two"],
            "joined": ["--out=one", "--out=two"],
        }.items():
            with self.subTest(phrase):
                self.assertEqual(support.checkpoint("prepare", *arguments).code, 0)
                self.assertEqual(self.names(), ["two"])
                shutil.rmtree(self.path("two"))
        self.put("reply.json", REPLY)
        self.assertEqual(support.checkpoint("extract", "reply.json", "-oresult.json").code, 0)
        for name in ("reply.json", "result.json"):
            os.remove(name)
        self.assertEqual(support.checkpoint("prepare", "--out=a=b").code, 0)
        self.assertEqual(self.names(), ["a=b"])

    def test_a_double_dash_as_a_joined_value_is_a_name_or_refused_but_never_lost(self):
        """Older versions of argparse make an empty list of it, which would mean the default."""
        self.put("result.json", support.ANSWER)
        ended = support.checkpoint("prepare", "--out=--")
        self.assertEqual((ended.code, self.names()[0]) in ((0, "--"), (2, "result.json")), True, ended)
        for arguments in (
            ["validate", "result.json", "--source=--"],
            ["validate", "result.json", "--task=--"],
            ["replay", "--check-restored=--"],
            ["extract", "result.json", "-o--"],
        ):
            with self.subTest(arguments):
                ended = support.checkpoint(*arguments)
                self.assertIn(ended.code, (1, 2))
                self.assertEqual(ended.out, "")
                self.assertNotIn("Traceback", ended.err)

    def test_a_command_behind_a_double_dash_is_no_bug(self):
        for command in COMMANDS:
            with self.subTest(command):
                ended = support.checkpoint("--", command)
                self.assertNotIn("Traceback", ended.err)
                self.assertIn(ended.code, (0, 2))

    def test_a_file_that_is_named_like_the_help_is_judged_behind_a_double_dash(self):
        for name in ("-h", "--help"):
            self.put(name, WRONG_ANSWER)
            with self.subTest(name):
                ended = support.checkpoint("validate", "--", name)
                self.assert_ended(ended, 1, "rejected: 1 finding\n", f"{WRONG_FINDING}\n")

    def test_a_file_whose_name_begins_with_a_dash_is_read_behind_a_double_dash(self):
        self.put("--json", support.ANSWER)
        self.assert_ended(support.checkpoint("validate", "--", "--json"), 0, ACCEPTED)


class CalledNameTest(support.CommandTestCase):
    """A hint names the script as it was called, so that it can be typed; messages name it shortly."""

    @unittest.skipIf(os.name == "nt", "cmd.exe quotes in another way")
    def test_a_hint_names_the_script_as_it_was_called_and_can_be_typed(self):
        for folder in ("scripts", "my scripts", "quote'd", "100%(prog)s", "-dash"):
            os.mkdir(folder)
            shutil.copy(support.ROOT / SCRIPT, folder)
            called = os.path.join(os.curdir, folder, SCRIPT)
            for arguments in ([], ["frob"], ["validate"]):
                with self.subTest(folder, arguments=arguments):
                    refused = self.start(f"{shlex.quote(called)} {' '.join(arguments)}")
                    self.assertEqual((refused.code, refused.out), (2, ""))
                    self.assertTrue(refused.err.startswith(f"{SCRIPT}: usage: "), refused.err)
                    hint = refused.err.splitlines()[2].removeprefix("  next: see ")
                    shown = self.start(hint)
                    self.assertEqual((shown.code, shown.err), (0, ""))
                    usage = " ".join(shown.out.split())
                    self.assertTrue(usage.startswith(f"usage: {hint.removesuffix(' --help')} [-h]"), usage)

    def start(self, typed):
        """Let the shell run this interpreter with words as they are typed, and return how it Ended."""
        line = f"{shlex.quote(sys.executable)} -B {typed}"
        done = subprocess.run(line, shell=True, cwd=self.folder, capture_output=True, text=True, check=False)
        return support.Ended(done.returncode, done.stdout, done.stderr)

    def test_the_version_names_the_script_shortly(self):
        os.mkdir("my scripts")
        shutil.copy(support.ROOT / SCRIPT, "my scripts")
        ended = support.run_script(self.path(f"my scripts/{SCRIPT}"), "--version")
        self.assert_ended(ended, 0, f"{SCRIPT} {checkpoint_demo.VERSION}\n")
