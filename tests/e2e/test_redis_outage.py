"""Redis frozen, killed and started again empty while requests run: nobody notices, and the gateways agree again."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import httpx
import pytest

from tests.e2e.stack import KEY, Stack, conversation, follow_up, stack, words
from tests.services import wait_until


@pytest.fixture(scope="module")
def fleet() -> Iterator[Stack]:
    with stack(options=("--tokens-per-second", "100000", "--ms-per-token", "1")) as running:
        yield running


@contextmanager
def traffic(fleet: Stack) -> Iterator[list[int]]:
    """Send prompts through both gateways for the length of a block; yields the statuses seen so far."""
    statuses: list[int] = []
    stopped = threading.Event()

    def send(gateway: int) -> None:
        with httpx.Client(timeout=20, trust_env=False) as client:
            url = f"http://127.0.0.1:{fleet.gateways[gateway]}/v1/chat/completions"
            number = 0
            while not stopped.is_set():
                number += 1
                text = words(200, (gateway, number % 7))
                body = {
                    "model": "fake-model",
                    "messages": [{"role": "user", "content": text}],
                    "max_tokens": 1,
                }
                try:
                    statuses.append(client.post(url, json=body, headers=KEY).status_code)
                except httpx.HTTPError:
                    statuses.append(0)
                stopped.wait(0.01)

    threads = [threading.Thread(target=send, args=(gateway,)) for gateway in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("outage", "recovery"),
    [
        pytest.param(lambda s: s.redis.freeze(), lambda s: s.redis.thaw(), id="frozen"),
        pytest.param(
            lambda s: s.redis.kill(), lambda s: s.redis.restart_empty(), id="killed, started again empty"
        ),
    ],
)
def test_an_outage_of_redis_costs_no_request(
    fleet: Stack, outage: Callable[[Stack], None], recovery: Callable[[Stack], None]
) -> None:
    """No request fails, each gateway says one line when it loses the mirror and one when it is back, and they agree."""
    before = [state_lines(fleet, gateway) for gateway in (0, 1)]
    with traffic(fleet) as statuses:
        outage(fleet)
        wait_until(lambda: all(lost(fleet, g, before) for g in (0, 1)), 20, "outage noticed")
        during = len(statuses)
        wait_until(lambda: len(statuses) > during + 100, 20, "traffic during the outage")
        recovery(fleet)
        wait_until(lambda: all(back(fleet, g, before) for g in (0, 1)), 30, "recovery noticed")

    assert set(statuses) == {200}
    for gateway in (0, 1):
        fresh = state_lines(fleet, gateway)[len(before[gateway]) :]
        assert [line.split(",")[0].split(" to ")[0] for line in fresh] == [
            "[PREFIX] mirror: lost",
            "[PREFIX] mirror: connected",
        ]
    probes = count()  # what both have to catch up on comes first
    wait_until(lambda: agree(fleet, ("probe", time.monotonic()), next(probes)), 10, "agreement")
    assert [agree(fleet, ("after", time.monotonic()), number) for number in range(6)] == [True] * 6


def state_lines(fleet: Stack, gateway: int) -> list[str]:
    """Return what a gateway has said of its mirror."""
    return [line for line in fleet.log(gateway).splitlines() if line.startswith("[PREFIX] mirror")]


def lost(fleet: Stack, gateway: int, before: list[list[str]]) -> bool:
    """Tell whether the gateway has noticed the outage."""
    return len(state_lines(fleet, gateway)) > len(before[gateway])


def back(fleet: Stack, gateway: int, before: list[list[str]]) -> bool:
    """Tell whether the gateway has noticed the recovery."""
    return len(state_lines(fleet, gateway)) > len(before[gateway]) + 1


def agree(fleet: Stack, seed: object, number: int) -> bool:
    """Tell whether the second turn of a new conversation, through the other gateway, stays with the first."""
    messages = conversation((seed, number), 9_000)
    first = fleet.chat(number % 2, messages)
    second = fleet.chat((number + 1) % 2, follow_up(messages, first, 2))
    reason = fleet.decisions((number + 1) % 2)[-1]["reason"]
    return (second.worker, reason) == (first.worker, "hit")
