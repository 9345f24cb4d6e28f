"""LiteLLM's own way in: `litellm_settings: {callbacks: ["prefix_middleware.litellm.handler"]}`, without mount and carrier.

1. The hook runs behind LiteLLM's auth and aliases, once per attempt, and sees the deployment's address and prompt.
2. The first hook that tells of an attempt's end counts it out. One that no hook tells of ends with its task or with
   LiteLLM's object for the request, and after an hour in any case.
3. A client's copy of the header is taken off every call, routed or not. Nothing of ours is raised.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from litellm.integrations.custom_logger import CustomLogger  # type: ignore[import-not-found]
from starlette.types import Message, Receive, Scope

from prefix_middleware.body import hold_body
from prefix_middleware.carry.context import Hop, current
from prefix_middleware.exchange import Exchange
from prefix_middleware.litellm_call import (
    Call,
    body_of,
    output_tokens_of,
    path_of,
    served_of,
    tenant_of,
    without,
)
from prefix_middleware.runtime import Runtime
from prefix_middleware.settings import Settings, SettingsError


class PrefixCallback(CustomLogger):  # type: ignore[misc]
    """Routes the calls of one LiteLLM process to deployments under `PREFIX_UPSTREAM_URL`; settings from PREFIX_*."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: WeakKeyDictionary[Any, Call] = WeakKeyDictionary()  # by LiteLLM's object for the request
        self._by_id: WeakValueDictionary[str, Call] = WeakValueDictionary()
        self._started: Runtime | None = None
        self._hop: Hop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def runtime(self) -> Runtime:
        """The process's runtime; made on first use, when LiteLLM has read its own configuration."""
        if self._started is None:
            self._started = self._made()
        return self._started

    def _made(self) -> Runtime:
        try:
            settings = Settings.from_env()
        except SettingsError as error:
            runtime = Runtime(None)
            runtime.telemetry.error("settings", f"[PREFIX] error: {error}; requests pass unrouted")
            return runtime
        if settings.upstream_url is not None:
            self._hop = Hop.of(settings.upstream_url, settings.header, settings.paths)
        # LiteLLM itself carries the header: a carrier on the same hop would take it off again
        runtime = Runtime(replace(settings, upstream_url=None, decide="ingress"))
        if self._hop is None:
            text = "the LiteLLM callback routes nothing: PREFIX_UPSTREAM_URL names no nginx"
            runtime.telemetry.warn("no_upstream", f"[PREFIX] warning: {text}")
        return runtime

    async def async_pre_call_deployment_hook(
        self, kwargs: dict[str, Any], call_type: Any
    ) -> dict[str, Any] | None:
        """Take the header off what a client has sent, and set it for a deployment behind nginx."""
        runtime = self.runtime
        header, mounted = runtime.settings.header, current.get()
        routed = mounted is not None and mounted.alive  # the application is wrapped as well
        # a client may have filled either; behind a mount the first has, if any, the mount's own header
        names = ("extra_headers",) if routed else ("headers", "extra_headers")
        changed = kwargs | {name: without(kwargs[name], header) for name in names if kwargs.get(name)}
        if routed:
            return changed
        with runtime.telemetry.guarded():
            call = await self._call(runtime, kwargs, getattr(call_type, "value", call_type))
            if call is not None and call.exchange.worker is not None:
                own = {header: call.exchange.worker}
                changed["extra_headers"] = (changed.get("extra_headers") or {}) | own
                call.exchange.injected()
        return changed

    async def _call(self, runtime: Runtime, kwargs: dict[str, Any], kind: object) -> Call | None:
        request, path = kwargs.get("litellm_logging_obj"), path_of(self._hop, kwargs, kind)
        if request is None or path is None or not self._on_own_loop():
            return None
        call = self._calls.get(request)
        if call is not None and call.alive:  # /v1/messages comes by twice: as itself, and as what it becomes
            return call
        headers = tenant_of(kwargs, runtime.settings.tenant_header)
        scope: Scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        exchange = await _exchange(runtime, scope, kwargs)
        if exchange is None:
            return None
        call = self._calls[request] = Call(exchange, request, streams=bool(kwargs.get("stream")))
        self._by_id[str(kwargs.get("litellm_call_id"))] = call
        return call

    def _on_own_loop(self) -> bool:
        loop = asyncio.get_running_loop()  # LiteLLM runs some calls on short-lived loops of their own
        if self._loop is None or self._loop.is_closed():
            self._loop = loop
        return self._loop is loop

    def _of(self, request_data: Mapping[str, Any]) -> Call | None:
        request = request_data.get("litellm_logging_obj")
        call = None if request is None else self._calls.get(request)
        return call if call is not None and call.alive else None

    async def async_post_call_success_deployment_hook(
        self, request_data: dict[str, Any], response: Any, *_: Any
    ) -> None:
        """Count out an answer that came as a whole."""
        with self.runtime.telemetry.guarded():
            call = self._of(request_data)
            if call is not None and not call.streams:
                await call.begin(served_of(response))
                await call.complete(output_tokens_of(response))

    async def async_post_call_failure_deployment_hook(
        self,
        request_data: Mapping[str, Any],
        exception: Exception,
        *_: Any,
        **__: Any,
    ) -> None:
        """Count out a failed attempt; a retry is routed anew."""
        with self.runtime.telemetry.guarded():
            call = self._of(request_data)
            if call is not None:
                call.failed(exception)

    async def async_post_call_streaming_iterator_hook(
        self, *_: Any, response: Any, request_data: dict[str, Any], **__: Any
    ) -> AsyncIterator[Any]:
        """Pass a stream on as it is; note its first piece and its end, however it ends."""
        call, pieces = self._of(request_data), 0
        if call is not None:
            call.watched = True
        try:
            async for piece in response:
                pieces += 1
                if pieces == 1 and call is not None:
                    with self.runtime.telemetry.guarded():
                        await call.begin(served_of(response))
                yield piece
        finally:
            if call is not None:
                with self.runtime.telemetry.guarded():
                    await call.complete(pieces)

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, *_: Any, **__: Any
    ) -> None:
        """Count out a stream of LiteLLM's SDK, which no other hook sees."""
        with self.runtime.telemetry.guarded():
            call = self._by_id.get(str(kwargs.get("litellm_call_id")))
            if call is not None and call.alive and not call.watched:
                await call.begin(served_of(response_obj))
                await call.complete(output_tokens_of(response_obj))

    async def async_log_failure_event(self, kwargs: dict[str, Any], *_: Any, **__: Any) -> None:
        """Count out a failed attempt where no other hook has."""
        with self.runtime.telemetry.guarded():
            call = self._by_id.get(str(kwargs.get("litellm_call_id")))
            if call is not None and call.alive and not call.watched:
                call.failed(kwargs.get("exception"))


async def _exchange(runtime: Runtime, scope: Scope, kwargs: dict[str, Any]) -> Exchange | None:
    api = runtime.api_for(scope)
    if api is None:
        return None
    runtime.ensure_started()
    receive = _receive_once(body_of(kwargs, runtime.settings.front_fields))
    body = await hold_body(scope, receive, runtime.max_body_bytes, runtime.buffered)
    try:
        return runtime.route(await runtime.read_prompt(api, scope, body))
    finally:
        body.release()


def _receive_once(body: bytes) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


handler = PrefixCallback()
