"""1. The canonical bytes of a prompt, piece by piece, as canonical.py finds the pieces in a request.

    chat      = *argument *tool *message            completion = TEXT text | VALUE *u32
    argument  = ARGUMENT name VALUE json            message    = ROLE role [VALUE name] *part
    tool      = TOOL name VALUE description VALUE schema VALUE json
    part      = TEXT text | TEXT VALUE json | THINK text | CALL name VALUE json | MEDIA kind VALUE hex

Tags are bytes that UTF-8 never produces, so no lengths are needed and a turn appended only appends bytes.
"""

import json
import math
from itertools import accumulate
from typing import Any, Final

import msgspec
from blake3 import blake3

ARGUMENT, VALUE, TOOL, ROLE, TEXT, MEDIA, CALL, THINK = (bytes([b]) for b in range(0xF8, 0x100))

BILLING_HEADER: Final = "x-anthropic-billing-header"
"""Claude Code's per-request first line; vLLM removes it from system texts before rendering."""

_TEXT_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_MEDIA_PARTS: Final = frozenset(
    "image_url input_image image image_pil image_embeds input_audio audio_url audio audio_embeds "
    "video_url video input_file file document".split()
)
_LENIENT_BYTES: Final = 1 << 20  # above this, JSON that msgspec refuses is not tried again


class Unreadable(ValueError):
    """A part of the request has a shape that vLLM refuses."""


def decode(body: bytes | msgspec.Raw) -> Any:
    """Decode JSON as leniently as the host's parser may; raises ValueError or RecursionError."""
    try:
        return msgspec.json.decode(body)
    except msgspec.MsgspecError as error:
        if memoryview(body).nbytes > _LENIENT_BYTES:
            raise Unreadable from error
        # NaN, lone surrogates in other forms, numbers out of range
        return json.loads(bytes(body), parse_float=_number, parse_constant=_NoNumber)


class _NoNumber(float):
    """NaN or an infinity, of a type that msgspec refuses: it would write null."""


def _number(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _NoNumber(value)


def text_bytes(text: str) -> bytes:
    """Encode any string, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")


def json_bytes(value: object) -> bytes:
    """Encode without white space, keys in the order sent."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError, TypeError):  # a lone surrogate, over 64 bits, NaN
        return text_bytes(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def text_of(value: object) -> str:
    """Return a string field, "" for null or absent."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Unreadable
    return value


def list_of(value: object) -> list[Any]:
    """Return a list field, empty for null or absent."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise Unreadable
    return value


def dict_of(value: object) -> dict[str, Any]:
    """Return an object, decoded if it is still JSON."""
    if not isinstance(value, dict):
        if not isinstance(value, msgspec.Raw):
            raise Unreadable
        return dict_of(decode(value))
    return value


_TEXT_HEADS: Final = {role: ROLE + role.encode() + TEXT for role in ("user", "assistant", "tool")}


class Writer:
    """The bytes so far, and the places among them that matter later."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.media: list[int] = []  # how many chunks there were behind each media part
        self.reply: int | None = None  # how many chunks there were before the last reply
        self._role = ""

    def write(self, *chunks: bytes) -> None:
        """Append raw pieces."""
        self.chunks += chunks

    def argument(self, name: str, value: object) -> None:
        """Append one template argument."""
        self.write(ARGUMENT, text_bytes(name), VALUE, json_bytes(value))

    def tool(self, tool: object) -> None:
        """Append a tool: declared fields in a fixed order, as vLLM's models print them, the rest as sent."""
        outer = dict_of(tool)
        inner = outer.get("function")
        fields = dict(inner if isinstance(inner, dict) else outer)
        head = (
            text_bytes(text_of(fields.pop("name", None))),
            text_bytes(text_of(fields.pop("description", None))),
        )
        parameters, input_schema = fields.pop("parameters", None), fields.pop("input_schema", None)
        schema = parameters if parameters is not None else input_schema
        if fields.get("type") == "function":
            del fields["type"]
        extras = {k: v for k, v in fields.items() if v is not None and k != "cache_control"}
        self.write(TOOL, head[0], VALUE, head[1], VALUE, json_bytes(schema), VALUE)
        self.write(json_bytes(extras))

    def message(self, role: object, name: object = None) -> None:
        """Begin a message."""
        if not isinstance(role, str):
            raise Unreadable
        if role == "assistant" and self._role != "assistant":
            self.reply = len(self.chunks)
        self._role = role
        self.write(ROLE, text_bytes(role))
        if isinstance(name, str) and name:
            self.write(VALUE, text_bytes(name))

    def plain(self, message: dict[str, Any]) -> bool:
        """Append a message if it is only a usual role and some text: most are, so in one step."""
        role, text = message.get("role"), message.get("content")
        head = _TEXT_HEADS.get(role) if isinstance(role, str) else None
        if head is None or len(message) != 2 or not isinstance(text, str) or not text:
            return False
        if role == "assistant" and self._role != role:
            self.reply = len(self.chunks)
        self._role = str(role)
        self.chunks += (head, text.encode("utf-8", "surrogatepass"))
        return True

    def text(self, text: str) -> None:
        """Append a text part."""
        self.write(TEXT, text_bytes(text))

    def think(self, text: object) -> None:
        """Append reasoning, unless there is none."""
        if isinstance(text, str) and text:
            self.write(THINK, text_bytes(text))

    def call(self, name: object, arguments: object) -> None:
        """Append a tool call; vLLM parses the arguments and renders anything but an object as {}."""
        if isinstance(arguments, str):
            try:
                arguments = decode(text_bytes(arguments))
            except ValueError:
                arguments = None
        parsed = json_bytes(arguments) if isinstance(arguments, dict) else b"{}"
        self.write(CALL, text_bytes(text_of(name)), VALUE, parsed)

    def other(self, value: dict[str, Any]) -> None:
        """Append a part of a kind not known here."""
        self.write(TEXT, VALUE, json_bytes({k: v for k, v in value.items() if k != "cache_control"}))

    def content(self, content: object) -> None:
        """Append a message's content: a string counts as one text part, an empty one as none."""
        if content is None or isinstance(content, str):
            for text in self._kept(content) if content else ():
                self.text(text)
            return
        parts = [part for given in list_of(content) for part in self._kept(given)]
        if len(parts) == 1 and isinstance(parts[0], str):
            parts = [part for part in parts if part]
        for part in parts:
            if isinstance(part, str):
                self.text(part)
            else:
                self._part(part)

    def _kept(self, part: object) -> list[Any]:
        if isinstance(part, dict):
            kind = part.get("type")
            if kind == "redacted_thinking":
                return []
            if not isinstance(kind, str) or kind not in _TEXT_PARTS:
                return [part]
            part = text_of(part.get(_TEXT_PARTS[kind]))
        if not isinstance(part, str):
            raise Unreadable
        if self._role in ("system", "developer") and part.startswith(BILLING_HEADER):
            part = part.partition("\n")[2]
            return [part] if part else []
        return [part]

    def _part(self, part: dict[str, Any]) -> None:
        kind = part.get("type")
        if kind == "tool_use":
            self.call(part.get("name"), part.get("input"))
        elif kind == "thinking":
            self.think(part.get("thinking"))
        elif isinstance(kind, str) and kind in _MEDIA_PARTS:
            kept = {k: v for k, v in part.items() if k != "cache_control" and v is not None}
            digest = blake3(json_bytes(kept)).hexdigest(16)
            self.write(MEDIA, text_bytes(kind), VALUE, digest.encode())
            self.media.append(len(self.chunks))
        else:
            self.other(part)

    def offset(self, chunks: int) -> int:
        """Return the length in bytes of so many chunks."""
        return sum(map(len, self.chunks[:chunks]))

    def offsets(self) -> list[int]:
        """Return, for every number of chunks, their length in bytes."""
        return list(accumulate(map(len, self.chunks), initial=0))
