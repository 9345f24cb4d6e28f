"""FastAPI and the OpenAI SDK: AsyncOpenAI calls nginx over httpx2, and the carrier adds the header to its requests."""

import os
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from openai import APIStatusError, AsyncOpenAI
from prefix_middleware import PrefixMiddleware

UPSTREAM_URL = os.environ.get("UPSTREAM_URL", "http://127.0.0.1:8080")

upstream = AsyncOpenAI(
    base_url=f"{UPSTREAM_URL}/v1",
    api_key="unused",
    max_retries=0,  # nginx tries another worker by itself
)
app = FastAPI()
app.add_middleware(PrefixMiddleware)


@app.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    body: dict[str, Any] = await request.json()
    try:
        answer = await upstream.chat.completions.create(**body)
    except APIStatusError as error:
        return JSONResponse(error.body, error.status_code)
    if body.get("stream"):
        return StreamingResponse(events(answer), media_type="text/event-stream")
    return JSONResponse(answer.model_dump())


async def events(answer: Any) -> AsyncIterator[str]:
    async with answer:
        async for chunk in answer:
            yield f"data: {chunk.model_dump_json()}\n\n"
    yield "data: [DONE]\n\n"
