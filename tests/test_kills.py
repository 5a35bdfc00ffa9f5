"""A kill at every point: SIGKILL before and after each system call that a flow makes.

SHOW_TABLES=1 python3 -m unittest tests.test_kills prints how many points were tried.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

import run_handoff
from tests.support import ANSWERED, GOOD_RUN, KEY, ROOT, RunTestCase

OPERATIONS = [step.operation_id for step in run_handoff.STEPS]


@unittest.skipUnless(hasattr(os, "fork"), "needs fork")
class KillTestCase(RunTestCase):
    """A flow that is killed at every call, in children of tests/doomed.py."""

    def setUp(self):
        super().setUp()
        self.doomed = subprocess.Popen(
            [sys.executable, "-m", "tests.doomed"],
            cwd=ROOT,
            env={"OFOX_API_KEY": KEY, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.doomed.wait)
        self.addCleanup(self.doomed.stdout.close)
        self.addCleanup(self.doomed.stdin.close)

    def kill(self, script, call, nth, when, *arguments):
        """Run a flow that dies at one point; return whether it did, and not before or after."""
        order = {"script": script, "call": call, "nth": nth, "when": when, "arguments": arguments}
        self.doomed.stdin.write(f"{json.dumps(order)}\n")
        self.doomed.stdin.flush()
        status = int(self.doomed.stdout.readline())
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    def try_all(self, kill, check, expected_calls):
        """kill(call, nth, when) at every point; check(point) judges what is left."""
        tried = dict.fromkeys(expected_calls, 0)
        for call, count in expected_calls.items():
            for nth in range(1, count + 1):
                for when in ("before", "after"):
                    with self.subTest(call=call, nth=nth, when=when):
                        self.assertTrue(kill(call, nth, when), "the child was not killed there")
                        check(f"{when} {call} {nth}")
                        tried[call] += 1
                    self.clean()
            with self.subTest("no call is left out", call=call):
                self.assertFalse(kill(call, count + 1, "before"), "there is a further call")
                self.clean()
        self.assertEqual(tried, {call: 2 * count for call, count in expected_calls.items()})
        if os.environ.get("SHOW_TABLES"):
            rows = [
                f"  {call:8} {count // 2:5} calls {count:6} kills survived" for call, count in tried.items()
            ]
            print("\n".join([f"\n{self.id()}", *rows]), file=sys.stderr)

    def clean(self):
        for name in self.names():
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            elif name != "response.json":
                path.unlink()


class RunKillTest(KillTestCase):
    def test_run_that_is_killed_anywhere_tells_what_is_open(self):
        def kill(call, nth, when):
            self.server = self.serve(*GOOD_RUN)
            arguments = ("--live", "--endpoint", self.server.url, "--out", self.path("run"))
            killed = self.kill("run_handoff", call, nth, when, *arguments)
            self.server.stop()
            return killed

        calls = {"mkdir": 1, "open": 35, "write": 24, "fsync": 37, "rename": 11}
        self.try_all(kill, self.check, calls)

    def check(self, point):
        sent = len(self.server.requests)
        if "run" not in self.names():
            self.assertEqual((point, sent), ("before mkdir 1", 0))
            return
        inspected = self.inspect("run", "--json")
        self.assertNotIn("Traceback", inspected.err)
        report = json.loads(inspected.out)
        # What the ledger says of each request is what the server saw, or it says that it does not know.
        states = [report["requests"][operation] for operation in OPERATIONS]
        for number, state in enumerate(states, 1):
            seen = number <= sent
            self.assertIn(
                state, ("confirmed", "in_flight") if seen else ("not planned", "planned", "in_flight")
            )
        closed = report["records"][-1:] and (
            report["records"][-1]["operation_id"],
            len(report["records"]),
        ) == ("run", 13)
        sums = "SHA256SUMS" in self.files()
        if closed:
            self.assertEqual((report["exit_code"], sums), (0, True) if sums else (1, False), report)
        else:
            self.assertEqual(report["exit_code"], 5 if "in_flight" in states else 4, report)
            self.assertEqual(report["findings"], [])
        self.check_files(sent)
        self.check_next_step(report["exit_code"])
        again = self.live(self.server)
        self.assertEqual(again.code, 3, again)
        self.assertEqual(len(self.server.requests), sent)

    def check_files(self, sent):
        """Nothing is half-written under a final name."""
        files = self.files()
        for number, request in enumerate(self.server.requests, 1):
            self.assertEqual(files[f"{number}-request.json"], request.body)
        for number in range(1, 4):
            reply = files.get(f"{number}-response.json")
            if reply is not None:
                self.assertTrue(GOOD_RUN[number - 1].endswith(reply))
        for name in set(files) - {"ledger.jsonl", "SHA256SUMS", "handoff.txt", "report.html"}:
            if not name.endswith(".part"):
                json.loads(files[name])

    def check_next_step(self, code):
        ended = self.inspect()
        words = {
            0: "",
            1: "next: keep the folder as it is",
            4: "next: mend the cause",
            5: "next: look it up with the provider",
        }
        self.assertEqual(ended.code, code)
        self.assertIn(words[code], ended.err)


class CheckpointKillTest(KillTestCase):
    def test_prepare_that_is_killed_anywhere_leaves_whole_files(self):
        def kill(call, nth, when):
            return self.kill("checkpoint_demo", call, nth, when, "prepare", "--out", self.path("work"))

        def check(point):
            names = os.listdir(self.path("work")) if "work" in self.names() else []
            for name in names:
                data = (self.folder / "work" / name).read_bytes()
                if name == "checkpoint.json":
                    json.loads(data)
                elif name == "handoff.txt":
                    self.assertTrue(data.endswith(b'"task_id":"synthetic-stock-20261110"}\n'))
                else:
                    self.assertTrue(name.endswith(".part"), name)

        self.try_all(kill, check, {"mkdir": 1, "open": 4, "write": 2, "fsync": 4, "link": 2, "unlink": 2})

    def test_extract_that_is_killed_anywhere_leaves_a_whole_file_or_none(self):
        response = self.put("response.json", json.dumps(ANSWERED))

        def kill(call, nth, when):
            return self.kill(
                "checkpoint_demo", call, nth, when, "extract", response, "-o", self.path("result.json")
            )

        def check(point):
            if "result.json" in self.names():
                self.assertEqual(len(json.loads((self.folder / "result.json").read_bytes())["rows"]), 3)

        self.try_all(kill, check, {"open": 2, "write": 1, "fsync": 2, "link": 1, "unlink": 1})
