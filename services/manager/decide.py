"""When a device is registered, rejected or lost. Pure.

One case per device, `device.<node>.<key>.*`. What its node's inventory says of it is gathered as `Seen`; the
same judgement follows from a single inventory fact and from the complete list that the node states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from shared.deciders.protocol import Effect
from shared.devices.model import RawDevice, UnifiedDevice
from shared.errors import BadInput
from shared.events import AnyEvent, Entity, Payload
from shared.events.device import DeviceRejected, DeviceSnapshotted, Lost, Registered
from shared.events.parts import Compatibility
from shared.events.world import FoundDevice
from shared.vendors.adapter import translate

ABSENT, REGISTERED, REJECTED, LOST = "absent", "registered", "rejected", "lost"


@dataclass(frozen=True, slots=True)
class Policy:
    """When a device is given up.

    Attributes:
        silent_after_s: an agent that says nothing for this long has lost its devices.
    """

    silent_after_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known now of a device outside its own log.

    Attributes:
        listed: the node has told its inventory, so what is missing in it is gone.
        found: the device as its node found it; None when the node does not have it.
        silent_s: how long the node's agent has said nothing while we listened.
        last_seen: when it last said something; None when never.
    """

    listed: bool
    found: FoundDevice | None = None
    silent_s: float = 0.0
    last_seen: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeviceCase:
    """A device as its log folds."""

    node: str
    key: str
    state: str = ABSENT
    generation: int = 0
    device: UnifiedDevice | None = None
    reasons: tuple[str, ...] = ()


class Registrar:
    """The decider of the device domain."""

    domain = "device"

    def initial(self, of: Entity) -> DeviceCase:
        """A device that nobody has seen."""
        return DeviceCase(of.place, of.entity)

    def evolve(self, case: DeviceCase, fact: AnyEvent, sequence: int) -> DeviceCase:
        """The device after one more fact."""
        del sequence
        match fact.data:
            case Registered(device=device, generation=generation):
                return replace(case, state=REGISTERED, generation=generation, device=device, reasons=())
            case DeviceRejected(generation=generation, reasons=reasons):
                return replace(case, state=REJECTED, generation=generation, reasons=reasons)
            case Lost(reason=reason):
                return replace(case, state=LOST, reasons=(reason,))
            case DeviceSnapshotted(generation=generation):
                return replace(case, state=LOST, generation=generation, reasons=(), device=None)
        return case

    def decide(
        self, case: DeviceCase, cause: AnyEvent, context: Seen | None, now: datetime, policy: Policy
    ) -> Payload | None:
        """What an inventory fact leads to."""
        del cause, now
        return None if context is None else _judge(case, context, policy)

    def next(self, case: DeviceCase, context: Seen | None, now: datetime, policy: Policy) -> Payload | None:
        """What a stated list or a silent node leads to."""
        del now
        return None if context is None else _judge(case, context, policy)

    def effects(self, case: DeviceCase) -> Sequence[Effect]:
        """None: the fleet is projected from facts, not ordered by them."""
        del case
        return ()

    def due(self, case: DeviceCase, policy: Policy) -> datetime | None:
        """None: silence is watched per node, not per device."""
        del case, policy
        return None

    def closed(self, case: DeviceCase) -> bool:
        """Nobody has the device now."""
        return case.state in (ABSENT, LOST)

    def snapshot(self, case: DeviceCase) -> Payload | None:
        """A lost device is only its generation, so that the next one is newer; None once it is no more."""
        if case.state != LOST or not case.reasons:
            return None
        return DeviceSnapshotted(generation=case.generation, state={"state": LOST})


def _judge(case: DeviceCase, seen: Seen, policy: Policy) -> Payload | None:
    if case.state in (REGISTERED, REJECTED):
        if seen.listed and seen.found is None:
            return Lost(generation=case.generation, reason="removed", last_seen=seen.last_seen)
        if seen.silent_s >= policy.silent_after_s:
            return Lost(generation=case.generation, reason="silent", last_seen=seen.last_seen)
    if seen.found is None or seen.silent_s >= policy.silent_after_s:
        return None
    found = seen.found
    try:
        device = translate(
            RawDevice.observed(
                case.key, serial=found.serial, parent=found.parent, raw=found.raw, sources=found.sources
            ),
            case.node,
        )
    except BadInput as error:
        reasons = (str(error),)
        if case.state == REJECTED and case.reasons == reasons:
            return None
        return DeviceRejected(generation=case.generation + 1, reasons=reasons)
    if case.state == REGISTERED and case.device == device:
        return None
    return Registered(
        device=device,
        generation=case.generation + 1,
        compatibility=Compatibility(verdict="unknown", reason="no compatibility matrix is in force"),
    )
