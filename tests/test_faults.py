"""A fault at every call: each system call that a flow makes is made to fail, one after the other.

SHOW_TABLES=1 python3 -m unittest tests.test_faults prints how many calls were tried.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import sys
import threading
from unittest import mock

import checkpoint_demo
import run_handoff
from tests.support import ANSWERED, GOOD_RUN, KEY, RunTestCase, checkpoint, handoff

CALLS = ("mkdir", "open", "write", "fsync", "link", "rename", "unlink")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES)
KEPT = {"precious", "response.json"}
THREE_PARTS = re.compile(r"(?:.*\n)*\w+\.py: [a-z ]+: .+\n  why: .+\n  next: .+\n")


@contextlib.contextmanager
def failing(call=None, nth=0, error=0):
    """Let the n-th call (from 1) of one os function fail; yields {function: calls made}."""
    made = dict.fromkeys(CALLS, 0)
    main = threading.current_thread()

    def replace(name):
        real = getattr(os, name)

        def replaced(*arguments, **options):
            if threading.current_thread() is main:
                made[name] += 1
                if name == call and made[name] == nth:
                    raise OSError(error, os.strerror(error))
            return real(*arguments, **options)

        return mock.patch.object(os, name, replaced)

    with contextlib.ExitStack() as stack:
        for name in CALLS:
            stack.enter_context(replace(name))
        yield made


class FaultTestCase(RunTestCase):
    """A flow that is gone through once whole, and then once for every call and error."""

    def try_all(self, flow, check, expected_calls):
        """Run flow() with each call failing in each way; check(ended, call, nth) judges what is left."""
        with failing() as made:
            self.assertEqual(flow().code, 0)
        self.assertEqual({name: count for name, count in made.items() if count}, expected_calls)
        self.clean()
        tried = dict.fromkeys(expected_calls, 0)
        for call, count in expected_calls.items():
            for nth in range(1, count + 1):
                for error in ERRORS:
                    with self.subTest(call=call, nth=nth, error=errno.errorcode[error]):
                        with failing(call, nth, error) as made:
                            ended = flow()
                        self.assertGreaterEqual(made[call], nth, "the fault was never reached")
                        self.assertNotIn("Traceback", ended.err)
                        if ended.code != 0:
                            self.assertRegex(ended.err, THREE_PARTS)
                        check(ended, call, nth)
                        self.assertEqual((self.folder / "precious").read_bytes(), b"untouched")
                        tried[call] += 1
                    self.clean()
        self.assertEqual(tried, {call: count * len(ERRORS) for call, count in expected_calls.items()})
        self.show(tried)

    def setUp(self):
        super().setUp()
        self.put("precious", "untouched")

    def clean(self):
        """Take away what a flow has left."""
        for name in self.names():
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            elif name not in KEPT:
                path.unlink()

    def show(self, tried):
        """Print the table of what was tried and survived, if it is wanted."""
        if os.environ.get("SHOW_TABLES"):
            rows = [
                f"  {call:8} {count // len(ERRORS):5} calls {count:6} faults survived"
                for call, count in tried.items()
            ]
            print("\n".join([f"\n{self.id()}", *rows]), file=sys.stderr)

    def check_no_leftovers(self):
        """No temporary file is left anywhere below the test's folder."""
        left = [name for _, _, names in os.walk(self.folder) for name in names if name.endswith(".part")]
        self.assertEqual(left, [])


class RunFaultTest(FaultTestCase):
    def test_run_survives_a_fault_at_every_call(self):
        def flow():
            self.server = self.serve(*GOOD_RUN)
            ended = self.live(self.server)
            self.server.stop()
            return ended

        calls = {"mkdir": 1, "open": 35, "write": 24, "fsync": 37, "rename": 11}
        self.try_all(flow, self.check_run, calls)

    def check_run(self, ended, call, nth):
        sent = len(self.server.requests)
        if ended.code == 3:
            self.assertEqual((sent, self.names()), (0, ["precious"]))
            return
        self.assertIn(ended.code, (0, 4, 5), ended)
        # The server saw no request whose in_flight record is not in the ledger.
        ledger = (
            (self.folder / "run" / "ledger.jsonl").read_bytes() if "ledger.jsonl" in self.files() else b""
        )
        records = [json.loads(line) for line in ledger.split(b"\n")[:-1]]
        in_flight = [record["operation_id"] for record in records if record["state"] == "in_flight"]
        self.assertLessEqual(sent, len(in_flight))
        for number, request in enumerate(self.server.requests, 1):
            self.assertEqual(self.files()[f"{number}-request.json"], request.body)
        # Nothing is half-written under a final name, and nothing temporary is left but a reply that is named.
        self.assertTrue(ledger.endswith(b"\n") or not ledger)
        left = [name for name in self.files() if name.endswith(".part")]
        if call == "rename" and ended.code == 5:
            self.assertEqual(left, [f".{sent}-response.json.part"])
            self.assertIn(left[0], ended.err)
        else:
            self.assertEqual(left, [])
        # The inspection comes to the same end; after the run's last record, a missing file is a fault.
        closed = bool(records) and records[-1]["operation_id"] == "run" and len(records) > 1
        inspected = self.inspect()
        self.assertNotIn("Traceback", inspected.err)
        if closed and not self.files().keys() >= {"report.html", "SHA256SUMS"}:
            self.assertEqual(inspected.code, 1, inspected)
        else:
            self.assertEqual(inspected.code, ended.code, inspected)
        # A run that was closed as accepted is accepted, and says which of its last files are missing.
        if closed and records[-1]["state"] == "confirmed":
            self.assertEqual(ended.code, 0, ended)
            self.assertIn("accepted: 3 rows", ended.out)
            for name in {"report.html", "SHA256SUMS"} - self.files().keys():
                self.assertIn(name, ended.err)
                self.assertIn(name, inspected.err)


class CheckpointFaultTest(FaultTestCase):
    def check_nothing_written(self, ended, call, nth, code=2):
        if call == "link":  # a folder may have no links: the file is created in its place
            self.assertEqual((ended.code, ended.err), (0, ""), ended)
            self.assertEqual(set(self.names()) & {"work", "result.json"}, set(self.names()) - KEPT)
            self.check_no_leftovers()
            return
        self.assertEqual(ended.code, code, ended)
        self.assertEqual(set(self.names()) - {"response.json"}, {"precious"})

    def check_nothing_prepared(self, ended, call, nth):
        """The folder comes first: it is made, opened, and flushed in the one that it stands in."""
        is_of_the_folder = nth == 1 and call in ("mkdir", "open", "fsync")
        self.check_nothing_written(ended, call, nth, code=3 if is_of_the_folder else 2)

    def test_prepare_survives_a_fault_at_every_call(self):
        def flow():
            return checkpoint("prepare", "--out", self.path("work"))

        calls = {"mkdir": 1, "open": 4, "write": 2, "fsync": 4, "link": 2, "unlink": 2}
        self.try_all(flow, self.check_nothing_prepared, calls)

    def test_extract_survives_a_fault_at_every_call(self):
        response = self.put("response.json", json.dumps(ANSWERED))

        def flow():
            return checkpoint("extract", response, "-o", self.path("result.json"))

        self.try_all(
            flow, self.check_nothing_written, {"open": 2, "write": 1, "fsync": 2, "link": 1, "unlink": 1}
        )

    def test_prepare_where_there_are_no_hard_links_survives_too(self):
        def no_link(*_):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        def flow():
            with mock.patch.object(os, "link", no_link):
                return checkpoint("prepare", "--out", self.path("work"))

        calls = {"mkdir": 1, "open": 6, "write": 4, "fsync": 6, "unlink": 2}
        self.try_all(flow, self.check_nothing_prepared, calls)


class ShortWriteTest(RunTestCase):
    def test_write_that_takes_only_a_part_is_gone_on_with(self):
        real = os.write
        with mock.patch.object(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:7])):
            ended = self.live(self.serve(*GOOD_RUN))
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(self.inspect().code, 0)

    def test_disk_that_fills_up_for_good_leaves_what_happened(self):
        # From the k-th write on every one fails, as on a full disk.
        for nth in range(1, 25):
            with self.subTest(nth):
                made = 0
                real = os.write

                def write(descriptor, data, nth=nth, real=real):
                    nonlocal made
                    made += 1
                    if made >= nth:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    return real(descriptor, data)

                out = f"run-{nth}"
                server = self.serve(*GOOD_RUN)
                with mock.patch.object(os, "write", write):
                    ended = handoff("--live", "--endpoint", server.url, "--out", self.path(out), key=KEY)
                self.assertIn(ended.code, (4, 5) if nth < 23 else (0,), ended)  # the last two files
                self.assertRegex(ended.err, THREE_PARTS if nth < 23 else "missing: SHA256SUMS")
                inspected = self.inspect(out)
                states = self.states(out).values()
                closed = any(state[-1] != "planned" for state in [self.states(out).get("run", ["planned"])])
                self.assertEqual(inspected.code, 1 if closed else ended.code, (inspected, ended))
                self.assertLessEqual(len(server.requests), sum("in_flight" in state for state in states))


class RecordedFaultTest(RunTestCase):
    def test_line_that_fails_is_taken_back(self):
        recorder = run_handoff.Recorder(
            self.path("run"),
            run_handoff.Key(KEY),
            lambda step, data: run_handoff.Outcome(),
            mock.Mock(interrupted=False),
        )
        self.addCleanup(os.close, recorder._ledger)
        recorder.record("run", "planned")
        before = self.files()["ledger.jsonl"]
        real = os.write

        def write(descriptor, data):
            real(descriptor, bytes(data)[:9])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with mock.patch.object(os, "write", write), self.assertRaises(run_handoff.EvidenceError):
            recorder.record("run", "failed")
        self.assertEqual(self.files()["ledger.jsonl"], before)
        recorder.record("run", "failed")
        self.assertEqual([record["state"] for record in self.ledger()], ["planned", "failed"])
        first = self.files()["ledger.jsonl"].partition(b"\n")[0]
        prev = [record["prev_sha256"] for record in self.ledger()]
        self.assertEqual(prev, ["0" * 64, checkpoint_demo.digest_bytes(first)])
