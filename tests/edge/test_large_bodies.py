"""While a large body is read, other requests go on; whatever happens meanwhile leaves nothing behind."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from prefix_middleware import PrefixMiddleware, reading, runtime
from prefix_middleware.body import MESSAGE_BYTES
from prefix_middleware.core.canonical import CanonicalPrompt, Skip
from prefix_middleware.core.pieces import MAX_VALUES, WHOLE_BYTES
from prefix_middleware.reading import LARGE_BYTES
from tests.edge.asgi import (
    LEFT,
    Boom,
    Client,
    answering,
    ask,
    assert_nothing_left,
    chat,
    chunk,
    eventually,
    http_scope,
    mounted,
    pieces,
    read,
    sent_headers,
    settings_for,
    skips_of,
    start,
)

pytestmark = pytest.mark.anyio

MESSAGES = 60


def long_chat(size: int) -> bytes:
    """Return the body of a chat of MESSAGES messages, a little longer than `size`."""
    message = {"role": "user", "content": "x" * (size // MESSAGES)}
    return json.dumps({"model": "m", "messages": [message] * MESSAGES}).encode()


LARGE, HUGE = long_chat(LARGE_BYTES), long_chat(WHOLE_BYTES)


@pytest.fixture(autouse=True)
def shortest_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give way after every step, however fast the machine is."""
    monkeypatch.setattr(reading, "SLICE_SECONDS", 0.0)


class Rounds:
    """Counts how often the event loop goes round from the last piece of a body to the call of the host."""

    def __init__(self) -> None:
        self.clock = 0
        self.before_host = -1
        self.headers: list[bytes] = []
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            self.clock += 1
            await asyncio.sleep(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.before_host, self.headers = self.clock, sent_headers(scope)
        self._task.cancel()
        await answering(scope, receive, send)


@pytest.mark.parametrize("body", [LARGE, HUGE], ids=["over 64 KB", "over 1 MB"])
async def test_the_event_loop_goes_round_while_a_large_body_is_read(silent_port: int, body: bytes) -> None:
    """Reading gives way between messages, so that streams beside it do not wait for the whole."""
    host = Rounds()
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        client = await ask(middleware, body)
        assert_nothing_left(middleware)
    assert (host.before_host >= MESSAGES, host.headers, client.answer) == (True, [b"w1"], b"ok")


async def test_who_is_woken_during_a_step_runs_before_the_next_one() -> None:
    """A socket's callback wakes a task, which takes two rounds of the event loop: one would let us in between."""
    order: list[str] = []
    woken = asyncio.get_running_loop().create_future()

    async def stream() -> None:
        await woken
        order.append("stream")

    def steps() -> Iterator[CanonicalPrompt | Skip | None]:
        asyncio.get_running_loop().call_soon(woken.set_result, None)
        yield None
        order.append("next step")
        yield Skip("off")

    task = asyncio.create_task(stream())
    await asyncio.sleep(0)
    assert await reading.Reading().read(steps()) == Skip("off")
    await task
    assert order == ["stream", "next step"]


async def test_a_small_body_is_read_at_once(silent_port: int) -> None:
    """Usual requests pay nothing: between the body and the host's call the event loop does not go round."""
    host = Rounds()
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        await ask(middleware, long_chat(LARGE_BYTES // 2))
    assert (host.before_host, host.headers) == (0, [b"w1"])


class Order:
    """A host that notes in which order bodies reach it, by their size, and whether each was routed."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b"".join([message["body"] for message in await read(receive)])
        self.seen.append((len(body), bool(sent_headers(scope))))
        await send(start())
        await send(chunk(b"ok", more=False))


async def test_a_small_request_overtakes_a_large_one(silent_port: int) -> None:
    """A request that comes while a large body is read is at the host before that one."""
    host = Order()
    async with mounted(host, settings_for(silent_port)) as middleware:
        large = asyncio.create_task(ask(middleware, HUGE))
        await until_read(middleware)
        await ask(middleware, chat())
        await asyncio.wait_for(large, 60)
        assert_nothing_left(middleware)
    assert host.seen == [(len(chat()), True), (len(HUGE), True)]


async def test_large_bodies_are_read_one_after_another(silent_port: int) -> None:
    """Many at a time would each add a slice to everybody's wait; who waits may leave, and the next one is read."""
    host = Order()
    async with mounted(host, settings_for(silent_port)) as middleware:
        first = asyncio.create_task(ask(middleware, HUGE))
        await until_read(middleware)
        leaving, last = [asyncio.create_task(ask(middleware, body)) for body in (LARGE + b" ", LARGE)]
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([first, leaving, last], timeout=60)
        assert_nothing_left(middleware)
    assert (leaving.cancelled(), host.seen) == (True, [(len(HUGE), True), (len(LARGE), True)])


async def until_read(middleware: PrefixMiddleware) -> None:
    """Wait until a large body is being read."""
    await eventually(lambda: middleware._runtime._reading.busy, "a large body being read")


@pytest.mark.parametrize("rounds", [0, 1, 7, 40])
async def test_a_cancellation_while_a_large_body_is_read_leaves_nothing(
    silent_port: int, rounds: int
) -> None:
    """The server may give up at any step: the host is not called, nothing is held or in flight, and the next is read."""
    host = Order()
    async with mounted(host, settings_for(silent_port)) as middleware:
        task = asyncio.create_task(ask(middleware, HUGE))
        await until_read(middleware)
        for _ in range(rounds):
            await asyncio.sleep(0)
        assert middleware._runtime.buffered.held_bytes == len(HUGE) + MESSAGE_BYTES
        task.cancel()
        await asyncio.wait([task], timeout=60)
        assert (task.cancelled(), host.seen) == (True, [])
        assert_nothing_left(middleware)
        await ask(middleware, LARGE)
    assert host.seen == [(len(LARGE), True)]


async def test_a_host_that_fails_on_a_large_body_fails_with_its_own_exception(silent_port: int) -> None:
    """What leaves is the host's exception itself, and nothing stays."""
    boom = Boom()

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        raise boom

    async with mounted(host, settings_for(silent_port)) as middleware:
        with pytest.raises(Boom) as raised:
            await ask(middleware, HUGE)
        assert_nothing_left(middleware)
    assert raised.value is boom


async def test_a_client_that_leaves_while_its_large_body_is_read_is_the_hosts_to_notice(
    silent_port: int,
) -> None:
    """The host gets the whole body and then the disconnect, as without us."""
    seen: list[object] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(b"".join([message["body"] for message in await read(receive)]) == HUGE)
        seen.append(await receive())

    client = Client(*pieces(HUGE, [1 << 18]))
    async with mounted(host, settings_for(silent_port)) as middleware:
        task = asyncio.create_task(middleware(http_scope(), client.receive, client.send))
        await until_read(middleware)
        client.leave()
        await asyncio.wait_for(task, 60)
        assert_nothing_left(middleware)
    assert seen == [True, LEFT]


async def test_a_large_body_of_very_many_values_passes_unchanged_and_unrouted(silent_port: int) -> None:
    """A body that is cheap to send and dear to decode is the host's own affair."""
    host = Order()
    body = json.dumps({"messages": [[]] * MAX_VALUES, "model": "m"}).encode()
    async with mounted(host, settings_for(silent_port)) as middleware:
        await ask(middleware, body)
        assert_nothing_left(middleware)
        assert (host.seen, skips_of(middleware)) == ([(len(body), False)], {"too_large": 1})


async def test_a_failure_of_ours_while_a_large_body_is_read_passes_it_on(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in a step is counted, the request passes unrouted, and the next large body is read."""
    host = Order()
    async with mounted(host, settings_for(silent_port)) as middleware:
        with monkeypatch.context() as patch:
            patch.setattr(runtime, "prompt_steps", lambda *_: (1 / 0 for _ in "x"))
            await ask(middleware, HUGE)
        assert_nothing_left(middleware)
        await ask(middleware, LARGE)
        assert (host.seen, skips_of(middleware)) == ([(len(HUGE), False), (len(LARGE), True)], {"error": 1})
