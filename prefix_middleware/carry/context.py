"""Which exchange the running code belongs to, and which hops may carry its header.

1. An exchange goes dead when the app call ends: a queue worker started inside a request would otherwise keep it for ever.
2. Patches stay once they are made; without an active carrier they do nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from prefix_middleware.carry.check import CarryCheck
from prefix_middleware.core.canonical import Skip, api_of

_PORTS = {"http": 80, "https": 443}


class Carried(Protocol):
    """What a carrier needs of an exchange."""

    @property
    def alive(self) -> bool:
        """Whether the app call is still running."""

    @property
    def worker(self) -> str | None:
        """The chosen worker, None for no header."""

    @property
    def ends_with_response(self) -> bool:
        """Whether nothing but the end of the hop's response ends it."""

    def injected(self) -> None:
        """The header was put on an outgoing request."""

    def served(self, worker: str | None, status: int) -> None:
        """The hop answered with this status, served by this worker as far as it says."""

    def lost(self) -> None:
        """The hop gave no answer."""

    def closed(self) -> None:
        """The hop's response is closed."""

    def collected(self) -> None:
        """The hop's response was garbage: called inside a collection, so that no lock may be taken."""


Read = Callable[[], bytes | Skip]
Decide = Callable[[str, bytes | Skip, Carried | None], Carried | None]

current: ContextVar[Carried | None] = ContextVar("prefix_middleware_exchange", default=None)


@contextmanager
def carrying(exchange: Carried | None) -> Iterator[None]:
    """Make an exchange the running code's own for the length of a block."""
    token = current.set(exchange)
    try:
        yield
    finally:
        with suppress(
            ValueError
        ):  # ended from another context, as by a garbage collection, which never had it
            current.reset(token)


@dataclass(frozen=True, slots=True, eq=False)
class Hop:
    """The way to nginx: an origin with a path prefix, the header it reads, and the paths that get it."""

    scheme: str
    host: str
    port: int
    path: str
    header: str
    paths: tuple[str, ...]
    decide: Decide | None = None  # from the outgoing body; None: the inbound request has been decided on
    check: CarryCheck | None = None
    guarded: Callable[[], AbstractContextManager[None]] = nullcontext  # keeps a failure of ours inside

    @classmethod
    def of(
        cls,
        upstream_url: str,
        header: str,
        paths: tuple[str, ...],
        *,
        decide: Decide | None = None,
        check: CarryCheck | None = None,
        guarded: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> "Hop":
        """Read an `upstream_url` setting."""
        url = urlsplit(upstream_url)
        port = url.port or _PORTS[url.scheme]
        host, path = (url.hostname or "").lower(), url.path.rstrip("/")
        return cls(url.scheme, host, port, path, header, paths, decide, check, guarded)

    def leads(self, scheme: str, host: str, port: int | None, path: str) -> bool:
        """Tell whether a request to this URL takes the hop."""
        return (
            scheme == self.scheme
            and host.lower() == self.host
            and (port or _PORTS.get(scheme)) == self.port
            and (not self.path or path == self.path or path.startswith(self.path + "/"))
        )

    def prompts(self, method: str, path: str) -> bool:
        """Tell whether a request has a prompt, by its method and path."""
        return method == "POST" and path.endswith(self.paths) and api_of(path) is not None

    def exchange(self, method: str, path: str, read: Read) -> Carried | None:
        """Return the exchange whose header a request on the hop should carry; `read` gives its body."""
        if not self.prompts(method, path):
            return None
        exchange = current.get()
        if exchange is not None and not exchange.alive:
            exchange = None
        if self.decide is not None:
            return self.decide(path, read(), exchange)
        if exchange is None and self.check is not None:
            self.check.outside = True
        return exchange


hops: list[Hop] = []
"""Hops of the running middlewares of this process."""


def hop_to(scheme: str, host: str, port: int | None, path: str) -> Hop | None:
    """Return the active hop that a request to this URL takes."""
    for hop in hops:
        if hop.leads(scheme, host, port, path):
            return hop
    return None
