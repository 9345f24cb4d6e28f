"""Whatever is in a stream is refused, or read as facts that are sound: nothing raises, and nothing costs more than its bytes.

The strategies follow the fields of the facts, so a new field is generated, damaged and checked without a change here.
"""

import math
import random
import tracemalloc
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefix_middleware.core.facts import EngineFacts, Facts
from prefix_middleware.core.updates import HASH_BYTES, Gauge, Tally, Update
from prefix_middleware.mirror.wire import (
    FINGERPRINT_BYTES,
    MAX_ENTRY_BYTES,
    MAX_UPDATES,
    Entry,
    Refused,
    Wire,
)
from tests.core.bodies import hashed
from tests.core.routing import NOW, WORKERS, counters, idle, make_router, serve
from tests.mirror.peer import FINGERPRINT

WIRE = Wire(FINGERPRINT)
KINDS: Sequence[type[msgspec.Struct]] = get_args(Update)
DECISIONS_HEADER = WIRE.pack_decisions("o", [])[0][: 2 + FINGERPRINT_BYTES]
GAUGES_HEADER = WIRE.pack_gauges("o", [], None)[: 2 + FINGERPRINT_BYTES]
OURS = settings(max_examples=50, deadline=None, derandomize=True, database=None)

ORIGINS = st.text(min_size=1, max_size=300)
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "worker": st.sampled_from([*WORKERS, "w1", "stranger"]),
    "hashes": st.builds(
        lambda block, times: block * times, st.binary(min_size=8, max_size=8), st.integers(0, 9)
    ),
    "end": st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES),
    "seconds": st.floats(0, 3600),
}
BY_TYPE: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**40 - 1) | st.integers(0, 9),
    float: st.sampled_from([1.0, 2.0, 0.0]) | st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: st.text(max_size=300),
}
BY_TYPE |= {kind | None: st.none() | strategy for kind, strategy in BY_TYPE.items()}  # type: ignore[operator]
HOSTILE: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.sampled_from(
        [
            "",
            "\x1b[31m",
            "w" * 33,
            "p",
            "c",
            "w",
            "n",
            "s",
            b"",
            b"1234567",
            b"8" * 8 * 4097,
            [],
            {},
            [[]] * 9,
        ]
    ),
    st.binary(max_size=20),
    st.text(max_size=40),
)


def facts(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Return sound facts of a kind."""
    fields = msgspec.structs.fields(kind)
    return st.builds(
        kind,
        **{
            field.name: BY_NAME[field.name] if field.name in BY_NAME else BY_TYPE[field.type]
            for field in fields
        },
    )


BY_TYPE[tuple[EngineFacts, ...]] = st.lists(facts(EngineFacts), max_size=3).map(tuple)
BY_TYPE[Facts] = facts(Facts)
UPDATES = st.lists(st.one_of(*map(facts, KINDS)), max_size=6)
GAUGES = st.lists(facts(Gauge), max_size=6)
TALLIES = st.none() | facts(Tally)
DECISION_ENTRIES = st.builds(
    lambda *entry: WIRE.pack_decisions(*entry)[0],
    ORIGINS,
    UPDATES,
    st.integers(0, 2**62 - 1),
    st.integers(0, 2**40 - 1),
)
ENTRIES = DECISION_ENTRIES | st.builds(WIRE.pack_gauges, ORIGINS, GAUGES, TALLIES)


def answers(data: bytes) -> list[Any]:
    """Read bytes as both kinds of entry; fail unless each answer is a refusal or wholly sound."""
    read: list[Any] = [WIRE.unpack_decisions(data), WIRE.unpack_gauges(data)]
    for answer in read:
        if not isinstance(answer, Refused):
            assert 1 <= len(answer.origin) <= 300
            assert_sound(answer)
    decisions, gauges = read
    if not isinstance(decisions, Refused):
        assert len(decisions.updates) <= MAX_UPDATES
        entry = decisions.origin, decisions.updates, decisions.sequence, decisions.held_ms
        assert [WIRE.unpack_decisions(part) for part in WIRE.pack_decisions(*entry)] == [decisions]
    if not isinstance(gauges, Refused):
        assert WIRE.unpack_gauges(WIRE.pack_gauges(gauges.origin, gauges.gauges, gauges.tally)) == gauges
    return read


def assert_sound(value: object, name: str = "") -> None:
    """Fail unless every figure, name and hash of a fact is one that the core was made for."""
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            assert_sound(getattr(value, field.name), field.name)
    elif isinstance(value, list | tuple):
        for item in value:
            assert_sound(item)
    elif name == "worker":
        assert isinstance(value, str)
        assert 1 <= len(value) <= 32
    elif isinstance(value, str):
        assert len(value) <= 300
    elif isinstance(value, bytes):
        assert len(value) % HASH_BYTES == 0
        assert len(value) <= (HASH_BYTES if name == "end" else 4096 * HASH_BYTES)
    elif isinstance(value, int):
        assert 0 <= value < 2**63
    elif isinstance(value, float):
        assert math.isfinite(value)
        assert name != "seconds" or 0 <= value <= 3600
    else:
        assert value is None


@OURS
@given(ORIGINS, UPDATES, st.integers(0, 2**62 - 1), st.integers(0, 2**40 - 1))
def test_sound_updates_come_back_as_they_were(
    origin: str, updates: list[Update], sequence: int, held_ms: int
) -> None:
    """Every kind of update with every figure in its range is read as exactly what was packed, and as no gauges."""
    [data] = WIRE.pack_decisions(origin, updates, sequence, held_ms)
    assert answers(data) == [Entry(origin, sequence, held_ms, updates), Refused.UNDECODABLE]


@OURS
@given(ORIGINS, GAUGES, TALLIES)
def test_sound_gauges_come_back_as_they_were(origin: str, gauges: list[Gauge], tally: Tally | None) -> None:
    """Loads and tally are read as exactly what was packed, and as no decisions."""
    decisions, read = answers(WIRE.pack_gauges(origin, gauges, tally))
    assert (decisions, read.origin, read.gauges, read.tally) == (Refused.UNDECODABLE, origin, gauges, tally)


@OURS
@given(ENTRIES, st.integers(0, 2**64))
def test_every_end_cut_off_is_refused(data: bytes, at: int) -> None:
    """No part of an entry passes for a shorter one."""
    length = at % len(data)
    assert answers(data[:length]) == [Refused.UNDECODABLE, Refused.UNDECODABLE]
    assert answers(data + data[:1]) == [Refused.UNDECODABLE, Refused.UNDECODABLE]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return an entry with a few bytes flipped, dropped, put in, or taken from another entry."""
    data = bytearray(draw(ENTRIES))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "drop", "insert", "splice"])):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "drop":
                del data[at : at + draw(st.integers(1, 6))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=4))
            case _:
                data[at:] = draw(ENTRIES)[at:]
    return bytes(data)


@settings(OURS, max_examples=120)
@given(damaged())
def test_a_damaged_entry_is_refused_or_sound(data: bytes) -> None:
    """Bytes that a bad disk or a bad neighbour has changed are other sound facts or none."""
    answers(data)


@st.composite
def retyped(draw: st.DrawFn) -> bytes:
    """Return an entry in which some values, at any depth, are of another type or out of their range."""
    data = draw(ENTRIES)
    header, value = data[: len(DECISIONS_HEADER)], msgspec.msgpack.decode(data[len(DECISIONS_HEADER) :])
    for _ in range(draw(st.integers(1, 3))):
        place = value
        while (
            isinstance(place[at := draw(st.integers(0, len(place) - 1))], list)
            and place[at]
            and draw(st.booleans())
        ):
            place = place[at]
        match draw(st.sampled_from(["replace", "replace", "append", "remove"])):
            case "replace":
                place[at] = draw(HOSTILE)
            case "append":
                place.append(draw(HOSTILE))
            case _ if len(place) > 1:
                del place[at]
    return header + msgspec.msgpack.encode(value)


@settings(OURS, max_examples=120)
@given(retyped())
def test_an_entry_with_other_values_is_refused_or_sound(data: bytes) -> None:
    """Somebody who knows the layout can still not hand over a name, figure or hash that the core was not made for."""
    answers(data)


@OURS
@given(st.sampled_from([b"", DECISIONS_HEADER, GAUGES_HEADER]), st.binary(max_size=300))
def test_any_bytes_are_refused_or_sound(header: bytes, data: bytes) -> None:
    """With or without a good header."""
    answers(header + data)


@OURS
@given(st.lists(retyped() | damaged() | ENTRIES, max_size=6))
def test_what_is_read_never_breaks_a_router(entries: list[bytes]) -> None:
    """Sound facts from a hostile writer are merged without a failure, make no workers, and leave routing as it is."""
    router = make_router()
    for data in entries:
        decisions, gauges = answers(data)
        if not isinstance(decisions, Refused):
            router.merge(decisions.origin, decisions.updates, decisions.held_ms / 1000, NOW)
        if not isinstance(gauges, Refused):
            router.merge_gauges(gauges.origin, gauges.gauges, NOW)
    assert set(router.fleet.states) == set(WORKERS)
    assert serve(router, hashed("x" * 2000)) in WORKERS
    assert counters(router) == idle(router)
    loads = [router.fleet.load(state, NOW) for state in router.fleet.states.values()]
    assert all(
        math.isfinite(figure) and figure >= 0 for load in loads for figure in msgspec.structs.astuple(load)
    )


LYING = [bytes([kind]) + b"\xff\xff\xff\xff" for kind in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF)]


@pytest.mark.parametrize("size", [0, 1000, MAX_ENTRY_BYTES])
@pytest.mark.parametrize(
    "filling", [*LYING, b"\x91", b"\x90", b"\xc0", b"\x92\xa1w\x01", b"\x81", b"\xff"], ids=bytes.hex
)
def test_reading_takes_memory_in_proportion_to_the_entry(filling: bytes, size: int) -> None:
    """Promised lengths of four thousand million, deep nesting and long lists cost what their bytes are worth."""
    for head in (DECISIONS_HEADER + b"\x94\xa1o\x00\x00", GAUGES_HEADER + b"\x93\xa1o"):
        data = head + b"\xdd\x00\x00\x10\x00" * bool(size) + filling * (1 + size // len(filling))
        tracemalloc.start()
        answers(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= 100 * len(data) + 100_000


GIVEN: dict[str, Any] = {"worker": "w1", "hashes": b"\x11" * 16, "end": b"\x22" * 8, "ready": True}
GIVEN["facts"] = Facts(7.0, (EngineFacts(engine="0", model="m", kv_tokens=7),))
ONE_OF_EACH: list[Any] = [
    kind(**{
        field.name: GIVEN.get(field.name, 7)
        for field in msgspec.structs.fields(kind)
    })
    for kind in KINDS
]  # fmt: skip


def test_an_entry_with_any_one_byte_changed_is_refused_or_sound() -> None:
    """Every single byte of an entry replaced by every kind of value: each answer is a refusal or sound."""
    rng = random.Random(5)
    [data] = WIRE.pack_decisions("o1", ONE_OF_EACH, 3, 4)
    for at in range(len(data)):
        for value in (0, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xCA, 0xCF, 0xD9, 0xDD, 0xFF, rng.randrange(256)):
            answers(data[:at] + bytes([value]) + data[at + 1 :])
