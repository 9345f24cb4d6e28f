"""The conversations of each run, made of random words, and how much of their prompts was there before."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

Message = dict[str, str]

_WORDS: Final = (
    "worker gateway prompt prefix block index match request answer token header record fleet mirror redis load slack "
    "choice cache window tenant model origin carrier shadow reason limit budget figure counter health ready epoch "
    "snapshot stream entry update decision path body chunk start finish release reserve candidate policy weight share"
).split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of traffic; sizes are in words, about 1.3 tokens each."""

    name: str
    conversations: int
    turns: int
    concurrency: int
    start_words: int
    groups: int = 0  # how many system prompts there are; 0: every conversation has its own start
    turn_words: int = 60
    small_kv: bool = False  # each worker's KV cache holds a third of the conversations


@dataclass(frozen=True, slots=True)
class Opening:
    """What a conversation begins with, and what its user says turn by turn."""

    number: int
    system: str
    questions: tuple[str, ...]


SHAPES: Final = (
    Shape(name="a", conversations=24, turns=5, concurrency=3, start_words=1150),
    Shape(name="b", conversations=12, turns=4, concurrency=4, start_words=800, groups=2),
    Shape(name="c", conversations=12, turns=4, concurrency=1, start_words=800, groups=2),
    Shape(name="d", conversations=12, turns=4, concurrency=1, start_words=800, groups=2, small_kv=True),
)


def words(source: random.Random, count: int) -> str:
    """Return so many random words."""
    return " ".join(source.choices(_WORDS, k=count))


def openings(shape: Shape, seed: str) -> list[Opening]:
    """Return the conversations of a shape; another seed shares nothing with it."""
    source = random.Random(f"{shape.name} {seed}")
    systems = [words(source, shape.start_words) for _ in range(shape.groups or shape.conversations)]
    return [
        Opening(
            number,
            systems[number % len(systems)],
            tuple(words(source, shape.turn_words) for _ in range(shape.turns)),
        )
        for number in range(shape.conversations)
    ]


@dataclass(frozen=True, slots=True)
class Timed:
    """One prompt as token ids, when it was sent and when its answer began, in seconds of one clock."""

    tokens: Sequence[int]
    sent: float
    started: float


def reusable_tokens(prompts: Sequence[Timed], block_tokens: int) -> int:
    """Return how many tokens, in whole leading blocks, were those of a prompt whose answer had begun when a later one was sent.

    A worker computes at least one token of each prompt.
    """
    pending = sorted(prompts, key=lambda prompt: prompt.started)
    seen: set[tuple[int, ...]] = set()
    total = 0
    for prompt in sorted(prompts, key=lambda prompt: prompt.sent):
        while pending and pending[0].started <= prompt.sent:
            seen.update(_blocks(pending.pop(0).tokens, block_tokens))
        reused = list(takewhile(seen.__contains__, _blocks(prompt.tokens, block_tokens)))
        total += min(len(reused), (len(prompt.tokens) - 1) // block_tokens) * block_tokens
    return total


def _blocks(tokens: Sequence[int], block_tokens: int) -> list[tuple[int, ...]]:
    """Return every prefix of whole blocks."""
    return [tuple(tokens[:end]) for end in range(block_tokens, len(tokens) + 1, block_tokens)]
