"""The guardian's budget: one case for the fleet, so that two breaches cannot both take the last place.

A grant is a charge that ages: `device` and `node` for one round, tenant and fleet for the caps' window. What
was not carried out gives it back. While the measurements are suspect the budget is frozen and grants nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from services.guardian.policy import GuardianPolicy
from shared.events import FLEET, AnyEvent, Entity, Payload
from shared.events import workload as facts

BUDGET = Entity("sla", FLEET, "budget")

_REMEMBERED = 256
_SNAPSHOT_AFTER = 200
"""Facts in the log before a snapshot is worth one."""


@dataclass(frozen=True, slots=True)
class Charge:
    """One eviction that was granted."""

    at: datetime
    case: str
    breach_id: str
    pod_uid: str
    attempt: int
    device: str
    node: str
    tenant: str


@dataclass(frozen=True, slots=True)
class BudgetCase:
    """What the budget's log says."""

    charges: tuple[Charge, ...] = ()
    frozen: str = ""
    applied: tuple[str, ...] = ()
    facts: int = 0


@dataclass(frozen=True, slots=True)
class FleetLook:
    """What the budget reads from elsewhere.

    Attributes:
        pods: running pods of the fleet.
        brake: why nothing may be evicted now, whoever found it; empty when it may.
        suspect: why the measurements cannot be believed, which is ours to say; empty when they can.
    """

    pods: int
    brake: str = ""
    suspect: str = ""


def evolve(case: BudgetCase, fact: AnyEvent) -> BudgetCase:
    """The budget after one more fact of its log."""
    applied = case.applied
    if fact.causationid is not None and fact.causationid not in applied:
        applied = (*applied, fact.causationid)[-_REMEMBERED:]
    case = replace(case, applied=applied, facts=case.facts + 1)
    data = fact.data
    if isinstance(data, facts.SlaGranted):
        charge = Charge(
            fact.time,
            data.case,
            data.breach_id,
            data.pod_uid,
            data.attempt,
            data.device,
            data.node,
            data.tenant,
        )
        return replace(case, charges=(*case.charges, charge))
    if isinstance(data, facts.SlaReturned):
        return replace(case, charges=tuple(c for c in case.charges if not _same(c, data.case, data)))
    if isinstance(data, facts.SlaFrozen):
        return replace(case, frozen=data.freeze_id)
    if isinstance(data, facts.SlaThawed):
        return replace(case, frozen="")
    if isinstance(data, facts.SlaSnapshotted):
        return _restored(case, data.state)
    return case


def decide(
    case: BudgetCase, cause: AnyEvent, look: FleetLook | None, now: datetime, policy: GuardianPolicy
) -> Payload | None:
    """Answer a proposal, or take back a grant that was not used."""
    if cause.id in case.applied:
        return None
    data = cause.data
    if isinstance(data, facts.SlaStepProposed):
        limit = _limit(case, data, look, now, policy)
        return _answer(cause.subject, data, limit)
    unused = isinstance(data, facts.SlaStepRefused) or (
        isinstance(data, facts.SlaPodEvicted) and data.outcome not in ("evicted", "gone", "dry-run")
    )
    if unused and isinstance(data, facts.SlaStepRefused | facts.SlaPodEvicted):
        for charge in case.charges:
            if _same(charge, cause.subject, data):
                return facts.SlaReturned(
                    case=charge.case,
                    breach_id=charge.breach_id,
                    pod_uid=charge.pod_uid,
                    attempt=charge.attempt,
                    reason=data.reason if isinstance(data, facts.SlaStepRefused) else data.outcome,
                )
    return None


def follow(case: BudgetCase, look: FleetLook | None, now: datetime) -> Payload | None:
    """Freeze and thaw with the measurements."""
    if look is None:
        return None
    if look.suspect and not case.frozen:
        return facts.SlaFrozen(freeze_id=f"sla-{now:%Y%m%dT%H%M%S}", reason=look.suspect)
    if case.frozen and not look.suspect:
        return facts.SlaThawed(freeze_id=case.frozen, reason="the measurements can be believed again")
    return None


def snapshot(case: BudgetCase) -> facts.SlaSnapshotted | None:
    """The charges and remembered causes; None while the log is short."""
    if case.facts < _SNAPSHOT_AFTER:
        return None
    charges = [
        [c.at.isoformat(), c.case, c.breach_id, c.pod_uid, c.attempt, c.device, c.node, c.tenant]
        for c in case.charges[-_REMEMBERED:]
    ]
    return facts.SlaSnapshotted(breach_id="budget", state={"charges": charges, "applied": list(case.applied)})


def _restored(case: BudgetCase, state: dict[str, Any]) -> BudgetCase:
    charges = tuple(Charge(datetime.fromisoformat(at), *rest) for at, *rest in state.get("charges", ()))
    return replace(case, charges=charges, applied=tuple(state.get("applied", ())), facts=0)


def _answer(case: str, data: facts.SlaStepProposed, limit: tuple[str, datetime] | None) -> Payload:
    about = {"case": case, "breach_id": data.breach_id, "pod_uid": data.pod.uid}
    if limit is not None:
        why, retry_at = limit
        return facts.SlaDenied(**about, attempt=data.attempt, limited_by=why, retry_at=retry_at)
    return facts.SlaGranted(
        **about, attempt=data.attempt, device=data.device, node=data.node, tenant=data.tenant
    )


def _limit(
    case: BudgetCase,
    data: facts.SlaStepProposed,
    look: FleetLook | None,
    now: datetime,
    policy: GuardianPolicy,
) -> tuple[str, datetime] | None:
    """The cap that is reached and when it has room again."""
    soon = now + timedelta(seconds=policy.reattribute_s)
    if look is None:
        return "the fleet is not known yet", soon
    if look.brake or case.frozen:
        return f"frozen: {look.brake or case.frozen}", soon
    round_s = policy.grace_s + policy.relief_wait_s
    fleet = max(policy.fleet_at_least, math.floor(look.pods * policy.fleet_percent / 100))
    for scope, cap, window_s, charges in (
        (
            f"device:{data.node}/{data.device}",
            policy.per_device,
            round_s,
            [c for c in case.charges if (c.node, c.device) == (data.node, data.device)],
        ),
        (f"node:{data.node}", policy.per_node, round_s, [c for c in case.charges if c.node == data.node]),
        (
            f"tenant:{data.tenant}",
            policy.per_tenant,
            policy.caps_window_s,
            [c for c in case.charges if c.tenant == data.tenant],
        ),
        ("fleet", fleet, policy.caps_window_s, list(case.charges)),
    ):
        window = timedelta(seconds=window_s)
        recent = [c.at for c in charges if now - c.at < window]
        if len(recent) >= cap:
            free_at = recent[-cap] + window if cap else soon
            return f"{scope} (at most {cap} in {window_s:g} s)", free_at
    return None


def _same(
    charge: Charge, case: str, data: facts.SlaReturned | facts.SlaStepRefused | facts.SlaPodEvicted
) -> bool:
    uid = data.pod.uid if isinstance(data, facts.SlaPodEvicted) else data.pod_uid
    return (charge.case, charge.breach_id, charge.pod_uid, charge.attempt) == (
        case,
        data.breach_id,
        uid,
        data.attempt,
    )
