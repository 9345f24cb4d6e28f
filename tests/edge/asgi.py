"""Drives an application by hand: what `receive` gives and what `receive` and `send` meet is scripted, nothing is buffered."""

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prefix_middleware import PrefixMiddleware, Settings, Worker
from prefix_middleware.core.router import Router
from tests.services import free_port

CHAT = "/v1/chat/completions"
HEADER = b"x-prefix-worker"
LEFT: Message = {"type": "http.disconnect"}
IDLE = (0, 0, 0)


class Boom(Exception):
    """A failure of the host, the server or the client; compared by identity."""


class Client:
    """The server's side of one request: gives the scripted messages, then blocks until `leave`; keeps what is sent.

    At the point number `at` (each receive, send and call of `point` is one) it raises `meets`, or cancels without one.
    """

    def __init__(self, *script: Message | Exception, at: int = 0, meets: Exception | None = None) -> None:
        self.script = deque(script)
        self.sent: list[Message] = []
        self.receives = 0
        self.points = 0
        self.waiting = asyncio.Event()  # nothing is left to give, and somebody waits
        self._left = asyncio.Event()
        self._at, self._meets = at, meets

    async def receive(self) -> Message:
        """Be the server's `receive`."""
        self.receives += 1
        await self.point()
        if self.script:
            item = self.script.popleft()
            if isinstance(item, Exception):
                raise item
            return item
        self.waiting.set()
        await self._left.wait()
        return LEFT

    async def send(self, message: Message) -> None:
        """Be the server's `send`."""
        self.sent.append(message)
        await self.point()

    async def point(self) -> None:
        """Be a place where the script may end the request."""
        self.points += 1
        if self.points == self._at:
            if self._meets is not None:
                raise self._meets
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    def leave(self) -> None:
        """Close the connection."""
        self._left.set()

    @property
    def answer(self) -> bytes:
        """Bytes of the answer so far."""
        return b"".join(message.get("body", b"") for message in self.sent)


def http_scope(
    path: str = CHAT, method: str = "POST", headers: Iterable[tuple[bytes, bytes]] = (), **fields: Any
) -> Scope:
    """Return the scope of one request as uvicorn makes it."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
    }
    place = {"scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b""}
    return {
        **scope,
        **place,
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        **fields,
    }


def chat(text: str = "hello", **fields: Any) -> bytes:
    """Return the body of a chat request with one user message."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


def pieces(body: bytes, sizes: Iterable[int] = ()) -> list[Message]:
    """Cut a body into messages of these sizes; the rest is the last one."""
    messages: list[Message] = []
    for size in sizes:
        messages.append({"type": "http.request", "body": body[:size], "more_body": True})
        body = body[size:]
    return [*messages, {"type": "http.request", "body": body, "more_body": False}]


def start(status: int = 200) -> Message:
    """Return the first message of an answer."""
    return {"type": "http.response.start", "status": status, "headers": []}


def chunk(body: bytes = b"", *, more: bool = True) -> Message:
    """Return one body message of an answer."""
    return {"type": "http.response.body", "body": body, "more_body": more}


async def read(receive: Receive) -> list[Message]:
    """Receive until a body is complete or the client has left."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    """Be a host that reads the body and answers with one chunk."""
    await read(receive)
    await send(start())
    await send(chunk(b"ok", more=False))


def sent_headers(scope: Scope, name: bytes = HEADER) -> list[bytes]:
    """Return every value that the scope has under the name or a form of it."""
    return [v for n, v in scope.get("headers", ()) if n.lower().replace(b"_", b"-") == name]


def settings_for(port: int, ids: Sequence[str] = ("w1", "w2"), **options: Any) -> Settings:
    """Return settings whose workers all answer on one port, polled only once."""
    workers = tuple(Worker(id=name, url=f"http://127.0.0.1:{port}") for name in ids)
    return Settings(**{"workers": workers, "health_seconds": 300, **options})


def make_ready(middleware: PrefixMiddleware, *ids: str) -> None:
    """Let workers (all, if none is named) count as ready."""
    router = router_of(middleware)
    for name in ids or tuple(router.fleet.states):
        router.set_ready(name, True, 0.0)


@asynccontextmanager
async def mounted(app: ASGIApp, settings: Settings | None) -> AsyncIterator[PrefixMiddleware]:
    """Run an application behind the middleware, all workers ready, and stop the background tasks."""
    middleware = PrefixMiddleware(app, settings)
    make_ready(middleware)
    try:
        yield middleware
    finally:
        await middleware._runtime.stop()


async def ask(middleware: ASGIApp, body: bytes | None = None, scope: Scope | None = None) -> Client:
    """Make one request to its end; return the client with what it got."""
    client = Client(*pieces(chat() if body is None else body))
    await middleware(http_scope() if scope is None else scope, client.receive, client.send)
    return client


def router_of(middleware: PrefixMiddleware) -> Router:
    """Return the state of a mounted middleware."""
    return middleware._runtime.router


def counts_of(middleware: PrefixMiddleware) -> dict[str, int]:
    """Return the counters, zeros left out."""
    return {name: n for name, n in middleware._runtime.telemetry.counts.items() if n}


def skips_of(middleware: PrefixMiddleware) -> dict[str, int]:
    """Return the counted skips by reason."""
    return {
        name.removeprefix("skips."): n
        for name, n in counts_of(middleware).items()
        if name.startswith("skips.")
    }


def loads_of(middleware: PrefixMiddleware) -> dict[str, tuple[int, int, int]]:
    """Return in-flight, backlog and prompt tokens of each worker."""
    states = router_of(middleware).fleet.states.values()
    return {s.id: (s.in_flight, s.backlog_tokens, s.prompt_tokens) for s in states}


def assert_nothing_left(middleware: PrefixMiddleware) -> None:
    """Fail unless every counter of requests is exactly zero and no provisional record is left."""
    loads = loads_of(middleware)
    left = loads, router_of(middleware).index.provisional, middleware._runtime.buffered.held_bytes
    assert left == (dict.fromkeys(loads, IDLE), 0, 0)


async def eventually(condition: Callable[[], object], what: str = "condition", seconds: float = 20.0) -> None:
    """Let the event loop go round until the condition is true; raise TimeoutError when `seconds` have passed."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} not reached within {seconds} s")
        await asyncio.sleep(0.005)


@asynccontextmanager
async def served(app: ASGIApp, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """Serve an application with uvicorn on this event loop, on a free port if none is given; yield its URL."""
    port = port or free_port()
    given = {"log_config": None, "ws": "none", "timeout_graceful_shutdown": 1, **options}
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, **given))
    server.capture_signals = _no_signals  # type: ignore[method-assign] # pytest's stay
    task = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started or task.done(), "uvicorn's start")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


@contextlib.contextmanager
def _no_signals() -> Iterator[None]:
    yield
