"""The carriers beside OpenTelemetry's real instrumentations, whoever comes first."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.instrumentation.aiohttp_client import AioHttpClientInstrumentor
from opentelemetry.instrumentation.httpx import HTTPX2ClientInstrumentor, HTTPXClientInstrumentor
from opentelemetry.instrumentation.requests import RequestsInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tests.edge.asgi import ask, served
from tests.edge.clients import KINDS, client, unpatched
from tests.edge.upstream import rig

__all__ = ["unpatched"]

pytestmark = pytest.mark.anyio

INSTRUMENTORS: tuple[Any, ...] = (
    HTTPXClientInstrumentor,
    HTTPX2ClientInstrumentor,
    AioHttpClientInstrumentor,
    RequestsInstrumentor,
)


@pytest.fixture
def instrumented(unpatched: None) -> Iterator[Any]:
    """A function that switches OpenTelemetry on; it is off again afterwards."""
    made: list[Any] = []

    def switch_on() -> None:
        for kind in INSTRUMENTORS:
            made.append(kind())
            made[-1].instrument(tracer_provider=TracerProvider())

    yield switch_on
    for instrumentor in made:
        instrumentor.uninstrument()


@pytest.mark.parametrize("order", ["ours first", "theirs first"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_has_our_header_and_the_traces(
    silent_port: int, instrumented: Any, kind: str, order: str
) -> None:
    """Both see every request, in either order."""
    seen: list[tuple[list[str], bool]] = []

    async def upstream(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Request(scope).headers
            seen.append((headers.getlist("x-prefix-worker"), "traceparent" in headers))
            await PlainTextResponse("ok")(scope, receive, send)

    if order == "theirs first":
        instrumented()
    async with (
        served(upstream) as url,
        rig(silent_port, upstream_url=url) as (middleware, host, _, _),
    ):
        await ask(middleware)  # starts, and patches
        if order == "ours first":
            instrumented()
        async with client(kind) as post:
            host.call = lambda: post(url)
            await ask(middleware)
    assert seen == [(["w1"], True)]
