"""Which exchange the running code belongs to, and which hops may carry its header.

1. An exchange goes dead when the app call ends: a queue worker started inside a request would otherwise keep it for ever.
2. Patches stay once they are made; without an active carrier they do nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from prefix_middleware.core.canonical import api_of

_PORTS = {"http": 80, "https": 443}


class Carried(Protocol):
    """What a carrier needs of an exchange."""

    @property
    def alive(self) -> bool:
        """Whether the app call is still running."""

    @property
    def worker(self) -> str | None:
        """The chosen worker, None for no header."""

    def injected(self) -> None:
        """The header was put on an outgoing request."""

    def served(self, worker: str | None, status: int) -> None:
        """The hop answered with this status, served by this worker as far as it says."""


current: ContextVar[Carried | None] = ContextVar("prefix_middleware_exchange", default=None)


@contextmanager
def carrying(exchange: Carried | None) -> Iterator[None]:
    """Make an exchange the running code's own for the length of a block."""
    token = current.set(exchange)
    try:
        yield
    finally:
        current.reset(token)


@dataclass(frozen=True, slots=True)
class Hop:
    """The way to nginx: an origin with a path prefix, the header it reads, and the paths that get it."""

    scheme: str
    host: str
    port: int
    path: str
    header: str
    paths: tuple[str, ...]

    @classmethod
    def of(cls, upstream_url: str, header: str, paths: tuple[str, ...]) -> "Hop":
        """Read an `upstream_url` setting."""
        url = urlsplit(upstream_url)
        port = url.port or _PORTS[url.scheme]
        return cls(url.scheme, (url.hostname or "").lower(), port, url.path.rstrip("/"), header, paths)

    def leads(self, scheme: str, host: str, port: int | None, path: str) -> bool:
        """Tell whether a request to this URL takes the hop."""
        return (
            scheme == self.scheme
            and host.lower() == self.host
            and (port or _PORTS.get(scheme)) == self.port
            and (not self.path or path == self.path or path.startswith(self.path + "/"))
        )

    def exchange(self, method: str, path: str) -> Carried | None:
        """Return the live exchange whose header a request on the hop should carry."""
        exchange = current.get()
        if exchange is None or not exchange.alive or method != "POST" or api_of(path) is None:
            return None
        return exchange if path.endswith(self.paths) else None


hops: list[Hop] = []
"""Hops of the running middlewares of this process."""


def hop_to(scheme: str, host: str, port: int | None, path: str) -> Hop | None:
    """Return the active hop that a request to this URL takes."""
    for hop in hops:
        if hop.leads(scheme, host, port, path):
            return hop
    return None
