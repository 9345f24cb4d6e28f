"""`RouterPeer`: when a wait ends, and that idling costs nothing."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from prefix_middleware.core.outbox import OUTBOX_UPDATES, PROVISIONAL_DELAY_SECONDS
from prefix_middleware.core.updates import Confirmed, Provisional
from prefix_middleware.peer import PATIENT_SECONDS
from tests.mirror.fleet import Gateway

pytestmark = pytest.mark.anyio

LONG = 5.0


async def took(gateway: Gateway, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> float:
    """Return how long a wait lasts during which something happens."""
    began = time.monotonic()
    waiting = asyncio.create_task(gateway.peer.wait(seconds))
    await asyncio.sleep(0)
    meanwhile()
    await waiting
    return time.monotonic() - began


def quiet() -> Gateway:
    """Return a gateway whose loads have been looked at."""
    gateway = Gateway("redis://127.0.0.1:1/0")
    gateway.peer.gauges()
    return gateway


async def test_a_wait_lasts_as_long_as_nothing_happens() -> None:
    """An idle gateway sleeps."""
    assert await took(quiet(), 0.3) >= 0.3


async def test_a_choice_ends_a_long_wait_and_its_record_the_next() -> None:
    """Loads go out at once, the provisional record when it is 50 ms old, although nothing rings for it."""
    gateway = quiet()
    first = await took(gateway, LONG, lambda: gateway.choose(1))
    gateway.peer.gauges()
    early = gateway.peer.drain()
    second = await took(gateway, LONG)
    [record] = gateway.peer.drain()
    assert (first < LONG, early, second < LONG, type(record)) == (True, [], True, Provisional)
    assert first + second >= PROVISIONAL_DELAY_SECONDS * 0.9


async def test_a_short_wait_is_not_ended_by_loads() -> None:
    """Under traffic loads change with every request: they are looked at every 100 ms."""
    gateway = quiet()
    assert await took(gateway, 0.04, lambda: gateway.choose(1)) >= 0.04
    assert await took(gateway, LONG) <= PATIENT_SECONDS + LONG / 2


async def test_an_answer_that_starts_ends_any_wait() -> None:
    """A confirmed record is published at once."""
    gateway = quiet()
    assert await took(gateway, LONG, lambda: gateway.serve(1)) < LONG
    assert [type(update) for update in gateway.peer.drain()] == [Confirmed]


async def test_a_record_that_has_started_is_not_waited_for() -> None:
    """What is no longer provisional is no reason to look again in 50 ms."""
    gateway = quiet()
    gateway.serve(1)
    gateway.peer.drain()
    gateway.peer.gauges()
    await gateway.peer.wait(0)
    assert gateway.router.next_due() is None


async def test_a_choice_in_another_thread_ends_the_wait_too() -> None:
    """Carriers decide in threads of the host's."""
    gateway = quiet()
    thread = threading.Thread(target=gateway.serve, args=(1,))
    assert await took(gateway, LONG, thread.start) < LONG
    thread.join()


async def test_updates_that_the_outbox_has_dropped_are_counted() -> None:
    """What nobody drains is bounded, and the loss can be seen; each one is counted once."""
    gateway = quiet()
    for number in range(OUTBOX_UPDATES + 3):
        gateway.router.lost("w1", float(number))
    assert len(gateway.peer.drain()) == OUTBOX_UPDATES
    assert gateway.count("dropped") == 3
    gateway.peer.drain()
    assert gateway.count("dropped") == 3
