"""The wrong file is said to be the wrong file: as a prompt, as a session record, as a source."""

from __future__ import annotations

import json

from tests.support import FolderTestCase, checkpoint

RECORD = {
    "model": "invented-model",
    "system": "You look up invoices.",
    "tools": [{"name": "other_tool", "input_schema": {"type": "object"}}],
    "messages": [{"role": "user", "content": "Look it up."}],
}


def list_places(ended):
    """Return the lines of standard error that name a line of a file."""
    return [line for line in ended.err.split("\n") if "line " in line]


class PromptTest(FolderTestCase):
    def setUp(self):
        super().setUp()
        checkpoint("prepare", "--out", self.path("work"))
        self.handoff = self.path("work/handoff.txt")

    def request(self, text, *options):
        return checkpoint("request", self.put("given.txt", text), *options)

    def test_handoff_prompt_is_taken(self):
        ended = checkpoint("request", self.handoff)
        self.assertEqual(ended.code, 0, ended)
        with open(self.handoff, encoding="utf-8") as file:
            self.assertEqual(json.loads(ended.out)["messages"][0]["content"], file.read())

    def test_json_object_is_not_a_prompt(self):
        with open(self.path("work/checkpoint.json"), encoding="utf-8") as file:
            kept = file.read()
        texts = {
            "a session record": json.dumps(RECORD),
            "an indented one": json.dumps(RECORD, indent=2) + "\n",
            "the body of a request": checkpoint("request", self.handoff).out,
            "a checkpoint": kept,
            "an answer": '{"rows":[]}',
            "an empty object": "{}",
            "an object behind white space": "\r\n \t{}\n",
            "an object behind a byte-order mark": "\ufeff{}",
            "a record of another API": json.dumps({"contents": [{"role": "user", "parts": [{"text": "a"}]}]}),
            "an object with a repeated key": '{"a": 1, "a": 2}',
        }
        for name, text in texts.items():
            with self.subTest(name):
                ended = self.request(text)
                self.assertEqual(ended.code, 2, ended)
                self.assertEqual(ended.out, "")
                self.assertIn("JSON", ended.err)

    def test_text_with_json_in_it_is_a_prompt(self):
        texts = {
            "an object behind words": 'Checkpoint: {"a": 1}\n',
            "an object in front of words": '{"a": 1}\nGo on from this.\n',
            "a bracket alone": "{ is a bracket\n",
            "a template": "{name}, go on.\n",
        }
        for name, text in texts.items():
            with self.subTest(name):
                ended = self.request(text)
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual(json.loads(ended.out)["messages"][0]["content"], text)


class RecordTest(FolderTestCase):
    def setUp(self):
        super().setUp()
        self.fixture = json.loads(checkpoint("replay", "--emit-fixture").out)

    def check(self, record, *options):
        restored = self.put("restored.json", json.dumps(record))
        return checkpoint("replay", "--check-restored", restored, *options)

    def test_first_line_says_that_the_built_in_session_is_compared_with(self):
        changed = {**self.fixture, "system": "Another."}
        for record, code, label in (
            (self.fixture, 0, "intact"),
            (changed, 1, "changed prefix: system"),
        ):
            with self.subTest(label):
                ended = self.check(record)
                self.assertEqual(ended.code, code, ended)
                # Standard output begins with the label; the line may be on either stream.
                firsts = (ended.out.split("\n")[0], ended.err.split("\n")[0])
                self.assertTrue(any("built-in" in first for first in firsts), ended)
                self.assertIn(label, ended.out.split("\n"))

    def test_json_says_that_the_built_in_session_is_compared_with(self):
        self.assertIn("built-in", json.dumps(json.loads(self.check(self.fixture, "--json").out)))

    def test_original_of_ones_own_is_not_said_to_be_built_in(self):
        original = self.put("original.json", json.dumps(RECORD))
        ended = self.check(RECORD, "--original", original)
        self.assertEqual(ended.code, 0, ended)
        self.assertNotIn("built-in", ended.out + ended.err)

    def test_record_with_nothing_in_common_is_refused(self):
        call = {"type": "tool_use", "id": "toolu_other", "name": "other_tool", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "toolu_other", "content": "7"}
        turn = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        records = {
            "another session": RECORD,
            "another session with a call": {**RECORD, "messages": [*RECORD["messages"], *turn]},
            "no tools": {"messages": RECORD["messages"]},
            "nothing in it": {"messages": []},
            "tools that are none": {"messages": [], "tools": "query_invoice", "system": 7},
        }
        for name, record in records.items():
            with self.subTest(name):
                ended = self.check(record)
                self.assertEqual(ended.code, 2, ended)  # an input that cannot be used
                self.assertEqual(ended.out, "")
                self.assertIn("--original", ended.err)

    def test_record_that_has_a_name_or_an_id_in_common_is_judged(self):
        (tool,) = self.fixture["tools"]
        records = {
            "the tool alone": {"messages": [], "tools": [tool]},
            "the calls alone": {"messages": self.fixture["messages"]},
            "another system": {**self.fixture, "system": ""},
        }
        for name, record in records.items():
            with self.subTest(name):
                self.assertEqual(self.check(record).code, 1)

    def test_original_of_ones_own_decides_alone(self):
        """Whoever names both files has said what is compared."""
        original = self.put("original.json", json.dumps(self.fixture))
        self.assertEqual(self.check(RECORD, "--original", original).code, 1)


class SourceTest(FolderTestCase):
    HEAD, ROWS = "sku,available,target\n", ("A-1,7,10\n", "A-2,15,12\n", "A-3,0,4\n")

    def prepare(self, text, name="work"):
        return checkpoint("prepare", "--out", self.path(name), "--source", self.put("source.csv", text))

    def digest(self, name):
        with open(self.path(f"{name}/checkpoint.json"), encoding="utf-8") as file:
            return json.load(file)["source_sha256"]

    def test_blank_lines_are_skipped(self):
        self.assertEqual(self.prepare(self.HEAD + "".join(self.ROWS), "plain").code, 0)
        texts = {
            "at the end": self.HEAD + "".join(self.ROWS) + "\n\n",
            "between rows": self.HEAD + "\n".join(self.ROWS),
            "below the header": self.HEAD + "\n\n" + "".join(self.ROWS),
            "with carriage returns": (self.HEAD + "\n".join(self.ROWS) + "\n").replace("\n", "\r\n"),
            "above the header": "\n" + self.HEAD + "".join(self.ROWS),
        }
        for number, (name, text) in enumerate(texts.items()):
            with self.subTest(name):
                ended = self.prepare(text, str(number))
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual(self.digest(str(number)), self.digest("plain"))

    def test_line_of_commas_is_not_skipped(self):
        for name, line in {"as many": ",,\n", "more": ",,,,\n", "one": ",\n", "quoted": '"","",""\n'}.items():
            with self.subTest(name):
                ended = self.prepare(self.HEAD + self.ROWS[0] + "\n" + line + self.ROWS[1], name)
                self.assertEqual(ended.code, 2, ended)
                self.assertIn("line 4", ended.err)

    def test_lines_are_counted_with_the_blank_ones(self):
        ended = self.prepare(self.HEAD + "\n\n" + self.ROWS[0] + "\nA-9,many,1\n", "counted")
        self.assertEqual(ended.code, 2, ended)
        self.assertEqual(len([line for line in list_places(ended) if "line 6" in line]), 1, ended)

    def test_file_of_blank_lines_is_not_a_source(self):
        for number, text in enumerate(("\n\n\n", self.HEAD + "\n\n", "")):
            with self.subTest(text):
                self.assertEqual(self.prepare(text, str(number)).code, 2)
