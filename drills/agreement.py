"""Whether gateway processes agree: each is asked for the same conversations, on a connection that leads to it alone."""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from typing import Any, Final

from drills.client import Answer, ask, chat, prose
from drills.rig import Rig
from prefix_middleware.demo.processes import StartError

PROBES: Final = 6
DEADLINE_SECONDS: Final = 40.0
_PROBE_BYTES: Final = 30_000  # a hit is worth more than any difference of load that the traffic makes
_FIRST_SETTLE_SECONDS: Final = 0.05  # for the mirror to carry a round's first turns
_LAST_SETTLE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Seat:
    """A kept connection to one gateway process."""

    pid: int
    connection: HTTPConnection
    met: dict[str, Any]  # its facts when it was met

    def ask(self, body: bytes) -> Answer:
        """Send a prompt to exactly this process."""
        return ask(0, body, self.connection)

    def facts(self) -> dict[str, Any]:
        """Return what the process counts; raises StartError when it does not answer."""
        return _facts(self.connection)


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        """Open the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextmanager
def seats(it: Rig) -> Iterator[list[Seat]]:
    """Connect to every gateway process for the length of a block; raises StartError unless all are there."""
    found = [seat for path in sorted(it.seats.iterdir()) if (seat := _seat(path)) is not None]
    try:
        if len(found) != it.processes:
            raise StartError(f"{len(found)} of {it.processes} gateway processes answer")
        yield found
    finally:
        for seat in found:
            seat.connection.close()


def _seat(path: Path) -> Seat | None:
    """Return a seat at the process that listens there, None where it has gone."""
    connection = _UnixConnection(path)
    try:
        return Seat(int(path.stem), connection, _facts(connection))
    except StartError:
        connection.close()
        return None


def _facts(connection: HTTPConnection) -> dict[str, Any]:
    try:
        connection.request("GET", "/__drill")
        facts: dict[str, Any] = json.loads(connection.getresponse().read())
    except (OSError, HTTPException, ValueError) as error:
        raise StartError(f"no facts: {error!r}") from error
    return facts


def probes(count: int = PROBES) -> list[bytes]:
    """Return new conversations, each a complete body."""
    rng = Random(time.monotonic_ns())
    return [
        chat([{"role": "user", "content": prose(rng, _PROBE_BYTES)}], 1, stream=False) for _ in range(count)
    ]


def agree_seconds(it: Rig, since: float) -> float | None:
    """Return how long after `since` (monotonic) all processes have been seen to agree; None: not in time."""
    settle = _FIRST_SETTLE_SECONDS
    while time.monotonic() - since < DEADLINE_SECONDS:
        try:
            with seats(it) as all_seats:
                if agreed(all_seats, settle):
                    return time.monotonic() - since
        except StartError:
            time.sleep(0.1)  # a process is not back yet
        settle = min(_LAST_SETTLE_SECONDS, settle * 1.5)
    return None


def agreed(all_seats: Sequence[Seat], settle_seconds: float) -> bool:
    """Begin new conversations in turn at each process; every process must then credit who served them, in full."""
    bodies = probes()
    first = [all_seats[number % len(all_seats)].ask(body) for number, body in enumerate(bodies)]
    if not all(answer.good for answer in first):
        return False
    time.sleep(settle_seconds)
    return all(
        _credits(seat.ask(body), was.served)
        for body, was in zip(bodies, first, strict=True)
        for seat in all_seats
    )


def _credits(answer: Answer, worker: str) -> bool:
    matched, _, blocks = answer.blocks.partition("/")
    return answer.good and bool(worker) and answer.chosen == worker and matched == blocks != "0"


def left_in_flight(it: Rig, seconds: float = 20.0) -> tuple[int, int]:
    """Return requests in flight, and tokens counted for them, over all processes; zero as soon as both are."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with seats(it) as all_seats:
                facts = [seat.met for seat in all_seats]
        except StartError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
            continue
        requests = sum(fact["in_flight"] for fact in facts)
        tokens = sum(abs(fact["backlog_tokens"]) + abs(fact["prompt_tokens"]) for fact in facts)
        if not (requests or tokens) or time.monotonic() > deadline:
            return requests, tokens
        time.sleep(0.05)
