"""What the fake worker reads, leniently, from a body of the four APIs: the prompt as text, and options."""

import json
from dataclasses import dataclass
from typing import Any, Literal

Api = Literal["chat", "completions", "responses", "messages"]

APIS: dict[str, Api] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request as the worker understands it."""

    api: Api
    model: str
    namespace: str  # texts of different namespaces share no blocks
    text: bytes
    max_tokens: int
    stream: bool
    include_usage: bool


def read_prompt(api: Api, raw: bytes, default_model: str) -> Prompt:
    """Return the prompt in a request body; raises ValueError when it is not a JSON object."""
    body = json.loads(raw)
    if not isinstance(body, dict):
        raise ValueError("the request body must be a JSON object")
    model = str(body.get("model") or default_model)
    options = body.get("stream_options")
    return Prompt(
        api=api,
        model=model,
        namespace=f"{model}\n{body.get('cache_salt') or ''}",
        text=_text(api, body).encode("utf-8", "surrogatepass"),
        max_tokens=_max_tokens(body),
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _max_tokens(body: dict[str, Any]) -> int:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = body.get(name)
        if isinstance(value, int) and value > 0:
            return value
    return 16


def _text(api: Api, body: dict[str, Any]) -> str:
    if api == "completions":
        return _completion_text(body.get("prompt"))
    front = [json.dumps(body["tools"])] if body.get("tools") else []
    first = body.get("instructions") if api == "responses" else body.get("system")
    if first:
        front.append(_message({"role": "system", "content": first}))
    turns = body.get("input") if api == "responses" else body.get("messages")
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    messages = [_message(turn) for turn in turns or [] if isinstance(turn, dict)]
    return "".join([*front, *messages, "<|im_start|>assistant\n"])


def _message(message: dict[str, Any]) -> str:
    calls = message.get("tool_calls")
    content = _content(message.get("content")) + (json.dumps(calls) if calls else "")
    return f"<|im_start|>{message.get('role', 'user')}\n{content}<|im_end|>\n"


def _content(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(_part(part) for part in parts)


def _part(part: object) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return json.dumps(part)


def _completion_text(prompt: object) -> str:
    if isinstance(prompt, list) and all(isinstance(item, int) for item in prompt):
        return "".join(f"{token % 10_000:04d}" for token in prompt)  # one token each, at 4 bytes a token
    return "".join(map(_content, prompt)) if isinstance(prompt, list) else _content(prompt)
