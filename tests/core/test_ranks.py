"""Data-parallel ranks as workers: nginx pins requests to one, but for /v1/responses, where vLLM takes any."""

import pytest

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.canonical import Api
from prefix_middleware.core.router import Router
from prefix_middleware.core.workers import Worker
from tests.core.bodies import HASHER, chat, prompt_of, user
from tests.core.routing import NOW, route, serve
from tests.core.said import Engine

TEXT = "a" * 6000


def of(api: Api) -> HashedPrompt:
    body = {"model": "m", "input": TEXT} if api == "responses" else chat(user(TEXT))
    return HASHER.hash(prompt_of(api, body))


def router_of(ranks: int, rank: int | None = 0) -> Router:
    """Return a router whose w0 holds the text; it is the first of so many ranks of one server."""
    router = Router([Worker(f"w{i}", "http://dp:8000", None if rank is None else i) for i in range(ranks)])
    for number in range(ranks):
        router.set_ready(f"w{number}", number == 0, NOW)
    assert serve(router, of("chat")) == "w0"
    for number in range(ranks):
        router.set_ready(f"w{number}", True, NOW)
    return router


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_responses_match_is_worth_what_chance_finds(ranks: int) -> None:
    """One rank of n holds it, and nobody can ask for that one: a n-th of the tokens; a chat is pinned."""
    router = router_of(ranks)
    whole = of("chat").matched_tokens[-1]
    found = [route(router, of(api)).decision.best_tokens for api in ("chat", "responses")]
    assert found == [whole, whole // ranks]


def test_a_hybrid_rank_is_no_exception() -> None:
    """Where only whole prompts match, the same n-th."""
    router = router_of(2)
    facts = Engine(1.0, mamba_cache_mode="align", block_size=1).facts()
    for name in ("w0", "w1"):
        router.observe(name, facts, None, NOW, NOW)
    serve(router, of("chat"))
    chats, responses = (route(router, of(api)).decision.best_tokens for api in ("chat", "responses"))
    assert (chats > 0, responses) == (True, chats // 2)


def test_workers_without_ranks_share_nothing_by_their_url() -> None:
    """Two names of one URL are two workers, as before."""
    found = [route(router_of(2, rank=None), of(api)).decision.best_tokens for api in ("chat", "responses")]
    assert found[0] == found[1] > 0


def test_a_request_that_moves_there_is_no_exception() -> None:
    """Served by the rank that holds the text after all, it still may have found it by chance only."""
    router = router_of(2)
    router.set_ready("w0", False, NOW)
    reservation = route(router, of("responses"))
    router.move(reservation, "w0", NOW)
    assert (reservation.worker, reservation.matched_tokens) == ("w0", of("responses").matched_tokens[-1] // 2)
