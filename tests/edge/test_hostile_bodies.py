"""Bodies that break parsers: they pass byte for byte, and what can be read of them is routed as if nothing were special."""

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest
from starlette.types import Message, Receive, Scope, Send

from prefix_middleware import Decision, PrefixMiddleware
from tests.edge.asgi import (
    assert_nothing_left,
    chat,
    counts_of,
    http_scope,
    mounted,
    pieces,
    sent_headers,
    settings_for,
    skips_of,
)
from tests.edge.faults import Recorder, post
from tests.edge.generated import PATHS

pytestmark = pytest.mark.anyio

TOOL_TURN = (
    b'{"model":"m", "messages":[{"role":"user","content":"\xc3\xa9\\/"},{"role":"assistant","content":null,"tool_calls":['
    b'{"id":"c1","type":"function","function":{"name":"f","arguments":"{\\"b\\":1}"}}]},'
    b'{"role":"tool","tool_call_id":"c1","content":"x"}]}'
)
NO_PROMPT = {
    "nothing": b"",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "an array": b"[]",
    "text": b'"hi"',
    "null": b"null",
    "a number": b"3",
    "an empty object": b"{}",
    "null messages": b'{"messages":null}',
    "messages that are text": b'{"messages":"hi"}',
    "messages that are no objects": b'{"messages":[null,1,"x"]}',
    "fields of other types": b'{"model":["m"],"messages":[{"role":5,"content":{"a":1}}]}',
    "tools that are an object": b'{"tools":{"a":1}}',
    "an input of lists": b'{"input":[[]]}',
    "a system number": b'{"system":7}',
    "two documents": b"{}{}",
}
COMPRESSED = {
    "gzip": gzip.compress(chat("x" * 900)),
    "deflate": zlib.compress(chat()),
    "zstd": b"\x28\xb5\x2f\xfd" + b"\x00" * 40,
}


def decided(
    middleware: PrefixMiddleware, host: Recorder, body: bytes, path: str = PATHS[0]
) -> Decision | None:
    """Make a request; fail unless its bytes pass and its header is the decision's; return the decision."""
    scope = http_scope(path, headers=[(b"x-prefix-worker", b"evil")])
    call = post(middleware, scope, pieces(body, [3, 300]))
    decision = scope["prefix_middleware"]
    assert (call.left, host.body) == (None, body)
    assert sent_headers(scope) == ([] if decision is None else [b"w1"])
    assert isinstance(decision, Decision | None)
    return decision


@pytest.mark.parametrize("body", NO_PROMPT.values(), ids=NO_PROMPT.keys())
async def test_json_that_is_no_request_passes_in_every_api(silent_port: int, body: bytes) -> None:
    """It is counted as unparsable, and only the host says what is wrong with it."""
    host = Recorder()
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        assert [decided(middleware, host, body, path) for path in PATHS] == [None] * 4
        assert (skips_of(middleware), counts_of(middleware).get("errors")) == ({"unparsable": 4}, None)


async def test_every_truncation_of_a_request_passes_unrouted(silent_port: int) -> None:
    """A body cut at any byte is not taken for an empty or a shorter request."""
    host = Recorder()
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        for end in range(len(TOOL_TURN)):
            assert decided(middleware, host, TOOL_TURN[:end]) is None
        assert decided(middleware, host, TOOL_TURN) is not None
        assert (skips_of(middleware), counts_of(middleware).get("errors")) == (
            {"unparsable": len(TOOL_TURN)},
            None,
        )


USER = '"messages":[{"role":"user","content":"x"}]'
PLACES = {
    "a tool's schema": (
        PATHS[0],
        USER + ',"tools":[{"function":{"name":"f","parameters":%s}}]',
    ),
    "documents": (PATHS[0], USER + ',"documents":[%s]'),
    "metadata": (PATHS[0], USER + ',"metadata":%s'),
    "content": (PATHS[0], '"messages":[{"role":"user","content":[{"type":"text","text":%s}]}]'),
    "a prompt": (PATHS[1], '"prompt":%s'),
    "an input": (PATHS[2], '"input":[{"type":"custom","value":%s}]'),
    "a tool's input": (
        PATHS[3],
        '"messages":[{"role":"user","content":[{"type":"tool_use","name":"f","input":%s}]}]',
    ),
}


@pytest.mark.parametrize("place", PLACES)
async def test_nesting_of_any_depth_is_no_failure_of_ours(silent_port: int, place: str) -> None:
    """Too deep to parse, or to write what was parsed: the request passes, routed or not, and no error is counted."""
    path, fields = PLACES[place]
    host = Recorder()
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        for depth in (10, 300, 900, *range(960, 1010, 7), 1100, 5000, 100_000):
            for opening, closing in (("[", "]"), ('{"a":', "}")):
                deep = opening * depth + "1" + closing * depth
                decided(middleware, host, ("{" + fields % deep + "}").encode(), path)
            assert_nothing_left(middleware)
        assert ("errors" in counts_of(middleware), set(skips_of(middleware)) <= {"unparsable"}) == (
            False,
            True,
        )


SURROGATES = {
    "in text": chat("a\ud83d b" * 300),
    "in a role": chat("x" * 900, messages=[{"role": "\udc00", "content": "x" * 900}]),
    "in a model": chat("x" * 900, model="\ud83d"),
    "in a salt": chat("x" * 900, cache_salt="\ud83d"),
    "in a tool": chat(
        "x" * 900, tools=[{"function": {"name": "\ud83d", "parameters": {"\ud83d": "\udc00"}}}]
    ),
    "in a key": chat("x" * 900, chat_template_kwargs={"\ud83d": 1}),
}


@pytest.mark.parametrize("body", SURROGATES.values(), ids=SURROGATES.keys())
async def test_half_a_character_is_routed_and_recognised(silent_port: int, body: bytes) -> None:
    """A lone surrogate survives the parser and must not fail where it is hashed: the second time all blocks match."""
    host = Recorder()
    async with mounted(host, settings_for(silent_port, ["w1"], log="json")) as middleware:
        first, second = decided(middleware, host, body), decided(middleware, host, body)
        assert "errors" not in counts_of(middleware)
    assert first is not None
    assert second is not None
    assert (first.matched_blocks, second.matched_blocks >= 1, second.blocks) == (
        0,
        True,
        second.matched_blocks,
    )


@pytest.mark.parametrize("edge", [512, 32_768, 65_536])
async def test_a_character_across_a_block_edge_is_recognised(silent_port: int, edge: int) -> None:
    """An emoji cut at any of its bytes by the edge of a block is part of both blocks."""
    host = Recorder()
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        for missing in range(6):
            text = str(missing) + "x" * (edge - 7 - missing) + "\N{GRINNING FACE}" * 2000
            for ensure_ascii in (True, False):  # escaped or not, it is one prompt
                body = json.dumps(
                    {"messages": [{"role": "user", "content": text}]}, ensure_ascii=ensure_ascii
                )
                decision = decided(middleware, host, body.encode())
                assert decision is not None
                assert decision.matched_blocks == (0 if ensure_ascii else decision.blocks)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-0", "1" * 400, "1.0"])
async def test_a_number_that_parsers_disagree_on_changes_nothing(silent_port: int, number: str) -> None:
    """Outside of the prompt it is the host's to refuse; the prompt is the same as without it."""
    plain, host = chat("x" * 2000), Recorder()
    odd = plain[:-1] + f', "temperature": {number}, "logit_bias": {{"1": {number}}}}}'.encode()
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        decided(middleware, host, plain)
        decision = decided(middleware, host, odd)
    assert decision is not None
    assert (decision.matched_blocks, decision.blocks) == (3, 3)


@pytest.mark.parametrize("body", COMPRESSED.values(), ids=COMPRESSED.keys())
async def test_a_compressed_body_that_does_not_say_so_passes(silent_port: int, body: bytes) -> None:
    """Without the header it is a body that is not JSON."""
    host = Recorder()
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        assert [decided(middleware, host, body, path) for path in PATHS] == [None] * 4
        assert skips_of(middleware) == {"unparsable": 4}


@pytest.mark.parametrize("encodings", [[], [b"gzip"], [b"identity", b"gzip"], [b"identity, gzip"]], ids=str)
async def test_a_bomb_is_never_inflated(silent_port: int, encodings: Sequence[bytes]) -> None:
    """10 MB of zeros in 10 KB, whatever its headers say: it costs no more memory than a body of 10 KB."""
    bomb, host = gzip.compress(b"\x00" * 10_000_000, compresslevel=9), Recorder()
    scope = http_scope(headers=[(b"content-encoding", value) for value in encodings])
    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        tracemalloc.start()
        post(middleware, scope, pieces(bomb))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert skips_of(middleware) == {"encoded" if encodings else "unparsable": 1}
    assert (host.body == bomb, peak < 10 * len(bomb)) == (True, True)


BODY = chat("x" * 900)
FORMS: Mapping[str, Sequence[Message]] = {
    "nothing but a type behind it": [
        *pieces(BODY, [100, 0])[:-1],
        {"type": "http.request", "body": pieces(BODY, [100])[1]["body"]},
    ],
    "a last message without a body": [
        {"type": "http.request", "body": BODY, "more_body": True},
        {"type": "http.request"},
    ],
    "None for an empty body": [
        {"type": "http.request", "body": None, "more_body": True},
        {"type": "http.request", "body": BODY, "more_body": False},
    ],
    "bytearrays": [{"type": "http.request", "body": bytearray(BODY), "more_body": False}],
    "frozen messages": [MappingProxyType({"type": "http.request", "body": BODY, "more_body": False})],  # type: ignore[list-item]
    "more than the specification": [{"type": "http.request", "body": BODY, "more_body": False, "x": 1}],
}


@pytest.mark.parametrize("incoming", FORMS.values(), ids=FORMS.keys())
async def test_every_form_of_a_servers_messages_is_read(
    silent_port: int, incoming: Sequence[Message]
) -> None:
    """What a server may leave out, or adds, changes nothing: the prompt is read and the same objects pass."""
    seen: list[int] = []
    scope = http_scope()

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend([id(await receive()) for _ in incoming])

    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        assert post(middleware, scope, incoming).left is None
        assert_nothing_left(middleware)
    assert (sent_headers(scope), seen) == ([b"w1"], [id(message) for message in incoming])


NO_BODIES: Sequence[Message] = (
    {},
    {"type": "http.request", "body": 7},
    {"type": "http.request", "body": "text"},
)


@pytest.mark.parametrize("message", NO_BODIES, ids=str)
async def test_a_message_that_makes_no_sense_passes(silent_port: int, message: Message) -> None:
    """A broken server or middleware outside of us is the host's to complain about, not ours."""
    seen: list[Message] = []
    scope = http_scope()

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(await receive())

    async with mounted(host, settings_for(silent_port, ["w1"])) as middleware:
        assert post(middleware, scope, [message]).left is None
        assert_nothing_left(middleware)
        assert (skips_of(middleware), counts_of(middleware).get("errors")) == ({"unparsable": 1}, None)
    assert (seen[0] is message, sent_headers(scope)) == (True, [])
