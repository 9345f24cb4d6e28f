"""What an operator is told once: settings that are likely not what was meant, and a place where no prompt passes."""

import os
import socket
import sys
from typing import Final

from blake3 import blake3

from prefix_middleware.settings import Settings, unknown_variables
from prefix_middleware.telemetry import Telemetry, shown

ENOUGH_POSTS: Final = 100

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


class Inert:
    """Tells, once, that requests come and no prompt is among them: mounted beside the application that serves them."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._posts = 0

    def passed(self, method: object) -> None:
        """Note a request that is on none of our paths; only a POST could have been meant for one."""
        self._posts += method == "POST"
        counts = self._telemetry.counts
        no_prompt = not counts["decisions"] and counts["skips"] == counts["skips.path"]
        if self._posts == ENOUGH_POSTS and no_prompt:
            text = f"{ENOUGH_POSTS} POST requests came and none was a prompt: mount the middleware on the application"
            self._telemetry.warn("inert", f"[PREFIX] warning: {text} that serves them, or check PREFIX_PATHS")


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
