"""Asks each worker how it is, about once every `health_seconds`: /health, then /metrics, and now and then its models.

Of several gateways one asks, and the others hear of it by the mirror (core/probing.py); each asks at once when its connection
to the worker ends (lifeline.py). A refused connection counts at once, a time-out when it comes twice: a busy server answers
late. Loads are never touched.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import anyio
import httpx
import msgspec

from prefix_middleware.clock import Clock
from prefix_middleware.core.facts import Facts
from prefix_middleware.core.router import Router
from prefix_middleware.core.workers import Worker
from prefix_middleware.facts import MAX_BYTES, read_facts
from prefix_middleware.lifeline import Lifeline
from prefix_middleware.telemetry import Telemetry

TIMEOUT_SECONDS: Final = 2.0
MODELS_SECONDS: Final = 30.0
_TIMEOUTS: Final = 2  # in a row


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class WorkerHealth:
    """Polls one worker for one router."""

    def __init__(
        self,
        worker: Worker,
        router: Router,
        telemetry: Telemetry,
        clock: Clock,
        *,
        origin: str = "",
        quiet_seconds: float = 0.0,
    ) -> None:
        self._worker, self.url = worker, worker.url
        self._origin = origin  # this gateway as the mirror names it
        self._quiet_seconds = quiet_seconds
        self._router = router
        self.telemetry = telemetry
        self._clock = clock
        self._timeouts = 0
        self._models_due = 0.0
        self._state = router.fleet.states[worker.id]
        self._generation = 0  # in which its models were asked for
        self._refused_at: float | None = None

    def due(self) -> bool:
        """Tell whether it is for us to ask now: one gateway asks for all, and each asks for itself now and then."""
        now = self._clock()
        asks = self._router.asks(self._worker.id, self._origin, self._quiet_seconds, now)
        return asks or self._models_are_due(now)

    def _models_are_due(self, now: float) -> bool:
        return now >= self._models_due or self._generation != self._state.generation

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
            self._refused_at = self._clock()
        if not reason and await self._asleep(client):
            reason = "it is asleep"  # /health of a sleeping vLLM answers 200, and requests hang
        self._set_ready(not reason, reason)

    def _set_ready(self, ready: bool, reason: str) -> None:
        if self._router.set_ready(self._worker.id, ready, self._clock()):
            text = "is ready" if ready else f"is not ready: {reason}"
            fields = {"worker": self._worker.id, "ready": ready}
            self.telemetry.state("worker_ready", f"worker {self._worker.id} {text}", bad=not ready, **fields)

    async def _asleep(self, client: httpx.AsyncClient) -> bool:
        """Take over what the worker says of itself; tell whether it sleeps."""
        try:
            with anyio.fail_after(TIMEOUT_SECONDS):
                facts = read_facts(await self._metrics(client))
            if self._worker.rank is not None:
                facts = facts.of_rank(self._worker.rank)
            self._observe(facts)
            if self._models_are_due(self._clock()):
                with anyio.fail_after(TIMEOUT_SECONDS):
                    await self._models(client)
        except (httpx.HTTPError, TimeoutError):
            self.telemetry.count("health.facts_missing")
            return False
        return facts.asleep

    async def _metrics(self, client: httpx.AsyncClient) -> bytes:
        """Return the text of /metrics, the first MAX_BYTES of it; nothing where it is not served."""
        url, text = self._worker.url.rstrip("/") + "/metrics", bytearray()
        async with client.stream("GET", url, headers={"accept-encoding": "identity"}) as answer:
            async for chunk in answer.aiter_raw():  # never unpacked: a small answer may hold a huge one
                text += chunk
                if len(text) > MAX_BYTES:
                    break
        return bytes(text) if answer.status_code == httpx.codes.OK else b""

    def _observe(self, facts: Facts) -> None:
        """Hand the facts to the router and say what is new."""
        worker, telemetry = self._worker.id, self.telemetry
        observed = self._router.observe(worker, facts, self._refused_at, self._clock(), time.time())
        self._refused_at = None
        telemetry.count("tokens.delivered", observed.hit_tokens)
        telemetry.count("tokens.queried", observed.queried_tokens)
        if observed.restarted:
            message = f"worker {worker} has restarted: its cache is empty"
            telemetry.state("worker_restarted", message, bad=True, worker=worker)
        if observed.lost:
            message = f"worker {worker} has lost its cache without a restart"
            telemetry.state("cache_lost", message, bad=True, worker=worker)
        if facts.caching is False:
            text = f"worker {worker} has prefix caching off: every prompt is computed in full there"
            telemetry.warn(f"caching_off.{worker}", f"[PREFIX] warning: {text}", worker=worker)

    async def _models(self, client: httpx.AsyncClient) -> None:
        self._models_due, self._generation = self._clock() + MODELS_SECONDS, self._state.generation
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
    line, ended = Lifeline(health.url), False
    try:
        while True:
            with health.telemetry.guarded():
                if ended or health.due():
                    await health.poll(client)
            pause = seconds * (0.8 + 0.4 * random())  # jitter: gateways must not poll in step
            ended = await line.ended(pause)
    finally:
        await line.close()
