"""Three real workers: `python -m bench.fleet [--shape a] [--repeat N]`; needs `make vllm`, redis-server and nginx.

    hits     tokens that the workers found in their caches, of those that were there before (ideal: whole KV blocks, any worker)
    spread   tokens looked up by the busiest worker over the mean
    ttft     median seconds to the first token of later turns, relative to nginx alone in the same run
    credit   tokens that the gateways expected to be cached, over those that were
    first    how many conversations began on each worker
    moved    turns that another worker served than the turn before

nginx alone takes turns. `match` asks nginx for the worker with the longest match, `sticky` for one worker per conversation, in
turn: what pure affinity and pure spreading would do. Every run has texts of its own; gateways start without any knowledge.
"""

import argparse
import signal
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final
from uuid import uuid4

import anyio
from rich.table import Table

from bench.fleet.play import Asked, Header, Player
from bench.fleet.servers import WORKERS, Servers, decided, start_engines
from bench.fleet.workload import SHAPES, Shape, Timed, reusable_tokens
from prefix_middleware.cli.output import console, table

BLOCK_TOKENS: Final = 128  # vLLM's KV block on a CPU
SMALL_KV_BLOCKS: Final = (
    33  # 16 for two starts, 4 for the rest of each of four conversations, and vLLM's empty one
)
GATEWAYS: Final = {"one gateway": 1, "two gateways": 2}
HEADERS: Final[dict[str, Header]] = {
    # All share the template's start, so the first worker has the longest match for ever.
    "match": lambda _: WORKERS[0],
    "sticky": lambda opening: WORKERS[opening.number % len(WORKERS)],
}
WAYS: Final = ("nginx", *HEADERS, *GATEWAYS)
RAW: Final = argparse.RawDescriptionHelpFormatter


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of one shape."""

    way: str
    ideal_tokens: int
    hit_tokens: float
    queried_tokens: list[float]  # by worker
    expected_tokens: int  # by the gateways
    seconds: float  # median to the first token of later turns
    first: list[int]  # conversations that began there, by worker
    moved: int  # turns served elsewhere than the one before

    @property
    def hits(self) -> float:
        """Found, of what was there before."""
        return self.hit_tokens / self.ideal_tokens

    @property
    def spread(self) -> float:
        """Busiest worker over the mean."""
        return max(self.queried_tokens) * len(self.queried_tokens) / sum(self.queried_tokens)


async def run(servers: Servers, shape: Shape, way: str, seed: str) -> Outcome:
    """Play a shape one way."""
    gateways = GATEWAYS.get(way, 0)
    before = servers.figures()
    with servers.gateways(gateways, f"{shape.name}-{seed}-{gateways}") as running:
        doors = [child.url for child in running] or [servers.nginx.url]
        asked = await Player(shape, doors, HEADERS.get(way, lambda _: None)).play(f"{seed} {way}")
        expected = sum(line["matched_tokens"] for child in running for line in decided(child))
    after = servers.figures()
    prompts = [Timed(servers.token_ids(turn.messages), turn.sent, turn.started) for turn in asked]
    return Outcome(
        way=way,
        ideal_tokens=reusable_tokens(prompts, BLOCK_TOKENS),
        hit_tokens=sum(after[w][1] - before[w][1] for w in after),
        queried_tokens=[after[w][0] - before[w][0] for w in after],
        expected_tokens=expected,
        seconds=median(turn.started - turn.sent for turn in asked if turn.turn),
        first=[sum(not turn.turn and turn.worker == worker for turn in asked) for worker in WORKERS],
        moved=_moved(asked),
    )


def _moved(asked: Sequence[Asked]) -> int:
    served = {(turn.conversation, turn.turn): turn.worker for turn in asked}
    return sum(served.get((number, turn - 1), worker) != worker for (number, turn), worker in served.items())


def show(shape: Shape, outcomes: Sequence[Outcome]) -> Table:
    """Return one shape's outcomes as a table."""
    kv = "KV for a third of them" if shape.small_kv else "KV for all"
    title = f"{shape.name}: {shape.conversations} conversations x {shape.turns} turns, concurrency {shape.concurrency}, {kv}"
    rows = [
        (
            it.way,
            f"{it.hits:.3f}",
            f"{it.spread:.2f}",
            f"{it.seconds / outcomes[0].seconds:.2f}",
            f"{it.expected_tokens / it.hit_tokens:.3f}" if it.way in GATEWAYS else "-",
            "/".join(map(str, it.first)),
            str(it.moved),
            f"{it.hit_tokens:,.0f}",
            f"{it.ideal_tokens:,}",
        )
        for it in outcomes
    ]
    result = table(
        ("who decides", "hits", "spread", "ttft", "credit", "first", "moved", "hit tokens", "ideal"), rows
    )
    result.title, result.title_justify = title, "left"
    return result


def measure(shapes: Sequence[Shape], ways: Sequence[str], repeat: int, *, small_kv: bool) -> None:
    """Start workers of one KV size and play what needs them, each shape so often."""
    options = (
        ["--num-gpu-blocks-override", str(SMALL_KV_BLOCKS), "--max-model-len", "4096"] if small_kv else []
    )
    with tempfile.TemporaryDirectory() as folder, ExitStack() as exits:
        servers = Servers(Path(folder), exits, start_engines(exits, *options))
        for shape in [shape for shape in shapes for _ in range(repeat)]:
            outcomes = [anyio.run(run, servers, shape, way, uuid4().hex) for way in ways]
            console().print(show(shape, outcomes))


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__, formatter_class=RAW)
    parser.add_argument("--shape", choices=[shape.name for shape in SHAPES], action="append")
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="texts differ each time")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that every process is ended
    for small_kv in (False, True):
        shapes = [s for s in SHAPES if s.small_kv is small_kv and s.name in (chosen.shape or s.name)]
        if shapes:
            measure(shapes, chosen.way or WAYS, chosen.repeat, small_kv=small_kv)


if __name__ == "__main__":
    main()
