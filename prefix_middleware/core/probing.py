"""6. Which gateway asks a worker how it is: one of those alive, the same by everybody's reckoning, and the others hear of it.

A gateway that has heard nothing lately, or something that differs from what it knows, asks for itself.
"""

from collections.abc import Collection
from typing import Final

from blake3 import blake3

from prefix_middleware.core.updates import Said

QUIET_POLLS: Final = 2.5
"""After so many poll intervals without news a gateway asks for itself."""


class Probing:
    """What this gateway has heard of each worker, and from when it is."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}

    def hear(self, said: Said, ready: bool | None, at: float) -> bool:
        """Note what the prober said; tell whether it may be believed: news of readiness is looked into instead."""
        if said.ready != ready:
            self._heard.pop(said.worker, None)
            return False
        self._heard[said.worker] = at
        return True

    def asks(self, worker: str, me: str, others: Collection[str], quiet_seconds: float, now: float) -> bool:
        """Tell whether this gateway is to ask the worker now."""
        if not others or prober(worker, {me, *others}) == me:
            return True
        return now - self._heard.get(worker, float("-inf")) > quiet_seconds


def prober(worker: str, origins: Collection[str]) -> str:
    """Return who asks: the highest of random weights, so that a gateway that comes or goes moves few workers."""
    return max(origins, key=lambda origin: blake3(f"{worker} {origin}".encode()).digest(8))
