"""A client that leaves, through the whole chain: gateway, its HTTP client, nginx, worker; and what stays counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from prefix_middleware import PrefixMiddleware
from tests.edge.asgi import (
    CHAT,
    assert_nothing_left,
    chat,
    eventually,
    loads_of,
    mounted,
    served,
    settings_for,
)
from tests.nginx.running import Fleet
from tests.nginx.worker import Connection, FakeWorker, Seen


@dataclass
class Gated(FakeWorker):
    """A worker that begins each prompt and ends it only when it may, or when its client leaves."""

    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    left: int = 0

    async def answer(self, seen: Seen, connection: Connection) -> None:
        """Send the head and one event of a stream at once; a plain answer comes whole at the end."""
        if seen.method == "POST" and "stream" in seen.target:
            await connection.start(
                200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")]
            )
            await connection.chunk(b"data: 0\n\n")
        if seen.method == "POST":
            while not self.may_end.is_set():
                if await connection.left(0.02):
                    self.left += 1
                    connection.abort()
                    return
        if "stream" in seen.target:
            await connection.end()
        else:
            await super().answer(seen, connection)


def host(client: httpx.AsyncClient, noticed: asyncio.Event) -> Starlette:
    """Return a gateway that relays streams; it waits for a plain answer also once it has noticed that nobody wants it."""

    async def endpoint(request: Request) -> Response:
        query = request.url.query
        call = client.build_request("POST", f"{CHAT}?{query}", content=await request.body())
        if "stream" not in query:
            waiting = asyncio.ensure_future(client.send(call))
            if (await request.receive())["type"] == "http.disconnect":
                noticed.set()
            return Response((await waiting).content)
        answer = await client.send(call, stream=True)

        async def relayed() -> AsyncIterator[bytes]:
            try:
                async for part in answer.aiter_raw():
                    yield part
            finally:
                await answer.aclose()

        return StreamingResponse(relayed(), answer.status_code, media_type="text/event-stream")

    return Starlette(routes=[Route(CHAT, endpoint, methods=["POST"])])


@asynccontextmanager
async def chain(fleet: Fleet) -> AsyncIterator[tuple[Gated, PrefixMiddleware, int, asyncio.Event]]:
    """Run everything with one worker; yields it, the middleware, the gateway's port and when it notices a disconnect."""
    gated, noticed = Gated("w1"), asyncio.Event()
    fleet.workers = [gated]
    async with fleet.up("a") as client:
        settings = settings_for(gated.port, ["w1"], upstream_url=fleet.url)
        async with (
            mounted(host(client, noticed), settings) as middleware,
            served(middleware, lifespan="off") as url,
        ):
            yield gated, middleware, urlsplit(url).port or 0, noticed


async def leave_in_mid_request(port: int, query: str, until: bytes, gated: Gated) -> None:
    """Send a prompt, read up to `until`, wait for the worker to have it, and drop the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = chat("x" * 600)
    writer.write(
        b"POST %s%s HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n"
        % (CHAT.encode(), query.encode(), len(body))
    )
    writer.write(body)
    if until:
        await asyncio.wait_for(reader.readuntil(until), 20)
    await eventually(lambda: any(seen.method == "POST" for seen in gated.seen), "the prompt at the worker")
    writer.transport.abort()


@pytest.mark.anyio
async def test_a_client_that_leaves_a_stream_frees_worker_and_load(fleet: Fleet) -> None:
    """The abort passes gateway and nginx, the worker stops, and the request is counted out."""
    async with chain(fleet) as (gated, middleware, port, _):
        await leave_in_mid_request(port, "?stream", b"data: 0\n\n", gated)
        await eventually(lambda: gated.left == 1, "the abort at the worker")
        await eventually(lambda: loads_of(middleware)["w1"] == (0, 0, 0), "no load")
        assert_nothing_left(middleware)


@pytest.mark.anyio
async def test_a_prompt_that_the_gateway_still_waits_for_stays_counted(fleet: Fleet) -> None:
    """The client has left, the worker computes on: that is load until the gateway's own call ends."""
    async with chain(fleet) as (gated, middleware, port, noticed):
        await leave_in_mid_request(port, "", b"", gated)
        await eventually(noticed.is_set, "the disconnect at the gateway")
        during = gated.left, loads_of(middleware)["w1"][0]
        gated.may_end.set()
        await eventually(lambda: loads_of(middleware)["w1"] == (0, 0, 0), "no load")
        assert (during, gated.left) == ((0, 1), 0)
        assert_nothing_left(middleware)
