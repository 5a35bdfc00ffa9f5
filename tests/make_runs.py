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

import checkpoint_demo
from tests.conditions import SENDER_REPLIES, read_version
from tests.support import (
    ANSWER,
    ANSWERED,
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
CALLS = [{"id": "read_stock_0", "type": "function", "function": {"name": "read_stock", "arguments": "{}"}}]
CHAT_REPLIES = [
    {
        "id": "chatcmpl_invented",
        "model": "kimi-k3",
        "choices": [{"index": 0, "message": {"role": "assistant", **said}, "finish_reason": stop}],
        "usage": {"prompt_tokens": 127, "completion_tokens": 30, "total_tokens": 157},
    }
    for said, stop in (
        ({"content": "", "reasoning_content": "I read the stock.", "tool_calls": CALLS}, "tool_calls"),
        ({"content": "The stock was read."}, "stop"),
    )
]
GEMINI_REPLY = {
    "candidates": [
        {
            "content": {"role": "model", "parts": [{"text": ANSWER, "thoughtSignature": "c2lnbmVk"}]},
            "finishReason": "STOP",
        }
    ],
    "usageMetadata": {"promptTokenCount": 300, "candidatesTokenCount": 60, "totalTokenCount": 360},
    "modelVersion": "gemini-3.5-flash",
}
SESSION_REPLY = message([text("The amount is 47.50 EUR.")], model="anthropic/claude-opus-5.5")
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
            self.live("receiver-only", 0, respond(ANSWERED), options=("--receiver-only",))
            session = os.path.join(folder, "session.json")
            Path(session).write_text(checkpoint_demo.SESSION_TEXT, encoding="utf-8")
            self.live("session", 0, respond(SESSION_REPLY), options=("--session", session))
            self.live("session-fresh", 0, respond(SESSION_REPLY), options=("--session", session, "--fresh"))
            receiver = ScriptedServer(self, respond(GEMINI_REPLY))
            elsewhere = ("--receiver-endpoint", f"{receiver.url}/{{model}}", "--receiver", "gemini-3.5-flash")
            chat = ("--sender-api", "chat", "--sender", "kimi-k3", "--receiver-api", "gemini")
            replies = map(respond, CHAT_REPLIES)
            self.live("chat-to-gemini", 0, *replies, options=(*chat, *elsewhere))
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
