"""Runs of one request: the receiver's part of a task alone, and going on with a session record."""

from __future__ import annotations

import html
import json
import os
import shutil
from pathlib import Path

from tests.conditions import THIRD, rewrite_ledger
from tests.support import ANSWER, CASES, GOOD_RUN, KEY, STOCK, checkpoint, handoff, respond
from tests.test_faults import ERRORS, FaultTestCase, failing
from tests.test_inspect import InspectTestCase
from tests.test_kills import KillTestCase
from tests.vendors import CHAT, GEMINI, MESSAGES, VENDORS, VendorTestCase, find_request_faults, same

OWN_SOURCE = "sku,available,target\nA-1,7,10\nA-2,15,12\n"
OWN_ANSWER = '{"rows":[{"sku":"A-1","shortage":3},{"sku":"A-2","shortage":0}]}'
WORDS = "It costs 21.40 EUR."


def name_record(name):
    """Return the path of a session record among the cases."""
    return str(CASES / "session" / f"{name}.session.json")


PLAIN, KIMI = name_record("001-plain-anthropic"), name_record("003-plain-kimi")
THINKING, OPEN = name_record("011-two-turns-thinking-anthropic"), name_record("031-open-call-anthropic")
IMAGE, FILE = name_record("029-image-in-result-anthropic"), name_record("027-file-user-gemini")
ALWAYS = {"ledger.jsonl", "report.html", "SHA256SUMS"}
TASK_FILES = {*ALWAYS, "checkpoint.json", "handoff.txt", "3-request.json", "3-response.json", "result.json"}
SESSION_FILES = {*ALWAYS, "session.json", "1-request.json", "1-response.json", "reply.json"}
FRESH_FILES = {*SESSION_FILES, "checkpoint.json", "handoff.txt"}

# The kinds of a run of one request: (its options, the files that it leaves).
KINDS = {
    "the receiver alone": (("--receiver-only",), TASK_FILES),
    "a session": (("--session", PLAIN), SESSION_FILES),
    "a session begun anew": (("--session", PLAIN, "--fresh"), FRESH_FILES),
    "a session with reasoning": (("--session", THINKING), SESSION_FILES),
    "a session without its reasoning": (("--session", KIMI, "--no-reasoning"), SESSION_FILES),
    "a session with an open call": (("--session", OPEN, "--unclear"), SESSION_FILES),
    "a session with an open call, begun anew": (("--session", OPEN, "--fresh"), FRESH_FILES),
    "a session with an image": (("--session", IMAGE, "--leave-out"), SESSION_FILES),
    "a session of an issuer that is named": (
        ("--session", FILE, "--from", "gemini", "--issuer", "gemini-3.5-pro", "--leave-out"),
        SESSION_FILES,
    ),
}
# Those that differ in what they do: (the vendor, the options, the reply).
COURSES = {
    "the receiver alone": (CHAT, ("--receiver-only",), CHAT.answer(ANSWER)),
    "a session": (GEMINI, ("--session", PLAIN), GEMINI.answer(WORDS)),
    "a session begun anew": (MESSAGES, ("--session", PLAIN, "--fresh"), MESSAGES.answer(WORDS)),
}


class OneRequestTestCase(VendorTestCase):
    def do(self, phrase, vendor, out="run"):
        """Do a run of a kind at a vendor's server; return how it Ended."""
        options, _ = KINDS[phrase]
        self.server = self.serve_receiver(vendor, ANSWER if "--receiver-only" in options else WORDS)
        return self.receive(vendor, self.server, *options, out=out)


class AcceptedTest(OneRequestTestCase):
    def test_every_kind_is_accepted_at_every_vendor_and_holds(self):
        for number, (phrase, (options, files)) in enumerate(KINDS.items()):
            for name, vendor in VENDORS.items():
                with self.subTest(phrase, api=name):
                    out = f"{number}-{name}"
                    ended = self.do(phrase, vendor, out)
                    self.assertEqual((ended.code, self.server.connections), (0, 1), ended)
                    self.assertEqual(set(self.files(out)), files)
                    (received,) = self.server.requests
                    self.assertEqual(find_request_faults(vendor, received, vendor.other_model), [])
                    inspected = self.inspect(out)
                    self.assertEqual(inspected.code, 0, inspected)
                    self.check_operations(phrase, out)
                    if "--session" in options:
                        self.check_session(vendor, options, ended, out)

    def check_operations(self, phrase, out):
        """A step of the source is there only where a task has one."""
        confirmed = ["planned", "in_flight", "confirmed"]
        expected = {"run": ["planned", "confirmed"], THIRD: confirmed}
        if phrase == "the receiver alone":
            expected["read-stock-1"] = ["planned", "confirmed"]
        self.assertEqual(self.states(out), expected)

    def check_session(self, vendor, options, ended, out):
        """It sends what `session --to` prints, says what that says, and keeps the record as it was read."""
        _, record, *others = options
        files = self.files(out)
        self.assertEqual(files["session.json"], Path(record).read_bytes())
        arguments = ("--to", vendor.name, "--model", vendor.other_model)
        printed = checkpoint("session", record, *arguments, *others)
        self.assertEqual(same(json.loads(files["1-request.json"])), same(json.loads(printed.out)))
        for note in printed.err.splitlines():
            self.assertIn(note.partition(": ")[2][:60], ended.err)
        grown = json.loads(files["reply.json"])
        self.assertEqual(grown["format"], "neutral-session")
        said = [part["text"] for part in grown["turns"][-1]["parts"] if part["kind"] == "text"]
        self.assertEqual(said, [WORDS])
        self.assertIn(WORDS, files["report.html"].decode())

    def test_rehearsal_of_every_kind_is_accepted_and_holds(self):
        for number, (phrase, (options, files)) in enumerate(KINDS.items()):
            name = list(VENDORS)[number % 3]
            with self.subTest(phrase, api=name):
                ended = handoff("--rehearse", "--receiver-api", name, *options, "--out", self.path(phrase))
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual(set(self.files(phrase)), files)
                self.assertEqual(self.inspect(phrase).code, 0)

    def test_own_source_is_handed_over_and_found_in_the_run(self):
        source = self.put("source.csv", OWN_SOURCE)
        server = self.serve_receiver(CHAT, OWN_ANSWER)
        ended = self.receive(CHAT, server, "--receiver-only", "--source", source)
        self.assertEqual(ended.code, 0, ended)
        self.assertIn(b"A-2", server.requests[0].body)
        for options in ((), ("--source", source)):
            self.assertEqual(self.inspect("run", *options).code, 0)
        other = self.put("other.csv", OWN_SOURCE.replace("15", "11"))
        self.assertEqual(self.inspect("run", "--source", other).code, 1)
        asked = self.inspect("run", "--source", source, "--json")
        self.assertEqual(json.loads(asked.out)["exit_code"], 0)

    def test_receivers_part_is_that_of_the_whole_run(self):
        self.live(self.serve(*GOOD_RUN), out="whole")
        self.receive(MESSAGES, self.serve_receiver(MESSAGES), "--receiver-only", out="part")
        whole, part = self.files("whole"), self.files("part")
        for name in ("3-request.json", "checkpoint.json", "handoff.txt", "result.json"):
            self.assertEqual(part[name], whole[name], name)
        self.assertEqual(json.loads(part["checkpoint.json"])["completed"][0]["result"], STOCK)

    def test_what_is_carried_lost_and_unclear_is_told_before_it_leaves(self):
        cases = {
            "a session": ("--session", PLAIN),
            "an open call": ("--session", OPEN, "--unclear"),
            "an open call, begun anew": ("--session", OPEN, "--fresh"),
        }
        for phrase, options in cases.items():
            with self.subTest(phrase):
                ended = self.receive(CHAT, self.serve_receiver(CHAT, WORDS), *options, out=phrase)
                before = ended.err.partition("in flight")[0]
                for word in ("weigh_parcel-1", "find_route-1", "2 operations", "cost"):
                    self.assertIn(word, before)
                self.assertEqual("quote_fee-1" in before, options[1] == OPEN)
                report = self.report(phrase)
                self.assertIn("weigh_parcel-1", report)
                self.assertEqual("quote_fee-1" in report, options[1] == OPEN)

    def test_losses_are_told_and_in_the_report(self):
        ended = self.receive(CHAT, self.serve_receiver(CHAT, WORDS), "--session", THINKING)
        printed = checkpoint("session", THINKING, "--to", "chat", "--model", CHAT.other_model)
        notes = printed.err.splitlines()
        self.assertTrue(notes)
        for note in (note.partition(": ")[2] for note in notes):
            self.assertIn(note, ended.err.partition("in flight")[0])
            self.assertIn(note, html.unescape(self.report()))


class RefusedTest(OneRequestTestCase):
    # Records that cannot go where they are sent, and what is said.
    RECORDS = {
        "an open call": (("--session", OPEN), "quote_fee"),
        "an image in a result": (("--session", IMAGE), "--leave-out"),
        "a file": (("--session", FILE), "--leave-out"),
        "the assistant's answer at its end": (
            ("--session", name_record("089-ends-on-answer-anthropic")),
            "append the user's next message",
        ),
        "names that are forbidden there": (
            ("--session", name_record("057-dotted-names-gemini")),
            "counter.weigh_parcel",
        ),
        "names that are forbidden there, begun anew": (
            ("--session", name_record("057-dotted-names-gemini"), "--fresh"),
            "counter.weigh_parcel",
        ),
    }

    def test_record_that_cannot_go_makes_no_folder_and_sends_nothing(self):
        for phrase, (options, words) in self.RECORDS.items():
            for mode in ("--live", "--rehearse"):
                with self.subTest(phrase, mode=mode):
                    server = self.serve_receiver(CHAT, WORDS)
                    if mode == "--live":
                        ended = self.receive(CHAT, server, *options)
                    else:
                        ended = handoff(mode, "--receiver-api", "chat", *options, "--out", self.path("run"))
                    self.assertEqual((ended.code, self.names(), server.connections), (1, [], 0), ended)
                    self.assertIn(words, ended.err)
                    self.assertNotIn("Traceback", ended.err)

    def test_record_that_cannot_go_is_told_in_json_with_its_findings(self):
        ended = self.receive(CHAT, self.serve(), "--session", OPEN, "--json")
        shown = json.loads(ended.out)
        self.assertEqual((ended.code, shown["exit_code"], self.names()), (1, 1, []), ended)
        self.assertIn("quote_fee", json.dumps(shown["findings"]))

    def test_what_is_not_a_record_is_unreadable(self):
        plain = Path(PLAIN).read_bytes()
        files = {
            "nothing": None,
            "an empty file": b"",
            "no JSON": b"Hello.",
            "a list of numbers": b"[1]",
            "another object": b'{"rows":[]}',
            "a reply": json.dumps(CHAT.called).encode(),
            "a record cut short": plain[:-9],
            "bad UTF-8": plain.replace(b"parcel", b"par\xffel"),
        }
        for phrase, data in files.items():
            with self.subTest(phrase):
                record = self.path("record.json") if data is None else self.put("record.json", data)
                server = self.serve_receiver(CHAT, WORDS)
                ended = self.receive(CHAT, server, "--session", record)
                self.assertEqual((ended.code, server.connections), (2, 0), ended)
                self.assertNotIn("run", self.names())
                self.assertRegex(ended.err, r"run_handoff\.py: .+\n  why: .+\n  next: .+\n$")

    def test_record_or_source_that_holds_the_key_is_refused(self):
        record = self.put("record.json", Path(PLAIN).read_text("utf-8").replace("parcel", KEY))
        source = self.put("source.csv", f"sku,available,target\n{KEY},7,10\n")
        for options in (("--session", record), ("--receiver-only", "--source", source)):
            with self.subTest(options[0]):
                server = self.serve_receiver(CHAT, WORDS)
                ended = self.receive(CHAT, server, *options)
                self.assertEqual((ended.code, server.connections), (3, 0), ended)
                self.assertNotIn("run", self.names())
                self.assertNotIn(KEY, ended.out + ended.err)

    def test_record_with_escapes_is_shown_escaped(self):
        record = json.loads(Path(KIMI).read_bytes())
        for message in record["messages"]:
            for call in message.get("tool_calls", []):
                call["function"]["name"] = "\x1b[31m<b>\u202e"
        record["\x1b[2Jodd"] = "<script>"
        path = self.put("record.json", json.dumps(record))
        for name, code in (("chat", 0), ("gemini", 1)):
            vendor = VENDORS[name]
            ended = self.receive(vendor, self.serve_receiver(vendor, "<script>\x1b[2J"), "--session", path)
            self.assertEqual(ended.code, code, ended)
            self.assertTrue((ended.out + ended.err).replace("\n", "").isprintable())
        self.assertNotIn("<script>", self.report())
        self.assertNotIn("\x1b", self.report())

    # Options that have no meaning together.
    ODD = {
        "two courses": ("--session", PLAIN, "--receiver-only"),
        "a task": ("--session", PLAIN, "--task", "task.py"),
        "a source": ("--session", PLAIN, "--source", "source.csv"),
        "a token limit": ("--session", PLAIN, "--max-tokens", "9"),
        "a sender": ("--session", PLAIN, "--sender", "x"),
        "a sender's API": ("--session", PLAIN, "--sender-api", "chat"),
        "a sender of the receiver alone": ("--receiver-only", "--sender", "x"),
        "a sender's API of the receiver alone": ("--receiver-only", "--sender-api", "chat"),
        "an API without a session": ("--from", "chat"),
        "an issuer without a session": ("--issuer", "x"),
        **{
            f"{name} without a session": (name,)
            for name in ("--fresh", "--no-reasoning", "--unclear", "--leave-out")
        },
        "an option of a session for the receiver alone": ("--receiver-only", "--fresh"),
        "an API that does not exist": ("--receiver-api", "responses"),
        "a record's API that does not exist": ("--session", PLAIN, "--from", "responses"),
        "no file": ("--session",),
    }

    def test_options_that_would_be_passed_over_are_refused(self):
        for mode in (["--live"], ["--rehearse"], [], ["--inspect", "x"]):
            for phrase, options in self.ODD.items():
                with self.subTest(phrase, mode=mode):
                    out = [] if mode[:1] == ["--inspect"] or not mode else ["--out", self.path("run")]
                    ended = handoff(*mode, *options, *out)
                    self.assertEqual((ended.code, ended.out, self.names()), (2, "", []), ended)


class ReplyTest(VendorTestCase):
    """A reply is judged in view of the record, and none of it is acted on."""

    DONE, OTHER = ("weigh_parcel", {"parcel": "PK-88"}), ("quote_fee", {"route": "N-14", "grams": 1850})

    def list_replies(self, vendor):
        """Return {phrase: (options, reply, exit code, words)}."""
        again, other = vendor.call(*self.DONE), vendor.call(*self.OTHER)
        plain, unclear = ("--session", PLAIN), ("--session", OPEN, "--unclear")
        return {
            "an answer": (plain, vendor.answer(WORDS), 0, ""),
            "a call that it may make": (plain, other, 0, ""),
            "a completed operation again": (plain, again, 1, "repeats weigh_parcel-1"),
            "the same, begun anew": ((*plain, "--fresh"), again, 1, "repeats weigh_parcel-1"),
            "an unclear operation again": (unclear, other, 1, "repeats quote_fee-1"),
            "the same unclear one, begun anew": (
                ("--session", OPEN, "--fresh"),
                other,
                1,
                "repeats quote_fee-1",
            ),
            "a tool that it does not have": (plain, vendor.call("pay", {}), 1, "pay"),
            "an answer that was cut": (plain, vendor.stop(vendor.answer("It"), vendor.stops["cut"]), 1, ""),
            "no reply": (plain, vendor.error(status=500), 5, ""),
        }

    def test_reply_is_judged_in_view_of_the_record(self):
        for name, vendor in VENDORS.items():
            for number, (phrase, (options, reply, code, words)) in enumerate(
                self.list_replies(vendor).items()
            ):
                with self.subTest(phrase, api=name):
                    out = f"{name}-{number}"
                    server = self.serve(respond(reply, 500 if code == 5 else 200))
                    ended = self.receive(vendor, server, *options, out=out)
                    self.assertEqual((ended.code, server.connections), (code, 1), ended)
                    self.assertIn(words, ended.err)
                    self.assertEqual(self.inspect(out).code, code)
                    self.assertEqual("reply.json" in self.files(out), code != 5)
                    self.assertIn(words, self.report(out))

    def test_numbers_of_a_repeated_call_are_compared_by_value(self):
        called = json.dumps(CHAT.call(*self.OTHER)).replace("1850", "1850.0").encode()
        ended = self.receive(CHAT, self.serve(respond(called)), "--session", OPEN, "--unclear")
        self.assertEqual(ended.code, 1, ended)

    def test_call_that_held_the_key_is_not_accepted(self):
        """What stands for the key in it is not what the model asked for."""
        calls = {
            "in its arguments": {"arguments": {"route": KEY, "grams": 1}},
            "in its id": {"arguments": {"route": "N-14", "grams": 1}, "call_id": KEY},
        }
        for name, vendor in VENDORS.items():
            for phrase, fields in calls.items():
                with self.subTest(phrase, api=name):
                    out = f"{name}-{phrase}"
                    server = self.serve(respond(vendor.call("quote_fee", **fields)))
                    ended = self.receive(vendor, server, "--session", PLAIN, out=out)
                    self.assertEqual((ended.code, self.inspect(out).code), (1, 1), ended)
                    self.assertIn("key", ended.err.splitlines()[-3])

    def test_neutral_session_that_has_grown_goes_on_elsewhere(self):
        self.receive(CHAT, self.serve_receiver(CHAT, WORDS), "--session", PLAIN, out="one")
        grown = json.loads(self.files("one")["reply.json"])
        refused = self.receive(GEMINI, self.serve(), "--session", self.path("one/reply.json"), out="two")
        self.assertEqual((refused.code, self.names()), (1, ["one"]), refused)
        grown["turns"].append({"role": "user", "parts": [{"kind": "text", "text": "And to Rome?"}]})
        record, server = self.put("grown.json", json.dumps(grown)), self.serve_receiver(GEMINI, WORDS)
        ended = self.receive(GEMINI, server, "--session", record, out="two")
        self.assertEqual((ended.code, self.inspect("two").code), (0, 0), ended)
        texts = [
            part.get("text")
            for turn in json.loads(server.requests[0].body)["contents"]
            for part in turn["parts"]
        ]
        self.assertEqual(texts[-2:], [WORDS, "And to Rome?"])

    def test_findings_are_told_in_json(self):
        server = self.serve(respond(CHAT.call(*self.DONE)))
        ended = self.receive(CHAT, server, "--session", PLAIN, "--json")
        shown = self.read_object(ended, 1)
        self.assertIn("repeats weigh_parcel-1", json.dumps(shown["findings"]))


# The calls that each course makes.
CALLS = {
    "the receiver alone": {"mkdir": 1, "open": 23, "write": 14, "fsync": 23, "rename": 7},
    "a session": {"mkdir": 1, "open": 20, "write": 11, "fsync": 19, "rename": 6},
    "a session begun anew": {"mkdir": 1, "open": 26, "write": 13, "fsync": 23, "rename": 8},
}


class OneRequestKillTest(KillTestCase, OneRequestTestCase):
    def kill_run(self, call, nth, when, vendor, options, reply):
        """Do a run that dies at one point; return whether it did."""
        self.server = self.serve(respond(reply))
        named = ["--live", "--receiver-api", vendor.name, "--receiver", vendor.other_model]
        named += ["--receiver-endpoint", self.url(vendor, self.server), "--out", self.path("run")]
        killed = self.kill("run_handoff", call, nth, when, *named, *options)
        self.server.stop()
        return killed

    def test_run_that_is_killed_anywhere_tells_what_is_open(self):
        vendor, options, reply = COURSES["a session begun anew"]  # the one with the most files

        def kill(call, nth, when):
            return self.kill_run(call, nth, when, vendor, options, reply)

        def check(point):
            self.check(point, vendor, options)

        self.try_all(kill, check, CALLS["a session begun anew"])

    def test_run_of_every_kind_that_is_killed_after_a_write_tells_what_is_open(self):
        """A record of the ledger is one write, and so is every other file."""
        for number, (phrase, (options, files)) in enumerate(KINDS.items()):
            vendor = list(VENDORS.values())[number % 3]
            reply = vendor.answer(ANSWER if "--receiver-only" in options else WORDS)
            others = len(files) - 1  # the ledger has a write for each record
            count = others + (7 if "--receiver-only" in options else 5)
            for nth in range(1, count + 1):
                with self.subTest(phrase, nth=nth):
                    self.assertTrue(self.kill_run("write", nth, "after", vendor, options, reply))
                    self.check(f"after write {nth}", vendor, options)
                self.clean()

    def check(self, point, vendor, options):
        sent = len(self.server.requests)
        if "run" not in self.names():
            self.assertEqual((point, sent), ("before mkdir 1", 0))
            return
        inspected = self.inspect("run", "--json")
        self.assertNotIn("Traceback", inspected.err)
        report = json.loads(inspected.out)
        state = report["requests"][THIRD]
        if report["records"]:  # the first one names the course
            self.assertEqual(list(report["requests"]), [THIRD])
        self.assertIn(state, ("confirmed", "in_flight") if sent else ("not planned", "planned", "in_flight"))
        last = report["records"][-1] if report["records"] else {}
        closed, sums = (
            last.get("operation_id") == "run" and last["state"] != "planned",
            "SHA256SUMS" in self.files(),
        )
        if closed:
            self.assertEqual((report["exit_code"], sums), (0, True) if sums else (1, False), report)
        else:
            self.assertEqual(report["exit_code"], 5 if state == "in_flight" else 4, report)
            self.assertEqual(report["findings"], [])
        for received in self.server.requests:
            (name,) = [name for name in self.files() if name.endswith("-request.json")]
            self.assertEqual(self.files()[name], received.body)
        again = self.receive(vendor, self.server, *options)
        self.assertEqual((again.code, len(self.server.requests)), (3, sent), again)


class OneRequestFaultTest(FaultTestCase, VendorTestCase):
    """A fault at every call, of one kind each, all three in turn."""

    def test_run_survives_a_fault_at_every_call(self):
        for phrase, course in COURSES.items():
            with self.subTest(phrase):
                self.try_course(*course, CALLS[phrase])

    def try_course(self, vendor, options, reply, calls):
        def flow():
            self.server = self.serve(respond(reply))
            ended = self.receive(vendor, self.server, *options)
            self.server.stop()
            return ended

        with failing() as made:
            self.assertEqual(flow().code, 0)
        self.assertEqual({call: count for call, count in made.items() if count}, calls)
        self.clean()
        for call, count in calls.items():
            for nth in range(1, count + 1):
                with self.subTest(call=call, nth=nth):
                    with failing(call, nth, ERRORS[nth % len(ERRORS)]):
                        ended = flow()
                    self.check(ended)
                self.clean()

    def check(self, ended):
        sent = len(self.server.requests)
        self.assertNotIn("Traceback", ended.err)
        if ended.code == 3:
            self.assertEqual((sent, self.names()), (0, ["precious"]))
            return
        self.assertIn(ended.code, (0, 4, 5), ended)
        files = self.files()
        in_flight = files.get("ledger.jsonl", b"").count(b'"in_flight"')
        self.assertLessEqual(sent, in_flight)
        inspected = self.inspect()
        self.assertNotIn("Traceback", inspected.err)
        if ended.code == 0 and not files.keys() >= {"report.html", "SHA256SUMS"}:
            self.assertEqual(inspected.code, 1, inspected)
        elif b'"run","state":"confirmed"' in files.get("ledger.jsonl", b""):
            self.assertEqual((ended.code, inspected.code), (0, 0), ended)
        else:
            self.assertIn(inspected.code, {ended.code, 1} if "SHA256SUMS" not in files else {ended.code})


class OneRequestInspectTest(OneRequestTestCase):
    """Folders of each kind, each changed in one place."""

    seal, copy = InspectTestCase.seal, InspectTestCase.copy

    def make(self):
        """Yield each kind, at the vendors in turn, with a good run in the folder `run`."""
        for number, phrase in enumerate(KINDS):
            vendor = list(VENDORS.values())[number % 3]
            shutil.rmtree(self.path("run"), ignore_errors=True)
            self.assertEqual(self.do(phrase, vendor).code, 0)
            self.good = self.files()
            yield phrase

    def check(self, folder, code, *words):
        ended = handoff("--inspect", folder)
        self.assertEqual(ended.code, code, ended)
        for word in words:
            self.assertIn(word, ended.err)

    def test_one_byte_changed_in_any_file_is_found_and_named(self):
        for phrase in self.make():
            for name, data in self.good.items():
                for at in sorted({0, len(data) // 3, len(data) // 2, len(data) - 1}):
                    with self.subTest(phrase, name=name, at=at):
                        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                        self.check(self.copy(**{name: changed}), 1, name, "the evidence does not hold")

    def test_change_under_fitting_sums_is_found_and_named(self):
        for phrase in self.make():
            for name, data in self.good.items():
                if name in ("SHA256SUMS", "ledger.jsonl"):
                    continue
                for at in (len(data) // 3, len(data) // 2):
                    with self.subTest(phrase, name=name, at=at):
                        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                        self.check(self.seal(self.copy(**{name: changed})), 1)

    def test_file_that_is_missing_or_too_many_is_found_and_named(self):
        for phrase in self.make():
            for name in self.good:
                with self.subTest(phrase, name=name):
                    self.check(self.copy(**{name: None}), 1, name)

    def test_ledger_that_ends_after_any_record_tells_what_is_open(self):
        for phrase, (vendor, options, reply) in COURSES.items():
            shutil.rmtree(self.path("run"), ignore_errors=True)
            self.receive(vendor, self.serve(respond(reply)), *options)
            lines = self.files()["ledger.jsonl"].splitlines(keepends=True)
            for count in range(1, len(lines)):
                with self.subTest(phrase, count=count):
                    shutil.rmtree(self.path("copy"), ignore_errors=True)
                    shutil.copytree(self.path("run"), self.path("copy"))
                    (self.folder / "copy" / "ledger.jsonl").write_bytes(b"".join(lines[:count]))
                    os.unlink(self.path("copy/SHA256SUMS"))
                    os.unlink(self.path("copy/report.html"))
                    ended = handoff("--inspect", self.path("copy"))
                    in_flight = json.loads(lines[count - 1])["state"] == "in_flight"
                    if ended.code != 1:  # a later file that no record leads to is a finding
                        self.assertEqual(ended.code, 5 if in_flight else 4, ended)
                        self.assertIn("the run was ended before it closed", ended.err)
                    else:
                        self.assertIn("it exists, though no record leads to it", ended.err)

    # Facts of the first record that another run may have, but not this one: by its kind.
    FORGED = {
        "a session": {
            "another course": ("course", "receiver-only"),
            "the whole course": ("course", "task"),
            "a course that does not exist": ("course", "errand"),
            "a course that is a list": ("course", ["session"]),
            "begun anew": ("options", ["fresh"]),
            "an option twice": ("options", ["unclear", "unclear"]),
            "an option that does not exist": ("options", ["quick"]),
            "options as text": ("options", "fresh"),
            "an option that is a number": ("options", [1]),
            "another API": ("receiver_api", "gemini"),
            "an API that does not exist": ("receiver_api", "responses"),
            "no API": ("receiver_api", ""),
            "another receiver": ("receiver", "gpt-5.5"),
            "a sender": ("sender", "gpt-5.5"),
            "a sender's API": ("sender_api", "chat"),
            "a record of another API": ("session_api", "gemini"),
            "a record of an API that does not exist": ("session_api", "responses"),
            "an endpoint that is refused": ("receiver_endpoint", "http://api.example.invalid/v1"),
            "an endpoint that is a number": ("receiver_endpoint", 7),
            "another token limit": ("max_tokens", 9),
            "another record": ("source_sha256", "0" * 64),
            "a task": ("task", "synthetic-stock-20261110"),
            "an older format": ("format", 1),
        },
        "the receiver alone": {
            "the whole course": ("course", "task"),
            "another course": ("course", "session"),
            "an option of a session": ("options", ["fresh"]),
            "an issuer": ("session_issuer", "kimi-k3"),
            "a record's API": ("session_api", "chat"),
            "a sender": ("sender", "gpt-5.5"),
            "a sender's API": ("sender_api", "chat"),
            "another token limit": ("max_tokens", 9),
            "another source": ("source_sha256", "0" * 64),
            "another task": ("task", "other"),
            "an older format": ("format", 1),
        },
        "the whole task": {
            "the receiver alone": ("course", "receiver-only"),
            "a session": ("course", "session"),
            "an option of a session": ("options", ["fresh"]),
            "an issuer": ("session_issuer", "kimi-k3"),
            "a record's API": ("session_api", "chat"),
            "another sender": ("sender", "gpt-5.4"),
            "another sender's API": ("sender_api", "messages"),
            "no sender's API": ("sender_api", ""),
            "another receiver's API": ("receiver_api", "gemini"),
            "another token limit": ("max_tokens", 9),
            "an older format": ("format", 1),
        },
    }

    def test_fact_that_the_run_cannot_have_is_found(self):
        for kind, forged in self.FORGED.items():
            shutil.rmtree(self.path("run"), ignore_errors=True)
            if kind == "the whole task":
                script = [respond(reply) for reply in (CHAT.called, CHAT.ended, CHAT.answer(ANSWER))]
                self.assertEqual(self.live_at(CHAT, self.serve(*script)).code, 0)
            else:
                self.assertEqual(self.do(kind, CHAT).code, 0)
            for phrase, (field, value) in forged.items():
                with self.subTest(phrase, kind=kind):
                    self.check_forged(field, value)

    def check_forged(self, field, value):
        """Another value of a fact is found, also by somebody who makes the report anew."""
        shutil.rmtree(self.path("copy"), ignore_errors=True)
        shutil.copytree(self.path("run"), self.path("copy"))

        def change(records):
            self.assertNotEqual(records[0][field], value)
            records[0][field] = value

        rewrite_ledger(self.path("copy"), change)
        ended = handoff("--inspect", self.path("copy"), "--json")
        self.assertNotIn("Traceback", ended.err)
        shown = json.loads(ended.out)
        if ended.code == 2:  # the folder is one of another task
            self.assertIn(field, ("course", "task"))
        else:
            found = [one for one in shown["findings"] if not one["path"].startswith("report.html")]
            self.assertEqual((ended.code, bool(found)), (1, True), shown["findings"])

    def test_record_of_another_session_does_not_fit(self):
        self.assertEqual(self.do("a session", CHAT).code, 0)
        self.good = self.files()
        changed = self.copy(**{"session.json": Path(KIMI).read_bytes()})
        self.check(self.seal(changed), 1, "session.json")
