"""Connections of nginx to what is behind it: kept, let go of before the other side does, and no loss when one is stale."""

import re
from dataclasses import dataclass, field

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from prefix_middleware.nginx.render import Topology
from tests.nginx.running import Fleet
from tests.nginx.worker import Connection, FakeWorker, Seen

PATH = "/v1/chat/completions"
KEY = {"Authorization": "Bearer k"}


@dataclass
class Forgetful(FakeWorker):
    """A worker that drops a connection when a second prompt comes on it, as one does that was just closing it."""

    answered: int = 0
    _used: set[Connection] = field(default_factory=set)

    async def answer(self, seen: Seen, connection: Connection) -> None:
        """Answer the first prompt of a connection."""
        if connection in self._used:
            connection.abort()
            return
        self._used.add(connection)
        self.answered += 1
        await super().answer(seen, connection)


@pytest.mark.anyio
async def test_connections_are_kept_behind_a_redirect_too(fleet: Fleet) -> None:
    """Thirty requests open one connection to the gateway and one to each worker, give or take a slow moment."""
    async with fleet.up("b") as client:
        for number in range(30):
            fleet.gateway.choice = f"w{number % 3 + 1}"
            assert (await client.post(PATH, json={}, headers=KEY)).text == fleet.gateway.choice
    opened = [server.connections for server in (fleet.gateway, *fleet.workers)]
    assert (len(fleet.gateway.seen), fleet.requests) == (30, {"w1": 10, "w2": 10, "w3": 10})
    assert sum(opened) <= 12, opened


@pytest.mark.parametrize("topology", ["a", "b"])
def test_nginx_lets_an_idle_connection_go_before_uvicorn_does(fleet: Fleet, topology: Topology) -> None:
    """The one that closes later writes into a closed connection: so nginx is the sooner in every group."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

    files = fleet.files(topology)
    groups: list[str] = re.findall(
        r"^upstream \w+ \{.*?^\}", "\n".join(files.values()), re.MULTILINE | re.DOTALL
    )
    kept = [re.findall(r"^ *keepalive_timeout (\d+)s;", group, re.MULTILINE) for group in groups]
    assert len(groups) == {"classic": 4, "sticky": 1}[fleet.program.flavour] + (topology == "b")
    assert [len(found) for found in kept] == [1] * len(groups)
    assert max(int(found[0]) for found in kept) < uvicorn.Config(app).timeout_keep_alive


@pytest.mark.anyio
async def test_a_connection_that_turns_out_stale_costs_no_request(fleet: Fleet) -> None:
    """A worker whose kept connections are dead when they are used again: each prompt is answered all the same, and once."""
    forgetful = Forgetful("w1")
    fleet.workers[0] = forgetful
    async with fleet.up("a") as client:
        for number in range(12):
            answer = await client.post(PATH, json={"n": number}, headers={"X-Prefix-Worker": "w1"})
            assert (answer.status_code, answer.headers["x-prefix-served"]) == (200, answer.text)
    assert forgetful.answered + fleet.requests["w2"] + fleet.requests["w3"] == 12
    assert fleet.requests["w1"] > forgetful.answered > 0  # some did meet a dead connection
