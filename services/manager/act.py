"""Writing the fleet where others look: custom resources, node labels, views, gauges.

Devices that changed wait in a set, so a storm of facts about one device is one write of its latest state. A
write that fails is tried again with the state of then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from prometheus_client import Gauge

from services.manager.conditions import conditions
from services.manager.fleet import AllocationRow, DeviceRow, Fleet, Known, node_labels, spec, status
from shared.bus.port import Bus, Disconnected
from shared.clock import Clock
from shared.errors import FleetError, Temporary
from shared.kube.conditions import written
from shared.kube.models import MediaResource
from shared.kube.port import Kube

log = structlog.get_logger(__name__)

_DEVICES = Gauge("mediafleet_devices", "Devices by phase.", ["vendor", "phase", "verdict"])
_RETRY_S = (0.2, 10.0)


class Projection:
    """Keeps everything that is projected in step with the fleet."""

    def __init__(
        self, fleet: Fleet, bus: Bus, kube: Kube, clock: Clock, *, domain: str, at_once: int
    ) -> None:
        """Args: clock: for the times in conditions. at_once: devices written at the same time."""
        self._fleet = fleet
        self._kube = kube
        self._clock = clock
        self._domain = domain
        self._devices = bus.view("devices", DeviceRow)
        self._allocations = bus.view("allocations", AllocationRow)
        self._dirty: dict[str, None] = {}
        self._writing: set[str] = set()
        self._waiting = asyncio.Event()
        self._gate = asyncio.Semaphore(at_once)
        self._labels: dict[str, dict[str, str | None]] = {}
        self._specs: dict[str, object] = {}
        self._stands: dict[str, MediaResource] = {}

    def resync(self) -> None:
        """Everything is written again, whatever stands there."""
        self._labels.clear()
        self._specs.clear()
        self.touch(*(known.about for known in self._fleet.all()))

    def touch(self, *about: str) -> None:
        """These devices changed."""
        for each in about:
            self._dirty[each] = None
        if about:
            self._waiting.set()

    async def run(self, caught_up: Callable[[], Awaitable[None]]) -> None:
        """Write for ever; nothing before the facts of the past are all in, so no old state is shown."""
        await caught_up()
        self.resync()
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._waiting.wait()
                self._waiting.clear()
                self._gauge()
                for about in [each for each in self._dirty if each not in self._writing]:
                    await self._gate.acquire()
                    self._dirty.pop(about, None)
                    self._writing.add(about)
                    tasks.create_task(self._write(about), name=f"project-{about}")

    async def _write(self, about: str) -> None:
        wait_s, longest_s = _RETRY_S
        try:
            while True:
                known = self._fleet.get(about)
                if known is None:
                    return
                try:
                    await self._project(known)
                except (Temporary, Disconnected) as error:
                    log.warning("projection waits", about=about, reason=str(error))
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, longest_s)
                except FleetError as error:
                    log.error("projection refused", about=about, reason=str(error))
                    return
                else:
                    return
        finally:
            self._gate.release()
            self._writing.discard(about)
            if about in self._dirty:  # it changed while it was written: one write at a time, the latest last
                self._waiting.set()

    async def _project(self, known: Known) -> None:
        await self._devices.put(known.about, known.row)
        await self._allocations.put(known.about, known.allocations)
        name = f"{known.node}-{known.key}"
        if known.state == "lost" and "removed" in known.reasons:
            await self._kube.delete_media_resource(name)
            self._specs.pop(name, None)
            self._stands.pop(name, None)
        elif known.unified is not None:
            wanted = spec(known.unified)
            if self._specs.get(name) != wanted:
                labels = {f"{self._domain}/node": known.node, f"{self._domain}/vendor": known.unified.vendor}
                self._stands[name] = await self._kube.apply_media_resource(name, wanted, labels=labels)
                self._specs[name] = wanted
            stands = self._stands[name]
            lines = written(
                conditions(known), stands.status, generation=stands.generation, now=self._clock.now()
            )
            now = await self._kube.patch_media_resource_status(name, {**status(known), "conditions": lines})
            if now is None:
                self._specs.pop(name, None)
                raise Temporary(f"MediaResource {name} is gone: it is made again")
            self._stands[name] = now
        labels_wanted = node_labels(self._domain, self._fleet.of_node(known.node))
        if self._labels.get(known.node) != labels_wanted:
            await self._kube.patch_node_labels(known.node, labels_wanted)
            self._labels[known.node] = labels_wanted

    def _gauge(self) -> None:
        _DEVICES.clear()
        for known in self._fleet.all():
            vendor = known.unified.vendor if known.unified else "unknown"
            _DEVICES.labels(vendor, known.phase, known.verdict).inc()
