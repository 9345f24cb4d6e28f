"""The shape of the code: what core/ may import, and how long files and functions may get."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "prefix_middleware"
CORE = sorted((PACKAGE / "core").glob("*.py"))
FILES = sorted(PACKAGE.rglob("*.py"))

PURE = {
    "bisect", "blake3", "collections", "dataclasses", "functools", "heapq", "itertools", "json", "math", "msgspec",
    "threading", "typing",
}  # fmt: skip
"""What core/ may import: no I/O, clock, randomness, event loop or logging. threading is for the router's lock."""


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


def is_pure(module: str) -> bool:
    return module.split(".")[0] in PURE or module.startswith("prefix_middleware.core")


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_core_imports_nothing_that_could_block(path: Path) -> None:
    """The decision is pure: time and randomness are arguments."""
    tree = ast.parse(path.read_text())

    assert [module for module in imported(tree) if not is_pure(module)] == []
    assert [n for n in ast.walk(tree) if isinstance(n, ast.AsyncFunctionDef | ast.Await)] == []


def test_the_purity_rule_refuses_what_it_should() -> None:
    """A rule that lets everything through would pass as well."""
    tree = ast.parse(
        "import time\nimport random\nfrom asyncio import sleep\nimport json\nfrom prefix_middleware import body"
    )

    assert [m for m in imported(tree) if not is_pure(m)] == ["time", "random", "asyncio", "prefix_middleware"]


def test_files_and_functions_stay_short() -> None:
    """Under 300 lines a file, 50 a function, and nine of ten functions under 30."""
    long_files = {
        str(p.relative_to(PACKAGE)): n for p in FILES if (n := len(p.read_text().splitlines())) > 300
    }
    lengths = {
        f"{path.relative_to(PACKAGE)}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert long_files == {}
    assert {name: n for name, n in lengths.items() if n > 50} == {}
    assert sum(n <= 30 for n in lengths.values()) >= 0.9 * len(lengths)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_is_in_it(path: Path) -> None:
    """A newcomer finds the room by its first sentence."""
    assert ast.get_docstring(ast.parse(path.read_text()))
