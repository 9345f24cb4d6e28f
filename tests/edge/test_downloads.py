"""Answers over real sockets: each chunk at once and as it was, as much as the client takes, and clients that leave."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from prefix_middleware import PrefixMiddleware
from prefix_middleware.body import MESSAGE_BYTES
from tests.edge.asgi import (
    CHAT,
    assert_nothing_left,
    chat,
    chunk,
    counts_of,
    eventually,
    loads_of,
    mounted,
    read,
    served,
    settings_for,
    skips_of,
    start,
)
from tests.edge.logs import Keeper

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def asked(
    app: ASGIApp, port: int, sent: int | None = None
) -> AsyncIterator[tuple[PrefixMiddleware, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve a host behind the middleware and send it one request, or the first `sent` bytes of its body."""
    async with (
        mounted(app, settings_for(port, ["w1"])) as middleware,
        served(middleware, lifespan="off") as url,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        try:
            body = chat("x" * 1000)
            head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body[:sent])
            yield middleware, reader, writer
        finally:
            writer.close()
            await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])


STREAMS: Mapping[str, Sequence[bytes]] = {
    "single bytes": [b"a"] * 40,
    "empty first": [b"", b"first", b"", b"last"],
    "uneven": [b"x" * size for size in (1, 5000, 2, 70_000, 1)],
}


@pytest.mark.parametrize("kind", STREAMS)
async def test_a_chunk_is_at_the_client_before_the_next_is_made(silent_port: int, kind: str) -> None:
    """Of any size, an empty first one included: no chunk waits for another, none is joined or cut."""
    arrived = asyncio.Semaphore(0)

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        await send(start())
        for body in STREAMS[kind]:
            await send(chunk(body))
            if body:
                await asyncio.wait_for(arrived.acquire(), 20)
        await send(chunk(b"", more=False))

    async with asked(host, silent_port) as (middleware, reader, _):
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        for body in filter(None, STREAMS[kind]):
            framed = b"%x\r\n%b\r\n" % (len(body), body)
            assert await asyncio.wait_for(reader.readexactly(len(framed)), 20) == framed
            arrived.release()
        assert await asyncio.wait_for(reader.readexactly(5), 20) == b"0\r\n\r\n"
        assert_nothing_left(middleware)


async def test_a_large_answer_waits_for_its_client_and_arrives_whole(silent_port: int) -> None:
    """50 MB with a declared length: while the client reads nothing the host is held back, as without us; then all comes."""
    piece, sent = bytes(range(250)) * 4000, 0

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await read(receive)
        length = b"%d" % (50 * len(piece))
        await send({**start(), "headers": [(b"content-length", length)]})
        for number in range(50):
            await send(chunk(piece, more=number < 49))
            sent += 1

    async with asked(host, silent_port) as (middleware, reader, _):
        await eventually(lambda: sent, "the first piece")
        settled = -1
        while settled != sent:  # until a while passes in which nothing more goes out
            settled = sent
            await asyncio.sleep(0.2)
        assert (sent < 30, loads_of(middleware)["w1"][0]) == (True, 1)
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        digest, left = hashlib.sha256(), 50 * len(piece)
        while left:
            part = await asyncio.wait_for(reader.read(2**16), 20)
            digest.update(part)
            left -= len(part)
        await eventually(lambda: loads_of(middleware)["w1"][0] == 0, "the end")
        assert_nothing_left(middleware)
    assert digest.hexdigest() == hashlib.sha256(piece * 50).hexdigest()


async def waits(request: Request) -> Response:
    """Wait for the first token until the client has left."""
    await request.body()
    await request.receive()
    raise ClientDisconnect


async def streams(request: Request) -> Response:
    """Stream without end."""
    await request.body()

    async def tokens() -> AsyncIterator[bytes]:
        while True:
            yield b"data: t\n\n"
            await asyncio.sleep(0.005)

    return StreamingResponse(tokens(), media_type="text/event-stream")


async def reads(request: Request) -> Response:
    """Read the body, of which only a half will come."""
    return Response(await request.body())


async def passing(request: Request, call_next: RequestResponseEndpoint) -> Response:
    return await call_next(request)


HOSTS = {"before the first byte": waits, "in mid-stream": streams, "within the body": reads}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("moment", HOSTS)
async def test_a_client_that_leaves_frees_its_worker_without_a_word(
    silent_port: int, logger: logging.Logger, moment: str, wrapped: bool
) -> None:
    """Whenever it leaves, the host hears of it, the load is gone with the call, and neither log nor counters have an error."""
    layers = [Middleware(BaseHTTPMiddleware, dispatch=passing)] if wrapped else []
    app = Starlette(routes=[Route(CHAT, HOSTS[moment], methods=["POST"])], middleware=layers)
    ended, keeper = asyncio.Event(), Keeper()
    logger.addHandler(keeper)

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):  # uvicorn would print it
            try:
                await app(scope, receive, send)
            finally:
                ended.set()

    half = moment == "within the body"
    async with asked(host, silent_port, 400 if half else None) as (middleware, reader, writer):
        if half:
            await eventually(
                lambda: middleware._runtime.buffered.held_bytes >= 400 + MESSAGE_BYTES, "the half"
            )
        else:
            await eventually(lambda: loads_of(middleware)["w1"][0] == 1, "the request")
        if moment == "in mid-stream":
            await asyncio.wait_for(reader.readuntil(b"data: t"), 20)
        writer.close()
        await asyncio.wait_for(ended.wait(), 20)
        await eventually(lambda: loads_of(middleware)["w1"][0] == 0, "the release")
        assert_nothing_left(middleware)
        assert ("errors" in counts_of(middleware), skips_of(middleware)) == (
            False,
            {"unparsable": 1} if half else {},
        )
    assert [record.getMessage() for record in keeper.records if record.levelno > logging.WARNING] == []
