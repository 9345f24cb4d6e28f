"""A fake vLLM worker: the OpenAI-compatible API over a prefix cache and an engine that takes its time.

GET /__log       the API requests seen, in order of arrival
POST /__control  {"fail": 500 | 503 | null, "delay_seconds": 0, "hang": false, "reset_cache": true,
                  "sleep": 0 | 1 | 2 | null}
                 touches only the API: /health and /metrics of a draining vLLM go on answering, too
"""

import hashlib
import json
import time
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import anyio
from starlette.types import Receive, Scope, Send

from prefix_middleware.testing.answers import Counts, answer_for
from prefix_middleware.testing.engine import Engine
from prefix_middleware.testing.prompts import APIS, Api, Prompt, read_prompt
from prefix_middleware.testing.raw import (
    DisconnectError,
    end_body,
    read_body,
    run_lifespan,
    send_json,
    send_start,
    send_text,
)

_LOG_LIMIT: Final = 10_000


@dataclass(slots=True, kw_only=True)
class Seen:
    """One API request as /__log shows it."""

    order: int
    path: str
    x_prefix_worker: str | None
    header_names: list[str]
    request_id: str
    body_sha256: str
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    status: int | None = None
    finished: bool = False
    aborted: bool = False


class FakeWorker:
    """ASGI app of one worker; any model name is served, the first of `models` where a body names none."""

    def __init__(
        self,
        worker_id: str = "w1",
        *,
        models: Sequence[str] = ("fake-model",),
        kv_blocks: int = 20_000,
        tokens_per_second: float = 4000.0,
        ms_per_token: float = 5.0,
        max_model_len: int = 32_768,
        caching: bool = True,
        tells_start: bool = True,
    ) -> None:
        self.worker_id = worker_id
        self.engine = Engine(kv_blocks, tokens_per_second, ms_per_token, caching=caching)
        self.seen: deque[Seen] = deque(maxlen=_LOG_LIMIT)
        self.fail: int | None = None
        self.delay_seconds = 0.0
        self.hang = False
        self.started = time.time() if tells_start else None  # vLLM with several API servers does not say
        self._models = tuple(models)
        self._max_model_len = max_model_len
        self._count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "lifespan":
            await run_lifespan(receive, send)
        elif scope["type"] == "http":
            api = APIS.get(scope["path"]) if scope["method"] == "POST" else None
            if api:
                await self._serve(api, scope, receive, send)
            else:
                await self._serve_other(scope, receive, send)

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["method"], scope["path"]:
            case "GET", "/health":
                await send_text(send, "")
            case "GET", "/metrics":
                await send_text(send, self.engine.metrics(self._models[0], self.started))
            case "GET", "/v1/models":
                await send_json(
                    send, 200, {"object": "list", "data": [self._card(name) for name in self._models]}
                )
            case "GET", "/__log":
                await send_json(send, 200, [asdict(entry) for entry in self.seen])
            case "POST", "/__control":
                await send_json(send, 200, self.control(json.loads(await read_body(receive))))
            case _:
                await send_json(send, 404, {"detail": "Not Found"})

    def _card(self, name: str) -> dict[str, Any]:
        card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "vllm"}
        return {**card, "root": name, "parent": None, "max_model_len": self._max_model_len}

    def control(self, wish: dict[str, Any]) -> dict[str, Any]:
        """Apply the named switches and return the state of all; a switch that is not named stays."""
        self.fail = wish.get("fail", self.fail)
        self.delay_seconds = float(wish.get("delay_seconds", self.delay_seconds))
        self.hang = bool(wish.get("hang", self.hang))
        if wish.get("reset_cache"):
            self.engine.kv.reset()
        if "sleep" in wish:
            self.engine.sleep(wish["sleep"])
        return {"fail": self.fail, "delay_seconds": self.delay_seconds, "hang": self.hang}

    async def _serve(self, api: Api, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(receive)
        except DisconnectError:
            return
        seen = self._note(scope, body)
        async with anyio.create_task_group() as group:
            group.start_soon(_abort_on_disconnect, receive, seen, group.cancel_scope)
            await self._answer(api, body, seen, send)
            group.cancel_scope.cancel()

    def _note(self, scope: Scope, body: bytes) -> Seen:
        self._count += 1
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        values = dict(headers)
        seen = Seen(
            order=self._count,
            path=scope["path"],
            x_prefix_worker=values.get("x-prefix-worker"),
            header_names=[name for name, _ in headers],
            request_id=values.get("x-request-id") or uuid.uuid4().hex,
            body_sha256=hashlib.sha256(body).hexdigest(),
        )
        self.seen.append(seen)
        return seen

    async def _answer(self, api: Api, body: bytes, seen: Seen, send: Send) -> None:
        with self.engine.request():
            await anyio.sleep(self.delay_seconds)
            if self.hang:
                await anyio.sleep_forever()
            await self.engine.awake()
            if self.fail:
                await _send_error(send, seen, self.fail, "InternalServerError", "the worker was told to fail")
                return
            try:
                prompt = read_prompt(api, body, self._models[0])
            except ValueError as error:
                await _send_error(send, seen, 400, "BadRequestError", str(error))
                return
            counts = await self.engine.prefill(prompt)
            seen.prompt_tokens, seen.cached_tokens, seen.status = counts.prompt, counts.cached, 200
            answer = self._stream if prompt.stream else self._whole
            await answer(prompt, counts, seen, send)

    async def _whole(self, prompt: Prompt, counts: Counts, seen: Seen, send: Send) -> None:
        answer = answer_for(prompt, counts, seen.request_id)
        async for token in self.engine.decode(prompt):
            answer.token(token)
        seen.finished = True
        await send_json(send, 200, answer.whole())

    async def _stream(self, prompt: Prompt, counts: Counts, seen: Seen, send: Send) -> None:
        answer = answer_for(prompt, counts, seen.request_id)
        await send_start(send, 200, "text/event-stream; charset=utf-8")
        for data in answer.head():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        async for token in self.engine.decode(prompt):
            await send({"type": "http.response.body", "body": answer.token(token), "more_body": True})
        seen.finished = True
        for data in answer.tail():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await end_body(send)


async def _abort_on_disconnect(receive: Receive, seen: Seen, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if not seen.finished:
        seen.aborted = True
        scope.cancel()


async def _send_error(send: Send, seen: Seen, status: int, kind: str, message: str) -> None:
    seen.status, seen.finished = status, True
    await send_json(
        send, status, {"error": {"message": message, "type": kind, "param": None, "code": status}}
    )
