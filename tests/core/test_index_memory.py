"""The index at its bound does not grow any more: measured in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import prefix_middleware

CHILD = """
import resource
from prefix_middleware.core.index import PrefixIndex

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

index = PrefixIndex(200_000, 5400.0)
index.set_epoch("w1", 1.0)
index.set_epoch("w2", 1.0)
recorded = 0
for until in (300_000, 1_000_000):
    while recorded < until:
        hashes = [(recorded + i).to_bytes(8, "little") for i in range(64)]
        index.record(hashes, "w1" if recorded % 128 else "w2", 1.0, recorded / 1000)
        recorded += 64
    print(resident(), len(index))
"""


def test_memory_stays_flat_behind_the_bound() -> None:
    """From 300,000 to a million distinct blocks the process grows by at most 5 %."""
    package = Path(prefix_middleware.__file__).parents[1]
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=os.environ | {"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    (before, pairs), (after, pairs_after) = (map(int, row.split()) for row in child.stdout.splitlines())
    assert (pairs, pairs_after) == (200_000, 200_000)
    assert after <= before * 1.05
