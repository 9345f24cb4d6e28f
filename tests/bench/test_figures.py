"""The benchmark's arithmetic, the shape of its lines, and that every row of its table runs."""

import gc
from collections.abc import Callable
from statistics import StatisticsError

import pytest

from bench import figures
from bench._measure import (
    FULL,
    QUICK,
    Scale,
    Side,
    Skipped,
    cpu_microseconds,
    median_ratio,
    paired_ratio,
    percentile,
)
from bench.figures import ROWS, Row, line, main, measured


def returning(value: float) -> Callable[[Scale], float]:
    """Return a measurement that is always this value."""
    return lambda _scale: value


def skipping(why: str) -> Callable[[Scale], float]:
    """Return a measurement that this machine cannot make."""

    def measure(_scale: Scale) -> float:
        raise Skipped(why)

    return measure


@pytest.mark.parametrize(
    ("value", "budget", "ends"),
    [
        (1.25, 1.6, ["1.25", "/floor", "1.6", "ok"]),
        (1.6, 1.6, ["1.60", "/floor", "1.6", "ok"]),
        (1.609, 1.6, ["1.61", "/floor", "1.6", "over"]),
        (182.0, 200, ["182.00", "/floor", "200", "ok"]),
        (7.5, None, ["7.50", "/floor", "-", "-"]),
    ],
)
def test_a_line_names_value_unit_budget_and_verdict(
    value: float, budget: float | None, ends: list[str]
) -> None:
    """A value up to its budget is ok, one above is over, and without a budget there are dashes."""
    row = Row("decision_33kb", "/floor", budget, returning(value))

    assert line(row, value).split() == ["decision_33kb", *ends]


def test_a_row_that_cannot_be_measured_says_why() -> None:
    """The reason stands where the verdict would, and the budget is still shown."""
    row = Row("mirror_p99", "/echo", 3, skipping("no redis-server"))

    assert line(row, Skipped("no redis-server")).split(maxsplit=4) == [
        "mirror_p99",
        "skipped",
        "/echo",
        "3",
        "no redis-server",
    ]


def test_the_columns_of_all_lines_are_aligned() -> None:
    """Every column begins or ends at the same place, whatever the name, so that the eye can compare."""
    lines = [line(row, 0.25) for row in ROWS]
    units = [text.index(f" {row.unit} ") for text, row in zip(lines, ROWS, strict=True)]
    values, verdicts = [text.index("0.25") for text in lines], [text.rindex(" ") for text in lines]

    assert [{*values}, {*units}, {*verdicts}] == [{values[0]}, {units[0]}, {verdicts[0]}]


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """One round in which the machine was slow for both sides, or for one only, does not move the figure."""
    rounds = [(2.0, 1.0), (60.0, 30.0), (2.1, 1.0), (90.0, 1.0), (1.9, 1.0)]

    assert median_ratio(rounds) == 2.0
    with pytest.raises(StatisticsError):
        median_ratio([])


def test_a_percentile_is_the_nearest_rank() -> None:
    """The p99 of 200 values is the third largest, and of a single value that value."""
    values = [float(n) for n in range(200, 0, -1)]

    assert (percentile(values, 99), percentile(values, 50), percentile([5.0], 99)) == (198.0, 100.0, 5.0)


def test_rounds_alternate_and_settle_outside_the_timed_part() -> None:
    """Both sides run once a round, the first of them in turn, each settled before the other runs, the collector off."""
    seen: list[str] = []
    collecting: list[bool] = []

    def side(name: str) -> Side:
        def run() -> None:
            collecting.append(gc.isenabled())
            seen.append(name)

        return Side(run, 1, lambda: seen.append(name + "'"))

    paired_ratio(side("a"), side("b"), 3)

    warm_up, rounds = ["a", "a'", "b", "b'"], ["a a' b b'", "b b' a a'", "a a' b b'"]
    assert seen == warm_up + " ".join(rounds).split()
    assert (set(collecting), gc.isenabled()) == ({False}, True)


def test_cpu_time_does_not_count_waiting_or_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch costs what the thread's clock moves during its run, divided by its calls; the median of the rounds counts."""
    clock = [0.0]
    costs = iter([9.0, 3e-6, 5e-6, 4e-6])

    def run() -> None:
        clock[0] += 2 * next(costs)

    def settle() -> None:
        clock[0] += 100.0

    monkeypatch.setattr("bench._measure.thread_time", lambda: clock[0])

    assert cpu_microseconds(Side(run, 2, settle), 3) == pytest.approx(4.0)


def test_every_row_is_printed_by_a_quick_run(capsys: pytest.CaptureFixture[str]) -> None:
    """All rows run on this machine, or say why not, in the order of the table; nothing is asserted of the figures."""
    status = main(["--quick"])

    printed = [text.split() for text in capsys.readouterr().out.splitlines()]
    budgets = ["-" if row.budget is None else f"{row.budget:g}" for row in ROWS]
    assert status == 0
    assert [(cells[0], cells[2], cells[3]) for cells in printed] == [
        (row.name, row.unit, budget) for row, budget in zip(ROWS, budgets, strict=True)
    ]
    for cells in printed:
        assert cells[1] == "skipped" or float(cells[1]) > float("-inf")


def test_named_rows_alone_are_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names select rows; a name that is none ends with the accepted ones."""
    monkeypatch.setattr(
        figures, "ROWS", (Row("one", "us", None, returning(1.0)), Row("two", "us", None, returning(2.0)))
    )

    assert main(["two"]) == 0
    assert [text.split() for text in capsys.readouterr().out.splitlines()] == [
        ["two", "2.00", "us", "-", "-"]
    ]
    with pytest.raises(SystemExit) as ended:
        main(["three"])
    assert (ended.value.code, "no such row: three; there are one, two" in capsys.readouterr().err) == (
        2,
        True,
    )


def test_only_a_strict_run_fails_over_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure over its budget is an exit status with --strict alone, and a skipped row never is."""
    over, skipped = Row("over", "us", 1, returning(2.0)), Row("none", "us", 1, skipping("no redis-server"))
    monkeypatch.setattr(figures, "ROWS", (over, skipped))

    assert [main([]), main(["--strict"]), main(["--strict", "none"])] == [0, 1, 0]


def test_a_measurement_gets_the_scale_and_only_skipped_is_caught() -> None:
    """A skipped row is a value; a mistake in a measurement is shown as what it is."""
    scales: list[Scale] = []

    def noting(scale: Scale) -> float:
        scales.append(scale)
        return 1.0

    def broken(_scale: Scale) -> float:
        raise ValueError("broken")

    assert [measured(Row("a", "us", None, noting), scale) for scale in (QUICK, FULL)] == [1.0, 1.0]
    assert scales == [QUICK, FULL]
    assert str(measured(Row("a", "us", None, skipping("why")), QUICK)) == "why"
    with pytest.raises(ValueError, match="broken"):
        measured(Row("a", "us", None, broken), QUICK)
