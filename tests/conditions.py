"""Conditions of other people's machines: calls that fail by errno, proxies, other versions of the scripts."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import json
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import sys
import time
import types
from unittest import mock

from tests.support import CALLED, ENDED, ROOT, Ended, RunTestCase, make_error, respond

SCRIPTS = ("checkpoint_demo.py", "run_handoff.py")
SENDER, RECEIVER = "anthropic/claude-fable-5.2", "anthropic/claude-opus-5.5"
SENDER_REPLIES = (respond(CALLED), respond(ENDED))
FIRST, THIRD = "sender-tool-request", "receiver-handoff"


@contextlib.contextmanager
def failing(name, code, is_due=lambda *_: True, module=os):
    """Let a function fail with an errno where is_due(its arguments) holds; yields the calls that failed."""
    real, failed = getattr(module, name), []

    def replaced(*arguments, **options):
        if is_due(*arguments):
            failed.append(arguments)
            raise make_error(code)
        return real(*arguments, **options)

    with mock.patch.object(module, name, replaced):
        yield failed


@contextlib.contextmanager
def failing_renames(code, is_due):
    """Let every rename fail whose two paths is_due accepts, by whichever function it is done."""
    with failing("rename", code, is_due) as failed, failing("replace", code, is_due) as replaced:
        yield failed, replaced


def is_folder(descriptor, *_):
    """Return whether a descriptor is that of a folder."""
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def names_file(name):
    """Return a test of a call's arguments: does a path among them end with a name, or its temporary one?"""

    def is_due(*arguments):
        paths = [
            os.path.basename(os.fspath(path)) for path in arguments if isinstance(path, (str, os.PathLike))
        ]
        return any(name in path for path in paths)

    return is_due


@contextlib.contextmanager
def full_flush(code=None):
    """Make this a macOS whose F_FULLFSYNC fails with an errno (None: works); yields its calls."""
    calls = []

    def control(descriptor, command, *_):
        calls.append((descriptor, command))
        if code is not None:
            raise make_error(code)
        return 0

    importlib.import_module("urllib.request")  # which would look for macOS's own modules
    fake = types.SimpleNamespace(F_FULLFSYNC=51, fcntl=control)
    with mock.patch.object(sys, "platform", "darwin"), mock.patch.dict(sys.modules, {"fcntl": fake}):
        yield calls


@contextlib.contextmanager
def counted(name):
    """Yield the list of the calls of an os function, each with its arguments."""
    real, calls = getattr(os, name), []

    def replaced(*arguments, **options):
        calls.append(arguments)
        return real(*arguments, **options)

    with mock.patch.object(os, name, replaced):
        yield calls


def start_with(switches, script, *arguments, environment=None, folder=ROOT, **options):
    """Run a script of a folder with switches of the interpreter, and return how it Ended."""
    given = {"PATH": os.environ.get("PATH", ""), "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
    ended = subprocess.run(
        [sys.executable, *switches, os.path.join(str(folder), script), *arguments],
        env=given,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
        **options,
    )
    return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


# --- Servers -----------------------------------------------------------------


def find_closed_port():
    """Return a port of 127.0.0.1 at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def send_then_reset(answer):
    """Return an entry that sends an answer, lets it arrive, and resets the connection."""

    def entry(connection, request):
        connection.sendall(answer)
        time.sleep(0.3)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return entry


def send_after(seconds, answer):
    """Return an entry that sends an answer after some seconds."""

    def entry(connection, request):
        time.sleep(seconds)
        connection.sendall(answer)

    return entry


def build_reply(status, headers, body):
    """Return the bytes of an HTTP reply with exactly these headers, a list of (name, value)."""
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.1 {status} Invented\r\n{head}\r\n".encode("latin-1") + body


class ConditionsTestCase(RunTestCase):
    """A test of live runs whose first or third request meets something out of the ordinary."""

    def run_first(self, entry, *options, out="run", **settings):
        """Do a live run whose first request gets this entry; return how it Ended."""
        self.server = self.serve(entry)
        return self.live(self.server, *options, out=out, **settings)

    def run_third(self, entry, *options, out="run", **settings):
        """Do a live run whose third request gets this entry; return how it Ended."""
        self.server = self.serve(*SENDER_REPLIES, entry)
        return self.live(self.server, *options, out=out, **settings)

    def last(self, operation_id, out="run"):
        """Return the last record of an operation."""
        return [record for record in self.ledger(out) if record["operation_id"] == operation_id][-1]

    def report(self, out="run"):
        """Return a run's report as text."""
        return self.files(out)["report.html"].decode()

    def check_nowhere(self, secret, ended, out=None):
        """A secret is in no output of a command and in no file below the test's folder."""
        self.assertNotIn(secret, ended.out + ended.err)
        for path in self.folder.rglob("*"):
            if path.is_file():
                self.assertNotIn(secret.encode(), path.read_bytes(), path.name)


# --- Other versions of the scripts, and of a run's folder ---------------------


def read_version():
    """Return the version that the script names in its one constant."""
    source = "".join((ROOT / script).read_text(encoding="utf-8") for script in SCRIPTS)
    found = re.findall(r'^VERSION = "([^"]+)"$', source, re.MULTILINE)
    if len(found) != 1:
        raise AssertionError(f"observed {len(found)} constants VERSION, expected 1")
    return found[0]


PRICE_ADDED = (r'("anthropic/claude-fable-5\.2": \(8, 40\),)', r'"invented-model": (1, 2),\n    \1')
PRICE_CHANGED = (r"\(8, 40\)", "(9, 45)")
STYLE_CHANGED = (r"max-width: 72rem", "max-width: 73rem")
VERSION_CHANGED = (r'(?m)^VERSION = "[^"]+"$', 'VERSION = "7.3"')


def copy_scripts(folder, *changes):
    """Copy both scripts into a folder, which is made, each (pattern, replacement) made in one of them."""
    os.mkdir(folder)
    sources = {script: (ROOT / script).read_text(encoding="utf-8") for script in SCRIPTS}
    for pattern, replacement in changes:
        if not any(re.search(pattern, source) for source in sources.values()):
            raise AssertionError(f"neither script holds {pattern}")
        sources = {script: re.sub(pattern, replacement, source) for script, source in sources.items()}
    for script, source in sources.items():
        with open(os.path.join(folder, script), "w", encoding="utf-8", newline="\n") as file:
            file.write(source)


def write_sums(folder):
    """Write SHA256SUMS anew where it was there, with the same names."""
    path = os.path.join(folder, "SHA256SUMS")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            names = [line[66:] for line in file.read().splitlines()]
        digests = [hashlib.sha256(read_bytes(os.path.join(folder, name))).hexdigest() for name in names]
        write_bytes(path, "".join(f"{digest}  {name}\n" for digest, name in zip(digests, names)).encode())


def rewrite_ledger(folder, change):
    """Let change(records) alter a ledger's records, and put the chain of digests and SHA256SUMS right."""
    path = os.path.join(folder, "ledger.jsonl")
    records = [json.loads(line) for line in read_bytes(path).split(b"\n")[:-1]]
    change(records)
    lines, prev_sha256 = [], "0" * 64
    for record in records:
        line = json.dumps({**record, "prev_sha256": prev_sha256}, separators=(",", ":")).encode()
        prev_sha256 = hashlib.sha256(line).hexdigest()
        lines.append(line + b"\n")
    write_bytes(path, b"".join(lines))
    write_sums(folder)


def read_bytes(path):
    """Return a file's bytes."""
    with open(path, "rb") as file:
        return file.read()


def write_bytes(path, data):
    """Write a file's bytes."""
    with open(path, "wb") as file:
        file.write(data)


def copy_run(source, target):
    """Copy a run's folder."""
    shutil.copytree(source, target)


WRITE_ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EACCES")}
