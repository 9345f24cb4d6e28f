"""Block hashes: pinned by golden vectors, chained, and apart for every namespace.

`python -m tests.core.test_blocks` rewrites the vectors; that is a new scheme and needs a new SCHEME.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefix_middleware.core.blocks import SCHEME, HashedPrompt, Hasher, block_edges
from prefix_middleware.core.canonical import CanonicalPrompt
from tests.core.bodies import Json, chat, image, prompt_of, system, text, tool, user

VECTORS = Path(__file__).parents[1] / "data" / "block_hashes.json"
MIB = 1024 * 1024
PLAIN = Hasher(None, MIB)

CASES: list[Json] = [
    {"name": "short", "api": "chat", "request": chat(user("hi"))},
    {"name": "blocks", "api": "chat", "request": chat(system(), user("hi ")), "repeat": 400},
    {"name": "long", "api": "chat", "request": chat(system(), user("0123456789")), "repeat": 14_000},
    {"name": "window", "api": "chat", "request": chat(user("0123456789")), "repeat": 4_000, "window_bytes": 32768},
    {"name": "secret", "api": "chat", "request": chat(user("hi ")), "repeat": 400, "secret": "correct horse"},
    {"name": "tenant", "api": "chat", "request": chat(user("hi ")), "repeat": 400, "tenant": "t1"},
    {"name": "salt", "api": "chat", "request": chat(user("hi "), cache_salt="s1"), "repeat": 400},
    {"name": "adapter", "api": "chat", "request": chat(user("hi ")) | {"model": "lora-é"}, "repeat": 400},
    {
        "name": "conversation",
        "api": "chat",
        "request": chat(system(), user("a"), {"role": "assistant", "content": "b"}, user("c "), tools=[tool("f")]),
        "repeat": 600,
    },
    {"name": "media", "api": "chat", "request": chat(user([image("data:x"), text("c ")])), "repeat": 600},
    {"name": "messages", "api": "messages", "request": {"model": "m", "system": "s", "messages": [user("c ")]},
     "repeat": 600},
    {"name": "tokens", "api": "completions", "request": {"model": "m", "prompt": list(range(700))}},
]  # fmt: skip


def repeated(request: Json, times: int) -> Json:
    """Return the request with the last message's text that many times as long."""
    if times == 1:
        return request
    *before, last = request["messages"]
    content = last["content"]
    longer = (
        content * times if isinstance(content, str) else [*content[:-1], text(content[-1]["text"] * times)]
    )
    return request | {"messages": [*before, last | {"content": longer}]}


def vector(case: Json) -> Json:
    """Return a case with what it hashes to."""
    hasher = Hasher(case.get("secret"), case.get("window_bytes", MIB))
    request = repeated(case["request"], case.get("repeat", 1))
    prompt = hasher.hash(prompt_of(case["api"], request), case.get("tenant", ""))
    previous = prompt.previous_end
    return case | {
        "fingerprint": hasher.fingerprint.hex(),
        "hashes": [block.hex() for block in prompt.hashes],
        "end": prompt.end.hex(),
        "previous_end": None if previous is None else previous.hex(),
        "tokens": prompt.tokens,
    }


def golden() -> Json:
    """Return everything that is pinned."""
    return {"scheme": SCHEME, "vectors": [vector(case) for case in CASES]}


def test_block_hashes_are_as_pinned() -> None:
    """Gateways of two releases share entries: a changed hash needs a new SCHEME and new vectors."""
    assert golden() == json.loads(VECTORS.read_text())


@pytest.mark.parametrize(
    ("window", "count", "last"),
    [
        (512, 1, 512),
        (1023, 1, 512),
        (32 * 1024, 64, 32 * 1024),
        (34 * 1024 - 1, 64, 32 * 1024),
        (34 * 1024, 65, 34 * 1024),
        (64 * 1024, 80, 64 * 1024),
        (68 * 1024, 81, 68 * 1024),
        (MIB, 144, MIB),
    ],
)
def test_blocks_grow_behind_the_first_32_kib(window: int, count: int, last: int) -> None:
    """64 blocks of 512 bytes, then 16 a doubling; only whole blocks inside the window."""
    edges = block_edges(window)
    assert (len(edges), edges[-1]) == (count, last)


def test_every_doubling_has_sixteen_equal_blocks() -> None:
    """2 KiB each to 64 KiB, 4 KiB to 128 KiB and so on."""
    edges = (0, *block_edges(MIB))
    sizes = [after - before for before, after in pairwise(edges)]
    assert sizes == [512] * 64 + [size * 1024 for size in (2, 4, 8, 16, 32) for _ in range(16)]


@pytest.mark.parametrize(
    ("length", "count"), [(1, 0), (511, 0), (512, 1), (1023, 1), (33_000, 64), (MIB, 144), (2 * MIB, 144)]
)
def test_only_full_blocks_count(length: int, count: int) -> None:
    """A part of a block would change with the next turn; past the window bytes are counted, not hashed."""
    prompt = PLAIN.hash(CanonicalPrompt(b"x" * length))
    assert (len(prompt.hashes), prompt.tokens) == (count, max(1, length // 4))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 100_000), st.data())
def test_a_changed_byte_changes_every_hash_from_its_block_on(length: int, data: st.DataObject) -> None:
    """Chained: equal text at another place never matches, and what lies before is untouched."""
    at = data.draw(st.integers(0, length - 1))
    changed = bytearray(b"x" * length)
    changed[at] = 0x79
    first, other = (PLAIN.hash(CanonicalPrompt(bytes(d))) for d in (b"x" * length, changed))
    block = sum(edge <= at for edge in block_edges(length))
    assert (first.hashes[:block], len(first.hashes)) == (other.hashes[:block], len(other.hashes))
    assert not set(first.hashes[block:]) & set(other.hashes[block:])
    assert first.end != other.end


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=70_000), st.binary(max_size=3_000))
def test_a_longer_prompt_keeps_every_hash(start: bytes, more: bytes) -> None:
    """Appending bytes only appends hashes, and another end; the token figures agree where both have them."""
    short, long = (PLAIN.hash(CanonicalPrompt(data)) for data in (start, start + more))
    count = len(short.hashes)
    assert (short.hashes, short.matched_tokens) == (long.hashes[:count], long.matched_tokens[: count + 1])
    assert (short.end == long.end) == (not more)


def test_equal_blocks_at_different_places_have_different_hashes() -> None:
    """A prompt of one repeated block shares no hash with itself."""
    hashes = PLAIN.hash(CanonicalPrompt(b"x" * 32_768)).hashes
    assert len(set(hashes)) == 64


NAMESPACES = [
    ("m", "", ""), ("", "m", ""), ("", "", "m"), ("m", "s", ""), ("ms", "", ""), ("", "ms", ""), ("m", "", "s"),
    ("m", "s", "t"), ("mst", "", ""), ("", "", ""), ("M", "", ""), ("\ud83d", "", ""), ("m\0", "", ""), ("m", "\0", ""),
]  # fmt: skip


def test_namespaces_share_nothing() -> None:
    """Model, salt and tenant each begin another chain, and no field can run into the next."""
    prompts = [
        PLAIN.hash(CanonicalPrompt(b"x" * 2048, model, salt), tenant) for model, salt, tenant in NAMESPACES
    ]
    blocks = {block for prompt in prompts for block in (*prompt.hashes, prompt.end)}
    assert len(blocks) == 5 * len(NAMESPACES)


def test_another_secret_is_another_scheme() -> None:
    """What lies in Redis tells nothing without the secret: not the blocks, not the ends; and it is foreign."""
    prompt = CanonicalPrompt(b"x" * 2048)
    hashers = [Hasher(secret, MIB) for secret in (None, "correct horse", "correct house")]
    blocks = {block for hasher in hashers for block in (*hasher.hash(prompt).hashes, hasher.hash(prompt).end)}
    assert (len(blocks), len({hasher.fingerprint for hasher in hashers})) == (15, 3)


def test_the_fingerprint_names_scheme_key_and_window() -> None:
    """Equal in every process with the same settings, different with another window."""
    fingerprints = [Hasher("correct horse", window).fingerprint for window in (MIB, MIB, 32768)]
    assert (fingerprints[0] == fingerprints[1], fingerprints[0] == fingerprints[2]) == (True, False)


@pytest.mark.parametrize(
    ("length", "media_ends", "figures"),
    [
        (1024, (), (0, 128, 256)),
        (1024, (100, 512), (0, 2128, 2256)),
        (1024, (513,), (0, 128, 1256)),
        (1100, (1099,), (0, 128, 256)),
    ],
)
def test_a_match_saves_the_media_that_end_within_it(
    length: int, media_ends: tuple[int, ...], figures: object
) -> None:
    """An image costs 1,000 tokens though its digest has 32 bytes; it is saved once its end is in a matched block."""
    prompt = PLAIN.hash(CanonicalPrompt(b"x" * length, media_ends=media_ends))
    assert (prompt.matched_tokens, prompt.tokens) == (figures, length // 4 + 1000 * len(media_ends))


def test_a_hashed_prompt_carries_the_rest_along() -> None:
    """Model, cache switch and requested output reach the router unchanged."""
    prompt = PLAIN.hash(CanonicalPrompt(b"xyz", "m", reads_cache=False, output_tokens=9))
    expected: dict[str, Any] = {"model": "m", "reads_cache": False, "output_tokens": 9, "text_bytes": 3}
    assert prompt == HashedPrompt((), (0,), prompt.end, None, 1, **expected)


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(golden(), indent=1, ensure_ascii=False) + "\n")
