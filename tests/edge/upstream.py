"""The hop of a host: a real server that keeps who was named, and a host that makes one call to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from prefix_middleware import PrefixMiddleware
from tests.edge.asgi import chunk, mounted, read, served, settings_for, start

EVIL = {"X-Prefix-Worker": "evil"}


class Upstream:
    """The server behind the hop: keeps who was named on each request, answers with a status and who served."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, list[str]]] = []
        self.workers: dict[str, list[str]] = {}  # by the header x-number
        self.served: str | None = None
        self.status = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        named = request.headers.getlist("x-prefix-worker")
        self.seen.append((request.method, request.url.path, named))
        self.workers[request.headers.get("x-number", "")] = named
        headers = {"X-Prefix-Served": self.served} if self.served else None
        await PlainTextResponse("ok", self.status, headers)(scope, receive, send)


class Host:
    """A host that reads the body, makes a call and answers."""

    def __init__(self) -> None:
        self.status = 200
        self.call: Callable[[], Awaitable[object]] = partial(asyncio.sleep, 0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        await self.call()
        await send(start(self.status))
        await send(chunk(b"ok", more=False))


@asynccontextmanager
async def rig(
    port: int, ids: tuple[str, ...] = ("w1",), path: str = "", **options: Any
) -> AsyncIterator[tuple[PrefixMiddleware, Host, Upstream, str]]:
    upstream, host = Upstream(), Host()
    async with (
        served(upstream) as url,
        mounted(host, settings_for(port, ids, **{"upstream_url": url + path, **options})) as middleware,
    ):
        yield middleware, host, upstream, url
