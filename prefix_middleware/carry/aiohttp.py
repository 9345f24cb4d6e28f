"""For aiohttp: `ClientRequest.send` is one attempt or one redirect, `ClientResponse.start` reads the answer's head."""

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import wrapt

from prefix_middleware.carry.outgoing import SERVED, Call, Outgoing, awaited, begin, body_of, closed
from prefix_middleware.core.canonical import Skip

_patched: set[type] = set()
_sent: "WeakKeyDictionary[object, Call]" = WeakKeyDictionary()  # by the response whose head is awaited


def patch(module: ModuleType) -> None:
    """Patch the classes of `aiohttp`."""
    if module.ClientRequest in _patched:
        return
    _patched.add(module.ClientRequest)
    wrapt.wrap_function_wrapper(module, "ClientRequest.send", _send)
    wrapt.wrap_function_wrapper(module, "ClientResponse.start", _start)
    wrapt.wrap_function_wrapper(module, "ClientResponse.close", _end)
    wrapt.wrap_function_wrapper(module, "ClientResponse.release", _end)


def _outgoing(request: Any) -> Outgoing:
    url, headers = request.url, request.headers

    def read() -> bytes | Skip:
        body = request.body
        value = getattr(body, "_value", body)  # of `json=`, bytes and text; anything else is a stream
        return body_of(value, headers.get("content-encoding"))

    return Outgoing(request.method, url.scheme, url.host or "", url.port, url.path, headers, read)


async def _send(wrapped: Callable[..., Awaitable[Any]], instance: Any, args: Any, kwargs: Any) -> Any:
    call = begin(_outgoing, instance)
    if call is None:
        return await wrapped(*args, **kwargs)
    try:
        response = await wrapped(*args, **kwargs)
    except BaseException:
        call.lost()
        raise
    awaited(call, response, _sent)
    return response


async def _start(wrapped: Callable[..., Awaitable[Any]], instance: Any, args: Any, kwargs: Any) -> Any:
    call = _sent.pop(instance, None) if _sent else None
    if call is None:
        return await wrapped(*args, **kwargs)
    try:
        result = await wrapped(*args, **kwargs)
    except BaseException:
        call.lost()
        raise
    call.answered(instance, _head)
    return result


def _end(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
    try:
        return wrapped(*args, **kwargs)
    finally:
        closed(instance)


def _head(response: Any) -> tuple[int, str | None]:
    return response.status, response.headers.get(SERVED)
