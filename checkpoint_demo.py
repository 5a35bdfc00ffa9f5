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
import contextlib
import copy
import errno
import gc
import hashlib
import io
import json
import os
import re
import shlex
import signal
import sys
import types
from collections import defaultdict, deque, namedtuple
from functools import partial
from itertools import chain, count, islice, permutations, takewhile, zip_longest

TYPE_CHECKING = False  # a checker takes it for true; typing itself is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence
    from typing import Any, ClassVar, NoReturn, Union

    Json = dict[str, Any]  # an object as it was parsed: a row, a checkpoint, a message, a session record
    Rows = list[Json]
    Messages = list[Any]
    Path = tuple[Union[str, int], ...]  # from the root of a document to a value in it
    Findings = list["Finding"]
    Changes = dict[str, Findings]  # by the label of what was changed
else:
    Json = dict

VERSION = "1.1"

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


class AnswerRow:
    """One row of an answer beside the right one, for a person to read.

    `state` is agrees, differs, repeated or not delivered, `name` its row_key, or a field beside the rows,
    `delivered` MISSING where it was not, `source` the source's row, empty where there is none.
    """

    def __init__(self, name: str, delivered: Any, expected: Any, source: Json) -> None:
        self.name, self.delivered, self.expected, self.source = name, delivered, expected, source
        self.state = "differs" if any(find_differences(delivered, expected)) else "agrees"
        if delivered is MISSING:
            self.state = "not delivered"
        elif isinstance(expected, dict) and any(value is REPEATED for value in expected.values()):
            self.state = "repeated"


def list_answer_rows(task: Task, rows: Rows, answer: Any) -> list[AnswerRow]:
    """Return an answer's rows in its order, the missing ones, then the fields beside the rows."""
    right, fields = task.build_answer(rows), answer if isinstance(answer, dict) else {}
    observed = fields.get(task.rows_field)
    observed = observed if isinstance(observed, list) else []
    sources, listed = {row[task.row_key]: row for row in rows}, []
    for row, expected in match_rows(observed, right[task.rows_field], task.row_key):
        named = expected if row is MISSING else row
        key = named.get(task.row_key) if isinstance(named, dict) else None
        name, source = (key, sources.get(key, {})) if isinstance(key, str) else (f"no {task.row_key}", {})
        listed.append(AnswerRow(name, row, expected, source))
    for name in [name for name in {**right, **fields} if name != task.rows_field]:
        value = fields.get(name, MISSING)
        listed.append(AnswerRow(name, value, _fill_free_text(right.get(name, MISSING), value), {}))
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
            raise InputError(f"[{at}]", f"expected an object whose {row_key} is a text that no other row has")
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
            text = getattr(task, member)
            if not re.fullmatch(pattern, text):
                raise InputError(shorten(repr(text)), f"expected a text that matches {pattern}")
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
    except BaseException as error:
        raise TaskError(member, describe_exception(error)) from error
    return task


def describe_exception(error: BaseException) -> str:
    """Return the type and words of what a task raised, and the last line of its file that it came through.

    Raises KeyboardInterrupt again: a person, and not the task, ends the program by that.
    """
    import traceback

    if isinstance(error, KeyboardInterrupt):
        raise error
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

    def parse_source(self, data: bytes) -> Rows:
        """Return the rows of a stock: `{"sku": str, "available": int, "target": int}` each.

        A CSV text with the header sku,available,target in any order, or a JSON array of such objects;
        UTF-8, a byte-order mark allowed. Each SKU is unique and not empty, without control characters
        and not beginning with "=" (a formula); quantities are integers from 0 to 10^12 in plain digits.
        Raises InputError with the line or the path and the column.
        """
        text = decode_text(data).removeprefix(BYTE_ORDER_MARK)
        if text.lstrip()[:1] in ("[", "{"):
            value, mark = parse_json(text), "."
            if not isinstance(value, list):
                raise InputError("the source", f"observed {describe(value)}, expected an array of rows")
            placed: Iterable[tuple[str, Any]] = ((f"[{at}]", row) for at, row in enumerate(value))
        else:
            placed, mark = self._read_csv(text), ", column "
        rows: dict[str, Json] = {}
        for place, row in placed:
            if not isinstance(row, dict) or set(row) != set(self._columns):
                expected = f"an object with {', '.join(self._columns)}"
                raise InputError(place, f"observed {describe(row)}, expected {expected}")
            for column in self._columns:
                value, expected = row[column], "an integer from 0 to 10^12 in plain digits"
                fits = type(value) is int and 0 <= value <= 10**12
                if column == "sku":
                    expected = "a text that no other row has, not empty, no control character, no = in front"
                    fits = isinstance(value, str) and bool(re.fullmatch(_SKU, value)) and value not in rows
                if not fits:
                    observed = describe(value)
                    raise InputError(f"{place}{mark}{column}", f"observed {observed}, expected {expected}")
            rows[row["sku"]] = {column: row[column] for column in self._columns}
        return list(rows.values())

    def _read_csv(self, text: str) -> Iterator[tuple[str, Json]]:
        """Yield (line, row) with integers where a field has plain digits; no field holds a line's end."""
        import csv

        header: list[str] = []
        for number, line in enumerate(io.StringIO(text, newline=None), 1):
            place = f"line {number}"
            try:
                fields = next(csv.reader([line], strict=True), [])
            except csv.Error as error:
                raise InputError(place, f"not CSV: {error}") from error
            if not fields:  # a blank line is not a row
                continue
            header = header or fields
            if sorted(header) != sorted(self._columns):
                expected = f"the columns {','.join(self._columns)}"
                raise InputError(place, f"observed {describe(fields)}, expected {expected}")
            if len(fields) != len(header):
                expected = render_count(header, "field")
                raise InputError(place, f"observed {render_count(fields, 'field')}, expected {expected}")
            row: Json = dict(zip(header, fields))
            for name in {*row} - {"sku"}:
                if re.fullmatch("[0-9]{1,20}", row[name]):
                    row[name] = int(row[name])
            if fields is not header:
                yield place, row

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


DEMO = Stock()

# --- Checkpoint: the application's own snapshot of the work (pure) ------------

SCHEMA_VERSION = 1

# What a difference means, by how its path begins; the first that fits counts.
_REASONS: dict[Path, str] = {
    ("schema_version",): "an unknown schema version",
    ("task_id",): "this is another task",
    ("objective",): "the objective was changed",
    ("source_sha256",): "the digest is not that of the trusted source, which --source or --session names",
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
    return compare_checkpoints(checkpoint, build_checkpoint(task, rows))


def compare_checkpoints(observed: Any, expected: Json) -> Findings:
    """Return all differences of two checkpoints, each with what it means."""
    differences = find_differences(observed, expected)
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


# --- Sessions: the forms of each API (pure) ----------------------------------

MESSAGES, CHAT, GEMINI, NEUTRAL = "messages", "chat", "gemini", "neutral"
PARTS = ("text", "reasoning", "call", "result", "media", "other")

# API, kind, and how that API writes it: JSON with holes ("$field", "$field:conversion"). A key with ? may be
# absent or null; a constant behind it is mere formatting, "*" anything. The first form of a kind that a part
# has the fields for is written; all are read.
_FORMS_TEXT = """
messages text {"type": "text", "text": "$text", "citations?": null}
messages reasoning {"type": "thinking", "thinking": "$text", "signature?": "$credential"}
messages reasoning {"type": "redacted_thinking", "data": "$credential"}
messages call {"type": "tool_use", "name": "$tool", "input": "$arguments:any", "id": "$call_id"}
messages result {"type": "tool_result", "tool_use_id": "$call_id", "content?": "$content:content",
    "is_error?": "$failed:bool"}
messages media {"type": "image", "source": {"type": "base64", "media_type": "$media_type", "data": "$data"}}
messages tool {"name": "$name", "description?": "$description", "input_schema": "$parameters:any",
    "type?": "custom"}
chat text {"type": "text", "text": "$text"}
chat text {"type": "refusal", "refusal": "$text"}
chat text {"refusal": "$text"}
chat reasoning {"reasoning_content": "$text"}
chat call {"type": "function", "id": "$call_id", "index?": "*",
    "function": {"name": "$tool", "arguments": "$arguments:json"}}
chat call {"function_call": {"name": "$tool", "arguments": "$arguments:json"}}
chat result {"role": "tool", "tool_call_id": "$call_id", "content": "$content:content", "name?": "*"}
chat result {"role": "function", "name": "$tool", "content": "$content:content"}
chat media {"type": "image_url", "image_url": {"url": "$media_type:url"}}
chat tool {"type": "function", "function": {"name": "$name", "description?": "$description",
    "parameters?": "$parameters:any"}}
gemini call {"functionCall": {"name": "$tool", "args?": "$arguments:any", "id?": "$call_id"},
    "thoughtSignature?": "$credential"}
gemini result {"functionResponse": {"name": "$tool", "response": "$content:response", "id?": "$call_id",
    "parts?": "$attached:list"},
    "thoughtSignature?": "$credential"}
gemini media {"inlineData": {"mimeType": "$media_type", "data": "$data"}, "thoughtSignature?": "$credential"}
gemini reasoning {"text": "$text", "thought": true, "thoughtSignature?": "$credential"}
gemini text {"text": "$text", "thought?": false, "thoughtSignature?": "$credential"}
gemini text {"thoughtSignature": "$credential", "text?": "$text"}
gemini tool {"name": "$name", "description?": "$description", "parametersJsonSchema": "$parameters:any"}
gemini tool {"name": "$name", "description?": "$description", "parameters?": "$parameters:schema"}
neutral text {"kind": "text", "text": "$text", "credential?": "$credential"}
neutral reasoning {"kind": "reasoning", "text?": "$text", "credential?": "$credential"}
neutral call {"kind": "call", "tool": "$tool", "arguments": "$arguments:any", "call_id?": "$call_id",
    "credential?": "$credential"}
neutral result {"kind": "result", "content": "$content:content", "tool?": "$tool", "call_id?": "$call_id",
    "failed?": "$failed:bool", "credential?": "$credential"}
neutral media {"kind": "media", "media_type": "$media_type", "data": "$data", "credential?": "$credential"}
neutral media {"kind": "media", "native": "$native:any", "credential?": "$credential"}
neutral other {"kind": "other", "native": "$native:any", "credential?": "$credential"}
neutral tool {"name": "$name", "description?": "$description", "parameters": "$parameters:any"}
neutral tool {"name": "$name", "description?": "$description"}
neutral tool {"kind": "$kind", "native": "$native:any"}
neutral turn {"role": "$role", "parts": "$parts:list", "native?": "$native:list", "issuer?": "$issuer:issuer"}
neutral session {"format": "neutral-session", "schema_version": 1, "turns": "$turns:list",
    "system?": "$system", "tools?": "$tools:list", "settings?": "$settings:dict", "native?": "$native:dict",
    "issuer?": "$issuer:issuer"}
"""
# What a new node of a kind has before it is read.
_NEW: dict[str, Json] = {kind: {"kind": kind} for kind in PARTS}
_NEW["text"]["text"], _NEW["call"]["arguments"] = "", {}
_NEW["result"].update(content="", failed=False)
_NEW["session"] = {"format": "neutral-session", "schema_version": 1, "settings": {}}


class Node(Json):
    """A session, turn, part or tool of a neutral session; `at` is the path where it was read.

    Of a turn, `unknown` are the paths of fields that a neutral session has no place for.
    """

    __slots__ = ("at", "unknown")

    def __init__(self, at: Path, fields: Json, unknown: list[Path] | None = None) -> None:
        super().__init__(fields)
        self.at, self.unknown = at, unknown or []


class Form(types.SimpleNamespace):
    """A line of the forms; its template is {key: (is optional, field, hole or constant or template)}."""

    name: str  # what tells its pieces
    new: Json  # what a node has before it is read
    template: Json
    needed: frozenset[str]  # the fields that a part must have
    keys: str  # those that a piece must have


def _render_compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read_arguments(text: str) -> Json:
    """Return the object that a call's arguments text holds; "" is {}, any other text stays as it is."""
    try:
        value = parse_json(text) if text else {}
        return {"arguments": value if type(value) is dict else text}
    except InputError:
        return {"arguments": text}


def _write_arguments(part: Json) -> str:
    return part["arguments"] if type(part["arguments"]) is str else _render_compact(part["arguments"])


def _read_url(url: str) -> Json | None:
    found = re.fullmatch("data:(?P<media_type>[^;,]*);base64,(?P<data>.*)", url, re.DOTALL)
    return found and found.groupdict()


def _read_response(response: Json) -> Json:
    """Return the content of a Gemini response: the one key output or error is its value."""
    key = next(iter(response)) if list(response) in (["output"], ["error"]) else ""
    value = response[key] if key else response
    return {"content": value if type(value) is str else _render_compact(value), "failed": key == "error"}


def _write_response(part: Json) -> Json:
    return {"error" if part["failed"] else "output": join_content(part["content"])}


def _read_issuer(issuer: Json) -> Json | None:
    whole = {"api": None, "model": None, **issuer}
    is_right = len(whole) == 2 and whole["api"] in (None, *APIS) and type(whole["model"] or "") is str
    return {"issuer": whole} if is_right else None


def _read_schema(schema: Any) -> Json:
    """Return a schema of Gemini's own as JSON Schema, whose names of types are in lower case."""
    text = re.sub('"type":"[A-Z]+"', lambda found: found[0].lower(), _render_compact(schema))
    return {"parameters": json.loads(text)}


# The types of a hole's value (none: any), how it is read into fields (None: it does not fit), and written.
_HOLES: dict[str, tuple[tuple[type, ...], Any, Any]] = {
    **{kind.__name__: ((kind,), None, None) for kind in (str, bool, list, dict)},
    "any": ((), None, None),
    "content": ((str, list), None, None),
    "issuer": ((dict,), _read_issuer, None),
    "json": ((str,), _read_arguments, _write_arguments),
    "url": ((str,), _read_url, "data:{0[media_type]};base64,{0[data]}".format),
    "schema": ((), _read_schema, None),
    "response": ((dict,), _read_response, _write_response),
}


def _compile(template: Json) -> Json:
    compiled: Json = {}
    for key, wanted in template.items():
        field = ""
        if type(wanted) is dict:
            wanted = _compile(wanted)
        elif type(wanted) is str and wanted[0] == "$":
            field, _, conversion = wanted[1:].partition(":")
            wanted = _HOLES[conversion or "str"]
        compiled[key.rstrip("?")] = (key[-1] == "?", field, wanted)
    return compiled


def _read_forms() -> tuple[dict[str, dict[str, list[Form]]], dict[str, dict[str, list[Form]]]]:
    """Return the forms of each API by their kind, and those of its parts by the name of a piece."""
    by_kind: dict[str, dict[str, list[Form]]] = defaultdict(lambda: defaultdict(list))
    named: dict[str, dict[str, list[Form]]] = defaultdict(lambda: defaultdict(list))
    for line in re.split(r"\n(?=\w)", _FORMS_TEXT.strip()):
        api, kind, text = line.split(maxsplit=2)
        template = json.loads(text)
        names = [template[key] for key in ("role", "type", "kind") if key in template] or [*template]
        form = Form(
            name=names[0] if kind in PARTS else kind,
            new=_NEW.get(kind, {}),
            template=_compile(template),
            needed=frozenset(re.findall(r'\w": "\$(\w+)', text)),
            keys=", ".join(re.findall(r'(\w+)": "\$', text)),
        )
        by_kind[api][kind].append(form)
        if kind in PARTS:
            named[api][form.name].append(form)
    return by_kind, named


FORMS, _NAMED = _read_forms()
# What else is an API's own: of a body, of its messages, what it takes, and of its replies.
_APIS_TEXT = """
           | messages                | chat                                  | gemini
messages   | messages                | messages                              | contents
system     | system                  |                                       | systemInstruction
model      | model                   | model                                 |
limit      | max_tokens              | max_completion_tokens            | generationConfig.maxOutputTokens
roles      | user assistant system   | user assistant system developer tool function | user model
pieces     | content                 | reasoning_content content refusal tool_calls function_call | parts
media      | image document          | image_url input_audio file            | inlineData fileData
images     | user tool result        | user tool                             | user tool assistant
tool_name  | [a-zA-Z0-9_-]{1,64}     | [a-zA-Z0-9_-]{1,64}                   | [a-zA-Z0-9_.:-]{1,64}
call_id    | [a-zA-Z0-9_-]+          | .{1,40}                               | (?s).*
choices    |                         | choices                               | candidates
message    |                         | message                               | content
assistant  | assistant               | assistant                             | model
content    | content                 | content                               | parts
stop       | stop_reason             | finish_reason                         | finishReason
answered   | end_turn stop_sequence  | stop                                  | STOP
calling    | tool_use                | tool_calls function_call              | STOP
maker      | model                   | model                                 | modelVersion
"""


def read_columns(text: str) -> dict[str, types.SimpleNamespace]:
    """Return the columns of a table by their heads: their cells by the names of the rows, None if empty."""
    heads, *rows = [[cell.strip() or None for cell in row.split("|")] for row in text.strip("\n").split("\n")]
    return {
        head: types.SimpleNamespace(**{str(row[0]): row[place] for row in rows})
        for place, head in enumerate(heads)
        if head
    }


APIS = read_columns(_APIS_TEXT)
_ROLES = {"model": "assistant", "developer": "system", "function": "tool"}  # by an API's own names

# --- Sessions: pieces of messages, and parts of turns (pure) -----------------


def _spread(api: str, message: Json, at: Path) -> Iterator[tuple[Any, Path]]:
    """Yield the pieces of a message with their paths; a string is one text."""
    if api == CHAT and message.get("role") in ("tool", "function"):
        yield message, at
        return
    for field in APIS[api].pieces.split():
        value = message.get(field, MISSING)
        if type(value) is list and field in ("content", "parts", "tool_calls"):
            yield from ((piece, (*at, field, place)) for place, piece in enumerate(value))
        elif type(value) is str and field == "content":
            if value:
                yield {"type": "text", "text": value}, (*at, field)
        elif value is not MISSING and (value is not None or api != CHAT):
            yield ({field: value}, at) if field in _NAMED[api] else (value, (*at, field))


def write_turn(api: str, turn: Json) -> list[Json]:
    """Return a turn's parts as messages of an API; in chat each result is one, before one of all the rest."""
    pieces = [(part["kind"], write_part(api, part)) for part in turn["parts"]]
    role = "user" if turn["role"] == "tool" else turn["role"]
    if api == GEMINI:
        return [{"role": "model" if role == "assistant" else "user", "parts": [piece for _, piece in pieces]}]
    by_kind: dict[str, list[Any]] = defaultdict(list)
    for kind, piece in pieces:
        is_apart = api == CHAT and kind in ("result", "reasoning", "call")
        by_kind[kind if is_apart else "content"].append(piece)
    results, content = by_kind["result"], by_kind["content"]
    if 0 < len(pieces) == len(results):
        return results
    is_text = len(content) == 1 and ("text", content[0]) in pieces and (api == CHAT or role == "user")
    whole = content[0]["text"] if is_text else content or ("" if api == CHAT else [])
    message: Json = {"role": role, "content": whole}
    if by_kind["reasoning"]:
        texts = [piece["reasoning_content"] for piece in by_kind["reasoning"]]
        message["reasoning_content"] = "\n\n".join(texts)
    for call in by_kind["call"][:1]:
        message.update(call if "function_call" in call else {"tool_calls": by_kind["call"]})
    return [*results, message]


def match(template: Json, value: Any, at: Path, found: Json, unknown: list[Path]) -> bool:
    """Return whether a value has a form; `found` gets what is in the holes, `unknown` the other fields."""
    if type(value) is not dict:
        return False
    for key, (is_optional, field, wanted) in template.items():
        given = value.get(key, MISSING)
        if given is MISSING or (given is None and is_optional):
            if not is_optional:
                return False
        elif field:
            kinds, read, _ = wanted
            if kinds and type(given) not in kinds:
                return False
            fields = read(given) if read else {field: given}
            if fields is None:
                return False
            found.update(fields)
        elif type(wanted) is dict:
            if not match(wanted, given, (*at, key), found, unknown):
                return False
        elif (type(given) is not type(wanted) or given != wanted) and wanted != "*":
            if not is_optional:
                return False
            unknown.append((*at, key))
    if not value.keys() <= template.keys():
        unknown += [(*at, key) for key in value if key not in template and value[key] is not None]
    return True


def fill(template: Json, part: Json) -> Json:
    """Return a form with a part's fields in its holes; optional ones that are empty or false are left out."""
    filled: Json = {}
    for key, (is_optional, field, wanted) in template.items():
        if type(wanted) is dict:
            filled[key] = fill(wanted, part)
        elif field:
            if field in part and not (is_optional and part[field] is False):
                write = wanted[2]
                filled[key] = write(part) if write else part[field]
        elif not is_optional:
            filled[key] = wanted
    return filled


_NAME_FIELDS = {MESSAGES: ("type",), CHAT: ("role", "type"), NEUTRAL: ("kind",)}


def name_piece(api: str, piece: Any) -> str:
    """Return the name that an API has for a piece of a message: its role or type, or its telling field."""
    if type(piece) is not dict:
        return ""
    for field in _NAME_FIELDS.get(api, ()):
        if type(piece.get(field)) is str:
            return str(piece[field])
    names = [name for name in (*_NAMED[api], *piece) if name in piece and name != "thoughtSignature"]
    return next(iter([*names, *piece]), "")


def read_node(forms: Iterable[Form], value: Any, at: Path, unknown: list[Path]) -> Node | None:
    """Return a value as a node by the first form that it has; None if it has none of them."""
    for form in forms:
        node, more = Node(at, form.new), unknown[:0]
        if match(form.template, value, at, node, more):
            unknown += more
            return node
    return None


def read_part(api: str, piece: Any, at: Path, unknown: list[Path]) -> Node:
    """Return the part that a piece of a message is; `other` with the piece as `native` where no form fits.

    `unknown` gets the paths of fields that the part has no place for. Raises SessionError for a neutral part
    that does not have its form.
    """

    def read_inner(pieces: list[Any], *field: str) -> list[Node]:
        return [read_part(api, each, (*at, *field, place), unknown) for place, each in enumerate(pieces)]

    name = name_piece(api, piece)
    part = read_node(_NAMED[api].get(name, ()), piece, at, unknown)
    if part is None and api == NEUTRAL:
        raise SessionError([_explain_misfit(_NAMED[api].get(name), piece, at)])
    if part is None:
        part = Node(at, {"kind": "media" if name in APIS[api].media.split() else "other", "native": piece})
        if type(piece) is dict and type(piece.get("thoughtSignature")) is str:
            part["credential"] = piece["thoughtSignature"]
    if type(part.get("content")) is list:
        inner = read_inner(part["content"], "content")
        is_text = [each["kind"] for each in inner] == ["text"]
        part["content"] = inner[0]["text"] if is_text else inner or ""
    if part.get("attached"):  # to a result of Gemini
        media = read_inner(part["attached"], "functionResponse", "parts")
        part["content"] = [Node(at, {"kind": "text", "text": part["content"]}), *media]
    part.pop("attached", None)
    return part


def _explain_misfit(forms: list[Form] | None, piece: Any, at: Path) -> Finding:
    expected = f"the fields {forms[0].keys} of a {forms[0].name}" if forms else "an object of a known kind"
    return Finding(render_path(at), f"observed {describe(piece)}, expected {expected}")


def write_part(api: str, part: Json) -> Any:
    """Return a part, or a tool, in an API's form; one that has none there is its own `native`."""
    kind, content = part["kind"], part.get("content")
    if type(content) is list and api != GEMINI:
        part = {**part, "content": [write_part(api, each) for each in content]}
    form = next((form for form in FORMS[api][kind] if form.needed <= part.keys()), None)
    return fill(form.template, part) if form else part.get("native")


def join_content(content: Any) -> str:
    """Return a result's content as one text: the texts of its parts, other parts as a line in their place."""
    if type(content) is str:
        return content
    return "\n".join(part["text"] if part["kind"] == "text" else render_stand_in(part) for part in content)


def render_stand_in(part: Json) -> str:
    """Return the line of text that takes the place of a part: its kind, its size, its digest."""
    fields = part["native"] if "native" in part else {key: part[key] for key in part if key != "credential"}
    text = json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    data = text.encode("utf-8", "surrogatepass")
    return f"[{name_part(part)} left out: {len(data):,} bytes, SHA-256 {digest_bytes(data)}]"


def name_part(part: Json) -> str:
    """Return the kind of a part, with the vendor's own name for it."""
    native = part.get("native")
    name = part.get("media_type") or (type(native) is dict and (native.get("type") or next(iter(native), "")))
    return f"{part['kind']} ({shorten(show(str(name or 'unknown')))})"


# --- Sessions: a record in neutral form, and back (pure) ---------------------


class SessionError(Exception):
    """A session does not hold, or cannot go where it is sent: `findings` say why."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self.findings = findings


def read_session(record: Any, api: str, model: str | None = None) -> Node:
    """Return a session record in neutral form; `model` names its maker where the record does not.

    `record` is a body or a bare list in the form of `api`, or a neutral session. What the neutral fields do
    not give back exactly is kept beside them as `native`. Raises SessionError for a neutral session that
    does not have its form.
    """
    if api == NEUTRAL:
        return _read_neutral(record, model)
    form = APIS[api]
    body = {form.messages: record} if type(record) is list else record
    messages = body[form.messages]
    settings = {key: body[key] for key in body if key not in (form.messages, form.system, "tools")}
    if settings.get(form.model) and type(settings[form.model]) is str:
        model = str(settings.pop(form.model))
    native: Json = {} if body is record else {"bare": True}
    session = Node((), {**_NEW["session"], "issuer": {"api": api, "model": model}})
    # 1. The system text; in chat it is that of the messages in front.
    roles = [message.get("role") if type(message) is dict else "" for message in messages if api == CHAT]
    lead = len(list(takewhile(lambda role: role in ("system", "developer"), roles)))
    system = messages[:lead] or body.get(form.system, MISSING)
    if system is not MISSING:
        texts = [part["text"] for part in read_system(api, system, []) if part["kind"] == "text"]
        session["system"] = "\n\n".join(texts)
        if write_system(api, session["system"]) != system:
            native["system"] = system
    # 2. The tools.
    if "tools" in body:
        session["tools"] = read_tools(api, body["tools"], [])
        if write_tools(api, session["tools"]) != body["tools"]:
            native["tools"] = body["tools"]
    # 3. All other fields, and the turns.
    session["settings"] = settings
    at = (form.messages,) if body is record else ()
    session["turns"] = _read_turns(session["issuer"], messages, lead, at)
    if native:
        session["native"] = native
    return session


def read_system(api: str, raw: Any, unknown: list[Path]) -> list[Node]:
    """Return the parts of a system text: a text or texts, a message without a role, or messages."""
    if api == MESSAGES:
        pieces = raw if type(raw) is list else [{"type": "text", "text": raw}]
        return [read_part(api, piece, ("system", n), unknown) for n, piece in enumerate(pieces)]
    if api == GEMINI:
        return list(read_turn(api, raw, (APIS[api].system,), unknown)["parts"])
    turns = [read_turn(api, message, ("messages", n), unknown) for n, message in enumerate(raw)]
    return [part for turn in turns for part in turn["parts"]]


def write_system(api: str, text: str) -> Any:
    """Return a system text in an API's form: for chat the messages in front."""
    if api == CHAT:
        return [{"role": "system", "content": text}]
    return {"parts": [{"text": text}]} if api == GEMINI else text


def read_tools(api: str, raw: Any, unknown: list[Path]) -> list[Node]:
    """Return the tools of a body with name, description and parameters; a vendor's own are `other`."""
    listed: list[tuple[Path, Any]] = []
    for place, tool in enumerate(raw if type(raw) is list else [raw]):
        at: Path = ("tools", place) if type(raw) is list else ("tools",)
        group = tool.get("functionDeclarations") if type(tool) is dict else None
        if type(group) is list:
            listed += [((*at, "functionDeclarations", n), each) for n, each in enumerate(group)]
            tool = {key: tool[key] for key in tool if key != "functionDeclarations"}
        if tool or type(group) is not list:
            listed.append((at, tool))
    forms = FORMS[api]["tool"]
    read = [(read_node(forms, each, at, unknown), at, each) for at, each in listed]
    return [node or Node(at, {"kind": "other", "native": each}) for node, at, each in read]


def write_tools(api: str, tools: list[Node]) -> list[Any]:
    """Return tools in an API's form; Gemini has those with a name in one group, in front."""
    named = [{"kind": "tool", **tool} for tool in tools if "name" in tool]
    for tool in named if api == MESSAGES else []:  # it asks for the schema of an object
        schema = tool.get("parameters", {})
        tool["parameters"] = {"type": "object", **schema} if type(schema) is dict else schema
    named = [write_part(api, tool) for tool in named]
    others = [tool["native"] for tool in tools if "name" not in tool]
    return [{"functionDeclarations": named}, *others] if api == GEMINI and named else [*named, *others]


def _read_turns(issuer: Json, messages: list[Any], begin: int, at: Path) -> list[Node]:
    """Return messages from `begin` on as turns; neighbours that hold only results become one turn."""
    turns: list[Node] = []
    came: list[list[Any]] = []
    are_results = False  # all parts of the last turn
    for place, message in enumerate(messages[begin:], begin):
        turn = read_turn(issuer["api"], message, (*at, place), [])
        kinds = [part["kind"] for part in turn["parts"]]
        if are_results and kinds[:1] == ["result"]:
            turns[-1]["parts"] += turn["parts"]
            turns[-1].unknown += turn.unknown
            came[-1].append(message)
        else:
            turns.append(turn)
            came.append([message])
        are_results = {*kinds} == {"result"}
    for turn, own in zip(turns, came):
        if turn["role"] == "assistant":
            turn["issuer"] = issuer
        if write_turn(issuer["api"], turn) != own:
            turn["native"] = own
    _name_results(turns)
    return turns


def read_turn(api: str, message: Any, at: Path, unknown: list[Path]) -> Node:
    """Return one message as a turn; its role is `tool` if it holds a result, "" if it is not known."""
    if type(message) is not dict:
        return Node(at, {"role": "", "parts": [Node(at, {"kind": "other", "native": message})]})
    role = message.get("role", "user" if api == GEMINI else "")
    if api != CHAT or role not in ("tool", "function"):
        known = ("role", *APIS[api].pieces.split())
        unknown += [(*at, key) for key in message if key not in known and message[key] not in (None, [])]
    parts = [read_part(api, piece, place, unknown) for piece, place in _spread(api, message, at)]
    role = _ROLES.get(role, role) if type(role) is str and role in APIS[api].roles.split() else ""
    is_tool = any(part["kind"] == "result" for part in parts)
    return Node(at, {"role": "tool" if is_tool else role, "parts": parts}, unknown)


def write_body(session: Json) -> Any:
    """Return a session whose turns can go to its issuer's API as the body of a request, or as a bare list."""
    api, native = session["issuer"]["api"], session.get("native", {})
    form, system = APIS[api], native.get("system", MISSING)
    if system is MISSING and "system" in session:
        system = write_system(api, session["system"])
    messages = [each for turn in session["turns"] for each in turn.get("native") or write_turn(api, turn)]
    if api == CHAT and system is not MISSING:
        messages = [*system, *messages]
    if native.get("bare"):
        return messages
    model = session["issuer"]["model"]
    body: Json = {**({form.model: model} if form.model and model else {}), **session["settings"]}
    if api != CHAT and system is not MISSING:
        body[form.system] = system
    if "tools" in session:
        body["tools"] = native["tools"] if "tools" in native else write_tools(api, session["tools"])
    return {**body, form.messages: messages}


def write_home(session: Node) -> Any:
    """Return a neutral session as the record of its own API that it came from: the same JSON value.

    Turns of another API are carried there. Raises SessionError where they cannot go.
    """
    api, model = session["issuer"]["api"], session["issuer"]["model"]
    is_home = all(turn.get("issuer", session["issuer"])["api"] == api for turn in session["turns"])
    return write_body(session) if is_home else convert(session, api, model or "")[0]


def keep_limit(settings: Json, api: str) -> Json:
    """Return the token limit of settings as the settings of an API; Messages needs one."""
    limit = find_limit(settings)[1] or (MAX_TOKENS if api == MESSAGES else 0)
    first, _, second = APIS[api].limit.partition(".")
    return {first: {second: limit} if second else limit} if limit else {}


def find_limit(settings: Json) -> tuple[Path, Any]:
    """Return where settings have the token limit, and the limit; ((), None) if nowhere."""
    for first, _, second in (APIS[api].limit.partition(".") for api in (CHAT, MESSAGES, GEMINI)):
        value = settings.get(first)
        value = value.get(second) if second and type(value) is dict else value
        if type(value) is int and value > 0:
            return (first, second) if second else (first,), value
    return (), None


def _read_neutral(record: Json, model: str | None) -> Node:
    """Return a parsed neutral session, whose turns and parts have their places in it as paths."""
    unknown: list[Path] = []

    def read(kind: str, value: Any, *at: str | int) -> Node:
        node = read_node(FORMS[NEUTRAL][kind], value, at, unknown)
        if node is None:
            raise SessionError([_explain_misfit(FORMS[NEUTRAL][kind], value, at)])
        return node

    session = read("session", record)
    session.setdefault("issuer", {"api": None, "model": model})
    for field in ("tools", "turns") if "tools" in session else ("turns",):
        session[field] = [read(field[:-1], value, field, n) for n, value in enumerate(session[field])]
    for turn in session["turns"]:
        parts = enumerate(turn["parts"])
        turn["parts"] = [read_part(NEUTRAL, part, (*turn.at, "parts", n), unknown) for n, part in parts]
        api = turn.get("issuer", session["issuer"])["api"]
        for n, message in enumerate(turn.get("native", []) if api else []):
            read_turn(api, message, (*turn.at, "native", n), turn.unknown)
    if unknown:
        what = "the field {} is of no neutral session of version 1"
        raise SessionError([Finding(render_path(at[:-1]), what.format(show(str(at[-1])))) for at in unknown])
    _name_results(session["turns"])
    return session


# --- Sessions: pairing calls and results (pure) ------------------------------

# The number of the call's turn, the call, and its result (None: it is open).
Pair = namedtuple("Pair", "turn call result")


def pair_results(turns: list[Node]) -> tuple[list[Pair], list[tuple[str, Node]]]:
    """Return all calls in order with their results, and each result without a call, `stray` or `double`.

    A result is one of a call in the turn before: by id, else by tool name and order.
    """
    pairs: list[Pair] = []
    strays: list[tuple[str, Node]] = []
    calls: list[Node] = []
    for number, turn in enumerate([*turns, {"parts": []}]):
        results = [part for part in turn["parts"] if part["kind"] == "result"]
        found: dict[int, Node] = {}  # by the id of the call's node
        by_id: dict[Any, deque[Node]] = defaultdict(deque)
        for call in calls if results else []:
            by_id[call.get("call_id")].append(call)
        unnamed = []
        for result in results:
            queue = by_id.get(result["call_id"]) if "call_id" in result else None
            if queue:
                found[id(queue.popleft())] = result
            else:
                unnamed.append(result)
        by_tool: dict[str, deque[Node]] = defaultdict(deque)
        for call in calls if unnamed else []:
            if id(call) not in found:
                by_tool[call["tool"]].append(call)
        for result in unnamed:
            queue = by_tool.get(result.get("tool", ""))
            if queue and not ("call_id" in result and "call_id" in queue[0]):
                found[id(queue.popleft())] = result
            else:
                strays.append(("double" if result.get("call_id", MISSING) in by_id else "stray", result))
        pairs += [Pair(number - 1, call, found.get(id(call))) for call in calls]
        calls = [part for part in turn["parts"] if part["kind"] == "call"]
    return pairs, strays


def _name_results(turns: list[Node]) -> None:
    """Give each result the name of its call's tool, where it has none."""
    for _, call, result in pair_results(turns)[0]:
        if result is not None:
            result.setdefault("tool", call["tool"])


# --- Sessions: what each API refuses (pure) ----------------------------------

# API | rule | words in the names of the models that have it (all: none) | what the API says
_RULES_TEXT = """
messages | role | | Input should be 'user', 'assistant' or 'system'
messages | no message | | at least one message is required
messages | empty message | | all messages must have non-empty content except for the optional final
    assistant message
messages | empty text | | text content blocks must be non-empty
messages | blank text | | text content blocks must contain non-whitespace text
messages | open | | `tool_use` ids were found without `tool_result` blocks immediately after: {id} ({name})
messages | late result | | `tool_use` ids were found without `tool_result` blocks immediately after:
    text before {id}
messages | stray | | unexpected `tool_use_id` found in `tool_result` blocks: {id}
messages | double | | each tool_use must have a single result. Found multiple `tool_result` blocks
    with id: {id}
messages | repeated id | | `tool_use` ids must be unique: {id}
messages | id | | tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'
messages | name | | tool name {name}: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'
messages | arguments | | tool_use.input: Input should be a valid dictionary, in call {id} ({name})
messages | repeated tool | | Tool names must be unique: {name}
messages | schema | | input_schema: Input should be an object
messages | no signature | | thinking.signature: Field required
messages | foreign | | Invalid `signature` in `thinking` block
messages | last | | This model does not support assistant message prefill. The conversation must end with
    a user message.
messages | last space | | final assistant content cannot end with trailing whitespace
chat | role | | unknown role
chat | no message | | messages must not be empty
chat | empty text | kimi moonshot | text content is empty
chat | open | | An assistant message with 'tool_calls' must be followed by tool messages responding to each
    'tool_call_id'. The following tool_call_ids did not have response messages: {id} ({name})
chat | stray | | messages with role 'tool' must be a response to a preceeding message with 'tool_calls'
chat | double | | messages with role 'tool' must be a response to a preceeding message with 'tool_calls'
chat | id | | tool_call_id  is not found: an id has 1 to 40 characters
chat | name | | tool name {name}: function.name should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'
chat | repeated tool | | tool names must be unique: {name}
chat | schema | | function.parameters: expected an object
chat | type | kimi moonshot | At path 'properties.{name}': type is not defined
chat | no reasoning | kimi-k2 | thinking is enabled but reasoning_content is missing in assistant tool call
    message
chat | some reasoning | deepseek | The reasoning_content in the thinking mode must be passed back to the API
gemini | role | | Please use a valid role: user, model.
gemini | no message | | contents must not be empty
gemini | empty message | | contents.parts must not be empty.
gemini | open | | Please ensure that the number of function response parts is equal to the number of function
    call parts of the function call turn: {id} ({name}) has no response
gemini | stray | | Please ensure that function response turn comes immediately after a function call turn
gemini | double | | Please ensure that function response turn comes immediately after a function call turn
gemini | order | | Please ensure that function call turn comes immediately after a user turn or after a
    function response turn.
gemini | name | | tool name {name}: Invalid function name, it must match [a-zA-Z0-9_.:-]{{1,64}}
gemini | arguments | | functionCall.args: expected an object, in call {id} ({name})
gemini | repeated tool | | Duplicate function declaration found: {name}
gemini | schema | | parameters: expected an object
gemini | unsigned | | Function call is missing a thought_signature in functionCall parts. This is required for
    tools to work correctly, and missing thought_signature may lead to degraded model performance. Additional
    data, function call `default_api:{name}` , position {position}.
"""
_RULE_LINES = re.sub("\n +", " ", _RULES_TEXT.strip()).split("\n")
RULES = {
    (api, rule): (models.split(), words)
    for api, rule, models, words in (re.split(r" ?\| ?", line, maxsplit=3) for line in _RULE_LINES)
}


def find_version(model: str) -> tuple[int, int]:
    """Return the version in a model's name, such as (4, 5); (99, 0) where there is none."""
    found = re.search(r"(\d+)(?:[-.](\d{1,2}))?(?!\d)", model)
    return (int(found[1]), int(found[2] or 0)) if found else (99, 0)


def find_vendor(model: str | None) -> str:
    """Return the vendor of a chat model: the first word of its name; moonshot is kimi."""
    word = re.match("[a-z0-9]*", (model or "").rpartition("/")[2].lower())
    return re.sub("^moonshot.*", "kimi", word[0] if word else "")


def find_refusals(api: str, body: Any, foreign: Container[str] = ()) -> Findings:
    """Return what an API is known to refuse in the body of a request, in its own words, at most 10,000.

    `foreign` are the credentials that another has issued. The body must have a list of messages.
    """
    return find_session_refusals(read_session(body, api), foreign)


def find_session_refusals(session: Node, foreign: Container[str] = ()) -> Findings:
    """Return find_refusals for a record that was read with read_session."""
    api, model = session["issuer"]["api"], (session["issuer"]["model"] or "").lower()
    native = session.get("native", {})
    parts = read_system(api, native["system"], []) if "system" in native else []
    parts += [tool for tool in session.get("tools", []) if type(tool.get("native")) is not dict]
    parts += list_parts(session)

    def explain() -> Iterator[Finding]:
        for part in parts:
            yield from find_misfit(api, part)
        for rule, node, name in chain(_walk_tools(session), _walk(session, model, foreign)):
            models, words = RULES.get((api, rule), ([], ""))
            if words and (not models or any(word in model for word in models)):
                shown = {"name": shorten(show(name)), "id": shorten(show(str(node.get("call_id", ""))))}
                position = next((step + 1 for step in node.at if type(step) is int), 0)
                yield Finding(render_path(node.at), words.format(position=position, **shown))

    return cut(explain())


def list_parts(session: Node) -> list[Node]:
    """Return all parts of a session, those inside results behind the others."""
    parts = [part for turn in session["turns"] for part in turn["parts"]]
    return parts + [each for part in parts if type(part.get("content")) is list for each in part["content"]]


def find_misfit(api: str, part: Node) -> Findings:
    """Return that a piece is not an object, or does not have the form that its name asks for, if so."""
    if part.get("kind") != "other":
        return []
    piece, forms = part["native"], _NAMED[api].get(name_piece(api, part["native"]))
    if type(piece) is dict and not forms:
        return []
    return [_explain_misfit(forms, piece, part.at)]


def _walk(session: Node, model: str, foreign: Container[str]) -> Iterator[tuple[str, Node, str]]:
    """Yield (rule, where, name) for each rule that is broken in a session's turns, whichever API has it."""
    turns, thinking = session["turns"], session["settings"].get("thinking")
    last = turns[-1] if turns else Node((), {"role": "", "parts": []})
    kinds = [{part["kind"] for part in turn["parts"] if "text" in part} for turn in turns]
    reasons = ["reasoning" in each for each in kinds]
    some_reason, before = any(reasons), "assistant"
    users = [-1, *(place for place, turn in enumerate(turns) if turn["role"] in ("user", "system"))]
    for place, turn in enumerate(turns):
        calls = [part for part in turn["parts"] if part["kind"] == "call"]
        if turn["role"] not in ("user", "assistant", "system", "tool"):
            yield "role", turn, ""
        if not turn["parts"] and (turn is not last or turn["role"] != "assistant"):
            yield "empty message", turn, ""
        yield from _walk_parts(session["issuer"]["api"], turn, foreign)
        if calls and turn["role"] == "assistant":
            if before == "assistant":
                yield "order", turn, ""
            if place > users[-1] and "credential" not in calls[0] and not re.search("gemini-[12]", model):
                yield "unsigned", calls[0], calls[0]["tool"]
            if not reasons[place] and (type(thinking) is not dict or thinking.get("type") != "disabled"):
                yield "no reasoning", turn, ""
            if not reasons[place] and some_reason:
                yield "some reasoning", turn, ""
        before = turn["role"]
    texts = [part["text"] for part in last["parts"] if part["kind"] == "text"]
    if not turns:
        yield "no message", last, ""
    if last["role"] == "assistant" and find_version(model) > (4, 5):
        yield "last", last, ""
    if last["role"] == "assistant" and texts and texts[-1] != texts[-1].rstrip():
        yield "last space", last, ""
    pairs, strays = pair_results(turns)
    seen: set[str] = set()
    for _, call, result in pairs:
        if result is None:
            yield "open", call, call["tool"]
        if call.get("call_id", "") in seen:
            yield "repeated id", call, call["tool"]
        seen.update([call["call_id"]] if "call_id" in call else [])
    for rule, result in strays:
        yield rule, result, ""


def _walk_parts(api: str, turn: Node, foreign: Container[str]) -> Iterator[tuple[str, Node, str]]:
    is_late = False
    for part in turn["parts"]:
        kind = part["kind"]
        if kind == "text" and not part["text"].strip():
            yield "blank text" if part["text"] else "empty text", part, ""
        elif kind == "reasoning" and "credential" not in part:
            yield "no signature", part, ""
        elif kind == "reasoning" and (not part["credential"] or part["credential"] in foreign):
            yield "foreign", part, ""
        elif kind == "result" and is_late:
            yield "late result", part, ""
        elif kind == "call":
            if not re.fullmatch(APIS[api].tool_name, part["tool"]):
                yield "name", part, part["tool"]
            if "call_id" in part and not re.fullmatch(APIS[api].call_id, part["call_id"]):
                yield "id", part, ""
            if type(part["arguments"]) is not dict:
                yield "arguments", part, part["tool"]
        is_late = is_late or kind != "result"


def _walk_tools(session: Node) -> Iterator[tuple[str, Node, str]]:
    seen: set[str] = set()
    for tool in [tool for tool in session.get("tools", []) if "name" in tool]:
        name, schema = tool["name"], tool.get("parameters", {})
        if not re.fullmatch(APIS[session["issuer"]["api"]].tool_name, name):
            yield "name", tool, name
        if name in seen:
            yield "repeated tool", tool, name
        seen.add(name)
        if type(schema) is not dict or schema.get("type", "object") != "object":
            yield "schema", tool, name
        for untyped in _find_untyped(schema):
            yield "type", tool, untyped


def _find_untyped(schema: Any) -> Iterator[str]:
    """Yield the properties of a schema, at any level, that say nothing of their type."""
    properties = schema.get("properties") if type(schema) is dict else None
    for name, part in properties.items() if type(properties) is dict else ():
        if type(part) is dict and not part.keys() & {"type", "anyOf", "oneOf", "allOf", "$ref"}:
            yield name
        yield from _find_untyped(part)
        yield from _find_untyped(part.get("items") if type(part) is dict else None)


# --- Sessions: the way to another API (pure) ---------------------------------

PLACEHOLDER = "skip_thought_signature_validator"  # Google documents it for calls that its model did not make
_TAKES_REASONING = re.compile("kimi|moonshot|deepseek", re.IGNORECASE)  # chat models that have a field for it
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_UNCLEAR = (
    "The result of this call was not recorded. The operation is unclear: it may have happened."
    " Look it up; do not repeat it."
)


class Move:
    """A session on its way to an API and a model: which turns go as they came, what is lost, what stops it.

    `is_home`: the API, and in chat the vendor, is the session's own; `is_whole`: so are the model and all
    turns.
    """

    def __init__(self, session: Node, api: str, model: str, options: Container[str] = ()) -> None:
        self.session, self.api, self.model, self.options = session, api, model, options
        self.losses: dict[str, list[Any]] = {}  # by what is lost: its first path, and how often
        self.refusals: dict[str, list[Any]] = {}
        self.is_home = "fresh" not in options and self._is_kin(session["issuer"])
        self.owns: list[bool] = []  # whether a turn goes as it came; results only with their calls
        for turn in session["turns"]:
            role, issuer = turn["role"], turn["issuer"] if "issuer" in turn else session["issuer"]
            needs_model = api == MESSAGES and role == "assistant"
            is_own = self._is_kin(issuer) and (not needs_model or issuer["model"] == model)
            self.owns.append(is_own and (role != "tool" or self.owns[-1:] != [False]))
        own_model = session["issuer"]["model"] or (model if api == GEMINI else "")
        self.is_whole = self.is_home and own_model == model and all(self.owns)

    def _is_kin(self, issuer: Json) -> bool:
        if (issuer["api"], self.api) != (CHAT, CHAT):
            return bool(issuer["api"] == self.api)
        vendor = find_vendor(issuer["model"])
        return bool(vendor) and vendor == find_vendor(self.model)

    def lose(self, what: str, at: Path) -> None:
        """Note that something at a path does not go, or not as it was."""
        self.losses.setdefault(what, [at, 0])[1] += 1

    def refuse(self, what: str, at: Path) -> None:
        """Note what stops the session."""
        self.refusals.setdefault(what, [at, 0])[1] += 1

    def leave_out(self, part: Node, where: str = "") -> None:
        """Refuse what has no place, or note that it is left out, as the options say."""
        if "leave_out" in self.options:
            self.lose(f"{name_part(part)}{where} is left out", part.at)
        else:
            self.refuse(f"{name_part(part)}{where} has no place there; --leave-out leaves it out", part.at)

    def renew(self, turn: Node, parts: list[Node]) -> Node:
        """Return a turn with other parts; the fields that a neutral turn has no place for are lost."""
        for at in turn.unknown:
            self.lose(f"the field {show(str(at[-1]))} does not go", at)
        return Node(turn.at, {"role": turn["role"], "parts": parts})


def _list_noted(noted: dict[str, list[Any]]) -> Findings:
    return [
        Finding(render_path(at), f"{what} ({n:,} times)" if n > 1 else what)
        for what, (at, n) in noted.items()
    ]


def convert(session: Node, api: str, model: str, options: Container[str] = ()) -> tuple[Any, Findings]:
    """Return the body of the next request at an API and model, and what is lost on the way.

    `options` may hold no_reasoning, unclear and leave_out. Raises SessionError with what keeps the session
    from going there, what the receiving API is known to refuse included; at home that is one of the losses.
    """
    move, turns = Move(session, api, model, options), session["turns"]
    pairs, strays = pair_results(turns)
    last = turns[-1] if turns else Node((), {"role": "", "parts": []})
    if last["role"] == "assistant" and all(part["kind"] != "call" for part in last["parts"]):
        say = move.lose if move.is_whole else move.refuse
        say("it ends on the assistant's answer; append the user's next message", last.at)
    issuer = {"api": api, "model": model}
    moved = Node((), {**session, "issuer": issuer})
    if not move.is_whole:
        _note_rest(move)
        for rule, result in strays:
            move.refuse(f"a {rule} result: no call in the turn before waits for it", result.at)
        tools = [tool for tool in session.get("tools", []) if "name" in tool or move.is_home]
        native = {**session.get("native", {}), "bare": False} if move.is_home else {}
        settings = keep_limit(session["settings"], api)
        moved = Node((), {"issuer": issuer, "settings": settings, "native": native})
        kept = {"system": session.get("system"), "tools": tools}
        moved.update({key: each for key, each in kept.items() if each})
    moved["turns"] = _join_turns(move, _settle_calls(move, pairs))
    if move.refusals:
        raise SessionError(cut(_list_noted(move.refusals)))
    refusals = find_session_refusals(moved)
    if refusals and not move.is_whole:
        raise SessionError(refusals)
    warnings = [Finding(each.path, f"its API would refuse: {each.message}") for each in refusals]
    return write_body(moved), _list_noted(move.losses) + warnings


def _note_rest(move: Move) -> None:
    """Note which settings and fields of a body do not go; refuse a vendor's own tools."""
    session, api = move.session, move.session["issuer"]["api"]
    unknown = [at for is_own, turn in zip(move.owns, session["turns"]) if not is_own for at in turn.unknown]
    kept = find_limit(session["settings"])[0]
    for key, value in session["settings"].items():
        is_outer = kept[:1] == (key,) and type(value) is dict  # the token limit is inside
        inner: list[Path] = [(key, name) for name in value] if is_outer else [(key,)]
        for path in inner:
            if path != kept and value is not None:
                move.lose(f"the setting {show(str(path[-1]))} does not go", path)
    native = session.get("native", {}) if api and not move.is_home else {}
    if "tools" in native:
        read_tools(api, native["tools"], unknown)
    for tool in session.get("tools", []) if not move.is_home else []:
        if "name" not in tool:
            move.leave_out(tool, " among the tools")
    for part in read_system(api, native["system"], unknown) if "system" in native else []:
        if part["kind"] != "text":
            move.leave_out(part, " in the system text")
    for path in unknown:
        move.lose(f"the field {show(str(path[-1]))} does not go", path)


def _settle_calls(move: Move, pairs: list[Pair]) -> Iterator[tuple[bool, Node]]:
    """Yield (is own, turn): a foreign call has an id of ours, and its result directly behind, in order."""
    used = {pair.call.get("call_id") for pair in pairs if move.owns[pair.turn]}
    minted = (name for name in map("call_{}".format, count(1)) if name not in used)
    results = {id(pair.call): pair.result for pair in pairs}
    settled: set[int] = set()  # results that are written behind their calls
    for is_own, turn in zip(move.owns, move.session["turns"]):
        calls = [part for part in turn["parts"] if part["kind"] == "call"]
        # An API wants the results of one turn together.
        if is_own and ("unclear" not in move.options or all(results[id(call)] for call in calls)):
            calls = []
        renewed: dict[int, Node] = {}
        behind: list[Node] = []
        seen: set[Any] = set()
        for call in calls:
            named = {key: call[key] for key in ("tool", "call_id") if key in call}
            if not is_own:
                _look_at_call(move, call, call.get("call_id", call.at) in seen)
                seen.add(call.get("call_id", call.at))
                named["call_id"] = next(minted)
                renewed[id(call)] = Node(call.at, {**call, **named})
            result = results[id(call)] or _make_unclear(move, call)
            settled.add(id(result))
            behind.append(Node(result.at, {**result, **named}))
        parts = [renewed.get(id(part), part) for part in turn["parts"] if id(part) not in settled]
        is_left = parts or not turn["parts"]
        if not is_own:
            turn = _carry_turn(turn, parts, move)
        elif len(parts) < len(turn["parts"]):
            turn = move.renew(turn, parts)
        if is_left:
            yield is_own, turn
        if behind:
            yield False, _carry_turn(Node(turn.at, {"role": "tool"}), behind, move)


def _join_turns(move: Move, settled: Iterator[tuple[bool, Node]]) -> list[Node]:
    """Return turns as their API wants them beside each other; what it asks for in foreign ones is added."""
    turns: list[Node] = []
    foreign: list[Node] = []  # the assistant's since the user spoke last
    asks_reasons = not move.is_whole and move.api == CHAT and _TAKES_REASONING.search(move.model)
    is_new = False  # the last turn is not its own
    for is_own, turn in settled:
        is_reply = turn["role"] == "assistant"
        kinds = {part["kind"] for part in turn["parts"]}
        if move.api == GEMINI and is_new and not is_own and is_reply == (turns[-1]["role"] == "assistant"):
            turns[-1]["parts"] += turn["parts"]  # Gemini wants a user's and a model's in turn
            continue
        if asks_reasons and "call" in kinds and "reasoning" not in kinds:
            empty = Node(turn.at, {"kind": "reasoning", "text": ""})
            turn = move.renew(turn, [empty, *turn["parts"]])
        if turn["role"] in ("user", "system") and (not turns or turns[-1]["role"] != "tool"):
            foreign = []
        elif is_reply and not is_own:
            foreign.append(turn)
        turns.append(turn)
        is_new = not is_own
    is_loop = bool(turns) and {part["kind"] for part in turns[-1]["parts"]} == {"result"}
    for turn in foreign:
        calls = [part for part in turn["parts"] if part["kind"] == "call"]
        if move.api == GEMINI and calls:
            why = "placeholder signature on a call: documented for moved history, in no recorded run"
            move.lose(why, calls[0].at)
            calls[0]["credential"] = PLACEHOLDER
        if move.api == MESSAGES and is_loop:
            why = "no thinking in this tool loop: its earlier turns have none; Claude does not say so"
            move.lose(why, turn.at)
    return turns


def _look_at_call(move: Move, call: Node, is_repeated: bool) -> None:
    """Refuse a foreign call that cannot go; note an integer that Gemini may not read whole."""
    name = show(f"{call.get('call_id', '')} ({call['tool']})".lstrip())
    if is_repeated:
        move.refuse(f"two calls of one turn have the id {name}", call.at)
    if type(call["arguments"]) is not dict:
        move.refuse(f"the arguments of call {name} are not a JSON object", call.at)
    integers: list[str] = []
    if move.api == GEMINI:
        json.loads(_render_compact(call["arguments"]), parse_int=integers.append)
    if any(abs(int(digits)) > 2**53 for digits in integers):
        move.lose("an integer above 2^53 goes as it is, but Gemini's numbers are doubles", call.at)


def _make_unclear(move: Move, call: Node) -> Node:
    """Return a result that says that an open call is unclear; it is noted or refused, as the options say."""
    name = show(f"{call.get('call_id', '')} ({call['tool']})".lstrip())
    if "unclear" in move.options:
        move.lose(f"open call {name}: its result says that it is unclear", call.at)
    else:
        move.refuse(f"open call: call {name} has no result; --unclear gives it one that says so", call.at)
    return Node(call.at, {"kind": "result", "content": _UNCLEAR, "failed": False})


def _carry_turn(turn: Node, given: list[Node], move: Move) -> Node:
    """Return a foreign turn with parts as they can go: carried, replaced by a line, left out or refused."""
    role, issuer = turn["role"], turn["issuer"] if "issuer" in turn else move.session["issuer"]
    if role == "system":
        role = "user"
        move.lose("late system message: it goes as the user's", turn.at)
    elif role not in ("user", "assistant", "tool"):
        move.refuse("unknown role", turn.at)
    maker = issuer["model"] or issuer["api"] or "another model"
    parts = [carried for part in given for carried in _carry_part(part, role, maker, move)]
    kinds = [part["kind"] for part in parts]
    if move.api == CHAT and "call" in kinds and "text" in kinds[kinds.index("call") :]:
        move.lose("text behind a call: in chat it comes before the call", turn.at)
    if not parts and role == "assistant" and move.api != CHAT:  # where an empty message is refused
        move.lose("a message of which nothing can go is a line that says so", turn.at)
        parts.append(Node(turn.at, {"kind": "text", "text": "[empty message]"}))
    return Node(turn.at, {"role": role, "parts": parts})


def _carry_part(part: Node, role: str, maker: str, move: Move) -> list[Node]:
    """Return what goes of a foreign part; `role` is that of its turn, or `result` for a part of a result."""
    kind, api = part["kind"], move.api
    if "credential" in part:
        move.lose("credential left out: it is worth something to its issuer alone", part.at)
        part = Node(part.at, {key: part[key] for key in part if key != "credential"})
    if kind == "text" and part["text"].isspace() and api == MESSAGES and role == "assistant":
        move.lose("a text of white space alone is left out", part.at)
        return []
    if kind == "text":
        return [part] if part["text"] else []
    if kind == "reasoning":
        return _carry_reasoning(part, maker, move)
    if kind == "result":
        if part["failed"] and api == CHAT:
            move.lose("failed result: chat has no mark for it, its text goes as it is", part.at)
        if type(part["content"]) is list:
            content = [new for each in part["content"] for new in _carry_part(each, "result", maker, move)]
            if api == GEMINI and len(content) > 1:
                move.lose("a result of several parts goes as their texts, joined by a line feed", part.at)
            is_text = [each["kind"] for each in content] == ["text"]
            return [Node(part.at, {**part, "content": content[0]["text"] if is_text else content or ""})]
    elif move.is_home and "native" in part and role != "assistant":
        return [part]
    elif kind != "call" and (part.get("media_type") not in _IMAGES or role not in APIS[api].images.split()):
        move.leave_out(part, " in a tool result" if role == "result" else "")
        return [Node(part.at, {"kind": "text", "text": render_stand_in(part)})]
    return [part]


def _carry_reasoning(part: Node, maker: str, move: Move) -> list[Node]:
    """Return reasoning where the target has a field for it, else a line of text that names the model."""
    text = part.get("text", "")
    if not text.strip():
        return []
    if "no_reasoning" in move.options:
        move.lose("reasoning left out, as --no-reasoning asks", part.at)
        return []
    if move.api == GEMINI or (move.api == CHAT and _TAKES_REASONING.search(move.model)):
        return [part]
    move.lose("reasoning goes as text; a recorded receiver copied such a line into its answers", part.at)
    return [Node(part.at, {"kind": "text", "text": f"[reasoning of {maker}] {text}"})]


# --- Sessions: a checkpoint of the facts, for a fresh session (pure) ---------

_FRESH_PROMPT = """\
Go on from the recorded state of an earlier session, given below as facts.
Do not claim access to earlier reasoning.
Do not repeat a completed operation: its result is recorded.
An operation that is listed as unclear may have happened: say that it must be looked up, and do not repeat it.
Facts: """


def list_operations(turns: list[Node]) -> Iterator[tuple[str, Node, Node | None]]:
    """Yield (operation id, call, result): the id is TOOL-N, where N counts the calls of that tool."""
    counts: dict[str, int] = defaultdict(int)
    for _, call, result in pair_results(turns)[0]:
        counts[call["tool"]] += 1
        yield f"{call['tool']}-{counts[call['tool']]}", call, result


def build_session_checkpoint(session: Node, objective: str | None = None) -> Json:
    """Return the checkpoint of the facts in a session: what was asked, and each operation with its result.

    The assistant's words are not in it. Raises SessionError for a lone surrogate, with its place.
    """
    try:
        digest = digest_bytes(canonical_json(_strip(session)))
    except InputError as error:
        nodes = [*list_parts(session), *session.get("tools", [])]
        bad = [node.at for node in nodes if re.search("[\ud800-\udfff]", _render_compact(node))]
        raise SessionError([Finding(render_path(bad[0] if bad else ()), error.message)]) from error
    turns = [turn for turn in session["turns"] if turn["role"] != "assistant"]
    parts = [(turn["role"], part) for turn in turns for part in turn["parts"]]
    said = [(role, part["text"]) for role, part in parts if part["kind"] == "text" and part["text"]]
    texts, asked = [text for _, text in said], [session["system"]] if session.get("system") else []
    users = [place for place, (role, _) in enumerate(said) if role != "system"]
    if users and objective is None:
        asked.append(texts.pop(users[-1]))
    operations: dict[str, list[Json]] = {"completed": [], "unclear": []}
    for name, call, result in list_operations(session["turns"]):
        operation = {"operation_id": name, "operation": call["tool"], "arguments": call["arguments"]}
        if result is not None:
            text = join_content(result["content"])
            operation.update(status="failed" if result["failed"] else "recorded", result=text)
            operation["result_sha256"] = digest_bytes(text.encode())
        operations["unclear" if result is None else "completed"].append(operation)
    return {
        "schema_version": 1,
        "task_id": f"session-{digest[:12]}",
        "objective": "\n\n".join(asked) if objective is None else objective,
        "background": texts,
        "source_sha256": digest,
        **operations,
        "pending": ["Answer the user's last message"],
        "side_effects": [],
    }


def _strip(node: Json) -> Json:
    """Return a neutral session without `native` and `credential`, which belong to its vendor."""
    stripped = {key: node[key] for key in node if key not in ("native", "credential")}
    for field in ("turns", "tools", "parts", "content"):
        if type(stripped.get(field)) is list:
            stripped[field] = list(map(_strip, stripped[field]))
    return stripped


def render_session_handoff(checkpoint: Json) -> str:
    """Return the handoff prompt of a session: how to go on, and the facts without digests."""
    hidden = ("schema_version", "task_id", "source_sha256", "result_sha256")
    facts = {key: value for key, value in checkpoint.items() if key not in hidden}
    facts["completed"] = [
        {key: value for key, value in operation.items() if key not in hidden}
        for operation in facts["completed"]
    ]
    return f"{_FRESH_PROMPT}{canonical_json(facts).decode()}\n"


def convert_fresh(session: Node, api: str, model: str, objective: str | None = None) -> tuple[Any, Findings]:
    """Return the body that begins a fresh session from the facts of another, and what stays behind.

    Raises SessionError for a tool name that the API forbids, and for a lone surrogate.
    """
    handoff = render_session_handoff(build_session_checkpoint(session, objective))
    turn = Node((), {"role": "user", "parts": [Node((), {"kind": "text", "text": handoff})]})
    fresh = Node((), {**session, "system": "", "turns": [turn]})
    body, losses = convert(fresh, api, model, ("leave_out", "fresh"))
    move = Move(session, api, model)
    for turn in session["turns"]:
        for part in turn["parts"]:
            if part["kind"] in ("media", "other"):
                move.lose(f"{name_part(part)} stays behind", part.at)
            elif part["kind"] in ("text", "reasoning") and turn["role"] == "assistant":
                move.lose("the assistant's words stay behind: they are no evidence", part.at)
    for _, result in pair_results(session["turns"])[1]:
        move.lose("a result of no call stays behind", result.at)
    return body, losses + _list_noted(move.losses)


# --- Replies: a whole message, a finished turn, its answer (pure) ------------

_CUT, _REFUSED = "the answer was cut off by the token limit", "the model refused"
_STOP_REASONS = {
    **dict.fromkeys(("max_tokens", "length", "MAX_TOKENS"), _CUT),
    **dict.fromkeys(("refusal", "content_filter", "SAFETY", "PROHIBITED_CONTENT", "BLOCKLIST"), _REFUSED),
    "model_context_window_exceeded": "the answer was cut off by the context window",
    "pause_turn": "the turn was paused before its end",
    **dict.fromkeys(("tool_use", "tool_calls"), "the model waits for a tool"),
}
_TELLING = {"choices": CHAT, "object": CHAT, "usageMetadata": GEMINI, "modelVersion": GEMINI}
_TELLING.update(candidates=GEMINI, promptFeedback=GEMINI)
_CALLING = re.compile("(?s).*tool_use|function(_call|Call)?|custom")  # names of pieces that call something


def read_error(reply: Any) -> Json:
    """Return the type and the message of a parsed error of any API, {} for any other reply."""
    reply = reply[0] if type(reply) is list and len(reply) == 1 else reply  # as Gemini has it at times
    error, feedback = [reply.get(key) if type(reply) is dict else None for key in ("error", "promptFeedback")]
    if type(feedback) is dict and feedback.get("blockReason"):
        error = {"type": feedback["blockReason"], "message": "the prompt was blocked"}
    known = error if type(error) is dict else {"message": error}
    kinds = [str(known[key]) for key in ("type", "status", "code") if known.get(key)]
    return {"type": [*kinds, "error"][0], "message": known.get("message")} if error else {}


def describe_api_error(reply: Any) -> str:
    """Return what a parsed error body of any API says, or "" for any other reply."""
    error = read_error(reply)
    return f"{shorten(show(error['type']))}: {describe(error['message'] or MISSING)}" if error else ""


def tell_reply(reply: Any) -> str:
    """Return the API whose reply, or piece of a reply, this is, by its fields; Messages if by none."""
    known = reply if type(reply) is dict and reply.get("type") != "message" else {}
    return next((_TELLING[field] for field in _TELLING if field in known), MESSAGES)


def open_reply(reply: Json, api: str) -> tuple[Any, Path, Any, Path]:
    """Return a reply's message and the path to it, and what it stopped with and the path to that."""
    form = APIS[api]
    if not form.choices:
        return reply, (), reply.get(form.stop, MISSING), (form.stop,)
    listed, at = reply.get(form.choices), (form.choices, 0)
    first = listed[0] if type(listed) is list and listed and type(listed[0]) is dict else {}
    message, stop = first.get(form.message, MISSING), first.get(form.stop, MISSING)
    return message, (*at, form.message), stop, (*at, form.stop)


def find_reply_findings(reply: Any, api: str | None = None) -> Findings:
    """Return what keeps a parsed reply from being a whole message of its API; its blocks are not judged."""
    api = api or tell_reply(reply)
    form, error = APIS[api], describe_api_error(reply)
    if error:
        return [Finding("$", f"observed an error ({error}), expected a message")]
    if type(reply) is not dict:
        return list_differences(reply, Words("a message"))
    listed = reply.get(form.choices, MISSING)
    if form.choices and (type(listed) is not list or len(listed) != 1 or type(listed[0]) is not dict):
        return list_differences(listed, Words("a list of one object"), form.choices)
    message, at, stop, _ = open_reply(reply, api)
    if api == GEMINI and type(stop) is str and (message is MISSING or message in ({}, {"role": "model"})):
        return []  # it ended before its first part, and says by what
    if type(message) is not dict:
        return list_differences(message, Words("a message"), *at)
    content, is_named = message.get(form.content, MISSING), api != GEMINI
    whole = {**message, **({"type": "message"} if api == MESSAGES else {}), "role": form.assistant}
    if type(content) is list:
        no_block = Words("a block with a type" if is_named else "an object")
        good = [type(block) is dict and (not is_named or type(block.get("type")) is str) for block in content]
        whole[form.content] = [block if is_good else no_block for block, is_good in zip(content, good)]
    elif api != CHAT or not (content is None or content is MISSING or type(content) is str):
        whole[form.content] = Words("a list of blocks")
    return list_differences(message, whole, *at)


def read_reply(reply: Any, api: str) -> Node | None:
    """Return the message of a reply as the next turn of a session, None if it holds none."""
    message, at, _, _ = open_reply(reply, api) if type(reply) is dict else (None, (), None, ())
    known = ("role", *APIS[api].pieces.split())
    fields = {key: message[key] for key in message if key in known} if type(message) is dict else {}
    if not fields:
        return None
    turn, model = read_turn(api, fields, at, []), reply.get(APIS[api].maker)
    turn.update(role="assistant", issuer={"api": api, "model": model if type(model) is str else None})
    if write_turn(api, turn) != [fields]:
        turn["native"] = [fields]
    return turn


def _explain_stop(stop: Any, right: Any, at: Path) -> Findings:
    said = f" ({_STOP_REASONS[str(stop)]})" if str(stop) in _STOP_REASONS else ""
    return [explain_difference(*one, said) for one in find_differences(stop, right, *at)]


def _find_refused(reply: Json, api: str) -> Findings:
    """Return that a reply of chat is whole, but a refusal."""
    message, at, _, _ = open_reply(reply, api)
    refusal = message.get("refusal") if api == CHAT and type(message) is dict else None
    return list_differences(refusal, Words(f"null ({_REFUSED})"), *at, "refusal") if refusal else []


def find_step_findings(reply: Json, tool: str | None = None, api: str | None = None) -> Findings:
    """Return why a whole message does not fit its step, a wrong stop first.

    With `tool` it must be one call of that tool, with no arguments and with an id where its API has one;
    without, a finished answer with no call. Texts must hold text; all other blocks are left alone.
    """
    api = api or tell_reply(reply)
    form, (_, at, stop, stop_at) = APIS[api], open_reply(reply, api)
    right = (form.calling if tool else form.answered).split()[0]
    turn = read_reply(reply, api)
    parts = turn["parts"] if turn else []
    findings = _find_refused(reply, api) + _explain_stop(stop, right, stop_at)
    return findings + cut(_find_bad_blocks(api, parts, tool, (*at, form.content)))


def _find_bad_blocks(api: str, parts: list[Node], tool: str | None, at: Path) -> Iterator[Finding]:
    expected, calls = Words(f"exactly one call of {tool}" if tool else "no tool call"), 0
    for part in parts:
        name = name_piece(api, part.get("native"))
        misfits = find_misfit(api, part) if name == "text" or _CALLING.fullmatch(name) else []
        is_call = part["kind"] == "call" or bool(_CALLING.fullmatch(name))
        calls += is_call
        if part["kind"] == "call" and tool and calls == 1:
            is_id = re.fullmatch("[!-~]+", part.get("call_id", "-" if api == GEMINI else ""))
            call_id = {} if is_id else {"call_id": Words("a tool call id")}
            right = write_part(api, {**part, "tool": tool, "arguments": {}, **call_id})
            yield from explain_differences(write_part(api, part), right, *part.at)
        elif is_call and not (tool and calls == 1 and misfits):
            yield explain_difference(part.at, write_part(api, part), expected)
        else:
            yield from misfits
    if tool and not calls:
        yield explain_difference(at, Words("no tool call"), expected)


def join_text(reply: Json, api: str | None = None) -> str:
    """Return the visible text of a reply that passed find_step_findings."""
    turn = read_reply(reply, api or tell_reply(reply))
    return "".join(part["text"] for part in turn["parts"] if part["kind"] == "text") if turn else ""


def find_answer(reply: Any) -> tuple[Findings, Any]:
    """Return what keeps a parsed reply of any API from being a finished answer, and the answer's value.

    A good answer may be null: only where nothing was found is there one.
    """
    findings = find_reply_findings(reply) or find_step_findings(reply)
    try:
        return findings, None if findings else parse_json(join_text(reply))
    except InputError as error:
        return [Finding(f"the answer, {error.path}", error.message)], None


def judge_reply(session: Node, reply: Any, api: str | None = None) -> tuple[Node | None, Findings]:
    """Return a reply as the session's next turn (None if it holds none), and why it must not be acted on.

    Findings: not whole, cut or refused, a call of a tool that the session does not have, arguments that are
    not an object, a call that repeats a completed or an unclear operation.
    """
    api = api or tell_reply(reply)
    findings = find_reply_findings(reply, api)
    turn = read_reply(reply, api)
    if turn is None and findings:
        return None, findings
    form, (_, _, stop, at) = APIS[api], open_reply(reply, api)
    parts = turn["parts"] if turn else []
    calls = [part for part in parts if part["kind"] == "call"]
    findings += _find_refused(reply, api)
    if stop not in f"{form.answered} {form.calling if calls else ''}".split():
        findings += _explain_stop(stop, Words("the end of a turn, or a tool call"), at)
    findings += [finding for part in parts for finding in find_misfit(api, part)]
    return turn, cut([*findings, *_find_bad_calls(session, calls)])


def _find_bad_calls(session: Node, calls: list[Node]) -> Iterator[Finding]:
    names = {tool["name"] for tool in session.get("tools", []) if "name" in tool}
    is_bare = session.get("native", {}).get("bare")  # a list of messages does not say what tools there are
    done: dict[tuple[str, str], str] = {}
    for name, call, _ in list_operations(session["turns"]):
        done.setdefault(_identify(call), name)
    for call in calls:
        path, tool = render_path(call.at), show(call["tool"])
        if not is_bare and call["tool"] not in names:
            yield Finding(path, f"calls {tool}, which is not a tool of the session")
        if type(call["arguments"]) is not dict:
            yield Finding(path, f"the arguments of {tool} are not a JSON object")
        elif is_too_deep(call["arguments"], REPLY_DEPTH_LIMIT):
            yield Finding(path, f"the arguments of {tool} are nested deeper than {REPLY_DEPTH_LIMIT} levels")
        if _identify(call) in done:
            yield Finding(path, f"repeats {show(done[_identify(call)])}")


def _identify(call: Json) -> tuple[str, str]:
    """Return what is equal for two calls of one tool with the same arguments, numbers compared by value."""

    def read_number(digits: str) -> float:
        number = float(digits)
        return int(number) if number.is_integer() else number

    level = json.loads(json.dumps(call["arguments"]), parse_float=read_number)
    return call["tool"], json.dumps(level, sort_keys=True)


# --- Streams: events (pure) --------------------------------------------------


def list_events(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the data of each whole event (server-sent events, WHATWG HTML 9.2).

    An event counts after its blank line. Of a JSON array, which Gemini may send instead, each whole object
    is an event without a name. Raises InputError for more than 64 MiB.
    """
    if len(data) > INPUT_LIMIT_BYTES:
        raise InputError(f"byte {INPUT_LIMIT_BYTES}", f"longer than {INPUT_LIMIT_BYTES:,} bytes")
    data = data.removeprefix(BYTE_ORDER_MARK.encode())
    if re.match(rb"\s*[\[{]", data):
        yield from (("", item) for item in _split_array(data.decode("utf-8", "surrogateescape")))
        return
    name, lines = "", list[bytes]()
    for match in re.finditer(rb"([^\r\n]*)(\r\n?|\n|\Z)", data):
        field, _, value = match[1].partition(b":")
        if not match[2]:
            return  # a line without its end has not arrived
        if not match[1]:
            yield from [(name, b"\n".join(lines))] if any(lines) else []
            name, lines = "", []
        elif field == b"data":
            lines.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode("utf-8", "replace")


def _split_array(text: str) -> Iterator[bytes]:
    """Yield each whole object of a JSON array, or of objects in a row, the last of which may be cut."""
    scan, at = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode, 0
    while match := re.compile(r"[\s,\[]*(?=\{)").match(text, at):
        try:
            _, at = scan(text, match.end())
        except (ValueError, RecursionError):
            return
        yield text[match.end() : at].encode("utf-8", "surrogateescape")


# --- Streams: what is in hand (pure) -----------------------------------------

# What the pieces of a reply have, by an example of each type, and how they add up: "text" grows, "one name"
# stays, "reason" may be unspecified, objects grow by their fields, lists by their items (behind an item is
# what a new one begins with); of all else the last value counts. A key with ? may be absent or null.
_PIECES_TEXT = """
chat {"id?": "", "model?": "", "usage?": {}, "choices?": [
    {"index": 0, "finish_reason?": "", "usage?": {}, "delta": {
        "role?": "", "content?": "text", "reasoning_content?": "text", "refusal?": "text",
        "function_call?": {"name?": "one name", "arguments?": "text"}, "tool_calls?": [
            {"index": 0, "id?": "one name", "function?": {"name?": "one name", "arguments?": "text"}},
            {"type": "function", "function": {"arguments": ""}}]}},
    {"index": 0, "delta": {"role": "assistant", "content": null}}]}
gemini {"modelVersion?": "", "usageMetadata?": {}, "promptFeedback?": {}, "candidates?": [
    {"index?": 0, "finishReason?": "reason", "content?": {"role?": "", "parts?": [
        {"text?": "text", "thought?": false, "thoughtSignature?": "",
            "functionCall?": {"name": "", "args?": {}, "id?": "", "willContinue?": null}},
        {}]}},
    {"index": 0, "content": {"role": "model", "parts": []}}]}
message {"type": "", "role": "", "content": [], "id?": "", "model?": "", "stop_reason?": "", "usage?": {}}
text {"text": "text"}
thinking {"thinking": "text", "signature?": "text"}
redacted_thinking {"data": ""}
tool_use {"id": "", "name": "", "input": {}}
"""
_PIECES = {name: json.loads(piece) for name, piece in re.findall(r"(?m)^(\w+) (.*(?:\n .*)*)", _PIECES_TEXT)}
_EVENTS = [f"{thing}_{at}" for thing in ("message", "content_block") for at in ("start", "delta", "stop")]
_DELTAS = {  # of Messages: the field of a delta, and the field of the block that it goes with
    "text_delta": ("text", "text"),
    "citations_delta": ("citation", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "thinking"),
    "input_json_delta": ("partial_json", "input"),
    "compaction_delta": ("content", "content"),
}


def _misfit(at: Any, observed: Any, expected: str) -> InputError:
    return InputError(render_path(at), describe_pair(observed, Words(expected)))


class Stream:
    """What has arrived of a reply that was streamed; read_stream returns one.

    `message` is the reply as it is without streaming (of logprobs the last alone), {} unless it is complete
    and nothing was found. `parts` are those of its neutral turn; of `open_parts` more may come, and a call's
    arguments are the text so far. `passed_over` counts events that are not known.
    """

    def __init__(self) -> None:
        self.api, self.model, self.stop, self.complete, self.passed_over = "", "", "", False, 0
        self.error: Json = {}  # type, message
        self.usage: Json = {}
        self.message: Json = {}
        self.parts: list[Node] = []
        self.open_parts: list[Node] = []
        self.findings: Findings = []
        self._blocks: list[Json] = []  # of the Messages API
        self._open: set[int] = set()  # the places of those that are not closed
        # The object of each text, and its pieces: joined once, so that time grows with the text alone.
        self._texts: dict[tuple[int, str], tuple[Json, list[str]]] = {}

    def join(self, kind: str) -> str:
        """Return the text in hand of a kind, `text` or `reasoning`, closed or open."""
        return "".join(part.get("text", "") for part in self.parts + self.open_parts if part["kind"] == kind)

    def take(self, name: str, event: Any) -> None:
        """Add an event to the reply. Raises InputError for what does not fit."""
        if type(event) is not dict:
            raise _misfit((), event, "an object")
        kind = name if name in _EVENTS else str(event.get("type"))
        api = MESSAGES if kind in _EVENTS else next((_TELLING[key] for key in _TELLING if key in event), "")
        self.api = self.api or api
        error = read_error({"error": event, **event} if kind == "error" else event)
        self.error = self.error or error
        self.passed_over += bool(event) and not (error or api or kind == "ping")
        if api not in ("", self.api):
            raise _misfit((), Words(f"an event of {api}"), f"one of {self.api}")
        if api == MESSAGES:
            self._take_event(kind, event)
        elif api:
            chat = {"choices": MISSING, **event, "object": "chat.completion"}
            self._add(_PIECES[api], self.message, chat if api == CHAT else event)

    def _take_event(self, kind: str, event: Json) -> None:
        """Add an event of the Messages API: a block begins, grows and ends under its index."""
        index = event["index"] if type(event.get("index")) is int else -1
        is_next = index == len(self._blocks) and not self.complete and not self.message.get("stop_reason")
        if event.get("type") != kind:
            raise _misfit(["type"], event.get("type", MISSING), describe(kind))
        if kind == "message_start" and not self.message:
            self._add(_PIECES["message"], self.message, event.get("message"), "message")
        elif kind == "content_block_start" and is_next:
            block = event.get("content_block")
            form = _PIECES.get(str(block.get("type")), {}) if type(block) is dict else {}
            self._blocks.append({})
            self._open.add(index)
            self._add({"type": "", **form}, self._blocks[index], block, "content_block")
        elif kind == "content_block_delta" and index in self._open:
            self._add_delta(self._blocks[index], event.get("delta"))
        elif kind == "content_block_stop" and index in self._open:
            self._open.remove(index)
        elif kind in ("message_delta", "message_stop") and not self.complete:
            self.complete, delta = kind == "message_stop", event.get("delta")
            delta = {"stop_reason": MISSING, **delta} if type(delta) is dict else delta
            self._add({"usage?": {}}, self.message, {"usage": event.get("usage")})
            self._add({"stop_reason?": ""}, self.message, {} if self.complete else delta, "delta")
        else:
            raise _misfit((), Words(kind), "none here: it is late, a second one, or of another block")

    def _add_delta(self, block: Json, delta: Any) -> None:
        """Add a delta to its block; one that is not known is passed over."""
        self._add({"type": ""}, {}, delta, "delta")
        field, beside = _DELTAS.get(delta["type"], ("", ""))
        value = delta.get(field, MISSING)
        if not field:
            self.passed_over += 1
        elif beside not in block:
            raise _misfit(["delta"], Words(delta["type"]), f"a delta of {block.get('type')}")
        elif field == "citation":
            self._add({"citations": [{}, {}]}, block, {"citations": [value]}, "delta")
        else:
            self._add({field: "text"}, block, {field: value}, "delta")

    def _add(self, form: Json, node: Json, piece: Any, *at: Any) -> None:
        """Add a piece of a form to what came before. Raises InputError for a piece of another form."""
        if type(piece) is not dict:
            raise _misfit(at, piece, "an object")
        needed = [key for key in form if key[-1] != "?"]
        for field, value in {**piece, **{key: piece.get(key, MISSING) for key in needed}}.items():
            how, old, here = form.get(field, form.get(f"{field}?", MISSING)), node.get(field), (*at, field)
            is_unset = value is None or (how == "reason" and value == "FINISH_REASON_UNSPECIFIED")
            if is_unset and field not in needed:
                node.setdefault(field, None)
            elif how is not MISSING and type(value) is not type(how):
                raise _misfit(here, value, describe_kind(how) if how is not None else "nothing")
            elif how == "text":
                begin = [old if type(old) is str else ""]
                self._texts.setdefault((id(node), field), (node, begin))[1].append(value)
                node.setdefault(field, "")
            elif how == "one name" and old and value not in ("", old):
                raise _misfit(here, value, describe(old))
            elif type(how) is dict:
                node[field] = old if type(old) is dict else {}
                self._add(how, node[field], value, *here)
            elif type(how) is list and how:
                node[field] = old if type(old) is list else []
                for place, item in enumerate(value):
                    if item != {"text": ""}:  # the end of Gemini's text
                        known = self._find_item(how, node[field], item, *here, place)
                        self._add(how[0], known, item, *here, place)
            elif (field != "index" or how is MISSING) and (value != "" or not old):  # an index is a place
                node[field] = value

    def _find_item(self, forms: list[Json], items: list[Json], piece: Any, *at: Any) -> Json:
        """Return the item of a list that a piece adds to, a new one if it is the next. Raises InputError."""
        known: Json = piece if type(piece) is dict else {}
        index, content = known.get("index") or 0, known.get("delta", known.get("content"))
        if not forms[0].keys() & {"index", "index?"}:  # a text adds to one before it with the same fields
            is_more = bool(items) and {**items[-1], "text": known.get("text")} == known
            index = len(items) - is_more
        is_fit = type(index) is int and 0 <= index <= len(items) and known.keys() - {"thought"}
        if is_fit and index == len(items):
            items.append(copy.deepcopy(forms[1]))
        is_done = is_fit and (items[index].get("finish_reason") or items[index].get("finishReason"))
        if not is_fit or (is_done and type(content) is dict and any({**content, "role": ""}.values())):
            raise _misfit(at, piece, "more of what is not finished, or the next")
        return items[index]

    def finish(self) -> Iterator[Finding]:
        """Take stock when all events are taken. Yield what a whole reply would not have."""
        for (_, field), (node, pieces) in self._texts.items():  # a character may come as two surrogates
            node[field] = "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        form, reply = APIS[self.api or MESSAGES], self.message
        if self.api == MESSAGES:
            yield from list_differences(reply.get("content", MISSING), [], "content")
            reply["content"] = self._blocks
        for index, block in enumerate(self._blocks):
            text = str(block.pop("partial_json", ""))
            arguments = _read_arguments(text)["arguments"]
            if index in self._open or type(arguments) is str:  # without an object it is not whole
                self._open.add(index)
                block["input"] = text
            elif arguments:
                block["input"] = arguments
        choices = reply.get(form.choices or "") or []
        for choice in choices if self.api == CHAT else ():
            choice["message"], usage = choice.pop("delta"), choice.pop("usage", None)
            reply["usage"] = reply.get("usage") or usage  # where Moonshot has it
        yield from list_differences(choices, choices[:1], form.choices or "$")
        stops = [each.get(form.stop) or "" for each in choices or [reply]]
        self.stop, self.complete = stops[0], (all(stops) or self.complete) and not self.error
        self.usage = reply.get("usage") or reply.get("usageMetadata") or {}
        self.model = str(reply.get(form.maker) or "")
        yield from self._read_parts(choices[0][form.message] if choices else reply)

    def _read_parts(self, message: Json) -> Iterator[Finding]:
        """Sort the parts of a message: those that are whole, and those of which more may come."""
        parts = read_turn(self.api, message, ("message",), [])["parts"] if self.api else []
        for part in parts:
            is_text = part["kind"] in ("text", "reasoning") and "credential" not in part
            may_grow = not self.stop and (self.api == CHAT or (is_text and part is parts[-1]))
            is_open = part.at[-1] in self._open if self.api == MESSAGES else may_grow
            if is_open and self.api == CHAT and part["kind"] == "call" and part.at[1:]:
                part["arguments"] = message["tool_calls"][part.at[-1]]["function"]["arguments"]
            (self.open_parts if is_open else self.parts).append(part)
            if self.api == CHAT and part["kind"] == "other":
                yield Finding(render_path(part.at), "not a call of a function, with an id and a name")
            if is_open and self.complete:
                yield Finding(render_path(part.at[1:]), "no content_block_stop behind whole arguments")


def read_stream(data: bytes) -> Stream:
    """Return what has arrived of a reply. Raises InputError for more than 64 MiB."""
    stream = Stream()
    for number, (name, text) in enumerate(list_events(data)):
        try:
            stream.take(name, {} if text.strip() == b"[DONE]" else parse_json(text, REPLY_DEPTH_LIMIT))
        except InputError as error:
            stream.findings.append(Finding(f"events[{number}], {error.path}", error.message))
            if name == "error":
                stream.take(name, {"type": name})
    stream.findings = cut([*stream.findings, *stream.finish()])
    stream.message = stream.message if stream.complete and not stream.findings else {}
    return stream


# --- Streams: going on after a cut (pure) ------------------------------------

_NOTES = {  # on a recovery, by its name or by the API
    GEMINI: "a prefill worked in the three recorded runs, and is not promised",
    "instruction": "in every recorded cell this cost 1.6 to 4.4 times what sending the record again did",
}
_ASK = """\
Your last reply was cut off on its way. This much of it has arrived, between the two lines:
-----
{}
-----
Go on from exactly there. Repeat nothing of it, and do not comment on the cut."""
_RESEND = "send the record again, which is always possible; what was cut is paid, and so is the new reply"


def find_recovery_refusal(by: str, api: str, model: str, thinking: bool, stream: Stream) -> str:
    """Return why the next request may not go on from the text in hand by `prefill` or `instruction`, or "".

    `api`, `model` and `thinking` (whether it is on) are those of the record that was sent.
    """
    kinds = {part["kind"] for part in stream.parts + stream.open_parts}
    claude = find_version(model) if "claude" in model else (99, 0)
    refusals = {
        f"the record is of {api}, the stream of {stream.api}": stream.api not in ("", api),
        "the reply is complete": stream.complete,
        "no text in hand": not stream.join("text").strip(),
    }
    prefill_refusals = {
        "a call is in hand": "call" in kinds,
        "more than text is in hand": not kinds <= {"text", "reasoning"},
        "only a Claude known to be 4.5 or older takes a prefill": api == MESSAGES and claude == (99, 0),
        "Claude since 4.6 takes no prefill": api == MESSAGES and claude > (4, 5),
        "Claude takes no prefill while it thinks": api == MESSAGES and (thinking or "reasoning" in kinds),
        "of chat models only kimi is known to take a prefill": api == CHAT and find_vendor(model) != "kimi",
    }
    refusals.update(prefill_refusals if by == "prefill" else {})
    return next((reason for reason, applies in refusals.items() if applies), "")


def build_recovery(by: str, api: str, record: Any, text: str) -> Json:
    """Return the next request of a record: it ends on the text in hand, or asks to go on."""
    role, text = ("assistant", text.rstrip()) if by == "prefill" else ("user", _ASK.format(text))
    part, field = Node((), {"kind": "text", "text": text}), APIS[api].messages
    message = write_turn(api, Node((), {"role": role, "parts": [part]}))[0]
    more = {"partial": True} if (by, api) == ("prefill", CHAT) else {}
    body = record if type(record) is dict else {field: record}
    return {**body, field: [*body[field], {**message, **more}]}


# --- Result: an answer judged against the source (pure) -----------------------


def validate_result(result: Any, task: Task, rows: Rows) -> Findings:
    """Return everything that is wrong with a parsed result for the source `rows`, in document order.

    Empty means accepted. Every value is worked out again from the source. An exception in a task's
    own method is a finding, because an answer that cannot be judged is not accepted.
    """
    wrapped = "observed a whole message, expected its answer, which extract takes out"
    begin = [] if find_reply_findings(result) else [Finding("$", wrapped)]
    try:
        found = islice(task.find_faults(result, rows), MOST_FINDINGS + 1)
        return cut([*begin, *(one if isinstance(one, Finding) else Finding("$", str(one)) for one in found)])
    except BaseException as error:
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
    unmatched = _find_unmatched(messages, start)
    size = int(any(map(_list_calls, expected[begin : begin + 1])))  # one message of results
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


def _sift(differences: Iterable[tuple[Path, Any, Any]], notes: Findings, label: str) -> Iterator[Finding]:
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
    names = [part if type(part) is str else 0 for part in path]
    end = names.index("cache_control") if "cache_control" in names else 0
    blocks = ["messages", 0, *["content", 0] * (end // 2 - 1)]  # in a result, there are blocks in a block
    is_mark = names[:end] in (["system", 0], ["tools", 0]) or (end > 2 and names[:end] == blocks)
    return path[0] not in _UNCOMPARED_FIELDS and not is_mark


def _match_turns(messages: Messages, original: Messages) -> tuple[int, int, int]:
    """Return where the turn in hand begins and ends in a restored record, and where in the original.

    It is the last assistant message with a tool_use, else the last assistant message. Where that was
    changed or is gone, it begins where the prefix ends, if the prefix is whole; it may have come back
    as several messages, up to the last with a tool_use.
    """
    start, begin = _find_turn(messages), _find_turn(original)
    is_changed = _differ(messages[start : start + 1], original[begin : begin + 1])
    if is_changed and not _differ(messages[:begin], original[:begin]):
        start = begin
    turn = list(takewhile(_is_assistant, messages[start:]))
    ends = [end for end, message in enumerate(turn, start + 1) if _list_calls(message)]
    is_gone = not turn and 0 < len(messages) - start < len(original) - begin
    return start, max(ends, default=start if is_gone else start + 1), begin


def _find_turn(messages: Messages) -> int:
    turns = [place for place, message in enumerate(messages) if _is_assistant(message)]
    with_calls = [place for place in turns if _list_calls(messages[place])]
    return (with_calls or turns or [len(messages)])[-1]


def _differ(messages: Messages, original: Messages) -> bool:
    return any(_is_compared(path) for path, *_ in find_differences(messages, original, "messages"))


def _find_unmatched(messages: Messages, start: int) -> Findings:
    """Return what does not pair between calls and results, from the message `start` on.

    Each tool_use of an assistant message, or of several in a row, needs exactly one tool_result with
    its id, at the beginning of the very next message, and every result needs its call.
    """
    found: list[tuple[Path, str]] = []
    waiting: dict[str, list[Path]] = {}  # by the id of a call: the paths of those without a result
    first = start  # the message behind the calls
    for number, message in enumerate([*messages[start:], {}], start):
        for order, (place, block) in enumerate(_list_blocks(message, "tool_result")):
            call = render_json(block.get("tool_use_id"))  # an id may be unhashable
            is_answer = bool(waiting.get(call)) and isinstance(block.get("tool_use_id"), str)
            if is_answer:
                waiting[call].pop()
            if not is_answer or number != first or place != order:
                expected = "one for each call, at the beginning of the message behind it"
                path = ("messages", number, "content", place, "tool_use_id")
                found.append((path, f"observed a result for {shorten(call)}, expected {expected}"))
        calls = _list_calls(message)
        if (calls and number != first) or number == len(messages):
            for call, paths in waiting.items():
                found += [(path, f"observed no result for {shorten(call)}, expected one") for path in paths]
            waiting = {}
        for place, block in calls:
            first = number + 1
            path = ("messages", number, "content", place, "id")
            waiting.setdefault(render_json(block.get("id")), []).append(path)
    return cut(Finding(render_path(path), message) for path, message in sorted(found))


def _is_assistant(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def _list_calls(message: Any) -> list[tuple[int, Json]]:
    return _list_blocks(message, "tool_use") if _is_assistant(message) else []


def _list_blocks(message: Any, kind: str) -> list[tuple[int, Json]]:
    """Return the blocks of one type in a message, each with its place."""
    content = message.get("content") if isinstance(message, dict) else None
    blocks = enumerate(content if isinstance(content, list) else [])
    return [(at, block) for at, block in blocks if isinstance(block, dict) and block.get("type") == kind]


# --- Sessions: the built-in table (pure) -------------------------------------

_VENDORS = {
    "kimi": (CHAT, "kimi-k3"),
    "claude": (MESSAGES, "claude-opus-5-5"),
    "gemini": (GEMINI, "gemini-3.5-flash"),
}
_SIGNED = {MESSAGES: "reasoning", GEMINI: "call"}  # the kind of part that an API signs
_SIGNATURE = "c2lnbmF0dXJlIG9mIG5vYm9keQ=="


def _move_directly(session: Node, api: str, model: str, signed: str | None, kinds: Sequence[str]) -> Any:
    """Return a body with a session's parts of some kinds; those of the kind `signed` have a signature."""
    moved = _strip(session)
    for turn in moved["turns"]:
        turn["parts"] = [part for part in turn["parts"] if part["kind"] in kinds]
        for part in turn["parts"]:
            part.update({"credential": _SIGNATURE} if part["kind"] == signed else {})
    issuer, settings = {"api": api, "model": model}, keep_limit(session["settings"], api)
    return write_body({**moved, "issuer": issuer, "settings": settings})


def run_ways() -> Iterator[tuple[str, str, str, int]]:
    """Yield (pair, way, what the receiving API says, bytes) for six pairs of vendors by four ways."""
    sample = read_session(parse_json(SESSION_TEXT), MESSAGES)
    for source, target in permutations(_VENDORS, 2):
        made_by, (api, model) = _VENDORS[source], _VENDORS[target]
        is_signed = made_by[0] in _SIGNED
        body = _move_directly(sample, *made_by, _SIGNED.get(made_by[0]), PARTS)
        session = read_session(body, *made_by)
        bodies = {
            "direct": _move_directly(session, api, model, _SIGNED.get(api) if is_signed else None, PARTS),
            "strip": _move_directly(session, api, model, None, ("text", "call", "result")),
            "neutral": convert(session, api, model)[0],
            "fresh": convert_fresh(session, api, model)[0],
        }
        for way, body in bodies.items():
            foreign = (_SIGNATURE,) if is_signed else ()
            refusals = find_session_refusals(read_session(body, api, model), foreign)
            said = f"400 {refusals[0]}" if refusals else "200"
            yield f"{source} to {target}", way, said, len(render_json(body))


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
_THOUGHT = '{"type":"thinking","thinking":"","signature":"c2lnbmF0dXJlIG9mIG5vYm9keQ=="}'
_CALL = '{"type":"tool_use","id":"toolu_demo_17","name":"read_invoice","input":{"invoice":"DEMO-17"}}'
SESSION_TEXT = (
    '{"system":"You check invoices. Read them with the tool; change nothing.",'
    '"tools":[{"name":"read_invoice","description":"Return the amount and the currency of an invoice.",'
    '"input_schema":{"type":"object","properties":{"invoice":{"type":"string"}},"required":["invoice"]}}],'
    '"messages":[{"role":"user","content":"What is the amount of invoice DEMO-17?"},'
    f'{{"role":"assistant","content":[{_THOUGHT},{_CALL}]}},'
    '{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_demo_17",'
    r'"content":"{\"invoice\":\"DEMO-17\",\"amount\":\"47.50\",\"currency\":\"EUR\"}"}]}]}'
)

# What is changed in the session's text, a piece of it, what replaces it, the label that must come out.
_SESSION_CHANGES = f"""
nothing (no visible text, all the same) | | | intact
the system instruction | change nothing | change what is wrong | changed prefix: system
a tool's description | Return the amount | Return amount | changed prefix: tools
an earlier message | What is | What was | changed prefix: messages
the order of the assistant's content blocks | {_THOUGHT},{_CALL} | {_CALL},{_THOUGHT} | changed assistant turn
the result's call id | _use_id":"toolu_demo_17" | _use_id":"toolu_demo_18" | unmatched tool result
"""


def _split_table(text: str) -> list[list[str]]:
    """Return the cells of a table's lines; blank lines are passed over."""
    return [[cell.strip() for cell in line.split(" |")] for line in text.split("\n") if line.strip()]


def run_session_cases() -> Iterator[tuple[str, str, bool]]:
    """Yield (change, labels, as expected) for the built-in cases; five of six are broken on purpose."""
    original = parse_json(SESSION_TEXT)
    for change, old, new, expected in _split_table(_SESSION_CHANGES):
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
        for named, check, old, new, place in _split_table(f"{_CHANGES}{own}"):
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


def read_input(path: str) -> bytes:
    """Return a file's bytes, or standard input's for `-`; at most one byte over 64 MiB is read.

    Raises UnreadableError.
    """
    if path == "-" and sys.stdin is None:
        raise UnreadableError("standard input", "it is closed")
    data = b""
    try:
        with contextlib.ExitStack() as stack:
            file = sys.stdin.buffer if path == "-" else stack.enter_context(open(path, "rb"))
            while more := file.read(INPUT_LIMIT_BYTES + 1 - len(data)):
                data += more
        if more is None:  # from a stream that does not wait
            raise OSError("not all of it is there yet")
        return data
    except (OSError, ValueError) as error:
        raise UnreadableError(path, explain(error)) from error


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
    except BaseException as error:
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
    except BaseException as error:
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
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS):
            raise  # by the others, a file system says that it flushes no folders
    finally:
        os.close(descriptor)


# --- Sessions: whose record a file holds --------------------------------------

_ITEMS = ("message", "function_call", "function_call_output", "reasoning")  # types of the Responses API
_SNAKE_CASE = {
    *("system_instruction", "generation_config", "safety_settings", "function_call", "function_response"),
    *("inline_data", "file_data", "thought_signature"),
}


def _list_objects(value: Any) -> list[Json]:
    return [each for each in value if type(each) is dict] if type(value) is list else []


def _list_own_signs(api: str) -> set[str]:
    """Return the signs of an API, by its forms: fields of bodies, messages and tools, and names."""
    form = APIS[api]
    fields = [form.messages, form.system, *form.pieces.split(), *FORMS[api]["tool"][0].template]
    names = [*form.roles.split(), *form.media.split(), *_NAMED[api], *["leading system"] * (api == CHAT)]
    return {f"the field {field}" for field in fields} | {f"the name {name}" for name in names}


def _list_signs(body: Json, messages: list[Json]) -> set[str]:
    """Return what may tell the API of a record: its fields, and the names of its roles and blocks."""
    blocks = [block for message in messages for block in _list_objects(message.get("content"))]
    names = {str(message.get("role")) for message in messages} | {str(block.get("type")) for block in blocks}
    names |= {f"leading {message.get('role')}" for message in messages[:1]}
    fields = {field for each in [body, *messages, *_list_objects(body.get("tools"))] for field in each}
    return {f"the field {field}" for field in fields} | {f"the name {name}" for name in names}


def tell_api(record: Any, given: str | None = None) -> str:
    """Return the API whose record this is: the one that has a sign which no other has; else `given`.

    Raises HandoffError where no API that is known fits, or none alone.
    """
    if type(record) is dict and record.get("format") == "neutral-session":
        return NEUTRAL
    body = record if type(record) is dict else {"messages": record}
    listed = [body[field] for field in ("messages", "contents") if field in body]
    messages = _list_objects(listed[0]) if listed else []
    signs, own = _list_signs(body, messages), {api: _list_own_signs(api) for api in APIS}
    told = {api: signs & own[api].difference(*(own[each] for each in APIS if each != api)) for api in APIS}
    told = {api: found for api, found in told.items() if found}
    parts = [part for message in messages for part in _list_objects(message.get("parts"))]
    snake_case = [field for each in [body, *parts] for field in each if field in _SNAKE_CASE]
    api = next(iter(told), given)
    why, next_step = "", "name a file that holds the body of a request"
    is_items = type(record) is list and any(message.get("type") in _ITEMS for message in messages)
    if is_items or (not listed and "input" in body):
        why = "it has the shape of the OpenAI Responses API, which is not supported"
    elif len(listed) != 1 or type(listed[0]) is not list:
        why = "expected a list of messages or contents, one of them alone, or a neutral session"
    elif snake_case:
        why = f"the field {snake_case[0]} is Gemini's in snake_case, and only camelCase is read"
    elif len(told) > 1:
        why = "two shapes at once: " + ", ".join(min(found) for found in told.values())
    elif api is None:
        why, next_step = "its texts fit messages and chat", "say which with --from"
    elif given not in (None, api):
        why, next_step = f"it has the shape of {api}, not of {given}", "leave --from out"
    if why or api is None:
        raise HandoffError("it is not a session record that can be read", why, next_step)
    return api


def read_session_file(path: str, given: str | None, issuer: str | None) -> Node:
    """Return the session that a file holds. Raises UnreadableError, HandoffError, SessionError."""
    try:
        record = parse_json(read_input(path))
    except InputError as error:
        raise UnreadableError(path, str(error), "name a file that holds a session record") from error
    return read_session(record, tell_api(record, given), issuer)


# --- Terminal ----------------------------------------------------------------

_COLOURS = {"red": 31, "green": 32, "yellow": 33}


class Report:
    """How a command ends: its verdict in one word, and `what`, the line that a person reads last.

    Its findings and notes come before that line; `facts` are what else --json shows.
    """

    def __init__(
        self,
        exit_code: int,
        verdict: str,
        what: str,
        findings: Sequence[Finding] = (),
        notes: Sequence[str] = (),
        facts: Json | None = None,
    ) -> None:
        self.verdict, self.exit_code, self.what = verdict, exit_code, what
        self.findings, self.notes, self.facts = findings, notes, facts or {}


def list_members(finding: Finding) -> Json:
    """Return a finding as --json shows it."""
    label = {"label": finding.label} if finding.label else {}
    return {**label, "path": finding.path, "message": finding.message, **finding.values}


def remove_passwords(text: str) -> str:
    """Return the text without the user parts of the proxies' URLs in the environment.

    A user part is what comes before the last @. It is removed whole, and the password in it alone: as they
    are written, decoded (each line of it), in JSON with any character escaped, and in the base64 of a
    request. A password below four characters is not removed alone.
    """
    proxies = [value for name, value in os.environ.items() if name.lower().endswith("_proxy")]
    urls = [value.rpartition("@")[0] for value in proxies if "@" in value]
    if not urls:
        return text
    import base64
    import urllib.parse

    secrets: set[str] = set()
    for user in [re.sub("^([A-Za-z][A-Za-z0-9+.-]*:)?/+", "", url) for url in urls]:
        parts = [user.split(":", most)[-1] for most in range(3)]  # the last one in http:name:password@host
        for form in (*parts, *map(urllib.parse.unquote, parts)):
            for secret in (form, *re.split("[\x00-\x20]+", form)):
                if len(secret) > 3 or ":" in secret[1:-1]:
                    encoded = base64.b64encode(secret.encode("utf-8", "surrogatepass")).decode()
                    secrets.update((secret, render_json(secret)[1:-1], encoded))
    patterns = [
        "".join(rf"(?:{re.escape(mark)}|\\+u(?i:{ord(mark):04x}))" for mark in secret)
        for secret in sorted(secrets, key=len, reverse=True)
    ]
    return re.sub("|".join(patterns), "[password removed]", text) if patterns else text


class Terminal:
    """Where a command's results and its talk go, and what Ctrl-C does to it.

    Results go to standard output, talk to standard error, both through `redact` and without a
    control character. A stream that is closed, full or a broken pipe is survived; `lost` says which and
    why, and a command fails by that if it `must_be_heard`. Ctrl-C raises KeyboardInterrupt, but pressed
    again, or from `hold` on, it only makes `interrupted` true.
    """

    def __init__(self, name: str, as_json: bool = False) -> None:
        self.name, self.as_json = name, as_json  # the name is the script's, as it is typed
        self.out = sys.stdout
        self.redact: Callable[[str], str] = remove_passwords
        self.lost = ""
        self.must_be_heard = True
        self.interrupted = self.is_held = False

    def say(self, report: Report) -> int:
        """Show a report, and return its exit code.

        Findings and notes go to standard error, the verdict behind them to standard output; with --json
        all goes there as one object.
        """
        if self.as_json:
            shown = {**vars(report), **report.facts, "findings": list(map(list_members, report.findings))}
            del shown["facts"]
            self.write_out(render_json(shown, 2))
        else:
            for line in (*report.findings, *report.notes):
                self.write_err(show(str(line)))  # one line, whatever a task puts into it
            self.write_out(report.what, "red" if report.exit_code else "green")
        return report.exit_code

    def say_error(self, error: HandoffError) -> int:
        """Show why a command ended without a verdict, and return its exit code."""
        if self.as_json:
            told = {"what": error.what, "why": error.why, "next": error.next_step}
            self.write_out(render_json({"verdict": error.verdict, "exit_code": error.exit_code, **told}, 2))
        else:
            self.write_err(f"{name_script(self.name)}: {error}")
        return error.exit_code

    def write_out(self, text: str, colour: str = "") -> None:
        """Write lines to standard output; a colour (red, green, yellow) shows on a terminal only."""
        self._write("output", self.out, text, colour)

    def write_err(self, text: str, colour: str = "") -> None:
        """Write lines to standard error."""
        self._write("error", sys.stderr, text, colour)

    def progress(self, text: str) -> None:
        """Show a line that the next one replaces, on a terminal only."""
        if is_terminal(sys.stderr):
            self._write("error", sys.stderr, text, end="\r")

    def _write(self, name: str, stream: Any, text: str, colour: str = "", end: str = "\n") -> None:
        if stream is None:
            self.lost = self.lost or f"standard {name} is closed"
            return
        text = "\n".join(show(line) for line in self.redact(text).split("\n"))
        encoding = getattr(stream, "encoding", None) or "utf-8"
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or os.name == "nt"
        if colour and not plain and is_terminal(stream):
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
            self.lost = self.lost or f"standard {name} is lost: {explain(error)}"
            if name == "output":  # or the interpreter's last flush of it fails
                self.out = None
            else:
                sys.stderr = None

    def hold(self) -> None:
        """Only note Ctrl-C from now on."""
        self.is_held = True

    def take_interrupt(self, *_: Any) -> None:
        """Raise KeyboardInterrupt for the first Ctrl-C, unless it is held."""
        is_first, self.interrupted = not self.interrupted, True
        if is_first and not self.is_held:
            raise KeyboardInterrupt


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
    sys.stdout = sys.stderr  # standard output is the result's alone, whatever a task prints
    try:
        with contextlib.suppress(ValueError):  # of another thread than the main one
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, terminal.take_interrupt)
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
        interrupt = HandoffError("by Ctrl-C", "nothing was in flight", "start it again when you like")
        interrupt.verdict, interrupt.exit_code = "interrupted", EXIT_INTERRUPTED
        return terminal.say_error(interrupt)
    finally:
        if signal.getsignal(signal.SIGINT) == terminal.take_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdout = terminal.out


# --- Command line ------------------------------------------------------------


class HelpAsked(Exception):
    """The command line asks for a text: its first argument."""


class Parser(argparse.ArgumentParser):
    """A parser that abbreviates nothing, and whose errors are UsageErrors.

    A word in the wrong place may be a secret: no more than its first 16 characters are shown.
    """

    def __init__(self, **settings: Any) -> None:
        formatter = partial(argparse.RawDescriptionHelpFormatter, max_help_position=24, width=80)
        super().__init__(allow_abbrev=False, formatter_class=formatter, **settings)
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
        if strays:
            fault = f"{shorten(strays[0], 16)} is one word too many"
            fault = explain_stray(strays[0], known) if strays[0][:1] == "-" else fault
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
_API = expect("messages|chat|gemini", "messages, chat or gemini")
_WAY = expect("prefill|instruction", "prefill or instruction")
_TARGET = expect("messages|chat|gemini|neutral", "messages, chat, gemini or neutral")
COUNT = expect("[1-9][0-9]{0,8}", "a whole number from 1 to 999999999")


def _option(metavar: str, words: str, **settings: Any) -> Json:
    """Return what argparse makes of an argument; a default is said in its help."""
    default = f"default: {settings['default']}" if "default" in settings else ""
    return {"metavar": metavar, "type": _ANY, "help": words or default, **settings}


def _switch(words: str) -> Json:
    return {"action": "store_true", "help": words}


# Every argument of every command: what argparse makes of it.
_ARGUMENTS: dict[str, Json] = {
    "FILE": _option("FILE", "a session record (default: show the built-in table)", nargs="?"),
    "CHECKPOINT": _option("CHECKPOINT", "", nargs="?", default="checkpoint.json"),
    "HANDOFF": _option("HANDOFF", "", nargs="?", default="handoff.txt"),
    "RESPONSE": _option("RESPONSE", "a saved reply"),
    "RESULT": _option("RESULT", "a result, as extract writes it"),
    "--by": _option("WAY", "print the request that goes on after a cut: prefill, instruction", type=_WAY),
    "--check-restored": _option("FILE", "compare a session record that came out of storage"),
    "--emit-fixture": _switch("print the built-in session record"),
    "--fresh": _switch("begin a new session, with a checkpoint of the record's facts"),
    "--from": _option("API", "the record's API, where it could be read as two", type=_API),
    "--issuer": _option("MODEL", "the model that made the record, where it names none", type=MODEL),
    "--json": _switch("print one machine-readable object instead"),
    "--leave-out": _switch("put a line in the place of media and of what has no place there"),
    "--max-tokens": _option("N", "", type=COUNT, default=str(MAX_TOKENS)),
    "--model": _option("MODEL", "the model that is asked next", type=MODEL),
    "--no-reasoning": _switch("leave the reasoning of other models out"),
    "--objective": _option("TEXT", "what is to be done (default: the user's last text)"),
    "--original": _option("FILE", "compare it with this one (default: the built-in one)"),
    "--out": _option("DIR", "write into this folder, made if it is missing (default: here)"),
    "--receiver": _option("MODEL", "", type=MODEL, default=RECEIVER_MODEL),
    "--reply": _option("RESPONSE", "judge a saved reply in view of the record"),
    "--session": _option("FILE", "a session record"),
    "--source": _option("FILE", "the trusted source (default: the task's own)"),
    "--task": _option("FILE", "a Python file that defines TASK (default: the demo's task)"),
    "--to": _option("API", "print it for messages, chat, gemini, or neutral", type=_TARGET),
    "--unclear": _switch("give each open call a result that says it is unclear"),
    "STREAM": _option("STREAM", "a saved stream: server-sent events, or Gemini's array"),
    "--message": _switch("print the whole reply of a complete stream"),
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
        epilog = f"example:\n  {f'python3 {script} {name} {example}'.rstrip()}\n\n{_EXIT_CODES}"
        command = commands.add_parser(name, help=summary, description=summary, epilog=epilog)
        for argument in arguments.split():
            command.add_argument(argument.lower(), **_ARGUMENTS[argument])
    return parser


def _load_work(options: argparse.Namespace) -> tuple[Task, Rows]:
    """Return the task that is asked for, and the rows of its trusted source."""
    task = load_task(options.task)[0] if options.task else DEMO
    return task, read_source(task, options.source) if options.source else task.source


def _build_checkpoint(terminal: Terminal, options: argparse.Namespace) -> tuple[Json, str, str]:
    """Return the one checkpoint that a task or a session record allows, its handoff prompt, and a verdict."""
    if options.session and (options.task or options.source):
        raise UsageError("--session goes with neither --task nor --source", terminal.name)
    if not options.session and (options.objective or getattr(options, "from") or options.issuer):
        raise UsageError("--objective, --from and --issuer go with --session", terminal.name)
    if options.session:
        session = read_session_file(options.session, getattr(options, "from"), options.issuer)
        checkpoint = build_session_checkpoint(session, options.objective)
        what = f"verified: {render_count(checkpoint['completed'], 'operation')}, {checkpoint['task_id']}"
        return checkpoint, render_session_handoff(checkpoint), what
    task, rows = _load_work(options)
    checkpoint = build_checkpoint(task, rows)
    what = f"verified: {render_count(rows, 'row')}, source {checkpoint['source_sha256'][:12]}"
    return checkpoint, render_handoff(task, checkpoint), what


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
    folder = options.out or ""
    checkpoint, handoff, _ = _build_checkpoint(terminal, options)
    files = {
        os.path.join(folder, "checkpoint.json"): f"{render_json(checkpoint, 2)}\n".encode(),
        os.path.join(folder, "handoff.txt"): handoff.encode(),
    }
    is_new = bool(folder) and not os.path.isdir(folder)
    terminal.hold()  # all of it is there or is taken back, whatever is pressed
    try:
        if is_new:
            make_folder(folder)
    except (OSError, ValueError) as error:
        what = f"{show(folder)} cannot be made: {explain(error)}"
        why = "only the folder itself is made, never the one that is to hold it"
        raise RefusedError(what, why, "make the folder that is to hold it, or name another") from error
    try:
        write_new_files(files)
    except BaseException:
        if is_new:
            discard(folder)  # unless somebody else has put something there
        raise
    for path in files:
        terminal.write_out(f"wrote {show(path)}")
    return EXIT_DONE


def _write_output(terminal: Terminal, path: str, text: str) -> int:
    """Write a command's text to standard output, or whole or not at all into a new file."""
    if path == "-":
        terminal.write_out(text)
        return EXIT_DONE
    terminal.hold()  # whatever is pressed
    write_new_files({path: f"{text}\n".encode()})
    terminal.write_out(f"wrote {show(path)}")
    return EXIT_DONE


def _cmd_verify(terminal: Terminal, options: argparse.Namespace) -> int:
    """Check a checkpoint against the trusted source."""
    right, _, what = _build_checkpoint(terminal, options)
    judge = partial(compare_checkpoints, expected=right)
    return _judge(terminal, options.checkpoint, judge, "verified", what)


def _cmd_validate(terminal: Terminal, options: argparse.Namespace) -> int:
    """Judge a result against the trusted source."""
    task, rows = _load_work(options)
    judge = partial(validate_result, task=task, rows=rows)
    return _judge(terminal, options.result, judge, "accepted", task.render_acceptance(rows))


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
        handoff, fault = decode_text(read_input(options.handoff)), ""
        if not handoff.strip():
            fault = "it holds no text, which the API would refuse"
        elif isinstance(json.loads(handoff.removeprefix(BYTE_ORDER_MARK)), (dict, list)):
            fault = "it is a JSON value, such as a session record, and not a handoff prompt"
    except InputError as error:
        fault = str(error)
    except (ValueError, RecursionError):  # it is not JSON, as it should be
        pass
    if fault:
        raise UnreadableError(options.handoff, fault, "write it with prepare")
    request = build_receiver_request(handoff, options.receiver, int(options.max_tokens))
    return _write_output(terminal, options.o, render_json(request))


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
    cases = [dict(zip(("change", "labels", "expected"), case)) for case in run_session_cases()]
    as_expected = sum(bool(case["expected"]) for case in cases)
    for case in () if terminal.as_json else cases:
        said = "" if case["expected"] else ", which is NOT expected"
        terminal.write_out(f"{case['change']:44} {case['labels']}{said}")
    code = EXIT_DONE if as_expected == len(cases) else EXIT_REJECTED
    what = f"{as_expected}/{len(cases)} expected outcomes"
    return terminal.say(Report(code, "rejected" if code else "done", what, facts={"cases": cases}))


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
# What another label means for the next request.
_MEANINGS = {
    "unmatched tool result": "it is refused, because its calls and results do not pair",
    "changed tool result": "the model would go on from other facts",
    "changed later messages": "the model would go on from another conversation",
    "changed field": "the application would go on from other facts of its own",
}
_READERS = (
    "not every model reads another's thinking, and what it does not read is dropped behind HTTP 200:"
    " Opus 5.5 reads no Fable's, and Fable 5.2's is read by Fable 5.2 and Mythos 5.2 alone"
)


def _check_restored(terminal: Terminal, path: str, original_path: str | None) -> int:
    """Say how a restored session record differs from its original, and what to do with the next request."""
    restored, compared = _read_record(path), "with --original"
    original = _read_record(original_path, list) if original_path else parse_json(SESSION_TEXT)
    if not original_path:
        if not any(mark in render_json(restored) for mark in ('"toolu_demo_17"', '"read_invoice"')):
            fault = "it has neither a tool name nor a call id of the built-in session record"
            raise UnreadableError(path, fault, "name its original with --original FILE")
        compared = "compared with the built-in session record, because no --original is named"
        if not terminal.as_json:
            terminal.write_err(compared)
    changes, uncompared = compare_sessions(restored, original)
    labels = list(changes) or ["intact"]
    notes = [f"note, not compared by the API: {note}" for note in uncompared]
    advice = "it may be sent as it is; that a model can read its thinking is not shown by this"
    if any(note.path == "model" for note in uncompared):
        advice = "it came back exactly, but another model is asked, which may not read its thinking"
        notes.append(f"note: {_READERS}")
    if changes:
        meaning = _MEANINGS.get(labels[0].partition(":")[0], _LOST_THINKING)
        advice = f"{meaning}: rebuild it from what was stored, or go on in a fresh session from a checkpoint"
    notes.append(f"the next request: {advice}")
    code, verdict = (EXIT_REJECTED, "changed") if changes else (EXIT_DONE, "intact")
    findings = [finding for each in changes.values() for finding in each]
    facts = {"labels": labels, "next_request": advice, "compared": compared}
    return terminal.say(Report(code, verdict, "\n".join(labels), findings, notes, facts))


_OPTIONS = ("fresh", "no_reasoning", "unclear", "leave_out")


def _cmd_session(terminal: Terminal, options: Any) -> int:
    """Show a session record, print it for another API, or judge a reply to it."""
    chosen = [name for name in _OPTIONS if getattr(options, name)]
    is_away = options.to not in (None, NEUTRAL)
    misuses = {
        "--to and --reply need the record's FILE": not options.file and (options.to or options.reply),
        "--to API needs --model MODEL": is_away and not options.model,
        "--model goes with --to API": options.model and not is_away,
        "--reply goes with no other --to than neutral": options.reply and is_away,
        "-o goes with --to": options.o != "-" and not options.to,
        **{f"--{name.replace('_', '-')} goes with --to API": not is_away for name in chosen},
    }
    for what, applies in misuses.items():
        if applies:
            raise UsageError(what, terminal.name)
    if not options.file:
        return _say_ways(terminal)
    session = read_session_file(options.file, getattr(options, "from"), options.issuer)
    if options.reply:
        return _judge_reply_file(terminal, options, session)
    if not options.to:
        return _say_facts(terminal, session)
    body: Any = session
    losses: Findings = []
    if options.to != NEUTRAL and options.fresh:
        body, losses = convert_fresh(session, options.to, options.model)
    elif options.to != NEUTRAL:
        body, losses = convert(session, options.to, options.model, chosen)
    for loss in losses:
        terminal.write_err(f"note: {loss}")
    return _write_output(terminal, options.o, render_json(body))


def _reject(terminal: Terminal, findings: Findings) -> int:
    """Say findings and the verdict where standard output is for data; return the exit code."""
    what = f"rejected: {render_count(findings, 'finding')}"
    if terminal.as_json:
        return terminal.say(Report(EXIT_REJECTED, "rejected", what, findings))
    for finding in findings:
        terminal.write_err(str(finding))
    terminal.write_err(what, "red")
    return EXIT_REJECTED


def _say_ways(terminal: Terminal) -> int:
    rows = list(run_ways())
    ways = {way: [said == "200" for _, each, said, _ in rows if each == way] for _, way, _, _ in rows}
    if not terminal.as_json:
        terminal.write_out(f"{'pair':17} {'way':8} {'bytes':>6}  what the receiving API says")
        for pair, way, said, size in rows:
            terminal.write_out(f"{pair:17} {way:8} {size:6,}  {shorten(said)}")
    verdict = ", ".join(f"{way} {sum(passed)} of {len(passed)}" for way, passed in ways.items())
    facts = {"rows": [dict(zip(("pair", "way", "says", "bytes"), row)) for row in rows]}
    return terminal.say(Report(EXIT_DONE, "done", verdict, facts=facts))


def find_facts(session: Node) -> Json:
    """Return what is in a session: its maker, and how many turns, calls, results and so on it has."""
    turns = [turn for turn in session["turns"] if turn["role"] != "system"]
    parts = list_parts(session)
    kinds, pairs = [part["kind"] for part in parts], pair_results(session["turns"])[0]
    return {
        **session["issuer"],
        "turns": sum({part["kind"] for part in turn["parts"]} != {"result"} for turn in turns),
        "calls": len(pairs),
        "results": kinds.count("result"),
        "open_calls": sum(pair.result is None for pair in pairs),
        **{kind: kinds.count(kind) for kind in ("media", "other")},
        "credentials": sum("credential" in part for part in parts),
    }


def _say_facts(terminal: Terminal, session: Node) -> int:
    """Say what is in a session, and what its own API would refuse in it; return the exit code."""
    facts, findings, api = find_facts(session), [], session["issuer"]["api"]
    try:
        if api:
            findings = find_session_refusals(read_session(write_home(session), api, facts["model"]))
    except SessionError as error:
        findings = error.findings
    for name, value in () if terminal.as_json else facts.items():
        terminal.write_out(f"{name.replace('_', ' ')}: {'unknown' if value is None else show(str(value))}")
    opens = [call for _, call, result in pair_results(session["turns"])[0] if result is None]
    notes = [f"open call at {render_path(one.at)}: {one['tool']} {one.get('call_id', '')}" for one in opens]
    if findings:
        what = f"rejected: {render_count(findings, 'finding')}"
        return terminal.say(Report(EXIT_REJECTED, "rejected", what, findings, notes, facts))
    what = "its own API is not known to refuse it"
    return terminal.say(Report(EXIT_DONE, "accepted", what, (), notes, facts))


def _judge_reply_file(terminal: Terminal, options: Any, session: Node) -> int:
    """Judge a saved reply in view of a session; with --to neutral print the session with its turn."""
    try:
        turn, findings = judge_reply(session, parse_json(read_input(options.reply), REPLY_DEPTH_LIMIT))
    except InputError as error:
        turn, findings = None, [error]
    if options.to == NEUTRAL and turn is not None:
        grown = render_json({**session, "turns": [*session["turns"], turn]})
        code = _write_output(terminal, options.o, grown)
        return _reject(terminal, findings) if findings else code
    if findings:
        return _reject(terminal, findings)
    return terminal.say(Report(EXIT_DONE, "accepted", "accepted: a whole reply that repeats no operation"))


def render_stream(stream: Stream) -> Iterator[str]:
    """Yield what a person wants to know of a stream, line by line."""
    yield f"API {stream.api or 'unknown'}, model {stream.model or 'unknown'}, stop {stream.stop or 'none'}"
    for state, parts in ("whole", stream.parts), ("open", stream.open_parts):
        for part in parts:
            fields = {key: value for key, value in part.items() if key != "kind"}
            yield f"{state} {part['kind']}: {shorten(render_json(fields), 200)}"
    yield f"usage so far: {render_json(stream.usage) if stream.usage else 'not known'}; cost unknown"
    if stream.error:
        yield f"error: {render_json(stream.error)}"
    if stream.passed_over:
        yield f"passed over: {stream.passed_over:,} events that are not known"
    if stream.open_parts:
        yield "what is open is not finished: never run or complete such a call, never store such reasoning"
    for by in ("prefill", "instruction") if not stream.complete else ():
        refusal = find_recovery_refusal(by, stream.api, stream.model, False, stream)
        yield f"--by {by}: {refusal or _NOTES.get(by, _NOTES.get(stream.api, 'possible'))}"
    if not stream.complete:
        yield f"next: {_RESEND}"


def _cmd_stream(terminal: Terminal, options: Any) -> int:
    """Say what a saved stream holds, print its reply, or go on after a cut."""
    if bool(options.by) != bool(options.session) or (options.by and options.message):
        raise UsageError("--session RECORD and --by go together, and without --message", terminal.name)
    try:
        stream = read_stream(read_input(options.stream))
    except InputError as error:
        raise UnreadableError(options.stream, str(error), "name a file that holds one reply") from error
    if options.by:
        return _print_recovery(terminal, options, stream)
    if options.message and stream.message:
        terminal.write_out(render_json(stream.message, 2))
        return EXIT_DONE
    if options.message:
        return _reject(terminal, stream.findings or [Finding("$", "the reply was cut")])
    verdict, code = "complete" if stream.complete else "cut", EXIT_DONE if stream.message else EXIT_REJECTED
    what = f"{verdict}, {render_count(stream.findings, 'finding')}" if stream.findings else verdict
    facts = {name: value for name, value in vars(stream).items() if name[0] != "_" and name != "findings"}
    for line in () if terminal.as_json else render_stream(stream):
        terminal.write_out(line)
    return terminal.say(Report(code, verdict, what, stream.findings, facts=facts))


def _print_recovery(terminal: Terminal, options: Any, stream: Stream) -> int:
    """Print the body of the request that goes on after a cut, its notes on standard error."""
    session = read_session_file(options.session, getattr(options, "from"), options.issuer)
    api, model = session["issuer"]["api"] or "an unknown API", session["issuer"]["model"] or ""
    thinking = session["settings"].get("thinking") not in (None, {"type": "disabled"})
    refusal = find_recovery_refusal(options.by, api, model, thinking, stream)
    if refusal:
        raise SessionError([Finding(f"--by {options.by}", f"{refusal}; {_RESEND}")])
    note = _NOTES.get(options.by, _NOTES.get(api))
    if note:
        terminal.write_err(f"note: {note}")
    terminal.write_out(render_json(build_recovery(options.by, api, write_home(session), stream.join("text"))))
    return EXIT_DONE


# Every command: what does it, its arguments by their names in _ARGUMENTS, an example of them.
_COMMANDS: dict[str, tuple[Callable[[Terminal, argparse.Namespace], int], str, str]] = {
    "self-test": (_cmd_self_test, "--task --source", ""),
    "session": (
        _cmd_session,
        "FILE --to --model --from --issuer --fresh --no-reasoning --unclear --leave-out --reply --json -o",
        "session.json --to chat --model kimi-k3",
    ),
    "stream": (_cmd_stream, "STREAM --message --session --by --from --issuer --json", "reply.sse"),
    "prepare": (_cmd_prepare, "--out --task --source --session --objective --from --issuer", "--out mine"),
    "verify": (
        _cmd_verify,
        "CHECKPOINT --task --source --session --objective --from --issuer --json",
        "mine/checkpoint.json",
    ),
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
    wanted, word = f"expected a COMMAND ({', '.join(_COMMANDS)})", arguments[0] if arguments else "-"
    if not word.startswith("-") and word not in _COMMANDS:
        raise UsageError(f"{wanted}; {explain_stray(word, _COMMANDS)}", terminal.name)
    try:
        named = [word] if word in _COMMANDS else list(_COMMANDS)  # to build them all takes 3 ms
        options = build_parser(terminal.name, named).parse(arguments, [*_ARGUMENTS, "--help", "--version"])
    except HelpAsked as asked:
        terminal.write_out(str(asked))
        return EXIT_DONE
    if options.command is None:
        raise UsageError(wanted, terminal.name)
    outputs = ("o", "out", "receiver")
    if [value for name, value in vars(options).items() if name not in outputs].count("-") > 1:
        raise UsageError("- is given twice, but standard input can be read only once", terminal.name)
    try:
        return _COMMANDS[options.command][0](terminal, options)
    except SessionError as error:
        return _reject(terminal, error.findings)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` is what follows the program's name."""
    arguments = sys.argv[1:] if argv is None else argv
    name = quote(sys.argv[0]) if argv is None else "checkpoint_demo.py"
    as_json = "--json" in takewhile("--".__ne__, arguments)
    return run_command(name, lambda terminal: _run(terminal, arguments), as_json)


if __name__ == "__main__":
    gc.disable()  # a command leaves no cycles worth a search, which costs a large record half its time
    open_missing_descriptors()
    sys.exit(main())
