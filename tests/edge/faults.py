"""Drives an application by hand, without an event loop: every await is one step, and anything may happen at any of them.

A `Server` gives and takes the messages of one request, a `Host` is a program of steps; both stop for one step wherever a
real one could wait. The same script without the middleware says what is right.
"""

from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.edge.asgi import LEFT, chunk, read, start

Place = Literal["receive", "send", "host"]
Patience = tuple[type[BaseException], ...]

billing: ContextVar[str] = ContextVar("billing", default="")
"""What the host sets, for middlewares outside of it to read."""


@dataclass(frozen=True)
class Fault:
    """What ends the wait number `nth` (from 1) at a place."""

    place: Place
    nth: int
    failure: BaseException


class _Pause:
    def __await__(self) -> Generator[None, None, None]:
        yield


class Server:
    """The server's side of one request: the scripted messages, then disconnects; keeps what is sent."""

    def __init__(self, script: Sequence[Message], fault: Fault | None = None) -> None:
        self.sent: list[Message] = []
        self.reached: Counter[str] = Counter()
        self._script = deque(script)
        self._fault = fault

    async def receive(self) -> Message:
        """Be the server's `receive`."""
        await self.at("receive")
        return self._script.popleft() if self._script else LEFT

    async def send(self, message: Message) -> None:
        """Be the server's `send`."""
        self.sent.append(message)
        await self.at("send")

    async def at(self, place: Place) -> None:
        """Wait for one step, and meet what the script has for this place."""
        self.reached[place] += 1
        await _Pause()
        fault = self._fault
        if fault is not None and (fault.place, fault.nth) == (place, self.reached[place]):
            raise fault.failure


@dataclass(frozen=True)
class Step:
    """One thing that a host does: receive, send a message, wait for something of its own, raise."""

    do: Literal["receive", "send", "wait", "raise"]
    message: Message = field(default_factory=dict)
    failure: BaseException | None = None


class Host:
    """An application that takes these steps and goes on after failures that it is patient with."""

    def __init__(self, server: Server, steps: Sequence[Step], patience: Patience = ()) -> None:
        self.seen: list[object] = []
        self._server, self._steps, self._patience = server, steps, patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append("called")
        billing.set("inner")
        for step in self._steps:
            try:
                await self._take(step, receive, send)
            except self._patience as failure:
                self.seen.append(id(failure))

    async def _take(self, step: Step, receive: Receive, send: Send) -> None:
        if step.do == "receive":
            self.seen.append(id(await receive()))
        elif step.do == "send":
            await send(step.message)
        elif step.do == "wait":
            await self._server.at("host")
        elif step.failure is not None:
            raise step.failure


class Call:
    """One app call, moved on step by step."""

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        self._steps: Generator[Any, Any, None] = app(scope, receive, send).__await__()
        self.taken = 0
        self.over = False
        self.left: BaseException | None = None

    def move(self, meets: BaseException | None = None) -> None:
        """Go on to the next wait, or let this one end with an exception."""
        self._go(lambda: self._steps.send(None) if meets is None else self._steps.throw(meets))

    def abandon(self) -> None:
        """Be forgotten by whoever was driving."""
        self._go(self._steps.close)
        self.over = True

    def finish(self) -> "Call":
        """Go on to the end."""
        while not self.over:
            self.move()
        return self

    def _go(self, step: Callable[[], None]) -> None:
        try:
            step()
            self.taken += 1
        except StopIteration:
            self.over = True
        except BaseException as left:
            self.over, self.left = True, left


@dataclass(frozen=True)
class Outcome:
    """All that the server, the host and whoever is outside can tell of one call."""

    sent: list[int]
    seen: list[object]
    left: BaseException | None
    chain: tuple[BaseException | None, BaseException | None, bool] | None
    billing: str
    waits: dict[str, int]
    own_waits: int  # steps that are neither the server's nor the host's


@dataclass(frozen=True)
class Script:
    """One request, one host, and at most one fault."""

    incoming: Sequence[Message]
    steps: Sequence[Step]
    patience: Patience = ()
    fault: Fault | None = None

    def begin(self, app: ASGIApp, scope: Scope) -> tuple[Server, Host, Call]:
        """Make a call of `app` that has not begun; `app` leads to `scripted_host`."""
        server = Server(self.incoming, self.fault)
        host = Host(server, self.steps, self.patience)
        scope["host"] = host
        return server, host, Call(app, scope, server.receive, server.send)

    def run(self, app: ASGIApp, scope: Scope) -> Outcome:
        """Play it to its end."""
        billing.set("outer")
        server, host, call = self.begin(app, scope)
        left = call.finish().left
        chain = None if left is None else (left.__cause__, left.__context__, left.__suppress_context__)
        waits = {place: server.reached[place] for place in ("send", "host")}
        own_waits = call.taken - sum(server.reached.values())
        sent = [id(message) for message in server.sent]
        if left is not None:  # it will be raised again, without us
            left.__cause__ = left.__context__ = left.__traceback__ = None
            left.__suppress_context__ = False
        return Outcome(sent, host.seen, left, chain, billing.get(), waits, own_waits)


async def scripted_host(scope: Scope, receive: Receive, send: Send) -> None:
    """Be the host that the script has put into the scope."""
    await scope["host"](scope, receive, send)


class Recorder:
    """A host that keeps the messages it is given, and answers with one event."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.messages = await read(receive)
        await send(start())
        await send(chunk(b"data: x\n\n", more=False))

    @property
    def body(self) -> bytes:
        """The bytes of the last request."""
        return b"".join(message.get("body", b"") for message in self.messages)


def post(app: ASGIApp, scope: Scope, incoming: Sequence[Message]) -> Call:
    """Make one request to its end, without an event loop."""
    server = Server(incoming)
    return Call(app, scope, server.receive, server.send).finish()
