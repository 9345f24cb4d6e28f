"""Text from outside in our lines: names of models, what workers say of themselves, and the host's own copy of a decision."""

import json
import logging

import pytest
from starlette.types import Receive, Scope, Send

from prefix_middleware.carry.context import current
from prefix_middleware.telemetry import Telemetry
from tests.edge.asgi import (
    answering,
    ask,
    assert_nothing_left,
    chat,
    counts_of,
    http_scope,
    mounted,
    router_of,
    settings_for,
)
from tests.edge.logs import Keeper, figures
from tests.edge.polled import rig

pytestmark = pytest.mark.anyio


@pytest.fixture
def kept(logger: logging.Logger) -> Keeper:
    """A handler of the host's for INFO lines of ours."""
    keeper = Keeper()
    logger.addHandler(keeper)
    logger.setLevel(logging.INFO)
    return keeper


@pytest.mark.parametrize("form", ["line", "json"])
@pytest.mark.parametrize(
    "name", ["m\n[PREFIX] hit: w9", "m\r\x1b[31m\x00\x9b2J", "\ud800\u2028\u202e\x85", "%s%d"]
)
async def test_a_model_name_leaves_one_printable_line_in_our_own_handlers(
    silent_port: int, capsys: pytest.CaptureFixture[str], form: str, name: str
) -> None:
    """Line ends, terminal codes, lone surrogates and directions: each request is one line of printable ASCII on stderr."""
    async with mounted(answering, settings_for(silent_port, ["w1"], log=form)) as middleware:
        await ask(middleware, chat(model=name))
        router_of(middleware).set_ready("w1", False, 0.0)
        await ask(middleware, chat(model=name))
    lines = capsys.readouterr().err.rstrip("\n").split("\n")
    events = [json.loads(line)["event"] if form == "json" else line for line in lines]
    assert [line for line in [*lines, *events] if not (line.isascii() and line.isprintable())] == []
    assert [event.split(":")[0] for event in events] == ["[PREFIX] only", "[PREFIX] none"]


HOSTILE = ("w9", "w1\n[PREFIX] hit: w9", "\x1b[2J\x07", "http://evil/", "\ud800\u202e", "w" * 100_000)


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value)[:20])
async def test_an_answer_that_names_a_stranger_as_its_server_changes_and_logs_nothing(
    silent_port: int, kept: Keeper, value: str
) -> None:
    """X-Prefix-Served counts only when it is a worker that the gateway was told of: no other text of it is kept or shown."""

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        carried = current.get()
        assert carried is not None
        carried.served(value, 200)
        await answering(scope, receive, send)

    scope = http_scope()
    async with mounted(host, settings_for(silent_port, ["w1", "w2"])) as middleware:
        await ask(middleware, chat("x" * 2000), scope)
        await ask(middleware, chat("x" * 2000), scope := http_scope())
        assert (scope["prefix_middleware"].matched_blocks, counts_of(middleware).get("errors")) == (3, None)
        assert_nothing_left(middleware)
    assert [figures(line)["reason"] for line in kept.lines] == ["miss", "hit"]


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value)[:20])
async def test_a_models_list_of_a_worker_is_never_shown(kept: Keeper, value: str) -> None:
    """Names that a worker gives to its models are compared with requests, and stand in no line."""
    async with rig() as (polled, vllm):
        vllm.models = json.dumps({"data": [{"id": value}, {"id": 5 if value == "w9" else "m"}]}).encode()
        assert await polled.poll(2)
    assert kept.lines == ["[PREFIX] worker w1 is ready"]


async def test_the_hosts_own_copy_of_a_decision_has_the_models_name_as_sent(silent_port: int) -> None:
    """`scope["prefix_middleware"]` is for code: who logs it must make the client's text harmless himself."""
    scope, name = http_scope(), "m\n[PREFIX] \x1b[31m"
    async with mounted(answering, settings_for(silent_port, ["w1"])) as middleware:
        await ask(middleware, chat(model=name), scope)
    assert scope["prefix_middleware"].model == name


def test_a_state_or_warning_is_one_printable_line_whoever_has_worded_it(kept: Keeper) -> None:
    """Parts of them may come from a Redis, a worker or the environment; their letters stay, their controls do not."""
    telemetry, said = Telemetry("host"), "réseau\n[PREFIX] \x1b[31m\x9b\u2028\u202e\ud800\x00 end"
    telemetry.state("mirror_lost", said, bad=True, worker=said)
    telemetry.warn("event", f"[PREFIX] warning: {said}", reason=said)
    telemetry.error("other", f"[PREFIX] error: {said}", count=3)
    clean = "réseau?[PREFIX] ?[31m????? end"
    assert kept.lines == [f"[PREFIX] {clean}", f"[PREFIX] warning: {clean}", f"[PREFIX] error: {clean}"]
    fields = [vars(record) for record in kept.records]
    assert (fields[0]["worker"], fields[1]["reason"], fields[2]["count"]) == (clean, clean, 3)
