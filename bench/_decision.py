"""Whole decisions against their floor and against each other.

A decision is `canonical_prompt`, `Hasher.hash` and `Router.route`: all that a request waits for. Its state is warm: many
other prompts in the index, requests in flight, and every second prompt continues a conversation that a worker holds.
"""

from collections.abc import Sequence
from itertools import cycle
from typing import Final

from blake3 import blake3
from msgspec.json import decode

from bench._bodies import KB, Conversation, conversations
from bench._measure import Scale, Side, paired_ratio
from prefix_middleware import Settings, Worker
from prefix_middleware.core.blocks import HashedPrompt, Hasher, block_edges
from prefix_middleware.core.canonical import CanonicalPrompt, canonical_prompt
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.router import Router
from prefix_middleware.core.updates import HASH_BYTES

WORKERS: Final = 8
_MODELS: Final = frozenset(("bench",))
_MAX_TOKENS: Final = 1_000_000  # context window: every prompt fits
_COMMON_BLOCKS: Final = 2  # the system text, which every worker has seen
_IN_FLIGHT: Final = 2  # per worker, all the time
NOW: Final = 1_000.0
"""Seconds of the clock that the router is given; it stands still, so that every batch meets the same state."""
_RANDOM: Final = (0.07, 0.93, 0.41, 0.66, 0.22, 0.85, 0.53)
_SETTINGS: Final = Settings()
_KEY: Final = bytes(range(32))


def new_router(workers: int) -> Router:
    """Return a router with default settings and so many ready workers."""
    router = Router(
        [Worker(f"w{number}", "http://127.0.0.1:9") for number in range(workers)],
        policy=_SETTINGS.policy,
        figures=_SETTINGS.figures,
        index_blocks=_SETTINGS.index_blocks,
        ttl_seconds=_SETTINGS.ttl_seconds,
    )
    for worker in router.fleet.states:
        router.set_ready(worker, True, NOW)
        router.set_epoch(worker, 1.0, NOW)
        router.set_models(worker, _MODELS, _MAX_TOKENS)
    return router


def new_hasher() -> Hasher:
    """Return a hasher with default settings."""
    return Hasher(_SETTINGS.secret, _SETTINGS.window_bytes)


def prompt_of(body: bytes) -> CanonicalPrompt:
    """Return the canonical prompt of a body of ours."""
    prompt = canonical_prompt("chat", body)
    assert isinstance(prompt, CanonicalPrompt), prompt
    return prompt


def fill_index(router: Router, prompts: int) -> None:
    """Record so many prompts of 64 blocks, spread over the workers."""
    workers = list(router.fleet.states)
    for number in range(prompts):
        stream = blake3(number.to_bytes(8, "little")).digest(64 * HASH_BYTES)
        hashes = [stream[i : i + HASH_BYTES] for i in range(0, len(stream), HASH_BYTES)]
        router.index.record(hashes, workers[number % len(workers)], 1.0, NOW)


class Decider:
    """A warm router, and a batch of bodies to decide on again and again from the same state."""

    def __init__(self, size: int, count: int, other_prompts: int, workers: int = WORKERS) -> None:
        self.chats = conversations(size, count)
        self.bodies = [chat.body for chat in self.chats]
        self.hasher = new_hasher()
        self.router = new_router(workers)
        self.reservations: list[Reservation] = []
        self._random = cycle(_RANDOM)
        fill_index(self.router, other_prompts)
        self._keep_busy(workers)
        self._hold(self.chats[::2])

    def _keep_busy(self, workers: int) -> None:
        prompts = [self.hashed(chat.body) for chat in conversations(KB, 16)]
        for number in range(_IN_FLIGHT * workers):
            self.router.start(self.reserved(prompts[number % len(prompts)]), NOW)
        self.router.drain(NOW + 1)

    def _hold(self, chats: Sequence[Conversation]) -> None:
        heads = [self.hashed(chat.earlier).hashes[:_COMMON_BLOCKS] for chat in chats]
        for worker in self.router.fleet.states:
            for head in heads:
                self.router.index.record(head, worker, 1.0, NOW)
        for chat in chats:
            reservation = self.reserved(self.hashed(chat.earlier))
            self.router.start(reservation, NOW)
            self.router.finish(reservation)
        self.router.drain(NOW + 1)

    def hashed(self, body: bytes) -> HashedPrompt:
        """Return what the router is given for a body."""
        return self.hasher.hash(prompt_of(body))

    def reserved(self, prompt: HashedPrompt) -> Reservation:
        """Route one prompt."""
        routed = self.router.route(prompt, NOW, next(self._random))
        assert isinstance(routed, Reservation), routed
        return routed

    def decide(self) -> None:
        """Decide on the whole batch."""
        for body in self.bodies:
            self.reservations.append(self.reserved(self.hashed(body)))

    def settle(self) -> None:
        """Finish what was decided without a start, so that the index is as it was."""
        for reservation in self.reservations:
            self.router.finish(reservation)
        self.reservations.clear()
        self.router.drain(NOW + 1)

    @property
    def side(self) -> Side:
        """The batch as one side of a ratio."""
        return Side(self.decide, len(self.bodies), self.settle)


def floor(bodies: Sequence[bytes]) -> Side:
    """Return the least that any such decision costs: decoding the bodies, and a bare BLAKE3 chain over the same blocks."""
    edges = block_edges(_SETTINGS.window_bytes)
    prompts = [prompt_of(body).data for body in bodies]
    spans = [[edge for edge in edges if edge <= len(data)] for data in prompts]

    def run() -> None:
        for body, data, ends in zip(bodies, prompts, spans, strict=True):
            decode(body)
            parent, start = b"", 0
            for end in ends:
                parent = blake3(parent + data[start:end], key=_KEY).digest(HASH_BYTES)
                start = end

    return Side(run, len(bodies))


def over_floor(size: int, scale: Scale) -> float:
    """Return a decision's CPU time over the floor's, for bodies of `size` bytes."""
    count = scale.large_bodies if size > 100 * KB else scale.bodies * (4 if size <= KB else 1)
    decider = Decider(size, count, scale.other_prompts)
    return paired_ratio(decider.side, floor(decider.bodies), scale.rounds)


def small_over_large(scale: Scale) -> float:
    """Return the CPU time of a decision on 1 KB over that of one on 33 KB."""
    small = Decider(KB, scale.bodies * 4, scale.other_prompts)
    large = Decider(33 * KB, scale.bodies, scale.other_prompts)
    return paired_ratio(small.side, large.side, scale.rounds)


def many_over_few_workers(scale: Scale) -> float:
    """Return the CPU time of a decision among 1,000 workers over that of one among 8, with 33 KB."""
    many = Decider(33 * KB, scale.bodies, scale.other_prompts, workers=1_000)
    few = Decider(33 * KB, scale.bodies, scale.other_prompts)
    return paired_ratio(many.side, few.side, scale.rounds)
