"""Writes the measured pairs and figures into docs/engine.md: `python -m tests.vllm.table`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.vllm.hybrid import FOUND, STEPS
from tests.vllm.pairs import Pair
from tests.vllm.pairs_chat import CONTENT, ROLES, WRITING
from tests.vllm.pairs_fields import COMPLETIONS, FIELDS
from tests.vllm.pairs_messages import MESSAGES
from tests.vllm.pairs_responses import RESPONSES
from tests.vllm.pairs_tools import TOOLS

PAGE: Final = Path(__file__).parents[2] / "docs" / "engine.md"

GROUPS: Final = {
    "How the body is written": WRITING,
    "Content": CONTENT,
    "Tools": TOOLS,
    "Turns and roles": ROLES,
    "Fields": FIELDS,
    "Completions": COMPLETIONS,
    "Anthropic messages": MESSAGES,
    "Responses": RESPONSES,
}
PAIRS: Final = tuple(pair for group in GROUPS.values() for pair in group)


def table(pairs: Sequence[Pair]) -> str:
    """Return a Markdown table with a row for each pair."""
    rows = [(pair.what, pair.ours, pair.engine, pair.why) for pair in pairs]
    head = [("the two differ in", "ours", "engine", "why they disagree"), ("---", "---", "---", "---")]
    return "".join(f"| {' | '.join(row)} |\n".replace("\\u", "`\\u`") for row in [*head, *rows])


def rendered() -> str:
    """Return all groups."""
    return "\n".join(f"### {title}\n\n{table(pairs)}" for title, pairs in GROUPS.items())


def found_by_hybrids() -> str:
    """Return what each prompt to a hybrid worker found, without and with the match unit."""
    head = ("prompt", "tokens", "cached", "cached with the unit")
    rows = [
        (name, f"{len(prompt):,}", *(f"{found[name]:,}" for found in FOUND.values()))
        for name, prompt in STEPS.items()
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ("---", "--:", "--:", "--:"), *rows])


def filled(page: str) -> str:
    """Return the page with what stands between its marks written anew."""
    for mark, text in (("pairs", rendered()), ("hybrid", found_by_hybrids())):
        before, found, rest = page.partition(f"<!-- {mark} -->\n")
        assert found, mark
        page = f"{before}{found}\n{text}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
