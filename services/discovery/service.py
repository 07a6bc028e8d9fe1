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
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import structlog

from services.discovery import klog, memory, scan
from services.discovery.act import Executor, Request
from services.discovery.decide import HealthVerdict, Probe
from services.discovery.environment import read_boot_id, read_environment, read_uptime_s
from services.discovery.health import Health
from services.discovery.inventory import Inventory
from services.discovery.kmsg import can_open, follow
from services.discovery.prober import Prober
from services.discovery.scan import Difference
from services.discovery.settings import DiscoverySettings
from services.discovery.tools import Look
from shared.bus.port import Bus, Disconnected, Subscription
from shared.clock import Clock
from shared.devices.keys import check_node
from shared.devices.model import RawDevice, UnifiedDevice
from shared.errors import BadInput
from shared.events import Cause, Payload, Unknown, event
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
from shared.journal import Journal, read
from shared.vendors import kernel_lines
from shared.vendors.adapter import translate
from shared.vendors.kernel_lines import KernelEvidence

SERVICE: Final = "discovery"
AGENT: Final = "agent"
"""Entity of what is said about the node itself."""

log = structlog.get_logger()


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
        self._journal_folder = state_dir / "journal"
        self.journal = Journal(self._journal_folder, max_bytes=settings.journal_bytes)
        self._kept = state_dir / "discovery.json"
        self.health = Health(node, clock, settings.limits, self._say_health)
        self._inventory = Inventory(root)
        self._prober = Prober(root, clock, deadline_s=settings.tool_deadline_s, grace_s=settings.grace_s)
        self._boot_id = ""
        self._sequence = -1
        self._answered: dict[str, tuple[int, int]] = {}
        self._n = 0
        self._rounds: dict[str, asyncio.Event] = {}
        self._probing: set[str] = set()

    @property
    def devices(self) -> Mapping[str, RawDevice]:
        """What is on the node now, by key."""
        return self._inventory.devices

    async def run(self, bus: Bus, ready: Callable[[], None]) -> None:
        """Look, hear and say until cancelled.

        Args:
            bus: it may be away at any time, also now.
            ready: called once the complete inventory was said.
        """
        try:
            self._recall()
            self._inventory.scan()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.journal.pump(bus), name="journal")
                vendors = sorted(self._inventory.vendors)
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
        said = self._windows_said()
        self._sequence = kept.sequence if same_boot else -1
        for key, known in kept.devices.items():
            self._inventory.devices[key] = known.device
            if known.device.partition is None:
                self.health.recall(
                    key,
                    known.baseline if same_boot else {},
                    known.driver if same_boot else None,
                    window_id=max(known.window_id, said.get(key, -1)) if same_boot else -1,
                )

    def _windows_said(self) -> dict[str, int]:
        """The last window of each device in the journal: it is written before the memory is."""
        windows: dict[str, int] = {}
        for entry in read(self._journal_folder):
            said = entry.event
            if isinstance(said, Unknown) or not isinstance(said.data, HealthReported):
                continue
            if said.data.boot_id == self._boot_id:
                windows[said.of.entity] = max(windows.get(said.of.entity, -1), said.data.window_id)
        return windows

    def _keep(self) -> None:
        devices = {}
        for key, device in self._inventory.devices.items():
            standing = self.health.standing(key)
            devices[key] = memory.Known(
                device=device,
                baseline=dict(standing.baseline),
                driver=standing.driver,
                window_id=standing.window_id,
            )
        kept = memory.Memory(
            boot_id=self._boot_id, sequence=self._sequence, devices=devices, answered=self._answered
        )
        memory.save(self._kept, kept)

    async def _round(self, vendor: str) -> None:
        """Ask about all devices of a vendor, say what differs, judge each."""
        look = await self._prober.ask(vendor, self._inventory.to_ask(vendor))
        self._say_differences(*self._inventory.take(vendor, look or Look()))
        for device in self._inventory.physical(vendor):
            self.health.probed(device, self._prober.answer(device, look))
        self._keep()

    def _say_differences(self, difference: Difference, before: Mapping[str, RawDevice]) -> None:
        for device in difference.removed:
            self._vanished(device)
        for device in difference.changed:
            if _is_another(device, before[device.key]):
                self.health.forget(device.key)
            self._say(Changed(boot_id=self._boot_id, n=self._number(), device=_found(device)), device.key)
        for device in difference.discovered:
            gone, _ = self._inventory.missing.pop(device.key, (device, 0.0))
            if _is_another(device, gone):
                self.health.forget(device.key)
            self._say(Discovered(boot_id=self._boot_id, n=self._number(), device=_found(device)), device.key)

    def _vanished(self, device: RawDevice) -> None:
        bound = device.raw.get("pci", {}).get("driver")
        off_the_bus = self.health.counted_since(
            device.key, self._clock.monotonic() - self._settings.missing_s
        )
        reason = "fell off the bus" if off_the_bus else "unplugged" if bound else "driver gone"
        self._say(Removed(boot_id=self._boot_id, n=self._number(), reason=reason), device.key)
        if device.partition is None:
            self._inventory.missing[device.key] = (device, self._clock.monotonic() + self._settings.missing_s)
            self.health.probed(device, Probe(present=False, answer="none"))

    async def probe(self, device: RawDevice) -> Probe:
        """Probe one physical device, within its own deadline."""
        return await self._prober.probe(device)

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
            self._inventory.scan()
            for vendor in self._inventory.vendors:
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
                device = self._inventory.devices.get(key)
                if device is not None and key not in self._probing:
                    self._probing.add(key)
                    tasks.create_task(self._look_at(device), name=f"probe-{key}")
            for key, (device, until_s) in list(self._inventory.missing.items()):
                if self._clock.monotonic() < until_s:
                    self.health.probed(device, Probe(present=False, answer="none"))
                else:
                    del self._inventory.missing[key]
                    self.health.forget(key)

    async def _look_at(self, device: RawDevice) -> None:
        try:
            probe = await self.probe(device)
            if device.key in self._inventory.devices:
                self.health.probed(device, probe)
        finally:
            self._probing.discard(device.key)

    async def _kernel(self) -> None:
        first = True
        async for records in self._kernel_log():
            self.hear_kernel(records, at_start=first)
            first = False

    def _kernel_log(self) -> AsyncGenerator[list[bytes], None]:
        """The host's own log by the syslog call where its device cannot be opened, as in a pod."""
        path = self._root / "dev/kmsg"
        if self._root == Path("/") and not can_open(path) and klog.allowed():
            log.info("kernel log by the syslog call")
            return klog.follow(poll_s=self._settings.kernel_ring_s)
        return follow(path, poll_s=self._settings.kernel_poll_s)

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
            self.health.heard(lines, self._inventory.by_address(), uptime_s)
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
        devices = tuple(_found(device) for device in self._inventory.devices.values())
        self._say(InventoryStated(boot_id=self._boot_id, n=self._number(), devices=devices), AGENT)

    def _beat(self) -> None:
        beat = Heartbeat(
            boot_id=self._boot_id,
            n=self._number(),
            device_keys=tuple(self._inventory.devices),
            journal_depth=self.journal.depth,
            journal_lost=self.journal.lost,
        )
        self._say(beat, AGENT)
        self._keep()

    def _say_environment(self) -> None:
        devices = tuple(
            unified for device in self._inventory.devices.values() if (unified := self._unified(device))
        )
        self._say(read_environment(self._root, self._boot_id, self._number(), devices), AGENT)

    def _unified(self, device: RawDevice) -> UnifiedDevice | None:
        try:
            return translate(device, self._node)
        except BadInput as error:
            log.warning("device cannot be translated", key=device.key, reason=str(error))
            return None


def _is_another(device: RawDevice, before: RawDevice) -> bool:
    """Another device stands in the slot; an unknown serial is never another."""
    return None not in (device.serial, before.serial) and device.serial != before.serial


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
