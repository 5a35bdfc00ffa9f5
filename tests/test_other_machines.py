"""Errors that other machines give where checkpoint_demo.py writes: no hard links, no full flush."""

from __future__ import annotations

import errno
import json
import os
import unittest

from tests.conditions import counted, failing, full_flush, is_folder
from tests.support import ANSWERED, FolderTestCase, checkpoint

PREPARED = ["checkpoint.json", "handoff.txt"]
IS_WINDOWS = os.name == "nt"
# errno of a folder that cannot be flushed, as file systems give it.
CANNOT_FLUSH = ("EINVAL", "EBADF", "ENOTSUP", "EOPNOTSUPP", "ENOSYS")


class HardLinkTest(FolderTestCase):
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
class FlushTest(FolderTestCase):
    def prepare(self, name):
        return checkpoint("prepare", "--out", self.path(f"work-{name}"))

    def test_full_flush_that_is_refused_becomes_a_plain_one(self):
        for word in ("ENOTSUP", "EINVAL", "ENOTTY", "ENOSYS", "EPERM", "EBADF"):
            with self.subTest(word), full_flush(getattr(errno, word)), counted("fsync") as flushed:
                ended = self.prepare(word)
                self.assertEqual(ended.code, 0, ended)
                self.assertGreaterEqual(len(flushed), 4)  # two files, two folders

    def test_full_flush_that_works_is_enough(self):
        with full_flush() as calls, counted("fsync") as flushed:
            ended = self.prepare("whole")
            self.assertEqual(ended.code, 0, ended)
        self.assertEqual({command for _, command in calls}, {51})
        self.assertEqual(flushed, [])

    def test_file_that_cannot_be_flushed_in_either_way_is_not_written(self):
        def is_file(descriptor):
            return not is_folder(descriptor)

        with full_flush(errno.ENOTSUP), failing("fsync", errno.EIO, is_file):
            ended = self.prepare("lost")
        self.assertEqual(ended.code, 2, ended)
        self.assertNotIn("work-lost", self.names())

    def test_folder_that_cannot_be_flushed_is_let_pass(self):
        for word in CANNOT_FLUSH:
            with self.subTest(word), failing("fsync", getattr(errno, word), is_folder) as failed:
                ended = self.prepare(word)
                self.assertEqual(ended.code, 0, ended)
                self.assertTrue(failed)

    def test_folder_that_cannot_be_flushed_is_let_pass_on_macos(self):
        for word in CANNOT_FLUSH:
            code = getattr(errno, word)
            with self.subTest(word), full_flush(code), failing("fsync", code, is_folder) as failed:
                ended = self.prepare(word)
                self.assertEqual(ended.code, 0, ended)
                self.assertTrue(failed)

    def test_folder_whose_flush_goes_wrong_is_not_let_pass(self):
        for word in ("EIO", "ENOSPC"):
            with self.subTest(word), failing("fsync", getattr(errno, word), is_folder):
                ended = self.prepare(word)
                self.assertIn(ended.code, (2, 3), ended)
                self.assertNotIn(f"work-{word}", self.names())

    def test_file_that_cannot_be_flushed_is_a_fault_whatever_the_errno_is(self):
        """What is let pass for a folder is not for a file: its bytes would not be durable."""

        def is_file(descriptor):
            return not is_folder(descriptor)

        for word in ("EINVAL", "EBADF", "EIO"):
            with self.subTest(word), failing("fsync", getattr(errno, word), is_file):
                ended = checkpoint("prepare", "--out", self.path(f"work-{word}"))
                self.assertEqual(ended.code, 2, ended)
