"""What an answer says of its worker when no carrier sees the hop: failures count, a client's leaving does not."""

import logging
from collections.abc import Sequence

import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.edge.asgi import (
    CHAT,
    LEFT,
    Boom,
    assert_nothing_left,
    chat,
    chunk,
    http_scope,
    mounted,
    pieces,
    read,
    router_of,
    sent_headers,
    settings_for,
    start,
)
from tests.edge.faults import post
from tests.edge.logs import Keeper

pytestmark = pytest.mark.anyio


async def raising(scope: Scope, receive: Receive, send: Send) -> None:
    """Fail with whatever happens after the body."""
    await read(receive)
    await receive()
    raise Boom


async def answering_500(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 500 after whatever happens after the body."""
    await read(receive)
    await receive()
    await send(start(500))
    await send(chunk(b"", more=False))


async def endpoint(request: Request) -> Response:
    await request.body()
    await request.receive()
    raise ClientDisconnect


HOSTS: dict[str, ASGIApp] = {
    "raises": raising,
    "answers 500": answering_500,
    "is Starlette": Starlette(routes=[Route(CHAT, endpoint, methods=["POST"])]),
}
MORE: Message = {"type": "http.request", "body": b"", "more_body": False}


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize(("event", "suspects"), [(LEFT, []), (MORE, ["w1", "w2"])], ids=["left", "stayed"])
async def test_only_failures_of_those_who_stay_are_a_workers(
    silent_port: int, logger: logging.Logger, name: str, event: Message, suspects: Sequence[str]
) -> None:
    """Clients that give up before the first byte end many a host in an exception or a 500; no worker is suspect for it."""
    keeper = Keeper()
    logger.addHandler(keeper)
    async with mounted(HOSTS[name], settings_for(silent_port)) as middleware:
        for number in range(40):
            post(middleware, http_scope(), [*pieces(chat(f"{number}")), event])
        assert_nothing_left(middleware)
    named = {line.split()[2] for line in keeper.lines if "is suspect" in line}
    assert sorted(named) == suspects


async def test_a_success_counts_whoever_leaves(silent_port: int) -> None:
    """A 2xx that begins after the client has left still says that the worker held the prompt."""

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        await receive()
        await send(start())
        await send(chunk(b"late", more=False))

    scope = http_scope()
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        post(middleware, scope, [*pieces(chat("x" * 600)), LEFT])
        assert (sent_headers(scope), len(router_of(middleware).index) > 0) == ([b"w1"], True)
