"""What happens to a request, in order: header off, hold the body, read the prompt, route, header on, call the host."""

from starlette.types import ASGIApp, Receive, Scope, Send

from prefix_middleware.body import hold_body
from prefix_middleware.exchange import SCOPE_KEY, take_header_off
from prefix_middleware.runtime import Runtime
from prefix_middleware.settings import Settings


class PrefixMiddleware:
    """Mount with `app.add_middleware(PrefixMiddleware)`; without `settings`, PREFIX_* variables are read.

    Construction never raises: a wrong environment ends the server's start with one line, or, where there is no lifespan,
    is logged while requests pass. `Settings(...)` in code raises `SettingsError` by itself.
    """

    def __init__(self, app: ASGIApp, settings: Settings | None = None) -> None:
        self.app = app
        self._runtime = Runtime(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route one request; every other scope passes as it is."""
        runtime = self._runtime
        if scope["type"] == "lifespan":
            await runtime.lifespan(self.app, scope, receive, send)
            return
        mounted_twice = SCOPE_KEY in scope  # the outer one has routed
        if scope["type"] not in ("http", "websocket") or mounted_twice:
            await self.app(scope, receive, send)
            return
        take_header_off(scope, runtime.header)
        waiting = runtime.waiting_exchange(scope)
        if waiting is not None:  # a carrier reads the prompt when it leaves the host
            runtime.ensure_started()
            waiting.mark(scope, runtime.header)
            with waiting.open():
                await self.app(scope, receive, waiting.watch(send))
            return
        api = runtime.api_for(scope)
        if api is None:
            await self.app(scope, receive, send)
            return
        runtime.ensure_started()
        body = await hold_body(scope, receive, runtime.max_body_bytes, runtime.buffered)
        try:
            prompt = await runtime.read_prompt(api, scope, body)
            exchange = runtime.route(prompt)
            exchange.mark(scope, runtime.header)
            with exchange.open():
                await self.app(scope, exchange.listen(body.receive), exchange.watch(send))
        finally:
            body.release()
