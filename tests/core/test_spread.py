"""Where traffic goes: bursts of one prefix stay together, unrelated prompts spread, conversations stay."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from prefix_middleware.core.blocks import HashedPrompt
from tests.core.bodies import HASHER, Json, assistant, chat, hashed, prompt_of, system, user, words
from tests.core.routing import NOW, WORKERS, make_router, route, serve


def spread(prompts: Sequence[HashedPrompt], seed: int = 1) -> Counter[str]:
    """Serve the prompts one at a time, two a second; return how many each worker got."""
    router, rng = make_router(), Random(seed)
    return Counter(serve(router, prompt, NOW + i / 2, rng.random()) for i, prompt in enumerate(prompts))


def kinds_of_sixty(seed: int) -> dict[str, list[HashedPrompt]]:
    rng = Random(seed)
    common = words(rng, 20_000)
    return {
        "unrelated": [hashed(words(rng, 20_000)) for _ in range(60)],
        "of 200 bytes": [hashed(words(rng, 200)) for _ in range(60)],
        "with the last 100 bytes of their own": [hashed(common + words(rng, 100)) for _ in range(60)],
    }


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", kinds_of_sixty(0))
def test_sixty_prompts_one_at_a_time_give_every_worker_its_share(kind: str, seed: int) -> None:
    """A quiet fleet uses all its caches, whatever the prompts have in common: 12 to 28 of 60 for each of three."""
    found = spread(kinds_of_sixty(seed)[kind], seed)
    assert (set(found), all(12 <= count <= 28 for count in found.values())) == (set(WORKERS), True), found


@pytest.mark.parametrize("seed", range(5))
def test_a_burst_of_one_prompt_stays_together(seed: int) -> None:
    """Sixteen at once see each other's provisional records: at most two workers compute the prefix."""
    router, rng = make_router(), Random(seed)
    prompt = hashed(words(rng, 20_000))
    reservations = [route(router, prompt, NOW + i / 1000, rng.random()) for i in range(16)]
    assert len({reservation.worker for reservation in reservations}) <= 2


def test_a_burst_of_unrelated_prompts_spreads() -> None:
    """Load rises with the choice and not with the answer: 42 long prompts at once are 14 each, give or take 3."""
    router, rng = make_router(), Random(4)
    found = Counter(route(router, hashed(words(rng, 30_000)), NOW, rng.random()).worker for _ in range(42))
    assert all(11 <= found[worker] <= 17 for worker in WORKERS), found


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("common", [0, 3_000])
def test_conversations_stay_on_their_worker(seed: int, common: int) -> None:
    """Twenty conversations of five turns, interleaved, one request at a time: each keeps the worker of its first turn.

    Also with one system prompt for all, where every other worker holds a part of the match.
    """
    rng, router = Random(seed), make_router()
    prefix = system(words(rng, common))
    talks: list[list[Json]] = [[prefix, user(words(rng, 700))] for _ in range(20)]
    served: list[set[str]] = [set() for _ in talks]
    now = NOW
    for _ in range(5):
        for talk in rng.sample(range(20), 20):
            now += 0.4
            served[talk].add(
                serve(router, HASHER.hash(prompt_of("chat", chat(*talks[talk]))), now, rng.random())
            )
            talks[talk] += [assistant(words(rng, 400)), user(words(rng, 200))]
    assert [len(workers) for workers in served] == [1] * 20
    assert set().union(*served) == set(WORKERS)


def test_a_stuck_worker_does_not_switch_affinity_off_for_the_others() -> None:
    """The decision is one per candidate: a prefix on an idle worker is followed beside a worker with 40 stuck streams."""
    rng, router = Random(5), make_router()
    prompts = [hashed(words(rng, 8_000)) for _ in range(30)]
    home = [serve(router, prompt, NOW, rng.random()) for prompt in prompts]
    stuck = hashed(words(rng, 8_000))
    router.set_ready("w2", False, NOW)
    router.set_ready("w3", False, NOW)
    for _ in range(40):
        route(router, stuck)
    for worker in WORKERS:
        router.set_ready(worker, True, NOW)
    again = [serve(router, prompt, NOW + 1, rng.random()) for prompt in prompts]
    assert [b for a, b in zip(home, again, strict=True) if a != "w1"] == [a for a in home if a != "w1"]
