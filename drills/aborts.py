"""Many clients leave before or in the middle of their answers: nothing may stay counted, and nobody else may notice."""

import re
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Final

import httpx

from drills.agreement import seats
from drills.rig import WORKER_IDS, Rig, rig, wait_until
from drills.scene import Scene, play
from drills.storm import storm
from drills.verdict import Drill, Figures, Limits, Scale

_STAYING_CLIENTS: Final = 2
_REQUESTS: Final = re.compile(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)", re.MULTILINE)


def _stormed(scene: Scene, counts: Counter[str]) -> None:
    """Let the clients leave, half at each gateway, while some stay."""
    it = scene.rig
    each = scene.scale.aborts // len(it.gateways)
    aborts = each * len(it.gateways)
    before, began = _rss(it), time.monotonic()
    with get_context("spawn").Pool(len(it.gateways)) as pool:  # leaving the block ends its processes
        for found in pool.starmap(storm, [(port, each) for port in it.gateways]):
            counts.update(found)
    scene.expect(counts.total() == aborts, f"only {counts.total()} of {aborts} aborts in time")
    rate = counts.total() / (time.monotonic() - began)
    scene.notes.append(", ".join(f"{n} {kind}" for kind, n in counts.items()) + f", {rate:.0f}/s")
    scene.notes.append("rss " + ", ".join(f"{a} -> {b} MiB" for a, b in zip(before, _rss(it), strict=True)))


def _rss(it: Rig) -> list[int]:
    """Return each gateway's resident memory in MiB."""
    with seats(it) as all_seats:
        return [seat.facts()["rss_kib"] // 1024 for seat in all_seats]


def _idle(it: Rig) -> bool:
    """Tell whether no engine has a request left: an abort must free the GPU, too."""
    texts = [httpx.get(f"http://127.0.0.1:{it.ports[w]}/metrics", trust_env=False).text for w in WORKER_IDS]
    return not any(float(count) for text in texts for count in _REQUESTS.findall(text))


def _play(scale: Scale) -> Figures:
    counts: Counter[str] = Counter()
    with rig(worker=["drills.streamer"]) as it:
        few = replace(scale, clients=_STAYING_CLIENTS)
        figures = play(it, few, partial(_stormed, counts=counts))
        wait_until(lambda: _idle(it), "idle engines")
        seen = sum(gateway["in_flight"] for gateway in it.fleet_seen()["gateways"])
    broken = (f"the mirror still shows {seen} in flight",) if seen else ()
    return replace(
        figures,
        sent=figures.sent + counts.total(),
        failed=figures.failed + counts["failed"],
        broken=(*figures.broken, *broken),
    )


DRILLS: Final = (Drill(name="client-aborts", play=_play, limits=Limits(added_ms=5000)),)
