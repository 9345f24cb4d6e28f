"""A real valkey-server for the conformance suite, from the distribution's packages."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.services import Process, RedisServer

ROOT = Path(__file__).parents[2]


@cache
def program() -> tuple[str | None, str]:
    """Return the path of valkey-server, or None and why it cannot be had."""
    run = subprocess.run([ROOT / "scripts/new-valkey"], capture_output=True, text=True, timeout=300)
    return (run.stdout.strip(), "") if run.returncode == 0 else (None, run.stderr.strip())


class ValkeyServer(RedisServer):
    """Valkey in the place of Redis."""

    def _start(self) -> Process:
        path, reason = program()
        if path is None:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
        self._program = path
        return super()._start()


@contextmanager
def valkey_server() -> Iterator[RedisServer]:
    """Run a real valkey-server for the length of a block."""
    server = ValkeyServer()
    try:
        yield server
    finally:
        server.stop()
