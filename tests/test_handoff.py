"""The handoff prompt and the request that carries it."""

from __future__ import annotations

import json
import unittest

from checkpoint_demo import (
    DEMO,
    InputError,
    build_checkpoint,
    build_receiver_request,
    list_differences,
    parse_json,
    render_handoff,
)
from tests.support import STOCK

PROMPT = (
    "Resume this read-only task from verified application state.\n"
    "Do not claim access to prior reasoning.\n"
    "Do not call tools or place orders.\n"
    "Return only a JSON object with key rows, containing every SKU\n"
    "and integer shortage. No Markdown.\n"
    "Checkpoint: "
)
CANONICAL = (
    '{"completed":[{"operation":"read_stock","operation_id":"read-stock-1","result":['
    '{"available":7,"sku":"DEMO-001","target":10},{"available":15,"sku":"DEMO-002","target":12},'
    '{"available":0,"sku":"DEMO-003","target":4}],'
    '"result_sha256":"b3d576f612f4d004f9316b157d848c6dcd22f7f3b37244ac8e60dab263a4db44","status":"verified"}],'
    '"objective":"Report shortage=max(target-available,0) for every SKU. Do not place orders.",'
    '"pending":["Produce all three SKU shortage rows","Pass independent validator"],"schema_version":1,'
    '"side_effects":[],"source_sha256":"b3d576f612f4d004f9316b157d848c6dcd22f7f3b37244ac8e60dab263a4db44",'
    '"task_id":"synthetic-stock-20261110"}'
)


class HandoffTest(unittest.TestCase):
    def test_render_handoff_of_the_demo_is_the_text_of_the_specification(self):
        self.assertEqual(render_handoff(DEMO, build_checkpoint(DEMO, STOCK)), f"{PROMPT}{CANONICAL}\n")

    def test_render_handoff_of_the_demo_has_892_bytes(self):
        self.assertEqual(len(render_handoff(DEMO, build_checkpoint(DEMO, STOCK)).encode()), 892)

    def test_render_handoff_carries_the_whole_checkpoint(self):
        rows = [
            {"sku": f"M\u00f6bel \u2028 {number}", "available": number, "target": 9} for number in range(20)
        ]
        checkpoint = build_checkpoint(DEMO, rows)
        handoff = render_handoff(DEMO, checkpoint)
        self.assertTrue(handoff.startswith(PROMPT))
        carried = parse_json(handoff[len(PROMPT) :].encode())
        self.assertEqual(list_differences(carried, checkpoint), [])

    def test_render_handoff_checkpoint_is_one_line(self):
        handoff = render_handoff(
            DEMO, build_checkpoint(DEMO, [{"sku": "a\nb\r", "available": 1, "target": 2}])
        )
        self.assertEqual(handoff.count("\n"), 6)
        self.assertNotIn("\r", handoff)

    def test_render_handoff_order_of_keys_does_not_count(self):
        checkpoint = build_checkpoint(DEMO, STOCK)
        exchanged = dict(reversed(list(checkpoint.items())))
        self.assertEqual(render_handoff(DEMO, exchanged), render_handoff(DEMO, checkpoint))

    def test_render_handoff_lone_surrogate_is_refused(self):
        with self.assertRaises(InputError):
            render_handoff(DEMO, {**build_checkpoint(DEMO, STOCK), "task_id": "\ud83d"})

    def test_build_receiver_request_is_the_fresh_session_of_the_specification(self):
        expected = {
            "model": "anthropic/claude-opus-5.5",
            "max_tokens": 4096,
            "output_config": {"effort": "low"},
            "messages": [{"role": "user", "content": f"{PROMPT}{CANONICAL}\n"}],
        }
        request = build_receiver_request(render_handoff(DEMO, build_checkpoint(DEMO, STOCK)))
        self.assertEqual(list_differences(request, expected), [])

    def test_build_receiver_request_own_model_and_limit_are_used(self):
        request = build_receiver_request("a \u2028\n", "local/model", 7)
        self.assertEqual((request["model"], request["max_tokens"]), ("local/model", 7))
        self.assertEqual(request["messages"], [{"role": "user", "content": "a \u2028\n"}])
        self.assertEqual(json.loads(json.dumps(request)), request)

    def test_build_receiver_request_two_requests_share_nothing(self):
        first = build_receiver_request("a")
        first["output_config"]["effort"] = "high"
        first["messages"].clear()
        self.assertEqual(build_receiver_request("a")["output_config"], {"effort": "low"})
        self.assertEqual(build_receiver_request("a")["messages"], [{"role": "user", "content": "a"}])


if __name__ == "__main__":
    unittest.main()
