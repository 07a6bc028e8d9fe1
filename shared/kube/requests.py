"""The paths and small objects of requests, and what refusals mean: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shared.errors import Permanent
from shared.kube.models import EvictionAnswer, EvictionOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.kube.models import ObjectRef, PolicyKind, Taint
    from shared.kube.transport import Answer

WORKLOAD_KINDS: Final = {
    "Deployment": ("/apis/apps/v1", "deployments"),
    "ReplicaSet": ("/apis/apps/v1", "replicasets"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "Job": ("/apis/batch/v1", "jobs"),
}
POLICY_PLURALS: Final[Mapping[PolicyKind, str]] = {
    "RemediationPolicy": "remediationpolicies",
    "GuardianPolicy": "guardianpolicies",
}
VERSION: Final = "v1alpha1"
"""Of our custom resources."""
_UID_DIFFERS: Final = ("the UID in the precondition", "UID in precondition")
"""The API server's words for a pod that is another one; a 409 without them is a lost race."""


def classify_eviction(answer: Answer) -> EvictionAnswer:
    """What an answer to an eviction request means.

    Source: kubernetes ``pkg/registry/core/pod/storage/eviction.go``, whose 409 of a UID it words itself, and
    ``staging/src/k8s.io/apiserver/pkg/storage/interfaces.go`` (Preconditions.Check), with other words.
    """
    budget = any(cause.get("reason") == "DisruptionBudget" for cause in answer.causes)
    match answer.status:
        case 200 | 201:
            outcome = EvictionOutcome.EVICTED
        case 404:
            outcome = EvictionOutcome.GONE
        case 409 if any(words in answer.message for words in _UID_DIFFERS):
            outcome = EvictionOutcome.REPLACED
        case 409:
            # Another write to the pod or its budget came between; the pod is the one that was meant.
            outcome = EvictionOutcome.THROTTLED
        case 429:
            outcome = EvictionOutcome.BLOCKED if budget else EvictionOutcome.THROTTLED
        case _:
            outcome = EvictionOutcome.FAILED
    details = answer.body.get("details") or {}
    retry_after_s = answer.retry_after_s or (float(details.get("retryAfterSeconds") or 0) or None)
    return EvictionAnswer(answer.status, outcome, "" if answer.ok else answer.message, retry_after_s)


def lost_race(answer: Answer) -> bool:
    """409, or a failed ``test`` of the patch: 422 without any cause, as the API server answers it."""
    return answer.status == 409 or (answer.status == 422 and not answer.causes)  # noqa: PLR2004 - HTTP's numbers


def same_taint(entry: Mapping[str, Any], taint: Taint) -> bool:
    """Whether a node's taint has this taint's key and effect."""
    return bool(entry.get("key") == taint.key and entry.get("effect") == taint.effect)


def reference(ref: ObjectRef) -> dict[str, str]:
    """An ObjectReference."""
    fields = {
        "apiVersion": ref.api_version,
        "kind": ref.kind,
        "name": ref.name,
        "namespace": ref.namespace,
        "uid": ref.uid,
    }
    return {name: text for name, text in fields.items() if text}


def selection(*, node: str | None = None, labels: str | None = None) -> dict[str, str]:
    """The query of a list or watch."""
    query: dict[str, str] = {}
    if node is not None:
        query["fieldSelector"] = f"spec.nodeName={node}"
    if labels:
        query["labelSelector"] = labels
    return query


def node_path(name: str) -> str:
    """Where a node is."""
    return f"/api/v1/nodes/{name}"


def pods_path(namespace: str | None) -> str:
    """Where the pods of a namespace are, or all."""
    return f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"


def hpas_path(namespace: str | None) -> str:
    """Where the HPAs of a namespace are, or all."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/autoscaling/v2{where}/horizontalpodautoscalers"


def custom_path(domain: str, plural: str) -> str:
    """Where custom resources of ours are."""
    return f"/apis/{domain}/{VERSION}/{plural}"


def definitions_path() -> str:
    """Where the definitions of custom resources are."""
    return "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def workload_path(namespace: str, kind: str, name: str) -> str:
    """Where a workload is.

    Raises:
        Permanent: mediafleet knows no such kind.
    """
    if kind not in WORKLOAD_KINDS:
        raise Permanent(
            f"{kind!r} is no workload kind; known are {', '.join(sorted(WORKLOAD_KINDS))}", field="kind"
        )
    prefix, plural = WORKLOAD_KINDS[kind]
    return f"{prefix}/namespaces/{namespace}/{plural}/{name}"
