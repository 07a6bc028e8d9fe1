"""The three-strikes case, played step by step."""

from __future__ import annotations

from datetime import timedelta

import pytest

from services.remediation.case import DeviceCase, State
from services.remediation.context import Memory
from services.remediation.decide import RemediationDecider
from shared.events import Entity, device, workload, world
from shared.events import remediation as say
from shared.events.parts import Compatibility, Window, WorkloadRef
from tests.unit.remediation.device_stage import (
    DEVICE,
    KEY,
    START,
    Stage,
    evidence,
    look,
    pod,
    policy,
    unified,
)

# ---------------------------------------------------------------------- strikes


def test_three_windows_within_a_minute_quarantine_the_device() -> None:
    stage = Stage()
    stage.strike(3)
    assert stage.names() == ["opened", "struck", "struck", "struck", "step-proposed", "quarantined"]
    assert [(one.strike, one.of) for one in stage.said(say.Struck)] == [(1, 3), (2, 3), (3, 3)]
    assert stage.state() is State.QUARANTINED


def test_three_windows_too_far_apart_do_not() -> None:
    stage = Stage()
    for _ in range(4):
        stage.report(evidence(at=stage.now))
        stage.passes(40)
    assert stage.state() is State.SUSPECT
    assert max(one.strike for one in stage.said(say.Struck)) == 2


def test_one_burst_in_one_window_is_one_strike() -> None:
    stage = Stage()
    stage.report(*(evidence(n=n) for n in range(20)))
    assert [one.strike for one in stage.said(say.Struck)] == [1]


def test_a_fatal_code_needs_one_strike() -> None:
    stage = Stage()
    stage.strike(1, code="79", class_="fatal")
    assert stage.state() is State.QUARANTINED
    assert "1 of 1 strikes: 79" in stage.case.reason


@pytest.mark.parametrize("class_", ["sympathetic", "application", "unknown", "ignore"])
def test_other_classes_never_count_alone(class_: str) -> None:
    stage = Stage()
    stage.strike(5, class_=class_)
    assert stage.names() == []


def test_a_sympathetic_code_beside_one_that_counts_is_part_of_the_strike() -> None:
    stage = Stage()
    stage.report(evidence("45", "sympathetic"), evidence("48"))
    struck = stage.said(say.Struck)[0]
    assert struck.codes == ("48",)
    assert len(struck.evidence_ids) == 2


def test_an_unknown_verdict_neither_counts_nor_resets() -> None:
    stage = Stage()
    stage.strike(2)
    stage.report(evidence(at=stage.now), verdict="unknown")
    stage.strike(1)
    assert stage.state() is State.QUARANTINED


def test_windows_are_ordered_by_boot_and_number_not_by_arrival() -> None:
    stage = Stage()
    stage.report(evidence(), window=5)
    stage.report(evidence(n=1), window=4)
    stage.report(evidence(n=2), window=5)
    assert len(stage.said(say.Struck)) == 1
    stage.report(evidence(n=3), window=1, boot="b2")
    stage.report(evidence(n=4), window=9, boot="b1")
    assert len(stage.said(say.Struck)) == 2


def test_windows_that_the_last_case_saw_never_count_in_the_next() -> None:
    stage = Stage()
    stage.to_probation()
    late = stage.case.seen.window_id
    stage.passes(700)
    assert stage.state() is State.HEALTHY
    stage.report(evidence(), window=late)
    assert stage.state() is State.HEALTHY
    stage.report(evidence(), window=late + 1)
    assert (stage.case.state, stage.case.epoch) == (State.SUSPECT, 2)


def test_a_suspect_is_cleared_by_a_healthy_streak() -> None:
    stage = Stage()
    stage.strike(1)
    stage.report(verdict="healthy", streak=1)
    stage.report(verdict="healthy", streak=10)
    assert stage.names()[-3:] == ["health-noted", "cleared", "closed"]
    assert stage.case.penalty == 0


def test_a_suspect_is_cleared_by_time_only_where_the_node_vouches_for_it() -> None:
    stage = Stage()
    stage.strike(1)
    stage.report(verdict="healthy", streak=1)
    stage.passes(120, vouched=False)
    assert stage.state() is State.SUSPECT
    stage.passes(12)
    assert stage.state() is State.HEALTHY


def test_a_suspect_without_a_further_strike_is_let_go() -> None:
    stage = Stage()
    stage.strike(1)
    stage.passes(620)
    assert stage.names()[-2:] == ["deadline-passed", "closed"]
    assert stage.case.reason == "no further strike"


def test_what_is_heard_twice_is_applied_once() -> None:
    stage = Stage()
    for _ in range(3):
        stage.again(stage.report(evidence(at=stage.now)))
    fenced = stage.fenced()
    stage.again(fenced)
    assert stage.names().count("struck") == 3
    assert stage.names().count("drain-planned") == 1


def test_a_partition_s_fault_belongs_to_its_physical_device() -> None:
    stage = Stage()
    for n in range(3):
        stage.report(evidence(scope="partition", n=n), entity=f"{KEY}-mig-3-0")
    quarantined = stage.said(say.Quarantined)[0]
    assert stage.state() is State.QUARANTINED
    assert quarantined.scope == "partition"


def test_a_part_speaks_against_its_device_and_never_for_it() -> None:
    stage = Stage()
    partition = f"{KEY}-mig-3-0"
    stage.strike(1)
    stage.report(verdict="healthy", streak=10, serial="MIG-1", entity=partition)
    stage.report(evidence(n=2), serial="MIG-1", entity=partition)
    registered = device.Registered(
        device=unified(serial="MIG-1"), generation=1, compatibility=Compatibility(verdict="compatible")
    )
    stage.hear(registered, entity=partition)
    stage.hear(device.Lost(generation=1, reason="removed", last_seen=None), entity=partition)
    assert stage.names() == ["opened", "struck", "struck"]
    assert stage.case.serial == "S1"


def test_engine_faults_take_the_engine_out_and_wider_ones_then_the_device() -> None:
    stage = Stage()
    engine = f"{KEY}-enc-1"
    for n in range(3):
        stage.report(evidence(scope="engine", engine=engine, n=n))
    first = stage.said(say.Quarantined)[0]
    assert (first.scope, first.engines) == ("engines", (engine,))
    stage.report(evidence(scope="engine", engine=engine, n=7))
    assert len(stage.said(say.Quarantined)) == 1
    stage.report(evidence(n=8))
    assert [one.scope for one in stage.said(say.Quarantined)] == ["engines", "device"]
    stage.report(evidence(n=9))
    assert len(stage.said(say.Quarantined)) == 2


def test_a_wider_quarantine_waits_for_an_answer_of_its_own() -> None:
    stage = Stage()
    stage.looks = {one.pod.uid: one for one in (look("on-engine"), look("elsewhere"))}
    for n in range(3):
        stage.report(evidence(scope="engine", engine=f"{KEY}-enc-1", n=n))
    stage.report(evidence(n=8))
    narrow, wide = [fact for fact in stage.facts if isinstance(fact.data, say.Quarantined)]
    assert narrow.id != wide.id
    stage.fenced("on-engine", answering=narrow)
    assert stage.state() == "quarantined"
    assert stage.evictions == []
    stage.fenced("on-engine", "elsewhere", answering=wide)
    assert sorted(stage.evictions) == ["elsewhere", "on-engine"]
    assert not stage.said(say.DrainStuck)


def test_a_drain_that_widens_keeps_what_it_did_and_takes_the_rest() -> None:
    stage = Stage()
    stage.looks = {one.pod.uid: one for one in (look("on-engine"), look("elsewhere"))}
    stage.outcomes["on-engine"] = [("never", None)] * 99
    for n in range(3):
        stage.report(evidence(scope="engine", engine=f"{KEY}-enc-1", n=n))
    (narrow,) = [fact for fact in stage.facts if isinstance(fact.data, say.Quarantined)]
    stage.fenced("on-engine", answering=narrow)
    assert stage.state() == "draining"
    stage.report(evidence(n=8))
    assert stage.state() == "quarantined"
    stage.outcomes.clear()
    wide = [fact for fact in stage.facts if isinstance(fact.data, say.Quarantined)][-1]
    stage.fenced("on-engine", "elsewhere", answering=wide)
    assert sorted(stage.evictions) == ["elsewhere", "on-engine"]
    assert len([one for one in stage.said(say.EvictionOrdered) if one.pod.name == "on-engine"]) == 1


# ---------------------------------------------------------------------- draining


def test_pods_leave_by_tier_and_the_rest_of_the_way_follows() -> None:
    stage = Stage()
    stage.to_draining(look("live", "online", owner="edge"), look("clips"), look("spare", "besteffort"))
    assert stage.evictions == ["spare", "clips"]
    assert [str(one.pod) for one in stage.said(say.ReplacementRequested)] == ["media/live"]
    stage.passes(45)
    assert stage.evictions == ["spare", "clips", "live"]
    assert stage.state() is State.DIAGNOSING


def test_a_device_without_holders_is_drained_at_once() -> None:
    stage = Stage()
    stage.to_draining()
    assert stage.names()[-3:] == ["drain-planned", "drained", "diagnosis-requested"]


def test_it_is_not_drained_before_the_bridge_has_answered() -> None:
    stage = Stage()
    stage.strike(3)
    stage.passes(50)
    assert stage.state() is State.QUARANTINED
    stage.passes(20)
    assert stage.names()[-2:] == ["deadline-passed", "drain-stuck"]
    stage.fenced()
    assert stage.state() is State.DIAGNOSING


def test_a_fence_of_another_epoch_is_refused() -> None:
    stage = Stage()
    stage.strike(3)
    stage.again(stage.fenced(epoch=7))
    refused = stage.said(say.StepRefused)
    assert [(one.stale_epoch, one.epoch) for one in refused] == [(7, 1)]
    assert stage.state() is State.QUARANTINED


def test_holders_are_looked_at_before_anybody_is_evicted() -> None:
    stage = Stage()
    stage.api_up = False
    stage.to_draining(look("clips"))
    assert stage.said(say.DrainPlanned)[0].pods[0].tier == ""
    assert stage.evictions == []
    stage.api_up = True
    stage.passes(12)
    assert [one.n for one in stage.said(say.DrainPlanned)] == [1, 2]
    assert stage.evictions == ["clips"]


def test_a_holder_that_the_api_server_does_not_know_is_missing_and_gone() -> None:
    stage = Stage()
    stage.to_draining(look("ghost", there=False), look("clips"))
    planned = stage.said(say.DrainPlanned)[0]
    assert [one.name for one in planned.missing] == ["ghost"]
    assert stage.evictions == ["clips"]
    assert stage.state() is State.DIAGNOSING


def test_a_pod_bound_after_the_fence_is_drained_too() -> None:
    stage = Stage()
    stage.outcomes["clips"] = [("blocked", 60)]
    stage.to_draining(look("clips"))
    stage.looks["uid-late"] = look("late")
    bound = world.Bound(allocation_id="a", pod=pod("late"), container="c", resource="r")
    stage.again(stage.hear(bound))
    assert stage.evictions == ["clips", "late"]
    stage.passes(80)
    assert stage.state() is State.DIAGNOSING


def test_a_bound_pod_outside_a_drain_changes_nothing() -> None:
    stage = Stage()
    stage.strike(1)
    stage.hear(world.Bound(allocation_id="a", pod=pod("late"), container="c", resource="r"))
    assert stage.names() == ["opened", "struck"]


def test_a_protected_pod_is_asked_again_and_holds_up_no_other_tier() -> None:
    stage = Stage()
    stage.outcomes["spare"] = [("blocked", 5), ("blocked", 5)]
    stage.to_draining(look("spare", "besteffort"), look("clips"))
    assert stage.evictions == ["spare", "clips"]
    stage.passes(40)
    assert stage.evictions == ["spare", "clips", "spare", "spare"]
    assert [one.attempt for one in stage.said(say.EvictionOrdered) if one.pod.name == "spare"] == [1, 2, 3]
    assert stage.state() is State.DIAGNOSING


def test_a_pod_that_opted_out_is_never_ordered() -> None:
    stage = Stage()
    stage.to_draining(look("precious", opted_out=True), look("live", "online"))
    assert stage.evictions == ["live"]
    stage.passes(920)
    stuck = stage.said(say.DrainStuck)[0]
    assert [one.name for one in stuck.left] == ["precious"]
    stage.looks["uid-precious"] = look("precious", there=False)
    stage.passes(12)
    assert stage.state() is State.DIAGNOSING


def test_a_withheld_eviction_without_a_time_is_not_asked_again() -> None:
    stage = Stage()
    stage.outcomes["clips"] = [("withheld", None)]
    stage.to_draining(look("clips"))
    stage.passes(300)
    assert stage.evictions == ["clips"]


def test_a_stuck_drain_is_left_to_a_person() -> None:
    stage = Stage(policy(deadlines={"stuck_s": 600}))
    stage.outcomes["clips"] = [("blocked", 5)] * 500
    stage.to_draining(look("clips"))
    stage.passes(905)
    assert stage.state() is State.STUCK
    stage.passes(700)
    held = stage.said(say.Held)[0]
    assert (held.owner, stage.case.state) == ("mediafleet", State.HELD)


def test_a_stuck_drain_without_a_fence_never_ends_by_itself_as_drained() -> None:
    stage = Stage()
    stage.strike(3)
    stage.passes(90)
    stage.passes(200)
    assert stage.state() is State.STUCK


def test_an_online_pod_goes_when_its_replacement_is_there() -> None:
    stage = Stage(policy(drain={"replacement_wait_s": 600}))
    stage.to_draining(look("live", "online", owner="edge"))
    asked = stage.said(say.ReplacementRequested)[0]
    stage.passes(30)
    assert stage.evictions == []
    applied = workload.ScaleRefused(request_id=asked.request_id, reason="at its maximum", by="x")
    stage.again(stage.hear(applied, place="media", entity="deployment-edge"))
    assert stage.evictions == ["live"]


def test_a_scale_answer_that_nobody_waits_for_changes_nothing() -> None:
    stage = Stage()
    stage.outcomes["clips"] = [("blocked", 600)]
    stage.to_draining(look("clips"))
    before = stage.names()
    for request_id in (f"worker-3/{KEY}#1/uid-clips", f"worker-3/{KEY}#1/other", "not ours", "a/job-1#2/x"):
        stage.hear(
            workload.ScaleRefused(request_id=request_id, reason="r", by="x"),
            place="media",
            entity="deployment-edge",
        )
    assert stage.names() == before


def test_without_an_eviction_budget_or_a_wait_evictions_are_ordered_at_once() -> None:
    stage = Stage(policy(budgets={}, drain={"replacement_wait_s": 0}))
    stage.to_draining(look("live", "online", owner="edge"))
    assert stage.names().count("step-proposed") == 1
    assert stage.evictions == ["live"]


# ---------------------------------------------------------------------- diagnosis, repair, the way back


def test_a_passed_diagnosis_skips_repair_and_leads_through_probation_to_the_end() -> None:
    stage = Stage()
    stage.to_probation()
    assert stage.said(say.Repaired)[0].step == "none"
    assert stage.said(say.RepairRequested) == []
    stage.passes(605)
    assert stage.names()[-2:] == ["readmitted", "closed"]
    assert stage.case.penalty == pytest.approx(1000)
    assert stage.budget.charges == {}


def test_a_failed_diagnosis_leads_to_repair_and_another_deep_check() -> None:
    stage = Stage()
    stage.to_diagnosing()
    stage.diagnosed("failed")
    assert stage.state() is State.REPAIRING
    stage.again(stage.repaired())
    assert stage.state() is State.VALIDATING
    assert stage.said(say.DiagnosisRequested)[-1].attempt == 2
    stage.diagnosed("passed")
    stage.report(verdict="healthy", streak=5)
    assert stage.state() is State.PROBATION


def test_a_repair_that_does_not_help_leads_to_the_next_step_and_then_to_retirement() -> None:
    stage = Stage(policy(recovery={"ladder": ["reset", "reboot"]}, budgets={}))
    stage.to_diagnosing()
    stage.diagnosed("failed")
    stage.repaired("ambiguous")
    assert [one.step for one in stage.said(say.RepairRequested)] == ["reset", "reboot"]
    stage.repaired("failed")
    assert stage.state() is State.RETIRED
    assert stage.names()[-1] == "node-tainted"
    assert [one.outcome for one in stage.said(say.RepairRecorded)] == ["ambiguous", "failed"]


def test_an_unanswered_repair_is_given_up_at_its_deadline() -> None:
    stage = Stage()
    stage.to_diagnosing()
    stage.diagnosed("failed")
    stage.passes(1210)
    assert stage.state() is State.RETIRED


def test_an_ambiguous_or_unanswered_diagnosis_is_asked_again_a_few_times() -> None:
    stage = Stage()
    stage.to_diagnosing()
    stage.diagnosed("ambiguous")
    stage.passes(310)
    stage.passes(310)
    assert [one.attempt for one in stage.said(say.DiagnosisRequested)] == [1, 2, 3]
    assert stage.state() is State.REPAIRING


def test_answers_to_other_questions_are_not_taken() -> None:
    stage = Stage()
    stage.to_diagnosing()
    before = stage.names()
    as_of = Window(boot_id="b1", window_id=9)
    stage.hear(world.Diagnosed(epoch=1, attempt=5, as_of=as_of, outcome="passed"))
    stage.hear(world.RepairDone(epoch=1, step="reset", attempt=1, as_of=as_of, outcome="succeeded"))
    assert stage.names() == before
    stage.hear(world.Diagnosed(epoch=9, attempt=1, as_of=as_of, outcome="passed"))
    stage.hear(world.RepairDone(epoch=9, step="reset", attempt=1, as_of=as_of, outcome="succeeded"))
    stage.hear(
        say.BudgetGranted(case=DEVICE.about, epoch=9, step="quarantine", scopes=()),
        place="fleet",
        entity="budget",
    )
    assert stage.names()[len(before) :] == ["step-refused"] * 3
    stage.diagnosed("passed")
    before = stage.names()
    stage.diagnosed("passed")
    assert stage.names() == before


def test_a_step_that_a_person_must_approve_waits_for_it() -> None:
    stage = Stage(policy(recovery={"ladder": ["reboot"], "approvals": ["reboot"]}))
    stage.to_diagnosing()
    stage.hear(say.ApproveRequested(request_id="early", owner="ann", reason="yes"))
    assert stage.said(say.CommandRefused)[0].reason == "nothing waits for approval"
    stage.diagnosed("failed")
    assert stage.state() is State.DIAGNOSING
    stage.again(stage.hear(say.ApproveRequested(request_id="a", owner="ann", reason="yes")))
    assert stage.said(say.RepairRequested)[0].step == "reboot"
    assert len(stage.said(say.CommandRefused)) == 1


def test_what_nobody_approves_ends_in_retirement() -> None:
    stage = Stage(policy(recovery={"ladder": ["reboot"], "approvals": ["reboot"]}))
    stage.to_diagnosing()
    stage.diagnosed("failed")
    stage.passes(86_500)
    assert stage.state() is State.RETIRED
    assert stage.case.reason == "nobody approved the repair"


def test_validation_by_time_needs_the_node_s_word() -> None:
    stage = Stage()
    stage.to_validating()
    stage.passes(100, vouched=False)
    assert stage.state() is State.VALIDATING
    stage.passes(12)
    assert stage.state() is State.PROBATION


def test_an_unhealthy_window_while_validating_starts_the_streak_anew() -> None:
    stage = Stage()
    stage.to_validating()
    stage.report(evidence(at=stage.now))
    stage.passes(60)
    assert stage.state() is State.VALIDATING
    stage.report(verdict="healthy", streak=1)
    stage.passes(20)
    assert stage.state() is State.VALIDATING
    stage.report(verdict="healthy", streak=1, boot="b2", window=1)
    stage.passes(20)
    assert stage.state() is State.VALIDATING
    stage.passes(20)
    assert stage.state() is State.PROBATION


def test_a_device_that_does_not_stay_healthy_is_retired_after_its_rounds() -> None:
    stage = Stage()
    stage.to_validating()
    stage.report(evidence(at=stage.now))
    for _ in range(3):
        stage.passes(910)
    assert stage.state() is State.RETIRED
    assert stage.case.reason == "it does not stay healthy"


def test_a_device_of_unknown_health_is_left_to_a_person_not_retired() -> None:
    stage = Stage()
    stage.to_validating()
    stage.report(verdict="unknown")
    for _ in range(3):
        stage.passes(910)
    assert stage.state() is State.HELD
    assert stage.case.reason == "its health stays unknown"


def test_a_failed_deep_check_while_validating_goes_to_repair() -> None:
    stage = Stage(policy(budgets={}))
    stage.to_diagnosing()
    stage.diagnosed("failed")
    stage.repaired()
    stage.diagnosed("ambiguous")
    stage.diagnosed("failed")
    assert stage.state() is State.RETIRED


def test_a_strike_in_probation_opens_the_next_epoch_at_quarantined() -> None:
    stage = Stage()
    stage.to_probation()
    stage.strike(1)
    assert stage.names()[-4:] == ["closed", "opened", "struck", "quarantined"]
    assert (stage.case.epoch, stage.case.state) == (2, State.QUARANTINED)
    assert stage.case.penalty == pytest.approx(1000)
    assert [key.epoch for key in stage.budget.charges] == [2]


def test_probation_ends_in_validation_when_the_device_is_not_healthy() -> None:
    stage = Stage()
    stage.to_probation()
    stage.report(verdict="unknown")
    stage.passes(620)
    assert stage.names()[-2:] == ["deadline-passed", "diagnosis-requested"]
    assert stage.state() is State.VALIDATING


def test_probation_does_not_end_on_a_silent_node() -> None:
    stage = Stage(policy(deadlines={"silence_s": 3600}))
    stage.to_probation()
    stage.passes(3000, vouched=False)
    assert stage.state() is State.PROBATION
    stage.passes(3000, vouched=False)
    assert stage.state() is State.HELD
    assert stage.case.reason == "the node is silent in state probation"


def test_repeated_cases_make_probation_longer_and_end_in_retirement() -> None:
    stage = Stage(policy(damping={"retire_at": 3500}))
    lengths = []
    for _ in range(3):
        stage.to_probation()
        began = stage.now
        until = stage.case.until
        assert until is not None
        lengths.append((until - began).total_seconds())
        stage.passes(lengths[-1] + 20)
        assert stage.state() is State.HEALTHY
    assert lengths[0] == pytest.approx(600)
    assert 2 * lengths[0] < lengths[1] * 1.1 < lengths[2]
    stage.strike(3)
    stage.fenced()
    assert stage.state() is State.RETIRED
    assert "it keeps failing" in stage.case.reason


def test_the_penalty_decays_by_its_half_life() -> None:
    stage = Stage()
    stage.to_probation()
    stage.passes(605)
    stage.passes(86_400)
    stage.strike(1)
    assert stage.case.penalty == pytest.approx(500, rel=0.02)


def test_too_many_quarantines_in_a_month_retire_a_device() -> None:
    stage = Stage(policy(damping={"penalty": 0, "most_epochs": 2}))
    stage.to_probation()
    stage.passes(620)
    stage.strike(3)
    stage.fenced()
    assert stage.state() is State.RETIRED


# ---------------------------------------------------------------------- people


def test_a_hold_opens_an_epoch_and_its_release_goes_back_to_healthy() -> None:
    stage = Stage()
    stage.again(stage.hold())
    assert stage.names() == ["opened", "held"]
    stage.again(stage.release())
    assert stage.names() == ["opened", "held", "released", "closed"]


@pytest.mark.parametrize("to", ["to_draining", "to_diagnosing", "to_validating", "to_probation"])
def test_a_hold_stops_everything_and_its_release_goes_to_validating(to: str) -> None:
    stage = Stage()
    getattr(stage, to)()
    stage.hold()
    before = stage.names()
    stage.fenced("clips")
    stage.diagnosed()
    stage.strike(3, class_="fatal")
    stage.passes(5000)
    assert set(stage.names()[len(before) :]) <= {"health-noted"}
    stage.release()
    assert stage.state() is State.VALIDATING


def test_a_hold_while_an_eviction_is_in_flight_names_it_and_takes_its_outcome() -> None:
    stage = Stage()
    stage.outcomes["clips"] = [("never", None)] * 9
    stage.to_draining(look("clips"))
    stage.hold()
    assert [one.name for one in stage.said(say.Held)[0].orders_in_flight] == ["clips"]
    listed = RemediationDecider().effects(stage.case)
    assert [(one.key, one.ready) for one in listed] == [("evict/uid-clips/1", False)]
    stage.release()
    assert [one.ready for one in RemediationDecider().effects(stage.case)] == [False]


def test_a_hold_ends_by_itself_at_its_time() -> None:
    stage = Stage()
    stage.to_diagnosing()
    stage.hold(until=START + timedelta(hours=1))
    stage.passes(3000)
    assert stage.state() is State.HELD
    stage.passes(700)
    assert stage.state() is State.VALIDATING


def test_a_second_hold_stands_on_the_first() -> None:
    stage = Stage()
    stage.to_diagnosing()
    stage.hold("one")
    stage.hold("two")
    stage.release()
    assert stage.state() is State.VALIDATING


def test_a_person_s_release_ends_a_running_case_too() -> None:
    stage = Stage()
    stage.strike(2)
    stage.release("first")
    assert stage.state() is State.HEALTHY
    stage.to_diagnosing()
    stage.release("second")
    assert stage.state() is State.VALIDATING


def test_a_release_of_nothing_is_refused_once() -> None:
    stage = Stage()
    stage.again(stage.release())
    assert [one.epoch for one in stage.said(say.CommandRefused)] == [1]
    assert stage.case.epoch == 0


def test_a_person_retires_a_device_from_any_state_and_can_bring_it_back() -> None:
    stage = Stage()
    stage.again(stage.retire())
    assert stage.names() == ["opened", "retired", "node-tainted"]
    stage.strike(3, class_="fatal")
    stage.passes(100_000)
    assert stage.state() is State.RETIRED
    stage.release()
    assert stage.state() is State.VALIDATING
    stage.diagnosed()
    stage.report(verdict="healthy", streak=5)
    stage.passes(620)
    assert stage.names()[-3:] == ["readmitted", "node-tainted", "closed"]
    assert not stage.case.tainted


def test_a_device_that_comes_back_takes_the_taint_off_that_another_ones_retirement_left() -> None:
    stage = Stage()
    stage.to_probation()
    stage.tainted_by_other = True
    stage.passes(620)
    assert stage.names()[-3:] == ["readmitted", "node-tainted", "closed"]


def test_a_retirement_heard_again_after_the_case_ended_does_not_open_another() -> None:
    stage = Stage()
    retired = stage.retire()
    stage.release()
    stage.diagnosed()
    stage.report(verdict="healthy", streak=5)
    stage.passes(620)
    stage.again(retired)
    assert stage.state() is State.HEALTHY


# ---------------------------------------------------------------------- who the device is


def test_another_serial_closes_the_case_and_starts_the_new_device_at_validating() -> None:
    stage = Stage()
    stage.to_diagnosing()
    stage.again(stage.registered("S2"))
    opened = stage.said(say.Opened)
    assert [(one.epoch, one.state, one.penalty) for one in opened] == [
        (1, "suspect", 0),
        (2, "validating", 0),
    ]
    assert stage.state() is State.VALIDATING
    assert stage.case.serial == "S2"


def test_an_unknown_serial_is_never_another() -> None:
    stage = Stage()
    stage.to_diagnosing()
    stage.registered(None)
    stage.report(evidence(at=stage.now), serial=None)
    assert stage.case.epoch == 1


def test_a_report_with_another_serial_is_a_replacement_too_but_an_old_one_is_not() -> None:
    stage = Stage()
    stage.to_diagnosing()
    stage.report(evidence(), serial="S0", window=1)
    assert stage.case.epoch == 1
    stage.report(verdict="healthy", serial="S2")
    assert (stage.case.epoch, stage.case.state) == (2, State.VALIDATING)


def test_a_replacement_does_not_end_a_person_s_hold() -> None:
    stage = Stage()
    stage.to_diagnosing()
    stage.hold()
    stage.registered("S2")
    assert stage.state() is State.HELD
    stage.release()
    stage.registered("S2")
    assert (stage.case.epoch, stage.case.serial) == (2, "S2")


def test_a_new_device_in_a_healthy_slot_carries_no_penalty() -> None:
    stage = Stage()
    stage.to_probation()
    stage.passes(620)
    stage.report(evidence(at=stage.now), serial="S2")
    assert stage.case.penalty == 0


def test_a_device_that_is_removed_ends_a_suspicion_only() -> None:
    stage = Stage()
    stage.strike(1)
    stage.hear(device.Lost(generation=1, reason="silent", last_seen=None))
    assert stage.state() is State.SUSPECT
    stage.hear(device.Lost(generation=1, reason="removed", last_seen=None))
    assert stage.state() is State.HEALTHY


def test_an_older_registration_heard_again_is_no_replacement() -> None:
    stage = Stage()
    stage.to_diagnosing()
    old = stage.registered("S1")
    stage.registered("S2")
    stage.serial = "S2"
    stage.again(old)
    assert (stage.case.epoch, stage.case.serial) == (2, "S2")


def test_a_registered_device_without_a_case_changes_nothing() -> None:
    stage = Stage()
    stage.registered("S1")
    assert stage.names() == []


# ---------------------------------------------------------------------- memory, the bridge alone


@pytest.mark.parametrize("how", ["report", "registered", "fatal"])
def test_a_device_that_nobody_remembers_is_held(how: str) -> None:
    stage = Stage(memory=Memory(4, "its MediaResource says Quarantined (epoch 4)"))
    if how == "registered":
        stage.registered("S1")
    else:
        stage.report(*([evidence(class_="fatal")] if how == "fatal" else []))
    assert [one.state for one in stage.said(say.Opened)] == ["held"]
    assert [one.owner for one in stage.said(say.Held)] == ["mediafleet"]
    assert (stage.case.epoch, stage.case.state) == (5, State.HELD)
    stage.release()
    assert stage.state() is State.VALIDATING


def test_the_epoch_goes_on_from_what_the_cluster_remembers() -> None:
    stage = Stage(memory=Memory(4))
    stage.strike(1)
    assert stage.case.epoch == 5


def _withdrawn(window: int = 3, serial: str | None = "S1") -> world.Withdrawn:
    return world.Withdrawn(
        boot_id="b1",
        n=1,
        serial=serial,
        evidence=(evidence("79", "fatal"),),
        window=Window(boot_id="b1", window_id=window),
    )


def test_a_withdrawal_by_the_bridge_opens_a_case_at_quarantined() -> None:
    stage = Stage()
    heard = stage.hear(_withdrawn())
    assert stage.names() == ["opened", "quarantined"]
    assert "withdrew" in stage.case.reason
    stage.fenced()
    stage.again(heard)
    assert stage.state() is State.DIAGNOSING
    assert [key.step for key in stage.budget.charges] == ["quarantine"]


def test_a_withdrawal_of_a_suspect_quarantines_it_and_later_ones_change_nothing() -> None:
    stage = Stage()
    stage.strike(1)
    stage.hear(_withdrawn())
    assert stage.names()[-1] == "quarantined"
    stage.hear(_withdrawn(4))
    assert stage.names().count("quarantined") == 1


def test_a_withdrawal_of_another_device_in_the_slot_is_a_case_of_its_own() -> None:
    stage = Stage()
    stage.to_diagnosing()
    stage.hear(_withdrawn(50, serial="S2"))
    assert (stage.case.epoch, stage.case.state) == (2, State.QUARANTINED)


def test_an_old_withdrawal_is_not_taken_up_again() -> None:
    stage = Stage()
    stage.to_probation()
    stage.passes(620)
    stage.hear(_withdrawn(1))
    assert stage.state() is State.HEALTHY


def test_a_command_for_a_workload_is_not_ours() -> None:
    stage = Stage()
    stage.hear(say.HoldRequested(request_id="r", owner="a", reason="b"), place="live", entity="job-abc1")
    assert stage.facts == []


# ---------------------------------------------------------------------- dry run, snapshot


def test_a_dry_run_says_what_it_would_do_and_lets_the_case_go() -> None:
    stage = Stage(policy(dry_run=True))
    stage.strike(4)
    assert stage.names().count("step-refused") == 1
    stage.passes(620)
    assert stage.state() is State.HEALTHY
    assert "quarantined" not in stage.names()


def test_a_snapshot_stands_for_the_whole_log_of_a_closed_case() -> None:
    stage = Stage()
    stage.to_probation()
    stage.passes(620)
    decider = RemediationDecider()
    assert decider.closed(stage.case)
    snapshot = decider.snapshot(stage.case)
    assert isinstance(snapshot, say.RemediationSnapshotted)
    from shared.events import Cause, event  # noqa: PLC0415 - only here

    fact = event(snapshot, DEVICE, cause=Cause.of(stage.facts[-1]), source="/t", at=stage.now)
    folded = decider.evolve(DeviceCase(DEVICE), fact, 1)
    assert isinstance(folded, DeviceCase)
    for name in ("epoch", "serial", "penalty", "penalty_at", "epochs", "seen", "commands"):
        assert getattr(folded, name) == getattr(stage.case, name), name
    assert decider.snapshot(folded) is None
    assert decider.snapshot(DeviceCase(DEVICE)) is None


def test_a_fact_that_a_case_does_not_fold_changes_nothing_but_its_time() -> None:
    stage = Stage()
    stage.strike(1)
    frozen = say.Frozen(freeze_id="f", code="c", scope="s", cases=())
    from shared.events import Cause, event  # noqa: PLC0415 - only here

    fact = event(frozen, DEVICE, cause=Cause.source("b", 1), source="/t", at=stage.now)
    after = RemediationDecider().evolve(stage.case, fact, 9)
    assert isinstance(after, DeviceCase)
    assert (after.state, after.last_at) == (State.SUSPECT, stage.now)


def test_a_closed_case_has_no_deadline_and_no_effect() -> None:
    decider = RemediationDecider()
    assert decider.domain == "remediation"
    case = DeviceCase(Entity("remediation", "n", "nvidia-0000-01-00-0"))
    assert decider.due(case, policy()) is None
    assert decider.effects(case) == []
    assert decider.next(case, None, START, policy()) is None
    assert not case.out


def test_nothing_that_depends_on_a_node_passes_without_its_word() -> None:
    stage = Stage()
    stage.strike(1)
    late = START + timedelta(days=30)
    assert RemediationDecider().next(stage.case, None, late, policy()) is None


def test_workload_refs_name_their_entity() -> None:
    assert WorkloadRef(namespace="n", kind="Deployment", name="edge").entity == "deployment-edge"


def test_a_case_is_changed_in_known_fields_only() -> None:
    case = DeviceCase(DEVICE)
    assert case.having(epoch=3).epoch == 3
    assert case.epoch == 0
    with pytest.raises(TypeError, match="has no epok"):
        case.having(epok=3)
