"""What the fleet benchmark plays, and what of it could be reused."""

import pytest

from bench.fleet.workload import SHAPES, Shape, Timed, openings, reusable_tokens


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_group_shares_its_system_prompt_and_nothing_else(shape: Shape) -> None:
    """As many different starts as the shape says, and every question once."""
    made = openings(shape, "one")
    starts = {opening.system for opening in made}
    questions = {question for opening in made for question in opening.questions}
    expected = (shape.conversations, shape.groups or shape.conversations, shape.conversations * shape.turns)
    assert (len(made), len(starts), len(questions)) == expected


def test_another_seed_shares_nothing_and_the_same_one_everything() -> None:
    """Runs must not find what an earlier one has left in the workers' caches."""
    one, again, other = (openings(SHAPES[0], seed) for seed in ("one", "one", "other"))
    assert one == again
    assert not {opening.system for opening in one} & {opening.system for opening in other}


@pytest.mark.parametrize(
    ("prompts", "reusable"),
    [
        ([Timed([1] * 10, 0, 1), Timed([1] * 12, 2, 3)], 8),
        ([Timed([1] * 10, 0, 1), Timed([1] * 12, 0.5, 3)], 0),
        ([Timed([1] * 8, 0, 1), Timed([1] * 8, 2, 3)], 4),
        ([Timed([1] * 9, 0, 1), Timed([1] * 4 + [2] * 8, 2, 3)], 4),
        ([Timed([2] + [1] * 9, 0, 1), Timed([1] * 10, 2, 3)], 0),
        ([Timed([1] * 8, 2, 3), Timed([1] * 9, 0, 1)], 4),
    ],
    ids=["whole blocks", "not yet begun", "the last token is computed", "a part", "another start", "by time"],
)
def test_what_is_reusable_is_whole_blocks_of_what_had_begun(prompts: list[Timed], reusable: int) -> None:
    """The figure is for blocks of four tokens; the ideal is what any worker could have kept."""
    assert reusable_tokens(prompts, 4) == reusable
