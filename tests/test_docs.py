"""What the documents say of tests is true: each test that is named exists, and each statement about security names one."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
SECURITY = TESTS.parent / "docs" / "security.md"
CASES = TESTS / "CASES.md"

_NAMED = re.compile(r"([\w./-]+\.py)::((?:\w+::)?\w+)")
_RULE = re.compile(r"\|[\s:|-]+\|")
_CANNOT_APPLY = re.compile(r"vllm|litellm|lua|gpu", re.IGNORECASE)


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names of the tests in a file; those of a class have its name in front, a state machine's is assigned."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        names |= {prefix + f.name for f in inner if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)}
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(name for name in names if name.rpartition("::")[2].startswith(("test_", "Test")))


def missing(text: str) -> list[str]:
    """Return the tests that a text names and that do not exist; a path counts from tests/ or from above it."""
    absent = []
    for path, name in _NAMED.findall(text):
        files = [root / path for root in (TESTS, TESTS.parent) if (root / path).is_file()]
        if not files or name not in names_in(files[0]):
            absent.append(f"{path}::{name}")
    return absent


def rows(text: str, columns: int) -> list[list[str]]:
    """Return the cells of every table row of that many columns, headings left out."""
    lines = text.splitlines()
    found = [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        for line, after in zip(lines, [*lines[1:], ""], strict=False)
        if line.startswith("| ") and not _RULE.fullmatch(line.strip()) and not _RULE.fullmatch(after.strip())
    ]
    return [cells for cells in found if len(cells) == columns]


def test_every_test_that_the_security_page_names_exists() -> None:
    """A statement whose test was renamed or removed is a statement without one."""
    assert missing(SECURITY.read_text()) == []


def test_every_statement_about_security_has_a_test() -> None:
    """The second cell of each row names at least one."""
    statements = rows(SECURITY.read_text(), 2)
    assert (len(statements) > 40, [s for s, tests in statements if not _NAMED.search(tests)]) == (True, [])


def test_a_name_that_does_not_exist_is_found() -> None:
    """A check that finds everything would pass as well."""
    text = f"`test_docs.py::{test_a_name_that_does_not_exist_is_found.__name__}`, `tests/test_docs.py::test_x`, `no.py::test_y`"
    assert missing(text) == ["tests/test_docs.py::test_x", "no.py::test_y"]
    assert rows("| a | b |\n|---|---|\n| 1 | `x` |\n", 2) == [["1", "`x`"]]


def test_every_case_has_a_test_that_exists_or_the_reason_why_none_applies() -> None:
    """`| number | rule | tests |`: each number once, each with tests, or with what it would need that is not here."""
    text = CASES.read_text() if CASES.exists() else ""
    cases = rows(text, 3)
    numbers = [number for number, _, _ in cases]
    bare = [n for n, _, tests in cases if not _NAMED.search(tests) and not _CANNOT_APPLY.search(tests)]
    assert (missing(text), bare, sorted(n for n in set(numbers) if numbers.count(n) > 1)) == ([], [], [])
    assert bool(cases) == CASES.exists()
