"""The Kubernetes port over kubernetes_asyncio.

    async with connect(url) as kube:
        await kube.evict(pod.ref)

Taints are changed by JSON patch with a test of the resourceVersion, so that two writers never overwrite each
other's taints, and only under the given key. An eviction's answer is classified, never guessed: 429 with the
cause ``DisruptionBudget`` is the pod's disruption budget, 429 without one is the server throttling this
client.
"""

from __future__ import annotations

import hashlib
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from shared.clock import Clock, SystemClock
from shared.errors import Permanent
from shared.kube.decode import hpa_from, media_resource_from, node_from, pod_from, policy_from, workload_from
from shared.kube.models import EvictionAnswer
from shared.kube.port import StaleWrite
from shared.kube.requests import (
    POLICY_PLURALS,
    VERSION,
    WORKLOAD_KINDS,
    classify_eviction,
    custom_path,
    definitions_path,
    hpas_path,
    lost_race,
    node_path,
    pods_path,
    reference,
    same_taint,
    selection,
    workload_path,
)
from shared.kube.transport import Transport, raise_for
from shared.kube.watching import Watching

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence

    from shared.kube.models import (
        Change,
        Hpa,
        Keep,
        MediaResource,
        Node,
        ObjectRef,
        Pod,
        PodRef,
        PolicyKind,
        PolicyResource,
        Taint,
        Workload,
    )

T = TypeVar("T")

_MERGE: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_PAGE: Final = 500
_WRITE_ATTEMPTS: Final = 5
"""Reads and writes again after losing to another writer; kubelets write their node every few seconds."""
_NOTE_LIMIT: Final = 1024
"""Bytes that the API server allows in ``note`` (the documentation says characters)."""
_FIELD_LIMIT: Final = 128
"""Characters that events.k8s.io/v1 allows in ``reason``, ``action`` and ``reportingInstance``."""


@asynccontextmanager
async def connect(
    url: str | None = None,
    *,
    timeout_s: float = 5.0,
    component: str = "mediafleet",
    instance: str = "",
    domain: str = "media.example.com",
    clock: Clock | None = None,
    random: Random | None = None,
) -> AsyncIterator[KubeClient]:
    """Open the Kubernetes API: at a plain ``url``, or in-cluster, or by kubeconfig.

    Args:
        url: plain HTTP address of an API server; None or empty takes the cluster's or the kubeconfig's.
        timeout_s: deadline of every call.
        component: name of the service, ``reportingController`` of Events.
        instance: which copy of it reports Events; the component's name when empty. Both are the User-Agent,
            so that the API server's audit tells copies apart.
        domain: of our custom resources.
        clock: for the times in Events.
        random: for the jitter of watches.

    Raises:
        Refused: no configuration was found.
    """
    agent = f"{component}/{instance}" if instance else component
    transport = await Transport.open(url, timeout_s=timeout_s, user_agent=agent)
    try:
        yield KubeClient(
            transport,
            component=component,
            instance=instance or component,
            domain=domain,
            clock=clock or SystemClock(),
            random=random or Random(),  # noqa: S311 - jitter, no secret
        )
    finally:
        await transport.close()


class KubeClient:
    """Implements `shared.kube.port.Kube`; made by `connect`."""

    def __init__(
        self,
        transport: Transport,
        *,
        component: str,
        instance: str,
        clock: Clock,
        random: Random,
        domain: str = "media.example.com",
    ) -> None:
        self._transport = transport
        self._domain = domain
        self._media = custom_path(domain, "mediaresources")
        self._component = component
        self._instance = instance
        self._clock = clock
        self._random = random

    # --- pods -----------------------------------------------------------------------------------------------

    async def pods(
        self, *, node: str | None = None, namespace: str | None = None, labels: str | None = None
    ) -> list[Pod]:
        """Pods, by node, namespace and label selector."""
        return await self._list(pods_path(namespace), pod_from, selection(node=node, labels=labels))

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """One pod by name."""
        return await self._read(f"{pods_path(namespace)}/{name}", pod_from)

    async def evict(
        self, pod: PodRef, *, grace_s: int | None = None, dry_run: bool = False
    ) -> EvictionAnswer:
        """Ask for the eviction of this very pod; the server's refusals are answers.

        Raises:
            Temporary: no answer came.
        """
        options: dict[str, Any] = {"preconditions": {"uid": pod.uid}}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if dry_run:
            options["dryRun"] = ["All"]
        answer = await self._transport.request(
            "POST",
            f"{pods_path(pod.namespace)}/{pod.name}/eviction",
            body={
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                "deleteOptions": options,
            },
        )
        return classify_eviction(answer)

    def watch_pods(
        self,
        *,
        node: str | None = None,
        namespace: str | None = None,
        labels: str | None = None,
        keep: Keep | None = None,
    ) -> AsyncGenerator[Change[Pod], None]:
        """Every pod, SYNCED, then every change."""
        decode = pod_from if keep is None else partial(pod_from, keep=keep)
        return self._watch(pods_path(namespace), decode, selection(node=node, labels=labels))

    # --- nodes ----------------------------------------------------------------------------------------------

    async def nodes(self, *, labels: str | None = None) -> list[Node]:
        """Nodes, by label selector."""
        return await self._list("/api/v1/nodes", node_from, selection(labels=labels))

    async def node(self, name: str) -> Node | None:
        """One node by name."""
        return await self._read(node_path(name), node_from)

    async def set_taint(self, node: str, taint: Taint) -> bool:
        """Put this taint on the node, replacing its own key and effect only."""
        wanted = {"key": taint.key, "effect": taint.effect} | ({"value": taint.value} if taint.value else {})

        def change(taints: list[dict[str, Any]]) -> list[dict[str, Any]]:
            same = [entry for entry in taints if same_taint(entry, taint)]
            if len(same) == 1 and (same[0].get("value") or "") == taint.value:
                return taints
            return [entry for entry in taints if not same_taint(entry, taint)] + [wanted]

        return await self._change_taints(node, change)

    async def remove_taint(self, node: str, key: str) -> bool:
        """Take every taint of this key, and no other, off the node."""
        return await self._change_taints(
            node, lambda taints: [entry for entry in taints if entry.get("key") != key]
        )

    async def patch_node_labels(
        self,
        node: str,
        labels: Mapping[str, str | None],
        annotations: Mapping[str, str | None] | None = None,
    ) -> None:
        """Set labels and annotations of a node; None removes one."""
        metadata = {"labels": dict(labels)} | ({"annotations": dict(annotations)} if annotations else {})
        await self._write("PATCH", node_path(node), {"metadata": metadata}, _MERGE)

    async def patch_node_capacity(self, node: str, resources: Mapping[str, str | None]) -> None:
        """Write extended resources into ``status.capacity``; None removes one."""
        await self._write(
            "PATCH", f"{node_path(node)}/status", {"status": {"capacity": dict(resources)}}, _MERGE
        )

    def watch_nodes(
        self, *, labels: str | None = None, keep: Keep | None = None
    ) -> AsyncGenerator[Change[Node], None]:
        """Every node, SYNCED, then every change."""
        decode = node_from if keep is None else partial(node_from, keep=keep)
        return self._watch("/api/v1/nodes", decode, selection(labels=labels))

    # --- workloads ------------------------------------------------------------------------------------------

    async def owner_workload(self, pod: Pod) -> Workload | None:
        """What made this pod, through its ReplicaSet where there is one."""
        if pod.owner is None or pod.owner.kind not in WORKLOAD_KINDS:
            return None
        body = await self._body(workload_path(pod.namespace, pod.owner.kind, pod.owner.name))
        if body is None or body["metadata"].get("uid") != pod.owner.uid:
            return None
        for above in body["metadata"].get("ownerReferences") or ():
            if above.get("controller") and above.get("kind") in WORKLOAD_KINDS:
                return await self.workload(pod.namespace, above["kind"], above["name"])
        return workload_from(body, pod.owner.kind)

    async def workload(self, namespace: str, kind: str, name: str) -> Workload | None:
        """One workload by kind and name."""
        body = await self._body(workload_path(namespace, kind, name))
        return None if body is None else workload_from(body, kind)

    async def scale(
        self,
        namespace: str,
        kind: str,
        name: str,
        replicas: int,
        *,
        expected_resource_version: str | None = None,
    ) -> Workload:
        """Ask for this many replicas by the scale subresource."""
        metadata = {"resourceVersion": expected_resource_version} if expected_resource_version else {}
        path = workload_path(namespace, kind, name)
        await self._write(
            "PATCH", f"{path}/scale", {"metadata": metadata, "spec": {"replicas": replicas}}, _MERGE
        )
        scaled = await self.workload(namespace, kind, name)
        if scaled is None:
            raise Permanent(f"{kind} {namespace}/{name} is gone since it was scaled", field="name")
        return scaled

    async def hpas(self, namespace: str | None = None) -> list[Hpa]:
        """HorizontalPodAutoscalers of a namespace, or all."""
        return await self._list(hpas_path(namespace), hpa_from, {})

    async def patch_hpa_min(
        self,
        namespace: str,
        name: str,
        min_replicas: int,
        annotations: Mapping[str, str | None],
        *,
        expected_resource_version: str | None = None,
    ) -> Hpa:
        """Set ``minReplicas`` and annotations of an HPA in one write."""
        metadata: dict[str, Any] = {"annotations": dict(annotations)}
        if expected_resource_version:
            metadata["resourceVersion"] = expected_resource_version
        patch = {"metadata": metadata, "spec": {"minReplicas": min_replicas}}
        return hpa_from(await self._write("PATCH", f"{hpas_path(namespace)}/{name}", patch, _MERGE))

    # --- MediaResources -------------------------------------------------------------------------------------

    async def media_resources(self) -> list[MediaResource]:
        """All MediaResources."""
        return await self._list(self._media, media_resource_from, {})

    async def apply_media_resource(
        self, name: str, spec: Mapping[str, Any], *, labels: Mapping[str, str] | None = None
    ) -> MediaResource:
        """Create the MediaResource, or replace its spec (and set these labels)."""
        for _ in range(_WRITE_ATTEMPTS):
            body = await self._body(f"{self._media}/{name}")
            if body is None:
                metadata = {"name": name, "labels": dict(labels or {})}
                created = {
                    "apiVersion": f"{self._domain}/{VERSION}",
                    "kind": "MediaResource",
                    "metadata": metadata,
                    "spec": dict(spec),
                }
                answer = await self._transport.request("POST", self._media, body=created)
            else:
                merged = {**(body["metadata"].get("labels") or {}), **(labels or {})}
                if body.get("spec") == spec and merged == (body["metadata"].get("labels") or {}):
                    return media_resource_from(body)
                replaced = {**body, "metadata": {**body["metadata"], "labels": merged}, "spec": dict(spec)}
                answer = await self._transport.request("PUT", f"{self._media}/{name}", body=replaced)
            if answer.status not in (404, 409):
                raise_for(answer, f"apply MediaResource {name}")
                return media_resource_from(answer.body)
        raise StaleWrite(f"MediaResource {name}: other writers were always first", delay_s=0.5)

    async def patch_media_resource_status(self, name: str, status: Mapping[str, Any]) -> MediaResource | None:
        """Merge these fields into its status; None when it does not exist."""
        path = f"{self._media}/{name}/status"
        answer = await self._transport.request(
            "PATCH", path, body={"status": dict(status)}, content_type=_MERGE
        )
        if answer.status == 404:  # noqa: PLR2004 - Not Found
            return None
        raise_for(answer, f"status of MediaResource {name}")
        return media_resource_from(answer.body)

    async def delete_media_resource(self, name: str) -> bool:
        """Delete it; False when it was not there."""
        return await self._delete(f"{self._media}/{name}", f"MediaResource {name}")

    def watch_media_resources(self) -> AsyncGenerator[Change[MediaResource], None]:
        """Every MediaResource, SYNCED, then every change."""
        return self._watch(self._media, media_resource_from, {})

    # --- policies -------------------------------------------------------------------------------------------

    async def policies(self, kind: PolicyKind) -> list[PolicyResource]:
        """All policies of a kind; none where the server does not know the kind."""
        answer = await self._transport.request("GET", self._policies_path(kind))
        if answer.status == 404:  # noqa: PLR2004 - Not Found
            return []
        raise_for(answer, f"list {kind}")
        return [policy_from(body, kind) for body in answer.body.get("items") or ()]

    async def patch_policy_status(
        self, kind: PolicyKind, name: str, status: Mapping[str, Any]
    ) -> PolicyResource | None:
        """Put this status in the place of its status (no merge: what is left out is gone)."""
        path = f"{self._policies_path(kind)}/{name}/status"
        patch = [{"op": "add", "path": "/status", "value": dict(status)}]
        answer = await self._transport.request("PATCH", path, body=patch, content_type=_JSON_PATCH)
        if answer.status == 404:  # noqa: PLR2004 - Not Found
            return None
        raise_for(answer, f"status of {kind} {name}")
        return policy_from(answer.body, kind)

    async def delete_policy(self, kind: PolicyKind, name: str) -> bool:
        """Delete it; False when it was not there."""
        return await self._delete(f"{self._policies_path(kind)}/{name}", f"{kind} {name}")

    def watch_policies(self, kind: PolicyKind) -> AsyncGenerator[Change[PolicyResource], None]:
        """Every policy of a kind, SYNCED, then every change."""
        return self._watch(self._policies_path(kind), partial(policy_from, kind=kind), {})

    def _policies_path(self, kind: PolicyKind) -> str:
        return custom_path(self._domain, POLICY_PLURALS[kind])

    async def definitions(self) -> list[str]:
        """Plurals of the custom resources of our domain that the server knows."""
        answer = await self._transport.request("GET", definitions_path())
        if answer.status == 404:  # noqa: PLR2004 - Not Found: a server without custom resources
            return []
        raise_for(answer, "list definitions")
        specs = [body.get("spec") or {} for body in answer.body.get("items") or ()]
        return sorted(spec["names"]["plural"] for spec in specs if spec.get("group") == self._domain)

    async def delete_definition(self, plural: str) -> bool:
        """Delete a custom resource's definition, and with it every object of it."""
        name = f"{plural}.{self._domain}"
        return await self._delete(f"{definitions_path()}/{name}", f"definition {name}")

    # --- Events and discovery -------------------------------------------------------------------------------

    async def record_event(  # noqa: PLR0917 - an Event is these five things, in the order they are told
        self,
        regarding: ObjectRef,
        reason: str,
        note: str,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's own name
        action: str,
        related: ObjectRef | None = None,
    ) -> None:
        """Record an Event; the same one again raises its series count.

        Its name is made from what it says, so that a retry of one that timed out never makes two.
        """
        namespace = regarding.namespace or "default"
        at = self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        said = "\x00".join(
            (regarding.kind, regarding.uid, reason, action, type, note, related.uid if related else "")
        )
        name = f"{regarding.name}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"
        body: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": at,
            "reportingController": f"{self._domain}/{self._component}",
            "reportingInstance": self._instance[:_FIELD_LIMIT],
            "action": action[:_FIELD_LIMIT],
            "reason": reason[:_FIELD_LIMIT],
            "type": type,
            "note": _fitting(note),
            "regarding": reference(regarding),
        }
        if related is not None:
            body["related"] = reference(related)
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        answer = await self._transport.request("POST", path, body=body)
        if answer.status != 409:  # noqa: PLR2004 - it is there already
            raise_for(answer, f"Event {reason} on {regarding.kind} {regarding.name}")
            return
        known = await self._body(f"{path}/{name}")
        count = int(((known or {}).get("series") or {}).get("count") or 1) + 1
        series = {"series": {"count": count, "lastObservedTime": at}}
        await self._write("PATCH", f"{path}/{name}", series, _MERGE)

    async def api_versions(self) -> Sequence[str]:
        """The server's group versions, as ``policy/v1``."""
        answer = await self._transport.request("GET", "/apis")
        raise_for(answer, "API groups")
        return sorted(
            version["groupVersion"]
            for group in answer.body.get("groups") or ()
            for version in group.get("versions") or ()
        )

    # --- shared steps ---------------------------------------------------------------------------------------

    async def _body(self, path: str) -> dict[str, Any] | None:
        answer = await self._transport.request("GET", path)
        if answer.status == 404:  # noqa: PLR2004 - Not Found
            return None
        raise_for(answer, f"read {path}")
        return answer.body

    async def _read(self, path: str, decode: Callable[[Mapping[str, Any]], T]) -> T | None:
        body = await self._body(path)
        return None if body is None else decode(body)

    async def _list(
        self, path: str, decode: Callable[[Mapping[str, Any]], T], query: dict[str, str]
    ) -> list[T]:
        items: list[T] = []
        page = {**query, "limit": str(_PAGE)}
        while True:
            answer = await self._transport.request("GET", path, query=page)
            raise_for(answer, f"list {path}")
            items.extend(decode(body) for body in answer.body.get("items") or ())
            token = (answer.body.get("metadata") or {}).get("continue")
            if not token:
                return items
            page = {**page, "continue": token}

    async def _write(self, method: str, path: str, body: Any, content_type: str) -> dict[str, Any]:
        answer = await self._transport.request(method, path, body=body, content_type=content_type)
        raise_for(answer, f"{method} {path}")
        return answer.body

    async def _delete(self, path: str, what: str) -> bool:
        answer = await self._transport.request("DELETE", path)
        if answer.status == 404:  # noqa: PLR2004 - Not Found
            return False
        raise_for(answer, f"delete {what}")
        return True

    async def _change_taints(
        self, node: str, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
    ) -> bool:
        """Read, change, write if nobody wrote in between; again if somebody did."""
        path = node_path(node)
        for _ in range(_WRITE_ATTEMPTS):
            body = await self._body(path)
            if body is None:
                raise Permanent(f"node {node} does not exist", field="node")
            spec = body.get("spec") or {}
            before = list(spec.get("taints") or ())
            after = change(before)
            if after == before:
                return False
            patch = [
                {
                    "op": "test",
                    "path": "/metadata/resourceVersion",
                    "value": body["metadata"]["resourceVersion"],
                },
                *([] if "spec" in body else [{"op": "add", "path": "/spec", "value": {}}]),
                {"op": "add", "path": "/spec/taints", "value": after},
            ]
            answer = await self._transport.request("PATCH", path, body=patch, content_type=_JSON_PATCH)
            if not lost_race(answer):
                raise_for(answer, f"taints of node {node}")
                return True
        raise StaleWrite(f"taints of node {node}: other writers were always first", delay_s=0.5)

    def _watch(
        self, path: str, decode: Callable[[Mapping[str, Any]], T], query: dict[str, str]
    ) -> AsyncGenerator[Change[T], None]:
        return Watching(self._transport, path, query, decode, self._random).changes()


def _fitting(note: str) -> str:
    """The note, cut at a whole character and marked where it is too long."""
    said = note.encode()
    if len(said) <= _NOTE_LIMIT:
        return note
    mark = "…"
    return said[: _NOTE_LIMIT - len(mark.encode())].decode(errors="ignore") + mark
