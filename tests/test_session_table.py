"""The built-in table agrees with the recorded runs."""

from __future__ import annotations

import unittest

from checkpoint_demo import run_ways
from tests.session_support import run_session

# The status of the first request after the switch in the recorded runs, by pair: direct, strip, neutral.
RECORDED = {
    "kimi to claude": (400, 200, 200),
    "kimi to gemini": (400, 400, 200),
    "claude to kimi": (200, 200, 200),
    "claude to gemini": (200, 400, 200),
    "gemini to kimi": (200, 200, 200),
    "gemini to claude": (400, 200, 200),
}


class TableTest(unittest.TestCase):
    def test_every_way_ends_as_it_was_recorded(self):
        said = {}
        for pair, way, says, size in run_ways():
            said.setdefault(pair, {})[way] = int(says[:3])
            self.assertGreater(size, 100)
        self.assertEqual({pair: tuple(ways.values())[:3] for pair, ways in said.items()}, RECORDED)
        self.assertEqual({ways["fresh"] for ways in said.values()}, {200})

    def test_table_ends_with_the_sums(self):
        code, out, err = run_session()
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(out.splitlines()[-1], "direct 3 of 6, strip 4 of 6, neutral 6 of 6, fresh 6 of 6")
        self.assertEqual(len(out.splitlines()), 26)


if __name__ == "__main__":
    unittest.main()
