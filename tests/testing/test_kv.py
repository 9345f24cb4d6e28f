"""The rules of the fake worker's prefix cache: those of vLLM for full attention, at 4 bytes a token."""

from prefix_middleware.testing.kv import KvCache, tokens_of

BLOCK = 64  # bytes: 16 tokens of 4


def text(blocks: int, first: bytes = b"a") -> bytes:
    return b"".join(first * 4 + f"{number:060d}".encode() for number in range(blocks))


def test_a_hit_is_the_run_of_full_blocks_from_the_first() -> None:
    """Half a block does not count, and nothing counts behind a gap."""
    cache = KvCache(100)
    cache.store("m", text(3) + b"x" * (BLOCK // 2))
    changed_in_the_middle = text(1) + b"!" * BLOCK + text(3)[2 * BLOCK :] + b"tail"
    assert [cache.cached_tokens("m", it) for it in (text(4), changed_in_the_middle)] == [48, 16]


def test_an_identical_prompt_computes_its_last_block_again() -> None:
    """At most one token less than the prompt is a hit, in whole blocks."""
    cache = KvCache(100)
    cache.store("m", text(3))
    assert (tokens_of(text(3)), cache.cached_tokens("m", text(3))) == (48, 32)


def test_namespaces_share_nothing() -> None:
    """Another adapter or salt starts from nothing."""
    cache = KvCache(100)
    cache.store("m", text(3))
    assert cache.cached_tokens("other", text(4)) == 0


def test_the_oldest_prompt_loses_its_tail_first() -> None:
    """Eviction is by age of use, and within a prompt from the end."""
    cache = KvCache(6)
    cache.store("m", text(4, b"a"))
    cache.store("m", text(4, b"b"))
    held = [cache.cached_tokens("m", text(5, first)) for first in (b"a", b"b")]
    assert held == [32, 64]


def test_using_a_prefix_again_keeps_it_longer() -> None:
    """What was used last is evicted last."""
    cache = KvCache(6)
    cache.store("m", text(3, b"a"))
    cache.store("m", text(3, b"b"))
    cache.store("m", text(3, b"a"))
    cache.store("m", text(3, b"c"))
    held = [cache.cached_tokens("m", text(4, first)) for first in (b"a", b"b", b"c")]
    assert held == [48, 0, 48]
