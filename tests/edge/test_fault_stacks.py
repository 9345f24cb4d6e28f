"""Real hosts on a real event loop: cancelled, left and raised at, at every turn that the loop takes for a request."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import count

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from prefix_middleware import PrefixMiddleware
from tests.edge.asgi import (
    CHAT,
    LEFT,
    Boom,
    Client,
    answering,
    assert_nothing_left,
    chat,
    http_scope,
    mounted,
    pieces,
    settings_for,
)

pytestmark = pytest.mark.anyio

BODY = chat("x" * 1200)


async def whole(request: Request) -> Response:
    """Answer in one piece."""
    return Response(await request.body())


async def stream(request: Request) -> Response:
    """Answer token by token."""
    await request.body()

    async def tokens() -> AsyncIterator[bytes]:
        for _ in range(5):
            await asyncio.sleep(0)
            yield b"data: t\n\n"

    return StreamingResponse(tokens(), media_type="text/event-stream")


async def polling(request: Request) -> Response:
    """Look again and again whether the client is still there."""
    async for _ in request.stream():
        pass
    for _ in range(5):
        if await request.is_disconnected():
            break
        await asyncio.sleep(0)
    return Response(b"ok")


async def passing(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Be a middleware of the host's that runs what is inside in another task."""
    return await call_next(request)


def starlette(endpoint: Callable[[Request], object], *, wrapped: bool = False) -> ASGIApp:
    route = Route(CHAT, endpoint, methods=["POST"])
    inside = [Middleware(BaseHTTPMiddleware, dispatch=passing)] if wrapped else []
    return Starlette(routes=[route], middleware=inside)


HOSTS: Mapping[str, ASGIApp] = {
    "bare": answering,
    "whole": starlette(whole),
    "stream": starlette(stream),
    "polling": starlette(polling),
    "whole in another task": starlette(whole, wrapped=True),
    "stream in another task": starlette(stream, wrapped=True),
}


def scope_of(spec_version: str) -> Scope:
    return http_scope(asgi={"version": "3.0", "spec_version": spec_version})


async def turns(task: asyncio.Task[None], number: int) -> bool:
    """Let the event loop go round so often; tell whether the task is still running."""
    for _ in range(number):
        if task.done():
            return False
        await asyncio.sleep(0)
    return not task.done()


def begin(middleware: ASGIApp, client: Client, spec_version: str) -> asyncio.Task[None]:
    coroutine = middleware(scope_of(spec_version), client.receive, client.send)
    return asyncio.ensure_future(coroutine)


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
@pytest.mark.parametrize("name", HOSTS)
async def test_a_task_cancelled_at_any_turn_is_cancelled_and_leaves_nothing(
    silent_port: int, name: str, spec_version: str
) -> None:
    """A server may give up on a request at any moment, also while the host runs in several tasks."""
    async with mounted(HOSTS[name], settings_for(silent_port)) as middleware:
        for number in count():
            client = Client(*pieces(BODY, [40, 40]))
            task = begin(middleware, client, spec_version)
            if not await turns(task, number):
                assert (number >= 1, client.answer) == (True, await bare_answer(name, spec_version))
                break
            task.cancel()
            await asyncio.wait([task], timeout=20)
            assert task.cancelled()
            assert_nothing_left(middleware)


async def bare_answer(name: str, spec_version: str) -> bytes:
    client = Client(*pieces(BODY, [40, 40]))
    await HOSTS[name](scope_of(spec_version), client.receive, client.send)
    return client.answer


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
@pytest.mark.parametrize("name", HOSTS)
async def test_a_client_that_leaves_at_any_turn_leaves_nothing(
    silent_port: int, name: str, spec_version: str
) -> None:
    """The host ends as it would have, without an exception of ours, and the request is counted out."""
    async with mounted(HOSTS[name], settings_for(silent_port)) as middleware:
        for number in count():
            client = Client(*pieces(BODY, [40, 40]))
            task = begin(middleware, client, spec_version)
            running = await turns(task, number)
            client.leave()
            await asyncio.wait_for(task, 20)
            assert_nothing_left(middleware)
            if not running:
                break


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("point", range(1, 9))
@pytest.mark.parametrize("name", ["whole", "stream"])
async def test_a_broken_connection_leaves_a_starlette_host_as_without_us(
    silent_port: int, name: str, point: int, wrapped: bool
) -> None:
    """Whatever receive or send raise, at any of them, the same exception reaches the server with and without us."""
    endpoint = {"whole": whole, "stream": stream}[name]
    host = starlette(endpoint, wrapped=wrapped)
    left: list[object] = []
    async with mounted(host, settings_for(silent_port)) as middleware:
        for app in (host, middleware):
            client = Client(*pieces(BODY, [40, 40]), at=point, meets=OSError("reset"))
            try:
                await asyncio.wait_for(app(scope_of("2.4"), client.receive, client.send), 20)
                left.append(None)
            except Exception as failure:
                left.append(repr(failure))
            left.append(client.answer)
        assert_nothing_left(middleware)
    assert left[:2] == left[2:]


@pytest.mark.parametrize("pieces_sent", [0, 1, 2])
async def test_a_half_body_is_a_disconnect_to_a_starlette_host(silent_port: int, pieces_sent: int) -> None:
    """Starlette raises its own ClientDisconnect where the body ends, and that is what leaves."""
    host = starlette(whole)
    async with mounted(host, settings_for(silent_port)) as middleware:
        client = Client(*pieces(BODY, [40, 40])[:pieces_sent], LEFT)
        with pytest.raises(ClientDisconnect):
            await middleware(http_scope(), client.receive, client.send)
        assert_nothing_left(middleware)


async def test_middlewares_outside_see_the_hosts_own_exception(silent_port: int) -> None:
    """A billing middleware outside of us that catches what the host raises gets that object."""
    boom, caught = Boom(), []

    async def failing(request: Request) -> Response:
        await request.body()
        raise boom

    async def outside(request: Request, call_next: RequestResponseEndpoint) -> Response:
        try:
            return await call_next(request)
        except Boom as failure:
            caught.append(failure)
            return Response(status_code=502)

    middlewares = [
        Middleware(BaseHTTPMiddleware, dispatch=outside),
        Middleware(PrefixMiddleware, settings_for(silent_port)),
    ]
    app = Starlette(routes=[Route(CHAT, failing, methods=["POST"])], middleware=middlewares)
    client = Client(*pieces(BODY))
    await app(http_scope(), client.receive, client.send)
    lifespan = Client({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    await app({"type": "lifespan"}, lifespan.receive, lifespan.send)
    assert (caught == [boom], client.sent[0]["status"]) == (True, 502)
