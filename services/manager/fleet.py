"""The fleet as the facts of all services tell it, folded per device. Pure.

Only a projection: it is made again from the streams at every start, decides nothing, and is but a hint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from shared.devices.model import UnifiedDevice
from shared.events import FLEET, AnyEvent, device, remediation, world
from shared.events.parts import UNKNOWN

HEALTHY_PHASE = "Healthy"

_PHASE: dict[type[object], str] = {
    remediation.Opened: "Suspect",
    remediation.Struck: "Suspect",
    remediation.Cleared: HEALTHY_PHASE,
    remediation.Quarantined: "Quarantined",
    remediation.DrainPlanned: "Draining",
    remediation.Drained: "Drained",
    remediation.DrainStuck: "Draining",
    remediation.DiagnosisRequested: "Diagnosing",
    remediation.RepairRequested: "Repairing",
    remediation.Repaired: "Validating",
    remediation.Validated: "Validating",
    remediation.ProbationStarted: "Probation",
    remediation.Readmitted: HEALTHY_PHASE,
    remediation.Closed: HEALTHY_PHASE,
    remediation.Retired: "Retired",
    remediation.Held: "Held",
    remediation.RemediationSnapshotted: HEALTHY_PHASE,
}
"""The phase that a fact of the case puts the device into; other facts leave it."""

_OPENED_AT = {"suspect": "Suspect", "quarantined": "Quarantined", "validating": "Validating", "held": "Held"}

PROJECTED: tuple[type[Any], ...] = (
    device.Registered,
    device.DeviceRejected,
    device.Lost,
    world.HealthReported,
    world.Bound,
    world.Released,
    world.AllocationsStated,
    remediation.HoldReleased,
    remediation.DeadlinePassed,
    *_PHASE,
)
"""What the projection hears."""


class DeviceRow(BaseModel):
    """One device in the `devices` view."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str | None = None
    vendor: str | None = None
    state: str = "absent"
    verdict: str = UNKNOWN
    phase: str = HEALTHY_PHASE
    epoch: int = 0
    pods: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    generation: int = 0


class AllocationRow(BaseModel):
    """One device's holders in the `allocations` view."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    holdings: tuple[world.Holding, ...] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """Everything known of one device."""

    node: str
    key: str
    unified: UnifiedDevice | None = None
    state: str = "absent"
    generation: int = 0
    reasons: tuple[str, ...] = ()
    verdict: str = UNKNOWN
    phase: str = HEALTHY_PHASE
    epoch: int = 0
    hold: str = ""
    why: str = ""
    holdings: Mapping[str, world.Holding] = field(default_factory=dict)

    @property
    def about(self) -> str:
        """`node/key`."""
        return f"{self.node}/{self.key}"

    @property
    def row(self) -> DeviceRow:
        """Its row of the `devices` view."""
        pods = {str(each.pod) for each in self.holdings.values() if each.pod is not None}
        return DeviceRow(
            model=self.unified.model if self.unified else None,
            vendor=self.unified.vendor if self.unified else None,
            state=self.state,
            verdict=self.verdict,
            phase=self.phase,
            epoch=self.epoch,
            pods=tuple(sorted(pods)),
            reasons=self.reasons,
            generation=self.generation,
        )

    @property
    def allocations(self) -> AllocationRow:
        """Its row of the `allocations` view."""
        return AllocationRow(holdings=tuple(self.holdings[each] for each in sorted(self.holdings)))


class Fleet:
    """Every device, and which of them changed."""

    def __init__(self) -> None:
        self._devices: dict[str, Known] = {}

    def all(self) -> tuple[Known, ...]:
        """Every device."""
        return tuple(self._devices.values())

    def get(self, about: str) -> Known | None:
        """One device by `node/key`."""
        return self._devices.get(about)

    def of_node(self, node: str) -> tuple[Known, ...]:
        """The devices of a node, by key."""
        of = [known for known in self._devices.values() if known.node == node]
        return tuple(sorted(of, key=lambda known: known.key))

    def hear(self, event: AnyEvent) -> tuple[str, ...]:
        """Take a fact; `node/key` of the devices that it changed."""
        if isinstance(event.data, world.AllocationsStated):
            return self._restated(event.of.place, event.data)
        if event.of.place == FLEET:
            return ()  # a budget is no device
        before = self._devices.get(event.subject) or Known(event.of.place, event.of.entity)
        after = _fold(before, event)
        if after == before:
            return ()
        self._devices[event.subject] = after
        return (event.subject,)

    def _restated(self, node: str, stated: world.AllocationsStated) -> tuple[str, ...]:
        """A node's complete list of allocations: what is missing in it is gone."""
        by_key: dict[str, dict[str, world.Holding]] = {}
        for holding in stated.holdings:
            by_key.setdefault(holding.device, {})[holding.allocation_id] = holding
        changed = []
        for key in {*by_key, *(known.key for known in self.of_node(node))}:
            known = self._devices.get(f"{node}/{key}") or Known(node, key)
            if known.holdings != by_key.get(key, {}):
                self._devices[known.about] = replace(known, holdings=by_key.get(key, {}))
                changed.append(known.about)
        return tuple(sorted(changed))


def _fold(known: Known, event: AnyEvent) -> Known:  # noqa: C901, PLR0911 - one answer per kind of fact
    match event.data:
        case device.Registered(device=unified, generation=generation):
            return replace(known, unified=unified, state="registered", generation=generation, reasons=())
        case device.DeviceRejected(generation=generation, reasons=reasons):
            return replace(known, state="rejected", generation=generation, reasons=reasons)
        case device.Lost(reason=reason):
            return replace(known, state="lost", reasons=(reason,), verdict=UNKNOWN)
        case world.HealthReported(verdict=verdict):
            return replace(known, verdict=verdict)
        case world.Bound() as bound:
            held = world.Holding(
                allocation_id=bound.allocation_id,
                device=known.key,
                resource=bound.resource,
                slots=bound.slots,
                whole_device=bound.whole_device,
                pod=bound.pod,
                container=bound.container,
            )
            return replace(known, holdings={**known.holdings, bound.allocation_id: held})
        case world.Released(allocation_id=gone):
            return replace(known, holdings={id_: each for id_, each in known.holdings.items() if id_ != gone})
        case remediation.Held(epoch=epoch, owner=owner, reason=reason):
            return replace(known, phase="Held", epoch=epoch, hold=f"{owner}: {reason}")
        case remediation.HoldReleased(epoch=epoch, to_state=to_state):
            return replace(known, phase=_OPENED_AT.get(to_state, HEALTHY_PHASE), epoch=epoch, hold="")
        case remediation.Opened(epoch=epoch, state=state, reason=reason):
            return replace(known, phase=_OPENED_AT.get(state, "Suspect"), epoch=epoch, why=reason)
        case remediation.DeadlinePassed(timer="probation", epoch=epoch):
            return replace(known, phase="Validating", epoch=epoch)
        case remediation.Closed() if known.phase == "Retired":
            return known
        case remediation.CasePayload(epoch=epoch) as fact:
            phase = _PHASE.get(type(fact), known.phase)
            return replace(known, phase=phase, epoch=epoch, why=_why(known, fact, phase))
    return known


def _why(known: Known, fact: remediation.CasePayload, phase: str) -> str:
    if isinstance(fact, remediation.Quarantined | remediation.Retired):
        return fact.reason
    return "" if phase == HEALTHY_PHASE else known.why


def spec(unified: UnifiedDevice) -> dict[str, Any]:
    """The MediaResource spec of a device; what is not known is left out, never 0."""
    engines = unified.codec_engine.engines
    memory_bytes = unified.memory.total_bytes
    capacity = {
        "memory": None if memory_bytes is None else str(memory_bytes),
        "nvenc": engines.enc,
        "nvdec": engines.dec,
        "jpeg": engines.jpeg,
    }
    topology = {
        "node": unified.node,
        "pciAddr": unified.topology.bus_address,
        "numaNode": unified.topology.numa_node,
    }
    attributes = {
        "uid": unified.uid,
        "serial": unified.serial,
        "driverVersion": unified.firmware.driver,
        "capabilities": list(unified.capabilities) or None,
        "parent": unified.parent,
    }
    return {
        "type": unified.type,
        "vendor": unified.vendor.upper(),
        "model": unified.model,
        "capacity": _said(capacity),
        "topology": _said(topology),
        "attributes": _said(attributes),
    }


def status(known: Known) -> dict[str, Any]:
    """The MediaResource status of a device."""
    return {
        "phase": known.phase if known.state == "registered" else known.state.capitalize(),
        "verdict": known.verdict,
        "epoch": known.epoch,
        "holds": [known.hold] if known.hold else [],
        "allocations": [
            {"pod": str(each.pod), "resource": each.resource, "engines": [slot.engine for slot in each.slots]}
            for each in known.allocations.holdings
            if each.pod is not None
        ],
    }


def node_labels(domain: str, devices: Iterable[Known]) -> dict[str, str | None]:
    """Labels of a node from its registered devices; None takes a label away."""
    unified = [known.unified for known in devices if known.unified and known.state == "registered"]
    vendors = sorted({each.vendor for each in unified})
    models = sorted({_label(each.model) for each in unified})
    labels: dict[str, str | None] = {
        f"{domain}/gpu-vendor": vendors[0] if len(vendors) == 1 else None,
        f"{domain}/gpu-model": models[0] if len(models) == 1 else None,
    }
    every = ("nvidia", "amd", "intel", "huawei", "cambricon", "hygon")
    return labels | {f"{domain}/vendor-{name}": "true" if name in vendors else None for name in every}


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _label(text: str) -> str:
    """A model name as a label value: at most 63 characters, letters, digits, `-`, `_` and `.`."""
    value = "".join(char if char.isascii() and char.isalnum() else "-" for char in text)[:63]
    return value.strip("-") or "unknown"
