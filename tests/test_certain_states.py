"""Failed only where a request certainly had no effect: every status, and what its body says."""

from __future__ import annotations

import gzip
import json

from tests.conditions import FIRST, ConditionsTestCase
from tests.support import CALLED, api_error, respond

# Refused before any work, whatever else the server says.
FAILED = {
    *(400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 417, 421, 422, 426, 428, 429, 431),
    *(301, 302, 303, 307, 308),
}
POLICY = "Output blocked by content filtering policy"


class StatusTest(ConditionsTestCase):
    def run_with(self, out, *reply, **headers):
        """Answer a run's first request; return how the run Ended, which its inspection agrees with."""
        ended = self.run_first(respond(*reply, **headers), out=out)
        self.assertEqual(self.server.connections, 1)
        self.assertEqual(self.inspect(out).code, ended.code)
        return ended

    def check(self, out, ended, state):
        self.assertEqual(self.states(out)[FIRST][-1], state, ended)
        self.assertEqual(ended.code, {"failed": 4, "unclear": 5}[state], ended)

    def test_every_status_from_300_to_499_is_failed_or_unclear_as_listed(self):
        for status in range(300, 500):
            with self.subTest(status):
                ended = self.run_with(str(status), api_error("invalid_request_error"), status)
                self.check(str(status), ended, "failed" if status in FAILED else "unclear")

    def test_every_other_status_is_unclear_but_529_with_the_error_of_the_api(self):
        for status in (101, 201, 202, 203, 204, 205, 206, 226, *range(500, 531), 598, 599, 600, 999):
            with self.subTest(status):
                ended = self.run_with(str(status), api_error("overloaded_error"), status)
                self.check(str(status), ended, "failed" if status == 529 else "unclear")

    def test_529_without_the_error_of_the_api_is_unclear(self):
        bodies = {
            "a page": b"<html>busy</html>",
            "nothing": b"",
            "an error of another shape": {"error": {"message": "overloaded", "type": "overloaded_error"}},
            "an error as text": {"type": "error", "error": "overloaded"},
            "a whole message": CALLED,
            "a list": [api_error("overloaded_error")],
        }
        for name, body in bodies.items():
            with self.subTest(name):
                self.check(name, self.run_with(name, body, 529), "unclear")

    def test_400_that_speaks_of_blocked_output_is_unclear(self):
        bodies = {
            "the vendor's words": {
                **api_error("x"),
                "error": {"type": "invalid_request_error", "message": POLICY},
            },
            "in capitals": {**api_error("x"), "error": {"type": "api_error", "message": POLICY.upper()}},
            "in small letters": {**api_error("x"), "error": {"type": "x", "message": POLICY.lower()}},
            "in mixed letters": {**api_error("x"), "error": {"type": "x", "message": "OUTPUT Blocked"}},
            "behind other words": {
                **api_error("x"),
                "error": {"type": "x", "message": f"upstream: {POLICY}."},
            },
            "a gateway's envelope": {"error": {"message": POLICY, "code": "400"}},
            "an error as text": {"error": POLICY},
            "a message alone": {"message": POLICY},
            "a detail": {"detail": POLICY},
            "a list of one": [{"error": {"code": 400, "message": POLICY}}],
            "a text": POLICY.encode(),
            "a page": f"<html><p>{POLICY}</p></html>".encode(),
            "far behind": {"error": {"message": "x" * 5_000 + POLICY}},
        }
        for name, body in bodies.items():
            with self.subTest(name):
                self.check(name, self.run_with(name, body, 400), "unclear")

    def test_400_that_speaks_of_blocked_output_is_unclear_when_it_is_escaped_or_packed(self):
        escaped = json.dumps({"error": {"message": POLICY}}).replace("lock", "\\u006cock").encode()
        self.check("escaped", self.run_with("escaped", escaped, 400), "unclear")
        packed = gzip.compress(json.dumps({"error": {"message": POLICY}}).encode())
        ended = self.run_with("packed", packed, 400, content_encoding="gzip")
        self.check("packed", ended, "unclear")

    def test_400_with_other_words_is_failed(self):
        words = (
            "messages: text content blocks must be non-empty",
            "Input blocked by content filtering policy",  # nothing was made yet
            "output_config: extra inputs are not permitted",
            "the output would be blocked",
            "",
        )
        for number, said in enumerate(words):
            with self.subTest(said):
                body = {**api_error("x"), "error": {"type": "invalid_request_error", "message": said}}
                self.check(str(number), self.run_with(str(number), body, 400), "failed")

    def test_other_refusals_are_failed_whatever_they_say(self):
        """Only a 400 was seen to come behind output; the others are decided in front of the model."""
        for status in (401, 403, 429):
            with self.subTest(status):
                body = {**api_error("x"), "error": {"type": "x", "message": POLICY}}
                self.check(str(status), self.run_with(str(status), body, status), "failed")

    def test_unclear_request_is_to_be_looked_up_and_a_failed_one_is_not(self):
        for status, is_unclear in ((400, False), (409, True), (425, True), (499, True)):
            with self.subTest(status):
                ended = self.run_with(str(status), api_error("x"), status)
                self.assertEqual("look up" in ended.err, is_unclear, ended)
