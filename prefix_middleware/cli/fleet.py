"""A look at a live fleet from outside: workers asked once, the mirror read for a moment, nothing decided and nothing told.

Health comes first: a worker that joins after records were replayed would get the mean fill of the others.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio
import httpx
from msgspec import Struct

from prefix_middleware.cli.output import UNREACHED, fail, remark
from prefix_middleware.core.blocks import Hasher
from prefix_middleware.core.choose import load_tokens
from prefix_middleware.core.router import Router
from prefix_middleware.core.snapshot import Snapshot
from prefix_middleware.core.updates import Gauge, Tally, Update
from prefix_middleware.core.workers import WorkerState
from prefix_middleware.health import TIMEOUT_SECONDS, WorkerHealth
from prefix_middleware.mirror.redis import RedisMirror
from prefix_middleware.peer import RouterPeer
from prefix_middleware.runtime import Runtime
from prefix_middleware.settings import Settings
from prefix_middleware.telemetry import Telemetry

LOADS_SECONDS: Final = 1.1  # every gateway says its loads once a second
_QUIET_SECONDS: Final = 0.3  # without an entry: what was there has been read
_CLOCKS_SECONDS: Final = 0.05  # what Redis' clock and ours may disagree by
_LOOK_SECONDS: Final = 0.02


class Notes(Telemetry):
    """Keeps why a worker is not ready, and logs nothing."""

    def __init__(self) -> None:
        super().__init__("host")
        self.reasons: dict[str, str] = {}

    def state(self, event: str, message: str, *, bad: bool, **fields: Any) -> None:  # noqa: ARG002
        """Keep the reason."""
        if event == "worker_ready":
            self.reasons[str(fields["worker"])] = message.partition(": ")[2]

    def warn(self, event: str, message: str, **fields: Any) -> None:
        """Keep quiet: the command says it in its own words."""


@dataclass(slots=True)
class Origin:
    """What one gateway has said; times are of the looker's clock."""

    last_decision: float | None = None
    gauges: tuple[Gauge, ...] = ()
    tally: Tally | None = None  # it has said none, or it only looks


class Listener(RouterPeer):
    """A peer that only listens: its outbox and its loads are always empty."""

    def __init__(self, router: Router, notes: Notes) -> None:
        super().__init__(router, notes, time.monotonic, asyncio.get_running_loop())
        self.origins: dict[str, Origin] = {}
        self.reason = "no answer"
        self._since: float | None = None  # connected
        self._heard = 0.0
        self._live = False  # an entry written after we came: all before it has been read

    @property
    def reached(self) -> bool:
        """Whether the mirror is connected."""
        return self._since is not None

    def complete(self) -> bool:
        """Tell whether all records that there were have been read, and every gateway has had time to say its loads."""
        now = time.monotonic()
        if self._since is None or now - self._since < LOADS_SECONDS:
            return False
        return self._live or now - self._heard >= _QUIET_SECONDS

    def drain(self) -> list[Update]:
        """Publish nothing."""
        return []

    def gauges(self) -> list[Gauge]:
        """Carry nothing."""
        return []

    def tally(self) -> None:
        """Be no gateway."""
        return

    def merge(self, origin: str, updates: Sequence[Update], age_seconds: float) -> None:
        """Apply what a gateway published, and note when it did."""
        super().merge(origin, updates, age_seconds)
        self._heard = time.monotonic()
        at = self._heard - age_seconds
        self._live = self._live or (self._since is not None and at > self._since + _CLOCKS_SECONDS)
        if origin != self.origin:
            said = self.origins.setdefault(origin, Origin())
            said.last_decision = max(at, said.last_decision or at)

    def merge_gauges(self, origin: str, gauges: Sequence[Gauge], tally: Tally | None) -> None:
        """Apply a gateway's loads, and note what it has done."""
        super().merge_gauges(origin, gauges, tally)
        said = self.origins.setdefault(origin, Origin())
        said.gauges, said.tally = tuple(gauges), tally

    def snapshot(self) -> Iterator[None]:
        """Write none: what is known here is a part."""
        return iter(())

    def restore(self, snapshot: Snapshot, age_seconds: float) -> Iterator[None]:
        """Take over what a gateway knew, and note that something has come."""
        for step in super().restore(snapshot, age_seconds):
            self._heard = time.monotonic()
            yield step

    def mirror_state(self, connected: bool, reason: str) -> None:
        """Note whether the mirror is reached."""
        self.reason = reason
        self._heard = time.monotonic()
        self._since = self._heard if connected else None

    def mirror_count(self, name: str, n: int) -> None:
        """Count, and note that something has come."""
        super().mirror_count(name, n)
        self._heard = time.monotonic()


class MirrorFacts(Struct, frozen=True, kw_only=True):
    """How the look at the mirror went."""

    reached: bool
    complete: bool  # all records and all loads were read
    reason: str | None  # why it was not reached
    foreign: int  # entries of gateways with another secret, window_bytes or version


class WorkerFacts(Struct, frozen=True, kw_only=True):
    """One worker as health and mirror show it; loads are those of all gateways."""

    id: str
    url: str
    state: str  # ready, not ready, suspect, no answer
    reason: str | None
    epoch: float | None  # seconds since 1970; None: not known
    in_flight: int
    backlog_tokens: int
    prompt_tokens: int
    load_tokens: int
    fill: float  # 0 to 1
    blocks: int
    share: float  # of all blocks held, 0 to 1


@dataclass(slots=True)
class View:
    """The fleet at one moment; `mirror` is None where no Redis is set."""

    settings: Settings
    router: Router
    now: float
    reasons: dict[str, str]
    mirror: MirrorFacts | None = None
    origins: dict[str, Origin] = field(default_factory=dict)

    def workers(self) -> list[WorkerFacts]:
        """Return every worker of the settings, in their order."""
        self.router.fleet.expire(self.now)
        held = self.router.index.held(self.now)
        return [self._facts(s, held, sum(held.values())) for s in self.router.fleet.states.values()]

    def _facts(self, state: WorkerState, held: dict[str, int], total: int) -> WorkerFacts:
        load, blocks = self.router.fleet.load(state, self.now), held.get(state.id, 0)
        name, reason = self._state(state)
        return WorkerFacts(
            id=state.id,
            url=state.url,
            state=name,
            reason=reason,
            epoch=state.epoch or None,
            in_flight=load.in_flight,
            backlog_tokens=load.backlog_tokens,
            prompt_tokens=load.prompt_tokens,
            load_tokens=round(load_tokens(load, self.settings.figures)),
            fill=round(load.fill, 3),
            blocks=blocks,
            share=round(blocks / total, 3) if total else 0.0,
        )

    def _state(self, state: WorkerState) -> tuple[str, str | None]:
        if state.ready is None:
            return "no answer", f"/health says nothing within {TIMEOUT_SECONDS:g} s"
        if not state.ready:
            return "not ready", self.reasons.get(state.id)
        if state.excluded_until > self.now:
            return "suspect", f"for {state.excluded_until - self.now:.0f} s more"
        return "ready", None


async def look(settings: Settings, seconds: float) -> View:
    """Ask every worker once, then read the mirror until all has been read, for at most `seconds`."""
    router = Runtime(replace(settings, log="host")).router  # the same that a gateway has
    notes = Notes()
    await _ask_workers(settings, router, notes)
    view = View(settings, router, time.monotonic(), notes.reasons)
    if settings.redis_url is not None:
        listener = Listener(router, notes)
        complete = await _listen(settings, settings.redis_url, listener, seconds)
        reached = listener.reached
        reason = None if reached else listener.reason
        foreign = notes.counts["mirror.foreign"]
        view.mirror = MirrorFacts(reached=reached, complete=complete, reason=reason, foreign=foreign)
        view.origins, view.now = listener.origins, time.monotonic()
    return view


async def _ask_workers(settings: Settings, router: Router, notes: Notes) -> None:
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(timeout=TIMEOUT_SECONDS, limits=limits, trust_env=False) as client,
        anyio.create_task_group() as tasks,
    ):
        for worker in settings.workers:
            tasks.start_soon(WorkerHealth(worker, router, notes, time.monotonic).poll, client)


async def _listen(settings: Settings, url: str, listener: Listener, seconds: float) -> bool:
    fingerprint = Hasher(settings.secret, settings.window_bytes).fingerprint
    mirror = RedisMirror(url, settings.fleet, fingerprint, shadow=settings.mode == "shadow")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mirror.run, listener)
        with anyio.move_on_after(seconds):
            while not listener.complete():  # noqa: ASYNC110 - it also changes because time passes
                await anyio.sleep(_LOOK_SECONDS)
        complete = listener.complete()
        tasks.cancel_scope.cancel()
    return complete


def end(mirror: MirrorFacts | None, seconds: float) -> None:
    """Say on stderr what a reader must know about the look; ends the command with status 3 where it reached nothing."""
    if mirror is None:
        return
    if not mirror.reached:
        fail(f"mirror: not reached within {seconds:g} s: {mirror.reason}", UNREACHED)
    if not mirror.complete:
        text = "records or loads may be missing; --seconds gives more"
        remark(f"mirror: cut off after {seconds:g} s: {text}")
    if mirror.foreign:
        text = "entries of gateways with another secret, window_bytes or version are ignored"
        remark(f"mirror: {mirror.foreign} {text}")
