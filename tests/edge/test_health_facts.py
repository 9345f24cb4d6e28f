"""What the polls conclude from a worker's facts, with the shipped fake worker behind a real socket."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from prefix_middleware import Worker
from prefix_middleware.core.updates import Notice
from prefix_middleware.health import WorkerHealth
from prefix_middleware.peer import RouterPeer
from prefix_middleware.testing import FakeWorker
from tests.edge.asgi import chunk, served
from tests.edge.logs import Keeper
from tests.edge.polled import Rig, Vllm
from tests.services import free_port

pytestmark = pytest.mark.anyio


class Fake(Rig):
    """A rig whose worker is the fake one; `ask` sends it what the router counts as PROMPT."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.url = f"http://127.0.0.1:{port}"
        self.peer = RouterPeer(self.router, self.telemetry, self.clock, asyncio.get_running_loop())

    async def ask(self, text: str) -> None:
        """Answer one request, in the worker and in the router."""
        reservation = self.route()
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            body = {"prompt": text, "max_tokens": 1}
            (await client.post(f"{self.url}/v1/completions", json=body)).raise_for_status()
        self.router.start(reservation, self.clock())
        self.router.finish(reservation)

    async def look(self) -> bool | None:
        """Poll, and hear our own notices as without a mirror."""
        ready = await self.poll()
        self.peer.drain()
        return ready


@asynccontextmanager
async def fake(worker: FakeWorker) -> AsyncIterator[Fake]:
    port = free_port()
    async with served(worker, port):
        yield Fake(port)


async def test_what_fits_is_learned_from_a_poll() -> None:
    """The fleet and the index know the KV cache from then on."""
    async with fake(FakeWorker(kv_blocks=100)) as r:
        await r.look()
        assert (r.state.kv_tokens, r.state.caching, r.state.ends_only) == (1600, True, False)


async def test_a_sleeping_worker_is_not_ready_and_its_cache_is_gone() -> None:
    """It answers 200 on /health, and requests hang until it wakes up."""
    worker = FakeWorker()
    async with fake(worker) as r:
        states = [await r.look()]
        r.answer()
        matches = [r.matched()]
        for level in (0, None, 1, None):
            worker.control({"sleep": level})
            states.append(await r.look())
            matches.append(r.matched())
    assert (states, matches) == ([True, False, True, False, True], [2, 2, 2, 0, 0])


async def test_caching_that_is_off_is_said_once() -> None:
    """A warning for each worker of which it is true, however often it is polled."""
    keeper = Keeper()
    logging.getLogger("prefix_middleware").addHandler(keeper)
    async with fake(FakeWorker(caching=False)) as r:
        for _ in range(3):
            await r.look()
    said = [line for line in keeper.lines if "caching off" in line]
    assert (said, r.state.caching) == (
        ["[PREFIX] warning: worker w1 has prefix caching off: every prompt is computed in full there"],
        False,
    )


async def test_a_worker_restarted_within_a_poll_is_told_by_its_counters() -> None:
    """No refused connection was seen and no start time is told: the counters began anew."""
    port, worker = free_port(), FakeWorker(tells_start=False)
    r = Fake(port)
    async with served(worker, port):
        await r.look()
        await r.ask("x" * 1200)
        await r.look()
    before = time.time()
    async with served(FakeWorker(tells_start=False), port):
        matched = r.matched()
        await r.poll()
        [notice] = [update for update in r.peer.drain() if isinstance(update, Notice)]
    assert (matched, r.matched(), notice.old) == (2, 0, 0.0)
    assert before <= r.state.epoch <= time.time()


async def test_a_reset_cache_is_noticed_without_a_restart() -> None:
    """The fake's cache is emptied before each request: match after match brings no hit, and the records die, said once."""
    keeper = Keeper()
    logging.getLogger("prefix_middleware").addHandler(keeper)
    worker = FakeWorker(tokens_per_second=1e6)
    async with fake(worker) as r:
        await r.look()
        r.answer()
        for _ in range(12):
            worker.control({"reset_cache": True})
            await r.ask("x" * 2000)
            await r.look()
    lost = [line for line in keeper.lines if "lost its cache" in line]
    assert lost == ["[PREFIX] worker w1 has lost its cache without a restart"]


async def test_delivered_tokens_are_counted_apart_from_predicted_ones() -> None:
    """What the engine reports as found, and what it was asked for."""
    async with fake(FakeWorker(tokens_per_second=1e6)) as r:
        await r.look()
        for _ in range(3):
            await r.ask("x" * 1200)
        await r.look()
        assert (r.telemetry.counts["tokens.delivered"], r.telemetry.counts["tokens.queried"]) == (576, 900)


class Other(Vllm):
    """A worker whose /metrics is an answer of another kind."""

    def __init__(self, status: int, *, endless: bool = False) -> None:
        super().__init__()
        self.metrics_status, self.endless = status, endless
        self.left = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/metrics":
            await super().__call__(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.metrics_status, "headers": []})
        await send(chunk(self.metrics, more=self.endless))
        if self.endless:
            watch = asyncio.create_task(self._watch(receive))
            while not self.left.is_set():
                await send(chunk(b"\n" + b"x" * 65_536, more=True))
            await watch

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


async def test_an_endless_answer_from_metrics_is_cut() -> None:
    """We read the first MAX_BYTES and leave, long before the time is up; what stood there counts."""
    worker, port = Other(200, endless=True), free_port()
    async with served(worker, port):
        r = Rig(port)
        assert (await r.poll(), r.state.epoch, r.telemetry.counts["health.facts_missing"]) == (True, 1.5e9, 0)
        await asyncio.wait_for(worker.left.wait(), 20)


@pytest.mark.parametrize("status", [404, 500])
async def test_an_error_from_metrics_says_nothing(status: int) -> None:
    """The worker serves all the same, and what it held counts."""
    worker, port = Other(status), free_port()
    async with served(worker, port):
        r = Rig(port)
        r.answer()
        assert (await r.poll(), r.matched(), r.state.epoch) == (True, 2, 0.0)


async def test_a_rank_is_judged_by_its_own_engine() -> None:
    """Behind one address stand several caches; the other ranks' say nothing of this one."""
    worker, port = Vllm(), free_port()
    worker.metrics = b"".join(
        b'vllm:cache_config_info{engine="%d",kv_cache_size_tokens="%d000"} 1\n' % (rank, rank + 1)
        for rank in range(3)
    )
    async with served(worker, port):
        capacities = []
        for rank in (None, 0, 2, 7):
            r = Rig(port)
            r.health = WorkerHealth(Worker("w1", r.worker.url, rank), r.router, r.telemetry, r.clock)
            await r.poll()
            capacities.append(r.state.kv_tokens)
    assert capacities == [6000, 1000, 3000, None]
