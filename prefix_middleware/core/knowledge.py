"""6. What this process knows of fleet and caches, kept consistent: its own observations and what other gateways say.

1. Every fact may arrive twice or late. Unknown workers are ignored, older epochs are worth nothing, a newer one is adopted.
2. Not locked: the router is.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from prefix_middleware.core.index import PROVISIONAL_SECONDS, PrefixIndex
from prefix_middleware.core.reservation import recorded_blocks
from prefix_middleware.core.updates import Confirmed, Notice, Provisional, Suspect, Update, Withdrawn
from prefix_middleware.core.workers import Fleet, Worker, WorkerState

_FRESH_POLLS: Final = 2


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
        self.block_tokens = block_tokens
        self._older: dict[str, int] = {}  # polls in a row that showed an epoch before the current one
        for state in self.fleet.states.values():
            self.index.set_epoch(state.id, state.epoch)
            self.set_capacity(state, kv_tokens)

    def set_capacity(self, state: WorkerState, kv_tokens: int | None) -> None:
        """Note the size of a worker's KV cache; None is unknown."""
        self.fleet.set_capacity(state, kv_tokens)
        self.index.set_capacity(state.id, kv_tokens)

    def observe_epoch(self, state: WorkerState, epoch: float, now: float) -> bool:
        """Note a start time that the worker itself exports; return whether it has restarted.

        An older one than known counts when it is seen twice in a row: the first may be an answer overtaken by a restart.
        """
        self._older[state.id] = self._older.get(state.id, 0) + 1 if epoch < state.epoch else 0
        if epoch == state.epoch or 0 < self._older[state.id] < _FRESH_POLLS:
            return False
        known = state.epoch != 0.0
        self._restart(state, epoch, now)
        return known

    def _restart(self, state: WorkerState, epoch: float, now: float) -> None:
        self.fleet.restart(state, epoch, now)
        self.index.set_epoch(state.id, epoch)

    def merge(self, origin: str, update: Update, age: float, now: float) -> None:
        """Apply what `origin` has published `age` seconds ago."""
        if isinstance(update, Withdrawn):
            self.index.withdraw((origin, update.record))
            return
        state = self.fleet.states.get(update.worker)
        if state is None:
            return
        if isinstance(update, Notice):
            if update.old == state.epoch and update.new != update.old:  # the first in the stream wins
                self._restart(state, update.new, now)
            return
        if update.epoch > state.epoch:  # its gateway has seen the restart first
            self._restart(state, update.epoch, now)
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
            self.index.record(hashes, state.id, update.epoch, now - age, self.block_tokens)
            self.fleet.give(state, update.prompt_tokens, now - age, now)
