"""What became of a request, judged from what came back; and what a reply must be in its step."""

from __future__ import annotations

import json
import unittest

import checkpoint_demo
import run_handoff
from run_handoff import Outcome
from tests.support import ANSWERED, CALLED, THINKING, message, text, tool_call

WHOLE = json.dumps(ANSWERED).encode()
API_ERROR = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'


def reply(status, body=WHOLE, **facts):
    return Outcome(body, http_status=status, **facts)


class JudgeOutcomeTest(unittest.TestCase):
    CASES = {
        "a whole message": (reply(200), "confirmed"),
        "a whole message whose gzip was decoded": (reply(200, content_encoding="gzip"), "confirmed"),
        "a refusal by the model": (reply(200, json.dumps(message([], "refusal")).encode()), "confirmed"),
        "a message of another model": (reply(200, json.dumps(message([], model="x")).encode()), "confirmed"),
        "a name that is not found": (Outcome(opened=False, finding="Name or service not known"), "failed"),
        "interrupted before it was open": (
            Outcome(opened=False, interrupted=True, finding="interrupted by Ctrl-C"),
            "failed",
        ),
        "400": (reply(400, b'{"type":"error","error":{"type":"api_error","message":"no"}}'), "failed"),
        "401 with a page": (reply(401, b"<html>"), "failed"),
        "403 cut short": (reply(403, b"", finding="the reply was cut short"), "failed"),
        "404 without a body": (reply(404, b""), "failed"),
        "413": (reply(413, b"too large"), "failed"),
        "429": (reply(429, API_ERROR), "failed"),
        "451": (reply(451, b""), "unclear"),
        "499": (reply(499, b""), "unclear"),
        "400 that speaks of output": (reply(400, b'{"error":"Output blocked by a policy"}'), "unclear"),
        "400 with a whole message": (reply(400), "failed"),
        "301": (reply(301, b""), "failed"),
        "302 cut short": (reply(302, b"", finding="cut"), "failed"),
        "303": (reply(303, b""), "failed"),
        "307": (reply(307, b""), "failed"),
        "308": (reply(308, b""), "failed"),
        "529 with the API's error": (reply(529, API_ERROR), "failed"),
        "529 with a page": (reply(529, b"<html>busy</html>"), "unclear"),
        "529 with the API's error, cut short": (reply(529, API_ERROR, finding="cut"), "unclear"),
        "529 with an error of another shape": (reply(529, b'{"error":"busy"}'), "unclear"),
        "a reply that only began": (Outcome(began=True, finding="time-out"), "unclear"),
        "time-out once it was open": (Outcome(finding="no whole reply within 2 s"), "unclear"),
        "a reply that could not be stored": (Outcome(finding="a reply came, but ..."), "unclear"),
        "408": (reply(408, API_ERROR), "unclear"),
        "500": (reply(500, API_ERROR), "unclear"),
        "502 with a page": (reply(502, b"<html>"), "unclear"),
        "503": (reply(503, b""), "unclear"),
        "504": (reply(504, API_ERROR), "unclear"),
        "500 with a whole message": (reply(500), "unclear"),
        "103": (reply(103, b""), "unclear"),
        "201 with a whole message": (reply(201), "unclear"),
        "204": (reply(204, b""), "unclear"),
        "206 with a whole message": (reply(206), "unclear"),
        "304": (reply(304, b""), "unclear"),
        "600": (reply(600), "unclear"),
        "200 with trouble": (reply(200, finding="the reply was cut short"), "unclear"),
        "200 with an error": (reply(200, API_ERROR), "unclear"),
        "200 without a body": (reply(200, b""), "unclear"),
        "200 with a page": (reply(200, b"<html>"), "unclear"),
        "200 with other JSON": (reply(200, b'{"ok":true}'), "unclear"),
        "200 with a completion of another API": (reply(200, b'{"choices":[]}'), "unclear"),
        "200 with a message of the user's": (reply(200, WHOLE.replace(b'"assistant"', b'"user"')), "unclear"),
        "200 with content null": (
            reply(200, b'{"type":"message","role":"assistant","content":null}'),
            "unclear",
        ),
        "200 with a block without a type": (
            reply(200, b'{"type":"message","role":"assistant","content":[{}]}'),
            "unclear",
        ),
        "200 with NaN": (reply(200, WHOLE.replace(b"457", b"NaN")), "unclear"),
        "200 with a repeated key": (reply(200, b'{"type":"message",' + WHOLE[1:]), "unclear"),
        "200 with two messages": (reply(200, WHOLE + WHOLE), "unclear"),
        "200 with 101 levels": (reply(200, b'{"a":' * 101 + b"1" + b"}" * 101), "unclear"),
        "a whole message beside too many objects": (
            reply(200, WHOLE[:-1] + b',"more":[' + b"{}," * 200_000 + b"{}]}"),
            "unclear",
        ),
        "200 with too many objects": (reply(200, b"[" + b"{}," * 200_000 + b"{}]"), "unclear"),
        "200 with an event stream": (reply(200, b"event: message_start\ndata: {}\n\n"), "unclear"),
    }

    def test_outcome_is_told_apart(self):
        for name, (outcome, expected) in self.CASES.items():
            with self.subTest(name):
                state, why, body = run_handoff.judge_outcome(outcome)
                self.assertEqual(state, expected, why)
                self.assertEqual(bool(why), expected != "confirmed")
                self.assertEqual(body is not None, expected == "confirmed")

    FAILED = (
        *(301, 302, 303, 307, 308, 529),
        *(400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 417, 421, 422, 426, 428, 429, 431),
    )

    def test_no_other_status_is_taken_for_failed_or_confirmed(self):
        for status in range(100, 1_000):
            state, _, _ = run_handoff.judge_outcome(reply(status, API_ERROR))
            self.assertEqual(state, "failed" if status in self.FAILED else "unclear", status)

    def test_refusal_says_when_the_server_would_take_another_request(self):
        for status in (429, 529):
            with self.subTest(status):
                state, why, _ = run_handoff.judge_outcome(reply(status, API_ERROR, retry_after="30"))
                self.assertEqual(state, "failed")
                self.assertTrue(why.endswith("; retry-after: 30"), why)

    def test_error_of_the_api_is_passed_on_escaped(self):
        body = b'{"type":"error","error":{"type":"invalid\\u001b[2J","message":"no \\u202e\\u0007 credit"}}'
        _, why, _ = run_handoff.judge_outcome(reply(400, body))
        self.assertIn(r'(invalid\x1b[2J: the string "no \u202e\u0007 credit")', why)
        self.assertTrue(why.isprintable())


class OutcomeFactsTest(unittest.TestCase):
    def test_facts_name_what_is_out_of_the_ordinary(self):
        ordinary = Outcome(b"x", http_status=200, opened=True, key_removed=False, finding="", request_id="")
        self.assertEqual(set(ordinary.facts), {"http_status", "response_sha256"})
        odd = Outcome(opened=False, key_removed=True, finding="refused", elapsed_milliseconds=0)
        expected = {"opened": False, "key_removed": True, "finding": "refused", "elapsed_milliseconds": 0}
        self.assertEqual(odd.facts, expected)

    def test_empty_reply_has_a_digest_and_no_reply_has_none(self):
        self.assertIn("response_sha256", Outcome(b"").facts)
        self.assertNotIn("response_sha256", Outcome().facts)


class MisfitTest(unittest.TestCase):
    CASES = {
        "step 1, one call": (run_handoff.TOOL_REQUEST, CALLED, None),
        "step 1, thinking and text before it": (
            run_handoff.TOOL_REQUEST,
            message([THINKING, text("I read."), tool_call()], "tool_use"),
            None,
        ),
        "step 1, no call": (run_handoff.TOOL_REQUEST, message([text("7")], "tool_use"), "content"),
        "step 1, two calls": (
            run_handoff.TOOL_REQUEST,
            message([tool_call(), tool_call("toolu_2")], "tool_use"),
            "content[1]",
        ),
        "step 1, another tool": (
            run_handoff.TOOL_REQUEST,
            message([tool_call(name="place_order")], "tool_use"),
            "content[0].name",
        ),
        "step 1, arguments": (
            run_handoff.TOOL_REQUEST,
            message([tool_call(arguments={"sku": "DEMO-001"})], "tool_use"),
            "content[0].input.sku",
        ),
        "step 1, arguments as text": (
            run_handoff.TOOL_REQUEST,
            message([tool_call(arguments="{}")], "tool_use"),
            "content[0].input",
        ),
        "step 1, an empty id": (
            run_handoff.TOOL_REQUEST,
            message([tool_call("")], "tool_use"),
            "content[0].id",
        ),
        "step 1, a number as id": (
            run_handoff.TOOL_REQUEST,
            message([tool_call(7)], "tool_use"),
            "content[0]",
        ),
        "step 1, a server tool as well": (
            run_handoff.TOOL_REQUEST,
            message([{"type": "server_tool_use"}, tool_call()], "tool_use"),
            "content[0]",
        ),
        "step 1, ended": (run_handoff.TOOL_REQUEST, message([tool_call()], "end_turn"), "stop_reason"),
        "step 1, cut": (run_handoff.TOOL_REQUEST, message([tool_call()], "max_tokens"), "stop_reason"),
        "step 2, ended": (run_handoff.TOOL_RESULT, message([text("Done.")]), None),
        "step 2, nothing to say": (run_handoff.TOOL_RESULT, message([]), None),
        "step 2, another call": (run_handoff.TOOL_RESULT, message([tool_call()]), "content[0]"),
        "step 2, stop reason null": (run_handoff.TOOL_RESULT, message([], None), "stop_reason"),
        "step 3, ended": (run_handoff.HANDOFF, ANSWERED, None),
        "step 3, a call": (run_handoff.HANDOFF, message([tool_call()], "tool_use"), "stop_reason"),
        "step 3, an MCP call": (run_handoff.HANDOFF, message([{"type": "mcp_tool_use"}]), "content[0]"),
        "step 3, text without text": (run_handoff.HANDOFF, message([{"type": "text"}]), "content[0]"),
        "step 3, stop reason a list": (run_handoff.HANDOFF, message([], ["end_turn"]), "stop_reason"),
    }

    def test_reply_fits_its_step_or_is_refused_at_its_place(self):
        for name, (step, reply_message, place) in self.CASES.items():
            with self.subTest(name):
                findings = run_handoff.find_step_findings(
                    checkpoint_demo.DEMO, step, reply_message, key_removed=False
                )
                self.assertEqual([finding.path for finding in findings][:1], [place] if place else [])

    def test_stop_reason_absent_fits_no_step(self):
        for step in run_handoff.STEPS:
            with self.subTest(step.operation_id):
                reply_message = message([tool_call()] if step is run_handoff.TOOL_REQUEST else [])
                del reply_message["stop_reason"]
                findings = run_handoff.find_step_findings(
                    checkpoint_demo.DEMO, step, reply_message, key_removed=False
                )
                self.assertEqual(findings[0].path, "stop_reason")

    def test_key_in_what_must_be_sent_back_ends_step_1_only(self):
        marked = message([text("[key removed]"), tool_call()], "tool_use")
        self.assertEqual(
            run_handoff.find_step_findings(
                checkpoint_demo.DEMO, run_handoff.TOOL_REQUEST, marked, key_removed=False
            ),
            [],
        )
        self.assertEqual(
            len(
                run_handoff.find_step_findings(
                    checkpoint_demo.DEMO, run_handoff.TOOL_REQUEST, marked, key_removed=True
                )
            ),
            1,
        )
        ended = message([text("[key removed]")])
        self.assertEqual(
            run_handoff.find_step_findings(
                checkpoint_demo.DEMO, run_handoff.TOOL_RESULT, ended, key_removed=True
            ),
            [],
        )
