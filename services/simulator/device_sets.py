"""Which device ids a kubelet knows, which are healthy, and which containers hold them.

The rules are those of the kubelet's device manager (k/k pkg/kubelet/cm/devicemanager): an id is in use until
its pod has ended and the next admission collects it; ids of a plugin that went away are unhealthy; a resource
whose plugin stayed away for the grace period is forgotten, while containers keep what they hold. Pure.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shared.errors import BadInput, Permanent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

NO_NUMA = -1
"""The key under which the checkpoint lists ids without topology."""

_FNV_OFFSET, _FNV_PRIME, _32_BITS = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Entry:
    """What one container holds of one resource; one row of the checkpoint.

    Attributes:
        numa: ids by NUMA node, `NO_NUMA` for those without.
        response: the plugin's ContainerAllocateResponse, serialized: replayed when the container restarts.
    """

    pod_uid: str
    container: str
    resource: str
    numa: Mapping[int, tuple[str, ...]]
    response: bytes

    @property
    def ids(self) -> frozenset[str]:
        """All ids of the entry."""
        return frozenset(one for ids in self.numa.values() for one in ids)


@dataclass(slots=True)
class ResourceSets:
    """One resource's ids as its plugin last listed them.

    Attributes:
        topology: NUMA nodes per id, empty when the plugin gave none.
        stopped_at_s: when the plugin's stream ended; None while it is connected.
    """

    healthy: set[str] = field(default_factory=set)
    unhealthy: set[str] = field(default_factory=set)
    topology: dict[str, tuple[int, ...]] = field(default_factory=dict)
    stopped_at_s: float | None = None


class DeviceSets:
    """The kubelet's memory of devices; restored from the checkpoint after a restart."""

    def __init__(self) -> None:
        self.resources: dict[str, ResourceSets] = {}
        self.entries: dict[tuple[str, str, str], Entry] = {}

    def listed(
        self,
        resource: str,
        healthy: Collection[str],
        unhealthy: Collection[str],
        topology: Mapping[str, tuple[int, ...]],
    ) -> frozenset[str]:
        """Take a plugin's complete list; returns the ids whose health changed."""
        sets = self.resources.setdefault(resource, ResourceSets())
        before = sets.healthy
        sets.healthy, sets.unhealthy, sets.topology = set(healthy), set(unhealthy), dict(topology)
        return frozenset(before ^ sets.healthy)

    def connected(self, resource: str) -> None:
        """A plugin serves the resource (again)."""
        self.resources.setdefault(resource, ResourceSets()).stopped_at_s = None

    def disconnected(self, resource: str, now_s: float) -> frozenset[str]:
        """The plugin's stream ended: every id is unhealthy; returns those that were healthy."""
        sets = self.resources[resource]
        fallen = frozenset(sets.healthy)
        sets.unhealthy |= sets.healthy
        sets.healthy = set()
        sets.stopped_at_s = now_s
        return fallen

    def forget_stopped(self, now_s: float, grace_s: float) -> tuple[str, ...]:
        """Drop resources whose plugin stayed away for longer than the grace; returns their names."""
        gone = tuple(
            name
            for name, sets in self.resources.items()
            if sets.stopped_at_s is not None and now_s - sets.stopped_at_s > grace_s
        )
        for name in gone:
            del self.resources[name]
        return gone

    def capacity(self) -> dict[str, tuple[int, int]]:
        """Capacity and allocatable per resource."""
        return {
            name: (len(sets.healthy) + len(sets.unhealthy), len(sets.healthy))
            for name, sets in self.resources.items()
        }

    def health(self, resource: str, device_id: str) -> str:
        """Healthy, Unhealthy or Unknown, as `allocatedResourcesStatus` says it."""
        sets = self.resources.get(resource)
        if sets is None or device_id not in sets.healthy | sets.unhealthy:
            return "Unknown"
        return "Healthy" if device_id in sets.healthy else "Unhealthy"

    def in_use(self, resource: str) -> set[str]:
        """Ids that some container holds, of pods that ended too until they are collected."""
        return {one for entry in self.entries.values() if entry.resource == resource for one in entry.ids}

    def collect(self, active: Collection[str]) -> bool:
        """Drop what pods hold that are no longer active; says whether anything was."""
        stale = [key for key in self.entries if key[0] not in active]
        for key in stale:
            del self.entries[key]
        return bool(stale)

    def free(self, resource: str, needed: int) -> set[str]:
        """Ids that can be given.

        Raises:
            Permanent: the kubelet's words for why the pod cannot be admitted.
        """
        sets = self.resources[resource]
        if not sets.healthy:
            raise Permanent(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        available = sets.healthy - self.in_use(resource)
        if len(available) < needed:
            raise Permanent(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        return available

    def by_numa(self, resource: str, ids: Iterable[str]) -> dict[int, tuple[str, ...]]:
        """Ids grouped as the checkpoint wants them; an id on two nodes stands under both."""
        topology = self.resources[resource].topology
        groups: dict[int, list[str]] = {}
        for one in sorted(ids):
            for node in topology.get(one) or (NO_NUMA,):
                groups.setdefault(node, []).append(one)
        return {node: tuple(members) for node, members in sorted(groups.items())}

    def hold(self, entry: Entry) -> None:
        """A container got its devices."""
        self.entries[entry.pod_uid, entry.container, entry.resource] = entry

    def of_pod(self, pod_uid: str) -> tuple[Entry, ...]:
        """What the containers of a pod hold."""
        return tuple(entry for key, entry in self.entries.items() if key[0] == pod_uid)

    # the checkpoint

    def checkpoint(self, boot_id: str) -> str:
        """The text of kubelet_internal_checkpoint (k/k checkpoint.go).

        The checksum is FNV-1a over the data as written here: the kubelet's own hashes Go's memory layout,
        which nobody outside it can repeat, so readers must not check it.
        """
        data = {
            "PodDeviceEntries": [
                {
                    "PodUID": entry.pod_uid,
                    "ContainerName": entry.container,
                    "ResourceName": entry.resource,
                    "DeviceIDs": {str(node): list(ids) for node, ids in entry.numa.items()},
                    "AllocResp": base64.b64encode(entry.response).decode(),
                }
                for entry in self.entries.values()
            ]
            or None,
            "RegisteredDevices": {name: sorted(sets.healthy) for name, sets in self.resources.items()},
        }
        checksum = _FNV_OFFSET
        for byte in json.dumps(data, separators=(",", ":")).encode():
            checksum = ((checksum ^ byte) * _FNV_PRIME) & _32_BITS
        return json.dumps({"Data": data, "Checksum": checksum, "BootID": boot_id}, separators=(",", ":"))

    def restore(self, text: str, now_s: float) -> None:
        """Read a checkpoint: holders as they were, resources known but empty until a plugin registers.

        Raises:
            BadInput: it is not a checkpoint.
        """
        try:
            data = json.loads(text)["Data"]
            entries = [_entry(row) for row in data["PodDeviceEntries"] or ()]
            registered = list(data["RegisteredDevices"] or ())
        except (ValueError, KeyError, TypeError, AttributeError) as broken:
            raise BadInput(
                "kubelet_internal_checkpoint", f"cannot be read ({broken})", "delete the file"
            ) from broken
        self.entries = {(entry.pod_uid, entry.container, entry.resource): entry for entry in entries}
        self.resources = {name: ResourceSets(stopped_at_s=now_s) for name in registered}


def _entry(row: Any) -> Entry:
    return Entry(
        pod_uid=row["PodUID"],
        container=row["ContainerName"],
        resource=row["ResourceName"],
        numa={int(node): tuple(ids) for node, ids in row["DeviceIDs"].items()},
        response=base64.b64decode(row["AllocResp"]),
    )
