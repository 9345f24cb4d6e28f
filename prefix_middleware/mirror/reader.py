"""Follows both streams and hands the peer what others wrote; begins with a snapshot, and goes back to one after a gap."""

import time
from collections.abc import Callable
from typing import Any, Final

import anyio

from prefix_middleware.core.updates import Notice
from prefix_middleware.mirror.link import FIELD, START, Link
from prefix_middleware.mirror.pace import Backoff, Slices
from prefix_middleware.mirror.snapshots import Snapshots
from prefix_middleware.mirror.store import Store, connected, number, only_id, reason_of
from prefix_middleware.mirror.wire import Entry, Loads, Refused

RELOAD_SECONDS: Final = 5.0
"""Shortest time between two looks for a snapshot because numbers are missing."""

_READ_COUNT: Final = 16  # what redis-py parses in under 1 ms, the event loop held
_BLOCK_MS: Final = 1000
_REPLY_SECONDS: Final = 4.0  # well above the time XREAD may block


class Reader:
    """The reading half of a link; `hurry` asks for a new snapshot of the fleet."""

    def __init__(self, link: Link, snapshots: Snapshots, hurry: Callable[[], None]) -> None:
        self._link, self._peer, self._snapshots, self._hurry = link, link.peer, snapshots, hurry
        self._gauges_id = START
        self._started = False
        self._lost = False  # numbers are missing that no snapshot was asked for
        self._reload_after = 0.0
        self._look_after = 0.0
        self._slices = Slices(link.peer)
        self._backoff = Backoff()

    async def run(self) -> None:
        """Read until cancelled; failures of Redis are retried."""
        while True:
            try:
                async with connected(self._link.address, _REPLY_SECONDS) as store:
                    await self._resume(store)
                    self._backoff.reset()
                    while True:
                        self._link.state.proved("reader")
                        await self._read(store)
                        if self._lost and time.monotonic() >= self._reload_after:
                            await self._make_up(store)
            except Exception as error:  # whatever it is, routing goes on and we try again
                self._link.state.failed(reason_of(error, self._link.url))
                await anyio.sleep(self._backoff.next())

    async def _resume(self, store: Store) -> None:
        """Settle where to go on: after the last entry read if the stream still has it, else behind a snapshot."""
        await store.read_clock()
        decisions = self._link.keys.decisions
        first = number(only_id(await store.command("XRANGE", decisions, "-", "+", "COUNT", 1)))
        last = number(only_id(await store.command("XREVRANGE", decisions, "+", "-", "COUNT", 1)))
        newest_gauge = await store.command("XREVRANGE", self._link.keys.gauges, "+", "-", "COUNT", 1)
        self._gauges_id = only_id(newest_gauge)
        mine = self._link.position
        if self._started and (mine == START or await store.command("XRANGE", decisions, mine, mine)):
            return
        if self._started:  # trimmed past us, or another Redis that never had what we read
            self._link.count(gap=1)
        self._link.warm = False
        await self._begin(store, first, last)
        self._started = True

    async def _begin(self, store: Store, first: tuple[int, int], last: tuple[int, int]) -> None:
        snapshot_id = await self._restore(store)
        if self._started:  # what this process knows may be nowhere else
            self._hurry()
        usable = snapshot_id is not None and number(snapshot_id) <= last
        self._link.position = snapshot_id if usable and snapshot_id is not None else START
        self._link.cap.forget()
        if not self._started and self._link.position != START and number(self._link.position) < first:
            self._link.count(gap=1)

    async def _restore(self, store: Store) -> bytes | None:
        """Take over the fleet's snapshot; return the entry that it goes up to, None when there is none for us."""
        packed = await self._snapshots.read(store, self._link)
        if packed is None:
            return None
        try:
            for _ in self._peer.restore(packed.snapshot, store.age(packed.taken_ms)):
                await self._slices.give_way_if_due()
        except Exception:  # whatever is wrong with it, the stream alone has to do
            self._link.count(undecodable=1)
            return None
        self._link.heard.adopt(packed.sequences)
        self._link.count(restored=1)
        return packed.stream_id.encode()

    async def _make_up(self, store: Store) -> None:
        """Some origin's numbers have a hole that the stream cannot fill: somebody's snapshot may."""
        self._lost, self._reload_after = False, time.monotonic() + RELOAD_SECONDS
        self._link.count(gap=1)
        await self._restore(store)

    async def _read(self, store: Store) -> None:
        keys = self._link.keys
        streams = (keys.decisions, keys.gauges, self._link.position, self._gauges_id)
        reply = await store.command("XREAD", "COUNT", _READ_COUNT, "BLOCK", _BLOCK_MS, "STREAMS", *streams)
        await self._slices.give_way()  # parsing the reply has held the loop already
        decisions = 0
        for name, entries in reply or ():
            if name == keys.decisions:
                decisions = len(entries)
                await self._apply_decisions(store, entries)
            else:
                self._apply_gauges(entries)
        self._link.warm = self._link.warm or decisions < _READ_COUNT
        if decisions:
            self._look_after = time.monotonic() + _BLOCK_MS / 1000
        elif time.monotonic() >= self._look_after:
            await self._look_back(store)

    async def _look_back(self, store: Store) -> None:
        """A stream that was deleted begins anew, perhaps below where we read: then nothing would ever come."""
        self._look_after = time.monotonic() + _BLOCK_MS / 1000
        last = await store.command("XREVRANGE", self._link.keys.decisions, "+", "-", "COUNT", 1)
        if number(only_id(last)) < number(self._link.position):
            await self._resume(store)

    async def _apply_decisions(self, store: Store, entries: Any) -> None:
        for entry_id, fields in entries:
            data = _data(fields)
            self._link.cap.saw(entry_id, len(data))
            entry = self._link.wire.unpack_decisions(data)
            self._link.position = (
                entry_id  # before applying: an entry that breaks something is not read again
            )
            if isinstance(entry, Refused):
                self._peer.mirror_count(entry.value, 1)
            else:
                await self._apply(entry, store.age(number(entry_id)[0]) + entry.held_ms / 1000)
            await self._slices.give_way_if_due()

    async def _apply(self, entry: Entry, age_seconds: float) -> None:
        hearing = self._link.heard.hear(entry.origin, entry.sequence, len(entry.updates))
        if hearing.lost:
            self._lost = True
        self._link.count(lost=hearing.lost, repeated=hearing.repeated, recovered=hearing.recovered)
        for part in hearing.fresh:
            updates = entry.updates[part]
            if entry.origin == self._peer.origin:  # only the stream says whose notice came first
                updates = [update for update in updates if isinstance(update, Notice)]
            await self._slices.merge(entry.origin, updates, age_seconds)

    def _apply_gauges(self, entries: Any) -> None:
        latest: dict[str, Loads] = {}
        for entry_id, fields in entries:
            self._gauges_id = entry_id
            entry = self._link.wire.unpack_gauges(_data(fields))
            if isinstance(entry, Refused):
                self._peer.mirror_count(entry.value, 1)
            elif entry.origin != self._peer.origin:
                latest[entry.origin] = entry
        for loads in latest.values():
            self._peer.merge_gauges(loads.origin, loads.gauges, loads.tally)


def _data(fields: list[bytes]) -> bytes:
    return fields[1] if len(fields) == 2 and fields[0] == FIELD else b""
