"""A checkpoint of a session's facts: what is in it, what is not, and that only the right one is verified."""

from __future__ import annotations

import copy
import hashlib
import json
import unittest

from checkpoint_demo import (
    SessionError,
    build_session_checkpoint,
    compare_checkpoints,
    convert_fresh,
    read_session,
    render_session_handoff,
)
from tests.session_support import SESSIONS, TARGETS, api_of, build_record, read_case


def read(name, api="messages"):
    """Return the session of a case."""
    return read_session(read_case(f"{name}.session.json"), api)


class CheckpointTest(unittest.TestCase):
    def test_checkpoint_holds_the_facts(self):
        checkpoint = build_session_checkpoint(read("031-open-call-anthropic"))
        self.assertEqual(checkpoint["task_id"], f"session-{checkpoint['source_sha256'][:12]}")
        self.assertEqual(
            [each["operation_id"] for each in checkpoint["completed"]], ["weigh_parcel-1", "find_route-1"]
        )
        text = '{"parcel":"PK-88","grams":1850}'
        expected = {
            "operation_id": "weigh_parcel-1",
            "operation": "weigh_parcel",
            "arguments": {"parcel": "PK-88"},
            "status": "recorded",
            "result": text,
            "result_sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
        self.assertEqual(checkpoint["completed"][0], expected)
        unclear = {
            "operation_id": "quote_fee-1",
            "operation": "quote_fee",
            "arguments": {"route": "N-14", "grams": 1850},
        }
        self.assertEqual(checkpoint["unclear"], [unclear])
        self.assertTrue(
            checkpoint["objective"].endswith("\n\nWhat does it cost to send parcel PK-88 from Lund to Porto?")
        )
        self.assertEqual(checkpoint["pending"], ["Answer the user's last message"])
        self.assertEqual((checkpoint["side_effects"], checkpoint["background"]), ([], []))

    def test_checkpoint_counts_failed_results_and_earlier_texts(self):
        checkpoint = build_session_checkpoint(read("091-failed-result-gemini", "gemini"))
        self.assertEqual([each["status"] for each in checkpoint["completed"]], ["failed", "recorded"])
        checkpoint = build_session_checkpoint(read("081-ids-repeat-across-turns-gemini", "gemini"), "Do it.")
        self.assertEqual(checkpoint["objective"], "Do it.")
        self.assertEqual(
            [each["operation_id"] for each in checkpoint["completed"]], ["weigh_parcel-1", "weigh_parcel-2"]
        )
        checkpoint = build_session_checkpoint(read("081-ids-repeat-across-turns-gemini", "gemini"))
        self.assertEqual(
            checkpoint["background"], ["What does it cost to send parcel PK-88 from Lund to Porto?"]
        )

    def test_objective_is_the_users_last_text_not_a_late_system_message(self):
        checkpoint = build_session_checkpoint(read("045-developer-and-late-system-openai", "chat"))
        self.assertTrue(checkpoint["objective"].endswith("from Lund to Porto?"))
        self.assertEqual(checkpoint["background"], ["From now on name fees in cents."])

    def test_checkpoint_holds_no_word_of_the_assistant_and_no_credential(self):
        for seed in range(60):
            vendor = ["anthropic", "kimi", "gemini"][seed % 3]
            record, secrets = build_record(vendor, seed)
            text = json.dumps(build_session_checkpoint(read_session(record, api_of(vendor))))
            for word in [*secrets, "One moment.", "Let me see."]:
                self.assertNotIn(word, text)

    def test_result_of_several_parts_is_their_texts_and_a_line(self):
        checkpoint = build_session_checkpoint(read("029-image-in-result-anthropic"))
        text, line = checkpoint["completed"][0]["result"].split("\n")
        self.assertEqual(text, '{"parcel":"PK-88","grams":1850}')
        self.assertRegex(line, r"^\[media \(image/png\) left out: [0-9]+ bytes, SHA-256 [0-9a-f]{64}\]$")

    def test_checkpoint_is_that_of_the_neutral_session_too(self):
        for case in SESSIONS:
            session = read_session(read_case(case["file"]), api_of(case["vendor"]))
            again = read_session(json.loads(json.dumps(session)), "neutral")
            with self.subTest(case["file"]):
                self.assertEqual(build_session_checkpoint(again), build_session_checkpoint(session))
                self.assertEqual(
                    compare_checkpoints(build_session_checkpoint(again), build_session_checkpoint(session)),
                    [],
                )

    def test_changed_checkpoint_is_found(self):
        session = read("031-open-call-anthropic")
        right = build_session_checkpoint(session)
        for key in right:
            changed = copy.deepcopy(right)
            changed[key] = "x"
            with self.subTest(key):
                self.assertTrue(compare_checkpoints(changed, right)[0].path.startswith(key))
        changed = copy.deepcopy(right)
        changed["completed"][1]["result"] += " "
        self.assertEqual(compare_checkpoints(changed, right)[0].path, "completed[1].result")
        self.assertTrue(compare_checkpoints(right, build_session_checkpoint(session, "another objective")))


class FreshTest(unittest.TestCase):
    def test_handoff_has_no_digest(self):
        checkpoint = build_session_checkpoint(read("031-open-call-anthropic"))
        handoff = render_session_handoff(checkpoint)
        self.assertNotRegex(handoff, "[0-9a-f]{12}")
        self.assertIn("looked up", handoff)
        self.assertTrue(handoff.endswith("}\n"))

    def test_body_is_one_message_with_the_tools(self):
        for target, (api, model) in TARGETS.items():
            with self.subTest(target):
                body, losses = convert_fresh(read("055-server-tool-anthropic"), api, model)
                self.assertEqual(len(body.get("messages", body.get("contents"))), 1)
                self.assertNotIn("encrypted", json.dumps(body))
                self.assertIn("server_tool_use", str(losses))
                self.assertIn("web_search_20260209", str(losses))

    def test_what_no_other_way_takes_goes_fresh(self):
        names = {
            "059-arguments-no-json-kimi": "chat",
            "089-ends-on-answer-anthropic": "messages",
            "027-file-user-gemini": "gemini",
        }
        for name, api in names.items():
            with self.subTest(name):
                body, _ = convert_fresh(read(name, api), "gemini", "gemini-3.5-flash")
                self.assertIn("contents", body)

    def test_equal_ids_of_one_turn_pair_in_order_and_a_stray_result_is_noted(self):
        record = read_case("085-parallel-same-tool-kimi.session.json")
        for call, message in zip(record["messages"][2]["tool_calls"], record["messages"][3:]):
            call["id"] = message["tool_call_id"] = "same"
        record["messages"].append({"role": "tool", "tool_call_id": "other", "content": "?"})
        session = read_session(record, "chat")
        completed = build_session_checkpoint(session)["completed"]
        self.assertEqual([each["result"] for each in completed], ['{"grams":420}', '{"grams":1850}'])
        self.assertIn("a result of no call", str(convert_fresh(session, "chat", "gpt-5.5")[1]))

    def test_forbidden_name_is_refused(self):
        with self.assertRaises(SessionError):
            convert_fresh(read("057-dotted-names-gemini", "gemini"), "chat", "kimi-k3")


if __name__ == "__main__":
    unittest.main()
