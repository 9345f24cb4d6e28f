"""Gateways that share what they know: two routers wired by hand, and single facts in every order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefix_middleware.core.index import PROVISIONAL_SECONDS
from prefix_middleware.core.router import Router
from prefix_middleware.core.updates import Confirmed, Notice, Provisional, Record, Suspect, Update, Withdrawn
from tests.core.bodies import hashed
from tests.core.routing import NOW, WORKERS, counters, held, idle, kinds, make_router, route, serve

PROMPT = hashed("x" * 3000)
LONGER = hashed("x" * 30_000)
DUE = NOW + 0.05


def fact(kind: type[Record], number: int = 7, worker: str = "w1", epoch: float = 1.0) -> Update:
    """Return what another gateway would publish about PROMPT."""
    hashes = b"".join(PROMPT.hashes)
    figures = PROMPT.tokens, 0, PROMPT.tokens, PROMPT.text_bytes
    found = kind(number, worker, epoch, hashes, PROMPT.end, *figures)
    assert isinstance(found, Provisional | Confirmed)
    return found


def merged(*updates: Update, age: float = 0.0, epoch: float = 1.0) -> dict[str, int]:
    """Return who holds PROMPT for a router that has heard this."""
    router = make_router(epoch=epoch)
    router.merge("o1", list(updates), age, NOW)
    return held(router, PROMPT)


def test_a_provisional_record_is_published_after_50_ms() -> None:
    """Most answers start or fail before others need to know."""
    router = make_router("w1")
    reservation = route(router, PROMPT)
    early, due, again = router.drain(DUE - 0.001), router.drain(DUE), router.drain(DUE + 1)
    expected = fact(Provisional, reservation.number)
    assert (early, due, again) == ([], [expected], [])


@pytest.mark.parametrize(("begins", "published"), [(True, ["Confirmed"]), (False, [])])
def test_what_is_no_longer_provisional_is_not_published_as_such(begins: bool, published: list[str]) -> None:
    """A start within the delay is only confirmed; a failure within it was never heard of."""
    router = make_router("w1")
    reservation = route(router, PROMPT)
    if begins:
        router.start(reservation, NOW)
    router.finish(reservation)
    assert kinds(router.drain(DUE)) == published


@pytest.mark.parametrize(("begins", "published"), [(True, "Confirmed"), (False, "Withdrawn")])
def test_what_was_published_is_confirmed_or_withdrawn_once(begins: bool, published: str) -> None:
    """By its number, whatever is called how often."""
    router = make_router("w1")
    reservation = route(router, PROMPT)
    router.drain(DUE)
    for _ in range(2):
        if begins:
            router.start(reservation, DUE)
        router.finish(reservation)
    told = router.drain(DUE + 1)
    assert told == [fact(Confirmed, reservation.number) if begins else Withdrawn(reservation.number)]
    assert kinds(told) == [published]


def test_a_moved_request_is_withdrawn_there_and_confirmed_here() -> None:
    """The others see one record end and another begin, under another number."""
    router = make_router("w1", "w2")
    reservation = route(router, PROMPT)
    first, number = reservation.worker, reservation.number
    other = ({"w1", "w2"} - {first}).pop()
    router.drain(DUE)
    router.move(reservation, other, DUE)
    router.start(reservation, DUE)
    router.finish(reservation)
    second = make_router("w1", "w2")
    told = router.drain(DUE + 1)
    second.merge("o1", [fact(Provisional, number, first), *told], 0.0, NOW)
    assert (kinds(told), reservation.number != number) == (["Withdrawn", "Confirmed"], True)
    assert held(second, PROMPT) == {other: 5}


def test_two_routers_agree_about_everything_they_have_shared() -> None:
    """Drain of one into the other, both ways: the same matches, the same choice for any prompt that continues."""
    first, second = make_router(), make_router()
    prompts = [hashed(chr(97 + i) * 2000) for i in range(12)]
    for i, prompt in enumerate(prompts):
        serve((first, second)[i % 2], prompt, NOW + i, i / 12)
    from_first, from_second = first.drain(NOW + 12), second.drain(NOW + 12)
    second.merge("o1", from_first, 0.0, NOW + 12)
    first.merge("o2", from_second, 0.0, NOW + 12)
    assert [held(first, prompt) for prompt in prompts] == [held(second, prompt) for prompt in prompts]
    again = [[serve(router, prompt, NOW + 13, 0.5) for prompt in prompts] for router in (first, second)]
    assert again[0] == again[1]


def test_a_burst_through_two_gateways_stays_together_once_they_have_heard() -> None:
    """A foreign provisional record is followed like an own one, with the gauges that say how loaded its worker is."""
    first, second = make_router(), make_router()
    chosen = {route(first, LONGER).worker for _ in range(4)}
    second.merge("o1", first.drain(DUE), 0.0, DUE)
    second.merge_gauges("o1", first.gauges(), DUE)
    assert (len(chosen), {route(second, LONGER, DUE).worker}) == (1, chosen)


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([fact(Provisional)], {"w1": 5}),
        ([fact(Provisional), Withdrawn(7)], {}),
        ([fact(Provisional), Withdrawn(8)], {"w1": 5}),
        ([fact(Provisional), fact(Provisional), Withdrawn(7)], {}),
        ([fact(Provisional), fact(Provisional, 8), Withdrawn(7)], {"w1": 5}),
        ([fact(Provisional), fact(Confirmed), Withdrawn(7)], {"w1": 5}),
        ([fact(Confirmed), fact(Confirmed)], {"w1": 5}),
        ([Withdrawn(7), Withdrawn(7)], {}),
        ([fact(Confirmed, worker="stranger")], {}),
        ([fact(Provisional, worker="stranger"), fact(Confirmed, worker="w2")], {"w2": 5}),
    ],
)
def test_foreign_records_come_and_go_by_name(updates: list[Update], expected: dict[str, int]) -> None:
    """Every fact may be repeated; unknown workers are ignored; a withdrawal removes only what it names."""
    assert merged(*updates) == expected


def test_records_of_two_origins_do_not_meet() -> None:
    """Numbers are an origin's own: another's withdrawal of the same number removes nothing here."""
    router = make_router("w1")
    own = route(router, PROMPT)
    router.merge("o1", [fact(Provisional, own.number)], 0.0, NOW)
    router.merge("o2", [Withdrawn(own.number)], 0.0, NOW)
    router.finish(own)
    kept = held(router, PROMPT)
    router.merge("o1", [Withdrawn(own.number)], 0.0, NOW)
    assert (kept, held(router, PROMPT)) == ({"w1": 5}, {})


def test_foreign_records_weigh_nothing() -> None:
    """Loads come by gauges only; what another gateway sends is never counted out here."""
    router = make_router()
    router.merge("o1", [fact(Provisional), fact(Confirmed)], 0.0, NOW)
    assert counters(router) == idle(router)


@pytest.mark.parametrize(
    ("age", "expected"), [(0.0, {"w1": 5}), (5399.0, {"w1": 5}), (5401.0, {})]
)  # fmt: skip
def test_a_late_record_is_as_old_as_it_is(age: float, expected: dict[str, int]) -> None:
    """Age is counted from when it was written: a replayed tail makes nothing fresh."""
    assert merged(fact(Confirmed), age=age) == expected


@pytest.mark.parametrize(("age", "expected"), [(119.0, {"w1": 5}), (121.0, {})])
def test_a_late_provisional_record_lives_no_longer_for_it(age: float, expected: dict[str, int]) -> None:
    """At most 120 s from the choice, also behind younger records."""
    router = make_router()
    router.merge("o2", [Provisional(1, "w2", 1.0, b"y" * 8, b"z" * 8, 1, 0, 1)], 0.0, NOW)
    router.merge("o1", [fact(Provisional)], age, NOW)
    assert (held(router, PROMPT), PROVISIONAL_SECONDS) == (expected, 120.0)


@pytest.mark.parametrize(
    ("epoch", "expected"), [(1.0, {"w1": 5}), (2.0, {"w1": 5}), (0.5, {})], ids=["same", "newer", "older"]
)
def test_a_record_of_a_newer_epoch_is_adopted_and_of_an_older_ignored(
    epoch: float, expected: dict[str, int]
) -> None:
    """Its gateway has seen the restart first; what a dead process held says nothing."""
    assert merged(fact(Confirmed, epoch=epoch)) == expected


def test_a_newer_epoch_ends_what_was_known_of_the_older() -> None:
    """Requests there are gone, and so is what it held."""
    router = make_router("w1")
    serve(router, LONGER)
    reservation = route(router, LONGER)
    router.merge("o1", [fact(Confirmed, epoch=2.0)], 0.0, NOW)
    assert (counters(router), held(router, LONGER), router.fleet.states["w1"].epoch) == (
        idle(router),
        {"w1": 5},
        2.0,
    )
    router.finish(reservation)
    assert counters(router) == idle(router)


def notices(router: Router, *pairs: tuple[float, float], worker: str = "w1") -> float:
    """Return the worker's epoch after these notices."""
    for old, new in pairs:
        router.merge("o1", [Notice(worker, old, new)], 0.0, NOW)
    return router.fleet.states["w1"].epoch


@pytest.mark.parametrize(
    ("pairs", "epoch"),
    [
        ([(1.0, 5.0)], 5.0),
        ([(1.0, 5.0), (1.0, 6.0)], 5.0),
        ([(1.0, 5.0), (1.0, 5.0)], 5.0),
        ([(1.0, 5.0), (5.0, 6.0)], 6.0),
        ([(0.5, 5.0)], 1.0),
        ([(1.0, 1.0)], 1.0),
    ],
)
def test_the_first_notice_of_a_restart_wins(pairs: list[tuple[float, float]], epoch: float) -> None:
    """Several gateways see one restart; all apply the one that comes first in the stream."""
    assert notices(make_router("w1"), *pairs) == epoch


def test_a_notice_about_a_stranger_is_ignored() -> None:
    """Another fleet member may know workers that this one was not told of."""
    assert notices(make_router("w1"), (1.0, 5.0), worker="stranger") == 1.0


def test_a_lost_worker_is_announced_and_counts_when_it_comes_back() -> None:
    """The author applies its own notice like everybody, from the stream; repeated it changes nothing."""
    router = make_router("w1")
    serve(router, PROMPT)
    router.drain(NOW)
    router.lost("w1", 5.0)
    told = router.drain(NOW)
    before = held(router, PROMPT)
    router.merge("own", told, 0.0, NOW)
    assert (told, before, held(router, PROMPT)) == ([Notice("w1", 1.0, 5.0)], {"w1": 5}, {})
    assert router.fleet.states["w1"].epoch == 5.0


FACTS = st.one_of(
    st.builds(
        fact,
        st.sampled_from([Provisional, Confirmed]),
        st.integers(1, 3),
        st.sampled_from([*WORKERS, "stranger"]),
        st.sampled_from([0.5, 1.0, 2.0]),
    ),
    st.builds(Withdrawn, st.integers(1, 3)),
    st.builds(
        Suspect, st.sampled_from(WORKERS), st.sampled_from([1.0, 2.0]), st.sampled_from([0.0, 2.0, 1e9])
    ),
    st.builds(
        Notice, st.sampled_from(WORKERS), st.sampled_from([1.0, 2.0]), st.sampled_from([1.0, 2.0, 3.0])
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(FACTS, max_size=12), st.floats(0, 200))
def test_facts_in_any_order_leave_the_own_counters_alone(updates: list[Update], age: float) -> None:
    """Whatever others say, own requests count in and out once, and routing goes on."""
    router = make_router()
    reservation = route(router, PROMPT)
    for update in updates:
        router.merge("o1", [update], age, NOW)
    serve(router, LONGER)
    router.start(reservation, NOW)
    router.finish(reservation)
    assert counters(router) == idle(router)
    assert set(router.fleet.candidates("m", 1, NOW).ids) <= set(WORKERS)


@settings(max_examples=60, deadline=None)
@given(st.lists(FACTS, max_size=8))
def test_facts_that_arrive_twice_change_nothing(updates: list[Update]) -> None:
    """A reload after a gap replays what was applied: who holds what stays as it was, epochs too."""
    router = make_router()
    confirmed = [update for update in updates if isinstance(update, Confirmed)]
    seen = []
    for _ in range(2):
        router.merge("o1", confirmed, 0.0, NOW)
        states = router.fleet.states.values()
        seen.append((held(router, PROMPT), len(router.index), [state.epoch for state in states]))
    assert seen[0] == seen[1]
