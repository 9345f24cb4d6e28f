"""The two nginx flavours on their real programs."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from prefix_middleware.nginx.render import STICKY_SINCE
from tests.nginx.running import Fleet, Program
from tests.services import required

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session", params=["classic", "sticky"])
def program(request: pytest.FixtureRequest) -> Program:
    if request.param == "classic":
        return Program(flavour="classic", path=required("nginx"))
    return Program(flavour="sticky", path=_new_nginx())


@pytest.fixture
def fleet(program: Program) -> Fleet:
    return Fleet(program)


def _new_nginx() -> str:
    """Return a command that runs a nginx with `sticky route`; without one skip, or fail in CI."""
    script = str(_ROOT / "scripts" / "new-nginx")
    done = subprocess.run([script], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        reason = f"no nginx with sticky route: {done.stderr.strip()}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    path = done.stdout.strip()
    said = subprocess.run([path, "-v"], capture_output=True, text=True, timeout=10, check=True).stderr
    version = re.search(r"/(\d+)\.(\d+)\.(\d+)", said)
    assert version is not None
    assert tuple(map(int, version.groups())) >= STICKY_SINCE, said
    return path
