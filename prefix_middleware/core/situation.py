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
    blocks, holders = index.best(prompt.hashes, by_id, now) if prompt.reads_cache else (0, [])
    matchable = prompt.hashes[:blocks]

    def look(worker: str) -> Candidate:
        m = index.match(matchable, worker, now)
        return Candidate(worker, fleet.load(by_id[worker], now), m, prompt.matched_tokens[m])

    def look_at_holder(worker: str) -> Candidate:
        continues = index.holds(prompt.end, worker, now) or (
            prompt.previous_end is not None and index.holds(prompt.previous_end, worker, now)
        )
        load = fleet.load(by_id[worker], now)
        return Candidate(worker, load, blocks, prompt.matched_tokens[blocks], continues)

    freest = fleet.min_in_flight(by_id.values())
    return Situation(
        prompt_tokens=prompt.tokens,
        pair=[look(worker) for worker in rendezvous.pair(prompt.end, by_id)],
        third=look(candidates.ids[int(random * len(candidates.ids))]),
        best=[look_at_holder(worker) for worker in holders],
        min_in_flight=freest,
        all_full=freest >= fleet.max_in_flight,
        everyone=lambda: [look(worker) for worker in by_id],
    )
