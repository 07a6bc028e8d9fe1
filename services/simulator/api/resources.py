"""Which resources this API server has, and how each behaves.

Two API versions may show one stored kind (core and events.k8s.io Events, autoscaling v1 and v2); `serving`
maps a request's group, version and plural to the stored resource and the view it is shown in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Resource:
    """One stored kind."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    """Has a status subresource: status is dropped on create and ignored on update."""
    status_at_create: bool = False
    """Keeps the status it is created with (nodes: the kubelet registers with one)."""
    scale: bool = False
    generation: bool = False
    """``metadata.generation`` grows with every change of spec."""
    unconditional: bool = True
    """PUT without a resourceVersion is allowed."""
    returns_deleted: bool = False
    """DELETE answers with the object; otherwise with a Status."""
    strategic: bool = True
    """Strategic merge patch is supported; custom resources answer 415."""

    @property
    def api_version(self) -> str:
        """``apps/v1``, or ``v1`` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclass(frozen=True, slots=True)
class View:
    """How a request addresses a stored resource: the same, or another API version of it."""

    resource: Resource
    api_version: str


PODS: Final = Resource("", "v1", "pods", "Pod", status=True, generation=True, returns_deleted=True)
NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False, status=True, status_at_create=True)
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False, returns_deleted=True)
CONFIGMAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
SERVICES: Final = Resource("", "v1", "services", "Service", status=True, returns_deleted=True)
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount", returns_deleted=True)
EVENTS: Final = Resource("events.k8s.io", "v1", "events", "Event")
DEPLOYMENTS: Final = Resource(
    "apps", "v1", "deployments", "Deployment", status=True, scale=True, generation=True
)
REPLICASETS: Final = Resource(
    "apps", "v1", "replicasets", "ReplicaSet", status=True, scale=True, generation=True
)
JOBS: Final = Resource("batch", "v1", "jobs", "Job", status=True, generation=True)
DISRUPTION_BUDGETS: Final = Resource(
    "policy",
    "v1",
    "poddisruptionbudgets",
    "PodDisruptionBudget",
    status=True,
    generation=True,
    unconditional=False,
)
AUTOSCALERS: Final = Resource(
    "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", status=True
)
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease", unconditional=False)
PRIORITY_CLASSES: Final = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, returns_deleted=True
)
MEDIA_RESOURCES: Final = Resource(
    "media.example.com",
    "v1alpha1",
    "mediaresources",
    "MediaResource",
    namespaced=False,
    status=True,
    generation=True,
    unconditional=False,
    strategic=False,
)

REMEDIATION_POLICIES: Final = Resource(
    "media.example.com",
    "v1alpha1",
    "remediationpolicies",
    "RemediationPolicy",
    namespaced=False,
    status=True,
    generation=True,
    unconditional=False,
    strategic=False,
)
GUARDIAN_POLICIES: Final = Resource(
    "media.example.com",
    "v1alpha1",
    "guardianpolicies",
    "GuardianPolicy",
    namespaced=False,
    status=True,
    generation=True,
    unconditional=False,
    strategic=False,
)

ALL: Final = (
    PODS,
    NODES,
    NAMESPACES,
    CONFIGMAPS,
    SERVICES,
    SERVICE_ACCOUNTS,
    EVENTS,
    DEPLOYMENTS,
    REPLICASETS,
    JOBS,
    DISRUPTION_BUDGETS,
    AUTOSCALERS,
    LEASES,
    PRIORITY_CLASSES,
    MEDIA_RESOURCES,
    REMEDIATION_POLICIES,
    GUARDIAN_POLICIES,
)

_OTHER_VERSIONS: Final = (
    (("", "v1", "events"), EVENTS),
    (("autoscaling", "v1", "horizontalpodautoscalers"), AUTOSCALERS),
)

_SERVED: Final[dict[tuple[str, str, str], View]] = {
    (resource.group, resource.version, resource.plural): View(resource, resource.api_version)
    for resource in ALL
} | {
    (group, version, plural): View(resource, f"{group}/{version}" if group else version)
    for (group, version, plural), resource in _OTHER_VERSIONS
}

BY_KIND: Final[dict[str, Resource]] = {resource.kind: resource for resource in ALL}
"""Stored resources by kind, for owner references."""


def serving(group: str, version: str, plural: str) -> View | None:
    """The view that serves these, or None."""
    return _SERVED.get((group, version, plural))


def groups() -> dict[str, list[str]]:
    """Versions of every named group, for discovery."""
    found: dict[str, list[str]] = {}
    for group, version, _ in _SERVED:
        if group and version not in found.setdefault(group, []):
            found[group].append(version)
    return found


def of_group(group: str, version: str) -> list[View]:
    """Every view of one group version, for discovery."""
    return [view for (g, v, _), view in _SERVED.items() if (g, v) == (group, version)]
