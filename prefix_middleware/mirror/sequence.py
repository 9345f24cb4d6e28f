"""Which updates of each origin have been heard, by number: repeats are left out, what is missing is noticed. Pure."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

MAX_ORIGINS: Final = 1024
"""Origins remembered; one unheard of for longest is forgotten first, and starts anew when it is heard again."""

_MAX_HOLES: Final = 16


class Hearing(Struct, frozen=True):
    """What is to be done with the updates of one entry."""

    fresh: list[slice]  # to be applied, in order
    repeated: int = 0
    lost: int = 0  # numbers skipped before this entry
    recovered: int = 0  # of those lost before, now here


class Sequences:
    """The next number of every origin, and the numbers missing below it."""

    def __init__(self) -> None:
        self._next: OrderedDict[str, int] = OrderedDict()
        self._holes: dict[str, list[range]] = {}

    def hear(self, origin: str, first: int, count: int) -> Hearing:
        """Note updates `first` to `first + count - 1`; the first ever heard of an origin is where it starts."""
        expected = self._next.get(origin, first)
        end = first + count
        lost = max(0, first - expected)
        if lost:
            holes = self._holes.setdefault(origin, [])
            holes.append(range(expected, first))
            del holes[:-_MAX_HOLES]
        fresh = [slice(max(expected, first) - first, count)] if end > expected else []
        late = self._fill(origin, range(first, min(end, expected)))
        fresh = [slice(part.start - first, part.stop - first) for part in late] + fresh
        recovered = sum(map(len, late))
        self._next[origin] = max(expected, end)
        self._next.move_to_end(origin)
        while len(self._next) > MAX_ORIGINS:
            self._holes.pop(self._next.popitem(last=False)[0], None)
        return Hearing(fresh, max(0, min(end, expected) - first) - recovered, lost, recovered)

    def _fill(self, origin: str, heard: range) -> list[range]:
        filled, left = [], []
        for hole in self._holes.get(origin, ()):
            part = range(max(hole.start, heard.start), min(hole.stop, heard.stop))
            if not part:
                left.append(hole)
                continue
            filled.append(part)
            left += [h for h in (range(hole.start, part.start), range(part.stop, hole.stop)) if h]
        if filled:
            self._holes[origin] = left
        return filled

    def known(self) -> dict[str, int]:
        """Return the next number of every origin."""
        return dict(self._next)

    def adopt(self, known: Mapping[str, int]) -> None:
        """Take over what a snapshot includes: numbers below are not missed any more."""
        for origin, number in known.items():
            self._next[origin] = max(number, self._next.get(origin, 0))
            self._holes[origin] = [h for h in self._holes.get(origin, ()) if h.stop > number]
