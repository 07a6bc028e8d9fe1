"""Huawei Ascend NPUs, from `npu-smi info` and sysfs. A card of two chips is a device with two children."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.devices.model import Firmware, RawDevice, UnifiedDevice
from shared.vendors.runtime import RuntimeSpec, engine_env, mounts, nodes, numa_annotations
from shared.vendors.translate import (
    anywhere_count,
    build,
    count,
    find_model,
    memory,
    model_engines,
    source,
    text,
)

VENDOR = "huawei"
_CONTROL_NODES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_DRIVER_PATHS = (
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/etc/ascend_install.info",
)


def translate(raw: RawDevice, node: str) -> UnifiedDevice:
    """The unified form of an NPU, of a card of several chips, or of one of its chips.

    Raises:
        BadInput: the raw device cannot be identified; names the field.
    """
    smi, pci, sysfs = source(raw, "npu-smi"), source(raw, "pci"), source(raw, "sysfs")
    name = text(smi, "name") or text(sysfs, "model")
    model = find_model(raw, name)
    chip = raw.partition is not None and raw.partition.startswith("chip-")
    carrier = (count(smi, "chip_count") or 1) > 1 and not chip
    engines = None if carrier else model_engines(model)
    device = count(smi, "device_id")
    title = model.model if model else f"Huawei {text(pci, 'pci_id') or 'device'}"
    if name:
        title = f"Ascend {name} card" if carrier else f"Ascend {name}"
    return build(
        raw,
        node,
        device_type="NPU",
        name=title,
        model=None if carrier else model,
        engines=engines,
        device_memory=memory(None if carrier else model, anywhere_count(raw, "memory_total_bytes")),
        firmware=Firmware(
            driver=text(smi, "software_version") or text(pci, "driver_version"),
            firmware=text(smi, "firmware_version") or text(sysfs, "firmware_version"),
        ),
        extensions={
            "ascend.npu-id": None if (npu := count(smi, "npu_id")) is None else str(npu),
            "ascend.chip-id": None if (chip_id := count(smi, "chip_id")) is None else str(chip_id),
            "ascend.device-id": None if device is None else str(device),
        },
    )


def runtime_spec(device: UnifiedDevice, engines: Sequence[str], root: Path) -> RuntimeSpec:
    """The chip's davinci node, the shared control nodes and the driver's files, read-only.

    Raises:
        BadInput: an id is no engine of the device.
    """
    number = device.vendor_extensions.get("ascend.device-id")
    env = {"NPU_DEVICE_ID": device.key, **engine_env(device, engines)}
    if number is not None:
        env["ASCEND_VISIBLE_DEVICES"] = number
    if device.memory.total_bytes is not None:
        env["NPU_MEMORY_TOTAL"] = str(device.memory.total_bytes)
    if device.compute_power.tops_int8 is not None:
        env["NPU_COMPUTE_TOPS"] = f"{device.compute_power.tops_int8:g}"
    return RuntimeSpec(
        env=env,
        device_nodes=nodes(
            root, [*([f"/dev/davinci{number}"] if number is not None else []), *_CONTROL_NODES]
        ),
        mounts=mounts(root, _DRIVER_PATHS),
        annotations=numa_annotations(device),
    )
