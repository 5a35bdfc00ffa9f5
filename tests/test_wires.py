"""What is each API's own in a run: headers, counts of tokens and their cost, keys, endpoints."""

from __future__ import annotations

import base64
import json
import os
import tempfile
import unittest
from unittest import mock

import checkpoint_demo
import run_handoff
from run_handoff import Key, find_cost_gap, parse_usage
from tests.conditions import ConditionsTestCase
from tests.support import KEY, RunTestCase, build_plan, handoff, message, respond, text

OTHER_KEY = "sk-of-another-vendor+/0123456789"


def chat(usage, content="Done.", **fields):
    """Return a reply of chat."""
    said = {"role": "assistant", "content": content}
    return {"choices": [{"message": said, "finish_reason": "stop"}], "usage": usage, **fields}


def gemini(usage, parts=({"text": "Done."},)):
    """Return a reply of Gemini."""
    content = {"role": "model", "parts": list(parts)}
    return {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}


class HeadersTest(unittest.TestCase):
    def test_key_stands_first_and_in_its_own_header(self):
        cases = {
            "messages": {"x-api-key": KEY, "anthropic-version": "2023-06-01"},
            "chat": {"authorization": f"Bearer {KEY}"},
            "gemini": {"x-goog-api-key": KEY},
        }
        for api, own in cases.items():
            with self.subTest(api):
                headers = run_handoff.build_headers(api, KEY)
                self.assertEqual(next(iter(headers.items())), next(iter(own.items())))
                self.assertEqual(headers, {**own, **run_handoff.HEADERS})


class UsageTest(unittest.TestCase):
    # API, usage, the ledger's names for it, the first field that makes the cost unknown.
    CASES = {
        "chat, plain": (
            "chat",
            {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13},
            {"input_tokens": 9, "output_tokens": 4},
            "",
        ),
        "chat, without a total": (
            "chat",
            {"prompt_tokens": 9, "completion_tokens": 4},
            {"input_tokens": 9, "output_tokens": 4},
            "",
        ),
        "chat, reasoning is a part of the output": (
            "chat",
            {
                "prompt_tokens": 9,
                "completion_tokens": 4,
                "total_tokens": 13,
                "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": 0},
            },
            {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 0, "thinking_tokens": 3},
            "",
        ),
        "chat, reasoning that is counted apart shows in the sum": (
            "chat",
            {
                "prompt_tokens": 9,
                "completion_tokens": 4,
                "total_tokens": 16,
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            {"input_tokens": 9, "output_tokens": 4, "thinking_tokens": 3},
            "usage.total_tokens",
        ),
        "chat, more reasoning than output": (
            "chat",
            {
                "prompt_tokens": 9,
                "completion_tokens": 4,
                "completion_tokens_details": {"reasoning_tokens": 5},
            },
            {"input_tokens": 9, "output_tokens": 4, "thinking_tokens": 5},
            "usage.reasoning_tokens",
        ),
        "chat, reasoning that is not a count": (
            "chat",
            {
                "prompt_tokens": 9,
                "completion_tokens": 4,
                "completion_tokens_details": {"reasoning_tokens": "x"},
            },
            {"input_tokens": 9, "output_tokens": 4},
            "usage.completion_tokens_details",
        ),
        "chat, a hit of the cache": (
            "chat",
            {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}},
            {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 8},
            "usage.prompt_tokens_details",
        ),
        "chat, Moonshot's hit of the cache": (
            "chat",
            {"prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 8},
            {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 8},
            "usage.cached_tokens",
        ),
        "chat, sound": (
            "chat",
            {"prompt_tokens": 9, "completion_tokens": 4, "completion_tokens_details": {"audio_tokens": 1}},
            {"input_tokens": 9, "output_tokens": 4},
            "usage.completion_tokens_details",
        ),
        "chat, a field that nobody knows": (
            "chat",
            {"prompt_tokens": 9, "completion_tokens": 4, "searches": 0},
            {"input_tokens": 9, "output_tokens": 4},
            "usage.searches",
        ),
        "chat, no output": (
            "chat",
            {"prompt_tokens": 9, "completion_tokens": 0},
            {"input_tokens": 9, "output_tokens": 0},
            "usage.completion_tokens",
        ),
        "chat, names of Messages": ("chat", {"input_tokens": 9}, {}, "usage.prompt_tokens"),
        "chat, a list": ("chat", [9, 4], {}, "usage"),
        "gemini, plain": (
            "gemini",
            {
                "promptTokenCount": 9,
                "candidatesTokenCount": 4,
                "totalTokenCount": 13,
                "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 9}],
            },
            {"input_tokens": 9, "output_tokens": 4},
            "",
        ),
        "gemini, thoughts are added": (
            "gemini",
            {
                "promptTokenCount": 9,
                "candidatesTokenCount": 4,
                "thoughtsTokenCount": 30,
                "totalTokenCount": 43,
            },
            {"input_tokens": 9, "output_tokens": 34, "thinking_tokens": 30},
            "",
        ),
        "gemini, thoughts alone": (
            "gemini",
            {"promptTokenCount": 9, "thoughtsTokenCount": 30},
            {"input_tokens": 9, "output_tokens": 30, "thinking_tokens": 30},
            "",
        ),
        "gemini, output that is no number beside thoughts": (
            "gemini",
            {"promptTokenCount": 9, "candidatesTokenCount": "4", "thoughtsTokenCount": 30},
            {"input_tokens": 9, "output_tokens": 30, "thinking_tokens": 30},
            "usageMetadata.candidatesTokenCount",
        ),
        "gemini, a hit of the cache": (
            "gemini",
            {"promptTokenCount": 9, "candidatesTokenCount": 4, "cachedContentTokenCount": 8},
            {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 8},
            "usageMetadata.cachedContentTokenCount",
        ),
        "gemini, a tool of its own": (
            "gemini",
            {"promptTokenCount": 9, "candidatesTokenCount": 4, "toolUsePromptTokenCount": 5},
            {"input_tokens": 9, "output_tokens": 4},
            "usageMetadata.toolUsePromptTokenCount",
        ),
        "gemini, an image": (
            "gemini",
            {
                "promptTokenCount": 9,
                "candidatesTokenCount": 4,
                "promptTokensDetails": [{"modality": "IMAGE", "tokenCount": 9}],
            },
            {"input_tokens": 9, "output_tokens": 4},
            "usageMetadata.promptTokensDetails",
        ),
        "gemini, nothing": ("gemini", None, {}, "usageMetadata"),
    }

    def test_tokens_have_the_ledgers_names_and_what_is_not_covered_is_named(self):
        for phrase, (api, usage, counts, gap) in self.CASES.items():
            with self.subTest(phrase):
                reply = chat(usage) if api == "chat" else gemini(usage)
                self.assertEqual(parse_usage(reply, api), counts)
                self.assertEqual(find_cost_gap(reply, api), gap)

    def test_cost_is_that_of_all_output(self):
        reply = gemini({"promptTokenCount": 9, "candidatesTokenCount": 4, "thoughtsTokenCount": 30})
        self.assertEqual(run_handoff.compute_cost((1, 2), reply, "gemini"), 9 + 2 * 34)

    def test_names_of_another_api_count_nothing_in_messages(self):
        usage = {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13}
        reply = {**message([text("7")]), "usage": usage}
        self.assertEqual(find_cost_gap(reply), "usage.total_tokens")


class KeysTest(RunTestCase):
    def test_each_key_of_a_run_is_removed_in_every_form(self):
        key = Key(KEY, OTHER_KEY)
        for secret in (KEY, OTHER_KEY):
            forms = [secret, json.dumps(secret).replace("/", "\\/"), secret.replace("k", "\\u006b")]
            forms += [base64.b64encode((before + secret).encode()).decode() for before in ("", "a", "ab")]
            for form in forms:
                with self.subTest(form):
                    left = key.remove_from_text(f"<{form}>")
                    self.assertIn("[key removed]", left)
                    self.assertLess(len(left.replace("[key removed]", "")), 12)

    def test_key_that_every_ledger_holds_is_refused(self):
        for key in ("0" * 16, "receiver-handoff", "elapsed_milliseconds"):
            with self.subTest(key):
                server = self.serve()
                ended = self.live(server, key=key)
                self.assertEqual((ended.code, server.connections, self.names()), (3, 0, []), ended)

    def test_text_without_a_key_is_kept(self):
        for words in ("", "a\\u0041b", base64.b64encode(b"nothing of it").decode()):
            self.assertEqual(Key(KEY, OTHER_KEY).remove_from_text(words), words)
            self.assertEqual(Key("").remove_from_text(words), words)

    def test_key_in_base64_of_a_server_is_not_stored(self):
        coded = base64.b64encode(f"user:{KEY}".encode()).decode()
        ended = self.live(self.serve(respond({"error": {"message": coded}}, 400)))
        self.assertEqual(ended.code, 4, ended)
        kept = b"".join(self.files().values()) + (ended.out + ended.err).encode()
        self.assertNotIn(coded[8:-4].encode(), kept)


class EndpointTest(ConditionsTestCase):
    CHAT = ("--receiver-api", "chat", "--receiver", "gpt-5.5")
    AT = ("--receiver-endpoint", "https://api.example.invalid/v1/chat/completions")
    GEMINI = "https://x.invalid/v1beta/models/gemini-9:generateContent"
    GEMINI_AT = ("--endpoint", GEMINI, "--key-env", "OTHER_KEY")
    # What a live run is refused for before anything is made: options, and words of the refusal.
    REFUSED = {
        "a model of chat that is not named": (("--receiver-api", "chat"), "without --receiver"),
        "an endpoint of chat that is not named": (CHAT, "without --endpoint"),
        "a key that is not named": ((*CHAT, *AT), "--receiver-endpoint without --receiver-key-env"),
        "a key without its endpoint": (("--receiver-key-env", "OTHER_KEY"), "without --receiver-endpoint"),
        "one endpoint for two APIs": (
            (*CHAT, "--endpoint", "https://api.example.invalid/v1", "--key-env", "OTHER_KEY"),
            "two APIs have one endpoint",
        ),
        "one endpoint for two APIs, by model": (
            (*CHAT, "--endpoint", "https://api.example.invalid/{model}", "--key-env", "OTHER_KEY"),
            "two APIs have one endpoint",
        ),
        "an endpoint of Gemini without the model": (
            (*("--receiver-only", "--receiver-api", "gemini", "--receiver", "a"), *GEMINI_AT),
            "does not name its model",
        ),
        "a key in a query": (
            (
                "--endpoint",
                "https://x.invalid/v1?alt=json&key=AIza-not-to-be-shown",
                "--key-env",
                "OTHER_KEY",
            ),
            "endpoint holds a key",
        ),
        "a brace that is left over": (
            ("--endpoint", "https://x.invalid/{Model}", "--key-env", "OTHER_KEY"),
            "does not name its model",
        ),
        "the sender's model of Gemini": (
            ("--sender-api", "gemini", "--endpoint", "https://x.invalid/{model}", "--key-env", "OTHER_KEY"),
            "without --sender",
        ),
        "an endpoint without encryption": (
            (*CHAT, "--receiver-endpoint", "http://api.example.invalid/", "--receiver-key-env", "OTHER_KEY"),
            "unencrypted",
        ),
        "a receiver alone of Gemini": (("--receiver-only", "--receiver-api", "gemini"), "without --receiver"),
    }

    def test_side_without_an_endpoint_and_a_key_of_its_own_is_refused(self):
        for phrase, (options, words) in self.REFUSED.items():
            with self.subTest(phrase), mock.patch.dict(os.environ, {"OTHER_KEY": OTHER_KEY}):
                out = tempfile.mktemp(dir=self.folder)
                ended = handoff("--live", "--out", out, *options)
                self.assertEqual((ended.code, os.path.exists(out)), (3, False), ended)
                self.assertIn(words, ended.err)
                self.assertNotIn("not-to-be-shown", ended.out + ended.err)

    def test_model_in_an_endpoint_is_filled_in(self):
        facts = {"receiver": "a/b c", "receiver_endpoint": "https://x.invalid/{model}:go"}
        plan = build_plan(**facts)
        self.assertEqual(plan.sides["receiver"].url, "https://x.invalid/a%2Fb%20c:go")
        self.assertEqual(plan.sides["sender"].url, run_handoff.ENDPOINT)

    def test_option_without_a_meaning_is_refused(self):
        cases = {
            "--sender-api": ("--rehearse", "--receiver-only", "--sender-api", "chat"),
            "--sender": ("--rehearse", "--receiver-only", "--sender", "x"),
            "--max-tokens": ("--rehearse", "--session", "x", "--max-tokens", "9"),
            "--source": ("--rehearse", "--session", "x", "--source", "y"),
            "--receiver-only": ("--rehearse", "--session", "x", "--receiver-only"),
            "--fresh": ("--rehearse", "--fresh"),
            "--from": ("--live", "--from", "chat"),
            "--session": ("--session", "x"),
            "--receiver-endpoint": ("--rehearse", "--receiver-endpoint", "https://x.invalid/"),
        }
        for option, arguments in cases.items():
            with self.subTest(option):
                ended = handoff(*arguments)
                self.assertEqual(ended.code, 2, ended)
                self.assertIn(f"{option} does not go with", ended.err)


class RequestsTest(unittest.TestCase):
    def test_body_of_each_api_holds_the_same(self):
        for api in run_handoff.WIRES:
            with self.subTest(api):
                plan = build_plan(sender_api=api, receiver_api=api, sender="s", receiver="r", max_tokens=77)
                first = run_handoff.build_tool_request(plan)
                session = checkpoint_demo.read_session(first, api, "s")
                self.assertEqual(checkpoint_demo.find_refusals(api, first), [])
                self.assertEqual(session["system"], plan.task.sender_prompt)
                self.assertEqual([tool["name"] for tool in session["tools"]], ["read_stock"])
                self.assertEqual(checkpoint_demo.find_limit(first)[1], 77)
                third = run_handoff.build_handoff_request(plan)
                self.assertNotIn("tools", third)
                self.assertEqual(len(checkpoint_demo.read_session(third, api)["turns"]), 1)
                for field in ("output_config", "thinking", "tool_choice"):
                    self.assertEqual(field in first, api == "messages" and field != "thinking")

    def test_request_3_of_messages_is_that_of_the_other_script(self):
        plan = build_plan()
        third = run_handoff.build_handoff_request(plan)
        prompt = third["messages"][0]["content"]
        self.assertEqual(list(third), list(checkpoint_demo.build_receiver_request(prompt)))
        self.assertEqual(third, checkpoint_demo.build_receiver_request(prompt))


class CauseTest(unittest.TestCase):
    def test_key_that_gemini_does_not_know_is_a_matter_of_the_key(self):
        error = {"code": 400, "message": "API key not valid.", "status": "INVALID_ARGUMENT"}
        error["details"] = [{"reason": "API_KEY_INVALID"}]
        outcome = run_handoff.Outcome(json.dumps({"error": error}).encode(), http_status=400)
        self.assertEqual(run_handoff.judge_outcome(outcome, "gemini")[0], "failed")
        self.assertEqual(run_handoff.find_outcome_cause(outcome), "key")
        self.assertEqual(run_handoff.find_outcome_cause(outcome._replace(body=b"")), run_handoff.OTHER)
