"""The `prefix-middleware` command: what it prints where, and with which exit status."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prefix_middleware import __version__
from prefix_middleware.cli.app import app
from prefix_middleware.cli.nginx import flavour_of
from prefix_middleware.nginx.render import NginxOptions, render
from prefix_middleware.settings import Settings

WORKERS = {"PREFIX_WORKERS": "w1=http://10.0.0.1:8000,w2=http://10.0.0.2:8000"}
MAIN = "from prefix_middleware.cli import main; main()"


@pytest.fixture(autouse=True)
def _only_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PREFIX_")]:
        monkeypatch.delenv(name)


def _run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), env=WORKERS if env is None else env)


def test_the_files_go_to_stdout_one_after_another() -> None:
    """Without --out each file follows its name, and stderr stays empty when the flavour was given."""
    done = _run(
        "nginx", "--flavour", "sticky", "--topology", "b", "--listen", "0.0.0.0:80", "--gateway", "[::1]:9000"
    )
    options = NginxOptions(flavour="sticky", topology="b", listen="0.0.0.0:80", gateway="[::1]:9000")
    files = render(Settings.from_env(WORKERS), options)
    expected = "".join(f"# file: {name}\n{text}" for name, text in files.items())
    assert (done.exit_code, done.stdout, done.stderr) == (0, expected, "")


def test_the_files_go_to_a_folder(tmp_path: Path) -> None:
    """With --out the folder is made and holds exactly the files, also when they were there before."""
    folder = tmp_path / "new" / "nginx"
    for _ in range(2):
        done = _run("nginx", "--flavour", "classic", "--includes", "--out", str(folder))
        assert (done.exit_code, done.stdout) == (0, "")
    files = render(Settings.from_env(WORKERS), NginxOptions(whole=False))
    assert {path.name: path.read_text() for path in folder.iterdir()} == files


@pytest.mark.parametrize(
    ("arguments", "env", "line"),
    [
        ((), {}, "workers=(): accepted is one or more, as in PREFIX_WORKERS=w1=http://10.0.0.1:8000"),
        ((), {"PREFIX_WORKERS": "w1"}, "workers='w1': accepted is id=url,id=url#rank, as in"),
        (
            (),
            {**WORKERS, "PREFIX_HEADER": "Host"},
            "header='Host': accepted is a header name that starts with X-",
        ),
        (("--listen", "80;"), WORKERS, "listen='80;': accepted is HOST:PORT, as in"),
        (("--topology", "b", "--gateway", "x"), WORKERS, "gateway='x': accepted is HOST:PORT, as in"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(
    arguments: tuple[str, ...], env: dict[str, str], line: str
) -> None:
    """The field, its value and what is accepted go to stderr, and nothing is rendered."""
    done = _run("nginx", "--flavour", "classic", *arguments, env=env)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(line)


def test_a_misspelt_variable_is_named() -> None:
    """A PREFIX_* variable that no setting reads is said on stderr, and the rest goes on."""
    done = _run("nginx", "--flavour", "classic", env={**WORKERS, "PREFIX_HAEDER": "X-A"})
    assert (done.exit_code, done.stderr) == (0, "PREFIX_HAEDER: no such setting, ignored\n")


def test_a_name_that_does_not_resolve_is_said() -> None:
    """Names that share a port and have no address here are rendered, with a line on what is lost."""
    env = {"PREFIX_WORKERS": "w1=http://gpu-1.invalid:8000,w2=http://10.0.0.2:8000"}
    done = _run("nginx", "--flavour", "classic", env=env)
    assert done.exit_code == 0
    assert done.stderr.startswith(
        "w1: gpu-1.invalid does not resolve here, so X-Prefix-Served stays empty for it"
    )
    assert "# w1: neither its port nor a known IP address tells it from the others" in done.stdout


@pytest.mark.parametrize(
    ("said", "flavour", "version"),
    [
        ("nginx version: nginx/1.29.6\n", "sticky", "1.29.6"),
        ("nginx version: nginx/1.30.0 (Debian)\n", "sticky", "1.30.0"),
        ("nginx version: nginx/1.29.5\n", "classic", "1.29.5"),
        ("nginx version: openresty/1.27.1.2\n", "classic", "1.27.1"),
        ("nginx: command not found", "classic", "unknown"),
    ],
)
def test_the_flavour_follows_the_installed_version(said: str, flavour: str, version: str) -> None:
    """Sticky from 1.29.6 on, classic before and for what cannot be read."""
    assert flavour_of(said) == (flavour, version)


@pytest.mark.parametrize(
    ("version", "flavour"), [("1.30.1", "sticky"), ("1.22.1", "classic"), (None, "classic")]
)
def test_without_a_flavour_the_installed_nginx_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, flavour: str
) -> None:
    """The default is what the nginx on the path can do, and stderr says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    if version is not None:
        program = tmp_path / "nginx"
        program.write_text(f"#!/bin/sh\necho 'nginx version: nginx/{version}' >&2\n")
        program.chmod(0o755)
    done = _run("nginx")
    found = "no nginx here" if version is None else f"nginx {version} is installed"
    assert done.stderr == f"flavour: {flavour} ({found}; sticky needs 1.29.6 or later)\n"
    assert ("sticky route" in done.stdout, done.exit_code) == (flavour == "sticky", 0)


def test_a_folder_that_cannot_be_written_is_status_1(tmp_path: Path) -> None:
    """What the system says goes to stderr in one line."""
    (tmp_path / "file").write_text("")
    done = _run("nginx", "--flavour", "classic", "--out", str(tmp_path / "file" / "below"))
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)


def test_the_version_is_printed() -> None:
    """--version names the program and its version."""
    done = _run("--version")
    assert (done.exit_code, done.stdout) == (0, f"prefix-middleware {__version__}\n")


@pytest.mark.parametrize("arguments", [("--help",), ("nginx", "--help")])
def test_the_help_lists_the_exit_codes(arguments: tuple[str, ...]) -> None:
    """Whoever writes a script finds the codes without reading the source."""
    done = _run(*arguments, env={"COLUMNS": "200"})
    assert "Exit status: 0 done; 1 it was tried and failed; 2 wrong options" in done.stdout


@pytest.mark.parametrize("missing", ["typer", "rich", "jinja2"])
def test_without_the_extra_the_command_names_it(missing: str) -> None:
    """A plain install answers every command with the line that installs the rest, and status 2."""
    code = f"import sys; sys.modules[{missing!r}] = None; sys.argv[1:] = ['nginx']; {MAIN}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "pip install 'prefix-middleware[cli]'\n"
