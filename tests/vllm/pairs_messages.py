"""Pairs of the Anthropic API: against the chat form, and against themselves."""

from typing import Any, Final

from tests.core.bodies import Json, assistant, call, system, text, tool, user
from tests.vllm.pairs import BILLING, SCHEMA, SPLIT_WHY, Pair, apart, chat, messages, pair

TOOL_USE: Final = {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": 2}}
CALLED: Final = assistant(None, tool_calls=[call("f", '{"b": 1, "a": 2}')])
RESULT: Final = {"role": "tool", "content": "ok", "tool_call_id": "t1"}
EPHEMERAL: Final = {"cache_control": {"type": "ephemeral"}}


def tool_result(content: Any, **fields: Any) -> Json:
    """Return one tool_result block."""
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **fields}


MESSAGES: Final = (
    pair("messages: user and assistant", messages(user(), assistant()), chat(user(), assistant())),
    pair("messages: system as a string", messages(system="be brief"), chat(system())),
    pair(
        "messages: system of blocks, joined with nothing",
        messages(system=[text("be "), text("brief")]),
        chat(system()),
    ),
    pair(
        "messages: cache_control of system",
        messages(system=[text("be brief", **EPHEMERAL)]),
        messages(system="be brief"),
    ),
    pair(
        "messages: the billing block",
        messages(system=[text(f"{BILLING}1;"), text("s")]),
        messages(system=[text(f"{BILLING}2;"), text("s")]),
    ),
    pair(
        "messages: the billing block and none",
        messages(system=[text(f"{BILLING}1;"), text("s")]),
        chat(system("s")),
    ),
    pair(
        "messages: cache_control of a block", messages(user([text("hi", **EPHEMERAL)])), messages(user("hi"))
    ),
    Pair(
        "messages: an empty text block",
        messages(user([text("hi"), text("")])),
        messages(user("hi")),
        "none",
        "all",
        why="vLLM drops it in this API; a chat keeps it, and clients of this one send none",
    ),
    Pair(
        "messages: two blocks and joined by a newline",
        messages(user([text("a"), text("b")])),
        messages(user("a\nb")),
        "none",
        "all",
        why=SPLIT_WHY,
    ),
    pair("messages: tool_use", messages(user(), assistant([TOOL_USE])), chat(user(), CALLED)),
    pair(
        "messages: text and tool_use",
        messages(user(), assistant([text("y"), TOOL_USE])),
        chat(user(), CALLED | {"content": "y"}),
    ),
    pair(
        "messages: id of tool_use",
        messages(user(), assistant([TOOL_USE | {"id": "t2"}])),
        messages(user(), assistant([TOOL_USE])),
    ),
    apart(
        "messages: key order of an input",
        messages(assistant([TOOL_USE | {"input": {"a": 2, "b": 1}}])),
        messages(assistant([TOOL_USE])),
    ),
    pair(
        "messages: tool_result",
        messages(user(), assistant([TOOL_USE]), user([tool_result("ok")])),
        chat(user(), CALLED, RESULT),
    ),
    pair(
        "messages: tool_result of one block",
        messages(user([tool_result([text("ok")])])),
        messages(user([tool_result("ok")])),
    ),
    pair(
        "messages: is_error",
        messages(user([tool_result("ok", is_error=True)])),
        messages(user([tool_result("ok")])),
    ),
    pair(
        "messages: tool_result and text",
        messages(user([tool_result("ok"), text("go")])),
        chat(RESULT, user("go")),
    ),
    pair(
        "messages: text before a tool_result",
        messages(user([text("go"), tool_result("ok")])),
        chat(RESULT, user("go")),
    ),
    pair(
        "messages: thinking",
        messages(assistant([{"type": "thinking", "thinking": "hm", "signature": "s"}, text("y")])),
        chat(assistant("y", reasoning="hm")),
    ),
    pair(
        "messages: signature of thinking",
        messages(assistant([{"type": "thinking", "thinking": "hm", "signature": "s"}])),
        messages(assistant([{"type": "thinking", "thinking": "hm", "signature": "r"}])),
    ),
    pair(
        "messages: redacted_thinking",
        messages(assistant([{"type": "redacted_thinking", "data": "x"}, text("y")])),
        chat(assistant("y")),
    ),
    pair("messages: a late system message", messages(user(), system("quick")), chat(user(), system("quick"))),
    pair(
        "messages: tools",
        messages(tools=[{"name": "f", "description": "d", "input_schema": SCHEMA}]),
        chat(tools=[tool("f", description="d", parameters=SCHEMA)]),
    ),
    Pair(
        "messages: a schema without type",
        messages(tools=[{"name": "f", "input_schema": {"properties": {}}}]),
        messages(tools=[{"name": "f", "input_schema": {"properties": {}, "type": "object"}}]),
        "none",
        "all",
        why="vLLM adds the type; a client sends it always or never",
    ),
    pair(
        "messages: cache_control of a tool",
        messages(tools=[{"name": "f", "input_schema": SCHEMA, **EPHEMERAL}]),
        messages(tools=[{"name": "f", "input_schema": SCHEMA}]),
    ),
    Pair(
        "messages: type of a tool",
        messages(tools=[{"type": "custom", "name": "f", "input_schema": SCHEMA}]),
        messages(tools=[{"name": "f", "input_schema": SCHEMA}]),
        "none",
        "all",
        why="other types than custom are other tools elsewhere; a client sends it always or never",
    ),
    pair(
        "messages: metadata, thinking and tool_choice",
        messages(metadata={"user_id": "u"}, thinking={"type": "disabled"}, stop_sequences=["x"]),
        messages(),
    ),
    apart("messages: cache_salt", messages(cache_salt="d"), messages(cache_salt="e")),
)
