"""What remediation knows besides its cases: the devices, how far each node's word goes, who holds what.

All of it is heard; none of it decides alone. What a decision takes from here is copied into its fact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from services.remediation.context import Memory, NodeWord
from shared.devices import keys
from shared.errors import BadInput
from shared.events import AnyEvent, Entity, device, world
from shared.kube.models import MediaResource, Node

STANDING: Final = frozenset(
    {
        "Quarantined",
        "Draining",
        "Drained",
        "Diagnosing",
        "Repairing",
        "Validating",
        "Retired",
        "Held",
    }
)
"""Phases of a MediaResource that keep its device out of use."""
_RACK_LABELS: Final = ("rack", "topology.kubernetes.io/rack", "topology.kubernetes.io/zone")
_KINDS: Final = ("deployment-", "statefulset-", "replicaset-", "daemonset-", "job-", "cronjob-", "pod-")
"""An entity that begins so is a workload, whatever else it looks like."""


@lru_cache(maxsize=65536)
def physical(place: str, entity: str) -> Entity | None:
    """The case of the physical device that an entity is, or is a part of; None for what is no device."""
    if entity.startswith(_KINDS):
        return None
    try:
        return Entity("remediation", place, keys.parse(entity).physical)
    except BadInput:
        return None


@dataclass(frozen=True, slots=True)
class _Known:
    model: str
    serial: str | None
    generation: int


class Fleet:
    """Devices, nodes and holders as heard since (and, for devices, before) this replica became active."""

    def __init__(self, domain: str) -> None:
        """Args: domain: of labels and taints, `media.example.com`."""
        self._domain = domain
        self._devices: dict[tuple[str, str], _Known] = {}
        self._totals: Counter[str] = Counter()
        self._racks: dict[str, str] = {}
        self._said_all_at: dict[str, datetime] = {}
        self._allocations: dict[tuple[Entity, str], set[str]] = {}
        self._owners: dict[str, tuple[Entity, str]] = {}
        self._phases: dict[Entity, tuple[str, int]] = {}
        self._tainted: set[str] = set()
        self.remembers = False

    @property
    def taint_key(self) -> str:
        """The only taint key that is ours."""
        return f"{self._domain}/device-quarantine"

    # ------------------------------------------------------------------ hearing

    def hear(self, event: AnyEvent, now: datetime) -> None:
        """Take note of an event."""
        match event.data:
            case device.Registered() as said:
                self._register(event.of.place, said)
            case device.Lost() as said if said.reason == "removed":
                self._forget(event.of.place, event.of.entity)
            case world.Heartbeat() as said:
                if said.journal_depth == 0:
                    self._said_all_at[event.of.place] = now
            case world.Bound() as said:
                self._bind(event, said)
            case world.Released() as said:
                self._release(said.allocation_id)

    def _register(self, place: str, said: device.Registered) -> None:
        if said.device.parent is not None:
            return
        key = (place, said.device.key)
        known = self._devices.get(key)
        if known is not None and known.generation > said.generation:
            return
        self._forget(*key)
        self._devices[key] = _Known(said.device.model, said.device.serial, said.generation)
        self._totals.update(self.scopes(*key))

    def _forget(self, place: str, key: str) -> None:
        if (place, key) in self._devices:
            for scope in self.scopes(place, key):
                self._totals[scope] -= 1
                if not self._totals[scope]:
                    del self._totals[scope]
            del self._devices[(place, key)]

    def _bind(self, event: AnyEvent, said: world.Bound) -> None:
        of = physical(event.of.place, event.of.entity)
        if of is not None:
            self._allocations.setdefault((of, said.pod.uid), set()).add(said.allocation_id)
            self._owners[said.allocation_id] = (of, said.pod.uid)

    def _release(self, allocation_id: str) -> None:
        owner = self._owners.pop(allocation_id, None)
        if owner is not None:
            self._allocations[owner].discard(allocation_id)

    def remember(self, resources: Iterable[MediaResource], nodes: Iterable[Node]) -> None:
        """What the cluster shows of earlier cases, and in which rack its nodes stand."""
        for resource in resources:
            place = resource.labels.get(f"{self._domain}/node") or str(
                resource.spec.get("topology", {}).get("node", "")
            )
            of = physical(place, resource.name.removeprefix(f"{place}-")) if place else None
            if of is not None:
                epoch = resource.status.get("epoch", 0)
                phase = str(resource.status.get("phase", ""))
                self._phases[of] = (phase, epoch if isinstance(epoch, int) else 0)
        for node in nodes:
            if any(taint.key == self.taint_key for taint in node.taints):
                self._tainted.add(node.name)
            labels = (f"{self._domain}/rack", *_RACK_LABELS)
            rack = next((node.labels[label] for label in labels if label in node.labels), "")
            if rack:
                self._move(node.name, rack)
        self.remembers = True

    def _move(self, node: str, rack: str) -> None:
        ours = [key for key in self._devices if key[0] == node]
        for key in ours:
            self._totals.subtract(self.scopes(*key))
        self._racks[node] = rack
        for key in ours:
            self._totals.update(self.scopes(*key))

    # ------------------------------------------------------------------ answering

    def scopes(self, place: str, key: str) -> tuple[str, ...]:
        """The budget scopes in which a device pays."""
        found = ["cluster", f"node:{place}"]
        if place in self._racks:
            found.append(f"rack:{self._racks[place]}")
        known = self._devices.get((place, key))
        if known is not None:
            found.append(f"model:{known.model}")
        return tuple(found)

    def serial(self, place: str, key: str) -> str | None:
        """The serial of a device as it was last registered."""
        known = self._devices.get((place, key))
        return None if known is None else known.serial

    def totals(self) -> Mapping[str, int]:
        """Devices by budget scope; the live count, not a copy."""
        return self._totals

    def node_word(self, place: str, listening_since: datetime) -> NodeWord:
        """How far the word of a node goes."""
        return NodeWord(listening_since, self._said_all_at.get(place))

    def let_go(self, of: Entity, pod_uid: str) -> bool:
        """The pod is known to have held the device, and holds nothing of it any more."""
        held = self._allocations.get((of, pod_uid))
        return held is not None and not held

    def memory(self, of: Entity, *, known_on_node: bool) -> Memory:
        """What the cluster remembers of a device whose log is empty.

        Args:
            of: its case.
            known_on_node: whether another case of the node explains a taint there.
        """
        phase, epoch = self._phases.get(of, ("", 0))
        if phase in STANDING:
            return Memory(epoch, f"its MediaResource says {phase} (epoch {epoch})")
        if of.place in self._tainted and not known_on_node:
            return Memory(epoch, f"node {of.place} carries our taint {self.taint_key}")
        return Memory(epoch)

    def others(self, of: Entity) -> list[Entity]:
        """The other physical devices of its node."""
        return [
            Entity(of.domain, place, key)
            for place, key in self._devices
            if place == of.place and key != of.entity
        ]
