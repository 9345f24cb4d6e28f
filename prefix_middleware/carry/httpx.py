"""The carrier of httpx and of httpx2, whose classes have the same names.

It sits in the transports: every request passes there by itself, each redirect too, and a custom transport that sends with these
ones is covered.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from types import ModuleType
from typing import Any

import wrapt

from prefix_middleware.carry.outgoing import SERVED, Outgoing, begin, body_of, closed
from prefix_middleware.core.canonical import Skip

_patched: set[type] = set()


def patch(module: ModuleType) -> None:
    """Patch the classes of `httpx` or `httpx2`, once where both names are one module."""
    if module.HTTPTransport in _patched:
        return
    _patched.add(module.HTTPTransport)
    unread = module.RequestNotRead
    wrapt.wrap_function_wrapper(module, "HTTPTransport.handle_request", partial(_handle, unread))
    wrapt.wrap_function_wrapper(
        module, "AsyncHTTPTransport.handle_async_request", partial(_handle_async, unread)
    )
    wrapt.wrap_function_wrapper(module, "Response.close", _close)
    wrapt.wrap_function_wrapper(module, "Response.aclose", _aclose)


def _outgoing(unread: type[Exception], request: Any) -> Outgoing:
    url, headers = request.url, request.headers

    def read() -> bytes | Skip:
        try:
            return body_of(request.content, headers.get("content-encoding"))
        except unread:
            return Skip("unparsable")

    return Outgoing(request.method, url.scheme, url.host, url.port, url.path, headers, read)


def _request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("request")


def _handle(
    unread: type[Exception], wrapped: Callable[..., Any], _instance: object, args: Any, kwargs: Any
) -> Any:
    call = begin(_outgoing, unread, _request(args, kwargs))
    if call is None:
        return wrapped(*args, **kwargs)
    try:
        response = wrapped(*args, **kwargs)
    except BaseException:
        call.lost()
        raise
    call.answered(response, _head)
    return response


async def _handle_async(
    unread: type[Exception],
    wrapped: Callable[..., Awaitable[Any]],
    _instance: object,
    args: Any,
    kwargs: Any,
) -> Any:
    call = begin(_outgoing, unread, _request(args, kwargs))
    if call is None:
        return await wrapped(*args, **kwargs)
    try:
        response = await wrapped(*args, **kwargs)
    except BaseException:
        call.lost()
        raise
    call.answered(response, _head)
    return response


def _close(wrapped: Callable[..., None], instance: object, args: Any, kwargs: Any) -> None:
    try:
        wrapped(*args, **kwargs)
    finally:
        closed(instance)


async def _aclose(wrapped: Callable[..., Awaitable[None]], instance: object, args: Any, kwargs: Any) -> None:
    try:
        await wrapped(*args, **kwargs)
    finally:
        closed(instance)


def _head(response: Any) -> tuple[int, str | None]:
    return response.status_code, response.headers.get(SERVED)
