"""The four APIs under generated requests: valid, nearly valid, hostile; injective, stable, bounded, never an exception."""

import json
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefix_middleware.core.blocks import Hasher
from prefix_middleware.core.canonical import Api, CanonicalPrompt, Skip, canonical_prompt
from tests.core import requests as some
from tests.core.bodies import (
    Json,
    assistant,
    call,
    chat,
    encode,
    image,
    prompt_of,
    read,
    text,
    tool,
    user,
)
from tests.core.grammar import (
    Structure,
    normalise_chat,
    normalise_completion,
    normalise_messages,
    normalise_responses,
    parse,
)

APIS: tuple[Api, ...] = ("chat", "completions", "responses", "messages")
REASONS = {"unparsable", "stateful", "batch", "truncated", "too_large"}
HASHER = Hasher(None, 32768)
NORMAL: dict[Api, Callable[[Json], Structure]] = {
    "chat": normalise_chat,
    "completions": normalise_completion,
    "responses": normalise_responses,
    "messages": normalise_messages,
}
GROWING = (("chat", "messages"), ("responses", "input"), ("messages", "messages"))


def check(api: Api, found: CanonicalPrompt | Skip) -> None:
    """Fail unless it is a known skip, or a prompt that can be hashed and read back."""
    if isinstance(found, Skip):
        assert found.reason in REASONS
        return
    hashed = HASHER.hash(found)
    assert hashed.tokens >= 1
    assert len(hashed.matched_tokens) == len(hashed.hashes) + 1
    assert all(0 < end <= len(found.data) for end in found.media_ends)
    if api != "completions":  # token prompts have no tags inside
        assert parse(found.data)


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_apis_bytes_read_back_to_the_structure_of_the_request(api: Api, data: st.DataObject) -> None:
    """Injective in all four: a second, independent reading of request and bytes finds the same structure."""
    body = encode(data.draw(some.VALID[api]))
    prompt = canonical_prompt(api, body)
    assert isinstance(prompt, CanonicalPrompt)
    assert parse(prompt.data) == NORMAL[api](json.loads(body))


@pytest.mark.parametrize(("api", "field"), GROWING)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_turn_more_only_appends_bytes_in_every_api(api: Api, field: str, data: st.DataObject) -> None:
    """Prefix-stable whatever the last turn was, or no block of a conversation would match."""
    request = data.draw(some.VALID[api].filter(lambda request: isinstance(request[field], list)))
    turn = data.draw(some.TURNS_OF[api])
    before, after = (
        prompt_of(api, request | {field: turns}) for turns in (request[field], [*request[field], turn])
    )
    assert after.data[: len(before.data)] == before.data
    assert after.media_ends[: len(before.media_ends)] == before.media_ends


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_nearly_valid_request_is_a_skip_or_a_prompt(api: Api, data: st.DataObject) -> None:
    """Any values of a good request replaced, wrapped, doubled or turned into text."""
    check(api, read(api, data.draw(some.nearly_valid(api))))


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_hostile_body_is_a_skip_or_a_prompt(api: Api, data: st.DataObject) -> None:
    """NaN, endless digits, lone surrogates, doubled keys, deep nesting, damage: at any place of a good body."""
    check(api, canonical_prompt(api, data.draw(some.hostile_bodies(api))))


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_marker_or_an_id_anywhere_changes_nothing(api: Api, data: st.DataObject) -> None:
    """cache_control moves with every turn, ids are new with every request; neither is printed for the model."""
    request = data.draw(some.VALID[api])
    marked = json.loads(json.dumps(request))
    for turn in (marked.get("messages"), marked.get("input")):
        for item in turn if isinstance(turn, list) else ():
            parts = item.get("content")
            for part in parts if isinstance(parts, list) else ():
                part["cache_control"] = {"type": "ephemeral"}
    for extra in ("metadata", "user", "request_id", "prompt_cache_key"):
        marked[extra] = {"a": "b"}
    assert read(api, marked) == read(api, request)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "null", "0"])
def test_a_number_that_is_none_is_not_null_within_the_prompt(number: str) -> None:
    """What a template would print as NaN must not share blocks with what it prints as null or 0."""
    body = '{"messages":[{"role":"user","content":"x"}],"documents":[{"a":%s}]}'
    found = {
        n: canonical_prompt("chat", (body % n).encode())
        for n in ("NaN", "Infinity", "-Infinity", "null", "0")
    }
    equal = {"1e999": "Infinity", "-1e999": "-Infinity"}.get(number, number)
    same = [n for n, prompt in found.items() if prompt == canonical_prompt("chat", (body % number).encode())]
    assert same == [equal]


SHAPES: dict[str, Callable[[int], Json]] = {
    "messages": lambda n: chat(*[user("x"), assistant("y", name="z")] * n),
    "parts": lambda n: chat(user([text("x")] * n)),
    "images": lambda n: chat(user([image("x")] * n)),
    "images in messages": lambda n: chat(*[user([image("x")])] * n),
    "tools": lambda n: chat(user(), tools=[tool("f", parameters={"a": 1})] * n),
    "calls": lambda n: chat(assistant("", tool_calls=[call("f", '{"a":1}')] * n)),
    "arguments": lambda n: chat(user(), chat_template_kwargs={f"a{i}": i for i in range(n)}),
    "billing lines": lambda n: chat({"role": "system", "content": [text("x-anthropic-billing-header: x\n")] * n}, user()),
    "nested tool results": lambda n: {"messages": [user([{"type": "tool_result", "content": [text("x")] * n}] * 3)]},
}  # fmt: skip


def calls_for(request: Json) -> int:
    """Return how many Python and C functions are called to read a request: a clock that nothing disturbs."""
    body, calls = encode(request), 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for api in APIS:
            canonical_prompt(api, body)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("shape", SHAPES)
def test_work_grows_no_faster_than_the_request(shape: str) -> None:
    """Whatever there is much of, twice as much of it is at most twice the work."""
    assert calls_for(SHAPES[shape](400)) <= 2.2 * calls_for(SHAPES[shape](200))
