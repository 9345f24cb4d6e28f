"""Gateways as the mirror sees them, with real routers: what they decide and what they would choose."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.router import Router
from prefix_middleware.core.workers import Worker
from prefix_middleware.mirror.redis import RedisMirror
from prefix_middleware.peer import RouterPeer
from prefix_middleware.telemetry import Telemetry
from tests.mirror.peer import FINGERPRINT

WORKERS = tuple(Worker(f"w{n}", f"http://w{n}") for n in range(4))


def prompt(number: int, blocks: int = 8) -> HashedPrompt:
    """Return a conversation that shares nothing with those of other numbers."""
    hashes = tuple((number << 24 | block).to_bytes(8, "big") for block in range(1, blocks + 1))
    matched = tuple(128 * block for block in range(blocks + 1))
    return HashedPrompt(hashes, matched, (number << 24).to_bytes(8, "big"), None, 128 * blocks, "m")


class Gateway:
    """A router, its peer and its mirror; `run` is the mirror's task."""

    def __init__(self, url: str, snapshot_seconds: float = 60.0, index_blocks: int = 200_000) -> None:
        self.telemetry = Telemetry("host")
        self.router = Router(WORKERS, index_blocks=index_blocks)
        self.peer = RouterPeer(self.router, self.telemetry, time.monotonic, asyncio.get_running_loop())
        self.mirror = RedisMirror(url, "test", FINGERPRINT, snapshot_seconds=snapshot_seconds)

    @property
    def origin(self) -> str:
        return self.peer.origin

    def count(self, name: str) -> int:
        """Return one of the mirror's counters."""
        return self.telemetry.counts[f"mirror.{name}"]

    @property
    def connected(self) -> bool:
        """Whether the mirror has connected more often than it was lost."""
        counts = self.telemetry.counts
        return counts["mirror_connected"] > counts["mirror_lost"]

    def choose(self, number: int) -> Reservation:
        """Count a request of this conversation in; it neither starts nor ends."""
        chosen = self.router.route(prompt(number), time.monotonic(), 0.5)
        assert isinstance(chosen, Reservation)
        return chosen

    def serve(self, number: int) -> str:
        """Decide on this conversation, start and finish it; return the worker."""
        chosen = self.choose(number)
        self.router.start(chosen, time.monotonic())
        self.router.finish(chosen)
        return chosen.worker

    def best(self, number: int) -> tuple[int, list[str]]:
        """Return the longest match of this conversation in blocks, and who has it."""
        workers = [worker.id for worker in WORKERS]
        blocks, found = self.router.index.best(prompt(number).hashes, workers, time.monotonic())
        return blocks, sorted(found)


@asynccontextmanager
async def running(*gateways: Gateway) -> AsyncIterator[Sequence["asyncio.Task[None]"]]:
    """Run the gateways' mirrors for the length of a block."""
    tasks = [asyncio.create_task(gateway.mirror.run(gateway.peer)) for gateway in gateways]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
