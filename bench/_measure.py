"""How a figure is taken on a noisy machine: two sides in small alternating batches, and the median of the rounds' ratios.

1. CPU time of this thread, not of the wall, wherever the work is ours alone.
2. Each round times both sides once, a few milliseconds each, and swaps their order: what slows the machine slows both.
3. The garbage collector is frozen and off while time is taken; what a side leaves behind is undone outside the timed part.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from statistics import median
from time import thread_time


class Skipped(Exception):
    """A row cannot be measured on this machine; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured: the whole, or just enough to see that every row runs."""

    rounds: int  # of a ratio of CPU times
    bodies: int  # different ones of 1 KB and 33 KB in a batch
    large_bodies: int  # of 1 MB
    other_prompts: int  # of 64 blocks, in the warm index
    pairs: int  # (block, worker), in memory and in a warm start
    starts: int  # rounds of the warm start
    seconds: float  # of one round of the mirror
    mirror_rounds: int
    phase_seconds: float  # of one phase with Redis well or frozen
    phases: int  # of each kind


FULL = Scale(
    rounds=60,
    bodies=12,
    large_bodies=3,
    other_prompts=1_500,
    pairs=200_000,
    starts=15,
    seconds=1.0,
    mirror_rounds=12,
    phase_seconds=5.0,
    phases=4,
)
QUICK = Scale(
    rounds=2,
    bodies=2,
    large_bodies=2,
    other_prompts=10,
    pairs=1_280,
    starts=1,
    seconds=0.1,
    mirror_rounds=1,
    phase_seconds=0.1,
    phases=1,
)


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a ratio: a batch of `calls` that is timed, and what undoes its effects, which is not."""

    run: Callable[[], object]
    calls: int
    settle: Callable[[], object] = _nothing

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of one call, as the mean of one batch."""
        began = thread_time()
        self.run()
        took = thread_time() - began
        self.settle()
        return took / self.calls


@contextmanager
def quiet_memory() -> Iterator[None]:
    """Keep the garbage collector out of the timed part."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def median_ratio(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the median of the ratios first / second, each of one round; raises StatisticsError without pairs."""
    return median(a / b for a, b in pairs)


def paired_ratio(a: Side, b: Side, rounds: int) -> float:
    """Return how many times b's CPU time a takes, from `rounds` rounds that alternate which comes first."""
    pairs: list[tuple[float, float]] = []
    with quiet_memory():
        a.cpu_seconds(), b.cpu_seconds()  # fills caches and whatever is computed once
        for number in range(rounds):
            if number % 2:
                second = b.cpu_seconds()
                pairs.append((a.cpu_seconds(), second))
            else:
                first = a.cpu_seconds()
                pairs.append((first, b.cpu_seconds()))
    return median_ratio(pairs)


def cpu_microseconds(side: Side, rounds: int) -> float:
    """Return the CPU microseconds of one call, as the median of `rounds` batches."""
    with quiet_memory():
        side.cpu_seconds()
        return median(side.cpu_seconds() for _ in range(rounds)) * 1e6


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(1, ceil(len(ordered) * percent / 100)) - 1]
