"""What a client may try: spellings of the header, being ahead of auth, and growing what is ours."""

import asyncio
import gc
import random
import re
import tracemalloc
from itertools import product
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from prefix_middleware import PrefixMiddleware, Settings
from tests.edge.asgi import (
    CHAT,
    Client,
    answering,
    ask,
    assert_nothing_left,
    chat,
    chunk,
    counts_of,
    eventually,
    http_scope,
    loads_of,
    make_ready,
    mounted,
    pieces,
    read,
    router_of,
    sent_headers,
    served,
    settings_for,
    skips_of,
    start,
)

pytestmark = pytest.mark.anyio


CASES = (str.lower, str.upper, str.title, lambda name: name.title().swapcase())
SPELLINGS = [
    case(first.join(("x", second.join(("prefix", "worker"))))).encode()
    for first, second, case in product("-_", "-_", CASES)
]
MODES: dict[str, dict[str, Any]] = {
    "on": {},
    "off": {"mode": "off"},
    "shadow": {"mode": "shadow"},
    "egress": {"decide": "egress", "upstream_url": "http://nginx"},
    "no workers": {"workers": ()},
}
SCOPES: dict[str, dict[str, Any]] = {
    "prompt": {},
    "prompt by GET": {"method": "GET"},
    "another path": {"path": "/v1/models"},
    "websocket": {"type": "websocket"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", SCOPES)
async def test_every_spelling_of_the_header_is_taken_off_in_every_mode_on_every_path(
    silent_port: int, mode: str, kind: str
) -> None:
    """Cases and underscores, one by one and all at once: what is left is one header of ours, or none."""
    left: list[list[bytes]] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        left.append(sent_headers(scope))

    settings = Settings(**{**_fields(settings_for(silent_port, ["w1"])), **MODES[mode]})
    async with mounted(host, settings) as middleware:
        for names in ([name] for name in SPELLINGS):
            await ask(middleware, chat(), http_scope(headers=[(n, b"evil") for n in names], **SCOPES[kind]))
        await ask(middleware, chat(), http_scope(headers=[(n, b"w1") for n in SPELLINGS * 9], **SCOPES[kind]))
    ours = [b"w1"] if (mode, kind) == ("on", "prompt") else []
    assert left == [ours] * (len(SPELLINGS) + 1)


def _fields(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ("workers", "health_seconds")}


ODD_LINES = [
    b"X-Prefix-Worker : evil",
    b" X-Prefix-Worker: evil",
    b"X-Prefix-Worker:\r\n evil",
    b"A: b\r\n X-Prefix-Worker: evil",
    b"A: b\rX-Prefix-Worker: evil",
    b"A: b\nX-Prefix-Worker: evil",
    b"X-Prefix-Worker\x00: evil",
    b"X-Prefix-Worker\t: evil",
    b"X-Prefix-Worker:evil\x0bX-Prefix-Worker: evil",
    b"X-Prefix-Worker: " + b"e" * 9000,
    b"\r\n".join([b"x-prefix-worker: evil"] * 50),
    b"x_prefix_worker: evil\r\nX-Prefix_Worker: evil",
]


@pytest.mark.parametrize("line", ODD_LINES, ids=lambda line: repr(line)[2:40])
async def test_an_odd_header_line_is_refused_by_the_server_or_taken_off(
    silent_port: int, line: bytes
) -> None:
    """Folded lines, bare line ends, spaces and control characters at the name: no host sees the client's value."""
    seen: list[Scope] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            seen.append(scope)
            await answering(scope, receive, send)

    body = chat()
    head = b"POST %s HTTP/1.1\r\nHost: x\r\n%s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware, served(middleware) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(head % (CHAT.encode(), line, len(body)) + body)
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
    assert (answer[9:12], len(seen)) in ((b"200", 1), (b"400", 0))
    for scope in seen:
        assert sent_headers(scope) == [b"w1"]
        assert not [name for name, _ in scope["headers"] if b"worker" in name and name != b"x-prefix-worker"]


class Auth:
    """A host's middleware that turns everybody away who has no key."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        keyed = any(name == b"authorization" for name, _ in scope.get("headers", ()))
        if scope["type"] != "http" or keyed:
            await self.app(scope, receive, send)
            return
        await PlainTextResponse("no key", 401)(scope, receive, send)


async def endpoint(request: Request) -> Response:
    await request.body()
    return JSONResponse({"worker": request.headers.get("x-prefix-worker")})


@pytest.mark.parametrize(
    ("added", "receives", "decided"),
    [((PrefixMiddleware, Auth), 0, 1), ((Auth, PrefixMiddleware), 1, 2)],
    ids=["added before auth, so inside it", "added after auth, so outside it"],
)
async def test_the_middleware_added_last_is_the_outermost(
    silent_port: int, added: tuple[Any, Any], receives: int, decided: int
) -> None:
    """Starlette's `add_middleware` wraps what is there: added before auth, ours never sees what auth turns away."""
    app, made = Starlette(routes=[Route(CHAT, endpoint, methods=["POST"])]), []

    def prefix(inner: ASGIApp) -> PrefixMiddleware:
        made.append(PrefixMiddleware(inner, settings_for(silent_port, ["w1"])))
        make_ready(made[0])
        return made[0]

    for kind in added:
        app.add_middleware(prefix if kind is PrefixMiddleware else kind)
    anonymous, alice = Client(*pieces(chat())), Client(*pieces(chat()))
    await app(http_scope(), anonymous.receive, anonymous.send)
    await app(http_scope(headers=[(b"authorization", b"k")]), alice.receive, alice.send)
    counts = counts_of(made[0])
    await made[0]._runtime.stop()
    assert (anonymous.sent[0]["status"], alice.answer) == (401, b'{"worker":"w1"}')
    assert (anonymous.receives, counts["decisions"]) == (receives, decided)
    assert_nothing_left(made[0])


@pytest.mark.parametrize(
    ("inside", "seen"), [(True, ("alice", "m2", True)), (False, ("mallory", "m", False))]
)
async def test_inside_auth_tenant_and_body_are_what_auth_has_made_of_them(
    silent_port: int, inside: bool, seen: tuple[str, str, bool]
) -> None:
    """Behind auth, ours reads auth's tenant and body, and auth meets the client's header; before auth, neither."""
    forged: list[bytes] = []

    class Rewriting(Auth):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            forged.extend(sent_headers(scope))
            scope["headers"] = [*scope["headers"], (b"x-user", b"alice")]
            await read(receive)
            await self.app(scope, Client(*pieces(chat(model="m2"))).receive, send)

    settings = settings_for(silent_port, ["w1"], tenant_header="x-user")
    middleware = PrefixMiddleware(answering if inside else Rewriting(answering), settings)
    make_ready(middleware)
    tenants: list[str] = []
    tenant_of = middleware._runtime._tenant

    def noting(scope: Scope) -> str:
        tenants.append(tenant_of(scope))
        return tenants[-1]

    middleware._runtime._tenant = noting  # type: ignore[method-assign] # only listens
    own = [] if inside else [(b"x-user", b"mallory")]
    scope = http_scope(headers=[(b"x-prefix-worker", b"evil"), *own])
    await ask(Rewriting(middleware) if inside else middleware, chat(), scope)
    await middleware._runtime.stop()
    assert (tenants[0], scope["prefix_middleware"].model, b"evil" in forged) == seen


async def anonymous_request(middleware: PrefixMiddleware, rng: random.Random) -> None:
    """Make one request in which everything that a client may choose is new."""
    word = rng.randbytes(16).hex()
    headers = [(name.encode(), word.encode()) for name in ("x-tenant", "x-prefix-worker", word, "cookie")]
    if rng.random() < 0.2:
        headers.append((b"content-encoding", word.encode()))
    path = rng.choice([CHAT, f"/{word}{CHAT}", "/v1/responses", f"/{word}"])
    given = {"model": word, "cache_salt": word, "user": word, word: word, "tools": [{"name": word}]}
    body = chat(word * 100, **given) if rng.random() < 0.8 else word.encode()
    await ask(middleware, body, http_scope(path, rng.choice(["POST", "POST", word.upper()]), headers))


async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
    """Be a host that knows nobody."""
    await read(receive)
    await send(start(401))
    await send(chunk(b"no", more=False))


async def test_nothing_that_an_anonymous_client_chooses_is_kept(silent_port: int) -> None:
    """Models, salts, tenants, paths, methods, encodings and names of headers, all new 1,500 times: nothing has grown."""
    rng = random.Random(7)
    async with mounted(refusing, settings_for(silent_port, tenant_header="x-tenant")) as middleware:
        for _ in range(1500):
            await anonymous_request(middleware, rng)
        router, counts, skips = router_of(middleware), counts_of(middleware), skips_of(middleware)
        assert_nothing_left(middleware)
        router.next_due()
        assert (len(router.index), len(router._outbox), len(router._unpublished)) == (0, 0, 0)
        assert len(router.fleet._candidates) <= 1
    assert [name for name in counts if re.search("[0-9a-f]{8}", name, re.IGNORECASE)] == []
    assert (len(counts) < 30, {"path", "encoded", "unparsable"} <= set(skips)) == (True, True)
    assert counts["decisions"] + counts["skips"] == 1500


async def test_requests_that_wait_for_auth_weigh_while_they_wait_and_leave_nothing(silent_port: int) -> None:
    """Mounted outside a slow auth, an anonymous crowd is load like any other until it is turned away."""
    decided = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await decided.wait()
        await refusing(scope, receive, send)

    async with mounted(slow, settings_for(silent_port)) as middleware:
        crowd = [asyncio.create_task(ask(middleware, chat(f"{n} " * 1000))) for n in range(50)]
        await eventually(lambda: sum(n for n, _, _ in loads_of(middleware).values()) == 50)
        weight = sum(waiting for _, waiting, _ in loads_of(middleware).values())
        decided.set()
        await asyncio.gather(*crowd)
        assert (weight > 50 * 500, len(router_of(middleware).index)) == (True, 0)
        assert_nothing_left(middleware)


async def make_up(middleware: PrefixMiddleware, numbers: range) -> None:
    """Make requests with names of 48 KB."""
    for n in numbers:
        name = f"{n:08d}" * 6000
        headers = [(b"x-tenant", name.encode())]
        await ask(middleware, chat(model=name, cache_salt=name), http_scope(headers=headers))


async def test_names_that_clients_make_up_are_not_kept_by_their_length(silent_port: int) -> None:
    """Models, salts and tenants of 50 KB, all new: afterwards they are gone, whatever is kept of short ones."""
    async with mounted(refusing, settings_for(silent_port, tenant_header="x-tenant")) as middleware:
        tracemalloc.start()
        try:
            await make_up(middleware, range(20))
            before = tracemalloc.get_traced_memory()[0]
            await make_up(middleware, range(20, 60))
            router_of(middleware).next_due()
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert grown < 1_000_000
