"""What the second request of a pair finds: by our hashes, and by what a real engine reports."""

from itertools import takewhile
from typing import Final

from prefix_middleware.core.canonical import CanonicalPrompt, canonical_prompt
from tests.core.bodies import HASHER, Json
from tests.vllm.pairs import PATHS, Pair, Request, Shared
from tests.vllm.running import Engine

NEARLY: Final = 0.8
"""Share from which it counts as all: the last block, and what is printed behind the text, are computed anew."""


def named(share: float) -> Shared:
    """Return the word for a share of the shorter prompt."""
    return "all" if share >= NEARLY else "part" if share > 1 - NEARLY else "none"


def by_our_hashes(pair: Pair, salt: str) -> Shared:
    """Hash both and compare, as two requests to one worker."""
    prompts = [canonical_prompt(it.api, it.body(salt)) for it in (pair.first, pair.second)]
    if not all(isinstance(prompt, CanonicalPrompt) for prompt in prompts):
        return "skipped"
    hashed = [HASHER.hash(prompt) for prompt in prompts if isinstance(prompt, CanonicalPrompt)]
    if not hashed[1].reads_cache:
        return "none"
    first, second = (it.hashes for it in hashed)
    common = sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(first, second, strict=False)))
    return named(common / min(len(first), len(second)))


def by_the_engine(pair: Pair, salt: str, engine: Engine) -> Shared:
    """Send both; what the second reports as cached, of the shorter prompt."""
    lengths = []
    cached = 0
    for it in (pair.first, pair.second):
        answer = engine.post(PATHS[it.api], it.body(salt))
        if answer.status_code in (400, 404):
            return "refused"
        assert answer.status_code == 200, f"{pair.what}: {answer.text}"
        prompt, cached = tokens(it, answer.json()["usage"])
        lengths.append(prompt)
    return named(cached / min(lengths))


def tokens(request: Request, usage: Json) -> tuple[int, int]:
    """Return the prompt's tokens and those of them that came from the cache."""
    if request.api == "messages":
        cached = usage.get("cache_read_input_tokens") or 0
        return usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0), cached
    prompt, details = (
        ("input_tokens", "input_tokens_details")
        if request.api == "responses"
        else ("prompt_tokens", "prompt_tokens_details")
    )
    return usage[prompt], (usage.get(details) or {}).get("cached_tokens") or 0
