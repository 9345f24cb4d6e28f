"""The mirror of a fleet: two Redis Streams, a writer and a reader with one connection each.

    decisions   batched updates of everybody, capped by bytes; a reader begins at the start: its warm start
    gauges      everybody's absolute loads; a reader begins at the end, for old loads mean nothing

Both names carry one Cluster hash tag, so one XREAD serves both. An ACL user needs XADD, XREAD, XRANGE,
XREVRANGE and TIME on the keys `{prefix:*`.
"""

import time
from collections import deque
from itertools import islice
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint

from prefix_middleware.core.updates import Gauge, Notice, Update
from prefix_middleware.mirror import Peer
from prefix_middleware.mirror.pace import WAIT_SECONDS, Backoff, GaugePace, Slices
from prefix_middleware.mirror.store import Command, Store, connected, reason_of, shown_url
from prefix_middleware.mirror.wire import Refused, Wire

MAX_PENDING: Final = 8192
"""Updates kept while Redis does not take them; the oldest are dropped beyond."""

_FIELD: Final = b"d"
_START: Final = b"0-0"
_DECISIONS_BYTES: Final = 64 * 1024 * 1024
_ENTRY_OVERHEAD_BYTES: Final = 32  # id, field and listpack bytes of one entry in Redis, about
_MEAN_ENTRY_BYTES: Final = 2048.0  # assumed until entries are seen: a prompt of 144 blocks and its figures
_MEAN_WEIGHT: Final = 1 / 256
_MIN_DECISIONS: Final = 256
_MAX_GAUGES: Final = 1000
_BATCH: Final = 512  # updates in one round trip: well under a second's worth of any link
_READ_COUNT: Final = 16  # what redis-py parses in under 1 ms, the event loop held
_BLOCK_MS: Final = 1000
_WRITE_REPLY_SECONDS: Final = 1.0
_READ_REPLY_SECONDS: Final = 4.0  # well above the time XREAD may block
_DRAIN_SECONDS: Final = 0.25  # between two drains while Redis is away


class RedisMirror:
    """Carries one fleet over Redis; the constructor opens nothing, so it survives a fork."""

    def __init__(self, url: str, fleet: str, fingerprint: bytes, *, shadow: bool = False) -> None:
        tag = f"{{prefix:{fleet}:shadow}}" if shadow else f"{{prefix:{fleet}}}"
        self._url = url
        self._wire = Wire(fingerprint)
        self._streams = _Streams(f"{tag}:decisions".encode(), f"{tag}:gauges".encode())

    async def run(self, peer: Peer) -> None:
        """Carry for `peer` until cancelled. Failures of Redis are retried here and never leave."""
        state = _State(peer, shown_url(self._url))
        writer = _Writer(self._url, self._wire, self._streams, peer, state)
        reader = _Reader(self._url, self._wire, self._streams, peer, state)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            tasks.start_soon(reader.run)


class _Streams:
    """The two stream names, and how long the first may grow."""

    def __init__(self, decisions: bytes, gauges: bytes) -> None:
        self.decisions = decisions
        self.gauges = gauges
        self._mean = _MEAN_ENTRY_BYTES

    def saw(self, size: int) -> None:
        """Note the bytes of an entry of the decisions stream, whoever wrote it."""
        self._mean += (size - self._mean) * _MEAN_WEIGHT

    def max_decisions(self) -> int:
        """Entries that make up 64 MB.

        Redis trims by number only, so the number is the cap over the mean size of what was read lately. After
        a change of the usual size the stream may reach about twice the cap, until the old entries have left it.
        """
        return max(_MIN_DECISIONS, int(_DECISIONS_BYTES / (self._mean + _ENTRY_OVERHEAD_BYTES)))


class _State:
    """Whether Redis takes and gives, told to the peer once per change.

    When either loop fails, both must prove themselves again: the other may sit on a dead connection unawares.
    """

    def __init__(self, peer: Peer, shown: str) -> None:
        self._peer = peer
        self._shown = shown
        self._proven: set[str] = set()
        self._connected: bool | None = None

    def needs(self, loop: str) -> bool:
        return loop not in self._proven

    def proved(self, loop: str) -> None:
        self._proven.add(loop)
        if len(self._proven) == 2 and not self._connected:
            self._connected = True
            self._peer.mirror_state(True, self._shown)

    def failed(self, reason: str) -> None:
        self._proven.clear()
        if self._connected is not False:
            self._connected = False
            self._peer.mirror_state(False, reason)


class _Writer:
    """Drains the peer and appends: at once when there are updates, loads at their pace."""

    def __init__(self, url: str, wire: Wire, streams: _Streams, peer: Peer, state: _State) -> None:
        self._url, self._wire, self._streams, self._peer, self._state = url, wire, streams, peer, state
        self._pending: deque[Update] = deque()
        self._pace = GaugePace()
        self._backoff = Backoff()

    async def run(self) -> None:
        while True:
            try:
                async with connected(self._url, _WRITE_REPLY_SECONDS) as store:
                    while True:
                        await self._write(store)
                        if not self._pending:
                            await self._peer.wait(WAIT_SECONDS)
                        await checkpoint()  # a wait that returns at once must not hold the loop
            except Exception as error:  # whatever it is, routing goes on and we try again
                self._state.failed(reason_of(error, self._url))
                await self._pause(self._backoff.next())

    async def _write(self, store: Store) -> None:
        self._take()
        if self._state.needs("writer"):
            self._pace.force()  # only a write proves it: a full or read-only Redis answers PING well
        batch = list(islice(self._pending, _BATCH))
        now, gauges = time.monotonic(), self._peer.gauges()
        loads_due = self._pace.due(now, gauges)
        commands = self._commands(batch, gauges if loads_due else None)
        if not commands:
            return
        await store.commands(commands)
        for _ in batch:
            self._pending.popleft()
        if loads_due:
            self._pace.sent(now, gauges)
        self._backoff.reset()
        self._state.proved("writer")

    def _commands(self, batch: list[Update], gauges: list[Gauge] | None) -> list[Command]:
        origin, decisions, longest = self._peer.origin, self._streams.decisions, self._streams.max_decisions()
        entries = self._wire.pack_decisions(origin, batch) if batch else []
        commands: list[Command] = [
            ("XADD", decisions, "MAXLEN", "~", longest, "*", _FIELD, entry) for entry in entries
        ]
        if gauges is not None:
            entry = self._wire.pack_gauges(origin, gauges)
            commands.append(("XADD", self._streams.gauges, "MAXLEN", "~", _MAX_GAUGES, "*", _FIELD, entry))
        return commands

    def _take(self) -> None:
        self._pending.extend(self._peer.drain())
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


class _Reader:
    """Follows both streams and hands the peer what others wrote."""

    def __init__(self, url: str, wire: Wire, streams: _Streams, peer: Peer, state: _State) -> None:
        self._url, self._wire, self._streams, self._peer, self._state = url, wire, streams, peer, state
        self._decisions_id = _START
        self._gauges_id = _START
        self._slices = Slices(peer)
        self._backoff = Backoff()

    async def run(self) -> None:
        while True:
            try:
                async with connected(self._url, _READ_REPLY_SECONDS) as store:
                    await self._resume(store)
                    self._backoff.reset()
                    while True:
                        self._state.proved("reader")
                        await self._read(store)
            except Exception as error:  # whatever it is, routing goes on and we try again
                self._state.failed(reason_of(error, self._url))
                await anyio.sleep(self._backoff.next())

    async def _resume(self, store: Store) -> None:
        """Settle where to go on: decisions after the last one read, gauges at their end."""
        await store.read_clock()
        first = _only_id(await store.command("XRANGE", self._streams.decisions, "-", "+", "COUNT", 1))
        last = _only_id(await store.command("XREVRANGE", self._streams.decisions, "+", "-", "COUNT", 1))
        self._gauges_id = _only_id(
            await store.command("XREVRANGE", self._streams.gauges, "+", "-", "COUNT", 1)
        )
        mine = _number(self._decisions_id)
        if self._decisions_id == _START:
            return
        if _number(last) < mine:  # another, younger stream: XREAD after our id would stay silent
            self._decisions_id = _START
            self._peer.mirror_count("gap", 1)
        elif _number(first) > mine:  # trimmed past us, or a new stream that has already overtaken us
            self._peer.mirror_count("gap", 1)

    async def _read(self, store: Store) -> None:
        streams = (self._streams.decisions, self._streams.gauges, self._decisions_id, self._gauges_id)
        reply = await store.command("XREAD", "COUNT", _READ_COUNT, "BLOCK", _BLOCK_MS, "STREAMS", *streams)
        await self._slices.give_way()  # parsing the reply has held the loop already
        for name, entries in reply or ():
            if name == self._streams.decisions:
                await self._apply_decisions(store, entries)
            else:
                self._apply_gauges(entries)

    async def _apply_decisions(self, store: Store, entries: Any) -> None:
        for entry_id, fields in entries:
            self._decisions_id = entry_id  # before applying: an entry that breaks something is not read again
            data = _data(fields)
            self._streams.saw(len(data))
            entry = self._wire.unpack_decisions(data)
            if isinstance(entry, Refused):
                self._peer.mirror_count(entry.value, 1)
            else:
                await self._merge(*entry, store.age(_number(entry_id)[0]))
            await self._slices.give_way_if_due()

    async def _merge(self, origin: str, updates: list[Update], age_seconds: float) -> None:
        if origin == self._peer.origin:  # only the stream says whose notice came first
            updates = [update for update in updates if isinstance(update, Notice)]
        await self._slices.merge(origin, updates, age_seconds)

    def _apply_gauges(self, entries: Any) -> None:
        latest: dict[str, list[Gauge]] = {}
        for entry_id, fields in entries:
            self._gauges_id = entry_id
            entry = self._wire.unpack_gauges(_data(fields))
            if isinstance(entry, Refused):
                self._peer.mirror_count(entry.value, 1)
            elif entry[0] != self._peer.origin:
                latest[entry[0]] = entry[1]
        for origin, gauges in latest.items():
            self._peer.merge_gauges(origin, gauges)


def _data(fields: list[bytes]) -> bytes:
    return fields[1] if len(fields) == 2 and fields[0] == _FIELD else b""


def _only_id(entries: Any) -> bytes:
    return bytes(entries[0][0]) if entries else _START


def _number(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence)
