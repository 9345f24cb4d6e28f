"""What a decision costs, measured: `python -m bench.figures` (read docs/benchmark.md first)."""
