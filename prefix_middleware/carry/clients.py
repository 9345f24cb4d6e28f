"""Patches the HTTP clients that the host imports, when it imports them; a client that is not imported is not touched."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Final

import wrapt

from prefix_middleware.carry import aiohttp, httpx, requests

Patch = Callable[[ModuleType], None]

PATCHES: Final[Mapping[str, Patch]] = {
    "httpx": httpx.patch,
    "httpx2": httpx.patch,
    "aiohttp": aiohttp.patch,
    "requests": requests.patch,
}

_installed = False


def install() -> None:
    """Patch every client that is imported, and the others when they are; once per process."""
    global _installed
    if not _installed:
        _installed = True
        for name, patch in PATCHES.items():
            wrapt.register_post_import_hook(_quietly(patch), name)


def _quietly(patch: Patch) -> Patch:
    def hook(module: ModuleType) -> None:
        with suppress(AttributeError):  # a version without these classes goes uncarried, and that is told
            patch(module)

    return hook
