"""A host that rewrites prompts, decided by what comes in and by what goes out; the engine's own count is the judge."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from tests.integrations.stack import ROOT, Gateway, Stack
from tests.services import wait_until

COMMAND = ("uvicorn", "rewriting:app", "--log-level", "warning")
TENANTS = ("ann", "bob", "cem")
QUESTIONS = [f"Question {n}? " * 200 for n in range(3)]  # about 2.6 KB, the same of every tenant
BLOCK_TOKENS = 128


@dataclass(frozen=True)
class Turn:
    """What was predicted for a request, and what its worker found in its cache, in tokens."""

    predicted: int
    cached: int


def play(stack: Stack, gateway: Gateway) -> list[Turn]:
    """Ask every question for every tenant, one after the other."""
    turns = []
    for question, tenant in product(QUESTIONS, TENANTS):
        known = {(id, entry["order"]) for id, entry in stack.arrivals()}
        seen = len(gateway.decisions())
        messages = [{"role": "user", "content": question}]
        body: dict[str, Any] = {"model": "public-name", "messages": messages, "max_tokens": 2}
        assert gateway.post(body, authorization=f"Bearer {tenant}").status_code == 200
        wait_until(lambda: len(gateway.decisions()) > seen, what="a line")  # noqa: B023 - called at once
        (entry,) = [entry for id, entry in stack.arrivals() if (id, entry["order"]) not in known]
        decided = gateway.decisions()[-1]
        predicted = decided.matched_blocks * BLOCK_TOKENS if decided.reason == "hit" else 0
        turns.append(Turn(predicted, entry["cached_tokens"]))
    return turns


@pytest.fixture
def played(stack: Stack) -> dict[str, list[Turn]]:
    """The same turns with both settings, on empty caches."""
    turns: dict[str, list[Turn]] = {}
    for decide in ("ingress", "egress"):
        env = {"PREFIX_DECIDE": decide}
        with stack.gateway(ROOT / "tests/integrations/hosts", *COMMAND, env=env) as gateway:
            stack.reset()
            turns[decide] = play(stack, gateway)
    return turns


def test_egress_predicts_what_the_engine_finds_and_ingress_does_not(played: dict[str, list[Turn]]) -> None:
    """Where prompts are rewritten, only the outgoing body tells which worker holds its prefix."""
    print(
        f"\n{'decide':8} {'turns':>5} {'predicted':>9} {'engine':>6} {'tokens predicted':>16} {'cached':>6}"
    )
    for decide, turns in played.items():
        hits = sum(turn.predicted > 0 for turn in turns), sum(turn.cached > 0 for turn in turns)
        tokens = sum(turn.predicted for turn in turns), sum(turn.cached for turn in turns)
        print(f"{decide:8} {len(turns):5} {hits[0]:9} {hits[1]:6} {tokens[0]:16} {tokens[1]:6}")
    egress = played["egress"]
    first, later = egress[: len(TENANTS)], egress[len(TENANTS) :]
    assert [turn.predicted for turn in first] == [turn.cached for turn in first] == [0, 0, 0]
    assert all(0 <= turn.cached - turn.predicted < BLOCK_TOKENS for turn in later)
    assert all(turn.predicted >= 8 * BLOCK_TOKENS for turn in later)
    wrong = [turn for turn in played["ingress"] if (turn.predicted > 0) != (turn.cached > 0)]
    assert len(wrong) >= 2  # the second tenant's same question looks like a hit, and is none
    assert sum(turn.cached for turn in egress) >= sum(turn.cached for turn in played["ingress"])
