"""The JSON types of fields, as the API server's decoder insists on them.

Kubernetes uses a field's name for one type nearly everywhere, so the table goes by name. A null is an absent
field. Custom resources are checked in their metadata only: the rest is for their schema (`admission`).
"""

from __future__ import annotations

from types import NoneType
from typing import Any, Final

from services.simulator.api.status import bad_request

Json = dict[str, Any]

_FIELDS: Final[dict[str, str]] = {
    name: kind
    for kind, names in {
        "object": """
            metadata spec template resources selector strategy rollingUpdate affinity nodeAffinity
            scaleTargetRef requiredDuringSchedulingIgnoredDuringExecution series regarding related
            involvedObject deleteOptions preconditions target resource nodeInfo source deprecatedSource""",
        "list of objects": """
            containers initContainers taints tolerations ownerReferences conditions matchExpressions
            matchFields nodeSelectorTerms metrics env volumes volumeMounts ports addresses
            containerStatuses""",
        "list of strings": "finalizers values dryRun",
        "map of strings": "labels annotations matchLabels nodeSelector data disruptedPods",
        "map of quantities": "capacity allocatable limits requests overhead",
        "integer": """
            replicas parallelism completions backoffLimit maxReplicas minReplicas averageUtilization
            terminationGracePeriodSeconds deletionGracePeriodSeconds gracePeriodSeconds
            observedGeneration generation priority disruptionsAllowed currentHealthy desiredHealthy
            expectedPods count deprecatedCount readyReplicas targetCPUUtilizationPercentage""",
        "boolean": """
            unschedulable suspend controller blockOwnerDeletion manualSelector ready""",
        "string": """
            apiVersion kind name namespace generateName uid resourceVersion deletionTimestamp
            creationTimestamp key effect operator image nodeName priorityClassName schedulerName
            restartPolicy phase reason action type note message eventTime reportingController
            reportingInstance reportingComponent lastObservedTime propagationPolicy
            unhealthyPodEvictionPolicy""",
        "integer or string": "minAvailable maxUnavailable maxSurge",
    }.items()
    for name in names.split()
}
_INNER: Final[dict[str, tuple[type, ...]]] = {
    "objects": (dict,),
    "strings": (str,),
    "quantities": (str, int, float),
}
_SCALARS: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "integer or string": (int, str),
}
_CUSTOM: Final = ("apiVersion", "kind", "metadata")


def shaped(body: Json, *, custom: bool = False) -> Json:
    """The object without its nulls.

    Raises:
        ApiError: 400 with the path of a field of the wrong type.
    """
    status = body.get("status")
    if status is not None and not isinstance(status, dict):
        raise _wrong("status", status, "object")
    if custom:
        rest = {name: value for name, value in body.items() if name not in _CUSTOM}
        return {**_object({name: body[name] for name in _CUSTOM if name in body}, ""), **rest}
    return _object(body, "")


def _object(body: Json, path: str) -> Json:
    kept: Json = {}
    for name, value in body.items():
        if value is None:
            continue
        where = f"{path}.{name}" if path else name
        expected = _FIELDS.get(name)
        if expected is not None and not _is(value, expected):
            raise _wrong(where, value, expected)
        if expected is not None and expected.startswith("map of"):
            kept[name] = {key: inner for key, inner in value.items() if inner is not None}
        else:
            kept[name] = _value(value, where)
    return kept


def _value(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        return _object(value, path)
    if isinstance(value, list):
        return [_value(entry, f"{path}[{index}]") for index, entry in enumerate(value)]
    return value


def _is(value: Any, expected: str) -> bool:
    container, _, inner = expected.partition(" of ")
    match container:
        case "object":
            return isinstance(value, dict)
        case "list":
            return isinstance(value, list) and all(isinstance(entry, _INNER[inner]) for entry in value)
        case "map":
            entries = value.values() if isinstance(value, dict) else (value, ())
            return all(
                isinstance(entry, (*_INNER[inner], NoneType)) and not isinstance(entry, bool)
                for entry in entries
            )
        case _:
            boolean = isinstance(value, bool)
            return boolean if expected == "boolean" else isinstance(value, _SCALARS[expected]) and not boolean


def _wrong(path: str, value: Any, expected: str) -> Exception:
    return bad_request(f"cannot unmarshal {type(value).__name__} into a field of type {expected}", path)
