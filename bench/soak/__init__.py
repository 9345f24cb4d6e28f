"""What a gateway holds and needs after a long time: python -m bench.soak."""
