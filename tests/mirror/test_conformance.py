"""What every mirror must do; each test runs with `LocalMirror`, and with `RedisMirror` on a real Redis and a real Valkey."""

import time
from collections.abc import Callable, Iterator

import pytest

from prefix_middleware.core.updates import (
    Confirmed,
    Gauge,
    Notice,
    Provisional,
    Suspect,
    Tally,
    Update,
    Withdrawn,
)
from prefix_middleware.mirror import Mirror
from prefix_middleware.mirror.local import LocalMirror
from prefix_middleware.mirror.pace import REFRESH_SECONDS
from prefix_middleware.mirror.redis import RedisMirror
from tests.mirror.peer import FINGERPRINT, FakePeer, carrying, confirmed, until, until_heard
from tests.mirror.valkey import valkey_server
from tests.services import RedisServer

pytestmark = pytest.mark.anyio

QUIET_SECONDS = REFRESH_SECONDS * 0.9  # a wait as long as this is one of a peer with nothing new


@pytest.fixture
def valkey() -> Iterator[RedisServer]:
    with valkey_server() as server:
        yield server


@pytest.fixture(params=["local", "redis", "valkey"])
def mirror(request: pytest.FixtureRequest) -> Callable[[], Mirror]:
    """Return what gives each peer its mirror: one shared hub, or one Redis mirror each."""
    if request.param == "local":
        hub = LocalMirror()
        return lambda: hub
    server: RedisServer = request.getfixturevalue(request.param)
    return lambda: RedisMirror(server.url, "test", FINGERPRINT)


EVERY_UPDATE: list[Update] = [
    Provisional(7, "w1", 1.5, b"\x11" * 16, b"\x22" * 8, 300, 100, 200),
    Confirmed(7, "w1", 1.5, b"\x11" * 16, b"\x22" * 8, 300, 100, 200),
    Withdrawn(8),
    Notice("w2", 1.5, 2.5),
    Suspect("w3", 1.5, 4.0),
]


async def test_every_kind_of_update_arrives_whole_and_in_order(mirror: Callable[[], Mirror]) -> None:
    """What one publishes the other merges: same values, same order, same origin."""
    a, b = FakePeer("a"), FakePeer("b")
    async with carrying((mirror(), a), (mirror(), b)):
        a.publish(*EVERY_UPDATE)
        await until(lambda: len(b.heard) >= 5)
    assert b.heard == [("a", update) for update in EVERY_UPDATE]


async def test_many_updates_in_many_batches_keep_their_order(mirror: Callable[[], Mirror]) -> None:
    """A withdrawal must never overtake its record, whatever the batching."""
    a, b = FakePeer("a"), FakePeer("b")
    updates = [confirmed(i) for i in range(1500)]
    async with carrying((mirror(), a), (mirror(), b)):
        for start in range(0, 1500, 300):
            a.publish(*updates[start : start + 300])
            await until_heard(b, start + 1)
        await until(lambda: len(b.heard) >= 1500)
    assert b.heard == [("a", update) for update in updates]


async def test_an_own_echo_is_skipped_except_notices(mirror: Callable[[], Mirror]) -> None:
    """The author of a notice learns from the mirror who was first; of its records it knows already."""
    a, b = FakePeer("a"), FakePeer("b")
    async with carrying((mirror(), a), (mirror(), b)):
        a.publish(*EVERY_UPDATE)
        b.publish(confirmed(1))
        await until(lambda: len(a.heard) >= 2 and len(b.heard) >= 5)
    assert sorted(a.heard, key=lambda heard: heard[0]) == [("a", Notice("w2", 1.5, 2.5)), ("b", confirmed(1))]


async def test_all_peers_hear_competing_notices_in_one_order(mirror: Callable[[], Mirror]) -> None:
    """First in the mirror wins, so everybody, authors included, must agree on which was first."""
    peers = [FakePeer(name) for name in "abc"]
    async with carrying(*((mirror(), peer) for peer in peers)):
        for number in range(50):
            for peer in peers:
                peer.publish(Notice("w1", 1.0, number + ord(peer.origin) / 1000))
        await until(lambda: all(len(peer.heard) >= 150 for peer in peers))
    assert peers[1].heard == peers[0].heard
    assert peers[2].heard == peers[0].heard


async def test_gauges_arrive_as_absolute_figures_of_their_origin(mirror: Callable[[], Mirror]) -> None:
    """The last loads replace the ones before; nobody hears its own."""
    a, b = FakePeer("a"), FakePeer("b")
    first, last = [Gauge("w1", 1.5, 3, 4000, 5000)], [Gauge("w1", 1.5, 1, 0, 900), Gauge("w2", 2.5, 1, 7, 8)]
    async with carrying((mirror(), a), (mirror(), b)):
        a.own_loads = first
        await until(lambda: b.loads.get("a") == first)
        a.own_loads = last
        await until(lambda: b.loads.get("a") == last)
    assert "a" not in a.loads
    assert b.loads == {"a": last}


async def test_loads_are_repeated_while_they_last(mirror: Callable[[], Mirror]) -> None:
    """Receivers drop a load after 3 s, so one that stays is heard again within about a second."""
    a, b = FakePeer("a"), FakePeer("b")
    a.own_loads = [Gauge("w1", 1.5, 3, 4000, 5000)]
    async with carrying((mirror(), a), (mirror(), b)):
        await until(lambda: b.loads.get("a") == a.own_loads)
        heard = b.loads_heard
        await until(lambda: b.loads_heard >= heard + 2, seconds=2.9)


async def test_an_idle_peer_is_seen_with_what_it_has_done(mirror: Callable[[], Mirror]) -> None:
    """Whoever comes to look later learns of a gateway without load what it has decided, injected and seen echoed."""
    a, b = FakePeer("a"), FakePeer("b")
    async with carrying((mirror(), a)):
        await until(lambda: a.waited and a.waited[-1] > QUIET_SECONDS)
        async with carrying((mirror(), b)):
            await until(lambda: b.tallies == {"a": Tally(0, 0, 0)})
            a.own_tally = Tally(900, 800, 70)
            await until(lambda: b.tallies == {"a": Tally(900, 800, 70)})
    assert b.loads == {"a": []}


async def test_a_peer_alone_is_drained(mirror: Callable[[], Mirror]) -> None:
    """Without anybody else the outbox must not grow and own notices still come back."""
    a = FakePeer("a")
    async with carrying((mirror(), a)):
        a.publish(confirmed(1), Notice("w1", 1.0, 2.0))
        await until(lambda: a.heard)
        assert a.drain() == []
    assert a.heard == [("a", Notice("w1", 1.0, 2.0))]


async def test_a_peer_that_has_left_hears_nothing_more(mirror: Callable[[], Mirror]) -> None:
    """A gateway that shut down is not kept alive by the others' mirror."""
    a, b, c = FakePeer("a"), FakePeer("b"), FakePeer("c")
    async with carrying((mirror(), a), (mirror(), c)):
        async with carrying((mirror(), b)):
            a.publish(confirmed(1))
            await until_heard(b, 1)
        a.publish(confirmed(2))
        await until_heard(c, 2)
    assert b.heard == [("a", confirmed(1))]


async def test_a_peer_with_nothing_to_say_is_hardly_asked(mirror: Callable[[], Mirror]) -> None:
    """An idle gateway must cost next to nothing: about one look a second, not twenty."""
    a = FakePeer("a")
    async with carrying((mirror(), a)):
        await until(lambda: a.waited and a.waited[-1] > QUIET_SECONDS)
        looks = len(a.waited)
        await until(lambda: len(a.waited) >= looks + 2)
        waits = a.waited[looks:]
    assert [QUIET_SECONDS < wait <= REFRESH_SECONDS for wait in waits] == [True] * len(waits)


async def test_a_change_of_loads_ends_a_long_wait(mirror: Callable[[], Mirror]) -> None:
    """Loads are shared every 100 ms when they change, however quiet it was before."""
    a, b = FakePeer("a"), FakePeer("b")
    async with carrying((mirror(), a), (mirror(), b)):
        await until(lambda: a.waited and a.waited[-1] > QUIET_SECONDS)
        a.own_loads = [Gauge("w1", 1.5, 3, 4000, 5000)]
        changed = time.monotonic()
        await until(lambda: b.loads.get("a") == a.own_loads)
        took = time.monotonic() - changed
    assert took < REFRESH_SECONDS / 2


async def test_published_updates_are_fresh_to_the_others(mirror: Callable[[], Mirror]) -> None:
    """Nothing is held back while the mirror is well."""
    a, b = FakePeer("a"), FakePeer("b")
    async with carrying((mirror(), a), (mirror(), b)):
        for record in range(20):
            a.publish(confirmed(record))
            await until_heard(b, record + 1)
    assert (b.records("a"), max(b.ages) < 1.0, b.counts) == (list(range(20)), True, {})
