"""decide="egress" for prompts that no inbound request stands for: second calls, retries, executor threads, queue workers."""

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from prefix_middleware import Decision, PrefixMiddleware
from tests.edge.asgi import (
    CHAT,
    ask,
    assert_nothing_left,
    chat,
    counts_of,
    eventually,
    http_scope,
    loads_of,
    router_of,
)
from tests.edge.clients import KINDS, client
from tests.edge.upstream import EVIL, rig

pytestmark = pytest.mark.anyio

LONG = chat("x" * 4000)


def recorded(middleware: PrefixMiddleware) -> int:
    """How many blocks the index holds; LONG has 7 and its end."""
    return len(router_of(middleware).index)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_prompt_outside_any_request_has_an_exchange_of_its_own(silent_port: int, kind: str) -> None:
    """It starts with the hop's 2xx and is over when the client has closed the response."""
    async with rig(silent_port, decide="egress") as (middleware, _, upstream, url), client(kind) as post:
        await ask(middleware)  # starts
        await post(url, LONG, EVIL)
        if kind == "requests":
            gc.collect()  # nobody closes a response of requests
        await eventually(lambda: loads_of(middleware)["w1"] == (0, 0, 0), "counted out")
        assert (upstream.seen, recorded(middleware)) == ([("POST", CHAT, ["w1"])], 8)
        assert_nothing_left(middleware)


async def test_a_stream_outside_any_request_counts_until_it_is_closed(silent_port: int) -> None:
    """A queue worker that reads slowly keeps its place in the load of the worker."""
    async with rig(silent_port, decide="egress") as (middleware, _, _, url), httpx.AsyncClient() as opened:
        await ask(middleware)
        async with opened.stream("POST", url + CHAT, content=LONG):
            assert loads_of(middleware)["w1"] == (1, 0, 1001)
        assert loads_of(middleware)["w1"] == (0, 0, 0)


async def test_a_response_that_nobody_closes_counts_until_it_is_collected(silent_port: int) -> None:
    """A forgotten response does not load its worker for ever; the collection itself takes no lock."""
    async with rig(silent_port, decide="egress") as (middleware, _, _, url), httpx.AsyncClient() as opened:
        await ask(middleware)
        request = opened.build_request("POST", url + CHAT, content=LONG)
        kept = [await opened.send(request, stream=True)]
        assert loads_of(middleware)["w1"][0] == 1

        def collect() -> None:
            kept.clear()
            gc.collect()

        collecting = threading.Thread(target=collect, daemon=True)
        with router_of(middleware)._lock:  # as where the collector happens to run inside a routing call
            collecting.start()
            collecting.join(10)
        assert not collecting.is_alive()
        await eventually(lambda: loads_of(middleware)["w1"][0] == 0, "counted out")
        assert_nothing_left(middleware)


@pytest.mark.parametrize("status", [400, 500, 503])
async def test_a_failed_attempt_makes_room_for_the_next(silent_port: int, status: int) -> None:
    """An SDK's retry is decided anew and fills the request; the failed one is withdrawn."""
    scope, inside = http_scope(), list[int]()
    async with rig(silent_port, decide="egress") as (middleware, host, upstream, url):

        async def call() -> None:
            async with httpx.AsyncClient() as opened:
                for upstream.status in (status, 200):
                    await opened.post(url + CHAT, content=LONG)
                    inside.append(loads_of(middleware)["w1"][0])

        host.call = call
        await ask(middleware, scope=scope)
        assert (inside, recorded(middleware), counts_of(middleware)["decisions"]) == ([0, 1], 8, 2)
        assert isinstance(scope["prefix_middleware"], Decision)
        assert_nothing_left(middleware)


async def test_a_lost_connection_makes_room_for_the_next_attempt(silent_port: int) -> None:
    """A call that never reached nginx leaves nothing behind."""
    async with rig(silent_port, decide="egress", upstream_url="http://127.0.0.1:1") as (
        middleware,
        host,
        _,
        _,
    ):

        async def call() -> None:
            async with httpx.AsyncClient() as opened:
                for _ in range(3):
                    with pytest.raises(httpx.ConnectError):
                        await opened.post(f"http://127.0.0.1:1{CHAT}", content=LONG)
                    assert loads_of(middleware)["w1"] == (0, 0, 0)

        host.call = call
        await ask(middleware)
        assert (counts_of(middleware)["decisions"], recorded(middleware)) == (3, 0)
        assert_nothing_left(middleware)


async def test_a_second_prompt_of_one_request_is_decided_by_itself(silent_port: int) -> None:
    """A host that asks twice has two decisions; the request's own is the first."""
    scope, bodies = http_scope(), (chat("a" * 4000), chat("b" * 8000))
    async with rig(silent_port, decide="egress") as (middleware, host, _, url), httpx.AsyncClient() as opened:

        async def call() -> None:
            for body in bodies:
                await opened.post(url + CHAT, content=body)

        host.call = call
        await ask(middleware, scope=scope)
        decision = scope["prefix_middleware"]
        assert isinstance(decision, Decision)
        assert (decision.blocks, counts_of(middleware)["decisions"]) == (7, 2)
        assert recorded(middleware) == 8 + 16
        assert_nothing_left(middleware)


async def test_a_queue_worker_is_decided_anew_each_time(silent_port: int) -> None:
    """A task that outlives the request it was started in does not keep that request's worker."""
    go, first = asyncio.Event(), asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    async with rig(silent_port, ("w1", "w2"), decide="egress") as (middleware, host, upstream, url):
        router = router_of(middleware)
        router.set_ready("w2", False, 0.0)

        async def work() -> None:
            async with httpx.AsyncClient() as opened:
                await opened.post(url + CHAT, content=LONG)
                first.set()
                await go.wait()
                await opened.post(url + CHAT, content=LONG)

        async def call() -> None:
            tasks.append(asyncio.create_task(work()))
            await first.wait()

        host.call = call
        await ask(middleware)
        router.set_ready("w1", False, 0.0)
        router.set_ready("w2", True, 0.0)
        go.set()
        await asyncio.wait_for(tasks[0], 20)
        assert [named for _, _, named in upstream.seen] == [["w1"], ["w2"]]
        assert_nothing_left(middleware)


def _post(url: str, body: bytes) -> None:
    with httpx.Client() as opened:
        opened.post(url + CHAT, content=body)


async def _in_executor(work: Callable[[], object]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, work)


async def _submitted(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        await asyncio.wrap_future(future)


@pytest.mark.parametrize("run", [asyncio.to_thread, _in_executor, _submitted])
async def test_every_thread_carries(silent_port: int, run: Any) -> None:
    """No context is needed where the body decides: a bare executor carries like the rest."""
    async with rig(silent_port, decide="egress") as (middleware, host, upstream, url):
        host.call = lambda: run(partial(_post, url, LONG))
        await ask(middleware)
        assert (upstream.seen, recorded(middleware)) == ([("POST", CHAT, ["w1"])], 8)
        assert_nothing_left(middleware)


async def test_many_threads_at_once_leave_nothing_behind(silent_port: int) -> None:
    """Eight threads decide, start and finish beside the event loop; every load is zero again."""
    async with rig(silent_port, ("w1", "w2"), decide="egress") as (middleware, _, upstream, url):
        await ask(middleware)
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(8) as pool:
            bodies = [chat(f"{n % 10} " * 2000) for n in range(160)]
            await asyncio.gather(*(loop.run_in_executor(pool, _post, url, body) for body in bodies))
        assert (counts_of(middleware)["injections"], len(upstream.seen)) == (160, 160)
        assert {len(named) for _, _, named in upstream.seen} == {1}
        assert_nothing_left(middleware)
