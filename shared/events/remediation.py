"""The three-strikes case: what remediation says in a device's log, and what it hears from people."""

from __future__ import annotations

from typing import Any

from pydantic import AwareDatetime, Field

from shared.events.catalogue import fact
from shared.events.envelope import Part, Payload
from shared.events.parts import Evidence, PodRef, Window, WorkloadRef


class CasePayload(Payload):
    """A fact of one epoch of a device's case."""

    epoch: int = Field(ge=1)


@fact("remediation.opened", by="remediation", to="manager console", discriminator=("epoch",))
class Opened(CasePayload):
    """A case begins: windows at or before `seen` never count in it."""

    serial: str | None = None
    state: str = Field(description="suspect, quarantined, validating or held: where the case begins")
    reason: str
    evidence: tuple[Evidence, ...] = ()
    seen: Window | None = None
    penalty: float = Field(default=0.0, ge=0, description="flap damping carried over from earlier cases")


@fact("remediation.struck", by="remediation", to="bridge console", discriminator=("boot_id", "window_id"))
class Struck(CasePayload):
    """One window of evidence counts against the device."""

    strike: int = Field(ge=1)
    of: int = Field(ge=1, description="strikes that make a case")
    boot_id: str
    window_id: int = Field(ge=0)
    evidence_ids: tuple[str, ...]
    codes: tuple[str, ...] = ()
    scope: str = Field(default="device", description="device, partition or engines: what the evidence names")
    engines: tuple[str, ...] = Field(default=(), description="engine keys where the scope is engines")
    serial: str | None = None
    at: AwareDatetime = Field(description="evidence time, by the node's clock")


@fact("remediation.health-noted", by="remediation", to="console", discriminator=("boot_id", "window_id"))
class HealthNoted(CasePayload):
    """The verdict changed while a case is open; what recovery and clearing are judged by."""

    boot_id: str
    window_id: int = Field(ge=0)
    verdict: str = Field(description="healthy, unhealthy or unknown")
    streak: int = Field(default=0, ge=0, description="windows in a row with this verdict, as the node counts")
    codes: tuple[str, ...] = ()


@fact("remediation.cleared", by="remediation", to="bridge console", discriminator=("epoch",))
class Cleared(CasePayload):
    """A suspect stayed healthy long enough; nothing was done to it."""

    streak: int = Field(ge=0)


@fact(
    "remediation.step-proposed",
    by="remediation",
    to="remediation",
    discriminator=("epoch", "step", "pod_uid", "attempt"),
)
class StepProposed(CasePayload):
    """The case wants to take a step that a budget must grant."""

    step: str = Field(description="quarantine, evict, reset, ...")
    pod_uid: str = ""
    attempt: int = Field(default=1, ge=1)
    scopes: tuple[str, ...] = Field(description="budget scopes that pay: cluster, node:N, rack:R, model:M")
    code: str = Field(default="", description="leading fault code, for common cause")
    evidence_at: AwareDatetime | None = Field(
        default=None, description="when the evidence was, for common cause"
    )
    deadline: AwareDatetime
    seen: Window | None = None


class BudgetPayload(Payload):
    """A fact of the budget's own log, about one step of one case."""

    case: str = Field(description="place/entity of the device")
    epoch: int = Field(ge=1)
    step: str
    pod_uid: str = ""
    attempt: int = Field(default=1, ge=1)


_GRANT = ("case", "epoch", "step", "pod_uid", "attempt")


@fact("remediation.queued", by="remediation", to="remediation alerting", discriminator=_GRANT)
class Queued(BudgetPayload):
    """No room now: the step waits."""

    limited_by: str
    scopes: tuple[str, ...]
    code: str = ""
    evidence_at: AwareDatetime | None = None
    until: AwareDatetime


@fact("remediation.granted", by="remediation", to="remediation alerting", discriminator=_GRANT)
class BudgetGranted(BudgetPayload):
    """The step may be taken; its scopes are charged."""

    scopes: tuple[str, ...]
    code: str = ""
    evidence_at: AwareDatetime | None = None


@fact("remediation.returned", by="remediation", to="remediation alerting", discriminator=_GRANT)
class BudgetReturned(BudgetPayload):
    """The grant is free again: its case closed, was held, retired or gave up waiting."""

    reason: str


@fact(
    "remediation.frozen",
    by="remediation",
    to="remediation guardian alerting console",
    discriminator=("freeze_id",),
)
class Frozen(Payload):
    """Many alike at once: a common cause. No grant until thawed."""

    freeze_id: str
    code: str
    scope: str
    cases: tuple[str, ...]


@fact(
    "remediation.thawed",
    by="remediation",
    to="remediation guardian alerting console",
    discriminator=("freeze_id",),
)
class Thawed(Payload):
    """The freeze is over; only current health is judged."""

    freeze_id: str
    reason: str = ""


@fact(
    "remediation.quarantined",
    by="remediation",
    to="bridge manager guardian scheduler",
    discriminator=("epoch",),
)
class Quarantined(CasePayload):
    """No new pod may use the device (or these engines of it)."""

    scope: str = Field(default="device", description="device, partition or engines")
    engines: tuple[str, ...] = ()
    reason: str
    evidence_ids: tuple[str, ...] = ()
    deadline: AwareDatetime


class PlannedPod(Part):
    """One pod to drain, with what decided its turn."""

    pod: PodRef
    tier: str
    workload: WorkloadRef | None = None
    opted_out: bool = False


@fact("remediation.drain-planned", by="remediation", to="console", discriminator=("n",))
class DrainPlanned(CasePayload):
    """What was read to decide the drain: the holders, in the order of eviction."""

    n: int = Field(ge=1)
    pods: tuple[PlannedPod, ...]
    missing: tuple[PodRef, ...] = Field(default=(), description="holders that the API server does not know")
    fenced_by: str = Field(default="", description="id of the allocation.fenced that named the holders")


@fact("remediation.diagnosis-recorded", by="remediation", to="console", discriminator=("attempt",))
class DiagnosisRecorded(CasePayload):
    """The outcome of a diagnosis, as the case took it."""

    attempt: int = Field(ge=1)
    outcome: str
    as_of: Window | None = None
    detail: str = ""


@fact(
    "remediation.eviction-ordered", by="remediation", to="remediation", discriminator=("pod.uid", "attempt")
)
class EvictionOrdered(CasePayload):
    """This pod is to be evicted; written before the API is asked."""

    pod: PodRef
    tier: str = "batch"
    workload: WorkloadRef | None = None
    attempt: int = Field(ge=1)
    deadline: AwareDatetime
    dry_run: bool = False


@fact(
    "remediation.pod-evicted",
    by="remediation",
    to="guardian alerting console",
    discriminator=("pod.uid", "attempt"),
)
class PodEvicted(CasePayload):
    """What became of an ordered eviction."""

    pod: PodRef
    attempt: int = Field(ge=1)
    outcome: str = Field(description="evicted, gone, replaced, blocked, failed, withheld or dry-run")
    status: int | None = Field(default=None, description="HTTP status of the API server")
    detail: str = ""
    retry_at: AwareDatetime | None = None


@fact("remediation.replacement-requested", by="remediation", to="autoscaler", discriminator=("request_id",))
class ReplacementRequested(CasePayload):
    """An online workload should get a replacement before its pod is evicted."""

    request_id: str
    pod: PodRef
    workload: WorkloadRef
    until: AwareDatetime


@fact("remediation.drained", by="remediation", to="manager alerting", discriminator=("epoch",))
class Drained(CasePayload):
    """Nobody holds the device any more; confirmed by the bridge and the API server."""

    evicted: tuple[PodRef, ...]
    left: tuple[PodRef, ...] = ()


@fact("remediation.drain-stuck", by="remediation", to="manager alerting", discriminator=("epoch",))
class DrainStuck(CasePayload):
    """The drain's deadline passed with pods left."""

    evicted: tuple[PodRef, ...]
    left: tuple[PodRef, ...]


@fact("remediation.diagnosis-requested", by="remediation", to="discovery", discriminator=("attempt",))
class DiagnosisRequested(CasePayload):
    """The node is asked for a deep check."""

    attempt: int = Field(ge=1)
    deadline: AwareDatetime


@fact("remediation.repair-requested", by="remediation", to="discovery", discriminator=("step", "attempt"))
class RepairRequested(CasePayload):
    """An executor is asked for a repair step."""

    step: str
    attempt: int = Field(ge=1)
    deadline: AwareDatetime


@fact("remediation.repair-recorded", by="remediation", to="console", discriminator=("step", "attempt"))
class RepairRecorded(CasePayload):
    """A repair step that did not help, as the case took it; one that helped is `repaired`."""

    step: str
    attempt: int = Field(ge=1)
    outcome: str = Field(description="failed or ambiguous; neither is repeated")
    detail: str = ""


@fact("remediation.repaired", by="remediation", to="bridge manager scheduler", discriminator=("epoch",))
class Repaired(CasePayload):
    """A repair step worked, or a passed diagnosis made it needless."""

    step: str
    attempt: int = Field(default=1, ge=1)


@fact("remediation.validated", by="remediation", to="bridge manager scheduler", discriminator=("epoch",))
class Validated(CasePayload):
    """The healthy streak is long enough and the deep check passed."""

    streak: int = Field(ge=0)
    as_of: Window | None = None


@fact(
    "remediation.probation-started", by="remediation", to="bridge manager scheduler", discriminator=("epoch",)
)
class ProbationStarted(CasePayload):
    """The device takes pods again, best-effort first; a strike closes the case and opens the next."""

    until: AwareDatetime


@fact(
    "remediation.readmitted",
    by="remediation",
    to="bridge manager scheduler alerting",
    discriminator=("epoch",),
)
class Readmitted(CasePayload):
    """The device takes every pod again."""

    after_s: float = Field(ge=0, description="seconds since the case was opened")
    untaint: bool = Field(
        default=False,
        description="another device's retirement tainted the node, which has a usable one again",
    )


@fact(
    "remediation.closed",
    by="remediation",
    to="bridge manager guardian scheduler alerting console",
    discriminator=("epoch",),
)
class Closed(CasePayload):
    """The case ended."""

    reason: str
    serial: str | None = None
    penalty: float = Field(default=0.0, ge=0)
    reopens: str = Field(
        default="", description="state in which the next case follows at once; the device stays out meanwhile"
    )


@fact("remediation.retired", by="remediation", to="bridge manager alerting", discriminator=("epoch",))
class Retired(CasePayload):
    """The device stays out until it is replaced."""

    reason: str
    replacement: str = ""
    command_id: str = Field(default="", description="the person's request, where one asked for it")


@fact(
    "remediation.node-tainted",
    by="remediation",
    to="manager alerting console",
    discriminator=("epoch", "outcome"),
)
class NodeTainted(CasePayload):
    """What became of the node's own-key taint: its last usable device was retired, or one came back."""

    outcome: str = Field(description="tainted, not-last, removed or failed")
    detail: str = ""


@fact(
    "remediation.held",
    by="remediation",
    to="bridge manager guardian alerting console",
    discriminator=("command_id",),
)
class Held(CasePayload):
    """A person (or missing memory) keeps the device as it is; nothing automatic touches it."""

    command_id: str
    owner: str
    reason: str
    until: AwareDatetime | None = None
    orders_in_flight: tuple[PodRef, ...] = ()


@fact(
    "remediation.released",
    by="remediation",
    to="bridge manager guardian alerting console",
    discriminator=("command_id",),
)
class HoldReleased(CasePayload):
    """The hold ended."""

    command_id: str
    owner: str
    reason: str
    to_state: str


@fact("remediation.command-refused", by="remediation", to="console", discriminator=("command_id",))
class CommandRefused(CasePayload):
    """A person's command could not be carried out."""

    command_id: str
    reason: str


@fact(
    "remediation.deadline-passed",
    by="remediation",
    to="bridge manager console",
    discriminator=("epoch", "timer", "pod_uid", "deadline"),
)
class DeadlinePassed(CasePayload):
    """A state's deadline passed without what it waited for."""

    timer: str
    pod_uid: str = ""
    deadline: AwareDatetime
    state: str


@fact("remediation.step-refused", by="remediation", to="console", discriminator=("cause_id",))
class StepRefused(CasePayload):
    """A cause of another epoch, or one that the state does not allow, was not acted on."""

    cause_id: str
    stale_epoch: int | None = None
    reason: str


@fact(
    "remediation.snapshotted",
    by="remediation",
    to="remediation bridge manager console",
    discriminator=("epoch",),
)
class RemediationSnapshotted(CasePayload):
    """The folded state of a closed case; what came before it is purged."""

    state: dict[str, Any]


class CommandPayload(Payload):
    """A person's word."""

    request_id: str = Field(min_length=1)
    owner: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    until: AwareDatetime | None = None


@fact(
    "command.hold-requested",
    by="console",
    to="remediation guardian autoscaler",
    discriminator=("request_id",),
)
class HoldRequested(CommandPayload):
    """Leave it as it is, whatever happens."""


@fact(
    "command.release-requested",
    by="console",
    to="remediation guardian autoscaler",
    discriminator=("request_id",),
)
class ReleaseRequested(CommandPayload):
    """The hold is over."""


@fact("command.approve-requested", by="console", to="remediation", discriminator=("request_id",))
class ApproveRequested(CommandPayload):
    """The step that waits for a person may be taken."""


@fact("command.retire-requested", by="console", to="remediation", discriminator=("request_id",))
class RetireRequested(CommandPayload):
    """Take the device out for good."""
