#!/usr/bin/env python3
"""Hand a task from one model to another: three requests, each recorded before it leaves.

    $ python3 run_handoff.py --live
    ...
    accepted: 3 rows, total shortage 7
    $ python3 run_handoff.py --live
    run_handoff.py: refused: handoff-run already exists
      why: a run's folder is evidence and is never reused
      next: read it with --inspect handoff-run, or name a new one with --out DIR

Without --live nothing leaves this machine: alone it checks itself and rehearses, --rehearse keeps the
rehearsal's folder, --inspect DIR judges a folder again. No request is sent twice; what became of each is
told apart as planned, in flight, confirmed, failed or unclear.

Exit codes: 0 accepted; 1 the answer was rejected, or evidence does not hold; 2 usage, or a folder
that cannot be read; 3 refused, nothing sent; 4 failed or ended before it closed, evidence kept; 5 a
request is unclear; 70 a bug in this program; 130 interrupted with nothing in flight.
"""

from __future__ import annotations

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
    STOCK,
    Finding,
    HandoffError,
    JsonError,
    RefusedError,
    Terminal,
    UnreadableError,
    UsageError,
    build_checkpoint,
    build_result,
    describe,
    digest_bytes,
    digest_json,
    explain,
    flush_folder,
    join_text,
    list_differences,
    parse_json,
    render_count,
    render_handoff,
    render_json,
    shorten,
    show,
)

TYPE_CHECKING = False  # a type checker takes it for true; importing typing costs every start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Json = dict[str, Any]  # an object as it was parsed: a message, a request, a record, a row
    Rows = list[Json]
    Records = list[Json]

EXIT_FAILED = 4
EXIT_UNCLEAR = 5

ENDPOINT = "https://api.ofox.ai/anthropic/v1/messages"
SENDER_MODEL = "anthropic/claude-fable-5.2"
KEY_ENVIRONMENT = "OFOX_API_KEY"
LEDGER = "ledger.jsonl"
REPORT = "report.html"
SUMS = "SHA256SUMS"
HEADERS = {
    "anthropic-version": "2023-06-01",
    "content-type": "application/json",
    "accept-encoding": "identity",
    "user-agent": "run_handoff.py",
}
KEY_MARK = "[key removed]"  # stands where a key stood
TIMEOUT_SECONDS = 180
MOST_SECONDS = 99_999
REPLY_LIMIT_BYTES = 4 * 2**20
REPLY_LIMIT_ITEMS = 100_000  # a parsed item takes up to 250 bytes of memory, its text as few as 2

# --- Errors ------------------------------------------------------------------


class RunEnded(Exception):
    """A run goes no further; its arguments are the exit code that it ends with, and why."""


class EvidenceError(Exception):
    """A file of the evidence folder, the ledger among them, could not be written."""

    def __init__(self, name: str, error: Exception) -> None:
        reason = error.what if isinstance(error, HandoffError) else explain(error)
        super().__init__(f"{name} could not be written: {reason}")


class EvidenceEnds(Exception):
    """The records end before the run was closed (it was killed, say), or are not those of this run."""


class EvidenceBroken(Exception):
    """The evidence is not what any run leaves; its arguments are the place and the message."""


_NEW_RUN = "start a new run in a new folder, see --out"
# What a person is told of a run without an accepted answer, by its verdict: (why, what to do next).
_ENDS = {
    "rejected": (
        "only an answer that was proved right is accepted",
        f"compare the answer with the stock, in the run's {REPORT}, then {_NEW_RUN}",
    ),
    "broken": (
        "evidence is only worth something as a whole",
        "keep the folder as it is; unless --stock named another stock than the run's, treat every request"
        " in it as unclear, and look it up with the provider",
    ),
    "failed": (
        "a run that cannot go on is ended, and nothing is sent again",
        f"mend the cause, if there is one, then {_NEW_RUN}",
    ),
    "unclear": (
        "a request that may have been processed may have been billed",
        f"look it up with the provider by its time and its request id; only then {_NEW_RUN}",
    ),
    "interrupted": ("Ctrl-C was pressed", _NEW_RUN),
}
# What mends a failed run, by words of its end; the first that fit count.
_MENDS = {
    "nothing was sent": "look at the endpoint, the network and the proxy",
    "HTTP 401": "look at the key",
    "HTTP 403": "look at the key",
    "HTTP 404": "look at the endpoint and the models",
    "HTTP 429": "wait",
    "HTTP 529": "wait",
    "max_tokens": "give another --max-tokens",
}
_VERDICTS = {
    EXIT_DONE: "accepted",
    EXIT_REJECTED: "rejected",
    EXIT_FAILED: "failed",
    EXIT_UNCLEAR: "unclear",
    EXIT_INTERRUPTED: "interrupted",
}


class RunError(HandoffError):
    """A run has no accepted answer, or its evidence does not hold; what there is of it is kept."""

    def __init__(self, exit_code: int, folder: str, end: str, verdict: str = "") -> None:
        self.exit_code = exit_code
        self.verdict = verdict or _VERDICTS[exit_code]
        what, why = f"the run in {show(folder)}: {show(end)}", _ENDS[self.verdict][0]
        super().__init__(what, why, advise(self.verdict, end))


def advise(verdict: str, end: str) -> str:
    """Return what a person does next about a run without an accepted answer, "" about any other. Pure."""
    told, _, _ = end.partition(" (")  # in brackets a server may say anything
    mend = next((_MENDS[words] for words in _MENDS if words in told), "")
    if verdict == "failed" and mend:
        return f"{mend}, then {_NEW_RUN}"
    return _ENDS[verdict][1] if verdict in _ENDS else ""


# --- Tokens and money: whole micro-dollars -----------------------------------

# The list price in dollars a million tokens, which is micro-dollars a token: (input, output).
PRICES_MICRO_USD = {
    "anthropic/claude-fable-5.2": (8, 40),
    "anthropic/claude-fable-5.1": (10, 50),
    "anthropic/claude-opus-5.5": (4, 20),
    "claude-fable-5-2": (8, 40),
    "claude-fable-5-1": (10, 50),
    "claude-opus-5-5": (4, 20),
}
_TOKEN_FIELDS = ("input_tokens", "output_tokens")
_CACHE_FIELDS = ("cache_creation_input_tokens", "cache_read_input_tokens")
_MOST_COUNT = 10**9


def parse_usage(message: Json) -> dict[str, int]:
    """Return the token counts of a reply that are integers from 0 to 10^9; others are left out. Pure."""
    usage = message.get("usage")
    counts = (
        {field: usage.get(field) for field in _TOKEN_FIELDS + _CACHE_FIELDS} if type(usage) is dict else {}
    )
    return {field: n for field, n in counts.items() if type(n) is int and 0 <= n <= _MOST_COUNT}


def compute_cost(model: str, message: Json) -> int | None:
    """Return what a reply costs in micro-dollars at list price, or None where that is unknown.

    Unknown: a model without a price, missing or odd token counts, and any cache tokens, which have
    prices of their own. It is computed from usage and is no invoice. Pure.
    """
    price, usage, counts = PRICES_MICRO_USD.get(model), message.get("usage"), parse_usage(message)
    if price is None or usage is None or not counts.keys() >= set(_TOKEN_FIELDS):
        return None
    written = usage.get("cache_creation")  # the same once more, by how long it is kept
    cached = list(written.values()) if type(written) is dict else [written]
    cached += [usage.get(field) for field in _CACHE_FIELDS]
    if any(tokens is not None and (type(tokens) is not int or tokens) for tokens in cached):
        return None
    return counts["input_tokens"] * price[0] + counts["output_tokens"] * price[1]


def render_usd(micro_usd: int | None) -> str:
    """Return micro-dollars as dollars, e.g. 4816 -> 0.004816, and None -> unknown. Pure."""
    return "unknown" if micro_usd is None else f"{micro_usd // 10**6}.{micro_usd % 10**6:06}"


def parse_usd(text: str) -> int | None:
    """Return the micro-dollars that render_usd wrote. Raises ValueError for other texts. Pure."""
    return None if text == "unknown" else int(text.replace(".", ""))


def add_costs(costs: Sequence[int | None]) -> int | None:
    """Return costs together; None if one of them is unknown. Pure."""
    return None if None in costs else sum(cost or 0 for cost in costs)


def compute_cost_per_accepted(costs: list[int | None], accepted: int) -> tuple[int, int] | None:
    """Return what one accepted answer costs: (whole micro-dollars, what is left over of the sum).

    `costs` are those of all attempts in micro-dollars, the failed ones too. None where one is
    unknown, or nothing was accepted. Exact: sum(costs) == accepted * whole + rest. Pure.
    """
    total = add_costs(costs)
    return None if total is None or not accepted else divmod(total, accepted)


# --- The three requests ------------------------------------------------------

RUN = "run"
INTERRUPTED = "interrupted with nothing in flight"
CTRL_C = "interrupted by Ctrl-C"  # while a request was on its way
READ_STOCK = demo.OPERATION_ID


class Step:
    """One of the three requests: its operation and files, who is asked, and what the reply must be."""

    def __init__(
        self, number: int, operation_id: str, asks: str, stop_reason: str, tool: str | None = None
    ) -> None:
        self.operation_id, self.asks, self.stop_reason, self.tool = operation_id, asks, stop_reason, tool
        self.request_file, self.response_file = f"{number}-request.json", f"{number}-response.json"


TOOL_REQUEST = Step(1, "sender-tool-request", "sender", "tool_use", demo.OPERATION)
TOOL_RESULT = Step(2, "sender-tool-result", "sender", "end_turn")
HANDOFF = Step(3, "receiver-handoff", "receiver", "end_turn")
STEPS = (TOOL_REQUEST, TOOL_RESULT, HANDOFF)


class Plan:
    """What a run is asked for: `rows` is its stock, `facts` what the ledger's first record says.

    The facts are those of PLAN_FACTS; the digest is that of the rows, where there are any.
    """

    def __init__(self, rows: Rows, facts: Json) -> None:
        self.rows = rows
        self.facts = {**facts, "source_sha256": digest_json(rows)} if rows else facts


PLAN_FACTS = {
    "endpoint": str,
    "sender": str,
    "receiver": str,
    "max_tokens": int,
    "timeout_seconds": int,
    "rehearsal": bool,
    "source_sha256": str,
}


def build_tool_request(plan: Plan) -> Json:
    """Return the body of request 1: the sender may read the stock with its only tool. Pure."""
    return {
        "model": plan.facts["sender"],
        "max_tokens": plan.facts["max_tokens"],
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


def build_tool_result_request(first: Json, message: Json, rows: Rows) -> Json:
    """Return the body of request 2: request 1's session, its reply as it came, the tool's result. Pure."""
    turn = {"role": "assistant", "content": message["content"]}
    return {**first, "messages": [*first["messages"], turn, build_tool_result(message, rows)]}


def build_tool_result(message: Json, rows: Rows) -> Json:
    """Return the message with the result of the call in a message that fits step 1: the stock. Pure."""
    (call_id,) = (block["id"] for block in message["content"] if block["type"] == "tool_use")
    content = demo.canonical_json(rows).decode()
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": content}]}


def encode_json(value: Any) -> bytes:
    """Return the bytes in which requests and records are written: compact ASCII JSON. Pure."""
    return render_json(value).encode()


def find_session_changes(request: Json, first: Json, content: list[Json], results: Json) -> list[Finding]:
    """Return what keeps a request from going on with a session.

    The session replay check; the original is the session's first request, the content that answered
    it, and the message with the tool's result. Pure.
    """
    turn = {"role": "assistant", "content": content}
    changes, _ = demo.compare_sessions(request, {**first, "messages": [*first["messages"], turn, results]})
    return [Finding(f"{label}, {one.path}", one.message) for label in changes for one in changes[label]]


def estimate_answer_tokens(rows: Rows) -> int:
    """Return how many tokens the right answer for stock rows takes, estimated high: 2 for 3 bytes. Pure."""
    return -(-len(encode_json(build_result(rows))) * 2 // 3)  # the recorded answer: 107 bytes, 67 tokens


def explain_overlong(plan: Plan) -> str:
    """Return why a reply's token limit cannot hold the right answer, "" if it can. Pure."""
    tokens, limit = estimate_answer_tokens(plan.rows), plan.facts["max_tokens"]
    if tokens <= limit:
        return ""
    return (
        f"{render_count(plan.rows, 'row')}: the answer takes about {tokens:,} tokens, the limit is {limit:,}"
    )


def explain_oversize(rows: Rows) -> str:
    """Return why the right answer for stock rows is larger than any reply that is read, or "". Pure."""
    answer = encode_json(build_result(rows))
    reply = encode_json(answer.decode())  # in a reply it stands as a string
    sizes = {"bytes": (len(reply), REPLY_LIMIT_BYTES), "items": (count_items(reply), REPLY_LIMIT_ITEMS)}
    for unit, (size, limit) in sizes.items():
        most = limit - 4_096  # leaves room for what else stands in a reply
        if size > most:
            return f"{render_count(rows, 'row')}: the answer takes {size:,} {unit}, at most {most:,} are read"
    return ""


def estimate_ceiling(plan: Plan) -> int | None:
    """Return a planning ceiling of a run's cost in micro-dollars, None where a price is unknown.

    A token is at least one byte of the request, a reply has at most max_tokens, and 1,000 tokens a
    request allow for what the API adds. A ceiling for planning, no guarantee. Pure.
    """
    limit = plan.facts["max_tokens"]
    first = len(encode_json(build_tool_request(plan)))
    second = first + limit + len(demo.canonical_json(plan.rows))
    third = len(render_handoff(build_checkpoint(plan.rows)).encode())
    costs: list[int | None] = []
    for step, size in zip(STEPS, (first, second, third)):
        price = PRICES_MICRO_USD.get(plan.facts[step.asks])
        costs.append(None if price is None else (size + 1_000) * price[0] + limit * price[1])
    return add_costs(costs)


# --- What became of a request ------------------------------------------------

PLANNED = "planned"
IN_FLIGHT = "in_flight"
CONFIRMED = "confirmed"
FAILED = "failed"
UNCLEAR = "unclear"

_REDIRECTS = (301, 302, 303, 307, 308)
_REFUSALS = {*range(400, 500)} - {408}
OUTCOME_FACTS = {
    "opened": bool,  # the connection was open, so that the request may have arrived
    "http_status": int,
    "request_id": str,
    "retry_after": str,  # when the server would take another request
    "content_encoding": str,  # what the body was decoded from
    "key_removed": bool,
    "elapsed_milliseconds": int,
    "trouble": str,  # what broke
}


class Outcome:
    """What came of sending one request, as far as this side can know.

    `body` is what came back, without the key, or None if no reply began. `facts` is what the ledger
    says of it: those of OUTCOME_FACTS that are known and not as usual (opened, no key removed), and the
    body's digest.
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
    error, retry_after = demo.describe_api_error(reply), outcome.facts.get("retry_after")
    said = f" ({error})" if error else ""
    wait = f"; retry-after: {retry_after}" if retry_after else ""
    about = "no reply" if status is None else f"HTTP {status}"
    if status in _REDIRECTS:
        return FAILED, f"{about}: a redirect, which is not followed", None
    if status in _REFUSALS:
        return FAILED, f"{about}: the request was refused{said}{wait}", None
    if status == 529 and said and not trouble:
        return FAILED, f"{about}: the request was not started{said}{wait}", None
    # 3. A whole message came back.
    if status == 200 and not trouble:
        if not fault:
            return CONFIRMED, "", reply
        return UNCLEAR, f"{about} without a whole message: {fault}", None
    # 4. It may have been processed.
    return UNCLEAR, f"{about}: {trouble or 'the request may have been processed'}{said}", None


def count_items(body: bytes) -> int:
    """Return how many opening brackets and commas a text has, a measure of what it parses to. Pure."""
    return sum(map(body.count, (b"{", b"[", b",")))


def _parse_reply(body: bytes) -> tuple[Any, str]:
    """Return a reply's value, and why it is no whole message ("" if it is one)."""
    if count_items(body) > REPLY_LIMIT_ITEMS:
        return None, f"more than {REPLY_LIMIT_ITEMS:,} items, which no model's answer has"
    try:
        reply = parse_json(body, demo.REPLY_DEPTH_LIMIT)
    except JsonError as error:
        return None, _explain_json_error(error, body)
    faults = demo.find_message_faults(reply)
    return reply, str(faults[0]) if faults else ""


def _explain_json_error(error: JsonError, text: bytes) -> str:
    """Return why a text is no strict JSON, without the interpreter's words: they differ with its version."""
    if not error.message.startswith("no JSON"):
        return str(error)
    begin = shorten(text[:72].decode("utf-8", "replace"), 24)
    return f"no JSON; it begins with {describe(begin)}" if text else "no JSON; it is empty"


def find_misfits(step: Step, message: Json, key_removed: bool) -> list[Finding]:
    """Return why a confirmed message cannot be used in its step. Pure."""
    misfits = demo.find_reply_faults(message, step.stop_reason, step.tool)
    if step is TOOL_REQUEST and key_removed and KEY_MARK in render_json(message["content"]):
        misfits.append(Finding("content", "the key stood in what must be sent back unchanged"))
    return misfits


def is_unclear(records: Records) -> bool:
    """Return whether a request in a ledger may have been processed without a known outcome. Pure."""
    states = [record["state"] for record in records]
    return UNCLEAR in states or states[-1:] == [IN_FLIGHT]


def find_early_code(records: Records) -> int:
    """Return the exit code of a run that had to end early, behind these records. Pure."""
    return EXIT_UNCLEAR if is_unclear(records) else EXIT_FAILED


def sum_costs(records: Records) -> int | None:
    """Return what the requests in a ledger cost together in micro-dollars, None if one is unknown.

    So it is where a request is unclear, which may have been billed. Pure.
    """
    costs = [parse_usd(record["cost_usd"]) for record in records if "cost_usd" in record]
    return None if is_unclear(records) else add_costs(costs)


def find_ends(records: Records) -> Records:
    """Return the record that closes a run, in a list that is empty if there is none. Pure."""
    return [record for record in records[1:] if record["operation_id"] == RUN]


# --- The run: one course, for doing it and for inspecting it ------------------


def carry_out(evidence: Recorder | Inspector, plan: Plan) -> tuple[int, str]:
    """Go through a whole run, close it, and return its exit code and its end in words.

    The Recorder writes down what happens here; the Inspector takes the very same calls and compares
    them with what was written. EvidenceEnds and EvidenceBroken come from an Inspector only.
    """
    evidence.record(RUN, PLANNED, **plan.facts)
    try:
        end = _go_through(evidence, plan)
        evidence.record(RUN, CONFIRMED, cost_usd=render_usd(sum_costs(evidence.records)))
        return EXIT_DONE, end
    except RunEnded as error:
        code, why = error.args
    except EvidenceError as error:
        code, why = find_early_code(evidence.records), str(error)
    state = UNCLEAR if code == EXIT_UNCLEAR else FAILED
    try:
        evidence.record(RUN, state, why=why, cost_usd=render_usd(sum_costs(evidence.records)))
    except EvidenceError as error:
        code = find_early_code(evidence.records)
        why = why if why == str(error) else f"{why}; and {error}"
    return code, why


def _go_through(evidence: Recorder | Inspector, plan: Plan) -> str:
    # 1. The sender asks for the stock.
    first = build_tool_request(plan)
    reply = _ask(evidence, plan, TOOL_REQUEST, first)
    # 2. The application reads it.
    results = build_tool_result(reply, plan.rows)
    call_id = results["content"][0]["tool_use_id"]
    evidence.record(READ_STOCK, PLANNED, tool_call_id=call_id)
    evidence.record(READ_STOCK, CONFIRMED, tool_call_id=call_id, result_sha256=plan.facts["source_sha256"])
    # 3. The same session goes on, or nothing is sent.
    second = build_tool_result_request(first, reply, plan.rows)
    changes = find_session_changes(parse_json(encode_json(second)), first, reply["content"], results)
    _end_if(changes, "request 2 does not go on with the session")
    _ask(evidence, plan, TOOL_RESULT, second)
    # 4. What is handed over comes from the application, not from the session.
    checkpoint = build_checkpoint(plan.rows)
    handoff = render_handoff(checkpoint)
    evidence.write("checkpoint.json", f"{render_json(checkpoint, 2)}\n".encode())
    evidence.write("handoff.txt", handoff.encode())
    # 5. A fresh session of the receiver answers, and the validator judges.
    third = demo.build_receiver_request(handoff, plan.facts["receiver"], plan.facts["max_tokens"])
    answered = _ask(evidence, plan, HANDOFF, third)
    try:
        result = demo.parse_answer(answered)
        findings = demo.validate_result(result, plan.rows)
    except JsonError as error:
        text = join_text(answered).encode("utf-8", "replace")
        findings = [Finding("$", _explain_json_error(error, text))]
    _end_if(findings, "the answer was rejected", EXIT_REJECTED)
    evidence.write("result.json", f"{render_json(result, 2)}\n".encode())
    return demo.render_acceptance(plan.rows)


def _ask(evidence: Recorder | Inspector, plan: Plan, step: Step, body: Json) -> Json:
    """Send one request and return its message; each thing is durable before the next is done."""
    data = encode_json(body)
    evidence.write(step.request_file, data)
    evidence.record(step.operation_id, PLANNED, request_sha256=digest_bytes(data))
    evidence.record(step.operation_id, IN_FLIGHT)
    outcome = evidence.send(step, data)
    if outcome.body is not None:
        try:
            evidence.write(step.response_file, outcome.body)
        except EvidenceError as error:  # nothing is done with a reply that is not on disk
            known = {name: outcome.facts.get(name) for name in ("request_id", "elapsed_milliseconds")}
            outcome = Outcome(**known, trouble=f"HTTP {outcome.http_status} came, but {error}")
    state, why, message = judge_outcome(outcome)
    if state != CONFIRMED:
        evidence.record(step.operation_id, state, **outcome.facts, why=why)
        code = EXIT_INTERRUPTED if outcome.trouble == CTRL_C else EXIT_FAILED
        raise RunEnded(EXIT_UNCLEAR if state == UNCLEAR else code, f"{step.operation_id}: {why}")
    reply: Json = message
    named = [field for field in ("model", "stop_reason") if isinstance(reply.get(field), str)]
    facts = {field: shorten(reply[field], 200) for field in named}
    cost = render_usd(0 if plan.facts["rehearsal"] else compute_cost(plan.facts[step.asks], reply))
    evidence.record(
        step.operation_id, state, **outcome.facts, **facts, usage=parse_usage(reply), cost_usd=cost
    )
    _end_if(find_misfits(step, reply, outcome.key_removed), step.operation_id)
    return reply


def _end_if(findings: list[Finding], about: str, code: int = EXIT_FAILED) -> None:
    """Raise RunEnded if anything was found; three findings are told, and how many more there are."""
    if findings:
        more = f"; and {len(findings) - 3:,} more" if len(findings) > 3 else ""
        raise RunEnded(code, f"{about}: {'; '.join(map(str, findings[:3]))}{more}")


# --- Transport: one request, one connection, one time limit -------------------

_LOOPBACK = r"localhost|::1|127(\.(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])){3}"


class Key:
    """The API key, and how it is kept out of everything that is stored or shown."""

    def __init__(self, value: str) -> None:
        self.value = value

    def _build_pattern(self) -> bytes:
        # In JSON any character may be written as an escape, and JSON may stand inside JSON once more.
        pattern, behind_run = "", False
        for piece in re.findall(r"\\+|.", self.value):
            escaped, size = f"u00(?i:{ord(piece[0]):02x})", len(piece)
            if piece[0] == "\\":  # a run of them is doubled as a whole, with those of what follows
                pattern += rf"(?:\\|{escaped}){{{size},{9 * size + 8}}}"
            elif behind_run:
                pattern += f"(?:{re.escape(piece)}|{escaped})"
            else:
                pattern += rf"(?:\\{{0,8}}{re.escape(piece)}|\\{{1,8}}{escaped})"
            behind_run = piece[0] == "\\"
        return pattern.encode()

    def remove_from(self, data: bytes) -> bytes:
        """Return the bytes with KEY_MARK wherever the key stood, plain or JSON-escaped."""
        if b"\\" not in data and self.value.encode() not in data:  # no escape begins without a backslash
            return data  # which saves milliseconds of compiling
        return re.sub(self._build_pattern(), KEY_MARK.encode(), data)

    def remove_from_text(self, text: str) -> str:
        """Return the text with KEY_MARK wherever the key stood."""
        return self.remove_from(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def is_key(value: str) -> bool:
    """Return whether a value can be a key: 16 or more printable ASCII characters without spaces. Pure."""
    return len(value) >= 16 and value.isascii() and value.isprintable() and " " not in value


def read_key(variable: str) -> Key:
    """Return the key that an environment variable holds. Raises RefusedError, which never shows it."""
    value = os.environ.get(variable, "")
    if is_key(value):
        return Key(value)
    what, why = f"no key in {variable}", "the environment variable is not set, or empty"
    if value:
        what = f"the key in {variable} cannot be used"
        why = "a key is 16 or more printable ASCII characters without spaces"
    next_step = f"set it with: export {variable}='<its key>', or name another variable and its endpoint"
    raise RefusedError(what, why, f"{next_step} with --key-env and --endpoint")


def check_endpoint(url: str) -> None:
    """Raise RefusedError unless the key may be sent to a URL: https, or http on loopback."""
    import urllib.parse

    fault = ""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:  # a UnicodeError is one
        fault = "it is no URL"
    else:
        named = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
        if not re.fullmatch("[!-~]{1,2000}", url) or "\\" in url or not host or port == 0:
            fault = "it is no URL with a host, in at most 2,000 characters of printable ASCII"
        elif parts.netloc.lower() != named or parts.fragment:
            fault = (
                "a user name or a fragment stands in it, or its host is not written as one name or address"
            )
        elif parts.scheme != "https" and not (parts.scheme == "http" and re.fullmatch(_LOOPBACK, host)):
            fault = "the key would go over a network unencrypted"
    if fault:
        # In front of an @ a password may stand; what is no URL may be a key.
        shown = f" {show(url)}" if "://" in url and "@" not in url else ""
        next_step = "name an https URL, or http on 127.0.0.1 or localhost"
        raise RefusedError(
            f"the endpoint{shown}: {fault}", "a key goes only where nobody listens in", next_step
        )


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
        self.unsent = ""  # why not all of the request was sent
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
        try:
            if self._socket is not None:
                # Not the SSL socket's own shutdown, which takes its state away under the reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:  # it is closed already
            return

    def run(self, url: str, headers: dict[str, str], data: bytes, timeout_seconds: float) -> None:
        """Send the request and receive the reply; what breaks becomes `trouble`. Runs in a thread."""
        import http.client
        import urllib.error
        import urllib.request

        try:
            request = urllib.request.Request(url, data, headers)  # a request with data is a POST
            with _build_opener(self).open(request, timeout=timeout_seconds + 1) as response:
                with self._lock:
                    if self._given_up:  # what was cut off may look like the end of the headers
                        raise _TransportError("given up")
                    self.headers, self.http_status = response.headers, response.status
                _receive(response, self.body)
                if response.status == 200:  # an answer to a part of a request
                    self.trouble = self.trouble or self.unsent
        except (OSError, http.client.HTTPException, ValueError, _TransportError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            self.trouble = self.trouble or self.unsent or explain(reason)
        except BaseException as error:
            self.bug = error
        finally:
            self.done.set()


def _build_opener(attempt: Attempt) -> Any:
    """Return a urllib opener without redirects, retries or cookies, whose connection is watched."""
    import http.client
    import ssl
    import urllib.request

    class Response(http.client.HTTPResponse):
        def begin(self) -> None:
            super().begin()
            this: Any = self  # status and headers, as http.client sets them
            while 102 <= this.status <= 199:  # an interim reply; http.client itself skips only 100
                this.headers = None  # else begin takes the reply for begun, and returns
                super().begin()

    class Connection(http.client.HTTPConnection):
        response_class = Response

        def send(self, data: Any) -> None:
            if attempt.unsent:
                return
            try:
                attempt.pass_on(self, super().send, data)
            except (ConnectionError, ssl.SSLError) as error:
                if not attempt.opened:
                    raise
                attempt.unsent = explain(error)  # the server closed early, and its reply may say why

    class TlsConnection(Connection, http.client.HTTPSConnection):
        pass

    class Handler(urllib.request.AbstractHTTPHandler):
        http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Connection, request)

        def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(TlsConnection, request, context=ssl.create_default_context())

    opener = urllib.request.OpenerDirector()
    proxies = {scheme: proxy for scheme, proxy in urllib.request.getproxies().items() if scheme == "https"}
    opener.add_handler(urllib.request.ProxyHandler(proxies))
    opener.add_handler(Handler())
    return opener


def _receive(response: Any, body: bytearray) -> None:
    """Append a reply's body as it comes, so that what came is kept. Raises _TransportError if it is cut.

    http.client reads the head. Its own reading of bodies takes a missing last chunk, and on older
    versions a missing rest, for the end.
    """
    stream, coding = response.fp, response.headers.get("transfer-encoding", "")
    if coding.strip().lower() == "chunked":
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
        raise _TransportError("the reply's length is not clear")
    if response.length != 0:  # http.client sets 0 for a status that has no body
        _receive_bytes(stream, body, int(lengths.pop()) if lengths else float("inf"))


def _receive_chunk_size(stream: Any) -> int:
    size = re.fullmatch(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n", stream.readline(1_026))
    if not size:
        raise _TransportError("the reply was cut short before a chunk")
    return int(size.group(1), 16)


def _receive_bytes(stream: Any, body: bytearray, count: float) -> None:
    """Append `count` bytes; if that is infinite, all up to the end of the connection."""
    while count:
        piece = stream.read1(int(min(count, 65_536)))
        if not piece:
            if count == float("inf"):
                return
            raise _TransportError(f"the reply was cut short: {count:,} bytes are missing")
        count -= len(piece)
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
    wait: Callable[[float], str] = lambda _: "",
) -> Outcome:
    """Send one request, once, and return what came of it within the time limit in seconds.

    `wait` is called ten times a second with the seconds that have passed; a text that it returns is
    the reason to give up at once. Certificates are verified, redirects are not followed, at most
    4 MiB are received, and the key is taken out of what came. What breaks is told by the outcome; only
    bugs and interrupts are raised.
    """
    import threading

    attempt, headers = Attempt(), {"x-api-key": key.value, **HEADERS}
    thread = threading.Thread(target=attempt.run, args=(url, headers, data, timeout_seconds), daemon=True)
    begun, why = time.monotonic(), ""
    try:
        thread.start()
        while not why and not attempt.done.wait(0.1):
            passed = time.monotonic() - begun
            why = wait(passed) or (
                f"time-out after {timeout_seconds:g} s" if passed >= timeout_seconds else ""
            )
        if why:
            attempt.give_up(why)
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
    encoding = key.remove_from_text(header("content-encoding")).strip().lower()
    if encoding in ("gzip", "x-gzip"):
        decoded, is_whole = _gunzip(body)
        body = decoded or body
        trouble = trouble or ("" if is_whole else "the reply's gzip encoding is broken, or holds too much")
    elif encoding not in ("", "identity"):
        trouble = trouble or f"the reply has the encoding {encoding!r}, which was not asked for"
    kept = key.remove_from(body)
    if _holds_in_pieces(kept, key):
        kept, trouble = KEY_MARK.encode(), trouble or "the key stood in pieces in its text: it is not kept"
    return Outcome(
        kept if attempt.http_status is not None else None,
        opened=attempt.opened,
        http_status=attempt.http_status,
        request_id=shorten(show(key.remove_from_text(header("request-id")))),
        retry_after=shorten(show(key.remove_from_text(header("retry-after")))),
        content_encoding="gzip" if decoded else None,
        key_removed=kept != body,
        elapsed_milliseconds=elapsed_milliseconds,
        trouble=shorten(show(key.remove_from_text(trouble)), 200),
    )


def _holds_in_pieces(body: bytes, key: Key) -> bool:
    """Return whether the key stands in a message's texts once they are joined."""
    reply, fault = _parse_reply(body)
    blocks = [] if fault else [block for block in reply["content"] if block["type"] == "text"]
    joined = "".join(block["text"] for block in blocks if isinstance(block.get("text"), str))
    return key.remove_from_text(joined) != joined


def _gunzip(data: bytes) -> tuple[bytes, bool]:
    """Return as much as a gzip stream gives, up to the limit, and whether that is all of it."""
    import zlib

    decoder = zlib.decompressobj(wbits=31)
    try:
        text = decoder.decompress(data, REPLY_LIMIT_BYTES + 1)
    except zlib.error:
        return b"", False
    is_whole = decoder.eof and not decoder.unused_data and len(text) <= REPLY_LIMIT_BYTES
    return text[:REPLY_LIMIT_BYTES], is_whole


# --- The evidence folder and its ledger --------------------------------------

_JUDGED = "judged again, from the bytes that the records name"
# The files of a run, and what is shown by one that is, byte for byte, what the run must have written.
FILES = {
    TOOL_REQUEST.request_file: "built again, it is what this run must have sent",
    TOOL_REQUEST.response_file: _JUDGED,
    TOOL_RESULT.request_file: "built again, it goes on with the session of request 1 and its reply unchanged",
    TOOL_RESULT.response_file: _JUDGED,
    HANDOFF.request_file: "built again, it holds the handoff prompt and nothing of the sender's session",
    HANDOFF.response_file: _JUDGED,
    "checkpoint.json": "built again from the stock, it is the one that the stock allows",
    "handoff.txt": "built again from the checkpoint",
    LEDGER: "each record is the one that this run must have left, and names the digest of the one before",
    "result.json": "every shortage is what the stock gives, whichever model worked it out",
    REPORT: "built again, it tells of this run",
}


class Recorder:
    """A run's evidence as it is written: files, the ledger, and the requests themselves.

    Everything is durable when a call returns, and EvidenceError says that it is not. `send` takes a
    request's body and returns its Outcome. Ctrl-C is obeyed before anything is planned or sent.
    Raises RefusedError, with nothing changed, if the folder exists or cannot be made.
    """

    def __init__(self, folder: str, key: Key, send: Callable[[bytes], Outcome], terminal: Terminal) -> None:
        self.folder = folder
        self.records: Records = []
        self._key, self._send, self._terminal = key, send, terminal
        self._prev_sha256 = "0" * 64  # of the ledger's last line
        _make_run_folder(folder)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._ledger = os.open(os.path.join(folder, LEDGER), flags, 0o600)
            flush_folder(folder)
        except OSError as error:
            raise EvidenceError(LEDGER, error) from error

    def write(self, name: str, data: bytes) -> None:
        """Write a file beside its place, flush it, name it, flush the folder.

        The name overwrites nothing: the folder is fresh, and this process's own.
        """
        temporary = os.path.join(self.folder, f".{name}.part")
        try:
            demo.write_flushed(temporary, data, 0o600)
            os.rename(temporary, os.path.join(self.folder, name))
            flush_folder(self.folder)
        except OSError as error:
            demo.discard(temporary)
            raise EvidenceError(name, error) from error

    def record(self, operation_id: str, state: str, **facts: Any) -> None:
        """Append one line, without the key, to the ledger and flush it; a line that fails is taken back.

        Raises RunEnded instead where Ctrl-C was pressed before something is planned or sent.
        """
        if self._terminal.interrupted and operation_id != RUN and state in (PLANNED, IN_FLIGHT):
            raise RunEnded(EXIT_INTERRUPTED, INTERRUPTED)
        seconds, milliseconds = divmod(time.time_ns() // 10**6, 1_000)
        now = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03}Z"
        record = {"time": now, "operation_id": operation_id, "state": state, **facts}
        line = self._key.remove_from(encode_json({**record, "prev_sha256": self._prev_sha256}))
        try:
            size_bytes = os.fstat(self._ledger).st_size
            try:
                demo.write_all(lambda rest: os.write(self._ledger, rest), line + b"\n")
                demo.flush(self._ledger)
            except OSError:
                os.ftruncate(self._ledger, size_bytes)
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
        if not find_ends(self.records):
            return
        try:
            inspector = Inspector(self.folder)
            inspector.go_through()
            report = render_report(inspector).encode()
        except (UnreadableError, MemoryError) as error:
            raise EvidenceError(REPORT, error) from error
        self.write(REPORT, report)
        self.write(SUMS, render_sums({**inspector.files, REPORT: report}))


def _make_run_folder(folder: str) -> None:
    """Make a run's folder, which is the lock as well: of many processes one wins."""
    try:
        demo.make_folder(folder, 0o700)
    except FileExistsError as error:
        why = "a run's folder is evidence and is never reused"
        next_step = f"read it with --inspect {show(folder)}, or name a new one with --out DIR"
        raise RefusedError(f"{show(folder)} already exists", why, next_step) from error
    except OSError as error:
        what = f"{show(folder)} cannot be made: {explain(error)}"
        why = "a run's evidence needs a new folder of its own"
        raise RefusedError(what, why, "name another one with --out DIR") from error


def render_sums(files: Mapping[str, bytes | None]) -> bytes:
    """Return what `sha256sum -c` reads: a digest and a name a line, for the files that are there. Pure."""
    lines = [f"{digest_bytes(data)}  {name}\n" for name, data in files.items() if data is not None]
    return "".join(lines).encode()


def read_evidence(folder: str, name: str) -> bytes | None:
    """Return a file of an evidence folder, None if it is not there. No link is followed.

    Raises EvidenceBroken for what is no regular file or is longer than any that a run stores
    (4 MiB for a reply and for the ledger, 64 MiB for another file); UnreadableError for what cannot be read.
    """
    path = os.path.join(folder, name)
    is_small = "response" in name or name == LEDGER
    limit_bytes = REPLY_LIMIT_BYTES if is_small else demo.INPUT_LIMIT_BYTES
    flags = sum(getattr(os, flag, 0) for flag in ("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise EvidenceBroken(name, "observed no regular file, expected one")
        with open(os.open(path, flags), "rb") as file:  # O_NOFOLLOW: a link may have come there meanwhile
            size_bytes = os.fstat(file.fileno()).st_size
            data = (
                file.read(min(size_bytes, limit_bytes) + 1) or b""
            )  # read(n) takes n bytes of memory at once
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(path, explain(error)) from error
    if len(data) > limit_bytes:
        raise EvidenceBroken(name, f"observed more than {limit_bytes:,} bytes, which no run stores")
    return data


# --- The rehearsal: both models, played on loopback --------------------------


class RehearsalModels:
    """Plays the sender and the receiver, and refuses what the real API refuses.

    It remembers the session that it began, and lets it go on only as it was.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._begun: Json = {}  # the request that was answered with a tool call
        self._content: list[Json] = []  # what it was answered with

    def answer(self, headers: Mapping[str, str], data: bytes) -> tuple[int, Json]:
        """Return (HTTP status, reply body) for a request; header names are in lower case."""
        if headers.get("x-api-key") != self._key:
            return _refuse(401, "authentication_error", "x-api-key: missing or unknown")
        try:
            request = parse_json(data)
            fault = self._find_fault(headers, request)
            stop_reason, content = ("", []) if fault else self._play(request)
        except (JsonError, TypeError, KeyError, AttributeError) as error:  # no JSON, or of another shape
            fault = f"the request is not in the expected form: {error}"
        if fault:
            return _refuse(400, "invalid_request_error", fault)
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

    def _find_fault(self, headers: Mapping[str, str], request: Json) -> str:
        needed = {name: HEADERS[name] for name in ("anthropic-version", "content-type")}
        findings = list_differences({name: headers.get(name) for name in needed}, needed)
        model, limit, messages = request["model"], request["max_tokens"], request["messages"]
        if type(model) is not str or not model or type(limit) is not int or limit < 1:
            return "model, max_tokens: expected a name and a positive integer"
        if not messages or messages[0]["role"] != "user" or messages[-1]["role"] != "user":
            return "messages: expected the user's message first and last"
        if not all(map(_has_content, messages)):
            return "messages: expected text, or a list of blocks, in each"
        if not all(map(_is_tool, request.get("tools", []))):
            return "tools: expected a name and an input_schema in each"
        if request.get("tool_choice", {"type": "auto"})["type"] not in ("auto", "none"):
            return "tool_choice: this model takes auto and none alone"
        findings += demo.find_unmatched_results([], messages[:1], 0)
        if len(messages) > 1:
            findings += find_session_changes(request, self._begun, self._content, messages[-1])
        return str(findings[0]) if findings else ""

    def _play(self, request: Json) -> tuple[str, list[Json]]:
        """Return (stop reason, content): a tool call, an end, or the result out of a handoff prompt."""
        if "tools" not in request:
            return "end_turn", [{"type": "text", "text": _work_out(request["messages"][0])}]
        if len(request["messages"]) > 1:
            return "end_turn", [{"type": "text", "text": "The stock was read."}]
        call_id, tool = f"toolu_{os.urandom(8).hex()}", request["tools"][0]["name"]
        content = [
            {"type": "thinking", "thinking": "", "signature": os.urandom(24).hex()},
            {"type": "tool_use", "id": call_id, "name": tool, "input": {}},
        ]
        self._begun, self._content = request, content
        return "tool_use", content


def _refuse(status: int, kind: str, message: str) -> tuple[int, Json]:
    """Return (HTTP status, reply body) of a refusal in the API's error shape."""
    error = {"type": kind, "message": message}
    return status, {"type": "error", "error": error, "request_id": f"req_{os.urandom(8).hex()}"}


def _has_content(message: Json) -> bool:
    content = message["content"]
    if isinstance(content, str):
        return bool(content.strip())
    return bool(content) and all(isinstance(block["type"], str) for block in content)


def _is_tool(tool: Json) -> bool:
    return bool(re.fullmatch("[a-zA-Z0-9_-]{1,64}", tool["name"])) and isinstance(tool["input_schema"], dict)


def _work_out(message: Json) -> str:
    """Return the answer that a model would give to a message with a handoff prompt."""
    content = message["content"]
    prompt = content if isinstance(content, str) else join_text(message)
    try:
        checkpoint = parse_json(prompt.removeprefix(demo.HANDOFF_PROMPT))
        return render_json(build_result(checkpoint["completed"][0]["result"]))
    except (JsonError, KeyError, TypeError, IndexError):
        return "There is no checkpoint to go on from."


class RehearsalServer:
    """RehearsalModels behind HTTP on 127.0.0.1, from construction until `close`."""

    def __init__(self, models: RehearsalModels) -> None:
        import http.client
        import socketserver
        import threading

        # http.server would do the same, but takes longer to import.
        class Handler(socketserver.StreamRequestHandler):
            timeout = 10  # somebody else may connect, and be silent

            def handle(self) -> None:
                line = self.rfile.readline(1_000)
                headers = http.client.parse_headers(self.rfile)
                length = headers.get("content-length", "")
                data = self.rfile.read(int(length)) if re.fullmatch("[0-9]{1,9}", length) else b""
                status, reply = _refuse(404, "not_found_error", "there is only POST /v1/messages")
                if line.startswith(b"POST /v1/messages "):
                    status, reply = models.answer(
                        {name.lower(): text for name, text in headers.items()}, data
                    )
                body = encode_json(reply)
                head = f"HTTP/1.0 {status} Rehearsed\r\ncontent-type: application/json\r\n"
                request_id = reply.get("request_id", f"req_{os.urandom(8).hex()}")
                head += f"content-length: {len(body)}\r\nrequest-id: {request_id}\r\n\r\n"
                self.wfile.write(head.encode() + body)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, block_on_close = True, False

            def handle_error(self, *_: Any) -> None:
                pass  # a stranger's connection that broke

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/messages"
        # How often, in seconds, it looks whether it is to stop.
        thread = threading.Thread(target=self._server.serve_forever, args=(0.002,), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._server.server_close()
            raise

    def close(self) -> None:
        """Stop serving, at once."""
        self._server.shutdown()
        self._server.server_close()


# --- Inspecting a run: the same course again, against what is on disk ---------

_MOST_CHARACTERS = 4_096  # of a text in the ledger that only the run could know


def find_plan_fault(facts: Json) -> str:
    """Return why no run begins with these facts, "" if one may. Pure."""
    endpoint = facts["endpoint"]
    is_rehearsed = re.fullmatch("http://127\\.0\\.0\\.1:[0-9]{1,5}/v1/messages", endpoint)
    if facts["rehearsal"] and not is_rehearsed:
        return f"observed a rehearsal on {show(endpoint)}, expected one on 127.0.0.1"
    if not 1 <= facts["timeout_seconds"] <= MOST_SECONDS or facts["max_tokens"] < 1:
        return "observed limits that no run has"
    model, (sender, receiver) = demo.VALUES["MODEL"][0], (facts["sender"], facts["receiver"])
    if not re.fullmatch(model, sender) or not re.fullmatch(model, receiver):
        return "observed models that no run asks"
    if not re.fullmatch("[0-9a-f]{64}", facts["source_sha256"]):
        return "observed a source_sha256 that is no digest"
    try:
        if not is_rehearsed and endpoint != ENDPOINT:
            check_endpoint(endpoint)
    except RefusedError as error:
        return error.what
    return ""


_NOT_PROVED = "the files agree with each other, which does not show who wrote them, or when"
# Between these lies a time in UTC, character by character; to compile a pattern for it takes longer.
_TIMES = ("0000-00-00T00:00:00.000Z", "9999-19-39T29:59:59.999Z")
_BROKEN = (EXIT_REJECTED, "the evidence does not hold", "broken")


class Inspector:
    """A run's evidence as it is read again: each call is compared with what the run has left.

    `checks` says what held, `findings` what did not, `notes` what is worth knowing; `exit_code`, `end`,
    `verdict` and `closed` how the run ended. Only what nobody can work out again is taken from the ledger:
    times, HTTP statuses, request ids, what broke. Raises UnreadableError for a file that cannot be read.
    """

    def __init__(self, folder: str) -> None:
        self.checks: list[str] = []
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.exit_code, self.end, self.verdict = _BROKEN
        self.closed = False
        self.plan: Plan | None = None
        self.records: Records = []  # what the ledger must say, as far as the course has come
        self._due = {LEDGER}  # the files that the course has come to
        self.files: dict[str, bytes | None] = dict.fromkeys((*FILES, SUMS))
        for name in self.files:
            try:
                self.files[name] = read_evidence(folder, name)
            except EvidenceBroken as error:
                self._add_finding(*error.args)
        *self._lines, rest = (self.files[LEDGER] or b"").split(b"\n")
        if rest:
            self.notes.append(f"{LEDGER}: its last line was cut while it was written, and is left out")

    @property
    def default_state(self) -> str:
        """The state of a request without a record."""
        return "unknown" if self.findings else "not planned"

    def _add_finding(self, place: str, message: str) -> None:
        """Take a finding, if it is the first one about its place: one fault is told once."""
        if place not in {finding.path for finding in self.findings}:
            self.findings.append(Finding(place, message))
        self.exit_code, self.end, self.verdict = _BROKEN

    def go_through(self, rows: Rows | None = None) -> None:
        """Go through the run again, and compare every file and record with what it must have left.

        `rows` is the trusted stock; without it a run on other stock than the built-in one is judged
        on the rows that are recorded in it, with a note.
        """
        try:
            self.plan = self._read_plan(rows)
            code, end = carry_out(self, self.plan)
            self.closed = True
        except EvidenceEnds:
            code = find_early_code(self.records)
            in_flight = "a request in flight" if code == EXIT_UNCLEAR else "nothing in flight"
            end = f"the run was ended before it closed, with {in_flight}"
        except EvidenceBroken as error:
            self._add_finding(*error.args)
            return
        if not self.findings:
            self.exit_code, self.end, self.verdict = code, end, _VERDICTS[code]
            if code == EXIT_INTERRUPTED:  # the run was, this inspection is not
                self.exit_code = EXIT_FAILED
            self.checks += [f"{LEDGER}: {FILES[LEDGER]}"] if self.records else []

    def _read_plan(self, rows: Rows | None) -> Plan:
        """Return the plan that the ledger's first record tells of."""
        if self.files[LEDGER] is None and any(self.files.values()):
            raise EvidenceBroken(LEDGER, "it is missing")
        facts = self._take_facts(self._peek(may_end=False), PLAN_FACTS)
        if len(facts) < len(PLAN_FACTS):
            missing = ", ".join(name for name in PLAN_FACTS if name not in facts)
            raise EvidenceBroken(self._line(), f"observed no {missing}, expected all that a run begins with")
        fault = find_plan_fault(facts)
        if fault:
            raise EvidenceBroken(self._line(), fault)
        if facts["rehearsal"]:
            self.notes.append("this was a rehearsal on loopback: no model answered, and nothing was paid")
        if rows is None and facts["source_sha256"] == digest_json(STOCK):
            rows = STOCK
        if rows:
            return Plan(rows, facts)
        plan = Plan(self._parse_recorded_rows(), facts)
        judged = "it is judged on the stock recorded in it" if plan.rows else "no stock is recorded in it"
        self.notes.append(f"{judged}; name the trusted one with --stock FILE")
        if plan.facts != facts:
            raise EvidenceBroken(
                TOOL_RESULT.request_file, "its stock is not the one that the ledger begins with"
            )
        return plan

    def _parse_recorded_rows(self) -> Rows:
        """Return the stock that the sender was told; none if the run did not come to that."""
        try:
            request = parse_json(self.files[TOOL_RESULT.request_file] or b"")
            content = request["messages"][-1]["content"][0]["content"]
            return demo.check_stock(parse_json(content)) if isinstance(content, str) else []
        except (JsonError, KeyError, IndexError, TypeError):  # what is wrong with it is found later
            return []

    def write(self, name: str, data: bytes) -> None:
        """Compare a file with what the run must have written, if it came to that."""
        if self.files[name] is None:
            self._peek()
        self.check_file(name, data)

    def check_file(self, name: str, data: bytes) -> None:
        """Compare a file with what must stand in it."""
        self._due.add(name)
        stored = self.files[name]
        if stored == data:
            self.checks.append(f"{name}: {FILES[name]}")
        elif stored is None:
            self._add_finding(name, "it is missing, though the records tell of it")
        else:
            self._add_finding(*_compare_bytes(name, stored, data))

    def record(self, operation_id: str, state: str, **facts: Any) -> None:
        """Compare the ledger's next line with what the run must have recorded, behind the line before."""
        observed, number = self._peek(may_end=operation_id != RUN or state == CONFIRMED), len(self.records)
        prev_sha256 = digest_bytes(self._lines[number - 1]) if number else "0" * 64
        own = {"time": observed["time"], "prev_sha256": prev_sha256}
        record = {"operation_id": operation_id, "state": state, **facts, **own}
        line = encode_json({"time": "", **record})  # where the time stands first
        if line != self._lines[number]:
            self._add_finding(*_compare_bytes(self._line(), self._lines[number], line))
        when = observed["time"]
        if len(when) != len(_TIMES[0]) or not all(a <= at <= z for at, a, z in zip(when, *_TIMES)):
            self._add_finding(f"{self._line()} time", f"observed {describe(when)}, expected a time in UTC")
        if (observed["operation_id"], observed["state"]) != (operation_id, state):
            raise EvidenceEnds  # what follows cannot be compared
        self.records.append(record)

    def send(self, step: Step, data: bytes) -> Outcome:
        """Return the outcome that the ledger's next line and the stored reply tell of."""
        observed = self._peek()
        facts = self._take_facts(observed, OUTCOME_FACTS)
        has_reply = "response_sha256" in observed
        if ("http_status" in facts) != has_reply or (has_reply and not facts.get("opened", True)):
            raise EvidenceBroken(self._line(), "observed a reply without a status, a digest or a connection")
        if facts.get("content_encoding", "gzip") != "gzip" or not 100 <= facts.get("http_status", 200) <= 999:
            raise EvidenceBroken(self._line(), "observed an encoding or a status that no run records")
        if not has_reply:
            if "trouble" not in facts or {"content_encoding", "key_removed"} & facts.keys():
                raise EvidenceBroken(
                    self._line(), "observed no reply, but nothing that broke, or something decoded"
                )
            return Outcome(**facts)
        body = self.files[step.response_file]
        if body is None:
            raise EvidenceBroken(step.response_file, f"it is missing, though {self._line()} tells of it")
        if digest_bytes(body) != observed["response_sha256"]:
            self._add_finding(step.response_file, f"its digest is not what {self._line()} says")
        if facts.get("key_removed") and KEY_MARK.encode() not in body:
            self._add_finding(
                f"{self._line()} key_removed", f"observed true, but {step.response_file} has no mark"
            )
        return Outcome(body, **facts)

    def check_leftovers(self) -> None:
        """Find what is there though the course of the run does not come to it."""
        if self.closed and len(self.records) < len(self._lines):
            self._add_finding(self._line(), "it stands behind the run's last record")
        if self.findings:
            return  # which may be why the course did not come to the rest
        requests = list_requests(self.records).values()
        states = {step.response_file: facts["state"] for step, facts in zip(STEPS, requests)}
        due = {*self._due, SUMS} if self.closed else self._due
        for name, data in self.files.items():
            if data is None or name in due:
                continue
            if states.get(name) in (IN_FLIGHT, UNCLEAR):  # named, perhaps, before the record of it failed
                self.notes.append(f"{name} is there, but no record vouches for it")
            else:
                self._add_finding(name, "it exists, though no record leads to it")

    def check_sums(self) -> None:
        """Compare SHA256SUMS, where it is, with the digests of the files."""
        sums = self.files[SUMS]
        if sums is None:
            if self.closed:
                self._add_finding(SUMS, "it is missing, though the run was closed")
        elif sums == render_sums({name: self.files[name] for name in FILES}):
            self.checks.append(f"{SUMS}: it holds the digest of every file")
        else:
            lines = [b"", *sums.splitlines(keepends=True)]
            changed = [name for name in FILES if render_sums({name: self.files[name]}) not in lines]
            for name in changed:
                self._add_finding(name, f"its digest is not what {SUMS} says")
            if not changed:
                self._add_finding(SUMS, "it names files that are not there, or not each once and in order")

    def _line(self) -> str:
        return f"{LEDGER} line {len(self.records) + 1}"

    def _peek(self, may_end: bool = True) -> Json:
        """Return the ledger's next record; raise RunEnded if it closes a run that had to end early.

        `may_end` says whether a run may end here. Raises EvidenceEnds behind the last record, and
        EvidenceBroken for what is no record.
        """
        if len(self.records) == len(self._lines):
            raise EvidenceEnds
        try:
            record: Any = parse_json(self._lines[len(self.records)])
        except JsonError as error:
            raise EvidenceBroken(self._line(), str(error)) from error
        needed = ("time", "operation_id", "state")
        if not isinstance(record, dict) or not all(isinstance(record.get(name), str) for name in needed):
            raise EvidenceBroken(self._line(), f"observed {describe(record)}, expected a record")
        why = record.get("why") if record["operation_id"] == RUN and may_end else None
        if record["state"] in (FAILED, UNCLEAR) and isinstance(why, str):
            code = find_early_code(self.records)
            raise RunEnded(EXIT_INTERRUPTED if why == INTERRUPTED and code == EXIT_FAILED else code, why)
        return record

    def _take_facts(self, record: Json, kinds: Mapping[str, type]) -> Json:
        """Return the facts of a record that only the run could know, each of its kind."""
        facts = {name: record[name] for name in kinds if name in record}
        for name, fact in facts.items():
            size, most = (len(fact), _MOST_CHARACTERS) if isinstance(fact, str) else (fact, _MOST_COUNT)
            if type(fact) is not kinds[name] or not 0 <= size <= most:
                raise EvidenceBroken(
                    f"{self._line()} {name}", f"observed {describe(fact)}, which no run records"
                )
        return facts


def _compare_bytes(name: str, observed: bytes, expected: bytes) -> tuple[str, str]:
    """Return where two files begin to differ, and how: by JSON path where both are JSON, else by byte."""
    try:
        findings = list_differences(parse_json(observed), parse_json(expected))
    except JsonError:
        findings = []
    if not findings:
        at = demo.find_parting(observed, expected)
        return f"{name} byte {at}", "observed other bytes than the run must have written"
    more = f"; and {len(findings) - 1:,} more" if len(findings) > 1 else ""
    return f"{name} {findings[0].path}", findings[0].message + more


def inspect_run(folder: str, rows: Rows | None = None) -> Inspector:
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
        raise UnreadableError(folder, "it holds no file of a run", "name a run's folder")
    # 1. Read every file of a run, and follow no link.
    inspector = Inspector(folder)
    # 2. Go through the run again, and compare every file, every record, and the chain of their digests.
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


def list_requests(records: Records, default: str = "not planned") -> dict[str, Json]:
    """Return what records tell of each of the three requests: {operation: {name: fact, or None}}.

    The names are for a person to read; `default` is the state of a request without a record. Pure.
    """
    last = {record["operation_id"]: record for record in records}
    sent = {record["operation_id"]: record["time"] for record in records if record["state"] == IN_FLIGHT}
    requests = {}
    for step in STEPS:
        record = last.get(step.operation_id, {"state": default})
        usage, elapsed = record.get("usage"), record.get("elapsed_milliseconds")
        requests[step.operation_id] = {
            "state": record["state"],
            "sent": sent.get(step.operation_id),
            "model asked": records[0][step.asks] if records else None,
            "model answered": record.get("model"),
            "HTTP status": record.get("http_status"),
            "stop reason": record.get("stop_reason"),
            "tokens in/out": "/".join(str(usage.get(name, "?")) for name in _TOKEN_FIELDS) if usage else None,
            "seconds": None if elapsed is None else f"{elapsed / 1_000:.1f}",
            "dollars": record.get("cost_usd"),
            "request id": record.get("request_id"),
            "why": record.get("why"),
        }
    return requests


def render_table(records: Records, default: str = "not planned") -> str:
    """Return a run's requests as a table, in 80 columns unless a figure is out of the ordinary. Pure."""
    table = [("request", "model", "state", "tokens", "s", "cost")]
    for operation_id, facts in list_requests(records, default).items():
        model = show(facts["model asked"] or "-").rpartition("/")[2]
        model = model if len(model) <= 20 else f"{model[:19]}~"
        figures = [facts[name] or "-" for name in ("tokens in/out", "seconds", "dollars")]
        table.append((operation_id, model, facts["state"].replace("_", " "), *figures))
    for end in find_ends(records):
        each = compute_cost_per_accepted([parse_usd(end["cost_usd"])], int(end["state"] == CONFIRMED))
        figure = render_usd(each[0] if each else None) if end["state"] == CONFIRMED else "-"
        table.append(("together", "", "", "", "", end["cost_usd"]))
        table.append(("per accepted answer", "", "", "", "", figure))
    return "\n".join("{:20} {:20} {:11} {:>10} {:>5} {:>9}".format(*line).rstrip() for line in table)


def list_warnings(records: Records) -> list[str]:
    """Return a line for each request that is unclear or in flight, and for each that another model answered.

    It says by what the request is looked up with the provider, or which model was asked. Pure.
    """
    lines = []
    for operation_id, facts in list_requests(records).items():
        asked, answered = facts["model asked"], facts["model answered"] or "a model without a name"
        if facts["state"] in (IN_FLIGHT, UNCLEAR):
            known = facts["request id"] or "not known"
            lines.append(f"look up: {operation_id}, sent {facts['sent']}, request id {known}")
        elif facts["state"] == CONFIRMED and asked != answered:
            lines.append(f"warning: {operation_id}: asked for {asked}, answered by {answered}")
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
thead th { color: var(--soft); } tbody th { min-width: 6rem; overflow-wrap: anywhere; }
tbody tr { border-top: 1px solid var(--line); }
@media (max-width: 30rem) { table { font-size: .75rem; } th, td { padding-right: .4rem; }
  tbody th { min-width: 4rem; } }
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
    **dict.fromkeys(
        (FAILED, "rejected", "broken", "interrupted", "differs", "repeated", "not delivered"), "bad"
    ),
}
_MOST_UNFOLDED = 50
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})


def render_report(inspector: Inspector, base: str = "", notes: Sequence[str] = ()) -> str:
    """Return a run's report as one HTML page; `base` leads from the page to the run's folder. Pure.

    Every value is escaped. No script, image or outside address stands in it, and the policy in its
    head allows nothing but its own style sheet. It says the same whether the trusted stock is at
    hand or not, so that it can be rebuilt from the folder alone.
    """
    import binascii

    digest = binascii.b2a_base64(bytes.fromhex(digest_bytes(_STYLE.encode())), newline=False).decode()
    verdict = inspector.verdict
    words = "The evidence does not hold" if inspector.findings else verdict.capitalize()
    rehearsal = inspector.plan is not None and inspector.plan.facts["rehearsal"]
    limits = [_NOT_PROVED] if inspector.closed and not inspector.findings else []
    kind = "Rehearsal of a handoff: no model answered, nothing was paid" if rehearsal else "Handoff run"
    advice = advise(verdict, inspector.end)
    todo = f"<p><strong>Next:</strong> {_escape(advice)}</p>\n" if advice else ""
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
        f"{_render_list('What was checked, and what that proves', inspector.checks + limits)}"
        f"{_render_list('Worth knowing', [*list_warnings(inspector.records), *notes])}"
        f"{_render_ledger(inspector.records)}{_render_files(inspector, base)}</main>\n</body>\n</html>\n"
    )


def _escape(value: Any) -> str:
    """Return text that is safe anywhere in HTML, with what could act on its reader made visible."""
    return show(str(value)).translate(_HTML)


def _mark(state: str, words: str = "") -> str:
    """Return a state in words and in its colour."""
    return f'<strong class="{_TONES.get(state, "")}">{words or state.replace("_", " ")}</strong>'


def _render_section(heading: str, tag: str, items: str) -> str:
    return f"<h2>{heading}</h2>\n<{tag}>\n{items}</{tag}>\n" if items else ""


def _render_list(heading: str, lines: Sequence[Any]) -> str:
    return _render_section(heading, "ul", "".join(f"<li>{_escape(line)}</li>\n" for line in lines))


def _render_facts(facts: Json) -> str:
    """Return names and values; a value that is no string is shown as JSON, and None is left out."""
    lines = ""
    for name, fact in facts.items():
        if fact is not None:
            text = shorten(fact if isinstance(fact, str) else render_json(fact), 200)
            lines += f"<dt>{_escape(name)}</dt><dd>{_escape(text)}</dd>\n"
    return f"<dl>\n{lines}</dl>\n"


def _render_way(inspector: Inspector) -> str:
    """Return the way of the task as a picture: six stations, each with its state in words."""
    states = {record["operation_id"]: record["state"] for record in inspector.records}
    answered = states.get(HANDOFF.operation_id)
    is_judged = answered == CONFIRMED and inspector.verdict in ("accepted", "rejected")
    ways = {
        "The sender asks for the stock": states.get(TOOL_REQUEST.operation_id),
        "The tool answers": states.get(READ_STOCK),
        "The sender ends its turn": states.get(TOOL_RESULT.operation_id),
        "The application's checkpoint": answered and "built",
        "The receiver answers": answered,
        "The validator judges": inspector.verdict if is_judged else None,
    }
    picture, told, not_reached = "", [], "unknown" if inspector.findings else "not reached"
    for at, (name, state) in enumerate(ways.items()):
        words, top = (state or not_reached).replace("_", " "), 3 + at * 56
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
    html = "<h2>Requests</h2>\n"
    for end in find_ends(inspector.records):
        html += f"<p>Together {end['cost_usd']} dollars at list price, computed from usage: no invoice.</p>\n"
    html += '<ol class="cards">\n'
    requests = list_requests(inspector.records, inspector.default_state)
    for step, facts in zip(STEPS, requests.values()):
        state = facts.pop("state")
        names = (step.request_file, step.response_file)
        links = ", ".join(_render_link(base, name) for name in names if inspector.files[name] is not None)
        html += f'<li class="{_TONES.get(state, "")}">\n<h3>{step.operation_id}: {_mark(state)}</h3>\n'
        html += f"{_render_facts(facts)}<p>{links}</p>\n</li>\n"
    return f"{html}</ol>\n"


def _render_stock(inspector: Inspector) -> str:
    """Return the stock beside the delivered and the recomputed shortages, differences first."""
    is_read = any(record["operation_id"] == READ_STOCK for record in inspector.records)
    if inspector.plan is None or not is_read or not inspector.plan.rows:
        return ""
    text, delivered = _parse_answer_rows(inspector.files[HANDOFF.response_file] or b"")
    agreeing, differing = _sort_rows(inspector.plan.rows, delivered)
    size, rows = len(inspector.plan.rows), differing + agreeing
    html = f"<h2>Stock and answer</h2>\n<p>{len(agreeing):,} of {size:,} rows agree.</p>\n"
    if text and not delivered:
        said = "\n".join(map(_escape, shorten(text, 2_000).split("\n")))
        html += f"<p>The receiver said:</p>\n<pre>{said}</pre>\n"
    shown = rows if size <= _MOST_UNFOLDED else differing[:_MOST_UNFOLDED]
    html += _render_stock_table("Stock and answer", shown) if shown else ""
    if len(shown) < len(rows):
        table = _render_stock_table("The rest of the stock", rows[len(shown) :])
        more = f"{len(rows) - len(shown):,} more rows, {max(len(differing) - len(shown), 0):,} of them differ"
        html += f"<details>\n<summary>{more}</summary>\n{table}</details>\n"
    return html


def _sort_rows(rows: Rows, delivered: list[Any]) -> tuple[list[str], list[str]]:
    """Return the table's rows that agree, and those that do not, as the validator judges them."""
    known = {row["sku"]: row for row in rows}
    missing = {row["sku"]: demo.compute_shortage(row) for row in rows}
    agreeing, differing = [], []
    for answer, right in zip(delivered, demo.list_nearest_rows(delivered, missing)):
        fields = answer if isinstance(answer, dict) else {}
        sku = fields.get("sku")
        name, row = (sku, known.get(sku)) if isinstance(sku, str) else ("no SKU", None)
        shortage = fields["shortage"] if fields.keys() == {"sku", "shortage"} else answer
        if not list_differences(answer, right):
            agreeing.append(_render_row("agrees", name, shortage, row))
        elif isinstance(right, dict) and right["sku"] is demo.REPEATED:
            differing.append(_render_row("repeated", name, shortage, None))
        else:
            differing.append(_render_row("differs", name, shortage, row))
    differing += [_render_row("not delivered", sku, MISSING, known[sku]) for sku in missing]
    return agreeing, differing


def _parse_answer_rows(body: bytes) -> tuple[str, list[Any]]:
    """Return the text of the receiver's reply, and the rows that can be read in it."""
    message, fault = _parse_reply(body)
    if fault or demo.find_reply_faults(message, HANDOFF.stop_reason):
        return "", []
    try:
        rows = demo.parse_answer(message)["rows"]
    except (JsonError, KeyError, TypeError):  # no JSON, or of another shape
        rows = None
    return join_text(message), rows if isinstance(rows, list) else []


def _render_row(state: str, sku: str, delivered: Any, row: Json | None) -> str:
    numbers = (demo.compute_shortage(row), row["available"], row["target"]) if row else ()
    cells = ("-" if delivered is MISSING else shorten(render_json(delivered)), *numbers)
    html = "".join(f'<td class="number">{_escape(cell)}</td>' for cell in cells)
    return f'<tr><th scope="row">{_escape(sku)}</th><td>{_mark(state)}</td>{html}</tr>\n'


def _render_stock_table(name: str, rows: list[str]) -> str:
    columns = ("delivered", "expected", "available", "target")
    head = "".join(f'<th scope="col" class="number">{column}</th>' for column in columns)
    return (
        f'<div class="wide" role="region" aria-label="{name}" tabindex="0">\n<table>\n<thead><tr>'
        f'<th scope="col">SKU</th><th scope="col">answer</th>{head}</tr></thead>\n'
        f"<tbody>\n{''.join(rows)}</tbody>\n</table>\n</div>\n"
    )


def _render_ledger(records: Records) -> str:
    items = ""
    for record in records:
        facts = {name: fact for name, fact in record.items() if name not in ("operation_id", "state")}
        items += f"<li>{record['operation_id']}: {_mark(record['state'])}{_render_facts(facts)}</li>\n"
    return _render_section("Ledger", "ol", items)


def _render_files(inspector: Inspector, base: str) -> str:
    items = ""
    for name, data in inspector.files.items():
        if data is not None and name not in (REPORT, SUMS):
            told = f"{len(data):,} bytes, SHA-256 {digest_bytes(data)}"
            items += f"<dt>{_render_link(base, name)}</dt><dd>{told}</dd>\n"
    return _render_section("Files", "dl", items)


def _render_link(base: str, name: str) -> str:
    return f'<a href="{_escape(base + name)}">{name}</a>'


# --- Command line ------------------------------------------------------------

HELP = f"""\
usage: run_handoff.py [MODE] [OPTION]...

Hand a task from one model to another, and keep the evidence.

  (no mode) [--sender MODEL] [--receiver MODEL] [--max-tokens N]
    [--timeout SECONDS] [--stock FILE]
      Check this program, and rehearse a whole run in a temporary folder.
  --rehearse [--out DIR] [--sender MODEL] [--receiver MODEL] [--max-tokens N]
    [--timeout SECONDS] [--stock FILE]
      Do a run on loopback, and keep its folder (default: handoff-rehearsal).
  --live [--out DIR] [--sender MODEL] [--receiver MODEL] [--max-tokens N]
    [--timeout SECONDS] [--stock FILE] [--endpoint URL] [--key-env NAME]
      Do a run: up to three paid requests (default folder: handoff-run).
  --inspect DIR [--stock FILE] [--html PAGE] [--json]
      Judge a run again, from its files alone.

  --out DIR          the run's folder, which must not exist yet
  --sender MODEL     the model that begins (default: {SENDER_MODEL})
  --receiver MODEL   the model that goes on (default: {demo.RECEIVER_MODEL})
  --max-tokens N     the limit of a reply (default: {demo.MAX_TOKENS})
  --timeout SECONDS  the limit of each request (default: {TIMEOUT_SECONDS})
  --stock FILE       the trusted source, CSV or JSON (default: built in)
  --endpoint URL     where requests go, if not to
                     {ENDPOINT}
  --key-env NAME     the variable that holds the key (default: {KEY_ENVIRONMENT})
  --html PAGE        write the report to a new file as well
  --json             print one machine-readable object instead
"""


def _perform(
    terminal: Terminal, plan: Plan, key: Key, folder: str, announcement: str, kept: bool = True
) -> int:
    """Do a run, live or rehearsed, in a new folder; show its table, its end, and where it is kept."""

    def wait(passed: float) -> str:
        terminal.progress(f"  waiting, {passed:.0f} s")
        return CTRL_C if terminal.interrupted else ""

    def send(data: bytes) -> Outcome:
        return send_request(plan.facts["endpoint"], key, data, plan.facts["timeout_seconds"], wait)

    terminal.hold()  # a run ends by its own course alone
    terminal.must_be_heard = False
    umask = os.umask(0o077)
    try:
        recorder = Recorder(folder, key, send, terminal)
        terminal.write_err(announcement)
        code, end = _carry_out_whatever_comes(recorder, plan)
    except EvidenceError as error:  # not even the ledger could be begun
        raise RunError(EXIT_FAILED, folder, str(error)) from error
    finally:
        os.umask(umask)
    for line in list_warnings(recorder.records):
        terminal.write_err(line, "yellow")
    terminal.write_out(render_table(recorder.records))
    if code == EXIT_DONE:
        terminal.write_out(end, "green")
    if kept:
        import shlex

        terminal.write_err(f"evidence: {show(folder)}, to be read: {show(os.path.join(folder, REPORT))}")
        terminal.write_err(f"inspect it: python3 {terminal.name} --inspect {show(shlex.quote(folder))}")
    if code != EXIT_DONE:
        raise RunError(code, folder, end)
    return code


def _carry_out_whatever_comes(recorder: Recorder, plan: Plan) -> tuple[int, str]:
    """Return the exit code and the end of a run, its evidence closed as far as that is possible."""
    try:
        code, end = carry_out(recorder, plan)
    except (KeyboardInterrupt, MemoryError) as error:  # from a caller's own handler, or no memory
        code = find_early_code(recorder.records)
        if isinstance(error, KeyboardInterrupt) and code == EXIT_FAILED:
            raise
        in_flight = "a request" if code == EXIT_UNCLEAR else "nothing"
        return code, f"ended by {type(error).__name__} with {in_flight} in flight"
    try:
        recorder.close()
    except EvidenceError as error:
        return code or EXIT_FAILED, f"{end}, but {error}"
    return code, end


def _run_live(terminal: Terminal, options: Json) -> int:
    check_endpoint(options["--endpoint"])
    key, folder = read_key(options["--key-env"]), _name_folder(options["--out"] or "handoff-run")
    plan = _build_plan(options, options["--endpoint"], rehearsal=False)
    _refuse_key_in(terminal, _list_own_words(plan))
    overlong, ceiling = explain_overlong(plan), estimate_ceiling(plan)
    if overlong:
        why = "an answer that is cut off is paid and worth nothing; a token is counted as 1.5 bytes"
        raise RefusedError(overlong, why, "raise --max-tokens as far as the model goes, or hand over less")
    planned = f"at most {render_usd(ceiling)} dollars: an estimate for planning, no guarantee"
    cost = "unknown: a model has no list price here" if ceiling is None else planned
    announcement = (
        "up to three paid requests, none of them ever repeated:\n"
        f"  endpoint  {options['--endpoint']}\n"
        f"  key       from {options['--key-env']}\n"
        f"  sender    {options['--sender']} (two requests)\n"
        f"  receiver  {options['--receiver']} (one request)\n"
        f"  folder    {show(folder)}\n"
        f"  cost      {cost}"
    )
    return _perform(terminal, plan, key, folder, announcement)


def _redact_keys(terminal: Terminal, arguments: list[str]) -> None:
    """Keep the keys in all variables that an argument may name out of every message from now on."""
    names = {KEY_ENVIRONMENT, *(argument.rpartition("=")[2] for argument in arguments)}
    values = [os.environ.get(name, "") for name in names if name.isidentifier()]
    keys = [Key(value) for value in sorted(values, key=len, reverse=True) if is_key(value)]

    def redact(text: str) -> str:
        for key in keys:
            text = key.remove_from_text(text)
        return text

    terminal.redact = redact


def _refuse_key_in(terminal: Terminal, words: str) -> None:
    """Raise RefusedError where a key stands in words that are stored or shown."""
    if terminal.redact(words) != words:
        why = "it stands in an option, or in words of the evidence, and would be stored, or cut out of them"
        raise RefusedError("this key cannot be used", why, "leave it out of the options, or use another key")


def _list_own_words(plan: Plan) -> str:
    """Return what this program writes itself, or was told to write."""
    first = {"time": "", "operation_id": "", "state": "", "prev_sha256": "0" * 64, **plan.facts}
    steps = [step.operation_id for step in STEPS]
    handoff = render_handoff(build_checkpoint(plan.rows))
    return render_json([first, steps, build_tool_request(plan), handoff, *OUTCOME_FACTS, *FILES, _STYLE])


def _run_rehearsal(terminal: Terminal, options: Json, temporary: str = "") -> int:
    """Rehearse in the folder that is asked for, or in `temporary`, which is not mentioned."""
    key = Key(os.urandom(8).hex())
    try:
        server = RehearsalServer(RehearsalModels(key.value))
    except (OSError, RuntimeError) as error:  # no socket, or no thread
        why = "a rehearsal goes through HTTP on 127.0.0.1"
        what = f"the rehearsal cannot listen: {explain(error)}"
        raise RefusedError(what, why, "allow it to listen there") from error
    try:
        plan = _build_plan(options, server.url, rehearsal=True)
        announcement = f"rehearsal on {server.url}: nothing leaves this machine, nothing is paid"
        overlong = explain_overlong(plan)
        if overlong:
            announcement += f"\n  --live would refuse this: {overlong}"
        folder = temporary or _name_folder(options.get("--out") or "handoff-rehearsal")
        return _perform(terminal, plan, key, folder, announcement, kept=not temporary)
    finally:
        server.close()


def _run_checks(terminal: Terminal, options: Json) -> int:
    """Check this program, rehearse in a temporary folder, and inspect what that left there."""
    import tempfile

    failed = [check for _, check, passed in demo.run_self_test() if not passed]
    outcome = f"{len(failed)} failed, see checkpoint_demo.py self-test" if failed else "all passed"
    terminal.write_out(f"local checks: {outcome}", "red" if failed else "")
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            _run_rehearsal(terminal, options, run)
            inspector = inspect_run(run, options["--stock"] or STOCK)
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


def _run_inspection(terminal: Terminal, options: Json) -> int:
    page = options["--html"]
    if page and os.path.realpath(os.path.dirname(page) or ".") == os.path.realpath(options["--inspect"]):
        why = "a run's folder is evidence, and nothing is added to it"
        raise RefusedError(f"{show(page)} is in the run's folder", why, "name a file elsewhere")
    inspector = inspect_run(options["--inspect"], options["--stock"])
    if page:
        report = render_report(inspector, _lead_to(options["--inspect"], page), inspector.notes)
        demo.write_new_files({page: terminal.redact(report).encode()})
        terminal.write_err(f"wrote {show(page)}")
    if options["--json"]:
        terminal.write_out(render_json(_list_inspection(inspector), 2))
        return inspector.exit_code
    terminal.write_out(render_table(inspector.records, inspector.default_state))
    for check in inspector.checks:
        terminal.write_out(f"ok: {check}")
    notes = [f"note: {note}" for note in inspector.notes]
    for line in (*list_warnings(inspector.records), *notes):
        terminal.write_err(line, "yellow")
    for finding in inspector.findings:
        terminal.write_err(str(finding), "red")
    if inspector.exit_code != EXIT_DONE:
        raise RunError(inspector.exit_code, options["--inspect"], inspector.end, inspector.verdict)
    terminal.write_out(_NOT_PROVED)
    terminal.write_out(inspector.end, "green")
    return EXIT_DONE


def _list_inspection(inspector: Inspector) -> Json:
    requests = list_requests(inspector.records, inspector.default_state)
    return {
        "verdict": inspector.verdict,
        "why": inspector.end,
        "exit_code": inspector.exit_code,
        "requests": {operation_id: facts["state"] for operation_id, facts in requests.items()},
        "findings": demo.list_findings(inspector.findings),
        "notes": inspector.notes,
        "checks": inspector.checks,
        "records": inspector.records,
    }


def _lead_to(folder: str, page: str) -> str:
    """Return the relative URL of a folder from a page, with a slash at its end."""
    import urllib.parse

    try:
        way = os.path.relpath(folder, os.path.dirname(page) or ".").replace(os.sep, "/")
    except ValueError:  # on another drive
        return f"file:///{urllib.parse.quote(os.path.abspath(folder).replace(os.sep, '/'))}/"
    return f"./{urllib.parse.quote(os.fsencode(way))}/"


def _build_plan(options: Json, endpoint: str, rehearsal: bool) -> Plan:
    facts = {
        "endpoint": endpoint,
        "sender": options["--sender"],
        "receiver": options["--receiver"],
        "max_tokens": int(options["--max-tokens"]),
        "timeout_seconds": int(options["--timeout"]),
        "rehearsal": rehearsal,
    }
    rows = options["--stock"] or STOCK
    oversize = explain_oversize(rows)
    if oversize:
        why = "a longer reply is cut off there, so that no server can exhaust this machine"
        raise RefusedError(oversize, why, "hand over less at once")
    return Plan(rows, facts)


def _name_folder(folder: str) -> str:
    """Return a folder's name as it can stand behind an option, without a slash at its end."""
    folder = folder.rstrip(os.sep) or folder
    return os.path.join(".", folder) if folder.startswith("-") else folder


_VALUES = {
    **demo.VALUES,
    "SECONDS": ("[1-9][0-9]{0,4}", f"a whole number from 1 to {MOST_SECONDS}"),
    # A long name without an underscore, or one that begins like a key, may be a key in the wrong place.
    "NAME": (
        "(?!sk_)(?=.{1,15}$|.*_)[A-Za-z_][A-Za-z0-9_]{0,99}",
        "the name of an environment variable, not its value",
    ),
    "PAGE": ("(?s)(?!-$).+", "the name of a new file"),
}
_DEFAULTS = {
    "--sender": SENDER_MODEL,
    "--receiver": demo.RECEIVER_MODEL,
    "--max-tokens": demo.MAX_TOKENS,
    "--timeout": TIMEOUT_SECONDS,
    "--endpoint": ENDPOINT,
    "--key-env": KEY_ENVIRONMENT,
}
_MODES: dict[str, Callable[[Terminal, Json], int]] = {
    "(no mode)": _run_checks,
    "--rehearse": _run_rehearsal,
    "--live": _run_live,
    "--inspect": _run_inspection,
}


def _run(terminal: Terminal, arguments: list[str]) -> int:
    _redact_keys(terminal, arguments)
    if demo.asks_for_help(arguments):
        terminal.write_out(HELP.rstrip())
        return EXIT_DONE
    named = [argument.partition("=")[0] for argument in arguments]
    modes = [mode for mode in _MODES if mode in named] or ["(no mode)"]
    if len(modes) > 1:
        raise UsageError(f"{' and '.join(modes)} exclude each other", terminal.name)
    given = demo.read_options(terminal.name, HELP, modes[0], arguments, _VALUES)
    options: Json = {name: value or _DEFAULTS.get(name) for name, value in given.items()}
    _refuse_key_in(terminal, "\n".join(value for value in options.values() if isinstance(value, str)))
    if options["--stock"]:
        options["--stock"] = demo.read_stock(options["--stock"])
    return _MODES[modes[0]](terminal, options)


def main(argv: list[str] | None = None) -> int:
    """Run one mode and return its exit code; `argv` is as for checkpoint_demo.main."""
    arguments = sys.argv[1:] if argv is None else argv
    return demo.run_command("run_handoff.py", lambda terminal: _run(terminal, arguments), argv is None)


if __name__ == "__main__":
    demo.open_missing_descriptors()
    os._exit(main())  # see checkpoint_demo
