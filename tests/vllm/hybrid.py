"""What a hybrid worker finds again: a few prompts, sent one after another, and the cached tokens that it reports."""

from typing import Final

from tests.vllm.running import MODEL, Engine

PROMPT: Final = [5 + n % 4000 for n in range(2070)]
SYSTEM_TOKENS: Final = 1600
"""How many of the prompt's first tokens the siblings share, as a common system prompt."""


def sibling(number: int) -> list[int]:
    """Return a prompt with the same beginning and another end."""
    return PROMPT[:SYSTEM_TOKENS] + [5 + (n * 7 + number) % 4000 for n in range(200)]


STEPS: Final[dict[str, list[int]]] = {
    "first": PROMPT,
    "resend": PROMPT,
    "turn 2": [*PROMPT, *range(100, 150)],
    "turn 3": [*PROMPT, *range(100, 200)],
    "sibling 1": sibling(1),
    "sibling 2": sibling(2),
    "sibling 3": sibling(3),
    "fork of the first": [*PROMPT, *range(300, 350)],
}
"""Prompts, in the order in which they are sent."""

FOUND: Final[dict[str, dict[str, int]]] = {
    "hybrid": dict(zip(STEPS, (0, 1920, 1920, 1920, 0, 1536, 1536, 1920), strict=True)),
    "hybrid_unit": dict(zip(STEPS, (0, 2048, 2048, 2112, 0, 1536, 1536, 2048), strict=True)),
}
"""Measured: with `--block-size 384`, and with `--prefix-match-unit 32` too."""


def cached(engine: Engine, salt: str) -> dict[str, int]:
    """Send them all; return the cached tokens that the engine reports for each."""
    return {name: _cached(engine, prompt, salt) for name, prompt in STEPS.items()}


def _cached(engine: Engine, prompt: list[int], salt: str) -> int:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "cache_salt": salt}
    answer = engine.post("/v1/completions", body).raise_for_status().json()
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found
