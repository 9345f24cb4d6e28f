"""A port that never answers, and the product's logger as it was before."""

import logging
import socket
from collections.abc import Iterator

import pytest

from prefix_middleware.telemetry import LOGGER


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Port of a server that accepts and never answers: the first time-out of a poll is no news."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    """The product's logger; handlers, level and propagation are put back."""
    log = logging.getLogger(LOGGER)
    before = list(log.handlers), log.level, log.propagate
    yield log
    log.handlers[:], log.propagate = before[0], before[2]
    log.setLevel(before[1])
