"""Three fake workers, a real nginx in front of them, and the LiteLLM proxy as its users start it."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from prefix_middleware import Settings, Worker
from prefix_middleware.nginx.render import NginxOptions, render
from tests.nginx.running import Program, running
from tests.services import Process, accepts, free_port, required, wait_until
from tests.testing.fakes import Running, worker

FOLDER = Path(__file__).parents[2] / "integrations" / "litellm"
KEY = "sk-Zq8rT2vLw9Xk4NbP7sHd3Fy6"  # LiteLLM refuses one that looks easy
MODEL = "Qwen/Qwen3-32B"
WORKERS = ("w1", "w2", "w3")
LINE = re.compile(
    r"\[PREFIX\] (?P<reason>\w+): (?P<worker>\S+) .*?(?P<m>\d+)/\d+ blocks \(slots=(?P<slots>\d+)"
)


@dataclass
class Fleet:
    """The workers and the nginx in front of them."""

    workers: dict[str, Running]
    port: int

    @property
    def url(self) -> str:
        """Where nginx listens."""
        return f"http://127.0.0.1:{self.port}"

    def seen(self) -> dict[str, list[dict[str, Any]]]:
        """Return the prompts that each worker has seen, oldest first."""
        return {id: it.log() for id, it in self.workers.items()}

    def arrived(self, before: Mapping[str, list[dict[str, Any]]]) -> list[tuple[str, str | None]]:
        """Return the worker of each prompt that is new since, and the header that it came with."""
        new = [(id, log[len(before[id]) :]) for id, log in self.seen().items()]
        return [(id, entry["x_prefix_worker"]) for id, entries in new for entry in entries]


@dataclass
class Gateway:
    """One LiteLLM proxy process."""

    process: Process
    port: int
    fleet: Fleet
    callback: bool = True  # its configuration names the callback

    def post(self, path: str, body: Mapping[str, Any], forged: str, team: str = "") -> httpx.Response:
        """Ask as a client that names a worker of its own choice, in a header and in the body."""
        headers = {"authorization": f"Bearer {KEY}", "X-Prefix-Worker": forged, "X-Team": team}
        given = {"model": "qwen", "max_tokens": 4, "extra_headers": {"x-prefix-worker": forged}, **body}
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.post(url, json=given, headers=headers, timeout=30, trust_env=False)

    def leave(self, body: Mapping[str, Any]) -> None:
        """Begin to read a stream, and go."""
        url, headers = f"http://127.0.0.1:{self.port}/v1/chat/completions", {"authorization": f"Bearer {KEY}"}
        given = {"model": "qwen", "stream": True, **body}
        with httpx.stream("POST", url, json=given, headers=headers, timeout=30, trust_env=False) as answer:
            assert next(answer.iter_lines()).startswith("data: {")

    def lines(self) -> list[dict[str, str]]:
        """Return the routed lines so far, oldest first."""
        return [found.groupdict() for found in LINE.finditer(self.process.text())]


@contextmanager
def fleet(*options: str) -> Iterator[Fleet]:
    """Run the workers and nginx for the length of a block."""
    with ExitStack() as exits:
        model = ("--model", MODEL)
        workers = {id: exits.enter_context(worker("--id", id, *model, *options)) for id in WORKERS}
        it = Fleet(workers, free_port())
        settings = Settings(workers=tuple(Worker(id, running.url) for id, running in workers.items()))
        files = render(settings, NginxOptions(flavour="classic", listen=f"127.0.0.1:{it.port}"))
        program = Program(flavour="classic", path=required("nginx"))
        exits.enter_context(running(program, files, it.port))
        yield it


def configuration(fleet: Fleet, *, callback: bool, forwards: bool) -> str:
    """Return the shipped configuration with two deployments more: one beside nginx, one of another provider."""
    beside = {"model": f"openai/{MODEL}", "api_base": f"{fleet.workers['w1'].url}/v1", "api_key": "none"}
    openai = {"model": f"openai/{MODEL}", "api_base": f"{fleet.url}/v1", "api_key": "none"}
    models = [
        {"model_name": "beside", "litellm_params": beside},
        {"model_name": "qwen-openai", "litellm_params": openai},
    ]
    text = (FOLDER / "config.yaml").read_text()
    assert "\nmodel_list:\n" in text
    assert text.rstrip().splitlines()[-2] == "general_settings:"
    added = "".join(f"  - {json.dumps(model)}\n" for model in models)  # JSON is YAML
    text = text.replace("\nmodel_list:\n", f"\nmodel_list:\n{added}")
    text += (
        f"  forward_client_headers_to_llm_api: {json.dumps(forwards)}\nrouter_settings:\n  num_retries: 0\n"
    )
    return text if callback else re.sub(r"litellm_settings:\n.*\n", "", text)


@contextmanager
def gateway(
    fleet: Fleet, folder: Path, config: str, *, mounted: bool, env: Mapping[str, str] | None = None
) -> Iterator[Gateway]:
    """Run LiteLLM's own command, or its application inside the middleware, for the length of a block."""
    port, path = free_port(), folder / "config.yaml"
    path.write_text(config)
    settings = {
        "UPSTREAM_API_BASE": f"{fleet.url}/v1",
        "LITELLM_MASTER_KEY": KEY,
        "PREFIX_UPSTREAM_URL": fleet.url,
        "PREFIX_WORKERS": ",".join(f"{id}={it.url}" for id, it in fleet.workers.items()),
        "PREFIX_LOG": "line",
        "PREFIX_HEALTH_SECONDS": "0.2",
        **(env or {}),
    }
    command = [str(Path(sys.executable).with_name("litellm")), "--config", str(path), "--host", "127.0.0.1"]
    if mounted:
        settings["CONFIG_FILE_PATH"] = str(path)
        command = [sys.executable, "-m", "uvicorn", "--app-dir", str(FOLDER), "asgi:app"]
    process = Process([*command, "--port", str(port)], settings)
    try:
        wait_until(lambda: accepts(port) or process.returncode is not None, 60, "LiteLLM")
        assert process.returncode is None, process.text()
        yield Gateway(process, port, fleet)
    finally:
        process.stop()
        process.log.unlink(missing_ok=True)
