"""The view `workloads`: every online workload with a target, as a person wants to see it."""

from __future__ import annotations

from datetime import datetime

import structlog
from pydantic import BaseModel, ConfigDict

from services.guardian.annotation import Target
from services.guardian.case import SlaCase
from services.guardian.picture import Picture
from services.guardian.policy import GuardianPolicy
from services.guardian.readings import read
from shared.bus.port import Bus, Disconnected
from shared.events import Entity

log = structlog.get_logger(__name__)


class WorkloadRow(BaseModel):
    """One workload. Latencies in ms; None is not known."""

    model_config = ConfigDict(frozen=True)

    namespace: str
    workload: str
    state: str
    """ok, breached, missing (no fresh sample), observed (a target that is not believed) or held."""
    pods: int
    target_ms: float
    latency_p99_ms: float | None
    breach_id: str | None = None
    verdict: str | None = None
    scale_until: datetime | None = None
    circuit_until: datetime | None = None


def rows(
    picture: Picture, cases: dict[Entity, SlaCase], now: datetime, policy: GuardianPolicy
) -> dict[str, WorkloadRow]:
    """All workloads by `namespace/entity`; the worst pod stands for its workload."""
    found: dict[str, WorkloadRow] = {}
    for pod, target in picture.promised():
        owner = picture.owner(pod.uid)
        if owner is None or not isinstance(target, Target):
            continue
        about = f"{owner.namespace}/{owner.entity}"
        latest = read(picture.series(pod.uid), target.latency_p99_ms, now, policy).latest_ms
        other = found.get(about)
        if other is not None:
            latest = max((v for v in (latest, other.latency_p99_ms) if v is not None), default=None)
        case = cases.get(Entity("sla", owner.namespace, owner.entity))
        breach = case.breach if case is not None else None
        found[about] = WorkloadRow(
            namespace=owner.namespace,
            workload=owner.entity,
            state=_state(case, target, latest),
            pods=1 if other is None else other.pods + 1,
            target_ms=target.latency_p99_ms,
            latency_p99_ms=latest,
            breach_id=breach.id if breach else None,
            verdict=breach.attribution.verdict if breach else None,
            scale_until=breach.scale_until if breach else None,
            circuit_until=case.circuit_until if case else None,
        )
    return found


def _state(case: SlaCase | None, target: Target, latest: float | None) -> str:
    if case is not None and case.hold is not None:
        return "held"
    if case is not None and case.breach is not None:
        return "breached"
    if target.doubt:
        return "observed"
    return "missing" if latest is None else "ok"


class WorkloadView:
    """Writes the rows that changed."""

    def __init__(self, bus: Bus) -> None:
        self._view = bus.view("workloads", WorkloadRow)
        self._written: dict[str, WorkloadRow] | None = None

    async def write(self, wanted: dict[str, WorkloadRow]) -> None:
        """Make the view say this and nothing else; what cannot be written now is tried at the next call."""
        try:
            if self._written is None:
                stood = await self._view.all()
                self._written = {key: entry.value for key, entry in stood.items() if entry.value is not None}
            for key, row in wanted.items():
                if self._written.get(key) != row:
                    await self._view.put(key, row)
                    self._written[key] = row
            for key in self._written.keys() - wanted.keys():
                await self._view.put(key, None)
                del self._written[key]
        except Disconnected as error:
            log.warning("the view waits for the bus", reason=str(error))
