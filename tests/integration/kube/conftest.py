"""The simulated API server and our client on a real socket."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from services.simulator.api.resources import NODES, PODS
from services.simulator.api.server import ApiServer
from shared.kube.client import KubeClient, connect

Json = dict[str, Any]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    made = ApiServer(bookmark_s=0.05)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def kube(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with connect(server.url, timeout_s=0.5, component="remediation") as opened:
        yield opened


@pytest.fixture
def make_pod(server: ApiServer) -> Callable[..., Json]:
    def make(name: str, **meta: Any) -> Json:
        container = {"name": "main", "image": "registry.invalid/encoder:1"}
        body = {
            "metadata": {"name": name, **meta},
            "spec": {"nodeName": "worker-1", "containers": [container]},
        }
        return server.store.create(PODS, "default", body)

    return make


@pytest.fixture
async def node(server: ApiServer) -> str:
    server.store.create(NODES, "", {"metadata": {"name": "worker-1"}})
    return "worker-1"
