"""One request of the host's HTTP client from the header to the end of its response; the same for every client.

1. The header is on the client's request only while that is sent: a redirect to another origin, or a retry, does not inherit it.
2. Nothing of ours is raised into the host.
"""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final
from weakref import finalize

from prefix_middleware.carry.context import Carried, Read, hop_to, hops
from prefix_middleware.core.canonical import Skip

SERVED: Final = "X-Prefix-Served"

_following: "dict[int, finalize[..., Any]]" = {}  # by the id of a response; an attribute would be pickled with it


@dataclass(slots=True)
class Outgoing:
    """A request as a client is about to send it."""

    method: str
    scheme: str
    host: str
    port: int | None
    path: str
    headers: MutableMapping[str, str]
    read: Read


class Call:
    """A request that takes a hop of ours, and its exchange."""

    __slots__ = ("_exchange", "_header", "_headers")

    def __init__(self, exchange: Carried, headers: MutableMapping[str, str], header: str | None) -> None:
        self._exchange = exchange
        self._headers = headers
        self._header = header

    def sent(self) -> None:
        """Take the header off the client's own request again."""
        header, self._header = self._header, None
        if header is not None:
            try:
                del self._headers[header]
            except KeyError:
                pass  # somebody behind us has taken it off

    def lost(self) -> None:
        """Note that there is no answer: between the host and nginx, that is no worker's fault."""
        try:
            self.sent()
            self._exchange.lost()
        except Exception as failure:
            _keep_inside(failure)

    def answered(self, response: object, head: Callable[[Any], tuple[int, str | None]]) -> None:
        """Note the answer's status and who gave it, as `head` reads them."""
        try:
            self.sent()
            exchange = self._exchange
            status, served = head(response)
            exchange.served(served, status)
            if exchange.ends_with_response and exchange.alive:
                end = finalize(response, _collected, id(response), exchange)
                end.atexit = False
                _following[id(response)] = end
        except Exception as failure:
            _keep_inside(failure)


def begin(describe: Callable[..., Outgoing], *request: object) -> Call | None:
    """Replace the header on a request that takes a hop of ours; return the call if it has an exchange."""
    if not hops:
        return None
    try:
        return _begin(describe(*request))
    except Exception as failure:
        _keep_inside(failure)
        return None


def _begin(out: Outgoing) -> Call | None:
    hop = hop_to(out.scheme, out.host, out.port, out.path)
    if hop is None:
        _note_elsewhere(out)
        return None
    exchange = hop.exchange(out.method, out.path, out.read)
    worker = None if exchange is None else exchange.worker
    if worker is not None:
        out.headers[hop.header] = worker  # replaces every copy
    elif hop.header in out.headers:
        del out.headers[hop.header]  # a copy that the host has forwarded from its client
    if exchange is None:
        return None
    if worker is not None:
        exchange.injected()
    return Call(exchange, out.headers, hop.header if worker is not None else None)


def awaited(call: Call, response: object, waiting: MutableMapping[Any, Call]) -> None:
    """Keep the call of a response whose head is not there yet."""
    try:
        call.sent()
        waiting[response] = call
    except Exception as failure:
        _keep_inside(failure)


def closed(response: object) -> None:
    """A client has closed a response."""
    end = _following.pop(id(response), None)
    if end is None:
        return
    found = end.detach()
    if found is not None:
        try:
            found[2][1].closed()
        except Exception as failure:
            _keep_inside(failure)


def body_of(body: object, encoding: str | None) -> bytes | Skip:
    """Return an outgoing body if it is there to be read; a stream is the client's to read."""
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        return Skip("encoded")
    if isinstance(body, str):
        return body.encode()
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else Skip("unparsable")


def _collected(number: int, exchange: Carried) -> None:
    _following.pop(number, None)
    exchange.collected()


def _note_elsewhere(out: Outgoing) -> None:
    for hop in hops:
        if hop.check is not None and hop.check.elsewhere is None and hop.prompts(out.method, out.path):
            port = "" if out.port is None else f":{out.port}"
            hop.check.elsewhere = f"{out.scheme}://{out.host}{port}"


def _keep_inside(failure: Exception) -> None:
    for hop in hops[:1]:
        with hop.guarded():
            raise failure
