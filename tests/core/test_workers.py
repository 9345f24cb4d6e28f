"""Who is a candidate: readiness, what a worker serves, its window, and what its failures say."""

import pytest

from prefix_middleware.core.choose import Decision
from prefix_middleware.core.router import Router
from prefix_middleware.core.updates import Suspect
from prefix_middleware.core.workers import Fleet, Worker
from tests.core.bodies import hashed
from tests.core.routing import NOW, WORKERS, candidates, fail, held, kinds, make_router, route, serve

ALL = set(WORKERS)


def test_only_ready_workers_are_candidates() -> None:
    """The index is asked after the filter: a warm worker that is down is not chosen."""
    router = make_router()
    prompt = hashed("x" * 4000)
    warm = serve(router, prompt)
    router.set_ready(warm, False, NOW)
    assert (candidates(router), serve(router, prompt) != warm) == (ALL - {warm}, True)


def test_workers_not_asked_yet_are_candidates_while_none_is_ready() -> None:
    """In the first second after a start nobody was asked; requests go on."""
    router = make_router(ready=False)
    found = [candidates(router)]
    router.set_ready("w1", False, NOW)
    found.append(candidates(router))
    router.set_ready("w2", True, NOW)
    found.append(candidates(router))
    assert found == [ALL, {"w2", "w3"}, {"w2"}]


def test_nobody_ready_is_a_decision_without_a_worker() -> None:
    """No header, nginx decides: never a queue, never an answer of ours."""
    router = make_router(*WORKERS)
    for name in WORKERS:
        router.set_ready(name, False, NOW)
    prompt = hashed("x" * 4000)
    assert router.route(prompt, NOW, 0.0) == Decision(reason="none", tokens=prompt.tokens, model="m")


def test_an_empty_fleet_decides_nothing() -> None:
    """No workers configured is not an error."""
    assert Fleet([], 256).candidates("m", 1, NOW).ids == ()


def test_a_model_goes_to_who_lists_it() -> None:
    """An adapter is loaded on some workers; one that has not said counts as serving everything."""
    router = make_router()
    router.set_models("w1", frozenset({"m", "lora"}), None)
    router.set_models("w2", frozenset({"m"}), None)
    found = [candidates(router, model) for model in ("lora", "m", "", "host-name")]
    assert found == [{"w1", "w3"}, ALL, ALL, ALL]


def test_a_model_that_is_listed_later_is_then_looked_for() -> None:
    """What was answered before is forgotten when a worker says something new."""
    router = make_router()
    before = candidates(router, "lora")
    router.set_models("w2", frozenset({"lora"}), None)
    router.set_models("w1", frozenset({"m"}), None)
    assert (before, candidates(router, "lora")) == (ALL, {"w2", "w3"})


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(100, ALL), (101, {"w2", "w3"}), (200, {"w2", "w3"}), (201, {"w2", "w3"}), (10**9, {"w2", "w3"})],
)
def test_a_prompt_goes_where_it_fits_and_never_nowhere(tokens: int, expected: set[str]) -> None:
    """Context windows filter, but never the widest: the estimate may be too high. Unknown counts as wide."""
    router = make_router()
    router.set_models("w1", None, 100)
    router.set_models("w2", None, 200)
    assert candidates(router, tokens=tokens) == expected


def test_requested_output_counts_for_the_window() -> None:
    """The window holds the prompt and what it asks for."""
    router = make_router("w1", "w2")
    router.set_models("w1", None, 100)
    router.set_models("w2", None, 1000)
    prompt = hashed("hi")
    asked = type(prompt)(
        prompt.hashes, prompt.matched_tokens, prompt.end, None, prompt.tokens, "m", True, 500
    )
    assert {route(router, asked, random=i / 9).worker for i in range(9)} == {"w2"}


def test_two_failures_without_a_success_make_a_worker_suspect() -> None:
    """A draining vLLM answers 200 on /health and 500 on every request; without this it looks the lightest."""
    router = make_router("w1", "w2")
    router.set_ready("w2", False, NOW)
    fail(router, 500, NOW)
    serve(router, hashed("hi"))
    fail(router, None, NOW)
    once = router.drain(NOW)
    fail(router, 502, NOW)
    router.set_ready("w2", True, NOW)
    found = [candidates(router, now=NOW + after) for after in (0.0, 1.9, 2.0)]
    assert (kinds(once), found) == (["Confirmed"], [{"w2"}, {"w2"}, {"w1", "w2"}])
    assert [u for u in router.drain(NOW) if isinstance(u, Suspect)] == [Suspect("w1", 1.0, 2.0)]


@pytest.mark.parametrize("status", [400, 401, 404, 429])
def test_a_clients_error_says_nothing_about_the_worker(status: int) -> None:
    """A burst of bad requests must not take a worker out."""
    router = make_router("w1", "w2")
    for _ in range(20):
        fail(router, status, NOW)
    assert candidates(router) == {"w1", "w2"}


def test_one_request_counts_as_one_failure() -> None:
    """Two messages about the same request are one failure: a worker is suspect after two requests."""
    router = make_router("w1", "w2")
    reservation = route(router, hashed("hi"))
    for _ in range(3):
        router.outcome(reservation, 500, NOW)
    router.finish(reservation)
    assert candidates(router) == {"w1", "w2"}


def suspect_router() -> Router:
    """Return a router over two workers of which w1 has just become suspect."""
    router = make_router("w1", "w2")
    router.set_ready("w2", False, NOW)
    for _ in range(2):
        fail(router, 500, NOW)
    router.set_ready("w2", True, NOW)
    return router


def trial(router: Router, now: float) -> list[str]:
    """Return who got the next 40 prompts, none of them answered yet."""
    return [route(router, hashed(f"{now} {i}"), now, i / 40).worker for i in range(40)]


def test_a_suspect_gets_one_trial_when_its_time_is_over() -> None:
    """One request may show that it is well; the others do not wait for it."""
    router = suspect_router()
    assert trial(router, NOW + 2.0).count("w1") == 1


def test_exclusion_doubles_with_every_failed_trial_up_to_a_minute() -> None:
    """2, 4, 8, 16, 32, 60, 60 seconds: a dead worker costs one request a minute."""
    router, now, seconds = suspect_router(), NOW, []
    router.set_ready("w2", False, NOW)
    for _ in range(6):
        router.set_ready("w2", True, now)
        excluded = next(after for after in range(1, 99) if "w1" in candidates(router, now=now + after))
        seconds.append(excluded)
        now += excluded
        router.set_ready("w2", False, now)
        fail(router, 500, now)
    assert seconds == [2, 4, 8, 16, 32, 60]


def test_failures_of_requests_already_there_do_not_lengthen_the_exclusion() -> None:
    """A crash fails everything in flight at once; that is one event, not a doubling for each request."""
    router = make_router("w1", "w2")
    router.set_ready("w2", False, NOW)
    reservations = [route(router, hashed(f"{i}")) for i in range(10)]
    router.set_ready("w2", True, NOW)
    for reservation in reservations:
        router.outcome(reservation, None, NOW + 0.1)
        router.finish(reservation)
    found = [candidates(router, now=NOW + after) for after in (2.0, 2.2)]
    assert found == [{"w2"}, {"w1", "w2"}]


def test_a_trial_that_succeeds_clears_the_suspicion_everywhere() -> None:
    """The first 2xx ends it, and the others are told."""
    router = suspect_router()
    router.drain(NOW)
    reservations = [route(router, hashed(f"{i}"), NOW + 2.0, i / 40) for i in range(40)]
    (tried,) = (r for r in reservations if r.worker == "w1")
    router.outcome(tried, 200, NOW + 2.5)
    router.start(tried, NOW + 2.5)
    told = [u for u in router.drain(NOW + 2.5) if isinstance(u, Suspect)]
    assert (told, candidates(router, now=NOW + 2.5)) == ([Suspect("w1", 1.0, 0.0)], {"w1", "w2"})


@pytest.mark.parametrize("status", [None, 400, 404])
def test_a_trial_that_says_nothing_lets_another_try(status: int | None) -> None:
    """A client that leaves or errs during the trial must not keep the worker out for ever."""
    router = suspect_router()
    reservations = [route(router, hashed(f"{i}"), NOW + 2.0, i / 40) for i in range(40)]
    (tried,) = (r for r in reservations if r.worker == "w1")
    if status is not None:
        router.outcome(tried, status, NOW + 2.5)
    router.finish(tried)
    assert candidates(router, now=NOW + 2.5) == {"w1", "w2"}


def test_one_failure_is_no_suspicion_also_after_a_503() -> None:
    """A worker that was busy once and failed once later takes several requests at a time."""
    router = make_router("w1", "w2")
    router.set_ready("w2", False, NOW)
    fail(router, 503, NOW)
    fail(router, 500, NOW + 10)
    router.set_ready("w2", True, NOW)
    assert trial(router, NOW + 20).count("w1") > 1


def test_a_503_skips_a_worker_for_a_second() -> None:
    """It said that it is full; that is no failure."""
    router = make_router("w1", "w2")
    busy = fail(router, 503, NOW)
    found = [candidates(router, now=NOW + after) for after in (0.0, 0.9, 1.0)]
    assert found == [{"w1", "w2"} - {busy}, {"w1", "w2"} - {busy}, {"w1", "w2"}]


def test_the_last_candidate_is_never_excluded() -> None:
    """When all are suspect or busy, requests go on as if none was."""
    router = make_router("w1", "w2")
    for _ in range(8):
        fail(router, 500, NOW)
    fail(router, 503, NOW)
    assert candidates(router) == {"w1", "w2"}


def test_suspicion_is_shared() -> None:
    """One gateway's two failures spare the others theirs; a later 2xx clears it there too."""
    first, second = suspect_router(), make_router("w1", "w2")
    second.merge("o1", first.drain(NOW), 0.5, NOW)
    excluded = [candidates(second, now=NOW + after) for after in (0.0, 1.4, 1.5)]
    second.merge("o1", [Suspect("w1", 1.0, 60.0)], 0.0, NOW)
    second.merge("o1", [Suspect("w1", 1.0, 0.0)], 0.0, NOW)
    assert (excluded, candidates(second)) == ([{"w2"}, {"w2"}, {"w1", "w2"}], {"w1", "w2"})


def test_a_suspicion_that_is_over_changes_nothing() -> None:
    """What arrives late, as after an outage of the mirror, neither excludes nor clears."""
    router = suspect_router()
    router.merge("o1", [Suspect("w1", 1.0, 2.0), Suspect("w2", 1.0, 2.0)], 30.0, NOW)
    assert candidates(router) == {"w2"}


def test_a_suspicion_of_another_epoch_is_ignored() -> None:
    """The worker that failed is gone."""
    router = make_router("w1", "w2")
    router.merge("o1", [Suspect("w1", 0.5, 60.0), Suspect("stranger", 1.0, 60.0)], 0.0, NOW)
    assert candidates(router) == {"w1", "w2"}


def test_a_restart_ends_suspicion() -> None:
    """The new process has not failed yet."""
    router = suspect_router()
    router.set_epoch("w1", 2.0, NOW)
    assert candidates(router) == {"w1", "w2"}


def test_readiness_changes_no_load() -> None:
    """A failed poll and a recovery while requests run: they are still there."""
    router = make_router("w1")
    prompt = hashed("x" * 4000)
    route(router, prompt)
    news = [router.set_ready("w1", ready, NOW) for ready in (False, False, True, True)]
    assert (news, router.gauges()[0].in_flight, held(router, prompt)) == (
        [True, False, True, False],
        1,
        {"w1": 7},
    )


def test_a_fleet_keeps_the_workers_it_was_told_of() -> None:
    """Ids and addresses as given; nothing known yet."""
    fleet = Fleet([Worker("w1", "http://a:1")], 256)
    state = fleet.states["w1"]
    assert (list(fleet.states), state.url, state.ready, state.epoch) == (["w1"], "http://a:1", None, 0.0)
