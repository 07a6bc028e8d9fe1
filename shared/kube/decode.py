"""From the API's JSON to our narrow models.

Lenient where the API is (absent is empty), so an object of a newer server never stops a watch; a quantity
that does not parse counts as absent rather than as zero.

Texts and whole maps that many objects have in common (a namespace, the labels of one ReplicaSet's pods) are
one object in memory: a cache of ten thousand pods is mostly such texts.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from shared.errors import BadInput
from shared.kube.models import Hpa, Keep, MediaResource, Node, Owner, Pod, PolicyResource, Taint, Workload
from shared.kube.quantities import parse_quantity, pod_requests

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from shared.kube.models import PolicyKind

Json = dict[str, Any]

_REPLICAS_FIELD: Final = {"Job": "parallelism"}
"""Where a kind keeps the number of pods that it wants, if not in ``replicas``."""

_READY_FIELD: Final = {"Job": "ready", "DaemonSet": "numberReady"}

_ALL: Final = Keep()
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_SHARED_MAPS: Final = 4096
"""Different maps kept to be shared: about one per ReplicaSet of a cluster."""
_SHARED_TEXT: Final = 256
"""Longer texts are not likely to be the same twice."""


def pod_from(body: Mapping[str, Any], *, keep: Keep = _ALL) -> Pod:
    """A v1 Pod."""
    meta, spec, status = _parts(body)
    return Pod(
        namespace=sys.intern(meta.get("namespace", "")),
        name=meta.get("name", ""),
        uid=meta.get("uid", ""),
        node=sys.intern(spec.get("nodeName") or ""),
        phase=sys.intern(status.get("phase") or "Unknown"),
        ready=condition(status, "Ready") is True,
        deleting=bool(meta.get("deletionTimestamp")),
        priority=spec.get("priority") or 0,
        owner=owner_from(meta),
        created_at=timestamp(meta.get("creationTimestamp")),
        resource_version=meta.get("resourceVersion", ""),
        labels=_kept(meta.get("labels"), keep.labels),
        annotations=_kept(meta.get("annotations"), keep.annotations),
        requests=_requests(spec) if keep.quantities else _NONE,
    )


def node_from(body: Mapping[str, Any], *, keep: Keep = _ALL) -> Node:
    """A v1 Node."""
    meta, spec, status = _parts(body)
    info = status.get("nodeInfo") or {}
    return Node(
        name=meta.get("name", ""),
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        ready=condition(status, "Ready"),
        unschedulable=bool(spec.get("unschedulable")),
        labels=_kept(meta.get("labels"), keep.labels),
        annotations=_kept(meta.get("annotations"), keep.annotations),
        taints=tuple(taint_from(taint) for taint in spec.get("taints") or ()),
        capacity=_quantities(status.get("capacity")) if keep.quantities else _NONE,
        allocatable=_quantities(status.get("allocatable")) if keep.quantities else _NONE,
        boot_id=info.get("bootID", ""),
        kubelet_version=info.get("kubeletVersion", ""),
    )


def taint_from(body: Mapping[str, Any]) -> Taint:
    """One entry of ``spec.taints``."""
    return Taint(
        key=body.get("key", ""), effect=body.get("effect", "NoSchedule"), value=body.get("value") or ""
    )


def workload_from(body: Mapping[str, Any], kind: str) -> Workload:
    """An apps/v1 workload or a Job."""
    meta, spec, status = _parts(body)
    replicas = spec.get(_REPLICAS_FIELD.get(kind, "replicas"))
    return Workload(
        namespace=meta.get("namespace", ""),
        kind=kind,
        name=meta.get("name", ""),
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        replicas=1 if replicas is None and kind != "DaemonSet" else replicas,
        ready_replicas=status.get(_READY_FIELD.get(kind, "readyReplicas")) or 0,
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
    )


def hpa_from(body: Mapping[str, Any]) -> Hpa:
    """An autoscaling/v2 HorizontalPodAutoscaler."""
    meta, spec, status = _parts(body)
    target = spec.get("scaleTargetRef") or {}
    least = spec.get("minReplicas")
    return Hpa(
        namespace=meta.get("namespace", ""),
        name=meta.get("name", ""),
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        target_kind=target.get("kind", ""),
        target_name=target.get("name", ""),
        min_replicas=1 if least is None else least,
        max_replicas=spec.get("maxReplicas") or 0,
        current_replicas=status.get("currentReplicas") or 0,
        desired_replicas=status.get("desiredReplicas") or 0,
        annotations=meta.get("annotations") or {},
    )


def media_resource_from(body: Mapping[str, Any]) -> MediaResource:
    """A MediaResource."""
    meta, spec, status = _parts(body)
    return MediaResource(
        name=meta.get("name", ""),
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        generation=meta.get("generation") or 0,
        spec=spec,
        status=status,
        labels=meta.get("labels") or {},
    )


def policy_from(body: Mapping[str, Any], kind: PolicyKind) -> PolicyResource:
    """A policy; a spec that is no mapping stays what it is, for its reader to refuse."""
    meta = body.get("metadata") or {}
    return PolicyResource(
        kind=kind,
        name=meta.get("name", ""),
        uid=meta.get("uid", ""),
        resource_version=meta.get("resourceVersion", ""),
        generation=meta.get("generation") or 0,
        spec=body.get("spec") or {},
        status=body.get("status") or {},
    )


def owner_from(meta: Mapping[str, Any]) -> Owner | None:
    """The controlling owner, if there is one."""
    for owner in meta.get("ownerReferences") or ():
        if owner.get("controller"):
            return _owner(
                owner.get("kind", ""),
                owner.get("name", ""),
                owner.get("uid", ""),
                owner.get("apiVersion", ""),
            )
    return None


def condition(status: Mapping[str, Any], kind: str) -> bool | None:
    """A condition's status; None when it is absent or Unknown."""
    for entry in status.get("conditions") or ():
        if entry.get("type") == kind:
            return {"True": True, "False": False}.get(str(entry.get("status")))
    return None


def timestamp(text: str | None) -> datetime | None:
    """An RFC 3339 time; None when absent or malformed."""
    if not text:
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _parts(body: Mapping[str, Any]) -> tuple[Json, Json, Json]:
    return body.get("metadata") or {}, body.get("spec") or {}, body.get("status") or {}


@lru_cache(_SHARED_MAPS)
def _owner(kind: str, name: str, uid: str, api_version: str) -> Owner:
    return Owner(sys.intern(kind), name, uid, sys.intern(api_version))


@lru_cache(_SHARED_MAPS)
def _map(items: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    """Read-only, because many objects have it."""
    return MappingProxyType(
        {sys.intern(name): sys.intern(value) if _is_short(value) else value for name, value in items}
    )


def _is_short(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _SHARED_TEXT


def _kept(texts: Mapping[str, str] | None, keys: frozenset[str] | None) -> Mapping[str, str]:
    if not texts or (keys is not None and not keys):
        return _NONE
    items = tuple(item for item in texts.items() if keys is None or item[0] in keys)
    if keys is None and sum(len(value) for _, value in items) > _SHARED_TEXT:
        return dict(items)  # last-applied-configuration and the like: nobody has the same
    return _map(items) if items else _NONE


def _requests(spec: Mapping[str, Any]) -> Mapping[str, Decimal]:
    try:
        return _map(tuple(pod_requests(spec).items()))
    except BadInput:
        return _NONE


def _quantities(resources: Mapping[str, Any] | None) -> dict[str, Decimal]:
    known: dict[str, Decimal] = {}
    for name, text in (resources or {}).items():
        try:
            known[name] = parse_quantity(text)
        except BadInput:
            continue
    return known
