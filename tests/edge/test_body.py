"""The request body: held, read, and given to the host as if nobody had looked."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Iterable

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from prefix_middleware import PrefixMiddleware
from tests.edge.asgi import (
    CHAT,
    LEFT,
    Boom,
    Client,
    answering,
    ask,
    assert_nothing_left,
    chat,
    chunk,
    http_scope,
    mounted,
    pieces,
    read,
    sent_headers,
    settings_for,
    skips_of,
    start,
)

pytestmark = pytest.mark.anyio

TOOL_TURN = (
    b'{"model":"m", "return_token_ids":true,"chat_template_kwargs":{"enable_thinking":false},"context_management":{"edits":[]},'
    b'"messages":[{"role":"user","content":"\xc3\xa9\\/"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1",'
    b'"type":"function","function":{"name":"f","arguments":"{\\"b\\":1,\\"a\\":2}"}}]},'
    b'{"role":"tool","tool_call_id":"c1","content":"x"}]}'
)
ODD_BODIES = [
    *[
        b"",
        b"[]",
        b'"hi"',
        b"null",
        b"3",
        b'{"model":"m","messages":[{"role":"user","content":"hi"',
        b"\xff\xfe{}",
    ],
    *[b'{"messages":null}', b'{"messages":"hi"}', b'{"messages":[null,1,"x"]}', b'{"tools":{"a":1}}'],
    *[b"[" * 1100 + b"]" * 1100, b'{"messages":' + b"[" * 100_000],
    b'{"model":["m"],"messages":[{"role":5,"content":{"a":1}}]}',
]


class Recorder:
    """A host that keeps the messages it is given."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.headers: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers = sent_headers(scope)
        self.messages = await read(receive)
        await send(start())
        await send(chunk(b"ok", more=False))


def body_of(messages: Iterable[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in messages)


def random_messages(rng: random.Random) -> list[Message]:
    body = (
        chat(rng.randbytes(rng.randrange(3000)).hex())
        if rng.random() < 0.7
        else rng.randbytes(rng.randrange(5000))
    )
    messages = pieces(body, [rng.choice((0, 1, 7, rng.randrange(2000))) for _ in range(rng.randrange(8))])
    if rng.random() < 0.3:
        del messages[-1]["more_body"]  # the default is False
    if not messages[-1]["body"]:
        del messages[-1]["body"]  # the default is empty
    return messages


async def test_the_host_gets_the_very_messages_that_the_server_gave(silent_port: int) -> None:
    """However a body is cut, its bytes (by SHA-256) and its message objects reach the host as they were."""
    host, rng = Recorder(), random.Random(12)
    async with mounted(host, settings_for(silent_port)) as middleware:
        for _ in range(200):
            messages = random_messages(rng)
            digest = hashlib.sha256(body_of(messages)).hexdigest()
            client = Client(*messages)
            await middleware(http_scope(), client.receive, client.send)
            assert [id(message) for message in host.messages] == [id(message) for message in messages]
            assert hashlib.sha256(body_of(host.messages)).hexdigest() == digest
            assert client.receives == len(messages)


@pytest.mark.parametrize("body", ODD_BODIES, ids=lambda body: f"{len(body)}-{body[:12]!r}")
async def test_what_is_no_prompt_passes_as_it_came(silent_port: int, body: bytes) -> None:
    """A body that cannot be read is counted as unparsable and left to the host, which says what is wrong with it."""
    host = Recorder()
    async with mounted(host, settings_for(silent_port)) as middleware:
        await ask(middleware, body)
        assert (body_of(host.messages), host.headers, skips_of(middleware)) == (body, [], {"unparsable": 1})


async def test_unknown_fields_white_space_and_escapes_survive(silent_port: int) -> None:
    """The body is read, never written: a routed request has the client's own bytes and headers."""
    host = Recorder()
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        await ask(middleware, TOOL_TURN)
        assert (body_of(host.messages), host.headers) == (TOOL_TURN, [b"w1"])


async def test_behind_the_replay_receive_is_the_servers_own(silent_port: int) -> None:
    """After the body the host waits on the server itself and gets its disconnect, never a body again."""
    after: list[Message] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        after.extend([await receive(), await receive()])

    client = Client(*pieces(chat(), [3, 4]))
    async with mounted(host, settings_for(silent_port)) as middleware:
        task = asyncio.create_task(middleware(http_scope(), client.receive, client.send))
        await asyncio.wait_for(client.waiting.wait(), 20)
        assert (client.receives, task.done()) == (4, False)
        client.leave()
        await asyncio.wait_for(task, 20)
    assert [message is LEFT for message in after] == [True, True]


async def test_a_hosts_own_cancelled_receive_is_cancelled(silent_port: int) -> None:
    """A host that stops listening gets its cancellation, not a message."""
    outcomes: list[bool] = []
    client = Client(*pieces(chat()))

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        listener = asyncio.ensure_future(receive())
        await client.waiting.wait()
        listener.cancel()
        await asyncio.wait([listener])
        outcomes.append(listener.cancelled())

    async with mounted(host, settings_for(silent_port)) as middleware:
        await asyncio.wait_for(middleware(http_scope(), client.receive, client.send), 20)
    assert outcomes == [True]


async def test_a_host_may_read_the_body_in_every_way_and_again(silent_port: int) -> None:
    """body(), json() and stream() of one Starlette request agree."""
    got: list[object] = []

    async def endpoint(request: Request) -> Response:
        got.extend(
            [await request.body(), await request.json(), b"".join([part async for part in request.stream()])]
        )
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route(CHAT, endpoint, methods=["POST"])])
    async with mounted(app, settings_for(silent_port)) as middleware:
        client = await ask(middleware, chat("twice"))
    json_form = {"model": "m", "messages": [{"role": "user", "content": "twice"}]}
    assert (got, client.answer) == ([chat("twice"), json_form, chat("twice")], b"ok")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_base_http_middlewares_inside_and_outside_read_the_same_body(
    silent_port: int, when: str
) -> None:
    """Starlette's own replay and ours nest, whether a middleware reads before or after the endpoint."""
    got: list[bytes] = []

    async def reader(request: Request, call_next: RequestResponseEndpoint) -> Response:
        if when == "before":
            got.append(await request.body())
        response = await call_next(request)
        if when == "after":
            got.append(b"".join([part async for part in response.body_iterator]))  # type: ignore[attr-defined]
            return Response(got[-1])
        return response

    async def endpoint(request: Request) -> Response:
        body = await request.body()
        got.append(body)
        return Response(body)

    route = Route(CHAT, endpoint, methods=["POST"])
    stack = [
        Middleware(BaseHTTPMiddleware, dispatch=reader),
        Middleware(PrefixMiddleware, settings_for(silent_port)),
    ]
    app = Starlette(routes=[route], middleware=[*stack, stack[0]])
    lifespan = Client({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    client = Client(*pieces(chat("nested"), [10]))
    await app(http_scope(), client.receive, client.send)
    await app({"type": "lifespan"}, lifespan.receive, lifespan.send)
    assert (got, client.answer) == ([chat("nested")] * 3, chat("nested"))


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_a_streaming_response_runs_to_its_end(silent_port: int, spec_version: str) -> None:
    """No disconnect is made up, neither for the listener of older servers nor for a host that polls."""
    polled: list[bool] = []

    async def endpoint(request: Request) -> Response:
        await request.body()

        async def tokens() -> AsyncIterator[str]:
            for i in range(100):
                if i % 2:
                    polled.append(await request.is_disconnected())
                yield f"{i} "

        return StreamingResponse(tokens())

    app = Starlette(routes=[Route(CHAT, endpoint, methods=["POST"])])
    async with mounted(app, settings_for(silent_port)) as middleware:
        scope = http_scope(asgi={"version": "3.0", "spec_version": spec_version})
        client = await asyncio.wait_for(ask(middleware, chat(), scope), 20)
        assert_nothing_left(middleware)
    assert (client.answer.decode(), polled) == ("".join(f"{i} " for i in range(100)), [False] * 50)


@pytest.mark.parametrize(
    "encoding", [b"gzip", b"zstd", b"br", b"deflate", b" GZIP ", b"gzip, gzip", b"x-unknown"]
)
async def test_an_encoded_body_is_not_read(silent_port: int, encoding: bytes) -> None:
    """A content-encoding, true or not, leaves `receive` to the host and the request unrouted."""
    seen: list[object] = []
    client = Client(*pieces(chat("plain under a lying header"), [5]))

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend([client.receives, receive == client.receive, sent_headers(scope)])
        await answering(scope, receive, send)

    async with mounted(host, settings_for(silent_port)) as middleware:
        await middleware(http_scope(headers=[(b"Content-Encoding", encoding)]), client.receive, client.send)
        assert (seen, skips_of(middleware)) == ([0, True, []], {"encoded": 1})


@pytest.mark.parametrize("encoding", [b"identity", b"", b" Identity "])
async def test_an_identity_encoding_is_read(silent_port: int, encoding: bytes) -> None:
    """The encoding that changes nothing does not keep a request from its worker."""
    host = Recorder()
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        await ask(middleware, chat(), http_scope(headers=[(b"content-encoding", encoding)]))
    assert host.headers == [b"w1"]


async def test_a_left_client_reaches_the_host_behind_its_pieces(silent_port: int) -> None:
    """A disconnect before the end of the body is the host's to see, once, after what had arrived."""
    script: list[Message] = [*pieces(chat(), [4, 4])[:2], LEFT]
    host, client = Recorder(), Client(*script)
    async with mounted(host, settings_for(silent_port)) as middleware:
        await middleware(http_scope(), client.receive, client.send)
        assert_nothing_left(middleware)
    assert ([id(message) for message in host.messages], client.receives) == (
        [id(message) for message in script],
        3,
    )


@pytest.mark.parametrize("position", [0, 1, 3])
async def test_an_exception_of_receive_is_raised_where_the_host_would_have_met_it(
    silent_port: int, position: int
) -> None:
    """The same object comes out of the same call of `receive`, and out of the middleware."""
    boom, calls = Boom(), 0

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal calls
        while True:
            await receive()
            calls += 1

    client = Client(*pieces(chat(), [1, 1, 1])[:position], boom)
    async with mounted(host, settings_for(silent_port)) as middleware:
        with pytest.raises(Boom) as raised:
            await middleware(http_scope(), client.receive, client.send)
        assert_nothing_left(middleware)
    assert (raised.value is boom, calls) == (True, position)
