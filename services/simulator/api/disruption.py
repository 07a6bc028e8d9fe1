"""The status of PodDisruptionBudgets: how many pods may go now.

Source: kubernetes ``pkg/controller/disruption/disruption.go``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from services.simulator.api.eviction import is_ready, set_condition
from services.simulator.api.resources import DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, REPLICASETS
from services.simulator.api.selectors import from_selector, matches_all
from services.simulator.api.store import key_of, rfc3339
from services.simulator.api.workloads import controller_of, is_active, share_of, write_status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.simulator.api.store import Change, Key, Store

Json = dict[str, Any]

_DISRUPTED_S: Final = 120.0
"""How long an eviction counts before its pod must be seen terminating (the controller's DeletionTimeout)."""


class DisruptionBudgets:
    """Keeps the status of every budget."""

    name = "disruption"

    def __init__(self, store: Store) -> None:
        self._store = store

    def standing(self) -> Iterable[Key]:
        """Every budget."""
        return [key_of(body) for body in self._store.each(DISRUPTION_BUDGETS)]

    def concerns(self, change: Change) -> Iterable[Key]:
        """The budget itself; those of the namespace for a pod; all of it when a workload is scaled."""
        if change.resource is DISRUPTION_BUDGETS:
            return (change.key,) if change.kind != "DELETED" else ()
        if change.resource is PODS:
            labels = change.body["metadata"].get("labels")
            budgets = self._store.each(DISRUPTION_BUDGETS, change.key[0])
            return [key_of(budget) for budget in budgets if _selects(budget, labels)]
        if change.resource in (DEPLOYMENTS, REPLICASETS):
            return [key_of(budget) for budget in self._store.each(DISRUPTION_BUDGETS, change.key[0])]
        return ()

    def reconcile(self, key: Key) -> float | None:
        """Count again; seconds until an unconfirmed eviction stops counting."""
        budget = self._store.find(DISRUPTION_BUDGETS, *key)
        if budget is None:
            return None
        pods = [
            pod
            for pod in self._store.each(PODS, key[0])
            if _selects(budget, pod["metadata"].get("labels"))
            and pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]
        expected, desired = self._expected(budget, pods)
        disrupted, again_s = self._disrupted(budget, pods)
        healthy = sum(
            is_ready(pod) and is_active(pod) and pod["metadata"]["name"] not in disrupted for pod in pods
        )
        synced = expected is not None
        allowed = max(0, healthy - desired) if expected and synced else 0
        status: Json = {
            "observedGeneration": budget["metadata"]["generation"],
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected or 0,
            "conditions": (budget.get("status") or {}).get("conditions") or [],
        }
        if disrupted:
            status["disruptedPods"] = disrupted
        reason = "SyncFailed" if not synced else "SufficientPods" if allowed else "InsufficientPods"
        now = rfc3339(self._store.clock.now())
        set_condition(status, "DisruptionAllowed", str(allowed > 0), now=now, reason=reason)
        write_status(self._store, DISRUPTION_BUDGETS, key, status)
        return again_s

    def _expected(self, budget: Json, pods: list[Json]) -> tuple[int | None, int]:
        """Expected pods (None when a pod lacks a scalable owner) and how many must stay healthy."""
        spec = budget["spec"]
        if "maxUnavailable" in spec:
            total = self._scale_of(pods)
            if total is None:
                return None, 0
            return total, max(0, total - share_of(spec["maxUnavailable"], total, round_up=True))
        least = spec.get("minAvailable", 1)
        if isinstance(least, str):
            total = self._scale_of(pods)
            return total, 0 if total is None else share_of(least, total, round_up=True)
        return len(pods), int(least)

    def _scale_of(self, pods: list[Json]) -> int | None:
        """The sum of what the pods' owners ask for, each owner once."""
        asked: dict[str, int] = {}
        for pod in pods:
            owner = controller_of(pod)
            body = (
                self._store.find(REPLICASETS, pod["metadata"]["namespace"], owner["name"]) if owner else None
            )
            if owner is None or owner["kind"] != "ReplicaSet" or body is None:
                return None
            above = controller_of(body)
            if above is not None and above["kind"] == "Deployment":
                body = self._store.find(DEPLOYMENTS, pod["metadata"]["namespace"], above["name"]) or body
            asked[body["metadata"]["uid"]] = body["spec"].get("replicas", 1)
        return sum(asked.values())

    def _disrupted(self, budget: Json, pods: list[Json]) -> tuple[Json, float | None]:
        """Evictions whose pods are not yet seen terminating, and when the first of them stops counting."""
        names = {pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}
        now = self._store.clock.now()
        kept: Json = {}
        again_s: float | None = None
        for name, at in ((budget.get("status") or {}).get("disruptedPods") or {}).items():
            age_s = (now - datetime.strptime(at, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)).total_seconds()
            if name in names and age_s < _DISRUPTED_S:
                kept[name] = at
                left_s = _DISRUPTED_S - age_s
                again_s = left_s if again_s is None else min(again_s, left_s)
        return kept, again_s


def _selects(budget: Json, labels: Json | None) -> bool:
    selector = from_selector((budget.get("spec") or {}).get("selector"))
    return selector is not None and matches_all(selector, labels)
