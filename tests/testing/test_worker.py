"""The fake worker over HTTP, as a real process."""

import hashlib
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.services import wait_until
from tests.testing.fakes import Running, worker

LONG = "a prompt with some length " * 20


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with worker("--kv-blocks", "500", "--model", "m1") as process:
        yield process


@pytest.fixture
def fresh(running: Running) -> Running:
    running.control(fail=None, delay_seconds=0, hang=False, reset_cache=True)
    return running


def post(running: Running, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{running.url}{path}", json=body, headers={"x-request-id": "r1"}, trust_env=False)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


MESSAGES = [{"role": "user", "content": LONG}]
PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": LONG},
    "/v1/responses": {"input": LONG},
    "/v1/messages": {"messages": MESSAGES},
}
USAGES: dict[str, dict[str, Any]] = {  # of the second, identical request
    "/v1/chat/completions": {
        "prompt_tokens": 143,
        "total_tokens": 145,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 128, "created_cache_tokens": 15},
    },
    "/v1/completions": {
        "prompt_tokens": 130,
        "total_tokens": 132,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 128, "created_cache_tokens": 2},
    },
    "/v1/responses": {
        "input_tokens": 143,
        "input_tokens_details": {"cached_tokens": 128},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 145,
    },
    "/v1/messages": {
        "input_tokens": 15,
        "cache_read_input_tokens": 128,
        "cache_creation_input_tokens": 15,
        "output_tokens": 2,
    },
}


@pytest.mark.parametrize("path", PROMPTS)
def test_usage_reports_cached_tokens_in_the_form_of_each_api(fresh: Running, path: str) -> None:
    """The second identical prompt is cached but for its last block, streamed or not."""
    options = {"max_tokens": 2, "max_output_tokens": 2, "stream_options": {"include_usage": True}}
    post(fresh, path, **PROMPTS[path], **options)
    whole = post(fresh, path, **PROMPTS[path], **options).json()["usage"]
    streamed = events(post(fresh, path, **PROMPTS[path], **options, stream=True))
    usages = [event.get("usage") or event.get("response", {}).get("usage") for event in streamed]
    assert [whole, [usage for usage in usages if usage][-1]] == [USAGES[path]] * 2


def test_a_chat_stream_has_no_usage_unless_asked_for(fresh: Running) -> None:
    """As in vLLM, `stream_options.include_usage` decides."""
    response = post(fresh, "/v1/chat/completions", messages=MESSAGES, max_tokens=3, stream=True)
    deltas = [event["choices"][0]["delta"].get("content") for event in events(response)]
    assert (len(deltas), deltas[0], deltas[-1], response.text.endswith("data: [DONE]\n\n")) == (
        5,
        "",
        None,
        True,
    )
    assert not any("usage" in event for event in events(response))


def test_the_next_turn_finds_the_answer_in_the_cache_too(fresh: Running) -> None:
    """Generated tokens are held: turn two is a hit up to the end of the answer."""
    first = post(fresh, "/v1/chat/completions", messages=MESSAGES, max_tokens=40).json()
    answer = first["choices"][0]["message"]
    turns = [*MESSAGES, answer, {"role": "user", "content": "go on"}]
    second = post(fresh, "/v1/chat/completions", messages=turns, max_tokens=1).json()
    assert (first["usage"]["prompt_tokens"], second["usage"]["prompt_tokens_details"]["cached_tokens"]) == (
        143,
        176,
    )


def test_the_log_shows_what_arrived(fresh: Running) -> None:
    """Order, path, our header, header names, digest of the body and token counts, one entry a request."""
    body = b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}'
    headers = {"X-Prefix-Worker": "w7", "x-request-id": "r9", "content-type": "application/json"}
    order = len(fresh.log()) + 1
    httpx.post(f"{fresh.url}/v1/chat/completions", content=body, headers=headers, trust_env=False)
    entry = fresh.log()[-1]
    names = entry.pop("header_names")
    assert {"x-prefix-worker", "x-request-id", "content-length"} <= set(names)
    assert entry == {
        "order": order,
        "path": "/v1/chat/completions",
        "x_prefix_worker": "w7",
        "request_id": "r9",
        "body_sha256": hashlib.sha256(body).hexdigest(),
        "prompt_tokens": 13,
        "cached_tokens": 0,
        "status": 200,
        "finished": True,
        "aborted": False,
    }


def test_a_client_that_leaves_aborts_its_request(fresh: Running) -> None:
    """Work for nobody stops, and the engine is free again."""
    body = {"prompt": "x", "max_tokens": 100_000, "stream": True}
    with httpx.stream("POST", f"{fresh.url}/v1/completions", json=body, trust_env=False) as response:
        next(response.iter_bytes())
    wait_until(lambda: fresh.log()[-1]["aborted"], what="abort")
    assert metrics(fresh)["vllm:num_requests_running"][1] == 0


def test_prefill_is_one_slot_in_order_of_arrival() -> None:
    """Two prompts of 0.2 s take 0.4 s together: they do not share the time."""
    with worker("--tokens-per-second", "1000") as slow:
        start = time.monotonic()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda mark: post(slow, "/v1/completions", prompt=mark * 800, max_tokens=1), "ab"))
        assert 0.4 <= time.monotonic() - start < 2


@pytest.mark.parametrize("status", [500, 503])
def test_a_worker_told_to_fail_is_healthy_and_answers_errors(fresh: Running, status: int) -> None:
    """A draining vLLM says 200 on /health and an error on every request."""
    fresh.control(fail=status)
    answer = post(fresh, "/v1/completions", prompt="x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)
    assert httpx.get(f"{fresh.url}/health", trust_env=False).status_code == 200


def test_a_hanging_worker_sends_nothing(fresh: Running) -> None:
    """A client sees no byte until its own time-out."""
    fresh.control(hang=True)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{fresh.url}/v1/completions", json={"prompt": "x"}, timeout=0.3, trust_env=False)


def test_a_body_that_is_no_json_is_a_bad_request(fresh: Running) -> None:
    """Like vLLM: 400 and an error object."""
    answer = httpx.post(f"{fresh.url}/v1/completions", content=b"[1", trust_env=False)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestError")


def metrics(running: Running) -> dict[str, tuple[dict[str, str], float]]:
    """Name to labels and value."""
    text = httpx.get(f"{running.url}/metrics", trust_env=False).text
    samples = re.findall(r"^([\w:]+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE)
    return {
        name: (dict(re.findall(r'(\w+)="(.*?)"', labels)), float(value)) for name, labels, value in samples
    }


def test_metrics_are_those_a_vllm_server_exports(fresh: Running) -> None:
    """The names, labels and cache facts that the health check reads."""
    labels = {name: found for name, (found, _) in metrics(fresh).items()}
    engine = {"engine": "0", "model_name": "m1"}
    assert labels == {
        "process_start_time_seconds": {},
        "vllm:num_requests_running": engine,
        "vllm:num_requests_waiting": engine,
        "vllm:prefix_cache_queries_total": engine,
        "vllm:prefix_cache_hits_total": engine,
        "vllm:prompt_tokens_total": engine,
        "vllm:generation_tokens_total": engine,
        "vllm:request_success_total": engine | {"finished_reason": "abort"},
        "vllm:engine_sleep_state": engine | {"sleep_state": "discard_all"},
        "vllm:cache_config_info": {
            "block_size": "16",
            "enable_prefix_caching": "True",
            "engine": "0",
            "kv_cache_size_tokens": "8000",
            "mamba_cache_mode": "none",
            "num_gpu_blocks": "500",
            "prefix_match_unit": "None",
            "sliding_window": "None",
        },
    }
