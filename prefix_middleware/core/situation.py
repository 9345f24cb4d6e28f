"""5. What a policy gets to see of the fleet for one prompt: loads and matches of a handful of candidates."""

from bisect import bisect_right
from collections.abc import Collection, Sequence

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.choose import Candidate, Situation
from prefix_middleware.core.index import PrefixIndex
from prefix_middleware.core.learned import NO_CREDIT
from prefix_middleware.core.rendezvous import Rendezvous
from prefix_middleware.core.workers import Candidates, Fleet, WorkerState


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
    by_id, plain = candidates.by_id, candidates.plain
    blocks, holders = index.best(prompt.hashes, plain, now, random) if prompt.reads_cache else (0, [])
    matchable = prompt.hashes[:blocks]
    seen: dict[str, Candidate] = {}
    mixed = len(plain) < len(by_id)
    continuing = [w for w in _continuing(prompt, index, now) if w in by_id] if blocks or mixed else []

    def noted(worker: str, m: int, held: int, continues: bool) -> Candidate:
        state = by_id[worker]
        found = findable(prompt, state, held)
        tokens = found if state.credit == 1.0 else credited(prompt, state, found)
        m, continues = m if tokens else 0, continues and tokens > 0
        seen[worker] = candidate = Candidate(worker, fleet.load(state, now), m, tokens, continues, found)
        return candidate

    def look(worker: str) -> Candidate:
        if worker in seen:
            return seen[worker]
        if worker not in plain:
            return noted(worker, *held_on(prompt, by_id[worker], index, now), worker in continuing)
        m = index.match(matchable, worker, now) if blocks else 0
        return noted(worker, m, prompt.matched_tokens[m], False)

    if blocks:
        more = [w for w in continuing if w not in holders and w in plain]
        holders += [w for w in more if index.holds(matchable[-1], w, now)]
    best = [noted(w, blocks, prompt.matched_tokens[blocks], w in continuing) for w in holders]
    if candidates.ends and prompt.reads_cache:
        siblings = index.best(prompt.hashes, candidates.ends, now, random)[1]
        best = _longest([*best, *(look(w) for w in _both(continuing, siblings, candidates.ends))])
    freest = fleet.min_in_flight(by_id.values())
    return Situation(
        prompt_tokens=prompt.tokens,
        pair=[look(worker) for worker in rendezvous.pair(prompt.end, by_id)],
        third=look(candidates.ids[int(random * len(candidates.ids))]),
        best=best,
        min_in_flight=freest,
        all_full=freest >= fleet.max_in_flight,
        everyone=lambda: [look(worker) for worker in by_id],
    )


def held_on(prompt: HashedPrompt, state: WorkerState, index: PrefixIndex, now: float) -> tuple[int, int]:
    """Return what the index says that a worker holds of the prompt and will match, in blocks and in tokens."""
    if not prompt.reads_cache or not state.caching:
        return 0, 0
    if not state.ends_only:
        blocks = index.match(prompt.hashes, state.id, now)
        return blocks, prompt.matched_tokens[blocks]
    tokens = 0
    if index.holds(prompt.end, state.id, now):
        tokens = prompt.tokens - 1  # the last token is always computed
    elif prompt.previous_end is not None and index.holds(prompt.previous_end, state.id, now):
        tokens = prompt.previous_tokens
    tokens = max(tokens - tokens % state.unit_tokens, _junction_tokens(prompt, state, index, now))
    return bisect_right(prompt.matched_tokens, tokens) - 1, tokens


def findable(prompt: HashedPrompt, state: WorkerState, held: int) -> int:
    """Return how many of the tokens that a worker holds are found: what chance finds, where any rank may get the prompt."""
    return held if prompt.pinned else held // state.ranks


def junction_of(hashes: Sequence[bytes], state: WorkerState, index: PrefixIndex, now: float) -> list[bytes]:
    """Return the mark of the place where a prompt leaves what the worker holds: the engine keeps its state there, too."""
    return [_mark(hashes[blocks - 1])] if (blocks := index.match(hashes, state.id, now)) else []


def _junction_tokens(prompt: HashedPrompt, state: WorkerState, index: PrefixIndex, now: float) -> int:
    """Return how long the part is that two earlier prompts shared with this one, in whole KV blocks."""
    held = index.match(prompt.hashes, state.id, now)
    for blocks in range(held, 0, -1):
        if index.holds(_mark(prompt.hashes[blocks - 1]), state.id, now):
            tokens = prompt.matched_tokens[blocks]
            return tokens - tokens % state.block_tokens
    return 0


def _mark(block: bytes) -> bytes:
    return block[::-1]


def credited(prompt: HashedPrompt, state: WorkerState, found: int) -> int:
    """Return how many of the found tokens the worker is expected to have, by what it delivered lately."""
    return min(int(found * state.credit), prompt.tokens - 1) if state.credit >= NO_CREDIT else 0


def _both(some: Sequence[str], more: Sequence[str], among: Collection[str]) -> list[str]:
    return [worker for worker in dict.fromkeys((*some, *more)) if worker in among]


def _longest(candidates: Sequence[Candidate]) -> list[Candidate]:
    longest = max((candidate.matched_tokens for candidate in candidates), default=0)
    return [c for c in candidates if c.matched_tokens == longest > 0]


def _continuing(prompt: HashedPrompt, index: PrefixIndex, now: float) -> list[str]:
    """Return who holds the whole prompt that this one continues, or this very prompt."""
    earlier = [] if prompt.previous_end is None else index.holders(prompt.previous_end, now)
    return earlier + index.holders(prompt.end, now)
