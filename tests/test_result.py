"""The stock, and validate_result: every quantity is recomputed from the trusted source."""

from __future__ import annotations

import copy
import json
import unittest

from checkpoint_demo import (
    DEMO,
    InputError,
    compute_shortage,
    parse_json,
    validate_result,
)
from tests.support import CASES, STOCK, measure_peak_bytes

ROWS = (
    {"sku": "DEMO-001", "shortage": 3},
    {"sku": "DEMO-002", "shortage": 0},
    {"sku": "DEMO-003", "shortage": 4},
)
NO_ROW = {
    sku: f'rows: observed no row for the string "{sku}", expected the object {row}'
    for sku, row in (
        ("DEMO-001", '{"sku":"DEMO-001","shortage":3}'),
        ("DEMO-002", '{"sku":"DEMO-002","shortage":0}'),
        ("DEMO-003", '{"sku":"DEMO-003","shortage":4}'),
    )
}
ALL_MISSING = list(NO_ROW.values())


def rows(*changes, **fields):
    """Return a right result with rows changed (index, change of the row) and fields of the result added."""
    result = {"rows": copy.deepcopy(list(ROWS)), **fields}
    for index, change in changes:
        result["rows"][index].update(change)
    return result


def without(index, key):
    """Return a right result without a field of one row."""
    result = rows()
    del result["rows"][index][key]
    return result


def refused(condition, shortage, words):
    """Return a table's entry for a shortage of the second row that is refused."""
    message = f"rows[1].shortage: observed {words}, expected the integer 0"
    return {condition: (rows((1, {"shortage": shortage})), [message])}


ACCEPTED = {
    "the rows in their order": rows(),
    "the rows in reverse": {"rows": list(reversed(ROWS))},
    "the rows in another order": {"rows": [ROWS[1], ROWS[2], ROWS[0]]},
    "the fields in another order": {
        "rows": [{"shortage": row["shortage"], "sku": row["sku"]} for row in ROWS]
    },
    "minus zero, which is the integer 0": parse_json(
        b'{"rows":[{"sku":"DEMO-001","shortage":3},{"sku":"DEMO-002","shortage":-0},'
        b'{"sku":"DEMO-003","shortage":4}]}'
    ),
}

# The result, and everything that is found: (result, findings).
REFUSED = {
    "null": (None, ["$: observed null, expected an object with the key rows"]),
    "true": (True, ["$: observed true, expected an object with the key rows"]),
    "a number": (7, ["$: observed the integer 7, expected an object with the key rows"]),
    "a string": ("{}", ['$: observed the string "{}", expected an object with the key rows']),
    "an array on top": ([], ["$: observed the array [], expected an object with the key rows"]),
    "an empty object": ({}, ["rows: observed nothing, expected an array of rows"]),
    "rows of null": ({"rows": None}, ["rows: observed null, expected an array of rows"]),
    "rows as an object": (
        {"rows": {"DEMO-001": 3}},
        ['rows: observed the object {"DEMO-001":3}, expected an array of rows'],
    ),
    "rows as a string": (
        {"rows": "[\x1b]"},
        [r'rows: observed the string "[\u001b]", expected an array of rows'],
    ),
    "rows in capitals": (
        {"Rows": []},
        [
            "Rows: observed the array [], expected nothing",
            "rows: observed nothing, expected an array of rows",
        ],
    ),
    "no rows": ({"rows": []}, ALL_MISSING),
    "a key beside rows": (
        rows(summary="2 of 3 short"),
        ['summary: observed the string "2 of 3 short", expected nothing'],
    ),
    "an empty key beside rows": (rows(**{"": None}), ['[""]: observed null, expected nothing']),
    "a key that looks like a path": (
        rows(**{"rows[0]": 1}),
        ['["rows[0]"]: observed the integer 1, expected nothing'],
    ),
    "a result under another key": (
        {"result": {"rows": []}},
        [
            'result: observed the object {"rows":[]}, expected nothing',
            "rows: observed nothing, expected an array of rows",
        ],
    ),
    "a row missing": ({"rows": [ROWS[0], ROWS[2]]}, [NO_ROW["DEMO-002"]]),
    "two rows missing": ({"rows": [ROWS[1]]}, [NO_ROW["DEMO-001"], NO_ROW["DEMO-003"]]),
    "a row of an unknown SKU": (
        {"rows": [*ROWS, {"sku": "DEMO-004", "shortage": 0}]},
        ['rows[3].sku: observed the string "DEMO-004", expected the sku of a row of the source'],
    ),
    "an unknown SKU and a string": (
        {"rows": [*ROWS, {"sku": "DEMO-004", "shortage": "0"}]},
        [
            'rows[3].sku: observed the string "DEMO-004", expected the sku of a row of the source',
            'rows[3].shortage: observed the string "0", expected an integer',
        ],
    ),
    "an unknown SKU in place of another": (
        rows((0, {"sku": "DEMO-1"})),
        [
            'rows[0].sku: observed the string "DEMO-1", expected the sku of a row of the source',
            NO_ROW["DEMO-001"],
        ],
    ),
    "a SKU with a look-alike": (
        rows((0, {"sku": "DEM\u041e-001"})),
        [
            r'rows[0].sku: observed the string "DEM\u041e-001", expected the sku of a row of the source',
            NO_ROW["DEMO-001"],
        ],
    ),
    "a row twice": (
        {"rows": [*ROWS, ROWS[0]]},
        ['rows[3].sku: observed the string "DEMO-001", expected it only once'],
    ),
    "a row three times": (
        {"rows": [*ROWS, ROWS[0], ROWS[0]]},
        [
            'rows[3].sku: observed the string "DEMO-001", expected it only once',
            'rows[4].sku: observed the string "DEMO-001", expected it only once',
        ],
    ),
    "a row twice in place of another": (
        {"rows": [ROWS[0], ROWS[0], ROWS[2]]},
        ['rows[1].sku: observed the string "DEMO-001", expected it only once', NO_ROW["DEMO-002"]],
    ),
    "a row twice, the second one wrong": (
        {"rows": [*ROWS, {"sku": "DEMO-001", "shortage": 9}]},
        [
            'rows[3].sku: observed the string "DEMO-001", expected it only once',
            "rows[3].shortage: observed the integer 9, expected the integer 3",
        ],
    ),
    "a row twice, the first one wrong": (
        {"rows": [{"sku": "DEMO-001", "shortage": 9}, *ROWS]},
        [
            "rows[0].shortage: observed the integer 9, expected the integer 3",
            'rows[1].sku: observed the string "DEMO-001", expected it only once',
        ],
    ),
    "a SKU missing": (
        without(1, "sku"),
        ["rows[1].sku: observed nothing, expected the sku of a row of the source", NO_ROW["DEMO-002"]],
    ),
    "a SKU of null": (
        rows((1, {"sku": None})),
        ["rows[1].sku: observed null, expected the sku of a row of the source", NO_ROW["DEMO-002"]],
    ),
    "a SKU as a number": (
        rows((1, {"sku": 2})),
        ["rows[1].sku: observed the integer 2, expected the sku of a row of the source", NO_ROW["DEMO-002"]],
    ),
    "a SKU that cannot be a key": (
        rows((1, {"sku": ["DEMO-002"]})),
        [
            'rows[1].sku: observed the array ["DEMO-002"], expected the sku of a row of the source',
            NO_ROW["DEMO-002"],
        ],
    ),
    "a shortage missing": (
        without(2, "shortage"),
        ["rows[2].shortage: observed nothing, expected the integer 4"],
    ),
    **refused('the string "0"', "0", 'the string "0"'),
    **refused("an empty string", "", 'the string ""'),
    **refused("false for 0", False, "false"),
    **refused("0.0 for 0", 0.0, "the number 0.0"),
    **refused("-0.0 for 0", -0.0, "the number -0.0"),
    **refused("null for 0", None, "null"),
    **refused("a shortage that was not cut off at 0", -3, "the integer -3"),
    **refused("a wrong quantity", 1, "the integer 1"),
    **refused("a wrong quantity of true", True, "true"),
    **refused("an array", [0], "the array [0]"),
    **refused("an object", {"a": 0}, 'the object {"a":0}'),
    **refused("a huge integer", 10**4_000, f"the integer 1{'0' * 71}... (4,001 characters)"),
    "3.0 for 3": (
        rows((0, {"shortage": 3.0})),
        ["rows[0].shortage: observed the number 3.0, expected the integer 3"],
    ),
    "a field more in a row": (
        rows((2, {"order": True})),
        ["rows[2].order: observed true, expected nothing"],
    ),
    "a field more of null": (rows((2, {"note": None})), ["rows[2].note: observed null, expected nothing"]),
    "a hostile field in a row": (
        rows((2, {"\x1b[2J": "\u202e"})),
        [r'rows[2]["\u001b[2J"]: observed the string "\u202e", expected nothing'],
    ),
    "rows of null, numbers and arrays": (
        {"rows": [*ROWS, None, 3, ["DEMO-001", 3], "DEMO-001: 3"]},
        [
            "rows[3]: observed null, expected an object with sku and shortage",
            "rows[4]: observed the integer 3, expected an object with sku and shortage",
            'rows[5]: observed the array ["DEMO-001",3], expected an object with sku and shortage',
            'rows[6]: observed the string "DEMO-001: 3", expected an object with sku and shortage',
        ],
    ),
    "an empty row": (
        {"rows": [*ROWS, {}]},
        [
            "rows[3].sku: observed nothing, expected the sku of a row of the source",
            "rows[3].shortage: observed nothing, expected an integer",
        ],
    ),
    "rows in an array of arrays": (
        {"rows": [[1]]},
        ["rows[0]: observed the array [1], expected an object with sku and shortage", *ALL_MISSING],
    ),
    "two quantities that were exchanged": (
        rows((0, {"shortage": 4}), (2, {"shortage": 3})),
        [
            "rows[0].shortage: observed the integer 4, expected the integer 3",
            "rows[2].shortage: observed the integer 3, expected the integer 4",
        ],
    ),
    "a fault of every kind": (
        {
            "note": 1,
            "rows": [
                {"sku": "DEMO-002", "shortage": False},
                7,
                {"sku": "DEMO-009", "shortage": 1.5},
                {"more": 0, "sku": "DEMO-002", "shortage": 0},
                {"sku": "DEMO-001", "shortage": 3},
            ],
        },
        [
            "note: observed the integer 1, expected nothing",
            "rows[0].shortage: observed false, expected the integer 0",
            "rows[1]: observed the integer 7, expected an object with sku and shortage",
            'rows[2].sku: observed the string "DEMO-009", expected the sku of a row of the source',
            "rows[2].shortage: observed the number 1.5, expected an integer",
            "rows[3].more: observed the integer 0, expected nothing",
            'rows[3].sku: observed the string "DEMO-002", expected it only once',
            NO_ROW["DEMO-003"],
        ],
    ),
}

# Where the faults stand, in the order of the document.
ORDERED = {
    "a key behind faulty rows": (
        '{"rows":[7,{"sku":"DEMO-001","shortage":3},{"sku":"DEMO-002","shortage":0},'
        '{"sku":"DEMO-003","shortage":4}],"summary":1}',
        ["rows[0]", "summary"],
    ),
    "a key behind rows that are no array": ('{"rows":{},"summary":1}', ["rows", "summary"]),
    "a field behind a faulty shortage": (
        '{"rows":[{"sku":"DEMO-001","shortage":2,"note":1},{"sku":"DEMO-002","shortage":0},'
        '{"sku":"DEMO-003","shortage":4}]}',
        ["rows[0].shortage", "rows[0].note"],
    ),
    "a shortage in front of the SKU": (
        '{"rows":[{"sku":"DEMO-001","shortage":3},{"sku":"DEMO-002","shortage":0},'
        '{"sku":"DEMO-003","shortage":4},{"shortage":"1","sku":"DEMO-004"}]}',
        ["rows[3].shortage", "rows[3].sku"],
    ),
}


def judge(data, source=STOCK):
    """Return the findings on a text as lines, also where it is no strict JSON."""
    try:
        return [str(finding) for finding in validate_result(parse_json(data), DEMO, source)]
    except InputError as error:
        return [str(error)]


class StockTest(unittest.TestCase):
    def test_compute_shortage_is_what_lacks_and_never_negative(self):
        table = {
            "less than the target": (7, 10, 3),
            "more than the target": (15, 12, 0),
            "nothing there": (0, 4, 4),
            "just the target": (4, 4, 0),
            "nothing wanted": (5, 0, 0),
            "one piece short": (2**60, 2**60 + 1, 1),
            "less than nothing there": (-2, 3, 5),
        }
        for phrase, (available, target, shortage) in table.items():
            with self.subTest(phrase):
                row = {"sku": "A", "available": available, "target": target}
                self.assertEqual(compute_shortage(row), shortage)

    def test_build_answer_of_the_stock_is_the_one_of_the_specification(self):
        accepted = (
            '{"rows": [{"sku": "DEMO-001", "shortage": 3}, {"sku": "DEMO-002", "shortage": 0},'
            ' {"sku": "DEMO-003", "shortage": 4}]}'
        )
        self.assertEqual(json.dumps(DEMO.build_answer(STOCK)), accepted)
        self.assertEqual(DEMO.build_answer([]), {"rows": []})

    def test_render_acceptance_says_rows_and_total(self):
        self.assertEqual(DEMO.render_acceptance(STOCK), "accepted: 3 rows, total shortage 7")
        many = [{"sku": f"S-{number}", "available": 9, "target": 8} for number in range(1_234)]
        self.assertEqual(DEMO.render_acceptance(many), "accepted: 1,234 rows, total shortage 0")


class ResultTest(unittest.TestCase):
    def test_validate_result_right_result_is_accepted(self):
        for phrase, result in ACCEPTED.items():
            with self.subTest(phrase):
                self.assertEqual(validate_result(result, DEMO, STOCK), [])

    def test_validate_result_wrong_result_is_refused_with_every_finding(self):
        for phrase, (result, findings) in REFUSED.items():
            with self.subTest(phrase):
                self.assertEqual([str(finding) for finding in validate_result(result, DEMO, STOCK)], findings)

    def test_validate_result_findings_stand_in_document_order(self):
        for phrase, (text, paths) in ORDERED.items():
            with self.subTest(phrase):
                found = [finding.path for finding in validate_result(parse_json(text.encode()), DEMO, STOCK)]
                self.assertEqual([path for path in found if path in paths], paths)

    def test_validate_result_memory_is_bounded_however_much_is_wrong(self):
        results = {
            "rows that are none": {"rows": [7] * 500_000},
            "rows without fields": {"rows": [{}] * 500_000},
            "unknown SKUs": {"rows": [{"sku": "no", "shortage": 1}] * 500_000},
            "the same row again and again": {"rows": [{"sku": "DEMO-001", "shortage": 3}] * 500_000},
        }
        for phrase, result in results.items():
            with self.subTest(phrase):
                self.assertLess(measure_peak_bytes(validate_result, result, DEMO, STOCK), 10 * 2**20)

    def test_validate_result_own_rows_are_the_source(self):
        source = [
            {"sku": "M\u00f6bel", "available": 0, "target": 10**30},
            {"sku": "", "available": 9, "target": 9},
        ]
        right = {"rows": [{"sku": "", "shortage": 0}, {"sku": "M\u00f6bel", "shortage": 10**30}]}
        self.assertEqual(validate_result(right, DEMO, source), [])
        self.assertEqual(len(validate_result(right, DEMO, STOCK)), 5)
        self.assertEqual(len(validate_result(rows(), DEMO, source)), 5)
        float_result = {"rows": [{"sku": "", "shortage": 0}, {"sku": "M\u00f6bel", "shortage": 1e30}]}
        findings = [str(finding) for finding in validate_result(float_result, DEMO, source)]
        expected = f"observed the number 1e+30, expected the integer 1{'0' * 30}"
        self.assertEqual(findings, [f"rows[1].shortage: {expected}"])

    def test_validate_result_whole_message_is_told_first_and_every_other_finding_behind_it(self):
        reply = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "{}"}]}
        for more, others in (({}, ["rows"]), (rows(), [])):
            first, *findings = validate_result({**reply, **more}, DEMO, STOCK)
            self.assertEqual(first.path, "$")
            self.assertIn("which extract takes out", first.message)
            self.assertEqual([finding.path for finding in findings], [*reply, *others])
        for field in reply:
            with self.subTest(field):
                odd = {name: value for name, value in reply.items() if name != field}
                self.assertNotIn("$", [finding.path for finding in validate_result(odd, DEMO, STOCK)])

    def test_validate_result_no_rows_for_no_stock_is_accepted(self):
        self.assertEqual(validate_result({"rows": []}, DEMO, []), [])
        self.assertEqual(len(validate_result(rows(), DEMO, [])), 6)

    def test_validate_result_every_row_of_many_is_judged(self):
        source = [{"sku": f"S-{number}", "available": 0, "target": number} for number in range(5_000)]
        result = DEMO.build_answer(source)
        self.assertEqual(validate_result(result, DEMO, source), [])
        for row in result["rows"]:
            row["shortage"] += 1
        self.assertEqual(len(validate_result(result, DEMO, source)), 5_000)

    def test_validate_result_says_where_it_ended_and_nothing_of_what_it_did_not_look_at(self):
        rows = [{"sku": f"S{number}", "available": 0, "target": 1} for number in range(12_000)]
        result = DEMO.build_answer(rows)
        for row in result["rows"][:10_001]:
            row["shortage"] = 2
        findings = validate_result(result, DEMO, rows)
        self.assertEqual(len(findings), 10_001)
        self.assertEqual(
            str(findings[-1]),
            "rows[10000].shortage: not looked at, nor anything behind it: 10,000 findings come before it",
        )
        self.assertEqual(len(validate_result({"rows": []}, DEMO, rows)), 10_001)

    def test_validate_result_inputs_are_left_as_they_are(self):
        result, source = rows((0, {"shortage": 9, "note": 1}), summary=1), copy.deepcopy(STOCK)
        before = copy.deepcopy(result)
        validate_result(result, DEMO, source)
        self.assertEqual((result, source), (before, STOCK))

    def test_validate_result_right_result_is_accepted_only_for_one_source(self):
        """A sweep: any other number in the source makes the same result wrong, if the shortage changes."""
        for index, row in enumerate(STOCK):
            for field in ("available", "target"):
                for step in (-1, 1):
                    source = copy.deepcopy(STOCK)
                    source[index][field] += step
                    same = compute_shortage(source[index]) == compute_shortage(row)
                    with self.subTest(sku=row["sku"], field=field, step=step):
                        paths = [finding.path for finding in validate_result(rows(), DEMO, source)]
                        self.assertEqual(paths, [] if same else [f"rows[{index}].shortage"])


class ResultCasesTest(unittest.TestCase):
    """Each file in tests/cases/validate is named for its defect, or good."""

    folder = CASES / "validate"

    def setUp(self):
        lines = (self.folder / "expected.jsonl").read_text(encoding="utf-8").split("\n")
        self.cases = {case["file"]: case["expected"] for case in map(json.loads, filter(None, lines))}

    def test_cases_every_file_is_listed_and_there_are_both_kinds(self):
        names = {path.name for path in self.folder.glob("*.txt")}
        self.assertEqual(names, set(self.cases))
        self.assertEqual(set(self.cases.values()), {"accept", "reject"})
        self.assertGreaterEqual(len(names), 36)

    def test_cases_each_is_judged_as_expected(self):
        self.assertTrue(self.cases)
        for name, expected in self.cases.items():
            with self.subTest(name):
                findings = judge((self.folder / name).read_bytes())
                self.assertEqual("reject" if findings else "accept", expected, findings)
                self.assertEqual(name.endswith("-good.txt"), expected == "accept")
                for line in findings:
                    self.assertRegex(line, r"\A[^\x00-\x1f\x7f-\x9f]+: [^\x00-\x1f\x7f-\x9f]+\Z")


if __name__ == "__main__":
    unittest.main()
