"""`RedisMirror` with Redis as people run it: TLS, Sentinel with a failover, a Cluster with the slot elsewhere."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

from prefix_middleware.mirror.link import Keys
from prefix_middleware.mirror.redis import RedisMirror
from prefix_middleware.mirror.store import Store, connected
from tests.mirror.fleet import Gateway, running
from tests.mirror.peer import FINGERPRINT, FakePeer, carrying, confirmed, until
from tests.services import Process, RedisServer, accepts, free_port, redis_server, required, wait_until

pytestmark = pytest.mark.anyio

KEYS = Keys("test", shadow=False)


def mirror(url: str) -> RedisMirror:
    return RedisMirror(url, "test", FINGERPRINT)


async def assert_carries(url: str) -> None:
    """What one publishes over this URL the other hears."""
    a, b = FakePeer("a"), FakePeer("b")
    async with carrying((mirror(url), a), (mirror(url), b)):
        await until(lambda: a.connected and b.connected)
        a.publish(confirmed(1))
        await until(lambda: b.heard)
    assert b.heard == [("a", confirmed(1))]


@pytest.fixture
def certificates(tmp_path: Path) -> Callable[[str], Path]:
    """Return what makes a CA by this name, with a certificate for 127.0.0.1: NAME-ca.crt, NAME.crt, NAME.key."""
    openssl = required("openssl")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def make(name: str) -> Path:
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        usage = ("-addext", "keyUsage=critical,keyCertSign")
        run(
            *("req", "-x509", *key, "-subj", f"/CN={name}", *usage),
            *("-keyout", f"{name}-ca.key", "-out", f"{name}-ca.crt"),
        )
        run("req", *key, "-subj", "/CN=redis", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (tmp_path / "san").write_text("subjectAltName=IP:127.0.0.1\n")
        ca = ("-CA", f"{name}-ca.crt", "-CAkey", f"{name}-ca.key", "-CAcreateserial")
        run("x509", "-req", "-in", f"{name}.csr", *ca, "-extfile", "san", "-out", f"{name}.crt")
        return tmp_path

    return make


async def test_tls_with_a_ca_of_ones_own_and_a_password(certificates: Callable[[str], Path]) -> None:
    """`rediss://` checks the server against the CA in the URL; another CA is one line and no connection."""
    folder, port = certificates("ours"), free_port()
    certificates("other")
    files = [f"{folder}/ours{end}" for end in (".crt", ".key", "-ca.crt")]
    named = ("--tls-cert-file", files[0], "--tls-key-file", files[1], "--tls-ca-cert-file", files[2])
    with redis_server("--tls-port", str(port), *named, "--tls-auth-clients", "no", "--requirepass", "pa55"):
        url = f"rediss://:pa55@127.0.0.1:{port}/0?ssl_ca_certs={folder}"
        await assert_carries(f"{url}/ours-ca.crt")
        a = FakePeer("a")
        async with carrying((mirror(f"{url}/other-ca.crt"), a)):
            await until(lambda: a.states)
    up, reason = a.states[0]
    assert (up, "certificate verify failed" in reason, len(a.states)) == (False, True, 1)


@contextmanager
def sentinel(folder: Path, master: RedisServer, password: str) -> Iterator[int]:
    """Run a Sentinel that watches one master as `kv`; yields its port."""
    port = free_port()
    config = folder / "sentinel.conf"
    lines = (
        f"bind 127.0.0.1\nport {port}\ndir {folder}\n"
        f"sentinel monitor kv 127.0.0.1 {master.port} 1\nsentinel auth-pass kv {password}\n"
        "sentinel down-after-milliseconds kv 400\nsentinel failover-timeout kv 2000\n"
    )
    config.write_text(lines)
    process = Process([required("redis-server"), str(config), "--sentinel"], log=folder / "sentinel.log")
    try:
        wait_until(lambda: accepts(port), what="Sentinel")
        yield port
    finally:
        process.stop()


async def replicas_known(port: int) -> int:
    async with connected(f"redis://127.0.0.1:{port}/0", 5.0) as store:
        return len(await store.command("SENTINEL", "REPLICAS", "kv"))


async def test_gateways_follow_a_sentinel_failover_and_requests_never_notice(tmp_path: Path) -> None:
    """The master is killed: decisions go on meanwhile, and the fleet agrees again over the promoted replica."""
    auth = ("--requirepass", "pa55", "--masterauth", "pa55")
    with ExitStack() as stack:
        master = stack.enter_context(redis_server(*auth))
        replicaof = ("--replicaof", "127.0.0.1", str(master.port))
        stack.enter_context(redis_server(*auth, *replicaof))
        port = stack.enter_context(sentinel(tmp_path, master, "pa55"))
        with anyio.fail_after(15):
            while not await replicas_known(port):  # noqa: ASYNC110 - in another process
                await anyio.sleep(0.1)
        url = f"redis+sentinel://:pa55@127.0.0.1:{free_port()},127.0.0.1:{port}/kv/0"
        a, b = Gateway(url), Gateway(url)
        async with running(a, b):
            await until(lambda: a.connected and b.connected)
            a.serve(0)
            await until(lambda: b.best(0) == a.best(0))
            master.kill()
            await until(lambda: not a.connected and not b.connected)
            workers = [a.serve(number) for number in range(1, 100)]
            await until(lambda: a.connected and b.connected, seconds=20)
            await until(lambda: all(b.best(number) == a.best(number) for number in range(100)))
    assert (len(workers), b.count("lost"), b.best(99)[0]) == (99, 0, 8)


@contextmanager
def cluster(count: int) -> Iterator[list[tuple[RedisServer, int]]]:
    """Run Cluster nodes that own no slots yet; yields each with the port of its cluster bus."""
    with ExitStack() as stack:
        nodes = []
        for _ in range(count):
            bus = free_port()
            options = ("--cluster-enabled", "yes", "--cluster-port", str(bus))
            nodes.append((stack.enter_context(redis_server(*options)), bus))
        yield nodes


async def until_cluster_is_ok(store: Store) -> None:
    with anyio.fail_after(20):
        while b"cluster_state:ok" not in await store.command("CLUSTER", "INFO"):  # noqa: ASYNC110 - elsewhere
            await anyio.sleep(0.05)


async def test_all_keys_live_in_one_slot() -> None:
    """Streams, snapshot and lease share a hash tag, so one XREAD, RENAME and transaction may name them all."""
    with cluster(1) as [(node, _)]:
        async with connected(node.url, 5.0) as store:
            await store.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            await until_cluster_is_ok(store)
            names = (KEYS.decisions, KEYS.gauges, KEYS.snapshot, KEYS.lease, KEYS.snapshot + b":token")
            slots = {await store.command("CLUSTER", "KEYSLOT", name) for name in names}
            await assert_carries(node.url)
    assert len(slots) == 1


async def test_a_slot_on_its_way_is_an_outage_that_ends() -> None:
    """While a node answers ASK the mirror is lost, not over: one line, and one when the slot has settled."""
    with cluster(2) as [(node, _), (other, bus)]:
        async with connected(node.url, 5.0) as store, connected(other.url, 5.0) as second:
            await store.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            await store.command("CLUSTER", "MEET", "127.0.0.1", other.port, bus)
            await until_cluster_is_ok(second)
            slot, there = (
                await store.command("CLUSTER", "KEYSLOT", KEYS.decisions),
                await second.command("CLUSTER", "MYID"),
            )
            await store.command("CLUSTER", "SETSLOT", slot, "MIGRATING", there)
            a = FakePeer("a")
            async with carrying((mirror(node.url), a)):
                await until(lambda: a.states)
                await store.command("CLUSTER", "SETSLOT", slot, "STABLE")
                await until(lambda: a.connected)
    assert [(up, reason.partition(":")[0]) for up, reason in a.states] == [
        (False, "AskError"),
        (True, "redis"),
    ]


async def test_a_slot_on_another_node_is_followed() -> None:
    """Any node of a Cluster will do in the URL: MOVED says where our one slot is."""
    with cluster(2) as [(node, _), (other, bus)]:
        async with connected(node.url, 5.0) as first, connected(other.url, 5.0) as second:
            slot = await first.command("CLUSTER", "KEYSLOT", KEYS.decisions)
            await second.command("CLUSTER", "ADDSLOTS", slot)
            await first.command("CLUSTER", "ADDSLOTSRANGE", 0, slot - 1, slot + 1, 16383)
            await first.command("CLUSTER", "MEET", "127.0.0.1", other.port, bus)
            await until_cluster_is_ok(first)
            await until_cluster_is_ok(second)
        await assert_carries(node.url)
