"""Everything at once, on real parts: three fake workers, nginx, redis-server and gateway processes of examples/."""

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from prefix_middleware import Settings, Worker
from prefix_middleware.nginx.render import NginxOptions, render
from tests.nginx.running import Program, running
from tests.services import Process, RedisServer, accepts, free_port, redis_server, required, wait_until

ROOT = Path(__file__).parents[2]
KEY = {"Authorization": "Bearer sk-alice"}
LINE = re.compile(
    r"\[PREFIX\] (?P<reason>hit|busy|miss|only): (?P<worker>\S+) .*?(?P<m>\d+)/(?P<n>\d+) blocks "
    r"\(slots=(?P<slots>\d+) min=(?P<min>\d+) slack=(?P<slack>\d+), ~(?P<tokens>\d+) tokens\)"
)


def python(*arguments: str, env: Mapping[str, str] | None = None) -> Process:
    """Start a Python process in the environment of the tests."""
    import sys

    return Process([sys.executable, *arguments], env={"PYTHONPATH": str(ROOT), **(env or {})})


@dataclass(frozen=True)
class Answer:
    """What came back, and from whom."""

    status: int
    json: dict[str, Any]
    worker: str


@dataclass
class Stack:
    """The running parts, and what a client of the gateways does with them."""

    redis: RedisServer
    workers: dict[str, int]  # id -> port
    processes: dict[str, Process]
    nginx_port: int
    gateways: list[int]  # ports
    options: Sequence[str] = ()
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30, trust_env=False))

    def chat(self, gateway: int, messages: list[dict[str, Any]], **fields: Any) -> "Answer":
        """Ask a gateway, not streaming, and learn from the workers themselves who has served."""
        body = json.dumps({"model": "fake-model", "messages": messages, "max_tokens": 4, **fields}).encode()
        response = self.post(gateway, body)
        return Answer(response.status_code, response.json(), self.server_of(body))

    def post(self, gateway: int, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> httpx.Response:
        """Send a body to a gateway as it is."""
        url = f"http://127.0.0.1:{self.gateways[gateway]}/v1/chat/completions"
        return self.client.post(url, content=body, headers=[*KEY.items(), *headers])

    def server_of(self, body: bytes) -> str:
        """Return the one worker that has seen exactly these bytes."""
        digest = hashlib.sha256(body).hexdigest()
        (worker,) = {w for w in self.workers for seen in self.served(w) if seen["body_sha256"] == digest}
        return worker

    def served(self, worker: str) -> list[dict[str, Any]]:
        """Return the prompts that a worker has seen, oldest first."""
        answer = self.client.get(f"http://127.0.0.1:{self.workers[worker]}/__log")
        return [seen for seen in answer.json() if seen["path"] == "/v1/chat/completions"]

    def counts(self) -> dict[str, int]:
        """Return how many prompts each worker has seen."""
        return {worker: len(self.served(worker)) for worker in self.workers}

    def decisions(self, gateway: int) -> list[dict[str, str]]:
        """Return the routed lines of a gateway's log, oldest first."""
        return [found.groupdict() for found in LINE.finditer(self.log(gateway))]

    def log(self, gateway: int) -> str:
        """Return everything that a gateway has printed."""
        return self.processes[f"gateway{gateway}"].text()

    def start_worker(self, worker: str) -> None:
        """Start, or start again, one worker on its port."""
        port = self.workers[worker]
        known = self.processes.get(worker)
        if known is not None:
            known.stop()
        arguments = ["--port", str(port), "--id", worker, *self.options]
        self.processes[worker] = python("-m", "prefix_middleware.testing.worker", *arguments)
        wait_until(lambda: accepts(port), what=f"worker {worker}")

    def start_gateway(self, env: Mapping[str, str]) -> int:
        """Start one more gateway process and return its number."""
        port, number = free_port(), len(self.gateways)
        settings = {
            "PREFIX_WORKERS": ",".join(f"{w}=http://127.0.0.1:{p}" for w, p in self.workers.items()),
            "PREFIX_REDIS_URL": self.redis.url,
            "PREFIX_UPSTREAM_URL": f"http://127.0.0.1:{self.nginx_port}",
            "UPSTREAM_URL": f"http://127.0.0.1:{self.nginx_port}",
            "PREFIX_SECRET": "a secret of the tests",
            "PREFIX_LOG": "line",
            "PREFIX_HEALTH_SECONDS": "0.2",
            **env,
        }
        uvicorn = ["-m", "uvicorn", "examples.gateway_prefix:app", "--port", str(port), "--no-access-log"]
        self.processes[f"gateway{number}"] = python(*uvicorn, env=settings)
        self.gateways.append(port)
        wait_until(lambda: accepts(port), what=f"gateway {number}")
        ready = [f"worker {worker} is ready" for worker in self.workers]
        wait_until(lambda: all(text in self.log(number) for text in ready), what="workers ready")
        return number

    def stop(self) -> None:
        """End every process."""
        for process in self.processes.values():
            process.stop()


@contextmanager
def stack(
    options: Sequence[str] = (), env: Mapping[str, str] | None = None, gateways: int = 2
) -> Iterator[Stack]:
    """Run everything for the length of a block; `options` go to the workers, `env` to the gateways."""
    with ExitStack() as exits:
        redis = exits.enter_context(redis_server())
        it = Stack(redis, {w: free_port() for w in ("w1", "w2", "w3")}, {}, free_port(), [], options)
        exits.callback(it.stop)
        exits.callback(it.client.close)
        for worker in it.workers:
            it.start_worker(worker)
        workers = tuple(Worker(w, f"http://127.0.0.1:{port}") for w, port in it.workers.items())
        listen = f"127.0.0.1:{it.nginx_port}"
        files = render(Settings(workers=workers), NginxOptions(flavour="classic", listen=listen))
        program = Program(flavour="classic", path=required("nginx"))
        exits.enter_context(running(program, files, it.nginx_port))
        for _ in range(gateways):
            it.start_gateway(env or {})
        wait_until(
            lambda: all("mirror: connected" in it.log(n) for n in range(gateways)), what="mirror connected"
        )
        yield it


def words(count: int, seed: object) -> str:
    """Return text that shares nothing with that of another seed."""
    rng = random.Random(str(seed))
    return " ".join(f"{rng.getrandbits(32):08x}" for _ in range(count))


def conversation(seed: object, size: int) -> list[dict[str, Any]]:
    """Return the first turn of a conversation of about `size` bytes."""
    return [
        {"role": "system", "content": f"You answer briefly. {words(size // 9, seed)}"},
        {"role": "user", "content": f"Question 1 of {seed}?"},
    ]


def follow_up(messages: list[dict[str, Any]], answer: Answer, turn: int) -> list[dict[str, Any]]:
    """Return the next turn: what was said so far, the reply, and another question."""
    reply = answer.json["choices"][0]["message"]["content"]
    question = {"role": "user", "content": f"Question {turn}? {words(40, (json.dumps(messages[-1]), turn))}"}
    return [*messages, {"role": "assistant", "content": reply}, question]
