"""What leaves the host: which requests of its HTTP clients carry the header, and what the hop's answer changes."""

from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from starlette.responses import RedirectResponse
from starlette.types import Receive, Scope, Send

from prefix_middleware.carry.context import hops
from prefix_middleware.exchange import RoutedExchange
from tests.edge.asgi import (
    CHAT,
    answering,
    ask,
    assert_nothing_left,
    counts_of,
    mounted,
    router_of,
    served,
    settings_for,
)
from tests.edge.clients import KINDS, client, unpatched
from tests.edge.upstream import EVIL, Upstream, rig

__all__ = ["unpatched"]

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("made", ["before the patch", "after the patch"])
@pytest.mark.parametrize("kind", KINDS)
async def test_every_client_carries_the_header(
    silent_port: int, unpatched: None, kind: str, made: str
) -> None:
    """A client that the host made at import time carries it like one made inside the request."""
    async with AsyncExitStack() as exits:
        early = await exits.enter_async_context(client(kind))
        middleware, host, upstream, url = await exits.enter_async_context(rig(silent_port))

        async def call() -> None:
            if made.startswith("before"):
                await early(url)
            else:
                async with client(kind) as late:
                    await late(url)

        host.call = call
        await ask(middleware)
        assert (upstream.seen, counts_of(middleware)["injections"]) == ([("POST", CHAT, ["w1"])], 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_host_forwards_is_replaced_and_ours_leaves_with_the_request(
    silent_port: int, kind: str
) -> None:
    """Every copy on the hop is one worker, ours, or gone; afterwards the client's own request has none."""
    answers: list[Any] = []
    async with rig(silent_port) as (middleware, host, upstream, url), client(kind) as post:

        async def call() -> None:
            answers.append(await post(url, headers=EVIL))

        host.call = call
        await ask(middleware)
        await ask(middleware, b"{")
        assert [named for _, _, named in upstream.seen] == [["w1"], []]
        assert [(a.status, a.text, "x-prefix-worker" in a.sent_headers) for a in answers] == [
            (200, "ok", False)
        ] * 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_redirect_takes_the_header_to_no_other_origin(silent_port: int, kind: str) -> None:
    """nginx, or what answers in its place, may send the client elsewhere: our workers' names stay here."""
    other, seen = Upstream(), list[list[bytes]]()
    async with served(other) as elsewhere:

        async def redirecting(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                seen.append([value for name, value in scope["headers"] if name == b"x-prefix-worker"])
                await RedirectResponse(elsewhere + CHAT, 307)(scope, receive, send)

        async with (
            served(redirecting) as url,
            rig(silent_port, upstream_url=url) as (middleware, host, _, _),
            client(kind) as post,
        ):
            host.call = lambda: post(url)
            await ask(middleware)
    assert (seen, other.seen) == ([[b"w1"]], [("POST", CHAT, [])])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stopped_middleware_leaves_requests_alone(silent_port: int, kind: str) -> None:
    """After shutdown the patch is inert, also for a request that is still running."""
    async with rig(silent_port) as (middleware, host, upstream, url), client(kind) as post:

        async def call() -> None:
            await middleware._runtime.stop()
            await post(url, headers=EVIL)

        host.call = call
        await ask(middleware)
        assert ([named for _, _, named in upstream.seen], hops) == ([["evil"]], [])


@pytest.mark.parametrize("broken", ["injected", "served"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_mistake_of_ours_does_not_reach_the_host(
    silent_port: int, monkeypatch: pytest.MonkeyPatch, kind: str, broken: str
) -> None:
    """The request goes out and its answer comes back as without us; one error is counted."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RoutedExchange, broken, fail)
    answers: list[Any] = []
    async with rig(silent_port) as (middleware, host, _, url), client(kind) as post:

        async def call() -> None:
            answers.append(await post(url))

        host.call = call
        await ask(middleware)
        assert [(answer.status, answer.text) for answer in answers] == [(200, "ok")]
        assert counts_of(middleware)["errors"] == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_who_served_is_read_from_every_clients_answer(silent_port: int, kind: str) -> None:
    """X-Prefix-Served moves the record, and the chosen worker has failed once."""
    async with rig(silent_port, ("w1", "w2")) as (middleware, host, upstream, url), client(kind) as post:
        router = router_of(middleware)
        router.set_ready("w2", False, 0.0)
        upstream.served = "w2"
        host.call = lambda: post(url)
        await ask(middleware)
        failures = {name: state.failures for name, state in router.fleet.states.items()}
        assert (failures, counts_of(middleware)["echoes"]) == ({"w1": 1, "w2": 0}, 1)
        assert_nothing_left(middleware)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_of_the_connection_is_the_hosts_own(silent_port: int, kind: str) -> None:
    """What a client raises reaches the host as it is, and blames no worker."""
    raised: list[str] = []
    async with (
        rig(silent_port, upstream_url="http://127.0.0.1:1") as (middleware, host, _, _),
        client(kind) as post,
    ):

        async def call() -> None:
            try:
                await post("http://127.0.0.1:1")
            except Exception as error:
                raised.append(type(error).__name__)

        host.call = call
        await ask(middleware)
    names = {"aiohttp": "ClientConnectorError", "requests": "ConnectionError"}
    assert raised == [names.get(kind, "ConnectError")]
    assert router_of(middleware).fleet.states["w1"].failures == 0


@pytest.mark.parametrize(
    ("method", "path", "named"),
    [
        ("POST", "/llm/v1/chat/completions", ["w1"]),
        ("POST", "/llm/deep/v1/messages", ["w1"]),
        ("GET", "/llm/v1/chat/completions", []),
        ("POST", "/llm/v1/embeddings", []),
        ("POST", "/llm/v1/chat/completions/render", []),
        ("POST", "/llmx/v1/chat/completions", ["evil"]),
        ("POST", "/v1/chat/completions", ["evil"]),
    ],
)
async def test_only_posts_of_prompts_on_the_hop_carry_it(
    silent_port: int, method: str, path: str, named: list[str]
) -> None:
    """On the hop every forwarded copy goes, and POSTs of configured paths get ours; off it nothing is touched."""
    async with rig(silent_port, path="/llm") as (middleware, host, upstream, url):
        async with httpx.AsyncClient() as client:
            host.call = lambda: client.request(method, url + path, headers=EVIL)
            await ask(middleware)
        assert upstream.seen == [(method, path, named)]


async def test_another_origin_is_untouched(silent_port: int) -> None:
    """A call to a cloud provider learns nothing of our workers."""
    other = Upstream()
    async with (
        rig(silent_port) as (middleware, host, upstream, _),
        served(other) as url,
        httpx.AsyncClient() as client,
    ):

        async def call() -> None:
            await client.post(url + CHAT)
            await client.post(url + CHAT, headers=EVIL)

        host.call = call
        await ask(middleware)
        assert (other.seen, upstream.seen) == ([("POST", CHAT, []), ("POST", CHAT, ["evil"])], [])


async def test_every_forwarded_copy_is_replaced(silent_port: int) -> None:
    """A host that forwards what its client sent, twice and in another case, still names one worker: ours."""
    copies = [("x-prefix-worker", "evil"), ("X-PREFIX-WORKER", "worse")]
    async with rig(silent_port) as (middleware, host, upstream, url), httpx.AsyncClient() as client:
        host.call = lambda: client.post(url + CHAT, headers=copies)
        await ask(middleware)
        await ask(middleware, b"{")
        assert [named for _, _, named in upstream.seen] == [["w1"], []]


async def test_a_second_mount_patches_no_second_time(silent_port: int, unpatched: None) -> None:
    """Two mounted applications in one process share one patch."""
    async with (
        rig(silent_port) as (first, host, upstream, url),
        mounted(answering, settings_for(silent_port, upstream_url=url)) as second,
    ):
        await ask(second)
        async with httpx.AsyncClient() as client:
            host.call = lambda: client.post(url + CHAT)
            await ask(first)
        assert (counts_of(first)["injections"], upstream.seen) == (1, [("POST", CHAT, ["w1"])])
