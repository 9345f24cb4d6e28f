"""The index as its documentation says it, in the plainest words: lists and full scans, the oracle of the tests."""

from collections.abc import Collection, Sequence

from prefix_middleware.core.index import PROVISIONAL_SECONDS, RecordName


class NaiveIndex:
    """What `PrefixIndex` must answer."""

    def __init__(self, bound: int, ttl_seconds: float) -> None:
        self.bound, self.ttl = bound, ttl_seconds
        self.epochs: dict[str, float] = {}
        # (block, worker) -> epoch, time; recorded longest ago first
        self.pairs: dict[tuple[bytes, str], tuple[float, float]] = {}
        self.proposed: list[tuple[RecordName, Sequence[bytes], str, float, float]] = []

    def set_epoch(self, worker: str, epoch: float) -> None:
        """From now on only this epoch counts."""
        self.epochs[worker] = epoch

    def record(self, hashes: Sequence[bytes], worker: str, epoch: float, now: float) -> None:
        """Record the deepest block first; over the bound, drop the pair recorded longest ago.

        A record that arrives late makes no block older: it counts as of the freshest of its blocks.
        """
        first = (hashes[0], worker) if hashes else None
        if first in self.pairs and self._valid(first, now):
            now = max(now, self.pairs[first][1])
        for block in reversed(hashes):
            self.pairs.pop((block, worker), None)
            self._forget_stale(block, now)
            self.pairs[block, worker] = epoch, now
        for pair in list(self.pairs)[: max(0, len(self.pairs) - self.bound)]:
            del self.pairs[pair]

    def _forget_stale(self, block: bytes, now: float) -> None:
        for pair in [pair for pair in self.pairs if pair[0] == block and not self._valid(pair, now)]:
            del self.pairs[pair]

    def _valid(self, pair: tuple[bytes, str], now: float) -> bool:
        epoch, time = self.pairs[pair]
        return time >= now - self.ttl and epoch == self.epochs.get(pair[1])

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
