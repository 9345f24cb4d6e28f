"""Clients that leave: in the middle of their prompt, before the answer, or in the middle of it; as many as asked for."""

import asyncio
import socket
import struct
import time
from collections import Counter
from itertools import count
from random import Random
from typing import Final

from drills.client import PATH, chat, prose
from drills.streamer import HEAD_SECONDS

_AT_A_TIME: Final = 40
_BODY_BYTES: Final = 1200
_TOKENS: Final = 500  # fifteen seconds of stream: nobody stays so long
_GIVE_UP_SECONDS: Final = 30.0
_LONGEST_SECONDS: Final = 2400.0
_WAIT_SECONDS: Final = HEAD_SECONDS * 0.6  # at most, for those who leave before the answer
_RESET: Final = struct.pack("ii", 1, 0)
_BODIES: Final = 64

IN_BODY, BEFORE_HEADERS, MID_STREAM = "in body", "before headers", "mid-stream"
_KINDS: Final = (
    MID_STREAM,
    BEFORE_HEADERS,
    MID_STREAM,
    BEFORE_HEADERS,
    MID_STREAM,
    BEFORE_HEADERS,
    MID_STREAM,
    IN_BODY,
)
"""Half leave mid-stream; of the others one in four has not even sent its whole prompt."""


def storm(port: int, aborts: int) -> Counter[str]:
    """Leave so many times, fewer where time is up; count by kind, and `failed` where no stream began."""
    return asyncio.run(_storm(port, aborts))


async def _storm(port: int, aborts: int) -> Counter[str]:
    until = time.monotonic() + _LONGEST_SECONDS
    rng, numbers, counts = Random(port), count(), Counter[str]()
    bodies = [
        chat([{"role": "user", "content": prose(rng, _BODY_BYTES)}], _TOKENS, stream=True)
        for _ in range(_BODIES)
    ]

    async def leave_again_and_again() -> None:
        while (number := next(numbers)) < aborts and time.monotonic() < until:
            kind = _KINDS[number % len(_KINDS)]
            counts[await _leave(port, kind, bodies[number % _BODIES], rng, number % 3 == 0)] += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_A_TIME):
            tasks.create_task(leave_again_and_again())
    return counts


async def _leave(port: int, kind: str, body: bytes, rng: Random, reset: bool) -> str:
    """Be one client; return its kind, or `failed`."""
    try:
        async with asyncio.timeout(_GIVE_UP_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                return await _until_gone(reader, writer, kind, body, rng)
            finally:
                if reset:
                    connection = writer.get_extra_info("socket")
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
    except (OSError, TimeoutError):
        return "failed"


async def _until_gone(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: str, body: bytes, rng: Random
) -> str:
    head = f"POST {PATH} HTTP/1.1\r\nhost: drill\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    sent = body[: rng.randrange(len(body))] if kind == IN_BODY else body
    writer.write(head.encode() + sent)
    if kind != MID_STREAM:
        await asyncio.sleep(rng.uniform(0.0, _WAIT_SECONDS))
        return kind
    data, events = b"", rng.randint(1, 3)
    while data.count(b"data:") < events:
        chunk = await reader.read(65536)
        if not chunk:
            return "failed"
        data += chunk
    return MID_STREAM if data.startswith(b"HTTP/1.1 200") else "failed"
