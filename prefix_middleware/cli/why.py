"""Who would be chosen for a prompt, and by which inequality, with the numbers put in."""

from collections import Counter

from msgspec import Struct

from prefix_middleware.cli.fleet import View
from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.choose import (
    Candidate,
    Choice,
    Decision,
    Figures,
    Situation,
    choose,
    decision,
    fuller,
    load_tokens,
)
from prefix_middleware.core.rendezvous import Rendezvous
from prefix_middleware.core.situation import look_at
from prefix_middleware.telemetry import shown


class Why(Struct, frozen=True, kw_only=True):
    """A choice that was not made: the decision, what it was compared with, and the comparison in words."""

    decision: Decision
    base: str | None
    because: str
    otherwise: list[str]  # whom another random third candidate would give


def why(prompt: HashedPrompt, view: View) -> Why:
    """Choose as a gateway would at this moment; nothing is reserved or recorded."""
    router, policy, figures = view.router, view.settings.policy, view.settings.figures
    candidates = router.fleet.candidates(prompt.model, prompt.tokens + prompt.output_tokens, view.now)
    model = shown(prompt.model)
    if not candidates.ids:
        none = Decision(reason="none", tokens=prompt.tokens, model=model, policy=policy)
        return Why(decision=none, base=None, because="nobody ready can serve it", otherwise=[])
    rendezvous, count = Rendezvous(router.fleet.states), len(candidates.ids)
    situations = [
        look_at(prompt, candidates, router.fleet, router.index, rendezvous, view.now, (third + 0.5) / count)
        for third in range(count)
    ]
    choices = [choose(situation, policy, figures) for situation in situations]
    likely = Counter(choice.chosen.worker for choice in choices).most_common()
    place = next(i for i, choice in enumerate(choices) if choice.chosen.worker == likely[0][0])
    situation, choice = situations[place], choices[place]
    decided = decision(
        situation,
        choice,
        alone=count == 1,
        blocks=len(prompt.hashes),
        model=model,
        policy=policy,
        figures=figures,
    )
    return Why(
        decision=decided,
        base=choice.base.worker,
        because=_because(situation, choice, decided, figures),
        otherwise=[worker for worker, _ in likely[1:]],
    )


def _because(situation: Situation, choice: Choice, decided: Decision, figures: Figures) -> str:
    chosen, best = choice.chosen.worker, choice.best
    if decided.reason == "only":
        return f"the only candidate: {chosen}"
    if situation.all_full:
        return f"every candidate has {situation.min_in_flight} or more in flight: the lightest, {chosen}"
    if best is None:
        return f"nobody holds a block of it: {_base(situation, choice)}"
    if best.worker == choice.base.worker == chosen:
        return f"{chosen} holds the longest match and is the base: {_base(situation, choice)}"
    if decided.policy == "requests":
        slots, allowed = best.load.in_flight, situation.min_in_flight + choice.slack
        sign, verdict = ("<=", "follow") if slots <= allowed else (">", "take")
        sum_ = f"min {situation.min_in_flight} + slack {choice.slack}"
        return f"in-flight {slots} {sign} {sum_}: {verdict} {chosen}"
    if decided.policy == "cost":
        other = choice.base if best.worker == chosen else best
        return _cheaper(choice.chosen, other, situation.prompt_tokens, figures)
    return _followed(best, choice, situation.prompt_tokens, figures)


def _base(situation: Situation, choice: Choice) -> str:
    pair = [candidate.worker for candidate in situation.pair]
    if choice.base.worker not in pair:
        return f"{choice.base.worker}, a random third, far lighter than {' and '.join(pair)}"
    return f"{choice.base.worker}, the lighter of {' and '.join(pair)}"


def _followed(best: Candidate, choice: Choice, prompt: int, figures: Figures) -> str:
    """Return `load A - base B = C <= allowance D: follow W`, as the policy has compared."""
    heavier, sum_ = _difference(best, choice.base, "base", prompt, figures)
    allowance = choice.allowance
    sign, verdict = ("<=", "follow") if heavier <= allowance else (">", "take")
    return f"{sum_} {sign} allowance {allowance:.0f}: {verdict} {choice.chosen.worker}"


def _cheaper(chosen: Candidate, other: Candidate, prompt: int, figures: Figures) -> str:
    heavier, sum_ = _difference(chosen, other, f"{other.worker}'s", prompt, figures)
    saved = figures.follow_weight * (chosen.matched_tokens - other.matched_tokens)
    sign = "<=" if heavier <= saved else ">"
    return f"{sum_} {sign} {saved:.0f} for the tokens matched: take {chosen.worker}"


def _difference(a: Candidate, b: Candidate, name: str, prompt: int, figures: Figures) -> tuple[float, str]:
    """Return by how many tokens a is heavier, and the sum that says so; fill counts where the policy counts it."""
    left, right = load_tokens(a.load, figures), load_tokens(b.load, figures)
    heavier, text = left - right, f"load {left:.0f} - {name} {right:.0f}"
    fill = fuller(a.load, b.load, prompt, figures)
    if not (a.continues or b.continues) and abs(heavier) < figures.near_tokens and abs(fill) >= 1:
        heavier += fill
        text += f" {'+' if fill > 0 else '-'} fill {abs(fill):.0f}"
    return heavier, f"{text} = {heavier:.0f}"
