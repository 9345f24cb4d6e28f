"""The figures of a drill, what they must be, and the one line that it ends with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

AGREE_SECONDS: Final = 20.0  # the mirror's back-off, at most 10 s, and what it has to carry then
ADDED_MS: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much a drill does: seconds of each phase, clients at a time, and client aborts."""

    warm_seconds: float = 1.0  # before anything counts
    calm_seconds: float = 3.0
    fault_seconds: float = 6.0  # longer than the 4 s after which the mirror gives a silent Redis up
    clients: int = 8
    aborts: int = 100_000


FULL: Final = Scale()
QUICK: Final = Scale(warm_seconds=0.2, calm_seconds=0.3, fault_seconds=1.0, clients=3, aborts=400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a drill has seen."""

    sent: int  # requests
    failed: int  # not answered completely and well, those of the next two lines apart
    cut: int = 0  # streams that were already sending when their worker or gateway died
    relayed: int = 0  # errors that a worker itself has answered, passed on as they were
    retried: int = 0  # sent again by the client, since its gateway died before the first byte
    calm_ms: float = 0.0  # longest time to the first byte in the calm phase
    added_ms: float = 0.0  # how much longer the longest one after it was, at least 0
    longest_at_seconds: float = 0.0  # when that one was sent, after the end of the calm phase
    agree_seconds: float | None = None  # from the end of the fault; None: never
    in_flight: int = 0  # counted by the gateways once all clients have gone
    notes: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()  # what else was expected and did not come


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What still passes."""

    added_ms: float = ADDED_MS
    agree_seconds: float = AGREE_SECONDS
    relayed: int = 0
    retries: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One fault: its name, and how it is played."""

    name: str
    play: Callable[[Scale], Figures]
    limits: Limits = Limits()


def complaints(figures: Figures, limits: Limits) -> list[str]:
    """Return what is wrong with the figures; nothing is wrong with those of a drill that passes."""
    agree = figures.agree_seconds
    found = {
        "nothing was sent": figures.sent <= 0,
        f"{figures.failed} requests failed": figures.failed != 0,
        f"a worker's errors reached {figures.relayed} clients, not at most {limits.relayed}": (
            figures.relayed > limits.relayed
        ),
        f"{figures.retried} requests had to be sent again": figures.retried > 0 and not limits.retries,
        f"the longest wait grew by more than {limits.added_ms:.0f} ms": figures.added_ms > limits.added_ms,
        "the gateways do not agree": agree is None,
        f"agreement took more than {limits.agree_seconds:g} s": (
            agree is not None and agree > limits.agree_seconds
        ),
        f"{figures.in_flight} are still in flight": figures.in_flight != 0,
    }
    return [text for text, wrong in found.items() if wrong] + list(figures.broken)


def line(drill: Drill, figures: Figures, width: int = 0) -> str:
    """Return the line that a drill ends with: PASS or FAIL, its name padded to `width`, the figures, notes, complaints."""
    wrong = complaints(figures, drill.limits)
    agree = "never" if figures.agree_seconds is None else f"{figures.agree_seconds:.1f}s"
    shown = [
        "FAIL" if wrong else "PASS",
        f"{drill.name:<{width}}",
        f"sent={figures.sent} failed={figures.failed} cut={figures.cut}",
        f"calm={figures.calm_ms:.0f}ms added={figures.added_ms:.0f}ms@{figures.longest_at_seconds:.1f}s",
        f"agree={agree} in_flight={figures.in_flight}",
    ]
    apart = {"relayed": figures.relayed, "retried": figures.retried}
    shown += [f"{name}={count}" for name, count in apart.items() if count]
    told = "; ".join(figures.notes) + (f" | {'; '.join(wrong)}" if wrong else "")
    return "  ".join([*shown, *([told.strip()] if told else [])])
