"""The gateway of the drills: one middleware around a host that relays to nginx, and a route that tells what is counted.

GET /__drill    {"pid": ..., "rss_kib": ..., "in_flight": ..., "others_in_flight": ..., "workers": {id: [ready, epoch]}, ...}

Besides the port that clients use, each process listens on a socket of its own, `<process id>.sock` in DRILL_SEATS: where
several processes share a port, only the kernel says who answers there. Every routed answer has the decision in headers
`x-drill-...`. The host leaves when its client does, as a gateway should.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import anyio
import uvicorn
from starlette.types import Message, Receive, Scope, Send

from prefix_middleware import Decision, PrefixMiddleware
from prefix_middleware.testing.raw import DisconnectError, end_body, read_body, run_lifespan, send_json

PAGE_KIB: Final = 4
UPSTREAM: Final = os.environ.get("DRILL_UPSTREAM_URL", "")
SEATS: Final = os.environ.get("DRILL_SEATS", ".")
_TIMEOUT: Final = aiohttp.ClientTimeout(
    total=None, sock_connect=5
)  # a prompt may wait long for its first byte
_KEPT: Final = ("content-type", "x-prefix-served")


class Host:
    """The application that the middleware is mounted in."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None  # made on the loop that uses it, after any fork

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "lifespan":
            await run_lifespan(receive, send)
            if self._session is not None:
                await self._session.close()
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(receive)
        except DisconnectError:
            return
        failed = False
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
            failed = not await self._relay(scope, body, send)
            group.cancel_scope.cancel()
        if failed:
            raise ConnectionError("the worker broke off")  # the server closes the connection: no whole answer

    async def _relay(self, scope: Scope, body: bytes, send: Send) -> bool:
        """Return whether the client has a whole answer, if only that there is none."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=_TIMEOUT, connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
            )
        started = False
        try:
            headers = {"content-type": "application/json"}
            async with self._session.post(UPSTREAM + scope["path"], data=body, headers=headers) as answer:
                await send(_start(answer, scope.get("prefix_middleware")))
                started = True
                async for chunk in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except aiohttp.ClientError as error:
            if not started:
                await send_json(send, 502, {"error": repr(error)})
            return not started
        await end_body(send)
        return True


def _start(answer: aiohttp.ClientResponse, decision: Decision | None) -> Message:
    headers = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
    headers["x-drill-pid"] = str(os.getpid())
    if decision is not None:
        headers["x-drill-worker"] = decision.worker or ""
        headers["x-drill-blocks"] = f"{decision.matched_blocks}/{decision.blocks}"
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": answer.status, "headers": raw}


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class Gateway:
    """The middleware around the host, and the drill's own route beside it."""

    def __init__(self) -> None:
        self._middleware = PrefixMiddleware(Host())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "lifespan":
            async with self._seat():
                await self._middleware(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] == "/__drill":
            await send_json(send, 200, self._facts())
        else:
            await self._middleware(scope, receive, send)

    @asynccontextmanager
    async def _seat(self) -> AsyncIterator[None]:
        """Serve the same application on this process's own socket."""
        config = uvicorn.Config(
            self, uds=f"{SEATS}/{os.getpid()}.sock", lifespan="off", log_config=None, access_log=False,
            timeout_keep_alive=600,
        )  # fmt: skip
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve())  # `serve` would take the signals from the server proper
        try:
            yield
        finally:
            server.should_exit = True
            await task

    def _facts(self) -> dict[str, Any]:
        states = self._middleware._runtime.router.fleet.states.values()
        return {
            "pid": os.getpid(),
            "rss_kib": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KIB,
            "in_flight": sum(state.in_flight for state in states),
            "backlog_tokens": sum(state.backlog_tokens for state in states),
            "prompt_tokens": sum(state.prompt_tokens for state in states),
            "others_in_flight": sum(state.others_in_flight for state in states),
            "workers": {state.id: [state.ready, state.epoch] for state in states},
        }


app = Gateway()
