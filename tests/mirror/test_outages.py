"""`RedisMirror` while Redis dies, freezes, refuses or is cut off: one line per change, nothing lost, nothing held up."""

import time

import anyio
import pytest
from anyio.lowlevel import checkpoint

from prefix_middleware.core.updates import Gauge
from prefix_middleware.mirror.redis import RedisMirror
from prefix_middleware.mirror.store import connected
from prefix_middleware.mirror.wire import Wire
from prefix_middleware.mirror.writer import MAX_PENDING
from tests.mirror.peer import FINGERPRINT, FakePeer, carrying, confirmed, until, until_heard, until_length
from tests.mirror.proxy import proxy_to
from tests.services import RedisServer, free_port, redis_server

pytestmark = pytest.mark.anyio


def mirror(url: str) -> RedisMirror:
    return RedisMirror(url, "test", FINGERPRINT)


async def test_a_killed_redis_that_comes_back_empty_is_picked_up(redis: RedisServer) -> None:
    """What was published meanwhile arrives, both learn the new stream, and each says two lines about it."""
    a, b = FakePeer("a"), FakePeer("b")
    async with carrying((mirror(redis.url), a), (mirror(redis.url), b)):
        await until(lambda: a.connected and b.connected)
        a.publish(confirmed(1))
        await until(lambda: b.heard)
        redis.kill()
        await until(lambda: not a.connected and not b.connected)
        a.publish(confirmed(2))
        redis.restart_empty()
        await until(lambda: a.connected and b.connected and len(b.heard) >= 2)
    assert b.heard == [("a", confirmed(1)), ("a", confirmed(2))]
    assert ([up for up, _ in a.states], [up for up, _ in b.states]) == (
        [True, False, True],
        [True, False, True],
    )
    assert (a.counts["gap"], b.counts["gap"], b.counts["lost"]) == (1, 1, 0)


async def test_a_stream_younger_than_ours_is_read_from_its_start(redis: RedisServer) -> None:
    """After a failover ids may lie below the last one read, where XREAD would return nothing for ever."""
    a, b = FakePeer("a"), FakePeer("b")
    packed = Wire(FINGERPRINT).pack_decisions("old", [confirmed(1)])[0]
    future = int(time.time() * 1000) + 3_600_000
    async with proxy_to(redis.port) as proxy, connected(redis.url, 5.0) as store:
        await store.command("XADD", "{prefix:test}:decisions", f"{future}-0", "d", packed)
        async with carrying((mirror(redis.url), a), (mirror(proxy.url), b)):
            await until(lambda: b.heard and b.connected)
            await store.command("DEL", "{prefix:test}:decisions")
            proxy.cut()
            await until(lambda: not b.connected)
            await until(lambda: b.connected)
            a.publish(confirmed(2))
            await until(lambda: len(b.heard) >= 2)
    assert b.heard == [("old", confirmed(1)), ("a", confirmed(2))]
    assert (b.counts, b.ages[0]) == ({"gap": 1}, 0.0)


async def test_a_stream_that_has_moved_past_us_is_a_counted_gap(redis: RedisServer) -> None:
    """What was trimmed, or lost with an older stream, while we were away is missing: said by a number."""
    b = FakePeer("b")
    first, second = (Wire(FINGERPRINT).pack_decisions("a", [confirmed(n)], n)[0] for n in (1, 2))
    async with (
        proxy_to(redis.port) as proxy,
        connected(redis.url, 5.0) as store,
        carrying((mirror(proxy.url), b)),
    ):
        await store.command("XADD", "{prefix:test}:decisions", "*", "d", first)
        await until_heard(b, 1)
        proxy.refusing = True
        proxy.cut()
        await until(lambda: b.states and not b.connected)
        await store.command("DEL", "{prefix:test}:decisions")
        await store.command("XADD", "{prefix:test}:decisions", "*", "d", second)
        proxy.refusing = False
        await until_heard(b, 2)
    assert (b.heard, b.counts) == ([("a", confirmed(1)), ("a", confirmed(2))], {"gap": 1})


async def test_an_idle_gateway_that_is_cut_off_recovers_without_traffic(redis: RedisServer) -> None:
    """With no load and no update the writer still proves itself, so the state does not stay at lost."""
    a = FakePeer("a")
    async with proxy_to(redis.port) as proxy, carrying((mirror(proxy.url), a)):
        await until_length(redis.url, b"{prefix:test}:gauges", 2)
        proxy.cut()
        await until(lambda: len(a.states) >= 3)
    assert [up for up, _ in a.states] == [True, False, True]


async def test_a_frozen_redis_is_noticed_and_everything_arrives_after_it_thaws(redis: RedisServer) -> None:
    """Connections stay open and nothing answers: only timeouts can tell. What was written twice is heard, not lost."""
    a, b = FakePeer("a"), FakePeer("b")
    async with carrying((mirror(redis.url), a), (mirror(redis.url), b)):
        await until(lambda: a.connected and b.connected)
        redis.freeze()
        for record in range(100):
            a.publish(confirmed(record))
            await checkpoint()
        await until(lambda: not a.connected, seconds=2.5)
        redis.thaw()
        await until(lambda: a.connected and b.connected and set(b.records("a")) == set(range(100)))
    assert [up for up, _ in a.states] == [True, False, True]
    assert a.states[1][1].startswith("TimeoutError")


async def test_an_idle_gateway_notices_a_frozen_redis_too(redis: RedisServer) -> None:
    """With no traffic the loads that are said every second tell."""
    a = FakePeer("a")
    async with carrying((mirror(redis.url), a)):
        await until(lambda: a.connected)
        await until_length(redis.url, b"{prefix:test}:gauges", 2)
        redis.freeze()
        await until(lambda: not a.connected, seconds=8)
        redis.thaw()


async def test_connections_cut_in_mid_stream_lose_nothing(redis: RedisServer) -> None:
    """Both ends are cut twenty times while records flow; by origin and number, every one arrives once and in order."""
    a, b = FakePeer("a"), FakePeer("b")
    async with proxy_to(redis.port) as proxy:
        writing, reading = mirror(proxy.url), mirror(proxy.url)
        async with carrying((writing, a), (reading, b)):
            await until(lambda: a.connected and b.connected)
            for record in range(1000):
                a.publish(confirmed(record))
                if record % 50 == 25:
                    await until_heard(b, record - 24)
                    proxy.cut()
                await checkpoint()
            await until(lambda: reading.heard.get("a") == 1000)
        assert proxy.accepted >= 4 + 20
    assert b.records("a") == list(range(1000))
    assert (writing.published, b.counts["lost"], b.counts["gap"]) == ({"a": 1000}, 0, 0)


async def test_a_wrong_password_is_one_line_and_no_busy_loop() -> None:
    """Attempts back off; the reason names the error and not the password."""
    with redis_server("--requirepass", "right-one") as server:
        async with proxy_to(server.port) as proxy:
            a = FakePeer("a")
            async with carrying((mirror(proxy.url.replace("//", "//:wrong-one@")), a)):
                started = time.monotonic()
                await until(lambda: proxy.accepted >= 12)
                a.publish(confirmed(1))
                assert time.monotonic() - started > 0.2
    assert [up for up, _ in a.states] == [False]
    assert a.states[0][1].startswith("AuthenticationError: ")
    assert "wrong-one" not in a.states[0][1]


@pytest.mark.parametrize(
    ("spoil", "mend", "errors"),
    [
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), {"ReadOnlyError", "ResponseError"}),
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), {"OutOfMemoryError"}),
    ],
)
async def test_a_redis_that_refuses_writes_is_an_outage_until_it_takes_one(
    redis: RedisServer, spoil: tuple[str, ...], mend: tuple[str, ...], errors: set[str]
) -> None:
    """Reads work and connecting works, yet nothing of ours gets out: that is one line, not one per attempt."""
    a, b = FakePeer("a"), FakePeer("b")
    async with (
        connected(redis.url, 5.0) as store,
        proxy_to(redis.port) as proxy,
        carrying((mirror(proxy.url), a), (mirror(redis.url), b)),
    ):
        await until(lambda: a.connected and b.connected)
        await store.command(*spoil)
        a.publish(confirmed(1))
        await until(lambda: not a.connected and proxy.accepted >= 8)
        await store.command(*mend)
        await until(lambda: a.connected and b.heard)
    assert (
        a.states[1][1].partition(":")[0] in errors
    )  # a replica also unblocks the reader, with an error of its own
    assert [up for up, _ in a.states] == [True, False, True]


@pytest.mark.parametrize("outage", ["freeze", "kill"])
async def test_cancelling_during_an_outage_ends_at_once(redis: RedisServer, outage: str) -> None:
    """A gateway that shuts down does not wait for a Redis that is away."""
    a = FakePeer("a")
    a.own_loads = [Gauge("w1", 1.5, 3, 4000, 5000)]
    async with carrying((mirror(redis.url), a)):
        await until(lambda: a.connected)
        redis.freeze() if outage == "freeze" else redis.kill()
        await until(lambda: not a.connected)
        began = time.monotonic()
    assert time.monotonic() - began < 1.0


async def test_what_waits_for_redis_is_bounded_and_the_oldest_goes_first() -> None:
    """An outage costs memory once; what is dropped is counted and what is left arrives in order."""
    with redis_server() as server:
        server.kill()
        a, b = FakePeer("a"), FakePeer("b")
        total = MAX_PENDING + 1000
        async with carrying((mirror(server.url), a), (mirror(server.url), b)):
            await until(lambda: a.states)
            for start in range(0, total, 1000):
                a.publish(*(confirmed(record) for record in range(start, min(start + 1000, total))))
            await until(lambda: a.counts["dropped"] == 1000)
            server.restart_empty()
            await until(lambda: len(b.heard) >= MAX_PENDING)
    assert b.records("a") == list(range(1000, total))


async def test_a_redis_that_is_absent_from_the_start_is_one_line() -> None:
    """Nobody listens: many attempts, one line."""
    a = FakePeer("a")
    async with proxy_to(free_port()) as proxy, carrying((mirror(proxy.url), a)):
        await until(lambda: proxy.accepted >= 10)
    assert [(up, reason.partition(":")[0]) for up, reason in a.states] == [(False, "ConnectionError")]


async def test_what_waited_for_redis_is_as_old_as_it_is(redis: RedisServer) -> None:
    """A record held back by an outage must not arrive as a fresh one; one that came after it is younger."""
    a, b = FakePeer("a"), FakePeer("b")
    async with proxy_to(redis.port) as proxy, carrying((mirror(proxy.url), a), (mirror(redis.url), b)):
        await until(lambda: a.connected and b.connected)
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not a.connected)
        a.publish(confirmed(1))
        held = time.monotonic()
        await anyio.sleep(1.0)  # the length of the outage, not a wait for something
        a.publish(confirmed(2))
        proxy.refusing = False
        await until_heard(b, 2)
        late = time.monotonic() - held
    assert b.records("a") == [1, 2]
    assert 0.7 <= b.ages[0] <= late
    assert b.ages[1] <= b.ages[0] - 0.3
