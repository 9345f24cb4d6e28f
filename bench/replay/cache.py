"""The KV cache of one modelled worker: blocks shared by their prefix, counted by who uses them, and private tokens.

1. A block in use is never evicted; an idle one is, the longest idle first, and a prompt's tail before its head.
2. Private tokens are what nobody else can use: prompt not computed yet, the last partial block, generated tokens.
3. The bound holds after every call, or the call raises.
"""

from collections import OrderedDict
from collections.abc import Sequence


class KvCache:
    """At most `bound_tokens` tokens; a shared block has `block_tokens` of them."""

    def __init__(self, bound_tokens: int, block_tokens: int) -> None:
        self.bound_tokens = bound_tokens
        self.block_tokens = block_tokens
        self.private_tokens = 0
        self._used: dict[int, int] = {}  # block -> how many requests use it
        self._idle: OrderedDict[int, None] = OrderedDict()  # longest idle first

    @property
    def tokens(self) -> int:
        """Everything held, idle blocks included."""
        return self.block_tokens * (len(self._used) + len(self._idle)) + self.private_tokens

    @property
    def room_tokens(self) -> int:
        """What could be reserved now: free space and idle blocks."""
        return self.bound_tokens - self.block_tokens * len(self._used) - self.private_tokens

    @property
    def used_blocks(self) -> int:
        """Number of blocks that some request uses."""
        return len(self._used)

    @property
    def idle_blocks(self) -> list[int]:
        """The blocks that nobody uses, next victim first."""
        return list(self._idle)

    def match(self, blocks: Sequence[int]) -> int:
        """Return how many blocks, from the first and without a gap, are held."""
        used, idle = self._used, self._idle
        for count, block in enumerate(blocks):
            if block not in used and block not in idle:
                return count
        return len(blocks)

    def claim(self, blocks: Sequence[int], private_tokens: int) -> bool:
        """Use these held blocks and reserve tokens beside them; False, and nothing changed, when there is no room."""
        idle = [block for block in blocks if block in self._idle]
        if private_tokens > self.room_tokens - self.block_tokens * len(idle):
            return False
        for block in idle:
            del self._idle[block]
        for block in blocks:
            self._used[block] = self._used.get(block, 0) + 1
        self.reserve(private_tokens)
        return True

    def reserve(self, tokens: int) -> None:
        """Take private tokens and evict idle blocks for them; the caller has looked at `room_tokens`."""
        self.private_tokens += tokens
        over = self.tokens - self.bound_tokens
        while over > 0:
            self._idle.popitem(last=False)  # raises KeyError when there was no room
            over -= self.block_tokens

    def share(self, block: int) -> bool:
        """Turn private tokens into this block, now in use; False when it is held already and the copy stays private."""
        if block in self._used or block in self._idle:
            return False
        self._used[block] = 1
        self.private_tokens -= self.block_tokens
        return True

    def release(self, blocks: Sequence[int], private_tokens: int) -> None:
        """One request is over: its blocks, first block first, stay as idle ones; its private tokens are free."""
        self.private_tokens -= private_tokens
        for block in reversed(blocks):
            self._used[block] -= 1
            if not self._used[block]:
                del self._used[block]
                self._idle[block] = None
