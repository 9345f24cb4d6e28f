"""Runs gateways for minutes and says whether they stay as they are: `python -m bench.soak --minutes 10`, or `make soak`.

Two gateway processes and a redis-server, asked as fast as they answer. RSS, Redis' memory and the index are sampled every
second, CPU time of every decision is kept; the last third is held against the middle one. To be full within the first third
the bounds are small (index, stream, ttl: printed); `--full` takes the product's own, for which minutes are too short.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from resource import getpagesize
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from bench._measure import Skipped
from bench._servers import free_port, redis_server, wait_for_port
from bench.soak.gateway import serve
from bench.soak.load import Client, state
from bench.soak.verdict import Sample, figures, filled_at, p99_error, table
from prefix_middleware.mirror.link import DECISIONS_BYTES

CLIENTS: Final = 2  # per gateway
_END_SECONDS: Final = 10.0
_READY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What limits a gateway and the stream."""

    options: dict[str, Any]
    index_blocks: int
    stream_bytes: int

    def __str__(self) -> str:
        ttl = self.options.get("ttl_seconds", 5400)
        return f"index {self.index_blocks:,} pairs, stream {self.stream_bytes / 1e6:.1f} MB, ttl {ttl:.0f} s"


FULL: Final = Bounds({}, 200_000, DECISIONS_BYTES)


def small(seconds: float) -> Bounds:
    """Return bounds that are reached within a third of so many seconds at some ten requests a second."""
    index = min(20_000, max(1_000, int(100 * seconds)))
    return Bounds({"index_blocks": index, "ttl_seconds": max(1.0, seconds / 6)}, index, int(2_000 * seconds))


@dataclass(slots=True)
class Run:
    """The samples of one run and what became of its requests."""

    samples: list[Sample] = field(default_factory=list)
    answered: int = 0
    in_flight: int = 0
    skips: int = 0
    errors: int = 0


@contextmanager
def gateways(count: int, redis_url: str, bounds: Bounds) -> Iterator[dict[int, BaseProcess]]:
    """Run so many gateway processes for the length of a block; yields them by port."""
    spawn = get_context("spawn")
    children: dict[int, BaseProcess] = {}
    try:
        for _ in range(count):
            port = free_port()
            arguments = (port, redis_url, bounds.options, bounds.stream_bytes)
            children[port] = spawn.Process(target=serve, args=arguments)
            children[port].start()
        for port in children:
            wait_for_port(port, _READY_SECONDS)
        yield children
    finally:
        for child in children.values():
            child.kill()
            child.join()


def _rss(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * getpagesize()


async def _sample(at: float, children: dict[int, BaseProcess], redis: "Redis", run: Run) -> None:
    states = [await state(port) for port in children]
    memory = await redis.info("memory")
    run.in_flight = sum(told["in_flight"] for told in states)
    run.skips, run.errors = (sum(told[name] for told in states) for name in ("skips", "errors"))
    run.samples.append(
        Sample(
            at,
            tuple(_rss(child.pid) for child in children.values()),
            memory["used_memory"],
            tuple(told["pairs"] for told in states),
            tuple(value for told in states for value in told["decisions"]),
            tuple(value for told in states for value in told["floors"]),
        )
    )


async def soak(seconds: float, every: float, children: dict[int, BaseProcess], redis_url: str) -> Run:
    """Ask all gateways for so many seconds and sample them `every` so many; raises what a client met."""
    run = Run()
    clients = [Client(port) for port in children for _ in range(CLIENTS)]
    async with Redis.from_url(redis_url) as redis, asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(client.run(seed)) for seed, client in enumerate(clients)]
        began = time.monotonic()
        while (at := time.monotonic() - began) < seconds:
            await _sample(at, children, redis, run)
            await asyncio.sleep(every)
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        run.answered = sum(client.answered for client in clients)
    run.in_flight = await _left(children)
    return run


async def _left(children: Iterable[int]) -> int:
    """Return how many requests are in flight once they have had time to end."""
    deadline = time.monotonic() + _END_SECONDS
    while True:
        left: int = sum([(await state(port))["in_flight"] for port in children])
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.1)


def report(run: Run, seconds: float, bounds: Bounds) -> bool:
    """Print the table; tell whether everything is flat, was full in time, and nothing is left or was lost."""
    rows = figures(run.samples, seconds)
    print(*table(rows), sep="\n")
    error = p99_error(run.samples, seconds)
    print(f"\np99 / p99 has a standard error of {error:.1%}; more minutes or a quieter machine make it less")
    full = filled_at(run.samples, bounds.index_blocks)
    in_time = full is not None and full <= seconds / 3
    print(f"indexes full after {'-' if full is None else f'{full:.0f}'} s of {seconds:.0f}: {_word(in_time)}")
    clean = not (run.in_flight or run.skips or run.errors)
    counts = f"{run.in_flight} in flight after, {run.skips} skipped, {run.errors} errors"
    print(f"{run.answered:,} requests, {counts}: {_word(clean)}")
    passed = clean and in_time and all(row.verdict != "FAIL" for row in rows)
    print(_word(passed))
    return passed


def _word(passed: bool) -> str:
    return "PASS" if passed else "FAIL"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and return the exit status: 0 for PASS, 1 for FAIL, 2 where it cannot run."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description="Does a gateway stay as it is?")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two samples")
    parser.add_argument("--full", action="store_true", help="the product's own bounds")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the samples there, as JSON")
    options = parser.parse_args(arguments)
    seconds = options.minutes * 60
    bounds = FULL if options.full else small(seconds)
    print(f"{options.gateways} gateways, {seconds:.0f} s; bounds: {bounds}", flush=True)
    try:
        with redis_server() as server, gateways(options.gateways, server.url, bounds) as children:
            run = asyncio.run(soak(seconds, options.every, children, server.url))
    except Skipped as reason:
        print(f"cannot run: {reason}")
        return 2
    if options.save is not None:
        options.save.write_bytes(msgspec.json.encode(run))
    return 0 if report(run, seconds, bounds) else 1


if __name__ == "__main__":
    sys.exit(main())
