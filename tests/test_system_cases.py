"""One condition of the machine a case: the fault is injected or the environment set, and the command run."""

from __future__ import annotations

import errno
import json
import os
from unittest import mock

from tests.conditions import ConditionsTestCase, counted, failing, full_flush, start_with
from tests.support import ANSWERED, CASES, checkpoint, handoff


def read_cases():
    """Return {name: case}."""
    lines = (CASES / "system" / "expected.jsonl").read_text(encoding="utf-8").split("\n")
    return {case["name"]: case for case in map(json.loads, filter(None, lines))}


class SystemCasesTest(ConditionsTestCase):
    def test_every_case_ends_as_it_says(self):
        cases = read_cases()
        self.assertGreaterEqual(len(cases), 4)
        for name, case in cases.items():
            with self.subTest(name):
                self.assertIn(name, self.JUDGES)
                self.JUDGES[name](self, case)

    def check_full_flush(self, case):
        code = getattr(errno, case["fault"]["errno"])
        with full_flush(code) as calls, counted("fsync") as flushed:
            prepared = checkpoint("prepare", "--out", self.path("prepared"))
            rehearsed = handoff("--rehearse", "--out", self.path("rehearsed"))
        self.assertEqual((prepared.code, rehearsed.code), (0, 0), (prepared, rehearsed))
        self.assertTrue(calls)
        # Each descriptor whose full flush was refused is flushed plainly.
        self.assertEqual(len(flushed), len(calls))
        self.assertEqual(handoff("--inspect", self.path("rehearsed")).code, 0)
        with full_flush(code), failing("fsync", errno.EIO):
            ended = checkpoint("prepare", "--out", self.path("unflushed"))
        self.assertIn(ended.code, (2, 3), ended)
        self.assertNotIn("unflushed", self.names())

    def check_hard_links(self, case):
        response = self.put("response.json", json.dumps(ANSWERED))
        for word in case["fault"]["errno"]:
            code = getattr(errno, word)
            folder, result = self.path(f"prepared-{word}"), self.path(f"result-{word}.json")
            with failing("link", code) as failed:
                self.assertEqual(checkpoint("prepare", "--out", folder).code, 0)
                self.assertEqual(checkpoint("extract", response, "-o", result).code, 0)
            self.assertEqual(len(failed), 3)
            self.assertEqual(sorted(os.listdir(folder)), ["checkpoint.json", "handoff.txt"])
            before = [(entry.name, entry.read_bytes()) for entry in sorted(self.folder.glob("*.json"))]
            with failing("link", code):
                self.assertEqual(checkpoint("prepare", "--out", folder).code, 3)
                self.assertEqual(checkpoint("extract", response, "-o", result).code, 3)
            after = [(entry.name, entry.read_bytes()) for entry in sorted(self.folder.glob("*.json"))]
            self.assertEqual(after, before)

    def check_proxy(self, case):
        endpoint = case["command"].split("--endpoint ")[1].split()[0]
        with mock.patch.dict(os.environ, case["environment"]):
            options = ("--endpoint", endpoint, "--key-env", "OFOX_API_KEY", "--out", self.path("run"))
            ended = handoff("--live", *options)
        self.assertEqual(ended.code, 3, ended)
        self.assertNotIn("run", self.names())
        self.assertIn("https_proxy", ended.err)
        self.check_nowhere("PROXYPASS-51", ended)

    def check_safe_path(self, case):
        """Before 3.11 the variable has no meaning; -I has the same one everywhere."""
        ways = {"variable": ([], case["environment"]), "isolated": (["-I", "-B"], {})}
        for way, (switches, environment) in ways.items():
            with self.subTest(way):
                run = ["--rehearse", "--out", self.path(f"run-{way}")]
                for arguments in ([], run, ["--inspect", self.path(f"run-{way}")]):
                    ended = start_with(switches, "run_handoff.py", *arguments, environment=environment)
                    self.assertEqual(ended.code, 0, ended)
                    self.assertNotIn("Traceback", ended.err)

    JUDGES = {
        "001-full-fsync-not-supported": check_full_flush,
        "003-no-hard-links-other-errno": check_hard_links,
        "005-proxy-url-with-one-slash": check_proxy,
        "007-safe-path": check_safe_path,
    }
