"""The command line: every command's exit code, standard output and standard error."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import unittest
from pathlib import Path
from unittest import mock

import checkpoint_demo
from tests import support

SCRIPT = "checkpoint_demo.py"
IS_WINDOWS = os.name == "nt"
IS_ROOT = getattr(os, "geteuid", lambda: 1)() == 0
COMMANDS = ("self-test", "prepare", "verify", "request", "extract", "validate")
READERS = ("verify", "request", "extract", "validate")
JUDGES = ("verify", "extract", "validate")
RAW = r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
HOSTILE = "evil\x1b[2J\r\n\x07\x7f\x9b\u202e\u2028txt"
HOSTILE_SHOWN = "evil\\x1b[2J\\r\\n\\x07\\x7f\\x9b\\u202e\\u2028txt"

# The digest of the rows was worked out with sha256sum, the files were written by hand.
DIGEST = "b3d576f612f4d004f9316b157d848c6dcd22f7f3b37244ac8e60dab263a4db44"
CHECKPOINT = f"""\
{{
  "schema_version": 1,
  "task_id": "synthetic-stock-20261110",
  "objective": "Report shortage=max(target-available,0) for every SKU. Do not place orders.",
  "source_sha256": "{DIGEST}",
  "completed": [
    {{
      "operation_id": "read-stock-1",
      "operation": "read_stock",
      "status": "verified",
      "result": [
        {{
          "sku": "DEMO-001",
          "available": 7,
          "target": 10
        }},
        {{
          "sku": "DEMO-002",
          "available": 15,
          "target": 12
        }},
        {{
          "sku": "DEMO-003",
          "available": 0,
          "target": 4
        }}
      ],
      "result_sha256": "{DIGEST}"
    }}
  ],
  "pending": [
    "Produce all three SKU shortage rows",
    "Pass independent validator"
  ],
  "side_effects": []
}}
"""
HANDOFF = (
    "Resume this read-only task from verified application state.\n"
    "Do not claim access to prior reasoning.\n"
    "Do not call tools or place orders.\n"
    "Return only a JSON object with key rows, containing every SKU\n"
    "and integer shortage. No Markdown.\n"
    'Checkpoint: {"completed":[{"operation":"read_stock","operation_id":"read-stock-1","result":['
    '{"available":7,"sku":"DEMO-001","target":10},{"available":15,"sku":"DEMO-002","target":12},'
    '{"available":0,"sku":"DEMO-003","target":4}],"result_sha256":"' + DIGEST + '","status":"verified"}],'
    '"objective":"Report shortage=max(target-available,0) for every SKU. Do not place orders.",'
    '"pending":["Produce all three SKU shortage rows","Pass independent validator"],"schema_version":1,'
    '"side_effects":[],"source_sha256":"' + DIGEST + '","task_id":"synthetic-stock-20261110"}\n'
)
RESULT = """\
{
  "rows": [
    {
      "sku": "DEMO-001",
      "shortage": 3
    },
    {
      "sku": "DEMO-002",
      "shortage": 0
    },
    {
      "sku": "DEMO-003",
      "shortage": 4
    }
  ]
}
"""
WRONG_ANSWER = support.ANSWER.replace(":0", ':"0"')
WRONG_FINDING = 'rows[1].shortage: observed the string "0", expected the integer 0'
ACCEPTED = "accepted: 3 rows, total shortage 7\n"
REPLY = json.dumps(support.ANSWERED)

UNREADABLE = ("only an input that was read whole is used", "name a file that you can read")
UNREADABLE_HANDOFF = ("only an input that was read whole is used", "write it with prepare")
EXISTS = ("what exists is never overwritten", "move it away, or name another place")
UNWRITABLE = (
    "a file is written whole or not at all, and nothing was left behind",
    "make room, or name a place that you can write to",
)


class PrepareTest(support.CommandTestCase):
    def test_prepare_writes_both_files_to_the_current_folder(self):
        self.assert_ended(support.checkpoint("prepare"), 0, "wrote checkpoint.json\nwrote handoff.txt\n")
        self.assertEqual(self.names(), ["checkpoint.json", "handoff.txt"])
        self.assertEqual((self.folder / "checkpoint.json").read_bytes(), CHECKPOINT.encode())
        self.assertEqual((self.folder / "handoff.txt").read_bytes(), HANDOFF.encode())

    def test_prepare_with_a_folder_writes_there(self):
        (self.folder / "out").mkdir()
        for option in (["--out", "out"], [f"--out={self.path('out')}"]):
            with self.subTest(option):
                ended = support.checkpoint("prepare", *option)
                folder = option[-1].replace("--out=", "")
                files = [os.path.join(folder, name) for name in ("checkpoint.json", "handoff.txt")]
                self.assert_ended(ended, 0, "".join(f"wrote {file}\n" for file in files))
                for file, text in zip(files, (CHECKPOINT, HANDOFF)):
                    self.assertEqual(Path(file).read_bytes(), text.encode())
                    os.remove(file)
        self.assertEqual(self.names(), ["out"])

    def test_prepare_over_either_file_is_refused_and_writes_none(self):
        (self.folder / "out").mkdir()
        for name in ("checkpoint.json", "handoff.txt"):
            with self.subTest(name):
                path = self.put(os.path.join("out", name), b"mine")
                ended = support.checkpoint("prepare", "--out", self.path("out"))
                self.assert_refused(ended, 3, f"refused: {path} already exists", EXISTS)
                self.assertEqual(os.listdir(self.path("out")), [name])
                self.assertEqual(Path(path).read_bytes(), b"mine")
                os.remove(path)

    def test_prepare_twice_is_refused_and_changes_nothing(self):
        support.checkpoint("prepare")
        before = {name: os.stat(name) for name in self.names()}
        self.assertEqual(support.checkpoint("prepare").code, 3)
        self.assertEqual({name: os.stat(name) for name in self.names()}, before)

    def test_prepare_with_a_missing_folder_makes_it_but_not_its_parent(self):
        for name in ("new", "other/"):
            with self.subTest(name):
                self.assertEqual(support.checkpoint("prepare", "--out", name).code, 0)
                self.assertEqual(sorted(os.listdir(name)), ["checkpoint.json", "handoff.txt"])
        ended = support.checkpoint("prepare", "--out", "no/new")
        self.assert_refused(ended, 3, f"refused: no/new cannot be made: {os.strerror(errno.ENOENT)}")
        self.assertEqual(self.names(), ["new", "other"])

    def test_prepare_into_what_is_no_folder_is_refused(self):
        self.put("file", b"mine")
        folders = {"a file": "file"}
        if not IS_WINDOWS:
            for name, target in {"dangling": "nowhere", "loop": "loop"}.items():
                os.symlink(target, name)
                folders[f"a link: {name}"] = name
            os.mkfifo("fifo")
            folders["a named pipe"] = "fifo"
        before = self.names()
        for phrase, name in folders.items():
            with self.subTest(phrase):
                ended = support.checkpoint("prepare", "--out", name)
                self.assert_refused(ended, 3, f"refused: {name} cannot be made: {os.strerror(errno.EEXIST)}")
                self.assertEqual((self.names(), (self.folder / "file").read_bytes()), (before, b"mine"))

    @unittest.skipIf(IS_WINDOWS, "links need a right there")
    def test_prepare_into_a_link_to_a_folder_writes_into_that_folder(self):
        (self.folder / "real").mkdir()
        os.symlink("real", "linked")
        self.assertEqual(support.checkpoint("prepare", "--out", "linked/").code, 0)
        self.assertEqual(sorted(os.listdir("real")), ["checkpoint.json", "handoff.txt"])
        self.assertEqual(support.checkpoint("prepare", "--out", "linked").code, 3)

    def test_prepare_into_a_folder_of_an_impossible_name_is_refused(self):
        for name in ("a\0b", "a\ud800b", ""):
            with self.subTest(ascii(name)):
                ended = support.checkpoint("prepare", "--out", name)
                self.assertIn(ended.code, (2, 3))
                self.assertEqual((ended.out, len(ended.err.splitlines())), ("", 3))
                self.assertEqual(self.names(), [])

    def test_prepare_that_fails_takes_back_the_folder_that_it_made(self):
        self.fail_to_write("new", lambda: None)
        self.assertEqual(self.names(), [])

    def test_prepare_that_fails_leaves_a_folder_that_was_there(self):
        (self.folder / "old").mkdir()
        self.fail_to_write("old", lambda: None)
        self.assertEqual((self.names(), os.listdir("old")), (["old"], []))

    def test_prepare_that_fails_leaves_what_others_put_into_its_folder(self):
        self.fail_to_write("new", lambda: self.put("new/stranger", b"not mine"))
        self.assertEqual(os.listdir("new"), ["stranger"])

    def fail_to_write(self, folder, act):
        """Let prepare run full at its first file, after something else has happened."""

        def write(*_):
            act()
            raise support.make_error(errno.ENOSPC)

        with mock.patch("os.write", write):
            ended = support.checkpoint("prepare", "--out", folder)
        first = os.path.join(folder, "checkpoint.json")
        self.assert_refused(ended, 2, f"cannot write: {first}: {os.strerror(errno.ENOSPC)}", UNWRITABLE)

    def test_prepare_that_fails_at_the_second_file_leaves_none(self):
        real = os.write

        def write(descriptor, data):
            if bytes(data) == HANDOFF.encode():
                raise support.make_error(errno.ENOSPC)
            return real(descriptor, data)

        with mock.patch("os.write", write):
            ended = support.checkpoint("prepare", "--out", str(self.folder))
        what = f"cannot write: {self.path('handoff.txt')}: {os.strerror(errno.ENOSPC)}"
        self.assert_refused(ended, 2, what, UNWRITABLE)
        self.assertEqual(self.names(), [])


class VerifyTest(support.CommandTestCase):
    VERIFIED = "verified: 3 rows, source b3d576f612f4\n"

    def test_verify_of_the_checkpoint_is_done_from_wherever_it_is_read(self):
        self.put("checkpoint.json", CHECKPOINT)
        self.put("other.json", json.dumps(json.loads(CHECKPOINT), sort_keys=True))
        ways = {
            "the current folder": ([], b""),
            "a named file": (["other.json"], b""),
            "standard input": (["-"], CHECKPOINT.encode()),
            "standard input with a byte-order mark": (["-"], b"\xef\xbb\xbf" + CHECKPOINT.encode()),
        }
        for phrase, (arguments, stdin) in ways.items():
            with self.subTest(phrase):
                self.assert_ended(support.checkpoint("verify", *arguments, stdin=stdin), 0, self.VERIFIED)

    def test_verify_as_json_prints_one_object(self):
        what = {"verified": "verified: 3 rows, source b3d576f612f4", "rejected": "rejected: 1 finding"}
        finding = {
            "path": "completed[0].result[0].available",
            "message": "observed the integer 8, expected the integer 7"
            " (the result of the read is not what the trusted source holds)",
            "observed": 8,
            "expected": 7,
        }
        texts = {
            "verified": (CHECKPOINT, 0, []),
            "rejected": (CHECKPOINT.replace("7,", "8,", 1), 1, [finding]),
        }
        for verdict, (text, code, findings) in texts.items():
            for arguments in (["--json", "-"], ["-", "--json"]):
                with self.subTest(verdict):
                    ended = support.checkpoint("verify", *arguments, stdin=text.encode())
                    self.assertEqual((ended.code, ended.err), (code, ""))
                    self.assertEqual(
                        json.loads(ended.out),
                        {
                            "verdict": verdict,
                            "exit_code": code,
                            "what": what[verdict],
                            "findings": findings,
                            "notes": [],
                        },
                    )

    def test_verify_of_a_changed_checkpoint_is_rejected_with_every_finding(self):
        self.put("checkpoint.json", CHECKPOINT.replace("[]", '["order-1"]').replace("verified", "claimed"))
        findings = [
            'completed[0].status: observed the string "claimed", expected the string "verified"'
            " (a read that is not verified proves nothing)",
            'side_effects[0]: observed the string "order-1", expected nothing'
            " (a side effect that nobody allowed)",
        ]
        self.assert_rejected(support.checkpoint("verify"), "verify", findings, "")

    def test_verify_believes_no_digest_of_the_file_itself(self):
        rows = [{"sku": "DEMO-001", "available": 10, "target": 10}]
        forged = checkpoint_demo.build_checkpoint(checkpoint_demo.DEMO, rows)
        ended = support.checkpoint("verify", "-", stdin=json.dumps(forged).encode())
        self.assertEqual((ended.code, ended.out), (1, "rejected: 7 findings\n"))

    def test_verify_without_a_checkpoint_is_refused(self):
        what = f"unreadable: checkpoint.json: {os.strerror(errno.ENOENT)}"
        self.assert_refused(support.checkpoint("verify"), 2, what, UNREADABLE)


class RequestTest(support.CommandTestCase):
    BODY = {
        "model": "anthropic/claude-opus-5.5",
        "max_tokens": 4096,
        "output_config": {"effort": "low"},
        "messages": [{"role": "user", "content": "Go on.\u00e9 \x7f\r\n\n"}],
    }
    TEXT = "Go on.\u00e9 \x7f\r\n\n".encode()

    def test_request_prints_one_line_of_ascii_from_wherever_it_is_read(self):
        self.put("handoff.txt", self.TEXT)
        self.put("other.txt", self.TEXT)
        ways = {"the current folder": [], "a named file": ["other.txt"], "standard input": ["-"]}
        for phrase, arguments in ways.items():
            with self.subTest(phrase):
                ended = support.checkpoint("request", *arguments, stdin=self.TEXT)
                self.assertEqual((ended.code, ended.err), (0, ""))
                self.assertRegex(ended.out, "^[ -~]+\n$")
                self.assertEqual(json.loads(ended.out), self.BODY)

    def test_request_with_options_changes_only_what_they_name(self):
        options = {
            "another receiver": (["--receiver", "local/model"], {"model": "local/model"}),
            "another limit": (["--max-tokens", "1"], {"max_tokens": 1}),
            "both": (
                ["--max-tokens=999999999", "--receiver=x"],
                {"max_tokens": 999_999_999, "model": "x"},
            ),
        }
        for phrase, (arguments, changed) in options.items():
            with self.subTest(phrase):
                ended = support.checkpoint("request", "-", *arguments, stdin=self.TEXT)
                self.assertEqual(json.loads(ended.out), {**self.BODY, **changed})
                self.assertNotRegex(ended.out, RAW)

    def test_request_with_an_odd_number_of_tokens_is_refused(self):
        numbers = (
            "0",
            "-1",
            "+1",
            "1.5",
            "1e3",
            "0x10",
            "1_000",
            "007",
            "",
            " 5",
            "5 ",
            "\u0663",
            "1\u0663",
            "5\n",
            "1" * 10,
        )
        for number in numbers:
            with self.subTest(repr(number)):
                ended = support.checkpoint("request", "-", f"--max-tokens={number}", stdin=self.TEXT)
                self.assert_usage(ended, "--max-tokens")

    def test_request_of_what_is_no_handoff_is_refused(self):
        empty = "it holds no text, which the API would refuse"
        texts = {
            "an empty file": (b"", empty),
            "white space": (b" \n\t\r\n", empty),
            "Latin-1": (b"Go on.\xe9\n", "line 1 column 7: not UTF-8"),
            "UTF-16": ("Go on.".encode("utf-16"), "line 1 column 1: not UTF-8"),
            "a cut character": ("Go on.\u00e9".encode()[:-1], "line 1 column 7: not UTF-8"),
            "an encoded surrogate": (b"Go \xed\xa0\xbd on", "line 1 column 4: not UTF-8"),
        }
        for phrase, (data, reason) in texts.items():
            with self.subTest(phrase):
                ended = support.checkpoint("request", self.put("h.txt", data))
                what = f"unreadable: {self.path('h.txt')}: {reason}"
                self.assert_refused(ended, 2, what, UNREADABLE_HANDOFF)

    def test_request_of_an_over_long_handoff_is_refused_and_never_cut(self):
        path = self.put("h.txt", b"0123456789")
        for limit, code in {10: 0, 9: 2, 5: 2}.items():
            with self.subTest(limit=limit), mock.patch("checkpoint_demo.INPUT_LIMIT_BYTES", limit):
                ended = support.checkpoint("request", path)
                self.assertEqual((ended.code, bool(ended.out)), (code, code == 0))
                self.assertEqual(ended.err.startswith(f"{SCRIPT}: unreadable: {path}: "), code == 2)


class ExtractTest(support.CommandTestCase):
    def test_extract_prints_the_answer_as_indented_json(self):
        self.put("reply.json", REPLY)
        ways = {"a named file": ["reply.json"], "standard input": ["-"]}
        for phrase, arguments in ways.items():
            with self.subTest(phrase):
                self.assert_ended(support.checkpoint("extract", *arguments, stdin=REPLY.encode()), 0, RESULT)

    def test_extract_to_a_file_writes_the_same_and_says_so(self):
        self.put("reply.json", REPLY)
        for name in ("result.json", self.path("other.json")):
            with self.subTest(name):
                self.assert_ended(
                    support.checkpoint("extract", "reply.json", "-o", name), 0, f"wrote {name}\n"
                )
                self.assertEqual(Path(name).read_bytes(), RESULT.encode())
        self.assertEqual(self.names(), ["other.json", "reply.json", "result.json"])

    def test_extract_joins_text_blocks_and_leaves_thinking_out(self):
        half = len(support.ANSWER) // 2
        content = [support.text(support.ANSWER[:half]), support.THINKING, support.text(support.ANSWER[half:])]
        reply = json.dumps(support.message(content))
        self.assert_ended(support.checkpoint("extract", "-", stdin=reply.encode()), 0, RESULT)

    def test_extract_over_a_file_is_refused_and_changes_nothing(self):
        self.put("reply.json", REPLY)
        self.put("result.json", b"mine")
        ended = support.checkpoint("extract", "reply.json", "-o", "result.json")
        self.assert_refused(ended, 3, "refused: result.json already exists", EXISTS)
        self.assertEqual((self.folder / "result.json").read_bytes(), b"mine")
        self.assertEqual(self.names(), ["reply.json", "result.json"])

    def test_extract_to_a_missing_folder_is_refused(self):
        ended = support.checkpoint("extract", "-", "-o", "no/result.json", stdin=REPLY.encode())
        what = f"cannot write: no/result.json: {os.strerror(errno.ENOENT)}"
        self.assert_refused(ended, 2, what, UNWRITABLE)
        self.assertEqual(self.names(), [])

    def test_extract_of_no_finished_answer_is_rejected_and_writes_nothing(self):
        text = support.text
        replies = {
            "an answer that was cut": (
                support.message([text("{")], "max_tokens"),
                'stop_reason: observed the string "max_tokens", expected the string "end_turn"'
                " (the answer was cut off by the token limit)",
            ),
            "no stop reason": (
                support.message([text("{}")], None),
                'stop_reason: observed null, expected the string "end_turn"',
            ),
            "prose": (
                support.message([text("Done.")]),
                'the answer, line 1 column 1: not JSON: expecting value at "Done."',
            ),
            "Markdown": (
                support.message([text("```json\n{}\n```")]),
                r'the answer, line 1 column 1: not JSON: expecting value at "```json\n{}\n```"',
            ),
            "no text": (
                support.message([support.THINKING]),
                "the answer, line 1 column 1: not JSON: expecting value at the end",
            ),
            "an error of the API": (
                {"type": "error", "role": "assistant", "content": [], "error": {"type": "overloaded_error"}},
                "$: observed an error (overloaded_error: nothing), expected a message",
            ),
            "a list": ([], "$: observed the array [], expected a message"),
            "a half surrogate": (
                support.message([text('"\ud800"')]),
                "the answer, line 1 column 2: not UTF-8",
            ),
        }
        for phrase, (reply, finding) in replies.items():
            for to_file in ([], ["-o", "result.json"]):
                with self.subTest(f"{phrase} {to_file}"):
                    self.put("reply.json", json.dumps(reply))
                    ended = support.checkpoint("extract", "reply.json", *to_file)
                    self.assert_rejected(ended, "extract", [finding], "reply.json")
                    self.assertEqual(self.names(), ["reply.json"])

    def test_extract_of_a_deep_answer_is_bounded(self):
        depths = {"the deepest": (200, 0), "one deeper": (201, 1), "far deeper": (100_000, 1)}
        for phrase, (depth, code) in depths.items():
            with self.subTest(phrase):
                reply = json.dumps(support.message([support.text("[" * depth + "]" * depth)]))
                ended = support.checkpoint("extract", "-", stdin=reply.encode())
                self.assertEqual((ended.code, bool(ended.out)), (code, code == 0))
                self.assertNotIn("Traceback", ended.err)


class ValidateTest(support.CommandTestCase):
    def test_validate_of_the_right_result_is_accepted_from_wherever_it_is_read(self):
        self.put("result.json", support.ANSWER)
        rows = json.loads(support.ANSWER)["rows"]
        ways = {
            "a named file": (["result.json"], b""),
            "standard input": (["-"], support.ANSWER.encode()),
            "indented": (["-"], RESULT.encode()),
            "in another order": (["-"], json.dumps({"rows": rows[::-1]}).encode()),
        }
        for phrase, (arguments, stdin) in ways.items():
            with self.subTest(phrase):
                self.assert_ended(support.checkpoint("validate", *arguments, stdin=stdin), 0, ACCEPTED)

    def test_validate_of_a_wrong_result_is_rejected_with_every_finding(self):
        results = {
            "a string for an integer": (WRONG_ANSWER, [WRONG_FINDING]),
            "no zero row and a key too many": (
                '{"rows":[{"sku":"DEMO-001","shortage":3},{"sku":"DEMO-003","shortage":4.0}],"note":null}',
                [
                    "rows[1].shortage: observed the number 4.0, expected the integer 4",
                    'rows: observed no row for the string "DEMO-002",'
                    ' expected the object {"sku":"DEMO-002","shortage":0}',
                    "note: observed null, expected nothing",
                ],
            ),
            "null": ("null", ["$: observed null, expected an object with the key rows"]),
        }
        for phrase, (text, findings) in results.items():
            with self.subTest(phrase):
                ended = support.checkpoint("validate", "-", stdin=text.encode())
                self.assert_rejected(ended, "validate", findings, "-")

    def test_validate_as_json_prints_one_object(self):
        path, _, message = WRONG_FINDING.partition(": ")
        wrong = {"path": path, "message": message, "observed": "0", "expected": 0}
        no_json = {"path": "line 1 column 1", "message": 'not JSON: expecting value at "Done."'}
        texts = {
            "the right result": (support.ANSWER, 0, "accepted", []),
            "a wrong result": (WRONG_ANSWER, 1, "rejected", [wrong]),
            "no JSON": ("Done.", 1, "rejected", [no_json]),
        }
        for phrase, (text, code, verdict, findings) in texts.items():
            for arguments in (["--json", "-"], ["-", "--json"]):
                with self.subTest(phrase):
                    ended = support.checkpoint("validate", *arguments, stdin=text.encode())
                    self.assertEqual((ended.code, ended.err), (code, ""))
                    what = "rejected: 1 finding" if findings else ACCEPTED.rstrip()
                    expected = {"verdict": verdict, "exit_code": code, "what": what, "findings": findings}
                    expected["notes"] = []
                    self.assertEqual(json.loads(ended.out), expected)

    def test_validate_as_json_of_an_unreadable_file_prints_one_object_without_a_verdict_on_it(self):
        ended = support.checkpoint("validate", "--json", "missing.json")
        said = {"verdict": "unreadable", "exit_code": 2, "what": f"missing.json: {os.strerror(errno.ENOENT)}"}
        said.update(zip(("why", "next"), UNREADABLE))
        self.assertEqual((ended.code, json.loads(ended.out), ended.err), (2, said, ""))


class BadInputTest(support.CommandTestCase):
    """Each command that reads, with an input that is none."""

    def test_judges_of_what_is_no_json_reject_it_with_the_place(self):
        texts = {
            "an empty file": (b"", "line 1 column 1: not JSON: expecting value at the end"),
            "a truncated text": (b'{"rows":[', "line 1 column 10: not JSON: expecting value at the end"),
            "UTF-16": ("{}".encode("utf-16"), "line 1 column 1: not UTF-8"),
            "Latin-1": (b'{"\xe9":1}', "line 1 column 3: not UTF-8"),
            "two values": (b"{}\n{}", 'line 2 column 1: not JSON: extra data at "{}"'),
            "a repeated key": (b'{"a":1,"a":2}', '$: the object has the key the string "a" twice'),
            "NaN": (b'{"a":NaN}', "a: NaN is not a JSON number"),
            "a huge number": (b"[1e999]", "[0]: a number too large for a double"),
            "a huge integer": (b"[" + b"7" * 5_000 + b"]", "[0]: an integer of more than 4,300 digits"),
            "prose": (
                b"I have finished.",
                'line 1 column 1: not JSON: expecting value at "I have finished."',
            ),
        }
        for command in JUDGES:
            for phrase, (data, finding) in texts.items():
                with self.subTest(f"{command} of {phrase}"):
                    self.put("input", data)
                    ended = support.checkpoint(command, "input")
                    self.assert_rejected(ended, command, [finding], "input")
                    ended = support.checkpoint(command, "-", stdin=data)
                    self.assert_rejected(ended, command, [finding], "-")

    def test_judges_of_a_deeply_nested_text_reject_it(self):
        limits = {"verify": 200, "validate": 200, "extract": 100}
        for command, limit in limits.items():
            for depth in (limit + 1, 1_500, 200_000):
                with self.subTest(f"{command} of {depth} levels"):
                    ended = support.checkpoint(command, "-", stdin=b"[" * depth + b"]" * depth)
                    self.assertEqual(ended.code, 1)
                    first, *rest = ended.err.splitlines()
                    self.assertTrue(first.endswith(f": nested deeper than {limit} levels"), first)
                    self.assertEqual(len(rest), command == "extract")

    def test_judges_of_an_over_long_text_reject_it(self):
        self.put("input", b" " * 65)
        for command in JUDGES:
            with self.subTest(command), mock.patch("checkpoint_demo.INPUT_LIMIT_BYTES", 64):
                ended = support.checkpoint(command, "input")
                self.assert_rejected(ended, command, ["byte 64: longer than 64 bytes"], "input")

    def test_readers_of_what_cannot_be_read_refuse_it(self):
        (self.folder / "folder").mkdir()
        inputs = {
            "a missing file": ("missing", os.strerror(errno.ENOENT)),
            "a folder": ("folder", os.strerror(errno.EACCES if IS_WINDOWS else errno.EISDIR)),
        }
        for command in READERS:
            for phrase, (name, reason) in inputs.items():
                with self.subTest(f"{command} of {phrase}"):
                    ended = support.checkpoint(command, name)
                    self.assert_refused(ended, 2, f"unreadable: {name}: {reason}", UNREADABLE)

    def test_readers_of_an_impossible_name_refuse_it(self):
        for command in READERS:
            for name, shown in {"a\0b": "a\\x00b", "a\ud800b": "a\\ud800b"}.items():
                with self.subTest(f"{command} {shown}"):
                    ended = support.checkpoint(command, name)
                    self.assertEqual((ended.code, ended.out), (2, ""))
                    self.assertTrue(ended.err.startswith(f"{SCRIPT}: unreadable: {shown}: "), ended.err)

    def test_readers_without_permission_refuse_it(self):
        path = self.put("input", support.ANSWER)
        if IS_ROOT or IS_WINDOWS:  # for these every file is readable
            denied = mock.patch(
                "builtins.open", side_effect=PermissionError(errno.EACCES, "Permission denied")
            )
        else:
            os.chmod(path, 0)
            denied = contextlib.nullcontext()
        for command in READERS:
            with self.subTest(command):
                with denied:
                    ended = support.checkpoint(command, "input")
                self.assert_refused(ended, 2, "unreadable: input: Permission denied", UNREADABLE)


class HostileTextTest(support.CommandTestCase):
    """Nothing that a file says or is called reaches the terminal raw."""

    def assert_escaped(self, ended, shown=HOSTILE_SHOWN):
        self.assertNotRegex(ended.out + ended.err, RAW)
        self.assertIn(shown, ended.out + ended.err)
        self.assertNotIn("Traceback", ended.err)

    def test_names_of_inputs_are_shown_escaped_on_one_line(self):
        for command in READERS:
            with self.subTest(command):
                ended = support.checkpoint(command, HOSTILE)
                self.assert_escaped(ended)
                self.assertEqual((ended.code, len(ended.err.splitlines())), (2, 3))

    @unittest.skipIf(IS_WINDOWS, "no such names there")
    def test_names_of_files_are_shown_escaped_on_one_line(self):
        self.put("reply.json", REPLY)
        self.put("handoff.txt", b"")
        os.mkdir(HOSTILE)
        os.symlink("nowhere", f"{HOSTILE}-link")
        self.put(os.path.join(HOSTILE, "empty"), b"")
        commands = {
            "a rejected reply": (["extract", f"{HOSTILE}/empty"], 1, 2),
            "an empty handoff": (["request", f"{HOSTILE}/empty"], 2, 3),
            "an output that was written": (["extract", "reply.json", "-o", f"{HOSTILE}/result.json"], 0, 1),
            "an output that exists": (["extract", "reply.json", "-o", HOSTILE], 3, 3),
            "files that were written": (["prepare", "--out", HOSTILE], 0, 2),
            "files that exist": (["prepare", f"--out={HOSTILE}"], 3, 3),
            "no folder": (["prepare", "--out", f"{HOSTILE}-no/new"], 3, 3),
            "a link": (["prepare", "--out", f"{HOSTILE}-link"], 3, 3),
        }
        for phrase, (arguments, code, lines) in commands.items():
            with self.subTest(phrase):
                ended = support.checkpoint(*arguments)
                self.assert_escaped(ended)
                self.assertEqual((ended.code, len((ended.out + ended.err).splitlines())), (code, lines))

    def test_arguments_are_shown_escaped_on_one_line(self):
        lines = {
            "a command": [HOSTILE],
            "an option": ["validate", "x", f"--{HOSTILE}"],
        }
        for phrase, arguments in lines.items():
            with self.subTest(phrase):
                ended = support.checkpoint(*arguments)
                self.assertNotRegex(ended.err, RAW)
                self.assert_usage(ended, "evil")

    def test_a_refused_argument_is_not_shown_at_length(self):
        secret = "sk-invented-0123456789abcdef" * 1_000
        lines = {
            "a word": ["validate", "x", secret],
            "a word for a command that takes none": ["prepare", secret],
            "an option": ["prepare", f"-k{secret}"],
            "a value of no option": ["prepare", f"--api-key={secret}"],
            "a value of a switch": ["validate", "x", f"--json={secret}"],
            "a value with a quote": ["validate", "x", f"--json='{secret}"],
            "a value with both quotes": ["validate", "x", f"--json='\"{secret}"],
            "a value in place of a command": ["--api-key", secret],
            "a word in place of a command": [secret],
            "a value that does not fit": ["request", "--max-tokens", secret],
        }
        for phrase, arguments in lines.items():
            with self.subTest(phrase):
                ended = support.checkpoint(*arguments)
                self.assert_usage(ended, "")
                self.assertNotIn(secret[:17], ended.err)
                self.assertLess(len(ended.err), 300)

    def test_contents_are_shown_escaped_with_one_line_a_finding(self):
        row = {"sku": HOSTILE, "shortage": HOSTILE, HOSTILE: 1}
        reply = {**support.ANSWERED, "stop_reason": HOSTILE, "content": [{"type": f"{HOSTILE}tool_use"}]}
        contents = {
            "a result's values and keys": ("validate", {"rows": [row], HOSTILE: HOSTILE}, 7),
            "a checkpoint's values and keys": ("verify", {"task_id": HOSTILE, HOSTILE: [HOSTILE]}, 8),
            "a reply's stop reason and block": ("extract", reply, 2),
            "a reply's role": ("extract", {"type": HOSTILE, "role": HOSTILE, "content": HOSTILE}, 3),
        }
        for phrase, (command, value, count) in contents.items():
            with self.subTest(phrase):
                self.put("input", json.dumps(value, ensure_ascii=False))
                ended = support.checkpoint(command, "input")
                self.assert_escaped(ended, "evil\\u001b[2J\\r\\n\\u0007\\u007f\\u009b\\u202e\\u2028txt")
                findings = len(ended.err.splitlines()) - (command == "extract")
                self.assertEqual((ended.code, findings), (1, count))

    def test_repeated_keys_and_odd_numbers_are_shown_escaped(self):
        key = json.dumps(HOSTILE, ensure_ascii=False)
        self.put("input", f"{{{key}:{{{key}:1,{key}:2}}}}")
        for command in JUDGES:
            with self.subTest(command):
                ended = support.checkpoint(command, "input")
                self.assert_escaped(ended, "evil\\u001b[2J\\r\\n")
                self.assertEqual((ended.code, len(ended.err.splitlines())), (1, 1 + (command == "extract")))

    def test_results_are_printed_escaped(self):
        answer = json.dumps({HOSTILE: HOSTILE, "half": "\ud800"})
        reply = json.dumps(support.message([support.text(answer)]), ensure_ascii=False)
        commands = {
            "an answer": ("extract", reply, json.loads(answer)),
            "a handoff": ("request", HOSTILE, None),
        }
        for phrase, (command, text, value) in commands.items():
            with self.subTest(phrase):
                ended = support.checkpoint(command, "-", stdin=text.encode())
                self.assertEqual((ended.code, ended.err), (0, ""))
                self.assertRegex(ended.out, "\\A[\n -~]+\\Z")
                parsed = json.loads(ended.out)
                if value is None:
                    self.assertEqual(parsed["messages"][0]["content"], HOSTILE)
                else:
                    self.assertEqual(parsed, value)

    def test_findings_as_json_are_printed_in_ascii(self):
        for command in ("verify", "validate"):
            with self.subTest(command):
                text = json.dumps({HOSTILE: HOSTILE}, ensure_ascii=False)
                ended = support.checkpoint(command, "--json", "-", stdin=text.encode())
                self.assertEqual((ended.code, ended.err), (1, ""))
                self.assertRegex(ended.out, "\\A[\n -~]+\\Z")
                self.assertNotRegex(
                    "".join(str(finding) for finding in json.loads(ended.out)["findings"]), RAW
                )

    @unittest.skipIf(IS_WINDOWS, "no such names there")
    def test_names_that_are_no_text_are_shown_escaped(self):
        ended = support.run_script(SCRIPT, "validate", b"no\xff\x1b.json", cwd=self.folder)
        self.assertEqual((ended.code, ended.out), (2, ""))
        self.assertNotRegex(ended.err, RAW)
        self.assertRegex(ended.err, r"^checkpoint_demo\.py: unreadable: no\S*\\x1b\.json: ")


class HandPathTest(support.CommandTestCase):
    """The commands as a person uses them one after the other."""

    def test_prepare_request_extract_validate_lead_to_an_accepted_result(self):
        # 1. The application keeps its record and verifies it.
        self.assertEqual(support.checkpoint("prepare").code, 0)
        self.assertEqual(support.checkpoint("verify").code, 0)
        # 2. The request is made of it; the receiver's response is saved.
        request = json.loads(support.checkpoint("request").out)
        self.assertEqual(request["messages"], [{"role": "user", "content": HANDOFF}])
        self.assertEqual(sorted(request), ["max_tokens", "messages", "model", "output_config"])
        self.put("response.json", REPLY)
        # 3. The answer is taken out and judged.
        self.assert_ended(
            support.checkpoint("extract", "response.json", "-o", "result.json"), 0, "wrote result.json\n"
        )
        self.assert_ended(support.checkpoint("validate", "result.json"), 0, ACCEPTED)
        self.assertEqual(self.names(), ["checkpoint.json", "handoff.txt", "response.json", "result.json"])

    def test_the_transcript_in_the_docstring_is_what_happens(self):
        self.put("result.json", support.ANSWER)
        self.put("wrong.json", "{}")
        shown, said = [], []
        for line in checkpoint_demo.__doc__.split("\n"):
            if line.startswith("    "):
                shown.append(line[4:])
            if line.startswith(f"    $ python3 {SCRIPT} "):
                ended = support.checkpoint(*line.split()[3:])
                said += [line[4:], *ended.err.splitlines(), *ended.out.splitlines()]
        self.assertGreater(len(shown), 5)
        self.assertEqual(shown, said)

    def test_the_script_starts_as_a_process_in_another_folder(self):
        self.put("wrong.json", WRONG_ANSWER)
        ended = support.run_script(SCRIPT, "validate", "wrong.json", cwd=self.folder)
        self.assert_ended(ended, 1, "rejected: 1 finding\n", f"{WRONG_FINDING}\n")
        self.assertEqual(self.names(), ["wrong.json"])
