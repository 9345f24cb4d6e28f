"""What the demonstration prints: progress, two tables side by side, the gateways' lines, one sentence."""

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from prefix_middleware.demo.conversation import Turn

_WIDTH: Final = 80
_OURS_TOKENS: Final = 4_000  # prompts of the conversation are longer, those of the other users shorter


def console() -> Console:
    """Return the console: live on a terminal, plain lines otherwise; at most 80 columns."""
    terminal = Console(highlight=False)
    return terminal if terminal.width <= _WIDTH else Console(width=_WIDTH, highlight=False)


def table(title: str, turns: Sequence[Turn]) -> Table:
    """Return one run as a table of at most 39 columns."""
    result = Table(
        title=title, title_style="bold", padding=(0, 1), collapse_padding=True, pad_edge=False, box=None
    )
    for name in ("turn", "gateway", "worker", "prompt\ntokens", "seconds"):
        result.add_column(name, justify="left" if name == "worker" else "right", no_wrap=True)
    for turn in turns:
        figures = (f"{turn.prompt_tokens:,}", f"{turn.seconds:.2f}")
        result.add_row(str(turn.number), turn.gateway.removeprefix("gateway-"), turn.worker, *figures)
    return result


def show(out: Console, plain: Sequence[Turn], with_line: Sequence[Turn], lines: Sequence[str]) -> None:
    """Print both runs, the lines of the second and the measured gain."""
    out.print()
    both = Table.grid(padding=(0, 4))
    both.add_row(table("without the line", plain), table("with the line", with_line))
    out.print(both)
    out.print("seconds: to the first token", style="dim")
    out.print()
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)
    out.print()
    out.print(sentence(plain, with_line), style="bold")


def sentence(plain: Sequence[Turn], with_line: Sequence[Turn]) -> str:
    """Return the measured gain: median seconds of the follow-ups without and with the line."""
    before, after = (median(turn.seconds for turn in turns[1:]) for turns in (plain, with_line))
    times = f"{after:.2f} s against {before:.2f} s (median)"
    return f"With the line follow-ups start {before / after:.1f}x sooner: {times}."


def line_of(new_text: str) -> str | None:
    """Return the conversation's `[PREFIX]` line in what a gateway printed during one turn."""
    for line in new_text.splitlines():
        tokens = re.match(r"\[PREFIX\] \w+: .*~(\d+) tokens", line)
        if tokens and int(tokens[1]) >= _OURS_TOKENS:
            return line
    return None


def broken_turns(turns: Sequence[Turn], logged: Sequence[str | None]) -> list[str]:
    """Return what is wrong: follow-ups that left their worker, by nginx's word or by the workers' own logs."""
    wrong = [
        f"turn {turn.number}: nginx says {turn.worker!r}, the log of {seen!r} has it"
        for turn, seen in zip(turns, logged, strict=True)
        if turn.worker != seen
    ]
    moved = [
        f"turn {turn.number}: {before.worker} -> {turn.worker}"
        for before, turn in pairwise(turns)
        if before.worker != turn.worker
    ]
    return wrong + moved
