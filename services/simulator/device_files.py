"""What the kernel shows of a device: attributes in sysfs, names of its classes, nodes under dev/. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from services.simulator.hardware import PCI_VENDORS

if TYPE_CHECKING:
    from services.simulator.hardware import Device, Vendor

COMMON_NODES: Final[dict[Vendor, tuple[str, ...]]] = {
    "nvidia": ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"),
    "amd": ("kfd",),
    "huawei": ("davinci_manager", "devmm_svm", "hisi_hdc"),
}
"""Nodes under dev/ that a driver has once."""
_FIRST_RENDER_NODE: Final = 128


def pci_attributes(device: Device) -> dict[str, str]:
    """Files of the device's PCI directory."""
    model, vendor = device.model, device.model.vendor
    attributes = {
        "vendor": f"0x{PCI_VENDORS[vendor]}",
        "device": f"0x{model.device_id}",
        "class": f"0x{model.pci_class}",
        "revision": "0xa1",
        "subsystem_vendor": f"0x{PCI_VENDORS[vendor]}",
        "subsystem_device": f"0x{model.subsystem}",
        "numa_node": str(device.numa_node),
        "current_link_speed": f"{model.link_speed_gts}.0 GT/s PCIe",
        "current_link_width": str(model.link_width),
        "max_link_speed": f"{model.link_speed_gts}.0 GT/s PCIe",
        "max_link_width": str(model.link_width),
        "enable": "1",
    }
    if vendor == "amd":
        attributes |= {
            "unique_id": device.uuid.removeprefix("0x"),
            "serial_number": device.serial,
            "mem_info_vram_total": str(model.memory_mib << 20),
        }
    return attributes


def class_entries(device: Device) -> dict[str, dict[str, str]]:
    """Directories under sys/class, each with the attributes it has besides its link to the device."""
    if device.model.vendor == "huawei":
        return {
            f"npu/npu{device.slot}": {
                "model": device.model.name,
                "memory_total": str(device.model.memory_mib << 20),
                "firmware_version": "7.5.0.1.129",
                "numa_node": str(device.numa_node),
                "serial": device.serial,
            }
        }
    return {f"drm/card{device.slot}": {}, f"drm/renderD{_FIRST_RENDER_NODE + device.slot}": {}}


def nodes(device: Device) -> tuple[str, ...]:
    """The device's own nodes under dev/."""
    if device.model.vendor == "huawei":
        return (f"davinci{device.slot}",)
    rendering = (f"dri/card{device.slot}", f"dri/renderD{_FIRST_RENDER_NODE + device.slot}")
    return (f"nvidia{device.slot}", *rendering) if device.model.vendor == "nvidia" else rendering
