"""The demonstration, as a user runs it and in its parts."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import redis

from prefix_middleware.demo.conversation import Turn
from prefix_middleware.demo.fleet import Fleet
from prefix_middleware.demo.processes import Child, StartError, free_port
from prefix_middleware.demo.report import broken_turns, line_of, sentence
from tests.services import Process, required, wait_until

COMMAND = [sys.executable, "-m", "prefix_middleware.demo"]


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(number) for number in listed.stdout.split()]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def turn(number: int, worker: str, seconds: float = 1.0) -> Turn:
    return Turn(
        number=number,
        gateway="gateway-1",
        worker=worker,
        request_id=f"r{number}",
        prompt_tokens=5000,
        cached_tokens=0,
        seconds=seconds,
    )


def test_the_demo_shows_both_runs_and_every_follow_up_keeps_its_worker() -> None:
    """Exit status 0, within a minute, in 80 columns, with the gateways' own lines."""
    required("nginx")
    required("redis-server")
    shown = subprocess.run(COMMAND, capture_output=True, text=True, timeout=60)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    reasons = [line.split()[1] for line in lines if line.startswith("[PREFIX]")]
    assert reasons == ["miss:", "hit:", "hit:", "hit:", "hit:"]
    assert max(len(line) for line in lines if not line.startswith("[PREFIX]")) <= 80
    assert lines[-1].startswith("With the line follow-ups start ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_demo_and_every_process_of_it(number: int) -> None:
    """Nothing is left running after Ctrl-C or a termination."""
    demo = Process(COMMAND)
    try:
        wait_until(lambda: "without the line: turn 1" in demo.text(), 30, "the first turn")
        children = children_of(demo.pid)
        demo.signal(number)
        assert (demo.wait(15), len(children)) == (130, 7)
        assert all(map(gone, children))
    finally:
        demo.stop()


def test_without_redis_and_nginx_the_stand_ins_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demonstration needs nothing but Python, and says so."""
    monkeypatch.setattr(shutil, "which", lambda *_args, **_options: None)
    fleet = Fleet(tmp_path)
    try:
        fleet.start()
        with redis.Redis.from_url(fleet.redis_url) as client:
            assert client.ping() is True
        answer = httpx.get(f"{fleet.upstream_url}/health", trust_env=False)
        assert (answer.status_code, answer.headers["x-prefix-served"] in fleet.workers) == (200, True)
        assert fleet.remarks == [
            "redis-server is not installed: fakeredis stands in",
            "nginx is not installed: a small proxy stands in",
        ]
    finally:
        fleet.stop()


def test_a_process_that_cannot_start_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    """The reader sees which process failed and what it said."""
    command = [sys.executable, "-c", "print('port is taken'); raise SystemExit(3)"]
    child = Child("redis", command, free_port(), tmp_path)
    with pytest.raises(StartError) as error:
        child.wait_ready()
    assert str(error.value) == "redis ended with status 3\n  port is taken"


def test_a_follow_up_elsewhere_breaks_the_demo() -> None:
    """A worker is kept only when nginx and the worker's own log both say so."""
    turns = [turn(1, "a"), turn(2, "a"), turn(3, "b")]
    assert broken_turns(turns, ["a", "b", "b"]) == [
        "turn 2: nginx says 'a', the log of 'b' has it",
        "turn 3: a -> b",
    ]
    assert broken_turns(turns[:2], ["a", "a"]) == []


def test_the_sentence_compares_medians_of_follow_ups() -> None:
    """The first turn is cold in both runs and does not count."""
    plain = [turn(1, "a", 9), turn(2, "b", 1.0), turn(3, "c", 2.0), turn(4, "a", 3.0)]
    with_line = [turn(1, "a", 9), turn(2, "a", 0.1), turn(3, "a", 0.2), turn(4, "a", 0.3)]
    expected = "With the line follow-ups start 10.0x sooner: 0.20 s against 2.00 s (median)."
    assert sentence(plain, with_line) == expected


def test_the_conversation_is_told_from_other_users_by_its_length() -> None:
    """A turn's line is the long one among those printed meanwhile."""
    other = "[PREFIX] miss: w2 starts 0/29 blocks (slots=0 min=0 slack=0, ~3700 tokens)"
    ours = "[PREFIX] hit: w1 keeps 37/40 blocks (slots=0 min=0 slack=14, ~5131 tokens)"
    assert [line_of(f"{other}\n{ours}\n"), line_of(f"{other}\n"), line_of("")] == [ours, None, None]
