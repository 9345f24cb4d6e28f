"""A real nginx on rendered files: started as an own child in an own folder, stopped by its pid."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import httpx

from prefix_middleware.core.workers import Worker
from prefix_middleware.nginx.render import Flavour, NginxOptions, Topology, render
from prefix_middleware.settings import Settings
from tests.nginx.worker import FakeGateway, FakeWorker, serving
from tests.services import Process, accepts, free_port, wait_until


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An nginx to run, and the flavour of configuration that it takes."""

    flavour: Flavour
    path: str


@dataclass
class Fleet:
    """Three workers, a gateway, and the nginx in front of them."""

    program: Program
    workers: list[FakeWorker] = field(default_factory=lambda: [FakeWorker(f"w{n}") for n in (1, 2, 3)])
    gateway: FakeGateway = field(default_factory=lambda: FakeGateway("gateway"))
    port: int = field(default_factory=free_port)
    folder: Path = Path()  # nginx's, while it runs

    @property
    def url(self) -> str:
        """Where nginx listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> dict[str, int]:
        """How many requests have reached each worker."""
        return {worker.name: len(worker.seen) for worker in self.workers}

    def settings(self) -> Settings:
        """The settings that a middleware in front of these workers would read."""
        return Settings(
            workers=tuple(Worker(id=w.name, url=w.url) for w in self.workers),
            upstream_url=self.url,
        )

    def files(self, topology: Topology) -> dict[str, str]:
        """The configuration as the package renders it."""
        options = NginxOptions(
            flavour=self.program.flavour,
            topology=topology,
            listen=f"127.0.0.1:{self.port}",
            gateway=f"127.0.0.1:{self.gateway.port}",
        )
        return render(self.settings(), options)

    @asynccontextmanager
    async def up(
        self, topology: Topology, files: Mapping[str, str] | None = None
    ) -> AsyncIterator[httpx.AsyncClient]:
        """Run everything, with changed files where given; yields a client of nginx."""
        async with serving(self.gateway, *self.workers):
            with running(self.program, files or self.files(topology), self.port) as self.folder:
                async with httpx.AsyncClient(base_url=self.url, trust_env=False) as client:
                    yield client


@contextmanager
def folder_with(files: Mapping[str, str]) -> Iterator[Path]:
    """Write the files into a fresh folder that nginx's unprivileged workers may enter."""
    folder = Path(tempfile.mkdtemp(prefix="prefix-nginx-"))
    try:
        folder.chmod(0o755)
        for name, text in files.items():
            (folder / name).write_text(text)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(program: Program, files: Mapping[str, str], port: int) -> Iterator[Path]:
    """Run nginx on the files until the end of the block; yields its folder."""
    with folder_with(files) as folder:
        where = ["-p", str(folder), "-c", "nginx.conf", "-e", "error.log"]
        process = Process([program.path, *where, "-g", "daemon off;"], log=folder / "output.log")
        try:
            wait_until(lambda: accepts(port) or process.returncode is not None, what="nginx")
            assert process.returncode is None, process.text()
            yield folder
        finally:
            process.stop()


def check(program: Program, files: Mapping[str, str]) -> tuple[int, str]:
    """Return the status and the output of `nginx -t` on the files."""
    with folder_with(files) as folder:
        where = ["-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]
        done = subprocess.run(
            [program.path, "-t", *where], capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout + done.stderr.replace(str(folder), "")


async def eventually(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    """Let the event loop run until the condition is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} not reached within {seconds} s"
        await anyio.sleep(0.005)
