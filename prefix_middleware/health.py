"""Asks each worker how it is, about once every `health_seconds`: /health, then start time and models where it is up.

A refused connection counts at once, a time-out when it comes twice: a busy server answers late. Loads are never touched.
"""

import asyncio
import re
import time
from collections.abc import Callable
from typing import Final

import anyio
import httpx
import msgspec

from prefix_middleware.clock import Clock
from prefix_middleware.core.router import Router
from prefix_middleware.core.workers import Worker
from prefix_middleware.telemetry import Telemetry

TIMEOUT_SECONDS: Final = 2.0
MODELS_SECONDS: Final = 30.0
_TIMEOUTS: Final = 2  # in a row
_START_TIME = re.compile(
    rb"^process_start_time_seconds(?:\{[^}\n]*\})? (\d+(?:\.\d+)?(?:[eE]\+?\d+)?)", re.MULTILINE
)


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class WorkerHealth:
    """Polls one worker for one router."""

    def __init__(self, worker: Worker, router: Router, telemetry: Telemetry, clock: Clock) -> None:
        self._worker = worker
        self._router = router
        self.telemetry = telemetry
        self._clock = clock
        self._timeouts = 0
        self._models_due = 0.0
        self._exports_start = False  # the worker tells its own start time
        self._refused = False

    async def poll(self, client: httpx.AsyncClient) -> None:
        """Ask once; whatever happens is an answer."""
        reason = ""
        try:
            with anyio.fail_after(TIMEOUT_SECONDS):  # the client's own limits begin anew with every byte
                answer = await client.get(self._worker.url.rstrip("/") + "/health")
            self._timeouts = 0
            if answer.status_code != httpx.codes.OK:
                reason = f"/health answers {answer.status_code}"
        except (httpx.TimeoutException, TimeoutError):
            self._timeouts += 1
            if self._timeouts < _TIMEOUTS:
                return
            reason = "/health does not answer"
        except httpx.HTTPError as error:
            reason = f"/health: {type(error).__name__}"
            self._refused = True
        if not reason:
            await self._facts(client)
        self._set_ready(not reason, reason)

    def _set_ready(self, ready: bool, reason: str) -> None:
        if self._router.set_ready(self._worker.id, ready, self._clock()):
            text = "is ready" if ready else f"is not ready: {reason}"
            fields = {"worker": self._worker.id, "ready": ready}
            self.telemetry.state("worker_ready", f"worker {self._worker.id} {text}", bad=not ready, **fields)

    async def _facts(self, client: httpx.AsyncClient) -> None:
        try:
            with anyio.fail_after(TIMEOUT_SECONDS):
                metrics = await client.get(self._worker.url.rstrip("/") + "/metrics")
            restarted = self._start_time(metrics.content)
            if restarted or self._clock() >= self._models_due:
                with anyio.fail_after(TIMEOUT_SECONDS):
                    await self._models(client)
        except (httpx.HTTPError, TimeoutError):
            self.telemetry.count("health.facts_missing")

    def _start_time(self, metrics: bytes) -> bool:
        found = _START_TIME.search(metrics)
        restarted = False
        if found:
            self._exports_start = True
            restarted = self._router.set_epoch(self._worker.id, float(found[1]), self._clock())
        elif self._refused and not self._exports_start:
            self._router.lost(self._worker.id, time.time())
        self._refused = False
        if restarted:
            message = f"worker {self._worker.id} has restarted: its cache is empty"
            self.telemetry.state("worker_restarted", message, bad=True, worker=self._worker.id)
        return restarted

    async def _models(self, client: httpx.AsyncClient) -> None:
        self._models_due = self._clock() + MODELS_SECONDS
        answer = await client.get(self._worker.url.rstrip("/") + "/v1/models")
        models: frozenset[str] | None = None
        window: int | None = None
        if answer.status_code == httpx.codes.OK:
            try:
                cards = msgspec.json.decode(answer.content, type=_Models).data
                models = frozenset(card.id for card in cards) or None
                window = max((card.max_model_len for card in cards if card.max_model_len), default=None)
            except msgspec.MsgspecError:
                self.telemetry.count("health.models_unreadable")
        self._router.set_models(self._worker.id, models, window)


async def watch_workers(healths: list[WorkerHealth], seconds: float, random: Callable[[], float]) -> None:
    """Poll all workers until cancelled, each at its own pace."""
    limits = httpx.Limits(max_connections=None, keepalive_expiry=seconds * 4)
    async with (
        httpx.AsyncClient(timeout=TIMEOUT_SECONDS, limits=limits, trust_env=False) as client,
        asyncio.TaskGroup() as tasks,
    ):
        for health in healths:
            tasks.create_task(_watch(health, client, seconds, random))


async def _watch(
    health: WorkerHealth, client: httpx.AsyncClient, seconds: float, random: Callable[[], float]
) -> None:
    while True:
        with health.telemetry.guarded():
            await health.poll(client)
        await anyio.sleep(seconds * (0.8 + 0.4 * random()))  # jitter: gateways must not poll in step
