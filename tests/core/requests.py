"""Hypothesis strategies for valid requests of the four APIs, and for what a client gets nearly right or wrong on purpose."""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from prefix_middleware.core.canonical import Api
from tests.core import strategies as some
from tests.core.bodies import Json

_CACHED = {"cache_control": st.just({"type": "ephemeral"})}


def _block(
    kind: str, optional: Json | None = None, **fields: st.SearchStrategy[Any]
) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields}, optional={**_CACHED, **(optional or {})})


_TEXT_BLOCK = _block("text", text=some.TEXTS)
_SOURCE = st.fixed_dictionaries({"type": st.just("base64"), "data": some.TEXTS})
_RESULT = _block("tool_result", {"content": st.none() | some.TEXTS | st.lists(_TEXT_BLOCK, max_size=2)},
                 tool_use_id=some.NAMES)  # fmt: skip
_BLOCKS = st.one_of(
    _TEXT_BLOCK,
    _block("image", source=_SOURCE),
    _block("tool_use", id=some.NAMES, name=some.TEXTS, input=some.OBJECTS),
    _RESULT,
    _block("thinking", thinking=some.TEXTS, signature=some.NAMES),
    _block("redacted_thinking", data=some.NAMES),
)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": some.TEXTS | st.lists(_BLOCKS, max_size=3)}
)
_ANTHROPIC_TOOLS = st.fixed_dictionaries(
    {"name": some.TEXTS},
    optional={"description": some.TEXTS, "input_schema": some.OBJECTS, "strict": st.booleans(), **_CACHED},
)
MESSAGES = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": st.lists(TURNS, min_size=1, max_size=3), "max_tokens": st.just(5)},
    optional={
        "system": some.TEXTS | st.lists(_TEXT_BLOCK, max_size=3),
        "tools": st.lists(_ANTHROPIC_TOOLS, max_size=2),
        "metadata": some.OBJECTS,
    },
)
"""Anthropic requests."""

_INPUTS = st.one_of(
    _block("input_text", text=some.TEXTS),
    _block("output_text", text=some.TEXTS, annotations=st.just([])),
    _block("input_image", image_url=some.TEXTS),
)
_SAID = some.TEXTS | st.lists(_INPUTS, max_size=3)
_IDS = {"id": some.NAMES, "status": st.just("completed")}
_THOUGHTS = st.lists(st.fixed_dictionaries({"text": some.TEXTS}), max_size=2)
ITEMS = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "developer"]), "content": _SAID},
                          optional={"type": st.just("message"), **_IDS}),
    st.fixed_dictionaries({"type": st.just("function_call"), "name": some.TEXTS,
                           "arguments": some.OBJECTS.map(json.dumps) | st.just("{")}, optional=_IDS),
    st.fixed_dictionaries({"type": st.just("function_call_output"), "output": _SAID}, optional=_IDS),
    st.fixed_dictionaries({"type": st.just("reasoning"), "summary": _THOUGHTS}, optional={"content": _THOUGHTS, **_IDS}),
    st.fixed_dictionaries({"type": st.just("shell_call"), "action": some.VALUES}, optional=_IDS),
)  # fmt: skip
_FLAT_TOOLS = st.fixed_dictionaries(
    {"type": st.just("function"), "name": some.TEXTS},
    optional={"description": some.TEXTS, "parameters": some.OBJECTS, "strict": st.none() | st.booleans()},
)
RESPONSES = st.fixed_dictionaries(
    {"model": st.just("m"), "input": some.TEXTS | st.lists(ITEMS, min_size=1, max_size=4)},
    optional={
        "instructions": st.none() | some.TEXTS,
        "tools": st.lists(_FLAT_TOOLS, max_size=2),
        "previous_response_id": st.none(),
        "store": st.booleans(),
    },
)
"""Responses requests that keep nothing on the server."""

COMPLETIONS = st.fixed_dictionaries(
    {"model": st.just("m"), "prompt": some.TEXTS | st.lists(some.TEXTS, min_size=1, max_size=1)},
    optional={"suffix": some.TEXTS, "tools": some.VALUES, "best_of": st.just(2)},
)
"""Text completions."""

VALID: dict[Api, st.SearchStrategy[Json]] = {
    "chat": some.CHATS,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
}

TURNS_OF: dict[Api, st.SearchStrategy[Json]] = {"chat": some.MESSAGES, "responses": ITEMS, "messages": TURNS}
"""One more entry of the list that grows."""

Path = tuple[str | int, ...]


def _always(value: object) -> Callable[[Any], Any]:
    return lambda _: value


_EDITS: tuple[Callable[[Any], Any], ...] = (
    lambda value: [value],
    lambda value: {"type": value},
    lambda value: None,
    lambda value: json.dumps(value),
    lambda value: [value] * 3,
    lambda value: {"content": value, "text": value, "function": value},
)


def paths(value: object, here: Path = ()) -> Iterator[Path]:
    """Yield the place of every value inside."""
    pairs: Sequence[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    for key, inner in pairs:
        yield (*here, key)
        yield from paths(inner, (*here, key))


def put(request: Json, path: Path, change: Callable[[Any], Any]) -> Json:
    """Return a copy of a request with one value changed."""
    changed = copy.deepcopy(request)
    holder: Any = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = change(holder[path[-1]])
    return changed


@st.composite
def nearly_valid(draw: st.DrawFn, api: Api) -> Json:
    """Return a request with one to three values of it changed into something else."""
    request = draw(VALID[api])
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(paths(request))))
        edit = draw(st.sampled_from(_EDITS) | some.ANYTHING.map(_always))
        request = put(request, path, edit)
    return request


HOSTILE = (
    "NaN", "-Infinity", "1e999", "-0", "1E+2", "9" * 30, "9" * 5000, "0.1" + "1" * 400, '"\\ud83d"', '"\\uDEAD\\ud83d"',
    '"\\u0000"', '{"a":1,"a":2}', '{"role":"user","role":"tool"}', "[" * 300 + "]" * 300, "[" * 3000 + "]" * 3000,
    '{"type":' * 900 + "1" + "}" * 900, '{"":{"":{}}}', "tru", "'x'", '"\x00"', "\ufeff1", "[1,]", "{,}", '"\\x41"', "1 2",
)  # fmt: skip
_MARK = "a place for something hostile"


@st.composite
def hostile_bodies(draw: st.DrawFn, api: Api) -> bytes:
    """Return the bytes of a request with one value that no client's library writes, perhaps cut off or damaged."""
    request = draw(VALID[api])
    path = draw(st.sampled_from(list(paths(request))))
    body = json.dumps(put(request, path, lambda _: _MARK)).replace(
        f'"{_MARK}"', draw(st.sampled_from(HOSTILE))
    )
    data = body.encode("utf-8", "surrogatepass")
    how = draw(st.sampled_from(["whole", "whole", "cut", "damaged", "twice", "utf-16"]))
    at = draw(st.integers(0, len(data) - 1))
    if how == "cut":
        return data[:at]
    if how == "damaged":
        return data[:at] + draw(st.binary(min_size=1, max_size=3)) + data[at + 1 :]
    if how == "twice":
        return data + data
    return body.encode("utf-16", "surrogatepass") if how == "utf-16" else data
