"""The verdict of a drill: it fails when it should; and a drill played for real, with and without a fault that is allowed."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import drills.__main__ as command
from drills.client import Answer
from drills.rig import START_SECONDS, WORKER_IDS, Rig, rig, wait_until
from drills.scene import Scene, play
from drills.traffic import Sample, Traffic
from drills.verdict import QUICK, Drill, Figures, Limits, Scale, complaints, line
from prefix_middleware.demo.processes import StartError
from tests.services import required

WELL = Figures(sent=100, failed=0, calm_ms=20, added_ms=5, longest_at_seconds=1.5, agree_seconds=0.4)
PATIENT = Limits(added_ms=math.inf, agree_seconds=math.inf)  # a busy machine is no fault
STREAM = Answer(
    status=200, began=10.0, first_seconds=0.1, served="w1", chosen="w1", pid=7, error="IncompleteRead"
)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"cut": 9}, []),
        ({"sent": 0}, ["nothing was sent"]),
        ({"failed": 1}, ["1 requests failed"]),
        ({"relayed": 1}, ["a worker's errors reached 1 clients, not at most 0"]),
        ({"retried": 1}, ["1 requests had to be sent again"]),
        ({"added_ms": 1001.0}, ["the longest wait grew by more than 1000 ms"]),
        ({"agree_seconds": None}, ["the gateways do not agree"]),
        ({"agree_seconds": 20.1}, ["agreement took more than 20 s"]),
        ({"in_flight": 1}, ["1 are still in flight"]),
        ({"in_flight": -1}, ["-1 are still in flight"]),
        ({"broken": ("what was expected",)}, ["what was expected"]),
        ({"failed": 2, "in_flight": 3}, ["2 requests failed", "3 are still in flight"]),
    ],
)
def test_each_figure_out_of_bounds_is_a_complaint(changed: dict[str, Any], expected: list[str]) -> None:
    """One bad figure is enough to fail, and it is named; streams that died with their worker are not one."""
    assert complaints(replace(WELL, **changed), Limits()) == expected


def test_what_a_drill_allows_is_no_complaint() -> None:
    """The limits belong to the drill: errors of a worker's own and retries pass where they are part of the fault."""
    figures = replace(WELL, relayed=4, retried=2, added_ms=3000.0)
    assert complaints(figures, Limits(relayed=4, retries=True, added_ms=5000)) == []


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (
            WELL,
            "PASS  redis-full  sent=100 failed=0 cut=0  calm=20ms added=5ms@1.5s  agree=0.4s in_flight=0",
        ),
        (
            replace(WELL, agree_seconds=None, in_flight=2, retried=1, notes=("lines 1+1",)),
            "FAIL  redis-full  sent=100 failed=0 cut=0  calm=20ms added=5ms@1.5s  agree=never in_flight=2  retried=1  "
            "lines 1+1 | 1 requests had to be sent again; the gateways do not agree; 2 are still in flight",
        ),
    ],
    ids=["pass", "fail"],
)
def test_the_line_begins_with_the_verdict_and_ends_with_what_is_wrong(
    figures: Figures, expected: str
) -> None:
    """One line has everything: verdict, name, figures, notes, complaints."""
    assert line(Drill(name="redis-full", play=lambda _scale: WELL), figures) == expected


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (replace(STREAM, whole=True, error=""), "good"),
        (STREAM, "cut"),
        (replace(STREAM, began=13.0), "failed"),  # sent after its worker had died
        (replace(STREAM, served="w2", chosen="w2", pid=8), "failed"),  # its own worker lives
        (replace(STREAM, first_seconds=None), "cut"),  # its headers had come
        (replace(STREAM, status=502, whole=True), "failed"),
        (replace(STREAM, status=0, first_seconds=None), "failed"),  # nothing had come: it could be sent again
        (
            replace(STREAM, status=500, whole=True, data=b'{"message": "the worker was told to fail"}'),
            "relayed",
        ),
    ],
)
@pytest.mark.parametrize("name", ["w1", 7], ids=["worker", "process"])
def test_only_a_stream_that_its_worker_had_begun_is_cut(answer: Answer, end: str, name: str | int) -> None:
    """Whoever dies takes only what it was already sending; all else that is not answered well has failed."""
    traffic = Traffic([1], 0)
    traffic.died(name, 12.0)
    assert traffic.end_of(Sample(answer=answer, gateway=1)) == end


@pytest.mark.parametrize(
    ("figures", "status"),
    [(WELL, 0), (replace(WELL, failed=1), 1), (None, 1)],
    ids=["pass", "fail", "no start"],
)
def test_the_exit_status_is_one_when_a_drill_fails(
    figures: Figures | None, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every drill is played and has its line; one FAIL, or one that cannot be played, is enough for status 1."""

    def play_it(_scale: Scale) -> Figures:
        if figures is None:
            raise StartError("redis-server is not installed")
        return figures

    playable = (Drill(name="this", play=play_it), Drill(name="well", play=lambda _scale: WELL))
    monkeypatch.setattr(command, "DRILLS", playable)
    assert command.main([]) == status
    verdicts = [printed.split()[:2] for printed in capsys.readouterr().out.splitlines()]
    assert verdicts == [["FAIL" if status else "PASS", "this"], ["PASS", "well"]]


def test_names_are_unique_and_say_the_family() -> None:
    """A drill is chosen by its name or by the beginning of several."""
    names = [drill.name for drill in command.DRILLS]
    assert len(names) == len(set(names))
    assert {name.partition("-")[0] for name in names} == {
        "redis", "worker", "workers", "gateway", "nginx", "uvicorn", "gunicorn", "client",
    }  # fmt: skip


@pytest.fixture(scope="module")
def running() -> Iterator[Rig]:
    required("redis-server")
    required("nginx")
    with rig() as it:
        yield it


def test_a_real_drill_passes_where_nothing_is_lost(running: Rig) -> None:
    """A killed worker that is started again: requests are answered by others, the gateways agree, nothing is in flight."""

    def fault(scene: Scene) -> None:
        worker = WORKER_IDS[0]
        scene.traffic.died(worker, scene.rig.kill(worker))
        scene.rig.start_worker(worker).wait_ready(START_SECONDS)

    figures = play(running, QUICK, fault)
    assert (complaints(figures, PATIENT), figures.sent > 0) == ([], True)


def test_a_real_drill_fails_where_errors_reach_the_clients(running: Rig) -> None:
    """All workers answer 500 and clients see it: that is what the verdict says, and nothing else."""

    def fault(scene: Scene) -> None:
        for worker in WORKER_IDS:
            scene.rig.control(worker, fail=500)
        wait_until(lambda: scene.traffic.counts()["relayed"], "an error seen")
        for worker in WORKER_IDS:
            scene.rig.control(worker, fail=None)

    figures = play(running, QUICK, fault)
    expected = f"a worker's errors reached {figures.relayed} clients, not at most 0"
    assert complaints(figures, PATIENT) == [expected]
