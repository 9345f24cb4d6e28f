"""An ASGI forwarder on aiohttp: bytes in, bytes out, with headers of its own; the carrier adds one."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from prefix_middleware import PrefixMiddleware
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

UPSTREAM_URL = os.environ.get("UPSTREAM_URL", "http://127.0.0.1:8080")
PASSED_ON = ("authorization", "content-type")
PASSED_BACK = ("content-type", "x-prefix-served")


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    async with aiohttp.ClientSession(UPSTREAM_URL, timeout=timeout) as app.state.upstream:
        yield


async def forward(request: Request) -> Response:
    session: aiohttp.ClientSession = request.app.state.upstream
    headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
    answer = await session.post(request.url.path, data=await request.body(), headers=headers)
    return StreamingResponse(
        answer.content.iter_any(),
        answer.status,
        headers={name: answer.headers[name] for name in PASSED_BACK if name in answer.headers},
        background=BackgroundTask(answer.release),
    )


app = Starlette(
    routes=[Route("/v1/{api:path}", forward, methods=["POST"])],
    lifespan=lifespan,
    middleware=[Middleware(PrefixMiddleware)],
)
