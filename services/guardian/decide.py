"""What the guardian decides: breach, cause, the next step of the ladder, and whether it helped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from services.guardian import budget
from services.guardian import case as cases
from services.guardian.attribution import UNKNOWN
from services.guardian.budget import BUDGET, BudgetCase, FleetLook
from services.guardian.case import Breach, SlaCase
from services.guardian.ladder import Look, Round, follow, judge_by, judged_blind, observed
from services.guardian.policy import GuardianPolicy
from services.guardian.readings import read
from shared.deciders.protocol import Effect
from shared.events import AnyEvent, Entity, Payload
from shared.events import remediation as commands
from shared.events import workload as facts
from shared.events.world import Sampled

GuardianCase = SlaCase | BudgetCase

_EFFECT_TIMEOUT_S = 2.0
"""A read, the eviction and two Events, each far below a second; a lease must last longer than this."""
_SNAPSHOT_AFTER = 8


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
            return judged_blind(breach, now, policy)
        if look.alive is False or look.target is None or look.target.doubt:
            why = "the pod is gone" if look.alive is False else "the pod has no target any more"
            return facts.SlaClosed(breach_id=breach.id, reason=why)
        target_ms = look.target.latency_p99_ms
        reading = read(look.series, target_ms, now, policy)
        return follow(Round(case, breach, look, reading, target_ms, now, policy))

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
                times.append(judge_by(breach, breach.acted_at, policy))
        return min(times, default=None)

    def closed(self, case: GuardianCase) -> bool:
        """No breach is open and nobody holds the workload; the budget is not frozen."""
        if isinstance(case, BudgetCase):
            return not case.frozen
        return case.breach is None and case.hold is None

    def snapshot(self, case: GuardianCase) -> Payload | None:
        """What outlives the breach."""
        if isinstance(case, BudgetCase):
            return None if case.frozen else budget.snapshot(case)
        return cases.snapshot(case) if self.closed(case) and case.facts >= _SNAPSHOT_AFTER else None


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
        observed=observed(reading),
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
