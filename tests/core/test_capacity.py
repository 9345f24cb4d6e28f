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


def test_a_capacity_that_becomes_known_counts_what_is_there() -> None:
    """Learned at run time: the oldest of what was recorded before goes at once, and the rest counts from then on."""
    index = index_of(None)
    keep(index, "ab", "cd", "ef")
    index.set_capacity("w1", 400)
    learned = matches(index, "ab", "cd", "ef")
    keep(index, "cd", "g", now=5.0)
    assert (learned, matches(index, "cd", "ef", "g")) == ([0, 2, 2], [2, 0, 1])


def test_a_cache_may_grow_and_shrink() -> None:
    """Less room kills the oldest at once; more brings nothing back; what is dead takes no room."""
    index = index_of(600)
    keep(index, "ab", "cd", "ef")
    found = []
    for tokens, prompt in ((500, ""), (500, "x"), (1000, "ab"), (300, "")):
        index.set_capacity("w1", tokens)
        keep(index, *([prompt] if prompt else []), now=7.0)
        found.append(matches(index, "ab", "cd", "ef", "x"))
    assert found == [[0, 2, 2, 0], [0, 2, 2, 1], [2, 2, 2, 1], [2, 0, 0, 1]]


def test_a_capacity_that_is_forgotten_kills_nothing_more_until_it_is_known_again() -> None:
    """A worker that stops saying how large its cache is is one that never said."""
    index = index_of(300)
    keep(index, "ab", "c")
    index.set_capacity("w1", None)
    keep(index, "de", "fg", now=5.0)
    unlimited = matches(index, "ab", "c", "de", "fg")
    index.set_capacity("w1", 300)
    assert (unlimited, matches(index, "ab", "c", "de", "fg")) == ([2, 1, 2, 2], [0, 0, 0, 2])


def test_generated_tokens_from_before_a_capacity_was_known_count() -> None:
    """An answer lies in the cache whether or not we knew its size when it was written."""
    index = index_of(None)
    keep(index, "ab")
    index.grow(index.record([b"c"], "w1", 1.0, 1.0, LENGTHS), 250)
    index.set_capacity("w1", 400)
    assert matches(index, "ab", "c") == [0, 1]


def test_a_record_that_lost_all_its_blocks_takes_no_room() -> None:
    """The same prompt again: its generated tokens of the first time go with the record that they belonged to."""
    index = index_of(400)
    first = index.record([b"a", b"ab"], "w1", 1.0, 0.0, LENGTHS)
    index.grow(first, 150)
    index.record([b"a", b"ab"], "w1", 1.0, 1.0, LENGTHS)
    index.grow(first, 500)
    keep(index, "cd", now=2.0)
    assert matches(index, "ab", "cd") == [2, 2]


def test_what_the_index_has_evicted_takes_no_room() -> None:
    """Of a worker's records only those count that the index still has, however small its own bound is."""
    index = PrefixIndex(4, 5400.0)
    index.set_epoch("w1", 1.0)
    index.set_capacity("w1", 500)
    keep(index, "ab", "cd", "ef")
    keep(index, "e", now=5.0)
    assert matches(index, "ab", "cd", "ef") == [0, 2, 2]


def test_an_older_epoch_that_comes_back_brings_nothing_back() -> None:
    """A clock that was set back: what was recorded in that epoch before has holes by now, and matches nothing."""
    index = index_of(400)
    keep(index, "abc", "x")
    index.set_epoch("w1", 2.0)
    index.record([b"a"], "w1", 2.0, 5.0, LENGTHS)
    index.set_epoch("w1", 1.0)
    keep(index, "a", "de", now=6.0)
    assert matches(index, "abc", "x", "de") == [1, 0, 2]


def test_a_block_that_comes_again_with_another_length_is_counted_by_the_new_one() -> None:
    """Lengths are estimates: what a record owned goes with its blocks, neither more nor less."""
    index = index_of(400)
    index.record([b"a", b"ab"], "w1", 1.0, 0.0, (100, 100))
    index.record([b"a", b"ab"], "w1", 1.0, 1.0, (150, 150))
    keep(index, "c", now=2.0)
    fits = matches(index, "ab", "c")
    keep(index, "d", now=3.0)
    assert (fits, matches(index, "ab", "c", "d")) == ([2, 1], [0, 1, 1])


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
