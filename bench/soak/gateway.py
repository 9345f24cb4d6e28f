"""The gateway of the soak: the middleware over a host that answers by itself, and a path that tells what it holds.

CPU time of a decision is taken inside the process, from the complete body to the choice. Beside each the floor is timed on
the same body, decoding and a bare BLAKE3 chain: what slows the machine for a while slows both.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from blake3 import blake3
from msgspec.json import decode, encode
from starlette.types import ASGIApp, Receive, Scope, Send

from bench._edge import settings_for
from bench._servers import healthy_worker
from prefix_middleware import PrefixMiddleware
from prefix_middleware.body import HeldBody
from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.canonical import Api, Skip
from prefix_middleware.mirror import link
from prefix_middleware.runtime import Runtime

STATE_PATH: Final = "/__soak"
_BLOCK_BYTES: Final = 512
_KEY: Final = bytes(32)
_CHUNKS: Final = [b'data: {"choices":[{"delta":{"content":"tok"}}]}\n\n'] * 8


class Times:
    """CPU seconds of decisions and of their floors, until they are taken."""

    def __init__(self) -> None:
        self.decisions: list[float] = []
        self.floors: list[float] = []

    def take(self) -> dict[str, list[float]]:
        """Return what has come since the last call."""
        taken = {"decisions": self.decisions, "floors": self.floors}
        self.decisions, self.floors = [], []
        return taken

    def measure(self, runtime: Runtime) -> None:
        """Time every decision of a runtime from now on."""
        read, route = runtime.read_prompt, runtime.route
        reading = 0.0

        async def timed_read(api: Api, scope: Scope, body: HeldBody) -> HashedPrompt | Skip:
            nonlocal reading
            self.floors.append(_timed(lambda: _floor(body.data())))
            began = time.thread_time()
            prompt = await read(api, scope, body)
            reading = time.thread_time() - began
            return prompt

        def timed_route(prompt: HashedPrompt | Skip, *args: Any) -> Any:
            began = time.thread_time()
            exchange = route(prompt, *args)
            self.decisions.append(reading + time.thread_time() - began)
            return exchange

        vars(runtime).update(read_prompt=timed_read, route=timed_route)


def _timed(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _floor(body: bytes) -> None:
    decode(body)
    parent = b"\0" * 8
    hasher = blake3(key=_KEY)
    for start in range(0, len(body), _BLOCK_BYTES):
        hasher.reset()
        hasher.update(parent + body[start : start + _BLOCK_BYTES])
        parent = hasher.digest(8)


class _Host:
    """Reads a request and streams eight chunks; tells what the process holds where it is asked to."""

    def __init__(self) -> None:
        self.state: Callable[[], dict[str, Any]] = dict

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        chunks = [encode(self.state())] if scope["path"] == STATE_PATH else _CHUNKS
        while (await receive()).get("more_body", False):
            pass
        length = str(sum(map(len, chunks))).encode()
        headers = [(b"content-type", b"text/event-stream"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _serve(port: int, redis_url: str, options: dict[str, Any], stream_bytes: int) -> None:
    link.DECISIONS_BYTES = stream_bytes  # type: ignore[misc]
    host, times = _Host(), Times()
    async with healthy_worker() as worker:
        app = PrefixMiddleware(host, settings_for(worker, redis_url=redis_url, **options))
        runtime = app._runtime
        times.measure(runtime)
        host.state = lambda: {
            "pairs": len(runtime.router.index),
            "in_flight": sum(state.in_flight for state in runtime.router.fleet.states.values()),
            "skips": runtime.telemetry.counts["skips"] - runtime.telemetry.counts["skips.path"],
            "errors": runtime.telemetry.counts["errors"],
            **times.take(),
        }
        asgi: ASGIApp = app
        server = uvicorn.Server(
            uvicorn.Config(asgi, port=port, log_level="critical", access_log=False, lifespan="off")
        )
        runtime.ensure_started()
        try:
            await server.serve()
        finally:
            await runtime.stop()


def serve(port: int, redis_url: str, options: dict[str, Any], stream_bytes: int) -> None:
    """Be the gateway, until a signal."""
    logging.getLogger("prefix_middleware").addHandler(logging.NullHandler())
    asyncio.run(_serve(port, redis_url, options, stream_bytes))
