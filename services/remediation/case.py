"""The case of one device: its states, and the fold of its log. Pure.

healthy ─> suspect ─> quarantined ─> draining ─> drained ─> diagnosing ─> repairing ─> validating ─> probation
   ^          │            (stuck)                    └──────────passed────────────────^              │
   └──────────┴─────────────────────────────── readmitted, closed <───────────────────────────────────┘
                    held (a person, or missing memory)            retired (until it is replaced)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, cast

from services.remediation.strikes import Mark, Strike
from shared.events import AnyEvent, Entity, Payload
from shared.events import remediation as say
from shared.events.parts import HEALTHY, UNKNOWN, PodRef

_APPLIED_KEPT = 128
_EPOCHS_KEPT = 32


class State(StrEnum):
    """Where a case stands."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    QUARANTINED = "quarantined"
    DRAINING = "draining"
    STUCK = "stuck"
    DRAINED = "drained"
    DIAGNOSING = "diagnosing"
    REPAIRING = "repairing"
    VALIDATING = "validating"
    PROBATION = "probation"
    READMITTED = "readmitted"
    RETIRED = "retired"
    HELD = "held"


OUT: Final = frozenset(
    {
        State.QUARANTINED,
        State.DRAINING,
        State.STUCK,
        State.DRAINED,
        State.DIAGNOSING,
        State.REPAIRING,
        State.VALIDATING,
        State.RETIRED,
    }
)
"""States in which no new pod may use the device."""

EVICTING: Final = frozenset({State.DRAINING, State.STUCK})
"""States in which pods may be evicted."""

MEMORY_OWNER: Final = "mediafleet"
"""Who holds a device that nobody remembers, or whose case came to no end."""

REPLACED = "replaced"
STRUCK_AGAIN = "struck in probation"
REOPENS: Final = {REPLACED: State.VALIDATING, STRUCK_AGAIN: State.QUARANTINED}
"""Reasons of a close after which the next epoch begins at once, and in which state."""

DONE: Final = frozenset({"evicted", "gone", "replaced"})
"""Outcomes after which a pod is not asked again."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """One pod of the drain and how far its eviction is.

    Attributes:
        planned: the pod, its tier ("" while the API server did not say) and workload.
        proposed: attempt of the proposal that waits for the budget; 0: none.
        proposals: how many there were.
        order: the eviction-ordered without an outcome.
        attempt: of the last order.
        outcome: of the last order; "" before one.
        retry_at: not asked again before this.
        replace_until: the wait for a replacement ends then; None: none was requested.
        replaced: the replacement was applied or refused.
    """

    planned: say.PlannedPod
    proposed: int = 0
    proposals: int = 0
    order: AnyEvent | None = None
    attempt: int = 0
    outcome: str = ""
    retry_at: datetime | None = None
    replace_until: datetime | None = None
    replaced: bool = False

    @property
    def done(self) -> bool:
        """The eviction needs nothing more."""
        return self.outcome in DONE

    @property
    def settled(self) -> bool:
        """It need not hold up the next tier: done, refused at least once, or not to be evicted at all."""
        return bool(self.outcome) or self.planned.opted_out


@dataclass(frozen=True, slots=True)
class Proposal:
    """A step of the case itself that waits for the budget.

    Attributes:
        late: nobody was there to ask when the device struck out; windows had become healthy meanwhile.
    """

    step: str
    attempt: int
    deadline: datetime
    late: bool = False


@dataclass(frozen=True)
class DeviceCase:
    """One device's case as its log tells it. `epoch` 0: the log is empty.

    It has no slots: a changed copy by way of the instance's dictionary takes 2 us, one of so many fields by
    way of the constructor 24 us, and every fact makes at least one.
    """

    of: Entity
    epoch: int = 0
    state: State = State.HEALTHY
    since: datetime | None = None
    opened_at: datetime | None = None
    last_at: datetime | None = None
    serial: str | None = None
    reason: str = ""
    seen: Mark = field(default_factory=Mark)
    strikes: tuple[Strike, ...] = ()
    needed: int = 0
    reached: int = 0
    verdict: str = UNKNOWN
    verdict_at: datetime | None = None
    streak: int = 0
    proposal: Proposal | None = None
    proposals: int = 0
    quarantined: bool = False
    scope: str = ""
    engines: tuple[str, ...] = ()
    deadline: datetime | None = None
    asked_by: str = ""
    superseded: tuple[str, ...] = ()
    fenced_by: str = ""
    plans: int = 0
    pods: tuple[Leaving, ...] = ()
    diagnosis: int = 0
    diagnosis_of_round: int = 0
    diagnosed: str = ""
    step: str = ""
    step_attempt: int = 0
    step_outcome: str = ""
    tried: tuple[str, ...] = ()
    rounds: int = 0
    validated: bool = False
    until: datetime | None = None
    hold: str = ""
    held_from: State = State.HEALTHY
    passed: str = ""
    tainted: bool = False
    taint_order: AnyEvent | None = None
    dry_refused: bool = False
    penalty: float = 0.0
    penalty_at: datetime | None = None
    epochs: tuple[datetime, ...] = ()
    reopen: str = ""
    commands: tuple[str, ...] = ()
    applied: tuple[str, ...] = field(default=())

    def having(self, **changes: Any) -> DeviceCase:
        """The case with these fields changed."""
        if not changes.keys() <= _FIELDS:
            raise TypeError(f"a case has no {', '.join(changes.keys() - _FIELDS)}")
        made = object.__new__(DeviceCase)
        made.__dict__.update(self.__dict__, **changes)
        return made

    @property
    def open(self) -> bool:
        """A case is in progress."""
        return self.state is not State.HEALTHY

    @property
    def out(self) -> bool:
        """No new pod may use the device."""
        return self.state in OUT or (self.state is State.HELD and self.quarantined)

    @property
    def struck_out(self) -> bool:
        """The strikes suffice."""
        return 0 < self.needed <= self.reached

    def pod(self, uid: str) -> Leaving | None:
        """A pod of the drain."""
        return next((one for one in self.pods if one.planned.pod.uid == uid), None)

    def with_pod(self, uid: str, **changes: Any) -> DeviceCase:
        """With one pod of the drain changed."""
        return self.having(
            pods=tuple(replace(one, **changes) if one.planned.pod.uid == uid else one for one in self.pods)
        )

    def evicted(self) -> tuple[PodRef, ...]:
        """Pods that were evicted or went by themselves."""
        return tuple(one.planned.pod for one in self.pods if one.done)

    def left(self) -> tuple[PodRef, ...]:
        """Pods that are still to go."""
        return tuple(one.planned.pod for one in self.pods if not one.done)

    def ordered(self) -> tuple[PodRef, ...]:
        """Pods whose eviction was ordered and has no outcome."""
        return tuple(one.planned.pod for one in self.pods if one.order is not None)


_FIELDS: Final = frozenset(one.name for one in fields(DeviceCase))


def evolve(case: DeviceCase, fact: AnyEvent) -> DeviceCase:
    """The case after one more fact of its log."""
    fold = _FOLDS.get(type(fact.data))
    after = case if fold is None else fold(case, fact.data, fact)
    applied = after.applied
    if fact.causationid and fact.causationid not in applied[-1:]:
        applied = (*applied, fact.causationid)[-_APPLIED_KEPT:]
    return after.having(last_at=fact.time, applied=applied)


def snapshot(case: DeviceCase) -> dict[str, Any]:
    """What of a closed case the next one needs."""
    return {
        "serial": case.serial,
        "tainted": case.tainted,
        "penalty": case.penalty,
        "penalty_at": None if case.penalty_at is None else case.penalty_at.isoformat(),
        "epochs": [at.isoformat() for at in case.epochs],
        "boot_id": case.seen.boot_id,
        "window_id": case.seen.window_id,
        "past_boots": list(case.seen.past),
        "commands": list(case.commands),
        "applied": list(case.applied),
    }


def _to(case: DeviceCase, state: State, at: datetime, deadline: datetime | None = None) -> DeviceCase:
    return case.having(state=state, since=at, deadline=deadline, passed="")


def _opened(case: DeviceCase, data: say.Opened, fact: AnyEvent) -> DeviceCase:
    seen = case.seen
    if data.seen is not None:
        seen = seen.moved_to(data.seen.boot_id, data.seen.window_id)
    return DeviceCase(
        of=case.of,
        epoch=data.epoch,
        state=State(data.state),
        since=fact.time,
        opened_at=fact.time,
        serial=data.serial,
        reason=data.reason,
        seen=seen,
        quarantined=False,
        penalty=data.penalty,
        penalty_at=fact.time,
        epochs=() if data.reason == REPLACED else case.epochs,
        tainted=case.tainted,
        reopen=data.state if data.state == State.QUARANTINED else "",
        scope="device",
        commands=case.commands,
        applied=case.applied,
    )


def _struck(case: DeviceCase, data: say.Struck, fact: AnyEvent) -> DeviceCase:
    strike = Strike(data.at, data.codes, data.evidence_ids, data.scope, data.engines)
    return case.having(
        since=fact.time,
        serial=case.serial or data.serial,
        seen=case.seen.moved_to(data.boot_id, data.window_id),
        strikes=(*case.strikes, strike)[-max(data.of, 1) :],
        # What struck out stays so: lesser evidence that is heard before the next step takes nothing back.
        needed=min(case.needed, data.of) if case.struck_out else data.of,
        reached=max(case.reached, data.strike) if case.struck_out else data.strike,
        verdict="unhealthy",
        verdict_at=fact.time,
        streak=0,
        passed="",
    )


def _health_noted(case: DeviceCase, data: say.HealthNoted, fact: AnyEvent) -> DeviceCase:
    goes_on = (
        data.verdict == case.verdict and data.streak >= case.streak and data.boot_id == case.seen.boot_id
    )
    return case.having(
        seen=case.seen.moved_to(data.boot_id, data.window_id),
        verdict=data.verdict,
        verdict_at=case.verdict_at if goes_on else fact.time,
        streak=data.streak,
        validated=False,
    )


def _cleared(case: DeviceCase, _: say.Cleared, __: AnyEvent) -> DeviceCase:
    return case.having(passed="cleared")


def _proposed(case: DeviceCase, data: say.StepProposed, _: AnyEvent) -> DeviceCase:
    if data.pod_uid:
        return case.with_pod(data.pod_uid, proposed=data.attempt, proposals=data.attempt)
    late = not case.proposals and case.verdict == HEALTHY
    proposal = Proposal(data.step, data.attempt, data.deadline, late)
    return case.having(proposal=proposal, proposals=case.proposals + 1, passed="")


def _quarantined(case: DeviceCase, data: say.Quarantined, fact: AnyEvent) -> DeviceCase:
    again = case.quarantined
    return _to(case, State.QUARANTINED, fact.time, data.deadline).having(
        quarantined=True,
        asked_by=fact.id,
        superseded=(*case.superseded, case.asked_by) if again else (),
        scope=data.scope,
        engines=data.engines,
        reason=data.reason,
        proposal=None,
        proposals=0,
        fenced_by="",
        reopen="",
        epochs=case.epochs if again else (*case.epochs, fact.time)[-_EPOCHS_KEPT:],
    )


def _drain_planned(case: DeviceCase, data: say.DrainPlanned, fact: AnyEvent) -> DeviceCase:
    known = {one.planned.pod.uid: one for one in case.pods}
    pods = []
    for planned in data.pods:
        before = known.pop(planned.pod.uid, None)
        pods.append(Leaving(planned) if before is None else replace(before, planned=planned))
    for missing in data.missing:
        before = known.pop(missing.uid, None) or Leaving(say.PlannedPod(pod=missing, tier=""))
        pods.append(replace(before, outcome=before.outcome or "gone"))
    planned_case = case.having(
        pods=(*known.values(), *pods), plans=data.n, fenced_by=data.fenced_by or case.fenced_by
    )
    if data.fenced_by and case.state in {State.QUARANTINED, State.STUCK}:
        return _to(planned_case, State.DRAINING, fact.time)
    return planned_case


def _eviction_ordered(case: DeviceCase, data: say.EvictionOrdered, fact: AnyEvent) -> DeviceCase:
    return case.with_pod(data.pod.uid, order=fact, attempt=data.attempt, proposed=0, retry_at=None)


def _pod_evicted(case: DeviceCase, data: say.PodEvicted, _: AnyEvent) -> DeviceCase:
    return case.with_pod(data.pod.uid, order=None, outcome=data.outcome, retry_at=data.retry_at)


def _replacement_requested(case: DeviceCase, data: say.ReplacementRequested, _: AnyEvent) -> DeviceCase:
    return case.with_pod(data.pod.uid, replace_until=data.until)


def _drained(case: DeviceCase, _: say.Drained, fact: AnyEvent) -> DeviceCase:
    return _to(case, State.DRAINED, fact.time).having(pods=())


def _drain_stuck(case: DeviceCase, _: say.DrainStuck, fact: AnyEvent) -> DeviceCase:
    return _to(case, State.STUCK, fact.time)


def _diagnosis_requested(case: DeviceCase, data: say.DiagnosisRequested, fact: AnyEvent) -> DeviceCase:
    asked = case.having(
        diagnosis=data.attempt, diagnosis_of_round=case.diagnosis_of_round + 1, diagnosed="", passed=""
    )
    if case.state is State.VALIDATING:
        return asked
    return _to(asked, State.DIAGNOSING, fact.time, data.deadline)


def _diagnosis_recorded(case: DeviceCase, data: say.DiagnosisRecorded, fact: AnyEvent) -> DeviceCase:
    after = case.having(diagnosed=data.outcome)
    as_of = data.as_of
    if as_of is not None and case.seen.newer(as_of.boot_id, as_of.window_id):
        after = after.having(seen=case.seen.moved_to(as_of.boot_id, as_of.window_id))
        if data.outcome == "passed" and case.verdict != HEALTHY:
            after = after.having(verdict=HEALTHY, verdict_at=fact.time, streak=0)
    return after


def _repair_requested(case: DeviceCase, data: say.RepairRequested, fact: AnyEvent) -> DeviceCase:
    return _to(case, State.REPAIRING, fact.time, data.deadline).having(
        step=data.step,
        step_attempt=data.attempt,
        step_outcome="",
        tried=(*case.tried, data.step),
        proposal=None,
    )


def _repair_recorded(case: DeviceCase, data: say.RepairRecorded, _: AnyEvent) -> DeviceCase:
    return case.having(step_outcome=data.outcome)


def _repaired(case: DeviceCase, data: say.Repaired, fact: AnyEvent) -> DeviceCase:
    return _to(case, State.VALIDATING, fact.time).having(
        diagnosed="passed" if data.step == "none" else "",
        diagnosis_of_round=0,
        step="",
        step_outcome="",
    )


def _validated(case: DeviceCase, data: say.Validated, _: AnyEvent) -> DeviceCase:
    seen = case.seen
    if data.as_of is not None:
        seen = seen.moved_to(data.as_of.boot_id, data.as_of.window_id)
    return case.having(validated=True, seen=seen)


def _probation_started(case: DeviceCase, data: say.ProbationStarted, fact: AnyEvent) -> DeviceCase:
    return _to(case, State.PROBATION, fact.time).having(until=data.until, validated=False)


def _readmitted(case: DeviceCase, data: say.Readmitted, fact: AnyEvent) -> DeviceCase:
    return _to(case, State.READMITTED, fact.time).having(
        until=None, taint_order=fact if case.tainted or data.untaint else None
    )


def _closed(case: DeviceCase, data: say.Closed, fact: AnyEvent) -> DeviceCase:
    return DeviceCase(
        of=case.of,
        epoch=case.epoch,
        since=fact.time,
        serial=data.serial,
        reason=data.reason,
        seen=case.seen,
        penalty=data.penalty,
        penalty_at=fact.time,
        epochs=case.epochs,
        tainted=case.tainted,
        reopen=data.reopens,
        commands=case.commands,
        applied=case.applied,
    )


def _retired(case: DeviceCase, data: say.Retired, fact: AnyEvent) -> DeviceCase:
    return _to(case, State.RETIRED, fact.time).having(
        reason=data.reason,
        quarantined=True,
        proposal=None,
        pods=_in_flight(case),
        hold="",
        until=None,
        commands=_add(case.commands, data.command_id) if data.command_id else case.commands,
        taint_order=None if case.tainted else fact,
    )


def _held(case: DeviceCase, data: say.Held, fact: AnyEvent) -> DeviceCase:
    before = case.held_from if case.state is State.HELD else case.state
    if data.owner == MEMORY_OWNER and case.state is State.HELD and not case.hold:
        before = State.HELD
    return _to(case, State.HELD, fact.time).having(
        held_from=before,
        hold=data.command_id,
        until=data.until,
        reason=data.reason,
        proposal=None,
        commands=_add(case.commands, data.command_id),
    )


def _released(case: DeviceCase, data: say.HoldReleased, fact: AnyEvent) -> DeviceCase:
    # To healthy goes by way of a suspect whose case is about to be closed: the close is a fact of its own.
    state = State.SUSPECT if data.to_state == State.HEALTHY else State(data.to_state)
    return _to(case, state, fact.time).having(
        hold="",
        until=None,
        proposal=None,
        pods=_in_flight(case),
        passed="released",
        diagnosed="",
        diagnosis_of_round=0,
        rounds=0,
        commands=_add(case.commands, data.command_id),
    )


def _command_refused(case: DeviceCase, data: say.CommandRefused, _: AnyEvent) -> DeviceCase:
    return case.having(commands=_add(case.commands, data.command_id))


def _deadline_passed(case: DeviceCase, data: say.DeadlinePassed, fact: AnyEvent) -> DeviceCase:
    after = case.having(passed=data.timer)
    if data.timer == "grant" and data.pod_uid:
        return case.with_pod(data.pod_uid, proposed=0).having(passed=case.passed)
    if data.timer == "grant":
        return after.having(proposal=None)
    if data.timer in {"validate", "probation"}:
        again = after.having(
            rounds=case.rounds + 1, diagnosed="", diagnosis_of_round=0, until=None, validated=False
        )
        return again.having(state=State.VALIDATING, since=fact.time, deadline=None)
    if data.timer == "replacement":
        return case.with_pod(data.pod_uid, replaced=True).having(passed=case.passed)
    return after


def _step_refused(case: DeviceCase, data: say.StepRefused, _: AnyEvent) -> DeviceCase:
    return case.having(dry_refused=case.dry_refused or data.cause_id.startswith("dry-run"))


def _node_tainted(case: DeviceCase, data: say.NodeTainted, _: AnyEvent) -> DeviceCase:
    tainted = {"tainted": True, "removed": False}.get(data.outcome, case.tainted)
    return case.having(tainted=tainted, taint_order=None)


def _snapshotted(case: DeviceCase, data: say.RemediationSnapshotted, fact: AnyEvent) -> DeviceCase:
    state = data.state
    penalty_at = state.get("penalty_at")
    return DeviceCase(
        of=case.of,
        epoch=data.epoch,
        since=fact.time,
        serial=state.get("serial"),
        tainted=state.get("tainted", False),
        seen=Mark(state.get("boot_id", ""), state.get("window_id", -1), tuple(state.get("past_boots", ()))),
        penalty=state.get("penalty", 0.0),
        penalty_at=None if penalty_at is None else datetime.fromisoformat(penalty_at),
        epochs=tuple(datetime.fromisoformat(at) for at in state.get("epochs", ())),
        commands=tuple(state.get("commands", ())),
        applied=tuple(state.get("applied", ())),
    )


def _in_flight(case: DeviceCase) -> tuple[Leaving, ...]:
    """Pods whose order is out: what became of them is recorded even when the drain is over."""
    return tuple(one for one in case.pods if one.order is not None)


def _add(known: tuple[str, ...], one: str) -> tuple[str, ...]:
    return (*known, one)[-_APPLIED_KEPT:]


_Fold = Callable[[DeviceCase, Any, AnyEvent], DeviceCase]
_FOLDS: Final[dict[type[Payload], _Fold]] = cast(
    "dict[type[Payload], _Fold]",
    {
        say.Opened: _opened,
        say.Struck: _struck,
        say.HealthNoted: _health_noted,
        say.Cleared: _cleared,
        say.StepProposed: _proposed,
        say.Quarantined: _quarantined,
        say.DrainPlanned: _drain_planned,
        say.EvictionOrdered: _eviction_ordered,
        say.PodEvicted: _pod_evicted,
        say.ReplacementRequested: _replacement_requested,
        say.Drained: _drained,
        say.DrainStuck: _drain_stuck,
        say.DiagnosisRequested: _diagnosis_requested,
        say.DiagnosisRecorded: _diagnosis_recorded,
        say.RepairRequested: _repair_requested,
        say.RepairRecorded: _repair_recorded,
        say.Repaired: _repaired,
        say.Validated: _validated,
        say.ProbationStarted: _probation_started,
        say.Readmitted: _readmitted,
        say.Closed: _closed,
        say.Retired: _retired,
        say.Held: _held,
        say.HoldReleased: _released,
        say.CommandRefused: _command_refused,
        say.DeadlinePassed: _deadline_passed,
        say.StepRefused: _step_refused,
        say.NodeTainted: _node_tainted,
        say.RemediationSnapshotted: _snapshotted,
    },
)
