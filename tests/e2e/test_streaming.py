"""A stream keeps its gaps on the whole way: worker, nginx, gateway with the line, client."""

import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.e2e.stack import KEY, Stack, conversation, stack

TOKENS, GAP_SECONDS = 50, 0.02


@pytest.fixture(scope="module")
def fleet() -> Iterator[Stack]:
    with stack(options=("--ms-per-token", str(GAP_SECONDS * 1000))) as running:
        yield running


def arrivals(fleet: Stack, url: str) -> list[float]:
    """Return when each event of a 50-token stream arrived."""
    body = {
        "model": "fake-model",
        "messages": conversation("stream", 1_000),
        "max_tokens": TOKENS,
        "stream": True,
    }
    with fleet.client.stream("POST", url + "/v1/chat/completions", json=body, headers=KEY) as answer:
        assert answer.status_code == 200
        return [time.monotonic() for line in answer.iter_lines() if line.startswith("data: {")]


def test_a_stream_of_50_tokens_keeps_its_gaps(fleet: Stack) -> None:
    """No lump: through everything, the stream takes as long as its tokens and few of them come together."""
    times = arrivals(fleet, f"http://127.0.0.1:{fleet.gateways[0]}")

    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(times) >= TOKENS
    assert times[-1] - times[0] >= 0.8 * (TOKENS - 1) * GAP_SECONDS
    assert sum(gap >= GAP_SECONDS / 2 for gap in gaps) >= 0.8 * TOKENS
