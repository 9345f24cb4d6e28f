"""What is fresh, repeated, lost and recovered, by numbers alone."""

from hypothesis import given
from hypothesis import strategies as st

from prefix_middleware.mirror.sequence import MAX_ORIGINS, Hearing, Sequences


def test_the_first_heard_of_an_origin_is_where_it_starts() -> None:
    """A gateway that comes late has lost nothing by it."""
    heard = Sequences()
    assert (heard.hear("a", 7, 3), heard.known()) == (Hearing([slice(0, 3)]), {"a": 10})


def test_what_was_heard_is_left_out_also_in_part() -> None:
    """A batch whose answer was lost is written again, perhaps with more behind it."""
    heard = Sequences()
    heard.hear("a", 0, 5)
    assert heard.hear("a", 0, 5) == Hearing([], repeated=5)
    assert heard.hear("a", 3, 4) == Hearing([slice(2, 4)], repeated=2)


def test_a_hole_is_counted_once_and_what_fills_it_later_is_fresh() -> None:
    """What a failover lost may be written again by its author, after newer updates too."""
    heard = Sequences()
    heard.hear("a", 0, 5)
    assert heard.hear("a", 9, 2) == Hearing([slice(0, 2)], lost=4)
    assert heard.hear("a", 4, 3) == Hearing([slice(1, 3)], repeated=1, recovered=2)
    assert heard.hear("a", 7, 5) == Hearing([slice(0, 2), slice(4, 5)], repeated=2, recovered=2)
    assert heard.known() == {"a": 12}


def test_a_snapshot_moves_on_what_is_expected_but_never_back() -> None:
    """Numbers that it includes are neither lost nor heard again."""
    heard = Sequences()
    heard.hear("a", 0, 10)
    heard.hear("a", 15, 1)
    heard.adopt({"a": 12, "b": 5})
    assert heard.known() == {"a": 16, "b": 5}
    assert heard.hear("b", 3, 3) == Hearing([slice(2, 3)], repeated=2)


def test_origins_are_bounded_and_the_one_unheard_of_for_longest_goes() -> None:
    """Every process that ever ran has an origin of its own."""
    heard = Sequences()
    heard.adopt({f"o{n}": 1 for n in range(MAX_ORIGINS)})
    heard.hear("o0", 1, 1)
    heard.hear("new", 0, 1)
    assert (len(heard.known()), "o0" in heard.known(), "o1" in heard.known()) == (MAX_ORIGINS, True, False)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=15))
def test_every_number_is_applied_at_most_once(entries: list[tuple[int, int]]) -> None:
    """Whatever the order in which entries come, and the sums are right."""
    heard, applied = Sequences(), []
    for first, count in entries:
        hearing = heard.hear("a", first, count)
        numbers = list(range(first, first + count))
        fresh = [n for part in hearing.fresh for n in numbers[part]]
        assert len(fresh) + hearing.repeated == count
        applied += fresh
    assert len(applied) == len(set(applied))
