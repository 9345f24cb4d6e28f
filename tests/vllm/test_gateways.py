"""Gateways before real workers: what they expect to be cached is what the engine reports, and a restart ends it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import httpx
import pytest
from msgspec import Struct

from bench.fleet.servers import Servers, decided
from bench.fleet.workload import Message, words
from prefix_middleware.demo.fleet import API_KEY
from prefix_middleware.demo.processes import Child
from tests.services import wait_until
from tests.vllm.running import MODEL, Engine

POLL_SECONDS = 30


class Turn(Struct, frozen=True):
    """One answered prompt: what the gateway expected of the worker, and what the engine reports."""

    worker: str
    reply: str
    prompt_tokens: int
    estimated_tokens: int
    cached_tokens: int
    expected_tokens: int


def ask(gateway: Child, messages: list[Message]) -> Turn:
    """Ask once, not streaming."""
    before = len(decided(gateway))
    body = {"model": MODEL, "messages": messages, "max_tokens": 8, "ignore_eos": True}
    answer = httpx.post(
        f"{gateway.url}/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {API_KEY}"},
        timeout=60,
        trust_env=False,
    )
    answer.raise_for_status()
    usage, [line] = answer.json()["usage"], decided(gateway)[before:]
    return Turn(
        worker=answer.headers["x-prefix-served"],
        reply=answer.json()["choices"][0]["message"]["content"],
        prompt_tokens=usage["prompt_tokens"],
        estimated_tokens=line["tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"] or 0,
        expected_tokens=line["matched_tokens"],
    )


def opening(system: str, question: str) -> list[Message]:
    """Return a first turn."""
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def numbered(source: Random, count: int) -> str:
    """Return so many words and half as many numbers: two tokens a word, of 4 bytes, as is believed until it is learned."""
    return " ".join(f"{words(source, 2)} {source.randrange(10, 100)}" for _ in range(count // 2))


def next_turn(messages: list[Message], turn: Turn) -> list[Message]:
    """Return the conversation with the reply and another question."""
    question = {"role": "user", "content": words(Random(turn.reply), 60)}
    return [*messages, {"role": "assistant", "content": turn.reply}, question]


@contextmanager
def gateways(folder: Path, count: int, seconds: float, **engines: Engine) -> Iterator[list[Child]]:
    """Run gateways before these workers; they poll them about so often."""
    with ExitStack() as exits:
        servers = Servers(folder, exits, engines)
        yield exits.enter_context(servers.gateways(count, "test", PREFIX_HEALTH_SECONDS=str(seconds)))


@pytest.mark.parametrize("name", ["hybrid", "hybrid_unit"])
def test_a_hybrid_worker_finds_what_is_expected_of_it(
    name: str, hybrid: Engine, hybrid_unit: Engine, tmp_path: Path
) -> None:
    """Resend, next turn and siblings of a system prompt: what is expected is found, and nothing where nothing is.

    The length of a token is an estimate: compared by what the prompt is in tokens, within 8 %, less than a block. The lengths
    lie in the middle between blocks.
    """
    source, engine = Random(name), hybrid if name == "hybrid" else hybrid_unit
    system = numbered(source, 864)
    with gateways(tmp_path, 1, 0.2, w1=engine) as [gateway]:
        first = opening(system, numbered(source, 192))
        turns = [ask(gateway, first), ask(gateway, first)]
        turns += [ask(gateway, next_turn(first, turns[0]))]
        turns += [ask(gateway, opening(system, numbered(source, 100))) for _ in range(3)]

    found = [turn.cached_tokens for turn in turns]
    assert [bool(tokens) for tokens in found] == [False, True, True, False, True, True], turns
    for turn in turns:
        tolerated = 0.08 * turn.prompt_tokens if turn.cached_tokens else 0
        expected = turn.expected_tokens * turn.prompt_tokens / turn.estimated_tokens
        assert abs(expected - turn.cached_tokens) <= tolerated, turns


def test_a_worker_restarted_within_a_poll_is_credited_with_nothing_by_either_gateway(
    doomed: Engine, dense: Engine, tmp_path: Path
) -> None:
    """Neither at once, before anybody has polled it again, nor later, when it is a candidate with an empty cache."""
    with gateways(tmp_path, 2, POLL_SECONDS, w1=doomed, w2=dense) as both:
        lost: list[list[Message]] = []
        for number in range(24):
            source = Random(number)
            messages = opening(words(source, 400), words(source, 60))
            turn = ask(both[number % 2], messages)
            if turn.worker == "w1":
                lost.append(next_turn(messages, turn))
            if len(lost) == 4:
                break
        doomed.restart()
        doomed.wait_ready()
        at_once = [ask(gateway, messages) for gateway, messages in zip(both, lost[:2], strict=True)]
        text = "worker w1 has restarted"
        wait_until(lambda: all(text in it.text() for it in both), 2 * POLL_SECONDS, "restart noticed")
        later = [ask(gateway, messages) for gateway, messages in zip(both, lost[2:], strict=True)]

    told = [(turn.expected_tokens, turn.cached_tokens) for turn in (*at_once, *later)]
    assert told == [(0, 0)] * 4
