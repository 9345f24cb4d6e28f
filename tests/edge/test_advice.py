"""What an operator is told once at start."""

import sys
from collections.abc import Iterator

import pytest

from prefix_middleware import Settings, Worker
from prefix_middleware.advice import Claim, advise
from prefix_middleware.telemetry import Telemetry
from tests.services import free_port

SHARED = "[PREFIX] warning: several processes route to these workers and share nothing: set PREFIX_REDIS_URL"


@pytest.fixture
def workers() -> tuple[Worker, ...]:
    """Workers that no other run of the tests routes to."""
    return (Worker("w1", f"http://127.0.0.1:{free_port()}"),)


@pytest.fixture
def claims() -> Iterator[list[Claim]]:
    made: list[Claim] = []
    yield made
    for claim in made:
        claim.give_up()


def take(claims: list[Claim], settings: Settings) -> None:
    """Claim as one more process would: the name is held by its socket, whoever has that."""
    claim = Claim(settings)
    claims.append(claim)
    claim.take(Telemetry("host"))


@pytest.mark.skipif(sys.platform != "linux", reason="the claim is a name of Linux's socket namespace")
def test_the_second_process_without_redis_is_told(
    workers: tuple[Worker, ...], claims: list[Claim], caplog: pytest.LogCaptureFixture
) -> None:
    """The first hears nothing, the second one warning, and whoever comes after the first has gone nothing again."""
    settings = Settings(workers=workers)
    take(claims, settings)
    assert caplog.messages == []
    take(claims, settings)
    assert caplog.messages == [SHARED]
    claims[0].give_up()
    take(claims, settings)
    assert caplog.messages == [SHARED]


def test_processes_that_share_a_mirror_or_nothing_are_not_told(
    workers: tuple[Worker, ...], claims: list[Claim], caplog: pytest.LogCaptureFixture
) -> None:
    """With Redis they know of each other; other workers, another fleet or none are nobody's business."""
    for settings in (
        Settings(workers=workers, redis_url="redis://127.0.0.1:1/0"),
        Settings(workers=workers, redis_url="redis://127.0.0.1:1/0"),
        Settings(workers=workers),
        Settings(workers=workers, fleet="other"),
        Settings(workers=(*workers, Worker("w2", "http://127.0.0.1:1"))),
        Settings(),
        Settings(),
    ):
        take(claims, settings)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "shadow"}, "mode shadow: decisions are logged, no header is set"),
        ({"mode": "off"}, "mode off: nothing is routed"),
        ({"workers": ()}, "PREFIX_WORKERS names no workers; requests pass unrouted"),
        (
            {"redis_url": "redis://127.0.0.1:1/0"},
            "without PREFIX_SECRET whoever reads Redis can test guesses at prompts",
        ),
        ({}, None),
        ({"redis_url": "redis://127.0.0.1:1/0", "secret": "long enough"}, None),
    ],
)
def test_what_may_surprise_is_said(
    workers: tuple[Worker, ...],
    caplog: pytest.LogCaptureFixture,
    options: dict[str, object],
    said: str | None,
) -> None:
    """One line each, and none where nothing surprises."""
    caplog.set_level("INFO", "prefix_middleware")
    settings = Settings(**{"workers": workers, **options})  # type: ignore[arg-type]
    advise(settings, Telemetry("host"), from_env=False)
    assert caplog.messages == ([f"[PREFIX] warning: {said}"] if said else [])
