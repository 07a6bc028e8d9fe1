"""The steps of an open breach: look for the cause, evict, ask for replicas, judge what helped."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from services.guardian.annotation import Target
from services.guardian.attribution import NEIGHBOUR, SELF, TERMINATING
from services.guardian.case import EVICTION, Breach, SlaCase
from services.guardian.policy import GuardianPolicy
from services.guardian.readings import Reading, Series
from shared.events import Payload
from shared.events import workload as facts
from shared.events.parts import PodRef, WorkloadRef


@dataclass(frozen=True, slots=True)
class Look:
    """What one workload's decision needs from elsewhere.

    Attributes:
        pod: the pod that is judged.
        alive: the API server has this very pod; None when not known.
        target: its SLA; None when it has none (any more).
        series: its samples.
        attribution: why it would be slow now; None where nothing needed it.
        candidates: its neighbours, in the order of eviction.
        brake: why the measurements of the fleet are suspect.
        replicas: of the workload; None when not known or not scalable.
    """

    pod: PodRef
    workload: WorkloadRef | None
    alive: bool | None
    target: Target | None
    series: Series
    attribution: facts.Attribution | None = None
    candidates: tuple[facts.Candidate, ...] = ()
    brake: str = ""
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One look at an open breach."""

    case: SlaCase
    breach: Breach
    look: Look
    reading: Reading
    target_ms: float
    now: datetime
    policy: GuardianPolicy


def follow(at: Round) -> Payload | None:
    """The next step of an open breach, with everything known."""
    breach, policy = at.breach, at.policy
    asked = _headroom(at)
    if asked is not None:
        return asked
    if breach.acted_at is not None:
        judged = _judged(at, breach.acted_at)
        if judged is not None or at.reading.recovered:
            return judged
    if at.reading.recovered and at.reading.latest_ms is not None:
        return facts.Restored(
            breach_id=breach.id,
            before=breach.observed,
            after=at.reading.latest_ms,
            window_s=(at.now - breach.opened_at).total_seconds(),
        )
    if at.case.misses >= policy.misses:
        return facts.CircuitOpened(
            breach_id=breach.id,
            until=at.now + timedelta(seconds=policy.circuit_s),
            reason=f"{at.case.misses} evictions in a row did not help",
        )
    if not at.reading.breached or breach.acted == EVICTION or breach.proposal is not None or at.look.brake:
        return None
    return _act(at)


def _act(at: Round) -> Payload | None:
    """Look for the cause again when the last look is old, then act on the verdict in the log."""
    breach, look = at.breach, at.look
    old = breach.looked_at is None or at.now - breach.looked_at >= timedelta(seconds=at.policy.reattribute_s)
    if old and look.attribution is None:
        return None
    if old and look.attribution is not None and _differs(breach, look.attribution, look.candidates):
        return facts.Attributed(
            breach_id=breach.id,
            n=breach.looks + 1,
            observed=observed(at.reading),
            attribution=look.attribution,
            candidates=look.candidates,
        )
    if breach.attribution.verdict == SELF:
        return _scale(at, "its own load grew")
    if breach.attribution.verdict == NEIGHBOUR:
        return _evict(at)
    # A faulty device is remediation's to take out; for an unknown cause nobody is punished.
    return None


def _differs(breach: Breach, attribution: facts.Attribution, candidates: tuple[facts.Candidate, ...]) -> bool:
    """Whether a new look says something that the log does not (the wording of reasons apart)."""
    then = breach.attribution
    return (then.verdict, then.device, then.engine, breach.candidates) != (
        attribution.verdict,
        attribution.device,
        attribution.engine,
        candidates,
    )


def _evict(at: Round) -> Payload | None:
    """The next victim; scale-up where none may be taken."""
    breach, where = at.breach, at.breach.attribution
    if at.case.circuit_until is not None and at.now < at.case.circuit_until:
        return _scale(at, "the circuit is open")
    if any(c.excluded == TERMINATING for c in breach.candidates):
        # Relief is in flight; a pod that never goes must not be waited for without end.
        patience = timedelta(seconds=at.policy.grace_s + at.policy.relief_wait_s)
        return _scale(at, "a neighbour does not go") if at.now - breach.opened_at >= patience else None
    if breach.rehearsed and at.policy.dry_run:
        return None
    victim = _victim(at)
    if victim is None:
        return _scale(at, "no neighbour may be evicted")
    if breach.retry_at is not None and at.now < breach.retry_at:
        return None
    return facts.SlaStepProposed(
        breach_id=breach.id,
        pod=victim.pod,
        tier=victim.tier,
        attempt=breach.attempts + 1,
        share=victim.share,
        engine=where.engine or "",
        device=where.device or "",
        node=where.node or "",
        tenant=victim.tenant,
    )


def _victim(at: Round) -> facts.Candidate | None:
    rest = timedelta(seconds=at.policy.retry_s)
    resting = {uid for uid, tried_at in at.breach.tried if at.now - tried_at < rest}
    return next((c for c in at.breach.candidates if not c.excluded and c.pod.uid not in resting), None)


def _headroom(at: Round) -> Payload | None:
    """One more replica after an eviction: the evicted pod's owner will bring it back."""
    if not at.policy.scale_after_eviction or at.breach.acted != EVICTION or at.breach.scales:
        return None
    return _scale(at, "a neighbour was evicted and may come back")


def _scale(at: Round, why: str) -> Payload | None:
    breach, replicas = at.breach, at.look.replicas
    if replicas is None or (breach.scale_until is not None and at.now < breach.scale_until):
        return None
    wanted = replicas + at.policy.scale_step
    until = at.now + timedelta(seconds=at.policy.scale_lease_s)
    request_id = f"{breach.id}-{breach.scales + 1}"
    if at.policy.dry_run:
        return facts.SlaStepRefused(
            breach_id=breach.id,
            cause_id=request_id,
            reason=f"dry-run: would ask for {wanted} replicas, because {why}",
            retry_at=until,
        )
    return facts.ScaleRequested(
        breach_id=breach.id,
        request_id=request_id,
        workload=breach.workload,
        reason=why,
        min_replicas=wanted,
        until=until,
    )


def _settled_at(breach: Breach, acted_at: datetime, policy: GuardianPolicy) -> datetime:
    return acted_at + timedelta(seconds=policy.grace_s if breach.acted == EVICTION else policy.scale_settle_s)


def judge_by(breach: Breach, acted_at: datetime, policy: GuardianPolicy) -> datetime:
    """When the last step is judged even without samples."""
    return _settled_at(breach, acted_at, policy) + timedelta(seconds=policy.relief_wait_s)


def _judged(at: Round, acted_at: datetime) -> Payload | None:
    """Whether the last step helped: by the first samples after its grace period, or by full recovery."""
    breach, policy, series = at.breach, at.policy, at.look.series
    measured = series.since(_settled_at(breach, acted_at, policy))[: policy.relief_samples]
    if at.reading.recovered and len(series.since(acted_at)) >= policy.exit_samples:
        measured = at.reading.window_ms[-policy.exit_samples :]
    elif len(measured) < policy.relief_samples:
        return judged_blind(breach, at.now, policy)
    after = max(measured)
    if after <= at.target_ms or after <= breach.observed * (1 - policy.relief_ratio):
        return facts.Relieved(
            breach_id=breach.id,
            before=breach.observed,
            after=after,
            window_s=(at.now - acted_at).total_seconds(),
        )
    return facts.ReliefMissed(
        breach_id=breach.id, n=breach.judgements + 1, before=breach.observed, after=after
    )


def judged_blind(breach: Breach, now: datetime, policy: GuardianPolicy) -> Payload | None:
    """Without samples nothing helped, once they have been waited for."""
    if breach.acted_at is None or now < judge_by(breach, breach.acted_at, policy):
        return None
    return facts.ReliefMissed(breach_id=breach.id, n=breach.judgements + 1, before=breach.observed)


def observed(reading: Reading) -> float:
    """The latency to state, ms: the newest, else the worst of the window."""
    return reading.latest_ms if reading.latest_ms is not None else max(reading.window_ms)
