"""What a decision costs, one line a figure: `python -m bench.figures [--quick] [--strict] [NAME ...]`.

    name value unit budget ok|over          `-` where there is no budget, `skipped` and why where it cannot be measured

A unit that begins with `/` is a ratio to what it names. Each round times both sides, a few milliseconds each, one after the
other, and the median of the rounds' ratios is printed; the garbage collector is off meanwhile (_measure.py). Costs are CPU
time of one thread; only the mirror and the frozen Redis are timed by the clock. docs/benchmark.md says how to read it.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench._bodies import KB
from bench._decision import many_over_few_workers, over_floor, small_over_large
from bench._edge import added_over_endpoint
from bench._measure import FULL, QUICK, Scale, Skipped
from bench._memory import bytes_per_pair
from bench._mirror import mirror_over_echo, warm_start_over_bare
from bench._outage import frozen_over_well
from bench._stages import STAGES, stage_microseconds


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: its budget is the largest value that is still well."""

    name: str
    unit: str
    budget: float | None
    measure: Callable[[Scale], float]


ROWS: Final = (
    Row("decision_33kb", "/floor", 1.6, partial(over_floor, 33 * KB)),
    Row("decision_1kb", "/floor", None, partial(over_floor, KB)),
    Row("decision_1mb", "/floor", 1.8, partial(over_floor, 1_000 * KB)),
    Row("decision_1kb_33kb", "/33kb", 0.35, small_over_large),
    Row("decision_1000_workers", "/8_workers", 1.3, many_over_few_workers),
    Row("endpoint_1kb", "/endpoint", 1.0, partial(added_over_endpoint, logged=False)),
    Row("endpoint_1kb_logged", "/endpoint", None, partial(added_over_endpoint, logged=True)),
    Row("index_one_holder", "bytes", 200, partial(bytes_per_pair, 1)),
    Row("index_two_holders", "bytes", 200, partial(bytes_per_pair, 2)),
    Row("mirror_p99", "/echo", 3, mirror_over_echo),
    Row("warm_start", "/redis-py", 3, warm_start_over_bare),
    Row("redis_frozen_p99", "/well", 1.1, frozen_over_well),
    *(Row(f"stage_{stage}", "us", None, partial(stage_microseconds, stage)) for stage in STAGES),
)
_NAME: Final = max(len(row.name) for row in ROWS)
_UNIT: Final = max(len(row.unit) for row in ROWS)


def line(row: Row, value: float | Skipped) -> str:
    """Return the line of one figure, or of one that could not be measured."""
    budget = "-" if row.budget is None else f"{row.budget:g}"
    if isinstance(value, Skipped):
        shown, verdict = "skipped", str(value)
    else:
        shown, verdict = f"{value:.2f}", _verdict(row, value)
    return f"{row.name:<{_NAME}}  {shown:>8}  {row.unit:<{_UNIT}}  {budget:>6}  {verdict}"


def _verdict(row: Row, value: float) -> str:
    if row.budget is None:
        return "-"
    return "over" if value > row.budget else "ok"


def measured(row: Row, scale: Scale) -> float | Skipped:
    """Return a row's figure, or why there is none."""
    try:
        return row.measure(scale)
    except Skipped as reason:
        return reason


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures and return the exit status: 0, or with --strict 1 when one is over its budget."""
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description="What a decision costs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to measure; all when none is named")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that every row runs, no more")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a figure is over its budget")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {row.name for row in ROWS}
    if unknown:
        parser.error(
            f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in ROWS)}"
        )
    over = False
    for row in ROWS:
        if not options.names or row.name in options.names:
            value = measured(row, QUICK if options.quick else FULL)
            over = over or (isinstance(value, float | int) and _verdict(row, value) == "over")
            print(line(row, value), flush=True)
    return 1 if options.strict and over else 0


if __name__ == "__main__":
    sys.exit(main())
