"""The clock that the edges read and the core is given."""

from collections.abc import Callable

Clock = Callable[[], float]
"""Monotonic seconds."""
