"""`prefix-middleware logs`: hit rates, reasons and workers from the lines that gateways have logged."""

import time
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from prefix_middleware.cli.loglines import LineReader
from prefix_middleware.cli.output import console, document, fail
from prefix_middleware.cli.tail import LogFile
from prefix_middleware.cli.tally import Tally, line_of, shown_summary
from prefix_middleware.core.blocks import BLOCK_BYTES, MAX_WINDOW_BYTES
from prefix_middleware.settings import Settings

REPRINT_SECONDS: Final = 2.0


def logs(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A gateway's log; - reads stdin.")],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on reading until Ctrl-C, and say the sums again.")
    ] = False,
    window_bytes: Annotated[
        int,
        typer.Option(
            min=BLOCK_BYTES,
            max=MAX_WINDOW_BYTES,
            envvar="PREFIX_WINDOW_BYTES",
            help="The gateways' window_bytes, by which matched tokens of text lines are estimated.",
        ),
    ] = Settings().window_bytes,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON document; with --follow one on each line.")
    ] = False,
) -> None:
    """Sum up [PREFIX] lines, text or JSON, among any others: hit rate, reasons, workers, misses, states."""
    tally, name = Tally(), "stdin" if file == "-" else file
    try:
        log = LogFile(file)
        try:
            _read(log, LineReader(window_bytes), tally, follow, json)
        except KeyboardInterrupt:  # how a reader ends --follow
            if not follow:
                raise
        finally:
            log.close()
    except BrokenPipeError:  # whoever read our output has gone
        raise
    except OSError as error:
        fail(f"{file}: {error.strerror}", 1)
    if tally.empty:
        fail(f"nothing to show: no [PREFIX] line among the {tally.lines:,} lines of {name}", 1)
    _show(tally, console(), json, follow)


def _read(log: LogFile, reader: LineReader, tally: Tally, follow: bool, json: bool) -> None:
    out = console()
    live = Live(console=out, auto_refresh=False, transient=True) if _is_live(out, follow, json) else None
    due, said = time.monotonic() + REPRINT_SECONDS, 0
    if live is not None:
        live.start()
    try:
        for line in log.lines(follow):
            if line is not None:
                tally.add(reader.read(line))
            if follow and time.monotonic() >= due:
                due = time.monotonic() + REPRINT_SECONDS
                if tally.lines > said and not tally.empty:
                    said = tally.lines
                    _again(tally, out, live, json)
    finally:
        if live is not None:
            live.stop()


def _is_live(out: Console, follow: bool, json: bool) -> bool:
    return follow and not json and out.is_terminal


def _again(tally: Tally, out: Console, live: Live | None, json: bool) -> None:
    summary = tally.summary()
    if live is not None:
        live.update(shown_summary(summary), refresh=True)
    elif json:
        typer.echo(msgspec.json.encode(summary).decode())
    else:
        out.print(line_of(summary), soft_wrap=True)


def _show(tally: Tally, out: Console, json: bool, follow: bool) -> None:
    if json and follow:
        typer.echo(msgspec.json.encode(tally.summary()).decode())
    elif json:
        typer.echo(document(tally.summary()))
    else:
        out.print(shown_summary(tally.summary()))
