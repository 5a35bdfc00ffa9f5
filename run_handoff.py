#!/usr/bin/env python3
"""Hand a task from one model to another: three requests, each recorded before it leaves.

    $ python3 run_handoff.py --live
    ...
    accepted: 3 rows, total shortage 7
    $ python3 run_handoff.py --live
    run_handoff.py: refused: handoff-run already exists
      why: a run's folder is evidence and is never reused
      next: read it with --inspect handoff-run, or name a new one with --out DIR

With --receiver-only it does the last of them alone, with --session FILE it goes on with a session record.
Without --live nothing leaves this machine: alone it checks itself and rehearses, --rehearse keeps the
rehearsal's folder, --inspect DIR judges a folder again. No request is sent twice; the ledger says what
became of each: planned, in flight, confirmed, failed or unclear.

Exit codes: 0 accepted; 1 an answer or a record was rejected, or evidence does not hold; 2 usage, or a
file that cannot be read; 3 refused, nothing sent; 4 failed or ended before it closed, evidence kept; 5 a
request is unclear; 70 a bug in this program; 130 interrupted with nothing in flight.
"""

from __future__ import annotations

import base64
import datetime
import errno
import html
import json
import os
import re
import signal
import stat
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product, takewhile
from typing import Any, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # which -P and -I leave out
try:
    import checkpoint_demo as demo
except KeyboardInterrupt:  # which takes long enough to be met by one
    sys.exit(130)
except ImportError as missing:
    print(f"run_handoff.py: cannot start: {missing}", file=sys.stderr)
    print("  why: it needs checkpoint_demo.py beside it, and all of Python's library", file=sys.stderr)
    print("  next: put both scripts into one folder", file=sys.stderr)
    sys.exit(2)

Json = dict[str, Any]  # an object as it was parsed: a message, a request, a record, a row
Rows = list[Json]
Records = list[Json]  # of a ledger
Findings = Sequence[demo.Finding]
Watch = Callable[[float], bool]  # takes the seconds that have passed
Send = Callable[["Step", bytes], "Outcome"]  # takes a request's body

EXIT_FAILED, EXIT_UNCLEAR = 4, 5
ENDPOINT = "https://api.ofox.ai/anthropic/v1/messages"
KEY_ENVIRONMENT = "OFOX_API_KEY"
LEDGER, REPORT, SUMS = "ledger.jsonl", "report.html", "SHA256SUMS"
CHECKPOINT, PROMPT, RESULT = "checkpoint.json", "handoff.txt", "result.json"
SESSION, REPLY = "session.json", "reply.json"
HEADERS = {
    "content-type": "application/json",
    "accept-encoding": "identity",
    "user-agent": "run_handoff.py",
}
KEY_MARK = "[key removed]"  # replaces a key
HEAD_LIMIT_BYTES = 2 * 65_536  # of a reply's status line and headers
REPLY_LIMIT_BYTES = 4 * 2**20
REPLY_LIMIT_ITEMS = 100_000  # a parsed item takes up to 250 bytes of memory, its text as few as 2

# --- Errors ------------------------------------------------------------------

INTERRUPTED, OTHER = "interrupted", "other"
_NEW_RUN = "start a new run in a new folder, see --out"
# What mends the cause of a failed run, by its code.
_MENDS = {
    "network": "look at the endpoint, the network and the proxy",
    "certificate": "set SSL_CERT_FILE to the file of your company's, or your proxy's, certificate authority",
    "key": "look at the key",
    "address": "look at the endpoint and the models",
    "load": "wait",
    "loopback": "allow programs to listen and connect on 127.0.0.1",
    "tokens": "give another --max-tokens",
    OTHER: "mend the cause, if there is one",
}
_CAUSES = {401: "key", 403: "key", 404: "address", 429: "load", 529: "load"}  # by HTTP status
# What a person reads about a run without an accepted answer, by its verdict: (why, what to do next).
_ENDS = {
    "rejected": (
        "only an answer that was proved right is accepted",
        f"compare the answer with the source, in the run's {REPORT}, then {_NEW_RUN}",
    ),
    "broken": (
        "evidence is only worth something as a whole",
        "keep the folder as it is; unless --source named another source than the run's, treat every request"
        " in it as unclear, and look it up with the provider",
    ),
    "incomplete": (
        "a run's evidence ends with its report and the digests of its files",
        "keep the folder as it is; --html writes the report into another place",
    ),
    "failed": ("a run that cannot go on is ended, and nothing is sent again", "{mend}, then " + _NEW_RUN),
    "unclear": (
        "a request that may have been processed may have been billed",
        f"look it up with the provider by its time and its request id; only then {_NEW_RUN}",
    ),
    "interrupted": ("Ctrl-C was pressed", _NEW_RUN),
    "unfit": (
        "a reply that is not whole, or that repeats an operation, must not be acted on",
        f"read it in the run's {REPORT}, then {_NEW_RUN}",
    ),
}
_REHEARSED = "a rehearsal asks no model, and costs nothing", "do it again with --rehearse and a new --out DIR"
_VERDICTS = {
    demo.EXIT_DONE: "accepted",
    demo.EXIT_REJECTED: "rejected",
    EXIT_FAILED: "failed",
    EXIT_UNCLEAR: "unclear",
    demo.EXIT_INTERRUPTED: "interrupted",
}


class RunEnded(Exception):
    """A run ends without an accepted answer: with `exit_code`, because of `why`.

    `cause` is INTERRUPTED, or the code in _MENDS of what mends the run; `findings` are what was judged.
    """

    def __init__(self, exit_code: int, why: str, cause: str = OTHER, findings: Findings = ()) -> None:
        self.exit_code, self.why, self.cause, self.findings = exit_code, why, cause, findings


class EvidenceError(Exception):
    """A file of the evidence folder could not be written, or a reply is `kept` that could not be named."""

    def __init__(self, name: str, error: Exception, kept: str = "") -> None:
        reason = error.what if isinstance(error, demo.HandoffError) else demo.explain(error)
        broken = f"named: {reason}; the reply is kept as {kept}" if kept else f"written: {reason}"
        super().__init__(f"{name} could not be {broken}")


class EvidenceEnds(Exception):
    """The records end before the run was closed, as after a kill, or are not those of this run."""


class EvidenceBroken(demo.Finding, Exception):
    """The evidence is not what any run leaves; raised, it is a finding all the same."""


class RunError(demo.HandoffError):
    """A run has no accepted answer, or its evidence does not hold; the evidence is kept."""

    def __init__(self, exit_code: int, folder: str, end: str, records: Records, verdict: str) -> None:
        self.exit_code, self.verdict, self.cause = exit_code, verdict, find_cause(records)
        super().__init__(f"the run in {demo.show(folder)}: {demo.show(end)}", *explain_end(verdict, records))


def explain_end(verdict: str, records: Records) -> tuple[str, str]:
    """Return why a run has no accepted answer, and what a person does next; empty for one that has."""
    if is_rehearsal(records) and verdict in ("broken", "unclear"):
        return _REHEARSED
    if verdict == "rejected" and find_steps(records) == (GOING_ON,):
        verdict = "unfit"
    why, next_step = _ENDS.get(verdict, ("", ""))
    return why, next_step.format(mend=_MENDS.get(find_cause(records), _MENDS[OTHER]))


# --- The wires: what each API asks of a request, and how it counts tokens -----

# What demo.APIS does not say of an API: its requests ({model} and {key} are filled in), the models that a
# rehearsal asks, and what its usage calls the tokens (the ledger's names, without _tokens).
_WIRES_TEXT = """
                     | messages                      | chat                        | gemini
path                 | /v1/messages            | /v1/chat/completions | /v1beta/models/{model}:generateContent
key                  | x-api-key: {key}              | authorization: Bearer {key} | x-goog-api-key: {key}
version              | anthropic-version: 2023-06-01 |                             |
sender               | anthropic/claude-fable-5.2    | kimi-k3                     | gemini-3.5-flash
receiver             | anthropic/claude-opus-5.5     | kimi-k3                     | gemini-3.5-flash
usage                | usage                         | usage                       | usageMetadata
input                | input_tokens                  | prompt_tokens               | promptTokenCount
output               | output_tokens                 | completion_tokens           | candidatesTokenCount
thinking             |                               | reasoning_tokens            | thoughtsTokenCount
cache_creation_input | cache_creation_input_tokens   |                             |
cache_read_input     | cache_read_input_tokens       | cached_tokens               | cachedContentTokenCount
total                |                               | total_tokens                | totalTokenCount
"""
WIRES = demo.read_columns(_WIRES_TEXT)
# Beside them: the fields of usage that cost nothing where all in them is null, 0, or a value named here; one
# with None counts parts of the tokens again, inside such a field.
_NEUTRAL: dict[str, dict[str, tuple[str, ...] | None]] = {
    demo.MESSAGES: {
        **dict.fromkeys(("cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation"), ()),
        **dict.fromkeys(("server_tool_use", "fallback_credit", "output_tokens_details", "iterations"), ()),
        **dict.fromkeys(("service_tier", "speed"), ("standard",)),
        "inference_geo": ("global", "not_available"),
        "type": ("message",),  # of an iteration; a compaction is one of another type
        **dict.fromkeys(("input_tokens", "output_tokens", "thinking_tokens")),
    },
    demo.CHAT: {
        **dict.fromkeys(("prompt_tokens_details", "completion_tokens_details", "cached_tokens"), ()),
        "reasoning_tokens": None,
    },
    demo.GEMINI: {
        **dict.fromkeys(("promptTokensDetails", "candidatesTokensDetails", "cacheTokensDetails"), ()),
        **dict.fromkeys(("cachedContentTokenCount", "toolUsePromptTokenCount"), ()),
        "modality": ("TEXT",),
        "trafficType": ("ON_DEMAND",),
        "tokenCount": None,
    },
}


def build_headers(api: str, key: str) -> dict[str, str]:
    """Return the headers of a request; the first one holds the key."""
    own = (line.format(key=key).split(": ") for line in (WIRES[api].key, WIRES[api].version) if line)
    return {**dict(own), **HEADERS}


# --- Tokens and money: whole micro-dollars; all of it is pure -----------------

_TOKEN_FIELDS = ("input_tokens", "output_tokens")
_COUNTS = ("input", "output", "thinking", "cache_creation_input", "cache_read_input")
_MOST_COUNT = 10**9

# The list price in dollars a million tokens, which is micro-dollars a token: (input, output).
PRICES_MICRO_USD = {
    "anthropic/claude-fable-5.2": (8, 40),
    "anthropic/claude-fable-5.1": (10, 50),
    "anthropic/claude-opus-5.5": (4, 20),
    "claude-fable-5-2": (8, 40),
    "claude-fable-5-1": (10, 50),
    "claude-opus-5-5": (4, 20),
}


def parse_usage(message: Json, api: str = demo.MESSAGES) -> dict[str, int]:
    """Return the token counts of a reply by the ledger's names: integers from 0 to 10^9, others are left out.

    Thinking is a part of the output; where an API counts it apart it is added.
    """
    names = {vars(WIRES[api])[name]: f"{name}_tokens" for name in _COUNTS}
    usage = message.get(WIRES[api].usage)
    counts: dict[str, int] = {}
    for field, value in usage.items() if type(usage) is dict else ():
        inner = value.items() if field.endswith("_details") and type(value) is dict else [(field, value)]
        counts.update((names[name], n) for name, n in inner if name in names and _is_count(n))
    if api == demo.GEMINI and "thinking_tokens" in counts:
        counts["output_tokens"] = counts.get("output_tokens", 0) + counts["thinking_tokens"]
    return counts


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_COUNT


def list_prices(*models: str) -> dict[str, list[int]]:
    """Return the list prices of those of the models that have one, as a run records them."""
    return {model: list(PRICES_MICRO_USD[model]) for model in models if model in PRICES_MICRO_USD}


def compute_cost(price: Sequence[int] | None, message: Json, api: str = demo.MESSAGES) -> int | None:
    """Return what a reply costs in micro-dollars at list price, or None where that is unknown.

    The price is (input, output), None for a model without one. It is computed from usage, and is not
    an invoice.
    """
    if price is None or find_cost_gap(message, api):
        return None
    counts = parse_usage(message, api)
    return counts["input_tokens"] * price[0] + counts["output_tokens"] * price[1]


def find_cost_gap(message: Json, api: str = demo.MESSAGES) -> str:
    """Return the first field by which the price list does not cover a reply, "" if it covers all of it.

    Covered is: tokens in and out (0 out only where there is no content), their sum, and beside them nothing
    but fields that are known to cost nothing as they are.
    """
    wire = WIRES[api]
    usage, counts = message.get(wire.usage), parse_usage(message, api)
    if type(usage) is not dict:
        return str(wire.usage)
    turn = demo.read_reply(message, api)
    is_empty = turn is not None and not turn["parts"] and "output_tokens" in counts
    odd = [] if counts.get("input_tokens") else [wire.input]
    odd += [] if counts.get("output_tokens") or is_empty else [wire.output]
    for name, value in usage.items():
        if name in (wire.input, wire.output, wire.thinking):
            is_right = value is None or _is_count(value)
        elif name == wire.total:
            is_right = value == sum(counts.get(part, 0) for part in _TOKEN_FIELDS)
        else:
            is_right = _NEUTRAL[api].get(name) is not None and _is_neutral(api, name, value)
        odd += [] if is_right else [name]
    odd += [wire.thinking] if counts.get("thinking_tokens", 0) > counts.get("output_tokens", 0) else []
    if api == demo.CHAT and message.get("service_tier") not in (None, "default", "standard"):
        return "service_tier"
    return f"{wire.usage}.{demo.shorten(demo.show(odd[0]))}" if odd else ""


def _is_neutral(api: str, name: str, value: Any) -> bool:
    """Return whether nothing in a field costs anything: see _NEUTRAL."""
    if isinstance(value, (dict, list)):
        fields = value.items() if isinstance(value, dict) else ((name, item) for item in value)
        return all(_is_neutral(api, *field) for field in fields)
    right = _NEUTRAL[api].get(name, ())
    if value is None or (type(value) is int and value == 0):
        return True
    return value in right if right is not None else api == demo.MESSAGES or _is_count(value)


def render_usd(micro_usd: int | None) -> str:
    """Return micro-dollars as dollars, e.g. 4816 -> 0.004816, and None -> unknown."""
    return "unknown" if micro_usd is None else f"{micro_usd // 10**6}.{micro_usd % 10**6:06}"


def add_costs(costs: Sequence[int | None]) -> int | None:
    """Return costs together; None if one of them is unknown."""
    return None if None in costs else sum(cost or 0 for cost in costs)


def compute_cost_per_accepted(costs: list[int | None], accepted: int) -> tuple[int, int] | None:
    """Return what one accepted answer costs: (whole micro-dollars, what is left over of the sum).

    `costs` are those of all attempts in micro-dollars, the failed ones too. None where one is
    unknown, or nothing was accepted. Exact: sum(costs) == accepted * whole + rest.
    """
    total = add_costs(costs)
    return None if total is None or not accepted else divmod(total, accepted)


# --- The requests; all of it is pure -----------------------------------------

RUN = "run"
FORMAT = 2  # of the evidence: to be raised with any change after which an older folder would not hold
_ANY_TEXT = "(?s).*"  # judged elsewhere
_VERSION = r"[0-9]{1,4}(\.[0-9]{1,4}){1,2}"
_API, _MODEL = "messages|chat|gemini", "[!-~]{1,200}"
# Each with its kind, and with the pattern that it has in every run.
PLAN_FACTS: dict[str, tuple[type, str]] = {
    "version": (str, _VERSION),  # of the program that did the run
    "format": (int, "[1-9][0-9]*"),
    "task": (str, _ANY_TEXT),
    "task_sha256": (str, "([0-9a-f]{64})?"),  # of the task's file, "" for the built-in task
    "prices": (dict, _ANY_TEXT),  # in micro-dollars a token, by model: [input, output]
    "endpoint": (str, _ANY_TEXT),
    "sender": (str, f"({_MODEL})?"),  # "" where none is asked, as in all facts of the sender
    "receiver": (str, _MODEL),
    "max_tokens": (int, "[0-9]+"),  # 0 where a session record has no limit
    "timeout_seconds": (int, "[1-9][0-9]{0,4}"),
    "rehearsal": (bool, _ANY_TEXT),
    "course": (str, "task|receiver-only|session"),
    "sender_api": (str, f"({_API})?"),
    "receiver_api": (str, _API),
    "receiver_endpoint": (str, _ANY_TEXT),  # "" where it is that of the sender
    "options": (list, r"\[('fresh'(, )?)?('no_reasoning'(, )?)?('unclear'(, )?)?('leave_out')?\]"),
    "session_api": (str, f"({_API})?"),  # as --from and --issuer gave them
    "session_issuer": (str, f"({_MODEL})?"),
    "source_sha256": (str, "[0-9a-f]{64}"),  # of the source's rows, or of session.json
}
# What the facts that format 1 does not have were in its runs.
_FORMAT_1: Json = {"course": "task", "sender_api": demo.MESSAGES, "receiver_api": demo.MESSAGES}
_FORMAT_1.update(receiver_endpoint="", options=[], session_api="", session_issuer="")


class Step(NamedTuple):
    """One request of a run: who is asked, and its files."""

    operation_id: str
    asks: str  # the sender or the receiver
    request_file: str
    response_file: str


TOOL_REQUEST = Step("sender-tool-request", "sender", "1-request.json", "1-response.json")
TOOL_RESULT = Step("sender-tool-result", "sender", "2-request.json", "2-response.json")
HANDOFF = Step("receiver-handoff", "receiver", "3-request.json", "3-response.json")
GOING_ON = Step("receiver-handoff", "receiver", "1-request.json", "1-response.json")
STEPS = (TOOL_REQUEST, TOOL_RESULT, HANDOFF)  # of a whole task; COURSES has those of each course


class Record(NamedTuple):
    """A session record: its bytes, the session, the body that goes on with it, and what that loses."""

    data: bytes
    session: demo.Node
    body: Json
    losses: list[demo.Finding]

    @property
    def max_tokens(self) -> int:
        """The token limit of the body, 0 where it has none."""
        return min(demo.find_limit(self.body)[1] or 0, _MOST_COUNT)

    def list_facts(self) -> dict[str, list[str]]:
        """Return what a person is to know: operations that are carried, unclear ones, and what is noted."""
        facts: dict[str, list[str]] = {"carried": [], "unclear": []}
        for operation_id, _, result in demo.list_operations(self.session["turns"]):
            facts["unclear" if result is None else "carried"].append(operation_id)
        return {**facts, "noted": [str(loss) for loss in self.losses]}


# The settings that ask for anything else, and what they may be.
_ONE_REPLY: Json = {"stream": False, "stream_options": None, "n": 1, "candidateCount": 1}
_ONE_REPLY.update(modalities=["text"], audio=None)


def read_record(data: bytes, facts: Json) -> Record:
    """Return the session record that a file holds, on its way to the receiver that the facts name.

    Raises InputError or HandoffError for what is not a session record, SessionError for one that cannot go.
    """
    value = demo.parse_json(data)
    record_api = demo.tell_api(value, facts["session_api"] or None)
    session = demo.read_session(value, record_api, facts["session_issuer"] or None)
    api, model, options = facts["receiver_api"], facts["receiver"], facts["options"]
    if "fresh" in options:
        body, losses = demo.convert_fresh(session, api, model)
    else:
        body, losses = demo.convert(session, api, model, options)
    if type(body) is list:  # at home a bare list is the whole record
        body = {demo.APIS[api].messages: body, **demo.keep_limit({}, api)}
        body.update({"model": model} if demo.APIS[api].model else {})
    fields = [body]
    if type(body.get("generationConfig")) is dict:
        body["generationConfig"] = {**body["generationConfig"]}  # which is the session's own
        fields.append(body["generationConfig"])
    for settings, name in product(fields, _ONE_REPLY):
        if settings.get(name) is not None and demo.list_differences(settings[name], _ONE_REPLY[name]):
            del settings[name]
            losses.append(demo.Finding(name, "the setting does not go: one whole reply of text is asked for"))
    return Record(data, session, body, losses)


class Side(NamedTuple):
    """Whom a run asks: a model, the format in which it is asked, and where."""

    api: str
    model: str
    url: str


def list_sides(facts: Json) -> dict[str, Side]:
    """Return the sides that a run asks by its facts: the sender and the receiver, or the receiver alone."""
    import urllib.parse

    sides = {}
    for side in dict.fromkeys(step.asks for step in COURSES[facts["course"]].steps):
        named = facts["receiver_endpoint"] if side == "receiver" else ""
        api, model = facts[f"{side}_api"], facts[side]
        url = (named or facts["endpoint"]).replace("{model}", urllib.parse.quote(model, safe=""))
        sides[side] = Side(api, model, url)
    return sides


def find_endpoint_fault(facts: Json) -> str:
    """Return why the endpoints of a run do not fit its sides, or ""."""
    import urllib.parse

    sides = list_sides(facts)
    for side, (api, model, url) in sides.items():
        words = map(urllib.parse.unquote, re.split("[/:?&=]", url))
        if set("{}") & set(url) or (api == demo.GEMINI and model not in words):
            return f"the {side}'s endpoint does not name its model"
    is_shared = len({side.api for side in sides.values()}) > 1 and not facts["receiver_endpoint"]
    return "two APIs have one endpoint" if is_shared else ""


class Plan:
    """What a run is asked for: its task and source, or its session record, and facts.

    `facts` are those of PLAN_FACTS, `recorded` those of them that its format has; the digest is that of the
    rows or of the record, where there are any.
    """

    def __init__(self, task: demo.Task, rows: Rows, facts: Json, record: Record | None = None) -> None:
        self.task, self.record = task, record
        self.rows: Rows = demo.parse_json(demo.canonical_json(rows))  # as a run records them
        digest = demo.digest_bytes(record.data) if record else demo.digest_json(rows)
        self.recorded: Json = {**facts, **({"source_sha256": digest} if rows or record else {})}
        self.facts: Json = {**_FORMAT_1, **self.recorded}
        self.steps = COURSES[self.facts["course"]].steps
        self.sides = list_sides(self.facts)


class Work(NamedTuple):
    """A task, the digest of its file ("" for the built-in one), and the trusted source's rows if named."""

    task: demo.Task
    task_sha256: str = ""
    rows: Rows | None = None


def _build_body(plan: Plan, side: Side, session: Json, text: str) -> Json:
    """Return the body that begins a session of one side's with a user's text."""
    is_messages = side.api == demo.MESSAGES
    settings = demo.keep_limit({"max_tokens": plan.facts["max_tokens"]}, side.api)
    settings.update({"output_config": {"effort": "low"}} if is_messages else {})
    turn = {"role": "user", "parts": [{"kind": "text", "text": text}]}
    issuer = {"api": side.api, "model": side.model}
    body: Json = demo.write_body({"issuer": issuer, "settings": settings, "turns": [turn], **session})
    if is_messages and "tools" in body:
        body.update(tool_choice={"type": "auto"}, messages=body.pop("messages"))
    return body


def build_tool_request(plan: Plan) -> Json:
    """Return the body of request 1: the sender may read the source with its only tool."""
    task = plan.task
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    tool = {"name": task.operation, "description": task.tool_description, "parameters": schema}
    session = {"system": task.sender_prompt, "tools": [demo.Node((), tool)]}
    prompt = f"Call {task.operation} once, then say that you have its result."
    return _build_body(plan, plan.sides["sender"], session, prompt)


def build_tool_result_request(first: Json, reply: Json, rows: Rows, api: str = demo.MESSAGES) -> Json:
    """Return the body of request 2: request 1's session, its reply unchanged, the tool's result."""
    field = demo.APIS[api].messages
    return {**first, field: [*first[field], find_message(reply, api), *build_tool_results(reply, rows, api)]}


def build_tool_results(reply: Json, rows: Rows, api: str) -> list[Json]:
    """Return the message with the result of the call in a reply that fits step 1: the rows."""
    content = demo.canonical_json(rows).decode()
    result = {"kind": "result", "failed": False, "content": content, **find_call(reply, api)}
    return demo.write_turn(api, {"role": "tool", "parts": [result]})


def find_call(reply: Json, api: str) -> Json:
    """Return the tool and the id, if there is one, of the call in a reply that fits step 1."""
    turn: Json = demo.read_reply(reply, api) or {"parts": []}
    (call,) = (part for part in turn["parts"] if part["kind"] == "call")
    return {name: call[name] for name in ("tool", "call_id") if name in call}


def find_message(reply: Json, api: str) -> Json:
    """Return the message of a whole reply as it is sent back: every known field as it came."""
    form, (message, *_) = demo.APIS[api], demo.open_reply(reply, api)
    known = form.pieces.split()
    return {"role": form.assistant, **{field: message[field] for field in message if field in known}}


def find_session_changes(request: Json, first: Json, later: list[Json], api: str) -> Findings:
    """Return what keeps a request from being a session's first one with these messages behind."""
    field = demo.APIS[api].messages
    return demo.list_differences(request, {**first, field: [*first[field], *later]})


def encode_json(value: Any) -> bytes:
    """Return the bytes in which requests and records are written: compact ASCII JSON."""
    return demo.render_json(value).encode()


def estimate_answer_tokens(plan: Plan) -> int:
    """Return how many tokens the task's right answer takes, estimated high: 2 for 3 bytes."""
    answer = encode_json(plan.task.build_answer(plan.rows))
    return -(-len(answer) * 2 // 3)  # the recorded answer: 107 bytes, 67 tokens


def explain_overlong(plan: Plan) -> str:
    """Return why a reply's token limit cannot hold the right answer, or ""."""
    if plan.record:  # whose limit is its own
        return ""
    tokens, limit = estimate_answer_tokens(plan), plan.facts["max_tokens"]
    said = f"{_name_answer(plan)} takes about {tokens:,} tokens, the limit is {limit:,}"
    return said if tokens > limit else ""


def check_size(plan: Plan) -> None:
    """Raise RefusedError where more would be stored or come back than is read again."""
    if plan.record:
        size = max(len(encode_json(value)) for value in (plan.record.body, plan.record.session))
        if size > demo.INPUT_LIMIT_BYTES - 2 * REPLY_LIMIT_BYTES:
            what, why = f"the record takes {size:,} bytes on its way", "no API takes a request of that size"
            raise demo.RefusedError(what, why, "go on with --fresh, or with a shorter record")
        return
    reply = encode_json(demo.render_json(plan.task.build_answer(plan.rows)))  # a reply holds it as a string
    sizes = {"bytes": (len(reply), REPLY_LIMIT_BYTES), "items": (count_items(reply), REPLY_LIMIT_ITEMS)}
    for unit, (size, limit) in sizes.items():
        most = limit - 4_096  # leaves room for the rest of a reply
        if size > most:
            what = f"{_name_answer(plan)} takes {size:,} {unit}, at most {most:,} are read"
            why = "a longer reply is cut off there, so that no server can exhaust this machine"
            raise demo.RefusedError(what, why, "hand over less at once")


def _name_answer(plan: Plan) -> str:
    is_free = demo.holds_free_text(plan.task.build_answer(plan.rows))
    words = ", with two words for each free text," if is_free else ""
    return f"{demo.render_count(plan.rows, 'row')}: the answer{words}"


def build_handoff_request(plan: Plan, handoff: str = "") -> Json:
    """Return the body of request 3: a fresh session of the receiver with the handoff prompt alone."""
    handoff = handoff or demo.render_handoff(plan.task, demo.build_checkpoint(plan.task, plan.rows))
    return _build_body(plan, plan.sides["receiver"], {}, handoff)


def list_known_bodies(plan: Plan) -> dict[Step, Json]:
    """Return the bodies that are known before a run: all but that of request 2, which needs a reply."""
    if plan.record:
        return {GOING_ON: plan.record.body}
    tool_request = {TOOL_REQUEST: build_tool_request(plan)} if TOOL_REQUEST in plan.steps else {}
    return {**tool_request, HANDOFF: build_handoff_request(plan)}


def estimate_ceiling(plan: Plan) -> int | None:
    """Return a planning ceiling of a run's cost in micro-dollars, None where a price or a limit is unknown.

    A token is at least one byte of the request, a reply has at most max_tokens, and 1,000 tokens a
    request allow for what the API adds. This is for planning, and is not a guarantee.
    """
    limit = plan.facts["max_tokens"]
    texts = {step: json.dumps(body, ensure_ascii=False) for step, body in list_known_bodies(plan).items()}
    sizes = {step: len(text.encode("utf-8", "surrogatepass")) for step, text in texts.items()}
    if TOOL_REQUEST in sizes:
        sizes[TOOL_RESULT] = sizes[TOOL_REQUEST] + limit + len(demo.canonical_json(plan.rows))
    costs: list[int | None] = []
    for step, size in sizes.items():
        price = plan.facts["prices"].get(plan.facts[step.asks]) if limit else None
        costs.append(None if price is None else (size + 1_000) * price[0] + limit * price[1])
    return add_costs(costs)


# --- What became of a request; all of it is pure -----------------------------

PLANNED, IN_FLIGHT = "planned", "in_flight"
CONFIRMED, FAILED, UNCLEAR = "confirmed", "failed", "unclear"  # the ends of a request

_REDIRECTS = (301, 302, 303, 307, 308)
# Before any work. Another status from 400 to 499, such as 408, 409 or 499, may come after it.
_REFUSALS = {400, 401, 402, 403, 404, 405, 406, 410, 411, 413, 414, 415, 417, 421, 422, 426, 428, 429, 431}


class Outcome(NamedTuple):
    """What came of sending one request, as far as this side can know.

    `body` is what came back, without the key, or None if no reply began.
    """

    body: bytes | None = None
    opened: bool = True  # the connection was open, so that the request may have arrived
    interrupted: bool = False  # Ctrl-C was pressed before the reply was there
    began: bool = False  # something came, but not as far as a status
    http_status: int | None = None
    request_id: str = ""
    request_id_header: str = ""  # the header that held it; the body held it if there is none
    retry_after: str = ""  # when the server would take another request
    content_encoding: str = ""  # what the body was decoded from
    content_encoding_header: str = ""  # what the header says of a body that was not decoded
    key_removed: bool = False
    elapsed_milliseconds: int | None = None
    finding: str = ""  # what broke

    @property
    def facts(self) -> Json:
        """What the ledger says: the fields that are known and not as usual, and the body's digest."""
        facts = {name: fact for name, fact in self._asdict().items() if fact != self._field_defaults[name]}
        if facts.pop("body", None) is not None:
            facts["response_sha256"] = demo.digest_bytes(self.body or b"")
        return facts


# The kinds of the facts; those without a usual value are integers.
_USUAL_FACTS = {name: usual for name, usual in Outcome._field_defaults.items() if name != "body"}
OUTCOME_FACTS = {name: int if usual is None else type(usual) for name, usual in _USUAL_FACTS.items()}


def judge_outcome(outcome: Outcome, api: str = demo.MESSAGES) -> tuple[str, str, Any]:
    """Return (state, why, message): what became of a request, and the whole message if confirmed.

    Failed needs evidence that the request had no effect, confirmed a whole message with HTTP 200;
    everything else is unclear, because it may have been processed and billed.
    """
    status, finding, body = outcome.http_status, outcome.finding, outcome.body or b""
    # 1. It never left.
    if not outcome.opened:
        return FAILED, f"nothing was sent: {finding}", None
    # 2. The server refused it, whatever else it said.
    reply, unfit = _parse_reply(body, api)
    words = find_words(reply, b"" if status == 200 else body, api)  # what a 200 begins with is said anyway
    said = f" ({words})" if words else ""
    wait = f"; retry-after: {outcome.retry_after}" if outcome.retry_after else ""
    about = f"HTTP {status}"
    if status in _REDIRECTS:
        return FAILED, f"{about}: a redirect, which is not followed{said}", None
    if status == 400 and "output blocked" in f"{reply!r} {body!r}".lower():
        return UNCLEAR, f"{about}: the output was blocked after it was made{said}", None
    if status in _REFUSALS:
        return FAILED, f"{about}: the request was refused{said}{wait}", None
    if status == 529 and is_api_error(reply, api) and not finding:
        return FAILED, f"{about}: the request was not started{said}{wait}", None
    # 3. A whole message came back.
    if status == 200 and not finding:
        if not unfit:
            return CONFIRMED, "", reply
        said = "" if words in unfit else said
        return UNCLEAR, f"{about} without a whole message: {unfit}{said}", None
    # 4. It may have been processed.
    if status is None:
        about = "a reply that cannot be used" if outcome.began else "no reply"
    return UNCLEAR, f"{about}: {finding or 'the request may have been processed'}{said}", None


def find_words(reply: Any, body: bytes, api: str) -> str:
    """Return what an error says, whatever its shape is, else how its body begins."""
    (inner,) = reply if isinstance(reply, list) and len(reply) == 1 else [reply]
    fields = inner if isinstance(inner, dict) else {"message": inner}
    error = fields.get("error")
    places: list[Any] = [demo.describe_api_error(inner)] if is_api_error(inner, api) else []
    places += [error.get("message") if isinstance(error, dict) else error]
    places += [fields.get("message"), fields.get("detail"), body.decode("utf-8", "replace")]
    words = next((words for words in places if isinstance(words, str) and words.strip()), "")
    return demo.show(demo.shorten(words.strip(), 200))


def is_api_error(reply: Any, api: str) -> bool:
    """Return whether a parsed reply is an error of an API; Messages marks and names each of its own."""
    is_wrapped = isinstance(reply, list) and len(reply) == 1 and api != demo.MESSAGES  # as Gemini's at times
    known = reply[0] if is_wrapped else reply
    error = known.get("error") if isinstance(known, dict) else None
    if not isinstance(error, dict):
        return False
    if api != demo.MESSAGES:
        return isinstance(error.get("message"), str)
    return known.get("type") == "error" and isinstance(error.get("type"), str)


def find_outcome_cause(outcome: Outcome) -> str:
    """Return the code of what a failed request failed by: see RunEnded."""
    if outcome.interrupted:
        return INTERRUPTED
    if "certificate verify failed" in outcome.finding.lower().replace("_", " "):
        return "certificate"
    if outcome.http_status == 400 and b"API_KEY_INVALID" in (outcome.body or b""):  # Gemini's 401
        return "key"
    return _CAUSES.get(outcome.http_status or 0, OTHER) if outcome.opened else "network"


def count_items(body: bytes) -> int:
    """Return how many opening brackets and commas a text has, a measure of what it parses to."""
    return sum(map(body.count, (b"{", b"[", b",")))


def _parse_reply(body: bytes, api: str) -> tuple[Any, str]:
    """Return a reply's value, and why it is not a whole message ("" if it is one)."""
    if count_items(body) > REPLY_LIMIT_ITEMS:
        return None, f"more than {REPLY_LIMIT_ITEMS:,} items, which no model's answer has"
    try:
        reply = demo.parse_json(body, demo.REPLY_DEPTH_LIMIT)
    except demo.InputError as error:
        return None, _explain_json_error(error, body)
    findings = demo.find_reply_findings(reply, api)
    return reply, str(findings[0]) if findings else ""


def _explain_json_error(error: demo.InputError, text: bytes) -> str:
    """Return why a text is not strict JSON, in words that are the same in all versions of Python."""
    if not isinstance(error, demo.NotJsonError):
        return str(error)
    begin = demo.shorten(text[:72].decode("utf-8", "replace"), 24)
    return f"not JSON; it begins with {demo.describe(begin)}" if text else "not JSON; it is empty"


def find_step_findings(
    task: demo.Task, step: Step, message: Json, key_removed: bool, api: str = demo.MESSAGES
) -> Findings:
    """Return why a confirmed message cannot be used in its step; that of a session record is judged later."""
    if step is GOING_ON:
        return []
    findings = demo.find_step_findings(message, task.operation if step is TOOL_REQUEST else None, api)
    if step is TOOL_REQUEST and key_removed and KEY_MARK in demo.render_json(find_message(message, api)):
        findings.append(demo.Finding("content", "the key was in what must be sent back unchanged"))
    return findings


def is_unclear(records: Records) -> bool:
    """Return whether a request in a ledger may have been processed without a known outcome."""
    states = [record["state"] for record in records]
    return UNCLEAR in states or states[-1:] == [IN_FLIGHT]


def find_early_code(records: Records) -> int:
    """Return the exit code of a run that had to end early, after these records."""
    return EXIT_UNCLEAR if is_unclear(records) else EXIT_FAILED


def sum_costs(records: Records) -> int | None:
    """Return what the requests in a ledger cost together in micro-dollars, None if one is unknown.

    The cost of an unclear request is unknown, because it may have been billed.
    """
    costs = [record["cost_usd"] for record in records if "cost_usd" in record]  # as render_usd wrote them
    is_known = "unknown" not in costs and not is_unclear(records)
    return sum(int(cost.replace(".", "")) for cost in costs) if is_known else None


def is_rehearsal(records: Records) -> bool:
    """Return whether a ledger is that of a rehearsal; one without a record is not."""
    return bool(records and records[0]["rehearsal"])


def find_steps(records: Records) -> tuple[Step, ...]:
    """Return the requests of a ledger's course; format 1 has one course alone."""
    facts: Json = {**_FORMAT_1, **(records[0] if records else {})}
    return COURSES[facts["course"]].steps


def find_end(records: Records) -> Json:
    """Return the record that closes a run, empty if there is none."""
    return next((record for record in records[1:] if record["operation_id"] == RUN), {})


def find_cause(records: Records) -> str:
    """Return the code of what a run failed by, as its last record names it: see RunEnded."""
    cause = str(find_end(records).get("cause", OTHER))
    return "loopback" if cause == "network" and is_rehearsal(records) else cause


# --- The run: one course, for doing it and for inspecting it ------------------


def carry_out(evidence: Recorder | Inspector, plan: Plan) -> tuple[int, str, Findings]:
    """Take a run from its first record to its last; return its exit code, its end in words, and findings.

    The Recorder writes down what happens here; the Inspector takes the very same calls and compares
    them with what was written. EvidenceEnds and EvidenceBroken come from an Inspector only.
    """
    evidence.record(RUN, PLANNED, **plan.recorded)
    findings: Findings = ()
    try:
        end = COURSES[plan.facts["course"]].run(evidence, plan)
        evidence.record(RUN, CONFIRMED, cost_usd=render_usd(sum_costs(evidence.records)))
        return demo.EXIT_DONE, end, findings
    except RunEnded as error:  # which is not kept: it would keep every reply in memory
        code, why, cause, findings = error.exit_code, error.why, error.cause, error.findings
    except EvidenceError as error:
        code, why, cause = find_early_code(evidence.records), str(error), OTHER
    state, cost = UNCLEAR if code == EXIT_UNCLEAR else FAILED, render_usd(sum_costs(evidence.records))
    try:
        evidence.record(RUN, state, why=why, cause=cause, cost_usd=cost)
    except EvidenceError as error:
        code = find_early_code(evidence.records)
        why = why if why == str(error) else f"{why}; and {error}"
    return code, why, findings


def _do_task(evidence: Recorder | Inspector, plan: Plan) -> str:
    """Let the sender read the source, and hand over. As each course it raises RunEnded where a step fails."""
    _ask_sender(evidence, plan)
    return _hand_over(evidence, plan)  # nothing of the sender's session is kept while the receiver works


def _ask_sender(evidence: Recorder | Inspector, plan: Plan) -> None:
    # 1. The sender calls its tool.
    api = plan.sides["sender"].api
    first = build_tool_request(plan)
    reply = _ask(evidence, plan, TOOL_REQUEST, first)
    # 2. The application runs it.
    _read_source(evidence, plan, tool_call_id=find_call(reply, api).get("call_id", ""))
    # 3. The same session goes on, or nothing is sent.
    second = build_tool_result_request(first, reply, plan.rows, api)
    later = [find_message(reply, api), *build_tool_results(reply, plan.rows, api)]
    changes = find_session_changes(demo.parse_json(encode_json(second)), first, later, api)
    _end_if(changes, "request 2 does not go on with the session")
    _ask(evidence, plan, TOOL_RESULT, second)


def _do_receiver_part(evidence: Recorder | Inspector, plan: Plan) -> str:
    """Let the application read the source itself, and hand over."""
    _read_source(evidence, plan)
    return _hand_over(evidence, plan)


def _read_source(evidence: Recorder | Inspector, plan: Plan, **call: str) -> None:
    evidence.record(plan.task.operation_id, PLANNED, **call)
    digest = plan.facts["source_sha256"]
    evidence.record(plan.task.operation_id, CONFIRMED, **call, result_sha256=digest)


def _hand_over(evidence: Recorder | Inspector, plan: Plan) -> str:
    """Ask the receiver for the answer, and return the acceptance line."""
    # 1. What is handed over comes from the application, not from a session.
    checkpoint = demo.build_checkpoint(plan.task, plan.rows)
    handoff = demo.render_handoff(plan.task, checkpoint)
    evidence.write(CHECKPOINT, f"{demo.render_json(checkpoint, 2)}\n".encode())
    evidence.write(PROMPT, handoff.encode())
    # 2. A fresh session of the receiver answers, and the validator judges.
    reply = _ask(evidence, plan, HANDOFF, build_handoff_request(plan, handoff))
    answer, findings = _judge_answer(demo.join_text(reply, plan.sides["receiver"].api), plan)
    _end_if(findings, "the answer was rejected", demo.EXIT_REJECTED)
    evidence.write(RESULT, f"{demo.render_json(answer, 2)}\n".encode())
    return plan.task.render_acceptance(plan.rows)


def _judge_answer(text: str, plan: Plan) -> tuple[Any, Findings]:
    """Return (answer, findings): what the receiver's reply says, and why it is rejected, if it is."""
    try:
        answer = demo.parse_json(text)
        return answer, demo.validate_result(answer, plan.task, plan.rows)
    except demo.InputError as error:
        return None, [demo.Finding("$", _explain_json_error(error, text.encode("utf-8", "replace")))]


def _go_on(evidence: Recorder | Inspector, plan: Plan) -> str:
    """Go on with a session record, and return the line that says so."""
    record = plan.record
    # 1. The record goes on as it is, or as a checkpoint of its facts.
    evidence.write(SESSION, record.data if record else b"")
    if record is None:  # an Inspector has none for a run that ended here
        raise EvidenceEnds
    if "fresh" in plan.facts["options"]:
        checkpoint = demo.build_session_checkpoint(record.session)
        evidence.write(CHECKPOINT, f"{demo.render_json(checkpoint, 2)}\n".encode())
        evidence.write(PROMPT, demo.render_session_handoff(checkpoint).encode())
    # 2. The receiver answers, and its reply is judged in view of the record.
    reply = _ask(evidence, plan, GOING_ON, record.body)
    turn, findings = demo.judge_reply(record.session, reply, plan.sides["receiver"].api)
    if turn is not None:
        findings += _find_marked_calls(turn, evidence.records[-1])
        grown = {**record.session, "turns": [*record.session["turns"], turn]}
        evidence.write(REPLY, f"{demo.render_json(grown)}\n".encode())
    _end_if(findings, "the reply is unfit", demo.EXIT_REJECTED)
    return "accepted: a whole reply that repeats no operation"


def _find_marked_calls(turn: Json, record: Json) -> Findings:
    """Return the calls of a reply that held a key, by its record: they are not what the model asks for."""
    calls = [part for part in turn["parts"] if part["kind"] == "call" and record.get("key_removed")]
    marked = [call for call in calls if KEY_MARK in demo.render_json(call)]
    return [demo.Finding(demo.render_path(call.at), "the key was in this call") for call in marked]


class Course(NamedTuple):
    """A kind of run: its requests, and what sends them and returns the line of acceptance."""

    steps: tuple[Step, ...]
    run: Callable[[Recorder | Inspector, Plan], str]


COURSES = {
    "task": Course(STEPS, _do_task),
    "receiver-only": Course((HANDOFF,), _do_receiver_part),
    "session": Course((GOING_ON,), _go_on),
}


def _ask(evidence: Recorder | Inspector, plan: Plan, step: Step, body: Json) -> Json:
    """Send one request and return its message; each thing is durable before the next is done."""
    data, operation_id, api = encode_json(body), step.operation_id, plan.sides[step.asks].api
    evidence.write(step.request_file, data)
    evidence.record(operation_id, PLANNED, request_sha256=demo.digest_bytes(data))
    evidence.record(operation_id, IN_FLIGHT)
    outcome = evidence.send(step, data)
    if outcome.body is not None:
        try:
            evidence.write(step.response_file, outcome.body)
        except EvidenceError as error:  # nothing is done with a reply that is not on disk
            names = ("interrupted", "request_id", "request_id_header", "elapsed_milliseconds")
            kept = {name: getattr(outcome, name) for name in names}
            outcome = Outcome(began=True, finding=f"HTTP {outcome.http_status} came, but {error}", **kept)
    state, why, message = judge_outcome(outcome, api)
    if state != CONFIRMED:
        evidence.record(operation_id, state, **outcome.facts, why=why)
        if state == UNCLEAR:
            raise RunEnded(EXIT_UNCLEAR, f"{operation_id}: {why}")
        cause = find_outcome_cause(outcome)
        code = demo.EXIT_INTERRUPTED if cause == INTERRUPTED else EXIT_FAILED
        raise RunEnded(code, f"{operation_id}: {why}", cause)
    reply: Json = message
    evidence.record(operation_id, state, **outcome.facts, **list_message_facts(plan, step, reply))
    findings = find_step_findings(plan.task, step, reply, outcome.key_removed, api)
    is_cut = demo.open_reply(reply, api)[2] in ("max_tokens", "length", "MAX_TOKENS")
    _end_if(findings, operation_id, cause="tokens" if is_cut else OTHER)
    return reply


def list_message_facts(plan: Plan, step: Step, message: Json) -> Json:
    """Return what the ledger says of a confirmed message: its model, stop reason, usage and cost."""
    api = plan.sides[step.asks].api
    named = {"model": message.get(demo.APIS[api].maker), "stop_reason": demo.open_reply(message, api)[2]}
    facts: Json = {name: demo.shorten(text, 200) for name, text in named.items() if type(text) is str}
    price = plan.facts["prices"].get(plan.facts[step.asks])
    cost = 0 if plan.facts["rehearsal"] else compute_cost(price, message, api)
    facts.update(usage=parse_usage(message, api), cost_usd=render_usd(cost))
    if cost is None:
        facts["cost_unknown"] = find_cost_gap(message, api) if price else "no list price"
    return facts


def _end_if(findings: Findings, about: str, code: int = EXIT_FAILED, cause: str = OTHER) -> None:
    """Raise RunEnded if there are findings; it names three of them, and says how many more there are."""
    if findings:
        more = f"; and {len(findings) - 3:,} more" if len(findings) > 3 else ""
        raise RunEnded(code, f"{about}: {'; '.join(map(str, findings[:3]))}{more}", cause, findings)


# --- Transport: one request, one connection, one time limit -------------------

_LOOPBACK = r"localhost|\[::1\]|127(\.(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])){3}"
_LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = rf"(?P<host>{_LABEL}(\.{_LABEL})*\.?|\[[0-9a-f:.]+\])"
_URL = rf"(?P<scheme>https?)://{_HOST}(:(?P<port>[1-9][0-9]{{0,4}}))?([/?][!-~]*)?"  # in lower case
# What urllib takes for a proxy; of http:name:password@host it would take http for the user's name.
_PROXY = (
    r"(?i:(?P<scheme>https?://)|(?!https?:))([^/?#\s]*@)?"
    r"([^][/?#@:\s]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?(?(scheme)/?)"
)
_REQUEST_ID_HEADERS = (
    *("request-id", "x-request-id", "anthropic-request-id"),
    *("x-amzn-requestid", "x-amz-request-id", "x-goog-request-id", "apim-request-id", "x-ms-request-id"),
    *("x-litellm-call-id", "x-oneapi-request-id", "x-trace-id", "x-correlation-id", "cf-ray"),
)
_REQUEST_ID_FIELDS = ("request_id", "requestId")


class Key:
    """A request's API key, and how it and the `others` of its run are kept out of what is stored or shown."""

    def __init__(self, value: str, *others: str) -> None:
        self.value = value
        self._secrets: list[bytes] = []
        for key in sorted({value, *others} - {""}, key=len, reverse=True):
            # In the base64 of a longer text it is read in one of three ways, by how many bytes are before it.
            self._secrets.append(key.encode())
            for before in range(3):
                coded, bits = base64.b64encode(bytes(before) + key.encode()), 8 * before
                self._secrets.append(coded[-(-bits // 6) : (bits + 8 * len(key)) // 6])

    def remove_from(self, data: bytes) -> bytes:
        """Return the bytes with KEY_MARK in place of each key, plain, in base64 or JSON-escaped."""
        may_be_there = b"\\" in data or any(secret in data for secret in self._secrets)
        if not self._secrets or not may_be_there:
            return data  # no escape begins without a backslash; this saves milliseconds of compiling
        # In JSON any character may be written as an escape, and JSON may hold JSON, escaped once more.
        patterns = []
        for secret in self._secrets:
            patterns.append("")
            for character in secret.decode():
                escaped = f"u00(?i:{ord(character):02x}){'|/' if character == '/' else ''}"
                patterns[-1] += rf"(?:{re.escape(character)}|\\{{1,8}}(?:{escaped}))"
        return re.sub("|".join(patterns).encode(), KEY_MARK.encode(), data)

    def remove_from_text(self, text: str) -> str:
        """Return the text with KEY_MARK in place of each key."""
        return self.remove_from(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def is_key(value: str) -> bool:
    """Return whether a value can be a key: see read_key."""
    return bool(re.fullmatch(r"""[!#-&(-\[\]-~]{16,}""", value))


def read_key(variable: str, side: str = "") -> Key:
    """Return the key that an environment variable holds. Raises RefusedError, which never shows it.

    `side` is as for check_pair.
    """
    value = os.environ.get(variable, "")
    if is_key(value):
        return Key(value)
    what, why = f"no key in {variable}", "the environment variable is not set, or empty"
    if value:
        what = f"the key in {variable} cannot be used"
        why = "a key is 16 or more printable ASCII characters without spaces, quotes and backslashes"
    next_step = f"set it with: export {variable}='<its key>', or name another variable and its endpoint"
    raise demo.RefusedError(what, why, f"{next_step} with --{side}key-env and --{side}endpoint")


def check_endpoint(url: str) -> None:
    """Raise RefusedError unless the key may be sent to a URL: https, or http on loopback."""
    parts, finding = re.fullmatch(_URL, url.lower()), ""
    scheme, host, port = parts.group("scheme", "host", "port") if parts else ("", "", "")
    if not parts or not url.isascii() or len(url) > 2_000 or int(port or 1) > 65_535 or set(url) & set("#\\"):
        finding = "it is not a URL with a host alone, in at most 2,000 characters, without a fragment"
    elif scheme == "http" and not re.fullmatch(_LOOPBACK, host):
        finding = "the key would go over a network unencrypted"
    if finding:
        # In front of an @ may be a password; what is not a URL may be a key.
        shown = f" {demo.show(url)}" if "://" in url and "@" not in url else ""
        what, why = f"the endpoint{shown}: {finding}", "a key goes only where nobody listens in"
        raise demo.RefusedError(what, why, "name an https URL, or http on 127.0.0.1 or localhost")


def check_pair(given: set[str], endpoint: str, side: str = "") -> None:
    """Raise RefusedError where a key would go to an endpoint that it was not named for.

    `side` begins the names of the options: "receiver-" for those of the receiver alone.
    """
    is_local = re.match(rf"https?://({_LOOPBACK})(?![^:/?])", endpoint.lower())
    names = f"--{side}key-env", f"--{side}endpoint"
    for name, other in (names, names[::-1]):
        if name in given and other not in given and not (is_local and name == names[1]):
            why = "a key goes only to the endpoint that it was named for"
            raise demo.RefusedError(f"{name} without {other}", why, "name both of them")


def check_transport(endpoint: str) -> None:
    """Raise RefusedError where this Python, or the proxy that is set, cannot send a request."""
    import importlib

    is_secure = endpoint.lower().startswith("https:")
    try:
        for name in ("socket", "zlib", "http.client", "urllib.request", *(["ssl"] if is_secure else [])):
            importlib.import_module(name)
    except ImportError as error:
        what, why = f"this Python has no module {error.name}", "no request can be sent without it"
        raise demo.RefusedError(what, why, "use another build of Python") from error
    import urllib.request

    proxy = urllib.request.getproxies().get("https", "") if is_secure else ""
    match = re.fullmatch(_PROXY, proxy)
    is_right = match and 0 < int(match["port"] or 1) < 65_536
    if proxy and not is_right and not urllib.request.proxy_bypass(urllib.request.Request(endpoint).host):
        names = [name for name in ("https_proxy", *os.environ) if name.lower() == "https_proxy"]
        what = f"the proxy in {next(filter(os.environ.get, names), 'the settings')} cannot be used"
        why = "it is not an http URL with a host; it is not shown, because it may hold a password"
        raise demo.RefusedError(what, why, "set it to http://HOST:PORT, or take it away")


class _TransportError(Exception):
    """A reply is not whole, or nobody waits for the attempt any more."""


class Attempt:
    """One sending of one request, shared by the thread that talks and the one that waits.

    The talking thread may block anywhere, in a name look-up too. The waiting one can give up at any
    time; it learns whether the connection was open by then, and nothing is sent after that.
    """

    def __init__(self) -> None:
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._given_up = False
        self._socket: Any = None
        self.opened = False  # the connection, TLS included, was ever open
        self.headers: Any = None
        self.began = False
        self.http_status: int | None = None
        self.body = bytearray()
        self.finding = ""  # what broke
        self.unsent = ""  # why not all of the request was sent
        self.bug: BaseException | None = None

    def send(self, connection: Any, send: Callable[[Any], None], data: Any) -> None:
        """Send bytes on a connection, opened at most once, while somebody waits for the outcome."""
        if self.unsent:
            return
        try:
            if connection.sock is None:
                connection.connect()
                with self._lock:
                    if self._given_up or self.opened:
                        raise _TransportError("nobody waits for this connection")
                    self._socket, self.opened = connection.sock, True
            if self._given_up:
                raise _TransportError("nobody waits for this request")
            send(data)
        except OSError as error:
            if not self.opened:
                raise
            self.unsent = demo.explain(error)  # the server closed early, and its reply may say why

    def give_up(self, finding: str) -> None:
        """End the attempt; what is still being sent or received is cut off."""
        import socket

        with self._lock:
            self._given_up, self.finding = True, finding
        try:
            if self._socket is not None:
                # Not the SSL socket's own shutdown, which takes its state away under the reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:  # it is closed already
            return

    def run(self, url: str, headers: dict[str, str], data: bytes, timeout_seconds: float) -> None:
        """Send the request and receive the reply; `finding` says what broke. Runs in a thread."""
        try:
            import http.client
            import urllib.error
            import urllib.request

            # http.client reads 100 headers; here their size has the limit, and the shortest has 4 bytes.
            vars(http.client)["_MAXHEADERS"] = HEAD_LIMIT_BYTES // 4
            request = urllib.request.Request(url, data, headers)  # a request with data is a POST
            with _build_opener(self).open(request, timeout=timeout_seconds + 1) as response:
                with self._lock:
                    if self._given_up:  # what was cut off may look like the end of the headers
                        raise _TransportError("given up")
                    self.headers, self.http_status = response.headers, response.status
                _receive(response, self.body)
                if response.status == 200:  # an answer to a part of a request
                    self.finding = self.finding or self.unsent
        except (OSError, http.client.HTTPException, ValueError, _TransportError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            self.finding = self.finding or self.unsent or demo.explain(reason)
        except BaseException as error:
            self.bug = error
        finally:
            self.done.set()


def _build_opener(attempt: Attempt) -> Any:
    """Return a urllib opener without redirects, retries or cookies, whose connections an attempt watches."""
    import functools
    import http.client
    import urllib.request

    class Response(http.client.HTTPResponse):
        def begin(self) -> None:
            this: Any = self  # status and headers, as http.client sets them
            stream = this.fp
            attempt.began = bool(stream.peek(1))
            _limit_lines(stream)
            try:
                super().begin()
                while 102 <= this.status <= 199:  # an interim reply; http.client itself skips only 100
                    this.headers = None  # else begin takes the reply for begun, and returns
                    super().begin()
            finally:
                del stream.readline  # the limit, because a body has its own

    def connect(kind: Any, host: str, **options: Any) -> Any:
        connection = kind(host, **options)
        connection.send = functools.partial(attempt.send, connection, connection.send)
        connection.response_class = Response
        return connection

    class Handler(urllib.request.AbstractHTTPHandler):
        http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(functools.partial(connect, http.client.HTTPConnection), request)

        def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            import ssl

            secure, context = http.client.HTTPSConnection, ssl.create_default_context()
            return self.do_open(functools.partial(connect, secure), request, context=context)

    opener = urllib.request.OpenerDirector()
    proxies = {scheme: proxy for scheme, proxy in urllib.request.getproxies().items() if scheme == "https"}
    opener.add_handler(urllib.request.ProxyHandler(proxies))
    opener.add_handler(Handler())
    return opener


def _limit_lines(stream: Any) -> None:
    """Let a stream raise _TransportError once its lines have more than HEAD_LIMIT_BYTES together."""
    readline, left_bytes = stream.readline, HEAD_LIMIT_BYTES

    def read_line(most_bytes: int) -> bytes:
        nonlocal left_bytes
        line: bytes = readline(most_bytes)
        left_bytes -= len(line)
        if left_bytes < 0:
            raise _TransportError(f"the reply's headers are longer than {HEAD_LIMIT_BYTES:,} bytes")
        return line

    stream.readline = read_line


def _receive(response: Any, body: bytearray) -> None:
    """Append a reply's body as it comes, so that what came is kept. Raises _TransportError if it is cut.

    http.client reads the head. Its own reading of bodies takes a missing last chunk, and on older
    versions a missing rest, for the end.
    """
    stream, coding = response.fp, response.headers.get("transfer-encoding", "")
    if coding.strip().lower() == "chunked":
        while size := re.fullmatch(rb"([0-9A-Fa-f]{1,15})[ \t]*(;[^\r\n]*)?\r\n", stream.readline(1_026)):
            if int(size.group(1), 16) == 0:
                break
            _receive_bytes(stream, body, int(size.group(1), 16))
            if stream.readline(3) != b"\r\n":
                raise _TransportError("the reply was cut short in a chunk")
        else:
            raise _TransportError("the reply was cut short before a chunk")
        while (line := stream.readline(65_537)) != b"\r\n":
            if not line.endswith(b"\n"):
                raise _TransportError("the reply was cut short after its last chunk")
        return
    lines = response.headers.get_all("content-length", [])
    lengths = {length.strip() for line in lines for length in line.split(",")}
    if len(lengths) > 1 or not all(re.fullmatch("[0-9]{1,15}", length) for length in lengths):
        raise _TransportError("the reply's length is not clear")
    if response.length != 0:  # http.client sets 0 for a status that has no body
        _receive_bytes(stream, body, int(lengths.pop()) if lengths else float("inf"))


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
            most = f"{REPLY_LIMIT_BYTES:,} bytes"
            raise _TransportError(f"the reply is longer than {most}, and was cut off there")


def send_request(
    url: str,
    key: Key,
    data: bytes,
    timeout_seconds: float,
    is_interrupted: Watch = lambda _: False,
    api: str = demo.MESSAGES,
) -> Outcome:
    """Send one request, once, and return what came of it within the time limit in seconds.

    `is_interrupted` is called ten times a second, and ends the attempt where it returns true. Certificates
    are verified, redirects are not followed, at most 4 MiB are received, and the key is taken out of what
    came. The outcome says what broke; only bugs and interrupts are raised.
    """
    attempt, headers = Attempt(), build_headers(api, key.value)
    begun, interrupted, late = time.monotonic(), False, False
    try:
        threading.Thread(target=attempt.run, args=(url, headers, data, timeout_seconds), daemon=True).start()
        while not (interrupted or late or attempt.done.wait(0.1)):
            passed = time.monotonic() - begun
            interrupted, late = is_interrupted(passed), passed >= timeout_seconds
        if interrupted or late:
            why = "interrupted by Ctrl-C" if interrupted else f"time-out after {timeout_seconds:g} s"
            attempt.give_up(why)
    except RuntimeError as error:  # no thread can be started
        return Outcome(opened=False, finding=str(error))
    except BaseException:
        attempt.give_up("the program was interrupted")
        raise
    if attempt.bug is not None:
        raise attempt.bug
    return _build_outcome(attempt, key, api, interrupted, round((time.monotonic() - begun) * 1_000))


def _build_outcome(attempt: Attempt, key: Key, api: str, interrupted: bool, milliseconds: int) -> Outcome:
    def header(name: str) -> str:
        values = attempt.headers.get_all(name, []) if attempt.headers else []
        return key.remove_from_text(", ".join(values)).strip()

    def clean(text: str, most: int = 72) -> str:
        return demo.shorten(demo.show(demo.remove_passwords(key.remove_from_text(text))), most)

    body, finding, text, is_decoded = bytes(attempt.body), attempt.finding, b"", False
    encoding = header("content-encoding").lower()
    if encoding in ("gzip", "x-gzip"):
        text, is_whole = _gunzip(body)
        is_decoded = is_whole or len(text) == REPLY_LIMIT_BYTES
        body = text if is_decoded else body
        finding = finding or ("" if is_whole else "the reply's gzip encoding is broken, or holds too much")
    kept = key.remove_from(body)
    reply, unfit = _parse_reply(kept, api)
    if not is_decoded and encoding not in ("", "identity") and attempt.http_status == 200 and unfit:
        finding = finding or f"the reply has the encoding {encoding!r}, which was not asked for"
    joined = "" if unfit else demo.join_text(reply, api)
    if key.remove_from_text(joined) != joined or (not is_decoded and key.remove_from(text) != text):
        kept, finding = KEY_MARK.encode(), finding or "its text held the key in pieces: it is not kept"
    request_id, id_header = _find_request_id(reply, attempt.headers)
    facts: Json = {"opened": attempt.opened, "interrupted": interrupted, "http_status": attempt.http_status}
    facts.update(request_id=clean(request_id), request_id_header=id_header)
    facts.update(retry_after=clean(header("retry-after")), finding=clean(finding, 200))
    unread = "" if is_decoded or encoding == "identity" else clean(encoding)
    facts.update(content_encoding="gzip" if is_decoded else "", content_encoding_header=unread)
    facts.update(key_removed=kept != body, elapsed_milliseconds=milliseconds)
    has_status = attempt.http_status is not None
    return Outcome(kept if has_status else None, began=attempt.began and not has_status, **facts)


def _find_request_id(reply: Any, headers: Any) -> tuple[str, str]:
    """Return the id of a request, and the header that holds it; one in the body has none."""
    for name in _REQUEST_ID_HEADERS:
        if first := (headers.get(name) or "").strip() if headers else "":
            return first, name
    places = [reply, reply.get("error")] if isinstance(reply, dict) else []
    found = [place.get(name) for place in places if isinstance(place, dict) for name in _REQUEST_ID_FIELDS]
    return next((text for text in found if isinstance(text, str)), ""), ""


def _gunzip(data: bytes) -> tuple[bytes, bool]:
    """Return as much as the members of a gzip file give, up to the limit, and whether that is all of it.

    Zero bytes may follow the last member, as gzip itself allows.
    """
    import zlib

    text, at, end, size = bytearray(), 0, len(data.rstrip(b"\0")), 4_096
    while not at or at < end:
        begin, member = at, zlib.decompressobj(wbits=31)
        while not member.eof:
            piece = data[at : at + size]  # what is left of it behind a member is copied
            try:
                text += member.decompress(piece, REPLY_LIMIT_BYTES + 1 - len(text))
            except zlib.error:
                if size == 1:
                    return bytes(text), False
                size, member = 1, zlib.decompressobj(wbits=31)  # a piece with an error gives nothing
                member.decompress(data[begin:at])
                continue
            if not piece or len(text) > REPLY_LIMIT_BYTES:
                return bytes(text[:REPLY_LIMIT_BYTES]), False
            at += len(piece) - len(member.unused_data)
    return bytes(text), True


# --- The evidence folder and its ledger --------------------------------------

_JUDGED = "judged again, from the bytes that the records name"
# The files of all courses, and what it proves that one is, byte for byte, what the run must have written.
FILES = {
    SESSION: "it is the record that the ledger begins with",
    TOOL_REQUEST.request_file: "built again, it is what this run must have sent",
    TOOL_REQUEST.response_file: _JUDGED,
    TOOL_RESULT.request_file: "built again, it goes on with the session of request 1 and its reply unchanged",
    TOOL_RESULT.response_file: _JUDGED,
    HANDOFF.request_file: "built again, it holds the handoff prompt and nothing of the sender's session",
    HANDOFF.response_file: _JUDGED,
    CHECKPOINT: "built again from the source, it is the one that the source allows",
    PROMPT: "built again from the checkpoint",
    REPLY: "built again, it is the session with the reply as its next turn",
    LEDGER: "each record is the one that this run must have left, and names the digest of the one before",
    RESULT: "it says what the source gives, whichever model worked it out",
    REPORT: "built again, it is the report of this run",
}
_RESPONSE_FILES = [step.response_file for step in STEPS]
# The ledger has a tool call's id twice, which may be almost as long as its reply.
_LIMITS_BYTES = {LEDGER: 3 * REPLY_LIMIT_BYTES, **dict.fromkeys(_RESPONSE_FILES, REPLY_LIMIT_BYTES)}


class Recorder:
    """A run's evidence as it is written: files, the ledger, and the requests themselves.

    Everything is durable when a call returns; else it raises EvidenceError. `send` takes a
    request's body and returns its Outcome. Ctrl-C is obeyed before anything is planned or sent.
    Raises RefusedError, with nothing changed, if the folder exists or cannot be made.
    """

    def __init__(self, folder: str, key: Key, send: Send, terminal: demo.Terminal) -> None:
        self.folder = folder
        self.records: Records = []
        self._key, self._send, self._terminal = key, send, terminal
        self._prev_sha256 = "0" * 64  # of the ledger's last line
        try:
            demo.make_folder(folder, 0o700)  # which is the lock as well: of many processes one wins
        except FileExistsError as error:
            why = "a run's folder is evidence and is never reused"
            next_step = f"read it with --inspect {demo.quote(folder)}, or name a new one with --out DIR"
            raise demo.RefusedError(f"{demo.show(folder)} already exists", why, next_step) from error
        except OSError as error:
            what = f"{demo.show(folder)} cannot be made: {demo.explain(error)}"
            why = "a run's evidence needs a new folder of its own"
            raise demo.RefusedError(what, why, "name another one with --out DIR") from error
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._ledger = os.open(os.path.join(folder, LEDGER), flags, 0o600)
            demo.flush_folder(folder)
        except OSError as error:
            raise EvidenceError(LEDGER, error) from error

    def write(self, name: str, data: bytes) -> None:
        """Write a file beside its place, flush it, name it, flush the folder.

        The name overwrites nothing: the folder is fresh, and this process's own. A reply that was written
        is never removed.
        """
        part = f".{name}.part"
        temporary = os.path.join(self.folder, part)
        try:
            demo.write_flushed(temporary, data, 0o600)
            _rename(temporary, os.path.join(self.folder, name))
            demo.flush_folder(self.folder)
        except OSError as error:
            names = [part, name] if name in _RESPONSE_FILES else []
            kept = [name for name in names if os.path.lexists(os.path.join(self.folder, name))]
            if not kept:
                demo.discard(temporary)
            raise EvidenceError(name, error, "".join(kept)) from error

    def record(self, operation_id: str, state: str, **facts: Any) -> None:
        """Append one line, without the key, to the ledger and flush it; a line that fails is taken back.

        Raises RunEnded instead where Ctrl-C was pressed before something is planned or sent.
        """
        if self._terminal.interrupted and operation_id != RUN and state in (PLANNED, IN_FLIGHT):
            raise RunEnded(demo.EXIT_INTERRUPTED, "interrupted with nothing in flight", INTERRUPTED)
        now = datetime.datetime.now(datetime.timezone.utc)
        record = {"time": render_time(now), "operation_id": operation_id, "state": state, **facts}
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
        self._prev_sha256 = demo.digest_bytes(line)
        self.records.append(record)
        if state != PLANNED:
            self._terminal.write_err(f"  {operation_id:20} {state.replace('_', ' ')}")

    def send(self, step: Step, data: bytes) -> Outcome:
        """Send a request whose in_flight record is on disk; it raises for any other."""
        last = self.records[-1]
        if (last["operation_id"], last["state"]) != (step.operation_id, IN_FLIGHT):
            raise RuntimeError("a request would leave that is not recorded as in flight")
        return self._send(step, data)

    def close(self, plan: Plan) -> list[str]:
        """Write report.html and SHA256SUMS, the last things in the folder, if the run was closed.

        Returns what is missing, and why: the run has its end already, and keeps it.
        """
        os.close(self._ledger)
        if not find_end(self.records):
            return []
        try:
            inspector = Inspector(self.folder, Work(plan.task, plan.facts["task_sha256"]))
            inspector.run()
            report = render_report(inspector).encode()
        except (demo.UnreadableError, MemoryError) as error:
            return [str(EvidenceError(f"{REPORT} and {SUMS}", error))]
        files, missing = {**inspector.files, REPORT: report}, []
        for name in (REPORT, SUMS):
            try:
                self.write(name, report if name == REPORT else render_sums(files))
            except EvidenceError as error:
                missing.append(str(error))
                if not os.path.lexists(os.path.join(self.folder, REPORT)):  # perhaps its name was not flushed
                    files[REPORT] = None
        return missing


def _rename(path: str, new_path: str) -> None:
    """Rename a file; where something holds it, as a virus scanner does, try again for a second."""
    end = time.monotonic() + 1
    while True:
        try:
            return os.rename(path, new_path)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EBUSY) or time.monotonic() > end:
                raise
        time.sleep(0.05)


def render_time(when: datetime.datetime) -> str:
    """Return a time in UTC as the ledger has it, e.g. 2026-11-10T09:30:00.000Z."""
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_time(text: str) -> bool:
    """Return whether a text is, character by character, what render_time returns for some time."""
    try:
        return render_time(datetime.datetime.fromisoformat(f"{text[:-1]}+00:00")) == text
    except ValueError:
        return False


def render_sums(files: Mapping[str, bytes | None]) -> bytes:
    """Return what `sha256sum -c` reads: a digest and a name a line, for the files that are there."""
    lines = [f"{demo.digest_bytes(data)}  {name}\n" for name, data in files.items() if data is not None]
    return "".join(lines).encode()


def read_evidence(folder: str, name: str) -> bytes | None:
    """Return a file of an evidence folder, None if it is not there. No link is followed.

    Raises EvidenceBroken where it is not a regular file, or is longer than any that a run stores
    (4 MiB for a reply, 12 for the ledger, 64 for another file); UnreadableError where it cannot be read.
    """
    path = os.path.join(folder, name)
    limit_bytes = _LIMITS_BYTES.get(name, demo.INPUT_LIMIT_BYTES)
    flags = sum(getattr(os, flag, 0) for flag in ("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise EvidenceBroken(name, "observed another kind of file, expected a regular one")
        with open(os.open(path, flags), "rb") as file:  # O_NOFOLLOW: a link may have come there meanwhile
            # A read takes as much memory as it is asked for.
            data = file.read(min(os.fstat(file.fileno()).st_size, limit_bytes) + 1) or b""
    except FileNotFoundError:
        return None
    except OSError as error:
        raise demo.UnreadableError(path, demo.explain(error)) from error
    if len(data) > limit_bytes:
        raise EvidenceBroken(name, f"observed more than {limit_bytes:,} bytes, which no run stores")
    return data


# --- The rehearsal: both models of any API, played on loopback ----------------

_KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}


class RehearsalModels:
    """Plays the sender and the receiver, and refuses what the real API refuses.

    It remembers the session that it began, and lets it go on only unchanged. Without a task it goes on with
    a session record.
    """

    def __init__(self, key: str, task: demo.Task | None) -> None:
        self._key, self._task = key, task
        self._first: Json = {}  # the request that was answered with a tool call
        self._message: Json = {}  # what it was answered with

    def answer(self, headers: Mapping[str, str], data: bytes, path: str) -> tuple[int, Json]:
        """Return (HTTP status, reply body) for a request; header names are in lower case."""
        api, model = _find_wire(path)
        if not api:
            return _refuse(demo.MESSAGES, 404, "there is only POST to the path of an API")
        needed = build_headers(api, self._key)
        name = next(iter(needed))
        if headers.get(name) != needed[name]:
            return _refuse(api, 401, f"{name}: missing or unknown")
        del needed["accept-encoding"], needed["user-agent"]
        try:
            request = demo.parse_json(data)
            model = model or request["model"]
            session = demo.read_session({**request}, api, model)
            findings = list(demo.list_differences({name: headers.get(name) for name in needed}, needed))
            findings += self._find_refusals(api, model, request, session)
            parts = [] if findings else self._play(api, request, session)
        except (demo.InputError, TypeError, KeyError, AttributeError) as error:  # not JSON, or another shape
            return _refuse(api, 400, f"the request is not in the expected form: {error}")
        if findings:
            return _refuse(api, 400, str(findings[0]))
        return 200, self._write_reply(api, model, len(data) // 4, parts)

    def _find_refusals(self, api: str, model: Any, request: Json, session: demo.Node) -> Findings:
        others = [part["native"] for part in demo.list_parts(session) if part["kind"] == "other"]
        if api == demo.MESSAGES and any("type" not in block for block in others):
            return [demo.Finding("messages", "expected a type of each block")]
        has_limit = api != demo.MESSAGES or demo.find_limit(request)[1]
        if type(model) is not str or not model or not has_limit:
            return [demo.Finding("model, max_tokens", "expected a name and a positive integer")]
        findings = list(demo.find_session_refusals(session))
        if self._task is None or findings:
            return findings
        if session["turns"][0]["role"] != "user":
            return [demo.Finding(demo.APIS[api].messages, "expected the user's message first")]
        if request.get("tool_choice", {"type": "auto"})["type"] not in ("auto", "none"):
            return [demo.Finding("tool_choice", "this model takes auto and none alone")]
        if len(session["turns"]) == 1:
            return []
        results = request[demo.APIS[api].messages][len(self._first[demo.APIS[api].messages]) + 1 :]
        return find_session_changes(request, self._first, [self._message, *results], api)

    def _play(self, api: str, request: Json, session: Json) -> list[Json]:
        """Return the parts of a reply: a tool call, an end, or the answer to a handoff prompt."""
        text = "".join(part.get("text", "") for part in session["turns"][-1]["parts"])
        if self._task is None:
            return [{"kind": "text", "text": "I go on from here."}]
        if "tools" not in session:
            return [{"kind": "text", "text": _work_out(self._task, text)}]
        if len(session["turns"]) > 1:
            return [{"kind": "text", "text": "I have the result."}]
        call: Json = {"kind": "call", "call_id": f"call_{os.urandom(8).hex()}", "arguments": {}}
        parts = [{"kind": "reasoning", "text": ""}, {**call, "tool": session["tools"][0]["name"]}]
        if api != demo.CHAT:  # Messages signs its thinking, and Gemini its call
            parts[api == demo.GEMINI]["credential"] = os.urandom(24).hex()
        (self._message,) = demo.write_turn(api, {"role": "assistant", "parts": parts})
        self._first = request
        return parts

    def _write_reply(self, api: str, model: str, input_tokens: int, parts: list[Json]) -> Json:
        form, wire = demo.APIS[api], WIRES[api]
        (message,) = demo.write_turn(api, {"role": "assistant", "parts": parts})
        is_call = any(part["kind"] == "call" for part in parts)
        stop = {form.stop: (form.calling if is_call else form.answered).split()[0]}
        reply: Json = {"type": "message", **message, **stop, "stop_sequence": None}
        if form.choices:
            reply = {form.choices: [{"index": 0, form.message: message, **stop}]}
        usage = {wire.input: input_tokens, wire.output: len(demo.render_json(message)) // 4}
        return {"id": f"msg_{os.urandom(8).hex()}", form.maker: model, **reply, wire.usage: usage}


def _find_wire(path: str) -> tuple[str, str]:
    """Return the API that has a path, and the model in it; twice "" where there is none."""
    import urllib.parse

    for api, wire in WIRES.items():
        if match := re.fullmatch(re.escape(wire.path).replace(r"\{model\}", "([^/]+)"), path):
            return api, urllib.parse.unquote("".join(match.groups()))
    return "", ""


def _refuse(api: str, status: int, message: str) -> tuple[int, Json]:
    """Return (HTTP status, reply body) of a refusal in an API's error shape."""
    if api == demo.GEMINI:
        return status, {"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}}
    error = {"error": {"type": _KINDS[status], "message": message}}
    if api == demo.CHAT:
        return status, error
    return status, {"type": "error", **error, "request_id": f"req_{os.urandom(8).hex()}"}


def _work_out(task: demo.Task, text: str) -> str:
    """Return the answer that a model would give to a handoff prompt."""
    try:
        checkpoint = demo.parse_json(text.removeprefix(demo.render_instructions(task)))
        return demo.render_json(task.build_answer(checkpoint["completed"][0]["result"]))
    except (demo.InputError, KeyError, TypeError, IndexError):
        return "I have no checkpoint to go on from."


class RehearsalServer:
    """RehearsalModels behind HTTP on 127.0.0.1, from construction until `close`."""

    def __init__(self, models: RehearsalModels) -> None:
        import socketserver

        # The server class of http.server would ask the network for the machine's name.
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _build_handler(models))
        vars(self._server).update(daemon_threads=True, block_on_close=False)
        vars(self._server).update(handle_error=lambda *_: None)  # a stranger's connection broke
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"  # without a path
        # How often, in seconds, it looks whether it is to stop.
        try:
            threading.Thread(target=self._server.serve_forever, args=(0.002,), daemon=True).start()
        except RuntimeError:
            self._server.server_close()
            raise

    def close(self) -> None:
        """Stop serving, at once."""
        self._server.shutdown()
        self._server.server_close()


def _build_handler(models: RehearsalModels) -> Any:
    """Return a handler for a server of socketserver: it answers the POSTs of each API, all else with 404."""
    import http.server

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 10  # somebody else may connect, and be silent

        def do_POST(self) -> None:
            length = self.headers.get("content-length", "")
            data = self.rfile.read(int(length)) if re.fullmatch("[0-9]{1,9}", length) else b""
            headers = {name.lower(): text for name, text in self.headers.items()}
            self._send(*models.answer(headers, data, self.path))

        def send_error(self, *_: Any) -> None:
            self._send(*models.answer({}, b"", ""))

        def _send(self, status: int, reply: Json) -> None:
            body, self.request_version = encode_json(reply), "HTTP/1.0"  # whatever was asked
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.send_header("request-id", reply.get("request_id", f"req_{os.urandom(8).hex()}"))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


# --- Inspecting a run: the same course again, against what is on disk ---------

_MOST_CHARACTERS = 4_096  # of a text in the ledger that only the run could know
_PRICE = r"\[[0-9]{1,9},[0-9]{1,9}\]"
_REHEARSAL_URL = r"http://127\.0\.0\.1:[0-9]{1,5}"
_NOT_PROVED = "the files agree with each other; that shows neither who made them nor that a model was asked"
_OWN_ROWS = "it is judged on the rows recorded in it; name the trusted source with --source FILE"
_BROKEN = (demo.EXIT_REJECTED, "the evidence does not hold", "broken")


class Inspector:
    """A run's evidence as it is read again: each call is compared with what the run has left.

    `checks` says what held, `findings` what did not, `notes` what is worth knowing; `exit_code`, `end`,
    `verdict` and `closed` how the run ended. Only what nobody can work out again is taken from the ledger:
    times, HTTP statuses, request ids, what broke. Raises UnreadableError for a file that cannot be read.
    """

    def __init__(self, folder: str, work: Work) -> None:
        self._folder, self._task, self._work = folder, work.task, work
        self.checks: list[str] = []
        self.findings: list[demo.Finding] = []
        self.notes: list[str] = []
        self.exit_code, self.end, self.verdict = _BROKEN
        self.closed = False
        self.plan: Plan | None = None
        self.records: Records = []  # what the ledger must say, up to this point of the course
        self._due = {LEDGER}  # the files that the course has reached
        self.files: dict[str, bytes | None] = dict.fromkeys((*FILES, SUMS))
        for name in self.files:
            try:
                self.files[name] = read_evidence(folder, name)
            except EvidenceBroken as finding:
                self._add(finding.path, finding.message)
        *self._lines, rest = (self.files[LEDGER] or b"").split(b"\n")
        if rest:
            self.notes.append(f"{LEDGER}: its last line was cut while it was written, and is left out")

    def list_limits(self, is_source_named: bool = False) -> list[str]:
        """Return what the verdict does not show; `is_source_named` tells whether --source gave its rows."""
        is_own = self.plan and self.plan.facts["source_sha256"] != demo.digest_json(self._task.source)
        is_read = any(record["operation_id"] == self._task.operation_id for record in self.records)
        limits = [_OWN_ROWS] if is_own and is_read and not is_source_named else []
        return limits if self.findings else [*limits, _NOT_PROVED]

    def _add(self, path: str, message: str, **values: Any) -> None:
        """Add a finding, if it is the first one with its path; the evidence no longer holds."""
        if path not in {finding.path for finding in self.findings}:
            self.findings.append(demo.Finding(path, message, **values))
        self.exit_code, self.end, self.verdict = _BROKEN

    def _add_difference(self, name: str, observed: bytes, expected: bytes) -> None:
        """Add where two files begin to differ: a JSON path where both are JSON, else a byte."""
        try:
            findings = demo.list_differences(demo.parse_json(observed), demo.parse_json(expected))
        except demo.InputError:
            findings = []
        if not findings:
            place = f"{name} byte {demo.find_parting(observed, expected)}"
            self._add(place, "observed other bytes than the run must have written")
            return
        more = f"; and {len(findings) - 1:,} more" if len(findings) > 1 else ""
        self._add(f"{name} {findings[0].path}", findings[0].message + more, **findings[0].values)

    def run(self) -> None:
        """Take the run's course again, and compare every file and record with what it must have left.

        Without a trusted source a run on another source than the task's own is judged on the rows that are
        recorded in it, with a note. Raises UnreadableError for another task's run.
        """
        try:
            self.plan = self._read_plan()
            code, end, _ = carry_out(self, self.plan)
            self.closed = True
        except EvidenceEnds:
            code = find_early_code(self.records)
            in_flight = "a request in flight" if code == EXIT_UNCLEAR else "nothing in flight"
            end = f"the run was ended before it closed, with {in_flight}"
        except EvidenceBroken as finding:
            self._add(finding.path, finding.message)
            return
        if not self.findings:
            self.end, self.verdict = end, _VERDICTS[code]
            self.exit_code = EXIT_FAILED if code == demo.EXIT_INTERRUPTED else code  # the run was, not this
            self.checks += [f"{LEDGER}: {FILES[LEDGER]}"] if self.records else []

    def _read_plan(self) -> Plan:
        """Return the plan of which the ledger's first record says the facts."""
        if self.files[LEDGER] is None and any(self.files.values()):
            raise EvidenceBroken(LEDGER, "it is missing")
        first = self._next_record()
        self._check_format(first)
        kinds = {name: kind for name, (kind, _) in PLAN_FACTS.items()}
        if first.get("format") == 1:
            kinds = {name: kind for name, kind in kinds.items() if name not in _FORMAT_1}
        recorded = self._take_facts(first, kinds)
        if missing := ", ".join(name for name in kinds if name not in recorded):
            raise EvidenceBroken(self._line(), f"observed no {missing}, expected all that a run begins with")
        facts = {**_FORMAT_1, **recorded}
        self._check_facts(facts)
        if facts["rehearsal"]:
            self.notes.append("this was a rehearsal on loopback: no model answered, and nothing was paid")
        else:
            then, now = facts["prices"], list_prices(facts["sender"], facts["receiver"])
            changed = [model for model in now if then.get(model) != now[model]]
            words = "price of {}: {} in the run's own record, which counts; {} in today's table"
            self.notes += [words.format(model, then.get(model, "none"), now[model]) for model in changed]
        if facts["course"] == "session" and self._work.rows:
            what = "the run is one of a session record, which has no source"
            raise demo.UnreadableError(self._folder, what, "leave --source out")
        if facts["task_sha256"] != self._work.task_sha256:
            what, next_step = "the run's task is the built-in one", "leave --task out"
            if facts["task_sha256"]:
                what = f"the run's task is a file with the digest {facts['task_sha256']}"
                next_step = "name that file with --task FILE"
            raise demo.UnreadableError(self._folder, what, next_step)
        name = "" if facts["course"] == "session" else self._task.name
        if facts["task"] != name:
            raise EvidenceBroken(f"{self._line()} task", demo.describe_pair(facts["task"], name))
        return self._build_plan(recorded, facts)

    def _check_facts(self, facts: Json) -> None:
        """Raise EvidenceBroken where no run begins with these facts."""
        odd = [name for name, (_, form) in PLAN_FACTS.items() if not re.fullmatch(form, str(facts[name]))]
        sides = {} if odd else list_sides(facts)
        # What the course does not have is empty.
        has = {name: side in sides for side in ("sender", "receiver") for name in (side, f"{side}_api")}
        odd += [name for name in has if sides and bool(facts[name]) != has[name]]
        elsewhere = facts["receiver_endpoint"]
        is_odd = elsewhere == facts["endpoint"] or len(sides) == 1
        odd += ["receiver_endpoint"] if elsewhere and is_odd else []
        of_session = ("options", "session_api", "session_issuer")
        odd += [name for name in of_session if facts[name] and facts["course"] != "session"]
        prices, asked = facts["prices"], {facts["sender"], facts["receiver"]}
        are_pairs = all(re.fullmatch(_PRICE, demo.render_json(price)) for price in prices.values())
        odd += [] if are_pairs and prices.keys() <= asked else ["prices"]
        odd += [] if facts["max_tokens"] or facts["course"] == "session" else ["max_tokens"]
        for api, _, url in () if odd else sides.values():
            way = _REHEARSAL_URL + re.escape(WIRES[api].path).replace(r"\{model\}", "[^/]+")
            odd += ["endpoint"] if facts["rehearsal"] and not re.fullmatch(way, url) else []
            try:
                check_endpoint(url)
            except demo.RefusedError as error:
                raise EvidenceBroken(self._line(), error.what) from error
        if odd:
            observed = f"observed {demo.describe(facts[odd[0]])} as {odd[0]}"
            raise EvidenceBroken(self._line(), f"{observed}, which no run has")
        if facts["format"] > 1 and (fault := find_endpoint_fault(facts)):
            raise EvidenceBroken(self._line(), fault)

    def _check_format(self, first: Json) -> None:
        """Raise UnreadableError where a whole first record is that of a version which is not known here."""
        # 1. The next record confirms it, if there is one: what was changed is not whole.
        chained = f'"prev_sha256":"{demo.digest_bytes(self._lines[0])}"}}'.encode()
        begins = (first["operation_id"], first["state"], first.get("prev_sha256")) == (RUN, PLANNED, "0" * 64)
        if not begins or not all(line.endswith(chained) for line in self._lines[1:2]):
            return
        # 2. It says which version wrote it, and in which format.
        version, number = str(first.get("version")), first.get("format")
        if "version" not in first:
            fault = "it was written before 1.0, which no released version reads"
            raise demo.UnreadableError(self._folder, fault, "read it with the version that wrote it")
        if type(number) is int and number > FORMAT and re.fullmatch(_VERSION, version):
            fault = f"version {version} wrote it in format {number}, this version reads up to {FORMAT}"
            raise demo.UnreadableError(self._folder, fault, f"read it with version {version} or a later one")

    def _build_plan(self, recorded: Json, facts: Json) -> Plan:
        """Return the plan with the session record, or with rows: trusted, the task's own, or recorded."""
        if facts["course"] == "session":
            record = self._read_record(facts)
            if record and record.max_tokens != facts["max_tokens"]:
                raise EvidenceBroken(f"{self._line()} max_tokens", "it is not the limit of the record")
            return Plan(self._task, [], recorded, record)
        is_own = facts["source_sha256"] == demo.digest_json(self._task.source)
        if rows := self._work.rows or (self._task.source if is_own else []):
            return Plan(self._task, rows, recorded)
        name = TOOL_RESULT.request_file if TOOL_RESULT in COURSES[facts["course"]].steps else CHECKPOINT
        plan = Plan(self._task, self._parse_recorded_rows(name, facts["sender_api"]), recorded)
        if not plan.rows:
            self.notes.append("no source is recorded in it; name the trusted one with --source FILE")
        if plan.facts != facts:
            raise EvidenceBroken(name, "its source is not the one that the ledger begins with")
        return plan

    def _read_record(self, facts: Json) -> Record | None:
        """Return the session record; None if the run ended before it was written."""
        data = self.files[SESSION]
        if data is None:
            return None
        if demo.digest_bytes(data) != facts["source_sha256"]:
            raise EvidenceBroken(SESSION, "its digest is not the one that the ledger begins with")
        try:
            return read_record(data, facts)
        except (demo.InputError, demo.HandoffError, demo.SessionError) as error:
            raise EvidenceBroken(SESSION, f"it cannot go where it went: {error}") from error

    def _parse_recorded_rows(self, name: str, api: str) -> Rows:
        """Return the rows of the sender's result, or of the checkpoint; none if the run ended before."""
        try:
            value = demo.parse_json(self.files[name] or b"")
            if name == CHECKPOINT:
                rows = value["completed"][0]["result"]
            else:
                result = demo.read_session(value, api)["turns"][-1]["parts"][0]["content"]
                rows = demo.parse_json(result) if isinstance(result, str) else []
            demo.check_task(self._task, rows)
            return list(rows)
        except (demo.InputError, demo.TaskError, KeyError, IndexError, TypeError, AttributeError):
            return []  # what is wrong with it is found later

    def write(self, name: str, data: bytes) -> None:
        """Compare a file with what the run must have written, if it came to that."""
        if self.files[name] is None:
            end_early(self._next_record(), self.records)
        self.check_file(name, data)

    def check_file(self, name: str, data: bytes) -> None:
        """Compare a file with what it must hold."""
        self._due.add(name)
        stored = self.files[name]
        if stored == data:
            self.checks.append(f"{name}: {FILES[name]}")
        elif stored is None:
            self._add(name, "it is missing, though the records name it")
        else:
            self._add_difference(name, stored, data)

    def record(self, operation_id: str, state: str, **facts: Any) -> None:
        """Compare the ledger's next line with what the run must have recorded after the line before."""
        observed, number = self._next_record(), len(self.records)
        if operation_id != RUN or state == CONFIRMED:
            end_early(observed, self.records)
        prev_sha256 = demo.digest_bytes(self._lines[number - 1]) if number else "0" * 64
        own = {"time": observed["time"], "prev_sha256": prev_sha256}
        record = {"operation_id": operation_id, "state": state, **facts, **own}
        line = encode_json({"time": "", **record})  # which puts the time first
        if line != self._lines[number]:
            self._add_difference(self._line(), self._lines[number], line)
        if not is_time(observed["time"]):
            message = f"observed {demo.describe(observed['time'])}, expected a time in UTC"
            self._add(f"{self._line()} time", message)
        if (observed["operation_id"], observed["state"]) != (operation_id, state):
            raise EvidenceEnds  # what follows cannot be compared
        self.records.append(record)

    def send(self, step: Step, data: bytes) -> Outcome:
        """Return the outcome that the ledger's next line and the stored reply describe."""
        observed = self._next_record()
        end_early(observed, self.records)
        facts, where = self._take_facts(observed, OUTCOME_FACTS), self._line()
        has_reply = "response_sha256" in observed
        if ("http_status" in facts) != has_reply or (has_reply and not facts.get("opened", True)):
            raise EvidenceBroken(where, "observed a reply without a status, a digest or a connection")
        if facts.get("content_encoding", "gzip") != "gzip" or not 100 <= facts.get("http_status", 200) <= 999:
            raise EvidenceBroken(where, "observed an encoding or a status that no run records")
        if not has_reply:
            if "finding" not in facts or {"content_encoding", "key_removed"} & facts.keys():
                raise EvidenceBroken(where, "observed no reply, but nothing that broke, or something decoded")
            return Outcome(**facts)
        body = self.files[step.response_file]
        if body is None:
            raise EvidenceBroken(step.response_file, f"it is missing, though {where} names it")
        if demo.digest_bytes(body) != observed["response_sha256"]:
            self._add(step.response_file, f"its digest is not what {where} says")
        if facts.get("key_removed") and KEY_MARK.encode() not in body:
            self._add(f"{where} key_removed", f"observed true, but {step.response_file} has no mark")
        return Outcome(body, **facts)

    def check_report(self) -> None:
        """Compare the report with that of this run, if this version wrote it; it is a view, not evidence."""
        version = self.plan.facts["version"] if self.plan else ""
        if version == demo.VERSION or self.files[REPORT] is None:
            self.check_file(REPORT, render_report(self).encode())
        else:
            self._due.add(REPORT)
            self.notes.append(f"{REPORT}: version {version} wrote it; only its digest in {SUMS} is compared")

    def check_leftovers(self) -> None:
        """Find the files and records that the course of the run does not reach."""
        if self.closed and len(self.records) < len(self._lines):
            self._add(self._line(), "it comes after the run's last record")
        if self.findings:
            return  # which may be why the course did not reach the rest
        steps, requests = find_steps(self.records), list_requests(self.records).values()
        states = {step.response_file: facts["state"] for step, facts in zip(steps, requests)}
        for name, data in self.files.items():
            if data is None or name in self._due or (name == SUMS and self.closed):
                continue
            if states.get(name) in (IN_FLIGHT, UNCLEAR):  # perhaps written before its record failed
                self.notes.append(f"{name} is there, but no record vouches for it")
            else:
                self._add(name, "it exists, though no record leads to it")

    def check_sums(self) -> None:
        """Compare SHA256SUMS, if it is there, with the digests of the files."""
        sums = self.files[SUMS]
        if sums is None and self.closed:
            self._add(SUMS, "it is missing, though the run was closed")
        if sums is None:
            return
        if sums == render_sums({name: self.files[name] for name in FILES}):
            self.checks.append(f"{SUMS}: it holds the digest of every file")
            return
        lines = [b"", *sums.splitlines(keepends=True)]
        changed = [name for name in FILES if render_sums({name: self.files[name]}) not in lines]
        for name in changed:
            self._add(name, f"its digest is not what {SUMS} says")
        if not changed:
            self._add(SUMS, "it names files that are not there, or not each once and in order")

    def _line(self) -> str:
        return f"{LEDGER} line {len(self.records) + 1}"

    def _next_record(self) -> Json:
        """Return the ledger's next record.

        Raises EvidenceEnds after the last one, and EvidenceBroken where a line is not a record.
        """
        if len(self.records) == len(self._lines):
            raise EvidenceEnds
        try:
            record: Any = demo.parse_json(self._lines[len(self.records)])
        except demo.InputError as error:
            raise EvidenceBroken(self._line(), str(error)) from error
        needed = ("time", "operation_id", "state")
        if not isinstance(record, dict) or not all(isinstance(record.get(name), str) for name in needed):
            raise EvidenceBroken(self._line(), f"observed {demo.describe(record)}, expected a record")
        return record

    def _take_facts(self, record: Json, kinds: Mapping[str, type]) -> Json:
        """Return the facts of a record that only the run could know, each of its kind."""
        facts = {name: record[name] for name in kinds if name in record}
        for name, fact in facts.items():
            is_long = isinstance(fact, (str, dict, list))
            size, most = (len(fact), _MOST_CHARACTERS) if is_long else (fact, _MOST_COUNT)
            if type(fact) is not kinds[name] or not 0 <= size <= most:
                message = f"observed {demo.describe(fact)}, which no run records"
                raise EvidenceBroken(f"{self._line()} {name}", message)
        return facts


def end_early(record: Json, records: Records) -> None:
    """Raise RunEnded if a record, the next one after `records`, closes a run that had to end early."""
    why = record.get("why")
    if record["operation_id"] == RUN and record["state"] in (FAILED, UNCLEAR) and isinstance(why, str):
        code = find_early_code(records)
        if code == EXIT_FAILED and record.get("cause") == INTERRUPTED:
            raise RunEnded(demo.EXIT_INTERRUPTED, why, INTERRUPTED)
        raise RunEnded(code, why)


def inspect_run(folder: str, work: Work) -> Inspector:
    """Return the Inspector that has judged an evidence folder again, from its files alone.

    Raises UnreadableError for a folder that cannot be read, or that is not one of a run of the task.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise demo.UnreadableError(folder, demo.explain(error), "name a run's folder") from error
    strangers = [name for name in names if name not in (*FILES, SUMS)]
    if strangers == names and not all(name.endswith(".part") for name in names):
        raise demo.UnreadableError(folder, "it does not hold a file of a run", "name a run's folder")
    # 1. Read every file of a run, and follow no link.
    inspector = Inspector(folder, work)
    # 2. Take the run's course again; compare every file, every record, and the chain of their digests.
    inspector.run()
    end = inspector.end
    # 3. The report must be the one of this run, and nothing may be left over.
    if inspector.closed and not inspector.findings:
        inspector.check_report()
    inspector.check_leftovers()
    # 4. Every digest must be that of its file.
    inspector.check_sums()
    # 5. A run whose last files alone are missing has its end, but not all of its evidence.
    lost = [name for name in (REPORT, SUMS) if inspector.files[name] is None]
    if lost and [finding.path for finding in inspector.findings] == lost:
        inspector.end, inspector.verdict = f"{end}, but there is no {' and no '.join(lost)}", "incomplete"
    kinds = {f".{name}.part": "a reply that did not get its name" for name in _RESPONSE_FILES}
    for name in strangers:
        inspector.notes.append(f"{demo.show(name)} is {kinds.get(name, 'not a file of a run')}")
    return inspector


# --- What a person sees of a run; all of it is pure --------------------------


def list_requests(records: Records, holds: bool = True) -> dict[str, Json]:
    """Return what records say about each request: {operation: {name: fact, or None}}.

    The names are for a person to read; `holds` is whether a request without a record was not planned.
    """
    last = {record["operation_id"]: record for record in records}
    sent = {record["operation_id"]: record["time"] for record in records if record["state"] == IN_FLIGHT}
    requests = {}
    for step in find_steps(records):
        record = last.get(step.operation_id, {"state": "not planned" if holds else "unknown"})
        usage, elapsed = record.get("usage"), record.get("elapsed_milliseconds")
        tokens = "/".join(str(usage.get(name, "?")) for name in _TOKEN_FIELDS) if usage else "unknown"
        requests[step.operation_id] = {
            "state": record["state"],
            "sent": sent.get(step.operation_id),
            "model asked": records[0][step.asks] if records else None,
            "model answered": record.get("model"),
            "HTTP status": record.get("http_status"),
            "stop reason": record.get("stop_reason"),
            "tokens in/out": None if usage is None else tokens,
            "seconds": None if elapsed is None else f"{elapsed / 1_000:.1f}",
            "dollars": record.get("cost_usd"),
        }
        for name in ("cost_unknown", "request_id", "request_id_header", "why"):
            requests[step.operation_id][name.replace("_", " ")] = record.get(name)
    return requests


def render_table(records: Records, holds: bool) -> str:
    """Return a run's requests as a table, in 80 columns unless a figure is unusually long."""
    head = "request (rehearsal)" if is_rehearsal(records) else "request"
    table = [(head, "model", "state", "tokens", "s", "cost")]
    for operation_id, facts in list_requests(records, holds).items():
        model = demo.show(facts["model asked"] or "-").rpartition("/")[2]
        model = model if len(model) <= 20 else f"{model[:19]}~"
        figures = [facts[name] or "-" for name in ("tokens in/out", "seconds", "dollars")]
        table.append((operation_id, model, facts["state"].replace("_", " "), *figures))
    if end := find_end(records):
        table.append(("together", "", "", "", "", end["cost_usd"]))
    return "\n".join("{:20} {:20} {:11} {:>10} {:>5} {:>9}".format(*line).rstrip() for line in table)


def list_warnings(records: Records) -> list[str]:
    """Return the lines about requests that a person should read.

    They say by what an unclear request is looked up with the provider, which model was asked where another
    answered, and by what a cost is unknown.
    """
    lines = []
    for operation_id, facts in list_requests(records).items():
        asked, answered = facts["model asked"], facts["model answered"] or "a model without a name"
        if facts["state"] in (IN_FLIGHT, UNCLEAR) and not is_rehearsal(records):
            known, header = facts["request id"] or "not known", facts["request id header"]
            known += f" ({header})" if header else ""
            lines.append(f"look up: {operation_id}, sent {facts['sent']}, request id {known}")
        elif facts["state"] == CONFIRMED and asked != answered:
            lines.append(f"warning: {operation_id}: asked for {asked}, answered by {answered}")
        if facts["cost unknown"]:
            lines.append(f"cost unknown: {operation_id}: {facts['cost unknown']}")
    return [demo.shorten(demo.show(line), 200) for line in lines]


# --- The report: a run on one page, without script or network; pure ----------

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --tint: #f6f8fa; --text: #1b1f24; --soft: #57606a;
  --line: #d0d7de; --good: #116329; --bad: #a40e26; --open: #7d4e00; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1318; --tint: #171c23; --text: #e6edf3;
  --soft: #9da7b3; --line: #3d444d; --good: #56d374; --bad: #ff9492; --open: #f0c05a; } }
@media print { :root { --page: #fff; --tint: #fff; --text: #000; --soft: #333; --line: #999;
  --good: #000; --bad: #000; --open: #000; } tr, li { break-inside: avoid; } }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
header, .cards > li { background: var(--tint); border-left: .4rem solid; padding: .5rem 1rem; }
header > *, .cards > li > * { color: var(--text); }
h1, h2, h3, p, ol, ul, dl { margin: .4rem 0; }
h1 { font-size: 1.7rem; line-height: 1.2; }
h2 { font-size: 1.2rem; margin-top: 2rem; } h3 { font-size: 1rem; }
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
pre { white-space: pre-wrap; } a { color: inherit; }
:focus-visible { outline: 3px solid var(--open); outline-offset: 2px; }
.way { max-width: 28rem; padding: 0; list-style: none; text-align: center; }
.way li + li::before { content: "\\2193"; display: block; color: var(--soft); }
.way span { display: block; padding: .4rem; border: 2px solid; border-radius: .5rem; }
"""
_TONES = {
    **dict.fromkeys((CONFIRMED, "built", "accepted", "agrees"), "good"),
    **dict.fromkeys((UNCLEAR, IN_FLIGHT, "incomplete"), "open"),
    **dict.fromkeys((FAILED, "rejected", "broken", "interrupted"), "bad"),
    **dict.fromkeys(("differs", "repeated", "not delivered"), "bad"),
}
_MOST_UNFOLDED = 50


def render_report(inspector: Inspector, base: str = "", notes: Sequence[str] = ()) -> str:
    """Return a run's report as one HTML page; `base` leads from the page to the run's folder.

    Every value is escaped. It holds no script, image or outside address, and the policy in its head
    allows nothing but its own style sheet. It does not depend on the trusted source, so that it can
    be rebuilt from the folder alone.
    """
    digest = base64.b64encode(bytes.fromhex(demo.digest_bytes(_STYLE.encode()))).decode()
    verdict = inspector.verdict
    words = "The evidence does not hold" if verdict == "broken" else verdict.capitalize()
    limits = "".join(f"<p>{_escape(limit)}</p>\n" for limit in inspector.list_limits())
    kind = "Handoff run"
    if is_rehearsal(inspector.records):
        kind = "Rehearsal of a handoff: no model answered, nothing was paid"
    _, advice = explain_end(verdict, inspector.records)
    todo = f"<p><strong>Next:</strong> {_escape(advice)}</p>\n" if advice else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\';'
        f" style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Handoff run: {words}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<header class="{_TONES[verdict]}">\n<p>{kind}</p>\n<h1>{_mark(verdict, words)}</h1>\n'
        f"<p>{_escape(inspector.end)}</p>\n{limits}{todo}</header>\n<main>\n"
        f"{_render_list('What does not hold', inspector.findings)}{_render_way(inspector)}"
        f"{_render_requests(inspector, base)}{_render_answer(inspector)}"
        f"{_render_record(inspector)}"
        f"{_render_list('What was checked, and what that proves', inspector.checks)}"
        f"{_render_list('Worth knowing', [*list_warnings(inspector.records), *notes])}"
        f"{_render_ledger(inspector.records)}{_render_files(inspector, base)}</main>\n</body>\n</html>\n"
    )


def _escape(value: Any) -> str:
    """Return text that is safe anywhere in HTML, with what could act on its reader made visible."""
    return html.escape(demo.show(str(value)))


def _mark(state: str, words: str = "") -> str:
    """Return a state in words and in its colour."""
    return f'<strong class="{_TONES.get(state, "")}">{words or state.replace("_", " ")}</strong>'


def _render_section(heading: str, tag: str, items: str, attributes: str = "") -> str:
    return f"<h2>{heading}</h2>\n<{tag}{attributes}>\n{items}</{tag}>\n" if items else ""


def _render_list(heading: str, lines: Iterable[Any]) -> str:
    return _render_section(heading, "ul", "".join(f"<li>{_escape(line)}</li>\n" for line in lines))


def _render_facts(facts: Json) -> str:
    """Return names and values; a value other than a string is shown as JSON, and None is left out."""
    lines = ""
    for name, fact in facts.items():
        if fact is not None:
            text = demo.shorten(fact if isinstance(fact, str) else demo.render_json(fact), 200)
            lines += f"<dt>{_escape(name)}</dt><dd>{_escape(text)}</dd>\n"
    return f"<dl>\n{lines}</dl>\n"


def _render_way(inspector: Inspector) -> str:
    """Return the way of the run as a picture: its stations, each with its state in words."""
    states = {record["operation_id"]: record["state"] for record in inspector.records}
    steps, answered = find_steps(inspector.records), states.get(HANDOFF.operation_id)
    is_judged = answered == CONFIRMED and inspector.verdict in ("accepted", "rejected")
    built, verdict = answered and "built", inspector.verdict if is_judged else None
    read = inspector.plan and states.get(inspector.plan.task.operation_id)
    stations = {"The application reads the source": read, "The application's checkpoint": built}
    if steps == STEPS:
        stations = {
            "The sender calls its tool": states.get(TOOL_REQUEST.operation_id),
            "The tool answers": read,
        }
        stations["The sender ends its turn"] = states.get(TOOL_RESULT.operation_id)
        stations["The application's checkpoint"] = built
    elif steps == (GOING_ON,):
        stations = {"The record goes on": built}
    stations.update({"The receiver answers": answered, "The validator judges": verdict})
    not_reached = "unknown" if inspector.findings else "not reached"
    boxes = (f"<span>{name}: {_mark(state or not_reached)}</span>" for name, state in stations.items())
    items = "".join(f"<li>{box}</li>\n" for box in boxes)
    return _render_section("The way of the task", "ol", items, ' class="way"')


def _render_requests(inspector: Inspector, base: str) -> str:
    """Return a card for each request: what was asked, what came back, what it cost."""
    cards = ""
    steps, requests = find_steps(inspector.records), list_requests(inspector.records, not inspector.findings)
    for step, facts in zip(steps, requests.values()):
        state = facts.pop("state")
        names = (step.request_file, step.response_file)
        links = ", ".join(_render_link(base, name) for name in names if inspector.files[name] is not None)
        cards += f'<li class="{_TONES.get(state, "")}">\n<h3>{step.operation_id}: {_mark(state)}</h3>\n'
        cards += f"{_render_facts(facts)}<p>{links}</p>\n</li>\n"
    section = _render_section("Requests", "ol", cards, ' class="cards"')
    if end := find_end(inspector.records):
        section += f"<p>Together {end['cost_usd']} dollars at list price: computed, not an invoice.</p>\n"
    return section


def _render_record(inspector: Inspector) -> str:
    """Return what was carried of a session record, what was noted, and what the receiver replied."""
    record = inspector.plan and inspector.plan.record
    if not inspector.plan or not record:
        return ""
    api, page = inspector.plan.sides["receiver"].api, ""
    for name, words in record.list_facts().items():
        page += _render_list(f"The record: {name}", words)
    reply, unfit = _parse_reply(inspector.files[GOING_ON.response_file] or b"", api)
    turn = None if unfit else demo.read_reply(reply, api)
    if turn is not None:
        calls = [part for part in turn["parts"] if part["kind"] == "call"]
        calls = [f"{call['tool']} {demo.render_json(call['arguments'])}" for call in calls]
        page += _render_said(demo.join_text(reply, api)) + _render_list("It calls", calls)
    return page


def _render_said(text: str) -> str:
    said = "\n".join(map(_escape, demo.shorten(text, 2_000).split("\n")))
    return f"<p>The receiver said:</p>\n<pre>{said}</pre>\n" if text else ""


def _render_answer(inspector: Inspector) -> str:
    """Return the answer beside the right one and the source, row by row, differences first."""
    plan, operations = inspector.plan, {record["operation_id"] for record in inspector.records}
    if plan is None or not plan.rows or plan.task.operation_id not in operations:
        return ""
    api, answer = plan.sides["receiver"].api, None
    reply, unfit = _parse_reply(inspector.files[HANDOFF.response_file] or b"", api)
    is_ended = not unfit and not demo.find_step_findings(reply, None, api)
    text = demo.join_text(reply, api) if is_ended else ""
    if is_ended:
        answer, _ = _judge_answer(text, plan)
    rows = demo.list_answer_rows(plan.task, plan.rows, answer)
    rows.sort(key=lambda row: row.state == "agrees")
    agreeing = sum(row.state == "agrees" and bool(row.source) for row in rows)
    page = f"<h2>Source and answer</h2>\n<p>{agreeing:,} of {len(plan.rows):,} rows agree.</p>\n"
    if all(row.delivered is demo.MISSING for row in rows):
        page += _render_said(text)
    page += _render_rows("Source and answer", plan.task.row_key, rows[:_MOST_UNFOLDED])
    if folded := rows[_MOST_UNFOLDED:]:
        differing = sum(row.state != "agrees" for row in folded)
        page += f"<details>\n<summary>{len(folded):,} more rows, {differing:,} of them differ</summary>\n"
        page += f"{_render_rows('More rows', plan.task.row_key, folded)}</details>\n"
    return page


def _render_rows(label: str, row_key: str, rows: Sequence[demo.AnswerRow]) -> str:
    columns = (row_key, "answer", "delivered", "expected", "source")
    head = "".join(f'<th scope="col">{_escape(column)}</th>' for column in columns)
    body = ""
    for row in rows:
        values = (row.delivered, row.expected, row.source or demo.MISSING)
        cells = "".join(f"<td>{_escape(_render_fields(value, row_key, row.name))}</td>" for value in values)
        body += f'<tr><th scope="row">{_escape(row.name)}</th><td>{_mark(row.state)}</td>{cells}</tr>\n'
    return (
        f'<div class="wide" role="region" aria-label="{label}" tabindex="0">\n<table>\n<thead><tr>'
        f"{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>\n"
    )


def _render_fields(value: Any, row_key: str, name: str) -> str:
    """Return a row's fields without the one that names it; one field that is left is its bare value."""
    if value is demo.MISSING:
        return "-"
    if not isinstance(value, dict):
        return demo.shorten(str(value) if type(value) is demo.Words else demo.render_json(value))
    fields = {key: field for key, field in value.items() if (key, field) != (row_key, name)}
    if row_key in value and len(value) == 2 and len(fields) == 1:
        return _render_fields(next(iter(fields.values())), "", "")
    return demo.shorten(", ".join(f"{key} {_render_fields(field, '', '')}" for key, field in fields.items()))


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
            words = f"{len(data):,} bytes, SHA-256 {demo.digest_bytes(data)}"
            items += f"<dt>{_render_link(base, name)}</dt><dd>{words}</dd>\n"
    return _render_section("Files", "dl", items)


def _render_link(base: str, name: str) -> str:
    return f'<a href="{_escape(base + name)}">{name}</a>'


# --- Command line ------------------------------------------------------------


def _do_run(
    terminal: demo.Terminal, plan: Plan, folder: str, keys: dict[str, Key], announcement: str, hint: str = ""
) -> tuple[demo.Report, Records]:
    """Do a run, live or rehearsed, in a new folder; return how it ended, and its records.

    `keys` are those of the sides; `hint` is the command that inspects the folder, if it is kept.
    """

    def is_interrupted(passed: float) -> bool:
        terminal.progress(f"  waiting, {passed:.0f} s")
        return terminal.interrupted

    def send(step: Step, data: bytes) -> Outcome:
        side, seconds = plan.sides[step.asks], plan.facts["timeout_seconds"]
        return send_request(side.url, keys[step.asks], data, seconds, is_interrupted, side.api)

    for side in plan.sides.values():
        check_transport(side.url)
    terminal.hold()  # a run ends by its own course alone
    terminal.must_be_heard = False
    umask = os.umask(0o077)
    try:
        recorder = Recorder(folder, next(iter(keys.values())), send, terminal)
        terminal.write_err(announcement)
        code, end, findings, missing = _run_and_close(recorder, plan)
    except EvidenceError as error:  # not even the ledger could be begun
        raise RunError(EXIT_FAILED, folder, str(error), [], "failed") from error
    finally:
        os.umask(umask)
    if hint:
        page = os.path.join(folder, REPORT)
        terminal.write_err(f"evidence: {demo.show(folder)}, to be read: {demo.show(page)}")
        terminal.write_err(f"inspect it: {hint}")
    facts = {"missing": missing, **(plan.record.list_facts() if plan.record else {})}
    return demo.Report(code, _VERDICTS[code], end, findings, facts=facts), recorder.records


def _show_run(terminal: demo.Terminal, folder: str, report: demo.Report, records: Records) -> int:
    """Show a run, and return its exit code: its table, what is to be read, its end; or all as one object."""
    code, end, facts = report.exit_code, report.what, report.facts
    end += " (rehearsal: no model answered)" if is_rehearsal(records) else ""
    warnings, holds = list_warnings(records), report.verdict not in ("broken", "incomplete")
    if terminal.as_json:
        why, next_step = explain_end(report.verdict, records)
        known: Json = {"why": why, "next": next_step, "folder": folder, "rehearsal": is_rehearsal(records)}
        states = {name: asked["state"] for name, asked in list_requests(records, holds).items()}
        known.update(requests=states, cost_usd=find_end(records).get("cost_usd", "unknown"), **facts)
        report.what, report.notes, report.facts = end, [*warnings, *report.notes], known
        return terminal.say(report)
    terminal.write_out(render_table(records, holds))
    for line in (*(f"ok: {check}" for check in facts.get("checks", ())), *facts.get("limits", ())):
        terminal.write_out(line)
    missing = [f"missing: {fault}" for fault in facts.get("missing", ())]
    for line in (*warnings, *missing, *(f"note: {note}" for note in report.notes)):
        terminal.write_err(line, "yellow")
    for finding in () if holds else report.findings:  # what an answer is rejected for is said in its end
        terminal.write_err(str(finding), "red")
    if code != demo.EXIT_DONE:
        raise RunError(code, folder, end, records, report.verdict)
    terminal.write_out(end, "green")
    return code


def _run_and_close(recorder: Recorder, plan: Plan) -> tuple[int, str, Findings, list[str]]:
    """Return (exit code, end, findings, what is missing) of a run, its evidence closed as far as possible."""
    try:
        code, end, findings = carry_out(recorder, plan)
    except (KeyboardInterrupt, MemoryError) as error:  # from a caller's own handler, or no memory
        code = find_early_code(recorder.records)
        if isinstance(error, KeyboardInterrupt) and code == EXIT_FAILED:
            raise
        in_flight = "a request" if code == EXIT_UNCLEAR else "nothing"
        return code, f"ended by {type(error).__name__} with {in_flight} in flight", (), []
    return code, end, findings, recorder.close(plan)


def _check_endpoints(given: set[str], facts: Json) -> None:
    """Raise RefusedError where an endpoint may not be used, or where a side has none of its own."""
    for side, (api, _, url) in list_sides(facts).items():
        if re.search("(?i)[?&][a-z_.-]*(key|token)=", url):
            what, why = f"the {side}'s endpoint holds a key", "an endpoint is stored and shown"
            raise demo.RefusedError(what, why, "let a variable hold it, which goes into a header")
        check_endpoint(url)
        has_own = side == "receiver" and "--receiver-endpoint" in given
        needed = (f"--{side}", "--receiver-endpoint" if has_own else "--endpoint")
        missing = [option for option in needed if option not in given]
        if api != demo.MESSAGES and missing:
            what = f"the {side}'s API is {api}, without {missing[0]}"
            why = "the defaults are a model and an endpoint of Messages"
            raise demo.RefusedError(what, why, f"name {' and '.join(needed)}")
    if fault := find_endpoint_fault(facts):
        why = "each API has an endpoint of its own, and Gemini's names the model; {model} alone is filled in"
        next_step = "put {model} into it, or name --receiver-endpoint and --receiver-key-env"
        raise demo.RefusedError(fault, why, next_step)


def _run_live(terminal: demo.Terminal, options: Namespace, work: Work) -> int:
    """Do a run: up to three paid requests."""
    facts, folder = _build_facts(options, work), options.out or "handoff-run"
    _check_endpoints(options.given, facts)
    check_pair(options.given, options.endpoint)
    check_pair(options.given, options.receiver_endpoint or "", "receiver-")
    names = dict.fromkeys(list_sides(facts), options.key_env)
    own = {"receiver": "receiver-"} if options.receiver_endpoint else {}
    if own:
        names["receiver"] = options.receiver_key_env
    values = {side: read_key(name, own.get(side, "")).value for side, name in names.items()}
    keys = {side: Key(value, *values.values()) for side, value in values.items()}
    plan = _build_plan(terminal, options, work, facts)
    # Nor must a record hold it by itself: with its names, or with the digest before the first one.
    words = [plan.recorded, *OUTCOME_FACTS, *(step.operation_id for step in plan.steps), "0" * 64]
    _refuse_key_in(terminal, demo.render_json(words))
    if overlong := explain_overlong(plan):
        why = "an answer that is cut off is paid and worth nothing; a token is counted as 1.5 bytes"
        raise demo.RefusedError(overlong, why, "raise --max-tokens if the model allows, or hand over less")
    ceiling = estimate_ceiling(plan)
    cost = f"at most {render_usd(ceiling)} dollars: an estimate for planning, not a guarantee"
    if ceiling is None:
        cost = "unknown: a model has no list price here, or the record no token limit"
    counts = {"sender": "two requests", "receiver": "one request"}
    count = "one paid request" if len(plan.steps) == 1 else "up to three paid requests"
    lines = [f"{count}, never repeated:"]
    for side, (_, model, url) in plan.sides.items():
        lines.append(f"  {side:9} {model}, {counts[side]} to {url}, key from {names[side]}")
    lines += [f"  folder    {demo.show(folder)}", *_list_carried(plan), f"  cost      {cost}"]
    hint = _build_hint(terminal, options, folder)
    return _show_run(terminal, folder, *_do_run(terminal, plan, folder, keys, "\n".join(lines), hint))


def _list_carried(plan: Plan) -> list[str]:
    """Return the lines that say what goes of a session record: operations, unclear ones, what is noted."""
    lines = []
    for name, words in plan.record.list_facts().items() if plan.record else ():
        if name != "noted":
            count = demo.render_count(words, "operation")
            words = [f"{count}: {', '.join(words)}" if words else count]
        lines += [f"  {name:9} {demo.shorten(demo.show(word), 1_000)}" for word in words]
    return lines


def _build_hint(terminal: demo.Terminal, options: Namespace, folder: str) -> str:
    """Return the command that inspects a run's folder."""
    named = {"--inspect": folder, "--task": options.task, "--source": options.source}
    words = [f"{name} {demo.quote(path)}" for name, path in named.items() if path]
    return f"python3 {terminal.name} {' '.join(words)}"


def _redact_keys(terminal: demo.Terminal, arguments: list[str]) -> None:
    """Keep the keys in all variables that an argument may name out of every message from now on."""
    names = {KEY_ENVIRONMENT, *(argument.rpartition("=")[2] for argument in arguments)}
    values = [os.environ.get(name, "") for name in names if name.isidentifier()]
    key = Key("", *filter(is_key, values))

    def redact(text: str) -> str:
        return demo.remove_passwords(key.remove_from_text(text))

    terminal.redact = redact


def _refuse_key_in(terminal: demo.Terminal, words: str) -> None:
    """Raise RefusedError where words that are stored or shown hold a key."""
    if terminal.redact(words) != demo.remove_passwords(words):  # a password may be any word
        why = "an option, the task or its source holds it, and would be stored and shown with it"
        raise demo.RefusedError("this key cannot be used", why, "leave it out of them")


def _rehearse(
    terminal: demo.Terminal, options: Namespace, work: Work, folder: str, hint: str = ""
) -> tuple[demo.Report, Records]:
    """Do a rehearsal in a new folder; return how it ended, and its records."""
    key = Key(os.urandom(8).hex())
    try:
        server = RehearsalServer(RehearsalModels(key.value, None if options.session else work.task))
    except (ImportError, OSError, RuntimeError) as error:  # no module, no socket, or no thread
        why = "a rehearsal goes through HTTP on 127.0.0.1"
        what = f"the rehearsal cannot listen: {demo.explain(error)}"
        raise demo.RefusedError(what, why, _MENDS["loopback"]) from error
    try:
        plan = _build_plan(terminal, options, work, _build_facts(options, work, server.url))
        lines = [f"rehearsal on {server.url}: nothing leaves this machine, nothing is paid"]
        lines += _list_carried(plan)
        if overlong := explain_overlong(plan):
            lines.append(f"  --live would refuse this: {overlong}")
        keys = dict.fromkeys(plan.sides, key)
        return _do_run(terminal, plan, folder, keys, "\n".join(lines), hint)
    finally:
        server.close()


def _run_rehearsal(terminal: demo.Terminal, options: Namespace, work: Work) -> int:
    """Rehearse, and keep the folder."""
    folder = options.out or "handoff-rehearsal"
    hint = _build_hint(terminal, options, folder)
    return _show_run(terminal, folder, *_rehearse(terminal, options, work, folder, hint))


def _run_checks(terminal: demo.Terminal, options: Namespace, work: Work) -> int:
    """Check this program, rehearse all pairs of APIs in a temporary folder, and inspect what that left."""
    import contextlib
    import io
    import tempfile

    rows = work.rows or work.task.source
    failed = [check for _, check, passed in demo.run_self_test(work.task, rows) if not passed]
    outcome = f"{len(failed)} failed, see checkpoint_demo.py self-test" if failed else "all passed"
    terminal.write_out(f"local checks: {outcome}", "red" if failed else "")
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            _show_run(terminal, run, *_rehearse(terminal, options, work, run))
            inspectors = [inspect_run(run, work._replace(rows=rows))]
            for pair in product(WIRES, WIRES):
                if pair == (options.sender_api, options.receiver_api):
                    continue
                run, other = os.path.join(folder, "-".join(pair)), Namespace(**vars(options))
                other.sender_api, other.receiver_api, other.sender, other.receiver = *pair, None, None
                with contextlib.redirect_stderr(io.StringIO()):
                    _rehearse(terminal, other, work, run)
                inspectors.append(inspect_run(run, work._replace(rows=rows)))
                terminal.write_out(f"{' to '.join(pair)}: {inspectors[-1].verdict}")
    except RunError as error:
        again = "do it again with --rehearse, which keeps the folder"
        error.next_step = _MENDS["loopback"] if error.cause == "loopback" else again
        raise
    except OSError as error:
        raise demo.UnwritableError("the folder for temporary files", error) from error
    finally:
        terminal.must_be_heard = True
    worst = max(inspectors, key=lambda inspector: inspector.exit_code)
    terminal.write_out(f"inspected: {worst.end if worst.exit_code else 'every file and record holds'}")
    return worst.exit_code or (demo.EXIT_REJECTED if failed else demo.EXIT_DONE)


def _run_inspection(terminal: demo.Terminal, options: Namespace, work: Work) -> int:
    """Judge a run again, from its files alone."""
    folder, page = options.inspect, options.html
    if page and os.path.realpath(os.path.dirname(page) or ".") == os.path.realpath(folder):
        why = "a run's folder is evidence, and nothing is added to it"
        raise demo.RefusedError(f"{demo.show(page)} is in the run's folder", why, "name a file elsewhere")
    inspector = inspect_run(folder, work)
    if page:
        text = render_report(inspector, _lead_to(folder, page), inspector.notes)
        demo.write_new_files({page: terminal.redact(text).encode()})
        terminal.write_err(f"wrote {demo.show(page)}")
    limits = inspector.list_limits(bool(options.source))
    record = inspector.plan and inspector.plan.record
    facts: Json = {"source": "recorded" if record or _OWN_ROWS in limits else "trusted", "limits": limits}
    facts.update(record.list_facts() if record else {})
    facts.update(checks=inspector.checks, records=inspector.records)
    ending = (inspector.exit_code, inspector.verdict, inspector.end)
    report = demo.Report(*ending, inspector.findings, inspector.notes, facts)
    return _show_run(terminal, folder, report, inspector.records)


def _lead_to(folder: str, page: str) -> str:
    """Return the relative URL of a folder from a page, with a slash at its end."""
    import urllib.parse

    try:
        way = os.path.relpath(folder, os.path.dirname(page) or ".").replace(os.sep, "/")
    except ValueError:  # on another drive
        return f"file:///{urllib.parse.quote(os.path.abspath(folder).replace(os.sep, '/'))}/"
    return f"./{urllib.parse.quote(os.fsencode(way))}/"


def _build_facts(options: Namespace, work: Work, server: str = "") -> Json:
    """Return the facts of a run: live, or with the URL of the rehearsal's server."""
    course = "session" if options.session else "receiver-only" if options.receiver_only else "task"
    asked = [step.asks for step in COURSES[course].steps]
    apis = {side: vars(options)[f"{side}_api"] for side in asked}
    models = {side: vars(options)[side] or vars(WIRES[api])[side] for side, api in apis.items()}
    endpoint, elsewhere = options.endpoint, options.receiver_endpoint or ""
    if server:
        endpoint, elsewhere = server + WIRES[apis[asked[0]]].path, server + WIRES[apis["receiver"]].path
    if elsewhere == endpoint or asked == ["receiver"]:
        endpoint, elsewhere = elsewhere or endpoint, ""
    facts: Json = {"version": demo.VERSION, "format": FORMAT}
    facts.update(task="" if options.session else work.task.name, task_sha256=work.task_sha256)
    facts.update(prices=list_prices(*models.values()), endpoint=endpoint)
    facts.update(sender=models.get("sender", ""), receiver=models["receiver"])
    facts.update(max_tokens=int(options.max_tokens), timeout_seconds=int(options.timeout))
    facts.update(rehearsal=bool(server), course=course, sender_api=apis.get("sender", ""))
    facts.update(receiver_api=apis["receiver"], receiver_endpoint=elsewhere)
    chosen = [name for name in ("fresh", "no_reasoning", "unclear", "leave_out") if vars(options)[name]]
    facts.update(options=chosen, session_api=vars(options)["from"] or "", session_issuer=options.issuer or "")
    return facts


def _build_plan(terminal: demo.Terminal, options: Namespace, work: Work, facts: Json) -> Plan:
    """Return the plan of a run with these facts. Raises RefusedError, or what read_record raises."""
    if options.session:
        try:
            record = read_record(demo.read_input(options.session), facts)
        except demo.InputError as error:
            words = "name a file that holds a session record"
            raise demo.UnreadableError(options.session, str(error), words) from error
        facts["max_tokens"] = record.max_tokens
        plan, stored = Plan(work.task, [], facts, record), record.data.decode("utf-8", "replace")
    else:
        plan, stored = Plan(work.task, work.rows or work.task.source, facts), ""
    check_size(plan)
    # What is sent and stored must not hold a key either.
    _refuse_key_in(terminal, stored + demo.render_json([*list_known_bodies(plan).values()]))
    return plan


_ANY = demo.expect("(?s).+", "a value")
_PAGE = demo.expect("(?s)(?!-$).+", "the name of a new file")
_SECONDS = demo.expect("[1-9][0-9]{0,4}", "a whole number from 1 to 99999")
# A long name without an underscore, or one that begins like a key, may be a key.
_NAME = "(?!sk_)(?=.{1,15}$|.*_)[A-Za-z_][A-Za-z0-9_]{0,99}"
_VARIABLE = demo.expect(_NAME, "the name of an environment variable, not its value")
_MODELS = WIRES[demo.MESSAGES]
_API_NAME = demo.expect(_API, "messages, chat or gemini")
# Every option with a value: the word for it, what it must be, help, default.
_OPTIONS: dict[str, tuple[str, Callable[[str], str], str, str | None]] = {
    "--task": ("FILE", _ANY, "a Python file that defines TASK, if not the demo's", None),
    "--source": ("FILE", _ANY, "the trusted source, if not the task's own", None),
    "--sender": ("MODEL", demo.MODEL, f"the model that begins (default: {_MODELS.sender})", None),
    "--receiver": ("MODEL", demo.MODEL, f"the model that goes on (default: {_MODELS.receiver})", None),
    "--sender-api": ("API", _API_NAME, "the sender's: messages, chat or gemini", demo.MESSAGES),
    "--receiver-api": ("API", _API_NAME, "the receiver's", demo.MESSAGES),
    "--max-tokens": ("N", demo.COUNT, "the limit of a reply", str(demo.MAX_TOKENS)),
    "--timeout": ("SECONDS", _SECONDS, "the limit of each request", "180"),
    "--out": ("DIR", _ANY, "the run's folder, which must not exist yet", None),
    "--endpoint": ("URL", _ANY, "where requests go", ENDPOINT),
    "--key-env": ("NAME", _VARIABLE, "the variable that holds the key", KEY_ENVIRONMENT),
    "--receiver-endpoint": ("URL", _ANY, "where the receiver's request goes, if elsewhere", None),
    "--receiver-key-env": ("NAME", _VARIABLE, "the variable that holds its key", KEY_ENVIRONMENT),
    "--session": ("FILE", _ANY, "a session record to go on with, in place of a task", None),
    "--from": ("API", _API_NAME, "whose the record is, where its texts fit two", None),
    "--issuer": ("MODEL", demo.MODEL, "the model that made the record, where it does not say", None),
    "--html": ("PAGE", _PAGE, "write the report to a new file as well", None),
}
_SWITCHES = {
    "--receiver-only": "do the receiver's part alone, from the source",
    "--fresh": "begin a new session, with a checkpoint of the record's facts",
    "--no-reasoning": "leave the reasoning of other models out",
    "--unclear": "give open calls a result that says so",
    "--leave-out": "put a line in the place of media and of what has no place there",
    "--json": "print one machine-readable object instead",
}
_OF_A_TASK = ("--task", "--source", "--sender", "--sender-api", "--max-tokens")
_OF_A_RUN = (*_OF_A_TASK, "--receiver", "--receiver-api", "--timeout")
_OF_A_SESSION = ("--from", "--issuer", "--fresh", "--no-reasoning", "--unclear", "--leave-out")
_OF_A_FOLDER = (*_OF_A_RUN, "--receiver-only", "--session", *_OF_A_SESSION, "--out", "--json")
_OF_A_WIRE = ("--endpoint", "--key-env", "--receiver-endpoint", "--receiver-key-env")
# Each mode: what does it, and the options that belong to it.
_MODES: dict[str, tuple[Callable[[demo.Terminal, Namespace, Work], int], tuple[str, ...]]] = {
    "no mode": (_run_checks, _OF_A_RUN),
    "--rehearse": (_run_rehearsal, _OF_A_FOLDER),
    "--live": (_run_live, (*_OF_A_FOLDER, *_OF_A_WIRE)),
    "--inspect": (_run_inspection, ("--task", "--source", "--html", "--json")),
}
# What has no meaning beside an option.
_MISFITS = {"--session": (*_OF_A_TASK, "--receiver-only"), "--receiver-only": ("--sender", "--sender-api")}
_EPILOG = """\
Without a mode the program checks itself and rehearses in a temporary folder.
Endpoints and keys belong to --live, --html to --inspect; --from, --issuer,
--fresh, --no-reasoning, --unclear and --leave-out belong to --session.
A run's folder is handoff-run, and a rehearsal's handoff-rehearsal, if not
--out DIR. {model} in a URL is replaced by the model's id.

examples:
  python3 %(prog)s
  python3 %(prog)s --rehearse --out my-rehearsal
  python3 %(prog)s --live --timeout 300
  python3 %(prog)s --rehearse --session record.json --receiver-api chat
  python3 %(prog)s --inspect handoff-run

exit codes:
  0  accepted                       4    failed, or ended before it closed
  1  an answer or a record was      5    a request is unclear
     rejected, or evidence does     70   a bug in this program
     not hold
  2  usage, or a file that cannot   130  interrupted with nothing in flight
     be read or written
  3  refused, nothing was sent"""


def build_parser(script: str) -> demo.Parser:
    """Return the parser of all modes; `script` is typed so. Which options go with a mode is not checked."""
    usage = "%(prog)s [--rehearse | --live | --inspect DIR] [OPTION]..."
    about = "Hand a task from one model to another, and keep the evidence."
    parser = demo.Parser(prog=script, usage=usage, description=about, epilog=_EPILOG)
    parser.add_argument("--version", action="store_true", help="show the version and end")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--rehearse", action="store_true", help="do a run on loopback, and keep its folder")
    modes.add_argument("--live", action="store_true", help="do a run: up to three paid requests")
    modes.add_argument("--inspect", metavar="DIR", type=_ANY, help="judge a run again, from its files alone")
    for name, (word, kind, words, default) in _OPTIONS.items():
        shown = f"{words} (default: {default})" if default else words
        parser.add_argument(name, metavar=word, type=kind, default=default, help=shown)
    for name, words in _SWITCHES.items():
        parser.add_argument(name, action="store_true", help=words)
    return parser


def _run(terminal: demo.Terminal, arguments: list[str], given: set[str]) -> int:
    _redact_keys(terminal, arguments)
    try:
        known = [*_OPTIONS, *_MODES, *_SWITCHES, "--help", "--version"]
        options = build_parser(terminal.name).parse(arguments, known)
    except demo.HelpAsked as asked:
        terminal.write_out(str(asked))
        return demo.EXIT_DONE
    mode = next((mode for mode in _MODES if mode in given), "no mode")
    run, belonging = _MODES[mode]
    apart = {mode: tuple(name for name in (*_OPTIONS, *_SWITCHES) if name not in belonging)}
    apart.update((name, misfits) for name, misfits in _MISFITS.items() if name in given)
    if "--session" not in given:
        apart[f"{mode} without --session"] = _OF_A_SESSION
    for other, names in apart.items():
        for name in names:
            if name in given:
                raise demo.UsageError(f"{name} does not go with {other}", terminal.name)
    _refuse_key_in(terminal, "\n".join(map(str, vars(options).values())))
    if options.out:  # as it can be given to an option, without a slash at its end
        folder = options.out.rstrip(os.sep) or options.out
        options.out = os.path.join(".", folder) if folder.startswith("-") else folder
    options.given = given
    task, task_sha256 = demo.load_task(options.task) if options.task else (demo.DEMO, "")
    rows = demo.read_source(task, options.source) if options.source else None
    try:
        return run(terminal, options, Work(task, task_sha256, rows))
    except demo.SessionError as error:  # before anything is made or sent
        what = f"rejected: {demo.render_count(error.findings, 'finding')}"
        return terminal.say(demo.Report(demo.EXIT_REJECTED, "rejected", what, error.findings))


def main(argv: list[str] | None = None) -> int:
    """Run one mode and return its exit code; `argv` is as for checkpoint_demo.main."""
    arguments = sys.argv[1:] if argv is None else argv
    given = {argument.partition("=")[0] for argument in arguments}

    def command(terminal: demo.Terminal) -> int:
        try:
            return _run(terminal, arguments, given)
        finally:
            if argv is None:  # Ctrl-C no longer changes how this process ends
                signal.signal(signal.SIGINT, signal.SIG_IGN)

    name = demo.quote(sys.argv[0]) if argv is None else "run_handoff.py"
    return demo.run_command(name, command, "--json" in takewhile("--".__ne__, arguments))


if __name__ == "__main__":
    demo.open_missing_descriptors()
    sys.exit(main())
