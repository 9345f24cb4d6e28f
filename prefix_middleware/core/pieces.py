"""1. The request of a body that is too long to decode at once, in short steps.

1. Long lists stay JSON, item by item, until `dict_of` opens an item: decoding 10 MB in one call holds the event loop, and a
   thread would hold the interpreter's lock as long.
2. What a client can make expensive is the number of JSON values, not of bytes: beyond `MAX_VALUES` the body is refused.
"""

from collections.abc import Generator
from typing import Any, Final

import msgspec
from msgspec import Raw

from prefix_middleware.core.writer import Unreadable

WHOLE_BYTES: Final = 1 << 20
"""Bodies up to this size are decoded at once."""
MAX_VALUES: Final = 1 << 19
"""Most values that a longer one may have; the commas and brackets inside its texts count, too."""

_LISTS: Final = ("messages", "input", "tools")  # whose items canonical.py opens one by one
_COUNT_BYTES: Final = 1 << 18
_DELIMITERS: Final = b",[{"  # each value but the first comes behind one of these
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_ITEMS: Final = msgspec.json.Decoder(list[Raw])


class TooManyValues(Exception):
    """A body has so many values that decoding them would take seconds."""


def in_pieces(body: bytes) -> Generator[None, None, dict[str, Any]]:
    """Yield after each short step, and return the request; raises TooManyValues, ValueError or RecursionError."""
    values = 0
    for start in range(0, len(body), _COUNT_BYTES):
        piece = body[start : start + _COUNT_BYTES]
        values += len(piece) - len(piece.translate(None, _DELIMITERS))
        if values > MAX_VALUES:
            raise TooManyValues
        yield
    request: dict[str, Any] = {}
    try:
        fields = _FIELDS.decode(body)
        yield
        for name, raw in fields.items():
            is_list = name in _LISTS and bytes(memoryview(raw)[:1]) == b"["
            request[name] = _ITEMS.decode(raw) if is_list else msgspec.json.decode(raw)
            yield
    except msgspec.MsgspecError as error:
        raise Unreadable from error
    return request
