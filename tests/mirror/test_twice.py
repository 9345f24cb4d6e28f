"""Written twice, true once: a write whose answer did not come is written again."""

import time

import pytest

from tests.mirror.fleet import Gateway, running
from tests.mirror.peer import until
from tests.services import RedisServer

pytestmark = pytest.mark.anyio


def loads(gateway: Gateway) -> tuple[int, int, int]:
    """Return in-flight, backlog and prompt tokens of the whole fleet as this gateway sees them."""
    now = time.monotonic()
    fleet = gateway.router.fleet
    found = [fleet.load(state, now) for state in fleet.states.values()]
    return (
        sum(load.in_flight for load in found),
        int(sum(load.backlog_tokens for load in found)),
        int(sum(load.prompt_tokens for load in found)),
    )


def fills(gateway: Gateway) -> list[float]:
    """Return how full each worker is, as this gateway sees it."""
    now, fleet = time.monotonic(), gateway.router.fleet
    return [fleet.load(state, now).fill for state in fleet.states.values()]


async def test_what_a_retry_writes_twice_counts_once(redis: RedisServer) -> None:
    """Redis hangs, takes what was sent meanwhile and gets it again: matches, loads and fill are those of one telling."""
    a, b = Gateway(redis.url), Gateway(redis.url)
    async with running(a, b):
        await until(lambda: a.connected and b.connected)
        redis.freeze()
        for number in range(100):
            a.serve(number)
        for number in range(100, 103):
            a.choose(number)
        await until(lambda: a.telemetry.counts["mirror_lost"])
        redis.thaw()
        await until(lambda: a.connected and b.connected and b.count("repeated"))
        await until(lambda: b.mirror.heard.get(a.origin) == a.mirror.published[a.origin] >= 103)
        await until(lambda: loads(b) == loads(a))
        seen = loads(b), [b.best(number) == a.best(number) for number in range(100)]
        told = fills(a), fills(b)
    assert seen == ((3, 3 * 1024, 3 * 1024), [True] * 100)
    assert told[1] == pytest.approx(told[0], rel=0.2)
    assert sum(told[0]) > 0.3  # about 100,000 tokens for a cache of 300,000
