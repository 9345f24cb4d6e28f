"""Reads lines from a file or stdin: to its end, or on and on as a log grows and is rotated."""

import os
import select
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

MAX_LINE_BYTES: Final = 1024 * 1024
"""A longer line is read as several."""

STDIN: Final = "-"
_CHUNK_BYTES: Final = 256 * 1024
_WAIT_SECONDS: Final = 0.2


class LogFile:
    """An open log; raises OSError where it cannot be opened or read."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._fd = 0 if name == STDIN else os.open(name, os.O_RDONLY)
        self._rest = b""
        os.read(self._fd, 0)  # a folder opens, and fails only here

    def lines(self, follow: bool) -> Iterator[str | None]:
        """Yield lines; with `follow` go on behind the end and yield None whenever there is nothing new.

        A pipe ends when its writers have gone, followed or not.
        """
        while True:
            if self._name == STDIN and follow and not select.select([self._fd], [], [], _WAIT_SECONDS)[0]:
                yield None
                continue
            data = os.read(self._fd, _CHUNK_BYTES)
            yield from self._split(data)
            if data:
                continue
            if not follow or self._name == STDIN:
                break
            if not self._reopened():
                yield None
                time.sleep(_WAIT_SECONDS)
        if self._rest:
            yield _text(self._rest)

    def _split(self, data: bytes) -> Iterator[str]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            yield _text(line)
        if len(self._rest) > MAX_LINE_BYTES:
            yield _text(self._rest)
            self._rest = b""

    def _reopened(self) -> bool:
        """Open the file anew where another one has its name or it was cut; a missing one is waited for."""
        with suppress(OSError):
            there, here = os.stat(self._name), os.fstat(self._fd)
            position = os.lseek(self._fd, 0, os.SEEK_CUR)
            if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
                fresh = os.open(self._name, os.O_RDONLY)
                os.close(self._fd)
                self._fd = fresh
            elif there.st_size < position:
                os.lseek(self._fd, 0, os.SEEK_SET)
            else:
                return False
            self._rest = b""
            return True
        return False

    def close(self) -> None:
        """Close the file; stdin stays open."""
        if self._name != STDIN:
            os.close(self._fd)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")
