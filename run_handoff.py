#!/usr/bin/env python3
"""Hand a task from one model to another: three requests, each recorded before it leaves.

    $ python3 run_handoff.py --live
    accepted: 3 rows, total shortage 7
    $ python3 run_handoff.py --live
    run_handoff.py: refused: handoff-run already exists
      why: a run's folder is evidence and is never reused
      next: read it with --inspect handoff-run, or name a new one with --out DIR

Without --live nothing leaves this machine. This program sends no request twice; what became of each
is told apart as planned, in flight, confirmed, failed or unclear.

Exit codes: 0 accepted; 1 the answer was rejected, or evidence does not hold; 2 usage, or a folder
that cannot be read; 3 refused, nothing sent; 4 failed, evidence kept; 5 a request is unclear; 70 a
bug in this program; 130 interrupted with nothing in flight.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
import time

import checkpoint_demo as demo
from checkpoint_demo import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_REJECTED,
    MISSING,
    Finding,
    HandoffError,
    JsonError,
    RefusedError,
    Terminal,
    UnreadableError,
    UsageError,
    describe,
    digest_bytes,
    digest_json,
    explain,
    list_differences,
    parse_json,
    render_json,
    shorten,
    show,
)

TYPE_CHECKING = False  # a type checker takes it for true; importing typing costs every start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Protocol

EXIT_FAILED = 4
EXIT_UNCLEAR = 5

ENDPOINT = "https://api.ofox.ai/anthropic/v1/messages"
SENDER_MODEL = "anthropic/claude-fable-5.2"
KEY_ENVIRONMENT = "OFOX_API_KEY"
API_VERSION = "2023-06-01"
TIMEOUT_SECONDS = 180
_MOST_SECONDS = 86_400
REPLY_LIMIT_BYTES = 4 * 2**20
REPLY_LIMIT_ITEMS = 100_000  # a parsed item takes up to 250 bytes of memory, its text as few as 2

# --- Errors ------------------------------------------------------------------


class RunEnded(Exception):
    """A run goes no further; its arguments are the state that closes it, why, and the exit code."""


class EvidenceError(Exception):
    """A file of the evidence folder, the ledger among them, could not be written."""

    def __init__(self, name: str, error: Exception) -> None:
        reason = error.what if isinstance(error, HandoffError) else explain(error)
        super().__init__(f"{name} could not be written: {reason}")


class EvidenceEnds(Exception):
    """The records end before the run was closed: it was killed, or could not write any more."""


class EvidenceBroken(Exception):
    """The evidence is not what any run leaves; what follows in it cannot be judged."""


_NEW_RUN = "start a new run in a new folder, see --out"
# What a person is told of a run without an accepted answer: (verdict, why, what to do next).
_ENDS = {
    "rejected": (
        "only an answer that was proved right is accepted",
        f"see all of it with checkpoint_demo.py extract 3-response.json; {_NEW_RUN}",
    ),
    "broken": (
        "evidence is only worth something as a whole",
        "keep the folder as it is, and take every request in it for unclear: look it up at the provider",
    ),
    "failed": (
        "a run that cannot go on is ended, and nothing is sent again",
        "mend the cause (401, 403: the key; 404: endpoint or model; 429: wait; cut off: --max-tokens), then"
        f" {_NEW_RUN}",
    ),
    "unclear": (
        "a request that may have been processed may have been billed",
        f"look it up at the provider by time and request id (--inspect shows both); only then {_NEW_RUN}",
    ),
    "interrupted": ("Ctrl-C was pressed", _NEW_RUN),
}
_WORDS = {
    EXIT_DONE: "accepted",
    EXIT_REJECTED: "rejected",
    EXIT_FAILED: "failed",
    EXIT_UNCLEAR: "unclear",
    EXIT_INTERRUPTED: "interrupted",
}


class RunError(HandoffError):
    """A run has no accepted answer, or its evidence does not hold; what there is of it is kept."""

    def __init__(self, exit_code: int, folder: str, end: str, verdict: str | None = None) -> None:
        self.exit_code = exit_code
        self.verdict = verdict or _WORDS[exit_code]
        super().__init__(f"the run in {show(folder)}: {show(end)}", *_ENDS[self.verdict])


# --- Tokens and money: whole micro-dollars -----------------------------------

# The list price in dollars a million tokens, which is micro-dollars a token: (input, output).
_PRICES = {"fable-5.2": (8, 40), "fable-5.1": (10, 50), "opus-5.5": (4, 20)}
PRICES_MICRO_USD = {
    model: price
    for name, price in _PRICES.items()
    for model in (f"anthropic/claude-{name}", f"claude-{name.replace('.', '-')}")
}
_TOKEN_FIELDS = ("input_tokens", "output_tokens")
_CACHE_FIELDS = ("cache_creation_input_tokens", "cache_read_input_tokens")
_MOST_TOKENS = 10**9
_MOST_CHARACTERS = 4_096  # of a text in the ledger that only the run could know


def read_usage(message: dict[str, Any]) -> dict[str, int]:
    """Return the token counts of a reply that are plain integers; anything else is left out. Pure."""
    usage = message.get("usage")
    counts = (
        {field: usage.get(field) for field in (*_TOKEN_FIELDS, *_CACHE_FIELDS)}
        if isinstance(usage, dict)
        else {}
    )
    return {field: n for field, n in counts.items() if type(n) is int and 0 <= n <= _MOST_TOKENS}


def compute_cost(model: str, message: dict[str, Any]) -> int | None:
    """Return what a reply costs in micro-dollars at list price, or None where that is unknown.

    Unknown: a model without a price, missing or odd token counts, and any cache tokens, which have
    prices of their own. It is computed from usage and is no invoice. Pure.
    """
    usage, counts = message.get("usage"), read_usage(message)
    if model not in PRICES_MICRO_USD or not set(_TOKEN_FIELDS) <= set(counts) or not isinstance(usage, dict):
        return None
    cached = [usage.get(field) for field in _CACHE_FIELDS]
    if any(tokens is not None and (type(tokens) is not int or tokens) for tokens in cached):
        return None
    input_price, output_price = PRICES_MICRO_USD[model]
    return counts["input_tokens"] * input_price + counts["output_tokens"] * output_price


def render_usd(micro_usd: int | None) -> str:
    """Return micro-dollars as dollars, e.g. 4816 -> 0.004816, and None -> unknown. Pure."""
    return "unknown" if micro_usd is None else f"{micro_usd // 10**6}.{micro_usd % 10**6:06}"


def parse_usd(text: str) -> int | None:
    """Return the micro-dollars that render_usd wrote. Pure."""
    return None if text == "unknown" else int(text.replace(".", ""))


def sum_costs(records: list[dict[str, Any]]) -> int | None:
    """Return what the requests in a ledger cost together in micro-dollars; None if one is unknown. Pure."""
    costs = [parse_usd(record["cost_usd"]) for record in records if "cost_usd" in record]
    known = [cost for cost in costs if cost is not None]
    return None if is_unclear(records) or len(known) < len(costs) else sum(known)


def compute_cost_per_accepted(costs: list[int | None], accepted: int) -> tuple[int, int] | None:
    """Return what one accepted answer costs: (whole micro-dollars, the rest that all of them share).

    `costs` are those of all attempts in micro-dollars, the failed ones too. None where one is
    unknown, or nothing was accepted. Exact: sum(costs) == accepted * whole + rest. Pure.
    """
    known = [cost for cost in costs if cost is not None]
    return divmod(sum(known), accepted) if accepted and len(known) == len(costs) else None


# --- The three requests ------------------------------------------------------

RUN = "run"
READ_STOCK = demo.OPERATION_ID


class Step:
    """One of the three requests: its number and operation, who is asked, and what the reply must be."""

    def __init__(
        self, number: int, operation_id: str, asks: str, stop_reason: str, tool: str | None = None
    ) -> None:
        self.number, self.operation_id, self.asks = number, operation_id, asks
        self.stop_reason, self.tool = stop_reason, tool


TOOL_REQUEST = Step(1, "sender-tool-request", "sender", "tool_use", demo.OPERATION)
TOOL_RESULT = Step(2, "sender-tool-result", "sender", "end_turn")
HANDOFF = Step(3, "receiver-handoff", "receiver", "end_turn")
STEPS = (TOOL_REQUEST, TOOL_RESULT, HANDOFF)


PLAN_FACTS = {
    "endpoint": str,
    "sender": str,
    "receiver": str,
    "max_tokens": int,
    "timeout_seconds": int,
    "rehearsal": bool,
}


class Plan:
    """What a run is asked for: `rows` is its stock, `facts` what the ledger's first record says.

    The facts are those of PLAN_FACTS and the digest of the rows.
    """

    def __init__(self, rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
        self.rows = rows
        self.facts = {**facts, "source_sha256": facts.get("source_sha256") or digest_json(rows)}
        self.models: dict[str, str] = {asks: facts[asks] for asks in ("sender", "receiver")}
        self.max_tokens: int = facts["max_tokens"]


def build_tool_request(plan: Plan) -> dict[str, Any]:
    """Return the body of request 1: the sender may read the stock with its only tool. Pure."""
    return {
        "model": plan.models["sender"],
        "max_tokens": plan.max_tokens,
        "output_config": {"effort": "low"},
        "system": "You prepare a stock report. Read the stock with the tool. Do not place orders.",
        "tools": [
            {
                "name": demo.OPERATION,
                "description": "Return every SKU with its available and target quantity. It changes nothing.",
                "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
            }
        ],
        "tool_choice": {"type": "auto"},
        "messages": [{"role": "user", "content": "Call read_stock once, then say that the stock was read."}],
    }


def build_result_request(
    first: dict[str, Any], message: dict[str, Any], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the body of request 2: request 1's session, its reply as it came, the tool's result. Pure."""
    turn = {"role": "assistant", "content": message["content"]}
    results = {"role": "user", "content": [build_tool_result(message, rows)]}
    return {**first, "messages": [*first["messages"], turn, results]}


def build_tool_result(message: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tool_result block for a message's tool call: the stock rows as canonical JSON. Pure."""
    content = demo.canonical_json(rows).decode()
    return {"type": "tool_result", "tool_use_id": find_tool_call_id(message), "content": content}


def find_tool_call_id(message: dict[str, Any]) -> str:
    """Return the id of the tool call in a message that fits step 1. Pure."""
    call_id: str = next(block["id"] for block in message["content"] if block["type"] == "tool_use")
    return call_id


def encode_json(value: Any) -> bytes:
    """Return the bytes in which requests and records are written: compact ASCII JSON. Pure."""
    return render_json(value).encode()


def find_session_changes(
    first: dict[str, Any], reply: dict[str, Any], rows: list[dict[str, Any]], data: bytes
) -> list[Finding]:
    """Return what keeps the bytes of request 2 from going on with the session of request 1.

    The session replay check, with request 1, its reply and the tool's result as the original. Pure.
    """
    original = {**first, "messages": list(first["messages"])}
    original["messages"].append({"role": "assistant", "content": reply["content"]})
    original["messages"].append({"role": "user", "content": [build_tool_result(reply, rows)]})
    changes, _ = demo.compare_sessions(parse_json(data), original)
    return [
        Finding(f"{label}, {finding.path}", finding.message)
        for label in changes
        for finding in changes[label]
    ]


ANSWER_BYTES, ANSWER_TOKENS = 3, 2  # at least 1.5 bytes a token; the recorded answer had 107 in 67


def estimate_answer_tokens(rows: list[dict[str, Any]]) -> int:
    """Return how many tokens the right answer for stock rows takes, estimated high: 2 for 3 bytes. Pure."""
    return -(-len(encode_json(demo.build_result(rows))) * ANSWER_TOKENS // ANSWER_BYTES)


def explain_misfit(plan: Plan) -> str:
    """Return why a reply's token limit cannot hold the right answer, "" if it can. Pure."""
    tokens = estimate_answer_tokens(plan.rows)
    if tokens <= plan.max_tokens:
        return ""
    return (
        f"{len(plan.rows):,} rows need an answer of about {tokens:,} tokens, the limit is {plan.max_tokens:,}"
    )


def estimate_ceiling(plan: Plan) -> int | None:
    """Return a planning ceiling of a run's cost in micro-dollars, None where a price is unknown.

    A token is at least one byte of the request, a reply has at most max_tokens, and 1,000 tokens a
    request allow for what the API adds. A ceiling for planning, no guarantee. Pure.
    """
    first = len(encode_json(build_tool_request(plan)))
    second = first + plan.max_tokens + len(demo.canonical_json(plan.rows))
    third = len(demo.render_handoff(demo.build_checkpoint(plan.rows)))
    total = 0
    for step, tokens in zip(STEPS, (first, second, third)):
        if plan.models[step.asks] not in PRICES_MICRO_USD:
            return None
        input_price, output_price = PRICES_MICRO_USD[plan.models[step.asks]]
        total += (tokens + 1_000) * input_price + plan.max_tokens * output_price
    return total


# --- What became of a request ------------------------------------------------

PLANNED = "planned"
IN_FLIGHT = "in_flight"
CONFIRMED = "confirmed"
FAILED = "failed"
UNCLEAR = "unclear"

_REDIRECTS = (301, 302, 303, 307, 308)


OUTCOME_FACTS = {
    "opened": bool,  # the connection was open, so that the request may have arrived (ordinary: true)
    "http_status": int,
    "request_id": str,
    "content_encoding": str,  # what the body was decoded from
    "key_removed": bool,  # ordinary: false
    "elapsed_milliseconds": int,
    "trouble": str,  # what broke
}


class Outcome:
    """What came of sending one request, as far as this side can know.

    `body` is what came back, without the key, or None if no reply began. `facts` is what the ledger
    says of it: the facts of OUTCOME_FACTS that are out of the ordinary, and the body's digest.
    """

    def __init__(self, body: bytes | None = None, **facts: Any) -> None:
        self.body = body
        self.opened: bool = facts.get("opened", True)
        self.http_status: int | None = facts.get("http_status")
        self.key_removed: bool = facts.get("key_removed", False)
        self.trouble: str = facts.get("trouble", "")
        ordinary = {"opened": True, "key_removed": False}
        self.facts = {
            name: fact for name, fact in facts.items() if fact not in (None, "", ordinary.get(name))
        }
        if body is not None:
            self.facts["response_sha256"] = digest_bytes(body)


def judge_outcome(outcome: Outcome) -> tuple[str, str, Any]:
    """Return (state, why, message): what became of a request, and the whole message if confirmed.

    Failed needs evidence that the request had no effect, confirmed a whole message with HTTP 200;
    everything else is unclear, because it may have been processed and billed. Pure.
    """
    status, trouble = outcome.http_status, outcome.trouble
    # 1. It never left.
    if not outcome.opened:
        return FAILED, f"nothing was sent: {trouble}", None
    # 2. The server refused it, whatever else it said.
    reply, fault = _parse_reply(outcome.body or b"")
    error = demo.describe_api_error(reply)
    said = f" ({error})" if error else ""
    if status in _REDIRECTS:
        return FAILED, f"HTTP {status}: a redirect, which is not followed", None
    if status is not None and 400 <= status < 500 and status != 408:
        return FAILED, f"HTTP {status}: the request was refused{said}", None
    if status == 529 and said and not trouble:
        return FAILED, f"HTTP 529: the request was not started{said}", None
    # 3. A whole message came back.
    if status == 200 and not trouble:
        if not fault:
            return CONFIRMED, "", reply
        return UNCLEAR, f"HTTP 200 without a whole message: {fault}", None
    # 4. It may have been processed.
    about = "no reply" if status is None else f"HTTP {status}"
    return UNCLEAR, f"{about}: {trouble or 'the request may have been processed'}{said}", None


def _parse_reply(body: bytes) -> tuple[Any, str]:
    """Return a reply's value, and why it is no whole message ("" if it is one)."""
    if sum(body.count(mark) for mark in (b"{", b"[", b",")) > REPLY_LIMIT_ITEMS:
        return None, f"more than {REPLY_LIMIT_ITEMS:,} items, which no model's answer has"
    try:
        reply = parse_json(body, demo.REPLY_DEPTH_LIMIT)
    except JsonError as error:
        return None, _explain_json_error(error, body)
    faults = demo.find_message_faults(reply)
    return reply, str(faults[0]) if faults else ""


def _explain_json_error(error: JsonError, text: bytes) -> str:
    """Return why a text is no strict JSON, without the interpreter's words: they differ with its version."""
    if not error.reason.startswith("no JSON"):
        return str(error)
    begin = shorten(text[:72].decode("utf-8", "replace"), 24)
    return f"no JSON; it begins with {describe(begin)}" if text else "no JSON; it is empty"


def find_misfits(step: Step, message: dict[str, Any], key_removed: bool) -> list[Finding]:
    """Return why a confirmed message cannot be used in its step. Pure."""
    misfits = demo.find_reply_faults(message, step.stop_reason, step.tool)
    if step is TOOL_REQUEST and key_removed and KEY_MARK in render_json(message["content"]):
        misfits.append(Finding("content", "the key stood in what must be sent back unchanged"))
    return misfits


def is_unclear(records: list[dict[str, Any]]) -> bool:
    """Return whether a request in a ledger may have been processed without a known outcome. Pure."""
    in_flight = bool(records) and records[-1]["state"] == IN_FLIGHT
    return in_flight or any(record["state"] == UNCLEAR for record in records)


# --- The run: one course, for doing it and for inspecting it ------------------

if TYPE_CHECKING:

    class Evidence(Protocol):
        """Where the course of a run leaves its evidence (Recorder), or finds it again (Inspector)."""

        records: list[dict[str, Any]]

        def write(self, name: str, data: bytes) -> None:
            """Take a file of the run."""

        def record(self, operation_id: str, state: str, **facts: Any) -> None:
            """Take a record for the ledger."""

        def send(self, step: Step, data: bytes) -> Outcome:
            """Return what came of a request that is recorded as in flight."""


def carry_out(evidence: Evidence, plan: Plan) -> tuple[int, str]:
    """Go through a whole run, close it, and return its exit code and its verdict in words.

    The Recorder writes down what happens here; the Inspector takes the very same calls and compares
    them with what was written. EvidenceEnds and EvidenceBroken come from an Inspector only.
    """
    evidence.record(RUN, PLANNED, **plan.facts)
    try:
        verdict = _go_through(evidence, plan)
        evidence.record(RUN, CONFIRMED, cost_usd=render_usd(sum_costs(evidence.records)))
        return EXIT_DONE, verdict
    except RunEnded as error:
        state, why, code = error.args
    except EvidenceError as error:
        state, code = (UNCLEAR, EXIT_UNCLEAR) if is_unclear(evidence.records) else (FAILED, EXIT_FAILED)
        why = str(error)
    try:
        evidence.record(RUN, state, why=why, cost_usd=render_usd(sum_costs(evidence.records)))
    except EvidenceError as error:
        code = EXIT_UNCLEAR if state == UNCLEAR else EXIT_FAILED
        return code, why if why == str(error) else f"{why}; and {error}"
    return code, why


def _go_through(evidence: Evidence, plan: Plan) -> str:
    # 1. The sender asks for the stock.
    first = build_tool_request(plan)
    reply = _ask(evidence, plan, TOOL_REQUEST, first)
    # 2. The application reads it.
    call_id = find_tool_call_id(reply)
    evidence.record(READ_STOCK, PLANNED, tool_call_id=call_id)
    evidence.record(READ_STOCK, CONFIRMED, tool_call_id=call_id, result_sha256=plan.facts["source_sha256"])
    # 3. The same session goes on, or nothing is sent.
    second = build_result_request(first, reply, plan.rows)
    changes = find_session_changes(first, reply, plan.rows, encode_json(second))
    if changes:
        raise RunEnded(
            FAILED, f"request 2 does not go on with the session: {_list_some(changes)}", EXIT_FAILED
        )
    _ask(evidence, plan, TOOL_RESULT, second)
    # 4. What is handed over comes from the application, not from the session.
    checkpoint = demo.build_checkpoint(plan.rows)
    handoff = demo.render_handoff(checkpoint)
    evidence.write("checkpoint.json", f"{render_json(checkpoint, 2)}\n".encode())
    evidence.write("handoff.txt", handoff.encode())
    # 5. A fresh session of the receiver answers, and the validator judges.
    answered = _ask(
        evidence,
        plan,
        HANDOFF,
        demo.build_receiver_request(handoff, plan.models["receiver"], plan.max_tokens),
    )
    try:
        result = demo.parse_answer(answered)
        findings = demo.validate_result(result, plan.rows)
    except JsonError as error:
        findings = [
            Finding("$", _explain_json_error(error, demo.join_text(answered).encode("utf-8", "replace")))
        ]
    if findings:
        raise RunEnded(FAILED, f"the answer was rejected: {_list_some(findings)}", EXIT_REJECTED)
    evidence.write("result.json", f"{render_json(result, 2)}\n".encode())
    return demo.render_acceptance(plan.rows)


def _ask(evidence: Evidence, plan: Plan, step: Step, body: dict[str, Any]) -> dict[str, Any]:
    """Send one request and return its message; each thing is durable before the next is done."""
    data = encode_json(body)
    evidence.write(f"{step.number}-request.json", data)
    evidence.record(step.operation_id, PLANNED, request_sha256=digest_bytes(data))
    evidence.record(step.operation_id, IN_FLIGHT)
    outcome = evidence.send(step, data)
    if outcome.body is not None:
        try:
            evidence.write(f"{step.number}-response.json", outcome.body)
        except EvidenceError as error:  # nothing is done with a reply that is not on disk
            known = {name: outcome.facts.get(name) for name in ("request_id", "elapsed_milliseconds")}
            outcome = Outcome(trouble=f"HTTP {outcome.http_status} came, but {error}", **known)
    state, why, message = judge_outcome(outcome)
    facts = {**outcome.facts, **_list_message_facts(message, step, plan), **({"why": why} if why else {})}
    evidence.record(step.operation_id, state, **facts)
    if state != CONFIRMED:
        raise RunEnded(
            state, f"{step.operation_id}: {why}", EXIT_UNCLEAR if state == UNCLEAR else EXIT_FAILED
        )
    misfits = find_misfits(step, message, outcome.key_removed)
    if misfits:
        raise RunEnded(FAILED, f"{step.operation_id}: {_list_some(misfits)}", EXIT_FAILED)
    confirmed: dict[str, Any] = message
    return confirmed


def _list_message_facts(message: Any, step: Step, plan: Plan) -> dict[str, Any]:
    """Return what the ledger says of a whole message: who answered, how it ended, what it cost."""
    if message is None:
        return {}
    names = {field: message.get(field) for field in ("model", "stop_reason")}
    facts: dict[str, Any] = {field: shorten(name) for field, name in names.items() if isinstance(name, str)}
    cost = 0 if plan.facts["rehearsal"] else compute_cost(plan.models[step.asks], message)
    return {**facts, "usage": read_usage(message), "cost_usd": render_usd(cost)}


def _list_some(findings: list[Finding], most: int = 3) -> str:
    more = f"; and {len(findings) - most:,} more" if len(findings) > most else ""
    return "; ".join(map(str, findings[:most])) + more


# --- Transport: one request, one connection, one time limit -------------------

KEY_MARK = "[key removed]"
_KEY = re.compile("[!-~]{16,}")


class Key:
    """The API key, and how it is kept out of everything that is stored or shown."""

    def __init__(self, value: str) -> None:
        self.value = value
        # In JSON any character may be written as an escape, and JSON may stand inside JSON once more.
        pieces = re.findall(r"\\+|.", value)
        self._pattern = re.compile("".join(map(self._spell, pieces)).encode())

    @staticmethod
    def _spell(piece: str) -> str:
        """Return the pattern of a letter, or of a run of backslashes, however it is written."""
        escaped = f"u00(?i:{ord(piece[0]):02x})"
        if piece[0] == "\\":
            return rf"(?:\\|{escaped}){{{len(piece)},{9 * len(piece)}}}"
        return rf"(?:\\{{0,8}}{re.escape(piece)}|\\{{1,8}}{escaped})"

    def remove_from(self, data: bytes) -> bytes:
        """Return the bytes with KEY_MARK wherever the key stood, plain or JSON-escaped."""
        return self._pattern.sub(KEY_MARK.encode(), data)

    def remove_from_text(self, text: str) -> str:
        """Return the text with KEY_MARK wherever the key stood."""
        return self.remove_from(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def read_key(variable: str) -> Key:
    """Return the key that an environment variable holds. Raises RefusedError, which never shows it."""
    value = os.environ.get(variable, "")
    next_step = f"set it with: export {variable}=..."
    if not value:
        raise RefusedError(
            f"no key in {variable}", "the environment variable is not set, or empty", next_step
        )
    if not _KEY.fullmatch(value):
        why = "a key is 16 or more printable ASCII characters without spaces"
        raise RefusedError(f"the key in {variable} cannot be used", why, next_step)
    return Key(value)


def check_endpoint(url: str) -> None:
    """Raise RefusedError unless the key may be sent to a URL: https, or http on loopback."""
    import urllib.parse

    def refuse(fault: str) -> RefusedError:
        shown = "" if "@" in url else f" {show(url)}"  # in front of it a password may stand
        next_step = "name an https URL, or http on 127.0.0.1 or localhost"
        return RefusedError(
            f"the endpoint{shown}: {fault}", "a key goes only where nobody listens in", next_step
        )

    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError as error:  # a UnicodeError is one
        raise refuse("it is no URL") from error
    if not re.fullmatch("[!-~]+", url) or "\\" in url or not host or port == 0:
        raise refuse("it is no URL with a host, in printable ASCII")
    if "@" in parts.netloc or parts.fragment:
        raise refuse("a user name or a fragment stands in it")
    named = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    if parts.netloc.lower() != named:
        raise refuse("its host is not written as one name or address")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise refuse("the key would go over a network unencrypted")


def _is_loopback(host: str) -> bool:
    """Return whether a URL's host is localhost, in 127.0.0.0/8, or ::1, written in full."""
    import ipaddress

    if host in ("localhost", "::1"):
        return True
    try:
        return ipaddress.IPv4Address(host) in ipaddress.ip_network("127.0.0.0/8")
    except ValueError:
        return False


class _TransportError(Exception):
    """A reply that cannot be taken as whole, or an attempt that nobody waits for any more."""


class Attempt:
    """One sending of one request, shared by the thread that talks and the one that waits.

    The talking thread may block anywhere, in a name look-up too. The waiting one can give up at any
    time; it learns whether the connection was open by then, and nothing is sent after that.
    """

    def __init__(self) -> None:
        import threading

        self.done = threading.Event()
        self._lock = threading.Lock()
        self._given_up = False
        self._socket: Any = None
        self.headers: Any = None
        self.http_status: int | None = None
        self.body = bytearray()
        self.trouble = ""
        self.bug: BaseException | None = None

    @property
    def opened(self) -> bool:
        """Whether the connection, TLS included, was ever open."""
        return self._socket is not None

    def pass_on(self, connection: Any, send: Callable[[Any], None], data: Any) -> None:
        """Send bytes on a connection, opened at most once, while somebody waits for the outcome."""
        if connection.sock is None:
            connection.connect()
            with self._lock:
                if self._given_up or self._socket is not None:
                    raise _TransportError("nobody waits for this connection")
                self._socket = connection.sock
        if self._given_up:
            raise _TransportError("nobody waits for this request")
        send(data)

    def give_up(self, why: str) -> None:
        """End the attempt; what is still being sent or received is cut off."""
        import socket

        with self._lock:
            self._given_up = True
            self.trouble = why
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it may be closed already
                # Not the SSL socket's own shutdown, which takes its state away under the reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def run(self, url: str, headers: dict[str, str], data: bytes, timeout_seconds: float) -> None:
        """Send the request and receive the reply; what breaks becomes `trouble`. Runs in a thread."""
        import http.client
        import urllib.error
        import urllib.request

        try:
            request = urllib.request.Request(url, data, headers, method="POST")
            with _build_opener(self).open(request, timeout=timeout_seconds + 1) as response:
                with self._lock:
                    if self._given_up:  # what was cut off may look like the end of the headers
                        raise _TransportError("given up")
                    self.headers, self.http_status = response.headers, response.status
                _receive(response, self.body)
        except (OSError, http.client.HTTPException, ValueError, _TransportError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            self.trouble = self.trouble or str(reason) or type(error).__name__
        except BaseException as error:
            self.bug = error
        finally:
            self.done.set()


def _build_opener(attempt: Attempt) -> Any:
    """Return a urllib opener without redirects, retries or cookies, whose connection is watched."""
    import http.client
    import ssl
    import urllib.request

    class Connection(http.client.HTTPConnection):
        def send(self, data: Any) -> None:
            attempt.pass_on(self, super().send, data)

    class TlsConnection(http.client.HTTPSConnection):
        def send(self, data: Any) -> None:
            attempt.pass_on(self, super().send, data)

    class Handler(urllib.request.AbstractHTTPHandler):
        http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Connection, request)

        def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(TlsConnection, request, context=ssl.create_default_context())

    opener = urllib.request.OpenerDirector()
    opener.addheaders = []
    proxies = {scheme: proxy for scheme, proxy in urllib.request.getproxies().items() if scheme == "https"}
    opener.add_handler(urllib.request.ProxyHandler(proxies))
    opener.add_handler(Handler())
    return opener


def _receive(response: Any, body: bytearray) -> None:
    """Append a reply's body as it comes, so that what came is kept. Raises _TransportError if it is cut.

    http.client reads the head. Its own reading of bodies takes a missing last chunk, and on older
    versions a missing rest, for the end.
    """
    stream = response.fp
    if response.chunked:
        while size := _receive_chunk_size(stream):
            _receive_bytes(stream, body, size)
            if stream.readline(3) != b"\r\n":
                raise _TransportError("the reply was cut short in a chunk")
        while (line := stream.readline(65_537)) != b"\r\n":
            if not line.endswith(b"\n"):
                raise _TransportError("the reply was cut short behind its last chunk")
        return
    lengths = {
        length.strip()
        for line in response.headers.get_all("content-length", [])
        for length in line.split(",")
    }
    if len(lengths) > 1 or not all(re.fullmatch("[0-9]{1,15}", length) for length in lengths):
        raise _TransportError(f"the reply's length is not clear: {', '.join(sorted(lengths))}")
    if response.length != 0:  # http.client sets 0 for a status that has no body
        _receive_bytes(stream, body, int(lengths.pop()) if lengths else None)


def _receive_chunk_size(stream: Any) -> int:
    size = re.fullmatch(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n", stream.readline(1_026))
    if not size:
        raise _TransportError("the reply was cut short before a chunk")
    return int(size.group(1), 16)


def _receive_bytes(stream: Any, body: bytearray, count: int | None) -> None:
    """Append `count` bytes, or with None all up to the end of the connection."""
    while count != 0:
        piece = stream.read1(65_536 if count is None else min(count, 65_536))
        if not piece:
            if count is None:
                return
            raise _TransportError(f"the reply was cut short: {count:,} bytes are missing")
        count = None if count is None else count - len(piece)
        body += piece
        if len(body) > REPLY_LIMIT_BYTES:
            del body[REPLY_LIMIT_BYTES:]
            raise _TransportError(
                f"the reply is longer than {REPLY_LIMIT_BYTES:,} bytes, and was cut off there"
            )


def send_request(
    url: str,
    key: Key,
    data: bytes,
    timeout_seconds: float,
    wait: Callable[[float], str | None] = lambda _: None,
) -> Outcome:
    """Send one request, once, and return what came of it within the time limit in seconds.

    `wait` is called ten times a second with the seconds that have passed; a text that it returns is
    the reason to give up at once. Certificates are verified, redirects are not followed, at most
    4 MiB are received, and the key is taken out of what came.
    """
    import threading

    headers = {
        "x-api-key": key.value,
        "anthropic-version": API_VERSION,
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": "run_handoff.py",
    }
    attempt = Attempt()
    thread = threading.Thread(target=attempt.run, args=(url, headers, data, timeout_seconds), daemon=True)
    begun = time.monotonic()
    try:
        thread.start()
        while not attempt.done.wait(0.1):
            passed = time.monotonic() - begun
            why = wait(passed)
            if why is None and passed >= timeout_seconds:
                why = f"time-out after {timeout_seconds:g} s"
            if why is not None:
                attempt.give_up(why)
                break
    except RuntimeError as error:  # no thread can be started
        return Outcome(opened=False, trouble=str(error))
    except BaseException:
        attempt.give_up("the program was interrupted")
        raise
    if attempt.bug is not None:
        raise attempt.bug
    return _build_outcome(attempt, key, round((time.monotonic() - begun) * 1_000))


def _build_outcome(attempt: Attempt, key: Key, elapsed_milliseconds: int) -> Outcome:
    def header(name: str) -> str:
        return ", ".join(attempt.headers.get_all(name, [])) if attempt.headers else ""

    body, trouble, decoded = bytes(attempt.body), attempt.trouble, b""
    encoding = header("content-encoding").strip().lower()
    if encoding in ("gzip", "x-gzip"):
        decoded, whole = _gunzip(body)
        body = decoded or body
        trouble = trouble or ("" if whole else "the reply's gzip encoding is broken, or holds too much")
    elif encoding not in ("", "identity"):
        trouble = trouble or f"the reply has the encoding {encoding!r}, which was not asked for"
    kept = key.remove_from(body)
    return Outcome(
        kept if attempt.http_status is not None else None,
        opened=attempt.opened,
        http_status=attempt.http_status,
        request_id=shorten(show(key.remove_from_text(header("request-id")))),
        content_encoding="gzip" if decoded else None,
        key_removed=kept != body,
        elapsed_milliseconds=elapsed_milliseconds,
        trouble=shorten(show(key.remove_from_text(trouble)), 200),
    )


def _gunzip(data: bytes) -> tuple[bytes, bool]:
    """Return as much as a gzip stream gives, up to the limit, and whether that is all of it."""
    import zlib

    decoder = zlib.decompressobj(wbits=31)
    try:
        text = decoder.decompress(data, REPLY_LIMIT_BYTES + 1)
    except zlib.error:
        return b"", False
    return text[:REPLY_LIMIT_BYTES], decoder.eof and not decoder.unused_data and len(
        text
    ) <= REPLY_LIMIT_BYTES


# --- The evidence folder and its ledger --------------------------------------

LEDGER = "ledger.jsonl"
REPORT = "report.html"
SUMS = "SHA256SUMS"
FILES = (
    *(f"{step.number}-{part}.json" for step in STEPS for part in ("request", "response")),
    "checkpoint.json",
    "handoff.txt",
    LEDGER,
    "result.json",
    REPORT,
)


class Recorder:
    """A run's evidence as it is written: files, the ledger, and the requests themselves.

    Everything is durable when a call returns, and EvidenceError says that it is not. `send` takes a
    request's body and returns its Outcome. Ctrl-C is obeyed before anything is planned or sent.
    Raises RefusedError, with nothing changed, if the folder exists or cannot be made.
    """

    def __init__(self, folder: str, key: Key, send: Callable[[bytes], Outcome], terminal: Terminal) -> None:
        self.folder = folder
        self.records: list[dict[str, Any]] = []
        self._key, self._send, self._terminal = key, send, terminal
        self._prev_sha256 = "0" * 64
        self._make_folder()
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._ledger = os.open(os.path.join(folder, LEDGER), flags, 0o600)
            demo.flush_folder(folder)
        except OSError as error:
            raise EvidenceError(LEDGER, error) from error

    def _make_folder(self) -> None:
        """Make the folder, which is the lock as well: of many processes one wins."""
        made = False
        try:
            os.mkdir(self.folder, 0o700)
            made = True
            demo.flush_folder(os.path.dirname(self.folder) or ".")
        except FileExistsError as error:
            why = "a run's folder is evidence and is never reused"
            next_step = f"read it with --inspect {show(self.folder)}, or name a new one with --out DIR"
            raise RefusedError(f"{show(self.folder)} already exists", why, next_step) from error
        except OSError as error:
            if made:
                os.rmdir(self.folder)
            what = f"{show(self.folder)} cannot be made: {explain(error)}"
            why = "a run's evidence needs a new folder of its own"
            raise RefusedError(what, why, "name another one with --out DIR") from error

    def write(self, name: str, data: bytes) -> None:
        """Write a file beside its place, flush it, name it, flush the folder.

        The name overwrites nothing: the folder is fresh, and this process's own.
        """
        temporary = os.path.join(self.folder, f".{name}.part")
        try:
            demo.write_flushed(temporary, data, 0o600)
            try:
                os.rename(temporary, os.path.join(self.folder, name))
            except OSError:
                demo.discard(temporary)
                raise
            demo.flush_folder(self.folder)
        except OSError as error:
            raise EvidenceError(name, error) from error

    def record(self, operation_id: str, state: str, **facts: Any) -> None:
        """Append one line to the ledger and flush it; a line that fails is taken back."""
        if self._terminal.interrupted and operation_id != RUN and state in (PLANNED, IN_FLIGHT):
            raise RunEnded(FAILED, "interrupted with nothing in flight", EXIT_INTERRUPTED)
        record = {"time": _utc_now(), "operation_id": operation_id, "state": state, **facts}
        line = self._key.remove_from(encode_json({**record, "prev_sha256": self._prev_sha256}))
        try:
            end = os.fstat(self._ledger).st_size
            try:
                demo.write_all(self._ledger, line + b"\n")
                demo.flush(self._ledger)
            except OSError:
                os.ftruncate(self._ledger, end)
                raise
        except OSError as error:
            raise EvidenceError(LEDGER, error) from error
        self._prev_sha256 = digest_bytes(line)
        self.records.append(record)
        if state != PLANNED:
            self._terminal.write_err(f"  {operation_id:20} {state.replace('_', ' ')}")

    def send(self, step: Step, data: bytes) -> Outcome:
        """Send a request whose in_flight record is on disk; it raises for any other."""
        last = self.records[-1]
        if (last["operation_id"], last["state"]) != (step.operation_id, IN_FLIGHT):
            raise RuntimeError("a request would leave that is not recorded as in flight")
        return self._send(data)

    def close(self) -> None:
        """Write report.html and SHA256SUMS, the last things in the folder, if the run was closed."""
        os.close(self._ledger)
        last = self.records[-1] if self.records else {}
        if last.get("operation_id") != RUN or last["state"] == PLANNED:
            return
        try:
            inspector = Inspector(self.folder)
        except UnreadableError as error:
            raise EvidenceError(REPORT, error) from error
        inspector.go_through()
        report = render_report(inspector).encode()
        self.write(REPORT, report)
        self.write(SUMS, render_sums({**inspector.files, REPORT: report}))


def _utc_now() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds // 10**6:03}Z"


def render_sums(files: dict[str, bytes | None]) -> bytes:
    """Return what `sha256sum -c` reads: a digest and a name a line, for the files that are there. Pure."""
    lines = [f"{digest_bytes(data)}  {name}\n" for name, data in files.items() if data is not None]
    return "".join(lines).encode()


def read_evidence(folder: str, name: str) -> bytes | None:
    """Return a file of an evidence folder, None if it is not there. No link is followed.

    Raises EvidenceBroken for what is no regular file or is longer than 64 MiB, UnreadableError.
    """
    path = os.path.join(folder, name)
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise EvidenceBroken("observed no regular file, expected one")
        extra = [getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")]
        with open(os.open(path, os.O_RDONLY | extra[0] | extra[1] | extra[2]), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # it was exchanged meanwhile
                raise EvidenceBroken("observed no regular file, expected one")
            data = file.read(demo.INPUT_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(path, explain(error)) from error
    if len(data) > demo.INPUT_LIMIT_BYTES:
        raise EvidenceBroken(f"observed more than {demo.INPUT_LIMIT_BYTES:,} bytes")
    return data


# --- The rehearsal: both models, played on loopback --------------------------


class RehearsalModels:
    """Plays the sender and the receiver, and refuses what the real API refuses.

    It remembers the session that it began, and lets it go on only as it was.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._begun: dict[str, Any] = {}  # the request that was answered with a tool call
        self._turn: dict[str, Any] = {}  # the assistant message of that answer

    def answer(self, headers: Mapping[str, str], data: bytes) -> tuple[int, dict[str, Any]]:
        """Return (HTTP status, reply body) for a request; header names are in lower case."""
        if headers.get("x-api-key") != self._key:
            return 401, _build_api_error("authentication_error", "x-api-key: missing or unknown")
        try:
            request = parse_json(data)
            fault = self._find_fault(headers, request)
        except (JsonError, TypeError, AttributeError) as error:  # no JSON, or of another shape
            fault = str(error)
        if fault:
            return 400, _build_api_error("invalid_request_error", fault)
        stop_reason, content = self._play(request)
        return 200, {
            "id": f"msg_{os.urandom(8).hex()}",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {"input_tokens": len(data) // 4, "output_tokens": len(render_json(content)) // 4},
        }

    def _find_fault(self, headers: Mapping[str, str], request: Any) -> str:
        for name, value in (("anthropic-version", API_VERSION), ("content-type", "application/json")):
            if headers.get(name) != value:
                return f"{name}: observed {headers.get(name)!r}, expected {value!r}"
        if not isinstance(request, dict) or not isinstance(request.get("model"), str):
            return "model: expected a string"
        if type(request.get("max_tokens")) is not int or request["max_tokens"] < 1:
            return "max_tokens: expected a positive integer"
        messages: list[Any] = request.get("messages") or []
        roles = [message.get("role") for message in messages]
        if not roles or roles[0] != "user" or roles[-1] != "user":
            return "messages: expected the user's message first and last"
        for index, message in enumerate(messages):
            results = messages[index + 1 : index + 2]
            unmatched = (
                demo.find_unmatched_results(message, results, index + 1)
                if roles[index] == "assistant"
                else []
            )
            if unmatched:
                return str(unmatched[0])
        if len(roles) == 1:
            return ""
        changed = list_differences({**request, "messages": messages[:-2]}, self._begun)
        changed += list_differences(messages[-2], self._turn, "messages", len(roles) - 2)
        return f"{changed[0]}: this is not the session as it was" if changed else ""

    def _play(self, request: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
        """Return (stop reason, content): a tool call, an end, or the result out of a handoff prompt."""
        if "tools" not in request:
            return "end_turn", [{"type": "text", "text": _work_out(request["messages"][0]["content"])}]
        if len(request["messages"]) > 1:
            return "end_turn", [{"type": "text", "text": "The stock was read."}]
        call_id, tool = f"toolu_{os.urandom(8).hex()}", request["tools"][0]["name"]
        content = [
            {"type": "thinking", "thinking": "", "signature": os.urandom(24).hex()},
            {"type": "tool_use", "id": call_id, "name": tool, "input": {}},
        ]
        self._begun, self._turn = request, {"role": "assistant", "content": content}
        return "tool_use", content


def _build_api_error(kind: str, message: str) -> dict[str, Any]:
    error = {"type": kind, "message": message}
    return {"type": "error", "error": error, "request_id": f"req_{os.urandom(8).hex()}"}


def _work_out(prompt: str) -> str:
    """Return the answer that a model would give to a handoff prompt."""
    try:
        checkpoint = parse_json(prompt.partition("Checkpoint: ")[2].encode())
        return render_json(demo.build_result(checkpoint["completed"][0]["result"]))
    except (JsonError, KeyError, TypeError, IndexError):
        return "There is no checkpoint to go on from."


class RehearsalServer:
    """RehearsalModels behind HTTP on 127.0.0.1, from construction until `close`."""

    def __init__(self, models: RehearsalModels) -> None:
        import http.server
        import socketserver
        import threading

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10  # somebody else may connect, and be silent

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers.get("content-length", 0)))
                status, reply = models.answer(
                    {name.lower(): value for name, value in self.headers.items()}, data
                )
                body = encode_json(reply)
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.send_header("request-id", reply.get("request_id", f"req_{os.urandom(8).hex()}"))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass  # the terminal is not the server's

        # HTTPServer would look up the machine's name, which can take seconds without a network.
        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, block_on_close = True, False

            def handle_error(self, *_: Any) -> None:
                pass  # a stranger's connection that broke

        self._server = Server(("127.0.0.1", 0), Handler)
        self._address = self._server.socket.getsockname()
        self.url = f"http://127.0.0.1:{self._address[1]}/v1/messages"
        self._closing = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closing:
            self._server.handle_request()

    def close(self) -> None:
        """Stop serving, at once: serve_forever's own shutdown would wait for its next poll."""
        import socket

        self._closing = True
        with contextlib.suppress(OSError):
            socket.create_connection(self._address, timeout=1).close()
        self._thread.join(1)
        self._server.server_close()


# --- Inspecting a run: the same course again, against what is on disk ---------


def parse_ledger(data: bytes) -> tuple[list[dict[str, Any]], list[Finding], bool]:
    """Return (records, findings, cut) of a ledger's bytes.

    Each line must be the very bytes that this program writes for its value, and name the digest of
    the line before. Reading stops at the first line that is no such record. A last line without its
    newline is left out, and `cut` says so. Pure.
    """
    *lines, rest = data.split(b"\n")
    records: list[dict[str, Any]] = []
    prev_sha256 = "0" * 64
    for number, line in enumerate(lines, 1):
        try:
            records.append(_parse_record(line, prev_sha256))
        except JsonError as error:
            return records, [Finding(f"{LEDGER} line {number}", str(error))], bool(rest)
        prev_sha256 = digest_bytes(line)
    return records, [], bool(rest)


def _parse_record(line: bytes, prev_sha256: str) -> dict[str, Any]:
    """Return a ledger line's record. Raises JsonError for what no record is, and for a broken chain."""
    record = parse_json(line)
    if not isinstance(record, dict):
        raise JsonError("$", f"observed {describe(record)}, expected a record")
    for field in ("time", "operation_id", "state"):
        if not isinstance(record.get(field), str):
            raise JsonError(field, f"observed {describe(record.get(field, MISSING))}, expected a string")
    if encode_json(record) != line:
        raise JsonError("$", "observed other bytes than this program writes for the record")
    for finding in list_differences(record.get("prev_sha256", MISSING), prev_sha256, "prev_sha256"):
        raise JsonError(finding.path, finding.message)
    return record


# What is shown by a file that is, byte for byte, what the run must have written.
_PROOFS = {
    **{
        f"{step.number}-response.json": "judged again, from the bytes that the records name" for step in STEPS
    },
    "1-request.json": "built again, nothing else was sent",
    "2-request.json": "built again, it goes on with the session of request 1 and its reply unchanged",
    "3-request.json": "built again, it holds the handoff prompt and nothing of the sender's session",
    "checkpoint.json": "built again from the stock, it is the one that the stock allows",
    "handoff.txt": "built again from the checkpoint",
    "result.json": "every shortage is what the stock gives, whichever model worked it out",
    REPORT: "built again, it tells of this run",
    LEDGER: "each record is the one that this run must have left, and names the digest of the one before",
    SUMS: "it holds the digest of every file",
}


class Inspector:
    """A run's evidence as it is read again: each call is compared with what the run has left.

    `checks` says what held, `findings` what did not, `notes` what is worth knowing; `exit_code`, `end`
    and `closed` how the run ended. Only what nobody can work out again is taken from the ledger: times,
    HTTP statuses, request ids, what broke. Raises UnreadableError for a file that cannot be read.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.checks: list[str] = []
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.exit_code, self.end, self.closed = EXIT_REJECTED, "the evidence does not hold", False
        self._unusable: set[str] = set()  # what is there, but is no file that a run writes
        self.files = {name: self._read(name) for name in (*FILES, SUMS)}
        self.ledger, findings, cut = parse_ledger(self.files[LEDGER] or b"")
        self.findings += findings
        if cut:
            self.notes.append(f"{LEDGER}: its last line was cut while it was written, and is left out")
        self.records: list[dict[str, Any]] = []  # what the ledger must say, as far as the course has come
        self._due = {LEDGER}  # the files that the course has come to
        self.plan: Plan | None = None

    @property
    def verdict(self) -> str:
        """The word for the whole run, broken where its evidence does not hold."""
        return "broken" if self.findings else _WORDS[self.exit_code]

    def _read(self, name: str) -> bytes | None:
        try:
            data = read_evidence(self.folder, name)
            if "response" in name and data is not None and len(data) > REPLY_LIMIT_BYTES:
                raise EvidenceBroken(f"observed more than {REPLY_LIMIT_BYTES:,} bytes, which no run stores")
            return data
        except EvidenceBroken as error:
            self._find(name, str(error))
            self._unusable.add(name)
            return None

    def _find(self, place: str, message: str) -> None:
        self.findings.append(Finding(place, message))
        self.exit_code, self.end = EXIT_REJECTED, "the evidence does not hold"

    def go_through(self, rows: list[dict[str, Any]] | None = None) -> None:
        """Go through the run again, and compare every file and record with what it must have left.

        `rows` is the trusted stock; without it a run on other stock than the built-in one is judged
        on the rows that are recorded in it, with a note.
        """
        try:
            self.plan = self._read_plan(rows)
            code, end = carry_out(self, self.plan)
            self.closed = True
        except EvidenceEnds:
            code = EXIT_UNCLEAR if is_unclear(self.records) else EXIT_FAILED
            in_flight = "a request in flight" if code == EXIT_UNCLEAR else "nothing in flight"
            end = f"the run was ended before it closed, with {in_flight}"
        except EvidenceBroken:
            return
        if not self.findings:
            self.exit_code, self.end = code, end
            self.checks += [f"{LEDGER}: {_PROOFS[LEDGER]}"] if self.records else []

    def _read_plan(self, rows: list[dict[str, Any]] | None) -> Plan:
        """Return the plan that the ledger's first record tells of."""
        if self.files[LEDGER] is None and LEDGER not in self._unusable and any(self.files.values()):
            self._find(LEDGER, "it is missing")
        if not self.ledger:
            raise EvidenceBroken if self.findings else EvidenceEnds
        facts = self._take_facts(self.ledger[0], {**PLAN_FACTS, "source_sha256": str})
        if len(facts) < len(PLAN_FACTS) + 1:
            self._find(self._line(), "it does not say all that a run begins with")
            raise EvidenceBroken
        if facts["rehearsal"]:
            self.notes.append("this was a rehearsal on loopback: no model answered, and nothing was paid")
        source = facts["source_sha256"]
        if rows is None and source == digest_json(demo.STOCK):
            rows = demo.STOCK
        if rows is not None:
            del facts["source_sha256"]
            return Plan(rows, facts)
        self.notes.append("it is judged on the stock recorded in it; name the trusted one with --stock FILE")
        rows = self._read_recorded_rows()
        if rows and digest_json(rows) != source:
            self._find("2-request.json", "its stock is not the one that the ledger begins with")
            raise EvidenceBroken
        return Plan(rows, facts)

    def _read_recorded_rows(self) -> list[dict[str, Any]]:
        """Return the stock that the sender was told; none if the run did not come to that."""
        try:
            request = parse_json(self.files["2-request.json"] or b"")
            return demo.check_stock(parse_json(request["messages"][-1]["content"][0]["content"]))
        except (JsonError, KeyError, IndexError, TypeError):  # what is wrong with it is found later
            return []

    def write(self, name: str, data: bytes) -> None:
        """Compare a file with what the run must have written, if it came to that."""
        if self.files[name] is None and name not in self._unusable:
            self._check_early_end(self._next())
        self.check_file(name, data)

    def check_file(self, name: str, data: bytes) -> None:
        """Compare a file with what must stand in it."""
        self._due.add(name)
        stored = self.files[name]
        if stored == data:
            self.checks.append(f"{name}: {_PROOFS[name]}")
        elif stored is not None:
            finding = _compare_bytes(stored, data)
            self._find(f"{name} {finding.path}", finding.message)
        elif name not in self._unusable:
            self._find(name, "it is missing, though the records tell of it")

    def record(self, operation_id: str, state: str, **facts: Any) -> None:
        """Compare the ledger's next line with what the run must have recorded."""
        observed = self._next()
        if operation_id != RUN or state == CONFIRMED:
            self._check_early_end(observed)
        own = {field: observed.get(field) for field in ("time", "prev_sha256")}
        expected = {"operation_id": operation_id, "state": state, **facts, **own}
        for finding in list_differences(observed, expected):
            self._find(f"{self._line()} {finding.path}", finding.message)
        if (observed["operation_id"], observed["state"]) != (operation_id, state):
            raise EvidenceBroken
        self.records.append(expected)

    def send(self, step: Step, data: bytes) -> Outcome:
        """Return the outcome that the ledger's next line and the stored reply tell of."""
        observed = self._next()
        self._check_early_end(observed)
        facts = self._take_facts(observed, OUTCOME_FACTS)
        name = f"{step.number}-response.json"
        if "response_sha256" not in observed:
            return Outcome(**facts)
        body = self.files[name]
        if body is None:
            if name not in self._unusable:
                self._find(name, f"it is missing, though {self._line()} tells of it")
            raise EvidenceBroken
        if digest_bytes(body) != observed["response_sha256"]:
            self._find(name, f"its digest is not what {self._line()} says")
        return Outcome(body, **facts)

    def check_leftovers(self) -> None:
        """Find what is there though the course of the run does not come to it."""
        if self.closed and len(self.records) < len(self.ledger):
            self._find(self._line(), "it stands behind the run's last record")
        if self.closed and self.files[SUMS] is None and SUMS not in self._unusable:
            self._find(SUMS, "it is missing, though the run was closed")
        if self.findings:
            return  # which may be why the course did not come to the rest
        states = {record["operation_id"]: record["state"] for record in self.records}
        # The reply to an unclear request may have got its name before the record of it failed.
        unclear = [step for step in STEPS if states.get(step.operation_id) in (IN_FLIGHT, UNCLEAR)]
        replies = {f"{step.number}-response.json" for step in unclear}
        for name in (*FILES, *([] if self.closed else [SUMS])):
            if self.files[name] is None or name in self._due:
                continue
            if name in replies:
                self.notes.append(f"{name} is there, but no record vouches for it")
            else:
                self._find(name, "it is there, though the records do not come to it")

    def check_sums(self) -> None:
        """Compare SHA256SUMS, where it is, with the digests of the files."""
        sums = self.files[SUMS]
        if sums is None:
            return
        expected = {name: render_sums({name: self.files[name]}) for name in FILES}
        if sums == b"".join(expected.values()):
            self.checks.append(f"{SUMS}: {_PROOFS[SUMS]}")
            return
        lines = sums.splitlines(keepends=True)
        changed = [name for name, line in expected.items() if line and line not in lines]
        if self._unusable:
            return
        for name in changed:
            self._find(name, f"its digest is not what {SUMS} says")
        if not changed:
            self._find(SUMS, "it names files that are not there, or not each once and in order")

    def _next(self) -> dict[str, Any]:
        if len(self.records) == len(self.ledger):
            raise EvidenceEnds
        return self.ledger[len(self.records)]

    def _line(self) -> str:
        return f"{LEDGER} line {len(self.records) + 1}"

    def _take_facts(self, record: dict[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
        """Return the facts of a record that only the run could know, each of its kind."""
        facts = {name: record[name] for name in kinds if name in record}
        for name, fact in facts.items():
            sane = type(fact) is kinds[name] and (not isinstance(fact, str) or len(fact) <= _MOST_CHARACTERS)
            if not sane or (type(fact) is int and not 0 <= fact <= _MOST_TOKENS):
                self._find(f"{self._line()} {name}", f"observed {describe(fact)}, which no run records")
                raise EvidenceBroken
        return facts

    def _check_early_end(self, observed: dict[str, Any]) -> None:
        """Raise RunEnded for the record of a run that was interrupted, or could not write."""
        why = observed.get("why")
        if (
            observed["operation_id"] == RUN
            and observed["state"] in (FAILED, UNCLEAR)
            and isinstance(why, str)
        ):
            state, code = (UNCLEAR, EXIT_UNCLEAR) if is_unclear(self.records) else (FAILED, EXIT_FAILED)
            raise RunEnded(state, why, code)


def _compare_bytes(observed: bytes, expected: bytes) -> Finding:
    """Return where two files begin to differ: by JSON path where both are JSON, else by byte."""
    try:
        findings = list_differences(parse_json(observed), parse_json(expected))
    except JsonError:
        findings = []
    if findings:
        more = f"; and {len(findings) - 1:,} more" if len(findings) > 1 else ""
        return Finding(findings[0].path, findings[0].message + more)
    pairs = enumerate(zip(observed, expected))
    apart = next((at for at, (one, other) in pairs if one != other), min(len(observed), len(expected)))
    return Finding(f"byte {apart}", "observed other bytes than the run must have written")


def inspect_run(folder: str, rows: list[dict[str, Any]] | None = None) -> Inspector:
    """Return the Inspector that has judged an evidence folder again, from its files alone.

    `rows` is the trusted stock, see Inspector.go_through. Raises UnreadableError for what cannot be
    read, or is no run's folder.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UnreadableError(folder, explain(error), "name a run's folder") from error
    strangers = [name for name in names if name not in (*FILES, SUMS)]
    if strangers == names and not all(name.endswith(".part") for name in names):
        raise UnreadableError(folder, f"no {LEDGER} is in it", "name a run's folder")
    # 1. Read every file, follow no link, and check each line of the ledger and their chain.
    inspector = Inspector(folder)
    # 2. Go through the run again, and compare every file and record.
    inspector.go_through(rows)
    # 3. The report must be the one of this run, and nothing may be left over.
    if inspector.closed and not inspector.findings:
        inspector.check_file(REPORT, render_report(inspector).encode())
    inspector.check_leftovers()
    # 4. Every digest must be that of its file.
    inspector.check_sums()
    inspector.notes += [f"{show(name)} is no file of a run" for name in strangers]
    return inspector


# --- What a person sees of a run ---------------------------------------------


def list_requests(records: list[dict[str, Any]], default: str = "not planned") -> dict[str, dict[str, Any]]:
    """Return the last record of each of the three requests; `default` is the state of one without. Pure."""
    last = {record["operation_id"]: record for record in records}
    return {step.operation_id: last.get(step.operation_id, {"state": default}) for step in STEPS}


def render_effort(record: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return a request's tokens in/out and its seconds as text, as far as a record tells of them. Pure."""
    usage, elapsed = record.get("usage"), record.get("elapsed_milliseconds")
    tokens = usage and "/".join(str(usage.get(field, "?")) for field in _TOKEN_FIELDS)
    return tokens, None if elapsed is None else f"{elapsed / 1_000:.1f}"


def render_table(records: list[dict[str, Any]], default: str = "not planned") -> str:
    """Return a run's requests as a table of at most 80 columns, from its records. Pure."""
    table = [("request", "model", "state", "tokens", "s", "cost")]
    models = [show(records[0][step.asks]).rpartition("/")[2] if records else "-" for step in STEPS]
    for (operation_id, last), model in zip(list_requests(records, default).items(), models):
        tokens, seconds = (fact or "-" for fact in render_effort(last))
        model = model if len(model) <= 20 else f"{model[:19]}~"
        state = last["state"].replace("_", " ")
        table.append((operation_id, model, state, tokens, seconds, last.get("cost_usd", "-")))
    for end in records:
        if end["operation_id"] == RUN and end["state"] != PLANNED:
            each = compute_cost_per_accepted([parse_usd(end["cost_usd"])], int(end["state"] == CONFIRMED))
            table.append(("together", "", "", "", "", end["cost_usd"]))
            table.append(("per accepted answer", "", "", "", "", render_usd(each[0]) if each else "-"))
    return "\n".join(f"{a:20} {b:20} {c:11} {d:>10} {e:>5} {f:>9}".rstrip() for a, b, c, d, e, f in table)


def list_model_warnings(records: list[dict[str, Any]]) -> list[str]:
    """Return a line for each reply that came from another model than the one asked. Pure."""
    lines = []
    for step in STEPS:
        for record in records:
            if (record["operation_id"], record["state"]) == (step.operation_id, CONFIRMED):
                asked, answered = records[0].get(step.asks), record.get("model", "a model without a name")
                if asked != answered:
                    lines.append(f"warning: {step.operation_id}: asked for {asked}, answered by {answered}")
    return [shorten(show(line), 200) for line in lines]


# --- The report: a run on one page, without script or network -----------------

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --tint: #f6f8fa; --text: #1b1f24; --soft: #57606a;
  --line: #d0d7de; --good: #116329; --bad: #a40e26; --open: #7d4e00; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1318; --tint: #171c23; --text: #e6edf3;
  --soft: #9da7b3; --line: #3d444d; --good: #56d374; --bad: #ff9492; --open: #f0c05a; } }
@media print { :root { --page: #fff; --tint: #fff; --text: #000; --soft: #333; --line: #999;
  --good: #000; --bad: #000; --open: #000; } tr, li, svg { break-inside: avoid; } }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
header, .cards > li { background: var(--tint); border-left: .4rem solid; padding: .5rem 1rem; }
header > *, .cards > li > * { color: var(--text); }
h1, h2, h3, p, ol, ul, dl { margin: .4rem 0; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2rem; }
h3 { font-size: 1rem; }
.good { color: var(--good); } .bad { color: var(--bad); } .open { color: var(--open); }
.cards { display: grid; gap: 1rem; padding: 0; list-style: none;
  grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); }
dl { display: grid; grid-template-columns: auto 1fr; gap: 0 1rem; font-size: .9rem; }
dt { color: var(--soft); overflow-wrap: normal; } dd { margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; overflow-wrap: normal; }
th, td { padding: .35rem 1rem .35rem 0; font-weight: 400; text-align: left; vertical-align: top; }
thead th { color: var(--soft); } tbody tr { border-top: 1px solid var(--line); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { white-space: pre-wrap; } a { color: inherit; }
:focus-visible { outline: 3px solid var(--open); outline-offset: 2px; }
svg { display: block; width: 100%; max-width: 28rem; height: auto; font: 15px system-ui, sans-serif; }
rect { fill: var(--tint); stroke: currentColor; stroke-width: 2; }
path { fill: none; stroke: var(--soft); stroke-width: 2; }
text { fill: var(--text); } .state { fill: currentColor; font-weight: 600; text-anchor: end; }
"""
_TONES = {
    **dict.fromkeys((CONFIRMED, "built", "accepted", "agrees"), "good"),
    **dict.fromkeys((UNCLEAR, IN_FLIGHT), "open"),
    **dict.fromkeys((FAILED, "rejected", "broken", "interrupted", "differs"), "bad"),
}
_MOST_UNFOLDED = 50


def render_report(inspector: Inspector, base: str = "", notes: Sequence[str] = ()) -> str:
    """Return a run's report as one HTML page; `base` leads from the page to the run's folder. Pure.

    Every value is escaped. No script, image or outside address stands in it, and the policy in its
    head allows nothing but its own style sheet. It says the same whether the trusted stock is at
    hand or not, so that it can be rebuilt from the folder alone.
    """
    import binascii

    digest = binascii.b2a_base64(hashlib.sha256(_STYLE.encode()).digest(), newline=False).decode()
    verdict = inspector.verdict
    words = "The evidence does not hold" if inspector.findings else verdict.capitalize()
    rehearsal = inspector.plan is not None and inspector.plan.facts["rehearsal"]
    kind = "Rehearsal of a handoff: no model answered, nothing was paid" if rehearsal else "Handoff run"
    todo = f"<p><strong>Next:</strong> {_escape(_ENDS[verdict][1])}</p>\n" if verdict in _ENDS else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
        f" style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Handoff run: {words}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<header class="{_TONES[verdict]}">\n<p>{kind}</p>\n<h1>{_mark(verdict, words)}</h1>\n'
        f"<p>{_escape(inspector.end)}</p>\n{todo}</header>\n<main>\n"
        f"{_render_list('What does not hold', inspector.findings)}{_render_way(inspector)}"
        f"{_render_requests(inspector, base)}{_render_stock(inspector)}"
        f"{_render_list('What was checked, and what that proves', inspector.checks)}"
        f"{_render_list('Worth knowing', [*list_model_warnings(inspector.records), *notes])}"
        f"{_render_ledger(inspector.records)}{_render_files(inspector, base)}</main>\n</body>\n</html>\n"
    )


def _escape(value: Any) -> str:
    """Return text that is safe anywhere in HTML, with what could act on its reader made visible."""
    text = show(str(value))
    for mark, name in ("&", "amp"), ("<", "lt"), (">", "gt"), ('"', "quot"), ("'", "#39"):
        text = text.replace(mark, f"&{name};")
    return text


def _mark(state: str, words: str = "") -> str:
    """Return a state in words and in its colour."""
    return f'<strong class="{_TONES.get(state, "")}">{words or state.replace("_", " ")}</strong>'


def _render_list(heading: str, lines: Sequence[Any]) -> str:
    items = "".join(f"<li>{_escape(line)}</li>\n" for line in lines)
    return f"<h2>{heading}</h2>\n<ul>\n{items}</ul>\n" if lines else ""


def _render_facts(facts: Mapping[str, Any]) -> str:
    """Return names and values; a value that is no string is shown as JSON."""
    lines = []
    for name, fact in facts.items():
        text = fact if isinstance(fact, str) else render_json(fact)
        lines.append(f"<dt>{_escape(name)}</dt><dd>{_escape(shorten(text, 200))}</dd>\n")
    return f"<dl>\n{''.join(lines)}</dl>\n"


def _render_way(inspector: Inspector) -> str:
    """Return the way of the task as a picture: six stations, each with its state in words."""
    states = {record["operation_id"]: record["state"] for record in inspector.records}
    answered = states.get(HANDOFF.operation_id)
    judged = inspector.verdict if answered == CONFIRMED else None
    ways = {
        "The sender asks for the stock": states.get(TOOL_REQUEST.operation_id),
        "The tool answers": states.get(READ_STOCK),
        "The sender ends its turn": states.get(TOOL_RESULT.operation_id),
        "The application's checkpoint": "built" if answered else None,
        "The receiver answers": answered,
        "The validator judges": judged if judged in ("accepted", "rejected") else None,
    }
    picture, told = "", []
    for at, (name, state) in enumerate(ways.items()):
        words, top = (state or "not reached").replace("_", " "), 3 + at * 56
        told.append(f"{name}: {words}")
        picture += f'<path d="M210 {top - 16}v14m-5 -6l5 6l5 -6"/>\n' if at else ""
        picture += (
            f'<g class="{_TONES.get(state or "", "")}"><rect x="3" y="{top}" width="414" height="38" rx="8"/>'
            f'<text x="16" y="{top + 24}">{at + 1}. {name}</text>'
            f'<text class="state" x="404" y="{top + 24}">{words}</text></g>\n'
        )
    label = f'role="img" aria-label="{_escape("; ".join(told))}"'
    return f'<h2>The way of the task</h2>\n<svg viewBox="0 0 420 324" {label}>\n{picture}</svg>\n'


def _render_requests(inspector: Inspector, base: str) -> str:
    """Return a card for each request: what was asked, what came back, what it cost."""
    cards = ""
    for step, (operation_id, last) in zip(STEPS, list_requests(inspector.records).items()):
        tokens, seconds = render_effort(last)
        facts = {
            "model asked": inspector.plan and inspector.plan.models[step.asks],
            "model answered": last.get("model"),
            "HTTP status": last.get("http_status"),
            "stop reason": last.get("stop_reason"),
            "tokens in/out": tokens,
            "seconds": seconds,
            "dollars": last.get("cost_usd"),
            "request id": last.get("request_id"),
            "why": last.get("why"),
        }
        known = _render_facts({name: fact for name, fact in facts.items() if fact is not None})
        names = [f"{step.number}-{part}.json" for part in ("request", "response")]
        links = ", ".join(_render_link(base, name) for name in names if inspector.files[name] is not None)
        heading = f"<h3>{operation_id}: {_mark(last['state'])}</h3>"
        cards += f'<li class="{_TONES.get(last["state"], "")}">\n{heading}\n{known}<p>{links}</p>\n</li>\n'
    ends = [record for record in inspector.records[1:] if record["operation_id"] == RUN]
    together = "".join(
        f"<p>Together {end['cost_usd']} dollars at list price, computed from usage: no invoice.</p>\n"
        for end in ends
    )
    return f'<h2>Requests</h2>\n{together}<ol class="cards">\n{cards}</ol>\n'


def _render_stock(inspector: Inspector) -> str:
    """Return the stock beside the delivered and the recomputed shortages, differences first."""
    read = any(record["operation_id"] == READ_STOCK for record in inspector.records)
    rows = inspector.plan.rows if inspector.plan and read else []
    text, delivered = _read_answer(inspector.files["3-response.json"] or b"")
    prose = f"<p>The receiver said:</p>\n<pre>{_escape(shorten(text, 2_000))}</pre>\n"
    prose = prose if text and not delivered else ""
    agreeing: list[str] = []
    differing: list[str] = []
    for row in rows:
        shortage, observed = demo.compute_shortage(row), delivered.pop(row["sku"], MISSING)
        agrees = type(observed) is int and observed == shortage
        state = "agrees" if agrees else "not delivered" if observed is MISSING else "differs"
        cells = _render_row(row["sku"], state, observed, shortage, row["available"], row["target"])
        (agreeing if agrees else differing).append(cells)
    differing += [_render_row(sku, "differs", observed) for sku, observed in delivered.items()]
    if not rows:
        return ""
    shown = differing + agreeing if len(rows) <= _MOST_UNFOLDED else differing[:_MOST_UNFOLDED]
    folded = (differing + agreeing)[len(shown) :]
    html = f"<h2>Stock and answer</h2>\n<p>{len(agreeing):,} of {len(rows):,} rows agree.</p>\n{prose}"
    html += _render_table("Stock and answer", shown) if shown else ""
    if folded:
        table = _render_table("The rest of the stock", folded)
        html += f"<details>\n<summary>{len(folded):,} more rows</summary>\n{table}</details>\n"
    return html


def _read_answer(body: bytes) -> tuple[str, dict[str, Any]]:
    """Return the text of the receiver's reply, and {SKU: shortage} as far as rows can be read in it."""
    message, fault = _parse_reply(body)
    if fault or demo.find_reply_faults(message, HANDOFF.stop_reason):
        return "", {}
    try:
        answer = demo.parse_answer(message)
    except JsonError:
        answer = None
    rows = answer.get("rows") if isinstance(answer, dict) else None
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    delivered = {row["sku"]: row.get("shortage", MISSING) for row in rows if isinstance(row.get("sku"), str)}
    return demo.join_text(message), delivered


def _render_row(sku: str, state: str, delivered: Any, *numbers: int) -> str:
    shown = "-" if delivered is MISSING else shorten(render_json(delivered))
    cells = "".join(f'<td class="number">{_escape(cell)}</td>' for cell in (shown, *numbers))
    return f'<tr><th scope="row">{_escape(sku)}</th><td>{_mark(state)}</td>{cells}</tr>\n'


def _render_table(name: str, rows: list[str]) -> str:
    columns = ("delivered", "shortage", "available", "target")
    head = "".join(f'<th scope="col" class="number">{column}</th>' for column in columns)
    return (
        f'<div class="wide" role="region" aria-label="{name}" tabindex="0">\n<table>\n<thead><tr>'
        f'<th scope="col">SKU</th><th scope="col">answer</th>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(rows)}</tbody>\n</table>\n</div>\n"
    )


def _render_ledger(records: list[dict[str, Any]]) -> str:
    items = ""
    for record in records:
        facts = {name: fact for name, fact in record.items() if name not in ("operation_id", "state")}
        items += f"<li>{record['operation_id']}: {_mark(record['state'])}{_render_facts(facts)}</li>\n"
    return f"<h2>Ledger</h2>\n<ol>\n{items}</ol>\n" if items else ""


def _render_files(inspector: Inspector, base: str) -> str:
    lines = "".join(
        f"<dt>{_render_link(base, name)}</dt><dd>{len(data):,} bytes, SHA-256 {digest_bytes(data)}</dd>\n"
        for name, data in inspector.files.items()
        if data is not None and name not in (REPORT, SUMS)
    )
    return f"<h2>Files</h2>\n<dl>\n{lines}</dl>\n" if lines else ""


def _render_link(base: str, name: str) -> str:
    return f'<a href="{_escape(base + name)}">{name}</a>'


# --- Command line ------------------------------------------------------------


def _perform(
    terminal: Terminal, plan: Plan, key: Key, folder: str, announcement: str, kept: bool = True
) -> int:
    """Do a run, live or rehearsed, in a new folder; show its table, its verdict, and where it is kept."""

    def wait(passed: float) -> str | None:
        terminal.progress(f"  waiting, {passed:.0f} s")
        return "interrupted by Ctrl-C" if terminal.interrupted else None

    def send(data: bytes) -> Outcome:
        return send_request(plan.facts["endpoint"], key, data, plan.facts["timeout_seconds"], wait)

    terminal.redact = key.remove_from_text
    terminal.holding, terminal.must_be_heard = True, False  # a run ends by its own course alone
    umask = os.umask(0o077)
    try:
        recorder = Recorder(folder, key, send, terminal)
        terminal.write_err(announcement)
        code, verdict = _carry_out_whatever_comes(recorder, plan)
    except EvidenceError as error:  # not even the ledger could be begun
        raise RunError(EXIT_FAILED, folder, str(error)) from error
    finally:
        os.umask(umask)
    for line in list_model_warnings(recorder.records):
        terminal.write_err(line, "yellow")
    terminal.write_out(render_table(recorder.records))
    if code == EXIT_DONE:
        terminal.write_out(verdict, "green")
    if kept:
        terminal.write_err(f"evidence: {show(folder)}, to be read: {show(os.path.join(folder, REPORT))}")
        terminal.write_err(f"inspect it: python3 {terminal.name} --inspect {_quote(folder)}")
    if code != EXIT_DONE:
        raise RunError(code, folder, verdict)
    terminal.holding = False
    return code


def _quote(name: str) -> str:
    import shlex

    return show(shlex.quote(name))


def _carry_out_whatever_comes(recorder: Recorder, plan: Plan) -> tuple[int, str]:
    """Return the exit code and the verdict of a run, its evidence closed as far as that is possible."""
    try:
        code, verdict = carry_out(recorder, plan)
    except (KeyboardInterrupt, MemoryError) as error:  # by a handler of the program that calls this one
        if not is_unclear(recorder.records):
            raise
        return EXIT_UNCLEAR, f"ended by {type(error).__name__} with a request in flight"
    try:
        recorder.close()
    except EvidenceError as error:
        return code or EXIT_FAILED, f"{verdict}, but {error}"
    return code, verdict


def _run_live(terminal: Terminal, options: Any, folder: str) -> int:
    check_endpoint(options.endpoint)
    key = read_key(options.key_env)
    plan = _build_plan(options, options.endpoint, rehearsal=False)
    _check_own_words(key, plan, folder)
    misfit = explain_misfit(plan)
    if misfit:
        why = "an answer that is cut off is paid and worth nothing; a token is counted as 1.5 bytes"
        raise RefusedError(misfit, why, "raise --max-tokens as far as the model goes, or hand over less")
    ceiling = estimate_ceiling(plan)
    cost = (
        "unknown, a model has no list price" if ceiling is None else f"at most {render_usd(ceiling)} dollars"
    )
    announcement = (
        "up to three paid requests, none of them ever repeated:\n"
        f"  endpoint  {options.endpoint}\n"
        f"  key       from {options.key_env}\n"
        f"  sender    {options.sender} (two requests)\n"
        f"  receiver  {options.receiver} (one request)\n"
        f"  folder    {show(folder)}\n"
        f"  cost      {cost}: an estimate for planning, no guarantee"
    )
    return _perform(terminal, plan, key, folder, announcement)


def _check_own_words(key: Key, plan: Plan, folder: str) -> None:
    """Raise RefusedError for a key that stands in what this program writes itself, or was told to write."""
    first = {"time": "", "operation_id": "", "state": "", "prev_sha256": "0" * 64, **plan.facts}
    steps = [step.operation_id for step in STEPS]
    handoff = demo.render_handoff(demo.build_checkpoint(plan.rows))
    own = render_json(
        [folder, first, steps, build_tool_request(plan), handoff, *OUTCOME_FACTS, *FILES, _STYLE]
    )
    if key.remove_from_text(own) != own:
        why = "it stands in another option, or in words of the evidence, and would be taken out of both"
        raise RefusedError("this key cannot be used", why, "leave it out of the options, or use another key")


def _run_rehearsal(terminal: Terminal, options: Any, folder: str) -> int:
    key = Key(f"rehearsal-{os.urandom(16).hex()}")
    try:
        server = RehearsalServer(RehearsalModels(key.value))
    except OSError as error:
        why = "a rehearsal goes through HTTP on 127.0.0.1"
        raise RefusedError(
            f"the rehearsal cannot listen: {explain(error)}", why, "allow it to listen there"
        ) from error
    try:
        plan = _build_plan(options, server.url, rehearsal=True)
        announcement = f"rehearsal on {server.url}: nothing leaves this machine, nothing is paid"
        misfit = explain_misfit(plan)
        if misfit:
            announcement += f"\n  --live would refuse this: {misfit}"
        return _perform(terminal, plan, key, folder, announcement, kept=options.rehearse)
    finally:
        server.close()


def _run_checks(terminal: Terminal, options: Any) -> int:
    """Check this program, rehearse in a temporary folder, and inspect what that left there."""
    import tempfile

    failed = [check for _, check, passed in demo.run_self_test() if not passed]
    outcome = f"{len(failed)} failed, see checkpoint_demo.py self-test" if failed else "all passed"
    terminal.write_out(f"local checks: {outcome}", "red" if failed else "")
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            _run_rehearsal(terminal, options, run)
            inspector = inspect_run(run, options.stock or demo.STOCK)
    except RunError as error:
        error.next_step = "do it again with --rehearse, which keeps the folder"
        raise
    except OSError as error:
        raise demo.UnwritableError("the folder for temporary files", error) from error
    finally:
        terminal.must_be_heard = True
    terminal.write_out(
        f"inspected: {inspector.end if inspector.exit_code else 'every file and record holds'}"
    )
    return inspector.exit_code or (EXIT_REJECTED if failed else EXIT_DONE)


def _run_inspection(terminal: Terminal, options: Any) -> int:
    inspector = inspect_run(options.inspect, options.stock)
    if options.html is not None:
        report = render_report(inspector, _lead_to(options.inspect, options.html), inspector.notes)
        demo.write_new_files({options.html: report.encode()})
        terminal.write_err(f"wrote {show(options.html)}")
    if options.json:
        terminal.write_out(render_json(_list_inspection(inspector), 2))
        return inspector.exit_code
    terminal.write_out(render_table(inspector.records, _default_state(inspector)))
    for check in inspector.checks:
        terminal.write_out(f"ok: {check}")
    notes = [f"note: {note}" for note in inspector.notes]
    for line in (*list_model_warnings(inspector.records), *notes):
        terminal.write_err(line, "yellow")
    for finding in inspector.findings:
        terminal.write_err(str(finding), "red")
    if inspector.exit_code != EXIT_DONE:
        raise RunError(inspector.exit_code, options.inspect, inspector.end, inspector.verdict)
    terminal.write_out("the files agree with each other, which does not show who wrote them, or when")
    terminal.write_out(inspector.end, "green")
    return EXIT_DONE


def _list_inspection(inspector: Inspector) -> dict[str, Any]:
    requests = list_requests(inspector.records, _default_state(inspector))
    return {
        "verdict": inspector.verdict,
        "why": inspector.end,
        "exit_code": inspector.exit_code,
        "requests": {operation_id: last["state"] for operation_id, last in requests.items()},
        "findings": [{"path": finding.path, "message": finding.message} for finding in inspector.findings],
        "notes": inspector.notes,
        "checks": inspector.checks,
        "records": inspector.records,
    }


def _default_state(inspector: Inspector) -> str:
    return "unknown" if inspector.findings else "not planned"


def _lead_to(folder: str, page: str) -> str:
    """Return the relative URL of a folder from a page, with a slash at its end."""
    import urllib.parse

    try:
        way = os.path.relpath(folder, os.path.dirname(page) or ".").replace(os.sep, "/")
    except ValueError:  # on another drive
        return f"file:///{urllib.parse.quote(os.path.abspath(folder).replace(os.sep, '/'))}/"
    return "./" if way == "." else f"./{urllib.parse.quote(os.fsencode(way))}/"


def _build_plan(options: Any, endpoint: str, rehearsal: bool) -> Plan:
    facts = {
        "endpoint": endpoint,
        "sender": options.sender,
        "receiver": options.receiver,
        "max_tokens": options.max_tokens,
        "timeout_seconds": options.timeout,
        "rehearsal": rehearsal,
    }
    return Plan(options.stock or demo.STOCK, facts)


def _folder(text: str) -> str:
    import argparse

    if not text:
        raise argparse.ArgumentTypeError("expected the name of a folder")
    return text.rstrip(os.sep) or text


def _seconds(text: str) -> int:
    import argparse

    seconds = demo.positive_int(text)
    if seconds > _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"expected at most {_MOST_SECONDS} seconds, observed {text!r}")
    return seconds


def _variable(text: str) -> str:
    import argparse

    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,99}", text):  # it may be a key: it is not shown
        raise argparse.ArgumentTypeError("expected the name of an environment variable, not its value")
    return text


_RUNS = ("--live", "--rehearse")
_ALL_RUNS = (*_RUNS, "no mode")
# Option: (the modes it goes with, its metavar, what checks it, its default, what it is).
_OPTIONS: dict[str, tuple[tuple[str, ...], str, Callable[[str], Any], Any, str]] = {
    "--out": (_RUNS, "DIR", _folder, None, "a run's new folder (default: handoff-run, handoff-rehearsal)"),
    "--endpoint": (("--live",), "URL", str, ENDPOINT, "where requests go"),
    "--key-env": (("--live",), "NAME", _variable, KEY_ENVIRONMENT, "the variable that holds the key"),
    "--sender": (_ALL_RUNS, "MODEL", demo.model_id, SENDER_MODEL, "the model that begins"),
    "--receiver": (_ALL_RUNS, "MODEL", demo.model_id, demo.RECEIVER_MODEL, "the model that goes on"),
    "--max-tokens": (_ALL_RUNS, "N", demo.positive_int, demo.MAX_TOKENS, "the limit of each reply"),
    "--timeout": (_ALL_RUNS, "SECONDS", _seconds, TIMEOUT_SECONDS, "the limit of each request"),
    "--stock": ((*_ALL_RUNS, "--inspect"), "FILE", demo.read_stock, None, demo.STOCK_OPTION["help"]),
    "--html": (("--inspect",), "FILE", str, None, "write the report to a new file"),
}


def _parse_options(terminal: Terminal, arguments: list[str]) -> Any:
    about = (
        "Hand a task from one model to another, and keep the evidence. Without a mode: check this"
        " program, and rehearse a whole run in a temporary folder."
    )
    parser = demo.Parser(terminal, "", about, {})
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--rehearse", action="store_true", help="do a run on loopback, and keep its folder")
    mode.add_argument("--live", action="store_true", help="do a run: up to three paid requests")
    mode.add_argument("--inspect", metavar="DIR", help="judge a run again, from its files alone")
    parser.add_argument("--json", action="store_true", help="with --inspect: print one object instead")
    for option, (_, metavar, kind, default, words) in _OPTIONS.items():
        words = words if default is None else f"{words} (default: {default})"
        parser.add_argument(option, metavar=metavar, type=kind, help=words)
    options = parser.parse_args(arguments)
    given = vars(options)
    chosen = next((name for name in ("--rehearse", "--live") if given[name[2:]]), "no mode")
    chosen = chosen if options.inspect is None else "--inspect"
    for option, (modes, _, _, default, _) in _OPTIONS.items():
        name = option[2:].replace("-", "_")
        if given[name] is not None and chosen not in modes:
            raise UsageError(
                f"{option} does not go with {chosen}", f"it goes with {', '.join(modes)}", "leave it out"
            )
        if given[name] is None:
            given[name] = default
    if options.json and options.inspect is None:
        raise UsageError(f"--json does not go with {chosen}", "it goes with --inspect", "leave it out")
    return options


def _run(terminal: Terminal, arguments: list[str]) -> int:
    value = os.environ.get(KEY_ENVIRONMENT, "")
    if _KEY.fullmatch(value):  # from the first message on
        terminal.redact = Key(value).remove_from_text
    try:
        options = _parse_options(terminal, arguments)
    except demo.HelpShown:
        return EXIT_DONE
    if options.inspect is not None:
        return _run_inspection(terminal, options)
    if options.live:
        return _run_live(terminal, options, options.out or "handoff-run")
    if options.rehearse:
        return _run_rehearsal(terminal, options, options.out or "handoff-rehearsal")
    return _run_checks(terminal, options)


def main(argv: list[str] | None = None) -> int:
    """Run one mode and return its exit code; `argv` is what follows the program's name."""
    arguments = sys.argv[1:] if argv is None else argv
    return demo.run_command("run_handoff.py", lambda terminal: _run(terminal, arguments), argv is None)


if __name__ == "__main__":
    demo.open_missing_descriptors()
    sys.exit(main())
