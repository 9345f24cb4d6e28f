"""Bodies that wait to be asked for (`Expect: 100-continue`), and where auth is mounted: what is uploaded, and when."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.edge.asgi import (
    CHAT,
    answering,
    assert_nothing_left,
    chat,
    chunk,
    mounted,
    read,
    served,
    settings_for,
    skips_of,
    start,
)

pytestmark = pytest.mark.anyio

CAP = 4096
BODIES: Mapping[str, bytes] = {"short": chat("x" * 1000), "over the cap": chat("x" * 2 * CAP)}


class Auth:
    """Auth of the host's: a bad key is refused before anything is read."""

    def __init__(self, app: ASGIApp, *, good: bool) -> None:
        self.app, self.good = app, good

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.good:
            await self.app(scope, receive, send)
            return
        await send({**start(401), "headers": [(b"content-length", b"2")]})
        await send(chunk(b"no", more=False))


@asynccontextmanager
async def connection(app: ASGIApp) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with served(app, lifespan="off") as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        try:
            yield reader, writer
        finally:
            writer.close()
            await writer.wait_closed()


async def heads(app: ASGIApp, body: bytes) -> list[bytes]:
    """Announce a body and send it when asked to; return the status lines that come."""
    async with connection(app) as (reader, writer):
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n"
        )
        writer.write(head.encode())
        lines: list[bytes] = []
        while not lines or b" 100 " in lines[-1]:
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            lines.append(answer.split(b"\r\n")[0])
            if b" 100 " in lines[-1]:
                writer.write(body)
        return lines


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("place", ["outside", "inside"])
@pytest.mark.parametrize("good", [True, False])
async def test_a_body_is_uploaded_only_where_somebody_wants_it(
    silent_port: int, place: str, kind: str, good: bool
) -> None:
    """Behind auth we ask for no refused body; in front of it for one within the cap, never for a longer one; nothing hangs."""
    body = BODIES[kind]
    inner = answering if place == "outside" else Auth(answering, good=good)
    async with mounted(inner, settings_for(silent_port, max_body_bytes=CAP)) as middleware:
        lines = await heads(Auth(middleware, good=good) if place == "outside" else middleware, body)
        assert_nothing_left(middleware)
    asked = good or (place == "inside" and kind == "short")
    status = b"HTTP/1.1 200 OK" if good else b"HTTP/1.1 401 Unauthorized"
    assert lines == [*([b"HTTP/1.1 100 Continue"] if asked else []), status]


@pytest.mark.parametrize("kind", BODIES)
async def test_a_client_that_never_sends_what_it_announced_is_let_go(silent_port: int, kind: str) -> None:
    """It leaves after the 100: the host sees the disconnect, the request is not routed, nothing is held."""
    heard: list[str] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        heard.extend([message["type"] for message in await read(receive)])

    body, over = BODIES[kind], asyncio.Event()

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await middleware(scope, receive, send)
        finally:
            over.set()

    async with mounted(host, settings_for(silent_port, max_body_bytes=CAP)) as middleware:
        async with connection(told) as (reader, writer):
            head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n"
            writer.write(head.encode())
            await asyncio.wait_for(reader.readuntil(b"100 Continue\r\n\r\n"), 20)
            writer.write(body[:100])
            await writer.drain()
            writer.close()
            await asyncio.wait_for(over.wait(), 20)
        assert_nothing_left(middleware)
        reasons = {"unparsable": 1} if kind == "short" else {"too_large": 1}
        assert (heard[-1], skips_of(middleware)) == ("http.disconnect", reasons)
