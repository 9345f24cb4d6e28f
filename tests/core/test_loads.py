"""Loads of the whole fleet: own requests, other gateways' gauges, and what a worker was given lately."""

import math

import pytest

from prefix_middleware.core.loads import CAPACITY_TOKENS, FILL_SECONDS, GAUGE_SECONDS, Load
from prefix_middleware.core.router import Router
from prefix_middleware.core.updates import Confirmed, Gauge
from tests.core.bodies import hashed
from tests.core.routing import NOW, gauge, make_router, route, serve


def load(router: Router, worker: str = "w1", now: float = NOW) -> Load:
    """Return a worker's load as a decision at this moment sees it."""
    router.fleet.expire(now)
    return router.fleet.load(router.fleet.states[worker], now)


def fills(router: Router, now: float = NOW) -> dict[str, float]:
    return {name: round(load(router, name, now).fill * CAPACITY_TOKENS) for name in router.fleet.states}


def given_to(router: Router, worker: str, tokens: int, age: float = 0.0) -> None:
    """Tell the router that another gateway's prompt was confirmed there."""
    router.merge("o9", [Confirmed(1, worker, 1.0, b"", b"e" * 8, tokens, 0, tokens)], age, NOW)


def test_loads_are_the_sum_over_all_gateways() -> None:
    """Own requests, plus the last word of every other origin."""
    router = make_router("w1")
    reservation = route(router, hashed("x" * 4000))
    router.merge_gauges("o1", [gauge("w1", 2)], NOW)
    router.merge_gauges("o2", [gauge("w1", 3), gauge("stranger", 9)], NOW)
    waiting = reservation.prompt.tokens
    assert load(router) == Load(6, waiting + 500, waiting + 500, 0.0)


def test_a_gauge_replaces_all_that_its_origin_said() -> None:
    """Absolute figures: repeated, late or empty ones never add up."""
    router = make_router("w1", "w2")
    for gauges in ([gauge("w1", 5)], [gauge("w1", 2)], [gauge("w1", 2)]):
        router.merge_gauges("o1", gauges, NOW)
    before = load(router).in_flight
    router.merge_gauges("o1", [gauge("w2", 4)], NOW)
    assert (before, load(router).in_flight, load(router, "w2").in_flight) == (2, 0, 4)


def test_gauges_expire_after_three_seconds() -> None:
    """A gateway that dies takes its load with it."""
    router = make_router("w1")
    router.merge_gauges("o1", [gauge("w1", 5)], NOW)
    router.merge_gauges("o2", [gauge("w1", 2)], NOW + 2)
    times = (NOW + GAUGE_SECONDS, NOW + GAUGE_SECONDS + 0.1, NOW + 2 + GAUGE_SECONDS + 0.1)
    assert [load(router, now=now).in_flight for now in times] == [7, 2, 0]


def test_a_decision_sees_gauges_expire() -> None:
    """The freest candidate of the line counts by fresh gauges only."""
    router = make_router("w1")
    router.merge_gauges("o1", [gauge("w1", 5)], NOW)
    slots = [route(router, hashed(f"{after}"), NOW + after).decision for after in (1.0, 4.0)]
    assert [(decision.slots, decision.min_slots) for decision in slots] == [(5, 5), (1, 1)]


def test_a_gauge_of_another_epoch_weighs_nothing() -> None:
    """Requests to a worker that has restarted are gone; a gauge from after a restart counts once it is known."""
    router = make_router("w1")
    router.merge_gauges("o1", [gauge("w1", 5, epoch=0.5)], NOW)
    router.merge_gauges("o2", [gauge("w1", 3, epoch=2.0)], NOW)
    before = load(router).in_flight
    router.set_epoch("w1", 2.0, NOW)
    assert (before, load(router).in_flight) == (0, 3)


def test_own_gauges_are_absolute_and_leave_out_the_idle() -> None:
    """Two routers that exchange gauges see the same sums."""
    first, second = make_router("w1", "w2"), make_router("w1", "w2")
    reservation = route(first, hashed("x" * 4000))
    tokens = reservation.prompt.tokens
    own = [Gauge(reservation.worker, 1.0, 1, tokens, tokens)]
    second.merge_gauges("o1", first.gauges(), NOW)
    loads = load(first, reservation.worker), load(second, reservation.worker)
    first.start(reservation, NOW)
    started = first.gauges()
    first.finish(reservation)
    assert (loads[0], started, first.gauges()) == (
        loads[1],
        [Gauge(reservation.worker, 1.0, 1, 0, tokens)],
        [],
    )
    assert own == [Gauge(reservation.worker, 1.0, 1, tokens, tokens)]


def test_fill_counts_confirmed_prompts_of_all_gateways_and_decays() -> None:
    """Own and foreign alike, each from when it was confirmed, with a time constant of five minutes."""
    router = make_router("w1")
    given_to(router, "w1", 10_000)
    given_to(router, "w1", 10_000, age=FILL_SECONDS)
    now = [round(10_000 * (1 + 1 / math.e)), round(10_000 * (1 + 1 / math.e) / math.e)]
    assert [fills(router, NOW + after)["w1"] for after in (0.0, FILL_SECONDS)] == now


def test_fill_is_at_most_one() -> None:
    """A worker's cache is full; it cannot be fuller."""
    router = make_router("w1")
    given_to(router, "w1", 10 * CAPACITY_TOKENS)
    assert load(router).fill == 1.0


def test_a_request_that_never_started_fills_nothing() -> None:
    """Only confirmed prompts are in the cache."""
    router = make_router("w1")
    prompt = hashed("x" * 4000)
    router.finish(route(router, prompt))
    before = fills(router)
    serve(router, prompt)
    assert (before, fills(router)) == ({"w1": 0}, {"w1": prompt.tokens})


def test_a_worker_that_joins_begins_with_the_mean_of_the_ready_ones() -> None:
    """Else every new conversation of the fleet goes to it at once."""
    router = make_router("w1", "w2", "w3", ready=False)
    for name, tokens in (("w1", 30_000), ("w2", 10_000)):
        router.set_ready(name, True, NOW)
        given_to(router, name, tokens)
    router.set_ready("w3", True, NOW)
    assert fills(router)["w3"] == (fills(router)["w1"] + fills(router)["w2"]) / 2


def test_a_worker_that_restarts_begins_with_the_mean_of_the_others() -> None:
    """Its own past does not count: the cache is empty, and yet it must not draw everything."""
    router = make_router("w1", "w2", "w3")
    for name, tokens in (("w1", 30_000), ("w2", 10_000), ("w3", 90_000)):
        given_to(router, name, tokens)
    router.set_epoch("w3", 2.0, NOW)
    assert fills(router) == pytest.approx({"w1": 30_000, "w2": 10_000, "w3": 20_000})


def test_a_recovery_without_a_restart_keeps_a_workers_loads() -> None:
    """Requests go on while health is in doubt."""
    router = make_router("w1", "w2")
    reservation = route(router, hashed("hi"))
    router.set_ready(reservation.worker, False, NOW)
    router.set_ready(reservation.worker, True, NOW)
    assert load(router, reservation.worker).in_flight == 1
