"""The HTTP clients that a carrier knows, behind one face: a POST, and what came back."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

from prefix_middleware.carry import aiohttp as aiohttp_carrier
from prefix_middleware.carry import clients
from prefix_middleware.carry import httpx as httpx_carrier
from prefix_middleware.carry import requests as requests_carrier
from tests.edge.asgi import CHAT, chat

BODY = chat("leaves the host")
KINDS = ("httpx", "httpx.Client", "httpx2", "httpx2.Client", "aiohttp", "requests")
METHODS: tuple[tuple[type, str], ...] = (
    *((module.HTTPTransport, "handle_request") for module in (httpx, httpx2)),
    *((module.AsyncHTTPTransport, "handle_async_request") for module in (httpx, httpx2)),
    *((module.Response, name) for module in (httpx, httpx2) for name in ("close", "aclose")),
    (aiohttp.ClientRequest, "send"),
    *((aiohttp.ClientResponse, name) for name in ("start", "close", "release")),
    (requests.adapters.HTTPAdapter, "send"),
    (requests.Response, "close"),
)


@dataclass(frozen=True)
class Answer:
    """What came back, and the names of the headers that the client's own request has afterwards."""

    status: int
    text: str
    sent_headers: frozenset[str]


Post = Callable[..., Any]


@asynccontextmanager
async def client(kind: str) -> AsyncIterator[Post]:
    """Open a client of this kind; yield `await post(url, body, **headers)`."""
    if kind == "aiohttp":
        async with aiohttp.ClientSession() as session:

            async def post(url: str, body: Any = BODY, headers: Mapping[str, str] | None = None) -> Answer:
                async with session.post(url + CHAT, data=body, headers=headers) as answer:
                    names = frozenset(name.lower() for name in answer.request_info.headers)
                    return Answer(answer.status, await answer.text(), names)

            yield post
    elif kind in ("httpx", "httpx2"):
        module: Any = {"httpx": httpx, "httpx2": httpx2}[kind]
        async with module.AsyncClient(follow_redirects=True) as opened:

            async def post(url: str, body: Any = BODY, headers: Mapping[str, str] | None = None) -> Answer:
                return _of(await opened.post(url + CHAT, content=body, headers=headers))

            yield post
    else:
        with _Blocking(kind) as sync_post:

            async def post(url: str, body: Any = BODY, headers: Mapping[str, str] | None = None) -> Answer:
                return _of(await asyncio.to_thread(sync_post, url + CHAT, body, headers))

            yield post


class _Blocking:
    """A client whose calls block."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        if kind == "requests":
            self._client: Any = requests.Session()
        else:
            module: Any = {"httpx.Client": httpx, "httpx2.Client": httpx2}[kind]
            self._client = module.Client(follow_redirects=True)

    def __enter__(self) -> Callable[..., Any]:
        name = "data" if self._kind == "requests" else "content"
        return lambda url, body, headers: self._client.post(url, **{name: body, "headers": headers})

    def __exit__(self, *_: object) -> None:
        self._client.close()


def _of(response: Any) -> Answer:
    names = frozenset(name.lower() for name in response.request.headers)
    return Answer(response.status_code, response.text, names)


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every client as it is before the first start of a carrier in this process."""
    monkeypatch.setattr(clients, "_installed", False)
    for carrier in (httpx_carrier, aiohttp_carrier, requests_carrier):
        monkeypatch.setattr(carrier, "_patched", set())
    for owner, name in METHODS:
        method = getattr(owner, name)
        monkeypatch.setattr(owner, name, getattr(method, "__wrapped__", method))
    yield
    monkeypatch.undo()
