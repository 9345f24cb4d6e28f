"""Forged entries and snapshots: one of them costs little memory and time, and what it does passes."""

import time
import tracemalloc

import msgspec
import pytest

from prefix_middleware.core import loads
from prefix_middleware.core.restored import Restored, Table
from prefix_middleware.core.snapshot import BYTE_ORDER, Snapshot
from prefix_middleware.core.updates import Confirmed, Gauge, Notice, Update, Withdrawn
from prefix_middleware.mirror.link import Keys
from prefix_middleware.mirror.store import connected
from prefix_middleware.mirror.wire import Refused, Wire
from tests.core.bodies import hashed
from tests.core.routing import NOW, held, make_router, serve
from tests.mirror.fleet import Gateway, running
from tests.mirror.peer import FINGERPRINT, until
from tests.services import RedisServer

WIRE = Wire(FINGERPRINT)
FAR = 1e300
END_OF_TIME = f"{2**64 - 1}-{2**64 - 1}"


@pytest.mark.parametrize(
    "update", [Notice("w1", 1.0, FAR), Confirmed(1, "w1", FAR, b"", bytes(8), 1, 0, 1)], ids=repr
)
def test_one_forged_epoch_does_not_outlive_the_workers_own_word_between_gateways(update: Update) -> None:
    """Two gateways that poll in turn, and tell each other of every request, agree on the true start time for good."""
    a, b = make_router("w1"), make_router("w1")
    prompt = hashed("x" * 3000)
    serve(a, prompt)
    for gateway in (a, b):
        gateway.merge("evil", [update], 0.0, NOW)
    for polled in (a, b) * 4:
        polled.set_epoch("w1", 1.0, NOW)
        for teller, told, name in ((a, b, "a"), (b, a, "b")):
            serve(teller, prompt)
            told.merge(name, teller.drain(NOW), 0.0, NOW)
    assert [(g.fleet.states["w1"].epoch, g.set_epoch("w1", 1.0, NOW)) for g in (a, b)] == [(1.0, False)] * 2
    assert [held(g, prompt) for g in (a, b)] == [{"w1": len(prompt.hashes)}] * 2


def test_a_restart_behind_a_denied_epoch_is_believed_again() -> None:
    """What a worker has denied once may come true: its own word counts at once, and then that of others."""
    router = make_router("w1")
    router.merge("evil", [Notice("w1", 1.0, 50.0)], 0.0, NOW)
    assert [router.set_epoch("w1", 1.0, NOW) for _ in range(2)] == [False, True]
    later = Confirmed(1, "w1", 60.0, b"", bytes(8), 1, 0, 1)
    router.merge("other", [later], 0.0, NOW)
    assert (router.fleet.states["w1"].epoch, router.set_epoch("w1", 60.0, NOW)) == (1.0, True)
    router.merge("other", [Confirmed(2, "w1", 70.0, b"", bytes(8), 1, 0, 1)], 0.0, NOW)
    assert router.fleet.states["w1"].epoch == 70.0


@pytest.mark.parametrize("kind", ["decisions", "gauges"])
def test_an_entry_with_too_many_parts_is_refused_before_they_are_decoded(kind: str) -> None:
    """Four bytes in Redis must not become fifty here: a list that is too long costs its own bytes."""
    count = 400_000
    part = msgspec.msgpack.encode(Withdrawn(1) if kind == "decisions" else Gauge("w", 1.0, 1, 1, 1))
    head = (
        WIRE.pack_decisions("o", [])[0][:-1] if kind == "decisions" else WIRE.pack_gauges("o", [], None)[:-2]
    )
    entry = (
        head + b"\xdd" + count.to_bytes(4, "big") + part * count + (b"" if kind == "decisions" else b"\xc0")
    )
    tracemalloc.start()
    try:
        read = WIRE.unpack_decisions(entry) if kind == "decisions" else WIRE.unpack_gauges(entry)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (read, peak < 1_000_000) == (Refused.UNDECODABLE, True)


def test_what_somebody_says_of_loads_is_kept_of_known_workers_and_of_some_origins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixty thousand gauges, or origins without end, are one gauge a worker and so many origins."""
    monkeypatch.setattr(loads, "MAX_ORIGINS", 16)
    router = make_router()
    known, unknown = (
        [Gauge(f"{w}{n % m}", 1.0, n, n, n) for n in range(30_000)] for w, m in (("w", 2), ("x", 30_000))
    )
    for n in range(20):
        router.merge_gauges(f"evil{n}", known + unknown if n == 19 else known[1:2], NOW)
    kept = router.fleet._gauges
    assert (list(kept), len(kept["evil19"][1])) == ([f"evil{n}" for n in range(4, 20)], 1)
    assert router.fleet.states["w1"].others_in_flight == 15 + 29_999


def column(numbers: list[int], size: int = 4) -> memoryview:
    return memoryview(b"".join(n.to_bytes(size, BYTE_ORDER) for n in numbers))


def snapshot(blocks: list[int], counts: list[int], given: float = 5.0) -> Snapshot:
    """Return a snapshot with these blocks, all of the first stamp, and so many blocks a stamp."""
    figures = column([1] * len(counts))
    first, holders = column([0] * len(blocks)), column([0] * len(counts))
    rest = (holders, figures, figures, figures, column(counts))
    return Snapshot([("w1", 1.0)], [("w1", 1.0, given)], column(blocks, 8), first, *rest)


@pytest.mark.parametrize(("blocks", "counts"), [([1], [0, 1]), ([1, 2], [0]), ([1], [2]), ([], [0] * 9)])
def test_stamps_without_blocks_are_no_snapshot(blocks: list[int], counts: list[int]) -> None:
    """Millions of them would be walked at once when the index makes room."""
    with pytest.raises(ValueError, match="stamp"):
        Table(snapshot(blocks, counts), 0.0)


def test_a_block_that_a_snapshot_names_without_end_costs_a_bounded_look() -> None:
    """No fleet has so many workers: of the same hash 200,000 times, a thousand are read."""
    restored = Restored()
    restored.adopt(Table(snapshot([7] * 200_000, [200_000]), 0.0))
    assert len(restored.find((7).to_bytes(8, BYTE_ORDER))) == 1024


def test_tokens_given_that_a_snapshot_made_up_are_forgotten_within_half_an_hour() -> None:
    """A worker must not count as full for days because somebody has said so."""
    router = make_router()
    for _ in router.restore(snapshot([7], [1], 1e300), 0.0, NOW):
        pass
    fills = [router.fleet.load(router.fleet.states["w1"], NOW + t).fill for t in (0, 1800)]
    assert (fills[0], fills[1] < 0.2) == (1.0, True)


@pytest.mark.anyio
async def test_a_stream_that_begins_anew_below_where_we_read_is_noticed(redis: RedisServer) -> None:
    """Deleting a key that somebody has ruined is enough: the connections may stay."""
    decisions = Keys("test", shadow=False).decisions
    a, b = Gateway(redis.url), Gateway(redis.url)
    async with running(a, b), connected(redis.url, 5.0) as store:
        await until(lambda: a.connected and b.connected)
        await store.command("XADD", decisions, END_OF_TIME, "d", b"x")
        await until(lambda: b.count("undecodable") and a.count("undecodable"))
        await store.command("DEL", decisions)
        since = time.monotonic()
        a.serve(1)
        await until(lambda: b.best(1) == a.best(1), 60)
        assert time.monotonic() - since < 60
