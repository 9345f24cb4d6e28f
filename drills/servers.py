"""One port, four processes: uvicorn's own workers, and gunicorn with the application loaded before the fork."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from drills.agreement import agreed, seats
from drills.rig import START_SECONDS, Rig, rig, wait_until
from drills.scene import Scene, play
from drills.verdict import Drill, Figures, Limits, Scale
from prefix_middleware.demo.processes import StartError, free_port

PROCESSES: Final = 4
_RECYCLED: Final = 3  # processes, at least
_UVICORN: Final = (
    "-m", "uvicorn", "drills.gateway:app", "--workers", str(PROCESSES), "--no-access-log",
    "--timeout-keep-alive", "600", "--timeout-worker-healthcheck", "15",
)  # fmt: skip
_GUNICORN: Final = (
    "-m", "gunicorn", "drills.gateway:app", "--preload", "-w", str(PROCESSES),
    "-k", "uvicorn.workers.UvicornWorker", "--keep-alive", "600", "--graceful-timeout", "10",
)  # fmt: skip
_RECYCLES: Final = ("--max-requests", "150", "--max-requests-jitter", "150")
"""Not all at once, and long after the questions that find out whether they agree."""


def _pids(it: Rig) -> set[int]:
    with seats(it) as all_seats:
        return {seat.pid for seat in all_seats}


def _has_another(it: Rig, before: set[int]) -> bool:
    try:
        return len(_pids(it) - before) == 1
    except StartError:
        return False  # it has not started yet


def _one_killed(scene: Scene) -> None:
    """SIGKILL to one of the four; the server starts another."""
    before = _pids(scene.rig)
    victim = min(before)
    at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    scene.traffic.died(victim, at)
    time.sleep(scene.scale.fault_seconds)
    wait_until(lambda: _has_another(scene.rig, before), "another process started", START_SECONDS)


def _recycled(scene: Scene) -> None:
    """The server replaces its processes one by one, as each has answered enough."""
    seen = {sample.answer.pid for sample in scene.traffic.samples}

    def fresh() -> set[int]:
        return {sample.answer.pid for sample in scene.traffic.samples} - seen - {0}

    wait_until(lambda: len(fresh()) >= _RECYCLED, f"{_RECYCLED} processes replaced", 120)
    scene.notes.append(f"{len(fresh())} processes replaced")
    scene.traffic.stop()  # it would go on replacing the processes that have to agree


def _origins(scene: Scene) -> None:
    """Each process that lives has decided under an origin of its own."""
    with seats(scene.rig) as all_seats:
        agreed(all_seats, 0.2)  # so that each has decided something
        pids = {seat.pid for seat in all_seats}
        seen = scene.rig.fleet_seen()["gateways"]
    found = [int(gateway["origin"].split("-")[-2]) for gateway in seen]
    own = [pid for pid in found if pid in pids]
    scene.notes.append(f"{len(set(own))} processes, {len(own)} origins")
    scene.expect(sorted(own) == sorted(pids), f"origins of {sorted(own)}, processes {sorted(pids)}")


def _play(scale: Scale, fault: Callable[[Scene], None], command: tuple[str, ...], bind: str) -> Figures:
    with rig(gateways=0) as it:
        port = free_port()
        it.start_server("server", [*command, bind, _address(bind, port)], port, PROCESSES).wait_ready(
            START_SECONDS
        )
        wait_until(
            lambda: it.log("server").count("mirror: connected") >= PROCESSES,
            "all processes up",
            START_SECONDS,
        )
        return play(it, scale, fault, after=_origins, retry=True)


def _address(option: str, port: int) -> str:
    return str(port) if option == "--port" else f"127.0.0.1:{port}"


_LIMITS: Final = Limits(
    retries=True, agree_seconds=30, added_ms=10_000
)  # processes start beside those that serve

DRILLS: Final = (
    Drill(
        name="uvicorn-workers-4",
        play=partial(_play, fault=_one_killed, command=_UVICORN, bind="--port"),
        limits=_LIMITS,
    ),
    Drill(
        name="gunicorn-preload-killed",
        play=partial(_play, fault=_one_killed, command=_GUNICORN, bind="--bind"),
        limits=_LIMITS,
    ),
    Drill(
        name="gunicorn-preload-recycled",
        play=partial(_play, fault=_recycled, command=(*_GUNICORN, *_RECYCLES), bind="--bind"),
        limits=_LIMITS,
    ),
)
