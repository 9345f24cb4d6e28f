"""6. One routed request as the router counts it, and the record of it that others get."""

from dataclasses import dataclass
from typing import TypeVar

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.capacity import Stamp
from prefix_middleware.core.choose import Decision
from prefix_middleware.core.updates import HASH_BYTES, Record

R = TypeVar("R", bound=Record)


@dataclass(slots=True, eq=False)
class Reservation:
    """One routed request: counted in on a worker and noted as held there, until finished."""

    number: int
    worker: str
    epoch: float
    generation: int
    prompt: HashedPrompt
    matched_tokens: int  # found in the index, before the worker's credit
    uncached_tokens: int
    decision: Decision
    waiting: bool = True  # for the first byte
    finished: bool = False
    published: bool = False  # others have heard of it as provisional
    answered: bool = False  # its outcome has been counted
    stamp: Stamp | None = None  # of its record, once the answer has started

    @property
    def blocks(self) -> tuple[bytes, ...]:
        """What the worker holds once the answer has started: the block hashes and the mark of the prompt's end."""
        return (*self.prompt.hashes, self.prompt.end)

    def record(self, kind: type[R], epoch: float) -> R:
        """Return the fact for others."""
        prompt = self.prompt
        figures = prompt.tokens, self.matched_tokens, self.uncached_tokens, prompt.text_bytes
        return kind(self.number, self.worker, epoch, b"".join(prompt.hashes), prompt.end, *figures)


def recorded_blocks(record: Record) -> list[bytes]:
    """Return what `Reservation.blocks` was where the record was made."""
    hashes = record.hashes
    return [*(hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)), record.end]
