"""nginx's own check of what is rendered: large fleets, odd ids, an http block of somebody else, the examples."""

import shlex
from pathlib import Path

import pytest

from prefix_middleware.core.workers import Worker
from prefix_middleware.nginx.render import Flavour, NginxOptions, Topology, render
from prefix_middleware.settings import Settings
from tests.nginx.running import Fleet, Program, check

EXAMPLES = Path(__file__).parents[2] / "nginx"
EXAMPLE_WORKERS = "w1=http://10.0.0.1:8000,w2=http://10.0.0.2:8000,w3=http://10.0.0.3:8000"
GOOD = "nginx: the configuration file /nginx.conf syntax is ok\nnginx: configuration file /nginx.conf test is successful\n"


@pytest.mark.parametrize("topology", ["a", "b"])
def test_thousands_of_workers_pass(program: Program, topology: Topology) -> None:
    """A fleet of 3,000 workers with the longest ids is accepted without a warning."""
    workers = tuple(
        Worker(id=f"{n:032d}", url=f"http://10.{n // 250}.0.{n % 250 + 1}:8000") for n in range(3000)
    )
    options = NginxOptions(flavour=program.flavour, topology=topology)
    assert check(program, render(Settings(workers=workers), options)) == (0, GOOD)


@pytest.mark.parametrize("topology", ["a", "b"])
@pytest.mark.parametrize(
    "ids", [("w1",), ("default", "include", "hostnames", "volatile", "s", "any", "-", "0")]
)
def test_every_allowed_id_passes(program: Program, topology: Topology, ids: tuple[str, ...]) -> None:
    """One worker alone, IPv6, and ids that are words of nginx's own are accepted."""
    workers = tuple(Worker(id=key, url=f"http://[fd00::{n}]:8000") for n, key in enumerate(ids, 1))
    options = NginxOptions(flavour=program.flavour, topology=topology)
    assert check(program, render(Settings(workers=workers), options)) == (0, GOOD)


@pytest.mark.anyio
async def test_the_includes_work_in_an_http_block_of_somebody_else(fleet: Fleet) -> None:
    """Settings of the surrounding block that would break streams, replays or ids do not reach our locations."""
    hostile = (
        "proxy_buffering on; proxy_request_buffering off; proxy_ignore_client_abort on; underscores_in_headers on;"
        'proxy_intercept_errors on; error_page 429 =200 /x; proxy_set_header X-Other "y"; client_max_body_size 1k;'
        "proxy_next_upstream off; keepalive_timeout 5s; gzip on; gzip_types *;"
        'map $host $other { default ""; } access_log access.log;'
    )
    main = f"pid nginx.pid; events {{}} http {{ {hostile} client_body_temp_path body; include prefix.conf; }}"
    files = {**fleet.files("a"), "nginx.conf": main}
    fleet.workers[0].status = 429
    async with fleet.up("a", files) as client:
        limited = await client.post("/v1/completions", content=b"x" * 2000, headers={"X-Prefix-Worker": "w1"})
        fleet.workers[0].status = 503
        replayed = await client.post(
            "/v1/completions", content=b"x" * 2_000_000, headers={"X-Prefix-Worker": "w1"}
        )
        forged = {"x_prefix_worker": "w3"}
        real = await client.post("/v1/completions", json={}, headers={**forged, "X-Prefix-Worker": "w2"})
    assert (limited.status_code, limited.text, limited.headers["x-prefix-served"]) == (429, "w1", "w1")
    assert fleet.requests["w1"] == 2  # the 429 and the 503, neither of them asked for again
    assert (replayed.status_code, replayed.headers["x-prefix-served"]) == (200, replayed.text)
    assert real.text == "w2"


@pytest.mark.parametrize("topology", ["a", "b"])
@pytest.mark.parametrize("flavour", ["sticky", "classic"])
def test_the_examples_are_what_the_package_renders(flavour: Flavour, topology: Topology) -> None:
    """The files in nginx/ equal the renderer's output for three workers, and nothing else lies beside them."""
    settings = Settings.from_env({"PREFIX_WORKERS": EXAMPLE_WORKERS})
    folder = EXAMPLES / f"{flavour}-{topology}"
    found = {path.name: path.read_text() for path in folder.iterdir()}
    command = f"prefix-middleware nginx --flavour {flavour} --topology {topology} --out nginx/{folder.name}"
    rendered = render(settings, NginxOptions(flavour=flavour, topology=topology))
    assert found == rendered, f"run: PREFIX_WORKERS={shlex.quote(EXAMPLE_WORKERS)} {command}"


@pytest.mark.parametrize("topology", ["a", "b"])
def test_the_examples_pass(program: Program, topology: Topology) -> None:
    """nginx accepts the files in nginx/ as they are."""
    folder = EXAMPLES / f"{program.flavour}-{topology}"
    assert check(program, {path.name: path.read_text() for path in folder.iterdir()}) == (0, GOOD)
