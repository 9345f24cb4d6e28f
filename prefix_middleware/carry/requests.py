"""The carrier of requests: every request, each redirect too, passes `HTTPAdapter.send` by itself."""

from collections.abc import Callable
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import wrapt

from prefix_middleware.carry.outgoing import SERVED, Outgoing, begin, body_of, closed
from prefix_middleware.core.canonical import Skip

_patched: set[type] = set()


def patch(module: ModuleType) -> None:
    """Patch the classes of `requests`."""
    adapter = module.adapters.HTTPAdapter
    if adapter in _patched:
        return
    _patched.add(adapter)
    wrapt.wrap_function_wrapper(module, "adapters.HTTPAdapter.send", _send)
    wrapt.wrap_function_wrapper(module, "Response.close", _close)


def _outgoing(request: Any) -> Outgoing:
    url, headers = urlsplit(request.url), request.headers

    def read() -> bytes | Skip:
        return body_of(request.body, headers.get("content-encoding"))

    return Outgoing(
        request.method, url.scheme, url.hostname or "", url.port, unquote(url.path), headers, read
    )


def _send(wrapped: Callable[..., Any], _instance: object, args: Any, kwargs: Any) -> Any:
    call = begin(_outgoing, args[0] if args else kwargs.get("request"))
    if call is None:
        return wrapped(*args, **kwargs)
    try:
        response = wrapped(*args, **kwargs)
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


def _head(response: Any) -> tuple[int, str | None]:
    return response.status_code, response.headers.get(SERVED)
