"""One replay: a trace, a fleet of modelled workers and whoever chooses, on a clock of its own.

Every run checks itself: all requests finish, no KV is left in use, none above the bound, and no token is lost.
"""

import heapq
from dataclasses import dataclass

from bench.replay.gateways import Gateways, Setup, Ticket
from bench.replay.model import Job, ModelWorker
from bench.replay.trace import Request, Trace


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one replay has shown. Times are in seconds, in order of the first bytes."""

    ttft: list[float]
    prompt_tokens: int
    hit_tokens: int  # at first admissions
    prefilled: list[int]  # tokens computed by each worker
    preemptions: int
    seconds: float  # simulated

    @property
    def hit_share(self) -> float:
        """Share of the prompt tokens that were found cached."""
        return self.hit_tokens / max(1, self.prompt_tokens)

    @property
    def spread(self) -> float:
        """Most over mean of the tokens prefilled by a worker."""
        total = sum(self.prefilled)
        return max(self.prefilled) * len(self.prefilled) / total if total else 1.0


@dataclass(slots=True)
class _Going:
    ticket: Ticket
    arrived: float


class Replay:
    """Plays one trace once."""

    def __init__(
        self, trace: Trace, setup: Setup, gateways: Gateways, speed: float, share_seconds: float
    ) -> None:
        self._trace, self._gateways = trace, gateways
        self._speed, self._share_seconds = speed, share_seconds
        self.workers = [ModelWorker(setup.kv_tokens, trace.block_tokens) for _ in range(setup.workers)]
        self._busy = [False] * setup.workers
        self._going: dict[Job, _Going] = {}
        self._events: list[tuple[float, int, Request | int]] = []  # an arrival, or the worker whose step ends
        self._numbers = 0
        self._ttft: list[float] = []
        self._left = trace.requests
        self._hit_tokens = 0

    def run(self) -> Outcome:
        """Play to the end; AssertionError when the model has lost something."""
        for request in self._trace.first:
            self._at(request.at / self._speed, request)
        shared = now = 0.0
        while self._events:
            now, _, what = heapq.heappop(self._events)
            if now - shared >= self._share_seconds:
                self._gateways.share(now)
                shared = now
            if isinstance(what, int):
                self._end_step(what, now)
            else:
                self._arrive(what, now)
        self._check()
        return Outcome(
            self._ttft,
            self._trace.prompt_tokens,
            self._hit_tokens,
            [worker.counts.computed for worker in self.workers],
            sum(worker.counts.preemptions for worker in self.workers),
            now,
        )

    def _at(self, time: float, what: Request | int) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (time, self._numbers, what))

    def _arrive(self, request: Request, now: float) -> None:
        ticket = self._gateways.choose(request, now)
        job = self.workers[ticket.worker].submit(request)
        self._going[job] = _Going(ticket, now)
        if not self._busy[ticket.worker]:
            self._begin_step(ticket.worker, now)

    def _begin_step(self, number: int, now: float) -> None:
        seconds = self.workers[number].begin()
        self._busy[number] = seconds is not None
        if seconds is not None:
            self._at(now + seconds, number)

    def _end_step(self, number: int, now: float) -> None:
        started, finished = self.workers[number].end()
        for job in started:
            going = self._going[job]
            self._ttft.append(now - going.arrived)
            going.ticket.start(now)
        for job in finished:
            self._going.pop(job).ticket.finish()
            self._left -= 1
            self._hit_tokens += job.hit_tokens
            following = job.request.then
            if following is not None:
                self._at(now + following.at / self._speed, following)
        self._begin_step(number, now)

    def _check(self) -> None:
        assert self._left == 0, f"{self._left} requests never finished"
        assert len(self._ttft) == self._trace.requests, "a request without a first byte"
        assert not self._going, "a request is still going"
        for worker in self.workers:
            cache, counts = worker.cache, worker.counts
            assert (cache.used_blocks, cache.private_tokens) == (0, 0), "KV leaked"
            assert cache.tokens <= cache.bound_tokens, "KV above its bound"
            assert counts.hits + counts.computed == counts.prompts + counts.recomputed, "tokens lost"
