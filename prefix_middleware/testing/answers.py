"""How the four APIs dress an answer: a JSON body or the frames of an event stream, with usage as in vLLM."""

import json
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from prefix_middleware.testing.prompts import Api, Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Tokens of one answer; `cached` is the part of `prompt` that was not computed again."""

    prompt: int
    cached: int
    output: int


class Answer(Protocol):
    """One answer in the form of its API."""

    def head(self) -> list[bytes]:
        """Return the frames before the first token."""

    def token(self, text: str) -> bytes:
        """Add one token and return its frame."""

    def tail(self) -> list[bytes]:
        """Return the frames after the last token."""

    def whole(self) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""


def answer_for(prompt: Prompt, counts: Counts, request_id: str) -> Answer:
    """Return the form that the prompt's API answers in."""
    return _FORMS[prompt.api](prompt, counts, request_id)


def frame(data: dict[str, Any] | str, event: str = "") -> bytes:
    """Return one server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
    return (f"event: {event}\n" if event else "").encode() + f"data: {text}\n\n".encode()


@dataclass(slots=True)
class _Form:
    prompt: Prompt
    counts: Counts
    request_id: str
    text: str = ""  # of the tokens so far
    created: int = field(default_factory=lambda: int(time.time()))

    def _object(self, prefix: str, kind: str, **fields: Any) -> dict[str, Any]:
        named = {"id": prefix + self.request_id, "object": kind, "created": self.created}
        return {**named, "model": self.prompt.model, **fields}


def _openai_usage(counts: Counts) -> dict[str, Any]:
    return {
        "prompt_tokens": counts.prompt,
        "total_tokens": counts.prompt + counts.output,
        "completion_tokens": counts.output,
        "prompt_tokens_details": {
            "cached_tokens": counts.cached,
            "created_cache_tokens": counts.prompt - counts.cached,
        },
    }


class _Chat(_Form):
    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return frame(self._object("chatcmpl-", "chat.completion.chunk", choices=[choice]))

    def head(self) -> list[bytes]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def token(self, text: str) -> bytes:
        self.text += text
        return self._chunk({"content": text})

    def tail(self) -> list[bytes]:
        usage = _openai_usage(self.counts)
        last = self._object("chatcmpl-", "chat.completion.chunk", choices=[], usage=usage)
        counted = [frame(last)] if self.prompt.include_usage else []
        return [self._chunk({}, "length"), *counted, frame("[DONE]")]

    def whole(self) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": self.text},
            "finish_reason": "length",
        }
        usage = _openai_usage(self.counts)
        return self._object("chatcmpl-", "chat.completion", choices=[choice], usage=usage)


class _Completion(_Form):
    def _choice(self, text: str, finish: str | None) -> list[dict[str, Any]]:
        return [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]

    def head(self) -> list[bytes]:
        return []

    def token(self, text: str) -> bytes:
        self.text += text
        return frame(self._object("cmpl-", "text_completion", choices=self._choice(text, None)))

    def tail(self) -> list[bytes]:
        usage = self._object("cmpl-", "text_completion", choices=[], usage=_openai_usage(self.counts))
        counted = [frame(usage)] if self.prompt.include_usage else []
        last = frame(self._object("cmpl-", "text_completion", choices=self._choice("", "length")))
        return [last, *counted, frame("[DONE]")]

    def whole(self) -> dict[str, Any]:
        choices = self._choice(self.text, "length")
        return self._object("cmpl-", "text_completion", choices=choices, usage=_openai_usage(self.counts))


class _Response(_Form):
    def _body(self, status: str) -> dict[str, Any]:
        done = status == "completed"
        part: dict[str, Any] = {"type": "output_text", "text": self.text, "annotations": []}
        message = {"type": "message", "role": "assistant", "status": status, "content": [part]}
        return {
            "id": f"resp_{self.request_id}",
            "object": "response",
            "created_at": self.created,
            "model": self.prompt.model,
            "status": status,
            "output": [message] if done else [],
            "usage": _response_usage(self.counts) if done else None,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        return frame({"type": kind, **fields}, kind)

    def head(self) -> list[bytes]:
        return [self._event("response.created", response=self._body("in_progress"))]

    def token(self, text: str) -> bytes:
        self.text += text
        return self._event("response.output_text.delta", output_index=0, content_index=0, delta=text)

    def tail(self) -> list[bytes]:
        return [self._event("response.completed", response=self.whole())]

    def whole(self) -> dict[str, Any]:
        return self._body("completed")


def _response_usage(counts: Counts) -> dict[str, Any]:
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {"cached_tokens": counts.cached},
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts.prompt + counts.output,
    }


class _Message(_Form):
    def _body(self, text: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        content = [] if text is None else [{"type": "text", "text": text}]
        return {
            "id": f"msg_{self.request_id}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.prompt.model,
            "stop_reason": None if text is None else "max_tokens",
            "usage": usage,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        return frame({"type": kind, **fields}, kind)

    def head(self) -> list[bytes]:
        message = self._body(None, {"input_tokens": self.counts.prompt, "output_tokens": 0})
        block = {"type": "text", "text": ""}
        return [
            self._event("message_start", message=message),
            self._event("content_block_start", index=0, content_block=block),
        ]

    def token(self, text: str) -> bytes:
        self.text += text
        return self._event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def tail(self) -> list[bytes]:
        usage = _message_usage(self.counts)
        return [
            self._event("content_block_stop", index=0),
            self._event("message_delta", delta={"stop_reason": "max_tokens"}, usage=usage),
            self._event("message_stop"),
        ]

    def whole(self) -> dict[str, Any]:
        return self._body(self.text, _message_usage(self.counts))


def _message_usage(counts: Counts) -> dict[str, Any]:
    uncached = counts.prompt - counts.cached
    return {
        "input_tokens": uncached,  # excludes the cached part
        "cache_read_input_tokens": counts.cached,
        "cache_creation_input_tokens": uncached,
        "output_tokens": counts.output,
    }


_FORMS: dict[Api, type[_Chat] | type[_Completion] | type[_Response] | type[_Message]] = {
    "chat": _Chat,
    "completions": _Completion,
    "responses": _Response,
    "messages": _Message,
}
