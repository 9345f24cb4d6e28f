"""A master that has become a replica and goes on answering: nothing can be written there, and everybody moves on."""

import pytest

from prefix_middleware.mirror.store import connected
from tests.mirror.fleet import Gateway, running
from tests.mirror.peer import until
from tests.mirror.proxy import proxy_to
from tests.mirror.test_fleet import replica_has
from tests.services import redis_server

pytestmark = pytest.mark.anyio

AT_ONCE = ("--repl-diskless-sync-delay", "0")


async def test_gateways_leave_a_master_that_was_demoted_under_them() -> None:
    """No connection is closed for them: the refused write is the news, and on the new master all agree, nothing lost."""
    with (
        redis_server(*AT_ONCE) as old,
        redis_server(*AT_ONCE, "--replicaof", "127.0.0.1", str(old.port)) as new,
    ):
        async with proxy_to(old.port) as proxy:
            a, b = Gateway(proxy.url), Gateway(proxy.url)
            async with running(a, b):
                for number in range(50):
                    a.serve(number)
                await until(lambda: b.mirror.heard.get(a.origin) == 50)
                await replica_has(new, old)
                async with connected(new.url, 5.0) as there, connected(old.url, 5.0) as here:
                    await there.command("REPLICAOF", "NO", "ONE")
                    proxy.lead_to(new.port)
                    await here.command("REPLICAOF", "127.0.0.1", new.port)
                    workers = [(a, b)[number % 2].serve(number) for number in range(50, 100)]
                    await until(
                        lambda: a.telemetry.counts["mirror_lost"] and b.telemetry.counts["mirror_lost"]
                    )
                    await until(lambda: a.connected and b.connected)
                    await until(lambda: all(a.best(n) == b.best(n) != (0, []) for n in range(100)))
                    written = await there.command("XLEN", "{prefix:test}:decisions")
    assert (len(workers), written > 0, a.count("lost"), b.count("lost")) == (50, True, 0, 0)
    assert all(a.best(number)[0] == 8 for number in range(100))
