"""6. What a gateway that starts later needs of this one, and taking it over; both in short steps, under the router's lock.

Provisional records are left out: the stream says again which of them came true.
"""

import math
from collections.abc import Iterator
from threading import Lock
from typing import Final

from prefix_middleware.core.capacity import Stamp
from prefix_middleware.core.knowledge import Knowledge
from prefix_middleware.core.loads import FILL_SECONDS
from prefix_middleware.core.restored import Table
from prefix_middleware.core.snapshot import STEP_PAIRS, Packer, Snapshot

_MOST_CACHES: Final = 64  # given in one time constant; what somebody made up is gone within the half hour
_FEW: Final = 10  # a live index with fewer than a tenth of a table's pairs is not worth comparing


def snapshot_of(known: Knowledge, lock: Lock, now: float) -> Iterator[Snapshot | None]:
    """Yield None after each step, then the snapshot."""
    packer, index, states = Packer(), known.index, known.fleet.states.values()
    with lock:
        workers = [(s.id, s.epoch, _decayed(s.given_tokens, now - s.given_at)) for s in states]
        live, tables = index.live_blocks(), list(index.restored.tables)
    while True:
        with lock:
            blocks = next(live, None)
        if blocks is None:
            break
        yield None
        for start in range(0, len(blocks), STEP_PAIRS):
            with lock:
                packer.add(index.pairs_of(blocks[start : start + STEP_PAIRS], now))
            yield None
    for table in tables:
        made: dict[int, Stamp | None] = {}
        for start in range(0, len(table), STEP_PAIRS):
            with lock:
                pairs = table.slice(start, made)
                packer.add((block, stamp) for block, stamp in pairs if index.counts_restored(stamp, now))
            yield None
    yield from packer.pack(workers, now)


def restore(
    known: Knowledge, lock: Lock, snapshot: Snapshot, age_seconds: float, now: float
) -> Iterator[None]:
    """Take over what a snapshot says, one step at a time; raises ValueError, with nothing changed, for a broken one."""
    table = Table(snapshot, now - age_seconds)
    if not all(math.isfinite(epoch) and 0 <= given < math.inf for _, epoch, given in snapshot.workers):
        raise ValueError("a worker's figures are not numbers")
    index = known.index
    if len(index) * _FEW > len(table):
        for _ in table.subtract(lambda block, worker: index.holds(block, worker, now)):
            yield
    with lock:
        for worker, epoch, given in snapshot.workers:
            state = known.fleet.states.get(worker)
            if state is None:
                continue
            known.adopt_epoch(state, epoch, now)
            most = _MOST_CACHES * (state.kv_tokens or known.fleet.capacity)
            theirs = _decayed(min(given, most), age_seconds)
            if epoch == state.epoch and theirs > _decayed(state.given_tokens, now - state.given_at):
                state.given_tokens, state.given_at = theirs, now
        index.adopt(table)
    yield


def _decayed(tokens: float, seconds: float) -> float:
    return tokens * math.exp(-max(0.0, seconds) / FILL_SECONDS)
