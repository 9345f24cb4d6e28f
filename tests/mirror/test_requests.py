"""Requests and Redis: no request waits for it, holds a connection of it, harms one, or is logged because it is away."""

import asyncio
import logging
import socket
from collections.abc import Iterator

import pytest
from anyio.lowlevel import checkpoint
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from prefix_middleware import PrefixMiddleware, Settings
from prefix_middleware.core.updates import Confirmed
from prefix_middleware.mirror.redis import RedisMirror
from prefix_middleware.telemetry import LOGGER
from tests.edge.asgi import (
    CHAT,
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
    read,
    settings_for,
    start,
)
from tests.edge.logs import Keeper
from tests.mirror.peer import FakePeer, carrying, until
from tests.mirror.proxy import proxy_to
from tests.mirror.relay import relay_to
from tests.services import RedisServer, redis_server

pytestmark = pytest.mark.anyio


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Port of a worker that accepts and never answers: the first time-out of a poll is no news."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def kept() -> Iterator[Keeper]:
    """Every record of ours."""
    log, keeper = logging.getLogger(LOGGER), Keeper()
    level = log.level
    log.addHandler(keeper)
    log.setLevel(logging.INFO)
    try:
        yield keeper
    finally:
        log.removeHandler(keeper)
        log.setLevel(level)


def settings(port: int, url: str) -> Settings:
    return settings_for(port, redis_url=url, secret="a secret of the tests")


def listener(middleware: PrefixMiddleware, url: str) -> tuple[RedisMirror, FakePeer]:
    """Return another gateway of the middleware's fleet that keeps what it hears."""
    return RedisMirror(url, "default", middleware._runtime._hasher.fingerprint), FakePeer("listener")


def confirmations(peer: FakePeer) -> int:
    """Count the confirmed records heard."""
    return sum(isinstance(update, Confirmed) for _, update in peer.heard)


async def test_two_thousand_requests_at_once_hold_two_connections(
    redis: RedisServer, silent_port: int, patient: None
) -> None:
    """A writer and a reader per process, however many requests run: none is opened for a request, none ever waits for one."""
    release = asyncio.Event()

    async def holding(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        await release.wait()
        await send(start())
        await send(chunk(b"ok", more=False))

    async with (
        proxy_to(redis.port) as proxy,
        mounted(holding, settings(silent_port, proxy.url)) as middleware,
        asyncio.TaskGroup() as group,
    ):
        for number in range(2000):
            group.create_task(ask(middleware, chat(f"prompt {number} " + "x" * 600)))
            if number % 20 == 0:
                await checkpoint()
        await eventually(lambda: sum(load[0] for load in loads_of(middleware).values()) == 2000, seconds=60)
        await eventually(lambda: counts_of(middleware).get("mirror_connected"))
        during = len(proxy.open)
        release.set()
        await eventually(lambda: not any(load[0] for load in loads_of(middleware).values()), seconds=60)
        mirror, peer = listener(middleware, redis.url)
        async with carrying((mirror, peer)):
            await until(lambda: confirmations(peer) == 2000, seconds=60, what="every record heard")
        after = len(proxy.open)
    assert (during, after, proxy.accepted) == (2, 2, 2)


async def test_cancelled_requests_never_touch_a_connection(
    redis: RedisServer, silent_port: int, patient: None
) -> None:
    """A thousand are cancelled anywhere while Redis answers late: it is two connections all the time, and answers are heard."""
    answered = 0

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal answered
        await read(receive)
        for _ in range(5):
            await checkpoint()
        await send(start())
        answered += 1
        await send(chunk(b"ok", more=False))

    async with (
        relay_to(redis.port, delay_seconds=0.005) as relay,
        mounted(slow, settings(silent_port, relay.url)) as middleware,
    ):
        mirror, peer = listener(middleware, redis.url)
        async with carrying((mirror, peer)):
            await ask(middleware, chat("first" * 200))
            await eventually(lambda: counts_of(middleware).get("mirror_connected"))
            for group in range(50):
                tasks = [
                    asyncio.create_task(ask(middleware, chat(f"{group} {number} " + "x" * 600)))
                    for number in range(20)
                ]
                for task in tasks:
                    await checkpoint()
                    task.cancel()
                    await asyncio.wait([task])
            for number in range(20):
                await ask(middleware, chat(f"last {number} " + "x" * 600))
            await until(
                lambda: confirmations(peer) >= answered, seconds=60, what="every answered request heard"
            )
            await until(
                lambda: not any(gauge.in_flight for gauges in peer.loads.values() for gauge in gauges)
            )
        counts = counts_of(middleware)
        assert_nothing_left(middleware)
        assert (confirmations(peer), relay.accepted) == (answered, 2)
        assert (counts["mirror_connected"], counts.get("mirror_lost"), counts.get("errors")) == (
            1,
            None,
            None,
        )


@pytest.mark.parametrize("outage", ["absent", "frozen", "wrong password", "no such name"])
async def test_requests_while_redis_is_away_write_no_line_about_it(
    silent_port: int, kept: Keeper, outage: str
) -> None:
    """The change of state is one line; four hundred routed requests later it still is, and nothing has a traceback."""
    with redis_server(*(["--requirepass", "right-one"] if outage == "wrong password" else [])) as server:
        if outage == "absent":
            server.kill()
        async with proxy_to(server.port) as proxy:
            url = f"redis://{'a' * 64}.invalid:1/0" if outage == "no such name" else proxy.url
            async with mounted(answering, settings(silent_port, url)) as middleware:
                await ask(middleware)
                if outage == "frozen":
                    await eventually(lambda: counts_of(middleware).get("mirror_connected"))
                    server.freeze()
                for _ in range(200):
                    await ask(middleware)
                await eventually(lambda: counts_of(middleware).get("mirror_lost"))
                for _ in range(200):
                    await ask(middleware)
                attempts = proxy.accepted
                if outage in ("absent", "wrong password"):
                    await eventually(lambda: proxy.accepted >= attempts + 2, "more attempts")
                counts = counts_of(middleware)
    routed = [record for record in kept.records if hasattr(record, "matched_tokens")]
    others = [record for record in kept.records if record not in routed]
    assert (len(routed), counts["decisions"], counts.get("errors")) == (401, 401, None)
    lost = [record.getMessage() for record in others if "mirror: lost" in record.getMessage()]
    assert (len(lost), len(others)) == (1, 2 if outage == "frozen" else 1)
    assert [record.exc_info for record in kept.records] == [None] * len(kept.records)


async def test_a_mounted_application_starts_its_mirror_once_with_its_first_requests(
    redis: RedisServer, silent_port: int, patient: None
) -> None:
    """Nobody tells a mounted application of a lifespan: fifty first requests at once open one pair of connections."""
    async with proxy_to(redis.port) as proxy:
        middleware = PrefixMiddleware(answering, settings(silent_port, proxy.url))
        make_ready(middleware)
        app = Starlette(routes=[Mount("/llm", middleware)])
        try:
            before = proxy.accepted
            scopes = [http_scope("/llm" + CHAT) for _ in range(50)]
            clients = await asyncio.gather(*(ask(app, chat(), scope) for scope in scopes))
            await eventually(lambda: counts_of(middleware).get("mirror_connected"))
            accepted = before, proxy.accepted
        finally:
            await middleware._runtime.stop()
        await eventually(lambda: not proxy.open, "both closed")
    assert ([client.answer for client in clients], accepted) == ([b"ok"] * 50, (0, 2))
    assert counts_of(middleware)["decisions"] == 50


async def test_the_first_request_does_not_wait_for_redis(silent_port: int) -> None:
    """A Redis that accepts and says nothing is not connected, and the request that starts the mirror is routed."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"redis://127.0.0.1:{mute.getsockname()[1]}/0"
        async with mounted(answering, settings(silent_port, url)) as middleware:
            client = await ask(middleware)
            counts = counts_of(middleware)
            said = (counts["decisions"], counts.get("mirror_connected"), counts.get("mirror_lost"))
    assert (client.answer, said) == (b"ok", (1, None, None))
