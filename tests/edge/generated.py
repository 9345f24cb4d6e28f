"""Hypothesis strategies for whole requests of the four APIs as bytes: valid, nearly valid and hostile.

Chats are those of tests/core/strategies.py; nothing here knows how a request is read.
"""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.core import strategies as some

Json = dict[str, Any]

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
LONG_TEXTS = st.builds(lambda text, times: (text or "x") * times, some.TEXTS, st.sampled_from([1, 30, 400]))

_NUMBERS = st.integers(-(2**70), 2**70) | st.floats()
_SAMPLING = {
    "temperature": _NUMBERS,
    "max_tokens": st.none() | _NUMBERS,
    "stream": st.booleans(),
    "cache_salt": st.none() | some.TEXTS,
    "echo": st.booleans(),
    "truncate_prompt_tokens": st.none() | st.integers(-1, 9),
    "metadata": some.OBJECTS,
}


def request(
    fields: dict[str, st.SearchStrategy[Any]], **optional: st.SearchStrategy[Any]
) -> st.SearchStrategy[Json]:
    """Return requests for one model with these fields."""
    return st.fixed_dictionaries(
        {"model": st.just("m") | some.TEXTS, **fields}, optional=_SAMPLING | optional
    )


def lists(items: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Return short lists."""
    return st.lists(items, max_size=3)


COMPLETIONS = request(
    {
        "prompt": LONG_TEXTS
        | lists(some.TEXTS)
        | lists(st.integers(-1, 2**32))
        | lists(lists(st.integers(0, 2**18)))
    }
)

_CACHED = {"cache_control": st.just({"type": "ephemeral"})}
_TEXT_BLOCK = st.fixed_dictionaries({"type": st.just("text"), "text": LONG_TEXTS}, optional=_CACHED)
_BLOCKS = st.one_of(
    _TEXT_BLOCK,
    st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}, some.TEXTS),
    st.builds(
        lambda name, given: {"type": "tool_use", "id": "c", "name": name, "input": given},
        some.NAMES,
        some.OBJECTS,
    ),
    st.builds(
        lambda text: {"type": "tool_result", "tool_use_id": "c", "content": text},
        some.TEXTS | lists(_TEXT_BLOCK),
    ),
    st.builds(lambda data: {"type": "image", "source": {"type": "base64", "data": data}}, some.TEXTS),
)
_TURNS = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "assistant"]),
    LONG_TEXTS | lists(_BLOCKS),
)
ANTHROPIC_TOOLS = lists(
    st.builds(lambda name, schema: {"name": name, "input_schema": schema}, some.NAMES, some.OBJECTS)
)
MESSAGES = request({"messages": lists(_TURNS)}, system=LONG_TEXTS | lists(_TEXT_BLOCK), tools=ANTHROPIC_TOOLS)

_ITEMS = st.one_of(
    st.builds(
        lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "developer"]), LONG_TEXTS
    ),
    st.builds(
        lambda text: {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},
        some.TEXTS,
    ),
    st.builds(
        lambda name: {"type": "function_call", "name": name, "arguments": "{}", "call_id": "c"}, some.NAMES
    ),
    st.builds(lambda text: {"type": "function_call_output", "call_id": "c", "output": text}, some.TEXTS),
    st.builds(
        lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}, some.TEXTS
    ),
    st.just({"type": "item_reference", "id": "i"}),
    st.builds(lambda kind, value: {"type": kind, "value": value}, some.NAMES, some.VALUES),
)
RESPONSES = request(
    {"input": LONG_TEXTS | lists(_ITEMS)},
    instructions=st.none() | LONG_TEXTS,
    previous_response_id=st.none() | st.just("resp_1"),
)
VALID = st.one_of(some.CHATS, COMPLETIONS, RESPONSES, MESSAGES)

_FORMS: tuple[Callable[[object], bytes], ...] = (
    lambda value: json.dumps(value).encode(),
    lambda value: json.dumps(value, indent=1, separators=(" , ", " : ")).encode(),
    lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"),
    lambda value: json.dumps(value).replace("/", "\\/").encode(),
)
_OTHER_FORMS: tuple[Callable[[object], bytes], ...] = (
    lambda value: b"\xef\xbb\xbf" + json.dumps(value).encode(),
    lambda value: json.dumps(value).encode("utf-16"),
    lambda value: gzip.compress(json.dumps(value).encode(), mtime=0),
    lambda value: zlib.compress(json.dumps(value).encode()),
    lambda value: json.dumps(value).encode() * 2,
    lambda value: b"[" + json.dumps(value).encode() + b"]",
)
WRITTEN = st.builds(lambda value, form: form(value), VALID, st.sampled_from(_FORMS))


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(WRITTEN))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body)))
        match draw(st.sampled_from(["cut", "drop", "insert", "flip"])):
            case "cut":
                del body[at:]
            case "drop":
                del body[at : at + draw(st.integers(1, 9))]
            case "insert":
                body[at:at] = draw(
                    st.binary(max_size=4) | st.sampled_from([b"NaN", b"\\ud83d", b"\x00", b"{", b"]"])
                )
            case _ if at < len(body):
                body[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(body)


@st.composite
def _retyped(draw: st.DrawFn) -> bytes:
    value = dict(draw(VALID))
    for name in draw(st.lists(st.sampled_from(sorted(value)), max_size=3)):
        value[name] = draw(some.ANYTHING)
    return json.dumps(value).encode()


@st.composite
def _nested(draw: st.DrawFn) -> bytes:
    depth = draw(st.sampled_from([50, 400, 900, 990, 1100, 20_000]))
    opening, closing = draw(
        st.sampled_from([("[", "]"), ('{"a":', "}"), ('[{"type":"text","content":', "}]")])
    )
    deep = (opening * depth + "1" + closing * depth).encode()
    place = draw(
        st.sampled_from(["messages", "tools", "documents", "input", "system", "prompt", "metadata", "model"])
    )
    head = (
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"prompt":"p","input":"i","%s":'
        % place.encode()
    )
    return head + deep + draw(st.sampled_from([b"}", b""]))


BODIES = st.one_of(
    WRITTEN,
    _damaged(),
    _retyped(),
    _nested(),
    some.ANYTHING.map(json.dumps).map(str.encode),
    st.builds(lambda value, form: form(value), VALID, st.sampled_from(_OTHER_FORMS)),
    st.binary(max_size=60),
)
"""Bodies of all three sorts, for any path."""

SPELLINGS = st.builds(
    lambda cases, marks: (
        "".join(c.upper() if up else c for c, up in zip("x-prefix-worker", cases, strict=True))
        .replace("-", marks[0], 1)
        .replace("-", marks[1], 1)
        .encode()
    ),
    st.lists(st.booleans(), min_size=15, max_size=15),
    st.sampled_from(["--", "-_", "_-", "__"]),
)
"""Every spelling of the header's name that a server or nginx takes for it."""
_OTHER_NAMES = st.sampled_from(
    [b"x-prefix-worker-2", b"x-prefix", b"xprefixworker", b"x-prefix-served", b"a", b"Authorization"]
)
HEADERS = st.lists(
    st.tuples(SPELLINGS | _OTHER_NAMES, st.binary(max_size=8) | st.sampled_from([b"w1", b"evil"])), max_size=5
)
"""Inbound headers, forged copies among others."""
