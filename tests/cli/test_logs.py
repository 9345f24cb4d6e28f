"""`prefix-middleware logs`: sums over what the product itself has logged, in any wrapping."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefix_middleware import Decision
from prefix_middleware.telemetry import LOGGER, Telemetry
from tests.cli.running import DEMO, Done, process, run

DECISIONS = [
    Decision(reason="miss", worker="w1", blocks=39, tokens=5000, model="m"),
    Decision(reason="hit", worker="w1", matched_blocks=39, matched_tokens=4992, blocks=40, tokens=5200, model="m"),
    Decision(reason="busy", worker="w2", previous="w1", matched_blocks=40, blocks=40, tokens=5200, model="big"),
    Decision(reason="only", worker="w2", matched_blocks=0, blocks=2, tokens=300, model="m"),
    Decision(reason="only", worker="w2", matched_blocks=2, matched_tokens=256, blocks=2, tokens=310, model="m"),
    Decision(reason="none", tokens=700, model="gone"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _logger_as_before() -> Iterator[None]:
    logger = logging.getLogger(LOGGER)
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def written(form: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines that the product itself writes with PREFIX_LOG=form."""
    telemetry = Telemetry(form)
    for decision in DECISIONS:
        telemetry.decided(decision)
    telemetry.state("mirror_connected", "mirror: connected to redis://r:6379/0", bad=False)
    telemetry.state("worker_ready", "worker w1 is not ready: /health answers 503", bad=True, worker="w1")
    telemetry.state("worker_restarted", "worker w1 has restarted: its cache is empty", bad=True)
    telemetry.state("mirror_lost", "mirror: lost, ConnectionError; routing goes on", bad=True)
    telemetry.state("mirror_lost", "mirror: lost, ConnectionError; routing goes on", bad=True)
    telemetry.warn("x", "[PREFIX] warning: no setting reads PREFIX_X")
    return capsys.readouterr().err.splitlines()


@pytest.fixture
def logs(tmp_path: Path) -> Callable[..., Done]:
    """Run the command over a file with this text."""

    def run_over(text: str, *options: str, env: dict[str, str] | None = None) -> Done:
        file = tmp_path / "gateway.log"
        file.write_text(text)
        return run("logs", str(file), *options, env=env)

    return run_over


def summary(missed: list[dict[str, Any]], estimated: int) -> dict[str, Any]:
    """Return what --json says of `written`."""
    sums = ("requests", "hits", "prompt_tokens", "matched_tokens")
    return {
        **dict(zip(sums, (6, 2, 16_710, 5248), strict=True)),
        "hit_rate": 0.3333,
        "matched_share": 0.3141,
        "estimated_requests": estimated,
        "reasons": {"only": 2, "miss": 1, "hit": 1, "busy": 1, "none": 1},
        "workers": {
            "w1": dict(zip(sums, (2, 1, 10_200, 4992), strict=True)),
            "w2": dict(zip(sums, (3, 1, 5810, 256), strict=True)),
        },
        "missed_tokens": missed,
        "states": {"mirror connected": 1, "mirror lost": 2, "w1 not ready": 1, "w1 restarted": 1, "warning": 1},
        "unread": 0,
    }  # fmt: skip


def test_text_lines_are_summed_by_worker(
    capsys: pytest.CaptureFixture[str], logs: Callable[..., Done]
) -> None:
    """Matched tokens come from the blocks that a line names; only `none` names a model."""
    done = logs("\n".join(["INFO: started", *written("line", capsys), "\x00\x01 not ours", ""]), "--json")
    missed = [
        {"worker": "w2", "tokens": 5554},
        {"worker": "w1", "tokens": 5208},
        {"model": "gone", "tokens": 700},
    ]
    assert (done.status, done.err) == (0, "")
    assert done.json == summary(missed, estimated=5)


def test_json_lines_are_summed_by_model(
    capsys: pytest.CaptureFixture[str], logs: Callable[..., Done]
) -> None:
    """Matched tokens and models are fields there, and nothing is estimated."""
    done = logs("\n".join(written("json", capsys)), "--json")
    missed = [
        {"model": "m", "tokens": 5562},
        {"model": "big", "tokens": 5200},
        {"model": "gone", "tokens": 700},
    ]
    assert done.json == summary(missed, estimated=0)


@pytest.mark.parametrize("form", ["line", "json"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: f"2026-11-29T13:00:00.123Z {line}",
        lambda line: f"gateway-1  | {line}",
        lambda line: f"\x1b[36mgateway-1  |\x1b[0m \x1b[32mINFO\x1b[0m {line}\r",
        lambda line: f"Nov 29 13:00:00 host gateway[17]: {line}",
        lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-11-29"}),
    ],
    ids=["time", "compose", "colours", "journal", "docker"],
)
def test_any_wrapping_gives_the_same_sums(
    wrap: Any, form: str, capsys: pytest.CaptureFixture[str], logs: Callable[..., Done]
) -> None:
    """A time, a container's name, colours or the container runtime's JSON do not hide a line."""
    lines = written(form, capsys)
    plain = logs("\n".join(lines), "--json")
    wrapped = logs("\n".join(wrap(line) for line in lines), "--json")
    assert wrapped.json == plain.json
    assert plain.json["requests"] == 6


def test_a_hosts_own_formatter_is_read(caplog: pytest.LogCaptureFixture, logs: Callable[..., Done]) -> None:
    """A JSON formatter of the host's keeps the record's fields, under a name of its own for the message."""
    caplog.set_level(logging.INFO, LOGGER)
    telemetry = Telemetry("host")
    for decision in DECISIONS:
        telemetry.decided(decision)
    fields = [
        {"lvl": "info", "message": record.getMessage(), **{k: getattr(record, k) for k in Decision.__struct_fields__}}
        for record in caplog.records
    ]  # fmt: skip
    done = logs("\n".join(map(json.dumps, fields)), "--json")
    assert (done.json["requests"], done.json["matched_tokens"], done.json["estimated_requests"]) == (
        6,
        5248,
        0,
    )


def test_the_demos_lines_give_the_demos_hit_rate() -> None:
    """Four follow-ups of five turns are hits, in a table of at most 80 columns without colour codes."""
    done = process("logs", "-", env={"FORCE_COLOR": "", "COLUMNS": "200"}, stdin="\n".join(DEMO))
    assert (done.status, done.err, "\x1b" in done.out) == (0, "", False)
    assert max(map(len, done.out.splitlines())) <= 80
    assert done.rows == [
        "requests 5",
        "hit rate 80.0 % of requests (4 of 5)",
        "77.0 % of prompt tokens (about 20,864 of 27,098)",
        "reason requests share",
        "hit 4 80.0 %",
        "miss 1 20.0 %",
        "worker requests hits hit rate prompt tokens matched share",
        "b86f20c4 5 4 80.0 % 27,098 20,864 77.0 %",
        "most tokens missed tokens share",
        "worker b86f20c4 6,234 100.0 %",
    ]


def test_states_and_unread_lines_are_shown(logs: Callable[..., Done]) -> None:
    """What happened to workers and the mirror is counted, and a line of a later version is not passed over in silence."""
    lines = [
        "[PREFIX] worker w1 has restarted: its cache is empty",
        "[PREFIX] mirror: lost, x",
        "[PREFIX] new: form",
    ]
    done = logs("\n".join(lines))
    assert done.rows == [
        "requests 0",
        "hit rate - of requests (0 of 0)",
        "- of prompt tokens (0 of 0)",
        "states mirror lost 1, w1 restarted 1",
        "not read 1 lines of ours in a form not known here",
    ]


@pytest.mark.parametrize(
    ("window", "matched"), [("1048576", 24_576), ("65536", 16_384), ("32768", 8_192), ("1024", 256)]
)
def test_matched_tokens_follow_the_window(window: str, matched: int, logs: Callable[..., Done]) -> None:
    """The same count of blocks is worth what the gateways' window makes of it, and never more than the prompt."""
    line = "[PREFIX] hit: w1 keeps 88/90 blocks (slots=0 min=0 slack=0, ~30000 tokens)"
    short = "[PREFIX] hit: w1 keeps 2/2 blocks (slots=0 min=0 slack=0, ~200 tokens)"
    by_option = logs(f"{line}\n{short}", "--json", "--window-bytes", window)
    by_variable = logs(f"{line}\n{short}", "--json", env={"PREFIX_WINDOW_BYTES": window})
    assert by_option.json["matched_tokens"] == by_variable.json["matched_tokens"] == matched + 200


def test_names_from_a_log_cannot_write_to_the_terminal(logs: Callable[..., Done]) -> None:
    """A model's name is the client's: control characters and markup are shown as question marks."""
    entry = {
        "event": "[PREFIX] miss: ...",
        "reason": "miss",
        "worker": "w1",
        "tokens": 9,
        "model": "\x1b[31m[b]x",
    }
    assert logs(json.dumps(entry)).rows[-1] == "model ??31m?b?x 9 100.0 %"


@pytest.mark.parametrize(
    ("file", "stdin", "said"),
    [
        ("nowhere.log", "", "nowhere.log: No such file or directory"),
        (".", "", ".: Is a directory"),
        ("-", "a\nb\n", "nothing to show: no [PREFIX] line among the 2 lines of stdin"),
        (
            "-",
            '{"reason": "hit"}\n\xff{[PREFIX]',
            "nothing to show: no [PREFIX] line among the 2 lines of stdin",
        ),
    ],
)
def test_nothing_to_show_is_status_1(file: str, stdin: str, said: str) -> None:
    """A missing file, a folder or a log without our lines is one line on stderr."""
    done = process("logs", file, stdin=stdin)
    assert (done.status, done.out, done.err) == (1, "", f"{said}\n")
