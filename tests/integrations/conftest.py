"""Workers and proxy once for all hosts: only the gateways differ."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.integrations.stack import Stack


@pytest.fixture(scope="package")
def stack() -> Iterator[Stack]:
    with ExitStack() as exits:
        yield Stack(exits)
