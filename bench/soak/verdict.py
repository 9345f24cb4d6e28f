"""Whether a figure is flat: its last third against its middle third; the first is for filling up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, median, stdev
from typing import Final

from bench._measure import percentile

TOLERANCE: Final = 0.05
_PARTS: Final = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one moment, `at` seconds from the beginning."""

    at: float
    rss_bytes: tuple[int, ...]  # of each gateway
    redis_bytes: int
    pairs: tuple[int, ...]  # in the index of each gateway
    decisions: tuple[float, ...] = ()  # CPU seconds of each decision since the sample before, all gateways
    floors: tuple[float, ...] = ()  # CPU seconds of decoding and hashing the same bodies, and no more


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; one that is only `shown` has no verdict."""

    name: str
    first: float
    middle: float
    last: float
    shown: bool = False

    @property
    def change(self) -> float:
        """The last third over the middle one, less 1."""
        return self.last / self.middle - 1 if self.middle else float("inf")

    @property
    def verdict(self) -> str:
        """PASS where the change is within the tolerance, else FAIL."""
        if self.shown:
            return "-"
        flat = self.middle and abs(self.last - self.middle) <= TOLERANCE * self.middle
        return "PASS" if flat else "FAIL"


def thirds(samples: Sequence[Sample], seconds: float) -> list[list[Sample]]:
    """Return the samples of each third of a run of so many seconds; raises ValueError when one has none."""
    parts: list[list[Sample]] = [[], [], []]
    for sample in samples:
        parts[min(2, int(3 * sample.at / seconds))].append(sample)
    if not all(parts):
        raise ValueError("too few samples for three thirds")
    return parts


def figures(samples: Sequence[Sample], seconds: float) -> list[Figure]:
    """Return the table's lines: medians of samples, percentiles of all the decisions of a third."""
    parts = thirds(samples, seconds)

    def row(name: str, of: Callable[[list[Sample]], float], *, shown: bool = False) -> Figure:
        first, middle, last = (of(part) for part in parts)
        return Figure(name, first, middle, last, shown)

    rows = [
        row(f"gateway {n + 1} RSS, MB", lambda part, n=n: median(s.rss_bytes[n] for s in part) / 1e6)  # type: ignore[misc]
        for n in range(len(samples[0].rss_bytes))
    ]
    rows += [
        row(f"gateway {n + 1} index, pairs", lambda part, n=n: median(s.pairs[n] for s in part))  # type: ignore[misc]
        for n in range(len(samples[0].pairs))
    ]
    return [
        *rows,
        row("Redis used memory, MB", lambda part: median(s.redis_bytes for s in part) / 1e6),
        row("decision p90 / floor p90", lambda part: _cpu(part, 90) / _cpu(part, 90, floor=True), shown=True),
        row("decision p99 / floor p99", lambda part: _cpu(part, 99) / _cpu(part, 99, floor=True)),
        row("decision p99, CPU us", lambda part: _cpu(part, 99) * 1e6, shown=True),
        row("floor p99, CPU us", lambda part: _cpu(part, 99, floor=True) * 1e6, shown=True),
        row("decisions a second", lambda part: 3 * sum(len(s.decisions) for s in part) / seconds, shown=True),
    ]


def _cpu(part: Sequence[Sample], percent: float, *, floor: bool = False) -> float:
    values = [value for sample in part for value in (sample.floors if floor else sample.decisions)]
    return percentile(values, percent) if values else 0.0


def p99_error(samples: Sequence[Sample], seconds: float) -> float:
    """Return the relative standard error of the last third's p99 over the floor's, from ten interleaved parts of it."""
    part = thirds(samples, seconds)[2]
    decisions = [value for sample in part for value in sample.decisions]
    floors = [value for sample in part for value in sample.floors]
    if len(decisions) < 2 * _PARTS:
        return float("inf")
    pairs = [(decisions[n::_PARTS], floors[n::_PARTS]) for n in range(_PARTS)]
    ratios = [percentile(a, 99) / percentile(b, 99) for a, b in pairs]
    return stdev(ratios) / mean(ratios) / sqrt(_PARTS)


def filled_at(samples: Sequence[Sample], bound: int) -> float | None:
    """Return when the indexes were as full as they get (98 %: a record may leave one short), None for never."""
    return next((s.at for s in samples if min(s.pairs) >= 0.98 * bound), None)


def table(rows: Sequence[Figure]) -> list[str]:
    """Return the lines of the table."""
    lines = [f"{'':<26}{'first':>11}{'middle':>11}{'last':>11}{'change':>9}"]
    for row in rows:
        values = "".join(f"{value:>11.2f}" for value in (row.first, row.middle, row.last))
        lines.append(f"{row.name:<26}{values}{row.change:>+9.1%}  {row.verdict}")
    return lines
