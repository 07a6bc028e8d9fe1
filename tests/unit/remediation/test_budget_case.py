"""The budget: who may take a step now, who waits, and when all stop."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from services.remediation import budget
from services.remediation.budget import BUDGET, BudgetCase
from services.remediation.case import DeviceCase, State
from services.remediation.decide import RemediationDecider
from shared.events import AnyEvent, Cause, Entity, event
from shared.events import remediation as say
from tests.unit.remediation.device_stage import DEVICE, NODE, START, Stage, entity, evidence, look, policy


def fatal(stage: Stage, *numbers: int, code: str = "79", node: str = NODE) -> list[Entity]:
    """Fatal evidence on these devices, one after another."""
    found = []
    for number in numbers:
        of = entity(number, node)
        stage.hear(
            _report(stage, code, number),
            place=of.place,
            entity=of.entity,
        )
        found.append(of)
    return found


def _report(stage: Stage, code: str, number: int) -> Any:
    from shared.events.world import HealthReported  # noqa: PLC0415 - only here

    return HealthReported(
        boot_id="b1",
        window_id=1,
        serial=f"S{number}",
        verdict="unhealthy",
        streak=1,
        evidence=(evidence(code, "fatal", at=stage.now, n=number),),
    )


def limits(**by_scope: Any) -> dict[str, Any]:
    return {"budgets": {"quarantine": by_scope}, "common_cause": {"count": {}}}


def states(stage: Stage, *of: Entity) -> list[str]:
    return [stage.case_of(one).state.value for one in of]


def test_an_absolute_limit_makes_the_next_wait_until_one_is_returned() -> None:
    stage = Stage(policy(**limits(cluster={"absolute": 1})))
    first, second = fatal(stage, 1, 2)
    assert states(stage, first, second) == ["quarantined", "suspect"]
    assert stage.said(say.Queued)[0].limited_by == "cluster absolute"
    stage.hear(
        say.ReleaseRequested(request_id="r", owner="ann", reason="fine"),
        place=first.place,
        entity=first.entity,
    )
    assert states(stage, second) == ["quarantined"]
    assert [one.reason for one in stage.said(say.BudgetReturned)] == ["the case was released"]


def test_two_devices_cannot_both_take_the_last_slot() -> None:
    stage = Stage(policy(**limits(node={"absolute": 3})))
    devices = fatal(stage, *range(1, 8))
    assert states(stage, *devices).count("quarantined") == 3


def test_a_percentage_allows_at_least_one_and_needs_a_known_total() -> None:
    stage = Stage(policy(**limits(node={"percent": 10})))
    stage.totals = {f"node:{NODE}": 8}
    assert states(stage, *fatal(stage, 1, 2)) == ["quarantined", "suspect"]
    unknown = Stage(policy(**limits(node={"percent": 10})))
    assert states(unknown, *fatal(unknown, 1, 2)) == ["quarantined", "quarantined"]


def test_a_rate_has_room_again_after_a_minute() -> None:
    stage = Stage(policy(**limits(cluster={"per_minute": 2})))
    devices = fatal(stage, 1, 2, 3)
    assert states(stage, *devices) == ["quarantined", "quarantined", "suspect"]
    assert stage.said(say.Queued)[0].limited_by == "cluster per minute"
    stage.passes(50)
    assert states(stage, devices[2]) == ["suspect"]
    stage.passes(12)
    assert states(stage, devices[2]) == ["quarantined"]


def test_scopes_limit_by_themselves() -> None:
    stage = Stage(policy(**limits(node={"absolute": 1}, model={"absolute": 0})))
    one = fatal(stage, 1)[0]
    other = fatal(stage, 1, node="worker-4")[0]
    assert states(stage, one, other) == ["quarantined", "quarantined"]


def test_waiting_has_an_end_and_the_case_is_judged_again() -> None:
    stage = Stage(policy(**limits(cluster={"absolute": 0}), deadlines={"grant_s": 60, "suspect_s": 1e6}))
    device = fatal(stage, 1)[0]
    stage.passes(80)
    assert "no room until its deadline" in stage.said(say.BudgetReturned)[0].reason
    assert [one.attempt for one in stage.said(say.StepProposed)] == [1, 2]
    assert states(stage, device) == ["suspect"]


def test_a_device_that_recovered_while_it_waited_is_not_taken_out() -> None:
    stage = Stage(policy(**limits(cluster={"absolute": 0})))
    stage.strike(3)
    stage.report(verdict="healthy", streak=1)
    stage.report(verdict="healthy", streak=10)
    assert stage.state() is State.HEALTHY
    assert stage.budget.waiting == {}


def test_recoveries_ask_for_nothing() -> None:
    stage = Stage()
    stage.to_validating()
    stage.engine._policy = policy(budgets={"quarantine": {"cluster": {"absolute": 0}}})
    stage.report(verdict="healthy", streak=5)
    stage.passes(700)
    assert stage.state() is State.HEALTHY


def test_an_eviction_s_grant_is_spent_and_not_held() -> None:
    stage = Stage(policy(budgets={"evict": {"cluster": {"per_minute": 1}}}))
    stage.to_draining(look("a"), look("b"))
    assert stage.evictions == ["a"]
    assert {key.step for key in stage.budget.charges} == {"quarantine"}
    stage.passes(75)
    assert stage.evictions == ["a", "b"]


def test_an_eviction_that_waited_too_long_is_proposed_again() -> None:
    stage = Stage(policy(budgets={"evict": {"cluster": {"per_minute": 0}}}, deadlines={"drain_s": 100}))
    stage.to_draining(look("a"))
    assert stage.budget.waiting
    stage.passes(130)
    assert stage.evictions == []
    assert stage.state() is State.STUCK
    returned = [one for one in stage.said(say.BudgetReturned) if one.pod_uid]
    passed = [one for one in stage.said(say.DeadlinePassed) if one.pod_uid]
    assert len(returned) == len(passed) == 1
    assert stage.case.pods[0].proposed == 0


# ---------------------------------------------------------------------- common cause


def common(count: int = 3, **more: Any) -> Any:
    return policy(budgets={}, common_cause={"count": {"node": count}, "freeze_s": 600}, **more)


def test_many_alike_at_once_freeze_everything() -> None:
    stage = Stage(common())
    devices = fatal(stage, 1, 2, 3, 4)
    assert states(stage, *devices) == ["quarantined", "quarantined", "suspect", "suspect"]
    frozen = stage.said(say.Frozen)
    assert len(frozen) == 1
    assert (frozen[0].code, frozen[0].scope, len(frozen[0].cases)) == ("79", f"node:{NODE}", 3)
    assert [one.limited_by.split()[0] for one in stage.said(say.Queued)] == ["frozen", "frozen"]
    assert stage.budget.frozen


def test_different_codes_or_times_or_places_are_no_common_cause() -> None:
    stage = Stage(common())
    fatal(stage, 1, code="79")
    fatal(stage, 2, code="48")
    fatal(stage, 3, code="79", node="worker-4")
    stage.passes(40)
    fatal(stage, 4, code="79")
    assert stage.said(say.Frozen) == []


def test_after_the_thaw_each_case_is_judged_by_its_health_then() -> None:
    stage = Stage(common())
    *_, third, fourth = fatal(stage, 1, 2, 3, 4)
    stage.passes(1)
    for streak in (1, 10):
        report = _report(stage, "79", 4).model_copy(
            update={"verdict": "healthy", "evidence": (), "window_id": 1 + streak, "streak": streak}
        )
        stage.hear(report, place=fourth.place, entity=fourth.entity)
    stage.passes(610)
    assert [one.reason for one in stage.said(say.Thawed)] == ["its time is over"]
    assert states(stage, third, fourth) == ["quarantined", "healthy"]


def test_a_person_may_thaw_earlier() -> None:
    stage = Stage(common())
    third = fatal(stage, 1, 2, 3)[-1]
    approved = say.ApproveRequested(request_id="a", owner="ann", reason="a driver, rolled back")
    stage.again(stage.hear(approved, place="fleet", entity="budget"))
    assert len(stage.said(say.Thawed)) == 1
    assert states(stage, third) == ["quarantined"]


def test_what_waits_too_long_in_a_freeze_is_given_back() -> None:
    stage = Stage(common(deadlines={"grant_s": 30, "suspect_s": 1e6}))
    fatal(stage, 1, 2, 3)
    stage.passes(45)
    assert "frozen" in stage.said(say.BudgetReturned)[0].reason


def test_other_commands_to_the_fleet_are_not_the_budget_s() -> None:
    stage = Stage(common())
    hold = say.HoldRequested(request_id="a", owner="ann", reason="x")
    stage.hear(hold, place="fleet", entity="budget")
    stage.hear(hold, place="fleet", entity="elsewhere")
    assert stage.facts == []


# ---------------------------------------------------------------------- once, and after a restart


def test_a_proposal_heard_again_is_answered_once() -> None:
    stage = Stage(common())
    fatal(stage, 1, 2, 3)
    for fact in [fact for fact in stage.facts if isinstance(fact.data, say.StepProposed | say.Closed)]:
        stage.again(fact)
    for fact in [fact for fact in stage.facts if isinstance(fact.data, say.Quarantined)]:
        stage.again(fact)
    assert len(stage.said(say.BudgetGranted)) == 2
    assert len(stage.said(say.Queued)) == 1
    assert len(stage.said(say.Frozen)) == 1


def test_a_second_attempt_of_a_step_that_is_granted_is_granted_without_a_second_charge() -> None:
    stage = Stage(policy(**limits(cluster={"absolute": 1})))
    fatal(stage, 1)
    proposal = stage.said(say.StepProposed)[0]
    of = entity(1)
    again = proposal.model_copy(update={"attempt": 2})
    stage.hear(again, place=of.place, entity=of.entity)
    assert [one.attempt for one in stage.said(say.BudgetGranted)] == [1, 2]
    assert len(stage.budget.spent) == 1


def test_at_the_start_grants_without_an_open_case_are_given_back() -> None:
    stage = Stage(policy(**limits()))
    one, other = fatal(stage, 1, 2)
    case = stage.case_of(one)
    stage.compare = {one.about: case}
    stage.engine.settle(BUDGET, stage.now)
    assert [back.case for back in stage.said(say.BudgetReturned)] == [other.about]
    for gone in (
        DeviceCase(one, epoch=2, state=State.QUARANTINED),
        DeviceCase(one, epoch=1, state=State.HELD),
        DeviceCase(one, epoch=1, state=State.RETIRED),
    ):
        found = budget._gone(
            stage.budget,
            stage.context(BUDGET, stage.budget, None, stage.now).__class__(open_cases={one.about: gone}),
        )
        assert isinstance(found, say.BudgetReturned)


def test_a_snapshot_holds_the_whole_budget() -> None:
    stage = Stage(common())
    fatal(stage, 1, 2, 3)
    decider = RemediationDecider()
    case = stage.budget
    assert not decider.closed(case)
    assert decider.snapshot(case) is None
    full = BudgetCase(
        charges=case.charges,
        waiting=case.waiting,
        spent=case.spent,
        recent=case.recent,
        freeze=case.freeze,
        facts=5000,
        applied=case.applied,
    )
    snapshot = decider.snapshot(full)
    assert isinstance(snapshot, say.RemediationSnapshotted)
    folded = decider.evolve(BudgetCase.empty(), _fact(snapshot), 1)
    assert isinstance(folded, BudgetCase)
    for name in ("charges", "waiting", "spent", "recent", "freeze", "applied"):
        assert getattr(folded, name) == getattr(case, name), name
    bare = BudgetCase(charges={}, waiting={}, facts=5000)
    emptied = decider.snapshot(bare)
    assert emptied is not None
    assert decider.closed(bare)
    assert decider.evolve(bare, _fact(emptied), 1) == BudgetCase({}, {}, epoch=1)


def test_a_fact_that_the_budget_does_not_fold_is_only_counted() -> None:
    fact = _fact(say.StepRefused(epoch=1, cause_id="c", reason="r"))
    assert budget.evolve(BudgetCase.empty(), fact).facts == 1


def _fact(data: Any) -> AnyEvent:
    return event(data, BUDGET, cause=Cause.source("b", 1), source="/t", at=START)


@pytest.mark.parametrize("late_s", [0, 3700])
def test_only_recent_proposals_are_remembered(late_s: int) -> None:
    stage = Stage(common(count=9))
    fatal(stage, 1)
    stage.passes(late_s)
    fatal(stage, 2)
    assert len(stage.budget.recent) == (1 if late_s else 2)


def test_the_budget_s_next_look_is_at_the_earliest_of_its_times() -> None:
    stage = Stage(policy(**limits(cluster={"per_minute": 1})))
    fatal(stage, 1, 2)
    assert budget.due(stage.budget, stage.policy) == START + timedelta(seconds=60)
    assert budget.due(BudgetCase.empty(), stage.policy) is None
    assert DEVICE.place == NODE


def test_a_proposal_that_nobody_answers_is_made_again_at_its_deadline() -> None:
    stage = Stage(policy(**limits(cluster={"absolute": 0}), deadlines={"grant_s": 60, "suspect_s": 1e6}))
    fatal(stage, 1)
    del stage.engine.cases[BUDGET]
    stage.passes(75)
    assert [one.timer for one in stage.said(say.DeadlinePassed)] == ["grant"]
    assert [one.attempt for one in stage.said(say.StepProposed)] == [1, 2]


def test_a_repair_step_waits_for_its_budget_too() -> None:
    stage = Stage(policy(budgets={"reset": {"node": {"absolute": 0}}}, deadlines={"grant_s": 60}))
    stage.to_diagnosing()
    stage.diagnosed("failed")
    assert stage.case.state is State.DIAGNOSING
    stage.passes(75)
    assert [one.attempt for one in stage.said(say.StepProposed) if one.step == "reset"] == [1, 2]


def test_a_repair_step_in_validation_waits_for_its_budget_too() -> None:
    rules = {"budgets": {"reboot": {"node": {"absolute": 0}}}, "recovery": {"ladder": ["reset", "reboot"]}}
    stage = Stage(policy(**rules, deadlines={"grant_s": 60, "validate_s": 1e6}))
    stage.to_diagnosing()
    stage.diagnosed("failed")
    stage.repaired()
    stage.diagnosed("failed")
    assert stage.case.state is State.VALIDATING
    stage.passes(75)
    assert [one.attempt for one in stage.said(say.StepProposed) if one.step == "reboot"] == [1, 2]
