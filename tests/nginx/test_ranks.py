"""Data-parallel ranks behind one address: nginx pins each request to the rank that the id stands for."""

import pytest

from prefix_middleware.core.workers import Worker
from prefix_middleware.nginx.addresses import servers
from prefix_middleware.nginx.render import NginxOptions, render
from prefix_middleware.settings import Settings, SettingsError
from tests.nginx.running import Fleet

RANK = "x-data-parallel-rank"


class RankedFleet(Fleet):
    """Two of the workers, each with two ranks."""

    def settings(self) -> Settings:
        pairs = [(worker, rank) for worker in self.workers[:2] for rank in (0, 1)]
        workers = tuple(Worker(f"{worker.name}-{rank}", worker.url, rank) for worker, rank in pairs)
        return Settings(workers=workers, upstream_url=self.url)


@pytest.mark.anyio
async def test_each_id_leads_to_its_worker_and_rank(fleet: Fleet) -> None:
    """From a closed list: what the client says of ranks never passes, and no id means no rank."""
    ranked = RankedFleet(fleet.program)
    seen = []
    async with ranked.up("a") as client:
        for worker_id in ("w1-0", "w1-1", "w2-0", "w2-1", "", "w9"):
            headers = {"X-Prefix-Worker": worker_id, RANK: "7"}
            answer = await client.post("/v1/chat/completions", json={}, headers=headers)
            [worker] = [w for w in ranked.workers if w.name == answer.text]
            seen.append(
                (answer.text, worker.seen[-1].headers.get(RANK), answer.headers.get("x-prefix-served"))
            )
    assert seen[:4] == [("w1", "0", None), ("w1", "1", None), ("w2", "0", None), ("w2", "1", None)]
    assert [rank for _, rank, _ in seen[4:]] == [None, None]


def test_the_replay_goes_to_another_address() -> None:
    """Another rank of the server that has just failed is no help."""
    workers = tuple(Worker(f"w{s}-{r}", f"http://10.0.0.{s}:8000", r) for s in (1, 2, 3) for r in (0, 1))
    text = render(Settings(workers=workers), NginxOptions())["prefix_workers.conf"]
    group = text.split("upstream prefix_worker_w2-1 {")[1].split("}")[0]
    listed = [line.split()[1] for line in group.splitlines() if line.strip().startswith("server ")]
    assert listed == ["10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.1:8000"]


@pytest.mark.parametrize("ranks", [(0, 0), (None, None), (None, 0)])
def test_one_target_is_one_worker(ranks: tuple[int | None, int | None]) -> None:
    """Two ids for the same rank, or for a server and a rank of it, would be two opinions on one cache."""
    workers = [Worker(f"w{number}", "http://10.0.0.1:8000", rank) for number, rank in enumerate(ranks)]
    with pytest.raises(SettingsError, match="a different host and port for each worker"):
        servers(workers, {})


def test_a_fleet_without_ranks_sends_none() -> None:
    """The header is taken off, as it is where nobody named a rank."""
    text = render(Settings(workers=(Worker("w1", "http://10.0.0.1:8000"),)), NginxOptions())
    assert 'proxy_set_header X-data-parallel-rank "";' in text["prefix_proxy.conf"]
    assert "$prefix_rank" not in "".join(text.values())
