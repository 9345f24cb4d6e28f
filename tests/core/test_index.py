"""The index against the brute-force oracle, under any sequence of records, proposals, restarts and time."""

import random
from collections.abc import Sized
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefix_middleware.core.index import PROVISIONAL_RECORDS, PROVISIONAL_SECONDS, PrefixIndex
from tests.core.naive import NaiveIndex

WORKERS = ("w1", "w2", "w3")
BOUND, TTL = 14, 100.0
ROOTS = [bytes(f"{first}{second}", "ascii") for first in "ab" for second in "ab"]
LEAVES = [root + bytes(f"{third}{fourth}{fifth}", "ascii") for root in ROOTS for third in "ab" for fourth in "ab"
          for fifth in "a"]  # fmt: skip


def chain(leaf: bytes) -> list[bytes]:
    """Return the blocks of a prompt: each names all that is before it, as real hashes do."""
    return [leaf[:length] for length in range(1, len(leaf) + 1)]


def sizes(index: PrefixIndex) -> dict[str, int]:
    """Return the length of every container that the index owns."""
    return {name: len(value) for name, value in vars(index).items() if isinstance(value, Sized)}


class IndexMachine(RuleBasedStateMachine):
    """Drives both, and compares every answer after every step."""

    @initialize(bound=st.sampled_from([1, 5, BOUND, 1000]))
    def begin(self, bound: int) -> None:
        self.index, self.naive = PrefixIndex(bound, TTL), NaiveIndex(bound, TTL)
        self.now, self.epoch, self.bound = 1000.0, dict.fromkeys(WORKERS, 0.0), bound
        for worker in WORKERS:
            self._set_epoch(worker, 1.0)

    def _set_epoch(self, worker: str, epoch: float) -> None:
        self.epoch[worker] = epoch
        self.index.set_epoch(worker, epoch)
        self.naive.set_epoch(worker, epoch)

    @rule(leaf=st.sampled_from(LEAVES), length=st.integers(1, 5), worker=st.sampled_from(WORKERS),
          age=st.sampled_from([0.0, 0.0, 0.0, 3.0, 50.0, 150.0]))  # fmt: skip
    def record(self, leaf: bytes, length: int, worker: str, age: float) -> None:
        fact = chain(leaf)[:length], worker, self.epoch[worker], self.now - age
        self.index.record(*fact)
        self.naive.record(*fact)

    @rule(leaf=st.sampled_from(LEAVES), worker=st.sampled_from(WORKERS), number=st.integers(1, 6))
    def propose(self, leaf: bytes, worker: str, number: int) -> None:
        fact = ("o", number), chain(leaf), worker, self.epoch[worker], self.now
        self.index.propose(*fact)
        self.naive.propose(*fact)

    @rule(number=st.integers(1, 7))
    def withdraw(self, number: int) -> None:
        self.index.withdraw(("o", number))
        self.naive.withdraw(("o", number))

    @rule(worker=st.sampled_from(WORKERS))
    def restart(self, worker: str) -> None:
        self._set_epoch(worker, self.epoch[worker] + 1.0)

    @rule(seconds=st.sampled_from([0.5, 5.0, 60.0, 99.0, 121.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def answers_are_the_oracles(self) -> None:
        for leaf in LEAVES:
            hashes = chain(leaf)
            count, who = self.index.best(hashes, WORKERS, self.now)
            assert (count, set(who)) == self.naive.best(hashes, WORKERS, self.now)
            assert len(who) == len(set(who))
            found = {worker: self.index.match(hashes, worker, self.now) for worker in WORKERS}
            assert found == {worker: self.naive.match(hashes, worker, self.now) for worker in WORKERS}
            some = WORKERS[:2]
            assert self.index.best(hashes, some, self.now)[0] == max(found[worker] for worker in some)

    @invariant()
    def who_holds_a_block_holds_all_before_it(self) -> None:
        for leaf in LEAVES:
            held = [set(self.index.holders(block, self.now)) for block in chain(leaf)]
            assert held == [self.naive.holders(block, self.now) for block in chain(leaf)]
            assert all(deeper <= block for block, deeper in pairwise(held))
            one = [{w for w in WORKERS if self.index.holds(block, w, self.now)} for block in chain(leaf)]
            assert one == held

    @invariant()
    def the_bound_holds(self) -> None:
        assert len(self.index) == len(self.naive.pairs) <= self.bound
        assert self.index.provisional == self.naive.provisional(self.now)

    def teardown(self) -> None:
        for number in range(8):
            self.index.withdraw(("o", number))
        assert self.index.provisional == 0
        self.index.record([], "w1", self.epoch["w1"], self.now)
        assert sum(sizes(self.index).values()) <= self.bound + 2 * len(WORKERS)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def ready_index(bound: int = 1000) -> PrefixIndex:
    index = PrefixIndex(bound, TTL)
    for worker in WORKERS:
        index.set_epoch(worker, 1.0)
    return index


def test_a_block_held_at_another_place_does_not_match() -> None:
    """Match is a run from block 0: w1 holds A, w2 holds B then C; of B then A only B matches, on w2."""
    index = ready_index()
    index.record([b"A"], "w1", 1.0, 0.0)
    index.record([b"B", b"BC"], "w2", 1.0, 0.0)
    assert index.best([b"B", b"BA"], WORKERS, 0.0) == (1, ["w2"])


def test_the_tail_of_a_prompt_is_evicted_before_its_head() -> None:
    """As the engine does: over the bound the deepest blocks of the oldest prompt go first."""
    index = ready_index(bound=6)
    index.record(chain(b"abab"), "w1", 1.0, 0.0)
    index.record(chain(b"bbbb"), "w1", 1.0, 1.0)
    assert (index.match(chain(b"abab"), "w1", 1.0), index.match(chain(b"bbbb"), "w1", 1.0)) == (2, 4)


def test_a_prompt_longer_than_the_bound_keeps_its_head() -> None:
    """The bound is enforced on insert, also against one record."""
    index = ready_index(bound=3)
    index.record(chain(b"ababa"), "w1", 1.0, 0.0)
    assert (len(index), index.match(chain(b"ababa"), "w1", 0.0)) == (3, 3)


def test_a_provisional_record_neither_ages_nor_evicts() -> None:
    """Floods of requests that never start push nothing out: the overlay has bounds of its own."""
    index = ready_index(bound=5)
    index.record(chain(b"abab"), "w1", 1.0, 0.0)
    for number in range(PROVISIONAL_RECORDS + 100):
        index.propose(("o", number), [b"x%d" % number], "w2", 1.0, 0.0)
    assert (index.match(chain(b"abab"), "w1", 0.0), index.provisional) == (4, PROVISIONAL_RECORDS)
    assert [index.match([b"x%d" % number], "w2", 0.0) for number in (99, 100)] == [0, 1]


def test_a_provisional_record_lives_120_seconds() -> None:
    """What was never confirmed nor withdrawn, as of a gateway that died, is forgotten."""
    index = ready_index()
    index.propose(("o", 1), [b"a"], "w1", 1.0, 0.0)
    ages = (PROVISIONAL_SECONDS, PROVISIONAL_SECONDS + 0.1)
    found = [index.best([b"a"], WORKERS, now) for now in ages]
    assert (found, index.provisional) == ([(1, ["w1"]), (0, [])], 0)


def test_a_withdrawal_removes_only_its_record() -> None:
    """Two requests of one prompt on one worker: the second still holds it when the first fails."""
    index = ready_index()
    for name in (("o", 1), ("o", 2), ("other", 1)):
        index.propose(name, [b"a", b"ab"], "w1", 1.0, 0.0)
    matches = []
    for name in (("o", 1), ("o", 1), ("other", 1), ("o", 3), ("o", 2)):
        index.withdraw(name)
        matches.append(index.match([b"a", b"ab"], "w1", 0.0))
    assert (matches, sum(sizes(index).values())) == ([2, 2, 2, 2, 0], 2 * len(WORKERS))


def test_a_restart_ends_every_match_of_the_worker_at_once() -> None:
    """Confirmed and provisional alike; the other workers keep theirs."""
    index = ready_index()
    for worker in ("w1", "w2"):
        index.record(chain(b"ab"), worker, 1.0, 0.0)
    index.propose(("o", 1), chain(b"bb"), "w1", 1.0, 0.0)
    index.set_epoch("w1", 2.0)
    found = [index.best(chain(leaf), WORKERS, 0.0) for leaf in (b"ab", b"bb")]
    assert found == [(2, ["w2"]), (0, [])]


def test_a_late_older_record_does_not_make_a_block_older() -> None:
    """A mirrored record from before is no news; what is known to be fresher stays so."""
    index = ready_index()
    index.record([b"a"], "w1", 1.0, 50.0)
    index.record([b"a"], "w1", 1.0, 10.0)
    assert [index.match([b"a"], "w1", now) for now in (50.0 + TTL, 50.1 + TTL)] == [1, 0]


def test_a_late_record_of_the_new_epoch_replaces_a_fresher_one_of_the_old() -> None:
    """What a dead process held is worth nothing, however fresh: the new one's record counts."""
    index = ready_index()
    index.record([b"a"], "w1", 1.0, 50.0)
    index.set_epoch("w1", 2.0)
    index.record([b"a"], "w1", 2.0, 40.0)
    assert index.match([b"a"], "w1", 50.0) == 1


def test_a_proposal_clears_away_what_has_expired() -> None:
    """A gateway that only routes and never looks keeps nothing too long either."""
    index = ready_index()
    for number, now in enumerate((0.0, 60.0, PROVISIONAL_SECONDS + 1.0)):
        index.propose(("o", number), [b"%d" % number], "w1", 1.0, now)
    assert index.provisional == 2


def test_an_unknown_worker_holds_nothing() -> None:
    """Without an epoch of its own nothing recorded for a worker counts."""
    index = ready_index()
    index.record([b"a"], "stranger", 1.0, 0.0)
    assert (index.match([b"a"], "stranger", 0.0), index.holders(b"a", 0.0)) == (0, [])


def test_an_empty_prompt_matches_nothing() -> None:
    """A prompt below one block has no hashes; that is a miss, not an error."""
    index = ready_index()
    assert (index.match([], "w1", 0.0), index.best([], WORKERS, 0.0)) == (0, (0, []))


def test_a_hundred_thousand_records_keep_every_size_bounded() -> None:
    """Nothing inside grows with the traffic: records, proposals, restarts and all."""
    rng, index, epoch = random.Random(7), ready_index(bound=2000), 1.0
    for number in range(100_000):
        prompt, worker = rng.randbytes(3), rng.choice(WORKERS)
        blocks = [prompt[:1], prompt[:2], prompt]
        index.propose(("o", number), blocks, worker, epoch, number / 10)
        if rng.random() < 0.7:
            index.withdraw(("o", number))
            index.record(blocks, worker, epoch, number / 10)
        if number % 20_000 == 0:
            epoch += 1.0
            for name in WORKERS:
                index.set_epoch(name, epoch)
    grown = sizes(index)
    assert len(index) == 2000
    assert max(grown.values()) <= 3 * PROVISIONAL_RECORDS
    assert sum(grown.values()) <= 2000 + 4 * PROVISIONAL_RECORDS + 2 * len(WORKERS)
