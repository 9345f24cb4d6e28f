"""The mark of a prompt's end: turn k's is what turn k+1 says it continues, in every API with messages."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from prefix_middleware.core.blocks import HashedPrompt, Hasher
from prefix_middleware.core.canonical import Api, CanonicalPrompt, canonical_prompt
from tests.core import strategies as some
from tests.core.bodies import Json, assistant, call, chat, encode, prompt_of, user

Conversation = tuple[str, str, list[some.Turn]]
HASHER = Hasher(None, 32768)
OK = "done"


def as_chat(conversation: Conversation) -> Json:
    """Write the conversation as a chat request."""
    system, first, turns = conversation
    messages: list[Json] = [{"role": "system", "content": system}, user(first)]
    for turn in turns:
        calls = [call(name, json.dumps(arguments)) for name, arguments in turn.calls]
        messages.append(assistant(turn.reply, reasoning=turn.thought, tool_calls=calls))
        messages += [{"role": "tool", "content": OK} for _ in calls]
        messages.append(user(turn.said))
    return chat(*messages)


def as_messages(conversation: Conversation) -> Json:
    """Write the conversation as an Anthropic request."""
    system, first, turns = conversation
    messages: list[Json] = [user(first)]
    for turn in turns:
        calls = [{"type": "tool_use", "name": name, "input": arguments} for name, arguments in turn.calls]
        thought = {"type": "thinking", "thinking": turn.thought}
        messages.append(assistant([thought, {"type": "text", "text": turn.reply}, *calls]))
        results = [{"type": "tool_result", "content": OK} for _ in calls]
        messages.append(user([*results, {"type": "text", "text": turn.said}]))
    return {"model": "m", "system": system, "messages": messages}


def as_responses(conversation: Conversation) -> Json:
    """Write the conversation as a Responses request."""
    system, first, turns = conversation
    items: list[Json] = [user(first)]
    for turn in turns:
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": turn.thought}]})
        items.append(assistant([{"type": "output_text", "text": turn.reply}]))
        calls = [(name, json.dumps(arguments)) for name, arguments in turn.calls]
        items += [{"type": "function_call", "name": name, "arguments": text} for name, text in calls]
        items += [{"type": "function_call_output", "output": OK} for _ in calls]
        items.append({"type": "message", "role": "user", "content": turn.said})
    return {"model": "m", "instructions": system, "input": items}


FORMS: list[tuple[Api, Callable[[Conversation], Json]]] = [
    ("chat", as_chat),
    ("messages", as_messages),
    ("responses", as_responses),
]


def hashed(api: Api, request: Json) -> HashedPrompt:
    prompt = canonical_prompt(api, encode(request))
    assert isinstance(prompt, CanonicalPrompt)
    return HASHER.hash(prompt)


@pytest.mark.parametrize(("api", "form"), FORMS, ids=[api for api, _ in FORMS])
@settings(max_examples=25, deadline=None)
@given(some.CONVERSATIONS)
def test_each_turn_continues_the_one_before(
    api: Api, form: Callable[[Conversation], Json], conversation: Conversation
) -> None:
    """Turn k+1 names the end of turn k, so its worker is known even when neither fills a block."""
    system, first, turns = conversation
    prompts = [hashed(api, form((system, first, turns[:count]))) for count in range(len(turns) + 1)]
    assert [prompt.previous_end for prompt in prompts] == [None, *(prompt.end for prompt in prompts[:-1])]


@pytest.mark.parametrize(("api", "form"), FORMS, ids=[api for api, _ in FORMS])
@settings(max_examples=25, deadline=None)
@given(some.CONVERSATIONS)
def test_a_sibling_is_not_continued(
    api: Api, form: Callable[[Conversation], Json], conversation: Conversation
) -> None:
    """A conversation that shares everything but the last words of the previous prompt has another end."""
    system, first, turns = conversation
    prompt = hashed(api, form(conversation))
    sibling = (
        (system, first + "!", []) if len(turns) == 1 else (system, first, [*turns[:-2], said_more(turns[-2])])
    )
    assert hashed(api, form(sibling)).end != prompt.previous_end


def said_more(turn: some.Turn) -> some.Turn:
    return some.Turn(turn.reply, turn.thought, turn.calls, turn.said + "!")


def test_an_end_far_behind_the_window_still_tells_prompts_apart() -> None:
    """Past the window only the end knows the difference: its last 64 KiB and its length count."""
    long = "x" * 200_000
    ends = [
        hashed("chat", chat(user(content))).end for content in (long, long + "x", long + "y", long[:-1] + "y")
    ]
    assert len(set(ends)) == 4


def test_a_conversation_longer_than_the_window_is_still_continued() -> None:
    """The chain of ends does not stop where the blocks do."""
    turns = [some.Turn("r" * 30_000, "", (), "s" * 30_000)] * 3
    prompts = [hashed("chat", as_chat(("", "f", turns[:count]))) for count in range(4)]
    assert [prompt.previous_end for prompt in prompts[1:]] == [prompt.end for prompt in prompts[:-1]]


def test_a_tool_loop_continues_itself() -> None:
    """The next request of a loop ends in tool results and no user text: it continues the request before."""
    first: list[Any] = [user("go")]
    second = [*first, assistant(None, tool_calls=[call("f", "{}")]), {"role": "tool", "content": OK}]
    assert hashed("chat", chat(*second)).previous_end == hashed("chat", chat(*first)).end


def test_the_end_belongs_to_a_namespace() -> None:
    """The same words to another model, or with another salt, continue nothing."""
    plain = prompt_of("chat", chat(user("x")))
    marks = [
        HASHER.hash(plain).end,
        HASHER.hash(plain, "tenant").end,
        hashed("chat", chat(user("x"), cache_salt="s")).end,
    ]
    assert len(set(marks)) == 3
