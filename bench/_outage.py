"""What requests feel while Redis is frozen: a gateway process of its own, asked over loopback, by phases well and frozen.

The gateway is uvicorn with the middleware and an endpoint that answers at once; one client asks every few milliseconds on one
connection and times each request from outside. A round is one phase well and one frozen (SIGSTOP); between rounds
the gateway must have written to Redis again.
"""

import asyncio
import logging
import time
from contextlib import closing
from http.client import HTTPConnection
from itertools import cycle
from multiprocessing import get_context
from typing import Final

from redis import Redis

from bench._bodies import KB, conversations
from bench._edge import PATH, settings_for
from bench._measure import Scale, Skipped, median_ratio, percentile
from bench._servers import free_port, healthy_worker, redis_server, wait_for_port
from prefix_middleware import PrefixMiddleware

_PAUSE_SECONDS: Final = 0.003
_SETTLE_SECONDS: Final = 30.0
_STREAM: Final = "{prefix:default}:decisions"


def _serve(port: int, redis_url: str) -> None:
    """Be the gateway."""
    logging.getLogger("prefix_middleware").addHandler(logging.NullHandler())
    asyncio.run(_gateway(port, redis_url))


async def _gateway(port: int, redis_url: str) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def endpoint(request: Request) -> Response:
        await request.body()
        worker = request.headers.get("x-prefix-worker", "")
        return Response(b"{}", media_type="application/json", headers={"x-worker": worker})

    app = Starlette(routes=[Route(PATH, endpoint, methods=["POST"])])
    async with healthy_worker() as worker_port:
        app.add_middleware(PrefixMiddleware, settings=settings_for(worker_port, redis_url=redis_url))
        config = uvicorn.Config(app, port=port, log_level="critical", access_log=False)
        await uvicorn.Server(config).serve()


class _Client:
    """Asks the gateway on one connection."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=10)
        self._bodies = cycle(chat.body for chat in conversations(33 * KB, 16))

    def ask(self) -> tuple[float, str]:
        """Return the seconds of one request, and the worker that it was given."""
        began = time.perf_counter()
        self.connection.request("POST", PATH, next(self._bodies), {"content-type": "application/json"})
        with self.connection.getresponse() as answer:
            answer.read()
            took = time.perf_counter() - began
            return took, answer.headers["x-worker"] or ""

    def phase(self, seconds: float) -> list[float]:
        """Ask for so long; return what each request took, in seconds."""
        times: list[float] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            times.append(self.ask()[0])
            time.sleep(_PAUSE_SECONDS)
        return times

    def settle(self, redis: "Redis") -> None:
        """Ask until requests are routed and the mirror writes; raises Skipped when neither comes."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        before = _written(redis)
        while not self.ask()[1] or _written(redis) == before:
            if time.monotonic() > deadline:
                raise Skipped("the gateway did not write to Redis")
            time.sleep(_PAUSE_SECONDS)


def _written(redis: "Redis") -> object:
    entries = redis.xrevrange(_STREAM, count=1)
    return entries[0][0] if entries else None


def frozen_over_well(scale: Scale) -> float:
    """Return the p99 of request times while Redis is frozen over that while it is well: the median of the rounds."""
    port = free_port()
    with redis_server() as server, Redis.from_url(server.url) as redis:
        child = get_context("spawn").Process(target=_serve, args=(port, server.url))
        child.start()
        try:
            wait_for_port(port)
            client = _Client(port)
            with closing(client.connection):
                client.settle(redis)
                rounds: list[tuple[float, float]] = []
                for _ in range(scale.phases):
                    well = client.phase(scale.phase_seconds)
                    server.freeze()
                    frozen = client.phase(scale.phase_seconds)
                    server.thaw()
                    client.settle(redis)
                    rounds.append((percentile(frozen, 99), percentile(well, 99)))
        finally:
            child.kill()
            child.join()
    return median_ratio(rounds)
