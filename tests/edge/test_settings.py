"""Every option: what is accepted, what is refused and how the refusal reads, in code and from the environment."""

import dataclasses
import math
from typing import Any

import pytest

from prefix_middleware import Settings, SettingsError, Worker
from prefix_middleware.core.choose import Figures
from prefix_middleware.settings import PATHS, unknown_variables


def worker(*fields: Any) -> Worker:
    return Worker(*fields)


W1 = Worker(id="w1", url="http://10.0.0.1:8000")
ACCEPTED: dict[str, list[Any]] = {
    "workers": [
        (),
        (W1,),
        (W1, Worker("w2", "https://w2.example")),
        (Worker("a-1", "http://[::1]:8000/"),),
        (Worker("a" * 32, "http://h"),),
    ],
    "redis_url": [
        None,
        "redis://:secret@h:6379/0",
        "rediss://h",
        "unix:///run/redis.sock",
        "redis+sentinel://h:1,g:2/name/0",
    ],
    "fleet": ["default", "a", "eu-1", "x" * 64],
    "upstream_url": [
        None,
        "http://nginx:8080",
        "https://nginx",
        "http://127.0.0.1:1/llm",
        "http://[::1]:8080",
    ],
    "header": ["X-Prefix-Worker", "x-to", "X-" + "a" * 62],
    "policy": ["tokens", "requests"],
    "secret": [None, "12345678", "é" * 8],
    "window_bytes": [512, 32768, 1 << 20, 1 << 24],
    "index_blocks": [1_000, 200_000, 50_000_000],
    "ttl_seconds": [1, 0.5 + 1, 5400.0, 604_800],
    "max_body_bytes": [1024, 1 << 30],
    "max_buffered_bytes": [1024, 1 << 36],
    "paths": [(), PATHS, ("/llm/v1/messages",), ("/chat/completions",)],
    "health_seconds": [0.05, 1, 300],
    "log": ["host", "line", "json"],
    "figures": [Figures(), Figures(follow_weight=1.0)],
    "mode": ["on", "shadow", "off"],
    "decide": ["ingress"],  # egress needs an upstream_url
    "model_aliases": [{}, {"fast": "org/model", "slow": "org/model"}],
    "tenant_header": [None, "X-Tenant", "authorization"],
    "front_fields": [(), ("reasoning_effort", "thinking")],
    "merge_system": [(), ("qwen", "m")],
    "kv_tokens": [None, 1_000, 300_000],
    "max_in_flight": [1, 256, 100_000],
}
REFUSED: dict[str, list[Any]] = {
    "workers": [
        *[
            None,
            [W1],
            "w1=http://h",
            ("w1",),
            (None,),
            ({"id": "w1"},),
            (W1, W1),
            (W1, Worker("w1", "http://other")),
        ],
        *[(worker(name, "http://h"),) for name in ("", "W1", "w_1", "w 1", "w1\n", "é", "a" * 33, None, 1)],
        *[
            (worker("w1", url),)
            for url in ("", "h:8000", "ftp://h", "http://", "http://h/v1", "http://h?a=1", None, "http://[")
        ],
        *[
            (worker("w1", url),)
            for url in (
                "http://h:99999",
                "http://h:x",
                "http://h;",
                "http://u@h",
                "http://h\n",
                "http://h ",
                "http://é",
            )
        ],
    ],
    "redis_url": [
        "",
        "localhost:6379",
        "http://h",
        6379,
        b"redis://h",
        "redis://h:port",
        "redis+sentinel://h",
    ],
    "fleet": ["", "Default", "a b", "a/b", "x" * 65, None, 1, "a\n"],
    "upstream_url": [
        "",
        "nginx:8080",
        "http://",
        "ftp://h",
        "http://h:99999",
        "http://h/a b",
        "http://h/\n",
        "http://h/;",
        8080,
    ],
    "header": ["", "Prefix-Worker", "X-", "X Prefix", "X-A\r\n", "X-É", "X_Prefix", None, 1, "X-" + "a" * 63],
    "policy": ["", "fastest", "Tokens", None, 1, [], {}],
    "secret": ["", "1234567", 12345678, b"12345678"],
    "window_bytes": [511, (1 << 24) + 1, 1024.0, "1024", True, None, -1],
    "index_blocks": [999, 50_000_001, 1e6, "1000", None],
    "ttl_seconds": [0, 0.99, 604_801, math.nan, math.inf, "1", True, None],
    "max_body_bytes": [1023, (1 << 30) + 1, 2048.0, None],
    "max_buffered_bytes": [1023, (1 << 36) + 1, 2048.0, None],
    "paths": [
        None,
        "/v1/messages",
        ["/v1/messages"],
        (1,),
        ("",),
        ("v1/messages",),
        ("/v1/embeddings",),
        ("/v1/messages/",),
    ],
    "health_seconds": [0, 0.04, 301, math.nan, -1, "1", None, True],
    "log": ["", "HOST", "text", None, 1, []],
    "figures": [None, {}, 1],
    "mode": ["", "ON", None, True, []],
    "decide": ["", "Ingress", "egress", None, []],
    "model_aliases": [None, [], "a=b", {"": "a"}, {"a": ""}, {1: "a"}, {"a": None}],
    "tenant_header": ["", "a b", "a\n", "é", "a" * 65, 1],
    "front_fields": [None, "thinking", ["thinking"], (1,)],
    "merge_system": [None, "qwen", ["qwen"], (1,)],
    "kv_tokens": [0, 999, 10**12 + 1, 1e6, True, "1000"],
    "max_in_flight": [0, -1, 100_001, 1.0, None, True],
}
CASES = [(name, value) for name, values in REFUSED.items() for value in values]


def test_the_tables_have_every_field() -> None:
    """A new field needs accepted and refused values here."""
    names = {field.name for field in dataclasses.fields(Settings)}
    assert (set(ACCEPTED), set(REFUSED)) == (names, names)


@pytest.mark.parametrize("name", ACCEPTED)
def test_good_values_are_kept_as_given(name: str) -> None:
    """What is accepted is stored unchanged."""
    values = ACCEPTED[name]
    assert [getattr(Settings(**{name: value}), name) for value in values] == values


@pytest.mark.parametrize(("name", "value"), CASES, ids=repr)
def test_a_bad_value_is_refused_with_its_field_and_what_is_accepted(name: str, value: Any) -> None:
    """The message is one line: field=value, then what would have been right; `field` names it for programs."""
    with pytest.raises(SettingsError) as refused:
        Settings(**{name: value})
    text, shown = str(refused.value), "***" if name in ("secret", "redis_url") else None
    head, found, accepted = text.partition(": accepted is ")
    assert (refused.value.field, head.startswith(f"{name}="), bool(found), bool(accepted)) == (
        name,
        True,
        True,
        True,
    )
    assert "\n" not in text
    if shown:
        assert head == f"{name}={shown}"
    elif name not in ("workers", "paths"):
        assert head == f"{name}={value!r}"


def test_a_refused_item_is_shown_by_itself() -> None:
    """Of a list of workers or paths, the message shows the one that is wrong."""
    bad = Worker("W2", "http://h")
    with pytest.raises(SettingsError) as workers:
        Settings(workers=(W1, bad))
    with pytest.raises(SettingsError) as paths:
        Settings(paths=("/v1/messages", "/v1/embeddings"))
    heads = [str(error.value).partition(": accepted is ")[0] for error in (workers, paths)]
    assert heads == [f"workers={bad!r}", "paths='/v1/embeddings'"]


def test_secrets_are_never_shown() -> None:
    """Neither the settings' own form nor a refusal has the secret or the password of Redis."""
    settings = Settings(secret="hunter2hunter2", redis_url="redis://:hunter2@h")
    texts = [repr(settings), str(settings)]
    for name, value in (("secret", "hunter2"), ("redis_url", "http://:hunter2@h")):
        with pytest.raises(SettingsError) as refused:
            Settings(**{name: value})  # type: ignore[arg-type] # by name
        texts += [str(refused.value), repr(refused.value)]
    assert [text for text in texts if "hunter2" in text] == []


def test_settings_are_frozen() -> None:
    """What has been checked stays so."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().policy = "requests"  # type: ignore[misc] # that is the point


def test_every_type_is_read_from_the_environment() -> None:
    """PREFIX_<NAME> gives the same settings as code does."""
    environ = {
        "PREFIX_WORKERS": " w1=http://10.0.0.1:8000 , w2=https://w2.example,",
        "PREFIX_REDIS_URL": "redis://h",
        "PREFIX_FLEET": "eu",
        "PREFIX_UPSTREAM_URL": "http://nginx:8080",
        "PREFIX_HEADER": "X-To",
        "PREFIX_POLICY": "requests",
        "PREFIX_SECRET": "12345678",
        "PREFIX_WINDOW_BYTES": "32768",
        "PREFIX_INDEX_BLOCKS": "1000",
        "PREFIX_TTL_SECONDS": "1.5",
        "PREFIX_MAX_BODY_BYTES": "2048",
        "PREFIX_MAX_BUFFERED_BYTES": "4096",
        "PREFIX_PATHS": "/v1/messages, /llm/v1/responses",
        "PREFIX_HEALTH_SECONDS": "2",
        "PREFIX_LOG": "json",
        "PREFIX_MODE": "shadow",
        "PREFIX_MODEL_ALIASES": "fast=org/model, slow=org/model,",
        "PREFIX_TENANT_HEADER": "X-Tenant",
        "PREFIX_FRONT_FIELDS": "thinking,reasoning_effort",
        "PREFIX_KV_TOKENS": "300000",
        "PREFIX_MAX_IN_FLIGHT": "64",
        "OTHER_LOG": "line",
    }
    assert Settings.from_env(environ) == Settings(
        workers=(W1, Worker("w2", "https://w2.example")),
        redis_url="redis://h",
        fleet="eu",
        upstream_url="http://nginx:8080",
        header="X-To",
        policy="requests",
        secret="12345678",
        window_bytes=32768,
        index_blocks=1000,
        ttl_seconds=1.5,
        max_body_bytes=2048,
        max_buffered_bytes=4096,
        paths=("/v1/messages", "/llm/v1/responses"),
        health_seconds=2.0,
        log="json",
        mode="shadow",
        model_aliases={"fast": "org/model", "slow": "org/model"},
        tenant_header="X-Tenant",
        front_fields=("thinking", "reasoning_effort"),
        kv_tokens=300_000,
        max_in_flight=64,
    )


def test_unset_and_empty_variables_leave_the_defaults() -> None:
    """A compose file that passes on an empty variable sets nothing."""
    names = [field.name for field in dataclasses.fields(Settings)]
    empty = {f"PREFIX_{name.upper()}": "" for name in names}
    assert (Settings.from_env({}), Settings.from_env(empty)) == (Settings(), Settings())


@pytest.mark.parametrize(
    ("variable", "text", "field"),
    [
        ("PREFIX_WORKERS", "http://h:8000", "workers"),
        ("PREFIX_WORKERS", "w1=h:8000", "workers"),
        ("PREFIX_WINDOW_BYTES", "32k", "window_bytes"),
        ("PREFIX_WINDOW_BYTES", "1", "window_bytes"),
        ("PREFIX_TTL_SECONDS", "90m", "ttl_seconds"),
        ("PREFIX_TTL_SECONDS", "nan", "ttl_seconds"),
        ("PREFIX_LOG", "loud", "log"),
        ("PREFIX_PATHS", "v1/messages", "paths"),
        ("PREFIX_MODEL_ALIASES", "fast", "model_aliases"),
        ("PREFIX_KV_TOKENS", "300k", "kv_tokens"),
    ],
)
def test_a_bad_variable_is_refused_with_its_text(variable: str, text: str, field: str) -> None:
    """The message shows what stands in the environment."""
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({variable: text})
    shown = text.partition("=")[2] if text.startswith("w1=") else text
    assert (refused.value.field, shown in str(refused.value)) == (field, True)


def test_variables_that_no_field_reads_are_named() -> None:
    """A misspelt variable is found; figures are set in code only."""
    environ = {
        "PREFIX_WORKER": "",
        "PREFIX_LOG": "",
        "PREFIX_FIGURES": "",
        "PREFIX_APP": "",
        "PATH": "",
        "prefix_log": "",
    }
    assert unknown_variables(environ) == ["PREFIX_FIGURES", "PREFIX_WORKER"]
