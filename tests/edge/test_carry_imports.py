"""Which packages a carrier touches: those that the host imports, when it does, and each class once."""

import subprocess
import sys

import pytest

START = """
import asyncio, sys
from prefix_middleware import PrefixMiddleware, Settings, Worker
import wrapt

async def app(scope, receive, send): pass

async def start(decide="ingress"):
    workers = (Worker("w1", "http://127.0.0.1:1"),)
    settings = Settings(workers=workers, upstream_url="http://127.0.0.1:1", log="line", decide=decide)
    middleware = PrefixMiddleware(app, settings)
    middleware._runtime.ensure_started()
    await middleware._runtime.stop()

def layers(method):
    n = 0
    while isinstance(method, wrapt.FunctionWrapper | wrapt.BoundFunctionWrapper):
        n, method = n + 1, method.__wrapped__
    return n
"""


def printed(script: str) -> str:
    """Run a script behind START in a process of its own; return what it prints."""
    command = [sys.executable, "-W", "error", "-c", START + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_client_is_imported_for_the_host() -> None:
    """Starting the carriers imports none of the clients that the host has not imported."""
    script = """
asyncio.run(start())
print(sorted({"aiohttp", "httpx2", "requests"} & set(sys.modules)))
"""
    assert printed(script) == "[]"


def test_a_client_that_is_imported_later_is_patched_then() -> None:
    """A host that imports its client inside a request is carried as well."""
    script = """
asyncio.run(start())
import aiohttp, httpx, httpx2, requests
methods = aiohttp.ClientRequest.send, requests.adapters.HTTPAdapter.send
transports = [(m.HTTPTransport.handle_request, m.AsyncHTTPTransport.handle_async_request) for m in (httpx, httpx2)]
print([layers(m) for m in (*methods, *transports[0], *transports[1])])
"""
    assert printed(script) == "[1, 1, 1, 1, 1, 1]"


@pytest.mark.parametrize("order", ["alias first", "no alias"])
def test_two_names_of_one_module_are_patched_once(order: str) -> None:
    """Where httpx2 stands in for httpx, its classes have one wrapper of ours, however often a middleware starts."""
    starting = "asyncio.run(start()); asyncio.run(start())"
    alias = "import httpx2; httpx2.alias_httpx()"
    before = alias if order.startswith("alias") else ""
    script = f"""
{starting}
import httpx, httpx2
print(httpx is httpx2, layers(httpx2.HTTPTransport.handle_request), layers(httpx.Response.close))
"""
    command = [sys.executable, "-c", f"{before}\n{START}{script}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"{order.startswith('alias')} 1 1", done.stderr


def test_a_version_without_our_method_is_left_alone() -> None:
    """A class that we do not know is no reason to end the host's import."""
    script = """
import types
sys.modules["aiohttp"] = types.ModuleType("aiohttp")
sys.modules["requests"] = types.ModuleType("requests")
asyncio.run(start())
print("started")
"""
    assert printed(script) == "started"
