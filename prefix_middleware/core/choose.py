"""5. Candidates, matches and loads to a Decision with a reason. A preference, never a queue.

Policies are pure functions of one `Situation`. They look at the two candidates that the prompt's rendezvous hash names, at one
random candidate and at those with the longest match, never at the whole fleet, unless all of it is full.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, Literal

from msgspec import Struct

from prefix_middleware.core.loads import Load

Reason = Literal["hit", "busy", "miss", "only", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The policies' constants, in prompt tokens unless the name says otherwise; simulated on 20 workloads."""

    follow_weight: float = 2.0  # flat from 1.5 to 3; 1 copies hot prefixes everywhere
    continue_weight: float = 3.0  # for a prompt that continues an earlier one: its whole history would move
    continue_tokens: int = 2_000  # its worker may be so much heavier at least: one more request, computing
    in_flight_tokens: int = 1000
    over_full_tokens: int = 4000  # each in-flight request above max_in_flight, instead of the figure above
    decode_share: float = 0.03  # of the prompt tokens in flight
    fill_weight: float = 5.0  # times the prompt: the most that it weighs that a worker was given more
    near_tokens: int = 8_000  # loads closer than this are compared with fill
    third_weight: float = 2.0  # times the prompt: how much lighter a random third must be
    slack_steps: tuple[int, ...] = (1_000, 4_000, 8_000, 32_000)  # `requests`: one more in-flight from each


class Candidate(Struct, frozen=True):
    """One worker that could serve the prompt."""

    worker: str
    load: Load
    matched_blocks: int = 0
    matched_tokens: int = 0  # what it is expected to find in its cache
    continues: bool = False  # it holds the whole prompt that this one continues
    found_tokens: int = 0  # in the index, before the worker's credit


class Situation(Struct, frozen=True):
    """What a policy may look at."""

    prompt_tokens: int
    pair: Sequence[
        Candidate
    ]  # first two candidates by the rendezvous hash of the whole prompt; one if there is one
    third: Candidate  # any, at random
    best: Sequence[Candidate]  # all with the longest match; empty when nobody holds a block
    min_in_flight: int  # of the freest candidate
    all_full: bool  # every candidate carries max_in_flight or more
    everyone: Callable[[], Sequence[Candidate]]  # all candidates; costs one look at each


class Choice(Struct, frozen=True):
    """A policy's answer: the worker, the base it was compared with, and by which inequality."""

    chosen: Candidate
    base: Candidate
    best: Candidate | None  # the one whose match was considered
    allowance: float  # how much heavier than base the best might have been, in tokens
    slack: int  # the same in requests


class Decision(Struct, frozen=True, kw_only=True):
    """Which worker a prompt should go to, why, and every figure of the log line."""

    reason: Reason
    worker: str | None = None  # None: nobody ready can serve it and nginx decides
    previous: str | None = None  # `busy`: who keeps the longest match
    matched_blocks: int = 0  # on the worker; on `previous` where there is one
    blocks: int = 0
    matched_tokens: int = 0  # on the worker
    best_tokens: int = 0  # the longest match of all
    tokens: int = 0
    slots: int = 0  # in-flight of the worker
    min_slots: int = 0  # in-flight of the freest candidate
    slack: int = 0  # how many more in-flight than that the best match might have carried
    load: float = 0.0  # tokens
    base_load: float = 0.0  # tokens
    allowance: float = 0.0  # tokens
    model: str = ""
    policy: str = "tokens"


Policy = Callable[[Situation, Figures], Choice]


def load_tokens(load: Load, figures: Figures) -> float:
    """Return L: a worker's load in tokens of prefill."""
    requests = figures.in_flight_tokens * (load.in_flight - load.over_full)
    requests += figures.over_full_tokens * load.over_full
    return load.backlog_tokens + requests + figures.decode_share * load.prompt_tokens


def _heavier(a: Candidate, b: Candidate, prompt_tokens: int, figures: Figures) -> float:
    """Return by how many tokens a is heavier than b; fill counts only between loads that are near."""
    difference = load_tokens(a.load, figures) - load_tokens(b.load, figures)
    if abs(difference) < figures.near_tokens:
        difference += fuller(a.load, b.load, prompt_tokens, figures)
    return difference


def fuller(a: Load, b: Load, prompt_tokens: int, figures: Figures) -> float:
    """Return what it weighs, in tokens, that a was given more than b lately.

    Each such token weighs one, but together no more than a multiple of the prompt, times their share of what the fuller was
    given: between workers that were given nearly the same, new conversations stay with their prefix.
    """
    more = a.fill - b.fill
    if not more:
        return 0.0
    tokens = min(a.kv_tokens, b.kv_tokens) * more
    most = figures.fill_weight * prompt_tokens * more / max(a.fill, b.fill)
    return min(tokens, most) if more > 0 else max(tokens, most)


def _lightest(candidates: Sequence[Candidate], prompt_tokens: int, figures: Figures) -> Candidate:
    """Return the lightest; of equals the first."""
    return reduce(lambda a, b: b if _heavier(a, b, prompt_tokens, figures) > 0 else a, candidates)


def _base(situation: Situation, figures: Figures) -> Candidate:
    """Return the lighter of the pair, or the random third where that is much lighter, also for what it does not hold."""
    prompt, third = situation.prompt_tokens, situation.third
    base = _lightest(situation.pair, prompt, figures)
    weight = figures.continue_weight if base.continues else figures.follow_weight
    least = figures.third_weight * prompt + weight * (base.matched_tokens - third.matched_tokens)
    return third if load_tokens(base.load, figures) - load_tokens(third.load, figures) > least else base


def tokens(situation: Situation, figures: Figures) -> Choice:
    """Follow the longest match unless it is heavier than the base by more than a multiple of the tokens it saves."""
    prompt = situation.prompt_tokens
    base = _base(situation, figures)
    if not situation.best:
        return Choice(base, base, None, 0.0, 0)
    continuing = [candidate for candidate in situation.best if candidate.continues]
    best = _lightest(continuing or situation.best, prompt, figures)
    saved = best.matched_tokens - base.matched_tokens
    if best.continues:  # fill spreads new conversations; it must not pull a running one off its worker
        allowance = max(figures.continue_weight * saved, figures.continue_tokens)
        heavier = load_tokens(best.load, figures) - load_tokens(base.load, figures)
    else:
        allowance = figures.follow_weight * saved
        heavier = _heavier(best, base, prompt, figures)
    chosen = best if heavier <= allowance else base
    return Choice(chosen, base, best, allowance, int(allowance / figures.in_flight_tokens))


def requests(situation: Situation, figures: Figures) -> Choice:
    """Follow the longest match while its in-flight is at most the freest worker's plus a slack by prompt size."""
    base = min(situation.pair, key=lambda candidate: candidate.load.in_flight)
    slack = sum(situation.prompt_tokens >= step for step in figures.slack_steps)
    if not situation.best:
        return Choice(base, base, None, 0.0, slack)
    best = min(situation.best, key=lambda candidate: candidate.load.in_flight)
    follows = best.load.in_flight <= situation.min_in_flight + slack
    return Choice(best if follows else base, base, best, 0.0, slack)


def cost(situation: Situation, figures: Figures) -> Choice:
    """Take the least of load plus a multiple of the prefill still to do, over all that are looked at."""
    prompt = situation.prompt_tokens
    looked_at = {
        candidate.worker: candidate for candidate in (situation.third, *situation.pair, *situation.best)
    }

    def cheaper(a: Candidate, b: Candidate) -> Candidate:
        if a.continues or b.continues:
            heavier = load_tokens(a.load, figures) - load_tokens(b.load, figures)
        else:
            heavier = _heavier(a, b, prompt, figures)
        return b if heavier > figures.follow_weight * (a.matched_tokens - b.matched_tokens) else a

    base = _lightest(situation.pair, prompt, figures)
    best = _lightest(situation.best, prompt, figures) if situation.best else None
    chosen = reduce(cheaper, looked_at.values())
    saved = best.matched_tokens - base.matched_tokens if best else 0
    allowance = figures.follow_weight * saved
    return Choice(chosen, base, best, allowance, int(allowance / figures.in_flight_tokens))


POLICIES: Final[dict[str, Policy]] = {"tokens": tokens, "requests": requests, "cost": cost}


def choose(situation: Situation, policy: str, figures: Figures) -> Choice:
    """Apply a policy; when every candidate is full, take the lightest of all instead."""
    choice = POLICIES[policy](situation, figures)
    if not situation.all_full:
        return choice
    lightest = _lightest(situation.everyone(), situation.prompt_tokens, figures)
    return Choice(lightest, choice.base, choice.best or choice.chosen, choice.allowance, choice.slack)


def decision(
    situation: Situation,
    choice: Choice,
    *,
    alone: bool,
    blocks: int,
    model: str,
    policy: str,
    figures: Figures,
) -> Decision:
    """Put a choice into words: the reason, and the figures behind it."""
    chosen, best = choice.chosen, choice.best
    taken_over = (
        best is not None and best.worker != chosen.worker and best.matched_blocks >= chosen.matched_blocks
    )
    reason: Reason
    if alone:
        reason = "only"
    elif taken_over:
        reason = "busy"
    else:
        reason = "hit" if chosen.matched_blocks else "miss"
    previous = best if reason == "busy" else None
    return Decision(
        reason=reason,
        worker=chosen.worker,
        previous=previous.worker if previous else None,
        matched_blocks=(previous or chosen).matched_blocks,
        blocks=blocks,
        matched_tokens=chosen.matched_tokens,
        best_tokens=chosen.matched_tokens
        if best is None
        else max(best.matched_tokens, chosen.matched_tokens),
        tokens=situation.prompt_tokens,
        slots=chosen.load.in_flight,
        min_slots=situation.min_in_flight,
        slack=choice.slack,
        load=load_tokens(chosen.load, figures),
        base_load=load_tokens(choice.base.load, figures),
        allowance=choice.allowance,
        model=model,
        policy=policy,
    )


def line(decision: Decision) -> str:
    """Return the log line of a decision."""
    d = decision
    if d.worker is None:
        return f"[PREFIX] none: no ready worker for {d.model} (~{d.tokens} tokens)"
    kept = f"{d.matched_blocks}/{d.blocks} blocks"
    verb = {
        "hit": f"keeps {kept}",
        "only": f"keeps {kept}",
        "miss": f"starts {kept}",
        "busy": f"takes over from {d.previous}, which keeps {kept}",
    }[d.reason]
    figures = f"slots={d.slots} min={d.min_slots} slack={d.slack}, ~{d.tokens} tokens"
    return f"[PREFIX] {d.reason}: {d.worker} {verb} ({figures})"
