"""What streams feel while large bodies are read beside them: `python -m bench.large_bodies [--bodies N] [--streams N]`.

    body          read       wait ms     p90 ms    reading

In one process, by hand: so many streams pass a chunk every 40 ms through the middleware, and one large body at a time arrives.
A probe wants to run every millisecond; what counts is the longest that this process computed between two of its turns
while a body was read. Median and p90 of that over the bodies are printed, and how long a body was read: milliseconds of CPU
time, the same on a busy machine. `none` is the probe beside the streams alone. The host parses nothing, so all of it is ours.

    whole     decoded, written and hashed in one go on the event loop
    thread    the same in a thread
    slices    what the product does
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from statistics import median
from typing import Final
from unittest.mock import patch

import msgspec
from starlette.types import Message, Receive, Scope, Send

from bench._bodies import KB, conversations
from bench._edge import PATH, settings_for, silent_log, until_ready
from bench._measure import percentile
from bench._servers import healthy_worker
from prefix_middleware import PrefixMiddleware, reading
from prefix_middleware.core import canonical, pieces
from prefix_middleware.core.canonical import CanonicalPrompt, Skip

STREAMS: Final = 100
_PIECE_BYTES: Final = 65_536  # as a server hands a body over
_CHUNK_SECONDS: Final = 0.04  # 25 tokens a second
_PROBE_SECONDS: Final = 0.001
_REST_SECONDS: Final = 0.02  # between two bodies

Steps = Iterator[CanonicalPrompt | Skip | None]
Read = Callable[[reading.Reading, Steps], Awaitable[CanonicalPrompt | Skip]]


def _exhaust(steps: Steps) -> CanonicalPrompt | Skip:
    return next(prompt for prompt in steps if prompt is not None)


async def _whole(_: reading.Reading, steps: Steps) -> CanonicalPrompt | Skip:
    return _exhaust(steps)


async def _thread(_: reading.Reading, steps: Steps) -> CanonicalPrompt | Skip:
    return await asyncio.to_thread(_exhaust, steps)


WAYS: Final[dict[str, Read]] = {"whole": _whole, "thread": _thread, "slices": reading.Reading.read}


@contextmanager
def reading_by(way: str) -> Iterator[None]:
    """Let large bodies be read this way; all but the product's own decode them at once."""
    whole = pieces.WHOLE_BYTES if way == "slices" else sys.maxsize
    with patch.object(canonical, "WHOLE_BYTES", whole), patch.object(reading.Reading, "read", WAYS[way]):
        yield


def bodies() -> dict[str, bytes]:
    """Return the bodies by name."""
    chats = {f"{size // KB} MB": conversations(size * KB, 1)[0].body for size in (KB, 10 * KB)}
    url = "data:image/png;base64," + "A" * (10 * KB * KB)
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    image = {"model": "bench", "messages": [{"role": "user", "content": parts}]}
    return {"none": b"", **chats, "10 MB image": msgspec.json.encode(image)}


class _Host:
    """Streams until all is over where the scope says so, else answers at once; no body is read."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while scope.get("streams") and not self.over.is_set():
            await send({"type": "http.response.body", "body": b"data: token\n\n", "more_body": True})
            await asyncio.sleep(_CHUNK_SECONDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _pieces(body: bytes) -> list[Message]:
    parts = [body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES)]
    last = len(parts) - 1
    return [{"type": "http.request", "body": part, "more_body": n < last} for n, part in enumerate(parts)]


async def _ask(app: PrefixMiddleware, messages: list[Message], *, streams: bool) -> None:
    arriving = iter(messages)

    async def receive() -> Message:
        await asyncio.sleep(0)
        return next(arriving)

    async def send(_: Message) -> None:
        return None

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": [], "streams": streams}
    await app(scope, receive, send)


class _Probe:
    """Wants to run every millisecond; `longest` is the most CPU seconds that passed between two of its turns."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            began = time.process_time()  # of all threads: one that holds the interpreter's lock counts
            await asyncio.sleep(_PROBE_SECONDS)
            self.longest = max(self.longest, time.process_time() - began)


@asynccontextmanager
async def _running(streams: int) -> AsyncIterator[tuple[PrefixMiddleware, _Probe]]:
    host, probe = _Host(), _Probe()
    async with healthy_worker() as port:
        app = PrefixMiddleware(host, settings_for(port))
        small = [chat.body for chat in conversations(KB, 16)]
        await until_ready(app, small[0])
        tasks = [asyncio.create_task(_ask(app, _pieces(small[n % 16]), streams=True)) for n in range(streams)]
        probing = asyncio.create_task(probe.run())
        try:
            await asyncio.sleep(2 * _CHUNK_SECONDS)
            yield app, probe
        finally:
            host.over.set()
            probing.cancel()
            await asyncio.gather(*tasks)
            await app._runtime.stop()


async def waits(body: bytes, way: str, count: int, streams: int) -> tuple[list[float], list[float]]:
    """Return the probe's longest wait during each of `count` bodies, and how long each was read, in seconds."""
    longest: list[float] = []
    took: list[float] = []
    messages = _pieces(body)
    with reading_by(way):
        async with _running(streams) as (app, probe):
            for _ in range(count):
                await asyncio.sleep(_REST_SECONDS)
                probe.longest, began = 0.0, time.process_time()
                if messages:
                    await _ask(app, messages, streams=False)
                else:
                    await asyncio.sleep(_REST_SECONDS)
                took.append(time.process_time() - began)
                await asyncio.sleep(2 * _PROBE_SECONDS)  # who waited has run
                longest.append(probe.longest)
    return longest, took


def line(body: str, way: str, longest: Sequence[float], took: Sequence[float]) -> str:
    """Return one line of the table."""
    figures = median(longest), percentile(longest, 90), median(took)
    return f"{body:<12}  {way:<7}" + "".join(f"  {figure * 1e3:>9.2f}" for figure in figures)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.large_bodies", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--bodies", type=int, default=40, metavar="N", help="of each kind")
    parser.add_argument("--streams", type=int, default=STREAMS, metavar="N", help="beside them")
    options = parser.parse_args(arguments)
    print(f"{'body':<12}  {'read':<7}  {'wait ms':>9}  {'p90 ms':>9}  {'reading':>9}")
    with silent_log():
        for name, body in bodies().items():
            for way in WAYS if body else ("slices",):
                figures = asyncio.run(waits(body, way, options.bodies, options.streams))
                print(line(name, way if body else "", *figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
