"""One line of a gateway's log to what it says: a decision, a change of state, or nothing of ours.

Text lines and JSON lines, ours or a host's formatter's, behind any prefix (a time, a container's name), also wrapped in
the JSON of a container runtime. Text says no matched tokens; they are estimated from the matched blocks.
"""

import re
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from prefix_middleware.core.blocks import BYTES_PER_TOKEN, block_edges
from prefix_middleware.core.choose import Reason
from prefix_middleware.telemetry import shown

MARK: Final = "[PREFIX] "

_NAME: Final = r"[a-z0-9-]{1,32}"
_COUNT: Final = r"\d{1,15}"
_FIGURES: Final = rf"\(slots={_COUNT} min={_COUNT} slack=-?{_COUNT}, ~(?P<tokens>{_COUNT}) tokens\)"
_ROUTED: Final = re.compile(
    rf"(?P<reason>hit|busy|miss|only): (?P<worker>{_NAME}) "
    rf"(?:keeps|starts|takes over from {_NAME}, which keeps) (?P<matched>{_COUNT})/{_COUNT} blocks {_FIGURES}"
)
_NONE: Final = re.compile(rf"none: no ready worker for (?P<model>\S*) \(~(?P<tokens>{_COUNT}) tokens\)")
_STATES: Final = (
    (re.compile(rf"worker (?P<worker>{_NAME}) is not ready"), "{worker} not ready"),
    (re.compile(rf"worker (?P<worker>{_NAME}) is ready"), "{worker} ready"),
    (re.compile(rf"worker (?P<worker>{_NAME}) has restarted"), "{worker} restarted"),
    (re.compile(r"mirror: lost"), "mirror lost"),
    (re.compile(r"mirror: connected"), "mirror connected"),
    (re.compile(r"warning:"), "warning"),
    (re.compile(r"error:"), "error"),
)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_REASONS: Final = frozenset(get_args(Reason))
_DEPTH: Final = 3  # a container runtime's JSON around a host's around ours


class Routed(Struct, frozen=True):
    """One routed request; tokens are those of its prompt."""

    reason: Reason
    worker: str | None
    model: str | None  # None: the line does not say
    tokens: int
    matched_tokens: int  # on the worker
    hit: bool  # the worker held a part of it and was followed for it, or was the only one
    estimated: bool  # matched_tokens are


class Changed(Struct, frozen=True):
    """A line about a worker, the mirror, or a warning; `what` is what to count it as."""

    what: str


class Unread(Struct, frozen=True):
    """A line of ours in a form not known here."""


class LineReader:
    """Reads lines of gateways with one `window_bytes`."""

    def __init__(self, window_bytes: int) -> None:
        self._tokens = [0, *(int(edge / BYTES_PER_TOKEN) for edge in block_edges(window_bytes))]

    def read(self, line: str, depth: int = 0) -> Routed | Changed | Unread | None:
        """Return what a line says, None when it is not ours."""
        if depth == 0:
            line = _COLOURS.sub("", line)
        if MARK not in line:
            return None
        brace = line.find("{")
        if 0 <= brace < line.find(MARK) and depth < _DEPTH:
            try:
                entry = msgspec.json.decode(line[brace:].encode("utf-8", "replace"))
            except (msgspec.DecodeError, RecursionError):
                entry = None
            if isinstance(entry, dict):
                return self._entry(entry, depth)
        return self._text(line[line.index(MARK) + len(MARK) :])

    def _entry(self, entry: dict[str, Any], depth: int) -> Routed | Changed | Unread | None:
        routed = _fields(entry)
        if routed is not None:
            return routed
        texts = (value for value in entry.values() if isinstance(value, str) and MARK in value)
        return next((self.read(text, depth + 1) for text in texts), None)

    def _text(self, text: str) -> Routed | Changed | Unread:
        found = _ROUTED.match(text)
        if found:
            return self._routed(found)
        found = _NONE.match(text)
        if found:
            return Routed(
                "none", None, shown(found["model"]), int(found["tokens"]), 0, hit=False, estimated=False
            )
        for pattern, what in _STATES:
            found = pattern.match(text)
            if found:
                return Changed(what.format(**found.groupdict()))
        return Unread()

    def _routed(self, found: re.Match[str]) -> Routed:
        reason, tokens = found["reason"], int(found["tokens"])
        blocks = min(int(found["matched"]), len(self._tokens) - 1) if reason != "busy" else 0
        matched = min(self._tokens[blocks], tokens)  # `busy` says what another worker keeps
        hit = reason == "hit" or (reason == "only" and blocks > 0)
        return Routed(reason, found["worker"], None, tokens, matched, hit=hit, estimated=True)  # type: ignore[arg-type]


class _Decision(Struct):
    reason: Reason
    tokens: int
    worker: str | None = None
    model: str = ""
    matched_tokens: int = 0
    matched_blocks: int = 0


def _fields(entry: dict[str, Any]) -> Routed | None:
    if entry.get("reason") not in _REASONS:
        return None
    try:
        said = msgspec.convert(entry, _Decision)
    except msgspec.ValidationError:
        return None
    tokens = max(0, said.tokens)
    matched = min(max(0, said.matched_tokens), tokens)
    hit = said.reason == "hit" or (said.reason == "only" and said.matched_blocks > 0)
    worker = None if said.worker is None else shown(said.worker)
    return Routed(said.reason, worker, shown(said.model), tokens, matched, hit=hit, estimated=False)
