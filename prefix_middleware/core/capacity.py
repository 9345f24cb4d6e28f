"""3. A worker's own LRU, mirrored: its records in order, with the tokens that each still owns.

When their sum exceeds the worker's KV cache, the oldest records die: what they own is worth nothing from then on.
"""

from bisect import insort
from collections.abc import Iterable
from typing import Final

_COMPACT_AT: Final = 64


class Stamp:
    """Who recorded a block last, in which epoch and when; shared by all blocks of one record."""

    __slots__ = ("blocks", "epoch", "owned", "time", "tokens", "worker")

    def __init__(self, worker: str, epoch: float, time: float) -> None:
        self.worker = worker
        self.epoch = epoch  # nan once dead: equal to no epoch
        self.time = time
        self.tokens = 0  # still owned; a block that is recorded again belongs to the new record
        self.blocks: list[bytes] = []  # first block first; some may belong to newer records by now
        self.owned = 0  # how many do not


def _time(stamp: Stamp) -> float:
    return stamp.time


class Capacity:
    """The records of one worker with a KV cache of `limit_tokens`; it may begin with some that are there already."""

    def __init__(self, limit_tokens: int, records: Iterable[Stamp] = ()) -> None:
        self.limit_tokens = limit_tokens
        # oldest first; a late record of another gateway takes its place by time
        self._order = sorted(records, key=_time)
        self.tokens = sum(stamp.tokens for stamp in self._order)
        self._compact_at = _COMPACT_AT + 2 * len(self._order)
        self._trim()

    def resize(self, limit_tokens: int) -> None:
        """Change the size of the cache; records that have died stay dead."""
        self.limit_tokens = limit_tokens
        self._trim()

    def add(self, stamp: Stamp, taken: int) -> None:
        """Count a record in, `taken` of whose tokens were earlier records', and let die what there is no room for."""
        insort(self._order, stamp, key=_time)
        self.tokens += stamp.tokens - taken
        self._trim()

    def grow(self, stamp: Stamp, tokens: int) -> None:
        """The worker holds generated tokens behind the prompt, too."""
        stamp.tokens += tokens
        self.tokens += tokens
        self._trim()

    def forget(self, stamp: Stamp) -> None:
        """Let a record go of which no block is left."""
        self.tokens -= stamp.tokens
        stamp.tokens = 0

    def _trim(self) -> None:
        order, dead = self._order, 0
        while order and not order[-1].owned:
            self.forget(order.pop())
        while self.tokens > self.limit_tokens and dead < len(order) - 1:  # never the newest
            stamp = order[dead]
            dead += 1
            self.forget(stamp)
            stamp.epoch = float("nan")
        del order[:dead]
        if len(order) > self._compact_at:
            self._compact()

    def _compact(self) -> None:
        for stamp in self._order:
            if not stamp.owned:
                self.forget(stamp)
        self._order = [stamp for stamp in self._order if stamp.owned]
        self._compact_at = _COMPACT_AT + 2 * len(self._order)
