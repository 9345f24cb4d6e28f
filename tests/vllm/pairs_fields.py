"""Pairs of chat and completion requests that differ in a field beside the prompt."""

from typing import Any, Final

from tests.core.bodies import assistant, user
from tests.vllm.pairs import LONG, Pair, Request, apart, chat, pair
from tests.vllm.templates import EFFORT, PLAIN

FIELDS: Final = (
    apart("cache_salt", chat(cache_salt="a"), chat(cache_salt="b")),
    apart("cache_salt and none", chat(cache_salt="c"), chat(cache_salt=None)),
    Pair(
        "another name of the same model",
        chat(model="tiny"),
        chat(model="tiny-too"),
        "none",
        "all",
        why="names of adapters do not share; name those that do in `model_aliases`",
    ),
    apart(
        "documents",
        chat(documents=[{"title": "a", "text": "b"}]),
        chat(documents=[{"title": "c", "text": "d"}]),
    ),
    pair("null documents", chat(documents=None), chat()),
    Pair(
        "an unknown template argument",
        chat(chat_template_kwargs={"x": 1}),
        chat(),
        "none",
        "all",
        why="which arguments a template reads is not known here; a client sends it always or never",
    ),
    pair("enable_thinking", chat(chat_template_kwargs={"enable_thinking": False}), chat()),
    pair("reasoning_effort", chat(reasoning_effort="low"), chat(reasoning_effort="high")),
    Pair(
        "reasoning_effort that the template prints at the front",
        chat(reasoning_effort="low", chat_template=EFFORT),
        chat(reasoning_effort="high", chat_template=EFFORT),
        "all",
        "none",
        why="most templates print it at the end; name it in `front_fields` where yours do not",
    ),
    pair("add_generation_prompt", chat(add_generation_prompt=False), chat()),
    pair(
        "continue_final_message",
        chat(assistant(), user(LONG), add_generation_prompt=False, continue_final_message=True),
        chat(assistant(), user(LONG)),
    ),
    Pair(
        "the server's own template in the request",
        chat(chat_template=None),
        chat(chat_template=PLAIN),
        "none",
        "none",
    ),
    Pair(
        "add_special_tokens",
        chat(add_special_tokens=True),
        chat(add_special_tokens=False),
        "none",
        "all",
        why="this tokenizer adds none; others do",
    ),
    pair("response_format", chat(response_format={"type": "json_object"}), chat()),
    pair("sampling fields", chat(temperature=0.3, top_p=0.5, seed=7, stop=["x"], n=2, logprobs=True), chat()),
    pair("user, metadata, priority", chat(user="ann", metadata={"a": "b"}), chat()),
    apart("echo", chat(), chat(echo=True, logprobs=True, top_logprobs=1)),
    apart("prompt_logprobs", chat(), chat(prompt_logprobs=1)),
    pair("after prompt_logprobs", chat(prompt_logprobs=1), chat()),
    Pair(
        "truncate_prompt_tokens",
        chat(),
        chat(truncate_prompt_tokens=200),
        "skipped",
        "none",
        why="it cuts from the left, by tokens that are not known here",
    ),
)


def completion(prompt: Any, **fields: Any) -> Request:
    """Return a completion request."""
    return Request("completions", {"prompt": prompt, **fields})


TOKENS: Final = [5 + n % 4000 for n in range(600)]

COMPLETIONS: Final = (
    pair("a prompt and a list of one", completion(LONG), completion([LONG])),
    pair("token ids and a list of one", completion(TOKENS), completion([TOKENS])),
    apart("another first token id", completion(TOKENS), completion([4, *TOKENS[1:]])),
    pair("a longer prompt", completion(LONG), completion(LONG + " And then?")),
    apart("echo of a prompt", completion(LONG), completion(LONG, echo=True, logprobs=1)),
    Pair(
        "two prompts in one request",
        completion(LONG),
        completion([LONG, LONG]),
        "skipped",
        "all",
        why="two prompts may belong to two workers",
    ),
)
