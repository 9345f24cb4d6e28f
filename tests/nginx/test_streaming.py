"""Tokens pass one by one, and a client that leaves frees the worker."""

import ssl
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import anyio
import httpx
import pytest

from prefix_middleware.nginx.render import Topology
from tests.nginx.running import Fleet, eventually
from tests.nginx.worker import Behaviour
from tests.services import required

PATH = "/v1/chat/completions"
KEY = {"Authorization": "Bearer k"}


async def _arrivals(client: httpx.AsyncClient, headers: dict[str, str]) -> tuple[list[float], httpx.Headers]:
    """Return when each read of one streamed answer arrived, and its headers."""
    async with client.stream("POST", PATH, json={"stream": True}, headers=headers) as answer:
        return [time.monotonic() async for _ in answer.aiter_raw()], answer.headers


@pytest.mark.anyio
@pytest.mark.parametrize("topology", ["a", "b"])
async def test_a_stream_keeps_its_gaps_under_gzip(fleet: Fleet, topology: Topology) -> None:
    """With gzip on for every type in the http block, twenty chunks arrive as spaced as from the worker itself."""
    fleet.workers[0].behaviour = "stream"
    files = fleet.files(topology)
    zipping = files["nginx.conf"].replace("http {", "http {\n    gzip on; gzip_types *; gzip_min_length 1;")
    headers = {"Accept-Encoding": "gzip", **({"X-Prefix-Worker": "w1"} if topology == "a" else KEY)}
    async with (
        fleet.up(topology, {**files, "nginx.conf": zipping}) as client,
        httpx.AsyncClient(base_url=fleet.workers[0].url, trust_env=False) as worker,
    ):
        direct, _ = await _arrivals(worker, headers)
        through, answered = await _arrivals(client, headers)
    assert (answered["x-prefix-served"], answered.get("content-encoding")) == ("w1", None)
    assert len(through) >= 15, through  # a busy machine may join two of the twenty in one read
    widest = [max(later - sooner for sooner, later in pairwise(times)) for times in (direct, through)]
    assert widest[1] < widest[0] + 0.25
    assert through[-1] - through[0] > (direct[-1] - direct[0]) / 2


@pytest.mark.anyio
async def test_a_stream_keeps_its_gaps_over_tls(fleet: Fleet, tmp_path: Path) -> None:
    """Over TLS with HTTP/1.1, where nginx would buffer the whole answer by default, the chunks arrive one by one."""
    fleet.workers[0].behaviour = "stream"
    certificate = _certificate(tmp_path)
    files = fleet.files("a")
    plain = f"listen 127.0.0.1:{fleet.port};"
    tls = plain.replace(";", f" ssl; ssl_certificate {certificate}; ssl_certificate_key {certificate};")
    context = ssl.create_default_context(cafile=certificate)
    async with (
        fleet.up("a", {**files, "prefix.conf": files["prefix.conf"].replace(plain, tls)}),
        httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{fleet.port}", trust_env=False, verify=context
        ) as client,
    ):
        moments, _ = await _arrivals(client, {"X-Prefix-Worker": "w1"})
    assert len(moments) >= 15, moments
    assert moments[-1] - moments[0] > fleet.workers[0].gap_seconds * 10


def _certificate(folder: Path) -> Path:
    """Make a certificate for 127.0.0.1 and return the file that holds it with its key."""
    path = folder / "certificate.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    command = [
        required("openssl"),
        "req",
        "-x509",
        *key,
        "-keyout",
        str(path),
        "-out",
        str(folder / "public.pem"),
        *subject,
    ]
    subprocess.run(command, capture_output=True, check=True, timeout=30)
    path.write_text(path.read_text() + (folder / "public.pem").read_text())
    return path


@pytest.mark.anyio
@pytest.mark.parametrize("topology", ["a", "b"])
@pytest.mark.parametrize("behaviour", ["stream", "hang"])
async def test_a_client_that_leaves_is_seen_by_the_worker(
    fleet: Fleet, topology: Topology, behaviour: Behaviour
) -> None:
    """A client that goes away in mid-stream, or before the first token, ends the request at the worker at once."""
    worker = fleet.workers[0]
    worker.behaviour, worker.chunks = behaviour, 1000
    headers = {"X-Prefix-Worker": "w1"} if topology == "a" else KEY
    async with fleet.up(topology) as client:
        with anyio.move_on_after(0.5):
            async with client.stream("POST", PATH, json={}, headers=headers) as answer:
                async for _ in answer.aiter_raw():
                    pass
        await eventually(lambda: worker.disconnects == 1, "the disconnect at the worker", 5)
    assert fleet.requests == {"w1": 1, "w2": 0, "w3": 0}
