"""The life of one workload's breaches, folded from its log.

breached -> [attributed] -> step-proposed -> (granted) -> eviction-ordered -> pod-evicted
         -> scale-requested -> relieved | relief-missed -> the next round, or circuit-opened
         -> restored | closed
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from shared.events import AnyEvent, Entity
from shared.events import workload as facts
from shared.events.parts import PodRef, WorkloadRef

_REMEMBERED = 64
"""Causes remembered per case: more than a lane can hold of one workload between two acknowledgements."""

EVICTION, SCALE = "eviction", "scale"


@dataclass(frozen=True, slots=True)
class Order:
    """The eviction that is on its way."""

    event: AnyEvent
    pod: PodRef
    attempt: int
    deadline: datetime


@dataclass(frozen=True, slots=True)
class Breach:
    """One open breach.

    Attributes:
        observed: latency in ms that the current round started from.
        looks: how often the cause was looked for, last at `looked_at`; None: it must be looked for again.
        proposal: what waits for the budget's answer, since `proposed_at`.
        retry_at: nothing is proposed before.
        tried: pods already tried, and when.
        acted: what was done last (eviction or scale), at `acted_at`; None once its relief is judged.
        scale_until: how long the replicas asked for are wanted; nothing more is asked meanwhile.
    """

    id: str
    pod: PodRef
    workload: WorkloadRef
    target: float
    observed: float
    opened_at: datetime
    attribution: facts.Attribution
    candidates: tuple[facts.Candidate, ...]
    looked_at: datetime | None
    looks: int = 1
    proposal: facts.SlaStepProposed | None = None
    proposed_at: datetime | None = None
    retry_at: datetime | None = None
    order: Order | None = None
    tried: tuple[tuple[str, datetime], ...] = ()
    attempts: int = 0
    evictions: int = 0
    rehearsed: bool = False
    acted: str | None = None
    acted_at: datetime | None = None
    judgements: int = 0
    scales: int = 0
    scale_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """A person's word."""

    command_id: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class SlaCase:
    """What the log of one workload says.

    Attributes:
        misses: evictions in a row that did not help, over breaches.
        circuit_until: nobody is evicted for this workload before.
        applied: ids of the causes whose facts are in the log.
        facts: facts since the last snapshot.
    """

    of: Entity
    breach: Breach | None = None
    last_breach_id: str = ""
    misses: int = 0
    circuit_until: datetime | None = None
    hold: Hold | None = None
    applied: tuple[str, ...] = ()
    last_at: datetime | None = None
    facts: int = 0


def evolve(case: SlaCase, fact: AnyEvent, sequence: int) -> SlaCase:
    """The case after one more fact of its log."""
    del sequence
    applied = case.applied
    if fact.causationid is not None and fact.causationid not in applied:
        applied = (*applied, fact.causationid)[-_REMEMBERED:]
    last = fact.time if case.last_at is None else max(case.last_at, fact.time)
    case = replace(case, applied=applied, last_at=last, facts=case.facts + 1)
    data = fact.data
    match data:
        case facts.SlaHeld():
            case = replace(case, hold=Hold(data.command_id, data.until))
        case facts.SlaReleased():
            case = replace(case, hold=None)
        case facts.SlaSnapshotted():
            case = restored(case, data)
        case facts.Breached():
            case = replace(case, breach=_opened(data, fact.time), last_breach_id=data.breach_id)
        case facts.BreachPayload(breach_id=of) if case.breach is not None and of == case.breach.id:
            case = _further(case, case.breach, fact)
        case _:
            pass
    return case


def snapshot(case: SlaCase) -> facts.SlaSnapshotted:
    """What must outlive a closed breach."""
    until = case.circuit_until
    return facts.SlaSnapshotted(
        breach_id=case.last_breach_id,
        state={
            "misses": case.misses,
            "circuit_until": until.isoformat() if until else None,
            "applied": list(case.applied),
        },
    )


def restored(case: SlaCase, data: facts.SlaSnapshotted) -> SlaCase:
    """The case that a snapshot stands for."""
    until = data.state.get("circuit_until")
    return replace(
        case,
        last_breach_id=data.breach_id,
        misses=int(data.state.get("misses", 0)),
        circuit_until=datetime.fromisoformat(until) if until else None,
        applied=tuple(data.state.get("applied", ())),
        facts=0,
    )


def _opened(data: facts.Breached, at: datetime) -> Breach:
    return Breach(
        id=data.breach_id,
        pod=data.pod,
        workload=data.workload,
        target=data.target,
        observed=data.observed,
        opened_at=at,
        attribution=data.attribution,
        candidates=data.candidates,
        looked_at=at,
    )


def _further(case: SlaCase, breach: Breach, fact: AnyEvent) -> SlaCase:
    data = fact.data
    if isinstance(data, facts.Restored | facts.SlaClosed):
        return replace(case, breach=None)
    if isinstance(data, facts.CircuitOpened):
        return replace(case, circuit_until=data.until, misses=0)
    if isinstance(data, facts.Relieved | facts.ReliefMissed):
        missed = isinstance(data, facts.ReliefMissed) and breach.acted == EVICTION
        misses = case.misses + 1 if missed else (0 if isinstance(data, facts.Relieved) else case.misses)
        judged = replace(breach, acted=None, acted_at=None, judgements=breach.judgements + 1, looked_at=None)
        return replace(case, misses=misses, breach=judged)
    return replace(case, breach=_step(breach, data, fact)) if isinstance(data, facts.BreachPayload) else case


def _step(breach: Breach, data: facts.BreachPayload, fact: AnyEvent) -> Breach:
    if isinstance(data, facts.Attributed):
        return replace(
            breach,
            observed=data.observed,
            attribution=data.attribution,
            candidates=data.candidates,
            looked_at=fact.time,
            looks=data.n,
        )
    if isinstance(data, facts.SlaStepProposed):
        return replace(
            breach, proposal=data, proposed_at=fact.time, retry_at=None, attempts=breach.attempts + 1
        )
    if isinstance(data, facts.SlaEvictionOrdered):
        order = Order(fact, data.pod, data.attempt, data.deadline)
        return replace(breach, proposal=None, proposed_at=None, order=order)
    if isinstance(data, facts.SlaPodEvicted):
        return _evicted(breach, data, fact.time)
    if isinstance(data, facts.SlaStepRefused):
        return _refused(breach, data)
    if isinstance(data, facts.ScaleRequested):
        breach = replace(breach, scales=breach.scales + 1, scale_until=data.until)
        return breach if breach.acted else replace(breach, acted=SCALE, acted_at=fact.time)
    return breach


def _evicted(breach: Breach, data: facts.SlaPodEvicted, at: datetime) -> Breach:
    breach = replace(breach, order=None, tried=(*breach.tried, (data.pod.uid, at)), looked_at=None)
    if data.outcome in ("evicted", "gone"):
        return replace(breach, evictions=breach.evictions + 1, acted=EVICTION, acted_at=at)
    if data.outcome == "dry-run":
        return replace(breach, rehearsed=True)
    return breach


def _refused(breach: Breach, data: facts.SlaStepRefused) -> Breach:
    if not data.pod_uid:
        return replace(breach, scale_until=data.retry_at or breach.scale_until)
    proposal = breach.proposal
    if proposal is None or proposal.pod.uid != data.pod_uid or proposal.attempt != data.attempt:
        return breach
    return replace(breach, proposal=None, proposed_at=None, retry_at=data.retry_at, looked_at=None)
