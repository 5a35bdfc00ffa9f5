"""The report of a run: its structure, hostile text in it, and how a real browser shows it."""

from __future__ import annotations

import base64
import hashlib
import html
import html.parser
import json
import os
import re
import shutil
import subprocess
import unittest
import urllib.parse
import zlib
from unittest import mock

import checkpoint_demo
import run_handoff
from tests.support import (
    CALLED,
    ENDED,
    GOOD_RUN,
    RunTestCase,
    handoff,
    message,
    respond,
    run_all_at_once,
    text,
)

VOID = {"meta", "br"}
SECTIONS = [
    "The way of the task",
    "Requests",
    "Source and answer",
    "What was checked, and what that proves",
    "Ledger",
    "Files",
]
HOSTILE = "\"'>--><script>alert(1)</script><img src=URL>&amp;\u202e\u200f\x1b[31m\x07\x9b2J"
REFUSED = respond({"type": "error", "error": {"type": "authentication_error", "message": "no"}}, status=401)


class Page(html.parser.HTMLParser):
    """A report taken apart: balanced elements as (name, attributes, text inside)."""

    def __init__(self, data):
        super().__init__()
        self.elements, self._open, self.title = [], [], ""
        self.feed(data)
        self.close()
        if self._open:
            raise AssertionError(f"elements that are not closed: {self._open}")

    def handle_starttag(self, tag, attributes):
        element = (tag, dict(attributes), [])
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        if not self._open or self._open[-1][0] != tag:
            raise AssertionError(f"</{tag}> closes nothing")
        self._open.pop()

    def handle_data(self, data):
        for _, _, words in self._open:
            words.append(data)

    def handle_comment(self, data):
        raise AssertionError("a comment stands in the report")

    def find(self, tag):
        """Return [(attributes, text)] of the elements with a name."""
        return [(attributes, "".join(words)) for name, attributes, words in self.elements if name == tag]

    def list_way(self):
        """Return what the picture of the way of the task says, a line for each station."""
        (words,) = [words for attributes, words in self.find("ol") if attributes.get("class") == "way"]
        return words.split("\n")[1:-1]

    @property
    def text(self):
        """All that a reader is shown."""
        return self.find("body")[0][1]


class ReportTestCase(RunTestCase):
    def page(self, out="run", name="report.html"):
        """Return the report in a run's folder, taken apart."""
        return Page((self.folder / out / name).read_text(encoding="utf-8"))

    def report(self, out="run", *options):
        """Let --inspect write a report beside the run, and return it taken apart."""
        path = self.folder / f"{out}.html"
        self.inspect(out, "--html", str(path), *options)
        return Page(path.read_text(encoding="utf-8"))


class StructureTest(ReportTestCase):
    def setUp(self):
        super().setUp()
        self.assertEqual(self.live(self.serve(*GOOD_RUN)).code, 0)

    def test_verdict_comes_first_and_the_sections_follow(self):
        page = self.page()
        self.assertEqual(page.find("h1")[0][1], "Accepted")
        self.assertEqual(page.find("title")[0][1], "Handoff run: Accepted")
        self.assertEqual([words for _, words in page.find("h2")], SECTIONS)
        names = [tag for tag, _, _ in page.elements]
        self.assertLess(names.index("h1"), names.index("h2"))
        self.assertEqual(page.find("html")[0][0]["lang"], "en")

    def test_policy_allows_its_style_and_nothing_else(self):
        page = self.page()
        metas = {
            attributes.get("http-equiv"): attributes.get("content") for attributes, _ in page.find("meta")
        }
        style = page.find("style")[0][1]
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        self.assertEqual(metas["Content-Security-Policy"], policy)
        self.assertNotIn("url(", style)
        self.assertNotIn("@import", style)

    def test_nothing_in_it_loads_or_runs_anything(self):
        allowed = {
            *("html", "head", "meta", "title", "style", "body", "header", "main", "h1", "h2", "h3", "p"),
            *("ul", "ol", "li", "dl", "dt", "dd", "div", "table", "thead", "tbody", "tr", "th", "td", "a"),
            *("strong", "span"),
        }
        elements = self.page().elements
        self.assertGreater(len(elements), 200)
        for tag, attributes, _ in elements:
            self.assertIn(tag, allowed)
            self.assertEqual([name for name in attributes if name.startswith("on") or name == "style"], [])
            self.assertNotIn("src", attributes)

    def test_links_lead_to_the_files(self):
        names = {attributes["href"] for attributes, _ in self.page().find("a")}
        self.assertEqual(names, set(self.files()) - {"report.html", "SHA256SUMS"})

    def test_each_request_is_told_whole(self):
        cards = [words for attributes, words in self.page().find("li") if attributes.get("class") == "good"]
        facts = {
            "sender-tool-request: confirmed": ("claude-fable-5.2", "200", "tool_use", "467/27", "0.004816"),
            "sender-tool-result: confirmed": ("claude-fable-5.2", "200", "end_turn", "578/235", "0.014024"),
            "receiver-handoff: confirmed": ("claude-opus-5.5", "200", "end_turn", "457/67", "0.003168"),
        }
        self.assertEqual(len(cards), 3)
        for card, (heading, told) in zip(cards, facts.items()):
            for words in (heading, *told, "model asked", "model answered", "req_invented", "seconds"):
                self.assertIn(words, card)
        self.assertIn("Together 0.022008 dollars at list price", self.page().text)

    def test_table_has_headers_with_scope(self):
        page = self.page()
        scopes = [attributes.get("scope") for attributes, _ in page.find("th")]
        self.assertEqual(scopes, ["col"] * 5 + ["row"] * 3)
        rows = ["".join(words.split()) for _, words in page.find("tr")]
        expected = [
            "skuanswerdeliveredexpectedsource",
            "DEMO-001agrees33available7,target10",
            "DEMO-002agrees00available15,target12",
            "DEMO-003agrees44available0,target4",
        ]
        self.assertEqual(rows, expected)

    def test_picture_has_a_box_with_its_state_in_words_for_each_station(self):
        way = self.page().list_way()
        self.assertEqual(len(way), 6)
        self.assertEqual(way[-1], "The validator judges: accepted")

    def test_ledger_is_shown_record_by_record(self):
        text_ = self.page().text
        for record in self.ledger():
            self.assertIn(record["prev_sha256"], text_)
            self.assertIn(record["time"], text_)

    def test_digests_are_those_of_the_files(self):
        text_ = self.page().text
        for name, data in self.files().items():
            if name not in ("report.html", "SHA256SUMS"):
                self.assertIn(hashlib.sha256(data).hexdigest(), text_)

    def test_colours_have_contrast(self):
        style = self.page().find("style")[0][1]
        schemes = re.findall(r":root \{([^}]*)\}", style)
        self.assertEqual(len(schemes), 3)  # light, dark, print
        for scheme in schemes:
            colours = dict(re.findall(r"--(\w+): (#\w+)", scheme))
            for front in ("text", "soft", "good", "bad", "open"):
                for back in ("page", "tint"):
                    with self.subTest(front, back=back, scheme=colours["page"]):
                        self.assertGreaterEqual(contrast(colours[front], colours[back]), 4.5)


def contrast(one, other):
    """Return the contrast ratio of two colours (WCAG 2, relative luminance)."""

    def luminance(colour):
        digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
        parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


class VerdictTest(ReportTestCase):
    """Each way in which a run may end is told by its report."""

    def end(self, *script, code):
        ended = self.live(self.serve(*script))
        self.assertEqual(ended.code, code, ended)
        page = self.page()
        self.assertEqual(self.inspect().code, code)
        return page

    def test_what_the_checks_do_not_prove_is_said_where_they_hold_alone(self):
        words = "that shows neither who made them nor that a model was asked"
        self.assertIn(words, self.end(REFUSED, code=4).text)
        (self.folder / "run" / "1-response.json").write_bytes(b"{}")
        self.assertEqual(self.inspect("run", "--html", self.path("page.html")).code, 1)
        self.assertNotIn(words, (self.folder / "page.html").read_text())

    def test_failed_run_says_why_and_what_next(self):
        page = self.end(REFUSED, code=4)
        self.assertEqual(page.find("h1")[0][1], "Failed")
        self.assertIn("HTTP 401: the request was refused", page.text)
        self.assertIn("Next: look at the key, then start a new run", page.text)
        self.assertIn("The receiver answers: not reached", page.list_way())
        self.assertNotIn("Stock and answer", page.text)
        self.assertEqual(len([words for _, words in page.find("h3")]), 3)

    def test_unclear_run_says_what_next(self):
        page = self.end(respond(b"", status=503), code=5)
        self.assertEqual(page.find("h1")[0][1], "Unclear")
        self.assertIn("Next: look it up with the provider", page.text)
        self.assertIn("Together unknown dollars", page.text)

    def test_rejected_answer_is_shown_row_by_row(self):
        rows = [
            {"sku": "DEMO-001", "shortage": 3},
            {"sku": "DEMO-002", "shortage": "0"},
            {"sku": "OTHER", "shortage": 1},
        ]
        page = self.end(*GOOD_RUN[:2], respond(message([text(json.dumps({"rows": rows}))])), code=1)
        self.assertEqual(page.find("h1")[0][1], "Rejected")
        lines = ["".join(words.split()) for _, words in page.find("tr")][1:]
        self.assertEqual(
            lines,
            [
                'DEMO-002differs"0"0available15,target12',
                "OTHERdiffers1skutheskuofarowofthesource,shortage1-",
                "DEMO-003notdelivered-4available0,target4",
                "DEMO-001agrees33available7,target10",
            ],
        )
        self.assertIn("1 of 3 rows agree", page.text)
        self.assertIn("The validator judges: rejected", page.list_way())

    def test_rows_are_judged_as_the_validator_judges_them(self):
        right = checkpoint_demo.DEMO.build_answer(checkpoint_demo.DEMO.source)["rows"]
        answers = {
            "a row before the right one": (
                [{"sku": "DEMO-001", "shortage": 99}, *right],
                ["DEMO-001differs993", "DEMO-001repeated3skuitonlyonce"],
            ),
            "a row behind the right one": (
                [*right, right[0]],
                ["DEMO-001repeated3skuitonlyonce,shortage3"],
            ),
            "a field too many": (
                [{**right[0], "order": 1}, *right[1:]],
                ["DEMO-001differsshortage3,order13"],
            ),
            "no row": ([*right, None], ["noskudiffersnullanobjectwithskuandshortage-"]),
        }
        for number, (phrase, (rows, expected)) in enumerate(answers.items()):
            with self.subTest(phrase):
                reply = respond(message([text(json.dumps({"rows": rows}))]))
                self.live(self.serve(*GOOD_RUN[:2], reply), out=str(number))
                page = self.page(str(number))
                self.assertEqual(page.find("h1")[0][1], "Rejected")
                lines = ["".join(words.split()) for _, words in page.find("tr")][1:]
                differing = [line for line in lines if "agrees" not in line]
                self.assertEqual(len(differing), len(expected))
                for line, begin in zip(differing, expected):
                    self.assertTrue(line.startswith(begin), line)

    def test_row_without_a_sku_is_not_taken_for_one_that_is_called_so(self):
        stock = self.put("stock.json", json.dumps([{"sku": "no sku", "available": 11, "target": 22}]))
        self.live(self.serve(*GOOD_RUN[:2], respond(message([text('{"rows":[5]}')]))), "--source", stock)
        lines = ["".join(words.split()) for _, words in self.page().find("tr")][1:]
        self.assertEqual(len(lines), 2)
        self.assertEqual(
            [("22" in line, "differs" in line) for line in lines], [(False, True), (True, False)]
        )

    def test_answer_without_rows_is_shown_as_it_is(self):
        page = self.end(*GOOD_RUN[:2], respond(message([text("I would\norder four.")])), code=1)
        self.assertEqual([words for _, words in page.find("pre")], ["I would\norder four."])

    def test_reply_from_another_model_is_shown(self):
        other = respond({**CALLED, "model": "other/model"})
        page = self.end(other, *GOOD_RUN[1:], code=0)
        self.assertIn("asked for anthropic/claude-fable-5.2, answered by other/model", page.text)

    def test_rehearsal_says_that_it_is_one(self):
        self.assertEqual(handoff("--rehearse", "--out", self.path("run")).code, 0)
        self.assertIn("Rehearsal of a handoff: no model answered, nothing was paid", self.page().text)

    def test_interrupted_run_gets_a_report_by_inspection(self):
        with mock.patch.object(run_handoff, "send_request", side_effect=KeyboardInterrupt):
            self.live(self.serve())
        self.assertNotIn("report.html", self.files())
        page = self.report()
        self.assertEqual(page.find("h1")[0][1], "Unclear")
        self.assertIn("the run was ended before it closed, with a request in flight", page.text)

    def test_folder_that_was_only_made_gets_one(self):
        os.mkdir(self.path("run"))
        page = self.report()
        self.assertEqual(page.find("h1")[0][1], "Failed")

    def test_evidence_that_does_not_hold_says_so_first(self):
        self.live(self.serve(*GOOD_RUN))
        (self.folder / "run" / "handoff.txt").write_text("other")
        page = self.report()
        self.assertEqual(page.find("h1")[0][1], "The evidence does not hold")
        self.assertEqual(page.find("h2")[0][1], "What does not hold")
        self.assertIn("handoff.txt byte 0", page.text)
        self.assertIn("Next: keep the folder as it is", page.text)

    def test_request_whose_record_does_not_hold_is_unknown(self):
        self.live(self.serve(*GOOD_RUN))
        ledger = self.folder / "run" / "ledger.jsonl"
        lines = ledger.read_text().splitlines(keepends=True)
        lines[9] = lines[9].replace('"state"', '"stat3"')
        ledger.write_text("".join(lines))
        page = self.report()
        self.assertIn("receiver-handoff: unknown", [words for _, words in page.find("h3")])
        self.assertIn("The receiver answers: unknown", page.list_way())
        self.assertNotIn("not planned", page.text)

    def test_every_leaf_that_is_missing_still_gives_a_report(self):
        self.live(self.serve(*GOOD_RUN))
        names = list(self.files())
        self.assertEqual(len(names), 12)
        for name in names:
            with self.subTest(name):
                shutil.copytree(self.folder / "run", self.folder / f"without-{name}")
                os.unlink(self.folder / f"without-{name}" / name)
                words = "Incomplete" if name == "SHA256SUMS" else "The evidence does not hold"
                self.assertEqual(self.report(f"without-{name}").find("h1")[0][1], words)


class HtmlOptionTest(ReportTestCase):
    def setUp(self):
        super().setUp()
        self.live(self.serve(*GOOD_RUN))

    def test_it_never_overwrites(self):
        page = self.put("there.html", "mine")
        ended = self.inspect("run", "--html", page)
        self.assertEqual(ended.code, 3, ended)
        self.assertEqual((self.folder / "there.html").read_text(), "mine")
        link = self.path("link.html")
        os.symlink(self.path("nowhere"), link)
        self.assertEqual(self.inspect("run", "--html", link).code, 3)
        self.assertNotIn("nowhere", self.names())

    def test_its_links_lead_to_the_folder_from_wherever_it_stands(self):
        os.makedirs(self.folder / "a b" / "c")
        os.rename(self.folder / "run", self.folder / "a b" / "r:un é#1")
        for name in ("a b/c/page.html", "page.html", "a b/page.html"):
            with self.subTest(name):
                self.inspect("a b/r:un é#1", "--html", self.path(name))
                page = Page((self.folder / name).read_text(encoding="utf-8"))
                for attributes, _ in page.find("a"):
                    href = urllib.parse.unquote(attributes["href"])
                    self.assertTrue(href.startswith("./"), href)
                    self.assertTrue((self.folder / name).parent.joinpath(href).exists(), href)

    def test_it_adds_nothing_to_the_folder(self):
        before = self.files()
        os.symlink(self.path("run"), self.path("link"))
        for name in ("run/report.html", "run/page.html", "link/page.html", "run/../run/page.html"):
            with self.subTest(name):
                ended = self.inspect("run", "--html", self.path(name))
                self.assertEqual(ended.code, 3, ended)
                self.assertIn("is in the run's folder", ended.err)
        self.assertEqual(self.files(), before)

    def test_it_is_no_standard_output(self):
        self.assertEqual(self.inspect("run", "--html", "-").code, 2)

    def test_it_goes_with_json(self):
        ended = self.inspect("run", "--json", "--html", self.path("page.html"))
        self.assertEqual((ended.code, json.loads(ended.out)["verdict"]), (0, "accepted"))
        self.assertIn("page.html", self.names())

    def test_it_goes_with_inspect_alone(self):
        for mode in (["--rehearse"], []):
            with self.subTest(mode=mode):
                ended = handoff(*mode, "--html", self.path("page.html"))
                self.assertEqual(ended.code, 2, ended)
                self.assertIn("--html does not go with", ended.err)

    def test_it_shows_what_the_terminal_shows(self):
        (self.folder / "run" / "notes.txt").write_text("x")
        self.assertIn("notes.txt is not a file of a run", self.report().text)


class OutsideTestCase(ReportTestCase):
    """Runs whose text or size comes from a hostile or a large world outside."""

    def run_hostile(self, url):
        """Do a run in which everything that comes from outside is hostile."""
        words = HOSTILE.replace("URL", url)
        sku = re.sub("[\x00-\x1f\x7f-\x9f]", "", words)
        stock = self.put("stock.json", json.dumps([{"sku": sku, "available": 1, "target": 2}]))
        rows = [{"sku": sku, "shortage": words}, {"sku": words, "shortage": {words: words}}]
        script = (
            respond({**CALLED, "model": words, "id": words}, request_id="<b>x</b>"),
            respond(ENDED),
            respond(message([text(json.dumps({"rows": rows}))], model=words)),
        )
        ended = self.live(self.serve(*script), "--source", stock)
        self.assertEqual(ended.code, 1, ended)
        return self.page()

    def run_large(self, wrong):
        """Do a run on 10,000 rows, of which the first so many have a wrong answer."""
        rows = [{"sku": f"S{number:05}", "available": 0, "target": number} for number in range(10_000)]
        answer = checkpoint_demo.DEMO.build_answer(rows)
        for row in answer["rows"][9_000 : 9_000 + wrong]:
            row["shortage"] += 1
        stock = self.put("stock.json", json.dumps(rows))
        script = (*GOOD_RUN[:2], respond(message([text(json.dumps(answer))])))
        return self.live(self.serve(*script), "--source", stock, "--max-tokens", "900000")


class HostileTextTest(OutsideTestCase):
    def test_hostile_text_is_shown_as_text(self):
        page = self.run_hostile("http://127.0.0.1:9/leak")
        self.assertNotIn("script", [tag for tag, _, _ in page.elements])
        self.assertNotIn("img", [tag for tag, _, _ in page.elements])
        self.assertNotIn("b", [tag for tag, _, _ in page.elements])
        self.assertEqual(page.find("h1")[0][1], "Rejected")
        data = (self.folder / "run" / "report.html").read_text(encoding="utf-8")
        self.assertNotRegex(data, "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
        self.assertGreaterEqual(page.text.count("<script>alert(1)</script>"), 4)
        self.assertIn(r"\u202e", page.text)

    def test_prose_that_is_hostile_is_shown_as_text(self):
        self.live(self.serve(*GOOD_RUN[:2], respond(message([text(HOSTILE + "</pre>")]))))
        page = self.page()
        self.assertIn("<script>alert(1)</script>", page.find("pre")[0][1])

    def test_endpoint_and_refusal_are_shown_as_text(self):
        error = {"type": "error", "error": {"type": HOSTILE, "message": HOSTILE}}
        server = self.serve(respond(error, status=400))
        self.live(server.url + "?a='\"><script>", "--sender", "<script>'\"&")
        self.assertNotIn("script", [tag for tag, _, _ in self.page().elements])
        self.assertIn("<script>'\"&", self.page().text)


class LargeStockTest(OutsideTestCase):
    def test_rows_that_differ_come_first_and_the_rest_is_folded(self):
        self.assertEqual(self.run_large(3).code, 1)
        page = self.page()
        tables = [words.count("S0") for _, words in page.find("table")]
        self.assertEqual(tables, [50, 9_950])
        first = page.find("tr")[1:5]
        self.assertEqual(["differs" in words for _, words in first], [True, True, True, False])
        self.assertEqual(
            [words.strip().split("\n")[0] for _, words in page.find("details")],
            ["9,950 more rows, 0 of them differ"],
        )
        self.assertIn("9,997 of 10,000 rows agree", page.text)

    def test_rows_are_folded_where_all_agree_too(self):
        self.assertEqual(self.run_large(0).code, 0)
        self.assertEqual([words.count("S0") for _, words in self.page().find("table")], [50, 9_950])
        self.assertEqual(len(self.page().find("details")), 1)

    def test_many_differences_are_not_all_unfolded(self):
        self.assertEqual(self.run_large(900).code, 1)
        self.assertIn("9,950 more rows, 850 of them differ", self.page().text)
        self.assertEqual([words.count("S0") for _, words in self.page().find("table")], [50, 9_950])


def find_chromium():
    """Return the path of a Chromium, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for path in map(shutil.which, names) if path), None)


@unittest.skipUnless(find_chromium(), "needs Chromium")
class BrowserTest(OutsideTestCase):
    """The report in a real browser: nothing overflows, no request leaves, no error is logged."""

    # A page that shows another in a frame of a given width, and says how wide that one's content is.
    MEASURE = """<!DOCTYPE html><title></title><body>
    <iframe width="{width}" height="1600" style="border: 0" srcdoc="{page}"></iframe>
    <script>
    onload = () => {{
      const {{innerWidth, document: {{documentElement}}}} = frames[0];
      document.title = [innerWidth, documentElement.scrollWidth].join();
    }};
    </script>"""

    def browse(self, page, *options, width=1280, dark=False):
        """Open a page headless; return (standard output, standard error)."""
        profile = self.path(f"profile-{len(os.listdir(self.folder))}-{os.urandom(4).hex()}")
        told = subprocess.run(
            [
                *(find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
                *("--hide-scrollbars", "--enable-logging=stderr", f"--user-data-dir={profile}"),
                *(f"--window-size={width},1600", f"--blink-settings=preferredColorScheme={0 if dark else 1}"),
                *(*options, (self.folder / page).as_uri()),
            ],
            capture_output=True,
            check=True,
            timeout=120,
        )
        return told.stdout.decode("utf-8", "replace"), told.stderr.decode("utf-8", "replace")

    def measure(self, page, width):
        """Return (width of the window, width of what stands in it)."""
        data = (self.folder / page).read_text(encoding="utf-8")
        name = f"{page.replace('/', '-')}-{width}.html"
        frame = self.MEASURE.format(width=width, page=html.escape(data))
        (self.folder / name).write_text(frame, encoding="utf-8")
        dom, _ = self.browse(name, "--dump-dom")
        return tuple(int(number) for number in re.search("<title>(.*?)</title>", dom).group(1).split(","))

    def shoot(self, page, width, dark):
        """Return the colour of a screenshot's first pixel, and its width; a message on its console fails."""
        path = self.path(f"{page.replace('/', '-')}-{width}-{dark}.png")
        _, log = self.browse(page, f"--screenshot={path}", width=width, dark=dark)
        lines = [line for line in log.splitlines() if "CONSOLE" in line]
        of_the_browser = re.compile("source: (chrome|devtools)")
        self.assertEqual([line for line in lines if not of_the_browser.search(line)], [])
        with open(path, "rb") as file:
            data = file.read()
        self.assertTrue(data.startswith(b"\x89PNG\r\n\x1a\n"))
        parts = re.findall(rb"IDAT(.*?)(?=.{4}.{4}(?:IDAT|IEND))", data, re.DOTALL)
        pixels = zlib.decompressobj().decompress(b"".join(parts), 4)
        return "#" + pixels[1:4].hex(), int.from_bytes(data[16:20], "big")

    def test_it_shows_in_light_and_dark_on_a_phone_and_a_desk(self):
        server = self.serve()
        self.run_hostile(server.url)
        self.assertEqual(self.live(self.serve(*GOOD_RUN), out="good").code, 0)
        pages = ("run/report.html", "good/report.html")
        cases = {(page, width): (page, width) for page in pages for width in (390, 1280)}
        for (page, width), (window, content) in run_all_at_once(self.measure, cases, 2).items():
            with self.subTest(page, width=width):
                self.assertEqual((window, content), (width, width))
        cases = {(*case, dark): (*case, dark) for case in cases for dark in (False, True)}
        for (page, width, dark), shown in run_all_at_once(self.shoot, cases, 2).items():
            with self.subTest(page, width=width, dark=dark):
                self.assertEqual(shown, ("#0f1318" if dark else "#ffffff", width))
        self.assertEqual(server.connections, 0)

    def test_long_sku_hides_no_column(self):
        rows = [{"sku": "A" * 5_000, "available": 1, "target": 2}, {"sku": "B", "available": 1, "target": 2}]
        self.put("stock.json", json.dumps(rows))
        self.live(
            self.serve(
                *GOOD_RUN[:2], respond(message([text(json.dumps(checkpoint_demo.DEMO.build_answer(rows)))]))
            ),
            *("--source", self.path("stock.json"), "--max-tokens", "9000"),
        )
        data = (self.folder / "run" / "report.html").read_text(encoding="utf-8")
        for width in (390, 1280):
            page = data.replace(".wide { overflow-x: auto; }", "").replace(
                "style-src 'sha256-", "style-src 'unsafe-inline' 'x"
            )
            self.put("bare.html", re.sub("'x[^']*'", "", page))
            window, content = self.measure("bare.html", width)
            self.assertLess(content, window + 100)

    def test_10_000_rows_open_at_once(self):
        self.run_large(3)
        self.assertEqual(self.measure("run/report.html", 390), (390, 390))

    def test_console_would_tell_of_a_fault(self):
        self.live(self.serve(*GOOD_RUN))
        data = (self.folder / "run" / "report.html").read_text()
        self.put("bad.html", data.replace("</body>", "<script>1</script></body>"))
        _, log = self.browse("bad.html", "--dump-dom")
        self.assertIn("CONSOLE", log)

    def test_measure_would_tell_of_an_overflow(self):
        self.put("wide.html", "<!DOCTYPE html><meta name=viewport><p style='width: 600px'>wide</p>")
        self.assertGreater(self.measure("wide.html", 390)[1], 600)
