"""What is on the node: the last scan, joined with what tools said, and what vanished a moment ago."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog
from prometheus_client import Counter, Gauge

from services.discovery import scan
from services.discovery.scan import Difference
from services.discovery.tools import Look
from shared.devices.keys import device_key
from shared.devices.model import RawDevice

_PROBLEMS = Gauge("mediafleet_discovery_problems", "Files of the host that cannot be read or believed now.")
_DOUBTS = Counter("mediafleet_capture_doubts", "Figures of vendor tools that were not believed.")

log = structlog.get_logger()


class Inventory:
    """Devices of one node, by key.

    Attributes:
        devices: what is there now, physical devices and partitions.
        missing: physical devices that vanished, and until when they are reported as missing.
    """

    def __init__(self, root: Path) -> None:
        """Args: root: of the host's files."""
        self._root = root
        self._found: tuple[RawDevice, ...] = ()
        self._problems: frozenset[str] = frozenset()
        self.devices: dict[str, RawDevice] = {}
        self.missing: dict[str, tuple[RawDevice, float]] = {}

    @property
    def vendors(self) -> frozenset[str]:
        """Vendors of what was found and of what is known."""
        return frozenset(device.vendor for device in (*self._found, *self.devices.values()))

    def physical(self, vendor: str | None = None) -> list[RawDevice]:
        """Devices that are no partition, of one vendor or of all."""
        return [
            device
            for device in self.devices.values()
            if device.partition is None and vendor in (None, device.vendor)
        ]

    def by_address(self) -> dict[str, RawDevice]:
        """Physical devices by bus address; also those that vanished: their last words still come."""
        gone = [device for device, _ in self.missing.values()]
        return {device.bus_address: device for device in (*gone, *self.physical())}

    def scan(self) -> None:
        """Look at the file tree; new problems are logged once."""
        found = scan.scan(self._root)
        self._found = found.devices
        _PROBLEMS.set(len(found.problems))
        problems = frozenset(str(problem) for problem in found.problems)
        for problem in sorted(problems - self._problems):
            log.warning("host file", problem=problem)
        self._problems = problems

    def to_ask(self, vendor: str) -> list[RawDevice]:
        """Devices of the last scan, with what earlier rounds know of them."""
        return [self.devices.get(device.key, device) for device in self._found if device.vendor == vendor]

    def take(self, vendor: str, look: Look) -> tuple[Difference, Mapping[str, RawDevice]]:
        """Make the scan and a tool's words the vendor's inventory; what differs, and what was before.

        A device that sysfs showed before and does not show now is gone, even while its tool still lists it.
        """
        before = {key: device for key, device in self.devices.items() if device.vendor == vendor}
        found = [
            device
            for device in self._found
            if device.vendor == vendor and scan.is_present(self._root, device)
        ]
        present = {device.key for device in found}
        silent = {key for key in present if look.answers.get(key) != "answered"}
        merged = [
            device
            for device in scan.merge(found, look.devices)
            if device_key(device.vendor, device.bus_address) in present or not _was_on_bus(before, device)
        ]
        after = {device.key: device for device in scan.carry_over(merged, before.values(), silent)}
        for key in before:
            del self.devices[key]
        self.devices.update(after)
        _doubt(vendor, look.devices)
        return scan.compare(before, after), before


def _was_on_bus(before: Mapping[str, RawDevice], device: RawDevice) -> bool:
    known = before.get(device_key(device.vendor, device.bus_address))
    return known is not None and "pci" in known.sources


def _doubt(vendor: str, devices: Iterable[RawDevice]) -> None:
    for device in devices:
        for warning in device.warnings:
            _DOUBTS.inc()
            log.info("figure not believed", tool=vendor, problem=warning)
