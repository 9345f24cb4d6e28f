"""Reads public request traces: Mooncake, kv-cache-tester sessions, LMCache agent texts, Azure; plain or gzip.

mooncake  JSON lines {timestamp ms, input_length, output_length, hash_ids of 512-token blocks, chained}
kvcache   JSON lines, one a session {id, dup, tool, sys, reqs: [[t, in, out, api, think, [[first id, count], ...]], ...]}
lmcache   JSON lines {timestamp us, input, output, session_id}: real text, hashed as the product hashes it
azure     CSV TIMESTAMP,ContextTokens,GeneratedTokens: nothing is shared
"""

import csv
import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Final, TextIO

import msgspec
from msgspec import Struct

from bench.replay.text import TextBlocks, hashed_texts
from bench.replay.trace import Continuations, Request, Trace, chain, end_mark
from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.updates import HASH_BYTES

BLOCK_TOKENS: Final = 512
MAX_TURNS: Final = 60
MAX_SESSION_TOKENS: Final = 120_000  # a session is left before its first longer prompt
MAX_THINK_SECONDS: Final = 60.0
SESSION_START_SECONDS: Final = 60.0  # sessions begin at random within this time
QUANTUM_SECONDS: Final = 3.0  # Mooncake's conversation trace has one stamp for all of 3 s
_CHARACTERS_PER_TOKEN: Final = 4


class UnknownFormat(ValueError):
    """Raised when a file looks like none of the formats."""


@dataclass(frozen=True, slots=True)
class Options:
    """`limit` counts requests, or sessions where the trace has sessions; `preamble_tokens` are common to all sessions."""

    limit: int | None = None
    preamble_tokens: int = 15_000
    seed: int = 1


def _open(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def guess(path: Path) -> str:
    """Return the format of a file by its first line; raises UnknownFormat."""
    with _open(path) as file:
        line = file.readline()
    marks = {
        "azure": "ContextTokens",
        "mooncake": '"hash_ids"',
        "kvcache": '"reqs"',
        "lmcache": '"session_id"',
    }
    for name, mark in marks.items():
        if mark in line:
            return name
    raise UnknownFormat(f"not one of {', '.join(marks)}")


def read(path: Path, form: str, options: Options) -> Trace:
    """Read a trace; `form` is a name above or `auto`. Raises UnknownFormat, OSError, or msgspec's ValidationError."""
    reader = _READERS[guess(path) if form == "auto" else form]
    with _open(path) as file:
        return reader(path.name.split(".")[0], file, options)


class _MooncakeLine(Struct):
    timestamp: float  # ms
    input_length: int
    output_length: int
    hash_ids: list[int]


def _mooncake(name: str, lines: Iterable[str], options: Options) -> Trace:
    decode = msgspec.json.Decoder(_MooncakeLine).decode
    rows = sorted(map(decode, islice(lines, options.limit)), key=lambda row: row.timestamp)
    full = [tuple(row.hash_ids[: row.input_length // BLOCK_TOKENS]) for row in rows]
    ends = [end_mark(row.hash_ids, row.input_length) for row in rows]
    lengths = [row.input_length for row in rows]
    prompts = _hashed(full, lengths, ends)
    times = _spread([row.timestamp / 1000 for row in rows])
    first = [
        Request(at - times[0], prompt, blocks, row.input_length, max(1, row.output_length))
        for at, row, blocks, prompt in zip(times, rows, full, prompts, strict=True)
    ]
    return Trace(name, BLOCK_TOKENS, first)


def _spread(stamps: Sequence[float]) -> list[float]:
    """Undo coarse clocks: equal stamps are spread evenly over the time to the next one, at most 3 s."""
    counts = Counter(stamps)
    following = dict(pairwise([*counts, max(counts, default=0.0)]))  # the last ones stay together
    return [
        stamp + min(QUANTUM_SECONDS, following[stamp] - stamp) * number / count
        for stamp, count in counts.items()
        for number in range(count)
    ]


def _hashed(
    full: Sequence[tuple[int, ...]], lengths: Sequence[int], ends: Sequence[bytes]
) -> Iterator[HashedPrompt]:
    """Yield what the router sees of prompts that are known by block ids; equal blocks share one hash object."""
    known: dict[int, bytes] = {}
    previous = Continuations(list(zip(full, lengths, strict=True))).previous()
    steps = tuple(range(0, BLOCK_TOKENS * (max(map(len, full), default=0) + 1), BLOCK_TOKENS))
    for blocks, tokens, end, before in zip(full, lengths, ends, previous, strict=True):
        yield HashedPrompt(
            hashes=tuple(known.setdefault(b, b.to_bytes(HASH_BYTES, "little")) for b in blocks),
            matched_tokens=steps[: len(blocks) + 1],
            end=end,
            previous_end=None if before is None else ends[before],
            tokens=tokens,
            model="",
        )


class _Session(Struct):
    id: str
    reqs: list[tuple[float, int, int, float, float, list[tuple[int, int]]]]
    dup: int = 0


def _kvcache(name: str, lines: Iterable[str], options: Options) -> Trace:
    decode = msgspec.json.Decoder(_Session).decode
    sessions = (session for session in map(decode, lines) if not session.dup)
    usable = (turns for session in sessions if (turns := _turns(session)))
    chosen = list(islice(usable, options.limit))
    random = Random(options.seed)
    preamble = options.preamble_tokens // BLOCK_TOKENS
    first = [
        _session(number, turns, preamble, SESSION_START_SECONDS * random.random())
        for number, turns in enumerate(chosen, 1)
    ]
    return Trace(name, BLOCK_TOKENS, sorted(first, key=lambda request: request.at))


@dataclass(frozen=True, slots=True)
class _Turn:
    tokens: int
    output: int
    think: float
    ids: list[int]


def _turns(session: _Session) -> list[_Turn]:
    turns: list[_Turn] = []
    for _, tokens, output, _, think, runs in session.reqs[:MAX_TURNS]:
        if tokens > MAX_SESSION_TOKENS:
            break
        ids = [first + i for first, count in runs for i in range(count)][: tokens // BLOCK_TOKENS]
        turns.append(_Turn(tokens, max(1, output), min(MAX_THINK_SECONDS, max(0.0, think)), ids))
    return turns


def _session(number: int, turns: Sequence[_Turn], preamble: int, at: float) -> Request:
    base = number << 32  # ids are the session's own, but for the preamble, where position and id are one
    full = [tuple(id if id < preamble else base + id for id in turn.ids) for turn in turns]
    lengths = [turn.tokens for turn in turns]
    ends = [end_mark(blocks, length, number) for blocks, length in zip(full, lengths, strict=True)]
    requests = [
        Request(turn.think if i else at, prompt, blocks, turn.tokens, turn.output)
        for i, (turn, blocks, prompt) in enumerate(
            zip(turns, full, _hashed(full, lengths, ends), strict=True)
        )
    ]
    return chain(requests)


class _TextLine(Struct):
    timestamp: float  # us
    input: str
    output: str
    session_id: str


def _lmcache(name: str, lines: Iterable[str], options: Options) -> Trace:
    rows = list(map(msgspec.json.Decoder(_TextLine).decode, islice(lines, options.limit)))
    rows.sort(key=lambda row: row.timestamp)
    blocks = TextBlocks()
    prompts = hashed_texts([(row.session_id, row.input) for row in rows])
    first = []
    for row, prompt in zip(rows, prompts, strict=True):
        ids = blocks.of(row.input)
        at = (row.timestamp - rows[0].timestamp) / 1e6
        output = max(1, len(row.output) // _CHARACTERS_PER_TOKEN)
        first.append(Request(at, prompt, ids, prompt.tokens, output))
    return Trace(name, blocks.block_tokens, first)


def _azure(name: str, lines: Iterable[str], options: Options) -> Trace:
    rows = [
        (
            datetime.fromisoformat(row["TIMESTAMP"][:26]),
            int(row["ContextTokens"]),
            int(row["GeneratedTokens"]),
        )
        for row in islice(csv.DictReader(lines), options.limit)
    ]
    rows.sort(key=lambda row: row[0])
    fresh = iter(range(1 << 62))
    lengths = [max(1, tokens) for _, tokens, _ in rows]
    full = [tuple(islice(fresh, tokens // BLOCK_TOKENS)) for tokens in lengths]
    ends = [end_mark(position) for position in range(len(rows))]
    first = [
        Request((at - rows[0][0]).total_seconds(), prompt, blocks, prompt.tokens, max(1, output))
        for (at, _, output), blocks, prompt in zip(rows, full, _hashed(full, lengths, ends), strict=True)
    ]
    return Trace(name, BLOCK_TOKENS, first)


_READERS: Final[dict[str, Callable[[str, Iterable[str], Options], Trace]]] = {
    "mooncake": _mooncake,
    "kvcache": _kvcache,
    "lmcache": _lmcache,
    "azure": _azure,
}
FORMATS: Final = ("auto", *_READERS)
