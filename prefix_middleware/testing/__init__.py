"""Stand-ins for tests and demonstrations: a fake vLLM worker, a proxy for nginx, a clock set by hand."""

from prefix_middleware.testing.clock import FakeClock
from prefix_middleware.testing.vllm import FakeWorker

__all__ = ["FakeClock", "FakeWorker"]
