"""5. What a policy gets to see of the fleet for one prompt: loads and matches of a handful of candidates."""

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.choose import Candidate, Situation
from prefix_middleware.core.index import PrefixIndex
from prefix_middleware.core.rendezvous import Rendezvous
from prefix_middleware.core.workers import Candidates, Fleet


def look_at(
    prompt: HashedPrompt,
    candidates: Candidates,
    fleet: Fleet,
    index: PrefixIndex,
    rendezvous: Rendezvous,
    now: float,
    random: float,
) -> Situation:
    """Look at the rendezvous pair, a random third and the holders of the longest match among the candidates."""
    by_id = candidates.by_id
    blocks, holders = index.best(prompt.hashes, by_id, now, random) if prompt.reads_cache else (0, [])
    matchable = prompt.hashes[:blocks]
    seen: dict[str, Candidate] = {}
    if blocks:
        continuing = [w for w in _continuing(prompt, index, now) if w in by_id]
        holders += [w for w in continuing if w not in holders and index.holds(matchable[-1], w, now)]
        for worker in holders:
            load, saved = fleet.load(by_id[worker], now), prompt.matched_tokens[blocks]
            seen[worker] = Candidate(worker, load, blocks, saved, worker in continuing)

    def look(worker: str) -> Candidate:
        candidate = seen.get(worker)
        if candidate is None:
            m = index.match(matchable, worker, now) if blocks else 0
            candidate = Candidate(worker, fleet.load(by_id[worker], now), m, prompt.matched_tokens[m])
            seen[worker] = candidate
        return candidate

    freest = fleet.min_in_flight(by_id.values())
    return Situation(
        prompt_tokens=prompt.tokens,
        pair=[look(worker) for worker in rendezvous.pair(prompt.end, by_id)],
        third=look(candidates.ids[int(random * len(candidates.ids))]),
        best=[seen[worker] for worker in holders],
        min_in_flight=freest,
        all_full=freest >= fleet.max_in_flight,
        everyone=lambda: [look(worker) for worker in by_id],
    )


def _continuing(prompt: HashedPrompt, index: PrefixIndex, now: float) -> list[str]:
    """Return who holds the whole prompt that this one continues, or this very prompt."""
    earlier = [] if prompt.previous_end is None else index.holders(prompt.previous_end, now)
    return earlier + index.holders(prompt.end, now)
