"""Failed only where a request certainly had no effect: every status, and what its body says."""

from __future__ import annotations

import gzip
import json
import unittest

from run_handoff import Outcome, judge_outcome
from tests.conditions import FIRST, ConditionsTestCase
from tests.support import CALLED, api_error, respond
from tests.vendors import VENDORS, VendorTestCase

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


class EveryApiTest(unittest.TestCase):
    """The same rules hold for the replies of each API; no run is needed to see it."""

    def judge(self, vendor, body, status, **facts):
        """Return (state, why) of a reply."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        state, why, _ = judge_outcome(Outcome(body=body, http_status=status, **facts), vendor.name)
        return state, why

    def test_every_status_is_judged_alike(self):
        for name, vendor in VENDORS.items():
            for status in (101, *range(200, 531), 598, 599, 600, 999):
                state = "failed" if status in FAILED or status == 529 else "unclear"
                with self.subTest(status, api=name):
                    self.assertEqual(self.judge(vendor, vendor.error(status=status), status)[0], state)
                    page = "failed" if status in FAILED else "unclear"
                    self.assertEqual(self.judge(vendor, b"<html>busy</html>", status)[0], page)
                    whole = {200: "confirmed"}.get(status, page)
                    self.assertEqual(self.judge(vendor, vendor.called, status)[0], whole)

    def test_529_needs_the_error_of_its_api(self):
        bodies = {
            "nothing": b"",
            "null": b"null",
            "an empty object": {},
            "a list of two errors": [vendor.error() for vendor in VENDORS.values()],
            "an error that is null": {"type": "error", "error": None},
            "an error that is a list": {"type": "error", "error": ["overloaded"]},
            "an error that is true": {"error": True},
            "an error that is empty": {"error": {}},
            "a prompt that was blocked": {"promptFeedback": {"blockReason": "OTHER"}},
        }
        for name, vendor in VENDORS.items():
            self.assertEqual(self.judge(vendor, vendor.error(), 529)[0], "failed")
            self.assertEqual(self.judge(vendor, vendor.error(), 529, finding="cut")[0], "unclear")
            for phrase, body in bodies.items():
                with self.subTest(phrase, api=name):
                    self.assertEqual(self.judge(vendor, body, 529)[0], "unclear")

    def test_400_that_speaks_of_blocked_output_is_unclear_for_each(self):
        for name, vendor in VENDORS.items():
            for words, state in (
                (POLICY, "unclear"),
                (POLICY.upper(), "unclear"),
                ("Input blocked", "failed"),
            ):
                with self.subTest(words, api=name):
                    self.assertEqual(self.judge(vendor, vendor.error(words, status=400), 400)[0], state)

    def test_reply_that_began_and_broke_is_unclear(self):
        for name, vendor in VENDORS.items():
            for status in (200, None):
                with self.subTest(status, api=name):
                    state, _ = self.judge(vendor, vendor.called, status, finding="cut", began=True)
                    self.assertEqual(state, "unclear")
            self.assertEqual(self.judge(vendor, b"", None, opened=False, finding="no route")[0], "failed")

    def test_words_of_an_error_are_told_whatever_its_shape(self):
        said = "The model does not exist."
        shapes = {
            "the API's own": None,
            "in a list of one": [{"error": {"code": 404, "message": said, "status": "NOT_FOUND"}}],
            "pretty, as Gemini prints it": json.dumps({"error": {"message": said}}, indent=2).encode()
            + b"\n",
            "a code that is a number": {"error": {"message": said, "type": None, "code": 404}},
            "an error as text, as Ollama has it": {"error": said},
            "a message alone, as vLLM had it": {"object": "error", "message": said, "code": 404},
            "a detail": {"detail": said},
            "a text": said.encode(),
        }
        for name, vendor in VENDORS.items():
            for phrase, body in shapes.items():
                with self.subTest(phrase, api=name):
                    body = vendor.error(said, "not_found_error", 404) if body is None else body
                    state, why = self.judge(vendor, body, 404)
                    self.assertEqual(state, "failed")
                    self.assertIn(said, why)

    def test_why_a_prompt_was_blocked_is_told(self):
        body = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}
        state, why = self.judge(VENDORS["gemini"], body, 200)
        self.assertEqual(state, "unclear")
        self.assertIn("PROHIBITED_CONTENT", why)


class CauseTest(VendorTestCase):
    """What to mend is told for each API, also where its status does not say it."""

    INVALID_KEY = {
        "error": {
            "code": 400,
            "message": "API key not valid. Please pass a valid API key.",
            "status": "INVALID_ARGUMENT",
            "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}],
        }
    }

    def test_next_step_names_what_is_to_be_mended(self):
        cases = {
            "a key": (lambda vendor: respond(vendor.error(status=401), 401), "look at the key"),
            "an address": (lambda vendor: respond(vendor.error(status=404), 404), "the endpoint"),
            "load": (lambda vendor: respond(vendor.error(status=429), 429, retry_after="9"), "wait"),
            "a limit": (
                lambda vendor: respond(vendor.stop(vendor.called, vendor.stops["cut"])),
                "another --max-tokens",
            ),
        }
        for name, vendor in VENDORS.items():
            for phrase, (build, words) in cases.items():
                with self.subTest(phrase, api=name):
                    ended = self.live_at(vendor, self.serve(build(vendor)), out=f"{name}-{phrase}")
                    self.assertEqual(ended.code, 4, ended)
                    self.assertIn(words, ended.err.splitlines()[-1])

    def test_end_before_any_content_is_told(self):
        """Gemini leaves the content out where there is none; its tokens were used all the same."""
        candidates = {
            "an answer that is blocked": ({"finishReason": "SAFETY"}, "SAFETY", "mend the cause"),
            "no room for an answer": (
                {"content": {"role": "model"}, "finishReason": "MAX_TOKENS"},
                "MAX_TOKENS",
                "another --max-tokens",
            ),
            "a malformed call": (
                {"content": {}, "finishReason": "MALFORMED_FUNCTION_CALL"},
                "MALFORMED_FUNCTION_CALL",
                "mend the cause",
            ),
            "a refusal": (None, "I cannot.", "mend the cause"),
        }
        for phrase, (candidate, word, mend) in candidates.items():
            with self.subTest(phrase):
                vendor = VENDORS["gemini" if candidate else "chat"]
                refused = {"choices": [{"message": {"role": "assistant", "content": None, "refusal": word}}]}
                reply = {**vendor.answer("7"), **({"candidates": [candidate]} if candidate else refused)}
                ended = self.live_at(vendor, self.serve(respond(reply)), out=phrase)
                self.assertEqual((ended.code, self.states(phrase)[FIRST][-1]), (4, "confirmed"), ended)
                self.assertIn(word, ended.err)
                self.assertIn(mend, ended.err.splitlines()[-1])
                self.assertIn("usage", self.last(FIRST, phrase))

    def test_key_that_gemini_refuses_with_400_is_named(self):
        ended = self.live_at(VENDORS["gemini"], self.serve(respond(self.INVALID_KEY, 400)))
        self.assertEqual((ended.code, self.states()[FIRST][-1]), (4, "failed"), ended)
        self.assertIn("look at the key", ended.err.splitlines()[-1])
