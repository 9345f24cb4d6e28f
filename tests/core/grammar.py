"""A second reading of the canonical form: bytes back to a structure, and a request to that structure on another way."""

import json
import re
from collections.abc import Iterator
from typing import Any

from blake3 import blake3

Json = dict[str, Any]
Structure = list[tuple[Any, ...]]

_PIECES = re.compile(rb"([\xf8-\xff])([^\xf8-\xff]*)")
_NAMES = dict(zip(range(0xF8, 0x100), "argument value tool role text media call think".split(), strict=True))
_PIECE_COUNT = {"argument": 1, "tool": 3, "media": 1, "call": 1, "text": 0, "think": 0}


def typed(value: object) -> object:
    """Return JSON as nested tuples in which key order and types count: True, 1 and 1.0 differ."""
    if isinstance(value, dict):
        return ("object", *((key, typed(item)) for key, item in value.items()))
    if isinstance(value, list):
        return ("array", *map(typed, value))
    return type(value).__name__, repr(value) if isinstance(value, float) else value


def parse(data: bytes) -> Structure:
    """Read canonical bytes back; the result is a function of the bytes alone."""
    pieces = [(_NAMES[tag[0]], _text(body)) for tag, body in _PIECES.findall(data)]
    assert b"".join(tag + body for tag, body in _PIECES.findall(data)) == data
    return [tuple(_typed(entry)) for entry in _entries(pieces)]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _entries(pieces: list[tuple[str, str]]) -> Iterator[list[str]]:
    at = 0
    while at < len(pieces):
        kind, first = pieces[at]
        values = at + 1
        while values < len(pieces) and pieces[values][0] == "value":
            values += 1
        found = [body for _, body in pieces[at + 1 : values]]
        if kind == "text" and found:
            assert first == ""
            kind = "other"
        elif kind == "role":
            assert len(found) < 2
        else:
            assert len(found) == _PIECE_COUNT[kind]
        yield [kind, *([] if kind == "other" else [first]), *found]
        at = values


def _typed(entry: list[str]) -> Iterator[object]:
    plain = {"argument": 2, "tool": 3, "call": 2, "other": 1}.get(entry[0], len(entry))
    yield from entry[:plain]
    yield from (typed(json.loads(text)) for text in entry[plain:])


def normalise_chat(request: Json) -> Structure:
    """Return the structure that a chat request should have, from the rules and not from the writer."""
    kwargs = request.get("chat_template_kwargs") or {}
    tail = {"enable_thinking", "thinking", "thinking_budget", "reasoning_effort", "add_generation_prompt"}
    front = {name: value for name, value in kwargs.items() if name not in tail}
    front |= {name: request[name] for name in ("documents", "chat_template") if name in request}
    arguments = [("argument", n, typed(v)) for n, v in sorted(front.items()) if v is not None]
    tools = [_tool(tool["function"]) for tool in request.get("tools") or []]
    return [*arguments, *tools, *(entry for message in request["messages"] for entry in _message(message))]


def normalise_messages(request: Json) -> Structure:
    """Return the structure that an Anthropic request should have."""
    system = request.get("system") or ""
    if isinstance(system, list):
        system = "".join(block["text"] for block in system)
    tools = [_tool(tool, "input_schema") for tool in request.get("tools") or []]
    first: Structure = [("role", "system"), ("text", system)] if system else []
    return [*tools, *first, *(entry for turn in request["messages"] for entry in _turn(turn))]


def _turn(turn: Json) -> Iterator[tuple[Any, ...]]:
    blocks = turn["content"]
    if isinstance(blocks, str):
        yield from _message(turn)
        return
    rest = [block for block in blocks if block["type"] != "tool_result"]
    for block in blocks:
        if block["type"] == "tool_result":
            yield from _message({"role": "tool", "content": block.get("content")})
    if rest or not blocks:
        yield from _message({"role": turn["role"], "content": rest})


def normalise_responses(request: Json) -> Structure:
    """Return the structure that a Responses request should have."""
    tools = [_tool({k: v for k, v in tool.items() if k != "type"}) for tool in request.get("tools") or []]
    said = request["input"]
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    if request.get("instructions"):
        items = [{"role": "system", "content": request["instructions"]}, *items]
    return [*tools, *(entry for item in items for entry in _item(item))]


def _item(item: Json) -> Iterator[tuple[Any, ...]]:
    kind = item.get("type", "message")
    if kind == "message":
        yield from _message({"role": item["role"], "content": item["content"]})
    elif kind == "function_call":
        yield "role", "assistant"
        yield "call", item["name"], _arguments(item["arguments"])
    elif kind == "function_call_output":
        yield from _message({"role": "tool", "content": item["output"]})
    elif kind == "reasoning":
        yield "role", "assistant"
        yield from (("think", t["text"]) for t in item.get("content") or item["summary"] if t["text"])
    else:
        yield "role", kind
        rest = {k: v for k, v in item.items() if k not in ("id", "status", "type") and v is not None}
        yield "other", typed(rest)


def normalise_completion(request: Json) -> Structure:
    """Return the structure that a completion of text should have."""
    prompt = request["prompt"]
    return [("text", prompt if isinstance(prompt, str) else prompt[0])]


def _tool(function: Json, schema: str = "parameters") -> tuple[Any, ...]:
    declared = ("name", "description", schema, "cache_control")
    extras = {k: v for k, v in function.items() if k not in declared and v is not None}
    head = function["name"], function.get("description") or ""
    return "tool", *head, typed(function.get(schema)), typed(extras)


def _message(message: Json) -> Iterator[tuple[Any, ...]]:
    yield ("role", message["role"], message["name"]) if message.get("name") else ("role", message["role"])
    if reasoning := message.get("reasoning") or message.get("reasoning_content"):
        yield "think", reasoning
    content = message.get("content") or []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = [part for part in parts if part["type"] != "redacted_thinking"]
    if len(parts) > 1 or (parts and parts[0].get("text") != ""):
        yield from (entry for part in parts for entry in _part(part))
    for call in message.get("tool_calls") or []:
        yield "call", call["function"]["name"], _arguments(call["function"]["arguments"])


def _part(part: Json) -> Iterator[tuple[Any, ...]]:
    part = {key: value for key, value in part.items() if key != "cache_control"}
    kind = part["type"]
    if kind in ("text", "input_text", "output_text"):
        yield "text", part["text"]
    elif kind == "thinking":
        yield from [("think", part["thinking"])] if part["thinking"] else []
    elif kind == "tool_use":
        yield "call", part["name"], typed(part["input"])
    elif kind in ("image_url", "image", "input_image"):
        value = json.dumps(part, separators=(",", ":"), ensure_ascii=False)
        yield "media", kind, blake3(value.encode("utf-8", "surrogatepass")).hexdigest(16)
    else:
        yield "other", typed(part)


def _arguments(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return typed(value if isinstance(value, dict) else {})
