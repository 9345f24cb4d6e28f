"""What the tasks of one `RedisMirror` share: key names, the state told to the peer, and how long the stream may grow."""

from collections import deque
from collections.abc import Mapping
from typing import Final

from prefix_middleware.mirror import Peer
from prefix_middleware.mirror.address import Address
from prefix_middleware.mirror.sequence import Sequences
from prefix_middleware.mirror.wire import Wire

FIELD: Final = b"d"
START: Final = b"0-0"
DECISIONS_BYTES: Final = 64 * 1024 * 1024

_ENTRY_OVERHEAD_BYTES: Final = 32  # id, field and listpack bytes of one entry in Redis, about
_MEAN_ENTRY_BYTES: Final = 2048.0  # assumed until entries are seen: a prompt of 144 blocks and its figures
_MEAN_WEIGHT: Final = 1 / 256
_MIN_DECISIONS: Final = 256
_MARK_BYTES: Final = 64 * 1024


class Keys:
    """The names in Redis of one fleet; one Cluster hash tag keeps them in one slot."""

    def __init__(self, fleet: str, *, shadow: bool) -> None:
        tag = f"{{prefix:{fleet}:shadow}}" if shadow else f"{{prefix:{fleet}}}"
        self.decisions = f"{tag}:decisions".encode()
        self.gauges = f"{tag}:gauges".encode()
        self.snapshot = f"{tag}:snapshot".encode()
        self.lease = f"{tag}:snapshot:lease".encode()


class Cap:
    """How far back the decisions stream may reach: 64 MB of the entries seen."""

    def __init__(self, cap_bytes: int) -> None:
        self._cap = cap_bytes
        self._bytes = 0  # of all entries seen, in the order of the stream
        self._marks: deque[tuple[int, bytes]] = deque()  # bytes before an entry, and its id
        self._mean = _MEAN_ENTRY_BYTES

    def saw(self, entry_id: bytes, size: int) -> None:
        """Note an entry of the stream, whoever wrote it."""
        self._mean += (size - self._mean) * _MEAN_WEIGHT
        if not self._marks or self._bytes - self._marks[-1][0] >= _MARK_BYTES:
            self._marks.append((self._bytes, entry_id))
        self._bytes += size + _ENTRY_OVERHEAD_BYTES
        while len(self._marks) > 1 and self._bytes - self._marks[1][0] >= self._cap:
            self._marks.popleft()

    def forget(self) -> None:
        """Start anew: it is another stream, or one that is read again from an earlier entry."""
        self._bytes = 0
        self._marks.clear()

    def rule(self) -> tuple[bytes, bytes | int]:
        """Return how XADD should trim: by id once enough was seen to know the byte, else by number and mean size."""
        if self._marks and self._bytes - self._marks[0][0] >= self._cap:
            return b"MINID", self._marks[0][1]
        return b"MAXLEN", max(_MIN_DECISIONS, int(self._cap / (self._mean + _ENTRY_OVERHEAD_BYTES)))


class State:
    """Whether Redis takes and gives, told to the peer once per change.

    When either loop fails, both must prove themselves again: the other may sit on a dead connection unawares.
    """

    def __init__(self, peer: Peer, shown: str) -> None:
        self._peer = peer
        self._shown = shown
        self._proven: set[str] = set()
        self._connected: bool | None = None

    def needs(self, loop: str) -> bool:
        """Tell whether this loop has yet to prove itself."""
        return loop not in self._proven

    def proved(self, loop: str) -> None:
        """Note that the loop has done its work once."""
        self._proven.add(loop)
        if len(self._proven) == 2 and not self._connected:
            self._connected = True
            self._peer.mirror_state(True, self._shown)

    def failed(self, reason: str) -> None:
        """Note that a loop has failed."""
        self._proven.clear()
        if self._connected is not False:
            self._connected = False
            self._peer.mirror_state(False, reason)


class Link:
    """One run of a mirror for one peer."""

    def __init__(
        self, url: str, wire: Wire, keys: Keys, peer: Peer, published: dict[str, int], heard: Sequences
    ) -> None:
        self.url, self.wire, self.keys, self.peer = url, wire, keys, peer
        self.address = Address(url)
        self.state = State(peer, self.address.shown)
        self.cap = Cap(DECISIONS_BYTES)
        self.published = published  # updates numbered so far, by origin
        self.heard = heard
        self.position = START  # the last decisions entry read
        self.warm = False  # all that was there has been read

    def count(self, **counts: int) -> None:
        """Add to the peer's counters, those that are not zero."""
        for name, n in counts.items():
            if n:
                self.peer.mirror_count(name, n)

    def heard_so_far(self) -> tuple[bytes, Mapping[str, int]]:
        """Return the last entry read and the next number of every origin, of the same moment."""
        return self.position, self.heard.known()
