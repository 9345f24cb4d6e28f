"""Loopback stand-ins behind nginx, raw enough to misbehave: a worker that can fail at any point, and a gateway."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import h11

from tests.services import free_port

Behaviour = Literal["answer", "close", "die", "stream", "hang"]
Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    sha256: str
    headers: dict[str, str]


class Connection:
    """One accepted connection: reads requests, writes answers, notices that the peer has left."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER)

    async def request(self) -> Seen | None:
        """Return the next whole request, None when the peer is gone."""
        digest = hashlib.sha256()
        head: h11.Request | None = None
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(65536))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                digest.update(event.data)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                headers = {name.decode(): value.decode() for name, value in head.headers}
                target, method = head.target.decode(), head.method.decode()
                return Seen(method=method, target=target, sha256=digest.hexdigest(), headers=headers)
            else:
                return None

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of an answer."""
        await self._send(h11.Response(status_code=status, headers=headers))

    async def chunk(self, data: bytes) -> None:
        """Send a part of the body."""
        await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """Finish the answer and make ready for the next request."""
        await self._send(h11.EndOfMessage())
        self._http.start_next_cycle()

    async def left(self, seconds: float) -> bool:
        """Wait that long and tell whether the peer has closed the connection meanwhile."""
        try:
            return await asyncio.wait_for(self._reader.read(1), seconds) == b""
        except TimeoutError:
            return False

    def abort(self) -> None:
        """Drop the connection at once."""
        self._writer.transport.abort()

    async def _send(self, event: Any) -> None:
        self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()


@dataclass
class Server:
    """An HTTP/1.1 server on a free loopback port, in the test's own event loop."""

    name: str
    host: str = "127.0.0.1"
    port: int = field(default_factory=free_port)
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    disconnects: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    async def start(self) -> None:
        """Listen."""
        self._listener = await asyncio.start_server(self._serve, self.host, self.port)

    async def stop(self) -> None:
        """Refuse connections from now on, and drop the open ones."""
        if self._listener is not None:
            self._listener.close()
            for writer in self._open:
                writer.transport.abort()
            await self._listener.wait_closed()
            self._listener = None

    async def answer(self, seen: Seen, connection: Connection) -> None:
        """Answer one request."""
        raise NotImplementedError

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        connection = Connection(reader, writer)
        try:
            while (seen := await connection.request()) is not None:
                self.seen.append(seen)
                await self.answer(seen, connection)
        except (ConnectionError, h11.ProtocolError):
            pass  # the peer or the behaviour under test has ended the connection
        finally:
            self._open.discard(writer)
            writer.transport.abort()


@dataclass
class FakeWorker(Server):
    """A worker whose next answers can be chosen; every answer also lies about who it is."""

    behaviour: Behaviour = "answer"
    status: int = 200
    headers: Headers = field(default_factory=list)
    chunks: int = 20
    gap_seconds: float = 0.03

    async def answer(self, seen: Seen, connection: Connection) -> None:
        """Do what `behaviour` and `status` say."""
        if self.behaviour == "close":
            connection.abort()
        elif self.behaviour == "hang":
            self.disconnects += await connection.left(30)
            connection.abort()
        elif self.behaviour in ("stream", "die"):
            await self._stream(connection)
        else:
            lies = [("X-Prefix-Served", "liar"), ("X-Prefix-Worker", "liar"), *self.headers]
            await connection.start(self.status, [("content-length", str(len(self.name))), *lies])
            await connection.chunk(self.name.encode())
            await connection.end()

    async def _stream(self, connection: Connection) -> None:
        await connection.start(200, [("content-type", "text/event-stream"), ("transfer-encoding", "chunked")])
        for number in range(self.chunks):
            await connection.chunk(b"data: %d\n\n" % number)
            if self.behaviour == "die" or await connection.left(self.gap_seconds):
                self.disconnects += self.behaviour == "stream"
                connection.abort()
                return
        await connection.end()


@dataclass
class FakeGateway(Server):
    """A gateway of topology b: 401 without a key, else a redirect to the worker named in `choice`."""

    choice: str = "w1"

    async def answer(self, seen: Seen, connection: Connection) -> None:
        """Check the key, then hand over to nginx where it said that it can be asked."""
        if "authorization" not in seen.headers:
            refusal = [("content-length", "6"), ("retry-after", "7"), ("x-reason", "no key")]
            await connection.start(401, refusal)
            await connection.chunk(b"no key")
        else:
            accel = seen.headers.get("x-prefix-accel", "")
            found = [
                ("x-accel-redirect", accel),
                ("x-prefix-worker", self.choice),
                ("x-billing-id", "bill-1"),
            ]
            await connection.start(200, [("content-length", "0"), *found])
        await connection.end()


@asynccontextmanager
async def serving(*servers: Server) -> AsyncIterator[None]:
    """Run servers for the length of a block."""
    try:
        for server in servers:
            await server.start()
        yield
    finally:
        for server in servers:
            await server.stop()
