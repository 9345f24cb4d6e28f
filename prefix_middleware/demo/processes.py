"""Child processes on loopback ports: started, waited for, and ended one by one by their own pid."""

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 3.0
_TAIL_LINES: Final = 12


class StartError(Exception):
    """Raised when a process does not come up; the message has the reason and the end of its log."""


def free_port() -> int:
    """Return a loopback TCP port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


class Child:
    """One process that will listen on `port`; what it prints is in `log`."""

    def __init__(
        self, name: str, command: Sequence[str], port: int, folder: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.port = name, port
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as output:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=_environment(env or {}),
                    start_new_session=True,  # Ctrl-C is ours: the children end in our order
                )
            except OSError as error:
                raise StartError(f"{name} does not start: {error}") from error

    @property
    def url(self) -> str:
        """Base URL of the process."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def text(self) -> str:
        """Return everything it has printed."""
        return self.log.read_text(errors="replace")

    def wait_ready(self, seconds: float = _START_SECONDS) -> None:
        """Return once it accepts connections; raises StartError after `seconds`."""
        deadline = time.monotonic() + seconds
        while not _accepts(self.port):
            status = self._process.poll()
            if status is not None:
                raise StartError(f"{self.name} ended with status {status}\n{self._tail()}")
            if time.monotonic() > deadline:
                raise StartError(f"{self.name} does not listen after {seconds:.0f} s\n{self._tail()}")
            time.sleep(0.03)

    def _tail(self) -> str:
        return "\n".join(f"  {line}" for line in self.text().splitlines()[-_TAIL_LINES:])

    def terminate(self) -> None:
        """Ask it to end."""
        if self._process.poll() is None:
            self._process.terminate()

    def join(self) -> None:
        """Wait until it is gone, and kill it when it takes too long."""
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def stop(children: Sequence[Child]) -> None:
    """End the processes side by side; return once all are gone."""
    for child in children:
        child.terminate()
    for child in children:
        child.join()


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFIX_")}
    return {**kept, **extra}


def _accepts(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(0.2)
        return sock.connect_ex(("127.0.0.1", port)) == 0
