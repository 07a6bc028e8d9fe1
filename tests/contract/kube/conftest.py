"""The Kubernetes APIs that the suite runs on: the simulator's, and a real one where a lab is.

`MEDIAFLEET_TEST_KUBECONFIG` names the kubeconfig of another real API server instead of the lab's. The suite
plays kubelet and controllers by writing status itself, so no controller-manager may run there: the lab's is
stopped meanwhile.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_asyncio import client as kubernetes
from kubernetes_asyncio import config

from services.simulator.api.server import ApiServer
from shared.kube.client import KubeClient, connect
from tests.lab.lab import Lab

client: Any = kubernetes  # the library takes dicts as bodies, its stubs do not

KUBECONFIG = os.environ.get("MEDIAFLEET_TEST_KUBECONFIG", "")
CUSTOM = ("mediaresources", "remediationpolicies", "guardianpolicies")
DEFINITIONS = [Path(__file__).parents[3] / f"deploy/base/crd/{plural}.yaml" for plural in CUSTOM]


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kubeconfig of a real API server whose objects nobody else writes; skips where there is none."""
    if KUBECONFIG:
        asyncio.run(define(KUBECONFIG))
        yield KUBECONFIG
        return
    lab: Lab = request.getfixturevalue("lab")
    asyncio.run(lab.control_plane.controllers.stop())
    try:
        asyncio.run(define(str(lab.kubeconfig)))
        yield str(lab.kubeconfig)
    finally:
        asyncio.run(lab.control_plane.start_controllers())


async def define(kubeconfig: str) -> None:
    """Make our custom resources known there, unless they are."""
    configuration = client.Configuration()
    await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    async with client.ApiClient(configuration) as opened:
        extensions = client.ApiextensionsV1Api(opened)
        for path in DEFINITIONS:
            definition = yaml.safe_load(path.read_text())
            try:
                await extensions.create_custom_resource_definition(definition)
            except client.ApiException as error:
                if error.status != 409:
                    raise
            await established(extensions, definition["metadata"]["name"])
            await served(client.CustomObjectsApi(opened), definition["spec"])


async def established(extensions: Any, name: str) -> None:
    """Wait until the server serves what is defined."""
    async with asyncio.timeout(30):
        while True:
            found = await extensions.read_custom_resource_definition(name)
            conditions = {each.type: each.status for each in found.status.conditions or ()}
            if conditions.get("Established") == "True":
                return
            await asyncio.sleep(0.05)


async def served(custom: Any, spec: dict[str, Any]) -> None:
    """Wait until its storage is there: right after it is established, a list is answered 429."""
    async with asyncio.timeout(30):
        while True:
            try:
                await custom.list_cluster_custom_object(spec["group"], "v1alpha1", spec["names"]["plural"])
            except client.ApiException as error:
                if error.status not in (404, 429):
                    raise
                await asyncio.sleep(0.1)
            else:
                return


@pytest.fixture(params=["simulator", "real"])
def real(request: pytest.FixtureRequest) -> str:
    """The kubeconfig of the real API server; empty for the simulator's."""
    return request.getfixturevalue("kubeconfig") if request.param == "real" else ""


@pytest.fixture
async def url(real: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The address of the simulated API server; empty for a real one."""
    if real:
        monkeypatch.setenv("KUBECONFIG", real)
        yield ""
        return
    server = ApiServer(bookmark_s=0.2)
    yield await server.start()
    await server.stop()


@pytest.fixture
async def api(url: str, real: str) -> AsyncIterator[Any]:
    """kubernetes_asyncio, as anybody uses it."""
    configuration = client.Configuration()
    if url:
        configuration.host = url
    else:
        await config.load_kube_config(config_file=real, client_configuration=configuration)
    async with client.ApiClient(configuration) as opened:
        yield opened


@pytest.fixture
async def kube(url: str) -> AsyncIterator[KubeClient]:
    """Our port."""
    async with connect(url, component="contract-suite") as opened:
        yield opened


@pytest.fixture
async def namespace(api: Any, real: str) -> AsyncIterator[str]:
    """A namespace of the test's own."""
    core = client.CoreV1Api(api)
    name = f"suite-{uuid.uuid4().hex[:8]}"
    await core.create_namespace({"metadata": {"name": name}})
    if real:  # a controller would make it
        await core.create_namespaced_service_account(name, {"metadata": {"name": "default"}})
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
