"""A second task for the tests of tasks: support tickets. Not a test."""

from __future__ import annotations

import json
import sys

import checkpoint_demo
from checkpoint_demo import load_task
from tests import support

# A task of one's own, as the README shows one: a summary is free text, a route and the counts are not.
TICKETS = '''\
"""Route support tickets by their priority."""

from checkpoint_demo import FREE_TEXT, Task, parse_json

ROUTES = {1: "urgent", 2: "normal", 3: "normal"}


class Tickets(Task):
    name = "tickets"
    operation = "read_tickets"
    tool_description = "Return every ticket with its id, customer and priority. It changes nothing."
    sender_prompt = "You route support tickets. Read them with the tool. Do not answer them."
    objective = "Summarise and route every ticket."
    instructions = "Go on from verified application state. Return only a JSON object with rows and routes."
    row_key = "id"
    source = [
        {"id": "T-1", "customer": "Ada", "priority": 1},
        {"id": "T-2", "customer": "Ben", "priority": 3},
        {"id": "T-3", "customer": "Cy", "priority": 2},
    ]
    changes = """
result | a wrong route | "urgent","summary" | "normal","summary" | rows[0].route
result | a blank summary | "some text" | " " | rows[0].summary
result | a wrong count | "normal":2 | "normal":3 | routes.normal
"""

    def parse_source(self, data):
        return parse_json(data)

    def build_answer(self, rows):
        routes = [ROUTES[row["priority"]] for row in rows]
        answers = [
            {"id": row["id"], "summary": FREE_TEXT, "route": route} for row, route in zip(rows, routes)
        ]
        return {"rows": answers, "routes": {route: routes.count(route) for route in sorted(set(routes))}}

    def list_pending(self, rows):
        return [f"Route {len(rows)} tickets"]


TASK = Tickets()
'''
ANSWER = {
    "rows": [
        {"id": "T-1", "summary": "Ada cannot log in.", "route": "urgent"},
        {"id": "T-2", "summary": "Ben asks for an invoice.", "route": "normal"},
        {"id": "T-3", "summary": "\u00dcber \u2028 all.", "route": "normal"},
    ],
    "routes": {"normal": 2, "urgent": 1},
}
OWN_SOURCE = json.dumps([{"id": "T-9", "customer": "Di", "priority": 1}])
OWN_ANSWER = {"rows": [{"id": "T-9", "summary": "Di waits.", "route": "urgent"}], "routes": {"urgent": 1}}


def method(name, body):
    """Return a change that gives the tickets' class a method, on one line behind the others."""
    return "\n\nTASK =", f"\n    def {name}(self, *_):\n        {body}\n\n\nTASK ="


class TaskTestCase(support.CommandTestCase):
    """A test with the tickets' task in its folder, loaded as it is by a command."""

    def setUp(self):
        super().setUp()
        self.addCleanup(sys.modules.pop, checkpoint_demo.TASK_MODULE, None)
        self.file = self.put("tickets.py", TICKETS)

    def load(self):
        return load_task(self.file)[0]

    def validate(self, answer, *options, data=None):
        """Judge an answer with the tickets' task."""
        data = json.dumps(answer).encode() if data is None else data
        return support.checkpoint("validate", "-", "--task", self.file, *options, stdin=data)
