"""Inspecting a run: what holds, what was changed, what is missing, and where a run ended."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from pathlib import Path
from unittest import mock

import checkpoint_demo
import run_handoff
from tests.support import ANSWERED, CALLED, ENDED, GOOD_RUN, KEY, RunTestCase, handoff, message, respond, text


def chain(records):
    """Return a ledger's bytes for records, each given the digest of the line before."""
    lines, previous = [], "0" * 64
    for record in records:
        line = run_handoff.encode_json({**record, "prev_sha256": previous})
        previous = checkpoint_demo.digest_bytes(line)
        lines.append(line + b"\n")
    return b"".join(lines)


class InspectTestCase(RunTestCase):
    """A test that has one accepted run, and makes changed copies of it."""

    def setUp(self):
        super().setUp()
        self.assertEqual(self.live(self.serve(*GOOD_RUN)).code, 0)
        self.good = self.files()

    def copy(self, **files):
        """Make a copy of the run, other bytes in some files (None: without it), and return its path."""
        folder = self.folder / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "run", folder)
        for name, data in files.items():
            name = {"sums": "SHA256SUMS", "ledger": "ledger.jsonl"}.get(name, name)
            (folder / name).unlink()
            if data is not None:
                (folder / name).write_bytes(data)
        return str(folder)

    def seal(self, folder):
        """Give a changed copy a SHA256SUMS that fits."""
        paths = {name: Path(folder, name) for name in run_handoff.FILES}
        files = {name: path.read_bytes() for name, path in paths.items() if path.exists()}
        with open(os.path.join(folder, "SHA256SUMS"), "wb") as file:
            file.write(run_handoff.render_sums(files))
        return folder

    def check(self, folder, code, *words):
        """Inspect a folder, and expect an exit code and words on standard error."""
        ended = handoff("--inspect", folder)
        self.assertEqual(ended.code, code, ended)
        for word in words:
            self.assertIn(word, ended.err)
        return ended


class ChangedFileTest(InspectTestCase):
    def test_one_byte_changed_in_any_file_is_found_and_named(self):
        for name, data in self.good.items():
            for at in sorted({0, 1, len(data) // 3, len(data) // 2, len(data) - 2, len(data) - 1}):
                with self.subTest(name, at=at):
                    changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                    self.check(self.copy(**{name: changed}), 1, name, "the evidence does not hold")

    def test_byte_added_or_cut_at_the_end_of_any_file_is_found_and_named(self):
        for name, data in self.good.items():
            for changed in (data + b"\n", data[:-1], b""):
                with self.subTest(name, length=len(changed) - len(data)):
                    self.check(self.copy(**{name: changed}), 1, name)

    def test_missing_file_is_found_and_named(self):
        for name in self.good:
            with self.subTest(name):
                self.check(self.copy(**{name: None}), 1, name)

    def test_change_under_fitting_sums_is_found_and_named(self):
        for name, data in self.good.items():
            if name in ("SHA256SUMS", "ledger.jsonl"):
                continue
            with self.subTest(name):
                at = len(data) // 2
                changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                folder = self.seal(self.copy(**{name: changed}))
                self.check(folder, 1, name)

    def test_stranger_is_only_noted(self):
        folder = self.copy()
        for name in ("notes.txt", ".1-request.json.part"):
            with open(os.path.join(folder, name), "w") as file:
                file.write("x")
        self.check(folder, 0, "note: notes.txt is not a file of a run", "note: .1-request.json.part")


class ForgedLedgerTest(InspectTestCase):
    def forge(self, change):
        """Let `change` work on the records, mend the chain and the sums, and return the folder."""
        records = [json.loads(line) for line in self.good["ledger.jsonl"].splitlines()]
        records = change(records) or records
        return self.seal(self.copy(ledger=chain(records)))

    def test_mended_chain_without_a_change_holds(self):
        self.check(self.forge(lambda records: None), 0)

    def test_every_record_is_demanded(self):
        count = len(self.good["ledger.jsonl"].splitlines())
        for at in range(count):
            with self.subTest(at):
                self.check(self.forge(lambda records, at=at: records[:at] + records[at + 1 :]), 1)

    def test_every_record_is_demanded_once_and_in_order(self):
        count = len(self.good["ledger.jsonl"].splitlines())
        for at in range(count):
            with self.subTest("repeated", at=at):
                self.check(self.forge(lambda records, at=at: records[: at + 1] + records[at:]), 1)
        for at in range(count - 1):
            with self.subTest("swapped", at=at):
                self.check(
                    self.forge(lambda r, at=at: [*r[:at], r[at + 1], r[at], *r[at + 2 :]]),
                    1,
                    "ledger.jsonl line",
                )

    def test_every_field_that_can_be_worked_out_again_is(self):
        free = {"time", "request_id", "elapsed_milliseconds", "endpoint", "timeout_seconds", "prev_sha256"}
        records = [json.loads(line) for line in self.good["ledger.jsonl"].splitlines()]
        tried = 0
        for at, record in enumerate(records):
            for field in set(record) - free:
                with self.subTest(field, at=at):

                    def change(records, at=at, field=field):
                        records[at][field] = {"forged": True}

                    self.check(self.forge(change), 1, f"ledger.jsonl line {at + 1}")
                    tried += 1
        self.assertGreater(tried, 50)

    def test_forged_value_is_shown_beside_the_right_one(self):
        def change(records):
            records[3]["cost_usd"] = "0.000001"

        place = 'ledger.jsonl line 4 cost_usd: observed the string "0.000001", expected the string "0.004816"'
        self.check(self.forge(change), 1, place)

    def test_time_that_is_none_is_found(self):
        times = ["yesterday", "2026-11-30", "2026-11-30T12:00:00Z", "2026-11-30T12:00:00.000+01:00"]
        times += [f"20{month}-30T12:00:00.000Z" for month in ("26-20", "26-1x", "26-\u0661\u0661")]
        times += ["2026-02-30T12:00:00.000Z", "2026-19-30T12:00:00.000Z", "2026-11-30T24:00:00.000Z", ""]
        times += ["2026-11-30 12:00:00.000Z", "2026-11-30T12:00:00.000000Z", "20261130T120000.000Z"]
        times += ["2026-11-40T12:00:00.000Z", "2026-11-30T12:60:00.000Z", "2026-11-30T12:00:00.0000Z"]
        for time in times:
            with self.subTest(time):

                def change(records, time=time):
                    records[3]["time"] = time

                self.check(self.forge(change), 1, "ledger.jsonl line 4 time: observed the string")

    def test_field_of_another_kind_is_no_crash(self):
        for field in ("http_status", "request_id", "elapsed_milliseconds", "time", "max_tokens", "rehearsal"):
            for value in (None, [], {}, "x", -1, 1.5, True):
                with self.subTest(field, value=value):
                    at = 0 if field in ("max_tokens", "rehearsal") else 3

                    def change(records, at=at, field=field, value=value):
                        records[at][field] = value

                    ended = handoff("--inspect", self.forge(change))
                    self.assertIn(ended.code, (0, 1), ended)
                    self.assertNotIn("Traceback", ended.err)

    def test_records_that_no_run_can_write_are_found(self):
        """Facts that are taken from the ledger must at least go together."""
        together = "observed a reply without a status, a digest or a connection"
        odd = "observed an encoding or a status that no run records"
        broke = "observed no reply, but nothing that broke, or something decoded"
        silent = {"http_status": None, "response_sha256": None}
        rehearsed = {"rehearsal": True, "endpoint": run_handoff.ENDPOINT}
        forged = {
            "a reply that came on no connection": (3, {"opened": False}, together),
            "a status without a reply": (3, {"response_sha256": None}, together),
            "a key that was taken out, without a mark": (
                3,
                {"key_removed": True},
                "key_removed: observed true, but 1-response.json has no mark",
            ),
            "an encoding that is not decoded": (3, {"content_encoding": "br"}, odd),
            "a status that is none": (3, {"http_status": 7}, odd),
            "a status of four digits": (3, {"http_status": 1_000}, odd),
            "no reply, and nothing broke": (3, silent, broke),
            "no reply, but it was decoded": (
                3,
                {**silent, "finding": "x", "content_encoding": "gzip"},
                broke,
            ),
            "no reply, but a key was in it": (3, {**silent, "finding": "x", "key_removed": True}, broke),
            "a model without a name": (0, {"sender": ""}, "as sender, which no run has"),
            "a model of two words": (0, {"receiver": "a b"}, "as receiver, which no run has"),
            "a digest that is none": (
                0,
                {"source_sha256": "zzzzzz"},
                "as source_sha256, which no run has",
            ),
            "a rehearsal elsewhere": (0, rehearsed, "as endpoint, which no run has"),
            "an endpoint that is refused": (0, {"endpoint": "http://api.example/v1/messages"}, "unencrypted"),
            "no endpoint": (0, {"endpoint": ""}, "it is not a URL"),
            "no time": (0, {"timeout_seconds": 0}, "as timeout_seconds, which no run has"),
            "too much time": (0, {"timeout_seconds": 100_000}, "as timeout_seconds, which no run has"),
            "no tokens": (0, {"max_tokens": 0}, "as max_tokens, which no run has"),
        }
        for phrase, (at, facts, words) in forged.items():
            with self.subTest(phrase):

                def change(records, at=at, facts=facts):
                    records[at].update(facts)
                    for name in [name for name, fact in facts.items() if fact is None]:
                        del records[at][name]

                ended = self.check(self.forge(change), 1, words)
                self.assertRegex(ended.err, rf"(?m)^ledger\.jsonl line {at + 1}\b.*{re.escape(words)}")

    def test_value_that_no_run_records_is_no_crash(self):
        values = {"elapsed_milliseconds": 10**400, "http_status": -5, "request_id": "x" * 9_999, "finding": 7}
        for field, value in values.items():
            with self.subTest(field):

                def change(records, field=field, value=value):
                    records[3][field] = value

                self.check(self.forge(change), 1, "ledger.jsonl line 4")

    def test_text_of_a_record_cannot_write_lines_of_its_own(self):
        for at, field in ((0, "sender"), (3, "state"), (3, "cost_usd"), (3, "model"), (12, "cost_usd")):
            with self.subTest(field, at=at):

                def change(records, at=at, field=field):
                    records[at][field] = "x\naccepted: 3 rows, total shortage 7\n"

                ended = handoff("--inspect", self.forge(change))
                self.assertEqual(ended.code, 1)
                self.assertNotIn("\naccepted", ended.out + ended.err)

    def test_record_behind_the_end_is_found(self):
        self.check(self.forge(lambda records: [*records, records[0]]), 1, "after the run's last record")

    def test_accepted_run_cannot_be_made_out_of_a_failed_one(self):
        failed = [*GOOD_RUN[:2], respond(message([text('{"rows":[]}')]))]
        self.assertEqual(self.live(self.serve(*failed), out="failed").code, 1)
        folder = self.path("failed")
        records = self.ledger("failed")
        records[-1] = {name: value for name, value in records[-1].items() if name != "why"} | {
            "state": "confirmed"
        }
        (self.folder / "failed" / "ledger.jsonl").write_bytes(chain(records))
        (self.folder / "failed" / "result.json").write_bytes(self.good["result.json"])
        self.check(self.seal(folder), 1)

    def test_cause_that_the_run_did_not_end_by_is_found(self):
        self.assertEqual(self.live(self.serve(respond({}, 401)), out="failed").code, 4)
        records = self.ledger("failed")
        self.assertEqual(records[-1]["cause"], "key")
        for cause in ("load", run_handoff.INTERRUPTED, 7, None):
            with self.subTest(cause):
                records[-1]["cause"] = cause
                (self.folder / "failed" / "ledger.jsonl").write_bytes(chain(records))
                self.check(self.seal(self.path("failed")), 1, "ledger.jsonl line 5 cause: observed")

    def test_run_that_calls_itself_interrupted_is_asked_what_was_in_flight(self):
        folder = self.copy(**{"result.json": None, "3-response.json": None, "report.html": None})
        *records, _, last = [json.loads(line) for line in self.good["ledger.jsonl"].splitlines()]
        self.assertEqual(records[-1]["state"], "in_flight")
        end = {**last, "state": "failed", "why": "interrupted with nothing in flight", "cost_usd": "unknown"}
        end["cause"] = run_handoff.INTERRUPTED
        with open(os.path.join(folder, "ledger.jsonl"), "wb") as file:
            file.write(chain([*records, end]))
        self.check(self.seal(folder), 1, "ledger.jsonl line 12 state: observed")


class EndedRunTest(InspectTestCase):
    """A run that was cut off after any number of records, or in the middle of one."""

    def cut(self, size):
        """Return a copy whose ledger is cut to a size, without the files that came later."""
        ledger = self.good["ledger.jsonl"][:size]
        folder = self.copy(ledger=ledger, sums=None, **{"report.html": None})
        whole = ledger[: ledger.rfind(b"\n") + 1]
        planned = whole.count(b'"in_flight"')
        for name in ("1-response.json", "2-response.json", "3-response.json"):
            if int(name[0]) > planned:
                os.unlink(os.path.join(folder, name))
        records = whole.count(b"\n")
        later = {
            "1-request.json": 1,
            "2-request.json": 6,
            "checkpoint.json": 9,
            "handoff.txt": 9,
            "3-request.json": 9,
            "result.json": 12,
        }
        for name, needed in later.items():
            if records < needed:
                os.unlink(os.path.join(folder, name))
        return folder

    def test_ledger_that_ends_after_any_record_tells_what_is_open(self):
        size = 0
        for number, line in enumerate(self.good["ledger.jsonl"].splitlines(keepends=True)[:-1], 1):
            size += len(line)
            with self.subTest(number):
                code = 5 if json.loads(line)["state"] == "in_flight" else 4
                ended = self.check(self.cut(size), code, "the run was ended before it closed")
                self.assertIn("a request in flight" if code == 5 else "nothing in flight", ended.err)
                self.assertNotIn("was cut", ended.err)

    def test_ledger_that_is_cut_at_any_byte_is_read_without_its_last_line(self):
        ledger = self.good["ledger.jsonl"]
        for size in range(0, len(ledger), 7):
            with self.subTest(size):
                whole = ledger[:size].rpartition(b"\n")[0] + b"\n"
                in_flight = len(whole) > 1 and json.loads(whole.splitlines()[-1])["state"] == "in_flight"
                ended = handoff("--inspect", self.cut(size))
                self.assertEqual(ended.code, 5 if in_flight else 4, ended)
                self.assertEqual(
                    "its last line was cut" in ended.err, not ledger[:size].endswith(b"\n") and size > 0
                )

    def test_file_that_the_records_do_not_come_to_is_found(self):
        first = self.good["ledger.jsonl"].index(b"\n") + 1
        folder = self.copy(ledger=self.good["ledger.jsonl"][:first], sums=None)
        self.check(folder, 1, "result.json: it exists, though no record leads to it")

    def test_folder_that_was_only_made_holds_nothing_in_flight(self):
        os.mkdir(self.path("empty"))
        self.check(self.path("empty"), 4, "nothing in flight")

    def test_reply_without_a_record_is_noted(self):
        records = self.good["ledger.jsonl"].splitlines(keepends=True)[:3]
        folder = self.cut(len(b"".join(records)))
        self.check(folder, 5, "note: 1-response.json is there, but no record vouches for it")

    def test_next_step_is_said(self):
        third = len(b"".join(self.good["ledger.jsonl"].splitlines(keepends=True)[:3]))
        self.check(self.cut(third), 5, "look it up with the provider")


class StrangeFolderTest(InspectTestCase):
    def test_what_is_no_run_is_unreadable(self):
        self.put("file", "x")
        os.mkdir(self.path("other"))
        self.put("other/notes.txt", "x")
        for name in ("nowhere", "file", "other"):
            with self.subTest(name):
                ended = self.check(self.path(name), 2)
                self.assertRegex(ended.err, r"^run_handoff.py: unreadable: .+\n  why: .+\n  next: .+\n$")

    def test_what_is_no_regular_file_is_not_opened(self):
        def fifo(path):
            os.mkfifo(path)

        def link_out(path):
            os.symlink(self.put("outside", self.good["1-response.json"]), path)

        def link_to_device(path):
            os.symlink("/dev/zero", path)

        for make in (fifo, link_out, link_to_device, os.mkdir):
            for name in ("1-response.json", "ledger.jsonl", "result.json", "SHA256SUMS"):
                with self.subTest(name, kind=make.__name__):
                    folder = self.copy(**{name: None})
                    make(os.path.join(folder, name))
                    ended = self.inspect_within(10, folder)
                    self.assertEqual(ended.code, 1, ended)
                    self.assertIn(f"{name}: observed another kind of file", ended.err)

    def inspect_within(self, seconds, folder):
        """Inspect a folder in a thread, and fail if that hangs."""
        endings = []
        thread = threading.Thread(target=lambda: endings.append(handoff("--inspect", folder)), daemon=True)
        thread.start()
        thread.join(seconds)
        self.assertTrue(endings, "the inspection hangs")
        return endings[0]

    def test_reply_that_is_longer_than_any_run_stores_is_not_judged(self):
        folder = self.seal(self.copy(**{"1-response.json": b" " * (run_handoff.REPLY_LIMIT_BYTES + 1)}))
        self.check(folder, 1, "1-response.json: observed more than 4,194,304 bytes")

    def test_file_that_is_too_long_is_not_read(self):
        with mock.patch.object(checkpoint_demo, "INPUT_LIMIT_BYTES", 10_000):
            folder = self.copy(**{"handoff.txt": b"x" * 10_001})
            self.check(folder, 1, "handoff.txt: observed more than 10,000")

    def test_file_that_cannot_be_read_is_no_verdict(self):
        with mock.patch("os.open", side_effect=OSError(5, "Input/output error")):
            self.check(self.path("run"), 2, "Input/output error")

    def test_hostile_text_is_shown_escaped(self):
        body = json.dumps(message([text("\x1b]0;x\x07\u202e\x00\x85")])).encode()
        self.assertEqual(self.live(self.serve(*GOOD_RUN[:2], respond(body)), out="hostile").code, 1)
        for options in ([], ["--json"]):
            ended = handoff("--inspect", self.path("hostile"), *options)
            self.assertEqual(ended.code, 1)
            for character in "\x1b\x07\u202e\x00\x85":
                self.assertNotIn(character, ended.out + ended.err)


class JsonReportTest(InspectTestCase):
    def test_json_is_one_object_with_the_same_verdict(self):
        ended = self.inspect("run", "--json")
        report = json.loads(ended.out)
        self.assertEqual((ended.code, ended.err), (0, ""))
        self.assertEqual(report["verdict"], "accepted")
        self.assertEqual(report["what"], "accepted: 3 rows, total shortage 7")
        self.assertEqual((report["exit_code"], report["findings"], report["notes"]), (0, [], []))
        self.assertEqual(
            [record["operation_id"] for record in report["records"]][:2], ["run", "sender-tool-request"]
        )

    def test_json_lists_findings(self):
        folder = self.copy(**{"result.json": b"{}"})
        ended = handoff("--inspect", folder, "--json")
        self.assertEqual(ended.code, 1)
        self.assertEqual(json.loads(ended.out)["findings"][0]["path"], "result.json rows")

    def test_key_is_nowhere(self):
        ended = self.inspect("run", "--json")
        self.assertNotIn(KEY, ended.out)


class SwappedFileTest(InspectTestCase):
    def test_file_of_another_good_run_is_found(self):
        other = [respond({**reply, "id": "msg_other"}) for reply in (CALLED, ENDED, ANSWERED)]
        self.assertEqual(self.live(self.serve(*other), out="other").code, 0)
        theirs = self.files("other")
        swapped = [name for name, data in theirs.items() if data != self.good[name]]
        replies = {"1-response.json", "2-response.json", "3-response.json"}
        self.assertEqual(set(swapped), {*replies, "ledger.jsonl", "report.html", "SHA256SUMS"})
        for name in swapped:
            with self.subTest(name):
                self.check(self.copy(**{name: theirs[name]}), 1)
                if name != "SHA256SUMS":
                    place = name if name == "report.html" else "ledger.jsonl line"
                    self.check(self.seal(self.copy(**{name: theirs[name]})), 1, place)

    def test_right_result_beside_a_handoff_of_another_checkpoint_is_found(self):
        rows = [{"sku": "DEMO-001", "available": 0, "target": 3}, *checkpoint_demo.DEMO.source[1:]]
        handoff_text = checkpoint_demo.render_handoff(
            checkpoint_demo.DEMO, checkpoint_demo.build_checkpoint(checkpoint_demo.DEMO, rows)
        ).encode()
        folder = self.seal(self.copy(**{"handoff.txt": handoff_text}))
        self.check(folder, 1, "handoff.txt byte", "the evidence does not hold")

    def test_ledger_of_100_mebibytes_is_refused_at_once(self):
        folder = self.copy()
        os.truncate(os.path.join(folder, "ledger.jsonl"), 100 * 2**20)
        self.check(folder, 1, "ledger.jsonl: observed more than 12,582,912 bytes")
