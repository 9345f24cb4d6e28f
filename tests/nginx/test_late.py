"""A long prefill: nothing for a while, then tokens. Waited for, and never started a second time elsewhere."""

import asyncio
import time
from dataclasses import dataclass

import pytest

from prefix_middleware.nginx.render import Topology
from tests.nginx.running import Fleet
from tests.nginx.worker import Connection, FakeWorker, Seen

PATH = "/v1/chat/completions"
KEY = {"Authorization": "Bearer k", "X-Prefix-Worker": "w1"}


@dataclass
class Slow(FakeWorker):
    """A worker that computes for a while before its first byte."""

    prefill_seconds: float = 0.0

    async def answer(self, seen: Seen, connection: Connection) -> None:
        """Wait, then answer."""
        await asyncio.sleep(self.prefill_seconds)
        await super().answer(seen, connection)


@pytest.mark.anyio
@pytest.mark.parametrize("topology", ["a", "b"])
async def test_a_first_token_later_than_the_replay_limit_is_waited_for(
    fleet: Fleet, topology: Topology
) -> None:
    """The limit on replays (10 s, here 0.2 s) is none on the prefill: the worker is asked once and its stream passes whole."""
    slow = Slow("w1", prefill_seconds=0.8, behaviour="stream", chunks=5)
    fleet.workers[0] = slow
    files = fleet.files(topology)
    scaled = files["prefix_proxy.conf"].replace("upstream_timeout 10s", "upstream_timeout 200ms")
    assert scaled != files["prefix_proxy.conf"]
    async with fleet.up(topology, {**files, "prefix_proxy.conf": scaled}) as client:
        began = time.monotonic()
        async with client.stream("POST", PATH, json={}, headers=KEY) as answer:
            waited = time.monotonic() - began
            body = await answer.aread()
    assert (answer.status_code, answer.headers["x-prefix-served"], waited >= 0.8) == (200, "w1", True)
    assert body == b"".join(b"data: %d\n\n" % number for number in range(5))
    assert fleet.requests == {"w1": 1, "w2": 0, "w3": 0}
