"""The middleware between a real server and raw connections: streaming in lock-step, clients that leave, late bodies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prefix_middleware import PrefixMiddleware
from prefix_middleware.body import MESSAGE_BYTES
from tests.edge.asgi import (
    CHAT,
    answering,
    assert_nothing_left,
    chat,
    chunk,
    eventually,
    loads_of,
    mounted,
    read,
    served,
    settings_for,
    start,
)

pytestmark = pytest.mark.anyio


class Connection:
    """A raw HTTP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def post(self, body: bytes, *, sent: int | None = None, headers: str = "") -> None:
        """Write a request; only the first `sent` bytes of its body if given."""
        head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
        self.writer.write(head.encode() + body[:sent])
        await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        """Read up to these bytes."""
        return await asyncio.wait_for(self.reader.readuntil(end), 20)

    async def close(self) -> None:
        """Leave."""
        self.writer.close()
        await self.writer.wait_closed()


@asynccontextmanager
async def connected(app: ASGIApp, port: int) -> AsyncIterator[tuple[PrefixMiddleware, Connection]]:
    """Serve an application behind the middleware and connect to it."""
    async with (
        mounted(app, settings_for(port, ["w1"])) as middleware,
        served(middleware, lifespan="off") as url,
    ):
        connection = Connection(*await asyncio.open_connection("127.0.0.1", urlsplit(url).port))
        try:
            yield middleware, connection
        finally:
            await connection.close()


async def test_every_chunk_arrives_before_the_next_is_made(silent_port: int) -> None:
    """The host makes a chunk only once its client has the one before: nothing is batched or held."""
    arrived = [asyncio.Event() for _ in range(30)]

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        await send(start())
        for event in arrived:
            await send(chunk(b"t"))
            await asyncio.wait_for(event.wait(), 20)
        await send(chunk(b"", more=False))

    async with connected(host, silent_port) as (middleware, connection):
        await connection.post(chat())
        await connection.until(b"\r\n\r\n")
        for event in arrived:
            assert await connection.until(b"t\r\n") == b"1\r\nt\r\n"
            event.set()
        await connection.until(b"0\r\n\r\n")
        assert_nothing_left(middleware)


async def test_a_client_that_leaves_before_the_first_byte_is_seen_at_once(silent_port: int) -> None:
    """A host that waits for its worker hears of the disconnect through our receive, and the load goes with its call."""
    heard: list[Message] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        heard.append(await receive())

    async with connected(host, silent_port) as (middleware, connection):
        await connection.post(chat())
        await eventually(lambda: loads_of(middleware)["w1"][0] == 1, "the request")
        await connection.close()
        await eventually(lambda: heard, "the disconnect")
        assert heard == [{"type": "http.disconnect"}]
        assert_nothing_left(middleware)


async def test_a_client_that_leaves_within_its_body_is_the_hosts_to_see(silent_port: int) -> None:
    """While we hold an incomplete body the disconnect is not lost."""
    heard: list[str] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        heard.extend([message["type"] for message in await read(receive)])

    async with connected(host, silent_port) as (middleware, connection):
        await connection.post(chat("x" * 1000), sent=500)
        await eventually(
            lambda: middleware._runtime.buffered.held_bytes >= 500 + MESSAGE_BYTES, "the first half"
        )
        await connection.close()
        await eventually(lambda: heard, "the disconnect")
        assert heard[-1] == "http.disconnect"
        assert_nothing_left(middleware)


async def test_a_background_task_runs_to_its_end_after_its_client_has_left(silent_port: int) -> None:
    """A billing write behind the answer is not cancelled by the client's leaving."""
    left, done = asyncio.Event(), asyncio.Event()

    async def bill() -> None:
        await left.wait()
        await asyncio.sleep(0)
        done.set()

    async def endpoint(request: Request) -> Response:
        await request.body()
        return PlainTextResponse("ok", background=BackgroundTask(bill))

    app = Starlette(routes=[Route(CHAT, endpoint, methods=["POST"])])
    async with connected(app, silent_port) as (middleware, connection):
        await connection.post(chat())
        await connection.until(b"ok")
        assert loads_of(middleware)["w1"] == (0, 0, 0)
        await connection.close()
        left.set()
        await asyncio.wait_for(done.wait(), 20)


async def test_a_body_that_waits_to_be_asked_for_is_asked_for(silent_port: int) -> None:
    """Expect: 100-continue is answered once we receive, and the request goes its usual way."""
    async with connected(answering, silent_port) as (_, connection):
        body = chat("x" * 1000)
        await connection.post(body, sent=0, headers="expect: 100-continue\r\n")
        assert b" 100 " in await connection.until(b"\r\n\r\n")
        connection.writer.write(body)
        assert b" 200 " in await connection.until(b"\r\n\r\n")
        await connection.until(b"ok")


async def test_requests_of_one_connection_do_not_leak_into_each_other(silent_port: int) -> None:
    """On a kept-alive connection each request has its own decision and none keeps the one before."""
    seen: list[object] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope.get("prefix_middleware"))
        await answering(scope, receive, send)

    async with connected(host, silent_port) as (_, connection):
        for body in (chat(), b"{", chat()):
            await connection.post(body)
            await connection.until(b"0\r\n\r\n")
    assert [decision is None for decision in seen] == [False, True, False]
