"""Whose header a request carries: its own exchange's while that lives, and what the hop's answer changes in it."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio.to_thread
import httpx
import pytest
from starlette.types import Receive, Scope, Send

from prefix_middleware.core.updates import Confirmed
from tests.edge.asgi import (
    CHAT,
    ask,
    assert_nothing_left,
    chat,
    counts_of,
    http_scope,
    loads_of,
    mounted,
    read,
    router_of,
    sent_headers,
    served,
    settings_for,
    start,
)
from tests.edge.clients import client
from tests.edge.upstream import EVIL, Upstream, rig

pytestmark = pytest.mark.anyio


def post_in_thread(url: str, **options: Any) -> httpx.Response:
    with httpx.Client() as client:
        return client.post(url + CHAT, **options)


async def test_a_task_that_outlives_its_request_carries_nothing(silent_port: int) -> None:
    """A queue worker started inside a request must not keep that request's worker for ever."""
    go, first, tasks = asyncio.Event(), asyncio.Event(), []
    async with rig(silent_port) as (middleware, host, upstream, url), httpx.AsyncClient() as client:

        async def later() -> None:
            await client.post(url + CHAT)
            first.set()
            await go.wait()
            await client.post(url + CHAT, headers=EVIL)

        async def call() -> None:
            tasks.append(asyncio.create_task(later()))
            await first.wait()

        host.call = call
        await ask(middleware)
        go.set()
        await asyncio.wait_for(tasks[0], 20)
        assert [named for _, _, named in upstream.seen] == [["w1"], []]


@pytest.mark.parametrize("echo", ["w2", "w1", "unknown", None])
async def test_who_served_gets_the_record_and_the_load(silent_port: int, echo: str | None) -> None:
    """X-Prefix-Served moves the request to whoever served it and counts a failure for the chosen one."""
    loads: list[dict[str, tuple[int, int, int]]] = []
    async with (
        rig(silent_port, ("w1", "w2")) as (middleware, host, upstream, url),
        httpx.AsyncClient() as client,
    ):
        router = router_of(middleware)
        router.set_ready("w2", False, 0.0)
        upstream.served = echo

        async def call() -> None:
            await client.post(url + CHAT)
            loads.append(loads_of(middleware))

        host.call = call
        await ask(middleware, chat("x" * 2000))
        busy = "w2" if echo == "w2" else "w1"
        failures = {name: state.failures for name, state in router.fleet.states.items()}
        confirmed = [update.worker for update in router.drain(1e9) if isinstance(update, Confirmed)]
        expected = {name: (1, 501, 501) if name == busy else (0, 0, 0) for name in ("w1", "w2")}
        assert (loads, confirmed, failures) == ([expected], [busy], {"w1": int(echo == "w2"), "w2": 0})
        assert counts_of(middleware).get("echoes", 0) == (echo is not None)
        assert_nothing_left(middleware)


@pytest.mark.parametrize(("status", "failures"), [(200, 0), (400, 0), (503, 0), (500, 1), (502, 1)])
async def test_the_hops_own_status_counts_not_the_hosts(silent_port: int, status: int, failures: int) -> None:
    """Where a carrier sees the hop, the host may answer what it likes, or raise."""
    async with rig(silent_port) as (middleware, host, upstream, url), httpx.AsyncClient() as client:
        upstream.status = status

        async def call() -> None:
            await client.post(url + CHAT)
            raise ZeroDivisionError

        host.call = call
        with pytest.raises(ZeroDivisionError):
            await ask(middleware)
        assert router_of(middleware).fleet.states["w1"].failures == failures


@pytest.mark.parametrize(("upstream_url", "failures"), [("http://nginx", 0), (None, 1)])
async def test_a_hosts_own_500_is_no_workers_failure_where_a_carrier_would_see_one(
    silent_port: int, upstream_url: str | None, failures: int
) -> None:
    """Failing without a call on the hop says nothing of a worker; without a carrier the status is all there is."""

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(500))

    async with mounted(failing, settings_for(silent_port, ["w1"], upstream_url=upstream_url)) as middleware:
        await ask(middleware)
        assert router_of(middleware).fleet.states["w1"].failures == failures


async def _in_executor(work: Callable[[], object]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, work)


@pytest.mark.parametrize(
    ("run", "named"),
    [(asyncio.to_thread, ["w1"]), (anyio.to_thread.run_sync, ["w1"]), (_in_executor, [])],
    ids=["asyncio.to_thread", "anyio.to_thread", "run_in_executor"],
)
async def test_threads_carry_where_the_context_follows(
    silent_port: int, run: Callable[..., Awaitable[object]], named: list[str]
) -> None:
    """A thread carries when the call that starts it copies the context; a bare executor does not."""
    async with rig(silent_port) as (middleware, host, upstream, url):
        host.call = lambda: run(partial(post_in_thread, url))
        await ask(middleware)
        assert upstream.seen == [("POST", CHAT, named)]


@pytest.mark.parametrize("kind", ["httpx", "httpx2", "aiohttp", "requests"])
async def test_eight_hundred_concurrent_requests_keep_their_own_workers(silent_port: int, kind: str) -> None:
    """Every outgoing request names the worker that was chosen for its own incoming one, with every client."""
    chosen: dict[str, list[str]] = {}
    ids = tuple(f"w{i}" for i in range(8))
    upstream, everybody, turns = Upstream(), asyncio.Event(), asyncio.Semaphore(10)

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        number = sent_headers(scope, b"x-number")[0].decode()
        chosen[number] = [value.decode() for value in sent_headers(scope)]
        if len(chosen) == 800:
            everybody.set()
        await everybody.wait()
        async with turns:
            await post(url, headers={"x-number": number})

    async with (
        served(upstream) as url,
        client(kind) as post,
        mounted(host, settings_for(silent_port, ids, upstream_url=url)) as middleware,
        asyncio.timeout(60),
        asyncio.TaskGroup() as group,
    ):
        for number in range(800):
            scope = http_scope(headers=[(b"x-number", b"%d" % number)])
            group.create_task(ask(middleware, chat(f"{number} " * 50), scope))
    assert_nothing_left(middleware)
    assert (len(chosen), upstream.workers == chosen, {w for [w] in chosen.values()}) == (800, True, set(ids))
