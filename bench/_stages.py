"""The stages of one decision on 33 KB, and what follows it, each by itself in microseconds of CPU.

`canonical` is without decoding. `match` looks the candidates up and collects what a policy sees; `choose` applies the
policy and puts the figures together; `record` is the provisional record, `start` the confirmed one with its update.
"""

import secrets
from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import structs

from bench._bodies import KB
from bench._decision import NOW, Decider, prompt_of
from bench._measure import Scale, Side, cpu_microseconds
from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.choose import Figures, choose, decision
from prefix_middleware.core.rendezvous import Rendezvous
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.situation import look_at
from prefix_middleware.core.updates import HASH_BYTES
from prefix_middleware.core.writer import decode

_FIGURES: Final = Figures()
_RANDOM: Final = 0.41


def _each(call: Callable[[Any], object], arguments: Iterable[Any]) -> Side:
    """Return a side that calls once for each argument."""
    batch = list(arguments)

    def run() -> None:
        for argument in batch:
            call(argument)

    return Side(run, len(batch))


def _decode(decider: Decider) -> Side:
    return _each(decode, decider.bodies)


def _canonical(decider: Decider) -> Side:
    return _each(prompt_of, decider.bodies)


def _hash(decider: Decider) -> Side:
    return _each(decider.hasher.hash, map(prompt_of, decider.bodies))


def _match(decider: Decider) -> Side:
    fleet, index = decider.router.fleet, decider.router.index
    rendezvous = Rendezvous(fleet.states)

    def match(prompt: HashedPrompt) -> object:
        candidates = fleet.candidates(prompt.model, prompt.tokens + prompt.output_tokens, NOW)
        return look_at(prompt, candidates, fleet, index, rendezvous, NOW, _RANDOM)

    return _each(match, map(decider.hashed, decider.bodies))


def _choose(decider: Decider) -> Side:
    fleet, index = decider.router.fleet, decider.router.index
    rendezvous = Rendezvous(fleet.states)
    prompts = [decider.hashed(body) for body in decider.bodies]
    candidates = fleet.candidates(prompts[0].model, prompts[0].tokens, NOW)
    seen = [look_at(prompt, candidates, fleet, index, rendezvous, NOW, _RANDOM) for prompt in prompts]

    def run() -> None:
        for situation in seen:
            choice = choose(situation, "tokens", _FIGURES)
            decision(
                situation, choice, alone=False, blocks=64, model="bench", policy="tokens", figures=_FIGURES
            )

    return Side(run, len(seen))


def _record(decider: Decider) -> Side:
    index = decider.router.index
    held = [decider.reserved(decider.hashed(body)) for body in decider.bodies]
    decider.reservations += held
    decider.settle()

    def run() -> None:
        for r in held:
            index.propose(("", r.number), r.blocks, r.worker, r.epoch, NOW)

    def settle() -> None:
        for r in held:
            index.withdraw(("", r.number))

    return Side(run, len(held), settle)


def _renewed(prompt: HashedPrompt) -> HashedPrompt:
    """Return a prompt whose second half no worker has seen."""
    half = len(prompt.hashes) // 2
    fresh = (secrets.token_bytes(HASH_BYTES) for _ in prompt.hashes[half:])
    return structs.replace(
        prompt, hashes=(*prompt.hashes[:half], *fresh), end=secrets.token_bytes(HASH_BYTES)
    )


def _start(decider: Decider) -> Side:
    return _after(decider, begun=False)


def _finish(decider: Decider) -> Side:
    return _after(decider, begun=True)


def _after(decider: Decider, *, begun: bool) -> Side:
    """Return a side that starts reservations, or finishes begun ones; each batch has fresh ones."""
    router = decider.router
    prompts = [decider.hashed(body) for body in decider.bodies]
    held: list[Reservation] = []

    def settle() -> None:
        decider.reservations += held
        decider.settle()
        held[:] = [decider.reserved(_renewed(prompt)) for prompt in prompts]
        for reservation in held if begun else ():
            router.start(reservation, NOW)

    def run() -> None:
        for reservation in held:
            if begun:
                router.finish(reservation)
            else:
                router.start(reservation, NOW)

    settle()
    return Side(run, len(prompts), settle)


_STAGES: Final[dict[str, Callable[[Decider], Side]]] = {
    "decode": _decode,
    "canonical": _canonical,
    "hash": _hash,
    "match": _match,
    "choose": _choose,
    "record": _record,
    "start": _start,
    "finish": _finish,
}
STAGES: Final = tuple(_STAGES)


def stage_microseconds(stage: str, scale: Scale) -> float:
    """Return the CPU microseconds of one stage; raises KeyError for a name that is not in STAGES."""
    decider = Decider(33 * KB, scale.bodies, scale.other_prompts)
    took = cpu_microseconds(_STAGES[stage](decider), scale.rounds)
    if stage == "canonical":
        took -= cpu_microseconds(_decode(decider), scale.rounds)
    return took
