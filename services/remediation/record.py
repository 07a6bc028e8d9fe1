"""What others see besides the events: the `cases` view, and Kubernetes Events on the pods and nodes.

Both follow from facts and run behind them: the view's writes are coalesced to the latest state of each case,
an Event that the API server does not take is counted and left. Neither holds a case up.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final, Literal

import structlog
from prometheus_client import Counter
from pydantic import BaseModel, ConfigDict

from services.remediation.case import DeviceCase
from shared.bus.port import Bus, Disconnected
from shared.errors import FleetError
from shared.events import AnyEvent, Entity
from shared.events import remediation as say
from shared.events.parts import PodRef
from shared.kube.models import ObjectRef
from shared.kube.port import Kube

log = structlog.get_logger(__name__)

_LOST = Counter("mediafleet_remediation_kubernetes_events_lost", "Kubernetes Events that were not written")
_MOST_WAITING: Final = 2000
_AT_ONCE: Final = 2
_ROUNDING_S: Final = 0.001
_CALM_S: Final = 0.25
_LONGEST_CALM_S: Final = 2.0
"""Nothing is written before no fact was said for so long, or the longest time has passed: a storm of facts is
one write of each case, and quarantines and evictions come before what is told about them."""
_AGAIN_S: Final = 1.0

Note = tuple[ObjectRef, str, str, Literal["Normal", "Warning"], str, ObjectRef | None]


class CaseView(BaseModel):
    """One device's case in the `cases` view."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    open: bool
    state: str
    epoch: int
    since: datetime | None
    updated: datetime | None
    strikes: str
    reason: str
    verdict: str
    serial: str | None
    scope: str
    evicted: tuple[PodRef, ...]
    left: tuple[PodRef, ...]
    until: datetime | None
    hold: str
    penalty: float

    @classmethod
    def of(cls, case: DeviceCase) -> CaseView:
        """As a case stands."""
        return cls(
            open=case.open,
            state=case.state,
            epoch=case.epoch,
            since=case.since,
            updated=case.last_at,
            strikes=f"{case.reached}/{case.needed}" if case.needed else "",
            reason=case.reason,
            verdict=case.verdict,
            serial=case.serial,
            scope=case.scope,
            evicted=case.evicted(),
            left=case.left(),
            until=case.until,
            hold=case.hold,
            penalty=round(case.penalty, 1),
        )


class Record:
    """Keeps the view and writes the Events."""

    def __init__(self, bus: Bus, kube: Kube) -> None:
        self._kube = kube
        self._view = bus.view("cases", CaseView)
        self._latest: dict[Entity, DeviceCase] = {}
        self._changed = asyncio.Event()
        self._said_s = 0.0
        self._notes: asyncio.Queue[Note] = asyncio.Queue(_MOST_WAITING)

    def said(self, fact: AnyEvent, case: DeviceCase) -> None:
        """A fact of a device's case was appended."""
        self._latest[case.of] = case
        self._changed.set()
        self._said_s = asyncio.get_running_loop().time()
        note = _note(fact, case)
        if note is None:
            return
        try:
            self._notes.put_nowait(note)
        except asyncio.QueueFull:
            _LOST.inc()

    async def run(self) -> None:
        """Write for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_view(), name="remediation-view")
            for number in range(_AT_ONCE):
                tasks.create_task(self._write_notes(), name=f"remediation-events-{number}")

    async def _keep_view(self) -> None:
        while True:
            await self._changed.wait()
            await self._calm()
            self._changed.clear()
            latest, self._latest = self._latest, {}
            for of, case in latest.items():
                try:
                    await self._view.put(of.about, CaseView.of(case))
                except Disconnected as error:
                    log.warning("the view waits", reason=str(error))
                    self._latest = {**latest, **self._latest}
                    self._changed.set()
                    await asyncio.sleep(_AGAIN_S)
                    break

    async def _calm(self) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _LONGEST_CALM_S
        await asyncio.sleep(_CALM_S)

        # A timer may fire a rounding early: what is left then is nothing, not another wait of nothing.
        def left_s() -> float:
            return min(until_s, self._said_s + _CALM_S) - loop.time()

        while left_s() > _ROUNDING_S:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(left_s())

    async def _write_notes(self) -> None:
        while True:
            if self._notes.empty():
                await self._calm()
            about, reason, note, kind, action, related = await self._notes.get()
            try:
                await self._kube.record_event(about, reason, note, kind, action, related)
            except FleetError as error:
                _LOST.inc()
                log.warning("a Kubernetes Event was not written", about=about.name, reason=str(error))


def _note(fact: AnyEvent, case: DeviceCase) -> Note | None:
    data = fact.data
    node = ObjectRef("Node", case.of.place)
    name = f"{case.of.entity} (epoch {case.epoch})"
    match data:
        case say.Quarantined():
            return node, "DeviceQuarantined", f"{name}: {data.reason}", "Warning", "Quarantine", None
        case say.Drained():
            note = f"{name}: drained, {len(data.evicted)} pods left it"
            return node, "DeviceDrained", note, "Normal", "Drain", None
        case say.DrainStuck():
            left = ", ".join(str(pod) for pod in data.left) or "the node's bridge does not answer"
            return node, "DeviceDrainStuck", f"{name}: {left}", "Warning", "Drain", None
        case say.Readmitted():
            return node, "DeviceReadmitted", f"{name}: passed probation", "Normal", "Readmit", None
        case say.Retired():
            return node, "DeviceRetired", f"{name}: {data.reason}", "Warning", "Retire", None
        case say.Held():
            note = f"{name}: held by {data.owner}: {data.reason}"
            return node, "DeviceHeld", note, "Normal", "Hold", None
        case say.PodEvicted() if data.outcome in ("evicted", "blocked", "failed"):
            pod = ObjectRef("Pod", data.pod.name, data.pod.namespace, data.pod.uid)
            kind: Literal["Normal", "Warning"] = "Warning" if data.outcome == "failed" else "Normal"
            note = f"{data.outcome}: device {name} on {case.of.place} is quarantined ({case.reason})"
            return pod, "DeviceEviction", note, kind, "Evict", node
        case _:
            return None
