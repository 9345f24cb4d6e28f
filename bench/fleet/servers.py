"""Real workers and what stands before them: Redis, nginx as we render it, and gateways with the line."""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from prefix_middleware import Settings, Worker
from prefix_middleware.demo.fleet import API_KEY, nginx_version
from prefix_middleware.demo.processes import Child, free_port, stop
from prefix_middleware.nginx.render import MAIN_FILE, STICKY_SINCE, NginxOptions, render
from tests.services import wait_until
from tests.vllm.running import Engine

WORKERS: Final = ("w1", "w2", "w3")


def start_engines(exits: ExitStack, *options: str) -> dict[str, Engine]:
    """Run three dense workers until `exits` closes."""
    engines: dict[str, Engine] = {}
    for worker in WORKERS:
        engines[worker] = engine = Engine("llama", *options)
        exits.callback(engine.forget)
        exits.callback(engine.stop)
    for engine in engines.values():
        engine.wait_ready()
    return engines


class Servers:
    """Workers, by name, behind nginx, and a Redis, until `exits` closes; gateways come and go."""

    def __init__(self, folder: Path, exits: ExitStack, engines: Mapping[str, Engine]) -> None:
        self._folder, self.engines = folder, engines
        self.redis = self._child(exits, "redis", *_redis(folder))
        self.nginx = self._nginx(exits)

    def _child(self, exits: ExitStack, name: str, command: Sequence[str], port: int) -> Child:
        child = Child(name, command, port, self._folder)
        exits.callback(stop, [child])
        child.wait_ready()
        return child

    def _nginx(self, exits: ExitStack) -> Child:
        program, port = (
            shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin") or "nginx",
            free_port(),
        )
        sticky = nginx_version(program) >= STICKY_SINCE
        options = NginxOptions(flavour="sticky" if sticky else "classic", listen=f"127.0.0.1:{port}")
        for name, text in render(Settings(workers=self.workers()), options).items():
            (self._folder / name).write_text(text)
        where = ["-p", str(self._folder), "-c", MAIN_FILE, "-e", "stderr", "-g", "daemon off;"]
        return self._child(exits, "nginx", [program, *where], port)

    def workers(self) -> tuple[Worker, ...]:
        """Return the workers as settings name them."""
        return tuple(Worker(id=worker, url=engine.url) for worker, engine in self.engines.items())

    @contextmanager
    def gateways(self, count: int, fleet: str, **more: str) -> Iterator[list[Child]]:
        """Run gateways of a fleet of their own, `more` in their environment, for the length of the block.

        Each knows every worker and the mirror, and of no prompt.
        """
        env = {
            "DEMO_API_KEYS": API_KEY,
            "DEMO_UPSTREAM_URL": self.nginx.url,
            "DEMO_LINE": "1",
            "PREFIX_WORKERS": ",".join(f"{worker.id}={worker.url}" for worker in self.workers()),
            "PREFIX_REDIS_URL": f"redis://127.0.0.1:{self.redis.port}/0",
            "PREFIX_FLEET": fleet,
            "PREFIX_UPSTREAM_URL": self.nginx.url,
            "PREFIX_SECRET": "benchmark only",
            "PREFIX_LOG": "json",
            **more,
        }
        running: list[Child] = []
        try:
            for number in range(count):
                port = free_port()
                options = ["--port", str(port), "--log-level", "warning", "--no-access-log"]
                command = [sys.executable, "-m", "uvicorn", "prefix_middleware.demo.gateway:app", *options]
                running.append(Child(f"gateway-{fleet}-{number}", command, port, self._folder, env))
            for child in running:
                child.wait_ready()
            wait_until(lambda: all(self._knows_all(child.text()) for child in running), 60, "gateways ready")
            yield running
        finally:
            stop(running)

    def _knows_all(self, log: str) -> bool:
        return "mirror: connected" in log and all(f"worker {it} is ready" in log for it in self.engines)

    def figures(self) -> dict[str, tuple[float, float]]:
        """Return what each worker has counted: tokens looked up in its cache, and tokens found."""
        return {
            worker: (
                sums.get("vllm:prefix_cache_queries_total", 0.0),
                sums.get("vllm:prefix_cache_hits_total", 0.0),
            )
            for worker, sums in ((worker, engine.figures()) for worker, engine in self.engines.items())
        }

    def token_ids(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return a chat prompt as the workers see it."""
        body = {"messages": list(messages), "add_generation_prompt": True}
        answer = httpx.post(
            f"{next(iter(self.engines.values())).url}/tokenize", json=body, timeout=60, trust_env=False
        )
        answer.raise_for_status()
        tokens: list[int] = answer.json()["tokens"]
        return tokens


def decided(gateway: Child) -> list[dict[str, Any]]:
    """Return a gateway's routed lines as their fields, oldest first."""
    lines = (json.loads(line) for line in gateway.text().splitlines() if line.startswith("{"))
    return [line for line in lines if "matched_tokens" in line]


def _redis(folder: Path) -> tuple[list[str], int]:
    port = free_port()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", ""]
    return ["redis-server", *options], port
