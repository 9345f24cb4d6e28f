"""Faults on real processes, each with a verdict: `python -m drills` (read docs/drills.md first)."""
