"""3. The index as columns of bytes, for a gateway that starts later: packed in short steps, read as it is (restored.py).

1. Blocks are sorted, so that a reader finds one by bisection; stamps are in order of time, so that it evicts by counting.
2. A snapshot holds at most MAX_PAIRS (block, worker) pairs, the freshest.
"""

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Final, Literal

from msgspec import Struct

from prefix_middleware.core.capacity import Stamp
from prefix_middleware.core.updates import HASH_BYTES

MAX_PAIRS: Final = 650_000
"""(block, worker) pairs in one snapshot: about 8 MB."""
STEP_PAIRS: Final = 256
"""Pairs handled in one step, some tenths of a millisecond."""

_LITTLE: Final = memoryview(b"\x01" + bytes(7)).cast("Q")[0] == 1
BYTE_ORDER: Final[Literal["little", "big"]] = "little" if _LITTLE else "big"
"""Of this machine's columns; another one's are foreign."""

NUMBER_BYTES: Final = 4
"""Length of a figure in a column other than `blocks`."""
_NUMBER_BITS: Final = 8 * NUMBER_BYTES
MAX_NUMBER: Final = 2**_NUMBER_BITS - 1
_BUCKET_SHIFT: Final = 8 * HASH_BYTES - 12  # 4,096 buckets: each is sorted in one short call
_RUN: Final = 512


class Snapshot(Struct, frozen=True, array_like=True):
    """What one gateway knows, at one moment; numbers in columns have the machine's byte order."""

    holders: list[tuple[str, float]]  # worker and epoch, named by position
    workers: list[tuple[str, float, float]]  # worker, its current epoch, tokens given to it lately
    blocks: memoryview  # block hashes in order, HASH_BYTES each
    stamps: memoryview  # of each block: the stamp's position
    holder_of: memoryview  # of each stamp, oldest first, from here on
    ages: memoryview  # milliseconds
    tokens: memoryview  # owned by the stamp
    newer_tokens: memoryview  # owned by the stamp and the newer ones of its holder
    counts: memoryview  # blocks of the stamp


def number_of(block: bytes) -> int:
    """Return the block hash as columns hold it."""
    return int.from_bytes(block, BYTE_ORDER)


class Packer:
    """Makes a snapshot of pairs that are added in any order; each step is short."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by identity; `_stamps` keeps them alive
        self._stamps: list[Stamp] = []
        self._counts: list[int] = []
        self._buckets: list[list[int]] = [[] for _ in range(2 ** (8 * HASH_BYTES - _BUCKET_SHIFT))]

    def add(self, pairs: Iterable[tuple[bytes, Stamp]]) -> None:
        """Add pairs of a block hash and a stamp."""
        buckets, counts, order = self._buckets, self._counts, BYTE_ORDER
        last: Stamp | None = None
        number = 0
        for block, stamp in pairs:
            if stamp is not last:  # the blocks of one record mostly come together
                number, last = self._number(stamp), stamp
            counts[number] += 1
            value = int.from_bytes(block, order)
            buckets[value >> _BUCKET_SHIFT].append(value << _NUMBER_BITS | number)

    def _number(self, stamp: Stamp) -> int:
        number = self._numbers.setdefault(id(stamp), len(self._stamps))
        if number == len(self._stamps):
            self._stamps.append(stamp)
            self._counts.append(0)
        return number

    def pack(self, workers: list[tuple[str, float, float]], now: float) -> Iterator[Snapshot | None]:
        """Yield None after each step, then the snapshot."""
        runs: list[list[int]] = []
        for start in range(0, len(self._stamps), _RUN):
            runs.append(sorted(range(start, min(start + _RUN, len(self._stamps))), key=self._time))
            yield None
        order: list[int] = []
        merged = merge(*runs, key=self._time)
        while run := list(islice(merged, STEP_PAIRS)):
            order += run
            yield None
        kept, pairs = len(order), 0
        while kept and pairs + self._counts[order[kept - 1]] <= MAX_PAIRS:
            kept -= 1
            pairs += self._counts[order[kept]]
        order = order[kept:]
        columns = _Columns(order, len(self._stamps), pairs)
        yield from columns.lay_out_stamps(self._stamps, self._counts, now)  # first: it ranks them
        yield from columns.lay_out_blocks(self._buckets)
        yield columns.snapshot(workers)

    def _time(self, number: int) -> float:
        return self._stamps[number].time


class _Columns:
    def __init__(self, order: list[int], stamps: int, pairs: int) -> None:
        self._order = order
        self._rank = [-1] * stamps
        self._holders: dict[tuple[str, float], int] = {}
        self._blocks = memoryview(bytearray(pairs * HASH_BYTES)).cast("Q")
        self._of = memoryview(bytearray(pairs * NUMBER_BYTES)).cast("I")
        self._holder_of, self._ages, self._tokens, self._newer, self._counts = (
            memoryview(bytearray(len(order) * NUMBER_BYTES)).cast("I") for _ in range(5)
        )

    def lay_out_blocks(self, buckets: list[list[int]]) -> Iterator[None]:
        blocks, of, ranks, at, step = self._blocks, self._of, self._rank, 0, STEP_PAIRS
        for bucket in buckets:
            bucket.sort()
            for pair in bucket:
                rank = ranks[pair & MAX_NUMBER]
                if rank >= 0:
                    blocks[at] = pair >> _NUMBER_BITS
                    of[at] = rank
                    at += 1
            if at >= step:
                step = at + STEP_PAIRS
                yield None

    def lay_out_stamps(self, stamps: list[Stamp], counts: list[int], now: float) -> Iterator[None]:
        newer: dict[tuple[str, float], int] = {}
        for rank in range(len(self._order) - 1, -1, -1):
            stamp = stamps[self._order[rank]]
            holder = (stamp.worker, stamp.epoch)
            newer[holder] = min(MAX_NUMBER, newer.get(holder, 0) + max(0, stamp.tokens))
            self._holder_of[rank] = self._holders.setdefault(holder, len(self._holders))
            self._ages[rank] = min(MAX_NUMBER, max(0, int((now - stamp.time) * 1000)))
            self._tokens[rank] = min(MAX_NUMBER, max(0, stamp.tokens))
            self._newer[rank] = newer[holder]
            self._counts[rank] = counts[self._order[rank]]
            self._rank[self._order[rank]] = rank
            if rank % STEP_PAIRS == 0:
                yield None

    def snapshot(self, workers: list[tuple[str, float, float]]) -> Snapshot:
        pairs, stamps = (self._blocks, self._of), (self._holder_of, self._ages, self._tokens)
        columns = (*pairs, *stamps, self._newer, self._counts)
        return Snapshot(list(self._holders), workers, *(column.cast("B") for column in columns))
