"""Evidence outlives its version: runs are inspected by scripts whose prices, style sheet and version changed.

The folders in tests/cases/runs were written by released versions and are never made again; each is
named VERSION-WHAT-IT-IS.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from tests.conditions import (
    PRICE_ADDED,
    PRICE_CHANGED,
    RECEIVER,
    SENDER,
    SENDER_REPLIES,
    STYLE_CHANGED,
    VERSION_CHANGED,
    ConditionsTestCase,
    copy_scripts,
    read_version,
    rewrite_ledger,
    start_with,
    write_sums,
)
from tests.support import ANSWERED, CASES, ENDED, GOOD_RUN, ROOT, handoff, message, respond, text, tool_call

RUNS = CASES / "runs"
# What a folder is, by the word behind its version: the exit code of its inspection, and the verdict.
KINDS = {
    "accepted": (0, "accepted"),
    "rehearsed": (0, "accepted"),
    "chat-to-gemini": (0, "accepted"),
    "receiver-only": (0, "accepted"),
    "session": (0, "accepted"),  # also with --fresh
    "source": (0, "accepted"),  # of a source of one's own, judged on the rows recorded in it
    "rejected": (1, "rejected"),
    "failed": (4, "failed"),
    "unclear": (5, "unclear"),
    "killed": (5, "unclear"),
}
CHANGES = {
    "a price was added": [PRICE_ADDED],
    "a price was changed": [PRICE_CHANGED],
    "another version": [VERSION_CHANGED],
    "another version with another style sheet": [VERSION_CHANGED, STYLE_CHANGED],
    "all of them": [PRICE_ADDED, PRICE_CHANGED, VERSION_CHANGED, STYLE_CHANGED],
}
FILES_OF_A_RUN = ("ledger.jsonl", "SHA256SUMS", "report.html")


class VersionTestCase(ConditionsTestCase):
    """A test that inspects runs with changed copies of both scripts."""

    def copy(self, name, changes):
        """Return the folder of a changed copy of the scripts."""
        folder = self.path(name)
        copy_scripts(folder, *changes)
        return folder

    def inspect_with(self, scripts, run, *options):
        """Inspect a run's folder with the scripts of a folder, as a process of its own."""
        plain = {"PYTHONDONTWRITEBYTECODE": ""} if scripts != ROOT else {}  # a copy is compiled once
        words = ("--inspect", str(run), *options)
        return start_with([], "run_handoff.py", *words, folder=scripts, environment=plain)

    def check(self, scripts, run, code, verdict):
        """A run is inspected as what it is."""
        ended = self.inspect_with(scripts, run, "--json")
        judged = json.loads(ended.out)
        self.assertEqual((ended.code, judged["verdict"]), (code, verdict), ended)
        return judged


class ReleasedRunsTest(VersionTestCase):
    def list_runs(self):
        """Return {name: (folder, what it is)} of the folders that lie here for good."""
        runs = {
            path.name: (path, path.name.partition("-")[2]) for path in sorted(RUNS.glob("*")) if path.is_dir()
        }
        self.assertTrue(runs, "no folder lies in tests/cases/runs")
        return runs

    def find_kind(self, name):
        """Return (exit code, verdict) of what a folder is by its name."""
        kinds = [KINDS[kind] for kind in KINDS if re.search(f"(^|-){kind}($|-)", name)]
        self.assertEqual(len(kinds), 1, name)
        return kinds[0]

    def test_runs_are_of_every_kind(self):
        names = [name for _, name in self.list_runs().values()]
        kinds = [kind for kind in KINDS for name in names if re.search(f"(^|-){kind}($|-)", name)]
        self.assertEqual(set(kinds), set(KINDS))

    def test_runs_are_inspected_as_what_they_are_today(self):
        for name, (folder, what) in self.list_runs().items():
            with self.subTest(name):
                self.check(ROOT, folder, *self.find_kind(what))

    def test_runs_are_inspected_as_what_they_are_after_every_change(self):
        for change, changes in CHANGES.items():
            scripts = self.copy(change.replace(" ", "-"), changes)
            for name, (folder, what) in self.list_runs().items():
                with self.subTest(change, run=name):
                    self.check(scripts, folder, *self.find_kind(what))

    def test_runs_that_are_changed_are_still_broken(self):
        scripts = self.copy("scripts", CHANGES["all of them"])
        for name, (folder, _) in self.list_runs().items():
            for changed in FILES_OF_A_RUN:
                if (folder / changed).exists() and (folder / "SHA256SUMS").exists():
                    with self.subTest(name, changed=changed):
                        copied = self.folder / "copy"
                        shutil.copytree(folder, copied)
                        data = (copied / changed).read_bytes()
                        (copied / changed).write_bytes(data.replace(b"e", b"f", 1))
                        ended = self.inspect_with(scripts, copied, "--json")
                        shutil.rmtree(copied)
                        self.assertEqual((ended.code, json.loads(ended.out)["verdict"]), (1, "broken"), ended)


class FreshRunsTest(VersionTestCase):
    """The same for runs that this very code has written, of more kinds."""

    def make_runs(self):
        """Return {name: (exit code, verdict)} of runs of many kinds, made in the test's folder."""
        wrong = message([text('{"rows":[]}')])
        ends = {
            "rejected": (*SENDER_REPLIES, respond(wrong)),
            "failed": (respond({"error": {"message": "no"}}, 400),),
            "unclear": (respond(b"<html>", 502),),
        }
        source = self.put("source.csv", "sku,available,target\nA-1,7,10\nA-2,15,12\n")
        answer = '{"rows":[{"sku":"A-1","shortage":3},{"sku":"A-2","shortage":0}]}'
        expected = {name: KINDS[name] for name in ends}
        self.live(self.serve(*GOOD_RUN), out="accepted")
        self.live(self.serve(*GOOD_RUN), "--sender", "invented-model", out="unpriced")
        handoff("--rehearse", "--out", self.path("rehearsed"))
        replies = (*SENDER_REPLIES, respond(message([text(answer)])))
        self.live(self.serve(*replies), "--source", source, out="source")
        for name, script in ends.items():
            self.live(self.serve(*script), out=name)
        self.kill_a_run("killed")
        priceless = dict.fromkeys(("accepted", "unpriced", "rehearsed", "source"), (0, "accepted"))
        return {**expected, **priceless, "killed": (5, "unclear")}

    def kill_a_run(self, out):
        """Leave what a run leaves that was killed while its second request was in flight."""
        self.live(self.serve(*GOOD_RUN), out=out)
        folder = self.folder / out
        lines = (folder / "ledger.jsonl").read_bytes().split(b"\n")
        at = next(
            number for number, line in enumerate(lines) if b'"sender-tool-result","state":"in_f' in line
        )
        (folder / "ledger.jsonl").write_bytes(b"\n".join(lines[: at + 1]) + b"\n")
        for name in os.listdir(folder):
            if name[:2] not in ("1-", "2-", "le") or name == "2-response.json":
                (folder / name).unlink()

    def test_every_run_is_inspected_as_what_it_is_after_all_changes(self):
        """Each change alone is tried with the folders that lie here for good."""
        runs = self.make_runs()
        for change, changes in {"no change": [], "all of them": CHANGES["all of them"]}.items():
            scripts = self.copy(change.replace(" ", "-"), changes)
            for name, (code, verdict) in runs.items():
                with self.subTest(change, run=name):
                    self.check(scripts, self.folder / name, code, verdict)

    def test_price_that_changed_is_noted_and_the_cost_is_that_of_the_run(self):
        self.live(self.serve(*GOOD_RUN))
        scripts = self.copy("scripts", [PRICE_CHANGED])
        ended = self.inspect_with(scripts, self.folder / "run")
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("0.022008", ended.out)  # at the prices of the run
        notes = [line for line in ended.err.split("\n") if line.startswith("note: ") and SENDER in line]
        self.assertEqual(len(notes), 1, ended)
        judged = self.check(scripts, self.folder / "run", 0, "accepted")
        self.assertTrue([note for note in judged["notes"] if SENDER in note])

    def test_price_that_did_not_change_is_not_noted(self):
        self.live(self.serve(*GOOD_RUN))
        scripts = self.copy("scripts", [PRICE_ADDED])
        self.assertNotIn("price", " ".join(self.check(scripts, self.folder / "run", 0, "accepted")["notes"]))

    def test_model_that_got_a_price_since_keeps_its_unknown_cost(self):
        self.live(self.serve(*GOOD_RUN), "--sender", "invented-model")
        self.assertEqual(self.last("run")["cost_usd"], "unknown")
        scripts = self.copy("scripts", [PRICE_ADDED])
        ended = self.inspect_with(scripts, self.folder / "run")
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("unknown", ended.out)
        self.assertTrue([line for line in ended.err.split("\n") if "invented-model" in line], ended)

    def test_report_of_another_version_is_said_to_be_one_and_is_held_by_its_digest(self):
        self.live(self.serve(*GOOD_RUN))
        scripts = self.copy("scripts", [VERSION_CHANGED, STYLE_CHANGED])
        judged = self.check(scripts, self.folder / "run", 0, "accepted")
        told = [note for note in judged["notes"] + judged["checks"] if "report.html" in note]
        self.assertTrue([note for note in told if read_version() in note or "version" in note], judged)
        report = self.folder / "run" / "report.html"
        report.write_bytes(report.read_bytes().replace(b"accepted", b"accepted ", 1))
        ended = self.inspect_with(scripts, self.folder / "run", "--json")
        self.assertEqual(ended.code, 1, ended)
        self.assertIn("report.html", ended.out)

    def test_report_of_the_same_version_is_compared_byte_for_byte(self):
        self.live(self.serve(*GOOD_RUN))
        report = self.folder / "run" / "report.html"
        report.write_bytes(report.read_bytes().replace(b"accepted", b"accepted ", 1))
        write_sums(self.folder / "run")
        ended = self.inspect_with(ROOT, self.folder / "run", "--json")
        self.assertEqual(ended.code, 1, ended)
        self.assertIn("report.html", ended.out)

    def test_page_of_a_run_of_another_version_can_be_written(self):
        self.live(self.serve(*GOOD_RUN))
        scripts = self.copy("scripts", CHANGES["all of them"])
        page = self.path("page.html")
        ended = self.inspect_with(scripts, self.folder / "run", "--html", page)
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("max-width: 73rem", Path(page).read_text(encoding="utf-8"))


class FirstRecordTest(VersionTestCase):
    def test_first_record_has_the_version_the_format_the_task_and_the_prices(self):
        self.live(self.serve(*GOOD_RUN), "--sender", SENDER, "--receiver", "invented-model")
        first = self.ledger()[0]
        self.assertEqual((first["version"], first["task"]), (read_version(), "stock"))
        self.assertIs(type(first["format"]), int)
        self.assertEqual(first["task_sha256"], "")  # the task that is built in
        self.assertEqual(first["prices"].get(SENDER), [8, 40])
        self.assertIsNone(first["prices"].get("invented-model"))
        self.assertLessEqual(set(first["prices"]), {SENDER, "invented-model"})

    def test_version_is_the_one_that_the_script_names(self):
        for script in ("run_handoff.py", "checkpoint_demo.py"):
            with self.subTest(script):
                ended = start_with([], script, "--version")
                self.assertEqual((ended.code, ended.out.strip()), (0, f"{script} {read_version()}"))

    def change_first(self, **changes):
        """Make a run whose first record has other facts (None: not there), its chain put right."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        self.live(self.serve(*GOOD_RUN))

        def change(records):
            records[0].update(changes)
            for name in [name for name, fact in records[0].items() if fact is None]:
                del records[0][name]

        rewrite_ledger(self.folder / "run", change)

    def judge(self, code):
        """The inspection ends with a code and without a traceback; return its standard error."""
        for options in ((), ("--json",)):
            ended = self.inspect("run", *options)
            self.assertEqual(ended.code, code, ended)
            self.assertNotIn("Traceback", ended.err)
        return self.inspect().err

    def test_run_without_a_version_was_written_before_the_first_release(self):
        self.change_first(version=None, format=None, prices=None, task=None, task_sha256=None)
        said = self.judge(2)
        self.assertIn("written before 1.0", said)
        self.assertNotIn("broken", said)
        self.assertNotIn("look", said.partition("next:")[2])  # nobody is sent to look requests up

    def test_run_without_a_version_is_refused_however_far_it_came(self):
        self.change_first(version=None, format=None, prices=None, task=None, task_sha256=None)
        lines = (self.folder / "run" / "ledger.jsonl").read_bytes().split(b"\n")
        for count in (1, 2, 3, len(lines) - 2):
            with self.subTest(count):
                (self.folder / "run" / "ledger.jsonl").write_bytes(b"\n".join(lines[:count]) + b"\n")
                self.assertIn("written before 1.0", self.judge(2))

    def test_first_record_whose_digest_the_next_one_does_not_confirm_is_broken(self):
        """The chain is checked first: a record that lost its version by a change is a changed one."""
        self.live(self.serve(*GOOD_RUN))
        path = self.folder / "run" / "ledger.jsonl"
        first, rest = path.read_bytes().split(b"\n", 1)
        record = json.loads(first)
        del record["version"]
        path.write_bytes(json.dumps(record, separators=(",", ":")).encode() + b"\n" + rest)
        self.assertNotIn("written before", self.judge(1))

    def test_first_record_that_is_missing_or_cut_is_judged_as_ever(self):
        for name, cut in {
            "missing": lambda data: data.split(b"\n", 1)[1],
            "cut": lambda data: data[40:],
            "not JSON": lambda data: b"x" + data,
            "a list": lambda data: b"[]\n" + data.split(b"\n", 1)[1],
            "empty": lambda data: b"\n" + data.split(b"\n", 1)[1],
        }.items():
            with self.subTest(name):
                shutil.rmtree(self.folder / "run", ignore_errors=True)
                self.live(self.serve(*GOOD_RUN))
                path = self.folder / "run" / "ledger.jsonl"
                path.write_bytes(cut(path.read_bytes()))
                self.assertNotIn("written before", self.judge(1))

    def test_format_of_a_later_version_is_refused_and_not_called_broken(self):
        """A program cannot judge rules that it does not know."""
        self.change_first(format=999, version="99.0")
        said = self.judge(2)
        self.assertIn("99.0", said)
        self.assertNotIn("broken", said)

    def test_version_of_a_later_release_with_the_same_format_is_read(self):
        self.change_first(version="1.99")
        self.judge(0)

    def test_odd_facts_in_the_first_record_are_broken_evidence(self):
        first = self.ledger_of_a_run()[0]
        price = {SENDER: [8, 40], RECEIVER: [4, 20]}
        cases = {
            "a version that is a number": {"version": 1},
            "a version with escapes": {"version": "\x1b[2J"},
            "an endless version": {"version": "1" * 9_000},
            "a format that is text": {"format": "1"},
            "a format that is true": {"format": True},
            "a format below 1": {"format": 0},
            "prices in a list": {"prices": [8, 40]},
            "prices null in the record": {"prices": "none"},
            "one price": {"prices": {**price, SENDER: [8]}},
            "three prices": {"prices": {**price, SENDER: [8, 40, 1]}},
            "a price below 0": {"prices": {**price, SENDER: [-8, 40]}},
            "a price with a fraction": {"prices": {**price, SENDER: [8.5, 40]}},
            "a price as text": {"prices": {**price, SENDER: ["8", "40"]}},
            "a price of true": {"prices": {**price, SENDER: [True, 40]}},
            "another price": {"prices": {**price, SENDER: [9, 40]}},  # the costs do not follow from it
            "a price that is gone": {"prices": {RECEIVER: [4, 20]}},
            "a task that is a number": {"task": 7},
        }
        self.assertTrue(first)
        for name, changes in cases.items():
            with self.subTest(name):
                self.change_first(**changes)
                ended = self.inspect()
                self.assertEqual(ended.code, 1, ended)
                self.assertNotIn("Traceback", ended.err)
                self.assertTrue(ended.err.replace("\n", "").isprintable())

    def ledger_of_a_run(self):
        self.live(self.serve(*GOOD_RUN))
        return self.ledger()

    def test_cost_is_worked_out_from_the_prices_of_the_run(self):
        """A cost that does not follow from the recorded prices is a finding."""
        self.live(self.serve(*GOOD_RUN))

        def change(records):
            for record in records:
                if record["operation_id"] == "receiver-handoff" and "cost_usd" in record:
                    record["cost_usd"] = "0.003169"

        rewrite_ledger(self.folder / "run", change)
        self.assertIn("cost_usd", self.judge(1))


class CallTest(VersionTestCase):
    def test_run_with_a_long_call_id_outlives_its_version_too(self):
        called = respond(message([tool_call("toolu_" + "x" * 400)], "tool_use"))
        self.live(self.serve(called, respond(ENDED), respond(ANSWERED)))
        scripts = self.copy("scripts", CHANGES["all of them"])
        self.check(scripts, self.folder / "run", 0, "accepted")
