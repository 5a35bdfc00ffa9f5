"""A key goes only where it was named for; no password of a proxy is shown or stored."""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import os
import shutil
import tempfile
import unittest
import warnings
from unittest import mock
from urllib.parse import quote

from tests import test_hostile_server
from tests.conditions import ConditionsTestCase, find_closed_port
from tests.support import GOOD_RUN, checkpoint, handoff

OTHER_KEY = "sk-of-another-vendor-0123456789"
PASSWORD = "PROXYPASS-51"
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")


class NamedForTest(ConditionsTestCase):
    def refuse(self, *options):
        """A live run with these options is refused before anything is made or sent."""
        with mock.patch.dict(os.environ, {"OTHER_KEY": OTHER_KEY, "https_proxy": "", "HTTPS_PROXY": ""}):
            out = tempfile.mktemp(dir=self.folder)
            ended = handoff("--live", "--out", out, *options)
        self.assertEqual(ended.code, 3, ended)
        self.assertFalse(os.path.exists(out))
        return ended

    def test_key_of_another_vendor_does_not_go_to_the_default_gateway(self):
        for options in (["--key-env", "OTHER_KEY"], ["--key-env=OTHER_KEY"]):
            with self.subTest(options):
                self.assertIn("--endpoint", self.refuse(*options).err)

    def test_key_env_without_an_endpoint_is_refused_also_where_it_names_the_default(self):
        """One rule without an exception: who names a key names where it goes."""
        self.refuse("--key-env", "OFOX_API_KEY")

    def test_key_of_the_default_gateway_does_not_go_to_another_endpoint(self):
        endpoints = (
            "https://api.example.invalid/v1/messages",
            "https://127.0.0.1.example.invalid/v1/messages",
            "https://localhost.example.invalid/v1/messages",
            "https://10.0.0.1/v1/messages",
        )
        for endpoint in endpoints:
            with self.subTest(endpoint):
                self.assertIn("--key-env", self.refuse("--endpoint", endpoint).err)

    def test_loopback_needs_no_name_of_a_key(self):
        for host in ("127.0.0.1", "localhost"):
            with self.subTest(host):
                server = self.serve(*GOOD_RUN)
                url = server.url.replace("127.0.0.1", host)
                ended = self.live(url, out=f"run-{host}")
                self.assertEqual(ended.code, 0, ended)

    def test_https_on_loopback_needs_no_name_of_a_key(self):
        for host in ("127.0.0.1", "127.8.9.10", "[::1]", "localhost"):
            with self.subTest(host):
                ended = self.live(f"https://{host}:{find_closed_port()}/v1/messages", out=f"run-{host[-2:]}")
                self.assertEqual(ended.code, 4, ended)  # it is tried, and nothing listens there

    def test_key_goes_to_the_endpoint_that_was_named_with_it(self):
        server = self.serve(*GOOD_RUN)
        with mock.patch.dict(os.environ, {"OTHER_KEY": OTHER_KEY}):
            ended = self.live(server, "--key-env", "OTHER_KEY")
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual({request.headers["x-api-key"] for request in server.requests}, {OTHER_KEY})


class ProxyTest(ConditionsTestCase):
    def send(self, proxy, out="run", name="https_proxy"):
        """Do a live run to an https endpoint with a proxy set; return how it Ended."""
        clean = {variable.upper(): "" for variable in PROXY_VARIABLES}
        options = ("--endpoint", "https://api.example.invalid/v1/messages", "--key-env", "OFOX_API_KEY")
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.dict(os.environ, {**clean, "no_proxy": "", name: proxy}))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", ResourceWarning)  # the http.client of 3.9 leaves a socket open
            ended = handoff("--live", *options, "--timeout", "9", "--out", self.path(out))
            gc.collect()
        return ended

    # What is set in https_proxy and is not the URL of a proxy that can be used.
    NOT_ONE = {
        "one slash": f"http:/demo-user:{PASSWORD}@proxy.example.invalid:3128",
        "no slash": f"http:demo-user:{PASSWORD}@proxy.example.invalid:3128",
        "a port in words": f"http://demo-user:{PASSWORD}@proxy.example.invalid:port",
        "a port out of range": f"http://demo-user:{PASSWORD}@proxy.example.invalid:99999",
        "no host": f"http://demo-user:{PASSWORD}@",
        "no host but a port": f"http://demo-user:{PASSWORD}@:3128",
        "a slash in the password": f"http://demo-user:{PASSWORD}/x@proxy.example.invalid:3128",
        "a number sign in the password": f"http://demo-user:{PASSWORD}#x@proxy.example.invalid:3128",
        "a question mark in the password": f"http://demo-user:{PASSWORD}?x@proxy.example.invalid:3128",
        "a bracket that is not closed": f"http://demo-user:{PASSWORD}@[::1:3128",
        "a space": f"http://demo-user:{PASSWORD}@proxy example.invalid:3128",
        "a line feed": f"http://demo-user:{PASSWORD}@proxy.example.invalid\n:3128",
        "a proxy of another kind": f"socks5://demo-user:{PASSWORD}@proxy.example.invalid:1080",
    }

    def test_proxy_that_cannot_be_used_is_refused_before_anything_is_recorded(self):
        for name, proxy in self.NOT_ONE.items():
            for variable in ("https_proxy", "HTTPS_PROXY"):
                with self.subTest(name, variable=variable):
                    out = f"{name}-{variable}"
                    with mock.patch.dict(os.environ):
                        os.environ.pop("https_proxy", None)
                        ended = self.send(proxy, out, variable)
                    self.assertEqual(ended.code, 3, ended)
                    self.assertNotIn(out, self.names())
                    self.assertIn("https_proxy", ended.err.lower())
                    self.check_nowhere(PASSWORD, ended)

    def test_proxy_that_is_none_does_not_matter_where_it_is_not_used(self):
        for name, environment in {
            "a run on loopback": {"https_proxy": self.NOT_ONE["one slash"]},
            "a proxy of another scheme": {"http_proxy": self.NOT_ONE["one slash"]},
        }.items():
            with self.subTest(name), mock.patch.dict(os.environ, environment):
                ended = self.live(self.serve(*GOOD_RUN), out=name)
                self.assertEqual(ended.code, 0, ended)
                self.check_nowhere(PASSWORD, ended)

    def test_password_that_a_proxy_sends_back_is_shown_and_stored_nowhere(self):
        pair = base64.b64encode(f"demo-user:{PASSWORD}".encode()).decode()
        echoes = {
            "plain": PASSWORD,
            "with the user": f"demo-user:{PASSWORD}",
            "as it was sent": f"Basic {pair}",
        }
        for name, echo in echoes.items():
            with self.subTest(name):
                refusal = f"HTTP/1.1 407 {echo}\r\n\r\n".encode()
                proxy = self.serve(lambda connection, _, refusal=refusal: connection.sendall(refusal))
                ended = self.send(f"http://demo-user:{PASSWORD}@127.0.0.1:{proxy.port}", out=name)
                self.assertEqual(ended.code, 4, ended)
                self.check_nowhere(PASSWORD, ended)
                self.check_nowhere(pair, ended)
                inspected = self.inspect(name)
                self.assertEqual(inspected.code, 4, inspected)
                self.check_nowhere(PASSWORD, inspected)

    def test_password_with_escapes_is_shown_in_neither_form(self):
        plain = "pass/word@51#"
        refusal = f"HTTP/1.1 407 {plain} or {quote(plain, safe='')}\r\n\r\n".encode()
        proxy = self.serve(lambda connection, _: connection.sendall(refusal))
        ended = self.send(f"http://demo-user:{quote(plain, safe='')}@127.0.0.1:{proxy.port}")
        self.assertEqual(ended.code, 4, ended)
        for secret in (plain, quote(plain, safe="")):
            self.check_nowhere(secret, ended)

    def test_password_in_any_proxy_variable_is_in_no_message_of_either_script(self):
        """The password comes back in what is named, and in the words of an exception."""
        url = f"http://demo-user:{PASSWORD}@proxy.example.invalid:3128"
        commands = {
            "a checkpoint": lambda: checkpoint("verify", self.path(f"no-{PASSWORD}")),
            "a result": lambda: checkpoint("validate", url),
            "a command": lambda: checkpoint(PASSWORD),
            "a response": lambda: checkpoint("extract", url),
            "a result in JSON": lambda: checkpoint("validate", url, "--json"),
            "a text": lambda: checkpoint("validate", self.put("a.json", json.dumps({"rows": PASSWORD}))),
            "a source": lambda: checkpoint("prepare", "--source", url),
            "a folder": lambda: handoff("--inspect", self.path(f"no-{PASSWORD}")),
            "a folder in JSON": lambda: handoff("--inspect", url, "--json"),
            "an endpoint": lambda: handoff("--live", "--endpoint", url, "--key-env", "OFOX_API_KEY"),
            "a word": lambda: handoff(url),
            "an option": lambda: handoff(f"--{PASSWORD}"),
            "a proxy in the wrong place": lambda: handoff("--live", "--endpoint", f"https://{PASSWORD}/"),
        }
        for variable in (*PROXY_VARIABLES, "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
            for name, command in commands.items():
                with self.subTest(name, variable=variable), contextlib.ExitStack() as stack:
                    stack.enter_context(mock.patch.dict(os.environ, {variable: url}))
                    ended = command()
                    self.assertNotEqual(ended.code, 0)
                    self.assertNotIn(PASSWORD, ended.out + ended.err)

    def test_proxy_that_is_down_is_named_without_its_password(self):
        ended = self.send(f"http://demo-user:{PASSWORD}@127.0.0.1:{find_closed_port()}")
        self.assertEqual(ended.code, 4, ended)
        self.check_nowhere(PASSWORD, ended)


class CertificateTest(ConditionsTestCase):
    build_tls = test_hostile_server.LimitTest.build_tls

    @unittest.skipUnless(shutil.which("openssl"), "no openssl here")
    def test_certificate_that_nobody_trusts_gets_advice_of_its_own(self):
        server = self.serve(*GOOD_RUN, wrap=self.build_tls())
        ended = self.live(f"https://127.0.0.1:{server.port}/v1/messages")
        self.assertEqual((ended.code, server.requests), (4, []), ended)
        (advice,) = [line for line in ended.err.split("\n") if line.startswith("  next: ")]
        self.assertIn("SSL_CERT_FILE", advice)
        self.assertIn("SSL_CERT_FILE", self.report())

    def test_other_failures_to_connect_get_other_advice(self):
        ended = self.live(f"https://127.0.0.1:{find_closed_port()}/v1/messages")
        self.assertNotIn("SSL_CERT_FILE", ended.err)
