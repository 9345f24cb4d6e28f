"""How much a decision costs Redis: its own blocks, batched with others; never what is known already, never by worker."""

import time
from typing import Any

import pytest

from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.router import Router
from prefix_middleware.core.workers import Worker
from prefix_middleware.mirror.store import connected
from tests.mirror.fleet import Gateway, prompt, running
from tests.mirror.peer import until
from tests.services import RedisServer

pytestmark = pytest.mark.anyio

BLOCKS = 64  # a prompt of 32 KB
DECISIONS = b"{prefix:test}:decisions"


class Busy(Gateway):
    """A gateway of a fleet of forty workers."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        workers = [Worker(f"w{n}", f"http://w{n}") for n in range(40)]
        self.router = Router(workers, index_blocks=200_000)
        self.peer = type(self.peer)(self.router, self.telemetry, time.monotonic, self.peer._loop)

    def decide(self, first: int, count: int) -> None:
        """Serve so many new prompts of 32 KB, all at once."""
        for number in range(first, first + count):
            chosen = self.router.route(prompt(number, BLOCKS), time.monotonic(), 0.5)
            assert isinstance(chosen, Reservation)
            self.router.start(chosen, time.monotonic())
            self.router.finish(chosen)


async def entries_after(url: str, entry_id: bytes) -> tuple[bytes, list[int]]:
    """Return the last id of the decisions stream, and the sizes of its entries behind `entry_id`."""
    async with connected(url, 10.0) as store:
        found: Any = await store.command("XRANGE", DECISIONS, b"(" + entry_id, "+")
    return bytes(found[-1][0]), [len(fields[1]) for _, fields in found]


async def until_heard(listener: Gateway, author: Gateway, updates: int) -> None:
    def done() -> bool:
        return listener.mirror.heard.get(author.origin) == updates

    await until(done, seconds=60, what=f"{updates} updates heard")


async def test_a_decision_costs_its_own_blocks_however_much_is_known(redis: RedisServer) -> None:
    """The first 200 decisions and those after 1,000 take the same bytes: 8 a block and a few more, in few entries."""
    a, b = Busy(redis.url), Busy(redis.url)
    sizes: list[list[int]] = []
    last = b"0-0"
    async with running(a, b):
        await until(lambda: a.connected and b.connected)
        for first, count in ((0, 200), (200, 800), (1000, 200)):
            a.decide(first, count)
            await until_heard(
                b, a, first + count
            )  # one update each: what starts at once was never provisional
            last, found = await entries_after(redis.url, last)
            sizes.append(found)
    [early, _, late] = [sum(found) for found in sizes]
    assert a.mirror.published[a.origin] == 1200
    assert 200 * 8 * BLOCKS < early < 200 * (8 * BLOCKS + 100)
    assert abs(late - early) < 0.02 * early
    assert max(map(len, sizes)) < 200
