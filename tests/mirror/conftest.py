"""A busy machine for the tests of the mirror that count connections."""

import pytest


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no slow moment end a connection: replies may take a minute."""
    for place in ("writer._REPLY_SECONDS", "reader._REPLY_SECONDS", "store._CONNECT_SECONDS"):
        monkeypatch.setattr(f"prefix_middleware.mirror.{place}", 60.0)
