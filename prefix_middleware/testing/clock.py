"""A clock that moves only when told to."""


class FakeClock:
    """Callable that returns seconds, like `time.monotonic`, and stands still between calls of `advance`."""

    def __init__(self, seconds: float = 1_000.0) -> None:
        self._seconds = seconds

    def __call__(self) -> float:
        """Return the current time in seconds."""
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Move the clock forward; raises ValueError for a negative number of seconds."""
        if seconds < 0:
            raise ValueError(f"seconds={seconds}: a clock does not go back")
        self._seconds += seconds
