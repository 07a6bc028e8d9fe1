"""Devices known only from sysfs: Intel, Cambricon and Hygon by PCI id, anything else by its class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.devices.model import DeviceType, RawDevice, UnifiedDevice
from shared.vendors.runtime import RuntimeSpec, engine_env, nodes, numa_annotations, render_nodes
from shared.vendors.translate import build, count, find_model, memory, source, text

_ACCELERATOR_CLASS = "12"
"""PCI base class of processing accelerators."""


def translate(raw: RawDevice, node: str) -> UnifiedDevice:
    """The unified form of a device that has no tool: what its class and PCI id say, the rest unknown.

    Raises:
        BadInput: the raw device cannot be identified; names the field.
    """
    pci, sysfs = source(raw, "pci"), source(raw, "sysfs")
    model = find_model(raw, text(sysfs, "model"))
    label = text(sysfs, "model") or text(pci, "pci_id") or raw.bus_address
    return build(
        raw,
        node,
        device_type=_type(raw),
        name=model.model if model else f"{raw.vendor} {label}",
        model=model,
        device_memory=memory(model, count(sysfs, "memory_total_bytes")),
        extensions={"sysfs.name": text(sysfs, "name"), "pci.driver": text(pci, "driver")},
    )


def runtime_spec(device: UnifiedDevice, engines: Sequence[str], root: Path) -> RuntimeSpec:
    """The device's own file: its one render node, else the file named as sysfs names it.

    Media programs that open the first render node they see get the right one, because it is the only one.

    Raises:
        BadInput: an id is no engine of the device.
    """
    name = device.vendor_extensions.get("sysfs.name")
    own = render_nodes(device, root)[:1] or ((f"/dev/{name}", f"/dev/accel/{name}") if name else ())
    env = {"NPU_DEVICE_ID": device.key} if device.type == "NPU" else {}
    if env and device.memory.total_bytes is not None:
        env["NPU_MEMORY_TOTAL"] = str(device.memory.total_bytes)
    return RuntimeSpec(
        env={**env, **engine_env(device, engines)},
        device_nodes=nodes(root, own),
        annotations=numa_annotations(device),
    )


def _type(raw: RawDevice) -> DeviceType:
    sysfs, pci = source(raw, "sysfs"), source(raw, "pci")
    group = text(sysfs, "class")
    if group == "fpga_manager":
        return "FPGA"
    if group in ("npu", "accel") or raw.vendor == "cambricon":
        return "NPU"
    if group == "vpu":
        return "VPU"
    pci_class = text(pci, "class") or ""
    if pci_class.startswith(_ACCELERATOR_CLASS) and raw.vendor not in ("hygon", "intel"):
        return "NPU"
    return "GPU"
