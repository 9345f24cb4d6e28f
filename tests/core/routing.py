"""Routers for tests: made, asked, and wired to each other by hand."""

from typing import Any

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.router import Router
from prefix_middleware.core.updates import Gauge, Update
from prefix_middleware.core.workers import Worker
from tests.core.bodies import hashed

NOW = 1000.0
WORKERS = ("w1", "w2", "w3")


def make_router(*workers: str, ready: bool = True, epoch: float = 1.0, **options: Any) -> Router:
    """Return a router over these workers, all ready in one epoch."""
    names = workers or WORKERS
    router = Router([Worker(name, f"http://{name}:8000") for name in names], **options)
    for name in names:
        if epoch:
            router.set_epoch(name, epoch, NOW)
        if ready:
            router.set_ready(name, True, NOW)
    return router


def route(router: Router, prompt: HashedPrompt, now: float = NOW, random: float = 0.0) -> Reservation:
    """Route a prompt that somebody can serve."""
    reservation = router.route(prompt, now, random)
    assert isinstance(reservation, Reservation), reservation
    return reservation


def serve(router: Router, prompt: HashedPrompt, now: float = NOW, random: float = 0.0) -> str:
    """Route, answer and finish one request; return who served it."""
    reservation = route(router, prompt, now, random)
    router.outcome(reservation, 200, now)
    router.start(reservation, now)
    router.finish(reservation)
    return reservation.worker


def fail(router: Router, status: int | None, now: float, prompt: HashedPrompt | None = None) -> str:
    """Route one request and have it fail; return who did."""
    reservation = route(router, prompt or hashed("hi"), now)
    router.outcome(reservation, status, now)
    router.finish(reservation)
    return reservation.worker


def counters(router: Router) -> dict[str, tuple[int, int, int]]:
    """Return own in-flight, backlog and prompt tokens of every worker."""
    return {s.id: (s.in_flight, s.backlog_tokens, s.prompt_tokens) for s in router.fleet.states.values()}


def idle(router: Router) -> dict[str, tuple[int, int, int]]:
    """Return what `counters` is when nothing is going on."""
    return dict.fromkeys(router.fleet.states, (0, 0, 0))


def candidates(router: Router, model: str = "m", now: float = NOW, tokens: int = 1) -> set[str]:
    """Return who may be chosen, without choosing."""
    return set(router.fleet.candidates(model, tokens, now).ids)


def held(router: Router, prompt: HashedPrompt, now: float = NOW) -> dict[str, int]:
    """Return how many blocks of a prompt each worker that holds any has."""
    router.index.best(prompt.hashes, WORKERS, now)  # what has expired goes here
    matches = {name: router.index.match(prompt.hashes, name, now) for name in router.fleet.states}
    return {name: match for name, match in matches.items() if match}


def gauge(worker: str, in_flight: int, *, epoch: float = 1.0) -> Gauge:
    """Return a gauge of so many waiting requests of 100 tokens."""
    return Gauge(worker, epoch, in_flight, in_flight * 100, in_flight * 100)


def kinds(updates: list[Update]) -> list[str]:
    """Return what kind each update is."""
    return [type(update).__name__ for update in updates]
