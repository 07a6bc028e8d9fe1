"""What follows from a device's case itself: its next step, and the exit of every state's deadline. Pure.

| state | waits for | when its deadline passes |
|---|---|---|
| suspect | more strikes, or a healthy streak | closed; waiting for a budget: judged again |
| quarantined | the bridge's answer | drain-stuck |
| draining | the pods | drain-stuck |
| stuck | the pods, a late answer of the bridge | held, a person decides |
| diagnosing | the deep check | asked again, then the repair ladder |
| repairing | the executor, or a person's approval | the next step, then retired |
| validating | a healthy streak and a deep check | once more, then retired; held when health is unknown |
| probation | its end without a strike | readmitted; back to validating when not healthy |
| held | a person, or `until` | released |

A deadline that depends on the node passes only once the node has said all that it had to say by then (a
heartbeat with an empty journal). A node that stays silent proves nothing: after `silence_s` its case is left
to a person.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Final

from services.remediation import device, strikes
from services.remediation.case import MEMORY_OWNER, DeviceCase, Leaving, State
from services.remediation.context import Context, Given
from services.remediation.policy import Policy
from shared.events import Payload
from shared.events import remediation as say
from shared.events.parts import HEALTHY, ONLINE, UNKNOWN, PodRef

QUARANTINE: Final = "quarantine"
EVICT: Final = "evict"


def follow(case: DeviceCase, given: Given) -> Payload | None:
    """The next fact of the case."""
    step = _FOLLOWS.get(case.state)
    return None if step is None else step(case, given)


# ---------------------------------------------------------------------- deadlines


def _passed(case: DeviceCase, timer: str, deadline: datetime, given: Given) -> Payload | None:
    """The exit of a deadline that depends on the node."""
    if given.now < deadline or given.context.node is None:
        return None
    said_all_at = given.context.node.said_all_at
    if said_all_at is not None and said_all_at >= deadline:
        return say.DeadlinePassed(epoch=case.epoch, timer=timer, deadline=deadline, state=case.state)
    silent_since = max(deadline, said_all_at or given.context.node.listening_since)
    if given.now - silent_since >= given.policy.deadlines.after("silence_s"):
        return _leave_to_a_person(case, f"silence-{timer}", f"the node is silent in state {case.state}")
    return None


def _leave_to_a_person(case: DeviceCase, what: str, reason: str) -> say.Held:
    return say.Held(
        epoch=case.epoch,
        command_id=f"{what}#{case.of.about}#{case.epoch}",
        owner=MEMORY_OWNER,
        reason=reason,
        orders_in_flight=case.ordered(),
    )


def _healthy_for(case: DeviceCase, windows: int, span_s: float, context: Context, now: datetime) -> bool:
    """A healthy streak, by the node's count or by time that the node has vouched for."""
    if case.verdict != HEALTHY or case.verdict_at is None:
        return False
    if case.streak >= windows:
        return True
    enough_at = case.verdict_at + timedelta(seconds=span_s)
    vouched = context.node.said_all_at if context.node is not None else None
    return now >= enough_at and vouched is not None and vouched >= enough_at


# ---------------------------------------------------------------------- suspect, quarantined


def _suspect(case: DeviceCase, given: Given) -> Payload | None:
    ends = {
        "cleared": "healthy again",
        "suspect": "no further strike",
        "released": "released by a person",
    }
    if case.passed in ends:
        return device.close(case, ends[case.passed], given.now, given.policy)
    acts = case.struck_out and not (given.policy.dry_run and case.dry_refused)
    # Healthy windows that a new holder finds after a fatal strike come too late: whoever had been there then
    # would have asked for the quarantine at once.
    late = case.proposal.late if case.proposal is not None else not case.proposals
    if not (acts and case.needed == 1 and late) and _healthy_for(
        case, given.policy.strikes.clear_windows, given.policy.strikes.clear_s, given.context, given.now
    ):
        return say.Cleared(epoch=case.epoch, streak=case.streak)
    if acts:
        return _struck_out(case, given)
    deadline = _since(case) + given.policy.deadlines.after("suspect_s")
    return _passed(case, "suspect", deadline, given)


def _struck_out(case: DeviceCase, given: Given) -> Payload | None:
    if given.policy.dry_run:
        return say.StepRefused(
            epoch=case.epoch,
            cause_id=f"dry-run#{case.of.about}#{case.epoch}",
            reason="dry run: the device would be quarantined given.now",
        )
    return _propose(case, QUARANTINE, given)


def _propose(case: DeviceCase, step: str, given: Given) -> Payload | None:
    """Ask the budget for a step of the case; once more when an earlier proposal came to nothing."""
    proposal = case.proposal
    if proposal is None:
        last = case.strikes[-1] if case.strikes else None
        return say.StepProposed(
            epoch=case.epoch,
            step=step,
            attempt=case.proposals + 1,
            scopes=given.context.scopes,
            code=last.codes[0] if last is not None and last.codes else "",
            evidence_at=None if last is None else last.at,
            deadline=given.now + given.policy.deadlines.after("grant_s"),
            seen=case.seen.window(),
        )
    if given.now < proposal.deadline:
        return None
    return say.DeadlinePassed(epoch=case.epoch, timer="grant", deadline=proposal.deadline, state=case.state)


def _quarantined(case: DeviceCase, given: Given) -> Payload | None:
    if not case.quarantined:
        return device.quarantine(case, given.now, given.policy, reason=case.reason)
    if case.passed == "fence":
        return say.DrainStuck(epoch=case.epoch, evicted=case.evicted(), left=case.left())
    return _passed(case, "fence", case.deadline or _since(case), given)


# ---------------------------------------------------------------------- draining


def _draining(case: DeviceCase, given: Given) -> Payload | None:
    found = _seen_alive(case, given.context, given.policy)
    if found is not None:
        return found
    if given.now >= _since(case) + given.policy.deadlines.after("drain_s"):
        return say.DrainStuck(epoch=case.epoch, evicted=case.evicted(), left=case.left())
    return next(_evictions(case, given), None)


def _stuck(case: DeviceCase, given: Given) -> Payload | None:
    found = _seen_alive(case, given.context, given.policy) if case.fenced_by else None
    if found is not None:
        return found
    if given.now >= _since(case) + given.policy.deadlines.after("stuck_s"):
        return _leave_to_a_person(case, "stuck", "the drain came to no end")
    return None


def _seen_alive(case: DeviceCase, context: Context, policy: Policy) -> Payload | None:
    """What the live look shows: all gone, or who the pods are of which only the name was known."""
    if not case.pods:
        return say.Drained(epoch=case.epoch, evicted=case.evicted())
    if context.looks is None:
        return None
    looks = [context.looks.get(one.planned.pod.uid) for one in case.pods]
    if all(look is not None and not look.there for look in looks):
        return say.Drained(epoch=case.epoch, evicted=tuple(one.planned.pod for one in case.pods))
    unknown = [
        one.planned.pod
        for one, look in zip(case.pods, looks, strict=True)
        if not one.planned.tier and not one.done and look is not None
    ]
    return device.plan(case, unknown, context, policy) if unknown else None


def _evictions(case: DeviceCase, given: Given) -> Iterator[Payload]:
    """What can be done given.now for the pods whose turn it is."""
    for tier in given.policy.drain.order:
        turn = [one for one in case.pods if one.planned.tier == tier]
        for pod in turn:
            fact = _evict(case, pod, given)
            if fact is not None:
                yield fact
        if not all(pod.settled for pod in turn):
            return


def _evict(case: DeviceCase, pod: Leaving, given: Given) -> Payload | None:
    waits = pod.order is not None or pod.proposed or (pod.retry_at is not None and given.now < pod.retry_at)
    if pod.done or pod.planned.opted_out or waits or (pod.outcome and pod.retry_at is None):
        return None
    uid = pod.planned.pod.uid
    if pod.planned.tier == ONLINE and pod.attempt == 0 and given.policy.drain.replacement_wait_s > 0:
        if pod.replace_until is None and pod.planned.workload is not None and not given.policy.dry_run:
            return say.ReplacementRequested(
                epoch=case.epoch,
                request_id=device.request_id(case, uid),
                pod=pod.planned.pod,
                workload=pod.planned.workload,
                until=given.now + timedelta(seconds=given.policy.drain.replacement_wait_s),
            )
        if pod.replace_until is not None and not pod.replaced and given.now < pod.replace_until:
            return None
    if pod.attempt == 0 and EVICT in given.policy.budgets and not given.policy.dry_run:
        return say.StepProposed(
            epoch=case.epoch,
            step=EVICT,
            pod_uid=uid,
            attempt=pod.proposals + 1,
            scopes=given.context.scopes,
            deadline=_since(case) + given.policy.deadlines.after("drain_s"),
        )
    return device.order(case, pod.planned, given.now, given.policy)


def wants_look(case: DeviceCase, now: datetime, policy: Policy) -> tuple[PodRef, ...]:
    """The pods that must be looked at before the next decision; () when none."""
    if case.state not in {State.DRAINING, State.STUCK} or not case.pods:
        return ()
    if any(not one.planned.tier and not one.done for one in case.pods):
        return tuple(one.planned.pod for one in case.pods)
    busy = any(one.order is not None or one.proposed for one in case.pods)
    if case.state is State.DRAINING and (
        busy or next(_evictions(case, Given(Context(), now, policy)), None) is not None
    ):
        return ()
    return tuple(one.planned.pod for one in case.pods)


# ---------------------------------------------------------------------- diagnosis and repair


def _drained(case: DeviceCase, given: Given) -> Payload | None:
    penalty = (
        strikes.decayed(case.penalty, case.penalty_at, given.now, given.policy.damping)
        + given.policy.damping.penalty
    )
    since = given.now - timedelta(seconds=given.policy.damping.epochs_within_s)
    times = sum(1 for at in case.epochs if at > since)
    if penalty >= given.policy.damping.retire_at or times >= given.policy.damping.most_epochs:
        return say.Retired(
            epoch=case.epoch,
            reason=f"it keeps failing: {times} quarantines, penalty {penalty:.0f}",
            replacement="requested",
        )
    return _ask_diagnosis(case, given.now, given.policy)


def _ask_diagnosis(case: DeviceCase, now: datetime, policy: Policy) -> say.DiagnosisRequested:
    return say.DiagnosisRequested(
        epoch=case.epoch,
        attempt=case.diagnosis + 1,
        deadline=now + policy.deadlines.after("diagnose_s"),
    )


def _diagnosing(case: DeviceCase, given: Given) -> Payload | None:
    if case.diagnosed == "passed":
        return say.Repaired(epoch=case.epoch, step="none")
    if device.needs_repair(case, given.policy):
        return _repair(case, given)
    if case.diagnosed or case.passed == "diagnose":
        return _ask_diagnosis(case, given.now, given.policy)
    return _passed(case, "diagnose", case.deadline or _since(case), given)


def _repair(case: DeviceCase, given: Given) -> Payload | None:
    step = device.next_step(case, given.policy)
    if step is None or case.passed == "approve":
        return say.Retired(
            epoch=case.epoch,
            reason="nobody approved the repair" if step else "no repair step is left that could help",
            replacement="requested",
        )
    if step in given.policy.recovery.approvals:
        deadline = _since(case) + given.policy.deadlines.after("approve_s")
        if given.now < deadline:
            return None
        return say.DeadlinePassed(epoch=case.epoch, timer="approve", deadline=deadline, state=case.state)
    if step in given.policy.budgets:
        return _propose(case, step, given)
    return device.request_repair(case, step, given.now, given.policy)


def _repairing(case: DeviceCase, given: Given) -> Payload | None:
    if device.needs_repair(case, given.policy):
        return _repair(case, given)
    return _passed(case, "repair", case.deadline or _since(case), given)


# ---------------------------------------------------------------------- the way back


def _validating(case: DeviceCase, given: Given) -> Payload | None:
    if case.rounds >= given.policy.recovery.rounds:
        if case.verdict == UNKNOWN:
            return _leave_to_a_person(case, "unknown", "its health stays unknown")
        return say.Retired(epoch=case.epoch, reason="it does not stay healthy", replacement="requested")
    if device.needs_repair(case, given.policy):
        return _repair(case, given)
    if case.diagnosed == "ambiguous" and case.diagnosis_of_round < given.policy.recovery.diagnosis_attempts:
        return _ask_diagnosis(case, given.now, given.policy)
    if not case.diagnosed and not case.diagnosis_of_round:
        return _ask_diagnosis(case, given.now, given.policy)
    if case.validated:
        return say.ProbationStarted(
            epoch=case.epoch, until=given.now + _probation(case, given.now, given.policy)
        )
    recovery = given.policy.recovery
    if case.diagnosed == "passed" and _healthy_for(
        case, recovery.healthy_windows, recovery.healthy_s, given.context, given.now
    ):
        return say.Validated(epoch=case.epoch, streak=case.streak, as_of=case.seen.window())
    deadline = _since(case) + given.policy.deadlines.after("validate_s")
    return _passed(case, "validate", deadline, given)


def _probation(case: DeviceCase, now: datetime, policy: Policy) -> timedelta:
    """Longer for a device that had cases lately: doubled by each whole penalty that is left."""
    left = strikes.decayed(case.penalty, case.penalty_at, now, policy.damping)
    doubled = policy.recovery.probation_s * 2 ** (left / max(policy.damping.penalty, 1.0))
    return timedelta(seconds=min(doubled, policy.recovery.probation_most_s))


def _in_probation(case: DeviceCase, given: Given) -> Payload | None:
    passed = _passed(case, "probation", case.until or _since(case), given)
    if isinstance(passed, say.DeadlinePassed) and case.verdict == HEALTHY:
        opened = case.opened_at or _since(case)
        after_s = max((given.now - opened).total_seconds(), 0.0)
        return say.Readmitted(epoch=case.epoch, after_s=after_s, untaint=given.context.tainted_by_other)
    return passed


def _readmitted(case: DeviceCase, given: Given) -> Payload | None:
    return device.close(case, "readmitted", given.now, given.policy) if case.taint_order is None else None


def _held(case: DeviceCase, given: Given) -> Payload | None:
    if not case.hold:
        return _leave_to_a_person(case, "memory", case.reason)
    if case.until is None or given.now < case.until:
        return None
    return device.release(
        case, command_id=f"{case.hold}:until", owner=MEMORY_OWNER, reason="the hold was until given.now"
    )


def due(case: DeviceCase, policy: Policy) -> datetime | None:
    """When `follow` may have something to say although nothing is heard."""
    if case.since is None:
        return None
    return min(_deadlines(case, policy), default=None)


def _deadlines(case: DeviceCase, policy: Policy) -> Iterator[datetime]:
    since, after = _since(case), policy.deadlines.after
    match case.state:
        case State.SUSPECT:
            yield case.proposal.deadline if case.proposal is not None else since + after("suspect_s")
            if case.verdict == HEALTHY and case.verdict_at is not None:
                yield case.verdict_at + timedelta(seconds=policy.strikes.clear_s)
        case State.QUARANTINED:
            yield case.deadline or since
        case State.DRAINING | State.STUCK:
            yield since + after("drain_s" if case.state is State.DRAINING else "stuck_s")
            yield (case.last_at or since) + timedelta(seconds=policy.drain.look_again_s)
            yield from (one.retry_at for one in case.pods if one.retry_at is not None and not one.done)
            yield from (
                one.replace_until for one in case.pods if one.replace_until is not None and not one.attempt
            )
        case State.DIAGNOSING | State.REPAIRING:
            if case.proposal is not None:
                yield case.proposal.deadline
            elif device.waits_for_approval(case, policy):
                yield since + after("approve_s")
            else:
                yield case.deadline or since
        case State.VALIDATING:
            yield since + after("validate_s")
            if case.proposal is not None:
                yield case.proposal.deadline
            if case.verdict == HEALTHY and case.verdict_at is not None and case.diagnosed == "passed":
                yield case.verdict_at + timedelta(seconds=policy.recovery.healthy_s)
        case State.PROBATION | State.HELD if case.until is not None:
            yield case.until


def _since(case: DeviceCase) -> datetime:
    assert case.since is not None, "an open case has a beginning"  # noqa: S101 - evolve sets it with every state
    return case.since


_Follow = Callable[[DeviceCase, Given], Payload | None]
_FOLLOWS: Final[dict[State, _Follow]] = {
    State.SUSPECT: _suspect,
    State.QUARANTINED: _quarantined,
    State.DRAINING: _draining,
    State.STUCK: _stuck,
    State.DRAINED: _drained,
    State.DIAGNOSING: _diagnosing,
    State.REPAIRING: _repairing,
    State.VALIDATING: _validating,
    State.PROBATION: _in_probation,
    State.READMITTED: _readmitted,
    State.HELD: _held,
}
