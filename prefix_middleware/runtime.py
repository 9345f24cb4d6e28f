"""What outlives a request: the router, its mirror and the polling of workers; started by lifespan or by the first request.

1. Construction opens nothing and starts nothing: a preloaded application is forked after it.
2. Background tasks run in an empty context, once per event loop; none of them ever ends the host.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Final

import anyio
from msgspec.structs import replace
from starlette.types import ASGIApp, Receive, Scope, Send

from prefix_middleware.advice import Claim, Inert, advise
from prefix_middleware.body import Buffered, HeldBody
from prefix_middleware.carry.check import CarryCheck
from prefix_middleware.carry.clients import install
from prefix_middleware.carry.context import Carried, Hop, hops
from prefix_middleware.carry.egress import FilledExchange, OwnExchange, WaitingExchange
from prefix_middleware.clock import Clock
from prefix_middleware.core.blocks import HashedPrompt, Hasher
from prefix_middleware.core.canonical import (
    Api,
    CanonicalPrompt,
    Skip,
    api_of,
    canonical_prompt,
    prompt_steps,
)
from prefix_middleware.core.probing import QUIET_POLLS
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.router import Router
from prefix_middleware.exchange import Exchange, RoutedExchange
from prefix_middleware.health import WorkerHealth, watch_workers
from prefix_middleware.mirror import Mirror
from prefix_middleware.mirror.local import LocalMirror
from prefix_middleware.mirror.redis import RedisMirror
from prefix_middleware.peer import RouterPeer
from prefix_middleware.reading import LARGE_BYTES, Reading
from prefix_middleware.settings import Settings, SettingsError
from prefix_middleware.telemetry import Telemetry

STOP_SECONDS: Final = 2.0
RESTART_SECONDS: Final = 1.0


class Runtime:
    """State and background tasks of one mounted middleware."""

    def __init__(self, settings: Settings | None, clock: Clock = time.monotonic) -> None:
        self._error: SettingsError | None = None
        self._from_env = settings is None
        try:
            settings = Settings.from_env() if settings is None else settings
            if not isinstance(settings, Settings):
                raise SettingsError(
                    "settings", settings, "a Settings(...), or None to read PREFIX_* variables"
                )
        except SettingsError as error:
            self._error, settings = error, Settings()
        self.settings = settings
        self.header = settings.header.lower().encode()
        self.max_body_bytes = settings.max_body_bytes
        self.buffered = Buffered(settings.max_buffered_bytes)
        self.telemetry = Telemetry(settings.log)
        self._templates = settings.front_fields, settings.merge_system
        self._hasher = Hasher(settings.secret, settings.window_bytes)
        self.router = Router(
            settings.workers,
            policy=settings.policy,
            figures=settings.figures,
            index_blocks=settings.index_blocks,
            ttl_seconds=settings.ttl_seconds,
            max_in_flight=settings.max_in_flight,
            kv_tokens=settings.kv_tokens,
            block_tokens=self._hasher.block_tokens,
        )
        self._clock = clock
        self._sets_header = settings.mode == "on"
        self._egress = settings.decide == "egress" and settings.mode != "off" and bool(settings.workers)
        self._check: CarryCheck | None = None
        self._hop: Hop | None = None
        if settings.upstream_url and (self._sets_header or self._egress):
            self._hop = self._make_hop(settings.upstream_url)
        self._claim = Claim(settings)
        self._inert = Inert(self.telemetry)
        self._reading = Reading()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def _make_hop(self, upstream_url: str) -> Hop:
        settings, telemetry = self.settings, self.telemetry
        if self._sets_header:
            self._check = CarryCheck(upstream_url, telemetry.counts, telemetry.warn, egress=self._egress)
        return Hop.of(
            upstream_url,
            settings.header,
            settings.paths,
            decide=self._decide_outgoing if self._egress else None,
            check=self._check,
            guarded=telemetry.guarded,
        )

    def waiting_exchange(self, scope: Scope) -> WaitingExchange | None:
        """Return the empty exchange of a request whose prompt a carrier reads, None where we read it here."""
        if not self._egress or self._error is not None or scope["type"] != "http":
            return None
        ours = scope.get("method") == "POST" and scope.get("path", "").endswith(self.settings.paths)
        expected = self._check.over if ours and self._check is not None else None
        return WaitingExchange(self._tenant(scope), expected=expected)

    def _decide_outgoing(self, path: str, body: bytes | Skip, inbound: Carried | None) -> Carried | None:
        waiting = inbound if isinstance(inbound, WaitingExchange) else None
        prompt = self._outgoing_prompt(path, body, "" if waiting is None else waiting.tenant)
        if waiting is None or not waiting.claim():
            exchange = self.route(prompt, partial(OwnExchange, self._defer))
            return exchange if isinstance(exchange, OwnExchange) else None
        exchange = self.route(prompt, partial(FilledExchange, waiting))
        if isinstance(exchange, FilledExchange):
            waiting.fill(exchange)
            return exchange
        waiting.leave_empty(exchange.decision)
        return None

    def _outgoing_prompt(self, path: str, body: bytes | Skip, tenant: str) -> HashedPrompt | Skip:
        api = api_of(path)
        if isinstance(body, Skip) or api is None:
            return body if isinstance(body, Skip) else Skip("path")
        if len(body) > self.max_body_bytes:
            return Skip("too_large")
        with self.telemetry.guarded():
            return self._hashed(canonical_prompt(api, body, *self._templates), tenant)
        return Skip("error")

    def _defer(self, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has closed, and our state is nobody's
            if self._loop is not None:
                self._loop.call_soon_threadsafe(work)

    def api_for(self, scope: Scope) -> Api | None:
        """Return the API whose prompts this request carries, None when it is not for us."""
        if self._error is not None:
            self.telemetry.error("settings", f"[PREFIX] error: {self._error}; requests pass unrouted")
            return None
        if scope["type"] != "http":
            return None
        path = scope.get("path", "")
        if scope.get("method") != "POST" or not path.endswith(self.settings.paths):
            self.telemetry.skipped("path")
            self._inert.passed(scope.get("method"))
            return None
        if not self.settings.workers or self.settings.mode == "off":
            self.telemetry.skipped("off")
            return None
        return api_of(path)

    async def read_prompt(self, api: Api, scope: Scope, body: HeldBody) -> HashedPrompt | Skip:
        """Read and hash the prompt of a held body; other requests go on while a large one is read."""
        if body.skip is not None:
            return Skip(body.skip)
        with self.telemetry.guarded():
            data = body.data()
            if len(data) <= LARGE_BYTES:
                prompt = canonical_prompt(api, data, *self._templates)
            else:
                prompt = await self._reading.read(prompt_steps(api, data, *self._templates))
            return self._hashed(prompt, self._tenant(scope))
        return Skip("error")

    def _hashed(self, prompt: CanonicalPrompt | Skip, tenant: str) -> HashedPrompt | Skip:
        with self.telemetry.guarded():
            if isinstance(prompt, Skip):
                return prompt
            model = self.settings.model_aliases.get(prompt.model)
            if model is not None:
                prompt = replace(prompt, model=model)
            return self._hasher.hash(prompt, tenant, self.router.bytes_per_token(prompt.model))
        return Skip("error")

    def _tenant(self, scope: Scope) -> str:
        if self.settings.tenant_header is None:
            return ""
        header = self.settings.tenant_header.lower().encode()
        values = [value for name, value in scope.get("headers", ()) if name.lower() == header]
        return b",".join(values).decode("latin-1")  # as a server may join them

    def route(
        self, prompt: HashedPrompt | Skip, kind: Callable[..., RoutedExchange] = RoutedExchange
    ) -> Exchange:
        """Choose a worker for the prompt; a skipped one, or one that nobody can serve, gets an empty exchange."""
        if isinstance(prompt, Skip):
            self.telemetry.skipped(prompt.reason)
            return Exchange()
        with self.telemetry.guarded():
            routed = self.router.route(prompt, self._clock(), random.random())  # noqa: S311 - a tie-break
            if not isinstance(routed, Reservation):
                self.telemetry.decided(routed)
                return Exchange(routed)
            self.telemetry.decided(routed.decision)
            self.telemetry.count("tokens.best", routed.decision.best_tokens)
            self.telemetry.count("tokens.predicted", routed.decision.matched_tokens)
            worker = routed.worker if self._sets_header else None
            carried, check = self._hop is not None, self._check
            context = routed, worker, self.router, self.telemetry, self._clock
            return kind(*context, carried=carried, check=check)
        self.telemetry.skipped("error")
        return Exchange()

    async def lifespan(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the background tasks around the host's lifespan; wrong settings end the server's start."""
        if self._error is not None:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": f"prefix-middleware: {self._error}"})
            return
        self.ensure_started()
        try:
            await app(scope, receive, send)
        finally:
            await self.stop()

    def ensure_started(self) -> None:
        """Start the background tasks on the running event loop, unless they run there already."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # trio's, or none at all
            text = "the event loop is not asyncio's: workers are not polled and nothing is mirrored"
            self.telemetry.error("event_loop", f"[PREFIX] error: {text}")
            return
        if self._loop is loop or self._error is not None:
            return
        first, self._loop, self._reading = self._loop is None, loop, Reading()
        with self.telemetry.guarded():
            advise(self.settings, self.telemetry, from_env=self._from_env)
            self._claim.take(self.telemetry)
            if self._hop is not None:
                install()
                if first:  # a loop that ended without a stop has left it there
                    hops.append(self._hop)
            peer = RouterPeer(self.router, self.telemetry, self._clock, loop)
            self._task = loop.create_task(self._run(peer), name="prefix_middleware", context=Context())

    async def stop(self) -> None:
        """End the background tasks and make the carriers inert."""
        self._claim.give_up()
        if self._loop is not None and self._hop in hops:
            hops.remove(self._hop)
        task, self._task, self._loop = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=STOP_SECONDS)

    async def _run(self, peer: RouterPeer) -> None:
        settings = self.settings
        mirror: Mirror = LocalMirror()
        if settings.redis_url is not None:
            shadow = settings.mode == "shadow"
            mirror = RedisMirror(settings.redis_url, settings.fleet, self._hasher.fingerprint, shadow=shadow)
        context = self.router, self.telemetry, self._clock
        origin, quiet = peer.origin, QUIET_POLLS * settings.health_seconds
        healths = [WorkerHealth(w, *context, origin=origin, quiet_seconds=quiet) for w in settings.workers]
        watch = partial(watch_workers, healths, settings.health_seconds, random.random)
        async with asyncio.TaskGroup() as tasks:  # anyio's warns when it is cancelled before its tasks begin
            tasks.create_task(self._forever(partial(mirror.run, peer)))
            tasks.create_task(self._forever(watch))

    async def _forever(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            with self.telemetry.guarded():
                await work()
            await anyio.sleep(RESTART_SECONDS)
