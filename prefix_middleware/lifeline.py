"""A connection to a worker on which nothing is said: its end tells at once that the process behind it has ended.

Between two polls a worker can be killed and be back, well and without its cache.
"""

from contextlib import suppress

import anyio
import httpx
from anyio.abc import SocketStream


class Lifeline:
    """One worker's. Whoever ends it is left alone for one wait: a proxy may end what is idle, again and again."""

    def __init__(self, url: str) -> None:
        parts = httpx.URL(url)
        self._host, self._port = parts.host, parts.port or 80
        self._plain = parts.scheme == "http"  # others end what does not begin with a handshake
        self._stream: SocketStream | None = None
        self._rests = False

    async def ended(self, seconds: float) -> bool:
        """Wait for so long, or until the worker ends the connection; tell whether it did."""
        ended = False
        with anyio.move_on_after(seconds):
            stream = None if self._rests else await self._opened()
            if stream is None:
                await anyio.sleep_forever()
            else:
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    await stream.receive(1)
                ended = True
        if ended:
            await self.close()
        self._rests = ended
        return ended

    async def _opened(self) -> SocketStream | None:
        if self._stream is None and self._plain:
            try:
                self._stream = await anyio.connect_tcp(self._host, self._port)
            except (OSError, ValueError):  # ValueError: a name that cannot be encoded
                return None
        return self._stream

    async def close(self) -> None:
        """Close it; the next wait opens another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await anyio.aclose_forcefully(stream)
