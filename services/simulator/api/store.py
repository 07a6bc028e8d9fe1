"""The objects and their history: what etcd and the watch cache are to a kube-apiserver.

One revision counter for everything. Every write replaces the stored object by a new one and appends a
`Change` to the resource's ring, from which watches read; a watch that asks for more than the ring still has
is told so (410). What the store gives out is shared and must not be changed; writers copy.

Everything here is synchronous: a write is atomic for every task of the process, and listeners (the
controllers) hear of it before it returns.
"""

from __future__ import annotations

import copy
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from services.simulator.api.admission import admit_create, admit_update
from services.simulator.api.history import Change, Key, Ring, key_of
from services.simulator.api.resources import ALL, EVENTS, NODES, PODS, Resource
from services.simulator.api.status import (
    ApiError,
    already_exists,
    bad_request,
    expired,
    failed_precondition,
    invalid,
    modified,
    not_found,
    not_the_one_meant,
)
from services.simulator.api.status import Cause as StatusCause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from shared.clock import Clock

__all__ = ["Change", "Key", "Store", "key_of", "rfc3339"]

Json = dict[str, Any]

_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
"""The letters of generated names: no vowels, nothing that looks like something else."""
_SUFFIX_LENGTH: Final = 5
_NAME_LIMIT: Final = 63
_EVENTS_KEPT: Final = 5_000
"""Events are dropped oldest first beyond this; the real server drops them after an hour."""


class Store:
    """All objects of the simulated cluster."""

    def __init__(self, clock: Clock, *, random: Random | None = None, history: int = 2_000) -> None:
        """Args: random: for uids and generated names; history: changes kept per resource for watches."""
        self.clock = clock
        self._random = random or Random()  # noqa: S311 - names, no secrets
        self._objects: dict[Resource, dict[Key, Json]] = {resource: {} for resource in ALL}
        self._rings: dict[Resource, Ring] = {resource: Ring(history) for resource in ALL}
        self._listeners: list[Callable[[Change], None]] = []
        self.revision = 1

    # --- reading --------------------------------------------------------------------------------------------

    def get(self, resource: Resource, namespace: str, name: str) -> Json:
        """One object.

        Raises:
            ApiError: 404.
        """
        body = self._objects[resource].get((namespace, name))
        if body is None:
            raise not_found(resource.plural, resource.group, name)
        return body

    def find(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """One object, or None."""
        return self._objects[resource].get((namespace, name))

    def each(self, resource: Resource, namespace: str | None = None) -> Iterator[Json]:
        """Every object of a resource, of one namespace or all, by name."""
        for key in sorted(self._objects[resource]):
            if not namespace or key[0] == namespace:
                yield self._objects[resource][key]

    def ring(self, resource: Resource) -> Ring:
        """The history of a resource."""
        return self._rings[resource]

    def listen(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call ``listener`` with every change from now on, inside the write; gives what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # --- writing --------------------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        """Add an object; name, uid, times and defaults are filled in.

        Raises:
            ApiError: 409 the name is taken, 422 it is not valid, 404 no such namespace.
        """
        body = copy.deepcopy(body)
        meta: Json = body.setdefault("metadata", {})
        if meta.get("resourceVersion"):
            raise bad_request(
                "resourceVersion should not be set on objects to be created", "metadata.resourceVersion"
            )
        if resource.namespaced:
            meta["namespace"] = namespace
        else:
            meta.pop("namespace", None)
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = self._generated_name(resource, namespace, str(meta["generateName"]))
        meta["uid"] = str(UUID(int=self._random.getrandbits(128), version=4))
        meta["creationTimestamp"] = rfc3339(self.clock.now())
        for name in (
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "managedFields",
            "selfLink",
        ):
            meta.pop(name, None)
        if resource.status and not resource.status_at_create:
            body.pop("status", None)
        if resource.generation:
            meta["generation"] = 1
        body["apiVersion"], body["kind"] = resource.api_version, resource.kind
        admit_create(resource, body, self)
        key = key_of(body)
        if key in self._objects[resource]:
            raise already_exists(resource.plural, resource.group, key[1])
        if not dry_run:
            self._write("ADDED", resource, key, body, None)
            if resource is EVENTS:
                self._drop_old_events()
        return body

    def replace(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Json,
        *,
        subresource: str = "",
        dry_run: bool = False,
        checked: bool = True,
    ) -> Json:
        """Write a whole object over the stored one; ``subresource`` keeps the status and the rest apart.

        Raises:
            ApiError: 404, 409 a stale resourceVersion or another uid, 422 not valid.
        """
        stored = self.get(resource, namespace, name)
        body = copy.deepcopy(body)
        meta: Json = body.setdefault("metadata", {})
        self._check_versions(resource, stored["metadata"], meta, name)
        body = _merged(resource, stored, body, subresource)
        if checked:
            admit_update(resource, stored, body, subresource)
        if body == stored or dry_run:
            return body
        if resource.generation and _desired(body) != _desired(stored):
            body["metadata"]["generation"] = stored["metadata"].get("generation", 0) + 1
        if (
            body["metadata"].get("deletionTimestamp")
            and not body["metadata"].get("finalizers")
            and _may_go(body)
        ):
            return self._drop(resource, (namespace, name), body)
        self._write("MODIFIED", resource, (namespace, name), body, stored)
        return body

    def modify(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Callable[[Json], None],
        *,
        subresource: str = "",
    ) -> Json:
        """Change a copy of the stored object and write it; for callers inside the process.

        Raises:
            ApiError: 404.
        """
        body = copy.deepcopy(self.get(resource, namespace, name))
        change(body)
        return self.replace(resource, namespace, name, body, subresource=subresource)

    def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        options: Json | None = None,
        *,
        dry_run: bool = False,
    ) -> tuple[Json, bool]:
        """Delete an object, or ask it to go; gives the object and whether it is gone.

        A bound pod that has not ended gets its grace period; objects with finalizers stay until they have
        none.

        Raises:
            ApiError: 404, 409 a precondition does not hold.
        """
        options = options or {}
        stored = self.get(resource, namespace, name)
        self.check_preconditions(resource, stored, options.get("preconditions") or {})
        body = copy.deepcopy(stored)
        meta: Json = body["metadata"]
        policy = options.get("propagationPolicy")
        if policy in ("Orphan", "Foreground") and not meta.get("deletionTimestamp"):
            wanted = "orphan" if policy == "Orphan" else "foregroundDeletion"
            meta["finalizers"] = [*(meta.get("finalizers") or ()), wanted]
        grace_s = _grace_s(resource, body, options)
        waits = grace_s > 0 or bool(meta.get("finalizers"))
        if dry_run:
            return body, not waits
        if not waits:
            return self._drop(resource, (namespace, name), body), True
        if meta.get("deletionTimestamp") and grace_s >= (meta.get("deletionGracePeriodSeconds") or 0):
            return stored, False
        now = self.clock.now()
        meta["deletionTimestamp"] = rfc3339(now, later_s=grace_s)
        meta["deletionGracePeriodSeconds"] = grace_s
        if resource.generation:
            meta["generation"] = meta.get("generation", 0) + 1
        self._write("MODIFIED", resource, (namespace, name), body, stored)
        return body, False

    def finish(self, namespace: str, name: str, uid: str) -> bool:
        """A pod's containers have ended: remove it (what a kubelet says with a grace of zero).

        False when that very pod is not there any more.
        """
        stored = self.find(PODS, namespace, name)
        if stored is None or stored["metadata"]["uid"] != uid:
            return False
        self.delete(PODS, namespace, name, {"gracePeriodSeconds": 0})
        return True

    def compact(self) -> None:
        """Forget all history: every watch from an older revision gets 410."""
        for ring in self._rings.values():
            ring.forget(len(ring.changes))
            ring.floor = self.revision

    # --- watching -------------------------------------------------------------------------------------------

    def check_watch(self, resource: Resource, revision: int) -> None:
        """Whether a watch from this revision can be served.

        Raises:
            ApiError: 410 it is too old; 504 it is in the future.
        """
        floor = self._rings[resource].floor
        if revision < floor:
            raise expired(f"too old resource version: {revision} ({floor})")
        if revision > self.revision:
            raise ApiError(
                504,
                "Timeout",
                f"Too large resource version: {revision}, current: {self.revision}",
                retry_after_s=1,
            )

    # --- inside ---------------------------------------------------------------------------------------------

    def _write(self, kind: str, resource: Resource, key: Key, body: Json, before: Json | None) -> None:
        self.revision += 1
        body["metadata"]["resourceVersion"] = str(self.revision)
        if kind == "DELETED":
            del self._objects[resource][key]
        else:
            self._objects[resource][key] = body
        change = Change(self.revision, kind, resource, body, before)
        self._rings[resource].append(change)
        for listener in tuple(self._listeners):
            listener(change)

    def _drop(self, resource: Resource, key: Key, body: Json) -> Json:
        self._write("DELETED", resource, key, body, self._objects[resource][key])
        return body

    def _drop_old_events(self) -> None:
        events = self._objects[EVENTS]
        while len(events) > _EVENTS_KEPT:
            oldest = next(iter(events))
            self._drop(EVENTS, oldest, copy.deepcopy(events[oldest]))

    def _generated_name(self, resource: Resource, namespace: str, prefix: str) -> str:
        prefix = prefix[: _NAME_LIMIT - _SUFFIX_LENGTH]
        while True:
            name = prefix + "".join(self._random.choices(_SUFFIX_ALPHABET, k=_SUFFIX_LENGTH))
            if (namespace if resource.namespaced else "", name) not in self._objects[resource]:
                return name

    def _check_versions(self, resource: Resource, stored: Json, meta: Json, name: str) -> None:
        version = meta.get("resourceVersion")
        if not version:
            if not resource.unconditional:
                problem = "Invalid value: 0: must be specified for an update"
                cause = StatusCause("FieldValueInvalid", problem, "metadata.resourceVersion")
                raise invalid(resource.kind, resource.group, name, cause)
        elif str(version) != stored["resourceVersion"]:
            raise modified(resource.plural, resource.group, name)
        if meta.get("uid") and meta["uid"] != stored["uid"]:
            raise failed_precondition(
                resource.plural, resource.group, name, what="UID", wanted=meta["uid"], actual=stored["uid"]
            )
        if meta.get("name", name) != name:
            raise bad_request(
                f"the name of the object ({meta['name']}) does not match the name on the URL ({name})"
            )

    def check_preconditions(self, resource: Resource, stored: Json, wanted: Json) -> None:
        """Refuse a deletion of an object that is not the one that was meant.

        Raises:
            ApiError: 409.
        """
        meta = stored["metadata"]
        for field_name, label, actual in (
            ("uid", "UID", meta["uid"]),
            ("resourceVersion", "ResourceVersion", meta["resourceVersion"]),
        ):
            expected = wanted.get(field_name)
            if expected is not None and expected != actual:
                name = meta["name"]
                raise not_the_one_meant(
                    resource.kind, resource.group, name, what=label, wanted=expected, actual=actual
                )


def rfc3339(moment: datetime, *, later_s: int = 0) -> str:
    """A metav1.Time: whole seconds, UTC, Z."""
    return (moment + timedelta(seconds=later_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


_FIXED_META: Final = (
    "uid",
    "creationTimestamp",
    "resourceVersion",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "name",
    "namespace",
    "generateName",
)


def _merged(resource: Resource, stored: Json, body: Json, subresource: str) -> Json:
    """What a write of the object, or of its status, makes of the stored one."""
    if subresource == "status":
        merged = copy.deepcopy(stored)
        if "status" in body:
            merged["status"] = body["status"]
        else:
            merged.pop("status", None)
        for name in ("labels", "annotations"):
            if resource in (PODS, NODES) and body["metadata"].get(name) is not None:
                merged["metadata"][name] = body["metadata"][name]
        return merged
    merged = body
    merged["apiVersion"], merged["kind"] = resource.api_version, resource.kind
    for name in _FIXED_META:
        if name in stored["metadata"]:
            merged["metadata"][name] = stored["metadata"][name]
        else:
            merged["metadata"].pop(name, None)
    if resource.status and subresource != "all":
        merged.pop("status", None)
        if "status" in stored:
            merged["status"] = copy.deepcopy(stored["status"])
    return merged


def _desired(body: Json) -> Json:
    return {name: value for name, value in body.items() if name not in ("metadata", "status")}


def _may_go(body: Json) -> bool:
    """A terminating pod goes when its kubelet says so, everything else with its last finalizer."""
    return body["kind"] != "Pod" or not body["metadata"].get("deletionGracePeriodSeconds")


def _grace_s(resource: Resource, body: Json, options: Json) -> int:
    """How long the object may still take: pods only, and only bound ones that have not ended."""
    if resource is not PODS:
        return 0
    asked = options.get("gracePeriodSeconds")
    if not body.get("spec", {}).get("nodeName") or body.get("status", {}).get("phase") in (
        "Succeeded",
        "Failed",
    ):
        return 0
    grace_s = body.get("spec", {}).get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return max(0, int(grace_s))
