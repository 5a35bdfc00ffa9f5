"""All nine pairs of APIs: what each vendor is asked, what it gets back, and which key it sees."""

from __future__ import annotations

import base64
import json
import os
from unittest import mock

from tests.support import ANSWER, CASES, KEY, handoff, respond
from tests.vendors import (
    CALLS,
    PAIRS,
    VENDORS,
    VendorTestCase,
    continue_body,
    find_request_faults,
    read_key,
    same,
)

SENDER_KEY, RECEIVER_KEY = "sk-of-the-sender-0123456789", "sk-of-the-receiver-9876543210"
KEYS = {"SENDER_KEY": SENDER_KEY, "RECEIVER_KEY": RECEIVER_KEY}


def spell(key):
    """Return the spellings of a key that must not be stored or shown."""
    return {
        "plain": key,
        "in escapes": "".join(f"\\u{ord(letter):04x}" for letter in key),
        "in base64": base64.b64encode(key.encode()).decode(),
    }


class PairTest(VendorTestCase):
    def test_every_pair_is_accepted_in_a_rehearsal_and_holds(self):
        for sender, receiver in PAIRS:
            out = f"{sender.name}-{receiver.name}"
            with self.subTest(out):
                options = ("--sender-api", sender.name, "--receiver-api", receiver.name)
                ended = handoff("--rehearse", *options, "--out", self.path(out))
                self.assertEqual(ended.code, 0, ended)
                self.assertIn("accepted: 3 rows, total shortage 7", ended.out)
                self.assertEqual(self.inspect(out).code, 0)
                requests = [json.loads(self.files(out)[f"{number}-request.json"]) for number in (1, 2, 3)]
                listed = [set(VENDORS[name].fields) for name in (sender.name, sender.name, receiver.name)]
                for body, fields in zip(requests, listed):
                    self.assertLessEqual(set(body), fields)

    def test_every_pair_is_accepted_at_the_vendors_and_asks_what_they_take(self):
        for sender, receiver in PAIRS:
            with self.subTest(f"{sender.name} to {receiver.name}"):
                out = f"{sender.name}-{receiver.name}"
                first, second = self.serve_sender(sender), self.serve_receiver(receiver)
                ended = self.live_between(sender, receiver, first, second, out=out)
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual((first.connections, second.connections), (2, 1))
                for received in first.requests:
                    self.assertEqual(find_request_faults(sender, received, sender.model), [])
                self.assertEqual(find_request_faults(receiver, second.requests[0], receiver.other_model), [])
                self.check_bodies(sender, receiver, first, second, out)
                self.assertEqual(self.inspect(out).code, 0)

    def check_bodies(self, sender, receiver, first, second, out):
        """The second request is the first and its reply, exactly; the third holds the handoff alone."""
        bodies = [json.loads(request.body) for request in (*first.requests, *second.requests)]
        expected = continue_body(sender, bodies[0], sender.called)
        self.assertEqual(same(bodies[1]), same(expected))
        texts = receiver.read_texts(bodies[2])
        self.assertEqual(texts, [("user", self.files(out)["handoff.txt"].decode())])
        self.assertNotIn("tools", bodies[2])

    def test_every_sender_is_asked_for_the_same(self):
        asked = {}
        for name, vendor in VENDORS.items():
            server = self.serve_sender(vendor)
            self.live_at(vendor, server, out=name)
            asked[name] = vendor.read_first(json.loads(server.requests[0].body))
        self.assertEqual(asked["chat"], asked["messages"])
        self.assertEqual(asked["gemini"], asked["messages"])
        system, prompt, tools, limit = asked["chat"]
        self.assertEqual((list(tools), limit), (["read_stock"], 4_096))
        self.assertTrue(system and "read_stock" in prompt)

    def test_what_the_sender_said_goes_back_as_it_came(self):
        for name, replies in CALLS.items():
            for number, (phrase, called) in enumerate(replies.items()):
                with self.subTest(phrase, api=name):
                    vendor, out = VENDORS[name], f"{name}-{number}"
                    server = self.serve(
                        respond(called), respond(vendor.ended), respond(vendor.answer(ANSWER))
                    )
                    ended = self.live_at(vendor, server, out=out)
                    self.assertEqual(ended.code, 0, ended)
                    bodies = [json.loads(request.body) for request in server.requests]
                    self.assertEqual(same(bodies[1]), same(continue_body(vendor, bodies[0], called)))
                    self.assertEqual(self.inspect(out).code, 0)

    def test_wrong_answer_of_any_receiver_is_rejected(self):
        for name, vendor in VENDORS.items():
            with self.subTest(name):
                first = self.serve_sender(vendor)
                second = self.serve_receiver(vendor, ANSWER.replace('"shortage":4', '"shortage":5'))
                ended = self.live_between(vendor, vendor, first, second, out=name)
                self.assertEqual((ended.code, self.inspect(name).code), (1, 1), ended)
                self.assertIn("the answer was rejected", ended.err)

    def test_model_in_the_endpoint_is_escaped_and_recorded_as_it_was_given(self):
        vendor = VENDORS["gemini"]
        server = self.serve(respond(vendor.called), respond(vendor.ended), respond(vendor.answer(ANSWER)))
        odd = "tuned/\u0026?#model:1%2F"
        ended = self.live_at(vendor, server, "--sender", odd, "--receiver", "a+b")
        self.assertEqual(ended.code, 0, ended)
        lines = [request.line.split(" ")[1] for request in server.requests]
        first = "/v1beta/models/tuned%2F%26%3F%23model%3A1%252F:generateContent"
        self.assertEqual(lines, [first, first, "/v1beta/models/a%2Bb:generateContent"])
        self.assertEqual(self.ledger()[0]["endpoint"], self.url(vendor, server))
        self.assertEqual(self.inspect().code, 0)


class KeyTest(VendorTestCase):
    """Three keys in one environment: the default gateway's, the sender's and the receiver's."""

    NAMED = ("--key-env", "SENDER_KEY", "--receiver-key-env", "RECEIVER_KEY")

    def run_between(self, sender, receiver, first, second, *options, out="run"):
        with mock.patch.dict(os.environ, KEYS):
            return self.live_between(sender, receiver, first, second, *options, out=out)

    def check_no_key(self, ended, out):
        """No key is in what a command printed, in its files, or in what an inspection prints."""
        shown = (ended, self.inspect(out), self.inspect(out, "--json"))
        self.assertEqual({one.code for one in shown}, {ended.code})
        printed = "".join(one.out + one.err for one in shown)
        stored = b"".join(self.files(out).values())
        for key in (KEY, SENDER_KEY, RECEIVER_KEY):
            for spelled in spell(key).values():
                self.assertNotIn(spelled, printed)
                self.assertNotIn(spelled.encode(), stored)

    def test_each_key_is_seen_by_its_own_endpoint_alone(self):
        for sender, receiver in PAIRS:
            out = f"{sender.name}-{receiver.name}"
            with self.subTest(out):
                first, second = self.serve_sender(sender), self.serve_receiver(receiver)
                ended = self.run_between(sender, receiver, first, second, *self.NAMED, out=out)
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual([read_key(sender, seen) for seen in first.requests], [SENDER_KEY] * 2)
                self.assertEqual([read_key(receiver, seen) for seen in second.requests], [RECEIVER_KEY])
                for server, own in ((first, SENDER_KEY), (second, RECEIVER_KEY)):
                    for seen in server.requests:
                        told = f"{seen.line}{seen.headers}{seen.body}"
                        self.assertEqual(
                            [key for key in (KEY, SENDER_KEY, RECEIVER_KEY) if key in told], [own]
                        )
                self.check_no_key(ended, out)

    def test_run_of_one_request_reads_and_sends_the_receivers_key_alone(self):
        session = str(CASES / "session" / "001-plain-anthropic.session.json")
        courses = {"the task": ("--receiver-only",), "a session": ("--session", session)}
        for phrase, options in courses.items():
            for name, vendor in VENDORS.items():
                with (
                    self.subTest(phrase, api=name),
                    mock.patch.dict(os.environ, {"RECEIVER_KEY": RECEIVER_KEY}),
                ):
                    server, out = self.serve_receiver(vendor), f"{phrase}-{name}"
                    named = ("--receiver-key-env", "RECEIVER_KEY")
                    ended = self.receive(vendor, server, *options, *named, out=out, key="")
                    self.assertEqual(ended.code, 0, ended)
                    self.assertEqual([read_key(vendor, seen) for seen in server.requests], [RECEIVER_KEY])
                    self.check_no_key(ended, out)

    def test_key_that_any_endpoint_sends_back_is_nowhere(self):
        """Each endpoint sends back both keys in every spelling, also the key that it was never sent."""
        for name, vendor in VENDORS.items():
            for number, (place, (reply, code)) in enumerate(self.list_echoes(vendor).items()):
                for side in ("sender", "receiver"):
                    with self.subTest(place, api=name, side=side):
                        self.echo(vendor, side, reply, code, f"{name}-{number}-{side}")

    def list_echoes(self, vendor):
        """Return {phrase: (reply with both keys in it, exit code)}."""
        spelled = [spell(key) for key in KEYS.values()]
        word = " ".join(form for forms in spelled for form in forms.values())
        header = "/".join(forms[name] for forms in spelled for name in ("plain", "in base64"))

        def fill(body):
            return json.dumps(body).replace("@@", word).encode()

        return {
            "in a header": (respond(vendor.answer("7"), x_echo=header, request_id=header), 4),
            "in the text": (respond(fill(vendor.answer("7 @@"))), 4),
            "in the model's name": (respond(fill({**vendor.answer("7"), vendor.model_field: "@@"})), 4),
            "in another field": (respond(fill({**vendor.answer("7"), "echo": ["@@"], "@@": 1})), 4),
            "in usage": (respond(fill({**vendor.answer("7"), vendor.usage_field: {"@@": 1}})), 4),
            "in an error": (respond(fill(vendor.error("No @@ here.", "@@", 401)), 401), 4),
            "in a page": (respond(f"<p>{header}".encode(), 502), 5),
        }

    def echo(self, vendor, side, reply, code, out):
        """Do a run in which one side's endpoint gives a reply, and look for the keys."""
        if side == "sender":
            first, second = self.serve(reply), self.serve_receiver(vendor)
        else:
            first, second = self.serve_sender(vendor), self.serve(reply)
        ended = self.run_between(vendor, vendor, first, second, *self.NAMED, out=out)
        is_rejected = side == "receiver" and b"HTTP/1.1 200" in reply
        self.assertEqual(ended.code, 1 if is_rejected else code, ended)
        self.check_no_key(ended, out)

    REFUSED = {
        "a receiver's key without its endpoint": ("--receiver-key-env", "RECEIVER_KEY"),
        "a receiver's endpoint elsewhere without its key": (
            "--receiver-endpoint",
            "https://api.example.invalid/v1/messages",
        ),
        "an endpoint elsewhere without its key": ("--endpoint", "https://api.example.invalid/v1/messages"),
        "a key without its endpoint": ("--key-env", "SENDER_KEY"),
        "the default key for the receiver": ("--receiver-key-env", "OFOX_API_KEY"),
        "a key that is not set": (
            *("--receiver-endpoint", "https://api.example.invalid/v1/messages"),
            *("--receiver-key-env", "NO_SUCH_KEY"),
        ),
        "a receiver's endpoint on a network, unencrypted": (
            *("--receiver-endpoint", "http://api.example.invalid/v1/messages"),
            *("--receiver-key-env", "RECEIVER_KEY"),
        ),
        "a model that makes a host of an endpoint": (
            *("--receiver-endpoint", "https://{model}/v1/messages", "--receiver", "evil.example.invalid:1"),
            *("--receiver-key-env", "RECEIVER_KEY"),
        ),
    }

    def test_key_that_would_go_elsewhere_is_refused_before_anything_is_made(self):
        for phrase, options in self.REFUSED.items():
            for course in ((), ("--receiver-only",)):
                if course and {"--endpoint", "--key-env"} & set(options) and "a key without" in phrase:
                    continue
                with self.subTest(phrase, course=course), mock.patch.dict(os.environ, KEYS):
                    ended = handoff("--live", *course, *options, "--out", self.path("run"))
                    self.assertEqual((ended.code, self.names()), (3, []), ended)
                    self.assertEqual(ended.out, "")
                    self.assertRegex(ended.err, r"refused: .+\n  why: .+\n  next: .+\n$")

    def test_api_without_a_model_or_an_endpoint_of_its_own_is_refused(self):
        for name in ("chat", "gemini"):
            vendor, server = VENDORS[name], self.serve()
            at = ("--endpoint", self.url(vendor, server))
            receiver_at = ("--receiver-endpoint", self.url(vendor, server))
            cases = {
                "a sender without both": ("--sender-api", name),
                "a sender without a model": ("--sender-api", name, *at),
                "a sender without an endpoint": ("--sender-api", name, "--sender", vendor.model),
                "a receiver without both": ("--receiver-api", name),
                "a receiver without a model": ("--receiver-api", name, *receiver_at),
                "a receiver without an endpoint": ("--receiver-api", name, "--receiver", vendor.model),
                "two APIs at one endpoint": (
                    *("--receiver-api", name, "--receiver", vendor.model),
                    *("--endpoint", f"http://127.0.0.1:{server.port}/v1"),
                ),
                "two APIs at one endpoint, named twice": (
                    *("--receiver-api", name, "--receiver", vendor.model),
                    *(
                        "--endpoint",
                        self.url(vendor, server),
                        "--receiver-endpoint",
                        self.url(vendor, server),
                    ),
                ),
                "a receiver alone without a model": ("--receiver-only", "--receiver-api", name, *receiver_at),
                "a receiver alone without an endpoint": (
                    *("--receiver-only", "--receiver-api", name, "--receiver", vendor.model),
                ),
            }
            for phrase, options in cases.items():
                with self.subTest(phrase, api=name):
                    ended = handoff("--live", *options, "--out", self.path("run"))
                    self.assertEqual((ended.code, self.names()), (3, []), ended)
                    self.assertEqual(server.connections, 0)

    def test_endpoint_that_holds_a_key_is_refused_and_not_shown(self):
        vendor, server = VENDORS["gemini"], self.serve_receiver(VENDORS["gemini"])
        for name in ("key", "KEY", "api_key", "access_token"):
            with self.subTest(name):
                url = f"{self.url(vendor, server)}?alt=json&{name}=not-in-a-variable"
                named = ("--receiver-api", "gemini", "--receiver", vendor.model, "--receiver-endpoint", url)
                ended = handoff("--live", "--receiver-only", *named, "--out", self.path("run"))
                self.assertEqual((ended.code, self.names(), server.connections), (3, [], 0), ended)
                self.assertNotIn("not-in-a-variable", ended.out + ended.err)
        url = f"{self.url(vendor, server)}?monk=ey"
        named = ("--receiver-api", "gemini", "--receiver", vendor.model, "--receiver-endpoint", url)
        self.assertEqual(handoff("--live", "--receiver-only", *named, "--out", self.path("run")).code, 0)

    def test_endpoint_that_does_not_name_the_model_is_refused(self):
        vendor, server = VENDORS["gemini"], self.serve_receiver(VENDORS["gemini"])
        at = f"http://127.0.0.1:{server.port}/v1beta/models"
        paths = {
            "another model": f"{at}/gemini-9:generateContent",
            "no model": f"{at}:generateContent",
            "a word in capitals": f"{at}/{{Model}}:generateContent",
            "half a word": f"{at}/{{model:generateContent",
            "braces beside it": f"{at}/{{model}}:{{method}}",
        }
        for phrase, url in paths.items():
            with self.subTest(phrase):
                named = ("--receiver-api", "gemini", "--receiver", vendor.model, "--receiver-endpoint", url)
                ended = handoff("--live", "--receiver-only", *named, "--out", self.path("run"))
                self.assertEqual((ended.code, self.names(), server.connections), (3, [], 0), ended)
        url = f"{at}/{vendor.model}:generateContent"
        named = ("--receiver-api", "gemini", "--receiver", vendor.model, "--receiver-endpoint", url)
        ended = handoff("--live", "--receiver-only", *named, "--out", self.path("run"))
        self.assertEqual(ended.code, 0, ended)
