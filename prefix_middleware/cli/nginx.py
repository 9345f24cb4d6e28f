"""`prefix-middleware nginx`: PREFIX_* variables -> configuration files, on stdout or in a folder."""

import os
import re
import shutil
import socket
import subprocess
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from prefix_middleware.nginx.addresses import ambiguous_names
from prefix_middleware.nginx.render import (
    DEFAULT_GATEWAY,
    DEFAULT_LISTEN,
    STICKY_SINCE,
    Flavour,
    NginxOptions,
    hop_ports,
    render,
)
from prefix_middleware.settings import Settings, SettingsError, unknown_variables

_UNRESOLVED: Final = (
    "does not resolve here, so X-Prefix-Served stays empty for it; "
    "give it a port of its own or an IP address, or render where it resolves"
)


class FlavourName(StrEnum):
    """The values of --flavour."""

    STICKY = "sticky"
    CLASSIC = "classic"


class TopologyName(StrEnum):
    """The values of --topology."""

    A = "a"
    B = "b"


def nginx(
    flavour: Annotated[
        FlavourName | None,
        typer.Option(help="sticky: nginx >= 1.29.6; classic: any. Default: what the installed nginx can do."),
    ] = None,
    topology: Annotated[
        TopologyName, typer.Option(help="a: between gateway and workers; b: in front of the gateway.")
    ] = TopologyName.A,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help=f"Default: as PREFIX_UPSTREAM_URL (a), or {DEFAULT_LISTEN}."),
    ] = None,
    gateway: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the gateway listens; topology b only.")
    ] = DEFAULT_GATEWAY,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", file_okay=False, help="Write the files there, not to stdout."),
    ] = None,
    includes: Annotated[
        bool, typer.Option("--includes", help="Only what an existing http block lacks.")
    ] = False,
) -> None:
    """Render the nginx configuration for the workers in PREFIX_WORKERS."""
    for name in unknown_variables():
        typer.echo(f"{name}: no such setting, ignored", err=True)
    try:
        settings = Settings.from_env()
        options = NginxOptions(
            flavour=_installed_flavour() if flavour is None else flavour.value,
            topology=topology.value,
            listen=listen,
            gateway=gateway,
            whole=not includes,
        )
        files = render(settings, _with_addresses(settings, options))
    except SettingsError as error:
        _refuse(str(error))
    _show(files) if out is None else _write(files, out)


def _refuse(line: str) -> NoReturn:
    typer.echo(line, err=True)
    raise typer.Exit(2)


def _installed_flavour() -> Flavour:
    needed = ".".join(map(str, STICKY_SINCE))
    program = shutil.which("nginx")
    if program is None:
        typer.echo(f"flavour: classic (no nginx here; sticky needs {needed} or later)", err=True)
        return "classic"
    said = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    flavour, version = flavour_of(said.stderr)
    typer.echo(f"flavour: {flavour} (nginx {version} is installed; sticky needs {needed} or later)", err=True)
    return flavour


def flavour_of(version_line: str) -> tuple[Flavour, str]:
    """Return the flavour for what `nginx -v` said, and the version in it ("unknown" where there is none)."""
    found = re.search(r"/(\d+)\.(\d+)\.(\d+)", version_line)
    if found is None:
        return "classic", "unknown"
    version = tuple(map(int, found.groups()))
    return ("sticky" if version >= STICKY_SINCE else "classic"), ".".join(found.groups())


def _with_addresses(settings: Settings, options: NginxOptions) -> NginxOptions:
    """Look up the names that only an IP address tells apart, and say which cannot be told apart."""
    known = {}
    for worker_id, name in ambiguous_names(settings.workers, hop_ports(options)).items():
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            known[worker_id] = tuple(sorted({str(entry[4][0]) for entry in found}))
        except OSError:
            typer.echo(f"{worker_id}: {name} {_UNRESOLVED}", err=True)
    return replace(options, addresses=known)


def _show(files: dict[str, str]) -> None:
    for name, text in files.items():
        typer.echo(f"# file: {name}\n{text}", nl=False)


def _write(files: dict[str, str], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            fresh = folder / f".{name}.new"
            fresh.write_text(text)
            os.replace(fresh, folder / name)  # a reload never reads half a file
    except OSError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    typer.echo(f"{folder}: {', '.join(files)}", err=True)
