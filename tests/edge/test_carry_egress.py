"""decide="egress": the decision is taken from the body that leaves, by whichever client, and fills the inbound request."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import httpx
import pytest
import requests
from starlette.types import Message, Receive, Scope, Send

from prefix_middleware import Decision, Settings, SettingsError
from prefix_middleware.core.updates import Confirmed
from tests.edge.asgi import (
    CHAT,
    Client,
    ask,
    assert_nothing_left,
    chat,
    chunk,
    counts_of,
    http_scope,
    loads_of,
    mounted,
    pieces,
    router_of,
    sent_headers,
    served,
    settings_for,
    skips_of,
    start,
)
from tests.edge.clients import KINDS, client
from tests.edge.upstream import EVIL, Upstream, rig

pytestmark = pytest.mark.anyio

LONG = chat("x" * 4000)
FORGED = [(b"x-prefix-worker", b"evil")]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_leaves_decides_and_fills_the_inbound_request(silent_port: int, kind: str) -> None:
    """A 9 byte inbound body leads to a decision on the 4,000 bytes that the host sends."""
    scope = http_scope("/api/ask", headers=FORGED)
    inside: list[Any] = []
    async with rig(silent_port, decide="egress") as (middleware, host, upstream, url), client(kind) as post:

        async def call() -> None:
            inside.append((scope["prefix_middleware"], sent_headers(scope)))
            await post(url, LONG, EVIL)
            inside.append(loads_of(middleware)["w1"])

        host.call = call
        await ask(middleware, b"question?", scope)
        decision = scope["prefix_middleware"]
        assert isinstance(decision, Decision)
        assert (decision.worker, decision.blocks, decision.tokens) == ("w1", 7, 1001)
        assert inside == [(None, []), (1, 1001, 1001)]
        assert (upstream.seen, skips_of(middleware)) == ([("POST", CHAT, ["w1"])], {})
        confirmed = [update for update in router_of(middleware).drain(1e9) if isinstance(update, Confirmed)]
        assert [(c.worker, c.prompt_tokens) for c in confirmed] == [("w1", 1001)]
        assert_nothing_left(middleware)


async def test_the_host_gets_the_servers_own_receive(silent_port: int) -> None:
    """Nothing is held at ingress: the host sees each message as it comes."""
    given: list[Message] = []
    messages = pieces(b"abcdef", [2, 2])

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        given.extend([await receive(), await receive()])
        await send(start())
        await send(chunk(b"ok", more=False))

    settings = settings_for(silent_port, ["w1"], upstream_url="http://nginx", decide="egress")
    async with mounted(host, settings) as middleware:
        asked = Client(*messages)
        await middleware(http_scope(), asked.receive, asked.send)
        assert (given, asked.receives, len(asked.script)) == (messages[:2], 2, 1)
        assert [a is b for a, b in zip(given, messages, strict=False)] == [True, True]


async def _httpx(url: str, **options: Any) -> None:
    async with httpx.AsyncClient() as opened:
        await opened.post(url + CHAT, **options)


async def _aiohttp(url: str, **options: Any) -> None:
    async with aiohttp.ClientSession() as session, session.post(url + CHAT, **options) as answer:
        await answer.read()


async def _requests(url: str, **options: Any) -> None:
    await asyncio.to_thread(requests.post, url + CHAT, **options)


async def _stream() -> AsyncIterator[bytes]:
    yield LONG


JSON = {"model": "m", "messages": [{"role": "user", "content": "x" * 4000}]}
PACKED = zlib.compress(LONG)
GZIP = {"content-encoding": "deflate"}


@pytest.mark.parametrize(
    ("send", "options", "skips"),
    [
        (_httpx, {"json": JSON}, {}),
        (_httpx, {"content": LONG.decode()}, {}),
        (_httpx, {"content": _stream}, {"unparsable": 1}),
        (_httpx, {"content": PACKED, "headers": GZIP}, {"encoded": 1}),
        (_httpx, {"content": b"x" * 2048}, {"too_large": 1}),
        (_httpx, {"content": b"{"}, {"unparsable": 1}),
        (_aiohttp, {"json": JSON}, {}),
        (_aiohttp, {"data": LONG.decode()}, {}),
        (_aiohttp, {"data": _stream}, {"unparsable": 1}),
        (_aiohttp, {"json": JSON, "compress": "deflate"}, {"encoded": 1}),
        (_requests, {"json": JSON}, {}),
        (_requests, {"data": LONG.decode()}, {}),
        (_requests, {"data": lambda: iter([LONG])}, {"unparsable": 1}),
        (_requests, {"data": PACKED, "headers": GZIP}, {"encoded": 1}),
    ],
)
async def test_every_form_of_a_body_is_read_or_counted(
    silent_port: int, send: Any, options: dict[str, Any], skips: dict[str, int]
) -> None:
    """JSON, text and bytes are routed; a stream, a compressed or too long one passes without a header."""
    made = {name: value() if callable(value) else value for name, value in options.items()}
    limit = 1024 if skips == {"too_large": 1} else 1 << 20
    async with rig(silent_port, decide="egress", max_body_bytes=limit) as (middleware, host, upstream, url):
        host.call = lambda: send(url, **made)
        await ask(middleware)
        assert skips_of(middleware) == skips
        assert upstream.seen == [("POST", CHAT, [] if skips else ["w1"])]
        assert_nothing_left(middleware)


async def test_a_stream_that_starts_before_its_call_is_noted(silent_port: int) -> None:
    """A generator calls the hop after the host's answer has begun: its first chunk still starts the record."""
    upstream = Upstream()

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start())
        await _httpx(url, content=LONG)
        before = counts_of(middleware).get("decisions"), router_of(middleware).index.provisional
        await send(chunk(b"data: 1\n\n"))
        noted.append((before, router_of(middleware).index.provisional))
        await send(chunk(more=False))

    noted: list[Any] = []
    async with served(upstream) as url:
        settings = settings_for(silent_port, ["w1"], upstream_url=url, decide="egress")
        async with mounted(host, settings) as middleware:
            await ask(middleware)
            assert noted == [((1, 1), 0)]
            assert_nothing_left(middleware)


async def test_shadow_reads_what_leaves_and_sets_nothing(silent_port: int) -> None:
    """Both settings together try the decision on a host that rewrites prompts."""
    scope = http_scope()
    async with rig(silent_port, decide="egress", mode="shadow") as (middleware, host, upstream, url):
        host.call = lambda: _httpx(url, content=LONG)
        await ask(middleware, scope=scope)
        decision = scope["prefix_middleware"]
        assert isinstance(decision, Decision)
        assert (decision.blocks, upstream.seen) == (7, [("POST", CHAT, [])])


async def test_the_inbound_requests_tenant_counts(silent_port: int) -> None:
    """What leaves shares with nothing of another tenant, though the host does not forward the header."""
    async with rig(silent_port, decide="egress", tenant_header="X-Tenant") as (middleware, host, _, url):
        host.call = lambda: _httpx(url, content=LONG)
        matched = []
        for tenant in (b"a", b"a", b"b"):
            scope = http_scope(headers=[(b"x-tenant", tenant)])
            await ask(middleware, scope=scope)
            decision = scope["prefix_middleware"]
            assert isinstance(decision, Decision)
            matched.append(decision.matched_blocks)
        assert matched == [0, 7, 0]


async def test_mode_off_is_off_at_egress_too(silent_port: int) -> None:
    """The outgoing body is not read, and the inbound request is counted as off."""
    async with rig(silent_port, decide="egress", mode="off") as (middleware, host, upstream, url):
        host.call = lambda: _httpx(url, content=LONG)
        await ask(middleware)
        assert (skips_of(middleware), upstream.seen) == ({"off": 1}, [("POST", CHAT, [])])


def test_egress_without_an_upstream_is_refused() -> None:
    """Without a hop no carrier would ever decide, and the mistake would be silent."""
    with pytest.raises(SettingsError) as refused:
        Settings(decide="egress")
    assert str(refused.value) == "decide='egress': accepted is ingress where upstream_url is not set"
    assert Settings(decide="egress", upstream_url="http://nginx").decide == "egress"
