"""Tells, once, that decisions are made and never carried, or that nobody says who served or serves what was chosen."""

from collections import Counter
from collections.abc import Callable
from typing import Final

ENOUGH: Final = 20  # answered requests; refused ones, by the host's own auth for example, do not count


class CarryCheck:
    """Compares what was decided, injected and echoed by one middleware; `warn` takes an event and a message."""

    def __init__(
        self, upstream_url: str, counts: Counter[str], warn: Callable[[str, str], None], *, egress: bool
    ) -> None:
        self.outside = False  # a prompt took the hop from outside any request
        self.elsewhere: str | None = None  # an origin that a prompt was sent to instead
        self._url = upstream_url
        self._counts = counts
        self._warn = warn
        self._egress = egress
        self._over = 0

    def over(self) -> None:
        """One request that should have been carried has been answered with a 2xx and is over."""
        self._over += 1
        if self._over % ENOUGH:
            return
        if not self._counts["injections"]:
            text = f"{self._over} requests were answered and none carried its decision to {self._url}"
            self._warn("never_carried", f"[PREFIX] warning: {text}: {self._likely_fix()}")
        elif self._counts["injections"] >= ENOUGH and not self._counts["echoes"]:
            text = f"no answer of {self._url} says X-Prefix-Served, so nobody knows who serves"
            fix = "it should be nginx with what `prefix-middleware nginx` renders"
            self._warn("never_echoed", f"[PREFIX] warning: {text}: {fix}")
        elif self._counts["echoes"] >= ENOUGH and 2 * self._counts["echoes.chosen"] < self._counts["echoes"]:
            followed, echoes = self._counts["echoes.chosen"], self._counts["echoes"]
            text = f"{followed} of {echoes} prompts were served by the worker that {self._url} was told"
            fix = "nginx must be rendered with the ids of PREFIX_WORKERS and with the same header"
            self._warn("rarely_followed", f"[PREFIX] warning: {text}: {fix}")

    def _likely_fix(self) -> str:
        if self.outside and not self._egress:
            return "its prompts leave from a thread pool or a queue that no request follows: set PREFIX_DECIDE=egress"
        if self.elsewhere is not None:
            return f"prompts are sent to {self.elsewhere} instead: set PREFIX_UPSTREAM_URL to where nginx is reached"
        return (
            "no httpx, httpx2, aiohttp or requests client of this process sends a prompt there: "
            "check PREFIX_UPSTREAM_URL and PREFIX_PATHS, or forward the inbound header"
        )
