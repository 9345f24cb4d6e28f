"""A small gateway in front of vLLM: API keys, usage billing, streaming."""

import json
import os
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

UPSTREAM_URL = os.environ.get("UPSTREAM_URL", "http://127.0.0.1:8080")
API_KEYS = os.environ.get("API_KEYS", "sk-alice,sk-bob").split(",")

billed: dict[str, Counter[str]] = defaultdict(Counter)  # API key -> tokens


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with httpx.AsyncClient(base_url=UPSTREAM_URL, timeout=600) as app.state.upstream:
        yield


app = FastAPI(lifespan=lifespan)


def api_key(authorization: Annotated[str, Header()] = "") -> str:
    key = authorization.removeprefix("Bearer ")
    if key not in API_KEYS:
        raise HTTPException(401, "unknown API key")
    return key


Key = Annotated[str, Depends(api_key)]


@app.post("/v1/chat/completions")
async def chat(request: Request, key: Key) -> Response:
    client: httpx.AsyncClient = request.app.state.upstream
    headers = {"content-type": "application/json", "x-request-id": uuid.uuid4().hex}
    call = client.build_request("POST", request.url.path, content=await request.body(), headers=headers)
    try:
        answer = await client.send(call, stream=True)
        media_type = answer.headers.get("content-type", "application/json")
        if media_type.startswith("text/event-stream"):
            return StreamingResponse(relay(answer, key), answer.status_code, media_type=media_type)
        body = await answer.aread()
    except httpx.HTTPError as error:
        raise HTTPException(502, "the model does not answer") from error
    bill(key, body)
    return Response(body, answer.status_code, media_type=media_type)


@app.get("/usage")
async def usage(key: Key) -> dict[str, int]:
    return dict(billed[key])


async def relay(answer: httpx.Response, key: str) -> AsyncIterator[bytes]:
    tail = b""
    try:
        async for chunk in answer.aiter_bytes():
            tail = (tail + chunk)[-4096:]
            yield chunk
    finally:
        await answer.aclose()
        counted = [event for event in tail.split(b"\n\n") if b'"usage":{' in event]
        if counted:
            bill(key, counted[-1].removeprefix(b"data: "))


def bill(key: str, answer: bytes) -> None:
    try:
        tokens = json.loads(answer).get("usage") or {}
    except ValueError:
        return
    billed[key].update({name: tokens.get(name, 0) for name in ("prompt_tokens", "completion_tokens")})
