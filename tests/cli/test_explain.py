"""`prefix-middleware explain`: a body's prompt, who holds it, and who would be chosen."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import (
    COMMAND,
    Workers,
    answering,
    environment,
    gateway,
    hashed,
    looked,
    process,
    run,
    two_workers,
)
from tests.services import RedisServer, free_port

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "s" * 20_000},
    {"role": "user", "content": "hello?"},
]
TURNS: list[dict[str, Any]] = [
    {"role": "assistant", "content": "a" * 900},
    {"role": "user", "content": "and now?"},
]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with two_workers() as running:
        yield running


def body(*messages: dict[str, Any], **fields: Any) -> str:
    return json.dumps({"model": "fake-model", "messages": [*messages], **fields})


def test_without_redis_only_the_prompt_is_explained() -> None:
    """Sizes, blocks, namespace and what it continues are printed, and that the fleet was not asked."""
    env = {"PREFIX_MODEL_ALIASES": "gpt=qwen", "PREFIX_TENANT_HEADER": "x-tenant"}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}
    given = body(*MESSAGES, TURNS[0], image, model="gpt", cache_salt="hush", max_tokens=64, echo=True)
    done = run("explain", "-", "--tenant", "acme", env=env, stdin=given)
    assert (done.status, done.err) == (0, "")
    assert done.rows == [
        f"request /v1/chat/completions, {len(given):,} bytes",
        "canonical 20,979 bytes",
        "blocks 40 full (40 x 512 bytes), 499 bytes behind them",
        "namespace model qwen, salt yes, tenant yes",
        "tokens about 6,244, 1 media parts, answer at most 64",
        "reads cache no: the worker computes all of it (prompt_logprobs or echo)",
        "continues a prompt of 20,020 bytes",
        "only the prompt is explained: PREFIX_REDIS_URL is not set",
    ]
    assert not re.search("hush|acme|sss|aaa|hello", done.out)


def test_blocks_grow_and_end_with_the_window(tmp_path: Path) -> None:
    """The sizes are printed as runs, and what lies behind the window is said to be counted only."""
    file = tmp_path / "body.json"
    file.write_text(body({"role": "user", "content": "u" * 100_000}))
    done = run("explain", str(file), "--json", env={"PREFIX_WINDOW_BYTES": "65536"})
    assert done.json == {
        "prompt": {
            "path": "/v1/chat/completions",
            "body_bytes": file.stat().st_size,
            "skip": None,
            "canonical_bytes": 100_006,
            "blocks": 80,
            "block_sizes": [[64, 512], [16, 2048]],
            "tail_bytes": 100_006 - 65_536,
            "window_bytes": 65_536,
            "model": "fake-model",
            "salt": False,
            "tenant": False,
            "tokens": 25_001,
            "media_parts": 0,
            "output_tokens": 0,
            "reads_cache": True,
            "continues_bytes": None,
        },
        "mirror": None,
        "workers": [],
        "choice": None,
    }
    table = run("explain", str(file), env={"PREFIX_WINDOW_BYTES": "65536"})
    assert "counted but not hashed (window_bytes 65,536)" in " ".join(table.rows)


@pytest.mark.parametrize(
    ("arguments", "env", "given", "said"),
    [
        (["--path", "/v1/embeddings"], {}, "{}", "path: this path is none of PREFIX_PATHS"),
        ([], {}, "not json", "unparsable: it is no JSON request that vLLM would take on this path"),
        (["--path", "/v1/completions"], {}, '{"prompt": ["a", "b"]}', "batch: it holds several prompts"),
        (
            ["--path", "/v1/responses"],
            {},
            '{"input": "x", "previous_response_id": "r"}',
            "stateful: its prompt is on the server",
        ),
        ([], {"PREFIX_MODE": "off"}, body(*MESSAGES), "off: PREFIX_MODE is off"),
        (
            [],
            {"PREFIX_MAX_BODY_BYTES": "1024"},
            body(*MESSAGES),
            "too_large: it is longer than max_body_bytes",
        ),
    ],
)
def test_a_skipped_request_says_its_reason(
    arguments: list[str], env: dict[str, str], given: str, said: str
) -> None:
    """What a gateway would pass unrouted is explained by the reason that it would count, with status 0."""
    done = run("explain", "-", *arguments, env=env, stdin=given)
    path = arguments[1] if arguments else "/v1/chat/completions"
    size = min(len(given), 1025) if "PREFIX_MAX_BODY_BYTES" in env else len(given)
    assert (done.status, done.err) == (0, "")
    assert done.rows == [f"request {path}, {size:,} bytes", f"skipped {said}"]


@pytest.mark.anyio
async def test_a_follow_up_is_shown_with_who_holds_it_and_why(workers: Workers, redis: RedisServer) -> None:
    """The match, the loads of all gateways and the inequality are those of the fleet at this moment."""
    env = {**workers.env, "PREFIX_REDIS_URL": redis.url}
    async with gateway(workers, redis) as runtime:
        home = (await answering(runtime, hashed(body(*MESSAGES).encode()), redis)).worker
        base = "w2" if home == "w1" else "w1"
        done = await looked("explain", "-", "--seconds", "10", env=env, stdin=body(*MESSAGES, *TURNS))
        same = await looked("explain", "-", "--seconds", "10", "--json", env=env, stdin=body(*MESSAGES))
    figures = {
        home: "ready 39/40 4,992 yes 1 1,150 FILL",
        base: "ready 0/40 0 no 0 0 0.0 %",
        "w3": "not ready 0/40 0 no 0 0 0.0 %",
    }
    assert (done.status, done.err) == (0, "")
    assert [re.sub(r"[1-9]\.\d %$", "FILL", row) for row in done.rows[7:]] == [
        "worker state blocks tokens continues in-flight load fill",
        *(f"{name} {figures[name]}" for name in ("w1", "w2", "w3")),
        f"[PREFIX] hit: {home} keeps 39/40 blocks (slots=1 min=0 slack=14, ~5236 tokens)",
        f"load 1150 - base 0 = 1150 <= allowance 14976: follow {home}",
    ]
    assert same.json["mirror"] == {"reached": True, "complete": True, "reason": None, "foreign": 0}
    assert same.json["choice"] == {
        "decision": {
            "reason": "hit",
            "worker": home,
            "previous": None,
            "matched_blocks": 39,
            "blocks": 39,
            "matched_tokens": 4992,
            "best_tokens": 4992,
            "tokens": 5005,
            "slots": 1,
            "min_slots": 0,
            "slack": 14,
            "load": 1150.15,
            "base_load": 0.0,
            "allowance": 14976.0,
            "model": "fake-model",
            "policy": "tokens",
        },
        "base": base,
        "because": f"load 1150 - base 0 = 1150 <= allowance 14976: follow {home}",
        "otherwise": [],
    }


@pytest.mark.anyio
async def test_gateways_with_another_secret_are_counted(workers: Workers, redis: RedisServer) -> None:
    """Entries that cannot be compared are said to be ignored, and nothing of them is shown as held."""
    env = {**workers.env, "PREFIX_REDIS_URL": redis.url}
    async with gateway(workers, redis, secret="another secret") as runtime:
        await answering(runtime, hashed(body(*MESSAGES).encode(), "another secret"), redis)
        done = await looked("explain", "-", "--seconds", "10", "--json", env=env, stdin=body(*MESSAGES))
    foreign = done.json["mirror"]["foreign"]
    assert done.err == (
        f"mirror: {foreign} entries of gateways with another secret, window_bytes or version are ignored\n"
    )
    assert (foreign > 0, done.status, [held["matched_blocks"] for held in done.json["workers"]]) == (
        True,
        0,
        [0, 0, 0],
    )


def test_a_mirror_that_is_not_there_is_status_3(workers: Workers) -> None:
    """The prompt and the workers' health are printed all the same, and one line says what was tried."""
    env = {**workers.env, "PREFIX_REDIS_URL": f"redis://:hush@127.0.0.1:{free_port()}/0"}
    done = process("explain", "-", "--seconds", "0.5", env=env, stdin=body(*MESSAGES))
    assert (done.status, done.err.count("\n"), "hush" in done.err) == (3, 1, False)
    assert done.err.startswith("mirror: not reached within 0.5 s: ConnectionError: ")
    assert done.rows[7:] == [
        "worker state blocks tokens continues in-flight load fill",
        "w1 ready 0/39 0 no 0 0 0.0 %",
        "w2 ready 0/39 0 no 0 0 0.0 %",
        "w3 not ready 0/39 0 no 0 0 0.0 %",
    ]


def test_a_look_that_is_cut_off_says_so(workers: Workers, redis: RedisServer) -> None:
    """Too short a time to hear every gateway's loads is no failure, but the reader is told."""
    env = {**workers.env, "PREFIX_REDIS_URL": redis.url}
    done = run("explain", "-", "--seconds", "0.9", "--json", env=env, stdin=body(*MESSAGES))
    assert done.json["mirror"] == {"reached": True, "complete": False, "reason": None, "foreign": 0}
    assert (done.status, done.err) == (
        0,
        "mirror: cut off after 0.9 s: records or loads may be missing; --seconds gives more\n",
    )


@pytest.mark.parametrize(
    ("arguments", "env", "status", "line"),
    [
        (["nowhere.json"], {}, 1, "nowhere.json: No such file or directory"),
        (["."], {}, 1, ".: Is a directory"),
        (["-"], {"PREFIX_POLICY": "x"}, 2, "policy='x': accepted is one of tokens, requests, cost"),
        (["-"], {"PREFIX_REDIS_URL": "http://x"}, 2, "redis_url=***: accepted is redis://, rediss:// or"),
    ],
)
def test_bad_input_is_one_line_on_stderr(
    arguments: list[str], env: dict[str, str], status: int, line: str
) -> None:
    """A missing file is status 1, a wrong setting 2; never a traceback, and nothing on stdout."""
    done = process("explain", *arguments, env=env)
    assert (done.status, done.out, done.err.count("\n")) == (status, "", 1)
    assert done.err.startswith(line)


def test_what_is_ignored_is_said() -> None:
    """A tenant without its setting and a misspelt variable are named, and the rest goes on."""
    done = run("explain", "-", "--tenant", "a", env={"PREFIX_POLICI": "x"}, stdin=body(*MESSAGES))
    assert (done.status, "tenant no" in done.out) == (0, True)
    assert done.err.splitlines() == [
        "PREFIX_POLICI: no such setting, ignored",
        "--tenant: ignored, as PREFIX_TENANT_HEADER is not set",
    ]


@pytest.mark.parametrize("command", ["explain", "logs"])
def test_a_closed_stdin_is_one_line(command: str) -> None:
    """A job without stdin is told so, and gets status 1 and no traceback."""
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, command, "-"]
    done = subprocess.run(closed, capture_output=True, text=True, timeout=60, env=environment())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


@pytest.mark.parametrize("seconds", ["nan", "0", "61", "x"])
def test_a_wrong_time_is_a_usage_error(seconds: str) -> None:
    """A look is bounded: what is no time of 0.1 to 60 s is refused before anything is asked."""
    done = run("explain", "-", "--seconds", seconds)
    assert (done.status, done.out, "--seconds" in done.err) == (2, "", True)
