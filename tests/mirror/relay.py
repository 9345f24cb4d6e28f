"""A slow way to Redis that can slip bytes of its own into what Redis says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Relay:
    """Forwards a loopback port to Redis; `slip` puts a reply in front of the next one to a command."""

    def __init__(self, target_port: int, delay_seconds: float = 0.0) -> None:
        self.port = 0
        self.accepted = 0
        self.slipped = 0
        self._slip: tuple[bytes, bytes] | None = None
        self._target_port = target_port
        self._delay_seconds = delay_seconds
        self._handlers: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Redis URL that leads through the relay."""
        return f"redis://127.0.0.1:{self.port}/0"

    def slip(self, command: bytes, reply: bytes) -> None:
        """Say `reply` once, before what Redis says, on the next connection that has sent `command`."""
        self._slip = command, reply

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection both ways until either side ends."""
        self.accepted += 1
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        self._open.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            pumps = [
                asyncio.create_task(self._asked(reader, far_writer, writer)),
                asyncio.create_task(self._said(far_reader, writer)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            far_writer.transport.abort()
        finally:
            writer.transport.abort()
            self._open.discard(writer)
            self._handlers.discard(handler)

    async def finish(self) -> None:
        """Cut every connection and wait for the handlers."""
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def _asked(
        self, reader: asyncio.StreamReader, far: asyncio.StreamWriter, near: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65536):
            await asyncio.sleep(self._delay_seconds)
            if self._slip is not None and self._slip[0] in data:
                near.write(self._slip[1])
                self._slip, self.slipped = None, self.slipped + 1
            far.write(data)
            await far.drain()

    async def _said(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await asyncio.sleep(self._delay_seconds)
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def relay_to(target_port: int, delay_seconds: float = 0.0) -> AsyncIterator[Relay]:
    """Run a relay for the length of a block; every read is passed on `delay_seconds` later."""
    relay = Relay(target_port, delay_seconds)
    server = await asyncio.start_server(relay.handle, "127.0.0.1", 0)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
        await relay.finish()
