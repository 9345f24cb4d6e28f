"""6. What others should hear, until the owner of the router drains it; provisional records wait a moment: most come true."""

from collections import deque
from typing import Final

from prefix_middleware.core.reservation import Reservation
from prefix_middleware.core.updates import Provisional, Update

OUTBOX_UPDATES: Final = 8192
PROVISIONAL_DELAY_SECONDS: Final = 0.05  # most answers start or fail before others need to know


class Outbox:
    """Updates to publish, oldest first; bounded, the oldest are dropped."""

    def __init__(self) -> None:
        self.later: deque[tuple[float, Reservation]] = deque(maxlen=OUTBOX_UPDATES)
        self.dropped = 0
        self._due: deque[Update] = deque()

    def __len__(self) -> int:
        """Return how many updates are due."""
        return len(self._due)

    def put(self, update: Update) -> None:
        """Publish an update as soon as possible."""
        if len(self._due) >= OUTBOX_UPDATES:
            self._due.popleft()
            self.dropped += 1
        self._due.append(update)

    def put_later(self, reservation: Reservation, now: float) -> None:
        """Publish a reservation as provisional, unless its answer starts or fails before."""
        self.later.append((now + PROVISIONAL_DELAY_SECONDS, reservation))

    def next_due(self) -> float | None:
        """Return when the next provisional record is due; None while there is none."""
        while self.later:
            due, reservation = self.later[0]
            if reservation.waiting and not reservation.finished:
                return due
            self.later.popleft()
        return None

    def drain(self, now: float) -> list[Update]:
        """Take what is due."""
        while self.later and self.later[0][0] <= now:
            _, reservation = self.later.popleft()
            if reservation.waiting and not reservation.finished:
                reservation.published = True
                self.put(reservation.record(Provisional, reservation.epoch))
        due = list(self._due)
        self._due.clear()
        return due
