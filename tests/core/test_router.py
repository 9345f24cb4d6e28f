"""One router: match, choose, reserve and record as one call, and counters that always return to zero."""

import gc
import threading

from prefix_middleware.core.blocks import Hasher
from prefix_middleware.core.canonical import CanonicalPrompt
from prefix_middleware.core.choose import Decision, line
from prefix_middleware.core.outbox import OUTBOX_UPDATES
from prefix_middleware.core.reservation import Reservation
from tests.core.bodies import chat, hashed, prompt_of, system, user
from tests.core.routing import NOW, WORKERS, counters, held, idle, kinds, make_router, route, serve

PROMPTS = [hashed(content) for content in ("a" * 3000, "a" * 1500 + "b" * 1500, "c" * 600, "d")]


def test_the_sample_line_of_a_repeated_prompt() -> None:
    """A real body of 52 KB sent twice: the second keeps all 64 blocks of a 32 KiB window, by policy `requests`."""
    hasher = Hasher(None, 32768)
    body = chat(system("You are a careful assistant. " * 300), user("x" * 43_094))
    router = make_router("905487f1", "w2", "w3", policy="requests")
    router.set_ready("w2", False, NOW)
    router.set_ready("w3", False, NOW)
    lines = []
    for ready in (False, True):
        router.set_ready("w2", ready, NOW)
        router.set_ready("w3", ready, NOW)
        reservation = route(router, hasher.hash(prompt_of("chat", body)))
        lines.append(line(reservation.decision))
        router.start(reservation, NOW)
        router.finish(reservation)
    assert lines == [
        "[PREFIX] only: 905487f1 keeps 0/64 blocks (slots=0 min=0 slack=3, ~12952 tokens)",
        "[PREFIX] hit: 905487f1 keeps 64/64 blocks (slots=0 min=0 slack=3, ~12952 tokens)",
    ]


def test_a_route_counts_in_and_notes_at_once() -> None:
    """The next prompt in the same instant sees the load and the record: no burst finds every worker free."""
    router = make_router("w1")
    prompt = hashed("x" * 3000)
    reservation = route(router, prompt)
    seen = counters(router)["w1"], held(router, prompt), reservation.waiting
    assert seen == ((1, prompt.tokens, prompt.tokens), {"w1": 5}, True)


def test_the_first_byte_ends_the_backlog_and_the_last_the_rest() -> None:
    """Backlog is prefill still to do; in-flight lasts until the end of the answer."""
    router = make_router("w1")
    prompt = hashed("x" * 3000)
    reservation = route(router, prompt)
    router.start(reservation, NOW)
    started = counters(router)["w1"]
    router.finish(reservation)
    assert (started, counters(router)["w1"]) == ((1, 0, prompt.tokens), (0, 0, 0))


def test_a_request_is_counted_out_once() -> None:
    """Several ends of one request, as an exception and a disconnect, take nothing from another one."""
    router = make_router("w1")
    other = route(router, PROMPTS[0])
    for _ in range(100):
        reservation = route(router, PROMPTS[1])
        for _ in range(3):
            router.finish(reservation)
    assert counters(router)["w1"] == (1, other.uncached_tokens, PROMPTS[0].tokens)


def test_what_is_cached_is_no_backlog() -> None:
    """Only tokens that must be computed count as waiting work."""
    router = make_router("w1")
    prompt = hashed("x" * 3000)
    serve(router, prompt)
    reservation = route(router, prompt)
    uncached = prompt.tokens - prompt.matched_tokens[5]
    assert (reservation.uncached_tokens, counters(router)["w1"]) == (uncached, (1, uncached, prompt.tokens))


def test_a_request_that_never_starts_leaves_no_record() -> None:
    """A 401 or a lost connection makes no worker warm."""
    router = make_router("w1")
    prompt = hashed("x" * 3000)
    router.finish(route(router, prompt))
    assert (held(router, prompt), counters(router)) == ({}, idle(router))


def test_a_start_after_the_end_counts_nothing() -> None:
    """Late messages of a finished request change nothing."""
    router = make_router("w1")
    reservation = route(router, PROMPTS[0])
    router.finish(reservation)
    router.start(reservation, NOW)
    router.move(reservation, "w1", NOW)
    assert (held(router, PROMPTS[0]), counters(router), router.drain(NOW + 1)) == ({}, idle(router), [])


def test_a_prompt_that_reads_no_cache_matches_nothing_and_is_recorded() -> None:
    """prompt_logprobs: the engine computes it all, and others may use what it stores."""
    router = make_router("w1", "w2")
    plain = CanonicalPrompt(b"x" * 3000, "m")
    skipping = Hasher(None, 32768).hash(CanonicalPrompt(b"x" * 3000, "m", reads_cache=False))
    serve(router, skipping)
    reservation = route(router, skipping)
    found = reservation.decision.reason, reservation.decision.matched_blocks, reservation.uncached_tokens
    following = route(router, Hasher(None, 32768).hash(plain)).decision
    assert (found, following.reason, following.matched_blocks) == (("miss", 0, skipping.tokens), "hit", 5)


def test_a_prompt_that_reads_no_cache_matches_nothing_where_it_is_moved_to() -> None:
    """Whoever serves it computes all of it."""
    router = make_router("w1", "w2")
    skipping = Hasher(None, 32768).hash(CanonicalPrompt(b"x" * 3000, "m", reads_cache=False))
    for served in ("w1", "w2"):
        reservation = route(router, skipping)
        router.move(reservation, served, NOW)
        router.start(reservation, NOW)
        router.finish(reservation)
    reservation = route(router, skipping)
    other = ({"w1", "w2"} - {reservation.worker}).pop()
    router.move(reservation, other, NOW)
    assert (reservation.worker, reservation.matched_tokens, reservation.uncached_tokens) == (
        other,
        0,
        skipping.tokens,
    )


def test_who_really_served_gets_load_and_record() -> None:
    """nginx may try another worker; its answer says who, and everything follows."""
    router = make_router("w1", "w2")
    reservation = route(router, PROMPTS[0])
    chosen = reservation.worker
    other = ({"w1", "w2"} - {chosen}).pop()
    router.move(reservation, other, NOW)
    moved = counters(router)
    router.start(reservation, NOW)
    router.finish(reservation)
    tokens = PROMPTS[0].tokens
    assert moved == {chosen: (0, 0, 0), other: (1, tokens, tokens)}
    assert (held(router, PROMPTS[0]), counters(router)) == ({other: 5}, idle(router))


def test_a_worker_that_nginx_left_has_failed() -> None:
    """nginx leaves the named worker only on an error of it: twice makes it suspect."""
    router = make_router("w1", "w2")
    router.set_ready("w2", False, NOW)
    for _ in range(2):
        router.move(route(router, PROMPTS[3]), "w2", NOW)
    router.set_ready("w2", True, NOW)
    assert set(router.fleet.candidates("m", 1, NOW).ids) == {"w2"}


def test_a_restart_forgets_what_was_in_flight_and_cached() -> None:
    """Nothing survives it; late messages of the old requests count nowhere."""
    router = make_router("w1")
    serve(router, PROMPTS[1])
    old = [route(router, PROMPTS[0]) for _ in range(3)]
    router.start(old[0], NOW)
    assert router.set_epoch("w1", 2.0, NOW) is True
    after = counters(router)["w1"], held(router, PROMPTS[0]), held(router, PROMPTS[1])
    new = route(router, PROMPTS[3])
    for reservation in old:
        router.start(reservation, NOW)
        router.finish(reservation)
    assert after == ((0, 0, 0), {}, {})
    assert (counters(router)["w1"], held(router, PROMPTS[0])) == (
        (1, new.uncached_tokens, new.prompt.tokens),
        {},
    )


def test_a_worker_whose_epoch_becomes_known_has_not_restarted() -> None:
    """What was sent before the first poll is there, and is recorded when it starts."""
    router = make_router("w1", epoch=0.0)
    reservation = route(router, PROMPTS[0])
    assert router.set_epoch("w1", 5.0, NOW) is False
    seen = counters(router)["w1"][0]
    router.start(reservation, NOW)
    router.finish(reservation)
    assert (seen, held(router, PROMPTS[0]), counters(router)) == (1, {"w1": 5}, idle(router))


def test_an_older_start_time_counts_when_seen_twice() -> None:
    """One poll may be an answer overtaken by a restart; two in a row are the truth of a clock set back."""
    router = make_router("w1", epoch=9.0)
    seen = [router.set_epoch("w1", epoch, NOW) for epoch in (8.0, 9.0, 8.0, 8.0)]
    assert (seen, router.fleet.states["w1"].epoch) == ([False, False, False, True], 8.0)


def test_nobody_is_asked_to_wait() -> None:
    """No candidate: a bare decision, nothing counted, nothing noted."""
    router = make_router("w1")
    router.set_ready("w1", False, NOW)
    decided = router.route(PROMPTS[0], NOW, 0.5)
    assert decided == Decision(reason="none", tokens=PROMPTS[0].tokens, model="m")
    assert (counters(router), held(router, PROMPTS[0])) == (idle(router), {})


def test_all_full_takes_the_lightest() -> None:
    """Never wait: the least bad choice, and the line says who lost it."""
    router = make_router("w1", "w2", max_in_flight=2)
    for worker, other, count in (("w1", "w2", 5), ("w2", "w1", 2)):
        router.set_ready(other, False, NOW)
        router.set_ready(worker, True, NOW)
        for _ in range(count):
            router.start(route(router, PROMPTS[0] if worker == "w1" else PROMPTS[2]), NOW)
    router.set_ready("w1", True, NOW)
    assert line(route(router, PROMPTS[0]).decision) == (
        "[PREFIX] busy: w2 takes over from w1, which keeps 5/5 blocks (slots=2 min=2 slack=2, ~751 tokens)"
    )


def test_the_outbox_is_bounded() -> None:
    """Nobody drains while the mirror is away: the oldest facts are dropped and counted."""
    router = make_router("w1")
    calls = []
    router.on_update = lambda: calls.append(1)
    for _ in range(OUTBOX_UPDATES + 7):
        serve(router, PROMPTS[3])
    drained = router.drain(NOW)
    assert (len(drained), router.dropped_updates, len(calls)) == (OUTBOX_UPDATES, 7, OUTBOX_UPDATES + 7)
    assert (kinds(drained)[-1], router.drain(NOW)) == ("Confirmed", [])


def test_requests_that_nobody_drains_are_not_kept_for_ever() -> None:
    """Without a mirror nothing may pile up for it: finished requests go away."""
    router = make_router("w1")
    for _ in range(OUTBOX_UPDATES + 1000):
        router.finish(route(router, PROMPTS[3]))
    gc.collect()
    kept = sum(isinstance(thing, Reservation) and thing.prompt is PROMPTS[3] for thing in gc.get_objects())
    assert kept <= OUTBOX_UPDATES


def test_threads_leave_nothing_behind() -> None:
    """Carriers of synchronous hosts call from threads: 8 of them, 500 requests each, every counter is zero."""
    router = make_router()
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(500):
                reservation = route(router, PROMPTS[(seed + i) % 4], NOW, i / 500)
                if i % 3:
                    router.start(reservation, NOW)
                if i % 7 == 0:
                    router.move(reservation, WORKERS[i % 3], NOW)
                router.finish(reservation)
        except BaseException as failure:  # shown below: a thread's own would be lost
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failures, counters(router), router.index.provisional) == ([], idle(router), 0)
