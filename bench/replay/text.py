"""Prompts that a trace gives as text: what the product makes of them, and the token blocks that a worker would cache."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from prefix_middleware.core.blocks import BYTES_PER_TOKEN, HashedPrompt, Hasher
from prefix_middleware.core.canonical import CanonicalPrompt, canonical_prompt
from prefix_middleware.settings import Settings

ENGINE_BLOCK_TOKENS: Final = 16  # vLLM's own block


class TextBlocks:
    """Numbers the prefixes of texts at block edges; equal prefixes get equal numbers."""

    block_tokens = ENGINE_BLOCK_TOKENS

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, bytes], int] = {}  # (number of all before, block) -> number

    def of(self, text: str) -> tuple[int, ...]:
        """Return the numbers of the full blocks of a text."""
        data, size = text.encode("utf-8", "surrogatepass"), int(ENGINE_BLOCK_TOKENS * BYTES_PER_TOKEN)
        numbers: list[int] = []
        parent = 0
        for start in range(0, len(data) - size + 1, size):
            key = (parent, data[start : start + size])
            parent = self._numbers.setdefault(key, len(self._numbers) + 1)
            numbers.append(parent)
        return tuple(numbers)


def hashed_texts(prompts: Iterable[tuple[str, str]]) -> Iterator[HashedPrompt]:
    """Hash (session, text) as completion requests; a text continues the longest earlier one of its session that begins it."""
    hasher = Hasher(None, Settings().window_bytes)
    earlier: dict[str, list[tuple[str, bytes]]] = {}
    for session, text in prompts:
        canonical = canonical_prompt("completions", msgspec.json.encode({"prompt": text}))
        assert isinstance(canonical, CanonicalPrompt), canonical
        prompt = hasher.hash(canonical)
        before = earlier.setdefault(session, [])
        begun = [(len(t), end) for t, end in before if len(t) < len(text) and text.startswith(t)]
        before.append((text, prompt.end))
        yield msgspec.structs.replace(prompt, previous_end=max(begun)[1] if begun else None)
