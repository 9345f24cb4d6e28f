"""Wherever and however the middleware is mounted, on whatever scope and loop: it routes, starts once, and hides nothing."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from prefix_middleware import PrefixMiddleware, Settings
from prefix_middleware.advice import Claim
from tests.edge.asgi import (
    CHAT,
    chat,
    counts_of,
    http_scope,
    make_ready,
    mounted,
    pieces,
    sent_headers,
    served,
    settings_for,
)
from tests.edge.faults import Recorder, Script, Step, post, scripted_host
from tests.edge.logs import Keeper

pytestmark = pytest.mark.anyio


async def worker_named(request: Request) -> Response:
    """Answer with what the request's header says."""
    await request.body()
    return PlainTextResponse(",".join(request.headers.getlist("x-prefix-worker")))


ENDPOINT = Route(CHAT, worker_named, methods=["POST"])


def around_a_sub_application(given_settings: Settings) -> ASGIApp:
    sub = PrefixMiddleware(Starlette(routes=[ENDPOINT]), given_settings)
    return Starlette(routes=[Mount("/llm", sub)])


def inside_a_sub_application(given_settings: Settings) -> ASGIApp:
    sub = Starlette(routes=[ENDPOINT], middleware=[Middleware(PrefixMiddleware, given_settings)])
    return Starlette(routes=[Mount("/llm", sub)])


def inside_a_fastapi_sub_application(given_settings: Settings) -> ASGIApp:
    sub, outer = FastAPI(routes=[ENDPOINT]), FastAPI()
    sub.add_middleware(PrefixMiddleware, settings=given_settings)
    outer.mount("/llm", sub)
    return outer


def outside_of_everything(given_settings: Settings) -> ASGIApp:
    return PrefixMiddleware(Starlette(routes=[Mount("/llm", Starlette(routes=[ENDPOINT]))]), given_settings)


def around_an_application_without_lifespan(given_settings: Settings) -> ASGIApp:
    inner = Starlette(routes=[Mount("/llm", Starlette(routes=[ENDPOINT]))])

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "lifespan is not known here"
        await inner(scope, receive, send)

    return PrefixMiddleware(app, given_settings)


PLACES = (
    around_a_sub_application,
    inside_a_sub_application,
    inside_a_fastapi_sub_application,
    outside_of_everything,
    around_an_application_without_lifespan,
)


@pytest.mark.parametrize("lifespan", ["auto", "off"])
@pytest.mark.parametrize("place", PLACES)
async def test_every_place_routes_and_starts_once(
    silent_port: int, monkeypatch: pytest.MonkeyPatch, place: Callable[[Settings], ASGIApp], lifespan: str
) -> None:
    """A mounted application may never see a lifespan: then the first of many requests at once starts the tasks, once."""
    monkeypatch.setattr(Claim, "take", lambda *_: None)  # without lifespan it is kept until the process ends
    before = asyncio.all_tasks()
    app = place(settings_for(silent_port, ["w1"]))
    async with served(app, lifespan=lifespan) as url, httpx.AsyncClient(trust_env=False) as client:
        asked = [client.post(f"{url}/llm{CHAT}", content=chat(), timeout=30) for _ in range(8)]
        answers = [answer.text for answer in await asyncio.gather(*asked)]
        ours = [task for task in asyncio.all_tasks() - before if task.get_name() == "prefix_middleware"]
    for task in ours:  # without a lifespan they end with their loop, which here goes on
        task.cancel()
    await asyncio.wait(ours, timeout=20)
    assert (answers, len(ours), all(task.done() for task in ours)) == (["w1"] * 8, 1, True)


FORMS: Mapping[str, Callable[[list[tuple[bytes, bytes]]], Iterable[Any]]] = {
    "a list": list,
    "a tuple": tuple,
    "lists of two": lambda pairs: [list(pair) for pair in pairs],
    "read only once": iter,
    "a view": lambda pairs: dict(pairs).items(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", [CHAT, "/other"])
async def test_any_iterable_of_headers_is_read_and_kept(silent_port: int, path: str, form: str) -> None:
    """ASGI promises an iterable, not a list: a forged header goes, the others reach the host, ours is set."""
    pairs = [(b"a", b"1"), (b"X-Prefix-Worker", b"evil"), (b"b", b"2")]
    scope = http_scope(path)
    scope["headers"] = FORMS[form](pairs)
    async with mounted(Recorder(), settings_for(silent_port, ["w1"])) as middleware:
        assert post(middleware, scope, pieces(chat())).left is None
    routed = [(b"x-prefix-worker", b"w1")] if path == CHAT else []
    assert [tuple(pair) for pair in scope["headers"]] == [pairs[0], pairs[2], *routed]


KEYS = st.fixed_dictionaries(
    {"type": st.sampled_from(["http", "websocket", "custom", "webtransport"])},
    optional={
        "method": st.sampled_from(["GET", "POST", "post", ""]),
        "path": st.sampled_from(["", "/", CHAT, "/v1/embeddings", "/v1/realtime", "*"]),
        "headers": st.just([(b"a", b"b")]),
        "state": st.just({}),
        "client": st.none(),
        "extensions": st.just({"http.response.pathsend": {}}),
        "asgi": st.just({"version": "3.0"}),
    },
)


async def test_any_scope_passes_with_its_own_objects(silent_port: int) -> None:
    """Whatever keys and types a scope has, the host gets that scope, and where nothing is read its own receive and send."""
    async with mounted(scripted_host, settings_for(silent_port)) as middleware:

        @settings(max_examples=100, deadline=None, derandomize=True, database=None)
        @given(KEYS)
        def play(keys: dict[str, Any]) -> None:
            scope, seen = dict(keys), []
            server, _, call = Script(pieces(chat()), [Step("receive")]).begin(middleware, scope)

            async def host(scope_: Scope, receive: Receive, send: Send) -> None:
                seen.extend([scope_ is scope, receive == server.receive, send == server.send])

            scope["host"] = host
            assert call.finish().left is None
            ours = (keys["type"], keys.get("method"), keys.get("path")) == ("http", "POST", CHAT)
            assert seen == [True, not ours, not ours]
            assert ours or {**keys, "host": host} == scope

        play()
        assert "errors" not in counts_of(middleware)


def test_without_an_asyncio_loop_requests_are_routed_and_that_is_said_once(
    silent_port: int, logger: logging.Logger
) -> None:
    """On trio nothing can be polled or mirrored: one ERROR says so, and every request goes on, routed."""
    keeper = Keeper()
    keeper.setLevel(logging.ERROR)
    logger.addHandler(keeper)
    middleware = PrefixMiddleware(Recorder(), settings_for(silent_port, ["w1"]))
    make_ready(middleware)
    scopes = [http_scope() for _ in range(3)]
    left = [post(middleware, scope, pieces(chat())).left for scope in scopes]
    assert (left, [sent_headers(scope) for scope in scopes]) == ([None] * 3, [[b"w1"]] * 3)
    text = "the event loop is not asyncio's: workers are not polled and nothing is mirrored"
    assert keeper.lines == [f"[PREFIX] error: {text}"]
