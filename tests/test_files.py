"""Files: reading an input, and writing new files durably, all or none, over nothing."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import sys
import threading
import unittest
from pathlib import Path
from unittest import mock

from checkpoint_demo import (
    ExistsError,
    UnreadableError,
    UnwritableError,
    discard,
    flush_folder,
    make_folder,
    read_input,
    write_all,
    write_flushed,
    write_new_files,
)
from tests import support

IS_WINDOWS = os.name == "nt"
IS_ROOT = getattr(os, "geteuid", lambda: 1)() == 0
FLUSH = "fcntl.fcntl" if sys.platform == "darwin" else "os.fsync"
POINTS = ("os.open", "os.write", FLUSH, "os.link", "os.unlink")  # where writing a file can fail
ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES)
NO_HARD_LINKS = {
    "EPERM": errno.EPERM,
    "ENOTSUP": errno.ENOTSUP,
    "ENOSYS": errno.ENOSYS,
    "EMLINK": errno.EMLINK,
}


class FailingCall:
    """Stands in for a system call: counts its uses, and raises an error at some of them."""

    def __init__(self, target, error=None, is_due=lambda call: False):
        module, _, name = target.rpartition(".")
        self.target, self.error, self.is_due, self.calls = target, error, is_due, 0
        self.real = getattr(sys.modules[module], name)

    def __call__(self, *arguments, **options):
        self.calls += 1
        if self.is_due(self.calls):
            raise self.error
        return self.real(*arguments, **options)

    def patch(self):
        return mock.patch(self.target, self)


def refuse_hard_links(code=errno.EPERM):
    """Return a patch for a file system without hard links."""
    return mock.patch("os.link", side_effect=support.make_error(code))


def snapshot(folder):
    """Return {name: what stands there}: bytes, a link's target, or a word."""
    standing = {}
    for entry in os.scandir(folder):
        if entry.is_symlink():
            standing[entry.name] = f"link to {os.readlink(entry.path)}"
        elif entry.is_file():
            standing[entry.name] = Path(entry.path).read_bytes()
        else:
            standing[entry.name] = snapshot(entry.path) if entry.is_dir() else "special"
    return standing


class ReadInputTest(support.FolderTestCase):
    def refuse(self, path):
        with self.assertRaises(UnreadableError) as caught:
            read_input(path)
        return str(caught.exception)

    def take(self, stream):
        """Let a stream be standard input for this test."""
        patch = mock.patch.object(sys, "stdin", stream)
        patch.start()
        self.addCleanup(patch.stop)

    def test_read_input_of_a_file_returns_its_bytes(self):
        files = {
            "an empty file": b"",
            "every byte": bytes(range(256)),
            "line ends of all kinds": b"a\r\nb\nc\rd\x1a",
        }
        for phrase, data in files.items():
            with self.subTest(phrase):
                self.assertEqual(read_input(self.put("input", data)), data)

    def test_read_input_of_a_missing_file_says_what_why_and_next(self):
        said = self.refuse("no-such-file")
        self.assertEqual(
            said,
            f"unreadable: no-such-file: {os.strerror(errno.ENOENT)}\n"
            "  why: only an input that was read whole is used\n"
            "  next: name a file that you can read",
        )

    def test_read_input_of_what_is_no_readable_file_is_refused_with_the_reason(self):
        self.put("file", b"{}")
        paths = {
            "a folder": (str(self.folder), os.strerror(errno.EACCES if IS_WINDOWS else errno.EISDIR)),
            "a missing folder": (self.path("no/file"), os.strerror(errno.ENOENT)),
        }
        if not IS_WINDOWS:
            os.symlink("loop", self.path("loop"))
            os.symlink("nowhere", self.path("dangling"))
            paths["a file as a folder"] = self.path("file/file"), os.strerror(errno.ENOTDIR)
            paths["a loop of links"] = self.path("loop"), os.strerror(errno.ELOOP)
            paths["a dangling link"] = self.path("dangling"), os.strerror(errno.ENOENT)
            paths["a name that is too long"] = self.path("n" * 300), os.strerror(errno.ENAMETOOLONG)
        for phrase, (path, reason) in paths.items():
            with self.subTest(phrase):
                self.assertEqual(self.refuse(path).split("\n")[0], f"unreadable: {path}: {reason}")

    def test_read_input_of_an_impossible_name_is_refused_escaped(self):
        names = {"NUL": ("a\0b", "a\\x00b"), "a lone surrogate": ("a\ud800b", "a\\ud800b")}
        for phrase, (name, shown) in names.items():
            with self.subTest(phrase):
                first = self.refuse(name).split("\n")[0]
                self.assertRegex(first, f"^unreadable: {shown.replace(chr(92), chr(92) * 2)}: .+")

    def test_read_input_that_fails_is_refused_with_the_reason(self):
        broken = mock.MagicMock()
        broken.__enter__.return_value.read.side_effect = support.make_error(errno.EIO)
        failures = {
            "when it is opened": ({"side_effect": support.make_error(errno.EACCES)}, errno.EACCES),
            "when it is read": ({"return_value": broken}, errno.EIO),
        }
        for phrase, (behaviour, code) in failures.items():
            with self.subTest(phrase), mock.patch("builtins.open", **behaviour):
                first = self.refuse("input").split("\n")[0]
            self.assertEqual(first, f"unreadable: input: {os.strerror(code)}")

    @unittest.skipIf(IS_WINDOWS or IS_ROOT, "for root every file is readable")
    def test_read_input_without_permission_is_refused(self):
        path = self.put("input", b"{}")
        os.chmod(path, 0)
        self.assertIn(f"unreadable: {path}: {os.strerror(errno.EACCES)}\n", self.refuse(path))

    @unittest.skipUnless(hasattr(os, "mkfifo"), "no named pipes here")
    def test_read_input_of_a_fifo_waits_for_all_of_it(self):
        path = self.path("fifo")
        os.mkfifo(path)
        pieces = [b"a" * 70_000, b"b", b"c" * 70_000]

        def write():
            with open(path, "wb", buffering=0) as fifo:
                for piece in pieces:
                    write_all(fifo.write, piece)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        self.addCleanup(writer.join, 10)
        self.assertEqual(read_input(path), b"".join(pieces))

    def test_read_input_over_the_limit_is_cut_one_byte_behind_it(self):
        lengths = {"below": (9, 9), "at": (10, 10), "one over": (11, 11), "far over": (5_000, 11)}
        for phrase, (length, expected) in lengths.items():
            data = b"0123456789abcdef" * 400
            self.take(io.TextIOWrapper(io.BytesIO(data[:length])))
            path = self.put("input", data[:length])
            with self.subTest(phrase), mock.patch("checkpoint_demo.INPUT_LIMIT_BYTES", 10):
                self.assertEqual(read_input(path), data[:expected])
                self.assertEqual(read_input("-"), data[:expected])

    @unittest.skipUnless(os.path.exists("/dev/zero"), "no endless file here")
    def test_read_input_of_an_endless_file_ends(self):
        with mock.patch("checkpoint_demo.INPUT_LIMIT_BYTES", 1_000):
            self.assertEqual(read_input("/dev/zero"), bytes(1_001))

    def test_read_input_dash_returns_the_bytes_of_standard_input(self):
        self.take(io.TextIOWrapper(io.BytesIO(b"\xff\xfe\r\n\x00"), encoding="ascii"))
        self.assertEqual(read_input("-"), b"\xff\xfe\r\n\x00")

    def test_read_input_of_a_lost_standard_input_is_refused(self):
        closed = io.TextIOWrapper(io.BytesIO(b"{}"))
        closed.close()
        failing = mock.MagicMock()
        failing.buffer.read.side_effect = support.make_error(errno.EIO)
        streams = {
            "closed before the start": (None, "unreadable: standard input: it is closed"),
            "closed since": (closed, "unreadable: -: .+"),
            "failing": (failing, f"unreadable: -: {os.strerror(errno.EIO)}"),
        }
        for phrase, (stream, expected) in streams.items():
            self.take(stream)
            with self.subTest(phrase):
                self.assertRegex(self.refuse("-").split("\n")[0], f"^{expected}$")

    @unittest.skipIf(IS_WINDOWS, "pipes always wait there")
    def test_read_input_of_a_standard_input_that_does_not_wait_is_refused(self):
        """A parent may leave O_NONBLOCK set on a pipe; then a read may return None instead of bytes."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, writer)
        os.set_blocking(reader, False)
        with open(reader, encoding="utf-8") as stream:
            self.take(stream)
            self.refuse("-")


class WriteNewFilesTest(support.FolderTestCase):
    ONE, TWO = b"one\r\n\x00\xff", b"two" * 30_000

    def files(self, folder=""):
        return {
            os.path.join(self.path(folder), "one"): self.ONE,
            os.path.join(self.path(folder), "two"): self.TWO,
        }

    def new_folder(self, name):
        """Make a folder with a stranger's file in it, and return its path."""
        (self.folder / name).mkdir()
        self.put(f"{name}/stranger", b"not mine")
        return self.path(name)

    def test_write_new_files_writes_each_whole(self):
        write_new_files(self.files())
        self.assertEqual(snapshot(self.folder), {"one": self.ONE, "two": self.TWO})
        self.assertEqual([os.stat(path).st_nlink for path in self.files()], [1, 1])

    def test_write_new_files_of_an_empty_file_and_of_none_are_done(self):
        write_new_files({})
        write_new_files({self.path("empty"): b""})
        self.assertEqual(snapshot(self.folder), {"empty": b""})

    def test_write_new_files_of_a_bare_name_writes_to_the_current_folder(self):
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        real, places = os.open, set()

        def note(path, *rest):
            full = os.path.abspath(path)
            places.add(full if os.path.isdir(full) else os.path.dirname(full))
            return real(path, *rest)

        with mock.patch("os.open", note):
            write_new_files({"one": self.ONE})
        self.assertEqual((snapshot(self.folder), places), ({"one": self.ONE}, {str(self.folder)}))

    @unittest.skipIf(IS_WINDOWS, "no such modes there")
    def test_write_new_files_leaves_the_mode_to_the_umask(self):
        for has_links in (True, False):
            for umask in (0o022, 0o077):
                path = self.path(f"{has_links}-{umask:o}")
                self.addCleanup(os.umask, os.umask(umask))
                links = contextlib.nullcontext() if has_links else refuse_hard_links()
                with self.subTest(umask=oct(umask), has_links=has_links), links:
                    write_new_files({path: self.ONE})
                    self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o666 & ~umask)

    def test_write_new_files_through_a_linked_folder_is_done(self):
        (self.folder / "real").mkdir()
        self.link("real", "linked")
        write_new_files(self.files("linked"))
        self.assertEqual(snapshot(self.path("real")), {"one": self.ONE, "two": self.TWO})

    def link(self, target, name):
        try:
            os.symlink(target, self.path(name), target_is_directory=os.path.isdir(self.path(target)))
        except OSError as error:  # Windows, without the right to make links
            self.skipTest(str(error))

    def make_pipe(self, path):
        """Make a named pipe that somebody reads, so that opening it would not wait."""
        os.mkfifo(path)
        self.addCleanup(os.close, os.open(path, os.O_RDWR | os.O_NONBLOCK))

    def test_write_new_files_over_what_exists_is_refused_and_changes_nothing(self):
        self.put("victim", b"keep me")
        kinds = {
            "a file": lambda path: Path(path).write_bytes(b"mine"),
            "an empty file": lambda path: Path(path).touch(),
            "a folder": os.mkdir,
        }
        if not IS_WINDOWS:
            victim = self.path("victim")
            kinds["a link to a file"] = lambda path: os.symlink(victim, path)
            kinds["a hard link"] = lambda path: os.link(victim, path)
            kinds["a dangling link"] = lambda path: os.symlink("nowhere", path)
            kinds["a link to a folder"] = lambda path: os.symlink("..", path)
            kinds["a link to itself"] = lambda path: os.symlink(os.path.basename(path), path)
            kinds["a named pipe"] = self.make_pipe

        def unseen():
            return mock.patch("os.path.lexists", return_value=False)

        moments = {
            "seen at the start": (),
            "made after the look": (unseen,),
            "made after the look, without hard links": (unseen, refuse_hard_links),
        }
        for number, (kind, moment, name) in enumerate(
            (kind, moment, name) for kind in kinds for moment in moments for name in ("one", "two")
        ):
            folder = self.new_folder(str(number))
            path = os.path.join(folder, name)
            kinds[kind](path)
            before = snapshot(folder)
            with self.subTest(f"{kind} at {name}, {moment}"):
                with contextlib.ExitStack() as stack, self.assertRaises(ExistsError) as caught:
                    for patch in moments[moment]:
                        stack.enter_context(patch())
                    write_new_files(self.files(str(number)))
                self.assertEqual(snapshot(folder), before)
                self.assertEqual(Path(self.path("victim")).read_bytes(), b"keep me")
                self.assertEqual(
                    str(caught.exception),
                    f"refused: {path} already exists\n"
                    "  why: what exists is never overwritten\n"
                    "  next: move it away, or name another place",
                )

    def test_write_new_files_over_a_later_file_is_refused_before_anything_is_made(self):
        self.put("two", b"mine")
        opening = FailingCall("os.open")
        with opening.patch(), self.assertRaises(ExistsError):
            write_new_files(self.files())
        self.assertEqual(opening.calls, 0)

    def test_write_new_files_where_a_temporary_name_is_taken_leaves_that_file_alone(self):
        with mock.patch("os.urandom", lambda length: bytes(length)):
            self.put(f".{'00' * 8}.part", b"not mine")
            before = snapshot(self.folder)
            with contextlib.suppress(ExistsError, UnwritableError):
                write_new_files({self.path("one"): self.ONE})
        left = snapshot(self.folder)
        self.assertEqual({name: left.get(name) for name in before}, before)

    def test_write_new_files_into_no_folder_is_refused(self):
        self.put("file", b"not mine")
        folders = {"a missing folder": ("no", errno.ENOENT)}
        if not IS_WINDOWS:
            os.symlink("nowhere", self.path("dangling"))
            folders["a file"] = "file", errno.ENOTDIR
            folders["a dangling link"] = "dangling", errno.ENOENT
        before = snapshot(self.folder)
        for phrase, (name, code) in folders.items():
            with self.subTest(phrase):
                with self.assertRaises(UnwritableError) as caught:
                    write_new_files(self.files(name))
                self.assertEqual(
                    str(caught.exception),
                    f"cannot write: {os.path.join(self.path(name), 'one')}: {os.strerror(code)}\n"
                    "  why: a file is written whole or not at all, and nothing was left behind\n"
                    "  next: make room, or name a place that you can write to",
                )
                self.assertEqual(snapshot(self.folder), before)

    @unittest.skipIf(IS_WINDOWS or IS_ROOT, "root may write everywhere")
    def test_write_new_files_into_a_folder_without_permission_is_refused(self):
        folder = self.new_folder("closed")
        self.addCleanup(os.chmod, folder, 0o700)
        for mode in (0o500, 0o300):  # not writable; writable, but it cannot be opened to be flushed
            os.chmod(folder, mode)
            with self.subTest(mode=oct(mode)):
                with self.assertRaises(UnwritableError):
                    write_new_files(self.files("closed"))
                os.chmod(folder, 0o700)
                self.assertEqual(snapshot(folder), {"stranger": b"not mine"})

    def test_write_new_files_of_an_impossible_name_is_refused_and_leaves_nothing(self):
        names = {
            "NUL in the name": "a\0b",
            "NUL in the folder": "a\0b/one",
            "a lone surrogate in the name": "a\ud800b",
            "a lone surrogate in the folder": "a\ud800b/one",
        }
        for phrase, name in names.items():
            with self.subTest(phrase):
                with self.assertRaises(UnwritableError):
                    write_new_files({self.path("first"): self.ONE, self.path(name): self.TWO})
                self.assertEqual(snapshot(self.folder), {})

    def test_write_new_files_without_hard_links_creates_them_exclusively(self):
        for phrase, code in NO_HARD_LINKS.items():
            (self.folder / phrase).mkdir()
            with self.subTest(phrase), refuse_hard_links(code):
                write_new_files(self.files(phrase))
                self.assertEqual(snapshot(self.path(phrase)), {"one": self.ONE, "two": self.TWO})

    # --- Faults, one at a time, at every call ---

    def sweep(self, error, expected, *patches, points=POINTS, is_lasting=False):
        """Let each call of each point fail with an error; each time nothing may be left behind."""
        for point in points:
            counter = FailingCall(point)
            self.write_with(counter, patches)
            self.assertGreater(counter.calls, 1, f"{point} was not called for each file")
            for first in range(1, counter.calls + 1):
                failing = FailingCall(point, error, first.__le__ if is_lasting else first.__eq__)
                free = support.find_free_descriptor()
                with self.subTest(f"{point}, call {first}: {error!r}"):
                    with self.assertRaises(expected) as caught:
                        self.write_with(failing, patches)
                    self.assertGreaterEqual(failing.calls, first)
                    self.assertEqual(snapshot(self.last_folder), {"stranger": b"not mine"})
                    self.assertEqual(support.find_free_descriptor(), free)
                    if expected is UnwritableError:
                        first_line = str(caught.exception).split("\n")[0]
                        self.assertIn(self.last_folder, first_line)
                        self.assertTrue(first_line.endswith(f": {error.strerror}"), first_line)

    def write_with(self, call, patches):
        """Write the files into a new folder while a call and other things are patched."""
        self.number = getattr(self, "number", 0) + 1
        self.last_folder = self.new_folder(str(self.number))
        with contextlib.ExitStack() as stack:
            for patch in (*patches, call.patch):
                stack.enter_context(patch())
            write_new_files(self.files(self.last_folder))

    def test_write_new_files_with_a_fault_at_any_call_leaves_nothing(self):
        points = [point for point in POINTS if point != "os.link"]
        for code in ERRORS:
            self.sweep(support.make_error(code), UnwritableError, points=points)

    def test_write_new_files_whose_hard_link_fails_creates_the_file_instead(self):
        """Systems refuse a hard link in many ways; a real fault comes back when the file is created."""
        for error in (*map(support.make_error, ERRORS), AttributeError("no link"), NotImplementedError()):
            for first in (1, 2):
                with self.subTest(error=repr(error), call=first):
                    failing = FailingCall("os.link", error, first.__eq__)
                    self.write_with(failing, ())
                    self.assertEqual(failing.calls, 2)
                    expected = {"one": self.ONE, "two": self.TWO, "stranger": b"not mine"}
                    self.assertEqual(snapshot(self.last_folder), expected)

    def test_write_new_files_with_a_lasting_fault_leaves_nothing(self):
        # Without os.unlink nothing can be taken back, without os.link the files are created in their places.
        points = [point for point in POINTS if point not in ("os.link", "os.unlink")]
        self.sweep(support.make_error(errno.EIO), UnwritableError, points=points, is_lasting=True)

    def test_write_new_files_without_hard_links_and_with_a_fault_leaves_nothing(self):
        points = [point for point in POINTS if point != "os.link"]
        for code in ERRORS:
            self.sweep(support.make_error(code), UnwritableError, refuse_hard_links, points=points)

    def test_write_new_files_that_is_ended_from_outside_leaves_nothing(self):
        for error in (KeyboardInterrupt(), MemoryError()):
            self.sweep(error, type(error))

    def test_write_new_files_after_a_fault_is_possible_again(self):
        failing = FailingCall(FLUSH, support.make_error(errno.ENOSPC), (3).__eq__)
        with failing.patch(), self.assertRaises(UnwritableError):
            write_new_files(self.files())
        write_new_files(self.files())
        self.assertEqual(snapshot(self.folder), {"one": self.ONE, "two": self.TWO})

    def test_write_new_files_goes_on_after_a_short_write(self):
        real = os.write
        for has_links in (True, False):
            (self.folder / str(has_links)).mkdir()
            links = contextlib.nullcontext() if has_links else refuse_hard_links()
            short = mock.patch("os.write", lambda descriptor, data: real(descriptor, data[:7_001]))
            with self.subTest(has_links=has_links), links, short:
                write_new_files(self.files(str(has_links)))
            self.assertEqual(snapshot(self.path(str(has_links))), {"one": self.ONE, "two": self.TWO})

    def test_write_new_files_that_runs_full_after_a_short_write_leaves_nothing(self):
        real, room = os.write, [20_000]

        def write(descriptor, data):
            if not room[0]:
                raise support.make_error(errno.ENOSPC)
            count = real(descriptor, data[: min(9_000, room[0])])
            room[0] -= count
            return count

        with mock.patch("os.write", write), self.assertRaises(UnwritableError):
            write_new_files(self.files())
        self.assertEqual((room[0], snapshot(self.folder)), (0, {}))


class Recorder:
    """Records the system calls on files, with the names of what they act upon."""

    def __init__(self, folder):
        self.folder, self.events, self.names = folder, [], {}
        self.real = {
            name: getattr(os, name) for name in ("open", "write", "close", "fsync", "link", "unlink")
        }

    def name(self, path):
        if os.path.normpath(path) == self.folder:
            return "folder"
        if os.path.dirname(path) != self.folder:
            return f"elsewhere: {path}"
        base = os.path.basename(path)
        return "part" if base.startswith(".") and base.endswith(".part") else base

    def patch(self, stack):
        for name in self.real:
            stack.enter_context(mock.patch(f"os.{name}", getattr(self, name)))

    def open(self, path, flags, *rest):
        exclusive = flags & (os.O_CREAT | os.O_EXCL) == os.O_CREAT | os.O_EXCL
        descriptor = self.real["open"](path, flags, *rest)
        self.names[descriptor] = self.name(path)
        self.events.append(f"{'create' if exclusive else 'open'} {self.name(path)}")
        return descriptor

    def write(self, descriptor, data):
        self.events.append(f"write {self.names[descriptor]}")
        return self.real["write"](descriptor, data)

    def close(self, descriptor):
        self.events.append(f"close {self.names.pop(descriptor)}")
        self.real["close"](descriptor)

    def fsync(self, descriptor):
        self.events.append(f"flush {self.names[descriptor]}")
        self.real["fsync"](descriptor)

    def link(self, source, target):
        self.events.append(f"link {self.name(source)} to {self.name(target)}")
        self.real["link"](source, target)

    def unlink(self, path):
        self.events.append(f"remove {self.name(path)}")
        self.real["unlink"](path)


@unittest.skipIf(IS_WINDOWS or sys.platform == "darwin", "other calls flush there")
class OrderTest(support.FolderTestCase):
    def record(self, *patches):
        recorder = Recorder(str(self.folder))
        with contextlib.ExitStack() as stack:
            recorder.patch(stack)
            for patch in patches:
                stack.enter_context(patch())
            write_new_files({self.path("one"): b"1", self.path("two"): b"2"})
        return recorder.events

    def test_write_new_files_flushes_before_it_links_and_the_folder_last(self):
        expected = []
        for name in ("one", "two"):
            expected += ["create part", "write part", "flush part", "close part"]
            expected += [f"link part to {name}", "remove part"]
        expected += ["open folder", "flush folder", "close folder"]
        self.assertEqual(self.record(), expected)

    def test_write_new_files_without_hard_links_flushes_each_file_and_the_folder(self):
        expected = []
        for name in ("one", "two"):
            expected += ["create part", "write part", "flush part", "close part"]
            expected += [f"create {name}", f"write {name}", f"flush {name}", f"close {name}"]
            expected += ["remove part"]
        expected += ["open folder", "flush folder", "close folder"]
        self.assertEqual(self.record(refuse_hard_links), expected)


class WriteFlushedTest(support.FolderTestCase):
    def test_write_flushed_creates_the_file_whole(self):
        data = bytes(range(256)) * 1_000
        write_flushed(self.path("new"), data)
        self.assertEqual(snapshot(self.folder), {"new": data})

    @unittest.skipIf(IS_WINDOWS, "no such modes there")
    def test_write_flushed_with_a_mode_gives_the_file_that_mode(self):
        self.addCleanup(os.umask, os.umask(0o022))
        write_flushed(self.path("own"), b"", 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("own")).st_mode), 0o600)

    def test_write_flushed_over_what_exists_raises_and_changes_nothing(self):
        self.put("file", b"mine")
        names = ["file"]
        if not IS_WINDOWS:
            os.symlink("file", self.path("link"))
            os.symlink("nowhere", self.path("dangling"))
            names += ["link", "dangling"]
        before = snapshot(self.folder)
        for name in names:
            with self.subTest(name):
                with self.assertRaises(FileExistsError):
                    write_flushed(self.path(name), b"yours")
                self.assertEqual(snapshot(self.folder), before)

    def test_write_flushed_that_fails_removes_its_file_and_closes_it(self):
        def close_and_fail(descriptor, close=os.close):
            close(descriptor)
            raise support.make_error(errno.EIO)

        faults = {
            "at the write": mock.patch("os.write", side_effect=support.make_error(errno.EIO)),
            "at the flush": mock.patch(FLUSH, side_effect=support.make_error(errno.EIO)),
            "at the close": mock.patch("os.close", close_and_fail),
        }
        for phrase, fault in faults.items():
            free = support.find_free_descriptor()
            with self.subTest(phrase):
                with fault, self.assertRaises(OSError) as caught:
                    write_flushed(self.path("new"), b"data")
                self.assertEqual(caught.exception.errno, errno.EIO)
                self.assertEqual(snapshot(self.folder), {})
                self.assertEqual(support.find_free_descriptor(), free)


@unittest.skipIf(IS_WINDOWS, "no folder is flushed there")
class FlushFolderTest(support.FolderTestCase):
    def test_flush_folder_flushes_the_folder_and_closes_it(self):
        free, flushed = support.find_free_descriptor(), []
        identity = os.stat(self.folder).st_ino
        with mock.patch(
            "checkpoint_demo.flush", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino)
        ):
            flush_folder(str(self.folder))
        self.assertEqual((flushed, support.find_free_descriptor()), ([identity], free))

    def test_flush_folder_that_fails_raises_and_closes_it(self):
        free = support.find_free_descriptor()
        with self.assertRaises(FileNotFoundError):
            flush_folder(self.path("missing"))
        for code in (errno.EIO, errno.ENOSPC):
            failing = mock.patch("checkpoint_demo.flush", side_effect=support.make_error(code))
            with self.subTest(code), failing, self.assertRaises(OSError):
                flush_folder(str(self.folder))
        self.assertEqual(support.find_free_descriptor(), free)

    def test_flush_folder_where_folders_are_not_flushed_is_done(self):
        free = support.find_free_descriptor()
        for code in (errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS):
            failing = mock.patch("checkpoint_demo.flush", side_effect=support.make_error(code))
            with self.subTest(code), failing:
                flush_folder(str(self.folder))
        self.assertEqual(support.find_free_descriptor(), free)


class MakeFolderTest(support.FolderTestCase):
    @unittest.skipIf(IS_WINDOWS, "no folder is flushed there")
    def test_make_folder_flushes_the_folder_that_it_stands_in(self):
        for name in ("new", "other/"):
            with self.subTest(name), mock.patch("checkpoint_demo.flush_folder") as flush_parent:
                make_folder(self.path(name))
                self.assertEqual(os.listdir(self.path(name)), [])
                flush_parent.assert_called_once_with(str(self.folder))

    @unittest.skipIf(IS_WINDOWS, "no folder is flushed there")
    def test_make_folder_behind_a_link_flushes_the_folder_that_really_holds_it(self):
        os.makedirs(self.path("other/inner"))
        os.symlink("other/inner", self.path("link"))
        flushed = []

        def note(path, real=flush_folder):
            flushed.append(os.path.realpath(path))
            real(path)

        with mock.patch("checkpoint_demo.flush_folder", note):
            make_folder(self.path("link/../new/"))
        self.assertEqual(flushed, [self.path("other")])
        self.assertEqual(sorted(os.listdir(self.path("other"))), ["inner", "new"])

    @unittest.skipIf(IS_WINDOWS, "no such modes there")
    def test_make_folder_with_a_mode_gives_the_folder_that_mode(self):
        make_folder(self.path("own"), 0o700)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("own")).st_mode), 0o700)

    @unittest.skipIf(IS_WINDOWS, "no folder is flushed there")
    def test_make_folder_that_cannot_be_flushed_removes_it(self):
        with (
            mock.patch(FLUSH, side_effect=support.make_error(errno.EIO)),
            self.assertRaises(OSError) as caught,
        ):
            make_folder(self.path("new"))
        self.assertEqual((caught.exception.errno, os.listdir(self.folder)), (errno.EIO, []))

    def test_make_folder_over_what_exists_raises_and_leaves_it(self):
        os.mkdir(self.path("old"))
        with self.assertRaises(FileExistsError):
            make_folder(self.path("old"))
        self.assertEqual(os.listdir(self.folder), ["old"])


class DiscardTest(support.FolderTestCase):
    def test_discard_removes_files_and_empty_folders_and_goes_on_past_what_it_cannot_remove(self):
        for name in ("empty", "folder", "folder/inner"):
            (self.folder / name).mkdir()
        names = ["missing", "folder", "empty", "one", "two"]
        self.put("one", b"1")
        self.put("two", b"2")
        discard(*map(self.path, names))
        self.assertEqual(snapshot(self.folder), {"folder": {"inner": {}}})

    @unittest.skipIf(IS_WINDOWS, "links need a right there")
    def test_discard_of_a_link_removes_the_link_only(self):
        self.put("target", b"keep me")
        os.symlink("target", self.path("link"))
        discard(self.path("link"))
        self.assertEqual(snapshot(self.folder), {"target": b"keep me"})

    @unittest.skipIf(IS_WINDOWS, "links need a right there")
    def test_discard_of_a_link_to_a_folder_leaves_the_folder(self):
        (self.folder / "target").mkdir()
        os.symlink("target", self.path("link"))
        discard(self.path("link"))
        self.assertIn("target", self.names())


class RaceTest(support.FolderTestCase):
    WRITERS = 20

    def test_write_new_files_by_many_threads_lets_one_win_whole(self):
        for has_links in (True, False):
            links = contextlib.nullcontext() if has_links else refuse_hard_links()
            with links:
                for number in range(5):
                    with self.subTest(has_links=has_links, number=number):
                        self.race(f"{has_links}-{number}")

    def race(self, name):
        (self.folder / name).mkdir()
        barrier, ends = threading.Barrier(self.WRITERS), {}

        def write(writer):
            data = b"%d\n" % writer * 5_000
            barrier.wait(10)
            try:
                write_new_files({self.path(f"{name}/one"): data, self.path(f"{name}/two"): data})
                ends[writer] = None
            except Exception as error:
                ends[writer] = type(error)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(self.WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        winners = [writer for writer, error in ends.items() if error is None]
        self.assertEqual(sorted(map(str, ends.values())), [*[str(ExistsError)] * (self.WRITERS - 1), "None"])
        whole = b"%d\n" % winners[0] * 5_000
        self.assertEqual(snapshot(self.path(name)), {"one": whole, "two": whole})

    def test_prepare_by_many_processes_lets_one_win(self):
        (self.folder / "there").mkdir()
        support.run_script("checkpoint_demo.py", "prepare", "--out", self.path("alone"))
        alone = snapshot(self.path("alone"))
        self.assertEqual(sorted(alone), ["checkpoint.json", "handoff.txt"])
        for name in ("there", "missing"):
            with self.subTest(name):
                self.race_to_prepare(name)
                self.assertEqual(snapshot(self.path(name)), alone)

    def race_to_prepare(self, name):
        processes = [
            support.start_script("checkpoint_demo.py", "prepare", "--out", self.path(name))
            for _ in range(self.WRITERS)
        ]
        ends = []
        for process in processes:
            with process:
                out, err = process.communicate(timeout=60)
                ends.append((process.returncode, out.count(b"wrote "), b"already exists" in err))
        self.assertEqual(sorted(ends), [(0, 2, False), *[(3, 0, True)] * (self.WRITERS - 1)])
