"""Prefix-stable, injective, and never an exception: what holds for every request, generated and hostile."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prefix_middleware.core.blocks import Hasher
from prefix_middleware.core.canonical import Api, CanonicalPrompt, Skip, canonical_prompt
from tests.core import strategies as some
from tests.core.bodies import Json, chat, encode, prompt_of, read, system, user
from tests.core.grammar import normalise_chat, parse

APIS: tuple[Api, ...] = ("chat", "completions", "responses", "messages")
HASHER = Hasher(None, 32768)
NESTED = 1100

NOT_A_PROMPT: dict[str, bytes] = {
    "nothing": b"",
    "white space": b" \n",
    "cut off": b'{"model":"m","messages":[{"role":"user","content":"hi"',
    "two values": b"{} {}",
    "an array": b"[]",
    "a string": b'"hi"',
    "null": b"null",
    "a number": b"3",
    "an empty object": b"{}",
    "null messages": b'{"messages":null}',
    "no messages": b'{"messages":[]}',
    "messages that are text": b'{"messages":"hi"}',
    "messages that are not objects": b'{"messages":[null,1,"x"]}',
    "fields of another type": b'{"model":["m"],"messages":[{"role":5,"content":{"a":1}}]}',
    "a model that is a number": b'{"model":7,"messages":[{"role":"user","content":"x"}]}',
    "tools that are an object": b'{"tools":{"a":1},"messages":[{"role":"user","content":"x"}]}',
    "a tool that is text": b'{"tools":["f"],"messages":[{"role":"user","content":"x"}]}',
    "an input of lists": b'{"input":[[]]}',
    "a system number": b'{"system":7}',
    "a salt that is a list": b'{"cache_salt":[],"messages":[{"role":"user","content":"x"}]}',
    "template arguments that are a list": b'{"chat_template_kwargs":[1],"messages":[{"role":"user","content":"x"}]}',
    "parts that are numbers": b'{"messages":[{"role":"user","content":[1]}]}',
    "a part whose text is a list": b'{"messages":[{"role":"user","content":[{"type":"text","text":[]}]}]}',
    "bytes that are no text": b"\xff\xfe\xfa",
    "invalid UTF-8 in a string": b'{"messages":[{"role":"user","content":"\xff"}]}',
    "nested arrays": b"[" * NESTED + b"]" * NESTED,
    "unclosed arrays": b"[" * 100_000,
}


@pytest.mark.parametrize("body", NOT_A_PROMPT.values(), ids=NOT_A_PROMPT.keys())
def test_a_body_that_is_no_prompt_is_unparsable_in_every_api(body: bytes) -> None:
    """Whatever is sent, the request passes unrouted and the host produces the error."""
    assert [canonical_prompt(api, body) for api in APIS] == [Skip("unparsable")] * 4


@pytest.mark.parametrize("depth", [100, 900, NESTED, 5_000, 100_000])
def test_nesting_that_breaks_a_parser_or_a_writer_raises_nothing(depth: int) -> None:
    """RecursionError is no ValueError; a depth that parses may still be too deep to write."""
    schema = '{"a":' * depth + "1" + "}" * depth
    head = '{"model":"m","messages":[{"role":"user","content":"x"}],'
    places = [
        head + '"tools":[{"function":{"name":"f","parameters":' + schema + "}}]}",
        head + '"documents":[' + schema + "]}",
        '{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":'
        + json.dumps(schema)
        + "}}]}]}",
    ]
    for place in places:
        assert isinstance(canonical_prompt("chat", place.encode()), Skip | CanonicalPrompt)


SURROGATES = {
    "in text": chat(user("a\ud83d b")),
    "in a role": chat({"role": "\ud83d", "content": "x"}),
    "in a tool": chat(user(), tools=[{"function": {"name": "\ud83d", "parameters": {"\ud83d": "\udc00"}}}]),
    "in a salt": chat(user(), cache_salt="\ud83d"),
    "in a model": {"model": "\ud83d", "messages": [user()]},
    "in a key": chat(user(), chat_template_kwargs={"\ud83d": 1}),
}


@pytest.mark.parametrize("request_", SURROGATES.values(), ids=SURROGATES.keys())
def test_a_lone_surrogate_is_a_character_like_another(request_: Json) -> None:
    """It survives json.loads and would raise at encode; prompt, namespace and blocks must take it."""
    prompt = prompt_of("chat", request_)
    assert HASHER.hash(prompt).tokens >= 1


def test_an_emoji_cut_by_a_block_edge_is_hashed() -> None:
    """Blocks are bytes: a character may lie across an edge."""
    prompts = [
        prompt_of("chat", chat(user("x" * (512 - 6 - cut) + "\N{GRINNING FACE}" * 200))) for cut in range(4)
    ]
    assert [len(HASHER.hash(prompt).hashes) for prompt in prompts] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e999", "123456789012345678901234567890"]
)
def test_numbers_that_parsers_disagree_on_do_not_matter_outside_the_prompt(number: str) -> None:
    """temperature is no part of the prompt; only the host's parser may refuse it."""
    body = f'{{"model":"m","messages":[{{"role":"user","content":"hi"}}],"temperature":{number}}}'
    assert canonical_prompt("chat", body.encode()) == prompt_of("chat", chat(user("hi")))


def test_integers_over_64_bits_keep_their_digits() -> None:
    """Two ids in a tool schema that differ in the last digit are two prompts."""
    big = [chat(user(), documents=[{"id": 2**80 + i}]) for i in (0, 1)]
    assert prompt_of("chat", big[0]).data != prompt_of("chat", big[1]).data


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(APIS), some.ANYTHING)
def test_arbitrary_json_is_a_skip_or_a_prompt(api: Api, value: object) -> None:
    """Never an exception, and what is a prompt can be hashed."""
    found = read(api, value)
    assert isinstance(found, Skip) or HASHER.hash(found).tokens >= 1


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(APIS), some.CHATS, some.ANYTHING, st.data())
def test_a_request_with_one_strange_value_is_a_skip_or_a_prompt(
    api: Api, request: Json, strange: object, data: st.DataObject
) -> None:
    """One field of a good request replaced by anything: the neighbours of every well-formed body."""
    place = data.draw(st.sampled_from(["message", "content", "tools", "documents", "tool_calls", "role"]))
    target = request if place in ("tools", "documents") else request["messages"][0]
    changed = request | {"messages": [strange]} if place == "message" else request
    if place != "message":
        target[place] = strange
    assert isinstance(read(api, changed | {"input": changed["messages"]}), Skip | CanonicalPrompt)


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(APIS), st.binary(max_size=60))
@example("chat", "{}".encode("utf-16"))
def test_arbitrary_bytes_are_a_skip_or_a_prompt(api: Api, body: bytes) -> None:
    """Also bytes that another encoding would read."""
    assert isinstance(canonical_prompt(api, body), Skip | CanonicalPrompt)


@settings(max_examples=80, deadline=None)
@given(some.CHATS, some.MESSAGES)
def test_appending_a_message_only_appends_bytes(request: Json, message: Json) -> None:
    """Prefix-stable: the next turn's prompt begins with this one's, or no block would ever match."""
    before = prompt_of("chat", request)
    after = prompt_of("chat", request | {"messages": [*request["messages"], message]})
    assert after.data[: len(before.data)] == before.data
    assert (after.media_ends[: len(before.media_ends)], after.model) == (before.media_ends, before.model)


@settings(max_examples=40, deadline=None)
@given(some.TEXTS, st.text(min_size=1))
def test_growing_text_only_appends_bytes(start: str, more: str) -> None:
    """A growing completion prompt and a growing last message keep every block they had."""
    start, whole = json.loads(json.dumps([start, start + more]))
    pairs = [
        [prompt_of("completions", {"prompt": text}).data for text in (start, whole)],
        [prompt_of("chat", chat(system(), user(text))).data for text in (start, whole)],
    ]  # fmt: skip
    assert all(long.startswith(short) for short, long in pairs)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1), st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_appending_tokens_only_appends_bytes(start: list[int], more: list[int]) -> None:
    """Token prompts are prefix-stable and read back to the same tokens."""
    short, whole = (prompt_of("completions", {"prompt": tokens}).data for tokens in (start, start + more))
    read_back = [int.from_bytes(whole[i : i + 4], "little") for i in range(1, len(whole), 4)]
    assert (whole.startswith(short), read_back) == (True, start + more)


@settings(max_examples=250, deadline=None)
@given(some.CHATS)
def test_the_bytes_read_back_to_the_structure_of_the_request(request: Json) -> None:
    """Injective: the bytes determine the structure, so different structures never give the same bytes."""
    body = encode(request)
    prompt = canonical_prompt("chat", body)
    assert isinstance(prompt, CanonicalPrompt)
    assert parse(prompt.data) == normalise_chat(json.loads(body))


def test_the_body_is_read_as_json_reads_it() -> None:
    """Duplicate keys: the last one counts, as for the host."""
    body = b'{"model":"a","messages":[{"role":"user","content":"x"}],"model":"m"}'
    assert canonical_prompt("chat", body) == canonical_prompt("chat", encode(json.loads(body)))
