"""Faults of workers: only streams that were already being sent may break, and what a cache has lost is not credited."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from drills.agreement import Seat, probes, seats
from drills.client import Answer
from drills.rig import START_SECONDS, WORKER_IDS, Rig, rig, wait_until
from drills.scene import Scene, play
from drills.verdict import ADDED_MS, Drill, Figures, Limits, Scale

VICTIM: Final = WORKER_IDS[0]
_HANG_SECONDS: Final = 4.0  # nginx sends a request again only within 10 s
_MANY_PROBES: Final = 24
_RELAYED: Final = (
    32  # 500s: two that make it suspect, what was in flight, and a trial per exclusion; of each gateway
)


def _killed(scene: Scene) -> None:
    """SIGKILL while streams run; started again after the phase."""
    scene.traffic.died(VICTIM, scene.rig.kill(VICTIM))
    time.sleep(scene.scale.fault_seconds)
    _start_again(scene.rig, VICTIM)


def _start_again(it: Rig, worker: str) -> None:
    """Start a worker and wait until every gateway process has met this incarnation."""
    with seats(it) as all_seats:
        before = [_epoch(seat, worker) for seat in all_seats]
        it.start_worker(worker).wait_ready(START_SECONDS)
        wait_until(
            lambda: all(_is_new(s, worker, e) for s, e in zip(all_seats, before, strict=True)), "restart"
        )


def _epoch(seat: Seat, worker: str) -> float:
    return float(seat.facts()["workers"][worker][1])


def _is_new(seat: Seat, worker: str, before: float) -> bool:
    ready, epoch = seat.facts()["workers"][worker]
    return bool(ready) and epoch != before


def _restarted(scene: Scene) -> None:
    """SIGKILL and a start at once under the same id; then no process may credit what the old one held."""
    it, bodies = scene.rig, probes(_MANY_PROBES)
    with seats(it) as all_seats:
        first = [_at(all_seats, n).ask(body) for n, body in enumerate(bodies)]
    held = [body for body, answer in zip(bodies, first, strict=True) if answer.served == VICTIM]
    scene.expect(held, f"none of {_MANY_PROBES} conversations began on {VICTIM}")
    scene.traffic.died(VICTIM, it.kill(VICTIM))
    _start_again(it, VICTIM)
    with seats(it) as all_seats:
        again = [_at(all_seats, n).ask(body) for n, body in enumerate(held)]
    credited = [answer for answer in again if not answer.blocks.startswith("0/")]
    scene.notes.append(f"{len(held)} conversations of the old cache, {len(credited)} credited")
    scene.expect(not credited, f"{len(credited)} follow-ups are credited to a cache that is gone")


def _at(all_seats: Sequence[Seat], number: int) -> Seat:
    return all_seats[number % len(all_seats)]


def _answering(status: int, scene: Scene) -> None:
    """Errors at once to every prompt, while /health is well: without suspicion it would look the lightest."""
    scene.rig.control(VICTIM, fail=status)
    began = time.monotonic()
    time.sleep(scene.scale.fault_seconds)
    mended = time.monotonic()
    scene.rig.control(VICTIM, fail=None)
    during = [s.answer for s in scene.traffic.begun_since(began) if s.began < mended]
    asked = sum(answer.chosen == VICTIM for answer in during)
    scene.notes.append(f"{asked} of {len(during)} given to {VICTIM} meanwhile")
    seconds = wait_until(lambda: _used_since(scene, mended), f"{VICTIM} in use again", 60)
    scene.notes.append(f"in use again after {seconds:.1f} s")


def _used_since(scene: Scene, at: float) -> bool:
    return any(s.answer.served == VICTIM and s.answer.good for s in scene.traffic.begun_since(at))


def _hanging(scene: Scene) -> None:
    """No first byte, /health well, then SIGKILL: nginx gives what waited to another worker."""
    began = time.monotonic()
    scene.rig.control(VICTIM, hang=True)
    time.sleep(min(_HANG_SECONDS, scene.scale.fault_seconds))
    passed = [s.answer for s in scene.traffic.begun_since(began)]
    scene.expect(any(answer.good for answer in passed), "nobody was answered while one worker hung")
    died = scene.rig.kill(VICTIM)
    scene.traffic.died(VICTIM, died)
    _start_again(scene.rig, VICTIM)
    held = [s.answer for s in scene.traffic.begun_since(began) if _waited_until(s.answer, died)]
    moved = sum(answer.good and answer.served != VICTIM for answer in held)
    scene.notes.append(f"{len(passed)} answered while it hung, {len(held)} waited, {moved} of them moved")


def _waited_until(answer: Answer, at: float) -> bool:
    return answer.began < at < answer.began + (answer.first_seconds or 0.0)


def _rolling(scene: Scene) -> None:
    """All workers one after another, each by SIGTERM, as a deployment does."""
    for worker in WORKER_IDS:
        scene.rig.end(worker)
        _start_again(scene.rig, worker)
        time.sleep(min(1.0, scene.scale.fault_seconds))


def _play(scale: Scale, fault: Callable[[Scene], None]) -> Figures:
    with rig() as it:
        return play(it, scale, fault)


DRILLS: Final = (
    Drill(name="worker-killed", play=partial(_play, fault=_killed)),
    Drill(name="worker-restarted", play=partial(_play, fault=_restarted)),
    Drill(
        name="worker-answers-500",
        play=partial(_play, fault=partial(_answering, 500)),
        limits=Limits(relayed=_RELAYED),
    ),
    Drill(name="worker-answers-503", play=partial(_play, fault=partial(_answering, 503))),
    Drill(
        name="worker-hangs",
        play=partial(_play, fault=_hanging),
        limits=Limits(added_ms=1000 * _HANG_SECONDS + ADDED_MS),
    ),
    Drill(name="workers-rolling", play=partial(_play, fault=_rolling)),
)
