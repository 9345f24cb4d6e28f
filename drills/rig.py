"""The processes of a drill: fake workers, redis-server, nginx on files that the command renders, and gateways."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from redis import Redis

from drills.link import SlowLink, slow_link
from prefix_middleware.demo.processes import Child, StartError, free_port, stop

ROOT: Final = Path(__file__).parents[1]
WORKER_IDS: Final = ("w1", "w2", "w3")
PASSWORD: Final = "the right one"
START_SECONDS: Final = 60.0  # four processes at once, on a machine that has other things to do
_COMMAND: Final = [sys.executable, "-c", "from prefix_middleware.cli import main; main()"]
QUICK_WORKER: Final = (
    "prefix_middleware.testing.worker", "--tokens-per-second", "200000", "--ms-per-token", "5"
)  # fmt: skip
_WAIT_SECONDS: Final = 30.0


class Rig:
    """Everything that runs; each process is ended by its own pid, whatever happens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: dict[str, Child] = {}
        self.ports = {worker: free_port() for worker in WORKER_IDS}
        self.redis_port, self.nginx_port = free_port(), free_port()
        self.gateways: list[int] = []  # ports
        self.processes = 0  # of all gateways
        self.seats = folder / "seats"
        self.seats.mkdir()
        self.link: SlowLink | None = None
        self.redis_options: tuple[str, ...] = ()
        self.worker: tuple[str, ...] = QUICK_WORKER
        self.env: dict[str, str] = {}

    def start(self, name: str, command: Sequence[str], port: int, env: dict[str, str] | None = None) -> Child:
        """Start a process; it is ended with the rig."""
        self._keep_log(name)
        self.children[name] = Child(
            name, command, port, self.folder, {"PYTHONPATH": str(ROOT), **(env or self.env)}
        )
        return self.children[name]

    def _keep_log(self, name: str) -> None:
        log = self.folder / f"{name}.log"
        if log.exists():
            log.rename(self.folder / f"{name}.{time.monotonic_ns()}.log")

    def start_worker(self, worker: str) -> Child:
        """Start, or start again, a worker on its port."""
        where = ["--port", str(self.ports[worker]), "--id", worker]
        return self.start(worker, [sys.executable, "-m", *self.worker, *where], self.ports[worker])

    def start_redis(self) -> Child:
        """Start, or start again, redis-server; it listens when this returns."""
        options = ["--bind", "127.0.0.1", "--port", str(self.redis_port), "--dir", str(self.folder)]
        program = _program("redis-server")
        server = self.start("redis", [program, *options, "--save", "", *self.redis_options], self.redis_port)
        server.wait_ready(START_SECONDS)
        return server

    def redis(self) -> "Redis":
        """Return a client of redis-server, past the slow link."""
        password = PASSWORD if "--requirepass" in self.redis_options else None
        return Redis(port=self.redis_port, password=password, socket_timeout=5)

    def start_nginx(self) -> Child:
        """Start nginx on the files that `prefix-middleware nginx` renders."""
        out = self.folder / "nginx"
        arguments = ["nginx", "--out", str(out), "--listen", f"127.0.0.1:{self.nginx_port}"]
        subprocess.run([*_COMMAND, *arguments], env=self._env(), check=True, capture_output=True, timeout=60)
        out.chmod(0o755)  # nginx started by root serves as another user
        where = ["-p", str(out), "-c", "nginx.conf", "-e", "stderr", "-g", "daemon off;"]
        return self.start("nginx", [_program("nginx"), *where], self.nginx_port)

    def set_env(self) -> None:
        """Write the settings that gateways and the command read; call it once the ports are known."""
        upstream = f"http://127.0.0.1:{self.nginx_port}"
        secret = f":{PASSWORD.replace(' ', '%20')}@" if "--requirepass" in self.redis_options else ""
        port = self.link.port if self.link is not None else self.redis_port
        self.env = {
            "PREFIX_WORKERS": ",".join(f"{w}=http://127.0.0.1:{p}" for w, p in self.ports.items()),
            "PREFIX_REDIS_URL": f"redis://{secret}127.0.0.1:{port}/0",
            "PREFIX_UPSTREAM_URL": upstream,
            "PREFIX_SECRET": "a secret of the drills",
            "PREFIX_LOG": "line",
            "DRILL_UPSTREAM_URL": upstream,
            "DRILL_SEATS": str(self.seats),
        }

    def _env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), **self.env}

    def start_gateway(self, number: int) -> Child:
        """Start, or start again, a gateway of one process."""
        if number == len(self.gateways):
            self.gateways.append(free_port())
            self.processes += 1
        server = ["-m", "uvicorn", "drills.gateway:app", "--no-access-log", "--timeout-keep-alive", "600"]
        port = self.gateways[number]
        return self.start(f"gateway{number}", [sys.executable, *server, "--port", str(port)], port)

    def start_server(self, name: str, arguments: Sequence[str], port: int, processes: int) -> Child:
        """Start a server of several processes, `arguments` for Python, as the only gateway."""
        self.gateways, self.processes = [port], processes
        return self.start(name, [sys.executable, *arguments], port)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to one process."""
        os.kill(self.children[name].pid, number)

    def kill(self, name: str) -> float:
        """Kill a process with SIGKILL and return when, on the monotonic clock."""
        at = time.monotonic()
        self.signal(name, signal.SIGKILL)
        self.children[name].join()
        return at

    def end(self, name: str) -> None:
        """Let a process end by itself on SIGTERM."""
        stop([self.children[name]])

    def control(self, worker: str, **wish: Any) -> None:
        """Tell a worker how to behave: see `prefix_middleware.testing.vllm`."""
        url = f"http://127.0.0.1:{self.ports[worker]}/__control"
        httpx.post(url, json=wish, trust_env=False).raise_for_status()

    def fleet_seen(self) -> dict[str, Any]:
        """Return what `prefix-middleware workers --json` prints."""
        done = subprocess.run(
            [*_COMMAND, "workers", "--json", "--seconds", "3"],
            env=self._env(), capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen

    def log(self, name: str) -> str:
        """Return what a process, started last under this name, has printed."""
        return self.children[name].text()

    def close(self) -> None:
        """End everything."""
        for child in self.children.values():
            try:
                os.kill(child.pid, signal.SIGCONT)  # a frozen process would not hear SIGTERM
            except ProcessLookupError:
                pass
        stop(list(self.children.values())[::-1])


@contextmanager
def rig(
    *,
    gateways: int = 2,
    redis: Sequence[str] = (),
    worker: Sequence[str] = QUICK_WORKER,
    link: bool = False,
) -> Iterator[Rig]:
    """Run workers (a module and its options), Redis, nginx and gateways for the length of a block; raises StartError."""
    folder = Path(tempfile.mkdtemp(prefix="prefix-drill-"))
    folder.chmod(0o755)
    it = Rig(folder)
    it.redis_options, it.worker = tuple(redis), tuple(worker)
    with ExitStack() as exits:
        exits.callback(shutil.rmtree, folder, ignore_errors=True)
        exits.callback(it.close)
        if link:
            it.link = exits.enter_context(slow_link(it.redis_port))
        it.set_env()
        for worker in WORKER_IDS:
            it.start_worker(worker)
        it.start_redis()
        it.start_nginx()
        for number in range(gateways):
            it.start_gateway(number)
        for child in it.children.values():
            child.wait_ready(START_SECONDS)
        yield it


def wait_until(condition: Callable[[], object], what: str, seconds: float = _WAIT_SECONDS) -> float:
    """Poll until the condition is true and return how long that took in seconds; raises StartError."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise StartError(f"{what}: not within {seconds:g} s")
        time.sleep(0.02)
    return time.monotonic() - began


def _program(name: str) -> str:
    path = shutil.which(
        name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    )
    if path is None:
        raise StartError(f"{name} is not installed")
    return path
