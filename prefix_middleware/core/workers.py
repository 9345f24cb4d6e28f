"""4. What is known of each worker: readiness, epoch, what it serves, and its load over the whole fleet.

1. Loads are this process's own exchanges plus the latest gauges of the other origins, which expire.
2. Readiness never touches loads; only a restart does, since nothing in flight survives it.
3. Own counters return to exactly zero: a release belongs to one reservation and one generation of the worker.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from prefix_middleware.core.updates import Gauge

GAUGE_SECONDS: Final = 3.0  # a gauge older than this belonged to a gateway that is gone
FILL_SECONDS: Final = 300.0  # time constant of what a worker was given
CAPACITY_TOKENS: Final = (
    300_000  # KV tokens assumed while no worker's capacity is known (Qwen3-32B on two H100)
)

SUSPECT_FAILURES: Final = 2
SUSPECT_SECONDS: Final = (2.0, 60.0)  # first and longest exclusion
BUSY_SECONDS: Final = 1.0  # exclusion after a 503


@dataclass(frozen=True, slots=True)
class Worker:
    """One vLLM server: the short name that nginx knows it by, and its URL."""

    id: str
    url: str


@dataclass(slots=True)
class WorkerState:
    """One worker as this process sees it."""

    id: str
    url: str
    ready: bool | None = None  # None until asked
    epoch: float = 0.0  # start time of this incarnation, 0 until known
    generation: int = 0  # restarts seen
    models: frozenset[str] | None = None  # None until known
    max_tokens: int | None = None  # context window
    kv_tokens: int | None = None
    in_flight: int = 0
    backlog_tokens: int = 0
    prompt_tokens: int = 0
    gauges: dict[str, tuple[float, Gauge]] = field(default_factory=dict)  # origin -> arrival, gauge
    given_tokens: float = 0.0  # confirmed here by anybody, decaying
    given_at: float = 0.0
    failures: int = 0
    excluded_until: float = 0.0
    exclusion_seconds: float = 0.0
    trial: bool = False  # the one request that may show that a suspect worker is well


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one worker over the whole fleet."""

    in_flight: int
    backlog_tokens: int
    prompt_tokens: int
    fill: float  # 0 to 1: tokens given lately over KV capacity


class Fleet:
    """The workers that this process was told of; unknown names are ignored everywhere."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.states = {worker.id: WorkerState(worker.id, worker.url) for worker in workers}

    def candidates(self, model: str, tokens: int, now: float) -> list[WorkerState]:
        """Return the ready workers that serve the model and hold `tokens`, less the excluded unless all are.

        While nobody is known to be ready, those not asked yet count.
        """
        states = self.states.values()
        ready = [s for s in states if s.ready] or [s for s in states if s.ready is None]
        if any(
            s.models and model in s.models for s in states
        ):  # else a name of the host's own, which it will translate
            ready = [s for s in ready if s.models is None or model in s.models]
        windows = [s.max_tokens for s in ready if s.max_tokens is not None]
        if windows and tokens > min(windows):  # the widest is never filtered out: the estimate may be high
            widest = max(windows)
            ready = [s for s in ready if s.max_tokens is None or s.max_tokens >= min(tokens, widest)]
        return [s for s in ready if now >= s.excluded_until and not s.trial] or ready

    def load(self, state: WorkerState, now: float, capacity: float) -> Load:
        """Sum own exchanges and fresh gauges of the worker's current epoch."""
        in_flight, backlog, prompt = state.in_flight, state.backlog_tokens, state.prompt_tokens
        for arrival, gauge in state.gauges.values():
            if now - arrival <= GAUGE_SECONDS and gauge.epoch == state.epoch:
                in_flight += gauge.in_flight
                backlog += gauge.backlog_tokens
                prompt += gauge.prompt_tokens
        return Load(
            in_flight, backlog, prompt, min(1.0, self._given(state, now) / (state.kv_tokens or capacity))
        )

    def capacity(self) -> float:
        """Return the median known KV capacity in tokens, or an assumed one."""
        known = sorted(state.kv_tokens for state in self.states.values() if state.kv_tokens)
        return known[len(known) // 2] if known else CAPACITY_TOKENS

    @staticmethod
    def _given(state: WorkerState, now: float) -> float:
        return state.given_tokens * math.exp(min(0.0, state.given_at - now) / FILL_SECONDS)

    def give(self, state: WorkerState, tokens: int, at: float, now: float) -> None:
        """Note that a prompt of `tokens` was confirmed at `at`, now or earlier."""
        decayed = tokens * math.exp(min(0.0, at - now) / FILL_SECONDS)
        state.given_tokens = self._given(state, now) + decayed
        state.given_at = now

    def reserve(self, state: WorkerState, uncached: int, prompt: int) -> None:
        """Count a request in; its uncached tokens are backlog until the first byte."""
        state.in_flight += 1
        state.backlog_tokens += uncached
        state.prompt_tokens += prompt

    def set_ready(self, state: WorkerState, ready: bool, now: float) -> None:
        """Change readiness; a worker that joins starts with the mean fill of the ready ones."""
        if ready and not state.ready:
            self._level(state, now)
        state.ready = ready

    def restart(self, state: WorkerState, epoch: float, now: float) -> None:
        """Begin a new epoch: nothing in flight and nothing cached has survived."""
        first = state.epoch == 0.0
        state.epoch = epoch
        if first:  # its epoch was not known before: what is in flight may well be there
            return
        state.generation += 1
        state.in_flight = state.backlog_tokens = state.prompt_tokens = 0
        state.failures, state.excluded_until, state.exclusion_seconds, state.trial = 0, 0.0, 0.0, False
        self._level(state, now)

    def _level(self, state: WorkerState, now: float) -> None:
        others = [self._given(s, now) for s in self.states.values() if s.ready and s is not state]
        if others:
            state.given_tokens, state.given_at = sum(others) / len(others), now

    def own_gauges(self) -> list[Gauge]:
        """Return this process's own loads; a worker without any is left out."""
        return [
            Gauge(s.id, s.epoch, s.in_flight, s.backlog_tokens, s.prompt_tokens)
            for s in self.states.values()
            if s.in_flight
        ]

    def merge_gauges(self, origin: str, gauges: Sequence[Gauge], now: float) -> None:
        """Replace all that `origin` said before."""
        said = {gauge.worker: gauge for gauge in gauges}
        for state in self.states.values():
            for stale in [
                o for o, (at, _) in state.gauges.items() if o == origin or now - at > GAUGE_SECONDS
            ]:
                del state.gauges[stale]
            if state.id in said:
                state.gauges[origin] = now, said[state.id]

    def failed(self, state: WorkerState, now: float) -> float:
        """Count a 5xx or a lost connection; return for how many seconds it is now excluded, 0 for not."""
        state.trial = False
        state.failures += 1
        if state.failures < SUSPECT_FAILURES:
            return 0.0
        first, longest = SUSPECT_SECONDS
        state.exclusion_seconds = min(longest, state.exclusion_seconds * 2 or first)
        state.excluded_until = now + state.exclusion_seconds
        return state.exclusion_seconds

    def busy(self, state: WorkerState, now: float) -> None:
        """Leave it alone for a moment: it answered 503."""
        state.trial = False
        state.excluded_until = max(state.excluded_until, now + BUSY_SECONDS)

    def answered(self, state: WorkerState) -> bool:
        """Note a 2xx; return whether the worker was suspect."""
        was_suspect = state.failures >= SUSPECT_FAILURES
        state.failures, state.exclusion_seconds, state.trial = 0, 0.0, False
        if was_suspect:
            state.excluded_until = 0.0
        return was_suspect

    def suspect(self, state: WorkerState, seconds: float, now: float) -> None:
        """Learn from another gateway that the worker is suspect, or with 0 that it is well."""
        if seconds <= 0:
            self.answered(state)
            return
        state.failures = max(state.failures, SUSPECT_FAILURES)
        state.exclusion_seconds = max(state.exclusion_seconds, min(seconds, SUSPECT_SECONDS[1]))
        state.excluded_until = max(state.excluded_until, now + min(seconds, SUSPECT_SECONDS[1]))
