"""A Redis server for machines without one: `python -m prefix_middleware.demo.redis_standin PORT`."""

import sys

from fakeredis import TcpFakeServer


def main(port: int) -> None:
    """Serve on the loopback port until a signal ends the process."""
    TcpFakeServer(("127.0.0.1", port), server_type="redis").serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
