"""The settings that change what a decision leads to: mode, aliases and tenants."""

from typing import Any

import pytest
from starlette.types import Scope

from prefix_middleware import Decision
from prefix_middleware.carry.context import hops
from tests.edge.asgi import (
    answering,
    ask,
    assert_nothing_left,
    chat,
    http_scope,
    mounted,
    sent_headers,
    settings_for,
    skips_of,
)

pytestmark = pytest.mark.anyio

FORGED = [(b"x-prefix-worker", b"evil")]
LONG = "x" * 2000


async def test_shadow_decides_and_sets_nothing(silent_port: int) -> None:
    """The decision is made, counted and shown to the host; no header is set and no carrier is active."""
    scope = http_scope(headers=FORGED)
    settings = settings_for(silent_port, ["w1"], mode="shadow", upstream_url="http://nginx")
    async with mounted(answering, settings) as middleware:
        await ask(middleware, chat(LONG), scope)
        decision = scope["prefix_middleware"]
        assert isinstance(decision, Decision)
        assert (decision.worker, sent_headers(scope), hops, skips_of(middleware)) == ("w1", [], [], {})
        assert_nothing_left(middleware)


async def test_off_only_takes_the_clients_header_off(silent_port: int) -> None:
    """A request of ours is counted as off and reaches the host with its own receive."""
    scope = http_scope(headers=FORGED)
    async with mounted(answering, settings_for(silent_port, mode="off")) as middleware:
        await ask(middleware, chat(), scope)
        assert (sent_headers(scope), skips_of(middleware), "prefix_middleware" in scope) == (
            [],
            {"off": 1},
            False,
        )


async def matched(port: int, scopes: list[Scope], bodies: list[bytes], **options: Any) -> int:
    """Ask twice of one worker; return how many blocks the second request matched."""
    async with mounted(answering, settings_for(port, ["w1"], **options)) as middleware:
        for scope, body in zip(scopes, bodies, strict=True):
            await ask(middleware, body, scope)
    decision = scopes[-1]["prefix_middleware"]
    assert isinstance(decision, Decision)
    return decision.matched_blocks


@pytest.mark.parametrize(("second", "blocks"), [("org/model", 3), ("fast", 3), ("slow", 3), ("other", 0)])
async def test_models_with_one_alias_share_a_cache(silent_port: int, second: str, blocks: int) -> None:
    """Two names of one model are one namespace; any other name is another."""
    bodies = [chat(LONG, model="fast"), chat(LONG, model=second)]
    aliases = {"fast": "org/model", "slow": "org/model"}
    assert await matched(silent_port, [http_scope(), http_scope()], bodies, model_aliases=aliases) == blocks


@pytest.mark.parametrize(("second", "blocks"), [([b"a"], 3), ([b"b"], 0), ([], 0), ([b"a", b"a"], 0)])
async def test_prompts_of_two_tenants_never_match(silent_port: int, second: list[bytes], blocks: int) -> None:
    """The value of the tenant header is part of the namespace, whichever case its name came in."""
    scopes = [http_scope(headers=[(b"X-Tenant", value) for value in values]) for values in ([b"a"], second)]
    bodies = [chat(LONG)] * 2
    assert await matched(silent_port, scopes, bodies, tenant_header="x-tenant") == blocks


async def test_a_front_field_is_part_of_the_prompt(silent_port: int) -> None:
    """A switch that the fleet's templates print at the front separates prompts; by default it does not."""
    bodies = [chat(LONG, reasoning_effort="low"), chat(LONG, reasoning_effort="high")]
    plain = await matched(silent_port, [http_scope(), http_scope()], bodies)
    front = await matched(
        silent_port, [http_scope(), http_scope()], bodies, front_fields=("reasoning_effort",)
    )
    assert (plain, front) == (3, 0)
