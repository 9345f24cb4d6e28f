"""A host that logs with structlog: what it has configured and bound stays its own, also between requests that interleave."""

import asyncio
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.edge.asgi import ask, chat, chunk, mounted, read, settings_for, start

pytestmark = pytest.mark.anyio


@pytest.fixture
def entries() -> Iterator[list[dict[str, Any]]]:
    """What the host's own structlog, configured its way, has written."""
    found: list[dict[str, Any]] = []

    def keep(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        found.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, keep])
    try:
        yield found
    finally:
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()


def naming(app: ASGIApp) -> ASGIApp:
    """Wrap an application as a host does: bind a request id, log, and leave it bound, as careless hosts do."""

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        structlog.contextvars.bind_contextvars(request_id=scope["request"])
        await app(scope, receive, send)
        structlog.get_logger().info("over")

    return outer


async def test_requests_that_interleave_keep_their_own_context(
    silent_port: int, entries: list[dict[str, Any]]
) -> None:
    """Twenty requests at once: inside and after ours the host's log has the id of its own request, and nothing of ours."""
    gate = asyncio.Barrier(20)

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        await gate.wait()
        structlog.get_logger().info("inside")
        await gate.wait()
        await send(start())
        await send(chunk(b"ok", more=False))

    async with mounted(host, settings_for(silent_port, log="json")) as middleware:
        app = naming(middleware)
        scopes = [
            {"type": "http", "method": "POST", "path": "/v1/chat/completions", "request": number}
            for number in range(20)
        ]
        async with asyncio.TaskGroup() as group:
            for scope in scopes:
                group.create_task(ask(app, chat(), scope))
    expected = [
        {"request_id": number, "event": event} for number in range(20) for event in ("inside", "over")
    ]
    assert sorted(entries, key=lambda entry: (entry["request_id"], entry["event"])) == expected
