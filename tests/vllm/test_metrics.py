"""The recorded metrics in tests/edge/data are what real workers export."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.vllm.metrics import FOLDER, trimmed
from tests.vllm.running import Engine


def shapes(text: str) -> set[tuple[str, frozenset[str]]]:
    """Return each series' name with the names of its labels."""
    return {
        (sample.name, frozenset(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("name", ["dense", "hybrid", "hybrid_unit"])
def test_a_worker_exports_what_was_recorded(name: str, request: pytest.FixtureRequest) -> None:
    """The same series with the same label names; the values are a run's own."""
    engine: Engine = request.getfixturevalue(name)
    recorded = (FOLDER / f"metrics-{name.replace('_', '-')}.txt").read_text()

    assert shapes(trimmed(engine.get("/metrics").text)) == shapes(recorded)
