"""Entries as bytes: pinned, checked, and never an exception."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_middleware.core.facts import EngineFacts, Facts
from prefix_middleware.core.updates import (
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
from prefix_middleware.mirror.wire import MAX_ENTRY_BYTES, MAX_UPDATES, Entry, Loads, Refused, Wire
from tests.mirror.peer import FINGERPRINT, confirmed

WIRE = Wire(FINGERPRINT)
EVERY_UPDATE: list[Update] = [
    Provisional(7, "w1", 1.5, b"\x11" * 16, b"\x22" * 8, 300, 100, 200, 1200),
    Confirmed(7, "w1", 1.5, b"\x11" * 16, b"\x22" * 8, 300, 100, 200, 1200),
    Withdrawn(8),
    Notice("w2", 1.5, 2.5),
    Suspect("w3", 1.5, 4.0),
    Said(
        "w1", True, Facts(1.5, (EngineFacts(engine="0", model="m", caching=True, block_size=16, requests=9),))
    ),
]
GAUGES = [Gauge("w1", 1.5, 3, 4000, 5000)]
TALLY = Tally(900, 800, 70)
GOLDEN_DECISIONS = bytes.fromhex(
    "0364" + FINGERPRINT.hex() + "94a26f3106cd05dc96"
    "9aa17007a27731cb3ff8000000000000c41011111111111111111111111111111111c4082222222222222222cd012c64ccc8cd04b0"
    "9aa16307a27731cb3ff8000000000000c41011111111111111111111111111111111c4082222222222222222cd012c64ccc8cd04b0"
    "92a17708"
    "94a16ea27732cb3ff8000000000000cb4004000000000000"
    "94a173a27733cb3ff8000000000000cb4010000000000000"
    "94a166a27731c392cb3ff800000000000091dc0010a130a16dc310c0c0c0c00000c0c209c0c0c0"
)
GOLDEN_GAUGES = bytes.fromhex(
    "0367" + FINGERPRINT.hex() + "93a26f319195a27731cb3ff800000000000003cd0fa0cd138893cd0384cd032046"
)


def entry(kind: bytes, origin: object, facts: object, fingerprint: bytes = FINGERPRINT) -> bytes:
    """Return an entry as somebody else could write it."""
    body = (origin, facts, None) if kind == b"g" else (origin, 0, 0, facts)
    return b"\x03" + kind + fingerprint + msgspec.msgpack.encode(body)


def test_decisions_are_written_as_pinned() -> None:
    """The layout is what gateways of other releases read: changing it needs a new VERSION."""
    assert WIRE.pack_decisions("o1", EVERY_UPDATE, 6, 1500) == [GOLDEN_DECISIONS]


def test_gauges_are_written_as_pinned() -> None:
    """The layout is what gateways of other releases read: changing it needs a new VERSION."""
    assert WIRE.pack_gauges("o1", GAUGES, TALLY) == GOLDEN_GAUGES


def test_pinned_bytes_are_read_back_whole() -> None:
    """Reading gives exactly what was packed."""
    read = (WIRE.unpack_decisions(GOLDEN_DECISIONS), WIRE.unpack_gauges(GOLDEN_GAUGES))
    expected: tuple[object, object] = (Entry("o1", 6, 1500, EVERY_UPDATE), Loads("o1", GAUGES, TALLY))
    assert read == expected


def test_another_fingerprint_or_version_is_foreign() -> None:
    """Another key, window, scheme or layout is somebody else's: ignored, not broken."""
    other = Wire(b"otherkey")
    later = b"\x04" + GOLDEN_DECISIONS[1:]
    read = (
        other.unpack_decisions(GOLDEN_DECISIONS),
        other.unpack_gauges(GOLDEN_GAUGES),
        WIRE.unpack_decisions(later),
    )
    assert read == (Refused.FOREIGN, Refused.FOREIGN, Refused.FOREIGN)


def test_an_entry_of_the_other_stream_is_undecodable() -> None:
    """A gauge whose worker is called `w` has the shape of a withdrawal; its kind keeps them apart."""
    read = (WIRE.unpack_decisions(GOLDEN_GAUGES), WIRE.unpack_gauges(GOLDEN_DECISIONS))
    assert read == (Refused.UNDECODABLE, Refused.UNDECODABLE)


def test_a_fingerprint_has_eight_bytes() -> None:
    """A fingerprint of another length would shift every field behind it."""
    with pytest.raises(ValueError, match="fingerprint has 3 bytes, not 8"):
        Wire(b"abc")


RECORD = ["c", 1, "w1", 1.0, b"", b"12345678", 1, 0, 1]


@pytest.mark.parametrize(
    "update",
    [
        ["c", -1, *RECORD[2:]],
        ["c", 2**63, *RECORD[2:]],
        ["c", 1, "w" * 33, *RECORD[3:]],
        ["c", 1, "", *RECORD[3:]],
        ["c", 1, "w1", float("nan"), *RECORD[4:]],
        ["c", 1, "w1", float("inf"), *RECORD[4:]],
        ["p", 1, "w1", 1.0, b"1234567", *RECORD[5:]],
        ["p", 1, "w1", 1.0, b"12345678" * 4097, *RECORD[5:]],
        ["c", 1, "w1", 1.0, b"", b"1234567", 1, 0, 1],
        ["c", 1, "w1", 1.0, b"", b"12345678", -1, 0, 1],
        ["c", 1, "w1", 1.0, b"", b"12345678", 1, 2**40, 1],
        ["c", 1, "w1", 1.0, b"", b"12345678", 1, 0, 0.5],
        ["w", -1],
        ["n", "w1", 1.0, float("nan")],
        ["n", "w" * 33, 1.0, 2.0],
        ["s", "w1", 1.0, float("inf")],
        ["s", "w1", 1.0, -1.0],
        ["c", 1, "w1", 1.0, b"", b"12345678", 1, 0, 1, -1],
        ["f", "w" * 33, True, []],
        ["f", "w1", True, [float("nan")]],
        ["f", "w1", True, [None, [["0"]] * 129]],
        ["f", "w1", True, [None, [["0", "m", True, -16]]]],
        ["f", "w1", True, [None, [["0", "m", True, 16, None, None, None, None, 2**40]]]],
        ["f", "w1", 1, []],
        ["x", 1],
        7,
    ],
)
def test_an_unsound_update_spoils_its_entry(update: object) -> None:
    """Whoever can write to Redis must not be able to hand the core a figure it was not made for."""
    assert WIRE.unpack_decisions(entry(b"d", "o1", [RECORD, update])) == Refused.UNDECODABLE


@pytest.mark.parametrize(
    "gauge",
    [
        ["w" * 33, 1.0, 1, 1, 1],
        ["w1", float("nan"), 1, 1, 1],
        ["w1", 1.0, -1, 1, 1],
        ["w1", 1.0, 1, 2**40, 1],
        ["w1", 1.0, 1, 1, -1],
        ["w1", 1.0],
    ],
)
def test_an_unsound_gauge_spoils_its_entry(gauge: object) -> None:
    """A negative or huge load would pull or push every choice of the fleet."""
    assert WIRE.unpack_gauges(entry(b"g", "o1", [gauge])) == Refused.UNDECODABLE


@pytest.mark.parametrize("tally", [[-1, 0, 0], [0, 2**40, 0], [0, 0], [0, 0, 0.5], 7])
def test_an_unsound_tally_spoils_its_entry(tally: object) -> None:
    """What an operator reads is checked as well."""
    packed = msgspec.msgpack.encode(("o1", [], tally))
    assert WIRE.unpack_gauges(b"\x03g" + FINGERPRINT + packed) == Refused.UNDECODABLE


@pytest.mark.parametrize("origin", ["", "o" * 301, 5, None])
def test_an_unsound_origin_spoils_its_entry(origin: object) -> None:
    """Origins become keys of every receiver's memory."""
    assert WIRE.unpack_decisions(entry(b"d", origin, [["w", 1]])) == Refused.UNDECODABLE


def test_too_many_updates_spoil_their_entry() -> None:
    """An entry may not hold the receiver for longer than a packed one would."""
    read = WIRE.unpack_decisions(entry(b"d", "o1", [["w", 1]] * (MAX_UPDATES + 1)))
    assert read == Refused.UNDECODABLE


@pytest.mark.parametrize(
    "body",
    [b"\x94\xa1o\x00\x00\xdd\xff\xff\xff\xff", b"\x94\xa1o\x00\x00\x91\x93\xa1w\x01" + b"\x91" * 100_000],
)
def test_lengths_and_nesting_that_lie_are_undecodable(body: bytes) -> None:
    """A promised length of four thousand million and a hundred thousand brackets cost nothing."""
    assert WIRE.unpack_decisions(b"\x03d" + FINGERPRINT + body) == Refused.UNDECODABLE


@pytest.mark.parametrize(("count", "blocks"), [(1000, 144), (MAX_UPDATES * 2 + 1, 0), (20, 4096)])
def test_large_batches_are_split_in_order(count: int, blocks: int) -> None:
    """No entry is larger than 256 KiB or longer than what readers accept, and nothing is lost or moved."""
    updates = [confirmed(i, blocks=blocks) for i in range(count)]
    entries = WIRE.pack_decisions("o1", updates)
    read = [WIRE.unpack_decisions(packed) for packed in entries]
    assert max(map(len, entries)) <= MAX_ENTRY_BYTES
    parts = [part for part in read if not isinstance(part, Refused)]
    assert [update for part in parts for update in part.updates] == updates
    assert [part.sequence for part in parts] == [
        sum(len(p.updates) for p in parts[:i]) for i in range(len(parts))
    ]


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(data: bytes) -> None:
    """Anything may be in a stream; the answer is a refusal."""
    assert isinstance(WIRE.unpack_decisions(data), Refused)
    assert isinstance(WIRE.unpack_gauges(data), Refused)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_behind_a_good_header_never_raise(data: bytes) -> None:
    """The header does not vouch for what follows."""
    for read in (
        WIRE.unpack_decisions(b"\x03d" + FINGERPRINT + data),
        WIRE.unpack_gauges(b"\x03g" + FINGERPRINT + data),
    ):
        assert isinstance(read, Refused | Entry | Loads)


@given(st.integers(0, len(GOLDEN_DECISIONS) - 1))
def test_truncated_entries_are_refused(length: int) -> None:
    """Half an entry is none."""
    assert WIRE.unpack_decisions(GOLDEN_DECISIONS[:length]) == Refused.UNDECODABLE


@given(st.integers(0, len(GOLDEN_DECISIONS) * 8 - 1))
def test_flipped_bits_never_raise(bit: int) -> None:
    """A damaged entry is read as other sound facts or refused."""
    damaged = bytearray(GOLDEN_DECISIONS)
    damaged[bit // 8] ^= 1 << bit % 8
    assert isinstance(WIRE.unpack_decisions(bytes(damaged)), Refused | Entry)
