"""Context variables and bound log fields are the host's: they come in, go out, and mix with nobody's, in every mode."""

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import pytest
import structlog
from starlette.types import Receive, Scope, Send

from prefix_middleware.carry.context import current
from tests.edge.asgi import Client, answering, ask, chat, http_scope, mounted, pieces, read, settings_for

pytestmark = pytest.mark.anyio

MODES: Mapping[str, Mapping[str, str]] = {
    "on": {},
    "egress": {"upstream_url": "http://nginx", "decide": "egress"},
    "shadow": {"mode": "shadow"},
    "off": {"mode": "off"},
}
BODIES = {"routed": chat("x" * 600), "unrouted": b"{"}
billing: ContextVar[str] = ContextVar("billing", default="")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("body", BODIES)
async def test_what_the_host_sets_is_there_outside(
    silent_port: int, body: str, mode: str, fails: bool
) -> None:
    """The outer middleware reads what the endpoint set, however it ended; nothing of ours stays in the context."""
    tasks: list[object] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        tasks.append(asyncio.current_task())
        billing.set("inner")
        if fails:
            raise LookupError
        await answering(scope, receive, send)

    async with mounted(host, settings_for(silent_port, **MODES[mode])) as middleware:
        billing.set("outer")
        try:
            await ask(middleware, BODIES[body])
        except LookupError:
            assert fails
    assert (billing.get(), current.get(), tasks) == ("inner", None, [asyncio.current_task()])


@pytest.mark.parametrize("mode", MODES)
async def test_bound_log_fields_of_requests_side_by_side_stay_apart(silent_port: int, mode: str) -> None:
    """Each of ten requests that wait for each other finds only its own request_id, inside and after the call."""
    seen: list[tuple[int, dict[str, Any], dict[str, Any]]] = []
    everybody = asyncio.Barrier(10)

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        await everybody.wait()
        scope["fields"] = structlog.contextvars.get_contextvars()
        structlog.contextvars.bind_contextvars(inner=scope["number"])

    async def request(number: int) -> None:
        structlog.contextvars.bind_contextvars(request_id=number)
        scope = http_scope(number=number)
        client = Client(*pieces(BODIES["routed" if number % 2 else "unrouted"], [2]))
        await middleware(scope, client.receive, client.send)
        seen.append((number, scope["fields"], structlog.contextvars.get_contextvars()))

    async with mounted(host, settings_for(silent_port, log="json", **MODES[mode])) as middleware:
        await asyncio.wait_for(asyncio.gather(*map(request, range(10))), 20)
    assert sorted(seen) == [(n, {"request_id": n}, {"request_id": n, "inner": n}) for n in range(10)]
    assert (structlog.is_configured(), structlog.contextvars.get_contextvars()) == (False, {})
