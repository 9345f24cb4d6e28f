"""Two gateway processes, real Redis, real nginx, three workers: a conversation stays where it began."""

import json
import signal
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from prefix_middleware.core.blocks import Hasher
from prefix_middleware.core.canonical import CanonicalPrompt, canonical_prompt
from tests.e2e.stack import Stack, conversation, follow_up, stack
from tests.services import wait_until

TURNS = 5


@pytest.fixture(scope="module")
def fleet() -> Iterator[Stack]:
    with stack(options=("--tokens-per-second", "20000", "--ms-per-token", "1")) as running:
        yield running


def full_blocks(messages: list[dict[str, Any]]) -> int:
    """Return the number of full blocks of a prompt, by its canonical size."""
    prompt = canonical_prompt("chat", json.dumps({"model": "fake-model", "messages": messages}).encode())
    assert isinstance(prompt, CanonicalPrompt)
    return len(Hasher(None, 1 << 20).hash(prompt).hashes)


def test_every_follow_up_is_served_by_the_worker_of_its_first_turn(fleet: Stack) -> None:
    """20 conversations of 5 turns, each turn through the other gateway: the worker stays, and m is exact."""
    expected: dict[int, list[tuple[int, str]]] = defaultdict(list)

    def play(number: int) -> list[str]:
        messages, served, previous = conversation(("follow", number), 16_000), [], 0
        for turn in range(TURNS):
            answer = fleet.chat((number + turn) % 2, messages)
            served.append(answer.worker)
            expected[(number + turn) % 2].append((previous, served[-1]))
            previous = full_blocks(messages)
            messages = follow_up(messages, answer, turn + 2)
        return served

    with ThreadPoolExecutor(2) as pool:
        played = list(pool.map(play, range(20)))

    assert [set(served) for served in played] == [{served[0]} for served in played]
    assert len({served[0] for served in played}) == 3
    for gateway in (0, 1):
        lines = [(int(line["m"]), line["worker"]) for line in fleet.decisions(gateway)]
        assert sorted(lines) == sorted(expected[gateway])


def test_a_restarted_worker_stops_matching_on_both_gateways(fleet: Stack) -> None:
    """Its cache is gone, so neither gateway may credit it, whoever noticed first."""
    messages = conversation("restart", 12_000)
    first = fleet.chat(0, messages)
    home = fleet.decisions(0)[-1]["worker"]
    fleet.start_worker(home)
    text = f"worker {home} has restarted"
    wait_until(lambda: all(text in fleet.log(n) for n in (0, 1)), what="restart noticed")
    messages = follow_up(messages, first, 2)

    fleet.chat(1, messages)
    assert fleet.decisions(1)[-1]["m"] == "0"
    fleet.chat(0, messages)
    assert int(fleet.decisions(0)[-1]["m"]) == full_blocks(messages)


def test_a_worker_killed_and_back_within_a_poll_gets_no_credit_from_either_gateway() -> None:
    """No poll is due while it is away, nothing is asked of it, and the follow-ups come as soon as it listens again."""
    with stack(env={"PREFIX_HEALTH_SECONDS": "60"}) as fleet:
        messages = [conversation(("within", number), 12_000) for number in (0, 1)]
        first = [fleet.chat(gateway, messages[gateway]) for gateway in (0, 1)]
        for home in {answer.worker for answer in first}:
            fleet.processes[home].signal(signal.SIGKILL)
            fleet.start_worker(home)
        for gateway in (0, 1):
            fleet.chat(gateway, follow_up(messages[gateway], first[gateway], 2))
        assert [fleet.decisions(gateway)[-1]["m"] for gateway in (0, 1)] == ["0", "0"]


def test_a_forged_header_never_reaches_a_worker_or_nginx(fleet: Stack) -> None:
    """A client names a worker; the gateway's own choice is what nginx sees."""
    body = json.dumps({"model": "fake-model", "messages": conversation("forged", 4_000)}).encode()
    forged = [("X-Prefix-Worker", "w9"), ("x-prefix-worker", "w1")]

    assert fleet.post(0, body, forged).status_code == 200
    worker = fleet.server_of(body)
    assert worker == fleet.decisions(0)[-1]["worker"]
    assert fleet.served(worker)[-1]["x_prefix_worker"] is None  # nginx has consumed it
