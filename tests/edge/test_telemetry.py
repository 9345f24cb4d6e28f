"""What is logged and counted: five lines whose figures are fields, counted skips, and a host's logging left alone."""

import asyncio
import json
import logging

import pytest
import structlog
from starlette.types import Receive, Scope, Send

from prefix_middleware import Decision, PrefixMiddleware
from prefix_middleware.telemetry import Telemetry
from tests.edge.asgi import (
    answering,
    ask,
    chat,
    counts_of,
    http_scope,
    mounted,
    router_of,
    settings_for,
    skips_of,
)
from tests.edge.logs import Keeper, Raiser, decision_of, fields_of, figures

pytestmark = pytest.mark.anyio

PROMPT = chat("x" * 600)  # one block, 151 tokens: one request in flight outweighs what it saves


@pytest.fixture
def kept(logger: logging.Logger) -> Keeper:
    """A handler of the host's for INFO lines of ours."""
    keeper = Keeper()
    logger.addHandler(keeper)
    logger.setLevel(logging.INFO)
    return keeper


async def decide(reason: str, port: int, **options: object) -> Decision:
    """Bring about one decision with this reason; return what the host's scope had for the last request."""
    scope, called, hold = http_scope(), asyncio.Barrier(3), asyncio.Event()

    async def holding(scope: Scope, receive: Receive, send: Send) -> None:
        await called.wait()
        await hold.wait()

    ids = ["w1"] if reason == "only" else ["w1", "w2"]
    async with (
        mounted(answering, settings_for(port, ids, **options)) as middleware,
        asyncio.TaskGroup() as group,
    ):
        if reason == "none":
            for name in ids:
                router_of(middleware).set_ready(name, False, 0.0)
        if reason in ("hit", "busy"):
            await ask(middleware, PROMPT)
        if reason == "busy":
            middleware.app = holding
            for _ in range(2):
                group.create_task(ask(middleware, PROMPT))
            await called.wait()
            middleware.app = answering
        await ask(middleware, PROMPT, scope)
        hold.set()
    decision = scope["prefix_middleware"]
    assert isinstance(decision, Decision)
    return decision


@pytest.mark.parametrize("reason", ["miss", "hit", "busy", "only", "none"])
async def test_every_figure_of_a_line_is_a_field_of_its_record(
    silent_port: int, kept: Keeper, reason: str
) -> None:
    """The line reads back to the record's own attributes, which are the decision that the host has in its scope."""
    decision = await decide(reason, silent_port)
    record = [record for record in kept.records if hasattr(record, "matched_tokens")][-1]
    said, attributes = figures(record.getMessage()), decision_of(record)
    assert (record.levelname, attributes) == ("INFO", fields_of(decision))
    assert said == {name: str(attributes[name]) for name in said}
    assert (said["reason"], decision.tokens) == (reason, 151)


@pytest.mark.parametrize("reason", ["miss", "hit", "busy", "only", "none"])
async def test_the_json_form_is_one_object_a_line_with_the_same_fields(
    silent_port: int, capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    """log="json" writes time, level, event and the decision's fields to stderr, one object a line."""
    decision = await decide(reason, silent_port, log="json")
    output = capsys.readouterr()
    entries = [json.loads(line) for line in output.err.splitlines()]
    entry = next(entry for entry in reversed(entries) if "matched_tokens" in entry)
    assert isinstance(entry.pop("time"), float)
    event = entry.pop("event")
    assert (output.out, entry) == ("", {"level": "INFO", **fields_of(decision)})
    assert figures(event)["reason"] == reason


async def test_the_line_form_is_the_bare_line(
    silent_port: int, capsys: pytest.CaptureFixture[str], kept: Keeper
) -> None:
    """log="line" writes the line alone to stderr, once even with two mounts, and not to the host's root handlers."""
    root = Keeper()
    logging.getLogger().addHandler(root)
    try:
        PrefixMiddleware(answering, settings_for(silent_port, log="line"))
        await decide("only", silent_port, log="line")
    finally:
        logging.getLogger().removeHandler(root)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "only" in line]
    assert (figures(line)["worker"], [text for text in root.lines if "PREFIX" in text]) == ("w1", [])


@pytest.mark.parametrize(
    ("reason", "body", "fields"),
    [
        ("path", chat(), {"path": "/v1/embeddings"}),
        ("path", b"", {"method": "GET"}),
        ("unparsable", b"{", {}),
        ("too_large", chat("x" * 3000), {}),
        ("encoded", chat(), {"headers": [(b"content-encoding", b"gzip")]}),
        ("stateful", b'{"input": "a", "previous_response_id": "r"}', {"path": "/v1/responses"}),
        ("batch", b'{"prompt": ["a", "b"]}', {"path": "/v1/completions"}),
        ("truncated", chat(truncate_prompt_tokens=5), {}),
    ],
)
async def test_a_skip_is_counted_by_its_reason_and_not_logged(
    silent_port: int, kept: Keeper, reason: str, body: bytes, fields: dict[str, object]
) -> None:
    """A request that passes unrouted is one count under one of the closed set of reasons."""
    async with mounted(answering, settings_for(silent_port, max_body_bytes=2048)) as middleware:
        await ask(middleware, body, http_scope(**fields))  # type: ignore[arg-type] # by name
        counts = counts_of(middleware)
        assert (skips_of(middleware), counts["skips"], counts.get("decisions")) == ({reason: 1}, 1, None)
    assert kept.lines == []


async def test_decisions_carriers_and_errors_are_counted(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure of ours is counted each time and logged once, as type and place without its text."""

    def broken(*_: object) -> None:
        raise RuntimeError("marker-text")

    keeper = Keeper()
    logging.getLogger("prefix_middleware").addHandler(keeper)
    async with mounted(answering, settings_for(silent_port)) as middleware:
        await ask(middleware)
        monkeypatch.setattr(middleware._runtime._hasher, "hash", broken)
        await ask(middleware)
        await ask(middleware)
        counts = counts_of(middleware)
    numbers = [counts[name] for name in ("decisions", "decisions.miss", "errors", "skips.error")]
    [error] = [record for record in keeper.records if record.levelno == logging.ERROR]
    assert (numbers, error.exc_info, "marker-text" in error.getMessage()) == ([1, 1, 2, 2], None, False)
    assert error.getMessage().startswith("[PREFIX] error: RuntimeError at test_telemetry.py:")


@pytest.mark.parametrize("reason", ["miss", "none", "only"])
async def test_a_broken_handler_of_the_host_harms_no_request(
    silent_port: int, logger: logging.Logger, reason: str
) -> None:
    """Logging that raises, on every record, reaches neither the request nor its start."""
    logger.addHandler(Raiser())
    logger.setLevel(logging.INFO)
    assert (await decide(reason, silent_port)).reason == reason


async def test_a_suspect_worker_is_said_once_it_is_left_alone(silent_port: int, kept: Keeper) -> None:
    """Two failures in a row of one worker make one warning that names it and for how long."""

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})

    async with mounted(failing, settings_for(silent_port, ["w1"])) as middleware:
        await ask(middleware)
        await ask(middleware)
    [record] = [record for record in kept.records if record.levelname == "WARNING"]
    line = "[PREFIX] worker w1 is suspect: it failed twice in a row; left alone for 2 s"
    assert (record.getMessage(), vars(record)["worker"], vars(record)["seconds"]) == (line, "w1", 2.0)


async def test_the_hosts_logging_is_left_alone(silent_port: int, logger: logging.Logger) -> None:
    """log="host" adds no handler, sets no level and configures neither logging nor structlog."""
    root = logging.getLogger()

    def state() -> list[object]:
        return [(list(log.handlers), log.level, log.propagate, log.disabled) for log in (root, logger)]

    before = state()
    await decide("hit", silent_port)
    assert (state(), structlog.is_configured()) == (before, False)


async def test_without_a_handler_one_warning_says_how_to_see_the_lines(
    silent_port: int, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that drops INFO is told once, by a warning, which setting shows the lines."""
    keeper = Keeper()
    keeper.setLevel(logging.WARNING)
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(keeper)
    await decide("hit", silent_port)
    [line] = keeper.lines
    assert "PREFIX_LOG=line" in line


@pytest.mark.parametrize("where", ["own", "root"])
async def test_a_host_that_shows_info_gets_no_warning(
    silent_port: int, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A handler for INFO on our logger or on a parent is enough."""
    keeper, root = Keeper(), logging.getLogger()
    log = logger if where == "own" else root
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(log, "handlers", [keeper])
    monkeypatch.setattr(log, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined] # levels are cached
    decision = await decide("only", silent_port)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    assert [figures(line)["worker"] for line in keeper.lines] == [decision.worker]


def test_counting_never_raises() -> None:
    """Any name and number may be counted."""
    telemetry = Telemetry("host")
    telemetry.count("merged", 0)
    telemetry.count("merged", 3)
    assert dict(telemetry.counts) == {"merged": 3}


async def test_settings_with_redis_and_no_secret_are_warned_about_once(
    silent_port: int, kept: Keeper
) -> None:
    """What sits in Redis can be used to test guesses at prompts unless a secret keys it."""
    for secret in (None, "12345678"):
        settings = settings_for(silent_port, redis_url="redis://127.0.0.1:1", secret=secret)
        async with mounted(answering, settings) as middleware:
            await ask(middleware)
            await ask(middleware)
    assert len([line for line in kept.lines if "PREFIX_SECRET" in line]) == 1
