"""`prefix-middleware demo`: one conversation over two gateways and three workers, without the line and with it."""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Play the demonstration and return the exit status: 0 shown, 1 a follow-up changed its worker, 2 no start."""
    from prefix_middleware.demo.command import run  # its servers run modules of this package and need no more

    return run(argv)
