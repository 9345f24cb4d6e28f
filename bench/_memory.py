"""What the index weighs: a process of its own fills it to its bound and half as much again, and looks at its own size."""

import gc
import os
import resource
import secrets
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Final

from bench._measure import Scale, Skipped
from prefix_middleware.core.index import PrefixIndex
from prefix_middleware.core.updates import HASH_BYTES

_BLOCKS: Final = 64
_CHURN: Final = 1.5  # pairs recorded, over the bound: eviction is at work
_STATM: Final = "/proc/self/statm"
_SECONDS: Final = 120.0


def _resident_bytes() -> int:
    gc.collect()
    with open(_STATM) as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def _fill(pairs: int, holders: int, out: Connection) -> None:
    index = PrefixIndex(pairs, 5400.0)
    workers = [f"w{number}" for number in range(holders)]
    for worker in workers:
        index.set_epoch(worker, 1.0)
    before = _resident_bytes()
    for number in range(int(pairs * _CHURN) // (_BLOCKS * holders)):
        hashes = [secrets.token_bytes(HASH_BYTES) for _ in range(_BLOCKS)]
        for worker in workers:
            index.record(hashes, worker, 1.0, float(number))
    out.send((_resident_bytes() - before) / len(index))


def bytes_per_pair(holders: int, scale: Scale) -> float:
    """Return resident bytes per (block, worker) pair, with prompts of 64 blocks that `holders` workers hold."""
    if not os.path.exists(_STATM):
        raise Skipped(f"no {_STATM}")
    ours, theirs = get_context("spawn").Pipe()
    child = get_context("spawn").Process(target=_fill, args=(scale.pairs, holders, theirs))
    child.start()
    theirs.close()
    try:
        if not ours.poll(_SECONDS):
            raise Skipped(f"not filled within {_SECONDS:.0f} s")
        return float(ours.recv())
    finally:
        child.kill()
        child.join()
        ours.close()
