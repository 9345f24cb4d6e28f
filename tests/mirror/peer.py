"""A peer that keeps what it was told, and functions to run mirrors around it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint

from prefix_middleware.core.snapshot import Snapshot
from prefix_middleware.core.updates import Confirmed, Gauge, Tally, Update
from prefix_middleware.mirror import Mirror
from prefix_middleware.mirror.store import connected

FINGERPRINT = b"\x01scheme."


def confirmed(record: int, worker: str = "w1", blocks: int = 2) -> Confirmed:
    """Return a plausible confirmed record."""
    hashes = b"".join((record * 1000 + i).to_bytes(8, "big") for i in range(blocks))
    return Confirmed(record, worker, 1700000000.5, hashes, b"\xee" * 8, 4 * blocks, 0, 4 * blocks)


class FakePeer:
    """Implements `Peer`: `publish` fills its outbox, everything heard is kept as it came."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.heard: list[tuple[str, Update]] = []
        self.ages: list[float] = []
        self.loads: dict[str, list[Gauge]] = {}
        self.loads_heard = 0
        self.own_tally: Tally | None = Tally(0, 0, 0)
        self.tallies: dict[str, Tally | None] = {}
        self.waited: list[float] = []  # seconds of each wait asked for
        self.known: Snapshot | None = None  # what this peer would put into a snapshot
        self.restored: list[tuple[Snapshot, float]] = []
        self._own_loads: list[Gauge] = []
        self.states: list[tuple[bool, str]] = []
        self.counts: Counter[str] = Counter()
        self._outbox: list[Update] = []
        self._filled = asyncio.Event()

    def publish(self, *updates: Update) -> None:
        """Put updates into the outbox."""
        self._outbox.extend(updates)
        self._filled.set()

    @property
    def own_loads(self) -> list[Gauge]:
        """Loads of this peer; a change ends a wait."""
        return self._own_loads

    @own_loads.setter
    def own_loads(self, loads: list[Gauge]) -> None:
        self._own_loads = loads
        self._filled.set()

    async def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        with anyio.move_on_after(seconds):
            await self._filled.wait()

    def drain(self) -> list[Update]:
        drained, self._outbox = self._outbox, []
        self._filled.clear()
        return drained

    def gauges(self) -> list[Gauge]:
        return list(self.own_loads)

    def tally(self) -> Tally | None:
        return self.own_tally

    def merge(self, origin: str, updates: Sequence[Update], age_seconds: float) -> None:
        self.heard.extend((origin, update) for update in updates)
        self.ages.append(age_seconds)

    def merge_gauges(self, origin: str, gauges: Sequence[Gauge], tally: Tally | None) -> None:
        self.loads[origin], self.tallies[origin] = list(gauges), tally
        self.loads_heard += 1

    def snapshot(self) -> Iterator[Snapshot | None]:
        yield None
        if self.known is not None:
            yield self.known

    def restore(self, snapshot: Snapshot, age_seconds: float) -> Iterator[None]:
        yield
        self.restored.append((snapshot, age_seconds))

    def mirror_state(self, connected: bool, reason: str) -> None:
        self.states.append((connected, reason))

    def mirror_count(self, name: str, n: int) -> None:
        self.counts[name] += n

    @property
    def connected(self) -> bool:
        """What the last state said."""
        return bool(self.states) and self.states[-1][0]

    def records(self, origin: str) -> list[int]:
        """Numbers of the confirmed records heard from `origin`, in order."""
        return [
            update.record for who, update in self.heard if who == origin and isinstance(update, Confirmed)
        ]


async def until(condition: Callable[[], object], seconds: float = 15.0, what: str = "condition") -> None:
    """Poll until the condition is true while the loop runs; fail the test when `seconds` have passed."""
    deadline = anyio.current_time() + seconds
    while not condition():
        if anyio.current_time() > deadline:
            pytest.fail(f"{what} not reached within {seconds} s")
        await anyio.sleep(0.005)


async def until_heard(peer: FakePeer, count: int) -> None:
    """Wait until the peer has heard at least `count` updates."""
    await until(lambda: len(peer.heard) >= count, what=f"{count} updates heard by {peer.origin}")


async def until_length(url: str, stream: bytes, length: int) -> None:
    """Wait until a stream holds at least `length` entries."""
    async with connected(url, 5.0) as store:
        with anyio.fail_after(15):
            while await store.command("XLEN", stream) < length:  # noqa: ASYNC110 - it changes in another process
                await anyio.sleep(0.01)


@asynccontextmanager
async def carrying(*pairs: tuple[Mirror, FakePeer]) -> AsyncIterator[list["asyncio.Task[None]"]]:
    """Run each mirror for its peer; afterwards every run must have ended by cancellation alone."""
    tasks = [asyncio.create_task(mirror.run(peer)) for mirror, peer in pairs]
    await checkpoint()
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * len(tasks)
