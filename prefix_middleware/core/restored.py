"""3. What other gateways' snapshots say, answered from their bytes: a warm start costs reading them and little more.

Age, epoch and KV capacity count as for live stamps; restored stamps leave whole, oldest first.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

from prefix_middleware.core.capacity import Stamp
from prefix_middleware.core.snapshot import (
    BYTE_ORDER,
    MAX_NUMBER,
    NUMBER_BYTES,
    STEP_PAIRS,
    Snapshot,
    number_of,
)
from prefix_middleware.core.updates import HASH_BYTES

_MAX_TABLES: Final = 4  # one from the start, one for each of the last gaps
_EXPIRED_AT_ONCE: Final = 256
_FOUND: Final = 4096
_MAX_HOLDERS: Final = 1024  # of one block; columns that name more were not packed by one of us


class Table:
    """A snapshot that was taken at `taken_at` (seconds of the reader's clock); ValueError for columns that do not fit."""

    def __init__(self, snapshot: Snapshot, taken_at: float) -> None:
        self._taken_at = taken_at
        self._holders = snapshot.holders
        self._blocks = _cast(snapshot.blocks, HASH_BYTES, "Q")
        self._stamps = _cast(snapshot.stamps, NUMBER_BYTES, "I")
        figures = snapshot.holder_of, snapshot.ages, snapshot.tokens, snapshot.newer_tokens, snapshot.counts
        columns = [_cast(column, NUMBER_BYTES, "I") for column in figures]
        self._holder_of, self._ages, self._tokens, self._newer, self._counts = columns
        if len(set(map(len, columns))) != 1 or len(self._stamps) != len(self._blocks):
            raise ValueError("columns of different lengths")
        if len(self._blocks) and not len(self._ages):
            raise ValueError("blocks without a stamp")
        if len(self._ages) > len(self._blocks) or sum(self._counts) != len(self._blocks):
            raise ValueError("stamps without a block")
        self._found: dict[int, Stamp] = {}  # stamps looked at so far
        self._first = 0  # the oldest stamp that has not left
        self.pairs = len(self._blocks)

    def __len__(self) -> int:
        """Return the length of the columns, with what has left."""
        return len(self._blocks)

    @property
    def oldest_time(self) -> float:
        """When the oldest stamp that has not left was made."""
        return self._time(self._first) if self._first < len(self._ages) else float("inf")

    def _time(self, number: int) -> float:
        return self._taken_at - self._ages[number] / 1000

    def evict(self) -> int:
        """Let the oldest stamp leave; return how many pairs went with it."""
        gone = min(self.pairs, self._counts[self._first])
        self._first += 1
        if self._first == len(self._ages):
            gone = self.pairs
        self.pairs -= gone
        return gone

    def find(self, block: bytes) -> Sequence[Stamp]:
        """Return the stamps of a block, each with the tokens that it and the newer ones of its holder own."""
        value, blocks = number_of(block), self._blocks
        at = bisect_left(blocks, value)
        if at == len(blocks) or blocks[at] != value:
            return ()
        found = []
        end = min(len(blocks), at + _MAX_HOLDERS)
        while at < end and blocks[at] == value:
            number = self._stamps[at]
            stamp = self._found.get(number)
            if stamp is None or number < self._first:
                stamp = self._stamp(number, self._newer)
            if stamp is not None:
                self._found[number] = stamp
                found.append(stamp)
            at += 1
        return found

    def _stamp(self, number: int, tokens: memoryview) -> Stamp | None:
        if not self._first <= number < len(self._ages) or self._holder_of[number] >= len(self._holders):
            return None
        worker, epoch = self._holders[self._holder_of[number]]
        stamp = Stamp(worker, epoch, self._time(number))
        stamp.tokens = tokens[number]
        return stamp

    def counts(self) -> Iterator[tuple[Stamp, int]]:
        """Yield every stamp that has not left and how many blocks it has."""
        for number in range(self._first, len(self._ages)):
            stamp = self._stamp(number, self._newer)
            if stamp is not None:
                yield stamp, self._counts[number]

    def slice(self, start: int, made: dict[int, Stamp | None]) -> Iterator[tuple[bytes, Stamp]]:
        """Yield the pairs of one step from `start`, with owned tokens; `made` keeps a stamp for its later blocks."""
        for at in range(start, min(start + STEP_PAIRS, len(self._blocks))):
            number = self._stamps[at]
            if number not in made:
                made[number] = self._stamp(number, self._tokens)
            stamp = made[number]
            if stamp is not None:
                yield self._blocks[at].to_bytes(HASH_BYTES, BYTE_ORDER), stamp

    def subtract(self, held: Callable[[bytes, str], bool]) -> Iterator[None]:
        """Leave out what is held already, in short steps."""
        stamps = memoryview(bytearray(self._stamps.cast("B"))).cast("I")
        counts = memoryview(bytearray(self._counts.cast("B"))).cast("I")
        for at, number in enumerate(self._stamps):
            stamp = self._stamp(number, self._tokens)
            if stamp is not None and held(self._blocks[at].to_bytes(HASH_BYTES, BYTE_ORDER), stamp.worker):
                stamps[at] = MAX_NUMBER
                counts[number] = max(0, counts[number] - 1)
                self.pairs -= 1
            if at % STEP_PAIRS == 0:
                yield
        self._stamps, self._counts = stamps, counts


def _cast(column: memoryview, size: int, form: Literal["Q", "I"]) -> memoryview:
    if column.nbytes % size:
        raise ValueError("a column ends within a figure")
    return memoryview(column).cast("B").cast(form)


class Restored:
    """The tables that an index looks at behind its live blocks."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.pairs = 0
        self._found: dict[bytes, Sequence[Stamp]] = {}  # one decision asks for a block several times

    def adopt(self, table: Table) -> None:
        """Count what a table says from now on."""
        self._found.clear()
        if table.pairs:
            self.tables.append(table)
            self.pairs += table.pairs
        while len(self.tables) > _MAX_TABLES:
            self.pairs -= self.tables.pop(0).pairs

    def find(self, block: bytes) -> Sequence[Stamp]:
        """Return the stamps of a block, each with the tokens that it and the newer ones of its holder own."""
        found = self._found.get(block)
        if found is None:
            if len(self._found) >= _FOUND:
                self._found.clear()
            found = [stamp for table in self.tables for stamp in table.find(block)]
            self._found[block] = found
        return found

    def evict(self, before: float) -> bool:
        """Let the oldest stamp leave if it is not younger than `before`; tell whether one has."""
        if not self.tables:
            return False
        table = min(self.tables, key=lambda table: table.oldest_time)
        if table.oldest_time > before:
            return False
        self.pairs -= table.evict()
        self._found.clear()
        if not table.pairs:
            self.tables.remove(table)
        return True

    def expire(self, oldest: float) -> None:
        """Let stamps older than `oldest` leave, some at a time."""
        for _ in range(_EXPIRED_AT_ONCE):
            if not self.evict(oldest):
                return
