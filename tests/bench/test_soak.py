"""The soak's verdict, and a run of a few seconds on real processes."""

import asyncio
from contextlib import nullcontext
from itertools import islice

import pytest

from bench.soak.__main__ import Run, gateways, main, small, soak
from bench.soak.load import prompts
from bench.soak.verdict import Figure, Sample, figures, filled_at, p99_error, table, thirds
from tests.services import RedisServer

DECISIONS, FLOORS = tuple(n / 1e6 for n in range(1, 201)), tuple(n / 2e6 for n in range(1, 201))


def sample(at: float, rss: int = 50, pairs: int = 100, slow: float = 1.0) -> Sample:
    """Return what two gateways of one size are at a moment."""
    decisions = tuple(slow * value for value in DECISIONS)
    return Sample(at, (rss * 10**6, rss * 10**6), 2 * 10**6, (pairs, pairs), decisions, FLOORS)


@pytest.mark.parametrize(
    ("middle", "last", "verdict"),
    [(100, 105, "PASS"), (100, 105.1, "FAIL"), (100, 95, "PASS"), (100, 94.9, "FAIL"), (0, 1, "FAIL"), (0, 0, "FAIL")],
)  # fmt: skip
def test_flat_is_within_five_percent_of_the_middle_third(middle: float, last: float, verdict: str) -> None:
    """Growth and shrinking count alike, and what was not there cannot be flat."""
    assert Figure("x", 1.0, middle, last).verdict == verdict


def test_a_figure_that_is_only_shown_fails_nothing() -> None:
    """Absolute times say more about the machine than about the code."""
    assert Figure("x", 1, 1, 9, shown=True).verdict == "-"


def test_samples_are_cut_into_thirds_by_time() -> None:
    """The first third is for filling up, however many samples it has."""
    at = [0.0, 9.9, 10.0, 19.9, 20.0, 30.0, 31.0]
    parts = thirds([sample(moment) for moment in at], 30)
    assert [[s.at for s in part] for part in parts] == [[0.0, 9.9], [10.0, 19.9], [20.0, 30.0, 31.0]]
    with pytest.raises(ValueError, match="too few samples"):
        thirds([sample(1.0)], 30)


def test_a_leak_and_a_slower_decision_are_found() -> None:
    """What grows from the middle third to the last fails by name; the rest passes."""
    flat, grown = [sample(1), sample(11)], sample(21, rss=53, slow=1.1)
    verdicts = {row.name: row.verdict for row in figures([*flat, grown], 30)}
    assert {name for name, verdict in verdicts.items() if verdict == "FAIL"} == {
        "gateway 1 RSS, MB",
        "gateway 2 RSS, MB",
        "decision p99 / floor p99",
    }
    assert {row.verdict for row in figures([*flat, sample(21)], 30)} == {"PASS", "-"}


def test_the_p99_is_that_of_all_decisions_of_a_third_over_the_floors() -> None:
    """200 decisions of 1 to 200 us against floors of half of that."""
    rows = {row.name: row.last for row in figures([sample(1), sample(11), sample(21)], 30)}
    found = [rows[f"{name} p99, CPU us"] for name in ("decision", "floor")]
    assert [*found, rows["decision p99 / floor p99"]] == pytest.approx([198, 99, 2])


def test_the_error_of_the_p99_says_what_the_run_can_tell() -> None:
    """None where every part has the same p99; unknown with a handful of decisions."""
    same = Sample(21, (1,), 1, (1,), (2.0,) * 40, (1.0,) * 40)
    assert p99_error([sample(1), sample(11), same], 30) == 0.0
    assert p99_error([sample(1), sample(11), Sample(21, (1,), 1, (1,))], 30) == float("inf")


def test_the_indexes_are_full_when_the_emptier_one_is() -> None:
    """A record may leave the index a little short of its bound."""
    half = Sample(1, (1, 1), 1, (100, 50))
    assert filled_at([half, sample(2, pairs=98), sample(3)], 100) == 2
    assert filled_at([half], 100) is None


def test_a_line_has_the_thirds_the_change_and_the_verdict() -> None:
    """One line a figure, aligned under its head."""
    head, line = table([Figure("gateway 1 RSS, MB", 50, 60, 66)])
    assert line.split() == ["gateway", "1", "RSS,", "MB", "50.00", "60.00", "66.00", "+10.0%", "FAIL"]
    assert head.split() == ["first", "middle", "last", "change"]
    assert head.index("change") + len("change") == line.index("+10.0%") + len("+10.0%")


def test_the_prompts_are_mostly_new_and_some_go_on() -> None:
    """Among the bodies of one client are unique ones of 32 KB and conversations that repeat all they had, longer."""
    bodies = list(islice(prompts(1), 120))
    again = [
        body for body in bodies if any(body.startswith(other[:9000]) and body != other for other in bodies)
    ]
    assert len(set(bodies)) == 120
    assert 0 < len(again) < 60
    assert sum(len(body) > 32_768 for body in bodies) > 60
    assert set(bodies).isdisjoint(islice(prompts(2), 120))


def test_a_run_samples_real_gateways_and_leaves_nothing_in_flight(redis: RedisServer) -> None:
    """Two gateway processes on one Redis: each sample has both, decisions are timed, the index never exceeds its bound."""
    bounds = small(4.0)
    with gateways(2, redis.url, bounds) as children:
        run = asyncio.run(soak(4.0, 0.3, children, redis.url))
    assert (run.in_flight, run.skips, run.errors, run.answered > 0) == (0, 0, 0, True)
    assert {(len(s.rss_bytes), len(s.pairs), max(s.pairs) <= bounds.index_blocks) for s in run.samples} == {
        (2, 2, True)
    }
    assert all(len(s.decisions) == len(s.floors) for s in run.samples)
    assert sum(len(s.decisions) for s in run.samples) > 0
    assert min(s.redis_bytes for s in run.samples) > 0


@pytest.mark.parametrize(
    ("last", "in_flight", "verdict"), [(50, 0, "PASS"), (60, 0, "FAIL"), (50, 1, "FAIL")]
)
def test_a_run_ends_with_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    last: int,
    in_flight: int,
    verdict: str,
) -> None:
    """The bounds come first, the verdict last, and the exit status says the same; a request left in flight fails, too."""
    bound = small(60).index_blocks
    samples = [sample(at, rss, bound) for at, rss in ((1, 50), (21, 50), (41, last))]

    async def canned(*_: object) -> Run:
        return Run(samples, answered=7, in_flight=in_flight)

    monkeypatch.setattr("bench.soak.__main__.soak", canned)
    monkeypatch.setattr("bench.soak.__main__.gateways", lambda *_: nullcontext({}))
    status = main(["--minutes", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert (status, lines[-1]) == (0 if verdict == "PASS" else 1, verdict)
    assert lines[0] == "2 gateways, 60 s; bounds: index 6,000 pairs, stream 0.1 MB, ttl 10 s"
