"""One attempt of LiteLLM's to call a deployment: what its keyword arguments and its answer say, in our own words."""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import finalize

import litellm  # type: ignore[import-not-found]  # the user's own; no dependency of ours
from starlette.types import Message

from prefix_middleware.carry.context import Hop
from prefix_middleware.core.canonical import ARGUMENTS
from prefix_middleware.exchange import Exchange

LIMIT_SECONDS: Final = 3600.0
"""An attempt that nothing has ended by then is counted out."""

_PATHS: Final = {
    "acompletion": "/v1/chat/completions",
    "atext_completion": "/v1/completions",
    "aresponses": "/v1/responses",
    "anthropic_messages": "/v1/messages",
}
_FIELDS: Final = (
    *("messages", "tools", "prompt", "input", "instructions", "system", "chat_template_kwargs", *ARGUMENTS),
    *("cache_salt", "truncate_prompt_tokens", "prompt_logprobs", "prompt_logprob_token_ids", "echo"),
    *("previous_response_id", "conversation", "max_tokens", "max_completion_tokens", "max_output_tokens"),
)
_SERVED: Final = "x-prefix-served"
_MOST_TOKENS: Final = 100_000  # of one answer that are believed


class Call:
    """One attempt of LiteLLM's: its exchange, which reads the answer as an event stream of one event a token."""

    def __init__(self, exchange: Exchange, request: object, *, streams: bool) -> None:
        loop = asyncio.get_running_loop()
        self.exchange = exchange
        self.streams = streams
        self.watched = False  # its stream passes through our iterator, which sees every end
        self._note = exchange.watch(_nowhere)
        self._limit = loop.call_later(LIMIT_SECONDS, self.end)
        self._forgotten = finalize(request, _later, loop, self.end)
        self._forgotten.atexit = False
        self._task = asyncio.current_task()
        if self._task is not None:
            self._task.add_done_callback(self._task_ended)

    @property
    def alive(self) -> bool:
        """Whether the attempt still counts."""
        return self.exchange.alive

    async def begin(self, served: str | None) -> None:
        """Note the first piece of a good answer, and by which worker it was served where that is known."""
        self.exchange.served(served, 200)
        kind = (b"content-type", b"text/event-stream")
        await self._note({"type": "http.response.start", "status": 200, "headers": [kind]})
        await self._note({"type": "http.response.body", "body": b"data:", "more_body": True})

    async def complete(self, tokens: int) -> None:
        """Note that the answer is over after so many tokens."""
        rest = b"data:" * (min(tokens, _MOST_TOKENS) - 1)
        await self._note({"type": "http.response.body", "body": rest, "more_body": False})
        self.end()

    def failed(self, error: object) -> None:
        """Count a failure; only one that came as an answer says something about a worker."""
        headers = getattr(error, "litellm_response_headers", None)
        status = getattr(error, "status_code", None)
        if headers and isinstance(status, int):
            self.exchange.served(_header(headers, _SERVED), status)
        self.end()

    def end(self) -> None:
        """Count the attempt out; only the first call counts."""
        self._limit.cancel()
        self._forgotten.detach()
        if self._task is not None:  # one task may make many calls
            self._task.remove_done_callback(self._task_ended)
        self.exchange.finish()

    def _task_ended(self, task: "asyncio.Task[Any]") -> None:
        if not self.streams or task.cancelled():  # a stream goes on when the task that has opened it ends
            self.end()


def _later(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    """Do it outside the garbage collection, where the router's lock may be held."""
    with suppress(RuntimeError):  # the loop has closed
        loop.call_soon_threadsafe(work)


async def _nowhere(_message: Message) -> None:
    """Send for an answer that LiteLLM itself delivers."""


def path_of(hop: Hop | None, kwargs: Mapping[str, Any], kind: object) -> str | None:
    """Return where LiteLLM will post the call; None for a kind without a prompt, or another upstream."""
    path = _PATHS.get(str(kind))
    url = urlsplit(str(kwargs.get("api_base") or kwargs.get("base_url") or ""))
    if path is None or hop is None or not hop.leads(url.scheme, url.hostname or "", url.port, url.path):
        return None
    return url.path.rstrip("/").removesuffix("/v1") + path


def body_of(kwargs: Mapping[str, Any], front_fields: tuple[str, ...]) -> bytes:
    """Build what says which prompt it is, as LiteLLM will send it; `extra_body` goes over the rest."""
    given = {**kwargs, **(kwargs.get("extra_body") or {})}
    body = {name: given[name] for name in (*_FIELDS, *front_fields) if given.get(name) is not None}
    provider, base = kwargs.get("custom_llm_provider"), kwargs.get("api_base")
    body["model"] = litellm.get_llm_provider(kwargs["model"], provider, base)[0]
    return json.dumps(body, default=_plain).encode()  # the stdlib's: lone surrogates pass


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if hasattr(value, "model_dump") else list(value)


def tenant_of(kwargs: Mapping[str, Any], name: str | None) -> list[tuple[bytes, bytes]]:
    """Return the client's value of the header that separates tenants, as headers of an ASGI scope."""
    sent = (kwargs.get("proxy_server_request") or {}).get("headers") or {}
    value = None if name is None else _header(sent, name.lower())
    return [] if name is None or value is None else [(name.lower().encode(), value.encode())]


def _header(headers: Mapping[str, Any], name: str) -> str | None:
    return next((str(value) for key, value in headers.items() if str(key).lower() == name), None)


def without(headers: Any, header: str) -> Any:
    """Return headers without any copy of one, the form with underscores included."""
    if not isinstance(headers, Mapping):
        return headers
    name = header.lower()
    return {key: value for key, value in headers.items() if str(key).lower().replace("_", "-") != name}


def served_of(response: Any) -> str | None:
    """Return the worker that nginx says has served; None where LiteLLM does not keep the answer's headers."""
    hidden = _get(response, "_hidden_params")
    return _header(_get(hidden, "additional_headers") or {}, f"llm_provider-{_SERVED}")


def output_tokens_of(response: Any) -> int:
    """Return the length of a whole answer in tokens, 1 where it does not say."""
    usage = _get(response, "usage")
    tokens = _get(usage, "completion_tokens") or _get(usage, "output_tokens")
    return tokens if isinstance(tokens, int) else 1


def _get(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, dict) else getattr(of, name, None)
