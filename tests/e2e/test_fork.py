"""Several processes of one gateway on a real Redis, forked from an application that was loaded before."""

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.edge.asgi import CHAT, chat
from tests.services import Process, RedisServer, accepts, free_port, wait_until

ROOT = Path(__file__).parents[2]
GATEWAY = """
import asyncio, os, signal, sys, time
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from prefix_middleware import PrefixMiddleware

async def chat(request):
    if b"hold" in await request.body():
        await asyncio.sleep(600)
    decision = request.scope["prefix_middleware"]
    return JSONResponse({"pid": os.getpid(), "worker": decision.worker, "matched": decision.matched_blocks})

async def facts(request):
    runtime, now = app._runtime, time.monotonic()
    fleet = runtime.router.fleet
    fleet.expire(now)
    return JSONResponse({
        "pid": os.getpid(),
        "origin": runtime.router.on_update.__self__.origin,
        "connected": runtime.telemetry.counts["mirror_connected"],
        "in_flight": sum(fleet.load(state, now).in_flight for state in fleet.states.values()),
    })

routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/facts", facts)]
app = PrefixMiddleware(Starlette(routes=routes))

if __name__ == "__main__":
    children = []
    for port in sys.argv[1:]:
        child = os.fork()
        if not child:
            uvicorn.run(app, port=int(port), access_log=False)
            os._exit(0)
        children.append(child)
    signal.signal(signal.SIGTERM, lambda *_: [os.kill(child, signal.SIGTERM) for child in children])
    while children:
        children.remove(os.wait()[0])  # one that is gone is sent nothing
"""


class Gateways:
    """Starts the gateway's processes, and asks them."""

    def __init__(self, folder: Path, redis: RedisServer, workers: list[int], exits: ExitStack) -> None:
        self._folder, self._redis, self._workers, self._exits = folder, redis, workers, exits
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = exits.enter_context(httpx.Client(timeout=60, trust_env=False, limits=limits))
        (folder / "gateway.py").write_text(GATEWAY)

    def start(self, ports: list[int], *command: str) -> None:
        """Run a command in the gateway's folder until the test ends; return once something listens on the ports."""
        listed = (f"w{n}=http://127.0.0.1:{port}" for n, port in enumerate(self._workers, 1))
        env = {
            "PREFIX_WORKERS": ",".join(listed),
            "PREFIX_REDIS_URL": self._redis.url,
            "PREFIX_SECRET": "a secret of the tests",
            "PREFIX_HEALTH_SECONDS": "300",
            "PYTHONPATH": f"{self._folder}:{ROOT}",
        }
        process = Process([sys.executable, *command], env, self._folder / "log")
        self._exits.callback(process.stop)
        wait_until(lambda: all(map(accepts, ports)) or process.returncode is not None, 120, "gateways up")
        assert process.returncode is None, process.text()

    def facts(self, port: int) -> dict[str, Any]:
        """Ask whichever process takes the connection how it is."""
        found: dict[str, Any] = self._client.get(f"http://127.0.0.1:{port}/facts").json()
        return found

    def ask(self, port: int, text: str) -> dict[str, Any]:
        """Send one prompt over a connection of its own."""
        found: dict[str, Any] = self._client.post(f"http://127.0.0.1:{port}{CHAT}", content=chat(text)).json()
        return found

    def until_in_flight(self, port: int, count: int, seconds: float = 60.0) -> None:
        """Wait until a process counts so many requests of all of them."""
        wait_until(lambda: self.facts(port)["in_flight"] == count, seconds, f"{count} in flight at {port}")

    def until_known(self, port: int, text: str) -> str:
        """Ask until a process finds the prompt held by somebody; return the worker that it names."""
        named: list[str] = []

        def known() -> bool:
            found = self.ask(port, text)
            if found["matched"]:
                named.append(found["worker"])
            return bool(named)

        wait_until(known, 60, f"the prompt known at {port}")
        return named[0]


@pytest.fixture
def gateways(tmp_path: Path, redis: RedisServer) -> Iterator[Gateways]:
    """Two workers that accept and never answer; everything started is stopped."""
    with ExitStack() as exits:
        workers = [exits.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        yield Gateways(tmp_path, redis, [worker.getsockname()[1] for worker in workers], exits)


def test_forks_of_a_preloaded_gateway_hear_each_other_and_outlive_one(gateways: Gateways) -> None:
    """Each has an origin of its own, so none takes another's news for its own echo; a killed one's load ends with it."""
    ports = [free_port() for _ in range(3)]
    gateways.start(ports, str(gateways._folder / "gateway.py"), *map(str, ports))
    wait_until(lambda: all(gateways.facts(port)["connected"] for port in ports), 60, "all connected")
    said = [gateways.facts(port) for port in ports]
    assert len({it["pid"] for it in said}) == len({it["origin"] for it in said}) == 3
    assert [str(it["pid"]) in it["origin"].split("-") for it in said] == [True] * 3

    text = "a conversation " * 400
    first = gateways.ask(ports[0], text)["worker"]
    assert [gateways.until_known(port, text) for port in ports[1:]] == [first] * 2

    held = [hold(ports[0]) for _ in range(3)]
    try:
        for port in ports:
            gateways.until_in_flight(port, 3)
        os.kill(said[0]["pid"], signal.SIGKILL)
        for port in ports[1:]:
            gateways.until_in_flight(port, 0)
    finally:
        for connection in held:
            connection.close()


def hold(port: int) -> socket.socket:
    """Send a prompt that the gateway never ends; return its connection."""
    connection = socket.create_connection(("127.0.0.1", port))
    body = chat("hold " * 200)
    connection.sendall(
        f"POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    )
    return connection
