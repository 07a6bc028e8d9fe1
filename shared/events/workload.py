"""Workloads and what a person must know: sla, scale, alert, deadletter."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime, Field

from shared.events.catalogue import fact
from shared.events.envelope import Part, Payload
from shared.events.parts import PodRef, WorkloadRef


class Attribution(Part):
    """Why a workload breaches: only `neighbour` may evict."""

    verdict: str = Field(description="self, neighbour, device-fault or unknown")
    node: str | None = None
    device: str | None = Field(default=None, description="device key")
    engine: str | None = None
    reasons: tuple[str, ...] = ()


class Candidate(Part):
    """A pod that shares the contended engine, with what decided about it."""

    pod: PodRef
    tier: str
    workload: WorkloadRef | None = None
    tenant: str = ""
    share: float = Field(ge=0, le=1, description="its share of the contended engine")
    measured: bool = Field(default=False, description="False: inferred from the slots it holds")
    excluded: str = Field(default="", description="why it may not be evicted; empty for a candidate")


class BreachPayload(Payload):
    """A fact of one breach of one workload."""

    breach_id: str


@fact("sla.breached", by="guardian", to="alerting console", discriminator=("breach_id",))
class Breached(BreachPayload):
    """The target was missed in 3 of 4 samples."""

    pod: PodRef
    workload: WorkloadRef
    metric: str = "latency_p99_ms"
    target: float
    observed: float
    samples: tuple[float, ...]
    attribution: Attribution
    candidates: tuple[Candidate, ...] = ()


@fact("sla.attributed", by="guardian", to="console", discriminator=("breach_id", "n"))
class Attributed(BreachPayload):
    """The cause was looked at again before the next step; this is what decides it."""

    n: int = Field(ge=1)
    observed: float
    attribution: Attribution
    candidates: tuple[Candidate, ...] = ()


@fact("sla.step-proposed", by="guardian", to="guardian", discriminator=("breach_id", "pod.uid", "attempt"))
class SlaStepProposed(BreachPayload):
    """The breach wants a neighbour evicted; the fleet's budget answers."""

    pod: PodRef
    tier: str
    attempt: int = Field(ge=1)
    share: float = Field(ge=0, le=1)
    engine: str
    device: str
    node: str
    tenant: str


class SlaBudgetPayload(Payload):
    """A fact of the guardian's budget (fleet/budget) about one proposed eviction."""

    case: str = Field(description="place/entity of the workload")
    breach_id: str
    pod_uid: str
    attempt: int = Field(ge=1)


_SLA_GRANT = ("case", "breach_id", "pod_uid", "attempt")


@fact("sla.granted", by="guardian", to="guardian console", discriminator=_SLA_GRANT)
class SlaGranted(SlaBudgetPayload):
    """The eviction may be ordered; these scopes are charged."""

    device: str
    node: str
    tenant: str


@fact("sla.denied", by="guardian", to="guardian console", discriminator=_SLA_GRANT)
class SlaDenied(SlaBudgetPayload):
    """No eviction now; ask again after `retry_at`."""

    limited_by: str
    retry_at: AwareDatetime


@fact("sla.returned", by="guardian", to="guardian console", discriminator=_SLA_GRANT)
class SlaReturned(SlaBudgetPayload):
    """Nothing was evicted: the grant is free again."""

    reason: str


@fact("sla.frozen", by="guardian", to="alerting console", discriminator=("freeze_id",))
class SlaFrozen(Payload):
    """Too much is breached or missing at once: the measurements are suspect, nothing is evicted."""

    freeze_id: str
    reason: str


@fact("sla.thawed", by="guardian", to="alerting console", discriminator=("freeze_id",))
class SlaThawed(Payload):
    """The measurements can be believed again."""

    freeze_id: str
    reason: str


@fact("sla.eviction-ordered", by="guardian", to="guardian console", discriminator=("pod.uid", "attempt"))
class SlaEvictionOrdered(BreachPayload):
    """This neighbour is to be evicted; written before the API is asked."""

    pod: PodRef
    tier: str
    attempt: int = Field(ge=1)
    share: float = Field(ge=0, le=1)
    engine: str
    deadline: AwareDatetime
    dry_run: bool = False


@fact("sla.pod-evicted", by="guardian", to="guardian console", discriminator=("pod.uid", "attempt"))
class SlaPodEvicted(BreachPayload):
    """What became of an ordered eviction."""

    pod: PodRef
    attempt: int = Field(ge=1)
    outcome: str = Field(description="evicted, gone, replaced, blocked, failed, withheld or dry-run")
    status: int | None = None
    detail: str = ""
    retry_at: AwareDatetime | None = None


@fact("sla.relieved", by="guardian", to="autoscaler alerting", discriminator=("breach_id",))
class Relieved(BreachPayload):
    """The eviction helped: measured after grace and two windows."""

    before: float
    after: float
    window_s: float


@fact("sla.relief-missed", by="guardian", to="guardian alerting", discriminator=("breach_id", "n"))
class ReliefMissed(BreachPayload):
    """The eviction did not help enough."""

    n: int = Field(ge=1)
    before: float
    after: float | None = None


@fact("sla.circuit-opened", by="guardian", to="alerting", discriminator=("breach_id",))
class CircuitOpened(BreachPayload):
    """Two evictions missed: no more for this workload until `until`."""

    until: AwareDatetime
    reason: str


@fact("sla.restored", by="guardian", to="autoscaler alerting", discriminator=("breach_id",))
class Restored(BreachPayload):
    """The workload is inside its target again, three samples below 0.9 of it."""

    before: float
    after: float
    window_s: float


@fact("sla.scale-requested", by="guardian", to="autoscaler", discriminator=("request_id",))
class ScaleRequested(BreachPayload):
    """More replicas would help."""

    request_id: str
    workload: WorkloadRef
    reason: str
    min_replicas: int = Field(ge=1)
    until: AwareDatetime


@fact("sla.step-refused", by="guardian", to="console", discriminator=("cause_id",))
class SlaStepRefused(BreachPayload):
    """Something was not done, and why."""

    cause_id: str
    reason: str
    pod_uid: str = ""
    attempt: int = Field(default=1, ge=1)
    retry_at: AwareDatetime | None = None


@fact("sla.closed", by="guardian", to="alerting console", discriminator=("breach_id",))
class SlaClosed(BreachPayload):
    """The breach ended without being restored: its pod is gone, or its target."""

    reason: str


@fact("sla.held", by="guardian", to="alerting console", discriminator=("command_id",))
class SlaHeld(Payload):
    """A person keeps the guardian's hands off this workload."""

    command_id: str
    owner: str
    reason: str
    until: AwareDatetime | None = None


@fact("sla.released", by="guardian", to="alerting console", discriminator=("command_id",))
class SlaReleased(Payload):
    """The hold ended."""

    command_id: str
    owner: str
    reason: str


@fact("sla.snapshotted", by="guardian", to="guardian console", discriminator=("breach_id",))
class SlaSnapshotted(BreachPayload):
    """The folded state of a closed breach; what came before it is purged."""

    state: dict[str, Any]


class ScalePayload(Payload):
    """A fact of one scale request."""

    request_id: str
    n: int = Field(default=1, ge=1)


_SCALE = ("request_id", "n")


@fact("scale.ordered", by="autoscaler", to="autoscaler", discriminator=_SCALE)
class ScaleOrdered(ScalePayload):
    """The replicas are to be changed; written before the API is asked."""

    workload: WorkloadRef
    from_: int = Field(alias="from", ge=0)
    to: int = Field(ge=0)
    mode: str = Field(description="scale, min-replicas-lease on an HPA, or restore of either")
    hpa: str | None = None
    restore_to: int | None = Field(default=None, description="minReplicas to give back when the lease ends")
    by: str = Field(description="id of the event that asked")
    until: AwareDatetime


@fact("scale.applied", by="autoscaler", to="guardian remediation alerting", discriminator=_SCALE)
class ScaleApplied(ScalePayload):
    """The API server took the change."""

    workload: WorkloadRef
    from_: int = Field(alias="from", ge=0)
    to: int = Field(ge=0)
    mode: str
    by: str


@fact("scale.refused", by="autoscaler", to="guardian remediation alerting", discriminator=_SCALE)
class ScaleRefused(ScalePayload):
    """The request was not carried out."""

    reason: str
    by: str


@fact("scale.expired", by="autoscaler", to="guardian remediation alerting", discriminator=_SCALE)
class ScaleExpired(ScalePayload):
    """The lease ended and what it raised was given back."""

    reason: str = ""


@fact("scale.held", by="autoscaler", to="alerting console", discriminator=("command_id",))
class ScaleHeld(Payload):
    """A person keeps the autoscaler's hands off this workload."""

    command_id: str
    owner: str
    reason: str
    until: AwareDatetime | None = None


@fact("scale.released", by="autoscaler", to="alerting console", discriminator=("command_id",))
class ScaleReleased(Payload):
    """The hold ended."""

    command_id: str
    owner: str
    reason: str


@fact("scale.snapshotted", by="autoscaler", to="autoscaler console", discriminator=_SCALE)
class ScaleSnapshotted(ScalePayload):
    """The folded state of closed requests; what came before it is purged."""

    state: dict[str, Any]


class AlertPayload(Payload):
    """A fact of one alert."""

    alert_id: str = Field(description="rule and case, or rule and subject")
    rule: str


@fact("alert.raised", by="alerting", to="outside", discriminator=("alert_id",))
class AlertRaised(AlertPayload):
    """A person must know."""

    severity: str = Field(description="critical, warning or info")
    summary: str
    runbook: str
    evidence_ids: tuple[str, ...]
    affected: tuple[str, ...] = ()
    who: str = Field(default="", description="who should look at it")
    at: AwareDatetime | None = Field(default=None, description="when what it is about happened")


@fact("alert.resolved", by="alerting", to="outside", discriminator=("alert_id",))
class AlertResolved(AlertPayload):
    """It is over."""

    reason: str
    before_raise: bool = Field(default=False, description="the resolve came first and waits for its raise")
    at: AwareDatetime | None = Field(default=None, description="when what resolved it happened")


@fact(
    "deadletter.rejected", by="any", to="alerting console", discriminator=("consumer", "stream", "sequence")
)
class Rejected(Payload):
    """A message that a service could not take, whole."""

    consumer: str
    stream: str
    sequence: int = Field(ge=0)
    subject: str
    field: str = ""
    reason: str
    attempts: int = Field(default=1, ge=1)
    raw: str = Field(description="the body; base64 when it is not UTF-8")
    encoding: str = Field(default="utf-8", description="utf-8 or base64")
