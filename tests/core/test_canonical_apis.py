"""Completions, Responses and Anthropic messages: equal to their chat forms where vLLM renders them alike."""

import pytest
from msgspec.structs import replace

from prefix_middleware.core.canonical import CanonicalPrompt, Skip
from tests.core.bodies import Json, assistant, call, chat, image, prompt_of, read, system, text, user

BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=36ee5;"
TOOL_USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": 2}}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
RESULT = {"role": "tool", "content": "ok"}


def tool_result(content: object) -> Json:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content}


MESSAGES_AS_CHAT: dict[str, tuple[Json, Json]] = {
    "system text": ({"system": "s", "messages": [user("x")]}, chat(system("s"), user("x"))),
    "system blocks are joined with nothing": (
        {"system": [text("a"), text("b", cache_control={"type": "ephemeral"})], "messages": [user("x")]},
        chat(system("ab"), user("x")),
    ),
    "no system": ({"system": [], "messages": [user("x")]}, chat(user("x"))),
    "an empty system": ({"system": "", "messages": [user("x")]}, chat(user("x"))),
    "a billing block": (
        {"system": [text(BILLING), text("s")], "messages": [user("x")]},
        chat(system("s"), user("x")),
    ),
    "only a billing block": ({"system": [text(BILLING)], "messages": [user("x")]}, chat(user("x"))),
    "text blocks": ({"messages": [user([text("x")])]}, chat(user("x"))),
    "tool use": (
        {"messages": [user("x"), assistant([text("y"), TOOL_USE])]},
        chat(user("x"), assistant("y", tool_calls=[call("f", '{"b": 1, "a": 2}')])),
    ),
    "a tool result": (
        {"messages": [assistant([TOOL_USE]), user([tool_result("ok")])]},
        chat(assistant(None, tool_calls=[call("f", '{"b":1,"a":2}')]), RESULT),
    ),
    "a tool result of blocks": ({"messages": [user([tool_result([text("ok")])])]}, chat(RESULT)),
    "an empty tool result": (
        {"messages": [user([{"type": "tool_result", "tool_use_id": "t"}])]},
        chat({"role": "tool", "content": ""}),
    ),
    "tool results before what the user says": (
        {"messages": [user([tool_result("ok"), tool_result("ok"), text("and?")])]},
        chat(RESULT, RESULT, user("and?")),
    ),
    "thinking": (
        {"messages": [assistant([{"type": "thinking", "thinking": "hm", "signature": "s"}, text("y")])]},
        chat(assistant("y", reasoning="hm")),
    ),
    "redacted thinking": (
        {"messages": [assistant([{"type": "redacted_thinking", "data": "x"}, text("y")])]},
        chat(assistant("y")),
    ),
    "tools": (
        {"tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}], "messages": [user("x")]},
        chat(user("x"), tools=[{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}]),
    ),
    "effort, metadata and thinking switches": (
        {"messages": [user("x")], "metadata": {"user_id": "u"}, "thinking": {"type": "disabled"}, "max_tokens": 5},
        chat(user("x"), max_tokens=5),
    ),
}  # fmt: skip

RESPONSES_AS_CHAT: dict[str, tuple[Json, Json]] = {
    "input text": ({"input": "x"}, chat(user("x"))),
    "instructions": ({"instructions": "s", "input": "x"}, chat(system("s"), user("x"))),
    "null instructions": ({"instructions": None, "input": "x"}, chat(user("x"))),
    "message items": (
        {
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"type": "message", "id": "m1", "status": "completed", "role": "assistant",
                 "content": [{"type": "output_text", "text": "y", "annotations": []}]},
                {"role": "user", "content": "z"},
            ]
        },
        chat(user("x"), assistant("y"), user("z")),
    ),
    "a function call and its output": (
        {
            "input": [
                {"type": "function_call", "id": "i", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
                {"type": "function_call_output", "call_id": "c", "output": "ok"},
            ]
        },
        chat(assistant(None, tool_calls=[call("f", '{"a":1}')]), RESULT),
    ),
    "flat tools": (
        {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}]},
        chat(user("x"), tools=[{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}]),
    ),
    "what does not reach the prompt": (
        {"input": "x", "store": True, "prompt_cache_key": "k", "user": "u", "text": {"format": {"type": "text"}},
         "metadata": {}, "previous_response_id": None, "max_output_tokens": 5},
        chat(user("x"), max_tokens=5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("pair", MESSAGES_AS_CHAT.values(), ids=MESSAGES_AS_CHAT.keys())
def test_anthropic_messages_are_the_chat_that_vllm_makes_of_them(pair: tuple[Json, Json]) -> None:
    """vLLM turns the Anthropic form into chat messages first, so a worker shares the cache between both."""
    assert prompt_of("messages", {"model": "m", **pair[0]}) == prompt_of("chat", pair[1])


@pytest.mark.parametrize("pair", RESPONSES_AS_CHAT.values(), ids=RESPONSES_AS_CHAT.keys())
def test_responses_are_the_chat_that_vllm_makes_of_them(pair: tuple[Json, Json]) -> None:
    """Instructions and items give the same tokens as the chat form, so they give the same bytes."""
    assert prompt_of("responses", {"model": "m", **pair[0]}) == replace(
        prompt_of("chat", pair[1]), pinned=False
    )


@pytest.mark.parametrize("field", ["previous_response_id", "conversation"])
def test_a_prompt_that_is_on_the_server_is_never_routed_by_its_visible_text(field: str) -> None:
    """The nine bytes that are visible say nothing about the history."""
    assert read("responses", {"model": "m", "input": "and then?", field: "resp_1"}) == Skip("stateful")


def test_a_reference_to_a_stored_item_is_stateful() -> None:
    """The item's text is on the server too."""
    items = [{"type": "item_reference", "id": "i"}, {"role": "user", "content": "x"}]
    assert read("responses", {"input": items}) == Skip("stateful")


def test_reasoning_items_belong_to_the_reply() -> None:
    """Readable reasoning counts as such, content before summary; an encrypted one only as an assistant's turn."""
    content = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []}
    summary = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
    encrypted = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
    prompts = [
        prompt_of("responses", {"model": "m", "input": [item, *RESPONSES_TAIL]})
        for item in (content, summary, encrypted)
    ]
    chats = [replace(prompt_of("chat", it), pinned=False) for it in (REASONED, REASONED, ENCRYPTED)]
    assert prompts == chats


RESPONSES_TAIL = [{"role": "assistant", "content": "y"}]
REASONED = chat(assistant(None, reasoning="hm"), assistant("y"))
ENCRYPTED = chat(assistant(None), assistant("y"))


def test_an_item_of_an_unknown_kind_counts_whole_but_for_its_id() -> None:
    """What a later API adds changes the prompt; ids and states do not."""
    items = [{"type": "shell_call", "id": i, "status": s, "command": c} for i, s, c in ("1ax", "2bx", "1ay")]
    first, same, other = (prompt_of("responses", {"input": [item]}).data for item in items)
    assert (first == same, first == other) == (True, False)


@pytest.mark.parametrize(
    ("prompt", "data"),
    [
        ("ab", b"\xfcab"),
        (["ab"], b"\xfcab"),
        ("", b"\xfc"),
        ([1, 2], b"\xf9\x01\0\0\0\x02\0\0\0"),
        ([[1, 2]], b"\xf9\x01\0\0\0\x02\0\0\0"),
    ],
)
def test_completion_prompts_are_text_or_tokens_of_fixed_width(prompt: object, data: bytes) -> None:
    """Fixed width keeps token prompts prefix-stable, and their tag keeps them apart from text."""
    expected = CanonicalPrompt(data, "m")
    assert prompt_of("completions", {"model": "m", "prompt": prompt}) == expected


@pytest.mark.parametrize(
    ("prompt", "skip"),
    [
        (["a", "b"], "batch"),
        ([[1], [2]], "batch"),
        (None, "unparsable"),
        ([], "unparsable"),
        ([[]], "unparsable"),
        ([1, "a"], "unparsable"),
        ([1.5], "unparsable"),
        ([-1], "unparsable"),
        ([2**32], "unparsable"),
        ({"a": 1}, "unparsable"),
        (7, "unparsable"),
    ],
)
def test_a_completion_prompt_that_is_not_one_prompt_is_skipped(prompt: object, skip: str) -> None:
    """A batch has several prefixes; the rest is refused by vLLM."""
    found = read("completions", {"model": "m", "prompt": prompt})
    assert (type(found), getattr(found, "reason", "")) == (Skip, skip)


def test_completions_ignore_what_only_chats_have() -> None:
    """tools and template arguments do not reach a plain completion."""
    plain = prompt_of("completions", {"model": "m", "prompt": "x"})
    assert prompt_of("completions", {"model": "m", "prompt": "x", "tools": [{}], "documents": [1]}) == plain


def test_an_echoed_completion_reads_no_cache() -> None:
    """echo needs the prompt's log probabilities, so vLLM computes all of it."""
    assert prompt_of("completions", {"prompt": "x", "echo": True}) == CanonicalPrompt(
        b"\xfcx", reads_cache=False
    )


@pytest.mark.parametrize(
    ("api", "request_"),
    [
        ("chat", chat(system(), user("a"), assistant("b"), assistant("c"), user("d"))),
        ("messages", {"model": "m", "system": "be brief", "messages": [user("a"), assistant("b"), assistant("c"), user("d")]}),
        ("responses", {"model": "m", "instructions": "be brief",
                       "input": [user("a"), assistant("b"), assistant("c"), user("d")]}),
    ],
)  # fmt: skip
def test_the_last_reply_begins_where_the_previous_prompt_ended(api: str, request_: Json) -> None:
    """A reply of several messages in a row is one reply, in every API."""
    prompt = prompt_of(api, request_)  # type: ignore[arg-type]
    before = prompt_of("chat", chat(system(), user("a")))
    assert (prompt.data[: prompt.reply_offset], before.reply_offset) == (before.data, None)


def test_an_image_in_a_tool_result_counts_as_media() -> None:
    """Screenshots come back as tool results; they cost as many tokens there."""
    shot = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 9000}}
    prompt = prompt_of("messages", {"messages": [user([tool_result([shot])])]})
    assert (len(prompt.data), prompt.media_ends) == (44, (44,))
    assert prompt.data != prompt_of("chat", chat({"role": "tool", "content": [image("A" * 9000)]})).data
