"""The demonstration's servers: three fake workers, Redis, nginx (or their stand-ins) and two gateways."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from prefix_middleware import Settings, Worker
from prefix_middleware.demo.processes import Child, StartError, free_port, stop
from prefix_middleware.nginx.render import MAIN_FILE, STICKY_SINCE, NginxOptions, render

WORKER_IDS: Final = ("905487f1", "1c3ea7d2", "b86f20c4")
GATEWAY_NAMES: Final = ("gateway-1", "gateway-2")
KV_BLOCKS: Final = 640  # of 16 tokens: as full after seconds here as a GPU's cache is after minutes
TOKENS_PER_SECOND: Final = 4000
API_KEY: Final = "sk-demo"


class Fleet:
    """Workers, Redis and nginx, which stay up for both runs; `gateways()` runs a pair of gateways."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[Child] = []
        self.workers: dict[str, Child] = {}
        self.remarks: list[str] = []  # what stands in for what
        self.redis_url = self.upstream_url = ""

    def start(self) -> None:
        """Start everything but the gateways; raises StartError."""
        self.workers = {worker: self._start_worker(worker) for worker in WORKER_IDS}
        redis = self._start_redis()
        upstream = self._start_nginx()
        self.redis_url = f"redis://127.0.0.1:{redis.port}/0"
        self.upstream_url = upstream.url
        for child in self._children:
            child.wait_ready()

    def stop(self) -> None:
        """End everything that was started."""
        stop(self._children[::-1])
        self._children.clear()

    @contextmanager
    def gateways(self, line: bool) -> Iterator[list[Child]]:
        """Run two gateway processes for the length of the block, with the line or without."""
        first = len(self._children)
        try:
            for name in GATEWAY_NAMES:
                self._start_gateway(name, line)
            pair = self._children[first:]
            for child in pair:
                child.wait_ready()
            yield pair
        finally:
            stop(self._children[first:])
            del self._children[first:]

    def _start(self, name: str, command: list[str], port: int, env: dict[str, str] | None = None) -> Child:
        child = Child(name, command, port, self._folder, env)
        self._children.append(child)
        return child

    def _start_worker(self, worker: str) -> Child:
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "prefix_middleware.testing.worker",
            "--port",
            str(port),
            "--id",
            worker,
        ]
        options = ["--kv-blocks", str(KV_BLOCKS), "--tokens-per-second", str(TOKENS_PER_SECOND)]
        return self._start(f"worker-{worker}", [*command, *options], port)

    def _start_redis(self) -> Child:
        port = free_port()
        program = shutil.which("redis-server")
        if program is None:
            self.remarks.append("redis-server is not installed: fakeredis stands in")
            return self._start(
                "redis", [sys.executable, "-m", "prefix_middleware.demo.redis_standin", str(port)], port
            )
        options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(self._folder), "--save", ""]
        return self._start("redis", [program, *options], port)

    def _start_nginx(self) -> Child:
        port = free_port()
        program = shutil.which("nginx", path=_search_path())
        if program is None:
            self.remarks.append("nginx is not installed: a small proxy stands in")
            listed = [
                item for id, child in self.workers.items() for item in ("--worker", f"{id}={child.url}")
            ]
            proxy = [sys.executable, "-m", "prefix_middleware.testing.proxy", "--port", str(port)]
            return self._start("nginx", [*proxy, *listed], port)
        version = nginx_version(program)
        self.remarks.append("nginx " + ".".join(map(str, version)))
        self._write_nginx(port, sticky=version >= STICKY_SINCE)
        where = ["-p", str(self._folder), "-c", MAIN_FILE, "-e", "stderr", "-g", "daemon off;"]
        return self._start("nginx", [program, *where], port)

    def _write_nginx(self, port: int, sticky: bool) -> None:
        workers = tuple(Worker(id=id, url=child.url) for id, child in self.workers.items())
        options = NginxOptions(flavour="sticky" if sticky else "classic", listen=f"127.0.0.1:{port}")
        for name, text in render(Settings(workers=workers), options).items():
            (self._folder / name).write_text(text)

    def _start_gateway(self, name: str, line: bool) -> None:
        port = free_port()
        options = ["--port", str(port), "--log-level", "warning", "--no-access-log"]
        command = [sys.executable, "-m", "uvicorn", "prefix_middleware.demo.gateway:app", *options]
        env = {"DEMO_API_KEYS": API_KEY, "DEMO_UPSTREAM_URL": self.upstream_url}
        if line:
            env |= {
                "DEMO_LINE": "1",
                "PREFIX_WORKERS": ",".join(f"{id}={child.url}" for id, child in self.workers.items()),
                "PREFIX_REDIS_URL": self.redis_url,
                "PREFIX_UPSTREAM_URL": self.upstream_url,
                "PREFIX_SECRET": "demonstration only",
                "PREFIX_LOG": "line",
            }
        self._start(name, command, port, env)


def nginx_version(program: str) -> tuple[int, ...]:
    """Return the version as numbers; raises StartError when the program does not tell it."""
    told = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=10, check=False)
    found = re.search(r"nginx/(\d+)\.(\d+)\.(\d+)", told.stderr + told.stdout)
    if found is None:
        raise StartError(f"{program} -v does not tell a version: {told.stderr.strip()}")
    return tuple(int(number) for number in found.groups())


def _search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
