"""The text of a worker's /metrics to `Facts`. Pure, and safe with any bytes.

Only the few lines that are wanted reach the parser: a whole answer of vLLM costs it milliseconds, these some tenths of one.
"""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from prefix_middleware.core.facts import MAX_ENGINES, EngineFacts, Facts

MAX_BYTES: Final = 4 * 1024 * 1024
"""Of one answer; a real one has 50 to 70 KB an engine, histograms most of it."""

_MAX_LINE_BYTES: Final = 8 * 1024
_MAX_WANTED_BYTES: Final = 256 * 1024  # of the lines that are parsed
_MAX_COUNT: Final = 2**40  # as in the mirror's entries
_MAX_DIGITS: Final = 11
_START: Final = "process_start_time_seconds"
_INFO: Final = "vllm:cache_config_info"
_SLEEP: Final = "vllm:engine_sleep_state"
_FIGURES: Final = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:request_success_total": "requests",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:prefix_cache_queries_total": "queried_tokens",
    "vllm:prefix_cache_hits_total": "hit_tokens",
}
_CACHELESS: Final = ("sleep weights_offloaded", "sleep discard_all")  # levels 1 and 2
_NAMES: Final = tuple(name.encode() for name in (_START, _INFO, _SLEEP, *_FIGURES))
_FLAGS: Final = {"true": True, "false": False}


def read_facts(metrics: bytes) -> Facts:
    """Return what a worker says of itself; what is missing or unreadable is unknown."""
    start_time: float | None = None
    figures: dict[str, dict[str, float]] = {}
    labels: dict[str, dict[str, str]] = {}
    for sample in _samples(metrics[:MAX_BYTES]):
        if sample.name == _START:
            start_time = sample.value if sample.value > 0 else start_time
            continue
        engine = sample.labels.get("engine", "0")
        if engine not in figures and len(figures) >= MAX_ENGINES:
            continue
        said = figures.setdefault(engine, {})
        labels.setdefault(engine, {}).update(sample.labels)  # no two series use one label for two things
        figure = _FIGURES.get(sample.name) or f"sleep {sample.labels.get('sleep_state')}"
        said[figure] = said.get(figure, 0.0) + sample.value
    engines = sorted(figures, key=lambda engine: (len(engine), engine))
    return Facts(start_time, tuple(_engine(e, figures[e], labels[e], len(engines)) for e in engines))


def _samples(metrics: bytes) -> Iterator[Sample]:
    """Yield the wanted samples that can be read and whose value is a number."""
    room = _MAX_WANTED_BYTES
    for line in metrics.split(b"\n"):
        if not line.startswith(_NAMES):
            continue
        room -= len(line)
        if room < 0:
            return
        series, closed, value = line.rpartition(b"}")
        if not closed:
            series, _, value = line.partition(b" ")
        try:
            sample = _series(series + closed) if len(line) <= _MAX_LINE_BYTES else None
            figure = float(value.split(maxsplit=1)[0])
        except (ValueError, IndexError):
            continue
        if sample is not None and math.isfinite(figure) and abs(figure) < _MAX_COUNT:
            yield sample._replace(value=figure)


@lru_cache(maxsize=512)
def _series(text: bytes) -> Sample | None:
    """Parse a series' name and labels, which are the same at every poll."""
    try:
        families = list(text_string_to_metric_families(text.decode() + " 0"))
    except (ValueError, IndexError):
        return None
    sample = families[0].samples[0] if len(families) == 1 else None
    return sample if sample is not None and sample.name.encode() in _NAMES else None


def _engine(name: str, figures: Mapping[str, float], labels: Mapping[str, str], count: int) -> EngineFacts:
    block_size, blocks = _number(labels.get("block_size")), _number(labels.get("num_gpu_blocks"))
    tokens = (block_size or 0) * (blocks or 0) // count  # the blocks are those of all ranks together
    awake = figures.get("sleep awake")
    return EngineFacts(
        engine=name,
        model=labels.get("model_name", ""),
        caching=_FLAGS.get(labels.get("enable_prefix_caching", "").lower()),
        block_size=block_size,
        match_unit=_number(labels.get("prefix_match_unit")),
        mamba_cache_mode=labels.get("mamba_cache_mode"),
        sliding_window=_number(labels.get("sliding_window")),
        kv_tokens=min(_number(labels.get("kv_cache_size_tokens")) or tokens, _MAX_COUNT - 1) or None,
        running=_count(figures, "running") or 0,
        waiting=_count(figures, "waiting") or 0,
        awake=None if awake is None else awake > 0,
        dropped=any(figures.get(level, 0.0) > 0 for level in _CACHELESS),
        requests=_count(figures, "requests"),
        prompt_tokens=_count(figures, "prompt_tokens"),
        queried_tokens=_count(figures, "queried_tokens"),
        hit_tokens=_count(figures, "hit_tokens"),
    )


def _number(text: str | None) -> int | None:
    """Return a label's figure, None for "None" and the like."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def _count(figures: Mapping[str, float], name: str) -> int | None:
    value = figures.get(name)
    return None if value is None else min(max(0, int(value)), _MAX_COUNT - 1)
