"""One scripted server a case: what a live run makes of it, as the first request's reply and as the third's.

`also` of a case is checked by name; a case with an unknown one fails. Those named stream-* come with
streams.
"""

from __future__ import annotations

import base64
import gzip
import json

from tests.conditions import (
    FIRST,
    THIRD,
    ConditionsTestCase,
    build_reply,
    find_closed_port,
    send_after,
    send_then_reset,
)
from tests.support import CASES

KEY_OF_CASES = "sk-demo-THE-KEY-FROM-THE-TEST"
COST_UNKNOWN = (
    "the request's cost is unknown in the ledger, the table and the report, and so is the sum;"
    " the answer is judged and accepted"
)


def read_cases():
    """Return {name: case} of those that are not about streams."""
    lines = (CASES / "server" / "expected.jsonl").read_text(encoding="utf-8").split("\n")
    cases = {case["name"]: case for case in map(json.loads, filter(None, lines))}
    return {name: case for name, case in cases.items() if "-stream-" not in name}


def decode_body(case):
    """Return the bytes of a case's body, as they go over the wire."""
    return base64.b64decode(case["body_b64"]) if "body_b64" in case else case.get("body", "").encode()


class ServerCasesTest(ConditionsTestCase):
    def test_cases_are_there(self):
        cases = read_cases()
        self.assertGreaterEqual(len(cases), 24)
        self.assertTrue(
            all(case["expected"] in ("confirmed", "failed", "unclear") for case in cases.values())
        )

    def test_every_case_ends_as_it_says_whichever_request_meets_it(self):
        for name, case in read_cases().items():
            for operation_id in (FIRST, THIRD):
                with self.subTest(name, operation=operation_id):
                    self.judge(name, case, operation_id)

    def judge(self, name, case, operation_id):
        """Do the run of a case, and compare what it says."""
        self.case, self.operation_id = case, operation_id
        self.out = f"{name}-{operation_id}"
        self.other = self.serve()
        options = ["--timeout", "1"] if "until the client's own timeout" in case["behaviour"] else []
        run = self.run_first if operation_id == FIRST else self.run_third
        earlier = 0 if operation_id == FIRST else 2
        if case["requests_seen"] == 0:
            if operation_id == THIRD:  # the port is closed from the first request on
                return
            self.ended = self.live(f"http://127.0.0.1:{find_closed_port()}/", out=self.out, key=KEY_OF_CASES)
        else:
            self.ended = run(self.build_entry(case), *options, out=self.out, key=KEY_OF_CASES)
            self.assertEqual(self.server.connections, earlier + 1)
            self.assertEqual(len(self.server.requests), earlier + case["requests_seen"])
        states = self.states(self.out)[operation_id]
        self.assertEqual(states, ["planned", "in_flight", case["expected"]], self.ended)
        self.check_the_end(name)
        if "also" in case:
            self.assertIn(case["also"], self.ALSO)
            self.ALSO[case["also"]](self)

    def build_entry(self, case):
        """Return what the server does: an entry of a ScriptedServer."""
        behaviour, body = case["behaviour"], decode_body(case)
        if case["status"] is None:
            return lambda connection, request: self.server.released.wait(9)
        headers = {
            name: value.replace("OTHER", str(self.other.port)) for name, value in case["headers"].items()
        }
        if "as one chunk" in behaviour:
            body = b"%x\r\n%s\r\n" % (len(body), body)
        elif "the headers, then close" not in behaviour:
            headers.setdefault("content-length", str(len(body)))
        reply = build_reply(case["status"], headers.items(), body)
        if "then reset" in behaviour:
            return send_then_reset(reply)
        return send_after(1, reply) if "after 1 s" in behaviour else reply

    def check_the_end(self, name):
        """What holds of every run, whatever the server did."""
        code = {"unclear": (5,), "failed": (4,), "confirmed": (0, 1, 4)}[self.case["expected"]]
        self.assertIn(self.ended.code, code, self.ended)
        self.assertEqual(self.inspect(self.out).code, self.ended.code)
        self.check_nowhere(KEY_OF_CASES, self.ended)
        if self.case["status"] is not None:
            self.assertNotIn("no reply", self.ended.err)
        self.assertEqual(self.other.connections, 0)

    # --- What the cases say beside the state ---

    def check_key(self):
        self.assertEqual(self.server.requests[-1].headers["x-api-key"], KEY_OF_CASES)
        self.assertIn("key_removed" if self.case["status"] == 401 else "http_status", self.last_record())

    def last_record(self):
        return self.last(self.operation_id, self.out)

    def check_tokens_unknown(self):
        (row,) = [row for row in self.ended.out.split("\n") if row.startswith(self.operation_id)]
        self.assertEqual((row.split()[3], row.split()[-1]), ("unknown", "unknown"), row)

    def check_not_accepted(self):
        self.assertNotEqual(self.ended.code, 0)
        self.assertNotIn("accepted:", self.ended.out)
        self.assertNotIn("result.json", self.files(self.out))

    def check_cost_unknown(self):
        self.assertEqual(self.last_record()["cost_usd"], "unknown")
        self.assertEqual(self.last("run", self.out)["cost_usd"], "unknown")
        rows = {row.split()[0]: row.split() for row in self.ended.out.split("\n") if row.strip()}
        self.assertEqual([rows[name][-1] for name in (self.operation_id, "together")], ["unknown"] * 2)
        self.assertIn("<dt>dollars</dt><dd>unknown</dd>", self.report(self.out))
        self.assertNotRegex(self.report(self.out), r"Together [0-9.]+ dollars")
        if self.operation_id == THIRD:
            self.assertEqual(self.ended.code, 0, self.ended)
            self.assertIn("accepted: 3 rows, total shortage 7", self.ended.out)

    def check_unclear_at_the_end(self):
        self.assertEqual(self.ended.code, 5)

    def check_whole_body_decoded(self):
        body = decode_body(self.case)
        number = "1" if self.operation_id == FIRST else "3"
        self.assertEqual(self.files(self.out)[f"{number}-response.json"], gzip.decompress(body))
        self.assertEqual(self.last_record()["content_encoding"], "gzip")
        headers = {**self.case["headers"], "content-length": str(len(body) + 9)}
        padded = build_reply(200, headers.items(), body + bytes(9))
        self.run_first(padded, out=f"{self.out}-padded")
        self.assertEqual(self.states(f"{self.out}-padded")[FIRST][-1], "confirmed")
        self.assertEqual(self.files(f"{self.out}-padded")["1-response.json"], gzip.decompress(body))

    def check_words_of_the_gateway(self):
        words = "the field output_config is not allowed"
        self.assertIn(words, self.ended.err)
        self.assertIn(words, self.last_record()["why"])
        self.assertIn(words, self.report(self.out))

    def check_the_numbers(self):
        """The requests were counted already."""

    ALSO = {
        "second listener counts 0 connections; key seen by the first host only": check_key,
        "set the client's key to sk-demo-THE-KEY-FROM-THE-TEST; grep every stored file: no hit": check_key,
        "server counts exactly one request": check_the_numbers,
        "summary says tokens unknown": check_tokens_unknown,
        "validation fails; no second request": check_not_accepted,
        "validation fails; server counts exactly one request": check_not_accepted,
        "exit 5; it was sent after the model wrote": check_unclear_at_the_end,
        "3-response.json holds the whole decoded body; with zero bytes behind the last member the same": (
            check_whole_body_decoded
        ),
        "the refusal, the ledger and the report say what the gateway said:"
        " the field output_config is not allowed": check_words_of_the_gateway,
        COST_UNKNOWN: check_cost_unknown,
    }
