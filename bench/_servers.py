"""The real servers that some rows need: a redis-server that can be frozen, and workers that answer that they are well."""

import asyncio
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from bench._measure import Skipped

_START_SECONDS: Final = 10.0
_OK: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def free_port() -> int:
    """Return a loopback TCP port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


def wait_for_port(port: int, seconds: float = _START_SECONDS) -> None:
    """Return once something listens on the loopback port; raises Skipped when nothing does in so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as sock:
            sock.settimeout(0.2)
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise Skipped(f"nothing listens on port {port}")


class RedisServer:
    """A redis-server of our own on a loopback port."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self._process = process

    def freeze(self) -> None:
        """Stop it: connections stay open and nothing answers."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """Run a redis-server without persistence for the length of a block; raises Skipped where there is none."""
    program = shutil.which("redis-server")
    if program is None:
        raise Skipped("no redis-server")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="prefix-bench-") as folder:
        options = [
            "--bind",
            "127.0.0.1",
            "--port",
            str(port),
            "--dir",
            folder,
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for_port(port)
            yield RedisServer(process, port)
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@asynccontextmanager
async def healthy_worker() -> AsyncIterator[int]:
    """Answer 200 to everything on a loopback port, and return the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(_OK)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
