"""The integrations and examples, started as their users start them: uvicorn, workers, and a proxy that obeys the header."""

import difflib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services import wait_until
from tests.testing.fakes import Running, proxy, server, worker

ROOT = Path(__file__).parents[1]
WORKERS = ("w1", "w2", "w3")
TURN = [{"role": "user", "content": "the same long beginning " * 100}]


class Stack:
    """Three workers behind the proxy, and gateways started on demand."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.workers: dict[str, Running] = {id: stack.enter_context(worker()) for id in WORKERS}
        self.front: Running = stack.enter_context(proxy({id: it.url for id, it in self.workers.items()}))

    def gateway(self, folder: str, app: str) -> Running:
        env = {
            "UPSTREAM_URL": self.front.url,
            "PREFIX_UPSTREAM_URL": self.front.url,
            "PREFIX_WORKERS": ",".join(f"{id}={it.url}" for id, it in self.workers.items()),
            "PREFIX_LOG": "line",
            "PYTHONPATH": str(ROOT),
        }
        options = ("--app-dir", str(ROOT / folder), "--log-level", "warning", app)
        return self._stack.enter_context(server("uvicorn", *options, env=env))

    def arrivals(self) -> dict[str, list[dict[str, Any]]]:
        return {id: it.log() for id, it in self.workers.items()}


@pytest.fixture
def stack() -> Iterator[Stack]:
    with ExitStack() as exits:
        yield Stack(exits)


def post(gateway: Running, body: dict[str, Any], key: str = "sk-alice", **headers: str) -> httpx.Response:
    named = {"authorization": f"Bearer {key}", **headers}
    url = f"{gateway.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=named, timeout=20, trust_env=False)


def decisions(gateway: Running) -> list[str]:
    """The worker of each `[PREFIX]` line so far."""
    lines = [line.split() for line in gateway.process.text().splitlines()]
    named = [line for line in lines if line[:1] == ["[PREFIX]"] and line[1] in ("hit:", "miss:", "busy:")]
    return [line[2] for line in named]


@pytest.mark.parametrize(
    ("folder", "app"), [("integrations/fastapi-httpx", "app:app"), ("examples", "gateway_prefix:app")]
)
def test_the_chosen_worker_is_reached_and_a_forged_header_is_not(stack: Stack, folder: str, app: str) -> None:
    """Every turn lands where the line says, whatever the client put into X-Prefix-Worker."""
    gateway = stack.gateway(folder, app)
    ready = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    wait_until(lambda: post(gateway, ready).status_code == 200 and decisions(gateway), what="a ready worker")
    for it in stack.workers.values():
        it.control(reset_cache=True)
    before = {id: len(log) for id, log in stack.arrivals().items()}
    seen = len(decisions(gateway))
    for forged in (*WORKERS, "evil"):
        answer = post(
            gateway, {"model": "m", "messages": TURN, "max_tokens": 2}, **{"X-Prefix-Worker": forged}
        )
        assert answer.status_code == 200
    wait_until(lambda: len(decisions(gateway)) == seen + 4, what="four lines")
    chosen = set(decisions(gateway)[seen:])
    arrived = {id: len(log) - before[id] for id, log in stack.arrivals().items()}
    assert len(chosen) == 1
    assert arrived == {id: 4 if id in chosen else 0 for id in WORKERS}
    assert {entry["x_prefix_worker"] for log in stack.arrivals().values() for entry in log} == {None}


@pytest.mark.parametrize("app", ["gateway_plain:app", "gateway_prefix:app"])
def test_the_example_asks_for_a_key_bills_and_passes_status_and_type(stack: Stack, app: str) -> None:
    """A gateway with the line does what it did without: 401, usage per key, the upstream's status and type."""
    gateway = stack.gateway("examples", app)
    body: dict[str, Any] = {"model": "m", "messages": TURN, "max_tokens": 3}
    stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answers = [post(gateway, body, "nobody"), post(gateway, body), post(gateway, stream)]
    types = [(answer.status_code, answer.headers["content-type"]) for answer in answers]
    json_type, stream_type = "application/json", "text/event-stream; charset=utf-8"
    assert types == [(401, json_type), (200, json_type), (200, stream_type)]
    tokens = answers[1].json()["usage"]["prompt_tokens"]
    headers = {"authorization": "Bearer sk-alice"}
    billed = httpx.get(f"{gateway.url}/usage", headers=headers, trust_env=False).json()
    assert billed == {"prompt_tokens": 2 * tokens, "completion_tokens": 6}
    assert json.loads(answers[2].text.split("data: ")[-2])["usage"]["completion_tokens"] == 3
    for it in stack.workers.values():
        it.control(fail=503)
    failed = post(gateway, body)
    assert (failed.status_code, failed.json()["error"]["code"]) == (503, 503)


def test_the_examples_differ_by_exactly_the_two_lines() -> None:
    """The README's first picture: one import and one line."""
    plain, prefixed = (
        (ROOT / "examples" / name).read_text() for name in ("gateway_plain.py", "gateway_prefix.py")
    )
    diff = difflib.ndiff(plain.splitlines(), prefixed.splitlines())
    assert [line for line in diff if line[0] != " "] == [
        "+ from prefix_middleware import PrefixMiddleware",
        "+ app.add_middleware(PrefixMiddleware)",
    ]
