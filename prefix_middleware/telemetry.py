"""The only place that logs and counts. Nothing here raises, and nothing here sees prompt text or a block hash."""

import json
import logging
import re
import sys
import threading
import traceback
from collections import Counter
from contextlib import suppress
from typing import Any, Final

import structlog
from msgspec.structs import asdict, replace

from prefix_middleware.core.canonical import SkipReason
from prefix_middleware.core.choose import Decision, line

LOGGER: Final = "prefix_middleware"

_UNSAFE = re.compile(r"[^\w.:/@+=-]", re.ASCII)
_SHOWN_CHARS: Final = 80
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def shown(text: str) -> str:
    """Return text from outside as it may stand in a log: no control characters, no spaces, no great length."""
    return _UNSAFE.sub("?", text[:_SHOWN_CHARS])


def one_line(text: str) -> str:
    """Return a message that stays one line and moves no cursor: a Redis or a worker may have worded a part of it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


class Guard:
    """Keeps exceptions of ours inside a block. It has no state, so one serves all requests."""

    __slots__ = ("_telemetry",)

    def __init__(self, telemetry: "Telemetry") -> None:
        self._telemetry = telemetry

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> bool:
        """Swallow and report an exception; let cancellation and the like pass."""
        if not isinstance(failure, Exception):
            return False
        self._telemetry.failed(failure)
        return True


class Telemetry:
    """Log lines and counters of one process. `form` is the setting `log`."""

    def __init__(self, form: str) -> None:
        self.counts: Counter[str] = Counter()
        self._logger = logging.getLogger(LOGGER)
        self._log = structlog.wrap_logger(
            self._logger,
            wrapper_class=structlog.stdlib.BoundLogger,
            processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        )
        self._said: set[str] = set()
        self._guard = Guard(self)
        self._lock = threading.Lock()
        if form != "host":
            self._own_handler(form)

    def _own_handler(self, form: str) -> None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s") if form == "line" else _JsonFormatter())
        handler.name = LOGGER  # a second mount replaces it, so that no line comes twice
        for old in [h for h in self._logger.handlers if h.name == LOGGER]:
            self._logger.removeHandler(old)
        self._logger.addHandler(handler)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False

    def check_visible(self) -> None:
        """Warn once when INFO lines reach no handler: a plain uvicorn application drops them."""
        if not self._logger.isEnabledFor(logging.INFO) or not _handles_info(self._logger):
            self.warn(
                "log_invisible",
                "[PREFIX] warning: INFO lines of the logger 'prefix_middleware' reach no handler: "
                "set PREFIX_LOG=line (or json), or configure logging in the host",
            )

    def decided(self, decision: Decision) -> None:
        """Log one routed request."""
        self.counts["decisions"] += 1
        self.counts[f"decisions.{decision.reason}"] += 1
        with self.guarded():
            if self._logger.isEnabledFor(logging.INFO):
                safe = replace(decision, model=shown(decision.model))
                self._log.info(line(safe), **asdict(safe))

    def skipped(self, reason: SkipReason) -> None:
        """Count a request that passes unrouted; never logged."""
        self.counts["skips"] += 1
        self.counts[f"skips.{reason}"] += 1

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter."""
        self.counts[name] += n

    def state(self, event: str, message: str, *, bad: bool, **fields: Any) -> None:
        """Log a change of state, such as a worker's readiness or the mirror's connection."""
        self.counts[event] += 1
        with self.guarded():
            level = logging.WARNING if bad else logging.INFO
            self._log.log(level, one_line(f"[PREFIX] {message}"), **_clean(fields))

    def warn(self, event: str, message: str, **fields: Any) -> None:
        """Log a warning once per process."""
        if self._first(event):
            with self.guarded():
                self._log.warning(one_line(message), **_clean(fields))

    def error(self, event: str, message: str, **fields: Any) -> None:
        """Log an error once per process."""
        if self._first(event):
            with self.guarded():
                self._log.error(one_line(message), **_clean(fields))

    def guarded(self) -> "Guard":
        """Keep a failure of ours inside a block."""
        return self._guard

    def failed(self, failure: Exception) -> None:
        """Count a failure of ours; its type and place are logged once, never its text."""
        place = traceback.extract_tb(failure.__traceback__)[-1]
        self.counts["errors"] += 1
        where = f"{type(failure).__name__} at {place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
        if self._first(f"error {where}"):
            with suppress(Exception):  # a broken handler of the host's: there is nobody to tell
                self._logger.error("[PREFIX] error: %s; this goes on without it", where)

    def _first(self, event: str) -> bool:
        self.counts[event] += 1
        with self._lock:
            if event in self._said:
                return False
            self._said.add(event)
            return True


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        entry = {"time": round(record.created, 3), "level": record.levelname, "event": record.getMessage()}
        return json.dumps(entry | fields, default=str)


def _clean(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: one_line(value) if isinstance(value, str) else value for name, value in fields.items()}


def _handles_info(logger: logging.Logger) -> bool:
    current: logging.Logger | None = logger
    while current is not None:
        if any(handler.level <= logging.INFO and _writes(handler) for handler in current.handlers):
            return True
        current = current.parent if current.propagate else None
    return False


def _writes(handler: logging.Handler) -> bool:
    return not isinstance(handler, logging.NullHandler)
