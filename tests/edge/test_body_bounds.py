"""What the middleware holds of request bodies is bounded, and is let go however a request ends."""

import asyncio
from collections.abc import Sequence

import pytest
from starlette.types import Message, Receive, Scope, Send

from prefix_middleware.body import MAX_MESSAGES, MESSAGE_BYTES
from tests.edge.asgi import (
    LEFT,
    Boom,
    Client,
    assert_nothing_left,
    chat,
    http_scope,
    mounted,
    pieces,
    read,
    sent_headers,
    settings_for,
    skips_of,
)

pytestmark = pytest.mark.anyio


class Watcher:
    """A host that notes how much had been received, and is held, when it is called; then it reads on."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.receives = -1
        self.headers: list[bytes] = []
        self.messages: list[Message] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.receives, self.headers = self.client.receives, sent_headers(scope)
        self.messages = await read(receive)


@pytest.mark.parametrize("length", [b"2049", b"9999999999", b"9" * 40])
async def test_a_declared_length_over_the_cap_leaves_receive_untouched(
    silent_port: int, length: bytes
) -> None:
    """A body that says it is too long is the host's from its first byte."""
    client = Client(*pieces(chat("x" * 2100), [1000]))
    watcher = Watcher(client)
    async with mounted(watcher, settings_for(silent_port, max_body_bytes=2048)) as middleware:
        await middleware(http_scope(headers=[(b"Content-Length", length)]), client.receive, client.send)
        assert (watcher.receives, watcher.headers, skips_of(middleware)) == (0, [], {"too_large": 1})


@pytest.mark.parametrize("length", [b"2048", b"", b"-1", b"one", "²".encode()])
async def test_a_length_within_the_cap_or_senseless_is_read(silent_port: int, length: bytes) -> None:
    """Only a number over the cap counts; the server has refused what is no number, or will."""
    client = Client(*pieces(chat()))
    watcher = Watcher(client)
    async with mounted(watcher, settings_for(silent_port, ["w1"], max_body_bytes=2048)) as middleware:
        await middleware(http_scope(headers=[(b"content-length", length)]), client.receive, client.send)
    assert watcher.headers == [b"w1"]


@pytest.mark.parametrize(
    ("size", "receives", "reasons"), [(2048, 9, {}), (2049, 9, {"too_large": 1}), (9000, 9, {"too_large": 1})]
)
async def test_a_chunked_body_is_held_up_to_the_cap(
    silent_port: int, size: int, receives: int, reasons: dict[str, int]
) -> None:
    """A body without a declared length is received until it is complete or beyond the cap, never further."""
    body = chat("x" * (size - len(chat(""))))
    messages = pieces(body, [256] * ((size - 1) // 256))
    client = Client(*messages)
    watcher = Watcher(client)
    async with mounted(watcher, settings_for(silent_port, ["w1"], max_body_bytes=2048)) as middleware:
        await middleware(http_scope(), client.receive, client.send)
        assert_nothing_left(middleware)
        assert skips_of(middleware) == reasons
    expected = (
        min(receives, len(messages)),
        [] if reasons else [b"w1"],
        [id(message) for message in messages],
    )
    assert (watcher.receives, watcher.headers, [id(message) for message in watcher.messages]) == expected


async def test_a_body_in_single_bytes_is_bounded_by_its_messages(silent_port: int) -> None:
    """Many tiny messages cost far more than their bytes, so their number is bounded too."""
    body = chat("x" * (MAX_MESSAGES + 2000))
    client = Client(*pieces(body, [1] * (len(body) - 1)))
    watcher = Watcher(client)
    async with mounted(watcher, settings_for(silent_port)) as middleware:
        await middleware(http_scope(), client.receive, client.send)
        assert_nothing_left(middleware)
        assert (watcher.receives, skips_of(middleware)) == (MAX_MESSAGES + 1, {"too_large": 1})
    assert b"".join(message["body"] for message in watcher.messages) == body


async def test_the_process_holds_no_more_than_its_cap(silent_port: int) -> None:
    """While other requests fill what a process may hold, a request passes unrouted; afterwards one is routed again."""
    headers: list[list[bytes]] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        headers.append(sent_headers(scope))

    settings = settings_for(silent_port, ["w1"], max_buffered_bytes=4400)
    async with mounted(host, settings) as middleware:
        slow, quick, later = (
            Client(*pieces(chat("x" * 3800), [3700])[:1]),
            Client(*pieces(chat("y" * 500))),
            Client(*pieces(chat())),
        )
        holding = asyncio.create_task(middleware(http_scope(), slow.receive, slow.send))
        await asyncio.wait_for(slow.waiting.wait(), 20)
        assert middleware._runtime.buffered.held_bytes == 3700 + MESSAGE_BYTES
        await middleware(http_scope(), quick.receive, quick.send)
        assert skips_of(middleware) == {"too_large": 1}
        slow.leave()
        await asyncio.wait_for(holding, 20)
        await middleware(http_scope(), later.receive, later.send)
        assert_nothing_left(middleware)
        assert (headers, skips_of(middleware)) == ([[], [], [b"w1"]], {"too_large": 1, "unparsable": 1})


async def test_what_messages_cost_counts_as_held(silent_port: int) -> None:
    """A body in single bytes costs its messages: the bound of a process holds for what is held, not for what it says."""
    client = Client(*pieces(chat("x" * 5000), [1] * 4000))
    watcher = Watcher(client)
    async with mounted(
        watcher, settings_for(silent_port, max_buffered_bytes=100 * MESSAGE_BYTES)
    ) as middleware:
        await middleware(http_scope(), client.receive, client.send)
        assert_nothing_left(middleware)
        assert (watcher.receives, skips_of(middleware)) == (100, {"too_large": 1})


async def test_a_cancellation_while_holding_leaves_at_once(silent_port: int) -> None:
    """The server may give up on a request whose body is not complete; nothing of it stays and the host is not called."""
    called: list[Scope] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        called.append(scope)

    client = Client(*pieces(chat("x" * 500), [400])[:1])
    async with mounted(host, settings_for(silent_port)) as middleware:
        task = asyncio.create_task(middleware(http_scope(), client.receive, client.send))
        await asyncio.wait_for(client.waiting.wait(), 20)
        assert middleware._runtime.buffered.held_bytes == 400 + MESSAGE_BYTES
        task.cancel()
        await asyncio.wait([task], timeout=20)
        assert (task.cancelled(), called) == (True, [])
        assert_nothing_left(middleware)


ENDS: dict[str, Sequence[Message | Exception]] = {
    "complete": pieces(chat("x" * 100), [50, 50]),
    "left": [*pieces(chat("x" * 100), [50, 50])[:2], LEFT],
    "broken": [*pieces(chat("x" * 100), [50, 50])[:2], Boom()],
    "too long": pieces(chat("x" * 3000), [500, 2000]),
}


@pytest.mark.parametrize("reads", [0, 1, 2, 9])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("raises", [False, True])
async def test_nothing_stays_held_however_a_request_ends(
    silent_port: int, end: str, reads: int, raises: bool
) -> None:
    """The host may read nothing, a part, or all of a body of any fate, and return or raise."""
    held: list[int] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        held.append(middleware._runtime.buffered.held_bytes)
        for _ in range(min(reads, len(ENDS[end]))):
            await receive()
        if raises:
            raise Boom

    client = Client(*ENDS[end])
    async with mounted(host, settings_for(silent_port, max_body_bytes=2048)) as middleware:
        try:
            await middleware(http_scope(), client.receive, client.send)
        except Boom:
            assert raises or end == "broken"
        assert held[0] >= 100
        assert_nothing_left(middleware)
