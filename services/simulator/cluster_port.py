"""What a kubelet needs of the API server; implemented in-process for the simulated cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.simulator.pods import PodJson


class ClusterPort(Protocol):
    """The API server as one kubelet uses it; every object is JSON as on the wire."""

    async def register_node(self, node: dict[str, Any]) -> None:
        """Create the Node object, or keep the one that is there."""
        ...

    async def node(self, name: str) -> dict[str, Any] | None:
        """The Node object; None when somebody deleted it."""
        ...

    async def write_node_status(self, name: str, status: dict[str, Any]) -> None:
        """Merge into the node's status; a node that is gone is no error."""
        ...

    def pods_on(self, node: str) -> AsyncIterator[tuple[str, PodJson]]:
        """Pods bound to the node: those there are as ADDED, then every change, for ever."""
        ...

    async def write_pod_status(self, pod: PodJson, status: dict[str, Any]) -> None:
        """Merge into the pod's status; a pod that is gone, or another of the same name, is no error."""
        ...

    async def remove_pod(self, pod: PodJson) -> None:
        """Remove the pod for good (grace 0, this UID only); one that is gone is no error."""
        ...
