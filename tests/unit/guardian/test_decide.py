"""The guardian's decisions, driven without a bus: facts are folded as they are said."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.guardian.annotation import Target
from services.guardian.budget import BUDGET, BudgetCase, FleetLook
from services.guardian.case import SlaCase, _step
from services.guardian.decide import GuardianCase, GuardianDecider
from services.guardian.ladder import Look
from services.guardian.policy import GuardianPolicy
from services.guardian.readings import Sample, Series
from shared.events import AnyEvent, Cause, Entity, Payload, event
from shared.events import workload as facts
from shared.events.parts import PodRef, WorkloadRef
from shared.events.remediation import HoldRequested, ReleaseRequested
from shared.events.world import Heartbeat, Sampled

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OF = Entity("sla", "live", "deployment-edge")
EDGE = WorkloadRef(namespace="live", kind="Deployment", name="edge")
POD = PodRef(namespace="live", name="edge-1", uid="u-edge")
VICTIM = PodRef(namespace="jobs", name="batch-1", uid="u-batch")
POLICY = GuardianPolicy(dry_run=False, min_requests=0)
NEIGHBOUR = facts.Attribution(verdict="neighbour", node="n1", device="d1", engine="d1-enc-0")
CANDIDATE = facts.Candidate(pod=VICTIM, tier="batch", tenant="jobs", share=0.5)


def says(data: Payload, of: Entity = OF, *, at: datetime = AT, cause: Cause | None = None) -> AnyEvent:
    return event(data, of, cause=cause or Cause(f"c{at}{data}"), source="/t", at=at)


def series(latest: float, at: datetime, count: int = 4) -> Series:
    made = Series()
    for back in range(count - 1, -1, -1):
        made = made.add(Sample(at - timedelta(seconds=back), latest), 60)
    return made


class Play:
    """One workload's case and the budget's, and the time."""

    def __init__(self, policy: GuardianPolicy = POLICY) -> None:
        self.decider = GuardianDecider()
        self.case: GuardianCase = self.decider.initial(OF)
        self.budget: GuardianCase = self.decider.initial(BUDGET)
        self.policy = policy
        self.now = AT
        self.log: list[AnyEvent] = []
        self.ms = 300.0
        self.look: dict[str, Any] = {}
        self.fleet = FleetLook(1000)
        self.count = 0

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def seen(self) -> Look:
        fields: dict[str, Any] = {
            "pod": POD,
            "workload": EDGE,
            "alive": True,
            "target": Target(100.0),
            "series": series(self.ms, self.now),
            "attribution": NEIGHBOUR,
            "candidates": (CANDIDATE,),
            "replicas": 2,
        }
        return Look(**{**fields, **self.look})

    def sampled(self) -> AnyEvent:
        self.count += 1
        data = Sampled(
            boot_id="b",
            n=self.count,
            pod=POD,
            workload="x",
            latency_p99_ms=self.ms,
            window_s=1,
            measured_at=self.now,
        )
        return says(data, Entity("sample", "live", "edge-1"), at=self.now)

    def hears(self, cause: AnyEvent, look: Look | None = None) -> list[str]:
        """Decide until nothing follows, then next until nothing follows; what was said."""
        said = []
        for step in range(20):
            fact = self.decider.decide(self.case, cause, look or self.seen(), self.now, self.policy)
            if fact is None:
                break
            assert step < 5
            said.append(self.append(fact, Cause.of(cause)))
        return [*said, *self.goes_on(look)]

    def goes_on(self, look: Look | None = None) -> list[str]:
        said = []
        while (fact := self.decider.next(self.case, look or self.seen(), self.now, self.policy)) is not None:
            said.append(self.append(fact, Cause.of(self.log[-1]) if self.log else Cause("start")))
            assert len(said) < 10
        return said

    def append(self, fact: Payload, cause: Cause) -> str:
        made = says(fact, OF, at=self.now, cause=cause)
        self.log.append(made)
        self.case = self.decider.evolve(self.case, made, len(self.log))
        return fact.kind.fact

    def budget_hears(self, cause: AnyEvent) -> AnyEvent | None:
        fact = self.decider.decide(self.budget, cause, self.fleet, self.now, self.policy)
        if fact is None:
            return None
        made = says(fact, BUDGET, at=self.now, cause=Cause.of(cause))
        self.budget = self.decider.evolve(self.budget, made, 1)
        return made

    def to_order(self) -> None:
        assert self.hears(self.sampled()) == ["breached", "step-proposed"]
        granted = self.budget_hears(self.log[-1])
        assert granted is not None
        assert self.hears(granted) == ["eviction-ordered"]

    def outcome(self, outcome: str) -> list[str]:
        order = self.log[-1].data
        assert isinstance(order, facts.SlaEvictionOrdered)
        said = facts.SlaPodEvicted(
            breach_id=order.breach_id, pod=order.pod, attempt=order.attempt, outcome=outcome
        )
        return [self.append(said, Cause.of(self.log[-1])), *self.goes_on()]

    @property
    def sla(self) -> SlaCase:
        assert isinstance(self.case, SlaCase)
        return self.case

    @property
    def charges(self) -> int:
        assert isinstance(self.budget, BudgetCase)
        return len(self.budget.charges)


def test_the_ladder_from_breach_to_restored() -> None:
    play = Play()
    play.to_order()
    (effect,) = play.decider.effects(play.case)
    assert (effect.key, effect.ready) == ("evict:u-batch:1", True)
    assert play.outcome("evicted") == ["pod-evicted", "scale-requested"]
    assert play.decider.effects(play.case) == ()
    play.passes(40)
    play.ms = 95
    assert play.hears(play.sampled()) == ["relieved"]
    play.ms = 50
    assert play.goes_on() == ["restored"]
    assert play.decider.closed(play.case)


@pytest.mark.parametrize(
    "look",
    [
        {"alive": False},
        {"target": None},
        {"target": Target(100.0, "in seconds?")},
        {"workload": None},
    ],
)
def test_no_breach_without_a_living_pod_a_believed_target_and_an_owner(look: dict[str, Any]) -> None:
    play = Play()
    play.look = look
    assert play.hears(play.sampled()) == []


def test_no_breach_while_nothing_is_known() -> None:
    play = Play()
    assert play.decider.decide(play.case, play.sampled(), None, play.now, POLICY) is None
    play.ms = 99
    assert play.hears(play.sampled()) == []


def test_a_breach_that_cannot_be_attributed_is_unknown_and_nothing_follows() -> None:
    play = Play()
    play.look = {"attribution": None}
    assert play.hears(play.sampled()) == ["breached"]
    play.passes(31)
    assert play.goes_on() == []
    play.look = {}
    assert play.goes_on() == ["attributed", "step-proposed"]


def test_a_redelivered_cause_is_not_decided_again() -> None:
    play = Play()
    cause = play.sampled()
    assert play.hears(cause) == ["breached", "step-proposed"]
    assert play.hears(cause) == []
    granted = play.budget_hears(play.log[-1])
    assert granted is not None
    assert play.hears(granted) == ["eviction-ordered"]
    assert play.hears(granted) == []


def test_a_grant_for_what_is_over_is_refused_and_comes_back() -> None:
    play = Play()
    play.hears(play.sampled())
    proposed = play.log[-1]
    granted = play.budget_hears(proposed)
    assert granted is not None
    play.ms = 10
    assert play.goes_on() == ["restored"]
    assert play.hears(granted) == ["step-refused"]
    assert play.charges == 1
    returned = play.budget_hears(play.log[-1])
    assert returned is not None
    assert play.charges == 0
    assert play.budget_hears(play.log[-1]) is None


def test_a_grant_for_another_attempt_is_refused() -> None:
    play = Play()
    play.hears(play.sampled())
    stale = play.budget_hears(play.log[-1])
    assert stale is not None
    play.passes(POLICY.grant_wait_s)
    assert play.goes_on() == ["step-refused", "step-proposed"]
    assert play.hears(stale) == ["step-refused"]


def test_a_denied_step_is_proposed_again_only_when_there_is_room() -> None:
    play = Play()
    play.fleet = FleetLook(10, brake="5 of 9 online pods breached at once")
    play.hears(play.sampled())
    denied = play.budget_hears(play.log[-1])
    assert denied is not None
    assert isinstance(denied.data, facts.SlaDenied)
    assert play.hears(denied) == ["step-refused"]
    assert play.hears(denied) == []
    play.passes(POLICY.reattribute_s)
    assert play.goes_on() == ["step-proposed"]
    other = denied.data.model_copy(update={"pod_uid": "someone"})
    assert play.hears(says(other, BUDGET)) == []


@pytest.mark.parametrize("outcome", ["blocked", "failed", "withheld", "replaced"])
def test_what_was_not_evicted_rests_and_the_next_candidate_is_taken(outcome: str) -> None:
    play = Play()
    other = CANDIDATE.model_copy(update={"pod": PodRef(namespace="jobs", name="b", uid="u-b")})
    play.to_order()
    play.look = {"candidates": (CANDIDATE, other)}
    assert play.outcome(outcome) == ["pod-evicted", "attributed", "step-proposed"]
    proposed = play.log[-1].data
    assert isinstance(proposed, facts.SlaStepProposed)
    assert proposed.pod.uid == "u-b"
    assert play.budget_hears(play.log[-3]) is not None
    assert play.charges == 0


def test_without_a_candidate_left_scale_up_is_asked() -> None:
    play = Play()
    play.look = {"candidates": (CANDIDATE.model_copy(update={"excluded": "opted out"}),)}
    assert play.hears(play.sampled()) == ["breached", "scale-requested"]
    assert play.goes_on() == []


def test_a_neighbour_that_is_leaving_already_is_waited_for() -> None:
    play = Play()
    leaving = CANDIDATE.model_copy(update={"excluded": "terminating already"})
    play.look = {"candidates": (leaving, CANDIDATE)}
    assert play.hears(play.sampled()) == ["breached"]
    play.passes(POLICY.grace_s + POLICY.relief_wait_s)
    assert play.goes_on() == ["scale-requested"]


def test_a_pod_without_scalable_owner_asks_for_nothing() -> None:
    play = Play()
    play.look = {"replicas": None, "candidates": ()}
    assert play.hears(play.sampled()) == ["breached"]


def test_overload_of_its_own_asks_for_more_and_is_judged_after_the_replicas_had_time() -> None:
    play = Play()
    play.look = {"attribution": facts.Attribution(verdict="self")}
    assert play.hears(play.sampled()) == ["breached", "scale-requested"]
    play.passes(POLICY.scale_settle_s + 3)
    assert play.goes_on() == ["relief-missed"]
    assert play.sla.misses == 0
    play.passes(POLICY.scale_lease_s)
    play.look = {"attribution": facts.Attribution(verdict="self"), "replicas": 3}
    assert play.goes_on() == ["scale-requested"]


def test_two_misses_open_the_circuit_and_then_only_scale_up_is_left() -> None:
    play = Play(POLICY.model_copy(update={"scale_after_eviction": False, "retry_s": 0.0}))
    for said in (["relief-missed", "step-proposed"], ["relief-missed", "circuit-opened", "scale-requested"]):
        if not play.log:
            play.to_order()
        else:
            granted = play.budget_hears(play.log[-1])
            assert granted is not None
            assert play.hears(granted) == ["eviction-ordered"]
        assert play.outcome("evicted") == ["pod-evicted"]
        play.passes(POLICY.grace_s + 41)
        assert play.goes_on() == said
    assert play.sla.circuit_until == play.now + timedelta(seconds=POLICY.circuit_s)


def test_without_samples_the_relief_is_missed_once_it_was_waited_for() -> None:
    play = Play()
    play.to_order()
    play.outcome("evicted")
    play.look = {"series": Series()}
    due = play.decider.due(play.case, POLICY)
    assert due == play.now + timedelta(seconds=POLICY.grace_s + POLICY.relief_wait_s)
    assert play.goes_on() == []
    play.passes(POLICY.grace_s + POLICY.relief_wait_s)
    fact = play.decider.next(play.case, None, play.now, POLICY)
    assert isinstance(fact, facts.ReliefMissed)
    assert fact.after is None


def test_an_order_without_outcome_is_void_at_its_deadline() -> None:
    play = Play()
    play.to_order()
    assert play.decider.due(play.case, POLICY) == play.now + timedelta(seconds=POLICY.order_within_s)
    assert play.goes_on() == []
    play.passes(POLICY.order_within_s)
    assert play.goes_on()[0] == "pod-evicted"


def test_dry_run_evicts_nobody_twice_and_asks_for_nothing() -> None:
    play = Play(GuardianPolicy(min_requests=0))
    play.to_order()
    order = play.log[-1].data
    assert isinstance(order, facts.SlaEvictionOrdered)
    assert order.dry_run
    assert play.outcome("dry-run") == ["pod-evicted"]
    play.look = {"attribution": facts.Attribution(verdict="self")}
    play.passes(POLICY.reattribute_s)
    assert play.goes_on() == ["attributed", "step-refused"]
    assert play.goes_on() == []


def test_a_held_workload_is_left_alone_until_the_hold_ends() -> None:
    play = Play()
    play.to_order()
    until = play.now + timedelta(seconds=30)
    hold = HoldRequested(request_id="h", owner="ann", reason="r", until=until)
    assert play.hears(says(hold)) == ["held"]
    assert not play.decider.effects(play.case)[0].ready
    assert play.hears(play.sampled()) == []
    assert play.decider.due(play.case, POLICY) == until
    play.passes(31)
    assert play.goes_on() == ["released"]
    assert play.hears(says(HoldRequested(request_id="h2", owner="ann", reason="r"))) == ["held"]
    assert play.goes_on() == []
    assert play.hears(says(ReleaseRequested(request_id="r", owner="ann", reason="r"))) == ["released"]
    assert play.hears(says(ReleaseRequested(request_id="r2", owner="ann", reason="r"))) == []


def test_a_grant_that_comes_during_a_hold_is_refused() -> None:
    play = Play()
    play.hears(play.sampled())
    granted = play.budget_hears(play.log[-1])
    play.hears(says(HoldRequested(request_id="h", owner="ann", reason="r")))
    assert granted is not None
    assert play.hears(granted) == ["step-refused"]


def test_what_it_does_not_know_changes_nothing() -> None:
    play = Play()
    beat = Heartbeat(boot_id="b", n=1, device_keys=(), journal_depth=0, journal_lost=0)
    assert play.hears(says(beat, Entity("node", "n1", "agent"))) == []
    play.case = play.decider.evolve(play.case, says(beat, Entity("node", "n1", "agent")), 1)
    assert play.sla.breach is None
    play.hears(play.sampled())
    before = play.sla.breach
    foreign = facts.Restored(breach_id="another", before=1, after=1, window_s=1)
    play.case = play.decider.evolve(play.case, says(foreign), 9)
    assert play.sla.breach == before
    play.case = play.decider.evolve(
        play.case,
        says(
            facts.SlaStepRefused(breach_id=before.id if before else "", cause_id="x", reason="r", pod_uid="y")
        ),
        10,
    )
    assert play.sla.breach == before


def test_a_snapshot_brings_back_what_must_outlive_a_breach() -> None:
    play = Play()
    assert play.decider.snapshot(play.case) is None
    play.to_order()
    play.outcome("evicted")
    play.passes(60)
    play.goes_on()
    play.case = replace(play.sla, circuit_until=AT, misses=1, breach=None, facts=20)
    snapshot = play.decider.snapshot(play.case)
    assert snapshot is not None
    again = play.decider.evolve(play.decider.initial(OF), says(snapshot), 1)
    assert isinstance(again, SlaCase)
    assert (again.misses, again.circuit_until, again.applied[:2]) == (1, AT, play.sla.applied[:2])


# --------------------------------------------------------------------------------------------- the budget


def proposal(n: int, *, device: str = "d1", node: str = "n1", tenant: str = "t1") -> AnyEvent:
    data = facts.SlaStepProposed(
        breach_id="b",
        pod=PodRef(namespace="x", name=f"p{n}", uid=f"u{n}"),
        tier="batch",
        attempt=1,
        share=0.5,
        engine="e",
        device=device,
        node=node,
        tenant=tenant,
    )
    return says(data)


def limited_by(answer: AnyEvent | None) -> str:
    assert answer is not None
    return answer.data.limited_by.split(" ")[0] if isinstance(answer.data, facts.SlaDenied) else ""


def test_one_victim_per_device_and_round() -> None:
    play = Play()
    assert limited_by(play.budget_hears(proposal(1))) == ""
    assert limited_by(play.budget_hears(proposal(2))) == "device:n1/d1"
    play.passes(POLICY.grace_s + POLICY.relief_wait_s)
    assert limited_by(play.budget_hears(proposal(3))) == ""


def test_caps_per_node_tenant_and_fleet() -> None:
    play = Play()
    for n in (1, 2):
        assert limited_by(play.budget_hears(proposal(n, device=f"d{n}", tenant=f"t{n}"))) == ""
    assert limited_by(play.budget_hears(proposal(3, device="d3", tenant="t3"))) == "node:n1"
    for n in (4, 5, 6, 7):
        assert limited_by(play.budget_hears(proposal(n, node=f"n{n}"))) == ""
    assert limited_by(play.budget_hears(proposal(8, node="n8"))) == "tenant:t1"
    for n in (9, 10, 11, 12):
        assert limited_by(play.budget_hears(proposal(n, node=f"n{n}", tenant=f"t{n}"))) == ""
    assert limited_by(play.budget_hears(proposal(13, node="n13", tenant="t13"))) == "fleet"


def test_an_unknown_fleet_and_a_fleet_cap_of_none_grant_nothing() -> None:
    play = Play(POLICY.model_copy(update={"fleet_at_least": 0}))
    play.fleet = FleetLook(10)
    assert limited_by(play.budget_hears(proposal(1))) == "fleet"
    case = play.budget
    assert isinstance(case, BudgetCase)
    fact = play.decider.decide(case, proposal(2), None, play.now, POLICY)
    assert isinstance(fact, facts.SlaDenied)


def test_the_budget_freezes_and_thaws_with_the_measurements() -> None:
    play = Play()
    decider, now = play.decider, play.now
    assert decider.next(play.budget, None, now, POLICY) is None
    assert decider.next(play.budget, FleetLook(10), now, POLICY) is None
    frozen = decider.next(play.budget, FleetLook(10, "too many", "too many"), now, POLICY)
    assert isinstance(frozen, facts.SlaFrozen)
    assert decider.next(play.budget, FleetLook(10, "common cause 79"), now, POLICY) is None
    case = decider.evolve(play.budget, says(frozen, BUDGET), 1)
    assert not decider.closed(case)
    assert decider.next(case, FleetLook(10, "too many", "too many"), now, POLICY) is None
    thawed = decider.next(case, FleetLook(10), now, POLICY)
    assert isinstance(thawed, facts.SlaThawed)
    assert decider.closed(decider.evolve(case, says(thawed, BUDGET), 2))
    assert decider.due(case, POLICY) is None
    assert decider.effects(case) == ()


def test_the_budgets_snapshot_keeps_charges_and_causes() -> None:
    play = Play()
    play.budget_hears(proposal(1))
    assert isinstance(play.budget, BudgetCase)
    assert play.decider.snapshot(play.budget) is None
    long = replace(play.budget, facts=500)
    snapshot = play.decider.snapshot(long)
    assert snapshot is not None
    again = play.decider.evolve(play.decider.initial(BUDGET), says(snapshot, BUDGET), 1)
    assert isinstance(again, BudgetCase)
    assert again.charges == play.budget.charges
    assert again.applied[: len(play.budget.applied)] == play.budget.applied
    assert play.decider.evolve(again, play.sampled(), 2) != again


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.floats(0, 120)), max_size=40
    )
)
def test_the_caps_hold_whatever_is_proposed(steps: list[tuple[int, int, int, float]]) -> None:
    play = Play()
    granted: list[tuple[datetime, facts.SlaGranted]] = []
    for n, (device, node, tenant, wait_s) in enumerate(steps):
        play.passes(wait_s)
        answer = play.budget_hears(proposal(n, device=f"d{device}", node=f"n{node}", tenant=f"t{tenant}"))
        assert answer is not None
        if isinstance(answer.data, facts.SlaGranted):
            granted.append((play.now, answer.data))
    round_s = timedelta(seconds=POLICY.grace_s + POLICY.relief_wait_s)
    for at, one in granted:
        device_round = [g for when, g in granted if timedelta() <= at - when < round_s and g.node == one.node]
        assert len(device_round) <= POLICY.per_node
        assert len([g for g in device_round if g.device == one.device]) <= POLICY.per_device
        window = [g for when, g in granted if timedelta() <= at - when < timedelta(seconds=600)]
        assert len([g for g in window if g.tenant == one.tenant]) <= POLICY.per_tenant
        assert len(window) <= 10


ACTIONS = (
    "sample",
    "calm",
    "miss",
    "grant",
    "grant-twice",
    "evicted",
    "blocked",
    "hold",
    "release",
    "wait",
    "gone",
)


def does(play: Play, action: str, n: int) -> None:
    if action in ("sample", "calm", "miss"):
        play.ms = 40.0 if action == "calm" else 300.0
        play.look.pop("series", None)
        if action == "miss":
            play.look["series"] = Series()
        play.hears(play.sampled())
    elif action.startswith("grant"):
        for cause in [e for e in play.log if isinstance(e.data, facts.SlaStepProposed)][-1:]:
            answer = play.budget_hears(cause)
            for _ in range(2 if action == "grant-twice" else 1):
                if answer is not None:
                    play.hears(answer)
    elif action in ("evicted", "blocked"):
        ends(play, action)
    elif action == "hold":
        play.hears(says(HoldRequested(request_id=f"h{n}", owner="ann", reason="r")))
    elif action == "release":
        play.hears(says(ReleaseRequested(request_id=f"r{n}", owner="ann", reason="r")))
    elif action == "wait":
        play.passes(75)
        play.goes_on()
    else:
        play.goes_on(replace(play.seen(), alive=False))


def ends(play: Play, outcome: str) -> None:
    for effect in play.decider.effects(play.case):
        order = effect.ordered.data
        assert isinstance(order, facts.SlaEvictionOrdered)
        data = facts.SlaPodEvicted(
            breach_id=order.breach_id, pod=order.pod, attempt=order.attempt, outcome=outcome
        )
        play.append(data, Cause.of(effect.ordered))
        play.goes_on()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(ACTIONS), max_size=40),
    st.sampled_from(["neighbour", "self", "unknown", "device-fault"]),
)
def test_whatever_happens_only_neighbours_are_evicted_once_and_the_log_can_be_replayed(
    actions: list[str], verdict: str
) -> None:
    play = Play()
    play.look = {"attribution": NEIGHBOUR.model_copy(update={"verdict": verdict})}
    for n, action in enumerate(actions):
        play.passes(1)
        does(play, action, n)
        assert len(play.decider.effects(play.case)) <= 1
        if play.sla.hold is not None:
            assert not any(effect.ready for effect in play.decider.effects(play.case))
    ordered = [e.data for e in play.log if isinstance(e.data, facts.SlaEvictionOrdered)]
    assert verdict == "neighbour" or not ordered
    keys = [(o.breach_id, o.pod.uid, o.attempt) for o in ordered]
    assert len(keys) == len(set(keys))
    assert len({e.id for e in play.log}) == len(play.log)
    again: GuardianCase = play.decider.initial(OF)
    for sequence, fact in enumerate(play.log, 1):
        again = play.decider.evolve(again, fact, sequence)
    assert again == play.case


def test_a_proposal_is_waited_for_only_so_long() -> None:
    play = Play()
    play.hears(play.sampled())
    assert play.decider.due(play.case, POLICY) == play.now + timedelta(seconds=POLICY.grant_wait_s)


def test_the_budget_keeps_the_charge_of_what_was_evicted() -> None:
    play = Play()
    play.to_order()
    play.outcome("evicted")
    evicted = next(e for e in play.log if isinstance(e.data, facts.SlaPodEvicted))
    assert play.budget_hears(evicted) is None
    assert play.charges == 1


def test_a_step_of_a_later_version_leaves_the_breach_as_it_is() -> None:
    play = Play()
    play.hears(play.sampled())
    breach = play.sla.breach
    assert breach is not None
    assert _step(breach, facts.BreachPayload(breach_id=breach.id), play.log[-1]) is breach
