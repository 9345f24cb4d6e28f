"""Every line of the large bodies' table can be measured, and each way of reading leads to the same decision."""

import asyncio

import pytest

from bench import large_bodies
from bench._bodies import KB, conversations
from bench.large_bodies import WAYS, line, main, reading_by
from prefix_middleware.core.canonical import CanonicalPrompt, Skip, prompt_steps
from prefix_middleware.reading import Reading


def test_the_table_has_each_body_read_in_each_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line without a body, then one for each way; nothing is asserted of the figures."""
    monkeypatch.setattr(
        large_bodies, "bodies", lambda: {"none": b"", "100 KB": conversations(100 * KB, 1)[0].body}
    )
    assert main(["--bodies", "1", "--streams", "2"]) == 0
    rows = [text.split() for text in capsys.readouterr().out.splitlines()]
    assert [row[:-3] for row in rows[1:]] == [["none"], *[["100", "KB", way] for way in WAYS]]


def test_a_line_has_the_median_and_the_p90_of_the_waits() -> None:
    """Milliseconds: the waits' median and p90, and the median of the reading."""
    assert (
        line("1 MB", "whole", [0.001, 0.002, 0.009], [0.5]).split() == "1 MB whole 2.00 9.00 500.00".split()
    )


def test_each_way_reads_the_same_prompt() -> None:
    """What is compared differs in nothing but how it is read."""
    body = conversations(1_200 * KB, 1)[0].body

    async def read(way: str) -> CanonicalPrompt | Skip:
        with reading_by(way):
            return await Reading().read(prompt_steps("chat", body))

    prompts = [asyncio.run(read(way)) for way in WAYS]
    assert isinstance(prompts[0], CanonicalPrompt)
    assert prompts == [prompts[0]] * 3
