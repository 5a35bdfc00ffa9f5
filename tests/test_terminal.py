"""Terminal: what reaches the person, streams that get lost, Ctrl-C, and how every command ends."""

from __future__ import annotations

import base64
import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import unicodedata
import unittest
from unittest import mock

import checkpoint_demo
from checkpoint_demo import DEMO, ExistsError, HandoffError, RefusedError, Terminal, UsageError, run_command
from tests import support

IS_WINDOWS = os.name == "nt"
SCRIPT = "checkpoint_demo.py"
START = (sys.executable, str(support.ROOT / SCRIPT))
ENVIRONMENT = {"PATH": os.environ.get("PATH", ""), "PYTHONDONTWRITEBYTECODE": "1"}
WRONG_ANSWER = support.ANSWER.replace(":0", ':"0"')
INTERRUPTED = (
    "tool: interrupted: by Ctrl-C\n  why: nothing was in flight\n  next: start it again when you like\n"
)
STREAMS = {"write_out": "stdout", "write_err": "stderr"}  # a Terminal's method -> where it writes
WORDS = {"stdout": "output", "stderr": "error"}
LOST = {
    "closed": "closed",
    "a broken pipe": "lost: Broken pipe",
    "full": "lost: No space left on device",
}


class RemovePasswordsTest(unittest.TestCase):
    """What a proxy's URL holds for a user is in no text that is shown."""

    def remove(self, text, **proxies):
        with mock.patch.dict(os.environ, proxies):
            return checkpoint_demo.remove_passwords(text)

    def test_user_part_is_removed_in_every_form(self):
        url = "http://demo%40user:pa%2Fss+word@proxy.example.invalid:3128"
        pairs = ("demo%40user:pa%2Fss+word", "demo@user:pa/ss+word")
        forms = (
            *pairs,
            "pa%2Fss+word",
            "pa/ss+word",
            *(base64.b64encode(p.encode()).decode() for p in pairs),
        )
        for name in ("https_proxy", "HTTP_PROXY", "all_proxy", "Some_Proxy"):
            for form in forms:
                with self.subTest(name, form=form):
                    self.assertEqual(self.remove(f"<{form}>", **{name: url}), "<[password removed]>")

    def test_user_part_of_a_broken_url_is_removed(self):
        broken = ("http:/{}@host:1", "http:{}@host:1", "//{}@host", "{}@host", "http://{}@")
        for begin in broken:
            with self.subTest(begin):
                proxies = {"https_proxy": begin.format("demo:secret-51#/x")}
                for text in ("demo:secret-51#/x", "secret-51#/x"):
                    self.assertNotIn("secret", self.remove(f"a {text} b", **proxies))

    def test_password_in_json_is_removed(self):
        shown = self.remove(json.dumps(['p"\u00e9\\z']), https_proxy='http://u:p"\u00e9\\z@host')
        self.assertEqual(shown, '["[password removed]"]')

    def test_password_in_escapes_of_any_characters_is_removed(self):
        url = "http://demo:secret-51@host"
        for text in ("demo:secret-51", "secret-51"):
            for escaped in ("".join(rf"\u{ord(mark):04x}" for mark in text), text.replace("s", r"\\u0073")):
                with self.subTest(escaped):
                    self.assertEqual(self.remove(f"a {escaped} b", https_proxy=url), "a [password removed] b")

    def test_each_line_of_a_decoded_password_is_removed(self):
        shown = self.remove(
            "407 Bad demo:secret-51  more-52", https_proxy="http://demo:secret-51%0d%0amore-52@host"
        )
        self.assertNotIn("secret", shown)
        self.assertNotIn("more", shown)

    def test_ordinary_words_are_left_alone(self):
        text = "http://127.0.0.1: run: a: me@example.invalid"
        ordinary = ("http://proxy:3128", "http://@proxy", "http://:@proxy", "http://a:run@proxy", "@", "")
        for url in ordinary:
            with self.subTest(url):
                self.assertEqual(self.remove(text, https_proxy=url), text)
        self.assertEqual(self.remove(text, demo="http://me:127.0.0.1@proxy"), text)
        self.assertEqual(
            self.remove("it is a:run", https_proxy="http://a:run@proxy"), "it is [password removed]"
        )


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


class Failing(io.StringIO):
    """A stream that raises an error when it is written to, or only when it is flushed."""

    def __init__(self, error, at="write"):
        super().__init__()
        self.error, self.at = error, at

    def write(self, text):
        self.fail("write")
        return super().write(text)

    def flush(self):
        self.fail("flush")

    def fail(self, at):
        if at == self.at:
            raise self.error


def replace_stream(terminal, method, stream):
    """Return a context in which a method of a Terminal writes to another stream."""
    return mock.patch.object(*((terminal, "out") if method == "write_out" else (sys, "stderr")), stream)


def write(method, text, *colour, stream=None, terminal=None):
    """Let a Terminal write a text, and return what a stream got."""
    stream = io.StringIO() if stream is None else stream
    terminal = terminal or Terminal("tool")
    with replace_stream(terminal, method, stream):
        getattr(terminal, method)(text, *colour)
    return stream.buffer.getvalue() if isinstance(stream, io.TextIOWrapper) else stream.getvalue()


class ShownTextTest(unittest.TestCase):
    def test_text_with_hidden_characters_is_written_escaped(self):
        texts = {
            "a terminal escape": ("a\x1b[2Jb", "a\\x1b[2Jb"),
            "an 8-bit terminal escape": ("a\x9b2Jb", "a\\x9b2Jb"),
            "NUL": ("a\0b", "a\\x00b"),
            "a bell": ("a\ab", "a\\x07b"),
            "a carriage return": ("a\rb", "a\\rb"),
            "a line end of Windows": ("a\r\nb", "a\\r\nb"),
            "a tab": ("a\tb", "a\\tb"),
            "DEL": ("a\x7fb", "a\\x7fb"),
            "a bidirectional override": ("a\u202eb", "a\\u202eb"),
            "a bidirectional isolate": ("a\u2066b", "a\\u2066b"),
            "a bidirectional mark": ("a\u200f\u061cb", "a\\u200f\\u061cb"),
            "a line separator": ("a\u2028b\x85c", "a\\u2028b\\x85c"),
            "a lone surrogate": ("a\ud83db", "a\\ud83db"),
            "a surrogate pair in two halves": ("\ud83d\ude00", "\\ud83d\\ude00"),
            "lines": ("a\n\nb", "a\n\nb"),
            "nothing": ("", ""),
            "letters of many scripts": (
                "\u00e4\u4e2d\u05d0\u0639\U0001f600",
                "\u00e4\u4e2d\u05d0\u0639\U0001f600",
            ),
        }
        for method in STREAMS:
            for phrase, (text, expected) in texts.items():
                with self.subTest(f"{method}: {phrase}"):
                    self.assertEqual(write(method, text), f"{expected}\n")

    def test_text_with_any_control_or_bidirectional_character_is_never_raw(self):
        directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
        hidden = [
            character
            for character in map(chr, range(0x10000))
            if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
            or unicodedata.bidirectional(character) in directions
            or unicodedata.name(character, "").endswith(("LEFT MARK", "RIGHT MARK", "LETTER MARK"))
        ]
        self.assertGreater(len(hidden), 2_048 + 65)
        hidden.remove("\n")
        written = write("write_out", "".join(hidden))
        self.assertEqual([character for character in hidden if character in written], [])
        self.assertEqual(written.count("\n"), 1)

    def test_text_for_a_poor_encoding_is_written_with_backslash_escapes(self):
        text = "\u00e4\u4e2d\U0001f600\ud800"
        encodings = {
            "ascii": b"\\xe4\\u4e2d\\U0001f600\\ud800\n",
            "latin-1": b"\xe4\\u4e2d\\U0001f600\\ud800\n",
            "utf-8": "\u00e4\u4e2d\U0001f600\\ud800\n".encode(),
        }
        for method in STREAMS:
            for encoding, expected in encodings.items():
                stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
                with self.subTest(f"{method} to {encoding}"):
                    self.assertEqual(write(method, text, stream=stream), expected)

    def test_text_is_redacted_before_it_is_written(self):
        terminal = Terminal("tool")
        terminal.redact = lambda text: text.replace("secret", "[key removed]")
        for method in STREAMS:
            with self.subTest(method):
                written = write(method, "a secret\nin two secret lines", terminal=terminal)
                self.assertEqual(written, "a [key removed]\nin two [key removed] lines\n")
        with mock.patch.object(sys, "stderr", Screen()) as screen:
            terminal.progress("secret")
        self.assertEqual(screen.getvalue(), "[key removed]\r")

    @unittest.skipIf(IS_WINDOWS, "no colour there")
    def test_text_with_a_colour_is_coloured_on_a_terminal_that_wants_it(self):
        plain, red, green = "so\n", "\x1b[31mso\x1b[0m\n", "\x1b[32mso\x1b[0m\n"
        cases = {
            "red on a terminal": (Screen, {"TERM": "xterm"}, ["red"], red),
            "green on a terminal": (Screen, {"TERM": "xterm"}, ["green"], green),
            "with an empty NO_COLOR": (Screen, {"NO_COLOR": ""}, ["red"], red),
            "with NO_COLOR": (Screen, {"NO_COLOR": "1"}, ["red"], plain),
            "on a dumb terminal": (Screen, {"TERM": "dumb"}, ["red"], plain),
            "into a file or a pipe": (io.StringIO, {"TERM": "xterm"}, ["red"], plain),
            "no colour on a terminal": (Screen, {"TERM": "xterm"}, [], plain),
        }
        for method in STREAMS:
            for phrase, (stream, environment, colour, expected) in cases.items():
                with (
                    self.subTest(f"{method}: {phrase}"),
                    mock.patch.dict(os.environ, environment, clear=True),
                ):
                    self.assertEqual(write(method, "so", *colour, stream=stream()), expected)

    @unittest.skipIf(IS_WINDOWS, "no colour there")
    def test_text_that_brings_its_own_colour_is_escaped_on_a_terminal(self):
        with mock.patch.dict(os.environ, {"TERM": "xterm"}, clear=True):
            written = write("write_err", "\x1b[32mfine\x1b[0m", "red", stream=Screen())
        self.assertEqual(written, "\x1b[31m\\x1b[32mfine\\x1b[0m\x1b[0m\n")

    def test_progress_is_shown_on_a_terminal_only(self):
        streams = {"a terminal": (Screen(), "12 s\\x1b[A\r"), "a pipe": (io.StringIO(), "")}
        for phrase, (stream, expected) in streams.items():
            with self.subTest(phrase), mock.patch.object(sys, "stderr", stream):
                Terminal("tool").progress("12 s\x1b[A")
            self.assertEqual(stream.getvalue(), expected)


class LostStreamTest(unittest.TestCase):
    def test_terminal_with_a_lost_stream_goes_on_and_knows_it(self):
        closed = io.StringIO()
        closed.close()
        streams = {
            "no stream": None,
            "a closed stream": closed,
            "a full disk": Failing(support.make_error(errno.ENOSPC)),
            "a full disk, seen at the flush": Failing(support.make_error(errno.ENOSPC), "flush"),
            "a broken pipe": Failing(support.make_error(errno.EPIPE), "flush"),
        }
        for method, name in STREAMS.items():
            for phrase, stream in streams.items():
                terminal = Terminal("tool")
                self.assertFalse(terminal.lost)
                with self.subTest(f"{method}: {phrase}"), replace_stream(terminal, method, stream):
                    getattr(terminal, method)("one")
                    getattr(terminal, method)("two", "red")
                    self.assertRegex(terminal.lost, f"^standard {WORDS[name]} is (closed$|lost: )")

    def test_terminal_with_one_lost_stream_still_writes_to_the_other(self):
        terminal, out = Terminal("tool"), io.StringIO()
        with mock.patch.object(sys, "stderr", None), replace_stream(terminal, "write_out", out):
            terminal.write_err("lost")
            terminal.write_out("kept")
        self.assertEqual((terminal.lost, out.getvalue()), ("standard error is closed", "kept\n"))

    def test_terminal_with_a_good_stream_is_not_lost(self):
        terminal = Terminal("tool")
        for method in STREAMS:
            write(method, "\ud800", terminal=terminal)
        self.assertFalse(terminal.lost)

    def test_progress_without_a_stream_is_survived(self):
        closed, gone = io.StringIO(), Screen()
        closed.close()
        gone.write = mock.Mock(side_effect=support.make_error(errno.EIO))
        for phrase, stream in {"no stream": None, "a closed stream": closed, "a dead terminal": gone}.items():
            with self.subTest(phrase), mock.patch.object(sys, "stderr", stream):
                self.assertIsNone(Terminal("tool").progress("12 s"))

    def test_an_unbuffered_stream_that_takes_only_a_part_is_written_to_again(self):
        class Slow(io.RawIOBase):
            """A stream that takes a few bytes at a time, and then nothing any more."""

            def __init__(self, most):
                self.taken, self.most = b"", most

            def writable(self):
                return True

            def write(self, data):
                part = bytes(data)[: min(3, self.most - len(self.taken))]
                self.taken += part
                return len(part) or None

        for most, lost in ((1_000, False), (7, True), (0, True)):
            with self.subTest(most):
                raw, terminal = Slow(most), Terminal("tool")
                stream = io.TextIOWrapper(raw, "utf-8", write_through=True)
                with replace_stream(terminal, "write_out", stream):
                    terminal.write_out("accepted: \u00e4")
                self.assertEqual(raw.taken, "accepted: \u00e4\n".encode()[:most])
                self.assertEqual(bool(terminal.lost), lost)

    def test_a_stream_of_somebody_else_is_written_to_itself(self):
        class Tee:
            """A stream that keeps what is written, and forwards everything else to the real one."""

            def __init__(self):
                self.kept = []

            def write(self, text):
                self.kept.append(text)

            def __getattr__(self, name):
                return getattr(sys.__stdout__, name)

        tee, terminal = Tee(), Terminal("tool")
        with replace_stream(terminal, "write_out", tee):
            terminal.write_out("accepted")
        self.assertEqual((tee.kept, terminal.lost), (["accepted\n"], ""))
        lines = io.BytesIO()
        with replace_stream(terminal, "write_out", io.TextIOWrapper(lines, "utf-8-sig", newline="\r\n")):
            terminal.write_out("one")
            terminal.write_out("two")
            self.assertEqual(lines.getvalue(), b"\xef\xbb\xbfone\r\ntwo\r\n")

    def test_a_lost_stream_leaks_no_descriptor(self):
        free = support.find_free_descriptor()
        for _ in range(3):
            write("write_err", "lost", stream=Failing(support.make_error(errno.EIO)))
        self.assertEqual(support.find_free_descriptor(), free)

    def test_open_missing_descriptors_gives_each_closed_stream_a_place(self):
        for missing in ([], [0], [1, 2], [0, 1, 2]):

            def fstat(descriptor, missing=missing):
                if descriptor in missing:
                    raise support.make_error(errno.EBADF)

            with self.subTest(missing), mock.patch("os.fstat", fstat), mock.patch("os.open") as opened:
                checkpoint_demo.open_missing_descriptors()
                self.assertEqual(opened.call_args_list, [mock.call(os.devnull, os.O_RDWR)] * len(missing))


@unittest.skipIf(IS_WINDOWS, "needs a limit on the size of files")
class UnbufferedProcessTest(support.FolderTestCase):
    def test_a_file_that_takes_only_a_part_is_no_success(self):
        import resource

        self.put("handoff.txt", "Go on. " * 10_000)

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096))

        for unbuffered in ("", "1"):
            with self.subTest(unbuffered=unbuffered), open(self.path("out"), "wb") as out:
                ended = support.run_script(
                    "checkpoint_demo.py",
                    "request",
                    cwd=self.folder,
                    stdout=out,
                    preexec_fn=limit,
                    environment={"PYTHONUNBUFFERED": unbuffered},
                )
                self.assertEqual((ended.code, os.path.getsize(self.path("out"))), (2, 4_096))


@unittest.skipIf(IS_WINDOWS, "needs a shell")
class LostStreamProcessTest(support.FolderTestCase):
    """Each command as a process of its own, with a standard stream that is lost."""

    def setUp(self):
        super().setUp()
        self.put("result.json", support.ANSWER)
        self.put("wrong.json", WRONG_ANSWER)
        self.put("handoff.txt", "Go on.\n")

    def run_without(self, lost, *arguments):
        """Run the script with lost streams, {descriptor: how}, and return how it Ended."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        redirections = []
        with contextlib.ExitStack() as stack:
            for descriptor, how in lost.items():
                if how == "a broken pipe":
                    reader, writer = os.pipe()
                    os.close(reader)
                    stack.callback(os.close, writer)
                    options[("stdin", "stdout", "stderr")[descriptor]] = writer
                else:
                    redirections.append(f"{descriptor}{'>/dev/full' if how == 'full' else '>&-'}")
            done = subprocess.run(
                ["sh", "-c", f'exec "$@" {" ".join(redirections)}', "sh", *START, *arguments],
                env=ENVIRONMENT,
                cwd=self.folder,
                timeout=60,
                check=False,
                **options,
            )
        return support.Ended(done.returncode, (done.stdout or b"").decode(), (done.stderr or b"").decode())

    def ways(self):
        return ["closed", "a broken pipe", *["full"] * os.path.exists("/dev/full")]

    def test_commands_without_standard_output_exit_2_and_say_so(self):
        finding = 'rows[1].shortage: observed the string "0", expected the integer 0\n'
        commands = {
            ("self-test",): "",
            ("validate", "result.json"): "",
            ("validate", "wrong.json"): finding,
            ("validate", "wrong.json", "--json"): "",
            ("request",): "",
            ("--help",): "",
        }
        for how in self.ways():
            for arguments, said in commands.items():
                with self.subTest(f"{arguments}, standard output {how}"):
                    ended = self.run_without({1: how}, *arguments)
                    lost = f"{SCRIPT}: standard output is {LOST[how]}\n"
                    self.assertEqual((ended.code, ended.out, ended.err), (2, "", said + lost))

    def test_commands_without_standard_error_exit_2_where_they_had_to_talk(self):
        commands = {
            ("self-test",): (0, None),
            ("validate", "result.json"): (0, "accepted: 3 rows, total shortage 7\n"),
            ("validate", "wrong.json"): (2, "rejected: 1 finding\n"),
            ("validate", "missing.json"): (2, ""),
            ("request", "missing.txt"): (2, ""),
            ("prepare",): (3, ""),
        }
        for how in self.ways():
            for arguments, (code, out) in commands.items():
                with self.subTest(f"{arguments}, standard error {how}"):
                    ended = self.run_without({2: how}, *arguments)
                    self.assertEqual((ended.code, ended.err), (code, ""))
                    if out is not None:
                        self.assertEqual(ended.out, out)

    def test_commands_without_standard_input_are_done_or_refused(self):
        refused = (
            f"{SCRIPT}: unreadable: standard input: it is closed\n"
            "  why: only an input that was read whole is used\n"
            "  next: name a file that you can read\n"
        )
        commands = {
            ("self-test",): (0, ""),
            ("validate", "result.json"): (0, ""),
            ("validate", "-"): (2, refused),
            ("request",): (0, ""),
            ("request", "-"): (2, refused),
        }
        for arguments, (code, said) in commands.items():
            with self.subTest(arguments):
                ended = self.run_without({0: "closed"}, *arguments)
                self.assertEqual((ended.code, ended.err), (code, said))

    @unittest.skipUnless(os.path.exists("/proc/self/fd"), "no look into a process here")
    def test_closed_streams_are_given_a_place_before_a_file_is_opened(self):
        os.mkfifo(self.path("fifo"))
        line = 'exec "$@" <&- >&-'
        command = ["sh", "-c", line, "sh", *START, "validate", self.path("fifo")]
        process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait, 30)
        self.addCleanup(process.kill)
        writer = self.open_once_it_is_read(self.path("fifo"))
        self.addCleanup(os.close, writer)
        places = [os.readlink(f"/proc/{process.pid}/fd/{descriptor}") for descriptor in (0, 1)]
        self.assertEqual(places, [os.devnull] * 2)

    def open_once_it_is_read(self, fifo):
        """Return a descriptor to write to a named pipe, as soon as another process reads it."""
        for _ in range(3_000):
            with contextlib.suppress(OSError):
                return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            time.sleep(0.01)
        return self.fail("nobody opened the named pipe")

    def test_prepare_without_any_stream_writes_its_files_unmixed(self):
        """Their descriptors would be the standard streams', had those no place."""
        os.remove(self.path("handoff.txt"))
        ended = self.run_without({0: "closed", 1: "closed", 2: "closed"}, "prepare")
        self.assertEqual(ended.code, 2)
        self.assertEqual(self.names(), ["checkpoint.json", "handoff.txt", "result.json", "wrong.json"])
        checkpoint = checkpoint_demo.build_checkpoint(DEMO, DEMO.source)
        written = (self.folder / "checkpoint.json").read_bytes()
        self.assertEqual(written, (checkpoint_demo.render_json(checkpoint, 2) + "\n").encode())
        self.assertEqual(
            (self.folder / "handoff.txt").read_text(), checkpoint_demo.render_handoff(DEMO, checkpoint)
        )


class RunCommandTest(unittest.TestCase):
    def setUp(self):
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def run_it(self, command, err=None):
        """Run a command under run_command, and return how it Ended."""
        out, err = io.StringIO(), err or io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_command("tool", command)
        return support.Ended(code, out.getvalue(), err.getvalue())

    @staticmethod
    def end_with(error):
        def command(terminal):
            terminal.write_out("begun")
            raise error

        return command

    def test_run_command_of_one_that_returns_gives_its_code(self):
        for code in (0, 1, 2, 3, 4, 5, 70, 130):
            with self.subTest(code):
                ended = self.run_it(lambda _, code=code: code)
                self.assertEqual((ended.code, ended.out, ended.err), (code, "", ""))

    def test_run_command_with_a_known_end_says_it_and_shows_no_traceback(self):
        ends = {
            "a refusal that a person can act on": (
                HandoffError("a", "b", "c"),
                2,
                "tool: cannot go on: a\n  why: b\n  next: c\n",
            ),
            "usage": (
                UsageError("a", "tool"),
                2,
                "tool: usage: a\n  why: a command line is never guessed\n  next: see tool --help\n",
            ),
            "refused": (RefusedError("a", "b", "c"), 3, "tool: refused: a\n  why: b\n  next: c\n"),
            "a file that exists": (
                ExistsError("a\x1b\nb"),
                3,
                "tool: refused: a\\x1b\\nb already exists\n  why: what exists is never overwritten\n"
                "  next: move it away, or name another place\n",
            ),
            "Ctrl-C": (KeyboardInterrupt(), 130, INTERRUPTED),
            "no memory": (
                MemoryError(),
                2,
                "tool: cannot go on: out of memory\n"
                "  why: what was read is too large for this machine\n"
                "  next: give it less\n",
            ),
        }
        for phrase, (error, code, said) in ends.items():
            with self.subTest(phrase):
                ended = self.run_it(self.end_with(error))
                self.assertEqual((ended.code, ended.out, ended.err), (code, "begun\n", said))

    def test_run_command_with_a_bug_shows_its_traceback_and_exits_70(self):
        bugs = (
            ValueError("odd\x1b[2J\u202e"),
            AssertionError("odd"),
            KeyError("odd"),
            RecursionError("odd"),
            OSError(errno.EIO, "odd"),
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"),
            StopIteration("odd"),
        )
        for bug in bugs:
            with self.subTest(type(bug).__name__):
                ended = self.run_it(self.end_with(bug))
                self.assertEqual((ended.code, ended.out), (70, "begun\n"))
                lines = ended.err.splitlines()
                self.assertEqual(lines[0], "tool: a bug in this program: it met what it does not expect")
                self.assertEqual(
                    lines[1:3],
                    ["  why: see the traceback", "  next: report it, as the README's last lines say"],
                )
                self.assertEqual(lines[3], "Traceback (most recent call last):")
                self.assertIn("odd", lines[-1])
                self.assertNotRegex(ended.err, "[\x1b\u202e]")

    def test_run_command_with_a_lost_stream_spares_only_codes_that_say_more(self):
        codes = {0: 2, 1: 2, 2: 2, 3: 3, 4: 4, 5: 5, 70: 70, 130: 130}
        for code, expected in codes.items():
            with self.subTest(code):

                def command(terminal, code=code):
                    terminal.lost = "standard output is closed"
                    return code

                self.assertEqual(self.run_it(command).code, expected)

    def test_main_never_raises_system_exit(self):
        for line in (
            "",
            "--help",
            "-h",
            "validate --help",
            "validate",
            "bogus",
            "prepare --bogus",
            "request --max-tokens",
        ):
            with self.subTest(line):
                try:
                    ended = support.checkpoint(*line.split())
                except SystemExit as error:
                    self.fail(f"SystemExit: {error}")
                self.assertIn(ended.code, (0, 2))

    # --- Ctrl-C ---

    def test_interrupt_ends_the_command(self):
        steps = []

        def command(terminal):
            try:
                signal.raise_signal(signal.SIGINT)
                steps.append("went on")
            finally:
                steps.append("cleaned up")
            return 0

        ended = self.run_it(command)
        self.assertEqual((ended.code, ended.err, steps), (130, INTERRUPTED, ["cleaned up"]))

    def test_interrupt_while_holding_begins_is_taken_for_the_first(self):
        real = signal.getsignal

        def press(number):
            if not pressed:
                pressed.append(number)
                signal.raise_signal(signal.SIGINT)
            return real(number)

        for command in (self.end_with(KeyboardInterrupt()), lambda terminal: terminal.hold() or 0):
            pressed = []
            with self.subTest(command), mock.patch("signal.getsignal", press):
                ended = self.run_it(command)
                self.assertEqual(pressed, [signal.SIGINT])
                self.assertIn((ended.code, ended.err), [(130, INTERRUPTED), (0, "")])

    def test_interpreter_that_is_too_old_is_said_so_and_nothing_is_begun(self):
        begun = []
        with mock.patch("sys.hexversion", 0x30812F0):
            ended = self.run_it(begun.append)
        self.assertEqual((ended.code, ended.out, begun), (2, "", []))
        self.assertRegex(ended.err, r"is too old\n  why: .*3\.9 or newer\n  next: .+\n$")

    def test_interrupt_while_holding_is_only_noted(self):
        steps = []

        def command(terminal):
            terminal.hold()
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            steps.append(terminal.interrupted)
            return 0

        ended = self.run_it(command)
        self.assertEqual((ended.code, ended.err, steps), (0, "", [True]))

    def test_interrupt_while_the_end_is_being_said_is_harmless(self):
        class Pressed(io.StringIO):
            """A stream that gets Ctrl-C while it is written to."""

            def write(self, text):
                signal.raise_signal(signal.SIGINT)
                return super().write(text)

        ends = {
            "Ctrl-C": (lambda _: signal.raise_signal(signal.SIGINT), 130),
            "a refusal": (self.end_with(RefusedError("a", "b", "c")), 3),
            "no memory": (self.end_with(MemoryError()), 2),
            "a bug": (self.end_with(ValueError("odd")), 70),
        }
        for phrase, (command, code) in ends.items():
            with self.subTest(phrase):
                try:
                    ended = self.run_it(command, Pressed())
                except KeyboardInterrupt:
                    self.fail("KeyboardInterrupt left run_command")
                self.assertIn(ended.code, (code, 130))

    def test_signal_handler_is_ours_inside_and_restored_afterwards(self):
        seen = []

        def look(terminal):
            terminal.hold()
            seen.append(signal.getsignal(signal.SIGINT) == terminal.take_interrupt)
            return 0

        for command in (look, self.end_with(KeyboardInterrupt()), self.end_with(ValueError("odd"))):
            with self.subTest(command):
                self.run_it(command)
                self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)
        self.assertEqual(seen, [True])

    def test_run_command_outside_the_main_thread_is_done(self):
        codes = []
        thread = threading.Thread(
            target=lambda: codes.append(run_command("tool", lambda terminal: terminal.hold() or 1))
        )
        thread.start()
        thread.join(10)
        self.assertEqual(codes, [1])

    def test_signal_handler_that_python_does_not_know_is_left_alone(self):
        with mock.patch("signal.getsignal", return_value=None):
            ended = self.run_it(lambda terminal: terminal.hold() or 0)
        self.assertEqual((ended.code, ended.err), (0, ""))

    def test_signal_handler_of_somebody_else_is_left_alone(self):
        calls = []

        def own(*_):
            calls.append("own")

        handlers = {"ignored": (signal.SIG_IGN, []), "handled": (own, ["own"])}
        for phrase, (handler, expected) in handlers.items():
            calls.clear()
            signal.signal(signal.SIGINT, handler)

            def command(terminal):
                terminal.hold()
                signal.raise_signal(signal.SIGINT)
                return 0

            with self.subTest(phrase):
                self.assertEqual(self.run_it(command).code, 0)
                self.assertEqual(calls, expected)
                self.assertEqual(signal.getsignal(signal.SIGINT), handler)


class OwnHandlerTest(support.FolderTestCase):
    def test_prepare_that_a_handler_of_the_program_ends_takes_back_its_folder(self):
        with mock.patch("checkpoint_demo.flush", side_effect=KeyboardInterrupt):
            ended = support.checkpoint("prepare", "--out", self.path("new"))
        self.assertEqual((ended.code, self.names()), (130, []))


class InterruptedPrepareTest(support.FolderTestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt_at_each(self, target, error=None):
        """Let Ctrl-C be pressed at each call of a function, which may fail then."""
        module, _, name = target.rpartition(".")
        real = getattr(sys.modules[module], name)

        def press(*arguments):
            signal.raise_signal(signal.SIGINT)
            if error:
                raise error
            return real(*arguments)

        with mock.patch(target, press):
            return support.checkpoint("prepare", "--out", str(self.folder))

    def test_prepare_that_is_interrupted_while_it_writes_finishes_first(self):
        ended = self.interrupt_at_each("checkpoint_demo.flush")
        self.assertEqual(self.names(), ["checkpoint.json", "handoff.txt"])
        self.assertEqual((ended.code, ended.out.count("wrote ")), (0, 2))

    def test_prepare_that_is_interrupted_and_fails_takes_back_first(self):
        ended = self.interrupt_at_each("checkpoint_demo.flush", OSError(errno.ENOSPC, "full"))
        self.assertEqual(self.names(), [])
        self.assertIn(ended.code, (2, 130))
        self.assertNotIn("Traceback", ended.err)


@unittest.skipIf(IS_WINDOWS, "no SIGINT for one process there")
class InterruptedProcessTest(unittest.TestCase):
    def wait_for_input(self, *command):
        """Start a command that reads standard input, and return it once it surely reads."""
        process = subprocess.Popen(
            [*command, *START, "validate", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        self.addCleanup(process.__exit__, None, None, None)
        self.addCleanup(process.kill)
        process.stdin.write(b" " * 2**20)  # more than a pipe holds: taken only once it is read
        process.stdin.flush()
        return process

    def test_interrupt_of_a_process_that_waits_for_input_exits_130(self):
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # children inherit an ignored one
        self.addCleanup(signal.signal, signal.SIGINT, handler)
        process = self.wait_for_input()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        self.assertEqual((process.returncode, out), (130, b""))
        self.assertEqual(err.decode(), INTERRUPTED.replace("tool", SCRIPT))

    def test_interrupt_that_the_parent_ignores_stays_ignored(self):
        process = self.wait_for_input("sh", "-c", 'trap "" INT; exec "$@"', "sh")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(support.ANSWER.encode(), timeout=30)
        self.assertEqual((process.returncode, out, err), (0, b"accepted: 3 rows, total shortage 7\n", b""))
