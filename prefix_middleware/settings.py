"""Every option of the product, checked once: `Settings(...)` in code, `Settings.from_env()` from PREFIX_* variables."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

from prefix_middleware.core.blocks import BLOCK_BYTES, MAX_WINDOW_BYTES
from prefix_middleware.core.canonical import api_of
from prefix_middleware.core.choose import POLICIES, Figures
from prefix_middleware.core.workers import Worker
from prefix_middleware.mirror.address import is_redis_url

LogForm = Literal["host", "line", "json"]
Mode = Literal["on", "shadow", "off"]
Decide = Literal["ingress", "egress"]

ENV_PREFIX: Final = "PREFIX_"
PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")

_ID = re.compile(r"[a-z0-9-]{1,32}")
_FLEET = re.compile(r"[a-z0-9-]{1,64}")
_HEADER = re.compile(r"[Xx]-[A-Za-z0-9-]{1,62}")  # LiteLLM and others forward only x-*
_TENANT = re.compile(r"[A-Za-z0-9-]{1,64}")
_KIB: Final = 1024
_MIB: Final = 1024 * 1024


class SettingsError(ValueError):
    """Raised when an option is wrong; the message names the field, the value and what is accepted."""

    def __init__(self, name: str, value: object, accepted: str) -> None:
        shown = "***" if name in ("secret", "redis_url") else repr(value)
        super().__init__(f"{name}={shown}: accepted is {accepted}")
        self.field = name


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The product's options; every one has a default, and a wrong one raises `SettingsError` at construction."""

    workers: tuple[Worker, ...] = ()
    redis_url: str | None = field(default=None, repr=False)  # may hold a password
    fleet: str = "default"  # gateways and workers that share one mirror
    upstream_url: str | None = (
        None  # where the host's HTTP client reaches nginx; consent to set the header there
    )
    header: str = "X-Prefix-Worker"
    mode: Mode = "on"  # shadow: decide and log, set nothing; off: only the client's header is taken off
    decide: Decide = "ingress"  # egress: from the body that leaves, for hosts that rewrite prompts
    policy: str = "tokens"
    secret: str | None = field(
        default=None, repr=False
    )  # keys the block hashes; equal on all gateways of a fleet
    window_bytes: int = _MIB  # hashed part of a prompt; an agent's tools alone can be 100 KB
    index_blocks: int = 200_000  # (block, worker) pairs, about 30 MB
    ttl_seconds: float = 5400.0  # 90 minutes: older blocks have left any worker's cache
    max_body_bytes: int = 16 * _MIB  # held per request
    max_buffered_bytes: int = 256 * _MIB  # held per process
    paths: tuple[str, ...] = PATHS
    model_aliases: Mapping[str, str] = field(
        default_factory=dict
    )  # name in a request -> name that shares its cache
    tenant_header: str | None = None  # prompts share only where its values are equal
    front_fields: tuple[str, ...] = ()  # template switches that this fleet's templates print at the front
    merge_system: tuple[
        str, ...
    ] = ()  # models whose templates want late system and developer text at the front
    kv_tokens: int | None = None  # KV cache of each worker; None: unknown, the rule is off
    max_in_flight: int = 256  # what a worker is said to carry; vLLM's own limit on most GPUs (--max-num-seqs)
    health_seconds: float = 1.0  # between two polls of one worker
    log: LogForm = "host"
    figures: Figures = field(default_factory=Figures)  # in code only

    def __post_init__(self) -> None:
        """Check every field; a wrong one raises `SettingsError`."""
        _check_workers(self.workers)
        for name, (accepts, accepted) in _RULES.items():
            value = getattr(self, name)
            if not accepts(value):
                raise SettingsError(name, value, accepted)
        if self.decide == "egress" and self.upstream_url is None:
            raise SettingsError("decide", self.decide, "ingress where upstream_url is not set")
        for path in self.paths:
            if not path.startswith("/") or api_of(path) is None:
                raise SettingsError("paths", path, "a path that ends in one of " + ", ".join(PATHS))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Read `PREFIX_<NAME>` variables; an empty one counts as unset. Raises `SettingsError`."""
        options: dict[str, Any] = {}
        for name, parse in _PARSERS.items():
            text = environ.get(ENV_PREFIX + name.upper(), "")
            if text:
                options[name] = parse(name, text)
        return cls(**options)


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Names of PREFIX_* variables that no field reads: most likely misspelt."""
    known = {ENV_PREFIX + name.upper() for name in _PARSERS} | {"PREFIX_APP"}
    return sorted(name for name in environ if name.startswith(ENV_PREFIX) and name not in known)


def _check_workers(workers: object) -> None:
    accepted = (
        "a tuple of Worker(id, url): id [a-z0-9-]{1,32} and unique, url http(s)://host[:port], rank 0 to 1023"
    )
    if not isinstance(workers, tuple):
        raise SettingsError("workers", workers, accepted)
    seen: set[str] = set()
    for worker in workers:
        ok = isinstance(worker, Worker) and type(worker.id) is str and _ID.fullmatch(worker.id)
        if not ok or worker.id in seen or not _is_origin(worker.url) or not _is_rank(worker.rank):
            raise SettingsError("workers", worker, accepted)
        seen.add(worker.id)


def _is_http_url(value: object) -> bool:
    if not isinstance(value, str) or not value.isascii() or re.search(r"[\s;{}\"'\\$#]", value):
        return False  # these would also end a directive of the nginx configuration
    try:
        parts = urlsplit(value)
        named = bool(parts.hostname) and parts.username is None and parts.password is None
        return parts.scheme in ("http", "https") and named and parts.port != 0
    except ValueError:
        return False


def _is_origin(value: object) -> bool:
    if not _is_http_url(value):
        return False
    parts = urlsplit(str(value))
    return parts.path in ("", "/") and not parts.query and not parts.fragment


def _is_names(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(n, str) and n for pair in value.items() for n in pair
    )


def _is_redis_url(value: object) -> bool:
    return isinstance(value, str) and is_redis_url(value)


def _between(low: float, high: float, kind: type[int] | type[float]) -> Callable[[object], bool]:
    kinds = (int,) if kind is int else (int, float)
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high


def _optional(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or accepts(value)


def _matches(pattern: re.Pattern[str]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


_is_rank: Final = _optional(_between(0, 1023, int))

_RULES: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "redis_url": (
        _optional(_is_redis_url),
        "redis://, rediss:// or unix://, redis+sentinel:// or rediss+sentinel://, or None",
    ),
    "fleet": (_matches(_FLEET), "[a-z0-9-]{1,64}"),
    "upstream_url": (_optional(_is_http_url), "http(s)://host[:port][/path], or None"),
    "header": (_matches(_HEADER), "a header name that starts with X-"),
    "mode": (lambda value: value in get_args(Mode), "one of " + ", ".join(get_args(Mode))),
    "decide": (lambda value: value in get_args(Decide), "one of " + ", ".join(get_args(Decide))),
    "policy": (lambda value: isinstance(value, str) and value in POLICIES, "one of " + ", ".join(POLICIES)),
    "secret": (
        _optional(lambda value: isinstance(value, str) and len(value) >= 8),
        "8 characters or more, or None",
    ),
    "window_bytes": (
        _between(BLOCK_BYTES, MAX_WINDOW_BYTES, int),
        f"{BLOCK_BYTES} to {MAX_WINDOW_BYTES} bytes",
    ),
    "index_blocks": (_between(1_000, 50_000_000, int), "1000 to 50000000 (block, worker) pairs"),
    "ttl_seconds": (_between(1, 604_800, float), "1 to 604800 seconds"),
    "max_body_bytes": (_between(_KIB, _KIB * _MIB, int), "1024 to 1073741824 bytes"),
    "max_buffered_bytes": (_between(_KIB, 64 * _KIB * _MIB, int), "1024 to 68719476736 bytes"),
    "paths": (
        lambda value: isinstance(value, tuple) and all(isinstance(p, str) for p in value),
        "a tuple of paths",
    ),
    "model_aliases": (lambda value: _is_names(value), "name=name,name=name"),
    "tenant_header": (_optional(_matches(_TENANT)), "a header name, or None"),
    "front_fields": (
        lambda value: isinstance(value, tuple) and all(isinstance(n, str) for n in value),
        "field names",
    ),
    "merge_system": (
        lambda value: isinstance(value, tuple) and all(isinstance(n, str) for n in value),
        "names of models",
    ),
    "kv_tokens": (_optional(_between(1_000, 10**12, int)), "1000 tokens or more, or None"),
    "max_in_flight": (_between(1, 100_000, int), "1 to 100000 requests"),
    "health_seconds": (_between(0.05, 300, float), "0.05 to 300 seconds"),
    "log": (lambda value: value in get_args(LogForm), "one of " + ", ".join(get_args(LogForm))),
    "figures": (lambda value: isinstance(value, Figures), "a Figures(...)"),
}


def _parse_workers(name: str, text: str) -> tuple[Worker, ...]:
    items = [item.strip().partition("=") for item in text.split(",") if item.strip()]
    if not all(sep for _, sep, _ in items):
        raise SettingsError(
            name, text, "id=url,id=url#rank, as in w1=http://10.0.0.1:8000,w2=http://10.0.0.2:8000#0"
        )
    return tuple(_parse_worker(name, key, url) for key, _, url in items)


def _parse_worker(name: str, key: str, text: str) -> Worker:
    url, ranked, rank = text.strip().partition("#")
    return Worker(key.strip(), url, int(_parse_number(int)(name, rank)) if ranked else None)


def _parse_names(name: str, text: str) -> dict[str, str]:
    items = [item.partition("=") for item in text.split(",") if item.strip()]
    if not all(sep for _, sep, _ in items):
        raise SettingsError(name, text, "name=name,name=name")
    return {key.strip(): value.strip() for key, _, value in items}


def _parse_number(kind: type[int] | type[float]) -> Callable[[str, str], float]:
    def parse(name: str, text: str) -> float:
        try:
            return kind(text)
        except ValueError:
            raise SettingsError(name, text, "a whole number" if kind is int else "a number") from None

    return parse


def _parse_text(_name: str, text: str) -> str:
    return text


def _parse_list(_name: str, text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


_PARSER_OF_TYPE: Final[dict[Any, Callable[[str, str], Any]]] = {
    int: _parse_number(int),
    float: _parse_number(float),
    int | None: _parse_number(int),
    Mapping[str, str]: _parse_names,
    tuple[str, ...]: _parse_list,
    tuple[Worker, ...]: _parse_workers,
}
_PARSERS: Final[dict[str, Callable[[str, str], Any]]] = {
    f.name: _PARSER_OF_TYPE.get(f.type, _parse_text) for f in fields(Settings) if f.name != "figures"
}
