"""A worker's KV cache, mirrored: what no longer fits dies oldest first, and what is used again stays."""

import random

from prefix_middleware.core.index import PrefixIndex
from tests.core.bodies import hashed
from tests.core.routing import NOW, held, make_router, route, serve

LENGTHS = (100,) * 8


def index_of(limit: int | None) -> PrefixIndex:
    """Return an index of one worker whose cache holds so many tokens."""
    index = PrefixIndex(1000, 5400.0)
    index.set_epoch("w1", 1.0)
    index.set_capacity("w1", limit)
    return index


def keep(index: PrefixIndex, *prompts: str, now: float = 0.0) -> None:
    """Record prompts of one block a letter, one a second."""
    for i, prompt in enumerate(prompts):
        blocks = [prompt[: end + 1].encode() for end in range(len(prompt))]
        index.record(blocks, "w1", 1.0, now + i, LENGTHS)


def matches(index: PrefixIndex, *prompts: str) -> list[int]:
    """Return how many blocks of each prompt the worker still holds."""
    return [index.match([p[: end + 1].encode() for end in range(len(p))], "w1", 9.0) for p in prompts]


def test_what_does_not_fit_dies_oldest_first() -> None:
    """Four blocks of 100 tokens fit into 400; the fifth costs the oldest record."""
    index = index_of(400)
    keep(index, "ab", "cd", "e")
    assert matches(index, "ab", "cd", "e") == [0, 2, 1]


def test_an_unknown_capacity_kills_nothing() -> None:
    """Unknown: the rule is off."""
    index = index_of(None)
    keep(index, "ab", "cd", "ef", "gh")
    assert matches(index, "ab", "cd", "ef", "gh") == [2, 2, 2, 2]


def test_blocks_that_are_used_again_belong_to_the_newer_record() -> None:
    """A shared head stays with the newest prompt that has it; only the old one's tail dies."""
    index = index_of(400)
    keep(index, "abc", "abx", "y")
    assert matches(index, "abc", "abx", "y") == [2, 3, 1]


def test_a_late_record_takes_its_place_by_time() -> None:
    """What another gateway confirmed earlier dies earlier, though it is heard of later."""
    index = index_of(400)
    keep(index, "ab", now=5.0)
    keep(index, "cd", now=1.0)
    keep(index, "e", now=6.0)
    assert matches(index, "ab", "cd", "e") == [2, 0, 1]


def test_generated_tokens_count() -> None:
    """The answer lies in the cache too, behind its prompt."""
    index = index_of(400)
    keep(index, "ab")
    index.grow(index.record([b"c"], "w1", 1.0, 1.0, LENGTHS), 250)
    assert matches(index, "ab", "c") == [0, 1]


def test_the_newest_record_never_dies() -> None:
    """A prompt larger than what is said to fit was served, so it fits."""
    index = index_of(100)
    keep(index, "ab", "cdef")
    assert matches(index, "ab", "cdef") == [0, 4]


def test_a_restart_begins_with_an_empty_cache() -> None:
    """What the old process held takes no room in the new one."""
    index = index_of(400)
    keep(index, "abcd")
    index.set_epoch("w1", 2.0)
    index.record([b"e"], "w1", 2.0, 5.0, LENGTHS)
    index.record([b"f", b"fg", b"fgh"], "w1", 2.0, 6.0, LENGTHS)
    assert matches(index, "abcd", "e", "fgh") == [0, 1, 3]


def test_what_matches_always_fits() -> None:
    """Whatever is recorded again and again, the blocks that match are never more than the cache holds."""
    rng, index = random.Random(3), index_of(1200)
    prompts = ["".join(rng.choices("abc", k=rng.randint(1, 5))) for _ in range(40)]
    for i in range(2000):
        keep(index, rng.choice(prompts), now=i / 1000)
        blocks = {prompt[:end] for prompt in prompts for end in range(1, len(prompt) + 1)}
        assert i % 50 or sum(index.holds(block.encode(), "w1", 9.0) for block in blocks) <= 12


def test_the_router_learns_what_fits_from_its_settings() -> None:
    """With kv_tokens set, a prompt that has left the cache is a miss, and the answer's tokens take room."""
    router = make_router("w1", kv_tokens=2000, block_tokens=(128,) * 64)
    first, second, third = (hashed(letter * 3500) for letter in "abc")
    serve(router, first)
    reservation = route(router, second, NOW + 1)
    router.start(reservation, NOW + 1)
    router.finish(reservation, generated_tokens=900)
    serve(router, third, NOW + 2)
    assert [held(router, prompt, NOW + 2) for prompt in (first, second, third)] == [{}, {}, {"w1": 6}]
