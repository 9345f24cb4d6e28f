"""Exchanges that a carrier fills from the outgoing body (`decide="egress"`).

1. An inbound request opens one empty. The first prompt that leaves the host in it fills it; the host's answer starts and
   finishes it.
2. A prompt that leaves as a second one, or outside any live request, has one of its own: it starts with the hop's 2xx and
   finishes when the response is closed or collected.
"""

import threading
from collections.abc import Callable
from typing import Any

from starlette.types import Message, Scope, Send

from prefix_middleware.core.choose import Decision
from prefix_middleware.exchange import SCOPE_KEY, Exchange, RoutedExchange


class WaitingExchange(Exchange):
    """An inbound request until, and after, its prompt leaves the host. `tenant` is the namespace's."""

    def __init__(self, tenant: str, *, expected: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.tenant = tenant
        self._expected = expected  # told when it is answered and nothing has left
        self._scope: Scope = {}
        self._claim = threading.Lock()  # the host may call from several threads
        self._filled: FilledExchange | None = None
        self._head: Message | None = None

    def mark(self, scope: Scope, header: bytes) -> None:
        """Keep the scope: the decision is left there once it is made."""
        self._scope = scope
        super().mark(scope, header)

    def claim(self) -> bool:
        """Tell whether the caller's prompt is the one that fills it; it must then call `fill` or `leave_empty`."""
        return self.alive and self._claim.acquire(blocking=False)

    def fill(self, filled: "FilledExchange") -> None:
        """Become a routed request."""
        self._show(filled.decision)
        if self._head is not None:  # a streaming answer starts before its generator calls the hop
            filled.note(self._head)
        self._filled = filled
        if not self.alive:  # it has ended meanwhile, in another thread
            filled.finish()

    def leave_empty(self, decision: Decision | None) -> None:
        """Wait for another prompt: this one is not routed, or has failed."""
        self._show(decision)
        self._filled = None
        self._claim.release()

    def _show(self, decision: Decision | None) -> None:
        if decision is not None:
            self.decision = self._scope[SCOPE_KEY] = decision

    def watch(self, send: Send) -> Send:
        """Return a `send` that notes the answer of the prompt that has left."""

        async def watched_send(message: Message) -> None:
            if message.get("type") == "http.response.start":
                self._head = message
            if self._filled is not None:
                self._filled.note(message)
            await send(message)

        return watched_send

    def finish(self) -> None:
        """Count the request out."""
        self.alive = False
        if self._filled is not None:
            self._filled.finish()
        elif self._expected is not None and self.decision is None and _succeeded(self._head):
            self._expected()


class FilledExchange(RoutedExchange):
    """A prompt that has left inside an inbound request."""

    def __init__(self, waiting: WaitingExchange, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting = waiting

    def served(self, worker: str | None, status: int) -> None:
        """Move the record to whoever served; a failure makes room for the host's next attempt."""
        super().served(worker, status)
        if not 200 <= status < 300:
            self.lost()

    def lost(self) -> None:
        """Make room for the host's next attempt."""
        if self.alive:
            self.finish()
            self._waiting.leave_empty(None)


class OwnExchange(RoutedExchange):
    """A prompt that no inbound request stands for; `defer` calls a function later, outside a garbage collection."""

    ends_with_response = True

    def __init__(self, defer: Callable[[Callable[[], None]], None], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._defer = defer

    def served(self, worker: str | None, status: int) -> None:
        """Move the record to whoever served, and start with a 2xx; anything else is the end."""
        super().served(worker, status)
        if 200 <= status < 300:
            self.start()
        else:
            self.finish()

    def lost(self) -> None:
        """Count the request out."""
        self.finish()

    def closed(self) -> None:
        """Count the request out."""
        self.finish()

    def collected(self) -> None:
        """Count the request out, later: the router's lock may be held where the collection runs."""
        self._defer(self.finish)


def _succeeded(head: Message | None) -> bool:
    status = None if head is None else head.get("status")
    return isinstance(status, int) and 200 <= status < 300
