"""A cost is known only where the price list covers all of a reply's usage; else a field is named."""

from __future__ import annotations

import json

from tests.conditions import FIRST, RECEIVER, THIRD, ConditionsTestCase
from tests.support import ANSWER, THINKING, handoff, message, respond, text

KNOWN_COST = "0.003168"  # 457 at 4 and 67 at 20 micro-dollars
GOOD = {"input_tokens": 457, "output_tokens": 67}
ZERO_CACHE = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
ITERATION = {"type": "message", "input_tokens": 457, "output_tokens": 67, **ZERO_CACHE}

# Fields beside good token counts that are known to cost nothing.
NEUTRAL = {
    "nothing else": {},
    "cache counters of 0": ZERO_CACHE,
    "cache counters of null": dict.fromkeys(ZERO_CACHE),
    "cache tokens by their life, 0": {
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}
    },
    "cache tokens by their life, null": {"cache_creation": None},
    "cache tokens by their life, none": {"cache_creation": {}},
    "the standard tier": {"service_tier": "standard"},
    "no tier": {"service_tier": None},
    "the standard speed": {"speed": "standard"},
    "no speed": {"speed": None},
    "no server tools": {"server_tool_use": None},
    "server tools unused": {"server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0}},
    "thinking, which the output tokens hold": {"output_tokens_details": {"thinking_tokens": 9}},
    "no iterations": {"iterations": None},
    "one iteration, of the message": {"iterations": [ITERATION]},
    "no credit": {"fallback_credit": None},
    "no place": {"inference_geo": None},
    "any place": {"inference_geo": "global"},
    "a place that is not told": {"inference_geo": "not_available"},
    "all of them, as the vendor sends them": {
        **ZERO_CACHE,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0},
        "service_tier": "standard",
        "inference_geo": "global",
        "speed": "standard",
    },
}
# Changes of the good usage that make a cost unknown, and the field that must be named.
ODD = {
    "no input": ({"input_tokens": 0}, "input_tokens"),
    "no output beside a text": ({"output_tokens": 0}, "output_tokens"),
    "both zero": ({"input_tokens": 0, "output_tokens": 0}, "input_tokens"),
    "input null": ({"input_tokens": None}, "input_tokens"),
    "input below zero": ({"input_tokens": -1}, "input_tokens"),
    "input a float": ({"input_tokens": 457.0}, "input_tokens"),
    "input a string": ({"input_tokens": "457"}, "input_tokens"),
    "input true": ({"input_tokens": True}, "input_tokens"),
    "output beyond reason": ({"output_tokens": 10**30}, "output_tokens"),
    "tokens written to the cache": ({"cache_creation_input_tokens": 1}, "cache_creation_input_tokens"),
    "tokens read from the cache": ({"cache_read_input_tokens": 2_000}, "cache_read_input_tokens"),
    "a cache counter of false": ({"cache_read_input_tokens": False}, "cache_read_input_tokens"),
    "a cache counter as text": ({"cache_read_input_tokens": "0"}, "cache_read_input_tokens"),
    "cache tokens by their life": (
        {"cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 9}},
        "cache_creation",
    ),
    "cache tokens by a new life": ({"cache_creation": {"ephemeral_9d_input_tokens": 9}}, "cache_creation"),
    "cache tokens in a list": ({"cache_creation": [9]}, "cache_creation"),
    "the priority tier": ({"service_tier": "priority"}, "service_tier"),
    "the batch tier, which is cheaper": ({"service_tier": "batch"}, "service_tier"),
    "a tier that is a number": ({"service_tier": 1}, "service_tier"),
    "a tier in capitals": ({"service_tier": "STANDARD"}, "service_tier"),
    "the fast speed": ({"speed": "fast"}, "speed"),
    "a dearer place": ({"inference_geo": "us"}, "inference_geo"),
    "a search": ({"server_tool_use": {"web_search_requests": 1}}, "server_tool_use"),
    "a new server tool": ({"server_tool_use": {"code_execution_requests": 3}}, "server_tool_use"),
    "a compaction": (
        {"iterations": [{**ITERATION, "type": "compaction"}, ITERATION]},
        "iterations",
    ),
    "iterations that are a number": ({"iterations": 2}, "iterations"),
    "a credit": ({"fallback_credit": 5}, "fallback_credit"),
    "a gateway's own cost": ({"cost": 0.01}, "cost"),
    "a gateway's own flag": ({"is_byok": True}, "is_byok"),
    "another API's count": ({"prompt_tokens": 457}, "prompt_tokens"),
    "another API's count of zero": ({"reasoning_tokens": 0}, "reasoning_tokens"),
    "a field of tomorrow": ({"quantum_tokens": None}, "quantum_tokens"),
    "a field with escapes in its name": ({"\x1b[2Jodd": 1}, "odd"),
}


class CostTest(ConditionsTestCase):
    def answer_with(self, number, usage, content=None):
        """Answer the first request of a run with this usage; return (how it Ended, the request's record)."""
        reply = {**message([text("7")] if content is None else content), "usage": usage}
        out = f"run-{number}"
        ended = self.run_first(respond(reply), "--sender", RECEIVER, out=out)
        self.assertEqual(self.inspect(out).code, ended.code)
        return ended, self.last(FIRST, out)

    def test_usage_that_the_price_list_covers_has_a_cost(self):
        for number, (name, beside) in enumerate(NEUTRAL.items()):
            with self.subTest(name):
                _, record = self.answer_with(number, {**GOOD, **beside})
                self.assertEqual(record["cost_usd"], KNOWN_COST)

    def test_usage_with_anything_else_has_no_cost_and_the_field_is_named(self):
        for number, (name, (changes, field)) in enumerate(ODD.items()):
            with self.subTest(name):
                ended, record = self.answer_with(number, {**GOOD, **changes})
                self.assertEqual(record["cost_usd"], "unknown")
                self.assertEqual(self.last("run", f"run-{number}")["cost_usd"], "unknown")
                beside = {key: value for key, value in record.items() if key != "usage"}
                self.assertIn(field, json.dumps(beside), "the ledger does not name the field")
                self.assertIn(field, ended.out + ended.err, "the terminal does not name the field")
                self.assertIn(field, self.report(f"run-{number}"), "the report does not name the field")
                self.assertTrue((ended.out + ended.err).replace("\n", "").isprintable())

    def test_usage_of_another_kind_or_without_a_count_has_no_cost(self):
        missing = {name: {key: GOOD[key] for key in GOOD if key != name} for name in GOOD}
        for number, usage in enumerate((None, [457, 67], "457", 7, {}, *missing.values())):
            with self.subTest(usage):
                _, record = self.answer_with(number, usage)
                self.assertEqual(record["cost_usd"], "unknown")

    def test_no_output_tokens_are_believed_only_where_there_is_no_content(self):
        usage = {"input_tokens": 457, "output_tokens": 0}
        contents = {
            "no content": ([], "0.001828"),
            "a text": ([text("7")], "unknown"),
            "an empty text": ([text("")], "unknown"),  # a block is content: the API bills it
            "thinking alone": ([THINKING], "unknown"),
        }
        for number, (name, (content, expected)) in enumerate(contents.items()):
            with self.subTest(name):
                _, record = self.answer_with(number, usage, content)
                self.assertEqual(record["cost_usd"], expected)

    def test_unknown_cost_of_one_request_makes_the_sum_unknown_and_never_loses_the_answer(self):
        answer = message([text(ANSWER)], model=RECEIVER)
        ended = self.run_third(respond({**answer, "usage": {**GOOD, "speed": "fast"}}))
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("accepted: 3 rows", ended.out)
        self.assertEqual([self.last(name)["cost_usd"] for name in (THIRD, "run")], ["unknown"] * 2)
        self.assertIn("speed", json.dumps(self.last(THIRD)))
        self.assertEqual(self.inspect().code, 0)

    def test_model_without_a_price_has_no_cost_and_that_is_said(self):
        reply = respond({**message([text("7")]), "usage": GOOD})
        ended = self.run_first(reply, "--sender", "invented-model")
        self.assertEqual(self.last(FIRST)["cost_usd"], "unknown")
        self.assertIn("price", ended.out + ended.err)

    def test_rehearsal_costs_nothing_whatever_its_usage_is(self):
        ended = handoff("--rehearse", "--out", self.path("rehearsed"))
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(self.last("run", "rehearsed")["cost_usd"], "0.000000")
