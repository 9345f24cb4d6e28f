"""Pairs of the Responses API: against the chat form, and against themselves."""

from typing import Final

from tests.core.bodies import Json, assistant, call, system, tool, user
from tests.vllm.pairs import LONG, MERGED_WHY, SCHEMA, Pair, Request, apart, chat, pair, responses

CALLED: Final = assistant(None, tool_calls=[call("f", '{"b": 1, "a": 2}')])
RESULT: Final = {"role": "tool", "content": "ok", "tool_call_id": "t1"}
ONE_MESSAGE_WHY: Final = (
    "vLLM makes one assistant message of such items, we one of each: within one API both only grow"
)


def said(content: str) -> Json:
    """Return an output message of the Responses API."""
    part = {"type": "output_text", "text": content, "annotations": []}
    return {"type": "message", "id": "m1", "status": "completed", "role": "assistant", "content": [part]}


RESPONSES: Final = (
    pair("responses: input as a string", Request("responses", {"input": LONG}), chat()),
    pair("responses: instructions", responses(instructions="be brief"), chat(system())),
    pair(
        "responses: input_text",
        responses({"role": "user", "content": [{"type": "input_text", "text": "hi"}]}),
        responses(user()),
    ),
    pair(
        "responses: a message with and without its type",
        responses({"type": "message", "role": "user", "content": "hi"}),
        responses(user()),
    ),
    pair("responses: an output message", responses(user(), said("yes")), chat(user(), assistant())),
    pair(
        "responses: id and status of an output message",
        responses(user(), said("yes") | {"id": "m2"}),
        responses(user(), said("yes")),
    ),
    Pair(
        "responses: an output message of two texts",
        responses(user(), said("yes") | {"content": [*said("yes")["content"], *said("no")["content"]]}),
        responses(user(), said("yes")),
        "none",
        "all",
        why="vLLM reads the first only; answers have one",
    ),
    pair(
        "responses: a function call",
        responses(
            user(), {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"b": 1, "a": 2}'}
        ),
        chat(user(), CALLED),
    ),
    pair(
        "responses: a function's output",
        responses({"type": "function_call_output", "call_id": "c", "output": "ok"}),
        chat(RESULT),
    ),
    Pair(
        "responses: text and function call",
        responses(
            user(), said("yes"), {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        ),
        chat(user(), assistant("yes", tool_calls=[call("f", "{}")])),
        "none",
        "all",
        why=ONE_MESSAGE_WHY,
    ),
    Pair(
        "responses: reasoning and text",
        responses(
            user(),
            {
                "type": "reasoning",
                "id": "r",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
            said("yes"),
        ),
        chat(user(), assistant("yes", reasoning="hm")),
        "none",
        "all",
        why=ONE_MESSAGE_WHY,
    ),
    pair(
        "responses: tools",
        responses(tools=[{"type": "function", "name": "f", "description": "d", "parameters": SCHEMA}]),
        chat(tools=[tool("f", description="d", parameters=SCHEMA)]),
    ),
    Pair(
        "responses: developer and system",
        responses({"role": "developer", "content": "be brief"}),
        responses(system()),
        "none",
        "all",
        why=MERGED_WHY,
    ),
    pair("responses: reasoning effort", responses(reasoning={"effort": "low"}), responses()),
    pair(
        "responses: text format, metadata, user",
        responses(text={"format": {"type": "text"}}, metadata={"a": "b"}, user="u"),
        responses(),
    ),
    pair("responses: prompt_cache_key", responses(prompt_cache_key="a"), responses(prompt_cache_key="b")),
    apart("responses: cache_salt", responses(cache_salt="f"), responses(cache_salt="g")),
    Pair(
        "responses: previous_response_id",
        responses(),
        responses(previous_response_id="resp_1"),
        "skipped",
        "refused",
        why="only the worker that stored it knows the text, and this one stores nothing",
    ),
)
