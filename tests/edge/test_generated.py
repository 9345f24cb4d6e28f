"""Generated requests through the whole middleware: never an exception of ours, never another byte, never a forged worker."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from prefix_middleware import Decision, PrefixMiddleware
from prefix_middleware.core.canonical import SkipReason
from tests.edge.asgi import (
    Boom,
    assert_nothing_left,
    counts_of,
    http_scope,
    mounted,
    pieces,
    router_of,
    sent_headers,
    settings_for,
)
from tests.edge.faults import Recorder, post
from tests.edge.generated import BODIES, HEADERS, PATHS, SPELLINGS, WRITTEN

pytestmark = pytest.mark.anyio

IDS = ("w1", "w2", "w3")
REASONS = frozenset(SkipReason.__args__)  # type: ignore[attr-defined] # of a Literal
SIZES = st.lists(st.sampled_from([0, 1, 2, 7, 512, 4000]), max_size=5)
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "tenants and the plain window": {"tenant_header": "A", "window_bytes": 32768},
    "policy requests": {"policy": "requests"},
}


def others(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers whose names are no spelling of ours."""
    return [pair for pair in headers if pair[0].lower().replace(b"_", b"-") != b"x-prefix-worker"]


@contextmanager
def watched(middleware: PrefixMiddleware) -> Iterator[None]:
    """Fail where our own code has failed, or skipped for a reason that nobody knows."""
    yield
    counts = counts_of(middleware)
    reasons = {name.removeprefix("skips.") for name in counts if name.startswith("skips.")}
    assert (counts.get("errors", 0), counts.get("skips.error", 0), reasons - REASONS) == (0, 0, set())


@pytest.mark.parametrize(
    ("path", "options"), [*((path, {}) for path in PATHS), *((PATHS[0], given) for given in OPTIONS.values())]
)
async def test_any_body_reaches_the_host_as_it_came(
    silent_port: int, path: str, options: Mapping[str, Any]
) -> None:
    """Valid, nearly valid or hostile, in any pieces, under any headers: same messages, a worker of the closed set or none."""
    host = Recorder()
    async with mounted(host, settings_for(silent_port, IDS, **options)) as middleware:

        @settings(max_examples=60, deadline=None, derandomize=True, database=None)
        @given(BODIES, SIZES, HEADERS)
        def play(body: bytes, sizes: list[int], headers: list[tuple[bytes, bytes]]) -> None:
            incoming, scope = pieces(body, sizes), http_scope(path, headers=headers)
            call = post(middleware, scope, incoming)
            assert call.left is None
            assert [id(message) for message in host.messages] == [id(message) for message in incoming]
            assert host.body == body
            decision, workers = scope["prefix_middleware"], sent_headers(scope)
            assert others(scope["headers"]) == others(headers)
            assert workers == ([decision.worker.encode()] if decision is not None else [])
            assert decision is None or decision.worker in IDS
            assert_nothing_left(middleware)

        with watched(middleware):
            play()


@pytest.mark.parametrize("path", PATHS)
async def test_a_repeated_request_is_held_whole_by_whoever_answered_it(silent_port: int, path: str) -> None:
    """However the same body is cut the second time, the match is every full block, on the worker of the first time."""
    async with mounted(Recorder(), settings_for(silent_port, ["w1"])) as middleware:

        @settings(max_examples=30, deadline=None, derandomize=True, database=None)
        @given(WRITTEN, SIZES)
        def play(body: bytes, sizes: list[int]) -> None:
            scopes = [http_scope(path) for _ in range(2)]
            for scope, incoming in zip(scopes, (pieces(body), pieces(body, sizes)), strict=True):
                post(middleware, scope, incoming)
            first, second = (scope["prefix_middleware"] for scope in scopes)
            assert (first is None) == (second is None)
            if isinstance(second, Decision):
                reads_cache = not any(flag in body for flag in (b'"echo": true', b'"echo" : true'))
                assert second.matched_blocks == (second.blocks if reads_cache else 0)

        with watched(middleware):
            play()
        assert len(router_of(middleware).index) > 0


UNROUTED: Mapping[str, tuple[Mapping[str, Any], bytes]] = {
    "another path": ({"path": "/v1/embeddings"}, b"{}"),
    "another method": ({"method": "PUT"}, b"{}"),
    "not JSON": ({}, b"{"),
    "no prompt": ({}, b"{}"),
    "too long": ({}, b" " * 5000),
    "websocket": ({"type": "websocket"}, b""),
}


@pytest.mark.parametrize("case", UNROUTED)
async def test_no_spelling_of_a_forged_header_passes_where_nothing_is_routed(
    silent_port: int, case: str
) -> None:
    """Any case, dashes or underscores, once or often, among any others: all of them go, and only they."""
    fields, body = UNROUTED[case]
    async with mounted(Recorder(), settings_for(silent_port, max_body_bytes=4096)) as middleware:

        @settings(max_examples=20, deadline=None, derandomize=True, database=None)
        @given(
            HEADERS, st.lists(st.tuples(SPELLINGS, st.just(b"evil")), min_size=1, max_size=3), st.randoms()
        )
        def play(headers: list[tuple[bytes, bytes]], forged: list[tuple[bytes, bytes]], rng: Any) -> None:
            everything = [*headers, *forged]
            rng.shuffle(everything)
            scope = http_scope(**{**fields, "headers": everything})
            post(middleware, scope, pieces(body))
            assert scope["headers"] == others(everything)

        with watched(middleware):
            play()


@pytest.mark.parametrize("path", PATHS)
async def test_a_failing_host_keeps_its_exception_under_any_body(silent_port: int, path: str) -> None:
    """Whether the body was routed or not, what the host raises is what leaves."""
    boom = Boom()

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        raise boom

    async with mounted(host, settings_for(silent_port, IDS)) as middleware:

        @settings(max_examples=20, deadline=None, derandomize=True, database=None)
        @given(BODIES, SIZES)
        def play(body: bytes, sizes: list[int]) -> None:
            assert post(middleware, http_scope(path), pieces(body, sizes)).left is boom
            assert_nothing_left(middleware)

        with watched(middleware):
            play()
