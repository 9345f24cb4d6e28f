"""Anonymous requests push nothing out: a flood that auth turns away, over a real server, before and behind the middleware."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from prefix_middleware import PrefixMiddleware
from tests.edge.asgi import (
    CHAT,
    assert_nothing_left,
    counts_of,
    eventually,
    mounted,
    read,
    router_of,
    sent_headers,
    served,
    settings_for,
)
from tests.edge.conftest import silent_port
from tests.edge.logs import fields_of

__all__ = ["silent_port"]

pytestmark = pytest.mark.anyio

POSTS, BLOCKS = 3_125, 64  # 200,000 blocks: as many as the index holds by default
WORKERS = ("w1", "w2", "w3", "w4")
CONVERSATIONS = 24
KEY = b"Authorization: Bearer sk-alice\r\n"


async def host(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the worker that the header names and the decision behind it."""
    await read(receive)
    [worker] = sent_headers(scope)
    body = json.dumps({"worker": worker.decode(), **fields_of(scope["prefix_middleware"])}).encode()
    await answer(send, 200, body)


async def answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Auth:
    """A host's own middleware: 401 for whoever has no key, the body unread."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or any(name == b"authorization" for name, _ in scope["headers"]):
            await self.app(scope, receive, send)
            return
        self.refused += 1
        await answer(send, 401, b"no key")


class Connection:
    """One kept connection, written and read by hand: the flood should cost the server's time, not a client's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def post(self, body: bytes, headers: bytes = b"") -> tuple[int, bytes]:
        """Send one prompt; return status and body of the answer."""
        head = b"POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n"
        self._writer.write(head % (CHAT.encode(), headers, len(body)) + body)
        answered = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 60)
        [length] = [
            line[15:] for line in answered.lower().split(b"\r\n") if line.startswith(b"content-length:")
        ]
        return int(answered[9:12]), await self._reader.readexactly(int(length))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


def turn(number: int, turns: int) -> bytes:
    """Return the body of one turn of a conversation of 6 KB a message, different from its first byte on."""
    said = [(f"{number} {role} {n} ", role) for n in range(turns) for role in ("user", "assistant")]
    messages = [{"role": role, "content": text * 600} for text, role in said[:-1]]
    return json.dumps({"model": "m", "messages": messages}).encode()


async def play(connection: Connection, turns: int) -> list[dict[str, Any]]:
    """Send one turn of every conversation; return what the host had of each."""
    answers = [await connection.post(turn(number, turns), KEY) for number in range(CONVERSATIONS)]
    assert {status for status, _ in answers} == {200}
    return [json.loads(body) for _, body in answers]


async def flood(url: str, connections: int) -> set[int]:
    """Post 3,125 different prompts of 64 blocks without a key; return every status that came back."""
    tail = b"x" * (BLOCKS * 512) + b'"}]}'
    numbers = iter(range(POSTS))

    async def client() -> set[int]:
        async with connected(url) as connection:
            start = b'{"model":"m","messages":[{"role":"user","content":"%08d'
            return {(await connection.post(start % number + tail))[0] for number in numbers}

    return set().union(*await asyncio.gather(*(client() for _ in range(connections))))


async def survive(app: ASGIApp, middleware: PrefixMiddleware, connections: int) -> None:
    """Warm, flood, and ask again: worker and whole match of every conversation are as they would have been."""
    async with served(app, timeout_keep_alive=600) as url, connected(url) as alice:
        first = await play(alice, 1)
        index = router_of(middleware).index
        known = len(index)
        assert await flood(url, connections) == {401}
        await eventually(lambda: index.provisional == 0, "the last 401 counted out")
        assert len(index) == known
        second = await play(alice, 2)
    home = [(reply["worker"], reply["blocks"]) for reply in first]
    assert ({worker for worker, _ in home}, min(blocks for _, blocks in home) > 4) == (set(WORKERS), True)
    assert [(reply["worker"], reply["matched_blocks"]) for reply in second] == home
    assert {reply["reason"] for reply in second} == {"hit"}
    assert_nothing_left(middleware)


async def test_a_flood_of_401s_behind_the_middleware_displaces_nothing(silent_port: int) -> None:
    """Mounted outside auth, 3,125 anonymous prompts are routed and none is recorded: every conversation stays."""
    auth = Auth(host)
    async with mounted(auth, settings_for(silent_port, WORKERS)) as middleware:
        await survive(middleware, middleware, 8)
        assert (auth.refused, counts_of(middleware)["decisions"]) == (POSTS, POSTS + 2 * CONVERSATIONS)


async def test_a_flood_of_401s_before_the_middleware_never_reaches_it(silent_port: int) -> None:
    """Mounted inside auth, it has nothing to do with what auth turns away: no body held, nothing decided."""
    async with mounted(host, settings_for(silent_port, WORKERS)) as middleware:
        auth = Auth(middleware)
        await survive(auth, middleware, 1)
        assert (auth.refused, counts_of(middleware)["decisions"]) == (POSTS, 2 * CONVERSATIONS)
