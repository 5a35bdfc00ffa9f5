"""Tokens and money: whole micro-dollars, and unknown rather than wrong."""

from __future__ import annotations

import unittest

import run_handoff
from tests.support import build_plan, message, text

SENDER, RECEIVER = "anthropic/claude-fable-5.2", "anthropic/claude-opus-5.5"


def used(**usage):
    return {"usage": usage}


class CostTest(unittest.TestCase):
    def test_cost_of_recorded_usage_is_exact(self):
        cases = {
            "request 1": (SENDER, (467, 27), "0.004816"),
            "request 2": (SENDER, (578, 235), "0.014024"),
            "request 3": (RECEIVER, (457, 67), "0.003168"),
            "Fable 5.1 on a long task": ("anthropic/claude-fable-5.1", (25_000, 2_000), "0.350000"),
            "Fable 5.2 on a long task": (SENDER, (25_000, 2_000), "0.280000"),
            "the vendor's own id": ("claude-opus-5-5", (457, 67), "0.003168"),
            "no tokens at all": (SENDER, (0, 0), "unknown"),
            "no tokens out": (SENDER, (467, 0), "unknown"),
            "a number that no double holds": (SENDER, (10**9, 10**9 - 1), "47999.999960"),
        }
        for name, (model, usage, expected) in cases.items():
            with self.subTest(name):
                price = run_handoff.PRICES_MICRO_USD[model]
                cost = run_handoff.compute_cost(price, message([text("7")], usage=usage))
                self.assertEqual(run_handoff.render_usd(cost), expected)

    def test_cost_of_odd_usage_is_unknown(self):
        good = {"input_tokens": 467, "output_tokens": 27}
        cases = {
            "a model without a price": ("other-model", used(**good)),
            "no usage": (SENDER, {}),
            "usage null": (SENDER, {"usage": None}),
            "usage a list": (SENDER, {"usage": [467, 27]}),
            "input missing": (SENDER, used(output_tokens=27)),
            "output null": (SENDER, used(input_tokens=467, output_tokens=None)),
            "a string": (SENDER, used(input_tokens="467", output_tokens=27)),
            "a float": (SENDER, used(input_tokens=467.0, output_tokens=27)),
            "true": (SENDER, used(input_tokens=True, output_tokens=27)),
            "a negative number": (SENDER, used(input_tokens=-1, output_tokens=27)),
            "a number beyond reason": (SENDER, used(input_tokens=10**400, output_tokens=27)),
            "tokens written to the cache": (SENDER, used(**good, cache_creation_input_tokens=1)),
            "tokens read from the cache": (SENDER, used(**good, cache_read_input_tokens=5)),
            "cache tokens false": (SENDER, used(**good, cache_read_input_tokens=False)),
            "cache tokens 0.0": (SENDER, used(**good, cache_read_input_tokens=0.0)),
            "cache tokens as a string": (SENDER, used(**good, cache_read_input_tokens="0")),
            "cache tokens by their life": (
                SENDER,
                used(**good, cache_creation={"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 9}),
            ),
            "cache tokens in another form": (SENDER, used(**good, cache_creation=[9])),
        }
        for name, (model, reply) in cases.items():
            with self.subTest(name):
                price = run_handoff.PRICES_MICRO_USD.get(model)
                self.assertIsNone(run_handoff.compute_cost(price, reply))

    def test_cost_with_empty_cache_fields_is_known(self):
        good = {"input_tokens": 467, "output_tokens": 27}
        for nothing in (0, None):
            with self.subTest(nothing):
                reply = used(**good, cache_creation_input_tokens=nothing, cache_read_input_tokens=nothing)
                self.assertEqual(run_handoff.compute_cost((8, 40), reply), 4_816)
                by_life = {"ephemeral_5m_input_tokens": nothing, "ephemeral_1h_input_tokens": 0}
                for written in (nothing, {}, by_life):
                    reply["usage"]["cache_creation"] = written
                    self.assertEqual(run_handoff.compute_cost((8, 40), reply), 4_816)

    def test_gap_of_the_price_list_is_named_by_its_first_field(self):
        good = {"input_tokens": 467, "output_tokens": 27}
        part = {"type": "message", **good, "cache_read_input_tokens": 0}
        cases = {
            "nothing": ({}, ""),
            "a part of the message": ({"iterations": [part]}, ""),
            "a fast part": ({"iterations": [{**part, "speed": "fast"}]}, "usage.iterations"),
            "a part of another kind": ({"iterations": [part, {"type": "compaction"}]}, "usage.iterations"),
            "the input before the others": ({"speed": "fast", "input_tokens": 0}, "usage.input_tokens"),
            "the first of two": ({"tier": 1, "speed": "fast"}, "usage.tier"),
        }
        for name, (changes, gap) in cases.items():
            with self.subTest(name):
                self.assertEqual(run_handoff.find_cost_gap({"usage": {**good, **changes}}), gap)

    def test_usage_keeps_plain_counts_only(self):
        reply = used(input_tokens=467, output_tokens="27", cache_read_input_tokens=3, surprise=9)
        self.assertEqual(run_handoff.parse_usage(reply), {"input_tokens": 467, "cache_read_input_tokens": 3})

    def test_unknown_cost_is_not_shown_as_zero(self):
        self.assertEqual(run_handoff.render_usd(None), "unknown")
        self.assertEqual(run_handoff.render_usd(0), "0.000000")


class SumTest(unittest.TestCase):
    def test_sum_of_records_is_exact_or_unknown(self):
        def record(state, **facts):
            return {"operation_id": "sender-tool-request", "state": state, **facts}

        cases = {
            "nothing was sent": ([record("planned")], 0),
            "the recorded run": (
                [record("confirmed", cost_usd=cost) for cost in ("0.004816", "0.014024", "0.003168")],
                22_008,
            ),
            "a failed request is free": ([record("confirmed", cost_usd="0.004816"), record("failed")], 4_816),
            "one unknown": ([record("confirmed", cost_usd="unknown")], None),
            "one unclear": ([record("confirmed", cost_usd="0.004816"), record("unclear")], None),
            "one still in flight": ([record("confirmed", cost_usd="0.004816"), record("in_flight")], None),
        }
        for name, (records, expected) in cases.items():
            with self.subTest(name):
                self.assertEqual(run_handoff.sum_costs(records), expected)


class CostPerAcceptedTest(unittest.TestCase):
    def test_cost_of_all_attempts_is_shared_by_the_accepted_answers(self):
        cases = {
            "every attempt accepted": ([350_000] * 20, 20, (350_000, 0)),
            "five attempts more, and cheaper": ([280_000] * 25, 20, (350_000, 0)),
            "a further one": ([280_000] * 26, 20, (364_000, 0)),
            "what cannot be shared evenly": ([1, 1], 3, (0, 2)),
            "failed attempts that were free": ([22_008, 0, 0], 1, (22_008, 0)),
        }
        for name, (costs, accepted, expected) in cases.items():
            with self.subTest(name):
                each = run_handoff.compute_cost_per_accepted(costs, accepted)
                self.assertEqual(each, expected)
                self.assertEqual(accepted * each[0] + each[1], sum(costs))
        self.assertEqual(sum([280_000] * 26), 7_280_000)

    def test_cost_is_unknown_without_an_answer_or_with_an_unknown_attempt(self):
        self.assertIsNone(run_handoff.compute_cost_per_accepted([280_000], 0))
        self.assertIsNone(run_handoff.compute_cost_per_accepted([280_000, None], 1))
        self.assertIsNone(run_handoff.compute_cost_per_accepted([], 0))


class CeilingTest(unittest.TestCase):
    def test_ceiling_is_above_the_recorded_cost(self):
        ceiling = run_handoff.estimate_ceiling(build_plan())
        self.assertGreater(ceiling, 22_008)
        self.assertLess(ceiling, 1_000_000)

    def test_ceiling_counts_bytes_and_not_characters(self):
        ceilings = []
        for letter in ("a", "\u8d27"):
            rows = [{"sku": letter * 20 + str(number), "available": 1, "target": 2} for number in range(100)]
            ceilings.append(run_handoff.estimate_ceiling(build_plan(rows)))
        # A SKU has 40 bytes more: in request 2 and in the prompt, at 8 and 4 micro-dollars a token.
        self.assertEqual(ceilings[1] - ceilings[0], 100 * 40 * (8 + 4))

    def test_ceiling_of_the_largest_token_limit_is_known(self):
        ceiling = run_handoff.estimate_ceiling(build_plan(max_tokens=999_999_999))
        self.assertGreater(ceiling, 2 * 999_999_999 * 40)

    def test_ceiling_grows_with_the_token_limit(self):
        small = run_handoff.estimate_ceiling(build_plan(max_tokens=1_000))
        large = run_handoff.estimate_ceiling(build_plan(max_tokens=2_000))
        # A thousand tokens more in each of the three replies, and the first of them is sent back.
        self.assertEqual(large - small, 1_000 * (40 + 40 + 20 + 8))

    def test_ceiling_without_a_price_is_unknown(self):
        for asks in ("sender", "receiver"):
            with self.subTest(asks):
                self.assertIsNone(run_handoff.estimate_ceiling(build_plan(**{asks: "other-model"})))
