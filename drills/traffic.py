"""Clients that hold conversations over all gateways while something breaks, and what became of their requests."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from drills.client import Answer, ask, chat, prose
from drills.verdict import Scale

_TURNS: Final = 4
_START_BYTES: Final = 4000
_TURN_BYTES: Final = 400
_STREAM_TOKENS: Final = 100  # half a second at 5 ms each: some are always being sent
_SHORT_TOKENS: Final = 4
_PAUSE_SECONDS: Final = 0.01
_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request and its end."""

    answer: Answer
    gateway: int  # port of the one that answered last
    retried: bool = False

    @property
    def began(self) -> float:
        """When it was sent, on the monotonic clock."""
        return self.answer.began


class Traffic:
    """The clients; each waits for its answer, pauses, and goes on with its conversation at the next gateway."""

    def __init__(self, gateways: Sequence[int], clients: int, *, retry: bool = False) -> None:
        self.samples: list[Sample] = []
        self.calm_until = 0.0
        self._deaths: list[tuple[str, float]] = []  # worker id or gateway port, when
        self._gateways, self._retry = list(gateways), retry
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(number,)) for number in range(clients)]

    def start(self) -> None:
        """Let the clients begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the clients finish what they wait for."""
        self._stopped.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def died(self, name: str | int, at: float) -> None:
        """Note that a worker (its id) or a gateway (its port, or its process id) was killed at this time."""
        self._deaths.append((str(name), at))

    def begun_since(self, at: float) -> list[Sample]:
        """Return what was sent later than this and has ended."""
        return [sample for sample in list(self.samples) if sample.began >= at]

    def _client(self, number: int) -> None:
        rng, turn = Random(f"{number} {time.monotonic_ns()}"), number
        while not self._stopped.is_set():
            messages = [{"role": "system", "content": prose(rng, _START_BYTES)}]
            for _ in range(_TURNS):
                messages.append({"role": "user", "content": prose(rng, _TURN_BYTES)})
                stream = rng.random() < 0.4
                body = chat(messages, _STREAM_TOKENS if stream else _SHORT_TOKENS, stream=stream)
                sample = self._ask(turn, body)
                self.samples.append(sample)
                messages.append({"role": "assistant", "content": "noted"})
                turn += 1
                if self._stopped.wait(_PAUSE_SECONDS) or not sample.answer.good:
                    break

    def _ask(self, turn: int, body: bytes) -> Sample:
        port = self._gateways[turn % len(self._gateways)]
        answer = ask(port, body)
        began, retried = answer.began, False
        for step in range(1, _TRIES):
            if answer.status or not self._retry:
                break
            retried = True  # what a balancer in front of the gateways would do
            port = self._gateways[(turn + step) % len(self._gateways)]
            answer = ask(port, body)
        if retried and answer.first_seconds is not None:
            waited = answer.began - began + answer.first_seconds
            answer = replace(answer, began=began, first_seconds=waited)
        return Sample(answer=answer, gateway=port, retried=retried)

    def counts(self) -> Counter[str]:
        """Return how many requests ended how: good, cut, relayed, failed; and retried ones again."""
        found = Counter(self.end_of(sample) for sample in self.samples)
        found["retried"] = sum(sample.retried for sample in self.samples)
        return found

    def end_of(self, sample: Sample) -> str:
        """Say what became of a request."""
        answer = sample.answer
        if answer.good:
            return "good"
        if answer.started and any(self._fell_with(sample, *death) for death in self._deaths):
            return "cut"
        if answer.status >= 500 and b"the worker was told to fail" in answer.data:
            return "relayed"
        return "failed"

    @staticmethod
    def _fell_with(sample: Sample, name: str, at: float) -> bool:
        answer = sample.answer
        names = (answer.served or answer.chosen, str(sample.gateway), str(answer.pid))
        return name in names and answer.began <= at

    def failures(self) -> list[str]:
        """Describe up to three requests that failed."""
        failed = [sample for sample in self.samples if self.end_of(sample) == "failed"][:3]
        return [
            f"e.g. status {s.answer.status} of {s.answer.served or s.answer.chosen}"
            f" by :{s.gateway} {s.answer.error}{s.answer.data[:80]!r}"
            for s in failed
        ]

    def latency(self) -> tuple[float, float, float]:
        """Return the longest wait for a first byte while calm and, in excess of it, after (ms), and when that began (s)."""
        waits = [(s.began - self.calm_until, 1000 * (s.answer.first_seconds or 0.0)) for s in self.samples]
        calm = max((wait for at, wait in waits if at <= 0), default=0.0)
        longest, at = max(((wait, at) for at, wait in waits if at > 0), default=(0.0, 0.0))
        return calm, max(0.0, longest - calm), at


@contextmanager
def traffic(gateways: Sequence[int], scale: Scale, *, retry: bool = False) -> Iterator[Traffic]:
    """Run clients for the length of a block, which begins after the calm phase."""
    warm = Traffic(gateways, scale.clients)
    it = Traffic(gateways, scale.clients, retry=retry)
    try:
        warm.start()
        time.sleep(scale.warm_seconds)
        warm.stop()
        it.start()
        time.sleep(scale.calm_seconds)
        it.calm_until = time.monotonic()
        yield it
    finally:
        warm.stop()
        it.stop()
