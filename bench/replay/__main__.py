"""The command `python -m bench.replay`: which traces, fleets, speeds and policies to play, and the table of what came out."""

import dataclasses
import sys
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console

from bench.replay.formats import FORMATS, Options, UnknownFormat, read
from bench.replay.gateways import BASELINES, BaselineGateways, CoreGateways, Gateways, Setup
from bench.replay.play import Replay
from bench.replay.report import BASE, Row, case_of, compared, means, row, table
from bench.replay.trace import Trace, holdable
from prefix_middleware.core.choose import POLICIES, Figures

_WIDTH: Final = 100
_NAMES: Final = (*POLICIES, *BASELINES)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def figures_of(text: str) -> Figures:
    """Read `name=value,...` over the defaults; raises BadParameter for an unknown name or a wrong value."""
    defaults = dataclasses.asdict(Figures())
    numbers = {name: type(value) for name, value in defaults.items() if isinstance(value, int | float)}
    values: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        name, _, value = pair.partition("=")
        if name not in numbers:
            raise typer.BadParameter(f"{name}: accepted are {', '.join(numbers)}")
        try:
            values[name] = numbers[name](value)
        except ValueError as error:
            raise typer.BadParameter(f"{pair}: {numbers[name].__name__} is accepted") from error
    return Figures(**values)


def variants(policies: list[str], figures: list[str]) -> list[tuple[str, str, Figures]]:
    """Return (label, policy, figures): each policy with the defaults, and ours, but for the base, with each change."""
    result = []
    for policy in policies:
        if policy not in _NAMES:
            raise typer.BadParameter(f"{policy}: accepted are {', '.join(_NAMES)}")
        result.append((policy, policy, Figures()))
        if policy in POLICIES and policy != BASE:
            result += [
                (f"{policy} {change.replace(',', ', ')}", policy, figures_of(change)) for change in figures
            ]
    return result


def gateways_of(setup: Setup, policy: str, figures: Figures) -> Gateways:
    """Return a new fleet's gateways for one policy or baseline."""
    if policy in BASELINES:
        return BaselineGateways(setup, BASELINES[policy])
    return CoreGateways(setup, policy, figures)


def positive(text: str) -> list[float]:
    """Read comma-separated numbers above 0; raises BadParameter."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text}: comma-separated numbers are accepted") from error
    if not all(number > 0 for number in numbers):
        raise typer.BadParameter(f"{text}: numbers above 0 are accepted")
    return numbers


def load(path: Path, form: str, options: Options) -> Trace:
    """Read a trace; raises BadParameter when it is none."""
    try:
        return read(path, form, options)
    except (UnknownFormat, msgspec.MsgspecError, UnicodeDecodeError, OSError, KeyError) as error:
        raise typer.BadParameter(f"{path.name}: {error}") from error


@app.command()
def main(
    trace: Annotated[list[Path], typer.Option(help="A trace, plain or .gz; may be repeated.", exists=True)],
    format: Annotated[str, typer.Option(help=" | ".join(FORMATS))] = "auto",
    policy: Annotated[str, typer.Option(help="Comma-separated: " + ", ".join(_NAMES))] = ",".join(_NAMES),
    workers: Annotated[int, typer.Option(min=1)] = 8,
    kv_tokens: Annotated[
        str, typer.Option(help="KV cache of each worker, in tokens; a list is played in turn.")
    ] = "307328",
    speed: Annotated[str, typer.Option(help="2 plays twice as fast; a list is played in turn.")] = "1.0",
    limit: Annotated[int | None, typer.Option(help="First N requests, or sessions.", min=1)] = None,
    gateways: Annotated[int, typer.Option(min=1)] = 1,
    share_seconds: Annotated[
        float, typer.Option(help="How often gateways hear of each other.", min=0.0, max=3.0)
    ] = 0.1,
    preamble_tokens: Annotated[int, typer.Option(help="Common to all sessions (kvcache).", min=0)] = 15_000,
    figures: Annotated[
        list[str] | None, typer.Option(help="name=value,... : one more variant; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option()] = 1,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Play request traces against modelled vLLM workers and compare policies: TTFT, cache hits, spread."""
    if format not in FORMATS:
        raise typer.BadParameter(f"{format}: accepted are {', '.join(FORMATS)}")
    chosen = variants(policy.split(","), figures or [])
    rows: list[Row] = []
    for path, kv in product(trace, map(int, positive(kv_tokens))):
        loaded = holdable(load(path, format, Options(limit, preamble_tokens, seed)), kv)
        setup = Setup(workers, kv, gateways, seed, loaded.hashed_block_tokens())
        print(f"{path.name}: {loaded.requests} requests, {loaded.left_out} left out", file=sys.stderr)
        for rate, (label, name, changed) in product(positive(speed), chosen):
            case = case_of(loaded.name, rate, kv)
            side = gateways_of(setup, name, changed)
            rows.append(row(case, label, Replay(loaded, setup, side, rate, share_seconds).run()))
    rows = compared(rows)
    if json:
        print(msgspec.json.encode({"rows": rows, "means": means(rows)}).decode())
    else:
        Console(width=_WIDTH, highlight=False).print(table(rows))


if __name__ == "__main__":
    app()
