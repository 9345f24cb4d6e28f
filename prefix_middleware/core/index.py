"""3. Block hash -> the workers that hold it.

1. A record covers a prompt from block 0, and its ancestors are always as fresh: eviction and expiry take tails before heads (as
   vLLM does), and whoever validly holds a block holds every block before it.
2. Bounded on insert (holdings.py). Provisional records live in an overlay with bounds of its own.
3. A stamp (worker, epoch, time) is shared by the blocks of one record; an epoch that is no longer current is worth nothing.
"""

import math
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from typing import Final

from msgspec import Struct

from prefix_middleware.core.capacity import Capacity, Stamp
from prefix_middleware.core.holdings import Holdings
from prefix_middleware.core.restored import Restored, Table

PROVISIONAL_RECORDS: Final = 4096
PROVISIONAL_SECONDS: Final = 120.0
MAX_HOLDERS: Final = (
    8  # looked at for one match: the lightest of these is nearly as light as the lightest of a thousand
)

RecordName = tuple[str, int]
"""A record's origin and its number there."""


Holder = tuple[str, float]
"""A worker in one epoch."""


class _Provisional(Struct, frozen=True):
    hashes: Sequence[bytes]
    holder: Holder
    time: float


class PrefixIndex:
    """Remembers which worker holds which prefix, for at most `bound` (block, worker) pairs and `ttl_seconds`."""

    def __init__(self, bound: int, ttl_seconds: float) -> None:
        self._bound = bound
        self._ttl = ttl_seconds
        self._epochs: dict[str, float] = {}
        self._latest: dict[str, float] = {}  # of all epochs that were a worker's current one
        self._capacity: dict[str, Capacity] = {}  # of the workers whose KV cache is known
        self._held = Holdings(bound)
        self.restored = Restored()
        self._records: OrderedDict[RecordName, _Provisional] = OrderedDict()  # oldest first
        # the holder of the one record that has a block, or how many records each holder has
        self._overlay: dict[bytes, Holder | dict[Holder, int]] = {}

    def __len__(self) -> int:
        """Return the number of confirmed (block, worker) pairs, stale ones included; never above the bound."""
        return self._held.pairs + self.restored.pairs

    @property
    def provisional(self) -> int:
        """Number of provisional records."""
        return len(self._records)

    def held(self, now: float) -> dict[str, int]:
        """Return how many blocks, prompts' end marks included, each worker holds; walks the whole index."""
        oldest = now - self._ttl
        held = Counter(
            stamp.worker
            for shard in self._held.shards()
            for block in shard
            for stamp in self._held.stamps(block)
            if self._valid(stamp, oldest)
        )
        for table in self.restored.tables:
            for stamp, blocks in table.counts():
                if self.counts_restored(stamp, now):
                    held[stamp.worker] += blocks
        return held

    def set_epoch(self, worker: str, epoch: float) -> None:
        """Count only what is recorded from now on, under this epoch of the worker; O(1) unless an older one returns."""
        if epoch == self._epochs.get(worker):
            return
        latest = self._latest.get(worker, -math.inf)
        if epoch <= latest:  # what was recorded in it then has holes by now
            for stamp in self._held.records(worker):
                stamp.epoch = math.nan
        self._epochs[worker], self._latest[worker] = epoch, max(epoch, latest)
        if worker in self._capacity:
            self._capacity[worker] = Capacity(self._capacity[worker].limit_tokens)

    def set_capacity(self, worker: str, tokens: int | None) -> None:
        """Count no more than fits into the worker's KV cache from now on; None: unknown, the rule is off."""
        if tokens is None:
            self._capacity.pop(worker, None)
        elif worker in self._capacity:
            self._capacity[worker].resize(tokens)
        else:
            epoch = self._epochs.get(worker)
            known = [stamp for stamp in self._held.records(worker) if stamp.epoch == epoch]
            self._capacity[worker] = Capacity(tokens, known)

    def record(
        self, hashes: Sequence[bytes], worker: str, epoch: float, now: float, tokens: Sequence[int] = ()
    ) -> Stamp:
        """Note that the worker holds these blocks, first block first, as of `now`; `tokens` says how long each is.

        In an epoch that is not the worker's current one it holds nothing.
        """
        stamp = Stamp(worker, epoch, now)
        if self._epochs.get(worker) != epoch:
            return stamp
        oldest = now - self._ttl
        known = self._held.of(hashes[0], worker) if hashes else None
        if known is not None and known.time > now and self._valid(known, oldest):
            stamp.time = known.time  # a late record of another gateway makes no block older
            oldest = stamp.time - self._ttl
        taken = self._held.record(hashes, tokens, stamp, lambda other: self._valid(other, oldest))
        if worker in self._capacity:
            self._capacity[worker].add(stamp, taken)
        if self.restored.pairs:
            self.restored.expire(oldest)
        while len(self) > self._bound:
            self._evict()
        return stamp

    def _evict(self) -> None:
        oldest = self._held.oldest()
        if self.restored.evict(math.inf if oldest is None else oldest.time):
            return
        stamp = self._held.evict()
        capacity = self._capacity.get(stamp.worker)
        if not stamp.owned and capacity is not None and stamp.epoch == self._epochs.get(stamp.worker):
            capacity.forget(stamp)

    def adopt(self, table: Table) -> None:
        """Count what a snapshot says as held from now on."""
        self.restored.adopt(table)
        while len(self) > self._bound:
            self._evict()

    def live_blocks(self) -> Iterator[list[bytes]]:
        """Yield every block recorded here, some thousands at a time, in no order."""
        return self._held.shards()

    def pairs_of(self, blocks: Sequence[bytes], now: float) -> list[tuple[bytes, Stamp]]:
        """Return each of these blocks that was recorded here with every stamp that counts."""
        oldest = now - self._ttl
        return [(b, s) for b in blocks for s in self._held.stamps(b) if self._valid(s, oldest)]

    def counts_restored(self, stamp: Stamp, now: float) -> bool:
        """Tell whether a stamp that a table found is worth anything."""
        capacity = self._capacity.get(stamp.worker)
        fits = capacity is None or stamp.tokens + capacity.tokens <= capacity.limit_tokens
        return fits and self._valid(stamp, now - self._ttl)

    def _held_restored(self, block: bytes, now: float) -> list[str]:
        found = self.restored.find(block)
        return [s.worker for s in found if self.counts_restored(s, now)] if found else []

    def grow(self, stamp: Stamp, tokens: int) -> None:
        """Note that the worker holds so many generated tokens behind a recorded prompt."""
        if not stamp.owned or self._epochs.get(stamp.worker) != stamp.epoch:
            return
        if stamp.worker in self._capacity:
            self._capacity[stamp.worker].grow(stamp, tokens)
        else:
            stamp.tokens += tokens

    def propose(
        self, name: RecordName, hashes: Sequence[bytes], worker: str, epoch: float, now: float
    ) -> None:
        """Note a choice whose answer has not started; `match` reads it until it is withdrawn or expires."""
        self.withdraw(name)
        self._expire(now)
        while len(self._records) >= PROVISIONAL_RECORDS:
            self.withdraw(next(iter(self._records)))
        holder = (worker, epoch)
        self._records[name] = _Provisional(hashes, holder, now)
        overlay = self._overlay
        if overlay.keys().isdisjoint(hashes):  # mostly so, and much cheaper than block by block
            overlay.update(dict.fromkeys(hashes, holder))
            return
        for block in hashes:
            entry = overlay.setdefault(block, holder)
            if entry is not holder:
                counts = entry if isinstance(entry, dict) else {entry: 1}
                counts[holder] = counts.get(holder, 0) + 1
                overlay[block] = counts

    def withdraw(self, name: RecordName) -> None:
        """Forget a provisional record, and only it; unknown names are ignored."""
        record = self._records.pop(name, None)
        if record is None:
            return
        overlay, holder = self._overlay, record.holder
        for block in record.hashes:
            entry = overlay[block]
            if isinstance(entry, dict) and (len(entry) > 1 or entry[holder] > 1):
                entry[holder] -= 1
                if not entry[holder]:
                    del entry[holder]
            else:
                del overlay[block]

    def _expire(self, now: float) -> None:
        while self._records:
            name, record = next(iter(self._records.items()))
            if now - record.time <= PROVISIONAL_SECONDS:
                return
            self.withdraw(name)

    def holders(self, block: bytes, now: float) -> list[str]:
        """Return the workers that hold the block, in no order; each also holds every block before it."""
        oldest = now - self._ttl
        found = [stamp.worker for stamp in self._held.stamps(block) if self._valid(stamp, oldest)]
        if self.restored.pairs:
            found += [w for w in self._held_restored(block, now) if w not in found]
        overlay = self._overlay.get(block)
        if overlay is not None:
            for worker, epoch in overlay if isinstance(overlay, dict) else (overlay,):
                if worker not in found and self._epochs.get(worker) == epoch:
                    found.append(worker)
        return found

    def holds(self, block: bytes, worker: str, now: float) -> bool:
        """Tell whether this worker holds the block."""
        stamp = self._held.of(block, worker)
        if stamp is not None and self._valid(stamp, now - self._ttl):
            return True
        if self.restored.pairs and worker in self._held_restored(block, now):
            return True
        overlay = self._overlay.get(block)
        if overlay is None:
            return False
        holder = (worker, self._epochs.get(worker))
        return holder in overlay if isinstance(overlay, dict) else holder == overlay

    def match(self, hashes: Sequence[bytes], worker: str, now: float) -> int:
        """Return how many blocks, from the first and without a gap, the worker holds."""
        if not hashes or not self.holds(hashes[0], worker, now):
            return 0
        return bisect_left(hashes, True, key=lambda block: not self.holds(block, worker, now))

    def best(
        self, hashes: Sequence[bytes], among: Collection[str], now: float, random: float = 0.0
    ) -> tuple[int, list[str]]:
        """Return the longest match that any of `among` has, in blocks, and who has it: all, or some of very many."""
        self._expire(now)

        def missing(block: bytes) -> bool:
            return not self._held_by_any(block, among, now)

        if not hashes or missing(hashes[0]):
            return 0, []
        blocks = bisect_left(hashes, True, 1, key=missing)
        return blocks, self._some_holders(hashes[blocks - 1], among, now, random)

    def _held_by_any(self, block: bytes, among: Collection[str], now: float) -> bool:
        oldest = now - self._ttl
        for stamp in self._held.stamps(block):
            if stamp.worker in among and self._valid(stamp, oldest):
                return True  # one is enough: a common system prompt is held by the whole fleet
        if not self.restored.pairs and block not in self._overlay:
            return False
        return any(worker in among for worker in self.holders(block, now))

    def _some_holders(self, block: bytes, among: Collection[str], now: float, random: float) -> list[str]:
        stamps = self._held.stamps(block)
        if len(stamps) > MAX_HOLDERS:
            first, oldest = int(random * len(stamps)), now - self._ttl
            run = islice(chain(stamps, stamps), first, first + MAX_HOLDERS)
            found = [s.worker for s in run if s.worker in among and self._valid(s, oldest)]
            if found:
                return found
        return [worker for worker in self.holders(block, now) if worker in among]

    def _valid(self, stamp: Stamp, oldest: float) -> bool:
        return stamp.time >= oldest and self._epochs.get(stamp.worker) == stamp.epoch
