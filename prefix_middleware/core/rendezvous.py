"""5. Which two workers a prompt belongs to when nothing else speaks: the same two in every gateway, without a message.

Rankings are precomputed per slot of the prompt's hash, so that the cost of a decision does not grow with the fleet.
"""

from collections.abc import Collection, Iterable
from heapq import nsmallest
from typing import Final

from blake3 import blake3

_SLOTS: Final = 1024
_RANKED: Final = 8  # enough that two of them are nearly always candidates


class Rendezvous:
    """Ranks workers by highest random weight (Thaler and Ravishankar, 1998)."""

    def __init__(self, workers: Iterable[str]) -> None:
        self._workers = sorted(workers)
        self._rankings: dict[int, list[str]] = {}

    def pair(self, whole: bytes, among: Collection[str]) -> list[str]:
        """Return the first two of `among` for the prompt with this hash; fewer where there are fewer."""
        slot = int.from_bytes(whole[:4], "little") % _SLOTS
        ranked = self._rankings.get(slot)
        if ranked is None:
            ranked = self._rankings[slot] = _ranked(slot, self._workers, _RANKED)
        pair = [worker for worker in ranked if worker in among][:2]
        return pair if len(pair) == 2 or len(among) <= len(pair) else _ranked(slot, among, 2)


def _ranked(slot: int, workers: Iterable[str], count: int) -> list[str]:
    return nsmallest(count, workers, key=lambda worker: blake3(f"{slot} {worker}".encode()).digest(8))
