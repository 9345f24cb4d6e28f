"""Mirror entries as bytes: version, kind, fingerprint, then msgpack. Pure.

    decisions   (origin, sequence, held, updates)   sequence: the number of the first update among all of its origin
    gauges      (origin, gauges, tally)             held: milliseconds that the updates waited before they were written

What arrives was written by whoever may write to the store, so every figure is checked before a peer sees it.
A new layout gets a new VERSION; gateways of another version, scheme, key or window ignore each other's entries.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgspec

from prefix_middleware.core.facts import MAX_ENGINES, Facts
from prefix_middleware.core.updates import (
    HASH_BYTES,
    Confirmed,
    Gauge,
    Notice,
    Provisional,
    Said,
    Suspect,
    Tally,
    Update,
    Withdrawn,
)

VERSION: Final = 3
FINGERPRINT_BYTES: Final = 8
MAX_UPDATES: Final = 4096
"""Updates in one entry."""
MAX_ENTRY_BYTES: Final = 256 * 1024
"""Size above which a writer splits an entry; a single update is never split."""

_HEADER_BYTES: Final = 2 + FINGERPRINT_BYTES
_MAX_GAUGES: Final = 65_536
_MAX_HASHES_BYTES: Final = 4096 * HASH_BYTES
_MAX_WORKER_CHARS: Final = 32
_MAX_NAME_CHARS: Final = 300
_MAX_COUNT: Final = 2**40
_MAX_RECORD: Final = 2**63
_MAX_SUSPECT_SECONDS: Final = 3600.0

_MAX_HELD_MS: Final = 2**40
_MAX_SEQUENCE: Final = 2**62

_Origin = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
_T = TypeVar("_T")


class Refused(StrEnum):
    """Why an entry was not read; the values are the counters of `Peer.mirror_count`."""

    FOREIGN = "foreign"
    UNDECODABLE = "undecodable"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Updates of one origin, numbered from `sequence`; the writer held them back for `held_ms`."""

    origin: _Origin
    sequence: Annotated[int, msgspec.Meta(ge=0, lt=_MAX_SEQUENCE)]
    held_ms: Annotated[int, msgspec.Meta(ge=0, lt=_MAX_HELD_MS)]
    updates: Annotated[list[Update], msgspec.Meta(max_length=MAX_UPDATES)]  # refused before one is decoded


class Loads(msgspec.Struct, frozen=True, array_like=True):
    """All loads of one origin, and its tally; None is somebody who only looks."""

    origin: _Origin
    gauges: Annotated[list[Gauge], msgspec.Meta(max_length=_MAX_GAUGES)]
    tally: Tally | None


class Wire:
    """Packs and unpacks the entries of one fingerprint (8 bytes: scheme version, key and window)."""

    def __init__(self, fingerprint: bytes) -> None:
        if len(fingerprint) != FINGERPRINT_BYTES:
            raise ValueError(f"fingerprint has {len(fingerprint)} bytes, not {FINGERPRINT_BYTES}")
        self.fingerprint = fingerprint
        self._decisions = bytes([VERSION]) + b"d" + fingerprint
        self._gauges = bytes([VERSION]) + b"g" + fingerprint

    def pack_decisions(
        self, origin: str, updates: Sequence[Update], sequence: int = 0, held_ms: int = 0
    ) -> list[bytes]:
        """Return one entry, or several in order where one would be too large."""
        packed = msgspec.msgpack.encode(Entry(origin, sequence, held_ms, list(updates)))
        entry = self._decisions + packed
        if len(updates) <= MAX_UPDATES and (len(entry) <= MAX_ENTRY_BYTES or len(updates) == 1):
            return [entry]
        half = len(updates) // 2
        first = self.pack_decisions(origin, updates[:half], sequence, held_ms)
        return first + self.pack_decisions(origin, updates[half:], sequence + half, held_ms)

    def pack_gauges(self, origin: str, gauges: Sequence[Gauge], tally: Tally | None) -> bytes:
        """Return the entry that says all loads of `origin`."""
        return self._gauges + msgspec.msgpack.encode(Loads(origin, list(gauges), tally))

    def unpack_decisions(self, entry: bytes) -> Entry | Refused:
        """Return the entry, or why not; no bytes make this raise."""
        unpacked = _unpacked(entry, self._decisions, _ENTRY)
        if isinstance(unpacked, Refused):
            return unpacked
        sound = all(map(_is_sound_update, unpacked.updates))
        return unpacked if sound else Refused.UNDECODABLE

    def unpack_gauges(self, entry: bytes) -> Loads | Refused:
        """Return the loads, or why not; no bytes make this raise."""
        unpacked = _unpacked(entry, self._gauges, _LOADS)
        if isinstance(unpacked, Refused):
            return unpacked
        sound = all(map(_is_sound_gauge, unpacked.gauges))
        return unpacked if sound and _is_sound_tally(unpacked.tally) else Refused.UNDECODABLE


_ENTRY: Final = msgspec.msgpack.Decoder(Entry)
_LOADS: Final = msgspec.msgpack.Decoder(Loads)


def _refused(entry: bytes, header: bytes) -> Refused | None:
    if entry.startswith(header):
        return None
    ours = entry[:1] == header[:1] and entry[2:_HEADER_BYTES] == header[2:]
    return Refused.UNDECODABLE if ours or len(entry) < _HEADER_BYTES else Refused.FOREIGN


def _unpacked(entry: bytes, header: bytes, decoder: "msgspec.msgpack.Decoder[_T]") -> "_T | Refused":
    refused = _refused(entry, header)
    if refused is not None:
        return refused
    try:
        return decoder.decode(memoryview(entry)[_HEADER_BYTES:])
    except (
        msgspec.MsgspecError,
        ValueError,
        RecursionError,
    ):  # the last: nesting in an array longer than ours
        return Refused.UNDECODABLE


def _is_sound_update(update: Update) -> bool:
    match update:
        case Provisional() | Confirmed():
            tokens = update.prompt_tokens, update.matched_tokens, update.uncached_tokens
            return (
                _is_record(update.record)
                and _is_worker(update.worker, update.epoch)
                and len(update.hashes) % HASH_BYTES == 0
                and len(update.hashes) <= _MAX_HASHES_BYTES
                and len(update.end) == HASH_BYTES
                and _are_counts(*tokens, update.text_bytes)
            )
        case Withdrawn():
            return _is_record(update.record)
        case Notice():
            return _is_worker(update.worker, update.old) and math.isfinite(update.new)
        case Suspect():
            return _is_worker(update.worker, update.epoch) and 0 <= update.seconds <= _MAX_SUSPECT_SECONDS
        case Said():
            return _is_worker(update.worker, update.facts.start_time or 0.0) and _are_facts(update.facts)


def _is_sound_gauge(gauge: Gauge) -> bool:
    return _is_worker(gauge.worker, gauge.epoch) and _are_counts(
        gauge.in_flight, gauge.backlog_tokens, gauge.prompt_tokens
    )


def _is_sound_tally(tally: Tally | None) -> bool:
    return tally is None or _are_counts(tally.decided, tally.injected, tally.echoed)


def _are_facts(facts: Facts) -> bool:
    if len(facts.engines) > MAX_ENGINES:
        return False
    for engine in facts.engines:
        if max(len(engine.engine), len(engine.model), len(engine.mamba_cache_mode or "")) > _MAX_NAME_CHARS:
            return False
        sizes = engine.block_size, engine.match_unit, engine.sliding_window, engine.kv_tokens
        figures = *engine.counters, *sizes, engine.running, engine.waiting
        if not _are_counts(*(figure for figure in figures if figure is not None)):
            return False
    return True


def _is_record(record: int) -> bool:
    return 0 <= record < _MAX_RECORD


def _is_worker(worker: str, epoch: float) -> bool:
    return 0 < len(worker) <= _MAX_WORKER_CHARS and math.isfinite(epoch)


def _are_counts(*counts: int) -> bool:
    return all(0 <= count < _MAX_COUNT for count in counts)
