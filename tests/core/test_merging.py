"""System text that a template pulls to the front, as vLLM joins it there."""

from typing import Any

import pytest

from prefix_middleware.core.canonical import Api, CanonicalPrompt, canonical_prompt
from tests.core.bodies import Json, assistant, chat, encode, system, text, user

BILLING = "x-anthropic-billing-header: cch=1;\n"


def developer(content: Any) -> Json:
    return {"role": "developer", "content": content}


def claude(*messages: Json, **fields: Any) -> Json:
    return {"model": "m", "messages": list(messages), **fields}


def canonical(api: Api, request: Json, *models: str) -> CanonicalPrompt:
    prompt = canonical_prompt(api, encode(request), (), models)
    assert isinstance(prompt, CanonicalPrompt)
    return prompt


SAME: dict[str, tuple[Api, Json, Json]] = {
    "a late developer message": (
        "chat",
        chat(system("a"), user("u"), developer("b")),
        chat(system("a\n\nb"), user("u")),
    ),
    "late system text beside a developer's": (
        "chat",
        chat(developer("a"), user("u"), system("b"), assistant("r"), user("v")),
        chat(system("a\n\nb"), user("u"), assistant("r"), user("v")),
    ),
    "a developer message alone": ("chat", chat(developer("a"), user("u")), chat(system("a"), user("u"))),
    "parts are joined by a line break": (
        "chat",
        chat(system("a"), user("u"), developer([text("b"), text("c")])),
        chat(system("a\n\nb\nc"), user("u")),
    ),
    "empty ones leave no gap": (
        "chat",
        chat(system(""), user("u"), developer("b"), developer(None)),
        chat(system("b"), user("u")),
    ),
    "the billing line goes first": (
        "chat",
        chat(system(BILLING + "a"), user("u"), developer("b")),
        chat(system("a\n\nb"), user("u")),
    ),
    "inline system messages of the Messages API": (
        "messages",
        claude(user("u"), system("b"), assistant("r"), user("v"), system([text("c")]), system="a"),
        claude(user("u"), assistant("r"), user("v"), system="abc"),
    ),
    "with system blocks before them": (
        "messages",
        claude(user("u"), system("b"), system=[text("a"), text(BILLING)]),
        claude(user("u"), system="ab"),
    ),
}


@pytest.mark.parametrize(("api", "given", "rendered"), SAME.values(), ids=SAME)
def test_late_system_text_stands_at_the_front(api: Api, given: Json, rendered: Json) -> None:
    """Both requests render alike where the model's template wants it so, and only there."""
    assert canonical(api, given, "m") == canonical(api, rendered)
    assert canonical(api, given, "other").data != canonical(api, rendered).data


STAYS: dict[str, tuple[Api, Json]] = {
    "a late system message without a developer's": ("chat", chat(system("a"), user("u"), system("b"))),
    "no system text": ("chat", chat(user("u"))),
    "a system field": ("messages", claude(user("u"), system="a")),
    "responses": ("responses", {"model": "m", "input": [user("u"), developer("b")]}),
    "a developer message for the Messages API": ("messages", claude(user("u"), developer("b"))),
}


@pytest.mark.parametrize(("api", "given"), STAYS.values(), ids=STAYS)
def test_what_vllm_leaves_in_place_stays(api: Api, given: Json) -> None:
    """Nothing moves unless the engine moves it."""
    assert canonical(api, given, "m") == canonical(api, given)


def test_a_new_reminder_costs_the_prefix() -> None:
    """The text at the front grows with each, as it does in the engine."""
    turns = [system("a" * 600), user("u" * 600)]
    later = [*turns, assistant("r"), developer("be brief")]
    plain, moved = canonical("chat", chat(*turns), "m"), canonical("chat", chat(*later), "m")
    assert (
        moved.data.startswith(plain.data),
        canonical("chat", chat(*later)).data.startswith(plain.data),
    ) == (
        False,
        True,
    )
