"""What several test files need: running a command in process, temporary folders, a scripted server."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import errno
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import tracemalloc
import unittest
from pathlib import Path
from unittest import mock

import checkpoint_demo
import run_handoff

ROOT = Path(__file__).resolve().parent.parent
CASES = Path(__file__).resolve().parent / "cases"
KEY = "sk-invented-0123456789abcdef"
ANSWER = (
    '{"rows":[{"sku":"DEMO-001","shortage":3},'
    '{"sku":"DEMO-002","shortage":0},'
    '{"sku":"DEMO-003","shortage":4}]}'
)


def count_rounds(usual):
    """Return how many rounds a test of random inputs has: TEST_ROUNDS=10 gives ten times the usual ones."""
    return int(usual * float(os.environ.get("TEST_ROUNDS", "1")))


class Ended:
    """How a command ended: its exit code, standard output and standard error."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def run_in_process(main, *arguments, stdin=b"", environment=None):
    """Run a script's main with its streams captured, and return how it Ended."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))))
        stack.enter_context(mock.patch.dict(os.environ, environment or {}))
        code = main(list(arguments))
    return Ended(code, out.getvalue(), err.getvalue())


def checkpoint(*arguments, stdin=b""):
    """Run a command of checkpoint_demo.py in process."""
    return run_in_process(checkpoint_demo.main, *arguments, stdin=stdin)


def handoff(*arguments, key=KEY):
    """Run run_handoff.py in process, with an invented key."""
    return run_in_process(run_handoff.main, *arguments, environment={run_handoff.KEY_ENVIRONMENT: key})


def measure_peak_bytes(function, *arguments):
    """Return the most memory that Python held for a call, beyond what it held before."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def count_steps(function, *arguments):
    """Return how many calls a function makes, those of built-in functions among them.

    It is the same in every run, where a time is not; what one built-in call takes is seen by the benchmark.
    """
    steps = 0

    def note(_frame, event, _argument):
        nonlocal steps
        steps += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return steps


def start_script(script, *arguments, **options):
    """Start a script as a process of its own, with this interpreter and a plain environment."""
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.update(options.pop("environment", {}))
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **options}
    return subprocess.Popen([sys.executable, str(ROOT / script), *arguments], env=environment, **options)


def run_script(script, *arguments, **options):
    """Run a script as a process of its own, and return how it Ended."""
    with start_script(script, *arguments, **options) as process:
        out, err = process.communicate(timeout=60)
    return Ended(process.returncode, (out or b"").decode(), (err or b"").decode())


def run_all_at_once(function, cases, workers=None):
    """Call function(*case) for each of {name: case} in threads, and return {name: what it returned}."""
    with concurrent.futures.ThreadPoolExecutor(workers or len(cases)) as pool:
        futures = {name: pool.submit(function, *case) for name, case in cases.items()}
        return {name: future.result() for name, future in futures.items()}


def build_plan(rows=None, task=checkpoint_demo.DEMO, **facts):
    """Return the Plan of a live run; facts differ from the usual ones where they are given."""
    usual = {
        "version": checkpoint_demo.VERSION,
        "format": run_handoff.FORMAT,
        "task": task.name,
        "task_sha256": "",
        "endpoint": run_handoff.ENDPOINT,
        "sender": run_handoff.WIRES["messages"].sender,
        "receiver": checkpoint_demo.RECEIVER_MODEL,
        "max_tokens": 4_096,
        "timeout_seconds": 180,
        "rehearsal": False,
    }
    facts = {**usual, **facts}
    prices = run_handoff.list_prices(facts["sender"], facts["receiver"])
    return run_handoff.Plan(task, rows or task.source, {"prices": prices, **facts})


class FolderTestCase(unittest.TestCase):
    """A test with a folder of its own, removed afterwards."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name).resolve()

    def path(self, name):
        """Return the path of a name in the test's folder, as text."""
        return str(self.folder / name)

    def put(self, name, data):
        """Write a file into the test's folder, and return its path as text."""
        data = data.encode() if isinstance(data, str) else data
        (self.folder / name).write_bytes(data)
        return self.path(name)

    def names(self):
        """Return the sorted names in the test's folder."""
        return sorted(entry.name for entry in self.folder.iterdir())

    def read_object(self, ended, code):
        """Return the one object that a command has printed; it says how the command ended."""
        self.assertEqual(ended.code, code, ended)
        shown = json.loads(ended.out)  # one value and nothing beside it
        self.assertIsInstance(shown, dict)
        self.assertEqual(shown["exit_code"], code)
        self.assertIsInstance(shown["verdict"], str)
        self.assertNotIn("\n", shown["verdict"])
        return shown

    def check_refusal(self, ended, code):
        """Check that a command has printed one object, which says what is refused, why, and what is next."""
        shown = self.read_object(ended, code)
        for word in ("what", "why", "next"):
            self.assertTrue(shown[word] and isinstance(shown[word], str), word)
        return shown


# --- Replies of the Messages API ---------------------------------------------


def message(content, stop_reason="end_turn", usage=(467, 27), model="anthropic/claude-fable-5.2", **fields):
    """Return a whole message; usage is (input tokens, output tokens)."""
    return {
        "id": "msg_invented",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": usage[0], "output_tokens": usage[1]},
        **fields,
    }


def tool_call(call_id="toolu_invented", name="read_stock", arguments=None):
    """Return a tool_use block."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": {} if arguments is None else arguments}


def text(words):
    """Return a text block."""
    return {"type": "text", "text": words}


THINKING = {"type": "thinking", "thinking": "", "signature": "c2lnbmVk"}
CALLED = message([THINKING, tool_call()], "tool_use")
ENDED = message([text("The stock was read.")], usage=(578, 235))
ANSWERED = message([text(ANSWER)], usage=(457, 67), model="anthropic/claude-opus-5.5")


def respond(body, status=200, **headers):
    """Return the bytes of an HTTP reply that announces its length; a body that is no bytes becomes JSON."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"content-type": "application/json", "content-length": len(body), "request-id": "req_invented"}
    fields.update({name.replace("_", "-"): value for name, value in headers.items()})
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value is not None)
    return f"HTTP/1.1 {status} Invented\r\n{head}\r\n".encode() + body


def chunked(*pieces, end=b"0\r\n\r\n"):
    """Return the bytes of an HTTP reply whose body comes in chunks."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + end


def drip(released, head, piece):
    """Return an entry of a ScriptedServer that sends a piece again and again, until an event is set."""

    def entry(connection, request):
        connection.sendall(head)
        while not released.wait(0.05):
            connection.sendall(piece)

    return entry


def api_error(kind):
    """Return an error body of the Messages API."""
    return {"type": "error", "error": {"type": kind, "message": "Not now."}, "request_id": "req_invented"}


GOOD_RUN = (respond(CALLED), respond(ENDED), respond(ANSWERED))


# --- A server that does what it is told --------------------------------------


class Received:
    """One HTTP request as a server saw it; header names are in lower case."""

    def __init__(self, line, headers, body):
        self.line, self.headers, self.body = line, headers, body


class ScriptedServer:
    """Serves on loopback: the n-th connection gets the n-th entry of the script.

    An entry is the bytes to send once the whole request was read, or a function that is called with
    the connection and the request. A connection beyond the script is counted and closed.
    """

    def __init__(self, test, *script, wrap=None):
        self.requests = []
        self.connections = 0
        self._script = script
        self._wrap = wrap or (lambda connection: connection)
        self._stopped = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1/messages"
        self.released = threading.Event()  # set when the test is over: what waits may go
        self._thread = threading.Thread(target=self._accept, daemon=True)
        test.addCleanup(self.stop)
        self._thread.start()

    def stop(self):
        """Stop accepting and let everything that waits go."""
        self._stopped = True
        self.released.set()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        self._thread.join(5)
        self._listener.close()

    def _accept(self):
        while True:
            connection, _ = self._listener.accept()
            if self._stopped:
                connection.close()
                return
            entry = self._script[self.connections] if self.connections < len(self._script) else b""
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection, entry), daemon=True).start()

    def _serve(self, connection, entry):
        with contextlib.suppress(OSError, ValueError), connection:
            connection = self._wrap(connection)
            received = self._read_request(connection)
            if received is not None:
                self.requests.append(received)
                if callable(entry):
                    entry(connection, received)
                else:
                    connection.sendall(entry)

    @staticmethod
    def _read_request(connection):
        stream = connection.makefile("rb")
        line = stream.readline().decode("latin-1").rstrip()
        if not line:
            return None
        headers = {}
        while (field := stream.readline().decode("latin-1").rstrip()) != "":
            name, _, value = field.partition(":")
            headers[name.strip().lower()] = value.strip()
        return Received(line, headers, stream.read(int(headers.get("content-length", 0))))


class RunTestCase(FolderTestCase):
    """A test of live runs against scripted servers."""

    def serve(self, *script, **options):
        """Start a ScriptedServer for this test."""
        return ScriptedServer(self, *script, **options)

    def live(self, server, *options, out="run", key=KEY):
        """Do a live run against a server, into the test's folder."""
        url = server if isinstance(server, str) else server.url
        return handoff("--live", "--endpoint", url, "--out", self.path(out), *options, key=key)

    def inspect(self, out="run", *options):
        """Inspect a run in the test's folder."""
        return handoff("--inspect", self.path(out), *options)

    def ledger(self, out="run"):
        """Return the records of a run's ledger."""
        lines = (self.folder / out / "ledger.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def states(self, out="run"):
        """Return {operation: [its states in order]} of a run's ledger."""
        states = {}
        for record in self.ledger(out):
            states.setdefault(record["operation_id"], []).append(record["state"])
        return states

    def files(self, out="run"):
        """Return {name: bytes} of a run's folder."""
        return {entry.name: entry.read_bytes() for entry in (self.folder / out).iterdir()}


# --- What the tests of checkpoint_demo.py share ------------------------------

STOCK = checkpoint_demo.DEMO.source


def find(document, path):
    """Return the value at a path of a parsed document."""
    for part in path:
        document = document[part]
    return document


def walk(value, path=()):
    """Yield (path, value) of a document and everything in it."""
    yield path, value
    if isinstance(value, (dict, list)):
        for part, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from walk(child, (*path, part))


def put(*path, to):
    """Return a change of a document: a value is put at a path."""

    def change(document):
        find(document, path[:-1])[path[-1]] = copy.deepcopy(to)

    return change


def drop(*path):
    """Return a change of a document: what is at a path, or in a slice of an array, is taken away."""

    def change(document):
        del find(document, path[:-1])[path[-1]]

    return change


def exchange(*path):
    """Return a change of a document: an array's item changes its place with the next one."""

    def change(document):
        items, index = find(document, path[:-1]), path[-1]
        items[index], items[index + 1] = items[index + 1], items[index]

    return change


def change_copy(document, change):
    """Return a changed copy of a document."""
    document = copy.deepcopy(document)
    change(document)
    return document


def make_error(code):
    """Return the OSError of an error number."""
    return OSError(code, os.strerror(code))


class FullStream(io.StringIO):
    """A stream of a disk that is full."""

    def write(self, _):
        raise make_error(errno.ENOSPC)


def find_free_descriptor():
    """Return the number that the next file that is opened gets."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


class CommandTestCase(FolderTestCase):
    """A test of commands of checkpoint_demo.py, in a current folder of its own."""

    script = "checkpoint_demo.py"

    def setUp(self):
        super().setUp()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)

    def assert_ended(self, ended, code, out="", err=""):
        self.assertEqual((ended.code, ended.out, ended.err), (code, out, err))

    def assert_refused(self, ended, code, what, because=None):
        """Check a refusal in three parts, with nothing on standard output."""
        if because is None:
            self.assertRegex(ended.err, r"\A.+\n  why: .+\n  next: .+\n\Z")
            because = [part.partition(": ")[2] for part in ended.err.splitlines()[1:]]
        said = f"{self.script}: {what}\n  why: {because[0]}\n  next: {because[1]}\n"
        self.assert_ended(ended, code, "", said)

    def assert_usage(self, ended, named):
        """Check a refusal of the command line that names something."""
        first, why, then = ended.err.splitlines()
        self.assertTrue(first.startswith(f"{self.script}: usage: "), first)
        self.assertIn(named, first)
        self.assertEqual(why, "  why: a command line is never guessed")
        self.assertRegex(then, rf"\A  next: see {self.script}( [a-z-]+)? --help\Z")
        self.assertEqual((ended.code, ended.out), (2, ""))

    def assert_rejected(self, ended, command, findings, source):
        """Check that a judging command rejects with these findings."""
        count = f"{len(findings)} finding{'s' if len(findings) != 1 else ''}"
        lines, verdict = "".join(f"{finding}\n" for finding in findings), f"rejected: {count}"
        if command == "extract":
            self.assert_ended(ended, 1, "", f"{lines}{verdict}, no finished answer in {source}\n")
        else:
            self.assert_ended(ended, 1, f"{verdict}\n", lines)
