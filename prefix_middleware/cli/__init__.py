"""The `prefix-middleware` command; what it needs comes with the extra `cli` and is imported only here."""

import sys
from typing import Final

HINT: Final = "pip install 'prefix-middleware[cli]'"
_EXTRA: Final = frozenset({"typer", "rich", "jinja2"})


def main() -> None:
    """Run the command and exit; 2 with one line when the extra is not installed."""
    try:
        import jinja2  # noqa: F401 - asked for here, so that every command says the same
        import rich  # noqa: F401

        from prefix_middleware.cli.app import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        print(HINT, file=sys.stderr)
        sys.exit(2)
    app(prog_name="prefix-middleware")
