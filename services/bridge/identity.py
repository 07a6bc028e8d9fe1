"""Which pod holds which ids, as the kubelet sees it.

Two sources, neither whole: *pod resources* knows namespace, name, container and ids of every pod on the
node but no UID; the kubelet's *checkpoint* knows UID, container and ids but no name, and keeps entries of
finished pods until it is next written. Joined by resource, id and container they name a pod. Pod resources
decides what is held; the checkpoint only adds the UID. What cannot be joined stays unknown: a guess would
evict the wrong pod.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import BadInput
from shared.events.parts import PodRef


@dataclass(frozen=True, slots=True)
class Listed:
    """One id that pod resources lists."""

    namespace: str
    name: str
    container: str
    resource: str
    id: str


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """One id that the kubelet's checkpoint holds."""

    uid: str
    container: str
    resource: str
    id: str


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the kubelet said at one moment; None where it could not be read, which is no empty list."""

    listed: tuple[Listed, ...] | None = None
    checkpointed: tuple[Checkpointed, ...] | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds an id.

    Attributes:
        pod: None while its UID is not known.
        disputed: several pods are listed with the id, and nothing tells which of them is alive.
    """

    namespace: str
    name: str
    container: str
    pod: PodRef | None = None
    disputed: bool = False


Owners = Mapping[tuple[str, str], Owner]
"""(resource, id) to who holds it."""


def owners(sighting: Sighting, domain: str) -> dict[tuple[str, str], Owner] | None:
    """Who holds the ids of our resources.

    Args:
        sighting: what the kubelet said.
        domain: only resources of this domain are ours.

    Returns:
        None when pod resources could not be read: then nothing is known, also not who is gone.
    """
    if sighting.listed is None:
        return None
    listed: dict[tuple[str, str], list[Listed]] = {}
    for entry in sighting.listed:
        if entry.resource.startswith(f"{domain}/"):
            listed.setdefault((entry.resource, entry.id), []).append(entry)
    uids: dict[tuple[str, str], list[Checkpointed]] = {}
    for record in sighting.checkpointed or ():
        uids.setdefault((record.resource, record.id), []).append(record)
    return {key: _owner(found, uids.get(key, [])) for key, found in listed.items()}


def _owner(found: list[Listed], records: list[Checkpointed]) -> Owner:
    if len(found) > 1:
        # A finished pod is still listed beside its successor. Containers that the checkpoint knows decide.
        alive = [entry for entry in found if any(entry.container == each.container for each in records)]
        if len(alive) != 1:
            first = found[0]
            return Owner(first.namespace, first.name, first.container, disputed=True)
        found = alive
    entry = found[0]
    matching = {record.uid for record in records if record.container == entry.container}
    if len(matching) != 1:
        return Owner(entry.namespace, entry.name, entry.container)
    pod = PodRef(namespace=entry.namespace, name=entry.name, uid=matching.pop())
    return Owner(entry.namespace, entry.name, entry.container, pod)


def parse_checkpoint(text: str | bytes) -> tuple[Checkpointed, ...]:
    """The device entries of a `kubelet_internal_checkpoint`.

    Its shape: `{"Data": {"PodDeviceEntries": [{PodUID, ContainerName, ResourceName, DeviceIDs}]},
    "Checksum"}`; DeviceIDs maps NUMA nodes to ids ("-1": none), kubelets before 1.20 wrote a plain list.

    Raises:
        BadInput: it is no checkpoint; names the field.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BadInput(
            "checkpoint", f"not JSON ({error})", "wait until the kubelet has written it"
        ) from error
    data = _field(document, "Data", dict, "checkpoint")
    # The kubelet writes null for an empty list.
    entries = _field(data, "PodDeviceEntries", (list, type(None)), "Data") or []
    return tuple(record for index, entry in enumerate(entries) for record in _records(entry, index))


def _records(entry: Any, index: int) -> Iterator[Checkpointed]:
    at = f"Data.PodDeviceEntries.{index}"
    uid = _field(entry, "PodUID", str, at)
    container = _field(entry, "ContainerName", str, at)
    resource = _field(entry, "ResourceName", str, at)
    ids = _field(entry, "DeviceIDs", (dict, list, type(None)), at) or []
    groups = list(ids.values()) if isinstance(ids, dict) else [ids]
    for group in groups:
        if not isinstance(group, (list, type(None))) or any(not isinstance(id_, str) for id_ in group or ()):
            raise BadInput(f"{at}.DeviceIDs", f"{group!r} is no list of ids", "ids are strings")
        for id_ in group or ():
            yield Checkpointed(uid, container, resource, id_)


def _field(holder: Any, name: str, kind: type | tuple[type, ...], at: str) -> Any:
    value = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(value, kind):
        raise BadInput(
            f"{at}.{name}", f"{type(value).__name__} is unexpected", "expected the kubelet's checkpoint v1"
        )
    return value
