"""Two gateways and one worker, over a mirror: one asks for both, and the other takes over."""

import asyncio
import time
from functools import partial

import httpx
import pytest

from prefix_middleware.core.probing import prober
from prefix_middleware.health import WorkerHealth, watch_workers
from prefix_middleware.mirror.local import LocalMirror
from prefix_middleware.peer import RouterPeer
from prefix_middleware.telemetry import Telemetry
from tests.edge.asgi import eventually, served
from tests.edge.polled import Rig, Vllm
from tests.services import free_port

pytestmark = pytest.mark.anyio


class Gateway(Rig):
    """A rig on a mirror whose polls are counted."""

    def __init__(self, port: int, mirror: LocalMirror) -> None:
        super().__init__(port)
        self.telemetry, self.polls = Telemetry("host"), 0
        self.peer = RouterPeer(self.router, self.telemetry, time.monotonic, asyncio.get_running_loop())
        context = self.router, self.telemetry, time.monotonic
        self.health = Counted(self, *context, origin=self.peer.origin, quiet_seconds=5.0)
        watch = partial(watch_workers, [self.health], 0.05, lambda: 0.5)
        self.tasks = [asyncio.create_task(mirror.run(self.peer)), asyncio.create_task(watch())]

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


class Counted(WorkerHealth):
    """Counts the polls of its gateway."""

    def __init__(self, gateway: Gateway, *context: object, origin: str, quiet_seconds: float) -> None:
        super().__init__(gateway.worker, *context, origin=origin, quiet_seconds=quiet_seconds)  # type: ignore[arg-type]
        self._gateway = gateway

    async def poll(self, client: httpx.AsyncClient) -> None:
        self._gateway.polls += 1
        await super().poll(client)


async def test_one_gateway_asks_and_the_other_takes_over() -> None:
    """Twenty polls of one, next to none of the other; and the other's, once the first is gone."""
    vllm, port, mirror = Vllm(), free_port(), LocalMirror()
    async with served(vllm, port):
        gateways = {
            gateway.peer.origin: gateway for gateway in (Gateway(port, mirror), Gateway(port, mirror))
        }
        asking = gateways.pop(prober("w1", gateways.keys()))
        [other] = gateways.values()
        try:
            await eventually(
                lambda: bool(other.state.ready) and not other.health.due(), "the other to be quiet"
            )
            polls = asking.polls, other.polls
            await eventually(lambda: asking.polls >= polls[0] + 20, "twenty polls")
            quiet = other.polls - polls[1] <= 2
            vllm.metrics = b"process_start_time_seconds 1.7e9\n"
            await eventually(lambda: other.state.epoch == 1.7e9, "the restart to be heard of")
            await asking.stop()
            polls = asking.polls, other.polls
            await eventually(lambda: other.polls >= polls[1] + 5, "the other to ask")
        finally:
            await asyncio.gather(asking.stop(), other.stop())
    assert quiet
