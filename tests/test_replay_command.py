"""The command `replay`: the built-in cases, one's own records, and what real storage does to a session."""

from __future__ import annotations

import json
import sqlite3
from unittest import mock

import checkpoint_demo
from checkpoint_demo import shorten
from tests.support import CASES, FolderTestCase, checkpoint

FIXTURE = json.loads(checkpoint_demo.SESSION_TEXT)
COMPARED = "compared with the built-in session record, because no --original is named"
THREE_PARTS = r"^checkpoint_demo\.py: [a-z]+: .+\n  why: .+\n  next: .+\n$"


class BuiltInTest(FolderTestCase):
    def test_six_cases_have_the_expected_outcomes(self):
        ended = checkpoint("replay")
        self.assertEqual((ended.code, ended.err), (0, ""))
        labels = [line[45:] for line in ended.out.splitlines()[:-1]]
        expected = ["intact", "changed prefix: system", "changed prefix: tools", "changed prefix: messages"]
        self.assertEqual(labels, [*expected, "changed assistant turn", "unmatched tool result"])
        self.assertTrue(ended.out.endswith("\n6/6 expected outcomes\n"))

    def test_checker_that_lets_everything_pass_fails(self):
        with mock.patch.object(checkpoint_demo, "compare_sessions", lambda restored, original: ({}, [])):
            ended = checkpoint("replay")
        self.assertEqual(ended.code, 1)
        self.assertTrue(ended.out.endswith("\n1/6 expected outcomes\n"))
        self.assertEqual(ended.out.count("NOT expected"), 5)

    def test_json_lists_the_cases(self):
        report = json.loads(checkpoint("replay", "--json").out)
        said = (report["verdict"], report["exit_code"], report["what"], len(report["cases"]))
        self.assertEqual(said, ("done", 0, "6/6 expected outcomes", 6))
        first = {"change": "nothing (no visible text, all the same)", "labels": "intact", "expected": True}
        self.assertEqual(report["cases"][0], first)

    def test_checker_that_lets_nothing_pass_fails(self):
        with mock.patch.object(
            checkpoint_demo, "compare_sessions", lambda *_: ({"changed prefix: system": []}, [])
        ):
            ended = checkpoint("replay")
        self.assertEqual(ended.code, 1)
        self.assertTrue(ended.out.endswith("\n1/6 expected outcomes\n"))

    def test_every_case_but_the_first_changes_the_session(self):
        changes = checkpoint_demo._split_table(checkpoint_demo._SESSION_CHANGES)
        self.assertEqual(len(changes), 6)
        for change, old, new, label in changes:
            with self.subTest(change):
                changed = json.loads(checkpoint_demo.SESSION_TEXT.replace(old, new, 1))
                self.assertEqual(changed == FIXTURE, label == "intact")

    def test_fixture_is_the_session_of_the_specification(self):
        ended = checkpoint("replay", "--emit-fixture")
        self.assertEqual((ended.code, ended.err), (0, ""))
        record = json.loads(ended.out)
        self.assertEqual(record, FIXTURE)
        turn, results = record["messages"][1:]
        self.assertEqual([block["type"] for block in turn["content"]], ["thinking", "tool_use"])
        self.assertEqual(turn["content"][0]["thinking"], "")
        self.assertEqual(results["content"][0]["tool_use_id"], "toolu_demo_17")
        facts = {"invoice": "DEMO-17", "amount": "47.50", "currency": "EUR"}
        self.assertEqual(json.loads(results["content"][0]["content"]), facts)


class CheckRestoredTest(FolderTestCase):
    def check(self, record, *options):
        return checkpoint(
            "replay", "--check-restored", self.put("restored.json", json.dumps(record)), *options
        )

    def test_fixture_that_came_back_is_intact(self):
        ended = self.check(FIXTURE)
        self.assertEqual((ended.code, ended.out), (0, "intact\n"))
        first, advice = ended.err.splitlines()
        self.assertEqual(first, COMPARED)
        self.assertTrue(advice.startswith("the next request: it may be sent as it is"))

    def test_every_label_is_a_line_and_every_difference_has_its_place_and_values(self):
        record = json.loads(checkpoint_demo.SESSION_TEXT.replace("nothing", "all").replace("47.50", "48.50"))
        ended = self.check({**record, "receipt": 1, "max_tokens": 9})
        self.assertEqual(ended.code, 1)
        self.assertEqual(ended.out, "changed prefix: system\nchanged tool result\nchanged field: receipt\n")
        first, system, result, field, note, advice = ended.err.splitlines()
        self.assertEqual(first, COMPARED)
        self.assertIn("changed prefix: system, system: observed the string", system)
        self.assertIn("changed tool result, messages[2].content[0].content: observed", result)
        self.assertEqual(field, "changed field: receipt, receipt: observed the integer 1, expected nothing")
        self.assertIn("note, not compared by the API: max_tokens: observed the integer 9", note)
        self.assertIn(
            "rebuild it from what was stored, or go on in a fresh session from a checkpoint", advice
        )

    def test_advice_fits_the_first_label(self):
        changes = {
            '"nothing': ("thinking blocks no longer fit", '"all'),
            "c2ln": ("thinking blocks no longer fit", "d2ln"),
            '_use_id":"toolu': ("calls and results do not pair", '_use_id":"other'),
            "47.50": ("other facts", "47.5"),
        }
        for old, (words, new) in changes.items():
            with self.subTest(old):
                text = (
                    checkpoint_demo.SESSION_TEXT.replace(old, new)
                    if old in checkpoint_demo.SESSION_TEXT
                    else None
                )
                if text is None:
                    text = checkpoint_demo.SESSION_TEXT.replace("change nothing", "change all")
                ended = self.check(json.loads(text))
                self.assertEqual(ended.code, 1)
                self.assertIn(words, ended.err.splitlines()[-1])

    def test_changed_model_is_intact_with_a_note_of_who_reads_what(self):
        original = self.put("original.json", json.dumps({**FIXTURE, "model": "claude-fable-5-2"}))
        ended = self.check({**FIXTURE, "model": "claude-opus-5-5"}, "--original", original)
        self.assertEqual((ended.code, ended.out), (0, "intact\n"))
        note, readers, advice = ended.err.splitlines()
        self.assertIn("model: observed the string", note)
        self.assertIn("Opus 5.5 reads no Fable's", readers)
        self.assertIn("another model is asked", advice)

    def test_changed_model_beside_another_change_has_its_note_too(self):
        original = self.put("original.json", json.dumps({**FIXTURE, "model": "claude-fable-5-2"}))
        record = {**FIXTURE, "model": "claude-opus-5-5", "receipt": 2}
        ended = self.check(record, "--original", original)
        self.assertEqual((ended.code, ended.out), (1, "changed field: receipt\n"))
        self.assertIn("Opus 5.5 reads no Fable's", ended.err.splitlines()[2])
        report = json.loads(self.check(record, "--original", original, "--json").out)
        self.assertIn("model: observed the string", report["notes"][0])
        self.assertIn("Opus 5.5 reads no Fable's", report["notes"][1])

    def test_json_lists_every_finding(self):
        many = {**FIXTURE, "system": [{"type": "text", "text": str(number)} for number in range(50)]}
        original = self.put(
            "original.json", json.dumps({**many, "system": [{"type": "text"}] * 50, "effort": "low"})
        )
        ended = self.check(many, "--original", original, "--json")
        self.assertEqual((ended.code, ended.err), (1, ""))
        report = json.loads(ended.out)
        self.assertEqual(report["labels"], ["changed prefix: system"])
        self.assertEqual(len(report["findings"]), 50)
        self.assertEqual((report["verdict"], report["exit_code"]), ("changed", 1))
        first = report["findings"][0]
        self.assertEqual(set(first), {"label", "path", "message", "observed"})  # nothing was expected
        self.assertEqual((first["label"], first["observed"]), ("changed prefix: system", "0"))
        note, advice = report["notes"]
        self.assertTrue(note.startswith("note, not compared by the API: effort: observed nothing"), note)
        self.assertEqual(advice, f"the next request: {report['next_request']}")
        told = self.check(many, "--original", original).err.splitlines()
        self.assertEqual(len([line for line in told if line.startswith("changed prefix: system, ")]), 50)

    def test_both_records_may_be_ones_own(self):
        for name, label in self.read_cases().items():
            with self.subTest(name):
                paths = [str(CASES / "replay" / f"{name}.{part}.json") for part in ("restored", "original")]
                ended = checkpoint("replay", "--check-restored", paths[0], "--original", paths[1])
                self.assertEqual(ended.out.splitlines()[0], label)
                self.assertEqual(ended.code, 0 if label == "intact" else 1)

    def read_cases(self):
        lines = (CASES / "replay" / "expected.jsonl").read_text(encoding="utf-8").splitlines()
        self.assertGreater(len(lines), 30)
        return {case["name"]: case["label"] for case in map(json.loads, lines)}

    def test_standard_input_is_read(self):
        ended = checkpoint("replay", "--check-restored", "-", stdin=checkpoint_demo.SESSION_TEXT.encode())
        self.assertEqual((ended.code, ended.out), (0, "intact\n"))

    def test_what_is_no_record_is_unreadable(self):
        texts = {
            "nothing": b"",
            "no JSON": b"{",
            "a repeated key": b'{"messages":[],"messages":[]}',
            "too deep": b'{"messages":' + b"[" * 201 + b"]" * 201 + b"}",
            "a list": b"[]",
        }
        good = self.put("good.json", checkpoint_demo.SESSION_TEXT)
        for name, data in texts.items():
            with self.subTest(name):
                bad = self.put("bad.json", data)
                for arguments in (["--check-restored", bad], ["--check-restored", good, "--original", bad]):
                    ended = checkpoint("replay", *arguments)
                    self.assertEqual((ended.code, ended.out), (2, ""))
                    self.assertRegex(ended.err, THREE_PARTS)
        ended = checkpoint("replay", "--check-restored", self.path("missing.json"))
        self.assertEqual(ended.code, 2)
        self.assertIn("missing.json", ended.err.splitlines()[0])

    def test_record_that_lost_its_list_of_messages_is_changed_and_is_no_original(self):
        good = self.put("good.json", checkpoint_demo.SESSION_TEXT)
        told = {
            "nothing": {name: FIXTURE[name] for name in ("system", "tools")},
            "null": {**FIXTURE, "messages": None},
            'the object {"0":1}': {**FIXTURE, "messages": {"0": 1}},
            'the string "[{': {**FIXTURE, "messages": json.dumps(FIXTURE["messages"])},
        }
        for observed, record in told.items():
            with self.subTest(observed):
                ended = self.check(record)
                self.assertEqual((ended.code, ended.out.splitlines()[0]), (1, "changed prefix: messages"))
                shown = shorten(ended.err.splitlines()[1].replace("\\", ""), 1_000)
                self.assertIn(f"messages: observed {observed}", shown)
                self.assertIn("expected a list of messages", shown)
                ended = checkpoint(
                    "replay", "--check-restored", good, "--original", self.path("restored.json")
                )
                self.assertEqual((ended.code, ended.out), (2, ""))
                self.assertRegex(ended.err, THREE_PARTS)

    def test_options_that_do_not_go_together_are_refused(self):
        good = self.put("good.json", checkpoint_demo.SESSION_TEXT)
        for arguments in (
            ["--original", good],
            ["--emit-fixture", "--json"],
            ["--emit-fixture", "--check-restored", good],
            ["more"],
        ):
            with self.subTest(arguments):
                ended = checkpoint("replay", *arguments)
                if "--json" in arguments:
                    self.assertEqual((ended.code, ended.err), (2, ""))
                    self.assertEqual(json.loads(ended.out)["verdict"], "usage")
                    continue
                self.assertEqual((ended.code, ended.out), (2, ""))
                self.assertRegex(ended.err, THREE_PARTS)
                self.assertRegex(ended.err, r"next: see checkpoint_demo\.py( replay)? --help\n\Z")

    def test_hostile_record_is_shown_escaped(self):
        record = {**FIXTURE, "system": "\x1b[2J\u202e\ud83d", "\x1b]0;x\x07\n": "\x00"}
        ended = self.check(record)
        self.assertEqual(ended.code, 1)
        shown = ended.out + ended.err
        self.assertTrue(shown.replace("\n", "").isprintable(), repr(shown))
        self.assertEqual(ended.out.splitlines()[1], r"changed field: \x1b]0;x\x07\n")


class StorageTest(FolderTestCase):
    """The fixture through real stores: intact on the careful path, the right label on each careless one."""

    def store_text(self, text):
        """Send text through an SQLite column and back."""
        database = sqlite3.connect(self.path("sessions.db"))
        self.addCleanup(database.close)
        with database:
            database.execute("create table if not exists session (id integer primary key, record text)")
            database.execute("insert into session (record) values (?)", (text,))
        return database.execute("select record from session order by id desc").fetchone()[0]

    def store_blocks(self, order):
        """Send the session through one row a block, read back in an order, and return the record."""
        database = sqlite3.connect(self.path("blocks.db"))
        self.addCleanup(database.close)
        with database:
            database.execute("create table block (message integer, place integer, kind text, block text)")
            for number, message in enumerate(FIXTURE["messages"][1:], 1):
                rows = [
                    (number, at, block["type"], json.dumps(block))
                    for at, block in enumerate(message["content"])
                ]
                database.executemany("insert into block values (?, ?, ?, ?)", rows)
        restored = json.loads(checkpoint_demo.SESSION_TEXT)
        for number, message in enumerate(restored["messages"][1:], 1):
            query = f"select block from block where message = ? order by {order}"
            message["content"] = [json.loads(row[0]) for row in database.execute(query, (number,))]
        return restored

    def label(self, record):
        path = self.put("restored.json", record if isinstance(record, str) else json.dumps(record))
        return checkpoint("replay", "--check-restored", path).out.splitlines()

    def test_json_text_in_sqlite_is_intact(self):
        self.assertEqual(self.label(self.store_text(json.dumps(FIXTURE))), ["intact"])
        self.assertEqual(
            self.label(self.store_text(json.dumps(FIXTURE, indent=1, sort_keys=True))), ["intact"]
        )

    def test_block_a_row_in_sqlite_is_intact_in_order_only(self):
        self.assertEqual(self.label(self.store_blocks("place")), ["intact"])

    def test_block_a_row_in_sqlite_without_its_order_changes_the_turn(self):
        self.assertEqual(self.label(self.store_blocks("kind desc")), ["changed assistant turn"])

    def test_json_lines_are_intact(self):
        lines = [json.dumps({"system": FIXTURE["system"], "tools": FIXTURE["tools"]})]
        lines += [json.dumps(message) for message in FIXTURE["messages"]]
        path = self.put("session.jsonl", "".join(f"{line}\n" for line in lines))
        with open(path, encoding="utf-8") as file:
            head, *messages = [json.loads(line) for line in file]
        self.assertEqual(self.label({**head, "messages": messages}), ["intact"])

    def test_careless_stores_have_their_labels(self):
        def keep_visible_text(record):
            turn = record["messages"][1]
            turn["content"] = [block for block in turn["content"] if block.get("thinking", "x")]

        def drop_empty_turns(record):
            record["messages"] = [message for message in record["messages"] if message["role"] == "user"]

        def render_the_prompt_again(record):
            record["system"] += " Today is 2031-04-05."

        def build_tools_again(record):
            record["tools"][0]["input_schema"]["additionalProperties"] = False

        def trim_history(record):
            del record["messages"][0]

        def read_amounts_as_numbers(record):
            record["messages"][2]["content"][0]["content"] = json.dumps(
                {"invoice": "DEMO-17", "amount": 47.5, "currency": "EUR"}
            )

        def mint_call_ids_again(record):
            record["messages"][1]["content"][1]["id"] = "toolu_new"

        def lose_the_results(record):
            del record["messages"][2]

        def put_the_question_again(record):
            record["messages"].append(record["messages"][0])

        cases = {
            keep_visible_text: "changed assistant turn",
            drop_empty_turns: "changed assistant turn",
            render_the_prompt_again: "changed prefix: system",
            build_tools_again: "changed prefix: tools",
            trim_history: "changed prefix: messages",
            read_amounts_as_numbers: "changed tool result",
            mint_call_ids_again: "changed assistant turn",
            lose_the_results: "unmatched tool result",
            put_the_question_again: "changed later messages",
        }
        for spoil, label in cases.items():
            with self.subTest(spoil.__name__):
                record = json.loads(self.store_text(json.dumps(FIXTURE)))
                spoil(record)
                self.assertEqual(self.label(record)[0], label)
