"""The inequality that `explain` prints is the one by which the policy has chosen."""

import random
import time
from collections.abc import Mapping
from typing import Any

import pytest

from prefix_middleware import Settings
from prefix_middleware.cli.fleet import View
from prefix_middleware.cli.why import why
from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.updates import Confirmed, Gauge
from tests.core.bodies import hashed
from tests.core.routing import NOW, candidates, gauge, make_router

PROMPT = hashed("x" * 20_000)  # 39 blocks


def view(
    *workers: str, held_by: str | None = None, policy: str = "tokens", loads: Mapping[str, int] | None = None
) -> View:
    """Return a fleet in which one worker holds PROMPT's blocks but not its end, and some have requests."""
    router = make_router(*workers, policy=policy)
    if held_by is not None:
        blocks = b"".join(PROMPT.hashes)
        router.merge("a", [Confirmed(1, held_by, 1.0, blocks, b"e" * 8, 0, 0, 0)], 0.0, NOW)
    router.merge_gauges("a", [gauge(name, count) for name, count in (loads or {}).items()], NOW)
    return View(Settings(policy=policy), router, NOW, {})


def said(fleet: View, prompt: HashedPrompt = PROMPT) -> tuple[str, str | None, str]:
    """Return reason, worker and comparison."""
    answer = why(prompt, fleet)
    return answer.decision.reason, answer.decision.worker, answer.because


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"held_by": "w1", "loads": {"w1": 3}},
            ("hit", "w1", "load 3309 - base 0 = 3309 <= allowance 9984: follow w1"),
        ),
        (
            {"held_by": "w1", "loads": {"w1": 30}},
            ("busy", "w2", "load 33090 - base 0 = 33090 > allowance 9984: take w2"),
        ),
        (
            {"held_by": "w1", "loads": {"w2": 9}},
            ("hit", "w1", "w1 holds the longest match and is the base: w1, the lighter of w2 and w1"),
        ),
        ({"loads": {"w2": 1}}, ("miss", "w1", "nobody holds a block of it: w1, the lighter of w2 and w1")),
        (
            {"held_by": "w1", "policy": "requests", "loads": {"w1": 2}},
            ("hit", "w1", "in-flight 2 <= min 0 + slack 2: follow w1"),
        ),
        (
            {"held_by": "w1", "policy": "requests", "loads": {"w1": 3}},
            ("busy", "w2", "in-flight 3 > min 0 + slack 2: take w2"),
        ),
        (
            {"held_by": "w1", "policy": "cost", "loads": {"w1": 3}},
            ("hit", "w1", "load 3309 - w2's 0 = 3309 <= 9984 for the tokens matched: take w1"),
        ),
        (
            {"held_by": "w1", "policy": "cost", "loads": {"w1": 30}},
            ("busy", "w2", "load 0 - w1's 33090 = -33090 <= -9984 for the tokens matched: take w2"),
        ),
        (
            {"loads": {"w1": 300, "w2": 299}},
            ("miss", "w2", "every candidate has 299 or more in flight: the lightest, w2"),
        ),
    ],
)
def test_the_comparison_has_the_numbers_put_in(
    options: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    """Each policy's rule is printed with this fleet's loads, matches and allowances."""
    assert said(view("w1", "w2", **options)) == expected


def test_one_candidate_and_none_are_said() -> None:
    """Where there is nothing to compare the reason is in words."""
    nobody = make_router("w1")
    nobody.set_ready("w1", False, NOW)
    assert said(view("w1")) == ("only", "w1", "the only candidate: w1")
    assert said(View(Settings(), nobody, NOW, {})) == ("none", None, "nobody ready can serve it")


def test_a_random_third_that_would_change_the_choice_is_named() -> None:
    """A free worker that the prompt's hash does not name is taken by some gateways, and the reader is told."""
    fleet = view("w1", "w2", "w3", "w4", loads=dict.fromkeys(("w1", "w2", "w3", "w4"), 90))
    pair = {name for name in ("w1", "w2", "w3", "w4") if name in said(fleet)[2]}
    free = min({"w1", "w2", "w3", "w4"} - pair)
    loads = {name: 90 for name in ("w1", "w2", "w3", "w4") if name != free}
    answer = why(PROMPT, view("w1", "w2", "w3", "w4", loads=loads))
    assert (answer.decision.worker in pair, answer.otherwise) == (True, [free])


def test_fill_counts_where_the_policy_counts_it() -> None:
    """A match on a full worker is weighed with its fill, and the sum shows it."""
    fleet = view("w1", "w2", held_by="w1")
    blocks = b"".join(PROMPT.hashes)
    fleet.router.merge("b", [Confirmed(2, "w1", 1.0, blocks, b"e" * 8, 90_000, 0, 0)], 0.0, NOW)
    assert said(fleet) == ("busy", "w2", "load 0 - base 0 + fill 25005 = 25005 > allowance 9984: take w2")


def test_the_comparison_always_agrees_with_the_choice() -> None:
    """Over many fleets `follow` is said exactly when the longest match is followed, also for running conversations."""
    rng = random.Random(7)
    verdicts = set()
    for _ in range(300):
        fleet = view("w1", "w2")
        end = rng.choice([PROMPT.end, b"e" * 8])
        given = rng.randrange(200_000)
        blocks = b"".join(PROMPT.hashes[: rng.randrange(40)])
        fleet.router.merge("a", [Confirmed(1, "w1", 1.0, blocks, end, given, 0, 0)], 0.0, NOW)
        loads = [Gauge(w, 1.0, rng.randrange(20), rng.randrange(9000), 0) for w in ("w1", "w2")]
        fleet.router.merge_gauges("a", loads, NOW)
        answer = why(PROMPT, fleet)
        if "allowance" in answer.because:
            follows = "<=" in answer.because and "follow w1" in answer.because
            takes = ">" in answer.because and "take w2" in answer.because
            assert (follows, takes) == (answer.decision.worker == "w1", answer.decision.worker == "w2")
            verdicts.add(follows)
    assert verdicts == {True, False}


def test_looking_changes_nothing() -> None:
    """A choice that is only explained counts nothing in and records nothing."""
    fleet = view("w1", "w2", held_by="w1")
    before = (fleet.router.gauges(), len(fleet.router.index), candidates(fleet.router))
    first = said(fleet)
    assert said(fleet) == first
    after = (fleet.router.gauges(), len(fleet.router.index), candidates(fleet.router))
    assert (after, fleet.router.index.provisional, fleet.router.drain(time.monotonic())) == (before, 0, [])
