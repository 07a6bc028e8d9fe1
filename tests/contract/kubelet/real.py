"""A real kubelet behind the face of the suite: pods made through the API server, facts read on the node."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import deviceplugin_v1beta1_pb2 as api
from protos import podresources_v1_pb2 as pods
from protos import podresources_v1_pb2_grpc as pods_grpc
from tests.contract.kubelet.kubelets import Limits
from tests.lab.certs import Authority
from tests.lab.image import BUSYBOX
from tests.lab.lab import Lab
from tests.lab.system import until

_PODS = "/api/v1/namespaces/live/pods"
_OK = 200


class Real:
    """The first node's kubelet of a lab. Between tests it goes on running, without their pods."""

    def __init__(self, root: Path, lab: Lab) -> None:
        self._lab = lab
        self._node = lab.nodes[0]
        kubelet = root / "var/lib/kubelet"
        kubelet.parent.mkdir(parents=True)
        kubelet.symlink_to(self._node.root)
        self.plugins = kubelet / "device-plugins"
        self._seen: dict[str, set[str]] = {}
        self._uids: dict[str, str] = {}

    async def start(self) -> None:
        """Start it unless it runs; there once it takes registrations."""
        if not self._node.kubelet.pid:
            await self._node.start_kubelet()
        await self._lab.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "live"}})
        await until(self._listens, timeout_s=20, otherwise="the kubelet takes no registrations")
        await until(self._account, timeout_s=20, otherwise="no service account for the pods")

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(self.plugins / "kubelet.sock")
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return bool(self._metrics())

    async def _account(self) -> bool:
        path = "/api/v1/namespaces/live/serviceaccounts/default"
        return (await self._lab.api.request("GET", path))[0] == _OK

    async def stop(self) -> None:
        """SIGKILL."""
        await self._node.kill_kubelet()

    async def clear(self) -> None:
        """Remove the test's pods."""
        await self.start()
        for name in list(self._uids):
            await self.end(name)

    def _metrics(self) -> str:
        authority = Authority(self._lab.layout)
        client = authority.of("apiserver-to-kubelet")
        trust = ssl.create_default_context(cafile=str(authority.ca.crt))
        trust.load_cert_chain(client.crt, client.key)
        try:
            with urllib.request.urlopen(
                f"https://{self._node.address}:10250/metrics", context=trust, timeout=5
            ) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def registrations(self) -> int:
        """As its metrics count them."""
        counted = re.findall(
            r"^kubelet_device_plugin_registration_total\{.*\} (\S+)", self._metrics(), re.MULTILINE
        )
        return round(sum(map(float, counted)))

    def devices(self, resource: str) -> dict[str, str]:
        """Healthy is what it would allocate; what was healthy before and is not now is unhealthy."""
        with grpc.insecure_channel(f"unix:{self._node.root}/pod-resources/kubelet.sock") as channel:
            stub = pods_grpc.PodResourcesListerStub(channel)
            answer = stub.GetAllocatableResources(pods.AllocatableResourcesRequest(), timeout=5)
        healthy = {
            id_ for each in answer.devices if each.resource_name == resource for id_ in each.device_ids
        }
        seen = self._seen.setdefault(resource, set())
        seen |= healthy
        return {id_: "Healthy" if id_ in healthy else "Unhealthy" for id_ in sorted(seen)}

    async def admit(self, name: str, limits: Limits) -> str:
        """Make a pod for this node and wait until it runs, or is refused."""
        containers: list[dict[str, Any]] = []
        init: list[dict[str, Any]] = []
        for container, resources in limits.items():
            first = container.startswith("init")
            quantities = {resource: str(count) for resource, count in resources.items()}
            body = {"name": container, "image": BUSYBOX, "resources": {"limits": quantities}}
            (init if first else containers).append(body | ({"command": ["true"]} if first else {}))
        spec = {
            "nodeName": self._node.name,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": containers,
            "initContainers": init,
        }
        status, made = await self._lab.api.request("POST", _PODS, {"metadata": {"name": name}, "spec": spec})
        assert status == 201, made
        self._uids[name] = made["metadata"]["uid"]
        found: dict[str, Any] = {}

        async def decided() -> bool:
            found.update((await self._lab.api.request("GET", f"{_PODS}/{name}"))[1]["status"])
            return found["phase"] in ("Running", "Failed")

        await until(decided, timeout_s=30, otherwise=f"pod {name} neither runs nor is refused")
        return "" if found["phase"] == "Running" else str(found.get("message") or found.get("reason"))

    async def end(self, name: str) -> None:
        """Delete it, and wait until the kubelet lists it no more."""
        await self._lab.api.request("DELETE", f"{_PODS}/{name}", {"gracePeriodSeconds": 0})

        async def gone() -> bool:
            async with grpc.aio.insecure_channel(
                f"unix:{self._node.root}/pod-resources/kubelet.sock"
            ) as channel:
                stub: pods_grpc.PodResourcesListerAsyncStub = pods_grpc.PodResourcesListerStub(channel)
                listed = await stub.List(pods.ListPodResourcesRequest(), timeout=5)
            return name not in [each.name for each in listed.pod_resources if each.namespace == "live"]

        await until(gone, timeout_s=20, otherwise=f"the kubelet does not let go of pod {name}")
        self._uids.pop(name, None)

    def uid(self, name: str) -> str:
        """The pod's uid."""
        return self._uids[name]

    def _entries(self, name: str) -> list[dict[str, Any]]:
        document = json.loads((self.plugins / "kubelet_internal_checkpoint").read_text())
        entries: list[dict[str, Any]] = document["Data"]["PodDeviceEntries"] or []
        return [each for each in entries if each["PodUID"] == self._uids[name]]

    def answer(self, name: str, container: str, resource: str) -> api.ContainerAllocateResponse:
        """As its checkpoint keeps it."""
        (found,) = (
            each["AllocResp"]
            for each in self._entries(name)
            if (each["ContainerName"], each["ResourceName"]) == (container, resource)
        )
        return api.ContainerAllocateResponse.FromString(base64.b64decode(found))

    def held(self, name: str) -> list[str]:
        """As its checkpoint keeps them."""
        numas = (each["DeviceIDs"].values() for each in self._entries(name))
        return sorted({id_ for ids in numas for each in ids for id_ in each})

    async def hang_up(self, resource: str) -> None:
        """Nothing makes it do that from outside."""
        pytest.skip(f"a real kubelet does not end the stream of {resource} by itself")

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait until a fact about it is true."""
        await until(fact, timeout_s=10, otherwise="the kubelet does not come to that")
