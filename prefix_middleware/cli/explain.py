"""`prefix-middleware explain`: what a request body is to us, and where it would go now. Prints no prompt text and no hash."""

import sys
from bisect import bisect_right
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer
from msgspec import Struct
from msgspec.structs import replace

from prefix_middleware.cli.fleet import MirrorFacts, View, WorkerFacts, end, look
from prefix_middleware.cli.output import (
    Seconds,
    console,
    document,
    facts,
    fail,
    percent,
    remark,
    settings_from_env,
    table,
)
from prefix_middleware.cli.why import Why, why
from prefix_middleware.core.blocks import HashedPrompt, Hasher, block_edges
from prefix_middleware.core.canonical import CanonicalPrompt, Skip, SkipReason, api_of, canonical_prompt
from prefix_middleware.core.choose import line
from prefix_middleware.settings import Settings
from prefix_middleware.telemetry import shown

_SKIPS: Final[dict[SkipReason, str]] = {
    "path": "this path is none of PREFIX_PATHS",
    "unparsable": "it is no JSON request that vLLM would take on this path",
    "too_large": "it is longer than max_body_bytes",
    "encoded": "it is compressed",
    "stateful": "its prompt is on the server",
    "batch": "it holds several prompts",
    "truncated": "truncate_prompt_tokens cuts its beginning off",
    "off": "PREFIX_MODE is off",
    "error": "a mistake of ours",
}


class PromptFacts(Struct, frozen=True, kw_only=True):
    """What one request body is to us; sizes in bytes."""

    path: str
    body_bytes: int
    skip: SkipReason | None = None
    canonical_bytes: int = 0
    blocks: int = 0
    block_sizes: list[tuple[int, int]] = []  # runs of (blocks, bytes each), first block first
    tail_bytes: int = 0  # behind the last full block
    window_bytes: int = 0
    model: str = ""  # after model_aliases
    salt: bool = False
    tenant: bool = False
    tokens: int = 0
    media_parts: int = 0
    output_tokens: int = 0
    reads_cache: bool = True
    continues_bytes: int | None = None  # length of the previous prompt


class Held(Struct, frozen=True, kw_only=True):
    """One worker, and what it holds of the prompt."""

    worker: WorkerFacts
    matched_blocks: int
    matched_tokens: int
    continues: bool  # it holds the whole prompt that this one continues


class Explained(Struct, frozen=True, kw_only=True):
    """Everything that --json prints."""

    prompt: PromptFacts
    mirror: MirrorFacts | None = None
    workers: list[Held] = []
    choice: Why | None = None


def explain(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A request body; - reads stdin.")],
    path: Annotated[str, typer.Option(help="The path that the request is sent to.")] = "/v1/chat/completions",
    tenant: Annotated[str, typer.Option(help="The value of the tenant header.", show_default=False)] = "",
    seconds: Seconds = 2.0,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Explain a request body: its prompt, its blocks, who holds them, who would be chosen and why."""
    settings = settings_from_env()
    if tenant and settings.tenant_header is None:
        remark("--tenant: ignored, as PREFIX_TENANT_HEADER is not set")
        tenant = ""
    said, prompt = read_prompt(settings, path, _read(file, settings.max_body_bytes), tenant)
    explained, view = Explained(prompt=said), None
    if prompt is not None and settings.redis_url and settings.workers:
        view = anyio.run(partial(look, settings, seconds))
        explained = _live(said, prompt, view)
    if json:
        typer.echo(document(explained))
    else:
        _show(explained, settings)
    end(explained.mirror, seconds)


def _read(file: str, max_bytes: int) -> bytes:
    try:
        if file == "-":
            stdin = getattr(sys.stdin, "buffer", None)  # there may be none
            if stdin is None:
                fail("-: there is no stdin", 1)
            return bytes(stdin.read(max_bytes + 1))
        with Path(file).open("rb") as body:
            return body.read(max_bytes + 1)
    except OSError as error:
        fail(f"{file}: {error.strerror}", 1)


def read_prompt(
    settings: Settings, path: str, body: bytes, tenant: str
) -> tuple[PromptFacts, HashedPrompt | None]:
    """Read a body as a gateway with these settings does; the prompt is None when the request would be skipped."""
    prompt = _canonical(settings, path, body)
    if isinstance(prompt, Skip):
        return PromptFacts(path=shown(path), body_bytes=len(body), skip=prompt.reason), None
    prompt = replace(prompt, model=settings.model_aliases.get(prompt.model, prompt.model))
    hashed = Hasher(settings.secret, settings.window_bytes).hash(prompt, tenant)
    return _facts(settings, path, len(body), prompt, hashed, bool(tenant)), hashed


def _canonical(settings: Settings, path: str, body: bytes) -> CanonicalPrompt | Skip:
    api = api_of(path)
    if api is None or not path.endswith(settings.paths):
        return Skip("path")
    if settings.mode == "off":
        return Skip("off")
    if len(body) > settings.max_body_bytes:
        return Skip("too_large")
    return canonical_prompt(api, body, settings.front_fields, settings.merge_system)


def _facts(
    settings: Settings,
    path: str,
    body_bytes: int,
    prompt: CanonicalPrompt,
    hashed: HashedPrompt,
    tenant: bool,
) -> PromptFacts:
    edges = block_edges(settings.window_bytes)
    full = (0, *edges[: bisect_right(edges, len(prompt.data))])
    sizes = [end - start for start, end in pairwise(full)]
    return PromptFacts(
        path=shown(path),
        body_bytes=body_bytes,
        canonical_bytes=len(prompt.data),
        blocks=len(sizes),
        block_sizes=[(len(list(run)), size) for size, run in groupby(sizes)],
        tail_bytes=len(prompt.data) - full[-1],
        window_bytes=settings.window_bytes,
        model=shown(prompt.model),
        salt=bool(prompt.salt),
        tenant=tenant,
        tokens=hashed.tokens,
        media_parts=len(prompt.media_ends),
        output_tokens=prompt.output_tokens,
        reads_cache=prompt.reads_cache,
        continues_bytes=prompt.reply_offset,
    )


def _live(said: PromptFacts, prompt: HashedPrompt, view: View) -> Explained:
    reached = view.mirror is not None and view.mirror.reached
    index, now, held = view.router.index, view.now, []
    for worker in view.workers():
        blocks = index.match(prompt.hashes, worker.id, now) if prompt.reads_cache else 0
        marks = [mark for mark in (prompt.end, prompt.previous_end) if mark is not None]
        held.append(
            Held(
                worker=worker,
                matched_blocks=blocks,
                matched_tokens=prompt.matched_tokens[blocks],
                continues=any(index.holds(mark, worker.id, now) for mark in marks),
            )
        )
    choice = why(prompt, view) if reached else None
    return Explained(prompt=said, mirror=view.mirror, workers=held, choice=choice)


def _show(explained: Explained, settings: Settings) -> None:
    out, said = console(), explained.prompt
    out.print(facts(_rows(said)))
    if said.skip is not None:
        return
    if explained.mirror is None:
        missing = "PREFIX_WORKERS" if settings.redis_url else "PREFIX_REDIS_URL"
        out.print(f"\nonly the prompt is explained: {missing} is not set", soft_wrap=True)
        return
    out.print()
    columns = ("worker", "state", "blocks", "tokens", "continues", "in-flight", "load", "fill")
    out.print(table(columns, [_held_row(held, said.blocks) for held in explained.workers], left=2))
    if explained.choice is not None:
        out.print()
        out.print(line(explained.choice.decision), soft_wrap=True)
        out.print(explained.choice.because, soft_wrap=True)
        if explained.choice.otherwise:
            others = ", ".join(explained.choice.otherwise)
            out.print(f"a gateway that draws another third candidate takes {others}", soft_wrap=True)


def _held_row(held: Held, blocks: int) -> tuple[object, ...]:
    worker = held.worker
    return (
        worker.id,
        worker.state,
        f"{held.matched_blocks}/{blocks}",
        held.matched_tokens,
        "yes" if held.continues else "no",
        worker.in_flight,
        worker.load_tokens,
        percent(worker.fill, 1),
    )


def _rows(said: PromptFacts) -> list[tuple[str, str]]:
    request = ("request", f"{said.path}, {said.body_bytes:,} bytes")
    if said.skip is not None:
        return [request, ("skipped", f"{said.skip}: {_SKIPS[said.skip]}")]
    sizes = " + ".join(f"{count} x {size:,}" for count, size in said.block_sizes)
    tail = f"{said.tail_bytes:,} bytes behind them"
    if said.canonical_bytes > said.window_bytes:
        tail += f", counted but not hashed (window_bytes {said.window_bytes:,})"
    space = f"model {said.model or '(not named)'}, salt {_yes(said.salt)}, tenant {_yes(said.tenant)}"
    tokens = f"about {said.tokens:,}, {said.media_parts} media parts, answer {_limit(said.output_tokens)}"
    cache = "yes" if said.reads_cache else "no: the worker computes all of it (prompt_logprobs or echo)"
    before = said.continues_bytes
    continues = "no earlier prompt" if before is None else f"a prompt of {before:,} bytes"
    return [
        request,
        ("canonical", f"{said.canonical_bytes:,} bytes"),
        ("blocks", f"{said.blocks} full" + (f" ({sizes} bytes), " if sizes else ", ") + tail),
        ("namespace", space),
        ("tokens", tokens),
        ("reads cache", cache),
        ("continues", continues),
    ]


def _limit(output_tokens: int) -> str:
    return f"at most {output_tokens:,}" if output_tokens else "not limited"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
