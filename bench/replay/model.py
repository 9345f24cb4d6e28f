"""A model of one vLLM worker: steps that decode first and prefill in chunks, a prefix cache, preemption.

1. A step has a token budget: one token for each request that decodes, the rest for prefill, first come, first served.
2. A block can be matched once its chunk is scheduled. A request is admitted when its uncached prompt fits.
3. When the next tokens do not fit, the request admitted last gives its space back and is computed again later.

Shape and constants are those of vLLM's V1 scheduler and of Qwen3-32B on two H100 (16,000 prefill tokens a second).
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from bench.replay.cache import KvCache
from bench.replay.trace import Request

STEP_TOKENS: Final = 8192
MAX_RUNNING: Final = 256
STEP_SECONDS: Final = 0.002  # scheduling and launch
WEIGHTS_SECONDS: Final = 0.013  # reading the weights once: no step is faster
PREFILL_TOKENS_PER_SECOND: Final = 16_000
ATTENTION_SECONDS: Final = 2e-9  # for each pair of a chunk's token and a token before it
DECODE_SECONDS: Final = 20e-6  # each request that decodes
KV_READ_SECONDS: Final = 49e-9  # each token of KV that decoding reads


@dataclass(slots=True, eq=False)
class Job:
    """One request inside a worker."""

    request: Request
    target: int  # tokens to have in the cache before the next one is generated
    done: int = 0  # of them
    generated: int = 0
    hit_tokens: int = 0  # at the first admission
    blocks: list[int] = field(default_factory=list)  # in use by it, first block first
    private_tokens: int = 0
    joined: int | None = None  # decode step at which it began to decode
    started: bool = False
    admitted: bool = False


@dataclass(slots=True)
class Counts:
    """What a worker has done, in tokens; `hits + computed == finished prompts + recomputed` when it is idle."""

    hits: int = 0
    computed: int = 0
    prompts: int = 0  # of finished requests
    recomputed: int = 0
    preemptions: int = 0


class ModelWorker:
    """One worker; the caller owns the clock and calls `begin` and `end` in turn."""

    def __init__(self, kv_tokens: int, block_tokens: int, max_running: int = MAX_RUNNING) -> None:
        self.cache = KvCache(kv_tokens, block_tokens)
        self.counts = Counts()
        self.waiting: deque[Job] = deque()
        self.running: dict[Job, None] = {}  # in order of admission
        self._max_running = max_running
        self._prefilling: list[Job] = []
        self._prefilled: list[Job] = []  # by the step under way
        self._due: dict[int, list[Job]] = {}  # decode step -> jobs that end with it
        self._decode_step = 0
        self._decoding = 0
        self._context = 0  # tokens that decoding reads
        self._blocked = False  # the first that waits does not fit, and nothing has changed since

    def submit(self, request: Request) -> Job:
        """Take a request into the queue."""
        job = Job(request, request.input_tokens)
        self.waiting.append(job)
        return job

    def begin(self) -> float | None:
        """Schedule one step and return its seconds, or None when there is nothing to do."""
        preempted = self._make_room()
        budget = STEP_TOKENS - self._decoding
        work = 0.0
        for job in self._prefilling:
            if budget <= 0:
                break
            tokens, seconds = self._chunk(job, budget)
            budget, work = budget - tokens, work + seconds
        while budget > 0 and not preempted and self._admit():
            tokens, seconds = self._chunk(self._prefilling[-1], budget)
            budget, work = budget - tokens, work + seconds
        if not self.running:
            assert not self.waiting, "a request that fits nowhere"
            return None
        if self._prefilled:
            self._prefilling = [job for job in self._prefilling if job.done < job.target]
        decode = DECODE_SECONDS * self._decoding + KV_READ_SECONDS * self._context
        return max(WEIGHTS_SECONDS, work) + STEP_SECONDS + decode

    def end(self) -> tuple[list[Job], list[Job]]:
        """Finish the step; return the jobs whose first token it made, and those that are over."""
        started: list[Job] = []
        finished: list[Job] = []
        if self._decoding:
            self._decode_step += 1
            self._context += self._decoding
            finished = self._due.pop(self._decode_step, [])
        for job in self._prefilled:
            if not job.started:
                job.started = True
                started.append(job)
            job.generated += 1
            if job.generated < job.request.output_tokens:
                self._join(job)
            else:
                finished.append(job)
        self._prefilled = []
        for job in finished:
            self._finish(job)
        return started, finished

    def _make_room(self) -> bool:
        preempted = False
        while self.cache.room_tokens < self._decoding:
            self._preempt(next(reversed(self.running)))
            preempted = True
        if self._decoding:
            self.cache.reserve(self._decoding)
        return preempted

    def _admit(self) -> bool:
        if not self.waiting or self._blocked or len(self.running) >= self._max_running:
            return False
        job = self.waiting[0]
        size = self.cache.block_tokens
        matchable = job.request.blocks[: (job.target - 1) // size]  # the last token is always computed
        held = matchable[: self.cache.match(matchable)]
        hits = len(held) * size
        if not self.cache.claim(held, job.target - hits):
            self._blocked = True
            return False
        self.waiting.popleft()
        self.running[job] = None
        self._prefilling.append(job)
        job.blocks, job.private_tokens, job.done = list(held), job.target - hits, hits
        self.counts.hits += hits
        if not job.admitted:
            job.admitted, job.hit_tokens = True, hits
        return True

    def _chunk(self, job: Job, budget: int) -> tuple[int, float]:
        before = job.done
        tokens = min(budget, job.target - before)
        job.done = before + tokens
        size = self.cache.block_tokens
        for block in job.request.blocks[before // size : job.done // size]:
            if self.cache.share(block):
                job.blocks.append(block)
                job.private_tokens -= size
                self._blocked = False
        if job.done == job.target:
            self._prefilled.append(job)
        self.counts.computed += tokens
        pairs = tokens * (before + tokens / 2)
        return tokens, tokens / PREFILL_TOKENS_PER_SECOND + ATTENTION_SECONDS * pairs

    def _join(self, job: Job) -> None:
        job.joined = self._decode_step
        self._decoding += 1
        self._context += job.target
        last = self._decode_step + job.request.output_tokens - job.generated
        self._due.setdefault(last, []).append(job)

    def _leave(self, job: Job) -> int:
        """Stop decoding; return the tokens generated by it."""
        if job.joined is None:
            return 0
        grown = self._decode_step - job.joined
        self._decoding -= 1
        self._context -= job.target + grown
        job.joined = None
        return grown

    def _release(self, job: Job, grown: int) -> None:
        self.cache.release(job.blocks, job.private_tokens + grown)
        del self.running[job]
        self._blocked = False

    def _finish(self, job: Job) -> None:
        self._release(job, self._leave(job))
        self.counts.prompts += job.request.input_tokens
        self.counts.recomputed += job.target - job.request.input_tokens

    def _preempt(self, job: Job) -> None:
        if job.joined is not None:
            due = self._due[job.joined + job.request.output_tokens - job.generated]
            due.remove(job)
        else:
            self._prefilling.remove(job)
        grown = self._leave(job)
        self._release(job, grown)
        self.counts.preemptions += 1
        self.counts.recomputed += job.done
        job.generated += grown
        job.target, job.done = job.request.input_tokens + job.generated, 0
        self.waiting.appendleft(job)
