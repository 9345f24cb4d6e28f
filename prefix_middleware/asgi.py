"""The middleware around an application that nobody edits: `PREFIX_APP=package.module:app uvicorn prefix_middleware.asgi:app`.

A missing or wrong PREFIX_APP ends the server's start with one line; what the application's own modules raise is left as it is.
"""

import os
from importlib import import_module
from typing import Any, NoReturn

from starlette.types import ASGIApp

from prefix_middleware.middleware import PrefixMiddleware

__all__ = ["app", "load"]


def load(target: str) -> ASGIApp:
    """Import `package.module:app`; raises SystemExit with one line when it names no application."""
    name, _, path = target.partition(":")
    if not name or not path:
        _refuse(target, "package.module:app")
    try:
        module = import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{name}.".startswith(f"{missing.name}."):
            raise  # a module that the application itself needs
        _refuse(target, f"the name of a module that can be imported; there is no {missing.name}")
    try:
        found: Any = module
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except AttributeError:
        _refuse(target, f"the name of an application in {name}; there is no {path}")
    if not callable(found):
        _refuse(target, f"an ASGI application; {path} cannot be called")
    application: ASGIApp = found
    return application


def _refuse(target: str, accepted: str) -> NoReturn:
    raise SystemExit(f"prefix-middleware: PREFIX_APP={target!r}: accepted is {accepted}")


app = PrefixMiddleware(load(os.environ.get("PREFIX_APP", "")))
