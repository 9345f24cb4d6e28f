"""Worker urls as nginx writes them, and how `$upstream_addr` tells who served; no I/O."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from prefix_middleware.core.workers import Worker
from prefix_middleware.settings import SettingsError

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9.])?")
_HTTP_PORT: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host and port that are safe inside an nginx directive; `str()` is how nginx writes them."""

    host: str  # an IPv4 or IPv6 address in its shortest form, or a name
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_name(self) -> bool:
        """Whether the host is a DNS name, which nginx looks up when it starts or reloads."""
        return not _is_ip(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One worker as the templates see it; `served` is empty where nothing tells it from the others."""

    id: str
    address: Address
    rank: int | None  # data-parallel rank behind the address
    served: tuple[str, ...]  # regular expressions for the last entry of $upstream_addr


def parse_address(field: str, text: str) -> Address:
    """Read `host:port`, an IPv6 host in brackets; raises `SettingsError` for the field."""
    accepted = "HOST:PORT, as in 127.0.0.1:8080, [::1]:8080 or nginx.internal:8080"
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise SettingsError(field, text, accepted) from None
    if port is None or port == 0 or parts.netloc != text or parts.username is not None:
        raise SettingsError(field, text, accepted)
    return _address(field, text, host, port, accepted)


def worker_address(worker: Worker) -> Address:
    """Return where nginx reaches a worker; raises `SettingsError` for https and for unusable hosts."""
    parts = urlsplit(worker.url)
    if parts.scheme != "http":
        # a group has one TLS name for all its servers, so a replay would be verified against the wrong worker
        raise SettingsError("workers", worker.url, "http://host[:port], since nginx speaks plain http")
    accepted = "http://host[:port] with an IP address or a DNS name"
    return _address("workers", worker.url, parts.hostname or "", parts.port or _HTTP_PORT, accepted)


def ambiguous_names(workers: Iterable[Worker], taken: frozenset[int] = frozenset()) -> dict[str, str]:
    """Map id to name for workers that only their IP addresses tell apart; `taken`: ports of other hops."""
    addresses = {worker.id: worker_address(worker) for worker in workers}
    ports = Counter(address.port for address in addresses.values())
    return {
        key: address.host
        for key, address in addresses.items()
        if address.is_name and (ports[address.port] > 1 or address.port in taken)
    }


def servers(
    workers: Iterable[Worker], known: Mapping[str, tuple[str, ...]], taken: frozenset[int] = frozenset()
) -> tuple[Server, ...]:
    """Describe the workers, with the `known` IPs of names; raises `SettingsError` when two are one."""
    workers = tuple(workers)
    ambiguous = ambiguous_names(workers, taken)
    result = tuple(_server(worker, known.get(worker.id, ()), worker.id in ambiguous) for worker in workers)
    result = _without_ranks(result)
    targets = [f"{s.address}" if s.rank is None else f"{s.address}#{s.rank}" for s in result]
    for described in (targets, [text for s in result for text in s.served]):
        twice = [text for text, count in Counter(described).items() if count > 1]
        if twice:
            raise SettingsError("workers", twice[0], "a different host and port for each worker")
    return result


def _without_ranks(fleet: tuple[Server, ...]) -> tuple[Server, ...]:
    """Tell nothing of who served where several ranks share an address: it was the one asked for, or a replay elsewhere."""
    ranks = Counter(server.address for server in fleet if server.rank is not None)
    return tuple(s if ranks[s.address] < 2 or s.rank is None else replace(s, served=()) for s in fleet)


def _server(worker: Worker, ips: tuple[str, ...], ambiguous: bool) -> Server:
    address = worker_address(worker)
    if not address.is_name:
        served: tuple[str, ...] = (_last(address),)
    elif not ambiguous:
        served = (f":{address.port}$",)  # no other hop has this port, so no look-up is needed
    else:
        served = tuple(
            _last(Address(host=_host(ip), port=address.port)) for ip in sorted(set(ips)) if _is_ip(ip)
        )
    return Server(id=worker.id, address=address, rank=worker.rank, served=served)


def _last(address: Address) -> str:
    # $upstream_addr is a list: "A, B" after a replay, "gateway : A" after a redirect
    return rf"(?:^|\s){re.escape(str(address))}$"


def _address(field: str, value: str, host: str, port: int, accepted: str) -> Address:
    if host == "localhost":
        host = "127.0.0.1"  # nginx would also try ::1, and a refused ::1 would use up the only replay
    if not _is_ip(host) and not _NAME.fullmatch(host):
        raise SettingsError(field, value, accepted)
    return Address(host=_host(host), port=port)


def _is_ip(host: str) -> bool:
    try:
        return "%" not in str(ip_address(host))  # nginx has no IPv6 zones
    except ValueError:
        return False


def _host(host: str) -> str:
    return ip_address(host).compressed if _is_ip(host) else host
