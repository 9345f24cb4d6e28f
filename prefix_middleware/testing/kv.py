"""The KV cache of the fake worker: blocks of tokens under chained hashes, least recently used out first.

A token is 4 bytes of text. The rules are vLLM's for full attention: only full blocks count, a hit is a run
from the first block and at most one token short of the prompt, tails leave before heads, and generated tokens
are kept too.
"""

from collections import OrderedDict
from typing import Final

BYTES_PER_TOKEN: Final = 4
TOKENS_PER_BLOCK: Final = 16
_BLOCK_BYTES: Final = BYTES_PER_TOKEN * TOKENS_PER_BLOCK


def tokens_of(text: bytes) -> int:
    """Return the number of tokens of a text; the last one may be short."""
    return -(-len(text) // BYTES_PER_TOKEN)


class KvCache:
    """Bounded set of cached blocks; `namespace` separates texts that must not share (adapter, salt)."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._held: OrderedDict[int, None] = OrderedDict()

    def cached_tokens(self, namespace: str, text: bytes) -> int:
        """Return how many leading tokens of the text are held."""
        run = 0
        for block in _chain(namespace, text):
            if block not in self._held:
                break
            run += 1
        return min(run, (tokens_of(text) - 1) // TOKENS_PER_BLOCK) * TOKENS_PER_BLOCK

    def store(self, namespace: str, text: bytes) -> None:
        """Hold the full blocks of a text, its head freshest, and drop what is oldest beyond the capacity."""
        for block in reversed(_chain(namespace, text)):
            self._held[block] = None
            self._held.move_to_end(block)
        while len(self._held) > self.blocks:
            self._held.popitem(last=False)

    @property
    def tokens(self) -> int:
        """Tokens that it has room for."""
        return self.blocks * TOKENS_PER_BLOCK

    def reset(self) -> None:
        """Forget everything."""
        self._held.clear()


def _chain(namespace: str, text: bytes) -> list[int]:
    parent = hash(namespace)
    chain: list[int] = []
    for start in range(0, len(text) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        parent = hash((parent, text[start : start + _BLOCK_BYTES]))
        chain.append(parent)
    return chain
