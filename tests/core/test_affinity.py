"""What a match may be worth: never past a divergence, never alone decisive, never for a worker that is of no use."""

from bisect import bisect_right
from collections import Counter, deque
from random import Random

import pytest
from hypothesis import given, settings

from prefix_middleware.core.blocks import HashedPrompt, Hasher, block_edges
from prefix_middleware.core.reservation import Reservation
from tests.core import strategies as some
from tests.core.bodies import (
    HASHER,
    Json,
    assistant,
    chat,
    hashed,
    image,
    prompt_of,
    system,
    text,
    tool,
    user,
    words,
)
from tests.core.routing import NOW, WORKERS, fail, held, kinds, make_router, route, serve

MIB = 1024 * 1024


def of(request: Json, hasher: Hasher = HASHER) -> HashedPrompt:
    """Return the hashed prompt of a chat request."""
    return hasher.hash(prompt_of("chat", request))


@settings(max_examples=30, deadline=None)
@given(some.CONVERSATIONS, some.CONVERSATIONS)
def test_two_prompts_share_exactly_the_blocks_before_they_differ(
    one: tuple[str, str, list[some.Turn]], other: tuple[str, str, list[some.Turn]]
) -> None:
    """A match never claims a block behind a divergence, wherever it lies: reasoning dropped, a system text edited."""
    prompts = [
        prompt_of(
            "chat", chat(system((a + "x") * 40), *(assistant((t.said + "y") * 50) for t in turns), user(b))
        )
        for a, b, turns in (one, (one[0], *other[1:]))
    ]
    edges = block_edges(MIB)
    first, second = (HASHER.hash(prompt).hashes for prompt in prompts)
    alike = [a == b for a, b in zip(*(prompt.data for prompt in prompts), strict=False)]
    shared = bisect_right(edges, [*alike, False].index(False))
    assert len(set(first) & set(second)) == shared
    assert first[:shared] == second[:shared]


@pytest.mark.parametrize(("at", "blocks"), [(0, 0), (1_500, 2)])
def test_a_time_stamp_in_the_system_text_ends_the_match_in_its_block(at: int, blocks: int) -> None:
    """What changes with every turn makes all behind it new; what lies before still matches, and load decides."""
    router, rules = make_router("w1"), words(Random(1), 4_000)
    prompts = [
        of(chat(system(rules[:at] + stamp + rules[at:]), user())) for stamp in ("15:09:20", "15:09:34")
    ]
    serve(router, prompts[0])
    assert route(router, prompts[1]).decision.matched_blocks == blocks


def test_a_turn_matches_longest_where_its_own_conversation_is() -> None:
    """Twenty conversations under one 3 KB system text: from the second turn on no other worker holds as much."""
    rng, router, now = Random(2), make_router(), NOW
    talks: list[list[Json]] = [[system("s" * 3_000), user(words(rng, 700))] for _ in range(20)]
    home = ["" for _ in talks]
    for turn in range(4):
        for number in rng.sample(range(20), 20):
            now += 0.4
            prompt = of(chat(*talks[number]))
            found = held(router, prompt, now)
            others = max((count for worker, count in found.items() if worker != home[number]), default=0)
            assert turn == 0 or found[home[number]] > others
            home[number] = serve(router, prompt, now, rng.random())
            talks[number] += [assistant(words(rng, 700)), user(words(rng, 300))]


@pytest.mark.parametrize("window", [32_768, MIB])
def test_a_prologue_longer_than_the_window_neither_gathers_nor_scatters(window: int) -> None:
    """45 KB of tools and 20 KB of system text for all: users spread over the fleet, and each stays where it began."""
    rng, router, hasher, now = Random(3), make_router(), Hasher(None, window), NOW
    tools = [tool(f"f{i}", description=words(rng, 3_000)) for i in range(15)]
    talks: list[list[Json]] = [[system("rules " * 3_400), user(words(rng, 200))] for _ in range(30)]
    served: list[set[str]] = [set() for _ in talks]
    for _ in range(3):
        for number in rng.sample(range(30), 30):
            now += 0.4
            served[number].add(
                serve(router, of(chat(*talks[number], tools=tools), hasher), now, rng.random())
            )
            talks[number] += [assistant(words(rng, 100)), user(words(rng, 100))]
    assert [len(workers) for workers in served] == [1] * 30
    assert min(Counter(worker for workers in served for worker in workers)[name] for name in WORKERS) >= 6


def test_pages_with_one_text_behind_their_images_share_nothing() -> None:
    """An image first makes the text behind it another prompt: no worker draws all pages."""
    rng, router = Random(4), make_router()
    pages = [of(chat(user([image(words(rng, 400)), text("t" * 2_000)]))) for _ in range(60)]
    assert len({block for page in pages for block in page.hashes}) == sum(len(page.hashes) for page in pages)
    found = Counter(serve(router, page, NOW + i / 2, rng.random()) for i, page in enumerate(pages))
    assert all(12 <= found[worker] <= 28 for worker in WORKERS), found


@pytest.mark.parametrize("policy", ["tokens", "requests", "cost"])
def test_a_prompt_that_comes_again_goes_where_it_went(policy: str) -> None:
    """No least length that an empty index could never reach: a miss is recorded like a hit, in every policy."""
    rng, router = Random(5), make_router(policy=policy)
    prompt = hashed(words(rng, 12_000))
    assert len({serve(router, prompt, NOW + i, rng.random()) for i in range(10)}) == 1


def test_a_worker_that_fails_at_once_is_not_rewarded_for_being_free() -> None:
    """500 within milliseconds to everything while the others take two seconds: ten prefixes leave it within two."""
    rng, router = Random(6), make_router()
    prompts, running = [hashed(words(rng, 6_000)) for _ in range(10)], deque[tuple[float, Reservation]]()
    asked: Counter[str] = Counter()
    for number in range(300):
        now = NOW + number * 0.02
        while running and running[0][0] <= now - 2:
            router.finish(running.popleft()[1])
        reservation = route(router, prompts[number % 10], now, rng.random())
        asked[reservation.worker] += 1
        failing = reservation.worker == "w1"
        router.outcome(reservation, 500 if failing else 200, now)
        if failing:
            router.finish(reservation)
        else:
            router.start(reservation, now)
            running.append((now, reservation))
    assert (asked["w1"] <= 8, asked["w2"] > 100, asked["w3"] > 100) == (True, True, True), asked
    assert all("w1" not in held(router, prompt, NOW + 6) for prompt in prompts)


def test_a_worker_that_never_answers_repels_by_what_it_has_not_done() -> None:
    """Health says 200 and nothing comes: what waits there is load, for new prompts and for those that it holds."""
    rng, router = Random(7), make_router()
    prompts = [hashed(words(rng, 8_000)) for _ in range(30)]
    for number, prompt in enumerate(prompts):
        serve(router, prompt, NOW + number, rng.random())
    asked: Counter[str] = Counter()
    for number in range(200):
        again = prompts[number % 30] if number % 2 else hashed(words(rng, 8_000))
        reservation = route(router, again, NOW + 60 + number / 10, rng.random())
        asked[reservation.worker] += 1
        if reservation.worker != "w1":
            router.start(reservation, NOW + 60 + number / 10)
            router.finish(reservation)
    assert asked["w1"] <= 10, asked


def test_a_worker_that_is_gone_is_never_chosen_for_what_it_held() -> None:
    """The index is asked about the ready only; and a gateway that was told of fewer workers ignores the others' names."""
    rng, router = Random(8), make_router()
    for name in ("w2", "w3"):
        router.set_ready(name, False, NOW)
    prompts = [hashed(words(rng, 4_000)) for _ in range(20)]
    assert {serve(router, prompt) for prompt in prompts} == {"w1"}
    for name, ready in (("w1", False), ("w2", True), ("w3", True)):
        router.set_ready(name, ready, NOW)
    later = make_router("w2", "w3")
    [*_, snapshot] = router.snapshot(NOW)
    assert snapshot is not None
    assert sum(1 for _ in later.restore(snapshot, 0.0, NOW)) >= 1
    for gateway in (router, later):
        found = [route(gateway, prompt, NOW, rng.random()).decision for prompt in prompts]
        assert {(decision.worker in ("w2", "w3"), decision.matched_blocks) for decision in found} == {
            (True, 0)
        }


def test_a_request_tells_the_others_one_record_of_bounded_size() -> None:
    """Deltas, never a state: at most 144 hashes of 8 bytes, however long the prompt, once or twice a request."""
    router = make_router("w1")
    reservation = route(router, hashed("x" * 3 * MIB))
    early = router.drain(NOW + 1)
    router.start(reservation, NOW + 1)
    router.finish(reservation)
    late = router.drain(NOW + 2)
    assert kinds([*early, *late]) == ["Provisional", "Confirmed"]
    assert [len(getattr(update, "hashes", b"")) for update in (*early, *late)] == [144 * 8] * 2


def test_a_common_system_text_piles_up_nowhere() -> None:
    """100 users with one 6 KB system text, 40 at a time on four workers: in-flight stays level, users stay put."""
    rng, router = Random(9), make_router("w1", "w2", "w3", "w4")
    talks: list[list[Json]] = [[system("s" * 6_000), user(words(rng, 6_000))] for _ in range(100)]
    waiting, running = deque(range(100)), deque[tuple[int, Reservation]]()
    home: dict[int, str] = {}
    moved = widest = 0
    for step in range(400):
        if len(running) == 40:
            done, reservation = running.popleft()
            router.finish(reservation)
            talks[done] += [assistant(words(rng, 300)), user(words(rng, 200))]
            waiting.append(done)
        number = waiting.popleft()
        reservation = route(router, of(chat(*talks[number])), NOW + step / 20, rng.random())
        moved += home.setdefault(number, reservation.worker) != reservation.worker
        router.start(reservation, NOW + step / 20)
        running.append((number, reservation))
        in_flight = [state.in_flight for state in router.fleet.states.values()]
        widest = max(widest, max(in_flight) - min(in_flight))
    assert (widest <= 6, moved <= 15) == (True, True), (widest, moved)


def test_groups_that_arrive_together_stay_together_and_use_the_fleet() -> None:
    """16 groups of 16 equal prompts in one burst over eight workers: few workers a group, all workers for all groups."""
    names = [f"w{i}" for i in range(8)]
    rng, router = Random(10), make_router(*names)
    prompts = [hashed(words(rng, 20_000)) for _ in range(16)]
    found = {
        group: {route(router, prompts[group], NOW + turn / 1000, rng.random()).worker for turn in range(16)}
        for group in range(16)
    }
    assert max(map(len, found.values())) <= 2, found
    assert set().union(*found.values()) == set(names)


def test_one_failure_takes_no_record_of_others_along() -> None:
    """A failed request withdraws its own provisional record; what the same worker has answered stays."""
    router = make_router("w1")
    prompt = hashed("x" * 3_000)
    serve(router, prompt)
    fail(router, 500, NOW, prompt)
    assert held(router, prompt) == {"w1": 5}
