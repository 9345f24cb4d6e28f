"""Where Redis is: a plain URL, one behind Sentinels, or the node of a Cluster that our slot has moved to.

    redis:// rediss:// unix://                                    redis-py's URLs
    redis+sentinel://[user:password@]host:port,.../service[/db]   rediss+sentinel:// the same with TLS, Sentinels too

User and password are those of Redis; `?sentinel_username=` and `?sentinel_password=` those of the Sentinels.
"""

import re
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

SENTINEL_SCHEMES: Final = ("redis+sentinel", "rediss+sentinel")
SENTINEL_PORT: Final = 26379

_SENTINEL_SECONDS: Final = 1.0  # for one Sentinel to answer; then the next is asked
_NODE = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>\d{1,5}))?")


class Address:
    """One `redis_url`; ValueError for one that cannot be read."""

    def __init__(self, url: str) -> None:
        self._scheme = url.partition("://")[0]
        self._moved_to: tuple[str, int] | None = None
        self._sentinels: list[tuple[str, int]] = []
        self._service = ""
        self._sentinel_options: dict[str, Any] = {}
        if self._scheme in SENTINEL_SCHEMES:
            self.options = self._read_sentinel_url(url)
        else:
            self.options = dict(parse_url(url))

    def _read_sentinel_url(self, url: str) -> dict[str, Any]:
        parts = urlsplit(url)
        login, _, nodes = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        service, _, db = parts.path.strip("/").partition("/")
        self._sentinels = [_node(node) for node in nodes.split(",")]
        self._service = unquote(service)
        if not self._service:
            raise ValueError("no service is named")
        tls = parts.scheme == "rediss+sentinel"
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        own = {name[9:]: query.pop(name) for name in list(query) if name.startswith("sentinel_")}
        shared = dict(parse_url(f"{'rediss' if tls else 'redis'}://h/{db}"))
        shared |= {name: value for name, value in query.items() if name.startswith("ssl_")}
        self._sentinel_options = {k: v for k, v in shared.items() if k.startswith("ssl_")} | own
        self._sentinel_options["ssl"] = tls
        names = {"username": unquote(user), "password": unquote(password)}
        return shared | {name: value for name, value in names.items() if value}

    async def resolve(self) -> dict[str, Any]:
        """Return redis-py's options for the connection to make now; asks the Sentinels where there are some."""
        options = dict(self.options)
        if self._sentinels:
            options["host"], options["port"] = await self._ask_sentinels()
        elif self._moved_to is not None:
            options["host"], options["port"] = self._moved_to
        return options

    async def _ask_sentinels(self) -> tuple[str, int]:
        own: dict[str, Any] = {
            **self._sentinel_options,
            "socket_timeout": _SENTINEL_SECONDS,
            "socket_connect_timeout": _SENTINEL_SECONDS,
            "retry": Retry(NoBackoff(), 0),
        }
        make: Any = Sentinel  # untyped in redis-py
        sentinel = make(self._sentinels, sentinel_kwargs=own)
        try:
            host, port = await sentinel.discover_master(self._service)
        finally:
            for client in sentinel.sentinels:  # Sentinel has no close of its own in older versions
                await client.aclose()
        return str(host), int(port)

    def moved(self, host: str, port: int) -> None:
        """Connect there from now on: a Cluster node has said that it has our slot."""
        self._moved_to = (host or str(self.options.get("host", "localhost")), port)

    def failed(self) -> None:
        """Ask where the URL says again."""
        self._moved_to = None

    @property
    def shown(self) -> str:
        """The address rebuilt from its harmless parts: no user, no password, no query."""
        parts, db = self.options, self.options.get("db", 0)
        if self._sentinels:
            nodes = ",".join(f"{host}:{port}" for host, port in self._sentinels)
            return f"{self._scheme}://{nodes}/{self._service}/{db}"
        if self._scheme == "unix":
            return f"unix://{parts.get('path', '')}"
        return f"{self._scheme}://{parts.get('host', 'localhost')}:{parts.get('port', 6379)}/{db}"

    @property
    def secrets(self) -> list[str]:
        """What no log line may show."""
        options = (self.options, self._sentinel_options)
        return [str(o[name]) for o in options for name in ("password", "username") if o.get(name)]


def _node(text: str) -> tuple[str, int]:
    match = _NODE.fullmatch(text)
    if match is None:
        raise ValueError("a Sentinel is host:port")
    return match["v6"] or match["host"], int(match["port"] or SENTINEL_PORT)


def is_redis_url(url: str) -> bool:
    """Tell whether the URL is one that can be read."""
    try:
        Address(url)
    except ValueError:
        return False
    return True
