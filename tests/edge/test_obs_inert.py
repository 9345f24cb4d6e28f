"""Configured and yet without effect: each way in which nothing comes of the choices is said once, with its likely fix."""

import logging

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from prefix_middleware import PrefixMiddleware
from tests.edge.asgi import CHAT, answering, ask, chat, counts_of, http_scope, mounted, settings_for
from tests.edge.clients import client
from tests.edge.logs import Keeper
from tests.edge.upstream import rig

pytestmark = pytest.mark.anyio

INERT = (
    "[PREFIX] warning: 100 POST requests came and none was a prompt: "
    "mount the middleware on the application that serves them, or check PREFIX_PATHS"
)


@pytest.fixture
def kept(logger: logging.Logger) -> Keeper:
    """What is said, decisions left out."""
    keeper = Keeper()
    keeper.setLevel(logging.WARNING)
    logger.addHandler(keeper)
    return keeper


def said(kept: Keeper) -> list[str]:
    """Return the warnings, but for the one about lines that reach no handler."""
    return [line for line in kept.lines if "INFO lines" not in line]


async def test_a_middleware_that_never_sees_a_prompt_says_so_once(silent_port: int, kept: Keeper) -> None:
    """Mounted on a part of the application that serves other paths: a hundred POSTs are enough to tell."""

    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("ok")

    ours = Middleware(PrefixMiddleware, settings_for(silent_port))
    part = Starlette(routes=[Route("/items", endpoint, methods=["GET", "POST"])], middleware=[ours])
    app = Starlette(routes=[Mount("/admin", part), Route(CHAT, endpoint, methods=["POST"])])
    for number in range(300):
        await ask(app, b"{}", http_scope("/admin/items", "POST" if number % 2 else "GET"))
        await ask(app, chat())
        assert said(kept) == ([INERT] if number >= 199 else [])


@pytest.mark.parametrize("seen", [chat(), b"{"], ids=["a prompt", "an unreadable one"])
async def test_a_middleware_that_saw_a_prompt_says_nothing(
    silent_port: int, kept: Keeper, seen: bytes
) -> None:
    """Other requests may well be more, where the right paths are served at all."""
    async with mounted(answering, settings_for(silent_port)) as middleware:
        await ask(middleware, seen)
        for _ in range(200):
            await ask(middleware, b"{}", http_scope("/items"))
        assert (said(kept), counts_of(middleware)["skips.path"]) == ([], 200)


async def test_an_nginx_with_other_ids_is_told(silent_port: int, kept: Keeper) -> None:
    """Who served is said, and it is never who was named: the two lists of workers differ, or the header is not read."""
    async with rig(silent_port) as (middleware, host, upstream, url), client("httpx") as post:
        upstream.served = "worker-1"
        host.call = lambda: post(url)
        for _ in range(19):
            await ask(middleware)
        before = said(kept)
        for _ in range(21):
            await ask(middleware)
        counts = counts_of(middleware)
        fix = "nginx must be rendered with the ids of PREFIX_WORKERS and with the same header"
        text = f"0 of 20 prompts were served by the worker that {url} was told"
    assert (before, said(kept)) == ([], [f"[PREFIX] warning: {text}: {fix}"])
    assert [counts.get(name) for name in ("injections", "echoes", "echoes.chosen")] == [40, 40, None]


async def test_now_and_then_another_worker_serves_and_nothing_is_said(silent_port: int, kept: Keeper) -> None:
    """A worker that fails makes nginx take another one; that is no wrong setting."""
    async with rig(silent_port) as (middleware, host, upstream, url), client("httpx") as post:
        host.call = lambda: post(url)
        for number in range(42):
            upstream.served = "another" if number % 3 == 0 else "w1"
            await ask(middleware)
        counts = counts_of(middleware)
    assert said(kept) == []
    assert [counts[name] for name in ("injections", "echoes", "echoes.chosen")] == [42, 42, 28]
