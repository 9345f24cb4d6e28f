"""What a failing worker costs: one other worker, once, before the first byte, with the whole body; otherwise nothing."""

import hashlib
import os

import httpx
import pytest

from tests.nginx.running import Fleet
from tests.nginx.worker import Behaviour

PATH = "/v1/chat/completions"
WANT_W1 = {"X-Prefix-Worker": "w1"}
BODY = os.urandom(5 * 1024 * 1024)  # far over client_body_buffer_size, so it is replayed from a file
SHA256 = hashlib.sha256(BODY).hexdigest()


def _others_sha256(fleet: Fleet) -> list[str]:
    return [seen.sha256 for worker in fleet.workers[1:] for seen in worker.seen]


@pytest.mark.anyio
async def test_a_dead_worker_is_replaced_by_one_other_with_the_whole_body(fleet: Fleet) -> None:
    """A refused connection moves the request to one other worker, 5 MB and all, and the answer names it."""
    async with fleet.up("a") as client:
        await fleet.workers[0].stop()
        answer = await client.post(PATH, content=BODY, headers=WANT_W1)
    assert (answer.status_code, answer.headers["x-prefix-served"]) == (200, answer.text)
    assert answer.text in {"w2", "w3"}
    assert _others_sha256(fleet) == [SHA256]


@pytest.mark.anyio
@pytest.mark.parametrize(("behaviour", "status"), [("answer", 503), ("answer", 502), ("close", 0)])
async def test_a_failure_before_the_first_byte_is_replayed_once(
    fleet: Fleet, behaviour: Behaviour, status: int
) -> None:
    """502, 503 and a connection closed without an answer cost one request at the failed worker and one elsewhere."""
    fleet.workers[0].behaviour, fleet.workers[0].status = behaviour, status
    async with fleet.up("a") as client:
        answer = await client.post(PATH, content=BODY, headers=WANT_W1)
    assert (answer.status_code, answer.headers["x-prefix-served"]) == (200, answer.text)
    assert fleet.requests["w1"] == 1
    assert _others_sha256(fleet) == [SHA256]


@pytest.mark.anyio
async def test_two_failures_in_a_row_reach_the_client(fleet: Fleet) -> None:
    """Where every worker answers 503, two are asked and the second one's answer is passed on, with its name."""
    for worker in fleet.workers:
        worker.status = 503
    async with fleet.up("a") as client:
        answer = await client.post(PATH, json={}, headers=WANT_W1)
    assert (answer.status_code, answer.headers["x-prefix-served"]) == (503, answer.text)
    assert answer.text in {"w2", "w3"}
    assert fleet.requests["w1"] == 1
    assert sum(fleet.requests.values()) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("status", [400, 404, 429, 500])
async def test_a_workers_own_error_is_passed_on(fleet: Fleet, status: int) -> None:
    """An answer that another worker would repeat, or that may have killed an engine, is not sent again."""
    fleet.workers[0].status = status
    fleet.workers[0].headers = [("Retry-After", "3")]
    async with fleet.up("a") as client:
        answer = await client.post(PATH, json={}, headers=WANT_W1)
    said = (answer.status_code, answer.text, answer.headers["retry-after"], answer.headers["x-prefix-served"])
    assert said == (status, "w1", "3", "w1")
    assert fleet.requests == {"w1": 1, "w2": 0, "w3": 0}


@pytest.mark.anyio
async def test_a_stream_that_breaks_is_not_generated_again(fleet: Fleet) -> None:
    """After the first byte the client sees the broken stream, and no other worker sees the prompt."""
    fleet.workers[0].behaviour = "die"
    async with fleet.up("a") as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(PATH, json={}, headers=WANT_W1)
    assert fleet.requests == {"w1": 1, "w2": 0, "w3": 0}


@pytest.mark.anyio
async def test_a_prompt_that_is_being_computed_is_not_sent_again(fleet: Fleet) -> None:
    """A read timeout later than the replay limit ends in 504 with one request (600 s and 10 s, here 1.5 s and 1 s)."""
    fleet.workers[0].behaviour = "hang"
    files = fleet.files("a")
    rendered = files["prefix_proxy.conf"]
    scaled = rendered.replace("read_timeout 600s", "read_timeout 1500ms").replace("timeout 10s", "timeout 1s")
    assert scaled.count("1500ms") == 1
    assert scaled.count("proxy_next_upstream_timeout 1s") == 1
    async with fleet.up("a", {**files, "prefix_proxy.conf": scaled}) as client:
        answer = await client.post(PATH, json={}, headers=WANT_W1)
    assert (answer.status_code, answer.headers["x-prefix-served"]) == (504, "w1")
    assert fleet.requests == {"w1": 1, "w2": 0, "w3": 0}


@pytest.mark.anyio
async def test_one_failure_does_not_bench_a_worker(fleet: Fleet) -> None:
    """After a single 503 the worker's next request goes to it again."""
    async with fleet.up("a") as client:
        fleet.workers[0].status = 503
        replayed = await client.post(PATH, json={}, headers=WANT_W1)
        fleet.workers[0].status = 200
        served = [(await client.post(PATH, json={}, headers=WANT_W1)).text for _ in range(5)]
    assert replayed.text in {"w2", "w3"}
    assert served == ["w1"] * 5
