"""Workers that keep a prefix only at the end of an earlier whole prompt: recurrent state, sliding windows."""

from typing import Any

import pytest

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.router import Router
from tests.core.bodies import HASHER, assistant, prompt_of, user
from tests.core.bodies import chat as body
from tests.core.routing import NOW, make_router, route, serve
from tests.core.said import Engine

SYSTEM = {"role": "system", "content": "s" * 4000}
FIRST = [SYSTEM, user("a" * 2000)]
SECOND = [*FIRST, assistant("r" * 400), user("go on")]
THIRD = [*SECOND, assistant("r" * 400), user("and on")]


def chat(messages: list[Any], **fields: Any) -> HashedPrompt:
    return HASHER.hash(prompt_of("chat", body(*messages, **fields)))


def hybrid(*others: str, **cache: Any) -> Router:
    """Return a router whose w1 has the given cache; others are dense."""
    router = make_router("w1", *others)
    Engine(1.0, **({"mamba_cache_mode": "align", "block_size": 384} | cache)).tell(router)
    return router


def matched(router: Router, messages: list[Any]) -> tuple[str, int, int]:
    """Return where a prompt would go, and what is expected there in blocks and tokens."""
    reservation = route(router, chat(messages))
    router.finish(reservation)
    found = reservation.decision
    return reservation.worker, found.matched_blocks, found.matched_tokens


CASES = {
    "the same again": ([FIRST], FIRST, 1152, 1472),
    "the next turn": ([FIRST], SECOND, 1152, 1472),
    "the turn after": ([FIRST, SECOND], THIRD, 1536, 1600),
    "a fork": ([FIRST, SECOND], [*FIRST, assistant("other"), user("other")], 1152, 1472),
    "a sibling": ([FIRST], [SYSTEM, user("b" * 2000)], 0, 0),
    "a turn too far": ([FIRST], THIRD, 0, 0),
}


@pytest.mark.parametrize(("earlier", "messages", "blocks_of_384", "units_of_32"), CASES.values(), ids=CASES)
def test_only_whole_earlier_prompts_match(
    earlier: list[list[Any]], messages: list[Any], blocks_of_384: int, units_of_32: int
) -> None:
    """What is found is their length, cut to the unit in which hits come."""
    found = []
    for unit in (None, 32):
        router = hybrid(match_unit=unit)
        for prompt in earlier:
            serve(router, chat(prompt))
        found.append(matched(router, messages)[2])
    assert found == [blocks_of_384, units_of_32]


def test_the_third_sibling_finds_what_two_have_shared() -> None:
    """The second leaves a state where it parts from the first: whole KV blocks of the part in common."""
    router = hybrid(match_unit=32)
    found = []
    for letter in "abcd":
        sibling = [SYSTEM, user(letter * 2000)]
        found.append(matched(router, sibling))
        serve(router, chat(sibling))
    assert found == [("w1", 0, 0), ("w1", 0, 0), ("w1", 6, 768), ("w1", 6, 768)]


def test_siblings_meet_where_two_have_been() -> None:
    """Of two workers that hold the shared part, the one that was given it twice has a state there."""
    router = hybrid("w2")
    router.observe("w2", Engine(1.0, mamba_cache_mode="align", block_size=384).facts(), None, NOW, 0.0)
    states = router.fleet.states
    for worker, letter in (("w1", "a"), ("w2", "b"), ("w2", "c")):
        prompt = chat([SYSTEM, user(letter * 2000)])
        router.knowledge.hold(states[worker], (*prompt.hashes, prompt.end), NOW)
    assert matched(router, [SYSTEM, user("d" * 2000)]) == ("w2", 6, 768)


def test_the_line_counts_blocks_as_ever() -> None:
    """As many of ours as fit into what is found."""
    router = hybrid(match_unit=32)
    serve(router, chat(FIRST))
    assert matched(router, SECOND) == ("w1", 11, 1472)


def test_what_is_shorter_than_a_unit_does_not_match() -> None:
    """A state is kept for nothing less."""
    router = hybrid(block_size=2096)
    serve(router, chat(FIRST))
    assert matched(router, SECOND) == ("w1", 0, 0)


def test_sliding_windows_match_the_same_way() -> None:
    """Only the window before the end of an earlier prompt is kept."""
    router = hybrid(mamba_cache_mode="none", sliding_window=4096, block_size=16)
    serve(router, chat(FIRST))
    sibling = [SYSTEM, user("b" * 2000)]
    assert [matched(router, messages)[2] for messages in (SECOND, sibling)] == [1488, 0]


def test_older_modes_match_block_by_block() -> None:
    """`all` kept a state behind every block."""
    router = hybrid(mamba_cache_mode="all", block_size=16)
    serve(router, chat(FIRST))
    assert matched(router, [SYSTEM, user("b" * 2000)])[1] == 7


def test_a_conversation_follows_its_state_and_a_sibling_its_blocks() -> None:
    """In a mixed fleet each worker's match is what that worker finds."""
    router = hybrid("w2", match_unit=32)
    for worker, messages in (("w1", FIRST), ("w2", [SYSTEM, user("x" * 500)])):
        prompt = chat(messages)
        epoch = router.fleet.states[worker].epoch
        router.index.record((*prompt.hashes, prompt.end), worker, epoch, NOW)
    sibling = [SYSTEM, user("c" * 2000)]
    assert [matched(router, messages) for messages in (SECOND, sibling)] == [
        ("w1", 11, 1472),
        ("w2", 7, 896),
    ]


def test_a_prompt_whose_look_up_is_skipped_matches_nothing() -> None:
    """With prompt_logprobs the engine computes all of it here, too."""
    router = hybrid(match_unit=32)
    serve(router, chat(FIRST))
    reservation = route(router, chat(SECOND, prompt_logprobs=1))
    assert (reservation.matched_tokens, reservation.uncached_tokens) == (0, reservation.prompt.tokens)
