"""LiteLLM's proxy inside the middleware: `CONFIG_FILE_PATH=config.yaml PREFIX_DECIDE=egress uvicorn asgi:app`."""

from litellm.proxy.proxy_server import app as proxy
from prefix_middleware import PrefixMiddleware

app = PrefixMiddleware(proxy)
