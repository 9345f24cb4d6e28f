"""A reload of nginx costs the gateway's pooled connections nothing."""

import os
import signal
from collections.abc import Callable

import anyio
import httpx
import pytest

from tests.nginx.running import Fleet, eventually

PATH = "/v1/chat/completions"
RELOADS = 5


def _longer(answers: list[tuple[int, bool]], by: int) -> Callable[[], bool]:
    enough = len(answers) + by
    return lambda: len(answers) >= enough


@pytest.mark.anyio
async def test_no_request_of_a_pooled_client_fails_over_reloads(fleet: Fleet) -> None:
    """Clients that reuse connections back to back, streams in flight, see only whole 200 answers over five reloads."""
    for worker in fleet.workers:
        worker.behaviour, worker.chunks, worker.gap_seconds = "stream", 5, 0.005
    whole = b"".join(b"data: %d\n\n" % number for number in range(5))
    answers: list[tuple[int, bool]] = []
    running = True

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        while running:
            answer = await client.post(PATH, json={}, headers={"X-Prefix-Worker": f"w{number % 3 + 1}"})
            answers.append((answer.status_code, answer.content == whole))

    async with fleet.up("a") as client, anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(ask, client, number)
        master = int((fleet.folder / "nginx.pid").read_text())
        for _ in range(RELOADS):
            os.kill(master, signal.SIGHUP)
            await eventually(_longer(answers, 60), "answers after the reload")
        running = False
    assert set(answers) == {(200, True)}
