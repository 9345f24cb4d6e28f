"""No test takes a short cut around the socket or the raw messages: what buffers whole answers cannot show how they pass."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
FILES = sorted(path for path in TESTS.rglob("*.py") if path != Path(__file__))
BUFFERING = frozenset(
    {"ASGITransport", "WSGITransport", "TestClient", "AsyncTestClient", "create_client", "test_client"}
)
"""In-memory clients of the frameworks: they give an answer when it is complete and never leave in the middle."""


def short_cuts(tree: ast.AST) -> Iterator[str]:
    """Yield every name of such a client that a module imports or reaches."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.name in BUFFERING)
        elif isinstance(node, ast.Attribute) and node.attr in BUFFERING:
            yield node.attr


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_uses_an_in_memory_client(path: Path) -> None:
    """Requests are made by hand, message by message, or over real sockets."""
    assert list(short_cuts(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "code",
    [
        "from httpx import ASGITransport",
        "import httpx\nhttpx.AsyncClient(transport=httpx.ASGITransport(app))",
        "from starlette.testclient import TestClient as Client",
        "from fastapi import testclient\ntestclient.TestClient(app)",
        "app.test_client()",
    ],
)
def test_a_short_cut_would_be_seen(code: str) -> None:
    """The rule knows every usual way to one."""
    assert len(list(short_cuts(ast.parse(code)))) == 1
