"""Who asks a worker how it is: one of the gateways alive, and everybody in doubt."""

from collections import Counter

import pytest

from prefix_middleware.core.facts import Facts
from prefix_middleware.core.probing import prober
from prefix_middleware.core.router import Router
from prefix_middleware.core.updates import Said
from tests.core.bodies import hashed
from tests.core.routing import NOW, held, kinds, make_router, serve
from tests.core.said import Engine

GATEWAYS = ("g1", "g2", "g3")
QUIET = 2.5


def fleet(*gateways: str) -> dict[str, Router]:
    """Return a router for each gateway, which has heard of the others just now."""
    routers = {name: make_router("w1") for name in gateways}
    for name, router in routers.items():
        for other in gateways:
            if other != name:
                router.merge_gauges(other, [], NOW)
    return routers


def askers(routers: dict[str, Router], now: float = NOW) -> list[str]:
    return [name for name, router in routers.items() if router.asks("w1", name, QUIET, now)]


def test_all_agree_on_one_gateway_for_each_worker() -> None:
    """Spread over the gateways, and one that leaves moves only the workers that were its own."""
    workers = [f"w{number}" for number in range(300)]
    before = {worker: prober(worker, GATEWAYS) for worker in workers}
    after = {worker: prober(worker, set(GATEWAYS[:2])) for worker in workers}
    moved = {worker for worker in workers if before[worker] != after[worker]}
    assert min(Counter(before.values()).values()) > 60
    assert moved == {worker for worker in workers if before[worker] == "g3"}


def test_one_asks_and_the_others_hear() -> None:
    """Those who have heard nothing yet ask too; a worker's answer keeps them quiet for a while."""
    routers = fleet(*GATEWAYS)
    first = askers(routers)
    mine = prober("w1", GATEWAYS)
    said = Said("w1", True, Engine(kv_tokens=9000).facts())
    for name, router in routers.items():
        if name != mine:
            router.merge(mine, [said], 0.0, NOW)
    capacities = {name: router.fleet.states["w1"].kv_tokens for name, router in routers.items()}
    assert (first, askers(routers)) == (list(GATEWAYS), [mine])
    assert capacities == {name: None if name == mine else 9000 for name in GATEWAYS}


def test_a_gateway_asks_for_itself_when_it_is_quiet() -> None:
    """The one that should ask may be gone, or cut off; a dead one is not counted after its gauges have expired."""
    routers = fleet("g1", "g2")
    mine = prober("w1", ("g1", "g2"))
    [other] = {"g1", "g2"} - {mine}
    routers[other].merge(mine, [Said("w1", True, Facts())], 0.0, NOW)
    asked = [routers[other].asks("w1", other, QUIET, NOW + after) for after in (0.0, QUIET, QUIET + 0.1)]
    routers[other].merge(mine, [Said("w1", True, Facts())], 0.0, NOW + 3.5)
    assert (asked, routers[other].asks("w1", other, QUIET, NOW + 3.6)) == ([False, False, True], True)


@pytest.mark.parametrize("ready", [True, False])
def test_news_of_readiness_is_looked_into(ready: bool) -> None:
    """What differs from what a gateway knows changes nothing until it has seen for itself: the way there may be its own."""
    routers = fleet("g1", "g2")
    mine = prober("w1", ("g1", "g2"))
    [other] = {"g1", "g2"} - {mine}
    router = routers[other]
    router.set_ready("w1", ready, NOW)
    answers = []
    for said in (ready, not ready):
        router.merge(mine, [Said("w1", said, Facts())], 0.0, NOW)
        answers.append((router.asks("w1", other, QUIET, NOW), router.fleet.states["w1"].ready))
    assert answers == [(False, ready), (True, ready)]


def test_what_is_old_is_no_news() -> None:
    """A gateway that starts reads the stream from its snapshot on."""
    routers = fleet("g1", "g2")
    mine = prober("w1", ("g1", "g2"))
    [other] = {"g1", "g2"} - {mine}
    routers[other].merge(mine, [Said("w1", True, Engine(kv_tokens=9000).facts())], 60.0, NOW)
    assert (askers(routers), routers[other].fleet.states["w1"].kv_tokens) == (["g1", "g2"], None)


def test_polls_are_shared_only_where_somebody_listens() -> None:
    """Facts, and that a worker is not ready any more; a gateway alone publishes neither."""
    told = []
    for router in (make_router("w1"), fleet("g1", "g2")["g1"]):
        Engine().tell(router)
        router.set_ready("w1", False, NOW)
        router.set_ready("w1", True, NOW)
        told.append(kinds(router.drain(NOW)))
    assert told == [[], ["Said", "Said"]]


def test_a_restart_that_another_gateway_saw_counts_here() -> None:
    """The facts carry the start time, so records of the old process die without a poll of our own."""
    router = fleet("g1", "g2")["g1"]
    prompt = hashed("x" * 3000)
    serve(router, prompt)
    router.merge("g2", [Said("w1", True, Engine(2.0).facts())], 0.0, NOW)
    assert (held(router, prompt), router.fleet.states["w1"].epoch) == ({}, 2.0)
