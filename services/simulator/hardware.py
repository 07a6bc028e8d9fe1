"""The hardware that simulated nodes are made of: models, devices and the default nodes.

A device is a frozen value: mutations (an error counter, a new serial in the slot) make a new value, and the
tree renders it again. Everything invented about a device (serial, UUID, power, temperature) follows from the
seed, the node and the slot, so one seed always gives one cluster.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from shared.errors import BadInput

Vendor = Literal["nvidia", "amd", "huawei"]
Condition = Literal["ok", "degraded", "dead"]
"""What work on the device feels: nothing, slow and dropping, or nothing at all comes back."""


@dataclass(frozen=True, slots=True)
class Model:
    """A product; PCI ids as in the PCI ID repository, sizes and power as on its data sheet.

    Attributes:
        name: as the vendor's tool prints it.
        subsystem: PCI subsystem device id.
        pci_class: 0x030200 is a 3D controller, 0x038000 a display controller, 0x120000 an accelerator.
        architecture: the name that the tool prints; the chip's line at AMD.
        engines: encoders and decoders, for nodes that are simulated without a device plugin.
    """

    name: str
    vendor: Vendor
    device_id: str
    subsystem: str
    pci_class: str
    memory_mib: int
    power_limit_w: int
    link_speed_gts: int
    link_width: int
    architecture: str
    driver: str
    encoders: int
    decoders: int


MODELS = {
    model.name: model
    for model in (
        Model("Tesla T4", "nvidia", "1eb8", "12a2", "030200", 15360, 70, 8, 16, "Turing", "525.147.05", 1, 2),
        Model(
            "NVIDIA L4",
            "nvidia",
            "27b8",
            "16ee",
            "030200",
            23034,
            72,
            16,
            16,
            "Ada Lovelace",
            "535.183.06",
            2,
            4,
        ),
        Model(
            "Instinct MI210", "amd", "740f", "0c34", "038000", 65520, 300, 16, 16, "Aldebaran", "6.7.0", 2, 2
        ),
        Model(
            "Instinct MI100", "amd", "738c", "0c34", "038000", 32752, 290, 16, 16, "Arcturus", "6.3.6", 2, 2
        ),
        Model("910B3", "huawei", "d802", "3400", "120000", 65536, 400, 16, 16, "Ascend", "24.1.rc3", 0, 2),
        Model("310P3", "huawei", "d500", "0100", "120000", 44280, 72, 16, 16, "Ascend", "24.1.rc3", 3, 12),
    )
}

PCI_VENDORS: dict[Vendor, str] = {"nvidia": "10de", "amd": "1002", "huawei": "19e5"}
KERNEL_DRIVERS: dict[Vendor, str] = {"nvidia": "nvidia", "amd": "amdgpu", "huawei": "devdrv_device_driver"}
"""The name that the driver link of a PCI device points to."""


def invented(*parts: object) -> str:
    """Thirty-two bytes as hex digits that follow from ``parts``; where the real world would throw dice."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Device:
    """One device in its slot, with what its counters and its tool say now.

    Attributes:
        bus_address: ``dddd:bb:dd.f``, lower case, as sysfs writes it.
        numa_node: -1 when the firmware does not say.
        correctable, uncorrectable: volatile memory errors since the last reset.
        lifetime_correctable, lifetime_uncorrectable: the same, never reset.
        present: False when it is out of its slot or off the bus.
        condition: what work on it feels.
    """

    model: Model
    slot: int
    bus_address: str
    numa_node: int
    serial: str
    uuid: str
    correctable: int = 0
    uncorrectable: int = 0
    lifetime_correctable: int = 0
    lifetime_uncorrectable: int = 0
    temperature_c: int = 41
    present: bool = True
    condition: Condition = "ok"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What one simulated node is made of.

    Attributes:
        models: one model name per slot.
        numa_nodes: slots are spread over them in order.
    """

    name: str
    models: tuple[str, ...]
    numa_nodes: int = 2
    seed: int = 1
    labels: tuple[tuple[str, str], ...] = ()

    def devices(self) -> tuple[Device, ...]:
        """The devices in slot order.

        Raises:
            BadInput: a model that nobody knows.
        """
        return tuple(device_in(self, slot) for slot in range(len(self.models)))


def device_in(spec: NodeSpec, slot: int, *, generation: int = 0, serial: str | None = None) -> Device:
    """The device that was put into ``slot`` as the ``generation``-th one, or one with a given serial."""
    name = spec.models[slot]
    if name not in MODELS:
        raise BadInput("models", f"{name!r} is not simulated", f"write one of {', '.join(sorted(MODELS))}")
    model = MODELS[name]
    noise = invented(spec.seed, spec.name, slot, generation, serial)
    numa_node = slot * spec.numa_nodes // len(spec.models)
    # One root port per device, buses far apart, as on a two-socket server.
    bus = 0x3B + 0x23 * slot if slot < 5 else 0x05 + slot  # noqa: PLR2004 - five such buses fit below 0xff
    return Device(
        model=model,
        slot=slot,
        bus_address=f"0000:{bus:02x}:00.0",
        numa_node=numa_node,
        serial=serial or _serial(model, noise),
        uuid=_uuid(model, noise),
        temperature_c=38 + int(noise[40:42], 16) % 9,
    )


def _serial(model: Model, noise: str) -> str:
    digits = str(int(noise[:15], 16))
    if model.vendor == "nvidia":
        return f"13{digits[:11]:0>11}"
    if model.vendor == "amd":
        return f"69{digits[:10]:0>10}"
    return f"1023{noise[:12].upper()}"


def _uuid(model: Model, noise: str) -> str:
    plain = f"{noise[:8]}-{noise[8:12]}-{noise[12:16]}-{noise[16:20]}-{noise[20:32]}"
    if model.vendor == "nvidia":
        return f"GPU-{plain}"
    if model.vendor == "amd":
        return f"0x{noise[:16]}"
    return " ".join(noise[i : i + 8].upper() for i in range(0, 40, 8))


def demo_nodes(seed: int = 1) -> tuple[NodeSpec, ...]:
    """Three nodes of three vendors, two devices each; the seed chooses between two models of each vendor."""
    choices = (("NVIDIA L4", "Tesla T4"), ("Instinct MI210", "Instinct MI100"), ("310P3", "910B3"))
    return tuple(
        NodeSpec(
            name=f"worker-{index}", models=(pair[int(invented(seed, index)[:2], 16) % 2],) * 2, seed=seed
        )
        for index, pair in enumerate(choices, start=1)
    )


def fleet_nodes(count: int, *, devices: int = 1, seed: int = 1) -> tuple[NodeSpec, ...]:
    """``count`` alike nodes, for scale."""
    return tuple(
        NodeSpec(name=f"node-{i:04d}", models=("NVIDIA L4",) * devices, seed=seed) for i in range(count)
    )
