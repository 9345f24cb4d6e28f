"""Whole gateways, routers included: what one that comes later knows, and what one that is killed leaves behind."""

import signal
import sys
import time
from pathlib import Path

import anyio
import pytest

from prefix_middleware.core.loads import GAUGE_SECONDS
from prefix_middleware.mirror.store import connected
from tests.mirror.fleet import Gateway, running
from tests.mirror.peer import until
from tests.mirror.proxy import proxy_to
from tests.services import Process, RedisServer, redis_server

pytestmark = pytest.mark.anyio

CONVERSATIONS = 200


async def traffic(gateways: tuple[Gateway, ...]) -> None:
    """Serve follow-ups for ever, through one gateway after the other."""
    turn = 0
    while True:
        gateways[turn % len(gateways)].serve(turn * 7 % CONVERSATIONS)
        turn += 1
        await anyio.sleep(0.005)


def agreeing(one: Gateway, other: Gateway) -> int:
    """Count the conversations for which both know the same best workers."""
    return sum(one.best(n) == other.best(n) and one.best(n)[0] > 0 for n in range(CONVERSATIONS))


@pytest.mark.parametrize("with_snapshot", [False, True])
async def test_a_gateway_that_starts_during_traffic_knows_the_conversations(
    redis: RedisServer, with_snapshot: bool
) -> None:
    """Within a second it agrees on 95 of 100 known conversations, from the stream alone or with a snapshot."""
    a, b = (Gateway(redis.url, snapshot_seconds=0.3 if with_snapshot else 60) for _ in range(2))
    async with running(a, b), anyio.create_task_group() as tasks:
        for number in range(CONVERSATIONS):
            (a, b)[number % 2].serve(number)
        await until(lambda: agreeing(a, b) == CONVERSATIONS)
        tasks.start_soon(traffic, (a, b))
        if with_snapshot:
            await until(lambda: a.count("snapshot") + b.count("snapshot") >= 2)
        c = Gateway(redis.url)
        async with running(c):
            with anyio.move_on_after(1.0):
                await until(lambda: agreeing(a, c) >= 0.95 * CONVERSATIONS)
            known = agreeing(a, c)
        tasks.cancel_scope.cancel()
    assert (known >= 0.95 * CONVERSATIONS, c.count("restored")) == (True, int(with_snapshot))


async def test_the_loads_of_a_killed_gateway_are_gone_three_seconds_later(
    redis: RedisServer, tmp_path: Path
) -> None:
    """SIGKILL says no goodbye: what it had in flight stops counting when its last gauge is 3 s old."""
    a = Gateway(redis.url)

    def loads() -> int:
        now = time.monotonic()
        a.router.fleet.expire(now)
        return sum(a.router.fleet.load(s, now).in_flight for s in a.router.fleet.states.values())

    command = [sys.executable, "-m", "tests.mirror.member", redis.url, "5"]
    other = Process(command, log=tmp_path / "member.log")
    try:
        async with running(a):
            await until(lambda: loads() == 5)
            other.signal(signal.SIGKILL)
            killed = time.monotonic()
            await until(lambda: loads() == 0)
            took = time.monotonic() - killed
    finally:
        other.stop()
    assert took <= GAUGE_SECONDS + 0.5


async def test_a_failover_to_a_lagging_replica_is_noticed_and_all_agree_again(redis: RedisServer) -> None:
    """What the replica never got is written again by its authors; what a dead gateway wrote comes by a snapshot."""
    with redis_server("--replicaof", "127.0.0.1", str(redis.port)) as replica:
        async with proxy_to(redis.port) as proxy:
            a, b, dead = (Gateway(proxy.url) for _ in range(3))
            async with running(a, b):
                async with running(dead):
                    for number in range(100):
                        a.serve(number)
                    await until(lambda: b.mirror.heard.get(a.origin) == 100)
                    await replica_has(replica, redis)
                    await detach(replica)
                    for number in range(100, CONVERSATIONS):
                        (a, dead)[number % 2].serve(number)
                    await until(lambda: agreeing(a, b) == CONVERSATIONS)
                proxy.lead_to(replica.port)
                proxy.cut()
                await until(lambda: a.connected and b.connected and a.count("gap") and b.count("gap"))
                await until(lambda: b.mirror.heard.get(a.origin) == a.mirror.published[a.origin])
                await until(lambda: a.count("snapshot") + b.count("snapshot"))
                late = Gateway(proxy.url)
                async with running(late):
                    await until(lambda: agreeing(a, late) == CONVERSATIONS)
                assert agreeing(a, b) == CONVERSATIONS
    assert (a.count("rewritten") >= 50, b.count("lost"), late.count("lost")) == (True, 0, 0)


async def replica_has(replica: RedisServer, master: RedisServer) -> None:
    """Wait until the replica has all that the master has."""
    async with connected(replica.url, 5.0) as there, connected(master.url, 5.0) as here:
        key = "{prefix:test}:decisions"
        with anyio.fail_after(15):
            while await there.command("XLEN", key) < await here.command("XLEN", key):  # noqa: ASYNC110 - in another process
                await anyio.sleep(0.02)


async def detach(replica: RedisServer) -> None:
    """Make the replica a master that hears no more from the old one."""
    async with connected(replica.url, 5.0) as store:
        await store.command("REPLICAOF", "NO", "ONE")
