"""The fake vLLM worker as a process.

python -m prefix_middleware.testing.worker --port 8001 --id w1
"""

import argparse
from collections.abc import Sequence

from prefix_middleware.testing.vllm import FakeWorker

__all__ = ["FakeWorker", "main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Serve one worker with uvicorn until a signal ends it."""
    import uvicorn  # an extra of the package, and only this function needs it

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--id", default="w1")
    parser.add_argument("--model", action="append", help="may be given several times")
    parser.add_argument("--kv-blocks", type=int, default=20_000, help="blocks of 16 tokens")
    parser.add_argument("--tokens-per-second", type=float, default=4000.0, help="prefill")
    parser.add_argument("--ms-per-token", type=float, default=5.0, help="decode")
    parser.add_argument("--max-model-len", type=int, default=32_768, help="tokens")
    options = parser.parse_args(argv)
    app = FakeWorker(
        options.id,
        models=options.model or ("fake-model",),
        kv_blocks=options.kv_blocks,
        tokens_per_second=options.tokens_per_second,
        ms_per_token=options.ms_per_token,
        max_model_len=options.max_model_len,
    )
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning", ws="none")


if __name__ == "__main__":
    main()
