"""Workers behind the stand-in for nginx, and gateways in front of it, as processes on loopback."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.services import Process, accepts, free_port, wait_until
from tests.testing.fakes import Running, proxy, worker

ROOT = Path(__file__).parents[2]
WORKERS = ("w1", "w2", "w3")
CHAT = "/v1/chat/completions"
LINE = re.compile(r"\[PREFIX\] (hit|miss|busy|only): (\S+) .*?(\d+)/\d+ blocks")
KEY = {"authorization": "Bearer sk-alice"}


@dataclass(frozen=True)
class Decided:
    """One `[PREFIX]` line."""

    reason: str
    worker: str
    matched_blocks: int


class Gateway:
    """A gateway process: what a client does with it, and what it has printed."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    def post(self, body: Mapping[str, Any], path: str = CHAT, **headers: str) -> httpx.Response:
        """Ask once."""
        return httpx.post(self.url + path, json=body, headers={**KEY, **headers}, timeout=30, trust_env=False)

    def decisions(self) -> list[Decided]:
        """Return what has been decided, oldest first."""
        return [Decided(r, w, int(m)) for r, w, m in LINE.findall(self.process.text())]


class Stack:
    """Workers, the proxy, and gateways started on demand."""

    def __init__(self, exits: ExitStack) -> None:
        self._exits = exits
        self.workers: dict[str, Running] = {id: exits.enter_context(worker()) for id in WORKERS}
        self.front: Running = exits.enter_context(proxy({id: it.url for id, it in self.workers.items()}))

    def arrivals(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what each worker has seen, as (worker, entry)."""
        return [(id, entry) for id, it in self.workers.items() for entry in it.log()]

    def counts(self) -> Counter[str]:
        """Return how many prompts have reached each worker."""
        return Counter(id for id, _ in self.arrivals())

    def reset(self) -> None:
        """Empty every worker's cache."""
        for it in self.workers.values():
            it.control(reset_cache=True)

    @contextmanager
    def gateway(
        self,
        folder: Path,
        *command: str,
        env: Mapping[str, str] | None = None,
        processes: int = 1,
        ids: Sequence[str] = WORKERS,
    ) -> Iterator[Gateway]:
        """Run `python -m COMMAND --port N` in a folder until the end of the block, all workers ready."""
        port = free_port()
        given = {
            "UPSTREAM_URL": self.front.url,
            "PREFIX_UPSTREAM_URL": self.front.url,
            "PREFIX_WORKERS": ",".join(f"{id}={it.url}" for id, it in self.workers.items()),
            "PREFIX_LOG": "line",
            "PREFIX_HEALTH_SECONDS": "0.2",
            "PYTHONPATH": f"{folder}:{ROOT}",
            **(env or {}),
        }
        process = Process([sys.executable, "-m", *command, "--port", str(port)], given)
        try:
            wait_until(lambda: accepts(port) or process.returncode is not None, 30, f"{command} up")
            assert process.returncode is None, process.text()
            gateway = Gateway(process, port)
            self._wait_ready(gateway, processes, ids)
            yield gateway
        finally:
            process.stop()
            process.log.unlink(missing_ok=True)

    def _wait_ready(self, gateway: Gateway, processes: int, ids: Sequence[str]) -> None:
        """Ask until every process of the gateway has found every worker ready; some start with the first request."""
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}

        def ready() -> bool:
            assert gateway.post(body).status_code == 200, gateway.process.text()
            text = gateway.process.text()
            return all(text.count(f"worker {id} is ready") >= processes for id in ids)

        wait_until(ready, 30, "ready workers")


def prompt(text: str, **fields: Any) -> dict[str, Any]:
    """Return a chat body of about 3 KB that shares nothing with that of another text."""
    return {
        "model": "m",
        "messages": [{"role": "user", "content": f"{text} " * (3000 // (len(text) + 1))}],
        "max_tokens": 2,
        **fields,
    }


def write_app(folder: Path, readme: str, section: str) -> Path:
    """Write the Python of one section of a README as app.py; return the folder."""
    found = re.search(rf"^## {re.escape(section)}\n.*?```python\n(.*?)```", readme, re.DOTALL | re.MULTILINE)
    assert found is not None, section
    (folder / "app.py").write_text(found.group(1))
    return folder


def events(text: str) -> list[Any]:
    """Return the data of a stream of server-sent events."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]
