"""Our side of the pairs, and that docs/engine.md shows them; needs no engine."""

import pytest

from tests.vllm.pairs import Pair
from tests.vllm.table import PAGE, PAIRS, filled
from tests.vllm.verdicts import by_our_hashes


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.what)
def test_our_hashes_share_what_the_table_says(pair: Pair) -> None:
    """The second request of a pair matches the documented share of the first one's blocks."""
    assert by_our_hashes(pair, "salt") == pair.ours


def test_every_difference_has_its_reason_and_only_differences() -> None:
    """A pair on which we and the engine disagree says why; the others have nothing to explain; no pair stands twice."""
    assert [pair.what for pair in PAIRS if pair.agree == bool(pair.why)] == []
    assert len({pair.what for pair in PAIRS}) == len(PAIRS) >= 40


def test_the_page_shows_the_pairs_and_figures() -> None:
    """docs/engine.md is what `python -m tests.vllm.table` writes."""
    page = PAGE.read_text()

    assert page == filled(page)
