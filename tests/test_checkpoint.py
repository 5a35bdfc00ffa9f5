"""build_checkpoint and verify_checkpoint: the one checkpoint that a source allows."""

from __future__ import annotations

import copy
import unittest

from checkpoint_demo import (
    DEMO,
    InputError,
    build_checkpoint,
    canonical_json,
    digest_json,
    list_differences,
    parse_json,
    render_path,
    verify_checkpoint,
)
from tests.support import STOCK, change_copy, drop, exchange, find, put, walk

# By another tool: see test_canonical.py.
STOCK_SHA256 = "b3d576f612f4d004f9316b157d848c6dcd22f7f3b37244ac8e60dab263a4db44"
CHECKPOINT = {
    "schema_version": 1,
    "task_id": "synthetic-stock-20261110",
    "objective": "Report shortage=max(target-available,0) for every SKU. Do not place orders.",
    "source_sha256": STOCK_SHA256,
    "completed": [
        {
            "operation_id": "read-stock-1",
            "operation": "read_stock",
            "status": "verified",
            "result": [
                {"sku": "DEMO-001", "available": 7, "target": 10},
                {"sku": "DEMO-002", "available": 15, "target": 12},
                {"sku": "DEMO-003", "available": 0, "target": 4},
            ],
            "result_sha256": STOCK_SHA256,
        }
    ],
    "pending": ["Produce all three SKU shortage rows", "Pass independent validator"],
    "side_effects": [],
}
FIELDS = tuple(CHECKPOINT)
ROW = '{"sku":"DEMO-003","available":0,"target":4}'
OTHER_SHA256 = "0" * 64
LEAF_VALUES = (
    None,
    True,
    False,
    0,
    1,
    1.0,
    -7,
    2**53 + 1,
    "",
    "1",
    "verified",
    "\ud83d",
    [],
    {},
    [1],
    {"a": 1},
)


READ = ("completed", 0)

# What is changed, and everything that is then found.
REFUSED = {
    "a source digest that was changed": (
        put("source_sha256", to=OTHER_SHA256),
        f'source_sha256: observed the string "{OTHER_SHA256}", expected the string "{STOCK_SHA256}"'
        " (the digest is not that of the trusted source, which --source or --session names)",
    ),
    "a source digest in capitals": (
        put("source_sha256", to=STOCK_SHA256.upper()),
        f'source_sha256: observed the string "{STOCK_SHA256.upper()}", expected the string "{STOCK_SHA256}"'
        " (the digest is not that of the trusted source, which --source or --session names)",
    ),
    "a source digest that was cut": (
        put("source_sha256", to=STOCK_SHA256[:-1]),
        'source_sha256: observed the string "...0dab263a4db4", expected the string "...0dab263a4db44",'
        " from character 51 on (the digest is not that of the trusted source,"
        " which --source or --session names)",
    ),
    "a result digest that was changed": (
        put(*READ, "result_sha256", to=OTHER_SHA256),
        f'completed[0].result_sha256: observed the string "{OTHER_SHA256}", expected the string'
        f' "{STOCK_SHA256}" (the digest of the result is not that of the trusted source)',
    ),
    "a quantity that was changed": (
        put(*READ, "result", 0, "available", to=9),
        "completed[0].result[0].available: observed the integer 9, expected the integer 7"
        " (the result of the read is not what the trusted source holds)",
    ),
    "a row that was dropped": (
        drop(*READ, "result", 2),
        f"completed[0].result[2]: observed nothing, expected the object {ROW}"
        " (the result of the read is not what the trusted source holds)",
    ),
    "a read that is only claimed": (
        put(*READ, "status", to="claimed"),
        'completed[0].status: observed the string "claimed", expected the string "verified"'
        " (a read that is not verified proves nothing)",
    ),
    "a read that is verified in capitals": (
        put(*READ, "status", to="VERIFIED"),
        'completed[0].status: observed the string "VERIFIED", expected the string "verified"'
        " (a read that is not verified proves nothing)",
    ),
    "a read that is verified by true": (
        put(*READ, "status", to=True),
        'completed[0].status: observed true, expected the string "verified"'
        " (a read that is not verified proves nothing)",
    ),
    "a side effect": (
        put("side_effects", to=["order-1"]),
        'side_effects[0]: observed the string "order-1", expected nothing'
        " (a side effect that nobody allowed)",
    ),
    "a side effect of null": (
        put("side_effects", to=[None]),
        "side_effects[0]: observed null, expected nothing (a side effect that nobody allowed)",
    ),
    "side effects as an object": (
        put("side_effects", to={}),
        "side_effects: observed the object {}, expected the array [] (a side effect that nobody allowed)",
    ),
    "schema version 2": (
        put("schema_version", to=2),
        "schema_version: observed the integer 2, expected the integer 1 (an unknown schema version)",
    ),
    "schema version 1.0": (
        put("schema_version", to=1.0),
        "schema_version: observed the number 1.0, expected the integer 1 (an unknown schema version)",
    ),
    "schema version true": (
        put("schema_version", to=True),
        "schema_version: observed true, expected the integer 1 (an unknown schema version)",
    ),
    'schema version "1"': (
        put("schema_version", to="1"),
        'schema_version: observed the string "1", expected the integer 1 (an unknown schema version)',
    ),
    "no schema version": (
        drop("schema_version"),
        "schema_version: observed nothing, expected the integer 1 (a missing field)",
    ),
    "no side effects": (
        drop("side_effects"),
        "side_effects: observed nothing, expected the array [] (a missing field)",
    ),
    "no status of the read": (
        drop(*READ, "status"),
        'completed[0].status: observed nothing, expected the string "verified" (a missing field)',
    ),
    "no quantity in a row": (
        drop(*READ, "result", 1, "target"),
        "completed[0].result[1].target: observed nothing, expected the integer 12 (a missing field)",
    ),
    "an unexpected field": (
        put("notes", to="trust me"),
        'notes: observed the string "trust me", expected nothing (an unexpected field)',
    ),
    "an unexpected field with an escape character": (
        put("\x1b[2J", to=None),
        r'["\u001b[2J"]: observed null, expected nothing (an unexpected field)',
    ),
    "an unexpected field in the read": (
        put(*READ, "price", to=0),
        "completed[0].price: observed the integer 0, expected nothing (an unexpected field)",
    ),
    "an unexpected field in a row": (
        put(*READ, "result", 2, "order", to=4),
        "completed[0].result[2].order: observed the integer 4, expected nothing (an unexpected field)",
    ),
    "another task": (
        put("task_id", to="synthetic-stock-20261111"),
        'task_id: observed the string "synthetic-stock-20261111",'
        ' expected the string "synthetic-stock-20261110" (this is another task)',
    ),
    "an objective that allows orders": (
        put("objective", to=CHECKPOINT["objective"].replace("Do not place", "Place")),
        'objective: observed the string "... every SKU. Place orders.",'
        ' expected the string "... every SKU. Do not place orders.", from character 43 on'
        " (the objective was changed)",
    ),
    "another operation": (
        put(*READ, "operation", to="place_order"),
        'completed[0].operation: observed the string "place_order", expected the string "read_stock"'
        " (the finished operations were changed)",
    ),
    "another operation id": (
        put(*READ, "operation_id", to="read-stock-2"),
        'completed[0].operation_id: observed the string "read-stock-2",'
        ' expected the string "read-stock-1" (the finished operations were changed)',
    ),
    "a second operation": (
        lambda document: document["completed"].append("order-1"),
        'completed[1]: observed the string "order-1", expected nothing'
        " (the finished operations were changed)",
    ),
    "less open work": (
        drop("pending", 1),
        'pending[1]: observed nothing, expected the string "Pass independent validator"'
        " (the open work was changed)",
    ),
    "more open work": (
        lambda document: document["pending"].append("Place the orders"),
        'pending[2]: observed the string "Place the orders", expected nothing (the open work was changed)',
    ),
}


class CheckpointTest(unittest.TestCase):
    def verify(self, document):
        return [str(finding) for finding in verify_checkpoint(document, DEMO, STOCK)]

    def test_build_checkpoint_of_the_stock_is_the_one_of_the_specification(self):
        checkpoint = build_checkpoint(DEMO, STOCK)
        self.assertEqual(list_differences(checkpoint, CHECKPOINT), [])
        self.assertEqual(tuple(checkpoint), FIELDS)
        self.assertEqual(tuple(checkpoint["completed"][0]), tuple(CHECKPOINT["completed"][0]))

    def test_build_checkpoint_of_own_rows_holds_their_digest(self):
        rows = [{"sku": "M\u00f6bel 1", "available": 10**30, "target": 0}]
        checkpoint = build_checkpoint(DEMO, rows)
        self.assertEqual(checkpoint["source_sha256"], digest_json(rows))
        self.assertEqual(checkpoint["completed"][0]["result_sha256"], digest_json(rows))
        self.assertEqual(checkpoint["completed"][0]["result"], rows)
        self.assertEqual(verify_checkpoint(checkpoint, DEMO, rows), [])

    def test_build_checkpoint_sku_without_utf8_form_is_refused(self):
        with self.assertRaisesRegex(InputError, "a lone surrogate has no UTF-8 form"):
            build_checkpoint(DEMO, [{"sku": "\ud83d", "available": 1, "target": 1}])

    def test_verify_checkpoint_right_one_is_verified(self):
        table = {
            "as it is built": build_checkpoint(DEMO, STOCK),
            "as it is specified": CHECKPOINT,
            "as it is read": parse_json(canonical_json(CHECKPOINT)),
            "with its keys in another order": {key: CHECKPOINT[key] for key in reversed(FIELDS)},
        }
        for phrase, document in table.items():
            with self.subTest(phrase):
                self.assertEqual(self.verify(document), [])

    def test_verify_checkpoint_each_refusal_has_its_own_message(self):
        for phrase, (change, message) in REFUSED.items():
            with self.subTest(phrase):
                self.assertEqual(self.verify(change_copy(CHECKPOINT, change)), [message])

    def test_verify_checkpoint_all_faults_are_found_in_document_order(self):
        document = {"zero": 0, **change_copy(CHECKPOINT, put("schema_version", to=2))}
        document["completed"][0].update(status="claimed", result_sha256=None)
        document["side_effects"] = ["a", "b"]
        del document["pending"]
        paths = [finding.path for finding in verify_checkpoint(document, DEMO, STOCK)]
        expected = "zero schema_version completed[0].status completed[0].result_sha256"
        self.assertEqual(paths, [*expected.split(), "side_effects[0]", "side_effects[1]", "pending"])

    def test_verify_checkpoint_consistent_forgery_is_refused(self):
        """A checkpoint whose digests fit its own changed rows is judged by the trusted source."""
        rows = copy.deepcopy(STOCK)
        rows[0]["available"] = 10
        paths = [finding.path for finding in verify_checkpoint(build_checkpoint(DEMO, rows), DEMO, STOCK)]
        result = "completed[0].result"
        digests = ["source_sha256", f"{result}[0].available", f"{result}_sha256"]
        self.assertEqual(paths, ["task_id", *digests, "pending[0]"])

    def test_verify_checkpoint_value_that_is_no_object_is_refused(self):
        table = {
            "null": (None, "null"),
            "true": (True, "true"),
            "an integer": (1, "the integer 1"),
            "a string": ("{}", 'the string "{}"'),
            "an empty array": ([], "the array []"),
        }
        for phrase, (document, words) in table.items():
            with self.subTest(phrase):
                findings = self.verify(document)
                self.assertEqual(len(findings), 1)
                begin = f'$: observed {words}, expected the object {{"schema_version":1,'
                self.assertTrue(findings[0].startswith(begin), findings[0])
                self.assertTrue(findings[0].endswith(" (this is not a checkpoint)"), findings[0])

    def test_verify_checkpoint_checkpoint_in_an_array_is_refused(self):
        self.assertEqual([finding.path for finding in verify_checkpoint([CHECKPOINT], DEMO, STOCK)], ["$"])

    def test_verify_checkpoint_empty_object_misses_every_field(self):
        findings = verify_checkpoint({}, DEMO, STOCK)
        self.assertEqual([finding.path for finding in findings], list(FIELDS))
        for finding in findings:
            self.assertRegex(finding.message, r"\Aobserved nothing, expected .* \(a missing field\)\Z")

    def test_verify_checkpoint_inputs_are_left_as_they_are(self):
        document, rows = change_copy(CHECKPOINT, put("notes", to=[1])), copy.deepcopy(STOCK)
        verify_checkpoint(document, DEMO, rows)
        self.assertEqual(document, {**CHECKPOINT, "notes": [1]})
        self.assertEqual(rows, STOCK)


class CheckpointSweepTest(unittest.TestCase):
    """Whatever single thing is changed in a checkpoint, verify_checkpoint finds it, and where it is."""

    def setUp(self):
        self.checks = 0

    def tearDown(self):
        self.assertGreater(self.checks, 10, "a sweep over nothing")

    def check(self, phrase, path, change):
        self.checks += 1
        document = change_copy(CHECKPOINT, change)
        with self.subTest(phrase, path=render_path(path)):
            paths = [finding.path for finding in verify_checkpoint(document, DEMO, STOCK)]
            self.assertEqual(paths, [render_path(path)])

    def check_array(self, phrase, path, change):
        self.checks += 1
        document = change_copy(CHECKPOINT, lambda document: change(find(document, path)))
        with self.subTest(phrase, path=render_path(path)):
            found = [finding.path for finding in verify_checkpoint(document, DEMO, STOCK)]
            self.assertTrue(found)
            for one in found:  # in the array, and nowhere else
                self.assertTrue(one.startswith(f"{render_path(path)}["), one)

    def test_verify_checkpoint_every_leaf_changed_is_found(self):
        leaves = 0
        for path, value in walk(CHECKPOINT):
            if isinstance(value, (dict, list)) and value:
                continue
            leaves += 1
            others = [f"{value}x", f" {value}", value.upper()] if isinstance(value, str) else []
            others += [value + 1, -value - 1, str(value), float(value)] if isinstance(value, int) else []
            for other in (*others, *LEAF_VALUES):
                # Where an empty array is right, an item is found in it (see the sweep of the arrays).
                if (type(other), other) != (type(value), value) and not (value == [] and other == [1]):
                    self.check(f"{other!r}", path, put(*path, to=other))
        self.assertEqual(leaves, 20)

    def test_verify_checkpoint_every_container_replaced_is_found(self):
        for path, value in walk(CHECKPOINT):
            if isinstance(value, (dict, list)) and path:
                for other in (None, "", 0, {} if isinstance(value, list) else []):
                    self.check(f"{other!r}", path, put(*path, to=other))

    def test_verify_checkpoint_every_key_deleted_is_found(self):
        for path, _ in walk(CHECKPOINT):
            if path and isinstance(path[-1], str):
                self.check("deleted", path, drop(*path))

    def test_verify_checkpoint_every_key_renamed_is_found(self):
        for path, value in walk(CHECKPOINT):
            if path and isinstance(path[-1], str):
                self.checks += 1
                document = copy.deepcopy(CHECKPOINT)
                parent = find(document, path[:-1])
                parent[path[-1].upper()] = parent.pop(path[-1])
                with self.subTest(path=render_path(path)):
                    paths = {finding.path for finding in verify_checkpoint(document, DEMO, STOCK)}
                    renamed = render_path((*path[:-1], path[-1].upper()))
                    self.assertEqual(paths, {render_path(path), renamed}, value)

    def test_verify_checkpoint_key_added_to_every_object_is_found(self):
        for path, value in walk(CHECKPOINT):
            if isinstance(value, dict):
                for key in ("extra", "", "a b", "schema_versions"):
                    for added in (None, 0, "x", [], {}):
                        self.check(f"{key!r} {added!r}", (*path, key), put(*path, key, to=added))

    def test_verify_checkpoint_every_array_item_dropped_doubled_or_added_is_found(self):
        for path, value in walk(CHECKPOINT):
            if not isinstance(value, list):
                continue
            for index in range(len(value)):
                self.check_array(f"dropped {index}", path, lambda items, at=index: items.pop(at))
                self.check_array(
                    f"doubled {index}",
                    path,
                    lambda items, at=index: items.insert(at, copy.deepcopy(items[at])),
                )
            for index in range(len(value) + 1):
                for added in (None, {}, "x"):
                    self.check_array(
                        f"{added!r} added at {index}",
                        path,
                        lambda items, at=index, item=added: items.insert(at, item),
                    )
            for index in range(len(value) - 1):
                self.check_array(f"exchanged {index}", path, exchange(index))


if __name__ == "__main__":
    unittest.main()
