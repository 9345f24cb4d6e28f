"""1. Request JSON to the canonical prompt: bytes that are equal exactly when the engine's prompt is (form: writer.py).

1. Order: template arguments, tools, messages in order; `system` and `instructions` first where the API keeps them apart.
2. What vLLM ignores is left out and what it keeps is kept as sent (vLLM 0.32, `parse_chat_messages_async`).
3. Nothing raises: what cannot be read, or says nothing about the prompt, is a `Skip`.
"""

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from msgspec import Struct

from prefix_middleware.core.merging import merged
from prefix_middleware.core.pieces import WHOLE_BYTES, TooManyValues, in_pieces
from prefix_middleware.core.writer import (
    BILLING_HEADER,
    VALUE,
    Unreadable,
    Writer,
    decode,
    dict_of,
    list_of,
    text_of,
)

Api = Literal["chat", "completions", "responses", "messages"]
SkipReason = Literal[
    "path", "unparsable", "too_large", "encoded", "stateful", "batch", "truncated", "off", "error"
]

ARGUMENTS: Final = ("add_special_tokens", "chat_template", "documents", "mm_processor_kwargs")
_ARGUMENT_FIELDS: Final = frozenset((*ARGUMENTS, "chat_template_kwargs"))
TAIL_SWITCHES: Final = frozenset(
    ("add_generation_prompt", "enable_thinking", "reasoning_effort", "thinking", "thinking_budget")
)
"""Template switches that most templates use at the very end of the prompt."""

_SUFFIXES: Final[Mapping[str, Api]] = {
    "/chat/completions": "chat",
    "/completions": "completions",
    "/responses": "responses",
    "/messages": "messages",
}
_UNREAD: Final = (
    "echo",
    "prompt_logprobs",
    "prompt_logprob_token_ids",
)  # with one of these vLLM skips the look-up
_TOKENS_A_STEP: Final = 4096
_OUTPUT_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class Skip:
    """The request passes unrouted, for this reason."""

    reason: SkipReason


class CanonicalPrompt(Struct, frozen=True):
    """A prompt as bytes that only grow when the conversation grows."""

    data: bytes
    model: str = ""  # "" is the worker's base model
    salt: str = ""
    media_ends: tuple[int, ...] = ()  # offset in data behind each image, audio or file part
    reply_offset: int | None = None  # where the last reply starts: the previous prompt ended there
    reads_cache: bool = True  # False: the engine computes all of it, and stores it
    output_tokens: int = 0  # the most the client asks for, 0 when it does not say
    pinned: bool = True  # False: vLLM takes any data-parallel rank, whatever nginx asks for


class _Unroutable(Exception):
    def __init__(self, reason: SkipReason) -> None:
        self.reason = reason


def api_of(path: str) -> Api | None:
    """Return the API whose path ends `path` at a segment edge, None for any other path."""
    for suffix, api in _SUFFIXES.items():
        if path.endswith(suffix):
            return api
    return None


def canonical_prompt(
    api: Api, body: bytes, front_fields: Iterable[str] = (), merge_system: Container[str] = ()
) -> CanonicalPrompt | Skip:
    """Read one request body; `front_fields` names switches that this fleet's templates print at the front.

    `merge_system` names the models whose templates want all system text there.
    """
    prompt: CanonicalPrompt | Skip | None = None
    steps = prompt_steps(api, body, front_fields, merge_system)
    for prompt in steps:  # noqa: B007 - the last one counts
        pass
    return prompt or Skip("unparsable")


def prompt_steps(
    api: Api, body: bytes, front_fields: Iterable[str] = (), merge_system: Container[str] = ()
) -> Iterator[CanonicalPrompt | Skip | None]:
    """Yield None after each short step, then what `canonical_prompt` returns."""
    try:
        request = dict_of(decode(body)) if len(body) <= WHOLE_BYTES else (yield from in_pieces(body))
        if request.get("truncate_prompt_tokens") is not None:
            yield Skip("truncated")
            return
        if merge_system and (api == "chat" or api == "messages") and request.get("model") in merge_system:
            request = merged(api, request)
        yield (yield from _prompt(api, request, frozenset(front_fields)))
    except _Unroutable as unroutable:
        yield Skip(unroutable.reason)
    except TooManyValues:
        yield Skip("too_large")
    except (ValueError, RecursionError):
        yield Skip("unparsable")


def _prompt(
    api: Api, request: dict[str, Any], front: frozenset[str]
) -> Generator[None, None, CanonicalPrompt]:
    writer = Writer()
    if api != "completions":
        _arguments(writer, request, front)
        for tool in list_of(request.get("tools")):
            writer.tool(tool)
            yield
    yield from _PROMPTS[api](writer, request)
    yield
    if not writer.chunks:
        raise Unreadable
    ends = writer.offsets() if writer.media else []
    unread = [request.get(name) for name in _UNREAD]
    return CanonicalPrompt(
        data=b"".join(writer.chunks),
        model=text_of(request.get("model")),
        salt=text_of(request.get("cache_salt")),
        media_ends=tuple(ends[count] for count in writer.media),
        reply_offset=None if writer.reply is None else writer.offset(writer.reply),
        reads_cache=all(value is None or value is False for value in unread),
        pinned=api != "responses",
        output_tokens=max(
            (v for name in _OUTPUT_LIMITS if isinstance(v := request.get(name), int)), default=0
        ),
    )


def _arguments(writer: Writer, request: dict[str, Any], front: frozenset[str]) -> None:
    if not (_ARGUMENT_FIELDS | front) & request.keys():
        return
    kwargs = dict_of(request.get("chat_template_kwargs") or {})
    values = {name: value for name, value in kwargs.items() if name not in TAIL_SWITCHES or name in front}
    values |= {name: request[name] for name in (*ARGUMENTS, *front) if name in request}
    for name in sorted(values):  # a template reads them by name
        if values[name] is not None:
            writer.argument(name, values[name])


_Steps = Generator[None, None, None]


def _completion(writer: Writer, request: dict[str, Any]) -> _Steps:
    prompt = request.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise _Unroutable("batch")
        prompt = prompt[0]
    if isinstance(prompt, str):
        writer.text(prompt)
        return
    if not prompt:
        raise Unreadable
    tokens = list_of(prompt)
    writer.write(VALUE)
    for start in range(0, len(tokens), _TOKENS_A_STEP):
        try:
            writer.write(b"".join(t.to_bytes(4, "little") for t in tokens[start : start + _TOKENS_A_STEP]))
        except (AttributeError, OverflowError, TypeError):
            raise Unreadable from None
        yield


def _chat(writer: Writer, request: dict[str, Any]) -> _Steps:
    for item in list_of(request.get("messages")):
        message = dict_of(item)
        yield  # between opening and writing: either takes milliseconds for a large image
        if not writer.plain(message):
            _chat_message(writer, message)


def _chat_message(writer: Writer, message: dict[str, Any]) -> None:
    writer.message(message.get("role"), message.get("name"))
    writer.think(message.get("reasoning") or message.get("reasoning_content"))
    writer.content(message.get("content"))
    calls = [dict_of(call).get("function") for call in list_of(message.get("tool_calls"))]
    for call in [*calls, message.get("function_call")]:
        if isinstance(call, dict):
            writer.call(call.get("name"), call.get("arguments"))


def _messages(writer: Writer, request: dict[str, Any]) -> _Steps:
    system = request.get("system")
    if isinstance(system, list):  # vLLM drops the billing block and joins the others without a separator
        texts = [text_of(dict_of(block).get("text")) for block in system]
        system = "".join(text for text in texts if not text.startswith(BILLING_HEADER))
    if system:
        writer.message("system")
        writer.content(text_of(system))
    for item in list_of(request.get("messages")):
        message = dict_of(item)
        yield
        content = message.get("content")
        _turn(writer, message.get("role"), content if isinstance(content, list) else [text_of(content)])


def _turn(writer: Writer, role: object, blocks: list[Any]) -> None:
    """Write the blocks; vLLM renders each tool result as a message of its own."""
    rest: list[Any] = []
    for block in blocks:
        if isinstance(block, dict) and block.get("type") == "tool_result":
            writer.message("tool")
            writer.content(block.get("content"))
        else:
            rest.append(block)
    if rest or not blocks:
        writer.message(role)
        writer.content(rest)


def _responses(writer: Writer, request: dict[str, Any]) -> _Steps:
    if request.get("previous_response_id") is not None or request.get("conversation") is not None:
        raise _Unroutable("stateful")
    if request.get("instructions"):
        writer.message("system")
        writer.content(request["instructions"])
    given = request.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    for given_item in list_of(given):
        item = dict_of(given_item)
        yield
        _response_item(writer, item)


def _response_item(writer: Writer, item: dict[str, Any]) -> None:
    match item.get("type") or "message":
        case "message":
            writer.message(item.get("role"))
            writer.content(item.get("content"))
        case "function_call":
            writer.message("assistant")
            writer.call(item.get("name"), item.get("arguments"))
        case "function_call_output":
            writer.message("tool")
            writer.content(item.get("output"))
        case "reasoning":
            writer.message("assistant")
            for part in list_of(item.get("content") or item.get("summary")):
                writer.think(dict_of(part).get("text"))
        case "item_reference":
            raise _Unroutable("stateful")
        case kind:
            writer.message(kind)
            writer.other(
                {k: v for k, v in item.items() if k not in ("id", "status", "type") and v is not None}
            )


_PROMPTS: Final[Mapping[Api, Callable[[Writer, dict[str, Any]], _Steps]]] = {
    "chat": _chat,
    "completions": _completion,
    "responses": _responses,
    "messages": _messages,
}
