"""A reply that belongs to no command: the connection that gave it is of no more use."""

import pytest

from prefix_middleware.mirror.redis import RedisMirror
from tests.mirror.peer import FINGERPRINT, FakePeer, carrying, confirmed, until, until_heard
from tests.mirror.relay import relay_to
from tests.services import RedisServer

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("command", [b"XREAD", b"XADD"])
async def test_a_reply_of_the_wrong_shape_ends_its_connection(
    redis: RedisServer, patient: None, command: bytes
) -> None:
    """Everything behind a stray reply would be one off: a moment's outage, and every record is heard once, in order."""
    a, b = FakePeer("a"), FakePeer("b")
    async with relay_to(redis.port) as relay:
        mirrors = [RedisMirror(relay.url, "test", FINGERPRINT) for _ in range(2)]
        async with carrying((mirrors[0], a), (mirrors[1], b)):
            await until(lambda: a.connected and b.connected)
            for record in range(10):
                a.publish(confirmed(record))
                await until_heard(b, record + 1)
            relay.slip(command, b"+OK\r\n")
            a.publish(confirmed(10))
            await until(lambda: relay.slipped and relay.accepted >= 5, what="another connection")
            await until(lambda: a.connected and b.connected)
            for record in range(11, 20):
                a.publish(confirmed(record))
            await until(lambda: mirrors[1].heard.get("a") == 20)
    assert b.records("a") == list(range(20))
    assert sorted(len(peer.states) for peer in (a, b)) == [1, 3]
