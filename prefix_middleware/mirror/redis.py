"""The mirror of a fleet: two Redis Streams and a snapshot; a writer, a reader, and now and then a writer of snapshots.

    decisions   batched updates of everybody, numbered by origin, capped by bytes                       writer.py, reader.py
    gauges      everybody's absolute loads; a reader begins at the end, for old loads mean nothing
    snapshot    what one gateway knew: a later one begins there, and reads what follows in `decisions`  snapshots.py

All names carry one Cluster hash tag. docs/mirror.md has the commands that an ACL user needs, and the counters.
"""

from collections.abc import Mapping
from typing import Final

import anyio

from prefix_middleware.mirror import Peer
from prefix_middleware.mirror.link import Keys, Link
from prefix_middleware.mirror.reader import Reader
from prefix_middleware.mirror.sequence import Sequences
from prefix_middleware.mirror.snapshots import Snapshots, SnapshotWriter
from prefix_middleware.mirror.store import reason_of
from prefix_middleware.mirror.wire import Wire
from prefix_middleware.mirror.writer import Writer

SNAPSHOT_SECONDS: Final = 60.0
"""Age at which the fleet's snapshot is written anew."""


class RedisMirror:
    """Carries one fleet over Redis; the constructor opens nothing, so it survives a fork."""

    def __init__(
        self,
        url: str,
        fleet: str,
        fingerprint: bytes,
        *,
        shadow: bool = False,
        snapshot_seconds: float = SNAPSHOT_SECONDS,
    ) -> None:
        self._url = url
        self._wire = Wire(fingerprint)
        self._keys = Keys(fleet, shadow=shadow)
        self._snapshot_seconds = snapshot_seconds
        self._published: dict[str, int] = {}
        self._heard = Sequences()

    @property
    def published(self) -> Mapping[str, int]:
        """How many updates each origin that this mirror ran for has numbered; the numbers start at 0."""
        return self._published

    @property
    def heard(self) -> Mapping[str, int]:
        """The number expected next of each origin: as many as it published once all has arrived."""
        return self._heard.known()

    async def run(self, peer: Peer) -> None:
        """Carry for `peer` until cancelled. Failures of Redis are retried here and never leave."""
        try:
            link = Link(self._url, self._wire, self._keys, peer, self._published, self._heard)
        except ValueError as error:  # nothing will mend a URL that cannot be read
            peer.mirror_state(False, reason_of(error, self._url))
            await anyio.sleep_forever()
            return
        snapshots = Snapshots(self._wire, self._keys)
        packer = SnapshotWriter(link, snapshots, self._snapshot_seconds)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Writer(link).run)
            tasks.start_soon(Reader(link, snapshots, packer.hurry).run)
            tasks.start_soon(packer.run)
