"""A worker that loses its connections: a real nginx tries the other one, and the conversation stays with that."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from prefix_middleware import Settings, Worker
from prefix_middleware.nginx.render import NginxOptions, render
from tests.integrations.stack import ROOT, Decided, Gateway, Stack, prompt
from tests.nginx.running import Program, running
from tests.services import free_port, required, wait_until

COMMAND = ("uvicorn", "app:app", "--log-level", "warning")


class Line:
    """A TCP way to a worker that, once armed, loses the next request and the connection it came on."""

    def __init__(self, target: int) -> None:
        self.armed = threading.Event()
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for ends in ((near, far, self.armed), (far, near, threading.Event())):
                    threading.Thread(target=_pump, args=ends, daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, armed: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while (data := source.recv(65_536)) and not armed.is_set():
            sink.sendall(data)
    armed.clear()
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextmanager
def nginx(workers: tuple[Worker, ...]) -> Iterator[str]:
    """Run a real nginx in front of workers; yield its URL."""
    port = free_port()
    files = render(Settings(workers=workers), NginxOptions(flavour="classic", listen=f"127.0.0.1:{port}"))
    with running(Program(flavour="classic", path=required("nginx")), files, port):
        yield f"http://127.0.0.1:{port}"


def prompts(text: str) -> Iterator[dict[str, Any]]:
    """Yield prompts that share nothing: sooner or later one is sent to each worker."""
    return (prompt(f"{number} {text}") for number in range(40))


def decided(gateway: Gateway, body: dict[str, Any]) -> Decided:
    """Ask once; return what was decided."""
    seen = len(gateway.decisions())
    assert gateway.post(body).status_code == 200
    wait_until(lambda: len(gateway.decisions()) > seen, what="a line")
    return gateway.decisions()[-1]


@pytest.mark.parametrize("decide", ["ingress", "egress"])
@pytest.mark.parametrize("host", ["fastapi-httpx", "fastapi-openai", "aiohttp-forwarder"])
def test_the_other_worker_serves_and_keeps_the_conversation(stack: Stack, host: str, decide: str) -> None:
    """The record follows X-Prefix-Served, so that the next turn goes to whoever holds the prefix."""
    line = Line(stack.workers["w1"].port)
    workers = Worker("w1", f"http://127.0.0.1:{line.port}"), Worker("w2", stack.workers["w2"].url)
    health = ",".join(f"{id}={stack.workers[id].url}" for id in ("w1", "w2"))  # not by the line
    try:
        with nginx(workers) as url:
            env = {"UPSTREAM_URL": url, "PREFIX_UPSTREAM_URL": url, "PREFIX_WORKERS": health}
            env["PREFIX_DECIDE"] = decide
            with stack.gateway(ROOT / "integrations" / host, *COMMAND, env=env, ids=("w1", "w2")) as gateway:
                line.armed.set()
                before = stack.counts()
                asked = ((body, decided(gateway, body)) for body in prompts(f"{host} {decide}"))
                body, first = next(pair for pair in asked if pair[1].worker == "w1")
                assert set(stack.counts() - before) == {"w2"}
                assert (first.reason, first.worker, line.armed.is_set()) == ("miss", "w1", False)
                second = decided(gateway, body)
                assert (second.reason, second.worker) == ("hit", "w2")
    finally:
        line.close()
