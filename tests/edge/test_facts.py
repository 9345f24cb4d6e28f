"""The text of /metrics to facts: of real workers, of workers that leave things out, and of hostile ones."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefix_middleware import facts
from prefix_middleware.core.facts import EngineFacts, Facts
from prefix_middleware.facts import MAX_BYTES, read_facts

DATA = Path(__file__).parent / "data"
DENSE = (DATA / "metrics-dense.txt").read_bytes()
NAMES = [name.encode() for name in (*facts._FIGURES, facts._INFO, facts._SLEEP, facts._START)]


def test_a_dense_worker_says_all() -> None:
    """What vLLM 0.32 exports for a Llama with everything at its default."""
    engine = EngineFacts(
        engine="0",
        model="tiny",
        caching=True,
        block_size=128,
        mamba_cache_mode="none",
        kv_tokens=349_440,
        awake=True,
        requests=3,
        prompt_tokens=5423,
        queried_tokens=5423,
        hit_tokens=1792,
    )
    assert read_facts(DENSE) == Facts(1_795_969_433.22, (engine,))


def test_every_rank_is_an_engine_of_its_own() -> None:
    """Each has counters and a cache; the blocks that vLLM counts over all ranks are divided by their number."""
    info = 'vllm:cache_config_info{engine="%d",block_size="16",num_gpu_blocks="8192",kv_cache_size_tokens="%s"} 1.0\n'
    text = (
        info % (10, "None")
        + info % (2, "131072")
        + 'vllm:prompt_tokens_total{engine="10",model_name="m"} 7.0\n'
        + 'vllm:num_requests_waiting{engine="2",model_name="m"} 3\n'
    )
    two = EngineFacts(engine="2", model="m", block_size=16, kv_tokens=131_072, waiting=3)
    ten = EngineFacts(engine="10", model="m", block_size=16, kv_tokens=65_536, prompt_tokens=7)
    found = read_facts(text.encode())
    assert (found, found.of_rank(10), found.kv_tokens) == (
        Facts(None, (two, ten)),
        Facts(None, (ten,)),
        196_608,
    )


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ('enable_prefix_caching="False"', {"caching": False}),
        ('enable_prefix_caching="true"', {"caching": True}),
        ('enable_prefix_caching="maybe"', {}),
        ('block_size="None",prefix_match_unit="None",sliding_window="None"', {}),
        ('block_size="-1",prefix_match_unit="1e3",sliding_window="²"', {}),
        ('mamba_cache_mode="align",prefix_match_unit="32"', {"mamba_cache_mode": "align", "match_unit": 32}),
        ('sliding_window="4096"', {"sliding_window": 4096}),
        (f'kv_cache_size_tokens="{"9" * 400}"', {}),
        ('unheard_of="x",block_size="16"', {"block_size": 16}),
    ],
)
def test_labels_are_a_bag(labels: str, expected: dict[str, object]) -> None:
    """They change from version to version: known ones are read, whatever stands beside them."""
    found = read_facts(f"vllm:cache_config_info{{{labels}}} 1.0\n".encode())
    assert found == Facts(None, (EngineFacts(engine="0", **expected),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("states", "asleep", "dropped"),
    [
        ({"awake": 1, "weights_offloaded": 0, "discard_all": 0}, False, False),
        ({"awake": 0, "weights_offloaded": 0, "discard_all": 0}, True, False),
        ({"awake": 0, "weights_offloaded": 1, "discard_all": 0}, True, True),
        ({"awake": 0, "weights_offloaded": 0, "discard_all": 1}, True, True),
        ({}, False, False),
    ],
)
def test_sleep_is_told_with_what_it_costs(states: dict[str, int], asleep: bool, dropped: bool) -> None:
    """Level 0 keeps the cache, 1 and 2 drop it; an old vLLM says nothing."""
    text = "".join(f'vllm:engine_sleep_state{{sleep_state="{s}"}} {on}\n' for s, on in states.items())
    found = read_facts(text.encode())
    assert (found.asleep, found.dropped) == (asleep, dropped)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "vllm:prompt_tokens_total",
        "vllm:prompt_tokens_total ",
        "vllm:prompt_tokens_total{ 5",
        'vllm:prompt_tokens_total{a="} 5',
        'vllm:prompt_tokens_total{a="x",a="y"} 5',
        "vllm:prompt_tokens_total NaN",
        "vllm:prompt_tokens_total +Inf",
        "vllm:prompt_tokens_total 1e300",
        "vllm:prompt_tokens_total five",
        "vllm:prompt_tokens_total_more 5",
        "xvllm:prompt_tokens_total 5",
        "# vllm:prompt_tokens_total 5",
        'vllm:prompt_tokens_total{a="\xff"} 5',
    ],
)
def test_a_line_that_cannot_be_read_costs_no_other(line: str) -> None:
    """It is left out, and what stands behind it counts."""
    found = read_facts(line.encode("latin-1") + b'\nvllm:prefix_cache_hits_total{engine="0"} 3.0 1700000\n')
    assert found == Facts(None, (EngineFacts(engine="0", hit_tokens=3),))


def test_what_a_worker_can_make_us_read_is_bounded() -> None:
    """A huge answer, a huge line, and more engines than anybody has: the rest is not looked at."""
    hits = b"vllm:prefix_cache_hits_total 3\n"
    huge_line = b'vllm:prefix_cache_hits_total{a="' + b"x" * 100_000 + b'"} 5\n'
    many = b"".join(b'vllm:prompt_tokens_total{engine="%d"} 1\n' % number for number in range(1000))
    assert read_facts(b"x" * MAX_BYTES + b"\n" + hits) == Facts()
    assert read_facts(huge_line + hits).total("hit_tokens") == 3
    assert len(read_facts(many).engines) == 128
    assert read_facts(b"process_start_time_seconds{}}\n" * 100_000 + hits) == Facts()


def texts() -> st.SearchStrategy[bytes]:
    """Lines that begin as wanted ones do, with anything behind."""
    label = st.tuples(st.text(max_size=8), st.text(max_size=8)).map(
        lambda pair: f'{pair[0]}="{pair[1]}"'.encode()
    )
    labels = st.lists(label, max_size=3).map(lambda made: b"{" + b",".join(made) + b"} 1")
    tail = labels | st.binary(max_size=40) | st.from_regex(rb'[{}", =\\a-z0-9.]{0,30}', fullmatch=True)
    return st.lists(st.tuples(st.sampled_from(NAMES), tail).map(b"".join), max_size=6).map(b"\n".join)


@settings(max_examples=300, deadline=None)
@given(texts() | st.binary(max_size=200))
def test_no_bytes_make_it_raise(text: bytes) -> None:
    """Whatever a worker answers, the poll goes on."""
    found = read_facts(text)
    assert all(engine.running >= 0 for engine in found.engines)


def test_counters_that_go_back_are_another_process() -> None:
    """Per engine: one rank's growth hides no other's return to zero; a series that is new or gone says nothing."""

    def said(**requests: int | None) -> Facts:
        return Facts(None, tuple(EngineFacts(engine=e, requests=n) for e, n in requests.items()))

    earlier = said(a=5, b=5)
    later = [said(a=5, b=5), said(a=100, b=4), said(a=None, b=5), said(b=5, c=0), said(a=0), Facts()]
    assert [facts.behind(earlier) for facts in later] == [False, True, False, False, True, False]
