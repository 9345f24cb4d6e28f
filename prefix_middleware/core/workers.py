"""4. What is known of each worker: readiness, epoch, what it serves, and whether it fails (loads: loads.py).

1. Readiness never touches loads; only a restart does, since nothing in flight survives it.
2. Who is a candidate is worked out when something changes, not for every prompt.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prefix_middleware.core.learned import NO_CREDIT
from prefix_middleware.core.loads import Loads, LoadState

SUSPECT_FAILURES: Final = 2
SUSPECT_SECONDS: Final = (2.0, 60.0)  # first and longest exclusion
BUSY_SECONDS: Final = 1.0  # exclusion after a 503


@dataclass(frozen=True, slots=True)
class Worker:
    """One vLLM server, or one data-parallel rank of it: the short name that nginx knows it by, and its URL."""

    id: str
    url: str
    rank: int | None = None  # nginx pins requests to it; None: the server has one, or chooses by itself


@dataclass(slots=True)
class WorkerState(LoadState):
    """One worker as this process sees it."""

    url: str = ""
    ready: bool | None = None  # None until asked
    generation: int = 0  # restarts seen
    models: frozenset[str] | None = None  # None until known
    max_tokens: int | None = None  # context window
    failures: int = 0
    excluded_until: float = 0.0
    exclusion_seconds: float = 0.0
    trial: bool = False  # the one request that may show that a suspect worker is well
    caching: bool = True  # False: it keeps no prefixes
    ends_only: bool = False  # a prefix hits only at the end of an earlier whole prompt
    unit_tokens: int = 1  # by which hits grow
    block_tokens: int = 1  # of its KV cache
    credit: float = 1.0  # what a match here has been worth lately, times what it said
    ranks: int = 1  # workers that are data-parallel ranks of the same server, this one included

    @property
    def plain(self) -> bool:
        """A match here is found block by block, and worth something."""
        return self.caching and not self.ends_only and self.credit >= NO_CREDIT


@dataclass(frozen=True, slots=True)
class Candidates:
    """The workers that may be chosen for one model, until `until` unless something changes."""

    by_id: Mapping[str, WorkerState]
    plain: Mapping[str, WorkerState]  # those whose matches are found block by block
    ends: Mapping[str, WorkerState]  # those where only the ends of earlier prompts count
    ids: tuple[str, ...]
    until: float
    window: int | None  # smallest context window among them, None when none is known


class Fleet(Loads[WorkerState]):
    """The workers that this process was told of; unknown names are ignored everywhere."""

    def __init__(self, workers: Iterable[Worker], max_in_flight: int) -> None:
        workers = tuple(workers)
        ranks = Counter(worker.url for worker in workers if worker.rank is not None)
        states = {w.id: WorkerState(w.id, url=w.url, ranks=ranks[w.url] or 1) for w in workers}
        super().__init__(states, max_in_flight)
        self._candidates: dict[str, Candidates] = {}  # by model; "" for a name that no worker lists
        self._models: frozenset[str] | None = None  # that any worker lists; None: to be worked out

    def candidates(self, model: str, tokens: int, now: float) -> Candidates:
        """Return the ready workers that serve the model and hold `tokens`, less the excluded unless all are.

        While nobody is known to be ready, those not asked yet count.
        """
        if self._models is None:
            self._models = frozenset().union(*(s.models for s in self.states.values() if s.models))
        key = model if model in self._models else ""  # a name of the host's own, which it will translate
        found = self._candidates.get(key)
        if found is None or now >= found.until:
            found = self._candidates[key] = self._work_out(key, now)
        if found.window is None or tokens <= found.window:
            return found
        return _wide_enough(found, tokens)

    def _work_out(self, model: str, now: float) -> Candidates:
        states = self.states.values()
        ready = [s for s in states if s.ready] or [s for s in states if s.ready is None]
        if model:
            ready = [s for s in ready if s.models is None or model in s.models]
        allowed = [s for s in ready if now >= s.excluded_until and not s.trial] or ready
        until = min((s.excluded_until for s in ready if s.excluded_until > now), default=math.inf)
        return _candidates(allowed, until)

    def changed(self) -> None:
        """Forget who is a candidate: something that it depends on has changed."""
        self._candidates.clear()
        self._models = None

    def set_ready(self, state: WorkerState, ready: bool, now: float) -> None:
        """Change readiness; a worker that comes back starts with the mean fill of the ready ones."""
        if ready == state.ready:
            return
        if ready and (state.ready is False or not state.given_tokens):  # else a snapshot has told its fill
            self.level(state, [s for s in self.states.values() if s.ready], now)
        state.ready = ready
        self.changed()

    def set_models(self, state: WorkerState, models: frozenset[str] | None, max_tokens: int | None) -> None:
        """Note what a worker serves; None is unknown."""
        if (models, max_tokens) != (state.models, state.max_tokens):
            state.models, state.max_tokens = models, max_tokens
            self.changed()

    def set_cache(
        self, state: WorkerState, *, caching: bool, ends_only: bool, unit_tokens: int, block_tokens: int
    ) -> None:
        """Note how a worker's cache finds prefixes."""
        state.unit_tokens, state.block_tokens = unit_tokens, block_tokens
        if (caching, ends_only) != (state.caching, state.ends_only):
            state.caching, state.ends_only = caching, ends_only
            self.changed()

    def set_credit(self, state: WorkerState, credit: float) -> None:
        """Note what a match on a worker is worth, times what the index says."""
        plain, state.credit = state.plain, credit
        if plain != state.plain:
            self.changed()

    def restart(self, state: WorkerState, epoch: float, now: float) -> None:
        """Begin a new epoch: nothing in flight and nothing cached has survived."""
        first = state.epoch == 0.0
        self.set_epoch(state, epoch)
        if first:  # its epoch was not known before: what is in flight may well be there
            return
        state.generation += 1
        self.clear(state)
        state.failures, state.excluded_until, state.exclusion_seconds, state.trial = 0, 0.0, 0.0, False
        self.level(state, [s for s in self.states.values() if s.ready and s is not state], now)
        self.changed()

    def chosen(self, state: WorkerState, now: float) -> None:
        """Note that a request goes to the worker: for a suspect one whose time is over, it is the trial."""
        if state.failures >= SUSPECT_FAILURES and now >= state.excluded_until:
            state.trial = True
            self.changed()

    def undecided(self, state: WorkerState) -> None:
        """A request has ended without an answer that says anything: another one may be the trial."""
        if state.trial:
            state.trial = False
            self.changed()

    def failed(self, state: WorkerState, now: float) -> float:
        """Count a 5xx or a lost connection; return for how many seconds it is now excluded, 0 for not."""
        if state.exclusion_seconds and now < state.excluded_until:
            return 0.0  # sent before it was suspect: one crash fails all that is in flight
        state.trial = False
        state.failures += 1
        self.changed()
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
        self.changed()

    def answered(self, state: WorkerState) -> bool:
        """Note a 2xx; return whether the worker was suspect."""
        was_suspect = state.failures >= SUSPECT_FAILURES
        state.failures, state.exclusion_seconds = 0, 0.0
        if was_suspect:
            state.excluded_until, state.trial = 0.0, False
            self.changed()
        return was_suspect

    def suspect(self, state: WorkerState, seconds: float, now: float) -> None:
        """Learn from another gateway that the worker is suspect, or with 0 that it is well."""
        if seconds <= 0:
            self.answered(state)
            return
        state.failures = max(state.failures, SUSPECT_FAILURES)
        state.exclusion_seconds = max(state.exclusion_seconds, min(seconds, SUSPECT_SECONDS[1]))
        state.excluded_until = max(state.excluded_until, now + min(seconds, SUSPECT_SECONDS[1]))
        self.changed()


def _candidates(states: list[WorkerState], until: float) -> Candidates:
    windows = [s.max_tokens for s in states if s.max_tokens is not None]
    by_id = {state.id: state for state in states}
    plain = {state.id: state for state in states if state.plain}
    ends = {state.id: state for state in states if state.caching and state.ends_only}
    return Candidates(by_id, plain, ends, tuple(by_id), until, min(windows) if windows else None)


def _wide_enough(candidates: Candidates, tokens: int) -> Candidates:
    """Leave out workers whose context window is too small; never the widest, since the estimate may be high."""
    states = list(candidates.by_id.values())
    widest = max(s.max_tokens for s in states if s.max_tokens is not None)
    kept = [s for s in states if s.max_tokens is None or s.max_tokens >= min(tokens, widest)]
    return _candidates(kept, candidates.until)
