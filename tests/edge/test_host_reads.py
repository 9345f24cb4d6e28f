"""How hosts read a body: in every way, and with limits of their own, all goes as it would without the middleware."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prefix_middleware import PrefixMiddleware
from prefix_middleware.body import MESSAGE_BYTES
from tests.edge.asgi import (
    CHAT,
    Client,
    assert_nothing_left,
    chat,
    http_scope,
    mounted,
    pieces,
    sent_headers,
    settings_for,
    skips_of,
)

pytestmark = pytest.mark.anyio

BODY, LONG = chat("read me"), chat("x" * 2000)
Read = Callable[[Request], Awaitable[object]]


async def streamed(request: Request) -> object:
    return b"".join([part async for part in request.stream()])


READS: Mapping[str, Read] = {
    "body": lambda request: request.body(),
    "json": lambda request: request.json(),
    "stream": streamed,
    "disconnected": lambda request: request.is_disconnected(),
}
ORDERS: Sequence[Sequence[str]] = (
    ("body",),
    ("json", "body", "stream"),
    ("stream",),
    ("stream", "body"),
    ("stream", "stream"),
    ("body", "disconnected"),
    (),
)


async def outcomes(request: Request, order: Sequence[str]) -> list[str]:
    """Return what each way of reading gives, or the exception that it raises."""
    seen = []
    for name in order:
        try:
            seen.append(repr(await READS[name](request)))
        except (RuntimeError, ValueError) as failure:
            seen.append(repr(failure))
    return seen


async def play(app: ASGIApp, client: Client | None = None, scope: Scope | None = None) -> Client:
    """Make a request; a host that waits for something that never comes fails."""
    client = client or Client(*pieces(BODY, [10, 0]))
    await asyncio.wait_for(app(scope or http_scope(), client.receive, client.send), 20)
    return client


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("before", [(), ("body",), ("stream",)], ids=str)
@pytest.mark.parametrize("after", [(), ("body",), ("stream",)], ids=str)
async def test_reading_in_any_way_and_order_gives_what_it_gives_without_us(
    silent_port: int, order: Sequence[str], before: Sequence[str], after: Sequence[str]
) -> None:
    """An endpoint, and middlewares outside and inside of us that read before it and after it, in all combinations."""
    seen: list[list[str]] = []

    async def reader(request: Request, call_next: RequestResponseEndpoint) -> Response:
        seen.append(await outcomes(request, before))
        response = await call_next(request)
        seen.append(await outcomes(request, after))
        return response

    async def endpoint(request: Request) -> Response:
        seen.append(await outcomes(request, order))
        return PlainTextResponse("ok")

    reading = Middleware(BaseHTTPMiddleware, dispatch=reader)
    ours = Middleware(PrefixMiddleware, settings_for(silent_port))
    route = Route(CHAT, endpoint, methods=["POST"])
    told: list[tuple[list[list[str]], bytes]] = []
    for middlewares in ([reading, reading], [reading, ours, reading]):
        app = Starlette(routes=[route], middleware=middlewares)
        client = await play(app)
        lifespan = Client({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
        await app({"type": "lifespan"}, lifespan.receive, lifespan.send)
        told.append((list(seen), client.answer))
        seen.clear()
    assert told[0] == told[1]
    assert told[0][1] == b"ok"


class Limited:
    """A middleware of the host's, outside of us, that refuses long bodies by an exception from `receive`."""

    def __init__(self, app: ASGIApp, most: int, failure: Exception) -> None:
        self.app, self.most, self.failure = app, most, failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.most:
                raise self.failure
            return message

        await self.app(scope, limited, send)


async def echo(request: Request) -> Response:
    return Response(await request.body())


@pytest.mark.parametrize("most", [0, 500, 1010, 1500, 10_000])
@pytest.mark.parametrize("cap", [1024, 10_000])
async def test_a_limit_of_the_hosts_is_answered_by_the_host(silent_port: int, most: int, cap: int) -> None:
    """A 413 raised while we hold the body, or behind what we hold, is a 413 to the client and no 500."""
    host = Starlette(routes=[Route(CHAT, echo, methods=["POST"])])
    async with mounted(host, settings_for(silent_port, max_body_bytes=cap)) as middleware:
        clients = []
        for app in (host, middleware):
            client = Client(*pieces(LONG, [1000, 20, 300]))
            clients.append(await play(Limited(app, most, HTTPException(413, "too long")), client))
        assert_nothing_left(middleware)
    assert clients[0].sent == clients[1].sent
    assert clients[1].sent[0]["status"] == (413 if most < len(LONG) else 200)


@pytest.mark.parametrize("length", [None, b"9999999999"])
async def test_a_host_that_refuses_unread_is_asked_for_no_more_than_the_cap(
    silent_port: int, length: bytes | None
) -> None:
    """An anonymous upload without end is held to the cap, or not at all where it says its length; the 401 is the host's."""
    sizes: list[int] = []

    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        sizes.append(middleware._runtime.buffered.held_bytes)
        await PlainTextResponse("who are you?", 401)(scope, receive, send)

    endless = Client(*pieces(b"x" * 400_000, [4096] * 90))
    scope = http_scope(headers=[] if length is None else [(b"content-length", length)])
    async with mounted(refusing, settings_for(silent_port, max_body_bytes=65_536)) as middleware:
        await play(middleware, endless, scope)
        assert_nothing_left(middleware)
        assert (skips_of(middleware), sent_headers(scope)) == ({"too_large": 1}, [])
    assert (sizes, endless.receives) == (([17 * (4096 + MESSAGE_BYTES)], 17) if length is None else ([0], 0))
    assert endless.sent[0]["status"] == 401


async def test_many_uploads_at_once_hold_no_more_than_the_process_may(silent_port: int) -> None:
    """50 chunked uploads of 1 MB in 4 KB pieces, side by side: the sum held stays under its bound, and all bytes arrive."""
    most_held = 0
    arrived: list[int] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message["more_body"]
        arrived.append(size)

    class Slow(Client):
        async def receive(self) -> Message:
            nonlocal most_held
            most_held = max(most_held, middleware._runtime.buffered.held_bytes)
            await asyncio.sleep(0)
            return await super().receive()

    body, limit = b" " * 1_000_000, 2_000_000
    given = settings_for(silent_port, max_body_bytes=500_000, max_buffered_bytes=limit)
    async with mounted(host, given) as middleware:
        clients = [Slow(*pieces(body, [4096] * 244)) for _ in range(50)]
        await asyncio.gather(*[play(middleware, client) for client in clients])
        assert_nothing_left(middleware)
        assert skips_of(middleware) == {"too_large": 50}
    assert (arrived, limit // 2 < most_held <= limit + 50 * (4096 + MESSAGE_BYTES)) == (
        [len(body)] * 50,
        True,
    )
