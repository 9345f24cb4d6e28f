"""What a carrier adds to one outgoing request, in CPU microseconds: `python -m bench.carry`.

The patched method of each client is called on a request of the real package; behind the patch stands a stub that sends nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import requests
import yarl

from bench._measure import Side, cpu_microseconds
from prefix_middleware.carry import aiohttp as aiohttp_carrier
from prefix_middleware.carry import httpx as httpx_carrier
from prefix_middleware.carry import requests as requests_carrier
from prefix_middleware.carry.context import Hop, carrying, hops
from prefix_middleware.exchange import Exchange
from prefix_middleware.settings import PATHS

URL = "http://127.0.0.1:8080/v1/chat/completions"
CALLS, ROUNDS = 500, 40
CASES = ("no hop", "another origin", "on the hop", "carried")


def httpx_call() -> Callable[[], object]:
    """Return a call of httpx's patched transport."""
    response = httpx.Response(200)

    class HTTPTransport:
        def handle_request(self, _request: Any) -> Any:
            return response

    class AsyncHTTPTransport:
        async def handle_async_request(self, _request: Any) -> Any:
            return response

    class Response:
        def close(self) -> None: ...
        async def aclose(self) -> None: ...

    module = SimpleNamespace(
        HTTPTransport=HTTPTransport,
        AsyncHTTPTransport=AsyncHTTPTransport,
        Response=Response,
        RequestNotRead=httpx.RequestNotRead,
    )
    httpx_carrier.patch(module)  # type: ignore[arg-type] # it looks like the module
    transport, request = HTTPTransport(), httpx.Request("POST", URL, content=b"{}")
    return lambda: transport.handle_request(request)


def requests_call() -> Callable[[], object]:
    """Return a call of requests' patched adapter."""
    response = requests.Response()
    response.status_code = 200

    class HTTPAdapter:
        def send(self, _request: Any) -> Any:
            return response

    class Response:
        def close(self) -> None: ...

    module = SimpleNamespace(adapters=SimpleNamespace(HTTPAdapter=HTTPAdapter), Response=Response)
    requests_carrier.patch(module)  # type: ignore[arg-type] # it looks like the module
    adapter, request = HTTPAdapter(), requests.Request("POST", URL, data=b"{}").prepare()
    return lambda: adapter.send(request)


def aiohttp_call() -> Callable[[], object]:
    """Return a call of aiohttp's patched request and of the start of its response."""
    loop = asyncio.new_event_loop()
    real = aiohttp.ClientRequest("POST", yarl.URL(URL), data=b"{}", loop=loop)
    loop.close()

    class ClientResponse:
        status, headers = 200, dict[str, str]()

        async def start(self) -> None: ...
        def close(self) -> None: ...
        def release(self) -> None: ...

    response = ClientResponse()

    class ClientRequest:
        method, url, headers, body = real.method, real.url, real.headers, real.body

        async def send(self) -> Any:
            return response

    module = SimpleNamespace(ClientRequest=ClientRequest, ClientResponse=ClientResponse)
    aiohttp_carrier.patch(module)  # type: ignore[arg-type] # it looks like the module
    request = ClientRequest()

    def call() -> None:
        _driven(request.send())
        _driven(response.start())

    return call


def _driven(work: Awaitable[Any]) -> None:
    for _ in work.__await__():
        raise RuntimeError("a stub waited")


@contextmanager
def case(name: str) -> Iterator[None]:
    """Make the process as the named case has it."""
    url = "http://10.0.0.1" if name == "another origin" else URL.removesuffix(PATHS[0])
    if name != "no hop":
        hops.append(Hop.of(url, "X-Prefix-Worker", PATHS))
    exchange = Exchange()
    exchange.worker = "w1"
    try:
        with carrying(exchange) if name == "carried" else nullcontext():
            yield
    finally:
        hops.clear()


def microseconds(call: Callable[[], object]) -> float:
    """Return the CPU time of one call."""

    def batch() -> None:
        for _ in range(CALLS):
            call()

    return cpu_microseconds(Side(batch, CALLS), ROUNDS)


def main() -> None:
    """Print a table: rows are clients, columns are cases."""
    print(f"{'us per request':16}" + "".join(f"{name:>16}" for name in CASES))
    for label, make in (("httpx", httpx_call), ("aiohttp", aiohttp_call), ("requests", requests_call)):
        call, figures = make(), []
        for name in CASES:
            with case(name):
                figures.append(microseconds(call))
        print(f"{label:16}" + "".join(f"{figure:16.1f}" for figure in figures))


if __name__ == "__main__":
    main()
