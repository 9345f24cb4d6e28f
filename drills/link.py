"""A TCP link that can be made slow: what goes through it arrives `delay_seconds` later, both ways, in order."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SlowLink:
    """Forwards a loopback port of its own to another one."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.delay_seconds = 0.0  # may be changed at any time
        self._target_port = target_port
        self._ended = asyncio.Event()
        self._handlers: set[asyncio.Task[None]] = set()
        self._near: set[asyncio.StreamWriter] = set()

    async def serve(self, ready: threading.Event) -> None:
        """Forward until `end`."""
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._ended.wait()
        server.close()
        for writer in list(self._near):
            writer.transport.abort()  # a handler that is cancelled would be reported as an error
        await asyncio.gather(*self._handlers, return_exceptions=True)

    def end(self) -> None:
        """Close everything; on the link's own event loop."""
        self._ended.set()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        self._near.add(writer)
        far_writer: asyncio.StreamWriter | None = None
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, far_writer))
                pumps.create_task(self._pump(far_reader, writer))
        except* OSError:
            pass  # either side has gone
        finally:
            self._handlers.discard(handler)
            self._near.discard(writer)
            for end in (writer, far_writer):
                if end is not None:
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop, due = asyncio.get_running_loop(), 0.0
        while data := await reader.read(65536):
            due = max(due + 1e-6, loop.time() + self.delay_seconds)  # never overtakes what was sent before
            loop.call_at(due, writer.write, data)
        raise ConnectionError  # ends the other direction, too


@contextmanager
def slow_link(target_port: int) -> Iterator[SlowLink]:
    """Run a link, as quick as it can be, on a thread for the length of a block."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    link = SlowLink(target_port)
    thread = threading.Thread(target=loop.run_until_complete, args=(link.serve(ready),))
    thread.start()
    ready.wait()
    try:
        yield link
    finally:
        loop.call_soon_threadsafe(link.end)
        thread.join()
        loop.close()
