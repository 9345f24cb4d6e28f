"""Fixtures that every test may use."""

import os
from collections.abc import Iterator

import pytest

from tests.services import RedisServer, redis_server


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Return plain asyncio, or uvloop where TEST_UVLOOP asks for it."""
    return "asyncio", {"use_uvloop": bool(os.environ.get("TEST_UVLOOP"))}


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """In CI nothing may be skipped: a missing program is a missing check."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if os.environ.get("CI") and skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
