"""FastAPI and httpx: the gateway builds its own request, and the middleware's carrier adds the header to it."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from prefix_middleware import PrefixMiddleware
from starlette.background import BackgroundTask

UPSTREAM_URL = os.environ.get("UPSTREAM_URL", "http://127.0.0.1:8080")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with httpx.AsyncClient(base_url=UPSTREAM_URL, timeout=600) as app.state.upstream:
        yield


app = FastAPI(lifespan=lifespan)
app.add_middleware(PrefixMiddleware)


@app.post("/v1/{api:path}")
async def forward(request: Request) -> Response:
    client: httpx.AsyncClient = request.app.state.upstream
    call = client.build_request(
        "POST",
        request.url.path,
        content=await request.body(),
        headers={"content-type": "application/json"},
    )
    answer = await client.send(call, stream=True)
    return StreamingResponse(
        answer.aiter_raw(),
        answer.status_code,
        headers={
            name: answer.headers[name]
            for name in ("content-type", "content-encoding", "x-prefix-served")
            if name in answer.headers
        },
        background=BackgroundTask(answer.aclose),
    )
