"""What the soak's clients send: prompts of 32 KB that nobody has seen, and between them conversations that go on."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any, Final

from msgspec.json import encode

from bench._edge import PATH

UNIQUE_BYTES: Final = 32 * 1024
_CONVERSATIONS: Final = 24  # per client, going on
_TURNS: Final = 12
_TURN_BYTES: Final = 2_000
_UNIQUE: Final = 0.7  # of the requests


def prompts(seed: int) -> Iterator[bytes]:
    """Yield request bodies without end; no two seeds share a text."""
    rng = random.Random(seed)
    going: list[list[dict[str, str]]] = []
    while True:
        if rng.random() < _UNIQUE:
            yield _body([_message("user", rng, UNIQUE_BYTES)])
            continue
        if len(going) < _CONVERSATIONS:
            going.append([_message("system", rng, 4 * _TURN_BYTES)])
        turns = going[rng.randrange(len(going))]
        turns += [_message("user", rng, _TURN_BYTES // 4)]
        yield _body(turns)
        turns += [_message("assistant", rng, _TURN_BYTES)]
        if len(turns) > 2 * _TURNS:
            going.remove(turns)


def _message(role: str, rng: random.Random, size: int) -> dict[str, str]:
    return {"role": role, "content": rng.randbytes(size // 2).hex()}


def _body(messages: list[dict[str, str]]) -> bytes:
    return encode({"model": "soak", "messages": messages, "stream": True})


class Client:
    """One connection that asks again as soon as it has its answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answered = 0

    async def run(self, seed: int) -> None:
        """Ask until cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            for body in prompts(seed):
                await ask(reader, writer, "POST", PATH, body)
                self.answered += 1
        finally:
            writer.close()


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: bytes
) -> bytes:
    """Make one request on an open connection and return the answer's body; raises RuntimeError unless it is a 200."""
    head = f"{method} {path} HTTP/1.1\r\nhost: gateway\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    if " 200" not in lines[0]:
        raise RuntimeError(f"the gateway answers {lines[0]}")
    (length,) = [line.partition(":")[2] for line in lines if line.startswith("content-length:")]
    return await reader.readexactly(int(length))


async def state(port: int) -> Any:
    """Return what a gateway tells of itself."""
    from msgspec.json import decode

    from bench.soak.gateway import STATE_PATH

    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return decode(await ask(reader, writer, "GET", STATE_PATH, b""))
    finally:
        writer.close()
