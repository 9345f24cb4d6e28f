"""One connection to Redis, and what may be said of it in a log line.

The bare connection instead of a client with a pool: a pool reconnects without telling, and every reconnect must
be seen (the stream may be another one). RESP2: replies are plain lists of bytes in every version of redis-py.
"""

import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import unquote

import anyio
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

Command = tuple[bytes | str | int, ...]

_CONNECT_SECONDS: Final = 2.0
_CLOSE_SECONDS: Final = 0.3  # a TLS goodbye to a frozen server must not hold up the end
_REASON_CHARS: Final = 160


class Store:
    """A connected Redis. Any failure raises; the connection is then of no more use."""

    def __init__(
        self, connection: Any
    ) -> None:  # Any: redis-py's connection types differ between its versions
        self._connection = connection
        self._clock_offset = 0.0

    async def command(self, *command: bytes | str | int) -> Any:
        """Send one command and return its reply; an error reply raises."""
        await self._connection.send_command(*command)
        return await self._connection.read_response()

    async def commands(self, commands: Sequence[Command]) -> None:
        """Send several commands at once and wait for all replies; the first error reply raises."""
        await self._connection.send_packed_command(self._connection.pack_commands(commands))
        for _ in commands:
            await self._connection.read_response()

    async def read_clock(self) -> None:
        """Learn the server's time, for `age`."""
        before = time.monotonic()
        seconds, micros = await self.command("TIME")
        self._clock_offset = int(seconds) + int(micros) / 1e6 - (before + time.monotonic()) / 2

    def age(self, milliseconds: int) -> float:
        """Seconds since a moment of the server's clock, at least 0."""
        return max(0.0, time.monotonic() + self._clock_offset - milliseconds / 1000)


@asynccontextmanager
async def connected(url: str, reply_seconds: float) -> AsyncIterator[Store]:
    """Connect without retries for the length of a block; a reply slower than `reply_seconds` raises."""
    options: dict[str, Any] = {
        **parse_url(url),  # first: what we rely on must win over the query of the URL
        "protocol": 2,
        "decode_responses": False,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "socket_timeout": reply_seconds,
        "socket_connect_timeout": _CONNECT_SECONDS,
        "health_check_interval": 0,
    }
    pool: Any = ConnectionPool(**options)  # only to turn the URL into the right kind of connection
    connection = pool.make_connection()
    try:
        await connection.connect()
        yield Store(connection)
    finally:
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await connection.disconnect(nowait=True)


def shown_url(url: str) -> str:
    """Return the URL rebuilt from its harmless parts: no user, no password, no query."""
    scheme = url.partition("://")[0]
    try:
        parts: dict[str, Any] = dict(parse_url(url))
    except ValueError:
        return f"{scheme}://(unreadable)"
    if scheme == "unix":
        return f"unix://{parts.get('path', '')}"
    return f"{scheme}://{parts.get('host', 'localhost')}:{parts.get('port', 6379)}/{parts.get('db', 0)}"


def reason_of(error: Exception, url: str) -> str:
    """Return one short line about the error in which nothing secret of the URL is left."""
    name = type(error).__name__
    try:
        parts: dict[str, Any] = dict(parse_url(url))
    except ValueError:
        return f"{name}: redis_url cannot be read"  # the text of the error may quote a piece of a password
    text = re.sub(r"\s+", " ", str(error)).strip()
    for secret in (parts.get("password"), parts.get("username")):
        if secret:
            text = text.replace(str(secret), "***").replace(unquote(str(secret)), "***")
    return f"{name}: {text[:_REASON_CHARS]}" if text else name
