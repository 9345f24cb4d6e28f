"""Plays the conversations of a shape against a set of doors, and notes for each turn what came back."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import httpx

from bench.fleet.workload import Message, Opening, Shape, openings
from prefix_middleware.demo.fleet import API_KEY
from tests.vllm.running import MODEL

ANSWER_TOKENS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One turn: what was sent, in the order of sending, and how it was answered."""

    conversation: int
    turn: int
    messages: tuple[Message, ...]
    worker: str  # as nginx says
    prompt_tokens: int
    cached_tokens: int
    sent: float  # seconds of one clock
    started: float  # the first token


Header = Callable[[Opening], str | None]
"""Names the worker that a client asks for by itself; None asks for none."""


@dataclass
class Player:
    """Plays one shape; requests take turns between `doors` (base URLs)."""

    shape: Shape
    doors: Sequence[str]
    header: Header = lambda _: None
    asked: list[Asked] = field(default_factory=list)
    _sent: int = 0

    async def play(self, seed: str) -> list[Asked]:
        """Play turn after turn, all conversations at each."""
        conversations = [
            (opening, [{"role": "system", "content": opening.system}])
            for opening in openings(self.shape, seed)
        ]
        limits = anyio.CapacityLimiter(self.shape.concurrency)
        async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
            for turn in range(self.shape.turns):
                async with anyio.create_task_group() as tasks:
                    for opening, messages in conversations:
                        await limits.acquire_on_behalf_of(opening)
                        tasks.start_soon(self._turn, client, opening, messages, turn, limits)
        return self.asked

    async def _turn(
        self,
        client: httpx.AsyncClient,
        opening: Opening,
        messages: list[Message],
        turn: int,
        limits: anyio.CapacityLimiter,
    ) -> None:
        try:
            messages.append({"role": "user", "content": opening.questions[turn]})
            sent = tuple(messages)
            door = self.doors[self._sent % len(self.doors)]
            self._sent += 1
            began = time.monotonic()
            events, worker, started = await _ask(client, door, sent, self.header(opening))
            usage = events[-1]["usage"]
            details = usage.get("prompt_tokens_details") or {}
            self.asked.append(
                Asked(
                    conversation=opening.number,
                    turn=turn,
                    messages=sent,
                    worker=worker,
                    prompt_tokens=usage["prompt_tokens"],
                    cached_tokens=details.get("cached_tokens") or 0,
                    sent=began,
                    started=started,
                )
            )
            text = "".join(c["delta"].get("content") or "" for event in events for c in event["choices"])
            messages.append({"role": "assistant", "content": text})
        finally:
            limits.release_on_behalf_of(opening)


async def _ask(
    client: httpx.AsyncClient, door: str, messages: Sequence[Message], worker: str | None
) -> tuple[list[dict[str, Any]], str, float]:
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    body |= {"stream_options": {"include_usage": True}, "ignore_eos": True}
    headers = {"authorization": f"Bearer {API_KEY}"} | ({"x-prefix-worker": worker} if worker else {})
    first, events = 0.0, []
    async with client.stream("POST", f"{door}/v1/chat/completions", json=body, headers=headers) as answer:
        async for line in answer.aiter_lines():
            first = first or time.monotonic()
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
    if answer.status_code != 200 or not events or "usage" not in events[-1]:
        raise RuntimeError(f"{door} answered {answer.status_code} without a complete stream: {events[-1:]}")
    return events, answer.headers.get("x-prefix-served", ""), first
