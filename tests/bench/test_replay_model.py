"""The modelled worker against cases worked out by hand: step times, chunks, matching, eviction order, preemption."""

from collections.abc import Sequence

import pytest

from bench.replay.cache import KvCache
from bench.replay.model import Counts, Job, ModelWorker
from bench.replay.trace import Request
from prefix_middleware.core.blocks import HashedPrompt

SIZE = 512
ROOMY = 600 * SIZE
PROMPT = HashedPrompt(hashes=(), matched_tokens=(0,), end=b"", previous_end=None, tokens=1, model="")


def request(tokens: int, output: int = 1, blocks: Sequence[int] = (), first: int = 0) -> Request:
    """Return a request whose full blocks are numbered from `first`, unless they are given."""
    numbers = tuple(blocks) or tuple(range(first, first + tokens // SIZE))
    return Request(0.0, PROMPT, numbers, tokens, output)


def step(worker: ModelWorker) -> tuple[float, list[Job], list[Job]]:
    """Do one step; return its seconds, who started and who finished."""
    seconds = worker.begin()
    assert seconds is not None
    return round(seconds, 9), *worker.end()


def run(worker: ModelWorker) -> list[float]:
    """Step until nothing is left to do; return the seconds of each step."""
    steps: list[float] = []
    while (seconds := worker.begin()) is not None:
        steps.append(seconds)
        worker.end()
    return steps


def test_a_cold_prompt_costs_its_tokens_and_its_attention() -> None:
    """Seconds of a prefill step: tokens / 16,000 + 2 ns for each pair of tokens + 2 ms."""
    worker = ModelWorker(ROOMY, SIZE)
    job = worker.submit(request(7200))

    assert step(worker) == (0.50384, [job], [job])  # 0.45 + 0.05184 + 0.002


def test_a_warm_prompt_costs_the_shortest_step() -> None:
    """All full blocks are found, the 32 tokens behind them are computed: reading the weights takes longer."""
    worker = ModelWorker(ROOMY, SIZE)
    worker.submit(request(7200))
    step(worker)
    job = worker.submit(request(7200))

    assert step(worker) == (0.015, [job], [job])
    assert (job.hit_tokens, worker.counts) == (14 * SIZE, Counts(hits=7168, computed=7232, prompts=14400))


def test_the_last_token_is_computed_even_when_every_block_is_held() -> None:
    """An engine needs one token to run: of a prompt of whole blocks the last block is never a hit."""
    worker = ModelWorker(ROOMY, SIZE)
    for _ in range(2):
        worker.submit(request(2 * SIZE))
        step(worker)

    assert worker.counts == Counts(hits=512, computed=1024 + 512, prompts=2048)


def test_decoding_costs_each_request_and_each_token_that_it_reads() -> None:
    """A decode step: 13 ms + 2 ms + 20 us a request + 49 ns for each token of its context, which grows by one."""
    worker = ModelWorker(ROOMY, SIZE)
    worker.submit(request(7200, output=3))

    assert run(worker)[1:] == [
        pytest.approx(0.015 + 20e-6 + 49e-9 * 7200),
        pytest.approx(0.015 + 20e-6 + 49e-9 * 7201),
    ]


def test_a_long_prompt_is_computed_in_chunks() -> None:
    """No step computes more than 8,192 tokens; a later chunk attends to all before it."""
    worker = ModelWorker(ROOMY, SIZE)
    worker.submit(request(10_000))

    assert run(worker) == [
        pytest.approx(8192 / 16_000 + 2e-9 * 8192 * 4096 + 0.002),
        pytest.approx(1808 / 16_000 + 2e-9 * 1808 * (8192 + 904) + 0.002),
    ]


def test_decodes_take_their_tokens_before_prefill_does() -> None:
    """A request that decodes takes one token of the step, so a prompt as long as the budget needs a second step."""
    worker = ModelWorker(ROOMY, SIZE)
    worker.submit(request(100, output=10))
    step(worker)
    long = worker.submit(request(8192, first=1000))

    assert step(worker)[1:] == ([], [])
    assert long.done == 8191
    assert step(worker)[1:] == ([long], [long])


def test_requests_are_served_in_the_order_in_which_they_came() -> None:
    """The second waits for budget until the first prompt is computed, and shares the step in which it ends."""
    worker = ModelWorker(ROOMY, SIZE)
    long, short = worker.submit(request(9000)), worker.submit(request(100, first=1000))

    assert step(worker)[1:] == ([], [])
    assert step(worker)[1:] == ([long, short], [long, short])


def test_a_chunk_that_is_scheduled_can_be_matched_by_the_next_request() -> None:
    """Of two equal prompts in one step the second is a hit."""
    worker = ModelWorker(ROOMY, SIZE)
    jobs = [worker.submit(request(1000)) for _ in range(2)]

    assert step(worker)[1:] == (jobs, jobs)
    assert [job.hit_tokens for job in jobs] == [0, 512]


def test_no_more_requests_run_than_the_worker_allows() -> None:
    """The third of three waits until one of two is over."""
    worker = ModelWorker(ROOMY, SIZE, max_running=2)
    jobs = [worker.submit(request(100, output=2, first=1000 * n)) for n in range(3)]

    assert step(worker)[1:] == (jobs[:2], [])
    assert step(worker)[1:] == ([], jobs[:2])
    assert step(worker)[1:] == ([jobs[2]], [])


def test_a_prompt_that_does_not_fit_waits() -> None:
    """Admission needs room for the whole uncached prompt, and nobody overtakes the one that waits for it."""
    worker = ModelWorker(4 * SIZE, SIZE)
    first, second, third = (
        worker.submit(request(tokens, output=2, first=n)) for n, tokens in ((0, 1500), (10, 600), (20, 10))
    )

    assert step(worker)[1:] == ([first], [])
    assert step(worker)[1:] == ([], [first])
    assert step(worker)[1:] == ([second, third], [])


def test_the_request_admitted_last_is_preempted_and_computed_again() -> None:
    """Two prompts of 1,000 in 2,048 tokens leave 48: after 24 tokens each the second gives way, and comes back with 25."""
    worker = ModelWorker(4 * SIZE, SIZE)
    first, second = worker.submit(request(1000, 100)), worker.submit(request(1000, 100, first=10))

    assert step(worker)[1:] == ([first, second], [])
    for _ in range(24):
        assert step(worker)[1:] == ([], [])
    assert (worker.cache.tokens, worker.counts.preemptions) == (2048, 0)
    assert step(worker)[1:] == ([], [])
    assert (list(worker.running), list(worker.waiting), second.target) == ([first], [second], 1025)
    for _ in range(73):
        assert step(worker)[1:] == ([], [])
    assert step(worker)[1:] == ([], [first])

    assert len(run(worker)) == 100 - 25  # the one that computes 1,025 tokens makes the 26th
    assert worker.counts == Counts(hits=512, computed=2513, prompts=2000, recomputed=1025, preemptions=1)
    assert (worker.cache.used_blocks, worker.cache.private_tokens) == (0, 0)


def test_a_preempted_request_comes_back_before_those_that_wait() -> None:
    """It waits first in line, and a step that preempts admits nobody, though the last in line would fit."""
    worker = ModelWorker(4 * SIZE, SIZE)
    _, second = worker.submit(request(1000, 100)), worker.submit(request(1000, 100, first=10))
    step(worker)
    small = worker.submit(request(100, first=20))
    while not worker.counts.preemptions:
        step(worker)

    assert (list(worker.waiting), small.admitted) == ([second, small], False)
    worker.waiting.remove(second)
    assert step(worker)[1:] == ([small], [small])


def test_a_step_that_preempts_admits_nobody() -> None:
    """What has just been thrown out would only come back to be thrown out again."""
    worker = ModelWorker(4 * SIZE, SIZE)
    jobs = [worker.submit(request(tokens, 600, first=10 * n)) for n, tokens in enumerate((1400, 500, 100))]
    step(worker)
    while not worker.counts.preemptions:
        step(worker)

    assert (list(worker.running), list(worker.waiting)) == (jobs[:2], jobs[2:])


def test_idle_blocks_go_oldest_prompt_first_and_tail_before_head() -> None:
    """Eviction takes what was left longest ago, and of one prompt its deepest block."""
    cache = KvCache(5 * SIZE, SIZE)
    for blocks in ([1, 2], [3, 4, 5]):
        cache.claim([], len(blocks) * SIZE)
        assert [cache.share(block) for block in blocks] == [True] * len(blocks)
        cache.release(blocks, 0)

    assert cache.idle_blocks == [2, 1, 5, 4, 3]
    assert cache.claim([], SIZE + 1)
    assert (cache.idle_blocks, cache.match([1, 2]), cache.match([3, 4, 5])) == ([5, 4, 3], 0, 3)


def test_a_block_in_use_is_never_evicted() -> None:
    """Two requests use one block: it is idle only when both are over, and until then no room can be made of it."""
    cache = KvCache(2 * SIZE, SIZE)
    cache.claim([], SIZE)
    cache.share(1)
    cache.claim([1], 0)
    cache.release([1], 0)

    assert (cache.room_tokens, cache.claim([], SIZE + 1), cache.idle_blocks) == (SIZE, False, [])
    cache.release([1], 0)
    assert (cache.room_tokens, cache.claim([1], SIZE + 1), cache.idle_blocks) == (2 * SIZE, False, [1])
    assert (cache.claim([], SIZE + 1), cache.match([1])) == (True, 0)


def test_a_second_copy_of_a_block_stays_private() -> None:
    """A block computed twice is held once; the copy goes with its request."""
    cache = KvCache(4 * SIZE, SIZE)
    cache.claim([], 2 * SIZE)

    assert (cache.share(1), cache.share(1), cache.private_tokens) == (True, False, SIZE)
    cache.release([1], SIZE)
    assert (cache.tokens, cache.idle_blocks) == (SIZE, [1])


def test_going_over_the_bound_is_an_error() -> None:
    """The model checks itself: tokens that fit nowhere are a mistake of its own."""
    cache = KvCache(SIZE, SIZE)

    with pytest.raises(KeyError):
        cache.reserve(SIZE + 1)
