#!/usr/bin/env python3
"""Keep a verified checkpoint of an agent's work, hand it over, judge the answer.

    $ python3 checkpoint_demo.py prepare
    wrote checkpoint.json
    wrote handoff.txt
    $ python3 checkpoint_demo.py validate result.json
    accepted: 3 rows, total shortage 7
    $ python3 checkpoint_demo.py validate wrong.json
    rows[1].shortage: observed the string "0", expected the integer 0
    rejected: 1 finding

The application builds the checkpoint from what its tools really returned; no model is asked to confirm
its own work. Everything is judged against the trusted source, never against what a file claims.

Exit codes: 0 done or accepted; 1 judged and rejected; 2 usage, or an input or output that cannot be
read or written; 3 refused, nothing changed; 70 a bug in this program; 130 interrupted.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections import Counter
from functools import lru_cache
from itertools import count, islice, takewhile, zip_longest
from operator import eq

TYPE_CHECKING = False  # a type checker takes it for true; importing typing costs every start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, NoReturn, Union

    Json = dict[str, Any]  # an object as it was parsed: a row, a checkpoint, a message, a record
    Rows = list[Json]
    Messages = list[Any]
    Path = tuple[Union[str, int], ...]  # from the root of a document to a value in it
    Findings = list["Finding"]
    Changes = dict[str, Findings]  # by the label of what was changed

EXIT_DONE = 0
EXIT_REJECTED = 1
EXIT_UNUSABLE = 2
EXIT_REFUSED = 3
EXIT_BUG = 70
EXIT_INTERRUPTED = 130

# --- Errors ------------------------------------------------------------------


class HandoffError(Exception):
    """A refusal that a person can act on: what was refused, why, and what to do next.

    `exit_code` is what a command returns for it, `verdict` the word that its message begins with.
    """

    exit_code = EXIT_UNUSABLE
    verdict = "cannot go on"

    def __init__(self, what: str, why: str, next_step: str) -> None:
        self.what, self.why, self.next_step = what, why, next_step

    def __str__(self) -> str:
        return f"{self.verdict}: {self.what}\n  why: {self.why}\n  next: {self.next_step}"


class UsageError(HandoffError):
    """The command line asks for something that does not exist, or does not say all."""

    verdict = "usage"

    def __init__(self, what: str, program: str) -> None:
        super().__init__(show(what), "what is not understood is never guessed", f"see {program} --help")


class UnreadableError(HandoffError):
    """An input cannot be read at all, so it was not judged."""

    verdict = "unreadable"

    def __init__(self, path: str, fault: str, next_step: str = "name a file that you can read") -> None:
        super().__init__(f"{show(path)}: {fault}", "only what was read whole is used", next_step)


class UnwritableError(HandoffError):
    """An output cannot be written; whatever stood there before stands there still."""

    verdict = "cannot write"

    def __init__(self, path: str, error: Exception) -> None:
        super().__init__(
            f"{show(path)}: {explain(error)}",
            "a file is written whole or not at all, and nothing was left behind",
            "make room, or name a place that you can write to",
        )


class RefusedError(HandoffError):
    """Something is not done because it would do harm; nothing was changed."""

    exit_code = EXIT_REFUSED
    verdict = "refused"


class ExistsError(RefusedError):
    """A file would be overwritten."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{show(path)} already exists",
            "what exists is never overwritten",
            "move it away, or name another place",
        )


class Finding:
    """One thing that is wrong with a document: `path` says where, `message` what."""

    def __init__(self, path: str, message: str) -> None:
        self.path, self.message = path, message

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"

    __repr__ = __str__


class JsonError(Finding, ValueError):
    """A text is not the strict JSON that is read here; raised, it is a finding all the same."""


class StockError(JsonError):
    """Rows are no stock."""


# --- Text that may be shown --------------------------------------------------

# C0 and C1 controls, DEL, line separators, bidirectional marks, lone surrogates.
_HIDDEN = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
_SHOWN_CHARACTERS = 72


class Words(str):
    """Stands for an expected value where there is not one value alone: what it must be, in words."""


MISSING = Words("nothing")  # stands where one of two documents has nothing
_KINDS = {
    str: "the string ",
    int: "the integer ",
    float: "the number ",
    list: "the array ",
    dict: "the object ",
}


def show(text: str) -> str:
    """Return one line of text with everything escaped that could act on a terminal. Pure."""
    if text.isprintable():  # no character that would be escaped is printable
        return text
    return re.sub(_HIDDEN, lambda match: ascii(match.group())[1:-1], text)


def shorten(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    """Return the text, cut to `most` characters with its full length said. Pure."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def explain(error: object) -> str:
    """Return what an exception says, without the number and the name that an OSError adds. Pure."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


_COMPACT = json.JSONEncoder(allow_nan=False, separators=(",", ":"))  # json.dumps would build one each time


def render_json(value: Any, indent: int | None = None) -> str:
    """Return a parsed value as JSON in printable ASCII, in one line or indented by `indent` spaces. Pure."""
    return _COMPACT.encode(value) if indent is None else json.dumps(value, allow_nan=False, indent=indent)


def describe(value: Any) -> str:
    """Return words for a parsed value: its type and its text, shortened and escaped. Pure."""
    if type(value) is Words:
        return str(value)
    return _KINDS.get(type(value), "") + shorten(render_json(value))


def describe_pair(observed: Any, expected: Any) -> str:
    """Return `observed ..., expected ...`; long strings are shown from where they part. Pure."""
    begin = ""
    if type(observed) is str and type(expected) is str:
        apart = find_parting(observed, expected)
        if apart >= _SHOWN_CHARACTERS // 2:
            begin = f", from character {apart - 12} on"
            observed, expected = f"...{observed[apart - 12 :]}", f"...{expected[apart - 12 :]}"
    return f"observed {describe(observed)}, expected {describe(expected)}{begin}"


def find_parting(one: str | bytes, other: str | bytes) -> int:
    """Return where two texts begin to differ: how many of their first characters are equal. Pure."""
    return sum(takewhile(bool, map(eq, one, other)))


def render_count(things: list[Any], name: str) -> str:
    """Return how many things there are, with their name in singular or plural. Pure."""
    return f"{len(things):,} {name}{'' if len(things) == 1 else 's'}"


def render_path(parts: Iterable[str | int]) -> str:
    """Return a JSON path such as `rows[1].shortage`, cut in the middle if long; the whole is `$`. Pure."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,71}", part):
            path += f".{part}"
        else:  # a long key is cut: it may stand in front of many findings
            path += f"[{render_json(shorten(part))}]"
    path = path.lstrip(".") or "$"
    return path if len(path) <= 1_000 else f"{path[:480]}...{path[-480:]}"


# --- Strict JSON: the one reader for everything that comes from outside ------

INPUT_LIMIT_BYTES = 64 * 2**20
DEPTH_LIMIT = 200
DIGITS_LIMIT = 4_300  # CPython's own limit since 3.9.14, held on older ones and when it is switched off
BYTE_ORDER_MARK = "\ufeff"
_NESTING = (dict, list)


class _Fault(str):
    """Stands in a parsed value where the text held something that is refused: why it is."""


def decode_text(data: bytes) -> str:
    """Return a text as it stands. Raises JsonError where it is not UTF-8, or longer than 64 MiB. Pure."""
    if len(data) > INPUT_LIMIT_BYTES:
        raise JsonError(f"byte {INPUT_LIMIT_BYTES}", f"longer than {INPUT_LIMIT_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode().removeprefix(BYTE_ORDER_MARK)
        raise JsonError(_name_position(before, len(before)), "not UTF-8") from error


def parse_json(data: bytes | str, depth_limit: int = DEPTH_LIMIT) -> Any:
    """Return the value of a JSON text (RFC 8259), read strictly.

    Bytes must be UTF-8, a leading byte-order mark allowed; a str counts as the bytes it encodes to.
    Objects become dicts, arrays lists, integers ints (`-0` is 0), other numbers floats (IEEE doubles).
    A lone surrogate that is written as an escape is kept. Raises JsonError with the place for everything
    else, and for: a key that an object has twice, NaN and Infinity, a number too large for a double, an
    integer of more than 4,300 digits, text behind the value, nesting deeper than `depth_limit`, more
    than 64 MiB. Pure.
    """
    # 1. A bound on the size, and one decision on the encoding.
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    text = decode_text(raw).removeprefix(BYTE_ORDER_MARK)
    # 2. The standard scanner alone, where it is proved that it let nothing pass that is refused here.
    value = _scan_plain(text, depth_limit)
    if value is not MISSING:
        return value
    # 3. Else it is scanned again, each object and number looked at; what is refused becomes a _Fault.
    faults: dict[str, _Fault] = {}  # one for each reason, however often it is met
    try:
        value = _scan(text, lambda reason: faults.setdefault(reason, _Fault(reason)))
        if _count_keys(value, depth_limit) is None:
            raise RecursionError  # the same fault as in the scanner, found afterwards
    except (json.JSONDecodeError, RecursionError) as error:
        raise _explain_scan_error(text, depth_limit, error) from error
    if faults:
        raise next(_find_faults(value))
    return value


def _scan_plain(text: str, depth_limit: int) -> Any:
    """Return the value of a text that holds nothing to refuse, or MISSING where that is not certain.

    A key stands in front of a colon, so that where no white space comes between them, the text holds
    `":` at least as often as it has keys. A value with as many keys has lost none to an equal one.
    """
    dense = text.count("{") * 100 > len(text)  # elsewhere the careful scan costs less than these proofs
    digits_are_limited = getattr(sys, "get_int_max_str_digits", lambda: 0)() == DIGITS_LIMIT
    if not dense or not digits_are_limited:
        return MISSING
    most_keys = text.count('":')
    if text.count(":") != most_keys and re.search('"[ \t\n\r]+:', text):
        return MISSING

    def doubt(_: str) -> NoReturn:
        raise ValueError

    try:
        value = _scan(text, doubt, careful=False)
    except (ValueError, RecursionError):
        return MISSING
    return value if _count_keys(value, depth_limit) == most_keys else MISSING


def _scan(text: str, refuse: Callable[[str], Any], careful: bool = True) -> Any:
    """Return what the standard scanner makes of a text, and for what is refused what `refuse` returns.

    Only if `careful` are equal keys found, and integers measured against this reader's own limit.
    """

    def build_object(pairs: list[tuple[str, Any]]) -> Any:
        value = dict(pairs) if pairs else {}  # before 3.10 dict([]) is four times as large
        if len(value) == len(pairs):
            return value
        first: dict[str, int] = {}
        twice = next(key for at, (key, _) in enumerate(pairs) if first.setdefault(key, at) != at)
        return refuse(f"the key {describe(twice)} stands there twice")

    def build_float(digits: str) -> Any:
        number = float(digits)
        return number if abs(number) != float("inf") else refuse("a number too large for a double")

    def build_int(digits: str) -> Any:
        try:
            if len(digits.lstrip("-")) <= DIGITS_LIMIT:
                return int(digits)
        except ValueError:  # an interpreter may be told to read even less
            pass
        return refuse(f"an integer of more than {DIGITS_LIMIT:,} digits")

    return json.loads(
        text,
        object_pairs_hook=build_object if careful else None,
        parse_float=build_float,
        parse_constant=lambda name: refuse(f"{name} is no JSON number"),
        parse_int=build_int if careful else None,
    )


def _count_keys(value: Any, depth_limit: int) -> int | None:
    """Return how many keys the objects in a value have together, None where it is nested too deep."""
    keys, depth, level = 0, 0, [value] if type(value) in _NESTING else []
    while level and depth < depth_limit:
        depth += 1
        keys += sum(len(node) for node in level if type(node) is dict)
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) in _NESTING
        ]
    return None if level else keys


def _explain_scan_error(text: str, depth_limit: int, error: Exception) -> JsonError:
    """Return the error for the first bracket that opens a level too many, else for what stopped the scanner.

    One token after the other, so that time grows with the text alone.
    """
    depth, in_string = 0, False
    for token in re.finditer(r'\\.|["\[\]{}]', text[: getattr(error, "pos", None)], re.DOTALL):
        mark = token.group()
        if mark == '"':
            in_string = not in_string
        elif not in_string:
            depth += (mark in "[{") - (mark in "]}")
            if depth > depth_limit:
                place = _name_position(text, token.start())
                return JsonError(place, f"nested deeper than {depth_limit} levels")
    if not isinstance(error, json.JSONDecodeError):
        return JsonError("$", "nested too deep")
    reason = re.sub("( starting)?( at)?:? *$", "", error.msg)
    here = f" at {render_json(text[error.pos : error.pos + 16])}" if text[error.pos :] else " at the end"
    return JsonError(_name_position(text, error.pos), f"no JSON: {reason[:1].lower()}{reason[1:]}{here}")


def _name_position(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"line {line} column {position - text.rfind(chr(10), 0, position)}"


def _find_faults(value: Any, *at: str | int) -> Iterator[JsonError]:
    """Yield each _Fault in a value as the error that it stands for, in document order."""
    if isinstance(value, _Fault):
        yield JsonError(render_path(at), value)
    elif isinstance(value, (dict, list)):
        for part, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _find_faults(child, *at, part)


# --- Canonical JSON and digests ----------------------------------------------


def canonical_json(value: Any) -> bytes:
    """Return the bytes that are digested: UTF-8, keys sorted, no white space, non-ASCII as itself.

    For objects with ASCII keys, arrays, strings, integers, true, false and null this is RFC 8785.
    Floats and other keys are not checked for. Raises JsonError for a string with a lone surrogate,
    which has no UTF-8 form. Pure.
    """
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise JsonError(f"character {error.start}", "a lone surrogate has no UTF-8 form") from error


def digest_bytes(data: bytes) -> str:
    """Return the lower-case hex SHA-256 (FIPS 180-4) of the bytes. Pure."""
    return str(_find_sha256()(data).hexdigest())


@lru_cache
def _find_sha256() -> Any:
    """Return the small SHA-256 of CPython, as its `random` does: hashlib drags OpenSSL in, for 3 ms."""
    try:
        return __import__("_sha2" if sys.version_info >= (3, 12) else "_sha256").sha256
    except ImportError:  # another Python
        import hashlib

        return hashlib.sha256


def digest_json(value: Any) -> str:
    """Return the digest of a value's canonical JSON. Raises what canonical_json raises. Pure."""
    return digest_bytes(canonical_json(value))


# --- Differences of two JSON values ------------------------------------------

MOST_FINDINGS = 10_000  # behind these, the rest of a document is not looked at


def find_differences(observed: Any, expected: Any, *at: str | int) -> Iterator[tuple[Path, Any, Any]]:
    """Yield every place where two parsed values differ: (path parts, observed, expected).

    `1`, `1.0` and `true` differ, so do -0.0 and 0.0, null, empty and absent; the order of an object's
    keys does not count, the order of an array does. No text is normalised. A side that has nothing at
    a place is MISSING there. `at` is where the two stand inside a larger document. In document order.
    Pure.
    """
    kind = type(observed) if type(observed) is type(expected) else None
    if kind is dict:
        for key in {**observed, **expected}:
            one, other = observed.get(key, MISSING), expected.get(key, MISSING)
            if not _is_same(one, other):
                yield from find_differences(one, other, *at, key)
    elif kind is list:
        for index, (one, other) in enumerate(zip_longest(observed, expected, fillvalue=MISSING)):
            if not _is_same(one, other):
                yield from find_differences(one, other, *at, index)
    elif not _is_same(observed, expected):
        yield at, observed, expected


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same text, number or literal, or one and the same object."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other) or kind in _NESTING:
        return False
    return repr(one) == repr(other) if kind is float else bool(one == other)


def list_differences(observed: Any, expected: Any, *at: str | int) -> Findings:
    """Return find_differences as findings, at most 10,000 (see cut): the JSON path and both values. Pure."""
    return cut(explain_differences(observed, expected, *at))


def explain_differences(observed: Any, expected: Any, *at: str | int) -> Iterator[Finding]:
    """Yield find_differences as findings. Pure."""
    for path, one, other in find_differences(observed, expected, *at):
        yield Finding(render_path(path), describe_pair(one, other))


def cut(findings: Iterable[Finding]) -> Findings:
    """Return findings, at most 10,000; where there are more, a last one says that it ends there. Pure."""
    listed = list(islice(findings, MOST_FINDINGS + 1))
    if len(listed) > MOST_FINDINGS:
        end = f"not looked at, nor anything behind it: {MOST_FINDINGS:,} findings come before it"
        listed[-1] = Finding(listed[-1].path, end)
    return listed


# --- Stock: the trusted source -----------------------------------------------

STOCK = [
    {"sku": "DEMO-001", "available": 7, "target": 10},
    {"sku": "DEMO-002", "available": 15, "target": 12},
    {"sku": "DEMO-003", "available": 0, "target": 4},
]
STOCK_COLUMNS = ["sku", "available", "target"]
MOST_ROWS = 100_000
MOST_PIECES = 10**12
_SKU = "[^=\x00-\x1f\x7f-\x9f\ud800-\udfff][^\x00-\x1f\x7f-\x9f\ud800-\udfff]*"  # "=" begins a formula


def parse_stock(data: bytes) -> Rows:
    """Return the rows of a stock file: `{"sku": str, "available": int, "target": int}` each.

    A CSV text with the header sku,available,target in any order, or a JSON array of such objects;
    UTF-8, a byte-order mark allowed. Raises JsonError, as a rule a StockError, with the line or the
    path and the column for what check_stock refuses, and for quantities not in plain digits. Pure.
    """
    text = decode_text(data).removeprefix(BYTE_ORDER_MARK)
    if text.lstrip()[:1] in ("[", "{"):
        return check_stock(parse_json(text))
    return _check_rows(_parse_csv(text), ", column ")


def _parse_csv(text: str) -> Iterator[tuple[str, Json]]:
    """Yield (line, row) with quantities as integers where they are plain digits, else as they stand."""
    import csv

    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    begin = 1  # a quoted field may go over several lines; the first of them is named
    try:
        header = next(lines, [])
        if sorted(header) != sorted(STOCK_COLUMNS):
            observed, expected = describe(header or MISSING), ",".join(STOCK_COLUMNS)
            raise StockError("line 1", f"observed {observed}, expected the columns {expected}")
        begin = lines.line_num + 1
        for fields in lines:
            if len(fields) != len(header):
                observed = f"{len(fields)} fields" if fields else "a blank line"
                raise StockError(f"line {begin}", f"observed {observed}, expected {len(header)} fields")
            yield (
                f"line {begin}",
                {
                    column: int(field) if column != "sku" and re.fullmatch("[0-9]{1,20}", field) else field
                    for column, field in zip(header, fields)
                },
            )
            begin = lines.line_num + 1
    except csv.Error as error:
        raise StockError(f"line {begin}", f"no CSV: {error}") from error


def check_stock(rows: Any) -> Rows:
    """Return rows with their fields in one order. Raises StockError at the first that is no stock row.

    1 to 100,000 objects with exactly the fields sku (a unique, non-empty string without control
    characters or lone surrogates, not beginning with "="), available and target (integers from 0 to
    10^12). Pure.
    """
    if not isinstance(rows, list):
        raise StockError("the stock", f"observed {describe(rows)}, expected an array of rows")
    return _check_rows(((f"[{at}]", row) for at, row in enumerate(rows)), ".")


def _check_rows(placed_rows: Iterable[tuple[str, Any]], mark: str) -> Rows:
    """Return the rows out of (place, row) pairs; `mark` stands between a place and its column."""
    rows: dict[str, Json] = {}
    for place, row in placed_rows:
        if len(rows) == MOST_ROWS:
            raise StockError(place, f"observed more than {MOST_ROWS:,} rows, expected 1 to {MOST_ROWS:,}")
        if not isinstance(row, dict) or set(row) != set(STOCK_COLUMNS):
            fields = ", ".join(STOCK_COLUMNS)
            raise StockError(place, f"observed {describe(row)}, expected an object with {fields}")
        for column in STOCK_COLUMNS:
            value: Any = row[column]
            expected = "an integer from 0 to 10^12 in plain digits"
            fits = type(value) is int and 0 <= value <= MOST_PIECES
            if column == "sku":
                expected = (
                    "a string that no other row has, not empty, no control character in it, no = in front"
                )
                fits = isinstance(value, str) and bool(re.fullmatch(_SKU, value)) and value not in rows
            if not fits:
                raise StockError(f"{place}{mark}{column}", f"observed {describe(value)}, expected {expected}")
        rows[row["sku"]] = {column: row[column] for column in STOCK_COLUMNS}
    if not rows:
        raise StockError("the stock", f"observed 0 rows, expected 1 to {MOST_ROWS:,}")
    return list(rows.values())


# --- Checkpoint: the application's own snapshot of the work ------------------

SCHEMA_VERSION = 1
OPERATION = "read_stock"
OPERATION_ID = "read-stock-1"

# What a difference means, by how its path begins; the first that fits counts.
_REASONS = {
    "$": "this is no checkpoint",
    "schema_version": "an unknown schema version",
    "task_id": "this is another task",
    "objective": "the objective was changed",
    "source_sha256": "the digest of the source is not that of the trusted source, which --stock names",
    "completed[0].status": "a read that is not verified proves nothing",
    "completed[0].result_sha256": "the digest of the result is not that of the trusted source",
    "completed[0].result": "the result of the read is not what the trusted source holds",
    "completed": "the finished operations were changed",
    "pending": "the open work was changed",
    "side_effects": "a side effect that nobody allowed",
}


def build_checkpoint(rows: Rows) -> Json:
    """Return the checkpoint of a finished stock read, as the application saw it.

    `rows` are a stock as the tool returned it; check_stock is the caller's. Both digests are
    digest_json(rows). Raises JsonError for a SKU that has no UTF-8 form. Pure.
    """
    digest = digest_json(rows)
    built_in = rows == STOCK
    return {  # the built-in task keeps its own words
        "schema_version": SCHEMA_VERSION,
        "task_id": "synthetic-stock-20261110" if built_in else f"stock-{digest[:12]}",
        "objective": "Report shortage=max(target-available,0) for every SKU. Do not place orders.",
        "source_sha256": digest,
        "completed": [
            {
                "operation_id": OPERATION_ID,
                "operation": OPERATION,
                "status": "verified",
                "result": rows,
                "result_sha256": digest,
            }
        ],
        "pending": [
            f"Produce all {'three' if built_in else len(rows)} SKU shortage rows",
            "Pass independent validator",
        ],
        "side_effects": [],
    }


def verify_checkpoint(checkpoint: Any, rows: Rows) -> Findings:
    """Return what keeps a parsed checkpoint from being the one that the source `rows` allows.

    Empty means verified: every field is there, none is unexpected, both digests are those of
    `rows`, the read is verified, no side effect is claimed. This shows agreement with a source that
    is trusted; it shows no authorship and no freshness. Pure.
    """
    differences = find_differences(checkpoint, build_checkpoint(rows))
    return cut(_explain_difference(*difference) for difference in differences)


def _explain_difference(parts: Path, observed: Any, expected: Any) -> Finding:
    path = render_path(parts)
    reason = next((_REASONS[place] for place in _REASONS if path.startswith(place)), "")
    if parts and isinstance(parts[-1], str) and (observed is MISSING or expected is MISSING):
        reason = "an unexpected field" if expected is MISSING else "a missing field"
    return Finding(path, f"{describe_pair(observed, expected)} ({reason})")


# --- Handoff: what the receiving model is given ------------------------------

RECEIVER_MODEL = "anthropic/claude-opus-5.5"
MAX_TOKENS = 4_096

HANDOFF_PROMPT = """\
Resume this read-only task from verified application state.
Do not claim access to prior reasoning.
Do not call tools or place orders.
Return only a JSON object with key rows, containing every SKU
and integer shortage. No Markdown.
Checkpoint: """


def render_handoff(checkpoint: Json) -> str:
    """Return the handoff prompt: the instructions and the whole checkpoint as canonical JSON.

    It ends with a newline. Raises what canonical_json raises. Pure.
    """
    return f"{HANDOFF_PROMPT}{canonical_json(checkpoint).decode()}\n"


def build_receiver_request(handoff: str, model: str = RECEIVER_MODEL, max_tokens: int = MAX_TOKENS) -> Json:
    """Return the body of a Messages request that begins a fresh session with the handoff prompt.

    Nothing of the earlier session is in it: no assistant message, no signed block, no tool. Pure.
    """
    return {
        "model": model,
        "max_tokens": max_tokens,
        "output_config": {"effort": "low"},
        "messages": [{"role": "user", "content": handoff}],
    }


# --- Reply: a whole message, a finished turn ---------------------------------

REPLY_DEPTH_LIMIT = 100  # a reply is nested into the next request, which must stay readable

_STOP_REASONS = {
    "max_tokens": "the answer was cut off by the token limit",
    "model_context_window_exceeded": "the answer was cut off by the context window",
    "pause_turn": "the turn was paused before its end",
    "refusal": "the model refused",
    "tool_use": "the model waits for a tool",
}
_NO_BLOCK = Words("a block with a type")


def find_message_faults(reply: Any) -> Findings:
    """Return what keeps a parsed reply from being a whole message of the Messages API.

    A whole message is an object with `type` message, `role` assistant and `content` a list of
    objects that each have a string `type`. What stands in the blocks is judged elsewhere. Pure.
    """
    if not isinstance(reply, dict):
        return list_differences(reply, Words("a message"))
    error = describe_api_error(reply)
    if error:
        return [Finding("$", f"observed an error ({error}), expected a message")]
    content = reply.get("content")
    right: Any = Words("a list of blocks")
    if isinstance(content, list):
        right = [block if _is_block(block) else _NO_BLOCK for block in content]
    return list_differences(reply, {**reply, "type": "message", "role": "assistant", "content": right})


def _is_block(block: Any) -> bool:
    return isinstance(block, dict) and isinstance(block.get("type"), str)


def describe_api_error(reply: Any) -> str:
    """Return what a parsed error body of the Messages API says, or "" for any other reply. Pure."""
    error = reply.get("error") if isinstance(reply, dict) and reply.get("type") == "error" else None
    if not isinstance(error, dict) or not isinstance(error.get("type"), str):
        return ""
    return f"{shorten(show(error['type']))}: {describe(error.get('message', MISSING))}"


def find_reply_faults(message: Json, stop_reason: str, tool: str | None = None) -> Findings:
    """Return why a whole message does not fit its step, a wrong stop reason first.

    The message must end with `stop_reason`. With `tool` it must hold exactly one tool_use, of that
    tool with empty input and an id; without, none. Text blocks must hold text; thinking and unknown
    blocks are left alone, but none whose type ends in tool_use. Pure.
    """
    observed = message.get("stop_reason", MISSING)
    findings = list_differences(observed, stop_reason, "stop_reason")
    if findings and str(observed) in _STOP_REASONS:
        findings[0].message += f" ({_STOP_REASONS[observed]})"
    return findings + cut(_find_block_faults(message["content"], tool))


def _find_block_faults(content: list[Any], tool: str | None) -> Iterator[Finding]:
    expected = Words(f"exactly one call of {tool}" if tool else "no tool call")
    for index, block in enumerate(content):
        kind, right = block["type"], block
        if kind == "tool_use" and tool:
            call_id = block.get("id")
            is_id = isinstance(call_id, str) and re.fullmatch("[!-~]{1,256}", call_id)
            right = {**block, "name": tool, "input": {}, "id": call_id if is_id else Words("a tool call id")}
            tool = None  # it was called, and any further call is one too many
        elif kind.endswith("tool_use"):
            right = expected
        elif kind == "text" and not isinstance(block.get("text"), str):
            right = {**block, "text": Words("a string")}
        yield from explain_differences(block, right, "content", index)
    if tool:
        yield Finding("content", f"observed no tool call, expected {expected}")


# --- Result: what is right, taken out of a reply, and judged -----------------


def compute_shortage(row: Json) -> int:
    """Return how many pieces a stock row lacks: max(target - available, 0), never negative. Pure."""
    shortage: int = row["target"] - row["available"]
    return shortage if shortage > 0 else 0


def build_result(rows: Rows) -> Json:
    """Return the one right result for stock rows: `{"rows": [{"sku", "shortage"}, ...]}`. Pure."""
    return {"rows": [{"sku": row["sku"], "shortage": compute_shortage(row)} for row in rows]}


def join_text(message: Json) -> str:
    """Return the text blocks of a message that passed find_reply_faults, joined. Pure."""
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def parse_answer(message: Json) -> Any:
    """Return the value of a finished message's answer: its text, read as strict JSON.

    The message must have passed find_message_faults and find_reply_faults. Raises JsonError for
    anything that is not one JSON value: prose, Markdown, an empty answer. Pure.
    """
    return parse_json(join_text(message))


def find_answer(reply: Any) -> tuple[Findings, Any]:
    """Return what keeps a parsed reply from being a finished answer, and the answer's value if nothing does.

    The faults of find_message_faults, else those of find_reply_faults for end_turn, else the JsonError of
    parse_answer, at the path "the answer, ...". A good answer may be null: only where nothing was found is
    there one. Pure.
    """
    findings = find_message_faults(reply) or find_reply_faults(reply, "end_turn")
    try:
        return findings, None if findings else parse_answer(reply)
    except JsonError as error:
        return [Finding(f"the answer, {error.path}", error.message)], None


def render_acceptance(rows: Rows) -> str:
    """Return the verdict on an accepted result for stock rows. Pure."""
    return f"accepted: {render_count(rows, 'row')}, total shortage {sum(map(compute_shortage, rows))}"


def validate_result(result: Any, rows: Rows) -> Findings:
    """Return everything that is wrong with a parsed result for the source `rows`, in document order.

    Every quantity is recomputed from the source. Empty means accepted: `{"rows": [...]}` with each
    SKU exactly once, in any order, and its shortage as an integer; nothing missing, nothing more.
    `rows` must have unique SKUs. Pure.
    """
    return cut(_find_result_faults(result, rows))


def _find_result_faults(result: Any, rows: Rows) -> Iterator[Finding]:
    """Yield what is wrong with a result; its rows may come in any order."""
    # 1. One object with the key rows, an array, and no other key.
    if not find_message_faults(result):
        yield Finding("$", "observed a whole message, expected its answer, which extract takes out")
    if not isinstance(result, dict):
        yield from explain_differences(result, Words("an object with the key rows"))
        return
    for key, value in {**result, "rows": result.get("rows", MISSING)}.items():
        if key != "rows":
            yield from explain_differences(value, MISSING, key)
        elif not isinstance(value, list):
            yield from explain_differences(value, Words("an array of rows"), key)
        elif not _are_right(value, rows):
            # 2. Each row is right, or differs from the right one that is nearest.
            missing = {row["sku"]: compute_shortage(row) for row in rows}
            for index, (row, right) in enumerate(zip(value, list_nearest_rows(value, missing))):
                yield from explain_differences(row, right, key, index)
            # 3. Every SKU of the source was there.
            for sku, shortage in missing.items():
                expected = describe({"sku": sku, "shortage": shortage})
                yield Finding(key, f"observed no row for {describe(sku)}, expected {expected}")


def _are_right(observed: list[Any], rows: Rows) -> bool:
    """Return whether a result's rows are right, in the source's order: one quick look does for most."""
    return len(observed) == len(rows) and all(
        row == {"sku": source["sku"], "shortage": compute_shortage(source)} and type(row["shortage"]) is int
        for row, source in zip(observed, rows)
    )


REPEATED = Words("it only once")
_NO_ROW = Words("an object with sku and shortage")
_NO_SKU = Words("a SKU of the source")
_NO_SHORTAGE = Words("an integer")


def list_nearest_rows(rows: list[Any], missing: dict[str, int]) -> Iterator[Any]:
    """Yield for each row of a result the nearest right row, with Words where no single value is right.

    `missing` holds the right shortages by SKU, and is changed: each SKU that comes is taken out of it.
    """
    expected = dict(missing)
    for row in rows:
        if not isinstance(row, dict):
            yield _NO_ROW
            continue
        sku, shortage = row.get("sku"), row.get("shortage")
        if isinstance(sku, str) and sku in expected:
            is_first = missing.pop(sku, None) is not None
            yield {"sku": sku if is_first else REPEATED, "shortage": expected[sku]}
        else:
            yield {"sku": _NO_SKU, "shortage": shortage if type(shortage) is int else _NO_SHORTAGE}


# --- Session replay: was the conversation restored exactly? -------------------

# The API's own documentation leaves these out of what it compares.
_OUTSIDE_PREFIX = (
    "(model|max_tokens|output_config|effort|tool_choice|thinking|metadata|stream|service_tier|cache_control"
    r"|((system|tools)\[\d+\]|messages\[\d+\](\.content\[\d+\])+)\.cache_control)(\W|$)"
)


def compare_sessions(restored: Json, original: Json) -> tuple[Changes, Findings]:
    """Return (changes, notes) between a restored session record and the original.

    A record is the parsed body of the next Messages request: `system`, `tools`, `messages` (in the
    original a list) and any other field. `changes` maps a label to its findings, in the order of the
    record: prefix, assistant turn, tool results, later messages, other fields; empty means intact.
    `notes` are differences that the API leaves out of its comparison. Whether a signature is genuine,
    or which model can read a block, is not checked. Pure.
    """
    messages, expected = restored.get("messages", MISSING), original["messages"]
    shape: Any = messages
    if not isinstance(messages, list):
        messages, shape = [], Words("a list of messages")
    # 1. The turn in hand, in both: where it begins, its messages, and what stands behind them.
    at, first, start = _match_turns(messages, expected)
    turn, behind = messages[at:first], messages[first:]
    expected_turn, expected_behind = expected[start : start + 1], expected[start + 1 :]
    # 2. How its calls and the results behind it pair, and those of later turns that came along.
    unmatched = find_unmatched_results(turn, behind, first)
    later = [place for place, message in enumerate(behind, first) if _has_calls(message)]
    for place, end in zip(later, [*later[1:], len(messages)]):
        unmatched += find_unmatched_results(messages[place : place + 1], messages[place + 1 : end], place + 1)
    size = 1 if any(map(_has_calls, expected_turn)) else 0  # one message of results
    results, expected_results = behind[:size], expected_behind[:size]
    if unmatched:  # those that pair are compared all the same
        results, expected_results = _keep_paired(results, expected_results)
    # 3. Every part of the record, against the same part of the original.

    def field(label: str, name: str) -> tuple[str, str, Any, Any]:
        return f"{label}: {show(name)}", name, restored.get(name, MISSING), original.get(name, MISSING)

    def part(label: str, begin: int, one: Messages, other: Messages) -> tuple[str, str, Any, Any]:
        return label, "messages", dict(enumerate(one, begin)), dict(enumerate(other, begin))

    own = [name for name in {**restored, **original} if name not in ("system", "tools", "messages")]
    changes: Changes = {}
    notes: Findings = []
    for label, name, one, other in (
        field("changed prefix", "system"),
        field("changed prefix", "tools"),
        ("changed prefix: messages", "messages", restored.get("messages", MISSING), shape),
        part("changed prefix: messages", 0, messages[:at], expected[:start]),
        part("changed assistant turn", at, turn, expected_turn),
        part("changed tool result", first, results, expected_results),
        part("changed later messages", first + size, behind[size:], expected_behind[size:]),
        *(field("changed field", name) for name in own),
    ):
        if label == "changed tool result" and unmatched:
            changes["unmatched tool result"] = cut(unmatched)
        findings = cut(_sift(explain_differences(one, other, name), notes))
        if findings:
            changes.setdefault(label, []).extend(findings)
    return changes, notes


def _sift(findings: Iterable[Finding], notes: Findings) -> Iterator[Finding]:
    """Yield the findings on what the API compares; the others are added to the notes."""
    for finding in findings:
        if not re.match(_OUTSIDE_PREFIX, finding.path):
            yield finding
        elif len(notes) < MOST_FINDINGS:
            notes.append(finding)


def _keep_paired(observed: Messages, expected: Messages) -> tuple[Messages, Messages]:
    """Return two messages without the tool results that do not stand once in both of them.

    The arguments hold one message each, or none. Contents become {place: block}: results are held
    against each other by their calls, other blocks by their order; the numbers are those of the first.
    """
    messages = [*observed, *expected]
    if len(messages) < 2 or not all(map(_list_blocks, messages)):
        return (observed, expected) if len(messages) == 2 else ([], [])
    counts = [Counter(map(_render_call_id, _list_blocks(message))) for message in messages]
    places: dict[str | int, int] = {}  # of a paired result by its call, of any other block by its number
    taken: set[int] = set()
    behind = count(max(len(_list_blocks(message)) for message in messages))
    sides: Messages = []
    for message in messages:
        content, others = {}, count()
        for place, block in enumerate(_list_blocks(message)):
            is_result, call = block.get("type") == "tool_result", _render_call_id(block)
            if not is_result or all(calls[call] == 1 for calls in counts):
                name = call if is_result else next(others)
                if name not in places:  # a block that the first message lacks may find its number taken
                    places[name] = next(behind) if place in taken else place
                    taken.add(places[name])
                content[places[name]] = message["content"][place]
        sides.append({**message, "content": content})
    return sides[:1], sides[1:]


def _render_call_id(block: Json) -> str:
    return render_json(block.get("tool_use_id"))  # which may be unhashable


def _match_turns(messages: Messages, expected: Messages) -> tuple[int, int, int]:
    """Return where the turn in hand begins and where it ends, and which message it is in the original.

    It is the last assistant message with a tool_use, else the last assistant message. Where that was
    changed or is gone, it stands where the prefix ends, if the prefix is whole; it may have come back
    as several messages, up to the last with a tool_use.
    """
    at, start = _find_turn(messages), _find_turn(expected)
    is_changed = _differ(messages[at : at + 1], expected[start : start + 1])
    if is_changed and not _differ(messages[:start], expected[:start]):
        at = start
    turn = list(takewhile(_is_assistant, messages[at:]))
    ends = [end for end, message in enumerate(turn, at + 1) if _has_calls(message)]
    other = [block.get("type") for message in messages[at : at + 1] for block in _list_blocks(message)]
    if not turn and "tool_result" not in other and len(messages) - at in (0, len(expected) - start):
        turn = expected[start : start + 1]  # it is gone, or has another role
    return at, (ends or [at + len(turn[:1])])[-1], start


def _differ(messages: Messages, expected: Messages) -> bool:
    return any(_sift(explain_differences(messages, expected, "messages"), []))


def find_unmatched_results(turn: Messages, behind: Messages, first: int) -> Findings:
    """Return what does not pair between a turn's tool calls and the results behind it.

    Each tool_use needs exactly one tool_result with its id, at the beginning of the very next
    message, and no result may stand for anything else. `turn` are the assistant messages, `behind`
    those that follow, `first` is the index of the first of these in the session. Pure.
    """
    waiting: dict[str, list[str]] = {}  # each call's id -> the places of its calls without a result
    findings = []
    for number, message in enumerate(turn, first - len(turn)):
        for place, block in enumerate(_list_blocks(message)):
            if block.get("type") == "tool_use" and _is_assistant(message):
                path = render_path(["messages", number, "content", place, "id"])
                waiting.setdefault(render_json(block.get("id")), []).append(path)
    for number, message in enumerate(behind, first):
        if _has_calls(message):
            break  # what follows belongs to this later turn
        in_front = number == first
        for place, block in enumerate(_list_blocks(message)):
            if block.get("type") != "tool_result":
                in_front = False
                continue
            call = _render_call_id(block)
            expected = "one" if call in waiting else "one for a call of the turn"
            if waiting.get(call) and isinstance(block.get("tool_use_id"), str):
                waiting[call].pop()
                expected = "" if in_front else "it at the beginning of the next message"
            if expected:
                path = render_path(["messages", number, "content", place, "tool_use_id"])
                findings.append(Finding(path, f"observed a result for {shorten(call)}, expected {expected}"))
    unanswered = [
        Finding(path, f"observed no result for {shorten(call)}, expected one")
        for call, paths in waiting.items()
        for path in paths
    ]
    return unanswered + findings


def _find_turn(messages: Messages) -> int:
    """Return the index of the last assistant message with a tool_use, else of the last assistant message."""
    turns = [index for index, message in enumerate(messages) if _is_assistant(message)]
    with_calls = [index for index in turns if _has_calls(messages[index])]
    return (with_calls or turns or [len(messages)])[-1]


def _is_assistant(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def _has_calls(message: Any) -> bool:
    return _is_assistant(message) and any(block.get("type") == "tool_use" for block in _list_blocks(message))


def _list_blocks(message: Any) -> list[Json]:
    content = message.get("content") if isinstance(message, dict) else None
    return (
        [block if isinstance(block, dict) else {} for block in content] if isinstance(content, list) else []
    )


# A session for trying one's own storage: an invoice is read, and no text is visible in the turn.
_BLOCKS = (
    '{"type":"thinking","thinking":"","signature":"c2lnbmF0dXJlIG9mIG5vYm9keQ=="}',
    '{"type":"tool_use","id":"toolu_demo_17","name":"read_invoice","input":{"invoice":"DEMO-17"}}',
)
SESSION_TEXT = (
    '{"system":"You check invoices. Read them with the tool; change nothing.",'
    '"tools":[{"name":"read_invoice","description":"Return the amount and the currency of an invoice.",'
    '"input_schema":{"type":"object","properties":{"invoice":{"type":"string"}},"required":["invoice"]}}],'
    '"messages":[{"role":"user","content":"What is the amount of invoice DEMO-17?"},'
    f'{{"role":"assistant","content":[{",".join(_BLOCKS)}]}},'
    '{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_demo_17",'
    r'"content":"{\"invoice\":\"DEMO-17\",\"amount\":\"47.50\",\"currency\":\"EUR\"}"}]}]}'
)

# What is changed in the session's text: (a piece of it, what replaces it, the label that must come out).
_SESSION_CHANGES = {
    "nothing (no visible text, all the same)": ("", "", "intact"),
    "the system instruction": ("change nothing", "change what is wrong", "changed prefix: system"),
    "a tool's description": ("Return the amount", "Return amount", "changed prefix: tools"),
    "an earlier message": ("What is", "What was", "changed prefix: messages"),
    "the order of the assistant's content blocks": (
        ",".join(_BLOCKS),
        ",".join(reversed(_BLOCKS)),
        "changed assistant turn",
    ),
    "the result's call id": ('_use_id":"toolu_demo_17"', '_use_id":"toolu_demo_18"', "unmatched tool result"),
}


def run_session_cases() -> Iterator[tuple[str, str, bool]]:
    """Yield (change, labels, as expected) for the built-in cases; five of six are broken on purpose. Pure."""
    original = parse_json(SESSION_TEXT)
    for change, (old, new, expected) in _SESSION_CHANGES.items():
        changes, _ = compare_sessions(parse_json(SESSION_TEXT.replace(old, new, 1)), original)
        labels = ", ".join(changes) or "intact"
        yield change, labels, labels == expected


# --- Self-test ---------------------------------------------------------------

# What the text holds: (the text, where it is refused; "" where it is accepted).
_JSON_TEXTS = {
    "accepts a byte-order mark": (b"\xef\xbb\xbf[1]", ""),
    "accepts an escaped lone surrogate": (rb'"\ud83d"', ""),
    "refuses a repeated key": (b'{"a":[{"b":1,"\\u0062":2}]}', "a[0]"),
    "refuses NaN": (b"[1,NaN]", "[1]"),
    "refuses a number that overflows": (b'{"a":1e400}', "a"),
    "refuses an integer of 4,301 digits": (b"[%s]" % (b"9" * 4_301), "[0]"),
    "refuses text behind the value": (b"{} {}", "line 1 column 4"),
    "refuses a comment": (b"{} // no", "line 1 column 4"),
    "refuses UTF-16": ("{}".encode("utf-16"), "line 1 column 1"),
    "refuses a truncated text": (b'{"rows":[', "line 1 column 10"),
    "refuses 201 levels": (b"[" * 201 + b"]" * 201, "line 1 column 201"),
}

# What is changed in a good text: its group, the check, a piece, what replaces it, where that is refused.
_CHANGES = r"""
checkpoint | the right one | | |
checkpoint | a changed source digest | "source_sha256":" | "source_sha256":"0 | source_sha256
checkpoint | a changed result digest | "result_sha256":" | "result_sha256":"0 | completed[0].result_sha256
checkpoint | a changed result | "available":7 | "available":9 | completed[0].result[0].available
checkpoint | a read that is not verified | "verified" | "claimed" | completed[0].status
checkpoint | a side effect | "side_effects":[] | "side_effects":["order-1"] | side_effects[0]
checkpoint | schema version 2 | "schema_version":1 | "schema_version":2 | schema_version
checkpoint | schema version true | "schema_version":1 | "schema_version":true | schema_version
checkpoint | an unexpected field | "pending" | "notes":"trust me","pending" | notes
checkpoint | a missing field | "side_effects":[], | | side_effects
result | the right one | | |
result | a wrong quantity | :3 | :2 | rows[0].shortage
result | the string "0" | :0 | :"0" | rows[1].shortage
result | false for 0 | :0 | :false | rows[1].shortage
result | 3.0 for 3 | :3 | :3.0 | rows[0].shortage
result | null for 0 | :0 | :null | rows[1].shortage
result | a missing SKU | ,{"shortage":4,"sku":"DEMO-003"} | | rows
result | an unknown SKU | 001 | 004 | rows[0].sku
result | a repeated SKU | 0,"sku":"DEMO-002" | 3,"sku":"DEMO-001" | rows[1].sku
result | a missing field | "shortage":4, | | rows[2].shortage
result | an unexpected field | :4 | :4,"order":true | rows[2].order
result | a key beside rows | ]} | ],"summary":"done"} | summary
result | rows as an object | [ | {"DEMO-001":3},"was":[ | rows
result | Markdown around it | {"rows" | ```json {"rows" | line 1 column 1
result | prose in front of it | {"rows" | Done: {"rows" | line 1 column 1
result | prose behind it | ]} | ]} Done. | line 1 column 108
reply | the right one | | |
reply | a cut answer | end_turn | max_tokens | stop_reason
reply | a refusal | end_turn | refusal | stop_reason
reply | a tool call | {"type":"thinking"} | {"type":"tool_use"} | content[0]
reply | a reply of the user's | assistant | user | role
reply | an empty answer | "type":"text" | "type":"other" | the answer, line 1 column 1
"""


def run_self_test() -> Iterator[tuple[str, str, bool]]:
    """Yield (group, check, passed) for each check of this program on known inputs. Pure."""
    for check, (data, place) in _JSON_TEXTS.items():
        yield "strict JSON", check, _find_place_of_refusal(lambda _: [], data) == place

    group = "canonical JSON and digests"
    sample = {"b": [1, None], "a": "\u00e4"}
    yield group, "sorts keys, adds no white space", canonical_json(sample) == b'{"a":"\xc3\xa4","b":[1,null]}'
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    yield group, "gives FIPS 180-4's digest of abc", digest_bytes(b"abc") == known
    yield group, "tells 1, 1.0 and true apart", len(list_differences([1, 1, 1.0], [1.0, True, True])) == 3

    checkpoint, result = build_checkpoint(STOCK), build_result(STOCK)
    handoff = render_handoff(checkpoint)
    carried = parse_json(handoff[len(HANDOFF_PROMPT) :].encode())
    yield "handoff", "carries the whole checkpoint", not list_differences(carried, checkpoint)
    messages = build_receiver_request(handoff)["messages"]
    yield "handoff", "is the request's only message", messages == [{"role": "user", "content": handoff}]

    for change, _, passed in run_session_cases():
        yield "session replay", f"tells of {change}", passed

    content = [{"type": "thinking"}, {"type": "text", "text": render_json(result)}]
    reply = {"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}
    good = {"checkpoint": checkpoint, "result": result, "reply": reply}
    texts = {group: canonical_json(value).decode() for group, value in good.items()}
    judges = {
        "checkpoint": lambda value: verify_checkpoint(value, STOCK),
        "result": lambda value: validate_result(value, STOCK),
        "reply": _judge_reply,
    }
    for line in _CHANGES.strip().split("\n"):
        group, check, old, new, place = (cell.strip() for cell in line.split(" |"))
        changed = texts[group].replace(old, new, 1)
        is_changed = (changed != texts[group]) == (old != "")
        passed = is_changed and _find_place_of_refusal(judges[group], changed.encode()) == place
        yield group, f"{'refuses' if place else 'accepts'} {check}", passed


def _find_place_of_refusal(judge: Callable[[Any], Findings], data: bytes) -> str:
    try:
        findings = judge(parse_json(data))
    except JsonError as error:
        return error.path
    return findings[0].path if findings else ""


def _judge_reply(reply: Any) -> Findings:
    findings, answer = find_answer(reply)
    return findings or validate_result(answer, STOCK)


# --- Files -------------------------------------------------------------------


# Where a file system has no hard links, creating a file exclusively does not overwrite either.
_NO_HARD_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EMLINK)


def read_input(path: str) -> bytes:
    """Return a file's bytes, or standard input's for `-`; at most one byte over 64 MiB is read.

    Raises UnreadableError.
    """
    if path == "-" and sys.stdin is None:
        raise UnreadableError("standard input", "it is closed")
    try:
        if path == "-":
            return _read_all(sys.stdin.buffer)
        with open(path, "rb") as file:
            return _read_all(file)
    except (OSError, ValueError) as error:
        raise UnreadableError(path, explain(error)) from error


def _read_all(file: Any) -> bytes:
    data = b""
    while more := file.read(INPUT_LIMIT_BYTES + 1 - len(data)):
        data += more
    if more is None:  # from a stream that does not wait
        raise OSError("not all of it is there yet")
    return data


def read_stock(path: str) -> Rows:
    """Return the rows of a stock file. Raises UnreadableError."""
    try:
        return parse_stock(read_input(path))
    except JsonError as error:
        columns = ",".join(STOCK_COLUMNS)
        next_step = f"save it in UTF-8, with commas, the columns {columns}, each SKU once, whole quantities"
        raise UnreadableError(path, str(error), next_step) from error


def write_new_files(files: dict[str, bytes]) -> None:
    """Write new files durably, all of them or none; what exists is never overwritten.

    Each is written beside its place, flushed, and given its final name by a hard link, which fails
    where something stands already, in a race and through a symbolic link too. Where a file system has no
    hard links, the file is created exclusively in its place instead. Raises ExistsError or
    UnwritableError after taking back what it had written.
    """
    for path in files:
        if os.path.lexists(path):
            raise ExistsError(path)
    path, mine = "", []
    try:
        for path, data in files.items():
            temporary = os.path.join(_find_folder(path), f".{os.urandom(8).hex()}.part")
            write_flushed(temporary, data)
            mine.append(temporary)
            try:
                os.link(temporary, path)
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                write_flushed(path, data)
            mine.append(path)
            os.unlink(temporary)
        for path in set(map(_find_folder, files)):
            flush_folder(path)
    except BaseException as error:
        discard(*mine)
        if isinstance(error, FileExistsError):
            raise ExistsError(path) from error
        if isinstance(error, (OSError, ValueError)):
            raise UnwritableError(path, error) from error
        raise


def _find_folder(path: str) -> str:
    return os.path.dirname(path) or "."


def discard(*paths: str) -> None:
    """Remove files and empty folders of one's own that are needed no more, as far as that is possible."""
    for path in paths:
        try:
            (os.rmdir if os.path.isdir(path) else os.unlink)(path)
        except (OSError, ValueError):
            continue


def make_folder(path: str, mode: int = 0o777) -> None:
    """Make a folder, but not its parents, and put its name on the disk; a failure removes it again.

    Raises OSError, or ValueError for a path that holds NUL.
    """
    os.mkdir(path, mode)
    try:
        flush_folder(_find_folder(path.rstrip(os.sep)))
    except BaseException:
        discard(path)
        raise


def write_flushed(path: str, data: bytes, mode: int = 0o666) -> None:
    """Create a file that did not exist, write it and flush it to disk; a failure removes it again.

    Raises OSError, or ValueError for a path that holds NUL. The folder that holds it is not flushed: see
    flush_folder.
    """
    binary = getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | binary, mode)
    try:
        try:
            write_all(lambda rest: os.write(descriptor, rest), data)
            flush(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        discard(path)
        raise


def write_all(write: Callable[[memoryview], int | None], data: bytes) -> None:
    """Write all bytes by a function that may take some of them at a time. Raises OSError if it takes none."""
    rest = memoryview(data)
    while rest:
        taken = write(rest)
        if not taken:
            raise OSError("nothing more is taken")
        rest = rest[taken:]


def flush(descriptor: int) -> None:
    """Flush to disk what was written through a descriptor. Raises OSError."""
    if sys.platform == "darwin":  # there fsync stops at the drive's cache
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def flush_folder(path: str) -> None:
    """Flush a folder's names to disk, where the system can. Raises OSError."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the one by which a file system says that it flushes no folders
            raise
    finally:
        os.close(descriptor)


# --- Terminal ----------------------------------------------------------------

_COLOURS = {"red": 31, "green": 32, "yellow": 33}


class Terminal:
    """Where a command's results and its talk go, and what Ctrl-C does to it.

    Results go to standard output, talk to standard error, both through `redact` and without a
    control character. A stream that is closed, full or a broken pipe is survived; it makes `lost`
    true, and a command fails by that if it `must_be_heard`. Ctrl-C raises KeyboardInterrupt, as in
    any program, but from `hold` on to `release` it only makes `interrupted` true.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.redact: Callable[[str], str] = str
        self.lost = False
        self.must_be_heard = True
        self.interrupted = False

    def write_out(self, text: str, colour: str = "") -> None:
        """Write lines to standard output; a colour (red, green, yellow) shows on a terminal only."""
        self._write(sys.stdout, text, colour)

    def write_err(self, text: str, colour: str = "") -> None:
        """Write lines to standard error."""
        self._write(sys.stderr, text, colour)

    def _write(self, stream: Any, text: str, colour: str = "", end: str = "\n") -> None:
        if stream is None:
            self.lost = True
            return
        text = "\n".join(show(line) for line in self.redact(text).split("\n"))
        encoding = getattr(stream, "encoding", None) or "utf-8"
        if colour and wants_colour(stream):
            text = f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"
        try:
            data = f"{text}{end}".encode(encoding, "backslashreplace")
            if isinstance(stream, io.TextIOWrapper) and isinstance(stream.buffer, io.RawIOBase):  # python -u
                stream.flush()
                write_all(stream.buffer.write, data)  # the text layer drops what that does not take at once
            else:
                stream.write(data.decode(encoding))
                stream.flush()
        except (OSError, ValueError):  # full or broken; closed by somebody
            self.lost = True

    def progress(self, text: str) -> None:
        """Show a line that the next one replaces, on a terminal only."""
        if is_terminal(sys.stderr):
            self._write(sys.stderr, text, end="\r")

    def hold(self) -> None:
        """Only note Ctrl-C from now on, where that is Python's own to handle, and in the main thread."""
        import signal  # builds its enumerations, which most commands do without

        try:
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._note_interrupt)
        except ValueError:  # in another thread
            return

    def release(self) -> None:
        """Let Ctrl-C do again what it did before `hold`."""
        import signal

        if signal.getsignal(signal.SIGINT) == self._note_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note_interrupt(self, *_: Any) -> None:
        self.interrupted = True


def wants_colour(stream: Any) -> bool:
    """Return whether a stream is a terminal that shows colour, and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or os.name == "nt"
    return not plain and is_terminal(stream)


def is_terminal(stream: Any) -> bool:
    """Return whether a stream, which may be closed or a program's own object, is a terminal."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def open_missing_descriptors() -> None:
    """Give closed standard streams a place, or the next file that is opened takes their number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def run_command(name: str, command: Callable[[Terminal], int], ends_process: bool = False) -> int:
    """Return the exit code of a command, whatever way it ends; only a bug shows a traceback.

    With `ends_process` nothing follows but the end of the process, and what is held stays so.
    """
    terminal = Terminal(name)
    try:
        try:
            if sys.hexversion < 0x3090000:
                why = "it is written for Python 3.9 or newer"
                raise HandoffError(f"Python {sys.version.split()[0]} is too old", why, "start a newer one")
            code = command(terminal)
        except HandoffError as error:
            terminal.write_err(f"{name}: {error}")
            code = error.exit_code
        except MemoryError:
            why = "what was read is too large for this machine"
            terminal.write_err(f"{name}: {HandoffError('out of memory', why, 'give it less')}")
            code = EXIT_UNUSABLE
        except Exception:
            import traceback

            what = "a bug in this program, please report it"
            terminal.write_err(f"{name}: {what}\n{traceback.format_exc().rstrip()}")
            code = EXIT_BUG
        unheard = terminal.lost and terminal.must_be_heard and code in (EXIT_DONE, EXIT_REJECTED)
        return EXIT_UNUSABLE if unheard else code
    except KeyboardInterrupt:
        while True:
            try:
                terminal.hold()  # what is still to be said is said
                break
            except KeyboardInterrupt:  # pressed again
                continue
        interrupted = "interrupted\n  why: Ctrl-C was pressed\n  next: start it again when you like"
        terminal.write_err(f"{name}: {interrupted}")
        return EXIT_INTERRUPTED
    finally:
        if not ends_process:
            terminal.release()


# --- Command line ------------------------------------------------------------

# The options are read from these lines: see read_options.
HELP = f"""\
usage: checkpoint_demo.py COMMAND [ARGUMENT]...

Keep a verified checkpoint of an agent's work, hand it over, judge the answer.

  self-test
      Check this program on known inputs; nothing is written.
  prepare [--out DIR] [--stock FILE]
      Write checkpoint.json and handoff.txt, here or into the folder DIR, which
      is made if it is missing; what exists is never overwritten.
  verify [CHECKPOINT] [--stock FILE] [--json]
      Check a checkpoint (default: checkpoint.json) against the trusted source.
  request [HANDOFF] [--receiver MODEL] [--max-tokens N]
      Print the request that hands a prompt over (default: handoff.txt,
      {RECEIVER_MODEL}, {MAX_TOKENS}).
  extract RESPONSE [-o FILE]
      Take the finished answer out of a saved Messages response, and write it
      into a new file (default: to standard output).
  validate RESULT [--stock FILE] [--json]
      Judge a result against the trusted source.
  replay [--emit-fixture | [--check-restored FILE [--original FILE]] [--json]]
      Compare a restored session record with the original (default: the one that
      --emit-fixture prints); alone: try six built-in cases.

The trusted source is --stock FILE, CSV or JSON (default: the built-in stock).
--json prints one machine-readable object instead. An input - is standard input.
"""
# What a value must be, by the word that stands for it in a usage: (pattern, in words).
VALUES = {
    "MODEL": ("[!-~]{1,200}", "a model id, up to 200 characters of printable ASCII"),
    "N": ("[1-9][0-9]{0,8}", "a whole number from 1 to 999999999"),
    "": ("", "no value"),  # a switch
}


def read_options(
    program: str,
    help_text: str,
    command: str,
    arguments: list[str],
    values: dict[str, tuple[str, str]] = VALUES,
) -> Json:
    """Return {name: value} for what a command takes; it is None for what was not given. Raises UsageError.

    `help_text` is the program's help; in it a command's usage begins a line, behind two spaces. A usage is
    such as `validate RESULT [--stock FILE] [--json]`: a place, which must be filled because it stands in
    no bracket, an option with a value behind it or joined by `=`, and a switch, which becomes True.
    (argparse would do it too, but to import and to fill it takes a sixth of a start.)
    """
    usage = command + help_text.partition(f"\n  {command}")[2].partition("\n      ")[0]
    words = _parse_words(usage)
    options: Json = dict.fromkeys(words)
    places = [name for name in words if not name.startswith("-")]
    waiting, is_literal = arguments[::-1], False
    while waiting:
        argument = waiting.pop()
        name, joined, value = argument.partition("=")
        if argument == "--" and not is_literal:
            is_literal = True
            continue
        if is_literal or _is_value(argument):
            name, value = places.pop(0) if places else "", argument
        elif words.get(name) and not joined and waiting and _is_value(waiting[-1]):
            value = waiting.pop()
        if name not in words:
            raise UsageError(_explain_stray(name, command, help_text), program)
        pattern, expected = values.get(words[name], ("", "a value"))
        fits = value if words[name] else not joined
        if not fits or (pattern and not re.fullmatch(pattern, value)):
            raise UsageError(f"{name}: expected {expected}", program)
        options[name] = value or True
    for name in places:
        if f"[{name}" not in usage:
            raise UsageError(f"{name} is missing", program)
    return options


def _explain_stray(word: str, command: str, help_text: str) -> str:
    """Return what is wrong with a word that has no place here; it may be a secret, and little is shown."""
    known = [name for name in _parse_words(help_text) if name.startswith("-")]
    if not word or word in known:
        return f"{word or 'one word more'} does not go with {command}"
    import difflib

    near = difflib.get_close_matches(word, known, 1, 0.7)
    return f"there is no {shorten(word, 16)}{'; the nearest is ' if near else ''}{''.join(near)}"


def _parse_words(usage: str) -> dict[str, str]:
    """Return {name: the word that stands for its value}; a switch has "", a place stands for itself."""
    words: dict[str, str] = {}
    option = ""
    for part in usage.replace("[", " ").replace("]", " ").split():
        if part.isupper():
            words[option or part] = part
        option = part if part.startswith("-") else ""
        if option:
            words[option] = ""
    return words


def asks_for_help(arguments: list[str]) -> bool:
    """Return whether --help or -h is among arguments, in front of a double dash. Pure."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "-h" in options or "--help" in options


def _is_value(argument: str) -> bool:
    return argument == "-" or not argument.startswith("-")


def list_findings(findings: Findings) -> list[Json]:
    """Return findings as --json shows them: {"path", "message"} each. Pure."""
    return list(map(vars, findings))


def _cmd_self_test(terminal: Terminal, options: Json) -> int:
    shown, outcomes = "", []
    for group, check, passed in run_self_test():
        if group != shown:
            shown = group
            terminal.write_out(group)
        terminal.write_out(f"  {'ok    ' if passed else 'FAILED'}  {check}", "" if passed else "red")
        outcomes.append(passed)
    failed = outcomes.count(False)
    verdict = f"{len(outcomes)} checks: {len(outcomes) - failed} passed, {failed} failed"
    terminal.write_out(verdict, "red" if failed else "green")
    return EXIT_REJECTED if failed else EXIT_DONE


def _cmd_prepare(terminal: Terminal, options: Json) -> int:
    checkpoint, folder = build_checkpoint(options["--stock"]), options["--out"] or ""
    files = {
        os.path.join(folder, "checkpoint.json"): f"{render_json(checkpoint, 2)}\n".encode(),
        os.path.join(folder, "handoff.txt"): render_handoff(checkpoint).encode(),
    }
    terminal.hold()  # all of it is there or is taken back, whatever is pressed
    is_made = bool(folder) and _make_missing_folder(folder)
    try:
        return _write_and_say(terminal, files)
    except BaseException:
        if is_made:
            discard(folder)  # unless somebody else has put something there
        raise


def _make_missing_folder(path: str) -> bool:
    """Make a folder, but not its parents, unless it is there; return whether it was made."""
    try:
        make_folder(path)
    except (OSError, ValueError) as error:
        if os.path.isdir(path):
            return False
        what = f"{show(path)} cannot be made: {explain(error)}"
        why = "only the folder itself is made, never the one that is to hold it"
        raise RefusedError(what, why, "make the folder that is to hold it, or name another") from error
    return True


def _write_and_say(terminal: Terminal, files: dict[str, bytes]) -> int:
    write_new_files(files)
    for path in files:
        terminal.write_out(f"wrote {show(path)}")
    return EXIT_DONE


def _cmd_verify(terminal: Terminal, options: Json) -> int:
    rows, digest = options["--stock"], digest_json(options["--stock"])
    verified = f"verified: {render_count(rows, 'row')}, source {digest[:12]}"
    expected = {"rows": len(rows), "source_sha256": digest}
    return _judge(
        terminal, options, options["CHECKPOINT"] or "checkpoint.json", verify_checkpoint, verified, expected
    )


def _cmd_validate(terminal: Terminal, options: Json) -> int:
    rows = options["--stock"]
    expected = {"rows": len(rows), "total_shortage": sum(map(compute_shortage, rows))}
    return _judge(terminal, options, options["RESULT"], validate_result, render_acceptance(rows), expected)


def _judge(
    terminal: Terminal,
    options: Json,
    path: str,
    judge: Callable[[Any, Rows], Findings],
    passed: str,
    expected: Json,
) -> int:
    """Say what a judge finds in a file, then the verdict, `passed` if nothing; return the exit code."""
    try:
        findings = judge(parse_json(read_input(path)), options["--stock"])
    except JsonError as error:  # a text that is no strict JSON is judged too
        findings = [error]
    verdict = f"rejected: {render_count(findings, 'finding')}" if findings else passed
    if options["--json"]:
        report = {"verdict": verdict.partition(":")[0], "expected": expected}
        terminal.write_out(render_json({**report, "findings": list_findings(findings)}, 2))
    else:
        for finding in findings:
            terminal.write_err(str(finding))
        terminal.write_out(verdict, "red" if findings else "green")
    return EXIT_REJECTED if findings else EXIT_DONE


def _cmd_request(terminal: Terminal, options: Json) -> int:
    path = options["HANDOFF"] or "handoff.txt"
    try:
        handoff = decode_text(read_input(path))
        fault = "" if handoff.strip() else "it holds no text, which the API would refuse"
    except JsonError as error:
        fault = str(error)
    if fault:
        raise UnreadableError(path, fault, "write it with prepare")
    model, max_tokens = options["--receiver"] or RECEIVER_MODEL, int(options["--max-tokens"] or MAX_TOKENS)
    terminal.write_out(render_json(build_receiver_request(handoff, model, max_tokens)))
    return EXIT_DONE


def _cmd_extract(terminal: Terminal, options: Json) -> int:
    try:
        findings, answer = find_answer(parse_json(read_input(options["RESPONSE"]), REPLY_DEPTH_LIMIT))
    except JsonError as error:
        findings, answer = [error], None
    if findings:
        for finding in findings:
            terminal.write_err(str(finding))
        where = f"no finished answer in {show(options['RESPONSE'])}"
        terminal.write_err(f"rejected: {render_count(findings, 'finding')}, {where}", "red")
    elif options["-o"] in (None, "-"):
        terminal.write_out(render_json(answer, 2))
    else:
        terminal.hold()  # the file is there whole or not at all, whatever is pressed
        _write_and_say(terminal, {options["-o"]: f"{render_json(answer, 2)}\n".encode()})
    return EXIT_REJECTED if findings else EXIT_DONE


def _cmd_replay(terminal: Terminal, options: Json) -> int:
    restored, emits = options["--check-restored"], options["--emit-fixture"]
    if (emits and (restored or options["--json"])) or (options["--original"] and not restored):
        what = "--original goes with --check-restored, --emit-fixture goes alone"
        raise UsageError(what, terminal.name)
    fixture = parse_json(SESSION_TEXT)
    if emits:
        terminal.write_out(render_json(fixture, 2))
        return EXIT_DONE
    if restored:
        original = _read_record(options["--original"], list) if options["--original"] else fixture
        changes, notes = compare_sessions(_read_record(restored), original)
        return _say_changes(terminal, options["--json"], changes, notes)
    cases = list(run_session_cases())
    as_expected = sum(passed for _, _, passed in cases)
    verdict = f"{as_expected}/{len(cases)} expected outcomes"
    if options["--json"]:
        listed = [
            {"change": change, "labels": labels, "expected": passed} for change, labels, passed in cases
        ]
        terminal.write_out(render_json({"verdict": verdict, "cases": listed}, 2))
    else:
        for change, labels, passed in cases:
            terminal.write_out(f"{change:44} {labels}{'' if passed else ', which is NOT expected'}")
        terminal.write_out(verdict)
    return EXIT_DONE if as_expected == len(cases) else EXIT_REJECTED


def _read_record(path: str, kind: type = object) -> Json:
    """Return the session record that a file holds, with messages of a kind. Raises UnreadableError."""
    fault = "it is no session record, which has a list of messages"
    try:
        record = parse_json(read_input(path))
        if isinstance(record, dict) and isinstance(record.get("messages"), kind):
            return record
    except JsonError as error:
        fault = str(error)
    raise UnreadableError(path, fault, "name a file that holds the body of a Messages request")


_LOST_THINKING = "its thinking blocks no longer fit, and the API refuses them, or drops them without a word"
# What a label means for the next request, by how it begins.
_MEANINGS = {
    "changed prefix": _LOST_THINKING,
    "changed assistant": _LOST_THINKING,
    "unmatched": "it is refused, because its calls and results do not pair",
    "changed tool result": "the model would go on from other facts",
    "changed later": "the model would go on from another conversation",
    "changed field": "the application would go on from other facts of its own",
}
_READERS = (
    "not every model reads another's thinking, and what it does not read is dropped behind HTTP 200:"
    " Opus 5.5 reads no Fable's, and Fable 5.2's is read by Fable 5.2 and Mythos 5.2 alone"
)


def _say_changes(terminal: Terminal, as_json: bool, changes: Changes, notes: Findings) -> int:
    """Say the labels, every difference, and what to do with the next request; return the exit code."""
    labels = list(changes) or ["intact"]
    advice = "it may be sent as it is; that a model can read its thinking is not shown by this"
    for note in notes:
        if note.path == "model":
            note.message += f"; {_READERS}"
            advice = "it came back exactly, but another model is asked, which may not read its thinking"
    if changes:
        meaning = next(_MEANINGS[begin] for begin in _MEANINGS if labels[0].startswith(begin))
        advice = f"{meaning}: rebuild it from what was stored, or go on in a fresh session from a checkpoint"
    listed = [(label, finding) for label, findings in changes.items() for finding in findings]
    if as_json:
        report = {
            "labels": labels,
            "findings": [{"label": label, **vars(finding)} for label, finding in listed],
            "notes": list_findings(notes),
            "next_request": advice,
        }
        terminal.write_out(render_json(report, 2))
    else:
        terminal.write_out("\n".join(labels), "red" if changes else "green")
        for label, finding in listed:
            terminal.write_err(f"{label}, {finding}")
        for note in notes:
            terminal.write_err(f"note, not compared by the API: {note}")
        terminal.write_err(f"the next request: {advice}")
    return EXIT_REJECTED if changes else EXIT_DONE


COMMANDS = {
    "self-test": _cmd_self_test,
    "prepare": _cmd_prepare,
    "verify": _cmd_verify,
    "request": _cmd_request,
    "extract": _cmd_extract,
    "validate": _cmd_validate,
    "replay": _cmd_replay,
}


def _run(terminal: Terminal, arguments: list[str]) -> int:
    if asks_for_help(arguments):
        terminal.write_out(HELP.rstrip())
        return EXIT_DONE
    name = arguments[0] if arguments else ""
    if name not in COMMANDS:
        expected = f"expected a COMMAND ({', '.join(COMMANDS)})"
        raise UsageError(f"{expected}, observed {shorten(repr(name))}", terminal.name)
    options = read_options(terminal.name, HELP, name, arguments[1:])
    inputs = [value for name, value in options.items() if name not in ("--out", "-o", "--receiver")]
    if inputs.count("-") > 1:
        raise UsageError("- stands there twice, but standard input can be read only once", terminal.name)
    options["--stock"] = read_stock(options["--stock"]) if options.get("--stock") else STOCK
    return COMMANDS[name](terminal, options)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` is what follows the program's name.

    Without `argv` it takes this process's own arguments, and the process is expected to end with the command.
    """
    arguments = sys.argv[1:] if argv is None else argv
    return run_command("checkpoint_demo.py", lambda terminal: _run(terminal, arguments), argv is None)


if __name__ == "__main__":
    open_missing_descriptors()
    # All is flushed, and to take the interpreter apart takes longer than most commands.
    os._exit(main())
