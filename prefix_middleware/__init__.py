"""Send each prompt to the vLLM worker that already holds its prefix: `app.add_middleware(PrefixMiddleware)`."""

from prefix_middleware.core.choose import Decision
from prefix_middleware.core.workers import Worker
from prefix_middleware.middleware import PrefixMiddleware
from prefix_middleware.settings import Settings, SettingsError

__version__ = "0.1.0"

__all__ = ["Decision", "PrefixMiddleware", "Settings", "SettingsError", "Worker"]
