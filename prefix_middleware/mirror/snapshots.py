"""The fleet's snapshot in Redis: written by one gateway at a time, in pieces, under a lease; read in pieces.

    version, "s", fingerprint (8), time taken in milliseconds (8), random token (8), then msgpack of `Packed`

It appears whole, by RENAME, and only while its writer holds the lease. A reader that finds another one at the end starts again.
"""

import random
import re
import secrets
import time
from typing import Final

import anyio
import msgspec

from prefix_middleware.core.snapshot import BYTE_ORDER, Snapshot
from prefix_middleware.mirror.link import Keys, Link
from prefix_middleware.mirror.pace import Slices
from prefix_middleware.mirror.store import Store, connected
from prefix_middleware.mirror.wire import VERSION, Refused, Wire

LEASE_MS: Final = 10_000
"""How long one gateway may take to write a snapshot."""
KEEP_MS: Final = 2 * 3600 * 1000
"""How long a snapshot stays when nobody writes a newer one."""

_PIECE_BYTES: Final = 256 * 1024  # what redis-py hands over in some tenths of a millisecond
_MAX_BYTES: Final = 64 * 1024 * 1024
_HEAD_BYTES: Final = 10 + 8 + 8
_TRIES: Final = 3
_REPLY_SECONDS: Final = 2.0
_HURRY_SECONDS: Final = 1.0  # those who miss the snapshot at once do not all come at once
_JITTER: Final = 0.1
_STREAM_ID = re.compile(r"\d{1,19}-\d{1,19}")


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot with the entry it goes up to and the next number of every origin."""

    stream_id: str
    taken_ms: int
    byte_order: str
    sequences: dict[str, int]
    snapshot: Snapshot


_PACKED: Final = msgspec.msgpack.Decoder(Packed)
_ENCODER: Final = msgspec.msgpack.Encoder()


class Snapshots:
    """Reads and packs the snapshots of one fleet and fingerprint."""

    def __init__(self, wire: Wire, keys: Keys) -> None:
        self._ours = bytes([VERSION]) + b"s" + wire.fingerprint
        self._keys = keys

    def pack(self, packed: Packed) -> bytearray:
        """Return the snapshot as it stands in Redis."""
        head = self._ours + packed.taken_ms.to_bytes(8, "big") + secrets.token_bytes(8)
        data = bytearray(head)
        _ENCODER.encode_into(packed, data, len(head))  # megabytes are copied once
        return data

    def unpack(self, data: bytes) -> Packed | Refused:
        """Return the snapshot, or why not; no bytes make this raise."""
        if not data.startswith(self._ours):
            return Refused.UNDECODABLE if len(data) < _HEAD_BYTES else Refused.FOREIGN
        try:
            packed = _PACKED.decode(memoryview(data)[_HEAD_BYTES:])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return Refused.UNDECODABLE
        if packed.byte_order != BYTE_ORDER:
            return Refused.FOREIGN
        sound = _STREAM_ID.fullmatch(packed.stream_id) and min(packed.sequences.values(), default=0) >= 0
        return packed if sound else Refused.UNDECODABLE

    async def age(self, store: Store) -> float | None:
        """Return how many seconds ago the fleet's snapshot was taken; None when there is none of ours."""
        head = await store.command("GETRANGE", self._keys.snapshot, 0, _HEAD_BYTES - 1)
        if not head.startswith(self._ours) or len(head) < _HEAD_BYTES:
            return None
        return store.age(int.from_bytes(head[10:18], "big"))

    async def read(self, store: Store, link: Link) -> Packed | None:
        """Return the fleet's snapshot; one that is not for us is counted."""
        data = await self._read_whole(store)
        if not data:
            return None
        packed = self.unpack(data)
        if isinstance(packed, Refused):
            link.peer.mirror_count(packed.value, 1)
            return None
        return packed

    async def _read_whole(self, store: Store) -> bytes:
        key = self._keys.snapshot
        for _ in range(_TRIES):
            pieces: list[bytes] = []
            while not pieces or len(pieces[-1]) == _PIECE_BYTES:
                start = len(pieces) * _PIECE_BYTES
                if start >= _MAX_BYTES:
                    return b""
                pieces.append(await store.command("GETRANGE", key, start, start + _PIECE_BYTES - 1))
            head = await store.command("GETRANGE", key, 0, _HEAD_BYTES - 1)
            if pieces[0].startswith(head):
                return b"".join(pieces)
        return b""


class SnapshotWriter:
    """Writes the fleet's snapshot when it is older than `seconds` and this process knows all that there is to know."""

    def __init__(self, link: Link, snapshots: Snapshots, seconds: float) -> None:
        self._link, self._snapshots, self._seconds = link, snapshots, seconds
        self._hurried = anyio.Event()
        self._since: float | None = None  # an older snapshot lacks something
        self._slices = Slices(link.peer)

    def hurry(self) -> None:
        """Write soon, unless somebody does: what is there now, if anything, lacks something."""
        self._since = time.monotonic()
        self._hurried.set()

    async def run(self) -> None:
        """Look after the snapshot until cancelled; what fails is counted and tried again at the next turn."""
        while True:
            with anyio.move_on_after(self._seconds * (1 + random.uniform(-_JITTER, _JITTER))):  # noqa: S311
                await self._hurried.wait()
                await anyio.sleep(random.random() * _HURRY_SECONDS)  # noqa: S311 - a spread, not a secret
            if not self._link.warm:
                continue
            self._hurried = anyio.Event()
            try:
                async with connected(self._link.address, _REPLY_SECONDS) as store:
                    await self._write_if_due(store)
            except Exception:  # Redis is away, which the other tasks say, or the next turn mends it
                self._link.count(snapshot_failed=1)

    async def _write_if_due(self, store: Store) -> None:
        await store.read_clock()
        age = await self._snapshots.age(store)
        fresh = self._seconds * (1 - 2 * _JITTER)
        if self._since is not None:
            fresh, self._since = min(fresh, time.monotonic() - self._since), None
        if age is not None and age < fresh:
            return
        token = secrets.token_hex(8).encode()
        if await store.command("SET", self._link.keys.lease, token, "NX", "PX", LEASE_MS) is None:
            return
        position, sequences = self._link.heard_so_far()
        taken_ms = store.milliseconds()
        snapshot: Snapshot | None = None
        for step in self._link.peer.snapshot():
            snapshot = step
            await self._slices.give_way_if_due()
        if snapshot is not None:
            packed = Packed(position.decode(), taken_ms, BYTE_ORDER, dict(sequences), snapshot)
            await self._put(store, self._snapshots.pack(packed), token)

    async def _put(self, store: Store, data: bytearray, token: bytes) -> None:
        keys = self._link.keys
        part = keys.snapshot + b":" + token
        for start in range(0, len(data), _PIECE_BYTES):
            await store.command("APPEND", part, bytes(data[start : start + _PIECE_BYTES]))
            await store.command("PEXPIRE", part, LEASE_MS)
        await store.command("WATCH", keys.lease)
        if await store.command("GET", keys.lease) != token:
            await store.command("DEL", part)
            self._link.count(snapshot_late=1)
            return
        await store.command("MULTI")
        await store.command("RENAME", part, keys.snapshot)
        await store.command("PEXPIRE", keys.snapshot, KEEP_MS)
        await store.command("DEL", keys.lease)
        done = await store.command("EXEC")
        self._link.count(**({"snapshot_late": 1} if done is None else {"snapshot": 1}))
