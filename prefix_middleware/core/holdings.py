"""3. Block hash -> stamps, in least-recently-recorded order of (block, worker) pairs.

1. A record takes over its worker's earlier pairs; what it does not take keeps its older place. Within one record the deepest
   block goes first, so a worker that has a block has every block before it.
2. Many small dicts instead of one: a dict of 200,000 is rebuilt again and again, and the allocator keeps its old tables.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from prefix_middleware.core.capacity import Stamp

Entry = Stamp | dict[str, Stamp]
"""The one stamp of a block, or one for each of its workers."""

_PAIRS_PER_SHARD: Final = 2500  # a dict grows to three times its use: below 8,192, and so it stays
_COMPACT_AT: Final = 16


class Holdings:
    """Who holds which block, for at most `bound` pairs."""

    def __init__(self, bound: int) -> None:
        self._shards: list[dict[bytes, Entry]] = [{} for _ in range(max(1, round(bound / _PAIRS_PER_SHARD)))]
        self._count = len(self._shards)
        self._order: OrderedDict[Stamp, None] = OrderedDict()  # oldest record first
        self.pairs = 0

    def of(self, block: bytes, worker: str) -> Stamp | None:
        """Return this worker's stamp of a block."""
        entry = self._shards[hash(block) % self._count].get(block)
        if isinstance(entry, dict):
            return entry.get(worker)
        return entry if entry is not None and entry.worker == worker else None

    def stamps(self, block: bytes) -> Collection[Stamp]:
        """Return the stamps of a block, in no order."""
        entry = self._shards[hash(block) % self._count].get(block)
        if entry is None:
            return ()
        return entry.values() if isinstance(entry, dict) else (entry,)

    def record(
        self, hashes: Sequence[bytes], tokens: Sequence[int], stamp: Stamp, counts: Callable[[Stamp], bool]
    ) -> int:
        """Give the blocks and their tokens to the stamp; return how many of these its worker's earlier stamps had.

        Others' stamps that no longer count make room where they are met.
        """
        shards, count, worker = self._shards, self._count, stamp.worker
        stamp.blocks = list(dict.fromkeys(hashes))
        stamp.owned = len(stamp.blocks)
        stamp.tokens = sum(tokens[: stamp.owned])
        losses: list[tuple[Stamp, int, int]] = []  # who has lost which blocks: mostly one, a run of them
        loser, first = None, 0
        for at, block in enumerate(stamp.blocks):
            shard = shards[hash(block) % count]
            entry = shard.get(block)
            if entry is not None and entry is loser:
                shard[block] = stamp
                continue
            if loser is not None:
                losses.append((loser, first, at))
                loser = None
            if entry is None:
                shard[block] = stamp
                self.pairs += 1
            elif isinstance(entry, Stamp) and entry.worker == worker:
                shard[block] = stamp
                loser, first = entry, at
            else:
                shard[block], lost = self._shared(entry, stamp, counts)
                losses += [(other, at, at + 1) for other in lost]
        if loser is not None:
            losses.append((loser, first, stamp.owned))
        if stamp.owned:
            self._order[stamp] = None
        return sum(self._lose(loser, tokens[start:end], end - start, stamp) for loser, start, end in losses)

    def _lose(self, loser: Stamp, tokens: Sequence[int], blocks: int, winner: Stamp) -> int:
        """Count blocks out; return how many tokens of the same worker and epoch went with them."""
        loser.owned -= blocks
        taken = 0
        if loser.worker == winner.worker:
            # the length of a block is an estimate that may have changed; who has no block left has no tokens
            taken = min(sum(tokens), loser.tokens) if loser.owned else loser.tokens
            loser.tokens -= taken
        self._tidy(loser)
        return taken if loser.epoch == winner.epoch else 0

    def _shared(
        self, entry: Entry, stamp: Stamp, counts: Callable[[Stamp], bool]
    ) -> tuple[Entry, list[Stamp]]:
        """Return the entry with one more worker, and the stamps that have lost the block to it or count no more."""
        held = entry if isinstance(entry, dict) else {entry.worker: entry}
        lost = [other for other in held.values() if other.worker == stamp.worker or not counts(other)]
        for other in lost:
            del held[other.worker]
        held[stamp.worker] = stamp
        self.pairs += 1 - len(lost)
        return held if len(held) > 1 else stamp, lost

    def _tidy(self, stamp: Stamp) -> None:
        """Drop a record that owns nothing any more, and the list of one that owns less than half of it."""
        if not stamp.owned:
            self._order.pop(stamp, None)
            stamp.blocks = []
        elif 2 * stamp.owned < len(stamp.blocks) > _COMPACT_AT:
            stamp.blocks = [block for block in stamp.blocks if self.of(block, stamp.worker) is stamp]

    def oldest(self) -> Stamp | None:
        """Return the record whose pairs go next."""
        return next(iter(self._order), None)

    def evict(self) -> Stamp:
        """Let the pair go that was recorded longest ago; return whose it was."""
        stamp = next(iter(self._order))
        while stamp.blocks:
            block = stamp.blocks.pop()
            if self.of(block, stamp.worker) is stamp:
                self._remove(block, stamp)
                break
        if not stamp.owned or not stamp.blocks:
            del self._order[stamp]
        return stamp

    def records(self, worker: str) -> Iterator[Stamp]:
        """Yield this worker's stamps that own a block; walks all records."""
        return (stamp for stamp in self._order if stamp.worker == worker)

    def _remove(self, block: bytes, stamp: Stamp) -> None:
        shard = self._shards[hash(block) % self._count]
        entry = shard[block]
        if isinstance(entry, dict) and len(entry) > 1:
            del entry[stamp.worker]
        else:
            del shard[block]
        stamp.owned -= 1
        self.pairs -= 1

    def shards(self) -> Iterator[list[bytes]]:
        """Yield all blocks, some at a time."""
        for shard in self._shards:
            yield list(shard)
