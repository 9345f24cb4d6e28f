"""`prefix-middleware logs --follow`: over growth and rotation, from a pipe, on a terminal."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import COMMAND, DEMO, environment
from tests.services import Process, wait_until


def test_following_goes_on_over_growth_and_rotation(tmp_path: Path) -> None:
    """New lines are summed as they come, also in the file that replaces the log; Ctrl-C ends with the sums and 0."""
    log = tmp_path / "gateway.log"
    log.write_text("\n".join(DEMO[:3]) + "\n[PREFIX] hit: b86f20c4 kee")
    out, follower = tmp_path / "out", None
    try:
        follower = Process([*COMMAND, "logs", str(log), "--follow", "--json"], log=out)
        wait_until(lambda: '"requests":2,' in out.read_text(), 30, "the first sums")
        with log.open("a") as more:
            more.write(DEMO[3].removeprefix("[PREFIX] hit: b86f20c4 kee") + "\n")
        wait_until(lambda: '"requests":3,' in out.read_text(), 30, "a line finished later")
        log.rename(tmp_path / "gateway.log.1")
        log.write_text("\n".join(DEMO[4:]) + "\n")
        wait_until(lambda: '"requests":5,' in out.read_text(), 30, "the lines after rotation")
        follower.signal(signal.SIGINT)
        assert follower.wait(30) == 0
    finally:
        if follower is not None:
            follower.stop()
    assert json.loads(out.read_text().splitlines()[-1])["hit_rate"] == 0.8


def test_following_a_pipe_ends_with_it() -> None:
    """Without a terminal each look appends one line, and the tables come at the end."""
    command = [*COMMAND, "logs", "-", "--follow"]
    follower = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert follower.stdin is not None
        assert follower.stdout is not None
        follower.stdin.write("\n".join(DEMO) + "\n")
        follower.stdin.flush()
        line = follower.stdout.readline()
        rest, _ = follower.communicate(timeout=30)
    finally:
        follower.kill()
        follower.wait()
    assert line == "4 hits of 5 requests (80.0 %), about 20,864 of 27,098 prompt tokens matched (77.0 %)\n"
    assert (follower.returncode, rest.splitlines()[0].split()) == (0, ["requests", "5"])


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal_the_tables_are_live(tmp_path: Path) -> None:
    """There the sums are drawn in place, and Ctrl-C leaves them standing."""
    log = tmp_path / "gateway.log"
    log.write_text("\n".join(DEMO) + "\n")
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    seen = b""

    def drawn() -> bool:
        nonlocal seen
        try:
            seen += os.read(ours, 65536)
        except BlockingIOError:
            pass
        return b"80.0 %" in seen

    env = {**environment(), "TERM": "xterm"}
    follower = subprocess.Popen([*COMMAND, "logs", str(log), "-f"], stdout=theirs, stderr=theirs, env=env)
    try:
        wait_until(drawn, 30, "the tables")
        assert (b"\x1b" in seen, follower.poll()) == (True, None)
        follower.send_signal(signal.SIGINT)
        assert follower.wait(30) == 0
    finally:
        follower.kill()
        follower.wait()
        os.close(ours)
        os.close(theirs)
