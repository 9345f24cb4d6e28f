"""How gateways tell each other what they know. `Mirror` carries; `Peer` is this process as the mirror sees it.

Nothing here is on the request path: a mirror drains the peer's outbox and hands it what the others published.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from prefix_middleware.core.snapshot import Snapshot
from prefix_middleware.core.updates import Gauge, Tally, Update


class Peer(Protocol):
    """One gateway process: where updates come from and go to. Every method but `wait` returns at once."""

    origin: str  # host, pid and nonce; unique per process

    async def wait(self, seconds: float) -> None:
        """Return when there is something to drain, or after `seconds`; a wait of more than 0.1 s also when loads change."""

    def drain(self) -> list[Update]:
        """Take what is due for publication, oldest first; the caller owns it from then on."""

    def gauges(self) -> list[Gauge]:
        """Return this process's own absolute loads, one per worker."""

    def tally(self) -> Tally | None:
        """Return what this process has done so far; None for one that only looks."""

    def merge(self, origin: str, updates: Sequence[Update], age_seconds: float) -> None:
        """Apply what `origin` published `age_seconds` ago. Safe to repeat; never raises."""

    def merge_gauges(self, origin: str, gauges: Sequence[Gauge], tally: Tally | None) -> None:
        """Replace what is known of the loads of `origin`, and what it has done. Never raises."""

    def snapshot(self) -> Iterator[Snapshot | None]:
        """Yield None after each step of at most 1 ms, then what this process knows; nothing: it writes no snapshots."""

    def restore(self, snapshot: Snapshot, age_seconds: float) -> Iterator[None]:
        """Take over what another process knew `age_seconds` ago, in such steps; raises ValueError for a broken one."""

    def mirror_state(self, connected: bool, reason: str) -> None:
        """Learn that the mirror has connected or lost its store; called on changes only."""

    def mirror_count(self, name: str, n: int) -> None:
        """Add n to a counter; the names are in docs/mirror.md."""


class Mirror(Protocol):
    """Carries updates between peers."""

    async def run(self, peer: Peer) -> None:
        """Carry for `peer` until cancelled. Failures of the store are retried here and never leave."""
