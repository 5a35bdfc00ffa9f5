"""Honest to a reader who was handed a folder: what a verdict does not prove is said where the verdict is."""

from __future__ import annotations

import errno
import json
import re

from tests.conditions import SENDER_REPLIES, ConditionsTestCase, failing_renames, names_file
from tests.support import GOOD_RUN, handoff, message, respond, text

OWN_SOURCE = "sku,available,target\nA-1,7,10\n"
OWN_ANSWER = '{"rows":[{"sku":"A-1","shortage":3}]}'
WRONG = respond(message([text('{"rows":[]}')]))


class HonestTest(ConditionsTestCase):
    def head(self, out="run"):
        """Return the part of a report that holds the verdict."""
        (head,) = re.findall("<header.*?</header>", self.report(out), re.DOTALL)
        return head

    def check_limits(self, told):
        """Neither who made a folder is shown, nor that a model was asked."""
        self.assertRegex(told, "who (made|wrote)")
        self.assertRegex(told, "model was asked")

    def test_inspection_and_report_say_what_consistency_does_not_show(self):
        self.live(self.serve(*GOOD_RUN))
        ended = self.inspect()
        self.assertEqual(ended.code, 0, ended)
        self.check_limits("\n".join(ended.out.strip().split("\n")[-4:]))
        self.check_limits(self.head())
        self.check_limits(self.inspect("run", "--json").out)

    def test_rejected_run_says_it_too(self):
        self.live(self.serve(*SENDER_REPLIES, WRONG))
        ended = self.inspect()
        self.assertEqual(ended.code, 1, ended)
        self.check_limits(ended.out + ended.err)
        self.check_limits(self.head())

    def test_run_that_is_judged_on_its_own_rows_says_so_beside_the_verdict(self):
        source = self.put("source.csv", OWN_SOURCE)
        server = self.serve(*SENDER_REPLIES, respond(message([text(OWN_ANSWER)])))
        self.assertEqual(self.live(server, "--source", source).code, 0)
        ended = self.inspect()
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("recorded in it", ended.out)
        self.assertIn("recorded in it", self.inspect("run", "--json").out)
        self.assertIn("recorded in it", self.head())
        against = self.inspect("run", "--source", source)
        self.assertEqual(against.code, 0, against)
        self.assertNotIn("recorded in it", against.out)

    def test_source_that_a_run_is_judged_on_is_named_in_json_whatever_the_verdict(self):
        source = self.put("source.csv", OWN_SOURCE)
        server = self.serve(*SENDER_REPLIES, respond(message([text(OWN_ANSWER)])))
        self.live(server, "--source", source)
        for verdict in ("accepted", "broken"):
            for options, expected in {(): "recorded", ("--source", source): "trusted"}.items():
                with self.subTest(verdict, options=options):
                    shown = json.loads(self.inspect("run", "--json", *options).out)
                    self.assertEqual((shown["verdict"], shown["source"]), (verdict, expected))
                    self.assertEqual("recorded in it" in str(shown["limits"]), expected == "recorded")
                    self.assertEqual("model was asked" in str(shown["limits"]), verdict == "accepted")
            (self.folder / "run" / "result.json").write_bytes(b"{}")

    def test_run_on_the_built_in_source_is_not_judged_on_its_own_rows(self):
        self.live(self.serve(*GOOD_RUN))
        self.assertNotIn("recorded in it", self.inspect().out + self.head())

    def check_rehearsal(self, out):
        lines = out.strip().split("\n")
        self.assertIn("rehearsal", lines[-1])
        (head,) = [line for line in lines if re.search(r"\brequest\b.*\bstate\b", line)]
        self.assertIn("rehearsal", head)

    def test_rehearsal_says_that_it_is_one_in_its_last_line_and_in_the_head_of_its_table(self):
        ended = handoff("--rehearse", "--out", self.path("run"))
        self.assertEqual(ended.code, 0, ended)
        self.check_rehearsal(ended.out)
        self.check_rehearsal(self.inspect().out)
        self.assertIn("ehearsal", self.head())

    def test_live_run_is_not_said_to_be_a_rehearsal(self):
        self.assertNotIn("rehearsal", self.live(self.serve(*GOOD_RUN)).out)

    def test_rehearsal_is_never_told_to_look_requests_up(self):
        with failing_renames(errno.EACCES, names_file("1-response.json")):
            ended = handoff("--rehearse", "--out", self.path("run"))
        self.assertEqual(ended.code, 5, ended)
        (self.folder / "run" / "1-request.json").write_bytes(b"{}")
        broken = self.inspect()
        self.assertEqual(broken.code, 1, broken)
        for told in (ended.err, broken.err, self.report(), json.dumps(self.inspect("run", "--json").out)):
            self.assertNotRegex(told, "look (it|them) up|look up|provider")
