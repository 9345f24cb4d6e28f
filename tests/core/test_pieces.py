"""A body that is too long to decode at once is read in steps, and means what it meant before."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefix_middleware.core import canonical, pieces, writer
from prefix_middleware.core.canonical import Api, CanonicalPrompt, Skip, canonical_prompt, prompt_steps
from prefix_middleware.core.pieces import MAX_VALUES, WHOLE_BYTES
from tests.core import strategies as some
from tests.core.bodies import Json, assistant, call, chat, encode, image, system, text, tool, user

APIS = get_args(Api)
LONG = "word, " * (WHOLE_BYTES // 6)


@contextmanager
def whole_up_to(size: int) -> Iterator[None]:
    """Let bodies of up to this many bytes be decoded at once."""
    with patch.object(canonical, "WHOLE_BYTES", size):
        yield


def both(api: Api, body: bytes) -> list[CanonicalPrompt | Skip]:
    """Return what a body is read as at once, and in pieces."""
    read: list[CanonicalPrompt | Skip] = []
    for size in (len(body), len(body) - 1):
        with whole_up_to(size):
            read.append(canonical_prompt(api, body))
    return read


def assert_read(api: Api, body: bytes) -> None:
    """Fail unless the body is a prompt, the same at once and in pieces."""
    at_once, in_pieces = both(api, body)
    assert (type(at_once), in_pieces) == (CanonicalPrompt, at_once)


@settings(max_examples=40, deadline=None)
@given(some.CHATS)
def test_a_chat_is_the_same_prompt_at_once_and_in_pieces(request: Json) -> None:
    """A conversation that grows beyond the limit keeps every block that it had below.

    What is no strict JSON, half an emoji or an Infinity, is read below alone.
    """
    body = encode(request)
    at_once, in_pieces = both("chat", body)
    loose: list[str] = []
    json.loads(body, parse_constant=loose.append)
    loose += [char for char in json.dumps(request, ensure_ascii=False) if "\ud800" <= char <= "\udfff"]
    strict = not loose
    assert (type(at_once), in_pieces) == (CanonicalPrompt, at_once if strict else Skip("unparsable"))


FULL = {
    "chat": chat(
        system("first"),
        user([text("see"), image("data:image/png;base64," + "A" * 999)]),
        assistant(None, tool_calls=[call("f", '{"a": [1, {}]}')]),
        {"role": "tool", "content": "done"},
        tools=[tool("f", parameters={"type": "object"}), tool("g", description="d")],
        documents=[{"text": "t"}],
        cache_salt="s",
        max_tokens=7,
    ),
    "completions": {"model": "m", "prompt": [*range(9000)]},
    "responses": {
        "instructions": "be brief",
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "input": [user("a"), {"type": "function_call", "name": "f", "arguments": "{}"}],
    },
    "messages": {"system": [text("s")], "tools": [{"name": "f", "input_schema": {}}], "messages": [user([text("a")])]},
}  # fmt: skip


@pytest.mark.parametrize("api", APIS)
def test_each_api_is_the_same_at_once_and_in_pieces(api: Api) -> None:
    """Every list that stays JSON for a while is opened where it is read: messages, input items and tools."""
    assert_read(api, encode(FULL[api]))


@pytest.mark.parametrize("given", ["a text", None, {}, 7], ids=str)
@pytest.mark.parametrize("field", ["messages", "input", "tools", "prompt"])
@pytest.mark.parametrize("api", APIS)
def test_a_list_field_that_is_none_is_read_as_ever(api: Api, field: str, given: object) -> None:
    """What stands in the place of a list is judged alike by both ways."""
    at_once, in_pieces = both(api, encode(FULL[api] | {field: given}))
    assert at_once == in_pieces


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(APIS), some.OBJECTS, st.binary(max_size=40))
def test_what_is_broken_is_a_skip_in_pieces_too(api: Api, request: Json, junk: bytes) -> None:
    """Nothing raises, whatever stands behind the first bytes."""
    body = encode({"messages": [user()], "input": [request], **request})
    for broken in (body, body[:-1], body[:-2] + junk + b"}", junk):
        with whole_up_to(-1):
            assert isinstance(canonical_prompt(api, broken), Skip | CanonicalPrompt)


def test_a_long_body_has_a_step_for_each_item() -> None:
    """Between two messages of a long body there is a step, so that no more than one is opened in a turn."""
    items = [user(LONG[: WHOLE_BYTES // 50]) for _ in range(100)]
    steps = list(prompt_steps("chat", encode(chat(*items))))
    assert (set(steps[:-1]), isinstance(steps[-1], CanonicalPrompt)) == ({None}, True)
    assert len(steps) > len(items)


def test_a_long_list_stays_json_until_it_is_read() -> None:
    """A message that cannot be read ends the reading: those behind it are never opened."""
    opened: list[int] = []

    def counting(value: object) -> Json:
        opened.append(1)
        return pieces_dict_of(value)

    pieces_dict_of = writer.dict_of
    body = encode(chat(user(LONG), {"role": 7}, *[user()] * 50))
    with patch.object(canonical, "dict_of", counting):
        assert canonical_prompt("chat", body) == Skip("unparsable")
    assert len(opened) == 2


@pytest.mark.parametrize(
    ("piece", "count", "skipped"),
    [
        (b"[]", MAX_VALUES // 2, True),
        (b"{}", MAX_VALUES // 2, True),
        (b"0", MAX_VALUES, True),
        (b"[]", MAX_VALUES // 2 - 20, False),
    ],
)
def test_a_long_body_of_very_many_values_passes_unrouted(piece: bytes, count: int, skipped: bool) -> None:
    """Values cost far more than their bytes, so their number is bounded before anything is decoded."""
    values = b"[" + b",".join([piece] * count) + b"]"
    body = encode(chat(user("x" * WHOLE_BYTES)))[:-1] + b',"values":' + values + b"}"
    prompt = canonical_prompt("chat", body)
    assert (prompt == Skip("too_large"), isinstance(prompt, CanonicalPrompt)) == (skipped, not skipped)


def test_many_values_are_refused_before_any_is_decoded() -> None:
    """The count comes first: a refused body costs a look at its bytes."""
    body = json.dumps({"messages": [[]] * MAX_VALUES}).encode()
    with patch.object(pieces, "_FIELDS", None):
        assert canonical_prompt("chat", body) == Skip("too_large")
