"""NVIDIA GPUs and their MIG partitions, from `nvidia-smi -q -x` and sysfs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.devices.model import Engines, Firmware, RawDevice, UnifiedDevice
from shared.vendors.runtime import RuntimeSpec, engine_env, nodes, numa_annotations
from shared.vendors.translate import build, count, find_model, memory, model_engines, source, text

VENDOR = "nvidia"
_CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


def translate(raw: RawDevice, node: str) -> UnifiedDevice:
    """The unified form of a GPU or MIG device.

    A MIG device's engines are the driver's own counts; a GPU's come from the model table, because no tool
    prints them.

    Raises:
        BadInput: the raw device cannot be identified; names the field.
    """
    smi, pci = source(raw, "nvidia-smi"), source(raw, "pci")
    product = text(smi, "product_name")
    model = find_model(raw, product)
    engines = model_engines(model)
    if raw.partition is not None:
        engines = Engines(
            enc=count(smi, "encoder_count"), dec=count(smi, "decoder_count"), jpeg=count(smi, "jpg_count")
        )
    total, reserved = count(smi, "fb_memory_total_bytes"), count(smi, "fb_memory_reserved_bytes")
    allocatable = (
        total - reserved if total is not None and reserved is not None and reserved <= total else None
    )
    cuda = text(smi, "cuda_version")
    return build(
        raw,
        node,
        device_type="GPU",
        name=product or (model.model if model else f"NVIDIA {text(pci, 'pci_id') or 'device'}"),
        model=model,
        engines=engines,
        device_memory=memory(model if raw.partition is None else None, total, allocatable),
        firmware=Firmware(
            driver=text(smi, "driver_version") or text(pci, "driver_version"),
            firmware=text(smi, "gsp_firmware_version"),
            vbios=text(smi, "vbios_version"),
        ),
        capabilities=[
            *([f"cuda-{cuda}"] if cuda else []),
            *([f"nvenc-{engines.enc}"] if engines.enc else []),
            *([f"nvdec-{engines.dec}"] if engines.dec else []),
            *(["mig"] if text(smi, "mig_mode") == "Enabled" else []),
        ],
        extensions={
            "nvidia.uuid": text(smi, "uuid"),
            "nvidia.minor": _decimal(count(smi, "minor_number")),
            "nvidia.architecture": text(smi, "product_architecture"),
            "mig.enabled": "true" if text(smi, "mig_mode") == "Enabled" else None,
            "mig.uuid": text(smi, "mig_uuid"),
            "mig.gpu-instance": _decimal(count(smi, "gpu_instance_id")),
            "mig.compute-instance": _decimal(count(smi, "compute_instance_id")),
        },
    )


def runtime_spec(device: UnifiedDevice, engines: Sequence[str], root: Path) -> RuntimeSpec:
    """One visible device, by UUID where it is known (the MIG device's own, never beside its parent's).

    The container toolkit takes the first of two values of NVIDIA_VISIBLE_DEVICES, at random; so there is one.
    A MIG device whose UUID the driver did not print is named ``<GPU uuid>/<gpu instance>/<compute
    instance>``, the form that the toolkit takes as well.

    Raises:
        BadInput: an id is no engine of the device.
    """
    extra = device.vendor_extensions
    minor = extra.get("nvidia.minor")
    video = "compute,video,utility"
    return RuntimeSpec(
        env={
            "NVIDIA_VISIBLE_DEVICES": _visible(device),
            "NVIDIA_DRIVER_CAPABILITIES": video,
            **engine_env(device, engines),
        },
        device_nodes=nodes(root, [*([f"/dev/nvidia{minor}"] if minor else []), *_CONTROL_NODES]),
        annotations=numa_annotations(device),
    )


def _visible(device: UnifiedDevice) -> str:
    extra = device.vendor_extensions
    uuid, mig = extra.get("nvidia.uuid"), extra.get("mig.uuid")
    if device.parent is None:
        return uuid or device.topology.bus_address or "void"
    if mig is not None:
        return mig
    instances = extra.get("mig.gpu-instance"), extra.get("mig.compute-instance")
    return f"MIG-{uuid}/{instances[0]}/{instances[1]}" if uuid and None not in instances else "void"


def _decimal(value: int | None) -> str | None:
    return None if value is None else str(value)
