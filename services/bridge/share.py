"""What one device-plugin id stands for: a share of an engine, or a whole device.

The kubelet counts ids; it knows neither that four of them divide one encoder, nor that a unit which encodes
and decodes is behind two of them, nor that a whole device contains its engines. A share carries what is
needed to see that: its physical *unit*, into how many *slots* the unit is divided, its device and physical
device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict, Field

from shared.devices.keys import ENGINE_KINDS, EngineKind, parse, slot_id, twin
from shared.events.parts import Slot

if TYPE_CHECKING:
    from shared.devices.model import UnifiedDevice

ENGINE_RESOURCES: Final[Mapping[EngineKind, str]] = {"enc": "nvenc", "dec": "nvdec", "jpeg": "jpeg"}
"""Name part of the resource that each kind of engine is asked for by, whatever the vendor."""

PARTITION_SUFFIX: Final = "-partition"
"""A MIG instance or vNPU is asked for as `gpu-partition`: counted apart from whole devices."""


class Share(BaseModel):
    """One device-plugin id, taken apart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    device: str = Field(description="key of the device or partition")
    physical: str = Field(description="key of the physical device")
    numa: int | None = None
    engine: str | None = Field(default=None, description="engine id; None for a whole device")
    slot: int | None = None
    unit: str | None = Field(default=None, description="name of the physical unit behind the engine")
    twin: str | None = Field(default=None, description="the engine's other name, where the unit has two")
    slots: int = Field(default=1, ge=1, description="shares that the unit was divided into when given")
    guessed: bool = Field(default=False, description="known by its id alone; its device was not registered")

    @property
    def whole(self) -> bool:
        """It is a device or partition, with every engine of it."""
        return self.engine is None

    def as_slot(self) -> Slot | None:
        """The slot as events name it; None for a whole device."""
        if self.engine is None or self.slot is None:
            return None
        return Slot(engine=self.engine, slot=self.slot)


Catalogue = Mapping[str, Mapping[str, Share]]
"""Resource to id to share: everything that a node can offer, whatever its state."""


def catalogue(
    devices: Iterable[UnifiedDevice], *, domain: str, slots: int, whole_devices: bool = True
) -> dict[str, dict[str, Share]]:
    """What the devices offer.

    A device whose engine counts are not known offers no engines (unknown is not zero, but cannot be given),
    and a device that is divided into partitions offers nothing itself: its partitions do.

    Args:
        devices: the registered devices of the node.
        domain: the resource domain, `media.example.com`.
        slots: shares per engine.
        whole_devices: offer devices too, not only engines (off beside an official vendor plugin).
    """
    known = list(devices)
    divided = {device.parent for device in known if device.parent is not None}
    offered: dict[str, dict[str, Share]] = {}
    for device in sorted(known, key=lambda each: each.key):
        if device.key in divided:
            continue
        physical, numa = device.parent or device.key, device.topology.numa_node
        for kind in ENGINE_KINDS:
            resource = f"{domain}/{ENGINE_RESOURCES[kind]}"
            for engine in device.engine_ids(kind):
                shared = device.codec_engine.engines.shared and kind in ("enc", "dec")
                other = twin(engine) if shared else None
                for number in range(slots):
                    share = Share(
                        id=slot_id(engine, number),
                        device=device.key,
                        physical=physical,
                        numa=numa,
                        engine=engine,
                        slot=number,
                        unit=min(engine, other) if other else engine,
                        twin=other,
                        slots=slots,
                    )
                    offered.setdefault(resource, {})[share.id] = share
        if whole_devices and device.type != "CPU":
            name = device.type.lower() + (PARTITION_SUFFIX if device.parent else "")
            share = Share(id=device.key, device=device.key, physical=physical, numa=numa)
            offered.setdefault(f"{domain}/{name}", {})[share.id] = share
    return offered


def from_id(id_: str) -> Share:
    """The share that an id names, for an id that no registered device offers (any more).

    Without its device nobody knows whether the unit has a second ability or into how many slots it was
    divided, so it counts as a whole unit.

    Raises:
        BadInput: it is none of our ids.
    """
    key = parse(id_, "device id")
    return Share(
        id=id_,
        device=key.device,
        physical=key.physical,
        engine=key.engine,
        slot=key.slot,
        unit=key.engine,
        guessed=True,
    )
