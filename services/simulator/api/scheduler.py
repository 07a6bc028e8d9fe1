"""kube-scheduler, plainly: pods without a node get the best one; those that fit nowhere wait for a change.

The use of every node is counted along with the changes, so that one decision costs one look at each node. A
pod that waits is tried again when a node appears or changes, or when a pod leaves.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

from services.simulator.api.eviction import bind, set_condition
from services.simulator.api.placement import Room, choose, room_of
from services.simulator.api.resources import NODES, PODS
from services.simulator.api.store import key_of, rfc3339
from shared.kube.quantities import pod_requests

if TYPE_CHECKING:
    from collections.abc import Iterable
    from decimal import Decimal

    from services.simulator.api.store import Change, Key, Store

Json = dict[str, Any]

_OURS: Final = "default-scheduler"
_ENDED: Final = ("Succeeded", "Failed")
_QUEUE: Final[Key] = ("", "")
"""The one key: the whole queue is looked at, by priority, then age."""


class Scheduler:
    """The scheduling queue and what every node has left."""

    name = "scheduler"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rooms: dict[str, Room] = {}
        self._placed: dict[str, tuple[str, dict[str, Decimal]]] = {}
        self._waiting: dict[Key, Json] = {}
        self._refused: dict[Key, str] = {}

    def standing(self) -> Iterable[Key]:
        """Take everything in that is there."""
        for node in self._store.each(NODES):
            self._see_node(node)
        for pod in self._store.each(PODS):
            self._see_pod(pod)
        return (_QUEUE,)

    def concerns(self, change: Change) -> Iterable[Key]:
        """Count the change in; the queue is looked at when it may help a pod."""
        if change.resource is NODES:
            if change.kind == "DELETED":
                self._rooms.pop(change.key[1], None)
                return ()
            if change.kind == "MODIFIED" and not _differs(change.before, change.body):
                self._rooms[change.key[1]].node = change.body
                return ()
            self._see_node(change.body)
        elif change.resource is PODS:
            if not self._see_pod(change.body, gone=change.kind == "DELETED"):
                return ()
        else:
            return ()
        if not self._waiting:
            return ()
        return (_QUEUE,)

    def reconcile(self, key: Key) -> None:  # noqa: ARG002 - there is one
        """Place what can be placed, highest priority and oldest first."""
        for pod_key, pod in sorted(self._waiting.items(), key=lambda item: _order(item[1])):
            node, why = choose(pod, self._rooms.values())
            namespace, name = pod_key
            if node is not None:
                uid = pod["metadata"]["uid"]
                bind(
                    self._store,
                    namespace,
                    name,
                    {"metadata": {"name": name, "uid": uid}, "target": {"name": node}},
                )
            elif self._refused.get(pod_key) != why:
                self._refused[pod_key] = why
                self._say_unschedulable(pod, why)

    def _say_unschedulable(self, pod: Json, why: str) -> None:
        namespace, name = key_of(pod)
        changed = copy.deepcopy(self._store.get(PODS, namespace, name))
        now = rfc3339(self._store.clock.now())
        set_condition(
            changed["status"], "PodScheduled", "False", now=now, reason="Unschedulable", message=why
        )
        self._store.replace(PODS, namespace, name, changed, subresource="status")

    def _see_node(self, node: Json) -> None:
        room = room_of(node)
        old = self._rooms.get(room.name)
        if old is not None:
            room.used, room.pods = old.used, old.pods
        else:
            for where, requests in self._placed.values():
                if where == room.name:
                    room.take(requests, 1)
        self._rooms[room.name] = room

    def _see_pod(self, pod: Json, *, gone: bool = False) -> bool:
        """Count a pod; whether the queue should be looked at."""
        key, uid = key_of(pod), pod["metadata"]["uid"]
        node = pod["spec"].get("nodeName")
        ended = gone or (pod.get("status") or {}).get("phase") in _ENDED
        if node and not ended:
            self._waiting.pop(key, None)
            self._refused.pop(key, None)
            if uid not in self._placed:
                requests = pod_requests(pod["spec"])
                self._placed[uid] = (node, requests)
                if node in self._rooms:
                    self._rooms[node].take(requests, 1)
            return False
        if uid in self._placed:
            where, requests = self._placed.pop(uid)
            if where in self._rooms:
                self._rooms[where].take(requests, -1)
            return True
        if ended or pod["metadata"].get("deletionTimestamp") or pod["spec"].get("schedulerName") != _OURS:
            self._waiting.pop(key, None)
            self._refused.pop(key, None)
            return False
        new = key not in self._waiting
        self._waiting[key] = pod
        return new


def _order(pod: Json) -> tuple[int, str, int]:
    meta = pod["metadata"]
    return -(pod["spec"].get("priority") or 0), meta["creationTimestamp"], int(meta["resourceVersion"])


def _differs(before: Json | None, after: Json) -> bool:
    """Whether a node's change can matter to placement; heartbeats do not."""
    if before is None:
        return True
    return any(before["metadata"].get(name) != after["metadata"].get(name) for name in ("labels", "uid")) or (
        before.get("spec"),
        _scheduling_status(before),
    ) != (after.get("spec"), _scheduling_status(after))


def _scheduling_status(node: Json) -> tuple[Any, ...]:
    status = node.get("status") or {}
    ready = [c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"]
    return status.get("allocatable"), ready
