"""LiteLLM's proxy brings a hundred packages along: these tests run with `make test-litellm` only."""

import os
from importlib.util import find_spec

ENABLED = bool(os.environ.get("PREFIX_TEST_LITELLM")) and find_spec("litellm") is not None

collect_ignore_glob = [] if ENABLED else ["test_*.py"]
if ENABLED:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else each start asks the network for prices
