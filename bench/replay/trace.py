"""What a trace becomes: requests with their KV blocks and the prompt that the router sees, in sessions or free."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from blake3 import blake3

from prefix_middleware.core.blocks import HashedPrompt
from prefix_middleware.core.updates import HASH_BYTES


@dataclass(slots=True, eq=False)
class Request:
    """One request of a trace. `at` is seconds from the beginning; for a later turn, seconds after the turn before."""

    at: float
    prompt: HashedPrompt
    blocks: tuple[int, ...]  # full KV blocks, each number standing for all that is before it
    input_tokens: int
    output_tokens: int
    then: "Request | None" = None  # the session's next turn


@dataclass(slots=True)
class Trace:
    """Requests in order of arrival; of a session only the first is listed."""

    name: str
    block_tokens: int
    first: list[Request]
    left_out: int = 0  # requests that no worker could hold
    requests: int = field(init=False)
    prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        """Count."""
        everything = list(turns(self.first))
        self.requests = len(everything)
        self.prompt_tokens = sum(request.input_tokens for request in everything)

    def hashed_block_tokens(self) -> tuple[int, ...]:
        """Return how many tokens each block of the router stands for, as far as the longest prompt goes."""
        longest = max((r.prompt.matched_tokens for r in turns(self.first)), key=len, default=(0,))
        return tuple(after - before for before, after in pairwise(longest))


def turns(first: Sequence[Request]) -> Iterator[Request]:
    """Walk all requests, session by session."""
    for head in first:
        request: Request | None = head
        while request is not None:
            yield request
            request = request.then


def chain(requests: Sequence[Request]) -> Request:
    """Tie one session's turns together and return the first."""
    for i in range(1, len(requests)):
        requests[i - 1].then = requests[i]
    return requests[0]


def holdable(trace: Trace, kv_tokens: int) -> Trace:
    """Leave out what is longer than a worker's KV cache; a session ends before its first such turn."""
    kept: list[Request] = []
    for head in trace.first:
        session: list[Request] = []
        for request in turns([head]):
            if request.input_tokens + request.output_tokens > kv_tokens:
                break
            session.append(_copy(request))
        if session:
            kept.append(chain(session))
    result = Trace(trace.name, trace.block_tokens, kept)
    result.left_out = trace.left_out + trace.requests - result.requests
    return result


def _copy(request: Request) -> Request:
    return Request(request.at, request.prompt, request.blocks, request.input_tokens, request.output_tokens)


def end_mark(*parts: object) -> bytes:
    """Return the mark of a prompt's end, made of what tells it from other prompts."""
    return blake3(repr(parts).encode()).digest(HASH_BYTES)


class Continuations:
    """Finds which prompt continues which, where a trace tells it only through block ids.

    A prompt continues the last one before it that was shorter and whose full blocks it repeats, the longest first.
    Full blocks with which more than `SHARED` prompts end are a common system prompt, not a conversation.
    """

    SHARED = 3

    def __init__(self, prompts: Sequence[tuple[Sequence[int], int]]) -> None:
        """`prompts` are the full blocks and the length in tokens of all prompts of the trace, in order of arrival."""
        self._prompts = prompts
        ends: dict[int, int] = {}
        for blocks, _ in prompts:
            if blocks:
                ends[blocks[-1]] = ends.get(blocks[-1], 0) + 1
        self._shared = {block for block, count in ends.items() if count > self.SHARED}

    def previous(self) -> Iterator[int | None]:
        """Yield for each prompt the position of the one it continues."""
        latest: dict[int, int] = {}  # last full block -> position
        for position, (blocks, tokens) in enumerate(self._prompts):
            yield self._look(latest, blocks, tokens)
            if blocks and blocks[-1] not in self._shared:
                latest[blocks[-1]] = position

    def _look(self, latest: dict[int, int], blocks: Sequence[int], tokens: int) -> int | None:
        for block in reversed(blocks):
            found = latest.get(block)
            if found is not None and self._prompts[found][1] < tokens:
                return found
        return None
