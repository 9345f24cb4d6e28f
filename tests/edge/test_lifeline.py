"""A connection on which nothing is said: its end is noticed at once, and nobody is asked again and again."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from prefix_middleware.health import watch_workers
from prefix_middleware.lifeline import Lifeline
from tests.edge.asgi import eventually, served
from tests.edge.polled import Rig, Vllm
from tests.services import free_port

pytestmark = pytest.mark.anyio

AN_HOUR = 3600.0


class Server:
    """Takes connections and keeps them."""

    def __init__(self) -> None:
        self.port = free_port()
        self.open: list[asyncio.StreamWriter] = []
        self.taken = 0

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.append(writer)
        self.taken += 1

    def end(self, last_words: bytes = b"", *, rudely: bool = False) -> None:
        """End every connection."""
        for writer in self.open:
            if last_words:
                writer.write(last_words)
            if rudely:
                writer.transport.abort()
            writer.close()
        self.open.clear()

    @asynccontextmanager
    async def line(self, seconds: float) -> AsyncIterator["asyncio.Task[bool]"]:
        """Wait on a line, connected, for the length of a block."""
        lifeline = Lifeline(f"http://127.0.0.1:{self.port}")
        async with await asyncio.start_server(self.take, "127.0.0.1", self.port):
            task = asyncio.create_task(lifeline.ended(seconds))
            await eventually(lambda: bool(self.open), "the connection")
            yield task
            await lifeline.close()
            self.end()


@pytest.mark.parametrize(
    ("last_words", "rudely"), [(b"", False), (b"", True), (b"HTTP/1.1 408 x\r\n\r\n", False)]
)
async def test_the_end_of_the_connection_is_told_at_once(last_words: bytes, rudely: bool) -> None:
    """However the other side ends it."""
    server = Server()
    async with server.line(AN_HOUR) as waiting:
        server.end(last_words, rudely=rudely)
        assert await asyncio.wait_for(waiting, 10) is True


async def test_one_connection_serves_many_waits() -> None:
    """A wait that is over says so, and the next goes on with the same connection."""
    server = Server()
    lifeline = Lifeline(f"http://127.0.0.1:{server.port}")
    async with await asyncio.start_server(server.take, "127.0.0.1", server.port):
        assert [await lifeline.ended(0.05) for _ in range(3)] == [False] * 3
        assert server.taken == 1
        await lifeline.close()
        server.end()


async def test_who_ends_it_is_left_alone_for_one_wait() -> None:
    """A server that ends every connection is asked for one per two waits, not in a loop."""
    server = Server()
    lifeline = Lifeline(f"http://127.0.0.1:{server.port}")

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.taken += 1
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", server.port):
        told = [await lifeline.ended(0.2) for _ in range(6)]
    assert (told, server.taken) == ([True, False] * 3, 3)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{port}", "https://127.0.0.1:{port}", "http://no.such.name.invalid"]
)
async def test_without_a_connection_the_wait_lasts_as_long_as_asked(url: str) -> None:
    """Nobody listens, or it is TLS, or the name is unknown: the polls alone tell."""
    began = time.monotonic()
    assert await Lifeline(url.format(port=free_port())).ended(0.2) is False
    assert time.monotonic() - began >= 0.2


async def test_a_killed_worker_is_no_candidate_at_once() -> None:
    """The next poll is an hour away: that its connection has ended is enough to look."""
    port = free_port()
    rig = Rig(port)
    async with asyncio.TaskGroup() as tasks:
        async with served(Vllm(), port):
            watching = tasks.create_task(watch_workers([rig.health], AN_HOUR, lambda: 0.5))
            await eventually(lambda: rig.state.ready is True, "the first poll")
        await eventually(lambda: rig.state.ready is False, "the news")
        watching.cancel()


async def test_a_worker_that_is_back_already_has_no_credit() -> None:
    """It is well whenever it is asked, and only its start time tells that its cache is empty."""
    server, started = Server(), b"1.5e9"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.open.append(writer)
        while line := await reader.readline():
            if line.startswith(b"GET"):
                body = b"process_start_time_seconds %s\n" % started
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    rig = Rig(server.port)
    async with await asyncio.start_server(answer, "127.0.0.1", server.port):
        watching = asyncio.create_task(watch_workers([rig.health], AN_HOUR, lambda: 0.5))
        await eventually(lambda: rig.state.epoch == 1.5e9 and len(server.open) == 2, "the first poll")
        rig.answer()
        matched, started = rig.matched(), b"1.6e9"
        server.end()
        await eventually(lambda: rig.state.epoch == 1.6e9, "the news")
        watching.cancel()
        server.end()
    assert (matched, rig.matched(), rig.state.ready) == (2, 0, True)


async def test_watching_leaves_no_connection_behind() -> None:
    """Cancelled, it closes its line."""
    server = Server()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.taken += 1
        await reader.read()
        server.taken -= 1
        writer.close()

    rig = Rig(server.port)
    async with await asyncio.start_server(answer, "127.0.0.1", server.port):
        task = asyncio.create_task(watch_workers([rig.health], 0.05, lambda: 0.5))
        await eventually(lambda: server.taken > 0, "a connection")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: server.taken == 0, "their end")
