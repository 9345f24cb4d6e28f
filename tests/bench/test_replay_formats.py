"""Each public trace format on a few lines written by hand, and which prompt continues which."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.replay.formats import MAX_TURNS, Options, UnknownFormat, guess, read
from bench.replay.text import TextBlocks
from bench.replay.trace import Continuations, Request, Trace, chain, end_mark, holdable, turns
from prefix_middleware.core.blocks import HashedPrompt, Hasher
from prefix_middleware.core.canonical import CanonicalPrompt, canonical_prompt
from prefix_middleware.settings import Settings

SIZE = 512


def lines(path: Path, *rows: object) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mooncake(timestamp: int, tokens: int, ids: Sequence[int], output: int = 5) -> dict[str, object]:
    return {"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": list(ids)}


def hashed(ids: Sequence[int], end: bytes, previous_end: bytes | None, tokens: int) -> HashedPrompt:
    """Return the prompt that the router should see for these full blocks."""
    return HashedPrompt(
        hashes=tuple(i.to_bytes(8, "little") for i in ids),
        matched_tokens=tuple(range(0, SIZE * (len(ids) + 1), SIZE)),
        end=end,
        previous_end=previous_end,
        tokens=tokens,
        model="",
    )


def fields(trace: Trace) -> list[tuple[float, HashedPrompt, tuple[int, ...], int, int]]:
    """Return every request as plain values."""
    return [(r.at, r.prompt, r.blocks, r.input_tokens, r.output_tokens) for r in turns(trace.first)]


def test_mooncake_ids_become_blocks_and_hashes(tmp_path: Path) -> None:
    """Only full blocks count; a prompt that repeats another's full blocks and goes on continues it; times begin at 0."""
    path = lines(
        tmp_path / "t.jsonl",
        mooncake(3000, 1100, [0, 7, 8]),
        mooncake(6000, 1700, [0, 7, 9, 10], 0),
    )
    ends = end_mark([0, 7, 8], 1100), end_mark([0, 7, 9, 10], 1700)

    trace = read(path, "auto", Options())

    assert fields(trace) == [
        (0.0, hashed([0, 7], ends[0], None, 1100), (0, 7), 1100, 5),
        (3.0, hashed([0, 7, 9], ends[1], ends[0], 1700), (0, 7, 9), 1700, 1),
    ]
    assert (trace.name, trace.block_tokens, trace.requests, trace.prompt_tokens) == ("t", SIZE, 2, 2800)
    assert trace.hashed_block_tokens() == (SIZE,) * 3


def test_a_limit_reads_the_first_requests_only(tmp_path: Path) -> None:
    """`limit` counts requests where there are no sessions."""
    path = lines(tmp_path / "t.jsonl", *(mooncake(1000 * i, 600, [i, 90 + i]) for i in range(5)))

    assert [r.at for r in read(path, "mooncake", Options(limit=2)).first] == [0.0, 1.0]


def test_requests_of_one_stamp_are_spread(tmp_path: Path) -> None:
    """A trace whose clock ticks every 3 s does not mean bursts: evenly until the next stamp, at most 3 s."""
    stamps = [0, 0, 3000, 3000, 3000, 9000, 9000]
    path = lines(tmp_path / "t.jsonl", *(mooncake(stamp, 600, [i, 90 + i]) for i, stamp in enumerate(stamps)))

    assert [r.at for r in read(path, "mooncake", Options()).first] == [0.0, 1.5, 3.0, 4.0, 5.0, 9.0, 9.0]


def test_gzip_is_read_like_plain_text(tmp_path: Path) -> None:
    """A name that ends in .gz is unpacked."""
    plain = lines(tmp_path / "t.jsonl", mooncake(0, 600, [1, 2]))
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    assert fields(read(packed, "auto", Options())) == fields(read(plain, "auto", Options()))


def test_sessions_wait_for_their_own_answers(tmp_path: Path) -> None:
    """A later turn's time is its think time, at most 60 s; ids are the session's own, but for the common preamble."""
    reqs = [[0.0, 1100, 4, 7.0, 0, [[0, 2]]], [90.0, 1600, 0, 1.0, 80.0, [[0, 2], [5, 1]]]]
    path = lines(tmp_path / "s.jsonl", {"id": "a", "dup": 0, "tool": 1, "sys": 1, "reqs": reqs},
                 {"id": "copy", "dup": 1, "tool": 1, "sys": 1, "reqs": reqs})  # fmt: skip
    own = 1 << 32
    blocks = (0, own + 1), (0, own + 1, own + 5)
    ends = end_mark(blocks[0], 1100, 1), end_mark(blocks[1], 1600, 1)

    trace = read(path, "auto", Options(preamble_tokens=SIZE))

    assert (len(trace.first), 0 <= trace.first[0].at < 60) == (1, True)
    assert fields(trace) == [
        (trace.first[0].at, hashed(blocks[0], ends[0], None, 1100), blocks[0], 1100, 4),
        (60.0, hashed(blocks[1], ends[1], ends[0], 1600), blocks[1], 1600, 1),
    ]


def test_long_sessions_are_cut(tmp_path: Path) -> None:
    """A session ends after 60 turns or before its first prompt over 120,000 tokens; one that begins so long is left out."""
    turn = [0.0, 600, 1, 1.0, 1.0, [[0, 1]]]
    long = [0.0, 120_001, 1, 1.0, 1.0, [[0, 234]]]
    sessions = [[turn] * (MAX_TURNS + 1), [turn, turn, long, turn], [long, turn], [turn]]
    path = lines(tmp_path / "s.jsonl", *({"id": str(i), "reqs": reqs} for i, reqs in enumerate(sessions)))

    trace = read(path, "kvcache", Options(limit=2))

    assert sorted(len(list(turns([head]))) for head in trace.first) == [2, MAX_TURNS]


def test_texts_are_hashed_as_the_product_hashes_them(tmp_path: Path) -> None:
    """The router sees a completion request's own hashes; a longer text of the session continues the one that begins it."""
    texts = ["a" * 1000, "a" * 1000 + "b" * 100, "a" * 1000 + "b" * 200, "a" * 1000 + "c" * 100]
    rows = [
        {"timestamp": 1_000_000 * i, "input": text, "output": "x" * 41, "session_id": "ab"[i // 3]}
        for i, text in enumerate(texts)
    ]
    hasher = Hasher(None, Settings().window_bytes)
    plain = []
    for text in texts:
        canonical = canonical_prompt("completions", json.dumps({"prompt": text}).encode())
        assert isinstance(canonical, CanonicalPrompt)
        plain.append(hasher.hash(canonical))

    trace = read(lines(tmp_path / "l.jsonl", *rows), "auto", Options())

    prompts = [r.prompt for r in trace.first]
    assert [p.hashes for p in prompts] == [p.hashes for p in plain]
    assert [(p.end, p.previous_end) for p in prompts] == [
        (plain[0].end, None),
        (plain[1].end, plain[0].end),
        (plain[2].end, plain[1].end),
        (plain[3].end, None),
    ]
    assert [(r.at, r.input_tokens, r.output_tokens) for r in trace.first] == [
        (i, plain[i].tokens, 10) for i in range(4)
    ]
    assert trace.block_tokens == 16


def test_texts_share_the_blocks_before_they_differ() -> None:
    """A block of 64 bytes is a number that stands for all before it, too."""
    blocks = TextBlocks()

    assert blocks.of("a" * 64 + "b" * 64 + "tail") == (1, 2)
    assert blocks.of("a" * 64 + "c" * 64) == (1, 3)
    assert blocks.of("b" * 64) == (4,)


def test_azure_rows_share_nothing(tmp_path: Path) -> None:
    """The control: two equal rows have different blocks, and times are seconds since the first."""
    path = tmp_path / "a.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,1100,10\n2023-11-16 18:17:05.2299600,1100,0\n"
    )
    ends = end_mark(0), end_mark(1)

    assert fields(read(path, "auto", Options())) == [
        (0.0, hashed([0, 1], ends[0], None, 1100), (0, 1), 1100, 10),
        (1.25, hashed([2, 3], ends[1], None, 1100), (2, 3), 1100, 1),
    ]


def test_an_unknown_file_is_refused(tmp_path: Path) -> None:
    """The message names what is known."""
    path = lines(tmp_path / "x.jsonl", {"a": 1})

    with pytest.raises(UnknownFormat, match=r"^not one of azure, mooncake, kvcache, lmcache$"):
        guess(path)


@pytest.mark.parametrize(
    ("prompts", "previous"),
    [
        pytest.param([([1], 600), ([1, 2], 1100), ([1, 2, 3], 1600)], [None, 0, 1], id="longest-first"),
        pytest.param([([1], 600), ([1], 700)], [None, 0], id="grown-within-a-block"),
        pytest.param([([1], 700), ([1], 600)], [None, None], id="not-by-a-shorter-one"),
        pytest.param([([1, 2], 1100), ([1, 3], 1100)], [None, None], id="siblings"),
        pytest.param([([], 10), ([], 20)], [None, None], id="too-short-to-tell"),
        pytest.param([([1], 600 + n) for n in range(4)], [None] * 4, id="a-common-system-prompt"),
    ],
)
def test_a_prompt_continues_the_one_whose_blocks_it_repeats(
    prompts: list[tuple[list[int], int]], previous: list[int | None]
) -> None:
    """The longest earlier, shorter prompt whose full blocks begin it; blocks that end many prompts are a preamble."""
    assert list(Continuations(prompts).previous()) == previous


def test_what_no_worker_can_hold_is_left_out() -> None:
    """A session ends before its first such turn; prompt and output count; what is left out is counted."""
    prompt = hashed([], b"", None, 1)
    sizes = [[(90, 10), (90, 11), (1, 1)], [(101, 1)], [(50, 50)]]
    first = [chain([Request(0.0, prompt, (), *size) for size in session]) for session in sizes]

    kept = holdable(Trace("t", SIZE, first), 100)

    assert [(r.input_tokens, r.output_tokens) for r in turns(kept.first)] == [(90, 10), (50, 50)]
    assert (kept.requests, kept.left_out) == (2, 3)
