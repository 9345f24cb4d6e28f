"""Faults around the gateways: one is killed, nginx is reloaded under them."""

import signal
import time
from typing import Final

from drills.agreement import Seat, seats
from drills.rig import START_SECONDS, rig, wait_until
from drills.scene import Scene, play
from drills.verdict import Drill, Figures, Limits, Scale

_RELOADS: Final = 5
_EXPIRY_SECONDS: Final = 6.0  # a load lives 3 s from arrival; a second is said again each second


def _killed(scene: Scene) -> None:
    """SIGKILL with requests in flight: the other forgets its load, clients use the other; then it is started again."""
    it = scene.rig
    with seats(it) as both:
        (other,) = (seat for seat in both if seat.pid == it.children["gateway1"].pid)
        wait_until(lambda: _seen_by(other) > 0, "load of the one to be killed seen by the other")
        scene.traffic.died(it.gateways[0], it.kill("gateway0"))
        seconds = wait_until(lambda: _seen_by(other) == 0, "load of a dead gateway forgotten")
        scene.notes.append(f"load forgotten after {seconds:.1f} s")
        scene.expect(seconds <= _EXPIRY_SECONDS, f"load forgotten only after {seconds:.1f} s")
        time.sleep(scene.scale.fault_seconds / 2)
    it.start_gateway(0).wait_ready(START_SECONDS)


def _seen_by(seat: Seat) -> int:
    return int(seat.facts()["others_in_flight"])


def _reloaded(scene: Scene) -> None:
    """SIGHUP to nginx's master, several times, with requests and streams passing."""
    for _ in range(_RELOADS):
        scene.rig.signal("nginx", signal.SIGHUP)
        time.sleep(scene.scale.fault_seconds / _RELOADS)
    scene.notes.append(f"{_RELOADS} reloads")


def _play_killed(scale: Scale) -> Figures:
    with rig() as it:
        return play(it, scale, _killed, retry=True)


def _play_reloaded(scale: Scale) -> Figures:
    with rig() as it:
        return play(it, scale, _reloaded)


DRILLS: Final = (
    Drill(name="gateway-killed", play=_play_killed, limits=Limits(retries=True)),
    Drill(name="nginx-reloaded", play=_play_reloaded),
)
