"""A worker as a process that does the least a worker must: it streams slowly until its client leaves.

The fake worker of `prefix_middleware.testing` has an engine and costs ten times as much; this one lets a hundred thousand
clients leave in minutes. It answers /health, tells its start time and running requests in /metrics, and serves every prompt.

python -m drills.streamer --port 8001 --id w1
"""

import argparse
import asyncio
import json
import re
import time
from typing import Any, Final

HEAD_SECONDS: Final = 0.05  # until an answer begins: those who leave before it have left by then
TOKEN_SECONDS: Final = 0.03
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_EVENT: Final = b'data: {"choices":[{"index":0,"delta":{"content":" on"}}]}\n\n'
_DONE: Final = b"data: [DONE]\n\n"
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_WHOLE: Final = (
    b'{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"on"}}]}'
)


class Streamer:
    """What all connections share."""

    def __init__(self) -> None:
        self.started = time.time()
        self.running = 0  # requests

    def metrics(self) -> bytes:
        """Return the few series that a prober and the drill read."""
        lines = [
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self.started}",
            "# TYPE vllm:num_requests_running gauge",
            f'vllm:num_requests_running{{engine="0",model_name="fake-model"}} {self.running}',
        ]
        return ("\n".join(lines) + "\n").encode()


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, streamer: Streamer) -> None:
        self._streamer = streamer
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._next: asyncio.TimerHandle | None = None  # of the answer that is being given
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer once a request is complete."""
        self._received += data
        head, mark, rest = self._received.partition(b"\r\n\r\n")
        found = _LENGTH.search(head)
        size = int(found[1]) if found else 0
        if mark and len(rest) >= size:
            self._received = b""
            self._answer(head.split(b" ", 2)[1], rest)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The client has left: an engine would drop its request."""
        if self._next is not None:
            self._end()

    def _answer(self, path: bytes, body: bytes) -> None:
        if path.startswith(b"/v1/chat/"):
            self._streamer.running += 1
            self._next = self._loop.call_later(HEAD_SECONDS, self._begin, json.loads(body))
        elif path == b"/metrics":
            self._send(self._streamer.metrics(), b"text/plain; version=0.0.4")
        else:
            self._send(b"", b"text/plain", b"200 OK" if path == b"/health" else b"404 Not Found")

    def _send(self, body: bytes, kind: bytes, status: bytes = b"200 OK") -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (status, kind, len(body))
        self._transport.write(head + body)

    def _begin(self, prompt: dict[str, Any]) -> None:
        if prompt.get("stream"):
            self._transport.write(_STREAM_HEAD)
            self._token(prompt["max_tokens"])
        else:
            self._end()
            self._send(_WHOLE, b"application/json")

    def _token(self, left: int) -> None:
        if left:
            self._transport.write(_chunk(_EVENT))
            self._next = self._loop.call_later(TOKEN_SECONDS, self._token, left - 1)
        else:
            self._end()
            self._transport.write(_chunk(_DONE) + _chunk(b""))

    def _end(self) -> None:
        assert self._next is not None
        self._next.cancel()
        self._next = None
        self._streamer.running -= 1


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(port: int) -> None:
    """Serve until a signal ends the process."""
    streamer = Streamer()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(streamer), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--id", required=True)
    asyncio.run(serve(parser.parse_args().port))
