"""Small host trees, written by hand."""

from pathlib import Path

T4 = {
    "vendor": "0x10de",
    "device": "0x1eb8",
    "class": "0x030200",
    "numa_node": "1",
    "max_link_speed": "8.0 GT/s PCIe",
    "max_link_width": "16",
    "current_link_speed": "2.5 GT/s PCIe",
    "current_link_width": "16",
}
MI210 = {
    "vendor": "0x1002",
    "device": "0x740f",
    "class": "0x038000",
    "numa_node": "0",
    "unique_id": "aa11",
    "serial_number": "PCB7",
    "mem_info_vram_total": "68702699520",
}
NPU = {"vendor": "0x19e5", "device": "0xd802", "class": "0x120000", "numa_node": "-1"}


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{text}\n", encoding="utf-8")


def pci(root: Path, address: str, attributes: dict[str, str], driver: str | None = None) -> Path:
    directory = root / "sys/bus/pci/devices" / address
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in attributes.items():
        write(directory, name, text)
    if driver:
        (directory / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    return directory


def tool(root: Path, name: str, script: str) -> Path:
    path = root / "usr/bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path
