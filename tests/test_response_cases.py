"""Each reply of tests/cases/response: what a live run makes of it, and what extract does."""

from __future__ import annotations

import json

from tests.conditions import SENDER_REPLIES, ConditionsTestCase
from tests.support import CASES, checkpoint, respond

FOLDER = CASES / "response"
# The exit codes that a run may have by the outcome of the reply of its last step.
CODES = {"accept": (0,), "reject": (1, 4), "incomplete": (4,), "error": (4, 5)}


def read_cases():
    """Return {file: case}."""
    lines = (FOLDER / "expected.jsonl").read_text(encoding="utf-8").split("\n")
    return {case["file"]: case for case in map(json.loads, filter(None, lines))}


class ResponseCasesTest(ConditionsTestCase):
    def test_every_reply_ends_a_run_as_it_says(self):
        cases = read_cases()
        self.assertGreaterEqual(len(cases), 27)
        for name, case in cases.items():
            with self.subTest(name):
                earlier = SENDER_REPLIES if case["step"] == "final" else ()
                server = self.serve(*earlier, respond((FOLDER / name).read_bytes()))
                ended = self.live(server, out=name)
                if case["step"] == "final":
                    self.assertIn(ended.code, CODES[case["outcome"]], ended)
                    self.assertEqual("accepted:" in ended.out, case["outcome"] == "accept")
                going_on = case["step"] == "tool_call" and case["outcome"] == "accept"
                self.assertEqual(len(server.requests), len(earlier) + 1 + going_on)
                self.assertEqual("result.json" in self.files(name), ended.code == 0)
                self.assertEqual(self.inspect(name).code, ended.code)

    def test_every_final_reply_is_extracted_or_not_as_it_says(self):
        """extract takes the replies of three APIs, so that `extract` of a case may differ from `outcome`."""
        for name, case in read_cases().items():
            if case["step"] == "final":
                with self.subTest(name):
                    outcome = case.get("extract", case["outcome"])
                    ended = checkpoint("extract", str(FOLDER / name), "-o", self.path(f"{name}.result"))
                    judged = ended
                    if ended.code == 0:  # it takes a finished answer out, which validate judges
                        judged = checkpoint("validate", self.path(f"{name}.result"))
                    self.assertEqual(judged.code, 0 if outcome == "accept" else 1, (ended, judged))
