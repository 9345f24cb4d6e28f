"""An application that nobody edits: PREFIX_APP and prefix_middleware.asgi."""

import os
import subprocess
import sys

import pytest

from tests.integrations.stack import ROOT, Stack
from tests.integrations.test_hosts import assert_obeyed

ASGI = ("uvicorn", "prefix_middleware.asgi:app", "--log-level", "warning")


def test_an_unedited_gateway_is_routed(stack: Stack) -> None:
    """The example without the line is routed by the line's own rules, its auth and billing included."""
    env = {"PREFIX_APP": "gateway_plain:app"}
    with stack.gateway(ROOT / "examples", *ASGI, env=env) as gateway:
        assert_obeyed(stack, gateway)
        assert gateway.post({}, authorization="Bearer nobody").status_code == 401


@pytest.mark.parametrize(
    ("target", "accepted"),
    [
        ("", "package.module:app"),
        ("gateway_plain", "package.module:app"),
        (":app", "package.module:app"),
        ("no_such_module:app", "the name of a module that can be imported; there is no no_such_module"),
        (
            "gateway_plain.deeper:app",
            "the name of a module that can be imported; there is no gateway_plain.deeper",
        ),
        ("gateway_plain:application", "the name of an application in gateway_plain; there is no application"),
        ("gateway_plain:UPSTREAM_URL", "an ASGI application; UPSTREAM_URL cannot be called"),
    ],
)
def test_a_wrong_name_ends_the_start_with_one_line(target: str, accepted: str) -> None:
    """No traceback, no server that answers 500: one line that says what is accepted."""
    env = {**os.environ, "PREFIX_APP": target, "PYTHONPATH": f"{ROOT / 'examples'}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", *ASGI, "--port", "0"], env=env, capture_output=True, text=True, timeout=60
    )
    line = f"prefix-middleware: PREFIX_APP={target!r}: accepted is {accepted}\n"
    assert (done.returncode, done.stdout + done.stderr) == (1, line)
