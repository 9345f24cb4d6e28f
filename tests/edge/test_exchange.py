"""One request from choice to end: when it starts, when it is counted out, and that the host's messages pass untouched."""

import asyncio
from collections.abc import Sequence

import pytest
from starlette.types import Message, Receive, Scope, Send

from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.router import Router
from prefix_middleware.core.updates import Confirmed, Update
from tests.edge.asgi import (
    IDLE,
    LEFT,
    Boom,
    Client,
    answering,
    ask,
    assert_nothing_left,
    chat,
    chunk,
    eventually,
    http_scope,
    loads_of,
    mounted,
    pieces,
    read,
    router_of,
    settings_for,
    start,
)

pytestmark = pytest.mark.anyio

TOKENS = 501  # of PROMPT: 6 bytes of tags and role, 4 bytes a token
PROMPT = chat("x" * 2000)
WAITING, RUNNING = (1, TOKENS, TOKENS), (1, 0, TOKENS)
PATHSEND: Message = {"type": "http.response.pathsend", "path": "answer.txt"}


class Answer:
    """A host that sends these messages and notes the worker's load and the started prompts behind each."""

    def __init__(self, *messages: Message) -> None:
        self.messages = messages
        self.seen: list[tuple[tuple[int, int, int], bool]] = []

    async def run(self, port: int) -> Client:
        """Mount this host and make one request."""
        async with mounted(self, settings_for(port, ["w1"])) as self.middleware:
            client = await ask(self.middleware, PROMPT)
            assert_nothing_left(self.middleware)
        return client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        self._note()
        for message in self.messages:
            await send(message)
            self._note()

    def _note(self) -> None:
        self.seen.append((loads_of(self.middleware)["w1"], len(router_of(self.middleware).index) > 0))


def confirmed(updates: Sequence[Update]) -> list[str]:
    return [update.worker for update in updates if isinstance(update, Confirmed)]


@pytest.mark.parametrize("status", [200, 201, 299])
async def test_a_request_starts_with_the_first_bytes_of_a_2xx_and_ends_with_the_last(
    silent_port: int, status: int
) -> None:
    """Headers and empty chunks are no start; the last chunk counts the request out while the host still runs."""
    host = Answer(start(status), chunk(), chunk(b"a"), chunk(b"b"), chunk(b"", more=False))
    await host.run(silent_port)
    waiting, running = (WAITING, False), (RUNNING, True)
    assert host.seen == [waiting, waiting, waiting, running, running, (IDLE, True)]


@pytest.mark.parametrize("status", [100, 199, 300, 307, 400, 401, 429, 500, 503])
async def test_an_answer_that_is_no_2xx_never_starts(silent_port: int, status: int) -> None:
    """A refused or failed prompt was not computed: its record is withdrawn at the end."""
    host = Answer(start(status), chunk(b"a"), chunk(b"b", more=False))
    await host.run(silent_port)
    assert host.seen == [(WAITING, False), (WAITING, False), (WAITING, False), (IDLE, False)]


async def test_an_empty_2xx_is_counted_out_without_a_start(silent_port: int) -> None:
    """An answer without any bytes proves nothing about the worker's cache."""
    host = Answer(start(), chunk(b"", more=False))
    await host.run(silent_port)
    assert host.seen == [(WAITING, False), (WAITING, False), (IDLE, False)]


async def test_a_file_sent_by_path_starts_and_ends(silent_port: int) -> None:
    """http.response.pathsend is a whole body in one message."""
    host = Answer(start(), PATHSEND)
    await host.run(silent_port)
    assert host.seen == [(WAITING, False), (WAITING, False), (IDLE, True)]


async def test_a_file_sent_in_parts_starts_with_the_first_and_ends_with_the_last(silent_port: int) -> None:
    """http.response.zerocopysend is a part of a body, and may be mixed with others."""
    part = {"type": "http.response.zerocopysend", "file": 3, "count": 5}
    host = Answer(start(), {**part, "more_body": True}, chunk(b"a"), part)
    await host.run(silent_port)
    assert host.seen[2:] == [(RUNNING, True), (RUNNING, True), (IDLE, True)]


async def test_a_second_answer_and_late_messages_change_nothing(silent_port: int) -> None:
    """A host that goes on after its last chunk is counted out once."""
    late = [start(500), chunk(b"x"), chunk(b"y", more=False)]
    host = Answer(start(), chunk(b"a", more=False), *late, *late)
    client = await host.run(silent_port)
    assert host.seen[2:] == [(IDLE, True)] * 7
    assert [id(message) for message in client.sent] == [id(message) for message in host.messages]


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
@pytest.mark.parametrize(
    ("kind", "tokens"), [(b"text/event-stream; charset=utf-8", 4), (b"application/json", 10), (None, 10)]
)
async def test_generated_tokens_are_estimated_from_what_passes(
    silent_port: int, monkeypatch: pytest.MonkeyPatch, kind: bytes | None, tokens: int, form: type
) -> None:
    """An event of a stream is a token; of any other answer four bytes of a chunk are, in whatever form it is sent."""
    given: list[int] = []
    chunks = [b"data: a\n\n", b"", b"data: b\n\ndata: c\n\n", b"data: [DONE]\n\n  "]
    messages = [chunk(form(body), more=i < 3) for i, body in enumerate(chunks)]
    host = Answer({**start(), "headers": [(b"Content-Type", kind)] if kind else []}, *messages)
    finish = Router.finish

    def noting(router: Router, reservation: Reservation, generated: int) -> None:
        given.append(generated)
        finish(router, reservation, generated)

    monkeypatch.setattr(Router, "finish", noting)
    await host.run(silent_port)
    assert given == [tokens, tokens]


async def test_every_message_passes_as_the_same_object_in_order(silent_port: int) -> None:
    """Extensions, early hints, trailers and types not known here are the host's and the server's own affair."""
    messages: list[Message] = [
        {"type": "http.response.debug", "info": {"template": "t"}},
        {"type": "http.response.early_hint", "links": [b"</a>"]},
        {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")], "trailers": True},
        chunk(b"a"),
        {"type": "http.response.zerocopysend", "file": 3, "more_body": True},
        PATHSEND,
        chunk(b"", more=False),
        {"type": "http.response.trailers", "headers": [(b"c", b"d")], "more_trailers": False},
        {"type": "http.custom"},
    ]
    before = [dict(message) for message in messages]
    client = await Answer(*messages).run(silent_port)
    assert [id(message) for message in client.sent] == [id(message) for message in messages]
    assert messages == before


async def test_a_chunk_passes_without_another_turn_of_the_event_loop(silent_port: int) -> None:
    """`send` reaches the server's own `send` at once: driven by hand, a whole answer needs no event loop."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        for message in (start(), *[chunk(b"t")] * 50, chunk(b"", more=False)):
            step = send(message)
            with pytest.raises(StopIteration):
                step.__await__().__next__()

    client = Client(*pieces(PROMPT))
    async with mounted(host, settings_for(silent_port)) as middleware:
        await middleware(http_scope(), client.receive, send)
    assert len(sent) == 52


async def test_a_disconnect_alone_releases_nothing(silent_port: int) -> None:
    """The host may go on calling the worker, so the request counts until the app call ends."""
    loads: list[tuple[int, int, int]] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        await send(start())
        await send(chunk(b"a"))
        assert await receive() is LEFT
        loads.append(loads_of(middleware)["w1"])

    client = Client(*pieces(PROMPT), LEFT)
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        await middleware(http_scope(), client.receive, client.send)
        assert_nothing_left(middleware)
    assert loads == [RUNNING]


async def test_a_host_that_never_answers_is_counted_out_when_it_returns(silent_port: int) -> None:
    """An endpoint may end without a response, after a disconnect for example."""

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)

    async with mounted(host, settings_for(silent_port)) as middleware:
        client = await ask(middleware, PROMPT)
        assert_nothing_left(middleware)
        assert (
            client.sent,
            len(router_of(middleware).index),
            confirmed(router_of(middleware).drain(1e9)),
        ) == ([], 0, [])


async def test_four_hundred_clients_that_leave_at_once_leave_no_load(silent_port: int) -> None:
    """Requests cancelled before their first byte are gone from the loads in the same turn of the event loop."""

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        await asyncio.Event().wait()

    clients = [Client(*pieces(chat(f"{i}" * 2000))) for i in range(400)]
    async with mounted(host, settings_for(silent_port, ["w1", "w2", "w3"])) as middleware:
        tasks = [asyncio.create_task(middleware(http_scope(), c.receive, c.send)) for c in clients]
        await eventually(
            lambda: sum(load[0] for load in loads_of(middleware).values()) == 400, "400 in flight"
        )
        in_flight = [load[0] for load in loads_of(middleware).values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert_nothing_left(middleware)
    assert min(in_flight) > 60


async def test_a_thousand_requests_that_end_twice_leave_exactly_zero(silent_port: int) -> None:
    """Raising after the last chunk and a disconnect in one request count it out once, never below zero."""
    client = Client()

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await answering(scope, receive, send)
        await receive()
        await send(chunk(b"again", more=False))
        raise Boom

    async with mounted(host, settings_for(silent_port)) as middleware:
        for _ in range(1000):
            client = Client(*pieces(chat()), LEFT)
            with pytest.raises(Boom):
                await middleware(http_scope(), client.receive, client.send)
        assert_nothing_left(middleware)


@pytest.mark.parametrize("at", range(1, 11))
@pytest.mark.parametrize("fate", ["raises", "is cancelled"])
async def test_whatever_ends_a_request_counts_it_out_exactly(silent_port: int, fate: str, at: int) -> None:
    """At every receive, every send and between them: no load, no record, no bytes stay, and the host's own end leaves."""
    boom = Boom() if fate == "raises" else None
    client = Client(*pieces(PROMPT, [1000]), at=at, meets=boom)

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await client.point()
        await read(receive)
        await client.point()
        for message in (start(), chunk(), chunk(b"a"), chunk(b"b", more=False)):
            await send(message)
        await client.point()

    async with mounted(host, settings_for(silent_port)) as middleware:
        task = asyncio.create_task(middleware(http_scope(), client.receive, client.send))
        await asyncio.wait([task], timeout=20)
        assert_nothing_left(middleware)
        started = len(router_of(middleware).index) > 0
    raised = None if task.cancelled() else task.exception()
    ended = at <= 9  # the tenth point is never reached
    assert (task.cancelled(), raised) == (ended and boom is None, boom if ended else None)
    assert started == (at >= 7)


async def test_a_failure_while_counting_never_reaches_the_answer(
    silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If our own accounting fails, the client still gets every byte."""

    def broken(*_: object) -> None:
        raise RuntimeError

    async with mounted(answering, settings_for(silent_port)) as middleware:
        for name in ("start", "finish", "outcome"):
            with monkeypatch.context() as patch:
                patch.setattr(router_of(middleware), name, broken)
                assert (await ask(middleware, PROMPT)).answer == b"ok"
