"""compare_sessions: marks of the cache and fields that the API does not compare are notes."""

from __future__ import annotations

import unittest

from checkpoint_demo import compare_sessions, render_path
from tests.session_records import (
    LATER,
    MARK,
    OUTSIDE,
    PREFIX,
    RECORD,
    RESULT,
    SYSTEM,
    THE_RESULTS,
    THE_TURN,
    TOOLS,
    TURN,
    UNMATCHED,
    all_of,
    assistant,
    call,
    changed,
    result,
    summarise,
    text,
    user,
)
from tests.support import drop, put

# Where a cache_control mark may be changed without changing the prefix.
MARK_PLACES = (
    ("system", 0),
    ("tools", 1),
    ("messages", 1, "content", 1),
    ("messages", 2, "content", 0),
    ("messages", 2, "content", 0, "content", 0),
    ("messages", 3, "content", 0),
    (*THE_TURN, 1),
    (*THE_TURN, 2),
    (*THE_RESULTS, 0),
    (*THE_RESULTS, 1, "content", 0),
    (*THE_RESULTS, 2),
    ("messages", 7, "content", 0),
)
# Where the same word is data like any other.
DATA_PLACES = {
    ("tools", 0, "input_schema"): TOOLS,
    ("tools", 0, "input_schema", "properties"): TOOLS,
    ("messages", 1, "content", 1, "input"): PREFIX,
    (*THE_TURN, 2, "input"): TURN,
    ("messages", 0): PREFIX,
    ("messages", 5): TURN,
    ("messages", 6): RESULT,
    ("messages", 7): LATER,
    ("receipt",): "changed field: receipt",
}


class MarkTest(unittest.TestCase):
    """cache_control on tools and blocks is outside the prefix, elsewhere the word is data."""

    def test_compare_sessions_mark_where_it_is_allowed_is_a_note(self):
        for place in MARK_PLACES:
            path = (*place, "cache_control")
            for value in (MARK, None, {**MARK, "ttl": "1h"}):
                with self.subTest(place=render_path(place), value=value):
                    marked = changed(put(*path, to=value))
                    for pair in ((marked, RECORD), (RECORD, marked)):
                        changes, notes = compare_sessions(*pair)
                        self.assertEqual(changes, {})
                        self.assertEqual([note.path for note in notes], [render_path(path)])
                    self.assertEqual(compare_sessions(marked, marked), ({}, []))

    def test_compare_sessions_mark_whose_life_was_changed_is_a_note(self):
        path = ("system", 1, "cache_control")
        restored = changed(put(*path, to=MARK))
        changes, notes = compare_sessions(restored, changed(put(*path, to={**MARK, "ttl": "1h"})))
        self.assertEqual(changes, {})
        expected = 'system[1].cache_control.ttl: observed nothing, expected the string "1h"'
        self.assertEqual([str(note) for note in notes], [expected])

    def test_compare_sessions_mark_that_moved_is_two_notes(self):
        restored = changed(put("tools", 0, "cache_control", to=MARK))
        changes, notes = compare_sessions(restored, changed(put("tools", 1, "cache_control", to=MARK)))
        self.assertEqual(changes, {})
        paths = [note.path for note in notes]
        self.assertEqual(paths, ["tools[0].cache_control", "tools[1].cache_control"])

    def test_compare_sessions_mark_inside_data_is_a_change(self):
        for place, label in DATA_PLACES.items():
            path = (*place, "cache_control")
            with self.subTest(place=render_path(place)):
                marked = changed(put(*path, to=MARK))
                for pair in ((marked, RECORD), (RECORD, marked)):
                    changes, notes = compare_sessions(*pair)
                    self.assertEqual(summarise(changes), [(label, render_path(path))])
                    self.assertEqual(notes, [])

    def test_compare_sessions_mark_in_a_list_that_only_resembles_blocks_is_a_change(self):
        table = {
            "a list in another field": (("receipt",), "changed field: receipt"),
            "content of a tool": (("tools", 0, "content"), TOOLS),
            "content of a system block": (("system", 0, "content"), SYSTEM),
            "source of a block": ((*THE_TURN, 1, "source"), TURN),
        }
        for phrase, (place, label) in table.items():
            with self.subTest(phrase):
                restored = changed(put(*place, to=[{"type": "text", "cache_control": MARK}]))
                original = changed(put(*place, to=[{"type": "text"}]))
                changes, notes = compare_sessions(restored, original)
                path = render_path((*place, 0, "cache_control"))
                self.assertEqual((summarise(changes), notes), ([(label, path)], []))

    def test_compare_sessions_mark_beside_a_change_hides_nothing(self):
        change = all_of(
            put(*THE_TURN, 1, to={**text("Look."), "cache_control": MARK}), put("max_tokens", to=1)
        )
        changes, notes = compare_sessions(changed(change), RECORD)
        self.assertEqual(summarise(changes), [(TURN, "messages[5].content[1].text")])
        paths = [note.path for note in notes]
        self.assertEqual(paths, ["messages[5].content[1].cache_control", "max_tokens"])

    def test_compare_sessions_field_outside_the_prefix_is_a_note(self):
        for field in OUTSIDE:
            for value in (None, "other", {"a": 1}, 7):
                with self.subTest(field=field, value=value):
                    other = changed(put(field, to=value))
                    for pair in ((other, RECORD), (RECORD, other)):
                        changes, notes = compare_sessions(*pair)
                        self.assertEqual(changes, {})
                        self.assertEqual([note.path for note in notes], [field])

    def test_compare_sessions_field_outside_the_prefix_that_is_gone_is_a_note(self):
        changes, notes = compare_sessions(changed(all_of(drop("model"), drop("max_tokens"))), RECORD)
        self.assertEqual(changes, {})
        expected = [
            'model: observed nothing, expected the string "anthropic/claude-fable-5.2"',
            "max_tokens: observed nothing, expected the integer 4096",
        ]
        self.assertEqual([str(note) for note in notes], expected)

    def test_compare_sessions_field_that_only_resembles_one_is_a_change(self):
        for field in ("Model", "max_token", "system_prompt", "tool_choices", "stop_sequences", "temperature"):
            with self.subTest(field):
                changes, notes = compare_sessions(changed(put(field, to=1)), RECORD)
                self.assertEqual((summarise(changes), notes), ([(f"changed field: {field}", field)], []))


class HiddenChangeTest(unittest.TestCase):
    """Nothing stands in front of a change so that it is not seen."""

    def test_compare_sessions_marks_without_end_hide_no_change(self):
        def record(mark, words):
            blocks = [{**text("a"), "cache_control": [mark] * 100}] * 110
            return {"messages": [user(*blocks, text(words)), assistant("ok")]}

        changes, notes = compare_sessions(record(1, "pay nothing"), record(0, "pay all"))
        self.assertEqual(summarise(changes), [(PREFIX, "messages[0].content[110].text")])
        self.assertEqual(len(notes), 10_000)

    def test_compare_sessions_fields_that_are_shown_alike_are_two(self):
        original = {"messages": [], "\x1b": "paid: no", "\\x1b": 0}
        restored = {"messages": [], "\\x1b": 0, "\x1b": "paid: no"}
        self.assertEqual(compare_sessions(restored, original), ({}, []))
        restored["\x1b"] = "paid: yes"
        self.assertEqual(list(compare_sessions(restored, original)[0]), ["changed field: \\x1b"])

    def test_compare_sessions_words_beside_an_unmatched_result_are_never_intact(self):
        """The results are not compared then, but the label says that they cannot be used."""
        calls = [call("1"), call("2")]
        for contents in (
            ([result("1"), result("9"), text("do not pay")], [result("1"), result("9"), text("pay")]),
            ([text("stop"), result("1"), result("2")], [result("1")]),
            ([result("1"), text("stop"), text("go"), result("2")], [result("1"), text("go")]),
            ([result("1"), text("stop"), text("go")], [result("9"), result("1")]),
            ([result("1"), text("go"), text("stop")], [result("9"), result("1")]),
            ([text("stop"), result("1"), result("2")], [result("1"), result("9"), result("2")]),
            ([result("2"), text("stop"), result("1")], [result("8"), result("1"), result("9"), result("2")]),
        ):
            before, after = (
                {"messages": [user("a"), assistant(*calls), user(*content)]} for content in contents
            )
            for restored, original in ((after, before), (before, after), (after, after)):
                with self.subTest(restored=restored):
                    self.assertEqual(list(compare_sessions(restored, original)[0]), [UNMATCHED])

    def test_compare_sessions_message_in_the_place_of_results_is_unmatched(self):
        original = {"messages": [user("a"), assistant(call("1")), user("x")]}
        restored = changed(put("messages", 2, "content", to="y"), original)
        self.assertEqual(list(compare_sessions(restored, original)[0]), [UNMATCHED])


if __name__ == "__main__":
    unittest.main()
