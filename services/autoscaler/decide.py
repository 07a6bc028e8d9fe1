"""What the autoscaler decides: how high a request may lift a workload, for how long, and what is given back.

A request is a *lift*: a level wanted until a time. Where an HPA targets the workload its floor is lifted
(`minReplicas`), because a patched `scale` would be walked back at its next sync; elsewhere the replicas are.
When a lift ends, the level falls to the highest one still wanted, at last to what stood before. A level that
is no longer what we set is a person's, and stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from services.autoscaler.lease import FloorLease
from services.autoscaler.policy import AutoscalerPolicy
from shared.deciders.protocol import Effect
from shared.events import AnyEvent, Entity, Payload
from shared.events import workload as facts
from shared.events.parts import WorkloadRef
from shared.events.remediation import HoldRequested, ReleaseRequested, ReplacementRequested

SCALE, FLOOR, RESTORE = "scale", "min-replicas-lease", "restore"
"""Modes of an order."""

RAISE_N, RESTORE_N = 1, 2
"""Numbers of a request's two orders."""

_TIMEOUT_S = 2.0
"""Of one try: a few reads and a write; a lease must last longer than this."""
_REMEMBERED = 64
_SNAPSHOT_AFTER = 8

Request = facts.ScaleRequested | ReplacementRequested


@dataclass(frozen=True, slots=True)
class Floor:
    """An HPA that targets the workload."""

    name: str
    low: int
    high: int
    lease: FloorLease | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """What the API server says now.

    Attributes:
        replicas: asked for; None when the workload is gone or has no such number.
        floors: the HPAs that target it.
    """

    workload: WorkloadRef
    replicas: int | None
    floors: tuple[Floor, ...] = ()

    @property
    def level(self) -> int:
        """What a lift raises: the HPA's floor, else the replicas."""
        return self.floors[0].low if self.floors else self.replicas or 0


@dataclass(frozen=True, slots=True)
class Lift:
    """A level that is wanted until a time, and was applied."""

    request_id: str
    by: str
    to: int
    until: datetime


@dataclass(frozen=True, slots=True)
class ScaleCase:
    """What the log of one workload says.

    Attributes:
        lifts: applied and not expired.
        orders: ordered and without outcome, oldest first.
        base: the level to return to.
        level: the level that we set last; None while nothing is lifted.
        hpa: name of the HPA whose floor is lifted; None where the replicas are.
        seen: request ids that were answered.
    """

    of: Entity
    workload: WorkloadRef | None = None
    lifts: tuple[Lift, ...] = ()
    orders: tuple[AnyEvent, ...] = ()
    base: int | None = None
    level: int | None = None
    hpa: str | None = None
    held: tuple[str, str, datetime | None] | None = None
    seen: tuple[str, ...] = ()
    applied: tuple[str, ...] = ()
    facts: int = 0


class AutoscalerDecider:
    """One case per workload, in the logs of domain `scale`."""

    domain = "scale"

    def initial(self, of: Entity) -> ScaleCase:
        """The case of an empty log."""
        return ScaleCase(of)

    def evolve(self, case: ScaleCase, fact: AnyEvent, sequence: int) -> ScaleCase:
        """The case after one more fact."""
        del sequence
        applied = case.applied
        if fact.causationid is not None and fact.causationid not in applied:
            applied = (*applied, fact.causationid)[-_REMEMBERED:]
        case = replace(case, applied=applied, facts=case.facts + 1)
        data = fact.data
        match data:
            case facts.ScaleHeld():
                return replace(case, held=(data.command_id, data.owner, data.until))
            case facts.ScaleReleased():
                return replace(case, held=None)
            case facts.ScaleSnapshotted():
                state = data.state
                return replace(
                    case,
                    facts=0,
                    seen=tuple(state.get("seen", ())),
                    applied=tuple(state.get("applied", ())),
                )
            case facts.ScaleOrdered():
                return _ordered(case, data, fact)
            case facts.ScaleApplied() | facts.ScaleRefused() | facts.ScaleExpired():
                return _answered(case, data)
        return case

    def decide(
        self,
        case: ScaleCase,
        cause: AnyEvent,
        context: Observed | None,
        now: datetime,
        policy: AutoscalerPolicy,
    ) -> Payload | None:
        """The fact that a request or a person's word leads to."""
        data = cause.data
        if cause.id in case.applied:
            return None
        if isinstance(data, HoldRequested):
            return facts.ScaleHeld(
                command_id=data.request_id, owner=data.owner, reason=data.reason, until=data.until
            )
        if isinstance(data, ReleaseRequested) and case.held is not None:
            return facts.ScaleReleased(command_id=data.request_id, owner=data.owner, reason=data.reason)
        if isinstance(data, facts.ScaleRequested | ReplacementRequested) and data.request_id not in case.seen:
            return _answer(case, data, context, now, by=cause.id, policy=policy)
        return None

    def next(
        self, case: ScaleCase, context: Observed | None, now: datetime, policy: AutoscalerPolicy
    ) -> Payload | None:
        """Give back what is over, once nothing else is on its way."""
        del policy
        if case.held is not None:
            command_id, _, until = case.held
            if until is None or now < until:
                return None
            return facts.ScaleReleased(
                command_id=command_id, owner="autoscaler", reason="the hold's time is over"
            )
        if case.orders:
            return None
        over = min((x for x in case.lifts if x.until <= now), key=lambda x: (x.to, x.until), default=None)
        if over is not None:
            return _give_back(case, over, now)
        if not case.lifts and context is not None:
            return _orphan(context, now)
        return None

    def effects(self, case: ScaleCase) -> Sequence[Effect]:
        """The oldest order: one at a time, so that each finds what the one before left."""
        if not case.orders:
            return ()
        order = case.orders[0].data
        key = f"{order.request_id}:{order.n}" if isinstance(order, facts.ScaleOrdered) else ""
        return (Effect(key, case.orders[0], _TIMEOUT_S, ready=case.held is None),)

    def due(self, case: ScaleCase, policy: AutoscalerPolicy) -> datetime | None:
        """The end of the next lift, or of a person's hold."""
        del policy
        if case.held is not None:
            return case.held[2]
        return None if case.orders else min((lift.until for lift in case.lifts), default=None)

    def closed(self, case: ScaleCase) -> bool:
        """Nothing is lifted, on its way or held."""
        return not case.lifts and not case.orders and case.held is None

    def snapshot(self, case: ScaleCase) -> Payload | None:
        """The requests that were answered, and the causes that were applied."""
        if not self.closed(case) or case.facts < _SNAPSHOT_AFTER:
            return None
        last = case.seen[-1] if case.seen else "none"
        return facts.ScaleSnapshotted(
            request_id=last, state={"seen": list(case.seen), "applied": list(case.applied)}
        )


def _answer(
    case: ScaleCase,
    asked: Request,
    seen: Observed | None,
    now: datetime,
    *,
    by: str,
    policy: AutoscalerPolicy,
) -> Payload | None:
    if seen is None:
        return None
    why = _impossible(case, asked, seen, now)
    if why:
        return facts.ScaleRefused(request_id=asked.request_id, reason=why, by=by)
    pending = [order.data.to for order in case.orders if isinstance(order.data, facts.ScaleOrdered)]
    if isinstance(asked, facts.ScaleRequested):
        wanted = asked.min_replicas
    else:
        wanted = max([seen.replicas or 0, *pending]) + 1
    highest = seen.floors[0].high if seen.floors else policy.max_replicas
    to, level = min(wanted, highest), max([seen.level, *pending])
    mode = FLOOR if seen.floors else SCALE
    if to <= level < wanted:
        why = f"{level} replicas are the most allowed, {wanted} were wanted"
        return facts.ScaleRefused(request_id=asked.request_id, reason=why, by=by)
    if to <= level:
        return facts.ScaleApplied(
            request_id=asked.request_id,
            workload=asked.workload,
            from_=level,
            to=level,
            mode=mode,
            by=by,
        )
    if policy.dry_run:
        why = f"dry-run: would raise {mode} from {seen.level} to {to}"
        return facts.ScaleRefused(request_id=asked.request_id, reason=why, by=by)
    ours = case.base is not None and (case.orders or seen.level == case.level)
    return facts.ScaleOrdered(
        request_id=asked.request_id,
        n=RAISE_N,
        workload=asked.workload,
        from_=seen.level,
        to=to,
        mode=mode,
        hpa=seen.floors[0].name if seen.floors else None,
        restore_to=case.base if ours else seen.level,
        by=by,
        until=min(asked.until, now + timedelta(seconds=policy.longest_lease_s)),
    )


def _impossible(case: ScaleCase, asked: Request, seen: Observed, now: datetime) -> str:
    """Why a request cannot be served at all."""
    if asked.until <= now:
        return f"too late: it was wanted until {asked.until:%H:%M:%S}"
    if case.held is not None:
        return f"held by {case.held[1]}"
    if seen.replicas is None:
        return f"{asked.workload.kind} {asked.workload.name} is gone or cannot be scaled"
    if len(seen.floors) > 1:
        names = ", ".join(floor.name for floor in seen.floors)
        return f"more than one HPA targets it ({names}): leave one"
    return ""


def _give_back(case: ScaleCase, over: Lift, now: datetime) -> Payload:
    rest = [lift.to for lift in case.lifts if lift.request_id != over.request_id]
    to = max([*rest, case.base or 0])
    if case.level is None or to >= case.level or case.workload is None:
        return facts.ScaleExpired(
            request_id=over.request_id, n=RESTORE_N, reason="a longer request holds the level"
        )
    return facts.ScaleOrdered(
        request_id=over.request_id,
        n=RESTORE_N,
        workload=case.workload,
        from_=case.level,
        to=to,
        mode=RESTORE,
        hpa=case.hpa,
        restore_to=case.base,
        by=over.by,
        until=max((lift.until for lift in case.lifts if lift is not over), default=now),
    )


def _orphan(seen: Observed, now: datetime) -> Payload | None:
    """A lease that stands on an HPA and in no log of ours: given back when its time is over."""
    for floor in seen.floors:
        if floor.lease is not None and floor.lease.until <= now:
            return facts.ScaleOrdered(
                request_id=floor.lease.request,
                n=RESTORE_N,
                workload=seen.workload,
                from_=floor.lease.raised,
                to=floor.lease.before,
                mode=RESTORE,
                hpa=floor.name,
                restore_to=floor.lease.before,
                by="the lease on the HPA",
                until=now,
            )
    return None


def _ordered(case: ScaleCase, data: facts.ScaleOrdered, fact: AnyEvent) -> ScaleCase:
    return replace(
        case,
        workload=data.workload,
        orders=(*case.orders, fact),
        seen=_with(case.seen, data.request_id),
        base=data.restore_to,
        hpa=data.hpa,
    )


def _answered(
    case: ScaleCase, data: facts.ScaleApplied | facts.ScaleRefused | facts.ScaleExpired
) -> ScaleCase:
    order = _order(case, data)
    rest = tuple(other for other in case.orders if order is None or other.data is not order)
    case = replace(case, orders=rest, seen=_with(case.seen, data.request_id))
    if isinstance(data, facts.ScaleApplied) and order is not None:
        lift = Lift(order.request_id, order.by, data.to, order.until)
        case = replace(case, lifts=(*case.lifts, lift), level=max(data.to, case.level or 0))
    if isinstance(data, facts.ScaleExpired):
        lifts = tuple(lift for lift in case.lifts if lift.request_id != data.request_id)
        case = replace(case, lifts=lifts, level=order.to if order is not None else case.level)
    if not case.lifts and not case.orders:
        case = replace(case, base=None, level=None, hpa=None)
    return case


def _order(
    case: ScaleCase, data: facts.ScaleApplied | facts.ScaleRefused | facts.ScaleExpired
) -> facts.ScaleOrdered | None:
    for order in case.orders:
        made = order.data
        if isinstance(made, facts.ScaleOrdered) and (made.request_id, made.n) == (data.request_id, data.n):
            return made
    return None


def _with(seen: tuple[str, ...], request_id: str) -> tuple[str, ...]:
    return seen if request_id in seen else (*seen, request_id)[-_REMEMBERED:]
