"""Pods: defaults, validation, and what of them may change.

Extended resources are whole numbers with a limit that equals the request: devices are never overcommitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from services.simulator.api.resources import PRIORITY_CLASSES
from services.simulator.api.status import Cause, invalid
from shared.errors import BadInput
from shared.kube.quantities import parse_quantity

if TYPE_CHECKING:
    from services.simulator.api.store import Store

Json = dict[str, Any]
Causes = list[Cause]

_NATIVE: Final = ("cpu", "memory", "ephemeral-storage", "pods")


def default_pod(body: Json, store: Store) -> None:
    """What the API server and its admission plugins fill in.

    Raises:
        ApiError: 422, no such PriorityClass.
    """
    spec = body.setdefault("spec", {})
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("serviceAccountName", "default")
    if spec.get("priorityClassName"):
        name = spec["priorityClassName"]
        known = store.find(PRIORITY_CLASSES, "", name)
        if known is None:
            cause = Cause(
                "FieldValueNotFound", f"no PriorityClass with name {name} was found", "spec.priorityClassName"
            )
            raise invalid("Pod", "", body["metadata"]["name"], cause)
        spec["priority"] = known.get("value", 0)
        spec.setdefault("preemptionPolicy", known.get("preemptionPolicy", "PreemptLowerPriority"))
    else:
        spec.setdefault("priority", 0)
    for container in spec.get("containers") or ():
        resources = container.get("resources") if isinstance(container, dict) else None
        if isinstance(resources, dict) and resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    body["status"] = {"phase": "Pending", "qosClass": _qos_class(spec)}


def _qos_class(spec: Json) -> str:
    """By cpu and memory only: a pod that holds a whole accelerator can be BestEffort."""
    asked, guaranteed = False, True
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in ("cpu", "memory"):
            asked = asked or name in requests or name in limits
            guaranteed = guaranteed and name in limits and requests.get(name) == limits[name]
    if not asked:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def pod_causes(body: Json) -> Causes:
    """What is wrong with a pod."""
    return pod_spec_causes(body.get("spec") or {}, "spec")


def pod_spec_causes(spec: Json, path: str) -> Causes:
    """What is wrong with a pod's spec, or a template's, at this path."""
    causes: Causes = []
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers:
        return [Cause("FieldValueRequired", "Required value", f"{path}.containers")]
    for index, container in enumerate(containers):
        where = f"{path}.containers[{index}]"
        causes.extend(
            Cause("FieldValueRequired", "Required value", f"{where}.{name}")
            for name in ("name", "image")
            if not container.get(name)
        )
        causes.extend(_resource_causes(container.get("resources") or {}, f"{where}.resources"))
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        if toleration.get("operator", "Equal") not in ("Equal", "Exists"):
            problem = f"Unsupported value: {toleration['operator']!r}: supported values: Equal, Exists"
            causes.append(Cause("FieldValueNotSupported", problem, f"{path}.tolerations[{index}].operator"))
    return causes


def _resource_causes(resources: Json, where: str) -> Causes:
    causes: Causes = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, listed in (("limits", limits), ("requests", requests)):
        for name, text in listed.items():
            field = f"{where}.{kind}[{name}]"
            try:
                amount = parse_quantity(text)
            except BadInput as error:
                causes.append(Cause("FieldValueInvalid", f"Invalid value: {error.problem}", field))
                continue
            if name not in _NATIVE and "/" not in name and not name.startswith("hugepages-"):
                problem = f"Invalid value: {name!r}: must be a standard resource for containers"
                causes.append(Cause("FieldValueInvalid", problem, f"{where}.{kind}"))
            elif amount < 0:
                causes.append(
                    Cause("FieldValueInvalid", "Invalid value: must be greater than or equal to 0", field)
                )
            elif "/" in name and amount != int(amount):
                causes.append(Cause("FieldValueInvalid", "Invalid value: must be an integer", field))
            elif "/" in name and kind == "requests" and name not in limits:
                causes.append(
                    Cause("FieldValueRequired", "Limit must be set for non overcommitable resources", field)
                )
            elif "/" in name and kind == "requests" and parse_quantity(limits[name]) != amount:
                problem = f"Invalid value: {text!r}: must be equal to {name} limit of {limits[name]}"
                causes.append(Cause("FieldValueInvalid", problem, field))
    return causes


def pod_update_causes(before: Json, body: Json) -> Causes:
    """A pod's spec is fixed but for images, its deadline and more tolerations."""
    old, new = dict(before.get("spec") or {}), dict(body.get("spec") or {})
    kept = old.pop("tolerations", None) or []
    tolerations = new.pop("tolerations", None) or []
    for spec in (old, new):
        spec.pop("activeDeadlineSeconds", None)
        for kind in ("containers", "initContainers"):
            if kind in spec:
                spec[kind] = [{key: v for key, v in c.items() if key != "image"} for c in spec[kind]]
    if old != new or any(entry not in tolerations for entry in kept):
        problem = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.terminationGracePeriodSeconds`"
            " (allow it to be set to 1 if it was previously negative),`spec.tolerations` (only additions)"
        )
        return [Cause("FieldValueForbidden", problem, "spec")]
    return []
