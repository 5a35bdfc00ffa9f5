"""compare_sessions: the turn in hand, and how calls and results pair."""

from __future__ import annotations

import copy
import unittest

from checkpoint_demo import compare_sessions
from tests.session_records import (
    CUT_RESULTS,
    LATER,
    PREFIX,
    RECORD,
    RESULT,
    THE_RESULTS,
    TURN,
    UNMATCHED,
    assistant,
    call,
    changed,
    insert,
    result,
    text,
    user,
)
from tests.support import change_copy, drop, put

# What pairs and what does not: (blocks of the turn, messages behind it, findings). The first message
# behind the turn is number 3.
NO_RESULT = "messages[2].content[{}].id: observed no result for {}, expected one"
STRAY = (
    "messages[{}].content[{}].tool_use_id: observed a result for {},"
    " expected one for each call, at the beginning of the message behind it"
)
PAIRS = {
    "no call": ([text("a")], [user("b")], []),
    "no call and nothing behind": ([], [], []),
    "a call and its result": ([call("a")], [user(result("a"))], []),
    "a call behind thinking": ([{"type": "thinking"}, call("a")], [user(result("a"), text("b"))], []),
    "parallel calls": ([call("a"), call("b")], [user(result("a"), result("b"))], []),
    "parallel calls in another order": ([call("a"), call("b")], [user(result("b"), result("a"))], []),
    "a server's call, which needs none": ([{"type": "server_tool_use", "id": "a"}], [user("b")], []),
    "later messages without results": ([call("a")], [user(result("a")), assistant("b"), user("c")], []),
    "nothing behind": ([call("a")], [], [NO_RESULT.format(0, '"a"')]),
    "text behind": ([call("a")], [user("a")], [NO_RESULT.format(0, '"a"')]),
    "one of two without a result": (
        [text("x"), call("a"), call("b")],
        [user(result("a"))],
        [NO_RESULT.format(2, '"b"')],
    ),
    "a result of no call": (
        [text("x")],
        [user(result("a"))],
        [STRAY.format(3, 0, '"a"')],
    ),
    "a result of another call": (
        [call("a")],
        [user(result("b"))],
        [
            NO_RESULT.format(0, '"a"'),
            STRAY.format(3, 0, '"b"'),
        ],
    ),
    "a call answered twice": (
        [call("a")],
        [user(result("a"), result("a"))],
        [STRAY.format(3, 1, '"a"')],
    ),
    "a call answered twice in two messages": (
        [call("a")],
        [user(result("a")), assistant("b"), user(result("a"))],
        [STRAY.format(5, 0, '"a"')],
    ),
    "a result behind text": (
        [call("a")],
        [user(text("b"), result("a"))],
        [STRAY.format(3, 1, '"a"')],
    ),
    "a result behind a block that is none": (
        [call("a")],
        [user(None, result("a"))],
        [STRAY.format(3, 1, '"a"')],
    ),
    "results over two messages": (
        [call("a"), call("b")],
        [user(result("a")), user(result("b"))],
        [STRAY.format(4, 0, '"b"')],
    ),
    "a result only in a later message": (
        [call("a")],
        [user("b"), assistant("c"), user(result("a"))],
        [STRAY.format(5, 0, '"a"')],
    ),
    "one id for two calls, two results": ([call("a"), call("a")], [user(result("a"), result("a"))], []),
    "an integer and its text": (
        [call(1)],
        [user(result("1"))],
        [
            NO_RESULT.format(0, 1),
            STRAY.format(3, 0, '"1"'),
        ],
    ),
    "an integer and true": (
        [call(1)],
        [user(result(True))],
        [
            NO_RESULT.format(0, 1),
            STRAY.format(3, 0, "true"),
        ],
    ),
    "an id that is no string": (
        [call(["a"])],
        [user(result(["a"]))],
        [
            NO_RESULT.format(0, '["a"]'),
            STRAY.format(3, 0, '["a"]'),
        ],
    ),
    "an id that cannot be a key, of no call": (
        [call([])],
        [user(result({}))],
        [
            NO_RESULT.format(0, "[]"),
            STRAY.format(3, 0, "{}"),
        ],
    ),
    "a long id with an escape character": (
        [call("\x1b" * 20)],
        [],
        [NO_RESULT.format(0, '"' + r"\u001b" * 11 + r"\u001... (122 characters)")],
    ),
}


class TurnTest(unittest.TestCase):
    """Which message is the turn in hand, also where there is none."""

    def labels(self, restored, original):
        return list(compare_sessions({"messages": restored}, {"messages": original})[0])

    def check(self, table):
        for phrase, (restored, original, labels) in table.items():
            with self.subTest(phrase):
                self.assertEqual(self.labels(restored, original), labels)

    def test_compare_sessions_turn_is_the_last_with_a_call_else_the_last(self):
        ask, answer = user("a"), assistant("b")
        turns = [ask, assistant(text("c")), user("d"), answer, user("e")]
        calls = [ask, assistant(call("x")), user(result("x")), answer]
        self.check(
            {
                "the last answer changed": ([*turns[:3], assistant("?"), user("e")], turns, [TURN]),
                "an answer before it changed": ([ask, assistant(text("?")), *turns[2:]], turns, [PREFIX]),
                "a message behind it changed": ([*turns[:4], user("?")], turns, [LATER]),
                "a message behind it dropped": (turns[:4], turns, [LATER]),
                "the answer behind a call changed": ([*calls[:3], assistant("?")], calls, [LATER]),
                "the answer behind a call dropped": (calls[:3], calls, [LATER]),
                "a call added to the last answer": (
                    [*turns[:3], assistant(call("x")), user(result("x"))],
                    turns,
                    [TURN, LATER],
                ),
                "a server's call is none": (
                    [ask, assistant({"type": "server_tool_use", "id": "s"}), user("?")],
                    [ask, assistant({"type": "server_tool_use", "id": "s"}), user("d")],
                    [LATER],
                ),
            }
        )

    def test_compare_sessions_record_without_a_turn_is_compared_all_the_same(self):
        ask = [user("a"), user("b")]
        self.check(
            {
                "nothing in both": ([], [], []),
                "no assistant in both": (ask, ask, []),
                "a message changed": ([user("a"), user("?")], ask, [PREFIX]),
                "a message dropped": (ask[:1], ask, [PREFIX]),
                "a message added": ([*ask, user("c")], ask, [PREFIX]),
                "a turn added": ([*ask, assistant("c")], ask, [TURN]),
                "the only turn gone": (ask, [*ask, assistant("c")], [TURN]),
                "all gone": ([], ask, [PREFIX]),
                "all gone, the turn too": ([], [user("a"), assistant("b")], [PREFIX, TURN]),
            }
        )

    def test_compare_sessions_restored_turn_that_was_cut_or_repeated_is_found(self):
        whole = [user("a"), assistant(call("x")), user(result("x")), assistant(call("y")), user(result("y"))]
        self.check(
            {
                "the same": (whole, whole, []),
                "cut behind the call": (whole[:4], whole, [UNMATCHED]),
                "the results doubled": ([*whole, whole[4]], whole, [UNMATCHED, LATER]),
                "the turn and its results doubled": ([*whole, *whole[3:]], whole, [PREFIX]),
                "the turn gone": ([*whole[:3], whole[4]], whole, [TURN, UNMATCHED]),
            }
        )

    def test_compare_sessions_record_cut_before_the_turn_is_not_intact(self):
        whole = [user("a"), assistant(call("x")), user(result("x")), assistant(call("y")), user(result("y"))]
        for length in range(5):
            with self.subTest(length=length):
                self.assertTrue(self.labels(whole[:length], whole))

    def test_compare_sessions_turn_under_another_role_is_changed(self):
        for role in ("user", "Assistant", None, 1):
            with self.subTest(role=role):
                labels = list(compare_sessions(changed(put("messages", 5, "role", to=role)), RECORD)[0])
                self.assertEqual(labels[:2], [TURN, UNMATCHED])

    def test_compare_sessions_next_tool_turn_added_is_not_intact(self):
        whole = [user("a"), assistant(call("x")), user(result("x"))]
        labels = self.labels([*whole, assistant(call("y")), user(result("y"))], whole)
        self.assertIn(LATER, labels)

    def test_compare_sessions_next_tool_turn_that_is_not_answered_is_unmatched(self):
        whole = [user("a"), assistant(call("x")), user(result("x"))]
        endings = {
            "nothing": [],
            "words": [user(text("go on"))],
            "a result of another call": [user(result("z"))],
            "a result of the turn's call": [user(result("x"))],
        }
        for phrase, ending in endings.items():
            for begin in (whole, [user("a"), assistant(text("b"))]):
                with self.subTest(phrase, begin=len(begin)):
                    labels = self.labels([*begin, assistant(call("y")), *ending], begin)
                    self.assertIn(UNMATCHED, labels)
        answered = [*whole, assistant(call("y")), user(result("y"))]
        self.assertEqual(self.labels(answered, whole), [LATER])

    def test_compare_sessions_each_of_several_later_turns_is_judged(self):
        whole = [user("a"), assistant(call("x")), user(result("x"))]
        answered = [assistant(call("z")), user(result("z"))]
        unanswered = [assistant(call("y")), user(text("go on"))]
        for phrase, later in {"first": [*unanswered, *answered], "last": [*answered, *unanswered]}.items():
            with self.subTest(phrase):
                self.assertEqual(self.labels([*whole, *later], whole), [UNMATCHED, LATER])
        self.assertEqual(self.labels([*whole, *answered, *answered], whole), [LATER])

    def test_compare_sessions_result_whose_turn_is_gone_is_unmatched(self):
        whole = [user("a"), assistant(call("x")), user(result("x"))]
        for more in ([], [user("b")], [user("b"), user("c")]):
            with self.subTest(more=len(more)):
                self.assertIn(UNMATCHED, self.labels([whole[0], whole[2], *more], whole))

    def test_compare_sessions_other_turn_in_a_changed_place_is_judged(self):
        original = [user("a"), assistant(call("x")), user(result("x"))]
        restored = [user("a"), user("b"), assistant(call("y")), user(result("x"))]
        self.assertIn(UNMATCHED, self.labels(restored, original))

    def test_compare_sessions_fault_of_the_original_is_named_all_the_same(self):
        faults = {
            "no result": drop(*THE_RESULTS, 0),
            "a result of no call": insert(*THE_RESULTS, 0, new=[result("toolu_9")]),
            "an answer twice": insert(*THE_RESULTS, 2, new=[CUT_RESULTS[0]]),
            "text in front": insert(*THE_RESULTS, 0, new=[text("a")]),
            "results over two messages": insert("messages", 6, new=[user(CUT_RESULTS[0])]),
            "nothing behind the call": drop("messages", slice(6, 9)),
        }
        for phrase, change in faults.items():
            with self.subTest(phrase):
                record = changed(change)
                changes, notes = compare_sessions(record, copy.deepcopy(record))
                self.assertEqual((list(changes), notes), ([UNMATCHED], []))
                self.assertIn(UNMATCHED, compare_sessions(record, RECORD)[0])
                self.assertNotIn(UNMATCHED, compare_sessions(RECORD, record)[0])

    def test_compare_sessions_pairing_of_an_earlier_turn_is_not_judged(self):
        record = changed(drop("messages", 2))
        self.assertEqual(compare_sessions(record, copy.deepcopy(record)), ({}, []))


class PairTest(unittest.TestCase):
    def find(self, *messages):
        """Return what does not pair in a record that came back as it was."""
        record = {"messages": list(messages)}
        return compare_sessions(record, record)[0].get(UNMATCHED, [])

    def test_compare_sessions_each_pair_is_judged(self):
        for phrase, (content, behind, expected) in PAIRS.items():
            with self.subTest(phrase):
                turn = {"role": "assistant", "content": content}
                findings = self.find(user("x"), user("y"), turn, *behind)
                self.assertEqual([str(finding) for finding in findings], expected)

    def test_compare_sessions_message_of_any_kind_has_no_calls(self):
        for odd in (
            None,
            "a",
            [],
            {},
            {"content": None},
            {"content": "a"},
            {"content": [None, []]},
            object(),
        ):
            with self.subTest(odd=odd):
                self.assertEqual(self.find(assistant("x"), odd, user("a"), None, 3, {}), [])
                findings = self.find(assistant("x"), odd, user(result("a")))
                self.assertEqual([one.path for one in findings], ["messages[2].content[0].tool_use_id"])

    def test_compare_sessions_calls_of_a_turn_in_two_messages_are_answered_together(self):
        calls, results = [call("a"), call("b")], user(result("a"), result("b"))
        original = {"messages": [user("x"), assistant(*calls), results]}
        restored = {"messages": [user("x"), *map(assistant, calls), results]}
        self.assertEqual(list(compare_sessions(restored, original)[0]), [TURN])
        restored["messages"][3] = user(result("b"))
        self.assertEqual(list(compare_sessions(restored, original)[0]), [TURN, UNMATCHED])

    def test_compare_sessions_many_calls_are_paired(self):
        calls = [call(f"toolu_{number}") for number in range(5_000)]
        results = [result(f"toolu_{number}") for number in reversed(range(5_000))]
        self.assertEqual(self.find(assistant(*calls), user(*results)), [])
        self.assertEqual(len(self.find(assistant(*calls), user(*results[:1]))), 4_999)


class UnmatchedBesideChangedTest(unittest.TestCase):
    """Results are compared only where all of them pair: a wrong pair says nothing of the right one."""

    def label(self, *results):
        original = {"messages": [user("a"), assistant(call("1"), call("2")), user(result("1"), result("2"))]}
        restored = change_copy(original, put("messages", 2, to=user(*results)))
        changes, _ = compare_sessions(restored, original)
        return {label: [finding.path for finding in findings] for label, findings in changes.items()}

    def test_compare_sessions_results_are_compared_where_all_of_them_pair(self):
        paths = ["messages[2].content[0].content", "messages[2].content[1].content"]
        self.assertEqual(self.label(result("1", "9"), result("2", "9")), {RESULT: paths})
        self.assertEqual(self.label(result("1"), result("2")), {})

    def test_compare_sessions_results_beside_one_that_does_not_pair_are_not_compared(self):
        missing = ["messages[1].content[1].id"]
        table = {
            "one is gone": ([result("1")], missing),
            "one is gone, the other was changed": ([result("1", "9")], missing),
            "one has another id, the other was changed": (
                [result("1", "9"), result("3")],
                [*missing, "messages[2].content[1].tool_use_id"],
            ),
            "one is there twice": (
                [result("1"), result("2"), result("2", "9")],
                ["messages[2].content[2].tool_use_id"],
            ),
            "both are behind words": (
                [text("a"), result("1"), result("2")],
                ["messages[2].content[1].tool_use_id", "messages[2].content[2].tool_use_id"],
            ),
        }
        for phrase, (results, expected) in table.items():
            with self.subTest(phrase):
                self.assertEqual(self.label(*results), {UNMATCHED: expected})


if __name__ == "__main__":
    unittest.main()
