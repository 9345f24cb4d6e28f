"""`prefix-middleware workers`: the fleet as health and mirror show it."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from prefix_middleware import Settings
from prefix_middleware.core.blocks import Hasher
from prefix_middleware.core.updates import Suspect
from prefix_middleware.mirror.redis import RedisMirror
from tests.cli.running import SECRET, Workers, answering, gateway, hashed, looked, run, two_workers
from tests.mirror.peer import FakePeer, carrying, until_length
from tests.services import RedisServer, free_port

PROMPT = hashed(
    json.dumps({"model": "fake-model", "messages": [{"role": "user", "content": "u" * 20_000}]}).encode()
)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with two_workers() as running:
        yield running


def started(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def plain(name: str, url: str, **facts: Any) -> dict[str, Any]:
    """Return an idle worker as --json has it."""
    figures = dict.fromkeys(("in_flight", "backlog_tokens", "prompt_tokens", "load_tokens", "blocks"), 0)
    ready = {"id": name, "url": url, "state": "ready", "reason": None}
    return {**ready, **figures, "fill": 0.0, "share": 0.0, **facts}


@pytest.mark.anyio
async def test_the_fleet_is_shown_as_the_mirror_has_it(workers: Workers, redis: RedisServer) -> None:
    """Health, start times, loads and blocks of every worker, and the gateway that decided."""
    env = {**workers.env, "PREFIX_REDIS_URL": redis.url}
    async with gateway(workers, redis) as runtime:
        home = (await answering(runtime, PROMPT, redis)).worker
        epochs = {state.id: state.epoch or None for state in runtime.router.fleet.states.values()}
        seen = (await looked("workers", "--seconds", "10", "--json", env=env)).json
        table = await looked("workers", "--seconds", "10", env=env)
    busy = {"in_flight": 1, "prompt_tokens": 5001, "load_tokens": 1150, "blocks": 40, "share": 1.0}
    refused = {"state": "not ready", "reason": "/health: ConnectError"}
    told: dict[str, dict[str, Any]] = {"w1": {}, "w2": {}, "w3": refused, home: busy}
    for entry in seen["workers"]:
        entry["fill"] = 0.01 < entry["fill"] <= 0.017  # it decays
    (origin,) = seen["gateways"]
    assert 0 <= origin.pop("last_decision_seconds") < 60
    name = origin.pop("origin")
    expected = [plain(w.id, w.url, epoch=epochs[w.id], **told[w.id]) for w in workers.ids]
    for entry in expected:
        entry["fill"] = entry["id"] == home
    assert seen == {
        "fleet": "default",
        "mirror": {"reached": True, "complete": True, "reason": None, "foreign": 0},
        "workers": expected,
        "gateways": [
            {
                "in_flight": 1,
                "backlog_tokens": 0,
                "prompt_tokens": 5001,
                "in_flight_by_worker": {home: 1},
                "decided": 0,
                "injected": 0,
                "echoed": 0,
            }
        ],
    }
    one, two, three = (w.url for w in workers.ids)
    figures = {home: "1 0 5,001 1,150 40 100.0 %"}
    assert (table.status, table.err, max(map(len, table.out.splitlines())) <= 80) == (0, "", True)
    assert [re.sub(r"\d+ s ago", "AGO", row) for row in table.rows] == [
        "worker url state started",
        f"w1 {one} ready {started(epochs['w1'] or 0)}",
        f"w2 {two} ready {started(epochs['w2'] or 0)}",
        f"w3 {three} not ready: /health: -",
        "ConnectError",
        "worker in-flight backlog prompt tokens load blocks share",
        *(f"{w} {figures.get(w, '0 0 0 0 0 0.0 %')}" for w in ("w1", "w2", "w3")),
        "gateway last in-flight prompt tokens decided injected echoed",
        f"{name} AGO 1 5,001 0 0 0",
    ]


@pytest.mark.anyio
async def test_a_suspect_worker_is_shown_as_one(workers: Workers, redis: RedisServer) -> None:
    """What one gateway has learnt of failures reaches the table, with the seconds that are left."""
    env = {**workers.env, "PREFIX_REDIS_URL": redis.url}
    epoch = (await looked("workers", "--json", env=workers.env)).json["workers"][0]["epoch"]
    peer, fingerprint = FakePeer("a"), Hasher(SECRET, Settings().window_bytes).fingerprint
    async with carrying((RedisMirror(redis.url, "default", fingerprint), peer)):
        peer.publish(Suspect("w1", epoch, 60.0))
        await until_length(redis.url, b"{prefix:default}:decisions", 1)
        done = await looked("workers", "--seconds", "10", env=env)
    assert [re.sub(r"\d+ s more", "TIME", row.split(" ", 2)[2]) for row in done.rows[1:3]] == [
        f"suspect: for TIME {started(epoch)}",
        f"ready {done.rows[2].split('ready ')[1]}",
    ]


def test_without_redis_it_is_health_only(workers: Workers) -> None:
    """Health needs no mirror, and the reader is told what is missing."""
    done = run("workers", env=workers.env)
    assert (done.status, done.err) == (0, "")
    assert [re.sub(r"ready \d.*", "ready TIME", row) for row in done.rows] == [
        "worker url state started",
        f"w1 {workers.ids[0].url} ready TIME",
        f"w2 {workers.ids[1].url} ready TIME",
        f"w3 {workers.ids[2].url} not ready: /health: -",
        "ConnectError",
        "health only: PREFIX_REDIS_URL is not set",
    ]


def test_a_mirror_that_is_not_there_is_status_3(workers: Workers) -> None:
    """Health is printed all the same."""
    env = {**workers.env, "PREFIX_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}
    done = run("workers", "--seconds", "0.5", env=env)
    assert (done.status, len(done.rows), done.err.count("\n")) == (3, 5, 1)
    assert done.err.startswith("mirror: not reached within 0.5 s: ConnectionError: ")


def test_a_frozen_mirror_is_status_3(workers: Workers, redis: RedisServer) -> None:
    """A Redis that takes the connection and says nothing must not hold the command."""
    redis.freeze()
    try:
        done = run("workers", "--seconds", "0.5", env={**workers.env, "PREFIX_REDIS_URL": redis.url})
    finally:
        redis.thaw()
    assert (done.status, done.err) == (3, "mirror: not reached within 0.5 s: no answer\n")


def test_no_workers_is_nothing_to_show() -> None:
    """Without PREFIX_WORKERS there is no table, status 1 and one line."""
    done = run("workers")
    assert (done.status, done.out, done.err) == (1, "", "nothing to show: PREFIX_WORKERS names no workers\n")


@pytest.mark.parametrize("command", ["explain", "logs", "workers"])
def test_the_help_lists_the_exit_codes(command: str) -> None:
    """Whoever writes a script finds the codes without reading the source."""
    text = " ".join(run(command, "--help", env={"COLUMNS": "200"}).rows)
    assert "Exit status: 0 fine; 1 nothing to show, or the file cannot be read; 2 wrong options" in text
    assert ("3 the mirror was not reached in time" in text) == (command != "logs")
