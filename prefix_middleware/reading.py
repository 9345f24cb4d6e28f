"""Reads large bodies in slices of the event loop's time, so that the streams beside them go on.

Slices, not a thread: decoding in C keeps the interpreter's lock, and a thread that hashes holds it for 5 ms at a time.
"""

import time
from collections.abc import Iterator
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from prefix_middleware.core.canonical import CanonicalPrompt, Skip

LARGE_BYTES: Final = 64 * 1024
"""Bodies up to this size are read at once: it takes some tenths of a millisecond."""
SLICE_SECONDS: Final = 0.0005
"""How long a turn lasts, but for the step that it ends with."""

_ROUNDS: Final = 3
"""Rounds of the event loop between two turns: a socket is read in the first, which wakes a task in the second, before us in
the third."""


class Reading:
    """One large body at a time: the slices of many would add up to everybody's wait."""

    def __init__(self) -> None:
        self._turn = anyio.Lock()

    @property
    def busy(self) -> bool:
        """Whether a body is being read."""
        return self._turn.locked()

    async def read(self, steps: Iterator[CanonicalPrompt | Skip | None]) -> CanonicalPrompt | Skip:
        """Go through the steps of `prompt_steps`, and return what they end with."""
        async with self._turn:
            began = time.perf_counter()
            for prompt in steps:
                if prompt is not None:
                    return prompt
                if time.perf_counter() - began >= SLICE_SECONDS:
                    for _ in range(_ROUNDS):
                        await checkpoint()
                    began = time.perf_counter()
        return Skip("error")
