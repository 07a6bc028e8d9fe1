"""What a heard event leads to in a device's case. Pure; what follows from the case itself is in `follow`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, cast

from services.remediation import strikes
from services.remediation.case import (
    EVICTING,
    REOPENS,
    REPLACED,
    STRUCK_AGAIN,
    DeviceCase,
    State,
)
from services.remediation.context import Context, Given
from services.remediation.policy import Policy
from shared.events import AnyEvent, Payload, device, workload, world
from shared.events import remediation as say
from shared.events.parts import HEALTHY, Evidence

_BEFORE_VERDICT: Final = frozenset({State.HEALTHY, State.RETIRED, State.READMITTED})
"""States in which a change of verdict is not noted."""
_WATCHED: Final = frozenset({State.QUARANTINED, State.DRAINING, State.STUCK, State.DRAINED, State.DIAGNOSING})
"""States in which wider evidence widens the quarantine."""


def decide(case: DeviceCase, cause: AnyEvent, given: Given) -> Payload | None:
    """The fact that a heard event leads to."""
    answer = _ANSWERS.get(type(cause.data))
    return None if answer is None else answer(case, cause.data, cause, given)


def stale(case: DeviceCase, cause: AnyEvent, epoch: int) -> Payload | None:
    """The refusal of a cause of another epoch; None when it needs none (said before, or no case is open)."""
    if not case.open or cause.id in case.applied:
        return None
    return say.StepRefused(
        epoch=case.epoch,
        cause_id=cause.id,
        stale_epoch=epoch,
        reason=f"{cause.data.kind.name} is of epoch {epoch}, the case is at {case.epoch}",
    )


# ---------------------------------------------------------------------- health


def _health(  # noqa: PLR0911 - one return for each state that answers evidence in its own way
    case: DeviceCase, report: world.HealthReported, cause: AnyEvent, given: Given
) -> Payload | None:
    serial, counting = _own(case, cause, report.serial), strikes.counts(report)
    # A part that is well says nothing of the whole; only what counts against a part reaches its device.
    if not case.seen.newer(report.boot_id, report.window_id) or (_part(case, cause) and not counting):
        return None
    if _replaced(case, serial):
        return _close(case, REPLACED, given.now, given.policy)
    if not case.open:
        if case.reopen == State.VALIDATING:
            return _replacement(case, serial)
        if not counting and not (case.epoch == 0 and given.context.memory.stands):
            return None
        return _open(case, report.evidence, serial, given)
    if case.state is State.SUSPECT or (case.state is State.QUARANTINED and case.reopen):
        if counting:
            return _strike(case, report, cause, given.policy)
    elif case.state is State.PROBATION and counting:
        return _close(case, STRUCK_AGAIN, given.now, given.policy)
    elif case.state in _WATCHED and counting and _wider(case, report.evidence):
        return say.Quarantined(
            epoch=case.epoch,
            scope="device",
            reason=f"the fault reaches the whole device: {', '.join(strikes.codes(report.evidence))}",
            evidence_ids=tuple(one.id for one in report.evidence),
            deadline=given.now + given.policy.deadlines.after("fence_s"),
        )
    return _note(case, report, given.policy)


def _note(case: DeviceCase, report: world.HealthReported, policy: Policy) -> Payload | None:
    if case.state in _BEFORE_VERDICT:
        return None
    enough = policy.strikes.clear_windows if case.state is State.SUSPECT else policy.recovery.healthy_windows
    reached = report.verdict == HEALTHY and report.streak >= enough > case.streak
    # A second healthy streak may have begun unseen: the count went back.
    again = report.verdict == HEALTHY and 0 < report.streak < case.streak
    if report.verdict == case.verdict and not reached and not again and not _resets(case, report):
        return None
    return say.HealthNoted(
        epoch=case.epoch,
        boot_id=report.boot_id,
        window_id=report.window_id,
        verdict=report.verdict,
        streak=report.streak,
        codes=strikes.codes(report.evidence),
    )


def _resets(case: DeviceCase, report: world.HealthReported) -> bool:
    """A window of a later boot: what was healthy before the boot says nothing."""
    return case.state is State.VALIDATING and bool(case.seen.boot_id) and report.boot_id != case.seen.boot_id


def _strike(
    case: DeviceCase, report: world.HealthReported, cause: AnyEvent, policy: Policy
) -> Payload | None:
    at = strikes.evidence_at(report) or cause.time
    is_fatal = strikes.fatal(report.evidence)
    scope, engines = strikes.scope(report.evidence)
    return say.Struck(
        epoch=case.epoch,
        strike=1 if is_fatal else strikes.number(case.strikes, at, policy.strikes),
        of=1 if is_fatal else policy.strikes.count,
        boot_id=report.boot_id,
        window_id=report.window_id,
        evidence_ids=tuple(one.id for one in report.evidence),
        codes=strikes.codes(report.evidence),
        scope=scope,
        engines=engines,
        serial=_own(case, cause, report.serial),
        at=at,
    )


def _open(
    case: DeviceCase,
    evidence: tuple[Evidence, ...],
    serial: str | None,
    given: Given,
    *,
    state: State = State.SUSPECT,
    reason: str = "",
) -> say.Opened:
    epoch, where = case.epoch + 1, state
    if case.epoch == 0:
        epoch = given.context.memory.epoch + 1
        if given.context.memory.stands:
            where, reason = (
                State.HELD,
                f"nothing is remembered of this device, but {given.context.memory.stands}",
            )
    if case.reopen == State.QUARANTINED:
        where = State.QUARANTINED
    same = case.serial is None or serial is None or case.serial == serial
    return say.Opened(
        epoch=epoch,
        serial=serial or case.serial or given.context.serial,
        state=where,
        reason=reason or ", ".join(strikes.codes(evidence)) or "evidence",
        evidence=evidence,
        seen=case.seen.window(),
        penalty=strikes.decayed(case.penalty, case.penalty_at, given.now, given.policy.damping)
        if same
        else 0.0,
    )


def _wider(case: DeviceCase, evidence: tuple[Evidence, ...]) -> bool:
    if case.scope == "device":
        return False
    scope, engines = strikes.scope(evidence)
    return scope != case.scope or not set(engines) <= set(case.engines)


# ---------------------------------------------------------------------- who the device is


def _part(case: DeviceCase, cause: AnyEvent) -> bool:
    """The event is about a partition or engine of the device."""
    return cause.of.entity != case.of.entity


def _own(case: DeviceCase, cause: AnyEvent, serial: str | None) -> str | None:
    """A serial that is the physical device's; a part's own says nothing of the slot."""
    return None if _part(case, cause) else serial


def _replaced(case: DeviceCase, serial: str | None) -> bool:
    """Another device sits in the slot. An unknown serial is never another; a person's hold stays."""
    return (
        case.open
        and case.state is not State.HELD
        and serial is not None
        and case.serial is not None
        and serial != case.serial
    )


def _replacement(case: DeviceCase, serial: str | None) -> say.Opened:
    return say.Opened(
        epoch=case.epoch + 1,
        serial=serial,
        state=State.VALIDATING,
        reason=REPLACED,
        seen=case.seen.window(),
    )


def _registered(case: DeviceCase, said: device.Registered, cause: AnyEvent, given: Given) -> Payload | None:
    serial = said.device.serial
    if _part(case, cause) or given.context.serial not in (None, serial):
        return None  # a partition's, or an older registration heard again
    if case.epoch == 0 and given.context.memory.stands:
        return _open(case, (), serial, given)
    if _replaced(case, serial):
        return _close(case, REPLACED, given.now, given.policy)
    if not case.open and case.reopen == State.VALIDATING:
        return _replacement(case, serial)
    return None


def _lost(case: DeviceCase, said: device.Lost, cause: AnyEvent, given: Given) -> Payload | None:
    if said.reason == "removed" and case.state is State.SUSPECT and not _part(case, cause):
        return _close(case, "the device was removed", given.now, given.policy)
    return None


def _close(case: DeviceCase, reason: str, now: datetime, policy: Policy) -> say.Closed:
    penalty = strikes.decayed(case.penalty, case.penalty_at, now, policy.damping)
    if case.quarantined:
        penalty += policy.damping.penalty
    return say.Closed(
        epoch=case.epoch,
        reason=reason,
        serial=case.serial,
        penalty=0.0 if reason == REPLACED else penalty,
        reopens=REOPENS.get(reason, ""),
    )


close = _close


# ---------------------------------------------------------------------- the bridge


def _fenced(case: DeviceCase, said: world.Fenced, cause: AnyEvent, given: Given) -> Payload | None:
    if said.epoch != case.epoch:
        return stale(case, cause, said.epoch)
    waits = case.quarantined and case.state in {State.QUARANTINED, State.DRAINING, State.STUCK}
    # An answer to a narrower quarantine of this epoch does not name the pods of the wider one.
    answers_another = cause.causationid in case.superseded
    if cause.id in case.applied or answers_another or not waits:
        return None
    return plan(case, said.holders, given.context, given.policy, fenced_by=cause.id)


def _bound(case: DeviceCase, said: world.Bound, cause: AnyEvent, given: Given) -> Payload | None:
    if case.state not in EVICTING or case.pod(said.pod.uid) is not None or cause.id in case.applied:
        return None
    return plan(case, (said.pod,), given.context, given.policy)


def _released(*_: object) -> None:
    """Nothing to record: that a pod let go is a reason to look again, which `follow` does."""


def plan(
    case: DeviceCase, pods: Any, context: Context, policy: Policy, *, fenced_by: str = ""
) -> say.DrainPlanned:
    """The drain with these pods added, in the order of eviction, as the live look shows them."""
    planned, missing = [], []
    for pod in pods:
        look = None if context.looks is None else context.looks.get(pod.uid)
        if look is None:
            planned.append(say.PlannedPod(pod=pod, tier=""))
        elif not look.there:
            missing.append(pod)
        else:
            planned.append(
                say.PlannedPod(pod=pod, tier=look.tier, workload=look.workload, opted_out=look.opted_out)
            )
    turn = {tier: index for index, tier in enumerate(policy.drain.order)}
    planned.sort(key=lambda one: turn.get(one.tier, len(turn)))
    return say.DrainPlanned(
        epoch=case.epoch,
        n=case.plans + 1,
        pods=tuple(planned),
        missing=tuple(missing),
        fenced_by=fenced_by,
    )


def _withdrawn(case: DeviceCase, said: world.Withdrawn, cause: AnyEvent, given: Given) -> Payload | None:
    window = said.window
    if cause.id in case.applied and not case.reopen:
        return None
    if window and not case.seen.newer(window.boot_id, window.window_id):
        return None
    serial = _own(case, cause, said.serial)
    if _replaced(case, serial):
        return _close(case, REPLACED, given.now, given.policy)
    reason = f"the bridge withdrew it: {', '.join(strikes.codes(said.evidence)) or 'fatal evidence'}"
    if not case.open:
        return _open(
            case,
            said.evidence,
            serial,
            given,
            state=State.QUARANTINED,
            reason=reason,
        )
    if case.state is not State.SUSPECT:
        return None
    return say.Quarantined(
        epoch=case.epoch,
        scope="device",
        reason=reason,
        evidence_ids=tuple(one.id for one in said.evidence),
        deadline=given.now + given.policy.deadlines.after("fence_s"),
    )


# ---------------------------------------------------------------------- answers to what was asked


def _diagnosed(case: DeviceCase, said: world.Diagnosed, cause: AnyEvent, __: Given) -> Payload | None:
    if said.epoch != case.epoch:
        return stale(case, cause, said.epoch)
    if case.state not in {State.DIAGNOSING, State.VALIDATING}:
        return None
    if said.attempt != case.diagnosis or case.diagnosed:
        return None
    failed = [
        f"{check.name}: {check.detail or check.outcome}" for check in said.checks if check.outcome == "failed"
    ]
    return say.DiagnosisRecorded(
        epoch=case.epoch,
        attempt=said.attempt,
        outcome=said.outcome,
        as_of=said.as_of,
        detail="; ".join(failed),
    )


def _repair_done(case: DeviceCase, said: world.RepairDone, cause: AnyEvent, __: Given) -> Payload | None:
    if said.epoch != case.epoch:
        return stale(case, cause, said.epoch)
    asked = (case.step, case.step_attempt) == (said.step, said.attempt)
    if case.state is not State.REPAIRING or not asked or case.step_outcome:
        return None
    if said.outcome == "succeeded":
        return say.Repaired(epoch=case.epoch, step=said.step, attempt=said.attempt)
    return say.RepairRecorded(
        epoch=case.epoch, step=said.step, attempt=said.attempt, outcome=said.outcome, detail=said.detail
    )


def _scaled(case: DeviceCase, said: workload.ScalePayload, cause: AnyEvent, given: Given) -> Payload | None:
    for pod in case.pods:
        if request_id(case, pod.planned.pod.uid) == said.request_id and not pod.replaced:
            if pod.replace_until is None or cause.id in case.applied:
                return None
            return say.DeadlinePassed(
                epoch=case.epoch,
                timer="replacement",
                pod_uid=pod.planned.pod.uid,
                deadline=min(given.now, pod.replace_until),
                state=case.state,
            )
    return None


def request_id(case: DeviceCase, pod_uid: str) -> str:
    """The id of the request for a pod's replacement; it names its case, so that the answer finds back."""
    return f"{case.of.about}#{case.epoch}/{pod_uid}"


# ---------------------------------------------------------------------- the budget


def _granted(case: DeviceCase, said: say.BudgetGranted, cause: AnyEvent, given: Given) -> Payload | None:
    if said.epoch != case.epoch:
        return stale(case, cause, said.epoch)
    if said.pod_uid:
        pod = case.pod(said.pod_uid)
        if pod is None or pod.proposed != said.attempt or case.state not in EVICTING:
            return None
        return order(case, pod.planned, given.now, given.policy)
    proposal = case.proposal
    if proposal is None or (proposal.step, proposal.attempt) != (said.step, said.attempt):
        return None
    if said.step == "quarantine":
        return quarantine(case, given.now, given.policy)
    return request_repair(case, said.step, given.now, given.policy)


def _returned(case: DeviceCase, said: say.BudgetReturned, _: AnyEvent, given: Given) -> Payload | None:
    if said.epoch != case.epoch:
        return None
    if said.pod_uid:
        pod = case.pod(said.pod_uid)
        waits = pod is not None and pod.proposed == said.attempt
    else:
        proposal = case.proposal
        waits = proposal is not None and (proposal.step, proposal.attempt) == (said.step, said.attempt)
    if not waits:
        return None
    return say.DeadlinePassed(
        epoch=case.epoch, timer="grant", pod_uid=said.pod_uid, deadline=given.now, state=case.state
    )


def quarantine(case: DeviceCase, now: datetime, policy: Policy, *, reason: str = "") -> say.Quarantined:
    """The device is taken out, as far as its strikes reach."""
    scopes = {one.scope for one in case.strikes}
    engines = {engine for one in case.strikes for engine in one.engines}
    scope = "engines" if scopes == {"engines"} else "partition" if scopes == {"partition"} else "device"
    found = dict.fromkeys(code for one in case.strikes for code in one.codes)
    return say.Quarantined(
        epoch=case.epoch,
        scope=scope,
        engines=tuple(sorted(engines)) if scope == "engines" else (),
        reason=reason or f"{case.reached} of {case.needed} strikes: {', '.join(found) or case.reason}",
        evidence_ids=tuple(id_ for one in case.strikes for id_ in one.evidence_ids),
        deadline=now + policy.deadlines.after("fence_s"),
    )


def order(case: DeviceCase, planned: say.PlannedPod, now: datetime, policy: Policy) -> say.EvictionOrdered:
    """The order to evict one pod."""
    pod = case.pod(planned.pod.uid)
    started = case.since or now
    return say.EvictionOrdered(
        epoch=case.epoch,
        pod=planned.pod,
        tier=planned.tier or "batch",
        workload=planned.workload,
        attempt=1 if pod is None else pod.attempt + 1,
        deadline=max(started + policy.deadlines.after("drain_s"), now + timedelta(seconds=1)),
        dry_run=policy.dry_run,
    )


def request_repair(case: DeviceCase, step: str, now: datetime, policy: Policy) -> say.RepairRequested:
    """An executor is asked for a step."""
    return say.RepairRequested(
        epoch=case.epoch,
        step=step,
        attempt=case.tried.count(step) + 1,
        deadline=now + policy.deadlines.after("repair_s"),
    )


# ---------------------------------------------------------------------- people


def _hold(case: DeviceCase, said: say.HoldRequested, _: AnyEvent, given: Given) -> Payload | None:
    if said.request_id in case.commands:
        return None
    if not case.open:
        return _open(
            case,
            (),
            case.serial,
            given,
            state=State.HELD,
            reason=said.reason,
        )
    return say.Held(
        epoch=case.epoch,
        command_id=said.request_id,
        owner=said.owner,
        reason=said.reason,
        until=said.until,
        orders_in_flight=case.ordered(),
    )


def _release(case: DeviceCase, said: say.ReleaseRequested, _: AnyEvent, __: Given) -> Payload | None:
    if said.request_id in case.commands:
        return None
    if not case.open:
        return _refuse(case, said, "there is no case: nothing holds this device")
    return release(case, command_id=said.request_id, owner=said.owner, reason=said.reason)


def release(case: DeviceCase, *, command_id: str, owner: str, reason: str) -> say.HoldReleased:
    """The hold (or the case, on a person's word) ends: by validation if the device was out."""
    out = case.quarantined or case.state in {State.VALIDATING, State.PROBATION} or case.held_from in _UNSURE
    return say.HoldReleased(
        epoch=case.epoch,
        command_id=command_id,
        owner=owner,
        reason=reason,
        to_state=State.VALIDATING if out else State.HEALTHY,
    )


_UNSURE: Final = frozenset({State.VALIDATING, State.PROBATION, State.HELD})
"""What a hold interrupted that was not proven healthy; `held` itself: opened so, for want of memory."""


def _approve(case: DeviceCase, said: say.ApproveRequested, cause: AnyEvent, given: Given) -> Payload | None:
    if said.request_id in case.commands or cause.id in case.applied:
        return None
    step = waits_for_approval(case, given.policy)
    if step is None:
        return _refuse(case, said, "nothing waits for approval")
    return request_repair(case, step, given.now, given.policy)


def waits_for_approval(case: DeviceCase, policy: Policy) -> str | None:
    """The repair step that only a person may start now; None when there is none."""
    if not needs_repair(case, policy):
        return None
    step = next_step(case, policy)
    return step if step in policy.recovery.approvals else None


def needs_repair(case: DeviceCase, policy: Policy) -> bool:
    """The deep check failed, or the last repair step did not help: the next step of the ladder is due."""
    if case.state is State.DIAGNOSING:
        unanswered = case.diagnosed == "ambiguous" or case.passed == "diagnose"
        return case.diagnosed == "failed" or (
            unanswered and case.diagnosis_of_round >= policy.recovery.diagnosis_attempts
        )
    if case.state is State.REPAIRING:
        return bool(case.step_outcome) or case.passed in {"repair", "approve"}
    return case.state is State.VALIDATING and case.diagnosed == "failed"


def next_step(case: DeviceCase, policy: Policy) -> str | None:
    """The next repair step; None when the ladder is at its end."""
    return next((step for step in policy.recovery.ladder if step not in case.tried), None)


def _retire(case: DeviceCase, said: say.RetireRequested, _: AnyEvent, given: Given) -> Payload | None:
    if said.request_id in case.commands:
        return None
    if case.state is State.RETIRED:
        return _refuse(case, said, "it is retired already")
    if not case.open:
        return _open(
            case,
            (),
            case.serial,
            given,
            state=State.HELD,
            reason=said.reason,
        )
    return say.Retired(epoch=case.epoch, reason=f"{said.owner}: {said.reason}", command_id=said.request_id)


def _refuse(case: DeviceCase, said: say.CommandPayload, reason: str) -> say.CommandRefused:
    return say.CommandRefused(epoch=max(case.epoch, 1), command_id=said.request_id, reason=reason)


_Answer = Callable[[DeviceCase, Any, AnyEvent, Given], Payload | None]
_ANSWERS: Final[dict[type[Payload], _Answer]] = cast(
    "dict[type[Payload], _Answer]",
    {
        world.HealthReported: _health,
        world.Fenced: _fenced,
        world.Bound: _bound,
        world.Withdrawn: _withdrawn,
        world.Diagnosed: _diagnosed,
        world.RepairDone: _repair_done,
        world.Released: _released,
        device.Registered: _registered,
        device.Lost: _lost,
        workload.ScaleApplied: _scaled,
        workload.ScaleRefused: _scaled,
        say.BudgetGranted: _granted,
        say.BudgetReturned: _returned,
        say.HoldRequested: _hold,
        say.ReleaseRequested: _release,
        say.ApproveRequested: _approve,
        say.RetireRequested: _retire,
    },
)
HEARD: Final = tuple(_ANSWERS)
"""What a device's case answers."""
