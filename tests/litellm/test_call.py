"""What is read out of LiteLLM's arguments: the address, the body, the tenant, the headers."""

import json
from typing import Any

import pytest

from prefix_middleware.carry.context import Hop
from prefix_middleware.litellm_call import body_of, output_tokens_of, path_of, served_of, tenant_of, without
from prefix_middleware.settings import PATHS

HOP = Hop.of("http://nginx:8080", "X-Prefix-Worker", PATHS)
TURN = [{"role": "user", "content": "lone \ud800 surrogate"}]


class Dumped:
    """A message of LiteLLM's SDK: an object that can be dumped."""

    def model_dump(self, exclude_none: bool) -> dict[str, Any]:
        return {"role": "assistant", "exclude_none": exclude_none}


@pytest.mark.parametrize(
    ("kind", "api_base", "path"),
    [
        ("acompletion", "http://nginx:8080/v1", "/v1/chat/completions"),
        ("acompletion", "http://NGINX:8080/v1/", "/v1/chat/completions"),
        ("atext_completion", "http://nginx:8080/v1", "/v1/completions"),
        ("aresponses", "http://nginx:8080/pool/v1", "/pool/v1/responses"),
        ("anthropic_messages", "http://nginx:8080", "/v1/messages"),
        ("aembedding", "http://nginx:8080/v1", None),
        ("acompletion", "http://nginx:8081/v1", None),
        ("acompletion", "https://nginx:8080/v1", None),
        ("acompletion", "", None),
    ],
)
def test_a_call_takes_the_hop_by_its_address_and_kind(kind: str, api_base: str, path: str | None) -> None:
    """Only a kind with a prompt, to the origin of `upstream_url`, is for nginx."""
    assert path_of(HOP, {"api_base": api_base}, kind) == path
    assert path_of(None, {"api_base": api_base}, kind) is None


def test_the_body_is_what_says_which_prompt_it_is() -> None:
    """The deployment's model without its provider, the prompt's fields, `extra_body` over them, and nothing else."""
    kwargs = {
        "model": "hosted_vllm/Qwen/Qwen3-32B",
        "messages": [*TURN, Dumped()],
        "tools": None,
        "metadata": {"user_api_key": object()},
        "max_tokens": 5,
        "enable_thinking": True,
        "extra_body": {"cache_salt": "s", "max_tokens": 6},
    }
    assert json.loads(body_of(kwargs, ("enable_thinking",))) == {
        "model": "Qwen/Qwen3-32B",
        "messages": [*TURN, {"role": "assistant", "exclude_none": True}],
        "max_tokens": 6,
        "cache_salt": "s",
        "enable_thinking": True,
    }


@pytest.mark.parametrize(
    ("sent", "name", "expected"),
    [
        ({"headers": {"x-team": "a"}}, "X-Team", [(b"x-team", b"a")]),
        ({"headers": {"X-TEAM": "a"}}, "x-team", [(b"x-team", b"a")]),
        ({"headers": {}}, "X-Team", []),
        (None, "X-Team", []),
        ({"headers": {"x-team": "a"}}, None, []),
    ],
)
def test_the_tenant_is_the_clients(sent: object, name: str | None, expected: object) -> None:
    """The header that separates tenants is read from the request as the proxy got it."""
    assert tenant_of({"proxy_server_request": sent}, name) == expected


def test_every_spelling_of_the_header_is_taken_off() -> None:
    """Whatever the case, and with underscores; what is no mapping stays."""
    given = {"X-Prefix-Worker": "1", "x_prefix_worker": "2", "X-PREFIX_WORKER": "3", "x-prefix": "kept"}
    assert without(given, "X-Prefix-Worker") == {"x-prefix": "kept"}
    assert without("text", "X-Prefix-Worker") == "text"


@pytest.mark.parametrize(
    ("response", "served", "tokens"),
    [
        ({"_hidden_params": {"additional_headers": {"llm_provider-X-Prefix-Served": "w2"}}}, "w2", 1),
        ({"usage": {"output_tokens": 7}}, None, 7),
        ({"usage": {"completion_tokens": 8}}, None, 8),
        (object(), None, 1),
        (None, None, 1),
    ],
)
def test_an_answer_says_who_served_and_how_long_it_is(
    response: object, served: str | None, tokens: int
) -> None:
    """Both may be missing."""
    assert (served_of(response), output_tokens_of(response)) == (served, tokens)
