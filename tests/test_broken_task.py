"""Task files that cannot be used, and sources that a task cannot use: refused, with the place."""

from __future__ import annotations

import errno
import json
import os

from checkpoint_demo import DEMO, Task, TaskError, check_task
from tests import support
from tests.tickets import ANSWER, OWN_ANSWER, OWN_SOURCE, TICKETS, TaskTestCase, method

# What is changed in the tickets' file: (a piece of it, what replaces it, the place, words of the fault).
LAST = "TASK = Tickets()"


TEXTS = ("name", "operation", "tool_description", "sender_prompt", "objective", "instructions", "row_key")
BROKEN = {
    "no TASK": (LAST, "", "TASK", "observed None, expected an object of a class from Task"),
    "a TASK of another kind": (LAST, "TASK = 7", "TASK", "observed 7, expected an object"),
    "the class in place of an object": (LAST, "TASK = Tickets", "TASK", "expected an object of a class"),
    "a TASK of another class": (LAST, "class T: pass\nTASK = T()", "TASK", "expected an object of a class"),
    **{
        f"no {name}": (LAST, f"del Tickets.{name}\n{LAST}", name, "expected a text that matches")
        for name in TEXTS
    },
    **{
        f"a {name} that is {phrase}": (LAST, f"Tickets.{name} = {value}\n{LAST}", name, "")
        for name in (*TEXTS, "rows_field")
        for phrase, value in {
            "None": "None",
            "a number": "7",
            "bytes": 'b"tickets"',
            "empty": '""',
            "blank": r'" \n"' if name != "rows_field" else '"\\n"',
        }.items()
        if (name, phrase) != ("row_key", "blank")
    },
    "a task_id that is a number": (LAST, f"Tickets.task_id = 7\n{LAST}", "task_id", "TypeError"),
    "a task_id with a newline": (LAST, f'Tickets.task_id = "a\\n"\n{LAST}', "task_id", "expected a text"),
    "changes that are None": (LAST, f"Tickets.changes = None\n{LAST}", "changes", "AttributeError"),
    "changes with a cell too few": (" | routes.normal\n", "\n", "changes", "and four more cells"),
    "changes of a group that is not there": (
        "result | a wrong route",
        "results | a",
        "changes",
        "expected checkpoint",
    ),
    "changes that are prose": ("result | a wrong route", "A wrong route", "changes", "expected checkpoint"),
    "a name in capitals": ('"tickets"', '"Tickets"', "name", "name: 'Tickets': expected a text that matches"),
    "a name as long as a path": ('"tickets"', '"t" * 41', "name", "expected a text that matches"),
    "an operation with a space": ('"read_tickets"', '"read tickets"', "operation", "expected a text"),
    "an operation that is too long": ('"read_tickets"', '"r" * 65', "operation", "expected a text"),
    "a key that no row has": (
        'row_key = "id"',
        'row_key = "no"',
        "source",
        "[0]: expected an object whose no",
    ),
    "a source that is a tuple": (
        LAST,
        f"Tickets.source = (1,)\n{LAST}",
        "source",
        "expected an array of 1 to",
    ),
    "a source that is None": (LAST, f"Tickets.source = None\n{LAST}", "source", "expected an array of 1 to"),
    "a source without rows": (LAST, f"Tickets.source = []\n{LAST}", "source", "observed 0 rows"),
    "a row that is not an object": (LAST, f'Tickets.source = ["T-1"]\n{LAST}', "source", "[0]: expected"),
    "a row without its key": (', "priority": 3}', "}", "build_answer", "KeyError"),
    "a row without its id": ('"id": "T-2", ', "", "source", "[1]: expected an object whose id"),
    "a row whose id is a number": ('"T-2"', "2", "source", "[1]: expected an object whose id"),
    "a row whose id is blank": ('"T-2"', '" "', "source", "[1]: expected an object whose id"),
    "a row twice": (
        '"T-2"',
        '"T-1"',
        "source",
        "[1]: expected an object whose id is a text that no other row",
    ),
    "a source with a lone surrogate": ('"Ben"', r'"\ud800"', "source", "a lone surrogate has no UTF-8 form"),
    "a source with a set": ('"Ben"', "{1}", "source", "TypeError"),
    "a source with NaN": ('"Ben"', 'float("nan")', "source", "ValueError"),
    "a source that is too deep": (
        '"Ben"',
        'parse_json("[" * 99 + "]" * 99)',
        "source",
        "nested deeper than 50 levels",
    ),
    **{
        f"{name} that raises": (*method(name, 'raise ValueError("no")'), name, "ValueError: no (line ")
        for name in ("build_answer", "list_pending", "render_acceptance", "find_faults")
    },
    **{
        f"{name} that ends the process": (*method(name, "raise SystemExit(0)"), name, "SystemExit: 0 (line ")
        for name in ("build_answer", "list_pending", "render_acceptance", "find_faults")
    },
    **{
        f"{name} that returns None": (*method(name, "return None"), name, "")
        for name in ("build_answer", "list_pending", "render_acceptance", "find_faults")
    },
    **{
        f"{name} that calls itself for ever": (
            *method(name, f"return self.{name}(*_)"),
            name,
            "RecursionError",
        )
        for name in ("build_answer", "list_pending", "render_acceptance", "find_faults")
    },
    "build_answer that returns a list": (*method("build_answer", "return []"), "build_answer", ""),
    "build_answer that returns a set": (*method("build_answer", "return {1}"), "build_answer", ""),
    "build_answer without rows": (*method("build_answer", "return {}"), "build_answer", "KeyError: 'rows'"),
    "build_answer with too few rows": (
        *("zip(rows, routes)", "zip(rows[:2], routes)", "build_answer"),
        "a row for each row of the source, in its order",
    ),
    "build_answer in another order": (
        *("zip(rows, routes)", "zip(rows[::-1], routes)", "build_answer"),
        "a row for each row of the source, in its order",
    ),
    "build_answer with NaN": ('"route": route}', '"route": float("nan")}', "build_answer", "ValueError"),
    "build_answer that is another one each time": (
        *('"summary": FREE_TEXT', '"summary": __import__("uuid").uuid4().hex'),
        *("find_faults", "it is not accepted"),
    ),
    "list_pending with a number": (*method("list_pending", "return [7]"), "list_pending", "TypeError"),
    "list_pending with a lone surrogate": (
        *method("list_pending", r'return ["\ud800"]'),
        *("list_pending", "lone surrogate"),
    ),
    "render_acceptance that returns a number": (
        *method("render_acceptance", "return 7"),
        *("render_acceptance", "TypeError"),
    ),
    "find_faults that refuses its own answer": (
        *method("find_faults", 'yield Finding("rows", "never")'),
        *("find_faults", "it is not accepted: rows: never"),
    ),
    "find_faults that yields a text": (
        *method("find_faults", 'yield "no"'),
        "find_faults",
        "it is not accepted",
    ),
    "a syntax error": ("ROUTES = {", "ROUTES = = {", "", "SyntaxError: invalid syntax (line 5)"),
    "an indent too many": ("class Tickets", "  class Tickets", "", "IndentationError"),
    "a module that is not there": ("ROUTES =", "import no_such_module\nROUTES =", "", "(line 5)"),
    "a name that is not there": (
        "ROUTES =",
        "nothing\nROUTES =",
        "",
        "NameError: name 'nothing' is not defined",
    ),
    "sys.exit at its import": ("ROUTES =", "raise SystemExit(0)\nROUTES =", "", "SystemExit: 0 (line 5)"),
    "an exception that is no Exception": (
        *("ROUTES =", "class Cancelled(BaseException): pass\nraise Cancelled\nROUTES ="),
        *("", "Cancelled (line 6)"),
    ),
    "GeneratorExit at its import": ("ROUTES =", "raise GeneratorExit\nROUTES =", "", "GeneratorExit"),
    "sys.exit without a code": ("ROUTES =", "raise SystemExit\nROUTES =", "", "SystemExit"),
    "infinite recursion at its import": (
        *("ROUTES =", "def f():\n    f()\n\n\nf()\nROUTES ="),
        *("", "RecursionError"),
    ),
    "a raise of an odd exception": (
        *("ROUTES =", "class E(Exception):\n    def __str__(self): return 7\nraise E\nROUTES ="),
        *("", "E"),
    ),
}


class BrokenTaskTest(TaskTestCase):
    COMMANDS = {
        "prepare": ["prepare", "--out", "work"],
        "verify": ["verify", "-"],
        "validate": ["validate", "-"],
        "self-test": ["self-test"],
    }

    def check(self, arguments, place, words, what="unusable task"):
        """Run a command that must refuse a task, and check that it names the place and does nothing."""
        before = self.names()
        ended = support.checkpoint(*arguments, stdin=json.dumps(ANSWER).encode())
        self.assertEqual((ended.code, ended.out), (2, ""), ended)
        first, why, then = ended.err.splitlines()
        self.assertTrue(first.startswith(f"{self.script}: {what}: {place}: "), first)
        self.assertIn(words, first)
        self.assertTrue(why.startswith("  why: ") and then.startswith("  next: "), ended)
        self.assertNotIn("bug in this program", ended.err)
        self.assertEqual(self.names(), before)

    def test_a_broken_task_file_is_refused_with_its_place(self):
        for phrase, (old, new, place, words) in BROKEN.items():
            text = TICKETS.replace(old, new, 1).replace("import FREE_TEXT", "import FREE_TEXT, Finding")
            self.assertIn(old, TICKETS, phrase)
            self.put("broken.py", text)
            for name, arguments in self.COMMANDS.items():
                with self.subTest(phrase, command=name):
                    self.check(
                        [*arguments, "--task", "broken.py"], f"broken.py{', ' * bool(place)}{place}", words
                    )

    def test_a_person_who_interrupts_a_task_file_ends_the_command(self):
        self.put("broken.py", TICKETS.replace("ROUTES =", "raise KeyboardInterrupt\nROUTES ="))
        ended = support.checkpoint("validate", "-", "--task", "broken.py")
        self.assertEqual((ended.code, ended.out), (130, ""), ended)

    def test_what_a_task_prints_is_no_part_of_standard_output(self):
        for body in ("print('NOISE')", "import sys; sys.stdout.write('NOISE')"):
            noisy = TICKETS.replace(*method("list_pending", f"{body}; return []"))
            self.put("tickets.py", f"{body}\n{noisy}")
            answer = self.put("answer.json", json.dumps(ANSWER))
            with self.subTest(body):
                ended = support.checkpoint("validate", answer, "--task", "tickets.py")
                self.assertEqual((ended.code, ended.out), (0, "accepted: 3 rows\n"), ended)
                self.assertIn("NOISE", ended.err)
                ended = support.checkpoint("validate", answer, "--task", "tickets.py", "--json")
                self.assertEqual(json.loads(ended.out)["verdict"], "accepted")
                run = ["--rehearse", "--out", str(len(body)), "--task", "tickets.py", "--json"]
                self.assertEqual(json.loads(support.handoff(*run).out)["verdict"], "accepted")

    def test_a_task_file_that_is_not_utf8_is_refused(self):
        self.put("broken.py", TICKETS.encode().replace(b"Ben", b"B\xe9n"))
        self.check(["validate", "-", "--task", "broken.py"], "broken.py", "SyntaxError")
        self.put("broken.py", b"\0" * 100)
        self.check(["validate", "-", "--task", "broken.py"], "broken.py", "null bytes")
        self.put("broken.py", TICKETS.encode("utf-16"))
        self.check(["validate", "-", "--task", "broken.py"], "broken.py", "")

    def test_a_task_file_that_cannot_be_read_is_refused(self):
        (self.folder / "folder").mkdir()
        for name, number in {"missing.py": errno.ENOENT, "folder": errno.EISDIR}.items():
            with self.subTest(name):
                arguments = ["validate", "-", "--task", name]
                self.check(arguments, name, os.strerror(number), "unreadable")

    def test_a_task_file_that_is_too_deep_for_python_is_refused(self):
        self.put("broken.py", "(" * 5_000)
        self.check(["validate", "-", "--task", "broken.py"], "broken.py", "")

    def test_a_hostile_fault_is_shown_escaped_and_short(self):
        self.put(
            "broken.py", TICKETS.replace("ROUTES =", 'raise ValueError("\\x1b[2J\\n" * 9_999)\nROUTES =')
        )
        ended = support.checkpoint("validate", "-", "--task", "broken.py")
        self.assertEqual((ended.code, len(ended.err.splitlines())), (2, 3))
        self.assertNotIn("\x1b", ended.err)

    def test_check_task_says_the_same_of_an_object(self):
        for phrase, value in {"None": None, "the base class": Task, "a text": "TASK"}.items():
            with self.subTest(phrase), self.assertRaises(TaskError) as caught:
                check_task(value)
            self.assertEqual(caught.exception.place, "TASK")
        self.assertIs(check_task(DEMO), DEMO)
        with self.assertRaises(TaskError) as caught:
            check_task(Task())
        self.assertEqual(caught.exception.place, "name")


class OddSourceTest(TaskTestCase):
    """What a task makes of a source that --source names."""

    SOURCES = {
        "not JSON": ("nonsense", "line 1 column 1: not JSON"),
        "an object": ("{}", "observed an object, expected an array of 1 to 100,000 rows"),
        "no rows": ("[]", "observed 0 rows, expected an array of 1 to 100,000 rows"),
        "a row without an id": ('[{"priority":1}]', "[0]: expected an object whose id"),
        "a row twice": (f"[{OWN_SOURCE[1:-1]},{OWN_SOURCE[1:-1]}]", "[1]: expected an object whose id"),
        "a row that its answer is not known for": ('[{"id":"x","priority":9}]', "KeyError: 9"),
        "a lone surrogate": (r'[{"id":"x","priority":1,"a":"\ud800"}]', "a lone surrogate"),
    }

    def test_a_source_that_the_task_cannot_use_is_refused(self):
        for phrase, (text, words) in self.SOURCES.items():
            source = self.put("own.json", text)
            before = self.names()
            for arguments in (
                ["prepare", "--out", "work"],
                ["validate", "-"],
                ["verify", "-"],
                ["self-test"],
            ):
                with self.subTest(phrase, command=arguments[0]):
                    ended = support.checkpoint(*arguments, "--task", self.file, "--source", source)
                    self.assertEqual((ended.code, ended.out, len(ended.err.splitlines())), (2, "", 3), ended)
                    self.assertIn(words, ended.err)
                    self.assertEqual(self.names(), before)

    def test_parse_source_that_fails_is_refused_with_its_line(self):
        bodies = {
            "raises": ('raise ValueError("no")', "unusable task: parse_source: ValueError: no (line "),
            "ends the process": ("raise SystemExit(0)", "unusable task: parse_source: SystemExit: 0 (line "),
            "is cancelled": ("raise GeneratorExit", "unusable task: parse_source: GeneratorExit (line "),
            "returns nothing": ("return None", "own.json: the source: observed true, false or null"),
            "returns a text": ('return "rows"', "own.json: the source: observed a string, expected an array"),
            "calls itself": ("return self.parse_source(*_)", "unusable task: parse_source: RecursionError"),
        }
        source = self.put("own.json", OWN_SOURCE)
        for phrase, (body, words) in bodies.items():
            with self.subTest(phrase):
                self.put("tickets.py", TICKETS.replace(*method("parse_source", body)))
                ended = self.validate(OWN_ANSWER, "--source", source)
                self.assertEqual((ended.code, ended.out, len(ended.err.splitlines())), (2, "", 3), ended)
                self.assertIn(words, ended.err)
                self.assertNotIn("bug in this program", ended.err)

    def test_parse_source_of_the_base_class_is_refused(self):
        self.put("tickets.py", TICKETS.replace("parse_source", "parse_nothing"))
        ended = self.validate(OWN_ANSWER, "--source", self.put("own.json", OWN_SOURCE))
        self.assertEqual((ended.code, ended.out), (2, ""))
        self.assertIn("unusable task: parse_source: NotImplementedError", ended.err)
