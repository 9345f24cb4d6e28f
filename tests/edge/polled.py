"""A worker as the polls see it: a real small server, and a router with the health of one worker."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.types import Receive, Scope, Send

from prefix_middleware import Worker
from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.choose import Figures
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.router import Router
from prefix_middleware.health import WorkerHealth
from prefix_middleware.telemetry import Telemetry
from prefix_middleware.testing import FakeClock
from tests.edge.asgi import chunk, served
from tests.services import free_port

PROMPT = HashedPrompt((b"a" * 8, b"b" * 8), (0, 128, 256), b"e" * 8, None, 300, "m")
MODELS = b'{"data": [{"id": "m", "max_model_len": 4096}, {"id": "lora"}]}'


class Vllm:
    """The three paths of a worker that a poll asks, each answered as told; counts the polls."""

    def __init__(self) -> None:
        self.status = 200
        self.metrics = b"# HELP process_start_time_seconds x\nprocess_start_time_seconds 1.5e+09\n"
        self.models = MODELS
        self.models_status = 200
        self.silent = False
        self.asked: list[tuple[float, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        self.asked.append((time.monotonic(), path))
        if self.silent:
            await receive()
            await receive()  # until the client leaves
            return
        status, body = {
            "/health": (self.status, b""),
            "/metrics": (200, self.metrics),
            "/v1/models": (self.models_status, self.models),
        }[path]
        length = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": length})
        await send(chunk(body, more=False))


class Rig:
    """A router, and the health of one worker of it at a port that may be served or not."""

    def __init__(self, port: int) -> None:
        self.worker = worker = Worker("w1", f"http://127.0.0.1:{port}/")
        options: dict[str, Any] = {"index_blocks": 1000, "ttl_seconds": 100}
        self.router = Router([worker], policy="tokens", figures=Figures(), **options)
        self.state = self.router.fleet.states["w1"]
        self.clock = FakeClock()
        self.telemetry = Telemetry("host")
        self.health = WorkerHealth(worker, self.router, self.telemetry, self.clock)

    async def poll(self, times: int = 1, seconds: float = 5.0) -> bool | None:
        """Poll, giving up after `seconds`, and return readiness."""
        async with httpx.AsyncClient(timeout=seconds, trust_env=False, verify=False) as client:
            for _ in range(times):
                await self.health.poll(client)
        return self.state.ready

    def route(self) -> Reservation:
        """Count one request in."""
        reservation = self.router.route(PROMPT, self.clock(), 0.0)
        assert isinstance(reservation, Reservation)
        return reservation

    def matched(self) -> int:
        """Return how many blocks of the prompt the worker is thought to hold."""
        return self.router.index.match(PROMPT.hashes, "w1", self.clock())

    def answer(self) -> None:
        """Let one request start and finish, so that its prompt is held."""
        reservation = self.route()
        self.router.start(reservation, self.clock())
        self.router.finish(reservation)


@asynccontextmanager
async def rig() -> AsyncIterator[tuple[Rig, Vllm]]:
    vllm, port = Vllm(), free_port()
    async with served(vllm, port):
        yield Rig(port), vllm
