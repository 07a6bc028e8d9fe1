"""What discovery hears and says, and how its parts are wired.

    sysfs, every second   ->  a change: scan, ask the vendor's tool, say what appeared, changed or went
    tools, every 10 s     ->  a probe of every device; every second for one that is not well
    kernel log            ->  evidence, at once
    remediation           ->  a deep check or a repair step, when asked

Everything goes first into the journal on disk and from there to the bus, in order. Nothing here waits for the
bus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import structlog
from prometheus_client import Counter, Gauge

from services.discovery import memory, scan, tools
from services.discovery.act import Executor, Request
from services.discovery.decide import HealthVerdict, Probe
from services.discovery.environment import read_boot_id, read_environment, read_uptime_s
from services.discovery.health import Health
from services.discovery.kmsg import follow
from services.discovery.settings import DiscoverySettings
from shared.bus.port import Bus, Disconnected, Subscription
from shared.clock import Clock
from shared.devices.keys import check_node, device_key
from shared.devices.model import RawDevice, UnifiedDevice
from shared.devices.readings import Readings
from shared.errors import BadInput
from shared.events import Cause, Payload, event
from shared.events.remediation import DiagnosisRequested, RepairRequested
from shared.events.world import (
    Changed,
    Discovered,
    FoundDevice,
    HealthReported,
    Heartbeat,
    InventoryStated,
    Removed,
)
from shared.host import Host
from shared.journal import Journal
from shared.vendors import kernel_lines
from shared.vendors.adapter import translate
from shared.vendors.kernel_lines import KernelEvidence

SERVICE: Final = "discovery"
AGENT: Final = "agent"
"""Entity of what is said about the node itself."""

_PROBLEMS: Final = Gauge(
    "mediafleet_discovery_problems", "Files of the host that cannot be read or believed now."
)
_SILENT: Final = Counter(
    "mediafleet_tool_silent", "Probes that a vendor tool did not answer.", ["tool", "answer"]
)
_DOUBTS: Final = Counter("mediafleet_capture_doubts", "Figures of vendor tools that were not believed.")

log = structlog.get_logger()


@dataclass
class _Here:
    """What is on the node now."""

    devices: dict[str, RawDevice] = field(default_factory=dict)
    gone: dict[str, tuple[RawDevice, float]] = field(default_factory=dict)
    """Vanished physical devices, and until when they are reported as missing."""
    found: tuple[RawDevice, ...] = ()
    """Of the last scan."""

    def physical(self, vendor: str | None = None) -> list[RawDevice]:
        """Devices that are no partition, of one vendor or of all."""
        return [
            device
            for device in self.devices.values()
            if device.partition is None and vendor in (None, device.vendor)
        ]

    def by_address(self) -> dict[str, RawDevice]:
        """Physical devices by bus address; also those that vanished, their last words still come."""
        missing = [device for device, _ in self.gone.values()]
        return {device.bus_address: device for device in (*missing, *self.physical())}


class Discovery:
    """The parts of one node's discovery, made from settings; `run` brings them to life."""

    def __init__(
        self,
        settings: DiscoverySettings,
        *,
        node: str,
        root: Path,
        state_dir: Path,
        source: str,
        clock: Clock,
    ) -> None:
        """Args: node: its Kubernetes name. root: of the host's files. state_dir: shared with the bridge.

        Raises:
            BadInput: the node has no usable name.
            Refused: the state directory cannot be used.
        """
        self._node = check_node(node, "MEDIAFLEET_NODE_NAME")
        self._settings, self._root, self._source, self._clock = settings, root, source, clock
        self.journal = Journal(state_dir / "journal", max_bytes=settings.journal_bytes)
        self._kept = state_dir / "discovery.json"
        self.health = Health(node, clock, settings.limits, self._say_health)
        self._here = _Here()
        self._boot_id = ""
        self._sequence = -1
        self._answered: dict[str, tuple[int, int]] = {}
        self._answered_once: set[str] = set()
        self._n = 0
        self._started_s = clock.monotonic()
        self._rounds: dict[str, asyncio.Event] = {}
        self._probing: set[str] = set()
        self._dark: set[str] = set()

    @property
    def devices(self) -> Mapping[str, RawDevice]:
        """What is on the node now, by key."""
        return self._here.devices

    async def run(self, bus: Bus, ready: Callable[[], None]) -> None:
        """Look, hear and say until cancelled.

        Args:
            bus: it may be away at any time, also now.
            ready: called once the complete inventory was said.
        """
        try:
            self._recall()
            self._rescan()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.journal.pump(bus), name="journal")
                vendors = sorted({device.vendor for device in (*self._here.found, *self._here.physical())})
                await asyncio.gather(*(self._round(vendor) for vendor in vendors))
                self._state()
                self._beat()
                ready()
                for vendor in vendors:
                    self._follow_vendor(tasks, vendor)
                tasks.create_task(self._kernel(), name="kernel-log")
                tasks.create_task(self._watch(tasks), name="watch")
                tasks.create_task(self._look_closely(tasks), name="fast-probes")
                tasks.create_task(self._hear(bus), name="hear")
                every = self._settings
                for name, seconds, act in (
                    ("heartbeat", every.heartbeat_s, self._beat),
                    ("environment", every.environment_s, self._say_environment),
                    ("restate", every.restate_s, self._state),
                ):
                    tasks.create_task(_every(seconds, act, at_once=name == "environment"), name=name)
        finally:
            self._keep()
            self.journal.close()

    # what is there

    def _recall(self) -> None:
        """Take up what the process before this one knew."""
        kept = memory.load(self._kept)
        self._boot_id = read_boot_id(self._root)
        self.health.begin(self._boot_id)
        self._answered = dict(kept.answered)
        same_boot = kept.boot_id == self._boot_id
        self._sequence = kept.sequence if same_boot else -1
        for key, known in kept.devices.items():
            self._here.devices[key] = known.device
            if known.device.partition is None:
                self.health.recall(
                    key, known.baseline if same_boot else {}, known.driver if same_boot else None
                )

    def _keep(self) -> None:
        devices = {}
        for key, device in self._here.devices.items():
            standing = self.health.standing(key)
            devices[key] = memory.Known(
                device=device, baseline=dict(standing.baseline), driver=standing.driver
            )
        kept = memory.Memory(
            boot_id=self._boot_id, sequence=self._sequence, devices=devices, answered=self._answered
        )
        memory.save(self._kept, kept)

    def _rescan(self) -> None:
        found = scan.scan(self._root)
        self._here.found = found.devices
        _PROBLEMS.set(len(found.problems))
        for problem in found.problems:
            log.warning("host file", where=problem.where, problem=problem.what)

    async def _round(self, vendor: str) -> None:
        """Ask about all devices of a vendor, say what differs, judge each."""
        tool, program = self._tool(vendor)
        look = tools.Look()
        if tool is not None and program is not None:
            asked = [self._here.devices.get(device.key, device) for device in self._found(vendor)]
            look = await tools.ask(tool, program, asked, deadline_s=self._settings.tool_deadline_s)
            self._count(tool, look)
        (self._dark.add if look.dark else self._dark.discard)(vendor)
        self._take(vendor, look)
        for device in self._here.physical(vendor):
            self._judge(device, look, asked=program is not None)
        self._keep()

    def _found(self, vendor: str) -> list[RawDevice]:
        return [device for device in self._here.found if device.vendor == vendor]

    def _take(self, vendor: str, look: tools.Look) -> None:
        """Make the scan and the tool's words the inventory, and say what differs."""
        before = {key: device for key, device in self._here.devices.items() if device.vendor == vendor}
        found = [device for device in self._found(vendor) if scan.is_present(self._root, device)]
        present = {device.key for device in found}
        silent = {device.key for device in found if look.answers.get(device.key) != "answered"}
        merged = [
            device
            for device in scan.merge(found, look.devices)
            if device_key(device.vendor, device.bus_address) in present or not _was_on_bus(before, device)
        ]
        after = {device.key: device for device in scan.carry_over(merged, before.values(), silent)}
        difference = scan.compare(before, after)
        for key in before:
            del self._here.devices[key]
        self._here.devices.update(after)
        for device in difference.removed:
            self._vanished(device)
        for device in difference.changed:
            if (
                None not in (device.serial, before[device.key].serial)
                and device.serial != before[device.key].serial
            ):
                self.health.forget(device.key)
            self._say(Changed(boot_id=self._boot_id, n=self._number(), device=_found(device)), device.key)
        for device in difference.discovered:
            self._here.gone.pop(device.key, None)
            self._say(Discovered(boot_id=self._boot_id, n=self._number(), device=_found(device)), device.key)
        for device in look.devices:
            _DOUBTS.inc(len(device.warnings))
            for warning in device.warnings:
                log.info("figure not believed", tool=vendor, problem=warning)

    def _vanished(self, device: RawDevice) -> None:
        bound = device.raw.get("pci", {}).get("driver")
        off_the_bus = self.health.counted_since(
            device.key, self._clock.monotonic() - self._settings.missing_s
        )
        reason = "fell off the bus" if off_the_bus else "unplugged" if bound else "driver gone"
        self._say(Removed(boot_id=self._boot_id, n=self._number(), reason=reason), device.key)
        if device.partition is None:
            self._here.gone[device.key] = (device, self._clock.monotonic() + self._settings.missing_s)
            self.health.probed(device, Probe(present=False, answer="none"))

    # how it is

    def _judge(self, device: RawDevice, look: tools.Look, *, asked: bool) -> None:
        self.health.probed(device, self._probe(device, look, asked=asked))

    def _probe(self, device: RawDevice, look: tools.Look, *, asked: bool) -> Probe:
        """What sysfs and the tool say now about a physical device and its chips."""
        key = device.key
        answer: Literal["answered", "hung", "failed", "none", "dark", "waiting"] = "none"
        if asked:
            answer = "dark" if look.dark else look.answers.get(key, "failed")
        waiting = self._clock.monotonic() < self._started_s + self._settings.grace_s
        if answer == "answered":
            self._answered_once.add(key)
        elif answer in ("hung", "failed") and key not in self._answered_once and waiting:
            answer = "waiting"
        on_bus = "pci" in device.sources
        parts = [each for each in look.devices if each.key == key or _is_chip_of(each, key)]
        joined = scan.merge([device.model_copy(update={"readings": self._sysfs(device)})], parts)
        return Probe(
            present=scan.is_present(self._root, device) if on_bus or "sysfs" in device.sources else True,
            driver=scan.driver_of(self._root, device.bus_address) is not None if on_bus else None,
            answer=answer,
            detail=look.dark or look.detail.get(key, ""),
            readings={each.key: each.readings for each in joined},
        )

    def _sysfs(self, device: RawDevice) -> Readings:
        return scan.read_pci(self._root, device.bus_address) if "pci" in device.sources else Readings()

    async def probe(self, device: RawDevice) -> Probe:
        """Probe one physical device, within its own deadline."""
        tool, program = self._tool(device.vendor)
        if tool is None or program is None:
            return self._probe(device, tools.Look(), asked=False)
        deadline_s = self._settings.tool_deadline_s
        look = await tools.ask_one(tool, program, device, deadline_s=deadline_s)
        if look.answers.get(device.key) == "failed":
            # Perhaps the tool knows it by another name than we think: its description of all devices decides.
            everything = await tools.ask(tool, program, (device,), deadline_s=deadline_s)
            if not everything.dark or device.vendor in self._dark:
                look = everything
        self._count(tool, look)
        return self._probe(device, look, asked=True)

    def _tool(self, vendor: str) -> tuple[tools.VendorTool | None, Path | None]:
        tool = next((each for each in tools.TOOLS if each.vendor == vendor), None)
        return tool, tools.find_program(self._root, tool.name) if tool else None

    @staticmethod
    def _count(tool: tools.VendorTool, look: tools.Look) -> None:
        for answer in look.answers.values():
            if answer != "answered":
                _SILENT.labels(tool.name, answer).inc()
        if look.dark:
            _SILENT.labels(tool.name, "dark").inc()
            log.warning("vendor tool fails for every device", tool=tool.name, reason=look.dark)

    # what goes on at the same time

    def _follow_vendor(self, tasks: asyncio.TaskGroup, vendor: str) -> None:
        changed = self._rounds[vendor] = asyncio.Event()
        tasks.create_task(self._vendor(vendor, changed), name=f"probe-{vendor}")

    async def _vendor(self, vendor: str, changed: asyncio.Event) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.probe_s):
                    await changed.wait()
            except TimeoutError:
                pass
            changed.clear()
            await self._round(vendor)

    async def _watch(self, tasks: asyncio.TaskGroup) -> None:
        """See hotplug and reboots at once; scan everything now and then all the same."""
        before, scanned_s = scan.signature(self._root), self._clock.monotonic()
        while True:
            await asyncio.sleep(self._settings.watch_s)
            self._notice_reboot()
            now = scan.signature(self._root)
            due = self._clock.monotonic() - scanned_s >= self._settings.rescan_s
            if now == before and not due:
                continue
            before, scanned_s = now, self._clock.monotonic()
            known = {device.vendor for device in self._here.physical()}
            self._rescan()
            for vendor in known | {device.vendor for device in self._here.found}:
                if vendor not in self._rounds:
                    self._follow_vendor(tasks, vendor)
                self._rounds[vendor].set()

    def _notice_reboot(self) -> None:
        boot_id = read_boot_id(self._root)
        if boot_id != self._boot_id:
            log.info("another boot", boot_id=boot_id)
            self._boot_id, self._sequence = boot_id, -1
            self.health.begin(boot_id)

    async def _look_closely(self, tasks: asyncio.TaskGroup) -> None:
        """Probe devices that are not well again and again, each on its own: none waits for another."""
        while True:
            await asyncio.sleep(self._settings.fast_probe_s)
            for key in self.health.restless():
                device = self._here.devices.get(key)
                if device is not None and key not in self._probing:
                    self._probing.add(key)
                    tasks.create_task(self._look_at(device), name=f"probe-{key}")
            for key, (device, until_s) in list(self._here.gone.items()):
                if self._clock.monotonic() < until_s:
                    self.health.probed(device, Probe(present=False, answer="none"))
                else:
                    del self._here.gone[key]
                    self.health.forget(key)

    async def _look_at(self, device: RawDevice) -> None:
        try:
            probe = await self.probe(device)
            if device.key in self._here.devices:
                self.health.probed(device, probe)
        finally:
            self._probing.discard(device.key)

    async def _kernel(self) -> None:
        first = True
        async for records in follow(self._root / "dev/kmsg", poll_s=self._settings.kernel_poll_s):
            self.hear_kernel(records, at_start=first)
            first = False

    def hear_kernel(self, records: Iterable[bytes], *, at_start: bool = False) -> None:
        """Judge kernel records that were not judged before.

        Args:
            records: as the log gives them.
            at_start: they may be old: only young ones count.
        """
        uptime_s = read_uptime_s(self._root)
        lines: list[KernelEvidence] = []
        for record in records:
            sequence = kernel_lines.sequence_of(record)
            if sequence is not None:
                if sequence <= self._sequence:
                    self._notice_reboot()
                if sequence <= self._sequence:
                    continue
                self._sequence = sequence
            line = kernel_lines.parse(record)
            if line is None or (at_start and self._is_old(line, uptime_s)):
                continue
            lines.append(line)
        if lines:
            self.health.heard(lines, self._here.by_address(), uptime_s)
            self._keep()

    def _is_old(self, line: KernelEvidence, uptime_s: float | None) -> bool:
        if uptime_s is None or line.since_boot_s is None:
            return False
        return uptime_s - line.since_boot_s > self._settings.evidence_max_age_s

    async def _hear(self, bus: Bus) -> None:
        executor = Executor(self, self._settings, self._clock, self._root)
        heard = Subscription(
            "remediation", (DiagnosisRequested, RepairRequested), executor.handle, place=self._node
        )
        while True:
            try:
                async with bus.consume(SERVICE, (heard,)) as consumption:
                    await consumption.wait()
            except Disconnected as error:
                log.warning("waiting for the bus", reason=str(error))
            await asyncio.sleep(self._settings.watch_s)

    # what is said

    def answered(self, request: Request) -> bool:
        """This request, or a later one of its kind, was answered already."""
        last = self._answered.get(f"{request.key}/{request.kind}", (0, 0))
        return (request.epoch, request.attempt) <= last

    def answer(self, request: Request, fact: Payload, cause: Cause) -> None:
        """Say the answer to a request, once."""
        self._answered[f"{request.key}/{request.kind}"] = (request.epoch, request.attempt)
        self._say(fact, request.key, cause)
        self._keep()

    def _number(self) -> int:
        """Grows within a boot, over restarts too: milliseconds since boot, and never the same twice."""
        self._n = max(self._n + 1, int(self._clock.monotonic() * 1000))
        return self._n

    def _say(self, fact: Payload, entity: str, cause: Cause | None = None) -> None:
        made = event(
            fact,
            (self._node, entity),
            cause=cause or Cause.source(self._boot_id, self._n),
            source=self._source,
            at=self._clock.now(),
        )
        self.journal.append(made)

    def _say_health(self, device: RawDevice, verdict: HealthVerdict) -> None:
        fact = HealthReported(
            boot_id=self._boot_id,
            window_id=verdict.window_id,
            serial=device.serial,
            verdict=verdict.verdict,
            streak=verdict.streak,
            evidence=verdict.evidence,
        )
        self._say(fact, device.key, Cause.source(self._boot_id, verdict.window_id))

    def _state(self) -> None:
        devices = tuple(_found(device) for device in self._here.devices.values())
        self._say(InventoryStated(boot_id=self._boot_id, n=self._number(), devices=devices), AGENT)

    def _beat(self) -> None:
        beat = Heartbeat(
            boot_id=self._boot_id,
            n=self._number(),
            device_keys=tuple(self._here.devices),
            journal_depth=self.journal.depth,
            journal_lost=self.journal.lost,
        )
        self._say(beat, AGENT)
        self._keep()

    def _say_environment(self) -> None:
        devices = tuple(
            unified for device in self._here.devices.values() if (unified := self._unified(device))
        )
        self._say(read_environment(self._root, self._boot_id, self._number(), devices), AGENT)

    def _unified(self, device: RawDevice) -> UnifiedDevice | None:
        try:
            return translate(device, self._node)
        except BadInput as error:
            log.warning("device cannot be translated", key=device.key, reason=str(error))
            return None


def _found(device: RawDevice) -> FoundDevice:
    return FoundDevice(
        key=device.key,
        vendor=device.vendor,
        bus_address=device.bus_address,
        serial=device.serial,
        parent=device.parent,
        raw=device.raw,
        sources=device.sources,
    )


def _was_on_bus(before: Mapping[str, RawDevice], device: RawDevice) -> bool:
    """Sysfs showed its physical device before: when it does not now, a tool's word is an old one."""
    known = before.get(device_key(device.vendor, device.bus_address))
    return known is not None and "pci" in known.sources


def _is_chip_of(device: RawDevice, key: str) -> bool:
    return device.parent == key and (device.partition or "").startswith("chip-")


async def _every(seconds: float, act: Callable[[], None], *, at_once: bool = False) -> None:
    if at_once:
        act()
    while True:
        await asyncio.sleep(seconds)
        act()


async def run(host: Host, settings: DiscoverySettings) -> None:
    """The service, as its process runs it."""
    discovery = Discovery(
        settings,
        node=host.shared.node_name,
        root=host.shared.host_root,
        state_dir=host.shared.state_dir,
        source=host.source,
        clock=host.clock,
    )
    await discovery.run(host.bus, host.ready)
