"""Faults of Redis: the requests must not notice, and afterwards the gateways agree again."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from redis import Redis

from drills.rig import PASSWORD, Rig, rig, wait_until
from drills.scene import Scene, play
from drills.verdict import Drill, Figures, Scale

Break = Callable[[Rig], Callable[[], None]]
"""Breaks Redis and returns what mends it."""

_LINK_SECONDS: Final = 0.4  # each way; the mirror's writer gives up after 1 s without a reply
_NOWHERE: Final = 1  # a port that nothing listens on


def _frozen(it: Rig) -> Callable[[], None]:
    it.signal("redis", signal.SIGSTOP)
    return lambda: it.signal("redis", signal.SIGCONT)


def _killed(it: Rig) -> Callable[[], None]:
    it.kill("redis")
    return lambda: _ignore(it.start_redis())


def _restarted_empty(it: Rig) -> Callable[[], None]:
    it.kill("redis")
    it.start_redis()
    return lambda: None


def _wrong_password(it: Rig) -> Callable[[], None]:
    with _client(it) as redis:
        redis.config_set("requirepass", "another one")
        redis.client_kill_filter(_type="normal", skipme=True)
    return lambda: _configure(it, "requirepass", PASSWORD, password="another one")


def _read_only(it: Rig) -> Callable[[], None]:
    with _client(it) as redis:
        redis.replicaof("127.0.0.1", _NOWHERE)

    def mend() -> None:
        with _client(it) as redis:
            redis.replicaof("NO", "ONE")

    return mend


def _too_few_replicas(it: Rig) -> Callable[[], None]:
    _configure(it, "min-replicas-to-write", "1")
    return lambda: _configure(it, "min-replicas-to-write", "0")


def _full(it: Rig) -> Callable[[], None]:
    _configure(it, "maxmemory", "1mb")
    return lambda: _configure(it, "maxmemory", "0")


def _slow_link(it: Rig) -> Callable[[], None]:
    assert it.link is not None
    link = it.link
    link.delay_seconds = _LINK_SECONDS

    def mend() -> None:
        link.delay_seconds = 0.0

    return mend


@contextmanager
def _client(it: Rig, password: str | None = None) -> Iterator["Redis"]:
    redis = it.redis() if password is None else Redis(port=it.redis_port, password=password)
    try:
        yield redis
    finally:
        redis.close()


def _configure(it: Rig, name: str, value: str, password: str | None = None) -> None:
    with _client(it, password) as redis:
        redis.config_set(name, value)


def _ignore(_value: object) -> None:
    return None


def _outage(scene: Scene, break_: Break, noticed: str) -> None:
    """Break Redis for a phase, mend it, and wait until both gateways say that they have it again."""
    said = [scene.rig.log(f"gateway{n}").count(noticed) for n in range(2)]
    mend = break_(scene.rig)
    try:
        time.sleep(scene.scale.fault_seconds)
        if noticed:
            wait_until(lambda: all(_says(scene, n, noticed, said[n]) for n in range(2)), "outage noticed")
    finally:
        mend()


def _says(scene: Scene, number: int, text: str, before: int) -> bool:
    return scene.rig.log(f"gateway{number}").count(text) > before


def _play(
    scale: Scale, break_: Break, *, options: tuple[str, ...] = (), link: bool = False, noticed: str = ""
) -> Figures:
    with rig(redis=options, link=link) as it:
        for number in range(2):
            wait_until(partial(_connected, it, number), "mirror connected")
        return play(it, scale, partial(_outage, break_=break_, noticed=noticed), after=_tell_lines)


def _connected(it: Rig, number: int) -> bool:
    return "mirror: connected" in it.log(f"gateway{number}")


def _tell_lines(scene: Scene) -> None:
    """Note how often each gateway has said that it lost the mirror, and for what."""
    lines = [
        [line for line in scene.rig.log(f"gateway{n}").splitlines() if "mirror: lost" in line]
        for n in range(2)
    ]
    scene.notes.append("lines " + "+".join(str(len(found)) for found in lines))
    first = next((line for found in lines for line in found), "")
    if first:
        scene.notes.append(first.partition("lost, ")[2].partition(";")[0][:60])


_LOST: Final = "mirror: lost"
_APPENDED: Final = ("--appendonly", "yes")
_PASSWORD: Final = ("--requirepass", PASSWORD)

DRILLS: Final = (
    Drill(name="redis-frozen", play=partial(_play, break_=_frozen, noticed=_LOST)),
    Drill(name="redis-killed", play=partial(_play, break_=_killed, options=_APPENDED, noticed=_LOST)),
    Drill(name="redis-restarted-empty", play=partial(_play, break_=_restarted_empty, noticed=_LOST)),
    Drill(
        name="redis-wrong-password",
        play=partial(_play, break_=_wrong_password, options=_PASSWORD, noticed=_LOST),
    ),
    Drill(name="redis-read-only", play=partial(_play, break_=_read_only, noticed=_LOST)),
    Drill(name="redis-too-few-replicas", play=partial(_play, break_=_too_few_replicas, noticed=_LOST)),
    Drill(name="redis-full", play=partial(_play, break_=_full, noticed=_LOST)),
    Drill(name="redis-slow-link", play=partial(_play, break_=_slow_link, link=True)),
)
