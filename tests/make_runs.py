"""Write a run of each kind into tests/cases/runs, named for the version that wrote it.

    $ python3 -m tests.make_runs
    1.0-accepted
    ...

It is started once for each version that is released, before it is released. What lies there is never
written again: these folders show that evidence outlives the version that wrote it.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import unittest
from pathlib import Path

from tests.conditions import SENDER_REPLIES, read_version
from tests.support import (
    CASES,
    GOOD_RUN,
    KEY,
    ScriptedServer,
    handoff,
    message,
    respond,
    start_script,
    text,
)

RUNS = CASES / "runs"
SOURCE = "sku,available,target\nA-1,7,10\nA-2,15,12\n"
OWN_ANSWER = '{"rows":[{"sku":"A-1","shortage":3},{"sku":"A-2","shortage":0}]}'
LIMIT = {"type": "error", "error": {"type": "rate_limit_error", "message": "Not now."}}


class MakeRuns(unittest.TestCase):
    """It is a test case for the sake of its servers alone, which are stopped by cleanups."""

    def runTest(self):
        """Write every run that is not there."""
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "source.csv")
            Path(source).write_text(SOURCE, encoding="utf-8")
            self.live("accepted", 0, *GOOD_RUN)
            self.live("rejected", 1, *SENDER_REPLIES, respond(message([text('{"rows":[]}')])))
            self.live("failed", 4, respond(LIMIT, 429, retry_after="30"))
            self.live("unclear", 5, *SENDER_REPLIES, respond(b"<html>Bad gateway</html>", 502))
            own = (*SENDER_REPLIES, respond(message([text(OWN_ANSWER)])))
            self.live("source", 0, *own, options=("--source", source))
            self.assertEqual(handoff("--rehearse", "--out", self.name("rehearsed")).code, 0)
            self.kill()

    def name(self, kind):
        """Return the path of a run's folder, which must not exist yet."""
        path = RUNS / f"{read_version()}-{kind}"
        self.assertFalse(path.exists(), f"{path.name} is there already, and is kept as it is")
        print(path.name)
        return str(path)

    def live(self, kind, code, *script, options=()):
        """Do a live run against a scripted server."""
        server = ScriptedServer(self, *script)
        ended = handoff("--live", "--endpoint", server.url, "--out", self.name(kind), *options)
        self.assertEqual(ended.code, code, ended)

    def kill(self):
        """Kill a live run while its second request is in flight."""
        server = ScriptedServer(self, SENDER_REPLIES[0], self.die)
        options = ("--live", "--endpoint", server.url, "--out", self.name("killed"))
        self.process = start_script("run_handoff.py", *options, environment={"OFOX_API_KEY": KEY})
        self.process.communicate(timeout=60)
        self.assertEqual(self.process.returncode, -signal.SIGKILL)

    def die(self, connection, request):
        """End the run that has sent this request."""
        self.process.kill()


if __name__ == "__main__":
    RUNS.mkdir(exist_ok=True)
    sys.exit(not unittest.TextTestRunner(verbosity=0).run(MakeRuns()).wasSuccessful())
