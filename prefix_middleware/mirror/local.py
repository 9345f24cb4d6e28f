"""The mirror of one process without Redis: what one peer publishes, the others merge at once."""

import time
from collections.abc import Sequence
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from prefix_middleware.core.updates import Gauge, Notice, Update
from prefix_middleware.mirror import Peer
from prefix_middleware.mirror.pace import GaugePace

_ALONE_SECONDS: Final = 0.05
_SLICE: Final = 64  # updates given to all peers before the event loop goes round


class LocalMirror:
    """One hub for all peers that run it; a lone peer is drained and hears its own notices."""

    def __init__(self) -> None:
        self._peers: list[Peer] = []

    async def run(self, peer: Peer) -> None:
        """Carry for `peer` until cancelled."""
        pace = GaugePace()
        self._peers.append(peer)
        try:
            while True:
                await peer.wait(pace.pause(time.monotonic(), peer.gauges()))
                if len(self._peers) == 1:  # nobody to tell at once
                    await anyio.sleep(_ALONE_SECONDS)
                await self._publish(peer, peer.drain())
                self._share_loads(peer, pace)
        finally:
            self._peers.remove(peer)

    async def _publish(self, author: Peer, updates: Sequence[Update]) -> None:
        for start in range(0, len(updates), _SLICE):
            self._deliver(author, updates[start : start + _SLICE])
            await checkpoint()
        await checkpoint()  # also with nothing to give: a wait that returns at once must not hold the loop

    def _deliver(self, author: Peer, updates: Sequence[Update]) -> None:
        """Give one run to everybody without a break, so that all peers see the same order."""
        for peer in self._peers:
            own = peer is author
            heard = [update for update in updates if isinstance(update, Notice)] if own else updates
            if heard:
                peer.merge(author.origin, heard, 0.0)

    def _share_loads(self, author: Peer, pace: GaugePace) -> None:
        now = time.monotonic()
        gauges: list[Gauge] = author.gauges()
        if not pace.due(now, gauges):
            return
        for peer in self._peers:
            if peer is not author:
                peer.merge_gauges(author.origin, gauges, author.tally())
        pace.sent(now, gauges)
