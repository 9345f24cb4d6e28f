"""How often a mirror does things: publish loads, hand over updates, try again. It opens nothing."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from anyio.lowlevel import checkpoint

from prefix_middleware.core.updates import Gauge, Update
from prefix_middleware.mirror import Peer

REFRESH_SECONDS: Final = 1.0
"""Between two publications of the same loads, which receivers drop after 3 s; the longest time between two looks at a peer."""

_CHANGED_SECONDS: Final = 0.1
_SLICE_SECONDS: Final = 0.0005  # half of the 1 ms that applying may hold the event loop: a call may overshoot
_MAX_SLICE: Final = 64
_FIRST_BACKOFF_SECONDS: Final = 0.1
_LAST_BACKOFF_SECONDS: Final = 3.0


class GaugePace:
    """Says when loads are due: 100 ms apart when changed, else 1 s apart, also zeros: whoever looks sees who is there."""

    def __init__(self) -> None:
        self._sent: list[Gauge] | None = None
        self._sent_at = 0.0

    def force(self) -> None:
        """Make the next loads due whatever they are."""
        self._sent = None

    def due(self, now: float, gauges: list[Gauge]) -> bool:
        """Tell whether these loads should be published at `now` (seconds, any monotonic clock)."""
        if self._sent is None:
            return True
        waited = now - self._sent_at
        return waited >= (_CHANGED_SECONDS if gauges != self._sent else REFRESH_SECONDS)

    def pause(self, now: float, gauges: list[Gauge]) -> float:
        """Return for how many seconds nothing is due unless the loads change, at most 1."""
        apart = _CHANGED_SECONDS if gauges != self._sent else REFRESH_SECONDS
        return min(max(0.0, apart - (now - self._sent_at)), REFRESH_SECONDS)

    def sent(self, now: float, gauges: list[Gauge]) -> None:
        """Note that these loads were published."""
        self._sent, self._sent_at = gauges, now


class Slices:
    """Hands updates to a peer in runs that hold the event loop for about 1 ms at most."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._size = 8
        self._since = time.perf_counter()

    async def give_way(self) -> None:
        """Let the event loop go round once."""
        await checkpoint()
        self._since = time.perf_counter()

    async def merge(self, origin: str, updates: Sequence[Update], age_seconds: float) -> None:
        """Merge everything, in order, in as many calls as it takes."""
        start = 0
        while start < len(updates):
            began = time.perf_counter()
            run = updates[start : start + self._size]
            self._peer.merge(origin, run, age_seconds)
            start += len(run)
            self._fit(time.perf_counter() - began)
            await self.give_way_if_due()

    async def give_way_if_due(self) -> None:
        """Let the event loop go round when our turn has been long enough."""
        if time.perf_counter() - self._since >= _SLICE_SECONDS:
            await self.give_way()

    def _fit(self, took: float) -> None:
        if took > _SLICE_SECONDS:
            self._size = max(1, self._size // 2)
        elif took < _SLICE_SECONDS / 4:
            self._size = min(_MAX_SLICE, self._size * 2)


class Backoff:
    """Pauses between attempts: full jitter under a ceiling that doubles from 0.1 to 3 s."""

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._ceiling = _FIRST_BACKOFF_SECONDS

    def next(self) -> float:
        """Return the seconds to wait now and raise the ceiling for the next time."""
        seconds = self._draw() * self._ceiling
        self._ceiling = min(_LAST_BACKOFF_SECONDS, self._ceiling * 2)
        return seconds

    def reset(self) -> None:
        """Start from the lowest ceiling again."""
        self._ceiling = _FIRST_BACKOFF_SECONDS
