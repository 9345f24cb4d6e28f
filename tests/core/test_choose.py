"""The policies as tables of situations, the words for their choices, and what holds for any numbers."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from prefix_middleware.core.choose import (
    POLICIES,
    Candidate,
    Choice,
    Decision,
    Figures,
    Situation,
    choose,
    decision,
    fuller,
    line,
    load_tokens,
)
from prefix_middleware.core.loads import Load
from tests.core import strategies as some

FIGURES = Figures()
FULL = 256


def worker(name: str, in_flight: int = 0, matched: int = 0, *, fill: float = 0.0, backlog: int = 0,
           continues: bool = False) -> Candidate:  # fmt: skip
    """Return a candidate with so many requests and so many matched blocks of 128 tokens."""
    return Candidate(
        name, Load(in_flight, backlog, 0, fill, max(0, in_flight - FULL)), matched, matched * 128, continues
    )


def situation(
    prompt: int, pair: Sequence[Candidate], *best: Candidate, third: Candidate | None = None
) -> Situation:
    """Return what a policy sees of these candidates."""
    everyone = list({c.worker: c for c in (*pair, *best, *([third] if third else []))}.values())
    freest = min(c.load.in_flight for c in everyone)
    return Situation(prompt, pair, third or pair[0], best, freest, freest >= FULL, lambda: everyone)


def decided(given_: Situation, policy: str = "tokens") -> tuple[str, str | None]:
    """Return reason and worker."""
    found = described(given_, policy)
    return found.reason, found.worker


def described(given_: Situation, policy: str = "tokens") -> Decision:
    alone = len(given_.everyone()) == 1
    choice = choose(given_, policy, FIGURES)
    return decision(given_, choice, alone=alone, blocks=64, model="m", policy=policy, figures=FIGURES)


TOKENS: dict[str, tuple[Situation, tuple[str, str]]] = {
    "one block against six requests": (
        situation(8192, [worker("w2"), worker("w3", 1)], worker("w1", 6, 1)), ("busy", "w2")),
    "sixty blocks against six requests": (
        situation(8192, [worker("w2"), worker("w3", 1)], worker("w1", 6, 60)), ("hit", "w1")),
    "a shared system prompt on a worker with three more requests": (
        situation(1700, [worker("w2"), worker("w3")], worker("w1", 3, 12)), ("hit", "w1")),
    "a shared system prompt on a worker with four more requests": (
        situation(1700, [worker("w2"), worker("w3")], worker("w1", 4, 12)), ("busy", "w2")),
    "exactly at what twelve blocks allow": (
        situation(1700, [worker("w2"), worker("w3")], worker("w1", 3, 12, backlog=72)), ("hit", "w1")),
    "one token over what twelve blocks allow": (
        situation(1700, [worker("w2"), worker("w3")], worker("w1", 3, 12, backlog=73)), ("busy", "w2")),
    "one hot worker does not matter to a prefix elsewhere": (
        situation(4000, [worker("w1", 40), worker("w3")], worker("w2", 0, 10)), ("hit", "w2")),
    "what the base holds itself saves nothing": (
        situation(8192, [worker("w2", 0, 59), worker("w3", 9)], worker("w1", 1, 60)), ("busy", "w2")),
    "the best is the base": (situation(4000, [worker("w1", 1, 3), worker("w2", 2)], worker("w1", 1, 3)), ("hit", "w1")),
    "of two equal matches the lighter": (
        situation(4000, [worker("w3"), worker("w3")], worker("w1", 3, 20), worker("w2", 2, 20)), ("hit", "w2")),
    "nothing held: the lighter of the pair": (situation(4000, [worker("w1", 2), worker("w2", 1)]), ("miss", "w2")),
    "a tie goes to the first by rendezvous": (situation(4000, [worker("w2", 1), worker("w1", 1)]), ("miss", "w2")),
    "backlog is load": (
        situation(4000, [worker("w1", 1, backlog=9000), worker("w2", 2)]), ("miss", "w2")),
    "fill decides between loads that are near": (
        situation(4000, [worker("w1", 0, fill=0.5), worker("w2", 7, fill=0.0)]), ("miss", "w2")),
    "fill is nothing between loads that are not": (
        situation(4000, [worker("w1", 0, fill=1.0), worker("w2", 8, fill=0.0)]), ("miss", "w1")),
    "fill is little between workers that are nearly as full": (
        situation(1700, [worker("w2", fill=0.85), worker("w3", 1, fill=0.85)], worker("w1", 0, 12, fill=0.9)), ("hit", "w1")),
    "fill pulls a new conversation off the common worker": (
        situation(1700, [worker("w2", fill=0.1), worker("w3", 1, fill=0.1)], worker("w1", 0, 12, fill=0.9)), ("busy", "w2")),
    "fill does not pull a running one": (
        situation(1700, [worker("w2", fill=0.1), worker("w3", 1)], worker("w1", 0, 12, fill=0.9, continues=True)),
        ("hit", "w1")),
    "a running one follows with weight 3": (
        situation(1700, [worker("w2"), worker("w3")], worker("w1", 4, 12, continues=True)), ("hit", "w1")),
    "a running one does not follow into a heap": (
        situation(1700, [worker("w2"), worker("w3")], worker("w1", 5, 12, continues=True)), ("busy", "w2")),
    "a running one whose start is common stays for one request more": (
        situation(1700, [worker("w2", 0, 11), worker("w3", 3)], worker("w1", 1, 12, backlog=900, continues=True)),
        ("hit", "w1")),
    "and not for two": (
        situation(1700, [worker("w2", 0, 11), worker("w3", 3)], worker("w1", 2, 12, backlog=1, continues=True)),
        ("busy", "w2")),
    "of equal matches the one that it continues": (
        situation(4000, [worker("w3"), worker("w3")], worker("w1", 0, 20), worker("w2", 2, 20, continues=True)),
        ("hit", "w2")),
    "a random third that is much lighter": (
        situation(1000, [worker("w1", 3), worker("w2", 4)], third=worker("w3", 0)), ("miss", "w3")),
    "a random third that is not lighter by two prompts": (
        situation(1000, [worker("w1", 2), worker("w2", 4)], third=worker("w3", 0)), ("miss", "w1")),
    "a random third that is not lighter by what it would have to compute as well": (
        situation(1700, [worker("w1", 6, 12), worker("w2", 7)], worker("w1", 6, 12), third=worker("w3")), ("hit", "w1")),
    "a random third that is": (
        situation(1700, [worker("w1", 7, 12), worker("w2", 8)], worker("w1", 7, 12), third=worker("w3")), ("busy", "w3")),
    "one candidate": (situation(4000, [worker("w1", 99, 3)], worker("w1", 99, 3)), ("only", "w1")),
    "all full: the lightest takes over": (
        situation(8192, [worker("w1", FULL + 3), worker("w2", FULL + 2)], worker("w1", FULL + 3, 60),
                  third=worker("w3", FULL)), ("busy", "w3")),
    "all full but one": (
        situation(8192, [worker("w1", FULL + 3), worker("w2", FULL - 1)]), ("miss", "w2")),
}  # fmt: skip

REQUESTS: dict[str, tuple[Situation, tuple[str, str]]] = {
    "at the slack": (situation(8192, [worker("w2"), worker("w3")], worker("w1", 3, 1)), ("hit", "w1")),
    "over the slack": (situation(8192, [worker("w2"), worker("w3")], worker("w1", 4, 64)), ("busy", "w2")),
    "a short prompt has none": (situation(999, [worker("w2"), worker("w3")], worker("w1", 1, 1)), ("busy", "w2")),
    "slack is counted from the freest of all": (
        situation(4000, [worker("w2", 5), worker("w3", 6)], worker("w1", 7, 9), third=worker("w4", 5)), ("hit", "w1")),
    "the freest may be outside the pair": (
        situation(4000, [worker("w2", 5), worker("w3", 6)], worker("w1", 7, 9), third=worker("w4", 0)), ("busy", "w2")),
    "power of two choices": (situation(4000, [worker("w1", 2), worker("w2", 1)]), ("miss", "w2")),
    "tokens are nothing": (
        situation(4000, [worker("w1", 1, backlog=90_000, fill=1.0), worker("w2", 2)]), ("miss", "w1")),
    "all full": (
        situation(4000, [worker("w1", FULL + 9), worker("w2", FULL + 1)], worker("w1", FULL + 9, 9)), ("busy", "w2")),
    "one candidate": (situation(4000, [worker("w1", 99)]), ("only", "w1")),
}  # fmt: skip


@pytest.mark.parametrize(("given_", "expected"), TOKENS.values(), ids=TOKENS.keys())
def test_tokens_follows_a_match_for_what_it_saves(given_: Situation, expected: tuple[str, str]) -> None:
    """A preference whose slack grows with the tokens that a hit saves, against loads in tokens."""
    assert decided(given_) == expected


@pytest.mark.parametrize(("given_", "expected"), REQUESTS.values(), ids=REQUESTS.keys())
def test_requests_follows_a_match_up_to_a_slack(given_: Situation, expected: tuple[str, str]) -> None:
    """The plain form: in-flight counts only."""
    assert decided(given_, "requests") == expected


COST: dict[str, tuple[Situation, tuple[str, str]]] = {
    "one block against six requests": (
        situation(8192, [worker("w2"), worker("w3", 1)], worker("w1", 6, 1)), ("busy", "w2")),
    "sixty blocks against six requests": (
        situation(8192, [worker("w2"), worker("w3", 1)], worker("w1", 6, 60)), ("hit", "w1")),
    "a shorter match on a lighter worker": (
        situation(8192, [worker("w2", 0, 50), worker("w3")], worker("w1", 6, 60)), ("busy", "w2")),
    "the third counts like the others": (
        situation(8192, [worker("w2", 2), worker("w3", 2)], worker("w1", 40, 60), third=worker("w4", 1)), ("busy", "w4")),
    "fill does not pull a running conversation": (
        situation(1700, [worker("w2"), worker("w3")], worker("w1", 2, 12, fill=0.9, continues=True)), ("hit", "w1")),
    "nothing held": (situation(4000, [worker("w1", 2), worker("w2", 1)]), ("miss", "w2")),
    "all full": (
        situation(4000, [worker("w1", FULL + 9), worker("w2", FULL + 1)], worker("w1", FULL + 9, 9)), ("busy", "w2")),
}  # fmt: skip


@pytest.mark.parametrize(("given_", "expected"), COST.values(), ids=COST.keys())
def test_cost_takes_the_least_of_load_and_prefill(given_: Situation, expected: tuple[str, str]) -> None:
    """The weighted form: load plus a multiple of what is left to compute, over all that are looked at."""
    assert decided(given_, "cost") == expected


@pytest.mark.parametrize(
    ("prompt", "slack"),
    [(1, 0), (999, 0), (1000, 1), (3999, 1), (4000, 2), (7999, 2), (8000, 3), (31_999, 3), (32_000, 4)],
)
def test_the_slack_of_requests_goes_by_prompt_tokens(prompt: int, slack: int) -> None:
    """0 below 1k, 1 below 4k, 2 below 8k, 3 below 32k, 4 from 32k."""
    assert described(situation(prompt, [worker("w1"), worker("w2")]), "requests").slack == slack


@pytest.mark.parametrize(
    ("load", "tokens"),
    [
        (Load(0, 0, 0, 1.0), 0),
        (Load(1, 0, 0, 0.0), 1000),
        (Load(2, 500, 10_000, 0.0), 2800),
        (Load(256, 0, 0, 0.0), 256_000),
        (Load(258, 0, 0, 0.0, 2), 264_000),
    ],
)
def test_a_load_in_tokens(load: Load, tokens: float) -> None:
    """Backlog + 1000 a request (4000 above max_in_flight) + 3 % of the prompt tokens in flight."""
    assert load_tokens(load, FIGURES) == tokens


def test_a_decision_carries_every_figure() -> None:
    """The line and the host read the same numbers: worker, loads, allowance and what was matched where."""
    hit = described(situation(8192, [worker("w2", 1, 4), worker("w3", 5)], worker("w1", 2, 60)))
    assert hit == Decision(
        reason="hit", worker="w1", matched_blocks=60, blocks=64, matched_tokens=7680, best_tokens=7680,
        tokens=8192, slots=2, min_slots=1, slack=14, load=2000.0, base_load=1000.0, allowance=14_336.0,
        model="m", policy="tokens",
    )  # fmt: skip


def test_a_busy_decision_names_who_keeps_the_match() -> None:
    """Blocks are those of the previous worker; the tokens saved are those on the chosen one."""
    busy = described(situation(8192, [worker("w2", 0, 1), worker("w3", 5)], worker("w1", 30, 60)))
    assert busy == Decision(
        reason="busy", worker="w2", previous="w1", matched_blocks=60, blocks=64, matched_tokens=128, best_tokens=7680,
        tokens=8192, slots=0, min_slots=0, slack=15, load=0.0, base_load=0.0, allowance=15_104.0, model="m", policy="tokens",
    )  # fmt: skip


LINES = [
    (
        Decision(reason="hit", worker="905487f1", matched_blocks=64, blocks=64, slack=3, tokens=12952),
        "[PREFIX] hit: 905487f1 keeps 64/64 blocks (slots=0 min=0 slack=3, ~12952 tokens)",
    ),
    (
        Decision(
            reason="busy",
            worker="w2",
            previous="w1",
            matched_blocks=5,
            blocks=9,
            slots=1,
            min_slots=1,
            tokens=7,
        ),
        "[PREFIX] busy: w2 takes over from w1, which keeps 5/9 blocks (slots=1 min=1 slack=0, ~7 tokens)",
    ),
    (
        Decision(reason="miss", worker="w2", blocks=9, slots=2, min_slots=1, slack=4, tokens=1200),
        "[PREFIX] miss: w2 starts 0/9 blocks (slots=2 min=1 slack=4, ~1200 tokens)",
    ),
    (
        Decision(reason="only", worker="w2", matched_blocks=3, blocks=9, tokens=1200),
        "[PREFIX] only: w2 keeps 3/9 blocks (slots=0 min=0 slack=0, ~1200 tokens)",
    ),
    (
        Decision(reason="none", model="qwen", tokens=1200),
        "[PREFIX] none: no ready worker for qwen (~1200 tokens)",
    ),
]


@pytest.mark.parametrize(("given_", "expected"), LINES, ids=[given_.reason for given_, _ in LINES])
def test_every_reason_has_its_line(given_: Decision, expected: str) -> None:
    """People and scripts read these lines: each is pinned, letter by letter."""
    assert line(given_) == expected


def seen(candidates: Sequence[Candidate], prompt: int, third: int) -> Situation:
    """Return the situation of a whole fleet: the first two are the pair, the best are those with the most blocks."""
    most = max(c.matched_blocks for c in candidates)
    best = [c for c in candidates if most and c.matched_blocks == most]
    return situation(prompt, candidates[:2], *best, third=candidates[third % len(candidates)])


@settings(max_examples=200, deadline=None)
@given(some.fleets(), st.integers(1, 2_000_000), st.integers(0, 9), st.sampled_from(sorted(POLICIES)))
def test_any_numbers_give_a_decision_among_the_candidates(
    fleet: list[Candidate], prompt: int, third: int, policy: str
) -> None:
    """Never an exception, never a worker that was not a candidate, and always a line."""
    found = described(seen(fleet, prompt, third), policy)
    assert found.worker in {c.worker for c in fleet}
    assert line(found).startswith(f"[PREFIX] {found.reason}: {found.worker} ")


@pytest.mark.parametrize(
    ("fills", "kv_tokens", "expected"),
    [
        ((0.0, 0.0), (300_000, 300_000), 0.0),
        ((0.01, 0.0), (300_000, 300_000), 3_000.0),  # each token
        ((0.5, 0.0), (300_000, 300_000), 25_000.0),  # no more than five prompts
        ((0.5, 0.4), (300_000, 300_000), 5_000.0),  # a fifth of what the fuller was given
        ((1.0, 1.0), (300_000, 300_000), 0.0),
        ((0.5, 0.25), (4_000, 4_000), 1_000.0),
        ((0.5, 0.25), (4_000, 300_000), 1_000.0),  # the smaller cache says what a share is
    ],
)
def test_fill_weighs_tokens_and_no_more_than_their_share(
    fills: tuple[float, float], kv_tokens: tuple[int, int], expected: float
) -> None:
    """What one was given more, by its share of the larger where that is less; the same the other way round."""
    a, b = (Load(0, 0, 0, fill, kv_tokens=size) for fill, size in zip(fills, kv_tokens, strict=True))
    weights = fuller(a, b, 5_000, FIGURES), fuller(b, a, 5_000, FIGURES)
    assert [round(weight, 6) for weight in weights] == [expected, -expected]


def weight(choice: Choice, prompt: int) -> float:
    """Return by how many tokens the chosen is heavier than the base, as the policy says it compares them."""
    a, b = choice.chosen, choice.base
    difference = load_tokens(a.load, FIGURES) - load_tokens(b.load, FIGURES)
    near = abs(difference) < FIGURES.near_tokens and not a.continues
    return difference + (fuller(a.load, b.load, prompt, FIGURES) if near else 0.0)


@settings(max_examples=200, deadline=None)
@given(some.fleets(), st.integers(1, 2_000_000), st.integers(0, 9))
def test_nobody_is_preferred_beyond_the_slack(fleet: list[Candidate], prompt: int, third: int) -> None:
    """tokens: never heavier than the base by more than a multiple of what is saved; requests: at most slack more."""
    given_ = seen(fleet, prompt, third)
    assume(not given_.all_full)
    by_tokens, by_requests = (choose(given_, policy, FIGURES) for policy in ("tokens", "requests"))
    chosen, base = by_tokens.chosen, by_tokens.base
    factor = FIGURES.continue_weight if chosen.continues else FIGURES.follow_weight
    saved = factor * (chosen.matched_tokens - base.matched_tokens)
    allowance = max(saved, FIGURES.continue_tokens) if chosen.continues else saved
    assert chosen == base or weight(by_tokens, prompt) <= allowance
    chosen, base = by_requests.chosen, by_requests.base
    assert chosen == base or chosen.load.in_flight <= given_.min_in_flight + by_requests.slack


@settings(max_examples=200, deadline=None)
@given(some.fleets(), st.integers(1, 2_000_000), st.sampled_from(sorted(POLICIES)), st.randoms())
def test_the_order_of_the_candidates_is_irrelevant(
    fleet: list[Candidate], prompt: int, policy: str, rng: Random
) -> None:
    """Two gateways list workers in other orders and must agree; ties and fills apart, which only break ties."""
    level = [Candidate(c.worker, Load(i, c.load.backlog_tokens, 0, 0.0), c.matched_blocks, c.matched_tokens)
             for i, c in enumerate(fleet)]  # fmt: skip
    assume(len({load_tokens(c.load, FIGURES) for c in level}) == len(level))
    given_ = seen(level, prompt, 0)
    pair, best, everyone = list(given_.pair), list(given_.best), list(given_.everyone())
    for some_list in (pair, best, everyone):
        rng.shuffle(some_list)
    other = Situation(
        prompt, pair, given_.third, best, given_.min_in_flight, given_.all_full, lambda: everyone
    )
    assert choose(other, policy, FIGURES) == choose(given_, policy, FIGURES)
