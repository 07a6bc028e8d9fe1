"""Anything in any order: what always holds of a device's case."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.remediation.case import DONE, State
from services.remediation.decide import RemediationDecider
from shared.events import AnyEvent, world
from shared.events import remediation as say
from shared.events.parts import Window
from tests.unit.remediation.device_stage import DEVICE, Stage, evidence, look, pod, policy

PODS = ("spare", "clips", "live")
TIERS = {"spare": "besteffort", "clips": "batch", "live": "online"}


class AnyOrder(RuleBasedStateMachine):
    """Evidence, answers, people, reboots, swaps, duplicates and time, in any order."""

    @initialize(absolute=st.sampled_from([None, 0, 1]), count=st.sampled_from([2, 3]))
    def begin(self, absolute: int | None, count: int) -> None:
        self.stage = Stage(
            policy(
                strikes={"count": count},
                budgets={"quarantine": {"cluster": {"absolute": absolute}}},
                deadlines={"silence_s": 7200},
            )
        )
        self.stage.looks = {f"uid-{name}": look(name, TIERS[name]) for name in PODS}
        self.heard: list[AnyEvent] = []
        self.seen = 0
        self.person_holds = False
        self.hold_until_s: float | None = None
        self.requests = 0
        self.boot = 1
        self.serial = "S1"

    # ------------------------------------------------------------------ what happens

    @rule(
        class_=st.sampled_from(["transient", "transient", "fatal", "sympathetic", "application"]),
        verdict=st.sampled_from(["unhealthy", "unhealthy", "unknown"]),
    )
    def evidence_comes(self, class_: str, verdict: str) -> None:
        found = evidence("48", class_, at=self.stage.now)
        self.heard.append(self.stage.report(found, verdict=verdict, boot=f"b{self.boot}", serial=self.serial))

    @rule(streak=st.integers(1, 12))
    def it_is_healthy(self, streak: int) -> None:
        self.heard.append(
            self.stage.report(verdict="healthy", streak=streak, boot=f"b{self.boot}", serial=self.serial)
        )

    @rule(holders=st.sets(st.sampled_from(PODS)), stale=st.booleans())
    def the_bridge_answers(self, holders: set[str], stale: bool) -> None:  # noqa: FBT001 - drawn
        epoch = max(self.stage.case.epoch - int(stale), 0)
        self.heard.append(self.stage.fenced(*sorted(holders), epoch=epoch))

    @rule(name=st.sampled_from(PODS))
    def a_pod_is_bound(self, name: str) -> None:
        bound = world.Bound(allocation_id="a", pod=pod(name), container="c", resource="r")
        self.heard.append(self.stage.hear(bound))

    @rule(name=st.sampled_from(PODS), outcome=st.sampled_from(["blocked", "failed", "withheld", "gone"]))
    def an_eviction_will_end_so(self, name: str, outcome: str) -> None:
        self.stage.outcomes.setdefault(name, []).append((outcome, 5.0))

    @rule(outcome=st.sampled_from(["passed", "failed", "ambiguous"]), stale=st.booleans())
    def a_diagnosis_comes(self, outcome: str, stale: bool) -> None:  # noqa: FBT001 - drawn
        epoch = max(self.stage.case.epoch - int(stale), 0)
        self.heard.append(self.stage.diagnosed(outcome, epoch=epoch))

    @precondition(lambda self: self.stage.case.state is State.REPAIRING)
    @rule(outcome=st.sampled_from(["succeeded", "failed", "ambiguous"]))
    def a_repair_ends(self, outcome: str) -> None:
        self.heard.append(self.stage.repaired(outcome))

    @rule(boot_lost=st.booleans())
    def the_bridge_acts_alone(self, boot_lost: bool) -> None:  # noqa: FBT001 - drawn
        window = None if boot_lost else Window(boot_id=f"b{self.boot}", window_id=self.stage._window)
        self.heard.append(
            self.stage.hear(
                world.Withdrawn(
                    boot_id=f"b{self.boot}",
                    n=len(self.heard),
                    serial=self.serial,
                    evidence=(evidence("79", "fatal", at=self.stage.now),),
                    window=window,
                )
            )
        )

    @rule()
    def the_node_reboots(self) -> None:
        self.boot += 1

    @rule()
    def the_device_is_swapped(self) -> None:
        self.serial = f"S{int(self.serial[1:]) + 1}"
        self.stage.serial = self.serial
        self.heard.append(self.stage.registered(self.serial))

    @rule(hours=st.sampled_from([None, 1]))
    def a_person_holds(self, hours: int | None) -> None:
        self.requests += 1
        until = None if hours is None else self.stage.now + timedelta(hours=hours)
        self.person_holds = hours is None
        self.heard.append(self.stage.hold(f"q{self.requests}", until=until))
        assert self.stage.case.state is State.HELD

    @rule()
    def a_person_releases(self) -> None:
        self.requests += 1
        self.person_holds = False
        self.heard.append(self.stage.release(f"q{self.requests}"))
        assert self.stage.case.state is not State.HELD

    @rule()
    def a_person_retires(self) -> None:
        self.requests += 1
        self.person_holds = False
        self.heard.append(self.stage.retire(f"q{self.requests}"))
        assert self.stage.case.state is State.RETIRED

    @rule(seconds=st.sampled_from([1, 10, 61, 700, 4000]), vouched=st.booleans())
    def time_passes(self, seconds: int, vouched: bool) -> None:  # noqa: FBT001 - drawn
        self.stage.passes(seconds, vouched=vouched)

    @rule(up=st.booleans())
    def the_api_server_is(self, up: bool) -> None:  # noqa: FBT001 - drawn
        self.stage.api_up = up

    @precondition(lambda self: bool(self.heard))
    @rule(data=st.data())
    def something_comes_again(self, data: st.DataObject) -> None:
        again = data.draw(st.sampled_from(self.heard[-12:]))
        before = self._last_sequence_of_people()
        self.stage.again(again)
        assert self._last_sequence_of_people() == before, "a command heard again is applied once"

    def _last_sequence_of_people(self) -> Counter[str]:
        people = (say.Held, say.HoldReleased, say.CommandRefused)
        return Counter(
            fact.data.command_id
            for fact in self.stage.facts
            if isinstance(fact.data, people) and fact.data.command_id.startswith("q")
        )

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def a_person_s_hold_is_never_undone(self) -> None:
        if self.person_holds:
            assert self.stage.case.state is State.HELD

    @invariant()
    def epochs_only_grow_and_one_case_is_open(self) -> None:
        epoch, is_open = 0, False
        for fact in self.stage.engine.logs.get(DEVICE, ()):
            if isinstance(fact.data, say.Opened):
                assert not is_open, "a case is opened while another is open"
                assert fact.data.epoch == epoch + 1
                epoch, is_open = fact.data.epoch, True
            elif isinstance(fact.data, say.Closed):
                assert is_open
                is_open = False
            elif isinstance(fact.data, say.CasePayload) and not isinstance(fact.data, say.CommandRefused):
                assert fact.data.epoch == epoch

    @invariant()
    def no_pod_is_evicted_twice_for_one_cause(self) -> None:
        done: set[tuple[int, str]] = set()
        for fact in self.stage.facts:
            match fact.data:
                case say.EvictionOrdered() as order:
                    assert (order.epoch, order.pod.uid) not in done
                case say.PodEvicted() as evicted if evicted.outcome in DONE:
                    done.add((evicted.epoch, evicted.pod.uid))

    @invariant()
    def evictions_are_ordered_only_from_a_fenced_drain(self) -> None:
        fenced = False
        for fact in self.stage.engine.logs.get(DEVICE, ()):
            match fact.data:
                case say.Opened() | say.Quarantined():
                    fenced = False
                case say.DrainPlanned() as plan if plan.fenced_by:
                    fenced = True
                case say.EvictionOrdered():
                    assert fenced

    @invariant()
    def budgets_are_never_exceeded(self) -> None:
        limit = self.stage.policy.budgets["quarantine"]["cluster"].absolute
        granted = sum(
            1 for fact in self.stage.facts if isinstance(fact.data, say.BudgetGranted) and fact.data.code
        )
        if limit == 0:
            assert granted == 0
        assert all(key.epoch <= self.stage.case.epoch for key in self.stage.budget.charges)

    @invariant()
    def every_open_state_has_an_exit(self) -> None:
        case = self.stage.case
        due = RemediationDecider().due(case, self.stage.policy)
        if case.open and case.state not in (State.RETIRED, State.HELD):
            assert due is not None, case.state

    @invariant()
    def ids_of_facts_are_unique(self) -> None:
        ids = [fact.id for fact in self.stage.facts]
        assert len(ids) == len(set(ids))

    def teardown(self) -> None:
        """Left alone on a node that speaks, with an API server that answers, every case comes to rest."""
        if not hasattr(self, "stage"):
            return
        self.stage.api_up = True
        self.stage.outcomes.clear()
        for _ in range(60):
            self.stage.passes(3600 * 6)
        assert self.stage.case.state in (State.HEALTHY, State.RETIRED, State.HELD, State.SUSPECT)
        if self.stage.case.state is State.SUSPECT:
            assert self.stage.policy.budgets["quarantine"]["cluster"].absolute is not None


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
