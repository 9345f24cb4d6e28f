"""Real processes for the tests, each on a free loopback port, each stopped by its own pid."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest


def free_port() -> int:
    """Return a loopback TCP port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


def wait_until(condition: Callable[[], object], seconds: float = 10.0, what: str = "condition") -> None:
    """Poll until the condition is true; fail the test when `seconds` have passed."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} not reached within {seconds} s")
        time.sleep(0.01)


def accepts(port: int) -> bool:
    """Tell whether something listens on the loopback port."""
    with socket.socket() as sock:
        sock.settimeout(0.2)
        return sock.connect_ex(("127.0.0.1", port)) == 0


def required(program: str) -> str:
    """Return the path of a program; without it skip, or fail where CI must not skip."""
    path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if path is None:
        message = f"{program} is not installed: apt-get install {program}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


class Process:
    """One child process with its output in a file."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        self.log = log or Path(tempfile.mkstemp(prefix="prefix-test-", suffix=".log")[1])
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, **(env or {})}
            )
        self.pid = self._child.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, None while it runs."""
        return self._child.poll()

    def text(self) -> str:
        """Everything the process has printed."""
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal to exactly this process."""
        self._child.send_signal(number)

    def wait(self, seconds: float = 10.0) -> int:
        """Wait for the end and return the exit status."""
        return self._child.wait(seconds)

    def stop(self) -> None:
        """Terminate, then kill; return once it is gone."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGCONT)
            self._child.terminate()
            try:
                self._child.wait(5)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait(5)


class RedisServer:
    """A real redis-server without persistence that can be frozen, killed and started again empty."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self._program = required("redis-server")
        self._folder = tempfile.mkdtemp(prefix="prefix-redis-")
        self._options = options
        self.process = self._start()

    @property
    def url(self) -> str:
        """URL of database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _start(self) -> Process:
        command = [self._program, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", self._folder]
        process = Process([*command, "--save", "", "--appendonly", "no", *self._options])
        wait_until(lambda: accepts(self.port), what="redis-server")
        return process

    def freeze(self) -> None:
        """Stop it with SIGSTOP: connections stay open and nothing answers."""
        self.process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self.process.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.signal(signal.SIGCONT)
        self.process.signal(signal.SIGKILL)
        self.process.wait()

    def restart_empty(self) -> None:
        """Start a new, empty server on the same port."""
        self.process.stop()
        self.process = self._start()

    def stop(self) -> None:
        """End the server and remove its folder."""
        self.process.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """Run a real redis-server for the length of a block."""
    server = RedisServer(*options)
    try:
        yield server
    finally:
        server.stop()
