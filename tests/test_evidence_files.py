"""Errors that a machine really gives: no hard links, no full flush, a virus scanner, a disk that is full."""

from __future__ import annotations

import errno
import json
import os
import time
import unittest

from tests.conditions import (
    FIRST,
    SENDER_REPLIES,
    THIRD,
    ConditionsTestCase,
    counted,
    failing,
    failing_renames,
    full_flush,
    is_folder,
    names_file,
)
from tests.support import ANSWERED, CALLED, GOOD_RUN, checkpoint, handoff, message, respond, text

PREPARED = ["checkpoint.json", "handoff.txt"]
IS_WINDOWS = os.name == "nt"
# errno of a folder that cannot be flushed, as file systems give it.
CANNOT_FLUSH = ("EINVAL", "EBADF", "ENOTSUP", "EOPNOTSUPP", "ENOSYS")


class HardLinkTest(ConditionsTestCase):
    REFUSED = ("EPERM", "EACCES", "EINVAL", "ENOTSUP", "ENOSYS", "EMLINK", "EXDEV", "EIO", "ENOENT", "EROFS")

    def setUp(self):
        super().setUp()
        self.response = self.put("response.json", json.dumps(ANSWERED))

    def test_refused_link_is_done_without(self):
        for word in self.REFUSED:
            with self.subTest(word), failing("link", getattr(errno, word)) as failed:
                folder, result = self.path(f"{word}-folder"), self.path(f"{word}.json")
                self.assertEqual(checkpoint("prepare", "--out", folder).code, 0)
                self.assertEqual(checkpoint("extract", self.response, "-o", result).code, 0)
                self.assertEqual(len(failed), 3)
                self.assertEqual(sorted(os.listdir(folder)), PREPARED)

    def test_link_that_the_system_does_not_have_is_done_without(self):
        """Some builds of Python have no os.link at all."""
        real = os.link
        del os.link
        self.addCleanup(setattr, os, "link", real)
        ended = checkpoint("prepare", "--out", self.path("folder"))
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(sorted(os.listdir(self.path("folder"))), PREPARED)

    def test_link_that_says_exists_overwrites_nothing(self):
        """Somebody else's file came between the look and the link."""
        with failing("link", errno.EEXIST):
            ended = checkpoint("extract", self.response, "-o", self.path("result.json"))
        self.assertEqual(ended.code, 3, ended)
        self.assertEqual(self.names(), ["response.json"])

    def test_file_that_came_meanwhile_is_not_overwritten_without_links_either(self):
        def put_theirs(source, target, **_):
            self.put("result.json", "theirs")
            return True

        with failing("link", errno.EACCES, put_theirs):
            ended = checkpoint("extract", self.response, "-o", self.path("result.json"))
        self.assertEqual(ended.code, 3, ended)
        self.assertEqual((self.folder / "result.json").read_bytes(), b"theirs")
        self.assertEqual(self.names(), ["response.json", "result.json"])

    def test_folder_that_is_really_closed_fails_at_the_creation(self):
        real_open, creations = os.open, []

        def is_second_creation(path, flags, *_, **__):
            if flags & os.O_CREAT:
                creations.append(path)
            return bool(flags & os.O_CREAT) and len(creations) == 2

        self.assertIs(os.open, real_open)
        for word in ("EACCES", "ENOSPC", "EIO"):
            with self.subTest(word):
                creations.clear()
                with failing("link", errno.EACCES), failing("open", getattr(errno, word), is_second_creation):
                    ended = checkpoint("extract", self.response, "-o", self.path("result.json"))
                self.assertEqual(ended.code, 2, ended)
                self.assertIn(os.strerror(getattr(errno, word)), ended.err)
                self.assertEqual(self.names(), ["response.json"])


@unittest.skipIf(IS_WINDOWS, "Windows flushes no folders")
class FlushTest(ConditionsTestCase):
    def rehearse_and_prepare(self, name):
        rehearsed = handoff("--rehearse", "--out", self.path(f"run-{name}"))
        prepared = checkpoint("prepare", "--out", self.path(f"work-{name}"))
        return rehearsed, prepared

    def test_full_flush_that_is_refused_becomes_a_plain_one(self):
        for word in ("ENOTSUP", "EINVAL", "ENOTTY", "ENOSYS", "EPERM", "EBADF"):
            with self.subTest(word), full_flush(getattr(errno, word)), counted("fsync") as flushed:
                for ended in self.rehearse_and_prepare(word):
                    self.assertEqual(ended.code, 0, ended)
                self.assertGreater(len(flushed), 20)
            with full_flush(getattr(errno, word)), counted("fsync") as flushed:
                checkpoint("prepare", "--out", self.path(f"alone-{word}"))
            self.assertGreaterEqual(len(flushed), 4, word)  # two files, two folders

    def test_full_flush_that_works_is_enough(self):
        with full_flush() as calls, counted("fsync") as flushed:
            for ended in self.rehearse_and_prepare("whole"):
                self.assertEqual(ended.code, 0, ended)
        self.assertEqual({command for _, command in calls}, {51})
        self.assertEqual(flushed, [])

    def test_file_that_cannot_be_flushed_in_either_way_is_not_written(self):
        def is_file(descriptor):
            return not is_folder(descriptor)

        with full_flush(errno.ENOTSUP), failing("fsync", errno.EIO, is_file):
            rehearsed, prepared = self.rehearse_and_prepare("lost")
        self.assertEqual((rehearsed.code, prepared.code), (4, 2), (rehearsed, prepared))
        self.assertNotIn("work-lost", self.names())

    def test_folder_that_cannot_be_flushed_is_let_pass(self):
        for word in CANNOT_FLUSH:
            with self.subTest(word), failing("fsync", getattr(errno, word), is_folder) as failed:
                for ended in self.rehearse_and_prepare(word):
                    self.assertEqual(ended.code, 0, ended)
                self.assertTrue(failed)

    def test_folder_that_cannot_be_flushed_is_let_pass_on_macos(self):
        for word in CANNOT_FLUSH:
            code = getattr(errno, word)
            with self.subTest(word), full_flush(code), failing("fsync", code, is_folder) as failed:
                for ended in self.rehearse_and_prepare(word):
                    self.assertEqual(ended.code, 0, ended)
                self.assertTrue(failed)

    def test_folder_whose_flush_goes_wrong_is_not_let_pass(self):
        for word in ("EIO", "ENOSPC"):
            with self.subTest(word), failing("fsync", getattr(errno, word), is_folder):
                for ended in self.rehearse_and_prepare(word):
                    self.assertIn(ended.code, (2, 3, 4), ended)
                self.assertNotIn(f"work-{word}", self.names())

    def test_file_that_cannot_be_flushed_is_a_fault_whatever_the_errno_is(self):
        """What is let pass for a folder is not for a file: its bytes would not be durable."""

        def is_file(descriptor):
            return not is_folder(descriptor)

        for word in ("EINVAL", "EBADF", "EIO"):
            with self.subTest(word), failing("fsync", getattr(errno, word), is_file):
                ended = checkpoint("prepare", "--out", self.path(f"work-{word}"))
                self.assertEqual(ended.code, 2, ended)


class RenameTest(ConditionsTestCase):
    def test_rename_that_is_refused_for_a_moment_is_tried_again(self):
        """A virus scanner holds a new file open for some tenths of a second."""
        for word in ("EACCES", "EPERM", "EBUSY"):
            begun = {}

            def is_held(source, target, begun=begun, **_):
                return time.monotonic() - begun.setdefault(target, time.monotonic()) < 0.06

            with self.subTest(word), failing_renames(getattr(errno, word), is_held):
                ended = self.live(self.serve(*GOOD_RUN), out=word)
                self.assertEqual(ended.code, 0, ended)
                self.assertGreaterEqual(len(begun), 10)
                self.assertEqual(self.inspect(word).code, 0)

    def test_rename_that_is_refused_for_good_ends_the_run_before_anything_is_sent(self):
        server, begun = self.serve(*GOOD_RUN), time.monotonic()
        with failing_renames(errno.EACCES, names_file("1-request.json")):
            ended = self.live(server)
        self.assertEqual((ended.code, server.requests), (4, []), ended)
        self.assertTrue(0.8 < time.monotonic() - begun < 5, "tried again for about a second")
        self.assertIn("1-request.json", ended.err)
        self.assertEqual(self.inspect().code, 4)


class ReceivedReplyTest(ConditionsTestCase):
    """A reply that was paid is never deleted because it could not get its name."""

    def check_kept(self, name, body, ended, operation_id, out="run"):
        kept = {stored: data for stored, data in self.files(out).items() if name in stored}
        self.assertEqual(list(kept.values()), [body], kept)
        (stored,) = kept
        self.assertEqual(ended.code, 5, ended)
        self.assertEqual(self.last(operation_id, out)["state"], "unclear")
        self.assertIn(stored, self.last(operation_id, out)["why"])
        self.assertIn(stored, ended.err)
        inspected = self.inspect(out)
        self.assertEqual(inspected.code, 5, inspected)
        self.assertIn(stored, inspected.out + inspected.err)
        self.assertIn(stored, self.report(out))

    def test_reply_that_cannot_be_renamed_stays_under_its_temporary_name(self):
        for word in ("EACCES", "EIO", "ENOSPC", "EPERM"):
            with self.subTest(word), failing_renames(getattr(errno, word), names_file("1-response.json")):
                server = self.serve(*GOOD_RUN)
                ended = self.live(server, out=word)
                self.assertEqual(len(server.requests), 1)
            self.check_kept("1-response.json", json.dumps(CALLED).encode(), ended, FIRST, word)

    def test_last_reply_that_cannot_be_renamed_stays_too(self):
        with failing_renames(errno.EACCES, names_file("3-response.json")):
            ended = self.live(self.serve(*GOOD_RUN))
        self.check_kept("3-response.json", json.dumps(ANSWERED).encode(), ended, THIRD)
        self.assertNotIn("accepted:", ended.out)

    def test_reply_of_a_refusal_that_cannot_be_renamed_is_kept_too(self):
        body = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
        with failing_renames(errno.EACCES, names_file("1-response.json")):
            ended = self.run_first(respond(body, 400))
        self.check_kept("1-response.json", json.dumps(body).encode(), ended, FIRST)

    def test_reply_that_cannot_be_written_is_unclear_without_a_file(self):
        with failing("open", errno.ENOSPC, names_file("1-response.json")):
            ended = self.live(self.serve(*GOOD_RUN))
        self.assertEqual(ended.code, 5, ended)
        self.assertEqual([name for name in self.files() if "1-response" in name], [])


class AcceptedTest(ConditionsTestCase):
    """An accepted run is accepted, also where its last files could not be written."""

    LAST = ("report.html", "SHA256SUMS")

    def check_accepted(self, ended, out, missing):
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("accepted: 3 rows, total shortage 7", ended.out)
        for name in missing:
            self.assertIn(name, ended.err)
            self.assertNotIn(name, self.files(out))
        self.assertEqual([name for name in self.files(out) if name.endswith(".part")], [])
        inspected = self.inspect(out)
        self.assertEqual(inspected.code, 1, inspected)
        for name in missing:
            self.assertIn(name, inspected.err)
        page = self.path(f"{out}.html")
        self.assertEqual(self.inspect(out, "--html", page).code, 1)
        with open(page, encoding="utf-8") as file:
            self.assertIn("<!doctype html>", file.read())

    def test_run_without_its_last_files_is_accepted_and_says_what_is_missing(self):
        for name in self.LAST:
            for word in ("ENOSPC", "EIO", "EACCES"):
                with self.subTest(name, errno=word):
                    out = f"run-{self.LAST.index(name)}-{word}"
                    with failing("open", getattr(errno, word), names_file(name)):
                        ended = self.live(self.serve(*GOOD_RUN), out=out)
                    self.check_accepted(ended, out, [name])

    def test_run_on_a_disk_that_is_full_at_the_end_is_accepted(self):
        with failing(
            "open", errno.ENOSPC, lambda path, *_, **__: "report" in str(path) or "SUMS" in str(path)
        ):
            ended = self.live(self.serve(*GOOD_RUN), out="full")
        self.check_accepted(ended, "full", self.LAST)

    def test_run_whose_last_files_cannot_be_renamed_is_accepted(self):
        with failing_renames(errno.EACCES, names_file("SHA256SUMS")):
            ended = self.live(self.serve(*GOOD_RUN), out="held")
        self.check_accepted(ended, "held", ["SHA256SUMS"])

    def test_rehearsal_without_its_last_files_is_accepted_as_well(self):
        with failing("open", errno.ENOSPC, names_file("SHA256SUMS")):
            ended = handoff("--rehearse", "--out", self.path("rehearsed"))
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("SHA256SUMS", ended.err)

    def test_run_without_its_last_files_keeps_its_own_end(self):
        entries = {
            1: respond(message([text('{"rows":[]}')])),
            4: respond(message([], "refusal")),
            5: respond(b"<html>", 502),
        }
        for code, entry in entries.items():
            with self.subTest(code), failing("open", errno.ENOSPC, names_file("SHA256SUMS")):
                ended = self.live(self.serve(*SENDER_REPLIES, entry), out=str(code))
                self.assertEqual(ended.code, code, ended)
                self.assertIn("SHA256SUMS", ended.err)

    def test_run_whose_last_record_is_not_written_is_not_accepted(self):
        """The record that closes a run is what makes it accepted."""
        real, ledger = os.write, []

        def is_the_end(descriptor, data, *_):
            is_due = b'"operation_id":"run","state":"confirmed"' in bytes(data)
            ledger.append(is_due)
            return is_due

        with failing("write", errno.ENOSPC, is_the_end):
            ended = self.live(self.serve(*GOOD_RUN))
        self.assertIs(os.write, real)
        self.assertTrue(any(ledger))
        self.assertEqual(ended.code, 4, ended)
        self.assertNotIn("accepted:", ended.out)
