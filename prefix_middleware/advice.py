"""What an operator is told once, when the middleware starts: settings that are likely not what was meant."""

import os
import socket
import sys
from typing import Final

from blake3 import blake3

from prefix_middleware.settings import Settings, unknown_variables
from prefix_middleware.telemetry import Telemetry, shown

_MODES: Final = {"shadow": "decisions are logged, no header is set", "off": "nothing is routed"}


def advise(settings: Settings, telemetry: Telemetry, *, from_env: bool) -> None:
    """Warn of what may surprise."""
    telemetry.check_visible()
    unknown = unknown_variables(os.environ) if from_env else []
    if unknown:
        names = ", ".join(map(shown, unknown))
        telemetry.warn("unknown_variables", f"[PREFIX] warning: no setting reads {names}")
    if settings.mode != "on":
        telemetry.warn("mode", f"[PREFIX] warning: mode {settings.mode}: {_MODES[settings.mode]}")
    if not settings.workers:
        telemetry.warn(
            "no_workers", "[PREFIX] warning: PREFIX_WORKERS names no workers; requests pass unrouted"
        )
    if settings.redis_url and settings.secret is None:
        text = "without PREFIX_SECRET whoever reads Redis can test guesses at prompts"
        telemetry.warn("no_secret", f"[PREFIX] warning: {text}")


class Claim:
    """This process's claim to be the only one of this machine that routes to some workers without a mirror.

    A name in Linux's abstract socket namespace: the kernel frees it when its process ends. Elsewhere nothing can be said.
    """

    def __init__(self, settings: Settings) -> None:
        workers = " ".join(sorted(f"{worker.id}={worker.url}" for worker in settings.workers))
        self._digest = blake3(f"{settings.fleet} {workers}".encode()).hexdigest(12)
        self._needed = sys.platform == "linux" and bool(settings.workers) and settings.redis_url is None
        self._holder: socket.socket | None = None

    def take(self, telemetry: Telemetry) -> None:
        """Claim, or warn that another process has."""
        if not self._needed or self._holder is not None:
            return
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            holder.bind(f"\0prefix-middleware-{os.getuid()}-{self._digest}")
            self._holder = holder
        except OSError:
            holder.close()
            text = "several processes route to these workers and share nothing: set PREFIX_REDIS_URL"
            telemetry.warn("alone", f"[PREFIX] warning: {text}")

    def give_up(self) -> None:
        """Let another process claim."""
        if self._holder is not None:
            self._holder.close()
            self._holder = None
