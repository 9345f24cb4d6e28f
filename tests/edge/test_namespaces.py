"""What must be equal before two prompts may share: names that should not collide, and what a tenant and a salt each give."""

from itertools import product

import pytest

from prefix_middleware.core.blocks import Hasher
from prefix_middleware.core.canonical import CanonicalPrompt
from prefix_middleware.testing import FakeWorker
from tests.edge.asgi import answering, ask, chat, http_scope, mounted, settings_for

pytestmark = pytest.mark.anyio


async def test_a_header_value_cannot_name_the_tenant_in_another_spelling(silent_port: int) -> None:
    """Only the header of exactly that name counts, in any case; a second copy makes a tenant of its own."""
    long, first = chat("x" * 2000), http_scope(headers=[(b"x-tenant", b"a")])
    tries: list[list[tuple[bytes, bytes]]] = [
        [(b"X-Tenant", b"a")],
        [(b"x_tenant", b"a")],
        [(b"x-tenant", b"a"), (b"x-tenant", b"b")],
        [(b"x-tenant", b"b"), (b"x-tenant", b"a")],
        [(b"x-tenant", b"b"), (b"x_tenant", b"a")],
        [(b"x-tenant", b"a\xa0")],
    ]
    scopes = [http_scope(headers=headers) for headers in tries]
    async with mounted(answering, settings_for(silent_port, ["w1"], tenant_header="X-Tenant")) as middleware:
        for scope in (first, *scopes):
            await ask(middleware, long, scope)
    assert [scope["prefix_middleware"].matched_blocks for scope in scopes] == [3, 0, 0, 0, 0, 0]


NAMES = ("", "a", "b", "ab", "a\0b", "\0", ",", "a,b", "\ud800", "é", "Ã©", "\x01\0\0\0a")


def test_no_two_namespaces_are_one() -> None:
    """Model "a" with tenant "b" is not model "ab": 1,728 ways to put names side by side give 1,728 first blocks."""
    hasher = Hasher(None, 32_768)
    firsts = {
        hasher.hash(CanonicalPrompt(b"x" * 512, model=model, salt=salt), tenant).hashes[0]
        for model, salt, tenant in product(NAMES, repeat=3)
    }
    assert len(firsts) == len(NAMES) ** 3


@pytest.mark.parametrize(
    ("headers", "salts", "matched", "cached"),
    [
        (("a", "a"), ("", ""), True, True),
        (("a", "b"), ("", ""), False, True),  # the engine knows nothing of our tenants
        (("a", "b"), ("s", "t"), False, False),
        (("a", "a"), ("s", "t"), False, False),
        (("a", "a"), ("s", "s"), True, True),
    ],
)
async def test_a_tenant_header_separates_our_matches_and_only_a_cache_salt_the_engines_cache(
    silent_port: int, headers: tuple[str, str], salts: tuple[str, str], matched: bool, cached: bool
) -> None:
    """The second tenant is not led to the first one's worker; once there, a common prompt is fast unless it is salted."""
    worker = FakeWorker(tokens_per_second=1e6, ms_per_token=0.01)
    async with mounted(worker, settings_for(silent_port, ["w1"], tenant_header="x-tenant")) as middleware:
        scopes = [http_scope(headers=[(b"x-tenant", tenant.encode())]) for tenant in headers]
        for scope, salt in zip(scopes, salts, strict=True):
            await ask(middleware, chat("x" * 2000, max_tokens=1, cache_salt=salt or None), scope)
    decision = scopes[1]["prefix_middleware"]
    found = decision.matched_blocks > 0, (worker.seen[-1].cached_tokens or 0) > 0
    assert found == (matched, cached)
