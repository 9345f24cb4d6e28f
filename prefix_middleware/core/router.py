"""6. Match, choose, reserve and record as one call; then start, finish, and what other gateways say.

1. Every public method takes the one lock, changes everything it changes, and returns: callers may be threads.
2. What others should know goes to the outbox; whoever owns the router drains it. No call site publishes.
3. A reservation counts once in and once out, whatever happens to the request.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.choose import Choice, Decision, Figures, choose, decision
from prefix_middleware.core.facts import Facts
from prefix_middleware.core.knowledge import Knowledge, Observed
from prefix_middleware.core.outbox import Outbox
from prefix_middleware.core.rendezvous import Rendezvous
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.situation import credited, findable, held_on, look_at
from prefix_middleware.core.snapshot import Snapshot
from prefix_middleware.core.updates import (
    Confirmed,
    Gauge,
    Notice,
    Said,
    Suspect,
    Update,
    Withdrawn,
)
from prefix_middleware.core.warm import restore, snapshot_of
from prefix_middleware.core.workers import Worker, WorkerState

_OWN: Final = ""  # origin of this process's own records in its own index


class Router:
    """The whole state of one gateway process; `now` is a monotonic clock in seconds."""

    def __init__(
        self,
        workers: Iterable[Worker],
        *,
        policy: str = "tokens",
        figures: Figures | None = None,
        index_blocks: int = 200_000,
        ttl_seconds: float = 5400.0,
        max_in_flight: int = 256,
        kv_tokens: int | None = None,
        block_tokens: Sequence[int] = (),
    ) -> None:
        self.knowledge = Knowledge(
            workers,
            index_blocks=index_blocks,
            ttl_seconds=ttl_seconds,
            max_in_flight=max_in_flight,
            kv_tokens=kv_tokens,
            block_tokens=block_tokens,
        )
        self.fleet, self.index = self.knowledge.fleet, self.knowledge.index
        self.learned = self.knowledge.learned
        self.on_update: Callable[[], None] = lambda: None  # called when there is something to drain
        self.on_load: Callable[[], None] = lambda: None  # called when a request is counted in or out
        self._policy, self._figures = policy, figures or Figures()
        self._lock = threading.Lock()
        self._outbox = Outbox()
        self._unpublished = self._outbox.later
        self._numbers = 0
        self._rendezvous = Rendezvous(self.fleet.states)

    def route(self, prompt: HashedPrompt, now: float, random: float) -> Reservation | Decision:
        """Choose a worker, count the request in and note the prompt there; a bare Decision means nobody is ready.

        `random` is uniform in [0, 1).
        """
        with self._lock:
            self.fleet.expire(now)
            candidates = self.fleet.candidates(prompt.model, prompt.tokens + prompt.output_tokens, now)
            if not candidates.ids:
                return Decision(reason="none", tokens=prompt.tokens, model=prompt.model, policy=self._policy)
            situation = look_at(prompt, candidates, self.fleet, self.index, self._rendezvous, now, random)
            choice = choose(situation, self._policy, self._figures)
            decided = decision(
                situation,
                choice,
                alone=len(candidates.ids) == 1,
                blocks=len(prompt.hashes),
                model=prompt.model,
                policy=self._policy,
                figures=self._figures,
            )
            return self._reserve(prompt, choice, decided, now)

    def _reserve(self, prompt: HashedPrompt, choice: Choice, decided: Decision, now: float) -> Reservation:
        chosen = choice.chosen
        state = self.fleet.states[chosen.worker]
        uncached = max(1, prompt.tokens - chosen.matched_tokens)
        self._numbers += 1
        incarnation = state.id, state.epoch, state.generation
        figures = chosen.found_tokens, uncached, decided
        reservation = Reservation(self._numbers, *incarnation, prompt, *figures)
        self.fleet.reserve(state, uncached, prompt.tokens)
        self.fleet.chosen(state, now)
        name = (_OWN, reservation.number)
        self.index.propose(name, reservation.blocks, state.id, state.epoch, now)
        self._outbox.put_later(reservation, now)
        self.on_load()
        return reservation

    def start(self, reservation: Reservation, now: float) -> None:
        """The answer has begun: its prompt is computed and held. Only the first call counts."""
        with self._lock:
            if reservation.finished or not reservation.waiting:
                return
            reservation.waiting = False
            state = self.fleet.states[reservation.worker]
            if reservation.generation == state.generation:
                state.backlog_tokens -= reservation.uncached_tokens
            self.index.withdraw((_OWN, reservation.number))
            if reservation.epoch != state.epoch and reservation.generation != state.generation:
                return  # the worker has restarted since
            reservation.stamp = self.knowledge.hold(state, reservation.blocks, now)
            self.fleet.give(state, reservation.prompt.tokens, now, now)
            self.learned.note(state.id, reservation.prompt.text_bytes, reservation.matched_tokens, now)
            self._publish(reservation.record(Confirmed, state.epoch))

    def finish(self, reservation: Reservation, generated_tokens: int = 0) -> None:
        """The request is over: count it out, and withdraw a record that never started. Only the first call counts."""
        with self._lock:
            if reservation.finished:
                return
            reservation.finished = True
            state = self.fleet.states[reservation.worker]
            self._release(state, reservation)
            if reservation.stamp is not None:
                self.index.grow(reservation.stamp, generated_tokens)
            if not reservation.answered:
                self.fleet.undecided(state)

    def _release(self, state: WorkerState, reservation: Reservation) -> None:
        if reservation.generation == state.generation:
            waiting = reservation.uncached_tokens if reservation.waiting else 0
            self.fleet.release(state, waiting, reservation.prompt.tokens)
            self.on_load()
        if reservation.waiting:
            self.index.withdraw((_OWN, reservation.number))
            if reservation.published:
                self._publish(Withdrawn(reservation.number))

    def move(self, reservation: Reservation, served: str, now: float) -> float:
        """Another worker than the chosen one has served it: load and record follow. Unknown names are ignored.

        Returns for how many seconds the chosen one is now left alone as suspect, 0 for not.
        """
        with self._lock:
            state = self.fleet.states.get(served)
            over = reservation.finished or not reservation.waiting
            if state is None or served == reservation.worker or over:
                return 0.0
            chosen = self.fleet.states[reservation.worker]
            self._release(chosen, reservation)
            suspect_seconds = self._failed(chosen, now)  # nginx leaves a named worker only when that fails
            reservation.answered = False
            self._numbers += 1
            prompt = reservation.prompt
            reservation.number, reservation.worker, reservation.published = self._numbers, served, False
            reservation.epoch, reservation.generation = state.epoch, state.generation
            _, held = held_on(prompt, state, self.index, now)
            reservation.matched_tokens = findable(prompt, state, held)
            reservation.uncached_tokens = prompt.tokens - credited(prompt, state, reservation.matched_tokens)
            self.fleet.reserve(state, reservation.uncached_tokens, prompt.tokens)
            name = (_OWN, reservation.number)
            self.index.propose(name, reservation.blocks, served, state.epoch, now)
            return suspect_seconds

    def outcome(self, reservation: Reservation, status: int | None, now: float) -> float:
        """Count what came back from its worker, once per request: an HTTP status, or None for a lost connection.

        Returns for how many seconds the worker is now left alone as suspect, 0 for not.
        """
        with self._lock:
            if reservation.answered:
                return 0.0
            state = self.fleet.states[reservation.worker]
            reservation.answered = True
            if status == 503:
                self.fleet.busy(state, now)
            elif status is None or status >= 500:
                return self._failed(state, now)
            elif not 200 <= status < 300:
                self.fleet.undecided(state)
            elif self.fleet.answered(state):
                self._publish(Suspect(state.id, state.epoch, 0.0))
            return 0.0

    def _failed(self, state: WorkerState, now: float) -> float:
        seconds = self.fleet.failed(state, now)
        if seconds:
            self._publish(Suspect(state.id, state.epoch, seconds))
        return seconds

    def set_ready(self, worker: str, ready: bool, now: float) -> bool:
        """Note a worker's health; return whether that is news."""
        with self._lock:
            state = self.fleet.states[worker]
            changed = state.ready != ready
            self.fleet.set_ready(state, ready, now)
            if changed and not ready and self.fleet.origins:
                self._publish(Said(worker, ready, Facts()))
            return changed

    def set_models(self, worker: str, models: frozenset[str] | None, max_tokens: int | None) -> None:
        """Note what a worker serves; None is unknown."""
        with self._lock:
            self.knowledge.set_models(self.fleet.states[worker], models, max_tokens)

    def set_epoch(self, worker: str, epoch: float, now: float) -> bool:
        """Note a start time that the worker itself exports; return whether it has restarted."""
        with self._lock:
            return self.knowledge.observe_epoch(self.fleet.states[worker], epoch, now)

    def observe(
        self, worker: str, facts: Facts, refused_at: float | None, now: float, unix: float
    ) -> Observed:
        """Note what a worker says; `refused_at`: when it last refused a connection; `unix` is the time of day in seconds.

        A restart or a lost cache that the worker's start time does not show counts when it comes back by the mirror.
        """
        with self._lock:
            observed = self.knowledge.observe(self.fleet.states[worker], facts, refused_at, now, unix)
            if observed.notice is not None:
                self._publish(observed.notice)
            if self.fleet.origins:
                self._publish(Said(worker, not facts.asleep, facts))
            return observed

    def asks(self, worker: str, origin: str, quiet_seconds: float, now: float) -> bool:
        """Tell whether this gateway asks the worker how it is: alone of those alive, unless it was quiet for so long."""
        with self._lock:
            self.fleet.expire(now)
            return self.knowledge.probing.asks(worker, origin, self.fleet.origins, quiet_seconds, now)

    @property
    def dropped_updates(self) -> int:
        """How many updates the outbox had no room for."""
        return self._outbox.dropped

    def lost(self, worker: str, epoch: float) -> None:
        """Announce that a worker has restarted; counts when it comes back by the mirror."""
        with self._lock:
            self._publish(Notice(worker, self.fleet.states[worker].epoch, epoch))

    def bytes_per_token(self, model: str) -> float:
        """Return the length of a token of this model, in canonical bytes, as far as it is known."""
        return self.knowledge.bytes_per_token(model)

    def merge(self, origin: str, updates: Sequence[Update], age_seconds: float, now: float) -> None:
        """Apply what another gateway has published; safe to repeat. Unknown workers are ignored."""
        with self._lock:
            for update in updates:
                self.knowledge.merge(origin, update, age_seconds, now)

    def merge_gauges(self, origin: str, gauges: Sequence[Gauge], now: float) -> None:
        """Replace what is known of the loads of another origin."""
        with self._lock:
            self.fleet.merge_gauges(origin, gauges, now)

    def gauges(self) -> list[Gauge]:
        """Return this process's own loads."""
        with self._lock:
            return self.fleet.own_gauges()

    def next_due(self) -> float | None:
        """Return when the next provisional record is due for publication; None while there is none."""
        with self._lock:
            return self._outbox.next_due()

    def snapshot(self, now: float) -> Iterator[Snapshot | None]:
        """Yield None after each short step, then what a gateway that starts later needs."""
        return snapshot_of(self.knowledge, self._lock, now)

    def restore(self, snapshot: Snapshot, age_seconds: float, now: float) -> Iterator[None]:
        """Take over what a snapshot says, step by step; raises ValueError, with nothing changed, for a broken one."""
        return restore(self.knowledge, self._lock, snapshot, age_seconds, now)

    def drain(self, now: float) -> list[Update]:
        """Take the updates that are due; a provisional record is, once it is old enough and still provisional."""
        with self._lock:
            return self._outbox.drain(now)

    def _publish(self, update: Update) -> None:
        self._outbox.put(update)
        self.on_update()
