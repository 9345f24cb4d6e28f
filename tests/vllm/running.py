"""Real vLLM workers without a GPU: tiny models with random weights, each in a process group that is ended by its id."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.services import free_port

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".cache" / "vllm" / "bin" / "python"
MODELS = ROOT / ".cache" / "vllm-models"
MODEL = "tiny"
READY_SECONDS = 600.0  # 25 to 40 on two quiet cores
STOP_SECONDS = 20.0

_FLAGS = "--load-format dummy --enforce-eager --max-model-len 16384 --max-num-seqs 8 --enable-prompt-tokens-details"
_ENV = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # starting costs half as much the second time
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",  # a connection that closes while it is used again fails a test
    "VLLM_NO_USAGE_STATS": "1",
}


class Engine:
    """One vLLM server with its engine process; `url` answers once `wait_ready` has returned."""

    def __init__(self, model: str, *options: str, env: Mapping[str, str] | None = None) -> None:
        self.model, self.options, self._env = model, options, dict(env or {})
        self.port = free_port()
        self._client = httpx.Client(base_url=self.url, timeout=120, trust_env=False)
        self._log = Path(tempfile.mkstemp(prefix=f"vllm-{model}-", suffix=".log")[1])
        self._child = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", *_FLAGS.split()]
        command += ["--model", str(MODELS / self.model), "--served-model-name", MODEL]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *self.options]
        with self._log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env={**os.environ, **_ENV, **self._env},
                start_new_session=True,  # so that its engine process can be ended with it
            )

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def text(self) -> str:
        """Everything it has printed."""
        return self._log.read_text(errors="replace")

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Return once /health answers 200; fail the test with the end of the log when it ended or `seconds` passed."""
        deadline = time.monotonic() + seconds
        while not self._healthy():
            ended = self._child.poll()
            if ended is not None or time.monotonic() > deadline:
                why = f"not ready within {seconds:.0f} s" if ended is None else f"ended with status {ended}"
                self.stop()
                pytest.fail(f"vLLM {self.model} {' '.join(self.options)}: {why}\n{self.text()[-4000:]}")
            time.sleep(0.2)

    def _healthy(self) -> bool:
        try:
            return self.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path: str) -> httpx.Response:
        """Ask for a path."""
        return self._client.get(path)

    def post(self, path: str, body: bytes | Mapping[str, Any]) -> httpx.Response:
        """Send a JSON body: an object, or its bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._client.post(path, content=content, headers={"content-type": "application/json"})

    def figures(self) -> dict[str, float]:
        """Return the unlabelled value of each series of /metrics, summed over its labels."""
        sums: dict[str, float] = {}
        for name, value in re.findall(r"^([a-z_:]+)(?:\{.*\})? (\S+)$", self.get("/metrics").text, re.M):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def kill(self) -> None:
        """End the server and its engine at once, as a crash would."""
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait(STOP_SECONDS)

    def restart(self) -> None:
        """Start again on the same port, with an empty cache."""
        self.kill()
        self._child = self._start()

    def stop(self) -> None:
        """Terminate, then kill whatever is left of the group."""
        self._child.terminate()
        try:
            self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        self.kill()
        self._client.close()

    def forget(self) -> None:
        """Remove the log."""
        self._log.unlink(missing_ok=True)


@contextmanager
def engine(model: str, *options: str, env: Mapping[str, str] | None = None) -> Iterator[Engine]:
    """Run one for the length of a block."""
    it = Engine(model, *options, env=env)
    try:
        it.wait_ready()
        yield it
    finally:
        it.stop()
        it.forget()
