#!/usr/bin/env python3
"""Hand a task from one model to another: three requests, each recorded before it leaves.

    $ python3 run_handoff.py --live
    accepted: 3 rows, total shortage 7
    $ python3 run_handoff.py --live
    run_handoff.py: refused: handoff-run already exists
      why: a run's folder is evidence and is never reused
      next: read it with --inspect handoff-run, or name a new one with --out DIR

Without --live nothing leaves this machine. No request is ever sent twice by this program; what
became of each is told apart as planned, in flight, confirmed, failed or unclear.

Exit codes: 0 accepted; 1 the answer was rejected, or evidence does not hold; 2 usage, or a folder
that cannot be read; 3 refused, nothing sent; 4 failed, evidence kept; 5 a request is unclear; 70 a
bug in this program; 130 interrupted with nothing in flight.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time

import checkpoint_demo
from checkpoint_demo import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_REJECTED,
    EXIT_UNUSABLE,
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
    list_differences,
    parse_json,
    render_json,
    shorten,
    show,
)

TYPE_CHECKING = False  # a type checker takes it for true; importing typing costs every start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

EXIT_FAILED = 4
EXIT_UNCLEAR = 5

ENDPOINT = "https://api.ofox.ai/anthropic/v1/messages"
SENDER_MODEL = "anthropic/claude-fable-5.2"
KEY_ENVIRONMENT = "OFOX_API_KEY"
API_VERSION = "2023-06-01"
TIMEOUT_SECONDS = 180
REPLY_LIMIT_BYTES = 4 * 2**20
REPLY_LIMIT_BRACKETS = 200_000  # each container costs some 250 bytes of memory once it is parsed

# --- Errors ------------------------------------------------------------------


class RunError(HandoffError):
    """A run that did not end with an accepted answer; `exit_code` says in which way."""

    def __init__(self, verdict: str, what: str, why: str, then: str, exit_code: int) -> None:
        super().__init__(what, why, then)
        self.verdict, self.exit_code = verdict, exit_code


class RunEnded(Exception):
    """The run goes no further: the state that closes it, why, and the exit code."""

    def __init__(self, state: str, why: str, exit_code: int) -> None:
        super().__init__(state, why, exit_code)
        self.state, self.why, self.exit_code = state, why, exit_code


class EvidenceError(Exception):
    """A file of the evidence folder, the ledger among them, could not be written."""

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(f"{name} could not be written: {error.strerror or error}")


class EvidenceEnds(Exception):
    """The records end before the run was closed: it was killed, or could not write any more."""


class EvidenceBroken(Exception):
    """The records go another way than any run does; what follows cannot be judged."""


# --- Tokens and money: integers only, in micro-dollars -----------------------

# Micro-dollars a token (the list price in dollars a million tokens): input, output.
_PRICES = {"fable-5.2": (8, 40), "fable-5.1": (10, 50), "opus-5.5": (4, 20)}
PRICES_MICRO_USD = {
    model: price
    for name, price in _PRICES.items()
    for model in (f"anthropic/claude-{name}", f"claude-{name.replace('.', '-')}")
}
_CACHE_FIELDS = ("cache_creation_input_tokens", "cache_read_input_tokens")
_MOST_TOKENS = 10**9


def read_usage(message: dict[str, Any]) -> dict[str, int]:
    """Return the token counts of a reply that are whole numbers; others are left out. Pure."""
    usage = message.get("usage")
    fields = ("input_tokens", "output_tokens", *_CACHE_FIELDS)
    counts = {field: usage[field] for field in fields if field in usage} if isinstance(usage, dict) else {}
    return {field: n for field, n in counts.items() if type(n) is int and 0 <= n <= _MOST_TOKENS}


def compute_cost(model: str, message: dict[str, Any]) -> int | None:
    """Return what a reply costs in micro-dollars at list price, or None where that is unknown.

    Unknown are a model without a price, missing or odd token counts, and cache tokens above zero,
    which have prices of their own. Computed from usage: this is no invoice. Pure.
    """
    counts = read_usage(message)
    usage = message.get("usage")
    odd = [usage[field] for field in _CACHE_FIELDS if usage.get(field)] if isinstance(usage, dict) else [None]
    if odd or model not in PRICES_MICRO_USD or not {"input_tokens", "output_tokens"} <= set(counts):
        return None
    input_price, output_price = PRICES_MICRO_USD[model]
    return counts["input_tokens"] * input_price + counts["output_tokens"] * output_price


def render_usd(micro_usd: int | None) -> str:
    """Return micro-dollars as dollars with six decimals, e.g. 4816 -> 0.004816; None -> unknown. Pure."""
    return "unknown" if micro_usd is None else f"{micro_usd // 10**6}.{micro_usd % 10**6:06}"


# --- The three requests ------------------------------------------------------

RUN = "run"
READ_STOCK = checkpoint_demo.OPERATION_ID


class Step:
    """One of the three requests: its number and operation, and what its reply must be."""

    def __init__(self, number: int, operation_id: str, stop_reason: str, tool: str | None = None) -> None:
        self.number, self.operation_id = number, operation_id
        self.stop_reason, self.tool = stop_reason, tool


TOOL_REQUEST = Step(1, "sender-tool-request", "tool_use", checkpoint_demo.OPERATION)
TOOL_RESULT = Step(2, "sender-tool-result", "end_turn")
HANDOFF = Step(3, "receiver-handoff", "end_turn")
STEPS = (TOOL_REQUEST, TOOL_RESULT, HANDOFF)


class Plan:
    """What a run is asked for: where, which models, under which limits, on which stock rows."""

    FIELDS = {
        "endpoint": str,
        "sender": str,
        "receiver": str,
        "max_tokens": int,
        "timeout_seconds": int,
        "rehearsal": bool,
    }

    def __init__(
        self,
        endpoint: str,
        sender: str,
        receiver: str,
        max_tokens: int,
        timeout_seconds: int,
        rehearsal: bool,
        rows: list[dict[str, Any]],
    ) -> None:
        self.endpoint, self.sender, self.receiver = endpoint, sender, receiver
        self.max_tokens, self.timeout_seconds = max_tokens, timeout_seconds
        self.rehearsal, self.rows = rehearsal, rows

    def facts(self) -> dict[str, Any]:
        """Return what the ledger's first record says of the plan."""
        return {**{field: getattr(self, field) for field in self.FIELDS}, "source_sha256": digest_json(self.rows)}

    def model(self, step: Step) -> str:
        """Return the model that a step's request asks for."""
        return self.receiver if step is HANDOFF else self.sender


def build_tool_request(plan: Plan) -> dict[str, Any]:
    """Return the body of request 1: the sender is asked to read the stock with its only tool. Pure."""
    return {
        "model": plan.sender,
        "max_tokens": plan.max_tokens,
        "output_config": {"effort": "low"},
        "system": "You prepare a stock report. Read the stock with the tool. Do not place orders.",
        "tools": [
            {
                "name": checkpoint_demo.OPERATION,
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
    """Return the body of request 2: request 1's session, the reply as it came, and the tool's result. Pure."""
    result = build_tool_result(find_tool_call_id(message), rows)
    turn = [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": [result]}]
    return {**first, "messages": [*first["messages"], *turn]}


def build_tool_result(call_id: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tool_result block for a call: the stock rows as canonical JSON. Pure."""
    content = checkpoint_demo.canonical_json(rows).decode()
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def find_tool_call_id(message: dict[str, Any]) -> str:
    """Return the id of the one tool call in a message that fits step 1. Pure."""
    ids: list[str] = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    return ids[0]


def encode_json(body: dict[str, Any]) -> bytes:
    """Return the bytes of a request body as they are stored and sent: compact ASCII JSON. Pure."""
    return render_json(body).encode()


def estimate_ceiling(plan: Plan) -> int | None:
    """Return a planning ceiling of a run's cost in micro-dollars, None where a price is unknown.

    A token is at least one byte of the request, and an answer has at most max_tokens; tools and
    hidden prompts are allowed for with 1,000 tokens a request. No guarantee. Pure.
    """
    total = 0
    sent = len(encode_json(build_tool_request(plan)))
    handoff = checkpoint_demo.render_handoff(checkpoint_demo.build_checkpoint(plan.rows))
    again = sent + plan.max_tokens + len(checkpoint_demo.canonical_json(plan.rows))
    for step, tokens in ((TOOL_REQUEST, sent), (TOOL_RESULT, again), (HANDOFF, len(handoff.encode()))):
        if plan.model(step) not in PRICES_MICRO_USD:
            return None
        input_price, output_price = PRICES_MICRO_USD[plan.model(step)]
        total += (tokens + 1_000) * input_price + plan.max_tokens * output_price
    return total


# --- What became of a request ------------------------------------------------

PLANNED = "planned"
IN_FLIGHT = "in_flight"
CONFIRMED = "confirmed"
FAILED = "failed"
UNCLEAR = "unclear"

_REDIRECTS = (301, 302, 303, 307, 308)


class Outcome:
    """What came of sending one request, as far as this side can know.

    `opened`: the connection was open, so the request may have arrived. `trouble`: what broke, if
    anything did. `body`: what came back, the key taken out of it, or None if no reply began.
    """

    FIELDS = {
        "opened": bool,
        "http_status": int,
        "request_id": str,
        "content_encoding": str,
        "key_removed": bool,
        "elapsed_milliseconds": int,
        "trouble": str,
    }

    def __init__(
        self,
        body: bytes | None = None,
        *,
        opened: bool = True,
        http_status: int | None = None,
        request_id: str | None = None,
        content_encoding: str | None = None,
        key_removed: bool = False,
        elapsed_milliseconds: int | None = None,
        trouble: str | None = None,
    ) -> None:
        self.body, self.opened, self.trouble = body, opened, trouble
        self.http_status, self.request_id = http_status, request_id
        self.content_encoding, self.key_removed = content_encoding, key_removed
        self.elapsed_milliseconds = elapsed_milliseconds

    def facts(self) -> dict[str, Any]:
        """Return what the ledger says of it: whatever is out of the ordinary, and the reply's digest."""
        ordinary = {"opened": True, "key_removed": False}
        facts = {field: getattr(self, field) for field in self.FIELDS}
        facts = {field: value for field, value in facts.items() if value not in (None, ordinary.get(field))}
        return facts if self.body is None else {**facts, "response_sha256": digest_bytes(self.body)}


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
    said = _describe_api_error(reply)
    if status in _REDIRECTS:
        return FAILED, f"HTTP {status}: a redirect is not followed", None
    if status is not None and 400 <= status < 500 and status != 408:
        return FAILED, f"HTTP {status}: the request was refused{said}", None
    if status == 529 and said and not trouble:
        return FAILED, f"HTTP 529: the request was not started{said}", None
    # 3. A whole message came back.
    if status == 200 and not trouble:
        if not fault:
            return CONFIRMED, "", reply
        return UNCLEAR, f"HTTP 200 without a whole message: {fault}{said}", None
    # 4. It may have been processed.
    about = f"HTTP {status}" if status is not None else "no reply"
    return UNCLEAR, f"{about}: {trouble or 'the request may have been processed'}{said}", None


def _parse_reply(body: bytes) -> tuple[Any, str]:
    """Return a reply's value, and why it is no whole message ("" if it is one)."""
    if body.count(b"{") + body.count(b"[") > REPLY_LIMIT_BRACKETS:
        return None, f"more than {REPLY_LIMIT_BRACKETS:,} brackets, which is no model's answer"
    try:
        reply = parse_json(body, checkpoint_demo.REPLY_DEPTH_LIMIT)
    except JsonError as error:
        return None, str(error)
    faults = checkpoint_demo.find_message_faults(reply)
    return reply, str(faults[0]) if faults else ""


def _describe_api_error(reply: Any) -> str:
    """Return what the API's error body says, or "" for any other reply."""
    error = reply.get("error") if isinstance(reply, dict) and reply.get("type") == "error" else None
    if not isinstance(error, dict) or not isinstance(error.get("type"), str):
        return ""
    return f" ({shorten(show(error['type']), 40)}: {describe(error.get('message', MISSING))})"


def judge_reply(step: Step, message: dict[str, Any], key_removed: bool) -> list[Finding]:
    """Return why a confirmed message cannot be used in its step. Pure."""
    faults = checkpoint_demo.find_reply_faults(message, step.stop_reason, step.tool)
    if step is TOOL_REQUEST and key_removed and KEY_MARK in render_json(message["content"]):
        faults.append(Finding("content", "the key stood in what must be sent back unchanged"))
    return faults


# --- The run: one course for doing it and for inspecting it ------------------

if TYPE_CHECKING:

    class Evidence(Protocol):
        """Where a run leaves its evidence (Recorder), or where it is read again (Inspector)."""

        records: list[dict[str, Any]]

        def write(self, name: str, data: bytes) -> None: ...
        def record(self, operation_id: str, state: str, **facts: Any) -> None: ...
        def send(self, step: Step, data: bytes) -> Outcome: ...


def carry_out(evidence: Evidence, plan: Plan) -> tuple[int, str]:
    """Go through the whole run, close it, and return its exit code and its verdict in words.

    The Recorder writes what happens here; the Inspector gets the very same calls and compares them
    with what was written. Raises EvidenceEnds and EvidenceBroken from an Inspector only.
    """
    try:
        evidence.record(RUN, PLANNED, **plan.facts())
        verdict = _go_through(evidence, plan)
        ended = RunEnded(CONFIRMED, "", EXIT_DONE)
    except RunEnded as error:
        ended = error
    except EvidenceError as error:
        lost = bool(evidence.records) and evidence.records[-1]["state"] == IN_FLIGHT
        ended = RunEnded(UNCLEAR if lost else FAILED, str(error), EXIT_UNCLEAR if lost else EXIT_FAILED)
    except KeyboardInterrupt:
        ended = RunEnded(FAILED, "interrupted with nothing in flight", EXIT_INTERRUPTED)
    why = {"why": ended.why} if ended.why else {}
    evidence.record(RUN, ended.state, **why, cost_usd=render_usd(sum_costs(evidence.records)))
    return ended.exit_code, ended.why or verdict


def _go_through(evidence: Evidence, plan: Plan) -> str:
    # 1. The sender asks for the stock.
    first = build_tool_request(plan)
    asked = _ask(evidence, plan, TOOL_REQUEST, first)
    # 2. The application reads it, and says what it read.
    call_id = find_tool_call_id(asked)
    evidence.record(READ_STOCK, PLANNED, tool_call_id=call_id)
    evidence.record(READ_STOCK, CONFIRMED, tool_call_id=call_id, result_sha256=digest_json(plan.rows))
    # 3. The same session goes on, or nothing is sent.
    second = build_result_request(first, asked, plan.rows)
    _check_continuation(first, asked, plan.rows, encode_json(second))
    _ask(evidence, plan, TOOL_RESULT, second)
    # 4. What is handed over comes from the application, not from the session.
    checkpoint = checkpoint_demo.build_checkpoint(plan.rows)
    handoff = checkpoint_demo.render_handoff(checkpoint)
    evidence.write("checkpoint.json", f"{render_json(checkpoint, 2)}\n".encode())
    evidence.write("handoff.txt", handoff.encode())
    # 5. A fresh session of the receiver answers, and the validator judges.
    third = checkpoint_demo.build_receiver_request(handoff, plan.receiver, plan.max_tokens)
    answered = _ask(evidence, plan, HANDOFF, third)
    try:
        result = checkpoint_demo.parse_answer(answered)
        findings = checkpoint_demo.validate_result(result, plan.rows)
    except JsonError as error:
        findings = [Finding(error.place, error.reason)]
    if findings:
        raise RunEnded(FAILED, f"the answer was rejected: {_list_some(findings)}", EXIT_REJECTED)
    evidence.write("result.json", f"{render_json(result, 2)}\n".encode())
    total = sum(map(checkpoint_demo.compute_shortage, plan.rows))
    return f"accepted: {len(plan.rows)} rows, total shortage {total}"


def _ask(evidence: Evidence, plan: Plan, step: Step, body: dict[str, Any]) -> dict[str, Any]:
    """Send one request and return its whole message; everything is durable before the next thing."""
    data = encode_json(body)
    evidence.write(f"{step.number}-request.json", data)
    evidence.record(step.operation_id, PLANNED, request_sha256=digest_bytes(data))
    evidence.record(step.operation_id, IN_FLIGHT)
    outcome = evidence.send(step, data)
    if outcome.body is not None:
        try:
            evidence.write(f"{step.number}-response.json", outcome.body)
        except EvidenceError as error:  # nothing is done with a reply that is not on disk
            outcome = Outcome(trouble=f"a reply came, but {error}")
    state, why, message = judge_outcome(outcome)
    facts = {**outcome.facts(), **_message_facts(message, step, plan)}
    evidence.record(step.operation_id, state, **facts, **({"why": why} if why else {}))
    if state != CONFIRMED:
        raise RunEnded(state, f"{step.operation_id}: {why}", EXIT_UNCLEAR if state == UNCLEAR else EXIT_FAILED)
    faults = judge_reply(step, message, outcome.key_removed)
    if faults:
        raise RunEnded(FAILED, f"{step.operation_id}: {_list_some(faults)}", EXIT_FAILED)
    confirmed: dict[str, Any] = message
    return confirmed


def _message_facts(message: Any, step: Step, plan: Plan) -> dict[str, Any]:
    """Return what the ledger says of a whole message: who answered, how it ended, what it cost."""
    if message is None:
        return {}
    names = {field: message.get(field) for field in ("model", "stop_reason")}
    facts: dict[str, Any] = {field: shorten(name, 100) for field, name in names.items() if isinstance(name, str)}
    cost = 0 if plan.rehearsal else compute_cost(plan.model(step), message)
    return {**facts, "usage": read_usage(message), "cost_usd": render_usd(cost)}


def _check_continuation(first: dict[str, Any], reply: dict[str, Any], rows: list[dict[str, Any]], data: bytes) -> None:
    """Raise RunEnded unless the bytes of request 2 hold request 1, the reply unchanged, and its result."""
    request = parse_json(data)
    *earlier, turn, results = request["messages"] if len(request["messages"]) > 1 else (None, None)
    differences = [
        *list_differences({**request, "messages": earlier}, first),
        *list_differences(turn, {"role": "assistant", "content": reply["content"]}),
        *list_differences(results["content"][:1], [build_tool_result(find_tool_call_id(reply), rows)]),
    ]
    if differences:
        raise RunEnded(FAILED, f"request 2 does not go on with the session: {_list_some(differences)}", EXIT_FAILED)


def _list_some(findings: list[Finding], most: int = 3) -> str:
    more = f"; and {len(findings) - most:,} more" if len(findings) > most else ""
    return "; ".join(map(str, findings[:most])) + more


def sum_costs(records: list[dict[str, Any]]) -> int | None:
    """Return what the recorded requests cost together in micro-dollars; None if one is unknown. Pure."""
    costs = [record["cost_usd"] for record in records if "cost_usd" in record]
    open_ended = any(record["state"] == UNCLEAR for record in records) or records[-1]["state"] == IN_FLIGHT
    if open_ended or "unknown" in costs:
        return None
    return sum(int(cost.replace(".", "")) for cost in costs)


# --- Transport: one request, one connection, one time limit -------------------

KEY_MARK = "[key removed]"


class Key:
    """The API key, and how it is kept out of everything that is stored or shown."""

    def __init__(self, value: str) -> None:
        self.value = value
        # In JSON any character may be escaped, and JSON may stand inside JSON once more.
        pieces = [rf"(?:\\{{0,8}}{re.escape(c)}|\\{{1,8}}u00(?i:{ord(c):02x}))" for c in value]
        self._pattern = re.compile("".join(pieces).encode())

    def remove_from(self, data: bytes) -> bytes:
        """Return the bytes with KEY_MARK wherever the key stood, plain or JSON-escaped."""
        return self._pattern.sub(KEY_MARK.encode(), data)

    def remove_from_text(self, text: str) -> str:
        """Return the text with KEY_MARK wherever the key stood."""
        return self.remove_from(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


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
        self.trouble: str | None = None
        self.bug: BaseException | None = None

    @property
    def opened(self) -> bool:
        """Whether the connection, TLS included, was ever open."""
        return self._socket is not None

    def pass_on(self, connection: Any, send: Callable[[Any], None], data: Any) -> None:
        """Send bytes on a connection, opened once, while somebody waits for the outcome."""
        if connection.sock is None:
            connection.connect()
            with self._lock:
                if self._given_up or self._socket is not None:
                    raise _TransportError("given up before the connection was open")
                self._socket = connection.sock
        if self._given_up:
            raise _TransportError("given up")
        send(data)

    def give_up(self, why: str) -> None:
        """End the attempt; what is still being sent or received is cut off."""
        import socket

        with self._lock:
            self._given_up = True
            self.trouble = why
        if self._socket is not None:
            try:
                # Not the SSL socket's own shutdown, which takes its state away under the reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            except OSError:  # closed already
                pass

    def talk(self, url: str, headers: dict[str, str], data: bytes, timeout_seconds: float) -> None:
        """Send the request and receive the reply; what breaks becomes `trouble`. Runs in a thread."""
        import http.client
        import urllib.error
        import urllib.request

        try:
            request = urllib.request.Request(url, data, headers, method="POST")
            with _build_opener(self).open(request, timeout=timeout_seconds) as response:
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

    http.client reads the head; its own body reading takes a missing last chunk, and on older
    versions a missing rest, for the end.
    """
    if response.chunked:
        while size := _receive_chunk_size(response.fp):
            _receive_bytes(response.fp, body, size)
            if response.fp.readline(3) != b"\r\n":
                raise _TransportError("the reply was cut short: a chunk without its end")
        while (line := response.fp.readline(65_537)) != b"\r\n":
            if not line.endswith(b"\n"):
                raise _TransportError("the reply was cut short: no end behind the last chunk")
        return
    announced = {part.strip() for line in response.headers.get_all("content-length", []) for part in line.split(",")}
    if len(announced) > 1 or not all(re.fullmatch("[0-9]{1,15}", length) for length in announced):
        raise _TransportError(f"the reply's length is not clear: {shorten(', '.join(sorted(announced)))}")
    if response.length == 0 or announced:
        _receive_bytes(response.fp, body, int(announced.pop()) if response.length else 0)
    else:
        _receive_bytes(response.fp, body, None)


def _receive_chunk_size(stream: Any) -> int:
    line = stream.readline(1_026)
    size = re.fullmatch(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n", line)
    if not size:
        raise _TransportError("the reply was cut short: a chunk without its size")
    return int(size.group(1), 16)


def _receive_bytes(stream: Any, body: bytearray, count: int | None) -> None:
    """Append `count` bytes, or with None all up to the end of the connection."""
    while count is None or count > 0:
        piece = stream.read1(65_536 if count is None else min(count, 65_536))
        if not piece and count is not None:
            raise _TransportError(f"the reply was cut short: {count:,} bytes are missing")
        if not piece:
            return
        count = None if count is None else count - len(piece)
        body += piece
        if len(body) > REPLY_LIMIT_BYTES:
            del body[REPLY_LIMIT_BYTES:]
            raise _TransportError(f"the reply is longer than {REPLY_LIMIT_BYTES:,} bytes and was cut off")


def send_request(
    url: str,
    key: Key,
    data: bytes,
    timeout_seconds: float,
    wait: Callable[[float], str | None] = lambda _: None,
) -> Outcome:
    """Send one request, once, and return what came of it within the time limit.

    `wait` is called several times a second with the seconds that have passed; what it returns, if
    anything, is the reason to give up at once. Redirects are not followed, certificates are
    verified, at most 4 MiB are received, and the key is taken out of what came.
    """
    import threading
    import urllib.request  # noqa: F401  (here rather than in the thread, where a Ctrl-C would not reach it)

    headers = {
        "x-api-key": key.value,
        "anthropic-version": API_VERSION,
        "content-type": "application/json",
        "accept-encoding": "identity",
        "user-agent": "run_handoff.py",
    }
    attempt = Attempt()
    threading.Thread(target=attempt.talk, args=(url, headers, data, timeout_seconds), daemon=True).start()
    begun = time.monotonic()
    while not attempt.done.wait(0.1):
        passed = time.monotonic() - begun
        why = wait(passed)
        if why is None and passed >= timeout_seconds:
            why = f"no whole reply within {timeout_seconds} s"
        if why is not None:
            attempt.give_up(why)
            break
    if attempt.bug is not None:
        raise attempt.bug
    return _build_outcome(attempt, key, round((time.monotonic() - begun) * 1_000))


def _build_outcome(attempt: Attempt, key: Key, elapsed_milliseconds: int) -> Outcome:
    def header(name: str) -> str:
        return ", ".join(attempt.headers.get_all(name, [])) if attempt.headers else ""

    def clean(text: str, most: int) -> str | None:
        return shorten(show(key.remove_from_text(text)), most) or None

    body, trouble, decoded = bytes(attempt.body), attempt.trouble or "", b""
    encoding = header("content-encoding").strip().lower()
    if encoding in ("gzip", "x-gzip"):
        decoded, whole = _gunzip(body)
        body = decoded or body
        trouble = trouble or ("" if whole else "the reply's gzip encoding is broken, or holds too much")
    elif encoding not in ("identity", ""):
        trouble = trouble or f"the reply has the encoding {encoding!r}, which was not asked for"
    kept = key.remove_from(body)
    return Outcome(
        kept if attempt.http_status is not None else None,
        opened=attempt.opened,
        http_status=attempt.http_status,
        request_id=clean(header("request-id") or header("x-request-id"), 100),
        content_encoding="gzip" if decoded else None,
        key_removed=kept != body,
        elapsed_milliseconds=elapsed_milliseconds,
        trouble=clean(trouble, 200),
    )


def _gunzip(data: bytes) -> tuple[bytes, bool]:
    """Return as much as a gzip stream gives, up to the limit, and whether that is all of it."""
    import zlib

    decoder = zlib.decompressobj(wbits=31)
    try:
        text = decoder.decompress(data, REPLY_LIMIT_BYTES + 1)
    except zlib.error:
        return b"", False
    whole = decoder.eof and not decoder.unused_data and len(text) <= REPLY_LIMIT_BYTES
    return text[:REPLY_LIMIT_BYTES], whole


# --- The evidence folder and its ledger --------------------------------------

LEDGER = "ledger.jsonl"
SUMS = "SHA256SUMS"
FILES = (
    "1-request.json",
    "1-response.json",
    "2-request.json",
    "2-response.json",
    "3-request.json",
    "3-response.json",
    "checkpoint.json",
    "handoff.txt",
    LEDGER,
    "result.json",
)


class Recorder:
    """A run's evidence as it is written: files, the ledger, and the requests themselves.

    Everything is durable when a call returns. `send` takes the body of a request and returns its
    Outcome. Ctrl-C is obeyed before something new is planned or sent, and while `send` waits.
    Raises RefusedError if the folder exists or cannot be made, EvidenceError if a write fails.
    """

    def __init__(self, folder: str, key: Key, send: Callable[[bytes], Outcome], terminal: Terminal) -> None:
        self.folder, self.terminal = folder, terminal
        self._key, self._send = key, send
        self.records: list[dict[str, Any]] = []
        self._prev_sha256 = "0" * 64
        self._make_folder()
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._ledger = os.open(os.path.join(folder, LEDGER), flags, 0o600)
            checkpoint_demo.flush_folder(folder)
        except OSError as error:
            raise EvidenceError(LEDGER, error) from error

    def _make_folder(self) -> None:
        """Make the folder, which is the lock: of many processes one wins."""
        next_step = f"read it with --inspect {show(self.folder)}, or name a new one with --out DIR"
        try:
            os.mkdir(self.folder, 0o700)
            checkpoint_demo.flush_folder(os.path.dirname(self.folder) or ".")
        except FileExistsError as error:
            why = "a run's folder is evidence and is never reused"
            raise RefusedError(f"{show(self.folder)} already exists", why, next_step) from error
        except OSError as error:
            why = f"the folder cannot be made: {error.strerror or error}"
            raise RefusedError(show(self.folder), why, "name another one with --out DIR") from error

    def write(self, name: str, data: bytes) -> None:
        """Write a file beside its place, flush it, give it its name, flush the folder.

        The rename overwrites nothing: the folder is fresh, and this process's own.
        """
        path = os.path.join(self.folder, name)
        temporary = os.path.join(self.folder, f".{name}.part")
        try:
            checkpoint_demo.write_flushed(temporary, data, 0o600)
            try:
                os.rename(temporary, path)
            except OSError:
                checkpoint_demo.discard(temporary)
                raise
            checkpoint_demo.flush_folder(self.folder)
        except OSError as error:
            raise EvidenceError(name, error) from error

    def record(self, operation_id: str, state: str, **facts: Any) -> None:
        """Append one line to the ledger and flush it; a line that fails is taken back."""
        if state in (PLANNED, IN_FLIGHT):
            self.terminal.check_interrupt()
        known = {"time": _utc_now(), "operation_id": operation_id, "state": state}
        line = self._key.remove_from(encode_json({**known, **facts, "prev_sha256": self._prev_sha256}))
        end = os.fstat(self._ledger).st_size
        try:
            checkpoint_demo.write_all(self._ledger, line + b"\n")
            checkpoint_demo.flush(self._ledger)
        except OSError as error:
            os.ftruncate(self._ledger, end)
            raise EvidenceError(LEDGER, error) from error
        self._prev_sha256 = digest_bytes(line)
        self.records.append({**known, **facts})
        if state != PLANNED:
            self.terminal.talk(f"  {operation_id:20} {state.replace('_', ' ')}")

    def send(self, step: Step, data: bytes) -> Outcome:
        """Send a request whose in_flight record is durable."""
        last = self.records[-1]
        if (last["operation_id"], last["state"]) != (step.operation_id, IN_FLIGHT):
            raise RuntimeError("a request would leave that is not recorded as in flight")
        return self._send(data)

    def close(self) -> None:
        """Write SHA256SUMS over what the folder holds: the last thing in it."""
        os.close(self._ledger)
        self.write(SUMS, render_sums({name: read_evidence(self.folder, name) for name in FILES}))


def _utc_now() -> str:
    seconds, rest = divmod(time.time_ns(), 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest // 10**6:03}Z"


def render_sums(files: dict[str, bytes | None]) -> bytes:
    """Return what `sha256sum -c` reads: a digest and a name a line, for the files that are there. Pure."""
    lines = [f"{digest_bytes(data)}  {name}\n" for name, data in files.items() if data is not None]
    return "".join(lines).encode()


def read_evidence(folder: str, name: str) -> bytes | None:
    """Return a file of an evidence folder, None if it is not there; no link is followed.

    Raises EvidenceBroken for what is no regular file or longer than 64 MiB, UnreadableError.
    """
    path = os.path.join(folder, name)
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise EvidenceBroken(f"{name} is no regular file")
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
        with open(descriptor, "rb") as file:
            data = file.read(checkpoint_demo.INPUT_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(path, error.strerror or str(error)) from error
    if len(data) > checkpoint_demo.INPUT_LIMIT_BYTES:
        raise EvidenceBroken(f"{name} is longer than {checkpoint_demo.INPUT_LIMIT_BYTES:,} bytes")
    return data


# --- The rehearsal: both models, played on loopback --------------------------


class RehearsalModels:
    """Plays the sender and the receiver, and refuses what the real API refuses.

    `answer` takes a request's headers (names in lower case) and body, and returns an HTTP status
    and a reply in the API's shape. What it asks of a continued session it remembers itself.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._asked: dict[str, Any] = {}  # the request that was answered with a tool call
        self._turn: dict[str, Any] = {}  # and the assistant message of that answer

    def answer(self, headers: Mapping[str, str], data: bytes) -> tuple[int, dict[str, Any]]:
        """Return (HTTP status, body) for one request."""
        if headers.get("x-api-key") != self._key:
            return 401, self._error("authentication_error", "x-api-key is missing or unknown")
        for name, value in (("anthropic-version", API_VERSION), ("content-type", "application/json")):
            if headers.get(name) != value:
                return 400, self._error("invalid_request_error", f"the header {name} must be {value}")
        try:
            request = parse_json(data)
        except JsonError as error:
            return 400, self._error("invalid_request_error", str(error))
        fault = self._find_fault(request)
        if fault:
            return 400, self._error("invalid_request_error", fault)
        return 200, self._reply(request, len(data))

    def _error(self, kind: str, message: str) -> dict[str, Any]:
        error = {"type": kind, "message": message}
        return {"type": "error", "error": error, "request_id": f"req_{os.urandom(8).hex()}"}

    def _find_fault(self, request: Any) -> str:
        if not isinstance(request, dict) or not isinstance(request.get("model"), str):
            return "model: a string is required"
        if type(request.get("max_tokens")) is not int or request["max_tokens"] < 1:
            return "max_tokens: a positive integer is required"
        messages = request.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
            return "messages: a list of messages is required"
        if messages[0].get("role") != "user" or messages[-1].get("role") != "user":
            return "messages: the first and the last message must be the user's"
        unmatched = [
            fault
            for turn, message in enumerate(messages)
            if message.get("role") == "assistant"
            for fault in checkpoint_demo.find_unmatched_results(messages, turn)
        ]
        if unmatched:
            return str(unmatched[0])
        if len(messages) == 1:
            return ""
        changed = list_differences({**request, "messages": messages[:-2]}, self._asked)
        changed += list_differences(messages[-2], self._turn, "messages", len(messages) - 2)
        return f"{changed[0]}: not what this session was" if changed else ""

    def _reply(self, request: dict[str, Any], request_bytes: int) -> dict[str, Any]:
        stop_reason = "end_turn"
        if "tools" not in request:
            content = [{"type": "text", "text": self._work_out(request["messages"][0]["content"])}]
        elif len(request["messages"]) == 1:
            stop_reason = "tool_use"
            call_id = f"toolu_{os.urandom(8).hex()}"
            call = {"type": "tool_use", "id": call_id, "name": request["tools"][0]["name"], "input": {}}
            content = [{"type": "thinking", "thinking": "", "signature": os.urandom(24).hex()}, call]
            self._asked, self._turn = request, {"role": "assistant", "content": content}
        else:
            content = [{"type": "text", "text": "The stock was read."}]
        return {
            "id": f"msg_{os.urandom(8).hex()}",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {"input_tokens": request_bytes // 4, "output_tokens": len(render_json(content)) // 4},
        }

    def _work_out(self, prompt: str) -> str:
        """Return the result that a model would read out of the handoff prompt."""
        _, _, carried = prompt.partition("Checkpoint: ")
        try:
            checkpoint = parse_json(carried.encode())
            return render_json(checkpoint_demo.build_result(checkpoint["completed"][0]["result"]))
        except (JsonError, KeyError, TypeError, IndexError):
            return "I see no checkpoint."


class RehearsalServer:
    """A server on 127.0.0.1 that lets RehearsalModels answer, until it is closed."""

    def __init__(self, models: RehearsalModels) -> None:
        import http.server
        import socketserver
        import threading

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, reply = models.answer(headers, data)
                body = render_json(reply).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.send_header("request-id", reply.get("request_id", f"req_{reply.get('id', '')}"))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = socketserver.TCPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/messages"
        self._closing = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closing:
            self._server.handle_request()

    def close(self) -> None:
        """Stop serving; returns at once, where serve_forever's own shutdown would wait."""
        import socket

        self._closing = True
        socket.create_connection(self._server.server_address[:2]).close()  # wakes the thread
        self._thread.join()
        self._server.server_close()


# --- Inspecting a run: the same course again, against what is on disk ---------


def parse_ledger(data: bytes) -> tuple[list[dict[str, Any]], list[Finding], bool]:
    """Return (records, findings, cut) of a ledger's bytes.

    Each line must be the very bytes that the program writes for its value, and name the digest of
    the line before. Reading stops at the first line that is no record. A last line without its
    newline is left out, and `cut` says so. Pure.
    """
    *lines, rest = data.split(b"\n")
    records: list[dict[str, Any]] = []
    prev_sha256 = "0" * 64
    for number, line in enumerate(lines, 1):
        place = f"{LEDGER} line {number}"
        try:
            record = parse_json(line)
        except JsonError as error:
            return records, [Finding(place, str(error))], bool(rest)
        texts = [record.get(field) for field in ("time", "operation_id", "state")] if isinstance(record, dict) else [0]
        if not all(isinstance(text, str) for text in texts) or encode_json(record) != line:
            return records, [Finding(place, "not as this program writes a record")], bool(rest)
        findings = list_differences(record.get("prev_sha256", MISSING), prev_sha256, "prev_sha256")
        if findings:
            return records, [Finding(f"{place} {findings[0].path}", findings[0].message)], bool(rest)
        prev_sha256 = digest_bytes(line)
        records.append(record)
    return records, [], bool(rest)


class Inspector:
    """A run's evidence as it is read again: every call is compared with what was written.

    `checks` says what held, `findings` what did not, `notes` what is worth knowing. Nothing is
    believed but what only the run could see: times, HTTP statuses, request ids, and what broke.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.checks: list[str] = []
        self.findings: list[Finding] = []
        self.notes: list[str] = []
        self.records: list[dict[str, Any]] = []  # as they must be, up to where the course has come
        self.files = {name: self._read(name) for name in (*FILES, SUMS)}
        self.due = {LEDGER}  # the files that the course has come to
        self.ledger, findings, cut = parse_ledger(self.files[LEDGER] or b"")
        self.findings += findings
        if cut:
            self.notes.append(f"{LEDGER}: the last line was cut while it was written, and is left out")

    def _read(self, name: str) -> bytes | None:
        try:
            return read_evidence(self.folder, name)
        except EvidenceBroken as error:
            self.findings.append(Finding(name, str(error)))
            return None

    def _next(self) -> dict[str, Any]:
        if len(self.records) == len(self.ledger):
            raise EvidenceEnds
        return self.ledger[len(self.records)]

    def write(self, name: str, data: bytes) -> None:
        """Compare a file with what the run must have written there."""
        self.due.add(name)
        stored = self.files[name]
        if stored == data:
            self.checks.append(f"{name} is what this run must have written")
            return
        if stored is None and len(self.records) == len(self.ledger):
            raise EvidenceEnds
        try:
            differences = list_differences(parse_json(stored or b""), parse_json(data))
        except JsonError:
            differences = [] if stored is not None else [Finding("$", "the file is missing")]
        first = differences[0] if differences else Finding("$", "other bytes than the run must have written")
        self.findings.append(Finding(f"{name} {first.path}", first.message))

    def record(self, operation_id: str, state: str, **facts: Any) -> None:
        """Compare the ledger's next line with what the run must have recorded."""
        observed = self._next()
        if observed["operation_id"] == RUN != operation_id and observed["state"] in (FAILED, UNCLEAR):
            raise self._closed_early(observed)
        place = f"{LEDGER} line {len(self.records) + 1}"
        own = {field: observed.get(field) for field in ("time", "prev_sha256")}
        expected = {"operation_id": operation_id, "state": state, **facts, **own}
        for finding in list_differences(observed, expected):
            self.findings.append(Finding(f"{place} {finding.path}", finding.message))
        if (observed["operation_id"], observed["state"]) != (operation_id, state):
            raise EvidenceBroken(place)
        self.records.append({"time": observed["time"], "operation_id": operation_id, "state": state, **facts})

    def send(self, step: Step, data: bytes) -> Outcome:
        """Return the outcome that the ledger and the stored reply tell of."""
        observed = self._next()
        if observed["operation_id"] == RUN:
            raise self._closed_early(observed)
        facts = {field: observed[field] for field in Outcome.FIELDS if field in observed}
        for field, value in facts.items():
            if type(value) is not Outcome.FIELDS[field]:
                self.findings.append(Finding(f"{LEDGER} line {len(self.records) + 1} {field}", describe(value)))
                raise EvidenceBroken(field)
        body = self.files[f"{step.number}-response.json"] if "response_sha256" in observed else None
        return Outcome(body, **facts)

    def _closed_early(self, observed: dict[str, Any]) -> RunEnded:
        """Return how a run says that it ended between two records: interrupted, or unable to write."""
        lost = bool(self.records) and self.records[-1]["state"] == IN_FLIGHT
        why = observed.get("why")
        return RunEnded(
            UNCLEAR if lost else FAILED, why if isinstance(why, str) else "", EXIT_UNCLEAR if lost else EXIT_FAILED
        )


    def check_leftovers(self, closed: bool) -> None:
        """Find records behind the run's last one, and files that the course did not come to.

        The reply to a request that is unclear may lie there without a record: it is only noted.
        """
        if closed and len(self.records) < len(self.ledger):
            place = f"{LEDGER} line {len(self.records) + 1}"
            self.findings.append(Finding(place, "a record behind the run's last one"))
        states = {record["operation_id"]: record["state"] for record in self.records}
        unclear = [f"{step.number}-response.json" for step in STEPS if states.get(step.operation_id) in (IN_FLIGHT, UNCLEAR)]
        for name in (*FILES, SUMS):
            if self.files[name] is None or name in self.due or (closed and name == SUMS) or self.findings:
                continue
            if name in unclear:
                self.notes.append(f"{name} is there, but no record vouches for it")
            else:
                self.findings.append(Finding(name, "there, though the records do not come to it"))


def inspect_run(folder: str) -> tuple[Inspector, int, str]:
    """Return (inspector, exit code, verdict) for an evidence folder, from its files alone.

    1. Read every file; follow no link. 2. Check the ledger's lines and their chain. 3. Go through
    the run again, and compare each file and record. 4. Nothing may be left over. 5. Check SHA256SUMS.
    Raises UnreadableError for what cannot be read or is no run's folder.
    """
    # 1. and 2.
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UnreadableError(folder, error.strerror or str(error), "name a run's folder") from error
    inspector = Inspector(folder)
    if LEDGER not in names and not set(names) & {*FILES, SUMS} and any(not n.endswith(".part") for n in names):
        raise UnreadableError(folder, f"it holds no {LEDGER}", "name a run's folder")
    inspector.notes += [f"{show(name)} is not part of a run" for name in names if name not in (*FILES, SUMS)]
    # 3.
    code, verdict, closed = EXIT_FAILED, "", False
    try:
        plan = _read_plan(inspector)
        code, verdict = carry_out(inspector, plan)
        closed = True
    except EvidenceEnds:
        lost = bool(inspector.records) and inspector.records[-1]["state"] == IN_FLIGHT
        code = EXIT_UNCLEAR if lost else EXIT_FAILED
        state = "a request in flight" if lost else "nothing in flight"
        verdict = f"the run was ended before it closed, with {state}"
    except EvidenceBroken:
        pass
    # 4.
    inspector.check_leftovers(closed)
    # 5.
    if closed:
        sums = render_sums({name: inspector.files[name] for name in FILES})
        if inspector.files[SUMS] is None:
            inspector.findings.append(Finding(SUMS, "missing, though the run was closed"))
        elif inspector.files[SUMS] != sums:
            inspector.findings.append(Finding(SUMS, "not the digests of the files that are here"))
        else:
            inspector.checks.append(f"{SUMS} holds the digests of all files")
    if inspector.findings:
        return inspector, EXIT_REJECTED, "the evidence does not hold"
    return inspector, code, verdict


def _read_plan(inspector: Inspector) -> Plan:
    if not inspector.ledger:
        raise EvidenceEnds if not inspector.findings else EvidenceBroken
    first = inspector.ledger[0]
    facts = {field: first.get(field) for field in Plan.FIELDS}
    if any(type(facts[field]) is not kind for field, kind in Plan.FIELDS.items()):
        inspector.findings.append(Finding(f"{LEDGER} line 1", "not the record that a run begins with"))
        raise EvidenceBroken
    return Plan(**facts, rows=checkpoint_demo.STOCK)


# --- What a person sees of a run ---------------------------------------------

_NEXT_STEPS = {
    EXIT_REJECTED: "read the evidence; a new run needs a new folder, see --out",
    EXIT_FAILED: "mend the cause, then start a new run in a new folder, see --out",
    EXIT_UNCLEAR: (
        "it may have been processed and billed: look it up at the provider (usage page, request id)"
        " before anything is sent again"
    ),
    EXIT_INTERRUPTED: "start a new run in a new folder, see --out",
}


def render_table(records: list[dict[str, Any]]) -> str:
    """Return a run's requests as a table of at most 80 columns, from its ledger's records. Pure."""
    lines = [("request", "model", "state", "tokens", "s", "cost")]
    for step in STEPS:
        own = [record for record in records if record["operation_id"] == step.operation_id]
        last = own[-1] if own else {}
        asked = records[0].get("receiver" if step is HANDOFF else "sender") if records else None
        usage = last.get("usage")
        tokens = [usage.get(field, "?") for field in ("input_tokens", "output_tokens")] if isinstance(usage, dict) else []
        elapsed = last.get("elapsed_milliseconds")
        lines.append(
            (
                step.operation_id,
                shorten(str(asked).rpartition("/")[2], 20),
                str(last.get("state", "not planned")).replace("_", " "),
                "/".join(map(str, tokens)) or "-",
                f"{elapsed / 1_000:.1f}" if isinstance(elapsed, int) else "-",
                str(last.get("cost_usd", "-")),
            )
        )
    total = str(records[-1].get("cost_usd", "-")) if records else "-"
    lines.append(("together", "", "", "", "", total))
    return "\n".join(f"{a:20} {b:20} {c:11} {d:>9} {e:>5} {f:>9}".rstrip() for a, b, c, d, e, f in lines)


def _list_model_changes(records: list[dict[str, Any]]) -> list[str]:
    """Return a line for each reply whose model is not the one that was asked for."""
    lines = []
    for step in STEPS:
        asked = records[0].get("receiver" if step is HANDOFF else "sender") if records else None
        for record in records:
            if record["operation_id"] == step.operation_id and record["state"] == CONFIRMED:
                answered = record.get("model", MISSING)
                if answered != asked:
                    lines.append(f"warning: {step.operation_id} was answered by {describe(answered)}, asked was {asked}")
    return lines


def _conclude(terminal: Terminal, recorder: Recorder, code: int, verdict: str) -> int:
    """Close the evidence, show the table and the verdict; return the exit code or raise RunError."""
    try:
        recorder.close()
    except EvidenceError as error:
        code, verdict = (EXIT_FAILED, f"{verdict}, but {error}") if code == EXIT_DONE else (code, verdict)
    for line in _list_model_changes(recorder.records):
        terminal.talk(line, "yellow")
    terminal.result(render_table(recorder.records))
    if code != EXIT_DONE:
        raise _build_run_error(code, verdict, recorder.folder)
    terminal.result(verdict, "green")
    return code


def _build_run_error(code: int, why: str, folder: str) -> RunError:
    words = {EXIT_REJECTED: "rejected", EXIT_UNCLEAR: "unclear", EXIT_INTERRUPTED: "interrupted"}
    what = f"the run in {show(folder)}"
    return RunError(words.get(code, "failed"), what, why, _NEXT_STEPS[code], code)


# --- Command line ------------------------------------------------------------


def check_endpoint(url: str) -> None:
    """Raise RefusedError unless a key may be sent to the URL: https, or http on loopback."""
    import ipaddress
    import urllib.parse

    def refuse(why: str) -> RefusedError:
        return RefusedError(f"the endpoint {show(url)}", why, "name an https URL, or http on 127.0.0.1 or localhost")

    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError as error:  # a UnicodeError is one
        raise refuse("it is no URL") from error
    if not re.fullmatch("[!-~]+", url) or "\\" in url or not host:
        raise refuse("it is no URL with a host, in printable ASCII")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise refuse("a user name, a password or a fragment stands in it")
    if parts.scheme == "https":
        return
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if parts.scheme != "http" or not loopback:
        raise refuse("the key would go over the network unencrypted")


def read_key(variable: str) -> Key:
    """Return the key that an environment variable holds, or raise RefusedError; it is never shown."""
    value = os.environ.get(variable)
    then = f"set it with: export {show(variable)}=..."
    if not value:
        raise RefusedError(f"no key in {show(variable)}", "the environment variable is not set, or empty", then)
    if not re.fullmatch("[!-~]{16,}", value):
        why = "a key is 16 or more printable ASCII characters without spaces"
        raise RefusedError(f"the key in {show(variable)}", why, then)
    return Key(value)


def _model_id(text: str) -> str:
    import argparse

    if not re.fullmatch("[!-~]{1,200}", text):
        raise argparse.ArgumentTypeError(f"expected a model id in printable ASCII, observed {text!r}")
    return text


def _build_parser(terminal: Terminal) -> checkpoint_demo.Parser:
    positive_int = checkpoint_demo.positive_int
    parser = checkpoint_demo.Parser(
        terminal, "", "Without a mode: check this program, and rehearse a whole run on loopback in a temporary folder."
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--rehearse", action="store_true", help="rehearse on loopback, and keep the folder")
    mode.add_argument("--live", action="store_true", help="send up to three paid requests")
    mode.add_argument("--inspect", metavar="DIR", help="judge a run again from its files alone")
    parser.add_argument("--out", metavar="DIR", help="the run's folder (default: handoff-run or handoff-rehearsal)")
    parser.add_argument("--endpoint", metavar="URL", help=f"with --live (default: {ENDPOINT})")
    parser.add_argument("--key-env", metavar="NAME", help=f"where the key is (default: {KEY_ENVIRONMENT})")
    parser.add_argument("--sender", metavar="MODEL", type=_model_id, help=f"default: {SENDER_MODEL}")
    parser.add_argument(
        "--receiver", metavar="MODEL", type=_model_id, help=f"default: {checkpoint_demo.RECEIVER_MODEL}"
    )
    parser.add_argument("--max-tokens", metavar="N", type=positive_int, help="a reply's limit (default: 4096)")
    parser.add_argument("--timeout", metavar="SECONDS", type=positive_int, help="a request's limit (default: 180)")
    parser.add_argument("--json", action="store_true", help="with --inspect: print one machine-readable object")
    return parser


def _check_options(options: Any) -> None:
    """Raise UsageError for an option that its mode does not know, instead of ignoring it."""
    limits = {"sender", "receiver", "max_tokens", "timeout"}
    if options.inspect is not None:
        mode, known = "--inspect", {"json"}
    elif options.live:
        mode, known = "--live", {"out", "endpoint", "key_env", *limits}
    else:
        mode, known = "a rehearsal", {*limits, *(["out"] if options.rehearse else [])}
    for name, value in vars(options).items():
        if value not in (None, False) and name not in {"rehearse", "live", "inspect", *known}:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} does not go with {mode}", "it would have no effect", "leave it out")


def _build_plan(options: Any, endpoint: str, rehearsal: bool) -> Plan:
    return Plan(
        endpoint,
        options.sender or SENDER_MODEL,
        options.receiver or checkpoint_demo.RECEIVER_MODEL,
        options.max_tokens or checkpoint_demo.MAX_TOKENS,
        options.timeout or TIMEOUT_SECONDS,
        rehearsal,
        checkpoint_demo.STOCK,
    )


def _perform(terminal: Terminal, plan: Plan, key: Key, folder: str) -> int:
    """Do a run, live or rehearsed, in a new folder; nothing ends it but its own course."""
    terminal.redact = key.remove_from_text
    terminal.holding = True

    def wait(passed: float) -> str | None:
        terminal.progress(f"  waiting, {passed:.0f} s")
        return "interrupted by Ctrl-C" if terminal.interrupted else None

    def send(data: bytes) -> Outcome:
        return send_request(plan.endpoint, key, data, plan.timeout_seconds, wait)

    folder = folder.rstrip(os.sep) or folder
    try:
        recorder = Recorder(folder, key, send, terminal)
        code, verdict = carry_out(recorder, plan)
    except EvidenceError as error:
        raise _build_run_error(EXIT_FAILED, str(error), folder) from error
    return _conclude(terminal, recorder, code, verdict)


def _cmd_live(terminal: Terminal, options: Any) -> int:
    plan = _build_plan(options, options.endpoint or ENDPOINT, rehearsal=False)
    folder = options.out or "handoff-run"
    check_endpoint(plan.endpoint)
    key = read_key(options.key_env or KEY_ENVIRONMENT)
    if any(key.value in text for text in (plan.endpoint, plan.sender, plan.receiver, folder)):
        raise RefusedError("the key stands in another option", "it would be written down", "leave it out there")
    if os.path.lexists(folder.rstrip(os.sep) or folder):
        Recorder.refuse_existing(folder)
    terminal.talk("this run sends up to three paid requests, and repeats none:")
    terminal.talk(f"  endpoint  {show(plan.endpoint)}")
    terminal.talk(f"  sender    {plan.sender} (two requests)")
    terminal.talk(f"  receiver  {plan.receiver} (one request)")
    terminal.talk(f"  folder    {show(folder)}")
    ceiling = render_usd(estimate_ceiling(plan))
    terminal.talk(f"  cost      at most {ceiling} dollars, for planning: no guarantee")
    return _perform(terminal, plan, key, folder)


def _rehearse(terminal: Terminal, options: Any, folder: str) -> int:
    key = Key(f"rehearsal-{os.urandom(16).hex()}")
    server = RehearsalServer(RehearsalModels(key.value))
    try:
        plan = _build_plan(options, server.url, rehearsal=True)
        terminal.talk(f"rehearsal on {server.url}: nothing leaves this machine, nothing is paid")
        return _perform(terminal, plan, key, folder)
    finally:
        server.close()


def _cmd_prove(terminal: Terminal, options: Any) -> int:
    """Check this program, rehearse in a temporary folder, and inspect what that left."""
    import tempfile

    checks = [passed for _, _, passed in checkpoint_demo.run_self_test()]
    terminal.result(f"local checks: {sum(checks)} passed, {len(checks) - sum(checks)} failed")
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        code = _rehearse(terminal, options, run)
        return max(_cmd_inspect(terminal, run, as_json=False), code, EXIT_REJECTED if not all(checks) else EXIT_DONE)


def _cmd_inspect(terminal: Terminal, folder: str, as_json: bool) -> int:
    inspector, code, verdict = inspect_run(folder)
    if as_json:
        found = [{"path": finding.path, "message": finding.message} for finding in inspector.findings]
        report = {"verdict": verdict, "exit_code": code, "findings": found}
        terminal.result(render_json({**report, "checks": inspector.checks, "notes": inspector.notes}, 2))
        return code
    terminal.result(render_table(inspector.ledger))
    for check in inspector.checks:
        terminal.result(f"ok: {check}")
    for note in inspector.notes:
        terminal.talk(f"note: {note}")
    for finding in inspector.findings:
        terminal.talk(str(finding))
    terminal.result("this shows that the files agree with each other; not who wrote them, nor when")
    if code != EXIT_DONE:
        raise _build_run_error(code, verdict, folder)
    terminal.result(verdict, "green")
    return code


def _run(terminal: Terminal, arguments: list[str]) -> int:
    try:
        options = _build_parser(terminal).parse_args(arguments)
    except checkpoint_demo.HelpShown:
        return EXIT_DONE
    _check_options(options)
    if options.inspect is not None:
        return _cmd_inspect(terminal, options.inspect, options.json)
    if options.live:
        return _cmd_live(terminal, options)
    if options.rehearse:
        return _rehearse(terminal, options, options.out or "handoff-rehearsal")
    return _cmd_prove(terminal, options)


def main(argv: list[str] | None = None) -> int:
    """Run one mode; `argv` is what follows the program's name (default: sys.argv's). Returns its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return checkpoint_demo.run_command("run_handoff.py", lambda terminal: _run(terminal, arguments))


if __name__ == "__main__":
    checkpoint_demo.open_missing_descriptors()
    sys.exit(main())
