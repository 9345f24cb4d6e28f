"""The few ASGI messages that the stand-ins need, without a framework."""

import json
from typing import Any

from starlette.types import Receive, Send


class DisconnectError(Exception):
    """Raised when the client leaves before its body is complete."""


async def read_body(receive: Receive) -> bytes:
    """Return the whole request body; raises DisconnectError."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectError
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body


async def send_start(send: Send, status: int, content_type: str) -> None:
    """Send status and headers."""
    headers = [(b"content-type", content_type.encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def end_body(send: Send, body: bytes = b"") -> None:
    """Send the last part of the body."""
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_text(send: Send, text: str) -> None:
    """Send a complete plain-text answer."""
    await send_start(send, 200, "text/plain; version=0.0.4; charset=utf-8")
    await end_body(send, text.encode())


async def send_json(send: Send, status: int, value: Any) -> None:
    """Send a complete JSON answer."""
    await send_start(send, status, "application/json")
    await end_body(send, json.dumps(value).encode())


async def run_lifespan(receive: Receive, send: Send) -> None:
    """Answer start-up and shutdown."""
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": message["type"] + ".complete"})
    await send({"type": "lifespan.shutdown.complete"})
