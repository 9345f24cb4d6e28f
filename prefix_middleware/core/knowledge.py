"""6. What this process knows of fleet and caches, kept consistent: its own observations and what other gateways say.

1. Every fact may arrive twice or late. Unknown workers are ignored, older epochs are worth nothing, a newer one is adopted.
2. A lost cache is a new epoch of the same process: records die, loads stay (facts.py says which epochs are one process's).
3. Not locked: the router is.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from prefix_middleware.core.blocks import BYTES_PER_TOKEN
from prefix_middleware.core.capacity import Stamp
from prefix_middleware.core.facts import Facts, epoch_after_loss, same_start
from prefix_middleware.core.index import PROVISIONAL_SECONDS, PrefixIndex
from prefix_middleware.core.learned import Learned, grown
from prefix_middleware.core.probing import Probing
from prefix_middleware.core.reservation import recorded_blocks
from prefix_middleware.core.situation import junction_of
from prefix_middleware.core.updates import (
    Confirmed,
    Notice,
    Provisional,
    Said,
    Suspect,
    Update,
    Withdrawn,
)
from prefix_middleware.core.workers import Fleet, Worker, WorkerState

_NOTHING: Final = Facts()
_FRESH_POLLS: Final = 2
_MAX_NAMES: Final = 4096  # of models; beyond them somebody makes them up, and all are learned anew
_FRESH_SECONDS: Final = 10.0  # a record older than this was counted when it was made, or never


class Observed(Struct, frozen=True):
    """What was new in a worker's facts."""

    restarted: bool = False
    lost: bool = False  # its cache, without a restart
    notice: Notice | None = None  # for everybody, us included
    hit_tokens: int = 0  # since we last heard of it
    queried_tokens: int = 0


class Knowledge:
    """The workers with their loads, and the index of what they hold."""

    def __init__(
        self,
        workers: Iterable[Worker],
        *,
        index_blocks: int,
        ttl_seconds: float,
        max_in_flight: int,
        kv_tokens: int | None,
        block_tokens: Sequence[int],
    ) -> None:
        self.fleet = Fleet(workers, max_in_flight)
        self.index = PrefixIndex(index_blocks, ttl_seconds)
        self.learned = Learned()
        self.probing = Probing()
        self.block_tokens = block_tokens  # of BYTES_PER_TOKEN each, whatever the model
        self._kv_tokens = kv_tokens
        self._facts: dict[str, Facts] = {}  # by worker, as last heard
        self._counted: dict[str, Facts] = {}  # the same, unless an epoch has begun since
        self._begun: dict[str, float] = {}  # when an epoch last began
        self._tell_start: set[str] = set()  # workers that export their start time
        self._models: dict[str, str] = {}  # name in a request -> first served name of the same worker
        self._denied: dict[str, float] = {}  # epoch told of a worker that its own start time denies
        self._older: dict[str, int] = {}  # polls in a row that showed an epoch before the current one
        for state in self.fleet.states.values():
            self.index.set_epoch(state.id, state.epoch)
            self._set_capacity(state, kv_tokens)

    def _set_capacity(self, state: WorkerState, kv_tokens: int | None) -> None:
        self.fleet.set_capacity(state, kv_tokens)
        model = self._facts.get(state.id, _NOTHING).model
        scale = self.learned.bytes_per_token.get(model, BYTES_PER_TOKEN) / BYTES_PER_TOKEN
        self.index.set_capacity(state.id, None if kv_tokens is None else int(kv_tokens * scale))

    def set_models(self, state: WorkerState, models: frozenset[str] | None, max_tokens: int | None) -> None:
        """Note what a worker serves; None is unknown."""
        self.fleet.set_models(state, models, max_tokens)
        self._name_models(state)

    def _name_models(self, state: WorkerState) -> None:
        model = self._facts.get(state.id, _NOTHING).model
        if len(self._models) > _MAX_NAMES:
            self._models.clear()
        if model:
            self._models |= dict.fromkeys((*(state.models or ()), model), model)

    def bytes_per_token(self, model: str) -> float:
        """Return the length of a token of this model, in canonical bytes; of an unknown name, if all have the same."""
        learned = self.learned.bytes_per_token
        if not learned:
            return BYTES_PER_TOKEN
        known = learned.get(self._models.get(model, model))
        if known is None and len(set(self._models.values())) == 1:
            known = next(iter(learned.values()))  # a name of the host's own, or of the worker's default
        return BYTES_PER_TOKEN if known is None else known

    def observe(
        self, state: WorkerState, facts: Facts, refused_at: float | None, now: float, unix: float
    ) -> Observed:
        """Take over what a worker says of itself; `refused_at`: when it last refused a connection."""
        before = self._facts.get(state.id, _NOTHING)
        counted = self._counted.get(state.id, _NOTHING)
        went_back, notice = facts.behind(counted), None
        restarted = facts.start_time is not None and self.observe_epoch(state, facts.start_time, now)
        if (went_back and not restarted) or self._seems_new(state, facts, refused_at):
            restarted = facts.start_time is None
            notice = Notice(state.id, state.epoch, unix)
        self._facts[state.id] = self._counted[state.id] = facts
        self._name_models(state)
        self._observe_cache(state, facts)
        collapsed = self.learned.observe(state.id, facts, state.in_flight + state.others_in_flight, now)
        self.fleet.set_credit(state, self.learned.credit(state.id))
        lost = not restarted and (collapsed or notice is not None or (facts.dropped and not before.dropped))
        if lost:
            notice = Notice(state.id, state.epoch, epoch_after_loss(state.epoch, unix))
        hits, queries = (0, 0) if went_back else _growth(counted, facts)
        return Observed(restarted, lost, notice, hits, queries)

    def _seems_new(self, state: WorkerState, facts: Facts, refused_at: float | None) -> bool:
        """A worker that never tells its start time has refused a connection, and nobody has noticed it since."""
        if facts.start_time is not None:
            self._tell_start.add(state.id)
        refused = refused_at is not None and refused_at >= self._begun.get(state.id, refused_at)
        return refused and state.id not in self._tell_start

    def _observe_cache(self, state: WorkerState, facts: Facts) -> None:
        if not facts.engines:
            return
        self.fleet.set_cache(
            state,
            caching=facts.caching is not False,
            ends_only=any(engine.matches_ends for engine in facts.engines),
            unit_tokens=max(engine.unit_tokens for engine in facts.engines),
            block_tokens=max(engine.block_tokens for engine in facts.engines),
        )
        if self._kv_tokens is None:
            self._set_capacity(state, facts.kv_tokens)

    def observe_epoch(self, state: WorkerState, epoch: float, now: float) -> bool:
        """Note a start time that the worker itself exports; return whether it has restarted.

        An older one than known counts when it is seen twice in a row: the first may be an answer overtaken by a restart.
        """
        if same_start(state.epoch, epoch):
            self._older[state.id] = 0
            return False
        self._older[state.id] = self._older.get(state.id, 0) + 1 if epoch < state.epoch else 0
        if 0 < self._older[state.id] < _FRESH_POLLS:
            return False
        known = state.epoch != 0.0
        if epoch < state.epoch:
            self._denied[state.id] = state.epoch
        elif epoch >= self._denied.get(state.id, math.inf):
            del self._denied[state.id]
        self._begin(state, epoch, now)
        return known

    def adopt_epoch(self, state: WorkerState, epoch: float, now: float) -> None:
        """Take over a newer epoch: its gateway has seen the restart first, unless the worker itself has denied it."""
        if state.epoch < epoch < self._denied.get(state.id, math.inf):
            self._begin(state, epoch, now)

    def _begin(self, state: WorkerState, epoch: float, now: float) -> None:
        if state.epoch and same_start(epoch, state.epoch):
            self.fleet.set_epoch(
                state, epoch
            )  # the same process without its cache: what is in flight goes on
        else:
            self.fleet.restart(state, epoch, now)
        self.index.set_epoch(state.id, epoch)
        self._begun[state.id] = now
        self._counted.pop(state.id, None)
        self.learned.forget(state.id)

    def hold(self, state: WorkerState, blocks: Sequence[bytes], at: float) -> Stamp:
        """Note that a worker holds a prompt, its end mark last, in its current epoch."""
        if not state.ends_only:
            return self.index.record(blocks, state.id, state.epoch, at, self.block_tokens)
        marks = [*blocks, *junction_of(blocks[:-1], state, self.index, at)]
        return self.index.record(marks, state.id, state.epoch, at, self.block_tokens[: len(blocks)])

    def merge(self, origin: str, update: Update, age: float, now: float) -> None:
        """Apply what `origin` has published `age` seconds ago."""
        if isinstance(update, Withdrawn):
            self.index.withdraw((origin, update.record))
            return
        state = self.fleet.states.get(update.worker)
        if state is None:
            return
        if isinstance(update, Said):
            self._hear(state, update, age, now)
        elif isinstance(update, Notice):
            if update.old == state.epoch and update.new != update.old:  # the first in the stream wins
                self._begin(state, update.new, now)
        else:
            self._merge_of_epoch(origin, update, state, age, now)

    def _hear(self, state: WorkerState, said: Said, age: float, now: float) -> None:
        fresh = age <= _FRESH_SECONDS
        if fresh and self.probing.hear(said, state.ready, now - age) and said.ready:
            self.observe(state, said.facts, None, now, 0.0)  # who asked publishes what follows from it

    def _merge_of_epoch(
        self,
        origin: str,
        update: Provisional | Confirmed | Suspect,
        state: WorkerState,
        age: float,
        now: float,
    ) -> None:
        self.adopt_epoch(state, update.epoch, now)
        if update.epoch != state.epoch:
            return
        if isinstance(update, Suspect):
            if not update.seconds or update.seconds > age:  # else it is over
                self.fleet.suspect(state, max(0.0, update.seconds - age), now)
            return
        self._merge_record(origin, update, state, age, now)

    def _merge_record(
        self, origin: str, update: Provisional | Confirmed, state: WorkerState, age: float, now: float
    ) -> None:
        hashes = recorded_blocks(update)
        if isinstance(update, Provisional):
            if age <= PROVISIONAL_SECONDS:
                self.index.propose((origin, update.record), hashes, state.id, update.epoch, now - age)
        else:
            self.index.withdraw((origin, update.record))
            self.hold(state, hashes, now - age)
            self.fleet.give(state, update.prompt_tokens, now - age, now)
            if age <= _FRESH_SECONDS:
                self.learned.note(state.id, update.text_bytes, update.matched_tokens, now - age)


def _growth(before: Facts, facts: Facts) -> tuple[int, int]:
    """Return by how much hits and queries have grown, 0 where that is not known."""
    return grown(before, facts, "hit_tokens") or 0, grown(before, facts, "queried_tokens") or 0
