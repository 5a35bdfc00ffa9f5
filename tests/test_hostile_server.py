"""A server that does anything: every kind of reply, and what a whole run makes of it.

Each case is one scripted answer to the first request. The run must end in time and in bounded memory,
send nothing twice, keep its evidence, and the inspection must come to the same end.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import unittest
import zlib

import run_handoff
from run_handoff import Key, send_request
from tests.support import (
    CALLED,
    KEY,
    ROOT,
    RunTestCase,
    ScriptedServer,
    api_error,
    chunked,
    drip,
    message,
    respond,
    run_all_at_once,
    text,
    tool_call,
)

WHOLE = json.dumps(CALLED).encode()
SIZE = len(json.dumps(message([])))  # of a message with nothing in it
LIMIT_SECONDS = 2
LIMIT_BYTES = 200 * 2**20
FAILED, UNCLEAR, MISFIT = ("failed", 4), ("unclear", 5), ("confirmed", 4)


def then_reset(answer):
    """Return an entry that sends an answer and resets the connection."""

    def entry(connection, request):
        connection.sendall(answer)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    return entry


def wait_for_the_answer_then_reset(answer):
    """The same, but the answer is given time to arrive before the reset may overtake it."""

    def entry(connection, request):
        connection.sendall(answer)
        time.sleep(0.3)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return entry


# What the server sends: (entry, (state of the request, exit code of the run)).
QUICK = {
    "a misfit, the control": (respond(message([text("7")])), MISFIT),
    "a whole message, then a reset": (wait_for_the_answer_then_reset(respond(message([]))), MISFIT),
    "a reset at once": (then_reset(b""), UNCLEAR),
    "a reset in the body": (then_reset(respond(CALLED)[:-9]), UNCLEAR),
    "nothing": (b"", UNCLEAR),
    "headers only": (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n", UNCLEAR),
    "an empty body, announced": (respond(b""), UNCLEAR),
    "JSON of another shape": (respond({"ok": True}), UNCLEAR),
    "an error with 200": (respond(api_error("overloaded_error")), UNCLEAR),
    "a page with 200": (respond(b"<html>Welcome</html>", content_type="text/html"), UNCLEAR),
    "a list": (respond([]), UNCLEAR),
    "a string": (respond("message"), UNCLEAR),
    "a message in a list": (respond([CALLED]), UNCLEAR),
    "two messages": (respond(WHOLE + b"\n" + WHOLE), UNCLEAR),
    "UTF-16": (respond(WHOLE.decode().encode("utf-16")), UNCLEAR),
    "bad UTF-8": (respond(WHOLE.replace(b"toolu", b"tool\xff")), UNCLEAR),
    "a repeated key": (respond(b'{"role":"assistant",' + WHOLE[1:]), UNCLEAR),
    "NaN": (respond(WHOLE.replace(b"467", b"NaN")), UNCLEAR),
    "deep nesting": (respond(b"[" * 5_000 + b"]" * 5_000), UNCLEAR),
    "a very long number": (respond(WHOLE.replace(b"467", b"9" * 5_000)), UNCLEAR),
    "an event stream": (respond(b'event: message_start\ndata: {"type":"message_start"}\n\n'), UNCLEAR),
    "103 and nothing more": (b"HTTP/1.1 103 Early Hints\r\n\r\n", UNCLEAR),
    "201": (respond(CALLED, 201), UNCLEAR),
    "204": (respond(b"", 204), UNCLEAR),
    "206": (respond(CALLED, 206), UNCLEAR),
    "300": (respond(b"", 300), UNCLEAR),
    "304": (respond(b"", 304), UNCLEAR),
    "400": (respond(api_error("invalid_request_error"), 400), FAILED),
    "400 of another kind": (respond(api_error("api_error"), 400), FAILED),
    "401": (respond(api_error("authentication_error"), 401), FAILED),
    "402": (respond(api_error("billing_error"), 402), FAILED),
    "403 with a page": (respond(b"<html>Access denied</html>", 403), FAILED),
    "404": (respond(api_error("not_found_error"), 404), FAILED),
    "408": (respond(api_error("timeout_error"), 408), UNCLEAR),
    "409": (respond(api_error("conflict_error"), 409), UNCLEAR),
    "413 of a proxy": (respond(b"<html>413</html>", 413), FAILED),
    "429": (respond(api_error("rate_limit_error"), 429, retry_after="1"), FAILED),
    "429 without a body": (b"HTTP/1.1 429 Too Many\r\n\r\n", FAILED),
    "429 cut short": (respond(api_error("rate_limit_error"), 429)[:-9], FAILED),
    "451": (respond(b"", 451), UNCLEAR),
    "500": (respond(api_error("api_error"), 500), UNCLEAR),
    "500, asking for a retry": (respond(api_error("api_error"), 500, x_should_retry="true"), UNCLEAR),
    "501": (respond(b"", 501), UNCLEAR),
    "502 with a page": (respond(b"<html>Bad gateway</html>", 502), UNCLEAR),
    "503": (respond(b"", 503, retry_after="0"), UNCLEAR),
    "504": (respond(api_error("timeout_error"), 504), UNCLEAR),
    "520 of a proxy": (respond(b"error code: 520", 520), UNCLEAR),
    "529": (respond(api_error("overloaded_error"), 529), FAILED),
    "529 with a page": (respond(b"<html>busy</html>", 529), UNCLEAR),
    "999": (respond(CALLED, 999), UNCLEAR),
    "status 99": (b"HTTP/1.1 99 Odd\r\n\r\n", UNCLEAR),
    "a status in words": (b"HTTP/1.1 OK\r\n\r\n", UNCLEAR),
    "garbage before the status line": (b"\x00\xff\x1b[2J\r\n" + respond(CALLED), UNCLEAR),
    "another protocol": (b"SSH-2.0-OpenSSH_9.2\r\n", UNCLEAR),
    "HTTP/0.9": (WHOLE, UNCLEAR),
    "a TLS alert": (b"\x15\x03\x01\x00\x02\x02\x46", UNCLEAR),
    "100 first": (b"HTTP/1.1 100 Continue\r\n\r\n" + respond(message([])), MISFIT),
    "two lengths that agree": (respond(message([]), content_length=f"{SIZE}, {SIZE}"), MISFIT),
    "two lengths that differ": (respond(CALLED, content_length="3, 9"), UNCLEAR),
    "a length line twice": (
        respond(CALLED).replace(b"content-length", b"content-length: 1\r\ncontent-length"),
        UNCLEAR,
    ),
    "a length beyond all bounds": (respond(CALLED, content_length="9" * 400), UNCLEAR),
    "a length that promises more": (respond(CALLED, content_length=len(WHOLE) + 1), UNCLEAR),
    "no last chunk": (chunked(WHOLE, end=b""), UNCLEAR),
    "too many headers": (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 5_000 + b"\r\n", UNCLEAR),
    "a header without end": (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000, UNCLEAR),
    "gzip": (respond(gzip.compress(json.dumps(message([])).encode()), content_encoding="gzip"), MISFIT),
    "gzip, not said": (respond(gzip.compress(WHOLE)), UNCLEAR),
    "plain, gzip said": (respond(WHOLE, content_encoding="gzip"), UNCLEAR),
    "gzip cut short": (respond(gzip.compress(WHOLE)[:-3], content_encoding="gzip"), UNCLEAR),
    "gzip inside gzip": (respond(gzip.compress(gzip.compress(WHOLE)), content_encoding="gzip"), UNCLEAR),
    "deflate": (respond(zlib.compress(WHOLE), content_encoding="deflate"), UNCLEAR),
    "brotli said, plain sent": (respond(message([]), content_encoding="br"), MISFIT),
    "brotli": (respond(b"\x8b\x00\x80", content_encoding="br"), UNCLEAR),
    "terminal escapes": (respond(message([text("\x1b]0;owned\x07\x1b[31m\x9b2J")])), MISFIT),
    "right-to-left marks": (respond(message([text("\u202e\u2066abc")], "\u202etool_use")), MISFIT),
    "lone surrogates": (respond(message([text("\ud83d"), tool_call("\udc00")], "\ud83d")), MISFIT),
    "NUL": (respond(message([text("\x00"), {**tool_call(), "name": "\x00"}])), MISFIT),
    "escapes in the model's name": (respond(message([], model="\x1b[2J\u202e")), MISFIT),
    "escapes in an error": (
        respond({**api_error("x"), "error": {"type": "\x1b[2J", "message": "\x07"}}, 400),
        FAILED,
    ),
    "escapes in the request id": (respond(message([]), request_id="\x1b[2J"), MISFIT),
    "a tool with arguments": (respond(message([tool_call(arguments={"all": True})], "tool_use")), MISFIT),
    "a refusal": (respond(message([], "refusal", stop_details={"type": "refusal"})), MISFIT),
    "usage null": (respond(message([], usage=(None, None))), MISFIT),
}


class QuickServerTest(RunTestCase):
    def test_run_ends_right_whatever_the_server_does(self):
        self.assertGreater(len(QUICK), 80)
        for number, (name, (entry, (state, code))) in enumerate(QUICK.items()):
            with self.subTest(name):
                out = f"run-{number}"
                server = self.serve(entry, *[respond(CALLED)] * 3)
                ended = self.live(server, "--timeout", "9", out=out)
                self.assertEqual(
                    self.states(out)["sender-tool-request"], ["planned", "in_flight", state], ended
                )
                self.assertEqual(ended.code, code, ended)
                self.assertEqual(server.connections, 1)
                self.check_evidence(out, ended)

    def check_evidence(self, out, ended):
        self.assertRegex(ended.err, r"run_handoff\.py: (failed|unclear): .+\n  why: .+\n  next: .+\n$")
        inspected = self.inspect(out)
        self.assertEqual(inspected.code, ended.code, inspected)
        for shown in (ended.out, ended.err, inspected.out, inspected.err):
            self.assertTrue(shown.replace("\n", "").isprintable(), repr(shown))
        for name, data in self.files(out).items():
            self.assertNotIn(KEY.encode(), data, name)

    def test_redirect_reaches_nobody_else(self):
        for status in (301, 302, 303, 307, 308):
            for same_host in (False, True):
                with self.subTest(status, same_host=same_host):
                    other = self.serve(respond(CALLED))
                    location = "/v1/elsewhere" if same_host else other.url
                    server = self.serve(respond(b"", status, location=location), respond(CALLED))
                    out = f"run-{status}-{same_host}"
                    ended = self.live(server, out=out)
                    self.assertEqual((ended.code, server.connections, other.connections), (4, 1, 0), ended)
                    self.assertEqual(self.inspect(out).code, 4)

    def test_key_that_comes_back_is_in_no_file(self):
        spelled = "".join(f"\\u{ord(letter):04x}" for letter in KEY)
        replies = {
            "as an encoding": (respond(b"x", content_encoding=KEY), 5),
            "in a header": (respond(message([]), x_echo=KEY, request_id=f"req-{KEY}"), 4),
            "in the status line": (f"HTTP/1.1 200 {KEY}\r\n\r\n".encode(), 5),
            "instead of a status line": (f"{KEY}\r\n\r\n".encode(), 5),
            "in an error": (respond({**api_error("x"), "error": {"type": KEY, "message": KEY}}, 401), 4),
            "in a page": (respond(f"<p>{KEY}".encode(), 502), 5),
            "in an extra field": (respond(message([], echo=KEY)), 4),
            "as a field's name": (respond({**message([]), KEY: 1}), 4),
            "in the content": (respond(message([text(KEY), tool_call()], "tool_use")), 4),
            "in a tool call id": (respond(message([tool_call(KEY)], "tool_use")), 4),
            "in the stop reason": (respond(message([tool_call()], KEY)), 4),
            "as the model": (respond(message([], model=KEY)), 4),
            "escaped": (respond(json.dumps(message([text("@")])).replace("@", spelled).encode()), 4),
            "compressed": (
                respond(gzip.compress(json.dumps(message([text(KEY)])).encode()), content_encoding="gzip"),
                4,
            ),
            "in a redirect": (respond(b"", 302, location=f"http://127.0.0.1:1/{KEY}"), 4),
        }
        for number, (name, (answer, code)) in enumerate(replies.items()):
            with self.subTest(name):
                out = f"run-{number}"
                ended = self.live(self.serve(answer), out=out)
                self.assertEqual(ended.code, code, ended)
                self.check_evidence(out, ended)
                for data in self.files(out).values():
                    self.assertNotIn(spelled.encode(), data)
                self.assertNotIn(KEY, ended.out + ended.err)


class CutTest(unittest.TestCase):
    """A reply that is cut at every byte of its body is never taken for whole."""

    FRAMES = {
        "announced length": respond(CALLED),
        "chunked, one chunk": chunked(WHOLE),
        "chunked, many chunks": chunked(*(WHOLE[at : at + 9] for at in range(0, len(WHOLE), 9))),
        "end of the connection": respond(CALLED, content_length=None),
    }

    def test_reply_cut_anywhere_is_unclear(self):
        for name, answer in self.FRAMES.items():
            start = answer.index(b"\r\n\r\n") + 4
            server = ScriptedServer(self, *(answer[:size] for size in range(start, len(answer) + 1)))
            for size in range(start, len(answer) + 1):
                outcome = send_request(server.url, Key(KEY), b"{}", 9)
                state, why, _ = run_handoff.judge_outcome(outcome)
                with self.subTest(name, size=size):
                    self.assertEqual(state, "confirmed" if size == len(answer) else "unclear", why)
            self.assertEqual(server.connections, len(answer) + 1 - start)


LAUNCHER = """
import json, resource, subprocess, sys, time
begun = time.monotonic()
ended = subprocess.run(sys.argv[1:], capture_output=True, text=True)
seconds = time.monotonic() - begun
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([ended.returncode, ended.stderr, seconds, peak]))
"""


def run_measured(url, out):
    """Do a live run as a process of its own: (exit code, standard error, seconds, peak memory in bytes)."""
    script = [
        sys.executable,
        str(ROOT / "run_handoff.py"),
        "--live",
        "--endpoint",
        url,
        "--key-env",
        "OFOX_API_KEY",
    ]
    told = subprocess.run(
        [sys.executable, "-c", LAUNCHER, *script, "--timeout", str(LIMIT_SECONDS), "--out", out],
        env={**os.environ, "OFOX_API_KEY": KEY, "no_proxy": "*"},
        capture_output=True,
        check=True,
    )
    return json.loads(told.stdout)


@unittest.skipIf(sys.platform == "win32", "needs getrusage")
class LimitTest(RunTestCase):
    """Slow, endless and huge: given up at the time limit, and within 200 MiB.

    The servers would go on for 30 s; a busy machine takes some seconds to start all of the runs at once.
    """

    def setUp(self):
        super().setUp()
        self.released = threading.Event()
        self.addCleanup(self.released.set)

    def flood(self, head, piece, total):
        def entry(connection, request):
            connection.sendall(head)
            for _ in range(total // len(piece)):
                connection.sendall(piece)

        return entry

    def test_slow_server_is_given_up_in_time(self):
        head = b"HTTP/1.1 200 OK\r\n"
        entries = {
            "silence": (lambda *_: self.released.wait(30), UNCLEAR),
            "a dripping status line": (drip(self.released, b"", b"H"), UNCLEAR),
            "dripping headers": (drip(self.released, head, b"x: y\r\n"), UNCLEAR),
            "a dripping header": (drip(self.released, head + b"x: ", b"y"), UNCLEAR),
            "a dripping body": (drip(self.released, head + b"content-length: 99999\r\n\r\n", b" "), UNCLEAR),
            "a dripping body without a length": (drip(self.released, head + b"\r\n", b" "), UNCLEAR),
            "dripping chunks": (
                drip(self.released, head + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
                UNCLEAR,
            ),
            "dripping trailers": (
                drip(self.released, head + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"),
                UNCLEAR,
            ),
            "endless 100 Continue": (drip(self.released, b"", b"HTTP/1.1 100 Continue\r\n\r\n"), UNCLEAR),
            "an error that drips": (drip(self.released, b"HTTP/1.1 400 No\r\n\r\n", b" "), FAILED),
        }
        urls = {name: (self.serve(entry).url, end) for name, (entry, end) in entries.items()}
        self.check_all(urls, workers=len(urls))

    def test_huge_reply_stays_in_time_and_in_bounded_memory(self):
        head = b"HTTP/1.1 200 OK\r\n"
        chunk = head + b"transfer-encoding: chunked\r\n\r\n10000000\r\n"
        bomb = gzip.compress(b" " * 2**30, 1)
        small = b'{"type":"message","role":"assistant","content":[' + b"{}," * (2**22 // 3 - 99) + b"{}]}"
        nested = b'{"":' * 99 + b"0" + b"}" * 99 + b","
        entries = {
            "256 MiB, announced": self.flood(
                head + b"content-length: 268435456\r\n\r\n", b" " * 2**20, 2**28
            ),
            "256 MiB, unannounced": self.flood(head + b"\r\n", b"x" * 2**20, 2**28),
            "256 MiB in one chunk": self.flood(chunk, b" " * 2**20, 2**28),
            "32 MiB of small objects": self.flood(head + b"\r\n[", b"{}," * 2**18, 2**25),
            "4 MiB of small objects": respond(small),
            "4 MiB of nested objects": respond(b"[" + nested * (2**22 // len(nested) - 1) + b"0]"),
            "4 MiB of numbers": respond(b"[" + b"1.5," * (2**20 - 9) + b"0]"),
            "4 MiB of strings": respond(b"[" + b'"",' * (2**22 // 3 - 9) + b"0]"),
            "a gzip bomb": respond(bomb, content_encoding="gzip"),
            "a whole message of 4 MiB": respond(message([text("x" * (2**22 - 999))])),
        }
        self.assertLess(len(bomb), 2**23)
        ends = {name: MISFIT if "whole" in name else UNCLEAR for name in entries}
        urls = {name: (self.serve(entry).url, ends[name]) for name, entry in entries.items()}
        self.check_all(urls, workers=2)

    def test_two_huge_replies_stay_in_bounded_memory_too(self):
        wide = "\x7f" * (2**22 - 2_000) + "\U0001f4e6"
        many = {str(number): number for number in range(49_000)}
        first = {
            "a wide text": respond(self.encode(message([text(wide), tool_call()], "tool_use"))),
            "many items": respond(self.encode(message([tool_call()], "tool_use", more=many))),
        }
        second = respond(self.encode(message([text(wide)], "max_tokens")))
        urls = {name: (self.serve(reply, second).url, MISFIT) for name, reply in first.items()}
        self.check_all(urls, workers=2, operation="sender-tool-result")

    def encode(self, reply):
        """Return a reply in the fewest bytes."""
        return json.dumps(reply, ensure_ascii=False, separators=(",", ":")).encode()

    def test_tls_and_names_that_fail_end_in_time(self):
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        cases = {
            "a silent handshake": (f"https://127.0.0.1:{silent.getsockname()[1]}/", FAILED),
            "a name that does not resolve": ("https://name.invalid/", FAILED),
            "a port where nothing listens": (f"http://127.0.0.1:{self.find_closed_port()}/", FAILED),
        }
        if shutil.which("openssl"):
            server = self.serve(respond(CALLED), wrap=self.build_tls())
            cases["a certificate nobody signed"] = (f"https://127.0.0.1:{server.port}/v1/messages", FAILED)
        self.check_all(cases, workers=len(cases))
        if shutil.which("openssl"):
            self.assertEqual(server.requests, [])
            self.assertIn("certificate verify failed", self.ledger("a certificate nobody signed")[-1]["why"])

    def check_all(self, cases, workers, operation="sender-tool-request"):
        """Do a measured run for each of {name: (url, (state, exit code))}, and judge how it ended."""
        runs = {name: (url, self.path(name)) for name, (url, _) in cases.items()}
        results = run_all_at_once(run_measured, runs, workers)
        if os.environ.get("SHOW_TABLES"):
            rows = [f"  {name:34} {s:4.1f} s {peak >> 20:4} MiB" for name, (_, _, s, peak) in results.items()]
            print("\n".join([f"\n{self.id()}", *rows]), file=sys.stderr)
        for name, (code, err, seconds, peak) in results.items():
            with self.subTest(name):
                _, (state, expected) = cases[name]
                self.assertEqual(code, expected, err)
                self.assertEqual(self.states(name)[operation], ["planned", "in_flight", state], err)
                self.assertLess(seconds, LIMIT_SECONDS + 12)
                self.assertLess(peak, LIMIT_BYTES)
                self.assertRegex(err, r"run_handoff\.py: (failed|unclear): .+\n  why: .+\n  next: .+\n$")
                inspected = self.inspect(name)
                self.assertEqual(inspected.code, expected, inspected)

    def find_closed_port(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            return listener.getsockname()[1]

    def build_tls(self):
        """Return what puts TLS over a connection, with a certificate that nobody has signed."""
        key, certificate = self.path("key.pem"), self.path("certificate.pem")
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", key, "-out", certificate),
            ],
            check=True,
            capture_output=True,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return functools.partial(context.wrap_socket, server_side=True)
