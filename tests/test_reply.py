"""A reply of the Messages API: is it a whole message, does it fit its step, what does it answer?"""

from __future__ import annotations

import json
import unittest

from checkpoint_demo import (
    DEMO,
    MESSAGES,
    REPLY_DEPTH_LIMIT,
    Finding,
    InputError,
    find_answer,
    find_reply_findings,
    find_step_findings,
    parse_json,
    validate_result,
)
from tests.support import ANSWER, CASES, STOCK, THINKING, measure_peak_bytes, message, text, tool_call

# The reply, and every fault: (reply, faults).
MESSAGE_FAULTS = {
    "null": (None, ["$: observed null, expected a message"]),
    "an array": ([{}], ["$: observed the array [{}], expected a message"]),
    "a string": ("{}", ['$: observed the string "{}", expected a message']),
    "an empty object": (
        {},
        [
            'type: observed nothing, expected the string "message"',
            'role: observed nothing, expected the string "assistant"',
            "content: observed nothing, expected a list of blocks",
        ],
    ),
    "an error": (
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        ['$: observed an error (overloaded_error: the string "Overloaded"), expected a message'],
    ),
    "a type of null": (
        message([], type=None),
        ['type: observed null, expected the string "message"'],
    ),
    "a type that is a list": (
        message([], type=["message"]),
        ['type: observed the array ["message"], expected the string "message"'],
    ),
    "the user's role": (
        message([], role="user"),
        ['role: observed the string "user", expected the string "assistant"'],
    ),
    "a role with an escape character": (
        message([], role="\x1b[31m"),
        [r'role: observed the string "\u001b[31m", expected the string "assistant"'],
    ),
    "content of null": (message(None), ["content: observed null, expected a list of blocks"]),
    "content as a string": (
        message("3"),
        ['content: observed the string "3", expected a list of blocks'],
    ),
    "content as an object": (
        message({"type": "text"}),
        ['content: observed the object {"type":"text"}, expected a list of blocks'],
    ),
    "blocks that are none": (
        message([text("a"), "b", None]),
        [
            'content[1]: observed the string "b", expected a block with a type',
            "content[2]: observed null, expected a block with a type",
        ],
    ),
    "a block that is null": (message([None]), ["content[0]: observed null, expected a block with a type"]),
    "a block that is a list": (
        message([[]]),
        ["content[0]: observed the array [], expected a block with a type"],
    ),
    "a block without a type": (
        message([{"Type": "text"}]),
        ['content[0]: observed the object {"Type":"text"}, expected a block with a type'],
    ),
    "a block whose type is null": (
        message([{"type": None}]),
        ['content[0]: observed the object {"type":null}, expected a block with a type'],
    ),
    "a block whose type is a list": (
        message([{"type": ["text"]}]),
        ['content[0]: observed the object {"type":["text"]}, expected a block with a type'],
    ),
}

WHOLE_MESSAGES = {
    "no content": message([]),
    "text": message([text("a")]),
    "a block of an unknown type": message([{"type": "hologram"}]),
    "a block whose type is empty": message([{"type": ""}]),
    "text of null, which its step judges": message([{"type": "text", "text": None}]),
    "no stop reason, which its step judges": message([], stop_reason=None),
    "no id, model and usage": {"type": "message", "role": "assistant", "content": []},
    "usage of null": {**message([]), "usage": None},
}

CUT = '"end_turn" (the answer was cut off by the token limit)'
FULL = '"end_turn" (the answer was cut off by the context window)'

# The message, and every fault as an answer: (message, faults).
ANSWER_FAULTS = {
    "text": (message([text("3")]), []),
    "no content": (message([]), []),
    "thinking and an unknown block": (message([THINKING, {"type": "hologram"}, text("")]), []),
    "a tool's result on the server": (message([{"type": "web_search_tool_result"}, text("3")]), []),
    "a stop by the token limit": (
        message([text("3")], "max_tokens"),
        [f'stop_reason: observed the string "max_tokens", expected the string {CUT}'],
    ),
    "a full context": (
        message([text("3")], "model_context_window_exceeded"),
        [f'stop_reason: observed the string "model_context_window_exceeded", expected the string {FULL}'],
    ),
    "a paused turn": (
        message([], "pause_turn"),
        [
            'stop_reason: observed the string "pause_turn", expected the string "end_turn"'
            " (the turn was paused before its end)"
        ],
    ),
    "a refusal": (
        message([], "refusal"),
        ['stop_reason: observed the string "refusal", expected the string "end_turn" (the model refused)'],
    ),
    "a stop sequence": (
        message([text("3")], "stop_sequence"),
        ['stop_reason: observed the string "stop_sequence", expected the string "end_turn"'],
    ),
    "a stop reason nobody knows": (
        message([], "\x1b[2J"),
        [r'stop_reason: observed the string "\u001b[2J", expected the string "end_turn"'],
    ),
    "a stop reason of null": (
        message([], None),
        ['stop_reason: observed null, expected the string "end_turn"'],
    ),
    "no stop reason": (
        {"content": []},
        ['stop_reason: observed nothing, expected the string "end_turn"'],
    ),
    "a stop reason that cannot be a key": (
        message([], ["end_turn"]),
        ['stop_reason: observed the array ["end_turn"], expected the string "end_turn"'],
    ),
    "a tool call": (
        message([tool_call(), text("3")], "tool_use"),
        [
            'stop_reason: observed the string "tool_use", expected the string "end_turn"'
            " (the model waits for a tool)",
            'content[0]: observed the object {"type":"tool_use","name":"read_stock","input":{},'
            '"id":"toolu_invented"}, expected no tool call',
        ],
    ),
    "calls of other kinds at the end of a turn": (
        message([{"type": "server_tool_use"}, text("3"), {"type": "mcp_tool_use"}, {"type": "tool_use"}]),
        [
            'content[0]: observed the object {"type":"server_tool_use"}, expected no tool call',
            'content[2]: observed the object {"type":"mcp_tool_use"}, expected no tool call',
            'content[3]: observed the object {"type":"tool_use"}, expected no tool call',
        ],
    ),
    "text that is none": (
        message([{"type": "text"}, {"type": "text", "text": None}, {"type": "text", "text": [ANSWER[:3]]}]),
        [
            'content[0]: observed the object {"type":"text"}, expected the fields text of a text',
            'content[1]: observed the object {"type":"text","text":null}, expected the fields text of a text',
            r'content[2]: observed the object {"type":"text","text":["{\"r"]},'
            " expected the fields text of a text",
        ],
    ),
}

CALL = '"type":"tool_use","id":%s,"name":"read_stock","input":{}'
CALL_FIELDS = "expected the fields name, input, id of a tool_use"

# The message, and every fault as a call of read_stock: (message, faults).
CALL_FAULTS = {
    "the call": (message([tool_call()], "tool_use"), []),
    "thinking and text around the call": (
        message([THINKING, text(""), tool_call(), text("Reading.")], "tool_use"),
        [],
    ),
    "a field more in the block": (
        message([{**tool_call(), "caller": {"type": "direct"}}], "tool_use"),
        [],
    ),
    "no call": (
        message([text("7, 15 and 0.")], "tool_use"),
        ["content: observed no tool call, expected exactly one call of read_stock"],
    ),
    "a finished turn without a call": (
        message([]),
        [
            'stop_reason: observed the string "end_turn", expected the string "tool_use"',
            "content: observed no tool call, expected exactly one call of read_stock",
        ],
    ),
    "a call that was cut": (
        message([tool_call()], "max_tokens"),
        [
            'stop_reason: observed the string "max_tokens", expected the string "tool_use"'
            " (the answer was cut off by the token limit)"
        ],
    ),
    "another tool": (
        message([tool_call(name="place_order")], "tool_use"),
        ['content[0].name: observed the string "place_order", expected the string "read_stock"'],
    ),
    "arguments": (
        message([tool_call(arguments={"skus": ["DEMO-001"], "delete": True})], "tool_use"),
        [
            'content[0].input.skus: observed the array ["DEMO-001"], expected nothing',
            "content[0].input.delete: observed true, expected nothing",
        ],
    ),
    "arguments as a string": (
        message([tool_call(arguments="{}")], "tool_use"),
        ['content[0].input: observed the string "{}", expected the object {}'],
    ),
    "arguments as a list": (
        message([tool_call(arguments=[])], "tool_use"),
        ["content[0].input: observed the array [], expected the object {}"],
    ),
    "arguments of false": (
        message([tool_call(arguments=False)], "tool_use"),
        ["content[0].input: observed false, expected the object {}"],
    ),
    "an empty id": (
        message([tool_call("")], "tool_use"),
        ['content[0].id: observed the string "", expected a tool call id'],
    ),
    "an id of null": (
        message([tool_call(None)], "tool_use"),
        [f"content[0]: observed the object {{{CALL % 'null'}}}, {CALL_FIELDS}"],
    ),
    "an id as a number": (
        message([tool_call(1)], "tool_use"),
        [f"content[0]: observed the object {{{CALL % 1}}}, {CALL_FIELDS}"],
    ),
    "an empty call": (
        message([{"type": "tool_use"}], "tool_use"),
        [f'content[0]: observed the object {{"type":"tool_use"}}, {CALL_FIELDS}'],
    ),
    "a second call": (
        message([tool_call(), {"type": "tool_use", "id": "b"}], "tool_use"),
        [
            'content[1]: observed the object {"type":"tool_use","id":"b"},'
            " expected exactly one call of read_stock"
        ],
    ),
    "calls of other kinds beside the call": (
        message([tool_call(), {"type": "mcp_tool_use"}, {"type": "server_tool_use"}], "tool_use"),
        [
            'content[1]: observed the object {"type":"mcp_tool_use"},'
            " expected exactly one call of read_stock",
            'content[2]: observed the object {"type":"server_tool_use"},'
            " expected exactly one call of read_stock",
        ],
    ),
    "text that is none beside the call": (
        message([{"type": "text", "text": 1}, tool_call()], "tool_use"),
        ['content[0]: observed the object {"type":"text","text":1}, expected the fields text of a text'],
    ),
}

# The texts of a message, and the answer as Python writes it.
ANSWERS = {
    "one block": ([text(ANSWER)], repr(json.loads(ANSWER))),
    "two blocks": ([text(ANSWER[:30]), text(ANSWER[30:])], repr(json.loads(ANSWER))),
    "blocks that cut a number": ([text("1"), text("2")], "12"),
    "blocks that are left alone": (
        [THINKING, text("[1"), {"type": "hologram", "text": ","}, text("]")],
        "[1]",
    ),
    "empty blocks": ([text(""), text(" \n"), text("null"), text("")], "None"),
    "a byte-order mark in front": ([text("\ufeff[]")], "[]"),
    "an emoji": ([text('"\U0001f4e6"')], repr("\U0001f4e6")),
    "an escaped lone surrogate": ([text(r'"\ud83d"')], r"'\ud83d'"),
    "200 levels": ([text("[" * 200 + "]" * 200)], "[" * 200 + "]" * 200),
}

# The texts of a message, and the place of the refusal.
NO_ANSWERS = {
    "no content": ([], "line 1 column 1"),
    "no text block": ([THINKING, {"type": "hologram", "text": ANSWER}], "line 1 column 1"),
    "empty text": ([text("")], "line 1 column 1"),
    "white space": ([text(" \n")], "line 2 column 1"),
    "prose": ([text("The shortage is 7.")], "line 1 column 1"),
    "prose in the block in front": ([text("Here:\n"), text(ANSWER)], "line 1 column 1"),
    "prose in the block behind": ([text(ANSWER), text("\nDone.")], "line 2 column 1"),
    "Markdown": ([text(f"```json\n{ANSWER}\n```")], "line 1 column 1"),
    "two answers": ([text("{}"), text("{}")], "line 1 column 3"),
    "a key twice": ([text('{"rows":[],"rows":[]}')], "$"),
    "NaN": ([text("[NaN]")], "[0]"),
    "a lone surrogate": ([text('["a\ud83d"]')], "line 1 column 4"),
    "a lone surrogate behind the answer": ([text("[]\ud83d")], "line 1 column 3"),
    "201 levels": ([text("[" * 201 + "]" * 201)], "line 1 column 201"),
    "many levels": ([text("[" * 100_000)], "line 1 column 201"),
}


def lines(findings):
    """Return findings as text."""
    return [str(finding) for finding in findings]


class MessageTest(unittest.TestCase):
    def test_find_reply_findings_whole_message_has_none(self):
        for phrase, reply in WHOLE_MESSAGES.items():
            with self.subTest(phrase):
                self.assertEqual(find_reply_findings(reply), [])

    def test_find_reply_findings_other_reply_is_refused_with_every_fault(self):
        for phrase, (reply, faults) in MESSAGE_FAULTS.items():
            with self.subTest(phrase):
                self.assertEqual(lines(find_reply_findings(reply)), faults)


class StepTest(unittest.TestCase):
    def test_memory_is_bounded_however_many_blocks_are_wrong(self):
        judges = {
            "blocks that are none": (find_reply_findings, 1, 400_000),
            "texts without text": (find_step_findings, {"type": "text"}, 30_000),
            "calls of tools": (find_step_findings, {"type": "tool_use"}, 30_000),
        }
        for phrase, (judge, block, count) in judges.items():
            with self.subTest(phrase):
                data = json.dumps(message([block] * count)).encode()
                peak = measure_peak_bytes(lambda judge, data: judge(json.loads(data)), judge, data)
                self.assertLess(peak, 4 * measure_peak_bytes(json.loads, data))

    def test_find_step_findings_answer_is_judged(self):
        for phrase, (reply, faults) in ANSWER_FAULTS.items():
            with self.subTest(phrase):
                self.assertEqual(lines(find_step_findings(reply)), faults)

    def test_find_step_findings_call_is_judged(self):
        for phrase, (reply, faults) in CALL_FAULTS.items():
            with self.subTest(phrase):
                self.assertEqual(lines(find_step_findings(reply, "read_stock")), faults)

    def test_find_step_findings_stop_reason_comes_first(self):
        reply = {"content": [{"type": "text"}, {"type": "server_tool_use"}], "stop_reason": "refusal"}
        for arguments in ((), ("read_stock",)):
            with self.subTest(arguments):
                faults = find_step_findings(reply, *arguments)
                self.assertEqual(faults[0].path, "stop_reason")
                self.assertGreater(len(faults), 2)


class AnswerTest(unittest.TestCase):
    def test_find_answer_text_blocks_are_joined_and_read(self):
        for phrase, (content, value) in ANSWERS.items():
            with self.subTest(phrase):
                findings, answer = find_answer(message(content))
                self.assertEqual((findings, repr(answer)), ([], value))

    def test_find_answer_anything_but_one_value_is_refused(self):
        for phrase, (content, place) in NO_ANSWERS.items():
            with self.subTest(phrase):
                findings, answer = find_answer(message(content))
                self.assertEqual([finding.path for finding in findings], [f"the answer, {place}"])
                self.assertIsNone(answer)


class ReplyCasesTest(unittest.TestCase):
    """Each file in tests/cases/response is named for its step and its defect.

    accept: usable; reject: a finished reply without a valid result; incomplete: stopped before its
    end; error: no reply of the expected kind.
    """

    folder = CASES / "response"

    def setUp(self):
        listed = (self.folder / "expected.jsonl").read_text(encoding="utf-8").split("\n")
        self.cases = {case["file"]: case for case in map(json.loads, filter(None, listed))}

    def judge(self, name, step):
        """Return (stage, findings): the first stage that refuses a reply, or accepted."""
        try:
            reply = parse_json((self.folder / name).read_bytes(), REPLY_DEPTH_LIMIT)
        except InputError as error:
            return "body", [Finding(error.path, error.message)]
        faults = find_reply_findings(reply, MESSAGES)
        if faults:
            return "message", faults
        arguments = ("read_stock",) if step == "tool_call" else ()
        faults = find_step_findings(reply, *arguments)
        if faults:
            return "step", faults
        if step == "tool_call":
            return "accepted", []
        findings, answer = find_answer(reply)
        findings = findings or validate_result(answer, DEMO, STOCK)
        return ("answer", findings) if findings else ("accepted", [])

    def test_cases_every_file_is_listed_and_there_are_all_kinds(self):
        names = {path.name for path in self.folder.glob("*.json")}
        self.assertEqual(names, set(self.cases))
        self.assertGreaterEqual(len(names), 27)
        kinds = {(case["step"], case["outcome"]) for case in self.cases.values()}
        outcomes = ("accept", "reject", "incomplete", "error")
        self.assertEqual(kinds, {(step, outcome) for step in ("final", "tool_call") for outcome in outcomes})

    def test_cases_each_is_judged_as_expected(self):
        self.assertTrue(self.cases)
        for name, case in self.cases.items():
            with self.subTest(name):
                stage, findings = self.judge(name, case["step"])
                if case["outcome"] == "accept":
                    self.assertEqual((stage, findings), ("accepted", []))
                elif case["outcome"] == "incomplete":
                    self.assertEqual((stage, findings[0].path), ("step", "stop_reason"))
                elif case["outcome"] == "error":
                    self.assertIn(stage, ("body", "message", "step"))
                elif stage == "step":
                    # A refusal is a finished reply, too, and said to be one.
                    self.assertTrue(str(findings[0]).endswith(" (the model refused)"), findings)
                else:
                    self.assertEqual(stage, "answer")

    def test_cases_what_is_said_is_harmless(self):
        self.assertTrue(self.cases)
        for name, case in self.cases.items():
            with self.subTest(name):
                for finding in self.judge(name, case["step"])[1]:
                    self.assertRegex(str(finding), r"\A[ -~]+: [ -~]+\Z")


if __name__ == "__main__":
    unittest.main()
