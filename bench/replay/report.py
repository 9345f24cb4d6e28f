"""From outcomes to figures, and to one table of at most 100 columns."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Final

from rich import box
from rich.table import Table

from bench.replay.play import Outcome

BASE: Final = "requests"
"""The policy that p90 is compared with."""
ALL: Final = "all"
_NAME: Final = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One policy in one case. Times in seconds; `p90_ratio` is over the base policy's, None without it."""

    case: str
    policy: str
    p50: float
    p90: float
    p99: float
    hits: float
    spread: float
    preemptions: int
    p90_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Mean:
    """A policy over all cases: the geometric mean of its p90 ratios."""

    policy: str
    p90_ratio: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` of the values do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def row(case: str, policy: str, outcome: Outcome) -> Row:
    """Return the figures of one replay."""
    p50, p90, p99 = (percentile(outcome.ttft, share) for share in (0.5, 0.9, 0.99))
    return Row(case, policy, p50, p90, p99, outcome.hit_share, outcome.spread, outcome.preemptions)


def compared(rows: Iterable[Row]) -> list[Row]:
    """Fill in each row's ratio to the base policy of its case."""
    rows = list(rows)
    base = {r.case: r.p90 for r in rows if r.policy == BASE}
    return [
        Row(
            r.case, r.policy, r.p50, r.p90, r.p99, r.hits, r.spread, r.preemptions,
            r.p90 / base[r.case] if base.get(r.case) else None,
        )
        for r in rows
    ]  # fmt: skip


def means(rows: Iterable[Row]) -> list[Mean]:
    """Return each policy's geometric mean over the cases, in order of appearance; none without the base policy."""
    ratios: dict[str, list[float]] = {}
    for r in rows:
        if r.p90_ratio:
            ratios.setdefault(r.policy, []).append(r.p90_ratio)
    return [Mean(policy, geometric_mean(values)) for policy, values in ratios.items()]


def case_of(trace: str, speed: float, kv_tokens: int) -> str:
    """Return the short name of one trace at one speed on one size of KV cache."""
    name = trace.removesuffix("_trace")
    short = name if len(name) <= _NAME else f"{name[:8]}~{name[9 - _NAME :]}"
    kv = f"{kv_tokens / 1e6:.3g}M" if kv_tokens >= 1_000_000 else f"{kv_tokens // 1000}k"
    return f"{short} x{speed:g} {kv}"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    digits = next((n for n, limit in ((3, 1), (2, 10), (1, 100)) if value < limit), 0)
    return f"{value:.{digits}f}"


def table(rows: Sequence[Row]) -> Table:
    """Return all cases as one table; the last rows are the geometric means."""
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    result.add_column("case", no_wrap=True)
    result.add_column("policy", overflow="fold")
    for name in ("p50 s", "p90 s", "p99 s", "hits", "spread", "preempted", "ratio"):
        result.add_column(name, justify="right", no_wrap=True)
    for i, r in enumerate(rows):
        times = (_figure(r.p50), _figure(r.p90), _figure(r.p99))
        shares = (f"{r.hits:.3f}", f"{r.spread:.2f}", str(r.preemptions), _figure(r.p90_ratio))
        last_of_case = i + 1 == len(rows) or rows[i + 1].case != r.case
        result.add_row(r.case, r.policy, *times, *shares, end_section=last_of_case)
    for mean in means(rows):
        result.add_row(ALL, mean.policy, *[""] * 6, _figure(mean.p90_ratio))
    return result
