"""The rehearsal: the whole run on loopback, against models that refuse what the real API refuses."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import unittest
from unittest import mock

import checkpoint_demo
import run_handoff
from tests.support import FolderTestCase, build_plan, handoff, run_script

KEY = "rehearsal-0123456789"
ACCEPTED = "accepted: 3 rows, total shortage 7 (rehearsal: no model answered)"
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "content-type": "application/json"}


class RehearseTest(FolderTestCase):
    def test_rehearsal_is_accepted_and_holds(self):
        ended = handoff("--rehearse", "--out", self.path("run"), key="")
        self.assertEqual(ended.code, 0, ended)
        self.assertTrue(ended.out.endswith(ACCEPTED + "\n"))
        inspected = handoff("--inspect", self.path("run"))
        self.assertEqual(inspected.code, 0, inspected)

    def test_rehearsal_says_that_it_is_one_and_costs_nothing(self):
        ended = handoff("--rehearse", "--out", self.path("run"))
        self.assertIn("rehearsal on http://127.0.0.1:", ended.err)
        first, *_, last = (self.folder / "run" / "ledger.jsonl").read_text().splitlines()
        self.assertIs(json.loads(first)["rehearsal"], True)
        self.assertEqual(json.loads(last)["cost_usd"], "0.000000")

    def test_rehearsal_refuses_a_folder_that_exists(self):
        os.mkdir(self.path("run"))
        ended = handoff("--rehearse", "--out", self.path("run"))
        self.assertEqual(ended.code, 3, ended)

    def test_rehearsal_takes_other_models_and_limits(self):
        options = ["--sender", "one", "--receiver", "two", "--max-tokens", "99", "--timeout", "9"]
        ended = handoff("--rehearse", "--out", self.path("run"), *options)
        self.assertEqual(ended.code, 0, ended)
        record = json.loads((self.folder / "run" / "ledger.jsonl").read_text().splitlines()[0])
        facts = {name: record[name] for name in ("sender", "receiver", "max_tokens", "timeout_seconds")}
        self.assertEqual(facts, {"sender": "one", "receiver": "two", "max_tokens": 99, "timeout_seconds": 9})

    def test_without_a_mode_everything_is_checked_and_nothing_is_left(self):
        with mock.patch.dict(os.environ, {"TMPDIR": str(self.folder)}), mock.patch("tempfile.tempdir", None):
            ended = handoff(key="")
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("local checks: all passed", ended.out)
        self.assertTrue(ended.out.endswith("inspected: every file and record holds\n"))
        self.assertEqual(self.names(), [])

    def test_failed_local_check_is_not_passed_over(self):
        def fail(task, rows):
            yield "group", "check", False

        with mock.patch.object(checkpoint_demo, "run_self_test", fail):
            ended = handoff()
        self.assertEqual(ended.code, 1, ended)
        self.assertIn("1 failed", ended.out)

    def test_script_starts_from_anywhere(self):
        ended = run_script("run_handoff.py", "--rehearse", cwd=self.folder)
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(self.names(), ["handoff-rehearsal"])

    def test_inspection_opens_no_socket(self):
        handoff("--rehearse", "--out", self.path("run"))
        with mock.patch.object(socket, "socket", side_effect=AssertionError("a socket was opened")):
            self.assertEqual(handoff("--inspect", self.path("run")).code, 0)

    def test_rehearsal_looks_up_no_name(self):
        """The server of http.server looks its own name up, which may ask a server elsewhere."""
        found = AssertionError("a name was looked up")
        names = ("getfqdn", "gethostbyaddr", "gethostbyname", "gethostname")
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(mock.patch.object(socket, name, side_effect=found))
            ended = handoff("--rehearse", "--out", self.path("run"))
        self.assertEqual(ended.code, 0, ended)

    def test_strangers_connection_does_not_hold_the_rehearsal(self):
        strangers = []
        real = run_handoff.RehearsalServer.__init__

        def start(server, models):
            real(server, models)
            for data in (b"", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n"):
                strangers.append(socket.create_connection(server._server.server_address))
                self.addCleanup(strangers[-1].close)
                strangers[-1].sendall(data)

        with mock.patch.object(run_handoff.RehearsalServer, "__init__", start):
            ended = handoff("--rehearse", "--out", self.path("run"))
        self.assertEqual(ended.code, 0, ended)
        self.assertNotIn("Traceback", ended.err)
        self.assertEqual(len(strangers), 2)

    def test_machine_without_loopback_or_temporary_folder_is_refused(self):
        nowhere = mock.patch("socketserver.TCPServer.server_bind", side_effect=OSError(99, "no loopback"))
        with nowhere:
            ended = handoff()
        self.assertEqual(ended.code, 3, ended)
        self.assertIn("no loopback", ended.err.splitlines()[0])
        with mock.patch(
            "tempfile.TemporaryDirectory", side_effect=FileNotFoundError(2, "no temporary folder")
        ):
            ended = handoff()
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("no temporary folder", ended.err.splitlines()[0])

    def test_machine_that_starts_no_thread_is_refused(self):
        with mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread")):
            ended = handoff("--rehearse", "--out", self.path("run"))
        self.assertEqual((ended.code, self.names()), (3, []), ended)

    def test_failed_run_without_a_mode_says_how_to_keep_it(self):
        with mock.patch.object(run_handoff, "_work_out", lambda *_: "no"):
            ended = handoff()
        self.assertEqual(ended.code, 1, ended)
        self.assertIn("next: do it again with --rehearse, which keeps the folder", ended.err)

    def test_prompt_in_other_words_is_rehearsed_too(self):
        with mock.patch.object(checkpoint_demo.Stock, "instructions", "Go on from this."):
            ended = handoff("--rehearse", "--out", self.path("run"))
        self.assertEqual((ended.code, ended.out.splitlines()[-1]), (0, ACCEPTED))

    def test_refusal_opens_no_socket(self):
        with mock.patch.object(socket, "socket", side_effect=AssertionError("a socket was opened")):
            self.assertEqual(handoff("--live", key="").code, 3)


class ServerTest(unittest.TestCase):
    def test_every_request_is_answered(self):
        server = run_handoff.RehearsalServer(run_handoff.RehearsalModels(KEY, checkpoint_demo.DEMO))
        self.addCleanup(server.close)
        address = ("127.0.0.1", int(server.url.split(":")[2].split("/")[0]))
        heads = {
            "another path": (b"POST /v1/complete HTTP/1.1\r\ncontent-length: 0\r\n\r\n", b"404"),
            "another method": (b"GET /v1/messages HTTP/1.1\r\n\r\n", b"404"),
            "no length": (b"POST /v1/messages HTTP/1.1\r\n\r\n", b"401"),
            "a length that is none": (b"POST /v1/messages HTTP/1.1\r\ncontent-length: abc\r\n\r\n", b"401"),
            "no request": (b"hello\r\n\r\n", b"404"),
        }
        for phrase, (head, status) in heads.items():
            with self.subTest(phrase), socket.create_connection(address, 10) as connection:
                connection.sendall(head)
                reply = b""
                while piece := connection.recv(65_536):
                    reply += piece
                self.assertEqual(reply.split()[1], status)
                self.assertEqual(json.loads(reply.partition(b"\r\n\r\n")[2])["type"], "error")


class ModelsTest(unittest.TestCase):
    def setUp(self):
        self.models = run_handoff.RehearsalModels(KEY, checkpoint_demo.DEMO)
        self.plan = build_plan(sender="one", receiver="two", max_tokens=9)
        self.first = run_handoff.build_tool_request(self.plan)

    def ask(self, request, **headers):
        data = request if isinstance(request, bytes) else run_handoff.encode_json(request)
        return self.models.answer({**HEADERS, **headers}, data, "/v1/messages")

    def test_session_goes_through(self):
        status, called = self.ask(self.first)
        self.assertEqual((status, called["stop_reason"]), (200, "tool_use"))
        self.assertEqual([block["type"] for block in called["content"]], ["thinking", "tool_use"])
        status, ended = self.ask(run_handoff.build_tool_result_request(self.first, called, self.plan.rows))
        self.assertEqual((status, ended["stop_reason"]), (200, "end_turn"))

    def test_receiver_works_the_rows_out_of_the_prompt(self):
        rows = [{"sku": "X", "available": 1, "target": 5}, {"sku": "Y", "available": 9, "target": 5}]
        handoff_text = checkpoint_demo.render_handoff(
            checkpoint_demo.DEMO, checkpoint_demo.build_checkpoint(checkpoint_demo.DEMO, rows)
        )
        status, answered = self.ask(checkpoint_demo.build_receiver_request(handoff_text))
        self.assertEqual(status, 200)
        expected = {"rows": [{"sku": "X", "shortage": 4}, {"sku": "Y", "shortage": 0}]}
        self.assertEqual(json.loads(answered["content"][0]["text"]), expected)

    def test_prompt_in_blocks_is_read(self):
        handoff_text = checkpoint_demo.render_handoff(
            checkpoint_demo.DEMO,
            checkpoint_demo.build_checkpoint(checkpoint_demo.DEMO, checkpoint_demo.DEMO.source),
        )
        request = checkpoint_demo.build_receiver_request(handoff_text)
        request["messages"][0]["content"] = [{"type": "text", "text": handoff_text}]
        status, answered = self.ask(request)
        findings, answer = checkpoint_demo.find_answer(answered)
        self.assertEqual((status, findings), (200, []))
        self.assertEqual(
            checkpoint_demo.validate_result(answer, checkpoint_demo.DEMO, checkpoint_demo.DEMO.source), []
        )

    def test_receiver_without_a_checkpoint_has_no_answer(self):
        for prompt in ("Hello", "Checkpoint: {}", "Checkpoint: []", "Checkpoint: not JSON"):
            with self.subTest(prompt):
                _, answered = self.ask(checkpoint_demo.build_receiver_request(prompt))
                (finding,), _ = checkpoint_demo.find_answer(answered)
                self.assertTrue(finding.path.startswith("the answer, "), finding)

    def test_request_that_the_api_would_refuse_is_refused(self):
        _, called = self.ask(self.first)
        second = run_handoff.build_tool_result_request(self.first, called, self.plan.rows)
        turn, results = second["messages"][1:]
        user = {"role": "user", "content": "Hello"}

        def change(**changes):
            return {**second, **changes}

        cases = {
            "no JSON": (b"{", {}, 400),
            "a list": ([], {}, 400),
            "no key": (second, {"x-api-key": None}, 401),
            "another key": (second, {"x-api-key": "other"}, 401),
            "no version": (second, {"anthropic-version": None}, 400),
            "another version": (second, {"anthropic-version": "2022-01-01"}, 400),
            "another content type": (second, {"content-type": "text/plain"}, 400),
            "no model": (change(model=None), {}, 400),
            "an empty model": (change(model=""), {}, 400),
            "a message without content": (change(messages=[{"role": "user"}]), {}, 400),
            "empty content": (change(messages=[{"role": "user", "content": ""}]), {}, 400),
            "no block": (change(messages=[{"role": "user", "content": []}]), {}, 400),
            "content that is no list": (change(messages=[{"role": "user", "content": {"a": 1}}]), {}, 400),
            "content that is a number": (change(messages=[{"role": "user", "content": 7}]), {}, 400),
            "a block without a type": (change(messages=[{"role": "user", "content": [{}]}]), {}, 400),
            "a block that is text": (change(messages=[{"role": "user", "content": ["x"]}]), {}, 400),
            "a result of no call": (change(messages=[results]), {}, 400),
            "tools as a number": (change(messages=[user], tools=5), {}, 400),
            "no tools in a list": (change(messages=[user], tools=[5]), {}, 400),
            "a tool without a name": (change(messages=[user], tools=[{}]), {}, 400),
            "a tool with a bad name": (
                change(messages=[user], tools=[{**self.first["tools"][0], "name": "bad name!"}]),
                {},
                400,
            ),
            "a tool without a schema": (change(messages=[user], tools=[{"name": "read_stock"}]), {}, 400),
            "a forced tool": (change(messages=[user], tool_choice={"type": "any"}), {}, 400),
            "no token limit": (change(max_tokens=None), {}, 400),
            "token limit true": (change(max_tokens=True), {}, 400),
            "token limit 0": (change(max_tokens=0), {}, 400),
            "no messages": (change(messages=[]), {}, 400),
            "messages as text": (change(messages="Hello"), {}, 400),
            "a message that is no object": (change(messages=["Hello"]), {}, 400),
            "the assistant first": (change(messages=[turn, results]), {}, 400),
            "the assistant last": (change(messages=[user, turn]), {}, 400),
            "a call without a result": (change(messages=[*self.first["messages"], turn, user]), {}, 400),
            "text before the result": (
                change(
                    messages=[
                        *self.first["messages"],
                        turn,
                        {**results, "content": [{"type": "text", "text": "x"}, *results["content"]]},
                    ]
                ),
                {},
                400,
            ),
            "thinking dropped": (
                change(messages=[*self.first["messages"], {**turn, "content": turn["content"][1:]}, results]),
                {},
                400,
            ),
            "another question": (change(messages=[user, turn, results]), {}, 400),
            "another system": (change(system="x"), {}, 400),
            "another tool": (change(tools=[]), {}, 400),
        }
        for name, (request, headers, expected) in cases.items():
            with self.subTest(name):
                status, body = self.ask(request, **headers)
                self.assertEqual(status, expected, body)
                self.assertEqual(body["type"], "error")
                self.assertEqual(set(body["error"]), {"type", "message"})

    def test_session_is_not_gone_on_with_before_it_began(self):
        status, _ = self.ask(
            {
                **self.first,
                "messages": [
                    *self.first["messages"],
                    {"role": "assistant", "content": []},
                    *self.first["messages"],
                ],
            }
        )
        self.assertEqual(status, 400)
