"""5. What a policy gets to see of the fleet for one prompt: loads and matches of a handful of candidates."""

from collections.abc import Sequence

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.choose import Candidate, Situation
from prefix_middleware.core.index import PrefixIndex
from prefix_middleware.core.rendezvous import Rendezvous
from prefix_middleware.core.workers import Fleet, WorkerState


def look_at(
    prompt: HashedPrompt,
    candidates: Sequence[WorkerState],
    fleet: Fleet,
    index: PrefixIndex,
    rendezvous: Rendezvous,
    now: float,
    random: float,
) -> Situation:
    """Look at the rendezvous pair, a random third and the holders of the longest match among the candidates."""
    by_id = {state.id: state for state in candidates}
    capacity = fleet.capacity()
    marks = [prompt.end] if prompt.previous_end is None else [prompt.previous_end, prompt.end]

    def look(worker: str, blocks: int | None = None) -> Candidate:
        load = fleet.load(by_id[worker], now, capacity)
        if not prompt.reads_cache:
            return Candidate(worker, load)
        m = index.match(prompt.hashes, worker, now) if blocks is None else blocks
        continues = any(index.holds(mark, worker, now) for mark in marks)
        return Candidate(worker, load, m, prompt.matched_tokens[m], continues)

    blocks, holders = index.best(prompt.hashes, by_id, now) if prompt.reads_cache else (0, [])
    return Situation(
        prompt_tokens=prompt.tokens,
        pair=[look(worker) for worker in rendezvous.pair(prompt.end, by_id)],
        third=look(candidates[int(random * len(candidates))].id),
        best=[look(worker, blocks) for worker in holders],
        min_in_flight=min(fleet.load(state, now, capacity).in_flight for state in candidates),
        everyone=lambda: [look(worker) for worker in by_id],
    )
