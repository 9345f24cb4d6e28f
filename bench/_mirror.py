"""How fast a decision reaches another gateway, and how fast a new gateway gets warm; both against Redis alone.

A decision counts from the answer's start (`Router.start`, which publishes) to the end of `merge` in another process; an echo
of as many bytes from its XADD to the end of the XREAD there. Every 5 ms one of each goes out, 2.5 ms apart, between
the same two processes. A warm start is a new router and mirror until its index holds everything:
a snapshot, and the decisions after it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from secrets import token_bytes
from typing import Any, Final

from msgspec import structs
from redis.asyncio import Redis

from bench._bodies import KB, conversations
from bench._decision import WORKERS, new_hasher, new_router, prompt_of
from bench._measure import Scale, Skipped, median_ratio, percentile, quiet_memory
from bench._servers import redis_server
from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.router import Router
from prefix_middleware.core.updates import HASH_BYTES, Confirmed, Update
from prefix_middleware.mirror.redis import SNAPSHOT_SECONDS, RedisMirror
from prefix_middleware.mirror.wire import Wire
from prefix_middleware.peer import RouterPeer
from prefix_middleware.telemetry import Telemetry

FLEET: Final = "bench"
_PER_SECOND: Final = 200
_WARM_UP: Final = 20  # of each, sent first and not counted
_ECHO: Final = "echo"
_BLOCKS: Final = 64
_PAIRS: Final = _BLOCKS + 1  # of one prompt in the index: its blocks and its end
_WAIT_SECONDS: Final = 30.0
_SOON_SECONDS: Final = 0.3  # age of a snapshot, so that the benchmark need not wait for a minute
_DECISIONS: Final = f"{{prefix:{FLEET}}}:decisions"
_SNAPSHOT: Final = f"{{prefix:{FLEET}}}:snapshot"
_PAGE: Final = 1_000  # entries of one bare read


class TimedPeer(RouterPeer):
    """A real peer that notes when each confirmed record was applied."""

    def __init__(self, router: Router) -> None:
        super().__init__(router, Telemetry("host"), time.monotonic, asyncio.get_running_loop())
        self.router = router
        self.applied: dict[int, float] = {}
        self.connected = asyncio.Event()

    def merge(self, origin: str, updates: Sequence[Update], age_seconds: float) -> None:
        super().merge(origin, updates, age_seconds)
        now = time.monotonic()
        self.applied |= {update.record: now for update in updates if isinstance(update, Confirmed)}

    def mirror_state(self, connected: bool, reason: str) -> None:
        super().mirror_state(connected, reason)
        if connected:
            self.connected.set()

    def decide(self, prompt: HashedPrompt) -> Reservation:
        """Route one prompt, and let its answer start and end."""
        now = time.monotonic()
        reservation = self.router.route(prompt, now, 0.5)
        assert isinstance(reservation, Reservation), reservation
        self.router.start(reservation, now)
        self.router.finish(reservation)
        return reservation


@asynccontextmanager
async def _mirrored(url: str, snapshot_seconds: float = SNAPSHOT_SECONDS) -> AsyncIterator[TimedPeer]:
    """Run a gateway's router and its mirror, without a gateway."""
    peer = TimedPeer(new_router(WORKERS))
    mirror = RedisMirror(url, FLEET, new_hasher().fingerprint, snapshot_seconds=snapshot_seconds)
    task = asyncio.create_task(mirror.run(peer))
    try:
        yield peer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _client(url: str) -> Any:  # Any: what redis-py says of its replies fits no single version of it
    return Redis.from_url(url)


async def _within(condition: "asyncio.Event | Connection", what: str) -> None:
    """Wait for an event or a message of the other process; raises Skipped when it does not come."""
    if isinstance(condition, asyncio.Event):
        try:
            await asyncio.wait_for(condition.wait(), _WAIT_SECONDS)
        except TimeoutError:
            raise Skipped(what) from None
    elif not await asyncio.to_thread(condition.poll, _WAIT_SECONDS):
        raise Skipped(what)


def _receive(url: str, count: int, out: Connection) -> None:
    """Be the other process: say when it is ready, and when what arrived."""
    asyncio.run(_receive_all(url, count, out))


async def _receive_all(url: str, count: int, out: Connection) -> None:
    async with _mirrored(url) as peer, _client(url) as client:
        await _within(peer.connected, "the mirror did not connect")
        out.send("ready")
        echoes: dict[int, float] = {}
        last, deadline = b"0-0", time.monotonic() + _WAIT_SECONDS + count / _PER_SECOND
        while (len(echoes) < count or len(peer.applied) < count) and time.monotonic() < deadline:
            for _, entries in await client.xread({_ECHO: last}, count=16, block=200):
                now = time.monotonic()
                last = entries[-1][0]
                for _, fields in entries:
                    echoes[int.from_bytes(fields[b"d"][:8], "little")] = now
        out.send((peer.applied, echoes))


async def _send_all(url: str, count: int, inbox: Connection) -> tuple[list[float], list[float]]:
    """Return how long each decision and each echo took, in seconds and in the order sent."""
    prompts = [new_hasher().hash(prompt_of(chat.body)) for chat in conversations(33 * KB, 16)]
    decided: dict[int, float] = {}
    echoed: dict[int, float] = {}
    async with _mirrored(url) as peer, _client(url) as client:
        await _within(peer.connected, "the mirror did not connect")
        await _within(inbox, "the other process did not start")
        inbox.recv()
        began = time.monotonic()
        for number in range(count):
            await asyncio.sleep(began + number / _PER_SECOND - time.monotonic())
            at = time.monotonic()
            reservation = peer.decide(prompts[number % len(prompts)])
            decided[reservation.number] = at
            entry = Wire(new_hasher().fingerprint).pack_decisions(
                "bench", [reservation.record(Confirmed, 1.0)]
            )[0]
            await asyncio.sleep(began + (number + 0.5) / _PER_SECOND - time.monotonic())
            echoed[number] = time.monotonic()
            await client.xadd(_ECHO, {"d": number.to_bytes(8, "little") + entry[8:]}, maxlen=_PAGE)
        await _within(inbox, "not everything arrived")
        applied, echoes = inbox.recv()
    if len(applied) < count or len(echoes) < count:
        raise Skipped(f"{len(applied)} decisions and {len(echoes)} echoes of {count} arrived")
    return [applied[n] - at for n, at in decided.items()], [echoes[n] - at for n, at in echoed.items()]


def mirror_over_echo(scale: Scale) -> float:
    """Return the p99 from publish to applied over that of an echo, as the median of the rounds' ratios."""
    size = max(1, int(scale.seconds * _PER_SECOND))
    count = _WARM_UP + size * scale.mirror_rounds
    with redis_server() as server:
        ours, theirs = get_context("spawn").Pipe()
        child = get_context("spawn").Process(target=_receive, args=(server.url, count, theirs))
        child.start()
        try:
            decisions, echoes = asyncio.run(_send_all(server.url, count, ours))
        finally:
            child.kill()
            child.join()
            ours.close()
            theirs.close()
    starts = range(_WARM_UP, count, size)
    rounds = [(decisions[i : i + size], echoes[i : i + size]) for i in starts]
    return median_ratio((percentile(a, 99), percentile(b, 99)) for a, b in rounds)


async def _warm_start(url: str, pairs: int) -> float:
    """Return the CPU seconds of this thread until a new gateway's index holds so many pairs."""
    began = time.thread_time()
    deadline = time.monotonic() + _WAIT_SECONDS
    async with _mirrored(url) as peer:
        while len(peer.router.index) < pairs:
            if time.monotonic() > deadline:
                raise Skipped(f"{len(peer.router.index)} of {pairs} pairs arrived")
            await asyncio.sleep(0.002)
        return time.thread_time() - began


async def _bare_read(url: str, after: bytes) -> float:
    """Return the CPU seconds of reading the snapshot and the decisions after it, with redis-py alone."""
    began = time.thread_time()
    async with _client(url) as client:
        await client.get(_SNAPSHOT)
        while page := await client.xrange(_DECISIONS, b"(" + after, "+", count=_PAGE):
            after = page[-1][0]
        return time.thread_time() - began


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until the condition is true; raises Skipped when that takes too long."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not await condition():
        if time.monotonic() > deadline:
            raise Skipped(what)
        await asyncio.sleep(0.02)


async def _publish(url: str, prompts: int) -> None:
    """Let a gateway decide on so many different prompts, and return once another one has them all."""
    prompt = new_hasher().hash(prompt_of(conversations(33 * KB, 1)[0].body))
    tokens = tuple(128 * block for block in range(_BLOCKS + 1))
    async with _mirrored(url) as author, _mirrored(url) as reader:
        await _within(author.connected, "the mirror did not connect")
        for number in range(prompts):
            hashes = tuple(token_bytes(HASH_BYTES) for _ in range(_BLOCKS))
            author.decide(
                structs.replace(prompt, hashes=hashes, end=token_bytes(HASH_BYTES), matched_tokens=tokens)
            )
            await asyncio.sleep(0.001 if number % 4 == 0 else 0)

        async def complete() -> bool:
            return len(reader.router.index) >= prompts * _PAIRS

        await _until(complete, "the second gateway did not get everything")


async def _snapshot(url: str, pairs: int) -> bytes:
    """Return the last decision's id once a snapshot of so many pairs is in Redis."""
    async with _client(url) as client, _mirrored(url, snapshot_seconds=_SOON_SECONDS):
        last = bytes((await client.xrevrange(_DECISIONS, count=1))[0][0])

        async def written() -> bool:
            return bool(await client.strlen(_SNAPSHOT) >= pairs * HASH_BYTES)

        await _until(written, "no whole snapshot was written")
        return last


def warm_start_over_bare(scale: Scale) -> float:
    """Return the CPU time of a warm start over that of reading the same bytes with redis-py, alternating."""
    prompts = scale.pairs // _PAIRS

    async def rounds(url: str) -> list[tuple[float, float]]:
        await _publish(url, prompts)
        after = await _snapshot(url, prompts * _PAIRS)
        with quiet_memory():
            return [
                (await _warm_start(url, prompts * _PAIRS), await _bare_read(url, after))
                for _ in range(scale.starts)
            ]

    with redis_server() as server:
        return median_ratio(asyncio.run(rounds(server.url)))
