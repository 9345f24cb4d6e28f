"""What outlives a request: started by lifespan or the first request, once per event loop, and gone at the end."""

import asyncio
import logging
from contextvars import ContextVar

import pytest
from starlette.types import Message, Receive, Scope, Send

from prefix_middleware import PrefixMiddleware, Settings, SettingsError
from prefix_middleware.carry.context import current, hops
from prefix_middleware.peer import RouterPeer
from tests.edge.asgi import (
    Boom,
    Client,
    answering,
    ask,
    chat,
    eventually,
    http_scope,
    make_ready,
    mounted,
    pieces,
    router_of,
    settings_for,
)
from tests.edge.logs import Keeper

pytestmark = pytest.mark.anyio

STARTUP: Message = {"type": "lifespan.startup"}
SHUTDOWN: Message = {"type": "lifespan.shutdown"}
LIFESPAN: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
request_id: ContextVar[str] = ContextVar("request_id", default="")


class Host:
    """A host whose lifespan ends as told: properly, or raising at one of its messages."""

    def __init__(self, raises_at: str = "", boom: Exception | None = None) -> None:
        self.raises_at, self.boom = raises_at, boom or Boom()
        self.running: list[bool] = []  # whether our task was there at each message

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await answering(scope, receive, send)
            return
        for kind in ("startup", "shutdown"):
            message = await receive()
            self.running.append(len(ours()) == 1)
            if self.raises_at == kind:
                raise self.boom
            await send({"type": message["type"] + ".complete"})


def ours() -> list[asyncio.Task[object]]:
    """Return the middleware's tasks on this event loop that have not ended."""
    return [task for task in asyncio.all_tasks() if task.get_name() == "prefix_middleware"]


async def lifespan(middleware: PrefixMiddleware) -> list[Message]:
    """Run the lifespan of an application to its end."""
    client = Client(STARTUP, SHUTDOWN)
    await middleware(LIFESPAN, client.receive, client.send)
    return client.sent


async def test_lifespan_starts_the_tasks_and_stops_them(silent_port: int) -> None:
    """They run from before the host's start-up until after its shutdown, and none is left."""
    host = Host()
    before = asyncio.all_tasks()
    sent = await lifespan(PrefixMiddleware(host, settings_for(silent_port, upstream_url="http://nginx")))
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert (host.running, asyncio.all_tasks() - before, hops) == ([True, True], set(), [])


@pytest.mark.parametrize("when", ["startup", "shutdown"])
async def test_a_failing_lifespan_leaves_with_the_hosts_own_exception(silent_port: int, when: str) -> None:
    """No exception group, no other message: the server sees what it would see without us, and no task is left."""
    host, before = Host(when), asyncio.all_tasks()
    with pytest.raises(Boom) as raised:
        await lifespan(PrefixMiddleware(host, settings_for(silent_port)))
    assert (raised.value is host.boom, asyncio.all_tasks() - before) == (True, set())


async def test_a_cancelled_lifespan_leaves_no_task(silent_port: int) -> None:
    """A server that gives up on the lifespan gets its cancellation."""
    client, before = Client(STARTUP), asyncio.all_tasks()
    middleware = PrefixMiddleware(Host(), settings_for(silent_port))
    task = asyncio.create_task(middleware(LIFESPAN, client.receive, client.send))
    await asyncio.wait_for(client.waiting.wait(), 20)
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), asyncio.all_tasks() - before - {task}) == (True, set())


async def test_a_host_that_refuses_lifespan_is_started_by_its_first_request(silent_port: int) -> None:
    """Servers go on after an exception from a lifespan that an application does not know; so do we, once."""
    middleware = PrefixMiddleware(
        Host("startup"), settings_for(silent_port, ["w1"], upstream_url="http://nginx")
    )
    with pytest.raises(Boom):
        await lifespan(middleware)
    assert middleware._runtime._task is None
    make_ready(middleware)
    scopes = [http_scope() for _ in range(20)]
    await asyncio.gather(*[ask(middleware, chat(), scope) for scope in scopes])
    assert ([scope["headers"] for scope in scopes], len(ours()), len(hops)) == (
        [[(b"x-prefix-worker", b"w1")]] * 20,
        1,
        1,
    )
    await middleware._runtime.stop()
    assert hops == []


async def test_requests_of_a_started_lifespan_start_nothing_more(silent_port: int) -> None:
    """Once per event loop, whoever comes first."""
    client = Client(STARTUP)
    middleware = PrefixMiddleware(Host(), settings_for(silent_port))
    life = asyncio.create_task(middleware(LIFESPAN, client.receive, client.send))
    await asyncio.wait_for(client.waiting.wait(), 20)
    task = middleware._runtime._task
    await ask(middleware)
    assert (task is not None, middleware._runtime._task is task) == (True, True)
    client.script.append(SHUTDOWN)
    life.cancel()
    await asyncio.wait([life])


def test_a_new_event_loop_starts_anew_and_keeps_what_was_learned(silent_port: int) -> None:
    """A server that restarts its loop gets tasks on the new one; carriers count once and end with the last stop."""
    middleware = PrefixMiddleware(answering, settings_for(silent_port, ["w1"], upstream_url="http://nginx"))
    tasks = []

    async def use(stop: bool) -> bytes:
        make_ready(middleware)
        client = await ask(middleware, chat("x" * 600))
        tasks.append(middleware._runtime._task)
        if stop:
            await middleware._runtime.stop()
        return client.answer

    assert [asyncio.run(use(False)), asyncio.run(use(True))] == [b"ok", b"ok"]
    assert (tasks[0] is not tasks[1], None in tasks, hops) == (True, False, [])
    assert middleware._runtime.telemetry.counts["decisions"] == 2


async def test_background_tasks_run_in_an_empty_context(silent_port: int) -> None:
    """The request that happens to start them leaves it nothing: no exchange, no request id of the host's."""
    seen: list[object] = []
    middleware = PrefixMiddleware(answering, settings_for(silent_port))

    async def spying() -> None:
        seen.extend([request_id.get(), current.get()])
        await asyncio.Event().wait()

    token = request_id.set("first")
    middleware._runtime._forever = lambda work: spying()  # type: ignore[method-assign] # its place is what matters
    await ask(middleware)
    await eventually(lambda: seen, "the tasks")
    request_id.reset(token)
    await middleware._runtime.stop()
    assert seen == ["", None, "", None]


async def test_a_task_that_fails_is_started_again(silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the mirror or the polls is counted, and both go on after a moment."""
    monkeypatch.setattr("prefix_middleware.runtime.RESTART_SECONDS", 0.01)
    calls: list[int] = []

    async def failing(*_: object) -> None:
        calls.append(1)
        raise RuntimeError

    monkeypatch.setattr("prefix_middleware.runtime.watch_workers", failing)
    async with mounted(answering, settings_for(silent_port)) as middleware:
        await ask(middleware)
        await eventually(lambda: len(calls) >= 3, "three starts")
        assert (await ask(middleware)).answer == b"ok"


def test_wrong_settings_in_code_raise_where_they_are_made() -> None:
    """`Settings(...)` raises by itself; the middleware never does, whatever it is given."""
    with pytest.raises(SettingsError, match=r"^policy='fastest': accepted is one of "):
        Settings(policy="fastest")
    PrefixMiddleware(answering, "settings")  # type: ignore[arg-type] # a mistake that types would show


@pytest.mark.parametrize("given", [{"workers": []}, "settings", 5])
async def test_what_is_no_settings_fails_the_start(given: object) -> None:
    """Anything but Settings or None is answered as a failed start-up that names it."""
    [message] = await lifespan(PrefixMiddleware(answering, given))  # type: ignore[arg-type] # that is the point
    assert (message["type"], repr(given) in message["message"]) == ("lifespan.startup.failed", True)


async def test_a_bad_environment_fails_the_start_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is told field, value and what is accepted; the host's own lifespan does not run."""
    monkeypatch.setenv("PREFIX_LOG", "loud")
    host = Host()
    sent = await lifespan(PrefixMiddleware(host))
    message = "prefix-middleware: log='loud': accepted is one of host, line, json"
    assert (sent, host.running) == ([{"type": "lifespan.startup.failed", "message": message}], [])


async def test_without_lifespan_a_bad_environment_is_one_error_and_requests_pass(
    monkeypatch: pytest.MonkeyPatch, logger: logging.Logger
) -> None:
    """Requests go on unrouted and no task is started."""
    monkeypatch.setenv("PREFIX_WINDOW_BYTES", "32k")
    keeper = Keeper()
    logger.addHandler(keeper)
    before = asyncio.all_tasks()
    middleware = PrefixMiddleware(answering)
    answers = [(await ask(middleware)).answer for _ in range(3)]
    line = "[PREFIX] error: window_bytes='32k': accepted is a whole number; requests pass unrouted"
    assert answers == [b"ok"] * 3
    assert [(record.levelname, record.getMessage()) for record in keeper.records] == [("ERROR", line)]
    assert asyncio.all_tasks() - before == set()


async def test_a_misspelt_variable_is_named_once(
    monkeypatch: pytest.MonkeyPatch, logger: logging.Logger
) -> None:
    """PREFIX_WORKER would otherwise be a gateway that silently routes nothing."""
    keeper = Keeper()
    logger.addHandler(keeper)
    for name in ("PREFIX_WORKER", "PREFIX_\n"):
        monkeypatch.setenv(name, "w1=http://h")
    middleware = PrefixMiddleware(Host())
    await lifespan(middleware)
    await lifespan(middleware)
    texts = [line for line in keeper.lines if "no setting reads" in line]
    assert texts == ["[PREFIX] warning: no setting reads PREFIX_?, PREFIX_WORKER"]


async def test_every_start_has_an_origin_of_its_own(silent_port: int) -> None:
    """Two processes, or two mounts in one, are two origins to the mirror."""
    origins = set()
    for _ in range(2):
        async with mounted(answering, settings_for(silent_port)) as middleware:
            client = Client(*pieces(chat()))
            await middleware(http_scope(), client.receive, client.send)
            peer = router_of(middleware).on_update.__self__  # type: ignore[attr-defined] # a bound method
            assert isinstance(peer, RouterPeer)
            origins.add(peer.origin)
    assert len(origins) == 2
