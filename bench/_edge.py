"""What the one line adds to a bare Starlette endpoint: both applications driven by hand in this process.

The endpoint reads `request.json()` and answers with JSON. The event loop goes round after each request, so that what the
middleware does in the background for it is on the bill too. Logging is what Starlette finds without set-up: INFO lines
are dropped; `logged=True` lets our own handler write each line, to nowhere.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, redirect_stderr
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Scope

from bench._bodies import KB, conversations
from bench._measure import Scale, Side, Skipped, paired_ratio
from bench._servers import healthy_worker
from prefix_middleware import PrefixMiddleware, Settings, Worker

PATH: Final = "/v1/chat/completions"
WORKERS: Final = 8
_READY_SECONDS: Final = 5.0
_LOGGER: Final = logging.getLogger("prefix_middleware")


async def _endpoint(request: Request) -> JSONResponse:
    body = await request.json()
    return JSONResponse({"object": "chat.completion", "model": body["model"], "choices": []})


def settings_for(port: int, **options: Any) -> Settings:
    """Return settings with eight workers that all answer on one port and are polled once."""
    workers = tuple(Worker(f"w{number}", f"http://127.0.0.1:{port}") for number in range(WORKERS))
    return Settings(workers=workers, health_seconds=300, **options)


async def ask(app: ASGIApp, body: bytes) -> dict[str, Any]:
    """Make one request to its end and return its scope."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    headers = [
        (b"host", b"gateway"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": PATH,
        "raw_path": PATH.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        assert message.get("status", 200) == 200

    await app(scope, receive, send)
    return scope


async def until_ready(app: ASGIApp, body: bytes) -> None:
    """Ask until every worker has been polled and requests are routed."""
    deadline = asyncio.get_running_loop().time() + _READY_SECONDS
    while True:
        decision = (await ask(app, body)).get("prefix_middleware")
        if decision is not None and decision.worker is not None and decision.reason != "only":
            return
        if asyncio.get_running_loop().time() > deadline:
            raise Skipped("no worker became ready")
        await asyncio.sleep(0.01)


async def _ask_all(app: ASGIApp, bodies: list[bytes]) -> None:
    for body in bodies:
        await ask(app, body)
        await asyncio.sleep(0)


@contextmanager
def silent_log() -> Iterator[None]:
    """Keep our lines off this screen, and undo what the setting `log` does to the logger."""
    silent = logging.NullHandler()
    _LOGGER.addHandler(silent)
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        try:
            yield
        finally:
            _LOGGER.handlers.clear()
            _LOGGER.setLevel(logging.NOTSET)
            _LOGGER.propagate = True


@asynccontextmanager
async def _lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Start an application as a server does, and shut it down."""
    events: asyncio.Queue[Message] = asyncio.Queue()
    answers: asyncio.Queue[Message] = asyncio.Queue()
    scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}

    async def run() -> None:
        await app(scope, events.get, answers.put)

    task = asyncio.create_task(run())
    await events.put({"type": "lifespan.startup"})
    assert (await answers.get())["type"] == "lifespan.startup.complete"
    try:
        yield
    finally:
        await events.put({"type": "lifespan.shutdown"})
        await task


def added_over_endpoint(scale: Scale, *, logged: bool) -> float:
    """Return the CPU time that the middleware adds to a request with 1 KB, over the bare endpoint's own."""
    bodies = [chat.body for chat in conversations(KB, scale.bodies * 2)]
    bare = Starlette(routes=[Route(PATH, _endpoint, methods=["POST"])])
    line = Starlette(routes=[Route(PATH, _endpoint, methods=["POST"])])
    with silent_log(), asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            port = runner.run(stack.enter_async_context(healthy_worker()))
            settings = settings_for(port, log="line" if logged else "host")
            line.add_middleware(PrefixMiddleware, settings=settings)
            runner.run(stack.enter_async_context(_lifespan(line)))
            runner.run(until_ready(line, bodies[0]))
            with_line = Side(lambda: runner.run(_ask_all(line, bodies)), len(bodies))
            without = Side(lambda: runner.run(_ask_all(bare, bodies)), len(bodies))
            return paired_ratio(with_line, without, scale.rounds) - 1
        finally:
            runner.run(stack.aclose())
