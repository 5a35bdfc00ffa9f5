#!/usr/bin/env python3
"""Measure both scripts against floors: the least that any program pays for the same work.

    $ python3 tests/bench.py
    CPython 3.12.1 on Linux x86_64, 2 cores, 2026-11-10
    what                                  figure      bar  holds?  floor
    ...
    peak memory of judging 300,000 rows     1.14     1.50  yes     json.loads of the text, 86 MiB
    ...

A figure without a unit is a ratio: the time of the work, divided by that of the floor beside it. The
two take turns, each pair gives a ratio, and the median of these is shown: a busy machine moves it
little. --json prints one object instead. What is flushed goes to the disk under TMPDIR. It takes one
and a half minutes on two cores that have nothing else to do.

Exit codes: 0 whatever the figures are, for a bar is a wish; 1 where a right document was rejected, or
a measured command did not do its work.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import gc
import gzip
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True  # measuring leaves nothing in the tree

demo: Any = importlib.import_module("checkpoint_demo")
runner: Any = importlib.import_module("run_handoff")
TASK = demo.DEMO

Action = Callable[[], object]
Times = Sequence[Sequence[float]]  # of some actions, in each round
KEY = "sk-invented-0123456789abcdef"
MIB = 2**20

# --- Figures -----------------------------------------------------------------


class Row(NamedTuple):
    """One line of the table; without a figure `floor` says why. `seconds` are those of floor and work."""

    what: str
    figure: float | None
    floor: str
    bar: float | None = None
    unit: str = ""
    seconds: tuple[float, ...] = ()

    @property
    def holds(self) -> bool | None:
        """Whether the figure, as it is shown, is at most the bar; None where one of them is missing."""
        return None if self.figure is None or self.bar is None else round(self.figure, 2) <= self.bar


def render_figure(figure: float | None, unit: str) -> str:
    """Return a figure or a bar as it is shown."""
    if figure is None:
        return "-"
    return f"{figure:,.0f} {unit}" if unit else f"{figure:.2f}"


def render_row(row: Row) -> str:
    """Return a row as a line of at most 100 columns."""
    figure, bar = render_figure(row.figure, row.unit), render_figure(row.bar, row.unit)
    holds = {True: "yes", False: "no", None: "-"}[row.holds]
    floor = row.floor + "".join(f", {seconds * 1_000:,.4g} ms" for seconds in row.seconds[:1])
    return f"{row.what:35}  {figure:>7}  {bar:>7}  {holds:6}  {floor}".rstrip()


# --- Measuring ---------------------------------------------------------------


def time_call(action: Action) -> float:
    """Return the seconds of one call; what it returned is freed behind the clock, on both sides."""
    gc.collect()
    begun = time.perf_counter()
    result = action()
    seconds = time.perf_counter() - begun
    del result
    return seconds


def time_rounds(actions: Sequence[Action], rounds: int) -> list[list[float]]:
    """Return the seconds of each action in each round; all take turns, and one round does not count.

    The garbage collector is on, as in any program, but spared the inputs, which are no garbage: going
    through them would slow all sides alike.
    """
    for action in actions:
        action()
    gc.collect()
    gc.freeze()
    times = [[time_call(action) for action in actions] for _ in range(rounds)]
    return [list(column) for column in zip(*times)]


def build_ratio(what: str, floor: str, times: Times, bar: float | None = None, by: int = 1) -> Row:
    """Return the row for the median of work / floor, round by round, divided by `by`; times are of both."""
    ratio = statistics.median(work / least for least, work in zip(*times)) / by
    return Row(what, ratio, floor, bar, "", tuple(map(statistics.median, times)))


def build_growth(what: str, size: int, times: Times, bar: float | None = 1.15) -> Row:
    """Return the row for work at `size`, held against ten times the time of a tenth of it."""
    return build_ratio(f"{what} {size:,}", f"10 x at {size // 10:,}", times, bar, by=10)


# A child takes over the peak of the process that started it, so that must be a small one.
LAUNCHER = """
import resource, subprocess, sys
ended = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
sys.exit(ended.returncode)
"""


class Workshop:
    """A folder with copies of the scripts, and how Python is started in it, as a user starts it."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).resolve()
        for script in (DEMO, RUNNER):
            shutil.copy(ROOT / script, self.folder)
        self._count = itertools.count()
        # Byte code of what a script imports is cached, as it is from a user's second start on.
        self._environment = {**os.environ, runner.KEY_ENVIRONMENT: KEY, "no_proxy": "*"}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(self, *words: str, code: int = 0) -> str:
        """Run Python and return its output; {n} in a word becomes another number each time."""
        number = str(next(self._count))
        command = [sys.executable, *(word.replace("{n}", number) for word in words)]
        ended = subprocess.run(command, cwd=self.folder, env=self._environment, capture_output=True)
        if ended.returncode != code:
            said = ended.stderr.decode(errors="replace")
            sys.exit(f"bench.py: exit {ended.returncode}, expected {code}: {command[1:]}\n{said}")
        return ended.stdout.decode()

    def starting(self, *words: str) -> Action:
        """Return the action that runs Python as a whole process."""
        return lambda: self.run(*words)

    def measure_peak(self, *words: str, code: int = 0) -> float:
        """Return the peak memory of running Python, in MiB."""
        return int(self.run("-c", LAUNCHER, sys.executable, *words, code=code)) / MIB

    def write(self, name: str, value: object) -> None:
        """Write a value as JSON in the fewest bytes."""
        (self.folder / name).write_bytes(render_compact(value))


# --- Documents ---------------------------------------------------------------


def render_compact(value: object) -> bytes:
    """Return the fewest bytes of JSON for a value."""
    return json.dumps(value, separators=(",", ":")).encode()


@functools.cache
def build_rows(count: int) -> list[dict[str, Any]]:
    """Return a source of so many rows."""
    return [{"sku": f"SKU-{i:06}", "available": i % 50, "target": i % 70} for i in range(count)]


@functools.cache
def build_result_text(count: int) -> bytes:
    """Return the right answer for a source of so many rows."""
    return render_compact(TASK.build_answer(build_rows(count)))


def build_response(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the reply of a receiver that answers rightly."""
    content = [{"type": "text", "text": render_compact(TASK.build_answer(rows)).decode()}]
    return {"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}


@functools.cache
def build_session(count: int) -> dict[str, Any]:
    """Return a session record of so many messages, 2,400 bytes each: calls of a tool and their results."""
    line = 'The shelf was counted by hand; the figure in the book, "12", was right.\n'
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go on."}]
    for number in range(count // 2 - 1):
        call = {"type": "tool_use", "id": f"toolu_{number:06}", "name": "read", "input": {"page": number}}
        turn = [{"type": "text", "text": line * 19}, call]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": line * 41}
        messages += [{"role": "assistant", "content": turn}, {"role": "user", "content": [result]}]
    messages.append({"role": "user", "content": "Thank you. Go on."})
    schema = {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]}
    tools = [{"name": "read", "description": "Return a page of the book.", "input_schema": schema}]
    fields = {"model": "claude-sonnet-5-5", "max_tokens": 4_096, "system": "You count a stock."}
    return {**fields, "tools": tools, "messages": messages}


def require_none(findings: object) -> None:
    """Stop where a right document is found fault with: a time for that would mean nothing."""
    if findings:
        sys.exit(f"bench.py: a right document was rejected: {findings!s:.500}")


# --- Whole processes ---------------------------------------------------------

DEMO, RUNNER = "checkpoint_demo.py", "run_handoff.py"
FLOORS = {
    "bare start": "import argparse, hashlib, json",
    "bare HTTP start": "import argparse, hashlib, http.server, json, urllib.request",
}
CONVERT = "session session{size}.json --to chat --model kimi-k3"
# What a person starts on the demo's three rows, and on a session of 50 turns: (command, floor, bar).
STARTS = (
    (f"checkpoint_demo.py {CONVERT.format(size=50)}", "bare start", 3.0),
    ("checkpoint_demo.py validate result.json", "bare start", 2.6),
    ("checkpoint_demo.py prepare --out out-{n}", "bare start", 2.6),
    ("checkpoint_demo.py verify prepared/checkpoint.json", "bare start", 2.6),
    ("checkpoint_demo.py request prepared/handoff.txt", "bare start", 2.6),
    ("checkpoint_demo.py extract response.json -o answer-{n}.json", "bare start", 2.6),
    ("checkpoint_demo.py replay", "bare start", 2.6),
    ("checkpoint_demo.py self-test", "bare start", 2.8),
    ("run_handoff.py --rehearse --out run-{n}", "bare HTTP start", 2.6),
    ("run_handoff.py --inspect rehearsed", "bare start", 3.2),
    ("-m checkpoint_demo validate result.json", "bare start", None),
    ("-m run_handoff --inspect rehearsed", "bare start", None),
)
# The same on many rows or messages: (command, how many).
GROWTHS = (
    ("checkpoint_demo.py validate result{size}.json --source source{size}.json", 30_000),
    ("checkpoint_demo.py prepare --out out-{n} --source source{size}.json", 30_000),
    ("checkpoint_demo.py verify prepared{size}/checkpoint.json --source source{size}.json", 30_000),
    ("checkpoint_demo.py request prepared{size}/handoff.txt", 30_000),
    ("checkpoint_demo.py extract response{size}.json -o answer-{n}.json", 30_000),
    ("checkpoint_demo.py replay --check-restored session{size}.json --original session{size}.json", 10_000),
    (f"checkpoint_demo.py {CONVERT}", 10_000),
    ("run_handoff.py --rehearse --out run-{n} --source source{size}.json", 10_000),
    ("run_handoff.py --inspect rehearsed{size} --source source{size}.json", 10_000),
)


def prepare_files(shop: Workshop, rows: list[dict[str, Any]], mark: str) -> None:
    """Write what the commands read; `mark` ends each name."""
    shop.write(f"source{mark}.json", rows)
    shop.write(f"result{mark}.json", TASK.build_answer(rows))
    shop.write(f"response{mark}.json", build_response(rows))
    own = ("--source", f"source{mark}.json")
    shop.run(DEMO, "prepare", *own, "--out", f"prepared{mark}")
    if len(rows) <= 10_000:
        shop.write(f"session{mark}.json", build_session(len(rows)))
        shop.run(RUNNER, "--rehearse", *own, "--out", f"rehearsed{mark}")


def name_command(command: str) -> str:
    """Return what a command is called in the table."""
    return " ".join(command.split()[: 3 if command.startswith("-m") else 2]).replace(f"{DEMO} ", "")


def measure_starts(shop: Workshop) -> Iterator[Row]:
    """Start each command on the demo's rows, against interpreters that only import; all take turns."""
    prepare_files(shop, TASK.source, "")
    shop.write("session50.json", build_session(50))
    floors = [shop.starting("-c", imports) for imports in FLOORS.values()]
    commands = [shop.starting(*command.split()) for command, _, _ in STARTS]
    times = time_rounds([*floors, *commands], 17)
    least = dict(zip(FLOORS, times))
    for (command, floor, bar), work in zip(STARTS, times[len(FLOORS) :]):
        yield build_ratio(name_command(command), floor, (least[floor], work), bar)


def measure_large_starts(shop: Workshop) -> Iterator[Row]:
    """Start each command on much, against ten times a tenth of it; the mere start is in both."""
    for count in (1_000, 3_000, 10_000, 30_000):
        prepare_files(shop, build_rows(count), str(count))
    for command, size in GROWTHS:
        names = (command.replace("{size}", str(count)).split() for count in (size // 10, size))
        times = time_rounds([shop.starting(*words) for words in names], 3)
        yield build_growth(name_command(command), size, times)


# --- Work in process ---------------------------------------------------------


def build_judging(count: int) -> tuple[Action, Action]:
    """Return (json.loads of a result, its strict reading and judging), both from bytes to a kept value."""
    rows, text = build_rows(count), build_result_text(count)

    def judge() -> object:
        value = demo.parse_json(text)
        require_none(demo.validate_result(value, TASK, rows))
        return value

    return lambda: json.loads(text), judge


def build_checkpoint_work(count: int) -> tuple[Action, Action]:
    """Return (the digest of the rows twice; a checkpoint built, which digests them, and verified).

    It is verified against rows that are equal but other objects, as those from a file are.
    """
    rows, trusted = build_rows(count), build_rows.__wrapped__(count)

    def digest() -> str:
        return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()

    def build_and_verify() -> object:
        checkpoint = demo.build_checkpoint(TASK, rows)
        require_none(demo.verify_checkpoint(checkpoint, TASK, trusted))
        return checkpoint

    return lambda: (digest(), digest()), build_and_verify


def build_comparison(count: int) -> tuple[Action, Action]:
    """Return (json.loads of a session record twice; two strict readings of it and their comparison)."""
    text = render_compact(build_session(count))

    def compare() -> object:
        restored, original = demo.parse_json(text), demo.parse_json(text)
        changes, notes = demo.compare_sessions(restored, original)
        require_none(list(changes.items()) + notes)
        return restored, original

    return lambda: (json.loads(text), json.loads(text)), compare


def build_conversion(count: int) -> tuple[Action, Action]:
    """Return (json.loads of a session record; its way to another API, from bytes to bytes)."""
    text = render_compact(build_session(count))

    def convert() -> object:
        gc.disable()  # as the command does it
        session = demo.read_session(demo.parse_json(text), demo.MESSAGES)
        body, _ = demo.convert(session, demo.CHAT, "kimi-k3")
        gc.enable()
        return session, demo.render_json(body).encode()

    return lambda: json.loads(text), convert


def build_streaming(count: int) -> tuple[Action, Action]:
    """Return (json.loads of each chunk; the reading of a stream of so many chunks, a call's among them)."""
    call = {"index": 0, "id": "call_1", "function": {"name": "read", "arguments": '{"page": '}}
    deltas: list[dict[str, Any]] = [{"content": "The shelf "}] * (count - 1) + [{"tool_calls": [call]}]
    chunks = [render_compact({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    data = b"".join(b"data: %s\n\n" % chunk for chunk in chunks)
    return lambda: list(map(json.loads, chunks)), lambda: demo.read_stream(data)


# (what, its builder, rows or messages, the floor's name, rounds, bar: None where there is none)
WORKS: tuple[tuple[str, Callable[[int], tuple[Action, Action]], int, str, int, float | None], ...] = (
    ("judging {} rows", build_judging, 300_000, "json.loads of the text", 5, 3.6),
    ("checkpoint of {} rows", build_checkpoint_work, 30_000, "SHA-256 of the rows, twice", 11, 2.5),
    ("comparing sessions, {} messages", build_comparison, 20_000, "json.loads of 48 MB, twice", 5, 2.5),
    ("converting {} messages", build_conversion, 20_000, "json.loads of 48 MB", 5, 8.0),
    ("reading {} chunks of a stream", build_streaming, 30_000, "json.loads of each", 5, None),
)


def measure_work(shop: Workshop) -> Iterator[Row]:
    """Do each work in this process, at its size and at a tenth of it, and see how its floor grows."""
    for what, build, size, floor, rounds, bar in WORKS:
        few_least, few, least, work = time_rounds((*build(size // 10), *build(size)), rounds)
        yield build_ratio(what.format(f"{size:,}"), floor, (least, work), bar)
        yield build_growth("  growth to", size, (few, work))
        yield build_growth("  the floor's own growth to", size, (few_least, least), None)


def measure_ledger(shop: Workshop) -> Iterator[Row]:
    """Append durable records, against write and fsync of the same bytes to an open file beside them."""
    folder = shop.folder / "recorded"
    recorder = runner.Recorder(str(folder), runner.Key(KEY), runner.Outcome, demo.Terminal("bench.py"))

    def record(times: int = 1) -> None:
        for _ in range(times):
            recorder.record("sender-tool-request", "planned", request_sha256="0" * 64)

    def write() -> None:
        os.write(descriptor, line)
        os.fsync(descriptor)

    record()
    line = (folder / "ledger.jsonl").read_bytes()
    descriptor = os.open(folder / "floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    floor = "write + fsync of its bytes"
    yield build_ratio("one ledger record, durable", floor, time_rounds((write, record), 301), 1.3)
    yield build_growth("  growth to", 200, time_rounds((lambda: record(20), lambda: record(200)), 5))
    recorder.close(importlib.import_module("tests.support").build_plan())
    os.close(descriptor)


# --- Peers: what others make of the same bytes -------------------------------

Reader = Callable[[bytes], object]


def build_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with exactly these properties."""
    closed = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}


ROW_SCHEMA = build_schema({"sku": {"type": "string"}, "shortage": {"type": "integer"}})
SCHEMA = build_schema({"rows": {"type": "array", "items": ROW_SCHEMA}})


def read_and(check: Reader) -> Reader:
    """Return a reader for a peer that checks parsed values only."""
    return lambda text: check(json.loads(text))


def build_pydantic(pydantic: Any, make: Callable[[str, dict[str, Any]], Any]) -> Reader:
    """Return pydantic's strict reader of the shapes that `make` makes."""
    row = make("Row", {"sku": str, "shortage": int})
    adapter = pydantic.TypeAdapter(make("Result", {"rows": types.GenericAlias(list, (row,))}))
    return lambda text: adapter.validate_json(text, strict=True)


def build_models(pydantic: Any) -> Reader:
    """Return the strict reader of pydantic's models, its usual form."""
    config = pydantic.ConfigDict(strict=True, extra="forbid")

    def make(name: str, fields: dict[str, Any]) -> Any:
        required = {field: (kind, ...) for field, kind in fields.items()}
        return pydantic.create_model(name, __config__=config, **required)

    return build_pydantic(pydantic, make)


def build_dicts(pydantic: Any) -> Reader:
    """Return pydantic's strict reader of plain dicts, its fastest form."""
    typing_extensions: Any = importlib.import_module("typing_extensions")

    def make(name: str, fields: dict[str, Any]) -> Any:
        shape = typing_extensions.TypedDict(name, fields)
        shape.__pydantic_config__ = pydantic.ConfigDict(strict=True, extra="forbid")
        return shape

    return build_pydantic(pydantic, make)


def build_structs(msgspec: Any) -> Reader:
    """Return msgspec's strict decoder of structs."""
    row = msgspec.defstruct("Row", [("sku", str), ("shortage", int)], forbid_unknown_fields=True)
    rows = types.GenericAlias(list, (row,))
    result = msgspec.defstruct("Result", [("rows", rows)], forbid_unknown_fields=True)
    decode: Reader = msgspec.json.Decoder(result, strict=True).decode
    return decode


Builder = Callable[[Any], Reader]
# (what, its package, the builder of its reader, rows, the bar for judging beside it)
READERS: tuple[tuple[str, str, Builder, int, float | None], ...] = (
    ("jsonschema", "jsonschema", lambda it: read_and(it.Draft202012Validator(SCHEMA).validate), 3_000, None),
    ("fastjsonschema", "fastjsonschema", lambda it: read_and(it.compile(SCHEMA)), 300_000, 1.0),
    ("pydantic strict models", "pydantic", build_models, 300_000, 1.0),
    ("pydantic strict dicts", "pydantic", build_dicts, 300_000, 1.0),
    ("msgspec strict", "msgspec", build_structs, 300_000, None),
    ("orjson, no shape", "orjson", lambda it: it.loads, 300_000, None),
)


def measure_beside(
    what: str, label: str, package: str, pair: Callable[[], tuple[Action, Action]], bar: float | None = None
) -> Row:
    """Return the row for what `pair` makes, (a peer's action, our own), if the package is installed."""
    if importlib.util.find_spec(package) is None:
        return Row(what, None, f"{label}: not installed", bar)
    return build_ratio(what, label, time_rounds(pair(), 3), bar)


def measure_readers(shop: Workshop) -> Iterator[Row]:
    """Judge beside peers that read the same bytes and check their shape."""
    for label, package, build, count, bar in READERS:

        def pair(package: str = package, build: Builder = build, count: int = count) -> tuple[Action, Action]:
            text, read = build_result_text(count), build(importlib.import_module(package))
            return lambda: read(text), build_judging(count)[1]

        yield measure_beside(f"judging {count:,} rows, beside", label, package, pair, bar)


def measure_others(shop: Workshop) -> Iterator[Row]:
    """Write canonical JSON beside rfc8785, and rehearse beside the mere import of the anthropic SDK."""
    rows = build_rows(30_000)

    def write_canonical() -> tuple[Action, Action]:
        rfc8785: Any = importlib.import_module("rfc8785")
        return lambda: rfc8785.dumps(rows), lambda: demo.canonical_json(rows)

    def start() -> tuple[Action, Action]:
        rehearse = shop.starting(RUNNER, "--rehearse", "--out", "run-{n}")
        return shop.starting("-c", "import anthropic"), rehearse

    yield measure_beside("canonical JSON, 30,000 rows, beside", "rfc8785", "rfc8785", write_canonical)
    yield measure_beside("run_handoff.py --rehearse, beside", "import anthropic", "anthropic", start)


# --- The prompt: bytes, which become tokens ----------------------------------


def count_bytes(text: str) -> int:
    """Return the size of a text in UTF-8."""
    return len(text.encode())


def measure_prompt(shop: Workshop) -> Iterator[Row]:
    """Count the bytes of the demo's handoff prompt and of its parts."""
    checkpoint = demo.build_checkpoint(TASK, TASK.source)
    prompt, canonical = demo.render_handoff(TASK, checkpoint), demo.canonical_json(checkpoint).decode()
    instructions, end = prompt.split(canonical)
    parts = {name: len(demo.canonical_json({name: checkpoint[name]})) - len("{}") for name in checkpoint}
    rest = count_bytes(canonical + end) - sum(parts.values())
    indented = count_bytes(instructions + json.dumps(checkpoint, indent=2) + end)
    yield Row("handoff prompt of the demo", count_bytes(prompt), "", unit="B")
    yield Row("  instructions", count_bytes(instructions), "", unit="B")
    for name, size in parts.items():
        yield Row(f"  checkpoint: {name}", size, "", unit="B")
    yield Row("  its braces and commas, a newline", rest, "", unit="B")
    yield Row("the same, the checkpoint indented", indented, "", unit="B")


def measure_bytes_a_row(shop: Workshop) -> Iterator[Row]:
    """Count the bytes that one more row takes: the difference of two sources, spread over their rows."""
    few, many = build_rows(100), build_rows(900)
    checkpoints = [demo.build_checkpoint(TASK, rows) for rows in (few, many)]
    prompts = [count_bytes(demo.render_handoff(TASK, checkpoint)) for checkpoint in checkpoints]
    answers = [len(render_compact(TASK.build_answer(rows))) for rows in (few, many)]
    for what, (less, more) in (("prompt", prompts), ("answer", answers)):
        yield Row(f"one more row, in the {what}", (more - less) / 800, "SKU of 10 characters", unit="B")


# --- Memory ------------------------------------------------------------------

# The text and the rows are kept in each of the three ways; the first does nothing more.
HOLD = """
import json, sys
import checkpoint_demo as demo
rows = [{"sku": f"SKU-{i:06}", "available": i % 50, "target": i % 70} for i in range(int(sys.argv[1]))]
with open(f"result{len(rows)}.json", "rb") as file:
    text = file.read()
"""
LOAD = f"{HOLD}value = json.loads(text)"
JUDGE = f"{HOLD}value = demo.parse_json(text)\nassert demo.validate_result(value, demo.DEMO, rows) == []"


def measure_judging(shop: Workshop) -> Iterator[Row]:
    """Compare what judging adds to the peak of a process that holds its inputs, and what json.loads adds."""
    peaks: list[float] = []
    for count in (30_000, 300_000):
        (shop.folder / f"result{count}.json").write_bytes(build_result_text(count))
        held, *others = (shop.measure_peak("-c", way, str(count)) for way in (HOLD, LOAD, JUDGE))
        peaks += [peak - held for peak in others]
    _, tenth, loaded, judged = peaks
    floor = f"json.loads of the text, {loaded:.0f} MiB"
    yield Row("peak memory of judging 300,000 rows", judged / loaded, floor, 1.5)
    yield Row("  growth to 300,000", judged / tenth / 10, f"10 x at 30,000, {tenth:.1f} MiB", 1.15)


# The peak of a process that reads a session record and parses it, and of one that converts it.
PARSE = "import json, sys\nwith open(sys.argv[1], 'rb') as file:\n    value = json.loads(file.read())"


def measure_converting(shop: Workshop) -> Iterator[Row]:
    """Compare what converting a large record adds to the peak of a start, and what json.loads adds."""
    bare = shop.measure_peak("-c", FLOORS["bare start"])
    added: list[tuple[float, float]] = []
    for size in (2_000, 20_000):
        name = f"session{size}.json"
        shop.write(name, build_session(size))
        loaded = shop.measure_peak("-c", f"{FLOORS['bare start']}\n{PARSE}", name)
        converted = shop.measure_peak(DEMO, *CONVERT.format(size=size).split())
        added.append((loaded - bare, converted - bare))
    (_, tenth), (loaded, converted) = added
    floor = f"reading and json.loads, {loaded:.0f} MiB"
    yield Row("peak memory of converting 48 MB", converted / loaded, floor, 4.0)
    yield Row("  growth to 48 MB", converted / tenth / 10, f"10 x at a tenth, {tenth:.1f} MiB", 1.15)


HEAD = b"HTTP/1.1 200 OK\r\n"
BOUND_MIB = 200


def build_flood(head: bytes, piece: bytes, total: int) -> Callable[[Any, object], None]:
    """Return a scripted server's entry that sends a head, and a piece again and again."""

    def send(connection: Any, request: object) -> None:
        connection.sendall(head)
        for _ in range(total // len(piece)):
            connection.sendall(piece)

    return send


def measure_memory(shop: Workshop) -> Iterator[Row]:
    """Do live runs against servers on loopback, and show the runner's peak."""
    support = importlib.import_module("tests.support")
    bomb = support.respond(gzip.compress(b" " * 2**28, 1), content_encoding="gzip")
    announced = HEAD + b"content-length: 268435456\r\n\r\n"
    # What the server sends, and the exit code of the run: accepted, or unclear.
    servers = {
        "an ordinary run": (support.GOOD_RUN, 0),
        "a reply of 256 MiB": ([build_flood(announced, b" " * MIB, 2**28)], 5),
        "32 MiB of {},": ([build_flood(HEAD + b"\r\n[", b"{}," * 2**18, 2**25)], 5),
        "a gzip bomb of 256 MiB": ([bomb], 5),
    }
    for what, (script, code) in servers.items():
        with contextlib.ExitStack() as stack:
            server = support.ScriptedServer(types.SimpleNamespace(addCleanup=stack.callback), *script)
            words = (RUNNER, "--live", "--endpoint", server.url, "--out", "live-{n}")
            peak = shop.measure_peak(*words, code=code)
        yield Row(f"the runner, {what}", peak, "", BOUND_MIB, "MiB")


# --- The table ---------------------------------------------------------------

Measure = Callable[[Workshop], Iterator[Row]]
SECTIONS: dict[str, tuple[Measure, ...]] = {
    "start, whole process": (measure_starts,),
    "growth, whole process": (measure_large_starts,),
    "work in process": (measure_work, measure_ledger),
    "peers": (measure_readers, measure_others),
    "bytes of the prompt": (measure_prompt, measure_bytes_a_row),
    "peak memory": (measure_judging, measure_converting, measure_memory)
    if os.name != "nt"
    else (),  # needs getrusage
}
NOTES = """\
without a unit: the median ratio of the work's time to the floor's, in pairs; a bar: at most
bare start: python -c "import argparse, hashlib, json"
bare HTTP start: python -c "import argparse, hashlib, http.server, json, urllib.request"
growth: the time at ten times the rows, messages or records, to ten times the time
session: of 50 turns, 2,400 bytes each, to another API
peak memory of judging: what it adds to a process that holds the text and the rows
peak memory of converting: what the command adds to a bare start, where json.loads adds the floor
peers check the shape; judging also refuses repeated keys and recomputes every quantity"""


def describe_machine() -> str:
    """Return the interpreter, the machine and the day."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return f"{python} on {machine}, {datetime.date.today()}"


def measure_sections() -> dict[str, list[Row]]:
    """Return the rows of each section, measured in a temporary folder."""
    sections: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        shop = Workshop(folder)
        for name, measures in SECTIONS.items():
            print(f"measuring: {name}", file=sys.stderr)
            sections[name] = [row for measure in measures for row in measure(shop)]
    return sections


def print_json(sections: dict[str, list[Row]], seconds: float) -> None:
    """Print one object with every row."""
    rows = [
        {"section": name, **row._asdict(), "holds": row.holds} for name in sections for row in sections[name]
    ]
    report = {"measured_on": describe_machine(), "took_seconds": round(seconds), "rows": rows}
    print(json.dumps(report, indent=2))


def print_table(sections: dict[str, list[Row]], seconds: float) -> None:
    """Print the table for a person."""
    print(describe_machine(), f"{'what':35}  {'figure':>7}  {'bar':>7}  holds?  floor", sep="\n")
    for name, rows in sections.items():
        print(f"-- {name} ".ljust(100, "-"), *map(render_row, rows), sep="\n")
    print("-" * 100, NOTES, f"took {seconds:.0f} s", sep="\n")


def main() -> None:
    """Measure everything, then print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print one machine-readable object instead")
    options = parser.parse_args()
    begun = time.monotonic()
    sections = measure_sections()
    (print_json if options.json else print_table)(sections, time.monotonic() - begun)


if __name__ == "__main__":
    main()
