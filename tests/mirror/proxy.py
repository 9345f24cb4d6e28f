"""A TCP proxy in front of Redis that counts connections and can cut them all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """Forwards a loopback port to another one."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.accepted = 0
        self.refusing = False
        self.open: set[asyncio.StreamWriter] = set()
        self._target_port = target_port
        self._handlers: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Redis URL that leads through the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    def lead_to(self, port: int) -> None:
        """Forward later connections to another port, as a failover does."""
        self._target_port = port

    def cut(self) -> None:
        """Reset every connection at once, whatever is in flight."""
        for writer in list(self.open):
            writer.transport.abort()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection both ways until either side ends."""
        self.accepted += 1
        if self.refusing:
            writer.transport.abort()
            return
        self.open.add(writer)
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            pumps = [
                asyncio.create_task(_pump(reader, far_writer)),
                asyncio.create_task(_pump(far_reader, writer)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            far_writer.transport.abort()
        except OSError:
            pass  # nobody there: the client sees its connection close
        finally:
            writer.transport.abort()
            self.open.discard(writer)
            self._handlers.discard(handler)

    async def finish(self) -> None:
        """Cut everything and wait for the handlers."""
        self.cut()
        await asyncio.gather(*self._handlers, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # cut on purpose


@asynccontextmanager
async def proxy_to(target_port: int) -> AsyncIterator[Proxy]:
    """Run a proxy for the length of a block."""
    proxy = Proxy(target_port)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.finish()
