"""5. What requests and the workers' own counters say together: bytes per token, and how much of a match is delivered.

1. Both sides are counted in windows that end where what is still on its way cannot distort them. Sums forget by amount.
2. A window counts for bytes per token only if our requests explain all of the worker's, and no prompt of it holds media; one in
   which the worker has finished fewer than we know of says nothing at all. What is heard after its window is left out.
3. Hits that collapse against predictions are a lost cache when that comes suddenly; when it stays so, the credit goes.
4. Credit is measured on unweighted matches, so a worker without any earns it back from the traffic that load sends it.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from prefix_middleware.core.blocks import BYTES_PER_TOKEN
from prefix_middleware.core.facts import Facts

BYTES_PER_TOKEN_RANGE: Final = (1.0, 8.0)
MAX_CREDIT: Final = 1.5  # the reply to the earlier prompt lies in the cache, too
NO_CREDIT: Final = 0.1
"""Below it a worker counts as one that holds nothing."""

_MAX_MODELS: Final = 256  # beyond them somebody makes them up, and all are learned anew
_STEP: Final = 0.05  # of bytes per token: few different figures, so that tables of them can be kept
_PRIOR_TOKENS: Final = 2_000.0  # what the first guess weighs
_MAX_TOKENS: Final = 1_000_000.0  # remembered for bytes per token
_MAX_PREDICTED: Final = 60_000.0  # remembered for credit: some thirty follow-ups
_EDGE_SHARE: Final = 0.25  # of a window's requests may be under way when it ends
_FOREIGN_SHARE: Final = 0.05
_COLLAPSED: Final = 0.1  # of what was predicted
_TRUSTED: Final = 0.5  # credit of a worker whose collapse is a loss
_DOUBT_REQUESTS: Final = 4
_DOUBT_TOKENS: Final = 2_000


@dataclass(slots=True)
class _Window:
    """What we know of the requests answered since the window began."""

    requests: int = 0
    text_bytes: int = 0
    media: bool = False
    matched_requests: int = 0
    matched_tokens: int = 0

    def add(self, other: "_Window") -> None:
        self.matched_requests += other.matched_requests
        self.matched_tokens += other.matched_tokens


@dataclass(slots=True)
class _Ledger:
    """One worker: the open window, what its counters said when it began, and the sums behind its credit."""

    window: _Window = field(default_factory=_Window)
    began: Facts | None = None
    began_at: float = -math.inf
    edge: int = 0  # requests under way when it began
    caches: int = 1  # engines behind the URL: until shown otherwise, a match is on one of them by chance
    matched: float = 0.0
    delivered: float = 0.0
    doubt: _Window = field(default_factory=_Window)  # windows in a row that delivered next to nothing
    blamed: bool = False  # such a row was taken for a lost cache, and nothing has been delivered since

    def begin(self, facts: Facts, edge: int, now: float) -> None:
        self.window, self.began, self.edge, self.began_at = _Window(), facts, edge, now


@dataclass(slots=True)
class _Ratio:
    text_bytes: float = 0.0
    tokens: float = 0.0


class Learned:
    """Estimates of every worker and model, from what each answered."""

    def __init__(self) -> None:
        self._ledgers: dict[str, _Ledger] = {}
        self._ratios: dict[str, _Ratio] = {}  # by the model's first served name
        self.bytes_per_token: dict[str, float] = {}

    def note(self, worker: str, text_bytes: int, matched_tokens: int, at: float) -> None:
        """An answer began at `at`: so long was its prompt (0 bytes: media are in it), so much was found in the index."""
        ledger = self._ledger(worker)
        if at < ledger.began_at:  # heard late: its hits were counted before the window
            return
        window = ledger.window
        window.requests += 1
        window.text_bytes += text_bytes
        window.media |= not text_bytes
        window.matched_requests += matched_tokens > 0
        window.matched_tokens += matched_tokens

    def credit(self, worker: str) -> float:
        """Return by what a match on the worker is multiplied, 0 to MAX_CREDIT."""
        return _credit(self._ledger(worker))

    def forget(self, worker: str) -> None:
        """The worker has restarted or lost its cache: what was counted so far says nothing about what follows."""
        ledger = self._ledger(worker)
        ledger.window, ledger.began, ledger.doubt = _Window(), None, _Window()

    def observe(self, worker: str, facts: Facts, under_way: int, now: float) -> bool:
        """Compare with what the worker says now; return whether it has lost its cache. `under_way`: requests of ours."""
        ledger = self._ledger(worker)
        ledger.caches = len(facts.engines) or 1
        edge = max(under_way, facts.busy)
        began = ledger.began
        if began is None or began.model != facts.model:
            ledger.begin(facts, edge, now)
            return False
        window, requests = ledger.window, grown(began, facts, "requests")
        if not window.requests or ledger.edge + edge > _EDGE_SHARE * window.requests:
            if not window.requests and not facts.busy:  # others' traffic, or none
                ledger.begin(facts, edge, now)
            return False
        tolerated = ledger.edge + edge + _FOREIGN_SHARE * window.requests
        explained = requests is not None and abs(requests - window.requests) <= tolerated
        tokens, hits = grown(began, facts, "prompt_tokens"), grown(began, facts, "hit_tokens")
        ledger.begin(facts, edge, now)
        if requests is not None and requests < window.requests - tolerated:
            return False
        if explained and tokens and not window.media:
            self._weigh(facts.model, window.text_bytes, tokens)
        if hits is None or not window.matched_tokens:
            return False
        return _deliver(ledger, window, hits if explained else min(hits, window.matched_tokens))

    def _weigh(self, model: str, text_bytes: int, tokens: int) -> None:
        if len(self._ratios) > _MAX_MODELS:
            self._ratios.clear()
            self.bytes_per_token.clear()
        ratio = self._ratios.setdefault(model, _Ratio())
        ratio.text_bytes += text_bytes
        ratio.tokens += tokens
        if ratio.tokens > _MAX_TOKENS:
            ratio.text_bytes, ratio.tokens = ratio.text_bytes / 2, ratio.tokens / 2
        learned = (ratio.text_bytes + BYTES_PER_TOKEN * _PRIOR_TOKENS) / (ratio.tokens + _PRIOR_TOKENS)
        low, high = BYTES_PER_TOKEN_RANGE
        self.bytes_per_token[model] = min(high, max(low, round(learned / _STEP) * _STEP))

    def _ledger(self, worker: str) -> _Ledger:
        return self._ledgers.setdefault(worker, _Ledger())


def _deliver(ledger: _Ledger, window: _Window, hits: int) -> bool:
    """Add a window to what the worker's credit is made of; return whether it shows a lost cache."""
    collapsed = hits < _COLLAPSED * window.matched_tokens
    if collapsed and not ledger.blamed and _credit(ledger) >= _TRUSTED:
        doubt = ledger.doubt
        doubt.add(window)
        if doubt.matched_requests < _DOUBT_REQUESTS or doubt.matched_tokens < _DOUBT_TOKENS:
            return False
        ledger.blamed, ledger.doubt = True, _Window()
        return True
    if not collapsed:
        ledger.blamed = False
        window.add(ledger.doubt)
        ledger.doubt = _Window()
    ledger.matched += window.matched_tokens
    ledger.delivered += hits
    if ledger.matched > _MAX_PREDICTED:
        ledger.delivered *= _MAX_PREDICTED / ledger.matched
        ledger.matched = _MAX_PREDICTED
    return False


def _credit(ledger: _Ledger) -> float:
    expected = _PRIOR_TOKENS / ledger.caches
    return min(MAX_CREDIT, (ledger.delivered + expected) / (ledger.matched + _PRIOR_TOKENS))


def grown(began: Facts, facts: Facts, counter: str) -> int | None:
    """Return by how much a counter has grown over all engines, None where it is not known or has gone back."""
    before, now = began.total(counter), facts.total(counter)
    return None if before is None or now is None or now < before else now - before
