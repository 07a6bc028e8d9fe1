"""What the guardian decides: breach, cause, the next step of the ladder, and whether it helped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from services.guardian import budget
from services.guardian import case as cases
from services.guardian.annotation import Target
from services.guardian.attribution import NEIGHBOUR, SELF, TERMINATING, UNKNOWN
from services.guardian.budget import BUDGET, BudgetCase, FleetLook
from services.guardian.case import EVICTION, Breach, SlaCase
from services.guardian.policy import GuardianPolicy
from services.guardian.readings import Reading, Series, read
from shared.deciders.protocol import Effect
from shared.events import AnyEvent, Entity, Payload
from shared.events import remediation as commands
from shared.events import workload as facts
from shared.events.parts import PodRef, WorkloadRef
from shared.events.world import Sampled

GuardianCase = SlaCase | BudgetCase

_EFFECT_TIMEOUT_S = 2.0
"""A read, the eviction and two Events, each far below a second; a lease must last longer than this."""
_SNAPSHOT_AFTER = 8


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


class GuardianDecider:
    """The cases of all workloads and the budget's, in the logs of domain `sla`."""

    domain = "sla"

    def initial(self, of: Entity) -> GuardianCase:
        """The case of an empty log."""
        return BudgetCase() if of == BUDGET else SlaCase(of)

    def evolve(self, case: GuardianCase, fact: AnyEvent, sequence: int) -> GuardianCase:
        """The case after one more fact."""
        if isinstance(case, BudgetCase):
            return budget.evolve(case, fact)
        return cases.evolve(case, fact, sequence)

    def decide(
        self,
        case: GuardianCase,
        cause: AnyEvent,
        context: Look | FleetLook | None,
        now: datetime,
        policy: GuardianPolicy,
    ) -> Payload | None:
        """The fact that a heard event leads to."""
        if isinstance(case, BudgetCase):
            return budget.decide(
                case, cause, context if isinstance(context, FleetLook) else None, now, policy
            )
        if cause.id in case.applied:
            return None
        look = context if isinstance(context, Look) else None
        data = cause.data
        if isinstance(data, Sampled):
            return _breach(case, cause, look, now, policy)
        if isinstance(data, facts.SlaGranted):
            return _granted(case, cause, data, now, policy)
        if isinstance(data, facts.SlaDenied):
            return _denied(case, cause, data)
        if isinstance(data, commands.HoldRequested):
            return facts.SlaHeld(
                command_id=data.request_id, owner=data.owner, reason=data.reason, until=data.until
            )
        if isinstance(data, commands.ReleaseRequested) and case.hold is not None:
            return facts.SlaReleased(command_id=data.request_id, owner=data.owner, reason=data.reason)
        return None

    def next(
        self,
        case: GuardianCase,
        context: Look | FleetLook | None,
        now: datetime,
        policy: GuardianPolicy,
    ) -> Payload | None:
        """The fact that follows from the case itself."""
        if isinstance(case, BudgetCase):
            return budget.follow(case, context if isinstance(context, FleetLook) else None, now)
        hold = case.hold
        if hold is not None and hold.until is not None and now >= hold.until:
            return facts.SlaReleased(
                command_id=hold.command_id, owner="guardian", reason="the hold's time is over"
            )
        breach = case.breach
        late = None if breach is None else _too_late(breach, now, policy)
        if breach is None or late is not None or breach.order is not None or hold is not None:
            return late
        look = context if isinstance(context, Look) and context.pod.uid == breach.pod.uid else None
        if look is None:
            return _judged_blind(breach, now, policy)
        if look.alive is False or look.target is None or look.target.doubt:
            why = "the pod is gone" if look.alive is False else "the pod has no target any more"
            return facts.SlaClosed(breach_id=breach.id, reason=why)
        target_ms = look.target.latency_p99_ms
        reading = read(look.series, target_ms, now, policy)
        return _follow(_Round(case, breach, look, reading, target_ms, now, policy))

    def effects(self, case: GuardianCase) -> Sequence[Effect]:
        """The eviction that has no outcome yet."""
        if isinstance(case, BudgetCase) or case.breach is None or case.breach.order is None:
            return ()
        order = case.breach.order
        key = f"evict:{order.pod.uid}:{order.attempt}"
        return (Effect(key, order.event, _EFFECT_TIMEOUT_S, ready=case.hold is None),)

    def due(self, case: GuardianCase, policy: GuardianPolicy) -> datetime | None:
        """The next deadline."""
        if isinstance(case, BudgetCase):
            return None
        times = [] if case.hold is None or case.hold.until is None else [case.hold.until]
        if (breach := case.breach) is not None:
            if breach.order is not None:
                times.append(breach.order.deadline)
            if breach.proposed_at is not None:
                times.append(breach.proposed_at + timedelta(seconds=policy.grant_wait_s))
            if breach.acted_at is not None:
                times.append(_judge_by(breach, breach.acted_at, policy))
        return min(times, default=None)

    def closed(self, case: GuardianCase) -> bool:
        """No breach is open and nobody holds the workload; the budget is not frozen."""
        if isinstance(case, BudgetCase):
            return not case.frozen
        return case.breach is None and case.hold is None

    def snapshot(self, case: GuardianCase) -> Payload | None:
        """What outlives the breach."""
        if isinstance(case, BudgetCase):
            return budget.snapshot(case)
        return cases.snapshot(case) if case.facts >= _SNAPSHOT_AFTER else None


def _breach(
    case: SlaCase, cause: AnyEvent, look: Look | None, now: datetime, policy: GuardianPolicy
) -> Payload | None:
    if case.breach is not None or case.hold is not None or look is None or look.alive is False:
        return None
    if look.target is None or look.target.doubt or look.workload is None:
        return None
    reading = read(look.series, look.target.latency_p99_ms, now, policy)
    if not reading.breached:
        return None
    return facts.Breached(
        breach_id=f"{look.pod.name}-{cause.id[:8]}",
        pod=look.pod,
        workload=look.workload,
        target=look.target.latency_p99_ms,
        observed=_observed(reading),
        samples=reading.window_ms,
        attribution=look.attribution or facts.Attribution(verdict=UNKNOWN, reasons=("nothing is known",)),
        candidates=look.candidates,
    )


def _granted(
    case: SlaCase, cause: AnyEvent, data: facts.SlaGranted, now: datetime, policy: GuardianPolicy
) -> Payload:
    breach = case.breach
    proposal = breach.proposal if breach is not None else None
    if proposal is None or (proposal.breach_id, proposal.pod.uid, proposal.attempt) != (
        data.breach_id,
        data.pod_uid,
        data.attempt,
    ):
        why = "the breach is over" if breach is None else "the proposal is no longer standing"
    elif case.hold is not None:
        why = "a person holds the workload"
    else:
        return facts.SlaEvictionOrdered(
            breach_id=proposal.breach_id,
            pod=proposal.pod,
            tier=proposal.tier,
            attempt=proposal.attempt,
            share=proposal.share,
            engine=proposal.engine,
            deadline=now + timedelta(seconds=policy.order_within_s),
            dry_run=policy.dry_run,
        )
    return facts.SlaStepRefused(
        breach_id=data.breach_id,
        cause_id=cause.id,
        reason=why,
        pod_uid=data.pod_uid,
        attempt=data.attempt,
    )


def _denied(case: SlaCase, cause: AnyEvent, data: facts.SlaDenied) -> Payload | None:
    proposal = case.breach.proposal if case.breach is not None else None
    if proposal is None or (proposal.pod.uid, proposal.attempt) != (data.pod_uid, data.attempt):
        return None
    return facts.SlaStepRefused(
        breach_id=data.breach_id,
        cause_id=cause.id,
        reason=f"no budget: {data.limited_by}",
        pod_uid=data.pod_uid,
        attempt=data.attempt,
        retry_at=data.retry_at,
    )


def _too_late(breach: Breach, now: datetime, policy: GuardianPolicy) -> Payload | None:
    """What a passed deadline means: an order without outcome is void, an unanswered proposal is given up."""
    order = breach.order
    if order is not None and now >= order.deadline:
        return facts.SlaPodEvicted(
            breach_id=breach.id,
            pod=order.pod,
            attempt=order.attempt,
            outcome="failed",
            detail="no outcome before its deadline",
        )
    proposal, since = breach.proposal, breach.proposed_at
    if proposal is None or since is None or now < since + timedelta(seconds=policy.grant_wait_s):
        return None
    return facts.SlaStepRefused(
        breach_id=breach.id,
        cause_id=f"grant-wait-{proposal.pod.uid}-{proposal.attempt}",
        reason=f"the budget did not answer within {policy.grant_wait_s:g} s",
        pod_uid=proposal.pod.uid,
        attempt=proposal.attempt,
    )


@dataclass(frozen=True, slots=True)
class _Round:
    """One look at an open breach."""

    case: SlaCase
    breach: Breach
    look: Look
    reading: Reading
    target_ms: float
    now: datetime
    policy: GuardianPolicy


def _follow(at: _Round) -> Payload | None:
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


def _act(at: _Round) -> Payload | None:
    """Look for the cause again when the last look is old, then act on the verdict in the log."""
    breach, look = at.breach, at.look
    old = breach.looked_at is None or at.now - breach.looked_at >= timedelta(seconds=at.policy.reattribute_s)
    if old and look.attribution is None:
        return None
    if old and look.attribution is not None and _differs(breach, look.attribution, look.candidates):
        return facts.Attributed(
            breach_id=breach.id,
            n=breach.looks + 1,
            observed=_observed(at.reading),
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


def _evict(at: _Round) -> Payload | None:
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


def _victim(at: _Round) -> facts.Candidate | None:
    rest = timedelta(seconds=at.policy.retry_s)
    resting = {uid for uid, tried_at in at.breach.tried if at.now - tried_at < rest}
    return next((c for c in at.breach.candidates if not c.excluded and c.pod.uid not in resting), None)


def _headroom(at: _Round) -> Payload | None:
    """One more replica after an eviction: the evicted pod's owner will bring it back."""
    if not at.policy.scale_after_eviction or at.breach.acted != EVICTION or at.breach.scales:
        return None
    return _scale(at, "a neighbour was evicted and may come back")


def _scale(at: _Round, why: str) -> Payload | None:
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


def _judge_by(breach: Breach, acted_at: datetime, policy: GuardianPolicy) -> datetime:
    return _settled_at(breach, acted_at, policy) + timedelta(seconds=policy.relief_wait_s)


def _judged(at: _Round, acted_at: datetime) -> Payload | None:
    """Whether the last step helped: by the first samples after its grace period, or by full recovery."""
    breach, policy, series = at.breach, at.policy, at.look.series
    measured = series.since(_settled_at(breach, acted_at, policy))[: policy.relief_samples]
    if at.reading.recovered and len(series.since(acted_at)) >= policy.exit_samples:
        measured = at.reading.window_ms[-policy.exit_samples :]
    elif len(measured) < policy.relief_samples:
        return _judged_blind(breach, at.now, policy)
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


def _judged_blind(breach: Breach, now: datetime, policy: GuardianPolicy) -> Payload | None:
    """Without samples nothing helped, once they have been waited for."""
    if breach.acted_at is None or now < _judge_by(breach, breach.acted_at, policy):
        return None
    return facts.ReliefMissed(breach_id=breach.id, n=breach.judgements + 1, before=breach.observed)


def _observed(reading: Reading) -> float:
    return reading.latest_ms if reading.latest_ms is not None else max(reading.window_ms)
