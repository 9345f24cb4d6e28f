"""`python -m drills [--quick] [--aborts N] [--list] [NAME ...]`: play drills in turn, one line each (docs/drills.md)."""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import Final

from drills import aborts, gateways, redis, servers, workers
from drills.verdict import FULL, QUICK, Drill, Figures, Scale, complaints, line
from prefix_middleware.demo.processes import StartError

DRILLS: Final[tuple[Drill, ...]] = (
    *redis.DRILLS,
    *workers.DRILLS,
    *gateways.DRILLS,
    *servers.DRILLS,
    *aborts.DRILLS,
)
_WIDTH: Final = max(len(drill.name) for drill in DRILLS)


def played(drill: Drill, scale: Scale) -> Figures:
    """Play one drill; one that cannot be played to its end has failed."""
    try:
        return drill.play(scale)
    except StartError as error:
        return Figures(sent=0, failed=0, broken=(str(error),))


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the drills that are named, or all, and return the exit status: 0, 1 when one has failed, 130 when interrupted."""
    parser = argparse.ArgumentParser(prog="python -m drills", description="Faults on real processes.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a drill, or the beginning of several names")
    parser.add_argument("--quick", action="store_true", help="short phases and few aborts")
    parser.add_argument(
        "--aborts", type=int, metavar="N", help=f"of client-aborts, {FULL.aborts:,} otherwise"
    )
    parser.add_argument("--list", action="store_true", help="only print the names")
    options = parser.parse_args(arguments)
    chosen = [d for d in DRILLS if not options.names or d.name.startswith(tuple(options.names))]
    if not chosen:
        parser.error(f"no such drill; there are {', '.join(drill.name for drill in DRILLS)}")
    if options.list:
        print("\n".join(drill.name for drill in chosen))
        return 0
    scale = QUICK if options.quick else FULL
    if options.aborts:
        scale = replace(scale, aborts=options.aborts)
    before = signal.signal(signal.SIGTERM, _interrupt)  # as on Ctrl-C, every process is ended
    try:
        return _play(chosen, scale)
    except KeyboardInterrupt:
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _play(chosen: Sequence[Drill], scale: Scale) -> int:
    failed = 0
    for drill in chosen:
        began = time.monotonic()
        figures = played(drill, scale)
        failed += bool(complaints(figures, drill.limits))
        print(line(drill, figures, _WIDTH), f" [{time.monotonic() - began:.0f} s]", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
