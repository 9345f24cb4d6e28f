"""2. Canonical bytes to cumulative block hashes: h(i) = H(h(i-1), block i), H = keyed BLAKE3 cut to 8 bytes.

1. Only full blocks count. The first 32 KiB are 64 blocks of 512 bytes; behind it 16 blocks per doubling, to the window.
2. h(0) comes from the namespace: what must be equal before two prefixes may share.
3. The scheme is a contract between processes: a change needs a new `SCHEME` and new golden vectors.
"""

from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final

from blake3 import blake3
from msgspec import Struct

from prefix_middleware.core.canonical import CanonicalPrompt
from prefix_middleware.core.updates import HASH_BYTES

SCHEME: Final = 1
BLOCK_BYTES: Final = 512
HEAD_BYTES: Final = 32 * 1024
BLOCKS_PER_DOUBLING: Final = 16
MAX_WINDOW_BYTES: Final = 16 * 1024 * 1024
BYTES_PER_TOKEN: Final = 4.0
"""Until the model's own is learned."""
MEDIA_TOKENS: Final = 1000
"""What an image, audio or file part counts for; its bytes in the canonical prompt are only a digest."""

_KEY_CONTEXT: Final = "prefix-middleware block hashes 1"
_NAMES_CHARS: Final = 1024  # of a namespace that is kept: clients make up what they like, and 256 are kept
_TAIL_BYTES: Final = 64 * 1024  # of a tail behind the window, the part that is hashed


class HashedPrompt(Struct, frozen=True):
    """A prompt as the index sees it. `matched_tokens[m]` is what m matched blocks save."""

    hashes: tuple[bytes, ...]  # one per full block, first block first
    matched_tokens: tuple[int, ...]  # len(hashes) + 1 figures, the first is 0
    end: bytes  # mark of the whole prompt, tail included
    previous_end: bytes | None  # mark of the prompt this one continues, as far as its shape tells
    tokens: int
    model: str
    reads_cache: bool = True
    output_tokens: int = 0
    previous_tokens: int = 0  # length of the prompt this one continues
    text_bytes: int = 0  # canonical bytes, 0 where they say nothing of the length: media are in it
    pinned: bool = True  # False: it goes to any data-parallel rank


def block_edges(window_bytes: int) -> tuple[int, ...]:
    """Return the end offset of every block of a prompt as long as the window."""
    return tuple(_edges(window_bytes))


def _edges(window_bytes: int) -> Iterator[int]:
    size, edge = BLOCK_BYTES, 0
    while edge + size <= window_bytes:
        edge += size
        yield edge
        if edge >= HEAD_BYTES and edge & (edge - 1) == 0:  # a power of two: the next doubling begins
            size = edge // BLOCKS_PER_DOUBLING


class Hasher:
    """Hashes prompts with one secret and one window; equal in every process that has the same two."""

    def __init__(self, secret: str | None, window_bytes: int) -> None:
        self._key = blake3((secret or "").encode(), derive_key_context=_KEY_CONTEXT).digest()
        self._edges = block_edges(window_bytes)
        scheme = f"{SCHEME} {window_bytes}".encode()
        self.fingerprint = blake3(b"fingerprint " + scheme, key=self._key).digest(HASH_BYTES)
        """Names scheme, key and window; entries with another one are foreign."""
        self._kept_root = lru_cache(maxsize=256)(self._root_of)
        self._tokens = lru_cache(maxsize=256)(self._tokens_at)
        self.block_tokens = tuple(b - a for a, b in pairwise(self._tokens(BYTES_PER_TOKEN)))
        """Length of each block, in tokens."""

    def _tokens_at(self, bytes_per_token: float) -> tuple[int, ...]:
        return tuple(int(edge / bytes_per_token) for edge in (0, *self._edges))

    def hash(
        self, prompt: CanonicalPrompt, tenant: str = "", bytes_per_token: float = BYTES_PER_TOKEN
    ) -> HashedPrompt:
        """Hash the full blocks inside the window, and the prompt's own end."""
        data = prompt.data
        hasher = blake3(key=self._key)  # one for all blocks: making one costs as much as hashing 512 bytes
        count = bisect_right(self._edges, len(data))
        parent = self._root(prompt.model, prompt.salt, tenant)
        chain, start = [parent], 0
        for edge in self._edges[:count]:
            hasher.reset()
            hasher.update(parent + data[start:edge])
            parent = hasher.digest(HASH_BYTES)
            chain.append(parent)
            start = edge
        reply, media = prompt.reply_offset, prompt.media_ends
        return HashedPrompt(
            hashes=tuple(chain[1:]),
            matched_tokens=self._matched_tokens(count, media, bytes_per_token),
            end=self._end(chain, data, len(data)),
            previous_end=None if reply is None else self._end(chain, data, reply),
            tokens=max(1, int(len(data) / bytes_per_token) + MEDIA_TOKENS * len(media)),
            model=prompt.model,
            reads_cache=prompt.reads_cache,
            pinned=prompt.pinned,
            output_tokens=prompt.output_tokens,
            previous_tokens=0
            if reply is None
            else int(reply / bytes_per_token) + MEDIA_TOKENS * bisect_right(media, reply),
            text_bytes=0 if media else len(data),
        )

    def _root(self, *namespace: str) -> bytes:
        small = sum(map(len, namespace)) <= _NAMES_CHARS
        return self._kept_root(*namespace) if small else self._root_of(*namespace)

    def _root_of(self, *namespace: str) -> bytes:
        fields = [part.encode("utf-8", "surrogatepass") for part in namespace]
        lengths = b"".join(len(part).to_bytes(4, "little") for part in fields)
        return blake3(lengths + b"".join(fields), key=self._key).digest(HASH_BYTES)

    def _end(self, chain: list[bytes], data: bytes, end: int) -> bytes:
        blocks = min(bisect_right(self._edges, end), len(chain) - 1)
        start = self._edges[blocks - 1] if blocks else 0
        tail = data[max(start, end - _TAIL_BYTES) : end]
        return blake3(chain[blocks] + end.to_bytes(8, "little") + tail, key=self._key).digest(HASH_BYTES)

    def _matched_tokens(
        self, count: int, media_ends: tuple[int, ...], bytes_per_token: float
    ) -> tuple[int, ...]:
        tokens = self._tokens(bytes_per_token)[: count + 1]
        if not media_ends:
            return tokens
        edges = (0, *self._edges[:count])
        return tuple(
            t + MEDIA_TOKENS * bisect_right(media_ends, edge) for t, edge in zip(tokens, edges, strict=True)
        )
