"""Settings -> the files of an nginx configuration, from this package's templates; pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined

from prefix_middleware.nginx.addresses import Address, Server, parse_address, servers
from prefix_middleware.settings import Settings, SettingsError

Flavour = Literal["sticky", "classic"]
Topology = Literal["a", "b"]

STICKY_SINCE: Final = (1, 29, 6)  # the first open source nginx with `sticky route`
MAIN_FILE: Final = "nginx.conf"
INCLUDE_FILES: Final = ("prefix.conf", "prefix_workers.conf", "prefix_proxy.conf")
DEFAULT_LISTEN: Final = "127.0.0.1:8080"
DEFAULT_GATEWAY: Final = "127.0.0.1:8000"

_BACKUPS: Final = 3  # with every other worker as backup, 1,000 workers would be a million server lines
_ZONE_KIB: Final = 64  # nginx refuses less than 8 pages
_SERVER_KIB: Final = 2  # a server takes about 1 KiB of the zone
_MAP_PARAMETERS: Final = frozenset({"default", "hostnames", "include", "volatile"})
_ENDS_DIRECTIVE: Final = re.compile(r"""[\s;{}"'#\x00-\x1f\x7f]|\$(?!\Z)|\\\Z""")  # a final $ is an anchor


@dataclass(frozen=True, slots=True, kw_only=True)
class NginxOptions:
    """What Settings does not say: which nginx, where it stands, and how the files are used."""

    flavour: Flavour = "classic"
    topology: Topology = "a"  # a: between gateway and workers; b: in front of the gateway, X-Accel-Redirect
    listen: str | None = None  # HOST:PORT; None: the port of settings.upstream_url, else 127.0.0.1:8080
    gateway: str = DEFAULT_GATEWAY  # HOST:PORT, topology b only
    whole: bool = True  # False: only the files to include into an existing http block
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # worker id -> IPs, for DNS names


def render(settings: Settings, options: NginxOptions) -> dict[str, str]:
    """Return file name -> text; raises `SettingsError` for no workers or an address nginx cannot use."""
    if not settings.workers:
        raise SettingsError(
            "workers", settings.workers, "one or more, as in PREFIX_WORKERS=w1=http://10.0.0.1:8000"
        )
    values = _values(settings, options)
    names = (MAIN_FILE, *INCLUDE_FILES) if options.whole else INCLUDE_FILES
    return {name: _ENVIRONMENT.get_template(f"{name}.j2").render(values) for name in names}


def hop_ports(options: NginxOptions) -> frozenset[int]:
    """Return the ports of hops in `$upstream_addr` that are no workers."""
    return frozenset({parse_address("gateway", options.gateway).port} if options.topology == "b" else ())


def _values(settings: Settings, options: NginxOptions) -> dict[str, Any]:
    fleet = servers(settings.workers, options.addresses, hop_ports(options))
    gateway = parse_address("gateway", options.gateway)
    if options.topology == "b" and gateway in [server.address for server in fleet]:
        raise SettingsError("gateway", options.gateway, "an address that is no worker's")
    return {
        "flavour": options.flavour,
        "topology": options.topology,
        "whole": options.whole,
        "listen": _listen(settings, options),
        "gateway": gateway,
        "header": settings.header,
        "variable": settings.header.lower().replace("-", "_"),
        "servers": fleet,
        "ranked": any(server.rank is not None for server in fleet),
        "groups": [_group(fleet, number) for number in range(len(fleet))],
        "zone_kib": _zone_kib(len(fleet)),
        "map_hash_max_size": 16 * len(fleet),  # at the default, 2048, nginx warns from some 3,000 ids on
    }


def _group(fleet: tuple[Server, ...], number: int) -> dict[str, Any]:
    rotated = {
        server.address: server for server in (*fleet[number + 1 :], *fleet[:number])
    }  # once an address
    others = [server for address, server in rotated.items() if address != fleet[number].address]
    backups = others[:_BACKUPS]
    return {"server": fleet[number], "backups": backups, "zone_kib": _zone_kib(len(backups) + 1)}


def _zone_kib(count: int) -> int:
    return _ZONE_KIB + _SERVER_KIB * max(0, count - 8)


def _listen(settings: Settings, options: NginxOptions) -> Address:
    if options.listen is not None:
        return parse_address("listen", options.listen)
    parts = urlsplit(settings.upstream_url or "")
    if options.topology == "a" and parts.scheme == "http" and parts.port:
        return parse_address("upstream_url", parts.netloc.rpartition("@")[2])
    return parse_address("listen", DEFAULT_LISTEN)


def _map_key(worker_id: str) -> str:
    return f"\\{worker_id}" if worker_id in _MAP_PARAMETERS else worker_id


def _checked(value: object) -> object:
    """Refuse a value that could end a directive, whatever checked it before."""
    if _ENDS_DIRECTIVE.search(str(value)):
        raise ValueError(f"not fit for an nginx configuration: {value!r}")
    return value


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("prefix_middleware.nginx"),
        autoescape=False,  # noqa: S701 - nginx text, not HTML; `finalize` checks every value
        finalize=_checked,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["map_key"] = _map_key
    return environment


_ENVIRONMENT: Final = _environment()
