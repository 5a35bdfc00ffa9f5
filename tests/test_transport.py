"""One request over real HTTP on loopback: framing, limits, encodings, and who gives up when."""

from __future__ import annotations

import base64
import gc
import gzip
import http.client
import json
import os
import socket
import ssl
import threading
import time
import unittest
import warnings
from unittest import mock

import run_handoff
from run_handoff import Key, send_request
from tests.support import (
    ANSWERED,
    KEY,
    THINKING,
    ScriptedServer,
    api_error,
    chunked,
    drip,
    message,
    respond,
    run_all_at_once,
    text,
)

WHOLE = json.dumps(ANSWERED).encode()
SEND = http.client.HTTPConnection.send


class SendTestCase(unittest.TestCase):
    """A test that sends one request to a scripted server of its own."""

    def send(self, *script, timeout=10, is_interrupted=lambda _: False, data=b'{"a":1}'):
        server = ScriptedServer(self, *script)
        begun = time.monotonic()
        outcome = send_request(server.url, Key(KEY), data, timeout, is_interrupted)
        self.seconds = time.monotonic() - begun
        self.server = server
        return outcome


class ReplyTest(SendTestCase):
    # A reply that comes before the request was taken: (status, body, what becomes of the request).
    EARLY = (
        (413, api_error("request_too_large"), "failed"),
        (529, api_error("overloaded_error"), "failed"),
        (503, api_error("overloaded_error"), "unclear"),
        (200, ANSWERED, "unclear"),
    )

    def test_request_arrives_as_it_was_given(self):
        outcome = self.send(respond(ANSWERED), data=b'{"model":"m"}')
        (request,) = self.server.requests
        self.assertEqual(request.line, "POST /v1/messages HTTP/1.1")
        self.assertEqual(request.body, b'{"model":"m"}')
        expected = {
            "x-api-key": KEY,
            "anthropic-version": "2023-06-01",
            "content-type": "application/json",
            "accept-encoding": "identity",
            "content-length": "13",
            "connection": "close",
        }
        self.assertEqual({name: request.headers.get(name) for name in expected}, expected)
        self.assertEqual((outcome.body, outcome.http_status, outcome.finding), (WHOLE, 200, ""))
        self.assertEqual(outcome.facts["request_id"], "req_invented")

    def test_body_is_whole_in_every_framing(self):
        close = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + WHOLE
        cases = {
            "announced length": respond(ANSWERED),
            "announced twice, the same": respond(ANSWERED, content_length=f"{len(WHOLE)}, {len(WHOLE)}"),
            "end of the connection": close,
            "HTTP/1.0": close.replace(b"1.1", b"1.0"),
            "one chunk": chunked(WHOLE),
            "a chunk a byte": chunked(*(WHOLE[at : at + 1] for at in range(len(WHOLE)))),
            "a chunk extension": chunked(WHOLE).replace(b"\r\n{", b";name=value\r\n{"),
            "white space behind the coding": chunked(WHOLE).replace(b": chunked", b": Chunked \t"),
            "early hints first": b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + respond(ANSWERED),
            "two interim replies first": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
            + respond(ANSWERED),
            "trailers": chunked(WHOLE, end=b"0\r\nx-checksum: 1\r\n\r\n"),
            "after 100 Continue": b"HTTP/1.1 100 Continue\r\n\r\n" + respond(ANSWERED),
        }
        for name, answer in cases.items():
            with self.subTest(name):
                outcome = self.send(answer)
                self.assertEqual((outcome.body, outcome.finding), (WHOLE, ""))

    def test_body_that_is_not_whole_is_kept_and_said_so(self):
        cases = {
            "a byte missing": (respond(ANSWERED)[:-1], WHOLE[:-1]),
            "no body at all": (respond(ANSWERED)[: -len(WHOLE)], b""),
            "no last chunk": (chunked(WHOLE, end=b""), WHOLE),
            "last chunk without its end": (chunked(WHOLE, end=b"0\r\n"), WHOLE),
            "half a chunk": (chunked(WHOLE)[:-20], None),
            "a chunk size that is no number": (chunked(WHOLE, end=b"x\r\n"), WHOLE),
            "a negative chunk size": (chunked(WHOLE, end=b"-1\r\n"), WHOLE),
            "more in a chunk than it says": (chunked(WHOLE).replace(b"\r\n0\r\n", b"}\r\n0\r\n"), WHOLE),
            "two lengths": (respond(ANSWERED, content_length=f"{len(WHOLE)}, 5"), b""),
            "a length that is no number": (respond(ANSWERED, content_length="many"), b""),
            "a negative length": (respond(ANSWERED, content_length="-1"), b""),
        }
        for name, (answer, kept) in cases.items():
            with self.subTest(name):
                outcome = self.send(answer)
                self.assertTrue(outcome.finding)
                self.assertEqual(outcome.http_status, 200)
                if kept is not None:
                    self.assertEqual(outcome.body, kept)

    def test_refusal_that_comes_before_the_request_was_taken_is_read(self):
        for status, body, state in self.EARLY:
            with self.subTest(status):
                outcome = self.send_to_one_who_reads_the_head(status, body, b"x" * 30_000_000)
                self.assertEqual(run_handoff.judge_outcome(outcome)[0], state, outcome.finding)

    def test_refusal_is_read_whatever_the_write_broke_by(self):
        faults = (BrokenPipeError(), ConnectionResetError(), ConnectionAbortedError(), ssl.SSLEOFError())
        for fault in faults:
            sent = []

            def break_at_the_body(connection, data, fault=fault, sent=sent):
                sent.append(bytes(data))
                if data.startswith(b"x"):
                    raise fault
                SEND(connection, data)

            for status, body, state in self.EARLY:
                with self.subTest(type(fault), status=status):
                    del sent[:]
                    with mock.patch.object(http.client.HTTPConnection, "send", break_at_the_body):
                        outcome = self.send_to_one_who_reads_the_head(status, body, b"xyz")
                    self.assertEqual(run_handoff.judge_outcome(outcome)[0], state, outcome.finding)
                    self.assertEqual(len(sent), 2)

    def send_to_one_who_reads_the_head(self, status, body, data):
        """Send a request to a server that answers and closes before it was taken."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        is_read = threading.Event()
        server = threading.Thread(target=self.answer_the_head, args=(listener, status, body, is_read))
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/messages"
        outcome = send_request(url, Key(KEY), data, 10)
        is_read.set()
        server.join()
        self.assertEqual(outcome.http_status, status, outcome.finding)
        return outcome

    def answer_the_head(self, listener, status, body, is_read):
        """Answer before the body has come, take no more, and close once the answer was read."""
        connection, _ = listener.accept()
        with connection:
            connection.recv(1_000)
            connection.sendall(respond(body, status))
            connection.shutdown(socket.SHUT_RDWR)
            is_read.wait(10)

    def test_no_reply_has_no_body(self):
        cases = {
            "closed at once": b"",
            "garbage instead of a status line": b"SSH-2.0-OpenSSH_9\r\n\r\n",
            "half a status line": b"HTTP/1.1 20",
            "half the headers": b"HTTP/1.1 200 OK\r\ncontent-le",
            "endless headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200,
            "an endless header": b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000,
        }
        for name, answer in cases.items():
            with self.subTest(name):
                outcome = self.send(answer)
                self.assertTrue(outcome.opened)
                if outcome.http_status is None:
                    self.assertIsNone(outcome.body)
                    self.assertTrue(outcome.finding)

    def test_reply_over_the_limit_is_cut_off_there(self):
        with mock.patch.object(run_handoff, "REPLY_LIMIT_BYTES", 1_000):
            exact = self.send(respond(b"x" * 1_000))
            self.assertEqual((len(exact.body), exact.finding), (1_000, ""))
            for name, answer in {
                "announced": respond(b"x" * 1_001),
                "chunked": chunked(b"x" * 900, b"x" * 900),
                "unannounced": respond(b"x" * 5_000, content_length=None),
                "gzip": respond(gzip.compress(b"x" * 1_001), content_encoding="gzip"),
            }.items():
                with self.subTest(name):
                    outcome = self.send(answer)
                    self.assertEqual(outcome.body, b"x" * 1_000)
                    self.assertTrue(outcome.finding)

    def test_gzip_is_decoded_and_said_so(self):
        for encoding in ("gzip", "GZIP", "x-gzip"):
            with self.subTest(encoding):
                outcome = self.send(respond(gzip.compress(WHOLE), content_encoding=encoding))
                self.assertEqual((outcome.body, outcome.finding), (WHOLE, ""))
                self.assertEqual(outcome.facts["content_encoding"], "gzip")

    def test_encoding_that_cannot_be_undone_is_trouble(self):
        squeezed = gzip.compress(WHOLE)
        cases = {
            "gzip said, plain sent": (respond(WHOLE, content_encoding="gzip"), WHOLE),
            "gzip cut short": (respond(squeezed[:-9], content_encoding="gzip"), squeezed[:-9]),
            "gzip with something behind it": (
                respond(squeezed + b"x", content_encoding="gzip"),
                squeezed + b"x",
            ),
            "gzip twice": (respond(squeezed, content_encoding="gzip, gzip"), squeezed),
            "another encoding": (respond(b"\x28\xb5\x2f\xfd", content_encoding="zstd"), b"\x28\xb5\x2f\xfd"),
        }
        for name, (answer, kept) in cases.items():
            with self.subTest(name):
                outcome = self.send(answer)
                self.assertTrue(outcome.finding)
                self.assertEqual(outcome.body, kept)

    def test_key_in_the_part_of_a_broken_gzip_that_can_be_read_is_not_kept(self):
        echoed = gzip.compress(json.dumps({"echo": KEY}).encode())
        members = gzip.compress(b" " * 9) + echoed
        cases = {
            "a wrong check sum": echoed[:-8] + bytes(8),
            "a wrong check sum in the second member": members[:-8] + bytes(8),
            "an end that is cut off": echoed[:-9],
            "something behind it": members + b"x",
        }
        for name, body in cases.items():
            with self.subTest(name):
                outcome = self.send(respond(body, content_encoding="gzip"))
                self.assertEqual((outcome.body, outcome.key_removed), (b"[key removed]", True))
                self.assertTrue(outcome.finding)

    def test_gzip_of_many_small_members_or_with_an_error_at_its_end_is_read_in_time(self):
        begun = time.monotonic()
        small = gzip.compress(b"")
        self.assertEqual(run_handoff._gunzip(small * 100_000 + gzip.compress(b"x")), (b"x", True))
        text, is_whole = run_handoff._gunzip(gzip.compress(os.urandom(4_000_000))[:-8] + bytes(8))
        self.assertEqual((len(text), is_whole), (4_000_000, False))
        self.assertLess(time.monotonic() - begun, 8)

    def test_gzip_sent_without_saying_so_is_kept_as_it_came(self):
        outcome = self.send(respond(gzip.compress(WHOLE)))
        self.assertEqual(gzip.decompress(outcome.body), WHOLE)
        self.assertNotIn("content_encoding", outcome.facts)

    def test_key_is_taken_out_of_everything(self):
        body = json.dumps({"echo": KEY}).encode()
        for name, answer in {
            "plain": respond(body, request_id=KEY),
            "gzip": respond(gzip.compress(body), content_encoding="gzip", request_id=KEY),
            "gzip cut short": respond(gzip.compress(body)[:-4], content_encoding="gzip", request_id=KEY),
            "in another encoding's name": respond(body, content_encoding=KEY, request_id=KEY),
            "in a length": respond(body, content_length=KEY, request_id=KEY),
            "in a time to wait": respond(body, 429, retry_after=KEY),
            "in garbage": f"HTTP/9 {KEY}\r\n\r\n".encode(),
        }.items():
            with self.subTest(name):
                outcome = self.send(answer)
                self.assertNotIn(KEY, repr((outcome.body, outcome.facts)))

    def test_key_in_pieces_of_the_text_is_not_kept(self):
        pieces = [text(KEY[:12]), text(KEY[12:])]
        outcome = self.send(respond(message([THINKING, *pieces])))
        self.assertEqual((outcome.body, outcome.key_removed), (b"[key removed]", True))
        self.assertEqual(run_handoff.judge_outcome(outcome)[0], "unclear")
        between = {"type": "thinking", "thinking": "", "text": " "}  # whose text is not joined
        hidden = self.send(respond(message([pieces[0], between, pieces[1]])))
        self.assertEqual(hidden.body, b"[key removed]")
        apart = self.send(respond(message([pieces[0], text(" "), pieces[1]])))
        self.assertEqual(run_handoff.judge_outcome(apart)[0], "confirmed")

    def test_redirect_is_not_followed(self):
        other = ScriptedServer(self)
        for status in (301, 302, 303, 307, 308):
            with self.subTest(status):
                outcome = self.send(respond(b"", status, location=other.url))
                self.assertEqual(outcome.http_status, status)
                self.assertEqual((self.server.connections, other.connections), (1, 0))

    def test_no_proxy_is_used_on_loopback(self):
        proxy = ScriptedServer(self)
        with mock.patch.dict(
            "os.environ", {"http_proxy": proxy.url, "HTTP_PROXY": proxy.url, "all_proxy": proxy.url}
        ):
            self.assertEqual(self.send(respond(ANSWERED)).body, WHOLE)
        self.assertEqual(proxy.connections, 0)

    def test_key_in_a_header_is_taken_out_before_its_letters_are_changed(self):
        key = "Sk-Invented-0123456789-ABCDEF"
        server = ScriptedServer(self, respond(b"x", content_encoding=key))
        outcome = send_request(server.url, Key(key), b"{}", 10)
        self.assertNotIn(key.lower(), outcome.finding.lower())
        self.assertIn("key removed", outcome.finding)

    def send_through_proxy(self, url, credentials="", **environment):
        """Send to an https URL through a proxy that refuses it; return the outcome and what the proxy saw."""

        def refuse(connection, request):
            connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")

        proxy = ScriptedServer(self, refuse)
        proxies = {
            "https_proxy": f"http://{credentials}127.0.0.1:{proxy.port}",
            "no_proxy": "",
            **environment,
        }
        with mock.patch.dict("os.environ", proxies), warnings.catch_warnings():
            # The http.client of 3.9 leaves the socket of a refused tunnel to the garbage collector.
            warnings.simplefilter("ignore", ResourceWarning)
            outcome = send_request(url, Key(KEY), b"{}", 10)
            gc.collect()
        self.assertFalse(outcome.opened)
        return outcome, proxy.requests

    def test_proxy_for_https_sees_no_key(self):
        _, (request,) = self.send_through_proxy("https://api.invalid/v1/messages")
        self.assertTrue(request.line.startswith("CONNECT api.invalid:443 "))
        self.assertNotIn(KEY, str(request.headers) + str(request.body))
        self.assertNotIn("proxy-authorization", request.headers)

    def test_proxy_for_https_is_given_its_own_credentials(self):
        _, (request,) = self.send_through_proxy("https://api.invalid:8443/", "some%40one:pa%3Ass@")
        self.assertTrue(request.line.startswith("CONNECT api.invalid:8443 "))
        pair = base64.b64encode(b"some@one:pa:ss").decode()
        self.assertEqual(request.headers["proxy-authorization"], f"Basic {pair}")

    def test_proxy_for_https_is_passed_by_where_the_environment_says_so(self):
        outcome, requests = self.send_through_proxy("https://api.invalid/", no_proxy="api.invalid")
        self.assertEqual(requests, [])
        self.assertTrue(outcome.finding)


class TimeTest(SendTestCase):
    def hold(self, connection, request):
        self.server_released.wait(20)

    def send(self, *script, timeout=1, **options):
        self.server_released = threading.Event()
        self.addCleanup(self.server_released.set)
        return super().send(*script, timeout=timeout, **options)

    def test_slow_server_is_given_up_on_time(self):
        self.server_released = threading.Event()
        self.addCleanup(self.server_released.set)
        cases = {
            "silence": (self.hold, None),
            "a dripping status line": (drip(self.server_released, b"", b"H"), None),
            "dripping headers": (drip(self.server_released, b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), None),
            "endless 100 Continue": (drip(self.server_released, b"", b"HTTP/1.1 100 Continue\r\n\r\n"), None),
            "a dripping body": (
                drip(self.server_released, b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", b"x"),
                200,
            ),
            "dripping chunks": (
                drip(
                    self.server_released,
                    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                    b"1\r\nx\r\n",
                ),
                200,
            ),
            "a dripping trailer": (
                drip(
                    self.server_released,
                    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
                    b"x: y\r\n",
                ),
                200,
            ),
        }
        for name, (server, outcome, seconds) in run_all_at_once(self.send_timed, cases).items():
            with self.subTest(name):
                self.assertLess(seconds, 3)
                self.assertTrue(outcome.opened)
                self.assertEqual(outcome.http_status, cases[name][1])
                self.assertEqual(outcome.finding, "time-out after 1 s")
                self.assertEqual(server.connections, 1)

    def send_timed(self, entry, _):
        server = ScriptedServer(self, entry)
        begun = time.monotonic()
        outcome = send_request(server.url, Key(KEY), b"{}", 1)
        return server, outcome, time.monotonic() - begun

    def test_part_of_a_slow_body_is_kept(self):
        def entry(*arguments):
            drip(self.server_released, b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", b"x")(*arguments)

        outcome = self.send(entry)
        self.assertRegex(outcome.body, b"^x+$")

    def test_server_that_keeps_the_connection_open_does_not_hold_the_reply(self):
        def entry(connection, request):
            connection.sendall(respond(ANSWERED, connection="keep-alive"))
            self.server_released.wait(20)

        outcome = self.send(entry, timeout=10)
        self.assertEqual((outcome.body, outcome.finding), (WHOLE, ""))
        self.assertLess(self.seconds, 5)

    def test_interrupt_ends_it_at_once(self):
        outcome = self.send(self.hold, timeout=20, is_interrupted=lambda passed: passed > 0.2)
        self.assertEqual((outcome.finding, outcome.opened), ("interrupted by Ctrl-C", True))
        self.assertTrue(outcome.facts["interrupted"])
        self.assertLess(self.seconds, 2)

    def test_name_look_up_that_hangs_sends_nothing_later(self):
        looked_up = threading.Event()

        def look_up(*_):
            looked_up.wait(10)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))]

        server = ScriptedServer(self, respond(ANSWERED))
        with mock.patch("socket.getaddrinfo", look_up):
            outcome = send_request(server.url, Key(KEY), b"{}", 1)
            self.assertFalse(outcome.opened)
            self.assertEqual(outcome.finding, "time-out after 1 s")
            looked_up.set()
            time.sleep(0.3)
        self.assertEqual(server.requests, [])


class NeverOpenTest(unittest.TestCase):
    def test_connection_that_was_never_open_is_said_so(self):
        listener = socket.create_server(("127.0.0.1", 0))
        closed = listener.getsockname()[1]
        listener.close()
        cases = {
            "a port where nothing listens": f"http://127.0.0.1:{closed}/",
            "a name that does not resolve": "https://name.invalid/",
            "no TLS on the other side": f"https://127.0.0.1:{self.greet_in_plain_text()}/",
        }
        for name, url in cases.items():
            with self.subTest(name), mock.patch.dict("os.environ", {"https_proxy": "", "HTTPS_PROXY": ""}):
                outcome = send_request(url, Key(KEY), b"{}", 10)
                self.assertFalse(outcome.opened)
                self.assertTrue(outcome.finding)
                self.assertIsNone(outcome.body)

    def greet_in_plain_text(self):
        """Start a server that speaks first, and not TLS; return its port."""

        def greet():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"220 mail.example ready\r\n")
                connection.recv(4_096)

        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        threading.Thread(target=greet, daemon=True).start()
        return listener.getsockname()[1]

    def test_tls_that_is_silent_in_the_handshake_is_never_open(self):
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        begun = time.monotonic()
        outcome = send_request(f"https://127.0.0.1:{silent.getsockname()[1]}/", Key(KEY), b"{}", 1)
        self.assertLess(time.monotonic() - begun, 3)
        self.assertFalse(outcome.opened)


class BugTest(unittest.TestCase):
    def test_bug_in_the_thread_is_not_taken_for_an_outcome(self):
        server = ScriptedServer(self, respond(ANSWERED))
        broken = mock.patch.object(run_handoff, "_receive", side_effect=ZeroDivisionError)
        with broken, self.assertRaises(ZeroDivisionError):
            send_request(server.url, Key(KEY), b"{}", 10)
