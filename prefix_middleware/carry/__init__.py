"""What puts the header on the host's outgoing request: `context.py` knows the exchange, one file per HTTP client patches it."""
