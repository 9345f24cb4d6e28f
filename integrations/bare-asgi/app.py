"""No framework: an ASGI callable that forwards the client's headers, so that the header needs no carrier."""

import os
from typing import Any

import httpx
from prefix_middleware import PrefixMiddleware

UPSTREAM_URL = os.environ.get("UPSTREAM_URL", "http://127.0.0.1:8080")
HOP_BY_HOP = {
    b"connection",
    b"content-length",
    b"host",
    b"keep-alive",
    b"te",
    b"transfer-encoding",
    b"upgrade",
}

upstream = httpx.AsyncClient(base_url=UPSTREAM_URL, timeout=600)


def end_to_end(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP]


async def body_of(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body


async def forward(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise NotImplementedError("HTTP only")
    request = upstream.build_request(
        scope["method"],
        scope["path"],
        content=await body_of(receive),
        headers=end_to_end(scope["headers"]),
    )
    answer = await upstream.send(request, stream=True)
    try:
        start = {"status": answer.status_code, "headers": end_to_end(answer.headers.raw)}
        await send({"type": "http.response.start", **start})
        async for chunk in answer.aiter_raw():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        await answer.aclose()


app = PrefixMiddleware(forward)
