"""Who may name a worker or steer nginx: neither a client, in any spelling and on any path, nor a worker."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.types import Receive, Scope, Send

from tests.edge.asgi import mounted, served, settings_for
from tests.nginx.running import Fleet

KEY = {"Authorization": "Bearer k"}
SPELLINGS = ("X-Prefix-Worker", "x-prefix-worker", "X-PREFIX-WORKER", "x_prefix_worker", "X_Prefix-Worker")
FORGED = [(name, value) for name in SPELLINGS for value in ("w3", "169.254.169.254:80")]
UPGRADE = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13")]
REQUESTS: dict[str, tuple[str, str, list[tuple[str, str]], bytes]] = {
    "a prompt": ("POST", "/v1/chat/completions", [], b"{}"),
    "no JSON": ("POST", "/v1/chat/completions", [], b"{"),
    "another path": ("POST", "/v1/embeddings", [], b"{}"),
    "a GET": ("GET", "/v1/models", [], b""),
    "a websocket": (
        "GET",
        "/v1/realtime",
        [*UPGRADE, ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")],
        b"",
    ),
}


def named(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers that some server might take for ours."""
    return {name: value for name, value in headers.items() if name.replace("_", "-") == "x-prefix-worker"}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", REQUESTS)
async def test_nginx_in_front_takes_a_clients_header_off_whatever_the_request_is(
    fleet: Fleet, kind: str
) -> None:
    """The gateway sees none of ten forged copies, and the worker that it names serves."""
    method, path, more, body = REQUESTS[kind]
    headers = [*KEY.items(), *FORGED, *more]
    async with fleet.up("b") as client:
        answer = await client.request(method, path, headers=headers, content=body)
    assert (answer.status_code, answer.text) == (200, "w1")
    assert [named(seen.headers) for seen in (*fleet.gateway.seen, *fleet.workers[0].seen)] == [{}, {}]
    assert fleet.requests == {"w1": 1, "w2": 0, "w3": 0}


@pytest.mark.anyio
async def test_a_websocket_of_a_real_server_reaches_the_host_without_the_header() -> None:
    """Where clients reach the gateway itself, the opening handshake has its copies taken off too, in every spelling."""
    scopes: list[Scope] = []

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await receive()
        await send({"type": "websocket.close"})

    method, path, more, _ = REQUESTS["a websocket"]
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: h",
        *(f"{name}: {value}" for name, value in [*more, *FORGED]),
    ]
    async with (
        mounted(host, settings_for(1)) as middleware,
        served(middleware, lifespan="off", ws="websockets-sansio") as url,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write("\r\n".join([*lines, "", ""]).encode())
        status = await asyncio.wait_for(reader.readline(), 20)
        writer.close()
        await writer.wait_closed()
    [scope] = scopes
    got = {name.decode(): value.decode() for name, value in scope["headers"]}
    assert (scope["type"], scope["path"], status.split()[1]) == ("websocket", "/v1/realtime", b"403")
    assert (named(got), got["sec-websocket-version"]) == ({}, "13")


@pytest.mark.anyio
async def test_behind_a_redirect_a_worker_steers_nothing_either(fleet: Fleet) -> None:
    """Its X-Accel headers, its routing header and its claim to have served end at nginx; its answer passes."""
    steering: list[tuple[str, str]] = [
        ("X-Accel-Redirect", "@prefix_worker"),
        ("X-Accel-Redirect", "/secret"),
        ("X-Accel-Buffering", "yes"),
        ("X-Accel-Limit-Rate", "1"),
        ("X-Billing-Id", "forged"),
    ]
    fleet.workers[1].headers = steering
    fleet.gateway.choice = "w2"
    async with fleet.up("b") as client:
        answer: Any = await client.post("/v1/chat/completions", json={}, headers=KEY)
    found = {name: value for name, value in answer.headers.multi_items() if name.startswith("x-")}
    found.pop("x-request-id")
    assert (answer.status_code, answer.text) == (200, "w2")
    assert found == {"x-prefix-served": "w2", "x-billing-id": "bill-1"}
    assert (len(fleet.gateway.seen), fleet.requests) == (1, {"w1": 0, "w2": 1, "w3": 0})
