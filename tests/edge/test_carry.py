"""What leaves the host: which requests of its HTTP clients carry the header, and what the hop's answer changes."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import wrapt

from prefix_middleware.carry import httpx as carrier
from prefix_middleware.carry.context import hops
from tests.edge.asgi import (
    CHAT,
    answering,
    ask,
    counts_of,
    mounted,
    served,
    settings_for,
)
from tests.edge.upstream import EVIL, Upstream, rig

pytestmark = pytest.mark.anyio


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """httpx as it is before the first start of a carrier in this process."""
    monkeypatch.setattr(carrier, "_patched", False)
    for client in (httpx.AsyncClient, httpx.Client):
        monkeypatch.setattr(client, "send", getattr(client.send, "__wrapped__", client.send))
    yield
    monkeypatch.undo()


@pytest.mark.parametrize("made", ["before the patch", "after the patch"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_clients_of_either_kind_carry_the_header(
    silent_port: int, unpatched: None, kind: str, made: str
) -> None:
    """A client that the host made at import time carries it like one made inside the request."""
    early, early_sync = httpx.AsyncClient(), httpx.Client()
    async with rig(silent_port) as (middleware, host, upstream, url):

        async def call() -> None:
            if kind == "async":
                client = early if made.startswith("before") else httpx.AsyncClient()
                async with client:
                    await client.post(url + CHAT, content=b"{}")
            else:
                with early_sync if made.startswith("before") else httpx.Client() as sync_client:
                    await asyncio.to_thread(sync_client.post, url + CHAT, content=b"{}")

        host.call = call
        await ask(middleware)
        assert (upstream.seen, counts_of(middleware)["injections"]) == ([("POST", CHAT, ["w1"])], 1)
    await early.aclose()
    await asyncio.to_thread(early_sync.close)


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


async def test_a_stopped_middleware_leaves_requests_alone(silent_port: int) -> None:
    """After shutdown the patch is inert, also for a request that is still running."""
    async with rig(silent_port) as (middleware, host, upstream, url), httpx.AsyncClient() as client:

        async def call() -> None:
            await middleware._runtime.stop()
            await client.post(url + CHAT, headers=EVIL)

        host.call = call
        await ask(middleware)
        assert ([named for _, _, named in upstream.seen], hops) == ([["evil"]], [])


@pytest.mark.parametrize("order", ["ours first", "theirs first"])
async def test_it_stacks_with_another_wrapper_in_either_order(
    silent_port: int, unpatched: None, order: str
) -> None:
    """An instrumentation that wraps the same method keeps working, whoever came first."""
    theirs: list[str] = []

    def wrap() -> None:
        def wrapper(wrapped: Callable[..., object], _: object, args: Any, kwargs: Any) -> object:
            if args[0].url.path == CHAT:  # the polls of workers pass here too
                theirs.append(CHAT)
            return wrapped(*args, **kwargs)

        wrapt.wrap_function_wrapper(httpx, "AsyncClient.send", wrapper)

    if order == "theirs first":
        wrap()
    async with rig(silent_port) as (middleware, host, upstream, url), httpx.AsyncClient() as client:
        await ask(middleware)  # starts, and patches
        if order == "ours first":
            wrap()
        host.call = lambda: client.post(url + CHAT)
        await ask(middleware)
        assert (upstream.seen, theirs) == ([("POST", CHAT, ["w1"])], [CHAT])


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
