"""Defaults and validation at create and update: as much as mediafleet's own objects and mistakes can meet.

Messages and field paths follow the real API server's, so that a test against it reads the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from services.simulator.api.pod_rules import default_pod, pod_causes, pod_spec_causes, pod_update_causes
from services.simulator.api.resources import (
    AUTOSCALERS,
    CONFIGMAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    GUARDIAN_POLICIES,
    JOBS,
    MEDIA_RESOURCES,
    NAMESPACES,
    NODES,
    PODS,
    REMEDIATION_POLICIES,
    REPLICASETS,
    Resource,
)
from services.simulator.api.selectors import from_selector, matches_all
from services.simulator.api.status import Cause, invalid, not_found
from shared.errors import BadInput
from shared.kube.quantities import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.simulator.api.store import Store

Json = dict[str, Any]
Causes = list[Cause]

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_SUBDOMAIN_LIMIT: Final = 253
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_LABEL_KEY: Final = re.compile(
    r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)
_CONFIG_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}", re.ASCII)
_TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_EVENT_LIMITS: Final = {"reason": 128, "action": 128, "reportingInstance": 128, "note": 1024}
_EVENT_FIXED: Final = (
    "regarding",
    "related",
    "reason",
    "action",
    "note",
    "type",
    "eventTime",
    "reportingController",
    "reportingInstance",
)


def admit_create(resource: Resource, body: Json, store: Store) -> None:
    """Fill in defaults and refuse what is not valid.

    Raises:
        ApiError: 422 with every offending field; 404 for an unknown namespace.
    """
    meta = body["metadata"]
    causes = _metadata_causes(meta)
    if resource.namespaced and store.find(NAMESPACES, "", meta.get("namespace", "")) is None:
        raise not_found("namespaces", "", meta.get("namespace", ""))
    if not causes:
        if defaults := _DEFAULTS.get(resource):
            defaults(body, store)
        causes = _causes(resource, body)
    if causes:
        raise invalid(resource.kind, resource.group, meta.get("name", ""), *causes)


def admit_update(resource: Resource, before: Json, body: Json, subresource: str) -> None:
    """Refuse an update that is not valid, or that changes what may not change.

    Raises:
        ApiError: 422 with every offending field.
    """
    causes = _metadata_causes(body["metadata"]) + _causes(resource, body)
    if resource is PODS and subresource == "":
        causes += pod_update_causes(before, body)
    if resource is EVENTS:
        causes += [
            Cause("FieldValueInvalid", "Invalid value: field is immutable", name)
            for name in _EVENT_FIXED
            if body.get(name) != before.get(name)
        ]
    if resource in (DEPLOYMENTS, REPLICASETS) and _spec(body).get("selector") != _spec(before).get(
        "selector"
    ):
        causes.append(Cause("FieldValueInvalid", "Invalid value: field is immutable", "spec.selector"))
    if causes:
        raise invalid(resource.kind, resource.group, body["metadata"].get("name", ""), *causes)


def _causes(resource: Resource, body: Json) -> Causes:
    check = _CHECKS.get(resource)
    if check is None:
        return []
    try:
        return check(body)
    except (AttributeError, TypeError) as error:  # a custom resource's spec has no shape of its own
        return [Cause("FieldValueTypeInvalid", f"Invalid value: wrong type of a field ({error})", "spec")]


def _spec(body: Json) -> Json:
    return body.get("spec") or {}


def _metadata_causes(meta: Json) -> Causes:
    causes: Causes = []
    name = meta.get("name")
    if not name:
        causes.append(
            Cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")
        )
    elif not isinstance(name, str) or len(name) > _SUBDOMAIN_LIMIT or not _SUBDOMAIN.fullmatch(name):
        problem = (
            f"Invalid value: {name!r}: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric"
        )
        causes.append(Cause("FieldValueInvalid", f"{problem} characters, '-' or '.'", "metadata.name"))
    for key, value in (meta.get("labels") or {}).items():
        if not _LABEL_KEY.fullmatch(key) or not isinstance(value, str) or not _LABEL_VALUE.fullmatch(value):
            problem = f"Invalid value: {value!r}: a valid label is at most 63 alphanumerics, '-', '_'"
            causes.append(Cause("FieldValueInvalid", f"{problem} or '.'", f"metadata.labels[{key}]"))
    causes.extend(
        Cause(
            "FieldValueInvalid", f"Invalid value: {value!r}: must be a string", f"metadata.annotations[{key}]"
        )
        for key, value in (meta.get("annotations") or {}).items()
        if not isinstance(value, str)
    )
    return causes


# --- nodes, events ------------------------------------------------------------------------------------------


def _default_node(body: Json, store: Store) -> None:  # noqa: ARG001 - every default has the same shape
    body.setdefault("spec", {})
    status = body.setdefault("status", {})
    status.setdefault("allocatable", dict(status.get("capacity") or {}))
    labels = body["metadata"].setdefault("labels", {})
    labels.setdefault("kubernetes.io/hostname", body["metadata"]["name"])


def _node_causes(body: Json) -> Causes:
    causes: Causes = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(_spec(body).get("taints") or ()):
        where = f"spec.taints[{index}]"
        key, effect = taint.get("key"), taint.get("effect")
        if not key or not _LABEL_KEY.fullmatch(key):
            causes.append(
                Cause("FieldValueInvalid", f"Invalid value: {key!r}: not a qualified name", f"{where}.key")
            )
        if effect not in _TAINT_EFFECTS:
            problem = f"Unsupported value: {effect!r}: supported values: {', '.join(_TAINT_EFFECTS)}"
            causes.append(Cause("FieldValueNotSupported", problem, f"{where}.effect"))
        if (key, effect) in seen:
            causes.append(Cause("FieldValueDuplicate", f"Duplicate value: {key}:{effect}", where))
        seen.add((key, effect))
    for kind in ("capacity", "allocatable"):
        for name, text in (body.get("status") or {}).get(kind, {}).items():
            try:
                parse_quantity(text)
            except BadInput as error:
                causes.append(
                    Cause("FieldValueInvalid", f"Invalid value: {error.problem}", f"status.{kind}[{name}]")
                )
    return causes


def _event_causes(body: Json) -> Causes:
    """events.k8s.io/v1; Events of the core API without an eventTime are older and looser."""
    if not body.get("eventTime"):
        if (
            body.get("deprecatedFirstTimestamp")
            or body.get("deprecatedSource")
            or body.get("deprecatedCount")
        ):
            return []
        return [Cause("FieldValueRequired", "Required value", "eventTime")]
    causes: Causes = [
        Cause("FieldValueRequired", "Required value", name)
        for name in ("reportingController", "reportingInstance", "action", "reason")
        if not body.get(name)
    ]
    causes += [
        Cause("FieldValueInvalid", f"Invalid value: can have at most {limit} characters", name)
        for name, limit in _EVENT_LIMITS.items()
        if len((body.get(name) or "").encode()) > limit  # Go counts bytes, though it says characters
    ]
    if body.get("type") not in ("Normal", "Warning"):
        causes.append(
            Cause("FieldValueInvalid", f"Invalid value: {body.get('type')!r}: has invalid value", "type")
        )
    namespace = (body.get("regarding") or {}).get("namespace") or "default"
    if namespace != body["metadata"]["namespace"]:
        problem = f"Invalid value: {namespace!r}: does not match event.namespace"
        causes.append(Cause("FieldValueInvalid", problem, "regarding.namespace"))
    series = body.get("series")
    if series is not None and (series.get("count", 0) < 2 or not series.get("lastObservedTime")):  # noqa: PLR2004 - API
        causes.append(
            Cause("FieldValueInvalid", "Invalid value: should be at least 2, with its time", "series.count")
        )
    return causes


# --- workloads ----------------------------------------------------------------------------------------------


def _default_replicas(body: Json, store: Store) -> None:  # noqa: ARG001 - as above
    body.setdefault("spec", {}).setdefault("replicas", 1)


def _default_job(body: Json, store: Store) -> None:  # noqa: ARG001 - as above
    spec = body.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("suspend", False)
    if not spec.get("manualSelector"):
        label = {"batch.kubernetes.io/controller-uid": body["metadata"]["uid"]}
        spec["selector"] = {"matchLabels": dict(label)}
        named = label | {
            "batch.kubernetes.io/job-name": body["metadata"]["name"],
            "job-name": body["metadata"]["name"],
        }
        template = spec.setdefault("template", {}).setdefault("metadata", {})
        template["labels"] = {**(template.get("labels") or {}), **named}


def _replicas_causes(body: Json) -> Causes:
    spec = _spec(body)
    causes = _count_causes(spec, "replicas")
    selector = from_selector(spec.get("selector"))
    template = spec.get("template") or {}
    if not selector:
        causes.append(Cause("FieldValueRequired", "Required value", "spec.selector"))
    elif not matches_all(selector, (template.get("metadata") or {}).get("labels")):
        problem = "Invalid value: `selector` does not match template `labels`"
        causes.append(Cause("FieldValueInvalid", problem, "spec.template.metadata.labels"))
    return causes + pod_spec_causes(template.get("spec") or {}, "spec.template.spec")


def _job_causes(body: Json) -> Causes:
    spec = _spec(body)
    causes = [
        cause
        for name in ("completions", "parallelism", "backoffLimit")
        for cause in _count_causes(spec, name)
    ]
    template = (spec.get("template") or {}).get("spec") or {}
    if template.get("restartPolicy") not in ("Never", "OnFailure"):
        problem = f"Required value: valid values: OnFailure, Never (got {template.get('restartPolicy')!r})"
        causes.append(Cause("FieldValueRequired", problem, "spec.template.spec.restartPolicy"))
    return causes + pod_spec_causes(template, "spec.template.spec")


def _count_causes(spec: Json, name: str) -> Causes:
    value = spec.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return []
    problem = f"Invalid value: {value!r}: must be an integer greater than or equal to 0"
    return [Cause("FieldValueInvalid", problem, f"spec.{name}")]


def _budget_causes(body: Json) -> Causes:
    spec = _spec(body)
    if ("minAvailable" in spec) and ("maxUnavailable" in spec):
        problem = "Invalid value: minAvailable and maxUnavailable cannot be both set"
        return [Cause("FieldValueInvalid", problem, "spec")]
    for name in ("minAvailable", "maxUnavailable"):
        value = spec.get(name)
        if isinstance(value, str) and not re.fullmatch(r"([0-9]|[1-9][0-9]|100)%", value):
            problem = f"Invalid value: {value!r}: a valid percent string must be a number followed by '%'"
            return [Cause("FieldValueInvalid", problem, f"spec.{name}")]
        if isinstance(value, int) and (cause := _count_causes(spec, name)):
            return cause
    from_selector(spec.get("selector"))
    return _negative(
        body.get("status") or {}, "status", ("disruptionsAllowed", "currentHealthy", "desiredHealthy")
    )


def _negative(values: Json, where: str, names: tuple[str, ...]) -> Causes:
    return [
        Cause(
            "FieldValueInvalid",
            f"Invalid value: {values[name]!r}: must be greater than or equal to 0",
            f"{where}.{name}",
        )
        for name in names
        if isinstance(values.get(name), int) and values[name] < 0
    ]


def _config_causes(body: Json) -> Causes:
    problem = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
    return [
        Cause("FieldValueInvalid", f"Invalid value: {key!r}: {problem}", f"{part}[{key}]")
        for part in ("data", "binaryData")
        for key in body.get(part) or {}
        if not _CONFIG_KEY.fullmatch(key)
    ]


def _autoscaler_causes(body: Json) -> Causes:
    spec = _spec(body)
    causes: Causes = []
    least, most = spec.get("minReplicas", 1), spec.get("maxReplicas")
    if not isinstance(most, int) or most < 1:
        causes.append(
            Cause("FieldValueInvalid", f"Invalid value: {most!r}: must be greater than 0", "spec.maxReplicas")
        )
    elif not isinstance(least, int) or least < 1:
        causes.append(
            Cause(
                "FieldValueInvalid",
                f"Invalid value: {least!r}: must be greater than or equal to 1",
                "spec.minReplicas",
            )
        )
    elif most < least:
        problem = f"Invalid value: {most}: must be greater than or equal to `minReplicas`"
        causes.append(Cause("FieldValueInvalid", problem, "spec.maxReplicas"))
    causes.extend(
        Cause("FieldValueRequired", "Required value", f"spec.scaleTargetRef.{name}")
        for name in ("kind", "name")
        if not (spec.get("scaleTargetRef") or {}).get(name)
    )
    return causes


def _media_causes(body: Json) -> Causes:
    """The sanity that the CRD's schema gives: a spec that is an object and says node and vendor as text."""
    spec = body.get("spec")
    if not isinstance(spec, dict):
        return [Cause("FieldValueRequired", "Required value", "spec")]
    causes = [
        Cause(
            "FieldValueTypeInvalid", f"Invalid value: {spec[name]!r}: must be of type string", f"spec.{name}"
        )
        for name in ("node", "vendor", "type", "model", "uid", "serial", "parent")
        if name in spec and spec[name] is not None and not isinstance(spec[name], str)
    ]
    total = (spec.get("memory") or {}).get("totalBytes", 0)
    if isinstance(total, bool) or not isinstance(total, int) or total < 0:
        problem = f"Invalid value: {total!r}: must be an integer greater than or equal to 0"
        causes.append(Cause("FieldValueInvalid", problem, "spec.memory.totalBytes"))
    return causes


def _policy_causes(body: Json) -> Causes:
    """What every policy's definition says: its name is `default`, its spec is an object.

    The schema and rules of the fields are the real API server's to check; the service checks again.
    """
    name = body["metadata"]["name"]
    causes: Causes = []
    if name != "default":
        problem = f"Invalid value: there is one {body['kind']}, and its name is default"
        causes.append(Cause("FieldValueInvalid", problem, "<nil>"))
    if body.get("spec") is None:
        causes.append(Cause("FieldValueRequired", "Required value", "spec"))
    elif not isinstance(body["spec"], dict):
        problem = f"Invalid value: {body['spec']!r}: spec in body must be of type object"
        causes.append(Cause("FieldValueTypeInvalid", problem, "spec"))
    return causes


def _default_budget(body: Json, store: Store) -> None:  # noqa: ARG001 - as above
    spec = body.setdefault("spec", {})
    if "minAvailable" not in spec and "maxUnavailable" not in spec:
        spec["minAvailable"] = 1


def _default_autoscaler(body: Json, store: Store) -> None:  # noqa: ARG001 - as above
    body.setdefault("spec", {}).setdefault("minReplicas", 1)


def _default_namespace(body: Json, store: Store) -> None:  # noqa: ARG001 - as above
    body["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = body["metadata"]["name"]
    body["status"] = {"phase": "Active"}


_DEFAULTS: Final[dict[Resource, Callable[[Json, Store], None]]] = {
    PODS: default_pod,
    NODES: _default_node,
    NAMESPACES: _default_namespace,
    DEPLOYMENTS: _default_replicas,
    REPLICASETS: _default_replicas,
    JOBS: _default_job,
    DISRUPTION_BUDGETS: _default_budget,
    AUTOSCALERS: _default_autoscaler,
}
_CHECKS: Final[dict[Resource, Callable[[Json], Causes]]] = {
    PODS: pod_causes,
    NODES: _node_causes,
    CONFIGMAPS: _config_causes,
    EVENTS: _event_causes,
    DEPLOYMENTS: _replicas_causes,
    REPLICASETS: _replicas_causes,
    JOBS: _job_causes,
    DISRUPTION_BUDGETS: _budget_causes,
    AUTOSCALERS: _autoscaler_causes,
    MEDIA_RESOURCES: _media_causes,
    REMEDIATION_POLICIES: _policy_causes,
    GUARDIAN_POLICIES: _policy_causes,
}
