"""What one gateway tells the others: small, frozen facts, each of which may arrive twice or late.

Nothing here is an increment. A record is named by (origin, record); a gauge is an absolute figure.
"""

from typing import Final

from msgspec import Struct

from prefix_middleware.core.facts import Facts

HASH_BYTES: Final = 8
"""Length of one block hash in `hashes` and of an end mark."""


class Record(Struct, frozen=True, array_like=True):
    """A prompt noted as held by a worker; `hashes` is the concatenation of its block hashes, first block first."""

    record: int  # unique within its origin
    worker: str
    epoch: float  # of the worker when it was chosen
    hashes: bytes  # HASH_BYTES a block
    end: bytes  # mark of the prompt's own end, HASH_BYTES
    prompt_tokens: int
    matched_tokens: int  # found in the index, before the worker's credit
    uncached_tokens: int
    text_bytes: int = 0  # canonical bytes, 0 where media are in the prompt or the sender does not say


class Provisional(Record, frozen=True, array_like=True, tag="p"):
    """Chosen; the answer has not started."""


class Confirmed(Record, frozen=True, array_like=True, tag="c"):
    """The answer has started: the worker holds these blocks."""


class Withdrawn(Struct, frozen=True, array_like=True, tag="w"):
    """The provisional record of this origin with this number never started."""

    record: int


class Notice(Struct, frozen=True, array_like=True, tag="n"):
    """A worker that exports no start time has restarted; counts only while `old` is its current epoch."""

    worker: str
    old: float
    new: float


class Suspect(Struct, frozen=True, array_like=True, tag="s"):
    """A worker answered with errors: no candidate for `seconds`; 0 clears it."""

    worker: str
    epoch: float
    seconds: float


class Said(Struct, frozen=True, array_like=True, tag="f"):
    """What a worker said when the gateway that asks for all did so; without facts where it is not ready."""

    worker: str
    ready: bool
    facts: Facts


Update = Provisional | Confirmed | Withdrawn | Notice | Suspect | Said


class Tally(Struct, frozen=True, array_like=True):
    """What one origin has done since it started: decided, injected by a carrier, echoed by who served."""

    decided: int
    injected: int
    echoed: int


class Gauge(Struct, frozen=True, array_like=True):
    """One origin's own load on one worker, absolute."""

    worker: str
    epoch: float
    in_flight: int
    backlog_tokens: int
    prompt_tokens: int
