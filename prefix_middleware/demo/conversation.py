"""One conversation of five turns, and the other users whose requests fill the same workers meanwhile."""

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx

from prefix_middleware.demo.fleet import API_KEY

TURNS: Final = 5
_DOCUMENT_TOKENS: Final = 4_750
_TURN_TOKENS: Final = 260
_OTHERS: Final = 4  # users; their documents and ours are twice what one worker's KV cache holds
_OTHER_DOCUMENT_TOKENS: Final = 3_600
_OTHER_PAUSE_SECONDS: Final = 8.0
_PAUSE_SECONDS: Final = 0.6
_WARM_UP_SECONDS: Final = 1.5
_WORDS: Final = (
    "the parties agree that each delivery of goods under this contract shall be inspected within ten days "
    "by an engineer of the buyer who reports every defect in writing and keeps one copy for the seller"
).split()


class AnswerError(Exception):
    """Raised when a gateway does not answer a request of the demonstration as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question and how it was answered."""

    number: int
    gateway: str
    worker: str  # as nginx reports it
    request_id: str
    prompt_tokens: int
    cached_tokens: int
    seconds: float  # to the first token


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    worker: str
    request_id: str
    text: str
    usage: dict[str, Any]
    seconds: float


async def play(gateways: Sequence[tuple[str, str]], tell: Callable[[Turn], None]) -> list[Turn]:
    """Play the conversation over the gateways (name, base URL) by turns while others use them; raises AnswerError."""
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client, anyio.create_task_group() as others:
        for number in range(_OTHERS):
            others.start_soon(_other_user, client, number, [url for _, url in gateways])
        await anyio.sleep(_WARM_UP_SECONDS)
        turns = await _converse(client, gateways, tell)
        others.cancel_scope.cancel()
    return turns


async def _converse(
    client: httpx.AsyncClient, gateways: Sequence[tuple[str, str]], tell: Callable[[Turn], None]
) -> list[Turn]:
    source = random.Random(905487)
    messages = [{"role": "system", "content": _prose(source, _DOCUMENT_TOKENS)}]
    turns: list[Turn] = []
    for number in range(1, TURNS + 1):
        messages.append({"role": "user", "content": _prose(source, 90 if number == 1 else _TURN_TOKENS)})
        name, url = gateways[(number - 1) % len(gateways)]
        answer = await _ask(client, url, messages, 24)
        messages.append({"role": "assistant", "content": answer.text})
        turns.append(_turn(number, name, answer))
        tell(turns[-1])
        await anyio.sleep(_PAUSE_SECONDS)
    return turns


def _turn(number: int, gateway: str, answer: _Answer) -> Turn:
    return Turn(
        number=number,
        gateway=gateway,
        worker=answer.worker,
        request_id=answer.request_id,
        prompt_tokens=answer.usage["prompt_tokens"],
        cached_tokens=answer.usage["prompt_tokens_details"]["cached_tokens"],
        seconds=answer.seconds,
    )


async def _other_user(client: httpx.AsyncClient, number: int, urls: Sequence[str]) -> None:
    source = random.Random(number)
    messages = [{"role": "system", "content": _prose(source, _OTHER_DOCUMENT_TOKENS)}]
    await anyio.sleep(number * 0.25)
    for turn in range(1_000):
        messages.append({"role": "user", "content": _prose(source, 20)})
        answer = await _ask(client, urls[(number + turn) % len(urls)], messages, 8)
        messages.append({"role": "assistant", "content": answer.text})
        await anyio.sleep(_OTHER_PAUSE_SECONDS * source.uniform(0.7, 1.3))


async def _ask(
    client: httpx.AsyncClient, url: str, messages: Sequence[dict[str, str]], max_tokens: int
) -> _Answer:
    body = {"model": "fake-model", "messages": messages, "max_tokens": max_tokens, "stream": True}
    body["stream_options"] = {"include_usage": True}
    start, first, events = time.monotonic(), 0.0, []
    headers = {"authorization": f"Bearer {API_KEY}"}
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as response:
        async for line in response.aiter_lines():
            first = first or time.monotonic() - start
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
    if response.status_code != 200 or not events or "usage" not in events[-1]:
        raise AnswerError(f"{url} answered {response.status_code} without a complete stream")
    return _Answer(
        worker=response.headers.get("x-prefix-served", ""),
        request_id=events[0]["id"].removeprefix("chatcmpl-"),
        text="".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1]),
        usage=events[-1]["usage"],
        seconds=first,
    )


def _prose(source: random.Random, tokens: int) -> str:
    text = ""
    while len(text) < tokens * 4:  # a token is 4 bytes here
        text += source.choice(_WORDS) + " "
    return text[: tokens * 4]
