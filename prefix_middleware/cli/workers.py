"""`prefix-middleware workers`: the fleet as the mirror sees it, and how each worker is."""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final

import anyio
import typer
from msgspec import Struct

from prefix_middleware.cli.fleet import MirrorFacts, Origin, View, WorkerFacts, end, look
from prefix_middleware.cli.output import Seconds, console, document, fail, percent, settings_from_env, table
from prefix_middleware.telemetry import shown

_ORIGINS: Final = 20  # shown by the table; --json has all


class OriginFacts(Struct, frozen=True, kw_only=True):
    """One gateway process: when it last decided, its own loads, and its counts since it started (None: it is gone)."""

    origin: str
    last_decision_seconds: float | None  # ago; None: it has loads but has decided nothing that is still there
    in_flight: int
    backlog_tokens: int
    prompt_tokens: int
    in_flight_by_worker: dict[str, int]
    decided: int | None
    injected: int | None
    echoed: int | None


class FleetFacts(Struct, frozen=True, kw_only=True):
    """Everything that --json prints."""

    fleet: str
    mirror: MirrorFacts | None
    workers: list[WorkerFacts]
    gateways: list[OriginFacts]


def workers(
    seconds: Seconds = 1.5,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Show the workers of PREFIX_WORKERS: health, loads and blocks held as the mirror has them."""
    settings = settings_from_env()
    if not settings.workers:
        fail("nothing to show: PREFIX_WORKERS names no workers", 1)
    view = anyio.run(partial(look, settings, seconds))
    seen = FleetFacts(
        fleet=settings.fleet, mirror=view.mirror, workers=view.workers(), gateways=_origins(view)
    )
    if json:
        typer.echo(document(seen))
    else:
        _show(seen)
    end(seen.mirror, seconds)


def _origins(view: View) -> list[OriginFacts]:
    """Return who is there, has decided or carries something, the latest first."""
    found = [
        _origin(name, said, view)
        for name, said in view.origins.items()
        if said.last_decision is not None or said.gauges or said.tally is not None
    ]
    return sorted(found, key=lambda o: (o.in_flight == 0, o.last_decision_seconds or 0.0, o.origin))


def _origin(name: str, said: Origin, view: View) -> OriginFacts:
    ago = None if said.last_decision is None else round(max(0.0, view.now - said.last_decision), 1)
    tally = said.tally
    gauges = [gauge for gauge in said.gauges if gauge.in_flight]
    return OriginFacts(
        origin=shown(name),
        last_decision_seconds=ago,
        in_flight=sum(gauge.in_flight for gauge in gauges),
        backlog_tokens=sum(gauge.backlog_tokens for gauge in gauges),
        prompt_tokens=sum(gauge.prompt_tokens for gauge in gauges),
        in_flight_by_worker={shown(gauge.worker): gauge.in_flight for gauge in gauges},
        decided=None if tally is None else tally.decided,
        injected=None if tally is None else tally.injected,
        echoed=None if tally is None else tally.echoed,
    )


def _show(seen: FleetFacts) -> None:
    out = console()
    rows = [(w.id, w.url, _state(w), _when(w.epoch)) for w in seen.workers]
    out.print(table(("worker", "url", "state", "started"), rows, left=4))
    out.print()
    if seen.mirror is None:
        out.print("health only: PREFIX_REDIS_URL is not set")
    elif seen.mirror.reached:
        figures = [
            (
                w.id,
                w.in_flight,
                w.backlog_tokens,
                w.prompt_tokens,
                w.load_tokens,
                w.blocks,
                percent(w.share, 1),
            )
            for w in seen.workers
        ]
        columns = ("worker", "in-flight", "backlog", "prompt tokens", "load", "blocks", "share")
        out.print(table(columns, figures))
        out.print()
        _show_gateways(seen)


def _show_gateways(seen: FleetFacts) -> None:
    out = console()
    if not seen.gateways:
        out.print(f"no gateway of fleet {seen.fleet} is there")
        return
    rows = [
        (
            o.origin,
            _ago(o.last_decision_seconds),
            o.in_flight,
            o.prompt_tokens,
            o.decided,
            o.injected,
            o.echoed,
        )
        for o in seen.gateways[:_ORIGINS]
    ]
    columns = ("gateway", "last", "in-flight", "prompt tokens", "decided", "injected", "echoed")
    out.print(table(columns, rows))
    if len(seen.gateways) > _ORIGINS:
        out.print(f"and {len(seen.gateways) - _ORIGINS} earlier ones")


def _state(worker: WorkerFacts) -> str:
    return worker.state if worker.reason is None else f"{worker.state}: {worker.reason}"


def _when(epoch: float | None) -> str:
    if epoch is None:
        return "-"
    try:
        return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return f"{epoch:g}"


def _ago(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"
