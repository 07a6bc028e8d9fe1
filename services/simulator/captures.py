"""What the vendors' tools print, rendered from simulated devices.

The shapes are those of `nvidia-smi -q -x` (document types v11 and v12), `rocm-smi --showallinfo --json` and
`npu-smi info` (one chip a card); every value is made up. Pure: the same devices give the same text.
"""

from __future__ import annotations

import json
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeAlias
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from services.simulator.hardware import PCI_VENDORS, Device, invented

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_V12_DRIVER = 530
"""Drivers from this branch on print the v12 document type (power and throttle sections have other names)."""

Section: TypeAlias = "Mapping[str, str | Section]"


def nvidia_smi_xml(devices: Sequence[Device]) -> str:
    """`nvidia-smi -q -x` over the present devices."""
    driver = devices[0].model.driver if devices else "535.183.06"
    recent = int(driver.split(".")[0]) >= _V12_DRIVER
    root = Element("nvidia_smi_log")
    _fill(
        root,
        {
            "timestamp": "Thu Jan  1 00:00:00 2026",
            "driver_version": driver,
            "cuda_version": "12.2" if recent else "12.0",
            "attached_gpus": str(len(devices)),
        },
    )
    for device in devices:
        gpu = SubElement(root, "gpu", id=f"0000{device.bus_address.upper()}")
        _fill(gpu, _nvidia_gpu(device, recent=recent))
    indent(root, space="\t")
    version = "v12" if recent else "v11"
    head = f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{version}.dtd">\n'
    return head + tostring(root, encoding="unicode") + "\n"


def _fill(parent: Element, section: Section) -> None:
    for tag, value in section.items():
        child = SubElement(parent, tag)
        if isinstance(value, str):
            child.text = value
        else:
            _fill(child, value)


def _nvidia_gpu(device: Device, *, recent: bool) -> Section:
    model = device.model
    domain, bus, rest = device.bus_address.upper().split(":")
    reserved, used = 320 + model.memory_mib // 90, 4
    generation = str({8: 3, 16: 4}.get(model.link_speed_gts, 5))
    return {
        "product_name": model.name,
        "product_brand": "NVIDIA",
        "product_architecture": model.architecture,
        "display_mode": "Disabled",
        "display_active": "Disabled",
        "persistence_mode": "Enabled",
        "mig_mode": {"current_mig": "N/A", "pending_mig": "N/A"},
        "mig_devices": "\n\t\t\tNone\n\t\t",
        "accounting_mode": "Disabled",
        "accounting_mode_buffer_size": "4000",
        "driver_model": {"current_dm": "N/A", "pending_dm": "N/A"},
        "serial": device.serial,
        "uuid": device.uuid,
        "minor_number": str(device.slot),
        "vbios_version": "95.04.29.00.06" if recent else "90.04.96.00.9f",
        "multigpu_board": "No",
        "board_id": hex(int(bus, 16) << 8),
        "gpu_part_number": "900-2G193-0000-001" if recent else "900-2G183-0000-001",
        "inforom_version": {
            "img_version": "G193.0200.00.01",
            "oem_object": "2.1",
            "ecc_object": "6.16",
            "pwr_object": "N/A",
        },
        "gpu_operation_mode": {"current_gom": "N/A", "pending_gom": "N/A"},
        "gsp_firmware_version": model.driver if recent else "N/A",
        "gpu_virtualization_mode": {"virtualization_mode": "None", "host_vgpu_mode": "N/A"},
        "ibmnpu": {"relaxed_ordering_mode": "N/A"},
        "pci": {
            "pci_bus": bus,
            "pci_device": rest.split(".")[0],
            "pci_domain": domain,
            "pci_device_id": f"{model.device_id.upper()}10DE",
            "pci_bus_id": f"0000{device.bus_address.upper()}",
            "pci_sub_system_id": f"{model.subsystem.upper()}10DE",
            "pci_gpu_link_info": {
                "pcie_gen": {"max_link_gen": generation, "current_link_gen": generation},
                "link_widths": {
                    "max_link_width": f"{model.link_width}x",
                    "current_link_width": f"{model.link_width}x",
                },
            },
            "pci_bridge_chip": {"bridge_chip_type": "N/A", "bridge_chip_fw": "N/A"},
            "replay_counter": "0",
            "replay_rollover_counter": "0",
            "tx_util": "0 KB/s",
            "rx_util": "0 KB/s",
        },
        "fan_speed": "N/A",
        "performance_state": "P0",
        ("clocks_event_reasons" if recent else "clocks_throttle_reasons"): _clock_reasons(recent=recent),
        "fb_memory_usage": {
            "total": f"{model.memory_mib} MiB",
            "reserved": f"{reserved} MiB",
            "used": f"{used} MiB",
            "free": f"{model.memory_mib - reserved - used} MiB",
        },
        "bar1_memory_usage": {"total": "32768 MiB", "used": "1 MiB", "free": "32767 MiB"},
        "compute_mode": "Default",
        "utilization": {"gpu_util": "0 %", "memory_util": "0 %", "encoder_util": "0 %", "decoder_util": "0 %"}
        | ({"jpeg_util": "0 %", "ofa_util": "0 %"} if recent else {}),
        "encoder_stats": {"session_count": "0", "average_fps": "0", "average_latency": "0"},
        "fbc_stats": {"session_count": "0", "average_fps": "0", "average_latency": "0"},
        "ecc_mode": {"current_ecc": "Enabled", "pending_ecc": "Enabled"},
        "ecc_errors": {
            "volatile": _ecc(device.correctable, device.uncorrectable),
            "aggregate": _ecc(device.lifetime_correctable, device.lifetime_uncorrectable),
        },
        "retired_pages": {
            "multiple_single_bit_retirement": {"retired_count": "N/A", "retired_pagelist": "N/A"},
            "double_bit_retirement": {"retired_count": "N/A", "retired_pagelist": "N/A"},
            "pending_blacklist": "N/A",
            "pending_retirement": "N/A",
        },
        "remapped_rows": "N/A",
        "temperature": {
            "gpu_temp": f"{device.temperature_c} C",
            "gpu_temp_max_threshold": "96 C",
            "gpu_temp_slow_threshold": "93 C",
            "gpu_temp_max_gpu_threshold": "85 C",
            "gpu_target_temperature": "N/A",
            "memory_temp": "N/A",
            "gpu_temp_max_mem_threshold": "N/A",
        },
        ("gpu_power_readings" if recent else "power_readings"): _power(device, recent=recent),
        "clocks": {
            "graphics_clock": "885 MHz",
            "sm_clock": "885 MHz",
            "mem_clock": "5000 MHz",
            "video_clock": "1065 MHz",
        },
        "max_clocks": {
            "graphics_clock": "1590 MHz",
            "sm_clock": "1590 MHz",
            "mem_clock": "5001 MHz",
            "video_clock": "1470 MHz",
        },
        "processes": "",
        "accounted_processes": "",
    }


def _clock_reasons(*, recent: bool) -> Section:
    word = "event" if recent else "throttle"
    reasons = (
        "gpu_idle",
        "applications_clocks_setting",
        "sw_power_cap",
        "hw_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
        "sync_boost",
        "sw_thermal_slowdown",
        "display_clocks_setting",
    )
    return {f"clocks_{word}_reason_{name}": "Not Active" for name in reasons}


def _ecc(correctable: int, uncorrectable: int) -> Section:
    return {
        "sram_correctable": "0",
        "sram_uncorrectable": "0",
        "dram_correctable": str(correctable),
        "dram_uncorrectable": str(uncorrectable),
    }


def _power(device: Device, *, recent: bool) -> Section:
    limit = f"{device.model.power_limit_w}.00 W"
    draw = f"{device.model.power_limit_w * 0.37:.2f} W"
    if recent:
        limits = {"current_power_limit": limit, "requested_power_limit": limit}
        state = {"power_state": "P0", "power_draw": draw}
    else:
        limits = {"power_limit": limit, "enforced_power_limit": limit}
        state = {"power_state": "P0", "power_management": "Supported", "power_draw": draw}
    return (
        state
        | limits
        | {"default_power_limit": limit, "min_power_limit": "40.00 W", "max_power_limit": limit}
    )


def rocm_smi_json(devices: Sequence[Device]) -> str:
    """`rocm-smi --showallinfo --json` over the present devices."""
    answer: dict[str, Any] = {f"card{device.slot}": _rocm_card(device) for device in devices}
    system = {"Driver version": devices[0].model.driver if devices else "6.7.0"}
    for one, other in combinations(devices, 2):
        pair = f"between DRM devices {one.slot} and {other.slot}"
        system |= {
            f"(Topology) Weight {pair}": "40",
            f"(Topology) Hops {pair}": "2",
            f"(Topology) Link type {pair}": "PCIE",
        }
    answer["system"] = system
    return json.dumps(answer) + "\n"


def _rocm_card(device: Device) -> dict[str, str]:
    model, vram_bytes = device.model, device.model.memory_mib << 20
    link = f"{model.link_speed_gts}.0GT/s x{model.link_width}"
    return {
        "Device ID": f"0x{model.device_id}",
        "Device Rev": "0x2",
        "Unique ID": device.uuid,
        "VBIOS version": "113-D67301-063",
        "Temperature (Sensor edge) (C)": f"{device.temperature_c}.0",
        "Temperature (Sensor junction) (C)": f"{device.temperature_c + 3}.0",
        "Temperature (Sensor memory) (C)": f"{device.temperature_c + 1}.0",
        "mclk clock speed:": "(1600Mhz)",
        "mclk clock level:": "0",
        "sclk clock speed:": "(800Mhz)",
        "sclk clock level:": "0",
        "pcie clock level": f"0 ({link})",
        "Performance Level": "auto",
        "GPU OverDrive value (%)": "0",
        "Max Graphics Package Power (W)": f"{model.power_limit_w}.0",
        "Average Graphics Package Power (W)": "41.0",
        "0": f"{link} *",
        "1": "800Mhz",
        "2": "1600Mhz",
        "GPU use (%)": "0",
        "GPU memory use (%)": "0",
        "Memory Activity": "N/A",
        "GPU memory vendor": "hynix",
        "PCIe Replay Count": "0",
        "Serial Number": device.serial,
        "Voltage (mV)": "793",
        "PCI Bus": device.bus_address.upper(),
        "VRAM Total Memory (B)": str(vram_bytes),
        "VRAM Total Used Memory (B)": "11005952",
        "VIS_VRAM Total Memory (B)": str(vram_bytes),
        "VIS_VRAM Total Used Memory (B)": "11005952",
        "GTT Total Memory (B)": "134990966784",
        "GTT Total Used Memory (B)": "10973184",
        "SMC firmware version": "00.68.59.00",
        "VCN firmware version": "0x0110101b",
        "Card series": f"{model.architecture} [{model.name}]",
        "Card model": f"0x{model.subsystem}",
        "Card vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
        "Card SKU": "D67301",
        "(Topology) Numa Node": str(device.numa_node),
        "(Topology) Numa Affinity": str(device.numa_node),
    }


_NPU_HEALTH = {"ok": "OK", "degraded": "Warning", "dead": "Alarm"}


def npu_smi_text(devices: Sequence[Device]) -> str:
    """`npu-smi info` over the present devices; inference chips have a wider table without an HBM column."""
    version = devices[0].model.driver if devices else "24.1.rc3"
    inference = any(device.model.name.startswith("310") for device in devices)
    widths = (31, 17, 54) if inference else (27, 15, 52)
    edge = f"+{'-' * (sum(widths) + 2)}+"
    rule, bar = ("+" + "+".join(mark * width for width in widths) + "+" for mark in "-=")
    if inference:
        heads = [
            ("NPU     Name", "Health", "Power(W)     Temp(C)           Hugepages-Usage(page)"),
            ("Chip    Device", "Bus-Id", "AICore(%)    Memory-Usage(MB)"),
        ]
    else:
        heads = [
            ("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)"),
            ("Chip", "Bus-Id", "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)"),
        ]
    banner = (
        f"npu-smi {version:<41}Version: {version}"
        if inference
        else f"npu-smi {version:<25}Version: {version}"
    )
    lines = [edge, f"| {banner:<{sum(widths)}} |", rule, *(_npu_row(head, widths) for head in heads), bar]
    for device in devices:
        cells = _npu_inference(device) if inference else _npu_training(device)
        lines += [*(_npu_row(row, widths) for row in cells), bar]
    processes = ("NPU     Chip", "Process id", f"{'Process name':<24} | Process memory(MB)")
    lines += [rule, _npu_row(processes, widths), bar]
    for device in devices:
        lines += [f"| {f'No running processes found in NPU {device.slot}':<{sum(widths)}} |", bar]
    return "\n".join(lines) + "\n"


def _npu_row(cells: tuple[str, str, str], widths: tuple[int, int, int]) -> str:
    # The last cell fills its column to the edge: some of its texts leave no blank before it.
    first, second, third = widths
    return f"| {cells[0]:<{first - 1}}| {cells[1]:<{second - 1}}| {cells[2]:<{third - 1}}|"


def _npu_used_mb(device: Device) -> int:
    return 1300 + int(invented(device.serial)[:3], 16) // 4


def _npu_training(device: Device) -> list[tuple[str, str, str]]:
    model, watts = device.model, f"{device.model.power_limit_w * 0.24:.1f}"
    return [
        (
            f"{device.slot:<6}{model.name}",
            _NPU_HEALTH[device.condition],
            f"{watts:<12}{device.temperature_c:<18}0    / 0",
        ),
        (
            "0",
            device.bus_address.upper(),
            f"{'0':<12}{'0    / 0':<18}{_npu_used_mb(device):<5}/ {model.memory_mib}",
        ),
    ]


def _npu_inference(device: Device) -> list[tuple[str, str, str]]:
    return [
        (
            f"{device.slot:<8}{device.model.name}",
            _NPU_HEALTH[device.condition],
            f"{'NA':<13}{device.temperature_c:<18}0     / 0",
        ),
        (
            f"0       {device.slot}",
            device.bus_address.upper(),
            f"{'0':<13}{_npu_used_mb(device):<5}/ {device.model.memory_mib}",
        ),
    ]


def npu_smi_board_text(device: Device) -> str:
    """`npu-smi info -t board -i N`: where the serial number of a card is printed."""
    fields = {
        "NPU ID": str(device.slot),
        "Software Version": device.model.driver,
        "Firmware Version": "7.5.0.1.129",
        "Compatibility": "OK",
        "Board ID": "0x65",
        "PCB ID": "A",
        "BOM ID": "1",
        "PCIe Bus Info": device.bus_address.upper(),
        "Slot ID": str(device.slot),
        "Class ID": "NA",
        "PCI Vendor ID": f"0x{PCI_VENDORS['huawei'].upper()}",
        "PCI Device ID": f"0x{device.model.device_id.upper()}",
        "Subsystem Vendor ID": f"0x{PCI_VENDORS['huawei'].upper()}",
        "Subsystem Device ID": f"0x{device.model.subsystem}",
        "Serial Number": device.serial,
        "Chip Count": "1",
    }
    return "".join(f"\t{name:<31}: {value}\n" for name, value in fields.items())


def npu_smi_ecc_text(device: Device) -> str:
    """`npu-smi info -t ecc -i N`: memory error counters of a card."""
    rows = (
        ("NPU ID", device.slot),
        ("Chip ID", 0),
        ("HBM Single Bit Error Count", device.correctable),
        ("HBM Double Bit Error Count", device.uncorrectable),
        ("HBM Single Bit Aggregate Total Err Cnt", device.lifetime_correctable),
        ("HBM Double Bit Aggregate Total Err Cnt", device.lifetime_uncorrectable),
    )
    return "".join(f"\t{name:<47}: {value}\n" for name, value in rows)
