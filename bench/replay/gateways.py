"""Who chooses the worker: gateways that run the product's own core, or one of three baselines.

Baselines see the whole fleet's true in-flight at every moment; gateways of ours see their own, and the others' as shared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from bench.replay.trace import Request
from prefix_middleware.core.choose import Figures
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.router import Router
from prefix_middleware.core.workers import Worker
from prefix_middleware.settings import Settings

_OK: Final = 200


class Ticket(Protocol):
    """One request from choice to end."""

    worker: int

    def start(self, now: float) -> None:
        """The first byte of its answer has come."""

    def finish(self) -> None:
        """It is over."""


class Gateways(Protocol):
    """All gateways of a fleet."""

    def choose(self, request: Request, now: float) -> Ticket:
        """Choose a worker at `now`, in seconds."""

    def share(self, now: float) -> None:
        """Tell each other what has happened; called at a regular pace."""


class CoreTicket:
    """A reservation of one gateway's router."""

    def __init__(self, router: Router, reservation: Reservation, worker: int, output_tokens: int) -> None:
        self.worker = worker
        self._router, self._reservation = router, reservation
        self._output_tokens = output_tokens

    def start(self, now: float) -> None:
        """The first byte of its answer has come."""
        self._router.outcome(self._reservation, _OK, now)
        self._router.start(self._reservation, now)

    def finish(self) -> None:
        """It is over."""
        self._router.finish(self._reservation, self._output_tokens)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a fleet is made of; `block_tokens` are the lengths of the blocks that routers see."""

    workers: int = 8
    kv_tokens: int = 307_328
    gateways: int = 1
    seed: int = 1
    block_tokens: Sequence[int] = ()


class CoreGateways:
    """Gateways that take turns with the requests, each with a router of its own."""

    def __init__(self, setup: Setup, policy: str, figures: Figures) -> None:
        names = [f"w{number}" for number in range(setup.workers)]
        self._numbers = {name: number for number, name in enumerate(names)}
        self._random = Random(setup.seed)
        self._turn = 0
        self.routers = [self._router(names, setup, policy, figures) for _ in range(setup.gateways)]

    @staticmethod
    def _router(names: Sequence[str], setup: Setup, policy: str, figures: Figures) -> Router:
        router = Router(
            [Worker(name, f"http://{name}") for name in names],
            policy=policy,
            figures=figures,
            index_blocks=Settings().index_blocks,
            ttl_seconds=Settings().ttl_seconds,
            kv_tokens=setup.kv_tokens,
            block_tokens=setup.block_tokens,
        )
        for name in names:
            router.set_ready(name, True, 0.0)
        return router

    def choose(self, request: Request, now: float) -> CoreTicket:
        """Let the next gateway route."""
        router = self.routers[self._turn % len(self.routers)]
        self._turn += 1
        reservation = router.route(request.prompt, now, self._random.random())
        assert isinstance(reservation, Reservation), reservation  # every worker is ready
        return CoreTicket(router, reservation, self._numbers[reservation.worker], request.output_tokens)

    def share(self, now: float) -> None:
        """Publish every outbox and the loads; a lone gateway's outbox is emptied."""
        for number, router in enumerate(self.routers):
            updates = router.drain(now)
            if len(self.routers) == 1:
                return
            gauges = router.gauges()
            for other in self.routers:
                if other is not router:
                    other.merge(str(number), updates, 0.0, now)
                    other.merge_gauges(str(number), gauges, now)


class BaselineTicket:
    """One request in a baseline's counts."""

    def __init__(self, in_flight: list[int], worker: int) -> None:
        self.worker = worker
        self._in_flight = in_flight
        in_flight[worker] += 1

    def start(self, now: float) -> None:
        """Nothing is learnt from a first byte."""

    def finish(self) -> None:
        """Count it out."""
        self._in_flight[self.worker] -= 1


Pick = Callable[[Sequence[int], Random], int]
"""From the in-flight of each worker, and chance, to a worker."""


def two_choices(in_flight: Sequence[int], random: Random) -> int:
    """Return the freer of two different workers, the first of equals."""
    pair = random.sample(range(len(in_flight)), min(2, len(in_flight)))
    return min(pair, key=in_flight.__getitem__)


def least(in_flight: Sequence[int], random: Random) -> int:
    """Return one of the freest workers."""
    freest = min(in_flight)
    return random.choice([worker for worker, count in enumerate(in_flight) if count == freest])


def anyone(in_flight: Sequence[int], random: Random) -> int:
    """Return any worker."""
    return random.randrange(len(in_flight))


BASELINES: Final[dict[str, Pick]] = {"p2c": two_choices, "least": least, "random": anyone}


class BaselineGateways:
    """Gateways without any knowledge of prompts."""

    def __init__(self, setup: Setup, pick: Pick) -> None:
        self._in_flight = [0] * setup.workers
        self._pick, self._random = pick, Random(setup.seed)

    def choose(self, request: Request, now: float) -> BaselineTicket:  # noqa: ARG002
        """Pick by in-flight and chance."""
        return BaselineTicket(self._in_flight, self._pick(self._in_flight, self._random))

    def share(self, now: float) -> None:
        """Baselines know everything at once."""
