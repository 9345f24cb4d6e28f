"""Pairs of chat requests that differ in tools, calls of tools or their results."""

from typing import Any, Final

from tests.core.bodies import assistant, call, text, tool, user
from tests.vllm.pairs import SCHEMA, SPLIT_WHY, Pair, Request, apart, chat, pair
from tests.vllm.templates import IDS

SCHEMA_REVERSED: Final = dict(reversed(SCHEMA.items()))
F: Final = tool("f", description="finds", parameters=SCHEMA)
G: Final = tool("g", description="goes", parameters=SCHEMA)


def called(arguments: Any, id: str = "c1") -> Request:
    """Return a chat in which a tool was called."""
    return chat(user(), assistant(None, tool_calls=[call("f", arguments) | {"id": id}]))


TOOLS: Final = (
    apart("order of the tools", chat(tools=[F, G]), chat(tools=[G, F])),
    pair("key order of a tool", chat(tools=[F]), chat(tools=[{k: F[k] for k in reversed(F)}])),
    pair(
        "key order of a function",
        chat(tools=[F]),
        chat(tools=[F | {"function": dict(reversed(F["function"].items()))}]),
    ),
    apart(
        "key order of the parameters",
        chat(tools=[F]),
        chat(tools=[tool("f", description="finds", parameters=SCHEMA_REVERSED)]),
    ),
    pair(
        "keys beside function",
        chat(tools=[F | {"cache_control": {"type": "ephemeral"}, "x": 1}]),
        chat(tools=[F]),
    ),
    Pair(
        "defer_loading beside function",
        chat(tools=[F | {"defer_loading": True}]),
        chat(tools=[F]),
        "all",
        "none",
        why="vLLM copies this one into the function; a client sends it always or never",
    ),
    apart(
        "strict",
        chat(tools=[tool("f", parameters=SCHEMA, strict=True)]),
        chat(tools=[tool("f", parameters=SCHEMA)]),
    ),
    pair(
        "a null strict",
        chat(tools=[tool("f", parameters=SCHEMA, strict=None)]),
        chat(tools=[tool("f", parameters=SCHEMA)]),
    ),
    Pair(
        "an unknown key of a function",
        chat(tools=[tool("f", parameters=SCHEMA, x=1)]),
        chat(tools=[tool("f", parameters=SCHEMA)]),
        "none",
        "all",
        why="vLLM 0.32 drops it, earlier ones printed it; a client sends it always or never",
    ),
    pair("a null description", chat(tools=[tool("f", description=None)]), chat(tools=[tool("f")])),
    Pair(
        "no tools and an empty list",
        chat(),
        chat(tools=[]),
        "all",
        "refused",
        why="vLLM refuses the empty list",
    ),
    pair("tool_choice", chat(tools=[F], tool_choice="auto"), chat(tools=[F], tool_choice="none")),
    pair("parallel_tool_calls", chat(tools=[F], parallel_tool_calls=False), chat(tools=[F])),
    pair("white space of arguments", called('{"b": 1, "a": [1, 2]}'), called('{"b":1,"a":[1,2]}')),
    apart("key order of arguments", called('{"b": 1, "a": 2}'), called('{"a": 2, "b": 1}')),
    pair("escapes of arguments", called('{"a": "\\u00e9\\/"}'), called('{"a": "é/"}')),
    pair("malformed arguments and {}", called('{"a":'), called("{}")),
    pair("arguments that are a list and {}", called("[1]"), called("{}")),
    pair("empty arguments and {}", called(""), called("{}")),
    apart("1 and 1.0 in arguments", called('{"a": 1}'), called('{"a": 1.0}')),
    pair("1e2 and 100.0 in arguments", called('{"a": 1e2}'), called('{"a": 100.0}')),
    pair("a key twice in arguments", called('{"a": 1, "a": 2}'), called('{"a": 2}')),
    Pair(
        "arguments as an object",
        called("{}"),
        called({}),
        "all",
        "refused",
        why="vLLM refuses them",
    ),
    pair("ids of tool calls", called("{}", "c1"), called("{}", "c2")),
    Pair(
        "ids of tool calls that the template prints",
        chat(user(), assistant("", tool_calls=[call("f", "{}") | {"id": "c1"}]), chat_template=IDS),
        chat(user(), assistant("", tool_calls=[call("f", "{}") | {"id": "c2"}]), chat_template=IDS),
        "all",
        "none",
        why="ids of one conversation do not change between its turns, and few templates print them",
    ),
    pair(
        "tool_call_id of a result",
        chat({"role": "tool", "content": "ok", "tool_call_id": "a"}),
        chat({"role": "tool", "content": "ok", "tool_call_id": "b"}),
    ),
    pair(
        "a result as string and as one part",
        chat({"role": "tool", "content": "ok", "tool_call_id": "a"}),
        chat({"role": "tool", "content": [text("ok")], "tool_call_id": "a"}),
    ),
    Pair(
        "a result of two parts and joined by a newline",
        chat({"role": "tool", "content": [text("o"), text("k")], "tool_call_id": "a"}),
        chat({"role": "tool", "content": "o\nk", "tool_call_id": "a"}),
        "none",
        "all",
        why=SPLIT_WHY,
    ),
)
