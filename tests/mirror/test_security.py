"""What somebody learns who can read our keys in Redis, and how much somebody can do who can write them."""

import asyncio
import re
from contextlib import suppress
from typing import Any

import pytest

from prefix_middleware.core.blocks import HashedPrompt, Hasher
from prefix_middleware.core.canonical import CanonicalPrompt, canonical_prompt
from prefix_middleware.core.facts import Facts
from prefix_middleware.core.updates import (
    Confirmed,
    Gauge,
    Notice,
    Provisional,
    Said,
    Suspect,
    Update,
    Withdrawn,
)
from prefix_middleware.mirror.link import Keys
from prefix_middleware.mirror.store import connected
from prefix_middleware.mirror.wire import Entry, Wire
from tests.core.bodies import hashed
from tests.core.routing import NOW, candidates, counters, held, idle, make_router, route, serve
from tests.edge.asgi import answering, ask, chat, http_scope, mounted, settings_for
from tests.edge.conftest import silent_port
from tests.mirror.fleet import Gateway, running
from tests.mirror.peer import FINGERPRINT, until
from tests.services import RedisServer

__all__ = ["silent_port"]

pytestmark = pytest.mark.anyio

KEYS = Keys("test", shadow=False)
MARK = "marker5150"
SECRET = "a secret of the tests"
UNKNOWN = ("w9", "127.0.0.1:22", "http://evil/", "w1\n", "../w1", "é")
HOUR = 3600.0


async def command(redis: RedisServer, *words: bytes | str | int) -> Any:
    """Send one command as somebody who can reach Redis."""
    async with connected(redis.url, 5.0) as store:
        return await store.command(*words)


async def dumped(redis: RedisServer) -> dict[bytes, list[bytes]]:
    """Return everything that Redis holds: each key with its entries."""
    everything: dict[bytes, list[bytes]] = {}
    for key in await command(redis, "KEYS", "*"):
        if await command(redis, "TYPE", key) == b"stream":
            everything[key] = [fields[1] for _, fields in await command(redis, "XRANGE", key, "-", "+")]
        else:
            everything[key] = [await command(redis, "GET", key)]
    return everything


def records_in(dump: dict[bytes, list[bytes]], secret: str | None) -> list[Confirmed]:
    """Return the confirmed records that somebody with this secret can read."""
    wire = Wire(Hasher(secret, 1 << 20).fingerprint)
    entries = [wire.unpack_decisions(data) for data in dump.get(KEYS.decisions, [])]
    updates = [update for entry in entries if isinstance(entry, Entry) for update in entry.updates]
    return [update for update in updates if isinstance(update, Confirmed)]


def marked() -> bytes:
    """Return a body with the mark wherever a client may write."""
    return chat(MARK * 300, model=MARK, cache_salt=MARK, user=MARK, tools=[{"name": MARK, MARK: MARK}])


async def published(redis: RedisServer, port: int, secret: str | None) -> dict[bytes, list[bytes]]:
    """Serve the marked prompt through a whole middleware; return what Redis got of it."""
    settings = settings_for(
        port, ["w1"], redis_url=redis.url, fleet="test", secret=secret, tenant_header="x-tenant"
    )
    headers = [(name, MARK.encode()) for name in (b"x-tenant", b"authorization", b"x-prefix-worker")]
    async with mounted(answering, settings) as middleware:
        await ask(middleware, marked(), http_scope(headers=headers))
        for _ in range(2000):
            dump = await dumped(redis)
            if records_in(dump, secret):
                return dump
            await asyncio.sleep(0.01)
    raise TimeoutError("no record in Redis")


def guess(secret: str | None) -> HashedPrompt:
    """Return what somebody makes of the right guess at the prompt."""
    prompt = canonical_prompt("chat", marked())
    assert isinstance(prompt, CanonicalPrompt)
    return Hasher(secret, 1 << 20).hash(prompt, MARK)


async def test_a_reader_learns_hashes_sizes_workers_and_process_names(
    redis: RedisServer, silent_port: int
) -> None:
    """No text, model, salt, tenant or header of a client is in any key; what is there is listed here whole."""
    dump = await published(redis, silent_port, SECRET)
    [record] = records_in(dump, SECRET)
    origins = re.findall(rb"[\w.-]+-\d+-[0-9a-f]{8}", b"".join(dump[KEYS.decisions]))
    prompt = guess(SECRET)
    fields = _fields(record)
    assert [v for v in fields if isinstance(v, str | bytes)] == ["w1", b"".join(prompt.hashes), prompt.end]
    assert {type(v) for v in fields} == {str, bytes, int, float}
    assert (len(set(origins)), set(dump) - {KEYS.decisions, KEYS.gauges, KEYS.snapshot}) == (1, set())
    assert MARK.encode() not in b"".join(data for entries in dump.values() for data in entries)


@pytest.mark.parametrize(
    ("secret", "tried", "found"), [(None, None, True), (SECRET, None, False), (SECRET, SECRET, True)]
)
async def test_a_guess_at_a_prompt_is_confirmed_only_with_the_secret(
    redis: RedisServer, silent_port: int, secret: str | None, tried: str | None, found: bool
) -> None:
    """Without a secret any reader can tell whether somebody has sent a text; with one he must have it, too."""
    dump = await published(redis, silent_port, secret)
    stored, guessed = b"".join(dump[KEYS.decisions]), guess(tried)
    assert [h in stored for h in (*guessed.hashes, guessed.end)] == [found] * (len(guessed.hashes) + 1)


def test_the_fingerprint_lets_a_reader_test_guesses_at_the_secret() -> None:
    """It says which entries are ours and is made of the secret and the window alone: a secret must not be guessable."""
    right, wrong = Hasher(SECRET, 1 << 20).fingerprint, Hasher(SECRET + "!", 1 << 20).fingerprint
    assert (Hasher(SECRET, 1 << 20).fingerprint == right, wrong == right) == (True, False)


def forged(record: int, worker: str, numbers: range, epoch: float = 1.0) -> Confirmed:
    """Return a record of blocks that nobody has sent."""
    return Confirmed(
        record, worker, epoch, b"".join(n.to_bytes(8, "big") for n in numbers), b"\0" * 8, 1, 0, 1
    )


@pytest.mark.parametrize("worker", UNKNOWN)
def test_a_writer_cannot_name_a_worker_that_the_gateway_was_not_told(worker: str) -> None:
    """Records, restarts, suspects and loads of unknown workers change nothing, so nothing can be led there."""
    router, untouched = make_router(), make_router()
    prompt = hashed("x" * 3000)
    record = Confirmed(1, worker, 1.0, b"".join(prompt.hashes), prompt.end, 750, 0, 750)
    updates: list[Update] = [record, Provisional(2, *_fields(record)[1:]), Suspect(worker, 1.0, 60.0)]
    router.merge("evil", [*updates, Notice(worker, 1.0, 2.0)], 0.0, NOW)
    router.merge_gauges("evil", [Gauge(worker, 1.0, 9, 9, 9)], NOW)
    assert (len(router.index), router.index.provisional, set(router.fleet.states)) == (
        0,
        0,
        {"w1", "w2", "w3"},
    )
    assert [route(r, prompt).decision for r in (router,)] == [route(untouched, prompt).decision]


def _fields(record: Confirmed) -> list[Any]:
    return [getattr(record, name) for name in record.__struct_fields__]


def test_a_writer_cannot_leave_a_prompt_without_a_worker() -> None:
    """All suspect, loaded beyond measure, not ready, restarted: somebody is still chosen, and own counters stay exact."""
    router = make_router()
    running_here = route(router, hashed("mine"))
    names = list(router.fleet.states)
    router.merge_gauges("evil", [Gauge(w, 1.0, 2**40 - 1, 2**40 - 1, 2**40 - 1) for w in names], NOW)
    router.merge("evil", [Suspect(w, 1.0, HOUR) for w in names], 0.0, NOW)
    router.merge("evil", [Said(w, False, Facts()) for w in names], 0.0, NOW)
    assert serve(router, hashed("x" * 3000)) in names
    router.merge("evil", [Notice(w, 1.0, 2.0) for w in names], 0.0, NOW)
    assert serve(router, hashed("y" * 3000)) in names
    router.finish(running_here)
    assert counters(router) == idle(router)


def test_one_forged_suspect_keeps_a_worker_away_for_a_minute_at_most() -> None:
    """However long it asks for; then one request tries."""
    router = make_router()
    router.merge("evil", [Suspect("w1", 1.0, HOUR)], 0.0, NOW)
    assert [candidates(router, now=NOW + t) for t in (1, 59, 60.1)] == [
        {"w2", "w3"}, {"w2", "w3"}, {"w1", "w2", "w3"}
    ]  # fmt: skip


def test_one_forged_load_drives_a_worker_off_for_three_seconds_at_most() -> None:
    """Its conversations move while it lasts, for an absurd load at least, and afterwards all is as before."""
    router, prompt = make_router(), hashed("x" * 3000)
    home = serve(router, prompt)
    router.merge_gauges("evil", [Gauge(home, 1.0, 2**40 - 1, 2**40 - 1, 2**40 - 1)], NOW)
    chosen = [route(router, prompt, NOW + t) for t in (0.1, 3.2)]
    assert [c.worker == home for c in chosen] == [False, True]
    for reservation in chosen:
        router.finish(reservation)
    assert counters(router) == idle(router)


def test_forged_records_draw_no_more_to_a_worker_than_a_true_match_would() -> None:
    """Whoever claims that one worker holds everything gives it a preference that its load outweighs."""
    router = make_router()
    prompts = [hashed(f"{n} " * 1000) for n in range(60)]
    for n, prompt in enumerate(prompts):
        tokens = prompt.tokens, 0, prompt.tokens
        claim = Confirmed(n, "w1", 1.0, b"".join(prompt.hashes), prompt.end, *tokens)
        router.merge("evil", [claim], 0.0, NOW)
    chosen = [route(router, prompt, NOW, n / 60) for n, prompt in enumerate(prompts)]
    share = [sum(c.worker == name for c in chosen) for name in ("w1", "w2", "w3")]
    assert (share[0] <= 30, min(share[1:]) >= 10) == (True, True), share


@pytest.mark.parametrize("update", [Notice("w1", 1.0, 1e308), forged(1, "w1", range(0), 1e308)], ids=repr)
def test_one_forged_restart_is_mended_by_the_workers_own_word(update: Update) -> None:
    """Two polls later the worker's start time is the true one again, and what it computes from then on counts."""
    router, prompt = make_router("w1"), hashed("x" * 3000)
    serve(router, prompt)
    known = held(router, prompt)
    router.merge("evil", [update], 0.0, NOW)
    assert (held(router, prompt), router.set_epoch("w1", 1.0, NOW)) == ({}, False)
    assert (router.set_epoch("w1", 1.0, NOW), router.fleet.states["w1"].epoch) == (True, 1.0)
    serve(router, prompt, NOW + 1)
    assert (held(router, prompt, NOW + 1), counters(router)) == (known, idle(router))


def test_forged_records_can_push_out_what_is_warm_and_nothing_more() -> None:
    """As many blocks as the index holds displace it; it grows no further, and the next request is routed and kept."""
    router, prompt = make_router(index_blocks=1000), hashed("x" * 3000)
    serve(router, prompt)
    router.merge("evil", [forged(n, "w1", range(n * 100, n * 100 + 100)) for n in range(20)], 0.0, NOW + 1)
    assert (held(router, prompt), len(router.index) <= 1000) == ({}, True)
    home = serve(router, prompt, NOW + 2)
    assert held(router, prompt, NOW + 2) == {home: len(prompt.hashes)}


def test_a_writer_cannot_withdraw_what_a_gateway_has_decided_itself() -> None:
    """Names of records belong to their origin, and no entry can name the gateway's own."""
    router, prompt = make_router(), hashed("x" * 3000)
    own = route(router, prompt)
    for origin in ("evil", "0", "w1"):
        router.merge(origin, [Withdrawn(n) for n in range(100)], 0.0, NOW)
    entry = Wire(FINGERPRINT).pack_decisions("", [Withdrawn(own.number)])[0]
    assert (router.index.provisional, Wire(FINGERPRINT).unpack_decisions(entry)) == (1, "undecodable")


async def test_entries_forged_in_a_gateways_name_can_deafen_the_others_to_it_and_no_more(
    redis: RedisServer,
) -> None:
    """Numbers far ahead make its own look heard: its decisions are missed by others, its requests are routed as before."""
    a, b = Gateway(redis.url), Gateway(redis.url)
    async with running(a, b):
        await until(lambda: a.connected and b.connected)
        a.serve(1)
        await until(lambda: b.best(1) == a.best(1))
        for n in range(1, 40):
            [data] = Wire(FINGERPRINT).pack_decisions(a.origin, [Withdrawn(0)], n << 32)
            await command(redis, "XADD", KEYS.decisions, "*", "d", data)
        await until(lambda: b.mirror.heard.get(a.origin, 0) > 39 << 32)
        home = a.serve(2)
        await until(lambda: b.count("repeated"))
        assert (a.best(2), a.serve(2), b.best(2), b.serve(3)) == ((8, [home]), home, (0, []), b.best(3)[1][0])


@pytest.mark.parametrize("harm", ["an id at the end of time", "a key of another type", "no key at all"])
async def test_a_ruined_key_is_an_outage_that_ends_when_it_is_deleted(redis: RedisServer, harm: str) -> None:
    """Whoever may write may end the mirror; routing goes on, and without the key and the old connections all is well."""
    a, b = Gateway(redis.url), Gateway(redis.url)
    async with running(a, b):
        await until(lambda: a.connected and b.connected)
        home = a.serve(1)
        await until(lambda: b.best(1) == a.best(1))
        if harm == "an id at the end of time":
            await command(redis, "XADD", KEYS.decisions, f"{2**64 - 1}-{2**64 - 1}", "d", b"x")
        else:
            await command(redis, "DEL", KEYS.decisions)
        if harm == "a key of another type":
            await command(redis, "SET", KEYS.decisions, b"x")
        assert (a.serve(1), b.serve(1)) == (home, home)
        if harm != "no key at all":
            await until(lambda: not a.connected)
            await command(redis, "DEL", KEYS.decisions)
            await command(redis, "CLIENT", "KILL", "TYPE", "normal")
        await until(lambda: a.connected and b.connected, 60)
        a.serve(2)
        await until(lambda: b.best(2) == a.best(2), 60)


async def test_what_redis_says_of_itself_cannot_write_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """An error text with line ends and terminal codes is shown on one line, without them."""

    async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while await reader.read(4096):
                writer.write(b"-ERR \x1b[2J\x07gone\x1b]0;title\x07\xc2\x9b31m [PREFIX]\x00 hit: w1\r\n" * 4)
        writer.close()

    async with await asyncio.start_server(hostile, "127.0.0.1", 0) as server:
        gateway = Gateway(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0")
        async with running(gateway):
            await until(lambda: gateway.telemetry.counts["mirror_lost"])
    [line] = [record.getMessage() for record in caplog.records if "mirror: lost" in record.getMessage()]
    assert ("gone" in line, line.isprintable()) == (True, True)
