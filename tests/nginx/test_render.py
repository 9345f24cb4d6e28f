"""What is rendered from which settings, and what is refused."""

import re

import pytest

from prefix_middleware.core.workers import Worker
from prefix_middleware.nginx.addresses import Address, parse_address, servers
from prefix_middleware.nginx.render import NginxOptions, Topology, render
from prefix_middleware.settings import Settings, SettingsError


def _workers(*urls: str) -> tuple[Worker, ...]:
    return tuple(Worker(id=f"w{number}", url=url) for number, url in enumerate(urls, 1))


def _directives(text: str, name: str) -> list[str]:
    return [line.split(";")[0].strip() for line in text.splitlines() if line.strip().startswith(f"{name} ")]


def test_the_files_are_those_of_a_whole_configuration_or_only_the_includes() -> None:
    """The include files are the same with and without nginx.conf, but for nothing."""
    settings = Settings(workers=_workers("http://10.0.0.1:8000"))
    whole, includes = render(settings, NginxOptions()), render(settings, NginxOptions(whole=False))
    assert list(whole) == ["nginx.conf", "prefix.conf", "prefix_workers.conf", "prefix_proxy.conf"]
    assert includes == {name: text for name, text in whole.items() if name != "nginx.conf"}


def test_the_header_of_the_settings_is_read_cleared_and_hidden() -> None:
    """A header of the host's own name takes the place of X-Prefix-Worker everywhere."""
    settings = Settings(workers=_workers("http://10.0.0.1:8000"), header="X-Upstream-Worker")
    for topology, source in (("a", "$http_x_upstream_worker"), ("b", "$upstream_http_x_upstream_worker")):
        files = render(settings, NginxOptions(topology="a" if topology == "a" else "b"))
        text = "".join(files.values())
        assert f"set $prefix_want {source}" in _directives(text, "set")
        assert 'proxy_set_header X-Upstream-Worker ""' in _directives(
            files["prefix_proxy.conf"], "proxy_set_header"
        )
        assert "proxy_hide_header X-Upstream-Worker" in _directives(text, "proxy_hide_header")
        assert "x-prefix-worker" not in text.lower()


def test_at_most_three_rotating_workers_back_one_up() -> None:
    """In the classic flavour worker n is backed up by the next three, going round."""
    settings = Settings(workers=_workers(*(f"http://10.0.0.{n}:80" for n in range(1, 7))))
    text = render(settings, NginxOptions())["prefix_workers.conf"]
    group = text.split("upstream prefix_worker_w5 {")[1].split("}")[0]
    assert _directives(group, "server") == [
        "server 10.0.0.5:80 max_fails=2 fail_timeout=5s",
        "server 10.0.0.6:80 max_fails=2 fail_timeout=5s backup",
        "server 10.0.0.1:80 max_fails=2 fail_timeout=5s backup",
        "server 10.0.0.2:80 max_fails=2 fail_timeout=5s backup",
    ]


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.1", "10.0.0.1:80"),
        ("http://10.0.0.1:8000/", "10.0.0.1:8000"),
        ("http://[2001:DB8:0:0::1]:8000", "[2001:db8::1]:8000"),
        ("http://localhost:8000", "127.0.0.1:8000"),
        ("http://GPU-1.internal:8000", "gpu-1.internal:8000"),
    ],
)
def test_a_worker_url_becomes_an_address(url: str, address: str) -> None:
    """Port 80 is the default, IPv6 is written as nginx prints it, and localhost is the IPv4 one."""
    text = render(Settings(workers=_workers(url)), NginxOptions(flavour="sticky"))["prefix_workers.conf"]
    assert _directives(text, "server") == [f"server {address} route=w1 max_fails=2 fail_timeout=5s"]


def _who(
    workers: tuple[Worker, ...], upstream_addr: str, known: dict[str, tuple[str, ...]] | None = None
) -> list[str]:
    """Return the ids whose expressions match, as nginx's map would try them."""
    fleet = servers(workers, known or {})
    return [s.id for s in fleet if any(re.search(expression, upstream_addr) for expression in s.served)]


def test_only_the_last_address_says_who_served() -> None:
    """In a list of addresses the last one counts, whole: 10.0.0.1 is not 110.0.0.1, port 80 not port 8000."""
    workers = _workers("http://10.0.0.1:80", "http://110.0.0.1:80", "http://[::1]:80", "http://10.0.0.1:8000")
    assert _who(workers, "10.0.0.1:80") == ["w1"]
    assert _who(workers, "110.0.0.1:80") == ["w2"]
    assert _who(workers, "10.0.0.1:8000, [::1]:80") == ["w3"]
    assert _who(workers, "127.0.0.1:9000 : 10.0.0.1:8000") == ["w4"]
    assert _who(workers, "prefix_workers") == []


def test_names_are_told_apart_by_port_or_by_their_addresses() -> None:
    """A name with a port of its own needs no look-up; names that share one need addresses, else nobody is named."""
    own = _workers("http://gpu-1:8001", "http://gpu-2:8002")
    assert [_who(own, f"10.0.0.9:{port}") for port in (8001, 8002)] == [["w1"], ["w2"]]
    shared = _workers("http://gpu-1:8000", "http://gpu-2:8000")
    known = {"w1": ("10.0.0.1", "fd00::1"), "w2": ("10.0.0.2",)}
    asked = ("10.0.0.1:8000", "[fd00::1]:8000", "10.0.0.2:8000")
    assert [_who(shared, address, known) for address in asked] == [["w1"], ["w1"], ["w2"]]
    assert _who(shared, "10.0.0.1:8000") == []


def test_a_gateway_on_the_workers_port_makes_the_port_useless() -> None:
    """In topology b the gateway is in the list too, so its port tells nobody apart."""
    settings = Settings(workers=_workers("http://gpu-1:8000"))
    of_a = render(settings, NginxOptions(topology="a"))["prefix_workers.conf"]
    of_b = render(settings, NginxOptions(topology="b", gateway="127.0.0.1:8000"))["prefix_workers.conf"]
    assert ('"~:8000$" w1;' in of_a, '"~:8000$" w1;' in of_b) == (True, False)


@pytest.mark.parametrize(
    ("urls", "options", "message"),
    [
        ((), NginxOptions(), "workers=(): accepted is one or more"),
        (
            ("https://10.0.0.1",),
            NginxOptions(),
            "workers='https://10.0.0.1': accepted is http://host[:port], since",
        ),
        (
            ("http://gpu%1",),
            NginxOptions(),
            "workers='http://gpu%1': accepted is http://host[:port] with an IP",
        ),
        (
            ("http://[fe80::1%25eth0]:80",),
            NginxOptions(),
            "workers='http://[fe80::1%25eth0]:80': accepted is",
        ),
        (
            ("http://h:1", "http://h:1/"),
            NginxOptions(),
            "workers='h:1': accepted is a different host and port",
        ),
        (
            ("http://a:1", "http://b:1"),
            NginxOptions(addresses={"w1": ("10.0.0.1",), "w2": ("10.0.0.1",)}),
            r"workers='(?:^|\\s)10\\.0\\.0\\.1:1$': accepted is a different host and port",
        ),
        (
            ("http://127.0.0.1:8000",),
            NginxOptions(topology="b", gateway="localhost:8000"),
            "gateway='localhost:8000': accepted is an address that is no worker's",
        ),
    ],
)
def test_what_nginx_cannot_use_is_refused(urls: tuple[str, ...], options: NginxOptions, message: str) -> None:
    """The error names the field, the value and what is accepted."""
    with pytest.raises(SettingsError) as raised:
        render(Settings(workers=_workers(*urls)), options)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    "text",
    [
        *("8080", "host", "host:0", "host:70000", ":80", "u@h:80", "h:80/"),
        *("h;x:80", "h x:80", "h\n:80", "{h}:80", "$h:80", '"h:80', "h#:80"),
    ],
)
def test_only_a_host_and_a_port_is_an_address(text: str) -> None:
    """Nothing that could end a directive, or mean something else to nginx, gets through an option."""
    with pytest.raises(SettingsError, match=r"^listen="):
        parse_address("listen", text)


@pytest.mark.parametrize(
    ("upstream_url", "topology", "listen", "expected"),
    [
        (None, "a", None, "127.0.0.1:8080"),
        ("http://localhost:9000/v1", "a", None, "127.0.0.1:9000"),
        ("http://nginx:9000", "a", None, "nginx:9000"),
        ("http://nginx", "a", None, "127.0.0.1:8080"),
        ("https://nginx:443", "a", None, "127.0.0.1:8080"),
        ("http://nginx:9000", "b", None, "127.0.0.1:8080"),
        ("http://nginx:9000", "a", "[::]:80", "[::]:80"),
    ],
)
def test_nginx_listens_where_the_gateway_sends(
    upstream_url: str | None, topology: Topology, listen: str | None, expected: str
) -> None:
    """The option wins, then the plain http upstream url of topology a, then loopback."""
    settings = Settings(workers=_workers("http://10.0.0.1"), upstream_url=upstream_url)
    text = render(settings, NginxOptions(topology=topology, listen=listen))["prefix.conf"]
    assert _directives(text, "listen") == [f"listen {expected}"]


def test_a_value_that_would_end_a_directive_is_never_written() -> None:
    """The renderer itself refuses, even when a value has passed every earlier check."""
    settings = Settings(workers=_workers("http://10.0.0.1"))
    for bad in ("X-A; x", "X-A}", 'X-"', "X-\n", "X-$host", "X-A b", "X-#", "X-\\"):
        object.__setattr__(settings, "header", bad)
        with pytest.raises(ValueError, match="not fit for an nginx configuration"):
            render(settings, NginxOptions())


def test_addresses_print_as_nginx_writes_them() -> None:
    """IPv6 hosts are in brackets."""
    assert [str(Address(host=host, port=80)) for host in ("::1", "h", "1.2.3.4")] == [
        "[::1]:80",
        "h:80",
        "1.2.3.4:80",
    ]
