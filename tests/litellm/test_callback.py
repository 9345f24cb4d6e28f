"""The callback by itself, with LiteLLM imported and no call made: what it leaves alone, and how an attempt ends."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from prefix_middleware import litellm_call
from prefix_middleware.litellm import PrefixCallback
from tests.nginx.running import eventually
from tests.testing.fakes import Running, worker

pytestmark = pytest.mark.anyio
BASE = "http://127.0.0.1:1/v1"
OTHER = {"authorization": "kept"}


class Request:
    """Stands for LiteLLM's object of one request."""


@pytest.fixture(scope="module")
def one() -> Iterator[Running]:
    with worker() as running:
        yield running


@pytest.fixture
async def callback(one: Running, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PrefixCallback]:
    monkeypatch.setenv("PREFIX_WORKERS", f"w1={one.url}")
    monkeypatch.setenv("PREFIX_UPSTREAM_URL", "http://127.0.0.1:1")
    monkeypatch.setenv(
        "PREFIX_DECIDE", "egress"
    )  # means nothing here: the hook is as near as LiteLLM lets us
    made = PrefixCallback()
    yield made
    await made.runtime.stop()


def call_of(request: object, **fields: Any) -> dict[str, Any]:
    """Return the keyword arguments of one call that a client has put the header on, in two spellings."""
    return {
        "model": "hosted_vllm/m",
        "api_base": BASE,
        "messages": [{"role": "user", "content": "a prompt"}],
        "litellm_logging_obj": request,
        "litellm_call_id": "1",
        "headers": {"X-PREFIX-WORKER": "w9", **OTHER},
        "extra_headers": {"x_prefix_worker": "w9"},
        **fields,
    }


def in_flight(callback: PrefixCallback) -> int:
    return sum(gauge.in_flight for gauge in callback.runtime.router.gauges())


async def until_idle(callback: PrefixCallback) -> None:
    await eventually(lambda: not in_flight(callback), "idle", 5)


async def hooked(
    callback: PrefixCallback, kwargs: dict[str, Any], kind: str = "acompletion"
) -> dict[str, Any]:
    changed = await callback.async_pre_call_deployment_hook(kwargs, kind)
    assert changed is not None
    return {name: changed[name] for name in ("headers", "extra_headers") if name in changed}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("aembedding", {}),
        ("acompletion", {"api_base": "https://api.openai.com/v1"}),
        ("acompletion", {"api_base": None}),
        ("acompletion", {"api_base": "http://127.0.0.1:x"}),
        ("acompletion", {"model": None}),
        ("acompletion", {"litellm_logging_obj": None}),
        ("responses", {}),
    ],
)
async def test_what_is_not_for_nginx_only_loses_the_clients_header(
    callback: PrefixCallback, kind: str, fields: dict[str, Any]
) -> None:
    """No header for another upstream, a kind without a prompt, or what cannot be read; and nothing is raised."""
    assert await hooked(callback, call_of(Request(), **fields), kind) == {
        "headers": OTHER,
        "extra_headers": {},
    }
    assert in_flight(callback) == 0


async def test_a_request_that_comes_by_twice_is_routed_once(callback: PrefixCallback) -> None:
    """/v1/messages calls the hook as itself and as what it becomes: one decision, the same worker."""
    request = Request()
    named = {"headers": OTHER, "extra_headers": {"X-Prefix-Worker": "w1"}}
    assert await hooked(callback, call_of(request), "anthropic_messages") == named
    assert await hooked(callback, call_of(request)) == named
    assert (callback.runtime.telemetry.counts["decisions"], in_flight(callback)) == (1, 1)


async def test_a_retry_is_routed_anew_and_a_fallback_elsewhere_is_not(callback: PrefixCallback) -> None:
    """The failed attempt no longer counts; another provider gets no header."""
    request = Request()
    await hooked(callback, call_of(request))
    await callback.async_post_call_failure_deployment_hook({"litellm_logging_obj": request}, OSError(), None)
    assert in_flight(callback) == 0
    await hooked(callback, call_of(request))
    assert (callback.runtime.telemetry.counts["decisions"], in_flight(callback)) == (2, 1)
    await callback.async_log_failure_event({"litellm_call_id": "1"}, None, None, None)
    elsewhere = call_of(request, api_base="https://api.openai.com/v1")
    assert await hooked(callback, elsewhere) == {"headers": OTHER, "extra_headers": {}}
    assert in_flight(callback) == 0


async def test_a_worker_that_answers_with_errors_becomes_suspect(callback: PrefixCallback) -> None:
    """Only an answer of 5xx speaks of the worker; a connection that LiteLLM has lost does not."""

    class Failure(Exception):
        status_code = 500

    for headers in ({}, {}, {"x-prefix-served": "w1"}, {"x-prefix-served": "w1"}):
        request, error = Request(), Failure()
        error.litellm_response_headers = headers  # type: ignore[attr-defined]
        await hooked(callback, call_of(request))
        assert callback.runtime.telemetry.counts["worker_suspect"] == 0
        await callback.async_post_call_failure_deployment_hook({"litellm_logging_obj": request}, error, None)
    assert callback.runtime.telemetry.counts["worker_suspect"] == 1


async def test_a_client_that_repeats_a_call_id_shares_nothing(callback: PrefixCallback) -> None:
    """A client may choose `x-litellm-call-id`: two requests with one id are two exchanges."""
    first, second = Request(), Request()
    for request in (first, second):
        await hooked(callback, call_of(request))
    assert in_flight(callback) == 2


async def test_a_forgotten_request_is_counted_out(callback: PrefixCallback) -> None:
    """No hook has told of the end of a stream, and LiteLLM's object for it is gone."""
    request = Request()
    await hooked(callback, call_of(request, stream=True))
    assert in_flight(callback) == 1
    del request
    gc.collect()
    await until_idle(callback)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_task_ends_its_request(callback: PrefixCallback, stream: bool) -> None:
    """A client that leaves before the answer: LiteLLM's task is cancelled, and no hook is called."""
    request, routed = Request(), asyncio.Event()

    async def serve() -> None:
        await hooked(callback, call_of(request, stream=stream))
        routed.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await routed.wait()
    assert in_flight(callback) == 1
    task.cancel()
    await until_idle(callback)


async def test_nothing_counts_beyond_the_limit(
    callback: PrefixCallback, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is lost is bounded in time."""
    monkeypatch.setattr(litellm_call, "LIMIT_SECONDS", 0.01)
    request = Request()
    await hooked(callback, call_of(request, stream=True))
    await until_idle(callback)


async def test_a_stream_passes_as_it_is_and_is_recorded_with_its_first_piece(
    callback: PrefixCallback,
) -> None:
    """The pieces are the same objects, in order; the prompt is held from the first on."""
    request, pieces = Request(), [object(), object()]
    await hooked(
        callback, call_of(request, stream=True, messages=[{"role": "user", "content": "long " * 500}])
    )

    async def response() -> Any:
        for piece in pieces:
            yield piece

    data = {"litellm_logging_obj": request}
    hook = callback.async_post_call_streaming_iterator_hook
    passed = [piece async for piece in hook(user_api_key_dict=None, response=response(), request_data=data)]
    assert (passed, in_flight(callback)) == (pieces, 0)
    assert len(callback.runtime.router.index) > 0


async def test_another_event_loop_is_left_alone(callback: PrefixCallback) -> None:
    """LiteLLM runs some calls on loops that end at once: our background tasks must not move there."""
    first, other = Request(), Request()
    await hooked(callback, call_of(first))
    kwargs = call_of(other)
    elsewhere = await asyncio.to_thread(lambda: asyncio.run(hooked(callback, kwargs)))
    assert elsewhere == {"headers": OTHER, "extra_headers": {}}
    assert in_flight(callback) == 1
