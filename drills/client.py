"""One client's request to a gateway: sent on a plain connection, timed to its first byte, read to its end."""

import json
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from random import Random
from typing import Any, Final

PATH: Final = "/v1/chat/completions"
PATIENCE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, if anything did."""

    status: int = 0  # 0: no status line
    began: float = 0.0  # monotonic
    first_seconds: float | None = None  # to the first byte of the body
    whole: bool = False
    data: bytes = b""
    chosen: str = ""  # by the middleware
    served: str = ""  # as nginx says
    blocks: str = ""  # matched/all
    pid: int = 0  # of the gateway process
    error: str = ""

    @property
    def good(self) -> bool:
        """Whether the client has all that it asked for."""
        return self.status == 200 and self.whole

    @property
    def started(self) -> bool:
        """Whether a good answer had begun to arrive, if only its headers: nobody can send the request again then."""
        return self.status == 200


def ask(port: int, body: bytes, connection: HTTPConnection | None = None) -> Answer:
    """Send one prompt, on a connection of its own or on the one given; never raises."""
    mine = connection or HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    began = time.monotonic()
    try:
        mine.request("POST", PATH, body, {"content-type": "application/json"})
        response = mine.getresponse()
    except (OSError, HTTPException) as error:
        mine.close()
        return Answer(began=began, error=repr(error))
    try:
        return _read(response, began)
    finally:
        if connection is None:
            mine.close()


def _read(response: HTTPResponse, began: float) -> Answer:
    data, first, error = b"", None, ""
    try:
        while chunk := response.read1(65536):
            first = first or time.monotonic() - began
            data += chunk
    except (OSError, HTTPException) as failure:
        error = repr(failure)
    streams = response.headers.get("content-type", "").startswith("text/event-stream")
    return Answer(
        status=response.status,
        began=began,
        first_seconds=first,
        whole=not error and (data.endswith(b"data: [DONE]\n\n") if streams else bool(data)),
        data=data,
        chosen=response.headers.get("x-drill-worker", ""),
        served=response.headers.get("x-prefix-served", ""),
        blocks=response.headers.get("x-drill-blocks", ""),
        pid=int(response.headers.get("x-drill-pid", 0)),
        error=error,
    )


def prose(rng: Random, size: int) -> str:
    """Return about `size` bytes of text that nobody else has."""
    return " ".join(f"{rng.getrandbits(32):08x}" for _ in range(size // 9))


def chat(messages: list[dict[str, str]], tokens: int, *, stream: bool) -> bytes:
    """Return the body of a chat request."""
    body: dict[str, Any] = {
        "model": "fake-model",
        "messages": messages,
        "max_tokens": tokens,
        "stream": stream,
    }
    return json.dumps(body).encode()
