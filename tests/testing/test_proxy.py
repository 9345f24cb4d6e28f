"""The stand-in for nginx over real fake workers."""

import time

import httpx

from tests.services import free_port
from tests.testing.fakes import proxy, worker

BODY = {"prompt": "hello", "max_tokens": 2}


def ask(url: str, wanted: str | None) -> tuple[int, str | None]:
    headers = {"X-Prefix-Worker": wanted} if wanted else {}
    answer = httpx.post(f"{url}/v1/completions", json=BODY, headers=headers, trust_env=False)
    return answer.status_code, answer.headers.get("x-prefix-served")


def test_the_header_names_the_worker_and_does_not_reach_it() -> None:
    """A known id is followed and consumed; an unknown or missing one takes turns over idle workers."""
    with worker() as one, worker() as two, proxy({"w1": one.url, "w2": two.url}) as front:
        assert [ask(front.url, "w2") for _ in range(3)] == [(200, "w2")] * 3
        assert [entry["x_prefix_worker"] for entry in two.log()] == [None] * 3
        assert {ask(front.url, "evil") for _ in range(4)} == {(200, "w1"), (200, "w2")}
        assert {ask(front.url, None) for _ in range(4)} == {(200, "w1"), (200, "w2")}


def test_a_dead_worker_is_replaced_once() -> None:
    """Nothing was sent to it, so another may answer; with no other the client gets 502."""
    dead = f"http://127.0.0.1:{free_port()}"
    with worker() as alive, proxy({"w1": dead, "w2": alive.url}) as front:
        assert ask(front.url, "w1") == (200, "w2")
    with proxy({"w1": dead}) as front:
        assert ask(front.url, "w1") == (502, None)


def test_a_stream_passes_token_by_token() -> None:
    """The first token arrives long before the last."""
    body = {"prompt": "x", "max_tokens": 20, "stream": True}
    with worker("--ms-per-token", "20") as slow, proxy({"w1": slow.url}) as front:
        with httpx.stream("POST", f"{front.url}/v1/completions", json=body, trust_env=False) as response:
            arrivals = [time.monotonic() for _ in response.iter_raw()]
        assert arrivals[-1] - arrivals[0] > 0.2
