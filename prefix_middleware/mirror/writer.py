"""Drains the peer and appends to the streams: at once when there are updates, loads at their pace.

Updates are numbered as they are drained. What was written lately is kept, and written again with the same numbers where a
failover has lost it; readers leave out what they have heard.
"""

import time
from collections import deque
from itertools import islice
from typing import Final, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from prefix_middleware.core.updates import Gauge, Update
from prefix_middleware.mirror.link import FIELD, Link
from prefix_middleware.mirror.pace import Backoff, GaugePace
from prefix_middleware.mirror.store import Command, Store, connected, number, reason_of

MAX_PENDING: Final = 8192
"""Updates kept while Redis does not take them; the oldest are dropped beyond."""
MAX_WRITTEN: Final = 2048
"""Updates kept after Redis has taken them: about 3 MB, and 10 s of 200 decisions a second."""

_MAX_GAUGES: Final = 1000
_BATCH: Final = 512  # updates in one round trip: well under a second's worth of any link
_SAME_AGE_SECONDS: Final = 0.5  # updates of one entry share an age
_REPLY_SECONDS: Final = 1.0
_DRAIN_SECONDS: Final = 0.25  # between two drains while Redis is away


class Numbered(NamedTuple):
    """An update with its number, and when it was drained."""

    number: int
    at: float
    update: Update


Run = list[Numbered]
"""Updates that go into one entry: consecutive numbers, drained at about the same time."""


class Writer:
    """The writing half of a link."""

    def __init__(self, link: Link) -> None:
        self._link, self._peer = link, link.peer
        self._pending: deque[Numbered] = deque()
        self._written: deque[tuple[bytes, Run]] = deque()  # id of the entry, or of its last part
        self._written_updates = 0
        self._pace = GaugePace()
        self._backoff = Backoff()

    async def run(self) -> None:
        """Write until cancelled; failures of Redis are retried."""
        while True:
            try:
                async with connected(self._link.address, _REPLY_SECONDS) as store:
                    await self._write_again(store)
                    while True:
                        await self._write(store)
                        if not self._pending:
                            await self._peer.wait(self._pace.pause(time.monotonic(), self._peer.gauges()))
                        await checkpoint()  # a wait that returns at once must not hold the loop
            except Exception as error:  # whatever it is, routing goes on and we try again
                self._link.state.failed(reason_of(error, self._link.url))
                await self._pause(self._backoff.next())

    async def _write_again(self, store: Store) -> None:
        """Put back what the stream should have and has not: another Redis took over before the last entries got there."""
        decisions, lost = self._link.keys.decisions, 0
        while self._written:
            entry_id, run = self._written[-1]
            if await store.command("XRANGE", decisions, entry_id, entry_id, "COUNT", 1):
                break
            self._written.pop()
            self._pending.extendleft(reversed(run))
            lost += len(run)
        self._written_updates -= lost
        self._link.count(rewritten=lost)

    async def _write(self, store: Store) -> None:
        self._take()
        if self._link.state.needs("writer"):
            self._pace.force()  # only a write proves it: a full or read-only Redis answers PING well
        runs = _runs(islice(self._pending, _BATCH))
        now, gauges = time.monotonic(), self._peer.gauges()
        loads_due = self._pace.due(now, gauges)
        packed = [(run, entry) for run in runs for entry in self._pack(run, now)]
        commands = self._commands([entry for _, entry in packed], gauges if loads_due else None)
        if not commands:
            return
        replies = await store.commands(commands)
        for reply in replies:
            number(reply)  # raises for what is no entry id: behind a stray reply everything is one off
        for run in runs:
            for _ in run:
                self._pending.popleft()
        self._keep({id(run): (reply, run) for (run, _), reply in zip(packed, replies, strict=False)})
        if loads_due:
            self._pace.sent(now, gauges)
        self._backoff.reset()
        self._link.state.proved("writer")

    def _pack(self, run: Run, now: float) -> list[bytes]:
        held_ms = int(max(0.0, now - run[0].at) * 1000)
        updates = [numbered.update for numbered in run]
        return self._link.wire.pack_decisions(self._peer.origin, updates, run[0].number, held_ms)

    def _commands(self, entries: list[bytes], gauges: list[Gauge] | None) -> list[Command]:
        keys, rule = self._link.keys, self._link.cap.rule()
        commands: list[Command] = [
            ("XADD", keys.decisions, rule[0], "~", rule[1], "*", FIELD, entry) for entry in entries
        ]
        if gauges is not None:
            entry = self._link.wire.pack_gauges(self._peer.origin, gauges, self._peer.tally())
            commands.append(("XADD", keys.gauges, "MAXLEN", "~", _MAX_GAUGES, "*", FIELD, entry))
        return commands

    def _keep(self, written: dict[int, tuple[bytes, Run]]) -> None:
        for entry_id, run in written.values():
            self._written.append((entry_id, run))
            self._written_updates += len(run)
        while self._written_updates > MAX_WRITTEN:
            self._written_updates -= len(self._written.popleft()[1])

    def _take(self) -> None:
        published, origin, now = self._link.published, self._peer.origin, time.monotonic()
        first = published.get(origin, 0)
        drained = self._peer.drain()
        self._pending.extend(Numbered(first + i, now, update) for i, update in enumerate(drained))
        published[origin] = first + len(drained)
        excess = len(self._pending) - MAX_PENDING
        if excess > 0:
            for _ in range(excess):
                self._pending.popleft()
            self._peer.mirror_count("dropped", excess)

    async def _pause(self, seconds: float) -> None:
        """Wait, and go on draining: the bound on what waits for Redis is ours."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await anyio.sleep(min(left, _DRAIN_SECONDS))
            self._take()


def _runs(batch: "islice[Numbered]") -> list[Run]:
    runs: list[Run] = []
    for numbered in batch:
        last = runs[-1] if runs else None
        follows = last is not None and numbered.number == last[-1].number + 1
        if last is None or not follows or numbered.at - last[0].at > _SAME_AGE_SECONDS:
            runs.append([numbered])
        else:
            last.append(numbered)
    return runs
