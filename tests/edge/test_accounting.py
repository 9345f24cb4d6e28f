"""Loads as a whole stack of requests leaves them: bursts, long streams, clients that leave, publishing that fails."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from starlette.types import Receive, Scope, Send

from prefix_middleware import PrefixMiddleware
from tests.edge.asgi import (
    IDLE,
    Boom,
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
    settings_for,
    start,
)

pytestmark = pytest.mark.anyio
WORKERS = ("w1", "w2", "w3")


def prompts(seed: int, count: int, size: int) -> list[bytes]:
    """Return bodies that share nothing."""
    rng = Random(seed)
    return [chat(rng.randbytes(size // 2).hex()) for _ in range(count)]


def in_flight(middleware: PrefixMiddleware) -> list[int]:
    """Return how many requests each worker has."""
    return [load[0] for load in loads_of(middleware).values()]


@contextmanager
def publishing_fails(middleware: PrefixMiddleware) -> Iterator[list[str]]:
    """Let everything that is to be told to other gateways fail for the length of a block; yield the failures."""
    router, failures = router_of(middleware), list[str]()
    quiet = router.on_update

    def broken() -> None:
        failures.append("failed")
        raise ConnectionError

    router.on_update = broken
    try:
        yield failures
    finally:
        router.on_update = quiet


class Held:
    """A host that reads the body, answers as it is told, and holds the request until the client leaves or `open`."""

    def __init__(self, *first: bytes) -> None:
        self.first = first
        self.chosen: list[str] = []
        self.open = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        self.chosen += [name.decode() for name in sent_headers(scope)]
        if self.first:
            await send(start())
            for body in self.first:
                await send(chunk(body))
        leaving, opened = asyncio.ensure_future(receive()), asyncio.ensure_future(self.open.wait())
        done, left = await asyncio.wait([leaving, opened], return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        if opened in done:
            if not self.first:
                await send(start())
            await send(chunk(b"last", more=False))


def send_all(
    middleware: PrefixMiddleware, bodies: list[bytes]
) -> tuple[list[Client], list[asyncio.Task[None]]]:
    """Begin a request for each body."""
    clients = [Client(*pieces(body)) for body in bodies]
    return clients, [asyncio.create_task(middleware(http_scope(), c.receive, c.send)) for c in clients]


async def test_clients_that_leave_before_the_headers_and_a_restart_draw_no_crowd(silent_port: int) -> None:
    """400 clients close before any answer, then w3 restarts: nothing is in flight, and 30 new prompts spread evenly."""
    host = Held()
    async with mounted(host, settings_for(silent_port, WORKERS)) as middleware:
        router = router_of(middleware)
        for worker in WORKERS:
            router.set_epoch(worker, 1.0, 0.0)
        clients, tasks = send_all(middleware, prompts(1, 400, 2_000))
        await eventually(lambda: sum(in_flight(middleware)) == 400, "400 in flight")
        for client in clients:
            client.leave()
        await asyncio.wait(tasks)
        assert_nothing_left(middleware)
        assert router.set_epoch("w3", 2.0, 0.0) is True
        host.chosen.clear()
        _, tasks = send_all(middleware, prompts(2, 30, 8_000))
        await eventually(lambda: sum(in_flight(middleware)) == 30, "30 in flight")
        host.open.set()
        await asyncio.wait(tasks)
        assert_nothing_left(middleware)
    assert all(7 <= Counter(host.chosen)[worker] <= 13 for worker in WORKERS), Counter(host.chosen)


async def test_a_burst_of_long_prompts_is_even_before_any_answer(silent_port: int) -> None:
    """40 distinct 30 KB prompts in one turn of the event loop: the load rises with the choice, so none sees a free worker."""
    host = Held()
    async with mounted(host, settings_for(silent_port, WORKERS)) as middleware:
        _, tasks = send_all(middleware, prompts(3, 40, 30_000))
        await eventually(lambda: sum(in_flight(middleware)) == 40, "40 in flight")
        loads = in_flight(middleware)
        host.open.set()
        await asyncio.wait(tasks)
        assert_nothing_left(middleware)
    assert all(10 <= load <= 17 for load in loads), loads


async def test_long_streams_are_load_until_their_last_chunk(silent_port: int) -> None:
    """Four streams that have sent headers and tokens still count four: a fifth with their short prefix goes elsewhere."""
    host, body = Held(b"token", b"token"), chat("s" * 2_000)
    async with mounted(host, settings_for(silent_port, max_in_flight=4)) as middleware:
        router_of(middleware).set_ready("w2", False, 0.0)
        _, tasks = send_all(middleware, [body] * 4)
        await eventually(lambda: len(host.chosen) == 4, "four streams")
        make_ready(middleware)
        streaming = loads_of(middleware)
        _, fifth = send_all(middleware, [body])
        await eventually(lambda: len(host.chosen) == 5, "the fifth")
        assert (host.chosen, streaming["w1"][:2], streaming["w2"]) == (["w1"] * 4 + ["w2"], (4, 0), IDLE)
        host.open.set()
        await asyncio.wait([*tasks, *fifth])
        assert_nothing_left(middleware)


@pytest.mark.parametrize("chunks", [0, 3])
async def test_a_host_that_raises_is_counted_out_although_publishing_fails(
    silent_port: int, chunks: int
) -> None:
    """What we tell others comes after the release: the host's own exception leaves, and no load stays."""
    boom = Boom()

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        if chunks:
            await send(start())
        for _ in range(chunks):
            await send(chunk(b"token"))
        raise boom

    async with mounted(host, settings_for(silent_port)) as middleware:
        with pytest.raises(Boom):
            await ask(middleware)  # the runtime has started
        with publishing_fails(middleware) as failures:
            for _ in range(3):
                with pytest.raises(Boom) as raised:
                    await ask(middleware, chat("x" * 3_000))
                assert raised.value is boom
                assert_nothing_left(middleware)
        assert len(failures) >= (3 if chunks else 1)


async def test_health_that_comes_and_goes_leaves_streams_counted(silent_port: int) -> None:
    """Eight streams during failed polls and recoveries are eight until they end, and then none."""
    host = Held(b"token")
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        _, tasks = send_all(middleware, prompts(4, 8, 1_000))
        await eventually(lambda: len(host.chosen) == 8, "eight streams")
        seen = []
        for ready in (False, True, False, True, True):
            router_of(middleware).set_ready("w1", ready, 0.0)
            seen.append(in_flight(middleware))
        host.open.set()
        await asyncio.wait(tasks)
        assert (seen, in_flight(middleware)) == ([[8]] * 5, [0])
        assert_nothing_left(middleware)


async def test_a_thousand_failures_and_retries_never_go_below_zero(silent_port: int) -> None:
    """A 500, the host's own exception and a disconnect in turn: what counts a failure takes nothing out twice."""

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        await send(start(500))
        await send(chunk(b"error", more=False))
        await receive()
        raise Boom

    lowest = 0
    async with mounted(host, settings_for(silent_port)) as middleware:
        for number in range(1000):
            client = Client(*pieces(chat(str(number))), {"type": "http.disconnect"})
            with pytest.raises(Boom):
                await middleware(http_scope(), client.receive, client.send)
            lowest = min(lowest, *(figure for load in loads_of(middleware).values() for figure in load))
        assert_nothing_left(middleware)
    assert lowest == 0


async def test_a_request_after_all_that_is_routed_as_ever(silent_port: int) -> None:
    """Failures of publishing are counted and do not stop routing."""
    async with mounted(answering, settings_for(silent_port)) as middleware:
        await ask(middleware, chat("y" * 3_000))
        with publishing_fails(middleware):
            assert (await ask(middleware, chat("y" * 3_000))).answer == b"ok"
        assert (await ask(middleware, chat("y" * 3_000))).answer == b"ok"
        assert_nothing_left(middleware)
        counts = counts_of(middleware)
    assert (counts["decisions.hit"], counts["errors"]) == (2, 1)
