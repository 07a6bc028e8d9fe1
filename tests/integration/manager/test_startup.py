"""The startup taint on a simulated API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from services.manager.startup import Startup
from services.simulator.api.resources import NODES
from services.simulator.api.server import ApiServer
from shared.clock import SystemClock
from shared.errors import Permanent, Temporary
from shared.kube.client import KubeClient, connect

TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/mediafleet-devices"
OTHER = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


@pytest.fixture
async def kube() -> AsyncIterator[KubeClient]:
    api = ApiServer(clock=SystemClock(), random=Random(1))  # noqa: S311 - uids of a simulation
    url = await api.start()
    taints = [{"key": TAINT, "effect": "NoSchedule"}, OTHER]
    for name, offered in (("early", {}), ("late", {}), ("foreign", {"nvidia.com/gpu": "8"})):
        node = {"metadata": {"name": name}, "spec": {"taints": taints}, "status": {"allocatable": offered}}
        api.store.create(NODES, "", node)
    async with connect(url) as kube:
        yield kube
    await api.stop()


@asynccontextmanager
async def running(startup: Startup) -> AsyncIterator[None]:
    task = asyncio.create_task(startup.run(), name="startup")
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def offer(kube: KubeClient, node: str, amount: str) -> None:
    allocatable = {"status": {"allocatable": {"media.example.com/nvenc": amount}}}
    answer = await kube._transport.request(
        "PATCH", f"/api/v1/nodes/{node}/status", body=allocatable, content_type="application/merge-patch+json"
    )
    assert answer.ok


async def keys(kube: KubeClient, node: str) -> set[str]:
    found = await kube.node(node)
    assert found is not None
    return {taint.key for taint in found.taints}


async def until_open(kube: KubeClient, node: str) -> None:
    async with asyncio.timeout(10):
        while TAINT in await keys(kube, node):  # noqa: ASYNC110 - it is on the other side of a socket
            await asyncio.sleep(0.01)


def startup(kube: KubeClient, taint: str = TAINT) -> Startup:
    return Startup(kube, taint=taint, domain="media.example.com")


async def test_a_node_opens_when_its_kubelet_offers_a_resource_of_ours_and_keeps_other_taints(
    kube: KubeClient,
) -> None:
    await offer(kube, "early", "2")
    async with running(startup(kube)):
        await until_open(kube, "early")
        assert await keys(kube, "early") == {OTHER["key"]}
        await offer(kube, "late", "1")
        await until_open(kube, "late")
        assert TAINT in await keys(kube, "foreign")


async def test_a_resource_without_devices_opens_nothing(kube: KubeClient) -> None:
    await offer(kube, "early", "0")
    await offer(kube, "late", "1")
    async with running(startup(kube)):
        await until_open(kube, "late")
        assert TAINT in await keys(kube, "early")


async def test_without_a_key_nothing_is_watched(kube: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(KubeClient, "watch_nodes")
    async with running(startup(kube, taint="")):
        await asyncio.sleep(0)


async def test_an_api_server_that_is_away_is_asked_again_and_a_refusal_is_left(
    kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Exception | None] = [Temporary("away", delay_s=0.001), Permanent("forbidden")]
    real = KubeClient.remove_taint

    async def remove_taint(self: KubeClient, node: str, key: str) -> bool:
        if node == "early" and answers and (error := answers.pop(0)) is not None:
            raise error
        return await real(self, node, key)

    monkeypatch.setattr(KubeClient, "remove_taint", remove_taint)
    await offer(kube, "early", "1")
    async with running(startup(kube)):
        async with asyncio.timeout(10):
            while answers:  # noqa: ASYNC110 - the watch decides when it asks
                await asyncio.sleep(0.001)
        await offer(kube, "late", "1")
        await until_open(kube, "late")
    assert TAINT in await keys(kube, "early")


async def test_nodes_that_may_not_be_watched_leave_the_manager_at_work(
    kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_: KubeClient, **__: object) -> AsyncIterator[None]:
        for reason in ("forbidden",):
            if reason:
                raise Permanent(reason)
            yield

    monkeypatch.setattr(KubeClient, "watch_nodes", refused)
    task = asyncio.create_task(startup(kube).run(), name="startup")
    done, _ = await asyncio.wait({task}, timeout=0.05)
    assert not done
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
