"""The demonstration from start to end: the servers, a run without the line, a run with it, the report."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import anyio
import httpx
from rich.console import Console

from prefix_middleware.demo.conversation import TURNS, AnswerError, Turn, play
from prefix_middleware.demo.fleet import KV_BLOCKS, TOKENS_PER_SECOND, Fleet
from prefix_middleware.demo.processes import Child, StartError
from prefix_middleware.demo.report import broken_turns, console, line_of, show


def run(argv: Sequence[str] | None = None) -> int:
    """Play the demonstration; 0: every follow-up kept its worker, 1: it did not, 2: something did not start."""
    parser = argparse.ArgumentParser(prog="prefix-middleware demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the servers up with the line until Ctrl-C")
    options = parser.parse_args([] if argv is None else argv)
    folder = Path(tempfile.mkdtemp(prefix="prefix-demo-"))
    folder.chmod(0o755)  # nginx started by root serves as another user
    fleet, out = Fleet(folder), console()
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(fleet, out, options.keep)
    except StartError as error:
        print(f"prefix-middleware demo: {error}", file=sys.stderr)
        return 2
    except AnswerError as error:
        print(f"prefix-middleware demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        fleet.stop()
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(folder, ignore_errors=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(fleet: Fleet, out: Console, keep: bool) -> int:
    out.print("starting 3 workers, Redis, nginx and 2 gateways ...")
    fleet.start()
    tokens = f"{TOKENS_PER_SECOND:,} tokens/s of prefill, a KV cache of {KV_BLOCKS * 16:,} tokens"
    out.print(f"each worker is simulated: {tokens}")
    for remark in fleet.remarks:
        out.print(remark)
    with fleet.gateways(line=False) as pair:
        plain = _play("without the line", pair, out)[0]
    _reset(fleet)
    with fleet.gateways(line=True) as pair:
        with_line, lines = _play("with the line", pair, out)
        wrong = broken_turns(with_line, [_logged_by(fleet, turn) for turn in with_line])
        show(out, plain, with_line, lines)
        for problem in wrong:
            out.print(f"follow-up lost its worker: {problem}", style="bold red")
        if keep:
            _wait(pair, out)
    return 1 if wrong else 0


def _play(title: str, pair: Sequence[Child], out: Console) -> tuple[list[Turn], list[str]]:
    """Play the conversation once; return its turns and the gateways' lines about it."""
    printed = [0] * len(pair)
    lines: list[str] = []

    def told(turn: Turn) -> None:
        number = (turn.number - 1) % len(pair)
        text = pair[number].text()
        line = line_of(text[printed[number] :])
        printed[number] = len(text)
        lines.extend([line] if line else [])
        status.update(f"{title}: turn {turn.number} of {TURNS}")
        if not out.is_terminal:
            out.print(f"{title}: turn {turn.number} of {TURNS}, {turn.worker}, {turn.seconds:.2f} s")

    gateways = [(child.name, child.url) for child in pair]
    with out.status(f"{title}: other users first") as status:
        try:
            return anyio.run(play, gateways, told), lines
        except BaseExceptionGroup as group:  # of the task group; the first failure explains the rest
            if group.subgroup((AnswerError, httpx.HTTPError)) is None:
                raise
            logs = "\n".join(child.text()[-1000:] for child in pair)
            raise AnswerError(f"{group.exceptions[0]!r}\n{logs}") from group


def _reset(fleet: Fleet) -> None:
    for child in fleet.workers.values():
        httpx.post(f"{child.url}/__control", json={"reset_cache": True}, trust_env=False)


def _logged_by(fleet: Fleet, turn: Turn) -> str | None:
    """Return the worker whose own log has the request."""
    for worker, child in fleet.workers.items():
        entries = httpx.get(f"{child.url}/__log", trust_env=False).json()
        if any(entry["request_id"] == turn.request_id for entry in entries):
            return worker
    return None


def _wait(pair: Sequence[Child], out: Console) -> None:
    out.print("gateways: " + " ".join(child.url for child in pair) + " (Bearer sk-demo); Ctrl-C ends them")
    while True:
        time.sleep(3600)
