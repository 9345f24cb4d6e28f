"""Chat bodies made from words: a shared system text, turns of mixed length, line breaks and quotes.

One answer in four has a dash that is not ASCII, as models write them: Python then keeps the whole text in two bytes a
character, which costs three times as much to read and to encode.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

KB: Final = 1000

_WORDS: Final = (
    "the of and to a in is that for it as was with be by on not he this are or his from at which but have an had they "
    "you were their one all we can her has there been if more when will would who so no request answer worker cache "
    "prompt token model value result error file line function return class test number string list table column query "
    "server client network memory process thread signal status message header content system user assistant question "
    "please explain because however therefore between before after during under over again further then once here "
    "where why how both each few most other some such only own same than too very just should now price order account "
    "invoice customer delivery contract section paragraph summary report analysis method measure example"
).split()
_SYSTEMS: Final = 4  # different system texts; every two conversations in a row share one, and so its blocks
_LENGTHS: Final = (120, 300, 700, 1_500, 4_000, 12_000)  # characters of a turn
_WITH_DASH: Final = 0.25
_ENDS: Final = (". ", ". ", ". ", "? ", ", ", ".\n\n", ":\n- ", ' "as said" ')


@dataclass(frozen=True, slots=True)
class Conversation:
    """One chat at two moments."""

    earlier: bytes  # body of the turn before
    body: bytes  # body of the turn that is measured


def conversations(size: int, count: int) -> list[Conversation]:
    """Return `count` different chats whose bodies have about `size` bytes."""
    return [_conversation(size, seed) for seed in range(count)]


def _conversation(size: int, seed: int) -> Conversation:
    rng = random.Random(f"{size} {seed}")
    system = _text(random.Random(seed // 2 % _SYSTEMS), min(1_200, size // 4))
    messages = [{"role": "system", "content": system}]
    lengths = [length for length in _LENGTHS if length <= size // 6]
    used = len(system)
    while used < size:
        length = min(rng.choice(lengths), max(40, size - used - 40))
        role = "assistant" if len(messages) % 2 == 0 else "user"
        dash = "— " if role == "assistant" and rng.random() < _WITH_DASH else ""
        messages.append({"role": role, "content": dash + _text(rng, length)})
        used += length + 40  # bytes of JSON around a text
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": _text(rng, 60)})
    return Conversation(_encode(messages[:-2]), _encode(messages))


def _encode(messages: list[dict[str, str]]) -> bytes:
    return msgspec.json.encode(
        {"model": "bench", "messages": messages, "stream": True, "temperature": 0.7, "max_tokens": 512}
    )


def _text(rng: random.Random, length: int) -> str:
    return "".join(_sentences(rng, length))[:length]


def _sentences(rng: random.Random, length: int) -> Iterator[str]:
    written = 0
    while written < length:
        sentence = " ".join(rng.choices(_WORDS, k=rng.randint(5, 18))).capitalize() + rng.choice(_ENDS)
        written += len(sentence)
        yield sentence
