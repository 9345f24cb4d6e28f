"""The canonical prompt against the engine: each pair of requests, sent to a real vLLM."""

import pytest

from tests.vllm.pairs import Pair
from tests.vllm.running import Engine
from tests.vllm.table import PAIRS
from tests.vllm.verdicts import by_the_engine


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.what)
def test_the_engine_finds_what_the_table_says(pair: Pair, dense: Engine) -> None:
    """What the second request reports as cached is the documented share: a difference that goes away fails as well."""
    assert by_the_engine(pair, f"row-{PAIRS.index(pair)}", dense) == pair.engine
