"""The fleet's snapshot: what a later gateway knows from it, who may write it, and what is not believed."""

import time
from collections.abc import Iterator

import anyio
import pytest

from prefix_middleware.core.snapshot import BYTE_ORDER, Snapshot
from prefix_middleware.mirror.link import Keys
from prefix_middleware.mirror.redis import RedisMirror
from prefix_middleware.mirror.snapshots import Packed, Snapshots
from prefix_middleware.mirror.store import Store, connected
from prefix_middleware.mirror.wire import Refused, Wire
from tests.mirror.fleet import Gateway, running
from tests.mirror.peer import FINGERPRINT, FakePeer, carrying, confirmed, until
from tests.services import RedisServer

pytestmark = pytest.mark.anyio

KEYS = Keys("test", shadow=False)
NUMBER = (1).to_bytes(8, BYTE_ORDER)
ZERO, ONE = bytes(4), (1).to_bytes(4, BYTE_ORDER)


def small(worker: str = "w1") -> Snapshot:
    """Return a snapshot of one block."""
    block, zero, one = memoryview(NUMBER), memoryview(ZERO), memoryview(ONE)
    return Snapshot([(worker, 1.0)], [(worker, 1.0, 5.0)], block, zero, zero, one, one, one, one)


def snapshots(fingerprint: bytes = FINGERPRINT) -> Snapshots:
    return Snapshots(Wire(fingerprint), KEYS)


def packed(taken_ms: int, **options: object) -> Packed:
    fields: dict[str, object] = {"stream_id": "0-0", "byte_order": BYTE_ORDER, "sequences": {"a": 4}}
    return Packed(**{"taken_ms": taken_ms, "snapshot": small()} | fields | options)  # type: ignore[arg-type] # spoilt on purpose


def fast(url: str) -> RedisMirror:
    return RedisMirror(url, "test", FINGERPRINT, snapshot_seconds=0.2)


async def exists(store: Store, key: bytes) -> bool:
    return bool(await store.command("EXISTS", key))


async def until_written(server: RedisServer) -> None:
    async with connected(server.url, 5.0) as store:
        with anyio.fail_after(10):
            while not await exists(store, KEYS.snapshot):  # noqa: ASYNC110 - it changes in another process
                await anyio.sleep(0.01)


async def test_a_later_gateway_knows_everything_from_the_snapshot_alone(redis: RedisServer) -> None:
    """Even when the stream has been trimmed away: blocks, workers, epochs and what each worker was given."""
    a = Gateway(redis.url, snapshot_seconds=0.2)
    for number in range(300):
        a.serve(number)
    async with running(a), connected(redis.url, 5.0) as store:
        await until(lambda: a.mirror.heard.get(a.origin) == 300)
        await until(lambda: a.count("snapshot") >= 2)
        await store.command("DEL", KEYS.decisions)
        b = Gateway(redis.url)
        async with running(b):
            await until(lambda: b.count("restored"))
    now = time.monotonic()
    assert [b.best(number) for number in range(300)] == [a.best(number) for number in range(300)]
    assert (len(b.router.index), b.router.index.held(now)) == (len(a.router.index), a.router.index.held(now))
    fills = [
        [round(g.router.fleet.load(s, now).fill, 2) for s in g.router.fleet.states.values()] for g in (a, b)
    ]
    assert fills[0] == fills[1]
    assert b.mirror.heard == {a.origin: 300}


async def test_what_follows_the_snapshot_is_read_and_what_it_includes_is_not(redis: RedisServer) -> None:
    """A warm start is the snapshot and the tail behind it."""
    a, b = FakePeer("a"), FakePeer("b")
    a.known = small()
    async with carrying((fast(redis.url), a)):
        a.publish(confirmed(1), confirmed(2))
        await until(lambda: a.counts["snapshot"] >= 2)
        written = a.counts["snapshot"]
        await until(lambda: a.counts["snapshot"] > written)
    other = FakePeer("c")
    async with carrying((RedisMirror(redis.url, "test", FINGERPRINT), other)):
        other.publish(confirmed(3))
        await until(lambda: other.connected)
        async with carrying((RedisMirror(redis.url, "test", FINGERPRINT), b)):
            await until(lambda: b.heard)
    restored, age = b.restored[0]
    assert (b.heard, restored, 0 <= age < 60) == ([("c", confirmed(3))], small(), True)
    assert b.counts == {"restored": 1}


async def test_a_fleet_writes_one_snapshot_at_a_time(redis: RedisServer) -> None:
    """Whoever does not get the lease leaves it; whoever finds a fresh one, too."""
    peers = [FakePeer(name) for name in "abc"]
    for peer in peers:
        peer.known = small()
    async with carrying(
        *((RedisMirror(redis.url, "test", FINGERPRINT, snapshot_seconds=1.0), p) for p in peers)
    ):
        await until(lambda: sum(peer.counts["snapshot"] for peer in peers) >= 1)
        began = time.monotonic()
        await until(lambda: sum(peer.counts["snapshot"] for peer in peers) >= 2)
        waited = time.monotonic() - began
    assert (waited >= 0.7, sum(p.counts["snapshot_failed"] for p in peers)) == (True, 0)


class SlowPeer(FakePeer):
    """Takes as long over a snapshot as it is told to."""

    going = True

    def snapshot(self) -> Iterator[Snapshot | None]:
        while self.going:
            yield None
        yield small()


async def test_a_writer_that_has_lost_the_lease_does_not_write(redis: RedisServer) -> None:
    """It was too slow and somebody else's turn has come: an older snapshot must not replace a newer one."""
    a = SlowPeer("a")
    async with carrying((fast(redis.url), a)), connected(redis.url, 5.0) as store:
        with anyio.fail_after(10):
            while not await exists(store, KEYS.lease):  # noqa: ASYNC110 - it changes in another process
                await anyio.sleep(0.01)
        await store.command("SET", KEYS.lease, "another")
        a.going = False
        await until(lambda: a.counts["snapshot_late"])
        keys = sorted(await store.command("KEYS", "*snapshot*"))
    assert (keys, a.counts["snapshot"]) == ([KEYS.lease], 0)


async def test_shadow_gateways_have_a_snapshot_of_their_own(redis: RedisServer) -> None:
    """What shadow gateways know must not steer the others."""
    a, b = FakePeer("a"), FakePeer("b")
    a.known = small()
    shadow = RedisMirror(redis.url, "test", FINGERPRINT, shadow=True, snapshot_seconds=0.2)
    async with carrying((shadow, a)):
        await until(lambda: a.counts["snapshot"])
    async with carrying((fast(redis.url), b)):
        await until(lambda: b.connected)
    assert b.restored == []


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (bytes(snapshots(b"otherkey").pack(packed(1))), {"foreign": 1}),
        (bytes(snapshots().pack(packed(1)))[:-1], {"undecodable": 1}),
        (b"short", {"undecodable": 1}),
    ],
)
async def test_a_snapshot_that_is_not_for_us_is_counted_and_the_stream_is_read_from_its_start(
    redis: RedisServer, data: bytes, count: dict[str, int]
) -> None:
    """Another key or a broken value costs the warm start, nothing else."""
    a, b = FakePeer("a"), FakePeer("b")
    async with connected(redis.url, 5.0) as store:
        await store.command("SET", KEYS.snapshot, data)
    async with carrying((RedisMirror(redis.url, "test", FINGERPRINT), a)):
        a.publish(confirmed(1))
        await until(lambda: a.connected)
    async with carrying((RedisMirror(redis.url, "test", FINGERPRINT), b)):
        await until(lambda: b.heard)
    assert (b.heard, b.restored, b.counts) == ([("a", confirmed(1))], [], count)


async def test_after_redis_has_come_back_empty_a_snapshot_is_written_soon(redis: RedisServer) -> None:
    """Later gateways must not wait a minute for what the fleet still knows."""
    a = Gateway(redis.url)
    async with running(a):
        a.serve(1)
        await until(lambda: a.mirror.heard.get(a.origin) == 1)
        redis.kill()
        await until(lambda: not a.connected)
        redis.restart_empty()
        await until_written(redis)
        b = Gateway(redis.url)
        async with running(b):
            await until(lambda: b.best(1) == a.best(1))
    assert b.best(1)[0] == 8


@pytest.mark.parametrize(
    ("spoilt", "refused"),
    [
        ({"stream_id": "+"}, Refused.UNDECODABLE),
        ({"stream_id": "1-2\n"}, Refused.UNDECODABLE),
        ({"sequences": {"a": -1}}, Refused.UNDECODABLE),
        ({"byte_order": "middle"}, Refused.FOREIGN),
    ],
)
async def test_an_unsound_snapshot_is_refused(spoilt: dict[str, object], refused: Refused) -> None:
    """Whoever can write to Redis must not be able to hand us a command or a figure that was not made for us."""
    assert snapshots().unpack(bytes(snapshots().pack(packed(1, **spoilt)))) == refused
