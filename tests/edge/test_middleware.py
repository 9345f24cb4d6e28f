"""What the middleware does to a scope: which requests are its own, whose header stays, and that nothing else changes."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from prefix_middleware import Decision, PrefixMiddleware, Settings
from tests.edge.asgi import (
    CHAT,
    Client,
    answering,
    ask,
    assert_nothing_left,
    chat,
    counts_of,
    http_scope,
    make_ready,
    mounted,
    pieces,
    sent_headers,
    settings_for,
    skips_of,
)

pytestmark = pytest.mark.anyio

FORGED = [
    [(b"x-prefix-worker", b"evil")],
    [(b"X-Prefix-Worker", b"evil"), (b"x-prefix-worker", b"w1")],
    [(b"x_prefix_worker", b"evil"), (b"X-PREFIX_Worker", b"evil")],
]
GZIP = [(b"content-encoding", b"gzip")]
UNROUTED: dict[str, tuple[dict[str, Any], bytes]] = {
    "another path": ({"path": "/v1/embeddings"}, chat()),
    "get": ({"method": "GET"}, b""),
    "bad json": ({}, b"{"),
    "over the cap": ({}, chat("x" * 3000)),
    "encoded": ({"headers": GZIP}, chat()),
    "websocket": ({"type": "websocket"}, b""),
}


class Capture:
    """A host that keeps the scopes it is called with, and answers http."""

    def __init__(self) -> None:
        self.calls: list[tuple[Scope, Receive, Send]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls.append((scope, receive, send))
        if scope["type"] == "http":
            await answering(scope, receive, send)

    @property
    def workers(self) -> list[list[bytes]]:
        """The values of our header, call by call."""
        return [sent_headers(scope) for scope, _, _ in self.calls]


@pytest.mark.parametrize(
    "scope",
    [
        {"type": "websocket", "path": "/v1/realtime", "headers": [(b"a", b"b")]},
        {"type": "websocket", "path": CHAT},
        {"type": "lifespan"},
        {"type": "custom"},
        {"type": "http", "method": "POST", "path": "/other"},
        {"type": "http"},
    ],
    ids=str,
)
async def test_what_is_not_ours_passes_as_the_same_objects(silent_port: int, scope: Scope) -> None:
    """Other types, paths and scopes without the usual keys reach the host with their own scope, receive and send."""
    host, client, before = Capture(), Client(*pieces(b"")), dict(scope)
    async with mounted(host, settings_for(silent_port)) as middleware:
        receive, send = client.receive, client.send
        await middleware(scope, receive, send)
    [(got, got_receive, got_send)] = host.calls
    assert (got is scope, got_receive is receive, got_send is send, scope) == (True, True, True, before)


async def test_a_request_without_headers_is_routed(silent_port: int) -> None:
    """A minimal scope is enough: type, method and path."""
    host = Capture()
    scope: Scope = {"type": "http", "method": "POST", "path": CHAT}
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        await ask(middleware, chat(), scope)
    assert (scope["headers"], host.calls[0][0] is scope) == ([(b"x-prefix-worker", b"w1")], True)


@pytest.mark.parametrize("forged", FORGED, ids=str)
@pytest.mark.parametrize("case", UNROUTED)
async def test_a_clients_own_header_is_removed_where_nothing_is_routed(
    silent_port: int, case: str, forged: list[tuple[bytes, bytes]]
) -> None:
    """Whatever a request is, the worker's name in it is never the client's; all its other headers stay, in order."""
    fields, body = UNROUTED[case]
    others = [(b"a", b"1"), *fields.get("headers", []), (b"x-prefix-worker-2", b"stays"), (b"a", b"2")]
    host, scope = Capture(), http_scope(**{**fields, "headers": [others[0], *forged, *others[1:]]})
    async with mounted(host, settings_for(silent_port, max_body_bytes=2048)) as middleware:
        await ask(middleware, body, scope)
    assert host.calls[0][0]["headers"] == others


@pytest.mark.parametrize("forged", FORGED, ids=str)
async def test_a_routed_request_has_exactly_our_header(
    silent_port: int, forged: list[tuple[bytes, bytes]]
) -> None:
    """The client's copies, in any case and with underscores, give way to one of ours."""
    host, scope = Capture(), http_scope(headers=[*forged, (b"a", b"1")])
    async with mounted(host, settings_for(silent_port, ["chosen"])) as middleware:
        await ask(middleware, chat(), scope)
    assert scope["headers"] == [(b"a", b"1"), (b"x-prefix-worker", b"chosen")]


async def test_a_header_of_another_name_replaces_its_own_copies(silent_port: int) -> None:
    """The `header` setting names the header that is removed and set; the default name is then any header."""
    scope = http_scope(headers=[(b"X-To", b"evil"), (b"x-prefix-worker", b"mine")])
    async with mounted(answering, settings_for(silent_port, ["w1"], header="X-To")) as middleware:
        await ask(middleware, chat(), scope)
    assert scope["headers"] == [(b"x-prefix-worker", b"mine"), (b"x-to", b"w1")]


async def test_broken_settings_still_take_the_header_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A middleware that cannot route does not let a client choose its worker either."""
    monkeypatch.setenv("PREFIX_POLICY", "fastest")
    host, scope = Capture(), http_scope(headers=FORGED[1])
    middleware = PrefixMiddleware(host)
    await ask(middleware, chat(), scope)
    assert host.workers == [[]]


@pytest.mark.parametrize(
    ("path", "routed"),
    [
        (CHAT, True),
        ("/v1/completions", True),
        ("/v1/responses", True),
        ("/v1/messages", True),
        ("/proxy/openai/v1/chat/completions", True),
        ("/v1/chat/completions/render", False),
        ("/v1/chat/completions/", False),
        ("/xv1/chat/completions", False),
        ("/v1/messages/count_tokens", False),
        ("/chat/completions", False),
        ("", False),
    ],
)
async def test_a_path_counts_when_it_ends_in_a_configured_one(
    silent_port: int, path: str, routed: bool
) -> None:
    """Prefixes of a mounted application are allowed; the match begins at a segment edge and reaches to the end."""
    body = chat(prompt="p", input="i")
    host = Capture()
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        await ask(middleware, body, http_scope(path))
        assert (host.workers, skips_of(middleware)) == (
            [[b"w1"] if routed else []],
            {} if routed else {"path": 1},
        )


async def test_a_mounted_sub_application_is_routed_without_lifespan(silent_port: int) -> None:
    """In a mounted application the path has the outer part too, and no lifespan starts us."""
    headers: list[list[str]] = []

    async def endpoint(request: Request) -> Response:
        headers.append(request.headers.getlist("x-prefix-worker"))
        return PlainTextResponse("ok")

    sub = Starlette(routes=[Route(CHAT, endpoint, methods=["POST"])])
    async with mounted(sub, settings_for(silent_port, ["w1"])) as middleware:
        client = await ask(Starlette(routes=[Mount("/llm", middleware)]), chat(), http_scope("/llm" + CHAT))
    assert (headers, client.answer) == ([["w1"]], b"ok")


async def test_the_host_finds_the_decision_in_its_scope(silent_port: int) -> None:
    """`scope["prefix_middleware"]` is the Decision, or None for a request of ours that is not routed."""
    routed, skipped, other = http_scope(), http_scope(), http_scope("/other")
    async with mounted(answering, settings_for(silent_port, ["w1"])) as middleware:
        for scope, body in ((routed, chat("hi")), (skipped, b"{"), (other, b"")):
            await ask(middleware, body, scope)
    expected = Decision(reason="only", worker="w1", tokens=2, model="m", policy="tokens")
    assert (routed["prefix_middleware"], skipped["prefix_middleware"]) == (expected, None)
    assert "prefix_middleware" not in other


async def test_mounted_twice_it_routes_once(silent_port: int) -> None:
    """The outer one decides; the inner one sees that and changes nothing."""
    host = Capture()
    async with (
        mounted(host, settings_for(silent_port, ["inner"])) as inner,
        mounted(inner, settings_for(silent_port, ["outer"])) as outer,
    ):
        await ask(outer)
        assert (host.workers, counts_of(inner), counts_of(outer)["decisions"]) == ([[b"outer"]], {}, 1)
        assert_nothing_left(outer)


async def test_two_mounts_in_one_starlette_stack_route_once(silent_port: int) -> None:
    """add_middleware called twice by mistake is harmless."""
    headers: list[list[str]] = []

    async def endpoint(request: Request) -> Response:
        headers.append(request.headers.getlist("x-prefix-worker"))
        return PlainTextResponse("ok")

    twice = [Middleware(PrefixMiddleware, settings_for(silent_port, ["w1"])) for _ in range(2)]
    app = Starlette(routes=[Route(CHAT, endpoint, methods=["POST"])], middleware=twice)
    lifespan = Client({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    await ask(app)
    await app({"type": "lifespan"}, lifespan.receive, lifespan.send)
    assert headers == [["w1"]]


billing: ContextVar[str] = ContextVar("billing", default="")


async def test_the_host_runs_in_the_same_task_and_context(silent_port: int) -> None:
    """What an endpoint sets in a ContextVar is there for the middlewares outside of us."""
    tasks: list[object] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        tasks.append(asyncio.current_task())
        billing.set("inner")

    async with mounted(host, settings_for(silent_port)) as middleware:
        billing.set("outer")
        await ask(middleware)
    assert (billing.get(), tasks) == ("inner", [asyncio.current_task()])


async def test_the_hosts_structlog_context_is_its_own(silent_port: int) -> None:
    """What a host has bound stays bound, during the call and after it, and nothing of ours is added."""
    seen: list[dict[str, Any]] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(structlog.contextvars.get_contextvars())

    with structlog.contextvars.bound_contextvars(request_id="abc"):
        async with mounted(host, settings_for(silent_port, log="json")) as middleware:
            await ask(middleware)
            await ask(middleware, b"{")
        seen.append(structlog.contextvars.get_contextvars())
    assert (seen, structlog.is_configured()) == ([{"request_id": "abc"}] * 3, False)


async def test_a_failure_of_ours_passes_the_request_unrouted(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in our own code is counted once and the host serves the request as without us."""

    def broken(*_: object) -> None:
        raise RuntimeError("secret text")

    host = Capture()
    async with mounted(host, settings_for(silent_port)) as middleware:
        for owner, name in ((middleware._runtime._hasher, "hash"), (middleware._runtime.router, "route")):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, broken)
                client = await ask(middleware)
                assert client.answer == b"ok"
        assert (host.workers, skips_of(middleware)) == ([[], []], {"error": 2})
        make_ready(middleware)
        await ask(middleware)
        assert len(host.workers[2]) == 1


async def test_without_workers_every_request_passes() -> None:
    """No workers is no error: requests pass, counted as off."""
    host = Capture()
    async with mounted(host, Settings()) as middleware:
        await ask(middleware)
        assert (host.workers, skips_of(middleware)) == ([[]], {"off": 1})
