"""Packing an index and looking into the packed form: the same answers, bounds, ages and epochs."""

import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_middleware.core import snapshot as snapshot_module
from prefix_middleware.core.knowledge import Knowledge
from prefix_middleware.core.snapshot import Snapshot
from prefix_middleware.core.updates import Confirmed
from prefix_middleware.core.warm import restore, snapshot_of
from prefix_middleware.core.workers import Worker

LOCK = threading.Lock()


def known(index_blocks: int = 1000, ttl_seconds: float = 100.0, kv_tokens: int | None = None) -> Knowledge:
    """Return what a process with two workers knows at first; its blocks are of 10 tokens."""
    workers = [Worker("w1", "http://w1"), Worker("w2", "http://w2")]
    return Knowledge(
        workers,
        index_blocks=index_blocks,
        ttl_seconds=ttl_seconds,
        max_in_flight=256,
        kv_tokens=kv_tokens,
        block_tokens=[10] * 1000,
    )


def block(number: int) -> bytes:
    return (number * 2654435761 % 2**64).to_bytes(8, "big")


def record(numbers: list[int], worker: str = "w1", epoch: float = 5.0) -> Confirmed:
    hashes = b"".join(map(block, numbers))
    return Confirmed(1, worker, epoch, hashes, block(10**6 + numbers[-1]), 1000, 0, 1000)


def packed(source: Knowledge, now: float) -> Snapshot:
    """Return the snapshot, through bytes."""
    [*_, last] = snapshot_of(source, LOCK, now)
    assert last is not None
    return msgspec.msgpack.decode(msgspec.msgpack.encode(last), type=Snapshot)


def take_over(target: Knowledge, snapshot: Snapshot, age: float, now: float) -> Knowledge:
    for _ in restore(target, LOCK, snapshot, age, now):
        pass
    return target


def holders(of: Knowledge, numbers: range, now: float) -> list[list[str]]:
    return [sorted(of.index.holders(block(number), now)) for number in numbers]


RECORDS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 12), st.sampled_from(["w1", "w2"]), st.integers(0, 150)),
    max_size=30,
)


@given(RECORDS)
def test_a_restored_index_answers_as_the_one_it_comes_from(records: list[tuple[int, int, str, int]]) -> None:
    """For every block and both workers, now and as records grow too old, whatever the two clocks show."""
    source = known()
    for first, count, worker, age in records:
        source.merge("o", record(list(range(first, first + count)), worker), float(age), 1000.0)
    target = take_over(known(), packed(source, 1000.0), 2.0, 52.0)
    for later in (0.0, 30.0, 90.0, 120.0):
        expected = holders(source, range(33), 1002.0 + later)
        assert holders(target, range(33), 52.0 + later) == expected
    assert target.index.held(52.0) == source.index.held(1002.0)
    again = take_over(known(), packed(target, 52.0), 0.0, 7.0)
    assert holders(again, range(33), 7.0) == holders(source, range(33), 1002.0)


def test_epochs_come_with_the_snapshot_and_an_older_one_is_worth_nothing() -> None:
    """A worker that has restarted since holds nothing of it; one that was not known yet is."""
    source = known()
    source.merge("o", record([1, 2], "w1", 5.0), 0.0, 0.0)
    source.merge("o", record([1, 2], "w2", 6.0), 0.0, 0.0)
    target = known()
    target.observe_epoch(target.fleet.states["w1"], 7.0, 0.0)
    take_over(target, packed(source, 0.0), 0.0, 0.0)
    epochs = {state.id: state.epoch for state in target.fleet.states.values()}
    assert (holders(target, range(1, 3), 0.0), epochs) == ([["w2"], ["w2"]], {"w1": 7.0, "w2": 6.0})


def test_what_a_worker_was_given_is_the_higher_of_both_figures() -> None:
    """Reading a snapshot twice must not make a worker look fuller."""
    source, target = known(), known()
    source.merge("o", record([1], "w1"), 0.0, 0.0)
    snapshot = packed(source, 0.0)
    for _ in range(2):
        take_over(target, snapshot, 0.0, 0.0)
    assert [state.given_tokens for state in target.fleet.states.values()] == [1000.0, 0.0]


def test_restored_records_are_evicted_oldest_first_and_before_younger_live_ones() -> None:
    """The bound holds for both together."""
    source, target = known(), known(index_blocks=30)
    for first in (0, 10, 20):
        source.merge("o", record(list(range(first, first + 9))), float(30 - first), 100.0)
    take_over(target, packed(source, 100.0), 0.0, 100.0)
    full = len(target.index)
    target.merge("o", record(list(range(40, 49))), 0.0, 101.0)
    kept = [target.index.holders(block(n), 101.0) for n in (0, 10, 20, 40)]
    assert (full, len(target.index), kept) == (30, 30, [[], ["w1"], ["w1"], ["w1"]])


def test_an_older_live_record_is_evicted_before_a_restored_one() -> None:
    """Age decides, not where a record comes from."""
    source, target = known(), known(index_blocks=20)
    source.merge("o", record(list(range(10, 19))), 0.0, 100.0)
    target.merge("o", record(list(range(9))), 50.0, 100.0)
    take_over(target, packed(source, 100.0), 0.0, 100.0)
    target.merge("o", record([40]), 0.0, 101.0)
    kept = [target.index.holders(block(n), 101.0) for n in (8, 10, 40)]
    assert (len(target.index), kept) == (20, [[], ["w1"], ["w1"]])


def test_a_full_kv_cache_counts_restored_records_too() -> None:
    """Of 300 tokens restored, the newest that fit are believed, and new records push the oldest out."""
    source, target = known(kv_tokens=10_000), known(kv_tokens=250)
    for first in (0, 10, 20):
        source.merge("o", record(list(range(first, first + 10))), float(30 - first), 100.0)
    take_over(target, packed(source, 100.0), 0.0, 100.0)
    before = [target.index.holders(block(n), 100.0) for n in (0, 10, 20)]
    target.merge("o", record(list(range(40, 50))), 0.0, 101.0)
    after = [target.index.holders(block(n), 101.0) for n in (0, 10, 20)]
    assert (before, after) == ([[], ["w1"], ["w1"]], [[], [], ["w1"]])


def test_after_a_gap_only_what_was_missing_is_added() -> None:
    """A process that knows nearly everything must not count it twice and evict for it."""
    source, target = known(), known()
    source.merge("o", record(list(range(50))), 1.0, 100.0)
    source.merge("o", record(list(range(60, 69))), 1.0, 100.0)
    target.merge("o", record(list(range(50))), 1.0, 100.0)
    take_over(target, packed(source, 100.0), 0.0, 100.0)
    assert (len(target.index), target.index.restored.pairs) == (61, 10)
    assert target.index.holders(block(60), 100.0) == ["w1"]


def test_a_snapshot_has_a_bound_and_keeps_the_freshest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the index, it stays some megabytes."""
    monkeypatch.setattr(snapshot_module, "MAX_PAIRS", 12)
    source = known()
    for first in (0, 10):
        source.merge("o", record(list(range(first, first + 9))), float(30 - first), 100.0)
    target = take_over(known(), packed(source, 100.0), 0.0, 100.0)
    assert [target.index.holders(block(n), 100.0) for n in (0, 10)] == [[], ["w1"]]


def test_records_that_change_while_it_is_packed_do_no_harm() -> None:
    """Packing takes many turns of the event loop; requests go on between them."""
    source = known(index_blocks=5000)
    for first in range(0, 4000, 10):
        source.merge("o", record(list(range(first, first + 9))), 0.0, 100.0)
    found: list[Snapshot] = []
    for step, snapshot in enumerate(snapshot_of(source, LOCK, 100.0)):
        source.merge("o", record(list(range(10_000 + 10 * step, 10_009 + 10 * step))), 0.0, 100.0)
        found += [] if snapshot is None else [snapshot]
    [last] = found
    target = take_over(known(index_blocks=5000), last, 0.0, 100.0)
    survivors = [n for n in range(0, 4000, 10) if source.index.holders(block(n), 100.0)]
    assert [n for n in survivors if not target.index.holders(block(n), 100.0)] == []


NUMBER, FOUR = bytes(8), bytes(4)


@pytest.mark.parametrize(
    "columns",
    [
        (NUMBER[:7], FOUR, FOUR, FOUR, FOUR, FOUR, FOUR),
        (NUMBER, FOUR * 2, FOUR, FOUR, FOUR, FOUR, FOUR),
        (NUMBER, FOUR, FOUR, FOUR * 2, FOUR, FOUR, FOUR),
        (NUMBER, FOUR, b"", b"", b"", b"", b""),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_nothing_changed(columns: tuple[bytes, ...]) -> None:
    """Whoever can write to Redis must not be able to break a lookup."""
    target = known()
    with pytest.raises(ValueError, match=r"column|stamp"):
        take_over(target, Snapshot([("w1", 0.0)], [], *(memoryview(column) for column in columns)), 0.0, 0.0)
    assert len(target.index) == 0


@pytest.mark.parametrize("worker", [("w1", float("inf"), 1.0), ("w1", 5.0, float("nan")), ("w1", 5.0, -1.0)])
def test_figures_that_are_none_are_refused(worker: tuple[str, float, float]) -> None:
    """An endless epoch would outlast every restart."""
    target = known()
    with pytest.raises(ValueError, match="figures"):
        take_over(target, Snapshot([], [worker], *[memoryview(b"")] * 7), 0.0, 0.0)
    assert target.fleet.states["w1"].epoch == 0.0


def test_numbers_that_point_nowhere_are_misses() -> None:
    """A block of a stamp that is not there, and a stamp of a holder that is not there."""
    far, one = ((n).to_bytes(4, "little") for n in (7, 1))
    for columns in ((NUMBER, far, FOUR, FOUR, FOUR, FOUR, one), (NUMBER, FOUR, far, FOUR, FOUR, FOUR, one)):
        target = take_over(
            known(), Snapshot([("w1", 0.0)], [], *(memoryview(column) for column in columns)), 0.0, 0.0
        )
        assert target.index.holders(NUMBER, 0.0) == []
