"""What the commands have in common: settings from the environment, tables of 80 columns, JSON, and one line on failure."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Final, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prefix_middleware.settings import Settings, SettingsError, unknown_variables

WIDTH: Final = 80
UNREACHED: Final = 3
"""Exit status of a look that did not reach the mirror."""
EXIT_CODES: Final = (
    "Exit status: 0 fine; 1 nothing to show, or the file cannot be read; 2 wrong options or settings"
)
FLEET_EXIT_CODES: Final = f"{EXIT_CODES}; 3 the mirror was not reached in time: what there is, is printed."


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise typer.BadParameter("is not a number of seconds")
    return seconds


Seconds = Annotated[
    float,
    typer.Option(min=0.1, max=60, callback=_finite, help="How long to read the mirror at most."),
]
"""The option of commands that join the mirror."""


def settings_from_env() -> Settings:
    """Read PREFIX_* variables; ends the command with one line and status 2 when one is wrong."""
    for name in unknown_variables():
        remark(f"{name}: no such setting, ignored")
    try:
        return Settings.from_env()
    except SettingsError as error:
        fail(str(error), 2)


def remark(line: str) -> None:
    """Print one line on stderr."""
    typer.echo(line, err=True)


def fail(line: str, status: int) -> NoReturn:
    """Print one line on stderr and end the command."""
    remark(line)
    raise typer.Exit(status)


def console() -> Console:
    """Return a console of at most 80 columns; colour codes only on a terminal."""
    out = Console(highlight=False, markup=False, emoji=False)
    if out.width > WIDTH:
        out = Console(width=WIDTH, highlight=False, markup=False, emoji=False)
    return out


def document(value: object) -> str:
    """Return a value as one indented JSON document."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Return names and what is said of them, in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(name, Text(text))
    return grid


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1) -> Table:
    """Return a table whose first `left` columns are words and whose others are figures."""
    result = Table(box=None, padding=(0, 1), collapse_padding=True, pad_edge=False, header_style="bold")
    for place, name in enumerate(columns):
        words = place < left
        result.add_column(name, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for row in rows:
        result.add_row(*(Text(shown_value(value)) for value in row))
    return result


def shown_value(value: object) -> str:
    """Return a figure with thousands separated, a dash for None, anything else as it is."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def percent(part: float, whole: float) -> str:
    """Return a share with one decimal, a dash for a share of nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"
