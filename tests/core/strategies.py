"""Hypothesis strategies for JSON, requests, conversations and loads; nothing here knows the implementation."""

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from prefix_middleware.core.choose import Candidate
from prefix_middleware.core.loads import Load

Json = dict[str, Any]

TEXTS = st.text(
    st.characters() | st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF, categories=["Cs"]),
    max_size=24,
)
NAMES = st.text("abcdef_", min_size=1, max_size=6)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)

_KEYS = st.sampled_from(
    "model messages role content type text tools function name arguments parameters input instructions system "
    "prompt documents chat_template_kwargs tool_calls tool_use tool_result image_url reasoning summary output "
    "cache_salt max_tokens prompt_logprobs".split()
)
_WORDS = st.sampled_from(
    "user system assistant message text image_url function function_call function_call_output reasoning "
    "tool_use tool_result thinking {} [] 7".split()
)
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | _WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS | TEXTS, inner, max_size=5),
    max_leaves=25,
)
"""Arbitrary JSON whose keys are often the ones that are looked at."""

_PARTS = st.one_of(
    TEXTS.map(lambda text: {"type": "text", "text": text}),
    TEXTS.map(lambda url: {"type": "image_url", "image_url": {"url": url}}),
    st.fixed_dictionaries({"type": st.just("strange")}, optional={"value": VALUES}),
)
_CALLS = st.builds(
    lambda name, arguments: {"type": "function", "function": {"name": name, "arguments": arguments}},
    TEXTS,
    OBJECTS.map(json.dumps) | st.sampled_from(["", "{", "[1]", "null", ' { "b" : 1, "a" : [ ] } ']),
)
_CONTENTS = st.none() | TEXTS | st.lists(_PARTS, max_size=3)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": _CONTENTS},
    optional={
        "name": TEXTS,
        "reasoning": TEXTS,
        "reasoning_content": TEXTS,
        "tool_calls": st.none() | st.lists(_CALLS, max_size=2),
    },
)
_TOOLS = st.fixed_dictionaries(
    {"name": TEXTS},
    optional={"description": st.none() | TEXTS, "parameters": OBJECTS, "strict": st.none() | st.booleans()},
).map(lambda function: {"type": "function", "function": function})
CHATS = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": st.lists(MESSAGES, min_size=1, max_size=4)},
    optional={
        "tools": st.none() | st.lists(_TOOLS, max_size=2),
        "documents": st.none() | st.lists(OBJECTS, max_size=2),
        "chat_template_kwargs": st.none()
        | st.dictionaries(st.sampled_from(["enable_thinking", "date", "tone"]), VALUES),
        "temperature": st.floats(0, 2),
        "metadata": OBJECTS,
    },
)
"""Well-formed chat requests that reach every rule of the canonical form."""


@dataclass(frozen=True)
class Turn:
    """One answer of the model and what the client says next."""

    reply: str
    thought: str
    calls: tuple[tuple[str, Json], ...]
    said: str


def turns(calls: int = 2) -> st.SearchStrategy[Turn]:
    """Return turns with up to so many tool calls."""
    pairs = st.tuples(NAMES, OBJECTS)
    return st.builds(Turn, TEXTS, TEXTS, st.lists(pairs, max_size=calls).map(tuple), TEXTS)


CONVERSATIONS = st.tuples(TEXTS, TEXTS, st.lists(turns(), min_size=1, max_size=4))
"""System text, first user text, turns."""


def loads(most: int = 300) -> st.SearchStrategy[Load]:
    """Return loads of up to `most` requests."""
    return st.builds(
        Load,
        in_flight=st.integers(0, most),
        backlog_tokens=st.integers(0, 400_000),
        prompt_tokens=st.integers(0, 10_000_000),
        fill=st.floats(0, 1),
        over_full=st.integers(0, 50),
    )


@st.composite
def fleets(draw: st.DrawFn, *, most: int = 6) -> list[Candidate]:
    """Return candidates with distinct names, matches in order of nothing in particular."""
    count = draw(st.integers(1, most))
    return [
        Candidate(f"w{i}", draw(loads()), blocks, blocks * 128, draw(st.booleans()))
        for i, blocks in enumerate(draw(st.lists(st.integers(0, 64), min_size=count, max_size=count)))
    ]
