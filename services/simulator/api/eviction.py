"""The eviction and binding subresources of pods.

Source: kubernetes ``pkg/registry/core/pod/storage/eviction.go`` and ``storage.go`` (BindingREST).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from services.simulator.api.resources import DISRUPTION_BUDGETS, PODS
from services.simulator.api.selectors import from_selector, matches_all
from services.simulator.api.status import ApiError, Cause, bad_request, conflict, failed_precondition, success
from services.simulator.api.store import rfc3339

if TYPE_CHECKING:
    from services.simulator.api.store import Store

Json = dict[str, Any]

_LAG_RETRY_S: Final = 10
"""Retry-After while a budget's status is older than its spec."""
_DISRUPTED_LIMIT: Final = 2_000
_EXEMPT_PHASES: Final = ("Succeeded", "Failed", "Pending")


def evict(store: Store, namespace: str, name: str, body: Json, *, dry_run: bool) -> Json:
    """Delete the pod if its disruption budget allows.

    Raises:
        ApiError: 400 the names differ, 404, 409 another uid, 429 the budget refuses, 403 the budget's status
        is
            broken, 500 more than one budget matches.
    """
    if (body.get("metadata") or {}).get("name") != name:
        raise bad_request("name in URL does not match name in Eviction object", "metadata.name")
    options = dict(body.get("deleteOptions") or {})
    dry_run = dry_run or "All" in (options.get("dryRun") or ())
    pod = store.get(PODS, namespace, name)
    # The real server, too, asks for the uid only after the budget is spent.
    if pod["status"].get("phase") not in _EXEMPT_PHASES and not pod["metadata"].get("deletionTimestamp"):
        _spend_budget(store, namespace, pod, dry_run=dry_run)
    store.check_preconditions(PODS, pod, options.get("preconditions") or {})
    if not dry_run:
        options = _announce(store, namespace, name, options)
    store.delete(PODS, namespace, name, options, dry_run=dry_run)
    return success() | {"code": 201}


def _announce(store: Store, namespace: str, name: str, options: Json) -> Json:
    """Say on the pod why it goes, in a write of its own; the options, for the pod as it is now."""

    def change(pod: Json) -> None:
        set_condition(
            pod["status"],
            "DisruptionTarget",
            "True",
            now=rfc3339(store.clock.now()),
            reason="EvictionByEvictionAPI",
            message="Eviction API: evicting",
        )

    said = store.modify(PODS, namespace, name, change, subresource="status")
    preconditions = options.get("preconditions") or {}
    if preconditions.get("resourceVersion"):
        version = said["metadata"]["resourceVersion"]
        options = options | {"preconditions": preconditions | {"resourceVersion": version}}
    return options


def _spend_budget(store: Store, namespace: str, pod: Json, *, dry_run: bool) -> None:
    budgets = [
        budget
        for budget in store.each(DISRUPTION_BUDGETS, namespace)
        if _selects(budget, pod["metadata"].get("labels") or {})
    ]
    if not budgets:
        return
    if len(budgets) > 1:
        message = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
        raise ApiError(500, "InternalError", message)
    budget = budgets[0]
    status = budget.get("status") or {}
    if not is_ready(pod):
        healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        always = budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
        if always or (healthy >= desired > 0):
            return
    _decrement(store, budget, pod["metadata"]["name"], dry_run=dry_run)


def _decrement(store: Store, budget: Json, pod_name: str, *, dry_run: bool) -> None:
    name, status = budget["metadata"]["name"], budget.get("status") or {}
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _refused(f"The disruption budget {name} is still being processed by the server.", _LAG_RETRY_S)
    allowed = status.get("disruptionsAllowed", 0)
    if len(status.get("disruptedPods") or {}) > _DISRUPTED_LIMIT:
        raise _forbidden(
            name, "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        )
    if allowed == 0:
        needs, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        raise _refused(
            f"The disruption budget {name} needs {needs} healthy pods and has {has} currently", None
        )
    if dry_run:
        return
    spent = copy.deepcopy(budget)
    spent["status"]["disruptionsAllowed"] = allowed - 1
    spent["status"].setdefault("disruptedPods", {})[pod_name] = rfc3339(store.clock.now())
    store.replace(DISRUPTION_BUDGETS, budget["metadata"]["namespace"], name, spent, subresource="status")


def bind(store: Store, namespace: str, name: str, body: Json, *, dry_run: bool = False) -> Json:
    """Put a pod on a node.

    Raises:
        ApiError: 400 no target, 404, 409 it is bound already, is going, or has another uid.
    """
    node = (body.get("target") or {}).get("name")
    if not node:
        raise bad_request("Required value", "target.name")
    pod = copy.deepcopy(store.get(PODS, namespace, name))
    uid = (body.get("metadata") or {}).get("uid")
    if uid and uid != pod["metadata"]["uid"]:
        raise failed_precondition(
            "pods/binding", "", name, what="UID", wanted=uid, actual=pod["metadata"]["uid"]
        )
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict("pods/binding", "", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if pod["spec"].get("nodeName"):
        raise conflict(
            "pods/binding", "", name, f"pod {name} is already assigned to node {pod['spec']['nodeName']!r}"
        )
    pod["spec"]["nodeName"] = node
    pod["metadata"]["annotations"] = {
        **(pod["metadata"].get("annotations") or {}),
        **((body.get("metadata") or {}).get("annotations") or {}),
    }
    set_condition(pod["status"], "PodScheduled", "True", now=rfc3339(store.clock.now()))
    store.replace(PODS, namespace, name, pod, subresource="all", dry_run=dry_run, checked=False)
    return success() | {"code": 201}


def is_ready(body: Json) -> bool:
    """Whether the object's Ready condition is True."""
    return condition_of(body, "Ready") == "True"


def condition_of(body: Json, kind: str) -> str | None:
    """The status of a condition, or None."""
    for entry in (body.get("status") or {}).get("conditions") or ():
        if entry.get("type") == kind:
            return str(entry.get("status"))
    return None


def set_condition(
    status: Json, kind: str, value: str, *, now: str, reason: str = "", message: str = ""
) -> None:
    """Set a condition; its transition time moves only when its status does."""
    conditions = list(status.get("conditions") or ())
    old = next((entry for entry in conditions if entry.get("type") == kind), None)
    entry: Json = {"type": kind, "status": value}
    entry |= {"reason": reason} if reason else {}
    entry |= {"message": message} if message else {}
    same = old is not None and old.get("status") == value
    entry["lastTransitionTime"] = old.get("lastTransitionTime", now) if old is not None and same else now
    status["conditions"] = (
        [entry if known is old else known for known in conditions] if old else [*conditions, entry]
    )


def _selects(budget: Json, labels: Json) -> bool:
    """An empty selector selects every pod of the namespace, an absent one none (policy/v1)."""
    selector = from_selector((budget.get("spec") or {}).get("selector"))
    return selector is not None and matches_all(selector, labels)


def _refused(why: str, retry_after_s: int | None) -> ApiError:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return ApiError(
        429, "TooManyRequests", message, causes=(Cause("DisruptionBudget", why),), retry_after_s=retry_after_s
    )


def _forbidden(name: str, why: str) -> ApiError:
    message = f'poddisruptionbudgets.policy "{name}" is forbidden: {why}'
    return ApiError(
        403, "Forbidden", message, details={"name": name, "group": "policy", "kind": "poddisruptionbudgets"}
    )
