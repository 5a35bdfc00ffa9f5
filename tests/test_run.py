"""Whole runs over real HTTP: what is sent, what is recorded, how a run ends, and the ten invariants."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
import unittest
from unittest import mock

import checkpoint_demo
import run_handoff
from run_handoff import Outcome
from tests.support import (
    ANSWER,
    ANSWERED,
    CALLED,
    ENDED,
    GOOD_RUN,
    KEY,
    ROOT,
    THINKING,
    RunTestCase,
    handoff,
    message,
    respond,
    start_script,
    text,
    tool_call,
)

REQUESTS = ("sender-tool-request", "sender-tool-result", "receiver-handoff")


class AcceptedRunTest(RunTestCase):
    def setUp(self):
        super().setUp()
        self.server = self.serve(*GOOD_RUN)
        self.ended = self.live(self.server)

    def test_run_is_accepted_with_its_cost(self):
        self.assertEqual(self.ended.code, 0, self.ended)
        self.assertTrue(self.ended.out.endswith("accepted: 3 rows, total shortage 7\n"))
        for cost in ("0.004816", "0.014024", "0.003168", "0.022008"):
            self.assertIn(cost, self.ended.out)

    def test_cost_is_in_the_ledger(self):
        costs = {
            record["operation_id"]: record["cost_usd"] for record in self.ledger() if "cost_usd" in record
        }
        expected = dict(zip((*REQUESTS, "run"), ("0.004816", "0.014024", "0.003168", "0.022008")))
        self.assertEqual(costs, expected)

    def test_three_requests_are_sent_as_stored(self):
        self.assertEqual(self.server.connections, 3)
        files = self.files()
        for number, request in enumerate(self.server.requests, 1):
            self.assertEqual(request.body, files[f"{number}-request.json"])
            self.assertEqual(request.headers["x-api-key"], KEY)

    def test_second_request_goes_on_with_the_first(self):
        first, second, _ = (json.loads(request.body) for request in self.server.requests)
        *earlier, turn, results = second["messages"]
        self.assertEqual(earlier, first["messages"])
        self.assertEqual(turn, {"role": "assistant", "content": CALLED["content"]})
        self.assertEqual([block["type"] for block in results["content"]], ["tool_result"])
        self.assertEqual(results["content"][0]["tool_use_id"], "toolu_invented")
        for field in ("system", "tools", "model", "max_tokens", "output_config"):
            self.assertEqual(second[field], first[field])

    def test_third_request_holds_nothing_but_the_checkpoint(self):
        third = json.loads(self.server.requests[2].body)
        handoff = checkpoint_demo.render_handoff(
            checkpoint_demo.DEMO,
            checkpoint_demo.build_checkpoint(checkpoint_demo.DEMO, checkpoint_demo.DEMO.source),
        )
        self.assertEqual(
            third,
            {
                "model": "anthropic/claude-opus-5.5",
                "max_tokens": 4_096,
                "output_config": {"effort": "low"},
                "messages": [{"role": "user", "content": handoff}],
            },
        )
        self.assertNotIn(b"toolu_invented", self.server.requests[2].body)
        self.assertNotIn(THINKING["signature"].encode(), self.server.requests[2].body)

    def test_folder_holds_what_the_design_names(self):
        replies = {
            f"{n}-response.json": json.dumps(body).encode()
            for n, body in enumerate((CALLED, ENDED, ANSWERED), 1)
        }
        files = self.files()
        others = {
            "checkpoint.json",
            "handoff.txt",
            "ledger.jsonl",
            "result.json",
            "report.html",
            "SHA256SUMS",
        }
        requests = {f"{number}-request.json" for number in (1, 2, 3)}
        self.assertEqual(set(files), {*others, *replies, *requests})
        for name, body in replies.items():
            self.assertEqual(files[name], body)
        self.assertEqual(json.loads(files["result.json"]), json.loads(ANSWER))

    def test_folder_is_for_its_owner_alone(self):
        self.assertEqual((self.folder / "run").stat().st_mode & 0o777, 0o700)
        for entry in (self.folder / "run").iterdir():
            self.assertEqual(entry.stat().st_mode & 0o777, 0o600, entry.name)

    def test_sums_agree_with_another_tool(self):
        names = sorted(set(self.files()) - {"SHA256SUMS"})
        told = subprocess.run(
            ["sha256sum", "-c", "SHA256SUMS"], cwd=self.folder / "run", capture_output=True, check=False
        )
        self.assertEqual(told.returncode, 0, told)
        self.assertEqual(
            sorted(told.stdout.decode().split()), sorted([f"{name}:" for name in names] + ["OK"] * len(names))
        )

    def test_states_are_recorded_in_order(self):
        sent = ["planned", "in_flight", "confirmed"]
        expected = dict.fromkeys(REQUESTS, sent)
        expected.update({"run": ["planned", "confirmed"], "read-stock-1": ["planned", "confirmed"]})
        self.assertEqual(self.states(), expected)

    def test_ledger_is_a_chain(self):
        lines = self.files()["ledger.jsonl"].splitlines()
        previous = "0" * 64
        for line in lines:
            record = json.loads(line)
            self.assertEqual(record["prev_sha256"], previous)
            self.assertRegex(record["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            previous = checkpoint_demo.digest_bytes(line)

    def test_inspection_agrees(self):
        ended = self.inspect()
        self.assertEqual(ended.code, 0, ended)
        self.assertTrue(ended.out.endswith("accepted: 3 rows, total shortage 7\n"))
        self.assertIn("0.022008", ended.out)

    def test_second_run_on_the_folder_is_refused(self):
        before = self.files()
        ended = self.live(self.serve(*GOOD_RUN))
        self.assertEqual(ended.code, 3, ended)
        self.assertIn("already exists", ended.err.splitlines()[0])
        self.assertEqual(self.files(), before)

    def test_terminal_is_useful_at_80_columns(self):
        for line in self.ended.out.splitlines():
            self.assertLessEqual(len(line), 80)
        self.assertTrue((self.ended.out + self.ended.err).isascii())


class MemoryTest(RunTestCase):
    def test_memory_that_ends_while_the_report_is_made_changes_no_end(self):
        cases = {
            "unclear": ([b""], 5),
            "failed": ([respond({}, 401)], 4),
            "rejected": ([*GOOD_RUN[:2], respond(message([text("{}")]))], 1),
            "accepted": (GOOD_RUN, 0),
        }
        for out, (script, code) in cases.items():
            with self.subTest(out), mock.patch.object(run_handoff, "render_report", side_effect=MemoryError):
                ended = self.live(self.serve(*script), out=out)
                self.assertEqual(ended.code, code, ended)
                missing = "missing: report.html and SHA256SUMS could not be written: MemoryError"
                self.assertIn(missing, ended.err)
                self.assertEqual("look up: " in ended.err, code == 5)

    def test_small_file_takes_little_memory(self):
        self.put("handoff.txt", b"x" * 1_000)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        self.assertEqual(len(run_handoff.read_evidence(str(self.folder), "handoff.txt")), 1_000)
        self.assertLess(tracemalloc.get_traced_memory()[1], 2**20)


class AdviceTest(unittest.TestCase):
    """What is told about an end, by the verdict and, of a failed run, by a code of what it failed by."""

    CASES = {
        "rejected": "compare the answer with the source",
        "unclear": "look it up with the provider",
        "broken": "keep the folder as it is",
        "interrupted": "start a new run",
        "failed": "mend the cause, if there is one, then start a new run",
        "accepted": "",
    }
    ERROR = b'{"type":"error","error":{"type":"network","message":"nothing was sent: HTTP 401"}}'
    FAILED = {
        "no connection": (Outcome(opened=False, finding="Connection refused"), "look at the endpoint, the n"),
        "no key": (Outcome(b"", http_status=401), "look at the key, then start a new run"),
        "no right": (Outcome(b"", http_status=403), "look at the key, then start a new run"),
        "no such thing": (Outcome(b"", http_status=404), "look at the endpoint and the models"),
        "too many": (Outcome(b"", http_status=429), "wait, then start a new run"),
        "overloaded": (Outcome(ERROR, http_status=529), "wait, then start a new run"),
        "words of a server": (Outcome(ERROR, http_status=400), "mend the cause, if there is one"),
    }

    def advise(self, verdict, cause=run_handoff.OTHER, rehearsal=False):
        """Return what a person is told to do next about a run that ended by a cause."""
        records = [{"operation_id": "run", "rehearsal": rehearsal}, {"operation_id": "run", "cause": cause}]
        why, advice = run_handoff.explain_end(verdict, records)
        self.assertEqual(bool(why), bool(advice))
        return advice

    def test_advice_is_for_this_verdict_alone(self):
        for verdict, expected in self.CASES.items():
            with self.subTest(verdict):
                advice = self.advise(verdict)
                self.assertTrue(advice.startswith(expected), advice)
                self.assertEqual(bool(advice), bool(expected))

    def test_advice_about_a_rehearsal_sends_nobody_to_a_provider(self):
        for verdict, expected in self.CASES.items():
            for cause in ("network", "key", "other"):
                with self.subTest(verdict, cause=cause):
                    advice = self.advise(verdict, cause, rehearsal=True)
                    self.assertEqual(bool(advice), bool(expected))
                    self.assertNotRegex(advice, "look it up|provider|proxy")
        advice = self.advise("failed", "network", rehearsal=True)
        self.assertTrue(advice.startswith("allow programs to listen and connect on 127.0.0.1"), advice)

    def test_advice_is_for_what_a_request_failed_by(self):
        for phrase, (outcome, expected) in self.FAILED.items():
            with self.subTest(phrase):
                self.assertEqual(run_handoff.judge_outcome(outcome)[0], "failed")
                advice = self.advise("failed", run_handoff.find_outcome_cause(outcome))
                self.assertTrue(advice.startswith(expected), advice)

    def test_cause_of_a_failed_run_changes_no_other_advice(self):
        for verdict in set(self.CASES) - {"failed"}:
            for cause in ("network", "key", "load", "tokens"):
                self.assertEqual(self.advise(verdict, cause), self.advise(verdict))


class EndTest(RunTestCase):
    """How a run ends, by what the server does at which step: exit code, state, words."""

    CASES = {
        "1: refused": ([respond({}, 401)], 4, "failed", "HTTP 401"),
        "1: redirected": ([respond(b"", 302, location="http://127.0.0.1:9/")], 4, "failed", "redirect"),
        "1: overloaded": (
            [respond({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 529)],
            4,
            "failed",
            "overloaded_error",
        ),
        "1: gateway": ([respond(b"<html>", 502)], 5, "unclear", "HTTP 502"),
        "1: no reply": ([b""], 5, "unclear", "no reply"),
        "1: cut": ([respond(CALLED)[:-1]], 5, "unclear", "cut short"),
        "1: no message": ([respond({"ok": True})], 5, "unclear", "without a whole message"),
        "1: no call": ([respond(message([text("7, 15, 0")]))], 4, "confirmed", "stop_reason"),
        "1: another tool": (
            [respond(message([tool_call(name="order")], "tool_use"))],
            4,
            "confirmed",
            "order",
        ),
        "1: cut by the limit": ([respond(message([], "max_tokens"))], 4, "confirmed", "token limit"),
        "2: refused": ([GOOD_RUN[0], respond({}, 400)], 4, "failed", "HTTP 400"),
        "2: time-out of a gateway": ([GOOD_RUN[0], respond({}, 504)], 5, "unclear", "HTTP 504"),
        "2: another call": ([GOOD_RUN[0], GOOD_RUN[0]], 4, "confirmed", "stop_reason"),
        "3: refused": ([*GOOD_RUN[:2], respond({}, 429)], 4, "failed", "HTTP 429"),
        "3: refused for a while": (
            [*GOOD_RUN[:2], respond({}, 429, retry_after="30\x1b[2J")],
            4,
            "failed",
            r"retry-after: 30\x1b[2J",
        ),
        "3: reset": ([*GOOD_RUN[:2], b""], 5, "unclear", "no reply"),
        "3: model refuses": ([*GOOD_RUN[:2], respond(message([], "refusal"))], 4, "confirmed", "refused"),
        "3: call": ([*GOOD_RUN[:2], GOOD_RUN[0]], 4, "confirmed", "stop_reason"),
        "3: fenced": (
            [*GOOD_RUN[:2], respond(message([text(f"```json\n{ANSWER}\n```")]))],
            1,
            "confirmed",
            "the answer was rejected",
        ),
        "3: empty": ([*GOOD_RUN[:2], respond(message([]))], 1, "confirmed", "the answer was rejected"),
        "3: wrong": (
            [*GOOD_RUN[:2], respond(message([text(ANSWER.replace(":0", ':"0"'))]))],
            1,
            "confirmed",
            'observed the string "0", expected the integer 0',
        ),
    }

    def test_run_ends_with_its_code_and_says_why(self):
        for place, (name, (script, code, state, words)) in enumerate(self.CASES.items()):
            with self.subTest(name):
                out = f"run-{place}"
                server = self.serve(*script)
                ended = self.live(server, out=out)
                self.assertEqual(ended.code, code, ended)
                self.assertIn(words, ended.err.splitlines()[-3])
                self.assertRegex(ended.err, r"\n  why: .+\n  next: .+\n$")
                self.assertEqual(server.connections, len(script))
                operation = REQUESTS[int(name[0]) - 1]
                self.assertEqual(self.states(out)[operation], ["planned", "in_flight", state])
                self.assertEqual(self.states(out)["run"], ["planned", "unclear" if code == 5 else "failed"])
                self.assertNotIn("result.json", self.files(out))
                inspected = self.inspect(out)
                self.assertEqual(inspected.code, code, inspected)
                self.assertIn(words, inspected.err)
                self.assertEqual(inspected.err.splitlines()[-1], ended.err.splitlines()[-1])

    def test_next_step_is_for_what_the_run_failed_by(self):
        replies = {
            "key": (respond({}, 401), "look at the key"),
            "model": (respond({}, 404), "look at the endpoint and the models"),
            "limit": (respond(message([], "max_tokens")), "give another --max-tokens"),
            "call": (respond(message([text("max_tokens")])), "mend the cause, if there is one"),
            "load": (respond({}, 429), "wait"),
        }
        for out, (reply, expected) in replies.items():
            with self.subTest(out):
                for ended in (self.live(self.serve(reply), out=out), self.inspect(out)):
                    self.assertEqual(ended.code, 4, ended)
                    self.assertIn(f"\n  next: {expected}, then start a new run", ended.err)

    def test_never_open_is_failed(self):
        server = self.serve()
        server.stop()
        ended = self.live(server)
        self.assertEqual(ended.code, 4, ended)
        self.assertIn("nothing was sent", ended.err)
        self.assertEqual(self.states()["sender-tool-request"], ["planned", "in_flight", "failed"])
        self.assertEqual(self.inspect().code, 4)

    def test_time_out_is_unclear(self):
        released = threading.Event()
        self.addCleanup(released.set)
        ended = self.live(self.serve(lambda *_: released.wait(20)), "--timeout", "1")
        self.assertEqual(ended.code, 5, ended)
        self.assertIn("time-out after 1 s", ended.err)
        self.assertEqual(self.inspect().code, 5)


class CostTest(RunTestCase):
    def run_with(self, first, *options):
        ended = self.live(self.serve(respond(first), *GOOD_RUN[1:]), *options)
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(self.inspect().code, 0)
        records = {record["operation_id"]: record for record in self.ledger()}
        return records["sender-tool-request"]["cost_usd"], records["run"]["cost_usd"]

    def test_odd_usage_makes_the_cost_unknown_and_loses_nothing(self):
        self.assertEqual(self.run_with({**CALLED, "usage": None}), ("unknown", "unknown"))

    def test_model_without_a_price_makes_the_cost_unknown(self):
        self.assertEqual(self.run_with(CALLED, "--sender", "local-model"), ("unknown", "unknown"))

    def test_price_is_that_of_the_model_asked(self):
        renamed = {**CALLED, "model": "claude-fable-5-2-20261109"}
        self.assertEqual(self.run_with(renamed), ("0.004816", "0.022008"))

    def test_other_model_in_the_reply_is_a_warning(self):
        ended = self.live(self.serve(respond({**CALLED, "model": "other\x1b[2J"}), *GOOD_RUN[1:]))
        self.assertEqual(ended.code, 0)
        self.assertIn("warning: sender-tool-request: asked for", ended.err)
        self.assertIn("other", ended.err)
        self.assertNotIn("\x1b", ended.err)
        self.assertIn("warning", self.inspect().err)

    def test_reply_without_a_model_is_a_warning(self):
        unnamed = {name: value for name, value in CALLED.items() if name != "model"}
        ended = self.live(self.serve(respond(unnamed), *GOOD_RUN[1:]))
        self.assertEqual(ended.code, 0)
        self.assertIn("answered by a model without a name", ended.err)


class RefusalTest(RunTestCase):
    """Everything that is refused before a byte leaves and before a folder is made."""

    def test_refusals_send_nothing_and_make_nothing(self):
        self.put("file", "")
        os.symlink(self.path("nowhere"), self.path("dangling"))
        cases = {
            "no key": (["--live"], {"key": ""}, 3, "no key in OFOX_API_KEY"),
            "blank key": (["--live"], {"key": " " * 20}, 3, "the key in OFOX_API_KEY"),
            "key with a newline": (["--live"], {"key": KEY + "\n"}, 3, "the key in OFOX_API_KEY"),
            "short key": (["--live"], {"key": "sk-short"}, 3, "the key in OFOX_API_KEY"),
            "another variable": (["--live", "--key-env", "NO_SUCH_KEY"], {}, 3, "no key in NO_SUCH_KEY"),
            "plain http": (["--live", "--endpoint", "http://api.example/"], {}, 3, "the endpoint"),
            "no URL": (["--live", "--endpoint", "api.example"], {}, 3, "the endpoint"),
            "key in the model": (["--live", "--sender", KEY], {}, 3, "this key cannot be used"),
            "a file in the way": (["--live", "--out", self.path("file")], {}, 3, "already exists"),
            "a dangling link in the way": (
                ["--live", "--out", self.path("dangling")],
                {},
                3,
                "already exists",
            ),
            "a link with a slash": (["--live", "--out", self.path("dangling/")], {}, 3, "already exists"),
            "no parent": (["--live", "--out", self.path("a/b")], {}, 3, "cannot be made"),
            "empty name": (["--live", "--out", ""], {}, 2, "--out"),
            "empty endpoint": (["--live", "--endpoint", ""], {}, 2, "--endpoint"),
            "empty variable": (["--live", "--key-env", ""], {}, 2, "--key-env"),
            "a password in the endpoint": (
                ["--live", "--endpoint", "https://u:hunter2@api.example/"],
                {},
                3,
                "endpoint",
            ),
            "the key instead of its variable": (["--live", "--key-env", KEY], {}, 2, "--key-env"),
            "abbreviated": (["--li"], {}, 2, "--li"),
            "two modes": (["--live", "--rehearse"], {}, 2, "--rehearse"),
            "endpoint without --live": (["--endpoint", "https://api.example/"], {}, 2, "--endpoint"),
            "folder without a mode": (["--out", self.path("run")], {}, 2, "--out"),
            "endpoint in a rehearsal": (
                ["--rehearse", "--endpoint", "https://api.example/"],
                {},
                2,
                "--endpoint",
            ),
            "key in a rehearsal": (["--rehearse", "--key-env", "X"], {}, 2, "--key-env"),
            "limits when inspecting": (["--inspect", self.path("x"), "--timeout", "9"], {}, 2, "--timeout"),
            "too much time": (["--live", "--timeout", "100000"], {}, 2, "--timeout"),
            "the key as an argument": (
                ["--live", KEY],
                {},
                2,
                "sk-invented-0123... (28 characters) is one word",
            ),
            "no time": (["--live", "--timeout", "0"], {}, 2, "--timeout"),
            "negative time": (["--live", "--timeout=-1"], {}, 2, "--timeout"),
            "no tokens": (["--live", "--max-tokens", "0"], {}, 2, "--max-tokens"),
            "tokens in words": (["--live", "--max-tokens", "many"], {}, 2, "--max-tokens"),
            "model with a space": (["--live", "--sender", "a b"], {}, 2, "--sender: expected a model id"),
            "empty model": (["--live", "--receiver", ""], {}, 2, "model id"),
            "something else": (["--live", "more"], {}, 2, "more is one word too many"),
        }
        server = self.serve(*GOOD_RUN)
        before = self.names()
        for name, (arguments, options, code, words) in cases.items():
            with self.subTest(name):
                if "--live" in arguments and "--endpoint" not in arguments:
                    arguments = [*arguments, "--endpoint", server.url]
                if "--live" in arguments and "--out" not in arguments:
                    arguments = [*arguments, "--out", self.path("run")]
                ended = handoff(*arguments, **options)
                self.assertEqual(ended.code, code, ended)
                first, why, then = ended.err.splitlines()
                self.assertIn(words, first)
                self.assertTrue(why.startswith("  why: ") and then.startswith("  next: "), ended)
                self.assertEqual(ended.out, "")
                self.assertNotIn(KEY, ended.err)
        self.assertEqual(server.connections, 0)
        self.assertEqual(self.names(), before)

    def test_folder_whose_name_begins_with_a_dash_is_named_as_it_can_be_typed(self):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        ended = handoff("--rehearse", "--out=-run")
        self.assertEqual((ended.code, self.names()), (0, ["-run"]))
        inspect = next(line for line in ended.err.splitlines() if line.startswith("inspect it: "))
        self.assertEqual(handoff(*inspect.split()[4:]).code, 0)
        self.assertIn("--inspect ./-run", handoff("--rehearse", "--out=-run").err)

    def test_folder_that_cannot_be_made_is_refused(self):
        with mock.patch("os.mkdir", side_effect=PermissionError(13, "Permission denied")):
            ended = self.live(self.serve())
        self.assertEqual(ended.code, 3, ended)
        self.assertIn("Permission denied", ended.err.splitlines()[-3])
        self.assertEqual(self.names(), [])


class CommandLineTest(RunTestCase):
    VALUES = {
        "--task": "x.py",
        "--source": "x.csv",
        "--sender": "x",
        "--receiver": "x",
        "--max-tokens": "9",
        "--timeout": "9",
        "--out": "x",
        "--endpoint": "https://x.example/",
        "--key-env": "X_KEY",
        "--html": "x.html",
    }
    REFUSED = {
        (): ("--out", "--endpoint", "--key-env", "--html"),
        ("--rehearse",): ("--endpoint", "--key-env", "--html"),
        ("--live",): ("--html",),
        ("--inspect", "x"): (
            *("--sender", "--receiver", "--max-tokens", "--timeout", "--out", "--endpoint", "--key-env"),
        ),
    }

    def test_help_is_whole_in_80_columns(self):
        for arguments in (["-h"], ["--help"], ["--live", "--help"]):
            with self.subTest(arguments):
                ended = handoff(*arguments, key="")
                self.assertEqual((ended.code, ended.err), (0, ""), ended)
                lines = ended.out.splitlines()
                self.assertGreater(len(lines), 30)
                self.assertLessEqual(max(map(len, lines)), 80)
                self.assertTrue(ended.out.isascii())
                for option in (*self.VALUES, "--rehearse", "--live", "--inspect DIR", "--json", "--version"):
                    self.assertRegex(ended.out, rf"(?m)^  (-h, )?{option}\b")
                for example in ("", " --rehearse", " --live", " --inspect handoff-run"):
                    self.assertRegex(ended.out, rf"(?m)^  python3 run_handoff\.py{example}( |$)")
                for code in (0, 1, 2, 3, 4, 5, 70, 130):
                    self.assertRegex(ended.out, rf"(?m)^(  |.{{36}}){code}  ?")

    def test_version_is_said(self):
        ended = handoff("--version")
        self.assertEqual((ended.code, ended.out), (0, f"run_handoff.py {checkpoint_demo.VERSION}\n"))

    def test_option_that_does_not_belong_to_the_mode_is_refused(self):
        for mode, options in self.REFUSED.items():
            for option in options:
                for form in ([option, self.VALUES[option]], [f"{option}={self.VALUES[option]}"]):
                    with self.subTest(mode=mode, form=form):
                        ended = handoff(*mode, *form)
                        self.assertEqual((ended.code, ended.out), (2, ""), ended)
                        name = mode[0] if mode else "no mode"
                        self.assertIn(f"usage: {option} does not go with {name}", ended.err)
        self.assertEqual(self.names(), [])

    def test_word_that_is_not_understood_is_named_with_the_nearest(self):
        cases = {
            "--rehears": "there is no --rehears; the nearest is --rehearse",
            "--stock=x": "there is no --stock",
            "--sorce=x": "there is no --sorce; the nearest is --source",
            "-x": "there is no -x",
            "a" * 40: f"{'a' * 16}... (40 characters) is one word too many",
        }
        for word, said in cases.items():
            with self.subTest(word):
                ended = handoff("--rehearse", word)
                self.assertEqual((ended.code, ended.out), (2, ""), ended)
                self.assertEqual(ended.err.splitlines()[0], f"run_handoff.py: usage: {said}")

    def test_value_that_is_empty_is_refused(self):
        for option in self.VALUES:
            with self.subTest(option):
                mode = ["--inspect", "x"] if option == "--html" else ["--live"]
                ended = handoff(*mode, f"{option}=")
                self.assertEqual((ended.code, ended.out), (2, ""), ended)
                self.assertIn(option, ended.err.splitlines()[0])
        self.assertEqual(handoff("--inspect", "").code, 2)

    def test_value_that_looks_like_an_option_is_one(self):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.assertEqual(handoff("--rehearse", "--out=--help").code, 0)
        self.assertEqual(self.names(), ["--help"])
        self.assertEqual(handoff("--inspect=--help").code, 0)
        self.assertEqual(handoff("--inspect", "--", "--help").code, 2)


class KeyTest(RunTestCase):
    """The key is in no file and no message, whatever the server does with it."""

    def check_absent(self, ended):
        for name, data in self.files().items():
            self.assertNotIn(KEY.encode(), data, name)
        self.assertNotIn(KEY, ended.out + ended.err)
        inspected = self.inspect()
        self.assertNotIn(KEY, inspected.out + inspected.err)
        return inspected

    def test_key_in_an_error_is_not_kept(self):
        for number, spelling in enumerate((KEY, "".join(f"\\u{ord(letter):04x}" for letter in KEY))):
            with self.subTest(spelling):
                body = (
                    f'{{"type":"error","error":{{"type":"authentication_error","message":"bad {spelling}"}}}}'
                )
                out = f"run-{number}"
                ended = self.live(self.serve(respond(body.encode(), 401, request_id=KEY)), out=out)
                self.assertEqual(ended.code, 4, ended)
                for name, data in self.files(out).items():
                    self.assertNotIn(spelling.encode(), data, name)
                    self.assertNotIn(KEY.encode(), data, name)
                self.assertIn("[key removed]", ended.err)
                self.assertNotIn(KEY, ended.out + ended.err)
                outcome = self.ledger(out)[3]
                self.assertTrue(outcome["key_removed"])
                self.assertEqual(self.inspect(out).code, 4)

    def test_key_with_a_comma_in_a_header_is_not_kept_in_pieces(self):
        key = "sk-one-piece,and-another-piece"
        reply = respond(CALLED, content_length=key, content_encoding=key)
        ended = self.live(self.serve(reply), key=key)
        self.assertEqual(ended.code, 5, ended)
        told = (ended.out + ended.err).encode() + b"".join(self.files().values())
        for piece in (b"one-piece", b"another-piece"):
            self.assertNotIn(piece, told)

    def test_key_in_an_extra_field_does_not_end_the_run(self):
        ended = self.live(self.serve(respond({**CALLED, "echo": KEY}), *GOOD_RUN[1:]))
        self.assertEqual(ended.code, 0, ended)
        self.assertTrue(self.ledger()[3]["key_removed"])
        self.assertEqual(self.check_absent(ended).code, 0)

    def test_key_in_what_must_be_sent_back_ends_the_run(self):
        server = self.serve(respond({**CALLED, "content": [text(f"key {KEY}"), tool_call()]}), *GOOD_RUN[1:])
        ended = self.live(server)
        self.assertEqual(ended.code, 4, ended)
        self.assertIn("the key was in what must be sent back", ended.err)
        self.assertEqual(server.connections, 1)
        self.assertEqual(self.check_absent(ended).code, 4)

    def test_key_in_the_answer_is_rejected(self):
        ended = self.live(self.serve(*GOOD_RUN[:2], respond({**ANSWERED, "content": [text(ANSWER + KEY)]})))
        self.assertEqual(ended.code, 1, ended)
        self.assertEqual(self.check_absent(ended).code, 1)

    def test_key_in_pieces_of_the_answer_is_put_together_nowhere(self):
        pieces = [text(ANSWER + KEY[:12]), text(KEY[12:])]
        ended = self.live(self.serve(*GOOD_RUN[:2], respond({**ANSWERED, "content": pieces})))
        self.assertEqual(ended.code, 5, ended)
        self.assertIn("in pieces", ended.err)
        self.assertEqual(self.files()["3-response.json"], b"[key removed]")
        inspected = self.check_absent(ended)
        self.assertEqual(inspected.code, 5, inspected)

    def test_key_in_a_bug_is_not_shown(self):
        with mock.patch.object(run_handoff, "judge_outcome", side_effect=ZeroDivisionError(f"with {KEY}")):
            ended = self.live(self.serve(*GOOD_RUN))
        self.assertEqual(ended.code, 70, ended)
        self.assertIn("ZeroDivisionError: with [key removed]", ended.err)
        self.assertNotIn(KEY, ended.err)
        self.assertEqual(self.inspect().code, 5)


class WriteAheadTest(RunTestCase):
    """Before a byte leaves, the body and the in_flight line are on disk; before a reply is used, it is."""

    def test_server_sees_no_request_that_is_not_recorded(self):
        seen = []

        def check(answer):
            def entry(connection, request):
                number = len(seen) + 1
                last = self.ledger()[-1]
                stored = (self.folder / "run" / f"{number}-request.json").read_bytes()
                seen.append((last["operation_id"], last["state"], stored == request.body))
                connection.sendall(answer)

            return entry

        ended = self.live(self.serve(*map(check, GOOD_RUN)))
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(seen, [(operation, "in_flight", True) for operation in REQUESTS])

    def test_everything_is_flushed_before_a_request_leaves(self):
        calls = []

        def spy(name):
            real = getattr(os, name)

            def call(*arguments, **options):
                result = real(*arguments, **options)
                calls.append(name if name != "open" else ("open", os.path.basename(arguments[0]), result))
                return result

            return mock.patch(f"os.{name}", call)

        def note(*arguments):
            calls.append("send")
            return Outcome(opened=False, finding="not sent in this test")

        with spy("fsync"), spy("rename"), spy("write"), mock.patch.object(run_handoff, "send_request", note):
            self.live(self.serve())
        before = calls[: calls.index("send")]
        # The folder's parent; the ledger's name; the run's record; the request: beside, named, folder;
        # its planned record; its in_flight record.
        expected = [
            "fsync",
            "fsync",
            "write",
            "fsync",
            "write",
            "fsync",
            "rename",
            "fsync",
            *["write", "fsync"] * 2,
        ]
        self.assertEqual(before, expected)

    def test_reply_is_on_disk_before_it_is_judged(self):
        judged = []
        real = run_handoff.judge_outcome

        def judge(outcome, api):
            stored = self.folder / "run" / f"{len(judged) % 3 + 1}-response.json"
            judged.append(stored.read_bytes() == outcome.body)
            return real(outcome, api)

        with mock.patch.object(run_handoff, "judge_outcome", judge):
            ended = self.live(self.serve(*GOOD_RUN))
        self.assertEqual((ended.code, judged), (0, [True] * 6))  # in the run, and for its report

    def test_reply_that_cannot_be_stored_is_unclear(self):
        real = checkpoint_demo.write_flushed

        def write(path, data, mode=0o666):
            if "response" in path:
                raise OSError(28, "No space left on device")
            real(path, data, mode)

        server = self.serve(*GOOD_RUN)
        with mock.patch.object(checkpoint_demo, "write_flushed", write):
            ended = self.live(server)
        self.assertEqual(ended.code, 5, ended)
        self.assertEqual(server.connections, 1)
        self.assertEqual(self.states()["sender-tool-request"], ["planned", "in_flight", "unclear"])
        self.assertIn("No space left on device", ended.err)
        inspected = self.inspect()
        self.assertEqual(inspected.code, 5, inspected)

    def test_what_is_needed_to_look_it_up_is_kept_of_a_reply_that_cannot_be_stored(self):
        real = checkpoint_demo.write_flushed

        def write(path, data, mode=0o666):
            if "response" in path:
                raise OSError(28, "No space left on device")
            real(path, data, mode)

        with mock.patch.object(checkpoint_demo, "write_flushed", write):
            ended = self.live(self.serve(respond({}, 401)))
        self.assertEqual(ended.code, 5, ended)
        outcome = self.ledger()[3]
        self.assertEqual((outcome["state"], outcome["request_id"]), ("unclear", "req_invented"))
        self.assertIn("HTTP 401 came, but 1-response.json could not be written", outcome["why"])
        self.assertEqual(self.inspect().code, 5)

    def test_reason_in_the_ledger_is_the_same_on_every_interpreter(self):
        bodies = {
            b'{"type":"message",}': '{"type":"message",}',
            b"[1,]": "[1,]",
            b"[" * 5_000: "",
            b"no": "no",
        }
        for number, (body, begin) in enumerate(bodies.items()):
            with self.subTest(body[:20]):
                self.live(self.serve(respond(body)), out=f"run-{number}")
                why = self.ledger(f"run-{number}")[3]["why"]
                kind = "not JSON; it begins with the string " + json.dumps(begin)
                kind = kind if begin else "line 1 column 101: nested deeper than 100 levels"
                self.assertEqual(why, f"HTTP 200 without a whole message: {kind}")

    def test_exception_of_a_callers_own_with_a_request_in_flight_is_unclear(self):
        for number, error in enumerate((KeyboardInterrupt, MemoryError)):
            with self.subTest(error):

                def wait(*_, error=error):
                    raise error

                released = threading.Event()
                self.addCleanup(released.set)
                with mock.patch.object(checkpoint_demo.Terminal, "progress", wait):
                    ended = self.live(self.serve(lambda *_, r=released: r.wait(20)), out=f"run-{number}")
                self.assertEqual(ended.code, 5, ended)
                self.assertIn("with a request in flight", ended.err)
                self.assertEqual(self.inspect(f"run-{number}").code, 5)

    def test_no_memory_between_requests_keeps_what_was_paid(self):
        with mock.patch.object(run_handoff, "build_tool_result_request", side_effect=MemoryError):
            ended = self.live(self.serve(*GOOD_RUN))
        self.assertEqual(ended.code, 4, ended)
        self.assertIn("ended by MemoryError with nothing in flight", ended.err)
        self.assertEqual(self.inspect().code, 4)

    def test_thread_that_cannot_be_started_means_that_nothing_was_sent(self):
        server = self.serve(*GOOD_RUN)
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            ended = self.live(server)
        self.assertEqual((ended.code, server.connections), (4, 0), ended)
        self.assertIn("nothing was sent", ended.err)
        self.assertEqual(self.inspect().code, 4)

    def test_request_that_is_not_recorded_never_leaves(self):
        sent = []
        recorder = run_handoff.Recorder(
            self.path("run"),
            run_handoff.Key(KEY),
            lambda *sending: sent.append(sending),
            checkpoint_demo.Terminal("test"),
        )
        self.addCleanup(os.close, recorder._ledger)
        recorder.record("run", "planned")
        with self.assertRaises(RuntimeError):
            recorder.send(run_handoff.TOOL_REQUEST, b"{}")
        self.assertEqual(sent, [])

    def test_second_request_that_does_not_go_on_is_never_sent(self):
        real = run_handoff.build_tool_result_request

        def build(first, reply, rows, api):
            request = real(first, reply, rows, api)
            request["messages"][1] = {"role": "assistant", "content": reply["content"][1:]}
            return request

        server = self.serve(*GOOD_RUN)
        with mock.patch.object(run_handoff, "build_tool_result_request", build):
            ended = self.live(server)
        self.assertEqual(ended.code, 4, ended)
        self.assertIn("request 2 does not go on with the session", ended.err)
        self.assertEqual(server.connections, 1)


class InterruptTest(RunTestCase):
    def setUp(self):
        """Take SIGINT as on a terminal: a job in the background ignores it, and so do its children."""
        super().setUp()
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(self, server):
        process = start_script(
            "run_handoff.py",
            "--live",
            "--endpoint",
            server.url,
            "--out",
            self.path("run"),
            environment={"OFOX_API_KEY": KEY},
        )
        self.addCleanup(process.kill)
        return process

    def test_interrupt_while_waiting_is_unclear(self):
        arrived, released = threading.Event(), threading.Event()
        self.addCleanup(released.set)

        def entry(connection, request):
            arrived.set()
            released.wait(30)

        process = self.start(self.serve(entry))
        self.assertTrue(arrived.wait(20))
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 5, err)
        self.assertIn(b"interrupted by Ctrl-C", err)
        self.assertNotIn(b"Traceback", err)
        self.assertEqual(self.states()["sender-tool-request"], ["planned", "in_flight", "unclear"])
        self.assertEqual(self.inspect().code, 5)

    def test_interrupt_that_is_held_down_changes_no_verdict(self):
        answers = {"unclear": (respond(b"", 500), 5), "accepted": (None, 0)}
        for name, (answer, code) in answers.items():
            with self.subTest(name):
                server = self.serve(*([answer] if answer else GOOD_RUN))
                process = start_script(
                    *("run_handoff.py", "--live", "--endpoint", server.url, "--out", self.path(name)),
                    environment={"OFOX_API_KEY": KEY},
                    stderr=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
                self.addCleanup(process.kill)
                while process.poll() is None and not self.is_closed(name):
                    pass
                while process.poll() is None:
                    process.send_signal(signal.SIGINT)
                self.assertEqual(process.returncode, code)

    def is_closed(self, out):
        """Return whether a run's last record is written, so that it has its verdict."""
        try:
            return (self.folder / out / "ledger.jsonl").read_text().count('"operation_id":"run"') == 2
        except FileNotFoundError:
            return False

    def test_interrupt_between_requests_ends_with_nothing_in_flight(self):
        def entry(connection, request):
            os.kill(os.getpid(), signal.SIGINT)  # noted at once, obeyed at the next safe point
            connection.sendall(GOOD_RUN[0])

        real = run_handoff.send_request

        def send(url, key, data, seconds, wait, api):
            return real(url, key, data, seconds, api=api)  # nobody looks at the interrupt while it waits

        server = self.serve(entry, *GOOD_RUN[1:])
        with mock.patch.object(run_handoff, "send_request", send):
            ended = self.live(server)
        self.assertEqual(ended.code, 130, ended)
        self.assertEqual(server.connections, 1)
        self.assertEqual(self.states()["sender-tool-request"], ["planned", "in_flight", "confirmed"])
        self.assertEqual(self.ledger()[-1]["why"], "interrupted with nothing in flight")
        inspected = self.inspect()
        self.assertEqual(inspected.code, 4, inspected)
        self.assertIn("interrupted: the run in", inspected.err)
        self.assertIn(
            '<h1><strong class="bad">Interrupted</strong></h1>', self.files()["report.html"].decode()
        )

    def test_interrupt_before_the_connection_is_open_ends_with_nothing_in_flight(self):
        outcome = Outcome(opened=False, interrupted=True, finding="interrupted by Ctrl-C")
        with mock.patch.object(run_handoff, "send_request", return_value=outcome):
            ended = self.live(self.serve())
        self.assertEqual(ended.code, 130, ended)
        inspected = self.inspect()
        self.assertEqual(inspected.code, 4, inspected)
        self.assertIn("interrupted: the run in", inspected.err)


class StreamTest(RunTestCase):
    def test_stream_of_a_callers_own_without_the_usual_methods_is_enough(self):
        class Tee:
            def __init__(self):
                self.text = ""

            def write(self, text):
                self.text += text

            def flush(self):
                pass

        out, err = Tee(), Tee()
        server = self.serve(*GOOD_RUN)
        arguments = ["--live", "--endpoint", server.url, "--out", self.path("run")]
        streams = mock.patch.multiple(sys, stdout=out, stderr=err)
        with streams, mock.patch.dict(os.environ, {"OFOX_API_KEY": KEY}):
            self.assertEqual(run_handoff.main(arguments), 0, err.text)
        self.assertTrue(out.text.endswith("accepted: 3 rows, total shortage 7\n"))

    def test_folder_is_its_owners_alone_whatever_the_umask(self):
        for number, umask in enumerate((0o000, 0o777)):
            previous = os.umask(umask)
            try:
                ended = self.live(self.serve(*GOOD_RUN), out=f"run-{number}")
            finally:
                self.assertEqual(os.umask(previous), umask)
            self.assertEqual(ended.code, 0, ended)
            self.assertEqual((self.folder / f"run-{number}").stat().st_mode & 0o777, 0o700)
            self.assertEqual((self.folder / f"run-{number}" / "ledger.jsonl").stat().st_mode & 0o777, 0o600)

    def test_lost_terminal_does_not_end_a_paid_run(self):
        for number, redirection in enumerate((">&- 2>&-", ">/dev/full 2>/dev/full", "| true")):
            with self.subTest(redirection):
                server = self.serve(*GOOD_RUN)
                out = self.path(f"run-{number}")
                command = f'"$0" "$1" --live --endpoint "$2" --out "$3" {redirection}'
                environment = {**os.environ, "OFOX_API_KEY": KEY}
                script = str(ROOT / "run_handoff.py")
                subprocess.run(
                    ["sh", "-c", command, sys.executable, script, server.url, out],
                    env=environment,
                    stderr=subprocess.DEVNULL,
                    check=False,
                )
                self.assertEqual(server.connections, 3)
                self.assertEqual(self.states(f"run-{number}")["run"], ["planned", "confirmed"])
                self.assertEqual(self.inspect(f"run-{number}").code, 0)
