"""What the line shows when a client spoils its own prefix: m falls to the blocks before the change, which tells the cause."""

import json
import logging
from typing import Any

import pytest

from tests.edge.asgi import answering, ask, mounted, settings_for
from tests.edge.logs import Keeper, figures

pytestmark = pytest.mark.anyio

RULES = "Follow the rules of the house. " * 140  # over 4 KB
TOOLS = [{"type": "function", "function": {"name": f"tool_{n}", "description": "d" * 200}} for n in range(12)]


def body(system: str, tools: list[dict[str, Any]], question: str = "And now?") -> bytes:
    """Return a chat request."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return json.dumps({"model": "m", "tools": tools, "messages": messages}).encode()


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        pytest.param(body(RULES, TOOLS), body(RULES, TOOLS), "all", id="the same again"),
        pytest.param(
            body("At 15:09:20. " + RULES, []), body("At 15:09:34. " + RULES, []), 0, id="a time at the start"
        ),
        pytest.param(
            body(RULES[:1500] + "15:09:20" + RULES, []),
            body(RULES[:1500] + "15:09:34" + RULES, []),
            2,
            id="a time at byte 1,500",
        ),
        pytest.param(body(RULES, TOOLS), body(RULES, TOOLS[::-1]), 0, id="tools in another order"),
        pytest.param(
            body(RULES, TOOLS),
            body(RULES, [*TOOLS[:6], *TOOLS[:5:-1]]),
            2,
            id="half of them in another order",
        ),
    ],
)
async def test_the_line_says_how_far_two_prompts_agree(
    silent_port: int, logger: logging.Logger, first: bytes, second: bytes, kept: int | str
) -> None:
    """The engine reads tools and text in the order sent, and so do we: m is the number of whole blocks before the change."""
    keeper = Keeper()
    logger.addHandler(keeper)
    logger.setLevel(logging.INFO)
    async with mounted(answering, settings_for(silent_port, ["w1"])) as middleware:
        await ask(middleware, first)
        await ask(middleware, second)
    lines = [figures(line) for line in keeper.lines if "[PREFIX] only" in line]
    matched, blocks = int(lines[1]["matched_blocks"]), int(lines[1]["blocks"])
    assert (lines[0]["matched_blocks"], matched, blocks > 4) == ("0", blocks if kept == "all" else kept, True)
