"""4. What each worker has to do, over the whole fleet: this process's own requests plus the other gateways' gauges.

1. A gauge is absolute and expires: a gateway that dies takes its load with it. One of an older epoch weighs nothing.
2. Own counters return to exactly zero: a release belongs to one reservation and one generation of the worker.
3. Nothing here walks the fleet for a prompt.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from msgspec import Struct

from prefix_middleware.core.updates import Gauge

GAUGE_SECONDS: Final = 3.0  # a gauge older than this belonged to a gateway that is gone
MAX_ORIGINS: Final = 1024  # gateways whose gauges are kept; the one unheard of for longest goes
FILL_SECONDS: Final = 300.0  # time constant of what a worker was given
CAPACITY_TOKENS: Final = (
    300_000  # KV tokens assumed while no worker's capacity is known (Qwen3-32B on two H100)
)


class Load(Struct, frozen=True):
    """Load of one worker over the whole fleet."""

    in_flight: int
    backlog_tokens: int
    prompt_tokens: int
    fill: float  # 0 to 1: tokens given lately over KV capacity
    over_full: int = 0  # requests in flight above max_in_flight
    kv_tokens: float = CAPACITY_TOKENS


@dataclass(slots=True)
class LoadState:
    """What one worker has to do, and what it was given lately."""

    id: str
    epoch: float = 0.0  # start time of this incarnation, 0 until known
    in_flight: int = 0
    backlog_tokens: int = 0
    prompt_tokens: int = 0
    others_in_flight: int = 0
    others_backlog_tokens: int = 0
    others_prompt_tokens: int = 0
    given_tokens: float = 0.0  # confirmed here by anybody, decaying
    given_at: float = 0.0
    kv_tokens: int | None = None


S = TypeVar("S", bound=LoadState)


class Loads(Generic[S]):
    """The loads of all workers."""

    def __init__(self, states: Mapping[str, S], max_in_flight: int) -> None:
        self.states = states
        self.max_in_flight = max_in_flight
        self.capacity: float = CAPACITY_TOKENS  # KV tokens of a worker that does not say
        self._gauges: dict[str, tuple[float, tuple[Gauge, ...]]] = {}  # origin -> arrival, what it said
        self._gauges_until = math.inf
        self._in_flight = Counter({0: len(states)})  # requests in flight -> workers that have so many

    def set_capacity(self, state: S, kv_tokens: int | None) -> None:
        """Note a worker's KV cache; one that does not say counts as the median of those that do."""
        state.kv_tokens = kv_tokens
        known = sorted(s.kv_tokens for s in self.states.values() if s.kv_tokens)
        self.capacity = known[len(known) // 2] if known else CAPACITY_TOKENS

    def load(self, state: S, now: float) -> Load:
        """Sum own requests and the others' gauges."""
        kv_tokens = state.kv_tokens or self.capacity
        fill = self._given(state, now) / kv_tokens
        in_flight = state.in_flight + state.others_in_flight
        return Load(
            in_flight,
            state.backlog_tokens + state.others_backlog_tokens,
            state.prompt_tokens + state.others_prompt_tokens,
            min(1.0, fill),
            max(0, in_flight - self.max_in_flight),
            kv_tokens,
        )

    def min_in_flight(self, among: Collection[S]) -> int:
        """Return the in-flight of the freest of `among`."""
        if len(among) == len(self.states):
            return min(self._in_flight)
        return min(state.in_flight + state.others_in_flight for state in among)

    def reserve(self, state: S, uncached: int, prompt: int) -> None:
        """Count a request in; its uncached tokens are backlog until the first byte."""
        self._shift(state, 1)
        state.in_flight += 1
        state.backlog_tokens += uncached
        state.prompt_tokens += prompt

    def release(self, state: S, waiting: int, prompt: int) -> None:
        """Count a request out, with the uncached tokens that it was still waiting for."""
        self._shift(state, -1)
        state.in_flight -= 1
        state.backlog_tokens -= waiting
        state.prompt_tokens -= prompt

    def clear(self, state: S) -> None:
        """Forget this process's own requests on a worker that has restarted."""
        self._shift(state, -state.in_flight)
        state.in_flight = state.backlog_tokens = state.prompt_tokens = 0

    def set_epoch(self, state: S, epoch: float) -> None:
        """Begin a new epoch: gauges of an older one weigh nothing."""
        state.epoch = epoch
        if self._gauges:
            self._add_up()

    def _shift(self, state: S, by: int) -> None:
        total = state.in_flight + state.others_in_flight
        self._in_flight[total + by] += 1
        self._in_flight[total] -= 1
        if not self._in_flight[total]:
            del self._in_flight[total]

    @property
    def origins(self) -> Collection[str]:
        """The other gateways that are alive, as far as we hear of them."""
        return self._gauges.keys()

    def merge_gauges(self, origin: str, gauges: Sequence[Gauge], now: float) -> None:
        """Replace all that `origin` said before."""
        said = {gauge.worker: gauge for gauge in gauges if gauge.worker in self.states}
        self._gauges.pop(origin, None)
        self._gauges[origin] = now, tuple(said.values())
        if len(self._gauges) > MAX_ORIGINS:
            del self._gauges[next(iter(self._gauges))]
        self.expire(now, force=True)

    def expire(self, now: float, *, force: bool = False) -> None:
        """Drop gauges that are too old; cheap while there is none."""
        if now > self._gauges_until or force:
            self._gauges = {o: said for o, said in self._gauges.items() if now - said[0] <= GAUGE_SECONDS}
            self._gauges_until = (
                min((at for at, _ in self._gauges.values()), default=math.inf) + GAUGE_SECONDS
            )
            self._add_up()

    def _add_up(self) -> None:
        sums: dict[str, list[int]] = {}
        for _, gauges in self._gauges.values():
            for gauge in gauges:
                state = self.states.get(gauge.worker)
                if state is not None and gauge.epoch == state.epoch:
                    total = sums.setdefault(gauge.worker, [0, 0, 0])
                    total[0] += gauge.in_flight
                    total[1] += gauge.backlog_tokens
                    total[2] += gauge.prompt_tokens
        for state in self.states.values():
            in_flight, backlog, prompt = sums.get(state.id, (0, 0, 0))
            if in_flight != state.others_in_flight:
                self._shift(state, in_flight - state.others_in_flight)
                state.others_in_flight = in_flight
            state.others_backlog_tokens, state.others_prompt_tokens = backlog, prompt

    def own_gauges(self) -> list[Gauge]:
        """Return this process's own loads; a worker without any is left out."""
        return [
            Gauge(s.id, s.epoch, s.in_flight, s.backlog_tokens, s.prompt_tokens)
            for s in self.states.values()
            if s.in_flight
        ]

    @staticmethod
    def _given(state: S, now: float) -> float:
        return state.given_tokens * math.exp(min(0.0, state.given_at - now) / FILL_SECONDS)

    def give(self, state: S, tokens: int, at: float, now: float) -> None:
        """Note that a prompt of `tokens` was confirmed at `at`, now or earlier."""
        tokens = min(
            tokens, int(state.kv_tokens or self.capacity)
        )  # no prompt fills more than the whole cache
        decayed = tokens * math.exp(min(0.0, at - now) / FILL_SECONDS)
        state.given_tokens = self._given(state, now) + decayed
        state.given_at = now

    def level(self, state: S, others: Collection[S], now: float) -> None:
        """Let a worker that joins or restarts begin with the mean of the others: not with their traffic at once."""
        if others:
            state.given_tokens = sum(self._given(other, now) for other in others) / len(others)
            state.given_at = now
