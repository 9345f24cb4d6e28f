"""The clock that tests set by hand."""

import pytest

from prefix_middleware.testing import FakeClock


def test_a_fake_clock_stands_still_until_it_is_advanced() -> None:
    """Time passes only by `advance`."""
    clock = FakeClock(10.0)
    before = [clock(), clock()]
    clock.advance(2.5)
    assert [*before, clock()] == [10.0, 10.0, 12.5]


def test_a_fake_clock_refuses_to_go_back() -> None:
    """A negative step is an error, not a journey back."""
    with pytest.raises(ValueError, match="seconds=-1"):
        FakeClock().advance(-1)
