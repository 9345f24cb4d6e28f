"""A mirror with nothing to carry: redis-py gives every connection a socket timeout of 5 s, ours outlive it."""

import time

import pytest
from redis.asyncio import Connection

from prefix_middleware.mirror.redis import RedisMirror
from prefix_middleware.mirror.store import connected
from tests.mirror.peer import FINGERPRINT, FakePeer, carrying, confirmed, until
from tests.mirror.relay import relay_to
from tests.services import RedisServer

pytestmark = pytest.mark.anyio

LIBRARY_SECONDS = 5.0


async def test_an_idle_mirror_outlives_the_librarys_timeout(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After more than five idle seconds the first update still arrives, on the connections of the start and without a word."""
    a, b = FakePeer("a"), FakePeer("b")
    monkeypatch.setattr("prefix_middleware.mirror.writer._REPLY_SECONDS", 60.0)  # writes do not block

    def mirror(url: str) -> RedisMirror:
        return RedisMirror(url, "test", FINGERPRINT)

    async with relay_to(redis.port) as relay, connected(redis.url, 20.0) as store:
        async with carrying((mirror(relay.url), a), (mirror(relay.url), b)):
            await until(lambda: a.connected and b.connected)
            began = time.monotonic()
            blocked = await store.command("XREAD", "BLOCK", 5600, "STREAMS", "nobody", "$")
            waited = time.monotonic() - began
            a.publish(confirmed(1))
            await until(lambda: b.heard)
        accepted = relay.accepted
    assert (blocked, waited > LIBRARY_SECONDS) == (None, True)
    assert (b.heard, accepted) == ([("a", confirmed(1))], 4)
    assert [up for up, _ in a.states + b.states] == [True, True]


async def test_every_connection_has_a_timeout_of_its_own(redis: RedisServer) -> None:
    """What the URL or the library would set does not count: a read waits as long as its caller says, and for ever never."""
    async with connected(f"{redis.url}?socket_timeout=1&retry_on_timeout=yes", 7.5) as store:
        connection = store._connection
        assert isinstance(connection, Connection)
        assert (connection.socket_timeout, connection.retry.get_retries()) == (7.5, 0)
