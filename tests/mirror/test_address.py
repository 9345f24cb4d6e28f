"""What a `redis_url` names, and what of it may be shown."""

from typing import Any

import pytest

from prefix_middleware.mirror.address import Address, is_redis_url
from prefix_middleware.mirror.store import reason_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("url", "options", "shown"),
    [
        ("redis://cache:6380/2", {"host": "cache", "port": 6380, "db": 2}, "redis://cache:6380/2"),
        (
            "redis+sentinel://bob:s%40cret@s1,s2:26380,[::1]:26381/kv/3?sentinel_password=other",
            {"db": 3, "username": "bob", "password": "s@cret", "host": "h"},
            "redis+sentinel://s1:26379,s2:26380,::1:26381/kv/3",
        ),
        ("redis+sentinel://s1/kv", {"host": "h"}, "redis+sentinel://s1:26379/kv/0"),
    ],
)
async def test_a_url_is_read_whole(url: str, options: dict[str, Any], shown: str) -> None:
    """Login and database are those of Redis; nothing secret is shown."""
    address = Address(url)
    assert (address.options, address.shown) == (options, shown)


async def test_tls_holds_for_sentinels_too() -> None:
    """One CA for both; plain Sentinels in front of Redis with TLS would tell everybody where it is."""
    address = Address("rediss+sentinel://s1/kv?ssl_ca_certs=ca.crt")
    assert (address.options["ssl_ca_certs"], address.options["connection_class"].__name__) == (
        "ca.crt",
        "SSLConnection",
    )


async def test_a_moved_slot_is_followed_until_that_node_fails() -> None:
    """The URL stays the place to ask."""
    address = Address("redis://cache:6380/0")
    address.moved("other", 7001)
    moved = await address.resolve()
    address.moved("", 7002)
    nameless = await address.resolve()
    address.failed()
    back = await address.resolve()
    found = [(o["host"], o["port"]) for o in (moved, nameless, back)]
    assert found == [("other", 7001), ("cache", 7002), ("cache", 6380)]


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://s1",
        "redis+sentinel:///kv",
        "redis+sentinel://s1:port/kv",
        "redis+sentinel://s1,,s2/kv",
        "http://cache",
        "redis://:sec#ret@cache:6380",
    ],
)
async def test_what_cannot_be_read_is_told(url: str) -> None:
    """A Sentinel URL needs hosts and a service."""
    assert not is_redis_url(url)


async def test_a_reason_names_no_sentinel_credentials() -> None:
    """Both passwords are secrets."""
    url = "redis+sentinel://bob:one@s1/kv?sentinel_password=two"
    assert reason_of(ValueError("one two three"), url) == "ValueError: *** *** three"
