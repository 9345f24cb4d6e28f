"""The one line under a real uvicorn process: what an operator sees at start, in the log, and after a fork."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.edge.asgi import CHAT, chat
from tests.edge.logs import figures
from tests.services import Process, accepts, free_port, wait_until

APP = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from prefix_middleware import PrefixMiddleware

async def endpoint(request):
    return PlainTextResponse(request.headers.get("x-prefix-worker", "none"))

app = Starlette(routes=[Route("/v1/chat/completions", endpoint, methods=["POST"])])
app.add_middleware(PrefixMiddleware)
"""
SHOWS_INFO = "import logging\nlogging.basicConfig(level=logging.INFO)\n"
FORKS = """
import asyncio, json, os
from prefix_middleware import PrefixMiddleware, Settings, Worker

async def host(scope, receive, send):
    await receive()
    names.append(dict(scope["headers"]).get(b"x-prefix-worker", b"").decode())

names = []
middleware = PrefixMiddleware(host, Settings(workers=(Worker("w1", "http://127.0.0.1:1"),)))

async def use():
    async def receive():
        return {"type": "http.request", "body": b'{"messages": [{"role": "user", "content": "hi"}]}'}
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    await middleware(scope, receive, None)
    await middleware._runtime.stop()
    line = json.dumps([os.getpid(), names, middleware._runtime.router.on_update.__self__.origin])
    os.write(1, line.encode() + b"\\n")  # in one piece: two processes share the pipe

child = os.fork()
asyncio.run(use())
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@contextmanager
def uvicorn(
    folder: Path, env: Mapping[str, str], *options: str, code: str = APP
) -> Iterator[tuple[Process, int]]:
    """Run an application in a process of its own until the block ends."""
    (folder / "gateway.py").write_text(code)
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "gateway:app",
        "--app-dir",
        str(folder),
        "--port",
        str(port),
        *options,
    ]
    process = Process(command, env, folder / "log")
    try:
        wait_until(lambda: accepts(port) or process.returncode is not None, seconds=60, what="uvicorn")
        yield process, port
    finally:
        process.stop()


def post(port: int) -> str:
    return httpx.post(f"http://127.0.0.1:{port}{CHAT}", content=chat(), timeout=30, trust_env=False).text


def ours(process: Process) -> list[str]:
    return [line for line in process.text().splitlines() if "PREFIX" in line or "prefix-middleware" in line]


def one_worker(port: int, **more: str) -> dict[str, str]:
    """Return an environment with one worker, which nobody has asked yet when the first request comes."""
    return {"PREFIX_WORKERS": f"w1=http://127.0.0.1:{port}", "PREFIX_HEALTH_SECONDS": "60", **more}


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("PREFIX_POLICY", "fastest", "prefix-middleware: policy='fastest': accepted is one of "),
        (
            "PREFIX_WORKERS",
            "http://10.0.0.1:8000",
            "prefix-middleware: workers='http://10.0.0.1:8000': accepted is id=url",
        ),
    ],
)
def test_a_bad_variable_ends_the_start_with_one_readable_line(
    tmp_path: Path, variable: str, value: str, line: str
) -> None:
    """uvicorn exits at start; the log has no traceback."""
    with uvicorn(tmp_path, {variable: value}) as (process, _):
        assert process.wait(60) != 0
    [shown] = ours(process)
    assert (line in shown, "Traceback" in process.text()) == (True, False)


def test_without_lifespan_a_bad_variable_is_one_error_and_requests_pass(tmp_path: Path) -> None:
    """`--lifespan off` has nobody who could refuse the start."""
    with uvicorn(tmp_path, {"PREFIX_POLICY": "fastest"}, "--lifespan", "off") as (process, port):
        assert [post(port), post(port)] == ["none", "none"]
        [line] = ours(process)
    assert (line.startswith("[PREFIX] error: policy='fastest'"), line.endswith("requests pass unrouted")) == (
        True,
        True,
    )


def test_with_log_line_a_plain_uvicorn_application_shows_the_decision(
    tmp_path: Path, silent_port: int
) -> None:
    """PREFIX_LOG=line is enough to see the lines."""
    with uvicorn(tmp_path, one_worker(silent_port, PREFIX_LOG="line")) as (process, port):
        answers = [post(port), post(port)]
        lines = ours(process)
    assert (answers, [figures(line)["reason"] for line in lines]) == (["w1", "w1"], ["only", "only"])


def test_without_a_log_setting_one_warning_says_how_to_see_the_lines(
    tmp_path: Path, silent_port: int
) -> None:
    """A plain uvicorn application drops INFO; that is said once, not per request, and the requests are routed."""
    with uvicorn(tmp_path, one_worker(silent_port)) as (process, port):
        answers = [post(port), post(port)]
        [line] = ours(process)
    assert (answers, "PREFIX_LOG=line" in line) == (["w1", "w1"], True)


def test_a_host_that_shows_info_gets_the_lines_and_no_warning(tmp_path: Path, silent_port: int) -> None:
    """Logging that the host has configured is used as it is."""
    with uvicorn(tmp_path, one_worker(silent_port), code=SHOWS_INFO + APP) as (process, port):
        post(port)
        [line] = ours(process)
    assert line.startswith("INFO:prefix_middleware:[PREFIX] only: w1 keeps 0/0 blocks")


def test_lifespan_off_starts_with_the_first_request_and_ends_cleanly(
    tmp_path: Path, silent_port: int
) -> None:
    """Without lifespan the tasks start lazily; the process ends on SIGTERM without complaint."""
    with uvicorn(tmp_path, one_worker(silent_port, PREFIX_LOG="line"), "--lifespan", "off") as (
        process,
        port,
    ):
        assert post(port) == "w1"
        process.stop()
        assert ("Traceback" in process.text(), "never" in process.text()) == (False, False)


def test_a_fork_after_construction_works_in_both_processes() -> None:
    """A preloaded application is forked after it was built: both halves route, under different origins."""
    output = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True
    )
    (first, first_names, one), (second, second_names, other) = map(json.loads, output.stdout.splitlines())
    assert (first_names, second_names, first != second, one != other) == (["w1"], ["w1"], True, True)
    assert {int(origin.split("-")[-2]) for origin in (one, other)} == {first, second}
    assert os.getpid() not in (first, second)
