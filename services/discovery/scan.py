"""Find devices in a host's file tree: PCI and class directories of sysfs, nothing else.

It works on any root directory, so a captured tree is as good as a host. What is missing or cannot be read is
a problem in a list, never a failure: a host with one broken attribute still has its other devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shared.devices.keys import device_key, normalise_bus_address
from shared.devices.model import RawDevice
from shared.devices.readings import Readings
from shared.errors import BadInput
from shared.vendors import table
from shared.vendors.captures.figures import identity, known

VENDORS: Final = {
    "10de": "nvidia",
    "1002": "amd",
    "8086": "intel",
    "19e5": "huawei",
    "cabc": "cambricon",
    "1d94": "hygon",
}
"""PCI vendor ids of the makers that have an adapter or a name of their own."""

CLASSES: Final = ("npu", "accel", "fpga_manager")
"""Directories of /sys/class whose entries are accelerators."""

_DISPLAY, _ACCELERATOR = "03", "12"
_ONLY_ACCELERATORS = frozenset({"huawei"})
"""Makers whose display class is the server's own console chip (Huawei's BMC), no device of ours."""

_GENERATIONS: Final = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_SMALLEST_MEMORY_BYTES = 2**24
"""`memory_total` is in MB in some drivers and in bytes in others; no accelerator has less than 16 MiB."""
_LARGEST_ATTRIBUTE_BYTES = 4096
"""A sysfs attribute is at most one page."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be read or believed."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Scan:
    """What a host's file tree shows."""

    devices: tuple[RawDevice, ...]
    problems: tuple[Problem, ...]


@dataclass
class Files:
    """Reads small files under a root and remembers what could not be read."""

    root: Path
    problems: list[Problem] = field(default_factory=list)

    def text(self, path: Path, *, needed: bool = False) -> str | None:
        """The attribute's text; None when it is absent (a problem only if ``needed``) or unreadable."""
        try:
            with path.open("rb") as file:
                raw = file.read(_LARGEST_ATTRIBUTE_BYTES)
        except FileNotFoundError:
            if needed:
                self.problem(path, "is missing")
            return None
        except OSError as error:
            self.problem(path, f"cannot be read ({error.strerror})")
            return None
        return known(raw.decode("utf-8", "replace"))

    def count(self, path: Path) -> int | None:
        """A whole number, 0 or more; -1 is the kernel's "not known"."""
        text = self.text(path)
        if text is None or text == "-1":
            return None
        if not re.fullmatch(r"[0-9]{1,18}", text):
            self.problem(path, f"{text[:40]!r} is no count; taken as unknown")
            return None
        return int(text)

    def entries(self, path: Path) -> list[Path]:
        """Entries of a directory in order; empty when it is absent."""
        try:
            return sorted(path.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            self.problem(path, f"cannot be listed ({error.strerror})")
            return []

    def target(self, path: Path) -> str | None:
        """Last part of where a link points, whether or not that exists."""
        try:
            return path.readlink().name
        except OSError:
            return None

    def problem(self, path: Path, what: str) -> None:
        """Note a problem under the path as seen from the root."""
        self.problems.append(Problem(str(path.relative_to(self.root)), what))


def scan(root: Path) -> Scan:
    """All accelerators that sysfs under ``root`` shows."""
    files = Files(root)
    found: dict[str, RawDevice] = {}
    for directory in files.entries(root / "sys/bus/pci/devices"):
        device = _pci(files, directory)
        if device is not None:
            found[device.bus_address] = device
    for group in CLASSES:
        for directory in files.entries(root / "sys/class" / group):
            _class(files, group, directory, found)
    return Scan(tuple(found.values()), tuple(files.problems))


def _pci(files: Files, directory: Path) -> RawDevice | None:
    """A PCI device, when it is an accelerator."""
    vendor_id, device_id = _hex(files, directory / "vendor"), _hex(files, directory / "device")
    pci_class = _hex(files, directory / "class")
    if vendor_id is None or device_id is None:
        return None
    vendor = VENDORS.get(vendor_id, "generic")
    pci_id = f"{vendor_id}:{device_id}"
    if not _accelerates(vendor, pci_class, pci_id):
        return None
    try:
        address = normalise_bus_address(directory.name)
    except BadInput as error:
        files.problem(directory, str(error))
        return None
    driver = files.target(directory / "driver")
    facts: dict[str, object] = {
        "pci_id": pci_id,
        "class": pci_class,
        "driver": driver,
        "driver_version": files.text(files.root / "sys/module" / driver / "version") if driver else None,
        "numa_node": files.count(directory / "numa_node"),
        "link_generation_max": _generation(files, directory / "max_link_speed"),
        "link_width_max": files.count(directory / "max_link_width"),
        "memory_total_bytes": files.count(directory / "mem_info_vram_total"),
        "path": _path(directory),
    }
    serial = identity(files.text(directory / "serial_number")) or identity(
        files.text(directory / "unique_id")
    )
    return RawDevice(
        vendor=vendor,
        bus_address=address,
        serial=serial,
        raw={"pci": {name: value for name, value in facts.items() if value is not None}},
        sources=("pci",),
        readings=read_pci(files.root, address, files=files),
    )


def read_pci(root: Path, bus_address: str, *, files: Files | None = None) -> Readings:
    """What sysfs says about a PCI device now: the link in use and, for amdgpu, memory errors."""
    files = files or Files(root)
    directory = root / "sys/bus/pci/devices" / bus_address
    errors = re.search(r"ue:\s*([0-9]{1,18})", files.text(directory / "ras/umc_err_count") or "")
    return Readings(
        ecc_uncorrected=int(errors[1]) if errors else None,
        link_generation=_generation(files, directory / "current_link_speed"),
        link_generation_max=_generation(files, directory / "max_link_speed"),
        link_width=files.count(directory / "current_link_width"),
        link_width_max=files.count(directory / "max_link_width"),
    )


def driver_of(root: Path, bus_address: str) -> str | None:
    """Name of the driver bound to a PCI device; None when there is none."""
    return Files(root).target(root / "sys/bus/pci/devices" / bus_address / "driver")


def is_present(root: Path, device: RawDevice) -> bool:
    """True while sysfs shows the device (a partition is there while its physical device is)."""
    if ":" in device.bus_address:
        return (root / "sys/bus/pci/devices" / device.bus_address).exists()
    return any((root / "sys/class" / group / device.bus_address).exists() for group in CLASSES)


def signature(root: Path) -> frozenset[tuple[str, str | None]]:
    """What devices and drivers there are, cheap enough to compare every second."""
    files = Files(root)
    pci = {
        (entry.name, files.target(entry / "driver")) for entry in files.entries(root / "sys/bus/pci/devices")
    }
    groups = {
        (f"{group}/{entry.name}", None)
        for group in CLASSES
        for entry in files.entries(root / "sys/class" / group)
    }
    return frozenset(pci | groups)


def _accelerates(vendor: str, pci_class: str | None, pci_id: str) -> bool:
    if pci_class is None:
        return vendor != "generic" and table.find(vendor, pci_id=pci_id) is not None
    if pci_class.startswith(_ACCELERATOR):
        return True
    return pci_class.startswith(_DISPLAY) and vendor != "generic" and vendor not in _ONLY_ACCELERATORS


def _class(files: Files, group: str, directory: Path, found: dict[str, RawDevice]) -> None:
    """An entry of a class directory: more about a PCI device, or a device without a bus."""
    try:
        name = normalise_bus_address(directory.name)
    except BadInput as error:
        files.problem(directory, str(error))
        return
    size = files.count(directory / "memory_total")
    facts: dict[str, object] = {
        "class": group,
        "name": name,
        "model": files.text(directory / "model"),
        "memory_total_bytes": size if size is None or size >= _SMALLEST_MEMORY_BYTES else size << 20,
        "firmware_version": files.text(directory / "firmware_version"),
    }
    numa = files.count(directory / "numa_node")
    serial = identity(files.text(directory / "serial")) or identity(files.text(directory / "uuid"))
    given = {key: value for key, value in facts.items() if value is not None}
    address = files.target(directory / "device") or ""
    if address in found:
        device = found[address]
        found[address] = device.model_copy(
            update={
                "serial": device.serial or serial,
                "raw": {**device.raw, "sysfs": given},
                "sources": (*device.sources, "sysfs"),
            }
        )
        return
    if ":" in address:
        return  # the link leads to a PCI device that is no accelerator, or is gone
    found[name] = RawDevice(
        vendor="generic",
        bus_address=name,
        serial=serial,
        raw={"sysfs": given, **({} if numa is None else {"pci": {"numa_node": numa}})},
        sources=("sysfs",),
    )


def _hex(files: Files, path: Path) -> str | None:
    """``0x10de`` as ``10de``."""
    text = files.text(path, needed=True)
    if text is None:
        return None
    if not re.fullmatch(r"0x[0-9a-fA-F]{4,6}", text):
        files.problem(path, f"{text[:40]!r} is no hexadecimal id")
        return None
    return text[2:].lower()


def _generation(files: Files, path: Path) -> int | None:
    """``16.0 GT/s PCIe`` as 4."""
    text = files.text(path)
    return _GENERATIONS.get(text.split(" ", maxsplit=1)[0]) if text else None


def _path(directory: Path) -> list[str] | None:
    """Bridges above a device, from the root port down; None where the entry is no link."""
    if not directory.is_symlink():
        return None
    parts = directory.readlink().parts
    bridges = [
        part for part in parts[:-1] if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", part)
    ]
    return bridges or None


def merge(found: Sequence[RawDevice], captured: Sequence[RawDevice]) -> tuple[RawDevice, ...]:
    """One raw device for each that sysfs or a tool saw, joined by key.

    A tool's serial and partitions count; a device that only a tool saw is kept, because a capture may come
    from elsewhere than the tree.
    """
    devices = {device.key: device for device in found}
    for device in captured:
        seen = devices.get(device.key)
        devices[device.key] = device if seen is None else _join(seen, device)
    for key, device in devices.items():
        parent = devices.get(device.parent or "")
        if parent is not None and "pci" in parent.raw and "pci" not in device.raw:
            kept = {name: parent.raw["pci"][name] for name in _PARENTS_FACTS if name in parent.raw["pci"]}
            devices[key] = device.model_copy(update={"raw": {**device.raw, "pci": kept}})
    return tuple(devices.values())


_PARENTS_FACTS = ("pci_id", "class", "driver", "driver_version", "numa_node", "path")
"""What a partition shares with its physical device."""


def _join(seen: RawDevice, device: RawDevice) -> RawDevice:
    readings = {
        name: value
        for source in (seen.readings, device.readings)
        for name in Readings.__slots__
        if (value := getattr(source, name)) not in (None, ())
    }
    return seen.model_copy(
        update={
            "serial": device.serial or seen.serial,
            "raw": {**seen.raw, **device.raw},
            "sources": tuple(dict.fromkeys((*seen.sources, *device.sources))),
            "readings": Readings(**readings),
            "warnings": (*seen.warnings, *device.warnings),
        }
    )


def carry_over(
    fresh: Iterable[RawDevice], before: Iterable[RawDevice], silent: AbstractSet[str]
) -> tuple[RawDevice, ...]:
    """Keep what a tool said earlier about devices for which it is silent now.

    A tool that hangs changes nothing about a device: it keeps its serial, its model and its partitions, as
    long as the same PCI device stands in the slot.

    Args:
        fresh: devices of this scan.
        before: devices of the last one.
        silent: keys of the physical devices about which their tool said nothing this time.
    """
    devices = {device.key: device for device in fresh}
    for old in before:
        physical = device_key(old.vendor, old.bus_address)
        if physical not in silent:
            continue
        new = devices.get(physical)
        if new is None or new.raw.get("pci", {}).get("pci_id") != old.raw.get("pci", {}).get("pci_id"):
            continue
        if old.partition is not None:
            devices.setdefault(old.key, old)
            continue
        tools = {name: facts for name, facts in old.raw.items() if name not in new.raw}
        devices[old.key] = new.model_copy(
            update={
                "serial": new.serial or old.serial,
                "raw": {**new.raw, **tools},
                "sources": tuple(dict.fromkeys((*new.sources, *old.sources))),
            }
        )
    return tuple(devices.values())


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed from one inventory to the next; removed ones as they were last seen."""

    discovered: tuple[RawDevice, ...]
    changed: tuple[RawDevice, ...]
    removed: tuple[RawDevice, ...]


def compare(before: Mapping[str, RawDevice], after: Mapping[str, RawDevice]) -> Difference:
    """What changed, by key. Readings are no part of a device, and what sources complain about is neither."""
    return Difference(
        tuple(device for key, device in after.items() if key not in before),
        tuple(
            device for key, device in after.items() if key in before and _facts(device) != _facts(before[key])
        ),
        tuple(device for key, device in before.items() if key not in after),
    )


def _facts(device: RawDevice) -> tuple[object, ...]:
    return device.serial, device.parent, device.raw, frozenset(device.sources)
