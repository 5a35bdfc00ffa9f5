"""What is known before anything is recorded: a module that is not there, the neighbour that is not found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import unittest

from tests.conditions import ConditionsTestCase, copy_scripts, start_with
from tests.support import GOOD_RUN, KEY, ROOT, Ended

# Runs a script as if some modules were not there: their names, the script, its arguments.
WITHOUT = """
import runpy, sys
names, script, *arguments = sys.argv[1:]
for name in names.split(","):
    sys.modules[name] = None
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
"""


class MissingModuleTest(ConditionsTestCase):
    def run_without(self, names, *arguments, script="run_handoff.py"):
        ended = subprocess.run(
            [sys.executable, "-B", "-c", WITHOUT, names, str(ROOT / script), *arguments],
            env={"PATH": os.environ.get("PATH", ""), "OFOX_API_KEY": KEY, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            timeout=60,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    def live_without(self, names, url, *options):
        options = ("--live", "--endpoint", url, "--out", self.path("run"), *options)
        return self.run_without(names, *options)

    def test_https_without_ssl_is_refused_before_the_folder_is_made(self):
        for names in ("ssl", "_ssl", "ssl,_ssl"):
            with self.subTest(names):
                url = "https://api.example.invalid/v1/messages"
                ended = self.live_without(names, url, "--key-env", "OFOX_API_KEY")
                self.assertEqual(ended.code, 3, ended)
                self.assertEqual(self.names(), [])
                self.assertIn("ssl", ended.err)
                self.assertNotIn("Traceback", ended.err)

    def test_http_on_loopback_needs_no_ssl(self):
        ended = self.live_without("ssl,_ssl", self.serve(*GOOD_RUN).url)
        self.assertEqual(ended.code, 0, ended)

    def test_rehearsal_needs_no_ssl(self):
        ended = self.run_without("ssl,_ssl", "--rehearse", "--out", self.path("run"))
        self.assertEqual(ended.code, 0, ended)

    def test_module_that_is_not_there_is_refused_before_the_folder_is_made(self):
        for name in ("zlib", "http.client", "urllib.request", "socket"):
            with self.subTest(name):
                server = self.serve(*GOOD_RUN)
                ended = self.live_without(name, server.url)
                self.assertEqual(ended.code, 3, ended)
                self.assertEqual((self.names(), server.connections), ([], 0))
                self.assertIn(name, ended.err)
                self.assertNotIn("Traceback", ended.err)

    def test_module_that_is_not_there_does_not_keep_a_run_from_being_inspected(self):
        self.live(self.serve(*GOOD_RUN))
        ended = self.run_without("ssl,_ssl", "--inspect", self.path("run"))
        self.assertEqual(ended.code, 0, ended)


class NeighbourTest(ConditionsTestCase):
    """The scripts find each other by their own path, wherever they are started and however."""

    SWITCHES = {"plain": [], "isolated": ["-I"]}
    if sys.version_info >= (3, 11):
        SWITCHES["safe path"] = ["-P"]

    def check(self, switches, script, environment=None, **options):
        folder, name = os.path.split(str(script))
        for arguments in ([], ["--help"]):
            ended = start_with(
                ["-B", *switches], name, *arguments, folder=folder, environment=environment, **options
            )
            self.assertEqual(ended.code, 0, ended)

    def test_scripts_find_each_other_from_anywhere(self):
        copy_scripts(self.path("some scripts"))
        for way, switches in self.SWITCHES.items():
            with self.subTest(way):
                self.check(switches, self.folder / "some scripts" / "run_handoff.py", cwd=self.folder)

    @unittest.skipIf(os.name == "nt", "links need a privilege there")
    def test_scripts_find_each_other_through_a_link(self):
        copy_scripts(self.path("scripts"))
        os.symlink(self.path("scripts/run_handoff.py"), self.path("handoff"))
        for way, switches in self.SWITCHES.items():
            with self.subTest(way):
                self.check(switches, self.folder / "handoff", cwd=self.folder)

    def test_stranger_with_the_name_of_the_neighbour_is_not_taken(self):
        (self.folder / "strange").mkdir()
        self.put("strange/checkpoint_demo.py", "raise SystemExit(99)\n")
        self.put("checkpoint_demo.py", "raise SystemExit(98)\n")
        copy_scripts(self.path("scripts"))
        given = {"PYTHONPATH": self.path("strange")}
        ways = {**self.SWITCHES, "safe path by the variable": []}
        for way, switches in ways.items():
            with self.subTest(way):
                environment = {**given, "PYTHONSAFEPATH": "1"} if "variable" in way else given
                script = self.folder / "scripts" / "run_handoff.py"
                self.check(switches, script, environment, cwd=self.folder)

    def test_neighbour_that_is_not_there_is_no_verdict(self):
        """Exit 1 means judged and rejected, so a script that cannot start must not end with it."""
        shutil.copy(ROOT / "run_handoff.py", self.path("run_handoff.py"))
        for way, switches in self.SWITCHES.items():
            with self.subTest(way):
                ended = start_with(["-B", *switches], "run_handoff.py", "--help", folder=self.folder)
                self.assertIn(ended.code, (2, 3), ended)
                self.assertIn("checkpoint_demo.py", ended.err)
                self.assertNotIn("Traceback", ended.err)
