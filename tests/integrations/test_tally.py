"""What `prefix-middleware workers` says of a host: how much was decided, injected and echoed."""

from collections import Counter

import pytest

from tests.cli.running import process
from tests.integrations.stack import ROOT, WORKERS, Gateway, Stack, prompt
from tests.services import RedisServer, wait_until

UVICORN = ("uvicorn", "app:app", "--log-level", "warning")
FIELDS = ("decided", "injected", "echoed")


def tally(stack: Stack, redis: RedisServer) -> Counter[str]:
    """Return the three figures of the one gateway."""
    listed = ",".join(f"{id}={stack.workers[id].url}" for id in WORKERS)
    env = {"PREFIX_WORKERS": listed, "PREFIX_REDIS_URL": redis.url}
    done = process("workers", "--json", "--seconds", "10", env=env)
    assert done.status == 0, done.err
    (gateway,) = done.json["gateways"]
    return Counter({field: gateway[field] for field in FIELDS})


def ask(gateway: Gateway, times: int) -> None:
    """Send prompts that share nothing."""
    for number in range(times):
        assert gateway.post(prompt(f"tally {number}")).status_code == 200


@pytest.mark.parametrize(("host", "carried"), [("fastapi-httpx", 5), ("bare-asgi", 0)])
def test_workers_shows_what_was_decided_injected_and_echoed(
    stack: Stack, redis: RedisServer, host: str, carried: int
) -> None:
    """A host that a carrier serves has all three; one that forwards the inbound header has decisions only."""
    env = {"PREFIX_REDIS_URL": redis.url} | ({} if carried else {"PREFIX_UPSTREAM_URL": ""})
    with stack.gateway(ROOT / "integrations" / host, *UVICORN, env=env) as gateway:
        wait_until(lambda: "mirror: connected" in gateway.process.text(), what="the mirror")
        before = tally(stack, redis)
        ask(gateway, 5)
        after = tally(stack, redis)
        after.subtract(before)
    assert after == {"decided": 5, "injected": carried, "echoed": carried}
