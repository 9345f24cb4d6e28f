"""Sums over the lines of a log, and how they are shown: one summary, or one line of it."""

from collections import Counter
from typing import Any, Final

from msgspec import Struct
from rich.console import Group

from prefix_middleware.cli.loglines import Changed, Routed, Unread
from prefix_middleware.cli.output import facts, percent, table

MISSES: Final = 5  # rows of the table of misses
_NAMES: Final = 10_000  # of models, which clients choose; further ones count as one
_OTHERS: Final = "(others)"


class WorkerSums(Struct, kw_only=True):
    """Requests that were sent to one worker, and tokens of their prompts."""

    requests: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    matched_tokens: int = 0


class Summary(Struct, kw_only=True):
    """Everything that --json prints; rates are 0 to 1, None of nothing."""

    requests: int
    hits: int
    hit_rate: float | None
    prompt_tokens: int
    matched_tokens: int
    matched_share: float | None
    estimated_requests: int  # whose matched tokens are estimated from blocks
    reasons: dict[str, int]
    workers: dict[str, WorkerSums]
    missed_tokens: list[dict[str, Any]]  # most first; by model where the log says it, else by worker
    states: dict[str, int]
    unread: int  # lines of ours in a form not known here


class Tally:
    """Counts what lines say."""

    def __init__(self) -> None:
        self.lines = 0
        self._all = WorkerSums()
        self._workers: dict[str, WorkerSums] = {}
        self._reasons: Counter[str] = Counter()
        self._states: Counter[str] = Counter()
        self._missed: Counter[tuple[str, str]] = Counter()
        self._estimated = self._unread = 0

    @property
    def empty(self) -> bool:
        """Whether no line was ours."""
        return not (self._reasons or self._states or self._unread)

    def add(self, said: Routed | Changed | Unread | None) -> None:
        """Count one line."""
        self.lines += 1
        if isinstance(said, Routed):
            self._routed(said)
        elif isinstance(said, Changed):
            self._states[_bounded(said.what, self._states)] += 1
        elif isinstance(said, Unread):
            self._unread += 1

    def _routed(self, said: Routed) -> None:
        self._reasons[said.reason] += 1
        self._estimated += said.estimated
        sums = [self._all]
        if said.worker is not None:
            sums.append(self._workers.setdefault(_bounded(said.worker, self._workers), WorkerSums()))
        for total in sums:
            total.requests += 1
            total.hits += said.hit
            total.prompt_tokens += said.tokens
            total.matched_tokens += said.matched_tokens
        missed = said.tokens - said.matched_tokens
        if missed:
            name = ("worker", said.worker or "") if said.model is None else ("model", said.model)
            self._missed[_bounded(name, self._missed, ("model", _OTHERS))] += missed

    def summary(self) -> Summary:
        """Return the sums so far."""
        total = self._all
        return Summary(
            requests=total.requests,
            hits=total.hits,
            hit_rate=_rate(total.hits, total.requests),
            prompt_tokens=total.prompt_tokens,
            matched_tokens=total.matched_tokens,
            matched_share=_rate(total.matched_tokens, total.prompt_tokens),
            estimated_requests=self._estimated,
            reasons=dict(self._reasons.most_common()),
            workers=dict(sorted(self._workers.items())),
            missed_tokens=[
                {kind: name, "tokens": tokens} for (kind, name), tokens in self._missed.most_common(MISSES)
            ],
            states=dict(sorted(self._states.items())),
            unread=self._unread,
        )


def _bounded(name: Any, known: Any, others: Any = _OTHERS) -> Any:
    return name if name in known or len(known) < _NAMES else others


def _rate(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def line_of(summary: Summary) -> str:
    """Return the sums as one line."""
    hits = f"{summary.hits:,} hits of {summary.requests:,} requests"
    tokens = f"{_about(summary)}{summary.matched_tokens:,} of {summary.prompt_tokens:,} prompt tokens"
    rates = percent(summary.hits, summary.requests), percent(summary.matched_tokens, summary.prompt_tokens)
    return f"{hits} ({rates[0]}), {tokens} matched ({rates[1]})"


def _about(summary: Summary) -> str:
    return "about " if summary.estimated_requests else ""


def shown_summary(summary: Summary) -> Group:
    """Return the sums as tables."""
    parts: list[Any] = [facts(_rows(summary))]
    if summary.requests:
        parts += ["", table(("reason", "requests", "share"), _reasons(summary))]
    if summary.workers:
        columns = ("worker", "requests", "hits", "hit rate", "prompt tokens", "matched", "share")
        parts += ["", table(columns, [_worker(name, sums) for name, sums in summary.workers.items()])]
    if summary.missed_tokens:
        parts += ["", table(("most tokens missed", "tokens", "share"), _missed(summary), left=1)]
    return Group(*parts)


def _rows(summary: Summary) -> list[tuple[str, str]]:
    rate = percent(summary.hits, summary.requests)
    share = percent(summary.matched_tokens, summary.prompt_tokens)
    tokens = f"{_about(summary)}{summary.matched_tokens:,} of {summary.prompt_tokens:,}"
    rows = [
        ("requests", f"{summary.requests:,}"),
        ("hit rate", f"{rate} of requests ({summary.hits:,} of {summary.requests:,})"),
        ("", f"{share} of prompt tokens ({tokens})"),
    ]
    if summary.states:
        rows.append(("states", ", ".join(f"{what} {count:,}" for what, count in summary.states.items())))
    if summary.unread:
        rows.append(("not read", f"{summary.unread:,} lines of ours in a form not known here"))
    return rows


def _reasons(summary: Summary) -> list[tuple[object, ...]]:
    return [(reason, count, percent(count, summary.requests)) for reason, count in summary.reasons.items()]


def _worker(name: str, sums: WorkerSums) -> tuple[object, ...]:
    rate = percent(sums.hits, sums.requests)
    share = percent(sums.matched_tokens, sums.prompt_tokens)
    return name, sums.requests, sums.hits, rate, sums.prompt_tokens, sums.matched_tokens, share


def _missed(summary: Summary) -> list[tuple[object, ...]]:
    total = summary.prompt_tokens - summary.matched_tokens
    rows: list[tuple[object, ...]] = []
    for entry in summary.missed_tokens:
        kind = "model" if "model" in entry else "worker"
        name = entry[kind] or "(not named)"
        rows.append((f"{kind} {name}", entry["tokens"], percent(entry["tokens"], total)))
    return rows
