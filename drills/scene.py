"""The course that most drills take: calm, a fault under traffic, its end, agreement, and what is left in flight."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from drills.agreement import agree_seconds, left_in_flight
from drills.rig import Rig
from drills.traffic import Traffic, traffic
from drills.verdict import Figures, Scale


@dataclass
class Scene:
    """What a fault may touch, and where it leaves what it has seen."""

    rig: Rig
    traffic: Traffic
    scale: Scale
    notes: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def expect(self, holds: object, otherwise: str) -> None:
        """Note what was expected and did not come."""
        if not holds:
            self.broken.append(otherwise)


def play(
    rig: Rig,
    scale: Scale,
    fault: Callable[[Scene], None],
    *,
    after: Callable[[Scene], None] = lambda _scene: None,
    retry: bool = False,
) -> Figures:
    """Run `fault` under traffic; it returns when what it broke is mended. `after` runs once the gateways agree."""
    with traffic(rig.gateways, scale, retry=retry) as clients:
        scene = Scene(rig, clients, scale)
        fault(scene)
        agree = agree_seconds(rig, time.monotonic())
        after(scene)
    in_flight, tokens = left_in_flight(rig)
    scene.expect(tokens == 0, f"{tokens} tokens are still counted")
    counts, (calm, added, longest_at) = clients.counts(), clients.latency()
    scene.expect(counts["good"] > 0, "no request was answered")
    return Figures(
        sent=len(clients.samples),
        failed=counts["failed"],
        cut=counts["cut"],
        relayed=counts["relayed"],
        retried=counts["retried"],
        calm_ms=calm,
        added_ms=added,
        longest_at_seconds=longest_at,
        agree_seconds=agree,
        in_flight=in_flight,
        notes=tuple(scene.notes),
        broken=(*scene.broken, *clients.failures()),
    )
