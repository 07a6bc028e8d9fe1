"""What every adapter does alike: find the model's row, and fill the unified form with what is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shared.devices.keys import check_node, device_uid
from shared.devices.model import (
    CodecEngine,
    ComputePower,
    DeviceType,
    Engines,
    Firmware,
    Memory,
    RawDevice,
    Topology,
    UnifiedDevice,
)
from shared.vendors import table
from shared.vendors.table import Model


def source(raw: RawDevice, name: str) -> Mapping[str, Any]:
    """What one source gave; empty when it did not see the device."""
    return raw.raw.get(name, {})


def text(facts: Mapping[str, Any], name: str) -> str | None:
    """A text that a source gave; None for anything else."""
    value = facts.get(name)
    return value if isinstance(value, str) and value else None


def count(facts: Mapping[str, Any], name: str) -> int | None:
    """A whole number that a source gave, 0 or more; None for anything else."""
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def anywhere(raw: RawDevice, name: str) -> object:
    """A fact from whichever source has it; sysfs' own word first, because it needs no tool."""
    for facts in (source(raw, "pci"), *raw.raw.values()):
        if facts.get(name) is not None:
            return facts[name]
    return None


def anywhere_count(raw: RawDevice, name: str) -> int | None:
    """A whole number from whichever source has it."""
    return count({name: anywhere(raw, name)}, name)


def find_model(raw: RawDevice, *names: str | None) -> Model | None:
    """The model's row, by PCI id where a source saw the bus, else by the first name that is in the table."""
    pci_id = anywhere(raw, "pci_id")
    if isinstance(pci_id, str) and (found := table.find(raw.vendor, pci_id=pci_id)) is not None:
        return found
    for name in names:
        if name is not None and (found := table.find(raw.vendor, name=name)) is not None:
            return found
    return None


def codec_engine(model: Model | None, engines: Engines) -> CodecEngine:
    """Engines by codec: every codec of the model's list, on each of the units that there are."""
    return CodecEngine(
        encoders=_by_codec(model.encode if model else (), engines.enc),
        decoders=_by_codec(model.decode if model else (), engines.dec),
        engines=engines,
    )


def _by_codec(codecs: Iterable[str], units: int | None) -> dict[str, int | None] | None:
    if units == 0:
        return {}
    return dict.fromkeys(codecs, units) or None


def model_engines(model: Model | None) -> Engines:
    """Engine counts of the model's row; all unknown without one."""
    if model is None:
        return Engines()
    return Engines(enc=model.enc, dec=model.dec, jpeg=model.jpeg, shared=model.shared)


def memory(model: Model | None, total_bytes: int | None, allocatable_bytes: int | None = None) -> Memory:
    """Memory as the tool measured it, else as the model is sold; bandwidth from the table."""
    total = total_bytes if total_bytes is not None else (model.memory_bytes if model else None)
    return Memory(
        total_bytes=total,
        allocatable_bytes=allocatable_bytes,
        bandwidth_bytes_per_s=model.bandwidth_bytes_per_s if model else None,
    )


def build(
    raw: RawDevice,
    node: str,
    *,
    device_type: DeviceType,
    name: str,
    model: Model | None,
    engines: Engines | None = None,
    device_memory: Memory | None = None,
    firmware: Firmware | None = None,
    capabilities: Iterable[str] = (),
    extensions: Mapping[str, str | None] | None = None,
) -> UnifiedDevice:
    """Put a unified device together.

    A partition takes no compute rate or bandwidth from the table: those are the whole device's.

    Raises:
        BadInput: vendor, address, partition or node is impossible; names the field.
    """
    check_node(node)
    pci = source(raw, "pci")
    whole = raw.partition is None
    bus = raw.bus_address if ":" in raw.bus_address else None
    path = pci.get("path")
    return UnifiedDevice(
        uid=device_uid(node, raw.key),
        key=raw.key,
        node=node,
        vendor=raw.vendor,
        type=device_type,
        model=name,
        serial=raw.serial,
        parent=raw.parent,
        compute_power=ComputePower(
            tflops_fp16=model.tflops_fp16 if model and whole else None,
            tops_int8=model.tops_int8 if model and whole else None,
        ),
        memory=device_memory or memory(model if whole else None, None),
        codec_engine=codec_engine(model, engines or (model_engines(model) if whole else Engines())),
        topology=Topology(
            bus_address=bus,
            numa_node=anywhere_count(raw, "numa_node"),
            pci_path=tuple(path) if isinstance(path, (list, tuple)) else None,
            link_generation_max=anywhere_count(raw, "link_generation_max"),
            link_width_max=anywhere_count(raw, "link_width_max"),
        ),
        firmware=firmware or Firmware(driver=text(pci, "driver_version")),
        capabilities=tuple(dict.fromkeys(capabilities)),
        vendor_extensions={key: value for key, value in (extensions or {}).items() if value is not None},
    )
