"""A process that lets children of its own be killed in the middle of a flow (see test_kills.py).

Each line on standard input is a JSON object: which script to run with which arguments, and at which
call of which os function to die of SIGKILL, before or after it. The answer is the child's wait
status, a line each. What a run needs is imported here once, so that a child costs a fork.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import urllib.request

import checkpoint_demo
import run_handoff

SCRIPTS = {"checkpoint_demo": checkpoint_demo, "run_handoff": run_handoff}
NEEDED = (http.client, urllib.request)


def die_at(call, nth, when):
    """Replace an os function so that its n-th call (from 1) in the main thread is the last."""
    real, made, main = getattr(os, call), 0, threading.current_thread()

    def replaced(*arguments, **options):
        nonlocal made
        if threading.current_thread() is not main:
            return real(*arguments, **options)
        made += 1
        if (made, when) == (nth, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if (made, when) == (nth, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(os, call, replaced)


def main():
    """Serve until standard input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(nowhere, descriptor)
            die_at(order["call"], order["nth"], order["when"])
            os._exit(SCRIPTS[order["script"]].main(order["arguments"]))
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


if __name__ == "__main__":
    main()
