"""4. What a worker says of itself: its engines' caches, queues and counters (the text they come from: facts.py of the package).

1. Anything may be missing: None is unknown, and nothing is concluded from it.
2. One URL may stand before several engines (data-parallel ranks), each with a cache and counters of its own.
"""

from typing import Final

from msgspec import Struct

MAX_ENGINES: Final = 128
"""Of one worker; more are not looked at."""
SAME_START_SECONDS: Final = 0.005
"""An epoch this little behind a start time is the same process with its cache lost; start times come in steps of 10 ms."""
_LOSS_STEP: Final = 2.0**-20  # the least that a Unix time in a double tells apart is a quarter of it


class EngineFacts(Struct, frozen=True, array_like=True, kw_only=True):
    """One engine of a worker; counters are totals since its start."""

    engine: str
    model: str = ""  # the first served name
    caching: bool | None = None
    block_size: int | None = None  # tokens
    match_unit: int | None = None  # tokens; None: hits come in blocks
    mamba_cache_mode: str | None = None
    sliding_window: int | None = None  # tokens
    kv_tokens: int | None = None  # KV cache of this engine
    running: int = 0  # requests
    waiting: int = 0  # requests
    awake: bool | None = None
    dropped: bool = False  # asleep so deeply that its cache is gone
    requests: int | None = None  # finished
    prompt_tokens: int | None = None
    queried_tokens: int | None = None  # looked up in the prefix cache
    hit_tokens: int | None = None  # found there

    @property
    def counters(self) -> tuple[int | None, ...]:
        """What only grows while the engine lives."""
        return self.requests, self.prompt_tokens, self.queried_tokens, self.hit_tokens

    @property
    def matches_ends(self) -> bool:
        """A prefix hits only at the end of an earlier whole prompt: recurrent state and sliding windows are kept there."""
        return self.mamba_cache_mode == "align" or self.sliding_window is not None

    @property
    def block_tokens(self) -> int:
        """Tokens of one block, 1 where it is not known."""
        return self.block_size or 1

    @property
    def unit_tokens(self) -> int:
        """Tokens by which hits grow, 1 where it is not known."""
        return self.match_unit or self.block_size or 1


class Facts(Struct, frozen=True, array_like=True):
    """What a worker said at one moment."""

    start_time: float | None = None  # Unix seconds; None: it does not tell
    engines: tuple[EngineFacts, ...] = ()  # in the order of their names

    @property
    def asleep(self) -> bool:
        """Some engine answers nothing until it is woken."""
        return any(engine.awake is False for engine in self.engines)

    @property
    def dropped(self) -> bool:
        """Some engine sleeps so deeply that its cache is gone."""
        return any(engine.dropped for engine in self.engines)

    @property
    def caching(self) -> bool | None:
        """Whether prefixes are cached at all."""
        said = [engine.caching for engine in self.engines if engine.caching is not None]
        return all(said) if said else None

    @property
    def kv_tokens(self) -> int | None:
        """KV cache of all engines, None unless each says its own."""
        said = [engine.kv_tokens for engine in self.engines if engine.kv_tokens]
        return sum(said) if said and len(said) == len(self.engines) else None

    @property
    def busy(self) -> int:
        """Requests running or waiting."""
        return sum(engine.running + engine.waiting for engine in self.engines)

    @property
    def model(self) -> str:
        """The base model's first served name."""
        return self.engines[0].model if self.engines else ""

    def of_rank(self, rank: int) -> "Facts":
        """Return the facts of one data-parallel rank."""
        return Facts(self.start_time, tuple(e for e in self.engines if e.engine == str(rank)))

    def total(self, counter: str) -> int | None:
        """Return one counter over all engines, None unless each says its own."""
        said = [getattr(engine, counter) for engine in self.engines]
        return None if None in said or not said else sum(said)

    def behind(self, earlier: "Facts") -> bool:
        """Tell whether some engine's counters have gone back since: it is a new process."""
        before = {engine.engine: engine.counters for engine in earlier.engines}
        return any(
            now is not None and was is not None and now < was
            for engine in self.engines
            for now, was in zip(engine.counters, before.get(engine.engine, ()), strict=False)
        )


def epoch_after_loss(epoch: float, now: float) -> float:
    """Return the epoch of a worker that lost its cache and goes on: every gateway names it alike. `now` is Unix time."""
    return epoch + _LOSS_STEP if epoch else now


def same_start(epoch: float, start_time: float) -> bool:
    """Tell whether an epoch belongs to the process that started then."""
    return start_time <= epoch < start_time + SAME_START_SECONDS
