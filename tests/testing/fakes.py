"""Fake workers and the stand-in for nginx as real processes."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tests.services import Process, accepts, free_port, wait_until


@dataclass
class Running:
    """One server process."""

    process: Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> list[dict[str, Any]]:
        """What a fake worker has seen."""
        entries: list[dict[str, Any]] = httpx.get(f"{self.url}/__log", trust_env=False).json()
        return entries

    def control(self, **switches: object) -> None:
        """Set switches of a fake worker."""
        httpx.post(f"{self.url}/__control", json=switches, trust_env=False).raise_for_status()


@contextmanager
def server(module: str, *options: str, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Run `python -m MODULE ... --port N` until the end of the block."""
    port = free_port()
    process = Process([sys.executable, "-m", module, *options, "--port", str(port)], env)
    try:
        wait_until(lambda: accepts(port) or process.returncode is not None, 20, f"{module} up")
        assert process.returncode is None, process.text()
        yield Running(process, port)
    finally:
        process.stop()
        process.log.unlink(missing_ok=True)


def worker(*options: str) -> Any:
    """Run a fast fake worker."""
    speed = ("--tokens-per-second", "100000", "--ms-per-token", "1")
    return server("prefix_middleware.testing.worker", *speed, *options)


def proxy(workers: Mapping[str, str]) -> Any:
    """Run the stand-in for nginx over workers (id to URL)."""
    listed = [item for id, url in workers.items() for item in ("--worker", f"{id}={url}")]
    return server("prefix_middleware.testing.proxy", *listed)
