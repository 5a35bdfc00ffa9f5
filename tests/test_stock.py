"""One's own stock: what is read out of CSV and JSON, what is refused and where, and runs on it."""

from __future__ import annotations

import json
import os
import shutil

import checkpoint_demo
import run_handoff
from checkpoint_demo import DEMO, InputError, check_rows
from tests.support import (
    GOOD_RUN,
    STOCK,
    FolderTestCase,
    RunTestCase,
    build_plan,
    checkpoint,
    handoff,
    message,
    respond,
    run_in_process,
    text,
)

ROWS = [{"sku": "A-1", "available": 2, "target": 5}, {"sku": "B", "available": 0, "target": 10**12}]
CSV = "sku,available,target\nA-1,2,5\nB,0,1000000000000\n"
QUANTITY = "expected an integer from 0 to 10^12 in plain digits"

READ = {
    "a CSV text": CSV.encode(),
    "a byte-order mark": b"\xef\xbb\xbf" + CSV.encode(),
    "CRLF": CSV.replace("\n", "\r\n").encode(),
    "no newline at the end": CSV.encode().rstrip(),
    "quotes": b'"sku","available","target"\n"A-1","2","5"\nB,0,1000000000000\n',
    "blank lines": b"\nsku,available,target\n\nA-1,2,5\n\r\n\nB,0,1000000000000\n\n",
    "other columns first": b"target,sku,available\n5,A-1,2\n1000000000000,B,0\n",
    "leading zeros": b"sku,available,target\nA-1,02,005\nB,0,1000000000000\n",
    "a JSON array": json.dumps(ROWS).encode(),
    "JSON behind white space and a byte-order mark": b"\xef\xbb\xbf \n" + json.dumps(ROWS, indent=2).encode(),
    "JSON with other fields first": json.dumps([dict(sorted(row.items())) for row in ROWS]).encode(),
}

SKUS = {
    "a comma, quotes and a space": (b'"A, ""1"""', 'A, "1"'),
    "letters of any script": ("größe-樋".encode(), "größe-樋"),
    "what would be HTML": (b"<script>alert(1)</script>", "<script>alert(1)</script>"),
    "a right-to-left mark": ("A\u202eB".encode(), "A\u202eB"),
    "digits": (b"007", "007"),
}

CSV_REFUSED = {
    "an empty file": (b"", "the source: observed 0 rows"),
    "only a header": (b"sku,available,target\n", "the source: observed 0 rows"),
    "no header": (b"A-1,2,5\n", 'line 1: observed the array ["A-1","2","5"]'),
    "a missing column": (b"sku,available\nA,1\n", "line 1: observed the array"),
    "an extra column": (b"sku,available,target,price\nA,1,2,3\n", "line 1: observed the array"),
    "a column twice": (b"sku,available,available\nA,1,2\n", "line 1: observed the array"),
    "a column in capitals": (b"SKU,available,target\nA,1,2\n", "line 1: observed the array"),
    "semicolons": (b"sku;available;target\nA;1;2\n", "line 1: observed the array"),
    "a missing field": (b"sku,available,target\nA,1\n", "line 2: observed 2 fields, expected 3"),
    "an extra field": (b"sku,available,target\nA,1,2\nB,1,2,3\n", "line 3: observed 4 fields, expected 3"),
    "a line of commas": (b"sku,available,target\n,,\nA,1,2\n", "line 2, column sku: observed the string"),
    "a line of spaces": (b"sku,available,target\n  \nA,1,2\n", "line 2: observed 1 field, expected 3 fields"),
    "a fault behind a blank line": (
        b"sku,available,target\n\nA,1\n",
        "line 3: observed 2 fields, expected 3",
    ),
    "an open quote": (b'sku,available,target\n"A,1,2\n', "line 2: not CSV"),
    "text behind a quote": (b'sku,available,target\n"A"x,1,2\n', "line 2: not CSV"),
    "an empty SKU": (b"sku,available,target\nA,1,2\n,1,2\n", 'line 3, column sku: observed the string ""'),
    "a control character": (b"sku,available,target\nA\x07,1,2\n", "line 2, column sku: observed the string"),
    "a newline in a SKU": (b'sku,available,target\n"A\nB",1,2\n', "line 2: not CSV"),
    "a quote that is never closed": (b'sku,available,target\nA,1,2\n"B,1,2\nC,1,2\n', "line 3: not CSV"),
    "a row behind a quoted newline": (b'sku,available,target\n"A\nB",1,2\n', "line 2: not CSV"),
    "a C1 control character": ("sku,available,target\nA\x85,1,2\n".encode(), "line 2, column sku"),
    "a repeated SKU": (b"sku,available,target\nA,1,2\nB,1,2\nA,1,2\n", "line 4, column sku: observed"),
    "a formula for a SKU": (b"sku,available,target\n=A1,1,2\n", "line 2, column sku: observed the string"),
    "Latin-1": ("sku,available,target\nä,1,2\n".encode("latin-1"), "line 2 column 1: not UTF-8"),
    "Latin-1 behind a byte-order mark": (
        b"\xef\xbb\xbfsku,available,target\nA,1,2\nB\xe4,1,2\n",
        "line 3 column 2: not UTF-8",
    ),
    "UTF-16": ("sku,available,target\nA,1,2\n".encode("utf-16"), "line 1 column 1: not UTF-8"),
}
QUANTITIES_REFUSED = {
    "an exponent": "1e3",
    "a decimal point": "1.0",
    "a sign": "+5",
    "a minus": "-5",
    "minus zero": "-0",
    "a space in front": " 5",
    "a space behind": "5 ",
    "full-width digits": "\uff11\uff12",
    "Arabic digits": "\u0661",
    "a superscript": "\u00b2",
    "a formula": "=1+2",
    "a thousands separator": '"1,000"',
    "an underscore": "1_000",
    "hexadecimal": "0x10",
    "nothing": "",
    "a word": "many",
    "more than 10^12": str(10**12 + 1),
    "more digits than an integer may have": "9" * 5_000,
}
JSON_REFUSED = {
    "an empty array": ([], "the source: observed 0 rows"),
    "an object": ({"rows": ROWS}, "the source: observed the object"),
    "a row that is none": (["A"], '[0]: observed the string "A"'),
    "a missing field": ([{"sku": "A", "available": 1}], "[0]: observed the object"),
    "an extra field": ([{**ROWS[0], "price": 1}], "[0]: observed the object"),
    "a SKU that is a number": ([{**ROWS[0], "sku": 7}], "[0].sku: observed the integer 7"),
    "an empty SKU": ([{**ROWS[0], "sku": ""}], '[0].sku: observed the string ""'),
    "a control character": ([{**ROWS[0], "sku": "A\n"}], "[0].sku: observed the string"),
    "a lone surrogate": ([{**ROWS[0], "sku": "\ud800"}], "[0].sku: observed the string"),
    "a repeated SKU": ([*ROWS, ROWS[0]], '[2].sku: observed the string "A-1", expected'),
    "digits in a string": ([ROWS[0], {**ROWS[1], "target": "5"}], '[1].target: observed the string "5"'),
    "a decimal point": ([{**ROWS[0], "target": 5.0}], "[0].target: observed the number 5.0"),
    "true": ([{**ROWS[0], "available": True}], "[0].available: observed true"),
    "null": ([{**ROWS[0], "available": None}], "[0].available: observed null"),
    "a negative number": ([{**ROWS[0], "available": -1}], "[0].available: observed the integer -1"),
    "more than 10^12": ([{**ROWS[0], "target": 10**12 + 1}], "[0].target: observed the integer"),
}


class ParseStockTest(FolderTestCase):
    def refuse(self, data, begin):
        """Expect a refusal whose text begins with some words."""
        with self.assertRaises(InputError) as caught:
            check_rows(DEMO.parse_source(data), "sku")
        self.assertTrue(str(caught.exception).startswith(begin), caught.exception)

    def test_every_form_gives_the_same_rows(self):
        for phrase, data in READ.items():
            with self.subTest(phrase):
                rows = DEMO.parse_source(data)
                self.assertEqual(rows, ROWS)
                self.assertEqual(checkpoint_demo.list_differences(rows, ROWS), [])
                self.assertEqual([list(row) for row in rows], [["sku", "available", "target"]] * 2)

    def test_sku_is_kept_as_it_stands(self):
        for phrase, (field, sku) in SKUS.items():
            with self.subTest(phrase):
                self.assertEqual(DEMO.parse_source(b"sku,available,target\n%s,1,2\n" % field)[0]["sku"], sku)
                self.assertEqual(
                    DEMO.parse_source(json.dumps([{**ROWS[0], "sku": sku}]).encode())[0]["sku"], sku
                )

    def test_csv_is_refused_with_its_place(self):
        for phrase, (data, begin) in CSV_REFUSED.items():
            with self.subTest(phrase):
                self.refuse(data, begin)

    def test_quantity_is_refused_with_its_line_and_column(self):
        for phrase, field in QUANTITIES_REFUSED.items():
            for column, row in {"available": f"B,{field},2", "target": f"B,2,{field}"}.items():
                with self.subTest(phrase, column=column):
                    data = f"sku,available,target\nA,1,2\n{row}\n".encode()
                    self.refuse(data, f"line 3, column {column}: observed ")
                    with self.assertRaisesRegex(InputError, "expected an integer from 0 to 10.12 in plain"):
                        DEMO.parse_source(data)

    def test_json_is_refused_with_its_place(self):
        for phrase, (value, begin) in JSON_REFUSED.items():
            with self.subTest(phrase):
                self.refuse(json.dumps(value).encode(), begin)
        no_json = {"NaN": b"[NaN]", "a comment": b"[] //", "a key twice": b'[{"sku":1,"sku":2}]'}
        for phrase, data in no_json.items():
            with self.subTest(phrase), self.assertRaises(InputError):
                DEMO.parse_source(data)

    def test_second_byte_order_mark_is_refused(self):
        mark = b"\xef\xbb\xbf"
        for data in (json.dumps(ROWS).encode(), CSV.encode()):
            self.assertEqual(DEMO.parse_source(mark + data), ROWS)
            with self.subTest(data=data[:1]), self.assertRaises(InputError):
                DEMO.parse_source(mark + mark + data)

    def test_size_is_bounded(self):
        most = [{"sku": f"S{number}", "available": 1, "target": 2} for number in range(100_000)]
        self.assertEqual(len(DEMO.parse_source(json.dumps(most).encode())), 100_000)
        lines = ["sku,available,target", *(f"S{number},1,2" for number in range(100_001))]
        self.assertEqual(len(DEMO.parse_source("\n".join(lines[:-1]).encode())), 100_000)
        self.refuse(
            "\n".join(lines).encode(), "the source: observed 100,001 rows, expected an array of 1 to 100,000"
        )
        self.refuse(b"x" * (checkpoint_demo.INPUT_LIMIT_BYTES + 1), "byte 67108864: longer than")

    def test_checkpoint_of_own_rows_is_named_by_their_digest(self):
        own = checkpoint_demo.build_checkpoint(DEMO, ROWS)
        self.assertEqual(own["task_id"], f"stock-{own['source_sha256'][:12]}")
        self.assertEqual(own["pending"][0], "Produce all 2 SKU shortage rows")
        self.assertEqual(checkpoint_demo.verify_checkpoint(own, DEMO, ROWS), [])

    def test_built_in_rows_keep_their_checkpoint_wherever_they_come_from(self):
        again = DEMO.parse_source(json.dumps(STOCK).encode())
        self.assertEqual(
            checkpoint_demo.build_checkpoint(DEMO, again), checkpoint_demo.build_checkpoint(DEMO, STOCK)
        )


class StockCommandTest(FolderTestCase):
    def setUp(self):
        super().setUp()
        self.stock = self.put("stock.csv", CSV)

    def test_prepare_verify_and_validate_take_it(self):
        ended = checkpoint("prepare", "--source", self.stock, "--out", self.path("work"))
        self.assertEqual(ended.code, 0, ended)
        digest = checkpoint_demo.digest_json(ROWS)[:12]
        verified = checkpoint("verify", self.path("work/checkpoint.json"), "--source", self.stock)
        self.assertEqual((verified.code, verified.out), (0, f"verified: 2 rows, source {digest}\n"))
        good = json.dumps(checkpoint_demo.DEMO.build_answer(ROWS)).encode()
        accepted = checkpoint("validate", "-", "--source", self.stock, stdin=good)
        self.assertEqual(
            (accepted.code, accepted.out), (0, "accepted: 2 rows, total shortage 1000000000003\n")
        )

    def test_what_a_file_claims_is_never_the_source(self):
        checkpoint("prepare", "--source", self.stock, "--out", self.path("work"))
        for options in ([], ["--source", self.put("other.csv", CSV.replace("2,5", "2,6"))]):
            with self.subTest(options=len(options)):
                ended = checkpoint("verify", self.path("work/checkpoint.json"), *options)
                self.assertEqual(ended.code, 1, ended)
        good = json.dumps(checkpoint_demo.DEMO.build_answer(ROWS)).encode()
        self.assertEqual(checkpoint("validate", "-", stdin=good).code, 1)

    def test_bad_stock_is_refused_before_anything_is_done(self):
        bad = self.put("bad.csv", CSV.replace(",5", ",5.0"))
        words = f'unreadable: {bad}: line 2, column target: observed the string "5.0", {QUANTITY}'
        commands = {
            "prepare": lambda: checkpoint("prepare", "--out", self.path("work"), "--source", bad),
            "verify": lambda: checkpoint("verify", "--source", bad),
            "validate": lambda: checkpoint("validate", "-", "--source", bad),
            "rehearse": lambda: handoff("--rehearse", "--out", self.path("work"), "--source", bad),
            "live": lambda: handoff("--live", "--out", self.path("work"), "--source", bad),
            "inspect": lambda: handoff("--inspect", self.path("work"), "--source", bad),
            "no mode": lambda: handoff("--source", bad),
        }
        for name, run in commands.items():
            with self.subTest(name):
                ended = run()
                self.assertEqual((ended.code, ended.out), (2, ""), ended)
                self.assertIn(words, ended.err)
                self.assertEqual(self.names(), ["bad.csv", "stock.csv"])

    def test_stock_that_is_no_strict_json_is_refused_with_its_place(self):
        faults = {
            "a key twice": ('[{"sku":"A","sku":"B"}]', '[0]: the object has the key the string "sku" twice'),
            "NaN": ('[{"sku":NaN}]', "[0].sku: NaN is not a JSON number"),
            "a cut text": ('[{"sku":', "line 1 column 9: not JSON"),
        }
        for phrase, (text_, words) in faults.items():
            bad = self.put("bad.json", text_)
            for run in (checkpoint, handoff):
                with self.subTest(phrase, run=run.__name__):
                    first = (
                        ["validate", "-"] if run is checkpoint else ["--rehearse", "--out", self.path("x")]
                    )
                    ended = run(*first, "--source", bad)
                    self.assertEqual((ended.code, ended.out), (2, ""), ended)
                    self.assertIn(f": unreadable: {bad}: {words}", ended.err)

    def test_stock_that_is_not_there_is_refused(self):
        ended = checkpoint("validate", "-", "--source", self.path("nowhere.csv"))
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("unreadable: ", ended.err)


class StockRunTest(RunTestCase):
    """Runs on own stock, and what an inspection makes of them."""

    def setUp(self):
        super().setUp()
        self.stock = self.put("stock.csv", CSV)

    def answer(self, rows):
        words = json.dumps(checkpoint_demo.DEMO.build_answer(rows))
        return respond(message([text(words)], model=checkpoint_demo.RECEIVER_MODEL))

    def live_on_stock(self, answer, *options, out="run"):
        server = self.serve(*GOOD_RUN[:2], answer)
        return self.live(server, "--source", self.stock, *options, out=out), server

    def test_stock_whose_answer_is_larger_than_any_reply_is_refused_with_the_numbers(self):
        """Whatever --max-tokens allows: what comes back would be cut off, and would have been paid."""
        stocks = {
            "too many rows": [{"sku": f"S{number}", "available": 1, "target": 2} for number in range(34_000)],
            "too many commas": [
                {"sku": f"{number}{',' * 2_500}", "available": 0, "target": 1} for number in range(41)
            ],
            "too many bytes": [
                {"sku": f"{number}{'A' * 130_000}", "available": 0, "target": 1} for number in range(33)
            ],
        }
        server = self.serve()
        for phrase, rows in stocks.items():
            self.stock = self.put("large.json", json.dumps(rows))
            options = ("--source", self.stock, "--max-tokens", "9000000")
            for ended in (
                self.live(server, *options),
                handoff("--rehearse", "--out", self.path("run"), *options),
            ):
                with self.subTest(phrase):
                    self.assertEqual(ended.code, 3, ended)
                    self.assertRegex(
                        ended.err, "refused: [0-9,]+ rows: the answer takes [0-9,]+ (bytes|items)"
                    )
                    self.assertNotIn("run", self.names())
        self.assertEqual(server.connections, 0)

    def test_run_is_judged_on_it_and_says_so_or_on_the_trusted_file(self):
        ended, server = self.live_on_stock(self.answer(ROWS))
        self.assertEqual(ended.code, 0, ended)
        told = json.loads(server.requests[1].body)["messages"][-1]["content"][0]["content"]
        self.assertEqual(json.loads(told), ROWS)
        limit = "it is judged on the rows recorded in it; name the trusted source with --source FILE"
        bare = self.inspect()
        self.assertEqual((bare.code, f"{limit}\n" in bare.out), (0, True), bare)
        trusted = self.inspect("run", "--source", self.stock)
        self.assertEqual((trusted.code, trusted.err), (0, ""), trusted)

    def test_stock_in_the_evidence_that_is_no_text_is_no_crash(self):
        self.live_on_stock(self.answer(ROWS))
        path = self.folder / "run" / "2-request.json"
        request = json.loads(path.read_text())
        for content in ([], {}, ["x"], None, 7, "no JSON", "[]"):
            with self.subTest(content):
                request["messages"][-1]["content"][0]["content"] = content
                path.write_text(json.dumps(request))
                ended = self.inspect()
                self.assertEqual(ended.code, 1, ended)
                self.assertIn("2-request.json", ended.err)

    def test_rows_that_were_changed_before_the_run_are_found_with_the_trusted_file(self):
        other = self.put("other.csv", CSV.replace("2,5", "2,9"))
        ended, _ = self.live_on_stock(self.answer(ROWS))
        inspected = self.inspect("run", "--source", other)
        self.assertEqual((ended.code, inspected.code), (0, 1), inspected)
        self.assertIn("source_sha256", inspected.err)

    def test_run_on_the_built_in_stock_is_not_judged_on_another(self):
        self.assertEqual(self.live(self.serve(*GOOD_RUN)).code, 0)
        self.assertEqual(self.inspect("run", "--source", self.stock).code, 1)

    def test_rows_that_were_changed_in_the_folder_are_found_without_it(self):
        self.live_on_stock(self.answer(ROWS))
        path = self.folder / "run" / "2-request.json"
        path.write_bytes(path.read_bytes().replace(b'\\"target\\":5', b'\\"target\\":6'))
        inspected = self.inspect()
        self.assertEqual(inspected.code, 1, inspected)
        self.assertIn("2-request.json: its source is not the one that the ledger begins with", inspected.err)

    def test_run_that_fails_early_is_inspected_without_its_stock(self):
        refused = respond({"type": "error", "error": {"type": "x", "message": "y"}}, status=401)
        self.assertEqual(self.live(self.serve(refused), "--source", self.stock).code, 4)
        for options in ([], ["--source", self.stock]):
            with self.subTest(options=len(options)):
                inspected = self.inspect("run", *options)
                self.assertEqual(inspected.code, 4, inspected)

    def test_wrong_answer_is_rejected_on_own_stock(self):
        ended, _ = self.live_on_stock(self.answer([{**ROWS[0], "target": 6}, ROWS[1]]))
        self.assertEqual((ended.code, self.inspect().code), (1, 1))
        self.assertIn("rows[0].shortage: observed the integer 4, expected the integer 3", ended.err)

    def test_answer_that_cannot_fit_is_refused_with_the_numbers_before_anything_is_sent(self):
        rows = [{"sku": f"SKU-{number:05}", "available": 0, "target": number} for number in range(300)]
        path = self.put("many.json", json.dumps(rows))
        tokens = run_handoff.estimate_answer_tokens(build_plan(rows=rows))
        server = self.serve()
        ended = self.live(server, "--source", path)
        self.assertEqual((ended.code, ended.out, server.connections), (3, "", 0), ended)
        what = f"300 rows: the answer takes about {tokens:,} tokens, the limit is 4,096"
        self.assertIn(f"refused: {what}\n", ended.err)
        self.assertEqual(self.names(), ["many.json", "stock.csv"])
        for limit, code in ((tokens - 1, 3), (tokens, 0)):
            with self.subTest(limit=limit):
                script = (*GOOD_RUN[:2], self.answer(rows))
                options = ("--source", path, "--max-tokens", str(limit))
                self.assertEqual(self.live(self.serve(*script), *options).code, code)

    def test_estimate_holds_for_the_recorded_answer_with_room(self):
        recorded = 67  # output tokens of the recorded receiver's reply, of which the answer is a part
        self.assertGreater(run_handoff.estimate_answer_tokens(build_plan()), recorded)

    def test_rehearsal_of_10_000_rows_is_accepted_and_holds(self):
        rows = [{"sku": f"S{number}", "available": number, "target": 9_000} for number in range(10_000)]
        path = self.put("large.json", json.dumps(rows))
        ended = handoff("--rehearse", "--out", self.path("run"), "--source", path)
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("--live would refuse this: 10,000 rows: the answer takes about", ended.err)
        self.assertTrue(
            ended.out.endswith(
                "accepted: 10,000 rows, total shortage 40504500 (rehearsal: no model answered)\n"
            ),
            ended.out,
        )
        self.assertEqual(self.inspect("run", "--source", path).code, 0)
        self.assertEqual(self.inspect("run").code, 0)

    def test_stock_comes_from_standard_input_too(self):
        arguments = ("--rehearse", "--out", self.path("run"), "--source", "-")
        ended = run_in_process(run_handoff.main, *arguments, stdin=CSV.encode())
        self.assertEqual(ended.code, 0, ended)

    def test_forged_folder_on_other_rows_says_that_it_is_judged_on_them(self):
        """A whole forgery agrees with itself; the trusted file shows that it is one."""
        self.live_on_stock(self.answer(ROWS))
        other = [{**ROWS[0], "target": 9}, ROWS[1]]
        path = self.put("other.json", json.dumps(other))
        server = self.serve(*GOOD_RUN[:2], self.answer(other))
        self.assertEqual(self.live(server, "--source", path, out="forged").code, 0)
        shutil.rmtree(self.folder / "run")
        os.rename(self.folder / "forged", self.folder / "run")
        self.assertIn("judged on the rows recorded in it", self.inspect().out)
        self.assertEqual(self.inspect("run", "--source", self.stock).code, 1)
