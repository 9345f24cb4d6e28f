"""What a router makes of a worker's facts: restarts, lost caches, capacity, caching off, and estimates that it then uses."""

import pytest

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.facts import epoch_after_loss, same_start
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.router import Router
from prefix_middleware.core.updates import Notice
from tests.core.bodies import hashed
from tests.core.routing import NOW, held, make_router, route, serve
from tests.core.said import Engine

PROMPT = hashed("x" * 3000)
BLOCKS = {"w1": 5}
UNIX = 5000.0 + NOW


def test_counters_that_go_back_are_a_restart_where_no_start_time_is_told() -> None:
    """Several API servers tell none: the notice kills records and loads, as any restart does."""
    router, engine = make_router("w1", epoch=0.0), Engine(None)
    engine.answer(5000, requests=5)
    first = engine.tell(router)
    serve(router, PROMPT)
    going = route(router, PROMPT)
    reborn = Engine(None)
    second = reborn.tell(router)
    state = router.fleet.states["w1"]
    assert (first.restarted, second.restarted, second.notice) == (False, True, Notice("w1", 0.0, UNIX))
    assert (held(router, PROMPT), state.epoch) == ({}, UNIX)
    engine.answer(9000)
    again = reborn.tell(router)
    router.finish(going)
    assert (again.restarted, state.in_flight) == (False, 0)


def test_counters_that_go_back_under_one_start_time_are_a_lost_cache() -> None:
    """An engine behind the same server began anew: its records die, what is in flight stays counted."""
    router, engine = make_router("w1"), Engine()
    engine.answer(5000, requests=5)
    engine.tell(router)
    serve(router, PROMPT)
    route(router, PROMPT)
    observed = Engine().tell(router)
    state = router.fleet.states["w1"]
    assert (observed.restarted, observed.lost) == (False, True)
    assert (held(router, PROMPT), state.in_flight, state.generation) == ({}, 1, 0)


@pytest.mark.parametrize(
    ("facts", "lost"),
    [
        ({"awake": False}, False),
        ({"awake": False, "dropped": True}, True),
    ],
)
def test_a_deep_sleep_costs_the_cache_once(facts: dict[str, bool], lost: bool) -> None:
    """Level 0 keeps it; a deeper one drops it when it begins, and not again at each poll."""
    router, engine = make_router("w1"), Engine()
    engine.tell(router)
    serve(router, PROMPT)
    losses = [engine.tell(router, **facts).lost for _ in range(3)]
    assert (losses, held(router, PROMPT)) == ([lost, False, False], {} if lost else BLOCKS)


def test_a_reset_is_noticed_from_hits_that_fail_to_come() -> None:
    """Nothing on /metrics tells it: matches without hits do. Loads stay, and what comes then is held anew."""
    router, engine = make_router("w1"), Engine()
    engine.tell(router)
    serve(router, PROMPT)
    engine.answer(750)
    engine.tell(router)
    losses = []
    for _ in range(5):
        serve(router, PROMPT)
        engine.answer(750, 0)
        losses.append(engine.tell(router).lost)
    assert (losses, held(router, PROMPT)) == ([False, False, False, True, False], BLOCKS)
    assert router.fleet.states["w1"].epoch == epoch_after_loss(1.0, 0.0)


def test_an_epoch_after_a_loss_belongs_to_the_same_process() -> None:
    """The worker's start time goes on to confirm it, on every gateway, and a later one is a restart as ever."""
    start = 1_795_951_369.08
    epoch = start
    for _ in range(1000):
        epoch = epoch_after_loss(epoch, 0.0)
    router, engine = make_router("w1", epoch=start), Engine(start)
    router.merge("other", [Notice("w1", start, epoch)], 0.0, NOW)
    restarts = [engine.tell(router).restarted for _ in range(3)]
    assert (restarts, router.fleet.states["w1"].epoch, same_start(epoch, start)) == ([False] * 3, epoch, True)
    assert Engine(start + 0.01).tell(router).restarted is True


def test_two_gateways_that_see_the_same_loss_name_it_alike() -> None:
    """The second notice finds the first one's epoch, and changes nothing."""
    router = make_router("w1")
    loss = Notice("w1", 1.0, epoch_after_loss(1.0, 0.0))
    router.merge("one", [loss], 0.0, NOW)
    serve(router, PROMPT)
    router.merge("two", [loss], 0.0, NOW)
    assert held(router, PROMPT) == BLOCKS


def test_what_one_gateway_noticed_the_next_does_not_notice_again() -> None:
    """Counters and refusals from before the notice say nothing about the new process."""
    router, engine = make_router("w1", epoch=0.0), Engine(None)
    engine.answer(5000)
    engine.tell(router, NOW)
    router.merge("other", [Notice("w1", 0.0, 77.0)], 0.0, NOW + 2)
    serve(router, PROMPT)
    observed = Engine(None).tell(router, NOW + 3, refused_at=NOW + 1)
    assert (observed.restarted, observed.notice, held(router, PROMPT)) == (False, None, BLOCKS)
    assert Engine(None).tell(router, NOW + 5, refused_at=NOW + 4).restarted is True


def test_capacity_is_learned_unless_it_is_set() -> None:
    """What the worker says fits; a setting of the operator's goes before."""
    learned, told = make_router("w1"), make_router("w1", kv_tokens=2000)
    for router in (learned, told):
        Engine(kv_tokens=9000).tell(router)
    assert [router.fleet.states["w1"].kv_tokens for router in (learned, told)] == [9000, 2000]


def test_the_index_forgets_what_a_learned_capacity_has_no_room_for() -> None:
    """Blocks count in tokens of four bytes, the cache in the model's own: twice as long, twice as many fit."""
    router, engine = make_router("w1", block_tokens=(128,) * 64), Engine(kv_tokens=800)
    prompts = [hashed(letter * 3000) for letter in "abc"]
    engine.tell(router)
    for prompt in prompts:
        serve(router, prompt)
    one = [held(router, prompt) for prompt in prompts]
    router.learned.bytes_per_token["m"] = 8.0
    engine.tell(router)
    for prompt in prompts[1:]:
        serve(router, prompt)
    two = [held(router, prompt) for prompt in prompts]
    assert (one, two) == ([{}, {}, BLOCKS], [{}, BLOCKS, BLOCKS])


def test_a_worker_without_caching_gets_no_credit() -> None:
    """The prompt goes where it is held for real, or by load; the index says nothing about this worker."""
    router, engine = make_router("w1"), Engine(caching=False)
    serve(router, PROMPT)
    before = decided(route(router, PROMPT))
    engine.tell(router)
    assert (before, decided(route(router, PROMPT))) == (("only", 5, 640), ("only", 0, 0))


def test_a_worker_that_delivers_less_is_credited_less() -> None:
    """What the decision says is what the worker is expected to have; the load it adds is the rest."""
    router, engine = make_router("w1"), Engine()
    serve(router, PROMPT)
    engine.tell(router)
    for _ in range(200):
        serve(router, PROMPT)
        engine.answer(750, 320)
        engine.tell(router)
    going = route(router, PROMPT)
    reason, blocks, tokens = decided(going)
    assert (reason, blocks, 310 < tokens < 340) == ("only", 5, True)
    assert (going.matched_tokens, going.uncached_tokens) == (
        640,
        PROMPT.tokens - going.decision.matched_tokens,
    )


def test_where_the_longest_match_is_worth_nothing_the_next_longest_counts() -> None:
    """A worker without credit hides no other that holds less and delivers it."""
    router, engine = make_router("w1", "w2"), Engine()
    hold(router, "w1", PROMPT)
    hold(router, "w2", hashed("x" * 1500))
    engine.tell(router)
    for _ in range(150):
        router.learned.note("w1", 3000, 600, NOW)
        engine.answer(750, 0)
        engine.tell(router)
    hold(router, "w1", PROMPT)
    going = route(router, PROMPT)
    assert (going.worker, decided(going)) == ("w2", ("hit", 2, 256))


def hold(router: Router, worker: str, prompt: HashedPrompt) -> None:
    """Note a prompt as held, with the mark of its end."""
    router.index.record((*prompt.hashes, prompt.end), worker, router.fleet.states[worker].epoch, NOW)


def decided(reservation: Reservation) -> tuple[str, int, float]:
    found = reservation.decision
    return found.reason, found.matched_blocks, found.matched_tokens


def test_a_name_of_the_hosts_own_uses_the_only_models_estimate() -> None:
    """Adapters and aliases are written in their worker's tokens; with two models an unknown name gets the default."""
    router, engine = make_router("w1", "w2"), Engine()
    router.set_models("w1", frozenset({"m", "lora"}), None)
    engine.tell(router)
    router.learned.bytes_per_token["m"] = 3.0
    one = [router.bytes_per_token(name) for name in ("m", "lora", "alias")]
    router.observe("w2", Engine(model="n").facts(), None, NOW, UNIX)
    two = [router.bytes_per_token(name) for name in ("m", "lora", "alias", "n")]
    assert (one, two) == ([3.0, 3.0, 3.0], [3.0, 3.0, 4.0, 4.0])


def test_records_of_other_gateways_count_as_ours() -> None:
    """The worker's counters hold everybody's requests: so does our side of the comparison."""
    router, other, engine = make_router("w1"), make_router("w1"), Engine()
    engine.tell(router)
    for number in range(40):
        serve(other if number % 2 else router, hashed("y" * 3000 + str(number)))
        engine.answer(1500)
        router.merge("other", other.drain(NOW), 0.0, NOW)
        engine.tell(router)
    assert router.bytes_per_token("m") == pytest.approx(2.05, abs=0.1)


def test_a_record_that_is_heard_late_is_no_evidence() -> None:
    """It was counted by the worker before this window."""
    router, other, engine = make_router("w1"), make_router("w1"), Engine()
    serve(other, PROMPT)
    engine.tell(router)
    router.merge("other", other.drain(NOW), 60.0, NOW)
    engine.answer(1500, requests=1)
    engine.tell(router)
    assert (router.bytes_per_token("m"), held(router, PROMPT)) == (4.0, BLOCKS)
