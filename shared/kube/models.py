"""What mediafleet reads from the Kubernetes API: narrow, frozen views of its objects.

Only the fields somebody uses. Quantities are exact numbers in base units (cores, bytes, pieces). ``uid``
tells two objects of one name apart and is what every effect is bound to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from decimal import Decimal

T = TypeVar("T")

TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
"""What a taint does to pods that do not tolerate it."""

PolicyKind = Literal["RemediationPolicy", "GuardianPolicy"]
"""Kinds of custom resources that carry a policy."""

ScalableKind = Literal["Deployment", "ReplicaSet", "StatefulSet"]
"""Kinds with a scale subresource that mediafleet changes."""


@dataclass(frozen=True, slots=True)
class PodRef:
    """One pod and no other of its name."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """An object that an Event is about."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"


@dataclass(frozen=True, slots=True)
class Owner:
    """The controlling owner reference of an object."""

    kind: str
    name: str
    uid: str
    api_version: str = ""


@dataclass(frozen=True, slots=True)
class Keep:
    """What a watch keeps of an object besides its own fields, so that ten thousand of them fit.

    Attributes:
        labels: keys of the labels kept; None: all.
        annotations: keys of the annotations kept (the largest part of most pods); None: all.
        quantities: a pod's requests, a node's capacity and allocatable.
    """

    labels: frozenset[str] | None = None
    annotations: frozenset[str] | None = None
    quantities: bool = True


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod; ``ready`` is its Ready condition, ``deleting`` that it has a deletionTimestamp."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    ready: bool
    deleting: bool
    priority: int
    owner: Owner | None
    created_at: datetime | None
    resource_version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, Decimal] = field(default_factory=dict)

    @property
    def ref(self) -> PodRef:
        """The pod by namespace, name and uid."""
        return PodRef(self.namespace, self.name, self.uid)

    @property
    def terminal(self) -> bool:
        """It has ended by itself and holds nothing any more."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    effect: TaintEffect = "NoSchedule"
    value: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node; ``ready`` is None while the node has not said."""

    name: str
    uid: str
    resource_version: str
    ready: bool | None
    unschedulable: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    capacity: Mapping[str, Decimal] = field(default_factory=dict)
    allocatable: Mapping[str, Decimal] = field(default_factory=dict)
    boot_id: str = ""
    kubelet_version: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """What makes pods: a Deployment, ReplicaSet, StatefulSet, DaemonSet or Job.

    ``replicas`` is what is asked for (a Job's parallelism; None where the kind has no such number).
    """

    namespace: str
    kind: str
    name: str
    uid: str
    resource_version: str
    replicas: int | None
    ready_replicas: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hpa:
    """A HorizontalPodAutoscaler and what it last wanted."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    target_kind: str
    target_name: str
    min_replicas: int
    max_replicas: int
    current_replicas: int
    desired_replicas: int
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MediaResource:
    """A `media.example.com` MediaResource; spec and status as the API has them."""

    name: str
    uid: str
    resource_version: str
    generation: int
    spec: Mapping[str, Any]
    status: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyResource:
    """A policy in the cluster; spec and status as the API has them."""

    kind: PolicyKind
    name: str
    uid: str
    resource_version: str
    generation: int
    spec: Mapping[str, Any]
    status: Mapping[str, Any]


class EvictionOutcome(StrEnum):
    """What the API server's answer to an eviction means."""

    EVICTED = "evicted"
    """Accepted, also when the pod was already terminating."""
    GONE = "gone"
    """No such pod: relief is in flight or done."""
    REPLACED = "replaced"
    """Another pod has the name now: plan again."""
    BLOCKED = "blocked"
    """A disruption budget refuses: take another pod, this one in the next round."""
    THROTTLED = "throttled"
    """Not now: the API server asks the whole client to wait, or another write came between."""
    FAILED = "failed"
    """Refused or broken; the message says how."""


@dataclass(frozen=True, slots=True)
class EvictionAnswer:
    """The API server's answer; ``retry_after_s`` is None when it named no time."""

    status: int
    outcome: EvictionOutcome
    message: str = ""
    retry_after_s: float | None = None


class ChangeKind(StrEnum):
    """What happened to a watched object."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    SYNCED = "synced"
    """No object: everything that stood at the (re)list has been told."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One change of a watched object; ``item`` is None for SYNCED only."""

    kind: ChangeKind
    item: T | None
