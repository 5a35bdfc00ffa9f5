#!/usr/bin/env python3
"""Keep a verified checkpoint of an agent's work, hand it over, judge the answer.

    $ python3 checkpoint_demo.py prepare
    wrote checkpoint.json
    wrote handoff.txt
    $ python3 checkpoint_demo.py verify
    verified: 3 rows, source b3d576f612f4
    $ python3 checkpoint_demo.py validate wrong.json
    rows: observed nothing, expected an array of rows
    rejected: 1 finding

The application builds the checkpoint from what its tools really returned; no model is asked to confirm
its own work. Everything is judged against the trusted source, never against what a file claims.

Exit codes: 0 done or accepted; 1 judged and rejected; 2 usage, or an input or output that cannot be
read or written; 3 refused, nothing changed; 70 a bug in this program; 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import io
import json
import os
import re
import shlex
import signal
import sys
import types
from itertools import chain, islice, takewhile, zip_longest
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, ClassVar, NoReturn, Union

    Json = dict[str, Any]  # an object as it was parsed: a row, a checkpoint, a message, a session record
    Rows = list[Json]
    Messages = list[Any]
    Path = tuple[Union[str, int], ...]  # from the root of a document to a value in it
    Findings = list["Finding"]
    Changes = dict[str, Findings]  # by the label of what was changed

VERSION = "1.0"

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
    """The command line asks for something that does not exist, or leaves something out."""

    verdict = "usage"

    def __init__(self, what: str, program: str) -> None:
        super().__init__(show(what), "a command line is never guessed", f"see {program} --help")


class UnreadableError(HandoffError):
    """An input cannot be read at all, so it was not judged."""

    verdict = "unreadable"

    def __init__(self, path: str, fault: str, next_step: str = "name a file that you can read") -> None:
        super().__init__(f"{show(path)}: {fault}", "only an input that was read whole is used", next_step)


class UnwritableError(HandoffError):
    """An output cannot be written; a file that was there before is unchanged."""

    verdict = "cannot write"

    def __init__(self, path: str, error: Exception) -> None:
        super().__init__(
            f"{show(path)}: {explain(error)}",
            "a file is written whole or not at all, and nothing was left behind",
            "make room, or name a place that you can write to",
        )


class TaskError(HandoffError):
    """A task file cannot be used: `place` says which member of it is at fault, or which line."""

    verdict = "unusable task"

    def __init__(self, place: str, fault: str) -> None:
        self.place, self.fault = place, fault
        why = "a task is checked before anything is done with it"
        super().__init__(f"{show(place)}: {show(fault)}", why, "mend the task's file; the README shows one")


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
    """One thing that is wrong with a document: `path` says where, `message` what.

    `label` names a group of findings. `values` holds what was observed and expected, where it is one
    text, number or literal.
    """

    def __init__(self, path: str, message: str, label: str = "", **values: Any) -> None:
        self.path, self.message, self.label, self.values = path, message, label, values

    def __str__(self) -> str:
        return f"{self.label}{', ' if self.label else ''}{self.path}: {self.message}"

    __repr__ = __str__


class InputError(Finding, ValueError):
    """A text is not what is read here: not strict JSON, or not a source of the task."""


# --- Text that may be shown (pure) -------------------------------------------

# C0 and C1 controls, DEL, line separators, bidirectional marks, lone surrogates.
_HIDDEN = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
_SHOWN_CHARACTERS = 72


class Words(str):
    """A description in place of an expected value, e.g. Words('a string').

    It equals no parsed value, and is shown without quotes.
    """


MISSING = Words("nothing")  # the value at a path that a document does not have
_KINDS = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}


def show(text: str) -> str:
    """Return one line of text with everything escaped that could act on a terminal."""
    if text.isprintable():  # no character that would be escaped is printable
        return text
    return re.sub(_HIDDEN, lambda match: ascii(match.group())[1:-1], text)


def shorten(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    """Return the text, cut to `most` characters with its full length said."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def explain(error: object) -> str:
    """Return what an exception says, without the number and the name that an OSError adds."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def render_json(value: Any, indent: int | None = None) -> str:
    """Return a parsed value as JSON in printable ASCII, in one line or indented by `indent` spaces."""
    separators = (",", ":") if indent is None else None
    return json.dumps(value, allow_nan=False, indent=indent, separators=separators)


def describe(value: Any) -> str:
    """Return words for a parsed value: its type and its text, shortened and escaped."""
    if type(value) is Words:
        return str(value)
    kind = _KINDS.get(type(value))
    return f"the {kind} {shorten(render_json(value))}" if kind else shorten(render_json(value))


def describe_kind(value: Any) -> Words:
    """Return words for a parsed value's type alone, such as `an integer`."""
    kind = _KINDS.get(type(value), "true, false or null")
    return Words(f"{'an' if kind[0] in 'aio' else 'a'} {kind}" if type(value) in _KINDS else kind)


def describe_pair(observed: Any, expected: Any) -> str:
    """Return `observed ..., expected ...`; long strings are shown from where they differ."""
    begin = ""
    if type(observed) is str and type(expected) is str:
        equal = find_parting(observed, expected)
        if equal >= _SHOWN_CHARACTERS // 2:
            begin = f", from character {equal - 12} on"
            observed, expected = f"...{observed[equal - 12 :]}", f"...{expected[equal - 12 :]}"
    return f"observed {describe(observed)}, expected {describe(expected)}{begin}"


def find_parting(one: str | bytes, other: str | bytes) -> int:
    """Return how many of the first characters of two texts are equal."""
    pairs = enumerate(zip(one, other))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def render_count(things: Sequence[Any], name: str) -> str:
    """Return how many things there are, with their name in singular or plural."""
    return f"{len(things):,} {name}{'' if len(things) == 1 else 's'}"


def render_path(parts: Iterable[str | int]) -> str:
    """Return a JSON path such as `rows[1].shortage`, cut in the middle if long; the whole is `$`."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,71}", part):
            path += f".{part}"
        else:  # a long key is cut: many findings may begin with it
            path += f"[{render_json(shorten(part))}]"
    path = path.lstrip(".") or "$"
    return path if len(path) <= 1_000 else f"{path[:480]}...{path[-480:]}"


# --- Strict JSON: the one reader for everything that comes from outside (pure)

INPUT_LIMIT_BYTES = 64 * 2**20
DEPTH_LIMIT = 200
REPLY_DEPTH_LIMIT = 100  # a reply is nested into the next request, which must stay readable
DIGITS_LIMIT = 4_300  # CPython's own limit since 3.9.14, held on older ones and when it is switched off
BYTE_ORDER_MARK = "\ufeff"
_NESTING = (dict, list)


class NotJsonError(InputError):
    """A text is not JSON at all. Its place and message differ between versions of Python."""


class _Fault(str):
    """A reason for a refusal, in the parsed value at the place of what is refused."""


def decode_text(data: bytes) -> str:
    """Return a text as it is. Raises InputError where it is not UTF-8, or longer than 64 MiB."""
    if len(data) > INPUT_LIMIT_BYTES:
        raise InputError(f"byte {INPUT_LIMIT_BYTES}", f"longer than {INPUT_LIMIT_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode().removeprefix(BYTE_ORDER_MARK)
        raise InputError(_name_position(before, len(before)), "not UTF-8") from error


def parse_json(data: bytes | str, depth_limit: int = DEPTH_LIMIT) -> Any:
    """Return the value of a JSON text (RFC 8259), read strictly.

    Bytes must be UTF-8, a leading byte-order mark allowed; a str counts as the bytes it encodes to.
    Objects become dicts, arrays lists, integers ints (`-0` is 0), other numbers floats (IEEE doubles).
    A lone surrogate that is written as an escape is kept. Raises InputError with the place for everything
    else, and for: a key that an object has twice, NaN and Infinity, a number too large for a double, an
    integer of more than 4,300 digits, text behind the value, nesting deeper than `depth_limit`, more
    than 64 MiB.
    """
    # 1. A bound on the size, and one decision on the encoding.
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    text = decode_text(raw).removeprefix(BYTE_ORDER_MARK)
    # 2. The standard scanner; each object and number is looked at, and what is refused becomes a _Fault.
    faults: dict[str, _Fault] = {}  # one for each reason, however often it is met
    try:
        value = _scan(text, lambda reason: faults.setdefault(reason, _Fault(reason)))
        if is_too_deep(value, depth_limit):
            raise RecursionError  # the same fault as in the scanner, found afterwards
    except (json.JSONDecodeError, RecursionError) as error:
        raise _explain_scan_error(text, depth_limit, error) from error
    # 3. The first fault, by its place.
    if faults:
        raise next(_find_faults(value))
    return value


def _scan(text: str, refuse: Callable[[str], Any]) -> Any:
    """Return the standard scanner's value of a text, with `refuse(reason)` for what is refused."""

    def build_object(pairs: list[tuple[str, Any]]) -> Any:
        value = dict(pairs) if pairs else {}  # dict([]) takes thrice the memory on Python 3.9
        if len(value) == len(pairs):
            return value
        first: dict[str, int] = {}
        repeated = next(key for at, (key, _) in enumerate(pairs) if first.setdefault(key, at) != at)
        return refuse(f"the object has the key {describe(repeated)} twice")

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

    hooks: Json = {"object_pairs_hook": build_object, "parse_float": build_float}
    hooks["parse_constant"] = lambda name: refuse(f"{name} is not a JSON number")
    is_limited = getattr(sys, "get_int_max_str_digits", int)() == DIGITS_LIMIT
    try:
        return json.loads(text, parse_int=int if is_limited else build_int, **hooks)
    except json.JSONDecodeError:
        raise
    except ValueError:  # of int, whose own reading is faster, but names no place
        return json.loads(text, parse_int=build_int, **hooks)


def is_too_deep(value: Any, depth_limit: int) -> bool:
    """Return whether a value has more than `depth_limit` levels of objects and arrays."""
    depth, level = 0, [value] if type(value) in _NESTING else []
    while level and depth < depth_limit:
        depth += 1
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) in _NESTING
        ]
    return bool(level)


def _explain_scan_error(text: str, depth_limit: int, error: Exception) -> InputError:
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
                return InputError(place, f"nested deeper than {depth_limit} levels")
    if not isinstance(error, json.JSONDecodeError):
        return InputError("$", "nested too deep")
    reason = re.sub("( starting)?( at)?:? *$", "", error.msg)
    here = f" at {render_json(text[error.pos : error.pos + 16])}" if text[error.pos :] else " at the end"
    return NotJsonError(_name_position(text, error.pos), f"not JSON: {reason[:1].lower()}{reason[1:]}{here}")


def _name_position(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"line {line} column {position - text.rfind(chr(10), 0, position)}"


def _find_faults(value: Any, *at: str | int) -> Iterator[InputError]:
    """Yield an error for each _Fault in a value, in document order."""
    if isinstance(value, _Fault):
        yield InputError(render_path(at), value)
    elif isinstance(value, (dict, list)):
        for part, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _find_faults(child, *at, part)


# --- Canonical JSON and digests (pure) ---------------------------------------


def canonical_json(value: Any) -> bytes:
    """Return the bytes that are digested: UTF-8, keys sorted, no white space, non-ASCII as itself.

    For objects with ASCII keys, arrays, strings, integers, true, false and null this is RFC 8785.
    Floats and other keys are not checked for. Raises InputError for a string with a lone surrogate,
    which has no UTF-8 form.
    """
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"character {error.start}", "a lone surrogate has no UTF-8 form") from error


def digest_bytes(data: bytes) -> str:
    """Return the lower-case hex SHA-256 (FIPS 180-4) of the bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """Return the digest of a value's canonical JSON. Raises InputError for a lone surrogate."""
    return digest_bytes(canonical_json(value))


# --- Differences of two JSON values (pure) -----------------------------------

MOST_FINDINGS = 10_000  # the rest of a document is not looked at


def find_differences(observed: Any, expected: Any, *at: str | int) -> Iterator[tuple[Path, Any, Any]]:
    """Yield every place where two parsed values differ: (path parts, observed, expected).

    `1`, `1.0` and `true` differ, so do -0.0 and 0.0, null, empty and absent; the order of an object's
    keys does not count, the order of an array does. No text is normalised. A side that has nothing at
    a place is MISSING there. Paths begin with `at`. Differences come in document order.
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
    """Return find_differences as findings, at most 10,000 (see cut): the JSON path and both values."""
    return cut(explain_differences(observed, expected, *at))


def explain_differences(observed: Any, expected: Any, *at: str | int) -> Iterator[Finding]:
    """Yield find_differences as findings."""
    return (explain_difference(*difference) for difference in find_differences(observed, expected, *at))


def explain_difference(path: Path, observed: Any, expected: Any, said: str = "") -> Finding:
    """Return a difference as a finding, with something said behind it."""
    pair = {"observed": observed, "expected": expected}
    values = {name: value for name, value in pair.items() if type(value) not in (Words, *_NESTING)}
    return Finding(render_path(path), describe_pair(observed, expected) + said, **values)


def cut(findings: Iterable[Finding]) -> Findings:
    """Return findings, at most 10,000; where there are more, a last one says so."""
    listed = list(islice(findings, MOST_FINDINGS + 1))
    if len(listed) > MOST_FINDINGS:
        end = f"not looked at, nor anything behind it: {MOST_FINDINGS:,} findings come before it"
        listed[-1] = Finding(listed[-1].path, end)
    return listed


# --- Task: what the work is, behind one small interface (pure) ----------------

FREE_TEXT = Words("some text")  # in a right answer, where any text will do that is not blank
REPEATED = Words("it only once")
TASK_MODULE = "task_file"  # the name under which a task's file is loaded
MOST_ROWS = 100_000
# The texts of a task, and what each must match.
_TASK_TEXTS = {
    "name": "[a-z][a-z0-9-]{0,39}",
    "task_id": "[a-z0-9-]{0,72}",
    "operation": "[a-zA-Z0-9_-]{1,64}",
    **dict.fromkeys(("tool_description", "sender_prompt", "objective", "instructions"), r"(?s).*\S.*"),
    **dict.fromkeys(("rows_field", "row_key"), "[^\x00-\x1f\x7f\ud800-\udfff]{1,72}"),
}


class Task:
    """A piece of work: its source, its words, and its right answer.

    A task file defines `TASK`, an object of a class that is derived from this one. Its texts and
    `parse_source`, `build_answer` and `list_pending` are its own; the other methods fit most tasks.
    A source is a list of 1 to 100,000 rows: objects with a text in the field `row_key` that no other
    row has. An answer is an object; its list `rows_field` has one row for each row of the source, told
    apart by the same field, in any order.
    """

    name = ""  # begins the checkpoint's task_id, e.g. "stock"
    task_id = ""  # of the built-in source; any other source's is the name and 12 digits of its digest
    source: ClassVar[Rows] = []  # rows to try the task with, and its source where none is named
    operation = ""  # the sender's only tool, e.g. "read_stock"; it takes no arguments
    tool_description = ""
    sender_prompt = ""  # the system text of the sender's session
    objective = ""
    instructions = ""  # how the handoff prompt begins
    rows_field = "rows"
    row_key = ""
    changes = ""  # what the self-test changes in the right answer for `source`, see _CHANGES

    @property
    def operation_id(self) -> str:
        """The stable id of the read in checkpoint and ledger: ours, not a provider's."""
        return f"{self.operation.replace('_', '-')}-1"

    def parse_source(self, data: bytes) -> Rows:
        """Return the rows that a source's bytes hold. Raises InputError, with the place, for others."""
        raise NotImplementedError

    def build_answer(self, rows: Rows) -> Json:
        """Return the right answer for rows, with FREE_TEXT where any text will do."""
        raise NotImplementedError

    def list_pending(self, rows: Rows) -> list[str]:
        """Return the open work, as the checkpoint says it."""
        raise NotImplementedError

    def render_acceptance(self, rows: Rows) -> str:
        """Return the verdict on an accepted answer."""
        return f"accepted: {render_count(rows, 'row')}"

    def find_faults(self, answer: Any, rows: Rows) -> Iterator[Finding]:
        """Yield everything that is wrong with a parsed answer, in document order.

        The answer must be build_answer's: each row exactly once, in any order; nothing missing,
        nothing more. Free text is checked in form only.
        """
        right = self.build_answer(rows)
        if not isinstance(answer, dict):
            expected = f"an object with the key{'s' * (len(right) > 1)} {' and '.join(right)}"
            yield from explain_differences(answer, Words(expected))
            return
        for key in {**answer, **right}:
            value, expected = answer.get(key, MISSING), right.get(key, MISSING)
            if key != self.rows_field:
                yield from explain_differences(value, _fill_free_text(expected, value), key)
            elif not isinstance(value, list):
                yield from explain_differences(value, Words("an array of rows"), key)
            elif not _are_equal(value, expected):
                for index, (row, right_row) in enumerate(match_rows(value, expected, self.row_key)):
                    if row is MISSING:
                        name = describe(right_row[self.row_key])
                        yield Finding(key, f"observed no row for {name}, expected {describe(right_row)}")
                    else:
                        yield from explain_differences(row, right_row, key, index)


def _are_equal(observed: list[Any], right: Rows) -> bool:
    """Return whether rows are plainly right and in order: one quick look is enough for most answers."""
    values = chain.from_iterable(map(dict.values, chain(observed, right)))
    return observed == right and {*map(type, values)} <= {str, int}  # True == 1, but is not the same


def match_rows(observed: list[Any], right: Rows, row_key: str) -> Iterator[tuple[Any, Any]]:
    """Yield (row, the nearest right row) for each observed row, then (MISSING, row) for each that is missing.

    The nearest holds Words where no single value is right: for a row that is not an object, that comes
    again, or that the source does not have. It is built when it is asked for: an answer may have millions
    of rows.
    """
    expected, seen = {row[row_key]: row for row in right}, set()
    sample = right[0] if right else {row_key: FREE_TEXT}
    for row in observed:
        key = row.get(row_key) if isinstance(row, dict) else None
        nearest: Any = Words(f"an object with {' and '.join(sample)}")
        if isinstance(key, str) and key in expected:
            nearest = _fill_free_text(expected[key], row)
            nearest = {**nearest, row_key: REPEATED} if key in seen else nearest
            seen.add(key)
        elif isinstance(row, dict):
            nearest = {name: _keep_kind(row.get(name, MISSING), sample[name]) for name in sample}
            nearest[row_key] = Words(f"the {row_key} of a row of the source")
        yield row, nearest
    yield from ((MISSING, row) for key, row in expected.items() if key not in seen)


def _keep_kind(value: Any, sample: Any) -> Any:
    """Return a value if it has the type of a sample, else words for that type."""
    kind = str if sample is FREE_TEXT else type(sample)
    return value if type(value) is kind else describe_kind("" if kind is str else sample)


def _fill_free_text(right: Any, observed: Any) -> Any:
    """Return a right value with each FREE_TEXT replaced by the observed text, where there is one."""
    if right is FREE_TEXT:
        return observed if type(observed) is str and observed.strip() else right
    if type(right) is dict and type(observed) is dict:
        return {key: _fill_free_text(value, observed.get(key)) for key, value in right.items()}
    if type(right) is list and type(observed) is list:
        return [_fill_free_text(*pair) for pair in zip_longest(right, observed[: len(right)])]
    return right


def holds_free_text(right: Any) -> bool:
    """Return whether a right answer holds FREE_TEXT anywhere."""
    children = right.values() if type(right) is dict else right if type(right) is list else ()
    return right is FREE_TEXT or any(map(holds_free_text, children))


class AnswerRow(NamedTuple):
    """One row of an answer beside the right one, for a person to read."""

    state: str  # agrees, differs, repeated, not delivered
    name: str  # its row_key, or the name of a field beside the rows
    delivered: Any  # MISSING where it was not delivered
    expected: Any
    source: Json  # the source's row, empty where there is none


def list_answer_rows(task: Task, rows: Rows, answer: Any) -> list[AnswerRow]:
    """Return an answer's rows in its order, the missing ones, then the fields beside the rows."""
    right, fields = task.build_answer(rows), answer if isinstance(answer, dict) else {}
    observed = fields.get(task.rows_field)
    observed = observed if isinstance(observed, list) else []
    sources = {row[task.row_key]: row for row in rows}

    def compare(name: Any, value: Any, expected: Any, known: Json) -> AnswerRow:
        shown, source = (name, known.get(name, {})) if isinstance(name, str) else (f"no {task.row_key}", {})
        state = "differs" if any(find_differences(value, expected)) else "agrees"
        if type(expected) is dict and expected.get(task.row_key) is REPEATED:
            state = "repeated"
        return AnswerRow("not delivered" if value is MISSING else state, shown, value, expected, source)

    listed = []
    for row, expected in match_rows(observed, right[task.rows_field], task.row_key):
        named = expected if row is MISSING else row if isinstance(row, dict) else {}
        listed.append(compare(named.get(task.row_key), row, expected, sources))
    for name in [name for name in {**right, **fields} if name != task.rows_field]:
        value = fields.get(name, MISSING)
        listed.append(compare(name, value, _fill_free_text(right.get(name, MISSING), value), {}))
    return listed


def check_rows(rows: Any, row_key: str) -> Rows:
    """Return rows that can be a task's source. Raises InputError, with the path, for others."""
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_ROWS:
        observed = render_count(rows, "row") if isinstance(rows, list) else describe_kind(rows)
        raise InputError("the source", f"observed {observed}, expected an array of 1 to {MOST_ROWS:,} rows")
    seen = set()
    for at, row in enumerate(rows):
        key = row.get(row_key) if isinstance(row, dict) else None
        if not isinstance(key, str) or not key.strip() or key in seen:
            raise InputError(f"[{at}]", f"expected an object with a {row_key}, a text that no other row has")
        seen.add(key)
    if is_too_deep(rows, REPLY_DEPTH_LIMIT // 2):
        raise InputError("the source", f"nested deeper than {REPLY_DEPTH_LIMIT // 2} levels")
    digest_json(rows)
    return rows


def check_task(task: Any, rows: Rows | None = None) -> Task:
    """Return a task that can be used with rows, by default its own `source`.

    Raises TaskError, which names the member at fault, and the line where its code raised something.
    """
    if not isinstance(task, Task):
        raise TaskError("TASK", f"observed {shorten(repr(task))}, expected an object of a class from Task")
    member = ""
    try:
        # 1. Each of its texts is one.
        for member, pattern in _TASK_TEXTS.items():
            if not re.fullmatch(pattern, getattr(task, member)):
                raise InputError(member, f"expected a text that matches {pattern}")
        member = "changes"
        for line in filter(str.strip, task.changes.split("\n")):
            if not re.match(r" *(checkpoint|result|reply)( \|[^|]*){4}$", line):
                raise InputError(describe(line), "expected checkpoint, result or reply, and four more cells")
        # 2. Its source is a list of rows.
        member = "source"
        rows = check_rows(task.source if rows is None else rows, task.row_key)
        # 3. Its answer has a row for each of them, and it accepts what it calls right.
        member = "build_answer"
        right = parse_json(render_json(task.build_answer(rows)))
        if [row[task.row_key] for row in right[task.rows_field]] != [row[task.row_key] for row in rows]:
            raise InputError(task.rows_field, "expected a row for each row of the source, in its order")
        member = "find_faults"
        for finding in task.find_faults(right, rows):
            raise InputError("build_answer's answer", f"it is not accepted: {finding}")
        # 4. Its words are texts.
        member = "list_pending"
        canonical_json(["".join([text]) for text in task.list_pending(rows)])
        member = "render_acceptance"
        canonical_json("".join([task.render_acceptance(rows)]))
    except (Exception, SystemExit) as error:
        raise TaskError(member, describe_exception(error)) from error
    return task


def describe_exception(error: BaseException) -> str:
    """Return an exception's type and words, and the last line of the task's file that it came through."""
    import traceback

    own = getattr(sys.modules.get(TASK_MODULE), "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
    known = isinstance(error, InputError)
    words = str(error) if known else traceback.format_exception_only(type(error), error)[-1].rstrip()
    return f"{shorten(words, 200)}{f' (line {line})' if line else ''}"


# --- The demo's task: a stock and what is short of it (pure) ------------------


class Stock(Task):
    """Report what is short of a stock: max(target - available, 0) for every SKU."""

    name = "stock"
    task_id = "synthetic-stock-20261110"
    source: ClassVar[Rows] = [
        {"sku": "DEMO-001", "available": 7, "target": 10},
        {"sku": "DEMO-002", "available": 15, "target": 12},
        {"sku": "DEMO-003", "available": 0, "target": 4},
    ]
    operation = "read_stock"
    tool_description = "Return every SKU with its available and target quantity. It changes nothing."
    sender_prompt = "You prepare a stock report. Read the stock with the tool. Do not place orders."
    objective = "Report shortage=max(target-available,0) for every SKU. Do not place orders."
    instructions = """\
Resume this read-only task from verified application state.
Do not claim access to prior reasoning.
Do not call tools or place orders.
Return only a JSON object with key rows, containing every SKU
and integer shortage. No Markdown.
"""
    row_key = "sku"
    changes = """
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
checkpoint | a changed quantity | "available":7 | "available":9 | completed[0].result[0].available
"""
    _columns = ("sku", "available", "target")
    _most_pieces = 10**12

    def parse_source(self, data: bytes) -> Rows:
        """Return the rows of a stock: `{"sku": str, "available": int, "target": int}` each.

        A CSV text with the header sku,available,target in any order, or a JSON array of such objects;
        UTF-8, a byte-order mark allowed. Each SKU is unique and not empty, without control characters
        and not beginning with "=" (a formula); quantities are integers from 0 to 10^12 in plain digits.
        Raises InputError with the line or the path and the column.
        """
        text = decode_text(data).removeprefix(BYTE_ORDER_MARK)
        if text.lstrip()[:1] not in ("[", "{"):
            return self._check(_parse_csv(text, self._columns), ", column ")
        rows = parse_json(text)
        if not isinstance(rows, list):
            raise InputError("the source", f"observed {describe(rows)}, expected an array of rows")
        return self._check(((f"[{at}]", row) for at, row in enumerate(rows)), ".")

    def _check(self, placed_rows: Iterable[tuple[str, Any]], mark: str) -> Rows:
        """Return the rows out of (place, row) pairs; `mark` is between a place and its column."""
        rows: dict[str, Json] = {}
        for place, row in placed_rows:
            if len(rows) == MOST_ROWS:
                raise InputError(place, f"observed more than {MOST_ROWS:,} rows, expected 1 to {MOST_ROWS:,}")
            if not isinstance(row, dict) or set(row) != set(self._columns):
                fields = ", ".join(self._columns)
                raise InputError(place, f"observed {describe(row)}, expected an object with {fields}")
            for column in self._columns:
                value, expected = row[column], "an integer from 0 to 10^12 in plain digits"
                fits = type(value) is int and 0 <= value <= self._most_pieces
                if column == "sku":
                    expected = "a text that no other row has, not empty, no control character, no = in front"
                    fits = isinstance(value, str) and bool(re.fullmatch(_SKU, value)) and value not in rows
                if not fits:
                    observed = describe(value)
                    raise InputError(f"{place}{mark}{column}", f"observed {observed}, expected {expected}")
            rows[row["sku"]] = {column: row[column] for column in self._columns}
        if not rows:
            raise InputError("the source", f"observed 0 rows, expected 1 to {MOST_ROWS:,}")
        return list(rows.values())

    def build_answer(self, rows: Rows) -> Json:
        """Return the right answer: `{"rows": [{"sku", "shortage"}, ...]}`."""
        return {"rows": [{"sku": row["sku"], "shortage": compute_shortage(row)} for row in rows]}

    def list_pending(self, rows: Rows) -> list[str]:
        """Return the open work; the built-in stock keeps its own words."""
        size = "three" if rows == self.source else str(len(rows))
        return [f"Produce all {size} SKU shortage rows", "Pass independent validator"]

    def render_acceptance(self, rows: Rows) -> str:
        """Return the verdict on an accepted answer, with the sum of what is short."""
        return f"{super().render_acceptance(rows)}, total shortage {sum(map(compute_shortage, rows))}"


_SKU = "[^=\x00-\x1f\x7f-\x9f\ud800-\udfff][^\x00-\x1f\x7f-\x9f\ud800-\udfff]*"


def compute_shortage(row: Json) -> int:
    """Return how many pieces a stock row lacks: max(target - available, 0), never negative."""
    shortage: int = row["target"] - row["available"]
    return shortage if shortage > 0 else 0


def _parse_csv(text: str, columns: Sequence[str]) -> Iterator[tuple[str, Json]]:
    """Yield (line, row) with integers where a field has plain digits, else texts."""
    import csv

    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    begin = 1  # a quoted field may go over several lines; the first of them is named
    try:
        header = next(filter(None, lines), [])
        if sorted(header) != sorted(columns):
            observed, expected = describe(header or MISSING), ",".join(columns)
            raise InputError("line 1", f"observed {observed}, expected the columns {expected}")
        begin = lines.line_num + 1
        for fields in lines:
            if fields and len(fields) != len(header):
                observed, expected = render_count(fields, "field"), render_count(header, "field")
                raise InputError(f"line {begin}", f"observed {observed}, expected {expected}")
            row: Json = dict(zip(header, fields))
            for name in {*row} - {"sku"}:
                if re.fullmatch("[0-9]{1,20}", row[name]):
                    row[name] = int(row[name])
            if row:  # a blank line is not one
                yield f"line {begin}", row
            begin = lines.line_num + 1
    except csv.Error as error:
        raise InputError(f"line {begin}", f"not CSV: {error}") from error


DEMO = Stock()

# --- Checkpoint: the application's own snapshot of the work (pure) ------------

SCHEMA_VERSION = 1

# What a difference means, by how its path begins; the first that fits counts.
_REASONS: dict[Path, str] = {
    ("schema_version",): "an unknown schema version",
    ("task_id",): "this is another task",
    ("objective",): "the objective was changed",
    ("source_sha256",): "the digest of the source is not that of the trusted source, which --source names",
    ("completed", 0, "status"): "a read that is not verified proves nothing",
    ("completed", 0, "result_sha256"): "the digest of the result is not that of the trusted source",
    ("completed", 0, "result"): "the result of the read is not what the trusted source holds",
    ("completed",): "the finished operations were changed",
    ("pending",): "the open work was changed",
    ("side_effects",): "a side effect that nobody allowed",
    (): "this is not a checkpoint",
}


def build_checkpoint(task: Task, rows: Rows) -> Json:
    """Return the checkpoint of a task whose source was read, as the application saw it.

    `rows` are what the tool returned. Both digests are digest_json(rows). Raises InputError for a text
    that has no UTF-8 form.
    """
    digest = digest_json(rows)
    is_built_in = task.task_id and rows == task.source
    return {
        "schema_version": SCHEMA_VERSION,
        "task_id": task.task_id if is_built_in else f"{task.name}-{digest[:12]}",
        "objective": task.objective,
        "source_sha256": digest,
        "completed": [
            {
                "operation_id": task.operation_id,
                "operation": task.operation,
                "status": "verified",
                "result": rows,
                "result_sha256": digest,
            }
        ],
        "pending": task.list_pending(rows),
        "side_effects": [],
    }


def verify_checkpoint(checkpoint: Any, task: Task, rows: Rows) -> Findings:
    """Return what keeps a parsed checkpoint from being the one that the source `rows` allows.

    Empty means verified: every field is there, none is unexpected, both digests are those of
    `rows`, the read is verified, no side effect is claimed. This shows agreement with a source that
    is trusted; it shows no authorship and no freshness.
    """
    differences = find_differences(checkpoint, build_checkpoint(task, rows))
    return cut(explain_difference(*one, f" ({_name_reason(*one)})") for one in differences)


def _name_reason(path: Path, observed: Any, expected: Any) -> str:
    if path and isinstance(path[-1], str) and (observed is MISSING or expected is MISSING):
        return "an unexpected field" if expected is MISSING else "a missing field"
    return next(_REASONS[place] for place in _REASONS if path[: len(place)] == place)


# --- Handoff: what the receiving model is given (pure) ------------------------

RECEIVER_MODEL = "anthropic/claude-opus-5.5"
MAX_TOKENS = 4_096


def render_handoff(task: Task, checkpoint: Json) -> str:
    """Return the handoff prompt: the task's instructions and the whole checkpoint as canonical JSON.

    It ends with a newline. Raises what canonical_json raises.
    """
    return f"{render_instructions(task)}{canonical_json(checkpoint).decode()}\n"


def render_instructions(task: Task) -> str:
    """Return the handoff prompt up to where the checkpoint begins."""
    return f"{task.instructions.rstrip()}\nCheckpoint: "


def build_receiver_request(handoff: str, model: str = RECEIVER_MODEL, max_tokens: int = MAX_TOKENS) -> Json:
    """Return the body of a Messages request that begins a fresh session with the handoff prompt.

    Nothing of the earlier session is in it: no assistant message, no signed block, no tool.
    """
    return {
        "model": model,
        "max_tokens": max_tokens,
        "output_config": {"effort": "low"},
        "messages": [{"role": "user", "content": handoff}],
    }


# --- Reply: a whole message, a finished turn, its answer (pure) ---------------

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
    objects that each have a string `type`. What is in the blocks is judged elsewhere.
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
    """Return what a parsed error body of the Messages API says, or "" for any other reply."""
    error = reply.get("error") if isinstance(reply, dict) and reply.get("type") == "error" else None
    if not isinstance(error, dict) or not isinstance(error.get("type"), str):
        return ""
    return f"{shorten(show(error['type']))}: {describe(error.get('message', MISSING))}"


def find_reply_faults(message: Json, stop_reason: str, tool: str | None = None) -> Findings:
    """Return why a whole message does not fit its step, a wrong stop reason first.

    The message must end with `stop_reason`. With `tool` it must hold exactly one tool_use, of that
    tool with empty input and an id; without, none. Text blocks must hold text; thinking and unknown
    blocks are left alone, but none whose type ends in tool_use.
    """
    observed = message.get("stop_reason", MISSING)
    said = f" ({_STOP_REASONS[observed]})" if str(observed) in _STOP_REASONS else ""
    differences = find_differences(observed, stop_reason, "stop_reason")
    return [explain_difference(*one, said) for one in differences] + cut(
        _find_block_faults(message["content"], tool)
    )


def _find_block_faults(content: list[Any], tool: str | None) -> Iterator[Finding]:
    expected = Words(f"exactly one call of {tool}" if tool else "no tool call")
    for index, block in enumerate(content):
        kind, right = block["type"], block
        if kind == "tool_use" and tool:
            call_id = block.get("id")
            is_id = isinstance(call_id, str) and re.fullmatch("[!-~]+", call_id)
            right = {**block, "name": tool, "input": {}, "id": call_id if is_id else Words("a tool call id")}
            tool = None  # it was called, and any further call is one too many
        elif kind.endswith("tool_use"):
            right = expected
        elif kind == "text" and not isinstance(block.get("text"), str):
            right = {**block, "text": Words("a string")}
        yield from explain_differences(block, right, "content", index)
    if tool:
        yield Finding("content", f"observed no tool call, expected {expected}")


def join_text(message: Json) -> str:
    """Return the text blocks of a message that passed find_reply_faults, joined."""
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def parse_answer(message: Json) -> Any:
    """Return the value of a finished message's answer: its text, read as strict JSON.

    The message must have passed find_message_faults and find_reply_faults. Raises InputError for
    anything that is not one JSON value: prose, Markdown, an empty answer.
    """
    return parse_json(join_text(message))


def find_answer(reply: Any) -> tuple[Findings, Any]:
    """Return what keeps a parsed reply from being a finished answer, and the answer's value if nothing does.

    The faults of find_message_faults, else those of find_reply_faults for end_turn, else the InputError of
    parse_answer, at the path "the answer, ...". A good answer may be null: only where nothing was found is
    there one.
    """
    findings = find_message_faults(reply) or find_reply_faults(reply, "end_turn")
    try:
        return findings, None if findings else parse_answer(reply)
    except InputError as error:
        return [Finding(f"the answer, {error.path}", error.message)], None


def validate_result(result: Any, task: Task, rows: Rows) -> Findings:
    """Return everything that is wrong with a parsed result for the source `rows`, in document order.

    Empty means accepted. Every value is worked out again from the source. An exception in a task's
    own method is a finding, because an answer that cannot be judged is not accepted.
    """
    wrapped = "observed a whole message, expected its answer, which extract takes out"
    begin = [] if find_message_faults(result) else [Finding("$", wrapped)]
    try:
        found = islice(task.find_faults(result, rows), MOST_FINDINGS + 1)
        return cut([*begin, *(one if isinstance(one, Finding) else Finding("$", str(one)) for one in found)])
    except (Exception, SystemExit) as error:
        return [*begin, Finding("$", f"the task cannot judge this: {describe_exception(error)}")]


# --- Session replay: was the conversation restored exactly? (pure) ------------

# The parts of a record's messages, in order: before the turn in hand, the turn, its results, the rest.
_MESSAGE_LABELS = (
    "changed prefix: messages",
    "changed assistant turn",
    "changed tool result",
    "changed later messages",
)
# The API's own documentation leaves these out of what it compares.
_UNCOMPARED_FIELDS = {
    *("model", "max_tokens", "output_config", "effort", "tool_choice", "thinking", "metadata", "stream"),
    *("service_tier", "cache_control"),
}


def compare_sessions(restored: Json, original: Json) -> tuple[Changes, Findings]:
    """Return (changes, notes) between a restored session record and the original.

    A session record is the parsed body of the next Messages request: `system`, `tools`, `messages` (in the
    original a list) and any other field. `changes` maps a label to its findings, in the order of the
    record: prefix, assistant turn, tool results, later messages, other fields; empty means intact.
    `notes` are differences that the API leaves out of its comparison. Whether a signature is genuine,
    or which model can read a block, is not checked.
    """
    changes: Changes = {}
    notes: Findings = []

    def compare(label: str, name: str, observed: Any, expected: Any) -> None:
        findings = cut(_sift(find_differences(observed, expected, name), notes, label))
        if findings:
            changes.setdefault(label, []).extend(findings)

    def compare_field(kind: str, name: str) -> None:
        compare(
            f"changed {kind}: {show(name)}", name, restored.get(name, MISSING), original.get(name, MISSING)
        )

    compare_field("prefix", "system")
    compare_field("prefix", "tools")
    messages, expected = restored.get("messages", MISSING), original["messages"]
    if not isinstance(messages, list):
        compare("changed prefix: messages", "messages", messages, Words("a list of messages"))
        messages = []
    start, end, begin = _match_turns(messages, expected)
    unmatched = _find_unmatched(messages, start, end)
    size = int(any(map(_has_calls, expected[begin : begin + 1])))  # one message of results
    places, wanted = [0, start, end, end + size, None], [0, begin, begin + 1, begin + 1 + size, None]
    for at, label in enumerate(_MESSAGE_LABELS):
        if label == "changed tool result" and unmatched:  # results are compared only where they pair
            changes["unmatched tool result"] = unmatched
            continue
        one, other = messages[places[at] : places[at + 1]], expected[wanted[at] : wanted[at + 1]]
        first = places[at] or 0
        compare(label, "messages", dict(enumerate(one, first)), dict(enumerate(other, first)))
    for name in {**restored, **original}:
        if name not in ("system", "tools", "messages"):
            compare_field("field", name)
    return changes, notes


def _sift(
    differences: Iterable[tuple[Path, Any, Any]], notes: Findings, label: str = ""
) -> Iterator[Finding]:
    """Yield the differences that the API compares as findings; the others are added to the notes."""
    for difference in differences:
        finding = explain_difference(*difference)
        if _is_compared(difference[0]):
            finding.label = label
            yield finding
        elif len(notes) < MOST_FINDINGS:
            notes.append(finding)


def _is_compared(path: Path) -> bool:
    """Return whether the API compares what is at a path.

    It does not compare a mark for its cache on a tool, a system block or a content block; in a tool's
    input the same word is data.
    """
    names, indexes = path[::2], path[1::2]  # of a path such as messages, 3, content, 0, cache_control
    at = names.index("cache_control") if "cache_control" in names else 0
    is_marked = names[:at] in (("system",), ("tools",)) or (
        names[:1] == ("messages",) and {"content"} == {*names[1:at]}
    )
    is_mark = at > 0 and is_marked and all(type(index) is int for index in indexes[:at])
    return path[0] not in _UNCOMPARED_FIELDS and not is_mark


def _match_turns(messages: Messages, original: Messages) -> tuple[int, int, int]:
    """Return where the turn in hand begins and ends in a restored record, and where in the original.

    It is the last assistant message with a tool_use, else the last assistant message. Where that was
    changed or is gone, it begins where the prefix ends, if the prefix is whole; it may have come back
    as several messages, up to the last with a tool_use.
    """
    start, original_start = _find_turn(messages), _find_turn(original)
    expected = original[original_start : original_start + 1]
    is_changed = _differ(messages[start : start + 1], expected)
    if is_changed and not _differ(messages[:original_start], original[:original_start]):
        start = original_start
    turn = list(takewhile(_is_assistant, messages[start:]))
    ends = [end for end, message in enumerate(turn, start + 1) if _has_calls(message)]
    if not turn and len(messages) - start in (0, len(original) - original_start):
        kinds = [
            block.get("type") for message in messages[start : start + 1] for block in _list_blocks(message)
        ]
        turn = [] if "tool_result" in kinds else expected  # it is gone, or has another role
    return start, (ends or [start + len(turn[:1])])[-1], original_start


def _differ(messages: Messages, original: Messages) -> bool:
    return any(_sift(find_differences(messages, original, "messages"), []))


def _find_unmatched(messages: Messages, start: int, end: int) -> Findings:
    """Return what does not pair in a restored record, from the turn in hand on."""
    later = [at for at, message in enumerate(messages) if at >= end and _has_calls(message)]
    findings = find_unmatched_results(messages[start:end], messages[end:], end)
    for at, following in zip(later, [*later[1:], len(messages)]):
        findings += find_unmatched_results(messages[at : at + 1], messages[at + 1 : following], at + 1)
    return cut(findings)


def find_unmatched_results(turn: Messages, behind: Messages, first: int) -> Findings:
    """Return what does not pair between a turn's tool calls and the results behind it.

    Each tool_use needs exactly one tool_result with its id, at the beginning of the very next
    message, and every result needs its call. `turn` are the assistant messages, `behind`
    those that follow, `first` is the index of the first of these in the session.
    """
    waiting: dict[str, list[str]] = {}  # each call's id -> the paths of its calls without a result
    for number, message in enumerate(turn, first - len(turn)):
        for place, block in enumerate(_list_blocks(message) if _is_assistant(message) else []):
            if block.get("type") == "tool_use":
                path = render_path(["messages", number, "content", place, "id"])
                waiting.setdefault(render_json(block.get("id")), []).append(path)
    findings = []
    for number, message in enumerate(takewhile(lambda one: not _has_calls(one), behind), first):
        is_in_front = number == first
        for place, block in enumerate(_list_blocks(message)):
            if block.get("type") != "tool_result":
                is_in_front = False
                continue
            call = render_json(block.get("tool_use_id"))  # an id may be unhashable
            is_matched = bool(waiting.get(call)) and isinstance(block.get("tool_use_id"), str)
            if is_matched and is_in_front:
                waiting[call].pop()
                continue
            expected = "one" if call in waiting else "one for a call of the turn"
            if is_matched:
                waiting[call].pop()
                expected = "it at the beginning of the next message"
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
    content = content if isinstance(content, list) else []
    return [block if isinstance(block, dict) else {} for block in content]


# --- Self-test: this program on known inputs (pure) ---------------------------

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
# ROWS is the answer's list of rows, column END is behind the answer.
_CHANGES = """
checkpoint | a changed source digest | "source_sha256":" | "source_sha256":"0 | source_sha256
checkpoint | a changed result digest | "result_sha256":" | "result_sha256":"0 | completed[0].result_sha256
checkpoint | a changed result | "result":[ | "result":[0, | completed[0].result[0]
checkpoint | a read that is not verified | "verified"}], | "claimed"}], | completed[0].status
checkpoint | a side effect | "side_effects":[] | "side_effects":["order-1"] | side_effects[0]
checkpoint | schema version 2 | "schema_version":1 | "schema_version":2 | schema_version
checkpoint | schema version true | "schema_version":1 | "schema_version":true | schema_version
checkpoint | an unexpected field | "schema_version" | "notes":"trust me","schema_version" | notes
checkpoint | a missing field | "side_effects":[], | | side_effects
reply | a cut answer | end_turn | max_tokens | stop_reason
reply | a refusal | end_turn | refusal | stop_reason
reply | a tool call | {"type":"thinking"} | {"type":"tool_use"} | content[0]
reply | a user's message | assistant | user | role
reply | an empty answer | "type":"text" | "type":"other" | the answer, line 1 column 1
reply | Markdown around the answer | "text":" | "text":"```json  | the answer, line 1 column 1
reply | prose in front of the answer | "text":" | "text":"Done:  | the answer, line 1 column 1
reply | prose behind the answer | ","type":"text" | Done.","type":"text" | the answer, line 1 column END
reply | an answer with a row that is not an object | :[{\\" | :[0,{\\" | ROWS[0]
"""

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
    """Yield (change, labels, as expected) for the built-in cases; five of six are broken on purpose."""
    original = parse_json(SESSION_TEXT)
    for change, (old, new, expected) in _SESSION_CHANGES.items():
        changes, _ = compare_sessions(parse_json(SESSION_TEXT.replace(old, new, 1)), original)
        labels = ", ".join(changes) or "intact"
        yield change, labels, labels == expected


def run_self_test(task: Task, rows: Rows) -> Iterator[tuple[str, str, bool]]:
    """Yield (group, check, passed) for each check of this program, and of a task with its source."""
    for check, (data, place) in _JSON_TEXTS.items():
        yield "strict JSON", check, _find_place_of_refusal(lambda _: [], data) == place

    group = "canonical JSON and digests"
    sample = {"b": [1, None], "a": "\u00e4"}
    yield group, "sorts keys, adds no white space", canonical_json(sample) == b'{"a":"\xc3\xa4","b":[1,null]}'
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    yield group, "gives FIPS 180-4's digest of abc", digest_bytes(b"abc") == known
    yield group, "tells 1, 1.0 and true apart", len(list_differences([1, 1, 1.0], [1.0, True, True])) == 3

    checkpoint = build_checkpoint(task, rows)
    handoff = render_handoff(task, checkpoint)
    carried = parse_json(handoff[len(render_instructions(task)) :].encode())
    yield "handoff", "carries the whole checkpoint", not list_differences(carried, checkpoint)
    messages = build_receiver_request(handoff)["messages"]
    yield "handoff", "is the request's only message", messages == [{"role": "user", "content": handoff}]

    for change, _, passed in run_session_cases():
        yield "session replay", f"finds {change}", passed
    yield from _try_changes(task, rows, checkpoint)


def _try_changes(task: Task, rows: Rows, checkpoint: Json) -> Iterator[tuple[str, str, bool]]:
    """Yield a check for each good text, and for each change of one."""
    right = task.build_answer(rows)
    content = [{"type": "thinking"}, {"type": "text", "text": canonical_json(right).decode()}]
    reply = {"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}
    good = {"checkpoint": checkpoint, "result": right, "reply": reply}
    texts = {group: canonical_json(value).decode() for group, value in good.items()}
    end = f"column {len(texts['result']) + 1}"

    def judge_reply(value: Any) -> Findings:
        findings, answer = find_answer(value)
        return findings or validate_result(answer, task, rows)

    judges = {
        "checkpoint": lambda value: verify_checkpoint(value, task, rows),
        "result": lambda value: validate_result(value, task, rows),
        "reply": judge_reply,
    }
    for group, text in texts.items():
        yield group, "accepts the right one", _find_place_of_refusal(judges[group], text.encode()) == ""
        own = task.changes if rows == task.source else ""
        for line in filter(str.strip, f"{_CHANGES}{own}".split("\n")):
            named, check, old, new, place = (cell.strip() for cell in line.split(" |"))
            if named == group:
                changed = text.replace(old, new, 1)
                refused = _find_place_of_refusal(judges[group], changed.encode())
                expected = place.replace("ROWS", render_path([task.rows_field])).replace("column END", end)
                yield group, f"refuses {check}", changed != text and refused == expected


def _find_place_of_refusal(judge: Callable[[Any], Findings], data: bytes) -> str:
    try:
        findings = judge(parse_json(data))
    except InputError as error:
        return error.path
    return findings[0].path if findings else ""


# --- Files -------------------------------------------------------------------

# The errors by which file systems say that they flush no folders.
_UNFLUSHED = (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS)


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


def load_task(path: str) -> tuple[Task, str]:
    """Return the task that a Python file defines as TASK, and the digest of the file.

    Its code runs, and it is the very code that is digested. Raises UnreadableError, or TaskError with
    the line or the member that is at fault.
    """
    data = read_input(path)
    module = types.ModuleType(TASK_MODULE)
    module.__file__ = path
    sys.modules[TASK_MODULE] = module
    sys.modules.setdefault("checkpoint_demo", sys.modules[__name__])  # the file's Task is this one
    try:
        exec(compile(data, path, "exec"), vars(module))
        return check_task(getattr(module, "TASK", None)), digest_bytes(data)
    except TaskError as error:
        raise TaskError(f"{path}, {error.place}", error.fault) from error
    except (Exception, SystemExit) as error:
        raise TaskError(path, describe_exception(error)) from error


def read_source(task: Task, path: str) -> Rows:
    """Return a task's rows out of a file. Raises UnreadableError or TaskError."""
    try:
        rows = check_rows(task.parse_source(read_input(path)), task.row_key)
        check_task(task, rows)
        return rows
    except InputError as error:
        raise UnreadableError(
            path, str(error), "save it in UTF-8, in the form that the task reads"
        ) from error
    except HandoffError:
        raise
    except (Exception, SystemExit) as error:
        raise TaskError("parse_source", describe_exception(error)) from error


def write_new_files(files: dict[str, bytes]) -> None:
    """Write new files durably, all of them or none; what exists is never overwritten.

    Each is written beside its place, flushed, and given its final name by a hard link, which fails
    where something is already, in a race and through a symbolic link too. Where the system makes no hard
    link, the file is created exclusively in its place instead. Raises ExistsError or
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
            except FileExistsError:
                raise
            except (OSError, AttributeError, NotImplementedError):  # a real fault comes back here
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
    try:
        import fcntl

        full_flush = vars(fcntl)["F_FULLFSYNC"]  # of macOS, where fsync stops at the drive's cache
        fcntl.fcntl(descriptor, full_flush)
    except (ImportError, KeyError, OSError):  # another system, or a file system without it
        os.fsync(descriptor)


def flush_folder(path: str) -> None:
    """Flush a folder's names to disk, where the system can. Raises OSError."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush(descriptor)
    except OSError as error:
        if error.errno not in _UNFLUSHED:
            raise
    finally:
        os.close(descriptor)


# --- Terminal ----------------------------------------------------------------

_COLOURS = {"red": 31, "green": 32, "yellow": 33}


class Report(NamedTuple):
    """How a command ends: its verdict in one word, and `what`, the line that a person reads last."""

    exit_code: int
    verdict: str
    what: str
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    facts: Mapping[str, Any] = types.MappingProxyType({})  # what else --json shows


def list_members(finding: Finding) -> Json:
    """Return a finding as --json shows it."""
    label = {"label": finding.label} if finding.label else {}
    return {**label, "path": finding.path, "message": finding.message, **finding.values}


def remove_passwords(text: str) -> str:
    """Return the text without the user parts of the proxies' URLs in the environment.

    A user part is what comes before the last @. It is removed whole, and the password in it alone: as they
    are written, decoded, in JSON, and in the base64 of a request. A password below four characters is not
    removed alone.
    """
    secrets: set[str] = set()
    for name, value in os.environ.items():
        url, mark, _ = value.rpartition("@")
        if mark and name.lower().endswith("_proxy"):
            import base64
            import urllib.parse

            user = re.sub("^([A-Za-z][A-Za-z0-9+.-]*:)?/+", "", url)
            password = user.partition(":")[2]
            parts = [user, password, password.partition(":")[2]]  # the last one in http:name:password@host
            parts = [part for part in parts if len(part) > 3 or ":" in part[1:-1]]
            for form in (*parts, *map(urllib.parse.unquote, parts)):
                encoded = base64.b64encode(form.encode("utf-8", "surrogatepass")).decode()
                secrets.update((form, render_json(form)[1:-1], encoded))
    pattern = "|".join(map(re.escape, sorted(secrets, key=len, reverse=True)))
    return re.sub(pattern, "[password removed]", text) if pattern else text


class Terminal:
    """Where a command's results and its talk go, and what Ctrl-C does to it.

    Results go to standard output, talk to standard error, both through `redact` and without a
    control character. A stream that is closed, full or a broken pipe is survived; `lost` says which and
    why, and a command fails by that if it `must_be_heard`. Ctrl-C raises KeyboardInterrupt, as in any
    program, but from `hold` on to `release` it only makes `interrupted` true.
    """

    def __init__(self, name: str, as_json: bool = False) -> None:
        self.name, self.as_json = name, as_json  # the name is the script's, as it is typed
        self.redact: Callable[[str], str] = remove_passwords
        self.lost = ""
        self.must_be_heard = True
        self.interrupted = False

    def say(self, report: Report) -> int:
        """Show a report, and return its exit code.

        Findings and notes go to standard error, the verdict behind them to standard output; with --json
        all goes there as one object.
        """
        if self.as_json:
            self.write_json(
                verdict=report.verdict,
                exit_code=report.exit_code,
                what=report.what,
                findings=[list_members(finding) for finding in report.findings],
                notes=report.notes,
                **report.facts,
            )
        else:
            for line in (*report.findings, *report.notes):
                self.write_err(show(str(line)))  # one line, whatever a task puts into it
            self.write_out(report.what, "red" if report.exit_code else "green")
        return report.exit_code

    def say_error(self, error: HandoffError) -> int:
        """Show why a command ended without a verdict, and return its exit code."""
        if self.as_json:
            told = {"what": error.what, "why": error.why, "next": error.next_step}
            self.write_json(verdict=error.verdict, exit_code=error.exit_code, **told)
        else:
            self.write_err(f"{name_script(self.name)}: {error}")
        return error.exit_code

    def write_json(self, **members: Any) -> None:
        """Write one machine-readable object to standard output."""
        self.write_out(render_json(members, 2))

    def write_out(self, text: str, colour: str = "") -> None:
        """Write lines to standard output; a colour (red, green, yellow) shows on a terminal only."""
        self._write(sys.stdout, text, colour)

    def write_err(self, text: str, colour: str = "") -> None:
        """Write lines to standard error."""
        self._write(sys.stderr, text, colour)

    def _write(self, stream: Any, text: str, colour: str = "", end: str = "\n") -> None:
        name = "standard error" if stream is sys.stderr else "standard output"
        if stream is None:
            self.lost = self.lost or f"{name} is closed"
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
        except (OSError, ValueError) as error:  # full or broken; closed by somebody
            self.lost = self.lost or f"{name} is lost: {explain(error)}"
            _drop(stream)

    def progress(self, text: str) -> None:
        """Show a line that the next one replaces, on a terminal only."""
        if is_terminal(sys.stderr):
            self._write(sys.stderr, text, end="\r")

    def hold(self) -> None:
        """Only note Ctrl-C from now on, where that is Python's own to handle, and in the main thread."""
        try:
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, self._note_interrupt)
        except ValueError:  # in another thread
            return

    def release(self) -> None:
        """Let Ctrl-C do again what it did before `hold`."""
        if signal.getsignal(signal.SIGINT) == self._note_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note_interrupt(self, *_: Any) -> None:
        self.interrupted = True


def _drop(stream: Any) -> None:
    """Let a stream that takes no more end in nothing, or the interpreter's last flush of it fails."""
    try:
        number = stream.fileno()
        nothing = os.open(os.devnull, os.O_WRONLY)
        if nothing != number:  # else it has taken the place already
            os.dup2(nothing, number)
            os.close(nothing)
    except (OSError, ValueError, AttributeError):  # closed; a program's own object
        return


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


def quote(word: str) -> str:
    """Return a word as it is typed in the platform's shell."""
    if os.name != "nt":
        return shlex.quote(word)
    import subprocess

    return subprocess.list2cmdline([word])


def name_script(typed: str) -> str:
    """Return a script's mere name, whatever folder and quotes it is typed with."""
    return os.path.basename(typed).rstrip("'\"")


def open_missing_descriptors() -> None:
    """Give closed standard streams a place, or the next file that is opened takes their number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def run_command(name: str, command: Callable[[Terminal], int], as_json: bool = False) -> int:
    """Return the exit code of a command, whatever way it ends; only a bug shows a traceback."""
    terminal = Terminal(name, as_json)
    try:
        try:
            if sys.hexversion < 0x3090000:
                why = "it is written for Python 3.9 or newer"
                raise HandoffError(f"Python {sys.version.split()[0]} is too old", why, "start a newer one")
            code = command(terminal)
        except HandoffError as error:
            code = terminal.say_error(error)
        except MemoryError:
            why = "what was read is too large for this machine"
            code = terminal.say_error(HandoffError("out of memory", why, "give it less"))
        except Exception:
            import traceback

            what, next_step = "it met what it does not expect", "report it, as the README's last lines say"
            bug = HandoffError(what, "see the traceback", next_step)
            bug.verdict, bug.exit_code = "a bug in this program", EXIT_BUG
            code = terminal.say_error(bug)
            terminal.write_err(traceback.format_exc().rstrip())
        if terminal.lost:
            terminal.write_err(f"{name_script(name)}: {terminal.lost}")
            if terminal.must_be_heard and code in (EXIT_DONE, EXIT_REJECTED):
                return EXIT_UNUSABLE
        return code
    except KeyboardInterrupt:
        while True:
            try:
                terminal.hold()  # what is still to be said is said
                break
            except KeyboardInterrupt:  # pressed again
                continue
        interrupt = HandoffError("by Ctrl-C", "nothing was in flight", "start it again when you like")
        interrupt.verdict, interrupt.exit_code = "interrupted", EXIT_INTERRUPTED
        return terminal.say_error(interrupt)
    finally:
        terminal.release()


# --- Command line ------------------------------------------------------------


class HelpAsked(Exception):
    """The command line asks for a text: its first argument."""


class Parser(argparse.ArgumentParser):
    """A parser that abbreviates nothing, and whose errors are UsageErrors.

    A word in the wrong place may be a secret: no more than its first 16 characters are shown.
    """

    def __init__(self, **settings: Any) -> None:
        def build_formatter(prog: str) -> argparse.HelpFormatter:
            return argparse.RawDescriptionHelpFormatter(prog, max_help_position=24, width=80)

        super().__init__(allow_abbrev=False, formatter_class=build_formatter, **settings)
        self.color = False  # of 3.14, which colours its help

    def error(self, message: str) -> NoReturn:
        """Raise UsageError instead of ending the process."""
        quoted = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""  # as repr writes a word, either way
        raise UsageError(re.sub(quoted, lambda word: shorten(word.group(), 17), message), self.prog)

    def print_help(self, file: Any = None) -> NoReturn:
        """Raise HelpAsked instead of writing to a stream that may be closed."""
        raise HelpAsked(self.format_help().rstrip())

    def parse(self, arguments: list[str], known: Iterable[str]) -> argparse.Namespace:
        """Return what a command line says. Raises HelpAsked, or UsageError with the nearest known name."""
        options, strays = self.parse_known_args(arguments)
        if options.version:
            raise HelpAsked(f"{name_script(self.prog)} {VERSION}")
        if [] in vars(options).values():  # what Python 3.9 makes of --out=--
            raise UsageError("-- is not a value", self.prog)
        for word in strays:
            fault = (
                explain_stray(word, known) if word[:1] == "-" else f"{shorten(word, 16)} is one word too many"
            )
            raise UsageError(fault, " ".join(filter(None, [self.prog, vars(options).get("command")])))
        return options


def explain_stray(word: str, known: Iterable[str]) -> str:
    """Return what is wrong with a word that has no place here."""
    name = word.partition("=")[0]
    if name in known:
        return f"{name} has no place here"
    import difflib

    near = difflib.get_close_matches(name, known, 1, 0.7)
    return f"there is no {shorten(name, 16)}{'; the nearest is ' if near else ''}{''.join(near)}"


def expect(pattern: str, expected: str) -> Callable[[str], str]:
    """Return a function that returns a text that matches a pattern, and refuses any other."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"expected {expected}")
        return text

    return check


_ANY = expect("(?s).+", "a value")
MODEL = expect("[!-~]{1,200}", "a model id, up to 200 characters of printable ASCII")
COUNT = expect("[1-9][0-9]{0,8}", "a whole number from 1 to 999999999")


def _option(metavar: str, words: str, **settings: Any) -> Json:
    """Return what argparse makes of an argument; a default is said in its help."""
    default = f"default: {settings['default']}" if "default" in settings else ""
    return {"metavar": metavar, "type": _ANY, "help": words or default, **settings}


def _switch(words: str) -> Json:
    return {"action": "store_true", "help": words}


# Every argument of every command: what argparse makes of it.
_ARGUMENTS: dict[str, Json] = {
    "CHECKPOINT": _option("CHECKPOINT", "", nargs="?", default="checkpoint.json"),
    "HANDOFF": _option("HANDOFF", "", nargs="?", default="handoff.txt"),
    "RESPONSE": _option("RESPONSE", "a saved reply"),
    "RESULT": _option("RESULT", "a result, as extract writes it"),
    "--check-restored": _option("FILE", "compare a session record that came out of storage"),
    "--emit-fixture": _switch("print the built-in session record"),
    "--json": _switch("print one machine-readable object instead"),
    "--max-tokens": _option("N", "", type=COUNT, default=str(MAX_TOKENS)),
    "--original": _option("FILE", "compare it with this one (default: the built-in one)"),
    "--out": _option("DIR", "write into this folder, made if it is missing (default: here)"),
    "--receiver": _option("MODEL", "", type=MODEL, default=RECEIVER_MODEL),
    "--source": _option("FILE", "the trusted source (default: the task's own)"),
    "--task": _option("FILE", "a Python file that defines TASK (default: the demo's task)"),
    "-o": _option("FILE", "write a new file (default: to standard output)", default="-"),
}

_EXIT_CODES = """\
exit codes:
  0  done or accepted               3    refused, nothing changed
  1  judged and rejected            70   a bug in this program
  2  usage, or a file that cannot   130  interrupted
     be read or written

An input - is standard input."""


def build_parser(script: str, named: Sequence[str]) -> Parser:
    """Return the parser of named commands, each with its own help; `script` is its name as it is typed."""
    parser = Parser(
        prog=script,
        description="Keep a verified checkpoint of an agent's work, hand it over, judge the answer.",
        epilog=f"COMMAND --help shows a command's arguments.\n\n{_EXIT_CODES}",
    )
    parser.add_argument("--version", action="store_true", help="show the version and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", prog=script, parser_class=Parser)
    for name in named:
        run, arguments, example = _COMMANDS[name]
        summary = str(run.__doc__)
        epilog = f"example:\n  python3 {script} {name} {example}\n\n{_EXIT_CODES}"
        command = commands.add_parser(name, help=summary, description=summary, epilog=epilog)
        for argument in arguments.split():
            command.add_argument(argument.lower(), **_ARGUMENTS[argument])
    return parser


def _load_work(options: argparse.Namespace) -> tuple[Task, Rows]:
    """Return the task that is asked for, and the rows of its trusted source."""
    task = load_task(options.task)[0] if options.task else DEMO
    return task, read_source(task, options.source) if options.source else task.source


def _cmd_self_test(terminal: Terminal, options: argparse.Namespace) -> int:
    """Check this program, and a task, on known inputs."""
    shown, outcomes = "", []
    for group, check, passed in run_self_test(*_load_work(options)):
        if group != shown:
            shown = group
            terminal.write_out(group)
        terminal.write_out(f"  {'ok    ' if passed else 'FAILED'}  {check}", "" if passed else "red")
        outcomes.append(passed)
    failed = outcomes.count(False)
    verdict = f"{len(outcomes)} checks: {len(outcomes) - failed} passed, {failed} failed"
    terminal.write_out(verdict, "red" if failed else "green")
    return EXIT_REJECTED if failed else EXIT_DONE


def _cmd_prepare(terminal: Terminal, options: argparse.Namespace) -> int:
    """Write checkpoint.json and handoff.txt; nothing is overwritten."""
    task, rows = _load_work(options)
    checkpoint, folder = build_checkpoint(task, rows), options.out or ""
    files = {
        os.path.join(folder, "checkpoint.json"): f"{render_json(checkpoint, 2)}\n".encode(),
        os.path.join(folder, "handoff.txt"): render_handoff(task, checkpoint).encode(),
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


def _write_output(terminal: Terminal, path: str, text: str) -> int:
    """Write a command's text to standard output, or whole or not at all into a new file."""
    if path == "-":
        terminal.write_out(text)
        return EXIT_DONE
    terminal.hold()  # whatever is pressed
    return _write_and_say(terminal, {path: f"{text}\n".encode()})


def _cmd_verify(terminal: Terminal, options: argparse.Namespace) -> int:
    """Check a checkpoint against the trusted source."""
    task, rows = _load_work(options)
    what = f"verified: {render_count(rows, 'row')}, source {digest_json(rows)[:12]}"
    return _judge(
        terminal, options.checkpoint, lambda value: verify_checkpoint(value, task, rows), "verified", what
    )


def _cmd_validate(terminal: Terminal, options: argparse.Namespace) -> int:
    """Judge a result against the trusted source."""
    task, rows = _load_work(options)
    what = task.render_acceptance(rows)
    return _judge(
        terminal, options.result, lambda value: validate_result(value, task, rows), "accepted", what
    )


def _judge(terminal: Terminal, path: str, judge: Callable[[Any], Findings], verdict: str, what: str) -> int:
    """Say what a judge finds in a file, then the verdict, `what` if nothing; return the exit code."""
    try:
        findings = judge(parse_json(read_input(path)))
    except InputError as error:  # a text that is not strict JSON is judged too
        findings = [error]
    if findings:
        verdict, what = "rejected", f"rejected: {render_count(findings, 'finding')}"
    return terminal.say(Report(EXIT_REJECTED if findings else EXIT_DONE, verdict, what, findings))


def _cmd_request(terminal: Terminal, options: argparse.Namespace) -> int:
    """Print the request that hands a prompt over."""
    try:
        handoff = decode_text(read_input(options.handoff))
        fault = _find_prompt_fault(handoff)
    except InputError as error:
        fault = str(error)
    if fault:
        raise UnreadableError(options.handoff, fault, "write it with prepare")
    request = build_receiver_request(handoff, options.receiver, int(options.max_tokens))
    return _write_output(terminal, options.o, render_json(request))


def _find_prompt_fault(text: str) -> str:
    """Return why a text is not a handoff prompt; empty if it can be one."""
    if not text.strip():
        return "it holds no text, which the API would refuse"
    try:
        if not isinstance(parse_json(text), (dict, list)):
            return ""
    except NotJsonError:
        return ""
    except InputError:  # JSON, though not strict
        pass
    return "it is a JSON value, such as a session record, and not a handoff prompt"


def _cmd_extract(terminal: Terminal, options: argparse.Namespace) -> int:
    """Take the finished answer out of a saved reply."""
    try:
        findings, answer = find_answer(parse_json(read_input(options.response), REPLY_DEPTH_LIMIT))
    except InputError as error:
        findings, answer = [error], None
    if not findings:
        return _write_output(terminal, options.o, render_json(answer, 2))
    for finding in findings:
        terminal.write_err(str(finding))
    where = f"no finished answer in {show(options.response)}"
    terminal.write_err(f"rejected: {render_count(findings, 'finding')}, {where}", "red")
    return EXIT_REJECTED


def _cmd_replay(terminal: Terminal, options: argparse.Namespace) -> int:
    """Compare a restored session record with the original; alone, try six cases."""
    restored, emits = options.check_restored, options.emit_fixture
    if (emits and (restored or options.json)) or (options.original and not restored):
        what = "--original goes with --check-restored, --emit-fixture goes alone"
        raise UsageError(what, terminal.name)
    if emits:
        terminal.write_out(render_json(parse_json(SESSION_TEXT), 2))
        return EXIT_DONE
    if restored:
        return _check_restored(terminal, restored, options.original)
    cases = list(run_session_cases())
    as_expected = sum(passed for _, _, passed in cases)
    for change, labels, passed in () if terminal.as_json else cases:
        terminal.write_out(f"{change:44} {labels}{'' if passed else ', which is NOT expected'}")
    facts = {
        "cases": [
            {"change": change, "labels": labels, "expected": passed} for change, labels, passed in cases
        ]
    }
    code = EXIT_DONE if as_expected == len(cases) else EXIT_REJECTED
    what = f"{as_expected}/{len(cases)} expected outcomes"
    return terminal.say(Report(code, "rejected" if code else "done", what, facts=facts))


def _check_restored(terminal: Terminal, restored_path: str, original_path: str | None) -> int:
    """Compare a restored session record with its original, or with the built-in one."""
    restored = _read_record(restored_path)
    if original_path:
        return _say_changes(terminal, *compare_sessions(restored, _read_record(original_path, list)))
    if not any(mark in render_json(restored) for mark in ('"toolu_demo_17"', '"read_invoice"')):
        fault = "it has neither a tool name nor a call id of the built-in session record"
        raise UnreadableError(restored_path, fault, "name its original with --original FILE")
    said = "compared with the built-in session record, because no --original is named"
    if not terminal.as_json:
        terminal.write_err(said)
    return _say_changes(terminal, *compare_sessions(restored, parse_json(SESSION_TEXT)), said)


def _read_record(path: str, kind: type = object) -> Json:
    """Return the session record that a file holds, with messages of a kind. Raises UnreadableError."""
    fault = "it is not a session record, which has a list of messages"
    try:
        record = parse_json(read_input(path))
        if isinstance(record, dict) and isinstance(record.get("messages"), kind):
            return record
    except InputError as error:
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


def _say_changes(terminal: Terminal, changes: Changes, notes: Findings, compared: str = "") -> int:
    """Say the labels, every difference, and what to do with the next request; return the exit code."""
    labels = list(changes) or ["intact"]
    advice = "it may be sent as it is; that a model can read its thinking is not shown by this"
    said = [f"note, not compared by the API: {note}" for note in notes]
    if any(note.path == "model" for note in notes):
        advice = "it came back exactly, but another model is asked, which may not read its thinking"
        said.append(f"note: {_READERS}")
    if changes:
        meaning = next(_MEANINGS[begin] for begin in _MEANINGS if labels[0].startswith(begin))
        advice = f"{meaning}: rebuild it from what was stored, or go on in a fresh session from a checkpoint"
    report = Report(
        EXIT_REJECTED if changes else EXIT_DONE,
        "changed" if changes else "intact",
        "\n".join(labels),
        [finding for findings in changes.values() for finding in findings],
        [*said, f"the next request: {advice}"],
        {"labels": labels, "next_request": advice, "compared": compared or "with --original"},
    )
    return terminal.say(report)


# Every command: what does it, its arguments by their names in _ARGUMENTS, an example of them.
_COMMANDS: dict[str, tuple[Callable[[Terminal, argparse.Namespace], int], str, str]] = {
    "self-test": (_cmd_self_test, "--task --source", ""),
    "prepare": (_cmd_prepare, "--out --task --source", "--out mine"),
    "verify": (_cmd_verify, "CHECKPOINT --task --source --json", "mine/checkpoint.json"),
    "request": (_cmd_request, "HANDOFF --receiver --max-tokens -o", "handoff.txt -o handoff-request.json"),
    "extract": (_cmd_extract, "RESPONSE -o", "handoff-response.json -o result.json"),
    "validate": (_cmd_validate, "RESULT --task --source --json", "result.json"),
    "replay": (
        _cmd_replay,
        "--emit-fixture --check-restored --original --json",
        "--check-restored restored.json",
    ),
}


def _run(terminal: Terminal, arguments: list[str]) -> int:
    word = arguments[0] if arguments else "nothing"
    if not word.startswith("-") and word not in _COMMANDS:
        fault = explain_stray(word, _COMMANDS) if arguments else "nothing is asked for"
        raise UsageError(f"expected a COMMAND ({', '.join(_COMMANDS)}); {fault}", terminal.name)
    try:
        named = [word] if word in _COMMANDS else list(_COMMANDS)  # to build them all takes 3 ms
        options = build_parser(terminal.name, named).parse(arguments, [*_ARGUMENTS, "--help", "--version"])
    except HelpAsked as asked:
        terminal.write_out(str(asked))
        return EXIT_DONE
    if options.command is None:
        raise UsageError(f"expected a COMMAND ({', '.join(_COMMANDS)})", terminal.name)
    outputs = ("o", "out", "receiver")
    if [value for name, value in vars(options).items() if name not in outputs].count("-") > 1:
        raise UsageError("- is given twice, but standard input can be read only once", terminal.name)
    return _COMMANDS[options.command][0](terminal, options)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` is what follows the program's name."""
    arguments = sys.argv[1:] if argv is None else argv
    name = quote(sys.argv[0]) if argv is None else "checkpoint_demo.py"
    as_json = "--json" in takewhile("--".__ne__, arguments)
    return run_command(name, lambda terminal: _run(terminal, arguments), as_json)


if __name__ == "__main__":
    open_missing_descriptors()
    sys.exit(main())
