"""When loads are due, how long applying holds the loop, how pauses grow."""

import time
from collections.abc import Sequence

import anyio
import pytest
from anyio.lowlevel import checkpoint

from prefix_middleware.core.updates import Gauge, Update
from prefix_middleware.mirror.pace import Backoff, GaugePace, Slices
from tests.mirror.peer import FakePeer, confirmed

IDLE = [Gauge("w1", 1.0, 0, 0, 0)]
BUSY = [Gauge("w1", 1.0, 2, 30, 40)]
BUSIER = [Gauge("w1", 1.0, 3, 30, 40)]


def sent_at(timeline: list[tuple[float, list[Gauge]]]) -> list[float]:
    """Return the moments at which these loads would be published."""
    pace, moments = GaugePace(), []
    for now, gauges in timeline:
        if pace.due(now, gauges):
            pace.sent(now, gauges)
            moments.append(now)
    return moments


def test_changed_loads_are_at_least_a_tenth_of_a_second_apart() -> None:
    """A change waits until 100 ms after the last publication."""
    timeline = [(0.0, BUSY), (0.05, BUSIER), (0.1, BUSIER), (0.15, BUSY), (0.25, BUSY)]
    assert sent_at(timeline) == [0.0, 0.1, 0.25]


def test_unchanged_loads_are_repeated_every_second() -> None:
    """Receivers drop a load 3 s after arrival, so a long request must be said again."""
    assert sent_at([(step / 4, BUSY) for step in range(13)]) == [0.0, 1.0, 2.0, 3.0]


def test_zero_loads_are_repeated_too() -> None:
    """An idle gateway is seen by whoever looks, and one lost entry does not leave its last load standing."""
    timeline = [(0.0, BUSY), *((1 + step / 4, IDLE) for step in range(9))]
    assert sent_at(timeline) == [0.0, 1.0, 2.0, 3.0]


def test_a_pause_lasts_until_something_is_due() -> None:
    """Changed loads 100 ms after the last ones, repeated ones after 1 s, and never longer than that."""
    pace = GaugePace()
    pace.sent(0.0, BUSY)
    pauses = [pace.pause(0.25, BUSY), pace.pause(0.04, BUSIER), pace.pause(0.5, BUSIER)]
    pace.sent(1.0, IDLE)
    pauses += [pace.pause(1.5, IDLE), pace.pause(2.75, IDLE), pace.pause(0.5, IDLE)]
    assert [round(pause, 3) for pause in pauses] == [0.75, 0.06, 0.0, 0.5, 0.0, 1.0]


def test_forced_loads_are_due_at_once() -> None:
    """A new connection proves itself by a write."""
    pace = GaugePace()
    pace.sent(0.0, IDLE)
    pace.force()
    assert pace.due(0.0, IDLE)


def test_pauses_double_under_a_ceiling_and_start_again_after_a_success() -> None:
    """Full jitter: the draw takes any share of a ceiling from 0.1 to 3 s."""
    backoff = Backoff(lambda: 0.5)
    pauses = [backoff.next() for _ in range(9)]
    backoff.reset()
    assert [*pauses, backoff.next()] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 1.5, 1.5, 1.5, 0.05]


class SlowPeer(FakePeer):
    """Takes 0.1 ms for each update."""

    def merge(self, origin: str, updates: Sequence[Update], age_seconds: float) -> None:
        end = time.perf_counter() + 0.0001 * len(updates)
        super().merge(origin, updates, age_seconds)
        while time.perf_counter() < end:
            pass


@pytest.mark.anyio
async def test_a_long_entry_is_merged_in_order_while_the_loop_goes_on() -> None:
    """300 ms of merging must leave room for many turns of the event loop, not for one."""
    peer, updates, turns = SlowPeer("a"), [confirmed(i) for i in range(3000)], 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count_turns)
        await Slices(peer).merge("b", updates, 1.0)
        tasks.cancel_scope.cancel()
    assert turns >= 300
    assert peer.heard == [("b", update) for update in updates]
