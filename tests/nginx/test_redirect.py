"""Topology b: nginx in front of a gateway that hands the original request over with X-Accel-Redirect."""

import hashlib
import os
from collections.abc import AsyncIterator

import pytest

from tests.nginx.running import Fleet

PATH = "/v1/chat/completions?x=1&y=%20z"
KEY = {"Authorization": "Bearer k", "Cookie": "session=1"}


@pytest.mark.anyio
@pytest.mark.parametrize("size", [2, 300_000, 5 * 1024 * 1024])
@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_the_worker_gets_the_original_request(fleet: Fleet, size: int, method: str) -> None:
    """Method, path, query and body survive the redirect, in memory or in a file; the client's key does not."""
    body = os.urandom(size)
    fleet.gateway.choice = "w3"
    async with fleet.up("b") as client:
        answer = await client.request(method, PATH, content=body, headers=KEY)
    [seen] = fleet.workers[2].seen
    assert (seen.method, seen.target, seen.sha256) == (method, PATH, hashlib.sha256(body).hexdigest())
    assert fleet.gateway.seen[0].sha256 == seen.sha256
    assert not seen.headers.keys() & {"authorization", "cookie", "x-prefix-worker", "x-prefix-accel"}
    ours = {name: value for name, value in answer.headers.multi_items() if name.startswith("x-")}
    assert ours.pop("x-request-id") == seen.headers["x-request-id"]
    assert (answer.status_code, answer.text) == (200, "w3")
    assert ours == {"x-prefix-served": "w3", "x-billing-id": "bill-1"}


@pytest.mark.anyio
async def test_a_chunked_upload_survives_the_redirect(fleet: Fleet) -> None:
    """A body without a length arrives whole too."""
    parts = [os.urandom(100_000) for _ in range(30)]

    async def upload() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    async with fleet.up("b") as client:
        answer = await client.post(PATH, content=upload(), headers=KEY)
    assert (answer.status_code, answer.text) == (200, "w1")
    assert [seen.sha256 for seen in fleet.workers[0].seen] == [hashlib.sha256(b"".join(parts)).hexdigest()]


@pytest.mark.anyio
async def test_the_gateways_choice_alone_decides(fleet: Fleet) -> None:
    """A client that names a worker, or another place to redirect to, is overruled by the gateway's choice."""
    fleet.gateway.choice = "w2"
    named = {"X-Prefix-Worker": "w1", "X-Prefix-Accel": "@elsewhere", "X-Accel-Redirect": "/secret"}
    async with fleet.up("b") as client:
        answers = [await client.post(PATH, json={}, headers={**KEY, **named}) for _ in range(4)]
    assert [answer.text for answer in answers] == ["w2"] * 4
    told = [
        (seen.headers.get("x-prefix-worker"), seen.headers["x-prefix-accel"]) for seen in fleet.gateway.seen
    ]
    assert told == [(None, "@prefix_worker")] * 4


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/@prefix_worker", "/%40prefix_worker", "/prefix_worker"])
async def test_a_client_cannot_reach_the_workers_without_the_gateway(fleet: Fleet, path: str) -> None:
    """The named location has no path: every request meets the gateway's own check first."""
    async with fleet.up("b") as client:
        answer = await client.post(path, json={}, headers={"X-Prefix-Worker": "w1"})
    assert (answer.status_code, answer.text) == (401, "no key")
    assert fleet.requests == {"w1": 0, "w2": 0, "w3": 0}


@pytest.mark.anyio
async def test_the_gateways_own_answer_passes_unchanged(fleet: Fleet) -> None:
    """A 401 keeps its status, body and headers, and is asked for once."""
    async with fleet.up("b") as client:
        answer = await client.post(PATH, json={})
    said = {
        name: value for name, value in answer.headers.items() if name not in ("server", "date", "connection")
    }
    assert (answer.status_code, answer.text) == (401, "no key")
    assert said == {"content-length": "6", "retry-after": "7", "x-reason": "no key"}
    assert len(fleet.gateway.seen) == 1


@pytest.mark.anyio
async def test_a_failing_worker_is_replaced_once_after_the_redirect(fleet: Fleet) -> None:
    """A 503 moves the 5 MB request to one other worker; the gateway, with its billing, is asked once."""
    body = os.urandom(5 * 1024 * 1024)
    fleet.workers[0].status = 503
    async with fleet.up("b") as client:
        answer = await client.post(PATH, content=body, headers=KEY)
    assert (answer.status_code, answer.headers["x-prefix-served"]) == (200, answer.text)
    assert answer.text in {"w2", "w3"}
    assert [seen.sha256 for worker in fleet.workers[1:] for seen in worker.seen] == [
        hashlib.sha256(body).hexdigest()
    ]
    assert (len(fleet.gateway.seen), fleet.requests["w1"]) == (1, 1)


@pytest.mark.anyio
async def test_an_unknown_choice_goes_to_the_pool(fleet: Fleet) -> None:
    """A gateway that names a worker nginx does not know, or an address, is served by a worker of the list."""
    fleet.gateway.choice = f"127.0.0.1:{fleet.gateway.port}"
    async with fleet.up("b") as client:
        answers = [await client.post(PATH, json={}, headers=KEY) for _ in range(6)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) > 1
    assert len(fleet.gateway.seen) == 6
