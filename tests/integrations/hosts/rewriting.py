"""A host that rewrites prompts: 4 KB of system prompt by tenant in front, and the model's public name replaced by its own."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response

from prefix_middleware import PrefixMiddleware


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with httpx.AsyncClient(base_url=os.environ["UPSTREAM_URL"], timeout=600) as app.state.upstream:
        yield


app = FastAPI(lifespan=lifespan)
app.add_middleware(PrefixMiddleware)


@app.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    body: dict[str, Any] = await request.json()
    tenant = request.headers["authorization"]
    rules = f"You answer for {tenant}. " + f"{tenant} has rules. " * (4096 // (len(tenant) + 12))
    messages = [{"role": "system", "content": rules}, *body["messages"]]
    rewritten = {**body, "model": "fake-model", "messages": messages}
    answer = await request.app.state.upstream.post("/v1/chat/completions", json=rewritten)
    return Response(answer.content, answer.status_code, media_type="application/json")
