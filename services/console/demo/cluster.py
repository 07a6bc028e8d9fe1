"""The simulated cluster as the demo's audience sees it: its HTTP API, its access log, its kubelets' state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import aiohttp

from shared.errors import FleetError

Json = dict[str, Any]

_POLL_S = 0.1


class NotSeen(FleetError):  # noqa: N818 - says what did not happen
    """Something did not happen in time."""


@dataclass(frozen=True, slots=True)
class PodOnNode:
    """A pod as its kubelet knows it.

    Attributes:
        ids: the device-plugin ids it holds, of all resources.
    """

    node: str
    namespace: str
    name: str
    uid: str
    phase: str
    ids: tuple[str, ...]

    @property
    def about(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class State:
    """Nodes and kubelets at one moment."""

    nodes: dict[str, Json]

    @classmethod
    def of(cls, snapshot: Json) -> Self:
        """Read the simulator's answer."""
        return cls({node["name"]: node for node in snapshot["nodes"]})

    def pods(self) -> Iterator[PodOnNode]:
        """Every pod that a kubelet knows."""
        for name, node in self.nodes.items():
            for pod in node["kubelet"]["pods"]:
                ids = tuple(id_ for held in pod["devices"].values() for id_ in held)
                yield PodOnNode(name, pod["namespace"], pod["name"], pod["uid"], pod["phase"], ids)

    def resource(self, node: str, resource: str) -> Json:
        """A resource of a node's kubelet: healthy and unhealthy ids; empty when it has none."""
        found: Json = self.nodes[node]["kubelet"]["resources"].get(resource, {"healthy": [], "unhealthy": []})
        return found

    def ids_of(self, node: str, device: str) -> tuple[set[str], set[str]]:
        """Healthy and unhealthy ids of a device, over all resources."""
        healthy: set[str] = set()
        unhealthy: set[str] = set()
        for each in self.nodes[node]["kubelet"]["resources"].values():
            healthy |= {id_ for id_ in each["healthy"] if id_.startswith(device)}
            unhealthy |= {id_ for id_ in each["unhealthy"] if id_.startswith(device)}
        return healthy, unhealthy

    def may_give(self, node: str, device: str) -> bool:
        """Whether a kubelet may give a device, or does already: what a held engine excludes is unhealthy."""
        healthy, unhealthy = self.ids_of(node, device)
        held = any(id_.startswith(device) for pod in self.pods() if pod.node == node for id_ in pod.ids)
        return bool(healthy) and (held or not unhealthy)


class SimulatedCluster:
    """A client of the simulator."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        """Args: url: where it serves. session: closed by its owner."""
        self.url = url
        self._session = session

    async def request(self, method: str, path: str, body: Json | None = None, *, merge: bool = False) -> Json:
        """One request; the answer's JSON.

        Raises:
            FleetError: it is refused.
        """
        headers = {"Content-Type": "application/merge-patch+json"} if merge else None
        async with self._session.request(method, self.url + path, json=body, headers=headers) as answer:
            if answer.status >= 400:  # noqa: PLR2004 - HTTP's border of refusals
                raise FleetError(f"{method} {path}: {answer.status} {(await answer.text())[:400]}")
            read: Json = await answer.json()
            return read

    async def state(self) -> State:
        """What nodes and kubelets know now."""
        return State.of(await self.request("GET", "/simulator/v1/state"))

    async def access_log(self, since: int = 0) -> list[Json]:
        """Requests at the API server after a number."""
        answer = await self.request("GET", f"/simulator/v1/access-log?since={since}")
        found: list[Json] = answer["entries"]
        return found

    async def log_position(self) -> int:
        """The number of the last request."""
        answer = await self.request("GET", "/simulator/v1/access-log")
        return int(answer["next"])

    async def namespace(self, name: str) -> None:
        """Create a namespace."""
        await self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    async def deploy(self, namespace: str, name: str, replicas: int, pod: Json, annotations: Json) -> None:
        """Create a Deployment."""
        labels = {"app": name, **pod.get("labels", {})}
        template = {
            "metadata": {"labels": labels, "annotations": pod.get("annotations", {})},
            "spec": {
                "terminationGracePeriodSeconds": 5,
                "containers": [
                    {
                        "name": "main",
                        "image": "example/media:1",
                        "resources": {"limits": pod["limits"], "requests": pod["limits"]},
                    }
                ],
            },
        }
        body = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations, "labels": labels},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
        }
        await self.request("POST", f"/apis/apps/v1/namespaces/{namespace}/deployments", body)

    async def cordon(self, *nodes: str) -> None:
        """Only these nodes take no new pods; the others do."""
        for node in (await self.state()).nodes:
            body = {"spec": {"unschedulable": node in nodes}}
            await self.request("PATCH", f"/api/v1/nodes/{node}", body, merge=True)

    async def until(self, what: str, seen: Callable[[State], bool], within_s: float) -> State:
        """Wait until the kubelets' state shows it.

        Raises:
            NotSeen: not within the time; says what was waited for.
        """
        try:
            async with asyncio.timeout(within_s):
                while True:
                    state = await self.state()
                    if seen(state):
                        return state
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise NotSeen(f"not seen within {within_s:g} s: {what}") from None
