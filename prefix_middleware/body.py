"""Hold a request body until it is complete or too long, then give the host every message again, unchanged.

1. Behind the replay, `receive` is the server's own: nothing is made up and nothing comes twice.
2. An exception from `receive` is raised again where the host would have met it; a cancellation leaves at once.
3. What is held is counted for the whole process, until the host has it.
"""

from collections import deque
from typing import Final

from starlette.types import Message, Receive, Scope

from prefix_middleware.core.canonical import SkipReason

MAX_MESSAGES: Final = 65_536
MESSAGE_BYTES: Final = 320  # what a held message costs beside its bytes: a body in tiny pieces is mostly that

_PLAIN: Final = (b"", b"identity")


class Buffered:
    """Bytes that this process holds for all requests together."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0


class HeldBody:
    """The body of one request; `skip` says why there is none to read."""

    def __init__(self, receive: Receive, buffered: Buffered, skip: SkipReason | None = None) -> None:
        self.skip = skip
        self.receive: Receive = receive if skip else self._replay
        self._source = receive
        self._buffered = buffered
        self._messages: deque[tuple[Message, int]] = deque()  # with what each counts for
        self._failure: Exception | None = None

    def data(self) -> bytes:
        """Return the complete body."""
        return b"".join(_body_of(message) for message, _ in self._messages)

    def release(self) -> None:
        """Let go of what the host has not asked for."""
        while self._messages:
            self._next()

    async def hold(self, max_bytes: int) -> None:
        """Receive until the body is complete, too long or broken off."""
        size, more = 0, True
        while more:
            try:
                message = await self._source()
            except Exception as failure:
                self._failure, self.skip = failure, "unparsable"
                return
            length = len(_body_of(message))
            held = length + MESSAGE_BYTES
            self._messages.append((message, held))
            self._buffered.held_bytes += held
            if message.get("type") != "http.request":
                self.skip = "unparsable"  # the client has left
                return
            size += length
            full = self._buffered.held_bytes > self._buffered.limit_bytes
            if size > max_bytes or full or len(self._messages) > MAX_MESSAGES:
                self.skip = "too_large"
                return
            more = message.get("more_body", False)

    async def _replay(self) -> Message:
        if self._messages:
            return self._next()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return await self._source()

    def _next(self) -> Message:
        message, held = self._messages.popleft()
        self._buffered.held_bytes -= held
        return message


def _body_of(message: Message) -> bytes | bytearray:
    """Return the bytes of a message; a server may leave them out, or give None."""
    body = message.get("body")
    return body if isinstance(body, bytes | bytearray) else b""


async def hold_body(scope: Scope, receive: Receive, max_bytes: int, buffered: Buffered) -> HeldBody:
    """Receive a body if it can be read at all; the caller releases it."""
    skip = _declined(scope, max_bytes)
    body = HeldBody(receive, buffered, skip)
    if skip is None:
        try:
            await body.hold(max_bytes)
        except BaseException:
            body.release()
            raise
    return body


def _declined(scope: Scope, max_bytes: int) -> SkipReason | None:
    for name, value in scope.get("headers", ()):
        lowered = name.lower()
        if lowered == b"content-encoding" and value.strip().lower() not in _PLAIN:
            return "encoded"
        if lowered == b"content-length" and value.isdigit() and (len(value) > 18 or int(value) > max_bytes):
            return "too_large"
    return None
