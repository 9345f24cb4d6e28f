"""What /metrics of real workers looks like, trimmed to the series that tell facts: tests/edge/data/metrics-NAME.txt.

    python -m tests.vllm.metrics [NAME ...]

starts each named worker (all without a name), sends it the same little traffic, and writes its file anew.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.vllm.running import MODEL, Engine, engine

FOLDER: Final = Path(__file__).parents[1] / "edge" / "data"

WORKERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "dense": ("llama", ()),
    "hybrid": ("qwen3next", ("--block-size", "384")),
    "hybrid-unit": ("qwen3next", ("--block-size", "384", "--prefix-match-unit", "32")),
    "caching-off": ("llama", ("--no-enable-prefix-caching",)),
    "dp2": ("llama", ("--data-parallel-size", "2", "--num-gpu-blocks-override", "1024")),
}
"""Name of the file: model and options."""

SERIES: Final = re.compile(
    r"(?:process_start_time_seconds"
    r"|vllm:(?:cache_config_info|num_requests_(?:running|waiting)|kv_cache_usage_perc|engine_sleep_state"
    r"|lora_requests_info|(?:prefix_cache_(?:queries|hits)|prompt_tokens(?:_cached|_by_source)?"
    r"|generation_tokens|request_success)(?:_total|_created)))(?=[ {])"
)
"""What a router can learn from."""

_COMMENT = re.compile(r"# (?:HELP|TYPE) (\S+)")


def trimmed(text: str) -> str:
    """Return the lines of these series, with their comments."""
    return "".join(f"{line}\n" for line in _kept(text.splitlines()))


def _kept(lines: list[str]) -> Iterator[str]:
    for line in lines:
        comment = _COMMENT.match(line)
        name = f"{comment[1]} " if comment else line
        if SERIES.match(name):
            yield line


def traffic(worker: Engine) -> None:
    """Send one long prompt twice and one that shares nothing, so that counters move."""
    for words in ("tell me of the sea", "tell me of the sea", "and of the hills"):
        body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": words * 300}]}
        worker.post("/v1/chat/completions", body).raise_for_status()


@contextmanager
def named(name: str) -> Iterator[Engine]:
    """Run one of WORKERS for the length of a block."""
    model, options = WORKERS[name]
    with engine(model, *options) as worker:
        yield worker


def main(names: list[str]) -> None:
    """Record the named workers, one after another."""
    for name in names or WORKERS:
        with named(name) as worker:
            traffic(worker)
            text = trimmed(worker.get("/metrics").text)
        (FOLDER / f"metrics-{name}.txt").write_text(text)
        print(f"metrics-{name}.txt: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main(sys.argv[1:])
