"""Gateways come and go: a new one knows what the others know, and one that dies takes its load with it."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from tests.e2e.stack import KEY, Answer, Stack, conversation, follow_up, stack
from tests.services import wait_until

CONVERSATIONS = 200
GAUGE_SECONDS = 3.0


@pytest.fixture
def fleet() -> Iterator[Stack]:
    with stack(
        options=("--tokens-per-second", "200000", "--ms-per-token", "0.2", "--kv-blocks", "40000")
    ) as running:
        yield running


@contextmanager
def other_users(fleet: Stack) -> Iterator[None]:
    """Keep both gateways busy for the length of a block."""
    stopped = threading.Event()

    def send() -> None:
        number = 0
        with httpx.Client(timeout=20, trust_env=False) as client:
            while not stopped.wait(0.05):
                number += 1
                body = {"model": "fake-model", "messages": conversation(("other", number % 20), 2_000)}
                url = f"http://127.0.0.1:{fleet.gateways[number % 2]}/v1/chat/completions"
                client.post(url, json=body, headers=KEY)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def test_a_gateway_that_joins_chooses_like_the_others(fleet: Stack) -> None:
    """Started during traffic, it keeps at least 95 % of 200 known conversations on their worker."""
    first: list[tuple[list[dict[str, object]], Answer]] = []
    for number in range(CONVERSATIONS):
        messages = conversation(("known", number), 3_000)
        first.append((messages, fleet.chat(number % 2, messages, max_tokens=1)))
    with other_users(fleet):
        newcomer = fleet.start_gateway({})
        served = [fleet.chat(newcomer, follow_up(messages, answer, 2)).worker for messages, answer in first]

    kept = sum(worker == answer.worker for worker, (_, answer) in zip(served, first, strict=True))
    assert kept >= 0.95 * CONVERSATIONS


def test_the_load_of_a_killed_gateway_is_gone_within_3_seconds(fleet: Stack) -> None:
    """Six long streams through the first gateway weigh on all workers for the second, until the first is killed."""
    with ExitStack() as streams:
        for number in range(6):
            body: dict[str, object] = {"model": "fake-model", "max_tokens": 1_000_000, "stream": True}
            body["messages"] = conversation(("long", number), 2_000)
            url = f"http://127.0.0.1:{fleet.gateways[0]}/v1/chat/completions"
            client = streams.enter_context(httpx.Client(timeout=60, trust_env=False))
            streams.enter_context(client.stream("POST", url, json=body, headers=KEY))
        wait_until(lambda: freest(fleet) == 2, 10, "six streams seen by the other gateway")

        fleet.processes["gateway0"].signal(signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: freest(fleet) == 0, GAUGE_SECONDS + 1, "the load of the killed gateway gone")

    assert time.monotonic() - killed < GAUGE_SECONDS + 1


def freest(fleet: Stack) -> int:
    """Return the in-flight of the freest worker, as the second gateway sees it."""
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    fleet.post(1, json.dumps(body).encode())
    return int(fleet.decisions(1)[-1]["min"])
