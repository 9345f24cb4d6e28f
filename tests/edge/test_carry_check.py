"""Carried or not: what is said when decisions are made and no carrier, or nobody behind it, does anything with them."""

import asyncio
import logging
from functools import partial

import httpx
import pytest

from tests.edge.asgi import CHAT, ask, chat, counts_of, http_scope, served
from tests.edge.clients import client
from tests.edge.logs import Keeper
from tests.edge.upstream import Upstream, rig

pytestmark = pytest.mark.anyio


class Warnings:
    """What this middleware has said of its upstream."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def now(self, upstream: str) -> list[str]:
        """Return the lines so far, with the upstream's address as UPSTREAM."""
        lines = [line.replace(upstream, "UPSTREAM") for line in self._keeper.lines]
        return [line for line in lines if "UPSTREAM" in line]


@pytest.fixture
def said(logger: logging.Logger) -> Warnings:
    """The warnings about what is carried."""
    keeper = Keeper()
    logger.addHandler(keeper)
    return Warnings(keeper)


NEVER = "[PREFIX] warning: 20 requests were answered and none carried its decision to UPSTREAM: "


async def test_a_host_that_never_takes_the_hop_is_told_once(silent_port: int, said: Warnings) -> None:
    """Twenty answered requests without a call on the hop are no coincidence."""
    async with rig(silent_port) as (middleware, _, _, url):
        for _ in range(19):
            await ask(middleware)
        before = said.now(url)
        for _ in range(41):
            await ask(middleware)
        fix = (
            "no httpx, httpx2, aiohttp or requests client of this process sends a prompt there: "
            "check PREFIX_UPSTREAM_URL and PREFIX_PATHS, or forward the inbound header"
        )
        assert (before, said.now(url)) == ([], [NEVER + fix])


async def test_prompts_that_are_sent_elsewhere_are_named(silent_port: int, said: Warnings) -> None:
    """localhost in one setting and another address in the other is the likely mistake."""
    other = Upstream()
    async with (
        served(other) as elsewhere,
        rig(silent_port) as (middleware, host, _, url),
        client("aiohttp") as post,
    ):
        host.call = lambda: post(elsewhere)
        for _ in range(20):
            await ask(middleware)
        fix = f"prompts are sent to {elsewhere} instead: set PREFIX_UPSTREAM_URL to where nginx is reached"
        assert said.now(url) == [NEVER + fix]


async def test_prompts_that_leave_outside_any_request_are_named(silent_port: int, said: Warnings) -> None:
    """A bare executor loses the request: the fix is to decide at egress."""

    def send(url: str) -> None:
        with httpx.Client() as opened:
            opened.post(url + CHAT, content=chat())

    async with rig(silent_port) as (middleware, host, _, url):
        loop = asyncio.get_running_loop()
        host.call = lambda: loop.run_in_executor(None, partial(send, url))
        for _ in range(20):
            await ask(middleware)
        fix = "its prompts leave from a thread pool or a queue that no request follows: set PREFIX_DECIDE=egress"
        assert said.now(url) == [NEVER + fix]


async def test_an_upstream_that_never_says_who_served_is_told(silent_port: int, said: Warnings) -> None:
    """A load balancer in nginx's place ignores the header and gives no X-Prefix-Served."""
    async with rig(silent_port) as (middleware, host, _, url), client("httpx") as post:
        host.call = lambda: post(url)
        for _ in range(40):
            await ask(middleware)
        fix = "it should be nginx with what `prefix-middleware nginx` renders"
        text = f"no answer of UPSTREAM says X-Prefix-Served, so nobody knows who serves: {fix}"
        assert said.now(url) == [f"[PREFIX] warning: {text}"]


@pytest.mark.parametrize("decide", ["ingress", "egress"])
async def test_nothing_is_said_where_all_is_well(silent_port: int, said: Warnings, decide: str) -> None:
    """Injected and echoed decisions give no warning, and count as such."""
    async with (
        rig(silent_port, decide=decide) as (middleware, host, upstream, url),
        client("httpx") as post,
    ):
        upstream.served = "w1"
        host.call = lambda: post(url)
        for _ in range(40):
            await ask(middleware)
        counts = counts_of(middleware)
        assert said.now(url) == []
        assert [counts[name] for name in ("decisions", "injections", "echoes")] == [40, 40, 40]


async def test_requests_that_the_host_refuses_prove_nothing(silent_port: int, said: Warnings) -> None:
    """A flood of 401s never reaches the hop, and should not."""
    async with rig(silent_port) as (middleware, host, _, url):
        host.status = 401
        for _ in range(40):
            await ask(middleware)
        assert said.now(url) == []


async def test_at_egress_a_host_whose_prompts_never_leave_is_told(silent_port: int, said: Warnings) -> None:
    """No decision is ever made there, which is worth a warning; requests on other paths prove nothing."""
    async with rig(silent_port, decide="egress") as (middleware, _, _, url):
        for _ in range(40):
            await ask(middleware, scope=http_scope("/other"))
        before = said.now(url)
        for _ in range(20):
            await ask(middleware)
        assert (before, [line.startswith(NEVER) for line in said.now(url)]) == ([], [True])
