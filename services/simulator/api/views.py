"""The same stored object in another API version: core Events, autoscaling/v1.

Stored are events.k8s.io/v1 and autoscaling/v2; these functions convert at the edge, on the way in and out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from services.simulator.api.resources import View

Json = dict[str, Any]

_CORE_EVENT: Final = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_TO_CORE: Final = {stored: core for core, stored in _CORE_EVENT.items()}


def to_stored(view: View, body: Json) -> Json:
    """A client's object in the stored form."""
    if view.api_version == view.resource.api_version:
        return body
    if body.get("kind") == "Event" or view.resource.kind == "Event":
        return {_CORE_EVENT.get(name, name): value for name, value in body.items()}
    return _autoscaler_v2(body)


def to_view(view: View, body: Json) -> Json:
    """A stored object as this version shows it."""
    if view.api_version == view.resource.api_version:
        return body
    if view.resource.kind == "Event":
        shown = {_TO_CORE.get(name, name): value for name, value in body.items()}
        return shown | {"apiVersion": "v1"}
    return _autoscaler_v1(body)


def _autoscaler_v2(body: Json) -> Json:
    spec = dict(body.get("spec") or {})
    percent = spec.pop("targetCPUUtilizationPercentage", None)
    if percent is not None:
        target = {"type": "Utilization", "averageUtilization": percent}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    return {**body, "spec": spec}


def _autoscaler_v1(body: Json) -> Json:
    spec = {
        name: value for name, value in (body.get("spec") or {}).items() if name not in ("metrics", "behavior")
    }
    for metric in (body.get("spec") or {}).get("metrics") or ():
        resource = metric.get("resource") or {}
        if resource.get("name") == "cpu" and "averageUtilization" in (resource.get("target") or {}):
            spec["targetCPUUtilizationPercentage"] = resource["target"]["averageUtilization"]
    shown = {**body, "apiVersion": "autoscaling/v1", "spec": spec}
    if "status" in body:
        kept = ("observedGeneration", "lastScaleTime", "currentReplicas", "desiredReplicas")
        shown["status"] = {name: body["status"][name] for name in kept if name in body["status"]}
    return shown
