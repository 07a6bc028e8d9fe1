"""Deployments make ReplicaSets, ReplicaSets make pods, and again when one is gone.

Source for the order in which surplus pods go: kubernetes ``pkg/controller/controller_utils.go`` (ActivePods);
for rolling updates ``pkg/controller/deployment/rolling.go``.
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from services.simulator.api.eviction import is_ready, set_condition
from services.simulator.api.resources import DEPLOYMENTS, PODS, REPLICASETS, Resource
from services.simulator.api.store import key_of, rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.simulator.api.store import Change, Key, Store

Json = dict[str, Any]

_ENDED: Final = ("Succeeded", "Failed")
_HASH_LABEL: Final = "pod-template-hash"
_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"


class Owned:
    """Objects of one resource by the uid of their controller, kept along with the changes."""

    def __init__(self, store: Store, resource: Resource) -> None:
        self._resource = resource
        self._by_owner: dict[str, dict[Key, Json]] = {}
        for body in store.each(resource):
            self._put(body)

    def observe(self, change: Change) -> None:
        """Count a change in."""
        if change.resource is not self._resource:
            return
        for body in (change.before, change.body):
            owner = controller_of(body) if body is not None else None
            if owner is not None:
                self._by_owner.get(owner["uid"], {}).pop(change.key, None)
        if change.kind != "DELETED":
            self._put(change.body)

    def of(self, uid: str) -> list[Json]:
        """What this owner controls."""
        return list(self._by_owner.get(uid, {}).values())

    def _put(self, body: Json) -> None:
        owner = controller_of(body)
        if owner is not None:
            self._by_owner.setdefault(owner["uid"], {})[key_of(body)] = body


class ReplicaSets:
    """Keeps as many pods as a ReplicaSet asks for."""

    name = "replicaset"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pods = Owned(store, PODS)

    def standing(self) -> Iterable[Key]:
        """Every ReplicaSet."""
        return [key_of(body) for body in self._store.each(REPLICASETS)]

    def concerns(self, change: Change) -> Iterable[Key]:
        """The ReplicaSet itself, or the one that controls the pod."""
        self._pods.observe(change)
        return own_or_owner(change, REPLICASETS)

    def reconcile(self, key: Key) -> None:
        """Add missing pods, delete surplus ones, count."""
        body = self._store.find(REPLICASETS, *key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return
        uid, wanted = body["metadata"]["uid"], body["spec"].get("replicas", 1)
        active = [pod for pod in self._pods.of(uid) if is_active(pod)]
        delete_surplus(self._store, active, len(active) - wanted)
        for _ in range(wanted - len(active)):
            create_pod(self._store, REPLICASETS, body, body["spec"]["template"])
        self._count(key, body)

    def _count(self, key: Key, body: Json) -> None:
        pods = [pod for pod in self._pods.of(body["metadata"]["uid"]) if is_active(pod)]
        ready = sum(is_ready(pod) for pod in pods)
        status: Json = {
            "replicas": len(pods),
            "fullyLabeledReplicas": len(pods),
            "observedGeneration": body["metadata"]["generation"],
        }
        if ready:
            status |= {"readyReplicas": ready, "availableReplicas": ready}
        write_status(self._store, REPLICASETS, key, status)


class Deployments:
    """Rolls a Deployment's template out over ReplicaSets."""

    name = "deployment"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sets = Owned(store, REPLICASETS)

    def standing(self) -> Iterable[Key]:
        """Every Deployment."""
        return [key_of(body) for body in self._store.each(DEPLOYMENTS)]

    def concerns(self, change: Change) -> Iterable[Key]:
        """The Deployment itself, or the one that controls the ReplicaSet."""
        self._sets.observe(change)
        return own_or_owner(change, DEPLOYMENTS)

    def reconcile(self, key: Key) -> None:
        """Scale the current template's ReplicaSet up and the others down, within surge and unavailability."""
        body = self._store.find(DEPLOYMENTS, *key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return
        wanted = body["spec"].get("replicas", 1)
        current = self._current_set(body)
        old = [rs for rs in self._sets.of(body["metadata"]["uid"]) if key_of(rs) != key_of(current)]
        strategy = body["spec"].get("strategy") or {}
        if strategy.get("type") == "Recreate":
            for rs in old:
                self._scale(rs, 0)
            left = sum((rs.get("status") or {}).get("replicas", 0) for rs in old)
            self._scale(current, 0 if left else wanted)
        else:
            rolling = strategy.get("rollingUpdate") or {}
            surge = share_of(rolling.get("maxSurge", "25%"), wanted, round_up=True)
            absent = share_of(rolling.get("maxUnavailable", "25%"), wanted, round_up=False)
            self._roll(current, old, wanted, surge=surge, absent=absent if surge or absent else 1)
        self._count(key, body)

    def _roll(self, current: Json, old: list[Json], wanted: int, *, surge: int, absent: int) -> None:
        asked_old = sum(_replicas(rs) for rs in old)
        have = _replicas(current)
        if have >= wanted or not asked_old:
            self._scale(current, wanted)
            have = wanted
        else:
            have = min(wanted, max(have, wanted + surge - asked_old))
            self._scale(current, have)
        ready = (current.get("status") or {}).get("readyReplicas", 0)
        spare = asked_old + min(ready, have) - (wanted - absent)
        for rs in old:
            goes = max(0, min(_replicas(rs), spare))
            self._scale(rs, _replicas(rs) - goes)
            spare -= goes

    def _current_set(self, body: Json) -> Json:
        template = body["spec"]["template"]
        said = json.dumps(template, sort_keys=True).encode()
        digest = hashlib.sha256(said).hexdigest()[:10]
        name = f"{body['metadata']['name']}-{digest}"
        known = self._store.find(REPLICASETS, body["metadata"]["namespace"], name)
        if known is not None:
            return known
        hashed = copy.deepcopy(template)
        labels = {**(hashed.setdefault("metadata", {}).get("labels") or {}), _HASH_LABEL: digest}
        hashed["metadata"]["labels"] = labels
        selector = copy.deepcopy(body["spec"]["selector"])
        selector["matchLabels"] = {**(selector.get("matchLabels") or {}), _HASH_LABEL: digest}
        first = not self._sets.of(body["metadata"]["uid"])
        return self._store.create(
            REPLICASETS,
            body["metadata"]["namespace"],
            {
                "metadata": {
                    "name": name,
                    "labels": labels,
                    "ownerReferences": [owner_reference(DEPLOYMENTS, body)],
                },
                "spec": {
                    "replicas": body["spec"].get("replicas", 1) if first else 0,
                    "selector": selector,
                    "template": hashed,
                },
            },
        )

    def _scale(self, rs: Json, replicas: int) -> None:
        if _replicas(rs) == replicas:
            return

        def change(body: Json) -> None:
            body["spec"]["replicas"] = replicas

        self._store.modify(REPLICASETS, *key_of(rs), change)

    def _count(self, key: Key, body: Json) -> None:
        sets = self._sets.of(body["metadata"]["uid"])
        wanted = body["spec"].get("replicas", 1)
        total, ready = (
            sum((rs.get("status") or {}).get(name, 0) for rs in sets)
            for name in ("replicas", "readyReplicas")
        )
        updated = (self._current_set(body).get("status") or {}).get("replicas", 0)
        status: Json = {"observedGeneration": body["metadata"]["generation"], "replicas": total}
        counts = {
            "updatedReplicas": updated,
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, wanted - ready),
        }
        status |= {name: number for name, number in counts.items() if number}
        status["conditions"] = (body.get("status") or {}).get("conditions") or []
        now = rfc3339(self._store.clock.now())
        rolling = (body["spec"].get("strategy") or {}).get("rollingUpdate") or {}
        enough = ready >= wanted - share_of(rolling.get("maxUnavailable", "25%"), wanted, round_up=False)
        reason = "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"
        set_condition(status, "Available", str(enough), now=now, reason=reason)
        write_status(self._store, DEPLOYMENTS, key, status)


def controller_of(body: Json) -> Json | None:
    """The controlling owner reference of an object."""
    for owner in body["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return dict(owner)
    return None


def owner_reference(resource: Resource, body: Json) -> Json:
    """A controlling reference to this object."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": body["metadata"]["name"],
        "uid": body["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def create_pod(store: Store, resource: Resource, owner: Json, template: Json) -> Json:
    """A pod of this owner from its template."""
    meta = template.get("metadata") or {}
    pod = {
        "metadata": {
            "generateName": f"{owner['metadata']['name']}-",
            "labels": dict(meta.get("labels") or {}),
            "annotations": dict(meta.get("annotations") or {}),
            "ownerReferences": [owner_reference(resource, owner)],
        },
        "spec": template.get("spec") or {},
    }
    return store.create(PODS, owner["metadata"]["namespace"], pod)


def delete_surplus(store: Store, active: list[Json], count: int) -> None:
    """Delete so many of these pods, the least useful first."""
    if count > 0:
        for pod in sorted(active, key=_goes_first)[:count]:
            store.delete(PODS, *key_of(pod))


def is_active(pod: Json) -> bool:
    """It runs, or will: neither ended nor asked to go."""
    return pod["status"].get("phase") not in _ENDED and not pod["metadata"].get("deletionTimestamp")


def write_status(store: Store, resource: Resource, key: Key, status: Json) -> None:
    """Write a status if it differs from the stored one."""
    body = store.find(resource, *key)
    if body is not None and body.get("status") != status:
        store.replace(resource, *key, {**body, "status": status}, subresource="status")


def share_of(value: Any, total: int, *, round_up: bool) -> int:
    """An IntOrString: a number, or a percentage of ``total``."""
    if isinstance(value, str) and value.endswith("%"):
        percent = int(value[:-1]) * total
        return -(-percent // 100) if round_up else percent // 100
    return int(value)


def own_or_owner(change: Change, resource: Resource) -> Iterable[Key]:
    """The changed object's key, or its controller's, where that is of this resource."""
    if change.resource is resource:
        return (change.key,)
    owner = controller_of(change.body)
    if owner is not None and owner["kind"] == resource.kind:
        return ((change.key[0], owner["name"]),)
    return ()


def _goes_first(pod: Json) -> tuple[bool, bool, bool, int, float]:
    """Unbound, Pending, unready, cheap and young pods go before others, in this order of weight."""
    meta, status = pod["metadata"], pod["status"]
    try:
        cost = int((meta.get("annotations") or {}).get(_DELETION_COST, 0))
    except ValueError:
        cost = 0
    return (
        bool(pod["spec"].get("nodeName")),
        status.get("phase") != "Pending",
        is_ready(pod),
        cost,
        -int(meta["resourceVersion"]),
    )


def _replicas(rs: Json) -> int:
    return int(rs["spec"].get("replicas", 1))
