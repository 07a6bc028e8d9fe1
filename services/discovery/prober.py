"""Probing devices: what sysfs and the vendor's tool say now, put into one answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import structlog
from prometheus_client import Counter

from services.discovery import scan, tools
from services.discovery.decide import Probe
from services.discovery.tools import Look, VendorTool
from shared.clock import Clock
from shared.devices.model import RawDevice
from shared.devices.readings import Readings

_SILENT = Counter("mediafleet_tool_silent", "Probes that a vendor tool did not answer.", ["tool", "answer"])

log = structlog.get_logger()


class Prober:
    """Asks tools, each call within its deadline; remembers which are dark and which devices ever answered."""

    def __init__(self, root: Path, clock: Clock, *, deadline_s: float, grace_s: float) -> None:
        """Args: root: of the host. clock: for the grace. deadline_s: of a call. grace_s: after the start."""
        self._root = root
        self._clock = clock
        self._deadline_s = deadline_s
        self._grace_until_s = clock.monotonic() + grace_s
        self._answered: set[str] = set()
        self._dark: set[str] = set()

    async def ask(self, vendor: str, devices: Sequence[RawDevice]) -> Look | None:
        """Ask the vendor's tool about all its devices; None when there is no tool."""
        tool, program = self._tool(vendor)
        if tool is None or program is None:
            return None
        look = await tools.ask(tool, program, devices, deadline_s=self._deadline_s)
        (self._dark.add if look.dark else self._dark.discard)(vendor)
        _count(tool, look)
        return look

    async def probe(self, device: RawDevice) -> Probe:
        """Probe one physical device; its siblings neither wait nor are touched."""
        tool, program = self._tool(device.vendor)
        if tool is None or program is None:
            return self.answer(device, None)
        look = await tools.ask_one(tool, program, device, deadline_s=self._deadline_s)
        if look.answers.get(device.key) == "failed":
            # Perhaps the tool knows it by another name than we think: its description of all devices decides.
            everything = await tools.ask(tool, program, (device,), deadline_s=self._deadline_s)
            if not everything.dark or device.vendor in self._dark:
                look = everything
        _count(tool, look)
        return self.answer(device, look)

    def answer(self, device: RawDevice, look: Look | None) -> Probe:
        """What a look means for one physical device, together with what sysfs says now."""
        key = device.key
        answer: Literal["answered", "hung", "failed", "none", "dark", "waiting"] = "none"
        detail = ""
        if look is not None:
            answer = "dark" if look.dark else look.answers.get(key, "failed")
            detail = look.dark or look.detail.get(key, "")
        if answer == "answered":
            self._answered.add(key)
        elif (
            answer in ("hung", "failed")
            and key not in self._answered
            and self._clock.monotonic() < self._grace_until_s
        ):
            answer = "waiting"
        on_bus = "pci" in device.sources
        now = scan.read_pci(self._root, device.bus_address) if on_bus else Readings()
        parts = [each for each in look.devices if each.key == key or _is_chip_of(each, key)] if look else []
        joined = scan.merge([device.model_copy(update={"readings": now})], parts)
        return Probe(
            present=scan.is_present(self._root, device) if on_bus or "sysfs" in device.sources else True,
            driver=scan.driver_of(self._root, device.bus_address) is not None if on_bus else None,
            answer=answer,
            detail=detail,
            readings={each.key: each.readings for each in joined},
        )

    def _tool(self, vendor: str) -> tuple[VendorTool | None, Path | None]:
        tool = next((each for each in tools.TOOLS if each.vendor == vendor), None)
        return tool, tools.find_program(self._root, tool.name) if tool else None


def _is_chip_of(device: RawDevice, key: str) -> bool:
    return device.parent == key and (device.partition or "").startswith("chip-")


def _count(tool: VendorTool, look: Look) -> None:
    for answer in look.answers.values():
        if answer != "answered":
            _SILENT.labels(tool.name, answer).inc()
    if look.dark:
        _SILENT.labels(tool.name, "dark").inc()
        log.warning("vendor tool fails for every device", tool=tool.name, reason=look.dark)
