"""The command as a user runs it, and the fleet that it looks at: real workers, real Redis, a gateway in this process."""

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

from anyio import to_thread
from typer.testing import CliRunner

from prefix_middleware import Settings, Worker
from prefix_middleware.cli.app import app
from prefix_middleware.core.blocks import HashedPrompt, Hasher
from prefix_middleware.core.canonical import CanonicalPrompt, canonical_prompt
from prefix_middleware.core.reservation import Reservation
from prefix_middleware.runtime import Runtime
from tests.mirror.peer import until, until_length
from tests.services import RedisServer, free_port
from tests.testing.fakes import Running, worker

COMMAND = [sys.executable, "-c", "from prefix_middleware.cli import main; main()"]
SECRET = "a secret of the tests"
DEMO = [  # what the demonstration prints
    "starting 3 workers, Redis, nginx and 2 gateways ...",
    "[PREFIX] miss: b86f20c4 starts 0/37 blocks (slots=0 min=0 slack=0, ~4843 tokens)",
    "[PREFIX] hit: b86f20c4 keeps 37/40 blocks (slots=0 min=0 slack=14, ~5131 tokens)",
    "[PREFIX] hit: b86f20c4 keeps 40/42 blocks (slots=0 min=0 slack=15, ~5420 tokens)",
    "[PREFIX] hit: b86f20c4 keeps 42/44 blocks (slots=0 min=0 slack=16, ~5708 tokens)",
    "[PREFIX] hit: b86f20c4 keeps 44/46 blocks (slots=0 min=0 slack=16, ~5996 tokens)",
]


@dataclass(frozen=True)
class Done:
    """What a run of the command left."""

    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[str]:
        """Lines of stdout, each with single spaces; empty ones left out."""
        return [" ".join(line.split()) for line in self.out.splitlines() if line.strip()]

    @property
    def json(self) -> dict[str, Any]:
        """The document on stdout."""
        return cast(dict[str, Any], json.loads(self.out))


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment without settings of the surroundings."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PREFIX_")} | dict(env or {})


def run(*arguments: str, env: Mapping[str, str] | None = None, stdin: str = "") -> Done:
    """Run the command in this process, to its end."""
    unset = {name: None for name in os.environ if name.startswith("PREFIX_")}
    done = CliRunner().invoke(app, list(arguments), input=stdin, env={**unset, **(env or {})})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


def process(*arguments: str, env: Mapping[str, str] | None = None, stdin: str = "") -> Done:
    """Run the command as a process, to its end."""
    done = subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=60, env=environment(env)
    )
    return Done(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Workers:
    """Two real workers and a third that nobody listens for."""

    running: Sequence[Running]
    ids: tuple[Worker, ...]

    @property
    def env(self) -> dict[str, str]:
        """PREFIX_WORKERS and the secret."""
        listed = ",".join(f"{worker.id}={worker.url}" for worker in self.ids)
        return {"PREFIX_WORKERS": listed, "PREFIX_SECRET": SECRET}


@contextmanager
def two_workers() -> Iterator[Workers]:
    """Run w1 and w2; w3 refuses connections."""
    with worker("--id", "w1") as one, worker("--id", "w2") as two:
        urls = (one.url, two.url, f"http://127.0.0.1:{free_port()}")
        yield Workers((one, two), tuple(Worker(f"w{i}", url) for i, url in enumerate(urls, 1)))


@asynccontextmanager
async def gateway(workers: Workers, redis: RedisServer, **options: Any) -> AsyncIterator[Runtime]:
    """Run all of a gateway but its HTTP side in this process: polls, mirror, router."""
    settings = Settings(workers=workers.ids, redis_url=redis.url, **{"secret": SECRET, **options})
    runtime = Runtime(settings)
    runtime.ensure_started()
    try:
        counts = runtime.telemetry.counts
        await until(lambda: counts["mirror_connected"] and counts["worker_ready"] == len(workers.ids))
        yield runtime
    finally:
        await runtime.stop()


def hashed(body: bytes, secret: str = SECRET) -> HashedPrompt:
    """Return a chat body as the index sees it."""
    prompt = canonical_prompt("chat", body)
    assert isinstance(prompt, CanonicalPrompt)
    return Hasher(secret, Settings().window_bytes).hash(prompt)


async def answering(runtime: Runtime, prompt: HashedPrompt, redis: RedisServer) -> Reservation:
    """Route a prompt whose answer has started and goes on; return once Redis has the record."""
    reservation = runtime.router.route(prompt, time.monotonic(), 0.0)
    assert isinstance(reservation, Reservation)
    runtime.router.start(reservation, time.monotonic())
    await until_length(redis.url, b"{prefix:default}:decisions", 1)
    return reservation


async def looked(*arguments: str, env: Mapping[str, str], stdin: str = "") -> Done:
    """Run the command as a process while the gateway of this process goes on."""
    return await to_thread.run_sync(lambda: process(*arguments, env=env, stdin=stdin))
