"""A record goes to neutral and back to its own API as the same JSON value, whatever is in it."""

from __future__ import annotations

import copy
import json
import random
import unittest

from checkpoint_demo import convert, judge_reply, read_session, write_home
from tests.session_support import SESSIONS, api_of, build_record, read_case, run_session, same
from tests.support import count_rounds
from tests.test_session_reply import chat

ROUNDS = count_rounds(1_500)
_STRANGE = [
    *(0, 1, 1.0, True, False, None, -0.5, "", "x", "{}", [], {}, [[]], [None], {"type": "text"}, {"text": 1}),
    {"type": "text", "text": ""},
    {"type": "hologram", "data": [1, {"native": 1}]},
    {"type": "tool_use", "id": 5, "name": "n", "input": "x"},
    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "t"}, 1], "is_error": 1},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa", "more": 1}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aa", "detail": "low"}},
    {"type": "function", "id": "i", "function": {"name": "n", "arguments": '{ "a":1.10}'}, "index": True},
    {"functionCall": {"name": "n"}, "thought": True},
    {"functionResponse": {"name": "n", "response": {"output": {"a": 1}}}, "x": 1},
    {"functionResponse": {"name": "n", "response": {"error": "e", "output": "o"}}},
    {"thoughtSignature": "s"},
    {"text": "t", "thought": 1},
    {"inlineData": {"mimeType": "image/png", "data": "aa"}},
    {"role": "system", "content": "late"},
    {"role": "tool", "tool_call_id": "i", "content": None},
    {"role": "assistant", "content": None, "tool_calls": None},
    {"name": "n", "input_schema": 5},
    {"functionDeclarations": [{"name": "n", "parameters": {"type": "OBJECT"}}], "googleSearch": {}},
]
_NAMES = [
    "x",
    "cache_control",
    "native",
    "kind",
    "type",
    "id",
    "name",
    "index",
    "thought",
    "is_error",
    "role",
    "at",
]


def list_places(value, places):
    """Collect every object and list in a value."""
    if isinstance(value, (dict, list)):
        places.append(value)
        for part in value.values() if isinstance(value, dict) else value:
            list_places(part, places)
    return places


def mutate(record, dice):
    """Change a record at random places: fields and blocks more, fewer, of other types, or twice."""
    for _ in range(dice.randint(1, 4)):
        place = dice.choice(list_places(record, []))
        strange = copy.deepcopy(dice.choice(_STRANGE))
        if isinstance(place, list):
            action = dice.randint(0, 3) if place else 0
            at = dice.randrange(len(place)) if place else 0
            if action == 0:
                place.insert(at, strange)
            elif action == 1:
                place[at] = strange
            elif action == 2:
                place.insert(at, copy.deepcopy(place[at]))
            else:
                del place[at]
        else:
            keys = [key for key in place if key not in ("messages", "contents")]
            action = dice.randint(0, 3) if keys else 0
            if action < 2:
                place[dice.choice(_NAMES)] = strange
            elif action == 2:
                place[dice.choice(keys)] = strange
            else:
                del place[dice.choice(keys)]
    return record


class HomeTest(unittest.TestCase):
    def assert_home(self, record, api):
        neutral = read_session(record, api)
        again = read_session(json.loads(json.dumps(neutral)), "neutral")
        self.assertEqual(same(write_home(again)), same(record))
        self.assertEqual(same(json.loads(json.dumps(neutral))), same(read_session(record, api)))

    def test_home_of_a_case_is_the_same_value(self):
        for case in SESSIONS:
            with self.subTest(case["file"]):
                record = read_case(case["file"])
                self.assert_home(record, api_of(case["vendor"]))
                model = record.get("model", "gemini-3.5-flash")
                body, _ = convert(read_session(record, api_of(case["vendor"])), api_of(case["vendor"]), model)
                self.assertEqual(same(body), same(record))

    def test_home_by_command_is_the_same_value(self):
        for case in SESSIONS:
            with self.subTest(case["file"]):
                record = read_case(case["file"])
                code, neutral, err = run_session("--to", "neutral", record=record)
                self.assertEqual((code, err), (0, ""))
                model = record.get("model", "gemini-3.5-flash")
                target = ("--to", api_of(case["vendor"]), "--model", model)
                code, back, _ = run_session(*target, record=neutral.encode())
                self.assertEqual((code, same(json.loads(back))), (0, same(record)))
                code, back, _ = run_session(*target, record=record)
                self.assertEqual((code, same(json.loads(back))), (0, same(record)))

    def test_home_of_a_bare_list_is_the_same_list(self):
        for case in SESSIONS:
            record = read_case(case["file"])
            with self.subTest(case["file"]):
                self.assert_home(record.get("messages", record.get("contents")), api_of(case["vendor"]))

    def test_home_of_a_mutated_record_is_the_same_value(self):
        records = {case["file"]: (read_case(case["file"]), api_of(case["vendor"])) for case in SESSIONS}
        for seed in range(ROUNDS):
            dice = random.Random(seed)
            if seed % 3:
                record, api = records[dice.choice(list(records))]
            else:
                vendor = dice.choice(["anthropic", "kimi", "gemini"])
                record, api = build_record(vendor, seed)[0], api_of(vendor)
            with self.subTest(seed=seed):
                self.assert_home(mutate(copy.deepcopy(record), dice), api)

    def test_tool_without_parameters_is_kept(self):
        session = {"format": "neutral-session", "schema_version": 1, "tools": [{"name": "n"}], "turns": []}
        for api, held in (("messages", "input_schema"), ("chat", "function"), ("gemini", "functionDecl")):
            session["issuer"] = {"api": api, "model": "m"}
            with self.subTest(api):
                body = json.dumps(write_home(read_session(session, "neutral"))["tools"])
                self.assertIn('"name": "n"', body)
                self.assertIn(held, body)

    def test_turn_of_another_api_is_carried_there(self):
        session = read_session(read_case("001-plain-anthropic.session.json"), "messages")
        reply = chat("Done.", reasoning_content="kimi thinks", note="x")
        grown = {**session, "turns": [*session["turns"], judge_reply(session, reply)[0]]}
        grown["turns"].append({"role": "user", "parts": [{"kind": "text", "text": "And?"}]})
        code, _, err = run_session(record=grown)
        self.assertEqual((code, err), (0, ""))
        body = write_home(read_session(json.loads(json.dumps(grown)), "neutral"))
        self.assertEqual(body["messages"][:-2], write_home(session)["messages"])
        self.assertEqual(body["messages"][-2]["content"][1], {"type": "text", "text": "Done."})


if __name__ == "__main__":
    unittest.main()
