"""1. Late system text, for models whose template wants it first: vLLM moves it into one message at the front.

1. Chat: with a `developer` message among them, all system and developer messages; a late `system` message alone stays.
2. Messages: every inline `system` message, behind the `system` field.
"""

from typing import Any, Final, Literal

from prefix_middleware.core.writer import BILLING_HEADER, dict_of, list_of, text_of

_SYSTEM: Final = ("system", "developer")


def merged(api: Literal["chat", "messages"], request: dict[str, Any]) -> dict[str, Any]:
    """Return the request with its system text at the front, or as it is where nothing moves it."""
    messages = [dict_of(message) for message in list_of(request.get("messages"))]
    chat = api == "chat"
    roles = _SYSTEM if chat else ("system",)
    if not any(message.get("role") == roles[-1] for message in messages):
        return request
    rest = [message for message in messages if message.get("role") not in roles]
    contents = [message.get("content") for message in messages if message.get("role") in roles]
    if not chat:
        contents.insert(0, request.get("system"))
    within, between = ("\n", "\n\n") if chat else ("", "")  # what vLLM joins parts and messages with
    text = between.join(filter(None, (within.join(_texts(content)) for content in contents)))
    if chat:
        return request | {"messages": [{"role": "system", "content": text}, *rest]}
    return request | {"system": text, "messages": rest}


def _texts(content: object) -> list[str]:
    """Return the texts of a message, without the billing line that vLLM takes off before it renders."""
    parts = [content] if content is None or isinstance(content, str) else list_of(content)
    texts = [text_of(part.get("text") if isinstance(part, dict) else part) for part in parts]
    return [text.partition("\n")[2] if text.startswith(BILLING_HEADER) else text for text in texts]
