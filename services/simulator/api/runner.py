"""What runs pods: the seam between the API server and simulated kubelets.

`PodDispatch` hands every change of a bound pod to the runner of its node. A node without a runner of its own
gets `InstantRunner`: its pods run and are ready at once, and end after their grace period, compressed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from services.simulator.api.eviction import set_condition
from services.simulator.api.resources import PODS
from services.simulator.api.status import ApiError
from services.simulator.api.store import key_of, rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.simulator.api.store import Change, Store

Json = dict[str, Any]

_INSTANT_GRACE_S: Final = 2.0
"""Longest that `InstantRunner` takes of a grace period: 30 s of it teach nothing."""


class PodRunner(Protocol):
    """A node's kubelet, as the API server sees it.

    Called inside the write, so it must neither block nor write there and then (other listeners would hear of
    the second change first). It answers, at the next turn of the loop or later, through the store: status by
    ``store.modify(PODS, ns, name, change, subresource="status")``, the end of a terminating pod by
    ``store.finish(ns, name, uid)``.
    """

    def observe(self, change: Change) -> None:
        """A pod of this node was bound (or stands at registration), changed, is asked to end, or is gone."""
        ...


class PodDispatch:
    """Which runner has which node."""

    def __init__(self, store: Store, default: PodRunner | None = None) -> None:
        """Args: default: runs the pods of nodes that nobody registered; None leaves them Pending."""
        self._store = store
        self._default = default
        self._runners: dict[str, PodRunner] = {}
        self._forget: Callable[[], None] = store.listen(self._heard)

    def register(self, node: str, runner: PodRunner) -> None:
        """Give a node its runner; it is not told what stands: it lists by itself."""
        self._runners[node] = runner

    def unregister(self, node: str) -> None:
        """The node's kubelet is down: nobody runs its pods, and terminating ones stay."""
        self._runners[node] = _Nobody()

    def close(self) -> None:
        """Hear no more."""
        self._forget()

    def _heard(self, change: Change) -> None:
        if change.resource is not PODS:
            return
        node = change.body["spec"].get("nodeName")
        runner = self._runners.get(node, self._default) if node else None
        if runner is not None:
            runner.observe(change)


class _Nobody:
    """A kubelet that is down."""

    def observe(self, change: Change) -> None:
        """Nothing happens."""


class InstantRunner:
    """Runs pods without a kubelet: ready at the loop's next turn, gone after a compressed grace period."""

    def __init__(self, store: Store, *, grace_s: float = _INSTANT_GRACE_S) -> None:
        self._store = store
        self._grace_s = grace_s
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def observe(self, change: Change) -> None:
        """Start, end or forget a pod."""
        meta = change.body["metadata"]
        uid = meta["uid"]
        if change.kind == "DELETED":
            timer = self._timers.pop(uid, None)
            if timer is not None:
                timer.cancel()
        elif meta.get("deletionTimestamp"):
            wait_s = min(float(meta.get("deletionGracePeriodSeconds") or 0), self._grace_s)
            self._at(uid, wait_s, self._end, change.body)
        elif change.body["status"].get("phase") == "Pending" and uid not in self._timers:
            self._at(uid, 0.0, self._start, change.body)

    def close(self) -> None:
        """Stop every timer."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _at(self, uid: str, wait_s: float, action: Callable[[Json], None], pod: Json) -> None:
        old = self._timers.get(uid)
        if old is not None:
            old.cancel()
        self._timers[uid] = asyncio.get_running_loop().call_later(wait_s, action, pod)

    def _start(self, pod: Json) -> None:
        self._timers.pop(pod["metadata"]["uid"], None)
        namespace, name = key_of(pod)
        current = self._store.find(PODS, namespace, name)
        if current is None or current["metadata"]["uid"] != pod["metadata"]["uid"]:
            return
        if current["metadata"].get("deletionTimestamp") or current["status"].get("phase") != "Pending":
            return
        now = rfc3339(self._store.clock.now())
        self._store.modify(PODS, namespace, name, lambda body: mark_running(body, now), subresource="status")

    def _end(self, pod: Json) -> None:
        self._timers.pop(pod["metadata"]["uid"], None)
        namespace, name = key_of(pod)
        try:
            self._store.finish(namespace, name, pod["metadata"]["uid"])
        except ApiError:
            return  # another writer removed it in this very turn


def mark_running(body: Json, now: str) -> None:
    """Make a pod Running and Ready, as a kubelet reports it."""
    status = body["status"]
    status["phase"] = "Running"
    status.setdefault("startTime", now)
    for kind in ("Initialized", "ContainersReady", "Ready"):
        set_condition(status, kind, "True", now=now)
    status["containerStatuses"] = [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for container in body["spec"]["containers"]
    ]
