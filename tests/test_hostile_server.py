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
import subprocess
import sys
import threading
import unittest

import run_handoff
from run_handoff import Key, send_request
from tests.conditions import FIRST, THIRD
from tests.odd_replies import ANSWERS, FAILED, MISFIT, ODD, UNCLEAR, list_replies
from tests.support import (
    CALLED,
    KEY,
    ROOT,
    ScriptedServer,
    chunked,
    drip,
    message,
    respond,
    run_all_at_once,
    text,
    tool_call,
)
from tests.vendors import CHAT, GEMINI, MESSAGES, VENDORS, VendorTestCase

LIMIT_SECONDS = 2
LIMIT_BYTES = 200 * 2**20


class QuickServerTest(VendorTestCase):
    def test_run_ends_right_whatever_the_server_does(self):
        for name, vendor in VENDORS.items():
            cases = list_replies(vendor)
            self.assertGreater(len(cases), 80)
            cases.update({phrase: (respond(reply), end) for phrase, (reply, end) in ODD[name].items()})
            for number, (phrase, (entry, (state, code))) in enumerate(cases.items()):
                with self.subTest(phrase, api=name):
                    out = f"{name}-{number}"
                    server = self.serve(entry, *[respond(vendor.called)] * 3)
                    ended = self.live_at(vendor, server, "--timeout", "9", out=out)
                    self.assertEqual(self.states(out)[FIRST], ["planned", "in_flight", state], ended)
                    self.assertEqual(ended.code, code, ended)
                    self.assertEqual(server.connections, 1)
                    self.check_evidence(out, ended)

    def test_answer_is_taken_in_each_form_that_its_api_has(self):
        for name, cases in ANSWERS.items():
            vendor = VENDORS[name]
            for number, (phrase, (reply, (state, code))) in enumerate(cases.items()):
                with self.subTest(phrase, api=name):
                    out = f"{name}-{number}"
                    server = self.serve(respond(vendor.called), respond(vendor.ended), respond(reply))
                    ended = self.live_at(vendor, server, out=out)
                    self.assertEqual(self.states(out)[THIRD][-1], state, ended)
                    self.assertEqual(ended.code, code, ended)
                    self.assertEqual(self.inspect(out).code, code)

    def check_evidence(self, out, ended):
        self.assertRegex(ended.err, r"run_handoff\.py: (failed|unclear): .+\n  why: .+\n  next: .+\n$")
        inspected = self.inspect(out)
        self.assertEqual(inspected.code, ended.code, inspected)
        for shown in (ended.out, ended.err, inspected.out, inspected.err):
            self.assertTrue(shown.replace("\n", "").isprintable(), repr(shown))
        for name, data in self.files(out).items():
            self.assertNotIn(KEY.encode(), data, name)

    def test_redirect_reaches_nobody_else(self):
        for name, vendor in VENDORS.items():
            for status in (301, 302, 303, 307, 308):
                for same_host in (False, True):
                    with self.subTest(status, api=name, same_host=same_host):
                        other = self.serve(respond(vendor.called))
                        location = "/v1/elsewhere" if same_host else self.url(vendor, other)
                        server = self.serve(respond(b"", status, location=location), respond(vendor.called))
                        out = f"{name}-{status}-{same_host}"
                        ended = self.live_at(vendor, server, out=out)
                        self.assertEqual(
                            (ended.code, server.connections, other.connections), (4, 1, 0), ended
                        )
                        self.assertEqual(self.inspect(out).code, 4)

    def test_key_that_comes_back_is_in_no_file(self):
        spelled = "".join(f"\\u{ord(letter):04x}" for letter in KEY)
        for name, vendor in VENDORS.items():
            for number, (phrase, (answer, code)) in enumerate(self.list_echoes(vendor, spelled).items()):
                with self.subTest(phrase, api=name):
                    out = f"{name}-{number}"
                    ended = self.live_at(vendor, self.serve(answer), out=out)
                    self.assertEqual(ended.code, code, ended)
                    self.check_evidence(out, ended)
                    for data in self.files(out).values():
                        self.assertNotIn(spelled.encode(), data)
                    self.assertNotIn(KEY, ended.out + ended.err)

    def list_echoes(self, vendor, spelled):
        """Return {phrase: (reply with the key in it, exit code)}."""
        misfit, packed = vendor.answer("7"), gzip.compress(json.dumps(vendor.answer(KEY)).encode())
        escaped = json.dumps(vendor.answer("@")).replace("@", spelled).encode()
        return {
            "as an encoding": (respond(b"x", content_encoding=KEY), 5),
            "in a header": (respond(misfit, x_echo=KEY, request_id=f"req-{KEY}"), 4),
            "in the status line": (f"HTTP/1.1 200 {KEY}\r\n\r\n".encode(), 5),
            "instead of a status line": (f"{KEY}\r\n\r\n".encode(), 5),
            "in an error": (respond(vendor.error(KEY, KEY, 401), 401), 4),
            "in a page": (respond(f"<p>{KEY}".encode(), 502), 5),
            "in an extra field": (respond({**misfit, "echo": KEY}), 4),
            "as a field's name": (respond({**misfit, KEY: 1}), 4),
            "in the arguments": (respond(vendor.call(arguments={"key": KEY})), 4),
            "in a tool call id": (respond(vendor.call(call_id=KEY)), 4),
            "in the stop reason": (respond(vendor.stop(vendor.called, KEY)), 4),
            "as the model": (respond({**misfit, vendor.model_field: KEY}), 4),
            "escaped": (respond(escaped), 4),
            "compressed": (respond(packed, content_encoding="gzip"), 4),
            "in a redirect": (respond(b"", 302, location=f"http://127.0.0.1:1/{KEY}"), 4),
        }


class CutTest(unittest.TestCase):
    """A reply that is cut at every byte of its body is never taken for whole."""

    def list_frames(self, vendor):
        """Return {phrase: all the bytes of a reply}."""
        whole = json.dumps(vendor.called).encode()
        return {
            "announced length": respond(vendor.called),
            "chunked, one chunk": chunked(whole),
            "chunked, many chunks": chunked(*(whole[at : at + 9] for at in range(0, len(whole), 9))),
            "end of the connection": respond(vendor.called, content_length=None),
        }

    def test_reply_cut_anywhere_is_unclear(self):
        for name, vendor in VENDORS.items():
            for phrase, answer in self.list_frames(vendor).items():
                start = answer.index(b"\r\n\r\n") + 4
                server = ScriptedServer(self, *(answer[:size] for size in range(start, len(answer) + 1)))
                for size in range(start, len(answer) + 1):
                    outcome = send_request(server.url, Key(KEY), b"{}", 9)
                    state, why, _ = run_handoff.judge_outcome(outcome, name)
                    with self.subTest(phrase, api=name, size=size):
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


def run_measured(url, vendor, out):
    """Do a live run as a process of its own: (exit code, standard error, seconds, peak memory in bytes)."""
    script = [
        sys.executable,
        str(ROOT / "run_handoff.py"),
        "--live",
        "--endpoint",
        url,
        "--key-env",
        "OFOX_API_KEY",
        *vendor.options,
    ]
    told = subprocess.run(
        [sys.executable, "-c", LAUNCHER, *script, "--timeout", str(LIMIT_SECONDS), "--out", out],
        env={**os.environ, "OFOX_API_KEY": KEY, "no_proxy": "*"},
        capture_output=True,
        check=True,
    )
    return json.loads(told.stdout)


@unittest.skipIf(sys.platform == "win32", "needs getrusage")
class LimitTest(VendorTestCase):
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
        cases = {phrase: (entry, end, MESSAGES) for phrase, (entry, end) in entries.items()}
        for name in ("chat", "gemini"):
            for phrase in ("silence", "a dripping body", "an error that drips"):
                cases[f"{phrase}, {name}"] = (*entries[phrase], VENDORS[name])
        self.check_all(self.serve_all(cases), workers=len(cases))

    def serve_all(self, cases):
        """Start a server for each of {phrase: (entry, end, vendor)}; return {phrase: (url, end, vendor)}."""
        servers = {phrase: self.serve(entry) for phrase, (entry, _, _) in cases.items()}
        return {
            phrase: (self.url(vendor, servers[phrase]), end, vendor)
            for phrase, (_, end, vendor) in cases.items()
        }

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
        }
        self.assertLess(len(bomb), 2**23)
        cases = {phrase: (entry, UNCLEAR, MESSAGES) for phrase, entry in entries.items()}
        for name, vendor in VENDORS.items():
            whole = respond(vendor.answer("x" * (2**22 - 999)))
            cases[f"a whole message of 4 MiB, {name}"] = (whole, MISFIT, vendor)
        self.check_all(self.serve_all(cases), workers=2)

    def test_two_huge_replies_stay_in_bounded_memory_too(self):
        wide = "\x7f" * (2**22 - 2_000) + "\U0001f4e6"
        many = {str(number): number for number in range(49_000)}
        calls = CHAT.called["choices"][0]["message"]["tool_calls"]
        parts = GEMINI.called["candidates"][0]["content"]["parts"]
        first = {
            "a wide text": (MESSAGES, message([text(wide), tool_call()], "tool_use")),
            "many items": (MESSAGES, message([tool_call()], "tool_use", more=many)),
            "a wide text, chat": (CHAT, CHAT.reply({"content": wide, "tool_calls": calls}, "tool_calls")),
            "a wide text, gemini": (GEMINI, GEMINI.reply([{"text": wide}, *parts])),
        }
        cases = {}
        for phrase, (vendor, reply) in first.items():
            second = respond(self.encode(vendor.stop(vendor.answer(wide), vendor.stops["cut"])))
            server = self.serve(respond(self.encode(reply)), second)
            cases[phrase] = (self.url(vendor, server), MISFIT, vendor)
        self.check_all(cases, workers=2, operation="sender-tool-result")

    def encode(self, reply):
        """Return a reply in the fewest bytes."""
        return json.dumps(reply, ensure_ascii=False, separators=(",", ":")).encode()

    def test_tls_and_names_that_fail_end_in_time(self):
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        cases = {
            "a silent handshake": (f"https://127.0.0.1:{silent.getsockname()[1]}/", FAILED, MESSAGES),
            "a name that does not resolve": ("https://name.invalid/", FAILED, MESSAGES),
            "a port where nothing listens": (
                f"http://127.0.0.1:{self.find_closed_port()}/",
                FAILED,
                MESSAGES,
            ),
        }
        if shutil.which("openssl"):
            server = self.serve(respond(CALLED), wrap=self.build_tls())
            url = f"https://127.0.0.1:{server.port}/v1/messages"
            cases["a certificate nobody signed"] = (url, FAILED, MESSAGES)
        self.check_all(cases, workers=len(cases))
        if shutil.which("openssl"):
            self.assertEqual(server.requests, [])
            self.assertIn("certificate verify failed", self.ledger("a certificate nobody signed")[-1]["why"])

    def check_all(self, cases, workers, operation="sender-tool-request"):
        """Do a measured run for each of {name: (url, (state, exit code), vendor)}, and judge how it ended."""
        runs = {name: (url, vendor, self.path(name)) for name, (url, _, vendor) in cases.items()}
        results = run_all_at_once(run_measured, runs, workers)
        if os.environ.get("SHOW_TABLES"):
            rows = [f"  {name:34} {s:4.1f} s {peak >> 20:4} MiB" for name, (_, _, s, peak) in results.items()]
            print("\n".join([f"\n{self.id()}", *rows]), file=sys.stderr)
        for name, (code, err, seconds, peak) in results.items():
            with self.subTest(name):
                _, (state, expected), _ = cases[name]
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
