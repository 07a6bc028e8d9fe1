"""`mediafleet demo --attach` says what is wrong with what it is attached to; the story needs services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from services.console.demo import attach
from services.console.demo.cluster import SimulatedCluster
from services.console.demo.story import NAMESPACES
from services.simulator.cluster import Cluster
from services.simulator.settings import SimulatorSettings
from shared.errors import BadInput


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    settings = SimulatorSettings(nodes=1, kubelets="off", samples=False, root=tmp_path)
    async with Cluster(settings) as found:
        yield found


async def attached(url: str) -> int:
    return await attach(url, nats_url="nats://127.0.0.1:1", seed=1, machine=True)


async def test_a_cluster_that_does_not_answer_is_named(unused_tcp_port: int) -> None:
    with pytest.raises(BadInput, match=f"127.0.0.1:{unused_tcp_port}"):
        await attached(f"http://127.0.0.1:{unused_tcp_port}")


async def test_the_story_is_not_played_twice_on_one_cluster(cluster: Cluster) -> None:
    async with aiohttp.ClientSession() as session:
        await SimulatedCluster(cluster.url, session).namespace(NAMESPACES[0])
    with pytest.raises(BadInput, match="played on this cluster before"):
        await attached(cluster.url + "/")
