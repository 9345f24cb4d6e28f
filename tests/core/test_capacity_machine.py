"""KV capacities that become known, change and are forgotten at any time, against the brute-force oracle."""

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prefix_middleware.core.capacity import Stamp
from prefix_middleware.core.index import PrefixIndex
from tests.core.naive import NaiveIndex, Prompt

WORKERS = ("w1", "w2")
TTL = 100.0
LEAVES = [b"aaa", b"aab", b"abb", b"bbb", b"bba", b"c"]
LENGTHS = ((10, 10, 10), (10, 0, 10), (7, 30, 1), (), (20,))
"""Tokens of the blocks of one record; they are estimates, so the same block may come with another length."""
LIMITS = (None, 0, 10, 25, 40, 80, 10_000)


def chain(leaf: bytes) -> list[bytes]:
    """Return the blocks of a prompt and the mark of its end."""
    return [*(leaf[:length] for length in range(1, len(leaf) + 1)), b"end of " + leaf]


class CapacityMachine(RuleBasedStateMachine):
    """Drives both, and compares who holds what, and how many tokens each counts, after every step."""

    @initialize(bound=st.sampled_from([6, 1000]))
    def begin(self, bound: int) -> None:
        self.index, self.naive, self.exact = PrefixIndex(bound, TTL), NaiveIndex(bound, TTL), bound > 100
        self.now, self.epoch = 1000.0, dict.fromkeys(WORKERS, 5.0)
        self.records: list[tuple[Stamp, Prompt]] = []
        for worker in WORKERS:
            self._set_epoch(worker, 5.0)

    def _set_epoch(self, worker: str, epoch: float) -> None:
        self.epoch[worker] = epoch
        self.index.set_epoch(worker, epoch)
        self.naive.set_epoch(worker, epoch)

    @rule(worker=st.sampled_from(WORKERS), tokens=st.sampled_from(LIMITS))
    def set_capacity(self, worker: str, tokens: int | None) -> None:
        self.index.set_capacity(worker, tokens)
        self.naive.set_capacity(worker, tokens)

    @rule(leaf=st.sampled_from(LEAVES), worker=st.sampled_from(WORKERS), tokens=st.sampled_from(LENGTHS),
          age=st.sampled_from([0.0, 0.0, 1.0, 30.0]), behind=st.sampled_from([0.0, 0.0, 0.0, 1.0]))  # fmt: skip
    def record(self, leaf: bytes, worker: str, tokens: tuple[int, ...], age: float, behind: float) -> None:
        fact = chain(leaf), worker, self.epoch[worker] - behind, self.now - age, tokens
        self.records.append((self.index.record(*fact), self.naive.record(*fact)))

    @rule(data=st.data(), tokens=st.integers(0, 40))
    def grow(self, data: st.DataObject, tokens: int) -> None:
        if self.records:
            stamp, record = data.draw(st.sampled_from(self.records[-3:]))
            self.index.grow(stamp, tokens)
            self.naive.grow(record, tokens)

    @rule(worker=st.sampled_from(WORKERS), by=st.sampled_from([1.0, 1.0, -1.0, 0.0]))
    def restart(self, worker: str, by: float) -> None:
        self._set_epoch(worker, self.epoch[worker] + by)

    @rule(seconds=st.sampled_from([0.5, 20.0, 90.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def what_is_held_is_what_the_oracle_holds(self) -> None:
        for leaf in LEAVES:
            held = [set(self.index.holders(block, self.now)) for block in chain(leaf)]
            assert held == [self.naive.holders(block, self.now) for block in chain(leaf)]
            assert all(deeper <= block for block, deeper in pairwise(held[:-1]))

    @invariant()
    def tokens_are_counted_exactly(self) -> None:
        """Each worker's sum is that of its living records, in every order of events, and never below zero."""
        for worker, capacity in self.index._capacity.items():
            assert capacity.tokens == sum(stamp.tokens for stamp in capacity._order)
            assert all(stamp.tokens >= 0 for stamp in capacity._order)
            owning = [stamp for stamp in capacity._order if stamp.owned]
            assert capacity.tokens <= capacity.limit_tokens or len(owning) <= 1
            if self.exact and self.now < 1000.0 + TTL:
                assert capacity.tokens == self.naive.counted_tokens(worker)


TestCapacityMachine = CapacityMachine.TestCase
TestCapacityMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
