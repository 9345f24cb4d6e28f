"""`RedisMirror` with a real Redis: warm start, what does not belong to us, what it says, what it leaves behind."""

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from prefix_middleware.core.updates import Gauge
from prefix_middleware.mirror import link
from prefix_middleware.mirror.redis import RedisMirror
from prefix_middleware.mirror.store import connected, reason_of, shown_url
from prefix_middleware.mirror.wire import VERSION, Wire
from tests.mirror.peer import FINGERPRINT, FakePeer, carrying, confirmed, until, until_heard, until_length
from tests.mirror.proxy import proxy_to
from tests.services import RedisServer, redis_server

pytestmark = pytest.mark.anyio

DECISIONS = b"{prefix:test}:decisions"
GAUGES = b"{prefix:test}:gauges"
WIRE = Wire(FINGERPRINT)


def mirror(url: str, fingerprint: bytes = FINGERPRINT, **options: bool) -> RedisMirror:
    return RedisMirror(url, "test", fingerprint, **options)


async def redis_command(server: RedisServer, *command: bytes | str | int) -> Any:
    """Send one command past the mirror."""
    async with connected(server.url, 5.0) as store:
        return await store.command(*command)


async def test_a_later_gateway_learns_earlier_decisions_but_no_earlier_loads(redis: RedisServer) -> None:
    """Decisions stay true after their author has gone; loads do not."""
    a, b, c = FakePeer("a"), FakePeer("b"), FakePeer("c")
    a.own_loads = [Gauge("w1", 1.5, 3, 4000, 5000)]
    async with carrying((mirror(redis.url), a), (mirror(redis.url), c)):
        a.publish(*(confirmed(record) for record in range(700)))
        await until(lambda: len(c.heard) == 700 and c.loads)
    async with carrying((mirror(redis.url), b)):
        await until(lambda: len(b.heard) >= 700)
    assert b.heard == [("a", confirmed(record)) for record in range(700)]
    assert b.loads == {}


async def test_age_is_the_time_since_the_entry_was_written(redis: RedisServer) -> None:
    """A late reader must not take an old record for a fresh one; the server's clock says how old it is."""
    seconds, _ = await redis_command(redis, "TIME")
    a, b = FakePeer("a"), FakePeer("b")
    packed = WIRE.pack_decisions("old", [confirmed(1)])[0]
    await redis_command(redis, "XADD", DECISIONS, f"{(int(seconds) - 600) * 1000}-0", "d", packed)
    async with carrying((mirror(redis.url), a), (mirror(redis.url), b)):
        await until(lambda: a.connected and b.ages)
        a.publish(confirmed(2))
        await until(lambda: len(b.heard) >= 2)
    assert [round(b.ages[0], -1), b.ages[1] < 1.0] == [600, True]


async def test_another_fingerprint_is_counted_and_ignored(redis: RedisServer) -> None:
    """A gateway with another key or window shares the streams, not the facts."""
    a, b, stranger = FakePeer("a"), FakePeer("b"), FakePeer("stranger")
    async with carrying(
        (mirror(redis.url), a), (mirror(redis.url), b), (mirror(redis.url, b"otherkey"), stranger)
    ):
        stranger.publish(confirmed(1))
        await until(lambda: b.counts["foreign"] >= 2)  # its loads and its record
        a.publish(confirmed(2))
        await until(lambda: b.heard)
    assert b.heard == [("a", confirmed(2))]
    assert "stranger" not in b.loads


async def test_garbage_is_counted_and_later_entries_still_apply(redis: RedisServer) -> None:
    """One damaged entry costs one entry, in either stream, also while replaying."""
    garbage = bytes([VERSION]) + b"d" + FINGERPRINT + b"\xc1\xff"
    for stream in (DECISIONS, GAUGES):
        await redis_command(redis, "XADD", stream, "*", "d", garbage)
    a, b = FakePeer("a"), FakePeer("b")
    async with carrying((mirror(redis.url), a), (mirror(redis.url), b)):
        await until(lambda: a.connected and b.connected)
        for stream in (DECISIONS, GAUGES):
            await redis_command(redis, "XADD", stream, "*", "other", "field")
        a.publish(confirmed(1))
        a.own_loads = [Gauge("w1", 1.5, 3, 4000, 5000)]
        await until(lambda: b.heard and b.loads.get("a"))
    assert b.heard == [("a", confirmed(1))]
    assert b.counts == {"undecodable": 3}  # the gauge before its start is never read


async def test_shadow_uses_streams_of_its_own(redis: RedisServer) -> None:
    """What shadow gateways decide must not steer the others."""
    a, b, shadow = FakePeer("a"), FakePeer("b"), FakePeer("shadow")
    async with carrying(
        (mirror(redis.url), a), (mirror(redis.url), b), (mirror(redis.url, shadow=True), shadow)
    ):
        shadow.publish(confirmed(1))
        await until_length(redis.url, b"{prefix:test:shadow}:decisions", 1)
        a.publish(confirmed(2))
        await until(lambda: b.heard)
    assert (b.heard, shadow.heard) == ([("a", confirmed(2))], [])


async def test_the_decisions_stream_is_trimmed_by_bytes(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cap is in bytes, whoever wrote the entries: the next write brings 24 MB of them down to the 8 MB set here."""
    cap = 8 * 1024 * 1024
    monkeypatch.setattr(link, "DECISIONS_BYTES", cap)
    a = FakePeer("a")
    entries = [WIRE.pack_decisions("b", [confirmed(n, blocks=1000)], n)[0] for n in range(3000)]
    async with connected(redis.url, 5.0) as store, carrying((mirror(redis.url), a)):
        for start in range(0, 3000, 250):
            await store.commands([("XADD", DECISIONS, "*", "d", e) for e in entries[start : start + 250]])
        await until_heard(a, 3000)
        a.publish(confirmed(1))
        with anyio.fail_after(10):
            while (used := await store.command("MEMORY", "USAGE", DECISIONS, "SAMPLES", 0)) > 1.25 * cap:
                await checkpoint()
    assert used > cap / 2


async def test_states_say_the_url_without_credentials(tmp_path: Path) -> None:
    """One line when connected, and no secret in it; over a unix socket with a password too."""
    socket = tmp_path / "redis.sock"
    with redis_server("--requirepass", "pa55word", "--unixsocket", str(socket)) as server:
        a, b = FakePeer("a"), FakePeer("b")
        tcp = f"redis://default:pa55word@127.0.0.1:{server.port}/0?decode_responses=yes&protocol=3"
        async with carrying((mirror(tcp), a), (mirror(f"unix://default:pa55word@{socket}"), b)):
            await until(lambda: a.connected and b.connected)
            a.publish(confirmed(1))
            await until(lambda: b.heard)
    assert a.states == [(True, f"redis://127.0.0.1:{server.port}/0")]
    assert b.states == [(True, f"unix://{socket}")]


async def test_a_narrow_user_on_our_keys_is_enough(redis: RedisServer) -> None:
    """Managed Redis hands out narrow users; what we need is what we document."""
    streams, snapshot = "+xadd +xread +xrange +xrevrange +time", "+getrange +set +get +append +pexpire +del"
    rules = f"on >pa55word resetchannels ~{{prefix:* -@all {streams} {snapshot} +rename +watch +multi +exec"
    await redis_command(redis, "ACL", "SETUSER", "gw", *rules.split(" "))
    a, b = FakePeer("a"), FakePeer("b")
    url = redis.url.replace("//", "//gw:pa55word@")
    async with carrying((mirror(url), a), (mirror(url), b)):
        await until(lambda: a.states and b.states)
        a.publish(confirmed(1))
        await until_heard(b, 1)
    assert (a.states, b.states) == ([(True, redis.url)], [(True, redis.url)])


async def test_one_process_holds_two_connections_and_leaves_none(redis: RedisServer) -> None:
    """A writer and a reader, however much is carried; a cancelled run closes both at once."""
    async with proxy_to(redis.port) as proxy:
        a, b = FakePeer("a"), FakePeer("b")
        async with carrying((mirror(proxy.url), a), (mirror(redis.url), b)):
            await until(lambda: a.connected)
            for record in range(100):
                a.publish(confirmed(record))
                await until_heard(b, record + 1)
            assert (proxy.accepted, len(proxy.open)) == (2, 2)
        await until(lambda: not proxy.open, seconds=1.0)


async def test_a_mirror_opens_nothing_before_it_runs() -> None:
    """A gateway may be built in a master process and run in its forks."""
    tasks = asyncio.all_tasks()
    mirror("redis://127.0.0.1:1/0")
    assert asyncio.all_tasks() == tasks


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@cache:6380/2?password=secret", "redis://cache:6380/2"),
        ("rediss://:secret@cache", "rediss://cache:6379/0"),
        ("unix://user:secret@/run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("redis://:sec#ret@cache:6380", "redis://(unreadable)"),
    ],
)
async def test_the_shown_url_is_rebuilt_from_harmless_parts(url: str, shown: str) -> None:
    """No user, no password, no query, also where the URL cannot be read."""
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://bob:s%40cret@cache", "ValueError: *** and *** said no"),
        ("redis://:sec#ret@cache:6380", "ValueError: redis_url cannot be read"),
    ],
)
async def test_a_reason_names_no_credentials(url: str, reason: str) -> None:
    """Servers and parsers like to quote what they refused."""
    assert reason_of(ValueError("bob and s@cret\nsaid no"), url) == reason
