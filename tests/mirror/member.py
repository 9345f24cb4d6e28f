"""A gateway in a process of its own: `python -m tests.mirror.member REDIS_URL REQUESTS` holds that many requests in flight."""

import sys

import anyio

from tests.mirror.fleet import Gateway, running


async def main(url: str, requests: int) -> None:
    """Choose workers for so many requests, say the origin, and carry until killed."""
    gateway = Gateway(url)
    for number in range(requests):
        gateway.choose(number)
    async with running(gateway):
        print(gateway.origin, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], int(sys.argv[2]))
