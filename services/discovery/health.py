"""The health of a node's devices: every device's standing, judged look by look, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

from prometheus_client import Counter

from services.discovery.decide import (
    COUNTS,
    HealthVerdict,
    Limits,
    Look,
    Probe,
    Sighting,
    Standing,
    judge,
)
from shared.clock import Clock
from shared.devices.keys import ENGINE_KINDS, device_key
from shared.devices.model import RawDevice
from shared.devices.readings import Readings
from shared.events.parts import Window
from shared.vendors.adapter import translate
from shared.vendors.kernel_lines import KernelEvidence

_EVIDENCE: Final = Counter("mediafleet_evidence", "Evidence reported, by kind and class.", ["kind", "class_"])
_FOREIGN: Final = Counter(
    "mediafleet_kernel_lines_foreign", "Fault lines about devices that are not known here."
)

Report = Callable[[RawDevice, HealthVerdict], None]


class Health:
    """Standings by key of the physical device."""

    def __init__(self, node: str, clock: Clock, limits: Limits, report: Report) -> None:
        """Args: node: for unit counts. clock: for windows. limits: policy. report: says a verdict."""
        self._node = node
        self._clock = clock
        self._limits = limits
        self._report = report
        self._standings: dict[str, Standing] = {}
        self._counted_s: dict[str, float] = {}
        self.boot_id = ""

    def begin(self, boot_id: str) -> None:
        """Another boot: counters begin again, and what was seen before it says nothing."""
        self.boot_id = boot_id
        self._standings = {
            key: replace(standing, verdict=None, streak=0, baseline={}, explained=False, driver=None)
            for key, standing in self._standings.items()
        }

    def recall(
        self,
        key: str,
        baseline: Mapping[str, Readings],
        driver: bool | None,  # noqa: FBT001 - a fact, no switch
        *,
        window_id: int = -1,
    ) -> None:
        """Take up a device where the process before this one left it; no window is said again."""
        self._standings[key] = Standing(baseline=dict(baseline), driver=driver, window_id=window_id)

    def forget(self, key: str) -> None:
        """The device is gone or another one: nothing of it holds any more, but its windows are used up."""
        self._standings[key] = Standing(window_id=self.standing(key).window_id)

    def standing(self, key: str) -> Standing:
        """What is remembered of a device."""
        return self._standings.get(key, Standing())

    def watch_closely(self, key: str) -> None:
        """Report each of the coming windows: somebody waits for them."""
        self._standings[key] = replace(self.standing(key), settling=self._limits.settle_windows + 1)

    def restless(self) -> tuple[str, ...]:
        """Devices that want a second look soon."""
        return tuple(key for key, standing in self._standings.items() if standing.restless)

    def window(self, key: str) -> Window:
        """The window of a device that is current now."""
        return Window(boot_id=self.boot_id, window_id=max(self._window_id(), self.standing(key).window_id))

    def counted_since(self, key: str, since_s: float) -> bool:
        """The kernel log said something that counts after a moment of the monotonic clock."""
        return self._counted_s.get(key, float("-inf")) > since_s

    def probed(self, device: RawDevice, probe: Probe) -> None:
        """Judge what a probe found."""
        self._judge(
            device,
            Look(self.boot_id, self._window_id(), self._clock.monotonic(), self._clock.now(), (), probe),
        )

    def heard(
        self, lines: list[KernelEvidence], devices: Mapping[str, RawDevice], uptime_s: float | None
    ) -> None:
        """Judge what the kernel log said, one look per device.

        Args:
            lines: of one moment.
            devices: physical devices by bus address.
            uptime_s: seconds since boot by the kernel, to date the lines; None: they are dated now.
        """
        by_address: dict[str, list[KernelEvidence]] = {}
        for line in lines:
            by_address.setdefault(line.bus_address, []).append(line)
        for address, own in by_address.items():
            device = devices.get(address)
            if device is None:
                _FOREIGN.inc(len(own))
                continue
            if any(line.fault.fault_class in COUNTS for line in own):
                self._counted_s[device.key] = self._clock.monotonic()
            sightings = tuple(self._sighting(line, uptime_s) for line in own)
            now_s = self._clock.monotonic()
            self._judge(device, Look(self.boot_id, self._window_id(), now_s, self._clock.now(), sightings))

    def _sighting(self, line: KernelEvidence, uptime_s: float | None) -> Sighting:
        age_s = 0.0
        if uptime_s is not None and line.since_boot_s is not None:
            age_s = max(0.0, uptime_s - line.since_boot_s)
        number = (
            f"{line.sequence}" if line.sequence is not None else f"{line.code}/{self._clock.monotonic():.6f}"
        )
        return Sighting(
            id=f"{self.boot_id}/kmsg/{number}",
            code=line.code,
            fault=line.fault,
            engine_index=line.engine_index,
            at=self._clock.now() - timedelta(seconds=age_s),
            raw=line.raw,
        )

    def _judge(self, device: RawDevice, look: Look) -> None:
        key = device_key(device.vendor, device.bus_address)
        units = translate(device, self._node).codec_engine.engines if look.sightings else None
        standing, verdict = judge(
            key,
            device.vendor,
            self.standing(key),
            look,
            engines={kind: units.count(kind) for kind in ENGINE_KINDS} if units else None,
            limits=self._limits,
        )
        self._standings[key] = standing
        if verdict is not None:
            for each in verdict.evidence:
                _EVIDENCE.labels(each.kind, each.class_).inc()
            self._report(device, verdict)

    def _window_id(self) -> int:
        return int(self._clock.monotonic())
