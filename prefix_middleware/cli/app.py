"""The command's skeleton: options of the whole command, and one function per subcommand."""

from typing import Annotated

import typer

from prefix_middleware import __version__
from prefix_middleware.cli.explain import explain
from prefix_middleware.cli.logs import logs
from prefix_middleware.cli.nginx import nginx
from prefix_middleware.cli.output import EXIT_CODES, FLEET_EXIT_CODES
from prefix_middleware.cli.workers import workers

_EXIT_CODES = "Exit status: 0 done; 1 it was tried and failed; 2 wrong options, settings, or a missing extra."

app = typer.Typer(
    name="prefix-middleware",
    help="Send each prompt to the vLLM worker that already holds its prefix. Reads PREFIX_* variables.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(epilog=_EXIT_CODES)(nginx)
app.command(epilog=FLEET_EXIT_CODES)(explain)
app.command(epilog=EXIT_CODES)(logs)
app.command(epilog=FLEET_EXIT_CODES)(workers)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"prefix-middleware {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Send each prompt to the vLLM worker that already holds its prefix. Reads PREFIX_* variables."""


@app.command(epilog=_EXIT_CODES)
def demo() -> None:
    """Show the gain on this machine: simulated workers, nginx and two gateways."""
    from prefix_middleware.demo import main  # its servers come with the extra `demo`

    raise typer.Exit(main())
