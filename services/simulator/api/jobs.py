"""Jobs: pods until enough have succeeded.

An evicted pod is made again at once, a failed one after a wait that doubles, up to ``backoffLimit``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from services.simulator.api.eviction import is_ready, set_condition
from services.simulator.api.resources import JOBS, PODS
from services.simulator.api.store import key_of, rfc3339
from services.simulator.api.workloads import (
    Owned,
    create_pod,
    delete_surplus,
    is_active,
    own_or_owner,
    write_status,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.simulator.api.store import Change, Key, Store

Json = dict[str, Any]

_JOB_BACKOFF_FIRST_S: Final = 1.0
"""Wait before the pod that replaces a failed one: the real 10 s, doubling, compressed."""
_JOB_BACKOFF_LAST_S: Final = 36.0


class Jobs:
    """Runs a Job's pods until enough succeeded; evicted ones are made again at once, failed ones later."""

    name = "job"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pods = Owned(store, PODS)
        self._failed: dict[str, set[str]] = {}
        self._succeeded: dict[str, set[str]] = {}
        self._not_before_s: dict[str, float] = {}

    def standing(self) -> Iterable[Key]:
        """Every Job."""
        return [key_of(body) for body in self._store.each(JOBS)]

    def concerns(self, change: Change) -> Iterable[Key]:
        """The Job itself, or the one that controls the pod."""
        self._pods.observe(change)
        if change.resource is JOBS and change.kind == "DELETED":
            uid = change.body["metadata"]["uid"]
            for kept in (self._failed, self._succeeded, self._not_before_s):
                kept.pop(uid, None)
        return own_or_owner(change, JOBS)

    def reconcile(self, key: Key) -> float | None:
        """Count what ended, start what is missing; seconds until a failed pod may be replaced."""
        body = self._store.find(JOBS, *key)
        if body is None or body["metadata"].get("deletionTimestamp") or _finished(body):
            return None
        uid, spec = body["metadata"]["uid"], body["spec"]
        pods = self._pods.of(uid)
        succeeded, failed = self._ended(uid, pods)
        active = [pod for pod in pods if is_active(pod)]
        parallelism, completions = spec.get("parallelism", 1), spec.get("completions")
        done = succeeded >= (completions if completions is not None else 1) and (
            completions is not None or not active
        )
        over = failed > spec.get("backoffLimit", 6)
        wait_s: float | None = None
        if done or over or spec.get("suspend"):
            wanted = 0
        elif completions is None:
            wanted = parallelism if not succeeded else len(active)
        else:
            wanted = min(parallelism, completions - succeeded)
        delete_surplus(self._store, active, len(active) - wanted)
        missing = wanted - len(active)
        if missing > 0:
            wait_s = self._not_before_s.get(uid, 0.0) - self._store.clock.monotonic()
            if wait_s <= 0:
                wait_s = None
                for _ in range(missing):
                    create_pod(self._store, JOBS, body, spec["template"])
        self._count(key, body, succeeded=succeeded, failed=failed, done=done, over=over)
        return wait_s

    def _ended(self, uid: str, pods: list[Json]) -> tuple[int, int]:
        """How many pods succeeded and failed, those that were removed since included."""
        succeeded, failed = self._succeeded.setdefault(uid, set()), self._failed.setdefault(uid, set())
        for pod in pods:
            phase = pod["status"].get("phase")
            if phase == "Succeeded":
                succeeded.add(pod["metadata"]["uid"])
            elif phase == "Failed" and pod["metadata"]["uid"] not in failed:
                failed.add(pod["metadata"]["uid"])
                wait_s = min(_JOB_BACKOFF_LAST_S, _JOB_BACKOFF_FIRST_S * 2.0 ** min(len(failed) - 1, 10))
                self._not_before_s[uid] = self._store.clock.monotonic() + wait_s
        return len(succeeded), len(failed)

    def _count(self, key: Key, body: Json, *, succeeded: int, failed: int, done: bool, over: bool) -> None:
        pods = self._pods.of(body["metadata"]["uid"])
        now = rfc3339(self._store.clock.now())
        old = body.get("status") or {}
        status: Json = {"startTime": old.get("startTime", now), "conditions": old.get("conditions") or []}
        active = [pod for pod in pods if is_active(pod)]
        counts = {
            "active": len(active),
            "ready": sum(is_ready(pod) for pod in active),
            "terminating": sum(bool(pod["metadata"].get("deletionTimestamp")) for pod in pods),
            "succeeded": succeeded,
            "failed": failed,
        }
        status |= {name: number for name, number in counts.items() if number}
        if done:
            set_condition(status, "Complete", "True", now=now, reason="CompletionsReached")
            status["completionTime"] = now
        elif over:
            set_condition(status, "Failed", "True", now=now, reason="BackoffLimitExceeded")
        if not status["conditions"]:
            del status["conditions"]
        write_status(self._store, JOBS, key, status)


def _finished(job: Json) -> bool:
    return any(
        entry.get("type") in ("Complete", "Failed") and entry.get("status") == "True"
        for entry in (job.get("status") or {}).get("conditions") or ()
    )
