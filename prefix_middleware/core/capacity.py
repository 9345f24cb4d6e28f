"""3. A worker's own LRU, mirrored: its records in order, with the tokens that each still owns.

When their sum exceeds the worker's KV cache, the oldest records die: what they own is worth nothing from then on.
"""

from bisect import insort
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
    """The records of one worker with a KV cache of `limit_tokens`."""

    def __init__(self, limit_tokens: int) -> None:
        self.limit_tokens = limit_tokens
        self.tokens = 0
        self._order: list[
            Stamp
        ] = []  # oldest first; a late record of another gateway takes its place by time
        self._owning = 0

    def take(self, stamp: Stamp, tokens: int) -> None:
        """A newer record owns these tokens now."""
        stamp.tokens -= tokens
        self.tokens -= tokens
        if stamp.tokens <= 0:
            self._owning -= 1

    def add(self, stamp: Stamp) -> None:
        """Count a record in, and let the oldest ones die that the cache has no room for."""
        if stamp.tokens <= 0:
            return
        insort(self._order, stamp, key=_time)
        self.tokens += stamp.tokens
        self._owning += 1
        self._trim()

    def grow(self, stamp: Stamp, tokens: int) -> None:
        """The worker holds generated tokens behind the prompt, too."""
        if stamp.tokens > 0:
            stamp.tokens += tokens
            self.tokens += tokens
            self._trim()

    def _trim(self) -> None:
        dead = 0
        while self.tokens > self.limit_tokens and dead < len(self._order) - 1:  # never the newest
            stamp = self._order[dead]
            dead += 1
            if stamp.tokens > 0:
                self.tokens -= stamp.tokens
                self._owning -= 1
                stamp.tokens = 0
                stamp.epoch = float("nan")
        del self._order[:dead]
        if len(self._order) > _COMPACT_AT + 2 * self._owning:
            self._order = [stamp for stamp in self._order if stamp.tokens > 0]
