"""A worker's counters as a test lets them grow, and what it would say of itself."""

from typing import Any

from prefix_middleware.core.facts import EngineFacts, Facts
from prefix_middleware.core.knowledge import Observed
from prefix_middleware.core.router import Router
from tests.core.routing import NOW


class Engine:
    """One worker whose engine has the given cache; `answer` counts as vLLM does."""

    def __init__(self, start_time: float | None = 1.0, **cache: Any) -> None:
        self.start_time = start_time
        self.cache: dict[str, Any] = {"engine": "0", "model": "m", "caching": True, "block_size": 16} | cache
        self.requests = self.prompt_tokens = self.queried_tokens = self.hit_tokens = 0

    def answer(self, prompt_tokens: int, hit_tokens: int = 0, requests: int = 1) -> None:
        """Count requests in full."""
        self.requests += requests
        self.prompt_tokens += prompt_tokens
        self.queried_tokens += prompt_tokens
        self.hit_tokens += hit_tokens

    def facts(self, **more: Any) -> Facts:
        """Return what it says now."""
        figures: dict[str, Any] = {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "queried_tokens": self.queried_tokens,
            "hit_tokens": self.hit_tokens,
        }
        return Facts(self.start_time, (EngineFacts(**(self.cache | figures | more)),))

    def tell(
        self, router: Router, now: float = NOW, refused_at: float | None = None, **more: Any
    ) -> Observed:
        """Let a router hear it, and its own notices come back as they do from a mirror."""
        observed = router.observe("w1", self.facts(**more), refused_at, now, 5000.0 + now)
        if observed.notice is not None:
            router.merge("me", [observed.notice], 0.0, now)
        return observed
