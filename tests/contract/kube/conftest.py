"""The Kubernetes API that the suite runs on: the simulator's, or a real one.

`MEDIAFLEET_TEST_KUBECONFIG` names the kubeconfig of a real cluster (an API server with the MediaResource
definition is enough: the suite plays kubelet and controllers by writing status itself).
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from kubernetes_asyncio import client as kubernetes
from kubernetes_asyncio import config

from services.simulator.api.server import ApiServer
from shared.kube.client import KubeClient, connect

client: Any = kubernetes  # the library takes dicts as bodies, its stubs do not

KUBECONFIG = os.environ.get("MEDIAFLEET_TEST_KUBECONFIG", "")


@pytest.fixture
async def url(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The address of the simulated API server; empty for a real one."""
    if KUBECONFIG:
        monkeypatch.setenv("KUBECONFIG", KUBECONFIG)
        yield ""
        return
    server = ApiServer(bookmark_s=0.2)
    yield await server.start()
    await server.stop()


@pytest.fixture
async def api(url: str) -> AsyncIterator[Any]:
    """kubernetes_asyncio, as anybody uses it."""
    configuration = client.Configuration()
    if url:
        configuration.host = url
    else:
        await config.load_kube_config(config_file=KUBECONFIG, client_configuration=configuration)
    async with client.ApiClient(configuration) as opened:
        yield opened


@pytest.fixture
async def kube(url: str) -> AsyncIterator[KubeClient]:
    """Our port."""
    async with connect(url, component="contract-suite") as opened:
        yield opened


@pytest.fixture
async def namespace(api: Any) -> AsyncIterator[str]:
    """A namespace of the test's own."""
    core = client.CoreV1Api(api)
    name = f"suite-{uuid.uuid4().hex[:8]}"
    await core.create_namespace({"metadata": {"name": name}})
    yield name
    await core.delete_namespace(name)


@pytest.fixture
async def node(api: Any) -> AsyncIterator[str]:
    """A node of the test's own, with four encoder shares."""
    core = client.CoreV1Api(api)
    name = f"suite-{uuid.uuid4().hex[:8]}"
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "110", "media.example.com/nvenc": "4"}
    await core.create_node(
        {"metadata": {"name": name}, "status": {"capacity": capacity, "allocatable": capacity}}
    )
    yield name
    await core.delete_node(name)


PodMaker = Callable[..., Awaitable[Any]]


@pytest.fixture
async def make_pod(api: Any, namespace: str, node: str) -> AsyncIterator[PodMaker]:
    """Make a pod that runs on the node: its status is written as a kubelet would."""
    core = client.CoreV1Api(api)
    made: list[str] = []

    async def make(
        name: str, *, ready: bool = True, labels: dict[str, str] | None = None, **spec: Any
    ) -> Any:
        container = {"name": "main", "image": "registry.invalid/encoder:1"}
        body = {
            "metadata": {"name": name, "labels": labels or {"app": "encoder"}},
            "spec": {"nodeName": node, "containers": [container], **spec},
        }
        await core.create_namespaced_pod(namespace, body)
        made.append(name)
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        return await core.patch_namespaced_pod_status(name, namespace, {"status": status})

    yield make
    for name in made:
        try:
            await core.delete_namespaced_pod(name, namespace, grace_period_seconds=0)
        except client.ApiException as error:
            assert error.status == 404  # noqa: PT017 - cleaning up what the test removed itself


@pytest.fixture
def deadline() -> Callable[[], Any]:
    """A deadline for waiting for a fact."""
    return lambda: asyncio.timeout(10)
