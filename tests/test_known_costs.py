"""A cost is known only where the price list covers all of a reply's usage; else a field is named."""

from __future__ import annotations

import json
import unittest
from unittest import mock

import run_handoff
from tests.conditions import FIRST, RECEIVER, THIRD, ConditionsTestCase
from tests.support import ANSWER, THINKING, handoff, message, respond, text
from tests.vendors import VENDORS, VendorTestCase

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


# What the other APIs say beside {"prompt_tokens": 457, "completion_tokens": 67} or the like, in three tables.
COUNTS = {
    "chat": {"prompt_tokens": 457, "completion_tokens": 67},
    "gemini": {"promptTokenCount": 457, "candidatesTokenCount": 67},
}
ONE_AUDIO = [{"modality": "TEXT", "tokenCount": 448}, {"modality": "AUDIO", "tokenCount": 9}]
KNOWN = {
    "chat": {
        "nothing else": {},
        "their sum": {"total_tokens": 524},
        "details of null": {"prompt_tokens_details": None, "completion_tokens_details": None},
        "details of nothing": {"prompt_tokens_details": {}, "completion_tokens_details": {}},
        "no cached tokens, as Moonshot has it": {"cached_tokens": 0},
        "reasoning, which the completion holds": {"completion_tokens_details": {"reasoning_tokens": 9}},
        "all of them, as OpenAI sends them": {
            "total_tokens": 524,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 64,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
    },
    "gemini": {
        "nothing else": {},
        "their sum": {"totalTokenCount": 524},
        "thoughts beside the candidates": {"candidatesTokenCount": 58, "thoughtsTokenCount": 9},
        "all three, and their sum": {
            "candidatesTokenCount": 58,
            "thoughtsTokenCount": 9,
            "totalTokenCount": 524,
        },
        "no thoughts": {"thoughtsTokenCount": 0},
        "nothing cached": {"cachedContentTokenCount": 0},
        "nothing for tools": {"toolUsePromptTokenCount": 0},
        "text alone": {"promptTokensDetails": [{"modality": "TEXT", "tokenCount": 457}]},
    },
}
GAPS = {
    "chat": {
        "tokens from the cache": (
            {"prompt_tokens_details": {"cached_tokens": 256}},
            "prompt_tokens_details",
        ),
        "tokens from the cache, as Moonshot has it": ({"cached_tokens": 256}, "cached_tokens"),
        "a cache counter of false": (
            {"prompt_tokens_details": {"cached_tokens": False}},
            "prompt_tokens_details",
        ),
        "audio": ({"completion_tokens_details": {"audio_tokens": 9}}, "completion_tokens_details"),
        "details in a list": ({"prompt_tokens_details": [9]}, "prompt_tokens_details"),
        "another sum, as where reasoning comes on top": ({"total_tokens": 824}, "total_tokens"),
        "no input": ({"prompt_tokens": 0}, "prompt_tokens"),
        "no output beside a text": ({"completion_tokens": 0}, "completion_tokens"),
        "input as text": ({"prompt_tokens": "457"}, "prompt_tokens"),
        "input true": ({"prompt_tokens": True}, "prompt_tokens"),
        "output a float": ({"completion_tokens": 67.0}, "completion_tokens"),
        "output below zero": ({"completion_tokens": -1}, "completion_tokens"),
        "output beyond reason": ({"completion_tokens": 10**30}, "completion_tokens"),
        "a search": ({"num_sources_used": 3}, "num_sources_used"),
        "a gateway's own cost": ({"cost": 0.01}, "cost"),
        "another API's count": ({"input_tokens": 457}, "input_tokens"),
        "a field of tomorrow": ({"quantum_tokens": None}, "quantum_tokens"),
    },
    "gemini": {
        "tokens from the cache": ({"cachedContentTokenCount": 256}, "cachedContentTokenCount"),
        "a cache counter as text": ({"cachedContentTokenCount": "0"}, "cachedContentTokenCount"),
        "tokens for tools": ({"toolUsePromptTokenCount": 9}, "toolUsePromptTokenCount"),
        "thoughts below zero": ({"thoughtsTokenCount": -1}, "thoughtsTokenCount"),
        "thoughts as text": ({"thoughtsTokenCount": "9"}, "thoughtsTokenCount"),
        "audio": ({"promptTokensDetails": ONE_AUDIO}, "promptTokensDetails"),
        "another sum": ({"totalTokenCount": 824}, "totalTokenCount"),
        "no input": ({"promptTokenCount": 0}, "promptTokenCount"),
        "no output beside a text": ({"candidatesTokenCount": 0}, "candidatesTokenCount"),
        "output as text": ({"candidatesTokenCount": "67"}, "candidatesTokenCount"),
        "a tier of its own": ({"trafficType": "PROVISIONED_THROUGHPUT"}, "trafficType"),
        "another API's count": ({"prompt_tokens": 457}, "prompt_tokens"),
        "a field of tomorrow": ({"quantumTokenCount": None}, "quantumTokenCount"),
    },
}


class EveryApiTest(unittest.TestCase):
    """The fields of usage that each API has; a price as that of the recorded receiver."""

    PRICE = (4, 20)

    def build(self, name, usage):
        """Return a reply of an API with this usage."""
        return {**VENDORS[name].answer("7"), VENDORS[name].usage_field: usage}

    def test_usage_that_the_price_covers_has_a_cost(self):
        for name, cases in KNOWN.items():
            for phrase, beside in cases.items():
                with self.subTest(phrase, api=name):
                    reply = self.build(name, {**COUNTS[name], **beside})
                    self.assertEqual(run_handoff.find_cost_gap(reply, name), "")
                    self.assertEqual(run_handoff.compute_cost(self.PRICE, reply, name), 3_168)
                    counts = run_handoff.parse_usage(reply, name)
                    self.assertEqual((counts["input_tokens"], counts["output_tokens"]), (457, 67))

    def test_usage_with_anything_else_has_no_cost_and_the_field_is_named(self):
        for name, cases in GAPS.items():
            for phrase, (changes, field) in cases.items():
                with self.subTest(phrase, api=name):
                    reply = self.build(name, {**COUNTS[name], **changes})
                    self.assertIsNone(run_handoff.compute_cost(self.PRICE, reply, name))
                    self.assertIn(field, run_handoff.find_cost_gap(reply, name))

    def test_usage_of_another_kind_or_without_a_count_has_no_cost(self):
        for name, counts in COUNTS.items():
            missing = [{key: counts[key] for key in counts if key != left} for left in counts]
            for usage in (None, [457, 67], "457", 7, {}, *missing):
                with self.subTest(usage, api=name):
                    reply = self.build(name, usage)
                    self.assertIsNone(run_handoff.compute_cost(self.PRICE, reply, name))

    def test_tier_that_chat_names_beside_usage_counts(self):
        for tier, is_known in (("default", True), (None, True), ("priority", False), ("flex", False)):
            with self.subTest(tier):
                reply = {**self.build("chat", COUNTS["chat"]), "service_tier": tier}
                cost = run_handoff.compute_cost(self.PRICE, reply, "chat")
                self.assertEqual(cost, 3_168 if is_known else None)

    def test_counts_are_recorded_under_one_name_each(self):
        chat = {
            **COUNTS["chat"],
            "prompt_tokens_details": {"cached_tokens": 5},
            "completion_tokens_details": {"reasoning_tokens": 9},
        }
        gemini = {
            "promptTokenCount": 457,
            "candidatesTokenCount": 58,
            "thoughtsTokenCount": 9,
            "cachedContentTokenCount": 5,
        }
        expected = {
            "input_tokens": 457,
            "output_tokens": 67,
            "cache_read_input_tokens": 5,
            "thinking_tokens": 9,
        }
        for name, usage in (("chat", chat), ("gemini", gemini)):
            with self.subTest(name):
                self.assertEqual(run_handoff.parse_usage(self.build(name, usage), name), expected)


class PriceTest(VendorTestCase):
    def test_model_without_a_price_has_no_cost_and_one_that_is_added_has(self):
        for name in ("chat", "gemini"):
            vendor = VENDORS[name]
            for prices, costs in (
                ({}, ["unknown"] * 3),
                ({vendor.model: (1, 2), vendor.other_model: (4, 20)}, ["0.000521", "0.001048", "0.003168"]),
            ):
                out = f"{name}-{len(prices)}"
                script = [respond(reply) for reply in (vendor.called, vendor.ended, vendor.answer(ANSWER))]
                with self.subTest(out), mock.patch.dict(run_handoff.PRICES_MICRO_USD, prices):
                    ended = self.live_at(vendor, self.serve(*script), out=out)
                    self.assertEqual(ended.code, 0, ended)
                    seen = [record["cost_usd"] for record in self.ledger(out) if "usage" in record]
                    self.assertEqual(seen, costs)
                    self.assertIn("0.004737" if prices else "price", ended.out + ended.err)
                self.assertEqual(self.inspect(out).code, 0, "the price of the time was recorded")
