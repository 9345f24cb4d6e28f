"""Topology a: which worker a header value leads to, and what nginx says about it."""

import hashlib
import json
import socket

import httpx
import pytest

from tests.nginx.running import Fleet, eventually
from tests.nginx.worker import FakeWorker, serving
from tests.services import free_port

PATH = "/v1/chat/completions"
POOL = {"w1", "w2", "w3"}
Headers = list[tuple[str, str]]


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


async def _served(client: httpx.AsyncClient, headers: Headers, times: int = 6) -> list[str]:
    answers = [await client.post(PATH, json={"n": n}, headers=headers) for n in range(times)]
    assert [answer.status_code for answer in answers] == [200] * times
    assert [answer.headers["x-prefix-served"] for answer in answers] == [answer.text for answer in answers]
    return [answer.text for answer in answers]


@pytest.mark.anyio
async def test_each_id_leads_to_its_own_worker(fleet: Fleet) -> None:
    """A known id is always served by that worker, under any spelling of the header's name."""
    async with fleet.up("a") as client:
        for worker_id in ("w1", "w2", "w3"):
            for name in ("X-Prefix-Worker", "x-prefix-worker", "X-PREFIX-WORKER"):
                assert await _served(client, [(name, worker_id)]) == [worker_id] * 6
    assert fleet.requests == {"w1": 18, "w2": 18, "w3": 18}


@pytest.mark.anyio
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("X-Prefix-Worker", "")],
        [("X-Prefix-Worker", "w9")],
        [("X-Prefix-Worker", "w1, w2")],
        [("X-Prefix-Worker", "prefix_worker_w1")],
        [("X-Prefix-Worker", "default")],
        [("x_prefix_worker", "w1")],
    ],
    ids=["missing", "empty", "unknown", "list", "group", "keyword", "underscores"],
)
async def test_anything_but_a_known_id_goes_to_the_pool(fleet: Fleet, headers: Headers) -> None:
    """Without a usable id the requests are spread over the workers, and each is served."""
    async with fleet.up("a") as client:
        served = await _served(client, headers, times=9)
    assert len(set(served)) > 1
    assert set(served) <= POOL


@pytest.mark.anyio
async def test_a_header_sent_twice_still_leads_to_a_worker(fleet: Fleet) -> None:
    """Old nginx takes the first value, new nginx the pool; both answer from a worker of the list."""
    async with fleet.up("a") as client:
        served = await _served(client, [("X-Prefix-Worker", "w2"), ("X-Prefix-Worker", "w3")])
    assert set(served) <= POOL


@pytest.mark.anyio
async def test_a_header_never_becomes_an_address(fleet: Fleet) -> None:
    """A value that is the address of a live server reaches no connection there."""
    victim = FakeWorker("victim")
    forms = [f"127.0.0.1:{victim.port}", f"http://127.0.0.1:{victim.port}/", f"w1@127.0.0.1:{victim.port}"]
    async with serving(victim), fleet.up("a") as client:
        for form in forms:
            for name in ("X-Prefix-Worker", "x_prefix_worker"):
                assert set(await _served(client, [(name, form)], times=2)) <= POOL
            await _served(client, [("X-Prefix-Worker", "w1"), ("X-Prefix-Worker", form)], times=2)
    assert victim.connections == 0


@pytest.mark.anyio
async def test_the_worker_sees_the_request_without_our_header(fleet: Fleet) -> None:
    """Method, path, query and body arrive unchanged; what steers nginx or vLLM from outside does not."""
    body = b'{"prompt": "hello"}'
    outside = {"X-Prefix-Worker": "w2", "x_prefix_worker": "w1", "X-Prefix-Accel": "@x"}
    steering = {"X-data-parallel-rank": "3", "X-Vllm-Priority": "-9", "Authorization": "Bearer k"}
    async with fleet.up("a") as client:
        url = "/v1/completions?x=1&y=%20z"
        await client.post(url, content=body, headers={**outside, **steering, "X-Request-Id": "request-1"})
    [seen] = fleet.workers[1].seen
    assert (seen.method, seen.target, seen.sha256) == ("POST", url, hashlib.sha256(body).hexdigest())
    assert {k: v for k, v in seen.headers.items() if k.startswith(("x-", "x_", "auth", "connection"))} == {
        "authorization": "Bearer k",
        "x-request-id": "request-1",
    }


@pytest.mark.anyio
async def test_a_worker_cannot_say_who_served_nor_redirect(fleet: Fleet) -> None:
    """The worker's own X-Prefix-Served, routing header and X-Accel-Redirect have no effect."""
    fleet.workers[0].headers = [("X-Accel-Redirect", "@prefix_worker"), ("X-Accel-Redirect", "/secret")]
    async with fleet.up("a") as client:
        answer = await client.post(PATH, json={}, headers={"X-Prefix-Worker": "w1"})
    ours = {name: value for name, value in answer.headers.multi_items() if name.startswith("x-")}
    assert (answer.status_code, answer.text, ours) == (200, "w1", {"x-prefix-served": "w1"})
    assert fleet.requests == {"w1": 1, "w2": 0, "w3": 0}


@pytest.mark.anyio
async def test_workers_that_differ_only_in_address_are_told_apart(fleet: Fleet) -> None:
    """One port on several addresses, IPv6 among them: each answer names the worker that gave it."""
    port = free_port()
    hosts = ["127.0.0.1", "127.0.0.2", *(["::1"] if _has_ipv6() else [])]
    fleet.workers = [FakeWorker(f"w{n}", host=host, port=port) for n, host in enumerate(hosts, 1)]
    async with fleet.up("a") as client:
        for worker in fleet.workers:
            assert await _served(client, [("X-Prefix-Worker", worker.name)]) == [worker.name] * 6


@pytest.mark.anyio
async def test_connections_to_the_workers_are_kept(fleet: Fleet) -> None:
    """A hundred requests open a few connections: at most one per worker and nginx process."""
    async with fleet.up("a") as client:
        for number in range(100):
            await client.post(PATH, json={}, headers={"X-Prefix-Worker": f"w{number % 3 + 1}"})
    assert sum(fleet.requests.values()) == 100
    assert (
        sum(worker.connections for worker in fleet.workers) <= 3 * 4
    )  # worker_processes auto: small machines


@pytest.mark.anyio
async def test_the_access_log_says_who_was_wanted_and_who_served(fleet: Fleet) -> None:
    """Each line is JSON with the wanted id, the served one and every address tried."""
    fleet.workers[0].status = 503
    headers = {"X-Prefix-Worker": "w1", "X-Request-Id": "request-1"}
    async with fleet.up("a") as client:
        served = (await client.post(PATH, json={}, headers=headers)).text
        await eventually((fleet.folder / "access.log").read_text, "a line in the access log")
        line = json.loads((fleet.folder / "access.log").read_text())
    ports = {worker.name: worker.port for worker in fleet.workers}
    assert {
        name: line[name] for name in ("rid", "status", "complete", "want", "served", "up", "up_status")
    } == {
        "rid": "request-1",
        "status": 200,
        "complete": "OK",
        "want": "w1",
        "served": served,
        "up": f"127.0.0.1:{ports['w1']}, 127.0.0.1:{ports[served]}",
        "up_status": "503, 200",
    }
