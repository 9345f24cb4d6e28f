"""Pairs of requests: is the second served from what the first left, by our hashes and by the engine? See docs/engine.md.

A pair's figures are "all" (of the shorter prompt), "part", "none", "skipped" (passed on unrouted), "refused" (HTTP 400, 404).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from prefix_middleware.core.canonical import Api
from tests.core.bodies import Json, encode

Shared = Literal["all", "part", "none", "skipped", "refused"]

BILLING: Final = "x-anthropic-billing-header: cc_version=2.1; cch="
SCHEMA: Final = {"type": "object", "properties": {"q": {"type": "string"}}}
SPLIT_WHY: Final = (
    "a template that prints `content` gets parts joined by a newline, one that goes through them does not"
)
MERGED_WHY: Final = "a template without the word 'developer' gets all system texts merged at the front"

PATHS: dict[Api, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
LIMITS: dict[Api, Json] = {
    "chat": {"max_tokens": 1},
    "completions": {"max_tokens": 1},
    "responses": {"max_output_tokens": 1},
    "messages": {"max_tokens": 1},
}
LONG = " ".join(f"{n}. The lamp of house {n} was lit before the tide turned." for n in range(40))
"""The text behind what differs: where that changes the prompt, nothing of this is found again."""


@dataclass(frozen=True)
class Request:
    """One request: its API, its body, and how the body is written down."""

    api: Api
    fields: Json
    written: Callable[[Json], bytes] = encode

    def body(self, salt: str) -> bytes:
        """Return the bytes to send; pairs with a salt of their own keep it."""
        given = {"model": "tiny", **LIMITS[self.api], "cache_salt": salt, **self.fields}
        return self.written(given)


@dataclass(frozen=True)
class Pair:
    """Two requests, sent one after the other, and what the second finds."""

    what: str
    first: Request
    second: Request
    ours: Shared
    engine: Shared
    why: str = field(default="", kw_only=True)  # they disagree, because of this

    @property
    def agree(self) -> bool:
        """Tell whether both figures are the same."""
        return self.ours == self.engine


def pair(what: str, first: Request, second: Request) -> Pair:
    """Return a pair that shares all."""
    return Pair(what, first, second, "all", "all")


def apart(what: str, first: Request, second: Request) -> Pair:
    """Return a pair that shares nothing."""
    return Pair(what, first, second, "none", "none")


def chat(*messages: Json, **fields: Any) -> Request:
    """Return a chat request that ends with the long text."""
    return Request("chat", {"messages": [*messages, {"role": "user", "content": LONG}], **fields})


def messages(*turns: Json, **fields: Any) -> Request:
    """Return an Anthropic request that ends with the long text."""
    return Request("messages", {"messages": [*turns, {"role": "user", "content": LONG}], **fields})


def responses(*items: Json, **fields: Any) -> Request:
    """Return a Responses request that ends with the long text."""
    last = {"type": "message", "role": "user", "content": LONG}
    return Request("responses", {"input": [*items, last], **fields})


def written(request: Request, how: Callable[[Json], bytes]) -> Request:
    """Return the same request with its body written another way."""
    return Request(request.api, request.fields, how)


def indented(body: Json) -> bytes:
    """Write with white space, keys in the order given."""
    return json.dumps(body, indent=4).encode()


def reversed_keys(body: Json) -> bytes:
    """Write with the keys of every object the other way round."""
    return json.dumps(_reversed(body)).encode()


def literal(body: Json) -> bytes:
    """Write characters themselves instead of escapes."""
    return json.dumps(body, ensure_ascii=False).encode()


def _reversed(value: object) -> object:
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(value)}
    return [_reversed(item) for item in value] if isinstance(value, list) else value
