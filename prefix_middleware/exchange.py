"""One request of ours from choice to end: the header, the host's view of the decision, and the answer as it passes.

1. `start` is the first non-empty body chunk under a 2xx; `finish` is the last body message or the end of the app call.
2. Nothing here delays, holds or changes a message, and nothing of ours is raised.
3. A request that is not routed has an exchange too, which only takes the header off.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from prefix_middleware.carry.check import CarryCheck
from prefix_middleware.carry.context import carrying
from prefix_middleware.clock import Clock
from prefix_middleware.core.choose import Decision
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.router import Router
from prefix_middleware.telemetry import Telemetry

SCOPE_KEY: Final = "prefix_middleware"
_BODY_TYPES: Final = ("http.response.body", "http.response.pathsend", "http.response.zerocopysend")


def take_header_off(scope: Scope, header: bytes) -> None:
    """Remove every copy that a client has sent, the form with underscores included (nginx may be told to read it)."""
    headers = scope.get("headers", ())
    if not isinstance(headers, list | tuple):  # ASGI allows any iterable, also one that can be read only once
        headers = scope["headers"] = list(headers)
    kept = [pair for pair in headers if pair[0].lower().replace(b"_", b"-") != header]
    if len(kept) != len(headers):
        scope["headers"] = kept  # on the same scope: a copy would hide the route from outer middlewares


class Exchange:
    """A request that is not routed; the base of one that is."""

    worker: str | None = None
    alive = True
    ends_with_response = False

    def __init__(self, decision: Decision | None = None) -> None:
        self.decision = decision

    def mark(self, scope: Scope, header: bytes) -> None:
        """Set the header for hosts that forward inbound ones, and leave the decision for the host's own use."""
        scope[SCOPE_KEY] = self.decision
        if self.worker is not None:
            scope["headers"] = [*scope.get("headers", ()), (header, self.worker.encode())]

    def listen(self, receive: Receive) -> Receive:
        """Return a `receive` that notes when the client leaves."""
        return receive

    def watch(self, send: Send) -> Send:
        """Return a `send` that notes how the answer goes."""
        return send

    @contextmanager
    def open(self) -> Iterator[None]:
        """Be the running code's exchange until the app call ends, however it ends."""
        with carrying(self):
            try:
                yield
            except Exception:
                self._raised()
                raise
            finally:
                self.finish()

    def injected(self) -> None:
        """A carrier has put the header on an outgoing request."""

    def served(self, worker: str | None, status: int) -> None:
        """A hop has answered."""

    def lost(self) -> None:
        """A hop has not answered: the host goes on."""

    def closed(self) -> None:
        """A hop's response is closed: the host goes on."""

    def collected(self) -> None:
        """A hop's response was garbage: the host goes on."""

    def finish(self) -> None:
        """Count the request out."""
        self.alive = False

    def _raised(self) -> None:
        """The host has raised."""


class RoutedExchange(Exchange):
    """A request that has a worker."""

    def __init__(
        self,
        reservation: Reservation,
        worker: str | None,  # None: decided only (shadow)
        router: Router,
        telemetry: Telemetry,
        clock: Clock,
        *,
        carried: bool,
        check: CarryCheck | None = None,
    ) -> None:
        super().__init__(reservation.decision)
        self.worker = worker
        self._reservation = reservation
        self._router = router
        self._telemetry = telemetry
        self._clock = clock
        self._carried = carried  # a carrier sees the hop's own status; the host's may be about something else
        self._check = check
        self._client_left = False
        self._status = 0
        self._streams = False  # server-sent events
        self._generated_tokens = 0

    def listen(self, receive: Receive) -> Receive:
        """Return a `receive` that notes when the client leaves: what the host then raises or answers is no news of a worker."""
        if self._carried:
            return receive

        async def listened_receive() -> Message:
            message = await receive()
            self._client_left = self._client_left or message.get("type") == "http.disconnect"
            return message

        return listened_receive

    def watch(self, send: Send) -> Send:
        """Return a `send` that notes the first and the last chunk as they pass."""

        async def watched_send(message: Message) -> None:
            self.note(message)
            await send(message)

        return watched_send

    def note(self, message: Message) -> None:
        """Note one message of the answer."""
        with self._telemetry.guarded():
            self._note(message)

    def start(self) -> None:
        """The answer has begun."""
        with self._telemetry.guarded():
            self._router.start(self._reservation, self._clock())

    def _note(self, message: Message) -> None:
        kind = message.get("type")
        if kind == "http.response.start":
            self._status = message.get("status", 0)
            self._streams = _is_event_stream(message)
            if not self._carried and not (self._client_left and self._status >= 500):
                self._outcome(self._status)
        elif kind in _BODY_TYPES:
            if self._reservation.waiting and 200 <= self._status < 300 and _carries_bytes(message):
                self._router.start(self._reservation, self._clock())
            self._generated_tokens += _tokens(message.get("body") or b"", self._streams)
            if not message.get("more_body", False):
                self._router.finish(self._reservation, self._generated_tokens)

    def injected(self) -> None:
        """Count that the header has left the host."""
        self._telemetry.count("injections")

    def served(self, worker: str | None, status: int) -> None:
        """Move the record to whoever served, and count the outcome there."""
        with self._telemetry.guarded():
            if worker is not None:
                self._telemetry.count("echoes")
                chosen = self._reservation.worker
                if worker == chosen:
                    self._telemetry.count("echoes.chosen")
                self._say_suspect(chosen, self._router.move(self._reservation, worker, self._clock()))
            self._outcome(status)

    def finish(self) -> None:
        """Count the request out; a record that never started is withdrawn."""
        first, self.alive = self.alive, False
        with self._telemetry.guarded():
            self._router.finish(self._reservation, self._generated_tokens)
            if first and self._check is not None and not self._reservation.waiting:
                self._check.over()

    def _raised(self) -> None:
        if not self._carried and not self._client_left:
            with self._telemetry.guarded():
                self._outcome(None)

    def _outcome(self, status: int | None) -> None:
        worker = self._reservation.worker
        self._say_suspect(worker, self._router.outcome(self._reservation, status, self._clock()))

    def _say_suspect(self, worker: str, seconds: float) -> None:
        if seconds:
            message = f"worker {worker} is suspect: it failed twice in a row; left alone for {seconds:.0f} s"
            self._telemetry.state("worker_suspect", message, bad=True, worker=worker, seconds=seconds)


def _carries_bytes(message: Message) -> bool:
    return message["type"] != "http.response.body" or bool(message.get("body"))


def _tokens(body: bytes | memoryview, streams: bool) -> int:
    """Estimate generated tokens: one an event of a stream, else four bytes each."""
    if not streams:
        return len(body) // 4
    return (bytes(body) if isinstance(body, memoryview) else body).count(b"data:")


def _is_event_stream(start: Message) -> bool:
    headers = start.get("headers", ())
    return any(n.lower() == b"content-type" and v.startswith(b"text/event-stream") for n, v in headers)
