"""Every host of integrations/, started as its users start it; the proof is what the workers have seen."""

from pathlib import Path

import pytest

from tests.integrations.stack import ROOT, WORKERS, Gateway, Stack, events, prompt, write_app
from tests.services import wait_until

README = (ROOT / "integrations/README.md").read_text()
UVICORN = ("uvicorn", "app:app", "--log-level", "warning")
HOSTS = {
    "fastapi-httpx": UVICORN,
    "fastapi-openai": UVICORN,
    "aiohttp-forwarder": UVICORN,
    "bare-asgi": UVICORN,
    "Litestar": UVICORN,
    "Quart": UVICORN,
    "Django": UVICORN,
    "granian": ("granian", "--interface", "asgi", "--log-level", "warning", "app:app"),
    "uvicorn --workers 2": (*UVICORN, "--workers", "2"),
}
WITHOUT_CARRIER = {"bare-asgi"}
TURNS = (0, 0, 1, 2, 2, 1, 0)  # numbers of prompts; a proxy that takes turns would part the equal neighbours


def folder_of(host: str, tmp_path: Path) -> Path:
    """Return where the host's app.py is."""
    if (ROOT / "integrations" / host).is_dir():
        return ROOT / "integrations" / host
    if host in ("granian", "uvicorn --workers 2"):
        return ROOT / "integrations/fastapi-httpx"
    return write_app(tmp_path, README, host)


def assert_obeyed(stack: Stack, gateway: Gateway, path: str = "/v1/chat/completions") -> None:
    """Ask with forged headers, and compare each line with the one worker that was reached."""
    for number, forged in zip(TURNS, (*WORKERS, "evil", *WORKERS), strict=True):
        seen, before = len(gateway.decisions()), stack.counts()
        body = prompt(f"host {gateway.url} {number}")
        if path == "/v1/completions":
            body = {"model": "m", "prompt": body["messages"][0]["content"], "max_tokens": 2}
        assert gateway.post(body, path, **{"X-Prefix-Worker": forged}).status_code == 200
        wait_until(lambda: len(gateway.decisions()) > seen, what="a line")  # noqa: B023 - called at once
        decided = [decision.worker for decision in gateway.decisions()[seen:]]
        assert list((stack.counts() - before).elements()) == decided


@pytest.mark.parametrize("host", HOSTS)
def test_the_chosen_worker_is_reached_and_a_forged_one_is_not(
    stack: Stack, tmp_path: Path, host: str
) -> None:
    """Each request reaches the worker that its line names, whatever the client put into X-Prefix-Worker."""
    env = {"PREFIX_UPSTREAM_URL": ""} if host in WITHOUT_CARRIER else {}
    processes = 2 if host.endswith("--workers 2") else 1
    command = HOSTS[host]
    with stack.gateway(folder_of(host, tmp_path), *command, env=env, processes=processes) as gateway:
        assert_obeyed(stack, gateway)
        reasons = {decision.reason for decision in gateway.decisions()[-4:]}
        assert reasons <= {"hit", "miss"}
        assert {entry["x_prefix_worker"] for _, entry in stack.arrivals()} == {None}


def test_a_sync_view_of_django_carries_with_requests(stack: Stack, tmp_path: Path) -> None:
    """The thread of a sync view has the request's context."""
    with stack.gateway(folder_of("Django", tmp_path), *UVICORN) as gateway:
        assert_obeyed(stack, gateway, "/v1/completions")


@pytest.mark.parametrize("decide", ["ingress", "egress"])
@pytest.mark.parametrize("host", ["fastapi-httpx", "fastapi-openai", "aiohttp-forwarder"])
def test_streams_pass_and_the_next_turn_follows(stack: Stack, host: str, decide: str) -> None:
    """A streamed answer is whole, and its conversation's next turn goes to the same worker."""
    folder = ROOT / "integrations" / host
    with stack.gateway(folder, *UVICORN, env={"PREFIX_DECIDE": decide}) as gateway:
        body = prompt(f"stream {host} {decide}", stream=True)
        seen = len(gateway.decisions())
        answers = [gateway.post(body) for _ in range(3)]
        assert [events(answer.text)[-1] for answer in answers] == ["[DONE]"] * 3
        wait_until(lambda: len(gateway.decisions()) == seen + 3, what="three lines")
        first, *others = gateway.decisions()[seen:]
        assert [(d.reason, d.worker) for d in others] == [("hit", first.worker)] * 2
