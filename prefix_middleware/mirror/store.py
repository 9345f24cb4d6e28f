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
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MovedError

from prefix_middleware.mirror.address import Address

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

    async def commands(self, commands: Sequence[Command]) -> list[Any]:
        """Send several commands at once and return all replies; the first error reply raises."""
        await self._connection.send_packed_command(self._connection.pack_commands(commands))
        return [await self._connection.read_response() for _ in commands]

    async def read_clock(self) -> None:
        """Learn the server's time, for `age`."""
        before = time.monotonic()
        seconds, micros = await self.command("TIME")
        self._clock_offset = int(seconds) + int(micros) / 1e6 - (before + time.monotonic()) / 2

    def milliseconds(self) -> int:
        """Return the server's clock."""
        return int((time.monotonic() + self._clock_offset) * 1000)

    def age(self, milliseconds: int) -> float:
        """Seconds since a moment of the server's clock, at least 0."""
        return max(0.0, time.monotonic() + self._clock_offset - milliseconds / 1000)


@asynccontextmanager
async def connected(url: str | Address, reply_seconds: float) -> AsyncIterator[Store]:
    """Connect without retries for the length of a block; a reply slower than `reply_seconds` raises."""
    address = Address(url) if isinstance(url, str) else url
    connection = await _connection(address, reply_seconds)
    try:
        await connection.connect()
        yield Store(connection)
    except MovedError as moved:
        address.moved(moved.host, moved.port)
        raise
    except Exception:
        address.failed()
        raise
    finally:
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await connection.disconnect(nowait=True)


async def _connection(address: Address, reply_seconds: float) -> Any:
    options: dict[str, Any] = {
        **await address.resolve(),  # first: what we rely on must win over the query of the URL
        "protocol": 2,
        "decode_responses": False,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "socket_timeout": reply_seconds,
        "socket_connect_timeout": _CONNECT_SECONDS,
        "health_check_interval": 0,
    }
    pool: Any = ConnectionPool(**options)  # only to turn the options into the right kind of connection
    return pool.make_connection()


def shown_url(url: str) -> str:
    """Return the URL rebuilt from its harmless parts: no user, no password, no query."""
    try:
        return Address(url).shown
    except ValueError:
        return f"{url.partition('://')[0]}://(unreadable)"


def reason_of(error: Exception, url: str) -> str:
    """Return one short line about the error in which nothing secret of the URL is left."""
    name = type(error).__name__
    try:
        secrets = Address(url).secrets
    except ValueError:
        return f"{name}: redis_url cannot be read"  # the text of the error may quote a piece of a password
    text = re.sub(r"\s+", " ", str(error)).strip()
    for secret in secrets:
        text = text.replace(secret, "***").replace(unquote(secret), "***")
    return f"{name}: {text[:_REASON_CHARS]}" if text else name


def only_id(entries: Any) -> bytes:
    """Return the id of the one entry of an XRANGE reply, 0-0 when it is empty."""
    return bytes(entries[0][0]) if entries else b"0-0"


def number(entry_id: bytes) -> tuple[int, int]:
    """Return an entry id as something to compare."""
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence)
