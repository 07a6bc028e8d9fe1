"""What mediafleet asks of the Kubernetes API, as a Protocol.

Every call has a deadline. Reads of what is not there give None. `Temporary` means try again later (the server
is away, throttles, or somebody else wrote first: `StaleWrite`); `Permanent` means that the request is wrong
or not allowed, and names the field or the missing right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from shared.errors import Temporary

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from shared.kube.models import (
        Change,
        EvictionAnswer,
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


class StaleWrite(Temporary):
    """The object changed since it was read: read it and decide again."""


class Kube(Protocol):
    """The Kubernetes API."""

    async def pods(
        self, *, node: str | None = None, namespace: str | None = None, labels: str | None = None
    ) -> list[Pod]:
        """Pods, by node, namespace and label selector; None means all."""
        ...

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """One pod by name."""
        ...

    async def evict(
        self, pod: PodRef, *, grace_s: int | None = None, dry_run: bool = False
    ) -> EvictionAnswer:
        """Ask for the eviction of this very pod (policy/v1, UID precondition).

        The server's refusals are answers, not errors. Raises Temporary only when no answer came: the pod may
        or may not be terminating, look before asking again.
        """
        ...

    async def nodes(self, *, labels: str | None = None) -> list[Node]:
        """Nodes, by label selector."""
        ...

    async def node(self, name: str) -> Node | None:
        """One node by name."""
        ...

    async def set_taint(self, node: str, taint: Taint) -> bool:
        """Put this taint on the node, replacing its own key and effect only; False when it was there."""
        ...

    async def remove_taint(self, node: str, key: str) -> bool:
        """Take every taint of this key, and no other, off the node; False when there was none."""
        ...

    async def patch_node_labels(
        self,
        node: str,
        labels: Mapping[str, str | None],
        annotations: Mapping[str, str | None] | None = None,
    ) -> None:
        """Set labels and annotations of a node; None removes one."""
        ...

    async def patch_node_capacity(self, node: str, resources: Mapping[str, str | None]) -> None:
        """Write extended resources into the node's ``status.capacity``; None removes one.

        The kubelet copies them to allocatable.
        """
        ...

    async def owner_workload(self, pod: Pod) -> Workload | None:
        """What made this pod: its Deployment (through the ReplicaSet), Job, ...; None for a bare pod."""
        ...

    async def workload(self, namespace: str, kind: str, name: str) -> Workload | None:
        """One workload by kind and name."""
        ...

    async def scale(
        self,
        namespace: str,
        kind: str,
        name: str,
        replicas: int,
        *,
        expected_resource_version: str | None = None,
    ) -> Workload:
        """Ask for this many replicas by the scale subresource.

        Raises:
            StaleWrite: the object is no longer at ``expected_resource_version``.
        """
        ...

    async def hpas(self, namespace: str | None = None) -> list[Hpa]:
        """HorizontalPodAutoscalers of a namespace, or all."""
        ...

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
        ...

    async def media_resources(self) -> list[MediaResource]:
        """All MediaResources."""
        ...

    async def apply_media_resource(
        self, name: str, spec: Mapping[str, Any], *, labels: Mapping[str, str] | None = None
    ) -> MediaResource:
        """Create the MediaResource, or replace its spec."""
        ...

    async def patch_media_resource_status(self, name: str, status: Mapping[str, Any]) -> MediaResource | None:
        """Merge these fields into its status; None when it does not exist."""
        ...

    async def delete_media_resource(self, name: str) -> bool:
        """Delete it; False when it was not there."""
        ...

    async def policies(self, kind: PolicyKind) -> list[PolicyResource]:
        """All policies of a kind; none where the server does not know the kind."""
        ...

    async def patch_policy_status(
        self, kind: PolicyKind, name: str, status: Mapping[str, Any]
    ) -> PolicyResource | None:
        """Put this status in the place of its status; None when it does not exist."""
        ...

    async def delete_policy(self, kind: PolicyKind, name: str) -> bool:
        """Delete it; False when it was not there."""
        ...

    async def definitions(self) -> list[str]:
        """Plurals of the custom resources of our domain that the server knows."""
        ...

    async def delete_definition(self, plural: str) -> bool:
        """Delete a custom resource's definition, and with it every object of it; False when there is none."""
        ...

    async def record_event(  # noqa: PLR0917 - an Event is these five things, in the order they are told
        self,
        regarding: ObjectRef,
        reason: str,
        note: str,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's own name
        action: str,
        related: ObjectRef | None = None,
    ) -> None:
        """Record an Event on an object (events.k8s.io/v1); the same one again raises its count."""
        ...

    def watch_pods(
        self,
        *,
        node: str | None = None,
        namespace: str | None = None,
        labels: str | None = None,
        keep: Keep | None = None,
    ) -> AsyncGenerator[Change[Pod], None]:
        """Every pod that is there, SYNCED, then every change, for ever; None keeps all that `Pod` has.

        Survives a restart of the server and an expired resourceVersion: it lists again and tells what changed
        meanwhile, deletions included. Close it (``contextlib.aclosing``) to end the watch at once.
        """
        ...

    def watch_nodes(
        self, *, labels: str | None = None, keep: Keep | None = None
    ) -> AsyncGenerator[Change[Node], None]:
        """The same for nodes."""
        ...

    def watch_media_resources(self) -> AsyncGenerator[Change[MediaResource], None]:
        """The same for MediaResources."""
        ...

    def watch_policies(self, kind: PolicyKind) -> AsyncGenerator[Change[PolicyResource], None]:
        """The same for the policies of a kind.

        Raises:
            Permanent: the server does not know the kind, or we may not look.
        """
        ...

    async def api_versions(self) -> Sequence[str]:
        """The server's group versions, as ``resource.k8s.io/v1``: what this cluster can do."""
        ...
