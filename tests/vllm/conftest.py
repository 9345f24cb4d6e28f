"""Real vLLM workers need an environment of 3 GB: these tests run with `make test-vllm` only, except test_pairs.py."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm.running import Engine

ENABLED = bool(os.environ.get("TEST_VLLM"))
WITHOUT_AN_ENGINE = ("test_pairs.py",)

ENGINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "dense": (
        "llama",
        (
            *("--block-size", "32", "--served-model-name", "tiny", "tiny-too"),
            *("--trust-request-chat-template", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        ),
    ),
    "doomed": ("llama", ()),
    "hybrid": ("qwen3next", ("--block-size", "384")),
    "hybrid_unit": ("qwen3next", ("--block-size", "384", "--prefix-match-unit", "32")),
}
"""The workers that tests share, by fixture: model and options."""

collect_ignore = (
    []
    if ENABLED
    else [it.name for it in Path(__file__).parent.glob("test_*.py") if it.name not in WITHOUT_AN_ENGINE]
)
if ENABLED:
    # Ended by a time limit, pytest must still end the workers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def engines(request: pytest.FixtureRequest) -> Iterator[dict[str, Engine]]:
    """Start, side by side, the workers that the collected tests ask for."""
    used = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    running: dict[str, Engine] = {}
    try:
        for name, (model, options) in ENGINES.items():
            if name in used:
                running[name] = Engine(model, *options)
        for engine in running.values():
            engine.wait_ready()
        yield running
    finally:
        for engine in running.values():
            engine.stop()
            engine.forget()


@pytest.fixture(scope="session")
def dense(engines: dict[str, Engine]) -> Engine:
    return engines["dense"]


@pytest.fixture(scope="session")
def doomed(engines: dict[str, Engine]) -> Engine:
    return engines["doomed"]


@pytest.fixture(scope="session")
def hybrid(engines: dict[str, Engine]) -> Engine:
    return engines["hybrid"]


@pytest.fixture(scope="session")
def hybrid_unit(engines: dict[str, Engine]) -> Engine:
    return engines["hybrid_unit"]
