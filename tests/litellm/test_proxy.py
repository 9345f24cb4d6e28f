"""The real LiteLLM proxy, by callback and by mount, with and without its forwarding of client headers."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.litellm.running import WORKERS, Fleet, Gateway, configuration, fleet, gateway
from tests.services import wait_until

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
KINDS = [
    (CHAT, {}),
    (CHAT, {"stream": True}),
    (CHAT, {"stream": True, "model": "qwen-openai"}),
    (MESSAGES, {}),
    (MESSAGES, {"stream": True}),
    (MESSAGES, {"stream": True, "model": "qwen-openai"}),  # becomes a call of /v1/responses
]
numbers = count()


@pytest.fixture(scope="module")
def workers() -> Iterator[Fleet]:
    with fleet("--ms-per-token", "5") as running:
        yield running


@pytest.fixture(
    scope="module", params=["callback", "callback forwarding", "mounted", "mounted forwarding", "both"]
)
def proxy(
    request: pytest.FixtureRequest, workers: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    way = str(request.param)
    mounted = not way.startswith("callback")
    config = configuration(workers, callback=not way.startswith("mounted"), forwards="forwarding" in way)
    env = {"PREFIX_TENANT_HEADER": "X-Team", "PREFIX_DECIDE": "ingress" if way == "mounted" else "egress"}
    with gateway(workers, tmp_path_factory.mktemp("litellm"), config, mounted=mounted, env=env) as running:
        running.callback = not way.startswith("mounted")
        warm_up = conversation(200)
        wait_until(lambda: ready(running, warm_up), 20, "workers ready")
        yield running


def ready(proxy: Gateway, messages: list[dict[str, Any]]) -> bool:
    proxy.post(CHAT, {"messages": messages}, "w9")
    return all(f"worker {id} is ready" in proxy.process.text() for id in WORKERS)


def conversation(words: int = 1_500) -> list[dict[str, Any]]:
    """Return a first turn that shares nothing with any other."""
    number = next(numbers)
    text = " ".join(f"{number}-{word}" for word in range(words))
    return [{"role": "user", "content": text}]


def turns(messages: list[dict[str, Any]], n: int) -> Iterator[list[dict[str, Any]]]:
    """Yield a conversation as it grows."""
    for turn in range(n):
        yield list(messages)
        messages = [
            *messages,
            {"role": "assistant", "content": f"Answer {turn}."},
            {"role": "user", "content": f"Question {turn}?"},
        ]


@pytest.mark.parametrize(("path", "options"), KINDS)
def test_a_conversation_stays_where_its_lines_say_whatever_the_client_names(
    proxy: Gateway, path: str, options: dict[str, Any]
) -> None:
    """One line a request, its worker is reached, follow-ups stay, nothing is left in flight between them."""
    said, reached = len(proxy.lines()), []
    for number, messages in enumerate(turns(conversation(), 4)):
        before = proxy.fleet.seen()
        answer = proxy.post(path, {"messages": messages, **options}, WORKERS[number % 3])
        assert answer.status_code == 200, answer.text
        reached += proxy.fleet.arrived(before)

    lines = proxy.lines()[said:]
    assert [(line["worker"], None) for line in lines] == reached  # nginx keeps the header to itself
    assert [line["reason"] for line in lines] == ["miss", "hit", "hit", "hit"]
    assert {line["slots"] for line in lines} == {"0"}
    assert len(set(reached)) == 1


def test_a_forged_header_does_not_reach_a_deployment_beside_nginx(proxy: Gateway) -> None:
    """LiteLLM may forward a client's headers to every deployment, and those in a body; this one is taken off.

    A mount alone never changes a body, so there only the header itself is.
    """
    before = proxy.fleet.seen()
    options: dict[str, Any] = {} if proxy.callback else {"extra_headers": {}}
    answer = proxy.post(CHAT, {"messages": conversation(50), "model": "beside", **options}, "w9")
    assert answer.status_code == 200, answer.text
    ((worker, header),) = proxy.fleet.arrived(before)
    assert (worker, header == "w9") == ("w1", False)


def test_tenants_share_nothing(proxy: Gateway) -> None:
    """The header that separates them is the client's own, whoever sends the request on."""
    body = {"messages": conversation()}
    for team in ("red", "red", "blue"):
        assert proxy.post(CHAT, body, "w9", team=team).status_code == 200
    lines = proxy.lines()[-3:]
    assert [line["reason"] for line in lines] == ["miss", "hit", "miss"]


def test_a_client_that_leaves_mid_stream_is_counted_out(proxy: Gateway) -> None:
    """The worker stops, and the next turn finds it free."""
    messages = conversation()
    proxy.leave({"messages": messages, "max_tokens": 2_000})
    home = proxy.lines()[-1]["worker"]
    wait_until(lambda: proxy.fleet.workers[home].log()[-1]["aborted"], what="abort at the worker")
    proxy.post(CHAT, {"messages": [*messages, *conversation(10)]}, "w9")
    last = proxy.lines()[-1]
    assert (last["reason"], last["worker"], last["slots"]) == ("hit", home, "0")


def test_a_failed_request_is_counted_out_and_recorded_nowhere(proxy: Gateway) -> None:
    """A worker's 500 reaches the client; its prompt is a miss the next time, on a worker with nothing in flight."""
    messages = conversation()
    for it in proxy.fleet.workers.values():
        it.control(fail=500)
    failed = [proxy.post(CHAT, {"messages": messages, "stream": stream}, "w9") for stream in (False, True)]
    for it in proxy.fleet.workers.values():
        it.control(fail=None)
    assert [answer.status_code for answer in failed] == [500, 500]
    assert proxy.post(CHAT, {"messages": messages}, "w9").status_code == 200
    assert [(line["m"], line["slots"]) for line in proxy.lines()[-3:]] == [("0", "0")] * 3


def test_with_wrong_settings_the_callback_routes_nothing_and_says_why(workers: Fleet, tmp_path: Path) -> None:
    """LiteLLM answers as without us, and one line names the variable."""
    config = configuration(workers, callback=True, forwards=True)
    with gateway(workers, tmp_path, config, mounted=False, env={"PREFIX_POLICY": "best"}) as proxy:
        codes = [proxy.post(CHAT, {"messages": conversation(5)}, "w9").status_code for _ in range(2)]
        assert (codes, proxy.lines(), proxy.process.text().count("policy='best'")) == ([200, 200], [], 1)
