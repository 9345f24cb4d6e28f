"""Whatever happens to a request, server, host and outer middlewares see what they would see without the middleware.

Each script is played twice, bare and mounted, and everything that anybody can tell of the two is compared.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from itertools import count, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from prefix_middleware import PrefixMiddleware
from tests.edge.asgi import (
    LEFT,
    Boom,
    assert_nothing_left,
    chat,
    chunk,
    counts_of,
    http_scope,
    mounted,
    pieces,
    sent_headers,
    settings_for,
    start,
)
from tests.edge.faults import Fault, Outcome, Patience, Place, Script, Step, scripted_host

pytestmark = pytest.mark.anyio

CAP = 2048
MODES: Mapping[str, Mapping[str, str]] = {
    "on": {},
    "carried": {"upstream_url": "http://nginx"},
    "egress": {"upstream_url": "http://nginx", "decide": "egress"},
    "shadow": {"mode": "shadow"},
    "off": {"mode": "off"},
}
FAILURES: Sequence[BaseException] = (
    Boom("the host's own"),
    RuntimeError("generator raised StopIteration"),
    StopAsyncIteration(),
    OSError("the client has left"),
    ExceptionGroup("two", [Boom(), ValueError()]),
    asyncio.CancelledError("by the server"),
    BaseExceptionGroup("both", [asyncio.CancelledError(), Boom()]),
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
)
CANCELLATIONS = [failure for failure in FAILURES if not isinstance(failure, Exception)]
FORGED = [(b"X-Prefix_Worker", b"evil")]
REQUESTS: Mapping[str, tuple[Mapping[str, Any], bytes]] = {
    "routed": ({}, chat("x" * 1200)),
    "not JSON": ({}, b'{"messages": ' + b"[" * 1000),
    "over the cap": ({}, chat("x" * 2 * CAP)),
    "declared too long": ({"headers": [*FORGED, (b"content-length", b"9999")]}, chat("x" * 2 * CAP)),
    "encoded": ({"headers": [*FORGED, (b"content-encoding", b"gzip")]}, chat()),
    "another path": ({"path": "/v1/embeddings"}, chat()),
    "a websocket": ({"type": "websocket"}, chat()),
}
EXTRAS: Sequence[Message] = (
    {"type": "http.response.early_hint", "links": [b"</style.css>; rel=preload"]},
    {"type": "http.response.push", "path": "/x", "headers": []},
    {"type": "http.response.debug", "info": {"template": "t"}},
    {"type": "http.response.zerocopysend", "file": 3, "count": 5},
    {"type": "http.response.pathsend", "path": "answer.txt"},
    {"type": "http.response.trailers", "headers": [(b"a", b"b")], "more_trailers": False},
    {"type": "websocket.http.response.start", "status": 403},
    {"type": "http.custom"},
    {"type": "http.response.start"},
    {"type": "http.response.body", "body": None},
    {"type": "http.response.body", "body": memoryview(b"data: x"), "more_body": True},
    {"type": "http.response.body", "body": bytearray(b"x" * 40), "more_body": False},
    {},
)
EVENTS: Message = {**start(), "headers": [(b"Content-Type", b"text/event-stream; charset=utf-8")]}
OPENINGS: Sequence[Message] = (start(), start(500), start(503), {**EVENTS, "trailers": True})
RECEIVE, WAIT = Step("receive"), Step("wait")


def send(*messages: Message) -> list[Step]:
    return [Step("send", message) for message in messages]


ANSWER = send(EVENTS, chunk(), chunk(b"data: 1\n\n"), chunk(b"data: 2\n\n"), chunk(b"", more=False))
HOSTS: Mapping[str, Sequence[Step]] = {
    "reads, answers and listens": [*[RECEIVE] * 3, WAIT, *ANSWER, RECEIVE, WAIT],
    "refuses unread": [WAIT, *send(start(401), chunk(b"no", more=False))],
    "answers while it reads": [RECEIVE, *ANSWER[:3], RECEIVE, RECEIVE, *ANSWER[3:], RECEIVE, RECEIVE],
    "answers twice": [*[RECEIVE] * 3, *ANSWER, *send(start(500), chunk(b"x", more=False))],
    "raises in the middle": [*[RECEIVE] * 3, *ANSWER[:3], Step("raise", failure=Boom("in the middle"))],
    "never answers": [*[RECEIVE] * 5],
}
PATIENCE: Sequence[Patience] = ((), (Exception,), (BaseException,))


def scripts_of(body: bytes) -> Iterator[Sequence[Message]]:
    """Yield what a client may send of a body: all, in one or three messages, or less before it leaves."""
    whole, three = pieces(body), pieces(body, [40, 0])
    yield from (whole, three, [*three, LEFT], [LEFT], three[:1], [*three[:2], LEFT, LEFT])


def holds(middleware: PrefixMiddleware, script: Script, fields: Mapping[str, Any]) -> None:
    """Play a script bare and mounted; fail unless both go alike and nothing is left."""
    scopes = [http_scope(**{"headers": FORGED, **fields}) for _ in range(2)]
    without, mounted_ = script.run(scripted_host, scopes[0]), script.run(middleware, scopes[1])
    assert mounted_ == expected(script, without, called="called" in mounted_.seen)
    assert_nothing_left(middleware)
    ids = [b"w1", b"w2"]
    assert (len(sent_headers(scopes[1])) <= 1, set(sent_headers(scopes[1])) <= set(ids)) == (True, True)


def expected(script: Script, without: Outcome, *, called: bool) -> Outcome:
    """Return what a mounted call should show: only a cancellation while the body is held keeps the host out of it."""
    if called:
        return without
    fault = script.fault
    assert fault is not None
    assert (fault.place, isinstance(fault.failure, Exception)) == ("receive", False)
    nobody: dict[str, int] = {"send": 0, "host": 0}
    return replace(
        without,
        sent=[],
        seen=[],
        left=fault.failure,
        chain=(None, None, False),
        billing="outer",
        waits=nobody,
    )


def faults() -> Iterator[tuple[Patience, Fault | None]]:
    """Yield no fault, then every failure, at every place in turn, to hosts more and less patient."""
    yield (), None
    places: list[tuple[Place, int]] = [("host", 1), ("host", 2)]
    for nth in range(1, 8):
        places += [("receive", nth), ("send", nth)]
    for number, (place, nth) in enumerate(places):
        for failure in (FAILURES[number % len(FAILURES)], FAILURES[5]):
            yield PATIENCE[number % len(PATIENCE)], Fault(place, nth, failure)


@pytest.mark.parametrize("request_", REQUESTS)
async def test_any_failure_at_any_wait_goes_as_without_us(silent_port: int, request_: str) -> None:
    """An exception or a cancellation at every receive, send and wait of every host leaves as the same object."""
    fields, body = REQUESTS[request_]
    async with mounted(scripted_host, settings_for(silent_port, max_body_bytes=CAP)) as middleware:
        for incoming, steps in product(scripts_of(body), HOSTS.values()):
            for patience, fault in faults():
                holds(middleware, Script(incoming, steps, patience, fault), fields)
        assert "errors" not in counts_of(middleware)


STEPS = st.one_of(
    st.just(RECEIVE),
    st.just(WAIT),
    st.sampled_from([*OPENINGS, chunk(b"data: 1\n\n"), chunk(), chunk(b"z", more=False), *EXTRAS]).map(
        lambda message: Step("send", message)
    ),
    st.sampled_from(FAILURES).map(lambda failure: Step("raise", failure=failure)),
)
FAULTS = st.builds(
    Fault, st.sampled_from(["receive", "send", "host"]), st.integers(1, 6), st.sampled_from(FAILURES)
)


@st.composite
def scripts(draw: st.DrawFn) -> tuple[Mapping[str, Any], Script]:
    fields, body = draw(st.sampled_from(list(REQUESTS.values())))
    whole = pieces(body, draw(st.lists(st.integers(0, 600), max_size=4)))
    part = [*whole[: draw(st.integers(0, len(whole)))], *draw(st.lists(st.just(LEFT), max_size=2))]
    incoming = draw(st.sampled_from([whole, part]))
    steps = draw(st.lists(STEPS, max_size=12))
    return fields, Script(incoming, steps, draw(st.sampled_from(PATIENCE)), draw(st.none() | FAULTS))


@pytest.mark.parametrize("mode", MODES)
async def test_any_host_and_any_client_go_as_without_us(silent_port: int, mode: str) -> None:
    """Second answers, trailers, early hints, pushes, files and malformed messages, in any order, with any one fault."""
    given_settings = settings_for(silent_port, max_body_bytes=CAP, **MODES[mode])
    async with mounted(scripted_host, given_settings) as middleware:

        @settings(max_examples=120, deadline=None, derandomize=True, database=None)
        @given(scripts())
        def play(drawn: tuple[Mapping[str, Any], Script]) -> None:
            holds(middleware, drawn[1], drawn[0])

        play()
        assert "errors" not in counts_of(middleware)


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancellation_at_every_wait_leaves_and_leaves_nothing(silent_port: int, mode: str) -> None:
    """Thrown into the first wait, the second, and so on until the call is over before it: it is what leaves."""
    given_settings = settings_for(silent_port, max_body_bytes=CAP, **MODES[mode])
    async with mounted(scripted_host, given_settings) as middleware:
        for (fields, body), steps in product(REQUESTS.values(), HOSTS.values()):
            for waits in count():
                failure = CANCELLATIONS[waits % len(CANCELLATIONS)]
                left = thrown(middleware, fields, body, steps, failure, waits)
                if left is None:
                    break
                assert left is failure
                assert_nothing_left(middleware)
            assert waits >= 3


def thrown(
    middleware: PrefixMiddleware,
    fields: Mapping[str, Any],
    body: bytes,
    steps: Sequence[Step],
    failure: BaseException,
    waits: int,
) -> BaseException | None:
    """Throw a failure into a call after so many waits; return what leaves, None if the call is over before."""
    quiet = [step for step in steps if step.do != "raise"]
    script = Script(pieces(body, [40, 0]), quiet)
    server, _, call = script.begin(middleware, http_scope(**fields))
    while call.taken < waits and not call.over:
        call.move()
    if call.over:
        return None
    sent = [id(message) for message in server.sent]
    call.move(failure)
    assert (call.over, [id(message) for message in server.sent]) == (True, sent)
    return call.left


@pytest.mark.parametrize("mode", MODES)
async def test_a_forgotten_call_is_counted_out_from_any_context(silent_port: int, mode: str) -> None:
    """A garbage collection closes a call at any wait, in whatever context it runs; nothing stays and nothing is raised."""
    given_settings = settings_for(silent_port, max_body_bytes=CAP, **MODES[mode])
    async with mounted(scripted_host, given_settings) as middleware:
        for waits in range(20):
            script = Script(pieces(REQUESTS["routed"][1], [40, 0]), HOSTS["reads, answers and listens"])
            _, _, call = script.begin(middleware, http_scope())
            context = copy_context()
            for _ in range(waits):
                if not call.over:
                    context.run(call.move)
            copy_context().run(call.abandon)
            assert call.left is None
            assert_nothing_left(middleware)


@pytest.mark.parametrize("mode", MODES)
async def test_requests_in_any_order_count_for_themselves(silent_port: int, mode: str) -> None:
    """However the steps of several requests come between each other, each goes as alone, and the last leaves zero."""
    given_settings = settings_for(silent_port, max_body_bytes=CAP, **MODES[mode])
    async with mounted(scripted_host, given_settings) as middleware:

        @settings(max_examples=25, deadline=None, derandomize=True, database=None)
        @given(st.lists(scripts(), min_size=2, max_size=5), st.lists(st.integers(0, 4), max_size=80))
        def play(drawn: list[tuple[Mapping[str, Any], Script]], order: list[int]) -> None:
            alone = [script.run(scripted_host, http_scope(**fields)) for fields, script in drawn]
            begun = [script.begin(middleware, http_scope(**fields)) for fields, script in drawn]
            contexts = [copy_context() for _ in drawn]
            for number in [*order, *range(len(begun))]:
                call = begun[number % len(begun)][2]
                if not call.over:
                    contexts[number % len(begun)].run(call.move)
            for (_, _, call), context in zip(begun, contexts, strict=True):
                context.run(call.finish)
            assert_nothing_left(middleware)
            for (server, host, call), before in zip(begun, alone, strict=True):
                if host.seen:
                    sent = [id(message) for message in server.sent]
                    assert (sent, host.seen, call.left) == (before.sent, before.seen, before.left)

        play()
