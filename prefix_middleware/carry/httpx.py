"""Carries the header on requests of httpx clients, those made before the patch included."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
import wrapt

from prefix_middleware.carry.context import Carried, hop_to

SERVED: Final = "X-Prefix-Served"

_patched = False


def install() -> None:
    """Patch `httpx.Client.send` and `httpx.AsyncClient.send`, once per process."""
    global _patched
    if not _patched:
        _patched = True
        wrapt.wrap_function_wrapper(httpx, "AsyncClient.send", _send_async)
        wrapt.wrap_function_wrapper(httpx, "Client.send", _send)


def _prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Carried | None:
    """Replace the header on a request that takes a hop of ours; return the exchange it belongs to."""
    request: httpx.Request = args[0] if args else kwargs["request"]
    url = request.url
    hop = hop_to(url.scheme, url.host, url.port, url.path)
    if hop is None:
        return None
    request.headers.pop(hop.header, None)  # a copy that the host has forwarded from its client
    exchange = hop.exchange(request.method, url.path)
    if exchange is not None and exchange.worker is not None:
        request.headers[hop.header] = exchange.worker
        exchange.injected()
    return exchange


async def _send_async(
    wrapped: Callable[..., Awaitable[httpx.Response]], _instance: object, args: Any, kwargs: Any
) -> httpx.Response:
    exchange = _prepare(args, kwargs)
    response = await wrapped(
        *args, **kwargs
    )  # an error here is between the host and nginx: no worker's fault
    if exchange is not None:
        exchange.served(response.headers.get(SERVED), response.status_code)
    return response


def _send(
    wrapped: Callable[..., httpx.Response], _instance: object, args: Any, kwargs: Any
) -> httpx.Response:
    exchange = _prepare(args, kwargs)
    response = wrapped(*args, **kwargs)
    if exchange is not None:
        exchange.served(response.headers.get(SERVED), response.status_code)
    return response
