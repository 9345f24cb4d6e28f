"""A whole replay: the product's core in front of modelled workers, its checks of itself, and what the command prints."""

import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from bench.replay.__main__ import app, figures_of, gateways_of, variants
from bench.replay.formats import Options, read
from bench.replay.gateways import BASELINES, CoreGateways, Setup
from bench.replay.play import Outcome, Replay
from bench.replay.report import case_of, compared, means, percentile, row
from bench.replay.trace import Request, Trace, chain, holdable
from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.choose import POLICIES, Figures

SIZE = 512
COLD = 1100 / 16_000 + 2e-9 * 1100 * 550 + 0.002
WARM = 0.015


def prompt(*blocks: int, tokens: int = 1100, previous_end: bytes | None = None) -> HashedPrompt:
    """Return what the router sees of these blocks."""
    return HashedPrompt(
        hashes=tuple(b.to_bytes(8, "little") for b in blocks),
        matched_tokens=tuple(range(0, SIZE * (len(blocks) + 1), SIZE)),
        end=b"end %d" % blocks[-1],
        previous_end=previous_end,
        tokens=tokens,
        model="",
    )


def request(at: float, *blocks: int) -> Request:
    return Request(at, prompt(*blocks), blocks, 1100, 1)


def replay(trace: Trace, policy: str, setup: Setup, speed: float = 1.0) -> Outcome:
    return Replay(trace, setup, gateways_of(setup, policy, Figures()), speed, 0.1).run()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write 120 requests in 40 conversations with a common system prompt: enough to queue on two workers."""
    random = Random(7)
    held: list[list[int]] = [[0] for _ in range(40)]
    rows = []
    for number in range(120):
        ids = held[random.randrange(40)]
        ids += range(1000 * number + 1, 1000 * number + 1 + random.randrange(1, 12))
        length = SIZE * len(ids)
        rows.append(
            {"timestamp": 100 * number, "input_length": length, "output_length": 100, "hash_ids": list(ids)}
        )
    path = tmp_path / "little.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_second_turn_goes_to_the_worker_that_holds_the_first() -> None:
    """Two conversations on eight workers: cold first turns, warm second ones."""
    trace = Trace("t", SIZE, [request(0.0, 1, 2), request(0.0, 3, 4), request(5.0, 1, 2), request(5.0, 3, 4)])

    outcome = replay(trace, "tokens", Setup())

    assert outcome.ttft == pytest.approx([COLD, COLD, WARM, WARM])
    assert (outcome.prompt_tokens, outcome.hit_tokens, sorted(outcome.prefilled)[-2:]) == (
        4400,
        2048,
        [1176, 1176],
    )


def test_a_session_thinks_before_its_next_turn() -> None:
    """The second turn comes its think time after the first has ended; speed shortens both times, not the work."""
    trace = Trace("t", SIZE, [chain([request(1.0, 1, 2), request(10.0, 1, 2)])])

    assert replay(trace, "tokens", Setup(), speed=2.0).seconds == pytest.approx(0.5 + COLD + 5.0 + WARM)


def test_gateways_learn_from_each_other_as_often_as_they_share() -> None:
    """Gateways take turns: the second finds the first one's conversation only when it has heard of it."""
    setup = Setup(gateways=2, workers=8)
    first = [request(float(i), 2 * i, 2 * i + 1) for i in range(10)]
    turns = [request(float(20 + i), 2 * ((i + 1) % 10), 2 * ((i + 1) % 10) + 1) for i in range(10)]
    trace = Trace("t", SIZE, [*first, *turns])  # every second turn comes to the other gateway

    shares = {}
    for seconds in (0.1, 1e9):
        shares[seconds] = (
            Replay(trace, setup, CoreGateways(setup, "tokens", Figures()), 1.0, seconds).run().hit_share
        )

    assert shares[0.1] == pytest.approx(10 * 1024 / 22_000)
    assert shares[1e9] < shares[0.1]


def test_gateways_know_how_much_a_worker_can_hold() -> None:
    """The router is told the KV cache and its blocks' lengths: what no longer fits is no longer believed."""
    setup = Setup(workers=1, kv_tokens=2300, block_tokens=(SIZE, SIZE))
    gateways = CoreGateways(setup, "tokens", Figures())
    prompts = [request(0.0, 2 * n, 2 * n + 1) for n in range(1, 4)]
    for now, each in enumerate(prompts):
        ticket = gateways.choose(each, float(now))
        ticket.start(float(now))
        ticket.finish()

    matches = [gateways.routers[0].index.match(each.prompt.hashes, "w0", 3.0) for each in prompts]

    assert matches == [0, 2, 2]


def test_baselines_look_at_in_flight_only() -> None:
    """p2c takes the freer of two, never the fullest of all; least takes any of the freest; random takes any."""
    in_flight, random = [0, 5, 0, 3], Random(1)

    taken = {name: {pick(in_flight, random) for _ in range(200)} for name, pick in BASELINES.items()}

    assert taken == {"p2c": {0, 2, 3}, "least": {0, 2}, "random": {0, 1, 2, 3}}


@pytest.mark.parametrize("policy", [*POLICIES, *BASELINES])
def test_the_same_seed_gives_the_same_replay(path: Path, policy: str) -> None:
    """Nothing but the seed decides: no clock, no order of a set."""
    trace = read(path, "auto", Options())
    setup = Setup(workers=2, kv_tokens=60_000, gateways=2)

    assert replay(trace, policy, setup) == replay(trace, policy, setup)


def test_a_replay_that_preempts_loses_nothing(path: Path) -> None:
    """Under KV pressure the run's own checks hold: all finish, nothing leaks, hits + computed = prompts + recomputed."""
    setup = Setup(workers=1, kv_tokens=30_000)
    trace = holdable(read(path, "auto", Options()), setup.kv_tokens)

    outcome = replay(trace, "tokens", setup, speed=4.0)

    assert (len(outcome.ttft), outcome.preemptions > 0) == (trace.requests, True)


def test_figures_are_read_over_the_defaults() -> None:
    """Numbers keep their type."""
    assert figures_of("") == Figures()
    assert figures_of("follow_weight=3,fill_weight=0") == Figures(follow_weight=3.0, fill_weight=0)


def test_each_change_is_a_variant_of_every_policy_but_the_base() -> None:
    """`requests` is what others are compared with, and baselines have no figures."""
    changed = Figures(follow_weight=3.0)

    assert variants(["tokens", "requests", "p2c"], ["follow_weight=3"]) == [
        ("tokens", "tokens", Figures()),
        ("tokens follow_weight=3", "tokens", changed),
        ("requests", "requests", Figures()),
        ("p2c", "p2c", Figures()),
    ]


def test_percentiles_are_values_that_occurred() -> None:
    """Nearest rank: the smallest value that the share of all does not exceed."""
    assert [percentile(range(1, 101), share) for share in (0.5, 0.9, 0.99)] == [50, 90, 99]
    assert (percentile([3.0], 0.9), percentile([], 0.9)) == (3.0, 0.0)


def test_p90_is_compared_within_a_case_and_averaged_over_cases() -> None:
    """The geometric mean of ratios to `requests`: 1/2 and 2 make 1."""

    seconds = {("a", "tokens"): 1.0, ("a", "requests"): 2.0, ("b", "tokens"): 4.0, ("b", "requests"): 2.0}

    rows = compared(row(*of, Outcome([p90], 100, 25, [30, 10], 0, 1.0)) for of, p90 in seconds.items())

    assert [(r.p90, r.hits, r.spread, r.p90_ratio) for r in rows[:2]] == [
        (1.0, 0.25, 1.5, 0.5),
        (2.0, 0.25, 1.5, 1.0),
    ]
    assert [(m.policy, round(m.p90_ratio, 9)) for m in means(rows)] == [("tokens", 1.0), ("requests", 1.0)]


@pytest.mark.parametrize(
    ("trace", "case"),
    [
        (("conversation_trace", 1.3, 307_328), "conversation x1.3 307k"),
        (("AzureLLMInferenceTrace_conv", 1.0, 3_000_000), "AzureLLM~ce_conv x1 3M"),
    ],
)
def test_cases_have_short_names(trace: tuple[str, float, int], case: str) -> None:
    """Trace, speed and KV cache, short enough for one line of the table."""
    assert case_of(*trace) == case


def command(path: Path, *options: str) -> str:
    """Run the command as a user would and return what it prints to stdout."""
    result = CliRunner().invoke(
        app, ["--trace", str(path), "--workers", "2", *options], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_and_json_say_the_same(path: Path) -> None:
    """One line for each policy and case, and one for each mean, in at most 100 columns."""
    options = "--policy", "tokens,requests,p2c", "--speed", "1,2"

    said = json.loads(command(path, *options, "--json"))
    printed = command(path, *options).splitlines()

    cells = [line.split() for line in printed]
    assert max(map(len, printed)) <= 100
    assert [[line[3], *line[7:10]] for line in cells if line[:1] == ["little"]] == [
        [r["policy"], f"{r['hits']:.3f}", f"{r['spread']:.2f}", str(r["preemptions"])] for r in said["rows"]
    ]
    assert {line[1]: float(line[2]) for line in cells if line[:1] == ["all"]} == {
        m["policy"]: pytest.approx(m["p90_ratio"], rel=0.01) for m in said["means"]
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--policy", "fastest"], "fastest: accepted are tokens"),
        (["--figures", "weight=1"], "weight: accepted are follow_weight"),
        (["--figures", "slack_steps=1"], "slack_steps: accepted are follow_weight"),
        (["--figures", "fill_weight=many"], "fill_weight=many: float is accepted"),
        (["--format", "kvcache"], "little.jsonl: Object missing required field"),
        (["--format", "csv"], "csv: accepted are auto"),
        (["--speed", "1,fast"], "1,fast: comma-separated numbers are accepted"),
        (["--kv-tokens", "0"], "0: numbers above 0 are accepted"),
    ],
)
def test_wrong_options_end_with_what_is_accepted(path: Path, options: list[str], says: str) -> None:
    """Status 2 and one sentence, before anything is played."""
    result = CliRunner().invoke(app, ["--trace", str(path), *options], env={"COLUMNS": "300"})

    assert (result.exit_code, says in " ".join(result.stderr.split())) == (2, True)
