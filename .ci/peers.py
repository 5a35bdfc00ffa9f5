"""Try the runner against counterparts that nobody here wrote; run by .ci/run, in a throw-away folder.

    peers.py aimock CLI.js     live runs and session bodies against the npm package @copilotkit/aimock
    peers.py litellm PROGRAM CLI.js
                               live runs through LiteLLM's proxy, with aimock behind it
    peers.py sdk               the requests of a run at each API against the types of three vendors
    peers.py bodies            the bodies of the session cases against the types of three vendors

Prints a line for each check, `passed: NAME` or `FAILED: NAME`, and exits 1 if one failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEY = "sk-invented-0123456789abcdef"
ANSWER = (
    '{"rows":[{"sku":"DEMO-001","shortage":3},'
    '{"sku":"DEMO-002","shortage":0},'
    '{"sku":"DEMO-003","shortage":4}]}'
)

CALL: dict[str, Any] = {
    "match": {"toolName": "read_stock", "hasToolResult": False},
    "response": {"toolCalls": [{"name": "read_stock", "arguments": {}}]},
}
END = {"match": {"toolName": "read_stock"}, "response": {"content": "The stock was read."}}


def answer(text: str, **overrides: object) -> dict[str, object]:
    """Return the fixture of the receiver's answer."""
    return {"match": {}, "response": {"content": text, **overrides}}


def error(status: int, kind: str) -> dict[str, object]:
    """Return the fixture of an error in front of everything."""
    return {"match": {}, "response": {"error": {"type": kind, "message": "Not now."}, "status": status}}


# What the server does: (fixtures, its options, the last request's state, the run's exit code).
CASES = {
    "a tool call, its result, a final answer": ([CALL, END, answer(ANSWER)], [], "confirmed", 0),
    "overloaded": ([error(529, "overloaded_error")], [], "failed", 4),
    "rate-limited": ([error(429, "rate_limit_error")], [], "failed", 4),
    "rate-limited at random, each time": ([CALL], ["--chaos-ratelimit", "1"], "failed", 4),
    "cut connection": ([CALL], ["--chaos-disconnect", "1"], "unclear", 5),
    "dropped with a 500": ([CALL], ["--chaos-drop", "1"], "unclear", 5),
    "malformed JSON": ([CALL], ["--chaos-malformed", "1"], "unclear", 5),
    "max_tokens": ([CALL, END, answer(ANSWER[:40], finishReason="length")], [], "confirmed", 4),
    "fenced answer": ([CALL, END, answer(f"```json\n{ANSWER}\n```")], [], "confirmed", 1),
    "duplicate key": (
        [CALL, END, answer(ANSWER.replace('"shortage":3', '"shortage":9,"shortage":3'))],
        [],
        "confirmed",
        1,
    ),
}


def run_script(*arguments: str, script: str = "run_handoff.py") -> subprocess.CompletedProcess[str]:
    """Run one of the scripts."""
    command = [sys.executable, str(ROOT / script), *arguments]
    environment = {**os.environ, "OFOX_API_KEY": KEY}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def name_pair(port: str, sender: str, receiver: str) -> list[str]:
    """Return the options of a live run between two APIs at one server."""
    urls = {api: f"http://127.0.0.1:{port}{path}" for api, (path, _) in PATHS.items()}
    return [
        *("--sender-api", sender, "--sender", MODELS[sender], "--endpoint", urls[sender]),
        *("--receiver-api", receiver, "--receiver", MODELS[receiver], "--receiver-endpoint", urls[receiver]),
    ]


def try_aimock(
    cli: str, sender: str, receiver: str, fixtures: list[object], options: list[str], state: str, code: int
) -> str:
    """Do one live run against the server; return what is wrong, or nothing."""
    if sender == "gemini":  # which says STOP of a call, where the server says FUNCTION_CALL
        stopped = {**CALL, "response": {**CALL["response"], "finishReason": "stop"}}
        fixtures = [stopped if fixture is CALL else fixture for fixture in fixtures]
    with tempfile.TemporaryDirectory() as folder, serve_aimock(cli, fixtures, options) as port:
        return try_run(os.path.join(folder, "run"), name_pair(port, sender, receiver), state, code)


def try_run(run: str, options: list[str], state: str, code: int) -> str:
    """Do a live run and inspect it; return what is wrong with its codes or its last request, or nothing."""
    ended = run_script("--live", *options, "--out", run)
    inspected = run_script("--inspect", run, "--json")
    states = list(json.loads(inspected.stdout)["requests"].values()) if inspected.stdout else []
    last = [seen for seen in states if seen != "not planned"][-1:]
    if (ended.returncode, inspected.returncode, last) != (code, code, [state]):
        codes = f"exit {ended.returncode}, inspected {inspected.returncode}, {states}"
        return f"{codes}\n{ended.stderr}{inspected.stderr}"
    return ""


@contextlib.contextmanager
def serve_aimock(cli: str, fixtures: list[object], options: list[str]) -> Iterator[str]:
    """Run the server with fixtures, and yield its port."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "fixtures.json")
        path.write_text(json.dumps({"fixtures": fixtures}))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = str(probe.getsockname()[1])
        command = ["node", cli, "-p", port, "-f", str(path), "--log-level", "silent", *options]
        server = subprocess.Popen(command)
        try:
            wait_for(port)
            yield port
        finally:
            server.terminate()
            server.wait()


def wait_for(port: str) -> None:
    """Wait until something listens on a port; LiteLLM's proxy takes half a minute."""
    for _ in range(1_200):
        try:
            socket.create_connection(("127.0.0.1", int(port)), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the server did not start")


def find_unknown(given: object, checked: object, path: str) -> list[str]:
    """Return the paths of keys that a validated copy does not have; its lazy parts are gone through."""
    if isinstance(given, dict):
        if not isinstance(checked, dict):
            return [path]
        unknown = [f"{path}.{key}" for key in given if key not in checked]
        return unknown + [
            fault
            for key in given
            if key in checked
            for fault in find_unknown(given[key], checked[key], f"{path}.{key}")
        ]
    if isinstance(given, list):
        items = list(checked)  # forces what pydantic validates only when it is asked for
        if len(items) != len(given):
            return [path]
        return [
            fault for at, item in enumerate(given) for fault in find_unknown(item, items[at], f"{path}[{at}]")
        ]
    return [] if given == checked else [path]


def check_sdk() -> list[tuple[str, str]]:
    """Return (check, what is wrong) for each stored request of a rehearsal at each API."""
    takers, checks = build_takers(), []
    for api, take in takers.items():
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            sides = [f"--{side}={MODELS[api]}" for side in ("sender", "receiver")]
            sides += [f"--{side}-api={api}" for side in ("sender", "receiver")]
            ended = run_script("--rehearse", *sides, "--out", run)
            checks.append((f"{api}: a rehearsal", ended.stderr if ended.returncode else ""))
            for path in sorted(pathlib.Path(run).glob("*-request.json")):
                faults = take(json.loads(path.read_bytes()), path.name).splitlines()
                # Moonshot's field, which its models want back, is not among OpenAI's types.
                fault = "\n".join(line for line in faults if not line.endswith(".reasoning_content"))
                checks.append((f"{api}: the SDK's types take {path.name}", fault))
    return checks


def build_takers() -> dict[str, Callable[[Any, str], str]]:
    """Return for each API a function that says what its vendor's package finds wrong with a body."""
    import pydantic
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
    from google.genai import types
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

    class Gemini(pydantic.BaseModel, extra="forbid"):
        contents: list[types.Content]
        tools: list[types.Tool] = []
        systemInstruction: types.Content | None = None
        generationConfig: types.GenerationConfig | None = None

    def take(kind: Any, is_typed_dict: bool) -> Callable[[Any, str], str]:
        adapter = pydantic.TypeAdapter(kind)

        def check(body: Any, name: str) -> str:
            try:
                checked = adapter.validate_python(body)
                return "\n".join(find_unknown(body, checked, name)) if is_typed_dict else ""
            except pydantic.ValidationError as error:
                return str(error)

        return check

    return {
        "messages": take(MessageCreateParamsNonStreaming, True),
        "chat": take(CompletionCreateParamsNonStreaming, True),
        "gemini": take(Gemini, False),  # whose models forbid unknown fields themselves
    }


MODELS = {"messages": "claude-opus-5-5", "chat": "gpt-5.5", "gemini": "gemini-3.5-flash"}


def check_bodies() -> list[tuple[str, str]]:
    """Return (check, what is wrong) for the body of each session case at each other vendor."""
    takers, checks = build_takers(), []
    for path in sorted((ROOT / "tests" / "cases" / "session").glob("*.session.json")):
        for api, model in MODELS.items():
            for options in (["--unclear", "--leave-out"], ["--fresh"]):
                arguments = ["session", str(path), "--to", api, "--model", model, *options]
                ended = run_script(*arguments, script="checkpoint_demo.py")
                if ended.returncode == 0 and api not in describe_maker(path):
                    name = f"{path.name} at {api}, {options[-1]}"
                    checks.append(
                        (f"the SDK's types take {name}", takers[api](json.loads(ended.stdout), name))
                    )
    return checks


def describe_maker(path: pathlib.Path) -> str:
    """Return the API that a session record is of; at home it goes back as it came, whatever is in it."""
    ended = run_script("session", str(path), "--json", script="checkpoint_demo.py")
    return str(json.loads(ended.stdout)["api"])


# The path of each API at the server, and the field that its reply has.
PATHS = {
    "messages": ("/v1/messages", "content"),
    "chat": ("/v1/chat/completions", "choices"),
    "gemini": ("/v1beta/models/{model}:generateContent", "candidates"),
}


def try_api(cli: str, api: str) -> str:
    """Send a session to the server as one API has it, and judge what comes back; return what is wrong."""
    session = ROOT / "tests" / "cases" / "session" / "001-plain-anthropic.session.json"
    arguments = ["session", str(session), "--to", api, "--model", MODELS[api]]
    body = run_script(*arguments, script="checkpoint_demo.py").stdout.encode()
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_aimock(cli, [answer("It costs 21.40 EUR.")], []) as port,
    ):
        headers = {"content-type": "application/json", "x-api-key": KEY, "authorization": f"Bearer {KEY}"}
        url = f"http://127.0.0.1:{port}{PATHS[api][0]}".format(model=MODELS[api])
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
            data = response.read()
        reply = pathlib.Path(folder, "reply.json")
        reply.write_bytes(data)
        judged = run_script("session", str(session), "--reply", str(reply), script="checkpoint_demo.py")
    if judged.returncode or PATHS[api][1] not in json.loads(data):
        return f"exit {judged.returncode}\n{judged.stderr}{data.decode()}"
    return ""


RECORD = str(ROOT / "tests" / "cases" / "session" / "001-plain-anthropic.session.json")
COURSES = {"the receiver alone": ["--receiver-only"], "a session": ["--session", RECORD]}


def name_receiver(port: str, api: str, model: str) -> list[str]:
    """Return the options of a live run of one request at a server."""
    endpoint = f"http://127.0.0.1:{port}{PATHS[api][0]}"
    return ["--receiver-api", api, "--receiver", model, "--receiver-endpoint", endpoint]


def try_course(cli: str, api: str, course: list[str]) -> str:
    """Do one live run of one request against aimock; return what is wrong, or nothing."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_aimock(cli, [answer(ANSWER)], []) as port,
    ):
        named = name_receiver(port, api, MODELS[api])
        return try_run(os.path.join(folder, "run"), [*course, *named], "confirmed", 0)


def check_aimock(cli: str) -> list[tuple[str, str]]:
    """Return (check, what is wrong) for each case of each API, each pair of two, and each course."""
    good = CASES["a tool call, its result, a final answer"]
    checks = [
        (f"aimock, {api}: {name}", try_aimock(cli, api, api, *case))
        for api in PATHS
        for name, case in CASES.items()
    ]
    checks += [
        (f"aimock: {sender} to {receiver}", try_aimock(cli, sender, receiver, *good))
        for sender in PATHS
        for receiver in PATHS
        if sender != receiver
    ]
    checks += [
        (f"aimock, {api}: {name}", try_course(cli, api, course))
        for api in PATHS
        for name, course in COURSES.items()
    ]
    return checks + [(f"aimock: a session's body for {api}", try_api(cli, api)) for api in PATHS]


@contextlib.contextmanager
def serve_litellm(program: str, behind: str) -> Iterator[str]:
    """Run LiteLLM's proxy, with a canned answer and with aimock's port behind it; yield its port."""
    models = {
        "canned": {"model": "openai/gpt-5.5", "mock_response": ANSWER},
        "behind": {"model": "openai/gpt-5.5", "api_base": f"http://127.0.0.1:{behind}/v1"},
        "claude-behind": {
            "model": "anthropic/claude-opus-5-5",
            "api_base": f"http://127.0.0.1:{behind}",
        },
    }
    listed = [
        {"model_name": name, "litellm_params": {"api_key": "none", **facts}} for name, facts in models.items()
    ]
    settings = {"model_list": listed, "general_settings": {"master_key": KEY}}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "config.yaml")
        path.write_text(json.dumps(settings))  # which is YAML, too
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = str(probe.getsockname()[1])
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        command = [program, "--config", str(path), "--host", "127.0.0.1", "--port", port]
        with open(os.path.join(folder, "log"), "wb") as log:
            server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            try:
                wait_for(port)
                yield port
            finally:
                server.terminate()
                server.wait()


def check_litellm(program: str, cli: str) -> list[tuple[str, str]]:
    """Return (check, what is wrong) for runs through the proxy, and for what it refuses."""
    fixtures: list[object] = [CALL, END, answer(ANSWER)]
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_aimock(cli, fixtures, []) as behind,
        serve_litellm(program, behind) as port,
    ):

        def try_one(
            name: str, options: list[str], state: str = "confirmed", code: int = 0
        ) -> tuple[str, str]:
            return f"LiteLLM: {name}", try_run(os.path.join(folder, name), options, state, code)

        endpoint = f"http://127.0.0.1:{port}{PATHS['chat'][0]}"
        at = ["--sender-api", "chat", "--receiver-api", "chat", "--endpoint", endpoint]
        checks = [
            try_one(name, [*course, *name_receiver(port, "chat", "canned")])
            for name, course in COURSES.items()
        ]
        for model in ("behind", "claude-behind"):
            checks.append(try_one(f"a task, {model}", [*at, "--sender", model, "--receiver", model]))
        unknown = ["--receiver-only", *name_receiver(port, "chat", "unknown")]
        return [*checks, try_one("a model that it does not have", unknown, "failed", 4)]


def main() -> int:
    """Run the checks that the command line names."""
    kind, *what = sys.argv[1:]
    kinds: dict[str, Callable[..., list[tuple[str, str]]]] = {
        "aimock": check_aimock,
        "litellm": check_litellm,
        "sdk": check_sdk,
        "bodies": check_bodies,
    }
    checks = kinds[kind](*what)
    for name, fault in checks:
        print(f"FAILED: {name}\n{fault}" if fault else f"passed: {name}")
    return 1 if not checks or any(fault for _, fault in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
