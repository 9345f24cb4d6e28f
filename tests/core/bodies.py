"""Request bodies and canonical prompts, short to write in a test."""

import json
from random import Random
from typing import Any

from prefix_middleware.core.blocks import HashedPrompt, Hasher
from prefix_middleware.core.canonical import Api, CanonicalPrompt, Skip, canonical_prompt

Json = dict[str, Any]


def encode(request: object) -> bytes:
    """Return a request as most clients send it."""
    return json.dumps(request).encode()


def read(api: Api, request: object) -> CanonicalPrompt | Skip:
    """Return what the product makes of a request."""
    return canonical_prompt(api, encode(request))


def prompt_of(api: Api, request: object, *front: str) -> CanonicalPrompt:
    """Return the canonical prompt of a request that has one."""
    prompt = canonical_prompt(api, encode(request), front)
    assert isinstance(prompt, CanonicalPrompt), prompt
    return prompt


def chat(*messages: Json, **fields: Any) -> Json:
    """Return a chat request."""
    return {"model": "m", "messages": list(messages), **fields}


def user(content: Any = "hi", **fields: Any) -> Json:
    """Return a user message."""
    return {"role": "user", "content": content, **fields}


def assistant(content: Any = "yes", **fields: Any) -> Json:
    """Return an assistant message."""
    return {"role": "assistant", "content": content, **fields}


def system(content: Any = "be brief") -> Json:
    """Return a system message."""
    return {"role": "system", "content": content}


def call(name: str, arguments: Any) -> Json:
    """Return one entry of `tool_calls`."""
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def text(value: str, **fields: Any) -> Json:
    """Return a text part."""
    return {"type": "text", "text": value, **fields}


def tool(name: str = "f", **fields: Any) -> Json:
    """Return a tool of the chat API."""
    return {"type": "function", "function": {"name": name, **fields}}


def image(url: str) -> Json:
    """Return an image part of the chat API."""
    return {"type": "image_url", "image_url": {"url": url}}


def words(rng: Random, length: int) -> str:
    """Return so many characters that nobody else has."""
    return rng.randbytes(length // 2 + 1).hex()[:length]


HASHER = Hasher(None, 1024 * 1024)


def hashed(content: str) -> HashedPrompt:
    """Return the hashed prompt of a chat with one user message."""
    return HASHER.hash(prompt_of("chat", chat(user(content))))
