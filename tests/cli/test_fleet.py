"""A look at a fleet from outside: what a late comer learns, and what it leaves behind."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from prefix_middleware import Settings
from prefix_middleware.cli.fleet import look
from prefix_middleware.core.blocks import Hasher
from prefix_middleware.core.updates import Confirmed
from prefix_middleware.mirror.redis import RedisMirror
from prefix_middleware.mirror.store import connected
from prefix_middleware.peer import RouterPeer
from prefix_middleware.runtime import Runtime
from tests.cli.running import SECRET, Workers, two_workers
from tests.mirror.peer import FakePeer, carrying, until
from tests.services import RedisServer

pytestmark = pytest.mark.anyio
DECISIONS = b"{prefix:default}:decisions"


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with two_workers() as running:
        yield running


def settings_for(workers: Workers, redis: RedisServer) -> Settings:
    return Settings(workers=workers.ids[:2], redis_url=redis.url, secret=SECRET)


async def test_a_look_publishes_nothing_but_one_empty_list_of_loads(
    workers: Workers, redis: RedisServer
) -> None:
    """Gateways learn of no decision and no load from a command that only looks."""
    settings = settings_for(workers, redis)
    peer = FakePeer("gateway")
    mirror = RedisMirror(redis.url, "default", Hasher(SECRET, settings.window_bytes).fingerprint)
    async with carrying((mirror, peer)):
        await until(lambda: peer.connected)
        view = await look(settings, 10)
        await until(lambda: peer.loads)
    assert (view.mirror is not None and view.mirror.complete, peer.heard) == (True, [])
    assert list(peer.loads.values()) == [[]]
    async with connected(redis.url, 5.0) as store:
        assert await store.command("XLEN", DECISIONS) == 0


async def test_what_only_a_snapshot_has_is_held(workers: Workers, redis: RedisServer) -> None:
    """Records that have left the stream reach a late comer with the gateways' snapshot."""
    settings = settings_for(workers, redis)
    epochs = {state.id: state.epoch for state in (await look(settings, 0.1)).router.fleet.states.values()}
    runtime = Runtime(settings)
    hashes = b"".join(bytes([i]) * 8 for i in range(5))
    for worker, epoch in epochs.items():
        runtime.router.set_epoch(worker, epoch, time.monotonic())
    record = Confirmed(1, "w2", epochs["w2"], hashes, b"e" * 8, 640, 0, 640)
    runtime.router.merge("a", [record], 0.0, time.monotonic())
    peer = RouterPeer(runtime.router, runtime.telemetry, time.monotonic, asyncio.get_running_loop())
    fingerprint = Hasher(SECRET, settings.window_bytes).fingerprint
    mirror = RedisMirror(redis.url, "default", fingerprint, snapshot_seconds=0.2)
    task = asyncio.create_task(mirror.run(peer))
    try:
        await until(lambda: runtime.telemetry.counts["mirror.snapshot"])
    finally:
        task.cancel()
        await asyncio.wait([task])
    view = await look(settings, 10)
    assert {worker.id: (worker.blocks, worker.share) for worker in view.workers()} == {
        "w1": (0, 0.0),
        "w2": (6, 1.0),
    }
