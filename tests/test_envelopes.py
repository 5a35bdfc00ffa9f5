"""Other people's envelopes: request ids, error shapes, encodings, many headers; bytes that came are kept."""

from __future__ import annotations

import gzip
import json
import zlib

from tests.conditions import FIRST, THIRD, ConditionsTestCase, build_reply
from tests.support import ANSWERED, CALLED, ENDED, KEY, message, respond, text, tool_call

WHOLE = json.dumps(ANSWERED).encode()
MISFIT = json.dumps(message([text("7")])).encode()  # whole, and the end of a run in its first step
LINE_BYTES = len(b"x-demo-0000: y\r\n")


def with_headers(*headers, body=MISFIT, status=200):
    """Return a reply with these headers, a content-length and nothing else."""
    return build_reply(status, [("content-length", len(body)), *headers], body)


class RequestIdTest(ConditionsTestCase):
    # The headers that came, and what the ledger has: (id, header).
    FOUND = {
        "the vendor's": ([("request-id", "req_1")], ("req_1", "request-id")),
        "a gateway's": ([("x-request-id", "gw-2")], ("gw-2", "x-request-id")),
        "of Bedrock": ([("x-amzn-requestid", "11-22-33")], ("11-22-33", "x-amzn-requestid")),
        "of Bedrock, as it is written": ([("x-amzn-RequestId", "11-22")], ("11-22", "x-amzn-requestid")),
        "of Vertex": ([("x-goog-request-id", "g4")], ("g4", "x-goog-request-id")),
        "of Cloudflare": ([("cf-ray", "8f-FRA")], ("8f-FRA", "cf-ray")),
        "the vendor's before others": (
            [("cf-ray", "8f-FRA"), ("x-request-id", "gw-2"), ("request-id", "req_1")],
            ("req_1", "request-id"),
        ),
        "a gateway's before a proxy's": (
            [("cf-ray", "8f-FRA"), ("x-request-id", "gw-2")],
            ("gw-2", "x-request-id"),
        ),
        "an empty one is passed over": (
            [("request-id", ""), ("x-request-id", "gw-2")],
            ("gw-2", "x-request-id"),
        ),
        "white space around it": ([("request-id", "  req_1 \t")], ("req_1", "request-id")),
        "twice the same": ([("request-id", "req_1"), ("request-id", "req_1")], ("req_1", "request-id")),
    }

    def test_request_id_is_taken_from_the_first_known_header(self):
        for number, (name, (headers, expected)) in enumerate(self.FOUND.items()):
            with self.subTest(name):
                out = str(number)
                ended = self.run_first(with_headers(*headers), out=out)
                record = self.last(FIRST, out)
                self.assertEqual((record.get("request_id"), record.get("request_id_header")), expected)
                self.assertEqual(self.inspect(out).code, ended.code)
                self.assertIn(expected[0], self.report(out))

    def test_request_id_is_told_of_a_refusal_and_of_an_unclear_request(self):
        for status, code in ((429, 4), (502, 5)):
            with self.subTest(status):
                reply = with_headers(("x-request-id", "gw-2"), body=b"{}", status=status)
                ended = self.run_first(reply, out=str(status))
                self.assertEqual(ended.code, code)
                record = self.last(FIRST, str(status))
                self.assertEqual(
                    (record["request_id"], record["request_id_header"]), ("gw-2", "x-request-id")
                )
                self.assertEqual("gw-2" in ended.err, code == 5, "what is looked up is looked up by its id")

    def test_request_id_is_taken_from_the_body_where_no_header_has_it(self):
        bodies = {
            "an error of the API": {"type": "error", "error": {"type": "x"}, "request_id": "req_7"},
            "an id inside the error": {"error": {"message": "x", "request_id": "req_7"}},
        }
        for name, body in bodies.items():
            with self.subTest(name):
                self.run_first(with_headers(body=json.dumps(body).encode(), status=502), out=name)
                record = self.last(FIRST, name)
                self.assertEqual(record.get("request_id"), "req_7")
                self.assertNotIn("request_id_header", record)

    def test_header_goes_before_the_body(self):
        body = json.dumps({"error": {"message": "x"}, "request_id": "req_7"}).encode()
        self.run_first(with_headers(("request-id", "req_1"), body=body, status=502))
        self.assertEqual(self.last(FIRST)["request_id"], "req_1")

    def test_request_id_that_is_not_there_is_not_invented(self):
        for name, body in {
            "a list": [7],
            "a number": {"request_id": 7},
            "null": {"request_id": None},
        }.items():
            with self.subTest(name):
                ended = self.run_first(with_headers(body=json.dumps(body).encode(), status=502), out=name)
                self.assertNotIn("request_id", self.last(FIRST, name))
                self.assertIn("not known", ended.err)

    def test_request_id_cannot_hurt_and_holds_no_key(self):
        values = {"escapes": "req\x1b[2J", "the key": f"req-{KEY}", "very long": "r" * 5_000}
        for name, value in values.items():
            with self.subTest(name):
                ended = self.run_first(with_headers(("x-request-id", value)), out=name)
                self.check_nowhere(KEY, ended)
                self.assertLess(len(self.last(FIRST, name)["request_id"]), 1_000)
                self.assertTrue(ended.err.replace("\n", "").isprintable())
                self.assertEqual(self.inspect(name).code, ended.code)


class WordsTest(ConditionsTestCase):
    SAID = "the field demo_field is not allowed"
    # Bodies of other vendors' and gateways' errors, all of which say SAID.
    SHAPES = {
        "of the API": {"type": "error", "error": {"type": "invalid_request_error", "message": SAID}},
        "another vendor's": {"error": {"message": SAID, "type": "None", "param": "None", "code": "400"}},
        "a number as type": {"error": {"message": SAID, "type": 3}},
        "a message beside a type that is null": {"type": None, "error": {"message": SAID}},
        "an error as text": {"error": SAID},
        "an error as text, with a type": {"type": "error", "error": SAID},
        "a message": {"message": SAID},
        "a message beside a code": {"code": 400, "message": SAID, "data": None},
        "a detail": {"detail": SAID},
        "a list of one": [{"error": {"code": 400, "message": SAID, "status": "INVALID_ARGUMENT"}}],
        "a list of one message": [{"message": SAID}],
        "details in a list": {"detail": [{"loc": ["body"], "msg": SAID}]},
        "errors in a list": {"errors": [{"title": SAID}]},
        "another name": {"Message": SAID},
        "a JSON text": SAID,
        "plain text": SAID.encode(),
        "a page": f"<html>{SAID}</html>".encode(),
        "a cut JSON": ('{"error": {"message": "' + SAID).encode(),
    }

    def test_words_of_an_error_are_told_whatever_its_shape(self):
        for status, code in ((400, 4), (404, 4), (500, 5), (502, 5), (409, 5)):
            for number, (name, body) in enumerate(self.SHAPES.items()):
                with self.subTest(name, status=status):
                    out = f"{status}-{number}"
                    ended = self.run_first(respond(body, status), out=out)
                    self.assertEqual(ended.code, code)
                    for told in (ended.err, self.last(FIRST, out)["why"], self.report(out)):
                        self.assertIn(self.SAID, told)
                    self.assertEqual(self.inspect(out).code, code)

    def test_words_of_an_error_with_200_are_told(self):
        for name in ("another vendor's", "an error as text", "a list of one"):
            with self.subTest(name):
                ended = self.run_first(respond(self.SHAPES[name]), out=name)
                self.assertEqual(ended.code, 5)
                self.assertIn(self.SAID, ended.err)

    def test_words_of_an_error_are_cut_and_harmless(self):
        bodies = {
            "long words": {"error": {"message": "no " * 5_000}},
            "escapes": {"error": {"message": "\x1b[2J\u202e no"}},
            "escapes in a page": b"<p>\x1b[2J\x00\xff no</p>",
            "the key": {"error": f"no {KEY}"},
            "deep nesting": b"[" * 3_000,
            "an empty message": {"error": {"message": ""}},
            "nothing": b"",
        }
        for name, body in bodies.items():
            with self.subTest(name):
                ended = self.run_first(respond(body, 400), out=name)
                self.assertEqual(ended.code, 4)
                self.assertLess(len(self.last(FIRST, name)["why"]), 1_000)
                self.assertTrue(ended.err.replace("\n", "").isprintable())
                self.check_nowhere(KEY, ended)
                self.assertEqual(self.inspect(name).code, 4)


class CallIdTest(ConditionsTestCase):
    def test_tool_call_id_may_be_as_long_as_the_reply_allows(self):
        for size in (257, 5_000, 100_000, 1_500_000, 3_000_000):
            with self.subTest(size):
                call_id = "toolu_" + "x" * (size - 6)
                called = respond(message([tool_call(call_id)], "tool_use"))
                server = self.serve(called, respond(ENDED), respond(ANSWERED))
                ended = self.live(server, out=str(size))
                self.assertEqual(ended.code, 0, ended.err[-500:])
                sent = json.loads(server.requests[1].body)["messages"][-1]["content"][0]
                self.assertEqual(sent["tool_use_id"], call_id)
                self.assertEqual(self.inspect(str(size)).code, 0)


class EncodingTest(ConditionsTestCase):
    PIECES = (WHOLE[:100], WHOLE[100:101], WHOLE[101:])
    MEMBERS = tuple(map(gzip.compress, PIECES))

    def send(self, body, encoding, out="run"):
        """Answer the third request with a body in an encoding; return how the run Ended."""
        return self.run_third(respond(body, content_encoding=encoding), out=out)

    def test_gzip_of_several_members_is_a_reply(self):
        bodies = {
            "one": gzip.compress(WHOLE),
            "two": b"".join(map(gzip.compress, (WHOLE[:100], WHOLE[100:]))),
            "three": b"".join(self.MEMBERS),
            "an empty one between": self.MEMBERS[0] + gzip.compress(b"") + b"".join(self.MEMBERS[1:]),
            "an empty one behind": gzip.compress(WHOLE) + gzip.compress(b""),
            "zero bytes behind": b"".join(self.MEMBERS) + bytes(512),
            "a member for each byte": b"".join(gzip.compress(bytes([byte])) for byte in WHOLE),
        }
        for encoding in ("gzip", "x-gzip", "GZip"):
            for name, body in bodies.items():
                with self.subTest(name, encoding=encoding):
                    out = f"{name} {encoding}"
                    ended = self.send(body, encoding, out)
                    self.assertEqual(ended.code, 0, ended)
                    self.assertEqual(self.files(out)["3-response.json"], WHOLE)
                    self.assertEqual(self.inspect(out).code, 0)

    def test_gzip_that_is_broken_keeps_the_raw_bytes(self):
        whole, two = gzip.compress(WHOLE), b"".join(self.MEMBERS[:2])
        bodies = {
            "plain": WHOLE,
            "cut": whole[:-9],
            "cut in the second member": two[:-3],
            "the second member cut after its magic": whole + b"\x1f\x8b\x08",
            "something behind it": whole + b"x",
            "something behind zero bytes": whole + bytes(4) + b"x",
            "a wrong check sum": whole[:-8] + bytes(4) + whole[-4:],
            "a wrong check sum in the first of two": self.MEMBERS[0][:-8] + bytes(8) + self.MEMBERS[1],
            "nothing": b"",
            "one byte": b"\x1f",
        }
        for name, body in bodies.items():
            with self.subTest(name):
                ended = self.send(body, "gzip", name)
                self.assertEqual((ended.code, self.last(THIRD, name)["state"]), (5, "unclear"), ended)
                self.assertEqual(self.files(name)["3-response.json"], body)
                self.assertNotIn("no reply", ended.err)
                self.assertEqual(self.inspect(name).code, 5)

    def test_gzip_of_several_members_has_one_bound(self):
        member = gzip.compress(b" " * 2**20)
        ended = self.send(member * 6, "gzip")  # 6 MiB, and 4 MiB are read
        self.assertEqual(ended.code, 5, ended)
        self.assertLessEqual(len(self.files()["3-response.json"]), 4 * 2**20)

    def test_key_in_a_broken_gzip_is_stored_in_no_form(self):
        body = gzip.compress(json.dumps({"echo": KEY * 3}).encode())
        for name, sent in {"cut": body[:-4], "something behind it": body + b"x"}.items():
            with self.subTest(name):
                ended = self.send(sent, "gzip", name)
                self.check_nowhere(KEY, ended)
                kept = self.files(name)["3-response.json"]
                decoder = zlib.decompressobj(wbits=31)
                opened = decoder.decompress(kept) if kept[:2] == b"\x1f\x8b" else kept
                self.assertNotIn(KEY.encode(), opened)

    def test_encoding_that_is_none_is_passed_over_where_the_body_is_whole(self):
        for encoding in ("utf-8", "UTF-8", "none", "binary", "application/json", "8bit", "aws-chunked"):
            with self.subTest(encoding):
                ended = self.send(WHOLE, encoding, encoding.replace("/", "-"))
                out = encoding.replace("/", "-")
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual(self.files(out)["3-response.json"], WHOLE)
                self.assertIn(encoding.lower(), json.dumps(self.last(THIRD, out)).lower())
                self.assertEqual(self.inspect(out).code, 0)

    def test_encoding_that_is_none_is_unclear_where_the_body_is_not_whole(self):
        bodies = {"another shape": b'{"ok":true}', "a page": b"<html>", "nothing": b"", "cut": WHOLE[:-1]}
        for name, body in bodies.items():
            with self.subTest(name):
                ended = self.send(body, "utf-8", name)
                self.assertEqual(ended.code, 5, ended)
                self.assertEqual(self.files(name)["3-response.json"], body)
                self.assertEqual(self.inspect(name).code, 5)

    def test_encoding_that_was_really_applied_is_unclear(self):
        bodies = {"deflate": zlib.compress(WHOLE), "br": b"\x8b\x00\x80", "zstd": b"\x28\xb5\x2f\xfd"}
        for encoding, body in bodies.items():
            with self.subTest(encoding):
                ended = self.send(body, encoding, encoding)
                self.assertEqual(ended.code, 5, ended)
                self.assertEqual(self.files(encoding)["3-response.json"], body)

    def test_encoding_of_a_refusal_does_not_hide_what_it_says(self):
        body = {"error": {"message": "demo words"}}
        ended = self.run_first(respond(body, 400, content_encoding="utf-8"))
        self.assertEqual(ended.code, 4, ended)
        self.assertIn("demo words", ended.err)


class HeadTest(ConditionsTestCase):
    def send(self, count, line=b"x-demo-%04d: y\r\n", out="run"):
        lines = b"".join(line % number for number in range(count))
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n" % len(WHOLE)
        return self.run_third(head + lines + b"\r\n" + WHOLE, out=out)

    def test_many_header_lines_are_read(self):
        for count in (99, 100, 101, 250, 1_000, 65_000 // LINE_BYTES):
            with self.subTest(count):
                ended = self.send(count, out=str(count))
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual(self.inspect(str(count)).code, 0)

    def test_headers_over_64_kib_end_the_run_in_one_way_or_the_other_and_are_told(self):
        """How much more is read is not promised; what came is."""
        cases = {
            "many lines": (70_000 // LINE_BYTES * 2, b"x-demo-%04d: y\r\n"),
            "a line": (1, b"x-demo-%04d: " + b"y" * 200_000 + b"\r\n"),
        }
        for name, (count, line) in cases.items():
            with self.subTest(name):
                ended = self.send(count, line, out=name)
                self.assertIn(ended.code, (0, 5), ended)
                self.assertNotIn("no reply", ended.err + json.dumps(self.last(THIRD, name)))
                self.assertEqual(self.inspect(name).code, ended.code)

    def check_told(self, ended, out, operation_id=THIRD):
        for told in (ended.err, self.last(operation_id, out)["why"], self.report(out)):
            self.assertNotIn("no reply", told)
        self.assertEqual(self.inspect(out).code, 5)

    def test_no_reply_is_not_said_once_bytes_came(self):
        answers = {
            "garbage": b"\x00\xff\x1b[2J\r\n\r\n",
            "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
            "a TLS alert": b"\x15\x03\x01\x00\x02\x02\x46",
            "half a status line": b"HTTP/1.1 20",
            "a status in words": b"HTTP/1.1 OK\r\n\r\n",
            "half the headers": b"HTTP/1.1 200 OK\r\ncontent-le",
            "the body without a head": WHOLE,
            "an interim reply": b"HTTP/1.1 100 Continue\r\n\r\n",
            "an early hint": b"HTTP/1.1 103 Early Hints\r\n\r\n",
        }
        for name, answer in answers.items():
            with self.subTest(name):
                ended = self.run_first(answer, out=name)
                self.assertEqual(ended.code, 5, ended)
                self.check_told(ended, name, FIRST)

    def test_no_reply_is_not_said_where_bytes_came_before_the_time_was_over(self):
        def begin(answer):
            def entry(connection, request):
                connection.sendall(answer)
                self.server.released.wait(9)

            return entry

        for name, answer in {"a status line": b"HTTP/1.1 20", "a header": b"HTTP/1.1 200 OK\r\nx: "}.items():
            with self.subTest(name):
                ended = self.run_first(begin(answer), "--timeout", "1", out=name)
                self.assertEqual(ended.code, 5, ended)
                self.check_told(ended, name, FIRST)

    def test_no_reply_is_said_where_nothing_came(self):
        ended = self.run_first(b"")
        self.assertEqual(ended.code, 5)
        self.assertIn("no reply", ended.err)

    def test_first_step_takes_such_replies_too(self):
        lines = b"".join(b"x-demo-%d: y\r\n" % number for number in range(300))
        body = gzip.compress(json.dumps(CALLED).encode())
        head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n" % len(body)
        server = self.serve(head + lines + b"\r\n" + body, respond(ENDED), respond(ANSWERED))
        ended = self.live(server)
        self.assertEqual(ended.code, 0, ended)
