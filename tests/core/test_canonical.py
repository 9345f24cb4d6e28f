"""What makes two chat prompts equal and what makes them differ: predict the engine, do not beautify."""

import pytest

from prefix_middleware.core.canonical import CanonicalPrompt, Skip, api_of, canonical_prompt
from tests.core.bodies import (
    Json,
    assistant,
    call,
    chat,
    image,
    prompt_of,
    read,
    system,
    text,
    tool,
    user,
)

BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=36ee5;"

EQUAL: dict[str, tuple[Json, Json]] = {
    "a string and one text part": (chat(user("x")), chat(user([text("x")]))),
    "a part given as a bare string": (chat(user(["x"])), chat(user("x"))),
    "cache_control on a part": (
        chat(user([text("x", cache_control={"type": "ephemeral"})])),
        chat(user([text("x")])),
    ),
    "cache_control on an image": (
        chat(user([image("u") | {"cache_control": {"type": "ephemeral"}}])),
        chat(user([image("u")])),
    ),
    "cache_control on a tool": (
        chat(user(), tools=[tool("f", cache_control={"type": "ephemeral"})]),
        chat(user(), tools=[tool("f")]),
    ),
    "null, empty and missing content": (
        chat(user(), assistant(None, tool_calls=[call("f", "{}")])),
        chat(user(), {"role": "assistant", "tool_calls": [call("f", "{}")]}),
    ),
    "null and empty content": (chat(user(), assistant(None)), chat(user(), assistant(""))),
    "an empty part and empty content": (chat(user(), assistant([text("")])), chat(user(), assistant(""))),
    "no tool calls": (chat(assistant(tool_calls=[])), chat(assistant(tool_calls=None))),
    "absent tool calls": (chat(assistant()), chat(assistant(tool_calls=None))),
    "tool call ids": (
        chat(assistant(tool_calls=[call("f", "{}") | {"id": "c2"}])),
        chat(assistant(tool_calls=[call("f", "{}")])),
    ),
    "tool_call_id": (
        chat({"role": "tool", "content": "ok", "tool_call_id": "a"}),
        chat({"role": "tool", "content": [text("ok")], "tool_call_id": "b"}),
    ),
    "white space inside arguments": (
        chat(assistant(tool_calls=[call("f", ' { "b" : 1,\n "a" : [1, 2] } ')])),
        chat(assistant(tool_calls=[call("f", '{"b":1,"a":[1,2]}')])),
    ),
    "escapes inside arguments": (
        chat(assistant(tool_calls=[call("f", '{"a":"\\u00e9\\/"}')])),
        chat(assistant(tool_calls=[call("f", '{"a":"é/"}')])),
    ),
    "malformed arguments": (
        chat(assistant(tool_calls=[call("f", '{"a":')])),
        chat(assistant(tool_calls=[call("f", "{}")])),
    ),
    "arguments that are no object": (
        chat(assistant(tool_calls=[call("f", "[1]")])),
        chat(assistant(tool_calls=[call("f", "null")])),
    ),
    "reasoning by either name": (
        chat(assistant(reasoning="hm")),
        chat(assistant(reasoning_content="hm")),
    ),
    "empty reasoning": (chat(assistant(reasoning_content="")), chat(assistant())),
    "unknown message fields": (
        chat(assistant(refusal=None, audio=None, annotations=[], function_call=None)),
        chat(assistant()),
    ),
    "the billing line of a system text": (
        chat(system(f"{BILLING}\nbe brief"), user()),
        chat(system("be brief"), user()),
    ),
    "the billing line of another request": (
        chat(system([text(BILLING), text("be brief")]), user()),
        chat(system([text(BILLING.replace("36ee5", "0aaa9")), text("be brief")]), user()),
    ),
    "a developer's billing line": (
        chat({"role": "developer", "content": f"{BILLING}\nx"}),
        chat({"role": "developer", "content": "x"}),
    ),
    "the order of a tool's declared fields": (
        chat(user(), tools=[tool("f", description="d", parameters={"type": "object"})]),
        chat(user(), tools=[{"function": {"parameters": {"type": "object"}, "description": "d", "name": "f"}}]),
    ),
    "null fields of a tool": (chat(user(), tools=[tool("f", strict=None)]), chat(user(), tools=[tool("f")])),
    "no tools": (chat(user(), tools=[]), chat(user(), tools=None)),
    "sampling, identity and bookkeeping": (
        chat(
            user(), temperature=0.5, top_p=0.1, seed=1, stop=["x"], n=2, logprobs=True, stream=True, user="u",
            metadata={"a": 1}, tool_choice="none", parallel_tool_calls=False, response_format={"type": "text"},
            request_id="r", session_id="s", priority=1, stream_options={"include_usage": True}, logit_bias={},
        ),
        chat(user()),
    ),
    "switches that templates use at the end": (
        chat(user(), chat_template_kwargs={"enable_thinking": False, "thinking_budget": 9}, reasoning_effort="low"),
        chat(user()),
    ),
    "the order of template arguments": (
        chat(user(), chat_template_kwargs={"date": "d", "tone": "t"}),
        chat(user(), chat_template_kwargs={"tone": "t", "date": "d"}),
    ),
    "a template argument of null": (chat(user(), chat_template_kwargs={"date": None}), chat(user())),
    "documents by either way": (
        chat(user(), documents=[{"text": "d"}]),
        chat(user(), chat_template_kwargs={"documents": [{"text": "d"}]}),
    ),
}  # fmt: skip

DIFFERENT: dict[str, tuple[Json, Json]] = {
    "one part and two": (chat(user([text("ab")])), chat(user([text("a"), text("b")]))),
    "where two parts are cut": (chat(user([text("a"), text("bc")])), chat(user([text("ab"), text("c")]))),
    "an empty part beside another": (chat(user([text("a"), text("")])), chat(user([text("a")]))),
    "one message and two": (chat(user("a"), user("b")), chat(user([text("a"), text("b")]))),
    "roles": (chat(user("a")), chat(system("a"))),
    "developer and system": (chat({"role": "developer", "content": "a"}), chat(system("a"))),
    "a name": (chat(user("a", name="bob")), chat(user("a"))),
    "a name and a text": (chat(user("bob")), chat(user("", name="bob"))),
    "the order of messages": (chat(user("a"), assistant("b")), chat(assistant("b"), user("a"))),
    "white space in text": (chat(user("a ")), chat(user("a"))),
    "composed and decomposed letters": (chat(user("é")), chat(user("e\u0301"))),
    "content that looks like a part": (chat(user('[{"type":"text","text":"x"}]')), chat(user([text("x")]))),
    "an unknown part and its JSON": (chat(user([{"type": "odd"}])), chat(user('{"type":"odd"}'))),
    "the order of tools": (
        chat(user(), tools=[tool("f"), tool("g")]),
        chat(user(), tools=[tool("g"), tool("f")]),
    ),
    "the order of schema keys": (
        chat(user(), tools=[tool(parameters={"type": "object", "required": ["q"], "properties": {}})]),
        chat(user(), tools=[tool(parameters={"type": "object", "properties": {}, "required": ["q"]})]),
    ),
    "strict": (chat(user(), tools=[tool(strict=True)]), chat(user(), tools=[tool()])),
    "strict false": (chat(user(), tools=[tool(strict=False)]), chat(user(), tools=[tool(strict=True)])),
    "empty parameters and none": (chat(user(), tools=[tool(parameters={})]), chat(user(), tools=[tool()])),
    "a description and a name": (
        chat(user(), tools=[tool("f", description="d")]),
        chat(user(), tools=[tool("fd")]),
    ),
    "tools and none": (chat(user(), tools=[tool()]), chat(user())),
    "the order of argument keys": (
        chat(assistant(tool_calls=[call("f", '{"b":1,"a":2}')])),
        chat(assistant(tool_calls=[call("f", '{"a":2,"b":1}')])),
    ),
    "the function called": (
        chat(assistant(tool_calls=[call("f", "{}")])),
        chat(assistant(tool_calls=[call("g", "{}")])),
    ),
    "a call and none": (chat(assistant("", tool_calls=[call("f", "{}")])), chat(assistant(""))),
    "reasoning and none": (chat(assistant(reasoning="hm")), chat(assistant())),
    "reasoning and text": (chat(assistant("", reasoning="hm")), chat(assistant("hm"))),
    "a billing line in a user's text": (chat(user(f"{BILLING}\nx")), chat(user("x"))),
    "a billing line that is not the first": (chat(system(f"x\n{BILLING}")), chat(system("x"))),
    "template arguments": (
        chat(user(), chat_template_kwargs={"date": "1"}),
        chat(user(), chat_template_kwargs={"date": "2"}),
    ),
    "the types of template arguments": (
        chat(user(), chat_template_kwargs={"date": "1"}),
        chat(user(), chat_template_kwargs={"date": 1}),
    ),
    "documents": (chat(user(), documents=[{"text": "a"}]), chat(user(), documents=[{"text": "b"}])),
    "a chat template": (chat(user(), chat_template="{{ x }}"), chat(user())),
    "lone surrogates": (chat(user("a\ud83d")), chat(user("a\ude00"))),
}


@pytest.mark.parametrize("pair", EQUAL.values(), ids=EQUAL.keys())
def test_what_the_engine_ignores_is_left_out(pair: tuple[Json, Json]) -> None:
    """Two requests that vLLM renders alike are one prompt, whole value compared."""
    assert prompt_of("chat", pair[0]) == prompt_of("chat", pair[1])


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_what_the_engine_keeps_is_kept(pair: tuple[Json, Json]) -> None:
    """Two requests that vLLM renders differently never give the same bytes."""
    assert prompt_of("chat", pair[0]).data != prompt_of("chat", pair[1]).data


def test_the_form_on_the_wire_does_not_count() -> None:
    """Key order, white space and escapes of the body itself are the client's library, not the prompt."""
    plain = b'{"model":"m","messages":[{"role":"user","content":"\xc3\xa9/"}]}'
    spaced = b'\n{ "messages" : [ {"content": "\\u00e9\\/", "role" : "user"} ],\t"model":"m" }'
    assert canonical_prompt("chat", plain) == canonical_prompt("chat", spaced)


def test_a_whole_prompt_is_as_pinned() -> None:
    """One prompt with every piece, byte by byte: what other processes hash too."""
    request = chat(
        system(), user([text("look"), image("u")], name="bob"), assistant(None, tool_calls=[call("f", '{"a": 1}')]),
        tools=[tool("f", description="d", parameters={"type": "object"}, strict=True)],
        documents=[{"b": 1}], cache_salt="s", max_tokens=7,
    )  # fmt: skip
    prompt = prompt_of("chat", request)
    digest = b"0bec3bca3ac49081aa95e6e930e5b54c"
    head = (
        b'\xf8documents\xf9[{"b":1}]\xfaf\xf9d\xf9{"type":"object"}\xf9{"strict":true}\xfbsystem\xfcbe brief'
    )
    media = head + b"\xfbuser\xf9bob\xfclook\xfdimage_url\xf9" + digest
    data = media + b'\xfbassistant\xfef\xf9{"a":1}'
    assert prompt == CanonicalPrompt(data, "m", "s", (len(media),), len(media), True, 7)


def test_front_fields_move_a_switch_to_the_front() -> None:
    """A fleet whose template prints a tail switch first can say so, for both ways of sending it."""
    low, high = chat(user(), reasoning_effort="low"), chat(user(), reasoning_effort="high")
    kwargs = chat(user(), chat_template_kwargs={"reasoning_effort": "low"})
    named = [prompt_of("chat", request, "reasoning_effort").data for request in (low, kwargs, high)]
    assert (named[0] == named[1], named[0] == named[2]) == (True, False)


def test_an_image_counts_by_the_digest_of_its_whole_value() -> None:
    """Two pictures with the same first 40 KB differ, and 3 MB of base64 do not eat the window."""
    same = "data:image/jpeg;base64," + "A" * 3_000_000
    first, second = (prompt_of("chat", chat(user([image(same + end), text("what?")]))) for end in "BC")
    assert (len(first.data), len(second.data)) == (54, 54)
    assert (first.data != second.data, first.media_ends) == (True, (first.data.index(b"\xfcwhat?"),))


def test_media_ends_name_every_part_of_any_kind() -> None:
    """Each image, audio or file part is an offset in order, since each costs tokens its bytes do not show."""
    parts = [image("a"), {"type": "input_audio", "input_audio": {"data": "x"}}, text("t"), {"type": "file"}]
    prompt = prompt_of("chat", chat(user(parts)))
    assert [prompt.data[:end][-33:-32] for end in prompt.media_ends] == [b"\xf9"] * 3
    assert prompt.media_ends[-1] == len(prompt.data)


@pytest.mark.parametrize(
    ("fields", "reads"),
    [
        ({}, True),
        ({"prompt_logprobs": None}, True),
        ({"echo": False}, True),
        ({"prompt_logprobs": 0}, False),
        ({"prompt_logprobs": 5}, False),
        ({"echo": True}, False),
    ],
)
def test_a_prompt_whose_lookup_vllm_skips_reads_no_cache(fields: Json, reads: bool) -> None:
    """prompt_logprobs and echo compute everything and store it: match 0, recorded."""
    plain = prompt_of("chat", chat(user()))
    prompt = prompt_of("chat", chat(user(), **fields))
    assert (prompt.reads_cache, prompt.data) == (reads, plain.data)


def test_model_and_salt_stay_out_of_the_bytes() -> None:
    """They are the namespace: the same bytes under another name share nothing, which blocks.py sees to."""
    prompt = prompt_of("chat", {"model": "adapter", "cache_salt": "t", "messages": [user("x")]})
    assert prompt == CanonicalPrompt(b"\xfbuser\xfcx", "adapter", "t")
    assert prompt_of("chat", {"messages": [user("x")]}) == CanonicalPrompt(b"\xfbuser\xfcx")


def test_the_requested_output_is_the_largest_named() -> None:
    """A client may send the old and the new name; the context window must hold the larger."""
    assert prompt_of("chat", chat(user(), max_tokens=5, max_completion_tokens=9)).output_tokens == 9


def test_a_truncated_prompt_is_skipped() -> None:
    """vLLM cuts from the left, so its prefix is unknown: neither matched nor recorded, in every API."""
    fields = {"truncate_prompt_tokens": 10}
    found = [
        read("chat", chat(user(), **fields)),
        read("completions", {"prompt": "x", **fields}),
        read("responses", {"input": "x", **fields}),
        read("chat", chat(user(), truncate_prompt_tokens=None)),
    ]
    assert found == [Skip("truncated")] * 3 + [prompt_of("chat", chat(user()))]


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/chat/completions", "chat"),
        ("/llm/v1/completions", "completions"),
        ("/v1/responses", "responses"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", None),
        ("/v1/xcompletions", None),
        ("/v1/chat/completions/", None),
        ("", None),
    ],
)
def test_a_path_names_its_api_at_a_segment_edge(path: str, api: str | None) -> None:
    """A path that only ends in the same letters is another path."""
    assert api_of(path) == api
