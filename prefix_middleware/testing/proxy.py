"""Stand-in for nginx: routes by X-Prefix-Worker over a closed list, otherwise to the least busy worker.

    python -m prefix_middleware.testing.proxy --port 8080 --worker w1=http://127.0.0.1:8001 --worker w2=...

It tries one other worker when a connection cannot be made, keeps the header to itself and says in
X-Prefix-Served who answered. It is for tests and demonstrations only.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Final

import anyio
import httpx
from starlette.types import Receive, Scope, Send

from prefix_middleware.testing.raw import DisconnectError, end_body, read_body, send_json

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"host",
        b"content-length",
    )
)
_HEADER: Final = b"x-prefix-worker"
_TIMEOUT: Final = httpx.Timeout(600, connect=1)  # seconds; a prefill may take long, a connection may not
_LIMITS: Final = httpx.Limits(max_connections=None, keepalive_expiry=4)  # below vLLM's 5 seconds


class FakeProxy:
    """ASGI app in front of `workers` (id to base URL)."""

    def __init__(self, workers: Mapping[str, str]) -> None:
        self._workers = dict(workers)
        self._in_flight = dict.fromkeys(workers, 0)
        self._turn = 0
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            try:
                body = await read_body(receive)
            except DisconnectError:
                return
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
                await self._forward(scope, body, send)
                group.cancel_scope.cancel()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with httpx.AsyncClient(timeout=_TIMEOUT, limits=_LIMITS, trust_env=False) as self._client:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def _candidates(self, wanted: str | None) -> list[str]:
        self._turn += 1
        ids = list(self._workers)
        turn = self._turn % len(ids)
        by_load = sorted(ids[turn:] + ids[:turn], key=self._in_flight.__getitem__)  # equal loads take turns
        named = [wanted] if wanted in self._workers else []
        return [*named, *(worker for worker in by_load if worker != wanted)][:2]

    async def _forward(self, scope: Scope, body: bytes, send: Send) -> None:
        headers: Headers = list(scope["headers"])
        wanted = next((value.decode("latin-1") for name, value in headers if name == _HEADER), None)
        kept = [pair for pair in headers if pair[0] != _HEADER and pair[0] not in _HOP_BY_HOP]
        query = scope["query_string"].decode("latin-1")
        target = scope["path"] + (f"?{query}" if query else "")
        for worker in self._candidates(wanted):
            self._in_flight[worker] += 1
            try:
                await self._relay(worker, scope["method"], target, kept, body, send)
                return
            except httpx.ConnectError:
                continue  # nothing was sent, so another worker may have it
            finally:
                self._in_flight[worker] -= 1
        await send_json(send, 502, {"error": {"message": "no worker answers", "code": 502}})

    async def _relay(
        self, worker: str, method: str, target: str, headers: Headers, body: bytes, send: Send
    ) -> None:
        if self._client is None:
            raise RuntimeError("FakeProxy needs a server that runs lifespan")
        url = self._workers[worker].rstrip("/") + target
        async with self._client.stream(method, url, headers=headers, content=body) as response:
            kept = [(k.lower(), v) for k, v in response.headers.raw if k.lower() not in _HOP_BY_HOP]
            served = (b"x-prefix-served", worker.encode())
            await send(
                {"type": "http.response.start", "status": response.status_code, "headers": [*kept, served]}
            )
            async for chunk in response.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await end_body(send)


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def main(argv: Sequence[str] | None = None) -> None:
    """Serve the proxy with uvicorn until a signal ends it."""
    import uvicorn  # an extra of the package, and only this function needs it

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--worker", action="append", required=True, metavar="ID=URL")
    options = parser.parse_args(argv)
    workers = dict(item.split("=", 1) for item in options.worker)
    uvicorn.run(FakeProxy(workers), host=options.host, port=options.port, log_level="warning", ws="none")


if __name__ == "__main__":
    main()
