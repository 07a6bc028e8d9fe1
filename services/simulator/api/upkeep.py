"""The smaller controllers: garbage collection by owner, pods of nodes that are gone, and an HPA's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from services.simulator.api.eviction import set_condition
from services.simulator.api.resources import (
    ALL,
    AUTOSCALERS,
    BY_KIND,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICASETS,
)
from services.simulator.api.store import key_of, rfc3339
from services.simulator.api.workloads import write_status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.simulator.api.resources import Resource
    from services.simulator.api.store import Change, Key, Store

Json = dict[str, Any]

_FOREGROUND: Final = "foregroundDeletion"
_ORPHAN: Final = "orphan"


class GarbageCollection:
    """Deletes what an owner leaves behind; keys are the owners' uids (with an empty namespace)."""

    name = "garbage-collection"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._dependents: dict[str, set[tuple[Resource, Key]]] = {}
        for resource in ALL:
            for body in store.each(resource):
                self._index(resource, body)

    def standing(self) -> Iterable[Key]:
        """Every owner that something refers to."""
        return [("", uid) for uid in self._dependents]

    def concerns(self, change: Change) -> Iterable[Key]:
        """An owner that is gone or going, and the owners of what changed."""
        for owner in (change.before or {}).get("metadata", {}).get("ownerReferences") or ():
            self._dependents.get(owner["uid"], set()).discard((change.resource, change.key))
        if change.kind != "DELETED":
            self._index(change.resource, change.body)
        uids = [owner["uid"] for owner in change.body["metadata"].get("ownerReferences") or ()]
        meta = change.body["metadata"]
        going = change.kind == "DELETED" or meta.get("deletionTimestamp")
        if going and (meta.get("finalizers") or meta["uid"] in self._dependents):
            uids.append(meta["uid"])
        return [("", uid) for uid in uids]

    def reconcile(self, key: Key) -> None:
        """Delete, release or wait for the dependents of this owner."""
        uid = key[1]
        owner = self._owner(uid)
        finalizers = (owner[1]["metadata"].get("finalizers") or ()) if owner else ()
        if owner and not owner[1]["metadata"].get("deletionTimestamp"):
            return
        if owner and _ORPHAN in finalizers:
            for resource, dependent in tuple(self._dependents.get(uid, ())):
                self._store.modify(resource, *dependent, lambda body: _disown(body, uid))
            self._release(owner, _ORPHAN)
        elif owner is None or _FOREGROUND in finalizers:
            for resource, dependent in tuple(self._dependents.get(uid, ())):
                body = self._store.find(resource, *dependent)
                if (
                    body is not None
                    and not body["metadata"].get("deletionTimestamp")
                    and self._last_owner(body, uid)
                ):
                    options = {"propagationPolicy": "Foreground"} if owner else {}
                    self._store.delete(resource, *dependent, options)
            if not self._dependents.get(uid):
                self._dependents.pop(uid, None)
                if owner:
                    self._release(owner, _FOREGROUND)

    def _index(self, resource: Resource, body: Json) -> None:
        for owner in body["metadata"].get("ownerReferences") or ():
            self._dependents.setdefault(owner["uid"], set()).add((resource, key_of(body)))

    def _owner(self, uid: str) -> tuple[Resource, Json] | None:
        """The owner as its dependents name it, if it stands."""
        for resource, key in self._dependents.get(uid, ()):
            body = self._store.find(resource, *key)
            for owner in (body or {}).get("metadata", {}).get("ownerReferences") or ():
                kind = BY_KIND.get(owner["kind"])
                if owner["uid"] != uid or kind is None:
                    continue
                found = self._store.find(kind, key[0] if kind.namespaced else "", owner["name"])
                return (kind, found) if found and found["metadata"]["uid"] == uid else None
        for resource in (DEPLOYMENTS, REPLICASETS, *(r for r in ALL if r not in (DEPLOYMENTS, REPLICASETS))):
            for body in self._store.each(resource):
                if body["metadata"]["uid"] == uid:
                    return resource, body
        return None

    def _last_owner(self, body: Json, uid: str) -> bool:
        return all(owner["uid"] == uid for owner in body["metadata"].get("ownerReferences") or ())

    def _release(self, owner: tuple[Resource, Json], finalizer: str) -> None:
        resource, body = owner

        def change(changed: Json) -> None:
            left = [name for name in changed["metadata"].get("finalizers") or () if name != finalizer]
            changed["metadata"]["finalizers"] = left

        self._store.modify(resource, *key_of(body), change)


class LostPods:
    """Removes pods of nodes, and objects of namespaces, that are gone; keys are the names."""

    name = "lost-pods"

    def __init__(self, store: Store) -> None:
        self._store = store

    def standing(self) -> Iterable[Key]:
        """Nothing: what is gone was told when it went."""
        return ()

    def concerns(self, change: Change) -> Iterable[Key]:
        """A node or namespace that is gone."""
        if change.kind != "DELETED" or change.resource not in (NODES, NAMESPACES):
            return ()
        return ((change.resource.kind, change.key[1]),)

    def reconcile(self, key: Key) -> None:
        """Remove at once: no kubelet is left that would answer."""
        kind, name = key
        if kind == "Node":
            if self._store.find(NODES, "", name) is None:
                lost = [key_of(pod) for pod in self._store.each(PODS) if pod["spec"].get("nodeName") == name]
                for pod in lost:
                    self._store.delete(PODS, *pod, {"gracePeriodSeconds": 0})
            return
        if self._store.find(NAMESPACES, "", name) is None:
            for resource in ALL:
                if resource.namespaced:
                    for left in [key_of(body) for body in self._store.each(resource, name)]:
                        self._store.delete(resource, *left, {"gracePeriodSeconds": 0})


class Autoscalers:
    """An HPA's limits: replicas between ``minReplicas`` and ``maxReplicas``, 0 switched off.

    There is no metrics server here, so the rest of an HPA holds, as the real one does without metrics.
    """

    name = "autoscaler-limits"

    def __init__(self, store: Store) -> None:
        self._store = store

    def standing(self) -> Iterable[Key]:
        """Every HPA."""
        return [key_of(body) for body in self._store.each(AUTOSCALERS)]

    def concerns(self, change: Change) -> Iterable[Key]:
        """The HPA itself, or those of the scaled workload."""
        if change.resource is AUTOSCALERS:
            return (change.key,) if change.kind != "DELETED" else ()
        if change.resource not in (DEPLOYMENTS, REPLICASETS):
            return ()
        return [
            key_of(body)
            for body in self._store.each(AUTOSCALERS, change.key[0])
            if body["spec"]["scaleTargetRef"].get("name") == change.key[1]
            and body["spec"]["scaleTargetRef"].get("kind") == change.resource.kind
        ]

    def reconcile(self, key: Key) -> None:
        """Bring the target's replicas within the limits."""
        body = self._store.find(AUTOSCALERS, *key)
        if body is None:
            return
        spec, target = body["spec"], body["spec"]["scaleTargetRef"]
        resource = {"Deployment": DEPLOYMENTS, "ReplicaSet": REPLICASETS}.get(target["kind"])
        scaled = self._store.find(resource, key[0], target["name"]) if resource else None
        now = rfc3339(self._store.clock.now())
        status: Json = {"conditions": (body.get("status") or {}).get("conditions") or []}
        if resource is None or scaled is None:
            set_condition(status, "AbleToScale", "False", now=now, reason="FailedGetScale")
            write_status(
                self._store, AUTOSCALERS, key, {**status, "currentReplicas": 0, "desiredReplicas": 0}
            )
            return
        asked = scaled["spec"].get("replicas", 1)
        wanted = asked if asked == 0 else min(spec["maxReplicas"], max(spec.get("minReplicas", 1), asked))
        if wanted != asked:

            def change(workload: Json) -> None:
                workload["spec"]["replicas"] = wanted

            self._store.modify(resource, key[0], target["name"], change)
        set_condition(status, "AbleToScale", "True", now=now, reason="SucceededGetScale")
        active = "False" if asked == 0 or spec.get("metrics") else "True"
        reason = (
            "ScalingDisabled"
            if asked == 0
            else "FailedGetMetrics"
            if spec.get("metrics")
            else "ValidMetricFound"
        )
        set_condition(status, "ScalingActive", active, now=now, reason=reason)
        current = (scaled.get("status") or {}).get("replicas", 0)
        old = body.get("status") or {}
        if wanted != asked:
            status["lastScaleTime"] = now
        elif "lastScaleTime" in old:
            status["lastScaleTime"] = old["lastScaleTime"]
        write_status(
            self._store, AUTOSCALERS, key, {**status, "currentReplicas": current, "desiredReplicas": wanted}
        )


def _disown(body: Json, uid: str) -> None:
    body["metadata"]["ownerReferences"] = [
        o for o in body["metadata"].get("ownerReferences") or () if o["uid"] != uid
    ]
