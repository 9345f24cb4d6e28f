"""This process as the mirror sees it: the router's outbox and inbox, with a clock, a name and a bell."""

import os
import secrets
import socket
import threading
from asyncio import AbstractEventLoop, Event
from collections.abc import Iterator, Sequence
from typing import Final

import anyio

from prefix_middleware.clock import Clock
from prefix_middleware.core.router import Router
from prefix_middleware.core.snapshot import Snapshot
from prefix_middleware.core.updates import Gauge, Notice, Tally, Update
from prefix_middleware.telemetry import Telemetry

PATIENT_SECONDS: Final = 0.1
"""A longer wait ends when a request is counted in or out: nobody else would look at the loads in time."""


class RouterPeer:
    """Implements `mirror.Peer` over a router; made on the event loop that runs the mirror."""

    def __init__(self, router: Router, telemetry: Telemetry, clock: Clock, loop: AbstractEventLoop) -> None:
        self.origin = f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._router = router
        self._telemetry = telemetry
        self._clock = clock
        self._loop = loop
        self._thread = threading.get_ident()
        self._bell = Event()
        self._connected = False
        self._dropped = 0  # of the outbox, as far as counted
        self._patient = False  # waits so long that a change of loads should end it
        self._stirred = False  # loads have changed since they were looked at
        router.on_update = self._ring
        router.on_load = self._stir

    def _ring(self) -> None:
        if threading.get_ident() == self._thread:
            self._bell.set()
            return
        try:
            self._loop.call_soon_threadsafe(self._bell.set)
        except RuntimeError:  # the loop has closed
            pass

    def _stir(self) -> None:
        self._stirred = True
        if self._patient:
            self._patient = False
            self._ring()

    async def wait(self, seconds: float) -> None:
        """Return when there is something to drain, or after `seconds`; a long wait also ends when loads change."""
        due = self._router.next_due()
        if due is not None:
            seconds = min(seconds, max(0.0, due - self._clock()))
        self._patient = seconds > PATIENT_SECONDS
        if self._stirred:
            seconds = min(seconds, PATIENT_SECONDS)
        with anyio.move_on_after(seconds):
            await self._bell.wait()
        self._patient = False
        self._bell.clear()

    def drain(self) -> list[Update]:
        """Take what is due for publication."""
        due = self._router.drain(self._clock())
        dropped = self._router.dropped_updates - self._dropped
        if dropped:
            self._dropped += dropped
            self._telemetry.count("mirror.dropped", dropped)
        if not self._connected:  # no stream says which notice of a restart was first: ours counts
            self.merge(self.origin, [update for update in due if isinstance(update, Notice)], 0.0)
        return due

    def gauges(self) -> list[Gauge]:
        """Return this process's own loads."""
        self._stirred = False
        return self._router.gauges()

    def tally(self) -> Tally | None:
        """Return what this process has decided, injected and seen echoed."""
        counts = self._telemetry.counts
        return Tally(counts["decisions"], counts["injections"], counts["echoes"])

    def merge(self, origin: str, updates: Sequence[Update], age_seconds: float) -> None:
        """Apply what another gateway published."""
        with self._telemetry.guarded():
            self._router.merge(origin, updates, age_seconds, self._clock())
            self._telemetry.count("merged", len(updates))

    def merge_gauges(self, origin: str, gauges: Sequence[Gauge], tally: Tally | None) -> None:  # noqa: ARG002
        """Replace what is known of another gateway's loads; its tally is for whoever looks."""
        with self._telemetry.guarded():
            self._router.merge_gauges(origin, gauges, self._clock())

    def snapshot(self) -> Iterator[Snapshot | None]:
        """Yield None after each short step, then what this process knows."""
        return self._router.snapshot(self._clock())

    def restore(self, snapshot: Snapshot, age_seconds: float) -> Iterator[None]:
        """Take over what another process knew, step by step; raises ValueError for a broken one."""
        return self._router.restore(snapshot, age_seconds, self._clock())

    def mirror_state(self, connected: bool, reason: str) -> None:
        """Log that the mirror has connected or lost its store."""
        self._connected = connected
        if connected:
            self._telemetry.state("mirror_connected", f"mirror: connected to {reason}", bad=False)
        else:
            message = f"mirror: lost, {reason}; routing goes on from memory"
            self._telemetry.state("mirror_lost", message, bad=True)

    def mirror_count(self, name: str, n: int) -> None:
        """Count what the mirror met; entries of another scheme, key or window are warned about once."""
        self._telemetry.count(f"mirror.{name}", n)
        if name == "foreign":
            self._telemetry.warn(
                "mirror_foreign",
                "[PREFIX] warning: the fleet has gateways with another secret, window_bytes or version; "
                "their entries are ignored",
            )
