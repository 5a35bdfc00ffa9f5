"""Many starts on one folder at the same moment: one wins, the others change nothing."""

from __future__ import annotations

import os
import sys
import unittest
from unittest import mock

from tests.support import (
    GOOD_RUN,
    KEY,
    RunTestCase,
    ScriptedServer,
    run_all_at_once,
    run_script,
    start_script,
)

STARTS = 50


@unittest.skipIf(sys.platform == "win32", "starts fifty processes")
class ManyRunsTest(RunTestCase):
    def test_fifty_starts_on_one_folder_are_one_run(self):
        server = ScriptedServer(self, *GOOD_RUN, *GOOD_RUN)
        arguments = ("run_handoff.py", "--live", "--endpoint", server.url, "--out", self.path("run"))
        processes = [start_script(*arguments, environment={"OFOX_API_KEY": KEY}) for _ in range(STARTS)]
        endings = [(*process.communicate(), process.returncode) for process in processes]
        self.assertEqual(sorted(code for _, _, code in endings), [0] + [3] * (STARTS - 1))
        for out, err, code in endings:
            if code == 3:
                self.assertEqual(out, b"")
                self.assertIn(b"already exists", err.splitlines()[0])
        self.assertEqual(server.connections, 3)
        self.assertEqual(self.inspect().code, 0)
        self.assertEqual(self.names(), ["run"])


class FolderInTheWayTest(RunTestCase):
    """What may stand where the folder should be: refused, and nothing is written elsewhere."""

    def test_folder_that_is_something_else_is_refused(self):
        os.mkdir(self.path("elsewhere"))
        os.mkdir(self.path("empty"))
        self.put("file", "mine")
        os.symlink(self.path("elsewhere"), self.path("link"))
        os.symlink(self.path("nowhere"), self.path("dangling"))
        os.symlink(self.path("loop"), self.path("loop"))
        before = self.names()
        for name in (
            "empty",
            "file",
            "link",
            "link/",
            "dangling",
            "dangling/",
            "loop",
            ".",
            "file/run",
            "nowhere/run",
        ):
            with self.subTest(name):
                server = self.serve(*GOOD_RUN)
                ended = self.live(server, out=name)
                self.assertEqual(ended.code, 3, ended)
                self.assertEqual(server.connections, 0)
                self.assertEqual(self.names(), before)
                self.assertEqual(os.listdir(self.path("elsewhere")), [])
                self.assertEqual((self.folder / "file").read_text(), "mine")

    def test_ledger_that_somebody_puts_into_the_new_folder_is_not_written_to(self):
        real = os.mkdir

        def mkdir(path, mode):
            real(path, mode)
            os.symlink(self.put("elsewhere", "mine"), os.path.join(path, "ledger.jsonl"))

        server = self.serve(*GOOD_RUN)
        with mock.patch.object(os, "mkdir", mkdir):
            ended = self.live(server)
        self.assertEqual((ended.code, server.connections), (4, 0), ended)
        self.assertEqual((self.folder / "elsewhere").read_text(), "mine")

    @unittest.skipIf(os.name == "nt", "has other permissions")
    def test_folder_without_write_permission_is_refused(self):
        os.chmod(self.folder, 0o555)
        self.addCleanup(os.chmod, self.folder, 0o755)
        server = self.serve(*GOOD_RUN)
        if os.geteuid() == 0:  # for whom permissions are no obstacle
            try:
                os.seteuid(65534)
            except OSError as error:  # such as EINVAL, in a user namespace without other users
                self.skipTest(f"cannot become another user: {error}")
            self.addCleanup(os.seteuid, 0)
        ended = self.live(server)
        self.assertEqual(ended.code, 3, ended)
        self.assertIn("Permission denied", ended.err.splitlines()[0])
        self.assertEqual((server.connections, self.names()), (0, []))

    def test_rehearsals_side_by_side_do_not_meet(self):
        cases = {
            f"run-{number}": ("run_handoff.py", "--rehearse", "--out", self.path(f"run-{number}"))
            for number in range(6)
        }
        for name, ended in run_all_at_once(run_script, cases).items():
            with self.subTest(name):
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual(self.inspect(name).code, 0)
