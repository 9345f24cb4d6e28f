"""Keeps log records, and reads the figures of a [PREFIX] line back."""

import logging
import re
from typing import Any

import msgspec

from prefix_middleware import Decision

FIGURES = r"\(slots=(?P<slots>\d+) min=(?P<min_slots>\d+) slack=(?P<slack>\d+), ~(?P<tokens>\d+) tokens\)"
KEPT = r"(?P<matched_blocks>\d+)/(?P<blocks>\d+) blocks"
LINES = {
    "hit": rf"\[PREFIX\] (?P<reason>hit): (?P<worker>[a-z0-9-]+) keeps {KEPT} {FIGURES}",
    "only": rf"\[PREFIX\] (?P<reason>only): (?P<worker>[a-z0-9-]+) keeps {KEPT} {FIGURES}",
    "miss": rf"\[PREFIX\] (?P<reason>miss): (?P<worker>[a-z0-9-]+) starts {KEPT} {FIGURES}",
    "busy": rf"\[PREFIX\] (?P<reason>busy): (?P<worker>[a-z0-9-]+) takes over from (?P<previous>[a-z0-9-]+), "
    rf"which keeps {KEPT} {FIGURES}",
    "none": r"\[PREFIX\] (?P<reason>none): no ready worker for (?P<model>\S*) \(~(?P<tokens>\d+) tokens\)",
}


class Keeper(logging.Handler):
    """A handler that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        """The messages."""
        return [record.getMessage() for record in self.records]


class Raiser(logging.Handler):
    """A handler of the host's that is broken."""

    def emit(self, record: logging.LogRecord) -> None:
        """Fail."""
        raise OSError("disk full")


def figures(line: str) -> dict[str, str]:
    """Return every figure of a line by the name of its field; fails for a line of no known form."""
    for form in LINES.values():
        match = re.fullmatch(form, line)
        if match:
            return match.groupdict()
    raise AssertionError(f"no line of ours: {line!r}")


def fields_of(decision: Decision) -> dict[str, Any]:
    """Return a decision as a dict."""
    fields: dict[str, Any] = msgspec.to_builtins(decision)
    return fields


def decision_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a decision that a record has."""
    return {name: getattr(record, name) for name in fields_of(Decision(reason="none"))}
