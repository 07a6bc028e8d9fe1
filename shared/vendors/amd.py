"""AMD GPUs, from `rocm-smi --json` and sysfs. A video unit (VCN) may encode and decode: still one engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.devices.model import Firmware, RawDevice, UnifiedDevice
from shared.vendors.runtime import RuntimeSpec, engine_env, nodes, numa_annotations, render_nodes
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

VENDOR = "amd"


def translate(raw: RawDevice, node: str) -> UnifiedDevice:
    """The unified form of an AMD GPU.

    Raises:
        BadInput: the raw device cannot be identified; names the field.
    """
    smi, pci = source(raw, "rocm-smi"), source(raw, "pci")
    series = text(smi, "Card series")
    model = find_model(raw, series, text(smi, "Card model"))
    engines = model_engines(model)
    rocm = text(smi, "ROCm version")
    return build(
        raw,
        node,
        device_type="GPU",
        name=model.model if model else (series or f"AMD {text(pci, 'pci_id') or 'device'}"),
        model=model,
        engines=engines,
        device_memory=memory(
            model, count(smi, "VRAM Total Memory (B)") or anywhere_count(raw, "memory_total_bytes")
        ),
        firmware=Firmware(
            driver=text(smi, "Driver version") or text(pci, "driver_version"),
            firmware=text(smi, "SMC firmware version"),
            vbios=text(smi, "VBIOS version"),
        ),
        capabilities=[
            *([f"rocm-{rocm}"] if rocm else []),
            *([f"vcn-{engines.dec}"] if engines.dec else []),
        ],
        extensions={"amd.unique-id": text(smi, "Unique ID"), "amd.sku": text(smi, "Card SKU")},
    )


def runtime_spec(device: UnifiedDevice, engines: Sequence[str], root: Path) -> RuntimeSpec:
    """The compute interface and this card's own render node.

    Raises:
        BadInput: an id is no engine of the device.
    """
    own = render_nodes(device, root, ("renderD", "card"))
    return RuntimeSpec(
        env=engine_env(device, engines),
        device_nodes=nodes(root, ["/dev/kfd", *own]),
        annotations=numa_annotations(device),
    )
