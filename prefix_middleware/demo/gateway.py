"""The demonstration's gateway: API keys, billing and one upstream; DEMO_LINE=1 in the environment adds the line."""

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

from prefix_middleware import PrefixMiddleware

API_KEYS = os.environ.get("DEMO_API_KEYS", "").split(",")

billed: dict[str, Counter[str]] = defaultdict(Counter)  # API key -> tokens


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Hold the one HTTP client of the process."""
    upstream = os.environ["DEMO_UPSTREAM_URL"]
    async with httpx.AsyncClient(base_url=upstream, timeout=60, trust_env=False) as app.state.upstream:
        yield


app = FastAPI(lifespan=lifespan)
if os.environ.get("DEMO_LINE") == "1":
    app.add_middleware(PrefixMiddleware)


def api_key(authorization: Annotated[str, Header()] = "") -> str:
    """Return the caller's key; answers 401 for an unknown one."""
    key = authorization.removeprefix("Bearer ")
    if key not in API_KEYS:
        raise HTTPException(401, "unknown API key")
    return key


Key = Annotated[str, Depends(api_key)]


@app.post("/v1/chat/completions")
async def chat(request: Request, key: Key) -> Response:
    """Pass a streamed chat on under headers of the gateway's own."""
    client: httpx.AsyncClient = request.app.state.upstream
    headers = {"content-type": "application/json", "x-request-id": uuid.uuid4().hex}
    call = client.build_request("POST", request.url.path, content=await request.body(), headers=headers)
    answer = await client.send(call, stream=True)
    served = {"x-prefix-served": answer.headers.get("x-prefix-served", "")}
    media_type = answer.headers.get("content-type")
    return StreamingResponse(relay(answer, key), answer.status_code, served, media_type)


@app.get("/usage")
async def usage(key: Key) -> dict[str, int]:
    """Return the tokens billed to the caller's key."""
    return dict(billed[key])


async def relay(answer: httpx.Response, key: str) -> AsyncIterator[bytes]:
    """Yield the answer as it comes and bill what its last event says."""
    tail = b""
    try:
        async for chunk in answer.aiter_bytes():
            tail = (tail + chunk)[-4096:]
            yield chunk
    finally:
        await answer.aclose()
        for event in tail.split(b"\n\n"):
            if b'"usage":{' in event:
                tokens = json.loads(event.removeprefix(b"data: "))["usage"]
                billed[key].update({k: tokens[k] for k in ("prompt_tokens", "completion_tokens")})
