"""The API server as the kubelets of the same process use it: straight into its store.

What they write is seen by every watch and list of the HTTP API; only the access log does not show it, and so
shows what the services under test asked, and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from services.simulator.api.resources import NODES, PODS
from services.simulator.api.status import ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from services.simulator.api.runner import PodDispatch
    from services.simulator.api.store import Change, Store
    from services.simulator.pods import PodJson

_NOT_FOUND = 404


class _Inbox:
    """The pods' changes of one node, until its kubelet looks at them."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[tuple[str, PodJson]] = asyncio.Queue()

    def observe(self, change: Change) -> None:
        """Keep a change; called inside the write."""
        self.changes.put_nowait((change.kind, change.body))


class StoreCluster:
    """A `ClusterPort` over the store; one for all kubelets of the process."""

    def __init__(self, store: Store, dispatch: PodDispatch) -> None:
        self._store = store
        self._dispatch = dispatch
        self._inboxes: dict[str, _Inbox] = {}

    async def register_node(self, node: dict[str, Any]) -> None:
        """Create the Node object, or keep the one that is there; from now on its pods are its kubelet's."""
        name = node["metadata"]["name"]
        inbox = self._inboxes[name] = _Inbox()
        self._dispatch.register(name, inbox)
        if self._store.find(NODES, "", name) is None:
            self._store.create(NODES, "", node)

    async def node(self, name: str) -> dict[str, Any] | None:
        """The Node object; None when somebody deleted it."""
        return self._store.find(NODES, "", name)

    async def write_node_status(self, name: str, status: dict[str, Any]) -> None:
        """Merge into the node's status."""
        self._write(NODES, "", name, lambda body: body.setdefault("status", {}).update(status))

    async def pods_on(self, node: str) -> AsyncIterator[tuple[str, PodJson]]:
        """Pods bound to the node: those there are as ADDED, then every change, for ever."""
        inbox = self._inboxes[node]
        try:
            for pod in tuple(self._store.each(PODS)):
                if pod["spec"].get("nodeName") == node:
                    yield "ADDED", pod
            while True:
                yield await inbox.changes.get()
        finally:
            self._dispatch.unregister(node)

    async def write_pod_status(self, pod: PodJson, status: dict[str, Any]) -> None:
        """Merge into the pod's status, if that very pod is still there."""
        meta = pod["metadata"]
        stored = self._store.find(PODS, meta["namespace"], meta["name"])
        if stored is not None and stored["metadata"]["uid"] == meta["uid"]:
            self._write(
                PODS,
                meta["namespace"],
                meta["name"],
                lambda body: body.setdefault("status", {}).update(status),
            )

    async def remove_pod(self, pod: PodJson) -> None:
        """Remove the pod for good, if that very pod is still there."""
        meta = pod["metadata"]
        self._store.finish(meta["namespace"], meta["name"], meta["uid"])

    def _write(self, resource: Any, namespace: str, name: str, change: Callable[[Any], None]) -> None:
        try:
            self._store.modify(resource, namespace, name, change, subresource="status")
        except ApiError as error:
            if error.code != _NOT_FOUND:
                raise
