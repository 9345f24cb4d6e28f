"""The engine of the fake worker: one prefill slot served in order of arrival, then decoding side by side."""

import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from prefix_middleware.testing.answers import Counts
from prefix_middleware.testing.kv import BYTES_PER_TOKEN, TOKENS_PER_BLOCK, KvCache, tokens_of
from prefix_middleware.testing.prompts import Prompt

_WORDS: Final = (
    " the",
    " fox",
    " saw",
    " one",
    " red",
    " hen",
    " and",
    " ran",
    " for",
    " its",
    " den",
    " but",
)


class Engine:
    """Computes prompts at `tokens_per_second`, generates a token each `ms_per_token`, counts like vLLM."""

    def __init__(
        self, kv_blocks: int, tokens_per_second: float, ms_per_token: float, *, caching: bool = True
    ) -> None:
        self.kv = KvCache(kv_blocks)
        self.caching = caching
        self.sleep_level: int | None = None  # None: awake; 1 and 2 have no cache
        self.finished: Counter[str] = Counter()  # requests by reason
        self.running = self.waiting = 0  # requests
        self.queried = self.hit = self.prompted = self.generated = 0  # tokens since the start
        self._tokens_per_second = tokens_per_second
        self._seconds_per_token = ms_per_token / 1000
        self._slot = anyio.Lock()  # first come, first served
        self._awake = anyio.Event()
        self._awake.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as running for the length of the block; `prefill` moves it to waiting meanwhile."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    async def prefill(self, prompt: Prompt) -> Counts:
        """Wait for the slot, compute what is not cached, and hold the prompt's blocks."""
        self.running, self.waiting = self.running - 1, self.waiting + 1
        try:
            await self._slot.acquire()
        except BaseException:
            self.finished["abort"] += 1
            raise
        finally:
            self.running, self.waiting = self.running + 1, self.waiting - 1
        try:
            return await self._compute(prompt)
        except BaseException:
            self.finished["abort"] += 1
            raise
        finally:
            self._slot.release()

    async def awake(self) -> None:
        """Wait while the engine sleeps: vLLM takes requests then, and answers none."""
        await self._awake.wait()

    def sleep(self, level: int | None) -> None:
        """Go to sleep, or wake up with None; levels 1 and 2 lose the cache."""
        self.sleep_level = level
        if level is None:
            self._awake.set()
        elif self._awake.is_set():
            self._awake = anyio.Event()
        if level:
            self.kv.reset()

    async def _compute(self, prompt: Prompt) -> Counts:
        tokens = tokens_of(prompt.text)
        cached = self.kv.cached_tokens(prompt.namespace, prompt.text) if self.caching else 0
        if self.caching:  # else vLLM does not look, and counts nothing
            self.queried, self.hit = self.queried + tokens, self.hit + cached
        await anyio.sleep((tokens - cached) / self._tokens_per_second)
        self.prompted += tokens
        self.kv.store(prompt.namespace, prompt.text)
        return Counts(prompt=tokens, cached=cached, output=prompt.max_tokens)

    async def decode(self, prompt: Prompt) -> AsyncIterator[str]:
        """Yield the answer token by token; what was generated is held, the last token's KV apart."""
        start, seed = time.monotonic(), zlib.crc32(prompt.text)
        text, reason = b"", "abort"
        try:
            for number in range(1, prompt.max_tokens + 1):
                await anyio.sleep(max(0.0, start + number * self._seconds_per_token - time.monotonic()))
                word = _WORDS[(seed + number * (seed % 7 + 1)) % len(_WORDS)]
                text += word.encode()
                self.generated += 1
                yield word
            reason = "length"
        finally:
            self.finished[reason] += 1
            self.kv.store(prompt.namespace, prompt.text + text[:-BYTES_PER_TOKEN])

    def metrics(self, model: str, started: float | None) -> str:
        """Return the Prometheus text of a vLLM server that started at `started` (Unix seconds, None: it does not say)."""
        lines = []
        if started is not None:
            lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {started}"]
        labels = f'engine="0",model_name="{model}"'
        series: list[tuple[str, str, str, float]] = [
            ("num_requests_running", "gauge", "", self.running),
            ("num_requests_waiting", "gauge", "", self.waiting),
            ("prefix_cache_queries_total", "counter", "", self.queried),
            ("prefix_cache_hits_total", "counter", "", self.hit),
            ("prompt_tokens_total", "counter", "", self.prompted),
            ("generation_tokens_total", "counter", "", self.generated),
        ]
        for reason in ("stop", "length", "abort"):
            label = f',finished_reason="{reason}"'
            series.append(("request_success_total", "counter", label, self.finished[reason]))
        for level, state in enumerate(("awake", "weights_offloaded", "discard_all")):
            on = self.sleep_level is None if level == 0 else self.sleep_level == level
            series.append(("engine_sleep_state", "gauge", f',sleep_state="{state}"', on))
        for name, kind, label, value in series:
            family = name.removesuffix("_total")
            lines += [f"# TYPE vllm:{family} {kind}", f"vllm:{name}{{{labels}{label}}} {float(value)}"]
        info = f'block_size="{TOKENS_PER_BLOCK}",enable_prefix_caching="{self.caching}",engine="0",'
        info += f'kv_cache_size_tokens="{self.kv.tokens}",mamba_cache_mode="none",'
        info += f'num_gpu_blocks="{self.kv.blocks}",prefix_match_unit="None",sliding_window="None"'
        lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{info}}} 1.0"]
        return "\n".join(lines) + "\n"
