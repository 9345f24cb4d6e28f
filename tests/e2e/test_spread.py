"""Where prompts go that follow nothing: an idle fleet is used evenly, and a burst of one prompt stays together."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.stack import KEY, Stack, stack, words

FAST = ("--tokens-per-second", "200000", "--ms-per-token", "0.5")
SHARED = words(2300, "shared")[:20_480]


@pytest.fixture
def fleet() -> Iterator[Stack]:
    with stack(options=FAST) as running:
        yield running


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(lambda n: words(450, ("unrelated", n)), id="unrelated"),
        pytest.param(lambda n: words(22, ("short", n))[:200], id="200 bytes"),
        pytest.param(lambda n: SHARED + words(11, ("tail", n))[:100], id="20 KB shared, 100 bytes not"),
    ],
)
def test_an_idle_fleet_is_used_evenly(fleet: Stack, text: Callable[[int], str]) -> None:
    """60 prompts one at a time over three idle workers and two gateways: each gets 12 to 28."""
    for number in range(60):
        body = {
            "model": "fake-model",
            "messages": [{"role": "user", "content": text(number)}],
            "max_tokens": 1,
        }
        assert fleet.post(number % 2, json.dumps(body).encode()).status_code == 200

    counts = fleet.counts()
    assert sum(counts.values()) == 60
    assert {worker: count for worker, count in counts.items() if not 12 <= count <= 28} == {}, counts


@pytest.fixture
def slow_fleet() -> Iterator[Stack]:
    with stack(options=("--tokens-per-second", "4000", "--ms-per-token", "1")) as running:
        yield running


def test_a_burst_of_one_prompt_stays_together(slow_fleet: Stack) -> None:
    """32 equal 20 KB prompts at once through two gateways reach at most two workers."""
    content = json.dumps(
        {"model": "fake-model", "messages": [{"role": "user", "content": SHARED}], "max_tokens": 1}
    ).encode()
    together = threading.Barrier(32)

    def ask(number: int) -> int:
        with httpx.Client(timeout=30, trust_env=False) as client:
            url = f"http://127.0.0.1:{slow_fleet.gateways[number % 2]}"
            client.get(url + "/usage", headers=KEY)  # the connection is there before the burst
            together.wait()
            return client.post(url + "/v1/chat/completions", content=content, headers=KEY).status_code

    with ThreadPoolExecutor(32) as pool:
        statuses = list(pool.map(ask, range(32)))

    counts = slow_fleet.counts()
    assert statuses == [200] * 32
    assert sum(counts.values()) == 32
    assert sum(count > 0 for count in counts.values()) <= 2, counts
