"""What the polls learn of a worker, from real small servers: readiness, restarts, models; and that loads stay."""

import asyncio
import contextlib
import itertools
import logging
import time

import pytest

from prefix_middleware import health
from prefix_middleware.core.updates import Notice
from prefix_middleware.health import MODELS_SECONDS, watch_workers
from prefix_middleware.peer import RouterPeer
from tests.edge.asgi import eventually, served
from tests.edge.logs import Keeper
from tests.edge.polled import MODELS, Rig, Vllm, rig
from tests.services import free_port

pytestmark = pytest.mark.anyio


async def test_a_worker_is_ready_while_its_health_answers_200() -> None:
    """Down, up, down: a refused connection counts at once and a good answer at once."""
    port = free_port()
    r = Rig(port)
    states = [r.state.ready, await r.poll()]
    async with served(Vllm(), port):
        states.append(await r.poll())
    states.append(await r.poll())
    assert states == [None, False, True, False]


@pytest.mark.parametrize("status", [500, 503, 404, 204, 301, 401])
async def test_any_other_status_is_not_ready(status: int) -> None:
    """Only 200 is; the models of such a worker are not asked."""
    async with rig() as (r, vllm):
        assert await r.poll() is True
        vllm.status = status
        asked = len(vllm.asked)
        assert (await r.poll(), [path for _, path in vllm.asked[asked:]]) == (False, ["/health"])


async def test_one_time_out_is_no_news_and_two_in_a_row_are() -> None:
    """A busy server answers late: a single time-out changes nothing, and a good answer begins the count anew."""
    async with rig() as (r, vllm):
        states = [await r.poll()]
        for silent in (True, False, True, True, False):
            vllm.silent = silent
            states.append(await r.poll(seconds=0.2 if silent else 5.0))
    assert states == [True, True, True, True, False, True]


async def test_what_is_no_http_is_not_ready() -> None:
    """Another service on the port is no worker."""

    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"\x00\xff garbage\r\n\r\n")
        writer.close()

    port = free_port()
    async with await asyncio.start_server(garbage, "127.0.0.1", port):
        assert await Rig(port).poll() is False


async def test_a_later_start_time_is_a_restart_that_the_index_forgets_by() -> None:
    """The first start time is no news; another one means an empty cache, said once."""
    keeper = Keeper()
    logging.getLogger("prefix_middleware").addHandler(keeper)
    async with rig() as (r, vllm):
        r.router.set_ready("w1", True, 0.0)
        r.answer()
        await r.poll()
        r.answer()
        matched = [r.matched()]
        for start_time in (b"1500000000", b"1500000000.0", b"1.6e9", b"1.6e9"):
            vllm.metrics = b'process_start_time_seconds{a="b"} ' + start_time + b"\n"
            await r.poll()
            matched.append(r.matched())
    assert (matched, r.state.epoch, r.state.generation) == ([2, 2, 2, 0, 0], 1.6e9, 1)
    assert [line for line in keeper.lines if "restarted" in line] == [
        "[PREFIX] worker w1 has restarted: its cache is empty"
    ]


async def test_a_refused_connection_alone_is_no_restart_where_the_start_time_is_known() -> None:
    """A worker that tells its start time is believed: its listener may have been gone for another reason."""
    port, vllm = free_port(), Vllm()
    r = Rig(port)
    async with served(vllm, port):
        await r.poll()
        r.answer()
    assert await r.poll() is False
    told, vllm.metrics = vllm.metrics, b""  # its first answers may be incomplete
    async with served(vllm, port):
        await r.poll()
        vllm.metrics = told
        await r.poll()
    notices = [update for update in r.router.drain(1e9) if isinstance(update, Notice)]
    assert (r.matched(), notices, r.state.ready) == (2, [], True)


async def test_without_a_start_time_a_refused_connection_announces_a_restart() -> None:
    """The notice counts when it comes back by the mirror, or at once where there is none."""
    port, vllm = free_port(), Vllm()
    vllm.metrics = b"other 1\n"
    r = Rig(port)
    peer = RouterPeer(r.router, r.telemetry, r.clock, asyncio.get_running_loop())
    async with served(vllm, port):
        await r.poll()
        r.answer()
    await r.poll()
    before = time.time()
    async with served(vllm, port):
        await r.poll(2)
    matched = r.matched()
    [notice] = [update for update in peer.drain() if isinstance(update, Notice)]
    assert (notice.worker, notice.old, before <= notice.new <= time.time()) == ("w1", 0.0, True)
    assert (matched, r.matched(), r.state.epoch) == (2, 0, notice.new)


async def test_models_and_window_are_learned_and_asked_again_in_time() -> None:
    """/v1/models is asked at first, after MODELS_SECONDS, and at once after a restart."""
    async with rig() as (r, vllm):
        await r.poll(3)
        assert (r.state.models, r.state.max_tokens) == (frozenset({"m", "lora"}), 4096)
        vllm.models = b'{"data": [{"id": "n"}]}'
        r.clock.advance(MODELS_SECONDS - 1)
        await r.poll()
        assert r.state.models == frozenset({"m", "lora"})
        r.clock.advance(1)
        await r.poll()
        assert (r.state.models, r.state.max_tokens) == (frozenset({"n"}), None)
        vllm.models, vllm.metrics = MODELS, b"process_start_time_seconds 1700000000\n"
        await r.poll()
        assert (r.state.models, [path for _, path in vllm.asked].count("/v1/models")) == (
            frozenset({"m", "lora"}),
            3,
        )


@pytest.mark.parametrize(
    "models",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"data": null}',
        b'{"data": []}',
        b'{"data": [{"id": 7}]}',
        b"[" * 9999,
        b'{"data": [{"id": "m", "max_model_len": "x"}]}',
    ],
)
async def test_garbage_from_v1_models_is_unknown(models: bytes) -> None:
    """A worker that does not say what it serves is ready and may serve anything."""
    async with rig() as (r, vllm):
        vllm.models = models
        assert (await r.poll(), r.state.models, r.state.max_tokens) == (True, None, None)
        vllm.models_status, vllm.models = 500, MODELS
        r.clock.advance(MODELS_SECONDS)
        assert (await r.poll(), r.state.models) == (True, None)


@pytest.mark.parametrize(
    "metrics",
    [
        b"",
        b"\xff\x00",
        b"process_start_time_seconds nan\n",
        b"process_start_time_seconds -1\n",
        b"xprocess_start_time_seconds 5\n",
        b"process_start_time_seconds\n",
    ],
)
async def test_garbage_from_metrics_is_no_start_time(metrics: bytes) -> None:
    """The worker stays ready, its epoch unknown."""
    async with rig() as (r, vllm):
        vllm.metrics = metrics
        assert (await r.poll(2), r.state.epoch, r.matched()) == (True, 0.0, 0)


async def test_health_never_touches_loads() -> None:
    """Eight requests in flight stay eight through a failed poll, a recovery and time-outs."""
    async with rig() as (r, vllm):
        await r.poll()
        for _ in range(8):
            r.route()
        loads, ready = [], []
        for status, silent in ((503, False), (200, False), (200, True), (200, True), (200, False)):
            vllm.status, vllm.silent = status, silent
            ready.append(await r.poll(seconds=0.2 if silent else 5.0))
            loads.append((r.state.in_flight, r.state.prompt_tokens))
    assert (ready, loads) == ([False, True, True, False, True], [(8, 2400)] * 5)


async def test_a_worker_that_trickles_does_not_hold_its_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that never ends, a byte at a time, is a time-out like one that never begins."""
    monkeypatch.setattr(health, "TIMEOUT_SECONDS", 0.2)

    ended: list[bool] = []

    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nx: ")
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"x")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), 0.02)
        writer.close()
        ended.append(True)

    port = free_port()
    async with await asyncio.start_server(trickle, "127.0.0.1", port):
        assert await asyncio.wait_for(Rig(port).poll(2), 20) is False
        await eventually(lambda: len(ended) == 2, "the connections' end")


@pytest.mark.parametrize(("draw", "least"), [(0.0, 0.08), (1.0, 0.12)])
async def test_polls_are_jittered_and_go_on_behind_a_silent_worker(draw: float, least: float) -> None:
    """Each worker is polled at its own pace, 0.8 to 1.2 of the interval by a draw of its own each time."""
    good, hung = Vllm(), Vllm()
    hung.silent = True
    draws: list[float] = []

    def random() -> float:
        draws.append(draw)
        return draw

    port, hung_port = free_port(), free_port()
    async with served(good, port), served(hung, hung_port):
        r, h = Rig(port), Rig(hung_port)
        task = asyncio.create_task(watch_workers([r.health, h.health], 0.1, random))
        await eventually(lambda: [path for _, path in good.asked].count("/health") >= 6, "six polls")
        task.cancel()
        await asyncio.wait([task])
    times = [at for at, path in good.asked if path == "/health"]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert (min(gaps) >= least, len(draws) >= 5, r.state.ready, bool(h.state.ready)) == (
        True,
        True,
        True,
        False,
    )
    assert (task.cancelled(), len(hung.asked) >= 1) == (True, True)


async def test_a_bug_in_a_poll_ends_no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of ours is counted, and the next poll comes."""
    async with rig() as (r, _):
        with monkeypatch.context() as patch:
            patch.setattr(r.router, "set_ready", lambda *_: 1 / 0)
            task = asyncio.create_task(watch_workers([r.health], 0.05, lambda: 0.0))
            await eventually(lambda: r.telemetry.counts["errors"] >= 2, "two errors")
        await eventually(lambda: r.state.ready, "readiness")
        task.cancel()
        await asyncio.wait([task])
