"""Pairs of chat requests that differ in how they are written, in content or in roles."""

from typing import Any, Final

from tests.core.bodies import assistant, system, text, user
from tests.vllm.pairs import (
    BILLING,
    LONG,
    MERGED_WHY,
    SPLIT_WHY,
    Pair,
    Request,
    apart,
    chat,
    indented,
    literal,
    pair,
    reversed_keys,
    written,
)
from tests.vllm.templates import DEVELOPER, PARTS, PLAIN

_ACCENTS = chat(system("déjà vu 🙂"))
_NESTED = chat(system(), chat_template_kwargs={"enable_thinking": True})

WRITING: Final = (
    pair("the same request again", chat(system()), chat(system())),
    pair("key order of the body", chat(system()), written(chat(system()), reversed_keys)),
    pair("white space of the body", _NESTED, written(_NESTED, indented)),
    pair("\\u escapes", _ACCENTS, written(_ACCENTS, literal)),
    apart("composed and decomposed accents", chat(system("\u00e9")), chat(system("e\u0301"))),
    apart("a space at a text's end", chat(system("be brief")), chat(system("be brief "))),
)

CONTENT: Final = (
    pair("string and one text part", chat(system("be brief")), chat(system([text("be brief")]))),
    Pair(
        "string and one part that is a bare string",
        chat(user("hi")),
        chat(user(["hi"])),
        "all",
        "refused",
        why="vLLM refuses the bare string",
    ),
    Pair(
        "two parts and their texts joined by a newline",
        chat(system([text("be"), text("brief")])),
        chat(system("be\nbrief")),
        "none",
        "all",
        why=SPLIT_WHY,
    ),
    apart(
        "two parts and their texts joined by nothing",
        chat(system([text("be "), text("brief")])),
        chat(system("be brief")),
    ),
    Pair(
        "the same, with a template that goes through the parts",
        chat(system([text("be "), text("brief")]), chat_template=PARTS),
        chat(system("be brief"), chat_template=PARTS),
        "none",
        "all",
        why=SPLIT_WHY,
    ),
    pair(
        "cache_control on a part",
        chat(system([text("be brief", cache_control={"type": "ephemeral"})])),
        chat(system([text("be brief")])),
    ),
    pair(
        "cache_control on a message",
        chat(system() | {"cache_control": {"type": "ephemeral"}}),
        chat(system()),
    ),
    pair(
        "an unknown key on a part",
        chat(system([text("be brief", foo=1)])),
        chat(system([text("be brief")])),
    ),
    Pair(
        "text and input_text",
        chat(user([text("hi")])),
        chat(user([{"type": "input_text", "text": "hi"}])),
        "all",
        "refused",
        why="vLLM refuses input_text in a chat",
    ),
    Pair(
        "a thinking part and a text part of a chat",
        chat(assistant([{"type": "thinking", "thinking": "hm"}])),
        chat(assistant([text("hm")])),
        "none",
        "all",
        why="vLLM prints a chat's thinking part as text; a client that changes between the two is not known",
    ),
    pair(
        "the billing line of a system text",
        chat(system(f"{BILLING}1;\nbe brief")),
        chat(system(f"{BILLING}2;\nbe brief")),
    ),
    pair(
        "the billing line and none",
        chat(system([text(f"{BILLING}1;"), text("s")])),
        chat(system([text("s")])),
    ),
    apart("the billing line in a user text", chat(user(f"{BILLING}1;\nhi")), chat(user(f"{BILLING}2;\nhi"))),
    Pair(
        "the billing line in a developer text",
        chat({"role": "developer", "content": f"{BILLING}1;\nbe brief"}),
        chat({"role": "developer", "content": f"{BILLING}2;\nbe brief"}),
        "all",
        "none",
        why="vLLM takes it out of system texts only; no client that sends it has a developer text",
    ),
    apart("a name that the template prints", chat(user("hi", name="ann")), chat(user("hi", name="bob"))),
    Pair(
        "a null name",
        chat(user("hi")),
        chat(user("hi", name=None)),
        "all",
        "refused",
        why="vLLM refuses the null",
    ),
    pair("null and empty content", chat(user(), assistant(None)), chat(user(), assistant(""))),
    pair("null and missing content", chat(user(), assistant(None)), chat(user(), {"role": "assistant"})),
    pair("empty tool_calls", chat(user(), assistant(tool_calls=[])), chat(user(), assistant())),
    pair(
        "null fields of a message",
        chat(user(), assistant(refusal=None, audio=None, function_call=None, tool_calls=None)),
        chat(user(), assistant()),
    ),
    Pair(
        "function_call of a message",
        chat(user(), assistant(function_call={"name": "f", "arguments": "{}"})),
        chat(user(), assistant()),
        "none",
        "all",
        why="the deprecated field reaches no template of ours, but may reach another's",
    ),
    pair(
        "reasoning by either name", chat(assistant(reasoning="hm")), chat(assistant(reasoning_content="hm"))
    ),
    pair(
        "both names of reasoning",
        chat(assistant(reasoning="hm", reasoning_content="ha")),
        chat(assistant(reasoning="hm")),
    ),
    pair("empty reasoning", chat(assistant(reasoning="")), chat(assistant())),
    apart("reasoning that the template prints", chat(assistant(reasoning="hm")), chat(assistant())),
    Pair(
        "reasoning that the template drops",
        chat(assistant(reasoning="hm"), chat_template=PLAIN),
        chat(assistant(), chat_template=PLAIN),
        "none",
        "all",
        why="which template drops it is not known here; too little is predicted, never too much",
    ),
)

_TURN: Final = (user(LONG), assistant("yes"))


def grown(*added: Any, **fields: Any) -> tuple[Request, Request]:
    """Return a conversation, and the same with messages added behind its long first ones."""
    before = Request("chat", {"messages": [system(), *_TURN], **fields})
    return before, Request("chat", {"messages": [system(), *_TURN, *added, user("more")], **fields})


ROLES: Final = (
    pair("the next turn", *grown()),
    pair("a late system message", *grown(system("be quick"))),
    Pair(
        "a late developer message",
        *grown({"role": "developer", "content": "be quick"}),
        "all",
        "none",
        why=MERGED_WHY,
    ),
    pair(
        "a late developer message, with a template that knows the role",
        *grown({"role": "developer", "content": "be quick"}, chat_template=DEVELOPER),
    ),
    Pair(
        "developer and system at the front",
        chat({"role": "developer", "content": "be brief"}),
        chat(system("be brief")),
        "none",
        "all",
        why=MERGED_WHY,
    ),
    apart(
        "the same, with a template that knows the role",
        chat({"role": "developer", "content": "be brief"}, chat_template=DEVELOPER),
        chat(system("be brief"), chat_template=DEVELOPER),
    ),
)
