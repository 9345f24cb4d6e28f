"""What a hybrid worker finds again, with and without a match unit."""

from tests.vllm.hybrid import FOUND, cached
from tests.vllm.running import Engine


def test_a_hybrid_worker_finds_whole_earlier_prompts_and_junctions(hybrid: Engine) -> None:
    """In whole blocks of 384: the end of an earlier prompt, and what two siblings share from the third on."""
    assert cached(hybrid, "hybrid") == FOUND["hybrid"]


def test_a_match_unit_makes_it_find_nearly_all_of_an_earlier_prompt(hybrid_unit: Engine) -> None:
    """In units of 32; siblings are found as without it."""
    assert cached(hybrid_unit, "hybrid") == FOUND["hybrid_unit"]
