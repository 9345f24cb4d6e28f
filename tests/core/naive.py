"""The index as its documentation says it, in the plainest words: lists and full scans, the oracle of the tests."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from prefix_middleware.core.index import PROVISIONAL_SECONDS, RecordName


@dataclass(eq=False)
class Prompt:
    """One record: of whom, in which epoch, when, and the tokens that are still its own."""

    worker: str
    epoch: float
    time: float
    tokens: int = 0
    dead: bool = False


class NaiveIndex:
    """What `PrefixIndex` must answer."""

    def __init__(self, bound: int, ttl_seconds: float) -> None:
        self.bound, self.ttl = bound, ttl_seconds
        self.epochs: dict[str, float] = {}
        self.limits: dict[str, int | None] = {}
        self.pairs: dict[tuple[bytes, str], Prompt] = {}  # (block, worker); recorded longest ago first
        self.records: list[Prompt] = []  # in the order in which they were heard of
        self.proposed: list[tuple[RecordName, Sequence[bytes], str, float, float]] = []

    def set_epoch(self, worker: str, epoch: float) -> None:
        """From now on only this epoch counts, and only what is recorded from now on."""
        if epoch != self.epochs.get(worker):
            self.epochs[worker] = epoch
            for record in self.records:
                record.dead |= record.worker == worker

    def set_capacity(self, worker: str, tokens: int | None) -> None:
        """From now on no more than this fits; None: no limit."""
        self.limits[worker] = tokens
        self._fit(worker)

    def record(
        self, hashes: Sequence[bytes], worker: str, epoch: float, now: float, tokens: Sequence[int] = ()
    ) -> Prompt:
        """Record the deepest block first; over the bound, drop the pair recorded longest ago.

        A record that arrives late makes no block older: it counts as of the freshest of its blocks.
        """
        new = Prompt(worker, epoch, now, sum(tokens[: len(hashes)]))
        if self.epochs.get(worker) != epoch:
            return new
        first = (hashes[0], worker) if hashes else None
        if first in self.pairs and self._valid(first, now):
            new.time = max(now, self.pairs[first].time)
        for at in reversed(range(len(hashes))):
            before = self.pairs.pop((hashes[at], worker), None)
            if before is not None:
                before.tokens = max(0, before.tokens - sum(tokens[at : at + 1]))
            self._forget_stale(hashes[at], new.time)
            self.pairs[hashes[at], worker] = new
        self.records.append(new)
        self._fit(worker)
        for pair in list(self.pairs)[: max(0, len(self.pairs) - self.bound)]:
            del self.pairs[pair]
        return new

    def grow(self, record: Prompt, tokens: int) -> None:
        """Count generated tokens, unless the record is gone."""
        if record in self._counted(record.worker):
            record.tokens += tokens
            self._fit(record.worker)

    def _counted(self, worker: str) -> list[Prompt]:
        """Return the worker's living records that own a block, oldest first."""
        owning = set(map(id, self.pairs.values()))
        found = [
            record
            for record in self.records
            if (record.worker, record.epoch) == (worker, self.epochs.get(worker))
            and id(record) in owning
            and not record.dead
        ]
        return sorted(found, key=lambda record: record.time)

    def _fit(self, worker: str) -> None:
        limit, counted = self.limits.get(worker), self._counted(worker)
        while limit is not None and len(counted) > 1 and sum(record.tokens for record in counted) > limit:
            counted.pop(0).dead = True

    def counted_tokens(self, worker: str) -> int:
        """Return what all of the worker's records own."""
        return sum(record.tokens for record in self._counted(worker))

    def _forget_stale(self, block: bytes, now: float) -> None:
        for pair in [pair for pair in self.pairs if pair[0] == block and not self._valid(pair, now)]:
            del self.pairs[pair]

    def _valid(self, pair: tuple[bytes, str], now: float) -> bool:
        record = self.pairs[pair]
        return record.time >= now - self.ttl and record.epoch == self.epochs.get(pair[1]) and not record.dead

    def propose(
        self, name: RecordName, hashes: Sequence[bytes], worker: str, epoch: float, now: float
    ) -> None:
        """Note a provisional record, in place of one with the same name."""
        self.withdraw(name)
        self.proposed.append((name, hashes, worker, epoch, now))

    def withdraw(self, name: RecordName) -> None:
        """Forget one provisional record."""
        self.proposed = [record for record in self.proposed if record[0] != name]

    def provisional(self, now: float) -> int:
        """Return how many provisional records are young enough."""
        return sum(now - record[4] <= PROVISIONAL_SECONDS for record in self.proposed)

    def holders(self, block: bytes, now: float) -> set[str]:
        """Return who holds the block, confirmed or provisional."""
        confirmed = {
            worker for held, worker in self.pairs if held == block and self._valid((held, worker), now)
        }
        return confirmed | {
            worker
            for _, hashes, worker, epoch, time in self.proposed
            if block in hashes and epoch == self.epochs.get(worker) and now - time <= PROVISIONAL_SECONDS
        }

    def match(self, hashes: Sequence[bytes], worker: str, now: float) -> int:
        """Count blocks from the first until one is missing."""
        held = [worker in self.holders(block, now) for block in hashes]
        return [*held, False].index(False)

    def best(self, hashes: Sequence[bytes], among: Collection[str], now: float) -> tuple[int, set[str]]:
        """Return the longest match of any of them, and all who have it."""
        matches = {worker: self.match(hashes, worker, now) for worker in among}
        most = max(matches.values(), default=0)
        return most, {worker for worker, match in matches.items() if most and match == most}
